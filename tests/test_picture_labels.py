"""Pictures with long names, mixed units and many effects: what is written can be read."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_texts import faults
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from scipy.stats import kstwobign

import causal_bo_ppl as cb
from causal_bo_ppl.plots.chains import rank_bound, rank_departures
from causal_bo_ppl.plots.labels import distinct, folded, name_decades

parse = cb.CausalGraph.parse
HEAT, PRESSURE = "reactor temperature (K)", "reactor pressure at the outlet (Pa)"
CATALYST, PROFIT = "catalyst_concentration_mol_per_l", "profit per campaign ($)"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    """A table of an analyst's own: long names with units, sizes from 0.002 to 300,000."""
    noise = np.random.default_rng(3).normal(size=(5, 120))
    heat, pressure, catalyst = 350 + 12 * noise[0], 101325 + 4000 * noise[1], 2e-3 + 4e-4 * noise[2]
    share = 0.004 * (heat - 350) + 120 * (catalyst - 0.002) + 0.5 + 0.02 * noise[3]
    profit = 5e5 * share + 5 * (pressure - 101325) - 900 * (heat - 350) + 8000 * noise[4]
    columns = {HEAT: heat, PRESSURE: pressure, CATALYST: catalyst, "yield %": share, PROFIT: profit}
    path = tmp_path_factory.mktemp("plant") / "plant.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    edges = [(HEAT, "yield %"), (CATALYST, "yield %"), ("yield %", PROFIT)]
    graph = cb.CausalGraph.from_edges([*edges, (PRESSURE, PROFIT), (HEAT, PROFIT)])
    domains = {HEAT: (330, 380), PRESSURE: (95000, 115000), CATALYST: (0.001, 0.004)}
    units = {PROFIT: "$ of 2024", HEAT: "K", PRESSURE: "Pa"}
    problem = cb.Problem(graph, PROFIT, objective="max", domains=domains, sets=2, units=units)
    return cb.fit(problem, cb.Data.from_csv(problem, path))


@pytest.fixture(scope="module")
def plant_run(plant):
    draws = np.random.default_rng(0)

    def experiment(queries):
        return cb.effects(plant, queries)["mean"].to_numpy() + 8000 * draws.normal(
            size=len(queries)
        )

    options = {"rounds": 7, "acquisition": "thompson", "update": "target", "progress": False}
    return cb.optimize(plant.problem, data=plant.data, experiment=experiment, key=1, **options)


def texts(labels):
    return [label.get_text() for label in labels]


def legend(ax):
    return texts(ax.get_legend().get_texts())


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
    ax.figure.draw_without_rendering()
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
    "response": lambda post: cb.plots.draw_response(post, PRESSURE, at={HEAT: 350.0}),
    "mechanisms": lambda post: cb.plots.draw_mechanisms(post, draws=20),
    "effect errors": lambda post: cb.plots.draw_effect_errors(
        cb.gaussian_error(post, draws=1000, key=0)
    ),
    "overlap": lambda post: cb.plots.draw_overlap(post.problem, post.data, [CATALYST, PRESSURE]),
    "correlation": lambda post: cb.plots.draw_coupling(cb.coupling(post), of="correlation"),
    "explained": lambda post: cb.plots.draw_coupling(cb.coupling(post), of="explained"),
    "lesson": lambda post: cb.plots.draw_variance_reduction(
        cb.variance_reduction(post, post.problem.vertices()[-1])
    ),
    "lessons": lambda post: cb.plots.draw_variance_reduction(
        cb.variance_reduction(post, post.problem.vertices()[-3:])
    ),
    "concentration": lambda post: cb.plots.draw_concentration(
        cb.theory.concentration(post.problem, post.data)
    ),
    "spectrum": lambda post: cb.plots.draw_spectrum(
        cb.jacobian_gram(post, post.problem.vertices())
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("picture", DRAWN)
def test_texts_of_long_names_are_whole_and_apart(plant, picture):
    panels = DRAWN[picture](plant)
    assert faults(panels) == []
    first = np.asarray(panels, dtype=object).flat[0]
    assert first.get_title() or first.figure.get_suptitle()


@pytest.mark.heavy
@pytest.mark.parametrize("picture", ["run", "progress", "learning", "experiments", "surprise"])
def test_texts_of_a_run_with_long_names_are_whole_and_apart(plant_run, picture):
    ax = getattr(cb.plots, f"draw_{picture}")(plant_run)
    assert faults(ax) == []
    written = " ".join([ax.get_xlabel(), ax.get_ylabel(), ax.get_title(), *texts_beside(ax)])
    assert r"\$ of 2024" in written.replace("\n", " ")
    is_interval = picture in ("run", "progress", "learning")
    assert ("do not account for the choice of the best" in written) == is_interval


def texts_beside(ax):
    """The labels of colour bars."""
    return [other.get_ylabel() for other in ax.figure.axes if other is not ax]


@pytest.mark.heavy
def test_pictures_with_long_names_fit_into_axes_that_are_given(plant):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6), layout="constrained")
    assert cb.plots.draw_response(plant, HEAT, left) is left
    check = cb.gaussian_error(plant, draws=1000, key=0)
    assert cb.plots.draw_effect_errors(check, right) is right
    assert faults(right) == [] and len(figure.axes) == 2


