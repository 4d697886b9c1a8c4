"""What does one experiment teach about all others?

An outcome at z, with noise of variance s2, lowers the variance of the effect of z' by k(z, z')^2 / (k(z, z) + s2).
"""

from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.kernels.estimates import require_trusted
from causal_bo_ppl.kernels.exact import remainders
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.kernels.sets import split_sets
from causal_bo_ppl.numbers import read_number
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.questions import anchors, labels

if TYPE_CHECKING:
    import xarray as xr


def teaching(
    post: Posterior,
    experiments: Queries,
    queries: Queries | None = None,
    *,
    noise: float | None = None,
    replicates: int = 1,
    accept_unconverged: bool = False,
) -> "xr.Dataset":
    """How much one outcome of each experiment would lower the doubt about every effect.

    queries: whose effects; by default as many vertices of every set as it has members, and one more. noise: the
    variance of one outcome; by default as the model implies it. replicates: outcomes of the same experiment, of which
    the mean is taken. What linearization leaves out of the experiment's effect counts as noise, as in the surrogate.

    Returns
    -------
    Dataset over `experiment` and `effect`, effects by sets in the order of the graph.
        `reduction`: the share of the effect's variance that goes; NaN where it is known already. `sd_after`, `sd`
        (before), and `noise`: the variance that was counted.
    """
    import xarray as xr

    post = require_trusted(post, accept_unconverged)
    tried = post.problem.require(experiments)
    asked = anchors(post.problem, post.parameters.explored.sets, queries)
    variances = _noise(post, tried, noise, replicates)
    left, right = (np.asarray(jacobian_features(post, each, accept_unconverged=True)) for each in (tried, asked))
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
    coordinates = {"experiment": labels(post.problem, tried), "effect": [names[row] for row in order]}
    said = {"target": post.problem.target, "method": post.method, "rows": post.rows, "verdict": post.verdict}
    said["replicates"] = int(replicates)
    return xr.Dataset(variables, coordinates | {"set": (("effect",), which)}, said)


def _noise(post: Posterior, experiments: Queries, noise: float | None, replicates: int) -> np.ndarray:
    """(E,) variance of the mean of the outcomes, and what linearization leaves out."""
    if isinstance(replicates, bool) or not isinstance(replicates, int | np.integer) or replicates < 1:
        raise ModelError(f"replicates must be a whole number, at least 1; got {replicates!r}")
    noise = None if noise is None else read_number("noise", noise)
    if noise is not None and not (np.isfinite(noise) and noise >= 0):
        raise DataError(f"the variance of an outcome's noise is {noise}; it must be finite, and not negative")
    given = post.outcome_variances(experiments) if noise is None else np.full(len(experiments), float(noise))
    return np.asarray(given / replicates + remainders(post, experiments))
