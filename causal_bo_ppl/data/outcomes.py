"""Outcomes of experiments of which only the target is known."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inputs import require_outcomes
from causal_bo_ppl.problem import Problem, Queries

LEAST = 16  # outcomes that a program is compiled for, where there are any


class Outcomes(NamedTuple):
    """Interventions, and what the target came out as.

    queries: what was set, in m rows over some variables. values: the target's outcomes, (m,).
    """

    queries: Queries
    values: np.ndarray

    def columns(self, chosen: Sequence[int]) -> "Outcomes":
        """Return the same outcomes with the queries cut to some variables, given by their places."""
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        return Outcomes(Queries(mask[:, list(chosen)], value[:, list(chosen)]), self.values)

    def padded(self) -> tuple[Queries, np.ndarray, np.ndarray]:
        """Fill up to a power of two, so that few programs are compiled.

        Returns queries and values with the same number of rows, and weights: 1, or 0 for padding.
        """
        count = len(self.values)
        size = max(LEAST, 1 << (count - 1).bit_length()) if count else 0
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        fill = ((0, size - count), (0, 0))
        queries = Queries(np.pad(mask, fill, mode="edge") if count else mask, np.pad(value, fill))
        return queries, np.pad(self.values, fill[0]), np.pad(np.ones(count), fill[0])

    def digest(self) -> int:
        """Return a sum of the hashes of all outcomes, the same in any order; 0 for none."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0)
        rows = zip(mask, value, self.values, strict=True)
        texts = (b"outcome" + kind.tobytes() + at.tobytes() + y.tobytes() for kind, at, y in rows)
        return sum(int.from_bytes(hashlib.sha256(text).digest()) for text in texts)


def no_outcomes(variables: int) -> Outcomes:
    """Return an empty record over a number of variables."""
    empty = np.zeros((0, variables))
    return Outcomes(Queries(empty.astype(bool), empty), np.zeros(0))


def read_outcomes(
    problem: Problem, given: tuple[Queries, Sequence[float] | np.ndarray] | None
) -> Outcomes:
    """Check a pair (queries, values) of experiments on a problem; None is no experiment.

    Raises
    ------
    DataError
        If it is no such pair, or a value is no finite number of a usable size.
    """
    if given is None:
        return no_outcomes(len(problem.graph.nodes))
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataError(
            f"outcomes are a pair (queries, values), got {type(given).__name__}; see problem.queries"
        )
    queries, values = problem.require(given[0]), np.array(given[1])
    if values.dtype.kind not in "iuf":
        raise DataError(
            f"the outcomes' values must be numbers, one for each intervention; got {values.dtype}"
        )
    values = values.astype(float)
    if values.shape != (len(queries),) or not np.isfinite(values).all():
        raise DataError(
            f"{len(queries)} interventions need as many finite outcomes; got an array of shape "
            f"{values.shape} with {int((~np.isfinite(values)).sum())} that are not finite"
        )
    require_outcomes(values)
    return Outcomes(queries, values)
