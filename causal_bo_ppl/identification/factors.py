"""How is a c-factor derived, and when can it not be? Tian and Pearl's recursion in y0's expressions.

Q[C] from Q[T], C inside T, both districts: with A = An(C) in G[T], A = C gives sum over T minus C of Q[T]; A = T is
a hedge; else Q[A] = sum over T minus A of Q[T], and the district of C in G[A] takes T's place. Conditionals are those
of the distribution now at hand, ratios of sums of Q[A]: that is what makes the recursion right.

Through which formula is a c-factor learned? y0's answer if it is right, else our own derivation, else its hedge.

No formula leaves this room unverified: it must equal Q[C] exactly, in random models over a finite field.
"""

from itertools import groupby
from typing import NamedTuple

from y0.dsl import Expression, One

from causal_bo_ppl.errors import UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.finite_field import is_exact_factor
from causal_bo_ppl.identification.potentials import Potential, evaluate
from causal_bo_ppl.identification.random_models import Trials
from causal_bo_ppl.identification.reduction import Names, closure, district_within, surroundings
from causal_bo_ppl.identification.y0_adapter import (
    arranged,
    ask,
    conditional,
    factors_of,
    free_names,
    joint,
    product,
    ratio,
    to_text,
    total,
)


class HedgeFound(Exception):
    """The districts (T, C), C inside T, with An(C) in G[T] all of T: no formula exists."""

    def __init__(self, outer: Names, inner: Names) -> None:
        super().__init__(outer, inner)
        self.districts = outer, inner


def derive(graph: CausalGraph, wanted: Names) -> Expression:
    """Q[wanted] as an expression in P; raises HedgeFound."""
    wanted = graph.require(wanted)  # in this graph's order, as all that it is compared with
    inside = graph.district(wanted[0])
    factor = product(conditional(name, _blanket_before(graph, name)) for name in inside)
    while True:
        causes = ancestors_within(graph, wanted, inside)
        if causes == wanted:
            return total(factor, set(inside) - set(wanted))
        if causes == inside:
            raise HedgeFound(inside, wanted)
        marginal = total(factor, set(inside) - set(causes))
        inside = district_within(graph, wanted[0], causes)
        factor = _district_factor(marginal, causes, inside)


def ancestors_within(graph: CausalGraph, names: Names, inside: Names) -> Names:
    """An(names), themselves included, in the graph over `inside`."""
    allowed = set(inside)
    return graph.require(closure(names, lambda name: allowed.intersection(graph.parents(name))))


def _blanket_before(graph: CausalGraph, name: str) -> Names:
    """What screens a variable from all earlier ones: its district among them, and its parents."""
    earlier = graph.nodes[: graph.index(name) + 1]
    district = district_within(graph, name, earlier)
    return graph.require({*district, *graph.parents(district)} - {name})


def _district_factor(marginal: Expression, causes: Names, inside: Names) -> Expression:
    """Q[inside] from Q[causes]: products of Q[first i] / Q[first i - 1], which telescope over neighbours."""
    ratios, start = [], 0
    for is_member, run in groupby(causes, key=set(inside).__contains__):
        stop = start + len(list(run))
        if is_member:
            below = total(marginal, causes[start:]) if start else product(())
            ratios.append(ratio(total(marginal, causes[stop:]), below))
        start = stop
    return product(ratios)


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


def _verified(
    expression: Expression, route: str, graph: CausalGraph, district: Names, trials: Trials
) -> Factor:
    places = {name: graph.index(name) for name in graph.nodes}
    potentials = {part: evaluate(part, trials.moments, places) for part in factors_of(expression)}
    return Factor(district, expression, route, (), potentials)
