"""How large are effects' variances without linearization?

For independent equations, whatever their shape, means and covariances of the variables after surgery follow in causal
order: m_j = w_j'm, D_jk = w_j'D_k for k before j, D_jj = w_j'D w_j + tr(C_j (D + m m')), with w_j and C_j the mean and
covariance of the coefficients of equation j. What is set has no variance.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.linalg import clip_rounding
from causal_bo_ppl.pieces import in_pieces
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.posterior.equations import Equations
from causal_bo_ppl.queries import Queries


def exact_variances(post: Posterior, queries: Queries) -> np.ndarray:
    """(M,) posterior variances of the effects; refused unless the equations are independent."""
    if not isinstance(post.belief, Equations):
        raise ModelError(f"{post.method} has no independent equations, so variances have no closed form")
    matrix = jnp.asarray(post.belief.place(post.belief.posterior.mean))
    factor = jnp.asarray(post.belief.coefficient_factor)
    blocks = jnp.einsum("ijn,kjn->ijk", factor, factor)
    return np.asarray(in_pieces(partial(_variances, matrix, blocks), post.upstream(queries), len(queries)))


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """(M,) what linearization leaves out of each effect's variance, exact less Jacobian; 0 where effects are linear.

    A surrogate that counted on less than this would be falsely certain.
    """
    if not isinstance(post.belief, Equations):
        return np.zeros(len(queries))
    linear = (np.asarray(jacobian_features(post, queries, accept_unconverged=True)) ** 2).sum(axis=1)
    exact = exact_variances(post, queries)
    return clip_rounding(exact - linear, exact)


@jax.jit
def _variances(matrix: jax.Array, blocks: jax.Array, queries: Queries) -> jax.Array:
    size = matrix.shape[1]
    mask, value = jnp.asarray(queries.mask), jnp.asarray(queries.value)

    def visit(node: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        means, spread = state
        weights, doubt = matrix[:, node], blocks[:, node, :]
        free = ~mask[:, node]
        cross = jnp.where(free[:, None], spread @ weights, 0.0)
        second = spread + means[:, :, None] * means[:, None, :]
        own = cross @ weights + jnp.einsum("ik,mik->m", doubt, second)
        mean = jnp.where(free, means @ weights, value[:, node])
        spread = spread.at[:, node, :].set(cross).at[:, :, node].set(cross)
        return means.at[:, node].set(mean), spread.at[:, node, node].set(jnp.where(free, own, 0.0))

    means = jnp.zeros((len(mask), size + 1)).at[:, size].set(1.0)
    spread: jax.Array
    _, spread = jax.lax.fori_loop(0, size, visit, (means, jnp.zeros((len(mask), size + 1, size + 1))))
    return spread[:, size - 1, size - 1]
