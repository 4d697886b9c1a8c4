"""Which equations can be learned from these data, and what is the residual of a regression?

An equation is learned from the observations in which its variable was not set. Columns are refused
whose squares cannot be formed. Regressions of one column on others hold whatever the units, means
and collinearities.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data.data import Data
from causal_bo_ppl.errors import CausalBOWarning, DataError, listed
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import LARGEST_MAGNITUDE, SMALLEST_MAGNITUDE, size_fault
from causal_bo_ppl.linalg import triangular_factor

VALUE_ROUNDING = 4 * np.finfo(float).eps  # of a measured value: the error of a few operations
ROWS_PER_BLOCK = 16_384  # rows that are copied at once
ILL_CONDITIONED = 1e8  # of the standardised parents: about half of float64's digits are lost


def require_sizes(data: Data, earlier: Sequence[Data] = ()) -> None:
    """Refuse a column whose values are so large, or vary so little, that squares lose their digits.

    Squares overflow or underflow outside the sizes of `inputs.size_fault`. A column of zeros and
    one that is constant up to rounding pass: `require_learnable` refuses them where they must vary.
    earlier: data of earlier updates; a column that is tiny in a few rows need not be so in all.
    """
    if not len(data):
        return
    low, high = _ends([data])
    largest = np.maximum(np.abs(low), np.abs(high))
    is_tiny = (0 < largest) & (largest < SMALLEST_MAGNITUDE)
    is_tiny |= (low < high) & (high < low + SMALLEST_MAGNITUDE)
    if earlier and is_tiny.any():
        low, high = _ends([*earlier, data])
        largest = np.maximum(np.abs(low), np.abs(high))
    _require_size(data.nodes, "has values up to", largest, LARGEST_MAGNITUDE)
    spread = np.where(high - low > VALUE_ROUNDING * largest, high - low, 0.0)
    _require_size(data.nodes, "varies by", spread, 2 * LARGEST_MAGNITUDE)


def _ends(parts: Sequence[Data]) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest value of each column, arrays of shape (p,)."""
    filled = [part.values for part in parts if len(part)]
    values = filled[0] if len(filled) == 1 else np.concatenate(filled)
    return values.min(axis=0), values.max(axis=0)


def _require_size(nodes: Sequence[str], what: str, sizes: np.ndarray, most: float) -> None:
    for name, size in zip(nodes, sizes.tolist(), strict=True):
        if fault := size_fault(size, most=most):
            raise DataError(f"column {name!r} {what} {fault}")


