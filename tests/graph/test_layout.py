"""The layout of a graph: where boxes and arcs lie.

Internals: positions of boxes and arcs are compared before they are drawn.
"""

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.graph.layout import sketch


def test_arcs_stay_on_the_page():
    """Twenty sources in one column: the arc between first and last bulges sideways."""
    names = [f"A{i:02}" for i in range(20)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names], [(names[0], names[-1])])
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    left, top, right, bottom = drawn.extent()
    [(start, control, end)] = drawn.arcs
    for t in np.linspace(0, 1, 50):
        x, y = (
            (1 - t) ** 2 * s + 2 * t * (1 - t) * c + t**2 * e
            for s, c, e in zip(start, control, end, strict=True)
        )
        assert left < x < right and top < y < bottom


@pytest.mark.parametrize("name", ["synthetic", "healthcare", "funnel", "ecoli70"])
def test_causes_stand_left_of_effects_and_boxes_do_not_overlap(name):
    graph = cb.models.load(name).problem.graph
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    assert all(
        drawn.centres[cause][0] < drawn.centres[effect][0] for cause, effect in graph.directed
    )
    positions = np.array(list(drawn.centres.values()))
    apart = np.abs(positions[:, None] - positions[None])
    same_column = (apart[..., 0] < 1) & ~np.eye(len(positions), dtype=bool)
    assert (apart[..., 1][same_column] > 30).all()


def test_arc_between_boxes_of_one_column_stays_clear_of_both():
    drawn = sketch(("A", "B", "Y"), (("A", "Y"), ("B", "Y")), (("A", "B"),))
    [(start, control, end)] = drawn.arcs
    edge = drawn.centres["A"][0] - drawn.width / 2
    assert start[0] == end[0] == edge and control[0] < edge
