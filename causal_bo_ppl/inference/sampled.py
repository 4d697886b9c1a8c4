"""Draws as the belief of a posterior: of a model's coordinates, or of theta alone.

The former are made here by any method, the latter were made elsewhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import no_outcomes
from causal_bo_ppl.errors import ModelError, listed, unknown
from causal_bo_ppl.inference.base import ModelDistribution
from causal_bo_ppl.inference.draws import (
    Drawn,
    Limits,
    choose_draws,
    describe_chains,
    drawn_at,
    judge_chains,
    overall,
    summarise,
    worth_of_chains,
)
from causal_bo_ppl.inference.potentials import (
    COEFFICIENTS,
    ENOUGH,
    TOO_FEW,
    WHOLE,
    Importance,
    not_assessed,
    ratios_of_model,
    weigh,
)
from causal_bo_ppl.inputs import host_generator, require_float64
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms import read_response
from causal_bo_ppl.mechanisms.base import Model, ResponseMap, Task, offered
from causal_bo_ppl.problem import Problem, Queries

NO_DENSITY = "the density that given draws come from is not known"


class OfDraws:
    """What beliefs that are draws of theta share; see `interfaces.ThetaDistribution`.

    chains: draws of theta, (chains, n, d).
    """

    response: Any
    chains: Any

    tail_degrees = np.inf
    is_gaussian = False

    @property
    def _theta(self) -> np.ndarray:
        """All draws of theta, chain after chain, of shape (n, d)."""
        return np.asarray(self.chains.reshape(-1, self.chains.shape[-1]))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""
        return self._theta.mean(axis=0), factor_draws(self._theta)

    @cached_property
    def worth(self) -> float:
        """How many independent draws the covariance of theta is made of."""
        return worth_of_chains(self.chains)

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Choose n of the draws of theta (n, d) at random."""
        return choose_draws(self._theta, n, host_generator(key))

    @property
    def recorded(self) -> dict[str, np.ndarray]:
        """What the sampler recorded of every draw, {name: (chains, n)}."""
        return {}

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Convergence of every coordinate of theta, and of the log posterior where it is kept."""
        if "lp" not in self.recorded:
            return summarise(self.chains, self.response.names)
        names = (*self.response.names, "log posterior")
        return summarise(
            np.concatenate([self.chains, self.recorded["lp"][..., None]], axis=-1), names
        )

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return what the computation's success is judged by."""
        return judge_chains(self.summary, self.recorded, limits)

    @cached_property
    def verdict(self) -> str:
        """Whether the chains agree, and are long enough."""
        return overall(self.lines(Limits()))


@dataclass(frozen=True, eq=False)
class SampledDistribution(OfDraws, ModelDistribution):
    """Draws of a model as the belief of a posterior; see `interfaces.ThetaDistribution`.

    psi: coordinates, (chains, n, k). stats: {name: (chains, n)} of the sampler, may be empty. by:
    the name of the method. size: how many draws there are, in words. settings: what the draws
    depend on besides the rows. again: draws for the same model with more rows.
    """

    model: Model
    psi: np.ndarray
    stats: dict[str, np.ndarray]
    by: str
    size: str
    settings: str
    again: Callable[[Model], "SampledDistribution"]

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""
        return f"{self.psi.shape[0]} x {self.psi.shape[1]} draws by {self.by}"

    @property
    def _flat(self) -> np.ndarray:
        """Coordinates of all draws, chain after chain, of shape (n, k)."""
        return self.psi.reshape(-1, self.psi.shape[-1])

    @cached_property
    def models(self) -> Any:
        """All draws of the models, chain after chain."""
        return self.model.draws(self._flat)

    @cached_property
    def chains(self) -> np.ndarray:
        """Draws of theta, of shape (chains, n, d)."""
        return self.model.theta(self.models).reshape(*self.psi.shape[:2], -1)

    @property
    def recorded(self) -> dict[str, np.ndarray]:
        """What the sampler recorded of every draw."""
        return self.stats

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return self._all.thinned(n)

    @cached_property
    def _all(self) -> Drawn:
        return drawn_at(self.model, self._flat, len(self.psi), self.stats)

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return weights of the Gaussian with the moments of the draws.

        Of the coefficients alone, where their density is known; otherwise of the whole model, in
        coordinates in which theta is linear where the model offers them.
        """
        size = len(self.model.coordinates)
        if len(self._flat) < ENOUGH * size:
            return not_assessed(draws, TOO_FEW)
        generator = host_generator(key)
        coefficient_ratio = offered(self.model, "coefficient_ratio")
        known = coefficient_ratio and coefficient_ratio(self.models, draws, generator)
        if known is not None:
            return weigh(known, COEFFICIENTS)
        straighten = offered(self.model, "straighten")
        model, psi = straighten(self._flat) if straighten else (self.model, self._flat)
        return weigh(ratios_of_model(model, psi, generator.standard_normal((draws, size))), WHOLE)

    def describe(self, lines: pd.DataFrame) -> str:
        """Say how many draws there are, and how good they are."""
        return describe_chains(self.size, lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the posterior means."""
        return self.model.outcome_variances(self.models, queries)

    def update(self, rows: Data) -> "SampledDistribution":
        """Return draws after more rows."""
        return self.again(self.model.with_observations(rows))


