"""Means and sensitivities of a linear system under interventions, by one pass over its variables.

V = a + W'V + e with W strictly upper triangular. Under do(s) the means follow in causal order, and
the sensitivity of a target to each equation follows in the opposite order. Both passes work on
NumPy arrays, on JAX arrays (compiled as one loop), and over a finite field with its own matrix
product.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Product = Callable[[Any, Any], Any]


def forward_sweep(
    matrix: Any, mask: Any, value: Any, disturbances: Any = None, product: Product = operator.matmul
) -> Any:
    """Return what every variable is under each of M interventions, with a last row of ones.

    m_j is the value where j is set, and a_j + e_j + sum_i W_ij m_i elsewhere.

    Parameters
    ----------
    matrix:
        Coefficients of shape (..., p + 1, p); the last row holds the intercepts.
    mask, value:
        Which variables are set, and to what, of shape (p, M).
    disturbances:
        e of shape (..., p, M); none by default.
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
        The place of the target among the variables.
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
    """Apply `visit` to the places 0 to count - 1, in Python or as one compiled loop of JAX."""
    if not _is_numpy(state):
        return jax.lax.fori_loop(0, count, visit, state)
    for place in range(count):
        state = visit(place, state)
    return state


def _put(array: Any, place: Any, row: Any) -> Any:
    """Return the array with one row set; a NumPy array is changed, for it is our own."""
    if not _is_numpy(array):
        return array.at[..., place, :].set(row)
    array[..., place, :] = row
    return array


def _where(condition: Any, chosen: Any, other: Any) -> Any:
    return (
        np.where(condition, chosen, other)
        if _is_numpy(other)
        else jnp.where(condition, chosen, other)
    )
