"""Which values may the variables of a set take together, and which points fill that region?

The region of a set is its box, cut by the linear constraints that apply to it; variables with
levels take these alone. Points of a set are arrays (k, d) in the order of its members. Where a
function is convex in the values, its largest value over a region is attained at a vertex: at an
extreme point of the convex hull of the region.

A vertex of {u: 0 <= u <= 1, A u <= b} in c dimensions has c active constraints: k rows of A and
c - k coordinates at one of their ends, for some k. All such choices are tried; the k free
coordinates solve a k x k system. Points outside are dropped, up to a tolerance, and points that
several choices give are one vertex. The search is complete, and fast for a few variables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations, product
from math import comb, prod
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DomainError, ExplorationError, listed
from causal_bo_ppl.linalg import between
from causal_bo_ppl.problem.domains import Budget, LinearConstraint, are_levels, nearest_levels

EQUAL_COORDINATES = 1e-9  # of a side of the unit cube: coordinates nearer than this are equal
FAR_ENOUGH = 0.3  # of the farthest point's distance
WORST_CONDITION = 1e8  # of rows of unit length: planes that are more parallel have no vertex


def count_choices(ticks: Sequence[np.ndarray], rows: int) -> int:
    """Return how many systems are solved for coordinates with these ticks and so many rows."""
    sizes = [len(each) for each in ticks]
    return sum(
        comb(rows, active)
        * prod(sizes[position] for position in range(len(sizes)) if position not in free)
        for active in range(min(rows, len(sizes)) + 1)
        for free in combinations(range(len(sizes)), active)
    )


def cut_vertices(
    ticks: Sequence[np.ndarray], rows: np.ndarray, offsets: np.ndarray, slack: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of each slice in which c of the planes meet, if they are not cut off.

    Parameters
    ----------
    ticks: for each of the c coordinates the values in [0, 1] at which a plane stands across it, its
        ends 0 and 1 among them. Further values split the region into several.
    rows, offsets: A, of shape (h, c), and b for each of S slices, of shape (S, h). The slices are
        parallel cuts through a region of more dimensions.
    slack: by how much A u may exceed b, of shape (h,).

    Returns
    -------
    which: the slice of each of the V points, an array of shape (V,).
    points: their coordinates (V, c), ordered by the number of active rows; a point in which more
        than c planes meet comes more than once.
    """
    size, slices = rows.shape[1], len(offsets)
    which, points = [np.zeros(0, int)], [np.zeros((0, size))]
    for active in range(min(len(rows), size) + 1):
        for free in combinations(range(size), active):
            fixed = [position for position in range(size) if position not in free]
            corners = np.array(list(product(*(ticks[position] for position in fixed))))
            for chosen in combinations(range(len(rows)), active):
                matrix = rows[np.ix_(chosen, free)]
                if not _is_regular(matrix):
                    continue
                given = corners @ rows[np.ix_(chosen, fixed)].T
                count = slices * len(corners)
                right = (offsets[:, None, list(chosen)] - given).reshape(count, active)
                found = np.empty((count, size))
                found[:, fixed] = np.tile(corners, (slices, 1))
                found[:, list(free)] = np.linalg.solve(matrix, right.T).T if active else right
                own = np.repeat(np.arange(slices), len(corners))
                found = _snap(found, ticks)
                inside = ((found >= 0) & (found <= 1)).all(axis=1)
                inside &= (found @ rows.T <= offsets[own] + slack).all(axis=1)
                which.append(own[inside])
                points.append(found[inside])
    return np.concatenate(which), np.concatenate(points)


def _is_regular(matrix: np.ndarray) -> bool:
    """Return whether planes with these normals (k, k) meet in one point."""
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    if not (length > 0).all():
        return False
    return not len(matrix) or bool(np.linalg.cond(matrix / length) < WORST_CONDITION)


def _snap(points: np.ndarray, ticks: Sequence[np.ndarray]) -> np.ndarray:
    """Move coordinates that are rounded ticks to these ticks."""
    moved = points.copy()
    for position, own in enumerate(ticks):
        for tick in own.tolist():
            moved[np.abs(points[:, position] - tick) <= EQUAL_COORDINATES, position] = tick
    return moved


