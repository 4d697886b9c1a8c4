"""Outcomes against their predictions: calibrated under the model, sensitive where it is wrong.

Internals: outcomes are assessed without the run that they would need.
"""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.logs import recorded
from helpers.runs import optimize
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics.sequential import PredictionArrays, Surprise, between
from causal_bo_ppl.optimization.state import begin, infer_state, predict_outcomes


def predict(problem, interventions, outcomes, mean=0.0, sd=0.3, noise=1.0, degrees=np.inf):
    queries = problem.queries(interventions)
    numbers = np.broadcast_arrays(mean, sd, noise, np.asarray(outcomes, float), degrees)
    return queries, PredictionArrays(*map(np.array, numbers))


def assess(problem, predicted, until=None):
    queries, arrays = predicted
    first = slice(0, until)
    return Surprise(problem, queries[first], PredictionArrays(*(each[first] for each in arrays)))


# What is reported to an analyst


def test_eight_outcomes_far_from_their_prediction_are_a_surprise_by_the_fourth(chain_graph):
    problem = cb.Problem(chain_graph, "Y", domains={"X": (-3, 3), "Z": (-3, 3)})
    predicted = predict(
        problem, [{"Z": 3.0}] * 8, [6.35] * 8, mean=-0.75, sd=0.25, noise=10.2, degrees=398
    )
    found = assess(problem, predicted)
    assert found.alarm <= 4 and found.verdict == "failed" and found.p < 1e-6
    assert not found.is_scatter and found.mechanisms.index.tolist() == ["Y"]
    assert "do(Z = 3): predicted was -0.75 +- 0.25" in found.text
    assert "the mean of 8 outcomes is 6.35, worse than predicted" in found.text
    assert "mechanism of Y" in found.text and "check_graph" in found.advice
    assert 'discrepancy="auto"' in found.message and 'mechanisms="gp"' in found.message
    assert "surprise: failed" in found._repr_html_() and "predicted" in repr(found)
    earlier = assess(problem, predicted, found.alarm - 1)
    assert earlier.verdict == "passed" and earlier.grade == "unusual" and "again" in earlier.advice


def test_surprise_is_graded_by_its_p_value_and_by_the_bayes_factor_of_a_discrepancy(make_problem):
    """A factor above 20 has a probability of 1 in 20 at most under the model, one of 1,000 of 1."""
    problem = make_problem()
    near, far = (predict(problem, [{"X": 1.0}] * n, [y] * n) for n, y in ((2, 0.1), (1, 3.5)))
    assert assess(problem, near).grade == "agree" and assess(problem, near).advice == ""
    one = assess(problem, far)
    assert 1e-3 < one.p < 0.05 and one.grade == "unusual" and one.verdict == "passed"
    assert "The outcomes of experiments are unusual under the model (p = 0.0" in one.text
    for factor, grade in ((19.0, "agree"), (24.6, "unusual"), (2_000.0, "contradict")):
        found = replace(assess(problem, near), log_factor=np.log(factor))
        assert found.grade == grade and (found.verdict == "failed") == (grade == "contradict")
        assert (f"Bayes factor {factor:.3g} for a discrepancy" in found.text) == (factor > 20)
    forced = replace(assess(problem, near), has_discrepancy=True)
    assert forced.grade == "unusual" and "a discrepancy is in use" in forced.text


def test_surprise_names_a_product_and_advises_what_is_not_in_use():
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (-2, 2), "B": (-2, 2)})
    asked = [{"A": 2.0, "B": -2.0}] * 6 + [{"A": 2.0}] * 3 + [{"B": -2.0}] * 3
    outcomes = [-4.0] * 6 + [0.2, -0.3, 0.1, 0.4, -0.2, 0.1]
    found = assess(problem, predict(problem, asked, outcomes))
    assert found.verdict == "failed"
    assert "a product of A and B in that of Y; each alone is as predicted" in found.text
    assert 'Fit mechanisms={"Y": cb.GP(groups=[("A", "B")])}.' in found.advice
    used = replace(found, in_use=("nonlinear mechanisms", "discrepancy"))
    for advised in ('mechanisms="gp"', 'discrepancy="auto"'):
        assert advised in found.advice and advised not in used.advice
    both = assess(problem, predict(problem, asked[:6], outcomes[:6]))
    assert both.verdict == "failed" and "product" not in both.text  # A or B alone may be wrong
    table = pd.DataFrame({"verdict": ["failed"]}, index=[("Y", "A", "B")])
    shown = replace(both, checks=(cb.diagnostics.Check("interactions", table, "They interact."),))
    assert "a product of A and B in that of Y; the observations show it too" in shown.text


