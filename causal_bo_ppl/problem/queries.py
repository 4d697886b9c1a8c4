"""Batches of interventions: what they set, which of them fill the domains, and what they cost.

A batch is two arrays with a row for each intervention. Designs are batches of all sets at once:
grids, Sobol points and vertices, which are also looked at where no intervention is named. The cost
is one unit per variable, a constant per variable, or any function of the interventions.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike

from causal_bo_ppl.errors import DomainError, ExplorationError, listed
from causal_bo_ppl.inputs import read_number

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


Interventions = Mapping[str, float] | Sequence[Mapping[str, float]]
Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Domains = Mapping[str, tuple[float, float]]
MOST_ROWS = 1_000_000
FILLED = 129  # points of one set where vertices do not suffice
MOST, MOST_ANCHORS = 256, 4_096  # vertices, and anchors, where no query is named


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

    def __repr__(self) -> str:
        return f"Queries({len(self)} interventions on {self.mask.shape[-1]} variables)"

    def repeat(self, times: int) -> "Queries":
        """Return the batch with each intervention `times` times in a row, as replicates."""
        return Queries(np.repeat(self.mask, times, axis=0), np.repeat(self.value, times, axis=0))


def stack(batches: Iterable[Queries]) -> Queries:
    """Join several batches into one, in the order given."""
    parts = list(batches)
    return Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
    )


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


class Sets(NamedTuple):
    """The sets of a batch, ordered by their first member in causal order, then by the next.

    labels: the name of each set. rows: for each set, the indices of its queries.
    """

    labels: tuple[str, ...]
    rows: tuple[np.ndarray, ...]

    @property
    def order(self) -> np.ndarray:
        """Indices of all queries, set after set, an array of shape (M,)."""
        return np.concatenate([np.zeros(0, int), *self.rows])


def split_sets(problem: "Problem", queries: Queries) -> Sets:
    """Return the sets of a batch, and which queries belong to each."""
    mask = np.asarray(problem.require(queries).mask)
    first, which = distinct_rows(mask)
    members = [tuple(np.flatnonzero(mask[row]).tolist()) for row in first]
    order = sorted(range(len(first)), key=lambda place: members[place])
    labels = tuple(
        set_label(tuple(problem.graph.nodes[node] for node in members[place])) for place in order
    )
    return Sets(labels, tuple(np.flatnonzero(which == place) for place in order))


def set_label(members: tuple[str, ...]) -> str:
    """Return the name of a set for a table; a variable's name that holds a comma is quoted."""
    quoted = (
        json.dumps(name, ensure_ascii=False) if "," in name or '"' in name else name
        for name in members
    )
    return ", ".join(quoted) or "(nothing)"


def labels(problem: "Problem", queries: Queries) -> list[str]:
    """Return the interventions in words, with so many digits that different ones differ."""
    asked = problem.interventions(queries)
    different = len({tuple(each.items()) for each in asked})
    for digits in (4, 6, 9, 12, 17):
        words = [
            f"do({', '.join(f'{name} = {value:.{digits}g}' for name, value in each.items())})"
            for each in asked
        ]
        if len(set(words)) == different:
            break
    return words


