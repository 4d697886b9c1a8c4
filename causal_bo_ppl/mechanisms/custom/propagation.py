"""How is E[Y | do(...)] of user-defined mechanisms averaged over the noise?

Every variable upstream of the target takes the quantiles of its distribution given the causes at
scrambled Sobol points; of the target its mean given the causes is averaged. Points are the same for
every query and every theta, so that effects are smooth in both.

NumPyro has the quantile functions of many distributions, but not of those made of gamma variables:
these are computed by bisection, and their derivatives by one Newton step from there (the implicit
function theorem). Draws by rejection would not be continuous in the parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammainc, gammaln
from scipy.stats import norm, qmc

from causal_bo_ppl.errors import MechanismError
from causal_bo_ppl.mechanisms.custom.sites import Block, log_probability
from causal_bo_ppl.mechanisms.gp.propagation import (
    AveragingProgram,
    Equation,
    natural,
    normal_points,
    over_queries,
)
from causal_bo_ppl.problem import Queries

SMALLEST_LOG_QUANTILE = -700.0  # of a gamma variable
BISECTION_STEPS = 48

Part = Equation | Block
Draw = Callable[[Any, int, int], Any]


def is_exact(distribution: Any) -> bool:
    """Return whether a variable is a function of its causes, without any noise."""
    return isinstance(distribution, dist.Delta)


def has_mean(distribution: Any) -> bool:
    """Return whether NumPyro has the mean and variance of a distribution."""
    try:
        return distribution.mean is not None and distribution.variance is not None
    except NotImplementedError:
        return False


def quantiles(distribution: Any, normal: Any, uniform: Any, extra: Any, key: jax.Array) -> Any:
    """Return values of a distribution at points of given ranks.

    Parameters
    ----------
    distribution:
        A distribution of one number, or of one for each point.
    normal, uniform:
        Standard normal and uniform points (S,) of the same ranks.
    extra:
        Further uniform points (S,), independent of these.
    key:
        For reparameterized draws, where no quantile function is available.

    Raises
    ------
    MechanismError
        If the distribution has no reparameterized draws either.
    """
    if is_exact(distribution):
        return distribution.v
    if type(distribution) is dist.Normal:
        return distribution.loc + distribution.scale * normal
    if isinstance(distribution, dist.Gamma):
        return gamma_quantile(distribution.concentration, uniform) / distribution.rate
    if isinstance(distribution, dist.InverseGamma):
        return distribution.rate / gamma_quantile(distribution.concentration, 1 - uniform)
    if isinstance(distribution, dist.Beta):
        one = gamma_quantile(distribution.concentration1, uniform)
        return one / (one + gamma_quantile(distribution.concentration0, extra))
    if isinstance(distribution, dist.StudentT):
        chi = gamma_quantile(distribution.df / 2, extra) / (distribution.df / 2)
        return distribution.loc + distribution.scale * normal / jnp.sqrt(chi)
    try:
        return distribution.icdf(uniform)
    except (NotImplementedError, ImportError):
        pass
    if not distribution.has_rsample:
        raise MechanismError(f"{type(distribution).__name__} has no reparameterized draws")
    return distribution.sample(key, () if distribution.batch_shape else jnp.shape(uniform))


def gamma_quantile(shape: Any, uniform: Any) -> jax.Array:
    """Return quantiles of a gamma variable of rate 1, for shapes () or (S,) and ranks (S,)."""
    shape = jnp.asarray(shape, float) + jnp.zeros(jnp.shape(uniform))
    fixed = jax.lax.stop_gradient(shape)
    high = jnp.log(fixed + 40 * jnp.sqrt(fixed) + 800)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        below = gammainc(fixed, jnp.exp(middle)) < uniform
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = (jnp.full_like(fixed, SMALLEST_LOG_QUANTILE), high)
    ends = jax.lax.fori_loop(0, BISECTION_STEPS, halve, start)
    root = jax.lax.stop_gradient((ends[0] + ends[1]) / 2)
    density = jnp.exp(fixed * root - jnp.exp(root) - gammaln(fixed))  # of the logarithm
    density = jnp.maximum(density, 1e-300)
    quantile: jax.Array = jnp.exp(root - (gammainc(shape, jnp.exp(root)) - uniform) / density)
    return quantile


class PathStep(NamedTuple):
    """One variable on the path to the target: its position, and its part; hashable."""

    position: int
    part: int


class AveragingPoints(NamedTuple):
    """Points (S, E) for E variables, and a seed for other draws.

    normal, uniform: standard normal and uniform, of the same ranks. extra: further uniform ones.
    """

    normal: Any
    uniform: Any
    extra: Any
    seed: Any

    def values(self, distribution: Any, index: int, position: int) -> Any:
        """Return values of a distribution at the points of one step, of a variable's position."""
        columns = (self.normal[:, index], self.uniform[:, index], self.extra[:, index])
        key = jax.random.fold_in(jax.random.key(self.seed), position)
        return quantiles(distribution, *columns, key)


