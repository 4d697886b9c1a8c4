"""Linear-Gaussian algebra: implied mean and covariance, means after surgery, and what a mean reacts to.

V = a + W'V + e, e ~ N(0, Omega), with W strictly upper triangular in topological order.

What do given linear models say about rows? Densities of each variable, and new rows in their place.

Models come many at a time: matrices (s, p + 1, p) of coefficients with the intercepts last, noises (s, p, p).
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import distinct_rows


class LinearSEM(NamedTuple):
    """Parameters of a linear structural equation model, in topological order.

    weights: (p, p), weights[i, j] is the coefficient of V_i in the equation of V_j.
    intercepts: (p,). noise: (p, p) covariance of the disturbances.
    """

    weights: jax.Array
    intercepts: jax.Array
    noise: jax.Array


def known_matrix(graph: CausalGraph, known: Mapping[Edge, float]) -> np.ndarray:
    """(p + 1, p) known coefficients among the graph's nodes, 0 elsewhere; the last row is for intercepts."""
    found = np.zeros((len(graph.nodes) + 1, len(graph.nodes)))
    for cause, effect in known:
        if cause in graph.nodes and effect in graph.nodes:
            found[graph.index(cause), graph.index(effect)] = known[cause, effect]
    return found


def implied_mean(sem: LinearSEM) -> jax.Array:
    """(p,) observational mean, (I - W')^-1 a."""
    return solve_triangular(_unit_lower(sem), sem.intercepts, lower=True, unit_diagonal=True)


def implied_covariance(sem: LinearSEM) -> jax.Array:
    """(p, p) observational covariance, (I - W')^-1 Omega (I - W)^-1."""
    left = solve_triangular(_unit_lower(sem), sem.noise, lower=True, unit_diagonal=True)
    return solve_triangular(_unit_lower(sem), left.T, lower=True, unit_diagonal=True)


def _unit_lower(sem: LinearSEM) -> jax.Array:
    return jnp.eye(len(sem.intercepts)) - sem.weights.T


@jax.jit
def mutilated_means(sem: LinearSEM, queries: Queries) -> jax.Array:
    """(M, p) mean of every variable under each intervention, by one sweep in causal order."""
    mask, value = jnp.asarray(queries.mask).T, jnp.asarray(queries.value).T

    def visit(node: jax.Array, means: jax.Array) -> jax.Array:
        natural = sem.intercepts[node] + sem.weights[:, node] @ means
        return means.at[node].set(jnp.where(mask[node], value[node], natural))

    means: jax.Array = jax.lax.fori_loop(0, mask.shape[0], visit, jnp.zeros(value.shape))
    return means.T


@partial(jax.jit, static_argnames="target")
def adjoint(sem: LinearSEM, mask: jax.Array, target: int) -> jax.Array:
    """(M, p) sensitivity l_j of the target's mean to the equation of each node, 0 where j is set; mask (M, p).

    One sweep against the causal order: l_target = 1, l_j = sum_k W[j, k] l_k. Then df/dW[i, j] = m_i l_j and
    df/da_j = l_j, with m the means after surgery.
    """
    free = ~jnp.asarray(mask).T
    start = jnp.zeros(free.shape).at[target].set(1.0)

    def visit(step: jax.Array, loads: jax.Array) -> jax.Array:
        node = target - 1 - step
        return loads.at[node].set(jnp.where(free[node], sem.weights[node] @ loads, 0.0))

    loads: jax.Array = jax.lax.fori_loop(0, target, visit, start)
    return loads.T


@jax.jit
def total_effects(sem: LinearSEM, mask: jax.Array) -> jax.Array:
    """(M, p, p) effect of a unit shock to the equation of j on the mean of k, both free; 0 where one is set."""
    free = ~jnp.asarray(mask)
    size = sem.weights.shape[0]

    def visit(node: jax.Array, effects: jax.Array) -> jax.Array:
        onward = jnp.eye(size)[node][None] + effects @ sem.weights[:, node]
        return effects.at[:, :, node].set(jnp.where(free[:, node, None] & free, onward, 0.0))

    found: jax.Array = jax.lax.fori_loop(0, size, visit, jnp.zeros((*free.shape, size)))
    return found


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


def log_densities(
    matrices: np.ndarray, noises: np.ndarray, values: np.ndarray, free: np.ndarray
) -> np.ndarray:
    """(s, n, p) log density of each value given its causes and the disturbances before it; 0 where it was set."""
    errors, scales = whitened(matrices, noises, values, free)
    return np.asarray(np.where(free, -0.5 * errors**2 - np.log(scales) - 0.5 * LOG_TWO_PI, 0.0))


def replicate(
    matrices: np.ndarray, noises: np.ndarray, queries: Queries, key: jax.Array
) -> np.ndarray:
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
