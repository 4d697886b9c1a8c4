"""Which coordinates of theta, and which directions, does any effect depend on?

Some parameterizations hold more than effects can show: coefficients of high frequencies, or the sd
of the target's disturbance. Their shape says nothing about an answer.
"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import default_design, stack
from causal_bo_ppl.responses import response

QUERIES = 64  # vertices, and as many points inside the boxes, beside the queries that were asked
LITTLE = 0.01  # share of an effect's sd up to which a coordinate hardly moves it
NOTHING = 1e-9  # the same for one that does not move it at all
WEAK = 0.01  # size of a direction, relative to the largest, below which effects do not show it


class Relevance(NamedTuple):
    """What of theta moves some effect, by linearization at the posterior mean.

    is_whole: whether every coordinate that varies moves some effect, however little. moves: (d,)
    whether a coordinate moves an effect by more than 1 % of that effect's sd; all do where theta
    is whole. scaled: (M, d) derivatives of effects in units of their sds.
    """

    is_whole: bool
    moves: np.ndarray
    scaled: np.ndarray

    def directions(self, post: Posterior, theta: np.ndarray) -> np.ndarray:
        """Return draws (n, d) along the k directions that effects show, standardized, (n, k)."""
        effects, sizes, _ = np.linalg.svd(self.scaled @ post.factor, full_matrices=False)
        kept = sizes > WEAK * sizes[0]
        return np.asarray((theta - post.mean) @ self.scaled.T @ (effects[:, kept] / sizes[kept]))


def find_relevance(post: Posterior, asked: Queries) -> Relevance:
    """Return what moves the effects of the queries asked, and of a design over all sets."""
    design = stack([asked, default_design(post.problem, post.sets, None, QUERIES)])
    jacobian = np.asarray(response(post.problem, post).jacobian(post.mean, design))
    sd = np.linalg.norm(jacobian @ post.factor, axis=1)
    varies = np.isfinite(sd) & (sd > 0)
    scaled = jacobian[varies] / sd[varies, None]
    shares = np.abs(scaled * post.sd).max(axis=0, initial=0.0)
    is_whole = not varies.any() or bool(((shares > NOTHING) | ~(post.sd > 0)).all())
    return Relevance(is_whole, (shares > LITTLE) | is_whole, scaled)
