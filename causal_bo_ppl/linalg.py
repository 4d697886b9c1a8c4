"""Which numbers are equal, and which matrices definite, when rounding must not decide?

Sums differ in their last digits between processors. Numbers that differ by no more than that are
equal here, and of equal ones the first is taken: the same choice on every machine. A matrix that is
not definite, and a variance that is negative beyond rounding, are reported or refused.

Means and sensitivities of a linear system V = a + W'V + e, with W strictly upper triangular, are
computed by one pass over its variables. Under do(s) the means follow in causal order, and the
sensitivity of a target to each equation follows in the opposite order. Both passes work on NumPy
arrays, on JAX arrays (compiled as one loop), and over a finite field with another matrix product.

Bayesian linear regression on weights with standard normal priors, and densities of Gaussian vectors
whose covariance is of low rank up to a block-diagonal matrix, form no matrix that is larger than
they need.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.lapack import dpstrf

from causal_bo_ppl.errors import NumericalError

TIE = 1e-10  # of the range of the numbers
TILE_SIZE = 2_048  # rows and columns of a gram that are held in memory at once
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


def factor_pivoted(covariance: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a factor (n, r) of a covariance (n, n), and the r pivots by which it is found.

    Pivots are added as long as some point has a variance above `least` given those before it.
    """
    root, order, rank, _ = dpstrf(covariance, lower=1, tol=least)
    order, factor = order - 1, np.empty((len(covariance), rank))
    factor[order] = np.tril(root)[:, :rank]
    return factor, order[:rank]


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


MOST_WEIGHTS_WITH_COVARIANCE = 256  # more have none while there are fewer outcomes than weights
LEAST_BLOCK_EIGENVALUE = 1e-14  # of a matrix's largest eigenvalue: smaller ones are rounding
LOG_TWO_PI = float(np.log(2 * np.pi))

