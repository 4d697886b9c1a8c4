"""Are these numbers fit for a formula of the theory?"""

from numbers import Integral
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, NumericalError
from causal_bo_ppl.inputs import read_number
from causal_bo_ppl.problem import Queries


def read_array(name: str, given: Any) -> np.ndarray:
    """Return float64 numbers, of any shape; whole numbers are exact in them, 32-bit floats and text are refused."""
    try:
        found = np.asarray(given)
    except ValueError:
        raise ModelError(f"{name} must be an array of numbers; its rows differ in length") from None
    if found.dtype.kind not in "iu" and found.dtype != np.float64:
        raise ModelError(
            f"{name} must hold float64 numbers, got {found.dtype}; compute it in float64 from the start"
        )
    return np.asarray(found, float)


def require_finite(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array if it holds neither NaN nor infinity."""
    if not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise NumericalError(
            f"{name} holds {array[place]} at {place}; find out where it comes from, or change units"
        )
    return array


def read_features(features: Any) -> np.ndarray:
    """(M, r) features of at least one query."""
    found = read_array("features", features)
    if found.ndim != 2 or not len(found):
        raise ModelError(
            f"features need the shape (M, r), a row for every query; got {found.shape}"
        )
    return require_finite("features", found)


def read_noise(noise: Any, count: int) -> np.ndarray:
    """(count,) variances of one outcome each, from one for all or one for each."""
    found = read_array("noise", noise)
    if found.shape not in ((), (count,)):
        raise ModelError(
            f"noise is one variance, or one for each of the {count} queries; got the shape {found.shape}"
        )
    if not ((found > 0) & np.isfinite(found)).all():
        bad = found[~((found > 0) & np.isfinite(found))].flat[0]
        raise ModelError(
            f"noise must be a positive, finite variance, got {bad:g}; exact outcomes have no finite gain"
        )
    return np.broadcast_to(found, (count,))


def require_queries(queries: Queries) -> Queries:
    """Return the batch if it holds any."""
    if not isinstance(queries, Queries):
        raise ModelError(
            f"queries must be Queries, got {type(queries).__name__}; build them with problem.queries"
        )
    if not len(queries):
        raise ModelError("there are no queries; take some, such as problem.vertices()")
    return queries


def read_size(name: str, number: object, *, positive: bool = True) -> float:
    """Return a finite number above 0, or at least 0."""
    found = read_number(name, number)
    if not (0 < found < np.inf or (found == 0 and not positive)):
        wanted = "positive" if positive else "0 or more"
        raise ModelError(f"{name} must be finite and {wanted}, got {found:g}")
    return found


def read_count(name: str, number: object, least: int) -> int:
    """Return a whole number, at least so large."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ModelError(f"{name} must be a whole number, at least {least}; got {number!r}")
    return int(number)


def read_share(name: str, number: object) -> float:
    """Return a number strictly between 0 and 1."""
    found = read_number(name, number)
    if not 0 < found < 1:
        raise ModelError(f"{name} must lie between 0 and 1, got {found:g}")
    return found
