"""Inverses of matrices that may not be definite."""

import jax.numpy as jnp
import numpy as np
import pytest

from causal_bo_ppl.linalg import invert_definite


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_only_definite_matrices_of_a_batch_are_inverted(asarray):
    good, indefinite, singular = np.array([[2.0, 0.5], [0.5, 1.0]]), np.diag([1.0, -1.0]), np.ones((2, 2))
    negative = -good  # its determinant is positive
    inverse, log_determinant = map(
        np.asarray, invert_definite(asarray(np.stack([good, indefinite, singular, negative])))
    )
    np.testing.assert_allclose(inverse[0], np.linalg.inv(good), rtol=1e-12)
    assert log_determinant[0] == pytest.approx(np.log(1.75), rel=1e-12)
    assert np.isnan(inverse[1]).any() and np.isnan(inverse[3]).any() and np.isnan(log_determinant[[1, 3]]).all()
    assert not np.isfinite(inverse[2]).all()


def test_nothing_is_inverted_for_no_variables():
    inverse, log_determinant = invert_definite(np.zeros((3, 0, 0)))
    assert inverse.shape == (3, 0, 0) and log_determinant.tolist() == [0.0] * 3
