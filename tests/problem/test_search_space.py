"""What a search may propose keeps bounds, levels and constraints exactly, also with values held.

Oracles: sums in plain numpy and by `math.fsum`, linear programs, and problems without what is held.

Internals: spaces are searched below the optimizer.
"""

import numpy as np
import pytest
from helpers.constrained_problems import (
    breaches,
    half_spaces,
    posed,
    random_constraints,
    random_polytope,
    values_of,
)
from scipy.optimize import linprog

import causal_bo_ppl as cb
from causal_bo_ppl.problem.designs import keeps_exactly, make_exact
from causal_bo_ppl.problem.search_space import Space


def space_of(problem, **fixed):
    space = Space(problem, problem.sets)
    return space.hold(fixed) if fixed else space


def check_polytopes(seeds):
    """Every candidate is exact; where one point is all that is left, floats may not allow it."""
    points = 0
    for seed in seeds:
        problem = random_polytope(seed)
        space, corners = space_of(problem), problem.vertices()
        parts = (space.listed("levels").queries, space.filling().queries[:16])
        assert len(parts[0]) and len(parts[1])
        if len(corners) == 1 and not keeps_exactly(problem, corners).all():
            points += 1
            assert all(problem.feasible(part).all() for part in parts)
        else:
            assert sum(breaches(problem, part) for part in parts) == 0, seed
            assert breaches(problem, corners) == 0 or problem.levels
    return points


def test_candidates_of_random_polytopes_keep_everything_exactly():
    assert check_polytopes(range(300)) <= 3


@pytest.mark.slow
def test_candidates_of_many_random_polytopes_keep_everything_exactly():
    assert check_polytopes(range(300, 2_300)) <= 20


def test_vertices_move_by_the_last_digits_only():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        domains = {name: (-1.0, 2.0) for name in "ABC"}
        problem = posed(domains, random_constraints(rng, "ABC", domains, 3))
        [members] = problem.sets
        raw = problem.region.vertices(members)
        moved = values_of(problem, problem.vertices())
        assert np.abs(moved - raw).max() <= 64 * np.finfo(float).eps * 2.0


def test_a_vertex_that_is_exact_stays_and_others_move_between_the_ends():
    problem = posed({"A": (0.1, 1), "B": (0, 1)}, [cb.LinearConstraint({"A": 1, "B": 1}, upper=1)])
    low, cut, high = values_of(problem, problem.vertices()).tolist()
    assert (low, high) == ([0.1, 0.0], [1.0, 0.0])
    assert cut[0] == 0.1 and cut[1] == pytest.approx(0.9, abs=2e-16) and sum(cut) <= 1.0
    again = make_exact(problem, problem.vertices())
    np.testing.assert_array_equal(again.value, problem.vertices().value)


def test_a_sum_that_is_fixed_is_met_to_the_last_digit():
    domains = dict.fromkeys("ABC", (0.0, 1.0))
    mixture = cb.LinearConstraint(dict.fromkeys("ABC", 1.0), lower=1.0, upper=1.0)
    space = space_of(posed(domains, [mixture]))
    points = values_of(space.problem, space.filling().queries)
    assert len(points) == 64 and breaches(space.problem, space.filling().queries) == 0
    assert (points.sum(axis=1) == 1.0).all()


def test_next_levels_stand_for_a_combination_that_breaks_a_constraint_by_rounding():
    """0.1 + 0.2 is more than 0.3 in floats; what it hid between vertices is then a candidate."""
    levels = cb.Levels([0.0, 0.1, 0.2, 0.3])
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=0.3)
    problem = posed({"A": levels, "B": levels}, [budget])
    points = values_of(problem, space_of(problem).listed("ends").queries).tolist()
    assert [0.1, 0.2] not in points and [0.2, 0.1] not in points
    assert [0.1, 0.1] in points and [0.0, 0.3] in points
    assert problem.feasible([{"A": 0.1, "B": 0.2}]).all()  # a user may still set it


@pytest.mark.parametrize("seed", range(8))
def test_the_vertices_with_a_value_held_solve_every_linear_program(seed):
    rng = np.random.default_rng(seed)
    domains = {name: (-1.0, 2.0) for name in "ABCD"}
    problem = posed(domains, random_constraints(rng, "ABCD", domains, 3))
    value = float(values_of(problem, problem.sobol(8))[-1, 1])
    space = space_of(problem, B=value)
    corners = space.listed("ends").queries
    points = values_of(problem, corners)
    assert (points[:, 1] == value).all() and breaches(problem, corners) == 0
    rows, bounds = half_spaces(problem)
    ends = [(value, value) if name == "B" else domain for name, domain in domains.items()]
    for slope in rng.normal(size=(10, 4)):
        best = linprog(slope, rows, bounds, bounds=ends)
        assert best.status == 0
        assert (points @ slope).min() == pytest.approx(best.fun, abs=1e-7)
    filled = space.filling().queries
    assert len(filled) == 64 and breaches(problem, filled) == 0
    assert (values_of(problem, filled)[:, 1] == value).all()


