"""Plots of runs and studies: outcomes, progress against cost, experiments, and surprises.

Internals: logs are replaced, as if other interventions had been tried or had cost more.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers.drawn_texts import faults, labels
from helpers.long_names import CATALYST, HEAT, PRESSURE
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import Observations

ONE = (cb.plots.draw_run, cb.plots.draw_learning, cb.plots.draw_experiments)
EVERY = (*ONE, cb.plots.draw_progress, cb.plots.draw_surprise)


@pytest.fixture(scope="module")
def begun(chain):
    """A study of the chain before any experiment."""
    return cb.Study(chain.problem, chain.observe(50, 0), key=0)


@pytest.fixture(scope="module")
def lab(begun):
    """A study with all that a lab may report.

    Its experiments are Z = 5, which was suggested, X = 9, out of domain, X = 4, another set, out of
    domain, and Z = 5 as a whole row; three others failed, and one was retracted.
    """
    suggestion = begun.ask()
    study = begun.tell({"X": 2.0}, failed="leaked").tell(suggestion, -6.1)
    study = study.tell({"X": 9.0}, -8.0).tell({"X": 5.0}, -4.0).retract(4, "wrong sample")
    study = study.tell({"X": 4.0}, -4.4).tell({"Z": -20.0}, failed="burst")
    study = study.tell({}, {"X": 0.3, "Z": 1.2, "Y": -1.0}).tell({"Z": 1.0}, failed="leaked")
    study = study.tell({"X": 3.0, "Z": 12.0}, -14.2)
    return study.tell({"Z": 5.0}, {"X": 0.2, "Y": -6.6})


OUTCOMES = [-6.1, -8.0, -4.4, -14.2, -6.6]  # of the lab, in the order of its experiments


def offsets(ax, label):
    """The positions of the marks with a label."""
    [found] = [each for each in ax.collections if each.get_label() == label]
    return np.asarray(found.get_offsets())


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
    nodes, queries = run.problem.graph.nodes, run.problem.queries(interventions)
    outcomes = np.arange(float(len(interventions)))
    log = Observations.of(nodes, run.problem.target, queries, outcome=outcomes, cost=1.0)
    return cb.Run(run.study.with_log(log), run.system)


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
    log = run.study.observations
    expensive = run.study.with_log(log.with_columns(cost=np.full(len(log), 5.0)))
    ax = cb.plots.draw_progress([run, replace(run, study=expensive)])
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
        cb.surrogates.couple(run.study.start.post).predict(best).mean[0]
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


def test_a_run_without_outcomes_of_experiments_cannot_be_drawn(begun):
    passive = begun.tell({}, {"X": 0.3, "Z": 1.2, "Y": -1.0})
    failed = begun.tell({"X": 1.0}, failed="leaked")
    retracted = begun.tell({"X": 1.0}, -1.2).retract(1, "wrong sample")
    for study in (begun, passive, failed, retracted):
        for draw in (*ONE, cb.plots.draw_progress):
            with pytest.raises(cb.errors.DataError, match="a run or a study has no experiment yet"):
                draw(study)
            with pytest.raises(cb.errors.DataError, match="a run or a study has no experiment yet"):
                draw(cb.Run(study))
        with pytest.raises(cb.errors.DataError, match="there is no outcome yet"):
            cb.plots.draw_surprise(study)


def test_only_runs_and_studies_are_drawn(chain_run):
    for draw in ONE:
        for given, got in ((3, "int"), ("run", "str"), ([chain_run], "list")):
            message = f"{draw.__name__} needs a Run or a Study, or several; got {got}$"
            with pytest.raises(cb.errors.ArgumentError, match=message):
                draw(given)
    for given, got in ((3, "int"), ("run", "str"), ([], "nothing"), ([chain_run, 3], "Run, int")):
        message = f"draw_progress needs a Run or a Study, or several; got {got}$"
        with pytest.raises(cb.errors.ArgumentError, match=message):
            cb.plots.draw_progress(given)
    with pytest.raises(cb.errors.DataError, match="needs a Surprise, a run or a study, got int"):
        cb.plots.draw_surprise(3)
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1"):
        cb.plots.draw_progress(chain_run, level=90)


@pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)
def test_a_study_is_drawn_as_a_run_whose_system_is_not_known(chain_run, draw):
    of_study, of_run = draw(chain_run.study), draw(replace(chain_run, system=None))
    assert labels(of_study) == labels(of_run) and of_study.get_title() == of_run.get_title()
    for one, other in zip(of_study.lines, of_run.lines, strict=True):
        np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
    for one, other in zip(of_study.collections, of_run.collections, strict=True):
        np.testing.assert_array_equal(one.get_offsets(), other.get_offsets())
    assert "true" not in "".join(labels(of_study)) and faults(of_study) == []


@pytest.mark.heavy
@pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)
def test_a_study_of_several_sets_is_drawn(run, draw):
    ax = draw(run.study)
    assert run.problem.objective in ax.get_title() or draw is cb.plots.draw_surprise
    assert faults(ax) == []


@pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)
def test_all_that_a_lab_may_report_is_drawn_without_overlaps(lab, draw):
    assert faults(draw(lab)) == [] and faults(draw(cb.Run(lab))) == []


@pytest.mark.parametrize("draw", EVERY, ids=lambda draw: draw.__name__)
def test_a_single_outcome_is_drawn(begun, draw):
    ax = draw(begun.tell({"X": 1.0}, -1.2))
    assert faults(ax) == []
    if ax.get_xlabel() == "experiment":
        assert ax.get_xlim() == (0.5, 1.5)
        assert [tick for tick in ax.get_xticks() if 0.5 <= tick <= 1.5] == [1]


def test_a_single_outcome_has_the_interval_of_what_is_recommended(begun):
    study = begun.tell({"X": 1.0}, -1.2)
    half = 1.6448536 * study.best.sd
    for draw in (cb.plots.draw_run, cb.plots.draw_progress):
        [bar] = draw(study).collections
        np.testing.assert_allclose(
            bar.get_segments()[0][:, 1], [study.best.mean - half, study.best.mean + half]
        )


def test_outcomes_of_a_study_are_drawn_with_what_was_set_in_or_out_of_domain(lab):
    ax = cb.plots.draw_run(lab)
    assert labels(ax) == [
        "best so far: mean and 90% interval",
        "outcome, Z = 5 (2)",
        "outcome, X = 9, out of domain (1)",
        "outcome, X = 4 (1)",
        "outcome, X = 3, Z = 12, out of domain (1)",
    ]
    drawn = np.concatenate([line.get_xydata() for line in ax.lines[1:]])
    assert drawn[drawn[:, 0].argsort()].tolist() == [list(each) for each in enumerate(OUTCOMES, 1)]
    best = ax.lines[0].get_ydata()
    assert len(best) == len(OUTCOMES) and best[-1] == lab.best.mean


def test_what_is_recommended_after_every_outcome_of_a_study_is_what_it_recommended_then(begun):
    studies = [begun]
    for what, outcome in (({"X": 4.0}, -4.4), ({"Z": 5.0}, -6.1), ({"X": 9.0}, -8.0)):
        studies.append(studies[-1].tell(what, outcome))
    ax = cb.plots.draw_run(studies[-1])
    assert ax.lines[0].get_ydata() == pytest.approx([each.best.mean for each in studies[1:]])


def test_progress_of_a_study_counts_what_failed_and_retracted_experiments_cost(lab):
    ax = cb.plots.draw_progress(lab)
    recommended, outcomes, failed = ax.lines
    spent = np.cumsum(lab.observations.cost)
    assert spent[-1] == lab.spent
    assert outcomes.get_xdata().tolist() == spent[[1, 2, 4, 8, 9]].tolist()
    assert recommended.get_xdata().tolist() == outcomes.get_xdata().tolist()
    assert outcomes.get_ydata().tolist() == OUTCOMES
    assert failed.get_xdata().tolist() == spent[[0, 5, 7]].tolist()
    assert labels(ax) == ["recommended: mean, 90% interval", "outcome", "failed"]
    assert ax.get_xlim()[1] > lab.spent
    low, high = ax.get_ylim()
    assert failed.get_ydata().max() < (min(OUTCOMES) - low) / (high - low)  # below all outcomes


def test_an_outcome_that_cost_nothing_is_seen_in_the_progress(begun):
    ax = cb.plots.draw_progress(begun.tell({"X": 9.0}, -8.0).tell({"X": 1.0}, -1.2))
    assert ax.lines[1].get_xdata()[0] == 0.0 and ax.get_xlim()[0] < 0


def test_studies_are_compared_where_their_system_is_known(chain, begun):
    one, other = begun.tell({"Z": 5.0}, -6.1), begun.tell({"X": 1.0}, -1.2)
    with pytest.raises(cb.errors.DataError, match="by their gaps, which need the true system"):
        cb.plots.draw_progress([one, other])
    with pytest.raises(cb.errors.DataError, match="by their gaps, which need the true system"):
        cb.plots.draw_progress({"one": one, "other": [cb.Run(other, chain)]})
    runs = {"one": [cb.Run(one, chain)], "other": cb.Run(other, chain)}
    ax = cb.plots.draw_progress(runs)
    assert [each.split(":")[0] for each in labels(ax)] == ["one, 1 run", "other, 1 run"]
    alone = cb.plots.draw_progress({"one": [one]})
    assert labels(alone) == labels(cb.plots.draw_progress(one))


def test_what_a_study_learned_is_shown_for_interventions_in_the_domain_where_there_are_any(lab):
    ax = cb.plots.draw_learning(lab)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["X = 3, Z = 12, out of domain", "Z = 5", "X = 4"]
    before, after = ax.lines
    shown = [{"Z": 5.0}, {"X": 4.0}]
    assert after.get_xdata()[1:] == pytest.approx(lab.effects(shown)["mean"].to_numpy())
    start = cb.surrogates.couple(lab.start.post)
    means = start.predict(lab.problem.queries(shown)).mean
    assert before.get_xdata()[1:] == pytest.approx(means)
    assert "all 3 sets tried" in ax.get_title() and labels(ax)[1] == "after 5 experiments"


def test_true_effects_are_marked_for_interventions_in_the_domain(chain, lab):
    ax = cb.plots.draw_learning(cb.Run(lab, chain))
    truth = ax.lines[2]
    assert truth.get_ydata().tolist() == [1, 2]
    assert truth.get_xdata() == pytest.approx(chain.effect([{"Z": 5.0}, {"X": 4.0}]))


def test_failed_experiments_are_crosses_and_those_out_of_domain_diamonds(lab):
    ax = cb.plots.draw_experiments(lab)
    assert labels(ax) == ["out of domain", "failed", "recommended"]
    # columns: a failure, experiments 1 to 3, two failures, experiments 4 and 5
    assert offsets(ax, "failed")[:, 0].tolist() == [1, 5, 6]
    assert offsets(ax, "recommended")[:, 0].tolist() == [2, 8]
    inside, outside = (np.asarray(each.get_offsets()) for each in ax.collections[1:3])
    assert inside[:, 0].tolist() == [2, 4, 8] and outside[:, 0].tolist() == [3, 7, 7]
    numbers = [text.get_text() for text in ax.get_xticklabels()]
    assert numbers == ["1", "2", "3", "4", "5"] and ax.get_xticks().tolist() == [2, 3, 4, 7, 8]
    assert ax.get_title() == "gc-cbo: min Y, 2 of 2 sets tried, and 1 other"


def test_values_beyond_a_domain_stay_in_the_band_of_their_variable(lab):
    ax = cb.plots.draw_experiments(lab)
    outside = np.asarray(ax.collections[2].get_offsets())
    np.testing.assert_array_equal(np.round(outside[:, 1]), [0, 0, 1])
    beyond = 0.54 * (0.5 + 0.24)  # above the domain, whose end is at 0.27, and below 0.44
    assert outside[[0, 2], 1] == pytest.approx([-beyond, 1 - beyond])
    assert outside[1, 1] == pytest.approx(-0.54 * (0.8 - 0.5))  # X = 3 lies in its domain
    assert offsets(ax, "failed")[1, 1] == pytest.approx(1 + beyond)


def test_a_variable_without_a_domain_is_shown_over_the_values_that_were_set(chain):
    problem = cb.Problem(chain.problem.graph, "Y", domains={"X": (-5.0, 5.0)})
    study = cb.Study(problem, chain.observe(50, 0), key=0).tell({"Z": 3.0}, -4.0)
    ax = cb.plots.draw_experiments(study.tell({"Z": 1.0}, -1.4))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["X", "Z, no domain"]
    ends = [text.get_text() for text in ax.get_yticklabels(minor=True)]
    assert ends == ["-5", "5", "1", "3"]
    assert np.asarray(ax.collections[2].get_offsets()).tolist() == [[1, 0.73], [2, 1.27]]
    assert ax.get_title() == "gc-cbo: min Y, 0 of 1 sets tried, and 1 other"
    assert faults(ax) == []
    once = cb.plots.draw_experiments(study)
    assert np.asarray(once.collections[2].get_offsets()).tolist() == [[1, 1.0]]
    assert faults(once) == []


def test_surprise_of_a_study_is_that_of_its_predicted_outcomes(lab):
    ax = cb.plots.draw_surprise(lab)
    scores = np.concatenate([line.get_xydata() for line in ax.lines[2:]])
    expected = lab.surprise.table["score"]
    assert scores[scores[:, 0].argsort()].tolist() == [[n, z] for n, z in expected.items()]
    surprise = lab.surprise
    arrays = type(surprise.arrays)(*(column[:2] for column in surprise.arrays))
    fewer = lab._with(surprise=replace(surprise, queries=surprise.queries[:2], arrays=arrays))
    ax = cb.plots.draw_surprise(fewer)
    assert ax.get_xlabel() == "experiment, of 2 that were predicted of 5"
    assert cb.plots.draw_surprise(fewer.surprise).get_xlabel() == "experiment"
