"""A batch of interventions as two arrays: which variables are set, and to what."""

from collections.abc import Iterator
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
