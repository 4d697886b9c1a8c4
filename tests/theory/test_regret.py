"""The regret of a run and the terms of its bound, against dense algebra and formulas by hand.

Internals: what a run began with and inferred before each round is compared.
"""

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from helpers import runs
from scipy.stats import chi2

import causal_bo_ppl as cb
from causal_bo_ppl.responses import remainders

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore::causal_bo_ppl.CausalBOWarning"),
]
optimize = partial(runs.optimize, rounds=5, observations=12, key=4, progress=False)


@pytest.fixture(scope="module")
def run(chain):
    return optimize(chain)


@pytest.fixture(scope="module")
def posts(chain, run):
    """The posterior before each experiment, fitted to all observations known then."""
    data, is_row = run.study.start.post.data, run.log.has_row
    assert is_row.all() and len(run.log) == len(run)
    return [
        cb.fit(chain.problem, data.join(run.log.rows(is_row & (np.arange(len(run)) < count))))
        for count in range(len(run))
    ]


def dense(post, queries):
    jacobian = np.asarray(cb.response(post).jacobian(post.mean, queries))
    return jacobian, jacobian @ post.covariance @ jacobian.T


def test_regrets_of_the_chain_are_those_of_its_coefficients(chain):
    for key in range(3):
        run = optimize(chain, observations=6, rounds=6, key=key)
        found = cb.optimization.decompose_regret(run)
        value = run.trace["value"].sel(variable=["X", "Z"]).fillna(0.0).to_numpy()
        effects = np.where(value[:, 1] != 0, -1.3 * value[:, 1], -1.04 * value[:, 0])
        np.testing.assert_allclose(found.path["regret"], effects + 6.5, atol=1e-9)
        assert found["R_T"] == pytest.approx((effects + 6.5).sum(), abs=1e-9)
        assert found["R_T / T"] == pytest.approx(found["R_T"] / 6)
        assert found["simple regret"] == pytest.approx((effects + 6.5).min(), abs=1e-9)
        assert found["simple regret"] <= found["R_T / T"] + 1e-12
        assert found["simple regret"] == pytest.approx(run.regret("tried")[-1], abs=1e-9)


def test_regrets_of_toy_are_distances_from_its_published_optimum():
    run = optimize(cb.models.load("toy"), observations=50, rounds=4, key=0)
    found = cb.optimization.decompose_regret(run)
    np.testing.assert_allclose(found.path["regret"], run.trace["effect"] + 2.171806, atol=1e-5)
    assert found["R_T"] > 1 and found["exploration error"] == pytest.approx(0.0, abs=1e-5)


def test_parameter_errors_and_drift_are_those_of_posteriors_fitted_anew(chain, run, posts):
    path, vertices = cb.optimization.decompose_regret(run, delta=0.1).path, chain.problem.vertices()
    quantile = chi2.ppf(0.9, len(run.study.start.post.names))
    for t, post in enumerate(posts):
        jacobian, gram = dense(post, vertices)
        slope = np.sqrt((jacobian**2).sum(axis=1).max())
        radius = np.sqrt(quantile * np.linalg.eigvalsh(post.covariance)[-1])
        assert path["parameter"][t] == pytest.approx(slope * radius, rel=1e-6)
        assert path["pointwise"][t] == pytest.approx(np.sqrt(quantile * gram.max()), rel=1e-6)
        assert path["sd"][t] ** 2 == pytest.approx(dense(post, run.queries[t])[1][0, 0], rel=1e-6)
        assert path["observations"][t] == 12 + t
    assert path["kernel_drift"][0] == path["theta_drift"][0] == 0
    for t, (before, after) in enumerate(pairwise(posts), start=1):
        (old, k), (new, k_new) = dense(before, vertices), dense(after, vertices)
        moved = np.linalg.norm(after.mean - before.mean)
        assert path["kernel_drift"][t] == pytest.approx(np.abs(k_new - k).max(), rel=1e-5)
        assert path["theta_drift"][t] == pytest.approx(moved, rel=1e-5)
        jacobian = np.sqrt(((new - old) ** 2).sum(axis=1)).max()
        assert path["jacobian_drift"][t] == pytest.approx(jacobian, rel=1e-5)


