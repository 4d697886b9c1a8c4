"""What does an estimand come to in a Gaussian model?

Every piece is a potential exp(c + h'v - v'Kv/2) over its free variables: P(A | B) is the potential of A and B less
that of B, a product adds, a ratio subtracts, a sum is a Schur complement. NumPy arrays are computed by NumPy, at
once; JAX arrays by JAX, so that an estimand can be compiled and differentiated. Leading axes are a batch.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from y0.dsl import Expression, Fraction, One, Probability, Product, Sum

from causal_bo_ppl.linalg import invert_definite

Scope = tuple[int, ...]
LOG_TWO_PI = math.log(2 * math.pi)


class Unsound(Exception):
    """The expression is no density of its variables, whatever the model."""


class Moments(NamedTuple):
    """Mean (..., p) and covariance (..., p, p) of a Gaussian, both of NumPy or both of JAX."""

    mean: Any
    covariance: Any


class Potential(NamedTuple):
    """exp(constant + information'v - v' precision v / 2) over the variables v at the places of `scope`."""

    scope: Scope
    precision: Any
    information: Any
    constant: Any


def evaluate(
    expression: Expression,
    moments: Moments,
    places: Mapping[str, int],
    memo: Mapping[Expression, Potential] | None = None,
) -> Potential:
    """The potential of an expression; pieces found in `memo` are not computed again."""
    if memo and expression in memo:
        return memo[expression]

    def parts(inner: Iterable[Expression]) -> list[Potential]:
        return [evaluate(part, moments, places, memo) for part in inner]

    if isinstance(expression, Probability):
        children, given = (
            tuple(sorted(places[v.name] for v in side)) for side in (expression.children, expression.parents)
        )
        whole = _marginal(moments, tuple(sorted((*children, *given))))
        return _combine([whole, _marginal(moments, given)], [1, -1]) if given else whole
    if isinstance(expression, Product):
        return _combine(found := parts(expression.expressions), [1] * len(found))
    if isinstance(expression, Fraction):
        return _combine(parts([expression.numerator, expression.denominator]), [1, -1])
    if isinstance(expression, Sum):
        [inner] = parts([expression.expression])
        return integrate(inner, {places[v.name] for v in expression.ranges})
    if isinstance(expression, One):
        return _marginal(moments, ())
    raise Unsound(f"{type(expression).__name__} is no density")


def on_scope(potential: Potential, scope: Scope) -> Potential:
    """The same potential over more variables, on which it does not depend."""
    if potential.scope == scope:
        return potential
    place = np.array(potential.scope, int)[:, None] == np.array(scope, int)
    spread = place.astype(float)  # (k, n), a single 1 in every row
    return Potential(scope, spread.T @ potential.precision @ spread, potential.information @ spread, potential.constant)


def _combine(potentials: list[Potential], signs: list[int]) -> Potential:
    scope = tuple(sorted({variable for potential in potentials for variable in potential.scope}))
    spread = [on_scope(potential, scope) for potential in potentials]

    def add(pieces: Iterable[Any]) -> Any:
        return sum(sign * piece for sign, piece in zip(signs, pieces, strict=True))

    return Potential(
        scope,
        add(potential.precision for potential in spread),
        add(potential.information for potential in spread),
        add(potential.constant for potential in spread),
    )


def _marginal(moments: Moments, scope: Scope) -> Potential:
    """The density of some variables, log N(v; mean, covariance), as a potential."""
    take = np.array(scope, int)
    mean, block = moments.mean[..., take], moments.covariance[..., take[:, None], take]
    xp = block.__array_namespace__()
    inverse, log_determinant = invert_definite(block)
    log_volume = len(scope) * LOG_TWO_PI + log_determinant
    information = (inverse @ mean[..., None])[..., 0]
    return Potential(scope, inverse, information, -(log_volume + xp.sum(mean * information, -1)) / 2)


def integrate(potential: Potential, variables: set[int]) -> Potential:
    """The potential of the other variables after the sum over some; NaN where it diverges."""
    if not variables <= set(potential.scope):
        raise Unsound("a sum runs over a variable that its expression does not hold")
    kept = tuple(variable for variable in potential.scope if variable not in variables)
    gone, stay = (np.flatnonzero([(v in variables) is leaves for v in potential.scope]) for leaves in (True, False))
    precision, information = potential.precision, potential.information
    xp = precision.__array_namespace__()
    inverse, log_determinant = invert_definite(precision[..., gone[:, None], gone])
    cross = precision[..., stay[:, None], gone]
    centre = (inverse @ information[..., gone, None])[..., 0]
    fit = xp.sum(information[..., gone] * centre, -1)
    log_mass = (len(gone) * LOG_TWO_PI - log_determinant + fit) / 2
    return Potential(
        kept,
        precision[..., stay[:, None], stay] - cross @ inverse @ xp.matrix_transpose(cross),
        information[..., stay] - (cross @ centre[..., None])[..., 0],
        potential.constant + log_mass,
    )
