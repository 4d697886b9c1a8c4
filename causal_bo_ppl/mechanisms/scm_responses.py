"""How do effects, averaged over the noise, depend on the parameters of the mechanisms?

`SCMResponse` is the map from theta to effects, whatever the kinds of the mechanisms. Where all are
linear or Gaussian processes, its program is `gp_responses.RegressionProgram`. Beside user-defined
mechanisms it is `PathProgram`: every variable upstream of the target takes the quantiles of its
distribution given the causes at scrambled Sobol points; of the target its mean given the causes is
averaged. Points are the same for every query and every theta, so that effects are smooth in both.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from scipy.stats import norm, qmc

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import (
    ArgumentError,
    ExplorationError,
    MechanismError,
    listed,
    unknown,
)
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.base import Extrapolation
from causal_bo_ppl.mechanisms.custom_sites import (
    Block,
    FunctionBlock,
    Typical,
    has_mean,
    log_probability,
    quantiles,
)
from causal_bo_ppl.mechanisms.gp_basis import steepest
from causal_bo_ppl.mechanisms.gp_responses import (
    AVERAGING_POINTS,
    ERROR_POINTS,
    ERROR_REPLICATES,
    FEWER_AVERAGING_POINTS,
    NEGLIGIBLE_COEFFICIENT,
    PROPAGATIONS,
    THETA_RANGE,
    AveragingProgram,
    Equation,
    Excess,
    Layout,
    RegressionProgram,
    averaging_errors,
    coordinate_names,
    empirical_points,
    excess_beyond,
    is_mechanism,
    lay_out,
    means_of_many,
    members_of,
    natural,
    normal_points,
    other_points,
    over_queries,
    sigma_points,
    summarize_excess,
    tabulate_steps,
    uncorrelated,
    upstream_queries,
)
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation, normal_scores
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

Part = Equation | Block


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


@lru_cache(maxsize=64)
def uneven_points(count: int, size: int, seed: int) -> AveragingPoints:
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

    settings: the fixed numbers of each part. ends: (2, p) range of the data. steps: the variables
    that effects depend on, in causal order, the target last. nodes: the variables of the model.
    inputs: positions of every input (variable, cause) of a mechanism. is_drawn: whether the mean of
    the target's distribution is not available, so that its quantiles are averaged too.
    """

    settings: tuple[Any, ...]
    points: AveragingPoints
    typical: Typical
    ends: Any
    parts: tuple[Part, ...] = field(metadata={"static": True})
    steps: tuple[PathStep, ...] = field(metadata={"static": True})
    nodes: tuple[str, ...] = field(metadata={"static": True})
    inputs: tuple[tuple[int, int], ...] = field(metadata={"static": True})
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

    def paths(
        self, theta: jax.Array, mask: Any, value: Any, fast: bool = True
    ) -> tuple[list[Any], Any]:
        """Return all variables but the target at the points, and its distribution there."""
        thetas, columns = split_parts(self.parts, theta), []
        blank = jnp.zeros(len(self.points.normal))
        for position in range(len(self.nodes)):
            usual = blank + jnp.asarray(self.typical.centre)[position]
            columns.append(jnp.where(mask[position], value[position], usual))
        for index, step in enumerate(self.steps[:-1]):
            position, distribution = step.position, self.conditional(thetas, step, columns, fast)
            drawn = self.points.values(distribution, index, position) + blank
            columns[position] = jnp.where(mask[position], value[position], drawn)
        return columns, self.conditional(thetas, self.steps[-1], columns, fast)

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

    def beyond(self, theta: jax.Array, batch: Queries) -> Excess:
        """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances.

        An input counts where its mechanism has an influence on the target under the query. See
        `summarize_excess`.
        """
        target, never = self.steps[-1].position, jnp.zeros((), bool)

        def one(query: Queries) -> Excess:
            mask, excess = query.mask, []
            columns, _ = self.paths(theta, mask, query.value)
            acts = {target: jnp.ones((), bool)}
            for effect, cause in sorted(self.inputs, reverse=True):  # causes stand before effects
                acts[cause] = acts.get(cause, never) | (acts.get(effect, never) & ~mask[cause])
            for effect, cause in self.inputs:
                ends = self.ends[0, cause], self.ends[1, cause]
                beyond = excess_beyond(columns[cause], *ends, mask[cause])
                excess.append(jnp.where(acts[effect], beyond, 0.0))
            count = len(self.points.normal)
            return summarize_excess(jnp.stack(excess) if excess else jnp.zeros((0, count)))

        return over_queries(one, batch)


