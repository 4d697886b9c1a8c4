"""Can this matrix be trusted?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import NumericalError

NEGATIVE = 1e-6  # of the largest eigenvalue of a correlation matrix: more than rounding makes


def invert_definite(block: Any) -> tuple[Any, Any]:
    """Inverse (..., k, k) and log determinant (...) of positive definite matrices; NaN where one is not definite.

    NumPy in, NumPy out, without compiling; JAX arrays by Cholesky, differentiable.
    """
    if isinstance(block, jax.Array):
        return _invert_by_cholesky(block)
    sizes = np.linalg.eigvalsh(block)
    is_definite = np.asarray((sizes > 0).all(axis=-1))
    inverse = np.linalg.inv(np.where(is_definite[..., None, None], block, np.eye(block.shape[-1])))
    log_determinant = np.log(np.where(is_definite[..., None], sizes, np.nan)).sum(axis=-1)
    return np.where(is_definite[..., None, None], inverse, np.nan), log_determinant


def _invert_by_cholesky(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor = jnp.linalg.cholesky(block)  # NaN where not definite, which then spreads
    identity = jnp.broadcast_to(jnp.eye(block.shape[-1], dtype=block.dtype), block.shape)
    root = jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return jnp.matrix_transpose(root) @ root, 2 * jnp.log(diagonal).sum(axis=-1)


def factor_semidefinite(covariance: np.ndarray) -> np.ndarray:
    """(d, r) matrix F with F F' the covariance, r its numerical rank; by eigenvalues of the correlation matrix.

    Directions without variance are left out. Raises NumericalError for what is no covariance.
    """
    sd = np.sqrt(np.abs(np.diagonal(covariance)))
    scale = np.where(sd > 0, sd, 1.0)
    correlation = covariance / scale[:, None] / scale
    if not (np.isfinite(correlation).all() and np.allclose(correlation, correlation.T, rtol=0, atol=1e-8)):
        raise NumericalError("the covariance must be finite and symmetric")
    sizes, directions = np.linalg.eigh((correlation + correlation.T) / 2)
    largest = sizes.max(initial=0.0)
    if sizes.min(initial=0.0) < -NEGATIVE * largest:
        raise NumericalError(
            f"the covariance has a negative eigenvalue, {sizes.min() / largest:.1e} of the largest; it is no covariance"
        )
    kept = sizes > len(sizes) * np.finfo(float).eps * largest
    return np.asarray(scale[:, None] * directions[:, kept] * np.sqrt(sizes[kept]))
