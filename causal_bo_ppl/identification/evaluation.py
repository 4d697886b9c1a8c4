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

ROUNDING = 1e-8  # of a covariance relative to the two standard deviations
Array = Any  # NumPy's or JAX's; traced under jit


def slopes_of(
    expression: Expression, graph: CausalGraph, target: str, effective: Names, covariance: Array
) -> Array:
    """(..., d) slopes of the members that affect the target; covariance (..., p, p)."""
    covariance = read_covariance(covariance, graph)
    if isinstance(covariance, jax.Array):
        return _compiled(expression, graph, target, effective, covariance)
    slopes = _slopes(expression, graph, target, effective, covariance)
    if not np.isfinite(slopes).all():
        raise DataError(
            f"the estimand of do({listed(effective)}) has no finite value at this covariance: one of its integrals "
            "diverges; a denominator may be too close to zero"
        )
    return slopes


def _slopes(
    expression: Expression, graph: CausalGraph, target: str, effective: Names, covariance: Array
) -> Array:
    return _effect(expression, graph, target, effective, *_standardise(covariance))[0]


def _standardise(covariance: Array) -> tuple[Reals, Array]:
    """A centred Gaussian of variance 1, so that units do not cost digits, and the standard deviations."""
    xp = covariance.__array_namespace__()
    spread = xp.sqrt(xp.diagonal(covariance, axis1=-2, axis2=-1))
    return Reals(
        xp.zeros(spread.shape), covariance / (spread[..., :, None] * spread[..., None, :])
    ), spread


def _effect(
    expression: Expression,
    graph: CausalGraph,
    target: str,
    effective: Names,
    model: Reals,
    spread: Array,
    memo: dict[Expression, Potential] | None = None,
) -> tuple[Array, Array]:
    """Slopes -K_yx / K_yy (..., d) and variance 1 / K_yy (...) of the target in the estimand's potential."""
    places = {name: place for place, name in enumerate(graph.nodes)}
    found = evaluate(expression, model, places, memo)
    at = np.array([found.places.index(places[name]) for name in (target, *effective)])
    row, sizes = (
        found.precision[..., at[0], :][..., at],
        spread[..., [places[name] for name in (target, *effective)]],
    )
    return -row[..., 1:] / row[..., :1] * sizes[..., :1] / sizes[..., 1:], sizes[..., 0] ** 2 / row[
        ..., 0
    ]


