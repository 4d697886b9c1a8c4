"""Where is a response best over the box of each set?

At a vertex, if it is affine. Otherwise a grid (or Sobol points, for many variables) finds the
basins, and a pattern search goes down the best few of every set, all sets of one size as one batch.
What it finds is as good as the grid is fine: a basin narrower than a cell can be missed.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, product

import jax
import numpy as np
from scipy.ndimage import minimum_filter

from causal_bo_ppl.numerics import tie_width
from causal_bo_ppl.problem import Problem, Queries, designs
from causal_bo_ppl.problem.queries import stack

Effect = Callable[[Queries], jax.Array | np.ndarray]
CELLS = 4_096  # points of the first design, whatever the number of variables
BASINS = 5  # of every set, from which the search goes down
NARROWEST = 1e-9  # of a domain's width: the last step


def best_vertices(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set: its best vertex under a response affine in the values.

    The signs of the slopes choose the vertex: d + 1 queries for each set, not 2^d.
    """
    sign = 1.0 if problem.objective == "min" else -1.0
    parts = []
    for size, group in groupby(problem.sets, key=len):
        sets = list(group)
        corners = np.broadcast_to(
            np.concatenate([np.zeros((1, size)), np.eye(size)]), (len(sets), size + 1, size)
        )
        losses = sign * np.asarray(effect(_place(problem, sets, corners))).reshape(
            len(sets), size + 1
        )
        # A value that does not matter stays low.
        near = np.array([[tie_width(row)] for row in losses])
        parts.append(_place(problem, sets, (losses[:, 1:] < losses[:, :1] - near).astype(float)))
    return stack(parts)


def best_of_each_set(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set, in the order of the sets: the best that was found."""
    sign = 1.0 if problem.objective == "min" else -1.0

    def loss(queries: Queries) -> np.ndarray:
        return sign * np.asarray(effect(queries))

    parts = []
    for _, group in groupby(problem.sets, key=len):  # sets come smallest first
        sets = list(group)
        starts = np.stack([_basins(problem, loss, members) for members in sets])
        places, losses = _descend(problem, loss, sets, starts)
        parts.append(_place(problem, sets, places[np.arange(len(sets)), _best(places, losses)]))
    return stack(parts)


def _best(places: np.ndarray, losses: np.ndarray) -> list[int]:
    """Return for each set the position of its best place.

    Of places (sets, n, d) whose losses (sets, n) are equal up to rounding it is the one with the
    lowest values, whatever the order in which they were found.
    """
    positions = []
    for cube, row in zip(places, losses, strict=True):
        equal = np.flatnonzero(row <= row.min() + tie_width(row))
        positions.append(int(equal[np.lexsort(cube[equal].T[::-1])[0]]))
    return positions


def _basins(
    problem: Problem, loss: Callable[[Queries], np.ndarray], members: tuple[str, ...]
) -> np.ndarray:
    """Return the best local minima of the first design, an array of shape (BASINS, d).

    They are places in the unit cube; where there are fewer minima, the best is repeated.
    """
    size = len(members)
    ticks = round(CELLS ** (1 / size))
    unit = designs.lattice(ticks) if ticks >= 5 else designs.sobol(CELLS)
    cube = unit(size)
    losses = loss(designs.spread(problem.graph.nodes, [members], problem.domains, unit, len(cube)))
    if ticks >= 5:
        table = losses.reshape([ticks] * size)
        losses = np.where(
            table <= minimum_filter(table, size=3, mode="nearest"), table, np.inf
        ).ravel()
    order = np.argsort(losses, kind="stable")[:BASINS]
    return cube[np.where(np.isfinite(losses[order]), order, order[0])]


def _descend(
    problem: Problem,
    loss: Callable[[Queries], np.ndarray],
    sets: Sequence[tuple[str, ...]],
    at: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Search downhill by patterns from places of the unit cube, of shape (sets, BASINS, d).

    Return the last places and their losses, arrays of shapes (sets, BASINS, d) and (sets, BASINS).
    """
    size = at.shape[-1]
    steps = np.array(_steps(size))
    length = np.full(at.shape[:2], 0.5 / max(round(CELLS ** (1 / size)) - 1, 4))
    value = loss(_place(problem, sets, at)).reshape(at.shape[:2])
    while (length > NARROWEST).any():
        around = np.clip(at[:, :, None] + length[:, :, None, None] * steps, 0.0, 1.0)
        losses = loss(_place(problem, sets, around)).reshape(around.shape[:3])
        best, better = losses.argmin(axis=2), losses.min(axis=2) < value
        moved = np.take_along_axis(around, best[:, :, None, None], axis=2)[:, :, 0]
        at = np.where(better[..., None], moved, at)
        value = np.where(better, losses.min(axis=2), value)
        length = np.where(better, length, length / 4)
    return at, value


def _steps(size: int) -> list[tuple[float, ...]]:
    """Return the steps to all neighbours in a grid, or along the axes for more than 3 variables."""
    if size <= 3:
        return [step for step in product((-1.0, 0.0, 1.0), repeat=size) if any(step)]
    return [tuple(row) for row in np.concatenate([np.eye(size), -np.eye(size)]).tolist()]


def _place(problem: Problem, sets: Sequence[tuple[str, ...]], cube: np.ndarray) -> Queries:
    """Return places of the unit cube, of shape (sets, ..., d), as queries, set after set."""
    shape = (cube.size // cube.shape[-1], len(problem.graph.nodes))
    mask, value = np.zeros(shape, bool), np.zeros(shape)
    low, high = (
        np.array([[problem.domains[name][end] for name in members] for members in sets])
        for end in (0, 1)
    )
    low, high = (np.expand_dims(bound, tuple(range(1, cube.ndim - 1))) for bound in (low, high))
    values = designs.between(low, high, cube).reshape(len(mask), -1)
    columns = np.repeat(
        [[problem.graph.index(name) for name in members] for members in sets],
        len(mask) // len(sets),
        axis=0,
    )
    np.put_along_axis(mask, columns, True, axis=1)
    np.put_along_axis(value, columns, values, axis=1)
    return Queries(mask, value)
