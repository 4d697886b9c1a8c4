from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from scipy.stats import chi2, kstwo

import causal_bo_ppl as cb
from causal_bo_ppl.plots import chains as chain_plots
from causal_bo_ppl.plots.diagnostics import quantile_band

AMBER = "#f59e0b"

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def system():
    return cb.models.load("chain")


@pytest.fixture(scope="module")
def sampled(system):
    method = cb.NUTS(chains=2, draws=100, progress=False)
    return cb.fit(system.problem, system.observe(60, 0), method=method, key=0)


@pytest.fixture(scope="module")
def few(system):
    return cb.fit(system.problem, system.observe(8, 1))


@pytest.fixture(scope="module")
def errors(few):
    return cb.gaussian_error(few, key=0)


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def finish(panels):
    """Lay the figure out, as on paper; warnings are errors."""
    np.asarray(panels).flat[0].figure.draw_without_rendering()


def replaced(post, names=None, psi=None, **stats):
    """The same posterior with other draws, other statistics of the sampler, or other names."""
    coordinates = post.distribution.psi if psi is None else psi
    distribution = replace(
        post.distribution, psi=coordinates, stats=post.distribution.stats | stats
    )
    if names:
        distribution.__dict__["summary"] = post.distribution.summary.rename(index=names)
    return replace(post, distribution=distribution)


def test_trace_has_a_density_and_a_trace_of_each_chain_with_the_worst_first(sampled):
    panels = cb.plots.draw_trace(sampled)
    summary = sampled.distribution.summary.sort_values("r_hat", ascending=False)
    assert panels.shape == (5, 2)
    assert [ax.get_title("left") for ax in panels[:, 0]] == list(summary.index)
    assert f"R-hat {summary['r_hat'].iloc[0]:.3f}, " in panels[0, 1].get_title("left")
    at = sampled.names.index("b[Z->Y]")
    [trace] = [
        ax for ax, name in zip(panels[:, 1], summary.index, strict=True) if name == "b[Z->Y]"
    ]
    assert len(trace.lines) == 2
    np.testing.assert_array_equal(trace.lines[1].get_ydata(), sampled.distribution.chains[1, :, at])
    [posterior] = [
        ax for ax, name in zip(panels[:, 1], summary.index, strict=True) if name == "log posterior"
    ]
    np.testing.assert_array_equal(
        posterior.lines[0].get_ydata(), sampled.distribution.stats["lp"][0]
    )
    title = panels[0, 0].figure.get_suptitle()
    assert title == "2 x 100 draws: all 5 parameters, largest R-hat first"
    finish(panels)


def test_trace_marks_divergences(sampled):
    diverging = np.zeros((2, 100), bool)
    diverging[0, [10, 40]] = True
    panels = cb.plots.draw_trace(replaced(sampled, diverging=diverging))
    marks = [set(line.get_xdata()) for line in panels[0, 1].lines if line.get_marker() == "|"]
    marks += [set(each.get_offsets()[:, 0].tolist()) for each in panels[0, 1].collections]
    assert {10, 40} in marks
    finish(panels)


def test_only_the_worst_twelve_are_shown(sampled, monkeypatch):
    assert chain_plots.MOST == 12
    monkeypatch.setattr(chain_plots, "MOST", 3)
    panels = cb.plots.draw_rank(sampled)
    assert panels.shape == (3,)
    assert (
        panels[0].figure.get_suptitle()
        == "2 x 100 draws: the worst 3 of 5 parameters, largest R-hat first"
    )


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
    finish(panels)


def test_chains_that_disagree_have_large_ranks(sampled):
    moved = sampled.distribution.psi + np.array([0.0, 8.0])[:, None, None]
    ax = cb.plots.draw_rank(replaced(sampled, psi=moved))[0]
    assert max(np.abs(line.get_ydata()).max() for line in ax.lines) > 0.4
    assert "R-hat 1.0" not in ax.get_title()


