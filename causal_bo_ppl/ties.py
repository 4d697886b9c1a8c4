"""Which of several numbers is the smallest, when rounding must not decide?

Sums differ in their last digits between processors. Numbers that differ by no more than that are
equal here, and of equal ones the first is taken: the same choice on every machine.
"""

import numpy as np

TIE = 1e-10  # of the range of the numbers
ROUNDING = 8 * np.finfo(float).eps  # of the largest of them: whatever their offset


def tie_width(numbers: np.ndarray) -> float:
    """Return the difference up to which two of these numbers count as equal, in any units; infinite ones are apart."""
    finite = numbers[np.isfinite(numbers)]
    return float(TIE * np.ptp(finite) + ROUNDING * np.abs(finite).max()) if finite.size else 0.0


def first_smallest(numbers: np.ndarray) -> int:
    """Return the position of the smallest number of a non-empty (n,) array, the first of equal ones."""
    return int(np.flatnonzero(numbers <= numbers.min() + tie_width(numbers))[0])


def first_largest(numbers: np.ndarray) -> int:
    """Return the position of the largest number of a non-empty (n,) array, the first of equal ones."""
    return first_smallest(-numbers)
