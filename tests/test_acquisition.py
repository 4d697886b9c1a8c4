"""Confidence bounds, their vertices, and ties."""

import fitted_cases as cases
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.acquisition import confidence_bound, first_best
from causal_bo_ppl.problem.queries import vertices
from causal_bo_ppl.surrogates import Prediction


@pytest.mark.parametrize("objective", ["min", "max"])
def test_no_point_of_any_box_beats_the_best_vertex(objective):
    problem, truth = cases.random_problem(2, size=4, objective=objective)
    post = cb.fit(problem, cases.simulate(problem, truth, 15, 0))
    surrogate = cb.couple(post)
    for query, outcome in zip(problem.sobol(1), [1.0, -2.0, 0.5, 3.0, 1.0, 0.0, 2.0], strict=True):
        surrogate = surrogate.tell(query, outcome, 1.0)
    for beta in (0.0, 2.0, 50.0):
        corners, inside = problem.vertices(), problem.grid(9)
        at_corners = confidence_bound(surrogate.predict(corners), beta, objective)
        everywhere = confidence_bound(surrogate.predict(inside), beta, objective)
        best = at_corners[first_best(at_corners, objective)]
        extreme = everywhere.min() if objective == "min" else everywhere.max()
        assert best == pytest.approx(extreme, abs=1e-9)


def test_bound_is_optimistic_in_the_direction_of_the_goal():
    predicted = Prediction(np.array([1.0, 2.0]), np.array([0.5, 0.0]))
    assert confidence_bound(predicted, 4.0, "max").tolist() == [2.0, 2.0]
    assert confidence_bound(predicted, 4.0, "min").tolist() == [0.0, 2.0]


def test_of_equal_bounds_the_first_is_taken():
    assert first_best(np.array([3.0, 1.0 + 1e-13, 1.0, 2.0]), "min") == 1
    assert first_best(np.array([3.0, 3.0 + 1e-13, 1.0]), "max") == 0
    with pytest.raises(cb.DomainError, match="no intervention to choose from"):
        first_best(np.zeros(0), "min")


def test_vertices_of_some_sets_are_those_of_the_problem():
    problem, _ = cases.random_problem(0, size=4)
    whole = problem.vertices()
    assert np.array_equal(vertices(problem, problem.sets).value, whole.value)
    some = vertices(problem, problem.sets[:2])
    assert np.array_equal(some.value, whole.value[: len(some)])
