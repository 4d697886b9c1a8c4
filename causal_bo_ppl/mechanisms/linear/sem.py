"""Linear structural equations: implied moments, means after surgery, densities and new rows.

V = a + W'V + e, e ~ N(0, Omega), with W strictly upper triangular in topological order.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import distinct_rows

LOG_TWO_PI = float(np.log(2 * np.pi))
AT_ONCE = 64  # models


class LinearSEM(NamedTuple):
    """Parameters of one linear structural equation model, in topological order.

    weights: (p, p); weights[i, j] is the coefficient of V_i in the equation of V_j.
    intercepts: (p,). noise: (p, p) covariance of the disturbances.
    """

    weights: jax.Array
    intercepts: jax.Array
    noise: jax.Array


class Models(NamedTuple):
    """Draws of whole models.

    matrices: (n, p + 1, p) coefficients, the last row being intercepts. noises: (n, p, p).
    """

    matrices: np.ndarray
    noises: np.ndarray


def known_matrix(graph: CausalGraph, known: Mapping[Edge, float]) -> np.ndarray:
    """Return the known coefficients as a (p + 1, p) matrix, 0 elsewhere and for intercepts."""
    matrix = np.zeros((len(graph.nodes) + 1, len(graph.nodes)))
    for cause, effect in known:
        if cause in graph.nodes and effect in graph.nodes:
            matrix[graph.index(cause), graph.index(effect)] = known[cause, effect]
    return matrix


def implied_mean(sem: LinearSEM) -> jax.Array:
    """Return the observational mean (I - W')^-1 a, of shape (p,)."""
    return solve_triangular(_unit_lower(sem), sem.intercepts, lower=True, unit_diagonal=True)


def implied_covariance(sem: LinearSEM) -> jax.Array:
    """Return the observational covariance (I - W')^-1 Omega (I - W)^-1, of shape (p, p)."""
    left = solve_triangular(_unit_lower(sem), sem.noise, lower=True, unit_diagonal=True)
    return solve_triangular(_unit_lower(sem), left.T, lower=True, unit_diagonal=True)


def _unit_lower(sem: LinearSEM) -> jax.Array:
    return jnp.eye(len(sem.intercepts)) - sem.weights.T


@jax.jit
def mutilated_means(sem: LinearSEM, queries: Queries) -> jax.Array:
    """Return the mean of every variable under each intervention, of shape (M, p)."""
    matrix = jnp.concatenate([sem.weights, sem.intercepts[None]])
    mask, value = jnp.asarray(queries.mask).T, jnp.asarray(queries.value).T
    means: jax.Array = forward_sweep(matrix, mask, value)
    return means[:-1].T


@jax.jit
def total_effects(sem: LinearSEM, mask: jax.Array) -> jax.Array:
    """Return the effect of a unit shock to the equation of j on the mean of k, of shape (M, p, p).

    It is 0 where j or k is set. One forward sweep without intercepts has p columns for each of the
    M sets, with one shock in each.
    """
    count, size = mask.shape
    matrix = jnp.concatenate([sem.weights, jnp.zeros((1, size))])
    sets = jnp.repeat(jnp.asarray(mask).T, size, axis=1)
    shocks = jnp.tile(jnp.eye(size), count)
    effects: jax.Array = forward_sweep(matrix, sets, jnp.zeros(sets.shape), shocks)
    return effects[:-1].reshape(size, count, size).transpose(1, 2, 0)


@jax.jit
def _loads(weights: jax.Array, mask: jax.Array) -> jax.Array:
    loads: jax.Array = adjoint_sweep(weights, jnp.asarray(mask).T, mask.shape[1] - 1)
    return loads.T


def outcome_variances(
    matrix: np.ndarray, noise: np.ndarray, learned: np.ndarray, queries: Queries
) -> np.ndarray:
    """Return the variance l' Omega l of one outcome under each of M queries, of shape (M,).

    Parameters
    ----------
    matrix, noise:
        The model: coefficients (p + 1, p) and covariance of the disturbances (p, p).
    learned:
        Whose equations are known, of shape (p,); a query that depends on another is refused.
    queries:
        Interventions on the p variables, of which the target is the last.
    """
    sweep = partial(_loads, jnp.asarray(matrix[:-1]))
    loads = np.asarray(in_pieces(sweep, np.asarray(queries.mask), len(queries)))
    if loads[:, ~learned].any():
        raise DomainError(
            "a query needs an equation that no set of the problem uses, so it was not fitted"
        )
    safe = np.where(np.outer(learned, learned), noise, 0.0)
    return np.asarray(((loads @ safe) * loads).sum(axis=1))


def second_moments(matrix: np.ndarray, noise: np.ndarray, queries: Queries) -> np.ndarray:
    """Return E[v v'] of a row v = (variables, 1) under each of M queries, (M, p + 1, p + 1).

    matrix, noise: the model: coefficients (p + 1, p) and covariance of the disturbances (p, p).
    """
    model = LinearSEM(jnp.asarray(matrix[:-1]), jnp.asarray(matrix[-1]), jnp.asarray(noise))
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    rows = in_pieces(lambda batch: mutilated_means(model, batch), Queries(mask, value), len(mask))
    means = np.column_stack([np.asarray(rows), np.ones(len(mask))])
    first, which = distinct_rows(mask)
    moved = np.asarray(in_pieces(partial(total_effects, model), mask[first], len(first)))
    found = np.asarray(means[:, :, None] * means[:, None, :])
    found[:, :-1, :-1] += (np.swapaxes(moved, 1, 2) @ noise @ moved)[which]
    return found


def outcome_densities(models: Models, queries: Queries, outcomes: np.ndarray) -> np.ndarray:
    """Return the log density of each of m outcomes under each of n models, of shape (n, m)."""
    chunks = zip(*map(_chunks, models), strict=True)
    densities = [np.asarray(_densities(*chunk, queries, outcomes)) for chunk in chunks]
    return np.concatenate(densities)[: len(models.noises)]


def _chunks(part: np.ndarray) -> list[np.ndarray]:
    """Cut rows into equal parts, the last one filled up with copies, so that one program does."""
    whole = np.concatenate([part, np.repeat(part[-1:], -len(part) % AT_ONCE, axis=0)])
    return np.split(whole, len(whole) // AT_ONCE)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _densities(
    matrix: jax.Array, noise: jax.Array, queries: Queries, outcomes: jax.Array
) -> jax.Array:
    loads = _loads(matrix[:-1], jnp.asarray(queries.mask))
    variance = ((loads @ noise) * loads).sum(axis=1)
    sem = LinearSEM(matrix[:-1], matrix[-1], noise)
    gaps = outcomes - mutilated_means(sem, queries)[:, -1]
    densities: jax.Array = -0.5 * (gaps**2 / variance + jnp.log(2 * jnp.pi * variance))
    return densities


def whitened(models: Models, values: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return disturbances in units of their sd given those before them, and these sds.

    Both have the shape (s, n, p) for s models and rows (n, p); they are 0 and 1 where a variable is
    set. free: (n, p), where it is not.
    """
    matrices, noises = models
    errors = values - np.column_stack([values, np.ones(len(values))]) @ matrices
    size, scales = values.shape[1], np.ones((len(matrices), *values.shape))
    first, which = distinct_rows(free)
    for position, at in enumerate(first):
        kept, chosen = free[at], which == position
        covariance = np.where(np.outer(kept, kept), noises, np.eye(size))
        root = np.linalg.cholesky(covariance)
        part = np.swapaxes(errors[:, chosen] * kept, 1, 2)
        errors[:, chosen] = np.swapaxes(np.linalg.solve(root, part), 1, 2)
        scales[:, chosen] = np.diagonal(root, axis1=1, axis2=2)[:, None, :]
    return errors, scales


def disturbances(models: Models, rows: np.ndarray, position: int) -> np.ndarray:
    """Return the disturbances (s, n) of one variable that give rows (s or 1, n, p) in s models."""
    weights = models.matrices[:, :, position]
    mean = (rows @ weights[:, :-1, None])[..., 0] + weights[:, -1:]
    return np.asarray(rows[:, :, position] - mean)


def log_densities(models: Models, values: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the log density of each value given its causes and the disturbances before it.

    The shape is (s, n, p) for s models and rows (n, p); 0 where a variable was set.
    """
    errors, scales = whitened(models, values, free)
    logs = -0.5 * errors**2 - np.log(scales) - 0.5 * LOG_TWO_PI
    return np.asarray(np.where(free, logs, 0.0))


def replicate(models: Models, queries: Queries, key: jax.Array) -> np.ndarray:
    """Draw new rows (s, n, p), each with the same variables set to the same values as in (n, p)."""
    standard = host_generator(key).standard_normal((len(models.matrices), *queries.mask.shape))
    roots = np.swapaxes(np.linalg.cholesky(models.noises), 1, 2)
    disturbances = np.swapaxes(standard @ roots, 1, 2)
    mask, value = np.asarray(queries.mask).T, np.asarray(queries.value).T
    rows = forward_sweep(models.matrices, mask, value, disturbances)
    return np.asarray(np.swapaxes(rows[:, :-1], 1, 2))


class Reading(NamedTuple):
    """How theta is read off one model.

    places: rows and columns of coefficients, (d,) each; None where the coordinates are responses to
    queries over the p nodes: then is_intercept (d,) says which are not centred.
    """

    positions: tuple[np.ndarray, np.ndarray] | None
    queries: Queries | None
    is_intercept: np.ndarray | None


def read_theta(reading: Reading, matrix: jax.Array) -> jax.Array:
    """Return theta (d,) of a model (p + 1, p); traceable."""
    if reading.positions is not None:
        return matrix[reading.positions[0], reading.positions[1]]
    assert reading.queries is not None and reading.is_intercept is not None  # noqa: S101
    return query_means(matrix, reading.queries, jnp.asarray(reading.is_intercept))[-2]


def query_means(matrix: jax.Array, queries: Queries, is_intercept: jax.Array) -> jax.Array:
    """Return means (p + 1, d): with intercepts where one is asked for, centred elsewhere."""
    mask, value = jnp.asarray(queries.mask).T, jnp.asarray(queries.value).T
    centred = forward_sweep(matrix.at[-1].set(0.0), mask, value).at[-1].set(0.0)
    means: jax.Array = jnp.where(
        jnp.asarray(is_intercept)[None], forward_sweep(matrix, mask, value), centred
    )
    return means
