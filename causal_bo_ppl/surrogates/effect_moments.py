"""What do the rows alone say about effects, before any outcome? Means and sds, over theta.

The mean and sd of E[Y | do(z)] under the posterior of theta: the causal prior of independent
surrogates. It is in closed form where it can be; elsewhere it is an average over a fixed set of
draws, the same for every query, so that it is as smooth in the values as effects are.
"""

import hashlib
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.kernels.exact import independent_coefficients, left_out_variances
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import default_vertices, rows_of_sets
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates.interface import Prediction
from causal_bo_ppl.surrogates.weighted_response import weigh_response

DRAWS = 256  # of theta: the mean is off by at most a sixteenth of its sd or so, everywhere alike
BATCHES = 16  # whose moments are kept with a posterior: candidates are asked about every round


class TargetMoments(NamedTuple):
    """Mean and sd of the target."""

    mean: float
    sd: float


def effect_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects under the posterior of theta.

    Where equations are linear and independent given the rows, the mean of an effect is the effect
    at the mean of theta, since each path multiplies different equations, and its variance is that
    of the exact kernel. Where effects are linear in theta both follow from theta's. Elsewhere they
    are those of 256 draws.

    Raises
    ------
    NumericalError
        If an effect is not finite; the intervention is named.
    """
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    key = hashlib.blake2b(mask.tobytes() + value.tobytes()).digest()
    kept: dict[bytes, Prediction] = post.__dict__.setdefault("_effect_moments", {})
    if key not in kept:
        found = _compute(post, queries)
        _require_finite(post, queries, found)
        while len(kept) >= BATCHES:
            kept.pop(next(iter(kept)), None)
        kept[key] = found
    return kept[key]


def smooth_moments(post: Posterior, queries: Queries) -> Prediction:
    """Return means (M,) and sds (M,) of effects as a search over values needs them.

    Where averages over draws are dear they are those of fewer draws, at points that fill the box of
    each set, interpolated between them; elsewhere they are those of `effect_moments`.
    """
    weighted = weigh_response(post)
    if len(queries) and all(key in weighted.blocks for key, _ in rows_of_sets(queries)):
        found = Prediction(*weighted.moments(queries))
        _require_finite(post, queries, found)
        return found
    return effect_moments(post, queries)


def _compute(post: Posterior, queries: Queries) -> Prediction:
    effect, coefficients = response(post.problem, post), independent_coefficients(post)
    if coefficients is None and not effect.map.is_linear:
        drawn = effect(post.draws(DRAWS, jax.random.key(0)), queries)
        return Prediction(drawn.mean(axis=0), drawn.std(axis=0, ddof=1))
    values, jacobian = effect.linearize(post.mean, queries)
    variances = ((jacobian @ post.factor) ** 2).sum(axis=1)
    if coefficients is not None:
        variances = variances + left_out_variances(coefficients, effect.require(queries))
    return Prediction(values, np.sqrt(variances))


def _require_finite(post: Posterior, queries: Queries, found: Prediction) -> None:
    bad = ~(np.isfinite(found.mean) & np.isfinite(found.sd))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        [intervention] = post.problem.interventions(queries[row])
        raise NumericalError(
            f"the effect of {intervention} has the mean {found.mean[row]} and the sd "
            f"{found.sd[row]} under the posterior; narrow the domains, or look at "
            "cb.check_posterior(post)"
        )


def target_moments(post: Posterior) -> TargetMoments:
    """Return mean and sd of the target in the rows without intervention.

    Where there are no two such rows, or they are all equal, they are those of effects under the
    posterior.
    """
    data = post.data
    rows = data.outcomes[~data.intervened.any(axis=1)]
    if len(rows) > 1 and np.ptp(rows) > 0:
        return TargetMoments(float(rows.mean()), float(rows.std(ddof=1)))
    mean, sd = effect_moments(post, default_vertices(post.problem, post.sets, None))
    spread = float(np.sqrt(mean.var() + (sd**2).mean()))
    return TargetMoments(float(mean.mean()), spread if spread > 0 else 1.0)
