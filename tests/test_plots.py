import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import causal_bo_ppl as cb
from causal_bo_ppl.drawing import sketch

parse = cb.CausalGraph.parse


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def patches(axes, kind):
    return [patch for patch in axes.patches if isinstance(patch, kind)]


@pytest.mark.parametrize("name", ["chain", "synthetic", "funnel", "ecoli70"])
def test_picture_has_a_box_for_each_variable_and_an_arrow_for_each_edge(name):
    problem = cb.models.load(name).problem
    for axes, graph in [
        (cb.plots.draw_graph(problem.graph), problem.graph),
        (cb.plots.draw_problem(problem), problem.graph.ancestral(problem.target)),
    ]:
        assert len(patches(axes, FancyBboxPatch)) == len(graph.nodes)
        assert len(patches(axes, FancyArrowPatch)) == len(graph.directed) + len(graph.bidirected)
        axes.figure.draw_without_rendering()


def test_picture_goes_into_the_axes_it_is_given():
    figure, (left, right) = plt.subplots(1, 2)
    assert cb.plots.draw_graph(parse("X -> Y"), right) is right
    assert not left.patches and len(figure.axes) == 2


def test_dollars_in_a_name_are_not_mathematics():
    r"""As mathematics \nonsense would be an error."""
    graph = cb.CausalGraph.from_edges([(r"$\nonsense$", "Y")])
    cb.plots.draw_graph(graph).figure.draw_without_rendering()


def test_arcs_stay_on_the_page():
    """Twenty sources in one column: the arc between first and last bulges sideways."""
    names = [f"A{i:02}" for i in range(20)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names], [(names[0], names[-1])])
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    left, top, right, bottom = drawn.extent()
    [(start, control, end)] = drawn.arcs
    for t in np.linspace(0, 1, 50):
        x, y = ((1 - t) ** 2 * s + 2 * t * (1 - t) * c + t**2 * e for s, c, e in zip(start, control, end, strict=True))
        assert left < x < right and top < y < bottom


@pytest.mark.parametrize("name", ["synthetic", "healthcare", "funnel", "ecoli70"])
def test_causes_stand_left_of_effects_and_boxes_do_not_overlap(name):
    graph = cb.models.load(name).problem.graph
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    assert all(drawn.centres[cause][0] < drawn.centres[effect][0] for cause, effect in graph.directed)
    places = np.array(list(drawn.centres.values()))
    apart = np.abs(places[:, None] - places[None])
    same_column = (apart[..., 0] < 1) & ~np.eye(len(places), dtype=bool)
    assert (apart[..., 1][same_column] > 30).all()
