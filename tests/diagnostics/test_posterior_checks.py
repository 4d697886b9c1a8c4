"""Checks of posteriors: what passes, what fails, and the numbers behind it by another route.

Internals: statistics of the checks are compared with formulas one by one.
"""

import math
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.fitted_cases import design, random_problem, simulate
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.checks import holm
from causal_bo_ppl.diagnostics.gaussian import mardia_skewness, standardized
from causal_bo_ppl.inference.potentials import weigh

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)
KNOWN = cb.priors.FixedPrior(noise_observations=math.inf)


def data_of(problem, columns):
    values = np.column_stack(columns)
    return cb.Data(problem.graph.nodes, problem.target, values, np.zeros(values.shape, bool))


def test_check_is_shown_as_text_and_html():
    table = pd.DataFrame({"verdict": ["passed", "failed", "not assessed"]}, index=["a", "b", "c"])
    check = cb.diagnostics.Check("trial", table, "Two & two.", "Do <this>.")
    assert check.verdict == "failed" and not check.passed and list(check.failures.index) == ["b"]
    assert repr(check) == "trial: failed. Two & two. Do <this>."
    assert "Two &amp; two" in check._repr_html_() and "Do &lt;this&gt;" in check._repr_html_()
    assert (
        cb.diagnostics.Check("t", table.iloc[:1], "").passed
        and cb.diagnostics.Check("t", table.iloc[2:], "").verdict == "not assessed"
    )
    assert (
        not cb.diagnostics.Check("t", table.iloc[2:], "").passed
        and cb.diagnostics.Check("t", table.iloc[:0], "").verdict == "not assessed"
    )


def test_closed_forms_have_nothing_to_check_and_laplace_its_curvature(chain):
    exact = cb.diagnostics.check_posterior(cb.fit(chain.problem, chain.observe(30, 0)))
    assert exact.passed and "nothing can have failed" in exact.text
    laplace = cb.diagnostics.check_posterior(
        cb.fit(chain.problem, chain.observe(30, 0), method="laplace")
    )
    assert laplace.passed and list(laplace.table.index) == [
        "newton decrement",
        "coverage",
        "condition number",
    ]


def test_limits_are_configurable_and_details_name_every_parameter(chain):
    post = cb.fit(chain.problem, chain.observe(30, 0), method=SHORT, key=0)
    check = cb.diagnostics.check_posterior(post, limits=cb.diagnostics.Limits(r_hat=1.2, ess=20))
    assert check.passed and {*post.names, "log posterior"} == set(check.details.index)
    assert {"mcse_mean", "ess_bulk", "ess_tail", "r_hat", "verdict"} <= set(check.details)
    assert not cb.diagnostics.check_posterior(post, limits=cb.diagnostics.Limits(ess=1e6)).passed


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 20), marks=pytest.mark.slow)], ids=len
)
def test_gaussian_posterior_passes_every_line_and_a_skewed_one_does_not_in_every_seed(chain, seeds):
    for seed in seeds:
        gaussian = cb.fit(chain.problem, chain.observe(50, seed), prior=KNOWN)
        check = cb.diagnostics.gaussian_error(gaussian, key=seed)
        assert check.passed and set(check.table["verdict"]) == {"passed"}, (seed, check.table)
        few = cb.fit(chain.problem, chain.observe(8, seed))
        assert not cb.diagnostics.gaussian_error(few, key=seed).passed, seed


def test_sampled_posterior_of_eight_observations_fails_and_one_of_many_passes(chain):
    options = {"method": cb.NUTS(progress=False), "key": 0}
    assert not cb.diagnostics.gaussian_error(
        cb.fit(chain.problem, chain.observe(8, 0), **options), key=0
    ).passed
    many = cb.diagnostics.gaussian_error(
        cb.fit(chain.problem, chain.observe(400, 0), **options), key=0
    )
    assert many.passed and len(many.details) == len(chain.problem.vertices())


