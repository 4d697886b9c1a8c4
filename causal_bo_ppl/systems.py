"""Where in the region of a set is a function of the values smallest?

Vertices, a grid and Sobol points give places to start from, the best few of every slice of levels.
From these a pattern search goes down: its steps go along the edges of all planes that bound the
region, so that it can slide along any face, and to the next levels. A region of levels alone is
searched completely. What is found is as good as the grid is fine: a basin narrower than a cell can
be missed.

What is a causal system whose truth is known, and which of its interventions is best?

A system has a problem, a generator of rows and exact effects. Over the region of a set an affine
response is best at a vertex. For others a grid (or Sobol points, for many variables) finds the
basins, and a pattern search goes down the best few of every set, all sets of one size as one batch.
What it finds is as good as the grid is fine: a basin narrower than a cell can be missed. Sets whose
values are restricted, by levels, constraints or a function, are searched one by one: the steps of
their search go along all planes that bound the region, and to the next levels.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby, product
from math import comb, prod
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from scipy.ndimage import minimum_filter

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, DomainError, ModelError, listed
from causal_bo_ppl.inputs import as_key, read_count, require_float64
from causal_bo_ppl.linalg import first_smallest, tie_width
from causal_bo_ppl.mechanisms.simulation import Conditionals, conditionals, simulate
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    MOST_QUERIES,
    Interventions,
    between,
    fill_set,
    lattice,
    place_points,
    sobol,
    spread,
    stack,
    vertices,
)
from causal_bo_ppl.problem.regions import Region, Set

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

Loss = Callable[[np.ndarray], np.ndarray]  # of points (k, d): (k,), infinite where not legal
REGION_POINTS = 4_096  # points of the first design, and as many vertices
FILL = 256  # Sobol points of the first design
STARTS, SLICES = 6, 24  # local minima, and slices of levels, from which the search goes down
SHORTEST_STEP = 1e-9  # of a domain's width: the last step
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
    smooth = [position for position, name in enumerate(members) if name not in region.levels]
    combinations_of_levels = prod(len(region.levels.get(name, (0,))) for name in members)
    if not smooth and combinations_of_levels <= MOST_QUERIES:
        points = region.grid(members, combinations_of_levels)
        losses = lose(points)
    else:
        points, losses = _descend_in_region(
            region, members, lose, *_find_starts(problem, members, lose)
        )
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
    if region.count_vertices(members) <= REGION_POINTS:
        points.append(region.vertices(members))
    others = np.concatenate(points)
    positions, losses = _local_minima(region, members, lose)
    positions = np.concatenate([positions, others])
    losses = np.concatenate([losses, lose(others)])
    steps = [position for position, name in enumerate(members) if name in region.levels]
    order = np.argsort(losses, kind="stable")
    order = order[np.isfinite(losses[order])]
    _, first = np.unique(positions[order][:, steps], axis=0, return_index=True)
    chosen = np.union1d(np.sort(first)[:SLICES], np.arange(min(STARTS, len(order))))
    return positions[order[chosen]], losses[order[chosen]]


def _local_minima(region: Region, members: Set, lose: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a grid that no neighbour within their slice of levels beats."""
    slices = prod(len(region.levels.get(name, (0,))) for name in members)
    free = sum(name not in region.levels for name in members)
    n = round(max(REGION_POINTS / slices, 1.0) ** (1 / max(free, 1)))
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


