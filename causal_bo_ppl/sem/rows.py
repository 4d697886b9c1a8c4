"""What do given linear models say about rows? Densities of each variable, and new rows in their place.

Models come many at a time: matrices (s, p + 1, p) of coefficients with the intercepts last, noises (s, p, p).
"""

import jax
import numpy as np

from causal_bo_ppl.keys import host_generator
from causal_bo_ppl.queries import Queries, distinct_rows

LOG_TWO_PI = float(np.log(2 * np.pi))


def residuals(matrices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(s, n, p) disturbances that give the rows (n, p)."""
    whole = np.column_stack([values, np.ones(len(values))])
    return np.asarray(values - whole @ matrices)


def whitened(
    matrices: np.ndarray, noises: np.ndarray, values: np.ndarray, free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Disturbances (s, n, p) in units of their sd given those before them, and these sds; 0 and 1 where one is set."""
    errors = residuals(matrices, values)
    size, scales = values.shape[1], np.ones((len(matrices), *values.shape))
    first, which = distinct_rows(free)
    for place, at in enumerate(first):
        kept, chosen = free[at], which == place
        covariance = np.where(np.outer(kept, kept), noises, np.eye(size))
        root = np.linalg.cholesky(covariance)
        part = np.swapaxes(errors[:, chosen] * kept, 1, 2)
        errors[:, chosen] = np.swapaxes(np.linalg.solve(root, part), 1, 2)
        scales[:, chosen] = np.diagonal(root, axis1=1, axis2=2)[:, None, :]
    return errors, scales


def log_densities(matrices: np.ndarray, noises: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
    """(s, n, p) log density of each value given its causes and the disturbances before it; 0 where it was set."""
    errors, scales = whitened(matrices, noises, values, free)
    return np.asarray(np.where(free, -0.5 * errors**2 - np.log(scales) - 0.5 * LOG_TWO_PI, 0.0))


def replicate(matrices: np.ndarray, noises: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
    """(s, n, p) new rows, each with the same variables set to the same values; queries (n, p)."""
    standard = host_generator(key).standard_normal((len(matrices), *queries.mask.shape))
    return _sweep(matrices, standard @ np.swapaxes(np.linalg.cholesky(noises), 1, 2), queries)


def means(matrices: np.ndarray, queries: Queries) -> np.ndarray:
    """(s, M, p) mean of every variable under each intervention; queries (M, p)."""
    return _sweep(matrices, np.zeros((len(matrices), *queries.mask.shape)), queries)


def _sweep(matrices: np.ndarray, found: np.ndarray, queries: Queries) -> np.ndarray:
    """Disturbances (s, n, p) become values, in causal order."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    for node in range(mask.shape[1]):
        natural = found[:, :, node] + matrices[:, None, -1, node]
        natural = natural + (found[:, :, :node] @ matrices[:, :node, node, None])[..., 0]
        found[:, :, node] = np.where(mask[:, node], value[:, node], natural)
    return found
