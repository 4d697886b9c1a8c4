"""How do latent causes correlate the disturbances?

One number t for each arc, any real number. Row j of the factor C of the correlations R = C C' is (v_j, 1) divided by
its length, where v_j lies in the directions that leave R_ij = 0 wherever i and j, i before j, share no arc: C_< v_j
must be 0 there, C_< the rows before. With Q an orthonormal basis of these directions, v_j = Q t_j. So R is positive
definite by construction, every correlation matrix with these zeros has exactly one t, however large the district, and
the share of a disturbance's variance that those before it do not explain is 1 / (1 + |t_j|^2). In a district of two
R_ij is t / sqrt(1 + t^2).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

Arc = tuple[int, int]


def correlation_factor(size: int, arcs: Sequence[Arc], strengths: jax.Array) -> jax.Array:
    """(p, p) lower triangular C with C C' the correlations; arcs: places i < j, strengths (A,) in the same order."""
    rows = {later: [at for at, arc in enumerate(arcs) if arc[1] == later] for _, later in arcs}
    factor = jnp.eye(size)
    for later in sorted(rows):
        chosen = np.eye(size)[:, [arcs[at][0] for at in rows[later]]]
        allowed = solve_triangular(factor, jnp.asarray(chosen), lower=True)
        root = jnp.linalg.cholesky(allowed.T @ allowed)
        weights = solve_triangular(root, jnp.asarray(strengths)[np.array(rows[later])], lower=True, trans="T")
        row = (allowed @ weights).at[later].set(1.0)
        factor = factor.at[later].set(row / jnp.sqrt((row**2).sum()))
    return factor
