"""Which interventions are candidates? Grids, Sobol points and vertices of all sets at once.

Vertices are the default where no intervention is named. Designs hold only interventions that the
problem allows: values at levels, within constraints, and accepted by the user-defined function.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import DomainError, ExplorationError, listed
from causal_bo_ppl.problem.interventions import Queries, distinct_rows, named, stack
from causal_bo_ppl.problem.regions import Set, between, independent_points, sobol_points

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Domains = Mapping[str, tuple[float, float]]
MOST_QUERIES = 1_000_000  # of a design
POINTS_PER_SET = 129  # where vertices do not suffice
MOST_DEFAULT_VERTICES, MOST_ANCHORS = 256, 4_096  # where no query is named


def spread(
    nodes: Sequence[str], sets: Sequence[Set], domains: Domains, unit: Unit, count: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set, set after set.

    count: the number of points of all sets, checked before anything is made.
    """
    require_few(count, len(sets))
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    placed = []
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        placed.append((members, between(low, high, points[len(members)])))
    return place_points(nodes, placed)


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    return lambda size: sobol_points(size, max(n - 1, 0).bit_length())[:n]


def require_few(count: int, sets: int) -> None:
    """Refuse a design of more than a million interventions, before it is made."""
    if count > MOST_QUERIES:
        raise ExplorationError(
            f"this design has {count:,} interventions over {sets:,} sets, more than "
            f"{MOST_QUERIES:,}; ask for fewer points or explore fewer or smaller sets"
        )


def place_points(nodes: Sequence[str], parts: Sequence[tuple[Set, np.ndarray]]) -> Queries:
    """Join points (k, d) of several sets into one batch."""
    column = {name: position for position, name in enumerate(nodes)}
    shape = (sum(len(points) for _, points in parts), len(nodes))
    mask, value, start = np.zeros(shape, bool), np.zeros(shape), 0
    for members, points in parts:
        where = np.ix_(range(start, start + len(points)), [column[name] for name in members])
        mask[where], value[where] = True, points
        start += len(points)
    return named(Queries(mask, value), nodes)


def _gather(
    problem: "Problem",
    sets: Sequence[Set],
    points: Callable[[Set], np.ndarray],
    count: int,
    what: str,
) -> Queries:
    """Join points (k, d) of several sets into one batch, without those that may not be used.

    points: returns the points of a set that keep domains, levels and constraints; the user-defined
    function is asked here. count: a bound of their number, checked before they are made. what: the
    name of the points, for the error that a set without any is refused with.
    """
    require_few(count, len(sets))
    parts = [(members, points(members)) for members in sets]
    queries = place_points(problem.graph.nodes, parts)
    is_restricted = problem.feasible_rule is not None
    kept = problem.feasible(queries) if is_restricted else np.ones(len(queries), bool)
    owner = np.repeat(np.arange(len(parts)), [len(each) for _, each in parts])
    for index in np.flatnonzero(np.bincount(owner, kept, minlength=len(parts)) == 0).tolist():
        raise DomainError(_nothing_left(problem, sets[index], len(parts[index][1]), what))
    return queries if kept.all() else queries[kept]


def _nothing_left(problem: "Problem", members: Set, count: int, what: str) -> str:
    if count:
        why = f"the function `feasible` rejects all {count:,} {what} of {{{listed(members)}}}"
    else:
        constraints = "; ".join(map(str, problem.region.applying(members)))
        why = f"none of the {what} of {{{listed(members)}}} keeps the constraints ({constraints})"
    return f"{why}; take more points, others (grid, sobol or vertices), or remove the set"


def vertices(problem: "Problem", sets: tuple[Set, ...], kinks: bool = False) -> Queries:
    """Return every vertex of the region of each of these sets, set after set.

    A set of d variables has the 2^d corners of its box, where no constraint cuts them off; more
    than a million in all are refused. Of a variable with levels these are the extreme ones, unless
    a constraint makes others matter. kinks: also split every region where a value passes 0; see
    `Region.vertices`.
    """
    region = problem.region
    if not problem.is_box or kinks:
        count = sum(region.count_vertices(members, kinks) for members in sets)
        return _gather(
            problem, sets, lambda members: region.vertices(members, kinks), count, "vertices"
        )
    count = sum(2 ** len(members) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, lattice(2), count)


def grid_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return the legal points of a grid of n values per variable for each of these sets."""
    region = problem.region
    count = sum(region.count_grid(members, n) for members in sets)
    if problem.is_box:
        return spread(problem.graph.nodes, sets, problem.domains, lattice(n), count)
    return _gather(
        problem, sets, lambda members: region.grid(members, n), count, "points of the grid"
    )


def fill_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return n Sobol points of the region of each of these sets, set after set; see `Region.fill`.

    There are fewer of a set where the user-defined function rejects nearly all that were tried.
    """
    count = n * len(sets)
    if problem.is_box:
        return spread(problem.graph.nodes, sets, problem.domains, sobol(n), count)
    return _gather(
        problem, sets, lambda members: fill_set(problem, members, n), count, "Sobol points"
    )


