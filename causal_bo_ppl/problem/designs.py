"""Which interventions are candidates? Grids, Sobol points and vertices of all sets at once.

Vertices are the default where no intervention is named. Designs hold only interventions that the
problem allows: values at levels, within constraints, and accepted by the user-defined function.

The vertices of a polytope solve equations, so that they miss their planes by the last digits:
`make_exact` moves them inside by as little, until they keep all inequalities in float64, in
whichever order a sum is computed. A sum that is fixed is met to the last digit where float64 has
such numbers, otherwise up to the tolerance of the problem.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import DomainError, ExplorationError, listed
from causal_bo_ppl.problem.domains import Budget, LinearConstraint
from causal_bo_ppl.problem.interventions import (
    Queries,
    Unit,
    distinct_rows,
    named,
    place_points,
    require_few,
    spread,
    stack,
)
from causal_bo_ppl.problem.regions import (
    Region,
    Set,
    independent_points,
    sobol_points,
)

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


POINTS_PER_SET = 129  # where vertices do not suffice
MOST_DEFAULT_VERTICES, MOST_ANCHORS = 256, 4_096  # where no query is named
Held = Mapping[str, float]  # variables that are held at values, and these


def lattice(n: int) -> Unit:
    """Return the design of a regular grid of n points per variable, ends included."""
    ticks = np.linspace(0, 1, n)
    return lambda size: np.array(list(product(ticks, repeat=size)))


def sobol(n: int) -> Unit:
    """Return the design of the first n points of the Sobol sequence, unscrambled.

    Nothing in it is random: the points are the same everywhere.
    """
    return lambda size: sobol_points(size, max(n - 1, 0).bit_length())[:n]


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
    `Region.vertices`. All keep the constraints exactly, as far as float64 can.
    """
    region = problem.region
    if not problem.is_box or kinks:
        count = sum(region.count_vertices(members, kinks) for members in sets)
        return _gather(
            problem, sets, lambda members: _corners(problem, members, kinks), count, "vertices"
        )
    count = sum(2 ** len(members) for members in sets)
    return spread(problem.graph.nodes, sets, problem.domains, lattice(2), count)


def _corners(problem: "Problem", members: Set, kinks: bool = False) -> np.ndarray:
    """Return the vertices (V, d) of the region of one set, moved inside where they are rounded."""
    points = problem.region.vertices(members, kinks)
    if not problem.region.applying(members):
        return points
    exact = make_exact(problem, place_points(problem.graph.nodes, [(members, points)]))
    return np.asarray(exact.value)[:, [problem.graph.index(name) for name in members]]


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
        return np.concatenate([_corners(problem, members), fill_set(problem, members, n)])

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


MARGIN_DOUBLINGS = 16  # of the distance to a plane, from the last digit of a sum on
SWEEPS_PER_MARGIN = 3  # over all constraints
LARGEST_ULPS = 8  # by which a value is changed so that a sum is met to the last digit
FEW_ULPS, MOST_CHANGED = 4, 3  # by which several values are changed at once, and how many
FLOAT_ROUNDING = float(np.finfo(float).eps)


def keeps_exactly(problem: "Problem", queries: Queries) -> np.ndarray:
    """Return which interventions keep bounds, levels and inequalities without tolerance, (M,).

    A sum keeps its bounds if it does so in whichever order it is computed, and correctly rounded.
    """
    mask, value, region = np.asarray(queries.mask), np.asarray(queries.value), problem.region
    low, high = region.all_bounds
    kept = np.asarray((~mask | ((value >= low) & (value <= high))).all(axis=1))
    for name, levels in region.levels.items():
        column = region.nodes.index(name)
        kept &= ~mask[:, column] | np.isin(value[:, column], levels)
    for budget in region.budgets:
        if budget.constraint.lower != budget.constraint.upper:
            kept &= _keeps_sum(region, budget, mask, value)
    return kept


def _applies(budget: Budget, mask: np.ndarray) -> np.ndarray:
    is_set = mask[:, budget.coefficients != 0]
    rule = np.any if budget.constraint.when == "any" else np.all
    return np.asarray(rule(is_set, axis=1))


