"""How large are effects' variances without linearization, and what does linearization leave out?

For independent equations, whatever their shape, means m and covariances D of the variables after surgery follow in
causal order: m_j = w_j'm, D_jk = w_j'D_k for k before j, D_jj = w_j'D w_j + m'C_j m + tr(C_j D), with w_j and C_j the
mean and covariance of the coefficients of equation j. What is set has no variance. Linearization leaves out the last
term, so its error R follows likewise, without a difference: R_jk = w_j'R_k, R_jj = w_j'R w_j + tr(C_j D).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.pieces import in_pieces
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.posterior.equations import Equations
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.responses import response

DRAWS = 512  # for what linearization misses


def exact_variances(post: Posterior, queries: Queries) -> np.ndarray:
    """(M,) posterior variances of the effects; refused unless the equations are independent."""
    if not isinstance(post.belief, Equations):
        raise ModelError(f"{post.method} has no independent equations, so variances have no closed form")
    return _sweep(post.belief, post.upstream(queries))[0]


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """(M,) what linearization leaves out of each effect's variance, exact less Jacobian; 0 where effects are linear.

    A surrogate that counted on less than this would be falsely certain. Where equations are not independent it is the
    mean square of what linearization misses in draws.
    """
    if isinstance(post.belief, Equations):
        return _sweep(post.belief, post.upstream(queries))[1]
    if post.parameters.kind != "structural":
        return np.zeros(len(queries))
    effect, theta = response(post.problem, post), post.draws(DRAWS, jax.random.key(0))
    values, jacobian = map(np.asarray, effect.linearize(post.mean, queries))
    missed = np.asarray(effect(theta, queries)) - values - (theta - post.mean) @ jacobian.T
    return np.asarray((missed**2).mean(axis=0))


def _sweep(belief: Equations, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
    matrix, factor = jnp.asarray(belief.place(belief.posterior.mean)), jnp.asarray(belief.coefficient_factor)
    exact, left_out = in_pieces(partial(_variances, matrix, factor), queries, len(queries))
    return np.asarray(exact), np.asarray(left_out)


@jax.jit
def _variances(matrix: jax.Array, factor: jax.Array, queries: Queries) -> tuple[jax.Array, jax.Array]:
    """D and R of the target, (M,) each; factor: (p + 1, p, K) of the coefficients."""
    size = matrix.shape[1]
    mask, value = jnp.asarray(queries.mask), jnp.asarray(queries.value)

    def visit(node: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        means, spread, missed = state
        weights, root, free = matrix[:, node], factor[:, node], ~mask[:, node]
        second = jnp.einsum("in,mik,kn->m", root, spread, root)  # tr(C_j D)
        first = ((means @ root) ** 2).sum(axis=1)  # m'C_j m, by factors: means may be large
        spread = _extend(spread, node, weights, first + second, free)
        missed = _extend(missed, node, weights, second, free)
        return means.at[:, node].set(jnp.where(free, means @ weights, value[:, node])), spread, missed

    nothing = jnp.zeros((len(mask), size + 1, size + 1))
    start = (jnp.zeros((len(mask), size + 1)).at[:, size].set(1.0), nothing, nothing)
    _, spread, missed = jax.lax.fori_loop(0, size, visit, start)
    return spread[:, size - 1, size - 1], missed[:, size - 1, size - 1]


def _extend(spread: jax.Array, node: jax.Array, weights: jax.Array, own: jax.Array, free: jax.Array) -> jax.Array:
    """Covariances with one more node: w'D beside those before it, w'Dw plus its own on the diagonal."""
    cross = jnp.where(free[:, None], spread @ weights, 0.0)
    spread = spread.at[:, node, :].set(cross).at[:, :, node].set(cross)
    return spread.at[:, node, node].set(jnp.where(free, cross @ weights + own, 0.0))
