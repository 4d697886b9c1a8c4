"""How do latent causes correlate the disturbances?

One number t_ij for each arc i <-> j, i before j, any real number. Row j of the factor C of the correlations R = C C' is
(C_<^-1 t_j, 1) divided by its length, C_< the rows before: so R_ij is t_ij divided by that length where there is an
arc, and 0 where there is none. R is positive definite by construction, and every correlation matrix with these zeros
has exactly one t, however large the district. In a district of two R_ij = t / sqrt(1 + t^2).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

Arc = tuple[int, int]


def correlation_factor(size: int, arcs: Sequence[Arc], strengths: jax.Array) -> jax.Array:
    """(p, p) lower triangular C with C C' the correlations; arcs: places i < j, strengths (A,) in the same order."""
    rows = {later: [at for at, arc in enumerate(arcs) if arc[1] == later] for _, later in arcs}
    factor = jnp.eye(size)
    for later in sorted(rows):
        earlier = jnp.array([arcs[at][0] for at in rows[later]])
        given = jnp.zeros(size).at[earlier].set(strengths[jnp.array(rows[later])])
        row = solve_triangular(factor, given, lower=True).at[later].set(1.0)
        factor = factor.at[later].set(row / jnp.sqrt((row**2).sum()))
    return factor