def test_laplace_is_compared_with_the_density_that_it_stands_for(chain):
    """With eight observations its Gaussian is narrower than Student's t; with 400 it is not."""
    with pytest.warns(cb.CausalBOWarning, match="laplace is too narrow"):
        few = cb.fit(chain.problem, chain.observe(8, 0), method="laplace")
    many = cb.fit(chain.problem, chain.observe(400, 0), method="laplace")
    check = cb.diagnostics.gaussian_error(few, key=0)
    assert not check.passed and "Mardia kurtosis" in check.failures.index
    assert cb.diagnostics.gaussian_error(many, key=0).passed
    exact = cb.fit(chain.problem, chain.observe(8, 0))
    found, sure = (
        cb.diagnostics.gaussian_error(post, key=1).details["sd"] for post in (few, exact)
    )
    assert np.allclose(found, sure, rtol=0.25)


def test_wishart_has_no_density_of_its_estimands(chain):
    check = cb.diagnostics.gaussian_error(
        cb.fit(chain.problem, chain.observe(300, 0), method="wishart"), key=0
    )
    assert check.passed and check.table.loc["Pareto k", "verdict"] == "not assessed"


def test_tolerances_are_configurable_and_errors_show_in_effects(chain):
    post = cb.fit(chain.problem, chain.observe(50, 0))
    strict = cb.diagnostics.Tolerances(distance=-1.0, mean=-1.0)
    check = cb.diagnostics.gaussian_error(post, tolerances=strict, key=0)
    assert {"Mahalanobis distances", "marginals", "effect: mean"} == set(check.failures.index)
    assert "take quantiles of effects from draws" in check.advice
    q = chain.problem.queries([{"X": 2.0}])
    assert list(cb.diagnostics.gaussian_error(post, q, key=0).details.index) == ["do(X = 2)"]


def test_mardia_skewness_is_the_mean_over_all_pairs():
    z = np.random.default_rng(0).gamma(2.0, size=(40, 3))
    explicit = np.mean([[(one @ other) ** 3 for other in z] for one in z])
    assert mardia_skewness(z) == pytest.approx(explicit)


def test_standardized_draws_are_standard_also_where_the_covariance_is_singular(chain):
    post = cb.fit(chain.problem, chain.observe(100, 0), prior=KNOWN)
    z = standardized(post, post.draws(4_000, 0))
    assert np.abs(np.cov(z.T) - np.eye(z.shape[1])).max() < 0.12 and z.shape[1] == len(post.names)
    problem, truth = random_problem(1, size=5)
    total = cb.fit(problem, simulate(problem, truth, 60, 0), prior=KNOWN, parameters="total_effect")
    noise = np.random.default_rng(2).normal(size=(4_000, total.factor.shape[1]))
    z = standardized(total, total.mean + noise @ total.factor.T)
    assert z.shape[1] < len(total.names) and np.abs(np.cov(z.T) - np.eye(z.shape[1])).max() < 0.12


def test_effect_that_is_known_has_no_error():
    graph = cb.CausalGraph.parse("X -> Z -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1), "Z": (-1, 1)}, known={("Z", "Y"): -1.3})
    data = cb.models.load("chain").observe(300, 0)
    data = cb.Data(graph.nodes, "Y", data.values - data.values.mean(axis=0), data.intervened)
    check = cb.diagnostics.gaussian_error(cb.fit(problem, data, intercepts=False), key=0)
    assert check.passed and check.details.loc["do(Z = 1)", "sd"] == 0 and "nan" not in check.text


def test_gaussian_posterior_passes_also_where_effects_are_long_products():
    """Six coefficients in a row: the effects have heavy tails, and so do their sds."""
    names = [f"V{position}" for position in range(6)]
    graph = cb.CausalGraph.from_edges([*zip(names, [*names[1:], "Y"], strict=True)])
    problem = cb.Problem(graph, "Y", domains={"V0": (-1, 1)})
    for seed in range(6):
        data = data_of(problem, np.random.default_rng(seed).normal(size=(7, 8)))
        check = cb.diagnostics.gaussian_error(cb.fit(problem, data, prior=KNOWN), key=seed)
        assert "failed" not in set(check.table["verdict"]), check.table


def test_few_draws_are_not_assessed_instead_of_passed(chain):
    post = cb.fit(chain.problem, chain.observe(400, 0), method=replace(SHORT, draws=60), key=0)
    check = cb.diagnostics.gaussian_error(post, key=0)
    assert (
        check.table.loc["Pareto k", "verdict"] == "not assessed" and "Draw longer" in check.advice
    )
    shorter = cb.fit(chain.problem, chain.observe(400, 0), method=replace(SHORT, draws=20), key=0)
    for look in (
        lambda post: cb.diagnostics.gaussian_error(post, key=0),
        cb.diagnostics.check_predictive,
        cb.diagnostics.check_loo,
        cb.diagnostics.prior_sensitivity,
    ):
        with pytest.raises(
            cb.errors.PosteriorError, match="at least 100 draws, the posterior has 40; draw longer"
        ):
            look(shorter)


def test_one_chain_is_not_assessed_by_the_check_either(chain):
    post = cb.fit(
        chain.problem,
        chain.observe(30, 0),
        method=replace(SHORT, chains=1, draws=4_000),
        key=0,
    )
    check = cb.diagnostics.check_posterior(post)
    assert (
        check.verdict == post.verdict == "not assessed"
        and not check.passed
        and "R-hat unknown" in check.text
    )
    assert (
        set(check.details["verdict"]) == {"not assessed"} and "at least two chains" in check.advice
    )


def test_variables_that_cannot_be_compared_are_named(chain):
    values = chain.observe(50, 0).values.copy()
    values[:, 1] = 2.0
    constant = cb.diagnostics.check_predictive(
        cb.fit(chain.problem, data_of(chain.problem, values.T), prior=cb.priors.FixedPrior())
    )
    line = constant.table.set_index("variable").loc["Z"]
    assert (
        line["statistic"] == "constant"
        and line["verdict"] == "not assessed"
        and "Z" in constant.text
    )
    few = chain.observe(6, 0).join(
        chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -1.0}] * 12), 1)
    )
    check = cb.diagnostics.check_predictive(
        cb.fit(chain.problem, few, prior=cb.priors.FixedPrior())
    )
    assert check.passed and "fewer than 8 observations beyond its causes): Z" in check.text


