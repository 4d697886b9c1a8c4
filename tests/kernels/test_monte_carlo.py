"""The kernel by draws, and its standard errors.

They are tested against exact kernels, against their own spread, and when refused.
"""

from functools import partial

import jax
import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def chain():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0), intercepts=False)


@pytest.fixture(scope="module")
def queries(chain):
    return chain.problem.queries([{"X": 2.0}, {"X": -1.0}, {"Z": 1.0}, {"Z": 0.0}])


@pytest.mark.parametrize("seed", range(5))
def test_monte_carlo_agrees_with_the_exact_kernel_within_its_own_error(seed):
    problem, truth = cases.random_problem(seed, size=5)
    post = cb.fit(problem, cases.simulate(problem, truth, 30, seed))
    batch = problem.sobol(1)
    exact, found = (
        cb.exact_gram(post, batch),
        cb.monte_carlo_gram(post, batch, draws=4000, key=seed),
    )
    z = (found.gram - exact.gram) / found.standard_error
    assert np.abs(z).max() < 4.5
    assert "4,000 draws by conjugate; no linearization; verdict exact" in found.assumed
    cross = cb.monte_carlo_gram(post, batch[:4], batch[4:9], draws=4000, key=seed)
    np.testing.assert_allclose(cross.gram, found.gram[:4, 4:9], rtol=1e-10)
    np.testing.assert_allclose(cross.standard_error, found.standard_error[:4, 4:9], rtol=1e-8)


