import numpy as np
import pytest

import causal_bo_ppl as cb


def test_designs_follow_the_sets_and_stay_in_the_domains(make_problem):
    problem = make_problem(sets=2)
    grid, corners, sobol = problem.grid(5), problem.vertices(), problem.sobol(10)
    assert [len(design) for design in (grid, corners, sobol)] == [5 + 5 + 25, 2 + 2 + 4, 30]
    for design in (grid, corners, sobol):
        problem.require(design)
        found = list(dict.fromkeys(map(tuple, design.mask.tolist())))
        assert found == [
            tuple(name in members for name in problem.graph.nodes) for members in problem.sets
        ]
    assert problem.interventions(corners)[-4:] == [
        {"X": x, "Z": z} for x in (-5, 5) for z in (-5, 20)
    ]
    assert np.allclose(np.diff(grid.value[:5, 0]), 2.5)
    assert len(np.unique(sobol.value[20:], axis=0)) == 10


def test_design_keeps_bounds_that_are_not_round_numbers_exactly(make_problem):
    draws = np.random.default_rng(0)
    for _ in range(50):
        x, z = np.sort(draws.normal(size=(2, 2)) * 10 ** draws.uniform(-3, 3), axis=1)
        problem = make_problem(domains={"X": tuple(x), "Z": tuple(z)}, sets=2)
        assert problem.vertices().value[-4:, :2].tolist() == [[a, b] for a in x for b in z]
        problem.require(problem.grid(7))


def test_design_of_more_than_a_million_interventions_is_refused_before_it_is_made(make_problem):
    problem = make_problem(sets=2)
    with pytest.raises(cb.errors.ExplorationError, match="1,002,000 interventions over 3 sets"):
        problem.grid(1000)
    with pytest.raises(cb.errors.ExplorationError, match="1,212,200 interventions over 3 sets"):
        problem.grid(np.int16(1100))
    for strange in (1, 2.5, "2", True):
        with pytest.raises(cb.errors.ExplorationError, match=f"at least 2; got {strange!r}"):
            problem.grid(strange)
    with pytest.raises(cb.errors.ExplorationError, match="at least 1; got 0"):
        problem.sobol(0)
