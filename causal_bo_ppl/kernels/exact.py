"""How does what enters one equation reach the target, when the equations after it are uncertain?

The target's sensitivity b_i to node i follows backwards, node by node: b_i becomes b_i + W_ij b_j where j is not set.
For independent equations, with w_j and C_j the mean and covariance of the coefficients of equation j, the sensitivities
b and b' under two sets have covariances

    Cov(b_i, b'_k) + w_ij Cov(b_j, b'_k) + Cov(b_i, b'_j) w_kj + w_ij w_kj Cov(b_j, b'_j) + C_j[i, k] E[b_j b'_j]

after that step. It starts from nothing and adds; no difference is taken.

What is the covariance of effects without linearization, where equations are independent?

Reveal the equations one by one, the target's first. Equation j then moves the effect of z by lambda_j(z) times the
deviation of its coefficients times the mean m(z) of its causes, and lambda_j, the target's sensitivity to it, depends
on the equations revealed before. Such steps are uncorrelated, so

    k(z, z') = sum_j E[lambda_j lambda_j'] m(z)'C_j m(z'),

whatever the shape of the posteriors. Linearization puts the product of means for E[lambda_j lambda_j']; what it leaves
out is the same sum with Cov(lambda_j, lambda_j'), found without a difference. lambda_j depends on the sets alone.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.equations import Equations
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.kernels.estimates import KernelEstimate, no_error
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import distinct_rows
from causal_bo_ppl.responses import response

AT_ONCE = 512  # pairs: their (p, p) covariances stay in the cache


class Coefficients(NamedTuple):
    """Mean (p + 1, p) of the coefficients, intercepts last, and roots (p + 1, p, D) of each equation's covariance."""

    mean: np.ndarray
    roots: np.ndarray


@lru_cache(maxsize=4)  # a belief is immutable, and known by its identity
def read_coefficients(belief: Equations) -> Coefficients:
    """The moments of the equations of an ancestral graph, in causal order, the target last."""
    mean = belief.place(belief.posterior.mean)
    roots = np.zeros((*mean.shape, belief.causes.shape[1]))
    for node, causes in enumerate(belief.causes):
        used = causes >= 0
        if used.any():
            roots[causes[used], node] = (
                np.sqrt(belief.posterior.variance[node]) * belief.posterior.root[node][used]
            )
    return Coefficients(mean, roots)


