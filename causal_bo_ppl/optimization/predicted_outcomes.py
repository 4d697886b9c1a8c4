"""What was predicted for every outcome, given all outcomes before it?

An outcome of query z is y = f(z) + e. Before it, f(z) has a mean and an sd, and e has a variance;
the two variances rest on an estimate with some degrees of freedom.
"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.surrogates.evidence import noise_degrees as noise_degrees
from causal_bo_ppl.surrogates.told import Told

BLOCK = 64  # outcomes of which all later effects learn at once
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
    surrogate: Surrogate, told: Told, degrees: float = np.inf
) -> tuple[PredictedOutcome, ...]:
    """Predict each outcome of a batch given the outcomes of the batch before it.

    Parameters
    ----------
    surrogate:
        What was believed before the batch.
    told:
        The interventions of the batch, what came out, and the variances of the noise.
    degrees:
        Of freedom of the variances before the batch, see `noise_degrees`.
    """
    mean, doubt = surrogate.predict(told.queries).mean, surrogate.covariance(told.queries)
    means, variances = condition_in_order(mean, doubt, told.values, told.variances)
    columns = (means, np.sqrt(variances), told.variances, told.values)
    numbers = zip(told.queries, *(each.tolist() for each in columns), strict=True)
    return tuple(
        PredictedOutcome(query, mean, sd, noise, outcome, degrees)
        for query, mean, sd, noise, outcome in numbers
    )


def condition_in_order(
    mean: np.ndarray, covariance: np.ndarray, outcomes: np.ndarray, noises: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of each of m effects given the outcomes before it, (m,) each.

    An outcome moves all later effects by their covariance with it over its variance. Within a block
    the outcomes are learned from one by one, and all later effects learn from a block at once, so
    that the m^3 operations are products of matrices.

    Parameters
    ----------
    mean, covariance:
        Of the effects before any outcome, (m,) and (m, m).
    outcomes, noises:
        What came out, and the variances of the noise, (m,) each.
    """
    mean, doubt = np.array(mean, float), np.array(covariance, float)
    for start in range(0, len(mean), BLOCK):
        stop = min(start + BLOCK, len(mean))
        gains = np.zeros((len(mean), stop - start))
        totals = np.zeros(stop - start)
        for at in range(start, stop):
            done = at - start
            # What the block's outcomes up to here leave of the covariance with this effect.
            left = doubt[at:, at] - gains[at:, :done] @ (totals[:done] * gains[at, :done])
            left[0] = doubt[at, at] = max(float(left[0]), 0.0)
            totals[done] = left[0] + noises[at]
            gains[at:, done] = left / totals[done] if totals[done] > 0 else 0.0
            mean[at + 1 :] += gains[at + 1 :, done] * (outcomes[at] - mean[at])
        later = gains[stop:]
        doubt[stop:, stop:] -= (later * totals) @ later.T
    return mean, np.diagonal(doubt).copy()