@jax.jit
def _beyond(program: Any, theta: jax.Array, batch: Queries) -> Excess:
    found: Excess = program.beyond(theta, batch)
    return found


def means_given(
    part: Part,
    setting: Any,
    nodes: tuple[str, ...],
    name: str,
    theta: np.ndarray,
    values: np.ndarray,
) -> np.ndarray:
    """Return the means (n, m) of a variable given its causes, for n parameters of its mechanism.

    Medians where the mean of its distribution is not available.

    theta: (n, k), the coordinates of the part. values: (n, m, p) of `nodes`, or (1, m, p) where
    they are the same for all.
    """
    shape, count = values.shape[1:], len(theta)
    if len(values) == 1 and isinstance(part, Equation):
        work = partial(means_of_many, part, setting, values=jnp.asarray(values[0]))
        return np.asarray(in_pieces(work, theta[:, :-1], count))
    means = partial(_means_of_many, part, name, nodes, setting)
    if len(values) == 1:
        return np.asarray(in_pieces(partial(means, jnp.asarray(values[0])), theta, count))

    def each(pair: Any) -> Any:
        return means(pair[1].reshape(-1, *shape), pair[0])

    return np.asarray(in_pieces(each, (theta, values.reshape(count, -1)), count))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _means_of_many(
    part: Part, name: str, nodes: tuple[str, ...], setting: Any, values: Any, theta: Any
) -> jax.Array:
    """Return means (n, m) at theta (n, k) of a part, for values (n, m, p), or (m, p) of all."""

    def one(own: Any, given: Any) -> Any:
        if isinstance(part, Equation):
            mean = natural(part, setting, own[:-1], list(given.T), True)
        else:
            drawn = part.run(own, setting, dict(zip(nodes, given.T, strict=True)))[1][name]
            mean = drawn.mean if has_mean(drawn) else drawn.icdf(0.5)
        return mean + jnp.zeros(len(given))

    means: jax.Array
    if jnp.ndim(values) == 2:
        means = jax.lax.map(lambda own: one(own, values), theta, batch_size=16)
    else:
        means = jax.lax.map(lambda pair: one(*pair), (theta, values), batch_size=16)
    return means


def noise_given(
    part: Part,
    setting: Any,
    nodes: tuple[str, ...],
    name: str,
    theta: np.ndarray,
    values: np.ndarray,
) -> np.ndarray:
    """Return the noise (n, m) of a variable: what is left after its mean; see `means_given`.

    That of a `NoisyEquation` is given by normal scores times a typical sd.
    """
    if not isinstance(part, NoisyEquation):
        means = means_given(part, setting, nodes, name, theta, values)
        return np.asarray(values[:, :, nodes.index(name)] - means)
    work, shape = partial(_scores_of_many, part, nodes, setting), values.shape[1:]
    if len(values) == 1:
        found = in_pieces(partial(work, jnp.asarray(values[0])), theta, len(theta))
        return np.asarray(found)

    def each(pair: Any) -> Any:
        return work(pair[1].reshape(-1, *shape), pair[0])

    return np.asarray(in_pieces(each, (theta, values.reshape(len(theta), -1)), len(theta)))


@partial(jax.jit, static_argnums=(0, 1))
def _scores_of_many(
    equation: NoisyEquation, nodes: tuple[str, ...], setting: Any, values: Any, theta: Any
) -> jax.Array:
    """Return normal scores (n, m) times a typical sd, for values (n, m, p), or (m, p) of all."""

    def one(own: Any, given: Any) -> Any:
        columns = dict(zip(nodes, given.T, strict=True))
        drawn = equation.run(own, setting, columns)[1][equation.variable]
        return setting.unit * normal_scores(drawn, columns[equation.variable])

    scores: jax.Array
    if jnp.ndim(values) == 2:
        scores = jax.lax.map(lambda own: one(own, values), theta, batch_size=16)
    else:
        scores = jax.lax.map(lambda pair: one(*pair), (theta, values), batch_size=16)
    return scores


