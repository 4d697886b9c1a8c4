"""Where may interventions lie? Vertices, levels, corners and points that fill the boxes.

All sets of a problem at once, each design made once and kept. Sets with too many combinations are
not enumerated; some starts stand for them, from which they are climbed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import fill_points, sobol, spread, stack, vertices

MOST_LISTED = 2**14  # combinations of all sets together that are enumerated
FILL, MOST_FILL, LEAST_FILL = 64, 4_096, 8  # Sobol points of a set, of all together, of a set
STARTS, MOST_STARTS = 32, 2**15  # of a set that is too large to be enumerated, of all such sets
Feasible = Callable[[Queries], np.ndarray]


@dataclass(frozen=True, eq=False)
class Space:
    """Where interventions may lie.

    Attributes
    ----------
    problem, sets:
        The problem and the sets of it whose effects were learned.
    levels:
        {variable: values}, where a variable has finitely many; only these are proposed.
    corners:
        The vertices of what linear constraints leave of every set's box, in place of the boxes'.
    feasible:
        Function of queries that returns which may be proposed, (M,).
    """

    problem: Problem
    sets: tuple[tuple[str, ...], ...]
    levels: Mapping[str, Sequence[float]] = field(default_factory=dict)
    corners: Queries | None = None
    feasible: Feasible | None = None
    _kept: dict[object, "Candidates"] = field(default_factory=dict, repr=False)

    @property
    def has_corners(self) -> bool:
        """Whether the vertices of every set are known, so that they may suffice."""
        return self.feasible is None or self.corners is not None

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries may be proposed, (M,)."""
        if self.feasible is None or not len(queries):
            return np.ones(len(queries), bool)
        mask = np.asarray(self.feasible(queries))
        if mask.shape != (len(queries),) or mask.dtype != bool:
            raise DomainError(
                f"`feasible` gave an array of shape {mask.shape} and type {mask.dtype} for "
                f"{len(queries)} queries; it must give one bool for each"
            )
        return mask

    def values(self, name: str, kind: str) -> tuple[float, ...]:
        """Return what a variable is set to: the ends, those and 0 ("cut"), or all its "levels".

        A variable without levels has its ends in their place.
        """
        low, high = self.problem.domains[name]
        if name in self.levels and kind != "ends":
            return tuple(sorted({float(value) for value in self.levels[name]}))
        cut = (0.0,) if kind == "cut" and low < 0 < high else ()
        return (low, *cut, high) if high > low else (low,)

    def listed(self, kind: str) -> "Candidates":
        """Return all combinations of every set that has not too many, with their costs.

        Small sets come first until there are as many as can be enumerated; see `large`. Corners
        stand for the combinations where they are given.
        """
        return self._keep(("listed", kind), lambda: self._list(kind))

    def large(self, kind: str) -> tuple[tuple[str, ...], ...]:
        """Return the sets that have too many combinations to be enumerated."""
        if self.corners is not None:
            return ()
        total, left = 0.0, []
        for members in self.sets:
            sizes = [float(len(self.values(name, kind))) for name in members]
            total += min(float(np.prod(sizes)), 1e18)
            left += [members] if total > MOST_LISTED else []
        return tuple(left)

    def filling(self) -> "Candidates":
        """Return Sobol points of every set, at levels where there are levels, with their costs."""
        return self._keep("filling", self._fill)

    def first(self, kind: str) -> "Candidates":
        """Return starts for the sets that are too large to be enumerated, with their costs."""
        return self._keep(("first", kind), lambda: self._start(kind))

    def choices(self, kind: str) -> list[np.ndarray]:
        """Return the values of every variable, by column; none where it is not manipulable."""
        names = self.problem.manipulable
        return [
            np.array(self.values(name, kind) if name in names else (), float)
            for name in self.problem.graph.nodes
        ]

    def _keep(self, what: object, make: Callable[[], Queries]) -> "Candidates":
        if what not in self._kept:
            queries = make()
            queries = queries[self.allows(queries)]
            self._kept[what] = Candidates(queries, self.problem.cost(queries), self)
        return self._kept[what]

    def _list(self, kind: str) -> Queries:
        if self.corners is not None:
            return self.corners
        large = set(self.large(kind))
        parts = [self._combine(members, kind) for members in self.sets if members not in large]
        return stack([self.problem.baseline()[:0], *parts])

    def _combine(self, members: tuple[str, ...], kind: str) -> Queries:
        points = np.array(list(product(*(self.values(name, kind) for name in members))), float)
        mask, value = (
            np.zeros((len(points), len(self.problem.graph.nodes)), t) for t in (bool, float)
        )
        columns = [self.problem.graph.index(name) for name in members]
        mask[:, columns], value[:, columns] = True, points
        return Queries(mask, value)

    def _fill(self) -> Queries:
        nodes, domains = self.problem.graph.nodes, self.problem.domains
        n = max(LEAST_FILL, min(FILL, MOST_FILL // max(len(self.sets), 1)))
        if not self.problem.is_box:
            return fill_points(self.problem, self.sets, n)
        unit = sobol(n + 1)  # the first point is a corner
        points = spread(nodes, self.sets, domains, lambda size: unit(size)[1:], n * len(self.sets))
        return self.snap(points)

    def snap(self, queries: Queries) -> Queries:
        """Return the queries with every variable that has levels at the nearest one."""
        mask, value = np.asarray(queries.mask), np.array(queries.value)
        for name in self.levels:
            column, values = self.problem.graph.index(name), np.array(self.values(name, "levels"))
            nearest = np.abs(value[:, column, None] - values).argmin(axis=1)
            value[:, column] = np.where(mask[:, column], values[nearest], 0.0)
        return Queries(mask, value)

    def _start(self, kind: str) -> Queries:
        """Return the lowest and highest combination of every large set, and ones in between."""
        sets = self.large(kind)
        n = max(2, min(STARTS, MOST_STARTS // max(len(sets), 1)))

        def unit(size: int) -> np.ndarray:
            inside = sobol(n - 1)(size)[1:] if n > 2 else np.zeros((0, size))
            return np.vstack([np.zeros(size), np.ones(size), inside])

        points = spread(self.problem.graph.nodes, sets, self.problem.domains, unit, n * len(sets))
        mask, value = np.asarray(points.mask), np.array(points.value)
        for column, values in enumerate(self.choices(kind)):  # the nearest choice of each
            if len(values) and mask[:, column].any():
                nearest = np.abs(value[:, column, None] - values).argmin(axis=1)
                value[:, column] = np.where(mask[:, column], values[nearest], 0.0)
        return Queries(mask, value)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of all variables' domains, (p,); equal where one keeps its value."""
        moving = {
            name: ends for name, ends in self.problem.domains.items() if name not in self.levels
        }
        pairs = np.array([moving.get(name, (0.0, 0.0)) for name in self.problem.graph.nodes])
        return pairs[:, 0], pairs[:, 1]


class Candidates(NamedTuple):
    """Interventions to choose from, what each costs, (M,), and the space in which they lie."""

    queries: Queries
    costs: np.ndarray
    space: Space


def find_candidates(post: Posterior, sets: tuple[tuple[str, ...], ...] | None = None) -> Candidates:
    """Return the interventions among which a posterior's problem is optimized.

    They are the vertices of all sets, and Sobol points where effects bend; of sets with too many
    vertices some. sets: those to choose from, by default all whose effects were learned.

    Raises
    ------
    DomainError
        If no intervention may be proposed.
    """
    space = find_space(post.problem, post.sets if sets is None else sets)
    suffice = post.belief.response.is_affine and space.has_corners
    kind = "ends" if suffice else "levels"
    parts = [space.listed(kind), space.first(kind)]
    parts += [] if suffice else [space.filling()]
    queries = stack([part.queries for part in parts])
    if not len(queries):
        raise DomainError(nothing_left(space))
    return Candidates(queries, np.concatenate([part.costs for part in parts]), space)


def find_space(problem: Problem, sets: tuple[tuple[str, ...], ...]) -> Space:
    """Return where interventions on some sets of a problem may lie."""
    is_cut, rule = len(problem.constraints) > 0, problem.feasible_rule
    return Space(
        problem,
        sets,
        problem.levels,
        vertices(problem, sets) if is_cut and rule is None else None,
        problem.feasible if is_cut or rule is not None else None,
    )


def nothing_left(space: Space) -> str:
    """Return why no intervention may be proposed, for a message."""
    if space.feasible is None:
        return "there is no intervention to choose from: no set has an effect that was learned"
    name = getattr(space.feasible, "__name__", repr(space.feasible))
    return (
        f"there is no intervention to choose from: `feasible`, {name}, leaves none of those of "
        f"{len(space.sets)} sets; check it with problem.vertices() and problem.sobol(64)"
    )
