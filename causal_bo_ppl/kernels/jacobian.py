"""The kernel of the linearized response: k(z, z') = J(z) Sigma J(z')'.

Exact to first order in the posterior's spread. Its features J(z) F, with F F' = Sigma, have at most dim theta_Y
columns, and within one intervention set a rank of at most its size + 1.
"""

import jax
import numpy as np

from causal_bo_ppl.buffers import product
from causal_bo_ppl.kernels.estimates import NO_ERROR, KernelEstimate, require_trusted
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.responses import response

ASSUMED = "response linearized at the posterior mean; covariance of theta by {by}; verdict {verdict}"


def jacobian_features(post: Posterior, queries: Queries, *, accept_unconverged: bool = False) -> jax.Array:
    """(M, r) features whose products are the kernel: J(z) F at the posterior mean."""
    post = require_trusted(post, accept_unconverged)
    return product(np.asarray(response(post.problem, post).jacobian(post.mean, queries)), post.factor)


def jacobian_gram(
    post: Posterior, queries: Queries, others: Queries | None = None, *, accept_unconverged: bool = False
) -> KernelEstimate:
    """Covariances of all effects of a batch, or between those of two batches, to first order.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> print(cb.jacobian_gram(post, q).gram.round(3))  # an experiment on X teaches about Z
    [[0.011 0.002]
     [0.002 0.002]]
    """
    left = jacobian_features(post, queries, accept_unconverged=accept_unconverged)
    right = left if others is None else jacobian_features(post, others, accept_unconverged=accept_unconverged)
    gram = product(np.asarray(left), np.array(right).T)  # a copy: NumPy's product of one array with itself is slower
    return KernelEstimate(gram, NO_ERROR, ASSUMED.format(by=post.moments_by, verdict=post.verdict))
