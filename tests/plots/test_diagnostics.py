"""Plots of distances, errors of effects, calibration and overlap.

Internals: the band of quantiles is compared with simulations.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import drawn, faults, labels, legend, texts
from helpers.long_names import CATALYST, PRESSURE
from helpers.sampled_posteriors import replaced
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from scipy.stats import chi2, kstwo

import causal_bo_ppl as cb
from causal_bo_ppl.plots.diagnostics import quantile_band

AMBER = "#f59e0b"
pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("count", [3, 40, 2_000])
def test_band_covers_whole_samples_with_its_probability(count):
    """1,000 samples, 90 %: three standard errors are 0.03; 1 in 400 of other seeds would fail."""
    shares, low, high = quantile_band(count, 0.9)
    ordered = np.sort(np.random.default_rng(1).uniform(size=(1_000, count)), axis=1)
    found = ordered[:, (shares * count).astype(int)]
    covered = ((found >= low) & (found <= high)).all(axis=1).mean()
    assert covered == pytest.approx(0.9, abs=0.03)
    assert shares[-1] == (count - 0.5) / count


def test_distances_after_few_observations_leave_the_band_and_those_after_many_do_not(chain, few):
    ax = cb.plots.draw_mahalanobis(few)
    assert labels(ax) == ["99 % band", "a Gaussian", "draws, in the band", "draws, outside"]
    assert ax.get_xlabel() == "quantile of chi-square, 4 degrees of freedom"
    outside = ax.lines[-1]
    assert outside.get_ydata()[-1] > 1.5 * outside.get_xdata()[-1]  # heavy tails
    many = cb.plots.draw_mahalanobis(cb.fit(chain.problem, chain.observe(2_000, 1)), level=0.999)
    assert labels(many) == ["99.9 % band", "a Gaussian", "draws, in the band"]
    assert many.get_title() == "is theta Gaussian? conjugate, 2000 observations"
    assert faults(many) == []


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
def test_laplace_is_compared_with_the_density_that_it_approximates(chain):
    with pytest.warns(cb.CausalBOWarning, match="laplace is too narrow"):
        few = cb.fit(chain.problem, chain.observe(12, 1), method="laplace")
    ax = cb.plots.draw_mahalanobis(few)
    assert "draws, outside" in labels(ax)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1, got 99"):
        cb.plots.draw_mahalanobis(cb.fit(chain.problem, chain.observe(12, 1)), level=99)


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
    assert faults(ax) == []


def test_the_worst_twenty_effects_come_first(errors):
    many = pd.concat([errors.details] * 8, ignore_index=True)
    many.loc[17, "gaussian_high"] += 9 * many.loc[17, "sd"]
    many.loc[5, "sd"] = 0.0
    many.index = pd.Index([f"do(X = {position})" for position in range(len(many))], name="effect")
    ax = cb.plots.draw_effect_errors(
        cb.diagnostics.Check("Gaussian error", errors.table, "", "", many)
    )
    assert ax.get_title() == "the worst 20 of 32 effects, largest error first"
    assert ax.get_yticklabels()[0].get_text() == "do(X = 17)" and len(ax.get_yticks()) == 20
    assert faults(ax) == []


def test_effects_with_long_names_leave_room_for_their_intervals():
    names = [f"do({CATALYST} = {0.001 * row:g}, {PRESSURE} = 1.15e+05)" for row in range(1, 9)]
    numbers = dict.fromkeys(("mean", "gaussian_mean", "linear_mean"), 0.0)
    numbers |= dict.fromkeys(("sd", "linear_sd", "high", "gaussian_high"), 1.0)
    numbers |= {"low": -1.0, "gaussian_low": -1.0}
    details = pd.DataFrame(numbers, index=pd.Index(names, name="effect"))
    ax = cb.plots.draw_effect_errors(
        cb.diagnostics.Check("Gaussian error", details, "", "", details)
    )
    assert faults(ax) == [] and len(set(texts(ax.get_yticklabels()))) == 8
    box, page = ax.get_window_extent(), ax.figure.bbox
    assert box.width > 0.4 * page.width
    assert legend(ax) == ["posterior", "Gaussian theta", "linearized effect"]


@pytest.fixture(scope="module")
def calibration():
    """Ranks of two effects: uniform ones, and those of intervals far too narrow."""
    uniform = (np.arange(100) + 0.5) / 100
    ranks = pd.DataFrame({"do(X = 1)": uniform, "do(X = 2)": np.round(uniform) * 0.98 + 0.01})
    table = pd.DataFrame(
        {"coverage": [0.9, 0.0], "verdict": ["passed", "failed"]}, index=ranks.columns
    )
    return cb.diagnostics.Check("calibration", table, "", "", ranks)


def test_calibration_curves_leave_the_band_where_uniformity_fails(calibration):
    ax = cb.plots.draw_calibration(calibration)
    assert labels(ax) == ["99 % band", "effects that passed: 1 of 2", "effects that failed: 1 of 2"]
    [band] = [each for each in ax.patches if isinstance(each, Rectangle)]
    assert band.get_y() == pytest.approx(-kstwo.isf(0.005, 100))
    _, passed, failed = ax.lines
    assert np.abs(passed.get_ydata()).max() == pytest.approx(0.005)
    assert np.abs(failed.get_ydata()).max() == pytest.approx(0.49) and failed.get_color() == AMBER
    assert ax.get_title() == "100 data sets: 90 % intervals cover the truth in 0% to 90%"
    assert faults(ax) == []


@pytest.mark.heavy
def test_largest_distance_drawn_is_that_of_the_check(chain):
    check = cb.diagnostics.calibrate(chain.problem, simulations=40, observations=20, key=0)
    ax = cb.plots.draw_calibration(check)
    drawn = sorted(np.abs(line.get_ydata()).max() for line in ax.lines[1:])
    np.testing.assert_allclose(drawn, sorted(check.table["distance"]))


def test_picture_of_another_check_is_refused(errors, calibration):
    with pytest.raises(
        cb.errors.ArgumentError,
        match="needs the result of cb.diagnostics.calibrate, got the check 'Gaussian error'",
    ):
        cb.plots.draw_calibration(errors)
    with pytest.raises(
        cb.errors.ArgumentError,
        match="needs the result of cb.diagnostics.gaussian_error, got the check 'calibration'",
    ):
        cb.plots.draw_effect_errors(calibration)
    with pytest.raises(
        cb.errors.ArgumentError,
        match="draw_calibration needs the result of cb.diagnostics.calibrate, got DataFrame",
    ):
        cb.plots.draw_calibration(errors.table)


def test_overlap_shows_observations_box_and_ellipse_and_the_reach_of_the_check():
    system = cb.models.load("healthcare")
    data = system.observe(300, 0)
    ax = cb.plots.draw_overlap(system.problem, data, ["aspirin", "statin"])
    assert labels(ax) == [
        "observations",
        "domains of do()",
        "around 99 % of the data",
        "farthest corner",
    ]
    observed, ellipse, corner = ax.lines
    np.testing.assert_array_equal(observed.get_ydata(), data.column("statin"))
    [box] = ax.patches
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 0), 1, 1)
    assert (corner.get_xdata()[0], corner.get_ydata()[0]) == (0, 1)
    table = cb.diagnostics.check_overlap(system.problem, data).table.set_index("set")
    assert f"lies {table['reach']['aspirin, statin']:.2g} times as far out" in ax.get_title()
    assert ax.get_xlabel() == "aspirin [propensity]"
    inside = ellipse.get_path().contains_points(np.stack(observed.get_data(), axis=1))
    assert inside.mean() == pytest.approx(0.99, abs=0.005)
    assert faults(ax) == []


def test_overlap_marks_observations_under_intervention(chain):
    problem = chain.problem
    frame = pd.DataFrame(
        {"X": [0.0, 1.0, 2.0, 3.0], "Z": [0.0, 2.0, 1.0, 4.0], "Y": [0.0, 1.0, 0.0, 1.0]}
    )
    passive, experiments = (
        cb.Data.from_frame(problem, frame),
        cb.Data.from_frame(problem, frame + 1, intervened=["X"]),
    )
    ax = cb.plots.draw_overlap(problem, passive.join(experiments), ["Z", "X"])
    assert labels(ax)[:2] == ["observations", "one of the two was intervened on"]
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), frame["Z"] + 1)


def test_observations_on_a_line_have_no_ellipse(chain):
    frame = pd.DataFrame({"X": [0.0, 1.0, 2.0], "Z": [1.0, 3.0, 5.0], "Y": [0.0, 1.0, 0.0]})
    ax = cb.plots.draw_overlap(chain.problem, cb.Data.from_frame(chain.problem, frame), ["X", "Z"])
    assert ax.get_title() == "the data lie on a line: no box overlaps with them"
    assert labels(ax) == ["observations", "domains of do()"]


def restricted(chain, **options):
    given = {"domains": {"X": (-5, 5), "Z": (-5, 5)}, "sets": [("X", "Z")]} | options
    graph = cb.CausalGraph.parse("X -> Z; X -> Y; Z -> Y")  # both act on Y
    assert graph.nodes == chain.problem.graph.nodes
    return cb.Problem(graph, "Y", **given)


def within_a_circle(queries):
    return (np.asarray(queries.value) ** 2).sum(axis=1) <= 40


def test_overlap_shows_what_constraints_and_functions_forbid(chain):
    data = chain.observe(80, 0)
    limit = cb.LinearConstraint({"X": 1, "Z": 1}, lower=-3)
    problem = restricted(chain, constraints=[limit])
    ax = cb.plots.draw_overlap(problem, data, ["Z", "X"])
    assert "forbidden by X + Z >= -3" in labels(ax)
    reach = cb.diagnostics.check_overlap(problem, data).table.set_index("set")["reach"]["X, Z"]
    assert f"lies {reach:.2g} times as far out" in ax.get_title()
    forbidden = [
        path for each in ax.collections if hasattr(each, "levels") for path in each.get_paths()
    ]
    assert any(path.contains_point((-4, -4)) for path in forbidden)
    assert not any(path.contains_point((4, -4)) for path in forbidden)
    assert faults(ax) == []
    ax = cb.plots.draw_overlap(restricted(chain, feasible=within_a_circle), data, ["X", "Z"])
    assert "forbidden by within_a_circle" in labels(ax)
    assert ax.get_title() == "no corner of the box is feasible"
    assert faults(ax) == []


def test_overlap_shows_levels(chain):
    levels = {"X": cb.Levels([-5, 0, 5]), "Z": cb.Levels([-2, 1])}
    limit = cb.LinearConstraint({"X": 1, "Z": 1}, upper=4)
    problem = restricted(chain, domains=levels, constraints=[limit])
    ax = cb.plots.draw_overlap(problem, chain.observe(80, 0), ["X", "Z"])
    [dots] = [line for line in ax.lines if line.get_label() == "allowed levels"]
    points = set(zip(*(each.tolist() for each in dots.get_data()), strict=True))
    assert points == {(-5, -2), (0, -2), (5, -2), (-5, 1), (0, 1)}
    assert faults(ax) == []


def test_overlap_needs_two_variables_with_domains(chain):
    data = chain.observe(20, 0)
    for names in ("XZ", ["X"], ["X", "X"], ["X", "Y"], ["X", "Z", "Z"]):
        with pytest.raises(cb.errors.ArgumentError, match="two different variables of X, Z; got"):
            cb.plots.draw_overlap(chain.problem, data, names)
    with pytest.raises(cb.errors.DataError, match="at least 3 observations, got 2"):
        cb.plots.draw_overlap(chain.problem, chain.observe(2, 0), ["X", "Z"])
    with pytest.raises(cb.errors.DataError, match="draw_overlap needs Data, got ndarray"):
        cb.plots.draw_overlap(chain.problem, data.values, ["X", "Z"])


def test_data_sets_of_the_prior_are_drawn_beside_the_observations(chain):
    data, prior = chain.observe(40, 0), cb.priors.FixedPrior()
    panels = cb.plots.draw_prior_predictive(chain.problem, data, prior=prior, n=7, key=2)
    assert [ax.get_xlabel() for ax in panels] == ["Z", "Y"]
    for ax in panels:
        assert len(ax.lines) == 8 and faults(panels) == []
        assert labels(ax) == ["a predicted data set", "observations", "observed range"]
        own, y = drawn(ax, "observations"), data.column(ax.get_xlabel())
        middle, half = (y.min() + y.max()) / 2, np.ptp(y) / 2
        values = middle + half * np.sinh(own.get_xdata())
        np.testing.assert_allclose(values, np.sort(y), rtol=1e-9, atol=1e-9)  # 40 steps
        ends = [float(label.get_text()) for label in ax.get_xticklabels()]
        assert ends == pytest.approx(
            [y.min() - 2 * half, y.min(), y.max(), y.max() + 2 * half], 0.01
        )
    title = panels[0].figure._suptitle.get_text()
    assert title == "7 data sets that FixedPrior predicts"


def test_vague_priors_are_drawn_whole_and_what_is_far_outside_is_counted(few):
    panels = cb.plots.draw_prior_predictive(few, n=20)
    assert labels(panels[-1])[-1] == "more than 10 ranges outside" and faults(panels) == []
    share = float(panels[-1].get_title().partition("%")[0]) / 100
    found = cb.diagnostics.check_prior_predictive(few).table.loc["Y", "beyond_10"]
    assert share == pytest.approx(found, abs=0.08)
    [ax] = cb.plots.draw_prior_predictive(few, variables=["Y"])
    assert ax.get_xlabel() == "Y"
    with pytest.raises(cb.errors.ArgumentError, match="variables must be some of Z, Y, which are"):
        cb.plots.draw_prior_predictive(few, variables=["X"])
    with pytest.raises(cb.errors.ArgumentError, match=r"has 2 panels \(Z, Y\) and was given 1"):
        cb.plots.draw_prior_predictive(few, axes=plt.figure().add_subplot())
    with pytest.raises(cb.errors.DataError, match="no variable .* varies in these data"):
        one = few.data.select(slice(0, 1))
        cb.plots.draw_prior_predictive(few.problem, one, prior=cb.priors.FixedPrior())
