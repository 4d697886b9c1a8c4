"""How large is the variance of one outcome under an intervention?"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inference.draws import Models
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, adjoint, mutilated_means
from causal_bo_ppl.problem import Queries

DRAWS = 64  # models at once


def outcome_variances(
    matrix: np.ndarray, noise: np.ndarray, learned: np.ndarray, queries: Queries
) -> np.ndarray:
    """(M,) l' Omega l over the nodes not set, for the model (p + 1, p) with disturbances (p, p); queries (M, p).

    learned: (p,) whose equations are known; a query that depends on another is refused.
    """
    sem = LinearSEM(jnp.asarray(matrix[:-1]), jnp.asarray(matrix[-1]), jnp.asarray(noise))
    loads = np.asarray(in_pieces(partial(_loads, sem), np.asarray(queries.mask), len(queries)))
    if loads[:, ~learned].any():
        raise DomainError(
            "a query needs an equation that no set of the problem uses, so it was not fitted"
        )
    return np.asarray(((loads @ noise) * loads).sum(axis=1))


def outcome_densities(models: Models, queries: Queries, outcomes: np.ndarray) -> np.ndarray:
    """(n, m) log density of each outcome under each model."""
    found = [
        np.asarray(_densities(*chunk, queries, outcomes))
        for chunk in zip(*map(_chunks, models), strict=True)
    ]
    return np.concatenate(found)[: len(models.noises)]


def _chunks(part: np.ndarray) -> list[np.ndarray]:
    """Equal parts; the last one is filled up with copies, so that one program does."""
    whole = np.concatenate([part, np.repeat(part[-1:], -len(part) % DRAWS, axis=0)])
    return np.split(whole, len(whole) // DRAWS)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _densities(
    matrix: jax.Array, noise: jax.Array, queries: Queries, outcomes: jax.Array
) -> jax.Array:
    sem = LinearSEM(matrix[:-1], matrix[-1], noise)
    loads: jax.Array = adjoint(sem, queries.mask, matrix.shape[1] - 1)
    variance = ((loads @ noise) * loads).sum(axis=1)
    gaps = outcomes - mutilated_means(sem, queries)[:, -1]
    found: jax.Array = -0.5 * (gaps**2 / variance + jnp.log(2 * jnp.pi * variance))
    return found


def _loads(sem: LinearSEM, mask: np.ndarray) -> jax.Array:
    found: jax.Array = adjoint(sem, mask, mask.shape[1] - 1)
    return found
