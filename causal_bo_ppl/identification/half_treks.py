"""Which equations of a linear SEM does the covariance determine? (Foygel, Draisma and Drton 2012)

The equation of v is solved when half-treks without sided intersection lead to its parents from as many other
variables, none of them a spouse of v, and each solved already or not reached from v by a half-trek.
"""

from collections.abc import Mapping
from functools import lru_cache

import networkx as nx

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.reduction import closure


@lru_cache(maxsize=16)
def half_trek_identified(graph: CausalGraph) -> frozenset[str]:
    """Variables whose whole equation the half-trek criterion solves, for almost every model."""
    reach = {name: _half_trek_reach(graph, name) for name in graph.nodes}
    solved: set[str] = set()
    grown = True
    while grown:
        new = {name for name in graph.nodes if name not in solved and _is_solvable(graph, name, solved, reach)}
        grown, solved = bool(new), solved | new
    return frozenset(solved)


def _half_trek_reach(graph: CausalGraph, name: str) -> set[str]:
    return closure([name, *graph.spouses(name)], graph.children) - {name}


def _is_solvable(graph: CausalGraph, name: str, solved: set[str], reach: Mapping[str, set[str]]) -> bool:
    """A half-trek system without sided intersection from allowed variables to all parents: a flow of that size."""
    parents, barred = graph.parents(name), {name, *graph.spouses(name)}
    allowed = [other for other in graph.nodes if other not in barred and (other in solved or other not in reach[name])]
    flow = nx.DiGraph()
    for node in graph.nodes:
        for side in "left", "right":
            flow.add_edge((side, node, "in"), (side, node, "out"), capacity=1)
        for other in (node, *graph.spouses(node)):
            flow.add_edge(("left", node, "out"), ("right", other, "in"), capacity=1)
        for child in graph.children(node):
            flow.add_edge(("right", node, "out"), ("right", child, "in"), capacity=1)
    flow.add_edges_from((("source", ("left", other, "in")) for other in allowed), capacity=1)
    flow.add_edges_from(((("right", parent, "out"), "sink") for parent in parents), capacity=1)
    if not parents:
        return True
    return bool(allowed) and nx.maximum_flow_value(flow, "source", "sink") == len(parents)
