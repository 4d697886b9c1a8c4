"""What are the effects of many draws of theta? A fixed number of draws at once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.mechanisms.interfaces import ResponseMap, ResponseProgram, offered
from causal_bo_ppl.problem import Queries

THETAS = 64  # models at once


@jax.jit
def apply_to_many(program: ResponseProgram, theta: jax.Array, batch: Any) -> jax.Array:
    """Return the effects (s, M) of thetas (s, d) on a batch of the response map."""
    many = offered(program, "of_many") or jax.vmap(program.effects, (0, None))
    found: jax.Array = many(theta, batch)
    return found


def how_many(program: ResponseProgram) -> tuple[int | None, bool]:
    """Return how many queries a piece holds, where the program says so; whether threads share."""
    return getattr(program, "together", None), getattr(program, "side_by_side", False)


def effects_of_draws(response: ResponseMap, theta: np.ndarray, queries: Queries) -> np.ndarray:
    """Return effects (s, M) at finite thetas (s, d); few programs are compiled.

    Raises ExplorationError where theta does not determine the effect of a query.
    """
    known = offered(response, "effects_of_many")
    if known is not None:
        return np.asarray(known(theta, queries))
    filled = np.pad(theta, ((0, -len(theta) % THETAS), (0, 0)), mode="edge")
    effects, batch = np.empty((len(filled), len(queries))), response.batch(queries)
    sizes = how_many(response.program)
    for start in range(0, len(filled), THETAS):
        block = jnp.asarray(filled[start : start + THETAS])
        work = partial(apply_to_many, response.program, block)
        effects[start : start + THETAS] = in_pieces(work, batch, len(queries), 1, *sizes)
    return effects[: len(theta)]
