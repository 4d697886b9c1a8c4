"""Levels: which values are legal, and the best combination of them, against brute force.

Internals: designs that only the optimizer uses are tested too.
"""

from itertools import product

import numpy as np
import pytest
from helpers.constrained_problems import NAMES, half_spaces, posed, random_constraints, values_of
from scipy.optimize import linprog

import causal_bo_ppl as cb
from causal_bo_ppl.problem.designs import default_design, fill_boxes


def test_levels_give_low_and_high_and_are_kept_by_every_design():
    problem = posed({"A": cb.Levels([20, 0, 5, 10]), "B": (-1, 1)}, sets=2)
    assert problem.domains == {"A": (0.0, 20.0), "B": (-1.0, 1.0)}
    assert problem.levels == {"A": (0.0, 5.0, 10.0, 20.0)}
    corners = problem.interventions(problem.vertices())
    assert corners == [
        {"A": 0.0},
        {"A": 20.0},
        {"B": -1.0},
        {"B": 1.0},
        *({"A": a, "B": b} for a in (0.0, 20.0) for b in (-1.0, 1.0)),
    ]
    for n, expected in ((2, [0, 20]), (3, [0, 10, 20]), (4, [0, 5, 10, 20]), (9, [0, 5, 10, 20])):
        grid = problem.grid(n)
        own = np.asarray(grid.value)[: len(expected), 0]
        assert own.tolist() == expected and len(grid) == len(expected) * (n + 1) + n
    sobol = problem.sobol(64)
    assert len(sobol) == 3 * 64
    own, counts = np.unique(np.asarray(sobol.value)[:64, 0], return_counts=True)
    assert own.tolist() == [0, 5, 10, 20] and counts.tolist() == [16] * 4
    for design in (
        fill_boxes(problem, problem.sets),
        default_design(problem, problem.sets, None, 9),
    ):
        problem.require(design)


def test_value_off_the_levels_is_refused_with_the_nearest():
    problem = posed({"A": cb.Levels([0, 5, 10, 20])})
    with pytest.raises(
        cb.errors.DomainError, match=r"do\(A = 6\) is none of the levels 0, 5, 10, 20; the n.* 5"
    ):
        problem.queries([{"A": 5.0}, {"A": 6.0}])
    with pytest.raises(cb.errors.DomainError, match="nearest is 20"):
        problem.queries([{"A": 15.1}])
    with pytest.raises(cb.errors.DomainError, match=r"lies outside \[0, 20\]"):
        problem.queries([{"A": 21.0}])


def test_value_that_a_file_rounded_is_its_level():
    problem = posed({"A": cb.Levels(np.linspace(0, 1, 11))})
    queries = problem.queries([{"A": 0.3}, {"A": 0.1 + 0.2}])
    assert queries.value[0, 0] == queries.value[1, 0] == problem.levels["A"][3]
    exact = problem.vertices()
    assert problem.require(exact) is exact


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "there are 0 levels"),
        ([1.0], r"there are 1 levels \(1.0\); give at least two"),
        ([1, 2, 1], "the level 1 is repeated"),
        ([0, np.nan], "nan are not all finite"),
        ([0, -np.inf], "-inf, 0.0 are not all finite"),
        ([0, 1, 1 + 1e-10], "too close"),
        (3.0, "levels must be a list"),
        ("12", "levels must be a list"),
        (["a", "b"], "must be a real number"),
        ([True, False], "must be a real number"),
    ],
)
def test_levels_that_are_none_are_refused(values, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        cb.Levels(values)


def test_levels_are_sorted_and_equal_by_value():
    assert cb.Levels([3, 1, 2]) == cb.Levels(range(1, 4)) != cb.Levels([1, 2])
    assert repr(cb.Levels([0.5, 0])) == "Levels([0, 0.5])" and list(cb.Levels([2, 1])) == [1, 2]
    with pytest.raises(cb.errors.DomainError, match="domain of 'A' reaches"):
        posed({"A": cb.Levels([0, 1e80])})


@pytest.mark.parametrize("seed", range(8))
def test_best_vertex_is_the_best_of_all_feasible_combinations_of_levels(seed):
    rng = np.random.default_rng(seed)
    names = NAMES[: 2 + seed % 3]
    domains = {name: cb.Levels(rng.normal(size=rng.integers(2, 6)) * 3) for name in names}
    while True:
        try:
            problem = posed(domains, random_constraints(rng, names, domains, 2))
            break
        except cb.errors.DomainError:  # no combination of levels happens to be feasible
            pass
    everything = np.array(list(product(*(domains[name].values for name in names))))
    rows, bounds = half_spaces(problem)
    legal = everything[(everything @ rows.T <= bounds).all(axis=1)]
    found = values_of(problem, problem.vertices())
    assert {*map(tuple, found.tolist())} <= {*map(tuple, legal.tolist())}
    for slope in rng.normal(size=(30, len(names))):
        assert (found @ slope).min() == pytest.approx((legal @ slope).min(), rel=1e-12)
    assert np.array_equal(values_of(problem, problem.grid(6)), legal)
    mask, value = (
        np.zeros((len(everything), len(names) + 1), bool),
        np.zeros((len(everything), len(names) + 1)),
    )
    mask[:, :-1], value[:, :-1] = True, everything
    asked = problem.feasible(cb.problem.Queries(mask, value))
    assert np.array_equal(asked, (everything @ rows.T <= bounds).all(axis=1))


@pytest.mark.parametrize("seed", range(6))
def test_best_vertex_of_levels_and_intervals_is_the_best_of_all_slices(seed):
    rng = np.random.default_rng(seed)
    domains = {"A": cb.Levels(rng.normal(size=4)), "B": (-1.0, 1.0), "C": (0.0, 2.0)}
    domains |= {"D": cb.Levels([0.0, 1.0, 3.0])}
    problem = posed(domains, random_constraints(rng, "ABCD", domains, 2))
    rows, bounds = half_spaces(problem)
    points = values_of(problem, problem.vertices())
    slices = list(product(domains["A"], domains["D"]))
    for slope in rng.normal(size=(10, 4)):
        best = np.inf
        for a, d in slices:
            found = linprog(slope, rows, bounds, bounds=[(a, a), (-1, 1), (0, 2), (d, d)])
            best = found.fun if found.status == 0 and found.fun < best else best
        assert (points @ slope).min() == pytest.approx(best, abs=1e-7)