class Typical(NamedTuple):
    """Mean and sd (p,) of the observations of every variable."""

    centre: Any
    scale: Any


@lru_cache(maxsize=64)
def other_points(count: int, size: int, seed: int) -> AveragingPoints:
    """Return unchanged scrambled Sobol points, to estimate the errors of averages."""
    uniform = qmc.Sobol(2 * size, rng=1 + seed).random(count)
    normal = norm.ppf(uniform[:, :size])
    return AveragingPoints(normal, uniform[:, :size], uniform[:, size:], 1 + seed)


@lru_cache(maxsize=64)
def even_points(count: int, size: int) -> AveragingPoints:
    """Return scrambled Sobol points, each coordinate in the middle of equally probable intervals.

    Normal ones lie at the means of these and have the variance 1, so that linear mechanisms are
    averaged exactly.
    """
    if not size:
        none = np.zeros((1, 0))
        return AveragingPoints(none, none, none, 0)
    ranks = (qmc.Sobol(2 * size, rng=0).random(count) * count).astype(int)
    uniform = (ranks + 0.5) / count
    means = np.sort(normal_points(count, 1)[:, 0])
    return AveragingPoints(means[ranks[:, :size]], uniform[:, :size], uniform[:, size:], 0)


def split_parts(parts: Sequence[Part], theta: Any) -> list[Any]:
    """Return the coordinates of every part."""
    ends = np.cumsum([part.size for part in parts]).tolist()
    return [theta[..., end - part.size : end] for part, end in zip(parts, ends, strict=True)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PathProgram(AveragingProgram):
    """Effects as averages over points; see `base.ResponseProgram`.

    settings: the fixed numbers of each part. steps: the variables that effects depend on, in causal
    order, the target last. nodes: the variables of the model. is_drawn: whether the mean of the
    target's distribution is not available, so that its quantiles are averaged too.
    """

    settings: tuple[Any, ...]
    points: AveragingPoints
    typical: Typical
    parts: tuple[Part, ...] = field(metadata={"static": True})
    steps: tuple[PathStep, ...] = field(metadata={"static": True})
    nodes: tuple[str, ...] = field(metadata={"static": True})
    is_drawn: bool = field(metadata={"static": True})

    side_by_side = False  # a user-defined function need not be thread-safe

    def conditional(self, thetas: list[Any], step: PathStep, columns: list[Any], fast: bool) -> Any:
        """Return the distribution of one variable given all columns of values.

        thetas: the coordinates of every part.
        """
        part, setting, theta = self.parts[step.part], self.settings[step.part], thetas[step.part]
        if isinstance(part, Equation):
            mean = natural(part, setting, theta[:-1], columns, fast)
            return dist.Normal(mean, jnp.exp(theta[-1]))
        named = dict(zip(self.nodes, columns, strict=True))
        return part.run(theta, setting, named)[1][self.nodes[step.position]]

    def walk(
        self, theta: jax.Array, mask: Any, value: Any, size: int, draw: Draw, *, fast: bool
    ) -> tuple[list[Any], Any]:
        """Return all variables but the target at S points, (S,) each, and its distribution there.

        mask, value: the variables that are set, (p,) for all points or (S, p). size: S. draw: the
        values of a distribution, for the index of a step and the position of its variable.
        """
        thetas, blank, columns = split_parts(self.parts, theta), jnp.zeros(size), []
        for position in range(len(self.nodes)):
            usual = blank + jnp.asarray(self.typical.centre)[position]
            columns.append(jnp.where(mask[..., position], value[..., position], usual))
        for index, step in enumerate(self.steps[:-1]):
            position, distribution = step.position, self.conditional(thetas, step, columns, fast)
            drawn = draw(distribution, index, position) + blank
            columns[position] = jnp.where(mask[..., position], value[..., position], drawn)
        return columns, self.conditional(thetas, self.steps[-1], columns, fast)

    def paths(
        self, theta: jax.Array, mask: Any, value: Any, fast: bool = True
    ) -> tuple[list[Any], Any]:
        """Return all variables but the target at the points, and its distribution there."""
        size = len(self.points.normal)
        return self.walk(theta, mask, value, size, self.points.values, fast=fast)

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        target, blank = self.paths(theta, mask, value, fast)[1], jnp.zeros(len(self.points.normal))
        if self.is_drawn:
            means = self.points.values(target, len(self.steps) - 1, len(self.nodes) - 1)
            return jnp.asarray(means + blank)
        return jnp.asarray(target.mean + blank)

    def variances(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the variance of one outcome under each query, (M,)."""

        def one(query: Queries) -> jax.Array:
            if self.is_drawn:
                return self.means(theta, query.mask, query.value, True).var()
            target = self.paths(theta, query.mask, query.value)[1]
            blank = jnp.zeros(len(self.points.normal))
            variance: jax.Array = (target.mean + blank).var() + (target.variance + blank).mean()
            return variance

        return over_queries(one, batch)

    def log_outcomes(self, theta: jax.Array, queries: Queries, values: jax.Array) -> jax.Array:
        """Return the log density of each outcome of the target alone, (m,).

        It is a mixture of the target's distributions at all points.
        """
        count = len(self.points.normal)

        def one(query: Queries, value: jax.Array) -> jax.Array:
            target = self.paths(theta, query.mask, query.value, False)[1]
            logs = log_probability(target, value + jnp.zeros(count))
            return jax.scipy.special.logsumexp(logs) - jnp.log(count)

        arrays = Queries(jnp.asarray(queries.mask), jnp.asarray(queries.value))
        logs: jax.Array = jax.vmap(one)(arrays, jnp.asarray(values))
        return logs

    def sample(self, theta: jax.Array, mask: Any, value: Any, seed: Any) -> jax.Array:
        """Draw all variables once for each query (m, p).

        Variables that no effect depends on are Gaussian with their mean and sd.
        """
        key, size = jax.random.key(seed), len(mask)
        given = jax.random.normal(jax.random.fold_in(key, len(self.nodes)), jnp.shape(mask))
        centre, scale = (jnp.asarray(part)[None] for part in self.typical)
        moved = np.isin(np.arange(len(self.nodes)), [step.position for step in self.steps])
        drawn = jnp.where(mask, value, centre + scale * given)
        mask, value = mask | ~moved[None], jnp.where(moved[None], value, drawn)

        def draw(distribution: Any, index: int, position: int) -> Any:
            shape = () if distribution.batch_shape else (size,)
            return distribution.sample(jax.random.fold_in(key, position), shape)

        columns, target = self.walk(theta, mask, value, size, draw, fast=False)
        last = len(self.nodes) - 1
        outcome = draw(target, len(self.steps) - 1, last) + jnp.zeros(size)
        columns[-1] = jnp.where(mask[:, last], value[:, last], outcome)
        return jnp.stack(columns, axis=1)