def test_ranks_are_thinned_by_the_effective_number_of_draws(sampled):
    def thinned(ess, draws=1_000):
        chains = chain_plots.Sampled(np.zeros((4, draws, 4)), {}, sampled.distribution.summary)
        shown = pd.DataFrame({"ess_bulk": [ess, 9_999.0], "ess_tail": [9_999.0, 9_999.0]})
        return chain_plots._apart(chains, shown)

    assert [thinned(ess) for ess in (6_000.0, 1_900.0, 3.0, np.nan)] == [1, 3, 10, 1]
    assert thinned(10.0, draws=50) == 1


def test_ranks_are_those_of_the_thinned_draws(sampled, monkeypatch):
    monkeypatch.setattr(chain_plots, "_apart", lambda *_: 5)
    ax = cb.plots.draw_rank(sampled)[0]
    name = ax.get_title().split("\n")[0]
    at = list(sampled.distribution.summary.index).index(name)
    draws = np.concatenate(
        [sampled.distribution.chains, sampled.distribution.stats["lp"][..., None]], axis=-1
    )
    expected = chain_plots.rank_departures(draws[:, ::5, at : at + 1])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), expected[1, :, 0])
    assert len(ax.lines[1].get_xdata()) == 41 and ax.get_legend() is None
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == [
        "99 % band",
        "chain 0",
        "chain 1",
    ]


def test_energy_shows_every_chain_beside_the_limit(sampled):
    chains, energy = cb.plots.draw_energy(sampled)
    assert [line.get_xdata()[0] for line in chains.lines] == [0.3]
    positions = np.concatenate([each.get_offsets() for each in chains.collections])
    squares = sampled.distribution.stats["energy"]
    ratios = (np.diff(squares, axis=1) ** 2).mean(axis=1) / squares.var(axis=1, ddof=1)
    np.testing.assert_allclose(positions, np.stack([ratios, [0, 1]], axis=1), rtol=0.02)
    assert [text.get_text() for text in energy.get_legend().get_texts()] == [
        "draws",
        "from draw to draw",
    ]
    finish([chains, energy])


@pytest.mark.parametrize("draw", [cb.plots.draw_trace, cb.plots.draw_rank, cb.plots.draw_energy])
def test_chains_of_a_closed_form_cannot_be_drawn(draw, few):
    with pytest.raises(
        cb.ModelError,
        match=f"{draw.__name__} shows chains, but nothing was sampled by conjugate; fit",
    ):
        draw(few)
    with pytest.raises(cb.ModelError, match="needs a Posterior, got str; make one with cb.fit"):
        draw("nuts")


def test_names_with_dollars_are_not_mathematics(sampled):
    post = replaced(sampled, names={"log posterior": r"$\nonsense$"})
    for draw in (cb.plots.draw_trace, cb.plots.draw_rank):
        finish(draw(post))


def test_one_chain_is_drawn_without_r_hat(system):
    method = cb.NUTS(chains=1, draws=100, progress=False)
    post = cb.fit(system.problem, system.observe(60, 0), method=method, key=0)
    panels = cb.plots.draw_trace(post)
    assert panels[0, 0].figure.get_suptitle().endswith("one chain has no R-hat")
    assert list(chain_plots._worst(post.distribution).index) == [*post.names, "log posterior"]
    finish(panels)
    finish(cb.plots.draw_energy(post))
    with pytest.raises(cb.ModelError, match=r"only one; fit with method=cb.NUTS\(chains=4\)"):
        cb.plots.draw_rank(post)


@pytest.mark.parametrize("count", [3, 40, 2_000])
def test_band_holds_whole_samples_as_often_as_it_says(count):
    """1,000 samples, 90 %: three standard errors are 0.03; 1 in 400 of other seeds would fail."""
    band = quantile_band(count, 0.9)
    ordered = np.sort(np.random.default_rng(1).uniform(size=(1_000, count)), axis=1)
    found = ordered[:, (band.position * count).astype(int)]
    held = ((found >= band.low) & (found <= band.high)).all(axis=1).mean()
    assert held == pytest.approx(0.9, abs=0.03)
    assert band.position[-1] == (count - 0.5) / count


