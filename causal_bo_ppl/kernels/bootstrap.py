"""How large is a block of a gram, and how large would Monte-Carlo error alone make it?

Covariances of batches of draws differ by that error. Their differences, mixed with random normal
weights, are errors as a new set of draws would have them (a multiplier bootstrap). Batches of
consecutive draws keep the dependence between draws.
"""

from typing import NamedTuple

import numpy as np

BATCHES, REPLICATES = 48, 100  # an error is known to 1 / sqrt(2 * 48) = 10 %


class Parts(NamedTuple):
    """Centred draws in B batches, of shape (B, n, M) each.

    linear: of the linearized effects. missed: of what linearization misses.
    """

    linear: np.ndarray
    missed: np.ndarray

    def columns(self, chosen: np.ndarray) -> "Parts":
        """Return the draws of some of the queries."""
        return Parts(self.linear[:, :, chosen], self.missed[:, :, chosen])


def cut(draws: np.ndarray, chains: int) -> np.ndarray:
    """Return draws (S, M) in batches of consecutive ones, of shape (B, n, M).

    The draws are of `chains` chains one after the other, 0 if they are independent. The last few of
    each chain may be left out.
    """
    parts = max(chains, 1)
    each = max(1, min(BATCHES // parts, len(draws) // parts // 2))
    length = len(draws) // parts // each
    kept = draws.reshape(parts, -1, draws.shape[1])[:, : each * length]
    return kept.reshape(parts * each, length, draws.shape[1])


def multipliers(batches: int, generator: np.random.Generator) -> np.ndarray:
    """Draw weights (R, B) that turn covariances of batches into errors of their mean."""
    weights = generator.standard_normal((REPLICATES, batches))
    weights -= weights.mean(axis=1, keepdims=True)
    return np.asarray(weights / np.sqrt(batches * (batches - 1)))


def products(left: Parts, right: Parts) -> dict[str, np.ndarray]:
    """Return the covariances of I and J effects in every batch by name, of shape (B, I, J) each.

    The names are the terms "leading", "mixed" and "remainder", then "curved", the sum of the last
    two, and "all".
    """
    turned = Parts(*(np.swapaxes(part, 1, 2) / left.linear.shape[1] for part in left))
    leading, remainder = turned.linear @ right.linear, turned.missed @ right.missed
    mixed = turned.linear @ right.missed + turned.missed @ right.linear
    curved = mixed + remainder
    return {
        "leading": leading,
        "mixed": mixed,
        "remainder": remainder,
        "curved": curved,
        "all": leading + curved,
    }


def noise(batches: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Monte-Carlo errors (R, I, J) of the mean of covariances (B, I, J)."""
    return np.tensordot(weights, batches, axes=1)


def frobenius(blocks: np.ndarray) -> np.ndarray:
    """Return the Frobenius norms (...) of blocks (..., I, J)."""
    return np.asarray(np.sqrt((blocks**2).sum(axis=(-2, -1))))


def maximum(blocks: np.ndarray) -> np.ndarray:
    """Return the largest absolute entries (...) of blocks (..., I, J)."""
    return np.asarray(np.abs(blocks).max(axis=(-2, -1)))


def spectral(blocks: np.ndarray) -> np.ndarray:
    """Return the largest singular values (...) of blocks (..., I, J)."""
    small = blocks if blocks.shape[-2] <= blocks.shape[-1] else np.swapaxes(blocks, -1, -2)
    squares = np.linalg.eigvalsh(small @ np.swapaxes(small, -1, -2))[..., -1]
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


MEASURES = {"frobenius": frobenius, "maximum": maximum, "spectral": spectral}


def score(size: float, errors: np.ndarray) -> tuple[float, float]:
    """Return the root mean square of errors (R,), and by how many sds a size exceeds their mean.

    The errors are a measure of Monte-Carlo errors. The second number is of powers of 2/3, cube
    roots of squares, in which norms of errors are nearly normal (Wilson and Hilferty 1931).
    """
    powers = errors ** (2 / 3)
    spread = powers.std(ddof=1)
    distance = float((size ** (2 / 3) - powers.mean()) / spread) if spread > 0 else np.nan
    return float(np.sqrt((errors**2).mean())), distance
