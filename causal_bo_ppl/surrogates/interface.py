"""What must a surrogate provide? Beliefs about all effects that learn from outcomes."""

from typing import NamedTuple, Protocol

import jax
import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.problem import Queries


class Prediction(NamedTuple):
    """Mean (M,) and standard deviation (M,) of effects."""

    mean: np.ndarray
    sd: np.ndarray


class Surrogate(Protocol):
    """What is believed about the effect of every intervention after some outcomes; immutable.

    An outcome of query z is y = f(z) + e with e ~ N(0, noise). Optional: `recentre()`, the same
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

    def imagine(self, query: Queries, noise: float) -> "Surrogate":
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
