"""Many p-values at once: how small must the smallest be?"""

import numpy as np


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's step-down correction of those that are not NaN: valid however the tests depend on each other."""
    corrected = np.full(len(p_values), np.nan)
    order = np.argsort(p_values)[: np.isfinite(p_values).sum()]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected
