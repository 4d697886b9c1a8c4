"""Where may a search look? Some sets of a problem, with some variables held at values.

All that a `Space` allows keeps bounds, levels and inequalities exactly, not only up to the
tolerance that a problem grants to values which are read from files. Its designs are made once and
kept: vertices, combinations of levels, corners, and Sobol points in the boxes. Sets with too many
combinations are not enumerated; some starts stand for them.

Where variables are held, only sets that contain them are searched, and the designs are those of the
other variables: the vertices of the polytope that the held values leave, not those of the whole one
that happen to have these values.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from causal_bo_ppl.errors import DomainError, listed, unknown
from causal_bo_ppl.inputs import read_number
from causal_bo_ppl.problem.designs import (
    Held,
    fill_points,
    held_sum,
    keeps_exactly,
    make_exact,
    restrict,
    sobol,
    vertices,
)
from causal_bo_ppl.problem.domains import Budget, nearest_levels, show_levels
from causal_bo_ppl.problem.interventions import (
    Queries,
    are_of_sets,
    place_points,
    spread,
    stack,
)
from causal_bo_ppl.problem.regions import Region, Set

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


MOST_LISTED = 2**14  # combinations of all sets together that are enumerated
SOBOL_POINTS, MOST_SOBOL_POINTS, FEWEST_SOBOL_POINTS = 64, 4_096, 8  # of a set, of all, of a set
STARTS, MOST_STARTS = 32, 2**15  # of a set that is too large to be enumerated, of all such sets


class Candidates(NamedTuple):
    """Interventions to choose from, what each costs, (M,), and the space in which they lie."""

    queries: Queries
    costs: np.ndarray
    space: "Space"


@dataclass(frozen=True, eq=False)
class Space:
    """Where interventions may lie, and their designs, which are kept.

    Attributes
    ----------
    problem, sets:
        The problem and the sets of it whose effects were learned.
    fixed:
        {variable: value} of variables that are held; every set contains them. See `hold`.
    """

    problem: "Problem"
    sets: tuple[Set, ...]
    fixed: Held = field(default_factory=dict)
    _kept: dict[object, Candidates] = field(default_factory=dict, init=False, repr=False)

    def hold(self, fixed: Held) -> "Space":
        """Return the space in which some variables are held at values, exactly.

        Raises
        ------
        DomainError
            If no intervention is left: a value lies outside its domain or is no level, no set
            contains all of the variables, or the constraints or the user-defined function leave
            nothing.
        """
        held = _read_held(self.problem, {**self.fixed, **fixed})
        sets = tuple(members for members in self.sets if held.keys() <= set(members))
        if not sets:
            raise DomainError(
                f"{show_held(held)} cannot be held: none of the {len(self.sets):,} sets to choose "
                f"from contains {{{listed(held)}}}; hold fewer variables, or add such a set"
            )
        space = Space(self.problem, sets, held)
        if not any(len(part.queries) for part in space._designs(at_vertices=False)):
            raise DomainError(_why_nothing_is_left(space))
        return space

    @property
    def has_corners(self) -> bool:
        """Whether the vertices of every set are known, so that they may suffice."""
        return self.problem.feasible_rule is None

    @property
    def is_cut(self) -> bool:
        """Whether linear constraints cut the boxes of some sets."""
        return bool(self.problem.constraints)

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries are feasible, up to the tolerance of the problem, (M,)."""
        if (not self.is_cut and self.has_corners) or not len(queries):
            return np.ones(len(queries), bool)
        return self.problem.feasible(queries)

    def select(self, queries: Queries) -> Queries:
        """Return the queries of sets that may be proposed, which are allowed exactly."""
        problem = self.problem
        is_kept = are_of_sets(queries, self.sets, problem.graph.nodes)
        for name, number in self.fixed.items():
            is_kept &= np.asarray(queries.value)[:, problem.graph.index(name)] == number
        kept = queries[is_kept]
        kept = kept[keeps_exactly(problem, kept)]
        return kept[self.allows(kept)]

    def make_exact(self, queries: Queries) -> Queries:
        """Return the queries, moved inside where they break constraints by the tolerance."""
        return make_exact(self.problem, queries, self.fixed) if self.is_cut else queries

    def is_exact(self, queries: Queries) -> np.ndarray:
        """Return which queries keep all constraints exactly, (M,), or are of a set where none does.

        Where levels or constraints leave nothing that float64 holds exactly, the tolerance of the
        problem is all that can be asked for.
        """
        if not self.is_cut:
            return np.ones(len(queries), bool)
        kept = keeps_exactly(self.problem, queries)
        if not kept.all() and self._inexact_sets:
            mask = np.asarray(queries.mask)
            kept |= np.array([row.tobytes() in self._inexact_sets for row in mask], bool)
        return kept

    @cached_property
    def _inexact_sets(self) -> frozenset[bytes]:
        """The masks of the sets in which no vertex keeps the constraints exactly."""
        found = set()
        for members in self.sets:
            count = self._free_region.count_vertices(self._free(members))
            if self.problem.region.applying(members) and count <= MOST_LISTED:
                points = self._set_vertices(members)
                if len(points) and not keeps_exactly(self.problem, points).any():
                    found.add(np.asarray(points.mask)[0].tobytes())
        return frozenset(found)

    @property
    def has_vertices(self) -> bool:
        """Whether the constraints leave something of some set, whatever the function rejects."""
        return any(self._free_region.count_vertices(self._free(each)) for each in self.sets)

    def values(self, name: str, kind: str) -> tuple[float, ...]:
        """Return the values of a variable: its "ends", those and 0 ("cut"), or all its "levels".

        A variable without levels has its ends in their place, and one that is held its value.
        """
        if name in self.fixed:
            return (self.fixed[name],)
        levels, (low, high) = self.problem.region.levels, self.problem.region.domains[name]
        if name in levels and kind != "ends":
            return levels[name]
        cut = (0.0,) if kind == "cut" and low < 0 < high else ()
        return (low, *cut, high)

    def choices(self, kind: str, names: Collection[str] | None = None) -> list[np.ndarray]:
        """Return the values of some variables, by column; none of the others.

        names: of the variables, by default all that are manipulable.
        """
        names = self.problem.manipulable if names is None else names
        return [
            np.array(self.values(name, kind) if name in names else (), float)
            for name in self.problem.graph.nodes
        ]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of all variables' domains, (p,); equal where one keeps its value."""
        region = self.problem.region
        stays = {*region.levels, *self.fixed}
        moving = {name: ends for name, ends in region.domains.items() if name not in stays}
        pairs = np.array([moving.get(name, (0.0, 0.0)) for name in region.nodes])
        return pairs[:, 0], pairs[:, 1]

    def candidates(self, *, at_vertices: bool) -> Candidates:
        """Return the interventions to choose from; at_vertices: whether vertices suffice.

        They are the vertices of all sets, and Sobol points where vertices do not suffice; of sets
        with too many vertices some.

        Raises
        ------
        DomainError
            If no intervention may be proposed.
        """
        parts = self._designs(at_vertices=at_vertices and self.has_corners)
        queries = stack([part.queries for part in parts])
        if not len(queries):
            raise DomainError(self.nothing_left())
        return Candidates(queries, np.concatenate([part.costs for part in parts]), self)

    def _designs(self, *, at_vertices: bool) -> list[Candidates]:
        kind = "ends" if at_vertices else "levels"
        filling = [] if at_vertices else [self.filling()]
        return [self.listed(kind), self.first(kind), *filling]

    def nothing_left(self) -> str:
        """Return why no intervention may be proposed, for a message."""
        if not self.is_cut and self.has_corners:
            return "there is no intervention to choose from: no set has an effect that was learned"
        return (
            "there is no intervention to choose from: `feasible` leaves none of those of "
            f"{len(self.sets)} sets; check it with problem.vertices() and problem.sobol(64)"
        )

    def listed(self, kind: str) -> Candidates:
        """Return all combinations of every set that has not too many, with their costs.

        Small sets come first until there are as many as can be enumerated; see `large`. Where
        linear constraints cut the boxes, their vertices stand for the combinations.
        """
        return self._keep(("listed", kind), lambda: self._list(kind))

    def large(self, kind: str) -> tuple[Set, ...]:
        """Return the sets that have too many combinations to be enumerated."""
        if self.is_cut and self.has_corners:
            return ()
        sizes = [
            min(float(np.prod([float(len(self.values(name, kind))) for name in members])), 1e18)
            for members in self.sets
        ]
        totals = zip(self.sets, np.cumsum(sizes), strict=True)
        return tuple(members for members, total in totals if total > MOST_LISTED)

    def filling(self) -> Candidates:
        """Return Sobol points of every set, at levels where there are levels, with their costs."""
        return self._keep("filling", self._fill)

    def first(self, kind: str) -> Candidates:
        """Return starts for the sets that are too large to be enumerated, with their costs."""
        return self._keep(("first", kind), lambda: self._start(kind))

    def _keep(self, what: object, make: Callable[[], Queries]) -> Candidates:
        if what not in self._kept:
            queries = make()
            queries = queries[self.allows(queries) & self.is_exact(queries)]
            self._kept[what] = Candidates(queries, self.problem.cost(queries), self)
        return self._kept[what]

    def _list(self, kind: str) -> Queries:
        if self.is_cut and self.has_corners:
            return self._cut_vertices()
        large, parts = set(self.large(kind)), []
        for members in (members for members in self.sets if members not in large):
            values = product(*(self.values(name, kind) for name in members))
            parts.append((members, np.array(list(values), float)))
        return place_points(self.problem.graph.nodes, parts)

    @cached_property
    def _free_region(self) -> Region:
        return restrict(self.problem.region, self.fixed)

    def _place(self, members: Set, points: np.ndarray) -> Queries:
        """Return points (k, c) of the variables of a set that are not held, with those held."""
        whole = np.empty((len(points), len(members)))
        free = [name not in self.fixed for name in members]
        whole[:, free] = points
        for position, name in enumerate(members):
            if name in self.fixed:
                whole[:, position] = self.fixed[name]
        return place_points(self.problem.graph.nodes, [(members, whole)])

    def _free(self, members: Set) -> Set:
        return tuple(name for name in members if name not in self.fixed)

    def _set_vertices(self, members: Set) -> Queries:
        """Return the vertices of one set, moved inside where they are rounded."""
        return self.make_exact(
            self._place(members, self._free_region.vertices(self._free(members)))
        )

    def _cut_vertices(self) -> Queries:
        """Return the vertices of all sets; next levels stand for those that are not exact."""
        if self.fixed:
            points = stack(self._set_vertices(members) for members in self.sets)
        else:
            points = vertices(self.problem, self.sets)
        beside = self._next_levels(points)
        if not len(beside):
            return points
        nodes, both = self.problem.graph.nodes, stack([points, beside])
        masks = [np.array([name in members for name in nodes]).tobytes() for members in self.sets]
        owners = [masks.index(mask.tobytes()) for mask in np.asarray(both.mask)]
        return both[np.argsort(owners, kind="stable")]

    def _next_levels(self, points: Queries) -> Queries:
        """Return what lies next to vertices that break a constraint by rounding, level by level.

        A vertex whose variables have levels cannot be moved inside. Those beside it, which it hid
        as they lie between vertices, are then the extreme ones.
        """
        region, mask, found = self.problem.region, np.asarray(points.mask), [points[:0]]
        steps = [name for name in region.levels if name not in self.fixed]
        wrong = ~self.is_exact(points)
        while steps and wrong.any():
            value, near = np.asarray(points.value)[wrong], []
            for name, step in product(steps, (-1, 1)):
                column, levels = region.nodes.index(name), np.array(region.levels[name])
                rank = np.searchsorted(levels, value[:, column]) + step
                inside = mask[wrong][:, column] & (rank >= 0) & (rank < len(levels))
                moved = value[inside]
                moved[:, column] = levels[rank[inside]]
                near.append(Queries(mask[wrong][inside], moved))
            points = stack(near)
            points = points[self.problem.feasible(points)]
            points = points[np.unique(np.asarray(points.value), axis=0, return_index=True)[1]]
            points = self.make_exact(points)
            found.append(points)
            mask, wrong = np.asarray(points.mask), ~self.is_exact(points)
        return stack(found)

    def _fill(self) -> Queries:
        n = min(SOBOL_POINTS, MOST_SOBOL_POINTS // max(len(self.sets), 1))
        n = max(FEWEST_SOBOL_POINTS, n)
        if self.fixed:
            return self.make_exact(stack(self._fill_held(members, n) for members in self.sets))
        if not self.problem.is_box:
            return self.make_exact(fill_points(self.problem, self.sets, n))
        unit = sobol(n + 1)  # the first point is a corner
        nodes, domains = self.problem.graph.nodes, self.problem.domains
        return spread(nodes, self.sets, domains, lambda size: unit(size)[1:], n * len(self.sets))

    def _fill_held(self, members: Set, n: int) -> Queries:
        """Return n Sobol points of what is not held in a set; none where everything is."""
        free, region = self._free(members), self._free_region
        if not free or not region.count_vertices(free):
            return place_points(self.problem.graph.nodes, [])

        def keep(points: np.ndarray) -> np.ndarray:
            return self.problem.feasible(self._place(members, points))

        return self._place(members, region.fill(free, n, keep))

    def _start(self, kind: str) -> Queries:
        """Return the lowest and highest combination of every large set, and ones in between."""
        sets = self.large(kind)
        n = max(2, min(STARTS, MOST_STARTS // max(len(sets), 1)))

        def unit(size: int) -> np.ndarray:
            inside = sobol(n - 1)(size)[1:] if n > 2 else np.zeros((0, size))
            return np.vstack([np.zeros(size), np.ones(size), inside])

        points = spread(self.problem.graph.nodes, sets, self.problem.domains, unit, n * len(sets))
        return _nearest(points, self.choices(kind))


def _nearest(queries: Queries, choices: Sequence[np.ndarray]) -> Queries:
    """Return the queries with every variable at the nearest of its choices, where it has some."""
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    for column, values in enumerate(choices):
        if len(values):
            nearest = np.abs(value[:, column, None] - values).argmin(axis=1)
            value[:, column] = np.where(mask[:, column], values[nearest], 0.0)
    return Queries(mask, value)


def show_held(held: Held) -> str:
    """Return held values as a text."""
    return ", ".join(f"{name} = {value:.15g}" for name, value in held.items())


def _read_held(problem: "Problem", given: Held) -> dict[str, float]:
    """Return the values that are held, in the order of the graph; refuse illegal ones."""
    region, held = problem.region, {}
    for name in given:
        if name not in region.domains:
            raise DomainError(unknown("manipulable variable", name, region.domains))
    for name in (name for name in region.nodes if name in given):
        number, (low, high) = read_number(name, given[name]), region.domains[name]
        column = np.array([[each == name for each in region.nodes]])
        number = float(region.snap(column, np.where(column, number, 0.0))[column][0])
        if not low <= number <= high:
            raise DomainError(
                f"{name} = {number:.15g} cannot be held: it lies outside [{low:.15g}, {high:.15g}];"
                " hold another value, or widen the domain in the problem"
            )
        levels = region.levels.get(name)
        if levels is not None and number not in levels:
            [near] = nearest_levels(np.array([number]), levels)
            raise DomainError(
                f"{name} = {number:.15g} cannot be held: it is none of the levels "
                f"{show_levels(levels)}; the nearest is {near:.15g}"
            )
        held[name] = number
    return held


def _why_nothing_is_left(space: Space) -> str:
    """Return why held values leave no intervention: a constraint, several, or the function."""
    problem, start = space.problem, f"{show_held(space.fixed)} cannot be held"
    broken = [
        [text for budget in problem.region.budgets if (text := _broken_sum(space, members, budget))]
        for members in space.sets
    ]
    if all(broken):
        return f"{start}: {broken[0][0]}; hold other values, or relax the constraint"
    if space.has_corners or not space.has_vertices:
        applying = (each for members in space.sets for each in problem.region.applying(members))
        return (
            f"{start}: no values of the other variables keep the constraints "
            f"({'; '.join(map(str, dict.fromkeys(applying)))}); hold other values, or relax them"
        )
    return (
        f"{start}: the function `feasible` rejects all interventions with it that were tried; hold "
        "other values"
    )


def _broken_sum(space: Space, members: Set, budget: Budget) -> str:
    """Return how held values break a constraint in a set, whatever the others; "" if they do not.

    The others take those values of their domains that come nearest.
    """
    region, held, constraint = space.problem.region, space.fixed, budget.constraint
    if not constraint.applies(members):
        return ""
    ends = [
        sorted(slope * end for end in region.domains[name])
        for name, slope in constraint.coefficients.items()
        if name in members and name not in held
    ]
    known = held_sum(constraint, held)
    least, largest = (known + math.fsum(each[side] for each in ends) for side in (0, 1))
    [slack] = budget.slack(np.array([[name in members for name in region.nodes]]))
    if constraint.upper is not None and least > constraint.upper + slack:
        reach = f"at least {least:.15g}"
    elif constraint.lower is not None and largest < constraint.lower - slack:
        reach = f"at most {largest:.15g}"
    else:
        return ""
    others = f"{known:.15g} by it, and {reach} with the others in their domains"
    return f"the sum of the constraint {constraint} is {others if ends else f'{known:.15g}'}"