def mean_causes(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """(M, p + 1) means of all variables after surgery, at the mean coefficients; the constant 1 last."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    found = np.column_stack([np.where(mask, value, 0.0), np.ones(len(mask))])
    for node in range(mask.shape[1]):
        free = ~mask[:, node]
        found[free, node] = found[free] @ coefficients.mean[:, node]
    return found


def mean_adjoints(coefficients: Coefficients, mask: np.ndarray) -> np.ndarray:
    """(S, p) mean sensitivity of the target to each equation under sets (S, p); 0 where the node is set."""
    found = np.zeros(mask.shape)
    found[:, -1] = 1.0
    for node in reversed(range(mask.shape[1])):
        found[mask[:, node], node] = 0.0
        found[:, :node] += found[:, node, None] * coefficients.mean[:node, node]
    return found


def adjoint_covariances(
    coefficients: Coefficients, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """(P, p) covariances of the sensitivities to each equation under P pairs of sets, masks (P, p).

    They are due to the equations after it; 0 where the node is set in either.
    """
    found = np.zeros(left.T.shape)
    for start in range(0, len(left), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        found[:, rows] = _covariances(coefficients, left[rows].T, right[rows].T)
    return np.asarray(found.T)


def _covariances(coefficients: Coefficients, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(p, P), for masks (p, P): pairs come last, where they lie together in memory."""
    means = (mean_adjoints(coefficients, left.T) * mean_adjoints(coefficients, right.T)).T
    size, pairs = left.shape
    spread, found = np.zeros((size, size, pairs)), np.zeros((size, pairs))
    for node in reversed(range(size)):
        weights, root = coefficients.mean[:node, node], coefficients.roots[:node, node]
        found[node] = np.where(left[node] | right[node], 0.0, spread[node, node])
        parents = np.flatnonzero((weights != 0) | root.any(axis=1))
        ahead, behind = spread[node, :node] * ~left[node], spread[:node, node] * ~right[node]
        slopes, own = weights[parents], root[parents] @ root[parents].T
        spread[parents, :node] += slopes[:, None, None] * ahead
        spread[:node, parents] += slopes[:, None] * behind[:, None]
        spread[parents[:, None], parents] += own[..., None] * (found[node] + means[node])
        spread[parents[:, None], parents] += np.outer(slopes, slopes)[..., None] * found[node]
    return found


DRAWS = 512  # for what linearization misses
PAIRS = 4_096  # of sets at once
PATIENCE = 3.0  # seconds without a progress bar
ASSUMED = "independent equations, by {method} regressions; no linearization; verdict {verdict}"


def exact_gram(
    post: Posterior,
    queries: Queries,
    others: Queries | None = None,
) -> KernelEstimate:
    """Covariances of all effects of a batch, or between those of two batches, without linearization.

    For linear equations that are independent given the data, whatever the shape of their posteriors; others are
    refused. With every pair of sets once: O(S^2 p^3 + S M d + M^2 d) for M queries of S sets.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> left_out = cb.exact_gram(post, q).gram - cb.jacobian_gram(post, q).gram
    >>> bool(abs(left_out[0, 0] - post.sd[0] ** 2 * post.sd[1] ** 2) < 1e-12), float(left_out[0, 1])
    (True, 0.0)
    """
    belief = require_equations(require_trusted(post))
    coefficients, require = read_coefficients(belief), response(post.problem, post).require
    left = require(queries)
    right = left if others is None else require(others)
    gram = np.matmul(
        _linear(coefficients, left),
        _linear(coefficients, right).T,
        out=np.empty((len(left), len(right))),
    )
    gram += _left_out(coefficients, left, right)
    if others is None:
        gram[...] = (gram + gram.T) / 2
    return KernelEstimate(gram, no_error(), ASSUMED.format(method=post.method, verdict=post.status))


def left_out_gram(post: Posterior, queries: Queries, others: Queries | None = None) -> np.ndarray:
    """(M, M) or (M, K) what linearization leaves out of `exact_gram`, without a difference."""
    require = response(post.problem, post).require
    left = require(queries)
    right = left if others is None else require(others)
    return _left_out(read_coefficients(require_equations(post)), left, right)


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """(M,) what linearization leaves out of each effect's variance, exact less Jacobian; 0 where effects are linear.

    A surrogate that counted on less than this would be falsely certain. Where equations are not independent it is the
    mean square of what linearization misses in draws.
    """
    if isinstance(post.belief, Equations):
        return left_out_variances(post.belief, response(post.problem, post).require(queries))
    if post.parameters.kind != "structural":
        return np.zeros(len(queries))
    effect, theta = response(post.problem, post), post.draws(DRAWS, jax.random.key(0))
    values, jacobian = map(np.asarray, effect.linearize(post.mean, queries))
    missed = np.asarray(effect(theta, queries)) - values - (theta - post.mean) @ jacobian.T
    return np.asarray((missed**2).mean(axis=0))


def left_out_variances(belief: Equations, queries: Queries) -> np.ndarray:
    """(M,) exact less Jacobian variances; queries over the ancestral graph."""
    coefficients, mask = read_coefficients(belief), np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    squares = (_moves(coefficients, queries) ** 2).sum(axis=2)
    return np.asarray(
        (adjoint_covariances(coefficients, mask[first], mask[first])[which] * squares).sum(axis=1)
    )


def require_equations(post: Posterior) -> Equations:
    """The independent equations of a posterior; refused where it has none."""
    if isinstance(post.belief, Equations):
        return post.belief
    why = {
        "wishart": "it learns moments of the variables, not equations",
        "laplace": "its equations are learned together, so latent causes and outcomes of experiments correlate them",
        "nuts": "its equations are learned together, so latent causes and outcomes of experiments correlate them",
    }
    reason = why.get(post.method, "its equations are not known to be independent")
    raise ModelError(
        f"the exact kernel needs independent equations, and {post.method!r} has none: {reason}; use "
        "cb.monte_carlo_gram(post, queries, key=...), or fit with method='conjugate' where no latent cause lies "
        "upstream of the target"
    )


def _moves(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """(M, p, D) how far a standard deviation in each direction of an equation moves its node: root'm."""
    return np.asarray(
        np.einsum(
            "mi,ijd->mjd", mean_causes(coefficients, queries), coefficients.roots, optimize=True
        )
    )


def _linear(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """(M, p D) features of the linearized effects: what the target moves by, at the mean sensitivities."""
    loads = mean_adjoints(coefficients, np.asarray(queries.mask))
    return _flat(loads[:, :, None] * _moves(coefficients, queries))


def _flat(moves: np.ndarray) -> np.ndarray:
    """(M, p D) of (M, p, D)."""
    return moves.reshape(len(moves), moves.shape[1] * moves.shape[2])


def _left_out(coefficients: Coefficients, left: Queries, right: Queries) -> np.ndarray:
    """(M, K) sum_j Cov(lambda_j, lambda_j') m'C_j m', set by set; of a batch with itself every pair of sets once."""
    one, other = _by_set(coefficients, left), _by_set(coefficients, right)
    sorted_gram = np.zeros((len(left), len(right)))
    symmetric = left is right
    step = max(1, PAIRS // max(1, len(other.masks)))
    starts = range(0, len(one.masks), step)
    for start in tqdm(starts, desc="exact kernel", unit="block", delay=PATIENCE, leave=False):
        sets, beside = one.masks[start : start + step], other.masks[start if symmetric else 0 :]
        pairs = np.repeat(sets, len(beside), axis=0), np.tile(beside, (len(sets), 1))
        shares = adjoint_covariances(coefficients, *pairs).reshape(len(sets), *beside.shape)
        skipped = other.ends[start - 1] if symmetric and start else 0
        which = other.which[skipped:] - (start if symmetric else 0)
        for place, share in enumerate(shares, start):
            rows = slice(one.ends[place - 1] if place else 0, one.ends[place])
            scaled = share[which][:, :, None] * other.moves[skipped:]
            sorted_gram[rows, skipped:] = _flat(one.moves[rows]) @ _flat(scaled).T
    if symmetric:
        sorted_gram = np.triu(sorted_gram) + np.triu(sorted_gram, 1).T
    gram = np.empty_like(sorted_gram)
    gram[np.ix_(one.order, other.order)] = sorted_gram
    return gram


class _Sorted(NamedTuple):
    """Queries sorted by set. masks: (S, p). order: (M,) rows; which, moves: of these. ends: (S,) of the sets' rows."""

    masks: np.ndarray
    order: np.ndarray
    which: np.ndarray
    moves: np.ndarray
    ends: np.ndarray


def _by_set(coefficients: Coefficients, queries: Queries) -> _Sorted:
    mask = np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    return _Sorted(mask[first], order, which[order], _moves(coefficients, queries)[order], ends)
