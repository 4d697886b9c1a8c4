"""Which value does an estimand have in a Gaussian model?

Every piece is a potential over its free variables, exp(c + h'v - v'Kv/2): P(A | B) is the potential
of A and B less that of B, a product adds, a ratio subtracts, a sum is a Schur complement. `Reals`
does that arithmetic in floats, by NumPy or by JAX: leading axes are a batch, and a potential is NaN
if an integral diverges. `finite_field.Residues` does it without rounding.

Shifting every variable shifts an estimand with it, so its intercept is mean_Y - slopes' mean_s.
"""

import math
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
import pandas as pd
from y0.dsl import Expression, Fraction, One, Probability, Product, Sum

from causal_bo_ppl.errors import DataError, DomainError, listed, unknown
from causal_bo_ppl.inputs import read_number, require_float64
from causal_bo_ppl.linalg import invert_definite

if TYPE_CHECKING:
    from causal_bo_ppl.graph import CausalGraph

Positions = tuple[int, ...]
Piece = TypeVar("Piece")
LOG_TWO_PI = math.log(2 * math.pi)
ASYMMETRY = 1e-8  # largest asymmetry of a covariance, relative to the two standard deviations
Array = Any  # NumPy's or JAX's; traced under jit


class Unsound(Exception):
    """The expression is no density of its variables, whatever the model."""


class Algebra(Protocol[Piece]):
    """The arithmetic of potentials in one Gaussian model, or in a batch of them."""

    def marginal(self, positions: Positions) -> Piece:
        """Return the density of some variables."""

    def combine(self, pieces: Iterable[Piece], signs: Iterable[int]) -> Piece:
        """Return the product of the pieces with sign 1 over that of the pieces with sign -1."""

    def integrate(self, piece: Piece, positions: Collection[int]) -> Piece:
        """Return the sum of a piece over some of its variables."""


def evaluate(
    expression: Expression,
    algebra: Algebra[Piece],
    positions: Mapping[str, int],
    memo: MutableMapping[Expression, Piece] | None = None,
) -> Piece:
    """Return the potential of an expression over the variables at these positions.

    Expressions in `memo` are not computed again, and conditionals are added to it.
    """
    memo = {} if memo is None else memo
    if expression in memo:
        return memo[expression]

    def parts(inner: Iterable[Expression]) -> list[Piece]:
        return [evaluate(part, algebra, positions, memo) for part in inner]

    if isinstance(expression, Probability):
        memo[expression] = _conditional(expression, algebra, positions)
        return memo[expression]
    if isinstance(expression, Product):
        return algebra.combine(parts(expression.expressions), [1] * len(expression.expressions))
    if isinstance(expression, Fraction):
        return algebra.combine(parts([expression.numerator, expression.denominator]), [1, -1])
    if isinstance(expression, Sum):
        inner = evaluate(expression.expression, algebra, positions, memo)
        return algebra.integrate(inner, {positions[bound.name] for bound in expression.ranges})
    if isinstance(expression, One):
        return algebra.marginal(())
    raise Unsound(f"{type(expression).__name__} is no density")


def _conditional(
    expression: Probability, algebra: Algebra[Piece], positions: Mapping[str, int]
) -> Piece:
    children, given = (
        {positions[one.name] for one in side} for side in (expression.children, expression.parents)
    )
    if children & given:
        raise Unsound("a variable stands on both sides of a bar")
    whole = algebra.marginal(tuple(sorted(children | given)))
    if not given:
        return whole
    return algebra.combine([whole, algebra.marginal(tuple(sorted(given)))], [1, -1])


def placement(positions: Positions, wider: Positions) -> Any:
    """Return the (k, n) matrix of zeros and ones that embeds k variables into n."""
    return (np.array(positions, int)[:, None] == np.array(wider, int)).astype(int)


