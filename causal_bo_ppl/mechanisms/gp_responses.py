"""How do effects of nonlinear mechanisms depend on their coefficients?

Under latent causes an effect is an average over draws of regressions:
`identification.sampling_plans` names for every set the variables that are drawn, and the earlier
draws or set values that they are drawn from. The plans of all sets share a layout: a *slot* is one
draw of one regression, and each of its regressors has a few candidates, among which the set
decides. So one program serves all sets, and draws that no set changes are made once for all
queries.

Averages over the noise are over points that are the same for every query and every theta, so that
effects are smooth in both. "qmc" takes scrambled Sobol points whose coordinates have the mean 0 and
the variance 1, so that linear mechanisms are averaged exactly. "sigma" takes two points for each
noise variable at a distance of the square root of their number, exact for polynomials of third
degree.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import (
    CausalBOError,
    ExplorationError,
    listed,
)
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI
from causal_bo_ppl.mechanisms.gp_basis import (
    BOUNDARY_FACTOR,
    Form,
    Frame,
    features,
    mean,
    sine_series,
    waves,
)
from causal_bo_ppl.mechanisms.gp_priors import needed_variables
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

AVERAGING_POINTS = 256  # of the noise that effects are averaged over
FEWER_AVERAGING_POINTS = 64  # the same for rough averages
QUERIES_AT_ONCE = 16  # queries that are averaged at once, so that memory is bounded
QUERIES_OF_MANY_AT_ONCE = 64  # of many thetas; those that fill up the last batch cost little
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


def uncorrelated(points: np.ndarray) -> np.ndarray:
    """Return points (S, n) of mean 0 and variance 1 without their correlations, little changed."""
    sizes, directions = np.linalg.eigh(points.T @ points / len(points))
    return np.asarray(points @ (directions / np.sqrt(sizes)) @ directions.T)


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
    """Effects as averages over points of the target's mean; see `base.ResponseProgram`.

    The last coordinate of theta is the log sd of the target's noise.
    """

    together = many_together = QUERIES_AT_ONCE
    side_by_side = True

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
        noise = jnp.exp(2 * theta[-1])

        def one(query: Queries) -> jax.Array:
            return self.means(theta, query.mask, query.value, True).var() + noise

        return over_queries(one, batch)

    def log_outcomes(self, theta: jax.Array, queries: Queries, values: jax.Array) -> jax.Array:
        """Return the log density of each outcome of the target alone, (m,).

        An outcome is a mixture of Gaussians, one for every point of the noise upstream.
        """
        log_sd = theta[-1]

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


def summarize_excess(table: jax.Array) -> Excess:
    """Return the share of paths outside the data, the same by input (k,), and the distances (k,).

    table: the excess of every input at each point, (k, S). Distances are averaged over the paths
    outside.
    """
    outside = table > 0
    share = outside.mean(axis=1, dtype=float)
    distance = table.mean(axis=1) / jnp.where(share > 0, share, 1.0)
    return outside.any(axis=0).mean(dtype=float), share, distance


class Layout(NamedTuple):
    """The draws by which effects are averaged: k slots, each one draw of one regression.

    equations: the regression of each slot, by its position. regressors: of all slots, R in all,
    the variables. own: (R,) the slots that they are drawn in where nothing is set, -1 for none. The
    plans of n sets, None where every set value simply replaces the draws of its variable: masks (n,
    p) of the variables that are set; sources (n, R) of the regressors, each an earlier slot, or
    ~position of a variable whose set value is taken; used (n, k), whether the set needs the slot.
    """

    equations: tuple[int, ...]
    regressors: tuple[int, ...]
    own: np.ndarray
    plans: tuple[np.ndarray, np.ndarray, np.ndarray] | None


def lay_out(equations: Sequence[Equation], problem: Problem, plans: SamplingPlans | None) -> Layout:
    """Return the draws of all sets in common slots.

    Besides the problem's sets, the empty set and the set of all manipulable variables have a plan,
    where they need no other regressions.
    """
    numbers = {each.position: index for index, each in enumerate(equations)}
    if plans is None:
        causes = [cause for each in equations for cause in (*each.causes, *each.known)]
        own = np.array([numbers.get(cause, -1) for cause in causes], int)
        return Layout(tuple(range(len(equations))), tuple(causes), own, None)
    graph = plans.graph
    positions = {graph.nodes[position]: index for position, index in numbers.items()}
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
    owners = np.repeat(np.arange(len(counts)), counts).tolist()
    needed = [(*equations[owner].causes, *equations[owner].known) for owner in owners]
    firsts = np.cumsum([0, *map(len, needed)]).tolist()
    sources = np.full((len(tables), firsts[-1]), ~0)
    used = np.zeros((len(tables), len(owners)), bool)
    for row, plan in enumerate(tables.values()):
        slots: list[int] = []
        for draw in plan.draws:
            earlier = [other.variable for other in plan.draws[: len(slots)]]
            slot = starts[draw.variable] + earlier.count(draw.variable)
            by_name = dict(zip(plans.given[draw.variable], draw.sources, strict=True))
            for number, position in enumerate(needed[slot], firsts[slot]):
                source = by_name[graph.nodes[position]]
                given = ~graph.index(source) if isinstance(source, str) else slots[source]
                sources[row, number] = given
            used[row, slot] = True
            slots.append(slot)
    masks = np.array([[name in members for name in graph.nodes] for members in tables])
    flat = tuple(position for each in needed for position in each)
    return Layout(tuple(owners), flat, sources.max(axis=0, initial=-1), (masks, sources, used))


class Step(NamedTuple):
    """Contributions to the means of slots, T in all, in causal order: arrays with T rows.

    A contribution is a function of one regressor, the joint process of two or three, or the product
    of two. slot: whose mean it belongs to. regressors: (G,) positions among all of them. slope: its
    coordinate of theta, or -1, where `fixed` is the slope. origin: where the trend is 0. product:
    the coordinate of theta of the product, or -1. other_origin: where it is 0 in the second
    regressor. hinges: (2,) coordinates
    of theta, or -1. low, high: the range of the data. middle, half: (G,) the box. height: the
    factor of all basis functions. weights: (K,) coordinates of the process's coefficients, or -1.
    terms: how many are summed. joint: how many regressors have a joint process, less one.
    """

    slot: Any
    regressors: Any
    slope: Any
    fixed: Any
    origin: Any
    product: Any
    other_origin: Any
    hinges: Any
    low: Any
    high: Any
    middle: Any
    half: Any
    height: Any
    weights: Any
    terms: Any
    joint: Any


class Inputs(NamedTuple):
    """The regressors of all slots, arrays (R,); see `Layout`.

    slot: the slot that each belongs to. number: which cause of which equation it is, the number of
    all causes for a known one. low, high: the range of its data.
    """

    slot: Any
    position: Any
    own: Any
    number: Any
    low: Any
    high: Any


def tabulate_steps(
    layout: Layout, equations: Sequence[Equation], settings: Sequence[Setting]
) -> tuple[Step, Inputs, tuple[int, ...]]:
    """Return the steps, the regressors, and the functions of one cause in joint processes.

    The last is (sines of a process of one, of each of two, of each of three); a process with fewer
    has coefficients of 0.
    """
    most, starts, rows = [0, 0, 0], np.cumsum([0, *(each.size for each in equations)]), []
    inputs: list[tuple[float, ...]] = []
    counts = np.cumsum([0, *(len(each.causes) for each in equations)])
    for each in equations:
        for group in each.form.groups:
            which = len(group.columns) - 1
            most[which] = max(most[which], *group.functions)
    width = max(1, *(functions ** (which + 1) for which, functions in enumerate(most)))
    for slot, owner in enumerate(layout.equations):
        equation, setting, first = equations[owner], settings[owner], len(inputs)
        form, frame, start = equation.form, Frame(*map(np.asarray, setting.frame)), starts[owner]
        hinge = start + form.size - 2 * len(form.hinged)
        hinges = {cause: hinge + 2 * number for number, cause in enumerate(form.hinged)}
        terms = setting.terms
        if terms is None:
            terms = [group.size for group in form.groups]
        process, used = {}, start + 1 + form.causes
        for group, count in zip(form.groups, np.asarray(terms).tolist(), strict=True):
            which, grid = (
                len(group.columns) - 1,
                np.full((most[len(group.columns) - 1],) * len(group.columns), -1),
            )
            grid[tuple(map(slice, group.functions))] = used + np.arange(group.size).reshape(
                group.functions
            )
            padded = np.pad(grid.ravel(), (0, width - grid.size), constant_values=-1)
            process[group.columns] = (padded, count, which)
            used += group.size
        none = (np.full(width, -1), 0, 0)
        singles = [(cause,) for cause in range(form.causes)]
        joint = [columns for columns in process if len(columns) > 1]
        products = [
            (pair, start + k) for k, pair in enumerate(form.products, form.multiplied.start)
        ]
        for columns, product in [*((each, -1) for each in [*singles, *joint]), *products]:
            padded, count, which = none if product >= 0 else process.get(columns, none)
            cause, is_joint = columns[0], len(columns) > 1
            low_high = hinges.get(cause, -1)
            box = [columns[min(place, len(columns) - 1)] for place in range(3)]
            rows.append(
                (
                    slot,
                    [first + column for column in box],
                    -1 if is_joint else start + 1 + cause,
                    0.0,
                    frame.origin[cause],
                    product,
                    frame.origin[columns[-1]],
                    [-1, -1] if is_joint or low_high < 0 else [low_high, low_high + 1],
                    frame.low[cause],
                    frame.high[cause],
                    frame.middle[box],
                    frame.half[box],
                    np.prod(1 / np.sqrt(BOUNDARY_FACTOR * frame.half[list(columns)])),
                    padded,
                    count,
                    which,
                )
            )
        for cause in range(form.causes):
            inputs.append(
                (
                    slot,
                    equation.causes[cause],
                    counts[owner] + cause,
                    frame.low[cause],
                    frame.high[cause],
                )
            )
        for position, slope in zip(
            equation.known, np.asarray(setting.slopes).tolist(), strict=True
        ):
            here, one = len(inputs), np.ones(3)
            rows.append(
                (
                    *(slot, [here] * 3, -1, slope, 0.0, -1, 0.0, [-1, -1]),
                    *(0.0, 0.0, 0 * one, one, 1.0, *none),
                )
            )
            inputs.append((slot, position, counts[-1], -np.inf, np.inf))
    table = list(zip(*rows, strict=True)) or [()] * len(Step._fields)
    shapes = {"regressors": (3,), "hinges": (2,), "middle": (3,), "half": (3,), "weights": (width,)}
    whole = {"slot", "regressors", "slope", "product", "hinges", "weights", "terms", "joint"}
    arrays = [
        np.array(column, int if name in whole else float).reshape(-1, *shapes.get(name, ()))
        for name, column in zip(Step._fields, table, strict=True)
    ]
    slots, positions, numbers, low, high = np.array(inputs, float).reshape(-1, 5).T
    found = Inputs(
        slots.astype(int), positions.astype(int), layout.own, numbers.astype(int), low, high
    )
    return Step(*arrays), found, tuple(most)


class Origin(NamedTuple):
    """Where the draws of one query come from.

    sources: (R,) see `Layout`. used: (k,) whether the query needs each slot. is_usual: (k,) whether
    its draws are those without intervention.
    """

    sources: jax.Array
    used: jax.Array
    is_usual: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RegressionProgram(AveragingProgram):
    """Effects as averages over draws of regressions; see `base.ResponseProgram`.

    Graph and mechanisms are arrays, so that problems of one shape share one compiled program: a
    loop over the contributions to the means.

    levels, log_sds: (k,) the coordinates of theta of each slot. points: (S, k - 1) standardized
    noise of all slots but the last, the target's. plans: see `Layout`. most: the sines of a process
    of one, two and three causes. causes: the number of all causes of equations. multiplies: whether
    any mechanism has products.
    """

    steps: Step
    inputs: Inputs
    levels: jax.Array
    log_sds: jax.Array
    points: jax.Array
    plans: tuple[jax.Array, jax.Array, jax.Array] | None
    most: tuple[int, ...] = field(metadata={"static": True})
    causes: int = field(metadata={"static": True})
    multiplies: bool = field(metadata={"static": True}, default=False)

    many_together = QUERIES_OF_MANY_AT_ONCE

    def _sources(self, mask: Any) -> tuple[jax.Array, jax.Array]:
        """Return the sources (R,) of regressors under a query, and which slots it needs, (k,)."""
        if self.plans is not None:
            masks, sources, used = self.plans
            which = jnp.argmax((masks == mask[None]).all(axis=1))
            return sources[which], used[which]
        position, own, slot = self.inputs.position, self.inputs.own, self.inputs.slot
        sources = jnp.where(mask[position] | (own < 0), ~position, own)
        size = len(self.levels)

        def visit(step: Any, used: jax.Array) -> jax.Array:
            number = len(sources) - 1 - step
            source = jnp.where(sources[number] < 0, size, sources[number])
            return used.at[source].max(used[slot[number]], mode="drop")

        used = jnp.arange(size) == size - 1
        return sources, jax.lax.fori_loop(0, len(sources), visit, used)

    def _origin(self, mask: Any) -> Origin:
        """Return where the draws of a query come from."""
        sources, used = self._sources(mask)
        own, slot = self.inputs.own, self.inputs.slot

        def visit(number: Any, usual: jax.Array) -> jax.Array:
            is_same = (sources[number] == own[number]) & (own[number] >= 0)
            return usual.at[slot[number]].min(is_same & usual[own[number]])

        usual = jax.lax.fori_loop(0, len(sources), visit, jnp.ones(len(self.levels), bool))
        return Origin(sources, used, usual)

    def _start(self, theta: jax.Array) -> jax.Array:
        """Return level and noise of all slots at every point, (k, S)."""
        noise = jnp.exp(theta[self.log_sds[:-1]])[:, None] * self.points.T
        return theta[self.levels][:, None] + jnp.pad(noise, ((0, 1), (0, 0)))

    def _weights(self, theta: jax.Array) -> jax.Array:
        """Return the coefficients (T, K) of the processes."""
        index = self.steps.weights
        chosen = jnp.where(index < 0, 0.0, theta[index])
        weights: jax.Array = chosen * self.steps.height[:, None]
        return weights

    def _inputs(self, step: Step, values: jax.Array, sources: jax.Array, value: Any) -> list[Any]:
        """Return the regressors (S,) of one step."""
        found = []
        joint = max((n for n, m in enumerate(self.most) if m), default=0)
        for number in range(1 + max(joint, int(self.multiplies))):
            source = sources[step.regressors[number]]
            drawn = values[jnp.maximum(source, 0)]
            found.append(jnp.where(source < 0, value[jnp.maximum(~source, 0)], drawn))
        return found

    def _contribution(
        self, theta: jax.Array, step: Step, weights: jax.Array, inputs: list[Any], fast: bool
    ) -> jax.Array:
        """Return the contribution (S,) of one step for regressors (S,)."""
        slope, (low, high) = (
            jnp.where(index < 0, 0.0, theta[index]) for index in (step.slope, step.hinges)
        )
        first = inputs[0]
        total = (slope + step.fixed) * (first - step.origin)
        total = total + low * jnp.maximum(step.low - first, 0.0)
        total = total + high * jnp.maximum(first - step.high, 0.0)
        if self.multiplies:
            weight = jnp.where(step.product < 0, 0.0, theta[step.product])
            product = (first - step.origin) * (inputs[1] - step.other_origin)
            total = total + weight * product
        present = [number for number, functions in enumerate(self.most) if functions]
        if not present:
            return jnp.asarray(total)
        angles = []
        for number, value in enumerate(inputs[: 1 + max(present)]):
            half = step.half[number]
            inside = jnp.clip(value - step.middle[number], -half, half)
            angles.append(jnp.pi * (inside / (2 * BOUNDARY_FACTOR * half) + 0.5))

        def series(number: int) -> Callable[[], jax.Array]:
            functions = self.most[number]

            def evaluate() -> jax.Array:
                if number == 0 and fast:
                    return sine_series(weights[:functions], angles[0], step.terms)
                table = weights[: functions ** (number + 1)].reshape((functions,) * (number + 1))
                result = waves(angles[0], functions) @ table.reshape(functions, -1)
                for angle in angles[1 : number + 1]:
                    wave = waves(angle, functions)
                    result = result.reshape(*jnp.shape(angle), functions, -1)
                    result = (wave[..., None] * result).sum(axis=-2)
                return result[..., 0]

            return evaluate

        branches = [series(number) for number in present]
        if len(branches) == 1:
            return jnp.asarray(total + branches[0]())
        position = jnp.searchsorted(jnp.array(present), step.joint)
        return jnp.asarray(total + jax.lax.switch(position, branches))

    def _walk(
        self, theta: jax.Array, sources: jax.Array, value: Any, fast: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Return the draws (k, S) of all slots, the target's without noise, and all parts."""

        def visit(values: jax.Array, row: Any) -> tuple[jax.Array, jax.Array]:
            step, weights = row
            inputs = self._inputs(step, values, sources, value)
            part = self._contribution(theta, step, weights, inputs, fast)
            return values.at[step.slot].add(part), part

        if not len(self.steps.slot):
            return self._start(theta), jnp.zeros((0, len(self.points)))
        rows = self.steps, self._weights(theta)
        found: tuple[jax.Array, jax.Array] = jax.lax.scan(visit, self._start(theta), rows)
        return found

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its regressors there."""
        return self._walk(theta, self._sources(mask)[0], value, fast)[0][-1]

    def of_many(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the effects (s, M) of several thetas (s, d), without derivatives.

        Draws and contributions that a query does not change are computed once for all queries, and
        those that it does not need not at all.
        """
        steps = self.steps
        if not len(steps.slot):
            return super().of_many(theta, batch)
        origins = jax.vmap(self._origin)(jnp.asarray(batch.mask))

        def plan(origin: Origin) -> tuple[jax.Array, jax.Array, jax.Array]:
            """Return the order of steps, how many matter, and the kind of each."""
            source = origin.sources[steps.regressors]
            own = self.inputs.own[steps.regressors]
            is_usual = (source == own) & (own >= 0) & origin.is_usual[own]
            kind = jnp.where((source < 0).all(axis=1), 1, 2)
            kind = jnp.where(is_usual.all(axis=1), 0, kind)
            matters = origin.used[steps.slot] & ~origin.is_usual[steps.slot]
            return jnp.argsort(~matters, stable=True), matters.sum(), kind

        plans = jax.vmap(plan)(origins)

        def one(point: jax.Array) -> jax.Array:
            weights, start = self._weights(point), self._start(point)
            nothing = jnp.zeros(batch.value.shape[1])
            usual, parts = self._walk(point, self.inputs.own, nothing, True)

            def effect(row: Any) -> jax.Array:
                origin, (order, count, kinds), value = row
                values = jnp.where(origin.is_usual[:, None], usual, start)

                def visit(number: Any, values: jax.Array) -> jax.Array:
                    which = order[number]
                    step = jax.tree.map(lambda part: part[which], steps)
                    inputs = self._inputs(step, values, origin.sources, value)

                    def at_value() -> jax.Array:
                        ones = [each[:1] for each in inputs]
                        found = self._contribution(point, step, weights[which], ones, True)
                        return jnp.broadcast_to(found, values.shape[1:])

                    def at_points() -> jax.Array:
                        return self._contribution(point, step, weights[which], inputs, True)

                    branches = (lambda: parts[which], at_value, at_points)
                    return values.at[step.slot].add(jax.lax.switch(kinds[which], branches))

                return jnp.mean(jax.lax.fori_loop(0, count, visit, values)[-1])

            rows = origins, plans, jnp.asarray(batch.value)
            effects: jax.Array = jax.lax.map(effect, rows)
            return effects

        effects: jax.Array = jax.vmap(one)(theta)
        return effects

    def beyond(self, theta: jax.Array, batch: Queries) -> Excess:
        """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances.

        Inputs are the causes of all equations, one after the other; of several draws by one
        regression the most distant one counts. An input counts where its equation has an influence
        on the target under the query. See `summarize_excess`.
        """

        def one(query: Queries) -> Excess:
            sources, used = self._sources(query.mask)
            values = self._walk(theta, sources, query.value, True)[0]
            source, inputs = sources[:, None], self.inputs
            given = query.value[jnp.maximum(~sources, 0)][:, None]
            drawn = jnp.where(source < 0, given, values[jnp.maximum(sources, 0)])
            ends = inputs.low[:, None], inputs.high[:, None]
            excess = excess_beyond(drawn, *ends, source < 0)
            excess = jnp.where(used[inputs.slot][:, None], excess, 0.0)
            table = jnp.zeros((self.causes, len(self.points)))
            return summarize_excess(table.at[inputs.number].max(excess, mode="drop"))

        return over_queries(one, batch)