def test_gram_and_errors_equal_those_by_an_array_over_draws(chain, queries):
    found = cb.monte_carlo_gram(chain, queries, draws=500, key=3)
    effects = np.asarray(cb.response(chain)(chain.draws(500, 3), queries))
    np.testing.assert_allclose(found.gram, np.cov(effects.T), rtol=1e-10, atol=1e-15)
    centred = effects - effects.mean(axis=0)
    spread = (centred[:, :, None] * centred[:, None, :]).std(axis=0) / np.sqrt(500)
    np.testing.assert_allclose(found.standard_error, spread, rtol=0.01, atol=1e-15)
    features = np.asarray(cb.kernels.monte_carlo_features(chain, queries, draws=500, key=3))
    assert features.shape == (4, 500)
    np.testing.assert_allclose(features @ features.T, found.gram, rtol=1e-10, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("draws", [5, 20, 400])
def test_the_standard_error_is_the_spread_over_seeds(chain, queries, draws):
    known_noise = cb.priors.FixedPrior(
        noise_observations=np.inf
    )  # Gaussian draws: a few hundred seeds are enough to see their spread
    post = cb.fit(chain.problem, chain.data, intercepts=False, prior=known_noise)
    found = [cb.monte_carlo_gram(post, queries[:3], draws=draws, key=seed) for seed in range(400)]
    spread = np.std([each.gram for each in found], axis=0)
    claimed = np.sqrt(np.mean(np.square([each.standard_error for each in found]), axis=0))
    np.testing.assert_allclose(
        claimed, spread, rtol=0.2
    )  # 400 seeds give an sd to 4 %, products of normals to 7 %


@pytest.mark.slow
def test_draws_that_depend_on_each_other_have_larger_errors_and_are_reported(chain, queries):
    generator = np.random.default_rng(0)
    chains = [cases.correlated(chain, generator) for _ in range(150)]
    found = [
        cb.monte_carlo_gram(cases.sampled(chain, theta), queries[:3], key=0) for theta in chains
    ]
    spread = np.std([each.gram for each in found], axis=0)
    claimed = np.mean([each.standard_error for each in found], axis=0)
    independent = np.sqrt(2 / 1000) * np.diagonal(cb.jacobian_gram(chain, queries[:3]).gram)
    assert (np.diagonal(spread) > 2.5 * independent).all()  # memory 0.9: squares count as a tenth
    ratio = claimed / spread
    assert (ratio > 0.75).all() and (ratio < 1.35).all(), ratio
    assert "1,000 draws by nuts, equivalent to" in found[0].assumed


def test_a_sampled_posterior_is_thinned_evenly_and_never_drawn_twice(chain, queries):
    theta = cases.correlated(chain, np.random.default_rng(1), memory=0.0)
    post = cases.sampled(chain, theta)
    fewer = cb.monte_carlo_gram(post, queries, draws=500, key=0)
    kept = theta[:, ::2].reshape(-1, 2)
    effects = np.asarray(cb.response(post)(kept, queries))
    np.testing.assert_allclose(fewer.gram, np.cov(effects.T), rtol=1e-10, atol=1e-15)
    assert "1,000 draws" in cb.monte_carlo_gram(post, queries, draws=50_000, key=0).assumed


def test_a_known_effect_has_no_covariance_and_no_error(chain, queries):
    found = cb.monte_carlo_gram(chain, queries, draws=100, key=0)
    assert not np.asarray(found.gram)[3].any() and not np.asarray(found.standard_error)[3].any()
    assert "4 x 4 covariances of effects, standard errors up to" in repr(found)
    assert "no Monte-Carlo error" in repr(cb.exact_gram(chain, queries))


def test_no_queries_give_an_empty_gram(chain, queries):
    assert cb.monte_carlo_gram(chain, queries[:0], key=0).gram.shape == (0, 0)
    assert cb.monte_carlo_gram(chain, queries[:0], queries, key=0).gram.shape == (0, 4)
    assert cb.exact_gram(chain, queries[:0], queries).gram.shape == (0, 4)
    assert cb.jacobian_gram(chain, queries, queries[:0]).gram.shape == (4, 0)


def test_too_few_draws_are_refused_or_warned_of(chain, queries):
    for draws in (1, 0, True, 2.5):
        with pytest.raises(
            cb.errors.ArgumentError, match="draws must be a whole number, at least 2; got"
        ):
            cb.monte_carlo_gram(chain, queries, draws=draws, key=0)
    with pytest.warns(
        cb.CausalBOWarning,
        match="with 2 draws the Monte-Carlo error .* about .* such draws would reduce",
    ):
        cb.monte_carlo_gram(chain, queries, draws=2, key=0)


def test_a_failed_posterior_is_refused_by_every_kernel_unless_accepted(chain, queries):
    failed = cases.sampled(
        chain, cases.correlated(chain, np.random.default_rng(0)), verdict="failed"
    )
    drawn = cb.monte_carlo_gram, cb.kernels.monte_carlo_features, cb.compare_kernels
    linear = cb.jacobian_gram, cb.kernels.jacobian_features
    for kernel in [*linear, *(partial(each, key=0) for each in drawn)]:
        with pytest.raises(
            cb.errors.PosteriorError,
            match="verdict is 'failed'; look at cb.diagnostics.check_posterior",
        ):
            kernel(failed, queries)
        with pytest.raises(
            cb.errors.ArgumentError, match="a Posterior is needed here, got Problem"
        ):
            kernel(chain.problem, queries)
    accepted = failed.accept("test")
    for estimate in (
        cb.jacobian_gram(accepted, queries),
        cb.monte_carlo_gram(accepted, queries, key=0),
    ):
        assert "verdict failed" in estimate.assumed


def test_an_effect_that_is_not_finite_is_refused_by_name(chain, queries):
    huge = cases.sampled(chain, np.full((2, 50, 2), 1e200))
    with pytest.raises(
        cb.errors.NumericalError, match=r"effect of do\(X = 2\) is not finite in 100 of 100 draws"
    ):
        cb.monte_carlo_gram(huge, queries, key=0)


def test_nothing_is_compiled_for_other_numbers_of_draws_and_queries(chain, queries):
    cb.monte_carlo_gram(chain, queries, draws=300, key=0)
    cb.jacobian_gram(chain, queries)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    cb.monte_carlo_gram(chain, queries[:3], queries[1:], draws=750, key=1)
    cb.jacobian_gram(chain, queries[:2], queries)
    assert not compiled