def test_distances_of_few_rows_leave_the_band_and_those_of_many_do_not(system, few):
    ax = cb.plots.draw_mahalanobis(few)
    assert labels(ax) == ["99 % band", "a Gaussian", "draws, in the band", "draws, outside"]
    assert ax.get_xlabel() == "quantile of chi-square, 4 degrees of freedom"
    outside = ax.lines[-1]
    assert outside.get_ydata()[-1] > 1.5 * outside.get_xdata()[-1]  # heavy tails
    many = cb.plots.draw_mahalanobis(cb.fit(system.problem, system.observe(2_000, 1)), level=0.999)
    assert labels(many) == ["99.9 % band", "a Gaussian", "draws, in the band"]
    assert many.get_title() == "is theta Gaussian? conjugate, 2000 rows"
    finish(many)


def test_distances_of_a_sampled_posterior_have_a_band_for_its_effective_draws(sampled):
    independent = np.random.default_rng(0).normal(size=sampled.distribution.psi.shape)
    fast, slow = (
        replaced(sampled, psi=psi) for psi in (independent, independent[:, :25].repeat(4, axis=1))
    )
    given = plt.figure().add_subplot()
    assert cb.plots.draw_mahalanobis(slow, given) is given
    ends = [
        max(line.get_xdata().max() for line in ax.lines)
        for ax in (given, cb.plots.draw_mahalanobis(fast))
    ]
    assert (
        ends[0] < chi2.ppf(1 - 0.5 / 70, 4) < ends[1] < chi2.ppf(1 - 0.5 / 200, 4)
    )  # 50 draws, four times each


@pytest.mark.heavy
def test_laplace_is_compared_with_the_density_it_stands_for(system):
    with pytest.warns(cb.CausalBOWarning, match="laplace is too narrow"):
        few = cb.fit(system.problem, system.observe(12, 1), method="laplace")
    ax = cb.plots.draw_mahalanobis(few)
    assert "draws, outside" in labels(ax)
    with pytest.raises(cb.DomainError, match="level must lie between 0 and 1, got 99"):
        cb.plots.draw_mahalanobis(cb.fit(system.problem, system.observe(12, 1)), level=99)


def test_effects_are_drawn_three_ways_in_posterior_sds(errors):
    ax = cb.plots.draw_effect_errors(errors)
    details = errors.details
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert sorted(names) == sorted(details.index)
    assert labels(ax) == ["posterior", "Gaussian theta", "linearized effect"]
    bars = [each for each in ax.collections if isinstance(each, LineCollection)]
    shown = details.loc[names]
    ends = np.array(bars[1].get_segments())[:, :, 0].T
    np.testing.assert_allclose(ends[0], (shown["gaussian_low"] - shown["mean"]) / shown["sd"])
    half = np.diff(np.array(bars[2].get_segments())[:, :, 0], axis=1)[:, 0] / 2
    np.testing.assert_allclose(half, 1.6448536 * shown["linear_sd"] / shown["sd"])
    assert ax.get_title() == "all 4 effects, largest error first"
    finish(ax)


def test_the_worst_twenty_effects_come_first(errors):
    many = pd.concat([errors.details] * 8, ignore_index=True)
    many.loc[17, "gaussian_high"] += 9 * many.loc[17, "sd"]
    many.loc[5, "sd"] = 0.0
    many.index = pd.Index([f"do(X = {position})" for position in range(len(many))], name="effect")
    ax = cb.plots.draw_effect_errors(cb.Check("Gaussian error", errors.table, "", "", many))
    assert ax.get_title() == "the worst 20 of 32 effects, largest error first"
    assert ax.get_yticklabels()[0].get_text() == "do(X = 17)" and len(ax.get_yticks()) == 20
    finish(ax)