def _keeps_sum(region: Region, budget: Budget, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return which interventions (M,) keep a constraint without tolerance, or are not subject."""
    lower, upper = budget.constraint.lower, budget.constraint.upper
    lower, upper = -np.inf if lower is None else lower, np.inf if upper is None else upper
    terms = np.where(mask, budget.coefficients * value, 0.0)
    sums = terms.sum(axis=1)
    rounding = terms.shape[1] * FLOAT_ROUNDING * np.abs(terms).sum(axis=1)
    kept = (sums - rounding >= lower) & (sums + rounding <= upper)
    is_near = ~kept & (sums + rounding >= lower) & (sums - rounding <= upper)
    applies = _applies(budget, mask)
    for row in np.flatnonzero(is_near & applies).tolist():
        totals = _all_sums(region, budget, mask[row], value[row])
        kept[row] = lower <= min(totals) and max(totals) <= upper
    return np.asarray(~applies | kept)


def _all_sums(
    region: Region, budget: Budget, mask: np.ndarray, value: np.ndarray
) -> tuple[float, ...]:
    """Return the sum of one intervention, (p,), as several ways of adding its terms round it."""
    named_columns = [region.nodes.index(name) for name in budget.constraint.coefficients]
    columns = [column for column in named_columns if mask[column]]
    slopes, numbers = budget.coefficients[columns], value[columns]
    terms = (slopes * numbers).tolist()
    in_order = [terms[position] for position in np.argsort(columns)]
    whole = np.where(mask, budget.coefficients * value, 0.0)
    sums = (math.fsum(terms), sum(terms), sum(in_order), sum(reversed(in_order)))
    return (*sums, float(np.dot(slopes, numbers)), float(whole.sum()))


def make_exact(problem: "Problem", queries: Queries, fixed: Collection[str] = ()) -> Queries:
    """Return the batch, in which what breaks a constraint by rounding is moved inside.

    Nothing that keeps all constraints exactly moves, and no variable with levels. Others move by
    the last digits, away from all planes that they are too close to; where that does not help, as
    in a narrow corner, towards the middle of their region. What cannot be moved inside stays.

    fixed: variables that keep their values.
    """
    region = problem.region
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    stays = [name in region.levels or name in fixed for name in region.nodes]
    free = mask & ~np.array(stays, bool)
    pending = ~keeps_exactly(problem, queries) & free.any(axis=1)
    rows = np.flatnonzero(pending)
    for doubling in range(MARGIN_DOUBLINGS * SWEEPS_PER_MARGIN):
        if not len(rows):
            break
        margin = float(2 ** (doubling // SWEEPS_PER_MARGIN) // 2)  # 0, 1, 2, 4 ...
        value[rows] = _move_from_planes(region, mask[rows], value[rows], free[rows], margin)
        rows = rows[~keeps_exactly(problem, Queries(mask[rows], value[rows]))]
    for row in rows.tolist():
        start = np.asarray(queries.value)[row]
        for points in _nearby(region, mask[row], start, free[row]):
            kept = keeps_exactly(problem, Queries(np.tile(mask[row], (len(points), 1)), points))
            value[row] = points[int(np.argmax(kept))] if kept.any() else start
            if kept.any():
                break
    for budget in region.budgets:
        if budget.constraint.lower == budget.constraint.upper:
            for row in np.flatnonzero(_applies(budget, mask)).tolist():
                value[row] = _meet_sum(problem, budget, mask[row], value[row], free[row])
    return named(Queries(mask, value), queries.names)


def _move_from_planes(
    region: Region, mask: np.ndarray, value: np.ndarray, free: np.ndarray, margin: float
) -> np.ndarray:
    """Return values (M, p) that were projected to a distance from every plane, one after another.

    margin: the distance, in units of the last digit of a sum. Values between the ends of their
    domains move rather than those at an end.
    """
    low, high = (np.nan_to_num(each) for each in region.all_bounds)
    for budget in region.budgets:
        lower, upper = budget.constraint.lower, budget.constraint.upper
        sides = [(1.0, upper), (-1.0, lower)] if lower != upper else [(1.0, upper)]
        for sign, bound in sides:
            if bound is None:
                continue
            terms = np.where(mask, budget.coefficients * value, 0.0)
            excess = sign * (terms.sum(axis=1) - bound)
            if lower != upper:
                last_digit = FLOAT_ROUNDING * np.maximum(np.abs(terms).sum(axis=1), abs(bound))
                excess = np.maximum(excess + margin * last_digit, 0.0)
            excess = np.where(_applies(budget, mask), excess, 0.0)[:, None]
            slopes = sign * budget.coefficients * (high - low)
            falls = excess * slopes > 0
            moves = free & (slopes != 0) & np.where(falls, value > low, value < high)
            inner = moves & (value > low) & (value < high)
            moves = np.where(inner.any(axis=1, keepdims=True), inner, moves)
            total = np.where(moves, slopes**2, 0.0).sum(axis=1, keepdims=True)
            step = excess * slopes * (high - low) / np.where(total > 0, total, 1.0)
            value = np.where(moves, np.clip(value - step, low, high), value)
    return value


def _nearby(
    region: Region, mask: np.ndarray, value: np.ndarray, free: np.ndarray
) -> Iterator[np.ndarray]:
    """Give points (k, p) for one intervention (p,) that no distance from the planes moves inside.

    First those that differ in the last digits alone, for a region that is hardly more than a point;
    then points on the way to the mean of the vertices, for a narrow corner. The vertices are those
    of the region in which all values that may not move are held.
    """
    low, high = region.all_bounds
    inner = np.flatnonzero(free & (value > low) & (value < high))[:MOST_CHANGED]
    centre = value[None]
    for _ in range(SWEEPS_PER_MARGIN):
        centre = _move_from_planes(region, mask[None], centre, free[None], 0.0)
    steps = np.array(list(product(range(-FEW_ULPS, FEW_ULPS + 1), repeat=len(inner))))
    points = np.repeat(centre, len(steps), axis=0)
    points[:, inner] += steps * np.spacing(centre[:, inner])
    yield points[np.argsort(np.abs(steps).sum(axis=1), kind="stable")]
    held = {region.nodes[column]: float(value[column]) for column in np.flatnonzero(mask & ~free)}
    members = tuple(region.nodes[column] for column in np.flatnonzero(free))
    vertices = restrict(region, held).vertices(members)
    if len(vertices):
        shares = 2.0 ** np.arange(-51, 1)[:, None]
        points = np.repeat(value[None], len(shares), axis=0)
        moved = value[free] + shares * (vertices.mean(axis=0) - value[free])
        points[:, free] = np.clip(moved, *region.bounds(members))
        yield points


def _meet_sum(
    problem: "Problem", budget: Budget, mask: np.ndarray, value: np.ndarray, free: np.ndarray
) -> np.ndarray:
    """Return one intervention (p,), one of its values changed so that a fixed sum is met exactly.

    It stays as it is where no value near it meets the sum in whichever order it is computed.
    """
    wanted, region = budget.constraint.upper, problem.region
    totals = _all_sums(region, budget, mask, value)
    if wanted is None or set(totals) == {wanted}:
        return value
    columns = np.flatnonzero(free & (budget.coefficients != 0))
    fineness = np.abs(budget.coefficients[columns] * np.spacing(value[columns]))
    for column in columns[np.argsort(fineness, kind="stable")].tolist():
        low, high = region.domains[region.nodes[column]]
        near = value[column] - (totals[0] - wanted) / budget.coefficients[column]
        for steps in sorted(range(-LARGEST_ULPS, LARGEST_ULPS + 1), key=abs):
            tried = value.copy()
            tried[column] = near + steps * np.spacing(near)
            is_met = set(_all_sums(region, budget, mask, tried)) == {wanted}
            if is_met and low <= tried[column] <= high:
                others = keeps_exactly(problem, Queries(mask[None], tried[None]))[0]
                if others or not keeps_exactly(problem, Queries(mask[None], value[None]))[0]:
                    return tried
    return value


def held_sum(constraint: LinearConstraint, held: Held) -> float:
    """Return what held values contribute to the sum of a constraint."""
    terms = constraint.coefficients
    return math.fsum(terms[name] * value for name, value in held.items() if name in terms)


def restrict(region: Region, held: Held) -> Region:
    """Return the region of the other variables where some are held at values and all are set."""
    if not held:
        return region
    constraints = []
    for each in region.constraints:
        terms = {name: slope for name, slope in each.coefficients.items() if name not in held}
        known = math.fsum(each.coefficients[name] * held[name] for name in each.coefficients
                          if name in held)  # fmt: skip
        if terms:  # what the held values alone break is refused by the problem
            lower, upper = (
                None if end is None else end - known for end in (each.lower, each.upper)
            )
            constraints.append(replace(each, coefficients=terms, lower=lower, upper=upper))
    domains = {name: ends for name, ends in region.domains.items() if name not in held}
    levels = {name: values for name, values in region.levels.items() if name not in held}
    return Region(region.nodes, domains, levels, tuple(constraints))
