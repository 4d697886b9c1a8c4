"""The record of a kernel: covariances of effects, and how far they may be from the truth."""

from typing import NamedTuple

import numpy as np


class KernelEstimate(NamedTuple):
    """Covariances of effects, and how far they may be from the truth.

    Attributes
    ----------
    gram:
        The covariances, of shape (M, M), or (M, K) between two batches.
    standard_error:
        Monte-Carlo errors of the entries; a zero that broadcasts where there are none.
    assumed:
        The conditions under which the gram is the covariance, in words.
    """

    gram: np.ndarray
    standard_error: np.ndarray
    assumed: str

    def __repr__(self) -> str:
        rows, columns = self.gram.shape
        error = float(np.max(self.standard_error, initial=0.0))
        noise = f"standard errors up to {error:.3g}" if error > 0 else "no Monte-Carlo error"
        return f"KernelEstimate({rows} x {columns} covariances of effects, {noise}; {self.assumed})"


def no_error() -> np.ndarray:
    """Return a zero that broadcasts, the standard error of a gram without Monte-Carlo error."""
    return np.zeros(())
