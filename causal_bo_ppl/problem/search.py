"""Where in the region of a set is a function of the values smallest?

Vertices, a grid and Sobol points give places to start from, the best few of every slice of levels.
From these a pattern search goes down: its steps go along the edges of all planes that bound the
region, so that it can slide along any face, and to the next levels. A region of levels alone is
searched completely. What is found is as good as the grid is fine: a basin narrower than a cell can
be missed.
"""

from collections.abc import Callable
from itertools import combinations, product
from math import comb, prod
from typing import TYPE_CHECKING

import numpy as np
from scipy.ndimage import minimum_filter

from causal_bo_ppl.errors import DomainError, listed
from causal_bo_ppl.numerics import tie_width
from causal_bo_ppl.problem.queries import MOST_ROWS, Queries, fill_set, place_points
from causal_bo_ppl.problem.regions import Region, Set

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

Loss = Callable[[np.ndarray], np.ndarray]  # of points (k, d): (k,), infinite where not legal
CELLS = 4_096  # points of the first design, and as many vertices
FILL = 256  # Sobol points of the first design
STARTS, SLICES = 6, 24  # local minima, and slices of levels, from which the search goes down
NARROWEST = 1e-9  # of a domain's width: the last step
MOST_EDGES = 600  # directions of edges


def best_of_restricted_set(
    problem: "Problem", loss: Callable[[Queries], np.ndarray], members: Set
) -> Queries:
    """Return the query on this set with the smallest loss that was found, in one row.

    loss: from legal queries to (M,) numbers. Of equally good queries the one with the lowest values
    is taken. A set of which no legal point is found is refused.
    """

    def lose(points: np.ndarray) -> np.ndarray:
        queries = place_points(problem.graph.nodes, [(members, points)])
        legal = problem.feasible(queries)
        if not legal.any():
            return np.full(len(points), np.inf)
        # Legal ones stand for the others: a batch keeps its size, so that nothing is compiled anew.
        asked = np.where(legal, np.arange(len(points)), int(np.argmax(legal)))
        return np.where(legal, loss(queries[asked]), np.inf)

    region = problem.region
    smooth = [place for place, name in enumerate(members) if name not in region.levels]
    combinations_of_levels = prod(len(region.levels.get(name, (0,))) for name in members)
    if not smooth and combinations_of_levels <= MOST_ROWS:
        points = region.grid(members, combinations_of_levels)
        losses = lose(points)
    else:
        points, losses = _descend(region, members, lose, *_find_starts(problem, members, lose))
    if not np.isfinite(losses).any():
        raise DomainError(
            f"no legal intervention on {{{listed(members)}}} was found; leave the set out"
        )
    equal = np.flatnonzero(losses <= losses.min() + tie_width(losses))
    lowest = equal[np.lexsort(points[equal].T[::-1])[0]]
    return place_points(problem.graph.nodes, [(members, points[[lowest]])])