def effects_of(
    asked: Iterable[tuple[Expression, Names]],
    graph: CausalGraph,
    target: str,
    covariance: np.ndarray,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Slopes (n, d) and variance of the target (n,) under each (estimand, effective set), for covariances (n, p, p).

    Conditionals are computed once for all sets. NaN where an estimand is not defined.
    """
    model, spread = _standardise(covariance)
    memo: dict[Expression, Potential] = {}
    found = [
        _effect(estimand, graph, target, effective, model, spread, memo)
        for estimand, effective in asked
    ]
    defined = [
        (np.isfinite(slopes).all(axis=-1) & (variance > 0))[..., None] for slopes, variance in found
    ]
    return [
        (np.where(fine, slopes, np.nan), np.where(fine[..., 0], variance, np.nan))
        for fine, (slopes, variance) in zip(defined, found, strict=True)
    ]


_compiled = jax.jit(_slopes, static_argnums=(0, 1, 2, 3))


def read_covariance(covariance: Array, graph: CausalGraph) -> Array:
    """A batch of covariances in graph order; what is not traced must be symmetric, finite and positive definite."""
    require_float64()
    found, size = _read_array(covariance, graph, "covariance"), len(graph.nodes)
    if found.ndim < 2 or found.shape[-2:] != (size, size):
        raise DataError(
            f"the covariance needs the shape (..., {size}, {size}) in the order {listed(graph.nodes)}, "
            f"got {found.shape}"
        )
    if isinstance(found, jax.core.Tracer):
        return found
    values = np.asarray(found)
    spread = np.sqrt(np.abs(np.diagonal(values, axis1=-2, axis2=-1)))
    skew = np.abs(values - np.swapaxes(values, -1, -2))
    if not (skew <= ROUNDING * spread[..., :, None] * spread[..., None, :]).all():  # NaN fails
        raise DataError("the covariance must be finite and symmetric")
    found = (found + found.swapaxes(-1, -2)) / 2
    scale = np.where(spread > 0, spread, 1.0)
    if not (
        np.linalg.eigvalsh(np.asarray(found) / scale[..., :, None] / scale[..., None, :]) > 0
    ).all():
        raise DataError(
            "the covariance must be positive definite; are two variables the same, or one constant?"
        )
    return found


def read_mean(mean: Array, graph: CausalGraph, batch: tuple[int, ...]) -> Array:
    """A batch of means in graph order."""
    found = _read_array(mean, graph, "mean")
    if found.ndim < 1 or found.shape[-1] != len(graph.nodes) or found.shape[:-1] not in (batch, ()):
        wanted = ", ".join(map(str, (*batch, len(graph.nodes))))
        raise DataError(
            f"the mean needs the shape ({wanted}) in the order {listed(graph.nodes)}, got {found.shape}"
        )
    if not isinstance(found, jax.core.Tracer) and not np.isfinite(np.asarray(found)).all():
        raise DataError("the mean must be finite")
    return found


def _read_array(given: Array, graph: CausalGraph, what: str) -> Array:
    """float64 of NumPy or JAX; a table is put into the graph's order by its labels."""
    if isinstance(given, jax.Array):
        return given.astype(float)
    if isinstance(given, pd.DataFrame | pd.Series):
        axes = [[str(label) for label in axis] for axis in given.axes]
        if any(sorted(axis) != sorted(graph.nodes) for axis in axes):
            raise DataError(
                f"the {what} is labelled {listed(axes[0])}; its labels must be {listed(graph.nodes)}"
            )
        places = [np.array([axis.index(name) for name in graph.nodes]) for axis in axes]
        given = given.to_numpy()[np.ix_(*places)]
    try:
        found = np.asarray(given)
    except ValueError:
        raise DataError(f"the {what} has ragged rows") from None
    if found.dtype.kind not in "biuf":
        raise DataError(f"the {what} must hold real numbers, got {found.dtype}")
    return found.astype(float)


def read_query(query: Mapping[str, Array], intervened: Names) -> dict[str, Array]:
    """{variable: value} of exactly the variables of the set."""
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
    """A finite number, or an array of them."""
    if isinstance(value, jax.core.Tracer):
        return value
    found = value if isinstance(value, jax.Array | np.ndarray) else read_number(name, value)
    if isinstance(found, np.ndarray) and found.dtype.kind not in "biuf":
        raise DomainError(f"the values of {name!r} must be real numbers, got {found.dtype}")
    if not np.isfinite(np.asarray(found, float)).all():
        raise DomainError(f"do({name} = {value}) is no intervention; give a finite value")
    return found


def as_dict(slopes: Array, effective: Names, intervened: Names) -> dict[str, Array]:
    """{variable: slope}; a member whose every path to the target another member cuts has the slope 0."""
    zero = slopes.__array_namespace__().zeros(slopes.shape[:-1])
    found = {name: slopes[..., place] for place, name in enumerate(effective)}
    return {name: found.get(name, zero)[()] for name in intervened}


def response(
    slopes: Array,
    mean: Array,
    graph: CausalGraph,
    target: str,
    effective: Names,
    query: Mapping[str, Array],
) -> Array:
    """E[Y | do(query)] = mean_Y + slopes' (x - mean_s)."""
    found = mean[..., graph.index(target)]
    for place, name in enumerate(effective):
        found = found + slopes[..., place] * (query[name] - mean[..., graph.index(name)])
    return found[()]
