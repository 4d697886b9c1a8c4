"""Which part of the graph does an effect depend on?

P(Y | do(s)) = sum over D minus Y of prod_j Q[C_j]. D holds Y and all that reaches it without
passing s, the C_j are the districts of G[D], and the c-factor Q[C] = P(C | do(all else)) is a
function of C and its parents (Tian and Pearl 2002). Sets with the same D have the same effect, and
the factors Q[C] are shared between sets: each is identified once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from causal_bo_ppl.graph import CausalGraph

Names = tuple[str, ...]


class Reduction(NamedTuple):
    """The part of the graph that matters under do(s), all names in graph order.

    Attributes
    ----------
    effective:
        The members of s that still affect the target.
    open:
        The set D: the target and all that reaches it without passing s.
    districts:
        The districts of the graph over `open`.
    """

    effective: Names
    open: Names
    districts: tuple[Names, ...]


def reduce_effect(graph: CausalGraph, target: str, intervened: Iterable[str]) -> Reduction:
    """Return the part of the graph that matters for the target when a set is intervened on."""
    cut = set(intervened)
    upstream = closure(
        [target], lambda name: [cause for cause in graph.parents(name) if cause not in cut]
    )
    free = graph.require(upstream)
    return Reduction(graph.parents(upstream), free, tuple(_districts(graph, free)))


def moved(graph: CausalGraph, reduction: Reduction) -> set[str]:
    """Return the free variables that the set moves: those on open paths from it."""
    inside = set(reduction.open)
    return (
        closure(reduction.effective, lambda name: inside.intersection(graph.children(name)))
        & inside
    )


def _districts(graph: CausalGraph, inside: Names) -> Iterator[Names]:
    """Yield the districts of the graph over `inside`, in the order of their first members."""
    seen: set[str] = set()
    for name in inside:
        if name not in seen:
            district = district_within(graph, name, inside)
            seen.update(district)
            yield district


def district_within(graph: CausalGraph, name: str, inside: Iterable[str]) -> Names:
    """Return the district of a variable in the graph over `inside`."""
    allowed = set(inside)
    return graph.require(closure([name], lambda other: allowed.intersection(graph.spouses(other))))


def surroundings(graph: CausalGraph, district: Names) -> CausalGraph:
    """Return the smallest graph in which Q[district] is the same question.

    It holds the district of all of G around `district`, with the parents of that one. The latent
    projection onto these adds no edge at a member: what is projected out is neither parent nor
    spouse of one.
    """
    whole = graph.district(district[0])
    return graph.project([*whole, *graph.parents(whole)])


def closure(start: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Return all names reached from `start` by steps of `onward`, those of `start` included."""
    reached = set(start)
    frontier = list(reached)
    while frontier:
        new = set(onward(frontier.pop())) - reached
        reached |= new
        frontier.extend(new)
    return reached
