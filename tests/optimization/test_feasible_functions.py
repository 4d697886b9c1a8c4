"""A user-defined function that returns which interventions are legal.

Internals: designs that only the optimizer uses are tested too.
"""

import numpy as np
import pytest
from helpers.constrained_problems import posed

import causal_bo_ppl as cb
from causal_bo_ppl.problem.designs import (
    affine_anchors,
    default_design,
    fill_boxes,
    vertices_and_points,
)


def ring(queries):
    """Which interventions lie outside the unit circle; NaN-free and vectorized."""
    return (np.asarray(queries.value) ** 2).sum(axis=1) >= 1.0


def test_user_defined_function_is_called_by_require_and_by_designs():
    problem = posed({"A": (-2, 2), "B": (-2, 2)}, feasible=ring, sets=2)
    assert problem.feasible([{"A": 0.5}, {"A": 1.5}, {"A": 0.5, "B": 0.5}]).tolist() == [
        False,
        True,
        False,
    ]
    with pytest.raises(
        cb.errors.DomainError, match=r"do\(A = 0.5\) is rejected by the problem's .* 'ring'"
    ):
        problem.queries([{"A": 1.5}, {"A": 0.5}])
    assert problem.feasible(problem.baseline()).all() and len(problem.require(problem.baseline()))
    for design in (
        problem.grid(5),
        problem.sobol(16),
        problem.vertices(),
        fill_boxes(problem, problem.sets),
        default_design(problem, problem.sets, None, 12),
        affine_anchors(problem, problem.sets, None),
        vertices_and_points(problem, problem.sets, 8),
    ):
        problem.require(design)
        assert len(np.unique(np.asarray(design.mask), axis=0)) == 3
    assert len(problem.sobol(16)) == 48
    assert len(problem.grid(5)) == 4 + 4 + 24  # of 5, 5 and 25, those inside the circle are missing


def test_set_of_which_no_point_is_feasible_is_named():
    def inner(queries):
        return (np.asarray(queries.value) ** 2).sum(axis=1) < 1.0

    problem = posed({"A": (-2, 2), "B": (-2, 2)}, feasible=inner, sets=2)
    with pytest.raises(
        cb.errors.DomainError, match=r"`feasible` rejects all 2 vertices of \{A\}; take more"
    ):
        problem.vertices()
    assert len(vertices_and_points(problem, problem.sets, 8)) == 24
    with pytest.raises(
        cb.errors.DomainError, match=r"`feasible` rejects all 16 Sobol points of \{A\}"
    ):
        posed({"A": (-2, 2)}, feasible=lambda queries: np.zeros(len(queries), bool))
    mixture = cb.LinearConstraint({"A": 1.0, "B": 1.0}, lower=0.3, upper=0.3, when="all")
    problem = posed({"A": (0, 1), "B": (0, 1)}, [mixture])
    with pytest.raises(
        cb.errors.DomainError, match=r"none of the points of the grid of \{A, B\} keeps the c"
    ):
        problem.grid(2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3.0, "feasible must be a function of Queries, got 3.0"),
        (lambda queries: True, r"'<lambda>' for `feasible` returned bool of shape \(\)"),
        (lambda queries: np.ones(len(queries)), "returned float64"),
    ],
)
def test_user_defined_function_that_returns_no_mask_is_refused(function, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        posed({"A": (0, 1)}, feasible=function)


def test_user_defined_function_cannot_change_the_batch_and_gets_legal_values_only():
    seen = []

    def greedy(queries):
        seen.append(np.array(queries.value))
        queries.value.fill(0.0)
        return np.ones(len(queries), bool)

    problem = posed({"A": cb.Levels([1, 2, 4])}, feasible=greedy)
    queries = cb.problem.Queries(
        np.ones((3, 2), bool) & [True, False], np.array([[1, 0], [3, 0], [9, 0]])
    )
    assert problem.feasible(queries).tolist() == [True, False, False]
    assert queries.value[0, 0] == 1.0
    assert {*np.concatenate(seen)[:, 0].tolist()} <= {1.0, 2.0, 4.0}


@pytest.mark.parametrize("seed", range(3))
def test_feasible_is_what_require_takes(seed):
    rng = np.random.default_rng(seed)
    domains = {"A": cb.Levels([-1.0, 0.0, 2.0]), "B": (-1.0, 1.0), "C": (0.0, 2.0)}
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=1.2)
    problem = posed(domains, [budget], feasible=ring, sets=[("A", "B"), ("A", "B", "C"), ("C",)])
    mask = rng.random((300, 4)) < 0.6
    value = rng.choice([-1.0, 0.0, 2.0, 0.7, 1.0, np.nan, np.inf, 5.0], size=(300, 4))
    asked = problem.feasible(cb.problem.Queries(mask, value))
    taken = []
    for row in range(300):
        try:
            problem.require(cb.problem.Queries(mask[[row]], value[[row]]))
            taken.append(True)
        except cb.errors.DomainError:
            taken.append(False)
    assert asked.tolist() == taken and 0 < asked.sum() < 300


def test_the_same_problem_with_other_sets_keeps_all_that_restricts_it():
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=2.0)
    domains = {"A": cb.Levels([0, 1, 3]), "B": (0, 2)}
    problem = posed(domains, [budget], feasible=ring, units={"A": "mg"}, costs={"A": 1.0, "B": 2.0})
    other = problem.explore(1)
    assert other.sets == (("A",), ("B",)) and other.levels == problem.levels
    assert other.constraints == problem.constraints and other.feasible_rule is ring
    assert other.units == problem.units and other.explore([("A", "B")]) == problem
