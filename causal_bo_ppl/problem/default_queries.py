"""Which interventions are looked at, where the analyst names none?"""

from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import ExplorationError
from causal_bo_ppl.problem.designs import lattice, simplex, spread
from causal_bo_ppl.problem.queries import Queries

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

MOST, MOST_ANCHORS = 256, 4_096


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
