"""Inverses of matrices that may not be definite.

Internals: matrices that are not definite come from no posterior.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import causal_bo_ppl as cb
from causal_bo_ppl import linalg
from causal_bo_ppl.linalg import (
    clip_rounding,
    factor_draws,
    invert_definite,
    log_evidences,
    regress,
)


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_only_definite_matrices_of_a_batch_are_inverted(asarray):
    good, indefinite, singular = (
        np.array([[2.0, 0.5], [0.5, 1.0]]),
        np.diag([1.0, -1.0]),
        np.ones((2, 2)),
    )
    negative = -good  # its determinant is positive
    inverse, log_determinant = map(
        np.asarray, invert_definite(asarray(np.stack([good, indefinite, singular, negative])))
    )
    np.testing.assert_allclose(inverse[0], np.linalg.inv(good), rtol=1e-12)
    assert log_determinant[0] == pytest.approx(np.log(1.75), rel=1e-12)
    assert (
        np.isnan(inverse[1]).any()
        and np.isnan(inverse[3]).any()
        and np.isnan(log_determinant[[1, 3]]).all()
    )
    assert not np.isfinite(inverse[2]).all()


def test_nothing_is_inverted_for_no_variables():
    inverse, log_determinant = invert_definite(np.zeros((3, 0, 0)))
    assert inverse.shape == (3, 0, 0) and log_determinant.tolist() == [0.0] * 3


def test_factor_of_draws_is_that_of_their_covariance():
    draws = np.random.default_rng(0).normal(size=(50, 3)) @ np.diag([1.0, 1e-6, 1e6])
    draws = np.column_stack([draws, draws[:, 0] + 1e-9 * draws[:, 1] * 1e6, np.full(50, 2.0)])
    factor = factor_draws(draws)
    covariance = np.cov(draws.T)
    sd = np.sqrt(np.diagonal(covariance))
    assert (
        np.abs(factor @ factor.T - covariance).max() <= 1e-10 * np.outer(sd, sd).max()
        and factor.shape[1] == 3
    )
    assert factor_draws(np.ones((5, 2))).shape == (2, 0)


def test_only_rounding_is_clipped():
    assert clip_rounding(np.array([1.0, -1e-12]), np.ones(2)).tolist() == [1.0, 0.0]
    for bad in (-1e-6, np.nan):
        with pytest.raises(cb.errors.NumericalError, match="a variance came out as"):
            clip_rounding(np.array([1.0, bad]), np.ones(2))


@pytest.mark.parametrize("noise", [1.0, 1e-5])
@pytest.mark.parametrize("width", [2, 7])
def test_evidence_is_that_of_a_gaussian_with_the_whole_covariance(width, noise):
    rng = np.random.default_rng(width)
    features, y, noises = rng.normal(size=(12, 3)), rng.normal(size=12), np.full((2, 12), 0.7)
    noises = noise * noises * np.array([[1.0], [3.0]])
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
    wanted = [
        [multivariate_normal(np.zeros(12), gram + np.diag(each)).logpdf(y) for gram in grams]
        for each in noises
    ]
    found = log_evidences(features, [(rows, factors)], sizes, y, noises)
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


@pytest.mark.parametrize("count", [3, 9])
def test_weights_are_those_of_bayesian_regression(count, monkeypatch):
    rng = np.random.default_rng(count)
    features, y = rng.normal(size=(count, 5)), rng.normal(size=count)
    precisions = rng.uniform(0.5, 2, count)
    covariance = np.linalg.inv(np.eye(5) + features.T @ (features * precisions[:, None]))
    found = regress(features, y, precisions)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.mean, covariance @ features.T @ (precisions * y), rtol=1e-9)
    monkeypatch.setattr(linalg, "MOST_WEIGHTS_WITH_COVARIANCE", 0)
    reduced, at = regress(features, y, precisions), rng.normal(size=(4, 5))
    assert reduced.is_reduced == (count < 5)
    np.testing.assert_allclose(reduced.covariance, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reduced.mean, found.mean, rtol=1e-9)
    np.testing.assert_allclose(reduced.variances(at), found.variances(at), rtol=1e-9)
    draws = reduced.draw(50_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03)
    np.testing.assert_allclose(draws.mean(axis=0), found.mean, atol=0.02)
