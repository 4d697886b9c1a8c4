"""Plots of graphs, problems, identification and effects."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import faults, legend
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import causal_bo_ppl as cb

parse = cb.CausalGraph.parse


def patches(axes, kind):
    return [patch for patch in axes.patches if isinstance(patch, kind)]


@pytest.mark.parametrize(
    "name", ["chain", "synthetic", "funnel", pytest.param("ecoli70", marks=pytest.mark.heavy)]
)
def test_plot_has_a_box_for_each_variable_and_an_arrow_for_each_edge(name):
    problem = cb.models.load(name).problem
    for axes, graph in [
        (cb.plots.draw_graph(problem.graph), problem.graph),
        (cb.plots.draw_problem(problem), problem.graph.ancestral(problem.target)),
    ]:
        assert len(patches(axes, FancyBboxPatch)) == len(graph.nodes)
        assert len(patches(axes, FancyArrowPatch)) == len(graph.directed) + len(graph.bidirected)
        assert faults(axes) == []


def test_picture_goes_into_the_axes_it_is_given():
    figure, (left, right) = plt.subplots(1, 2)
    assert cb.plots.draw_graph(parse("X -> Y"), right) is right
    assert not left.patches and len(figure.axes) == 2


def test_dollars_in_a_name_are_not_mathematics():
    r"""As mathematics \nonsense would be an error."""
    graph = cb.CausalGraph.from_edges([(r"$\nonsense$", "Y")])
    cb.plots.draw_graph(graph).figure.draw_without_rendering()


def test_arcs_pass_behind_the_boxes_that_they_meet():
    graph = cb.models.load("funnel").problem.graph
    ax = cb.plots.draw_graph(graph)
    arrows, boxes = patches(ax, FancyArrowPatch), patches(ax, FancyBboxPatch)
    assert max(each.get_zorder() for each in arrows) < min(each.get_zorder() for each in boxes)


def test_shared_coordinates_are_a_cell_each():
    problem = cb.models.load("ecoli70", target="b1583", parents=False, max_size=3).problem
    theta = cb.identify(problem).parameters("structural", intercepts=False)
    axes = cb.plots.draw_sharing(theta)
    [mesh] = axes.collections
    np.testing.assert_array_equal(
        np.asarray(mesh.get_array()).reshape(theta.uses.shape), theta.uses
    )
    assert axes.get_title() == "blue: the set uses it; dimension 19, generic rank 13"
    assert len(axes.get_xticks()) == 19 and len(axes.get_yticks()) <= 45
    assert faults(axes) == []


def test_hedge_is_marked_in_the_picture_of_an_effect():
    found = cb.identify(parse("X -> M -> Y; X <-> M"), "Y", ["X"])["X"]
    axes = cb.plots.draw_identification(found)
    assert axes.get_title() == "P(Y | do(X)): not identifiable"
    assert "hedge (confounded)" in legend(axes)
    learned = cb.plots.draw_identification(cb.identify(found.graph, "Y", ["M"])["M"])
    assert "hedge (confounded)" not in legend(learned)


def test_the_hedge_of_a_bow_is_outlined_though_its_members_have_colours():
    bow = cb.identify(parse("W -> X -> Y; X <-> Y"), "Y", ["X"])["X"]
    ax = cb.plots.draw_identification(bow)
    wide = [box.get_linewidth() > 2 for box in patches(ax, FancyBboxPatch)]
    assert dict(zip(bow.graph.nodes, wide, strict=True)) == {"W": False, "X": True, "Y": True}
    assert "hedge (confounded)" in legend(ax)
    front = cb.identify(parse("X -> Z -> Y; X <-> Y"), "Y", ["X"])["X"]
    ax = cb.plots.draw_identification(front)
    assert all(box.get_linewidth() < 2 for box in patches(ax, FancyBboxPatch))
    assert "hedge (confounded)" not in legend(ax)


def test_effect_is_drawn_beside_the_regression():
    draws = np.random.default_rng(0)
    u, noise = draws.normal(size=400), draws.normal(size=(3, 400))
    x = u + noise[0]
    z = 0.8 * x + noise[1]
    frame = pd.DataFrame({"X": x, "Z": z, "Y": z - 2 * u + noise[2]})
    problem = cb.Problem(
        parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-1, 1), "Z": (-1, 1)}, sets=2
    )
    ids, data = cb.identify(problem), cb.Data.from_frame(problem, frame)
    axes = cb.plots.draw_effect(ids["X"], data, truth=lambda value: 0.8 * value)
    _, regression, learned, truth = axes.lines
    slopes = [np.ptp(line.get_ydata()) / np.ptp(line.get_xdata()) for line in (learned, truth)]
    assert slopes == pytest.approx([ids["X"].evaluate(np.cov(frame.T))["X"], 0.8])
    assert np.diff(regression.get_ydata()) < 0 < np.diff(learned.get_ydata())
    other = cb.identify(parse("X -> Z -> Y; X <-> Y; W -> Y"), "Y", ["X"])["X"]
    with pytest.raises(
        cb.errors.DataError, match="the data are of X, Z, Y, the graph of W, X, Z, Y"
    ):
        cb.plots.draw_effect(other, data)
    with pytest.raises(cb.errors.ArgumentError, match="a set of one variable"):
        cb.plots.draw_effect(ids["X", "Z"], data)


def test_regression_is_seen_under_an_estimand_that_equals_it():
    system = cb.models.load("chain")
    ax = cb.plots.draw_effect(cb.identify(system.problem)["Z"], system.observe(50, 0))
    _, regression, learned = ax.lines
    np.testing.assert_allclose(regression.get_ydata(), learned.get_ydata())
    assert regression.get_linewidth() > 2 * learned.get_linewidth()
    assert ax.get_title() == "effect of Z on Y, 50 observations"


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (cb.plots.draw_graph, "draw_graph needs CausalGraph, got str; a problem has its .graph"),
        (cb.plots.draw_problem, "draw_problem needs Problem, got str; a system has its .problem"),
        (cb.plots.draw_sharing, "draw_sharing needs Parameters, got str; take cb.identify"),
        (cb.plots.draw_identification, "draw_identification needs Identification, got str; take"),
        (cb.plots.to_png, "to_png needs Axes of a figure, got str"),
    ],
)
def test_plots_of_graphs_refuse_other_things(draw, message):
    with pytest.raises(cb.errors.ArgumentError, match=message):
        draw("X -> Y")
