"""How does an effect follow from slopes and intercepts? It is linear in them: the query's values are its Jacobian."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Coordinate, Parameters
from causal_bo_ppl.mechanisms.linear.sem import known_matrix
from causal_bo_ppl.problem import Queries


class Points(NamedTuple):
    """M queries over the p nodes of the ancestral graph and the constant 1.

    columns: (M, p + 1) places of their coefficients in theta, d where theta has none. known: (M, p + 1) slopes known in
    advance. values: (M, p + 1).
    """

    columns: jax.Array | np.ndarray
    known: jax.Array | np.ndarray
    values: jax.Array | np.ndarray


def place(
    parameters: Parameters,
    queries: Queries,
    used: Sequence[Sequence[Coordinate]],
    which: np.ndarray,
) -> Points:
    """The coefficients of every query; used: the coordinates of each distinct set, which: (M,) the set of a query."""
    graph = parameters.explored.graph.ancestral(parameters.explored.target)
    size, at = len(graph.nodes), {name: column for column, name in enumerate(parameters.names)}
    columns = np.full((len(used), size + 1), len(parameters))
    for row, coordinates in enumerate(used):
        for each in coordinates:
            columns[row, graph.index(each.cause) if each.cause else size] = at[each.name]
    mask = np.asarray(queries.mask)
    known = _known_slopes(parameters, graph, mask) * (
        mask & (columns[which, :-1] == len(parameters))
    )
    values = np.column_stack([np.where(mask, queries.value, 0.0), np.ones(len(mask))])
    return Points(columns[which], np.pad(known, ((0, 0), (0, 1))), values)


def _known_slopes(parameters: Parameters, graph: CausalGraph, mask: np.ndarray) -> np.ndarray:
    """(M, p) slopes by the known coefficients alone: right where every open path has only such."""
    weights = known_matrix(graph, parameters.explored.known)[:-1]
    if not weights.any():
        return np.zeros(mask.shape)
    loads = np.zeros(mask.shape)
    loads[:, -1] = 1.0
    for node in range(
        len(weights) - 2, -1, -1
    ):  # NumPy: nothing to compile for every number of queries
        loads[:, node] = np.where(mask[:, node], 0.0, loads @ weights[node])
    return np.asarray(loads @ weights.T)


@jax.jit
def values(_: None, theta: jax.Array, points: Points) -> jax.Array:
    """(M,) effects."""
    return ((jnp.append(theta, 0.0)[points.columns] + points.known) * points.values).sum(axis=1)


values_of_many = jax.jit(jax.vmap(values, (None, 0, None)))


@jax.jit
def linearize(_: None, theta: jax.Array, points: Points) -> tuple[jax.Array, jax.Array]:
    """(M,) effects and their (M, d) Jacobian, which does not depend on theta."""
    rows = jnp.arange(len(points.values))[:, None]
    jacobian = (
        jnp.zeros((len(points.values), len(theta) + 1)).at[rows, points.columns].add(points.values)
    )
    return values(None, theta, points), jacobian[:, :-1]