def split(positions: Positions, gone: Collection[int]) -> tuple[Positions, Any, Any]:
    """Return the variables that stay, and the indices of those that go and of those that stay."""
    if not set(gone) <= set(positions):
        raise Unsound("a sum runs over a variable that its expression does not hold")
    leaves = np.array([position in gone for position in positions], bool)
    return (
        tuple(position for position in positions if position not in gone),
        np.flatnonzero(leaves),
        np.flatnonzero(~leaves),
    )


def union(pieces: Iterable[Positions]) -> Positions:
    """Return the positions of all variables of several potentials, in order."""
    return tuple(sorted({position for positions in pieces for position in positions}))


class Potential(NamedTuple):
    """The function exp(constant + information'v - v' precision v / 2) of the v at `positions`."""

    positions: Positions
    precision: Any
    information: Any
    constant: Any


class Reals(NamedTuple):
    """A Gaussian: mean (..., p) and covariance (..., p, p), both of NumPy or both of JAX."""

    mean: Any
    covariance: Any

    def marginal(self, positions: Positions) -> Potential:
        """Return the density N(v; mean, covariance) of some variables."""
        chosen = list(positions)
        mean, block = self.mean[..., chosen], self.covariance[..., chosen, :][..., :, chosen]
        inverse, log_determinant = invert_definite(block)
        information = (inverse @ mean[..., None])[..., 0]
        constant = -(len(chosen) * LOG_TWO_PI + log_determinant + (mean * information).sum(-1)) / 2
        return Potential(positions, inverse, information, constant)

    def combine(self, pieces: Iterable[Potential], signs: Iterable[int]) -> Potential:
        """Return the product of the pieces with sign 1 over that of the pieces with sign -1."""
        pieces, signs = list(pieces), list(signs)
        positions = union(piece.positions for piece in pieces)
        if isinstance(self.covariance, np.ndarray):
            return _add_up(pieces, signs, positions)
        wide = [on_positions(piece, positions) for piece in pieces]

        def add(values: Iterable[Any]) -> Any:
            return sum(sign * value for sign, value in zip(signs, values, strict=True))

        return Potential(
            positions, *(add(parts) for parts in zip(*(piece[1:] for piece in wide), strict=True))
        )

    def integrate(self, piece: Potential, positions: Collection[int]) -> Potential:
        """Integrate by a Schur complement; the mass goes into the constant."""
        kept, gone, stay = split(piece.positions, positions)
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


def on_positions(piece: Potential, positions: Positions) -> Potential:
    """Return the same potential over more variables, on which it does not depend."""
    if piece.positions == positions:
        return piece
    if isinstance(piece.precision, np.ndarray):
        return _add_up([piece], [1], positions)
    put = placement(piece.positions, positions).astype(float)
    return Potential(
        positions, put.T @ piece.precision @ put, piece.information @ put, piece.constant
    )


def _add_up(pieces: Sequence[Potential], signs: Sequence[int], positions: Positions) -> Potential:
    """Return the signed sum of NumPy's potentials over `positions`.

    Each is added where its variables stand, without zeros for all the others.
    """
    batch = np.broadcast_shapes(*(piece.information.shape[:-1] for piece in pieces))
    information = np.zeros((*batch, len(positions)))
    precision = np.zeros((*batch, len(positions), len(positions)))
    constant = np.zeros(batch)
    for piece, sign in zip(pieces, signs, strict=True):
        index = np.searchsorted(positions, piece.positions)
        precision[..., index[:, None], index] += sign * piece.precision
        information[..., index] += sign * piece.information
        constant += sign * piece.constant
    return Potential(positions, precision, information, constant)


def slopes_of(
    expression: Expression,
    graph: "CausalGraph",
    target: str,
    effective: tuple[str, ...],
    covariance: Array,
) -> Array:
    """Return the slopes (..., d) of the effective members, at covariances (..., p, p)."""
    covariance = read_covariance(covariance, graph)
    if isinstance(covariance, jax.Array):
        return _compiled(expression, graph, target, effective, covariance)
    slopes = _slopes(expression, graph, target, effective, covariance)
    if not np.isfinite(slopes).all():
        raise DataError(
            f"the estimand of do({listed(effective)}) has no finite value at this covariance: "
            "one of its integrals diverges; a denominator may be too close to zero"
        )
    return slopes