def test_the_table_holds_the_running_statistics_with_their_p_values(make_problem):
    problem = make_problem()
    predicted = predict(problem, [{"X": 1.0}, {"Z": 1.0}, {"X": 1.0}], [1.0, -2.0, 3.0], sd=0.0)
    table = assess(problem, predicted).table
    np.testing.assert_allclose(table["score"], [1, -2, 3])
    np.testing.assert_allclose(table["size"], [1, 5, 14])
    np.testing.assert_allclose(table["signed"], [1, -1 / 2**0.5, 2 / 3**0.5])
    np.testing.assert_allclose(table["set_signed"], [1, -2, 4 / 2**0.5])
    np.testing.assert_allclose(table["p_signed"][1], 2 * norm.sf(1))
    assert table["set"].tolist() == ["X", "Z", "X"] and table.index.tolist() == [1, 2, 3]
    assert (table["p_corrected"].diff().dropna() <= 0).all()
    lines = assess(problem, predicted).interventions
    assert (
        lines.loc["do(X = 1)", "mean_outcome"] == 2 and lines.loc["do(X = 1)", "noise_ratio"] == 2
    )
    assert lines.loc["do(X = 1)", "z"] == pytest.approx(2 * 2**0.5)


def test_replicates_that_differ_among_themselves_are_noise_and_no_bias(make_problem):
    rng, problem = np.random.default_rng(5), make_problem()
    outcomes = 5 * rng.normal(size=10)
    found = assess(problem, predict(problem, [{"X": 1.0}] * 10, outcomes - outcomes.mean()))
    assert found.verdict == "failed" and found.is_scatter
    assert "scatter more than predicted" in found.text and "noise=" in found.advice
    assert "times as much as their noise should" in found.text
    assert found.evidence.replicates[-1] > 1_000


def test_the_mechanism_that_the_right_outcomes_do_not_use_is_suspected_first(make_problem):
    problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
    rng = np.random.default_rng(6)
    asked = [{"X": 1.0}, {"Z": 1.0}] * 8
    shifts = np.array([2.5, 0.0] * 8)
    found = assess(problem, predict(problem, asked, shifts + 0.5 * rng.normal(size=16), sd=0.1))
    assert found.verdict == "failed" and found.mechanisms.index[0] == "Z"
    assert found.interventions.index[0] == "do(X = 1)"
    assert between(problem, ["X"]) == ("Z", "Y") and between(problem, ["Z"]) == ("Y",)
    assert between(problem, ["X", "Z"]) == ("Y",)


def test_outcomes_better_than_predicted_surprise_too_and_directions_follow_the_objective(
    make_problem,
):
    lowered = assess(make_problem(), predict(make_problem(), [{"X": 1.0}] * 8, [-2.6] * 8))
    problem = make_problem(objective="max")
    missed = assess(problem, predict(problem, [{"X": 1.0}] * 8, [-2.6] * 8))
    assert lowered.verdict == missed.verdict == "failed" and missed.p < lowered.p
    assert "better than predicted" in lowered.text and "worse than predicted" in missed.text


def test_exact_outcomes_that_agree_up_to_rounding_are_no_surprise(make_problem):
    problem = make_problem()
    predicted = predict(problem, [{"X": 1.0}] * 9, [2 + 1e-12] * 9, mean=2.0, sd=0.0, noise=0.0)
    assert assess(problem, predicted).verdict == "passed"
    predicted = predict(problem, [{"X": 1.0}] * 2, [2.1] * 2, mean=2.0, sd=0.0, noise=0.0)
    assert assess(problem, predicted).verdict == "failed"
    zeros = predict(problem, [{"X": 1.0}], [0.0], mean=0.0, sd=0.0, noise=0.0)
    assert assess(problem, zeros).p == 1.0


def test_without_outcomes_nothing_is_assessed(make_problem):
    problem = make_problem()
    found = assess(problem, predict(problem, [{"X": 1.0}], [0.0]), 0)
    assert found.verdict == "not assessed" and found.p == 1.0 and found.alarm is None
    assert len(found.table) == len(found.mechanisms) == len(found.interventions) == 0
    assert "no outcome" in found.text


def test_evidence_that_was_found_once_is_not_lost_by_later_outcomes(make_problem):
    problem = make_problem()
    outcomes = np.concatenate([np.full(20, 2.5), np.zeros(300)])
    assert assess(problem, predict(problem, [{"X": 1.0}] * 320, outcomes)).alarm < 20


def test_the_picture_shows_every_outcome_the_sum_and_the_alarm(make_problem):
    problem = make_problem()
    predicted = predict(problem, [{"X": 1.0}] * 3 + [{"Z": 2.0}] * 5, [2.6] * 7 + [-1.0])
    found = assess(problem, predicted)
    axes = cb.plots.draw_surprise(found)
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_allclose(lines["signed sum over √t"].get_ydata(), found.table["signed"])
    assert len(lines["outcome, worse than predicted"].get_xdata()) == 7
    assert lines["outcome, better than predicted"].get_xdata().tolist() == [8]
    assert f"p < 0.001 from {found.alarm} on" in lines
    assert "contradict their predictions" in axes.get_title()
    assert [text.get_text() for text in axes.texts] == ["X", "Z"]
    run = SimpleNamespace(surprise=assess(problem, predicted, 1))
    assert "agree" in cb.plots.draw_surprise(run).get_title()
    plt.close("all")
    with pytest.raises(cb.errors.DataError, match="no outcome yet"):
        cb.plots.draw_surprise(assess(problem, predicted, 0))
    with pytest.raises(cb.errors.DataError, match="needs a Surprise, a run or a study, got int"):
        cb.plots.draw_surprise(3)


