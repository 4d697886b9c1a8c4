"""Plots of runs: outcomes, progress against cost, experiments, and surprises."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.drawn_texts import faults, labels
from helpers.long_names import CATALYST, HEAT, PRESSURE
from helpers.runs import optimize

import causal_bo_ppl as cb


def test_run_is_drawn_with_its_outcomes_and_the_truth(chain_run):
    axes = cb.plots.draw_run(chain_run)
    assert labels(axes) == [
        "best so far: mean and 90% interval",
        "outcome, Z = 5 (4)",
        "best so far: true effect",
        "true optimum",
    ]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), chain_run.trace["outcome"])
    assert axes.lines[3].get_ydata()[0] == -6.5
    assert faults(axes) == []


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
    return {line.get_label()[9:]: [int(number) for number in line.get_xdata()] for line in marks}


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


@pytest.mark.heavy
def test_progress_has_both_gaps_against_cost(run):
    ax = cb.plots.draw_progress(run)
    recommended, tried = ax.lines
    np.testing.assert_allclose(recommended.get_xdata(), run.trace["total_cost"])
    np.testing.assert_allclose(recommended.get_ydata(), run.regret())
    np.testing.assert_allclose(tried.get_ydata(), run.regret("tried"))
    assert [each.split(":")[0] for each in labels(ax)] == [
        "recommended",
        "best tried, known to an oracle only",
    ]
    assert ax.get_ylabel() == "gap to the optimum, b1583" and ax.get_ylim()[0] < 0
    assert faults(ax) == []


@pytest.mark.heavy
def test_progress_without_the_truth_is_the_recommended_effect_with_its_interval(run):
    ax = cb.plots.draw_progress(replace(run, system=None), level=0.5)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), run.trace["best_mean"])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), run.trace["outcome"])
    assert labels(ax) == ["recommended: mean, 50% interval", "outcome"]
    assert faults(ax) == []


@pytest.mark.heavy
def test_progress_of_several_runs_is_the_median_of_each_method(run):
    system = cb.models.load("chain")
    runs = [
        optimize(system, preset=method, rounds=3, observations=12, progress=False, key=key)
        for key in range(3)
        for method in ("gc-cbo", "gc-cbo-fixed")
    ]
    ax = cb.plots.draw_progress(runs)
    for line, method in zip(ax.lines, ("gc-cbo", "gc-cbo-fixed"), strict=True):
        own = [each.regret() for each in runs if each.settings.name == method]
        np.testing.assert_allclose(line.get_ydata(), np.median(own, axis=0))
    assert ax.get_title() == "6 runs: min Y, optimum -6.5"
    assert [each.split(":")[0] for each in labels(ax)] == ["gc-cbo, 3 runs", "gc-cbo-fixed, 3 runs"]
    named = cb.plots.draw_progress({"one": runs[:2], "rest": runs[2:]})
    assert [each.split(":")[0] for each in labels(named)] == ["one, 2 runs", "rest, 4 runs"]
    with pytest.raises(cb.errors.DataError, match="different problems"):
        cb.plots.draw_progress([run, runs[0]])
    with pytest.raises(cb.errors.DataError, match="by their gaps, which need the true system"):
        cb.plots.draw_progress([replace(each, system=None) for each in runs])


@pytest.mark.heavy
def test_runs_are_compared_at_costs_that_all_have_reached(run):
    expensive = [step._replace(suggestion=step.suggestion._replace(cost=5.0)) for step in run.steps]
    ax = cb.plots.draw_progress([run, replace(run, steps=tuple(expensive))])
    costs = ax.lines[0].get_xdata()
    assert costs[0] == 5.0 and costs[-1] == run.trace["total_cost"][-1]


@pytest.mark.heavy
def test_what_was_learned_is_shown_before_and_after_for_every_set(run):
    ax = cb.plots.draw_learning(run, most=2)
    before, after, truth, _ = ax.lines
    chosen = ax.get_yticklabels()
    assert len(chosen) == 2 and "2 worse ones omitted" in ax.get_title()
    means = np.asarray(after.get_xdata())
    assert (np.diff(means) >= 0).all()
    tried = run.surrogate.predict(run.queries).mean
    assert means[0] == pytest.approx(tried.min())
    best = run.queries[int(np.argmin(tried))]
    assert before.get_xdata()[0] == pytest.approx(
        cb.surrogates.couple(run.base).predict(best).mean[0]
    )
    assert truth.get_xdata()[0] == pytest.approx(run.system.effect(best)[0])
    assert labels(ax)[2:] == ["true effect", "true optimum"]
    assert faults(ax) == []


@pytest.mark.heavy
def test_experiments_are_shown_by_variable_and_value_in_order(run):
    ax = cb.plots.draw_experiments(run)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == list(run.problem.manipulable)
    marks = ax.collections[1]  # after the lines that join the members of a set
    numbers, heights = np.asarray(marks.get_offsets().filled(np.nan)).T
    seen = np.isfinite(heights)
    assert seen.sum() == np.asarray(run.queries.mask).sum()
    values = run.trace["value"].to_numpy()
    for position, height in zip(numbers[seen].astype(int), heights[seen], strict=True):
        variable = round(height)
        low, high = run.problem.domains[names[variable]]
        share = (values[position - 1, variable] - low) / (high - low)
        assert height == pytest.approx(variable - 0.54 * (share - 0.5))
    low, high = run.problem.domains[names[0]]
    ends = [text.get_text() for text in ax.get_yticklabels(minor=True)]
    assert ends[:2] == [f"{low:.3g}", f"{high:.3g}"]
    assert ax.get_yticks(minor=True)[:2].tolist() == [0.27, -0.27]
    assert "of 36 sets tried" in ax.get_title() and labels(ax) == ["recommended"]
    assert faults(ax) == []


@pytest.mark.heavy
def test_levels_are_lines_in_the_picture_of_experiments():
    chain = cb.models.load("chain")
    problem = cb.Problem(
        chain.problem.graph, "Y", domains={"X": cb.Levels([-5, 0, 5]), "Z": (-5, 5)}
    )
    system = replace(chain, problem=problem)
    ax = cb.plots.draw_experiments(
        cb.optimize(system, rounds=2, observations=20, progress=False, key=0)
    )
    assert [line.get_ydata()[0] for line in ax.lines] == pytest.approx([0.27, 0.0, -0.27])


@pytest.mark.heavy
def test_only_runs_with_experiments_are_drawn(run):
    for draw in (cb.plots.draw_progress, cb.plots.draw_learning, cb.plots.draw_experiments):
        with pytest.raises(cb.errors.DataError, match="has no experiment yet"):
            draw(replace(run, steps=()))
    with pytest.raises(
        cb.errors.ArgumentError, match="draw_progress needs a Run, or several; got str"
    ):
        cb.plots.draw_progress("run")
    with pytest.raises(
        cb.errors.ArgumentError, match="draw_learning needs a Run, or several; got int"
    ):
        cb.plots.draw_learning(3)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1"):
        cb.plots.draw_progress(run, level=90)
