"""Which interventions are meant? Batches read from mappings, and designs that fill the domains.

A batch of M interventions is two arrays of shape (M, p). Designs are batches of all sets at once:
grids, Sobol points and vertices, which are the default where no intervention is named. They hold
only interventions that the problem allows: values at levels, within constraints, and accepted by
the user-defined function.
"""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import numpy as np
import pandas as pd
from jax.typing import ArrayLike

from causal_bo_ppl.errors import DomainError, ExplorationError, listed, unknown
from causal_bo_ppl.graph.admg import set_label as set_label
from causal_bo_ppl.inputs import read_list, read_number
from causal_bo_ppl.problem.regions import Set, independent_points, sobol_points
from causal_bo_ppl.problem.regions import between as between

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Queries:
    """M interventions on p variables, in the order of the graph's nodes.

    mask: (M, p) bool, which variables are set. value: (M, p) float, to what; 0 where not set.
    `len(queries)` is M; indices, slices and index arrays select interventions, and a loop yields
    one at a time. Passes through `jax.jit`.
    """

    mask: jax.Array | np.ndarray
    value: jax.Array | np.ndarray

    names: ClassVar[tuple[str, ...]] = ()  # of the variables, where a problem made it; shown only

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __getitem__(self, index: slice | ArrayLike) -> "Queries":
        chosen = index if isinstance(index, slice) else np.atleast_1d(np.asarray(index))
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(int)
        selected = Queries(np.asarray(self.mask)[chosen], np.asarray(self.value)[chosen])
        return named(selected, self.names)

    def __iter__(self) -> Iterator["Queries"]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Queries({len(self)} interventions on {self.mask.shape[-1]} variables)"

    def repeat(self, times: int) -> "Queries":
        """Return the batch with `times` consecutive replicates of each intervention."""
        return self[np.repeat(np.arange(len(self)), times)]

    def _repr_html_(self) -> str:
        mask = np.asarray(self.mask)
        names = self.names or [f"variable {column + 1}" for column in range(mask.shape[1])]
        values = np.where(mask, np.asarray(self.value), np.nan)
        table = pd.DataFrame(values, columns=[f"do({name})" for name in names])
        table = table.dropna(axis="columns", how="all")
        shown = table.to_html(max_rows=60, float_format="{:.6g}".format, na_rep="")
        return f"<p>{html.escape(repr(self))}</p>{shown}"


def named(queries: Queries, names: Sequence[str]) -> Queries:
    """Return the same batch, which shows itself with the names of its variables."""
    if not names or tuple(names) == queries.names:
        return queries
    labelled = Queries(queries.mask, queries.value)
    object.__setattr__(labelled, "names", tuple(names))
    return labelled


def stack(batches: Iterable[Queries]) -> Queries:
    """Join several batches into one, in the order given."""
    parts = list(batches)
    joined = Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
    )
    return named(joined, parts[0].names)


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


