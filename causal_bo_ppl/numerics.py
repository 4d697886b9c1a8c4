"""Which numbers are equal, and which matrices definite, when rounding must not decide?

Sums differ in their last digits between processors. Numbers that differ by no more than that are
equal here, and of equal ones the first is taken: the same choice on every machine. A matrix that is
not definite, and a variance that is negative beyond rounding, never pass unnoticed.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import NumericalError

TIE = 1e-10  # of the range of the numbers
TIE_ROUNDING = 8 * np.finfo(float).eps  # of the largest of them: whatever their offset


def tie_width(numbers: np.ndarray) -> float:
    """Return the difference up to which two of these numbers count as equal, in any units.

    Infinite numbers do not enter.
    """
    finite = numbers[np.isfinite(numbers)]
    return float(TIE * np.ptp(finite) + TIE_ROUNDING * np.abs(finite).max()) if finite.size else 0.0


def first_smallest(numbers: np.ndarray) -> int:
    """Return the position of the smallest of n > 0 numbers, the first of equal ones."""
    return int(np.flatnonzero(numbers <= numbers.min() + tie_width(numbers))[0])


def first_largest(numbers: np.ndarray) -> int:
    """Return the position of the largest of n > 0 numbers, the first of equal ones."""
    return first_smallest(-numbers)


ROUNDING = 1e-9  # of what a variance was computed from
# Of a number: equal ones may differ by this after a few operations.
FEW_DIGITS = 8 * np.finfo(float).eps


def invert_definite(block: Any) -> tuple[Any, Any]:
    """Return the inverses and log determinants of positive definite matrices.

    For matrices of shape (..., k, k) these have the shapes (..., k, k) and (...); they are NaN
    where a matrix is not definite. NumPy arrays give NumPy arrays, and nothing is compiled; JAX
    arrays are inverted by Cholesky factors, which can be differentiated.
    """
    if isinstance(block, jax.Array):
        return _invert_by_cholesky(block)
    try:
        root = np.linalg.cholesky(block)
        return np.linalg.inv(block), 2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    except np.linalg.LinAlgError:  # some of them are not definite
        sizes = np.linalg.eigvalsh(block)
    largest = np.abs(sizes).max(axis=-1, initial=0.0, keepdims=True)
    least = block.shape[-1] * np.finfo(float).eps * largest  # a zero is rounded either way
    is_definite = np.asarray((sizes > least).all(axis=-1))
    inverse = np.linalg.inv(np.where(is_definite[..., None, None], block, np.eye(block.shape[-1])))
    log_determinant = np.log(np.where(is_definite[..., None], sizes, np.nan)).sum(axis=-1)
    return np.where(is_definite[..., None, None], inverse, np.nan), log_determinant


def _invert_by_cholesky(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor = jnp.linalg.cholesky(block)  # NaN where not definite, which then spreads
    identity = jnp.broadcast_to(jnp.eye(block.shape[-1], dtype=block.dtype), block.shape)
    root = jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return jnp.matrix_transpose(root) @ root, 2 * jnp.log(diagonal).sum(axis=-1)


def triangular_factor(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Return an upper triangular R (r, d) with R'R = the sum of B'B over blocks B of rows (n, d).

    r is d, or the number of rows where these are fewer. No cross product is formed, so no digits
    are lost to squares; no more than one block is held at once.
    """
    factor: np.ndarray | None = None
    for block in blocks:
        rows = block if factor is None else np.concatenate([factor, block])
        factor = np.asarray(np.linalg.qr(rows, mode="r"))
    return np.zeros((0, 0)) if factor is None else factor


def factor_draws(draws: np.ndarray) -> np.ndarray:
    """Return a factor F, of shape (d, r), of the covariance F F' of draws of shape (n, d).

    r is the numerical rank of the covariance. F comes from the singular values of the standardised
    draws: no covariance is formed, so directions far narrower than others are kept. Directions
    without variance are left out.
    """
    moved = draws - draws[0]  # first: the mean of equal numbers is not always that number
    centred = moved - moved.mean(axis=0)
    sd = np.sqrt((centred**2).sum(axis=0) / (len(draws) - 1))
    moves = sd > FEW_DIGITS * np.abs(draws).max(axis=0)
    scale = np.where(moves, sd, 1.0)
    standardised = np.where(moves, centred / scale, 0.0) / np.sqrt(len(draws) - 1)
    _, sizes, directions = np.linalg.svd(standardised, full_matrices=False)
    kept = sizes > max(draws.shape) * np.finfo(float).eps * sizes.max(initial=0.0)
    return np.asarray(scale[:, None] * directions[kept].T * sizes[kept])


def factor_covariance(covariance: np.ndarray) -> np.ndarray:
    """Return a factor F (d, d) of a covariance F F', standardised first so that scales may differ.

    Coordinates without variance have rows of zeros.
    """
    sd = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    scale = np.where(sd > 0, sd, 1.0)
    sizes, directions = np.linalg.eigh(covariance / scale[:, None] / scale)
    return np.asarray(sd[:, None] * directions * np.sqrt(np.maximum(sizes, 0.0)))


def clip_rounding(variances: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the variances with 0 for the negative ones that rounding makes of zeros.

    sizes: the sizes of the terms from which each was computed. A variance that is negative beyond
    their rounding is refused.
    """
    if not (variances >= -ROUNDING * sizes).all():
        worst = int(np.nanargmin(np.where(np.isfinite(variances), variances, -np.inf)))
        raise NumericalError(
            f"a variance came out as {variances[worst]:.3g}, from terms of {sizes[worst]:.3g}"
        )
    return np.asarray(np.maximum(variances, 0.0))