@dataclass(frozen=True, eq=False)
class SCMResponse:
    """Effects as averages over the noise; see `base.ResponseMap`.

    parts: the mechanisms that effects depend on, in causal order, the target's last: equations and
    user-defined blocks. settings: the fixed numbers of each. typical, ends: mean and sd (p,), and
    range (2, p), of the data, from which user-defined blocks start. is_drawn: see `PathProgram`.
    propagation: how the noise is averaged. plans: the draws that an effect is averaged over where
    latent causes join causes of the target, the equations being regressions; None where there are
    no such causes.
    """

    problem: Problem
    parts: tuple[Part, ...]
    settings: tuple[Any, ...]
    typical: Typical
    ends: np.ndarray
    is_drawn: bool = False
    propagation: str = "qmc"
    points: int = AVERAGING_POINTS
    plans: SamplingPlans | None = None

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """The mechanisms that are linear or Gaussian processes."""
        return tuple(part for part in self.parts if isinstance(part, Equation))

    @property
    def has_blocks(self) -> bool:
        """Whether some mechanisms are user-defined."""
        return len(self.equations) < len(self.parts)

    @cached_property
    def steps(self) -> tuple[PathStep, ...]:
        """The variables that effects depend on, in causal order, the target last."""
        places = [
            [part.position]
            if isinstance(part, Equation)
            else [self.graph.index(name) for name in part.variables]
            for part in self.parts
        ]
        return tuple(PathStep(place, index) for index, each in enumerate(places) for place in each)

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
        """The intervention sets of the problem whose effects can be learned."""
        return self.problem.sets if self.plans is None else self.plans.sets

    @property
    def is_affine(self) -> bool:
        """Whether all mechanisms are linear, so that effects are affine in the values."""
        return not self.has_blocks and all(each.form.is_linear for each in self.equations)

    @property
    def is_linear(self) -> bool:
        """Whether only the target's mechanism matters, and effects are linear in theta."""
        return not self.has_blocks and len(self.parts) == 1

    @property
    def propagations(self) -> tuple[str, ...]:
        """The ways in which the noise can be averaged."""
        return () if self.has_blocks else PROPAGATIONS

    @cached_property
    def _layout(self) -> Layout:
        return lay_out(self.equations, self.problem, self.plans)

    @property
    def _free(self) -> int:
        """Number of noise variables that are averaged over: all but that of the target."""
        if self.has_blocks:
            return len(self.steps) - (not self.is_drawn)
        return len(self._layout.equations) - 1

    def _points(self) -> Any:
        if self.has_blocks:
            return even_points(self.points, self._free)
        if self.propagation != "qmc":
            return sigma_points(self._free)
        points = normal_points(self.points, self._free)
        # products of two variables are averaged exactly
        return uncorrelated(points) if self._multiplies and self._free else points

    @property
    def _multiplies(self) -> bool:
        return any(equation.form.products for equation in self.equations)

    @cached_property
    def program(self) -> RegressionProgram | PathProgram:
        """The effects as a JAX pytree, by regressions alone where all mechanisms are equations."""
        with jax.ensure_compile_time_eval():  # cached: within a trace they would be its tracers
            made = self._path_program() if self.has_blocks else self._regression_program()
            program: RegressionProgram | PathProgram = jax.tree.map(jnp.asarray, made)
            return program

    def _path_program(self) -> PathProgram:
        nodes = self.graph.nodes
        inputs = tuple((nodes.index(one), nodes.index(other)) for one, other in self._inputs)
        fixed = self.parts, self.steps, nodes, inputs, self.is_drawn
        return PathProgram(self.settings, self._points(), self.typical, self.ends, *fixed)

    def _regression_program(self) -> RegressionProgram:
        layout = self._layout
        steps, inputs, most = tabulate_steps(layout, self.equations, self.settings)
        sizes = [equation.size for equation in self.equations]
        starts = np.cumsum([0, *sizes])[list(layout.equations)]
        ends = starts + np.array(sizes)[list(layout.equations)] - 1
        arrays: Any = (steps, inputs, starts, ends, self._points(), layout.plans)
        return RegressionProgram(*(*arrays, most, len(self._inputs), self._multiplies))

    @cached_property
    def _inputs(self) -> tuple[tuple[str, str], ...]:
        """(variable, cause) of every input of a mechanism whose influence is learned."""
        nodes, pairs = self.graph.nodes, []
        for position, index in self.steps:
            part, name = self.parts[index], nodes[position]
            given = self.graph.parents(name)
            if isinstance(part, Equation):
                given = tuple(nodes[cause] for cause in part.causes)
            pairs += [(name, cause) for cause in given]
        return tuple(pairs)

    def propagate(self, propagation: str) -> "SCMResponse | None":
        """Return the same map with the noise averaged in another way; None for user-defined."""
        if self.has_blocks:
            return None
        if propagation not in PROPAGATIONS:
            raise ArgumentError(
                f"propagation must be one of {listed(PROPAGATIONS)}, got {propagation!r}"
            )
        return replace(self, propagation=propagation)

    def with_residuals(self, residuals: Mapping[str, np.ndarray]) -> RegressionProgram:
        """Return the effects of equations with empirical noise in place of Gaussian noise.

        residuals: {variable: (n,)}, of which the distribution is taken, with mean 0 and the sd of
        the fitted noise. Points keep their order, so that the difference is that of distributions.
        """
        program = cast(RegressionProgram, self.program)
        points = np.array(program.points)
        for column, owner in enumerate(self._layout.equations[:-1]):
            name = self.graph.nodes[self.equations[owner].position]
            if name in residuals:
                points[:, column] = empirical_points(points[:, column], residuals[name])
        return replace(program, points=jnp.asarray(points))

    def with_fewer_points(self) -> "SCMResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEWER_AVERAGING_POINTS))

    def without_negligible_terms(self, mean: np.ndarray, sd: np.ndarray) -> "SCMResponse":
        """Return the same map without coefficients that are negligible for all plausible theta.

        Those of the shortest waves of a process are, unless its lengthscale is short. mean, sd: of
        theta (d,).
        """
        settings, bounds = [], np.abs(mean) + THETA_RANGE * sd
        thetas = split_parts(self.parts, bounds)
        for part, setting, coefficients in zip(self.parts, self.settings, thetas, strict=True):
            if not isinstance(part, Equation):
                settings.append(setting)
                continue
            terms, used = [], 1 + part.form.causes
            for group in part.form.groups:
                size, used = coefficients[used : used + group.size], used + group.size
                relevant = np.flatnonzero(size > NEGLIGIBLE_COEFFICIENT * size.max(initial=0.0))
                is_cut = len(group.columns) == 1 and len(relevant) > 0
                terms.append(int(relevant[-1]) + 1 if is_cut else group.size)
            settings.append(setting._replace(terms=np.array(terms, int)))
        return replace(self, settings=tuple(settings))

    @property
    def acting(self) -> np.ndarray:
        """Which coordinates of theta (d,) have an influence; see `without_negligible_terms`."""
        flags = []
        for part, setting in zip(self.parts, self.settings, strict=True):
            if not isinstance(part, Equation):
                flags.append(np.ones(part.size, bool))
                continue
            form, given = part.form, setting.terms
            terms = [group.size for group in form.groups] if given is None else np.asarray(given)
            flags.append(np.ones(1 + form.causes, bool))
            counts = zip(form.groups, terms, strict=True)
            flags += [np.arange(group.size) < count for group, count in counts]
            flags.append(np.ones(len(form.products) + 2 * len(form.hinged) + 1, bool))
        return np.concatenate(flags)

    @property
    def _learned(self) -> list[str]:
        return [self.graph.nodes[step.position] for step in self.steps]

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        if self.plans is None:
            return upstream_queries(self.problem, queries, self._learned)
        upstream = upstream_queries(self.problem, queries, self.graph.nodes)
        self.require_planned(upstream.mask)
        return upstream

    def require_planned(self, mask: Any) -> None:
        """Refuse sets (M, p) of the target and its causes that have no plan."""
        if self.plans is None or self._layout.plans is None:
            return
        planned = {each.tobytes() for each in self._layout.plans[0]}
        for row in distinct_rows(np.asarray(mask))[0]:
            if np.asarray(mask[row], bool).tobytes() not in planned:
                label = set_label(members_of(self.graph, mask[row]))
                raise ExplorationError(
                    f"the effect of {label} is averaged over "
                    "regressions that no set of the problem needs, because latent causes join "
                    "causes of the target; add it to the sets"
                )

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the errors (M,) of the averages at theta (d,), estimated by other points."""
        batch, free = self.batch(queries), self._free
        if not free:
            return np.zeros(len(batch.mask))
        make: Callable[..., Any] = uneven_points if self.has_blocks else other_points
        points = [make(ERROR_POINTS, free, seed) for seed in range(ERROR_REPLICATES)]
        others = [replace(self.program, points=jax.tree.map(jnp.asarray, each)) for each in points]
        return averaging_errors(self.program, others, theta, batch)

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the data; hinges act there only.

        An input that is set is outside where it leaves the range of the data, others beyond a tenth
        of that range: of new samples from the distribution of 30 observations about 1 % lie there,
        of that of 100 far fewer.
        """
        batch, program = self.batch(queries), replace(self, propagation="qmc").program
        work = partial(_beyond, program, jnp.asarray(theta))
        outside, shares, distances = map(np.asarray, in_pieces(work, batch, len(batch.mask)))
        beyond = [np.zeros(part.size, bool) for part in self.parts]
        for flags, part in zip(beyond, self.parts, strict=True):
            hinges = 2 * len(part.form.hinged) if isinstance(part, Equation) else 0
            flags[part.size - 1 - hinges : part.size - 1] = True
        return Extrapolation(self._inputs, outside, shares, distances, np.concatenate(beyond))

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned, nodes = self._learned, self.graph.nodes
        if variable not in learned:
            raise MechanismError(unknown("variable with a learned mechanism", variable, learned))
        index = self.steps[learned.index(variable)].part
        part, own = self.parts[index], split_parts(self.parts, np.asarray(theta))[index]
        self._require_mechanisms([part])
        columns = [self.problem.graph.index(name) for name in nodes]
        chosen = np.asarray(values)[None, :, columns]
        return means_given(part, self.settings[index], nodes, variable, own, chosen)

    def _require_mechanisms(self, parts: Sequence[Part]) -> None:
        """Refuse regressions that are no mechanisms."""
        for part in parts:
            if isinstance(part, Equation) and not is_mechanism(self.graph, part):
                name = self.graph.nodes[part.position]
                regressors = [self.graph.nodes[position] for position in part.causes]
                raise MechanismError(
                    f"latent causes join {name!r} to other variables, so that only its regression "
                    f"on {listed(regressors)} was learned, not its mechanism"
                )

    def slopes(self, theta: np.ndarray) -> dict[Edge, float] | None:
        """Return the largest slope of every mechanism in each cause, over all values.

        None where mechanisms are user-defined: no slope of these is known.
        """
        if self.has_blocks:
            return None
        self._require_mechanisms(self.parts)
        result, nodes = {}, self.graph.nodes
        thetas = split_parts(self.equations, np.asarray(theta))
        for equation, setting, own in zip(self.equations, self.settings, thetas, strict=True):
            sizes = steepest(equation.form, setting.frame, own[:-1])
            causes = (*equation.known, *equation.causes)
            for cause, slope in zip(causes, [*np.abs(setting.slopes), *sizes], strict=True):
                result[nodes[cause], nodes[equation.position]] = float(slope)
        return result

    def scales(self, theta: np.ndarray) -> dict[str, float] | None:
        """Return the sds of the noise; None where mechanisms are user-defined."""
        if self.has_blocks:
            return None
        thetas = split_parts(self.equations, np.asarray(theta))
        sds = [float(np.exp(own[-1])) for own in thetas]
        return dict(zip(self._learned, sds, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every coordinate: its variable, and what it stands for."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that distinguishes this parameterization from others of the problem.

        Functions are identified by names, parameters and byte code, not by what they call.
        """
        stored = self.attributes()
        if self.has_blocks:
            arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
            return f"custom|{stored['functions']}|{self.points}|{arrays}"
        return f"gp|{stored['forms']}|{self.propagation} {self.points}|{stored['settings']}"

    def attributes(self) -> dict[str, str]:
        """Return the texts by which a file identifies the coordinates; functions by their names."""
        if self.has_blocks:
            functions = json.dumps(list(map(_describe, self.parts)))
            return {"parameters": "custom", "functions": functions}
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        forms = json.dumps(list(map(list, self.equations)))
        return {"parameters": "gp", "forms": forms, "settings": json.dumps(arrays)}


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
