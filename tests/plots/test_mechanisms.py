"""Plots of mechanisms, nonlinear and linear, and of their priors.

Internals: limits of panels are lowered, and counts beyond the axes compared.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.drawn_texts import drawn, faults, labels

import causal_bo_ppl as cb
from causal_bo_ppl.plots import mechanisms as mechanism_plots

pytestmark = pytest.mark.heavy


def band(ax):
    """Lower and upper end of the band, at the values of the cause, (n,) each."""
    [shape] = [each for each in ax.collections if each.get_label() == "90% of draws"]
    vertices = shape.get_paths()[0].vertices
    positions = drawn(ax, "posterior mean").get_xdata()
    ends = [vertices[np.isclose(vertices[:, 0], position), 1] for position in positions]
    return np.array([heights.min() for heights in ends]), np.array([each.max() for each in ends])


def test_every_mechanism_is_drawn_over_observations_and_domain_with_its_band(nonlinear, toy):
    panels = cb.plots.draw_mechanisms(nonlinear, truth=toy, key=1)
    assert [ax.get_title() for ax in panels] == ["X → Z", "Z → Y"]
    ax = panels[1]
    positions = drawn(ax, "posterior mean").get_xdata()
    assert positions[0] == -5.0 and positions[-1] == 20.0 and ax.get_xlim() == (-5.0, 20.0)
    np.testing.assert_allclose(
        drawn(ax, "truth").get_ydata(), np.cos(positions) - np.exp(-positions / 20), rtol=1e-9
    )
    values = np.stack([0 * positions, positions, 0 * positions], axis=1)
    curves = nonlinear.distribution.response.mechanism(nonlinear.draws(400, 1), "Y", values)
    low, high = band(ax)
    np.testing.assert_allclose(low, np.quantile(curves, 0.05, axis=0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(high, np.quantile(curves, 0.95, axis=0), rtol=1e-6, atol=1e-9)
    assert faults(panels) == []


def test_observations_of_one_cause_are_drawn_unchanged(nonlinear):
    [ax] = cb.plots.draw_mechanisms(nonlinear, edges=[("X", "Z")])
    observed = drawn(ax, "observations")
    np.testing.assert_allclose(observed.get_xdata(), nonlinear.data.column("X"))
    np.testing.assert_allclose(
        observed.get_ydata(), nonlinear.data.column("Z"), rtol=1e-9, atol=1e-9
    )


def test_domain_and_range_of_observations_are_marked(nonlinear):
    [ax] = cb.plots.draw_mechanisms(nonlinear, edges=[("Z", "Y")])
    assert list(drawn(ax, "domain of do()").get_xdata()) == [-5.0, 20.0]
    seen = nonlinear.data.column("Z")
    spans = [patch.get_window_extent().transformed(ax.transData.inverted()) for patch in ax.patches]
    ends = sorted((box.x0, box.x1) for box in spans)
    np.testing.assert_allclose(ends, [(-5.0, seen.min()), (seen.max(), 20.0)], atol=1e-6)


def test_observations_are_adjusted_to_the_means_of_their_other_causes(three):
    """The mechanism of Y is linear: the partial residuals are computed by hand."""
    panels = {ax.get_title(): ax for ax in cb.plots.draw_mechanisms(three)}
    assert list(panels) == ["X → Z", "W → Y", "X → Y", "Z → Y"]
    mean = dict(zip(three.names, three.mean, strict=True))
    column = {name: three.data.column(name) for name in three.data.nodes}
    others = sum(mean[f"b[{name}->Y]"] * (column[name] - column[name].mean()) for name in "WX")
    observed = drawn(panels["Z → Y"], "observations")
    np.testing.assert_allclose(observed.get_ydata(), column["Y"] - others, rtol=1e-8, atol=1e-9)
    assert panels["Z → Y"].get_xlabel() == "Z [mg/l]"
    free = drawn(panels["X → Z"], "observations")
    assert len(free.get_xdata()) == 60  # where Z was set, its mechanism was not at work
    with_bar = [title for title, ax in panels.items() if "domain of do()" in labels(ax)]
    assert with_bar == ["X → Z", "X → Y", "Z → Y"]
    figure = panels["X → Z"].figure
    assert figure.get_suptitle() == "conjugate, 70 observations: all mechanisms, cause by cause"
    assert faults(list(panels.values())) == []


def test_mechanisms_go_into_the_axes_they_are_given(nonlinear):
    figure, (left, right) = plt.subplots(1, 2)
    [ax] = cb.plots.draw_mechanisms(nonlinear, right, edges=[("X", "Z")], level=0.5)
    assert ax is right and not left.lines and ax.get_legend() is not None
    assert "50% of draws" in labels(ax) and len(figure.axes) == 2
    with pytest.raises(
        cb.errors.ArgumentError, match=r"has 2 panels \(X -> Z, Z -> Y\) and was given 1 Axes"
    ):
        cb.plots.draw_mechanisms(nonlinear, right)


def test_only_the_mechanisms_nearest_to_the_target_are_drawn_where_there_are_many(
    three, monkeypatch
):
    assert mechanism_plots.MOST_PANELS == 12
    monkeypatch.setattr(mechanism_plots, "MOST_PANELS", 2)
    panels = cb.plots.draw_mechanisms(three)
    assert [ax.get_title() for ax in panels] == ["X → Y", "Z → Y"]
    title = panels[0].figure.get_suptitle()
    assert title == "conjugate, 70 observations: 2 of 4 pairs of cause and effect"


def test_linear_mechanisms_are_drawn_as_lines(linear):
    [ax] = cb.plots.draw_mechanisms(linear, edges=[("Z", "Y")])
    mean = dict(zip(linear.names, linear.mean, strict=True))
    curve = drawn(ax, "posterior mean")
    np.testing.assert_allclose(
        curve.get_ydata(), mean["a[Y]"] + mean["b[Z->Y]"] * curve.get_xdata(), rtol=1e-9
    )
    total = cb.fit(linear.problem, linear.data, parameters="total_effect")
    with pytest.raises(
        cb.errors.PosteriorError, match="theta of this posterior .* does not hold them"
    ):
        cb.plots.draw_mechanisms(total)


def test_invalid_requests_for_mechanisms_are_refused(nonlinear):
    for options, match in [
        ({"edges": [("X", "Y")]}, r"mechanisms that were learned \(X -> Z, Z -> Y\); got X -> Y"),
        ({"edges": []}, r"mechanisms that were learned .*; got none"),
        ({"draws": 1}, "draws"),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            cb.plots.draw_mechanisms(nonlinear, **options)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1, got 90"):
        cb.plots.draw_mechanisms(nonlinear, level=90)
    with pytest.raises(
        cb.errors.ArgumentError, match="draw_mechanisms needs a Posterior, got Problem"
    ):
        cb.plots.draw_mechanisms(nonlinear.problem)


def test_prior_is_drawn_as_curves_beside_the_observations(nonlinear):
    panels = cb.plots.draw_prior(nonlinear, n=7, key=3)
    ax = panels[0]
    curves = [each for each in ax.lines if len(each.get_xdata()) == mechanism_plots.CURVE_POINTS]
    assert len(curves) == 7
    before = nonlinear.distribution.draw_prior(7, jax.random.key(3))
    values = np.zeros((mechanism_plots.CURVE_POINTS, 3))
    values[:, 0] = curves[0].get_xdata()
    expected = nonlinear.distribution.response.mechanism(before.theta[:7], "Z", values)
    np.testing.assert_allclose([each.get_ydata() for each in curves], expected, rtol=1e-9)
    np.testing.assert_allclose(drawn(ax, "observations").get_ydata(), nonlinear.data.column("Z"))
    low, high = ax.get_ylim()
    seen = nonlinear.data.column("Z")
    assert low < seen.min() and seen.max() < high <= seen.max() + 2 * np.ptp(seen)
    assert faults(panels) == []


def test_prior_that_cannot_be_drawn_from_is_refused(linear):
    given = cb.Posterior.from_draws(linear.problem, linear.draws(400, 0))
    with pytest.raises(cb.errors.PosteriorError, match="draw_prior draws .* which is not known"):
        cb.plots.draw_prior(given)
    fixed = cb.fit(linear.problem, linear.data, prior=cb.priors.FixedPrior())
    [ax] = cb.plots.draw_prior(fixed, edges=[("X", "Z")], n=5)
    assert "a draw of the prior" in labels(ax)


def test_draws_of_the_prior_beyond_the_picture_are_counted(nonlinear):
    ax = plt.figure().add_subplot()
    ax.set_ylim(-1, 1)
    across = np.array([[-3.0, 3.0], [2.0, 5.0], [-9.0, -2.0], [0.0, 4.0]])
    mechanism_plots._count_beyond(ax, across)
    assert [text.get_text() for text in ax.texts] == ["2 of 4 draws\nlie above or below"]
    [panel] = cb.plots.draw_prior(nonlinear, edges=[("X", "Z")], n=7, key=3)
    low, high = panel.get_ylim()
    curves = [each.get_ydata() for each in panel.lines if len(each.get_xdata()) == 120]
    hidden = sum(bool((each > high).all() or (each < low).all()) for each in curves)
    counts = [int(text.get_text().split()[0]) for text in panel.texts]
    assert counts == ([hidden] if hidden else [])
