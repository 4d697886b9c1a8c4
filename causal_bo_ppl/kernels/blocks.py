"""How large is a block of a gram, and how large would Monte-Carlo error alone make it?

Covariances of batches of draws differ by that error. Their differences, mixed with random normal weights, are errors
as a new set of draws would have them (a multiplier bootstrap); batches of consecutive draws keep their dependence.
"""

from typing import NamedTuple

import numpy as np

BATCHES, REPLICATES = 48, 100  # an error is known to 1 / sqrt(2 * 48) = 10 %


class Parts(NamedTuple):
    """Centred draws in batches, (B, n, M) each: of the linearized effects, and of what linearization misses."""

    linear: np.ndarray
    missed: np.ndarray

    def columns(self, chosen: np.ndarray) -> "Parts":
        """Of some queries."""
        return Parts(self.linear[:, :, chosen], self.missed[:, :, chosen])


def cut(draws: np.ndarray, chains: int) -> np.ndarray:
    """(B, n, M) consecutive draws of (S, M), `chains` parts one after the other; the last few may be left out."""
    parts = max(chains, 1)
    each = max(1, min(BATCHES // parts, len(draws) // parts // 2))
    length = len(draws) // parts // each
    kept = draws.reshape(parts, -1, draws.shape[1])[:, : each * length]
    return kept.reshape(parts * each, length, draws.shape[1])


def multipliers(batches: int, generator: np.random.Generator) -> np.ndarray:
    """(R, B) weights that turn batches' covariances into Monte-Carlo errors of their mean."""
    weights = generator.standard_normal((REPLICATES, batches))
    weights -= weights.mean(axis=1, keepdims=True)
    return np.asarray(weights / np.sqrt(batches * (batches - 1)))


def products(left: Parts, right: Parts) -> dict[str, np.ndarray]:
    """(B, I, J) covariances in every batch: leading, mixed and remainder; the last two, what is curved; and all."""
    turned = Parts(*(np.swapaxes(part, 1, 2) / left.linear.shape[1] for part in left))
    leading, remainder = turned.linear @ right.linear, turned.missed @ right.missed
    mixed = turned.linear @ right.missed + turned.missed @ right.linear
    curved = mixed + remainder
    return {"leading": leading, "mixed": mixed, "remainder": remainder, "curved": curved, "all": leading + curved}


def noise(batches: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R, I, J) Monte-Carlo errors of the mean of covariances (B, I, J)."""
    return np.tensordot(weights, batches, axes=1)


def frobenius(blocks: np.ndarray) -> np.ndarray:
    """(...) root of the sum of squares of blocks (..., I, J)."""
    return np.asarray(np.sqrt((blocks**2).sum(axis=(-2, -1))))


def maximum(blocks: np.ndarray) -> np.ndarray:
    """(...) largest absolute entry."""
    return np.asarray(np.abs(blocks).max(axis=(-2, -1)))


def spectral(blocks: np.ndarray) -> np.ndarray:
    """(...) largest singular value."""
    small = blocks if blocks.shape[-2] <= blocks.shape[-1] else np.swapaxes(blocks, -1, -2)
    squares = np.linalg.eigvalsh(small @ np.swapaxes(small, -1, -2))[..., -1]
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


MEASURES = {"frobenius": frobenius, "maximum": maximum, "spectral": spectral}


def score(size: float, errors: np.ndarray) -> tuple[float, float]:
    """The root mean square of a measure of Monte-Carlo errors (R,), and where a size lies among them in sds.

    In powers of 2/3, cube roots of squares, in which norms of errors are nearly normal (Wilson and Hilferty 1931).
    """
    powers = errors ** (2 / 3)
    spread = powers.std(ddof=1)
    distance = float((size ** (2 / 3) - powers.mean()) / spread) if spread > 0 else np.nan
    return float(np.sqrt((errors**2).mean())), distance
