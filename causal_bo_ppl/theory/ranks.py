"""How many directions of theta do these interventions see?"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from causal_bo_ppl.designs import MOST_ROWS
from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.kernels.estimates import require_trusted
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.questions import choose
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.inputs import read_share
from causal_bo_ppl.theory.spectra import spectrum

ROUNDING = 1e-9  # of the largest singular value: what rounding leaves of a zero is near 1e-15


def causal_rank(
    post: Posterior,
    queries: Queries | None = None,
    *,
    known: str | Iterable[str] = (),
    accept_unconverged: bool = False,
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
    post = require_trusted(post, accept_unconverged)
    fixed = _places(post.names, known)
    queries = choose(post.problem, post.parameters.explored.sets, queries, MOST_ROWS)
    jacobian = np.asarray(response(post.problem, post).jacobian(post.mean, queries))
    features = np.delete(jacobian, fixed, axis=1) @ _conditional_root(post.factor, fixed)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)  # the size of a query's values does not matter
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
    return int(np.searchsorted(held, share * (1 - ROUNDING) * held[-1])) + 1 if held.size and held[-1] > 0 else 0


def _places(names: tuple[str, ...], known: str | Iterable[str]) -> list[int]:
    wanted = (known,) if isinstance(known, str) else tuple(known)
    for name in wanted:
        if name not in names:
            raise ModelError(f"{unknown('coordinate of theta', name, names)}; name only what post.names holds")
    return [place for place, name in enumerate(names) if name in wanted]


def _conditional_root(factor: np.ndarray, fixed: list[int]) -> np.ndarray:
    """(d - k, r') root of the covariance of the other coordinates where those of `fixed` are known."""
    lengths = np.linalg.norm(factor[fixed], axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(factor[fixed] / np.where(lengths > 0, lengths, 1.0))
    return np.asarray(np.delete(factor, fixed, axis=0) @ directions[_count(sizes) :].T)


def _count(sizes: np.ndarray) -> int:
    return int((sizes > ROUNDING * sizes.max(initial=0.0)).sum())
