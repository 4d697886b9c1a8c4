"""Outcomes of experiments of which only the target is known."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inputs import require_outcomes
from causal_bo_ppl.problem import Problem, Queries

LEAST = 16  # outcomes that a program is compiled for, where there are any
SAME = 1e-9  # of the largest outcome: two outcomes without noise are equal


class Outcomes(NamedTuple):
    """Interventions, and what the target came out as.

    queries: what was set, in m rows over some variables. values: the target's outcomes, (m,).
    """

    queries: Queries
    values: np.ndarray

    def columns(self, chosen: Sequence[int]) -> "Outcomes":
        """Return the same outcomes with queries cut to the variables at some places."""
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
            f"outcomes are a pair (queries, values), got {type(given).__name__}; see "
            "problem.queries"
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


class Replicates(NamedTuple):
    """Outcomes of t distinct interventions, each with all of its replicates.

    counts: (t,). means: (t,) of their outcomes, weighted by precision. variances: (t,) of these
    means' noise. squares: (t,) sums of the squared distances of the outcomes from their mean, in
    units of their noise.
    """

    queries: Queries
    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    squares: np.ndarray


def merge_replicates(queries: Queries, values: np.ndarray, variances: np.ndarray) -> Replicates:
    """Merge outcomes of equal interventions, in the order in which each first appears.

    Parameters
    ----------
    queries, values, variances:
        m interventions, their outcomes, and the variances of their noise. An outcome without noise
        decides; two that differ are refused.
    """
    mask, value = np.asarray(queries.mask), np.where(queries.mask, queries.value, 0.0) + 0.0
    groups: dict[bytes, list[int]] = {}
    for row, (kind, at) in enumerate(zip(mask, value, strict=True)):
        groups.setdefault(kind.tobytes() + at.tobytes(), []).append(row)
    largest = float(np.abs(values).max(initial=0.0))
    merged = [_average(values[rows], variances[rows], largest) for rows in groups.values()]
    means, noises, squares = np.reshape(merged, (-1, 3)).T
    first = [rows[0] for rows in groups.values()]
    counts = np.array([len(rows) for rows in groups.values()], int)
    return Replicates(Queries(mask[first], value[first]), counts, means, noises, squares)


def _average(
    values: np.ndarray, variances: np.ndarray, largest: float
) -> tuple[float, float, float]:
    """Return the mean weighted by precision, its variance, and the squared distances from it."""
    exact = values[variances == 0]
    if not len(exact):
        least = variances.min()
        relative = least / variances  # precisions, in units that cannot overflow
        mean = float(relative @ values / relative.sum())
        return mean, float(least / relative.sum()), float(((values - mean) ** 2 / variances).sum())
    if np.ptp(exact) > SAME * largest:
        raise DataError(
            f"the same intervention gave {exact.min():.9g} and {exact.max():.9g}, though outcomes "
            "are said to have no noise; give its variance as `noise`"
        )
    return float(exact[0]), 0.0, 0.0
