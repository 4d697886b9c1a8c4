"""How do effects of user-defined mechanisms, averaged over the noise, depend on their parameters?

Every variable upstream of the target takes the quantiles of its distribution given the causes at
scrambled Sobol points; of the target its mean given the causes is averaged. Points are the same for
every query and every theta, so that effects are smooth in both.

NumPyro has the quantile functions of many distributions, but not of those made of gamma variables:
these are computed by bisection, and their derivatives by one Newton step from there (the implicit
function theorem). Draws by rejection would not be continuous in the parameters.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from jax.scipy.special import gammainc, gammaln
from scipy.stats import norm, qmc

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import MechanismError, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.base import Extrapolation
from causal_bo_ppl.mechanisms.custom_sites import Block, FunctionBlock, log_probability
from causal_bo_ppl.mechanisms.gp_responses import (
    AVERAGING_POINTS,
    ERROR_POINTS,
    ERROR_REPLICATES,
    FEWER_AVERAGING_POINTS,
    AveragingProgram,
    Equation,
    Excess,
    averaging_errors,
    coordinate_names,
    excess_beyond,
    natural,
    normal_points,
    over_queries,
    summarize_excess,
    upstream_queries,
)
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation, StudentNoise, normal_scores
from causal_bo_ppl.problem import Problem, Queries

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
    if isinstance(distribution, dist.StudentT) and not isinstance(distribution, StudentNoise):
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


class PaddedObservations(NamedTuple):
    """Observations of all variables (n, p), and where each was not set; padding is all set.

    filled: (n, p) the same values, but where a variable was set, an observed one.
    """

    values: Any
    filled: Any
    free: Any


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
        options = (fast,) if isinstance(part, NoisyEquation) else ()
        return part.run(theta, setting, named, *options)[1][self.nodes[step.position]]

    def at(self, theta: jax.Array, index: int, values: jax.Array) -> Any:
        """Return the distribution of the variable of one step given values (m, p) of all."""
        thetas = split_parts(self.parts, theta)
        return self.conditional(thetas, self.steps[index], list(values.T), False)

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


@dataclass(frozen=True, eq=False)
class CustomResponse:
    """Effects as averages over the noise; see `base.ResponseMap`.

    parts: the blocks of parameters, in causal order. settings: the fixed numbers of each. steps:
    the variables that effects depend on, the target last. ends: (2, p) range of the data.
    """

    problem: Problem
    parts: tuple[Part, ...]
    settings: tuple[Any, ...]
    steps: tuple[PathStep, ...]
    typical: Typical
    ends: np.ndarray
    is_drawn: bool = False
    points: int = AVERAGING_POINTS

    is_affine = False
    is_linear = False

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def _coordinates(self) -> list[tuple[str, str, str]]:
        labels = [
            coordinate_names(self.graph, part) if isinstance(part, Equation) else part.labels
            for part in self.parts
        ]
        return [label for each in labels for label in each]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta."""
        return tuple(name for name, _, _ in self._coordinates)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets of the problem."""
        return self.problem.sets

    @property
    def _free(self) -> int:
        """Number of variables whose noise is averaged over."""
        return len(self.steps) if self.is_drawn else len(self.steps) - 1

    @property
    def _learned(self) -> list[str]:
        return [self.graph.nodes[step.position] for step in self.steps]

    @cached_property
    def program(self) -> PathProgram:
        """The effects as a JAX pytree."""
        return self._program(even_points(self.points, self._free))

    def _program(self, points: AveragingPoints) -> PathProgram:
        with jax.ensure_compile_time_eval():  # cached: within a trace they would be its tracers
            arrays = self.settings, points, self.typical
            settings, points, typical = jax.tree.map(jnp.asarray, arrays)
        fixed = self.parts, self.steps, self.graph.nodes, self.is_drawn
        return PathProgram(settings, points, typical, *fixed)

    def with_fewer_points(self) -> "CustomResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEWER_AVERAGING_POINTS))

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        return upstream_queries(self.problem, queries, self._learned)

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the errors (M,) of the averages at theta (d,), estimated by other points."""
        batch, free = self.batch(queries), self._free
        if not free:
            return np.zeros(len(batch.mask))
        points = [other_points(ERROR_POINTS, free, seed) for seed in range(ERROR_REPLICATES)]
        return averaging_errors(self.program, map(self._program, points), theta, batch)

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the range of the data.

        An input that is set is outside where it leaves that range, others beyond a tenth of it.
        """
        batch, nodes = self.batch(queries), self.graph.nodes
        inputs = tuple(
            (name, cause) for name in self._learned for cause in self.graph.parents(name)
        )
        positions = tuple((nodes.index(one), nodes.index(other)) for one, other in inputs)
        work = partial(_beyond, self.program, positions, jnp.asarray(theta), jnp.asarray(self.ends))
        outside, shares, distances = map(np.asarray, in_pieces(work, batch, len(batch.mask)))
        beyond = np.zeros(len(self.names), bool)
        return Extrapolation(inputs, outside, shares, distances, beyond)

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned = self._learned
        if variable not in learned:
            raise MechanismError(unknown("variable with a learned mechanism", variable, learned))
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        chosen = jnp.asarray(np.asarray(values)[:, columns])
        work = partial(means_of_many, learned.index(variable), self.program, chosen)
        return np.asarray(in_pieces(work, np.asarray(theta), len(theta)))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every coordinate: its variable, and what it stands for."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that distinguishes this parameterization from others of the problem.

        Functions are identified by names, parameters and byte code, not by what they call.
        """
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        return f"custom|{self.attributes()['functions']}|{self.points}|{arrays}"

    def attributes(self) -> dict[str, str]:
        """Return the texts that a file stores; functions themselves are not written."""
        return {"parameters": "custom", "functions": json.dumps(list(map(_describe, self.parts)))}


