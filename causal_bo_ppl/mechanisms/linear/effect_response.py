"""Effects as a function of slopes and intercepts: total effects, or values of verified estimands.

An effect is linear in them, and the query's values are its Jacobian. A slope tau[i|s] is the
centred response to x_i = 1 with the rest of s at 0, an intercept the response to s at 0: so they
are read off the equations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Coordinate, Parameters
from causal_bo_ppl.mechanisms.interfaces import HessianBounds
from causal_bo_ppl.mechanisms.linear.parameters import LinearParameters
from causal_bo_ppl.mechanisms.linear.sem import Reading, known_matrix, query_means, read_theta
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.sweeps import adjoint_sweep

DRAWS = 64  # models read at once


class Points(NamedTuple):
    """Queries over the p nodes of the ancestral graph and the constant 1, in M rows.

    columns: (M, p + 1) places of their coefficients in theta, d where theta has none. known:
    (M, p + 1) slopes known in advance. values: (M, p + 1).
    """

    columns: jax.Array | np.ndarray
    known: jax.Array | np.ndarray
    values: jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EffectProgram:
    """Effects that are linear in theta; see `interfaces.ResponseProgram`."""

    def effects(self, theta: jax.Array, batch: Points) -> jax.Array:
        """Return the effects (M,)."""
        slopes = jnp.append(theta, 0.0)[batch.columns] + batch.known
        return (slopes * batch.values).sum(axis=1)

    def linearize(self, theta: jax.Array, batch: Points) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d), which do not depend on theta."""
        rows = jnp.arange(len(batch.values))[:, None]
        blank = jnp.zeros((len(batch.values), len(theta) + 1))
        jacobian = blank.at[rows, batch.columns].add(batch.values)
        return self.effects(theta, batch), jacobian[:, :-1]


@dataclass(frozen=True, eq=False)
class EffectResponse(LinearParameters):
    """The map from slopes and intercepts to effects; see `interfaces.ResponseMap`."""

    is_linear = True
    program = EffectProgram()

    @cached_property
    def reading(self) -> Reading:
        """How theta is read off one model: by the response to a query for every coordinate."""
        nodes = self.problem.graph.ancestral(self.problem.target)
        coordinates, size = self.parameters.coordinates, len(nodes.nodes)
        mask = np.zeros((len(coordinates), size), bool)
        value = np.zeros((len(coordinates), size))
        for row, each in enumerate(coordinates):
            mask[row, [nodes.index(name) for name in each.given]] = True
            if each.cause:
                value[row, nodes.index(each.cause)] = 1.0
        is_intercept = np.array([not each.cause for each in coordinates], bool)
        return Reading(None, Queries(mask, value), is_intercept)

    def read(self, matrices: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models (n, p + 1, p)."""
        chunks = [matrices[start : start + DRAWS] for start in range(0, len(matrices), DRAWS)]
        return np.concatenate([np.asarray(_read_many(self.reading, chunk)) for chunk in chunks])

    def push(self, matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Return a factor (d, K) of theta's covariance from that of coefficients, (p + 1, p, K).

        Linearized at the coefficients `matrix`.
        """
        gradient = np.asarray(_gradients(matrix, self.reading.queries, self.reading.is_intercept))
        return np.asarray(np.tensordot(gradient, factor, 2))

    def batch(self, queries: Queries) -> Points:
        """Return the places of the coefficients of every query, and its values."""
        upstream, used, which = self.coverage.read(queries)
        return _place(self.parameters, upstream, used, which)

    def hessian_bounds(
        self, mean: np.ndarray, sd: np.ndarray, queries: Queries, level: float
    ) -> HessianBounds:
        """Return zeros: the effects are linear in theta."""
        self.batch(queries)
        return HessianBounds(np.zeros(len(queries)), np.ones(len(queries), bool), level)


def _place(
    parameters: Parameters,
    queries: Queries,
    used: Sequence[Sequence[Coordinate]],
    which: np.ndarray,
) -> Points:
    """Return where the coefficients of each query stand in theta.

    used: the coordinates of each distinct set. which: the set of each query, of shape (M,).
    """
    graph = parameters.explored.graph.ancestral(parameters.explored.target)
    size, at = len(graph.nodes), {name: column for column, name in enumerate(parameters.names)}
    columns = np.full((len(used), size + 1), len(parameters))
    for row, coordinates in enumerate(used):
        for each in coordinates:
            columns[row, graph.index(each.cause) if each.cause else size] = at[each.name]
    mask = np.asarray(queries.mask)
    missing = mask & (columns[which, :-1] == len(parameters))
    known = _known_slopes(parameters, graph, mask) * missing
    values = np.column_stack([np.where(mask, queries.value, 0.0), np.ones(len(mask))])
    return Points(columns[which], np.pad(known, ((0, 0), (0, 1))), values)


def _known_slopes(parameters: Parameters, graph: CausalGraph, mask: np.ndarray) -> np.ndarray:
    """Return slopes (M, p) by the known coefficients alone.

    They are right where every open path has only such.
    """
    weights = known_matrix(graph, parameters.explored.known)[:-1]
    if not weights.any():
        return np.zeros(mask.shape)
    loads = adjoint_sweep(weights, mask.T, len(weights) - 1)
    return np.asarray((weights @ loads).T)


_read_many = jax.jit(jax.vmap(read_theta, (None, 0)))


@jax.jit
def _gradients(matrix: jax.Array, queries: Queries, is_intercept: jax.Array) -> jax.Array:
    """Return the derivatives m_i l_j of the coordinates, of shape (d, p + 1, p).

    The constant has m = 1, or 0 where centred.
    """
    means = query_means(jnp.asarray(matrix), queries, is_intercept)
    mask = jnp.asarray(queries.mask).T
    loads: jax.Array = adjoint_sweep(jnp.asarray(matrix)[:-1], mask, matrix.shape[1] - 1)
    return means.T[:, :, None] * loads.T[:, None, :]