class UnknownPrior:
    """The prior of draws that were made elsewhere."""

    def canonical(self) -> str:
        """Return a text that says that nothing is known."""
        return "unknown"


@dataclass(frozen=True, eq=False)
class GivenDraws(OfDraws):
    """Draws of theta alone; see `interfaces.ThetaDistribution`.

    chains: (chains, n, d); draws that are independent may come as one chain or as several.
    """

    response: ResponseMap
    chains: np.ndarray
    size: int  # number of variables upstream of the target, itself included

    model = None
    prior = UnknownPrior()

    @property
    def settings(self) -> str:
        """The draws themselves are what the numbers depend on."""
        return self.chains.tobytes().hex()

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is known, (p,): none is."""
        return np.zeros(self.size, bool)

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""
        return f"{self.chains.shape[0]} x {self.chains.shape[1]} given draws"

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return Drawn(len(self.chains), self._theta).thinned(n)

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Return None: the prior is not known."""
        return None

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return equal weights: the density is not known."""
        return not_assessed(draws, NO_DENSITY)

    def describe(self, lines: pd.DataFrame) -> str:
        """Say how many draws there are, and how good they are."""
        chains, draws, _ = self.chains.shape
        return describe_chains(f"{chains} chains of {draws} given draws", lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Refuse: draws of theta do not say how noisy an outcome is."""
        raise ModelError(
            "draws of theta alone do not say how noisy an outcome is; give its variance as `noise`"
        )

    def update(self, rows: Data) -> "GivenDraws":
        """Refuse: draws that were made elsewhere cannot learn from more rows here."""
        raise ModelError(
            "draws that were made elsewhere cannot be updated; draw again with all rows, or use "
            "cb.fit"
        )


def read_draws(draws: object, names: tuple[str, ...]) -> np.ndarray:
    """Return draws of theta as an array (chains, n, d), all finite.

    draws: an array (n, d) or (chains, n, d) in the order of the names, or {name: (n,) or
    (chains, n)}.
    """
    if isinstance(draws, Mapping):
        for name in draws:
            if name not in names:
                raise ModelError(f"the draws hold an {unknown('coordinate', name, names)}")
        missing = [name for name in names if name not in draws]
        if missing:
            raise ModelError(f"the draws lack the coordinates {listed(missing)}")
        columns = [np.asarray(draws[name]) for name in names]
        if len({column.shape for column in columns}) != 1:
            raise ModelError("the coordinates have draws of different shapes; give each as many")
        draws = np.stack(columns, axis=-1)
    array = np.asarray(draws)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or array.shape[-1] != len(names):
        raise ModelError(
            f"draws need the shape (n, {len(names)}) or (chains, n, {len(names)}) for "
            f"{listed(names, most=6)}; got {array.dtype} of shape {array.shape}"
        )
    array = array.astype(float).reshape(-1, *array.shape[-2:])
    if array.shape[1] < 4 or not np.isfinite(array).all():
        raise ModelError("draws must be finite, and at least 4 in each chain")
    return array


class ReadDraws(NamedTuple):
    """The belief of draws from elsewhere, the name of the mechanisms, and Data without rows."""

    distribution: GivenDraws
    mechanisms: str
    rows: Data


def read_given_draws(
    problem: Problem, draws: object, mechanisms: object, parameters: str | None, intercepts: bool
) -> ReadDraws:
    """Return the belief of draws of theta that come from elsewhere; see `Posterior.from_draws`."""
    require_float64()
    if not isinstance(problem, Problem):
        raise ModelError(
            f"from_draws needs a Problem, got {type(problem).__name__}; of a system take its "
            ".problem"
        )
    nodes = problem.graph.nodes
    none = Data(nodes, problem.target, np.zeros((0, len(nodes))), np.zeros((0, len(nodes)), bool))
    task = Task(problem, none, no_outcomes(len(nodes)), None, parameters, intercepts)
    name, response = read_response(mechanisms, task)
    size = len(problem.graph.ancestral(problem.target).nodes)
    return ReadDraws(GivenDraws(response, read_draws(draws, response.names), size), name, none)