def require_learnable(
    data: Data,
    graph: CausalGraph,
    known: Collection[Edge] = (),
    *,
    nodes: Iterable[str] | None = None,
    spare: int = 2,
    given: Mapping[str, Sequence[str]] | None = None,
    usable: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Refuse data from which an equation upstream of the target, or its own, cannot be learned.

    Raises DataError for too few rows, a constant parent or target and exactly collinear parents;
    warns of nearly collinear ones. Meant for priors scaled by the data: a fixed proper prior needs
    no data at all.

    Parameters
    ----------
    known: edges whose coefficients need not be learned.
    nodes: variables whose equations are needed, by default the target and all its causes.
    spare: rows needed beyond the number of parents.
    given, usable: the regressors of each variable, and the rows (n,) that inform its regression,
        where regressions take the place of mechanisms.
    """
    if data.nodes != graph.nodes:
        raise DataError(
            f"the data are of {listed(data.nodes)}, the graph has {listed(graph.nodes)}; "
            "read them for this graph"
        )
    ends = dict(zip(data.nodes, zip(*_ends([data]), strict=True), strict=True)) if len(data) else {}
    for node in graph.ordered(
        [data.target, *graph.ancestors(data.target)] if nodes is None else nodes
    ):
        causes = graph.parents(node) if given is None else given[node]
        parents = tuple(parent for parent in causes if (parent, node) not in known)
        rows = ~data.intervened[:, data.nodes.index(node)] if usable is None else usable[node]
        _require_rows(node, int(rows.sum()), parents, spare, is_regression=given is not None)
        if node == data.target or causes:  # a constant root is refused as a parent
            what = "the target " if node == data.target else ""
            fault = f"{what}{node!r} is constant; there is nothing to learn"
            _require_ends(*_ends_within(data.column(node), rows, ends[node]), fault)
        sizes: list[float] = []
        for parent in parents:
            fault = (
                f"{parent!r}, a parent of {node!r}, is constant; its coefficient cannot be "
                "learned: vary it or drop it"
            )
            found = _ends_within(data.column(parent), rows, ends[parent])
            _require_ends(*found, fault)
            sizes.append(max(abs(found[0]), abs(found[1])))
        if len(parents) > 1:
            _require_independent(node, parents, data, rows, np.array(sizes))


def _require_rows(
    node: str, rows: int, parents: Sequence[str], spare: int, *, is_regression: bool
) -> None:
    count = len(parents)
    if rows >= count + spare:
        return
    if is_regression:
        raise DataError(
            f"latent causes ask for the regression of {node!r} on {listed(parents)}: {count} "
            f"regressors, but only {rows} rows inform it; at least {count + spare} "
            "are needed: add rows, or drop the sets that need it"
        )
    raise DataError(
        f"the equation of {node!r} has {count} parents and only {rows} rows in which it was "
        f"not set; at least {count + spare} are needed: add rows, or give fixed proper priors"
    )


def require_spread(column: np.ndarray, fault: str) -> None:
    """Refuse a column that does not vary by more than its own rounding."""
    _require_ends(float(column.min()), float(column.max()), len(column), fault)


def _require_ends(low: float, high: float, count: int, fault: str) -> None:
    if high - low <= VALUE_ROUNDING * max(abs(low), abs(high)):
        raise DataError(f"{fault} (value {low:g} in all {count} rows)")


def _ends_within(
    column: np.ndarray, rows: np.ndarray, ends: tuple[float, float]
) -> tuple[float, float, int]:
    """Return the smallest and largest value of a column (n,) in some rows (n,), and their number.

    ends: those of the whole column. Nothing is copied.
    """
    if rows.all():
        return *ends, len(rows)
    low, high = column.min(where=rows, initial=np.inf), column.max(where=rows, initial=-np.inf)
    return low, high, int(rows.sum())


def _require_independent(
    node: str,
    parents: Sequence[str],
    data: Data,
    rows: np.ndarray,
    size: np.ndarray,
) -> None:
    """Refuse parents that are exactly collinear in the rows that count; warn of nearly such.

    The rows are read in blocks, so that no copy of all of them is made: once for the means, once
    for the triangular factor of the centred columns, which has their singular values. `size` is
    the largest absolute value of every parent, of shape (k,).
    """
    positions = [data.nodes.index(parent) for parent in parents]

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(rows), ROWS_PER_BLOCK):
            block = slice(start, start + ROWS_PER_BLOCK)
            yield data.values[block][:, positions][rows[block]]

    count = int(rows.sum())
    mean = np.sum([(block / size).sum(axis=0) for block in blocks()], axis=0) / count
    factor = triangular_factor(block / size - mean for block in blocks())
    sd = np.linalg.norm(factor, axis=0) / np.sqrt(count)
    _, sizes, directions = np.linalg.svd(factor / sd, full_matrices=False)
    condition = sizes[0] / sizes[-1] if sizes[-1] > 0 else np.inf
    weights = np.abs(directions[-1])
    together = [parents[index] for index in np.flatnonzero(weights > 0.1 * weights.max()).tolist()]
    # The columns are known to VALUE_ROUNDING only, which standardising divides by their sd.
    if not condition < 1 / (VALUE_ROUNDING * max(count, len(parents)) / sd.min()):
        raise DataError(
            f"the parents {listed(together)} of {node!r} are exactly collinear in these rows; only "
            "a combination of their coefficients can be learned: drop one, or add rows in which "
            "they were set apart"
        )
    if not condition <= ILL_CONDITIONED:
        warnings.warn(
            f"the parents {listed(together)} of {node!r} are nearly collinear "
            f"(condition number {condition:.1e}): little more than their sum is learned",
            CausalBOWarning,
            stacklevel=4,
        )


class Rows(NamedTuple):
    """Values in units of standard deviations, a constant column as zeros.

    scaled: the values, (n, p). root: a factor (r, p) with root' root = scaled' scaled, in which
    regressions are cheap. rounding: by how much rounding, of values and sums, may change a scaled
    value, (p,). is_constant: (p,). centre, unit, size: (p,) each, with
    values = size * (centre + unit * scaled); size keeps this from overflowing.
    """

    scaled: np.ndarray
    root: np.ndarray
    rounding: np.ndarray
    is_constant: np.ndarray
    centre: np.ndarray
    unit: np.ndarray
    size: np.ndarray


def scale_values(values: np.ndarray) -> Rows:
    """Centre and scale the columns of values (n, p).

    Neither their units nor their means matter afterwards.
    """
    largest = np.abs(values).max(axis=0)
    size = np.where(largest > 0, largest, 1.0)
    shares = values / size
    centre = shares.mean(axis=0)
    is_constant = np.ptp(shares, axis=0) <= VALUE_ROUNDING
    unit = np.where(is_constant, 1.0, shares.std(axis=0))
    scaled = np.where(is_constant, 0.0, (shares - centre) / unit)
    scaled -= scaled.mean(axis=0)  # the rounding error of the first mean
    summing = len(values) * np.finfo(float).eps  # over the rows, in the root
    rounding = np.where(is_constant, 0.0, VALUE_ROUNDING / unit + summing)
    return Rows(
        scaled,
        np.asarray(np.linalg.qr(scaled, mode="r")),
        rounding,
        is_constant,
        centre,
        unit,
        size,
    )


class Fit(NamedTuple):
    """A column regressed on others.

    residual: the residuals, in the space of `root`. rank: how many directions of the others count.
    is_exact: whether the residuals are no more than the rounding of the values.
    """

    residual: np.ndarray
    rank: int
    is_exact: bool


def regress(data: Rows, response: int, given: list[int]) -> Fit:
    """Regress a column on others, by singular values.

    Directions of `given` that rounding alone can cause are dropped.
    """
    left, sizes, right = np.linalg.svd(data.root[:, given], full_matrices=False)
    kept = sizes > np.sqrt(len(data.scaled)) * np.linalg.norm(data.rounding[given])
    weights = (right[kept].T / sizes[kept]) @ (left[:, kept].T @ data.root[:, response])
    residual = data.root[:, response] - data.root[:, given] @ weights
    noise = data.rounding[response] + np.abs(weights) @ data.rounding[given]
    is_exact = bool(np.linalg.norm(residual) <= np.sqrt(len(data.scaled)) * noise)
    return Fit(residual, int(kept.sum()), is_exact)
