"""Posteriors that are draws: of a model's coordinates, by a sampler, or of theta alone, given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ArgumentError, PosteriorError, listed, unknown
from causal_bo_ppl.inference import potentials
from causal_bo_ppl.inference.base import ModelDistribution
from causal_bo_ppl.inference.draws import (
    Drawn,
    Limits,
    describe_chains,
    drawn_at,
    effective_sizes,
    judge_chains,
    overall,
    summarise,
)
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms.base import Model, ResponseMap, offered
from causal_bo_ppl.problem import Queries

NO_DENSITY = "the density that given draws come from is not known"


class ThetaDraws:
    """The part of a `base.ThetaDistribution` that follows from draws of theta alone.

    chains: draws of theta, (chains, n, d). stats: {name: (chains, n)} of the sampler, may be empty.
    """

    response: Any
    chains: Any
    stats: Any

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
    def effective_draws(self) -> float:
        """The effective sample size of the covariance of theta."""
        squares = (self.chains - self._theta.mean(axis=0)) ** 2
        return float(effective_sizes(squares).min(initial=np.inf))

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Choose n of the draws of theta at random, each at most once while there are enough."""
        order = host_generator(key).permutation(len(self._theta))
        return self._theta[np.resize(order, n) if n > len(order) else order[:n]]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Convergence of every coordinate of theta, and of the log posterior where it is known."""
        if "lp" not in self.stats:
            return summarise(self.chains, self.response.names)
        draws = np.concatenate([self.chains, self.stats["lp"][..., None]], axis=-1)
        return summarise(draws, (*self.response.names, "log posterior"))

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return a table of diagnostics of the chains."""
        return judge_chains(self.summary, self.stats, limits)

    @cached_property
    def verdict(self) -> str:
        """Whether the chains agree, and are long enough."""
        return overall(self.lines(Limits()))


@dataclass(frozen=True, eq=False)
class SampledDistribution(ThetaDraws, ModelDistribution):
    """Draws of a model's coordinates; see `base.ThetaDistribution`.

    psi: coordinates, (chains, n, k). stats: {name: (chains, n)} of the sampler, may be empty. by:
    the name of the method. size: a text on how many draws there are. settings: options and key that
    the draws depend on. again: a function that samples the same model with more observations.
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
        """The method by which mean and covariance were computed."""
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

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return self._all.thinned(n)

    @cached_property
    def _all(self) -> Drawn:
        return drawn_at(self.model, self._flat, len(self.psi), self.stats)

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return weights of the Gaussian with the moments of the draws.

        The weights are of the coefficients alone, where their density is known; otherwise of the
        whole model, in coordinates in which theta is linear where the model offers them.
        """
        size = len(self.model.coordinates)
        if len(self._flat) < potentials.FEWEST_DRAWS_PER_DIMENSION * size:
            return potentials.not_assessed(draws, potentials.TOO_FEW_DRAWS)
        generator = host_generator(key)
        coefficient_ratio = offered(self.model, "coefficient_ratio")
        known = coefficient_ratio and coefficient_ratio(self.models, draws, generator)
        if known is not None:
            return potentials.weigh(known, potentials.COEFFICIENTS)
        convert = offered(self.model, "with_linear_theta")
        model, psi = convert(self._flat) if convert else (self.model, self._flat)
        standard = generator.standard_normal((draws, size))
        ratios = potentials.ratios_of_model(model, psi, standard)
        return potentials.weigh(ratios, potentials.WHOLE)

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on the number and the quality of the draws."""
        return describe_chains(self.size, lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the posterior means."""
        return self.model.outcome_variances(self.models, queries)

    def update(self, data: Data) -> "SampledDistribution":
        """Return draws after more observations."""
        return self.again(self.model.with_observations(data))


class UnknownPrior:
    """The prior of draws that were made elsewhere."""

    def canonical(self) -> str:
        """Return "unknown"."""
        return "unknown"


@dataclass(frozen=True, eq=False)
class GivenDraws(ThetaDraws):
    """Draws of theta alone; see `base.ThetaDistribution`.

    chains: (chains, n, d); draws that are independent may come as one chain or as several.
    """

    response: ResponseMap
    chains: np.ndarray
    size: int  # number of variables upstream of the target, itself included

    model = None
    prior = UnknownPrior()
    stats = MappingProxyType[str, np.ndarray]({})

    @property
    def settings(self) -> str:
        """The draws themselves, on which the numbers depend."""
        return self.chains.tobytes().hex()

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, (p,): none is."""
        return np.zeros(self.size, bool)

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed."""
        return f"{self.chains.shape[0]} x {self.chains.shape[1]} given draws"

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return Drawn(len(self.chains), self._theta).thinned(n)

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Return None: the prior is not known."""
        return None

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return equal weights: the density is not known."""
        return potentials.not_assessed(draws, NO_DENSITY)

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on the number and the quality of the draws."""
        chains, draws, _ = self.chains.shape
        return describe_chains(f"{chains} chains of {draws} given draws", lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Raise PosteriorError: draws of theta do not determine the variance of an outcome."""
        raise PosteriorError(
            "draws of theta alone do not determine the variance of an outcome; give it as `noise`"
        )

    def update(self, data: Data) -> "GivenDraws":
        """Raise PosteriorError: draws that were made elsewhere cannot be updated."""
        raise PosteriorError(
            "draws that were made elsewhere cannot be updated; draw again with all observations, "
            "or use cb.fit"
        )


def read_draws(draws: object, names: tuple[str, ...]) -> np.ndarray:
    """Return draws of theta as an array (chains, n, d), all finite.

    draws: an array (n, d) or (chains, n, d) in the order of the names, or {name: (n,) or
    (chains, n)}.
    """
    if isinstance(draws, Mapping):
        for name in draws:
            if name not in names:
                raise ArgumentError(f"the draws hold an {unknown('coordinate', name, names)}")
        missing = [name for name in names if name not in draws]
        if missing:
            raise ArgumentError(f"the draws lack the coordinates {listed(missing)}")
        columns = [np.asarray(draws[name]) for name in names]
        if len({column.shape for column in columns}) != 1:
            raise ArgumentError("the coordinates have draws of different shapes; give each as many")
        draws = np.stack(columns, axis=-1)
    array = np.asarray(draws)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or array.shape[-1] != len(names):
        raise ArgumentError(
            f"draws need the shape (n, {len(names)}) or (chains, n, {len(names)}) for "
            f"{listed(names, most=6)}; got {array.dtype} of shape {array.shape}"
        )
    array = array.astype(float).reshape(-1, *array.shape[-2:])
    if array.shape[1] < 4 or not np.isfinite(array).all():
        raise ArgumentError("draws must be finite, and at least 4 in each chain")
    return array