def _descend_in_region(
    region: Region, members: Set, lose: Loss, at: np.ndarray, value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Search downhill by patterns from some places; return the last places and their losses."""
    if not len(at):
        return at, value
    low, high = region.bounds(members)
    smooth = np.array([name not in region.levels for name in members])
    edges = _edges(region, members, smooth) * (high - low)
    start = 0.5 / max(round(REGION_POINTS ** (1 / max(int(smooth.sum()), 1))) - 1, 4)
    length = np.full(len(at), start)
    while (length > SHORTEST_STEP).any():
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
    for position, name in enumerate(members):
        levels = np.asarray(region.levels.get(name, ()))
        for step in (-1, 1) if len(levels) else ():
            there = at.copy()
            where = np.searchsorted(levels, at[:, position]) + step
            there[:, position] = levels[np.clip(where, 0, len(levels) - 1)]
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


Effect = Callable[[Queries], jax.Array | np.ndarray]
BOX_POINTS = 4_096  # points of the first design, whatever the number of variables
BASINS = 5  # of every set, from which the search goes down
SHORTEST_STEP_OF_BOX = 1e-9  # of a domain's width: the last step


class Optimum(NamedTuple):
    """The best intervention of a problem, its exact effect, and how it was found."""

    value: float
    intervention: dict[str, float]
    how: str


@dataclass(frozen=True, eq=False)
class CausalSystem:
    """A causal system with known truth.

    model: NumPyro program of the truth; every variable of the graph is a site of its name. It runs
        once for a whole batch, inside a plate: each site holds one number per row, shape (M,).
        Several threads may simulate; their programs run one after the other.
    response: returns the exact E[Y | do(...)] of a batch of legal queries, an array of shape (M,);
        `effect` calls it and checks what goes in and comes out.
    is_affine: whether the response is affine in the values of each set, so that its optimum is at
        a vertex.
    source: where the numbers come from.
    """

    name: str
    problem: Problem
    model: Callable[[], object]
    response: Callable[[Queries], jax.Array]
    is_affine: bool
    source: str

    def observe(self, n: int, key: jax.Array | int) -> Data:
        """Draw n observational rows."""
        rows = read_count("the number of rows", n, 0, DataError)
        return self._rows(self.problem.baseline().repeat(rows), key)

    def experiment(self, queries: Queries | Interventions, key: jax.Array | int) -> Data:
        """Draw one row under each intervention."""
        return self._rows(self.problem.require(queries), key)

    def _rows(self, queries: Queries, key: jax.Array | int) -> Data:
        nodes = self.problem.graph.nodes
        values = (
            simulate(self.model, nodes, queries, as_key(key))
            if len(queries)
            else np.empty((0, len(nodes)))
        )
        return Data(nodes, self.problem.target, np.asarray(values), np.asarray(queries.mask))

    def effect(self, queries: Queries | Interventions) -> np.ndarray:
        """Return the exact effects E[Y | do(...)], an array of shape (M,).

        The effect of a query that sets nothing is the observational mean.
        """
        require_float64()
        queries = self.problem.require(queries)
        raw = np.asarray(self.response(queries))
        if raw.shape != (len(queries),) or raw.dtype.kind not in "iuf":
            raise ModelError(
                f"the response of {self.name!r} has shape {raw.shape} and dtype {raw.dtype} for "
                f"{len(queries)} queries; it must return one real number for each"
            )
        effects = raw.astype(float)
        bad = np.flatnonzero(~np.isfinite(effects))
        if len(bad):
            [intervention] = self.problem.interventions(queries[bad[0]])
            raise ModelError(
                f"the response of {self.name!r} to {intervention} is {effects[bad[0]]}; "
                "it must be finite"
            )
        return effects

    def mechanisms(self, values: np.ndarray) -> Conditionals:
        """Return the true means and sds (n, p) of every variable given its causes.

        values: (n, p), in the order of the graph's nodes. Every variable must be drawn from a
        Normal; where latent causes join two, their means hold the latent causes of one draw.
        """
        return conditionals(self.model, self.problem.graph.nodes, values)

    @cached_property
    def optimum(self) -> Optimum:
        """Best intervention over all sets; of equally good ones the first in order of `sets`."""
        if self.is_affine and self.problem.feasible_rule is None:
            queries = best_vertices(self.problem, self.effect)
            region = self.problem.region
            count = sum(region.count_vertices(members) for members in self.problem.sets)
            how = f"exact, over the {count:,} vertices of {len(self.problem.sets)} sets"
        else:
            queries = best_of_each_set(self.problem, self.effect)
            how = (
                f"grid and pattern search of the exact response over {len(self.problem.sets)} sets"
            )
        effects = np.asarray(self.effect(queries))
        best = first_smallest(effects if self.problem.objective == "min" else -effects)
        return Optimum(float(effects[best]), self.problem.interventions(queries[best])[0], how)

    def __repr__(self) -> str:
        return f"CausalSystem({self.name!r}, {self.problem!r})"

    def _repr_html_(self) -> str:
        title = f"<h4>{html.escape(self.name)}</h4><p>{html.escape(self.source)}</p>"
        return title + self.problem._repr_html_()


def best_vertices(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set: its best vertex under a response affine in the values.

    The signs of the slopes choose the vertex of a box: d + 1 queries for each set, not 2^d. Of a
    set that a constraint applies to, all vertices are tried.
    """
    sign = 1.0 if problem.objective == "min" else -1.0
    parts, cut = [], {members for members in problem.sets if problem.region.applying(members)}
    for (size, is_cut), group in groupby(problem.sets, key=lambda each: (len(each), each in cut)):
        sets = list(group)
        if is_cut:
            parts += [_first_of_best(vertices(problem, (each,)), effect, sign) for each in sets]
            continue
        corners = np.broadcast_to(
            np.concatenate([np.zeros((1, size)), np.eye(size)]), (len(sets), size + 1, size)
        )
        losses = sign * np.asarray(effect(_position(problem, sets, corners))).reshape(
            len(sets), size + 1
        )
        # A value that does not matter stays low.
        near = np.array([[tie_width(row)] for row in losses])
        parts.append(_position(problem, sets, (losses[:, 1:] < losses[:, :1] - near).astype(float)))
    return stack(parts)


def best_of_each_set(problem: Problem, effect: Effect) -> Queries:
    """Return one query for each set, in the order of the sets: the best that was found."""
    sign = 1.0 if problem.objective == "min" else -1.0

    def loss(queries: Queries) -> np.ndarray:
        return sign * np.asarray(effect(queries))

    parts = []

    def kind(members: tuple[str, ...]) -> tuple[int, bool]:
        is_free = problem.feasible_rule is None and problem.region.is_plain(members)
        return len(members), is_free

    for (_, is_free), group in groupby(problem.sets, key=kind):  # sets come smallest first
        sets = list(group)
        if not is_free:
            parts += [best_of_restricted_set(problem, loss, members) for members in sets]
            continue
        starts = np.stack([_basins(problem, loss, members) for members in sets])
        positions, losses = _descend_in_box(problem, loss, sets, starts)
        parts.append(
            _position(problem, sets, positions[np.arange(len(sets)), _best(positions, losses)])
        )
    return stack(parts)


def _first_of_best(queries: Queries, effect: Effect, sign: float) -> Queries:
    """Return the query with the smallest sign * effect, the first of equally good ones."""
    return queries[first_smallest(sign * np.asarray(effect(queries)))]


def _best(positions: np.ndarray, losses: np.ndarray) -> list[int]:
    """Return for each set the index of its best point.

    Of places (sets, n, d) whose losses (sets, n) are equal up to rounding it is the one with the
    lowest values, whatever the order in which they were found.
    """
    best = []
    for cube, row in zip(positions, losses, strict=True):
        equal = np.flatnonzero(row <= row.min() + tie_width(row))
        best.append(int(equal[np.lexsort(cube[equal].T[::-1])[0]]))
    return best


def _basins(
    problem: Problem, loss: Callable[[Queries], np.ndarray], members: tuple[str, ...]
) -> np.ndarray:
    """Return the best local minima of the first design, an array of shape (BASINS, d).

    They are places in the unit cube; where there are fewer minima, the best is repeated.
    """
    size = len(members)
    ticks = round(BOX_POINTS ** (1 / size))
    unit = lattice(ticks) if ticks >= 5 else sobol(BOX_POINTS)
    cube = unit(size)
    losses = loss(spread(problem.graph.nodes, [members], problem.domains, unit, len(cube)))
    if ticks >= 5:
        table = losses.reshape([ticks] * size)
        losses = np.where(
            table <= minimum_filter(table, size=3, mode="nearest"), table, np.inf
        ).ravel()
    order = np.argsort(losses, kind="stable")[:BASINS]
    return cube[np.where(np.isfinite(losses[order]), order, order[0])]


def _descend_in_box(
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
    length = np.full(at.shape[:2], 0.5 / max(round(BOX_POINTS ** (1 / size)) - 1, 4))
    value = loss(_position(problem, sets, at)).reshape(at.shape[:2])
    while (length > SHORTEST_STEP_OF_BOX).any():
        around = np.clip(at[:, :, None] + length[:, :, None, None] * steps, 0.0, 1.0)
        losses = loss(_position(problem, sets, around)).reshape(around.shape[:3])
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


def _position(problem: Problem, sets: Sequence[tuple[str, ...]], cube: np.ndarray) -> Queries:
    """Return places of the unit cube, of shape (sets, ..., d), as queries, set after set."""
    shape = (cube.size // cube.shape[-1], len(problem.graph.nodes))
    mask, value = np.zeros(shape, bool), np.zeros(shape)
    low, high = (
        np.array([[problem.domains[name][end] for name in members] for members in sets])
        for end in (0, 1)
    )
    low, high = (np.expand_dims(bound, tuple(range(1, cube.ndim - 1))) for bound in (low, high))
    values = between(low, high, cube).reshape(len(mask), -1)
    columns = np.repeat(
        [[problem.graph.index(name) for name in members] for members in sets],
        len(mask) // len(sets),
        axis=0,
    )
    np.put_along_axis(mask, columns, True, axis=1)
    np.put_along_axis(value, columns, values, axis=1)
    return Queries(mask, value)
