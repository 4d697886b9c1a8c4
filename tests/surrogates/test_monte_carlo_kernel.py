"""The coupled surrogate by draws of theta equals a dense Gaussian process with their covariance.

Internals: compilations are counted.
"""

import itertools

import jax
import numpy as np
import pytest
from helpers import custom_cases as custom
from helpers import fitted_cases as cases
from helpers.runs import optimize
from scipy.stats import norm
from scipy.stats import t as student

import causal_bo_ppl as cb
from causal_bo_ppl.inference.draws import apply_to_many

FEW = cb.GP(functions=16)


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def posts(toy):
    """Return posteriors of linear and of nonlinear mechanisms."""
    problem, truth = cases.random_problem(1)
    linear = cb.fit(problem, cases.simulate(problem, truth, 25, 0))
    return {"linear": linear, "gp": cb.fit(toy.problem, toy.observe(100, 0), mechanisms=FEW)}


def couple(post, **options):
    return cb.surrogates.couple(post, **{"kernel": "monte_carlo", "draws": 300, "key": 5} | options)


def drawn(post, queries, draws=300, key=5):
    """Return means (M,) and covariance (M, M) of effects over draws, by NumPy alone."""
    effects = cb.response(post)(post.draws(draws, key), queries)
    return effects.mean(axis=0), np.cov(effects.T)


def dense_gp(post, tried, outcomes, noise, at, draws=300):
    """Return mean and covariance given outcomes, by t x t algebra."""
    both = cb.problem.Queries(
        np.concatenate([tried.mask, at.mask]), np.concatenate([tried.value, at.value])
    )
    mean, gram = drawn(post, both, draws)
    count = len(tried)
    gain = np.linalg.solve(gram[:count, :count] + np.diag(noise), gram[:count, count:]).T
    after = gram[count:, count:] - gain @ gram[:count, count:]
    return mean[count:] + gain @ (outcomes - mean[:count]), after


def some_outcomes(post, per_set, seed=0):
    rng, tried = np.random.default_rng(seed), post.problem.sobol(per_set)
    mean, gram = drawn(post, tried)
    sd = np.sqrt(np.diagonal(gram))
    noise = rng.uniform(0.2, 2.0, len(tried)) * np.median(sd) ** 2
    return tried, mean + sd * rng.normal(size=len(tried)), noise


@pytest.mark.parametrize("family", ["linear", "gp"])
def test_it_equals_the_dense_gaussian_process_of_the_draws(posts, family):
    post = posts[family]
    (tried, outcomes, noise), at = some_outcomes(post, 3), post.problem.sobol(5)
    mean, covariance = dense_gp(post, tried, outcomes, noise, at)
    updated = couple(post).condition(tried, outcomes, noise)
    sd, scale = np.sqrt(np.diagonal(covariance)), np.abs(mean).max()
    found = updated.predict(at)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-8 * scale)
    np.testing.assert_allclose(found.sd, sd, rtol=1e-8)
    joint = updated.joint(at)
    np.testing.assert_allclose(joint.mean, mean, rtol=1e-8, atol=1e-8 * scale)
    np.testing.assert_allclose(joint.covariance, covariance, atol=1e-8 * sd.max() ** 2)
    cross = updated.cross_covariance(at[:4], at[4:])
    np.testing.assert_allclose(cross, covariance[:4, 4:], atol=1e-8 * sd.max() ** 2)
    outcome = mean[1] + sd[1]
    expected = norm.logpdf(outcome, mean[1], np.hypot(sd[1], 0.7))
    assert updated.log_density(at[1], outcome, 0.49) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("family", ["linear", "gp"])
def test_its_covariance_before_any_outcome_is_the_monte_carlo_kernel(posts, family):
    post, at = posts[family], posts[family].problem.sobol(4)
    mean, covariance = couple(post).joint(at)
    gram = cb.monte_carlo_gram(post, at, draws=300, key=5).gram
    np.testing.assert_allclose(covariance, gram, atol=1e-10 * gram.max())
    np.testing.assert_allclose(mean, drawn(post, at)[0], rtol=1e-10)
    default = cb.surrogates.couple(post, kernel="monte_carlo").joint(at).covariance
    fixed = cb.monte_carlo_gram(post, at, draws=512, key=0).gram
    np.testing.assert_allclose(default, fixed, atol=1e-10 * gram.max())


