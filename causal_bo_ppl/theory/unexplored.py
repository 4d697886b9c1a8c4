"""What is lost by not trying every intervention set?"""

from dataclasses import replace
from typing import NamedTuple

from causal_bo_ppl.errors import ModelError, NumericalError
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.systems import CausalSystem, Optimum

ROUNDING = 1e-6  # of an optimum found by search


class Unexplored(NamedTuple):
    """value: eps_E, how much better the best of all sets is; never below 0. best, explored: the two optima."""

    value: float
    best: Optimum
    explored: Optimum


def exploration_error(system: CausalSystem) -> Unexplored:
    """eps_E = f*_all - f*_E for max, f*_E - f*_all for min: the best of all sets against that of the problem's.

    All sets come down to the minimal ones: every other has the effect of one of them. Doing nothing is no
    intervention. By exact effects, at vertices where the response is affine and else by search.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> exploration_error(cb.models.load("chain")).value
    0.0
    """
    if not isinstance(system, CausalSystem):
        raise ModelError(
            f"eps_E needs a CausalSystem, whose truth is known; got {type(system).__name__}"
        )
    asked = system.problem
    everything = Problem(
        asked.graph, asked.target, asked.objective, domains=asked.domains, sets="mis"
    )
    best, explored = replace(system, problem=everything).optimum, system.optimum
    sign = 1.0 if asked.objective == "max" else -1.0
    gained = sign * (best.value - explored.value)
    if gained < -ROUNDING * max(abs(best.value), 1.0):
        raise NumericalError(
            f"the search over all sets ended at {best.value:g}, worse than {explored.value:g} over the problem's own; "
            "it missed a basin, so eps_E is not known"
        )
    return Unexplored(max(0.0, gained), best, explored)
