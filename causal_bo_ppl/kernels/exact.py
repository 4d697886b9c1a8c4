"""The result type of every kernel, the exact kernel of effects, and bounds on linearization errors.

The kernel is exact where equations are linear and independent: it is the covariance in `responses`,
that of the linearized effects plus that of their linearization errors. Every pair of sets has
sensitivities to compute, and every pair of interventions a product of moves.

Elsewhere the linearization error is estimated by draws, or bounded: with r the remainder of the
linearization and H a bound on the operator norm of the Hessian, the paper's bound is
|Cov(r, r')| <= 3/4 H H' (tr Sigma)^2.
"""

from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from causal_bo_ppl.errors import PosteriorError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import PROGRESS_DELAY
from causal_bo_ppl.mechanisms.base import Coefficients
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import Sets, distinct_rows
from causal_bo_ppl.responses import (
    adjoint_covariances,
    equation_moves,
    independent_coefficients,
    mean_adjoints,
    response,
)

MOST_PAIRS_AT_ONCE = 4_096  # of sets, held in memory
EXACT_ASSUMPTIONS = (
    "independent equations, by {method} regressions; no linearization; verdict {verdict}"
)
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


def _linear(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return features (M, p D) of the linearized effects: moves at the mean sensitivities."""
    loads = mean_adjoints(coefficients, np.asarray(queries.mask))
    return _flat(loads[:, :, None] * equation_moves(coefficients, queries))


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
    moves = equation_moves(coefficients, queries)[order]
    return QueriesBySet(mask[first], order, which[order], moves, ends)


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
