"""How do the target's mean and its derivatives follow from structural parameters?

With m the means after surgery and l the adjoint (the target's sensitivity to each equation), df/dW_ij = m_i l_j and
df/da_j = l_j where j is not set. The second derivative in W_ij and W_kl is m_i T_jk l_l + m_k T_li l_j, T the total
effects after surgery: on a path one coefficient comes before the other.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.mechanisms.linear.sem import (
    LinearSEM,
    adjoint,
    known_matrix,
    mutilated_means,
    total_effects,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import distinct_rows

THETAS, CELLS = 64, 4_000_000  # models at once, and numbers kept for them


class Wiring(NamedTuple):
    """Where the coordinates of theta stand among the coefficients of an ancestral graph of p nodes, the target last.

    causes, effects: (d,); the cause p is the constant 1, for an intercept. fixed: (p + 1, p) known coefficients.
    """

    causes: jax.Array
    effects: jax.Array
    fixed: jax.Array


def wire(parameters: Parameters) -> Wiring:
    """The places of structural coordinates."""
    graph = parameters.explored.graph.ancestral(parameters.explored.target)
    size, found = len(graph.nodes), parameters.coordinates
    fixed = known_matrix(graph, parameters.explored.known)
    causes = [graph.index(each.cause) if each.cause else size for each in found]
    effects = [graph.index(each.effect) for each in found]
    with jax.ensure_compile_time_eval():  # kept: within a trace they would be its tracers
        return Wiring(jnp.array(causes, int), jnp.array(effects, int), jnp.array(fixed))


def assemble(wiring: Wiring, theta: jax.Array) -> LinearSEM:
    """The equations with these coefficients; disturbances play no part in means."""
    matrix = wiring.fixed.at[wiring.causes, wiring.effects].set(theta)
    return LinearSEM(matrix[:-1], matrix[-1], jnp.zeros(wiring.fixed[:-1].shape))


@jax.jit
def values(wiring: Wiring, theta: jax.Array, queries: Queries) -> jax.Array:
    """(M,) effects."""
    means: jax.Array = mutilated_means(assemble(wiring, theta), queries)
    return means[:, -1]


values_of_many = jax.jit(jax.vmap(values, (None, 0, None)))


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, None))
def slopes_of_many(wiring: Wiring, theta: jax.Array, mask: jax.Array) -> jax.Array:
    """(k, S, p + 1) derivatives of effects in the values that sets (S, p) give, and what they are at 0; theta (k, d).

    f = l'a + sum_i x_i sum_j W_ij l_j, with the adjoint l, which depends on the set alone.
    """
    sem = assemble(wiring, theta)
    loads = adjoint(sem, mask, mask.shape[1] - 1)
    return jnp.column_stack([jnp.where(mask, loads @ sem.weights.T, 0.0), loads @ sem.intercepts])


def effects_of_many(wiring: Wiring, theta: np.ndarray, queries: Queries) -> np.ndarray:
    """(k, M) effects in many models, theta (k, d): one sweep for every set, and a product for its queries."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    first, which = distinct_rows(mask)
    points = np.column_stack([np.where(mask, value, 0.0), np.ones(len(mask))])
    found = np.empty((len(theta), len(mask)))
    step = THETAS * max(1, CELLS // (THETAS * max(len(first), 1) * points.shape[1]))
    order = np.split(
        np.argsort(which, kind="stable"), np.cumsum(np.bincount(which, minlength=len(first)))[:-1]
    )
    for start in range(0, len(theta), step):
        slopes = _slopes(wiring, theta[start : start + step], mask[first])
        for place, rows in enumerate(order if len(first) else []):
            here = slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] == len(rows) - 1 else rows
            found[start : start + step, here] = slopes[:, place] @ points[rows].T
    return found


def _slopes(wiring: Wiring, theta: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """(k, S, p + 1), a fixed number of models at once, so that few programs are compiled."""
    filled = np.pad(theta, ((0, -len(theta) % THETAS), (0, 0)))
    blocks = [
        jnp.asarray(filled[start : start + THETAS]) for start in range(0, len(filled), THETAS)
    ]
    found = [
        in_pieces(partial(slopes_of_many, wiring, block), masks, len(masks), 1) for block in blocks
    ]
    return np.concatenate([np.asarray(each) for each in found])[: len(theta)]


@jax.jit
def linearize(wiring: Wiring, theta: jax.Array, queries: Queries) -> tuple[jax.Array, jax.Array]:
    """(M,) effects and their (M, d) Jacobian, by two sweeps."""
    sem = assemble(wiring, theta)
    means, loads = _sweep(sem, queries)
    return means[:, -2], means[:, wiring.causes] * loads[:, wiring.effects]


def _sweep(sem: LinearSEM, queries: Queries) -> tuple[jax.Array, jax.Array]:
    """Means (M, p + 1), the constant 1 last, and adjoint (M, p)."""
    means = mutilated_means(sem, queries)
    return jnp.pad(means, ((0, 0), (0, 1)), constant_values=1.0), adjoint(
        sem, queries.mask, means.shape[1] - 1
    )


@jax.jit
def hessian(wiring: Wiring, theta: jax.Array, queries: Queries) -> jax.Array:
    """(M, d, d) second derivatives."""
    sem = assemble(wiring, theta)
    means, loads = _sweep(sem, queries)
    onward = jnp.pad(
        total_effects(sem, queries.mask), ((0, 0), (0, 0), (0, 1))
    )  # nothing moves the constant
    between = onward[:, wiring.effects][:, :, wiring.causes]
    half = means[:, wiring.causes][:, :, None] * between * loads[:, wiring.effects][:, None, :]
    return half + jnp.matrix_transpose(half)


@jax.jit
def curvature(wiring: Wiring, theta: jax.Array, queries: Queries) -> jax.Array:
    """(M,) operator norm of the Hessian at theta."""
    return jnp.abs(jnp.linalg.eigvalsh(hessian(wiring, theta, queries))).max(axis=1)


@jax.jit
def largest_curvature(wiring: Wiring, reach: jax.Array, queries: Queries) -> jax.Array:
    """(M,) a bound on the operator norm for all |theta| <= reach.

    An entry is a polynomial in coefficients and values with coefficients 1: it grows with their absolute values, and
    the norm of a nonnegative matrix grows with its entries.
    """
    positive = wiring._replace(fixed=jnp.abs(wiring.fixed))
    found: jax.Array = curvature(positive, reach, Queries(queries.mask, jnp.abs(queries.value)))
    return found


def degree(wiring: Wiring, mask: np.ndarray) -> np.ndarray:
    """(M,) degree of the effect as a polynomial in theta: most unknown coefficients on one open path; mask (M, p)."""
    present, unknown = np.asarray(wiring.fixed) != 0, np.zeros(wiring.fixed.shape, bool)
    unknown[np.asarray(wiring.causes), np.asarray(wiring.effects)] = True
    most = np.zeros((len(mask), len(present)), int)
    for node in range(mask.shape[1]):
        reached = np.where(present[:, node] | unknown[:, node], most + unknown[:, node], 0)
        most[:, node] = np.where(mask[:, node], 0, reached.max(axis=1))
    return most[:, -2]
