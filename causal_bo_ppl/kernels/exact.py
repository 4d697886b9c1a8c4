"""The result type of every kernel, the exact kernel of effects, and the error of linearization.

The kernel is exact where equations are linear and independent. Reveal the equations one by one, the
target's first. Equation j then moves the effect of z by lambda_j(z) times the deviation of its
coefficients times the mean m(z) of its causes, and lambda_j, the target's sensitivity to it,
depends on the equations revealed before. Such steps are uncorrelated, so

    k(z, z') = sum_j E[lambda_j lambda_j'] m(z)'C_j m(z'),

whatever the shape of the posteriors. Linearization puts the product of means for E[lambda_j
lambda_j']; its error is the same sum with Cov(lambda_j, lambda_j'), found without a difference. The
sensitivities depend on the sets alone. They follow backwards, node by node: b_i becomes b_i + W_ij
b_j where j is not set. With w_j and C_j the mean and covariance of the coefficients of equation j,
the sensitivities b and b' under two sets have covariances

    Cov(b_i, b'_k) + w_ij Cov(b_j, b'_k) + Cov(b_i, b'_j) w_kj + w_ij w_kj Cov(b_j, b'_j)
        + C_j[i, k] E[b_j b'_j]

after that step. It starts from nothing and adds; no difference is taken.

Elsewhere the linearization error is estimated by draws, or bounded: with r the remainder of the
linearization and H a bound on the operator norm of the Hessian, the paper's bound is
|Cov(r, r')| <= 3/4 H H' (tr Sigma)^2.
"""

from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from causal_bo_ppl.errors import PosteriorError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import PROGRESS_DELAY, offered
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.base import Coefficients
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import Sets, distinct_rows
from causal_bo_ppl.responses import response

PAIRS_IN_CACHE = 512  # of sets: their (p, p) covariances stay in the processor's cache
MOST_PAIRS_AT_ONCE = 4_096  # of sets, held in memory
EXACT_ASSUMPTIONS = (
    "independent equations, by {method} regressions; no linearization; verdict {verdict}"
)
REMAINDER_DRAWS = 512  # of theta, for the linearization error
RIGOROUS, IF_GAUSSIAN, LOCAL = "rigorous", "if theta were Gaussian", "local"
NO_BOUND = "not known"


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


def exact_gram(
    post: Posterior, queries: Queries, others: Queries | None = None, *, progress: bool = True
) -> KernelEstimate:
    """Return the covariances of all effects of a batch, or between two batches, exactly.

    It holds for linear equations that are independent given the data, whatever the shape of their
    posteriors; others are refused. Every pair of sets is computed once, so that M queries of S sets
    cost O(S^2 p^3 + S M d + M^2 d).

    Parameters
    ----------
    post:
        A posterior by "conjugate".
    queries, others:
        M and K interventions; without `others` the gram is of the first batch with itself.
    progress:
        Whether a progress bar is shown when this takes more than a few seconds.

    Returns
    -------
    KernelEstimate
        The gram is (M, M) or (M, K); its standard error is 0.

    Raises
    ------
    PosteriorError
        If the posterior has no independent linear equations.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> error = cb.exact_gram(post, q).gram - cb.jacobian_gram(post, q).gram
    >>> bool(abs(error[0, 0] - post.sd[0] ** 2 * post.sd[1] ** 2) < 1e-12), float(error[0, 1])
    (True, 0.0)
    """
    coefficients = require_coefficients(require_trusted(post))
    require, cut = post.problem.require, response(post).learned_upstream
    left = cut(require(queries))
    right = left if others is None else cut(require(others))
    gram = _linear(coefficients, left) @ _linear(coefficients, right).T
    gram += _remainder_gram(coefficients, left, right, progress)
    if others is None:
        gram = (gram + gram.T) / 2
    assumed = EXACT_ASSUMPTIONS.format(method=post.method, verdict=post.status)
    return KernelEstimate(gram, np.zeros(()), assumed)


def remainder_gram(post: Posterior, queries: Queries, others: Queries | None = None) -> np.ndarray:
    """Return `exact_gram` less `jacobian_gram` of legal interventions, (M, M) or (M, K).

    No difference is taken, so that no digits are lost.
    """
    cut = response(post).learned_upstream
    left = cut(queries)
    right = left if others is None else cut(others)
    return _remainder_gram(require_coefficients(post), left, right)


