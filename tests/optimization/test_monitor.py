"""Outcomes against their predictions: calibrated under the model, sensitive where it is wrong.

Internals: evidence is compared with quadrature outcome by outcome.
"""

import warnings
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.runs import optimize
from scipy.integrate import quad
from scipy.stats import kstest, multivariate_t, norm

import causal_bo_ppl as cb
from causal_bo_ppl.optimization import monitor
from causal_bo_ppl.optimization.monitor import (
    PredictedOutcome,
    assess,
    between,
    condition_in_order,
    is_due,
    predict_outcomes,
)
from causal_bo_ppl.optimization.state import begin
from causal_bo_ppl.surrogates.base import NoisyOutcomes
from causal_bo_ppl.surrogates.discrepancy import noise_degrees

STEP = 1e-5


def ratios(scores, away=1.0, sets=None, interventions=None, predicted=None):
    scores = np.asarray(scores, float)
    zeros = np.zeros(len(scores), int)
    if predicted is None:
        predicted = (scores, 0 * scores, 0 * scores, 1 + 0 * scores)
    outcomes, means, variances, noises = predicted
    arrays = monitor.PredictionArrays(means, np.sqrt(variances), noises, outcomes, np.inf)
    groups = [zeros if each is None else np.asarray(each) for each in (sets, interventions)]
    return monitor.weigh_evidence(scores, np.asarray(away), *groups, arrays)


def predict(problem, interventions, outcomes, mean=0.0, sd=0.3, noise=1.0, degrees=np.inf):
    queries = problem.queries(interventions)
    numbers = np.broadcast_arrays(mean, sd, noise, np.asarray(outcomes, float), degrees)
    return [
        PredictedOutcome(query, *map(float, row))
        for query, row in zip(queries, np.stack(numbers, axis=1), strict=True)
    ]


# Standard normal scores


def test_known_variances_leave_residuals_as_they_are():
    z = np.array([0.3, -2.0, 1.4])
    np.testing.assert_allclose(monitor.normal_scores(z, np.full(3, np.inf)), z)
    assert np.abs(monitor.normal_scores(np.array([900.0, -900.0]), np.full(2, 40.0))).max() <= 37


def test_scores_of_a_common_estimate_have_the_joint_density_of_students_t():
    nu, z = 7.0, np.array([0.8, -1.9, 3.1, 0.2])

    def scores(residuals):
        return monitor.normal_scores(residuals, np.full(4, nu))

    slopes = [
        (scores(z + STEP * np.eye(4)[t])[t] - scores(z - STEP * np.eye(4)[t])[t]) / (2 * STEP)
        for t in range(4)
    ]
    density = norm.logpdf(scores(z)).sum() + np.log(slopes).sum()
    scale = (nu - 2) / nu * np.eye(4)  # the variance is the posterior mean
    expected = multivariate_t.logpdf(z, shape=scale, df=nu)
    assert density == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("learns", [False, True])
def test_scores_are_independent_and_normal_whether_or_not_the_estimate_learns(learns):
    rng, nu, n, t = np.random.default_rng(0), 6, 4_000, 5
    residuals = rng.normal(size=(n, t))
    sums = rng.chisquare(nu, size=n)[:, None] + np.zeros((n, t))
    degrees = np.full(t, float(nu))
    if learns:
        before = np.cumsum(residuals**2, axis=1) - residuals**2
        sums, degrees = sums + before, degrees + np.arange(t)
    z = residuals / np.sqrt(sums / (degrees - 2))
    scores = np.stack([monitor.normal_scores(row, degrees) for row in z])
    assert min(kstest(scores[:, index], "norm").pvalue for index in range(t)) > 1e-5
    sizes = np.corrcoef(np.abs(scores).T)[np.triu_indices(t, 1)]
    assert np.abs(sizes).max() < 5 / np.sqrt(n)
    if not learns:  # without the common factor they would not be independent
        assert np.corrcoef(np.abs(z).T)[np.triu_indices(t, 1)].min() > 0.1


# Likelihood ratios


def test_sums_within_groups_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    values, groups = rng.normal(size=30), np.sort(rng.permutation(30) % 4)[rng.permutation(30)]
    expected = [
        values[: index + 1][groups[: index + 1] == groups[index]].sum() for index in range(30)
    ]
    np.testing.assert_allclose(monitor.cumulate(values, groups), expected, atol=1e-12)


def test_ratios_of_shifts_are_integrals_over_the_shift():
    scores = np.array([1.2, 2.5, -0.4])
    found = ratios(scores)

    def density(shift):
        return norm.pdf(shift, 0, monitor.SHIFT_SD) * np.exp(norm.logpdf(scores, shift).sum())

    both = quad(density, -20, 20)[0] / np.exp(norm.logpdf(scores).sum())
    above = 2 * quad(density, 0, 20)[0] / np.exp(norm.logpdf(scores).sum())
    assert found.worse[-1] == pytest.approx(above, rel=1e-6)
    assert found.worse[-1] + found.better[-1] == pytest.approx(2 * both, rel=1e-6)
    assert found.sets[-1] == pytest.approx(0.5 * both + 0.5, rel=1e-6)  # one set of many
    assert ratios(scores, away=-1.0).better[-1] == pytest.approx(above, rel=1e-6)


