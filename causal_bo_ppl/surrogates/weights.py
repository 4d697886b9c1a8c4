"""What do outcomes say about the weights of features? Bayesian linear regression, y = phi'w + noise, w ~ N(0, I).

t outcomes cost O(t r^2 + r^3), one more O(r^2); a t x t matrix is never formed.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve


class Weights(NamedTuple):
    """Posterior N(covariance information, covariance) of r weights.

    covariance: (r, r); information: (r,), the sum of phi y / variance.
    """

    covariance: np.ndarray
    information: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(r,)."""
        return np.asarray(self.covariance @ self.information)


def condition(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """From features (t, r), residuals (t,) and the precisions (t,) of their noise: I + Phi' P Phi, inverted."""
    weighted = features * precisions[:, None]
    factor = cho_factor(np.eye(features.shape[1]) + features.T @ weighted, lower=True)
    inverse = cho_solve(factor, np.eye(features.shape[1]))
    return Weights((inverse + inverse.T) / 2, residuals @ weighted)


def extend(weights: Weights, feature: np.ndarray, precision: float, information: float) -> Weights:
    """After one more outcome, or a changed one: by how much its precision, and its precision times residual, grew."""
    pull = weights.covariance @ feature
    shrink = precision / (1 + precision * (feature @ pull))
    return Weights(weights.covariance - shrink * np.outer(pull, pull), weights.information + information * feature)
