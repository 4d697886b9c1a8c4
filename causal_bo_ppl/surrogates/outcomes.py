"""Which outcomes have been seen? Replicates of one intervention are kept as their number and mean."""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.queries import Queries

SAME = 1e-9  # of the largest outcome: two outcomes without noise are equal


class Outcomes(NamedTuple):
    """t distinct interventions. counts: (t,); means: (t,) of their outcomes; variances: (t,) of these means' noise."""

    queries: Queries
    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray


def no_outcomes(variables: int) -> Outcomes:
    """Nothing seen yet."""
    empty = np.zeros((0, variables))
    return Outcomes(Queries(empty.astype(bool), empty), np.zeros(0, int), np.zeros(0), np.zeros(0))


def add(seen: Outcomes, query: Queries, outcome: float, noise: float) -> tuple[Outcomes, int]:
    """One more outcome, and the row it belongs to. Without noise equal outcomes are one; unequal ones are refused."""
    mask, value = np.asarray(query.mask)[0], np.where(query.mask, query.value, 0.0)[0]
    same = (seen.queries.mask == mask).all(axis=1) & (seen.queries.value == value).all(axis=1)
    if not same.any():
        queries = Queries(np.vstack([seen.queries.mask, mask]), np.vstack([seen.queries.value, value]))
        grown = (np.append(seen.counts, 1), np.append(seen.means, outcome), np.append(seen.variances, noise))
        return Outcomes(queries, *grown), len(seen.counts)
    row = int(np.flatnonzero(same)[0])
    counts, means, variances = (part.copy() for part in seen[1:])
    counts[row] += 1
    size = float(np.abs([outcome, *means]).max())
    means[row], variances[row] = _average(means[row], variances[row], outcome, noise, size)
    return Outcomes(seen.queries, counts, means, variances), row


def _average(mean: float, variance: float, outcome: float, noise: float, size: float) -> tuple[float, float]:
    """Mean of both, weighted by their precisions, and its variance; size: of the largest outcome, for rounding."""
    if variance == noise == 0:
        if abs(outcome - mean) > SAME * size:
            raise DataError(
                f"the same intervention gave {mean:.9g} and {outcome:.9g}, though outcomes are said to have no noise; "
                "give its variance as `noise`"
            )
        return mean, 0.0
    share = variance / (variance + noise)
    return mean + share * (outcome - mean), share * noise
