"""How do doubts about effects of different sets go together, and what does one experiment teach?

An outcome at z, with noise of variance s2, lowers the variance of the effect of z' by

    k(z, z')^2 / (k(z, z) + s2).
"""

from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_count, read_number
from causal_bo_ppl.kernels.exact import remainders
from causal_bo_ppl.kernels.jacobian import KernelEstimate, jacobian_features, jacobian_gram
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import Sets, affine_anchors, labels, split_sets

if TYPE_CHECKING:
    import xarray as xr

ROUNDING = 1e-9  # share of the largest eigenvalue of a set's covariances


def coupling(
    post: Posterior,
    queries: Queries | None = None,
    *,
    kernel: KernelEstimate | None = None,
) -> "xr.Dataset":
    """Return the correlations between the effects of all sets, in the order of the graph.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        The effects to correlate. By default so many vertices of every set that its effects follow
        from them, which is its size + 1.
    kernel:
        The kernel of these queries; by default the Jacobian kernel.

    Returns
    -------
    xr.Dataset
        For every `effect`: its `set`, its `sd`, and its `correlation` with every `other` effect,
        NaN where an effect is known. For every two sets `left` and `right`: `between`, the root
        mean square correlation of their effects, and `explained`, the share of the variance of the
        effects of `right` that would go if those of `left` were known, tr(K_rl K_ll^+ K_lr) / tr
        K_rr.
    """
    import xarray as xr

    post = require_trusted(post)
    asked = affine_anchors(post.problem, post.sets, queries)
    if not len(asked):
        raise ModelError("there are no effects to couple: give at least one query")
    kernel = jacobian_gram(post, asked) if kernel is None else kernel
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
    coordinates = {
        "effect": names,
        "other": names,
        "left": list(sets.labels),
        "right": list(sets.labels),
    }
    return xr.Dataset(
        variables,
        coordinates | {"set": (("effect",), which)},
        {
            "target": post.problem.target,
            "unit": post.problem.units.get(post.problem.target, ""),
            "method": post.method,
            "rows": post.n_observations,
            "kernel": kernel.assumed,
        },
    )


def _read_gram(queries: Queries, kernel: KernelEstimate) -> np.ndarray:
    if not isinstance(kernel, KernelEstimate) or kernel.gram.shape != (len(queries), len(queries)):
        got = (
            f"{kernel.gram.shape}" if isinstance(kernel, KernelEstimate) else type(kernel).__name__
        )
        raise ModelError(
            f"the kernel must be of these {len(queries)} queries, as cb.exact_gram gives it; "
            f"got {got}"
        )
    return np.asarray(kernel.gram)


def _correlations(gram: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diagonal(gram))
    scale = np.where(np.outer(sd, sd) > 0, np.outer(sd, sd), np.nan)
    return np.asarray(np.clip(gram / scale, -1.0, 1.0))


def _between(correlations: np.ndarray, sets: Sets) -> np.ndarray:
    """Return the root mean square correlations between S sets, of shape (S, S).

    They are NaN where a set's effects are all known.
    """
    squares, counted = np.nan_to_num(correlations) ** 2, np.isfinite(correlations)
    member = np.zeros((len(sets.rows), len(correlations)))
    for position, rows in enumerate(sets.rows):
        member[position, rows] = 1.0
    count = member @ counted @ member.T
    return np.asarray(np.sqrt(member @ squares @ member.T / np.where(count > 0, count, np.nan)))


def _explained(gram: np.ndarray, sets: Sets) -> np.ndarray:
    """Return the explained shares of variance between S sets, of shape (S, S).

    With U the whitened directions of the left set, a share is |U'K_lr|^2 / tr K_rr.
    """
    shares, variances = np.full((len(sets.rows),) * 2, np.nan), np.diagonal(gram)
    for position, rows in enumerate(sets.rows):
        sizes, directions = np.linalg.eigh(gram[np.ix_(rows, rows)])
        kept = sizes > ROUNDING * sizes.max()
        if not kept.any() or sizes.max() <= 0:
            continue
        removed = (((directions[:, kept] / np.sqrt(sizes[kept])).T @ gram[rows]) ** 2).sum(axis=0)
        for other, columns in enumerate(sets.rows):
            if variances[columns].sum() > 0:
                shares[position, other] = min(
                    1.0, removed[columns].sum() / variances[columns].sum()
                )
    return shares


def variance_reduction(
    post: Posterior,
    experiments: Queries,
    queries: Queries | None = None,
    *,
    noise: float | None = None,
    replicates: int = 1,
) -> "xr.Dataset":
    """Return how much one outcome of each experiment would lower the doubt about every effect.

    What linearization leaves out of the experiment's effect counts as noise, as in the surrogate.

    Parameters
    ----------
    post:
        A posterior by any method.
    experiments:
        The interventions that might be tried.
    queries:
        The effects to learn about. By default so many vertices of every set that its effects follow
        from them, which is its size + 1.
    noise:
        The variance of one outcome; by default as the model implies it.
    replicates:
        How many outcomes of the same experiment are averaged.

    Returns
    -------
    xr.Dataset
        Over `experiment` and `effect`, the effects by sets in the order of the graph: `reduction`,
        the share of the effect's variance that goes, NaN where it is known already; `sd_after` and
        `sd`, after and before the experiment; and `noise`, the variance that was counted.
    """
    import xarray as xr

    post = require_trusted(post)
    experiments = tried = post.problem.require(experiments)
    asked = affine_anchors(post.problem, post.sets, queries)
    variances = _noise(post, tried, noise, replicates)
    left, right = (np.asarray(jacobian_features(post, each)) for each in (tried, asked))
    before, own = (right**2).sum(axis=1), (left**2).sum(axis=1) + variances
    removed = (left @ right.T) ** 2 / np.where(own > 0, own, np.inf)[:, None]
    share = np.clip(removed / np.where(before > 0, before, np.nan), 0.0, 1.0)
    sets = split_sets(post.problem, asked)
    order, both = sets.order, ("experiment", "effect")
    variables = {
        "reduction": (both, share[:, order]),
        "sd_after": (both, np.sqrt(before * (1 - np.nan_to_num(share)))[:, order]),
        "sd": (("effect",), np.sqrt(before)[order]),
        "noise": (("experiment",), variances),
    }
    which = [label for label, rows in zip(sets.labels, sets.rows, strict=True) for _ in rows]
    names = labels(post.problem, asked)
    coordinates = {
        "experiment": labels(post.problem, tried),
        "effect": [names[row] for row in order],
    }
    said = {
        "target": post.problem.target,
        "unit": post.problem.units.get(post.problem.target, ""),
        "method": post.method,
        "rows": post.n_observations,
        "verdict": post.status,
    }
    said["replicates"] = int(replicates)
    return xr.Dataset(variables, coordinates | {"set": (("effect",), which)}, said)


def _noise(
    post: Posterior, experiments: Queries, noise: float | None, replicates: int
) -> np.ndarray:
    """Return the noise variance of each experiment, an array of shape (E,).

    It is the variance of the mean of the outcomes plus what linearization leaves out.
    """
    replicates = read_count("replicates", replicates, 1)
    noise = None if noise is None else read_number("noise", noise)
    if noise is not None and not (np.isfinite(noise) and noise >= 0):
        raise DataError(
            f"the variance of an outcome's noise is {noise}; it must be finite, and not negative"
        )
    given = (
        post.outcome_variances(experiments)
        if noise is None
        else np.full(len(experiments), float(noise))
    )
    return np.asarray(given / replicates + remainders(post, experiments))