def test_nan_is_never_a_pass():
    from causal_bo_ppl.diagnostics.sensitivity import _sensitivities

    watched = np.random.default_rng(0).normal(size=(400, 2))
    watched[3, 0] = np.nan
    with np.errstate(all="ignore"):
        found = _sensitivities(watched, np.random.default_rng(1).normal(size=400), 4)
    assert np.isnan(found[0]) and found[1] > 0


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (
            lambda post: cb.diagnostics.check_posterior(post, limits=3),
            "limits must be cb.diagnostics.Limits",
        ),
        (
            lambda post: cb.diagnostics.gaussian_error(post, tolerances={"sd": 1}, key=0),
            "tolerances must be cb.diagnostics.Tolerances",
        ),
        (
            lambda post: cb.diagnostics.gaussian_error(post, post.problem.queries([]), key=0),
            "no effect to compare|interventions",
        ),
        (
            lambda post: cb.diagnostics.check_predictive(post, alpha=5),
            "alpha must lie between 0 and 1",
        ),
        (lambda post: cb.diagnostics.check_predictive(post, draws=1), "at least 100; got 1"),
        (lambda post: cb.diagnostics.check_loo(post, draws=0), "at least 100; got 0"),
        (lambda post: cb.diagnostics.check_loo(post, worst_k=math.nan), "worst_k must lie between"),
        (
            lambda post: cb.diagnostics.prior_sensitivity(post, limit=math.nan),
            "limit must lie between",
        ),
        (lambda post: cb.diagnostics.prior_sensitivity(post, draws=2.5), "at least 100; got 2.5"),
    ],
)
def test_arguments_of_checks_are_checked(chain, look, message):
    with pytest.raises(cb.errors.ArgumentError, match=message):
        look(cb.fit(chain.problem, chain.observe(30, 0)))


def test_weights_of_a_known_tail_have_its_pareto_k():
    draws = np.random.default_rng(0).exponential(size=20_000)
    assert weigh(0.5 * draws, "trial").pareto_k == pytest.approx(0.5, abs=0.12)
    assert weigh(0.2 * draws, "trial").pareto_k == pytest.approx(0.2, abs=0.12)
    same = weigh(np.zeros(100), "trial")
    assert same.pareto_k == -math.inf and same.lost == 0 and "exactly Gaussian" in same.over


def test_holm_is_the_textbook_correction():
    found = holm(np.array([0.01, 0.04, np.nan, 0.03, 0.005]))
    assert np.allclose(found, [0.03, 0.06, np.nan, 0.06, 0.02], equal_nan=True)
    assert holm(np.array([0.6, 0.7])).tolist() == [1.0, 1.0]