def test_with_fewer_draws_than_outcomes_it_is_the_same_process(posts):
    """Weights are then solved for instead of outcomes."""
    post = posts["linear"]
    (tried, outcomes, noise), at = some_outcomes(post, 4), post.problem.sobol(2)
    mean, covariance = dense_gp(post, tried, outcomes, noise, at, draws=20)
    updated = couple(post, draws=20).condition(tried, outcomes, noise)
    assert len(tried) > 20 == len(updated.weights.mean)
    np.testing.assert_allclose(updated.predict(at).mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(updated.joint(at).covariance, covariance, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", ["linear", "gp"])
def test_order_and_grouping_of_outcomes_do_not_matter(posts, family):
    post = posts[family]
    (tried, outcomes, noise), at = some_outcomes(post, 3), post.problem.sobol(4)
    repeated = np.append(np.arange(len(tried)), [0, 2, 2])  # with replicates
    tried, noise = tried[repeated], noise[repeated]
    outcomes = outcomes[repeated] + np.random.default_rng(1).normal(size=len(repeated))
    whole, order = couple(post).condition(tried, outcomes, noise), np.arange(len(tried))[::-1]
    one, parts = couple(post), couple(post)
    for index in order:
        one = one.condition(tried[index], outcomes[index], noise[index])
    for group in np.array_split(order, 3):
        parts = parts.condition(tried[group], outcomes[group], noise[group])
    for other in (one, parts):
        for left, right in zip(whole.joint(at), other.joint(at), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-8, atol=1e-8 * np.abs(left).max())


def test_with_many_draws_it_approaches_the_exact_kernel():
    system = cb.models.load("chain")
    post, at = cb.fit(system.problem, system.observe(200, 0)), system.problem.sobol(4)
    surrogate = couple(post, draws=20_000)
    estimate = cb.monte_carlo_gram(post, at, draws=20_000, key=5)
    error = (
        surrogate.joint(at).covariance - cb.exact_gram(post, at).gram
    ) / estimate.standard_error
    assert np.abs(error).max() < 4.5
    tried, outcomes = system.problem.queries([{"X": 2.0}, {"Z": -3.0}]), [-2.0, 4.1]
    by_draws, linear = (
        each.condition(tried, outcomes, 0.1).predict(at)
        for each in (surrogate, cb.surrogates.couple(post))
    )
    assert np.abs((by_draws.mean - linear.mean) / linear.sd).max() < 0.1
    np.testing.assert_allclose(by_draws.sd, linear.sd, rtol=0.03)


def test_vertices_suffice_where_effects_are_affine(posts):
    post = posts["linear"]
    surrogate = couple(post).condition(*some_outcomes(post, 2))
    assert surrogate.is_affine and not couple(posts["gp"]).is_affine
    mean, sd = surrogate.predict(post.problem.vertices())
    inside = surrogate.predict(post.problem.sobol(256))
    for beta in (0.5, 2.0, 9.0):
        best = (mean - np.sqrt(beta) * sd).min()
        assert best <= (inside.mean - np.sqrt(beta) * inside.sd).min()


def test_an_effect_that_is_known_stays_known():
    graph = cb.CausalGraph.parse("X -> Y; Z -> W; W -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1), "W": (-1, 1)}, known={("X", "Y"): 2.0})
    values = np.random.default_rng(0).normal(size=(40, 4))
    post = cb.fit(problem, cb.Data(graph.nodes, "Y", values, np.zeros((40, 4), bool)))
    both = couple(post).joint(problem.queries([{"X": 1.0}, {"X": -1.0}]))
    np.testing.assert_allclose(np.diff(both.mean), -4.0, rtol=1e-12)
    np.testing.assert_allclose(both.covariance, both.covariance[0, 0], rtol=1e-9)


def test_a_key_draws_one_function_of_the_queries(posts):
    post, at = posts["gp"], posts["gp"].problem.sobol(6)
    updated = couple(post).condition(*some_outcomes(post, 2))
    draws = updated.sample(3, at, 4_000)
    np.testing.assert_allclose(updated.sample(3, at[2:5], 4_000), draws[:, 2:5], rtol=1e-9)
    mean, covariance = updated.joint(at)
    sd = np.sqrt(np.diagonal(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 4.5 * sd / np.sqrt(4_000)).all()
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.08
    )


def test_nothing_is_linearized_and_theta_is_regressed_on_the_outcomes(posts):
    post = posts["linear"]
    tried, outcomes, noise = some_outcomes(post, 2)
    updated = couple(post).condition(tried, outcomes, noise)
    assert updated.relinearize() is updated and not updated.remainders.any()
    thetas = post.draws(300, 5)
    effects = cb.response(post)(thetas, tried)
    joint, count = np.cov(np.concatenate([thetas, effects], axis=1).T), thetas.shape[1]
    gain = np.linalg.solve(joint[count:, count:] + np.diag(noise), joint[count:, :count]).T
    expected = thetas.mean(axis=0) + gain @ (outcomes - effects.mean(axis=0))
    np.testing.assert_allclose(updated.theta(updated.weights.mean), expected, rtol=1e-8, atol=1e-10)


def test_noise_and_discrepancy_are_learned_as_with_the_linearized_kernel():
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-3.0, 3.0), "Z": (-3.0, 3.0)}
    )
    x, z, y = np.random.default_rng(0).normal(size=(3, 400))
    z = x + z
    data = cb.Data(
        problem.graph.nodes,
        "Y",
        np.stack([x, z, (z - 0.5) ** 2 + y], axis=1),
        np.zeros((400, 3), bool),
    )
    post, query = cb.fit(problem, data), problem.queries([{"Z": -3.0}])
    noise, found = np.random.default_rng(1).normal(size=12), []
    for kernel in ("jacobian", "monte_carlo"):
        surrogate = couple(post, kernel=kernel, discrepancy="auto", learns_noise=True)
        right = surrogate.predict(query).mean[0]
        assert surrogate.condition(query.repeat(12), right + noise).discrepancy is None
        found.append(surrogate.condition(query.repeat(12), 12.25 + noise))
    linear, by_draws = found
    assert by_draws.discrepancy is not None and not by_draws.is_affine
    assert by_draws.learned.noise == pytest.approx(linear.learned.noise, rel=0.01)
    assert by_draws.predict(query).mean == pytest.approx(linear.predict(query).mean, abs=0.02)
    mean, sd = (float(part[0]) for part in by_draws.predict(query))
    spread = np.sqrt(sd**2 + by_draws.learned.noise * 0.3)
    expected = student.logpdf(11.0, by_draws.degrees, mean, spread)
    assert by_draws.log_density(query, 11.0, 0.3) == pytest.approx(expected)


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["linear", "gp", "custom", "wishart", "nuts", "given draws"])
def test_every_family_keeps_the_contract_of_surrogates(posts, family):
    chain = cb.models.load("chain")
    data = chain.observe(60, 0)
    if family == "custom":
        mechanisms = {"Z": custom.saturate, "Y": custom.decay}
        options = {"method": "laplace", "key": 0}
        post = cb.fit(custom.PROBLEM, custom.observe(60, 0), mechanisms=mechanisms, **options)
    elif family == "given draws":
        draws = cb.fit(chain.problem, data).draws(400, 1)
        post = cb.Posterior.from_draws(chain.problem, draws).accept("draws from elsewhere")
    elif family in posts:
        post = posts[family]
    else:
        method = cb.NUTS(chains=2, progress=False) if family == "nuts" else family
        post = cb.fit(chain.problem, data, method=method, key=0)
    for maker in (
        cb.surrogates.CoupledMaker(kernel="monte_carlo"),
        cb.surrogates.UncoupledMaker(cb.surrogates.CoupledMaker(kernel="monte_carlo", draws=64)),
    ):
        assert cb.testing.check_surrogate(maker, post).require().passed


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::causal_bo_ppl.errors.CausalBOWarning")  # few functions
def test_rounds_with_nonlinear_mechanisms_reach_the_optimum_and_compile_nothing_new(toy):
    seen = []
    run = optimize(
        toy,
        mechanisms=FEW,
        kernel="monte_carlo",
        noise=0.0,
        rounds=20,
        key=0,
        callback=lambda run: seen.append(apply_to_many._cache_size()),
        progress=False,
    )
    assert run.regret()[-1] < 0.005 and seen[-1] == seen[3]
    assert cb.Settings.from_json(run.settings.to_json()) == run.settings


