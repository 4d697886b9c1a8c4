"""Through which formula is a c-factor learned? y0's answer if it is right, else our own derivation, else its hedge.

No formula leaves this room unverified: it must equal Q[C] exactly, in random models over a finite field.
"""

from typing import NamedTuple

from y0.dsl import Expression, One

from causal_bo_ppl.errors import UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.answers import ask
from causal_bo_ppl.identification.exactness import is_exact_factor
from causal_bo_ppl.identification.expressions import (
    arranged,
    factors_of,
    free_names,
    joint,
    product,
    to_text,
    total,
)
from causal_bo_ppl.identification.potentials import evaluate
from causal_bo_ppl.identification.reals import Potential
from causal_bo_ppl.identification.recursion import HedgeFound, derive
from causal_bo_ppl.identification.reduction import Names, surroundings
from causal_bo_ppl.identification.trials import Trials


class Factor(NamedTuple):
    """Q[district]: its expression and route, or the two districts of its hedge.

    potentials: the value of every factor of the expression in every trial.
    """

    district: Names
    expression: Expression
    route: str
    hedge: tuple[Names, ...]
    potentials: dict[Expression, Potential]


def identify_factor(graph: CausalGraph, district: Names, trials: Trials) -> Factor:
    """Ask y0 about Q[district] in the part of the graph that matters, and check what it says there."""
    relevant = surroundings(graph, district)
    answer = ask(relevant, district, graph.parents(district))
    if answer is not None:
        answer = _closed(answer, graph, district)
        if is_exact_factor(answer, relevant, district):
            return _verified(answer, "y0", graph, district, trials)
    try:
        derived = _closed(derive(relevant, district), graph, district)
    except HedgeFound as found:
        if answer is not None:
            raise UnverifiedEstimand(
                f"y0 and the hedge criterion contradict each other on {listed(district)}"
            ) from None
        return Factor(district, One(), "none", found.districts, {})
    if not is_exact_factor(derived, relevant, district):
        raise UnverifiedEstimand(
            f"no formula for the district {listed(district)} could be verified; the last one was {to_text(derived)}"
        )
    return _verified(derived, "rederived", graph, district, trials)


def _closed(expression: Expression, graph: CausalGraph, district: Names) -> Expression:
    """Average over free variables on which the factor does not depend: constant in truth, not under an estimate."""
    dangling = free_names(expression) - {*district, *graph.parents(district)}
    if dangling:
        expression = total(product([expression, joint(graph.require(dangling))]), dangling)
    return arranged(expression, graph)


def _verified(expression: Expression, route: str, graph: CausalGraph, district: Names, trials: Trials) -> Factor:
    places = {name: graph.index(name) for name in graph.nodes}
    potentials = {part: evaluate(part, trials.moments, places) for part in factors_of(expression)}
    return Factor(district, expression, route, (), potentials)
