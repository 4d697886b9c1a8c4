"""What must a surrogate provide? A posterior over all effects that learns from outcomes.

The interface of surrogates, and the outcomes from which they learn. Methods trust `Queries`, which
a problem has checked when it made them; anything else, such as a list of mappings {variable:
value}, is read and checked once, by the method that is called.
"""

from typing import NamedTuple, Protocol, Self

import jax
import numpy as np

from causal_bo_ppl.errors import ArgumentError, DataError, DomainError, ExplorationError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import (
    LARGEST_MAGNITUDE,
    offered,
    read_number,
    require_outcomes,
    size_fault,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.responses import Prediction

Numbers = float | np.ndarray  # one for each of M queries, or one for all


class JointPrediction(NamedTuple):
    """Mean (M,) and joint covariance (M, M) of effects."""

    mean: np.ndarray
    covariance: np.ndarray


class Surrogate(Protocol):
    """The joint posterior of the effects of all interventions given some outcomes; immutable.

    An outcome of query z is y = f(z) + e with e ~ N(0, noise). Variances of noise that are not
    given are those that the posterior's model implies.

    Optional: `relinearize()` returns the surrogate with its approximations made anew at the
    parameters that the outcomes favour. `require_known(queries)` raises ExplorationError where the
    effect of a query is not modelled, which `predict` does too.
    """

    @property
    def post(self) -> Posterior:
        """The posterior of the parameters before the outcomes."""

    def predict(self, queries: Queries) -> Prediction:
        """Return E[f(z)] and sd[f(z)] given all outcomes, of M queries."""

    def joint(self, queries: Queries) -> JointPrediction:
        """Return E[f(z)] and Cov[f(z), f(z')] given all outcomes; the diagonal is sd^2."""

    def sample(self, key: jax.Array, queries: Queries, n: int = 1) -> np.ndarray:
        """Draw n functions f and evaluate each at all queries, (n, M)."""

    def condition(self, queries: Queries, outcomes: Numbers, noise: Numbers | None = None) -> Self:
        """Return the surrogate conditioned on outcomes (M,) of M queries, by any order or grouping.

        noise: variances of the outcomes' noise.
        """

    def fantasize(self, queries: Queries, noise: Numbers | None = None) -> Self:
        """Return the surrogate as if all queries had come out as predicted.

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


def find_fault(surrogate: Surrogate, queries: Queries) -> str:
    """Return why a surrogate cannot predict a batch of queries, of any origin; "" if it can.

    Queries must be legal in its problem, and their effects must be modelled.
    """
    try:
        legal = surrogate.post.problem.require(queries)
        (offered(surrogate, "require_known") or surrogate.predict)(legal)
    except (DomainError, ExplorationError) as error:
        return str(error)
    return ""


def as_queries(problem: Problem, given: Queries) -> Queries:
    """Return Queries as they are; read and check interventions that are given in another form."""
    return given if isinstance(given, Queries) else problem.require(given)


def as_query(problem: Problem, given: Queries) -> Queries:
    """Return a batch of one intervention; refuse several."""
    query = as_queries(problem, given)
    if len(query) != 1:
        raise ArgumentError(f"this is about one intervention; got {query!r}")
    return query


class NoisyOutcomes(NamedTuple):
    """Observed outcomes: m queries, values (m,) and variances (m,) of their noise."""

    queries: Queries
    values: np.ndarray
    variances: np.ndarray

    def join(self, other: "NoisyOutcomes") -> "NoisyOutcomes":
        """Return these outcomes followed by others."""
        queries = stack([self.queries, other.queries])
        return NoisyOutcomes(queries, *map(np.append, self[1:], other[1:]))

    def select(self, chosen: np.ndarray) -> "NoisyOutcomes":
        """Return the outcomes for which a mask (m,) is true."""
        return NoisyOutcomes(self.queries[chosen], self.values[chosen], self.variances[chosen])


def no_noisy_outcomes(problem: Problem) -> NoisyOutcomes:
    """Return an empty batch of outcomes."""
    return NoisyOutcomes(problem.baseline()[:0], np.zeros(0), np.zeros(0))


def read_noisy_outcomes(
    post: Posterior, queries: Queries, outcomes: object, noise: object
) -> NoisyOutcomes:
    """Check outcomes of queries, one finite number each, and the variances of their noise.

    noise: None for what the posterior's model implies. A DataError is raised if there is not one
    outcome and one variance for each query, or one of them cannot be used.
    """
    queries = as_queries(post.problem, queries)
    implied = post.outcome_variances(queries) if noise is None else noise
    values, variances = _read_numbers("outcome", outcomes), _read_numbers("noise", implied)
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


def predicted_outcomes(
    surrogate: Surrogate, queries: Queries, noise: Numbers | None
) -> NoisyOutcomes:
    """Return outcomes of queries that are as predicted, for `fantasize`.

    They have some noise: an earlier outcome without noise decides, and agrees up to rounding.
    """
    queries = as_queries(surrogate.post.problem, queries)
    values = surrogate.predict(queries).mean
    new = read_noisy_outcomes(surrogate.post, queries, values, noise)
    return new._replace(variances=np.maximum(new.variances, np.finfo(float).tiny))