def _describe(part: Part) -> list[object]:
    if isinstance(part, Equation):
        return ["ours", list(part)]
    if isinstance(part, NoisyEquation):
        return ["noisy", list(part)]
    function = part.function if isinstance(part, FunctionBlock) else part.program
    code = getattr(function, "__code__", None)
    digest = "" if code is None else hashlib.sha256(code.co_code).hexdigest()[:16]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return [part.variables, name, digest, [list(site) for site in part.sites], part.adds_noise]


@partial(jax.jit, static_argnums=0)
def means_of_many(
    index: int, program: PathProgram, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return means (n, m) of the variable of one step, for thetas (n, d) and values (m, p).

    Medians where the mean of its distribution is not available.
    """

    def one(each: jax.Array) -> Any:
        return _centre(program.at(each, index, values)) + jnp.zeros(len(values))

    means: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return means


def _centre(distribution: Any) -> Any:
    return distribution.mean if has_mean(distribution) else distribution.icdf(0.5)


@partial(jax.jit, static_argnums=0)
def disturbances_of_many(
    index: int, program: PathProgram, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return the noise (n, m) of the variable of one step, for thetas (n, d) and values (m, p).

    It is what is left of a value after its mean (median). Noise that varies in size, or has heavy
    tails, is given by its normal scores times a typical sd: Gaussian with one sd under the model.
    """
    step = program.steps[index]
    part, setting = program.parts[step.part], program.settings[step.part]

    def one(each: jax.Array) -> Any:
        distribution, observed = program.at(each, index, values), values[:, step.position]
        if isinstance(part, NoisyEquation):
            return setting.unit * normal_scores(distribution, observed)
        return observed - _centre(distribution)

    noise: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return noise


@partial(jax.jit, static_argnums=1)
def _beyond(
    program: PathProgram,
    positions: tuple[tuple[int, int], ...],
    theta: jax.Array,
    ends: jax.Array,
    batch: Queries,
) -> Excess:
    """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances."""
    target, never = program.steps[-1].position, jnp.zeros((), bool)

    def one(query: Queries) -> Excess:
        mask, excess = query.mask, []
        columns, _ = program.paths(theta, mask, query.value)
        acts = {target: jnp.ones((), bool)}
        for effect, cause in sorted(positions, reverse=True):  # causes stand before effects
            acts[cause] = acts.get(cause, never) | (acts.get(effect, never) & ~mask[cause])
        for effect, cause in positions:
            beyond = excess_beyond(columns[cause], ends[0, cause], ends[1, cause], mask[cause])
            excess.append(jnp.where(acts[effect], beyond, 0.0))
        count = len(program.points.normal)
        return summarize_excess(jnp.stack(excess) if excess else jnp.zeros((0, count)))

    return over_queries(one, batch)


@jax.jit
def samples_of_many(program: PathProgram, mask: Any, value: Any, pair: Any) -> jax.Array:
    """Draw all variables (n, m, p) under queries (m, p), for thetas (n, d) and seeds (n, 1)."""
    samples: jax.Array = jax.lax.map(
        lambda one: program.sample(one[0], mask, value, one[1][0]), pair, batch_size=16
    )
    return samples


@jax.jit
def log_densities_of_many(
    program: PathProgram, observations: PaddedObservations, theta: jax.Array
) -> jax.Array:
    """Return the log densities (n, m, p) of observations at thetas (n, d)."""
    values, filled, free = observations
    columns = list(values.T)

    def one(each: jax.Array) -> jax.Array:
        thetas, logs = split_parts(program.parts, each), [jnp.zeros(len(values))] * len(columns)
        for step in program.steps:
            distribution = program.conditional(thetas, step, columns, False)
            terms = log_probability(distribution, filled[:, step.position])
            logs[step.position] = jnp.where(free[:, step.position], terms, 0.0)
        return jnp.stack(logs, axis=1)

    logs: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return logs


@partial(jax.jit, static_argnums=(0, 2))
def disturbances_of_each(
    index: int, program: PathProgram, shape: tuple[int, ...], theta: jax.Array, values: jax.Array
) -> jax.Array:
    """Return the noise (n, m) for thetas (n, d), each with its values (n, m * p)."""

    def one(pair: Any) -> Any:
        return disturbances_of_many(index, program, pair[1].reshape(shape), pair[0][None])[0]

    noise: jax.Array = jax.lax.map(one, (theta, values), batch_size=16)
    return noise
