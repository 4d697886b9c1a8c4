"""How well does a Gaussian stand in for a posterior, as a proposal for importance sampling?"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.inference.potentials import potentials
from causal_bo_ppl.mechanisms.interfaces import Model

FLAT = 1e-9  # spread of the log ratios below which the Gaussian is exact
EQUAL = 0.05  # share lost below which the tail of the weights does not matter
PROPOSALS = 4  # for each draw resampled
ENOUGH = 50  # draws for every dimension of a covariance that is estimated from them
TOO_FEW = "too few draws for a covariance"
UNKNOWN_DENSITY = "no density of the estimands is known"
WHOLE, COEFFICIENTS = "the whole model", "coefficients"


class Importance(NamedTuple):
    """Importance weights of n draws from a Gaussian.

    pareto_k: tail of the density ratios; NaN where they cannot be had. lost: share of the draws
    that the weights cost. over: what the ratios are densities of. weights: (n,), summing to 1.
    """

    pareto_k: float
    lost: float
    over: str
    weights: np.ndarray


def not_assessed(draws: int, reason: str) -> Importance:
    """Return equal weights, with the reason why there are no ratios."""
    return Importance(np.nan, np.nan, reason, np.full(draws, 1 / draws))


def weigh(ratios: np.ndarray, over: str) -> Importance:
    """Smooth the weights of log ratios (n,) by PSIS; over: what the ratios are of."""
    if np.ptp(ratios) < FLAT:
        equal = np.full(len(ratios), 1 / len(ratios))
        return Importance(-np.inf, 0.0, f"{over}: exactly Gaussian", equal)
    from arviz_stats.base import array_stats

    logs, pareto_k = array_stats.psislw(-ratios)  # it takes the negative
    weights = np.exp(logs)
    lost = 1 - 1 / (weights**2).sum() / len(ratios)
    said = f"{over}: weights are practically equal" if lost < EQUAL else over
    return Importance(float(pareto_k), float(lost), said, weights)


def resample(weights: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Return places (draws,) chosen systematically in proportion to weights that sum to 1."""
    places = (generator.uniform() + np.arange(draws)) / draws
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)


def ratios_of_model(model: Model, psi: np.ndarray, standard: np.ndarray) -> np.ndarray:
    """Return log ratios of a model's density to the Gaussian with the moments of psi (m, k).

    They are evaluated at n points of that Gaussian, made of standard normals (n, k).
    """
    centre, root = psi.mean(axis=0), np.linalg.cholesky(np.cov(psi.T).reshape(psi.shape[1], -1))
    points = centre + standard @ root.T
    return np.asarray(0.5 * (standard**2).sum(axis=1) - potentials(model, points))
