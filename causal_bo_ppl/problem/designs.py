"""Which interventions fill the domains?

Grids, Sobol points and vertices of every set, as one batch.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from numbers import Integral

import numpy as np

from causal_bo_ppl.errors import ExplorationError
from causal_bo_ppl.problem.queries import Queries

Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Domains = Mapping[str, tuple[float, float]]
MOST_ROWS = 1_000_000


def spread(
    nodes: Sequence[str], sets: Sequence[tuple[str, ...]], domains: Domains, unit: Unit, rows: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set; rows follow the sets.

    rows: how many the sets come to, checked before anything is made.
    """
    if rows > MOST_ROWS:
        raise ExplorationError(
            f"this design has {rows:,} interventions over {len(sets):,} sets, more than "
            f"{MOST_ROWS:,}; ask for fewer points or explore fewer or smaller sets"
        )
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    column = {name: position for position, name in enumerate(nodes)}
    total = sum(len(points[len(members)]) for members in sets)
    mask, value, start = np.zeros((total, len(nodes)), bool), np.zeros((total, len(nodes))), 0
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        cube = points[len(members)]
        where = np.ix_(range(start, start + len(cube)), [column[name] for name in members])
        mask[where], value[where] = True, between(low, high, cube)
        start += len(cube)
    return Queries(mask, value)


def between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate from both ends.

    Shares 0 and 1 give the bounds to the last bit, and rounding never leads outside.
    """
    return np.asarray(np.clip(low * (1 - share) + high * share, low, high))


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def simplex() -> Unit:
    """Return the design of the lowest corner and its d neighbours.

    A function that is affine in the values is determined by its values at these d + 1 points.
    """
    return lambda size: np.vstack([np.zeros(size), np.eye(size)])


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    from scipy.stats import qmc

    return lambda size: qmc.Sobol(size, scramble=False).random_base2(max(n - 1, 0).bit_length())[:n]


def read_count(n: int, least: int) -> int:
    """Return the number of points of a design as a Python int, which does not overflow."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < least:
        raise ExplorationError(
            f"a design needs a whole number of points, at least {least}; got {n!r}"
        )
    return int(n)
