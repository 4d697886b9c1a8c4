"""Expected improvement and its logarithm, against quadrature, and at the edges of floats.

Internals: formulas are compared at the edges of floats, where no posterior lies.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases
from helpers.dense_surrogate import dense_case
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.analytic import (
    Context,
    expected_improvement,
    log_expected_improvement,
    log_standard_improvement,
    prepare,
    standard_improvement,
)

HALF = 0.5 * np.log(2 * np.pi)


def by_quadrature(t):
    """log h(-t) = -t^2/2 - log(2 pi)/2 - 2 log t + log of int s exp(-s - s^2 / 2t^2) ds."""
    inside, _ = quad(lambda s: s * np.exp(-s - s**2 / 2 / t**2), 0, 60, epsabs=0, epsrel=1e-13)
    return -t * t / 2 - HALF - 2 * np.log(t) + np.log(inside)


@pytest.mark.parametrize("t", [0.5, 1.0, 1.001, 3.0, 10.0, 37.0, 49.9, 50.1, 200.0, 1e3, 1e5])
def test_log_improvement_agrees_with_quadrature_in_the_tail(t):
    assert log_standard_improvement(-t) == pytest.approx(by_quadrature(t), rel=1e-12, abs=1e-12)


def test_log_improvement_agrees_with_another_formula_where_that_is_accurate():
    z = np.linspace(-5, 30, 300)
    other = norm.pdf(z) + z * np.exp(log_ndtr(z))
    np.testing.assert_allclose(log_standard_improvement(z), np.log(other), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(standard_improvement(z), other, rtol=1e-9)


def test_log_improvement_and_its_slope_are_finite_to_a_hundred_thousand_sds():
    z = -np.geomspace(1.0, 1e5, 400)
    width = 1e-4 * np.abs(z)
    ahead, behind = log_standard_improvement(z + width), log_standard_improvement(z - width)
    slopes = (ahead - behind) / (2 * width)
    # d log h / dz = Phi / h, here by the tail ratio; |z| < Phi / h < |z| + 2 / |z|
    assert np.isfinite(slopes).all() and (np.diff(log_standard_improvement(z)) < 0).all()
    far = z < -20
    np.testing.assert_allclose(slopes[far], -z[far] - 2 / z[far], rtol=1e-4)
    exact = np.exp(log_ndtr(z) - log_standard_improvement(z))
    # Logarithms of 5e9 have 1e-6 as their last digit, so that their difference is off by as much.
    np.testing.assert_allclose(slopes, exact, rtol=1e-5)


@pytest.mark.parametrize("edge", [-1.0, 1.0, -50.0])
def test_the_formulas_meet_where_one_takes_over(edge):
    near = log_standard_improvement(np.array([edge * (1 - 1e-13), edge * (1 + 1e-13)]))
    assert abs(near[1] - near[0]) <= 1e-11 * (1 + edge**2)


def test_zero_uncertainty_has_a_defined_value():
    gain = np.array([2.0, 0.0, -1.0, 2.0, -1.0])
    sd = np.array([0.0, 0.0, 0.0, 1e-320, 1e-320])
    assert expected_improvement(gain, sd).tolist() == [2.0, 0.0, 0.0, 2.0, 0.0]
    logs = log_expected_improvement(gain, sd)
    assert logs[0] == logs[3] == np.log(2.0)
    assert np.isneginf(logs[[1, 2, 4]]).all()


@pytest.mark.parametrize("objective", ["min", "max"])
def test_improvement_is_the_mean_of_what_is_gained(objective):
    problem, surrogate = dense_case(objective)
    queries, best = problem.sobol(3), 0.3
    mean, sd = surrogate.predict(queries)
    sign = 1.0 if objective == "max" else -1.0

    def gained(f, mean, sd):
        return max(sign * (f - best), 0.0) * norm.pdf(f, mean, sd)

    brute = [
        quad(gained, *ends, args=moments, points=[best], limit=200)[0]
        for ends, moments in zip(zip(mean - 9 * sd, mean + 9 * sd, strict=True),
                                 zip(mean, sd, strict=True), strict=True)
    ]  # fmt: skip
    values = cb.acquisition.ExpectedImprovement(best).value(surrogate, queries, objective)
    np.testing.assert_allclose(values, brute, rtol=1e-6, atol=1e-9)
    logs = cb.acquisition.LogExpectedImprovement(best).value(surrogate, queries, objective)
    np.testing.assert_allclose(np.exp(logs), values, rtol=1e-10)


def test_the_effect_to_improve_upon_is_the_best_that_can_be_recommended():
    problem, surrogate = dense_case("min")
    context = Context(surrogate, "min", problem.vertices(), surrogate.observed)
    prepared = prepare(cb.acquisition.ExpectedImprovement(), context)
    assert prepared.best == surrogate.predict(surrogate.observed).mean.min()
    blank = Context(surrogate, "max", problem.vertices(), surrogate.observed[:0])
    means = surrogate.predict(problem.vertices()).mean
    assert prepare(cb.acquisition.LogExpectedImprovement(), blank).best == means.max()
    assert prepare(cb.acquisition.ExpectedImprovement(1.5), context).best == 1.5


def test_improvement_over_nothing_is_refused():
    problem, surrogate = dense_case()
    with pytest.raises(cb.errors.ArgumentError, match="the effect to improve upon is not known"):
        cb.acquisition.ExpectedImprovement().value(surrogate, problem.vertices(), "min")
    with pytest.raises(cb.errors.ArgumentError, match="best must be finite"):
        cb.acquisition.LogExpectedImprovement(np.inf)


@pytest.mark.parametrize("objective", ["min", "max"])
def test_improvement_of_affine_effects_is_largest_at_a_vertex(objective):
    """(f(x) - best)_+ is convex in x for every draw of the weights, and so is its mean."""
    problem, truth = cases.random_problem(2, size=4, objective=objective)
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))
    corners, inside = problem.vertices(), problem.grid(9)
    means = surrogate.predict(corners).mean
    spread = np.ptp(means)
    for best in (means.min() - spread, means.mean(), means.max() + spread):
        rule = cb.acquisition.LogExpectedImprovement(float(best))
        at_corners = rule.value(surrogate, corners, objective)
        everywhere = rule.value(surrogate, inside, objective)
        assert at_corners.max() == pytest.approx(everywhere.max(), abs=1e-9)