def first_of_each(points: np.ndarray) -> np.ndarray:
    """Return the indices of the different points of (V, c), in lexicographic order.

    Coordinates that differ by rounding are equal, so that neither the order nor the number of
    points hangs on last digits. Of equal points the first is taken.
    """
    ranks = np.zeros(points.shape, int)
    for position in range(points.shape[1]):
        order = np.argsort(points[:, position], kind="stable")
        steps = (
            np.diff(points[order, position], prepend=points[order[:1], position])
            > EQUAL_COORDINATES
        )
        ranks[order, position] = np.cumsum(steps)
    return np.asarray(np.unique(ranks, axis=0, return_index=True)[1])


def independent_points(points: np.ndarray) -> np.ndarray:
    """Return the indices of points of (V, d), the first among them, that span all affinely.

    They are at most d + 1: an affine function is determined on all of the points by its values at
    these.
    """
    width = np.ptp(points, axis=0)
    scaled = (points - points[0]) / np.where(width > 0, width, 1.0)
    chosen, left = [0], scaled
    for _ in range(points.shape[1]):
        lengths = np.linalg.norm(left, axis=1)
        if not lengths.max() > np.sqrt(EQUAL_COORDINATES):
            break
        # The first that is far enough out: no choice hangs on rounding.
        best = int(np.flatnonzero(lengths >= FAR_ENOUGH * lengths.max())[0])
        direction = left[best] / lengths[best]
        left = left - (left @ direction)[:, None] * direction
        chosen.append(best)
    return np.array(sorted(chosen))


Set = tuple[str, ...]
Keep = Callable[[np.ndarray], np.ndarray]  # from points (k, d) of a set to which may be used
MOST_CHOICES = 1_000_000  # of active constraints, for one set
# Sobol points that are tried for each one that is wanted, before vertices are mixed.
MOST_TRIALS_PER_POINT = 64
BOUND_ROUNDING = 4 * np.finfo(float).eps  # of a bound: a value beyond it by less is the bound


class Core(NamedTuple):
    """The constrained variables of a set, and all vertices of all slices of their region.

    A slice is the region where the variables with levels have certain values.
    names: (c,). which: the slice of each of the V vertices, in ascending order (V,). points: their
    values (V, c).
    """

    names: Set
    which: np.ndarray
    points: np.ndarray


