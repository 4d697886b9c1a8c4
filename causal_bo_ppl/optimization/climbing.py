"""How is the best of very many combinations found? One variable at a time, from many starts.

Every variable has a few values to choose from: the ends of its domain, or the levels of a list.
From each start all changes of one variable are evaluated, those of all starts in one batch, and the
best change of each start is made while it improves. From the best of the results all changes of two
variables are tried as well.
"""

from collections.abc import Callable, Sequence

import numpy as np

from causal_bo_ppl.numerics import TIE, TIE_ROUNDING, first_largest, tie_width
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack

STEPS = 200  # changes from one start at most
FINAL = 4  # starts from which pairs are tried
MOST_PAIRS = 8_192  # changes of two variables at most, from one start
Worth = Callable[[Queries], np.ndarray]


def list_moves(mask: np.ndarray, choices: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all changes of one variable of K queries: columns (K, A) and new values (K, A).

    choices: the values of each variable, by column; none where it keeps its value. Rows with fewer
    changes are filled up with their first one, or with none where they have none (column -1).
    """
    each = [
        [
            (column, value)
            for column in np.flatnonzero(row).tolist()
            for value in choices[column].tolist()
        ]
        for row in mask
    ]
    most = max((len(moves) for moves in each), default=0)
    filled = [moves + (moves[:1] or [(-1, 0.0)]) * (most - len(moves)) for moves in each]
    columns = np.array([[column for column, _ in moves] for moves in filled], int)
    values = np.array([[value for _, value in moves] for moves in filled], float)
    return columns.reshape(len(mask), most), values.reshape(len(mask), most)


def climb(worth: Worth, starts: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Return queries that no change of one variable improves, one for each of K starts.

    Parameters
    ----------
    worth:
        Function of queries that returns the worth of each, (M,); -inf where it may not be proposed.
    starts:
        K queries.
    choices:
        The values of each variable, by column; none where it keeps its value.
    """
    mask, value = np.asarray(starts.mask), np.array(starts.value)
    columns, options = list_moves(mask, choices)
    if not columns.size:
        return starts
    here = np.asarray(worth(starts), float)
    for _ in range(STEPS):
        changed = _change(value, columns, options)
        found = np.asarray(worth(Queries(np.repeat(mask, columns.shape[1], axis=0), changed)))
        found = found.reshape(columns.shape)
        best = _first_largest_each(found)
        rows = np.arange(len(best))
        is_better = found[rows, best] > here + tie_width(np.append(found, here))
        if not is_better.any():
            break
        moved = changed.reshape(*columns.shape, -1)[rows, best]
        value = np.where(is_better[:, None], moved, value)
        here = np.where(is_better, found[rows, best], here)
    return Queries(mask, value)


def _first_largest_each(found: np.ndarray) -> np.ndarray:
    """Return the place of the largest number of each row (K, A), the first of equal ones."""
    high = found.max(axis=1, keepdims=True)
    low = np.where(np.isfinite(found), found, np.inf).min(axis=1, keepdims=True)
    real = np.isfinite(high) & np.isfinite(low)
    high, low = np.where(real, high, 0.0), np.where(real, low, 0.0)
    width = TIE * (high - low) + TIE_ROUNDING * np.maximum(np.abs(high), np.abs(low))
    return np.asarray((found >= found.max(axis=1, keepdims=True) - width).argmax(axis=1))


def _change(value: np.ndarray, columns: np.ndarray, options: np.ndarray) -> np.ndarray:
    """Return the values (K A, p) after each change of one variable."""
    changed = np.repeat(value, columns.shape[1], axis=0)
    rows, flat = np.arange(len(changed)), columns.reshape(-1)
    real = flat >= 0
    changed[rows[real], flat[real]] = options.reshape(-1)[real]
    return changed


def climb_pairs(worth: Worth, starts: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Climb from all starts, then from the best results by pairs, until no pair improves them."""
    reached = climb(worth, starts, choices)
    worths = np.asarray(worth(reached), float)
    kept = np.argsort(-_rounded(worths), kind="stable")[:FINAL]
    finished = [reached]
    for row in kept:
        here, value = reached[row], worths[row]
        for _ in range(STEPS):
            pairs = _pairs(here, choices)
            if not len(pairs):
                break
            found = np.asarray(worth(pairs), float)
            best = first_largest(found)
            if not found[best] > value + tie_width(np.append(found, value)):
                break
            here = climb(worth, pairs[best], choices)
            value = float(worth(here)[0])
        finished.append(here)
    return stack(finished)


def _rounded(worths: np.ndarray) -> np.ndarray:
    """Return worths that are the same for numbers which differ by rounding only."""
    return np.asarray(np.round(worths / max(tie_width(worths), np.finfo(float).tiny)))


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