def is_mechanism(graph: CausalGraph, equation: Equation) -> bool:
    """Return whether the regressors of an equation are the causes of its variable.

    Otherwise latent causes join the variable to others, and the equation is only a regression.
    """
    regressors = {graph.nodes[position] for position in (*equation.causes, *equation.known)}
    return regressors == set(graph.parents(graph.nodes[equation.position]))


def label_of(graph: CausalGraph, equation: Equation) -> str:
    """Return the variable, or such as Y|X,Z for a regression on other variables than its causes."""
    variable = graph.nodes[equation.position]
    if is_mechanism(graph, equation):
        return variable
    return f"{variable}|{','.join(graph.nodes[cause] for cause in equation.causes)}"


def coefficient_sites(graph: CausalGraph, equation: Equation) -> list[tuple[str, int, str]]:
    """Return (site, size, part) of all coefficients of an equation, in the order of theta."""
    node, form = label_of(graph, equation), equation.form
    causes = [graph.nodes[position] for position in equation.causes]
    sites = [(f"level[{node}]", 1, "level")]
    sites += [(f"b[{cause}->{node}]", 1, f"slope of {cause}") for cause in causes]
    for group in form.groups:
        members = "*".join(causes[column] for column in group.columns)
        sites.append((f"f[{members}->{node}]", group.size, f"process of {members}"))
    for one, other in form.products:
        pair = f"{causes[one]}*{causes[other]}"
        sites.append((f"b[{pair}->{node}]", 1, f"product of {causes[one]} and {causes[other]}"))
    for cause in map(causes.__getitem__, form.hinged):
        sites.append((f"low[{cause}->{node}]", 1, f"slope of {cause} below the data"))
        sites.append((f"high[{cause}->{node}]", 1, f"slope of {cause} above the data"))
    return sites


