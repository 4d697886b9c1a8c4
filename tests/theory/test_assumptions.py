"""Verdicts about A3 to A6, eps_E, eps_adj and eps_i, against closed forms and known truths.

Internals: the forecast of a kernel is compared with posteriors that were updated.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.theory.assumptions import forecast_kernel
from causal_bo_ppl.theory.constants import BetaSchedule

PAIR = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-2, 3)})


def pair(n, slope=0.7, seed=0):
    x, e = np.random.default_rng(seed).normal(size=(2, n))
    return cb.Data.from_frame(PAIR, pd.DataFrame({"X": x, "Y": slope * x + e}))


@pytest.fixture(scope="module")
def post():
    return cb.fit(PAIR, pair(60), intercepts=False)


@pytest.fixture(scope="module")
def run():
    system = cb.models.load("chain")
    return cb.optimize(system, rounds=3, observations=60, key=0, progress=False)


def test_kappa_is_the_sd_of_the_worst_known_effect_and_fails_where_it_is_large(post):
    check = theory.check_bounded_kernel(post)
    assert check.table.loc["kappa", "value"] == pytest.approx(3 * post.sd[0])
    assert check.table.loc["L", "value"] == pytest.approx(3.0)
    assert check.table.loc["kappa", "where"] == "do(X = 3)" and check.passed
    wide = cb.Problem(PAIR.graph, "Y", domains={"X": (-2, 300)})
    far = theory.check_bounded_kernel(cb.fit(wide, pair(60), intercepts=False))
    assert far.verdict == "failed" and "do(X = 300)" in far.advice


def test_the_forecast_of_drift_is_the_normal_quantile_of_one_effect(post):
    """With f = b x the bound lacks |z| - sqrt(beta) sds of the effect at the largest |x|."""
    check = theory.check_drift(post, rounds=10, beta_delta=0.999, draws=20_000, key=1)
    forecast = forecast_kernel(post, 10)
    for number, features in ((1, forecast.before), (10, forecast.after)):
        beta = BetaSchedule(0.999).at(number, len(forecast.queries))
        sd = np.abs(features).max()
        row = check.table.loc[number]
        expected = max(norm.ppf(0.975) - np.sqrt(beta), 0.0) * sd
        assert row["needed"] == pytest.approx(expected, abs=0.04 * sd)
        assert row["bound"] == pytest.approx(norm.ppf(0.975) * sd, rel=1e-6)
    assert check.passed


def test_a_forecast_fails_where_linearization_is_too_rough():
    """Products of three slopes around 0, of which the Jacobian at the mean sees nothing."""
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> A -> B -> Y"), "Y", domains={"X": (-1, 1)}, sets=[("X",)]
    )
    draws = np.random.default_rng(0).normal(size=(4, 1000, 3))
    rough = cb.Posterior.from_draws(problem, draws, intercepts=False)
    check = theory.check_drift(rough)
    assert check.table.index.tolist() == [1] and check.verdict == "failed"
    assert check.table["needed"].iloc[0] == pytest.approx(
        np.quantile(np.abs(draws.prod(axis=2)), 0.95), rel=0.15
    )


def test_the_forecast_of_the_kernel_is_that_of_updated_posteriors(post):
    """Rows with X at a vertex: the posterior after them has about the forecast sd."""
    forecast = forecast_kernel(post, 40)
    x = np.full(40, 3.0)
    sds = []
    for seed in range(20):
        y = 0.7 * x + np.random.default_rng(seed).normal(size=40)
        values, marks = np.column_stack([x, y]), np.tile([True, False], (40, 1))
        sds.append(post.update(cb.Data(("X", "Y"), "Y", values, marks)).sd[0])
    assert np.linalg.norm(forecast.after, axis=1).max() == pytest.approx(3 * np.mean(sds), rel=0.1)
    cost = theory.check_fixed_kernel(post, rounds=40)
    assert cost.passed and cost.table.loc["cost", "value"] == pytest.approx(1.0, rel=0.1)


def test_drift_along_a_run_is_what_its_decomposition_needed(run):
    path = theory.decompose_regret(run).path
    table = theory.check_drift(run).table
    assert table["needed"].to_numpy() == pytest.approx(path["needed"].to_numpy())
    assert (table["rho"].to_numpy() == np.maximum(table["needed"] - table["bound"], 0)).all()
    blind = cb.optimize(
        run.problem,
        data=run.study.data,
        experiment=lambda queries: run.system.experiment(queries, 5),
        rounds=1,
        key=0,
        progress=False,
    )
    with pytest.raises(DataError, match="without the truth"):
        theory.check_drift(blind)
    assert theory.check_variance_sum(blind).passed
    assert theory.check_variance_sum(run).passed


def test_eps_e_by_the_posterior_is_near_the_true_one():
    system = cb.models.load("chain")
    narrow = system.problem.explore([("X",)])
    true = theory.exploration_error(replace(system, problem=narrow))
    data = system.observe(5000, 0)
    check = theory.check_exploration(cb.fit(narrow, data), key=0)
    row = check.table.iloc[0]
    assert row["mean"] == pytest.approx(true.value, rel=0.1)
    assert row["best"] == "do(Z = 5)" and check.verdict == "failed"
    every = theory.check_exploration(cb.fit(system.problem, data), key=0)
    assert every.passed and every.table["mean"].tolist() == [0.0]


def test_the_band_of_a_line_through_the_origin_is_a_student_interval(post):
    """At every x the standardized error is the same |t|."""
    row = theory.check_mechanism_errors(post, draws=20_000, key=0).table.loc["Y"]
    assert row["multiplier"] == pytest.approx(student.ppf(0.975, 59), rel=0.03)
    assert row["error"] == pytest.approx(row["multiplier"] * 3 * post.sd[0], rel=0.03)


def test_the_band_of_a_line_with_an_intercept_is_below_that_of_the_whole_line():
    """Working and Hotelling: sqrt(2 F) holds for all x, so that an interval needs less."""
    row = theory.check_mechanism_errors(cb.fit(PAIR, pair(60)), draws=20_000, key=0).table.loc["Y"]
    assert 1.96 < row["multiplier"] < np.sqrt(2 * 3.16) * 1.02


@pytest.mark.heavy
def test_the_error_of_averages_is_known_and_small(toy_gp):
    queries = toy_gp.problem.queries([{"X": 1.0}, {"X": -2.0}, {"Z": 3.0}])
    row = theory.check_adjustment(toy_gp, queries).table.iloc[0]
    errors = cb.response(toy_gp).standard_errors(toy_gp.mean, queries)
    sds = np.sqrt(np.diagonal(cb.jacobian_gram(toy_gp, queries).gram))
    assert row["error"] == errors.max() > 0 and row["relative"] == pytest.approx(max(errors / sds))
    assert row["verdict"] == "passed"


@pytest.fixture(scope="module")
def toy_gp():
    system = cb.models.load("toy")
    return cb.fit(system.problem, system.observe(60, 0), mechanisms=cb.GP(functions=8))
