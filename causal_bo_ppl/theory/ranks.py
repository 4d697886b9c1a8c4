"""How many directions of theta do these interventions see?

How much information can T outcomes carry at most, by the kernel's rank alone?
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_count, read_share, read_size
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.default_queries import choose
from causal_bo_ppl.problem.designs import MOST_ROWS
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.gains import spectrum

ROUNDING = 1e-9  # of the largest singular value: what rounding leaves of a zero is near 1e-15


def causal_rank(
    post: Posterior,
    queries: Queries | None = None,
    *,
    known: str | Iterable[str] = (),
) -> int:
    """r_causal: rank of the Jacobian kernel over these queries, the number of directions of theta they can see.

    By the singular values of its features J F, F F' = Sigma, so units of theta do not matter; at most dim theta_Y.
    queries: by default all vertices. known: names of coordinates taken as known exactly, at their posterior means. The
    rank is then that of J_o F_o N, o the other coordinates, N the directions in which the known ones do not move:
    F_o N is a root of the others' covariance given the known ones, found without an inverse.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> cb.causal_rank(post, system.problem.vertices())
    2
    >>> cb.causal_rank(post, system.problem.vertices(), known="b[Z->Y]")
    1
    """
    post = require_trusted(post)
    fixed = _places(post.names, known)
    queries = choose(post.problem, post.parameters.explored.sets, queries, MOST_ROWS)
    jacobian = response(post.problem, post).jacobian(post.mean, queries)
    features = np.delete(jacobian, fixed, axis=1) @ _conditional_root(post.factor, fixed)
    lengths = np.linalg.norm(
        features, axis=1, keepdims=True
    )  # the size of a query's values does not matter
    return _count(np.linalg.svd(features / np.where(lengths > 0, lengths, 1.0), compute_uv=False))


def effective_rank(gram: Any, *, share: float = 0.99) -> int:
    """r_eff: how few eigenvalues of K hold this share of its trace, min r with sum_{i<=r} l_i >= share sum_i l_i.

    Of K, not of Sigma: a count of Sigma's eigenvalues above a threshold depends on the units of theta, K does not.

    Examples
    --------
    >>> effective_rank([[9.0, 0.0, 0.0], [0.0, 0.95, 0.0], [0.0, 0.0, 0.05]], share=0.99)
    2
    """
    return leading(spectrum(gram), read_share("share", share))


def leading(sizes: np.ndarray, share: float) -> int:
    """Count how many of these eigenvalues, largest first, hold the share of their sum, up to rounding."""
    held = np.cumsum(sizes)
    return (
        int(np.searchsorted(held, share * (1 - ROUNDING) * held[-1])) + 1
        if held.size and held[-1] > 0
        else 0
    )


def _places(names: tuple[str, ...], known: str | Iterable[str]) -> list[int]:
    wanted = (known,) if isinstance(known, str) else tuple(known)
    for name in wanted:
        if name not in names:
            raise ModelError(
                f"{unknown('coordinate of theta', name, names)}; name only what post.names holds"
            )
    return [place for place, name in enumerate(names) if name in wanted]


def _conditional_root(factor: np.ndarray, fixed: list[int]) -> np.ndarray:
    """(d - k, r') root of the covariance of the other coordinates where those of `fixed` are known."""
    lengths = np.linalg.norm(factor[fixed], axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(factor[fixed] / np.where(lengths > 0, lengths, 1.0))
    return np.asarray(np.delete(factor, fixed, axis=0) @ directions[_count(sizes) :].T)


def _count(sizes: np.ndarray) -> int:
    return int((sizes > ROUNDING * sizes.max(initial=0.0)).sum())


def information_gain_bound(rank: int, T: int, kappa2: float, noise: float) -> float:
    """gamma_T <= r/2 log(1 + T kappa^2 / (s2 r)): T outcomes, k(z, z) <= kappa^2, noise of variance s2; 0 for rank 0.

    It grows with the rank, so r_causal in place of dim theta_Y is never worse.

    Examples
    --------
    >>> round(information_gain_bound(2, 320, 7.33, 1.0), 2)
    7.07
    """
    rank, rounds = read_count("rank", rank, 0), read_count("T", T, 0)
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    return float(rank / 2 * np.log1p(rounds * largest / (noise * rank))) if rank else 0.0


def effective_gain_bound(gram: Any, noise: Any, *, share: float = 0.99) -> float:
    """1/2 logdet(I + K/s2) <= r/2 log(1 + kept / (s2 r)) + discarded / (2 s2), r the effective rank of K.

    kept: what the r largest eigenvalues sum to; discarded: the rest of the trace. The first term is Jensen's
    inequality, the second log(1 + x) <= x. With (T,) variances K is taken in their units, D^-1/2 K D^-1/2.
    """
    sizes = spectrum(gram, noise)
    rank = leading(sizes, read_share("share", share))
    return (
        float(rank / 2 * np.log1p(sizes[:rank].sum() / rank) + sizes[rank:].sum() / 2)
        if rank
        else 0.0
    )
