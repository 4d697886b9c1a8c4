"""Which query has the largest value of a function? Batched searches that follow the value alone.

**Gradients** (`ascend`). Coordinates are shares u of each domain's width. Gradients are differences
of the value itself, so that any surrogate and any acquisition can be followed; those of all starts
and all coordinates are one batch. The whole quasi-Newton step (BFGS) is tried first, together with
the gradient at its end. It is taken where it gains a fair part of what the slope predicts; for all
other starts, shorter ones and steps along the gradient with lengths over six decades are tried in
one more batch. Batches have the same two shapes in every step, so nothing is compiled twice.

**Brackets** (`zoom`). Between the neighbours of each of the best points the value is evaluated at a
few more, and the bracket shrinks to the neighbours of the best of these. A bracket is closed where
its curvature predicts that next to nothing can be gained, or not enough to reach the best of all.
The brackets of all sets are one batch of the same shape in every step; the first open one stands
for those that are closed.

**Combinations** (`climb`). Every variable has a few values to choose from: the ends of its domain,
or levels. From each start all changes of one variable are evaluated, those of all starts in one
batch, and the best change of each start is made while it improves. From the best of the results all
changes of two variables are tried as well.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.linalg import (
    between,
    first_largest,
    in_tie_widths,
    tie_width,
)
from causal_bo_ppl.problem.interventions import Queries, split_by_set, stack

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

    value_of: returns the value of each query, (M,). allowed: returns which queries may be proposed,
    (M,); others are never entered. starts: K queries that are allowed. low, high: the ends of all
    variables' domains, (p,); equal where a variable keeps its value. size: the largest number of
    variables that may move at once.
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

    value_of: returns the value of each query, (M,); -inf where it may not be proposed. points,
    found: queries in which one variable is free, and their values, (M,). low, high: as in `ascend`.
    least: the value of a query elsewhere; brackets that cannot reach it need not be narrowed.
    """
    starts: list[int] = []
    ends: list[tuple[float, float]] = []
    inside = coordinates(points, low, high, 1).shares()[:, 0]
    for _, members in split_by_set(points):
        brackets = _brackets(inside[members], found[members])
        starts += [int(members[0])] * len(brackets)
        ends += brackets
    if not ends:
        return points[:0]
    left, right = np.array(ends).T
    coords, rows = coordinates(points[np.array(starts)], low, high, 1), np.arange(len(starts))
    steps = np.arange(1, BRACKET_POINTS + 1) / (BRACKET_POINTS + 1)
    best, is_open = (left + right) / 2, np.ones(len(starts), bool)
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

    value_of: returns the value of each query, (M,); -inf where it may not be proposed. choices: the
    values of each variable, by column; none where it keeps its value.
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
        found = np.asarray(value_of(Queries(masks, changed))).reshape(columns.shape)
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
