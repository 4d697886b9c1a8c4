"""Which intervention has the largest acquisition value? The search over all sets at once.

**Space.** All sets of a problem, each with its design, made once and kept: vertices, levels,
corners, and Sobol points in the boxes. Sets with too many combinations are not enumerated; some
starts stand for them, from which they are climbed.

**Search.** Where effects are affine in the values and the acquisition is then largest at vertices,
all vertices of all sets are enumerated, which solves this step exactly; where costs are constant +
|x|, every box is cut at 0 and its pieces' vertices are taken. Otherwise vertices, Sobol points and
what was tried are evaluated in one batch, and the best of them are improved: in sets of one
variable within brackets that shrink, in others by batched gradients. Ties go to the first, in the
order of sets.

**Gradients** (`ascend`). Coordinates are shares u of each domain's width. Gradients are differences
of the value itself, so that any surrogate and any acquisition can be followed; those of all starts
and all coordinates are one batch. The whole quasi-Newton step (BFGS) is tried first, together with
the gradient at its end. It is taken where it gains a fair part of what the slope predicts; for all
other starts, shorter ones and steps along the gradient with lengths over six decades are tried in
one more batch, and the best is taken where it is better. A start whose slope predicts next to
nothing stays. Batches have the same two shapes in every step, so nothing is compiled twice.

**Brackets** (`zoom`). Between the neighbours of each of the best points the value is evaluated at a
few more, and the bracket shrinks to the neighbours of the best of these. A bracket is closed where
its curvature predicts that next to nothing can be gained, or not enough to reach the best of all.
The brackets of all sets are one batch of the same shape in every step; the first open one stands
for those that are closed.

**Combinations** (`climb`). Every variable has a few values to choose from: the ends of its domain,
or levels. From each start all changes of one variable are evaluated, those of all starts in one
batch, and the best change of each start is made while it improves. From the best of the results all
changes of two variables are tried as well.

**Wider bounds** (`search_beyond`). Where no bound is better than the best exact outcome, bounds
widen until one is: otherwise the remaining rounds would only confirm what is known. Where effects
are nonlinear, a local optimum can hold a run as well, since every round gains a little there. So
every second round asks for a gain of a share of the range of all outcomes, and bounds widen until
some candidate reaches it; the rounds between them go on with what is best so far.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data.outcomes import Replicates
from causal_bo_ppl.errors import CausalBOWarning, DomainError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import TIE, first_largest, tie_width
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.analytic import (
    LEAST_LEAD,
    Acquisition,
    Context,
    acquisition_values,
    best_position,
    comparable,
    in_tie_widths,
    is_affine,
    sign_of,
    trait,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import fill_points, place_points, sobol, spread, vertices
from causal_bo_ppl.problem.interventions import distinct_rows, split_by_set, stack
from causal_bo_ppl.problem.regions import between
from causal_bo_ppl.surrogates import Surrogate

MOST_NEWTON_STEPS = 60
SHORTEST_STEP = 1e-6  # of a domain's width: a smaller step ends the search
LEAST_PREDICTED_GAIN = 1e-10  # of the value: a step that is predicted to gain less is not tried
DIFFERENCE_STEP = 2.0**-14  # of a domain's width: the error of a difference is its square
SHARE_GRID = 2.0**20  # shares are rounded to multiples of 1 / this: the same on every processor
NEWTON_LENGTHS = (1.0, 0.5, 0.2, 0.05)  # of trials, in quasi-Newton steps
GRADIENT_LENGTHS = (0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of trials, in widths
FAIR_GAIN = 0.25  # of what the slope predicts for a whole step; of a parabola it is half
OfQueries = Callable[[Queries], np.ndarray]  # from M queries to M values or flags


class Coordinates(NamedTuple):
    """The coordinates of K starts that may move, each as a share of its domain's width.

    starts: the K queries. columns: (K, D) column of each coordinate; those of sets with fewer than
    D variables are filled up and not free. free: (K, D). low, high: (K, D) ends of the domains.
    """

    starts: Queries
    columns: np.ndarray
    free: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def select(self, rows: np.ndarray) -> "Coordinates":
        """Return the coordinates of some of the starts."""
        starts, *parts = self
        return Coordinates(starts[rows], *(part[rows] for part in parts))

    def shares(self) -> np.ndarray:
        """Return the shares (K, D) of the starts."""
        value = np.take_along_axis(np.asarray(self.starts.value), self.columns, axis=1)
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        return np.where(self.free, np.clip((value - self.low) / width, 0.0, 1.0), 0.0)

    def queries(self, shares: np.ndarray) -> Queries:
        """Return the queries at shares (K, n, D), in K n rows."""
        many = shares.shape[1]
        mask = np.repeat(np.asarray(self.starts.mask), many, axis=0)
        value = np.repeat(np.asarray(self.starts.value), many, axis=0)
        points = between(self.low[:, None], self.high[:, None], shares)
        rows = np.arange(len(value)).reshape(len(shares), many)
        for position in range(shares.shape[2]):  # columns that fill up do not overwrite others
            moved = np.broadcast_to(self.free[:, None, position], rows.shape)
            column = np.broadcast_to(self.columns[:, None, position], rows.shape)
            value[rows[moved], column[moved]] = points[..., position][moved]
        return Queries(mask, value)


def coordinates(starts: Queries, low: np.ndarray, high: np.ndarray, size: int) -> Coordinates:
    """Return the coordinates of starts that may move; low, high: (p,), equal where one may not.

    size: the number of coordinates D, at least that of any start.
    """
    is_free = np.asarray(starts.mask) & (high > low)
    columns = np.argsort(~is_free, axis=1, kind="stable")[:, :size]
    free = np.take_along_axis(is_free, columns, axis=1)
    return Coordinates(starts, columns, free, low[columns], high[columns])


def ascend(
    value_of: OfQueries,
    allowed: OfQueries,
    starts: Queries,
    low: np.ndarray,
    high: np.ndarray,
    size: int,
) -> Queries:
    """Return K queries with values no less than those of the starts, to about 1e-6 of the widths.

    Parameters
    ----------
    value_of:
        Function of queries that returns the value of each, (M,).
    allowed:
        Function of queries that returns which may be proposed, (M,); others are never entered.
    starts:
        K queries that are allowed.
    low, high:
        Ends of all variables' domains, (p,); equal where a variable keeps its value.
    size:
        The largest number of variables that may move at once.
    """
    coords = coordinates(starts, low, high, size)
    shares, rows = coords.shares(), np.arange(len(starts))
    here, slopes = _look_around(value_of, allowed, coords, shares)
    curvature = np.broadcast_to(np.eye(shares.shape[1]), (*shares.shape, shares.shape[1])).copy()
    for _ in range(MOST_NEWTON_STEPS):
        trials = np.clip(shares[:, None] + _directions(coords, shares, slopes, curvature), 0.0, 1.0)
        moved = trials[:, 0]
        predicted = ((moved - shares) * slopes).sum(axis=1)
        values, after = _look_around(value_of, allowed, coords, moved)
        is_little = ~(predicted > LEAST_PREDICTED_GAIN * np.abs(here))
        stays = is_little & ((predicted > 0) | (trials == shares[:, None]).all(axis=(1, 2)))
        is_fair = ~stays & (values - here >= FAIR_GAIN * predicted)
        is_decided = (is_fair | stays).all()
        if not is_decided:
            is_kept = (is_fair | stays)[:, None, None]
            queries = coords.queries(np.where(is_kept, trials[:, :1], trials))
            found = np.where(allowed(queries), value_of(queries), -np.inf).reshape(trials.shape[:2])
            best = found.argmax(axis=1)
            values, moved = found[rows, best], trials[rows, best]
        is_better = ~stays & (values > here)
        moved = np.where(is_better[:, None], moved, shares)
        step, here = moved - shares, np.where(is_better, values, here)
        if not np.abs(step).max(initial=0.0) > SHORTEST_STEP:
            shares = moved
            break
        if not is_decided:
            after = _look_around(value_of, allowed, coords, moved)[1]
        after = np.where(is_better[:, None], after, slopes)
        curvature = _update(curvature, step, slopes - after)
        shares, slopes = moved, after
    rounded = coords.queries((np.round(shares * SHARE_GRID) / SHARE_GRID)[:, None])
    plain = coords.queries(shares[:, None])
    may = np.asarray(allowed(rounded))[:, None]
    return Queries(plain.mask, np.where(may, np.asarray(rounded.value), np.asarray(plain.value)))


def _look_around(
    value_of: OfQueries, allowed: OfQueries, coords: Coordinates, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values (K,) of points (K, D), -inf where not allowed, and their slopes (K, D).

    Slopes are central differences; at the ends of a domain one-sided ones of second order.
    """
    starts, size = shares.shape
    near = np.where(shares > 1 - DIFFERENCE_STEP, -DIFFERENCE_STEP, DIFFERENCE_STEP)
    far = np.where(shares > 1 - DIFFERENCE_STEP, -2 * DIFFERENCE_STEP, -DIFFERENCE_STEP)
    far = np.where(shares < DIFFERENCE_STEP, 2 * DIFFERENCE_STEP, far)
    moves = np.zeros((starts, 1 + 2 * size, size))
    position = np.arange(size)
    moves[:, 1 + position, position], moves[:, 1 + size + position, position] = near, far
    points = np.clip(shares[:, None] + moves, 0.0, 1.0)
    values = np.asarray(value_of(coords.queries(points)), float).reshape(points.shape[:2])
    here, around = values[:, 0], values[:, 1:].reshape(starts, 2, size)
    with np.errstate(invalid="ignore"):
        one, two = around[:, 0] - here[:, None], around[:, 1] - here[:, None]
        slopes = (one * far**2 - two * near**2) / (near * far * (far - near))
    slopes = np.where(coords.free & np.isfinite(slopes), slopes, 0.0)
    return np.where(allowed(coords.queries(shares[:, None])), here, -np.inf), slopes


