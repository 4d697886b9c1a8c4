"""Noise that varies in size, and noise whose shape moves effects.

Internals: points of an average are compared with the residuals that they stand for.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.wrong_models import (
    CHAIN,
    EXPONENTIAL_NOISE,
    SOUND_LINEAR,
    SOUND_NONLINEAR,
    VARYING_NOISE,
    chain,
    data_of,
    five,
    same,
)
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms.gp_responses import empirical_points, normal_points


@pytest.mark.parametrize("mechanisms", ["linear", "gp"])
def test_noise_that_varies_is_named_with_its_cause_and_factor(mechanisms):
    problem, data = VARYING_NOISE["before a line"](0)
    check = cb.diagnostics.check_noise(cb.fit(problem, data, mechanisms=mechanisms))
    assert check.failures.index.tolist() == [("Z", "varying", "X")]
    line = check.table.loc[("Z", "varying", "X")]
    assert 2 < line["factor"] < 12  # truly (.1 + .5 1.64) / .1
    assert check.text.startswith("The noise of Z varies with X: its sd differs by a factor of")


def test_noise_that_varies_passes_only_where_there_is_hardly_any():
    for size, verdict in ((1e-8, "passed"), (1e-4, "passed"), (1e-2, "failed")):
        problem, data = chain(same, same, lambda x, size=size: size * (0.2 + np.abs(x)))(0)
        table = cb.diagnostics.check_noise(cb.fit(problem, data)).table
        assert table.loc[("Z", "varying", "X"), "verdict"] == verdict
        assert table.loc[("Z", "varying", "X"), "p_corrected"] < 0.01


def test_a_large_factor_is_estimated():
    x, e = np.random.default_rng(0).normal(size=(2, 5_000))
    data = data_of(CHAIN, X=x, Z=x + np.exp(0.5 * x) * e, Y=e)
    line = cb.diagnostics.check_noise(cb.fit(CHAIN, data)).table.loc[("Z", "varying", "X")]
    assert line["factor"] == pytest.approx(np.exp(0.5 * 2 * 1.645), rel=0.15)
    assert line["where"].startswith("X = 1.6") or line["where"].startswith("X = 1.7")


def test_the_ends_of_skewed_noise_are_not_taken_for_varying_noise():
    failed = sum(
        cb.diagnostics.check_noise(cb.fit(*five(same, tails=0)(seed))).verdict == "failed"
        for seed in range(20)
    )
    assert failed <= 2


def test_exponential_noise_before_an_exponential_moves_effects():
    problem, data = EXPONENTIAL_NOISE(0)
    check = cb.diagnostics.check_noise(cb.fit(problem, data, mechanisms="gp"))
    line = check.table.loc[("Z", "shape", "residuals")]
    assert line["verdict"] == "failed" and line["observed"] > 1
    assert "averaged over the residuals the effect of do(" in check.text
    linear = cb.diagnostics.check_noise(cb.fit(problem, data))
    assert "shape" not in linear.table.index.get_level_values("statistic")
    assert "effects of linear mechanisms do not change" in linear.text


def test_skewed_noise_before_a_line_is_harmless():
    problem, data = chain(same, same, np.ones_like, is_exponential=True)(1)
    post = cb.fit(problem, data, mechanisms={"Z": cb.GP(functions=16), "Y": "linear"})
    line = cb.diagnostics.check_noise(post).table.loc[("Z", "shape", "residuals")]
    assert line["p_corrected"] < 0.01 and line["gap"] < 0.05 and line["verdict"] == "passed"


def test_effects_of_residuals_are_averages_over_them():
    """The shifted effect is compared with a plain average over standardized residuals."""
    problem, data = EXPONENTIAL_NOISE(4, n=400)
    post = cb.fit(problem, data, mechanisms="gp")
    residuals = np.random.default_rng(0).exponential(size=4_000) - 1
    program = post.distribution.response.with_residuals({"Z": residuals})
    asked = problem.queries([{"X": 0.5}])
    batch = post.distribution.response.batch(asked)
    found = float(np.asarray(program.effects(jnp.asarray(post.mean), batch))[0])
    response = post.distribution.response
    values = np.zeros((4_000, 3))
    values[:, problem.graph.index("X")] = 0.5
    z = response.mechanism(post.mean[None], "Z", values[:1])[0, 0]
    standard = (residuals - residuals.mean()) / residuals.std()
    values[:, problem.graph.index("Z")] = z + response.scales(post.mean)["Z"] * standard
    plain = response.mechanism(post.mean[None], "Y", values)[0].mean()
    assert found == pytest.approx(plain, rel=0.01)


def test_points_of_residuals_keep_their_order_mean_and_sd():
    points = normal_points(256, 2)[:, 0]
    moved = empirical_points(points, np.random.default_rng(0).exponential(size=300))
    assert moved.mean() == pytest.approx(points.mean(), abs=1e-12)
    assert moved.std() == pytest.approx(points.std())
    assert stats.skew(moved) > 1 and (np.diff(moved[np.argsort(points)]) >= 0).all()


def test_results_do_not_depend_on_units_and_repeat():
    problem, data = VARYING_NOISE["growing"](2)
    moved = cb.Data(data.nodes, "Y", 1e4 * data.values * [1, 1e-6, 1e3] - 7.0, data.intervened)
    tables = [
        cb.diagnostics.check_noise(cb.fit(problem, each)).table for each in (data, data, moved)
    ]
    for column in ("observed", "gap", "factor", "p_value"):
        np.testing.assert_array_equal(tables[0][column], tables[1][column])
        np.testing.assert_allclose(tables[0][column], tables[2][column], rtol=1e-6)


def test_too_few_observations_are_not_assessed():
    problem, data = SOUND_LINEAR["five"](0)
    check = cb.diagnostics.check_noise(cb.fit(problem, data.select(slice(0, 11))))
    assert check.table.loc["D", "verdict"].tolist() == ["not assessed"]
    assert "Not assessed (too few observations)" in check.text
    with pytest.raises(cb.errors.DataError, match="7 observations are too few"):
        cb.diagnostics.check_noise(cb.fit(problem, data.select(slice(0, 7))))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND_LINEAR)
def test_sound_linear_systems_rarely_fail(name):
    """Of 250 data sets, each failing with 1 %, 9 or more fail with a probability of 0.001."""
    failed = {"interactions": 0, "noise": 0}
    for seed in range(9_000, 9_250):
        post = cb.fit(*SOUND_LINEAR[name](seed))
        for check in (cb.diagnostics.check_interactions(post), cb.diagnostics.check_noise(post)):
            failed[check.name] += check.verdict == "failed"
    assert max(failed.values()) <= 8, failed


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND_NONLINEAR)
def test_sound_gaussian_processes_rarely_fail(name):
    """Of 60 data sets, each failing with 1 %, 4 or more fail with a probability of 0.003."""
    failed = 0
    for seed in range(7_000, 7_060):
        problem, data = SOUND_NONLINEAR[name](seed)
        post = cb.fit(problem, data, mechanisms="gp")
        failed += cb.diagnostics.check_noise(post).verdict == "failed"
    assert failed <= 3


@pytest.mark.slow
@pytest.mark.parametrize("mechanisms", ["linear", "gp"])
@pytest.mark.parametrize("name", VARYING_NOISE)
def test_varying_noise_is_found_in_nine_of_ten_data_sets(name, mechanisms):
    found = 0
    for seed in range(5_000, 5_040):
        post = cb.fit(*VARYING_NOISE[name](seed), mechanisms=mechanisms)
        found += cb.diagnostics.check_noise(post).verdict == "failed"
    assert found >= 36


@pytest.mark.slow
def test_noise_that_moves_effects_is_found_in_nine_of_ten_data_sets():
    found = 0
    for seed in range(5_000, 5_040):
        post = cb.fit(*EXPONENTIAL_NOISE(seed), mechanisms="gp")
        found += cb.diagnostics.check_noise(post).verdict == "failed"
    assert found >= 36
