"""Through which formula is a c-factor learned, and when is there none?

The formula is y0's answer if that is right, else it is derived here; else there is a hedge. Each is
verified: it must equal Q[C] exactly, in random models over a finite field.

The derivation is Tian and Pearl's recursion. Q[C] follows from Q[T], C inside T, both districts:
with A = An(C) in G[T], A = C gives the sum over T minus C of Q[T]; A = T is a hedge; else Q[A] is
the sum over T minus A of Q[T], and the district of C in G[A] takes the place of T. Conditionals are
those of Q[A], as ratios of its sums; conditionals of P instead would make the recursion wrong.
"""

from itertools import groupby
from typing import NamedTuple

from y0.dsl import Expression, One

from causal_bo_ppl.errors import UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.finite_field import is_exact_factor
from causal_bo_ppl.identification.potentials import Potential, evaluate
from causal_bo_ppl.identification.reduction import Names, closure, district_within, surroundings
from causal_bo_ppl.identification.verification import Trials
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
    """There is no formula: of the districts (T, C), C inside T, An(C) in G[T] is all of T."""

    def __init__(self, outer: Names, inner: Names) -> None:
        super().__init__(outer, inner)
        self.districts = outer, inner


def derive(graph: CausalGraph, wanted: Names) -> Expression:
    """Return Q[wanted] as an expression in P; raise HedgeFound where there is none."""
    wanted = graph.require(wanted)  # in the order of the tuples that it is compared with
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
    """Return An(names), themselves included, in the graph over `inside`."""
    allowed = set(inside)
    return graph.require(closure(names, lambda name: allowed.intersection(graph.parents(name))))


def _blanket_before(graph: CausalGraph, name: str) -> Names:
    """Return what screens a variable from earlier ones: its district among them, with parents."""
    earlier = graph.nodes[: graph.index(name) + 1]
    district = district_within(graph, name, earlier)
    return graph.require({*district, *graph.parents(district)} - {name})


def _district_factor(marginal: Expression, causes: Names, inside: Names) -> Expression:
    """Return Q[inside], given Q[causes] as `marginal`.

    It is the product of Q[first i] / Q[first i - 1] over its members, which telescopes over runs of
    neighbours in `causes`.
    """
    ratios, start = [], 0
    for is_member, run in groupby(causes, key=set(inside).__contains__):
        stop = start + len(list(run))
        if is_member:
            below = total(marginal, causes[start:]) if start else product(())
            ratios.append(ratio(total(marginal, causes[stop:]), below))
        start = stop
    return product(ratios)


class Factor(NamedTuple):
    """The c-factor Q[district]: its expression and route, or the two districts of its hedge.

    `potentials` has the value of every factor of the expression in every trial.
    """

    district: Names
    expression: Expression
    route: str
    hedge: tuple[Names, ...]
    potentials: dict[Expression, Potential]


def identify_factor(graph: CausalGraph, district: Names, trials: Trials) -> Factor:
    """Ask y0 about Q[district] in the part of the graph that matters, and check its answer."""
    relevant = surroundings(graph, district)
    answer = ask(relevant, district, graph.parents(district))
    if answer is not None:
        answer = _closed(answer, graph, district)
        if is_exact_factor(answer, relevant, district):
            return _verified(answer, "y0", graph, district, trials)
    try:
        derived = _closed(derive(relevant, district), graph, district)
    except HedgeFound as hedge:
        if answer is not None:
            raise UnverifiedEstimand(
                f"y0 and the hedge criterion contradict each other on {listed(district)}"
            ) from None
        return Factor(district, One(), "none", hedge.districts, {})
    if not is_exact_factor(derived, relevant, district):
        raise UnverifiedEstimand(
            f"no formula for the district {listed(district)} could be verified; the last one was "
            f"{to_text(derived)}"
        )
    return _verified(derived, "rederived", graph, district, trials)


def _closed(expression: Expression, graph: CausalGraph, district: Names) -> Expression:
    """Return the expression averaged over free variables on which the factor does not depend.

    The expression is constant in these if P is the true distribution, but not if P is estimated.
    """
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
