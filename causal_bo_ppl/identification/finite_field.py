"""Is a formula exactly Q[C], or exactly P(Y | do(s))? Arithmetic modulo a prime has no rounding.

Precisions, information vectors, determinants and quadratic forms of a linear SEM are rational
functions of its coefficients. Two such functions that differ agree at a random point of the field
with a probability of about their degree over 2^31: there is no tolerance, and no effect so faint
that it could be overlooked. Arrays are int64 in [0, PRIME).
"""

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from y0.dsl import Expression

from causal_bo_ppl.identification.evaluation import (
    Positions,
    Unsound,
    evaluate,
    placement,
    split,
    union,
)
from causal_bo_ppl.identification.y0_adapter import all_names
from causal_bo_ppl.linalg import adjoint_sweep

if TYPE_CHECKING:
    from causal_bo_ppl.graph import CausalGraph

PRIME = 2**31 - 1
FIELD_SEED = 8128


class Residue(NamedTuple):
    """A potential over the variables v at `positions`, in a batch of t models.

    It is c exp(information'v - v' precision v / 2), with c = determinant^(1/2) (2 pi)^(-power/2)
    exp(-quadratic/2).
    """

    positions: Positions
    precision: np.ndarray
    information: np.ndarray
    quadratic: np.ndarray
    determinant: np.ndarray
    power: int


class Residues(NamedTuple):
    """Random linear SEMs over the field: mean (t, p), covariance (t, p, p), and parameters."""

    mean: np.ndarray
    covariance: np.ndarray
    weights: np.ndarray
    intercepts: np.ndarray
    noise: np.ndarray

    def marginal(self, positions: Positions) -> Residue:
        """Return the density of some variables."""
        chosen = list(positions)
        inverse, determinant = invert(self.covariance[:, chosen][:, :, chosen])
        centre = self.mean[:, chosen, None]
        information = times(inverse, centre)
        quadratic = times(centre.transpose(0, 2, 1), information)[:, 0, 0]
        return Residue(
            positions, inverse, information[..., 0], quadratic, reciprocal(determinant), len(chosen)
        )

    def combine(self, pieces: Iterable[Residue], signs: Iterable[int]) -> Residue:
        """Return the product of the pieces with sign 1 over that of the pieces with sign -1."""
        pieces, signs = list(pieces), list(signs)
        positions = union(piece.positions for piece in pieces)
        wide = [on_positions(piece, positions) for piece in pieces]

        def add(values: Iterable[np.ndarray]) -> np.ndarray:
            return np.asarray(
                sum(sign * value for sign, value in zip(signs, values, strict=True)) % PRIME
            )

        parts = [
            piece.determinant if sign > 0 else reciprocal(piece.determinant)
            for sign, piece in zip(signs, wide, strict=True)
        ]
        power = sum(sign * piece.power for sign, piece in zip(signs, wide, strict=True))
        return Residue(
            positions,
            add(piece.precision for piece in wide),
            add(piece.information for piece in wide),
            add(piece.quadratic for piece in wide),
            reduce(lambda one, other: one * other % PRIME, parts),
            power,
        )

    def integrate(self, piece: Residue, positions: Collection[int]) -> Residue:
        """Integrate by a Schur complement; determinant, quadratic form and power take the mass."""
        kept, gone, stay = split(piece.positions, positions)
        inverse, determinant = invert(piece.precision[:, gone[:, None], gone])
        cross, pull = piece.precision[:, stay[:, None], gone], piece.information[:, gone]
        centre = times(inverse, pull[:, :, None])
        lost = times(times(cross, inverse), cross.transpose(0, 2, 1))
        return Residue(
            kept,
            (piece.precision[:, stay[:, None], stay] - lost) % PRIME,
            (piece.information[:, stay] - times(cross, centre)[..., 0]) % PRIME,
            (piece.quadratic - times(pull[:, None], centre)[:, 0, 0]) % PRIME,
            piece.determinant * reciprocal(determinant) % PRIME,
            piece.power - len(gone),
        )


