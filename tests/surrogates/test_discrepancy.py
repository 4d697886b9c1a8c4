"""Model discrepancy by evidence, and noise whose size is learned.

Internals: evidence and regression are compared with dense algebra one by one.
"""

import numpy as np
import pandas as pd
import pytest
from helpers import fitted_cases as cases
from scipy.stats import multivariate_normal

import causal_bo_ppl as cb
from causal_bo_ppl.kernels.exact import remainders
from causal_bo_ppl.surrogates import discrepancy as evidence
from causal_bo_ppl.surrogates.coupled import regress
from causal_bo_ppl.surrogates.discrepancy import (
    LENGTHSCALES,
    basis,
    log_evidences,
    log_evidences_in_blocks,
)


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
    """Covariances of additive squared exponential processes, one for each member of each set."""
    found = np.zeros((len(left), len(right)))
    nodes = problem.graph.nodes
    for row, (one, x) in enumerate(zip(left.mask, left.value, strict=True)):
        for column, (other, y) in enumerate(zip(right.mask, right.value, strict=True)):
            if (one == other).all() and one.any():
                for position in np.flatnonzero(one):
                    low, high = problem.domains[nodes[position]]
                    gap = (x[position] - y[position]) / (high - low) / discrepancy.lengthscale
                    found[row, column] += np.exp(-(gap**2) / 2) / one.sum()
    return discrepancy.amplitude**2 * found


@pytest.mark.parametrize("lengthscale", LENGTHSCALES)
def test_basis_has_the_covariance_of_the_process(lengthscale):
    points = np.linspace(0, 1, 57)
    exact = np.exp(-0.5 * ((points[:, None] - points[None]) / lengthscale) ** 2)
    found = basis(points, lengthscale)
    np.testing.assert_allclose(found @ found.T, exact, atol=1e-9)


@pytest.mark.parametrize("noise", [0.5, 0.0])
def test_surrogate_with_a_discrepancy_equals_the_dense_gaussian_process(post, noise):
    problem, rng = post.problem, np.random.default_rng(0)
    tried, at = problem.sobol(2)[::3], problem.sobol(3)
    outcomes = rng.normal(size=len(tried))
    updated = cb.surrogates.couple(post, discrepancy=True).tell(tried, outcomes, noise)
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
    np.testing.assert_allclose(updated.covariance(at), after, rtol=1e-6, atol=1e-7)


def test_draws_with_a_discrepancy_have_the_joint_covariance(post):
    tried, at = post.problem.sobol(1)[:4], post.problem.sobol(2)
    updated = cb.surrogates.couple(post, discrepancy=True).tell(tried, [3.0, -2.0, 4.0, 1.0], 0.1)
    draws, wanted = updated.sample(at, 20_000, 0), updated.covariance(at)
    sd = np.sqrt(np.diagonal(wanted))
    np.testing.assert_allclose(draws.mean(axis=0), updated.predict(at).mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(sd, sd), wanted / np.outer(sd, sd), atol=0.06
    )


def test_a_fantasized_outcome_changes_no_mean_and_lowers_sds_as_an_observed_one(post):
    problem = post.problem
    tried, new, at = problem.sobol(1)[:3], problem.sobol(1)[5], problem.sobol(2)
    before = cb.surrogates.couple(post, discrepancy=True).tell(tried, [3.0, -2.0, 4.0], 0.1)
    fantasized = before.fantasize(new, 0.2)
    np.testing.assert_allclose(fantasized.predict(at).mean, before.predict(at).mean, atol=1e-9)
    assert (fantasized.predict(at).sd <= before.predict(at).sd + 1e-9).all()
    assert fantasized.predict(new).sd < before.predict(new).sd
    size = fantasized.discrepancy
    gram = before.covariance(
        cb.problem.Queries(
            *(
                np.concatenate(p)
                for p in zip((at.mask, at.value), (new.mask, new.value), strict=True)
            )
        )
    )
    gain = gram[:-1, -1] ** 2 / (gram[-1, -1] + 0.2 + remainders(post, new)[0])
    np.testing.assert_allclose(
        fantasized.predict(at).sd ** 2, before.predict(at).sd ** 2 - gain, rtol=1e-6, atol=1e-9
    )
    assert len(size.sets) == len(before.discrepancy.sets) + 1


def test_evidence_is_that_of_a_gaussian_in_both_forms():
    rng = np.random.default_rng(0)
    features, y, noise = rng.normal(size=(9, 4)), rng.normal(size=9), rng.uniform(0.5, 1, 9)
    sizes = np.array([[1.0, 1, 1, 1], [1, 1, 0.3, 0.3]])
    grams = np.stack([(features * each) @ (features * each).T for each in sizes])
    wanted = [multivariate_normal(np.zeros(9), gram + np.diag(noise)).logpdf(y) for gram in grams]
    np.testing.assert_allclose(log_evidences(grams, y, noise), wanted, rtol=1e-10)


