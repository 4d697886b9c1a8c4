"""Which of several numbers is the smallest, when rounding must not decide?

Sums differ in their last digits between processors. Numbers that differ by no more than that are
equal here, and of equal ones the first is taken: the same choice on every machine.

Can this matrix be trusted?
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import NumericalError

TIE = 1e-10  # of the range of the numbers
TIE_ROUNDING = 8 * np.finfo(float).eps  # of the largest of them: whatever their offset


def tie_width(numbers: np.ndarray) -> float:
    """Return the difference up to which two of these numbers count as equal, in any units; infinite ones are apart."""
    finite = numbers[np.isfinite(numbers)]
    return float(TIE * np.ptp(finite) + TIE_ROUNDING * np.abs(finite).max()) if finite.size else 0.0


def first_smallest(numbers: np.ndarray) -> int:
    """Return the position of the smallest number of a non-empty (n,) array, the first of equal ones."""
    return int(np.flatnonzero(numbers <= numbers.min() + tie_width(numbers))[0])


def first_largest(numbers: np.ndarray) -> int:
    """Return the position of the largest number of a non-empty (n,) array, the first of equal ones."""
    return first_smallest(-numbers)


ROUNDING = 1e-9  # of what a variance was computed from
FEW_DIGITS = (
    8 * np.finfo(float).eps
)  # of a number: equal ones may differ by this after a few operations


def invert_definite(block: Any) -> tuple[Any, Any]:
    """Inverse (..., k, k) and log determinant (...) of positive definite matrices; NaN where one is not definite.

    NumPy in, NumPy out, without compiling; JAX arrays by Cholesky, differentiable.
    """
    if isinstance(block, jax.Array):
        return _invert_by_cholesky(block)
    try:
        root = np.linalg.cholesky(block)
        return np.linalg.inv(block), 2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    except np.linalg.LinAlgError:  # some of them are not definite
        sizes = np.linalg.eigvalsh(block)
    least = (
        block.shape[-1]
        * np.finfo(float).eps
        * np.abs(sizes).max(axis=-1, initial=0.0, keepdims=True)
    )
    is_definite = np.asarray(
        (sizes > least).all(axis=-1)
    )  # a zero eigenvalue is rounded either way
    inverse = np.linalg.inv(np.where(is_definite[..., None, None], block, np.eye(block.shape[-1])))
    log_determinant = np.log(np.where(is_definite[..., None], sizes, np.nan)).sum(axis=-1)
    return np.where(is_definite[..., None, None], inverse, np.nan), log_determinant


def _invert_by_cholesky(block: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor = jnp.linalg.cholesky(block)  # NaN where not definite, which then spreads
    identity = jnp.broadcast_to(jnp.eye(block.shape[-1], dtype=block.dtype), block.shape)
    root = jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return jnp.matrix_transpose(root) @ root, 2 * jnp.log(diagonal).sum(axis=-1)


def factor_draws(draws: np.ndarray) -> np.ndarray:
    """(d, r) matrix F with F F' the covariance of draws (n, d), r its numerical rank.

    By singular values of the standardised draws: no covariance is formed, so directions far narrower than others are
    kept. Directions without variance are left out.
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


def clip_rounding(variances: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Variances without the negative ones that rounding makes of zeros; sizes: what they were computed from."""
    if not (variances >= -ROUNDING * sizes).all():
        worst = int(np.nanargmin(np.where(np.isfinite(variances), variances, -np.inf)))
        raise NumericalError(
            f"a variance came out as {variances[worst]:.3g}, from terms of {sizes[worst]:.3g}"
        )
    return np.asarray(np.maximum(variances, 0.0))
