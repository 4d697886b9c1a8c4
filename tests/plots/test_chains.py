"""Plots of chains: traces, ranks with their band, and energies.

Internals: bands of ranks are compared with simulations, and limits of panels lowered.
"""

import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import faults
from helpers.sampled_posteriors import replaced
from scipy.stats import kstwobign

import causal_bo_ppl as cb
from causal_bo_ppl.plots import chains as chain_plots
from causal_bo_ppl.plots.chains import rank_bound, rank_departures


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
    assert chain_plots.MOST_PARAMETERS == 12
    monkeypatch.setattr(chain_plots, "MOST_PARAMETERS", 3)
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
        return chain_plots._thinning(chain_plots.Sampled(np.zeros((4, draws, 2)), {}, summary, 2))

    assert [thinned(ess) for ess in (6_000.0, 1_900.0, 3.0, np.nan)] == [1, 3, 10, 1]
    assert thinned(10.0, draws=50) == 1


@pytest.mark.heavy
def test_ranks_are_those_of_the_thinned_draws(sampled, monkeypatch):
    monkeypatch.setattr(chain_plots, "_thinning", lambda *_: 5)
    ax = cb.plots.draw_rank(sampled)[0]
    name = ax.get_title().split("\n")[0]
    column = list(sampled.distribution.summary.index).index(name)
    draws = np.concatenate(
        [sampled.distribution.chains, sampled.distribution.stats["lp"][..., None]], axis=-1
    )
    expected = chain_plots.rank_departures(draws[:, ::5, column : column + 1])
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
