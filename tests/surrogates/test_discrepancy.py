"""Model discrepancy by evidence, and noise whose size is learned.

Internals: evidence and regression are compared with dense algebra one by one.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers import fitted_cases as cases
from helpers.joined_queries import joined
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import causal_bo_ppl as cb
from causal_bo_ppl.linalg import factor_pivoted
from causal_bo_ppl.responses import remainders
from causal_bo_ppl.surrogates import discrepancy as evidence
from causal_bo_ppl.surrogates.discrepancy import LENGTHSCALES, no_discrepancy


@pytest.fixture(scope="module")
def post():
    problem, truth = cases.random_problem(1)
    return cb.fit(problem, cases.simulate(problem, truth, 25, 0))


@pytest.fixture(scope="module")
def quadratic():
    """Return a linear fit of a quadratic effect: X ~ N(0, 1), Z = X + e, Y = (Z - 0.5)^2 + e."""
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-3.0, 3.0), "Z": (-3.0, 3.0)}
    )
    rng = np.random.default_rng(0)
    x, z, y = rng.normal(size=(3, 400))
    z = x + z
    table = pd.DataFrame({"X": x, "Z": z, "Y": (z - 0.5) ** 2 + y})
    return cb.fit(problem, cb.Data.from_frame(problem, table))


def discrepancy_covariance(problem, discrepancy, left, right):
    """Covariances of squared exponential processes, one for each set, of all its values."""
    found = np.zeros((len(left), len(right)))
    nodes = problem.graph.nodes
    for row, (one, x) in enumerate(zip(left.mask, left.value, strict=True)):
        for column, (other, y) in enumerate(zip(right.mask, right.value, strict=True)):
            if (one == other).all() and one.any():
                gaps = []
                for position in np.flatnonzero(one):
                    low, high = problem.domains[nodes[position]]
                    gaps.append((x[position] - y[position]) / (high - low))
                square = np.mean(np.square(gaps)) / discrepancy.lengthscale**2
                found[row, column] = np.exp(-square / 2)
    return discrepancy.amplitude**2 * found


@pytest.mark.parametrize("lengthscale", LENGTHSCALES)
def test_functions_of_pivots_and_the_remainder_have_the_covariance_of_the_process(
    post, lengthscale
):
    problem = post.problem
    tried, at = problem.sobol(20), problem.sobol(7)
    queries = joined([at, tried])
    process = replace(no_discrepancy(problem), amplitude=2.0, lengthscale=lengthscale)
    exact = discrepancy_covariance(problem, process, queries, queries)
    with_pivots = process.at(tried[::2])
    assert len(with_pivots.mask) <= len(tried[::2])
    features = with_pivots.features(queries)
    found = features @ features.T
    for own, root in with_pivots.remainders(queries):
        found[np.ix_(own, own)] += root @ root.T
    np.testing.assert_allclose(found, exact, atol=1e-8)
    left = exact.diagonal() - (features**2).sum(axis=1)
    np.testing.assert_allclose(with_pivots.remainder_variances(queries), left, atol=1e-8)
    assert left[len(at) :: 2].max() < 1e-8  # nothing is left of what was tried
    more = with_pivots.join(tried[1::2])
    again = more.features(queries)[:, : features.shape[1]]
    np.testing.assert_allclose(again, features, atol=1e-8)  # those that there are stay


def test_a_pivoted_factor_is_a_factor_of_the_least_size():
    points = np.random.default_rng(0).uniform(size=(60, 1))
    covariance = np.exp(-0.5 * ((points - points.T) / 0.5) ** 2)
    factor, pivots = factor_pivoted(covariance, 1e-10)
    np.testing.assert_allclose(factor @ factor.T, covariance, atol=1e-9)
    assert factor.shape[1] == len(set(pivots.tolist())) < 20


@pytest.mark.parametrize("noise", [0.5, 0.0])
def test_surrogate_with_a_discrepancy_equals_the_dense_gaussian_process(post, noise):
    problem, rng = post.problem, np.random.default_rng(0)
    tried, at = problem.sobol(2)[::3], problem.sobol(3)
    outcomes = rng.normal(size=len(tried))
    updated = cb.surrogates.couple(post, discrepancy=True).condition(tried, outcomes, noise)
    r, discrepancy = cb.response(post), updated.discrepancy
    assert discrepancy.amplitude > 0 and len(updated.weights.mean) > len(post.mean)

    def covariance(left, right):
        causal = np.asarray(cb.jacobian_gram(post, left, right).gram)
        return causal + discrepancy_covariance(problem, discrepancy, left, right)

    gram = covariance(tried, tried)
    floor = noise + remainders(post, tried) + 1e-10 * np.diagonal(gram)
    inverse = np.linalg.inv(gram + np.diag(floor))
    cross = covariance(at, tried)
    mean = r(post.mean, at) + cross @ inverse @ (outcomes - r(post.mean, tried))
    after = covariance(at, at) - cross @ inverse @ cross.T
    found = updated.predict(at)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.sd**2, np.diagonal(after), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(updated.joint(at).covariance, after, rtol=1e-6, atol=1e-7)


def test_draws_with_a_discrepancy_have_the_joint_covariance(post):
    tried, at = post.problem.sobol(1)[:4], post.problem.sobol(2)
    updated = cb.surrogates.couple(post, discrepancy=True).condition(
        tried, [3.0, -2.0, 4.0, 1.0], 0.1
    )
    draws, wanted = updated.sample(0, at, 20_000), updated.joint(at).covariance
    sd = np.sqrt(np.diagonal(wanted))
    np.testing.assert_allclose(draws.mean(axis=0), updated.predict(at).mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(sd, sd), wanted / np.outer(sd, sd), atol=0.06
    )


def test_a_fantasized_outcome_changes_no_mean_and_lowers_sds_as_an_observed_one(post):
    problem = post.problem
    tried, new, at = problem.sobol(1)[:3], problem.sobol(1)[5], problem.sobol(2)
    before = cb.surrogates.couple(post, discrepancy=True).condition(tried, [3.0, -2.0, 4.0], 0.1)
    fantasized = before.fantasize(new, 0.2)
    np.testing.assert_allclose(fantasized.predict(at).mean, before.predict(at).mean, atol=1e-9)
    assert (fantasized.predict(at).sd <= before.predict(at).sd + 1e-9).all()
    assert fantasized.predict(new).sd < before.predict(new).sd
    size = fantasized.discrepancy
    gram = before.joint(joined([at, new])).covariance
    gain = gram[:-1, -1] ** 2 / (gram[-1, -1] + 0.2 + remainders(post, new)[0])
    np.testing.assert_allclose(
        fantasized.predict(at).sd ** 2, before.predict(at).sd ** 2 - gain, rtol=1e-6, atol=1e-9
    )
    assert len(size.mask) == len(before.discrepancy.mask) + 1


@pytest.mark.parametrize("kernel", ["jacobian", "monte_carlo"])
def test_the_bayes_factor_and_the_noise_are_those_of_dense_gaussians(post, kernel):
    """Every evidence on the grid of hyperparameters, by the density of all outcomes."""
    problem = post.problem
    tried = problem.sobol(2)[np.array([0, 3, 5, 6, 6, 3])]
    values = np.random.default_rng(2).normal(size=6)
    options = {"discrepancy": "auto", "learns_noise": True, "kernel": kernel}
    surrogate = cb.surrogates.couple(post, **options)
    prior, variances = surrogate.joint(tried), post.outcome_variances(tried)
    errors = surrogate.linear.noises(tried)
    same = (tried.value[:, None] == tried.value) & (tried.mask[:, None] == tried.mask)
    shared = np.where(same.all(axis=2), errors, 0.0)
    factors, chances = evidence.noise_factors(post.noise_degrees)
    scale = np.std(post.data.outcomes)
    amplitudes = norm.logpdf(np.log(evidence.AMPLITUDES), np.log(0.3), 1.5)
    amplitudes -= logsumexp(amplitudes)

    def density(added, factor):
        gram = prior.covariance + shared + added
        noise = factor * np.diag(variances)
        return multivariate_normal(prior.mean, gram + noise).logpdf(values)

    alone = chances + [density(0.0, factor) for factor in factors]
    both = np.empty((5, len(factors), 13))
    for row, (lengthscale, chance) in enumerate(LENGTHSCALES.items()):
        unit = SimpleNamespace(amplitude=scale, lengthscale=lengthscale)
        added = discrepancy_covariance(problem, unit, tried, tried)
        for column, size in enumerate(evidence.AMPLITUDES):
            found = [density(size**2 * added, factor) for factor in factors]
            both[row, :, column] = found + chances + amplitudes[column] + np.log(chance)
    learned = surrogate.condition(tried, values).learned
    expected = logsumexp(both) - logsumexp(alone)
    assert learned.log_factor == pytest.approx(expected, abs=1e-5) and expected < np.log(20)
    assert learned.noise == pytest.approx(np.exp(alone - logsumexp(alone)) @ factors, rel=1e-6)


def test_the_evidence_in_pieces_is_that_of_all_at_once(post, monkeypatch):
    tried = post.problem.sobol(3)
    values = np.random.default_rng(2).normal(size=len(tried))
    options, found = {"discrepancy": "auto", "learns_noise": True}, []
    for most in (10_000, 10**9):
        monkeypatch.setattr(evidence, "MOST_NUMBERS", most)
        found.append(cb.surrogates.couple(post, **options).condition(tried, values).learned)
    assert found[0].noise == pytest.approx(found[1].noise, rel=1e-12)
    assert found[0].log_factor == pytest.approx(found[1].log_factor, rel=1e-10)


def test_a_right_graph_needs_no_discrepancy_and_keeps_its_vertices(post):
    tried = post.problem.sobol(2)
    r, rng = cb.response(post), np.random.default_rng(0)
    alone = 0
    for theta in post.draws(20, 1):
        outcomes = np.asarray(r(theta, tried)) + rng.normal(size=len(tried))
        updated = cb.surrogates.couple(post, discrepancy="auto").condition(tried, outcomes, 1.0)
        plain = cb.surrogates.couple(post).condition(tried, outcomes, 1.0)
        if updated.discrepancy is None:
            alone += 1
            assert updated.is_affine
            np.testing.assert_array_equal(updated.weights.mean, plain.weights.mean)
    assert alone >= 16  # each of the outcomes may be 3 standard errors off by chance


def test_a_wrong_mechanism_gets_a_discrepancy_after_a_few_outcomes(quadratic):
    query = quadratic.problem.queries([{"Z": -3.0}])
    surrogate = cb.surrogates.couple(quadratic, discrepancy="auto", learns_noise=True)
    rng, needed = np.random.default_rng(1), 0
    while surrogate.discrepancy is None:
        surrogate, needed = surrogate.condition(query, 12.25 + rng.normal()), needed + 1
    assert needed <= 4 and not surrogate.is_affine
    for _ in range(10):
        surrogate = surrogate.condition(query, 12.25 + rng.normal())
    mean, sd = surrogate.predict(query)
    assert abs(mean[0] - 12.25) < 3 * sd[0] and "discrepancy" in repr(surrogate)
    other = surrogate.predict(quadratic.problem.queries([{"X": 3.0}]))
    assert other.sd[0] > 1  # a set that was not tried becomes uncertain too


def test_the_size_of_the_noise_is_learned_from_outcomes(post):
    query = post.problem.queries([{"V0": 1.0}])
    rng = np.random.default_rng(3)
    for wanted in (0.25, 1.0, 4.0):
        queries = cb.problem.Queries(np.repeat(query.mask, 60, 0), np.repeat(query.value, 60, 0))
        outcomes = rng.normal(size=60) * np.sqrt(wanted * post.outcome_variances(query)[0])
        updated = cb.surrogates.couple(post, learns_noise=True).condition(queries, outcomes)
        assert abs(np.log(updated.learned.noise / wanted)) < 0.75
        assert np.isfinite(updated.degrees) and updated.degrees > 60
    assert cb.surrogates.couple(post).condition(queries, outcomes).learned.noise == 1.0
    given = cb.surrogates.couple(post, learns_noise=True).condition(queries, outcomes, 1.0)
    assert given.learned.noise == 1.0 and np.isinf(given.degrees)
    assert np.isinf(cb.surrogates.couple(post).degrees)


def test_discrepancy_that_is_no_choice_is_refused(post):
    with pytest.raises(
        cb.errors.ArgumentError, match='discrepancy must be True, False or "auto"; got 3'
    ):
        cb.surrogates.couple(post, discrepancy=3)