def scale_sites(graph: CausalGraph, equation: Equation) -> list[tuple[str, str]]:
    """Return (site, label) of the hyperparameters of an equation, in their order."""
    node, form = label_of(graph, equation), equation.form
    sites = [(f"sd[{node}]", node), *[(f"trend[{node}]", node)] * form.is_nonlinear]
    for group in form.groups:
        members = [graph.nodes[equation.causes[column]] for column in group.columns]
        label = f"{'*'.join(members)}->{node}"
        sites.append((f"amplitude[{label}]", label))
        for cause in members:
            joint = f"{label},{cause}" if len(members) > 1 else label
            sites.append((f"lengthscale[{cause}->{node}]", joint))
    return sites


def coordinate_names(graph: CausalGraph, equation: Equation) -> list[tuple[str, str, str]]:
    """Return (name, variable, part) of every coordinate of theta that belongs to an equation."""
    names = []
    for site, size, part in coefficient_sites(graph, equation):
        numbered = [f"{site[:-1]},{number}]" for number in range(1, size + 1)]
        names += [(name, part) for name in (numbered if site.startswith("f[") else [site])]
    names.append((f"log_sd[{label_of(graph, equation)}]", "log sd of the noise"))
    return [(name, graph.nodes[equation.position], part) for name, part in names]


def upstream_queries(problem: Problem, queries: Queries, learned: Sequence[str]) -> Queries:
    """Return queries over the target and its causes; refuse effects of mechanisms not learned."""
    graph = problem.graph.ancestral(problem.target)
    columns = [problem.graph.index(name) for name in graph.nodes]
    mask = np.asarray(queries.mask)[:, columns]
    for row in distinct_rows(mask)[0]:
        members = members_of(graph, mask[row])
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


def members_of(graph: CausalGraph, is_set: np.ndarray) -> Names:
    """Return the names of the variables that are set, (p,)."""
    return tuple(name for name, chosen in zip(graph.nodes, is_set, strict=True) if chosen)


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