@pytest.mark.parametrize("noise", [1.0, 1e-5])
@pytest.mark.parametrize("width", [2, 7])
def test_evidence_in_blocks_is_that_of_the_whole_covariance(width, noise):
    rng = np.random.default_rng(width)
    features, y, noises = rng.normal(size=(12, 3)), rng.normal(size=12), noise * np.full(12, 0.7)
    rows = np.array([[0, 5, 2, 7], [1, 3, 4, -1]])  # the others belong to no block
    factors = rng.normal(size=(2, 4, width))
    factors[1, 3] = 0.0
    blocks = np.zeros((12, 12))
    for positions, each in zip(rows, factors, strict=True):
        inside = positions >= 0
        blocks[np.ix_(positions[inside], positions[inside])] = (each @ each.T)[
            np.ix_(inside, inside)
        ]
    sizes = np.array([0.0, 0.3, 2.0])
    grams = np.stack([features @ features.T + size**2 * blocks for size in sizes])
    wanted = [multivariate_normal(np.zeros(12), gram + np.diag(noises)).logpdf(y) for gram in grams]
    found = log_evidences_in_blocks(features, [(rows, factors)], sizes, y, noises)
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


@pytest.mark.parametrize("discrepancy", [False, "auto"])
def test_the_evidence_of_many_outcomes_is_computed_as_that_of_few(post, discrepancy, monkeypatch):
    problem = post.problem
    tried = problem.sobol(3)
    values = np.random.default_rng(2).normal(size=len(tried))
    found = []
    for most in (0, 10_000):
        monkeypatch.setattr(evidence, "MOST_IN_DENSE_GRAM", most)
        found.append(
            cb.surrogates.couple(post, discrepancy=discrepancy, learns_noise=True).tell(
                tried, values
            )
        )
    assert found[0].learned.noise == pytest.approx(found[1].learned.noise, rel=1e-8)
    if discrepancy:
        assert found[0].learned.log_factor == pytest.approx(found[1].learned.log_factor, abs=1e-6)


@pytest.mark.parametrize("count", [3, 9])
def test_weights_are_those_of_bayesian_regression(count):
    rng = np.random.default_rng(count)
    features, y = rng.normal(size=(count, 5)), rng.normal(size=count)
    precisions = rng.uniform(0.5, 2, count)
    covariance = np.linalg.inv(np.eye(5) + features.T @ (features * precisions[:, None]))
    found = regress(features, y, precisions)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.mean, covariance @ features.T @ (precisions * y), rtol=1e-9)
    fewer = regress(features[1:], y[1:], precisions[1:])
    one = fewer.update(features[0], precisions[0], precisions[0] * y[0])
    np.testing.assert_allclose(one.mean, found.mean, rtol=1e-8, atol=1e-12)


def test_evidence_of_many_outcomes_is_computed_without_a_matrix_of_their_size(post, monkeypatch):
    tried = post.problem.sobol(4)
    outcomes = np.random.default_rng(1).normal(size=len(tried))
    dense = cb.surrogates.couple(post, discrepancy="auto").tell(tried, outcomes, 0.5).learned
    monkeypatch.setattr(evidence, "MOST_IN_DENSE_GRAM", 1)
    monkeypatch.setattr(evidence, "LENGTHSCALES", {0.8: 1.0})
    wide = cb.surrogates.couple(post, discrepancy="auto").tell(tried, outcomes, 0.5).learned
    monkeypatch.setattr(evidence, "MOST_IN_DENSE_GRAM", 512)
    again = cb.surrogates.couple(post, discrepancy="auto").tell(tried, outcomes, 0.5).learned
    assert wide.log_factor == pytest.approx(again.log_factor, rel=1e-8)
    assert np.isfinite(dense.log_factor)


def test_a_right_graph_needs_no_discrepancy_and_keeps_its_vertices(post):
    tried = post.problem.sobol(2)
    r, rng = cb.response(post), np.random.default_rng(0)
    alone = 0
    for theta in post.draws(20, 1):
        outcomes = np.asarray(r(theta, tried)) + rng.normal(size=len(tried))
        updated = cb.surrogates.couple(post, discrepancy="auto").tell(tried, outcomes, 1.0)
        plain = cb.surrogates.couple(post).tell(tried, outcomes, 1.0)
        if updated.discrepancy is None:
            alone += 1
            assert updated.is_affine
            np.testing.assert_array_equal(updated.weights.mean, plain.weights.mean)
    assert alone >= 18


def test_a_wrong_mechanism_gets_a_discrepancy_after_a_few_outcomes(quadratic):
    query = quadratic.problem.queries([{"Z": -3.0}])
    surrogate = cb.surrogates.couple(quadratic, discrepancy="auto", learns_noise=True)
    rng, needed = np.random.default_rng(1), 0
    while surrogate.discrepancy is None:
        surrogate, needed = surrogate.tell(query, 12.25 + rng.normal()), needed + 1
    assert needed <= 4 and not surrogate.is_affine
    for _ in range(10):
        surrogate = surrogate.tell(query, 12.25 + rng.normal())
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
        updated = cb.surrogates.couple(post, learns_noise=True).tell(queries, outcomes)
        assert abs(np.log(updated.learned.noise / wanted)) < 0.75
        assert np.isfinite(updated.degrees) and updated.degrees > 60
    assert cb.surrogates.couple(post).tell(queries, outcomes).learned.noise == 1.0
    given = cb.surrogates.couple(post, learns_noise=True).tell(queries, outcomes, 1.0)
    assert given.learned.noise == 1.0 and np.isinf(given.degrees)
    assert np.isinf(cb.surrogates.couple(post).degrees)


def test_discrepancy_that_is_no_choice_is_refused(post):
    with pytest.raises(
        cb.errors.ArgumentError, match='discrepancy must be True, False or "auto"; got 3'
    ):
        cb.surrogates.couple(post, discrepancy=3)