def test_effects_with_long_names_leave_room_for_their_intervals():
    names = [f"do({CATALYST} = {0.001 * row:g}, {PRESSURE} = 1.15e+05)" for row in range(1, 9)]
    numbers = dict.fromkeys(("mean", "gaussian_mean", "linear_mean"), 0.0)
    numbers |= dict.fromkeys(("sd", "linear_sd", "high", "gaussian_high"), 1.0)
    numbers |= {"low": -1.0, "gaussian_low": -1.0}
    details = pd.DataFrame(numbers, index=pd.Index(names, name="effect"))
    ax = cb.plots.draw_effect_errors(cb.Check("Gaussian error", details, "", "", details))
    assert faults(ax) == [] and len(set(texts(ax.get_yticklabels()))) == 8
    box, page = ax.get_window_extent(), ax.figure.bbox
    assert box.width > 0.4 * page.width
    assert legend(ax) == ["posterior", "Gaussian theta", "linearized effect"]


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
    with pytest.raises(cb.ModelError, match="unknown scale 'log'.*shared"):
        cb.plots.draw_posterior(plant, scale="log")


def test_coordinates_of_one_size_share_an_axis():
    system = cb.models.load("chain")
    ax = cb.plots.draw_posterior(cb.fit(system.problem, system.observe(40, 0)))
    assert not ax.texts and "own scale" not in ax.get_xlabel()
    assert ax.get_ylim() == (3.6, -0.6)


def test_a_lesson_that_removes_nearly_all_variance_is_written_in_plain_digits(plant):
    found = cb.variance_reduction(plant, plant.problem.vertices()[:2]).isel(experiment=[0])
    found["reduction"].values[0, :3] = [0.998, 1.0, 0.0123]
    ax = cb.plots.draw_variance_reduction(found)
    written = [text.get_text().strip() for text in ax.texts]
    assert written[:3] == ["-99.8 % of variance", "-100 % of variance", "-1.2 % of variance"]
    assert len(set(texts(ax.get_yticklabels()))) == found.sizes["effect"]
    assert ax.get_xlabel().replace("\n", " ").endswith(r"profit per campaign (\$) [\$ of 2024]")


def test_experiments_that_teach_have_different_labels(plant):
    tried = plant.problem.vertices()
    ax = cb.plots.draw_variance_reduction(cb.variance_reduction(plant, tried))
    assert len(set(texts(ax.get_yticklabels()))) == len(tried)
    assert ax.get_title().startswith("what one outcome teaches about effects on profit")


def steered(run, interventions):
    """The same run, as if these interventions had been tried; its outcomes from 0 on."""
    step, steps = run.steps[0], []
    for position, each in enumerate(interventions):
        suggestion = step.suggestion._replace(query=run.problem.queries([each]))
        steps.append(step._replace(suggestion=suggestion, outcome=float(position)))
    return replace(run, steps=tuple(steps))


def tried_marks(ax):
    """The label of every mark of outcomes, and the experiments that have it."""
    marks = [line for line in ax.lines if line.get_label().startswith("outcome, ")]
    for line in marks:
        np.testing.assert_allclose(line.get_ydata(), np.asarray(line.get_xdata()) - 1)
    looks = {(line.get_marker(), line.get_color()) for line in marks}
    assert len(looks) == len(marks)
    return {line.get_label()[9:]: [int(at) for at in line.get_xdata()] for line in marks}


@pytest.mark.heavy
def test_a_run_shows_what_was_tried_with_every_outcome(plant_run, monkeypatch):
    hot, cold, dense = {HEAT: 380.0}, {HEAT: 330.0}, {PRESSURE: 115000.0}
    few = steered(plant_run, [dense, hot, cold, hot, hot, {HEAT: 380.0, CATALYST: 0.004}])
    ax = cb.plots.draw_run(few)
    assert tried_marks(ax) == {
        f"{HEAT} = 380 (3)": [2, 4, 5],
        f"{PRESSURE} = 1.15e+05 (1)": [1],
        f"{HEAT} = 330 (1)": [3],
        "catalyst_concentr…n_mol_per_l=0.004, reactor temperature (K)=380 (1)": [6],
    }
    assert faults(ax) == []
    many = steered(plant_run, [hot, dense, *({HEAT: 340.0 + each} for each in range(6))])
    ax = cb.plots.draw_run(many)
    assert tried_marks(ax) == {f"{HEAT} (7)": [1, *range(3, 9)], f"{PRESSURE} (1)": [2]}
    monkeypatch.setattr("causal_bo_ppl.plots.runs.MOST_TRIED", 1)
    rest = steered(plant_run, [hot, dense, cold, {CATALYST: 0.004}])
    assert tried_marks(cb.plots.draw_run(rest)) == {
        f"{HEAT} (2)": [1, 3],
        "2 other sets (2)": [2, 4],
    }