@pytest.mark.parametrize("surrogate", ["coupled", "uncoupled"])
def test_a_study_with_this_kernel_is_a_pure_function(surrogate):
    system = cb.models.load("chain")
    settings = cb.Settings(kernel="monte_carlo", surrogate=surrogate)
    study = cb.Study(system.problem, system.observe(60, 0), settings, key=0)
    suggestion = study.ask()
    again = cb.Study.from_json(study.to_json(), system.observe(60, 0))
    assert suggestion.intervention == again.ask().intervention
    assert suggestion.mean == again.ask().mean
    updated = study.tell(suggestion, -5.0).tell({"Z": 1.0}, -1.0)
    reversed_ = study.tell({"Z": 1.0}, -1.0).tell(study.ask(), -5.0)
    assert updated.best.mean == pytest.approx(reversed_.best.mean, rel=1e-10)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"kernel": "rbf"}, "kernel must be one of jacobian, monte_carlo; got 'rbf'"),
        ({"draws": 1}, "draws must be a whole number, at least 2; got 1"),
    ],
)
def test_invalid_options_are_refused(posts, options, match):
    with pytest.raises(cb.errors.ArgumentError, match=match):
        couple(posts["linear"], **options)
    with pytest.raises(cb.errors.SeedError, match="key must be one JAX key or an int seed"):
        couple(posts["linear"], key=-1)


def test_draws_of_a_key_are_those_of_its_seed(posts):
    at, found = posts["linear"].problem.sobol(1), []
    for key in (5, jax.random.key(5), jax.random.PRNGKey(5), 6):
        found.append(couple(posts["linear"], key=key).predict(at).mean)
    for left, right in itertools.pairwise(found[:3]):
        np.testing.assert_allclose(left, right, rtol=1e-12)
    assert np.abs(found[3] - found[0]).min() > 0
