"""What does an estimand come to in a Gaussian model?

Every piece is a potential over its free variables, exp(c + h'v - v'Kv/2): P(A | B) is the potential
of A and B less that of B, a product adds, a ratio subtracts, a sum is a Schur complement. `Reals`
does that arithmetic in floats, by NumPy or by JAX: leading axes are a batch, and a potential is NaN
if an integral diverges. `finite_field.Residues` does it without rounding.
"""

import math
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from y0.dsl import Expression, Fraction, One, Probability, Product, Sum

from causal_bo_ppl.numerics import invert_definite

Places = tuple[int, ...]
Piece = TypeVar("Piece")


class Unsound(Exception):
    """The expression is no density of its variables, whatever the model."""


class Algebra(Protocol[Piece]):
    """The arithmetic of potentials in one Gaussian model, or in a batch of them."""

    def marginal(self, places: Places) -> Piece:
        """Return the density of some variables."""

    def combine(self, pieces: Iterable[Piece], signs: Iterable[int]) -> Piece:
        """Return the product of the pieces with sign 1 over that of the pieces with sign -1."""

    def integrate(self, piece: Piece, places: Collection[int]) -> Piece:
        """Return the sum of a piece over some of its variables."""


def evaluate(
    expression: Expression,
    algebra: Algebra[Piece],
    places: Mapping[str, int],
    memo: MutableMapping[Expression, Piece] | None = None,
) -> Piece:
    """Return the potential of an expression.

    What stands in `memo` is not computed again, and conditionals are added to it.
    """
    if memo and expression in memo:
        return memo[expression]

    def parts(inner: Iterable[Expression]) -> list[Piece]:
        return [evaluate(part, algebra, places, memo) for part in inner]

    if isinstance(expression, Probability):
        piece = _conditional(expression, algebra, places)
        if memo is not None:
            memo[expression] = piece
        return piece
    if isinstance(expression, Product):
        return algebra.combine(parts(expression.expressions), [1] * len(expression.expressions))
    if isinstance(expression, Fraction):
        return algebra.combine(parts([expression.numerator, expression.denominator]), [1, -1])
    if isinstance(expression, Sum):
        inner = evaluate(expression.expression, algebra, places, memo)
        return algebra.integrate(inner, {places[bound.name] for bound in expression.ranges})
    if isinstance(expression, One):
        return algebra.marginal(())
    raise Unsound(f"{type(expression).__name__} is no density")


def _conditional(
    expression: Probability, algebra: Algebra[Piece], places: Mapping[str, int]
) -> Piece:
    children, given = (
        {places[one.name] for one in side} for side in (expression.children, expression.parents)
    )
    if children & given:
        raise Unsound("a variable stands on both sides of a bar")
    whole = algebra.marginal(tuple(sorted(children | given)))
    return (
        algebra.combine([whole, algebra.marginal(tuple(sorted(given)))], [1, -1])
        if given
        else whole
    )


def spread(places: Places, wider: Places) -> Any:
    """Return the (k, n) matrix of zeros and ones that puts k variables to their places among n."""
    return (np.array(places, int)[:, None] == np.array(wider, int)).astype(int)


def split(places: Places, gone: Collection[int]) -> tuple[Places, Any, Any]:
    """Return the places that stay, and the positions of those that go and of those that stay."""
    if not set(gone) <= set(places):
        raise Unsound("a sum runs over a variable that its expression does not hold")
    leaves = np.array([place in gone for place in places], bool)
    return (
        tuple(place for place in places if place not in gone),
        np.flatnonzero(leaves),
        np.flatnonzero(~leaves),
    )


def union(pieces: Iterable[Places]) -> Places:
    """Return all places of several potentials, in order."""
    return tuple(sorted({place for places in pieces for place in places}))


LOG_TWO_PI = math.log(2 * math.pi)


class Potential(NamedTuple):
    """The function exp(constant + information'v - v' precision v / 2) of the v at `places`."""

    places: Places
    precision: Any
    information: Any
    constant: Any


class Reals(NamedTuple):
    """A Gaussian: mean (..., p) and covariance (..., p, p), both of NumPy or both of JAX."""

    mean: Any
    covariance: Any

    def marginal(self, places: Places) -> Potential:
        """Return the density N(v; mean, covariance) of some variables."""
        at = list(places)
        mean, block = self.mean[..., at], self.covariance[..., at, :][..., :, at]
        inverse, log_determinant = invert_definite(block)
        information = (inverse @ mean[..., None])[..., 0]
        constant = -(len(at) * LOG_TWO_PI + log_determinant + (mean * information).sum(-1)) / 2
        return Potential(places, inverse, information, constant)

    def combine(self, pieces: Iterable[Potential], signs: Iterable[int]) -> Potential:
        """Return the product of the pieces with sign 1 over that of the pieces with sign -1."""
        pieces, signs = list(pieces), list(signs)
        places = union(piece.places for piece in pieces)
        wide = [on_places(piece, places) for piece in pieces]

        def add(values: Iterable[Any]) -> Any:
            return sum(sign * value for sign, value in zip(signs, values, strict=True))

        return Potential(
            places, *(add(parts) for parts in zip(*(piece[1:] for piece in wide), strict=True))
        )

    def integrate(self, piece: Potential, places: Collection[int]) -> Potential:
        """Integrate by a Schur complement; the mass goes into the constant."""
        kept, gone, stay = split(piece.places, places)
        precision, pull = piece.precision, piece.information[..., gone]
        inverse, log_determinant = invert_definite(precision[..., gone[:, None], gone])
        cross = precision[..., stay[:, None], gone]
        centre = (inverse @ pull[..., None])[..., 0]
        return Potential(
            kept,
            precision[..., stay[:, None], stay] - cross @ inverse @ cross.swapaxes(-1, -2),
            piece.information[..., stay] - (cross @ centre[..., None])[..., 0],
            piece.constant
            + (len(gone) * LOG_TWO_PI - log_determinant + (pull * centre).sum(-1)) / 2,
        )


def on_places(piece: Potential, places: Places) -> Potential:
    """Return the same potential over more variables, on which it does not depend."""
    if piece.places == places:
        return piece
    if isinstance(piece.precision, np.ndarray):
        at, batch = np.searchsorted(places, piece.places), piece.information.shape[:-1]
        precision, information = (
            np.zeros((*batch, len(places), len(places))),
            np.zeros((*batch, len(places))),
        )
        precision[..., at[:, None], at], information[..., at] = piece.precision, piece.information
        return Potential(places, precision, information, piece.constant)
    put = spread(piece.places, places).astype(float)
    return Potential(places, put.T @ piece.precision @ put, piece.information @ put, piece.constant)
