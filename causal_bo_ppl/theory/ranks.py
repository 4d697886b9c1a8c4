"""How many directions of theta do interventions see, and how much information does that allow?

gamma_T <= r/2 log(1 + T kappa^2 / (s2 r)) for a kernel of rank r.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_count, read_share, read_size
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import MOST_ROWS, default_vertices
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.gains import spectrum

ROUNDING = 1e-9  # relative to the largest singular value; rounding leaves about 1e-15 of a zero


def causal_rank(
    post: Posterior,
    queries: Queries | None = None,
    *,
    known: str | Iterable[str] = (),
) -> int:
    """Compute r_causal, the rank of the Jacobian kernel over these queries.

    It is the number of directions of theta that the queries can see, at most dim theta_Y, and is
    found by the singular values of the features J F, F F' = Sigma, so units of theta do not matter.
    queries: by default all vertices. known: names of coordinates that are taken as known exactly,
    at their posterior means. The rank is then that of J_o F_o N, where o are the other coordinates
    and N the directions in which the known ones do not move: F_o N is a root of the others'
    covariance given the known ones, found without an inverse.

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
    queries = default_vertices(post.problem, post.sets, queries, MOST_ROWS)
    jacobian = response(post.problem, post).jacobian(post.mean, queries)
    features = np.delete(jacobian, fixed, axis=1) @ _conditional_root(post.factor, fixed)
    # Rows of unit length, so that the size of a query's values does not matter.
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return _count(np.linalg.svd(features / np.where(lengths > 0, lengths, 1.0), compute_uv=False))


def effective_rank(gram: Any, *, share: float = 0.99) -> int:
    """Compute r_eff, how few eigenvalues of K hold this share of its trace.

    r_eff = min r with sum_{i<=r} l_i >= share sum_i l_i. It is taken of K, not of Sigma: a count of
    Sigma's eigenvalues above a threshold depends on the units of theta, one of K's does not.

    Examples
    --------
    >>> effective_rank([[9.0, 0.0, 0.0], [0.0, 0.95, 0.0], [0.0, 0.0, 0.05]], share=0.99)
    2
    """
    return leading(spectrum(gram), read_share("share", share))


def leading(sizes: np.ndarray, share: float) -> int:
    """Count how many eigenvalues, largest first, hold the share of their sum, up to rounding."""
    held = np.cumsum(sizes)
    return (
        int(np.searchsorted(held, share * (1 - ROUNDING) * held[-1])) + 1
        if held.size and held[-1] > 0
        else 0
    )


def _places(names: tuple[str, ...], known: str | Iterable[str]) -> list[int]:
    """Return the positions of the known coordinates; refuse a name that theta does not have."""
    wanted = (known,) if isinstance(known, str) else tuple(known)
    for name in wanted:
        if name not in names:
            raise ModelError(
                f"{unknown('coordinate of theta', name, names)}; name only what post.names holds"
            )
    return [place for place, name in enumerate(names) if name in wanted]


def _conditional_root(factor: np.ndarray, fixed: list[int]) -> np.ndarray:
    """Return a root of the other coordinates' covariance where those of `fixed` are known.

    It has the shape (d - k, r'), where k coordinates are fixed.
    """
    lengths = np.linalg.norm(factor[fixed], axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(factor[fixed] / np.where(lengths > 0, lengths, 1.0))
    return np.asarray(np.delete(factor, fixed, axis=0) @ directions[_count(sizes) :].T)


def _count(sizes: np.ndarray) -> int:
    """Count the singular values that are not zero up to rounding."""
    return int((sizes > ROUNDING * sizes.max(initial=0.0)).sum())


def information_gain_bound(rank: int, T: int, kappa2: float, noise: float) -> float:
    """Bound gamma_T by r/2 log(1 + T kappa^2 / (s2 r)), which is 0 for rank 0.

    T outcomes have noise of variance s2, and k(z, z) <= kappa^2. The bound grows with the rank, so
    r_causal in place of dim theta_Y is never worse.

    Examples
    --------
    >>> round(information_gain_bound(2, 320, 7.33, 1.0), 2)
    7.07
    """
    rank, rounds = read_count("rank", rank, 0), read_count("T", T, 0)
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    return float(rank / 2 * np.log1p(rounds * largest / (noise * rank))) if rank else 0.0


def effective_gain_bound(gram: Any, noise: Any, *, share: float = 0.99) -> float:
    """Bound 1/2 logdet(I + K/s2) by r/2 log(1 + kept / (s2 r)) + discarded / (2 s2).

    r is the effective rank of K, kept the sum of its r largest eigenvalues, and discarded the rest
    of the trace. The first term is Jensen's inequality, the second log(1 + x) <= x. With variances
    of shape (T,) K is taken in their units, D^-1/2 K D^-1/2.
    """
    sizes = spectrum(gram, noise)
    rank = leading(sizes, read_share("share", share))
    return (
        float(rank / 2 * np.log1p(sizes[:rank].sum() / rank) + sizes[rank:].sum() / 2)
        if rank
        else 0.0
    )
