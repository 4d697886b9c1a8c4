"""How does what enters one equation reach the target, when the equations after it are uncertain?

The target's sensitivity b_i to node i follows backwards, node by node: b_i becomes b_i + W_ij b_j where j is not set.
For independent equations, with w_j and C_j the mean and covariance of the coefficients of equation j, the sensitivities
b and b' under two sets have covariances

    Cov(b_i, b'_k) + w_ij Cov(b_j, b'_k) + Cov(b_i, b'_j) w_kj + w_ij w_kj Cov(b_j, b'_j) + C_j[i, k] E[b_j b'_j]

after that step. It starts from nothing and adds; no difference is taken.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.posterior.equations import Equations
from causal_bo_ppl.queries import Queries

AT_ONCE = 512  # pairs: their (p, p) covariances stay in the cache


class Coefficients(NamedTuple):
    """Mean (p + 1, p) of the coefficients, intercepts last, and roots (p + 1, p, D) of each equation's covariance."""

    mean: np.ndarray
    roots: np.ndarray


@lru_cache(maxsize=4)  # a belief is immutable, and known by its identity
def read_coefficients(belief: Equations) -> Coefficients:
    """The moments of the equations of an ancestral graph, in causal order, the target last."""
    mean = belief.place(belief.posterior.mean)
    roots = np.zeros((*mean.shape, belief.causes.shape[1]))
    for node, causes in enumerate(belief.causes):
        used = causes >= 0
        if used.any():
            roots[causes[used], node] = np.sqrt(belief.posterior.variance[node]) * belief.posterior.root[node][used]
    return Coefficients(mean, roots)


def mean_causes(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """(M, p + 1) means of all variables after surgery, at the mean coefficients; the constant 1 last."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    found = np.column_stack([np.where(mask, value, 0.0), np.ones(len(mask))])
    for node in range(mask.shape[1]):
        free = ~mask[:, node]
        found[free, node] = found[free] @ coefficients.mean[:, node]
    return found


def mean_adjoints(coefficients: Coefficients, mask: np.ndarray) -> np.ndarray:
    """(S, p) mean sensitivity of the target to each equation under sets (S, p); 0 where the node is set."""
    found = np.zeros(mask.shape)
    found[:, -1] = 1.0
    for node in reversed(range(mask.shape[1])):
        found[mask[:, node], node] = 0.0
        found[:, :node] += found[:, node, None] * coefficients.mean[:node, node]
    return found


def adjoint_covariances(coefficients: Coefficients, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(P, p) covariances of the sensitivities to each equation under P pairs of sets, masks (P, p).

    They are due to the equations after it; 0 where the node is set in either.
    """
    found = np.zeros(left.T.shape)
    for start in range(0, len(left), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        found[:, rows] = _covariances(coefficients, left[rows].T, right[rows].T)
    return np.asarray(found.T)


def _covariances(coefficients: Coefficients, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(p, P), for masks (p, P): pairs come last, where they lie together in memory."""
    means = (mean_adjoints(coefficients, left.T) * mean_adjoints(coefficients, right.T)).T
    size, pairs = left.shape
    spread, found = np.zeros((size, size, pairs)), np.zeros((size, pairs))
    for node in reversed(range(size)):
        weights, root = coefficients.mean[:node, node], coefficients.roots[:node, node]
        found[node] = np.where(left[node] | right[node], 0.0, spread[node, node])
        parents = np.flatnonzero((weights != 0) | root.any(axis=1))
        ahead, behind = spread[node, :node] * ~left[node], spread[:node, node] * ~right[node]
        slopes, own = weights[parents], root[parents] @ root[parents].T
        spread[parents, :node] += slopes[:, None, None] * ahead
        spread[:node, parents] += slopes[:, None] * behind[:, None]
        spread[parents[:, None], parents] += own[..., None] * (found[node] + means[node])
        spread[parents[:, None], parents] += np.outer(slopes, slopes)[..., None] * found[node]
    return found
