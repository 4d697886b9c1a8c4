"""Where do we look for the next experiment?

Vertices of all sets, where effects are affine in the values: the best confidence bound of a box
lies there. Otherwise Sobol points that fill the boxes, and their vertices.
"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import sobol, spread, vertices
from causal_bo_ppl.problem.queries import stack

FILL = 64  # Sobol points of every set, where effects bend


class Candidates(NamedTuple):
    """Interventions to choose from, and what each costs, (M,)."""

    queries: Queries
    costs: np.ndarray


def find_candidates(post: Posterior) -> Candidates:
    """Return the interventions among which a posterior's problem is optimized."""
    problem, sets = post.problem, post.sets
    queries = vertices(problem, sets)
    if not post.belief.response.is_affine:
        inside = spread(problem.graph.nodes, sets, problem.domains, sobol(FILL), FILL * len(sets))
        queries = stack([queries, inside])
    return Candidates(queries, problem.cost(queries))