def test_terms_of_one_comparison_are_named_by_its_rows_and_zeros_are_marked():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(30, 1))
    found = cb.compare_kernels(post, post.problem.grid(3), draws=100, progress=False, key=0)
    ax = cb.plots.draw_terms(found)
    assert texts(ax.get_xticklabels()) == ["30 rows"] and not ax.texts
    assert "exact" in legend(ax) and faults(ax) == []
    affine = found.copy(deep=True)
    for name in ("overall_drawn", "overall_drawn_se"):
        affine[name].loc[{"term": ["mixed", "remainder"]}] = 0.0
    affine.attrs["reference"] = "monte_carlo"
    ax = cb.plots.draw_terms(affine)
    assert [(text.get_text(), text.get_position()[0]) for text in ax.texts] == [
        ("0", 0.0),
        ("0", pytest.approx(0.22)),
    ]
    assert ax.get_ylim()[0] <= 0.05 and "exact" not in legend(ax)
    named = [value for value in ax.get_yticks() if ax.get_ylim()[0] <= value <= ax.get_ylim()[1]]
    assert len(named) >= 3 and faults(ax) == []


@pytest.mark.parametrize("count", [1, 3, 8, 60, 200, 1234])
def test_a_spectrum_counts_from_one_and_names_the_largest(count):
    ax = cb.plots.draw_spectrum(np.diag(np.geomspace(1, 1e-6, count)))
    at = [int(position) for position in ax.get_xticks()]
    assert at[0] == 1 and len(at) <= 9 and max(at) <= count and (np.diff(at) > 0).all()
    low, high = ax.get_ylim()
    named = [value for value in ax.get_yticks() if low <= value <= high]
    assert 1.0 in named and 4 <= len(named) <= 8
    assert ax.get_title() == f"spectrum of K over {count} effects" and faults(ax) == []


def boxes(ax):
    return [each for each in ax.patches if isinstance(each, FancyBboxPatch)]


def test_the_hedge_of_a_bow_is_outlined_though_its_members_have_colours():
    bow = cb.identify(parse("W -> X -> Y; X <-> Y"), "Y", ["X"])["X"]
    ax = cb.plots.draw_identification(bow)
    wide = [box.get_linewidth() > 2 for box in boxes(ax)]
    assert dict(zip(bow.graph.nodes, wide, strict=True)) == {"W": False, "X": True, "Y": True}
    assert "hedge (confounded)" in legend(ax)
    front = cb.identify(parse("X -> Z -> Y; X <-> Y"), "Y", ["X"])["X"]
    ax = cb.plots.draw_identification(front)
    assert all(box.get_linewidth() < 2 for box in boxes(ax)) and "hedge (confounded)" not in legend(
        ax
    )


def test_arcs_pass_behind_the_boxes_that_they_meet():
    graph = cb.models.load("funnel").problem.graph
    ax = cb.plots.draw_graph(graph)
    arrows = [each for each in ax.patches if isinstance(each, FancyArrowPatch)]
    assert max(each.get_zorder() for each in arrows) < min(each.get_zorder() for each in boxes(ax))


def test_regression_is_seen_under_an_estimand_that_equals_it():
    system = cb.models.load("chain")
    ax = cb.plots.draw_effect(cb.identify(system.problem)["Z"], system.observe(50, 0))
    _, regression, learned = ax.lines
    np.testing.assert_allclose(regression.get_ydata(), learned.get_ydata())
    assert regression.get_linewidth() > 2 * learned.get_linewidth()
    assert ax.get_title() == "effect of Z on Y, 50 rows observed"


def test_names_of_intervals_do_not_lie_on_each_other():
    ends = np.sort(np.random.default_rng(0).normal(size=(30, 2)), axis=1)
    names = ["ours, with the long name of a method", "theirs", "a third way of doing all of it"]
    ax = cb.plots.draw_coverage(dict.fromkeys(names, ends), 0.2)
    assert faults(ax) == []
    assert legend(ax) == ["truth, 0.2", "interval holds it", "interval misses it"]


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


def test_band_of_ranks_holds_chains_that_agree_as_often_as_it_says():
    """400 sets of three chains at 90 %: three standard errors are 0.045."""
    draws = np.random.default_rng(5).normal(size=(3, 60, 400))
    largest = np.abs(rank_departures(draws)).max(axis=(0, 1))
    assert (largest <= rank_bound(3, 60, 0.9)).mean() == pytest.approx(0.9, abs=0.045)