@pytest.fixture(scope="module")
def calibration():
    """Places of two effects: uniform ones, and those of intervals far too narrow."""
    uniform = (np.arange(100) + 0.5) / 100
    positions = pd.DataFrame({"do(X = 1)": uniform, "do(X = 2)": np.round(uniform) * 0.98 + 0.01})
    table = pd.DataFrame(
        {"coverage": [0.9, 0.0], "verdict": ["passed", "failed"]}, index=positions.columns
    )
    return cb.Check("calibration", table, "", "", positions)


def test_calibration_curves_leave_the_band_where_uniformity_fails(calibration):
    ax = cb.plots.draw_calibration(calibration)
    assert labels(ax) == ["99 % band", "effects that passed: 1 of 2", "effects that failed: 1 of 2"]
    [band] = [each for each in ax.patches if isinstance(each, Rectangle)]
    assert band.get_y() == pytest.approx(-kstwo.isf(0.005, 100))
    _, passed, failed = ax.lines
    assert np.abs(passed.get_ydata()).max() == pytest.approx(0.005)
    assert np.abs(failed.get_ydata()).max() == pytest.approx(0.49) and failed.get_color() == AMBER
    assert ax.get_title() == "100 data sets: 90 % intervals hold the truth in 0% to 90%"
    finish(ax)


@pytest.mark.heavy
def test_largest_distance_drawn_is_that_of_the_check(system):
    check = cb.calibrate(system.problem, simulations=40, rows=20, key=0)
    ax = cb.plots.draw_calibration(check)
    drawn = sorted(np.abs(line.get_ydata()).max() for line in ax.lines[1:])
    np.testing.assert_allclose(drawn, sorted(check.table["distance"]))


def test_picture_of_another_check_is_refused(errors, calibration):
    with pytest.raises(
        cb.ModelError, match="needs the result of cb.calibrate, got the check 'Gaussian error'"
    ):
        cb.plots.draw_calibration(errors)
    with pytest.raises(
        cb.ModelError, match="needs the result of cb.gaussian_error, got the check 'calibration'"
    ):
        cb.plots.draw_effect_errors(calibration)
    with pytest.raises(
        cb.ModelError, match="draw_calibration needs the result of cb.calibrate, got DataFrame"
    ):
        cb.plots.draw_calibration(errors.table)


def test_overlap_shows_rows_box_and_ellipse_and_the_reach_of_the_check():
    system = cb.models.load("healthcare")
    data = system.observe(300, 0)
    ax = cb.plots.draw_overlap(system.problem, data, ["aspirin", "statin"])
    assert labels(ax) == [
        "rows, observed",
        "may be set",
        "around 99 % of the rows",
        "farthest corner",
    ]
    rows, ellipse, corner = ax.lines
    np.testing.assert_array_equal(rows.get_ydata(), data.column("statin"))
    [box] = ax.patches
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 0), 1, 1)
    assert (corner.get_xdata()[0], corner.get_ydata()[0]) == (0, 1)
    table = cb.check_overlap(system.problem, data).table.set_index("set")
    assert f"lies {table['reach']['aspirin, statin']:.2g} times as far out" in ax.get_title()
    assert ax.get_xlabel() == "aspirin [propensity]"
    inside = ellipse.get_path().contains_points(np.stack(rows.get_data(), axis=1))
    assert inside.mean() == pytest.approx(0.99, abs=0.005)
    finish(ax)


def test_overlap_marks_rows_that_set_a_variable(system):
    problem = system.problem
    frame = pd.DataFrame(
        {"X": [0.0, 1.0, 2.0, 3.0], "Z": [0.0, 2.0, 1.0, 4.0], "Y": [0.0, 1.0, 0.0, 1.0]}
    )
    seen, done = (
        cb.Data.from_frame(problem, frame),
        cb.Data.from_frame(problem, frame + 1, intervened=["X"]),
    )
    ax = cb.plots.draw_overlap(problem, seen.join(done), ["Z", "X"])
    assert labels(ax)[:2] == ["rows, observed", "rows that set one of the two"]
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), frame["Z"] + 1)


