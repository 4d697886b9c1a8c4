"""How is theta_Y read off the equations?

Structural coordinates are coefficients. The others are responses to special queries: a slope tau[i|s] is the centred
response to x_i = 1 with the rest of s at 0, an intercept the response to s at 0.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, adjoint, mutilated_means
from causal_bo_ppl.problem import Queries

DRAWS = 64  # models read at once


@dataclass(frozen=True, eq=False)
class Readout:
    """theta_Y as a function of the coefficients of an ancestral graph, a (p + 1, p) matrix with intercepts last."""

    parameters: Parameters
    graph: CausalGraph

    @property
    def is_structural(self) -> bool:
        """Are the coordinates coefficients themselves?"""
        return self.parameters.kind == "structural"

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """(d,) rows and (d,) columns of the structural coordinates; row p for an intercept."""
        found = self.parameters.coordinates
        rows = [
            self.graph.index(each.cause) if each.cause else len(self.graph.nodes) for each in found
        ]
        return np.array(rows, int), np.array([self.graph.index(each.effect) for each in found], int)

    @cached_property
    def queries(self) -> tuple[Queries, np.ndarray]:
        """The query of every other coordinate, and (d,) whether it is an intercept."""
        found, size = self.parameters.coordinates, len(self.graph.nodes)
        mask, value = np.zeros((len(found), size), bool), np.zeros((len(found), size))
        for row, each in enumerate(found):
            mask[row, [self.graph.index(name) for name in each.given]] = True
            if each.cause:
                value[row, self.graph.index(each.cause)] = 1.0
        return Queries(mask, value), np.array([not each.cause for each in found], bool)

    def read(self, matrices: np.ndarray) -> np.ndarray:
        """theta_Y (n, d) of models (n, p + 1, p)."""
        if self.is_structural:
            return np.asarray(matrices[:, *self.places])
        queries, is_intercept = self.queries
        chunks = [matrices[start : start + DRAWS] for start in range(0, len(matrices), DRAWS)]
        return np.concatenate(
            [np.asarray(_responses(chunk, queries, is_intercept)) for chunk in chunks]
        )

    def push(self, matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """(d, K) factor of theta_Y's covariance from one of the coefficients', (p + 1, p, K): exact, or at `matrix`."""
        if self.is_structural:
            return np.asarray(factor[self.places])
        gradient = np.asarray(_gradients(matrix, *self.queries))
        return np.asarray(np.tensordot(gradient, factor, 2))


def _means(
    matrix: jax.Array, queries: Queries, is_intercept: jax.Array
) -> tuple[LinearSEM, jax.Array]:
    """Means under each query: with intercepts where one is asked for, centred elsewhere."""
    size = matrix.shape[1]
    sem = LinearSEM(matrix[:-1], matrix[-1], jnp.eye(size))
    centred = mutilated_means(sem._replace(intercepts=jnp.zeros(size)), queries)
    return sem, jnp.where(is_intercept[:, None], mutilated_means(sem, queries), centred)


@jax.jit
@partial(jax.vmap, in_axes=(0, None, None))
def _responses(matrix: jax.Array, queries: Queries, is_intercept: jax.Array) -> jax.Array:
    means: jax.Array = _means(matrix, queries, is_intercept)[1]
    return means[:, -1]


@jax.jit
def _gradients(matrix: jax.Array, queries: Queries, is_intercept: jax.Array) -> jax.Array:
    """(d, p + 1, p) derivatives m_i l_j of the coordinates; the constant has m = 1, or 0 where centred."""
    sem, means = _means(matrix, queries, is_intercept)
    loads: jax.Array = adjoint(sem, queries.mask, matrix.shape[1] - 1)
    constant = is_intercept[:, None].astype(float)
    return jnp.concatenate([means, constant], axis=1)[:, :, None] * loads[:, None, :]
