"""How do effects of nonlinear mechanisms depend on their coefficients?

`GPResponse` is the map from theta to effects. Under latent causes an effect is an average over
draws of regressions: `identification.sampling_plans` names for every set the variables that are
drawn, and the earlier draws or set values that they are drawn from. The plans of all sets share a
layout: a *slot* is one draw of one regression, and each of its regressors has a few candidates,
among which the set decides. So one program serves all sets, and draws that no set changes are made
once for all queries.

Averages over the noise are over points that are the same for every query and every theta, so that
effects are smooth in both. "qmc" takes scrambled Sobol points whose coordinates have the mean 0 and
the variance 1, so that linear mechanisms are averaged exactly. "sigma" takes two points for each
noise variable at a distance of the square root of their number, exact for polynomials of third
degree.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import norm, qmc

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    ExplorationError,
    MechanismError,
    listed,
    unknown,
)
from causal_bo_ppl.graph import CausalGraph, Edge, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, Extrapolation
from causal_bo_ppl.mechanisms.gp_basis import Form, Frame, features, mean, steepest
from causal_bo_ppl.mechanisms.gp_priors import needed_variables
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

AVERAGING_POINTS = 256  # of the noise that effects are averaged over
FEWER_AVERAGING_POINTS = 64  # the same for rough averages
QUERIES_AT_ONCE = 16  # queries that are averaged at once, so that memory is bounded
TOLERATED_EXCESS = 0.1  # ranges beyond the data within which an input that is not set is inside
ERROR_REPLICATES = 8  # sets of other points by which the error of an average is estimated
ERROR_POINTS = 1_024  # points of each of these sets
PROPAGATIONS = ("qmc", "sigma")
THETA_RANGE = 5.0  # sds from the mean of theta within which coefficients must be negligible
NEGLIGIBLE_COEFFICIENT = 1e-9  # relative to the largest one of its process

Result = TypeVar("Result")
Excess = tuple[jax.Array, jax.Array, jax.Array]


class Equation(NamedTuple):
    """One mechanism among the variables of a model; hashable.

    position: of the variable. causes: positions of the causes whose influence is learned. known:
    positions of causes with a known slope.
    """

    position: int
    causes: tuple[int, ...]
    known: tuple[int, ...]
    form: Form

    @property
    def size(self) -> int:
        """Number of its coordinates of theta: coefficients and the log sd."""
        return self.form.size + 1


class Setting(NamedTuple):
    """Numbers of one equation that are not learned.

    frame: location and range of its causes. slopes: (k,) known slopes. terms: the number of
    functions (G,) of each of its processes that are not negligible; None stands for all.
    """

    frame: Frame
    slopes: Any
    terms: Any = None


def split(equations: tuple[Equation, ...], theta: Any) -> list[tuple[Any, Any]]:
    """Return the coefficients and the log sd of every equation."""
    parts, start = [], 0
    for equation in equations:
        end = start + equation.form.size
        parts.append((theta[..., start:end], theta[..., end]))
        start = end + 1
    return parts


def natural(
    equation: Equation, setting: Setting, coefficients: jax.Array, columns: list[Any], fast: bool
) -> Any:
    """Return the mean of a variable given all columns of values.

    fast: by recurrences, which have derivatives in reverse mode only; otherwise by products with
    the features.
    """
    inputs = [columns[cause] for cause in equation.causes]
    if fast:
        total = mean(equation.form, setting.frame, coefficients, inputs, setting.terms)
    else:
        total = features(equation.form, setting.frame, inputs) @ coefficients
    for slope, cause in zip(setting.slopes, equation.known, strict=True):
        total = total + slope * columns[cause]
    return total


@lru_cache(maxsize=64)
def normal_points(count: int, size: int) -> np.ndarray:
    """Return points (count, size) of a standard Gaussian, each coordinate stratified.

    Scrambled Sobol points, of which every coordinate has one in each of `count` equally probable
    intervals; it is moved to the interval's mean, and all are scaled to the variance 1.
    """
    if not size:
        return np.zeros((1, 0))
    heights = np.concatenate([[0.0], norm.pdf(norm.ppf(np.arange(1, count) / count)), [0.0]])
    means = -np.diff(heights)
    means = (means - means[::-1]) / 2  # symmetric up to the last digit
    means /= np.sqrt((means**2).mean())
    return np.asarray(means[(qmc.Sobol(size, rng=0).random(count) * count).astype(int)])


@lru_cache(maxsize=64)
def other_points(count: int, size: int, seed: int) -> np.ndarray:
    """Return scrambled Sobol points (count, size) of a standard Gaussian, to estimate errors."""
    return np.asarray(norm.ppf(qmc.Sobol(size, rng=1 + seed).random(count)))


def empirical_points(points: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Return quantiles (S,) of residuals (n,) where Gaussian points (S,) are, with their moments.

    Mean and variance are those of the points.
    """
    ranks = norm.cdf(points) * len(residuals) - 0.5
    moved = np.interp(ranks, np.arange(len(residuals)), np.sort(residuals))
    scale = moved.std()
    standard = (moved - moved.mean()) / (scale if scale > 0 else 1.0)
    return np.asarray(points.mean() + points.std() * standard)


