"""Pictures of mechanisms, nonlinear and linear, and of their priors."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.drawn_texts import drawn, faults, labels

import causal_bo_ppl as cb
from causal_bo_ppl.inputs import as_key

pytestmark = pytest.mark.heavy


def band(ax):
    """Lower and upper end of the band, at the places of the curve, (n,) each."""
    [shape] = [each for each in ax.collections if each.get_label() == "90% of draws"]
    vertices = shape.get_paths()[0].vertices
    positions = drawn(ax, "posterior mean").get_xdata()
    at = [vertices[np.isclose(vertices[:, 0], position), 1] for position in positions]
    return np.array([heights.min() for heights in at]), np.array([each.max() for each in at])


def test_every_mechanism_is_drawn_over_rows_and_domain_with_its_band(bent, toy):
    panels = cb.plots.draw_mechanisms(bent, truth=toy, key=1)
    assert [ax.get_title() for ax in panels] == ["X → Z", "Z → Y"]
    ax = panels[1]
    positions = drawn(ax, "posterior mean").get_xdata()
    assert positions[0] == -5.0 and positions[-1] == 20.0 and ax.get_xlim() == (-5.0, 20.0)
    np.testing.assert_allclose(
        drawn(ax, "truth").get_ydata(), np.cos(positions) - np.exp(-positions / 20), rtol=1e-9
    )
    values = np.stack([0 * positions, positions, 0 * positions], axis=1)
    curves = bent.distribution.response.mechanism(bent.draws(400, 1), "Y", values)
    low, high = band(ax)
    np.testing.assert_allclose(low, np.quantile(curves, 0.05, axis=0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(high, np.quantile(curves, 0.95, axis=0), rtol=1e-6, atol=1e-9)
    assert faults(panels) == []


def test_rows_with_one_cause_are_drawn_as_they_were_seen(bent):
    [ax] = cb.plots.draw_mechanisms(bent, edges=[("X", "Z")])
    rows = drawn(ax, "rows")
    np.testing.assert_allclose(rows.get_xdata(), bent.data.column("X"))
    np.testing.assert_allclose(rows.get_ydata(), bent.data.column("Z"), rtol=1e-9, atol=1e-9)


def test_where_do_goes_and_where_rows_end_is_marked(bent):
    [ax] = cb.plots.draw_mechanisms(bent, edges=[("Z", "Y")])
    assert list(drawn(ax, "where do() goes").get_xdata()) == [-5.0, 20.0]
    seen = bent.data.column("Z")
    spans = [patch.get_window_extent().transformed(ax.transData.inverted()) for patch in ax.patches]
    ends = sorted((box.x0, box.x1) for box in spans)
    np.testing.assert_allclose(ends, [(-5.0, seen.min()), (seen.max(), 20.0)], atol=1e-6)


def test_rows_are_moved_to_the_means_of_their_other_causes(three):
    """The mechanism of Y is linear: its residual plus the line along one cause, by hand."""
    panels = {ax.get_title(): ax for ax in cb.plots.draw_mechanisms(three)}
    assert list(panels) == ["X → Z", "W → Y", "X → Y", "Z → Y"]
    at = dict(zip(three.names, three.mean, strict=True))
    column = {name: three.data.column(name) for name in three.data.nodes}
    others = sum(at[f"b[{name}->Y]"] * (column[name] - column[name].mean()) for name in "WX")
    rows = drawn(panels["Z → Y"], "rows")
    np.testing.assert_allclose(rows.get_ydata(), column["Y"] - others, rtol=1e-8, atol=1e-9)
    assert panels["Z → Y"].get_xlabel() == "Z [mg/l]"
    free = drawn(panels["X → Z"], "rows")
    assert len(free.get_xdata()) == 60  # rows in which Z was set say nothing about it
    with_bar = [title for title, ax in panels.items() if "where do() goes" in labels(ax)]
    assert with_bar == ["X → Z", "X → Y", "Z → Y"]
    figure = panels["X → Z"].figure
    assert figure.get_suptitle() == "conjugate, 70 rows: all mechanisms, cause by cause"


def test_mechanisms_go_into_the_axes_they_are_given(bent):
    figure, (left, right) = plt.subplots(1, 2)
    [ax] = cb.plots.draw_mechanisms(bent, right, edges=[("X", "Z")], level=0.5)
    assert ax is right and not left.lines and ax.get_legend() is not None
    assert "50% of draws" in labels(ax) and len(figure.axes) == 2
    with pytest.raises(
        cb.errors.ModelError, match=r"there are 1 Axes for 2 panels \(X -> Z, Z -> Y\)"
    ):
        cb.plots.draw_mechanisms(bent, right)


def test_only_the_mechanisms_nearest_to_the_target_are_drawn_where_there_are_many(
    three, monkeypatch
):
    assert mechanism_plots.MOST == 12
    monkeypatch.setattr(mechanism_plots, "MOST", 2)
    panels = cb.plots.draw_mechanisms(three)
    assert [ax.get_title() for ax in panels] == ["X → Y", "Z → Y"]
    title = panels[0].figure.get_suptitle()
    assert title == "conjugate, 70 rows: 2 of 4 pairs of cause and effect"


def test_linear_mechanisms_are_drawn_as_lines(line):
    [ax] = cb.plots.draw_mechanisms(line, edges=[("Z", "Y")])
    at = dict(zip(line.names, line.mean, strict=True))
    curve = drawn(ax, "posterior mean")
    np.testing.assert_allclose(
        curve.get_ydata(), at["a[Y]"] + at["b[Z->Y]"] * curve.get_xdata(), rtol=1e-9
    )
    total = cb.fit(line.problem, line.data, parameters="total_effect")
    with pytest.raises(cb.errors.ModelError, match="theta of this posterior .* does not hold them"):
        cb.plots.draw_mechanisms(total)


def test_odd_requests_for_mechanisms_are_refused(bent):
    for options, match in [
        ({"edges": [("X", "Y")]}, "'X -> Y' is no mechanism that was learned; choose among X -> Z"),
        ({"edges": []}, "'nothing' is no mechanism that was learned"),
        ({"draws": 1}, "draws"),
    ]:
        with pytest.raises(cb.CausalBOError, match=match):
            cb.plots.draw_mechanisms(bent, **options)
    with pytest.raises(cb.errors.DomainError, match="level must lie between 0 and 1, got 90"):
        cb.plots.draw_mechanisms(bent, level=90)
    with pytest.raises(
        cb.errors.ModelError, match="draw_mechanisms needs a Posterior, got Problem"
    ):
        cb.plots.draw_mechanisms(bent.problem)


def test_prior_is_drawn_as_lines_beside_the_rows(bent):
    panels = cb.plots.draw_prior(bent, n=7, key=3)
    ax = panels[0]
    curves = [each for each in ax.lines if len(each.get_xdata()) == mechanism_plots.POINTS]
    assert len(curves) == 7
    before = bent.distribution.draw_prior(7, as_key(3))
    values = np.zeros((mechanism_plots.POINTS, 3))
    values[:, 0] = curves[0].get_xdata()
    expected = bent.distribution.response.mechanism(before.theta[:7], "Z", values)
    np.testing.assert_allclose([each.get_ydata() for each in curves], expected, rtol=1e-9)
    np.testing.assert_allclose(drawn(ax, "rows").get_ydata(), bent.data.column("Z"))
    low, high = ax.get_ylim()
    seen = bent.data.column("Z")
    assert low < seen.min() and seen.max() < high <= seen.max() + 2 * np.ptp(seen)
    assert faults(panels) == []


def test_prior_that_cannot_be_drawn_from_is_refused(line):
    with pytest.raises(
        cb.errors.ModelError, match=r"from the prior of this posterior \(ScaledPrior\)"
    ):
        cb.plots.draw_prior(line)
    fixed = cb.fit(line.problem, line.data, prior=cb.priors.FixedPrior())
    [ax] = cb.plots.draw_prior(fixed, edges=[("X", "Z")], n=5)
    assert "a draw of the prior" in labels(ax)


def test_draws_of_the_prior_beyond_the_picture_are_counted(bent):
    ax = plt.figure().add_subplot()
    ax.set_ylim(-1, 1)
    across = np.array([[-3.0, 3.0], [2.0, 5.0], [-9.0, -2.0], [0.0, 4.0]])
    mechanism_plots._count_beyond(ax, across)
    assert [text.get_text() for text in ax.texts] == ["2 of 4 draws\nlie above or below"]
    [panel] = cb.plots.draw_prior(bent, edges=[("X", "Z")], n=7, key=3)
    low, high = panel.get_ylim()
    curves = [each.get_ydata() for each in panel.lines if len(each.get_xdata()) == 120]
    hidden = sum(bool((each > high).all() or (each < low).all()) for each in curves)
    said = [int(text.get_text().split()[0]) for text in panel.texts]
    assert said == ([hidden] if hidden else [])
