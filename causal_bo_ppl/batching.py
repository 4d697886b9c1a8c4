"""How is a batch cut so that few programs are compiled, whatever its size?"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PIECE_SIZES = 16, 256, 4_096  # rows


def in_pieces(
    work: Callable[[Any], Any],
    batch: Any,
    rows: int,
    axis: int = 0,
    each: int | None = None,
    side_by_side: bool = False,
) -> Any:
    """Apply a function to pieces of a batch, and join the results.

    A piece is padded with rows of zeros to one of three sizes; their results are cut off again.

    Parameters
    ----------
    work: the function of a piece of the batch.
    batch: a tree of arrays with `rows` rows each.
    rows: the number of rows.
    axis: the axis of the results along which their rows lie.
    each: the size of every piece, where it is given.
    side_by_side: whether threads share the pieces, one for each processor.
    """

    def visit(cut: tuple[int, int, int]) -> Any:
        start, end, size = cut
        result = work(jax.tree.map(partial(_take, start=start, size=size), batch))
        return jax.tree.map(partial(_cut, rows=end - start, axis=axis), result)

    cuts = list(_cuts(rows, each))
    shared = side_by_side and len(cuts) > 1 and _processors() > 1
    parts = list((_threads().map if shared else map)(visit, cuts))
    return jax.tree.map(lambda *pieces: _join(pieces, axis), *parts)


def _processors() -> int:
    """Return how many processors this process has; NPROC sets the number for XLA too."""
    given = os.environ.get("NPROC", "")
    if given.isdecimal():
        return max(int(given), 1)
    mine = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(mine(0)) if mine else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_processors(), "causal_bo_ppl")


def _cuts(rows: int, each: int | None) -> Iterator[tuple[int, int, int]]:
    """Yield the start, end and size of each piece; for no rows one empty piece."""
    start, (small, middle, large) = 0, PIECE_SIZES
    while start < rows or start == 0:
        left = rows - start
        size = each or (small if left <= small else middle if left <= 8 * middle else large)
        yield start, min(start + size, rows), size
        start += size


def _take(part: np.ndarray, start: int, size: int) -> np.ndarray:
    rows = part[start : start + size]
    if len(rows) == size:
        return rows
    return np.pad(rows, ((0, size - len(rows)), (0, 0)))


def _cut(part: jax.Array, rows: int, axis: int) -> Any:
    """Return the first rows; outside of a trace by NumPy, which compiles nothing."""
    kept = (slice(None),) * axis + (slice(0, rows),)
    return part[kept] if isinstance(part, jax.core.Tracer) else np.asarray(part)[kept]


def _join(parts: Sequence[Any], axis: int) -> Any:
    if isinstance(parts[0], jax.core.Tracer):
        return jnp.concatenate(parts, axis)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