# Predictions in order


def test_a_batch_is_predicted_as_if_recorded_one_after_another():
    system = cb.models.load("chain")
    surrogate = cb.surrogates.couple(cb.fit(system.problem, system.observe(40, 0)))
    queries = system.problem.queries([{"X": 2.0}, {"Z": -3.0}, {"X": 2.0}, {"X": -4.0}])
    outcomes, noises = np.array([-1.0, 5.0, -3.0, 2.0]), np.array([2.0, 1.0, 2.0, 2.5])
    rows = recorded(system.problem, queries, outcomes, variance=noises)
    before = infer_state(begin(surrogate.post, cb.Settings()), rows.select([]))
    predicted = predict_outcomes(before, rows)
    assert predicted.degrees.tolist() == [38.0] * 4
    assert predicted.noise.tolist() == noises.tolist()
    assert predicted.outcome.tolist() == outcomes.tolist()
    for index in range(4):
        mean, sd = surrogate.predict(queries[index])
        assert predicted.mean[index] == pytest.approx(mean[0], rel=1e-4)
        assert predicted.sd[index] == pytest.approx(sd[0], rel=1e-4)
        surrogate = surrogate.condition(queries[index], outcomes[index], noises[index])


def test_degrees_are_observations_of_the_target_minus_parameters():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    assert post.noise_degrees == 38
    rows = system.experiment(system.problem.queries([{"Z": 1.0}] * 3), 0)
    assert post.update(rows).noise_degrees == 41


# Whole runs


def play(system, rows, learn_from, seeds, rounds=15):
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cb.CausalBOWarning)
            run = optimize(
                system,
                rounds=rounds,
                observations=rows,
                learn_from=learn_from,
                discrepancy=False,
                key=seed,
                progress=False,
            )
        yield run.surprise


@pytest.mark.heavy
def test_a_bowl_fitted_as_linear_surprises_within_a_few_outcomes(bowl):
    alarms = [found.alarm or 99 for found in play(bowl, 400, "target", range(8), rounds=12)]
    assert np.median(alarms) <= 4 and max(alarms) <= 12


@pytest.mark.slow
@pytest.mark.parametrize("learn_from", ["target", "rows"])
def test_a_bowl_fitted_as_linear_surprises_by_the_fourth_outcome_in_most_seeds(bowl, learn_from):
    """After an outcome that disappoints the loop looks elsewhere, and takes a little longer."""
    alarms = np.array([found.alarm or 99 for found in play(bowl, 400, learn_from, range(40))])
    assert (alarms <= 4).sum() >= 20 and np.median(alarms) <= 4 and (alarms <= 8).sum() >= 37


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 100])
@pytest.mark.parametrize("learn_from", ["target", "rows"])
@pytest.mark.parametrize("name", ["chain", "ecoli70"])
def test_true_linear_systems_are_rarely_reported_as_surprising(name, learn_from, rows):
    network = {"target": "b1583", "parents": False, "max_size": 2} if name == "ecoli70" else {}
    system = cb.models.load(name, **network)
    found = [each.alarm is not None for each in play(system, rows, learn_from, range(400))]
    assert sum(found) <= 8


def test_outcomes_that_contradict_an_effect_win_and_are_reported():
    """An interaction that linear mechanisms miss: the effect at the corners has the other sign."""
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    domains = {"A": (-2.0, 2.0), "B": (-2.0, 2.0)}
    problem = cb.Problem(graph, "Y", objective="max", domains=domains, sets=2)
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 80))
    table = pd.DataFrame({"A": a, "B": b, "Y": a * b + 0.4 * rng.normal(size=80)})
    settings = cb.Settings(learn_from="target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)  # of the interaction that data show
        study = cb.Study(problem, cb.Data.from_frame(problem, table), settings, key=0)
    corner = {"A": 2.0, "B": 2.0}
    expected = study.effects(corner)["mean"][0]
    assert abs(expected - 4.0) > 2
    message = r"The outcomes of do\(A = 2, B = 2\) have the mean 4.1, where the mechanisms imply"
    with pytest.warns(cb.CausalBOWarning, match=message):
        after = study.tell(corner, 4.1, sure=True)
    assert after.state.discrepancy > 0 and len(after.warnings) >= 1
    found = after.effects(corner)
    assert abs(found["mean"][0] - 4.1) < 3 * np.sqrt(
        after.state.noises(problem.queries([corner]))[0]
    )
    other = after.effects({"A": -2.0, "B": 2.0})  # the process is one of both values together
    assert other["sd"][0] > 2 * found["sd"][0]
