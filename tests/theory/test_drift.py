"""Drift of the kernel while theta is learned, against dense algebra and Gaussian processes.

Internals: the largest gap is compared with dense algebra apart from the drift.
"""

from itertools import pairwise

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.linalg import largest_gap
from causal_bo_ppl.theory.drift import worst_gain

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def posts(chain):
    """Posteriors of the chain from more and more observations."""
    data = chain.observe(200, 0)
    return [
        cb.fit(chain.problem, data.select(slice(n)), intercepts=False) for n in (20, 40, 80, 200)
    ]


def dense(post, queries):
    """Jacobian, and gram by dense algebra."""
    jacobian = np.asarray(cb.response(post).jacobian(post.mean, queries))
    return jacobian, jacobian @ post.covariance @ jacobian.T


def test_kernel_drift_is_what_dense_algebra_gives(posts, monkeypatch):
    queries = posts[0].problem.grid(5)
    table = theory.kernel_drift(posts, queries)
    assert table.index.tolist() == [1, 2, 3]
    for (before, after), (_, line) in zip(pairwise(posts), table.iterrows(), strict=True):
        (old, k), (new, k_new) = dense(before, queries), dense(after, queries)
        sigma = np.abs(np.linalg.eigvalsh(after.covariance - before.covariance)).max()
        jacobian = np.sqrt(((new - old) ** 2).sum(axis=1)).max()
        largest = np.linalg.eigvalsh(after.covariance)[-1]
        expected = [np.hypot(*(after.mean - before.mean)), sigma, jacobian, np.abs(k_new - k).max()]
        np.testing.assert_allclose(line, [*expected, jacobian * largest + sigma], rtol=1e-9)
    assert (theory.kernel_drift([posts[0]] * 3, queries) == 0).all(axis=None)
    monkeypatch.setattr("causal_bo_ppl.linalg.TILE_SIZE", 3)
    np.testing.assert_allclose(theory.kernel_drift(posts, queries), table, rtol=1e-12)
    a, b, c, d = np.random.default_rng(0).normal(size=(4, 10, 2))
    a[1], b[8] = [9.0, 9.0], [9.0, 9.0]  # the largest is far from the diagonal
    assert largest_gap((a, b), (c, d)) == pytest.approx(np.abs(a @ b.T - c @ d.T).max(), rel=1e-12)


def test_variance_sum_ratio_is_that_of_dense_gaussian_processes(posts):
    queries, noise, total = posts[0].problem.sobol(2)[[0, 2, 1, 3]], 0.3, 0.0
    for t, post in enumerate(posts):
        gram = dense(post, queries[: t + 1])[1]
        inverse = np.linalg.inv(gram[:t, :t] + noise * np.eye(t))
        total += gram[t, t] - gram[t, :t] @ inverse @ gram[:t, t]
    vertices = posts[0].problem.vertices()
    gains = [
        theory.greedy_gain(
            np.asarray(cb.kernels.jacobian_features(post, vertices)), noise, 4
        ).gains[-1]
        for post in posts
    ]
    assert (
        worst_gain(posts, vertices, noise, 4) == max(gains) == gains[0]
    )  # variances fall, and so does the gain
    assert theory.variance_sum_ratio(posts, queries, noise) == pytest.approx(
        total / max(gains), rel=1e-9
    )
    few = theory.variance_sum_ratio(posts, queries, noise, candidates=vertices[:1])
    assert few == pytest.approx(total / worst_gain(posts, vertices[:1], noise, 4), rel=1e-9)


def gain_path(features, noise):
    """Return the information after each of T queries, by the determinants of growing grams."""
    gram = features @ features.T
    return np.array([theory.information_gain(gram[:t, :t], noise) for t in range(1, len(gram) + 1)])


@pytest.mark.parametrize("noise", [0.01, 1.0, 100.0])
def test_variance_sum_of_a_fixed_kernel_stays_below_its_ceiling(posts, noise):
    post, draws = posts[0], np.random.default_rng(0)
    queries = post.problem.grid(9)[draws.integers(0, 18, 25)]
    ceiling = theory.variance_sum_ceiling(theory.kappa2(post).value, noise)
    path = np.diff(
        gain_path(cb.kernels.jacobian_features(post, queries), noise),
        prepend=0.0,
    )
    assert (np.expm1(2 * path) * noise).sum() <= ceiling * path.sum()
    assert 0 < theory.variance_sum_ratio([post] * 25, queries, noise) <= ceiling / (1 - 1 / np.e)
    new = gain_path(np.sqrt(3.0) * np.eye(6), noise)[-1]  # each round as uncertain as the first
    assert 6 * 3.0 == pytest.approx(theory.variance_sum_ceiling(3.0, noise) * new, rel=1e-12)
    assert theory.variance_sum_ceiling(0.0, noise) == 2 * noise


def test_invalid_sequences_of_posteriors_are_refused(posts, chain):
    queries = chain.problem.vertices()
    other = cb.fit(chain.problem, chain.observe(20, 0))
    for refused, match in [
        (
            lambda: theory.kernel_drift(posts[:1], queries),
            "at least 2 posteriors are needed, got 1",
        ),
        (
            lambda: theory.kernel_drift([posts[0], other], queries),
            "of different problems or parameters",
        ),
        (lambda: theory.kernel_drift(posts, queries[:0]), "there are no queries"),
        (lambda: worst_gain([], queries, 1.0, 3), "at least 1 posteriors are needed, got 0"),
        (
            lambda: theory.variance_sum_ratio(posts, queries[:3], 1.0),
            "4 posteriors and 3 queries; give one of each",
        ),
        (
            lambda: theory.variance_sum_ratio(posts, queries, 0.0),
            "noise must be finite and positive, got 0",
        ),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            refused()


def test_the_worst_gain_is_the_largest_and_candidates_are_all_vertices(chain):
    data = chain.observe(200, 0)
    posts = [
        cb.fit(chain.problem, data.select(slice(count)), intercepts=False)
        for count in (200, 25, 100)
    ]
    queries = chain.problem.queries([{"X": 1.0}, {"Z": 1.0}, {"X": 2.0}])
    each = [worst_gain([post], queries, 0.5, 3) for post in posts]
    assert worst_gain(posts, queries, 0.5, 3) == max(each) == each[1]
    vertices = theory.variance_sum_ratio(posts, queries, 0.5, candidates=chain.problem.vertices())
    assert theory.variance_sum_ratio(posts, queries, 0.5) == vertices
    assert vertices < theory.variance_sum_ratio(posts, queries, 0.5, candidates=queries)
    with pytest.raises(cb.errors.ArgumentError, match="give a sequence of posteriors"):
        theory.kernel_drift(posts[0], queries)
