"""What was predicted for every outcome, given all outcomes before it?

An outcome of query z is y = f(z) + e. Before it, f(z) has a mean and an sd, and e has a variance;
the two variances rest on an estimate with some degrees of freedom.
"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.surrogates.evidence import noise_degrees as noise_degrees

ROUNDING = 1e-9  # of an outcome: differences below it are none


class PredictedOutcome(NamedTuple):
    """An outcome and what was predicted for it, given all outcomes before it.

    query: the intervention, in one row. mean, sd: of its effect. noise: the variance of the
    outcome's noise. outcome: what came out. degrees: of freedom of the estimate of the variances,
    infinite where they are known.
    """

    query: Queries
    mean: float
    sd: float
    noise: float
    outcome: float
    degrees: float = np.inf


class Arrays(NamedTuple):
    """What was predicted and what came out, arrays of shape (t,); see `PredictedOutcome`."""

    mean: np.ndarray
    sd: np.ndarray
    noise: np.ndarray
    outcome: np.ndarray
    degrees: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of each outcome, never below what rounding leaves."""
        least = ROUNDING * np.maximum(np.abs(self.outcome), np.abs(self.mean))
        return np.asarray(np.sqrt(np.maximum(self.sd**2 + self.noise, least**2)))

    @property
    def z(self) -> np.ndarray:
        """Standardized residual of each outcome."""
        spread, gap = self.spread, self.outcome - self.mean
        return np.asarray(np.where(spread > 0, gap / np.where(spread > 0, spread, 1.0), 0.0))


def predict_in_order(
    surrogate: Surrogate,
    queries: Queries,
    outcomes: np.ndarray,
    noises: np.ndarray,
    degrees: float = np.inf,
) -> tuple[PredictedOutcome, ...]:
    """Predict each outcome of a batch given the outcomes of the batch before it.

    Parameters
    ----------
    surrogate:
        What was believed before the batch.
    queries, outcomes, noises:
        The interventions of the batch, what came out, and the variances of the noise.
    degrees:
        Of freedom of the variances before the batch, see `noise_degrees`.
    """
    mean, doubt = np.array(surrogate.predict(queries).mean), np.array(surrogate.covariance(queries))
    found = []
    for at, (outcome, noise) in enumerate(zip(outcomes, noises, strict=True)):
        variance = max(float(doubt[at, at]), 0.0)
        numbers = (float(mean[at]), variance**0.5, float(noise), float(outcome), degrees)
        found.append(PredictedOutcome(queries[at], *numbers))
        total = variance + noise
        gain = doubt[:, at] / total if total > 0 else np.zeros(len(mean))
        mean, doubt = mean + gain * (outcome - mean[at]), doubt - np.outer(gain, doubt[at])
    return tuple(found)
