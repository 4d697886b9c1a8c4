"""How many directions of theta do these interventions see?"""

import numpy as np

from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries

ROUNDING = 1e-9  # of the largest singular value: what rounding leaves of a zero is near 1e-15


def causal_rank(post: Posterior, queries: Queries, *, accept_unconverged: bool = False) -> int:
    """r_causal: rank of the Jacobian kernel over these queries, the number of directions of theta they can see.

    By the singular values of its features, so units of theta do not matter; at most dim theta_Y.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> cb.causal_rank(post, system.problem.vertices())
    2
    """
    features = np.asarray(jacobian_features(post, queries, accept_unconverged=accept_unconverged))
    sizes = np.linalg.svd(features, compute_uv=False)
    return int((sizes > ROUNDING * sizes.max(initial=0.0)).sum())