def _slopes(
    expression: Expression,
    graph: "CausalGraph",
    target: str,
    effective: tuple[str, ...],
    covariance: Array,
) -> Array:
    return _effect(expression, graph, target, effective, *_standardise(covariance))[0]


def _standardise(covariance: Array) -> tuple[Reals, Array]:
    """Return a centred Gaussian with variances of 1, and the standard deviations.

    In these coordinates no digits are lost to different units.
    """
    xp = covariance.__array_namespace__()
    spread = xp.sqrt(xp.diagonal(covariance, axis1=-2, axis2=-1))
    correlation = covariance / (spread[..., :, None] * spread[..., None, :])
    return Reals(xp.zeros(spread.shape), correlation), spread


def _effect(
    expression: Expression,
    graph: "CausalGraph",
    target: str,
    effective: tuple[str, ...],
    model: Reals,
    spread: Array,
    memo: dict[Expression, Potential] | None = None,
) -> tuple[Array, Array]:
    """Return slopes (..., d) and variance (...) of the target in the potential of the estimand.

    With the precision K of the potential they are -K_yx / K_yy and 1 / K_yy, times the units.
    """
    positions = graph.positions
    potential = evaluate(expression, model, positions, memo)
    asked = [positions[name] for name in (target, *effective)]
    index = [potential.positions.index(position) for position in asked]
    row, sizes = potential.precision[..., index[0], :][..., index], spread[..., asked]
    slopes = -row[..., 1:] / row[..., :1] * sizes[..., :1] / sizes[..., 1:]
    return slopes, sizes[..., 0] ** 2 / row[..., 0]


