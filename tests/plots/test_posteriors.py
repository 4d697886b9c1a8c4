"""Plots of theta, of responses, of the coverage of intervals, and of chains.

Internals: bands of ranks are compared with simulations, and limits of panels lowered.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import drawn, faults, labels, legend
from helpers.long_names import PRESSURE
from helpers.sampled_posteriors import replaced
from scipy.stats import kstwobign

import causal_bo_ppl as cb
from causal_bo_ppl.plots import posteriors as posterior_plots
from causal_bo_ppl.plots.posteriors import rank_bound, rank_departures


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


@pytest.mark.heavy
def test_trace_has_a_density_and_a_trace_of_each_chain_with_the_worst_first(sampled):
    panels = cb.plots.draw_trace(sampled)
    summary = sampled.distribution.summary.sort_values("r_hat", ascending=False)
    assert panels.shape == (5, 2)
    assert [ax.get_title("left") for ax in panels[:, 0]] == list(summary.index)
    assert f"R-hat {summary['r_hat'].iloc[0]:.3f}, " in panels[0, 1].get_title("left")
    slope = sampled.distribution.chains[..., sampled.names.index("b[Z->Y]")]
    [trace] = [
        ax for ax, name in zip(panels[:, 1], summary.index, strict=True) if name == "b[Z->Y]"
    ]
    assert len(trace.lines) == 2
    np.testing.assert_array_equal(trace.lines[1].get_ydata(), slope[1])
    [posterior] = [
        ax for ax, name in zip(panels[:, 1], summary.index, strict=True) if name == "log posterior"
    ]
    np.testing.assert_array_equal(
        posterior.lines[0].get_ydata(), sampled.distribution.stats["lp"][0]
    )
    title = panels[0, 0].figure.get_suptitle()
    assert title == "2 x 100 draws: all 5 parameters, largest R-hat first"
    assert faults(panels) == []


@pytest.mark.heavy
def test_trace_marks_divergences(sampled):
    diverging = np.zeros((2, 100), bool)
    diverging[0, [10, 40]] = True
    panels = cb.plots.draw_trace(replaced(sampled, diverging=diverging))
    marks = [set(line.get_xdata()) for line in panels[0, 1].lines if line.get_marker() == "|"]
    marks += [set(each.get_offsets()[:, 0].tolist()) for each in panels[0, 1].collections]
    assert {10, 40} in marks
    assert faults(panels) == []


@pytest.mark.heavy
def test_only_the_worst_twelve_are_shown(sampled, monkeypatch):
    assert posterior_plots.MOST_PARAMETERS == 12
    monkeypatch.setattr(posterior_plots, "MOST_PARAMETERS", 3)
    panels = cb.plots.draw_rank(sampled)
    assert panels.shape == (3,)
    assert (
        panels[0].figure.get_suptitle()
        == "2 x 100 draws: the worst 3 of 5 parameters, largest R-hat first"
    )


@pytest.mark.heavy
def test_rank_has_a_curve_for_each_chain_that_starts_and_ends_at_zero(sampled):
    panels = cb.plots.draw_rank(sampled)
    for ax in panels:
        *chains, zero = ax.lines
        assert len(chains) == 2 and list(zero.get_ydata()) == [0, 0]
        assert all(
            abs(line.get_ydata()[-1]) < 0.02 and np.abs(line.get_ydata()).max() < 0.5
            for line in chains
        )
    worst = sampled.distribution.summary["r_hat"].idxmax()
    assert (
        panels[0].get_title() == f"{worst}\nR-hat {sampled.distribution.summary['r_hat'].max():.3f}"
    )
    assert faults(panels) == []


@pytest.mark.heavy
def test_chains_that_disagree_have_large_ranks(sampled):
    moved = sampled.distribution.psi + np.array([0.0, 8.0])[:, None, None]
    ax = cb.plots.draw_rank(replaced(sampled, psi=moved))[0]
    assert max(np.abs(line.get_ydata()).max() for line in ax.lines) > 0.4
    assert "R-hat 1.0" not in ax.get_title()


@pytest.mark.heavy
def test_ranks_are_thinned_by_the_effective_sample_size():
    def thinned(ess, draws=1_000):
        summary = pd.DataFrame({"ess_bulk": [ess, 9_999.0], "ess_tail": [9_999.0, 9_999.0]})
        return posterior_plots._thinning(
            posterior_plots.Sampled(np.zeros((4, draws, 2)), {}, summary, 2)
        )

    assert [thinned(ess) for ess in (6_000.0, 1_900.0, 3.0, np.nan)] == [1, 3, 10, 1]
    assert thinned(10.0, draws=50) == 1


@pytest.mark.heavy
def test_ranks_are_those_of_the_thinned_draws(sampled, monkeypatch):
    monkeypatch.setattr(posterior_plots, "_thinning", lambda *_: 5)
    ax = cb.plots.draw_rank(sampled)[0]
    name = ax.get_title().split("\n")[0]
    column = list(sampled.distribution.summary.index).index(name)
    draws = np.concatenate(
        [sampled.distribution.chains, sampled.distribution.stats["lp"][..., None]], axis=-1
    )
    expected = posterior_plots.rank_departures(draws[:, ::5, column : column + 1])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), expected[1, :, 0])
    assert len(ax.lines[1].get_xdata()) == 41 and ax.get_legend() is None
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == [
        "99 % band",
        "chain 0",
        "chain 1",
    ]


@pytest.mark.heavy
def test_energy_shows_every_chain_beside_the_limit(sampled):
    chains, energy = cb.plots.draw_energy(sampled)
    assert [line.get_xdata()[0] for line in chains.lines] == [0.3]
    positions = np.concatenate([each.get_offsets() for each in chains.collections])
    squares = sampled.distribution.stats["energy"]
    ratios = (np.diff(squares, axis=1) ** 2).mean(axis=1) / squares.var(axis=1, ddof=1)
    np.testing.assert_allclose(positions, np.stack([ratios, [0, 1]], axis=1), rtol=0.02)
    assert [text.get_text() for text in energy.get_legend().get_texts()] == [
        "marginal",
        "transitions",
    ]
    assert faults([chains, energy]) == []


@pytest.mark.parametrize("draw", [cb.plots.draw_trace, cb.plots.draw_rank, cb.plots.draw_energy])
@pytest.mark.heavy
def test_chains_of_a_closed_form_cannot_be_drawn(draw, few):
    with pytest.raises(
        cb.errors.PosteriorError,
        match=f"{draw.__name__} shows chains, but nothing was sampled by conjugate; fit",
    ):
        draw(few)
    with pytest.raises(
        cb.errors.ArgumentError, match="needs a Posterior, got str; make one with cb.fit"
    ):
        draw("nuts")


@pytest.mark.heavy
def test_names_with_dollars_are_not_mathematics(sampled):
    post = replaced(sampled, names={"log posterior": r"$\nonsense$"})
    for draw in (cb.plots.draw_trace, cb.plots.draw_rank):
        assert faults(draw(post)) == []


@pytest.mark.heavy
def test_one_chain_is_drawn_without_r_hat(chain):
    method = cb.NUTS(chains=1, draws=100, progress=False)
    post = cb.fit(chain.problem, chain.observe(60, 0), method=method, key=0)
    panels = cb.plots.draw_trace(post)
    assert panels[0, 0].figure.get_suptitle().endswith("one chain has no R-hat")
    names = [ax.get_title("left") for ax in panels[:, 0]]
    assert names == [*post.names, "log posterior"]
    assert faults(panels) == []
    assert faults(cb.plots.draw_energy(post)) == []
    with pytest.raises(
        cb.errors.PosteriorError, match=r"only one; fit with method=cb.NUTS\(chains=4\)"
    ):
        cb.plots.draw_rank(post)


def test_departures_of_ranks_are_those_of_the_empirical_distributions():
    draws = np.random.default_rng(0).normal(size=(3, 40, 2))
    found = rank_departures(draws)
    pooled = np.sort(draws[:, :, 1].ravel())
    shares = (draws[2, :, 1][None] <= pooled[:, None]).mean(axis=1)
    np.testing.assert_allclose(found[2, 1:, 1], shares - np.arange(1, 121) / 120, atol=1e-12)
    assert found.shape == (3, 121, 2) and np.abs(found[:, [0, -1]]).max() < 1e-12


def test_band_of_ranks_of_two_chains_is_that_of_kolmogorov_and_smirnov():
    """Two chains depart from their pool by half of their distance; 2,000 orders: 1 % is +- 0.7 %.

    The asymptotic quantile is approached from below; the largest 5 % of all seeds lie within 12 %.
    """
    count = 400
    expected = kstwobign.isf(0.01) * np.sqrt(2 / count) / 2
    assert rank_bound(2, count) == pytest.approx(expected, rel=0.12)
    assert rank_bound(2, count, 0.9) == pytest.approx(
        kstwobign.isf(0.1) * np.sqrt(2 / count) / 2, rel=0.08
    )


def test_band_of_ranks_holds_chains_that_agree_at_its_stated_rate():
    """400 sets of three chains at 90 %: three standard errors are 0.045."""
    draws = np.random.default_rng(5).normal(size=(3, 60, 400))
    largest = np.abs(rank_departures(draws)).max(axis=(0, 1))
    assert (largest <= rank_bound(3, 60, 0.9)).mean() == pytest.approx(0.9, abs=0.045)