@dataclass(frozen=True, eq=False)
class Region:
    """The values that interventions may set.

    nodes: all variables, in the order of the graph. domains: {variable: (low, high)}. levels:
    {variable: its levels}, where it has some. constraints: on values that are set together.
    """

    nodes: tuple[str, ...]
    domains: Mapping[str, tuple[float, float]]
    levels: Mapping[str, tuple[float, ...]]
    constraints: tuple[LinearConstraint, ...]
    _cores: dict[tuple[object, ...], Core] = field(default_factory=dict, repr=False)

    @property
    def is_box(self) -> bool:
        """Whether every value between the bounds may be set with any others."""
        return not self.levels and not self.constraints

    @cached_property
    def budgets(self) -> tuple[Budget, ...]:
        """The constraints as arrays over the nodes."""
        return tuple(Budget.read(each, self.nodes, self.domains) for each in self.constraints)

    @cached_property
    def all_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lows and highs of all variables, (p,) each; NaN for those that are not manipulable."""
        unknown = (np.nan, np.nan)
        low, high = np.array([self.domains.get(name, unknown) for name in self.nodes]).T
        return low, high

    def applying(self, members: Set) -> tuple[LinearConstraint, ...]:
        """Return the constraints to which interventions on this set are subject."""
        return tuple(each for each in self.constraints if each.applies(members))

    def is_plain(self, members: Set) -> bool:
        """Return whether every value in the box of this set may be set."""
        return not self.applying(members) and not any(name in self.levels for name in members)

    def bounds(self, members: Set) -> tuple[np.ndarray, np.ndarray]:
        """Return the lows and the highs of the variables of a set, two arrays of shape (d,)."""
        low, high = np.array([self.domains[name] for name in members]).reshape(-1, 2).T
        return low, high

    def find_off_levels(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return which values of (M, p) are set to something that is none of their levels."""
        off = np.zeros(mask.shape, bool)
        for name, levels in self.levels.items():
            column = self.nodes.index(name)
            off[:, column] = mask[:, column] & ~are_levels(value[:, column], levels)
        return off

    def snap(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the values (M, p), moved onto levels and bounds that they equal up to rounding."""
        moved, (low, high) = value, self.all_bounds
        few = BOUND_ROUNDING * np.maximum(np.abs(low), np.abs(high))
        # Comparisons with NaN are false: what is not manipulable stays.
        above, below = mask & (value > high), mask & (value < low)
        if above.any() or below.any():
            moved = np.where(above & (value <= high + few), high, value)
            moved = np.where(below & (value >= low - few), low, moved)
        for name, levels in self.levels.items():
            column = self.nodes.index(name)
            values = moved[:, column]
            near = mask[:, column] & are_levels(values, levels)
            exact = np.where(near, nearest_levels(values, levels), values)
            if not np.array_equal(exact, values, equal_nan=True):
                moved = moved.copy()
                moved[:, column] = exact
        return moved

    def find_kept(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return which interventions keep each of the m constraints, of shape (M, m)."""
        finite = np.where(np.isfinite(value), value, 0.0)
        kept = [budget.is_kept(mask, finite) for budget in self.budgets]
        return np.stack(kept, axis=1) if kept else np.ones((len(mask), 0), bool)

    def contains(self, members: Set, points: np.ndarray) -> np.ndarray:
        """Return which points (k, d) of a set, in its box and at levels, keep all constraints."""
        columns = [self.nodes.index(name) for name in members]
        mask, value = (np.zeros((len(points), len(self.nodes)), kind) for kind in (bool, float))
        mask[:, columns], value[:, columns] = True, points
        return np.asarray(self.find_kept(mask, value).all(axis=1))

    def position(self, members: Set, cube: np.ndarray) -> np.ndarray:
        """Map points of the unit cube (k, d) into the box of a set.

        For a variable with n levels [0, 1] is cut into n equal intervals, one for each level.
        """
        values = between(*self.bounds(members), cube)
        for position, name in enumerate(members):
            if name in self.levels:
                levels = np.asarray(self.levels[name])
                chosen = (cube[:, position] * len(levels)).astype(int)
                values[:, position] = levels[np.minimum(chosen, len(levels) - 1)]
        return values

    def ticks(self, name: str, n: int) -> np.ndarray:
        """Return n evenly spaced values of a variable; all of its levels, or n of them."""
        if name in self.levels:
            levels = np.asarray(self.levels[name])
            positions = np.linspace(0, len(levels) - 1, min(n, len(levels))).round().astype(int)
            return np.asarray(levels[positions])
        low, high = self.domains[name]
        return between(np.array(low), np.array(high), np.linspace(0, 1, n))

    def count_grid(self, members: Set, n: int) -> int:
        """Return how many points `grid` looks at."""
        return prod(min(n, len(self.levels.get(name, range(n)))) for name in members)

    def grid(self, members: Set, n: int) -> np.ndarray:
        """Return the points of a grid of n ticks per variable that keep all constraints."""
        points = np.array(list(product(*(self.ticks(name, n) for name in members))))
        return np.asarray(points[self.contains(members, points)])

    def require_feasible(self, members: Set) -> None:
        """Refuse a set of which no values keep the constraints; name those that rule them out."""
        applying = self.applying(members)
        if not applying or len(self._core(members, applying, False).points):
            return
        alone = [each for each in applying if not len(self._core(members, (each,), False).points)]
        which = " and ".join(f"({each})" for each in alone or applying)
        what = "constraint" if len(alone or applying) == 1 else "constraints"
        named = dict.fromkeys(name for each in alone or applying for name in each.coefficients)
        free = [name for name in named if name not in members]
        note = f" ({listed(free)} not set, so not part of the sum)" if free else ""
        raise DomainError(
            f"no values of {{{listed(members)}}} in their domains keep the {what} {which}{note}; "
            'relax it, widen the domains, name the sets without this one, or give it when="all"'
        )

    def count_vertices(self, members: Set, kinks: bool = False) -> int:
        """Return how many vertices the region of a set has."""
        core = self._core(members, self.applying(members), kinks)
        sizes = [len(self._ends(name, kinks)) for name in members if name not in core.names]
        return len(_extremes(self, core, kinks)) * prod(sizes)

    def vertices(self, members: Set, kinks: bool = False) -> np.ndarray:
        """Return the vertices of the region of a set in lexicographic order, (V, d).

        Where variables with levels are constrained, some points between vertices may be among them.
        With `kinks` they are the vertices of the parts into which the planes x_i = 0 cut the
        region: the best of them maximizes any function that is convex where no sign changes.
        """
        core = self._core(members, self.applying(members), kinks)
        rest = tuple(name for name in members if name not in core.names)
        corners = np.array(list(product(*(self._ends(name, kinks) for name in rest))))
        inner = _extremes(self, core, kinks)
        joined = np.hstack(
            [np.repeat(inner, len(corners), axis=0), np.tile(corners, (len(inner), 1))]
        )
        points = joined[:, [(*core.names, *rest).index(name) for name in members]]
        low, high = self.bounds(members)
        return np.asarray(points[first_of_each((points - low) / (high - low))])

    def anchors(self, members: Set) -> np.ndarray:
        """Return vertices that determine a function affine in the values on the whole region."""
        points = self.vertices(members)
        return np.asarray(points[independent_points(points)])

    def fill(self, members: Set, n: int, keep: Keep | None = None) -> np.ndarray:
        """Return n points that fill the region of a set; nothing in them is random.

        They are the first points of the Sobol sequence that keep the constraints, and that `keep`
        accepts. Where these are too rare, as for a region that is thin or flat, the rest are
        mixtures of vertices with Sobol weights. Fewer than n are returned only where `keep` rejects
        too many.
        """
        found = np.zeros((0, len(members)))
        for points in self._trials(members, n, keep is not None):
            kept = points[self.contains(members, points)]
            found = np.concatenate([found, kept if keep is None else kept[keep(kept)]])
            if len(found) >= n:
                break
        return found[:n]

    def _trials(self, members: Set, n: int, is_picky: bool) -> Iterator[np.ndarray]:
        """Give blocks of points of the box, then of mixtures of vertices."""
        bits = max(n - 1, 0).bit_length()
        yield self.position(members, sobol_points(len(members), bits)[:n])
        applying = self.applying(members)
        if applying or is_picky:
            more = sobol_points(len(members), bits + MOST_TRIALS_PER_POINT.bit_length() - 1)[n:]
            for start in range(0, len(more), max(n, 1024)):
                yield self.position(members, more[start : start + max(n, 1024)])
        if applying:
            yield self._mix(members, n * (MOST_TRIALS_PER_POINT if is_picky else 1))

    def _mix(self, members: Set, n: int) -> np.ndarray:
        """Return n mixtures of vertices, in each of them d + 1 vertices of one slice."""
        core = self._core(members, self.applying(members), False)
        rest = tuple(name for name in members if name not in core.names)
        parts = len(core.names) + 1
        cube = sobol_points(1 + 2 * parts + len(rest), (n + 1).bit_length())[1 : n + 1]
        _, first, counts = np.unique(core.which, return_index=True, return_counts=True)
        chosen = (cube[:, 0] * len(first)).astype(int)
        rows = (cube[:, 1 : 1 + parts] * counts[chosen][:, None]).astype(int)
        rows += first[chosen][:, None]
        weights = -np.log1p(-cube[:, 1 + parts : 1 + 2 * parts])  # positive: 0 is skipped above
        weights /= weights.sum(axis=1, keepdims=True)
        inner = (weights[:, :, None] * core.points[rows]).sum(axis=1)
        inner = np.clip(inner, *self.bounds(core.names))
        for position, name in enumerate(core.names):
            if name in self.levels:
                inner[:, position] = nearest_levels(inner[:, position], self.levels[name])
        joined = np.hstack([inner, self.position(rest, cube[:, 1 + 2 * parts :])])
        return joined[:, [(*core.names, *rest).index(name) for name in members]]

    def _ends(self, name: str, kinks: bool) -> np.ndarray:
        """Return the values of a variable at which a function convex in it may be largest."""
        low, high = self.domains[name]
        levels = np.asarray(self.levels.get(name, (low, 0.0, high)))
        inside = levels[(levels > low) & (levels < high)]
        around = np.concatenate([inside[inside <= 0][-1:], inside[inside >= 0][:1]])
        return np.unique(np.concatenate([[low], around, [high]]) if kinks else [low, high])

    def _core(self, members: Set, constraints: tuple[LinearConstraint, ...], kinks: bool) -> Core:
        """Return the vertices of all slices of the region of a set's constrained variables."""
        named = {name for each in constraints for name in each.coefficients}
        names = tuple(name for name in members if name in named)
        key = (names, constraints, kinks)
        if not names:
            return Core((), np.zeros(1, int), np.zeros((1, 0)))
        if key not in self._cores:
            self._cores[key] = self._find_core(names, constraints, kinks)
        return self._cores[key]

    def _find_core(
        self, names: Set, constraints: tuple[LinearConstraint, ...], kinks: bool
    ) -> Core:
        low, high = self.bounds(names)
        width = high - low
        steps = [position for position, name in enumerate(names) if name in self.levels]
        smooth = [position for position in range(len(names)) if position not in steps]
        ticks = [
            (self._ends(names[position], kinks) - low[position]) / width[position]
            for position in smooth
        ]
        rows, bounds, slack = self._half_spaces(names, constraints)
        slices = prod(len(self.levels[names[position]]) for position in steps)
        choices = slices * count_choices(ticks, len(rows))
        if choices > MOST_CHOICES:
            raise ExplorationError(
                f"the constraints on {{{listed(names)}}} may meet in {choices:,} points, more than "
                f"{MOST_CHOICES:,}; constrain or set fewer variables, or give fewer levels"
            )
        given = np.array(list(product(*(self.levels[names[position]] for position in steps))))
        shares = (given - low[steps]) / width[steps]
        which, points = cut_vertices(
            ticks, rows[:, smooth], bounds - shares @ rows[:, steps].T, slack
        )
        values = np.zeros((len(points), len(names)))
        values[:, steps] = given[which]
        values[:, smooth] = between(low[smooth], high[smooth], points)
        for column, position in enumerate(smooth):  # ends, and 0, to the last bit
            for end, tick in zip(self._ends(names[position], kinks), ticks[column], strict=True):
                values[points[:, column] == tick, position] = end
        order = np.lexsort((np.arange(len(which)), which))
        which, values = which[order], values[order]
        first = np.sort(first_of_each((values - low) / width))
        return Core(names, which[first], values[first])

    def _half_spaces(
        self, names: Set, constraints: tuple[LinearConstraint, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return A, b and slack of {u: A u <= b + slack} in the unit cube, rows of length about 1.

        The slack is half of what `contains` allows, so that every vertex passes there.
        """
        low, high = self.bounds(names)
        rows, bounds, slacks = [], [], []
        for each in constraints:
            budget = Budget.read(each, names, self.domains)
            everything = np.ones((1, len(names)), bool)
            [start], [slack] = budget.sums(everything, low[None]), budget.slack(everything)
            slope = budget.coefficients * (high - low)
            size = np.abs(slope).sum()
            for sign, bound in ((1.0, each.upper), (-1.0, each.lower)):
                if bound is not None:
                    rows.append(sign * slope / size)
                    bounds.append(sign * (bound - start) / size)
                    slacks.append(0.5 * slack / size)
        shape = (len(rows), len(names))
        return np.reshape(rows, shape), np.array(bounds), np.array(slacks)


def _extremes(region: Region, core: Core, kinks: bool) -> np.ndarray:
    """Return the vertices of all slices but those that lie between two others of the region.

    A point is dropped where the next lower and the next higher level of one variable are feasible
    too, everything else being the same, since no function that is convex there is larger at it.
    """
    points = core.points
    is_between = np.zeros(len(points), bool)
    for position, name in enumerate(core.names):
        levels = np.asarray(region.levels.get(name, ()))
        if not len(levels):
            continue
        rank = np.searchsorted(levels, points[:, position])
        inner = ~np.isin(points[:, position], region._ends(name, kinks))
        for step in (-1, 1):
            moved = points.copy()
            moved[:, position] = levels[np.clip(rank + step, 0, len(levels) - 1)]
            inner &= region.contains(core.names, moved)
        is_between |= inner
    return points[~is_between]


@lru_cache(maxsize=32)
def sobol_points(size: int, bits: int) -> np.ndarray:
    """Return the first 2^bits points of the unscrambled Sobol sequence, (2^bits, size)."""
    from scipy.stats import qmc

    points = np.zeros((2**bits, size))
    if size:
        points = np.asarray(qmc.Sobol(size, scramble=False).random_base2(bits))
    points.flags.writeable = False  # shared by all that ask for them
    return points
