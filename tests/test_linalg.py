"""Inverses of matrices that may not be definite.

Internals: matrices that are not definite come from no posterior.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.linalg import clip_rounding, factor_draws, invert_definite


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
