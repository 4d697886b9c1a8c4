import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import causal_bo_ppl as cb
from causal_bo_ppl.graph.layout import sketch

parse = cb.CausalGraph.parse


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def patches(axes, kind):
    return [patch for patch in axes.patches if isinstance(patch, kind)]


@pytest.mark.parametrize(
    "name", ["chain", "synthetic", "funnel", pytest.param("ecoli70", marks=pytest.mark.heavy)]
)
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
    axes.figure.draw_without_rendering()


def test_hedge_is_marked_in_the_picture_of_an_effect():
    found = cb.identify(parse("X -> M -> Y; X <-> M"), "Y", ["X"])["X"]
    axes = cb.plots.draw_identification(found)
    assert axes.get_title() == "P(Y | do(X)): not identifiable"
    assert "hedge (confounded)" in [text.get_text() for text in axes.get_legend().get_texts()]
    learned = cb.plots.draw_identification(cb.identify(found.graph, "Y", ["M"])["M"])
    assert "hedge (confounded)" not in [
        text.get_text() for text in learned.get_legend().get_texts()
    ]


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
    with pytest.raises(cb.DataError, match="the rows are of X, Z, Y, the effect is on W, X, Z, Y"):
        cb.plots.draw_effect(other, data)
    with pytest.raises(cb.DomainError, match="a set of one variable"):
        cb.plots.draw_effect(ids["X", "Z"], data)


def test_arc_between_boxes_of_one_column_stays_clear_of_both():
    drawn = sketch(("A", "B", "Y"), (("A", "Y"), ("B", "Y")), (("A", "B"),))
    [(start, control, end)] = drawn.arcs
    edge = drawn.centres["A"][0] - drawn.width / 2
    assert start[0] == end[0] == edge and control[0] < edge


@pytest.fixture(scope="module")
def chain_run():
    return cb.optimize(cb.models.load("chain"), rounds=4, observations=30, update="target", key=0)


def test_posterior_is_drawn_with_a_bar_for_every_coordinate(chain_run):
    post = chain_run.surrogate.post
    axes = cb.plots.draw_posterior(post, level=0.5)
    assert [text.get_text() for text in axes.get_yticklabels()] == list(post.names)
    [bars] = axes.collections
    half = np.array([(right - left) / 2 for (left, _), (right, _) in bars.get_segments()])
    np.testing.assert_allclose(half, 0.6744898 * post.sd, rtol=1e-6)
    with pytest.raises(cb.DomainError, match="level must lie between 0 and 1, got 90"):
        cb.plots.draw_posterior(post, level=90)


def test_response_is_drawn_over_its_domain_before_and_after_experiments(chain_run):
    system = cb.models.load("chain")
    before = cb.plots.draw_response(chain_run.surrogate.post, "Z", truth=system.effect)
    after = cb.plots.draw_response(chain_run.surrogate, "Z")
    (*_, mean, truth), band = before.lines, before.collections[0]
    np.testing.assert_allclose(truth.get_ydata(), -1.3 * np.asarray(truth.get_xdata()), rtol=1e-9)
    assert mean.get_xdata()[[0, -1]].tolist() == [-5.0, 5.0] and before.get_xlabel() == "do(Z)"
    heights = [
        np.ptp(axes.collections[0].get_paths()[0].vertices[:, 1]) for axes in (before, after)
    ]
    assert heights[1] < heights[0] and band is not None
    with pytest.raises(cb.DomainError, match="'Y' may not be set; choose one of X, Z"):
        cb.plots.draw_response(chain_run.surrogate, "Y")


def test_run_is_drawn_with_its_outcomes_and_the_truth(chain_run):
    axes = cb.plots.draw_run(chain_run)
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [
        "best so far: mean and 90% interval",
        "outcome, Z = 5 (4)",
        "best so far: true effect",
        "true optimum",
    ]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), chain_run.trace["outcome"])
    assert axes.lines[3].get_ydata()[0] == -6.5
    axes.figure.draw_without_rendering()


def test_coverage_says_how_many_intervals_hold_the_truth():
    ends = np.array([[0.0, 1.0], [0.4, 2.0], [0.6, 3.0], [0.7, 0.9]])
    axes = cb.plots.draw_coverage({"ours": ends, "theirs": ends + 5}, 0.5)
    texts = [text.get_text() for text in axes.get_xticklabels()]
    assert texts == ["ours\n50% of 4 hold the truth", "theirs\n0% of 4 hold the truth"]
    with pytest.raises(cb.DataError, match=r"need the shape \(n, 2\), got \(3,\)"):
        cb.plots.draw_coverage({"odd": np.zeros(3)}, 0.0)