def split_by_set(queries: Queries) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield every set of a batch: its mask (p,) as bytes, and the indices of its queries."""
    mask = np.ascontiguousarray(queries.mask, bool)
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for index, indices in zip(first, np.split(order, ends)[:-1], strict=True):
        yield mask[index].tobytes(), indices


Interventions = Mapping[str, float] | Sequence[Mapping[str, float]]
Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Domains = Mapping[str, tuple[float, float]]
MOST_QUERIES = 1_000_000  # of a design
POINTS_PER_SET = 129  # where vertices do not suffice
MOST_DEFAULT_VERTICES, MOST_ANCHORS = 256, 4_096  # where no query is named


def read_interventions(problem: "Problem", given: object) -> Queries:
    """Return a batch of interventions, given as Queries, as one mapping or as several.

    `{}` sets nothing; its effect is the observational mean of the target.

    Raises
    ------
    DomainError
        If these are no interventions, or one of them is not legal.
    """
    if isinstance(given, Queries):
        return problem.require(given)
    batches = [problem.queries(one) if one else problem.baseline() for one in _as_list(given)]
    return stack([problem.baseline()[:0], *batches])


class Sets(NamedTuple):
    """The sets of a batch, ordered by their first member in causal order, then by the next.

    labels: the name of each set. indices: for each set, the indices of its queries.
    """

    labels: tuple[str, ...]
    indices: tuple[np.ndarray, ...]

    @property
    def order(self) -> np.ndarray:
        """Indices of all queries, set after set, an array of shape (M,)."""
        return np.concatenate([np.zeros(0, int), *self.indices])


def split_sets(problem: "Problem", queries: Queries) -> Sets:
    """Return the sets of a batch, and which queries belong to each."""
    mask = np.asarray(problem.require(queries).mask)
    first, which = distinct_rows(mask)
    members = [tuple(np.flatnonzero(mask[row]).tolist()) for row in first]
    order = sorted(range(len(first)), key=lambda position: members[position])
    labels = tuple(
        set_label(tuple(problem.graph.nodes[node] for node in members[position]))
        for position in order
    )
    return Sets(labels, tuple(np.flatnonzero(which == position) for position in order))


def labels(problem: "Problem", queries: Queries) -> list[str]:
    """Return the interventions as texts, with enough digits to distinguish different ones."""
    asked = problem.interventions(queries)
    different = len({tuple(intervention.items()) for intervention in asked})
    for digits in (4, 6, 9, 12, 17):
        texts = [
            f"do({', '.join(f'{name} = {x:.{digits}g}' for name, x in intervention.items())})"
            if intervention
            else "nothing set"
            for intervention in asked
        ]
        if len(set(texts)) == different:
            break
    return texts


def spread(
    nodes: Sequence[str], sets: Sequence[Set], domains: Domains, unit: Unit, count: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set, set after set.

    count: the number of points of all sets, checked before anything is made.
    """
    require_few(count, len(sets))
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    placed = []
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        placed.append((members, between(low, high, points[len(members)])))
    return place_points(nodes, placed)


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    return lambda size: sobol_points(size, max(n - 1, 0).bit_length())[:n]


def require_few(count: int, sets: int) -> None:
    """Refuse a design of more than a million interventions, before it is made."""
    if count > MOST_QUERIES:
        raise ExplorationError(
            f"this design has {count:,} interventions over {sets:,} sets, more than "
            f"{MOST_QUERIES:,}; ask for fewer points or explore fewer or smaller sets"
        )


def place_points(nodes: Sequence[str], parts: Sequence[tuple[Set, np.ndarray]]) -> Queries:
    """Join points (k, d) of several sets into one batch."""
    column = {name: position for position, name in enumerate(nodes)}
    shape = (sum(len(points) for _, points in parts), len(nodes))
    mask, value, start = np.zeros(shape, bool), np.zeros(shape), 0
    for members, points in parts:
        where = np.ix_(range(start, start + len(points)), [column[name] for name in members])
        mask[where], value[where] = True, points
        start += len(points)
    return named(Queries(mask, value), nodes)


def _gather(
    problem: "Problem",
    sets: Sequence[Set],
    points: Callable[[Set], np.ndarray],
    count: int,
    what: str,
) -> Queries:
    """Join points (k, d) of several sets into one batch, without those that may not be used.

    points: returns the points of a set that keep domains, levels and constraints; the user-defined
    function is asked here. count: a bound of their number, checked before they are made. what: the
    name of the points, for the error that a set without any is refused with.
    """
    require_few(count, len(sets))
    parts = [(members, points(members)) for members in sets]
    queries = place_points(problem.graph.nodes, parts)
    is_restricted = problem.feasible_rule is not None
    kept = problem.feasible(queries) if is_restricted else np.ones(len(queries), bool)
    owner = np.repeat(np.arange(len(parts)), [len(each) for _, each in parts])
    for index in np.flatnonzero(np.bincount(owner, kept, minlength=len(parts)) == 0).tolist():
        raise DomainError(_nothing_left(problem, sets[index], len(parts[index][1]), what))
    return queries if kept.all() else queries[kept]


