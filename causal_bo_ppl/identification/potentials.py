"""What does an estimand come to in a Gaussian model?

Every piece is a potential over its free variables, exp(c + h'v - v'Kv/2): P(A | B) is the potential of A and B less
that of B, a product adds, a ratio subtracts, a sum is a Schur complement. `reals` does that arithmetic in floats,
`residues` without rounding.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

import numpy as np
from y0.dsl import Expression, Fraction, One, Probability, Product, Sum

Places = tuple[int, ...]
Piece = TypeVar("Piece")


class Unsound(Exception):
    """The expression is no density of its variables, whatever the model."""


class Algebra(Protocol[Piece]):
    """Potentials of one Gaussian model, or of a batch of them."""

    def marginal(self, places: Places) -> Piece:
        """The density of some variables."""

    def combine(self, pieces: Iterable[Piece], signs: Iterable[int]) -> Piece:
        """The product of those with sign 1 over that of those with sign -1."""

    def integrate(self, piece: Piece, places: Collection[int]) -> Piece:
        """The sum over some of its variables."""


def evaluate(
    expression: Expression,
    algebra: Algebra[Piece],
    places: Mapping[str, int],
    memo: MutableMapping[Expression, Piece] | None = None,
) -> Piece:
    """The potential of an expression; pieces in `memo` are not computed again, and conditionals are kept there."""
    if memo and expression in memo:
        return memo[expression]

    def parts(inner: Iterable[Expression]) -> list[Piece]:
        return [evaluate(part, algebra, places, memo) for part in inner]

    if isinstance(expression, Probability):
        found = _conditional(expression, algebra, places)
        if memo is not None:
            memo[expression] = found
        return found
    if isinstance(expression, Product):
        return algebra.combine(parts(expression.expressions), [1] * len(expression.expressions))
    if isinstance(expression, Fraction):
        return algebra.combine(parts([expression.numerator, expression.denominator]), [1, -1])
    if isinstance(expression, Sum):
        inner = evaluate(expression.expression, algebra, places, memo)
        return algebra.integrate(inner, {places[found.name] for found in expression.ranges})
    if isinstance(expression, One):
        return algebra.marginal(())
    raise Unsound(f"{type(expression).__name__} is no density")


def _conditional(expression: Probability, algebra: Algebra[Piece], places: Mapping[str, int]) -> Piece:
    children, given = ({places[found.name] for found in side} for side in (expression.children, expression.parents))
    if children & given:
        raise Unsound("a variable stands on both sides of a bar")
    whole = algebra.marginal(tuple(sorted(children | given)))
    return algebra.combine([whole, algebra.marginal(tuple(sorted(given)))], [1, -1]) if given else whole


def spread(places: Places, wider: Places) -> Any:
    """(k, n) with a single 1 in every row: puts k variables to their places among n."""
    return (np.array(places, int)[:, None] == np.array(wider, int)).astype(int)


def split(places: Places, gone: Collection[int]) -> tuple[Places, Any, Any]:
    """The places that stay, and the positions of those that go and of those that stay."""
    if not set(gone) <= set(places):
        raise Unsound("a sum runs over a variable that its expression does not hold")
    leaves = np.array([place in gone for place in places], bool)
    return tuple(place for place in places if place not in gone), np.flatnonzero(leaves), np.flatnonzero(~leaves)


def union(pieces: Iterable[Places]) -> Places:
    """All places of several, in order."""
    return tuple(sorted({place for places in pieces for place in places}))
