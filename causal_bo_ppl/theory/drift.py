"""How much does the kernel change while theta is learned, and how large is the sum of variances?

Adaptive kernels k_t = J_t Sigma_t J_t' have no fixed gamma_T. The theory assumes that they drift
slowly and that sum_t (sigma_{t-1}^(t)(z_t))^2 <= C sup_t gamma_T(k_t). This module measures both.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import solve_triangular

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import design
from causal_bo_ppl.theory.information_gains import greedy_gain, require_queries

TILE_SIZE = 2_048  # rows and columns of a gram that are held in memory at once
DRIFT_COLUMNS = ["theta", "sigma", "jacobian", "kernel", "rho_schematic"]


class Linearized(NamedTuple):
    """A kernel k = J Sigma J' over M queries, and what it is made of.

    theta: where the response is linearized, an array of shape (d,). factor: of Sigma, an array of
    shape (d, r). jacobian: an array of shape (M, d).
    """

    theta: np.ndarray
    factor: np.ndarray
    jacobian: np.ndarray

    @property
    def features(self) -> np.ndarray:
        """Features whose products are the kernel, an array of shape (M, r)."""
        return np.asarray(self.jacobian @ self.factor)


def linearized(post: Posterior, queries: Queries) -> Linearized:
    """Return the kernel of a posterior over these queries, linearized at its mean."""
    jacobian = np.asarray(response(post).jacobian(post.mean, queries))
    return Linearized(post.mean, post.factor, jacobian)


def kernel_drift(posts: Sequence[Posterior], queries: Queries) -> pd.DataFrame:
    """Tabulate the changes from each posterior to the next.

    Parameters
    ----------
    posts:
        Two posteriors or more, of one problem.
    queries:
        The interventions over which suprema are taken.

    Returns
    -------
    pd.DataFrame
        A row for each step. theta: |theta_t - theta_{t-1}|. sigma: |Sigma_t - Sigma_{t-1}|.
        jacobian: sup_z |J_t(z) - J_{t-1}(z)|. kernel: sup_{z, z'} |k_t - k_{t-1}|. rho_schematic:
        the theory's schematic drift term, jacobian |Sigma_t| + sigma. It omits constants and mixes
        units, so it shows what shrinks and is no bound.

    Raises
    ------
    ArgumentError
        If there are fewer than two posteriors, or they are of different problems.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> posts = [cb.fit(system.problem, system.observe(n, 0)) for n in (50, 100, 200)]
    >>> len(cb.theory.kernel_drift(posts, system.problem.vertices()))
    2
    """
    posts = _read_posts(posts, 2)
    queries = require_queries(posts[0].problem, queries)
    kernels = (linearized(post, queries) for post in posts)
    lines = [drift_step(before, after) for before, after in pairwise(kernels)]
    return pd.DataFrame(
        lines, columns=DRIFT_COLUMNS, index=pd.RangeIndex(1, len(posts), name="step")
    )


def worst_gain(posts: Sequence[Posterior], queries: Queries, noise: Any, rounds: int) -> float:
    """Compute sup_t gamma_T(k_t) by greedy choices among the queries.

    The true supremum is at most 1/(1 - 1/e) times it. noise: a variance, or one for every query.
    """
    distinct = {id(post): post for post in _read_posts(posts, 1)}
    return max(
        float(greedy_gain(jacobian_features(post, queries), noise, rounds).gains[-1])
        for post in distinct.values()
    )


def variance_sum_ratio(
    posts: Sequence[Posterior], queries: Queries, noise: float, *, candidates: Queries | None = None
) -> float:
    """Compute sum_t (sigma_{t-1}^(t)(z_t))^2 / sup_t gamma_T(k_t).

    This is the C that the adaptive theory assumes to be bounded; it is 0 if all effects are known.
    sigma_{t-1}^(t) is the standard deviation under kernel k_t after outcomes at the queries before.
    Compare it with `variance_sum_ceiling`, which holds for a kernel that does not change.

    Parameters
    ----------
    posts:
        The posteriors of one problem; posts[t] is in use at round t.
    queries:
        The interventions, of which query t is tried at round t.
    noise:
        The variance of one outcome.
    candidates:
        The queries among which gamma_T is sought; by default all vertices, or points that fill the
        domains where effects are not affine in the values.

    Returns
    -------
    float
        The ratio.

    Raises
    ------
    ArgumentError
        If there is no posterior, they are of different problems, there are not as many queries, or
        the noise is not positive.
    PosteriorError
        If the verdict of a posterior is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> queries = system.problem.queries([{"X": 2.0}, {"Z": 2.0}])
    >>> ratio = cb.theory.variance_sum_ratio([post, post], queries, noise=1.0)
    >>> ratio <= cb.theory.variance_sum_ceiling(cb.theory.kappa2(post).value, noise=1.0)
    True
    """
    posts, variance = _read_posts(posts, 1), read_size("noise", noise)
    if len(posts) != len(queries):
        raise ArgumentError(
            f"there are {len(posts)} posteriors and {len(queries)} queries; "
            "give one of each per round"
        )
    total = sum(_last_variance(post, queries[: t + 1], variance) for t, post in enumerate(posts))
    candidates = design(posts[0]).queries if candidates is None else candidates
    gain = worst_gain(posts, candidates, variance, len(posts))
    return total / gain if gain > 0 else 0.0


def variance_sum_ceiling(kappa2: float, noise: float) -> float:
    """Compute C = 2 kappa^2 / log(1 + kappa^2/s2).

    For one fixed kernel sum_t sigma_{t-1}^2(z_t) <= C gamma_T: sigma^2 <= kappa^2 and
    s / log(1 + s) grows with s, so sigma^2 <= C/2 log(1 + sigma^2/s2) at every round, and half of
    the logarithms sum to the information of the path, at most gamma_T. A greedy gain may be as
    small as 1 - 1/e of gamma_T.

    Parameters
    ----------
    kappa2:
        The largest k(z, z).
    noise:
        The variance s2 of the outcomes' noise.

    Returns
    -------
    float
        The constant C, which is 2 s2 where kappa^2 is 0.

    Raises
    ------
    ArgumentError
        If kappa^2 is negative, or the noise is not positive.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> round(cb.theory.variance_sum_ceiling(3.0, noise=1.0), 3)
    4.328
    """
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    ratio = largest / noise
    return float(2 * noise * (ratio / np.log1p(ratio) if ratio > 0 else 1.0))


def largest_gap(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the largest |A B' - C D'| for two pairs of (M, r) matrices, computed tile by tile."""
    tiles = [slice(start, start + TILE_SIZE) for start in range(0, len(one[0]), TILE_SIZE)]
    return max(
        float(np.abs(one[0][row] @ one[1][column].T - other[0][row] @ other[1][column].T).max())
        for row in tiles
        for column in tiles
    )


def drift_step(before: Linearized, after: Linearized) -> tuple[float, ...]:
    """Return how far two kernels lie apart, a row of `kernel_drift`."""
    covariances = [each.factor @ each.factor.T for each in (before, after)]
    theta = float(np.linalg.norm(after.theta - before.theta))
    sigma = float(np.linalg.norm(covariances[1] - covariances[0], 2))
    jacobian = float(np.linalg.norm(after.jacobian - before.jacobian, axis=1).max())
    roots = before.features, after.features
    kernel = largest_gap((roots[1], roots[1]), (roots[0], roots[0]))
    schematic = jacobian * float(np.linalg.norm(covariances[1], 2)) + sigma
    return theta, sigma, jacobian, kernel, schematic


def _last_variance(post: Posterior, queries: Queries, noise: float) -> float:
    """Return the variance of the last effect after outcomes at all queries before it.

    It is w' (I + F'F/s2)^-1 w, with w the features of the last query and F those of the others.
    """
    features = jacobian_features(post, queries)
    known = np.vstack([np.eye(features.shape[1]), features[:-1] / np.sqrt(noise)])
    seen = solve_triangular(np.linalg.qr(known, mode="r"), features[-1], trans="T")
    return float(seen @ seen)


def _read_posts(posts: Sequence[Posterior], least: int) -> list[Posterior]:
    """Return the posteriors as a list: at least `least`, all trusted and of one problem."""
    if isinstance(posts, Posterior):
        raise ArgumentError("give a sequence of posteriors, one for each round; got one Posterior")
    trusted = [require_trusted(post) for post in posts]
    if len(trusted) < least:
        raise ArgumentError(f"at least {least} posteriors are needed, got {len(trusted)}")
    for post in trusted:
        if (post.problem, post.names) != (trusted[0].problem, trusted[0].names):
            raise ArgumentError(
                "the posteriors are of different problems or parameters; give those of one problem"
            )
    return trusted