def test_gains_and_the_variance_sum_ratio_are_those_of_dense_logarithms(chain, run, posts):
    found, vertices = cb.optimization.decompose_regret(run), chain.problem.vertices()
    squares = [dense(post, run.queries[t])[1][0, 0] for t, post in enumerate(posts)]
    noises = [post.outcome_variances(run.queries[t])[0] for t, post in enumerate(posts)]
    expected = 0.5 * np.log1p(np.array(squares) / noises)
    np.testing.assert_allclose(found.path["information"], expected.cumsum(), rtol=1e-6)
    for t, post in enumerate(posts):
        gram, noise = dense(post, vertices)[1], post.outcome_variances(vertices)
        best = max(
            cb.theory.information_gain(gram[np.ix_(rows, rows)], noise[list(rows)])
            for rows in combinations_with_replacement(range(len(gram)), 5)
        )
        greedy = float(found.path["gain"][t])
        assert (1 - 1 / np.e) * best <= greedy <= best * (1 + 1e-9)
    supremum = float(found.path["gain"].max())
    assert found["sup gamma_T"] == supremum
    assert found["variance-sum ratio"] == pytest.approx(sum(squares) / supremum, rel=1e-6)
    assert sum(squares) <= found["C"] * found["information"] * (1 + 1e-9)
    assert found["exploration"] == pytest.approx(2 * np.sqrt(2 * np.array(squares)).sum(), rel=1e-6)


def test_uncertainty_along_a_fixed_kernel_is_that_of_a_dense_gaussian_process(chain):
    run = optimize(chain, preset="gc-cbo-fixed", noise=0.5, discrepancy=False, rounds=7)
    found, post = cb.optimization.decompose_regret(run), run.study.start.post
    mask, value = np.asarray(run.queries.mask), np.asarray(run.queries.value)
    same = (mask[:, None] == mask).all(2) & (value[:, None] == value).all(2)
    gram, error = dense(post, run.queries)[1], remainders(post, run.queries)
    for t in range(7):
        first = np.array([not same[row, :row].any() for row in range(t)], bool)
        rows = np.flatnonzero(first)
        variances = 0.5 / same[rows][:, :t].sum(axis=1) + error[rows]
        weights = np.linalg.solve(gram[np.ix_(rows, rows)] + np.diag(variances), gram[rows, t])
        variance = gram[t, t] - gram[t, rows] @ weights
        assert found.path["sd"][t] ** 2 == pytest.approx(variance, rel=1e-5)
    assert (found.path["kernel_drift"] == 0).all() and found["largest drift"] == 0
    assert len(np.unique(found.path["gain"])) == 1
    assert found["information"] <= found["sup gamma_T"] / (1 - 1 / np.e)


@pytest.mark.parametrize("name", ["chain", "toy"])
def test_regret_stays_below_the_bound_with_the_least_errors_that_make_bounds_hold(name):
    """A theorem, whatever the data: z_t has the best bound, and all bounds hold."""
    for key in range(3):
        run = optimize(cb.models.load(name), observations=8, rounds=5, key=key, discrepancy=False)
        found = cb.optimization.decompose_regret(run)
        assert found["R_T"] <= found["sharp bound"] + 1e-9
        away = found.path["needed"] - found.path["parameter"]
        np.testing.assert_allclose(found.path["rho"], np.maximum(away, 0.0), atol=1e-12)


def test_sets_that_were_not_explored_are_a_term_of_their_own(chain):
    problem = cb.Problem(
        chain.problem.graph, "Y", objective="min", domains=chain.problem.domains, sets=[("X",)]
    )
    found = cb.optimization.decompose_regret(optimize(replace(chain, problem=problem), rounds=3))
    assert found["exploration error"] == pytest.approx(3 * 1.3)
    np.testing.assert_allclose(found.path["regret"] - found.path["within"], 1.3)


