"""Which values may a variable be set to, where only some values can be had?

A finite list of levels stands where a domain (low, high) may stand: the settings of a dial, or the
doses that are in stock. The extreme levels are then the domain's low and high.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from causal_bo_ppl.errors import DomainError, listed
from causal_bo_ppl.inputs import read_list, read_number

# Of a domain's width: a value this near to a level is that level, as after a round trip through a
# file. Levels must be farther apart than twice this.
LEVEL_ROUNDING = 1e-9


@dataclass(frozen=True)
class Levels:
    """A finite list of the values to which a variable may be set.

    Parameters
    ----------
    values:
        At least two finite numbers, all different; they are sorted.

    Raises
    ------
    DomainError
        If there are fewer than two levels, or some are repeated, nearly equal or not finite.

    Examples
    --------
    >>> Levels([20, 0, 5, 10])
    Levels([0, 5, 10, 20])
    >>> Levels([0, 5, 10, 20]).bounds
    (0.0, 20.0)
    """

    values: tuple[float, ...]

    def __init__(self, values: Iterable[float]) -> None:
        object.__setattr__(self, "values", _read_levels(values))

    @property
    def bounds(self) -> tuple[float, float]:
        """The extreme levels (low, high)."""
        return self.values[0], self.values[-1]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Levels([{show_levels(self.values)}])"


def show_levels(values: tuple[float, ...], most: int = 20) -> str:
    """Return the levels for a message or a table, cut after `most`."""
    return listed((f"{value:.15g}" for value in values), most)


def _read_levels(values: object) -> tuple[float, ...]:
    given = None if isinstance(values, str | bytes) else read_list(values)
    if given is None:
        raise DomainError(f"levels must be a list such as Levels([0, 5, 10]), got {values!r}")
    numbers = sorted(read_number("a level", each) for each in given)
    if strange := [number for number in numbers if not np.isfinite(number)]:
        raise DomainError(f"the level {strange[0]} is not finite; leave it out")
    if len(numbers) < 2:
        raise DomainError(
            f"there are {len(numbers)} levels ({listed(numbers)}); give at least two, or treat the "
            "variable as a constant"
        )
    steps = np.diff(numbers)
    if (steps == 0).any():
        repeated = numbers[int(np.flatnonzero(steps == 0)[0])]
        raise DomainError(f"the level {repeated:.15g} is repeated; give every level once")
    if not (steps > 2 * LEVEL_ROUNDING * (numbers[-1] - numbers[0])).all():
        near = int(np.argmin(steps))
        raise DomainError(
            f"the levels {numbers[near]:.17g} and {numbers[near + 1]:.17g} are too close to be "
            "told apart; leave one out"
        )
    return tuple(numbers)


def nearest_levels(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return for every value the nearest level, the lower one of two equally near."""
    positions = np.asarray(levels)
    after = np.clip(np.searchsorted(positions, values), 1, len(positions) - 1)
    below, above = positions[after - 1], positions[after]
    return np.asarray(np.where(values - below <= above - values, below, above))


def are_levels(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return which values are levels, up to the rounding of a file; NaN is none."""
    width = levels[-1] - levels[0]
    is_near = np.abs(values - nearest_levels(values, levels)) <= LEVEL_ROUNDING * width
    return np.asarray(is_near)


def share_levels(shares: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Map shares of [0, 1] to levels: [0, 1] is cut into as many equal intervals as levels."""
    count = len(levels)
    positions = np.minimum((shares * count).astype(int), count - 1)
    return np.asarray(np.take(np.asarray(levels), positions))


def some_levels(levels: tuple[float, ...], n: int) -> np.ndarray:
    """Return all levels, or n of them that are evenly spaced in their order, both ends included."""
    if n >= len(levels):
        return np.asarray(levels)
    positions = np.linspace(0, len(levels) - 1, n).round().astype(int)
    return np.take(np.asarray(levels), positions)