def fill_set(problem: "Problem", members: Set, n: int) -> np.ndarray:
    """Return n Sobol points (n, d) of the region of one set, legal ones where there are any."""
    if problem.feasible_rule is None:
        return problem.region.fill(members, n)

    def keep(points: np.ndarray) -> np.ndarray:
        return problem.feasible(place_points(problem.graph.nodes, [(members, points)]))

    found = problem.region.fill(members, n, keep)
    # Where all points are rejected, `_gather` raises the error.
    return found if len(found) else problem.region.fill(members, n)


def vertices_and_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return the vertices of all sets, then n Sobol points of each of them.

    A set needs one legal point among both kinds: the user-defined function may reject all
    vertices of a set, and an optimum may then lie anywhere.
    """
    if problem.feasible_rule is None:
        return stack([vertices(problem, sets), fill_points(problem, sets, n)])
    region = problem.region

    def both(members: Set) -> np.ndarray:
        return np.concatenate([region.vertices(members), fill_set(problem, members, n)])

    count = sum(n + region.count_vertices(members) for members in sets)
    return _gather(problem, sets, both, count, "vertices and Sobol points")


def fill_boxes(problem: "Problem", sets: tuple[Set, ...]) -> Queries:
    """Return points that fill the region of each of these sets, vertices included, set after set.

    They are a grid of about 129 points; for more than three variables, and where values are
    restricted, Sobol points and vertices.
    """
    if not problem.is_box:
        return vertices_and_points(problem, sets, POINTS_PER_SET - 1)

    def unit(size: int) -> np.ndarray:
        ticks = round(POINTS_PER_SET ** (1 / max(size, 1)))
        if ticks >= 5:
            return lattice(ticks)(size)
        return np.concatenate([lattice(2)(size), sobol(POINTS_PER_SET - 1)(size)])

    count = sum(max(POINTS_PER_SET, 2 ** len(members)) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, unit, count)


def default_vertices(
    problem: "Problem",
    sets: tuple[Set, ...],
    queries: Queries | None,
    most: int = MOST_DEFAULT_VERTICES,
) -> Queries:
    """Return the queries that were given, checked, or else vertices of all sets.

    Of more than `most` vertices, `most` that are evenly spaced in their order are taken.
    """
    return problem.require(queries) if queries is not None else _some(vertices(problem, sets), most)


def default_design(
    problem: "Problem", sets: tuple[Set, ...], queries: Queries | None, most: int
) -> Queries:
    """Return the queries that were given, checked, or else vertices and points inside the boxes.

    There are at most `most` of either kind, the points inside from a Sobol sequence, as many for
    every set.
    """
    if queries is not None:
        return problem.require(queries)
    per_set = max(1, most // max(1, len(sets)))
    if not problem.is_box:
        return _some(vertices_and_points(problem, sets, per_set), 2 * most)
    inside = sobol(1 + per_set)  # the first Sobol point is a corner
    points = spread(problem.graph.nodes, sets, problem.domains, lambda size: inside(size)[1:], 0)
    return stack([_some(vertices(problem, sets), most), _some(points, most)])


def _some(queries: Queries, most: int) -> Queries:
    """Return all queries, or `most` of them that are evenly spaced in their order."""
    if len(queries) <= most:
        return queries
    return queries[np.unique(np.linspace(0, len(queries) - 1, most).round().astype(int))]


def affine_anchors(problem: "Problem", sets: tuple[Set, ...], queries: Queries | None) -> Queries:
    """Return the queries that were given, checked, or else d + 1 vertices of each set.

    d is the number of variables of the set. Effects that are affine in the values of a set are
    determined by those at these vertices. There are fewer where constraints fix a sum of values.
    """
    if queries is not None:
        return problem.require(queries)
    count = sum(len(members) + 1 for members in sets)
    if count > MOST_ANCHORS:
        raise ExplorationError(
            f"{len(sets):,} sets have {count:,} such vertices, more than {MOST_ANCHORS:,}; "
            "name the queries you mean"
        )
    if problem.is_box:

        def corners(size: int) -> np.ndarray:  # the lowest one and its d neighbours
            return np.eye(size + 1, size, -1)

        return spread(problem.graph.nodes, sets, problem.domains, corners, count)
    if problem.feasible_rule is None:
        return _gather(problem, sets, problem.region.anchors, count, "vertices")
    points = vertices_and_points(problem, sets, POINTS_PER_SET)
    return stack(_anchors_among(points[indices]) for indices in _indices_by_set(points))


def _indices_by_set(queries: Queries) -> list[np.ndarray]:
    """Return the indices of each set of a batch, sets in the order of their first queries."""
    first, which = distinct_rows(np.asarray(queries.mask))
    return [np.flatnonzero(which == position) for position in np.argsort(first, kind="stable")]


def _anchors_among(queries: Queries) -> Queries:
    columns = np.asarray(queries.mask)[0]
    return queries[independent_points(np.asarray(queries.value)[:, columns])]
