"""Which numbers are equal, and which matrices definite, when rounding must not decide?

Sums differ in their last digits between processors. Numbers that differ by no more than that are
equal here, and of equal ones the first is taken: the same choice on every machine. A matrix that is
not definite, and a variance that is negative beyond rounding, are reported or refused.

Means and sensitivities of a linear system V = a + W'V + e, with W strictly upper triangular, are
computed by one pass over its variables. Under do(s) the means follow in causal order, and the
sensitivity of a target to each equation follows in the opposite order. Both passes work on NumPy
arrays, on JAX arrays (compiled as one loop), and over a finite field with another matrix product.
"""

import operator
from collections.abc import Callable, Iterable
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


VARIANCE_ROUNDING = 1e-9  # of the terms from which a variance was computed


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
    without variance are dropped.
    """
    moved = draws - draws[0]  # first: the mean of equal numbers is not always that number
    centred = moved - moved.mean(axis=0)
    sd = np.sqrt((centred**2).sum(axis=0) / (len(draws) - 1))
    moves = sd > TIE_ROUNDING * np.abs(draws).max(axis=0)
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
    """Return the variances with 0 for the negative ones that are rounded zeros.

    sizes: the sizes of the terms from which each was computed. A variance that is negative beyond
    their rounding is refused.
    """
    if not (variances >= -VARIANCE_ROUNDING * sizes).all():
        worst = int(np.nanargmin(np.where(np.isfinite(variances), variances, -np.inf)))
        raise NumericalError(
            f"a variance came out as {variances[worst]:.3g}, from terms of {sizes[worst]:.3g}"
        )
    return np.asarray(np.maximum(variances, 0.0))


Product = Callable[[Any, Any], Any]


def forward_sweep(
    matrix: Any, mask: Any, value: Any, disturbances: Any = None, product: Product = operator.matmul
) -> Any:
    """Return the value of every variable under each of M interventions, with a last row of ones.

    m_j is the value where j is set, and a_j + e_j + sum_i W_ij m_i elsewhere.

    Parameters
    ----------
    matrix:
        Coefficients of shape (..., p + 1, p); the last row holds the intercepts.
    mask, value:
        Which variables are set, and to what, of shape (p, M).
    disturbances:
        The noise e, of shape (..., p, M); none by default.
    product:
        The matrix product.

    Returns
    -------
    Array of shape (..., p + 1, M).
    """
    size, count = mask.shape
    shape = (*matrix.shape[:-2], size + 1, count)

    def visit(node: Any, means: Any) -> Any:
        natural = product(matrix[..., None, :, node], means)[..., 0, :]
        if disturbances is not None:
            natural = natural + disturbances[..., node, :]
        return _put(means, node, _where(mask[node], value[node], natural))

    kind = np.result_type(matrix, value) if _is_numpy(matrix) else None
    start = jnp.zeros(shape) if kind is None else np.zeros(shape, kind)
    return _loop(size, visit, _put(start, size, 1))


def adjoint_sweep(weights: Any, mask: Any, target: int, product: Product = operator.matmul) -> Any:
    """Return the sensitivity of a target to the equation of each variable under M sets.

    l_target = 1, l_j = sum_k W_jk l_k, and 0 where j is set. The derivative of the target's mean in
    W_ij is m_i l_j and in a_j it is l_j.

    Parameters
    ----------
    weights:
        Coefficients of shape (..., p, p) without intercepts.
    mask:
        Which variables are set, of shape (p, M).
    target:
        The position of the target among the variables.
    product:
        The matrix product.

    Returns
    -------
    Array of shape (..., p, M).
    """
    shape = (*weights.shape[:-2], *mask.shape)

    def visit(step: Any, loads: Any) -> Any:
        node = target - 1 - step
        onward = product(weights[..., None, node, :], loads)[..., 0, :]
        return _put(loads, node, _where(mask[node], 0, onward))

    start = np.zeros(shape, weights.dtype) if _is_numpy(weights) else jnp.zeros(shape)
    return _loop(target, visit, _put(start, target, 1))


def _is_numpy(array: Any) -> bool:
    return isinstance(array, np.ndarray)


def _loop(count: int, visit: Callable[[Any, Any], Any], state: Any) -> Any:
    """Apply `visit` to the positions 0 to count - 1, in Python or as one compiled loop of JAX."""
    if not _is_numpy(state):
        return jax.lax.fori_loop(0, count, visit, state)
    for position in range(count):
        state = visit(position, state)
    return state


def _put(array: Any, position: Any, row: Any) -> Any:
    """Return the array with one row set; a NumPy array is changed in place."""
    if not _is_numpy(array):
        return array.at[..., position, :].set(row)
    array[..., position, :] = row
    return array


def _where(condition: Any, chosen: Any, other: Any) -> Any:
    return (np if _is_numpy(other) else jnp).where(condition, chosen, other)
