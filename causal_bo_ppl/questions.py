"""Which interventions are looked at, where the analyst names none?"""

import numpy as np

from causal_bo_ppl.designs import lattice, spread
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries

MOST = 256


def choose(problem: Problem, sets: tuple[tuple[str, ...], ...], queries: Queries | None, most: int = MOST) -> Queries:
    """The queries given, or vertices of all sets; of more than `most` vertices evenly chosen ones."""
    if queries is not None:
        return problem.require(queries)
    rows = sum(2 ** len(members) for members in sets)
    found = spread(problem.graph.nodes, sets, problem.domains, lattice(2), rows)
    if len(found) <= most:
        return found
    return found[np.unique(np.linspace(0, len(found) - 1, most).round().astype(int))]


def labels(problem: Problem, queries: Queries) -> list[str]:
    """The interventions in words."""
    asked = problem.interventions(queries)
    return [f"do({', '.join(f'{name} = {value:.4g}' for name, value in each.items())})" for each in asked]