def _nothing_left(problem: "Problem", members: Set, count: int, what: str) -> str:
    if count:
        why = f"the function `feasible` rejects all {count:,} {what} of {{{listed(members)}}}"
    else:
        constraints = "; ".join(map(str, problem.region.applying(members)))
        why = f"none of the {what} of {{{listed(members)}}} keeps the constraints ({constraints})"
    return f"{why}; take more points, others (grid, sobol or vertices), or remove the set"


def vertices(problem: "Problem", sets: tuple[Set, ...], kinks: bool = False) -> Queries:
    """Return every vertex of the region of each of these sets, set after set.

    A set of d variables has the 2^d corners of its box, where no constraint cuts them off; more
    than a million in all are refused. Of a variable with levels these are the extreme ones, unless
    a constraint makes others matter. kinks: also split every region where a value passes 0; see
    `Region.vertices`.
    """
    region = problem.region
    if not problem.is_box or kinks:
        count = sum(region.count_vertices(members, kinks) for members in sets)
        return _gather(
            problem, sets, lambda members: region.vertices(members, kinks), count, "vertices"
        )
    count = sum(2 ** len(members) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, lattice(2), count)


def grid_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return the legal points of a grid of n values per variable for each of these sets."""
    region = problem.region
    count = sum(region.count_grid(members, n) for members in sets)
    if problem.is_box:
        return spread(problem.graph.nodes, sets, problem.domains, lattice(n), count)
    return _gather(
        problem, sets, lambda members: region.grid(members, n), count, "points of the grid"
    )


def fill_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return n Sobol points of the region of each of these sets, set after set; see `Region.fill`.

    There are fewer of a set where the user-defined function rejects nearly all that were tried.
    """
    count = n * len(sets)
    if problem.is_box:
        return spread(problem.graph.nodes, sets, problem.domains, sobol(n), count)
    return _gather(
        problem, sets, lambda members: fill_set(problem, members, n), count, "Sobol points"
    )


def fill_set(problem: "Problem", members: Set, n: int) -> np.ndarray:
    """Return n Sobol points (n, d) of the region of one set, legal ones where there are any."""
    if problem.feasible_rule is None:
        return problem.region.fill(members, n)

    def keep(points: np.ndarray) -> np.ndarray:
        return problem.feasible(place_points(problem.graph.nodes, [(members, points)]))

    found = problem.region.fill(members, n, keep)
    # Where all points are rejected, `_gather` raises the error.
    return found if len(found) else problem.region.fill(members, n)


def vertices_and_points(problem: "Problem", sets: tuple[Set, ...], n: int) -> Queries:
    """Return the vertices of all sets, then n Sobol points of each of them.

    A set needs one legal point among both kinds: the user-defined function may reject all
    vertices of a set, and an optimum may then lie anywhere.
    """
    if problem.feasible_rule is None:
        return stack([vertices(problem, sets), fill_points(problem, sets, n)])
    region = problem.region

    def both(members: Set) -> np.ndarray:
        return np.concatenate([region.vertices(members), fill_set(problem, members, n)])

    count = sum(n + region.count_vertices(members) for members in sets)
    return _gather(problem, sets, both, count, "vertices and Sobol points")


def fill_boxes(problem: "Problem", sets: tuple[Set, ...]) -> Queries:
    """Return points that fill the region of each of these sets, vertices included, set after set.

    They are a grid of about 129 points; for more than three variables, and where values are
    restricted, Sobol points and vertices.
    """
    if not problem.is_box:
        return vertices_and_points(problem, sets, POINTS_PER_SET - 1)

    def unit(size: int) -> np.ndarray:
        ticks = round(POINTS_PER_SET ** (1 / max(size, 1)))
        if ticks >= 5:
            return lattice(ticks)(size)
        return np.concatenate([lattice(2)(size), sobol(POINTS_PER_SET - 1)(size)])

    count = sum(max(POINTS_PER_SET, 2 ** len(members)) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, unit, count)


def default_vertices(
    problem: "Problem",
    sets: tuple[Set, ...],
    queries: Queries | None,
    most: int = MOST_DEFAULT_VERTICES,
) -> Queries:
    """Return the queries that were given, checked, or else vertices of all sets.

    Of more than `most` vertices, `most` that are evenly spaced in their order are taken.
    """
    return problem.require(queries) if queries is not None else _some(vertices(problem, sets), most)


