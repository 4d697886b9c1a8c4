"""A batch of interventions as two arrays: which variables are set, and to what."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jax
import numpy as np
from jax.typing import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Queries:
    """M interventions on p variables, in the order of the graph's nodes.

    mask: (M, p) bool, which variables are set. value: (M, p) float, to what; 0 where not set.
    `len(queries)` is M; indices, slices and index arrays select rows, and a loop gives one row at a
    time. Passes through `jax.jit`.
    """

    mask: jax.Array | np.ndarray
    value: jax.Array | np.ndarray

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __getitem__(self, rows: slice | ArrayLike) -> "Queries":
        chosen = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(int)
        return Queries(np.asarray(self.mask)[chosen], np.asarray(self.value)[chosen])

    def __iter__(self) -> Iterator["Queries"]:
        return (self[row] for row in range(len(self)))

    def repeat(self, times: int) -> "Queries":
        """Each intervention `times` times in a row (replicates)."""
        return Queries(np.repeat(self.mask, times, axis=0), np.repeat(self.value, times, axis=0))

    def __repr__(self) -> str:
        return f"Queries({len(self)} interventions on {self.mask.shape[-1]} variables)"


def stack(batches: Iterable[Queries]) -> Queries:
    """Several batches as one."""
    parts = list(batches)
    return Queries(np.concatenate([part.mask for part in parts]), np.concatenate([part.value for part in parts]))


def distinct_rows(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first of all equal rows of (M, p) booleans, and for every row which of these it equals.

    Bits are packed into words, which sort much faster than rows; of a run of equal rows only the first is sorted.
    """
    starts = np.flatnonzero(np.append(True, (mask[1:] != mask[:-1]).any(axis=1)))[: len(mask)]
    bits = np.packbits(mask[starts], axis=1)
    words = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))).view(np.uint64)
    keys = words[:, 0] if words.shape[1] == 1 else words
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    lengths = np.diff(np.append(starts, len(mask)))
    return starts[first], np.repeat(which.reshape(-1), lengths)
