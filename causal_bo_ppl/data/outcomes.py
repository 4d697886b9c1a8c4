"""Outcomes of experiments of which only the target is known."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inputs import require_outcomes
from causal_bo_ppl.problem.interventions import Queries

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

FEWEST_COMPILED = 16  # outcomes that a program is compiled for, where there are any
EQUAL_OUTCOMES = 1e-9  # of the largest outcome: two outcomes without noise are equal


class Outcomes(NamedTuple):
    """Interventions, and the outcomes of the target.

    queries: m interventions on some variables. values: the target's outcomes, (m,).
    """

    queries: Queries
    values: np.ndarray

    def columns(self, chosen: Sequence[int]) -> "Outcomes":
        """Return the same outcomes with queries restricted to some variables."""
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        return Outcomes(Queries(mask[:, list(chosen)], value[:, list(chosen)]), self.values)

    def padded(self) -> tuple[Queries, np.ndarray, np.ndarray]:
        """Fill up to a power of two, so that few programs are compiled.

        Returns queries and values with the same number of rows, and weights: 1, or 0 for padding.
        """
        count = len(self.values)
        size = max(FEWEST_COMPILED, 1 << (count - 1).bit_length()) if count else 0
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        fill = ((0, size - count), (0, 0))
        queries = Queries(np.pad(mask, fill, mode="edge") if count else mask, np.pad(value, fill))
        return queries, np.pad(self.values, fill[0]), np.pad(np.ones(count), fill[0])

    def digest(self) -> int:
        """Return a sum of the hashes of all outcomes, the same in any order; 0 for none."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0)
        rows = zip(mask, value, self.values, strict=True)
        texts = (b"outcome" + b"".join(part.tobytes() for part in row) for row in rows)
        return sum(int.from_bytes(hashlib.sha256(text).digest()) for text in texts)


def no_outcomes(variables: int) -> Outcomes:
    """Return an empty record over a number of variables."""
    empty = np.zeros((0, variables))
    return Outcomes(Queries(empty.astype(bool), empty), np.zeros(0))


def read_outcomes(
    problem: "Problem", given: tuple[Queries, Sequence[float] | np.ndarray] | None
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
        raise DataError(f"outcomes must be numbers, one for each intervention; got {values.dtype}")
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
    first, which = _group(mask, value)
    size, exact = len(first), variances == 0
    given = np.where(exact, 1.0, variances)
    least = np.full(size, np.inf)
    np.minimum.at(least, which, given)
    relative = least[which] / given  # precisions, in units that cannot overflow
    total = np.bincount(which, relative, size)
    means = np.bincount(which, relative * values, size) / total
    squares = np.bincount(which, (values - means[which]) ** 2 / given, size)
    noises = least / total
    if exact.any():
        known, decided = _decided(which[exact], values[exact], size, np.abs(values).max())
        means = np.where(known, decided, means)
        noises, squares = np.where(known, 0.0, noises), np.where(known, 0.0, squares)
    counts = np.bincount(which, minlength=size)
    return Replicates(Queries(mask[first], value[first]), counts, means, noises, squares)


def _group(mask: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row (t,) of each distinct intervention, and for every row which it is."""
    same = (mask[1:] == mask[:-1]).all(axis=1) & (value[1:] == value[:-1]).all(axis=1)
    starts = np.flatnonzero(np.append(True, ~same))[: len(mask)]  # of runs of equal rows
    positions: dict[bytes, int] = {}
    kinds = [
        positions.setdefault(one.tobytes() + values.tobytes(), len(positions))
        for one, values in zip(mask[starts], value[starts], strict=True)
    ]
    which = np.repeat(np.array(kinds, int), np.diff(np.append(starts, len(mask))))
    first = np.full(len(positions), len(mask))
    np.minimum.at(first, which, np.arange(len(mask)))
    return first, which


def _decided(
    which: np.ndarray, values: np.ndarray, size: int, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return which interventions (t,) have an outcome without noise, and the first of these."""
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, which, values)
    np.maximum.at(high, which, values)
    differs = np.flatnonzero(high - low > EQUAL_OUTCOMES * largest)
    if len(differs):
        first = differs[0]
        raise DataError(
            f"the same intervention gave {low[first]:.9g} and {high[first]:.9g}, though outcomes "
            "have no noise; give its variance as `noise`"
        )
    decided = np.zeros(size)
    decided[which[::-1]] = values[::-1]
    return high > -np.inf, decided
