"""What does a verified estimand say about given means and covariances?

Shifting every variable shifts an estimand with it, so its intercept is mean_Y - slopes' mean_s.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from y0.dsl import Expression

from causal_bo_ppl.errors import DataError, DomainError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.potentials import Potential, Reals, evaluate
from causal_bo_ppl.identification.reduction import Names
from causal_bo_ppl.inputs import read_number, require_float64

ROUNDING = 1e-8  # largest asymmetry of a covariance, relative to the two standard deviations
Array = Any  # NumPy's or JAX's; traced under jit


def slopes_of(
    expression: Expression, graph: CausalGraph, target: str, effective: Names, covariance: Array
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
    expression: Expression, graph: CausalGraph, target: str, effective: Names, covariance: Array
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
    graph: CausalGraph,
    target: str,
    effective: Names,
    model: Reals,
    spread: Array,
    memo: dict[Expression, Potential] | None = None,
) -> tuple[Array, Array]:
    """Return slopes (..., d) and variance (...) of the target in the potential of the estimand.

    With the precision K of the potential they are -K_yx / K_yy and 1 / K_yy, times the units.
    """
    places = {name: place for place, name in enumerate(graph.nodes)}
    potential = evaluate(expression, model, places, memo)
    asked = [places[name] for name in (target, *effective)]
    at = np.array([potential.places.index(place) for place in asked])
    row, sizes = potential.precision[..., at[0], :][..., at], spread[..., asked]
    slopes = -row[..., 1:] / row[..., :1] * sizes[..., :1] / sizes[..., 1:]
    return slopes, sizes[..., 0] ** 2 / row[..., 0]


def effects_of(
    asked: Iterable[tuple[Expression, Names]],
    graph: CausalGraph,
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


def read_covariance(covariance: Array, graph: CausalGraph) -> Array:
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
    if not (skew <= ROUNDING * spread[..., :, None] * spread[..., None, :]).all():  # NaN fails
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


def read_mean(mean: Array, graph: CausalGraph, batch: tuple[int, ...]) -> Array:
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


def _read_array(given: Array, graph: CausalGraph, what: str) -> Array:
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
        places = [np.array([axis.index(name) for name in graph.nodes]) for axis in axes]
        given = given.to_numpy()[np.ix_(*places)]
    try:
        array = np.asarray(given)
    except ValueError:
        raise DataError(f"the {what} has ragged rows") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"the {what} must hold real numbers, got {array.dtype}")
    return array.astype(float)


def read_query(query: Mapping[str, Array], intervened: Names) -> dict[str, Array]:
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


def as_dict(slopes: Array, effective: Names, intervened: Names) -> dict[str, Array]:
    """Return {variable: slope}; a member that others cut off from the target has the slope 0."""
    zero = slopes.__array_namespace__().zeros(slopes.shape[:-1])
    by_name = {name: slopes[..., place] for place, name in enumerate(effective)}
    return {name: by_name.get(name, zero)[()] for name in intervened}


def response(
    slopes: Array,
    mean: Array,
    graph: CausalGraph,
    target: str,
    effective: Names,
    query: Mapping[str, Array],
) -> Array:
    """Return E[Y | do(query)] = mean_Y + slopes' (x - mean_s)."""
    expected = mean[..., graph.index(target)]
    for place, name in enumerate(effective):
        expected = expected + slopes[..., place] * (query[name] - mean[..., graph.index(name)])
    return expected[()]