def test_predictions_of_a_linear_system_hold_and_those_of_a_nonlinear_one_do_not(chain):
    fine = cb.diagnostics.check_predictive(cb.fit(chain.problem, chain.observe(300, 0)))
    assert fine.passed and set(fine.table["variable"]) == {"Z", "Y"}
    draws = np.random.default_rng(0)
    x = draws.normal(size=300)
    z = x + 0.8 * x**2 + draws.normal(size=300)
    nonlinear = data_of(chain.problem, [x, z, z + draws.normal(size=300)])
    check = cb.diagnostics.check_predictive(cb.fit(chain.problem, nonlinear))
    worst = check.failures.set_index(["variable", "statistic"])
    assert ("Z", "curvature") in worst.index and ("Y", "curvature") not in worst.index
    assert "A mechanism is nonlinear" in check.advice and "noise" not in check.advice


def test_predictions_raise_few_false_alarms(chain):
    passed = [
        cb.diagnostics.check_predictive(
            cb.fit(chain.problem, chain.observe(60, seed)), key=seed
        ).passed
        for seed in range(20)
    ]
    assert sum(passed) >= 19


def test_heavy_tails_and_a_wrong_noise_are_found(chain):
    draws = np.random.default_rng(1)
    x = draws.normal(size=400)
    z = 0.8 * x + draws.standard_t(2.2, size=400)
    y = -1.3 * z + draws.normal(size=400)
    tails = cb.diagnostics.check_predictive(
        cb.fit(chain.problem, data_of(chain.problem, [x, z, y]))
    )
    assert ("Z", "residual kurtosis") in set(
        zip(tails.failures["variable"], tails.failures["statistic"], strict=True)
    )
    wrong = cb.fit(
        chain.problem,
        chain.observe(400, 0),
        prior=cb.priors.FixedPrior(noise_observations=math.inf, noise_sd=3.0),
    )
    off = cb.diagnostics.check_predictive(wrong)
    assert "sd" in set(off.failures["statistic"]) and "location or scale" in off.advice.lower()


def test_interventional_observations_are_predicted_under_the_same_interventions():
    problem, truth = random_problem(4, size=4)
    data = simulate(problem, truth, 200, 0, interventional=True)
    assert cb.diagnostics.check_predictive(cb.fit(problem, data)).passed


def exact_loo(problem, data, node):
    """Log predictive density of each observation given the others.

    Student's t of the regression without it.
    """
    regressors, response, _ = design(problem, data, node)
    total, prior = 0.0, 0.01
    for row in range(len(response)):
        x, y = np.delete(regressors, row, axis=0), np.delete(response, row)
        fit, *_ = np.linalg.lstsq(x, y, rcond=None)
        df = len(y) - x.shape[1] + prior
        s2 = ((y - x @ fit) ** 2).sum() / df
        at = regressors[row]
        total += stats.t(
            df, at @ fit, np.sqrt(s2 * (1 + at @ np.linalg.solve(x.T @ x, at)))
        ).logpdf(response[row])
    return total


def test_leave_one_out_is_that_of_refits_without_the_observation(chain):
    data = chain.observe(40, 2)
    check = cb.diagnostics.check_loo(cb.fit(chain.problem, data), draws=4_000)
    assert check.passed
    for node in ("Z", "Y"):
        assert check.table.loc[node, "elpd"] == pytest.approx(
            exact_loo(chain.problem, data, node), abs=0.15
        )
        assert check.table.loc[node, "p_loo"] == pytest.approx(3, abs=1.5)


def test_observation_that_decides_a_mechanism_is_named(chain):
    values = chain.observe(30, 0).values.copy()
    values[17, 1:] = [60.0, -200.0]
    check = cb.diagnostics.check_loo(cb.fit(chain.problem, data_of(chain.problem, values.T)))
    assert (
        not check.passed
        and "17" in check.failures["which"].iloc[0]
        and "observations 17" in check.text
    )


