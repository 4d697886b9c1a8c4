"""Is this a real number, and of a size whose squares and ratios float64 can hold?"""

import math
from typing import SupportsFloat

import numpy as np

from causal_bo_ppl.errors import DataError, DomainError

# Between what sizes s a column, its spread and its domain must lie, each in its own units. A slope is
# s_j / s_i, at most 1e100, and its variance 1e200. The derivative of an effect in a slope is
# s_i s_y / s_j, at most 1e150; its square, 1e300, is the largest product that is formed, and 1e-300 the
# smallest. Float64 has all its digits from 2.2e-308 to 1.8e308: a factor of 1e8 is left for sums over
# rows, variables and queries.
LEAST, MOST = 1e-50, 1e50
STEEPEST = MOST / LEAST  # slope


def read_number(name: object, number: object) -> float:
    """Return a variable's number as a float; a bool, a text, an array or a giant integer is none."""
    try:
        if isinstance(number, bool | np.bool_ | str | bytes | complex):
            raise TypeError
        return float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise DomainError(f"the value of {name!r} must be a real number, got {number!r}") from None


def as_float(number: SupportsFloat) -> float:
    """Return a real number as a float, a giant one as infinity with its sign."""
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number > 0 or -1)  # type: ignore[operator]


def size_fault(size: float, least: float = LEAST, most: float = MOST) -> str:
    """Say what is wrong with a size that is neither 0 nor between `least` and `most`; empty where nothing is."""
    if size == 0 or least <= size <= most:
        return ""
    side, limit, fate = ("above", most, "overflow") if size > most else ("below", least, "underflow")
    return f"{size:.3g}, {side} {limit:g}, where squares and ratios of squares {fate}; change its units"


def require_outcomes(outcomes: np.ndarray | float) -> None:
    """Refuse outcomes of the target that are too large to be squared; small ones are as good as 0."""
    fault = size_fault(float(np.abs(outcomes).max(initial=0.0)), least=0.0)
    if fault:
        raise DataError(f"an outcome of the target has the size {fault}")
