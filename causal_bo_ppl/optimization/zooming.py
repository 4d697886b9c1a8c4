"""Where along one variable is a query worth most? Brackets around the best points, narrowed.

Sets of one variable need no gradients: between the neighbours of each of the best points the worth
is evaluated at a few more, and the bracket shrinks to the neighbours of the best of these. The
brackets of all sets are one batch of the same shape in every step, so nothing is compiled twice.
"""

from collections.abc import Callable

import numpy as np

from causal_bo_ppl.optimization.ascent import GRID
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import between, rows_of_sets

BRACKETS = 3  # of each set, around the best of its points that are better than their neighbours
INSIDE = 7  # points within a bracket
STEPS = 7  # each leaves 2 / (INSIDE + 1) of a bracket: about 1e-4 in all
Worth = Callable[[Queries], np.ndarray]


def zoom(
    worth: Worth, points: Queries, found: np.ndarray, low: np.ndarray, high: np.ndarray
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
    best = (left + right) / 2
    for _ in range(STEPS):
        shares = left[:, None] + (right - left)[:, None] * steps
        shares = np.round(shares * GRID) / GRID
        values = worth(_queries(mask, column, shares, low, high)).reshape(shares.shape)
        at = values.argmax(axis=1)
        best = shares[many, at]
        apart = (right - left) / (INSIDE + 1)
        left, right = np.maximum(best - apart, left), np.minimum(best + apart, right)
    return _queries(mask, column, best[:, None], low, high)


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