# Indices (S, T) of the rows of S blocks, -1 for padding, and factors (S, T, m), 0 for padding.
CovarianceBlock = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Weights:
    """The posterior of r weights with standard normal priors.

    mean: (r,). matrix: the covariance (r, r) or, where there are many weights and few outcomes, a
    matrix G (t, r) with the covariance I - G'G, which is then not formed.
    """

    mean: np.ndarray
    matrix: np.ndarray
    is_reduced: bool = False

    def times(self, features: np.ndarray) -> np.ndarray:
        """Return features (M, r) times the covariance, in O(M t r) where it is not formed."""
        if not self.is_reduced:
            return np.asarray(features @ self.matrix)
        return np.asarray(features - (features @ self.matrix.T) @ self.matrix)

    @property
    def covariance(self) -> np.ndarray:
        """The covariance (r, r)."""
        return self.times(np.eye(len(self.mean))) if self.is_reduced else self.matrix

    def variances(self, features: np.ndarray) -> np.ndarray:
        """Return the variances (M,) of phi'w, for features (M, r)."""
        variances = (self.times(features) * features).sum(axis=1)
        return clip_rounding(variances, (features**2).sum(axis=1))

    @cached_property
    def _root(self) -> tuple[np.ndarray, np.ndarray]:
        """A root of the covariance, as what `draw` needs of it."""
        if self.is_reduced:
            _, sizes, directions = np.linalg.svd(self.matrix, full_matrices=False)
            return 1 - np.sqrt(np.maximum(1 - sizes**2, 0.0)), directions
        sizes, directions = np.linalg.eigh(self.matrix)
        return np.sqrt(np.maximum(sizes, 0.0)), directions

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Draw n weights, (n, r)."""
        standard, (sizes, directions) = generator.standard_normal((n, len(self.mean))), self._root
        if self.is_reduced:
            return np.asarray(
                self.mean + standard - ((standard @ directions.T) * sizes) @ directions
            )
        return np.asarray(self.mean + standard @ (directions * sizes).T)


def no_weights_known(size: int) -> Weights:
    """Return weights before any outcome."""
    return Weights(np.zeros(size), np.zeros((0, size)), is_reduced=True)


def regress(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """Return the weights given residuals (t,) with features (t, r) and precisions 1 / v (t,).

    A residual is y = phi'w + e with e ~ N(0, v). Those of precision 0 are not used.
    """
    used = precisions > 0
    phi, known, noise = features[used], residuals[used], 1 / precisions[used]
    size = features.shape[1]
    if not len(known):
        return no_weights_known(size)
    if len(known) <= size:
        factor = cho_factor(phi @ phi.T + np.diag(noise), lower=True)
        if size > MOST_WEIGHTS_WITH_COVARIANCE:
            reduction = solve_triangular(factor[0], phi, lower=True)
            return Weights(cho_solve(factor, known) @ phi, reduction, is_reduced=True)
        gain = cho_solve(factor, phi)
        covariance = np.eye(size) - phi.T @ gain
        return Weights(known @ gain, (covariance + covariance.T) / 2)
    order = np.argsort(noise, kind="stable")  # large rows first: the factorization is then stable
    scale = 1 / np.sqrt(noise[order])
    rows = np.concatenate([phi[order] * scale[:, None], np.eye(size)])
    values = np.concatenate([known[order] * scale, np.zeros(size)])
    orthogonal, triangle = np.linalg.qr(rows)
    root = solve_triangular(triangle, np.eye(size))
    return Weights(root @ (orthogonal.T @ values), root @ root.T)


def shorten(features: np.ndarray) -> np.ndarray:
    """Return features (t, k), k <= t, with the products of given ones (t, r), up to rounding."""
    if features.shape[1] <= len(features):
        return features
    sizes, directions = np.linalg.eigh(features @ features.T)
    used = sizes > LEAST_BLOCK_EIGENVALUE * sizes.max(initial=0.0)
    return np.asarray(directions[:, used] * np.sqrt(sizes[used]))


def log_evidences(
    features: np.ndarray,
    blocks: Sequence[CovarianceBlock],
    amplitudes: np.ndarray,
    residuals: np.ndarray,
    noises: np.ndarray,
) -> np.ndarray:
    """Return log N(residuals; 0, F F' + a^2 B + diag(noise)) for f noises and k amplitudes, (f, k).

    B is block-diagonal and given by its factors, so that no matrix of the size t is formed: each
    block is diagonalized by itself, in whichever of its two dimensions is smaller.

    Parameters
    ----------
    features:
        F, (t, r).
    blocks:
        Factors of B.
    amplitudes:
        The k amplitudes a.
    residuals:
        Of t outcomes, (t,).
    noises:
        Variances, (f, t).
    """
    count, width = len(noises), features.shape[1] + 1
    white = np.pad(1 / np.sqrt(noises), ((0, 0), (0, 1)))  # the last one is padding
    columns = np.pad(np.column_stack([features, residuals]), ((0, 1), (0, 0))) * white[..., None]
    spectra, rotated = [np.zeros((count, 0))], [np.zeros((count, 0, width))]
    in_no_block = np.ones(columns.shape[1], bool)
    unaffected = np.zeros((count, width, width))  # products of columns that no block changes
    for indices, factors in blocks:
        in_no_block[indices] = False
        own = columns[:, indices]
        spectrum, along = _diagonalize(factors * white[:, indices][..., None], own)
        spectra.append(spectrum)
        rotated.append(along)
        if factors.shape[1] > factors.shape[2]:
            unaffected = unaffected + _products(own.reshape(count, -1, width)) - _products(along)
    unaffected = unaffected + _products(columns[:, in_no_block])
    along = np.concatenate(rotated, axis=1)[:, None]
    spread = amplitudes[:, None] ** 2 * np.concatenate(spectra, axis=1)[:, None]
    whole = unaffected[:, None] + _products(along / np.sqrt(1 + spread)[..., None])
    root = np.linalg.cholesky(np.eye(width - 1) + whole[..., :-1, :-1])
    explained = np.linalg.solve(root, whole[..., :-1, -1:])[..., 0]
    logs = 2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    logs = logs + np.log1p(spread).sum(axis=-1) + np.log(noises).sum(axis=1)[:, None]
    misfit = whole[..., -1, -1] - (explained**2).sum(axis=-1)
    return np.asarray(-0.5 * (misfit + logs + len(residuals) * LOG_TWO_PI))


def _products(columns: np.ndarray) -> np.ndarray:
    """Return A'A for a stack of matrices A."""
    return np.asarray(np.swapaxes(columns, -1, -2) @ columns)


def _diagonalize(factors: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (f, n) of all blocks, and columns along their eigenvectors, (f, n, c).

    factors: (f, S, T, m). columns: (f, S, T, c).
    """
    transposed = np.swapaxes(factors, -1, -2)
    if factors.shape[2] <= factors.shape[3]:
        spectrum, vectors = np.linalg.eigh(factors @ transposed)
        along = np.swapaxes(vectors, -1, -2) @ columns
    else:
        spectrum, vectors = np.linalg.eigh(transposed @ factors)
        least = LEAST_BLOCK_EIGENVALUE * spectrum.max(axis=-1, keepdims=True)
        scale = np.where(spectrum > least, 1 / np.sqrt(np.maximum(spectrum, 1e-300)), 0.0)
        along = scale[..., None] * (np.swapaxes(vectors, -1, -2) @ (transposed @ columns))
    count = len(factors)
    along = along.reshape(count, -1, columns.shape[-1])
    return np.maximum(spectrum, 0.0).reshape(count, -1), along


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


def largest_gap(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the largest |A B' - C D'| for two pairs of (M, r) matrices, computed tile by tile."""
    tiles = [slice(start, start + TILE_SIZE) for start in range(0, len(one[0]), TILE_SIZE)]
    return max(
        float(np.abs(one[0][row] @ one[1][column].T - other[0][row] @ other[1][column].T).max())
        for row in tiles
        for column in tiles
    )


def in_tie_widths(values: np.ndarray) -> np.ndarray:
    """Return values as multiples of the width of a tie, equal where only rounding differs."""
    return np.asarray(np.round(values / max(tie_width(values), np.finfo(float).tiny)))


def first_best(values: np.ndarray, objective: str) -> int:
    """Return the position of the best value, the first of equally good ones.

    Candidates come smallest set first, so that a smaller set wins a tie.
    """
    return first_smallest(values if objective == "min" else -values)


def sign_of(objective: str) -> float:
    """Return 1 for "max" and -1 for "min": effects times this are the larger the better."""
    return 1.0 if objective == "max" else -1.0


def between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate from both ends.

    Shares 0 and 1 give the bounds to the last bit, and rounding never leads outside.
    """
    return np.asarray(np.clip(low * (1 - share) + high * share, low, high))
