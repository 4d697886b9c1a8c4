"""Which interventions are looked at, where the analyst names none?"""

import numpy as np

from causal_bo_ppl.errors import ExplorationError
from causal_bo_ppl.problem.designs import lattice, simplex, spread
from causal_bo_ppl.problem.problem import Problem
from causal_bo_ppl.problem.queries import Queries

MOST, MOST_ANCHORS = 256, 4_096


def choose(
    problem: Problem, sets: tuple[tuple[str, ...], ...], queries: Queries | None, most: int = MOST
) -> Queries:
    """The queries given, or vertices of all sets; of more than `most` vertices evenly chosen ones."""
    if queries is not None:
        return problem.require(queries)
    rows = sum(2 ** len(members) for members in sets)
    found = spread(problem.graph.nodes, sets, problem.domains, lattice(2), rows)
    if len(found) <= most:
        return found
    return found[np.unique(np.linspace(0, len(found) - 1, most).round().astype(int))]


def anchors(
    problem: Problem, sets: tuple[tuple[str, ...], ...], queries: Queries | None
) -> Queries:
    """The queries given, or of every set as many vertices as determine its effects, one more than it has members."""
    if queries is not None:
        return problem.require(queries)
    rows = sum(len(members) + 1 for members in sets)
    if rows > MOST_ANCHORS:
        raise ExplorationError(
            f"{len(sets):,} sets have {rows:,} such vertices, more than {MOST_ANCHORS:,}; name the queries you mean"
        )
    return spread(problem.graph.nodes, sets, problem.domains, simplex(), rows)