def effects_of(
    asked: Iterable[tuple[Expression, tuple[str, ...]]],
    graph: "CausalGraph",
    target: str,
    covariance: np.ndarray,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return slopes (n, d) and variance (n,) of the target under each (estimand, effective set).

    The covariances have the shape (n, p, p). Conditionals are computed once for all sets. The
    result is NaN where an estimand is not defined.
    """
    model, spread = _standardise(covariance)
    memo: dict[Expression, Potential] = {}
    effects = []
    for estimand, effective in asked:
        slopes, variance = _effect(estimand, graph, target, effective, model, spread, memo)
        defined = np.isfinite(slopes).all(axis=-1) & (variance > 0)
        effects.append(
            (np.where(defined[..., None], slopes, np.nan), np.where(defined, variance, np.nan))
        )
    return effects


_compiled = jax.jit(_slopes, static_argnums=(0, 1, 2, 3))


def read_covariance(covariance: Array, graph: "CausalGraph") -> Array:
    """Return a batch of covariances in graph order.

    They must be symmetric, finite and positive definite; what JAX traces is not checked.
    """
    require_float64()
    array, size = _read_array(covariance, graph, "covariance"), len(graph.nodes)
    if array.ndim < 2 or array.shape[-2:] != (size, size):
        raise DataError(
            f"the covariance needs the shape (..., {size}, {size}) in the order "
            f"{listed(graph.nodes)}, got {array.shape}"
        )
    if isinstance(array, jax.core.Tracer):
        return array
    values = np.asarray(array)
    spread = np.sqrt(np.abs(np.diagonal(values, axis1=-2, axis2=-1)))
    skew = np.abs(values - np.swapaxes(values, -1, -2))
    if not (skew <= ASYMMETRY * spread[..., :, None] * spread[..., None, :]).all():  # NaN fails
        raise DataError("the covariance must be finite and symmetric")
    array = (array + array.swapaxes(-1, -2)) / 2
    scale = np.where(spread > 0, spread, 1.0)
    if not (
        np.linalg.eigvalsh(np.asarray(array) / scale[..., :, None] / scale[..., None, :]) > 0
    ).all():
        raise DataError(
            "the covariance must be positive definite; are two variables the same, or one constant?"
        )
    return array


def read_mean(mean: Array, graph: "CausalGraph", batch: tuple[int, ...]) -> Array:
    """Return a batch of means in graph order, of the shape (*batch, p) or (p,)."""
    array = _read_array(mean, graph, "mean")
    if array.ndim < 1 or array.shape[-1] != len(graph.nodes) or array.shape[:-1] not in (batch, ()):
        wanted = ", ".join(map(str, (*batch, len(graph.nodes))))
        raise DataError(
            f"the mean needs the shape ({wanted}) in the order {listed(graph.nodes)}, "
            f"got {array.shape}"
        )
    if not isinstance(array, jax.core.Tracer) and not np.isfinite(np.asarray(array)).all():
        raise DataError("the mean must be finite")
    return array


def _read_array(given: Array, graph: "CausalGraph", what: str) -> Array:
    """Return a float64 array of NumPy or JAX; the labels of a table put it into graph order."""
    if isinstance(given, jax.Array):
        return given.astype(float)
    if isinstance(given, pd.DataFrame | pd.Series):
        axes = [[str(label) for label in axis] for axis in given.axes]
        if any(sorted(axis) != sorted(graph.nodes) for axis in axes):
            raise DataError(
                f"the {what} is labelled {listed(axes[0])}; "
                f"its labels must be {listed(graph.nodes)}"
            )
        positions = [np.array([axis.index(name) for name in graph.nodes]) for axis in axes]
        given = given.to_numpy()[np.ix_(*positions)]
    try:
        array = np.asarray(given)
    except ValueError:
        raise DataError(f"the {what} has ragged rows") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"the {what} must hold real numbers, got {array.dtype}")
    return array.astype(float)


def read_query(query: Mapping[str, Array], intervened: tuple[str, ...]) -> dict[str, Array]:
    """Return a query as {variable: value}; it must have exactly the variables of the set."""
    if not isinstance(query, Mapping):
        raise DomainError(f"a query is a mapping such as {{'X': 1.0}}, got {query!r}")
    for name in query:
        if name not in intervened:
            raise DomainError(unknown("intervened variable", name, intervened))
    missing = [name for name in intervened if name not in query]
    if missing:
        raise DomainError(
            f"the query lacks a value for {listed(missing)}; the set is {{{listed(intervened)}}}"
        )
    return {name: _read_value(name, query[name]) for name in intervened}


def _read_value(name: str, value: Array) -> Array:
    """Return a finite number, or an array of them."""
    if isinstance(value, jax.core.Tracer):
        return value
    number = value if isinstance(value, jax.Array | np.ndarray) else read_number(name, value)
    if isinstance(number, np.ndarray) and number.dtype.kind not in "biuf":
        raise DomainError(f"the values of {name!r} must be real numbers, got {number.dtype}")
    if not np.isfinite(np.asarray(number, float)).all():
        raise DomainError(f"do({name} = {value}) is no intervention; give a finite value")
    return number


def as_dict(
    slopes: Array, effective: tuple[str, ...], intervened: tuple[str, ...]
) -> dict[str, Array]:
    """Return {variable: slope}; a member that others cut off from the target has the slope 0."""
    zero = slopes.__array_namespace__().zeros(slopes.shape[:-1])
    by_name = {name: slopes[..., position] for position, name in enumerate(effective)}
    return {name: by_name.get(name, zero)[()] for name in intervened}


def response(
    slopes: Array,
    mean: Array,
    graph: "CausalGraph",
    target: str,
    effective: tuple[str, ...],
    query: Mapping[str, Array],
) -> Array:
    """Return E[Y | do(query)] = mean_Y + slopes' (x - mean_s)."""
    expected = mean[..., graph.index(target)]
    for position, name in enumerate(effective):
        expected = expected + slopes[..., position] * (query[name] - mean[..., graph.index(name)])
    return expected[()]
