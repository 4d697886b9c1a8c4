"""What must a surrogate provide? Beliefs about all effects that learn from outcomes.

Outcomes of interventions as they are told to a surrogate, and merged.
"""

from typing import NamedTuple, Protocol

import jax
import numpy as np

from causal_bo_ppl.data.outcomes import Replicates
from causal_bo_ppl.effect_estimates.moments import Prediction
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import LARGEST_MAGNITUDE, read_number, require_outcomes, size_fault
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import stack


class Surrogate(Protocol):
    """What is believed about the effect of every intervention after some outcomes; immutable.

    An outcome of query z is y = f(z) + e with e ~ N(0, noise). Optional: `relinearize()`, the same
    beliefs after approximations were made anew where the outcomes point to.
    """

    @property
    def post(self) -> Posterior:
        """The posterior that was believed before the outcomes."""

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
        """Return the surrogate after outcomes (M,) of M queries.

        noise: variances of the outcomes, by default those that the posterior's model implies.
        """

    def fantasize(self, query: Queries, noise: float) -> "Surrogate":
        """Return the surrogate as if one query had come out as predicted.

        The means stay the same, and there is less doubt.
        """

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density log p(y | all outcomes) of an outcome of one query."""


class SurrogateMaker(Protocol):
    """Makes a surrogate of a posterior, before any outcome."""

    @property
    def name(self) -> str:
        """The name of the surrogate, for tables and messages."""

    def begin(self, post: Posterior) -> Surrogate:
        """Return what is believed about effects before any outcome."""


class Told(NamedTuple):
    """Outcomes as they were told: queries in m rows, values (m,) and variances (m,) of noise."""

    queries: Queries
    values: np.ndarray
    variances: np.ndarray

    def join(self, other: "Told") -> "Told":
        """Return these outcomes followed by others."""
        values = np.append(self.values, other.values)
        variances = np.append(self.variances, other.variances)
        return Told(stack([self.queries, other.queries]), values, variances)


def read_told(queries: Queries, outcomes: object, noise: object) -> Told:
    """Check outcomes of queries that were checked, one finite number each, and their variances.

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
            f"tell one outcome of each intervention; got {len(values)} outcomes and "
            f"{len(variances)} variances of {queries!r}"
        )
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise DataError(f"the outcome is {bad}; it must be finite: leave a failed experiment out")
    wrong = ~(np.isfinite(variances) & (variances >= 0))
    if wrong.any():
        raise DataError(
            f"the variance of the outcome's noise is {variances[wrong][0]}; it must be finite, and "
            "not negative"
        )
    require_outcomes(values)
    if fault := size_fault(float(variances.max()), 0.0, LARGEST_MAGNITUDE**2):
        raise DataError(f"the variance of the outcome's noise is {fault}")
    return Told(queries, values, variances)


def _read_numbers(name: str, given: object) -> np.ndarray:
    """Return numbers as a float array of one dimension; anything else is refused by its name."""
    if isinstance(given, np.ndarray) and given.dtype == float:
        return given.ravel()
    return np.array([read_number(name, each) for each in np.ravel(np.asarray(given, object))])


def require_one(told: Told) -> Told:
    """Return an outcome; refuse several."""
    if len(told.values) != 1:
        raise DataError(f"this is about one intervention; got {told.queries!r}")
    return told


def row_of(merged: Replicates, query: Queries) -> int:
    """Return the row of one intervention among merged ones."""
    mask, value = np.asarray(query.mask)[0], np.where(query.mask, query.value, 0.0)[0]
    same = (merged.queries.mask == mask) & (merged.queries.value == value)
    return int(np.flatnonzero(np.asarray(same).all(axis=1))[0])


def no_told(variables: int) -> Told:
    """Return no outcomes, of interventions on a number of variables."""
    blank = np.zeros((0, variables))
    return Told(Queries(blank.astype(bool), blank), np.zeros(0), np.zeros(0))