def _find_starts(problem: "Problem", members: Set, lose: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return places to start from and their losses, of shapes (k, d) and (k,)."""
    region, points = problem.region, [fill_set(problem, members, FILL)]
    if region.count_vertices(members) <= CELLS:
        points.append(region.vertices(members))
    others = np.concatenate(points)
    places, losses = _local_minima(region, members, lose)
    places = np.concatenate([places, others])
    losses = np.concatenate([losses, lose(others)])
    steps = [place for place, name in enumerate(members) if name in region.levels]
    order = np.argsort(losses, kind="stable")
    order = order[np.isfinite(losses[order])]
    _, first = np.unique(places[order][:, steps], axis=0, return_index=True)
    chosen = np.union1d(np.sort(first)[:SLICES], np.arange(min(STARTS, len(order))))
    return places[order[chosen]], losses[order[chosen]]


def _local_minima(region: Region, members: Set, lose: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a grid that no neighbour within their slice of levels beats."""
    slices = prod(len(region.levels.get(name, (0,))) for name in members)
    free = sum(name not in region.levels for name in members)
    n = round(max(CELLS / slices, 1.0) ** (1 / max(free, 1)))
    if n < 3:
        return np.zeros((0, len(members))), np.zeros(0)
    ticks = [region.ticks(name, len(region.levels.get(name, range(n)))) for name in members]
    points = np.array(list(product(*ticks)))
    losses = lose(points)
    table = losses.reshape([len(each) for each in ticks])
    around = [1 if name in region.levels else 3 for name in members]
    is_lowest = table <= minimum_filter(table, size=around, mode="nearest")
    kept = np.flatnonzero(is_lowest.ravel() & np.isfinite(losses))
    return points[kept], losses[kept]


def _descend(
    region: Region, members: Set, lose: Loss, at: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Search downhill by patterns from some places; return the last places and their losses."""
    if not len(at):
        return at, value
    low, high = region.bounds(members)
    smooth = np.array([name not in region.levels for name in members])
    edges = _edges(region, members, smooth) * (high - low)
    start = 0.5 / max(round(CELLS ** (1 / max(int(smooth.sum()), 1))) - 1, 4)
    length = np.full(len(at), start)
    while (length > NARROWEST).any():
        along = at[:, None] + length[:, None, None] * edges
        along[:, :, smooth] = np.clip(along[:, :, smooth], low[smooth], high[smooth])
        around = np.concatenate([along, _next_levels(region, members, at)], axis=1)
        losses = lose(around.reshape(-1, len(members))).reshape(around.shape[:2])
        best, better = losses.argmin(axis=1), losses.min(axis=1) < value
        at = np.where(better[:, None], around[np.arange(len(at)), best], at)
        value = np.where(better, losses.min(axis=1), value)
        length = np.where(better, length, length / 4)
    return at, value


def _next_levels(region: Region, members: Set, at: np.ndarray) -> np.ndarray:
    """Return the places (k, n, d) with one variable moved to its next lower or higher level."""
    moved = []
    for place, name in enumerate(members):
        levels = np.asarray(region.levels.get(name, ()))
        for step in (-1, 1) if len(levels) else ():
            there = at.copy()
            where = np.searchsorted(levels, at[:, place]) + step
            there[:, place] = levels[np.clip(where, 0, len(levels) - 1)]
            moved.append(there)
    return np.stack(moved, axis=1) if moved else np.zeros((len(at), 0, at.shape[1]))


def _edges(region: Region, members: Set, smooth: np.ndarray) -> np.ndarray:
    """Return the directions (n, d) of all edges in which the bounding planes may meet, both ways.

    They are vectors in the unit cube with a largest component of 1. Where the planes are too many,
    the directions are those that exchange two values at a constant sum. Steps to all neighbours in
    a grid, for up to 3 variables, are among them.
    """
    size = int(smooth.sum())
    low, high = region.bounds(members)
    slopes = [
        np.array([each.coefficients.get(name, 0.0) for name in members]) * (high - low)
        for each in region.applying(members)
    ]
    rows = [slope[smooth] / np.abs(slope).max() for slope in slopes if slope[smooth].any()]
    planes = np.array([*np.eye(size), *rows])
    found = [*np.eye(size)]
    if size <= 3:
        found += [np.array(step, float) for step in product((-1, 0, 1), repeat=size) if any(step)]
    if size > 1 and comb(len(planes), size - 1) <= MOST_EDGES:
        for chosen in combinations(range(len(planes)), size - 1):
            _, sizes, directions = np.linalg.svd(planes[list(chosen)])
            if sizes[-1] > 1e-8 * sizes[0]:
                found.append(directions[-1])
    else:
        for row in rows:
            for one, other in combinations(np.flatnonzero(row).tolist(), 2):
                exchange = np.zeros(size)
                exchange[one], exchange[other] = row[other], -row[one]
                found.append(exchange)
    unit = np.array([each / np.abs(each).max() for each in found])
    whole = np.zeros((2 * len(unit), len(members)))
    whole[:, smooth] = np.concatenate([unit, -unit])
    return whole
