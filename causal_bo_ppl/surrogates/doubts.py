"""Which parameters stand in doubt behind what is believed about an effect?"""

from typing import Any

import numpy as np

from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates.interface import Surrogate

UNUSED = 1e-9  # of the largest: an effect that a coordinate moves by less does not depend on it


def parameter_doubts(surrogate: Surrogate, queries: Queries) -> np.ndarray | None:
    """Return how much the doubt about each effect rests on each coordinate of theta, (M, d).

    That is the share of the effect's variance that would vanish if the coordinate were known, given
    all outcomes: Cov(theta_i, f)^2 / (Var theta_i Var f). Coordinates that depend on each other
    share their doubt, so that the shares of a query may sum to more than 1; a coordinate that the
    effect does not depend on has none.

    None where the surrogate has no weights of theta.
    """
    inner: Any = surrogate
    weights = getattr(inner, "weights", None)
    if weights is None or not hasattr(inner, "centre"):
        return None
    post = surrogate.post
    factor, covariance = post.factor, weights.covariance
    size = factor.shape[1]
    _, jacobian = inner.response.linearize(inner.theta(inner.centre), queries)
    together = inner.features(queries) @ covariance[:, :size] @ factor.T
    own = ((factor @ covariance[:size, :size]) * factor).sum(axis=1)
    scale = surrogate.predict(queries).sd[:, None] ** 2 * own[None, :]
    matters = np.abs(jacobian) * np.sqrt(own)
    used = matters > UNUSED * matters.max(axis=1, keepdims=True)
    shares = np.where(used & (scale > 0), together**2 / np.where(scale > 0, scale, 1.0), 0.0)
    return np.asarray(np.minimum(shares, 1.0))