def _directions(
    coords: Coordinates, shares: np.ndarray, slopes: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Return trial steps (K, n, D): quasi-Newton ones, and ones along the gradient.

    Coordinates at an end of their domain that would leave it stay.
    """
    stays = ~coords.free | ((shares <= 0) & (slopes < 0)) | ((shares >= 1) & (slopes > 0))
    uphill = np.where(stays, 0.0, slopes)
    newton = np.where(stays, 0.0, (curvature * uphill[:, None, :]).sum(axis=2))
    largest = np.abs(uphill).max(axis=1, keepdims=True, initial=0.0)
    gradient = uphill / np.where(largest > 0, largest, 1.0)
    steps = [length * newton for length in NEWTON_LENGTHS]
    return np.stack([*steps, *(length * gradient for length in GRADIENT_LENGTHS)], axis=1)


def _update(curvature: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return the inverse Hessians (K, D, D) of the negative value by the BFGS update.

    step, change: (K, D), the steps and the changes of the slopes. They are kept where the value is
    not concave along the step.
    """
    product = (step * change).sum(axis=1)
    sizes = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    is_concave = product > 1e-10 * sizes
    weight = np.where(is_concave, 1 / np.where(is_concave, product, 1.0), 0.0)[:, None, None]
    # The first curvature that is seen sets the scale.
    fresh = (curvature == np.eye(step.shape[1])).all(axis=(1, 2)) & is_concave
    squares = (change**2).sum(axis=1)
    scale = np.where(fresh, product / np.where(squares > 0, squares, 1.0), 1.0)
    scaled = curvature * scale[:, None, None]
    left = np.eye(step.shape[1]) - weight * step[:, :, None] * change[:, None, :]
    updated = left @ scaled @ left.transpose(0, 2, 1) + weight * step[:, :, None] * step[:, None, :]
    return np.where(is_concave[:, None, None], updated, curvature)


BRACKETS_PER_SET = 3  # around the best of its points that are better than their neighbours
BRACKET_POINTS = 7  # within a bracket
BRACKET_STEPS = 7  # each keeps 2 / (BRACKET_POINTS + 1) of a bracket: about 1e-4 in all
LEAST_BRACKET_GAIN = 1e-10  # of the value: a bracket in which less can be gained is closed


def zoom(
    value_of: OfQueries,
    points: Queries,
    found: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    least: float = -np.inf,
) -> Queries:
    """Return the best queries within brackets around the best points of every set.

    Parameters
    ----------
    value_of:
        Function of queries that returns the value of each, (M,); -inf where it may not be proposed.
    points, found:
        Queries that set one variable each, and their values, (M,).
    low, high:
        Ends of all variables' domains, (p,).
    least:
        The value of a query elsewhere: brackets that cannot reach it need not be narrowed.
    """
    columns, ends = [], []
    for _, rows in split_by_set(points):
        column = int(np.flatnonzero(np.asarray(points.mask)[rows[0]])[0])
        width = high[column] - low[column]
        inside = (np.asarray(points.value)[rows, column] - low[column]) / width
        brackets = _brackets(inside, found[rows])
        columns += [column] * len(brackets)
        ends += brackets
    if not ends:
        return points[:0]
    left, right = np.array(ends).T
    mask = np.eye(len(low), dtype=bool)[columns]
    coords = coordinates(Queries(mask, np.zeros(mask.shape)), low, high, 1)
    steps, rows = np.arange(1, BRACKET_POINTS + 1) / (BRACKET_POINTS + 1), np.arange(len(mask))
    best, is_open = (left + right) / 2, np.ones(len(mask), bool)
    for _ in range(BRACKET_STEPS):
        stands = np.where(is_open, rows, np.flatnonzero(is_open)[0])
        shares = left[:, None] + (right - left)[:, None] * steps
        shares = (np.round(shares * SHARE_GRID) / SHARE_GRID)[stands]
        values = value_of(coords.select(stands).queries(shares[..., None])).reshape(shares.shape)
        index, apart = values.argmax(axis=1), (right - left) / (BRACKET_POINTS + 1)
        best = np.where(is_open, shares[rows, index], best)
        left = np.where(is_open, np.maximum(best - apart, left), left)
        right = np.where(is_open, np.minimum(best + apart, right), right)
        reached = values[rows, index]
        least = max(least, float(reached.max()))
        gain = _possible_gain(values, index)
        is_open &= (gain > LEAST_BRACKET_GAIN * np.abs(reached)) & (reached + gain >= least)
        if not is_open.any():
            break
    return coords.queries(best[:, None, None])


def _possible_gain(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return what may be gained between the neighbours of the best of n points, (K,).

    values: (K, n), evenly spaced. index: (K,), of the largest ones. Of a parabola an eighth of the
    second difference can be gained; all of it is allowed for. At an end anything can.
    """
    rows, last = np.arange(len(values)), values.shape[1] - 1
    inside = (index > 0) & (index < last)
    near, far = values[rows, np.maximum(index - 1, 0)], values[rows, np.minimum(index + 1, last)]
    with np.errstate(invalid="ignore"):
        second = (values[rows, index] - near) + (values[rows, index] - far)
    return np.where(inside & np.isfinite(second), second, np.inf)


def _brackets(shares: np.ndarray, found: np.ndarray) -> list[tuple[float, float]]:
    """Return the neighbours of the best points of one set that are better than theirs."""
    order = np.argsort(shares, kind="stable")
    positions, values = shares[order], found[order]
    first = np.flatnonzero(np.diff(positions, prepend=-np.inf) > 0)  # each position once
    positions, values = positions[first], np.maximum.reduceat(values, first)
    if len(positions) < 2:
        return []
    padded = np.concatenate([[-np.inf], values, [-np.inf]])
    peaks = np.flatnonzero((values >= padded[:-2]) & (values >= padded[2:]) & (values > -np.inf))
    chosen = peaks[np.argsort(-values[peaks], kind="stable")][:BRACKETS_PER_SET]
    left, right = np.maximum(chosen - 1, 0), np.minimum(chosen + 1, len(positions) - 1)
    ends = list(zip(positions[left].tolist(), positions[right].tolist(), strict=True))
    return ends + ends[:1] * (BRACKETS_PER_SET - len(ends))  # always as many: the same shape


MOST_CHANGES = 200  # from one start
PAIR_STARTS = 4  # from which pairs are tried
MOST_PAIRS = 8_192  # changes of two variables, from one start


def list_moves(mask: np.ndarray, choices: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all changes of one variable of K queries: columns (K, A) and new values (K, A).

    choices: the values of each variable, by column; none where it keeps its value. Rows with fewer
    changes are filled up with their first one, or with none where they have none (column -1).
    """
    pairs = [(column, value) for column, of in enumerate(choices) for value in of.tolist()]
    changes = [[pair for pair in pairs if row[pair[0]]] for row in mask]
    most = max((len(moves) for moves in changes), default=0)
    filled = [moves + (moves[:1] or [(-1, 0.0)]) * (most - len(moves)) for moves in changes]
    columns = np.array([[column for column, _ in moves] for moves in filled], int)
    values = np.array([[value for _, value in moves] for moves in filled], float)
    return columns.reshape(len(mask), most), values.reshape(len(mask), most)


def climb(value_of: OfQueries, starts: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Return queries that no change of one variable improves, one for each of K starts.

    Parameters
    ----------
    value_of:
        Function of queries that returns the value of each, (M,); -inf where it may not be proposed.
    starts:
        K queries.
    choices:
        The values of each variable, by column; none where it keeps its value.
    """
    mask, value = np.asarray(starts.mask), np.array(starts.value)
    columns, options = list_moves(mask, choices)
    if not columns.size:
        return starts
    here, rows = np.asarray(value_of(starts), float), np.arange(len(mask))
    masks = np.repeat(mask, columns.shape[1], axis=0)
    real = np.flatnonzero(columns.ravel() >= 0)
    for _ in range(MOST_CHANGES):
        changed = np.repeat(value, columns.shape[1], axis=0)
        changed[real, columns.ravel()[real]] = options.ravel()[real]
        found = np.asarray(value_of(Queries(masks, changed)))
        found = found.reshape(columns.shape)
        best = np.array([first_largest(values) for values in found])
        is_better = found[rows, best] > here + tie_width(np.append(found, here))
        if not is_better.any():
            break
        moved = changed.reshape(*columns.shape, -1)[rows, best]
        value = np.where(is_better[:, None], moved, value)
        here = np.where(is_better, found[rows, best], here)
    return Queries(mask, value)


def climb_pairs(value_of: OfQueries, starts: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Climb from all starts, then from the best results by pairs, until no pair improves them."""
    reached = climb(value_of, starts, choices)
    values = np.asarray(value_of(reached), float)
    leading = np.argsort(-in_tie_widths(values), kind="stable")[:PAIR_STARTS]
    finished = [reached]
    for row in leading:
        query, here = reached[row], values[row]
        for _ in range(MOST_CHANGES):
            pairs = _pairs(query, choices)
            if not len(pairs):
                break
            found = np.asarray(value_of(pairs), float)
            best = first_largest(found)
            if not found[best] > here + tie_width(np.append(found, here)):
                break
            query = climb(value_of, pairs[best], choices)
            here = float(value_of(query)[0])
        finished.append(query)
    return stack(finished)


def _pairs(query: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Return all changes of two variables of one query; none where there are too many."""
    columns, options = (part[0] for part in list_moves(np.asarray(query.mask), choices))
    new = options != np.asarray(query.value)[0, columns]
    columns, options = columns[new], options[new]
    first, second = np.triu_indices(len(columns), 1)
    apart = columns[first] != columns[second]
    first, second = first[apart], second[apart]
    if len(first) > MOST_PAIRS:
        return query[:0]
    value = np.repeat(np.asarray(query.value), len(first), axis=0)
    rows = np.arange(len(first))
    value[rows, columns[first]], value[rows, columns[second]] = options[first], options[second]
    return Queries(np.repeat(np.asarray(query.mask), len(first), axis=0), value)


MOST_LISTED = 2**14  # combinations of all sets together that are enumerated
SOBOL_POINTS, MOST_SOBOL_POINTS, FEWEST_SOBOL_POINTS = 64, 4_096, 8  # of a set, of all, of a set
STARTS, MOST_STARTS = 32, 2**15  # of a set that is too large to be enumerated, of all such sets


@dataclass(frozen=True, eq=False)
class Space:
    """Where interventions may lie.

    Attributes
    ----------
    problem, sets:
        The problem and the sets of it whose effects were learned.
    levels:
        {variable: values}, where a variable has finitely many; only these are proposed.
    corners:
        The vertices of what linear constraints leave of every set's box, in place of the boxes'.
    feasible:
        Function of queries that returns which may be proposed, (M,).
    """

    problem: Problem
    sets: tuple[tuple[str, ...], ...]
    levels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    corners: Queries | None = None
    feasible: OfQueries | None = None
    _kept: dict[object, "Candidates"] = field(default_factory=dict, repr=False)

    @property
    def has_corners(self) -> bool:
        """Whether the vertices of every set are known, so that they may suffice."""
        return self.feasible is None or self.corners is not None

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries may be proposed, (M,)."""
        if self.feasible is None or not len(queries):
            return np.ones(len(queries), bool)
        return np.asarray(self.feasible(queries))

    def values(self, name: str, kind: str) -> tuple[float, ...]:
        """Return the values of a variable: its "ends", those and 0 ("cut"), or all its "levels".

        A variable without levels has its ends in their place.
        """
        low, high = self.problem.domains[name]
        if name in self.levels and kind != "ends":
            return tuple(sorted({float(value) for value in self.levels[name]}))
        cut = (0.0,) if kind == "cut" and low < 0 < high else ()
        return (low, *cut, high) if high > low else (low,)

    def listed(self, kind: str) -> "Candidates":
        """Return all combinations of every set that has not too many, with their costs.

        Small sets come first until there are as many as can be enumerated; see `large`. Corners
        stand for the combinations where they are given.
        """
        return self._keep(("listed", kind), lambda: self._list(kind))

    def large(self, kind: str) -> tuple[tuple[str, ...], ...]:
        """Return the sets that have too many combinations to be enumerated."""
        if self.corners is not None:
            return ()
        sizes = [
            min(float(np.prod([float(len(self.values(name, kind))) for name in members])), 1e18)
            for members in self.sets
        ]
        totals = zip(self.sets, np.cumsum(sizes), strict=True)
        return tuple(members for members, total in totals if total > MOST_LISTED)

    def filling(self) -> "Candidates":
        """Return Sobol points of every set, at levels where there are levels, with their costs."""
        return self._keep("filling", self._fill)

    def first(self, kind: str) -> "Candidates":
        """Return starts for the sets that are too large to be enumerated, with their costs."""
        return self._keep(("first", kind), lambda: self._start(kind))

    def choices(self, kind: str, names: Collection[str] | None = None) -> list[np.ndarray]:
        """Return the values of some variables, by column; none of the others.

        names: of the variables, by default all that are manipulable.
        """
        names = self.problem.manipulable if names is None else names
        return [
            np.array(self.values(name, kind) if name in names else (), float)
            for name in self.problem.graph.nodes
        ]

    def _keep(self, what: object, make: Callable[[], Queries]) -> "Candidates":
        if what not in self._kept:
            queries = make()
            queries = queries[self.allows(queries)]
            self._kept[what] = Candidates(queries, self.problem.cost(queries), self)
        return self._kept[what]

    def _list(self, kind: str) -> Queries:
        if self.corners is not None:
            return self.corners
        large, parts = set(self.large(kind)), []
        for members in (members for members in self.sets if members not in large):
            values = product(*(self.values(name, kind) for name in members))
            parts.append((members, np.array(list(values), float)))
        return place_points(self.problem.graph.nodes, parts)

    def _fill(self) -> Queries:
        nodes, domains = self.problem.graph.nodes, self.problem.domains
        n = min(SOBOL_POINTS, MOST_SOBOL_POINTS // max(len(self.sets), 1))
        n = max(FEWEST_SOBOL_POINTS, n)
        if not self.problem.is_box:
            return fill_points(self.problem, self.sets, n)
        unit = sobol(n + 1)  # the first point is a corner
        points = spread(nodes, self.sets, domains, lambda size: unit(size)[1:], n * len(self.sets))
        return self.snap(points)

    def snap(self, queries: Queries) -> Queries:
        """Return the queries with every variable that has levels at the nearest one."""
        return _nearest(queries, self.choices("levels", self.levels))

    def _start(self, kind: str) -> Queries:
        """Return the lowest and highest combination of every large set, and ones in between."""
        sets = self.large(kind)
        n = max(2, min(STARTS, MOST_STARTS // max(len(sets), 1)))

        def unit(size: int) -> np.ndarray:
            inside = sobol(n - 1)(size)[1:] if n > 2 else np.zeros((0, size))
            return np.vstack([np.zeros(size), np.ones(size), inside])

        points = spread(self.problem.graph.nodes, sets, self.problem.domains, unit, n * len(sets))
        return _nearest(points, self.choices(kind))

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of all variables' domains, (p,); equal where one keeps its value."""
        moving = {
            name: ends for name, ends in self.problem.domains.items() if name not in self.levels
        }
        pairs = np.array([moving.get(name, (0.0, 0.0)) for name in self.problem.graph.nodes])
        return pairs[:, 0], pairs[:, 1]


def _nearest(queries: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Return the queries with every variable at the nearest of its choices, where it has some."""
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    for column, values in enumerate(choices):
        if len(values):
            nearest = np.abs(value[:, column, None] - values).argmin(axis=1)
            value[:, column] = np.where(mask[:, column], values[nearest], 0.0)
    return Queries(mask, value)


class Candidates(NamedTuple):
    """Interventions to choose from, what each costs, (M,), and the space in which they lie."""

    queries: Queries
    costs: np.ndarray
    space: Space


def find_candidates(post: Posterior, sets: tuple[tuple[str, ...], ...] | None = None) -> Candidates:
    """Return the interventions among which a posterior's problem is optimized.

    They are the vertices of all sets, and Sobol points where effects are nonlinear; of sets with
    too many vertices some. sets: those to choose from, by default all whose effects were learned.

    Raises
    ------
    DomainError
        If no intervention may be proposed.
    """
    problem, is_cut = post.problem, len(post.problem.constraints) > 0
    has_rule = problem.feasible_rule is not None
    sets = post.sets if sets is None else sets
    space = Space(
        problem,
        sets,
        problem.levels,
        vertices(problem, sets) if is_cut and not has_rule else None,
        problem.feasible if is_cut or has_rule else None,
    )
    suffice = post.distribution.response.is_affine and space.has_corners
    kind = "ends" if suffice else "levels"
    parts = [space.listed(kind), space.first(kind)]
    parts += [] if suffice else [space.filling()]
    queries = stack([part.queries for part in parts])
    if not len(queries):
        raise DomainError(nothing_left(space))
    return Candidates(queries, np.concatenate([part.costs for part in parts]), space)


def nothing_left(space: Space) -> str:
    """Return why no intervention may be proposed, for a message."""
    if space.feasible is None:
        return "there is no intervention to choose from: no set has an effect that was learned"
    return (
        "there is no intervention to choose from: `feasible` leaves none of those of "
        f"{len(space.sets)} sets; check it with problem.vertices() and problem.sobol(64)"
    )


MOST_CLIMBERS = 64  # starts that are climbed at once
IMPROVED, FEW_IMPROVED = 16, 5  # points improved by gradients; where effects are expensive
NEARBY = 1e-3  # of a domain's width: as good as the same point
Affordable = Callable[[np.ndarray], np.ndarray]


class Found(NamedTuple):
    """The best query, its acquisition value and its cost, and in words how it was found."""

    query: Queries
    value: float
    cost: float
    how: str


def find_best(
    space: Space,
    surrogate: Surrogate,
    rule: Acquisition,
    *,
    affordable: Affordable | None = None,
    tried: Queries | None = None,
    known: Queries | None = None,
) -> Found:
    """Return the query with the largest acquisition value among all sets.

    Parameters
    ----------
    space:
        Where interventions may lie.
    surrogate:
        Predicts their effects.
    rule:
        A prepared acquisition; see `optimization.analytic.prepare`.
    affordable:
        Function of costs (M,) that returns which can be paid for, (M,).
    tried:
        Interventions that were tried, from which the search starts too.
    known:
        Interventions whose effects are known exactly: others are preferred to them.

    Raises
    ------
    DomainError
        If no intervention may be proposed or paid for.
    """
    return _Search(space, surrogate, rule, affordable, known).run(tried)


@dataclass(frozen=True, eq=False)
class _Search:
    """One search: what all of its steps share."""

    space: Space
    surrogate: Surrogate
    rule: Acquisition
    affordable: Affordable | None
    known: Queries | None = None

    def run(self, tried: Queries | None) -> Found:
        kind = self.exact_kind()
        if kind is not None:
            listed, first = self.space.listed(kind), self.space.first(kind)
            is_constant = self.space.problem.cost_is_constant
            if is_constant or all(self.pays(part.costs).all() for part in (listed, first)):
                return self.enumerate(kind, listed, first)
        return self.explore(tried)

    def exact_kind(self) -> str | None:
        """Return which combinations hold the best query for sure, or None where none do."""
        at_vertices = is_affine(self.surrogate) and trait(self.rule, "at_vertices")
        if not at_vertices or not self.space.has_corners:
            return None
        problem = self.space.problem
        if problem.cost_is_constant or not trait(self.rule, "uses_costs"):
            return "ends"
        return "cut" if problem.cost_is_magnitude and self.space.corners is None else None

    def enumerate(self, kind: str, listed: Candidates, first: Candidates) -> Found:
        """Choose among all combinations; those of large sets are climbed."""
        queries, costs = listed.queries, listed.costs
        how = f"all {len(queries):,} vertices"
        if len(first.queries):
            climbed = self.leading(first.queries, self.masked(first.queries), MOST_CLIMBERS)
            if len(climbed) and not trait(self.rule, "is_one_batch"):
                climbed = climb_pairs(self.masked, climbed, self.space.choices(kind))
            queries = stack([queries, first.queries, climbed])
            costs = np.concatenate([costs, first.costs, self.space.problem.cost(climbed)])
            how = f"{how} of the smaller sets, and larger sets one variable at a time"
        return self.choose(queries, costs, self.value(queries), how)

    def explore(self, tried: Queries | None) -> Found:
        """Evaluate vertices, Sobol points and what was tried, and improve the best of them."""
        parts = [self.space.listed("levels"), self.space.first("levels"), self.space.filling()]
        queries = stack([part.queries for part in parts])
        costs = np.concatenate([part.costs for part in parts])
        if tried is not None and len(tried):
            legal = self.legal(tried)
            queries = stack([queries, legal])
            costs = np.append(costs, self.space.problem.cost(legal))
        values, how, pays = self.value(queries), f"{len(queries):,} points", self.pays(costs)
        payable = np.where(pays, values, -np.inf)
        is_done = not (payable > -np.inf).any() or self.is_flat(values[pays])
        if trait(self.rule, "is_one_batch") or is_done:
            return self.choose(queries, costs, values, how)
        improved, ways = self.refine(queries, payable)
        queries, values = stack([queries, improved]), np.append(values, self.masked(improved))
        costs = np.append(costs, self.space.problem.cost(improved))
        return self.choose(queries, costs, values, f"{how}, the best improved by {ways}")

    def refine(self, queries: Queries, values: np.ndarray) -> tuple[Queries, str]:
        """Return better queries than the best of these, and in words how they were found."""
        low, high = self.space.bounds()
        mask = np.asarray(queries.mask)
        is_line = (mask.sum(axis=1) == 1) & (mask & (high > low)).any(axis=1)
        improved, ways = [queries[:0]], []
        if is_line.any():
            most = float(values.max())
            improved.append(zoom(self.masked, queries[is_line], values[is_line], low, high, most))
            ways.append("brackets")
        program = self.surrogate.post.distribution.response.program
        is_cheap = getattr(program, "together", None) is None
        most_improved = IMPROVED if is_cheap else FEW_IMPROVED
        starts = self.leading(queries[~is_line], values[~is_line], most_improved)
        if len(starts):
            improved.append(self.improve(starts))
            ways.append("gradients")
        return stack(improved), " and ".join(ways)

    def improve(self, starts: Queries) -> Queries:
        """Move all free variables by gradients, those with levels one at a time, by turns."""
        low, high = self.space.bounds()
        size = max(len(members) for members in self.space.sets)
        reached = starts
        if (high > low).any():
            reached = ascend(self.value, self.allows, starts, low, high, size)
        if not self.space.levels:
            return reached
        climbed = climb(self.masked, reached, self.space.choices("levels", self.space.levels))
        if (high > low).any() and not np.array_equal(climbed.value, reached.value):
            return stack([reached, ascend(self.value, self.allows, climbed, low, high, size)])
        return stack([reached, climbed])

    def legal(self, tried: Queries) -> Queries:
        """Return what was tried of the sets that may be proposed, and is allowed."""
        nodes, mask = self.space.problem.graph.nodes, np.asarray(tried.mask)
        first, which = distinct_rows(mask)
        sets = {frozenset(members) for members in self.space.sets}
        named = [frozenset(np.array(nodes, object)[mask[row]]) for row in first]
        known = np.array([each in sets for each in named], bool)[which]
        kept = tried[known]
        same = (np.asarray(self.space.snap(kept).value) == np.asarray(kept.value)).all(axis=1)
        kept = kept[same]
        return kept[self.space.allows(kept)]

    def value(self, queries: Queries) -> np.ndarray:
        """Return the acquisition values (M,), -inf where a query is not legal."""
        legal, objective = self.space.allows(queries), self.space.problem.objective
        if legal.all():
            return acquisition_values(self.rule, self.surrogate, queries, objective)
        # A legal one stands for each of the others: as many are evaluated, and none is refused.
        some = queries if legal.any() else self.space.filling().queries
        first = int(np.flatnonzero(legal)[0]) if legal.any() else 0
        mask = np.where(legal[:, None], queries.mask, some.mask[first])
        value = np.where(legal[:, None], queries.value, some.value[first])
        values = acquisition_values(self.rule, self.surrogate, Queries(mask, value), objective)
        return np.where(legal, values, -np.inf)

    def pays(self, costs: np.ndarray) -> np.ndarray:
        given = self.affordable
        return np.ones(len(costs), bool) if given is None else np.asarray(given(costs), bool)

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries may be proposed and paid for, (M,)."""
        allowed = self.space.allows(queries)
        if self.affordable is None:
            return allowed
        return np.asarray(allowed & self.pays(self.space.problem.cost(queries)))

    def masked(self, queries: Queries) -> np.ndarray:
        """Return the acquisition values (M,), -inf where a query may not be proposed."""
        return np.asarray(np.where(self.allows(queries), self.value(queries), -np.inf))

    def leading(self, queries: Queries, values: np.ndarray, most: int) -> Queries:
        """Return the best queries, at most `most`, half of them the best ones of their sets."""
        usable = np.flatnonzero(values > -np.inf)
        if not len(usable):
            return queries[:0]
        order = usable[np.argsort(-_steps(comparable(self.rule, values[usable])), kind="stable")]
        which = distinct_rows(np.asarray(queries.mask)[order])[1]
        heads = order[np.sort(np.unique(which, return_index=True)[1])][: most // 2]
        rest = order[~np.isin(order, heads)][: most - len(heads)]
        return queries[np.concatenate([heads, rest])]

    def is_flat(self, values: np.ndarray) -> bool:
        """Return whether all values are equal up to rounding."""
        numbers = comparable(self.rule, values)
        if not np.isfinite(numbers).all():
            return not np.isfinite(numbers).any()
        return not np.ptp(numbers) > TIE * np.abs(numbers).max(initial=0.0)

    def choose(self, queries: Queries, costs: np.ndarray, values: np.ndarray, how: str) -> Found:
        usable = np.flatnonzero(self.pays(costs))
        if not len(usable):
            reason = "none can be paid for" if len(queries) else nothing_left(self.space)
            raise DomainError(f"{reason}; the cheapest costs {costs.min(initial=np.inf):g}")
        if self.known is not None:
            fresh = usable[~next_to(self.space.problem, queries[usable], self.known)]
            usable = fresh if len(fresh) else usable
        is_uninformed = getattr(self.surrogate, "is_uninformed", False)
        if len(usable) > 1 and self.is_flat(values[usable]) and not is_uninformed:
            message = (
                f"all {len(usable)} interventions look equally good; the first of a smallest "
                "set is taken"
            )
            warnings.warn(message, CausalBOWarning, stacklevel=8)
        best = int(usable[best_position(self.rule, values[usable])])
        return Found(queries[best], float(values[best]), float(costs[best]), how)


def next_to(problem: Problem, queries: Queries, others: Queries) -> np.ndarray:
    """Return which queries (M,) lie at some others, or so near that nothing more is learned."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    is_near = np.zeros(len(mask), bool)
    ends = [problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes]
    reach = NEARBY * np.ptp(np.array(ends), axis=1)
    for other_mask, other_value in zip(others.mask, others.value, strict=True):
        same = (mask == other_mask).all(axis=1)
        is_near |= same & (np.abs(value - other_value) <= reach).all(axis=1)
    return is_near


def _steps(values: np.ndarray) -> np.ndarray:
    """Return values in units of 1e-9 of their range: rounding does not decide their order."""
    finite = values[np.isfinite(values)]
    width = 1e-9 * np.ptp(finite) if finite.size else 0.0
    return np.asarray(np.round(values / width)) if width > 0 else np.zeros(len(values))


LEAST_GAIN_SHARE = 0.02  # of the range of outcomes: the least gain asked for in every second round


def search_beyond(
    search: Callable[..., Found], rule: Acquisition, context: Context, tried: Replicates
) -> tuple[Acquisition, Found]:
    """Return the best query by a bound that is better than the best exact outcome, and that bound.

    Parameters
    ----------
    search:
        Function of a `rule` that returns the best query by it.
    rule:
        A prepared acquisition; one without the method `widen` stays as it is.
    context:
        What it knows.
    tried:
        Exact outcomes, at least one.
    """
    widen = offered(rule, "widen")
    if widen is None:
        return rule, search(rule=rule)
    sign = sign_of(context.objective)
    best = float(sign * (sign * tried.means).max())
    unknown = ~next_to(context.surrogate.post.problem, context.candidates, tried.queries)
    among = replace(context, candidates=context.candidates[unknown])
    if context.round % 2 == 0 and not is_affine(context.surrogate):
        gain = max(LEAST_LEAD * abs(best), LEAST_GAIN_SHARE * float(np.ptp(tried.means)))
        wider: Acquisition = widen(among, best + sign * gain)
        return wider, _note_beta(rule, wider, search(rule=wider))
    found = search(rule=rule)
    if found.value > sign * best + LEAST_LEAD * abs(best):
        return rule, found
    wider = widen(among, best)
    return wider, (found if wider is rule else _note_beta(rule, wider, search(rule=wider)))


def _note_beta(rule: Acquisition, wider: Acquisition, found: Found) -> Found:
    """Return what was found, with a note on beta where the bound was widened for it."""
    before, after = (getattr(each, "beta", None) for each in (rule, wider))
    if before == after:
        return found
    reason = "no candidate promised enough more than the best outcome"
    return found._replace(how=f"{found.how}; beta {after:.3g} instead of {before:.3g}: {reason}")
