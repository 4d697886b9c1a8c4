"""No choice hangs on rounding.

Inputs that differ in their last digits, as on another processor, give the same choice.

Internals: ties of rounded numbers are made by hand.
"""

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.linalg import (
    factor_draws,
    first_largest,
    first_smallest,
    invert_definite,
    tie_width,
)
from causal_bo_ppl.systems import best_of_each_set, best_vertices


def rounded(values, seed):
    """The same numbers with other last digits."""
    return values * (1 + np.random.default_rng(seed).choice([-2e-16, 0.0, 2e-16], np.shape(values)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("offset", [0.0, 1e6, -3e9])
def test_the_first_of_equal_numbers_is_taken_whatever_their_last_digits(seed, offset):
    numbers = rounded(np.array([3.0, 1.0, 2.0, 1.0, 1.0]) + offset, seed)
    assert first_smallest(numbers) == 1 and first_largest(numbers) == 0


def test_numbers_that_differ_by_more_than_rounding_are_not_equal():
    assert first_smallest(np.array([1.0, 1.0 - 1e-9, 2.0])) == 1
    assert first_smallest(1e-30 * np.array([1.0, 0.5, 2.0])) == 1
    assert tie_width(np.zeros(0)) == 0.0 and first_smallest(np.zeros(3)) == 0


def test_the_first_of_infinite_numbers_is_taken():
    numbers = np.array([1.0, np.inf, 1.0 + 1e-16, np.inf, 0.0])
    assert (
        first_largest(numbers) == 1
        and first_smallest(numbers) == 4
        and first_smallest(numbers[:4]) == 0
    )
    assert first_smallest(-numbers) == 1 and first_largest(np.full(2, -np.inf)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_greedy_path_among_ties_is_the_same_whatever_the_last_digits(seed):
    """Points around a circle: all are equally good, and after each choice its mirror images are."""
    angles = np.arange(8) * np.pi / 4
    features = np.column_stack([np.cos(angles), np.sin(angles), np.ones(8)])
    plain = cb.theory.greedy_gain(features, 0.1, 12)
    found = cb.theory.greedy_gain(rounded(features, seed), 0.1, 12)
    assert found.chosen.tolist() == plain.chosen.tolist()
    np.testing.assert_allclose(found.gains, plain.gains, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_value_that_does_not_matter_stays_low_at_the_best_vertex(make_problem, seed):
    problem = make_problem(sets=[("X", "Z")])

    def effect(queries):
        return rounded(1.0 - np.asarray(queries.value)[:, problem.graph.index("Z")] + 0.1, seed)

    assert problem.interventions(best_vertices(problem, effect)) == [{"X": -5.0, "Z": 20.0}]


@pytest.mark.parametrize("seed", range(5))
def test_of_equally_deep_basins_the_lowest_is_the_optimum(make_problem, seed):
    problem = make_problem(sets=[("X",)])

    def effect(queries):
        return rounded(
            (np.asarray(queries.value)[:, problem.graph.index("X")] ** 2 - 4.0) ** 2, seed
        )

    [found] = problem.interventions(best_of_each_set(problem, effect))
    assert found["X"] == pytest.approx(-2.0, abs=1e-6)


def test_a_precision_of_zero_is_seen_without_rounding():
    from y0.dsl import P, Sum, X, Y

    graph = cb.CausalGraph.parse("X -> Y")
    check = cb.diagnostics.check_estimand(graph, "Y", "X", Sum[X](P(Y | X)))
    assert check.text.endswith("it is no density of the target, whose precision is 0 in it.")
    assert np.isinf(check.table["error"]).all()


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_a_singular_block_has_no_inverse_on_whichever_side_of_zero_it_is_rounded(sign):
    block = np.array([[[1.0, 1.0], [1.0, 1.0 + sign * 2.2e-16]], [[-1.0, 0.0], [0.0, 1.0]]])
    inverse, log_determinant = invert_definite(block)
    assert np.isnan(inverse).all() and np.isnan(log_determinant).all()


def test_a_constant_among_draws_is_no_direction_though_its_mean_is_rounded():
    draws = np.column_stack([np.random.default_rng(0).normal(size=1_001), np.full(1_001, 0.1)])
    draws[::2, 1] = np.nextafter(0.1, 1.0)
    factor = factor_draws(draws)
    assert factor.shape == (2, 1) and factor[1, 0] == 0
