"""How is a c-factor derived, and when can it not be? Tian and Pearl's recursion in y0's expressions.

Q[C] from Q[T], C inside T, both districts: with A = An(C) in G[T], A = C gives sum over T minus C of Q[T]; A = T is
a hedge; else Q[A] = sum over T minus A of Q[T], and the district of C in G[A] takes T's place. Conditionals are those
of the distribution now at hand, ratios of sums of Q[A]: that is what makes the recursion right.
"""

from itertools import groupby

from y0.dsl import Expression

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.expressions import conditional, product, ratio, total
from causal_bo_ppl.identification.reduction import Names, closure, district_within


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
