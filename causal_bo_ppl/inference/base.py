"""What must a method of inference provide, and what must it know about theta?"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.inference.draws import Drawn, Limits, drawn_before
from causal_bo_ppl.inference.potentials import Importance
from causal_bo_ppl.mechanisms.base import Mechanisms, Model, Prior, ResponseMap, Task, offered
from causal_bo_ppl.problem import Problem, Queries


class ObservationModel(Protocol):
    """What n models say about rows of the variables in `nodes`; a part of `interfaces.Model`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The variables, the target last."""

    def log_densities(self, draws: Any, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, rows, p)."""

    def replicate(self, draws: Any, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one row for each model and query, (n, rows, p)."""


class ThetaDistribution(Protocol):
    """What a method of inference knows about theta.

    Kernels and checks ask a belief these questions through `Posterior`; none of them asks which
    method it came from. Queries are over the variables of `model.nodes`.

    Optional, found by `offered`: `coefficients()`, the `Coefficients` of linear equations that are
    independent given the rows, and `expected_information(queries)`, the `ExpectedInformation` of one whole
    row of each query about the weights w of theta = mean + factor w; see `mechanisms.interfaces`.
    """

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""

    @property
    def model(self) -> ObservationModel | None:
        """What draws of whole models say about rows; None where only theta is known."""

    @property
    def prior(self) -> Prior:
        """What was believed before the rows."""

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found, in words."""

    @property
    def verdict(self) -> str:
        """Whether the computation worked: "exact", "passed", "failed" or "not assessed"."""

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is known, (p,); the others' rows are given."""

    @property
    def settings(self) -> str:
        """What the numbers depend on besides problem, prior and rows; empty if nothing is drawn."""

    @property
    def chains(self) -> np.ndarray | None:
        """Draws of theta that depend on each other, (chains, n, d); None where draws do not."""

    @property
    def summary(self) -> pd.DataFrame | None:
        """Convergence of every coordinate of theta; None where nothing was sampled."""

    @property
    def worth(self) -> float:
        """How many independent draws the covariance is made of; infinite in closed form."""

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
        """Draw about n times before any row; None where that is impossible."""

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return weights of N(mean, covariance) as a proposal for the posterior."""

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return what the computation's success is judged by: value, limit and verdict."""

    def describe(self, lines: pd.DataFrame) -> str:
        """Say in words how the posterior was computed, and how well."""

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, (M,)."""

    def update(self, rows: Data) -> "ThetaDistribution":
        """Return the belief after more rows."""


class ModelDistribution:
    """The part of a belief about the parameters of a model that the model itself knows."""

    model: Model

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""
        return self.model.response

    @property
    def prior(self) -> Prior:
        """What was believed before the rows."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, of shape (p,)."""
        return self.model.learned

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times before any row; None where the model cannot."""
        return drawn_before(self.model, n, key)


def learned_entries(
    model: ObservationModel | None, learned: np.ndarray, data: Data, nodes: Sequence[str]
) -> np.ndarray:
    """Return where rows teach the densities of variables, (rows, p) over `nodes`.

    That is where a variable was not set, its density is learned (`learned`, (p,)), and the model
    does not say that the experiment has changed it.
    """
    usable = offered(model, "usable")
    if usable is not None:
        return np.asarray(usable(data) & learned)
    return np.asarray(~data.intervened[:, [data.nodes.index(name) for name in nodes]] & learned)


def learned_observations(
    problem: Problem, distribution: ThetaDistribution, data: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Return values (n, p) of the target and its causes, and which of them inform a density."""
    nodes = problem.graph.ancestral(problem.target).nodes
    columns = [problem.graph.index(name) for name in nodes]
    return data.values[:, columns], learned_entries(
        distribution.model, distribution.learned, data, nodes
    )


class Method(Protocol):
    """A method of inference: from a task, its mechanisms and a key to a belief about theta.

    What else a method may say about itself is found by `methods.trait`, which knows what is taken
    where it says nothing:

    - `takes_experiments` (True): whether it learns from rows in which something was set.
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
        """Return the posterior of theta given the rows and outcomes of the task."""


class Recipe(NamedTuple):
    """What `fit` was given, so that a posterior can be made again from its rows.

    mechanisms: the choice as it was given. task: with the rows of the first fit; a posterior knows
    those of later updates itself. key: None where none was given.
    """

    mechanisms: Any
    method: Method
    task: Task
    key: jax.Array | None
