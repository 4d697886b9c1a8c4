"""Which interventions fill the domains, and which are looked at where none are named?

Grids, Sobol points and vertices of every set, as one batch.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import ExplorationError
from causal_bo_ppl.problem.queries import Queries

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Domains = Mapping[str, tuple[float, float]]
MOST_ROWS = 1_000_000
MOST, MOST_ANCHORS = 256, 4_096  # vertices, and anchors, where no query is named


def spread(
    nodes: Sequence[str], sets: Sequence[tuple[str, ...]], domains: Domains, unit: Unit, rows: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set; rows follow the sets.

    rows: how many the sets come to, checked before anything is made.
    """
    if rows > MOST_ROWS:
        raise ExplorationError(
            f"this design has {rows:,} interventions over {len(sets):,} sets, more than "
            f"{MOST_ROWS:,}; ask for fewer points or explore fewer or smaller sets"
        )
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    column = {name: position for position, name in enumerate(nodes)}
    total = sum(len(points[len(members)]) for members in sets)
    mask, value, start = np.zeros((total, len(nodes)), bool), np.zeros((total, len(nodes))), 0
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        cube = points[len(members)]
        where = np.ix_(range(start, start + len(cube)), [column[name] for name in members])
        mask[where], value[where] = True, between(low, high, cube)
        start += len(cube)
    return Queries(mask, value)


def between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate from both ends.

    Shares 0 and 1 give the bounds to the last bit, and rounding never leads outside.
    """
    return np.asarray(np.clip(low * (1 - share) + high * share, low, high))


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def simplex() -> Unit:
    """Return the design of the lowest corner and its d neighbours.

    A function that is affine in the values is determined by its values at these d + 1 points.
    """
    return lambda size: np.vstack([np.zeros(size), np.eye(size)])


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    from scipy.stats import qmc

    return lambda size: qmc.Sobol(size, scramble=False).random_base2(max(n - 1, 0).bit_length())[:n]


def vertices(problem: "Problem", sets: tuple[tuple[str, ...], ...]) -> Queries:
    """Return every corner of the box of each of these sets, set after set.

    A set of d variables has 2^d corners; more than a million in all are refused.
    """
    rows = sum(2 ** len(members) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, lattice(2), rows)


def default_vertices(
    problem: "Problem",
    sets: tuple[tuple[str, ...], ...],
    queries: Queries | None,
    most: int = MOST,
) -> Queries:
    """Return the queries that were given, checked, or else vertices of all sets.

    Of more than `most` vertices, `most` that are evenly spaced in their order are taken.
    """
    if queries is not None:
        return problem.require(queries)
    corners = vertices(problem, sets)
    if len(corners) <= most:
        return corners
    return corners[np.unique(np.linspace(0, len(corners) - 1, most).round().astype(int))]


def affine_anchors(
    problem: "Problem", sets: tuple[tuple[str, ...], ...], queries: Queries | None
) -> Queries:
    """Return the queries that were given, checked, or else d + 1 vertices of each set.

    d is the number of variables of the set. Effects that are affine in the values of a set are
    determined by those at these vertices.
    """
    if queries is not None:
        return problem.require(queries)
    rows = sum(len(members) + 1 for members in sets)
    if rows > MOST_ANCHORS:
        raise ExplorationError(
            f"{len(sets):,} sets have {rows:,} such vertices, more than {MOST_ANCHORS:,}; "
            "name the queries you mean"
        )
    return spread(problem.graph.nodes, sets, problem.domains, simplex(), rows)
