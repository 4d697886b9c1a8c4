"""What does linearization leave out of the variance of an effect, and how large can that be?

With r what linearization misses and H a bound on the operator norm of the Hessian, the paper's
bound is |Cov(r, r')| <= 3/4 H H' (tr Sigma)^2.
"""

from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.kernels.exact import left_out_variances
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import Sets
from causal_bo_ppl.responses import response

DRAWS = 512  # for what linearization misses
RIGOROUS, ASSUMES, LOCAL, UNKNOWN = "rigorous", "if theta were Gaussian", "local", "not known"


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """Return what linearization leaves out of each effect's variance, an array of shape (M,).

    A surrogate that counted on less than this would be falsely certain. It is exact where equations
    are independent, 0 where effects are linear in theta, and elsewhere the mean square of what
    linearization misses in draws.
    """
    effect, queries = response(post.problem, post), post.problem.require(queries)
    if post.belief.equations is not None:
        return left_out_variances(post.belief.equations.coefficients, effect.require(queries))
    if effect.map.is_linear:
        return np.zeros(len(queries))
    theta = post.draws(DRAWS, jax.random.key(0))
    values, jacobian = effect.linearize(post.mean, queries)
    missed = effect(theta, queries) - values - (theta - post.mean) @ jacobian.T
    return np.asarray((missed**2).mean(axis=0))


class Bounds(NamedTuple):
    """Bounds for every pair of sets, of shape (S, S), and what each of them assumes, in words."""

    bounds: np.ndarray
    kinds: np.ndarray


def remainder_bounds(post: Posterior, queries: Queries, sets: Sets, level: float) -> Bounds:
    """Return the paper's bound on |Cov(r, r')| for all effects of every two sets.

    It is rigorous where effects have degree 2 at most and theta is Gaussian, and where one of the
    two is linear. Elsewhere Hessians are unbounded: then H is taken within the credible ellipsoid
    of `level`, and nothing is claimed outside it. It is NaN where the mechanisms know no bound.
    """
    hessians = response(post.problem, post).hessian_bounds(queries, level=level)
    largest = np.array([hessians.bounds[rows].max() for rows in sets.rows])
    is_global = np.array([hessians.is_global[rows].all() for rows in sets.rows])
    both = np.outer(is_global, is_global)
    is_zero = (largest[:, None] == 0) | (largest[None, :] == 0)  # then nothing is left out
    kinds = np.where(both, RIGOROUS if post.belief.is_gaussian else ASSUMES, LOCAL)
    kinds = np.where(both & is_zero, RIGOROUS, kinds)
    kinds = np.where(np.isnan(np.add.outer(largest, largest)), UNKNOWN, kinds)
    reach = largest * np.trace(post.covariance)
    with np.errstate(over="ignore", invalid="ignore"):  # different units are added: may be infinite
        bounds = 0.75 * np.outer(reach, reach)
    return Bounds(np.where((reach[:, None] == 0) | (reach[None, :] == 0), 0.0, bounds), kinds)