def draw_residues(
    graph: "CausalGraph", count: int, known: Mapping[tuple[str, str], float] | None = None
) -> Residues:
    """Draw random models of the graph, with known coefficients at their values."""
    draws = np.random.default_rng(FIELD_SEED)
    size = len(graph.nodes)
    weights, noise = np.zeros((2, count, size, size), np.int64)
    for cause, effect in graph.directed:
        value = (known or {}).get((cause, effect))
        drawn = draws.integers(1, PRIME, count) if value is None else as_residue(value)
        weights[:, graph.index(cause), graph.index(effect)] = drawn
    for one, other in (*graph.bidirected, *((name, name) for name in graph.nodes)):
        pair = graph.index(one), graph.index(other)
        noise[:, *pair] = noise[:, *pair[::-1]] = draws.integers(1, PRIME, count)
    intercepts = draws.integers(1, PRIME, (count, size))
    solve, _ = invert((np.eye(size, dtype=np.int64) - weights.transpose(0, 2, 1)) % PRIME)
    covariance = times(times(solve, noise), solve.transpose(0, 2, 1))
    return Residues(
        times(solve, intercepts[:, :, None])[..., 0], covariance, weights, intercepts, noise
    )


def as_residue(value: float) -> int:
    """Return a float, which is a ratio of integers, as that ratio in the field."""
    ratio = Fraction(value)
    return ratio.numerator * pow(ratio.denominator, -1, PRIME) % PRIME


def on_positions(piece: Residue, positions: Positions) -> Residue:
    """Return the same potential over more variables, on which it does not depend."""
    put = placement(piece.positions, positions)
    return piece._replace(
        positions=positions,
        precision=put.T @ piece.precision @ put,
        information=piece.information @ put,
    )


def are_equal(one: Residue, other: Residue) -> bool:
    """Return whether two potentials are the same function, normalization included."""
    positions = union([one.positions, other.positions])
    left, right = on_positions(one, positions), on_positions(other, positions)
    return left.power == right.power and all(map(np.array_equal, left[1:5], right[1:5]))


