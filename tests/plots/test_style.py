"""Labels fit, ticks have numbers, and the texts of figures with long names can be read.

Internals: labels and ticks are tested without a plot.
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.drawn_texts import faults
from helpers.long_names import CATALYST, HEAT, PRESSURE

import causal_bo_ppl as cb
from causal_bo_ppl.plots.style import distinct, folded, name_decades


def test_labels_are_cut_but_stay_different():
    base = "do(cspG = -0.04803, fixC = 4.098, lacY = {})"
    same = [base.format(value) for value in ("4.679", "4.678", "-2.587")]
    cut = distinct([*same, same[0]], 20)
    assert len(set(cut)) == 3 and cut[0] == cut[3]
    assert distinct(["do(X = 1)", "do(Z = 2)"], 20) == ["do(X = 1)", "do(Z = 2)"]
    [tight] = distinct(["do(cspG = -0.04803, ygcE = -1.453, lacY = 4.679)"], 42)
    assert tight == "do(cspG=-0.048, ygcE=-1.5, lacY=4.7)"
    [both] = distinct([f"do({CATALYST} = 0.004, {HEAT} = 380)"], 42)
    assert len(both) <= 42 and both.startswith("do(cat") and "=0.004, rea" in both
    assert both.endswith("=380)")
    assert distinct([], 5) == [] and distinct(["$x"], 5) == [r"\$x"]
    assert folded("$ of a long name", 8) == "\\$ of a\nlong\nname"


@pytest.mark.parametrize(
    ("low", "high"), [(3e-17, 3), (0.3, 0.7), (1e-3, 0.2), (80, 150), (4e4, 3e9), (0.05, 1.4)]
)
def test_a_logarithmic_axis_has_several_numbers(low, high):
    ax = plt.figure().add_subplot()
    ax.set(yscale="log", ylim=(low, high))
    name_decades(ax.yaxis, low, high)
    assert faults(ax) == []
    named = [
        tick.get_loc()
        for tick in ax.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high and tick.label1.get_text()
    ]
    assert 3 <= len(named) <= 10
    assert low > 1 or high < 1 or 1.0 in named
    assert not faults(ax)


DRAWN = {
    "problem": lambda post: cb.plots.draw_problem(post.problem),
    "identification": lambda post: cb.plots.draw_identification(cb.identify(post.problem)[HEAT]),
    "sharing": lambda post: cb.plots.draw_sharing(
        cb.identify(post.problem).parameters("structural")
    ),
    "effect": lambda post: cb.plots.draw_effect(
        cb.identify(post.problem)[HEAT], post.data, problem=post.problem
    ),
    "posterior": lambda post: cb.plots.draw_posterior(post),
    "response": lambda post: cb.plots.draw_response(post, PRESSURE, fixed={HEAT: 350.0}),
    "mechanisms": lambda post: cb.plots.draw_mechanisms(post, draws=20),
    "effect errors": lambda post: cb.plots.draw_effect_errors(
        cb.diagnostics.gaussian_error(post, draws=1000, key=0)
    ),
    "overlap": lambda post: cb.plots.draw_overlap(post.problem, post.data, [CATALYST, PRESSURE]),
    "correlation": lambda post: cb.plots.draw_coupling(cb.kernels.coupling(post), of="correlation"),
    "explained": lambda post: cb.plots.draw_coupling(cb.kernels.coupling(post), of="explained"),
    "one reduction": lambda post: cb.plots.draw_variance_reduction(
        cb.kernels.variance_reduction(post, post.problem.vertices()[-1])
    ),
    "several reductions": lambda post: cb.plots.draw_variance_reduction(
        cb.kernels.variance_reduction(post, post.problem.vertices()[-3:])
    ),
    "concentration": lambda post: cb.plots.draw_concentration(
        cb.theory.concentration(post.problem, post.data)
    ),
    "spectrum": lambda post: cb.plots.draw_spectrum(
        cb.jacobian_gram(post, post.problem.vertices())
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("plot", DRAWN)
def test_texts_of_long_names_are_whole_and_apart(plant, plot):
    panels = DRAWN[plot](plant)
    assert faults(panels) == []
    first = np.asarray(panels, dtype=object).flat[0]
    assert first.get_title() or first.figure.get_suptitle()


@pytest.mark.heavy
@pytest.mark.parametrize("plot", ["run", "progress", "learning", "experiments", "surprise"])
def test_texts_of_a_run_with_long_names_are_whole_and_apart(plant_run, plot):
    ax = getattr(cb.plots, f"draw_{plot}")(plant_run)
    assert faults(ax) == []
    written = " ".join([ax.get_xlabel(), ax.get_ylabel(), ax.get_title(), *texts_beside(ax)])
    assert r"\$ of 2024" in written.replace("\n", " ")
    is_interval = plot in ("run", "progress", "learning")
    assert ("do not account for the choice of the best" in written) == is_interval


def texts_beside(ax):
    """The labels of colour bars."""
    return [other.get_ylabel() for other in ax.figure.axes if other is not ax]


@pytest.mark.heavy
def test_plots_with_long_names_fit_into_axes_that_are_given(plant):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6), layout="constrained")
    assert cb.plots.draw_response(plant, HEAT, left) is left
    check = cb.diagnostics.gaussian_error(plant, draws=1000, key=0)
    assert cb.plots.draw_effect_errors(check, right) is right
    assert faults(right) == [] and len(figure.axes) == 2