def default_design(
    problem: "Problem", sets: tuple[Set, ...], queries: Queries | None, most: int
) -> Queries:
    """Return the queries that were given, checked, or else vertices and points inside the boxes.

    There are at most `most` of either kind, the points inside from a Sobol sequence, as many for
    every set.
    """
    if queries is not None:
        return problem.require(queries)
    per_set = max(1, most // max(1, len(sets)))
    if not problem.is_box:
        return _some(vertices_and_points(problem, sets, per_set), 2 * most)
    inside = sobol(1 + per_set)  # the first Sobol point is a corner
    points = spread(problem.graph.nodes, sets, problem.domains, lambda size: inside(size)[1:], 0)
    return stack([_some(vertices(problem, sets), most), _some(points, most)])


def _some(queries: Queries, most: int) -> Queries:
    """Return all queries, or `most` of them that are evenly spaced in their order."""
    if len(queries) <= most:
        return queries
    return queries[np.unique(np.linspace(0, len(queries) - 1, most).round().astype(int))]


def affine_anchors(problem: "Problem", sets: tuple[Set, ...], queries: Queries | None) -> Queries:
    """Return the queries that were given, checked, or else d + 1 vertices of each set.

    d is the number of variables of the set. Effects that are affine in the values of a set are
    determined by those at these vertices. There are fewer where constraints fix a sum of values.
    """
    if queries is not None:
        return problem.require(queries)
    count = sum(len(members) + 1 for members in sets)
    if count > MOST_ANCHORS:
        raise ExplorationError(
            f"{len(sets):,} sets have {count:,} such vertices, more than {MOST_ANCHORS:,}; "
            "name the queries you mean"
        )
    if problem.is_box:

        def corners(size: int) -> np.ndarray:  # the lowest one and its d neighbours
            return np.eye(size + 1, size, -1)

        return spread(problem.graph.nodes, sets, problem.domains, corners, count)
    if problem.feasible_rule is None:
        return _gather(problem, sets, problem.region.anchors, count, "vertices")
    points = vertices_and_points(problem, sets, POINTS_PER_SET)
    return stack(_anchors_among(points[indices]) for indices in _indices_by_set(points))


def _indices_by_set(queries: Queries) -> list[np.ndarray]:
    """Return the indices of each set of a batch, sets in the order of their first queries."""
    first, which = distinct_rows(np.asarray(queries.mask))
    return [np.flatnonzero(which == position) for position in np.argsort(first, kind="stable")]


def _anchors_among(queries: Queries) -> Queries:
    columns = np.asarray(queries.mask)[0]
    return queries[independent_points(np.asarray(queries.value)[:, columns])]


def read_mappings(interventions: object, nodes: Set, manipulable: Set) -> Queries:
    """Return mappings {variable: value} as a batch, in their order; values are not yet checked."""
    mappings = _as_list(interventions)
    mask, value = np.zeros((len(mappings), len(nodes)), bool), np.zeros((len(mappings), len(nodes)))
    for index, intervention in enumerate(mappings):
        if not intervention:
            raise DomainError(
                f"intervention {index} is missing its variables; doing nothing is observing: "
                "use problem.baseline()"
            )
        for name, number in intervention.items():
            if name not in manipulable:
                raise DomainError(unknown("manipulable variable", name, manipulable))
            column = nodes.index(name)
            mask[index, column], value[index, column] = True, read_number(name, number)
    return named(Queries(mask, value), nodes)


def _as_list(interventions: object) -> list[Mapping[str, float]]:
    """Return one mapping or several as a list; refuse anything else."""
    given = [interventions] if isinstance(interventions, Mapping) else read_list(interventions)
    if given is None or not all(isinstance(one, Mapping) for one in given):
        got = repr(interventions) if given is None else listed(given, most=3)
        raise DomainError(
            "interventions are Queries, or mappings such as [{'X': 1.0}, {'Z': 2.0}], where {} "
            f"sets nothing; got {got}"
        )
    return given