def test_only_sets_that_contain_what_is_held_are_searched():
    problem = posed({"A": (0, 1), "B": (0, 1), "C": (0, 1)}, sets=2)
    space = space_of(problem, A=0.25)
    assert space.sets == (("A",), ("A", "B"), ("A", "C"))
    corners = problem.interventions(space.listed("ends").queries)
    assert corners == [
        {"A": 0.25}, {"A": 0.25, "B": 0.0}, {"A": 0.25, "B": 1.0},
        {"A": 0.25, "C": 0.0}, {"A": 0.25, "C": 1.0},
    ]  # fmt: skip
    both = space.hold({"B": 1})
    assert both.sets == (("A", "B"),) and both.fixed == {"A": 0.25, "B": 1.0}
    candidates = both.candidates(at_vertices=False).queries
    assert problem.interventions(candidates) == [{"A": 0.25, "B": 1.0}]


def test_levels_constraints_and_the_function_hold_for_what_is_not_held():
    def outside(queries):
        return (np.asarray(queries.value) ** 2).sum(axis=1) >= 1.0

    levels = cb.Levels([0.0, 0.5, 1.0, 2.0])
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=1.75)
    problem = posed({"A": levels, "B": (0.0, 2.0)}, [budget], feasible=outside)
    candidates = space_of(problem, A=0.5).candidates(at_vertices=True).queries
    points = values_of(problem, candidates)
    assert (points[:, 0] == 0.5).all() and problem.feasible(candidates).all()
    assert np.sqrt(0.75) <= points[:, 1].min() < 0.9 and 1.2 < points[:, 1].max() <= 1.25
    points = values_of(problem, space_of(problem, B=1.25).candidates(at_vertices=True).queries)
    assert {*points[:, 0]} == {0.0, 0.5}


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"W": 1.0}, "unknown manipulable variable 'W'"),
        ({"A": 3.0}, r"A = 3 cannot be held: it lies outside \[0, 2\]; hold another value"),
        ({"A": np.nan}, "A = nan cannot be held: it lies outside"),
        ({"C": 4.0}, "C = 4 cannot be held: it is none of the levels 0, 5, 10; the nearest is 5"),
        ({"A": 1.0, "D": 0.5}, r"A = 1, D = 0.5 cannot be held: none of the 3 sets .* \{A, D\}"),
        (
            {"A": 2.0, "B": 1.5},
            r"A = 2, B = 1.5 cannot be held: the sum of the constraint A \+ B <= 3 is 3.5;",
        ),
        (
            {"D": 1.0, "C": 10.0},
            r"the constraint C - 4 D - E <= 4 is 6 by it, and at least 5 with the others in their",
        ),
        ({"E": 0.5}, r"no values of the other variables keep the constraints \(C - 4 D - E <= 4;"),
    ],
)
def test_values_that_leave_nothing_are_refused_with_the_reason(fixed, message):
    unit = (0.0, 1.0)
    domains = {"A": (0, 2), "B": (0, 2), "C": cb.Levels([0, 5, 10]), "D": unit, "E": unit}
    constraints = [
        cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=3.0),
        cb.LinearConstraint({"C": 1.0, "D": -4.0, "E": -1.0}, upper=4.0, when="all"),
        cb.LinearConstraint({"C": 1.0, "D": 1.0, "E": -2.0}, lower=4.9, when="all"),
        cb.LinearConstraint({"D": 1.0, "E": 1.0}, upper=1.2, when="all"),
    ]
    sets = [("A",), ("A", "B"), ("C", "D", "E")]
    problem = posed(domains, constraints, sets=sets)
    with pytest.raises(cb.errors.DomainError, match=message):
        space_of(problem, **fixed)


def test_a_function_that_rejects_all_that_is_held_is_named():
    problem = posed({"A": (0, 2), "B": (0, 2)}, feasible=lambda q: np.asarray(q.value)[:, 0] <= 1)
    with pytest.raises(cb.errors.DomainError, match="A = 1.5 cannot be held: the function `feasib"):
        space_of(problem, A=1.5)
    assert len(space_of(problem, A=0.5).filling().queries)


def test_a_held_value_that_was_rounded_is_the_level_or_the_bound():
    problem = posed({"A": cb.Levels([0.1, 0.3]), "B": (0.0, 0.7)})
    assert space_of(problem, A=0.1 + 0.2, B=0.7 + 1e-16).fixed == {"A": 0.3, "B": 0.7}
