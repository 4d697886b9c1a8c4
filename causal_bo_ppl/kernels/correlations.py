"""What couples with what: how do doubts about the effects of different sets go together?"""

from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.kernels.estimates import KernelEstimate, require_trusted
from causal_bo_ppl.kernels.jacobian import jacobian_gram
from causal_bo_ppl.kernels.sets import Sets, split_sets
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.questions import anchors, labels

if TYPE_CHECKING:
    import xarray as xr

ROUNDING = 1e-9  # of the largest eigenvalue of a set's covariances


def coupling(
    post: Posterior,
    queries: Queries | None = None,
    *,
    kernel: KernelEstimate | None = None,
    accept_unconverged: bool = False,
) -> "xr.Dataset":
    """Correlations between the effects of all sets, in the order of the graph.

    queries: by default so many vertices of every set that its effects follow from them (its size + 1). kernel: of these
    queries; by default the Jacobian kernel.

    Returns
    -------
    Dataset
        `correlation` of every `effect` with every `other`; NaN where an effect is known. `set`: of each effect. `sd`.
        `between` sets `left` and `right`: the root mean square correlation of their effects. `explained`: the share of
        the variance of `right`'s effects that would go, were those of `left` known: tr(K_rl K_ll^+ K_lr) / tr K_rr.
    """
    import xarray as xr

    post = require_trusted(post, accept_unconverged)
    asked = anchors(post.problem, post.parameters.explored.sets, queries)
    if not len(asked):
        raise ModelError("there are no effects to couple: give at least one query")
    kernel = jacobian_gram(post, asked, accept_unconverged=True) if kernel is None else kernel
    gram = _read_gram(asked, kernel)
    sets = split_sets(post.problem, asked)
    order = sets.order
    ordered = _correlations(gram)[np.ix_(order, order)]
    words = labels(post.problem, asked)
    names = [words[row] for row in order]
    variables = {
        "correlation": (("effect", "other"), ordered),
        "sd": (("effect",), np.sqrt(np.diagonal(gram))[order]),
        "between": (("left", "right"), _between(_correlations(gram), sets)),
        "explained": (("left", "right"), _explained(gram, sets)),
    }
    which = [label for label, rows in zip(sets.labels, sets.rows, strict=True) for _ in rows]
    coordinates = {"effect": names, "other": names, "left": list(sets.labels), "right": list(sets.labels)}
    return xr.Dataset(
        variables,
        coordinates | {"set": (("effect",), which)},
        {"target": post.problem.target, "method": post.method, "rows": post.rows, "kernel": kernel.assumed},
    )


def _read_gram(queries: Queries, kernel: KernelEstimate) -> np.ndarray:
    if not isinstance(kernel, KernelEstimate) or kernel.gram.shape != (len(queries), len(queries)):
        got = f"{kernel.gram.shape}" if isinstance(kernel, KernelEstimate) else type(kernel).__name__
        raise ModelError(f"the kernel must be of these {len(queries)} queries, as cb.exact_gram gives it; got {got}")
    return np.asarray(kernel.gram)


def _correlations(gram: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diagonal(gram))
    scale = np.where(np.outer(sd, sd) > 0, np.outer(sd, sd), np.nan)
    return np.asarray(np.clip(gram / scale, -1.0, 1.0))


def _between(correlations: np.ndarray, sets: Sets) -> np.ndarray:
    """(S, S) root mean squares; NaN where a set's effects are all known."""
    squares, counted = np.nan_to_num(correlations) ** 2, np.isfinite(correlations)
    member = np.zeros((len(sets.rows), len(correlations)))
    for place, rows in enumerate(sets.rows):
        member[place, rows] = 1.0
    count = member @ counted @ member.T
    return np.asarray(np.sqrt(member @ squares @ member.T / np.where(count > 0, count, np.nan)))


def _explained(gram: np.ndarray, sets: Sets) -> np.ndarray:
    """(S, S) shares: with U the whitened directions of the left set, |U'K_lr|^2 / tr K_rr."""
    found, variances = np.full((len(sets.rows),) * 2, np.nan), np.diagonal(gram)
    for place, rows in enumerate(sets.rows):
        sizes, directions = np.linalg.eigh(gram[np.ix_(rows, rows)])
        kept = sizes > ROUNDING * sizes.max()
        if not kept.any() or sizes.max() <= 0:
            continue
        removed = (((directions[:, kept] / np.sqrt(sizes[kept])).T @ gram[rows]) ** 2).sum(axis=0)
        for other, columns in enumerate(sets.rows):
            if variances[columns].sum() > 0:
                found[place, other] = min(1.0, removed[columns].sum() / variances[columns].sum())
    return found
