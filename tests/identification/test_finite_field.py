"""Arithmetic without rounding, against Python's own integers and fractions.

Internals: arithmetic is compared with fractions below identification.
"""

from fractions import Fraction

import numpy as np
import pytest
from y0.dsl import P, Sum, Variable

import causal_bo_ppl as cb
from causal_bo_ppl.identification.evaluation import Unsound, evaluate
from causal_bo_ppl.identification.finite_field import (
    PRIME,
    Residues,
    as_residue,
    draw_residues,
    eliminate,
    invert,
    reciprocal,
    times,
)

X, Y, Z = map(Variable, "XYZ")


def test_products_and_inverses_are_those_of_the_integers():
    draws = np.random.default_rng(0)
    one, other = draws.integers(0, PRIME, (2, 3, 5, 5))
    exact = one.astype(object) @ other.astype(object) % PRIME
    np.testing.assert_array_equal(times(one, other), exact.astype(np.int64))
    inverse, _ = invert(one)
    np.testing.assert_array_equal(
        times(one, inverse), np.tile(np.eye(5, dtype=np.int64), (3, 1, 1))
    )


def test_determinant_is_that_of_small_integers():
    block = np.array([[[2, 1, 0], [1, 3, 4], [0, 4, 9]]])
    assert invert(block)[1].tolist() == [round(np.linalg.det(block[0])) % PRIME]


def test_floats_are_ratios():
    assert as_residue(0.75) * 4 % PRIME == 3 and as_residue(-2.0) == PRIME - 2
    assert (
        as_residue(0.1) - Fraction(0.1).numerator * pow(Fraction(0.1).denominator, -1, PRIME)
    ) % PRIME == 0


def test_singular_block_is_unsound():
    with pytest.raises(Unsound, match="singular"):
        invert(np.ones((1, 2, 2), np.int64))
    with pytest.raises(Unsound, match="singular"):
        reciprocal(np.array([3, 0]))


def test_rank_is_that_of_the_integers():
    draws = np.random.default_rng(1)
    for rank in range(5):
        rows = draws.integers(-5, 6, (9, rank)) @ draws.integers(-5, 6, (rank, 6))
        assert len(eliminate(rows)) == np.linalg.matrix_rank(rows) <= rank


def test_potential_of_an_expression_is_that_of_exact_fractions():
    """Z -> X -> Y with small integers.

    P(Y | X) P(X | Z), summed over X, has the slope and variance of a chain.
    """
    weights = np.zeros((1, 3, 3), np.int64)
    weights[0, 0, 1], weights[0, 1, 2] = 3, 5  # Z -> X, X -> Y
    noise, solve = np.diag([2, 7, 11])[None], np.array([[[1, 0, 0], [3, 1, 0], [15, 5, 1]]])
    covariance = solve @ noise @ solve.transpose(0, 2, 1)
    intercepts = np.array([[1, 2, 4]])
    model = Residues(
        (solve @ intercepts[..., None])[..., 0], covariance, weights, intercepts, noise
    )
    found = evaluate(Sum[X](P(Y | X) * P(X | Z)), model, {"Z": 0, "X": 1, "Y": 2})
    variance, slope, constant = 11 + 25 * 7, 15, 4 + 5 * 2
    at = {position: index for index, position in enumerate(found.positions)}
    own = found.precision[0, at[2], at[2]]
    assert own == as_residue(1.0) * pow(variance, -1, PRIME) % PRIME
    assert (found.precision[0, at[2], at[0]] + slope * int(own)) % PRIME == 0
    assert found.information[0, at[2]] == constant * int(own) % PRIME
    assert found.quadratic[0] == constant**2 * int(own) % PRIME
    assert found.determinant[0] == own and found.power == 1


def test_random_models_have_the_graphs_zeros_and_its_known_coefficients():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    model = draw_residues(graph, 2, {("X", "Z"): 0.5})
    assert (np.count_nonzero(model.weights, axis=(1, 2)) == 2).all()
    assert (np.count_nonzero(model.noise, axis=(1, 2)) == 5).all()
    assert (model.weights[:, 0, 1] * 2 % PRIME == 1).all()
    left = (np.eye(3, dtype=np.int64) - model.weights.transpose(0, 2, 1)) % PRIME
    np.testing.assert_array_equal(
        times(times(left, model.covariance), left.transpose(0, 2, 1)), model.noise
    )
