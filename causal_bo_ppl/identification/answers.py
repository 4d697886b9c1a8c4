"""What does y0 say? Its ID algorithm behind aliases, so that any name works and no neighbour's error gets out."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock

import networkx as nx
from y0.algorithm.identify import identify_outcomes
from y0.dsl import Expression, Variable
from y0.graph import NxMixedGraph

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.expressions import arranged
from causal_bo_ppl.identification.reduction import Names

LOCK = RLock()
Places = tuple[int, ...]
Pairs = tuple[Places, ...]


@contextmanager
def in_order() -> Iterator[None]:
    """Let y0 sort by the numbers of the aliases: it sorts in the order of a set otherwise, and its formulas follow."""

    def by_number(graph: NxMixedGraph) -> Iterable[Variable]:
        found: Iterable[Variable] = nx.lexicographical_topological_sort(graph.directed, key=lambda v: int(v.name[1:]))
        return found

    with LOCK:
        original = NxMixedGraph.topological_sort
        NxMixedGraph.topological_sort = by_number
        try:
            yield
        finally:
            NxMixedGraph.topological_sort = original


def ask(graph: CausalGraph, outcomes: Names, intervened: Names) -> Expression | None:
    """P(outcomes | do(intervened)) by y0, in the graph's own names; None when y0 finds a hedge."""

    def places(names: Names) -> tuple[int, ...]:
        return tuple(graph.index(name) for name in names)

    directed, bidirected = (tuple(places(edge) for edge in edges) for edges in (graph.directed, graph.bidirected))
    found = _ask(len(graph.nodes), directed, bidirected, places(outcomes), places(intervened))
    return None if found is None else arranged(found, graph, lambda alias: graph.nodes[int(alias[1:])])


@lru_cache(maxsize=4096)
def _ask(size: int, directed: Pairs, bidirected: Pairs, outcomes: Places, intervened: Places) -> Expression | None:
    """The same question about v0, v1, ...: graphs that differ in names alone are asked about once."""

    def edges(pairs: Pairs) -> list[tuple[str, str]]:
        return [(f"v{one}", f"v{other}") for one, other in pairs]

    graph = NxMixedGraph.from_str_edges(
        nodes=[f"v{place}" for place in range(size)], directed=edges(directed), undirected=edges(bidirected)
    )
    treatments, targets = ({Variable(f"v{place}") for place in places} for places in (intervened, outcomes))
    with in_order():
        return identify_outcomes(graph, treatments=treatments, outcomes=targets)