def test_prior_against_the_data_is_noticed_and_a_weak_one_is_not(chain):
    data = chain.observe(20, 0)
    weak = cb.diagnostics.prior_sensitivity(cb.fit(chain.problem, data))
    assert weak.passed and set(weak.table.index) >= {"b[X->Z]", "do(X = 5)"}
    strong = cb.priors.FixedPrior(slopes={("X", "Z"): (-4.0, 0.3)})
    check = cb.diagnostics.prior_sensitivity(cb.fit(chain.problem, data, prior=strong))
    assert check.table.loc["b[X->Z]", "diagnosis"] == "prior and data disagree"
    assert (
        check.table.loc["do(X = 5)", "verdict"] == "failed" and "units and centres" in check.advice
    )
    tight = cb.fit(
        chain.problem,
        chain.observe(8, 0),
        prior=cb.priors.FixedPrior(slopes={("X", "Z"): (0.8, 0.01)}),
    )
    sure = cb.diagnostics.prior_sensitivity(tight).table.loc["b[X->Z]"]
    assert sure["prior"] > 0.05 > sure["likelihood"] and sure["diagnosis"] == "the data are weak"


@pytest.mark.parametrize("method", [SHORT, "wishart"], ids=["nuts", "wishart"])
def test_sensitivity_and_predictions_work_for_every_method(chain, method):
    post = cb.fit(chain.problem, chain.observe(100, 0), method=method, key=0)
    assert (
        cb.diagnostics.prior_sensitivity(post).passed
        and cb.diagnostics.check_predictive(post).passed
        and cb.diagnostics.check_loo(post).passed
    )


def test_log_prior_of_draws_is_the_density_of_the_prior(chain):
    """Under known variances: a Gaussian of every coefficient."""
    prior = cb.priors.FixedPrior(noise_observations=math.inf, slope_sd=0.5, intercept_sd=2.0)
    post = cb.fit(chain.problem, chain.observe(10, 0), prior=prior)
    drawn = post.distribution.drawn(8, jax.random.key(0))
    slopes, levels = drawn.theta[:, :2], drawn.theta[:, 2:]
    expected = stats.norm(0, 0.5).logpdf(slopes).sum(axis=1) + stats.norm(0, 2.0).logpdf(
        levels
    ).sum(axis=1)
    assert np.ptp(drawn.log_prior - expected) < 1e-10


@pytest.mark.parametrize(
    "check",
    [
        cb.diagnostics.check_posterior,
        cb.diagnostics.check_predictive,
        cb.diagnostics.check_loo,
        cb.diagnostics.prior_sensitivity,
    ],
)
def test_checks_need_a_posterior(check, chain):
    with pytest.raises(cb.errors.ArgumentError, match="needs a Posterior, got Problem"):
        check(chain.problem)


def test_graph_and_overlap_are_checked_from_a_posterior_as_well(chain):
    data = chain.observe(100, 0)
    post = cb.fit(chain.problem, data)
    for check in (cb.diagnostics.check_graph, cb.diagnostics.check_overlap):
        pd.testing.assert_frame_equal(check(post).table, check(chain.problem, data).table)
        with pytest.raises(cb.errors.DataError, match="needs Data, got NoneType"):
            check(chain.problem)


def test_too_little_is_refused(chain):
    post = cb.fit(
        chain.problem, chain.observe(4, 0).select(slice(0, 0)), prior=cb.priors.FixedPrior()
    )
    with pytest.raises(cb.errors.DataError, match="0 observations are too few"):
        cb.diagnostics.check_predictive(post)
    with pytest.raises(cb.errors.DataError, match="at least 2 observations, got 0"):
        cb.diagnostics.check_loo(post)
    with pytest.raises(cb.errors.DataError, match="without observations the posterior is"):
        cb.diagnostics.prior_sensitivity(post)
    with pytest.raises(
        cb.errors.ArgumentError, match="draws must be a whole number, at least 1000; got 10"
    ):
        cb.diagnostics.gaussian_error(post, draws=10, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="gaussian_error needs a Posterior"):
        cb.diagnostics.gaussian_error(None, key=0)


def test_ratios_that_floats_cannot_hold_have_an_infinite_pareto_k():
    """ArviZ returns NaN for every weight, and a k of 0.03, which would pass."""
    ratios = 1e4 * np.random.default_rng(0).chisquare(1, size=2000)
    found = weigh(ratios, "the whole posterior")
    assert found.pareto_k == np.inf and found.weights.argmax() == ratios.argmax()
    np.testing.assert_allclose([found.weights.sum(), found.lost], [1.0, 1 - 1 / 2000])
