"""The result type of every kernel, and the kernel of the linearized response.

k(z, z') = J(z) Sigma J(z')' is exact to first order in the posterior's spread. Its features J(z) F,
with F F' = Sigma, have at most dim theta_Y columns, and within one intervention set a rank of at
most its size + 1. Where Sigma is estimated from n draws, an entry's error is about
sqrt((k(z, z')^2 + k(z, z) k(z', z')) / n), as it is for Gaussian draws.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import response


class KernelEstimate(NamedTuple):
    """Covariances of effects, and how far they may be from the truth.

    Attributes
    ----------
    gram:
        The covariances, of shape (M, M), or (M, K) between two batches.
    standard_error:
        Monte-Carlo errors of the entries; a zero that broadcasts where there are none.
    assumed:
        The conditions under which the gram is the covariance, as a text.
    """

    gram: np.ndarray
    standard_error: np.ndarray
    assumed: str

    def __repr__(self) -> str:
        rows, columns = self.gram.shape
        error = float(np.max(self.standard_error, initial=0.0))
        noise = f"standard errors up to {error:.3g}" if error > 0 else "no Monte-Carlo error"
        return f"KernelEstimate({rows} x {columns} covariances of effects, {noise}; {self.assumed})"


def posterior_attributes(post: Posterior) -> dict[str, Any]:
    """Return the attributes by which a dataset names the posterior it was computed from."""
    return {
        "target": post.problem.target,
        "unit": post.problem.units.get(post.problem.target, ""),
        "method": post.method,
        "verdict": post.status,
    }


JACOBIAN_ASSUMPTIONS = (
    "response linearized at the posterior mean; covariance of theta by {by}{size}; "
    "verdict {verdict}"
)


def jacobian_features(post: Posterior, queries: Queries) -> np.ndarray:
    """Return features of the effects whose products are the kernel, J(z) F at the posterior mean.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        M interventions.

    Returns
    -------
    np.ndarray
        Features of shape (M, r), with r the number of columns of `post.factor`.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> features = cb.kernels.jacobian_features(post, [{"X": 1.0}, {"Z": 1.0}])
    >>> features.shape
    (2, 2)
    >>> print((features @ features.T).round(3))  # the gram of cb.jacobian_gram
    [[0.011 0.002]
     [0.002 0.002]]
    """
    post = require_trusted(post)
    with jax.ensure_compile_time_eval():  # nothing here is traced
        jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    return np.asarray(jacobian @ post.factor)


def jacobian_gram(
    post: Posterior, queries: Queries, others: Queries | None = None
) -> KernelEstimate:
    """Return the covariances of all effects of a batch, or between two batches, to first order.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries, others:
        M and K interventions; without `others` the gram is of the first batch with itself.

    Returns
    -------
    KernelEstimate
        The gram is (M, M) or (M, K); its standard error is 0 unless the covariance of theta was
        estimated from draws.

    Raises
    ------
    ArgumentError
        If `post` is no posterior.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> print(cb.jacobian_gram(post, q).gram.round(3))  # an experiment on X informs Z
    [[0.011 0.002]
     [0.002 0.002]]
    """
    left = jacobian_features(post, queries)
    right = left if others is None else jacobian_features(post, others)
    gram = left @ np.array(right).T  # a copy: NumPy's product of one array with itself is slower
    size = post.distribution.effective_draws
    known = f", equivalent to {size:,.0f} independent ones" if np.isfinite(size) else ""
    assumed = JACOBIAN_ASSUMPTIONS.format(by=post.moments_by, size=known, verdict=post.status)
    return KernelEstimate(gram, _errors(left, right, gram, size), assumed)


def _errors(left: np.ndarray, right: np.ndarray, gram: np.ndarray, size: float) -> np.ndarray:
    """Return the errors (M, K) of a gram whose covariance of theta is from draws.

    size: how many independent draws these are equivalent to; infinite where there are none.
    """
    if not np.isfinite(size):
        return np.zeros(())
    errors = np.multiply(
        (left**2).sum(axis=1)[:, None], (right**2).sum(axis=1), out=np.empty(gram.shape)
    )
    errors += gram**2
    errors /= size
    return np.asarray(np.sqrt(errors, out=errors))
