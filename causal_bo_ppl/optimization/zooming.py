"""Where along one variable is a query worth most? Brackets around the best points, narrowed.

Sets of one variable need no gradients: between the neighbours of each of the best points the worth
is evaluated at a few more, and the bracket shrinks to the neighbours of the best of these. A
bracket is left where its curvature says that next to nothing can be gained, or not enough to reach
the best of all. The brackets of all sets are one batch of the same shape in every step, so nothing
is compiled twice; the first one stands for those that are left.
"""

from collections.abc import Callable

import numpy as np

from causal_bo_ppl.optimization.ascent import GRID
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import between, rows_of_sets

BRACKETS = 3  # of each set, around the best of its points that are better than their neighbours
INSIDE = 7  # points within a bracket
STEPS = 7  # each leaves 2 / (INSIDE + 1) of a bracket: about 1e-4 in all
NOTHING = 1e-10  # of the worth: a bracket in which less can be gained is left
Worth = Callable[[Queries], np.ndarray]


def zoom(
    worth: Worth,
    points: Queries,
    found: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    least: float = -np.inf,
) -> Queries:
    """Return the best queries within brackets around the best points of every set.

    Parameters
    ----------
    worth:
        Function of queries that returns the worth of each, (M,); -inf where it may not be proposed.
    points, found:
        Queries that set one variable each, and their worths, (M,).
    low, high:
        Ends of all variables' domains, (p,).
    least:
        The worth of a query elsewhere: brackets that cannot reach it need not be narrowed.
    """
    columns, ends = [], []
    for _, rows in rows_of_sets(points):
        place = int(np.flatnonzero(np.asarray(points.mask)[rows[0]])[0])
        width = high[place] - low[place]
        inside = (np.asarray(points.value)[rows, place] - low[place]) / width
        brackets = _brackets(inside, found[rows])
        columns += [place] * len(brackets)
        ends += brackets
    if not ends:
        return points[:0]
    column, (left, right) = np.array(columns), np.array(ends).T
    mask = np.eye(len(low), dtype=bool)[column]
    steps, many = np.arange(1, INSIDE + 1) / (INSIDE + 1), np.arange(len(mask))
    best, is_open = (left + right) / 2, np.ones(len(mask), bool)
    for _ in range(STEPS):
        stands = np.where(is_open, many, np.flatnonzero(is_open)[0])
        shares = left[:, None] + (right - left)[:, None] * steps
        shares = (np.round(shares * GRID) / GRID)[stands]
        values = worth(_queries(mask[stands], column[stands], shares, low, high))
        values = values.reshape(shares.shape)
        at, apart = values.argmax(axis=1), (right - left) / (INSIDE + 1)
        best = np.where(is_open, shares[many, at], best)
        left = np.where(is_open, np.maximum(best - apart, left), left)
        right = np.where(is_open, np.minimum(best + apart, right), right)
        reached = values[many, at]
        least = max(least, float(reached.max()))
        gain = _possible_gain(values, at)
        is_open &= (gain > NOTHING * np.abs(reached)) & (reached + gain >= least)
        if not is_open.any():
            break
    return _queries(mask, column, best[:, None], low, high)


def _possible_gain(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return what may be gained between the neighbours of the best of n points, (K,).

    values: (K, n), evenly spaced. at: (K,), the places of the largest ones. Of a parabola an eighth
    of the second difference can be gained; all of it is allowed for. At an end anything can.
    """
    rows, last = np.arange(len(values)), values.shape[1] - 1
    inside = (at > 0) & (at < last)
    near, far = values[rows, np.maximum(at - 1, 0)], values[rows, np.minimum(at + 1, last)]
    with np.errstate(invalid="ignore"):
        bend = (values[rows, at] - near) + (values[rows, at] - far)
    return np.where(inside & np.isfinite(bend), bend, np.inf)


def _brackets(shares: np.ndarray, found: np.ndarray) -> list[tuple[float, float]]:
    """Return the neighbours of the best points of one set that are better than theirs."""
    order = np.argsort(shares, kind="stable")
    places, values = shares[order], found[order]
    first = np.flatnonzero(np.diff(places, prepend=-np.inf) > 0)  # each place once
    places, values = places[first], np.maximum.reduceat(values, first)
    if len(places) < 2:
        return []
    padded = np.concatenate([[-np.inf], values, [-np.inf]])
    peaks = np.flatnonzero((values >= padded[:-2]) & (values >= padded[2:]) & (values > -np.inf))
    chosen = peaks[np.argsort(-values[peaks], kind="stable")][:BRACKETS]
    ends = [
        (float(places[max(at - 1, 0)]), float(places[min(at + 1, len(places) - 1)]))
        for at in chosen.tolist()
    ]
    return ends + ends[:1] * (BRACKETS - len(ends))  # always as many: the shape is the same


def _queries(
    mask: np.ndarray, column: np.ndarray, shares: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Queries:
    """Return queries at shares (K, n) of the domain of one column each, in K n rows."""
    many = shares.shape[1]
    value = np.zeros((len(mask) * many, mask.shape[1]))
    at = between(low[column][:, None], high[column][:, None], shares).ravel()
    value[np.arange(len(value)), np.repeat(column, many)] = at
    return Queries(np.repeat(mask, many, axis=0), value)
