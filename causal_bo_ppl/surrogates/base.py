"""What must a surrogate provide? A posterior over all effects that learns from outcomes.

Methods trust `Queries`, which a problem has checked when it made them; anything else, such as a
list of mappings {variable: value}, is read and checked once, by the method that is called.
"""

from typing import NamedTuple, Protocol, Self

import jax
import numpy as np

from causal_bo_ppl.data.observations import NoisyOutcomes, read_noisy_outcomes
from causal_bo_ppl.errors import ArgumentError, DomainError, ExplorationError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import offered
from causal_bo_ppl.problem import Queries
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


def as_query(post: Posterior, given: Queries) -> Queries:
    """Return a batch of one intervention; refuse several."""
    query = post.as_queries(given)
    if len(query) != 1:
        raise ArgumentError(f"this is about one intervention; got {query!r}")
    return query


def predicted_outcomes(
    surrogate: Surrogate, queries: Queries, noise: Numbers | None
) -> NoisyOutcomes:
    """Return outcomes of queries that are as predicted, for `fantasize`.

    They have some noise: an earlier outcome without noise decides, and agrees up to rounding.
    """
    post = surrogate.post
    queries = post.as_queries(queries)
    variances = post.outcome_variances(queries) if noise is None else noise
    new = read_noisy_outcomes(queries, surrogate.predict(queries).mean, variances)
    return new._replace(variances=np.maximum(new.variances, np.finfo(float).tiny))
