"""What must a surrogate provide? A posterior over all effects that learns from outcomes.

The interface of surrogates, and the outcomes from which they learn.
"""

from typing import NamedTuple, Protocol

import jax
import numpy as np

from causal_bo_ppl.errors import ArgumentError, DataError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import LARGEST_MAGNITUDE, read_number, require_outcomes, size_fault
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.responses import Prediction


class Surrogate(Protocol):
    """The joint posterior of the effects of all interventions given some outcomes; immutable.

    An outcome of query z is y = f(z) + e with e ~ N(0, noise). Optional: `relinearize()` returns
    the surrogate with its approximations made anew at the parameters that the outcomes favour.
    """

    @property
    def post(self) -> Posterior:
        """The posterior of the parameters before the outcomes."""

    def predict(self, queries: Queries) -> Prediction:
        """Return E[f(z)] and sd[f(z)] given all outcomes, of M queries."""

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return Cov[f(z), f(z')] given all outcomes, (M, M); its diagonal is sd^2 of `predict`."""

    def sample(self, queries: Queries, n: int, key: jax.Array) -> np.ndarray:
        """Draw n functions f and evaluate each at all queries, (n, M)."""

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Surrogate":
        """Return the surrogate conditioned on outcomes (M,) of M queries.

        noise: variances of the outcomes, by default those that the posterior's model implies.
        """

    def fantasize(self, query: Queries, noise: float) -> "Surrogate":
        """Return the surrogate as if one query had come out as predicted.

        Means stay the same, and variances become smaller.
        """

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density log p(y | all outcomes) of an outcome of one query."""


class SurrogateMaker(Protocol):
    """A configuration of a surrogate, which builds it from a posterior."""

    @property
    def name(self) -> str:
        """The name of the surrogate, for tables and messages."""

    def begin(self, post: Posterior) -> Surrogate:
        """Return the surrogate before any outcome."""


class NoisyOutcomes(NamedTuple):
    """Observed outcomes: m queries, values (m,) and variances (m,) of their noise."""

    queries: Queries
    values: np.ndarray
    variances: np.ndarray

    def join(self, other: "NoisyOutcomes") -> "NoisyOutcomes":
        """Return these outcomes followed by others."""
        values = np.append(self.values, other.values)
        variances = np.append(self.variances, other.variances)
        return NoisyOutcomes(stack([self.queries, other.queries]), values, variances)

    def select(self, chosen: np.ndarray) -> "NoisyOutcomes":
        """Return the outcomes for which a mask (m,) is true."""
        queries = self.queries[np.flatnonzero(chosen)]
        return NoisyOutcomes(queries, self.values[chosen], self.variances[chosen])


def require_one(query: Queries) -> Queries:
    """Return the query of one intervention; refuse several."""
    if len(query) != 1:
        raise ArgumentError(f"this is about one intervention; got {query!r}")
    return query


def read_noisy_outcomes(queries: Queries, outcomes: object, noise: object) -> NoisyOutcomes:
    """Check outcomes of valid queries, one finite number each, and the variances of their noise.

    Raises
    ------
    DataError
        If there is not one outcome and one variance for each query, or one of them cannot be used.
    """
    values, variances = _read_numbers("outcome", outcomes), _read_numbers("noise", noise)
    if len(variances) == 1:
        variances = np.repeat(variances, len(queries))
    if not len(queries) or len(values) != len(queries) or len(variances) != len(queries):
        raise DataError(
            f"give one outcome for each intervention; got {len(values)} outcomes and "
            f"{len(variances)} variances of {queries!r}"
        )
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise DataError(f"the outcome is {bad}; it must be finite: omit a failed experiment")
    wrong = ~(np.isfinite(variances) & (variances >= 0))
    if wrong.any():
        raise DataError(
            f"the variance of the outcome's noise is {variances[wrong][0]}; it must be finite, and "
            "not negative"
        )
    require_outcomes(values)
    if fault := size_fault(float(variances.max()), 0.0, LARGEST_MAGNITUDE**2):
        raise DataError(f"the variance of the outcome's noise is {fault}")
    return NoisyOutcomes(queries, values, variances)


def _read_numbers(name: str, given: object) -> np.ndarray:
    """Return numbers as a float array of one dimension; refuse anything else."""
    if isinstance(given, np.ndarray) and given.dtype == float:
        return given.ravel()
    return np.array([read_number(name, number) for number in np.ravel(np.asarray(given, object))])


def no_noisy_outcomes(variables: int) -> NoisyOutcomes:
    """Return an empty batch of outcomes of interventions on a number of variables."""
    blank = np.zeros((0, variables))
    return NoisyOutcomes(Queries(blank.astype(bool), blank), np.zeros(0), np.zeros(0))
