"""An analyst's mechanisms at many parameters: densities, means and rows, compiled once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from causal_bo_ppl.mechanisms.custom.blocks import log_probability
from causal_bo_ppl.mechanisms.custom.density import CustomDensity, Rows
from causal_bo_ppl.mechanisms.custom.propagation import PathProgram, split_parts
from causal_bo_ppl.mechanisms.custom.response_map import means_of_many
from causal_bo_ppl.problem import Queries


@jax.jit
def thetas_of_many(density: CustomDensity, psi: jax.Array) -> jax.Array:
    """Return theta (n, d) at coordinates (n, k)."""
    found: jax.Array = jax.lax.map(density.theta, psi)
    return found


@jax.jit
def outcome_variances(program: PathProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the variance of one outcome under each query (M,), at theta (d,)."""
    return program.variances(theta, batch)


@jax.jit
def outcomes_of_many(
    program: PathProgram, queries: Queries, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return the log density of each outcome (n, m), at thetas (n, d)."""
    found: jax.Array = jax.lax.map(lambda one: program.log_outcomes(one, queries, values), theta)
    return found


@jax.jit
def rows_of_many(program: PathProgram, mask: Any, value: Any, pair: Any) -> jax.Array:
    """Draw rows (n, rows, p) under queries (rows, p), for thetas (n, d) and seeds (n, 1)."""
    found: jax.Array = jax.lax.map(
        lambda one: program.rows(one[0], mask, value, one[1][0]), pair, batch_size=16
    )
    return found


@jax.jit
def log_densities_of_many(program: PathProgram, rows: Rows, theta: jax.Array) -> jax.Array:
    """Return the log densities (n, rows, p) of rows at thetas (n, d)."""
    columns = [rows.values[:, place] for place in range(rows.values.shape[1])]

    def one(each: jax.Array) -> jax.Array:
        own, found = split_parts(program.parts, each), [jnp.zeros(len(rows.values))] * len(columns)
        for step in program.steps:
            made = program.conditional(own, step, columns, False)
            logs = log_probability(made, rows.filled[:, step.place])
            found[step.place] = jnp.where(rows.free[:, step.place], logs, 0.0)
        return jnp.stack(found, axis=1)

    found: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return found


@partial(jax.jit, static_argnums=(0, 2))
def means_of_each(
    at: int, program: PathProgram, shape: tuple[int, ...], theta: jax.Array, rows: jax.Array
) -> jax.Array:
    """Return means (n, rows) for thetas (n, d), each with its own rows."""

    def one(pair: Any) -> jax.Array:
        found: jax.Array = means_of_many(at, program, pair[1].reshape(shape), pair[0][None])
        return found[0]

    found: jax.Array = jax.lax.map(one, (theta, rows), batch_size=16)
    return found
