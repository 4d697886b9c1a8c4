"""Values of a distribution at given ranks, smooth in its parameters.

Most are inverses of distribution functions, which NumPyro knows for many distributions. Of those
made of gamma variables it does not: their quantiles are found by bisection, and the derivatives in
their parameters by one Newton step from there (the implicit function theorem). Draws of these by
rejection would jump when a parameter moves.

E[Y | do(...)] of an analyst's mechanisms: averages over points, the same for every query.

Every variable upstream of the target is moved through its distribution given the causes, at
scrambled Sobol points; of the target its mean given the causes is averaged. Points are the same for
every query and every theta, so that effects are smooth in both.
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

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.mechanisms.custom.sites import Block, log_probability
from causal_bo_ppl.mechanisms.gp.propagation import (
    Equation,
    Program,
    natural,
    normal_points,
    one_by_one,
)
from causal_bo_ppl.problem import Queries

LOWEST = -700.0  # logarithm of the smallest gamma quantile
HALVINGS = 48


def is_exact(made: Any) -> bool:
    """Whether a variable is a function of its causes, without any disturbance."""
    return isinstance(made, dist.Delta)


def has_mean(made: Any) -> bool:
    """Whether a distribution knows its mean and variance."""
    try:
        return made.mean is not None and made.variance is not None
    except NotImplementedError:
        return False


def quantiles(made: Any, normal: Any, uniform: Any, extra: Any, key: jax.Array) -> Any:
    """Return values of a distribution at points of given ranks.

    Parameters
    ----------
    made:
        A distribution of one number, or of one for each point.
    normal, uniform:
        Standard normal and uniform points (S,) of the same ranks.
    extra:
        Further uniform points (S,), independent of these.
    key:
        For draws that follow the parameters (reparameterized), where no inverse is known.

    Raises
    ------
    ModelError
        If the distribution has no such draws either.
    """
    if is_exact(made):
        return made.v
    if type(made) is dist.Normal:
        return made.loc + made.scale * normal
    if isinstance(made, dist.Gamma):
        return gamma_quantile(made.concentration, uniform) / made.rate
    if isinstance(made, dist.InverseGamma):
        return made.rate / gamma_quantile(made.concentration, 1 - uniform)
    if isinstance(made, dist.Beta):
        one = gamma_quantile(made.concentration1, uniform)
        return one / (one + gamma_quantile(made.concentration0, extra))
    if isinstance(made, dist.StudentT):
        spread = gamma_quantile(made.df / 2, extra) / (made.df / 2)
        return made.loc + made.scale * normal / jnp.sqrt(spread)
    try:
        return made.icdf(uniform)
    except (NotImplementedError, ImportError):
        pass
    if not made.has_rsample:
        raise ModelError(f"{type(made).__name__} has no draws that follow its parameters")
    return made.sample(key, () if made.batch_shape else jnp.shape(uniform))


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

    ends = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.full_like(fixed, LOWEST), high))
    root = jax.lax.stop_gradient((ends[0] + ends[1]) / 2)
    density = jnp.exp(fixed * root - jnp.exp(root) - gammaln(fixed))  # of the logarithm
    density = jnp.maximum(density, 1e-300)
    found: jax.Array = jnp.exp(root - (gammainc(shape, jnp.exp(root)) - uniform) / density)
    return found


Part = Equation | Block
Draw = Callable[[Any, int, int], Any]


class Step(NamedTuple):
    """One variable on the way to the target: its place, and the part that makes it; hashable."""

    position: int
    part: int


class Points(NamedTuple):
    """Points (S, E) for E variables, and a seed for other draws.

    normal, uniform: standard normal and uniform, of the same ranks. extra: further uniform ones.
    """

    normal: Any
    uniform: Any
    extra: Any
    seed: Any

    def values(self, made: Any, at: int, position: int) -> Any:
        """Return values of a distribution at the points of one variable."""
        columns = (self.normal[:, at], self.uniform[:, at], self.extra[:, at])
        return quantiles(made, *columns, jax.random.fold_in(jax.random.key(self.seed), position))


class Typical(NamedTuple):
    """Mean and sd (p,) of the rows of every variable."""

    centre: Any
    scale: Any


@lru_cache(maxsize=64)
def other_points(count: int, size: int, seed: int) -> Points:
    """Return scrambled Sobol points as they are, by which to judge others."""
    uniform = qmc.Sobol(2 * size, rng=1 + seed).random(count)
    return Points(norm.ppf(uniform[:, :size]), uniform[:, :size], uniform[:, size:], 1 + seed)


@lru_cache(maxsize=64)
def even_points(count: int, size: int) -> Points:
    """Return scrambled Sobol points, each coordinate in the middle of equally probable intervals.

    Normal ones lie at the means of these and have the variance 1, so that linear mechanisms are
    averaged exactly.
    """
    if not size:
        none = np.zeros((1, 0))
        return Points(none, none, none, 0)
    ranks = (qmc.Sobol(2 * size, rng=0).random(count) * count).astype(int)
    uniform = (ranks + 0.5) / count
    means = np.sort(normal_points(count, 1)[:, 0])
    return Points(means[ranks[:, :size]], uniform[:, :size], uniform[:, size:], 0)


def split_parts(parts: Sequence[Part], theta: Any) -> list[Any]:
    """Return the coordinates of every part."""
    ends = np.cumsum([part.size for part in parts]).tolist()
    starts = [0, *ends]
    return [theta[..., start:end] for start, end in zip(starts, ends, strict=False)]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PathProgram(Program):
    """Effects as averages over points; see `interfaces.ResponseProgram`.

    settings: what is fixed in each part. steps: the variables that effects depend on, in causal
    order, the target last. nodes: the variables of the model. is_drawn: whether the target's
    distribution does not know its mean, so that it is moved through too.
    """

    settings: tuple[Any, ...]
    points: Points
    typical: Typical
    parts: tuple[Part, ...] = field(metadata={"static": True})
    steps: tuple[Step, ...] = field(metadata={"static": True})
    nodes: tuple[str, ...] = field(metadata={"static": True})
    is_drawn: bool = field(metadata={"static": True})

    side_by_side = False  # an analyst's function may hold anything

    def conditional(self, own: list[Any], step: Step, columns: list[Any], fast: bool) -> Any:
        """Return the distribution of one variable given all columns of values."""
        part, setting, theta = self.parts[step.part], self.settings[step.part], own[step.part]
        if isinstance(part, Equation):
            mean = natural(part, setting, theta[:-1], columns, fast)
            return dist.Normal(mean, jnp.exp(theta[-1]))
        named = dict(zip(self.nodes, columns, strict=True))
        return part.run(theta, setting, named)[1][self.nodes[step.position]]

    def walk(
        self, theta: jax.Array, mask: Any, value: Any, size: int, draw: Draw, *, fast: bool
    ) -> tuple[list[Any], Any]:
        """Return all variables but the target at S points, (S,) each, and its distribution there.

        mask, value: what is set, (p,) for all points or (S, p). size: S. draw: values of a
        distribution, for the number of a step and the place of its variable.
        """
        own, blank, columns = split_parts(self.parts, theta), jnp.zeros(size), []
        for position in range(len(self.nodes)):
            usual = blank + jnp.asarray(self.typical.centre)[position]
            columns.append(jnp.where(mask[..., position], value[..., position], usual))
        for at, step in enumerate(self.steps[:-1]):
            position, made = step.position, self.conditional(own, step, columns, fast)
            drawn = draw(made, at, position) + blank
            columns[position] = jnp.where(mask[..., position], value[..., position], drawn)
        return columns, self.conditional(own, self.steps[-1], columns, fast)

    def paths(
        self, theta: jax.Array, mask: Any, value: Any, fast: bool = True
    ) -> tuple[list[Any], Any]:
        """Return all variables but the target at the points, and its distribution there."""
        size = len(self.points.normal)
        return self.walk(theta, mask, value, size, self.points.values, fast=fast)

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        made, blank = self.paths(theta, mask, value, fast)[1], jnp.zeros(len(self.points.normal))
        last = len(self.steps) - 1
        found: jax.Array
        found = self.points.values(made, last, len(self.nodes) - 1) if self.is_drawn else made.mean
        return found + blank

    def effect(self, theta: jax.Array, query: Queries, fast: bool) -> jax.Array:
        """Return E[Y | do(z)] for one query; `fast` where no derivative is needed."""
        return self.means(theta, query.mask, query.value, fast).mean()

    def variances(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the variance of one outcome under each query, (M,)."""

        def one(query: Queries) -> jax.Array:
            if self.is_drawn:
                return self.means(theta, query.mask, query.value, True).var()
            made = self.paths(theta, query.mask, query.value)[1]
            blank = jnp.zeros(len(self.points.normal))
            found: jax.Array = (made.mean + blank).var() + (made.variance + blank).mean()
            return found

        return one_by_one(one, batch)

    def log_outcomes(self, theta: jax.Array, queries: Queries, values: jax.Array) -> jax.Array:
        """Return the log density of each outcome of the target alone, (m,).

        It is a mixture of the target's distributions at all points.
        """
        count = len(self.points.normal)

        def one(query: Queries, value: jax.Array) -> jax.Array:
            made = self.paths(theta, query.mask, query.value, False)[1]
            logs = log_probability(made, value + jnp.zeros(count))
            found: jax.Array = jax.scipy.special.logsumexp(logs) - jnp.log(count)
            return found

        arrays = Queries(jnp.asarray(queries.mask), jnp.asarray(queries.value))
        found: jax.Array = jax.vmap(one)(arrays, jnp.asarray(values))
        return found

    def rows(self, theta: jax.Array, mask: Any, value: Any, seed: Any) -> jax.Array:
        """Draw one row for each query (rows, p).

        Variables that no effect depends on are Gaussian with their mean and sd.
        """
        key, size = jax.random.key(seed), len(mask)
        given = jax.random.normal(jax.random.fold_in(key, len(self.nodes)), jnp.shape(mask))
        centre, scale = (jnp.asarray(part)[None] for part in self.typical)
        moved = np.isin(np.arange(len(self.nodes)), [step.position for step in self.steps])
        drawn = jnp.where(mask, value, centre + scale * given)  # of what no effect depends on
        mask, value = mask | ~moved[None], jnp.where(moved[None], value, drawn)

        def draw(made: Any, at: int, position: int) -> Any:
            shape = () if made.batch_shape else (size,)
            return made.sample(jax.random.fold_in(key, position), shape)

        columns, made = self.walk(theta, mask, value, size, draw, fast=False)
        last = len(self.nodes) - 1
        outcome = draw(made, len(self.steps) - 1, last) + jnp.zeros(size)
        columns[-1] = jnp.where(mask[:, last], value[:, last], outcome)
        return jnp.stack(columns, axis=1)
