"""How much is an experiment worth?

The confidence bound of an effect: mu + sqrt(beta) sd for `max`, mu - sqrt(beta) sd for `min`. Where the response is
affine in the values, mu is affine and sd convex, so the best bound over a box lies at a vertex: enumerating all
vertices of all sets solves this step exactly.
"""

import numpy as np

from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.numerics import first_smallest
from causal_bo_ppl.surrogates import Prediction


def confidence_bound(predicted: Prediction, beta: float, objective: str) -> np.ndarray:
    """(M,) optimistic value of each effect."""
    sign = 1.0 if objective == "max" else -1.0
    return np.asarray(predicted.mean + sign * np.sqrt(beta) * predicted.sd)


def first_best(bounds: np.ndarray, objective: str) -> int:
    """Index of the best; of equally good ones the first, which belongs to a smallest set."""
    if not len(bounds):
        raise DomainError("there is no intervention to choose from")
    return first_smallest(bounds if objective == "min" else -bounds)
