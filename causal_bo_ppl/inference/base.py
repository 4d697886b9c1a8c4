"""What must a method of inference provide, and what must it know about theta?"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference.draws import Drawn, Limits, drawn_before
from causal_bo_ppl.inference.potentials import Importance
from causal_bo_ppl.mechanisms.base import Mechanisms, Model, Prior, ResponseMap, Task, offered
from causal_bo_ppl.problem import Queries


class ObservationModel(Protocol):
    """Density and simulation of observations under n models; a part of `mechanisms.base.Model`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The variables, the target last."""

    def log_densities(self, draws: Any, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each of m observations of p variables, (n, m, p)."""

    def replicate(self, draws: Any, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one observation of each of n models under each of M queries, (n, M, p)."""


class ThetaDistribution(Protocol):
    """The posterior distribution of theta as a method of inference returns it.

    Kernels and checks use it through `Posterior`, whatever method it came from. Queries are over
    the variables of `model.nodes`.

    Optional, found by `offered`: `coefficients()`, the `Coefficients` of linear equations that are
    independent given the data, and `expected_information(queries)`, the `ExpectedInformation` of
    one observation of each query about the weights w of theta = mean + factor w; see
    `mechanisms.base`.
    """

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""

    @property
    def model(self) -> ObservationModel | None:
        """The model whose parameters were drawn; None where only theta is known."""

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed, for tables and messages."""

    @property
    def verdict(self) -> str:
        """Whether the computation worked: "exact", "passed", "failed" or "not assessed"."""

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, (p,); the values of others are given."""

    @property
    def settings(self) -> str:
        """Options and key that the numbers depend on; empty if nothing is drawn."""

    @property
    def chains(self) -> np.ndarray | None:
        """Draws of theta that depend on each other, (chains, n, d); None where draws do not."""

    @property
    def summary(self) -> pd.DataFrame | None:
        """Convergence of every coordinate of theta; None where nothing was sampled."""

    @property
    def effective_draws(self) -> float:
        """The effective sample size of the covariance; infinite in closed form."""

    @property
    def tail_degrees(self) -> float:
        """Fewest degrees of freedom of a coordinate that is Student's t; infinite for others."""

    @property
    def is_gaussian(self) -> bool:
        """Whether theta is Gaussian by construction."""

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d)."""

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta about n times with the whole models; by default all there are, or 4,000."""

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; None where that is impossible."""

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return weights of N(mean, covariance) as a proposal for the posterior."""

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return a table of diagnostics of the computation: value, limit and verdict."""

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on how the posterior was computed, and how well."""

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, (M,)."""

    def update(self, data: Data) -> "ThetaDistribution":
        """Return the distribution after more observations."""


class ModelDistribution:
    """The part of a `ThetaDistribution` that follows from its model alone."""

    model: Model

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""
        return self.model.response

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, of shape (p,)."""
        return self.model.learned

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; None where the model cannot."""
        return drawn_before(self.model, n, key)


def learned_entries(
    model: ObservationModel | None, learned: np.ndarray, data: Data, nodes: Sequence[str]
) -> np.ndarray:
    """Return which values of n observations inform a density, (n, p) over `nodes`.

    Those are the values of variables that were not set and whose density is learned (`learned`,
    (p,)), unless the model has it that the experiment has changed the density.
    """
    usable = offered(model, "usable")
    if usable is not None:
        return np.asarray(usable(data) & learned)
    return np.asarray(~data.intervened[:, [data.nodes.index(name) for name in nodes]] & learned)


class InferenceMethod(Protocol):
    """A method of inference: from a task, its mechanisms and a key to a distribution of theta.

    It may have these attributes too, which `methods.trait` reads with the defaults in brackets:

    - `takes_experiments` (True): whether it learns from observations in which something was set.
    - `uses_linearity` (True): whether it can learn what only linear mechanisms identify.
    - `learns_moments` (False): whether it learns moments of all observed variables, whatever the
      mechanisms. Theta may then have no value in some draws.
    - `is_approximate` (False): whether its intervals may be off even where the computation worked.

    Optional methods are found by `offered`: `proper_prior(problem)`, a prior that can be drawn
    from; `shortened()`, the same method with fewer draws, for many fits; `resume(model, psi, stats,
    key, sizes)`, the distribution of draws that it made before, see `NUTS.resume`.
    """

    @property
    def name(self) -> str:
        """The name of the method, for tables and messages."""

    @property
    def needs_key(self) -> bool:
        """Whether it draws at random."""

    def infer(self, task: Task, mechanisms: Mechanisms, key: jax.Array | None) -> ThetaDistribution:
        """Return the posterior of theta given the data and outcomes of the task."""


class Recipe(NamedTuple):
    """The arguments of `fit`, by which a posterior can be computed again.

    mechanisms: the choice as it was given. task: with the data of the first fit; those of later
    updates are in the posterior. key: None where none was given.
    """

    mechanisms: Any
    method: InferenceMethod
    task: Task
    key: jax.Array | None


def require_no_outcomes(task: Task, method: str) -> None:
    """Refuse outcomes of the target alone."""
    if len(task.outcomes.values):
        raise ArgumentError(
            f"{method} learns from complete observations only; for outcomes of the target alone "
            "use method='nuts' or 'laplace', or condition a surrogate on them: "
            "cb.surrogates.couple(post).tell(query, outcome)"
        )