def test_cost_adjusted_regret_is_that_of_effects_minus_costs(chain):
    problem = cb.Problem(
        chain.problem.graph, "Y", domains=chain.problem.domains, costs={"X": 1.0, "Z": 4.0}
    )
    run = optimize(replace(chain, problem=problem), rounds=3)
    net = {"X": 5.2 - 1.0, "Z": 6.5 - 4.0}  # at the best end of each domain, for eta = 1
    paid = -run.trace["effect"] - run.trace["cost"]
    path = cb.optimization.decompose_regret(run, eta=1.0).path
    np.testing.assert_allclose(path["cost_adjusted"], max(net.values()) - paid, atol=1e-9)
    own = optimize(
        replace(chain, problem=problem),
        rounds=2,
        acquisition=cb.acquisition.ConfidenceBound(2.0, eta=0.3),
    )
    assert cb.optimization.decompose_regret(own).path.attrs["eta"] == 0.3


def test_without_the_truth_everything_but_regrets_is_computed(chain):
    run = cb.optimize(
        chain.problem,
        data=chain.observe(20, 0),
        experiment=lambda queries: -1.0 * np.ones(len(queries)),
        rounds=3,
        progress=False,
        key=0,
    )
    found = cb.optimization.decompose_regret(run)
    assert "regret" not in found.path and np.isfinite(found["sup gamma_T"])
    with pytest.raises(cb.errors.ArgumentError, match="there is no 'R_T'; take one of exploration"):
        found["R_T"]
    assert "sup gamma_T" in repr(found) and "<table" in found._repr_html_()
    assert len(found.to_frame()) == 3


def test_what_a_method_does_not_have_is_not_a_number(chain):
    found = cb.optimization.decompose_regret(
        optimize(chain, rounds=2, preset="cbo", observations=30)
    )
    assert np.isnan(found["exploration"]) and np.isnan(found["sup gamma_T"])
    assert np.isfinite(found["R_T"]) and np.isfinite(found["parameter error"])
    exact = cb.optimization.decompose_regret(optimize(chain, rounds=2, noise=0.0))
    assert exact["sup gamma_T"] == np.inf and exact["variance-sum ratio"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 2, "observe": cb.optimization.Observe(0.4)},
        {"learn_from": "target", "batch": 2},
        {"preset": "gc-cbo-nocoupling"},
        {"inference": "wishart", "observations": 40},
    ],
    ids=str,
)
def test_a_run_is_traced_again_from_its_own_record(chain, options):
    run, vertices = optimize(chain, **options), chain.problem.vertices()
    *before, last = run.retrace()
    for mine, theirs in zip(
        last.surrogate.predict(vertices), run.surrogate.predict(vertices), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    if "batch" not in options:
        for known, suggestion in zip(before, run.asked, strict=True):
            mean = known.surrogate.predict(suggestion.query).mean[0]
            assert mean == pytest.approx(suggestion.mean, rel=1e-9)
    assert len(cb.optimization.decompose_regret(run).path["experiment"]) == len(run)


def test_earlier_experiments_are_among_what_a_run_began_with(chain):
    done = chain.experiment(chain.problem.queries([{"X": 2.0}, {"Z": -1.0}]), 1)
    run = optimize(chain, data=chain.observe(40, 0).join(done), inference="wishart", rounds=2)
    assert len(run.study.start.earlier) == 2 and not run.study.start.takes_observations
    first = run.study.states.before.surrogate.predict(run.queries[0])
    assert first.mean[0] == pytest.approx(run.asked[0].mean, rel=1e-9)


def test_what_cannot_be_decomposed_is_refused(chain, run):
    with pytest.raises(cb.errors.DataError, match="decompose_regret needs a Run, got CausalSystem"):
        cb.optimization.decompose_regret(chain)
    with pytest.raises(cb.errors.DataError, match="has no experiment"):
        cb.optimization.decompose_regret(replace(run, study=run.study.with_log(run.log.select([]))))
