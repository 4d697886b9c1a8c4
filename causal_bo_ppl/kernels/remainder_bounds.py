"""What does the paper's bound on the left-out term come to, and may it be believed?

|Cov(r, r')| <= 3/4 H H' (tr Sigma)^2, with r what linearization misses and H a bound on the Hessian's operator norm.
"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.equations import Equations
from causal_bo_ppl.inference.laplace import Laplace
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import Sets
from causal_bo_ppl.responses import response

RIGOROUS, ASSUMES, LOCAL = "rigorous", "if theta were Gaussian", "local"


class Bounds(NamedTuple):
    """Of every pair of sets, (S, S). kinds: "rigorous", "if theta were Gaussian" or "local"."""

    bounds: np.ndarray
    kinds: np.ndarray


def remainder_bounds(post: Posterior, queries: Queries, sets: Sets, level: float) -> Bounds:
    """The paper's bound for all effects of two sets.

    It is rigorous where effects have degree 2 at most and theta is Gaussian, and where one of two is linear. Beyond,
    Hessians are unbounded: then H is taken within the credible ellipsoid of `level`, and nothing is claimed outside it.
    """
    found = response(post.problem, post).hessian_bounds(queries, level=level)
    largest = np.array([found.bounds[rows].max() for rows in sets.rows])
    is_global = np.array([found.is_global[rows].all() for rows in sets.rows])
    both = np.outer(is_global, is_global)
    straight = both & (
        (largest[:, None] == 0) | (largest[None, :] == 0)
    )  # nothing is left out, whatever theta is
    kinds = np.where(both, RIGOROUS if is_gaussian(post) else ASSUMES, LOCAL)
    kinds = np.where(straight, RIGOROUS, kinds)
    reach = largest * np.trace(post.covariance)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # the bound adds up different units: it may be infinite
        bounds = 0.75 * np.outer(reach, reach)
    return Bounds(np.where((reach[:, None] == 0) | (reach[None, :] == 0), 0.0, bounds), kinds)


def is_gaussian(post: Posterior) -> bool:
    """Is theta Gaussian by construction: coefficients whose disturbances' variances are known, or Laplace's draws?"""
    if post.parameters.kind != "structural":
        return False
    if not isinstance(post.belief, Equations):
        return isinstance(post.belief, Laplace)
    return isinstance(post.prior, FixedPrior) and bool(np.isinf(post.prior.noise_rows))
