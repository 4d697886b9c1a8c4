"""Plots of theta, of responses, and of the coverage of intervals."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.drawn_texts import drawn, faults, labels, legend
from helpers.long_names import PRESSURE

import causal_bo_ppl as cb


def test_posterior_is_drawn_with_a_bar_for_every_coordinate(chain_run):
    post = chain_run.surrogate.post
    axes = cb.plots.draw_posterior(post, level=0.5)
    assert [text.get_text() for text in axes.get_yticklabels()] == list(post.names)
    [bars] = axes.collections
    half = np.array([(right - left) / 2 for (left, _), (right, _) in bars.get_segments()])
    np.testing.assert_allclose(half, 0.6744898 * post.sd, rtol=1e-6)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1, got 90"):
        cb.plots.draw_posterior(post, level=90)


def test_coordinates_in_different_units_each_have_their_own_scale(plant):
    ax = cb.plots.draw_posterior(plant)
    half = 1.6448536 * plant.sd
    [bars] = ax.collections
    ends = np.array([[left, right] for (left, _), (right, _) in bars.get_segments()])
    far = np.abs(plant.mean) + half
    expected = np.stack([plant.mean - half, plant.mean + half], axis=1) / far[:, None]
    np.testing.assert_allclose(ends, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.abs(ends).max(axis=1), 1.0)
    row = list(plant.names).index(f"a[{PRESSURE}]")
    mean = plant.mean[row]
    assert ax.texts[row].get_text().startswith(f"{mean:.3g}  [{mean - half[row]:.3g}, ")
    shared = cb.plots.draw_posterior(plant, scale="shared")
    [bars] = shared.collections
    assert bars.get_segments()[row][0][0] == pytest.approx(mean - half[row]) and not shared.texts
    with pytest.raises(cb.errors.ArgumentError, match="unknown scale 'log'.*shared"):
        cb.plots.draw_posterior(plant, scale="log")


def test_coordinates_of_one_size_share_an_axis():
    system = cb.models.load("chain")
    ax = cb.plots.draw_posterior(cb.fit(system.problem, system.observe(40, 0)))
    assert not ax.texts and "own scale" not in ax.get_xlabel()
    assert ax.get_ylim() == (3.6, -0.6)


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
    with pytest.raises(cb.errors.ArgumentError, match="'Y' has no domain.* choose one of X, Z"):
        cb.plots.draw_response(chain_run.surrogate, "Y")


@pytest.mark.heavy
def test_response_shows_draws_linearization_truth_and_observations(nonlinear, toy):
    ax = cb.plots.draw_response(nonlinear, "X", truth=toy, draws=100, key=2)
    positions = drawn(ax, "posterior mean").get_xdata()
    queries = toy.problem.queries([{"X": float(position)} for position in positions])
    effects = cb.response(nonlinear)(nonlinear.draws(100, 2), queries)
    np.testing.assert_allclose(drawn(ax, "posterior mean").get_ydata(), effects.mean(axis=0))
    np.testing.assert_allclose(drawn(ax, "truth").get_ydata(), toy.effect(queries))
    mean, jacobian = cb.response(nonlinear).linearize(nonlinear.mean, queries)
    sd = np.sqrt(((jacobian @ nonlinear.covariance) * jacobian).sum(axis=1))
    np.testing.assert_allclose(
        drawn(ax, "linearized in theta").get_ydata(), mean - 1.6448536 * sd, rtol=1e-6
    )
    [ticks] = [each for each in ax.collections if each.get_label() == "observed values"]
    marked = sorted(path.vertices[0, 0] for path in ticks.get_paths())
    np.testing.assert_allclose(marked, np.sort(nonlinear.data.column("X")))
    assert (
        "beyond the observations" in labels(ax) and ax.get_title() == "conjugate, 60 observations"
    )
    assert faults(ax) == []


@pytest.mark.heavy
def test_response_of_a_set_is_drawn_along_one_of_its_variables(three):
    ax = cb.plots.draw_response(three, "Z", fixed={"X": 1.0}, draws=50)
    assert ax.get_xlabel() == "do(Z [mg/l], X = 1)"
    positions = drawn(ax, "posterior mean").get_xdata()
    queries = three.problem.queries([{"X": 1.0, "Z": float(position)} for position in positions])
    effects = cb.response(three)(three.draws(50, 0), queries)
    np.testing.assert_allclose(drawn(ax, "posterior mean").get_ydata(), effects.mean(axis=0))
    with pytest.raises(cb.errors.ArgumentError, match="'X' .* is fixed; choose one of Z"):
        cb.plots.draw_response(three, "X", fixed={"X": 1.0})


@pytest.mark.heavy
def test_axes_with_a_shared_range_show_all_observations_and_means(linear, nonlinear):
    figure, (left, right) = plt.subplots(1, 2, sharey=True)
    cb.plots.draw_response(linear, "Z", left, draws=50)
    alone = left.get_ylim()
    cb.plots.draw_response(nonlinear, "Z", right, draws=50)
    assert left.get_ylim()[0] <= alone[0] and left.get_ylim()[1] >= alone[1]
    seen = np.append(nonlinear.data.outcomes, drawn(right, "posterior mean").get_ydata())
    assert right.get_ylim()[0] < seen.min() and seen.max() < right.get_ylim()[1]
    assert len(figure.axes) == 2


def test_coverage_counts_the_intervals_that_cover_the_truth():
    ends = np.array([[0.0, 1.0], [0.4, 2.0], [0.6, 3.0], [0.7, 0.9]])
    axes = cb.plots.draw_coverage({"ours": ends, "theirs": ends + 5}, 0.5)
    texts = [text.get_text() for text in axes.get_xticklabels()]
    assert texts == ["ours\n50% of 4 cover the truth", "theirs\n0% of 4 cover the truth"]
    with pytest.raises(cb.errors.ArgumentError, match=r"need the shape \(n, 2\), got \(3,\)"):
        cb.plots.draw_coverage({"odd": np.zeros(3)}, 0.0)


def test_names_of_intervals_do_not_lie_on_each_other():
    ends = np.sort(np.random.default_rng(0).normal(size=(30, 2)), axis=1)
    names = ["ours, with the long name of a method", "theirs", "a third way of doing all of it"]
    ax = cb.plots.draw_coverage(dict.fromkeys(names, ends), 0.2)
    assert faults(ax) == []
    assert legend(ax) == ["truth, 0.2", "interval covers it", "interval misses it"]
