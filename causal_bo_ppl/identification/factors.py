"""Through which formula is a c-factor learned? y0's answer if it is right, else our own derivation, else its hedge.

No formula leaves this room unverified: it must equal Q[C] in every trial model.
"""

from typing import NamedTuple

import numpy as np
from y0.dsl import Expression, One

from causal_bo_ppl.errors import UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.answers import ask
from causal_bo_ppl.identification.expressions import (
    all_names,
    factors_of,
    free_names,
    in_order,
    joint,
    product,
    to_text,
    total,
)
from causal_bo_ppl.identification.potentials import Potential, Unsound, evaluate, on_scope
from causal_bo_ppl.identification.recursion import HedgeFound, derive
from causal_bo_ppl.identification.reduction import Names, surroundings
from causal_bo_ppl.identification.trials import Trials, draw_trials, true_factor

TOLERANCE = 1e-7  # relative; a right formula is off by 1e-13 to 1e-10, a wrong one by 1e-4 and more


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
    """Ask y0 about Q[district] in the part of the graph that matters, and check what it says there.

    Paths outside that part are single edges in it: none is so long that a trial could not see it.
    """
    relevant = surroundings(graph, district)
    models = draw_trials(relevant, len(trials.weights))
    answer = ask(relevant, district, graph.parents(district))
    if answer is not None:
        answer = _closed(answer, graph, district)
        if not is_wrong(answer, relevant, district, models):
            return _verified(answer, "y0", graph, district, trials)
    try:
        derived = _closed(derive(relevant, district), graph, district)
    except HedgeFound as found:
        if answer is not None:
            raise UnverifiedEstimand(
                f"y0 and the hedge criterion contradict each other on {listed(district)}"
            ) from None
        return Factor(district, One(), "none", found.districts, {})
    if is_wrong(derived, relevant, district, models):
        raise UnverifiedEstimand(
            f"no formula for the district {listed(district)} could be verified; the last one was {to_text(derived)}"
        )
    return _verified(derived, "rederived", graph, district, trials)


def is_wrong(expression: Expression, graph: CausalGraph, district: Names, trials: Trials) -> bool:
    """Does an expression differ from Q[district] in some trial?"""
    places = {name: graph.index(name) for name in graph.nodes}
    if not all_names(expression) <= places.keys():
        return True
    try:
        found = evaluate(expression, trials.moments, places)
    except Unsound:
        return True
    return not discrepancy(found, true_factor(graph, trials, district)) <= TOLERANCE


def discrepancy(found: Potential, truth: Potential) -> float:
    """Largest relative difference of two potentials, over all trials; infinite where one is not finite.

    Equal potentials are equal densities: slopes, intercept, variance, normalization, and no dependence
    on any other variable.
    """
    scope = tuple(sorted({*found.scope, *truth.scope}))
    found, truth = on_scope(found, scope), on_scope(truth, scope)
    worst = max(
        float(np.max(np.abs(one - other), initial=0.0) / max(1.0, np.max(np.abs(other), initial=0.0)))
        if np.isfinite(one).all()
        else np.inf
        for one, other in zip(found[1:], truth[1:], strict=True)
    )
    return worst


def _closed(expression: Expression, graph: CausalGraph, district: Names) -> Expression:
    """Average over free variables on which the factor does not depend: constant in truth, not under an estimate."""
    dangling = free_names(expression) - {*district, *graph.parents(district)}
    if dangling:
        expression = total(product([expression, joint(graph.require(dangling))]), dangling)
    return in_order(expression, graph)


def _verified(expression: Expression, route: str, graph: CausalGraph, district: Names, trials: Trials) -> Factor:
    places = {name: graph.index(name) for name in graph.nodes}
    potentials = {part: evaluate(part, trials.moments, places) for part in factors_of(expression)}
    return Factor(district, expression, route, (), potentials)
