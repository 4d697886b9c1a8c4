"""What was told? One list of outcomes in canonical order, and the same as arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import stack


class Entry(NamedTuple):
    """One outcome in the ledger.

    query: the intervention, in one row. outcome: what the target came out as. noise: the variance
    of its noise; None where it is what the model implies. row: the whole row, where it was
    measured. cost: what was paid. is_earlier: whether it was known before the optimization began,
    so that it cost nothing here and is not recommended. is_foreign: whether it is of a set or of
    values that may not be proposed; it is data, and is not recommended.
    """

    query: Queries
    outcome: float
    noise: float | None
    row: Data | None = None
    cost: float = 0.0
    is_earlier: bool = False
    is_foreign: bool = False

    @property
    def is_passive(self) -> bool:
        """Whether nothing was set: a row was observed."""
        return not np.asarray(self.query.mask).any()

    def order(self) -> tuple[object, ...]:
        """Return what entries are sorted by: earlier ones first, then by what was set."""
        mask, value = np.asarray(self.query.mask)[0], np.asarray(self.query.value)[0]
        row = () if self.row is None else tuple(self.row.values[0].tolist())
        what = (tuple((~mask).tolist()), tuple(np.where(mask, value, 0.0).tolist()))
        noise = (self.noise is not None, self.noise or 0.0)
        return (not self.is_earlier, *what, self.outcome, *noise, row)


class Columns(NamedTuple):
    """The entries of a ledger as arrays, so that a round does not read them one by one.

    queries: (t, p). outcomes, costs: (t,). noises: (t,), NaN where the model implies them.
    is_earlier, is_passive, is_foreign: (t,), as in `Entry`.
    """

    queries: Queries
    outcomes: np.ndarray
    noises: np.ndarray
    costs: np.ndarray
    is_earlier: np.ndarray
    is_passive: np.ndarray
    is_foreign: np.ndarray

    def insert(self, places: list[int], entries: Sequence[Entry]) -> "Columns":
        """Return the columns with more entries, each before the entry at its place."""
        queries = stack([self.queries[:0], *(each.query for each in entries)])
        more: tuple[list[float], ...] = (
            [each.outcome for each in entries],
            [np.nan if each.noise is None else each.noise for each in entries],
            [each.cost for each in entries],
            [each.is_earlier for each in entries],
            [each.is_passive for each in entries],
            [each.is_foreign for each in entries],
        )
        joined = Queries(
            np.insert(np.asarray(self.queries.mask), places, np.asarray(queries.mask), axis=0),
            np.insert(np.asarray(self.queries.value), places, np.asarray(queries.value), axis=0),
        )
        pairs = zip(self[1:], more, strict=True)
        arrays = (np.insert(np.asarray(each), places, new) for each, new in pairs)
        return Columns(joined, *arrays)


def no_columns(problem: Problem) -> Columns:
    """Return the columns of an empty ledger."""
    nothing, is_none = np.zeros(0), np.zeros(0, bool)
    return Columns(problem.baseline()[:0], nothing, nothing, nothing, is_none, is_none, is_none)