def test_the_ratio_of_sizes_is_one_of_densities():
    scores = np.array([0.5, -3.0, 2.2, 1.0])
    expected = np.mean(
        [
            np.exp((norm.logpdf(scores, 0, each**0.5) - norm.logpdf(scores)).sum())
            for each in monitor.INFLATIONS
        ]
    )
    assert ratios(scores).size[-1] == pytest.approx(expected, rel=1e-10)


def test_sets_and_interventions_share_their_weight_in_order_of_appearance():
    rng = np.random.default_rng(2)
    scores, sets = 2 * rng.normal(size=12), np.array([0, 0, 1, 0, 2, 2, 1, 0, 1, 2, 3, 0])
    found = ratios(scores, sets=sets).sets
    for index in range(12):
        expected = 1.0
        for each in range(4):
            own = scores[: index + 1][sets[: index + 1] == each]
            size = 1 + monitor.SHIFT_SD**2 * len(own)
            ratio = np.exp(monitor.SHIFT_SD**2 * own.sum() ** 2 / (2 * size)) / np.sqrt(size)
            expected += (ratio - 1) / ((each + 1) * (each + 2))
        assert found[index] == pytest.approx(expected, rel=1e-9)


def test_replicates_are_compared_with_the_mean_of_those_before():
    outcomes, noises = np.array([1.0, 9.0, 3.0, -4.0]), np.array([1.0, 2.0, 1.0, 1.0])
    means, variances = np.array([0.0, 0.1, 0.2, 0.3]), np.full(4, 0.5)
    groups = np.array([0, 1, 0, 0])
    spread = np.sqrt(variances + noises)
    scores = (outcomes - means) / spread
    found = ratios(scores, interventions=groups, predicted=(outcomes, means, variances, noises))
    expected = []
    for ratio in monitor.INFLATIONS:
        third = norm.logpdf(3.0, 1.0, np.sqrt(ratio * 2.0)) - norm.logpdf(3.0, 0.2, spread[2])
        fourth = norm.logpdf(-4.0, 2.0, np.sqrt(ratio * 1.5)) - norm.logpdf(-4.0, 0.3, spread[3])
        expected.append(np.exp(third + fourth))
    assert found.replicates[-1] == pytest.approx(np.mean(expected), rel=1e-10)
    np.testing.assert_allclose(found.replicates[:2], 1.0)


def test_a_bias_that_the_model_takes_over_is_compared_with_the_first_prediction():
    """Gaussian replicates of one effect: the sum over scores is the mean against the prior.

    With prior variance d and noise v the mean of n outcomes has variance d + v / n; the weights
    make the sum of scores, over the root of the sum of squares, just that standardized mean.
    """
    rng, d, v, n = np.random.default_rng(3), 0.7, 1.3, 6
    outcomes = 2.0 + rng.normal(size=n)
    variances = d * v / (v + d * np.arange(n))
    means = variances / v * (np.cumsum(outcomes) - outcomes)
    scores = (outcomes - means) / np.sqrt(variances + v)
    weights = monitor._remaining_bias(
        np.zeros(n, int),
        monitor.PredictionArrays(means, np.sqrt(variances), np.full(n, v), outcomes, np.inf),
    )
    found = weights @ scores / np.sqrt(weights @ weights)
    assert found == pytest.approx(outcomes.mean() / np.sqrt(d + v / n), rel=1e-10)


def test_every_ratio_has_expectation_one_under_the_model():
    """By quadrature over the second of two scores; ratios above exp(300) are cut, which costs 1e-3.

    The outcome before it is 0.7, of the same intervention.
    """
    grid = np.arange(-37.0, 37.0, 0.05)
    heights = norm.pdf(grid) * 0.05
    means, variances, noises = np.array([0.0, 0.1]), np.array([0.5, 0.4]), np.array([1.0, 1.3])
    spread, first = np.sqrt(variances + noises), 0.7
    found = []
    for u in grid:
        outcomes = means + spread * np.array([first, u])
        found.append(ratios([first, u], predicted=(outcomes, means, variances, noises)))
    for name in monitor.LikelihoodRatios._fields:
        before = getattr(found[0], name)[0]
        after = heights @ np.array([getattr(each, name)[1] for each in found])
        assert after == pytest.approx(before, rel=0.002), name


