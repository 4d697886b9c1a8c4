"""Batches of interventions: two arrays with a row for each, joined, split by sets, and shown."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
import pandas as pd
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

    names: ClassVar[tuple[str, ...]] = ()  # of the variables, where a problem made it; shown only

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __getitem__(self, rows: slice | ArrayLike) -> "Queries":
        chosen = rows if isinstance(rows, slice) else np.atleast_1d(np.asarray(rows))
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(int)
        found = Queries(np.asarray(self.mask)[chosen], np.asarray(self.value)[chosen])
        return named(found, self.names)

    def __iter__(self) -> Iterator["Queries"]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"Queries({len(self)} interventions on {self.mask.shape[-1]} variables)"

    def repeat(self, times: int) -> "Queries":
        """Return the batch with each intervention `times` times in a row, as replicates."""
        found = Queries(np.repeat(self.mask, times, axis=0), np.repeat(self.value, times, axis=0))
        return named(found, self.names)

    def _repr_html_(self) -> str:
        mask, value = np.asarray(self.mask), np.asarray(self.value)
        if mask.ndim != 2:
            return f"<p>{html.escape(repr(self))}</p>"
        names = self.names or tuple(f"variable {at + 1}" for at in range(mask.shape[1]))
        used = np.flatnonzero(mask.any(axis=0)).tolist()
        columns = {f"do({names[at]})": np.where(mask[:, at], value[:, at], np.nan) for at in used}
        table = pd.DataFrame(columns, index=range(len(self)))
        shown = table.to_html(max_rows=60, float_format="{:.6g}".format, na_rep="")
        return f"<p>{html.escape(repr(self))}</p>{shown}"


def named(queries: Queries, names: Sequence[str]) -> Queries:
    """Return the same batch, which shows itself with the names of its variables."""
    if not names or tuple(names) == queries.names:
        return queries
    found = Queries(queries.mask, queries.value)
    object.__setattr__(found, "names", tuple(names))
    return found


def stack(batches: Iterable[Queries]) -> Queries:
    """Join several batches into one, in the order given."""
    parts = list(batches)
    found = Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
    )
    return named(found, parts[0].names)


def distinct_rows(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of a boolean array of shape (M, p).

    Bits are packed into words, which sort much faster than rows; of a run of equal rows only the
    first is sorted.

    Returns
    -------
    first: the index of the first row of each kind, an array of shape (k,).
    which: for every row the position of its kind in `first`, an array of shape (M,).
    """
    starts = np.flatnonzero(np.append(True, (mask[1:] != mask[:-1]).any(axis=1)))[: len(mask)]
    bits = np.packbits(mask[starts], axis=1)
    words = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))).view(np.uint64)
    keys = words[:, 0] if words.shape[1] == 1 else words
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    lengths = np.diff(np.append(starts, len(mask)))
    return starts[first], np.repeat(which.reshape(-1), lengths)


def rows_of_sets(queries: Queries) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield every set of a batch: its mask (p,) as bytes, and the rows of its queries."""
    mask = np.ascontiguousarray(queries.mask, bool)
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for row, rows in zip(first, np.split(order, ends)[:-1], strict=True):
        yield mask[row].tobytes(), rows