def times(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the matrix product; every partial sum is reduced before it can overflow."""
    product = np.zeros((*one.shape[:-1], other.shape[-1]), np.int64)
    for inner in range(one.shape[-1]):
        product = (product + one[..., :, inner, None] * other[..., None, inner, :]) % PRIME
    return product


def reciprocal(values: np.ndarray) -> np.ndarray:
    """Return 1 / x of every value; raise Unsound where x is 0."""
    if not np.all(values):
        raise Unsound("one of its blocks is singular")
    return np.array([pow(int(value), -1, PRIME) for value in values.ravel()], np.int64).reshape(
        values.shape
    )


def invert(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the inverse (t, k, k) and determinant (t,), by the method of Gauss and Jordan."""
    count, size = block.shape[:2]
    table = np.concatenate([block, np.tile(np.eye(size, dtype=np.int64), (count, 1, 1))], axis=2)
    determinant = np.ones(count, np.int64)
    for position in range(size):
        pivot = table[:, position, position]
        determinant = determinant * pivot % PRIME
        row = table[:, position] * reciprocal(pivot)[:, None] % PRIME
        table = (table - table[:, :, position, None] * row[:, None, :]) % PRIME
        table[:, position] = row
    return table[:, :, size:], determinant


def eliminate(rows: np.ndarray) -> np.ndarray:
    """Return independent rows that span the same space, as many as the rank."""
    rest, kept = rows % PRIME, []
    for column in range(rows.shape[1]):
        lead = np.flatnonzero(rest[:, column])
        if lead.size:
            row = rest[lead[0]] * pow(int(rest[lead[0], column]), -1, PRIME) % PRIME
            rest = (rest - rest[:, column, None] * row) % PRIME
            rest = rest[rest.any(axis=1)]
            kept.append(row)
    return np.array(kept, np.int64).reshape(len(kept), rows.shape[1])


FIELD_MODELS = 2  # each misses a wrong formula with a probability below one in a hundred thousand


def is_exact_factor(
    expression: Expression, graph: "CausalGraph", district: tuple[str, ...]
) -> bool:
    """Return whether the expression equals Q[district], normalization included."""
    models = draw_residues(graph, FIELD_MODELS)
    return _is_exact(expression, graph, models, _true_factor(graph, models, district))


def is_exact_effect(
    expression: Expression, graph: "CausalGraph", target: str, intervened: Collection[str]
) -> bool:
    """Return whether the expression equals P(target | do(intervened)), as a function of these."""
    models = draw_residues(graph, FIELD_MODELS)
    return _is_exact(expression, graph, models, _true_effect(graph, models, target, intervened))


def require_density(expression: Expression, graph: "CausalGraph", target: str) -> None:
    """Refuse, with Unsound, an expression that is no density of the target in any model.

    In floating point the precision of such an expression is a rounded zero: positive, negative or
    exactly 0, depending on the processor. In the field it is 0.
    """
    potential = evaluate(expression, draw_residues(graph, FIELD_MODELS), graph.positions)
    if graph.index(target) not in potential.positions:
        raise Unsound("it is no density of the target")
    index = potential.positions.index(graph.index(target))
    if not potential.precision[:, index, index].any():
        raise Unsound("it is no density of the target, whose precision is 0 in it")


def _is_exact(
    expression: Expression, graph: "CausalGraph", models: Residues, truth: Residue
) -> bool:
    if not all_names(expression) <= set(graph.nodes):
        return False
    try:
        return are_equal(evaluate(expression, models, graph.positions), truth)
    except Unsound:
        return False


def _true_factor(graph: "CausalGraph", models: Residues, district: tuple[str, ...]) -> Residue:
    """Return the density of the noise of a district, a potential of it and its parents."""
    positions = [graph.index(name) for name in graph.with_parents(district)]
    members = [graph.index(name) for name in district]
    inverse, determinant = invert(models.noise[:, members][:, :, members])
    residual = (np.eye(len(graph.nodes), dtype=np.int64) - models.weights)[:, positions][
        :, :, members
    ] % PRIME
    constants = models.intercepts[:, members, None]
    pull = times(inverse, constants)
    return Residue(
        tuple(positions),
        times(times(residual, inverse), residual.transpose(0, 2, 1)),
        times(residual, pull)[..., 0],
        times(constants.transpose(0, 2, 1), pull)[:, 0, 0],
        reciprocal(determinant),
        len(members),
    )


def _true_effect(
    graph: "CausalGraph", models: Residues, target: str, intervened: Collection[str]
) -> Residue:
    """Return the density N(y; intercept + slopes'x, variance) under do(intervened) = x.

    Slopes are l_i of what is set, loads l_i of what is free: l_i = sum over free j of W_ij l_j.
    """
    position, chosen = (
        graph.index(target),
        [graph.index(name) for name in graph.ordered(intervened)],
    )
    mask = np.isin(np.arange(len(graph.nodes)), chosen)[:, None]
    loads = adjoint_sweep(models.weights, mask, position, times)
    slopes = times(models.weights, loads)
    variance = times(times(loads.transpose(0, 2, 1), models.noise), loads)[:, 0, 0]
    intercept = times(loads.transpose(0, 2, 1), models.intercepts[:, :, None])[:, 0, 0]
    positions = sorted([position, *chosen])
    residual = -slopes[:, positions]
    residual[:, positions.index(position)] = 1
    scaled = residual % PRIME * reciprocal(variance)[:, None, None] % PRIME
    return Residue(
        tuple(positions),
        times(scaled, residual.transpose(0, 2, 1) % PRIME),
        scaled[..., 0] * intercept[:, None] % PRIME,
        intercept * intercept % PRIME * reciprocal(variance) % PRIME,
        reciprocal(variance),
        1,
    )
