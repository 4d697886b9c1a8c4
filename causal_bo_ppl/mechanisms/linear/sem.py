"""Linear structural equations: implied moments, means after surgery, densities and simulation.

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
MODELS_AT_ONCE = 64  # in one compiled program


class LinearSEM(NamedTuple):
    """Parameters of one linear structural equation model, in topological order.

    weights: (p, p); weights[i, j] is the coefficient of V_i in the equation of V_j.
    intercepts: (p,). noise: (p, p) covariance of the noise e.
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
    """Return the effect of a unit shock to equation j on the mean of k, of shape (M, p, p).

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
        The model: coefficients (p + 1, p) and covariance of the noise (p, p).
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
    """Return E[v v'] of v = (variables, 1) under each of M queries, (M, p + 1, p + 1).

    matrix, noise: the model: coefficients (p + 1, p) and covariance of the noise (p, p).
    """
    model = LinearSEM(jnp.asarray(matrix[:-1]), jnp.asarray(matrix[-1]), jnp.asarray(noise))
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    means = in_pieces(partial(mutilated_means, model), Queries(mask, value), len(mask))
    means = np.column_stack([np.asarray(means), np.ones(len(mask))])
    first, which = distinct_rows(mask)
    moved = np.asarray(in_pieces(partial(total_effects, model), mask[first], len(first)))
    moments = np.asarray(means[:, :, None] * means[:, None, :])
    moments[:, :-1, :-1] += (np.swapaxes(moved, 1, 2) @ noise @ moved)[which]
    return moments


def outcome_densities(models: Models, queries: Queries, outcomes: np.ndarray) -> np.ndarray:
    """Return the log density of each of m outcomes under each of n models, of shape (n, m)."""
    chunks = zip(*map(_chunks, models), strict=True)
    densities = [np.asarray(_densities(*chunk, queries, outcomes)) for chunk in chunks]
    return np.concatenate(densities)[: len(models.noises)]


def _chunks(part: np.ndarray) -> list[np.ndarray]:
    """Cut an array into equal parts, the last one filled up with copies: one program does."""
    whole = np.concatenate([part, np.repeat(part[-1:], -len(part) % MODELS_AT_ONCE, axis=0)])
    return np.split(whole, len(whole) // MODELS_AT_ONCE)


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


class LinearObservations:
    """Density and simulation of observations under draws of linear models; see `base.Model`.

    graph: the target's ancestral graph, with p variables.
    """

    graph: CausalGraph

    @property
    def nodes(self) -> tuple[str, ...]:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable is Gaussian with one sd, (p,): all are."""
        return np.ones(len(self.nodes), bool)

    def scales(self, draws: Models) -> np.ndarray:
        """Return the sds (s, p) of the noise of all variables."""
        return np.asarray(np.sqrt(np.diagonal(draws.noises, axis1=1, axis2=2)))

    def disturbances(self, draws: Models, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (s, n) of one variable at observations (s or 1, n, p) of s models."""
        weights = draws.matrices[:, :, position]
        mean = (values @ weights[:, :-1, None])[..., 0] + weights[:, -1:]
        return np.asarray(values[:, :, position] - mean)

    def log_densities(self, draws: Models, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes and the noise before it.

        The shape is (s, n, p) for s models and observations (n, p); 0 where a variable was set.
        """
        errors = values - np.column_stack([values, np.ones(len(values))]) @ draws.matrices
        scales = np.ones((len(draws.matrices), *values.shape))
        first, which = distinct_rows(free)
        for group, pattern in enumerate(free[first]):
            members = which == group
            covariance = np.where(np.outer(pattern, pattern), draws.noises, np.eye(len(pattern)))
            root = np.linalg.cholesky(covariance)
            part = np.swapaxes(errors[:, members] * pattern, 1, 2)
            errors[:, members] = np.swapaxes(np.linalg.solve(root, part), 1, 2)
            scales[:, members] = np.diagonal(root, axis1=1, axis2=2)[:, None, :]
        logs = -0.5 * errors**2 - np.log(scales) - 0.5 * LOG_TWO_PI
        return np.asarray(np.where(free, logs, 0.0))

    def replicate(self, draws: Models, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw new observations (s, n, p) of s models, one under each of n queries."""
        standard = host_generator(key).standard_normal((len(draws.matrices), *queries.mask.shape))
        roots = np.swapaxes(np.linalg.cholesky(draws.noises), 1, 2)
        noise = np.swapaxes(standard @ roots, 1, 2)
        mask, value = np.asarray(queries.mask).T, np.asarray(queries.value).T
        values = forward_sweep(draws.matrices, mask, value, noise)
        return np.asarray(np.swapaxes(values[:, :-1], 1, 2))


class ThetaReader(NamedTuple):
    """How theta is read off the coefficients of one model.

    positions: rows and columns of coefficients, (d,) each; None where the coordinates are responses
    to queries over the p nodes: then is_intercept (d,) marks those that are not centred.
    """

    positions: tuple[np.ndarray, np.ndarray] | None
    queries: Queries | None
    is_intercept: np.ndarray | None


def read_theta(reader: ThetaReader, matrix: jax.Array) -> jax.Array:
    """Return theta (d,) of a model (p + 1, p); traceable."""
    if reader.positions is not None:
        return matrix[reader.positions]
    assert reader.queries is not None and reader.is_intercept is not None  # noqa: S101
    return query_means(matrix, reader.queries, jnp.asarray(reader.is_intercept))[-2]


def query_means(matrix: jax.Array, queries: Queries, is_intercept: jax.Array) -> jax.Array:
    """Return means (p + 1, d): with intercepts where one is asked for, centred elsewhere."""
    mask, value = jnp.asarray(queries.mask).T, jnp.asarray(queries.value).T
    centred = forward_sweep(matrix.at[-1].set(0.0), mask, value).at[-1].set(0.0)
    natural = forward_sweep(matrix, mask, value)
    return jnp.where(jnp.asarray(is_intercept)[None], natural, centred)