def sigma_points(size: int) -> np.ndarray:
    """Return 2 n points (2 n, n) with the first three moments of a standard Gaussian."""
    if not size:
        return np.zeros((1, 0))
    return np.asarray(np.concatenate([np.eye(size), -np.eye(size)]) * np.sqrt(size))


def over_queries(work: Callable[[Queries], Result], batch: Queries) -> Result:
    """Return the results of the work on every query, a fixed number at once."""
    arrays = Queries(jnp.asarray(batch.mask), jnp.asarray(batch.value))
    if len(arrays) <= QUERIES_AT_ONCE:
        return jax.vmap(work)(arrays)
    result: Result = jax.lax.map(work, arrays, batch_size=QUERIES_AT_ONCE)
    return result


class AveragingProgram:
    """Effects as averages over points of the target's mean; see `base.ResponseProgram`."""

    together = QUERIES_AT_ONCE
    side_by_side = True
    equations: tuple[Equation, ...]

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        raise NotImplementedError

    def effect(self, theta: jax.Array, query: Queries) -> jax.Array:
        """Return E[Y | do(z)] for one query."""
        return self.means(theta, query.mask, query.value, True).mean()

    def effects(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return E[Y | do(z)] at theta (d,) for every query, of shape (M,)."""
        return over_queries(lambda query: self.effect(theta, query), batch)

    def linearize(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d), by reverse differentiation."""
        slope = jax.value_and_grad(self.effect)
        return over_queries(lambda query: slope(theta, query), batch)

    def of_many(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the effects (s, M) of several thetas (s, d)."""
        effects: jax.Array = jax.lax.map(lambda one: self.effects(one, batch), theta)
        return effects

    def variances(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the variance of one outcome under each query, (M,)."""
        noise = jnp.exp(2 * split(self.equations, theta)[-1][1])

        def one(query: Queries) -> jax.Array:
            return self.means(theta, query.mask, query.value, True).var() + noise

        return over_queries(one, batch)

    def log_outcomes(self, theta: jax.Array, queries: Queries, values: jax.Array) -> jax.Array:
        """Return the log density of each outcome of the target alone, (m,).

        An outcome is a mixture of Gaussians, one for every point of the noise upstream.
        """
        log_sd = split(self.equations, theta)[-1][1]

        def one(query: Queries, value: jax.Array) -> Any:
            means = self.means(theta, query.mask, query.value, False)
            logs = -0.5 * ((value - means) * jnp.exp(-log_sd)) ** 2
            mixture = jax.scipy.special.logsumexp(logs) - jnp.log(len(means))
            return mixture - log_sd - 0.5 * LOG_TWO_PI

        arrays = Queries(jnp.asarray(queries.mask), jnp.asarray(queries.value))
        logs: jax.Array = jax.vmap(one)(arrays, jnp.asarray(values))
        return logs


@jax.jit
def effects_at(program: AveragingProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the effects (M,) of a program at theta (d,)."""
    return program.effects(theta, batch)


@jax.jit
def variances_at(program: AveragingProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the variance of one outcome under each query (M,), at theta (d,)."""
    return program.variances(theta, batch)


@jax.jit
def log_outcomes_of_many(
    program: AveragingProgram, queries: Queries, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return the log density of each outcome (n, m), at thetas (n, d)."""
    logs: jax.Array = jax.lax.map(lambda one: program.log_outcomes(one, queries, values), theta)
    return logs


def averaging_errors(
    program: AveragingProgram,
    others: Iterable[AveragingProgram],
    theta: np.ndarray,
    batch: Queries,
) -> np.ndarray:
    """Return the errors (M,) of averages at theta (d,), against programs with other points."""

    def average(each: AveragingProgram) -> np.ndarray:
        work = partial(effects_at, each, jnp.asarray(theta))
        return np.asarray(in_pieces(work, batch, len(batch.mask)))

    replicates = [average(other) for other in others]
    noise = np.std(replicates, axis=0, ddof=1) / np.sqrt(len(replicates))
    return np.asarray(np.hypot(average(program) - np.mean(replicates, axis=0), noise))


def excess_beyond(values: jax.Array, low: Any, high: Any, is_set: Any) -> jax.Array:
    """Return by how much values (S,) leave the range of the data, in ranges; 0 inside.

    A value that is not set counts as inside up to `TOLERATED_EXCESS` beyond the range.
    """
    excess = jnp.maximum(low - values, values - high) / jnp.where(high > low, high - low, 1.0)
    return jnp.where(excess > jnp.where(is_set, 0.0, TOLERATED_EXCESS), excess, 0.0)


def summarize_excess(excess: list[jax.Array], count: int) -> Excess:
    """Return the share of paths outside the data, the same by input (k,), and the distances (k,).

    excess: of every input at each of `count` points. Distances are averaged over the paths outside.
    """
    table = jnp.stack(excess) if excess else jnp.zeros((0, count))
    outside = table > 0
    share = outside.mean(axis=1, dtype=float)
    distance = table.mean(axis=1) / jnp.where(share > 0, share, 1.0)
    return outside.any(axis=0).mean(dtype=float), share, distance


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointProgram(AveragingProgram):
    """Effects as averages over points; see `base.ResponseProgram`.

    settings: one for each equation. points: (S, E - 1) standardized noise of all variables but the
    target. size: the number of variables, the target last.
    """

    settings: tuple[Setting, ...]
    points: jax.Array
    equations: tuple[Equation, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def paths(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> list[Any]:
        """Return all variables at every point, (S,) each; of the target its mean given the rest."""
        blank = jnp.zeros(len(self.points))
        columns: list[Any] = [blank + value[position] for position in range(self.size)]
        parts = zip(self.equations, self.settings, split(self.equations, theta), strict=True)
        for index, (equation, setting, (coefficients, log_sd)) in enumerate(parts):
            position = equation.position
            centre = natural(equation, setting, coefficients, columns, fast)
            if position == self.size - 1:
                return [*columns[:-1], centre + blank]
            drawn = centre + jnp.exp(log_sd) * self.points[:, index]
            columns[position] = jnp.where(mask[position], value[position], drawn)
        raise AssertionError("the target's equation is always learned")

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        means: jax.Array = self.paths(theta, mask, value, fast)[-1]
        return means

    def beyond(self, theta: jax.Array, batch: Queries) -> Excess:
        """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances.

        Inputs are the causes of all equations, one after the other. An input counts where its
        equation has an influence on the target under the query. See `summarize_excess`.
        """

        def one(query: Queries) -> Excess:
            columns = self.paths(theta, query.mask, query.value, True)
            acting, excess = _acting(self.equations, self.size, query.mask), []
            for equation, setting in zip(self.equations, self.settings, strict=True):
                low, high = jnp.asarray(setting.frame.low), jnp.asarray(setting.frame.high)
                for index, cause in enumerate(equation.causes):
                    ends = low[index], high[index]
                    beyond = excess_beyond(columns[cause], *ends, query.mask[cause])
                    excess.append(jnp.where(acting[equation.position], beyond, 0.0))
            return summarize_excess(excess, len(self.points))

        return over_queries(one, batch)


def _acting(equations: tuple[Equation, ...], size: int, mask: Any) -> list[Any]:
    """Return whether each variable's mechanism has an influence on the target under a query."""
    acting = [jnp.zeros((), bool)] * (size - 1) + [jnp.ones((), bool)]
    for equation in reversed(equations):
        for cause in (*equation.causes, *equation.known):
            acting[cause] = acting[cause] | (acting[equation.position] & ~mask[cause])
    return acting


class Slot(NamedTuple):
    """One draw by a regression; hashable.

    equation: position of the regression among the equations. sources: the candidates of every
    regressor, first of those that are learned, then of those with known slopes: the number of an
    earlier slot, or ~position of a variable whose set value is taken.
    """

    equation: int
    sources: tuple[tuple[int, ...], ...]


class Layout(NamedTuple):
    """The plans of n sets over k slots with i regressors in all.

    masks: (n, p) the variables that are set. codes: (n, i) the candidate of each regressor. used:
    (n, k) whether the set needs the slot.
    """

    slots: tuple[Slot, ...]
    masks: np.ndarray
    codes: np.ndarray
    used: np.ndarray


def lay_out(problem: Problem, plans: SamplingPlans, equations: Sequence[Equation]) -> Layout:
    """Return the plans of all sets in common slots.

    Besides the problem's sets, the empty set and the set of all manipulable variables have a plan,
    where they need no other regressions.
    """
    graph = plans.graph
    positions = {graph.nodes[each.position]: index for index, each in enumerate(equations)}
    tables = {}
    for members in (*plans.sets, (), tuple(problem.domains)):
        upstream = graph.ordered(name for name in members if name in graph.nodes)
        try:
            plan = plans.plan(upstream)
        except CausalBOError:
            continue  # its effect is a ratio, or cannot be learned
        if upstream not in tables and all(draw.variable in positions for draw in plan.draws):
            tables[upstream] = plan
    counts = [
        max(sum(draw.variable == name for draw in plan.draws) for plan in tables.values())
        for name in positions
    ]
    starts = dict(zip(positions, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    regressors = {
        name: [graph.nodes[cause] for cause in (*equations[index].causes, *equations[index].known)]
        for name, index in positions.items()
    }
    chosen: list[list[dict[int, int]]] = [
        [{} for _ in regressors[name]]
        for name, count in zip(positions, counts, strict=True)
        for _ in range(count)
    ]
    taken = []
    for plan in tables.values():
        slots: list[int] = []
        by_slot: dict[int, list[int]] = {}
        for draw in plan.draws:
            slot = starts[draw.variable] + sum(
                other.variable == draw.variable for other in plan.draws[: len(slots)]
            )
            by_name = dict(zip(plans.given[draw.variable], draw.sources, strict=True))
            by_slot[slot] = []
            for options, name in zip(chosen[slot], regressors[draw.variable], strict=True):
                source = by_name[name]
                one = ~graph.index(source) if isinstance(source, str) else slots[source]
                by_slot[slot].append(options.setdefault(one, len(options)))
            slots.append(slot)
        taken.append(by_slot)
    sources = [tuple(tuple(options) or (~0,) for options in each) for each in chosen]
    codes = [
        [code for slot, each in enumerate(sources) for code in by_slot.get(slot, [0] * len(each))]
        for by_slot in taken
    ]
    owners = np.repeat(np.arange(len(counts)), counts).tolist()
    return Layout(
        tuple(map(Slot, owners, sources)),
        np.array([[name in members for name in graph.nodes] for members in tables]),
        np.array(codes, dtype=np.int32).reshape(len(taken), -1),
        np.array([[slot in by_slot for slot in range(len(sources))] for by_slot in taken]),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CopyProgram(AveragingProgram):
    """Effects as averages over draws of regressions; see `base.ResponseProgram`.

    settings: one for each equation. points: (S, k - 1) standardized noise of all slots but the
    last, the target's. masks, codes, used: see `Layout`. size: the number of variables.
    """

    settings: tuple[Setting, ...]
    points: jax.Array
    masks: jax.Array
    codes: jax.Array
    used: jax.Array
    equations: tuple[Equation, ...] = field(metadata={"static": True})
    slots: tuple[Slot, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def _set(self, mask: Any) -> jax.Array:
        """Return the position of the set among the plans."""
        return jnp.argmax((self.masks == mask[None]).all(axis=1))

    def paths(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> list[list[Any]]:
        """Return the regressors (S,) of every slot, and last the mean of the target at each point.

        The lists have a column for each regressor, in the order of `Slot.sources`.
        """
        codes, used = self.codes[self._set(mask)], 0
        blank, parts = jnp.zeros(len(self.points)), split(self.equations, theta)
        drawn: list[Any] = []
        paths: list[list[Any]] = []
        for number, slot in enumerate(self.slots):
            equation, setting = self.equations[slot.equation], self.settings[slot.equation]
            coefficients, log_sd = parts[slot.equation]
            regressors = (*equation.causes, *equation.known)
            columns: list[Any] = [None] * self.size
            for position, candidates in zip(regressors, slot.sources, strict=True):
                options = [drawn[c] if c >= 0 else blank + value[~c] for c in candidates]
                columns[position] = _choose(codes[used], options)
                used += 1
            paths.append([columns[position] for position in regressors])
            mean = natural(equation, setting, coefficients, columns, fast) + blank
            if number == len(self.slots) - 1:
                return [*paths, [mean]]
            drawn.append(mean + jnp.exp(log_sd) * self.points[:, number])
        raise AssertionError("the target's slot is the last one")

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given its regressors there."""
        means: jax.Array = self.paths(theta, mask, value, fast)[-1][0]
        return means

    def beyond(self, theta: jax.Array, batch: Queries) -> Excess:
        """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances.

        Inputs are the learned regressors of all equations, one after the other; of several draws by
        one regression the most distant one counts. See `PointProgram.beyond`.
        """

        def one(query: Queries) -> Excess:
            which = self._set(query.mask)
            columns, start = self.paths(theta, query.mask, query.value, True), 0
            excess: dict[tuple[int, int], jax.Array] = {}
            for number, slot in enumerate(self.slots):
                frame = self.settings[slot.equation].frame
                low, high = jnp.asarray(frame.low), jnp.asarray(frame.high)
                for index in range(len(self.equations[slot.equation].causes)):
                    is_value = jnp.array([candidate < 0 for candidate in slot.sources[index]])
                    is_set = is_value[self.codes[which, start + index]]
                    values, key = columns[number][index], (slot.equation, index)
                    beyond = excess_beyond(values, low[index], high[index], is_set)
                    beyond = jnp.where(self.used[which, number], beyond, 0.0)
                    excess[key] = jnp.maximum(excess[key], beyond) if key in excess else beyond
                start += len(slot.sources)
            return summarize_excess([excess[key] for key in sorted(excess)], len(self.points))

        return over_queries(one, batch)


def _choose(code: jax.Array, options: list[Any]) -> jax.Array:
    """Return one of several arrays (S,)."""
    chosen: jax.Array = options[0]
    for number, other in enumerate(options[1:], 1):
        chosen = jnp.where(code == number, other, chosen)
    return chosen


def is_mechanism(graph: CausalGraph, equation: Equation) -> bool:
    """Return whether the regressors of an equation are the causes of its variable.

    Otherwise latent causes join the variable to others, and the equation is only a regression.
    """
    regressors = {graph.nodes[position] for position in (*equation.causes, *equation.known)}
    return regressors == set(graph.parents(graph.nodes[equation.position]))


def coordinate_names(graph: CausalGraph, equation: Equation) -> list[tuple[str, str, str]]:
    """Return (name, variable, part) of every coordinate of theta that belongs to an equation.

    The names of a regression on other variables than the causes contain them, as in level[Y|X,Z].
    """
    variable, form = graph.nodes[equation.position], equation.form
    causes = [graph.nodes[position] for position in equation.causes]
    node = variable if is_mechanism(graph, equation) else f"{variable}|{','.join(causes)}"
    names = [(f"level[{node}]", "level")]
    names += [(f"b[{cause}->{node}]", f"slope of {cause}") for cause in causes]
    for group in form.groups:
        members = "*".join(causes[column] for column in group.columns)
        names += [
            (f"f[{members}->{node},{number}]", f"process of {members}")
            for number in range(1, group.size + 1)
        ]
    for cause in map(causes.__getitem__, form.hinged):
        names += [(f"low[{cause}->{node}]", f"slope of {cause} below the data")]
        names += [(f"high[{cause}->{node}]", f"slope of {cause} above the data")]
    names += [(f"log_sd[{node}]", "log sd of the noise")]
    return [(name, variable, part) for name, part in names]


def upstream_queries(problem: Problem, queries: Queries, learned: Sequence[str]) -> Queries:
    """Return queries over the target and its causes; refuse effects of mechanisms not learned."""
    graph = problem.graph.ancestral(problem.target)
    columns = [problem.graph.index(name) for name in graph.nodes]
    mask = np.asarray(queries.mask)[:, columns]
    for row in distinct_rows(mask)[0]:
        members = _members(graph, mask[row])
        needed = needed_variables(graph, problem.target, [members])
        lacking = [name for name in needed if name not in learned]
        if lacking:
            what, advice = f"effect of {set_label(members)}", "add it to the sets"
            if not members:
                what = f"mean of {problem.target!r} without any intervention"
                advice = "take the mean of the observations for it, or compare interventions"
            raise ExplorationError(
                f"the {what} depends on the mechanisms of {listed(lacking)}, which no set of the "
                f"problem needs, so that they were not learned; {advice}"
            )
    return Queries(mask, np.asarray(queries.value)[:, columns])


def _members(graph: CausalGraph, is_set: np.ndarray) -> Names:
    return tuple(name for name, chosen in zip(graph.nodes, is_set, strict=True) if chosen)


@dataclass(frozen=True, eq=False)
class GPResponse:
    """Effects as averages over the noise; see `base.ResponseMap`.

    equations: of all variables that effects depend on, in causal order, the target last. settings:
    the fixed numbers of each. propagation: how the noise is averaged. plans: the draws that an
    effect is averaged over where latent causes join causes of the target, the equations being
    regressions; None where there are no such causes.
    """

    problem: Problem
    equations: tuple[Equation, ...]
    settings: tuple[Setting, ...]
    propagation: str = "qmc"
    points: int = AVERAGING_POINTS
    plans: SamplingPlans | None = None

    propagations = PROPAGATIONS

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def _coordinates(self) -> list[tuple[str, str, str]]:
        return [each for one in self.equations for each in coordinate_names(self.graph, one)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients and log sds."""
        return tuple(name for name, _, _ in self._coordinates)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets of the problem whose effects can be learned."""
        return self.problem.sets if self.plans is None else self.plans.sets

    @property
    def is_affine(self) -> bool:
        """Whether all mechanisms are linear, so that effects are affine in the values."""
        return not any(equation.form.is_nonlinear for equation in self.equations)

    @property
    def is_linear(self) -> bool:
        """Whether only the target's mechanism matters, so that effects are linear in theta."""
        return len(self.equations) == 1

    @cached_property
    def _layout(self) -> Layout | None:
        if self.plans is None:
            return None
        return lay_out(self.problem, self.plans, self.equations)

    @property
    def _free(self) -> int:
        """Number of noise variables that are averaged over: all but that of the target."""
        return len(self.equations if self._layout is None else self._layout.slots) - 1

    @cached_property
    def program(self) -> Any:
        """The effects as a JAX pytree."""
        size = len(self.graph.nodes)
        with jax.ensure_compile_time_eval():  # cached: within a trace they would be its tracers
            settings = tuple(
                jax.tree.map(jnp.asarray, setting._replace(terms=self._terms(index)))
                for index, setting in enumerate(self.settings)
            )
            free, is_qmc = self._free, self.propagation == "qmc"
            noise = jnp.asarray(normal_points(self.points, free) if is_qmc else sigma_points(free))
            if self._layout is None:
                return PointProgram(settings, noise, self.equations, size)
            slots, *tables = self._layout
            masks, codes, used = map(jnp.asarray, tables)
            return CopyProgram(settings, noise, masks, codes, used, self.equations, slots, size)

    def propagate(self, propagation: str) -> "GPResponse":
        """Return the same map with the noise averaged in another way."""
        if propagation not in PROPAGATIONS:
            raise ArgumentError(
                f"propagation must be one of {listed(PROPAGATIONS)}, got {propagation!r}"
            )
        return replace(self, propagation=propagation)

    @property
    def _owners(self) -> list[int]:
        """The equation whose noise each column of the points is, and last that of the target."""
        layout = self._layout
        if layout is None:
            return list(range(len(self.equations)))
        return [slot.equation for slot in layout.slots]

    def with_residuals(self, residuals: Mapping[str, np.ndarray]) -> Any:
        """Return the effects with empirical noise in place of Gaussian noise; see `program`.

        residuals: {variable: (n,)}, of which the distribution is taken, with mean 0 and the sd of
        the fitted noise. Points keep their order, so that the difference is that of distributions.
        """
        points = np.array(self.program.points)
        for column, owner in enumerate(self._owners[:-1]):
            name = self.graph.nodes[self.equations[owner].position]
            if name in residuals:
                points[:, column] = empirical_points(points[:, column], residuals[name])
        return replace(self.program, points=jnp.asarray(points))

    def with_fewer_points(self) -> "GPResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEWER_AVERAGING_POINTS))

    def without_negligible_terms(self, mean: np.ndarray, sd: np.ndarray) -> "GPResponse":
        """Return the same map without coefficients that are negligible for all plausible theta.

        Those of the shortest waves of a process are, unless its lengthscale is short. mean, sd: of
        theta (d,).
        """
        settings, bounds = [], np.abs(mean) + THETA_RANGE * sd
        parts = zip(self.equations, self.settings, split(self.equations, bounds), strict=True)
        for equation, setting, (coefficients, _) in parts:
            terms, used = [], 1 + equation.form.causes
            for group in equation.form.groups:
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
        for index, equation in enumerate(self.equations):
            form = equation.form
            counts = zip(form.groups, self._terms(index), strict=True)
            flags.append(np.ones(1 + form.causes, bool))
            flags += [np.arange(group.size) < count for group, count in counts]
            flags.append(np.ones(2 * len(form.hinged) + 1, bool))
        return np.concatenate(flags)

    def _terms(self, index: int) -> np.ndarray:
        """Return the number of functions (G,) of each process of an equation that are summed."""
        given = self.settings[index].terms
        if given is not None:
            return np.asarray(given)
        return np.array([group.size for group in self.equations[index].form.groups], int)

    @property
    def _learned(self) -> list[str]:
        return [self.graph.nodes[equation.position] for equation in self.equations]

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        if self._layout is None:
            return upstream_queries(self.problem, queries, self._learned)
        upstream = upstream_queries(self.problem, queries, self.graph.nodes)
        self.require_planned(upstream.mask)
        return upstream

    def require_planned(self, mask: Any) -> None:
        """Refuse sets (M, p) of the target and its causes that have no plan."""
        if self._layout is None:
            return
        planned = {each.tobytes() for each in self._layout.masks}
        for row in distinct_rows(np.asarray(mask))[0]:
            if np.asarray(mask[row], bool).tobytes() not in planned:
                raise ExplorationError(
                    f"the effect of {set_label(_members(self.graph, mask[row]))} is averaged over "
                    "regressions that no set of the problem needs, because latent causes join "
                    "causes of the target; add it to the sets"
                )

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the errors (M,) of the averages at theta (d,), estimated by other points."""
        batch, free = self.batch(queries), self._free
        if not free:
            return np.zeros(len(batch.mask))
        points = [other_points(ERROR_POINTS, free, seed) for seed in range(ERROR_REPLICATES)]
        others = [replace(self.program, points=jnp.asarray(each)) for each in points]
        return averaging_errors(self.program, others, theta, batch)

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the data; hinges act there only.

        An input that is set is outside where it leaves the range of the data, others beyond a tenth
        of that range: of new samples from the distribution of 30 observations about 1 % lie there,
        of that of 100 far fewer.
        """
        batch, nodes = self.batch(queries), self.graph.nodes
        work = partial(_beyond, self.propagate("qmc").program, jnp.asarray(theta))
        outside, shares, distances = map(np.asarray, in_pieces(work, batch, len(batch.mask)))
        pairs = zip(self._learned, self.equations, strict=True)
        inputs = tuple((name, nodes[cause]) for name, each in pairs for cause in each.causes)
        is_hinge = np.array([name.startswith(("low[", "high[")) for name in self.names])
        return Extrapolation(inputs, outside, shares, distances, is_hinge)

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned = self._learned
        if variable not in learned:
            raise MechanismError(unknown("variable with a learned mechanism", variable, learned))
        index = learned.index(variable)
        self._require_mechanisms([self.equations[index]])
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        coefficients = split(self.equations, np.asarray(theta))[index][0]
        chosen = jnp.asarray(np.asarray(values)[:, columns])
        work = partial(means_of_many, self.equations[index], self.settings[index], values=chosen)
        return np.asarray(in_pieces(work, coefficients, len(coefficients)))

    def _require_mechanisms(self, equations: Sequence[Equation]) -> None:
        """Refuse regressions that are no mechanisms."""
        for equation in equations:
            if not is_mechanism(self.graph, equation):
                name = self.graph.nodes[equation.position]
                regressors = [self.graph.nodes[position] for position in equation.causes]
                raise MechanismError(
                    f"latent causes join {name!r} to other variables, so that only its regression "
                    f"on {listed(regressors)} was learned, not its mechanism"
                )

    def slopes(self, theta: np.ndarray) -> dict[Edge, float]:
        """Return the largest slope of every mechanism in each cause, over all values."""
        self._require_mechanisms(self.equations)
        result, nodes = {}, self.graph.nodes
        parts = zip(self.equations, self.settings, split(self.equations, theta), strict=True)
        for equation, setting, (coefficients, _) in parts:
            sizes = steepest(equation.form, setting.frame, np.asarray(coefficients))
            causes = (*equation.known, *equation.causes)
            for cause, slope in zip(causes, [*np.abs(setting.slopes), *sizes], strict=True):
                result[nodes[cause], nodes[equation.position]] = float(slope)
        return result

    def scales(self, theta: np.ndarray) -> dict[str, float]:
        """Return the sds of the noise."""
        sds = [float(np.exp(log_sd)) for _, log_sd in split(self.equations, np.asarray(theta))]
        return dict(zip(self._learned, sds, strict=True))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every coordinate: its variable, and what it stands for."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that distinguishes this parameterization from others of the problem."""
        stored = self.attributes()
        return f"gp|{stored['forms']}|{self.propagation} {self.points}|{stored['settings']}"

    def attributes(self) -> dict[str, str]:
        """Return the texts by which a file identifies the coordinates."""
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        forms = json.dumps(list(map(list, self.equations)))
        return {"parameters": "gp", "forms": forms, "settings": json.dumps(arrays)}


@jax.jit
def _beyond(program: PointProgram | CopyProgram, theta: jax.Array, batch: Queries) -> Excess:
    return program.beyond(theta, batch)


@partial(jax.jit, static_argnums=0)
def means_of_many(
    equation: Equation, setting: Setting, coefficients: jax.Array, values: jax.Array
) -> jax.Array:
    """Return means (n, m) for coefficients (n, K) and the same observations (m, p)."""
    inputs = [values[:, cause] for cause in equation.causes]
    total = features(equation.form, setting.frame, inputs) @ coefficients.T
    known_part = values[:, jnp.array(equation.known, int)] @ jnp.asarray(setting.slopes, float)
    learned = total.T if equation.causes else total[:, None] * jnp.ones((1, len(values)))
    means: jax.Array = learned + known_part[None]
    return means