@pytest.mark.slow
def test_alarms_have_their_stated_rate_however_often_one_looks():
    rng, runs, t = np.random.default_rng(4), 4_000, 30
    smallest = []
    for _ in range(runs):
        scores, groups = rng.normal(size=t), np.sort(rng.integers(0, 5, size=t))
        groups = np.unique(groups, return_inverse=True)[1][rng.permutation(t)]
        order = np.unique(groups, return_index=True)[1].argsort().argsort()
        predicted = (scores, np.zeros(t), np.zeros(t), np.ones(t))
        found = ratios(scores, sets=order[groups], interventions=order[groups], predicted=predicted)
        smallest.append(found.corrected.min())
    for level in (0.2, 0.05, 0.01):
        rate = np.mean(np.array(smallest) <= level)
        assert rate <= level + 4 * np.sqrt(level / runs)


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
    earlier = assess(problem, predicted[: found.alarm - 1])
    assert earlier.verdict == "passed" and earlier.advice == ""


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
    found = assess(problem, [])
    assert found.verdict == "not assessed" and found.p == 1.0 and found.alarm is None
    assert len(found.table) == len(found.mechanisms) == len(found.interventions) == 0
    assert "no outcome" in found.text


def test_assessments_become_rarer_and_find_what_was_missed(make_problem):
    assert all(is_due(count) for count in range(1, 101))
    due = [count for count in range(1, 5_000) if is_due(count)]
    assert len(due) < 400 and np.diff(due).max() <= 100
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
    run = SimpleNamespace(surprise=assess(problem, predicted[:1]))
    assert "agree" in cb.plots.draw_surprise(run).get_title()
    plt.close("all")
    with pytest.raises(cb.errors.DataError, match="no outcome yet"):
        cb.plots.draw_surprise(assess(problem, []))
    with pytest.raises(cb.errors.DataError, match="needs a Surprise or a run, got int"):
        cb.plots.draw_surprise(3)


# Predictions in order


def test_a_batch_is_predicted_as_if_recorded_one_after_another():
    system = cb.models.load("chain")
    surrogate = cb.surrogates.couple(cb.fit(system.problem, system.observe(40, 0)))
    queries = system.problem.queries([{"X": 2.0}, {"Z": -3.0}, {"X": 2.0}, {"X": -4.0}])
    outcomes, noises = np.array([-1.0, 5.0, -3.0, 2.0]), np.array([2.0, 1.0, 2.0, 2.5])
    state = begin(surrogate.post, cb.Settings())
    predicted = predict_outcomes(state, NoisyOutcomes(queries, outcomes, noises))
    for index, each in enumerate(predicted):
        mean, sd = surrogate.predict(queries[index])
        assert (each.mean, each.sd) == (
            pytest.approx(mean[0], rel=1e-4),
            pytest.approx(sd[0], rel=1e-4),
        )
        assert each.degrees == 38.0
        surrogate = surrogate.tell(queries[index], outcomes[index], noises[index])


def test_predictions_in_order_are_those_of_the_dense_gaussian_across_blocks():
    rng = np.random.default_rng(0)
    root, mean = rng.normal(size=(150, 5)), rng.normal(size=150)
    root[140] = root[3]  # a replicate
    joint, noises, outcomes = root @ root.T, rng.uniform(0.1, 2.0, 150), rng.normal(size=150)
    means, variances = condition_in_order(mean, joint, outcomes, noises)
    for index in (0, 1, 63, 64, 65, 128, 140, 149):
        gain = np.linalg.solve(
            joint[:index, :index] + np.diag(noises[:index]), joint[:index, index]
        )
        assert means[index] == pytest.approx(mean[index] + gain @ (outcomes - mean)[:index])
        assert variances[index] == pytest.approx(joint[index, index] - gain @ joint[:index, index])
    exact = condition_in_order(
        mean[[3, 3]], np.full((2, 2), 4.0), np.array([1.5, 1.5]), np.zeros(2)
    )
    assert np.allclose(exact, [[mean[3], 1.5], [4.0, 0.0]])  # without noise nothing is left open


def test_degrees_are_observations_of_the_target_minus_parameters():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    assert noise_degrees(post) == 38
    rows = system.experiment(system.problem.queries([{"Z": 1.0}] * 3), 0)
    assert noise_degrees(post.update(rows)) == 41


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
    alarms = np.array([found.alarm or 99 for found in play(bowl, 400, learn_from, range(40))])
    assert (alarms <= 4).sum() >= 24 and np.median(alarms) <= 4 and (alarms <= 8).sum() >= 37


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 100])
@pytest.mark.parametrize("learn_from", ["target", "rows"])
@pytest.mark.parametrize("name", ["chain", "ecoli70"])
def test_true_linear_systems_are_rarely_reported_as_surprising(name, learn_from, rows):
    network = {"target": "b1583", "parents": False, "max_size": 2} if name == "ecoli70" else {}
    system = cb.models.load(name, **network)
    found = [each.alarm is not None for each in play(system, rows, learn_from, range(400))]
    assert sum(found) <= 8
