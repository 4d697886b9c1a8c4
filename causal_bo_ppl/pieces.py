"""How is a batch cut so that few programs are compiled, whatever its size?"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

LARGE, MIDDLE, SMALL = 4_096, 256, 16  # rows


def in_pieces(work: Callable[[Any], Any], batch: Any, rows: int, axis: int = 0) -> list[Any]:
    """Do the work on pieces of a batch, arrays of `rows` rows; the results' rows lie along `axis`.

    A piece is filled up with rows of zeros to one of three sizes; what comes of them is cut off again.
    """
    found = []
    for start, end, size in _cuts(rows):
        result = work(jax.tree.map(partial(_take, start=start, size=size), batch))
        found.append(
            jax.tree.map(partial(jax.lax.slice_in_dim, start_index=0, limit_index=end - start, axis=axis), result)
        )
    return found


def _cuts(rows: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and size of the pieces; one, empty, for no rows."""
    start = 0
    while start < rows or start == 0:
        left = rows - start
        size = SMALL if left <= SMALL else MIDDLE if left <= 8 * MIDDLE else LARGE
        yield start, min(start + size, rows), size
        start += size


def _take(part: np.ndarray, start: int, size: int) -> np.ndarray:
    rows = part[start : start + size]
    return np.pad(rows, ((0, size - len(rows)), (0, 0)))