def test_rows_on_a_line_have_no_ellipse(system):
    frame = pd.DataFrame({"X": [0.0, 1.0, 2.0], "Z": [1.0, 3.0, 5.0], "Y": [0.0, 1.0, 0.0]})
    ax = cb.plots.draw_overlap(
        system.problem, cb.Data.from_frame(system.problem, frame), ["X", "Z"]
    )
    assert ax.get_title() == "the rows lie on a line: no box overlaps with them"
    assert labels(ax) == ["rows, observed", "may be set"]


def restricted(system, **options):
    given = {"domains": {"X": (-5, 5), "Z": (-5, 5)}, "sets": [("X", "Z")]} | options
    graph = cb.CausalGraph.parse("X -> Z; X -> Y; Z -> Y")  # both act on Y
    assert graph.nodes == system.problem.graph.nodes
    return cb.Problem(graph, "Y", **given)


def within_a_circle(queries):
    return (np.asarray(queries.value) ** 2).sum(axis=1) <= 40


def test_overlap_shows_what_constraints_and_functions_forbid(system):
    data = system.observe(80, 0)
    limit = cb.LinearConstraint({"X": 1, "Z": 1}, lower=-3)
    problem = restricted(system, constraints=[limit])
    ax = cb.plots.draw_overlap(problem, data, ["Z", "X"])
    assert "forbidden by X + Z >= -3" in labels(ax)
    reach = cb.check_overlap(problem, data).table.set_index("set")["reach"]["X, Z"]
    assert f"lies {reach:.2g} times as far out" in ax.get_title()
    forbidden = [
        path for each in ax.collections if hasattr(each, "levels") for path in each.get_paths()
    ]
    assert any(path.contains_point((-4, -4)) for path in forbidden)
    assert not any(path.contains_point((4, -4)) for path in forbidden)
    finish(ax)
    ax = cb.plots.draw_overlap(restricted(system, feasible=within_a_circle), data, ["X", "Z"])
    assert "forbidden by within_a_circle" in labels(ax)
    assert ax.get_title() == "no corner of the box may be set"
    finish(ax)


def test_overlap_shows_levels(system):
    levels = {"X": cb.Levels([-5, 0, 5]), "Z": cb.Levels([-2, 1])}
    limit = cb.LinearConstraint({"X": 1, "Z": 1}, upper=4)
    problem = restricted(system, domains=levels, constraints=[limit])
    ax = cb.plots.draw_overlap(problem, system.observe(80, 0), ["X", "Z"])
    [dots] = [line for line in ax.lines if line.get_label() == "levels that may be set"]
    points = set(zip(*(each.tolist() for each in dots.get_data()), strict=True))
    assert points == {(-5, -2), (0, -2), (5, -2), (-5, 1), (0, 1)}
    finish(ax)


def test_overlap_refuses_what_is_no_pair_of_settable_variables(system):
    data = system.observe(20, 0)
    for names in ("XZ", ["X"], ["X", "X"]):
        with pytest.raises(cb.DomainError, match="draw_overlap needs two variables, such as"):
            cb.plots.draw_overlap(system.problem, data, names)
    with pytest.raises(cb.DomainError, match="'Y' may not be set; choose two of X, Z"):
        cb.plots.draw_overlap(system.problem, data, ["X", "Y"])
    with pytest.raises(cb.DataError, match="an ellipse needs at least 3 rows, got 2"):
        cb.plots.draw_overlap(system.problem, system.observe(2, 0), ["X", "Z"])
    with pytest.raises(cb.DataError, match="draw_overlap needs Data, got ndarray"):
        cb.plots.draw_overlap(system.problem, data.values, ["X", "Z"])
