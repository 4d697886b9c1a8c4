"""Checks before the first experiment; outcomes against predictions, calibrated under the model.

Internals: evidence is compared with quadrature outcome by outcome.
"""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest, multivariate_t, norm

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics import sequential
from causal_bo_ppl.diagnostics.predictive import check_curvature
from causal_bo_ppl.diagnostics.sequential import condition_in_order, precheck, select_for_warning

STEP = 1e-5


# Before the first experiment


def look(system, observations, seed=0, **options):
    return precheck(cb.fit(system.problem, system.observe(observations, seed), **options), seed)


def test_a_few_corners_far_out_are_recorded_and_most_are_reported(make_problem):
    system = cb.models.load("chain")
    rows = system.observe(80, 0)
    wide = make_problem(domains={"X": (-80.0, 80.0), "Z": (-90.0, 90.0)})
    checks = precheck(cb.fit(wide, rows))
    assert [check.name for check in select_for_warning(checks)] == ["overlap"]
    one = make_problem(domains={"X": (-80.0, 80.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(one, rows))
    assert checks[-1].verdict == "failed" and not select_for_warning(checks)


def test_overlap_is_reported_where_a_mechanism_is_nonlinear_too(bowl):
    problem = cb.Problem(bowl.problem.graph, "Y", domains={"X": (-60.0, 60.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(problem, bowl.observe(100, 0)))
    assert [check.name for check in select_for_warning(checks)] == ["mechanisms", "overlap"]


def test_what_cannot_be_checked_is_omitted():
    system = cb.models.load("chain")
    few = cb.fit(system.problem, system.observe(6, 0))
    assert [check.name for check in precheck(few)] == ["causal graph", "overlap"]
    with pytest.raises(cb.errors.DataError, match="6 observations are too few"):
        check_curvature(few)


@pytest.mark.heavy
def test_nonlinear_mechanisms_are_not_tested_for_curvature(bowl):
    checks = look(bowl, 50, mechanisms=cb.GP(functions=8))
    assert [check.name for check in checks] == ["interactions", "noise", "overlap"]


@pytest.mark.slow
@pytest.mark.parametrize("observations", [50, 100])
@pytest.mark.parametrize("name", ["chain", "ecoli70"])
def test_true_linear_systems_rarely_fail(name, observations):
    network = {"target": "b1583", "parents": False, "max_size": 2} if name == "ecoli70" else {}
    system = cb.models.load(name, **network)
    assert (
        sum(bool(select_for_warning(look(system, observations, seed))) for seed in range(100)) <= 4
    )


# Standard normal scores and likelihood ratios


def ratios(scores, away=1.0, sets=None, interventions=None, predicted=None):
    scores = np.asarray(scores, float)
    zeros = np.zeros(len(scores), int)
    if predicted is None:
        predicted = (scores, 0 * scores, 0 * scores, 1 + 0 * scores)
    outcomes, means, variances, noises = predicted
    arrays = sequential.PredictionArrays(means, np.sqrt(variances), noises, outcomes, np.inf)
    groups = [zeros if each is None else np.asarray(each) for each in (sets, interventions)]
    return sequential.weigh_evidence(scores, np.asarray(away), *groups, arrays)


def test_known_variances_leave_residuals_as_they_are():
    z = np.array([0.3, -2.0, 1.4])
    np.testing.assert_allclose(sequential.normal_scores(z, np.full(3, np.inf)), z)
    assert np.abs(sequential.normal_scores(np.array([900.0, -900.0]), np.full(2, 40.0))).max() <= 37


def test_scores_of_a_common_estimate_have_the_joint_density_of_students_t():
    nu, z = 7.0, np.array([0.8, -1.9, 3.1, 0.2])

    def scores(residuals):
        return sequential.normal_scores(residuals, np.full(4, nu))

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
    scores = np.stack([sequential.normal_scores(row, degrees) for row in z])
    assert min(kstest(scores[:, index], "norm").pvalue for index in range(t)) > 1e-5
    sizes = np.corrcoef(np.abs(scores).T)[np.triu_indices(t, 1)]
    assert np.abs(sizes).max() < 5 / np.sqrt(n)
    if not learns:  # without the common factor they would not be independent
        assert np.corrcoef(np.abs(z).T)[np.triu_indices(t, 1)].min() > 0.1


def test_sums_within_groups_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    values, groups = rng.normal(size=30), np.sort(rng.permutation(30) % 4)[rng.permutation(30)]
    expected = [
        values[: index + 1][groups[: index + 1] == groups[index]].sum() for index in range(30)
    ]
    np.testing.assert_allclose(sequential.cumulate(values, groups), expected, atol=1e-12)


def test_ratios_of_shifts_are_integrals_over_the_shift():
    scores = np.array([1.2, 2.5, -0.4])
    found = ratios(scores)

    def density(shift):
        return norm.pdf(shift, 0, sequential.SHIFT_SD) * np.exp(norm.logpdf(scores, shift).sum())

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
            for each in sequential.INFLATIONS
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
            size = 1 + sequential.SHIFT_SD**2 * len(own)
            ratio = np.exp(sequential.SHIFT_SD**2 * own.sum() ** 2 / (2 * size)) / np.sqrt(size)
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
    for ratio in sequential.INFLATIONS:
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
    weights = sequential._remaining_bias(
        np.zeros(n, int),
        sequential.PredictionArrays(means, np.sqrt(variances), np.full(n, v), outcomes, np.inf),
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
    for name in sequential.LikelihoodRatios._fields:
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
