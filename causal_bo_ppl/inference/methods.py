"""Which methods of inference are there, and what does each learn about a problem?"""

from functools import lru_cache

import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Identifications, Parameters, identify
from causal_bo_ppl.inference.convergence import FAILED, PASSED, UNKNOWN
from causal_bo_ppl.problem import Problem

EXACT = "exact"
METHODS = {  # and the parameters each is at home in
    "conjugate": "structural",
    "wishart": "estimand",
    "laplace": "structural",
    "nuts": "structural",
}
VERDICTS = {  # that each method can reach
    "conjugate": (EXACT,),
    "wishart": (EXACT,),
    "laplace": (PASSED, FAILED, UNKNOWN),
    "nuts": (PASSED, FAILED, UNKNOWN),
}


def identified(problem: Problem, linear: bool) -> Identifications:
    """Identify every set of a problem; computed once, however often it is fitted or read.

    With `linear`, sets whose effects only linear mechanisms identify are usable too.
    """
    found = _identified(problem)
    if not linear:
        return found
    kept = {"identifiable_only": found.identifiable_only, "linear": True}
    return Identifications(found.graph, found.target, found.values(), **kept)


@lru_cache(maxsize=16)
def _identified(problem: Problem) -> Identifications:
    return identify(problem)


def needs_linearity(problem: Problem, parameters: Parameters) -> bool:
    """Return whether some effect behind these parameters is identified by linearity only."""
    found = _identified(problem)
    return not all(found[members].identifiable for members in parameters.explored.sets)


def needed_equations(parameters: Parameters, graph: CausalGraph) -> np.ndarray:
    """(k,) whether some effect depends on a variable's equation, or on one of its district.

    graph: the target's ancestral graph, with k variables.
    """
    opened = {name for reduction in parameters.explored.reductions for name in reduction.open}
    return np.isin(graph.nodes, [name for each in opened for name in graph.district(each)])