def remainder_variances(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return exact less Jacobian variances (M,); queries are over the ancestral graph."""
    mask = np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    squares = (_moves(coefficients, queries) ** 2).sum(axis=2)
    shares = adjoint_covariances(coefficients, mask[first], mask[first])
    return np.asarray((shares[which] * squares).sum(axis=1))


def independent_coefficients(post: Posterior) -> Coefficients | None:
    """Return the moments of a posterior's independent equations; None where it has none."""
    offer = offered(post.distribution, "coefficients")
    return None if offer is None else offer()


def require_coefficients(post: Posterior) -> Coefficients:
    """Return the independent equations of a posterior; refuse one that has none."""
    found = independent_coefficients(post)
    if found is not None:
        return found
    if not response(post).map.is_affine:
        raise PosteriorError(
            "the exact kernel needs independent equations that are linear in the causes, and "
            f"{post.mechanisms} mechanisms are nonlinear: second moments of their effects have no "
            "closed form; use cb.monte_carlo_gram(post, queries, key=...)"
        )
    reason = "its equations are learned together, so that they may be correlated"
    if post.method == "wishart":
        reason = "it learns moments of the variables, not equations"
    raise PosteriorError(
        f"the exact kernel needs independent equations, and {post.method!r} has none: {reason}; "
        "use cb.monte_carlo_gram(post, queries, key=...), or fit with method='conjugate' where no "
        "latent cause lies upstream of the target"
    )


def mean_adjoints(coefficients: Coefficients, mask: np.ndarray) -> np.ndarray:
    """Return the mean sensitivity of the target to each equation under sets (S, p), (S, p).

    The equations are independent, so that the mean of a product along a path is that of the means.
    """
    loads = adjoint_sweep(coefficients.mean[:-1], mask.T, mask.shape[1] - 1)
    return np.asarray(loads.T)


def adjoint_covariances(
    coefficients: Coefficients, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Return covariances (P, p) of the sensitivities under P pairs of sets, masks (P, p).

    That of a node is due to the equations after it; it is 0 where the node is set in either set.
    """
    covariances = np.zeros(left.T.shape)
    for start in range(0, len(left), PAIRS_IN_CACHE):
        part = slice(start, start + PAIRS_IN_CACHE)
        covariances[:, part] = _covariances(coefficients, left[part].T, right[part].T)
    return np.asarray(covariances.T)


def _covariances(coefficients: Coefficients, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return covariances (p, P) for masks (p, P): pairs come last and lie together in memory."""
    means = (mean_adjoints(coefficients, left.T) * mean_adjoints(coefficients, right.T)).T
    size, pairs = left.shape
    spread, own = np.zeros((size, size, pairs)), np.zeros((size, pairs))
    for node in reversed(range(size)):
        weights, root = coefficients.mean[:node, node], coefficients.roots[:node, node]
        own[node] = np.where(left[node] | right[node], 0.0, spread[node, node])
        parents = np.flatnonzero((weights != 0) | root.any(axis=1))
        ahead, behind = spread[node, :node] * ~left[node], spread[:node, node] * ~right[node]
        slopes, noise = weights[parents], root[parents] @ root[parents].T
        spread[parents, :node] += slopes[:, None, None] * ahead
        spread[:node, parents] += slopes[:, None] * behind[:, None]
        spread[parents[:, None], parents] += noise[..., None] * (own[node] + means[node])
        spread[parents[:, None], parents] += np.outer(slopes, slopes)[..., None] * own[node]
    return own


def _moves(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return the change of a node per sd in each direction of its equation, root'm, (M, p, D)."""
    mask, value = np.asarray(queries.mask).T, np.asarray(queries.value).T
    causes = forward_sweep(coefficients.mean, mask, value)
    return np.asarray(np.einsum("im,ijd->mjd", causes, coefficients.roots, optimize=True))


def _linear(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return features (M, p D) of the linearized effects: moves at the mean sensitivities."""
    loads = mean_adjoints(coefficients, np.asarray(queries.mask))
    return _flat(loads[:, :, None] * _moves(coefficients, queries))


def _flat(moves: np.ndarray) -> np.ndarray:
    """Return moves (M, p, D) as (M, p D)."""
    return moves.reshape(len(moves), moves.shape[1] * moves.shape[2])


def _remainder_gram(
    coefficients: Coefficients, left: Queries, right: Queries, progress: bool = False
) -> np.ndarray:
    """Return sum_j Cov(lambda_j, lambda_j') m'C_j m', (M, K), set by set.

    Of a batch with itself every pair of sets is computed once.
    """
    one, other = _by_set(coefficients, left), _by_set(coefficients, right)
    sorted_gram = np.zeros((len(left), len(right)))
    symmetric = left is right
    step = max(1, MOST_PAIRS_AT_ONCE // max(1, len(other.masks)))
    starts = range(0, len(one.masks), step)
    bar = {"desc": "exact kernel", "unit": "block", "delay": PROGRESS_DELAY, "leave": False}
    for start in tqdm(starts, disable=not progress, **bar):
        sets, beside = one.masks[start : start + step], other.masks[start if symmetric else 0 :]
        pairs = np.repeat(sets, len(beside), axis=0), np.tile(beside, (len(sets), 1))
        shares = adjoint_covariances(coefficients, *pairs).reshape(len(sets), *beside.shape)
        skipped = other.ends[start - 1] if symmetric and start else 0
        which = other.which[skipped:] - (start if symmetric else 0)
        for position, share in enumerate(shares, start):
            rows = slice(one.ends[position - 1] if position else 0, one.ends[position])
            scaled = share[which][:, :, None] * other.moves[skipped:]
            sorted_gram[rows, skipped:] = _flat(one.moves[rows]) @ _flat(scaled).T
    if symmetric:
        sorted_gram = np.triu(sorted_gram) + np.triu(sorted_gram, 1).T
    gram = np.empty_like(sorted_gram)
    gram[np.ix_(one.order, other.order)] = sorted_gram
    return gram


class QueriesBySet(NamedTuple):
    """Queries sorted by set.

    masks: the variables that each set sets, (S, p). order: indices of the queries in the order of
    the sets, (M,). which, moves: the set of each query in that order, (M,), and the changes by its
    equations, (M, p, D). ends: where the queries of each set end, (S,).
    """

    masks: np.ndarray
    order: np.ndarray
    which: np.ndarray
    moves: np.ndarray
    ends: np.ndarray


def _by_set(coefficients: Coefficients, queries: Queries) -> QueriesBySet:
    mask = np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    moves = _moves(coefficients, queries)[order]
    return QueriesBySet(mask[first], order, which[order], moves, ends)


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """Return the variance of the linearization error of the effect of each legal query, (M,).

    It is exact where equations are independent, 0 where effects are linear in theta, and elsewhere
    the mean square of the remainders of draws.
    """
    effect, coefficients = response(post), independent_coefficients(post)
    if coefficients is not None:
        return remainder_variances(coefficients, effect.learned_upstream(queries))
    if effect.map.is_linear:
        return np.zeros(len(queries))
    theta = post.draws(REMAINDER_DRAWS, jax.random.key(0))
    values, jacobian = effect.linearize(post.mean, queries)
    missed = effect.effects(theta, queries) - values - (theta - post.mean) @ jacobian.T
    return np.asarray((missed**2).mean(axis=0))


def remainder_bounds(
    post: Posterior, queries: Queries, sets: Sets, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the paper's bound on |Cov(r, r')| for all effects of every two sets, and its kind.

    It is rigorous where effects have degree 2 at most and theta is Gaussian, and where one of the
    two is linear. Elsewhere Hessians are unbounded: then H is taken within the credible ellipsoid
    of `level`, and nothing is claimed outside it. It is NaN where the mechanisms have no bound.
    """
    hessians = response(post).hessian_bounds(queries, level=level)
    largest = np.array([hessians.bounds[rows].max() for rows in sets.indices])
    is_global = np.array([hessians.is_global[rows].all() for rows in sets.indices])
    both = np.outer(is_global, is_global)
    is_zero = (largest[:, None] == 0) | (largest[None, :] == 0)  # then there is no error
    kinds = np.where(both, RIGOROUS if post.distribution.is_gaussian else IF_GAUSSIAN, LOCAL)
    kinds = np.where(both & is_zero, RIGOROUS, kinds)
    kinds = np.where(np.isnan(np.add.outer(largest, largest)), NO_BOUND, kinds)
    reach = largest * np.trace(post.covariance)
    with np.errstate(over="ignore", invalid="ignore"):  # different units are added: may be infinite
        bounds = 0.75 * np.outer(reach, reach)
    return np.where((reach[:, None] == 0) | (reach[None, :] == 0), 0.0, bounds), kinds