def spread(
    nodes: Sequence[str], sets: Sequence[tuple[str, ...]], domains: Domains, unit: Unit, rows: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set; rows follow the sets.

    rows: how many the sets come to, checked before anything is made.
    """
    if rows > MOST_ROWS:
        raise ExplorationError(
            f"this design has {rows:,} interventions over {len(sets):,} sets, more than "
            f"{MOST_ROWS:,}; ask for fewer points or explore fewer or smaller sets"
        )
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    column = {name: position for position, name in enumerate(nodes)}
    total = sum(len(points[len(members)]) for members in sets)
    mask, value, start = np.zeros((total, len(nodes)), bool), np.zeros((total, len(nodes))), 0
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        cube = points[len(members)]
        where = np.ix_(range(start, start + len(cube)), [column[name] for name in members])
        mask[where], value[where] = True, between(low, high, cube)
        start += len(cube)
    return Queries(mask, value)


def between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate from both ends.

    Shares 0 and 1 give the bounds to the last bit, and rounding never leads outside.
    """
    return np.asarray(np.clip(low * (1 - share) + high * share, low, high))


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def simplex() -> Unit:
    """Return the design of the lowest corner and its d neighbours.

    A function that is affine in the values is determined by its values at these d + 1 points.
    """
    return lambda size: np.vstack([np.zeros(size), np.eye(size)])


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    from scipy.stats import qmc

    return lambda size: qmc.Sobol(size, scramble=False).random_base2(max(n - 1, 0).bit_length())[:n]


def vertices(problem: "Problem", sets: tuple[tuple[str, ...], ...]) -> Queries:
    """Return every corner of the box of each of these sets, set after set.

    A set of d variables has 2^d corners; more than a million in all are refused.
    """
    rows = sum(2 ** len(members) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, lattice(2), rows)


def fill_boxes(problem: "Problem", sets: tuple[tuple[str, ...], ...]) -> Queries:
    """Return points that fill the box of each of these sets, vertices included, set after set.

    They are a grid of about 129 points; for more than three variables, Sobol points and vertices.
    """

    def unit(size: int) -> np.ndarray:
        ticks = round(FILLED ** (1 / max(size, 1)))
        if ticks >= 5:
            return lattice(ticks)(size)
        return np.concatenate([lattice(2)(size), sobol(FILLED - 1)(size)])

    rows = sum(max(FILLED, 2 ** len(members)) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, unit, rows)


def default_vertices(
    problem: "Problem",
    sets: tuple[tuple[str, ...], ...],
    queries: Queries | None,
    most: int = MOST,
) -> Queries:
    """Return the queries that were given, checked, or else vertices of all sets.

    Of more than `most` vertices, `most` that are evenly spaced in their order are taken.
    """
    return problem.require(queries) if queries is not None else _some(vertices(problem, sets), most)


def default_design(
    problem: "Problem", sets: tuple[tuple[str, ...], ...], queries: Queries | None, most: int
) -> Queries:
    """Return the queries that were given, checked, or else vertices and points inside the boxes.

    There are at most `most` of either kind, the points inside from a Sobol sequence, as many for
    every set.
    """
    if queries is not None:
        return problem.require(queries)
    # The first Sobol point is a corner.
    inside = sobol(1 + max(1, most // max(1, len(sets))))
    points = spread(problem.graph.nodes, sets, problem.domains, lambda size: inside(size)[1:], 0)
    return stack([_some(vertices(problem, sets), most), _some(points, most)])


def _some(queries: Queries, most: int) -> Queries:
    """Return all queries, or `most` of them that are evenly spaced in their order."""
    if len(queries) <= most:
        return queries
    return queries[np.unique(np.linspace(0, len(queries) - 1, most).round().astype(int))]


def affine_anchors(
    problem: "Problem", sets: tuple[tuple[str, ...], ...], queries: Queries | None
) -> Queries:
    """Return the queries that were given, checked, or else d + 1 vertices of each set.

    d is the number of variables of the set. Effects that are affine in the values of a set are
    determined by those at these vertices.
    """
    if queries is not None:
        return problem.require(queries)
    rows = sum(len(members) + 1 for members in sets)
    if rows > MOST_ANCHORS:
        raise ExplorationError(
            f"{len(sets):,} sets have {rows:,} such vertices, more than {MOST_ANCHORS:,}; "
            "name the queries you mean"
        )
    return spread(problem.graph.nodes, sets, problem.domains, simplex(), rows)


CostFunction = Callable[[Queries], "np.ndarray"]


@dataclass(frozen=True)
class ConstantCost:
    """The cost c(z) = sum of a constant for each variable that is set.

    constants: one for each variable, in the order of the graph's nodes.
    """

    constants: tuple[float, ...]

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        mask = np.asarray(queries.mask)  # summed as it stands: products by BLAS differ by processor
        return np.asarray(np.where(mask, np.asarray(self.constants), 0.0).sum(axis=1))


@dataclass(frozen=True)
class MagnitudeCost:
    """The cost c(z) = sum of (constant + |x|) over the variables set to x."""

    constant: float = 1.0

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        mask = np.asarray(queries.mask)
        return np.asarray(
            np.where(mask, self.constant + np.abs(np.asarray(queries.value)), 0.0).sum(axis=1)
        )


def read_costs(
    costs: Mapping[str, float] | CostFunction | None,
    nodes: tuple[str, ...],
    manipulable: tuple[str, ...],
) -> CostFunction:
    """Turn what the analyst gave into a function of a batch; None means one unit per variable."""
    if callable(costs):
        return costs
    if costs is not None and not isinstance(costs, Mapping):
        raise DomainError(
            f"costs must be {{variable: cost}} or a function of Queries, got {costs!r}"
        )
    given = (
        dict.fromkeys(manipulable, 1.0)
        if costs is None
        else {name: read_number(name, c) for name, c in costs.items()}
    )
    if set(given) != set(manipulable):
        missing, extra = (
            listed(sorted(names, key=str))
            for names in ({*manipulable} - {*given}, {*given} - {*manipulable})
        )
        raise DomainError(
            f"costs must name each manipulable variable; missing: {missing}; "
            f"not manipulable: {extra}"
        )
    for name, cost in given.items():
        if not (np.isfinite(cost) and cost > 0):
            raise DomainError(f"the cost of {name!r} is {cost}; costs must be positive and finite")
    return ConstantCost(tuple(float(given.get(name, 0.0)) for name in nodes))


def evaluate_costs(costs: CostFunction, queries: Queries) -> np.ndarray:
    """Return the costs of a batch, an array of shape (M,); refuse any not positive and finite."""
    batch = Queries(np.array(queries.mask), np.array(queries.value))  # it may write into its copy
    numbers = np.asarray(costs(batch))
    if numbers.dtype.kind not in "iuf":
        raise DomainError(f"the cost function returned {numbers.dtype}; return (M,) real numbers")
    if numbers.shape != (len(queries),):
        raise DomainError(
            f"the cost function returned shape {numbers.shape} for {len(queries)} interventions; "
            "return (M,)"
        )
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    bad &= np.asarray(queries.mask).any(axis=1) | ~(numbers == 0)  # doing nothing may be free
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DomainError(
            f"the cost of intervention {row} is {numbers[row]}; costs must be positive and finite"
        )
    return numbers.astype(float)
