"""Which numbers, keys, names and components does the package take from its users?

Each is checked once, where a user hands it over, so that nothing fails later: a number must have a
size whose squares and ratios float64 can hold, a key must be a JAX key or an int seed, a name must
be one that files and posterior groups can bear, and JAX must still compute in 64-bit floats. A
component is given by its name or as an object, whose optional methods are looked up by `offered`.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOError,
    DataError,
    DomainError,
    GraphError,
    NumericalError,
    ObservationError,
    SeedError,
    listed,
)

PROGRESS_DELAY = 3.0  # seconds without a progress bar


def require_float64() -> None:
    """Refuse to compute where JAX makes 32-bit floats.

    Importing the package switches 64-bit floats on, and anyone may switch them off again, for the
    whole process or within a context of this thread. Half of the digits would then be lost without
    a warning. The check costs less than a microsecond.
    """
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise NumericalError(
            "JAX was switched back to 32-bit floats, in which results lose half of their digits; "
            'switch 64-bit floats on again with jax.config.update("jax_enable_x64", True), or '
            "leave the context jax.enable_x64(False)"
        )


# Between what sizes s a column, its spread and its domain must lie, each in its own units. A slope
# is s_j / s_i, at most 1e100, and its variance 1e200. The derivative of an effect in a slope is
# s_i s_y / s_j, at most 1e150; its square, 1e300, is the largest product that is formed, and 1e-300
# the smallest. Float64 has all its digits from 2.2e-308 to 1.8e308: a factor of 1e8 is left for
# sums over observations, variables and queries.
SMALLEST_MAGNITUDE, LARGEST_MAGNITUDE = 1e-50, 1e50
LARGEST_SLOPE = LARGEST_MAGNITUDE / SMALLEST_MAGNITUDE  # the largest size of a slope


def read_number(name: object, number: object) -> float:
    """Return a variable's number as a float.

    A bool, a text, an array and an integer too large for a float are refused with DomainError.
    """
    try:
        if isinstance(number, bool | np.bool_ | str | bytes | complex):
            raise TypeError
        return float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise DomainError(f"the value of {name!r} must be a real number, got {number!r}") from None


def read_count(
    name: str,
    number: object,
    least: int,
    error: type[CausalBOError] = ArgumentError,
    most: float = math.inf,
) -> int:
    """Return a whole number from `least` to `most`, as a Python int; raise `error` otherwise."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise error(f"{name} must be a whole number, at least {least}; got {number!r}")
    if int(number) > most:
        raise error(f"{name} must be a whole number, at most {most:g}; got {number!r}")
    return int(number)


def read_amount(name: str, number: object, error: type[CausalBOError]) -> float:
    """Return a finite number that is at least 0 and can be squared; raise `error` otherwise."""
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    amount = as_float(number) if is_number else math.nan  # type: ignore[arg-type]
    if not 0 <= amount <= LARGEST_MAGNITUDE:
        limit = f"at most {LARGEST_MAGNITUDE:g}" if amount > LARGEST_MAGNITUDE else "at least 0"
        raise error(f"{name} must be a finite number, {limit}; got {number!r}")
    return amount


def require_one_of(
    name: str, given: object, choices: tuple[object, ...], error: type[CausalBOError]
) -> None:
    """Refuse what is none of a few texts and objects."""
    if not any(given is each or (isinstance(given, str) and given == each) for each in choices):
        raise error(f"{name} must be one of {listed(map(repr, choices))}; got {given!r}")


def read_share(name: str, number: object) -> float:
    """Return a number strictly between 0 and 1; raise ArgumentError otherwise."""
    share = read_number(name, number)
    if not 0 < share < 1:
        raise ArgumentError(f"{name} must lie between 0 and 1, got {share:g}")
    return share


def require_between(name: str, number: float, low: float, high: float) -> float:
    """Return a threshold if it is a number strictly between two others."""
    threshold = read_number(name, number)
    if not low < threshold < high:
        raise ArgumentError(f"{name} must lie between {low:g} and {high:g}, got {threshold:g}")
    return threshold


def read_size(name: str, number: object, *, positive: bool = True) -> float:
    """Return a finite number above 0, or one that may be 0 too; raise ArgumentError otherwise."""
    size = read_number(name, number)
    if not (0 < size < math.inf or (size == 0 and not positive)):
        wanted = "positive" if positive else "0 or more"
        raise ArgumentError(f"{name} must be finite and {wanted}, got {size:g}")
    return size


def as_float(number: SupportsFloat) -> float:
    """Return a real number as a float, a giant one as infinity with its sign."""
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number > 0 or -1)  # type: ignore[operator]


def size_fault(
    size: float, least: float = SMALLEST_MAGNITUDE, most: float = LARGEST_MAGNITUDE
) -> str:
    """Return the fault of a size that is neither 0 nor between `least` and `most`.

    The text is empty where nothing is wrong.
    """
    if size == 0 or least <= size <= most:
        return ""
    side, limit, fate = (
        ("above", most, "overflow") if size > most else ("below", least, "underflow")
    )
    return (
        f"{size:.3g}, {side} {limit:g}, where squares and ratios of squares {fate}; "
        "change its units"
    )


def read_returned(returned: object) -> np.ndarray:
    """Return what an experiment returned as an array of one dimension at least."""
    if np.ma.isMaskedArray(returned):
        raise ObservationError("the experiment returned a masked array; return plain numbers")
    try:
        if isinstance(returned, list | tuple) and any(each is None for each in returned):
            returned = [np.nan if each is None else each for each in returned]
        return np.atleast_1d(np.asarray(returned))
    except ValueError:
        raise ObservationError(
            "the experiment returned something ragged; return one number for each intervention"
        ) from None


def require_outcomes(outcomes: np.ndarray | float) -> None:
    """Refuse outcomes of the target that are too large to be squared.

    Small ones are as good as 0.
    """
    fault = size_fault(float(np.abs(outcomes).max(initial=0.0)), least=0.0)
    if fault:
        raise DataError(f"an outcome of the target has the size {fault}")


def as_key(key: jax.Array | int) -> jax.Array:
    """Return a JAX key: an int is taken as a seed, a key passes through."""
    require_float64()
    if isinstance(key, jax.Array) and (
        (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ())
        or (key.dtype == jnp.uint32 and key.shape == (2,))
    ):
        return key
    if isinstance(key, bool) or not isinstance(key, Integral) or not 0 <= int(key) < 2**63:
        raise SeedError(f"key must be one JAX key or an int seed from 0 to 2^63 - 1, got {key!r}")
    return jax.random.key(int(key))


def host_generator(key: jax.Array) -> np.random.Generator:
    """Return NumPy's generator for a key: nothing is compiled, whatever shapes are drawn."""
    data = np.asarray(
        jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    )
    return np.random.default_rng([int(word) for word in data])


def write_key(key: jax.Array) -> dict[str, object]:
    """Return the words of a key, and which generator they are for."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    words = np.ravel(jax.random.key_data(key) if is_typed else key)
    return {
        "words": [int(word) for word in words],
        "generator": str(jax.random.key_impl(key)) if is_typed else None,
    }


def read_key(written: Mapping[str, Any]) -> jax.Array:
    """Return the key that `write_key` wrote."""
    words = jnp.asarray(written["words"], jnp.uint32)
    if written["generator"] is None:
        return words
    found: jax.Array = jax.random.wrap_key_data(words, impl=written["generator"])
    return found


RESERVED_NAMES = frozenset(
    {"chain", "draw"}
)  # a posterior group silently drops variables of these names
# Names of parameters, and of columns of a table.
RESERVED_PATTERN = re.compile(r"(a|b|sd|s2|t|level|tau|est|row)\[.*\]|do\(.*\)")
LONGEST_NAME = 200  # bytes; netCDF fails at 256, after sampling


def offered(giver: object, name: str) -> Callable[..., Any] | None:
    """Return an optional method, or None where it is not offered."""
    method = getattr(giver, name, None)
    return method if callable(method) else None


def read_component(what: str, given: object, known: Mapping[str, Any], method: str) -> Any:
    """Return a component that is given by its name or as a user-defined object.

    Parameters
    ----------
    what:
        What it is, for messages.
    known:
        {name: component} of those that have names.
    method:
        The method that a component must have, besides a text `name`.
    """
    if isinstance(given, str) and given in known:
        return known[given]
    if isinstance(given, type):
        raise ArgumentError(
            f"{what} must be an object, got the class {given.__name__}; write {given.__name__}()"
        )
    if offered(given, method) is None or not isinstance(getattr(given, "name", None), str):
        raise ArgumentError(
            f"{what} must be one of {listed(known)}, or an object with a name and a method "
            f"`{method}`; got {given!r}"
        )
    return given


def require_name(name: object) -> str:
    """Return the name if a variable may bear it; raise GraphError otherwise."""
    if not isinstance(name, str):
        raise GraphError(
            f"variable names are strings, got {name!r} ({type(name).__name__}); use {str(name)!r}"
        )
    fault = _fault(name)
    if fault:
        raise GraphError(f"variable name {name!r} {fault}")
    return name


def _fault(name: str) -> str | None:
    if not name.strip():
        return "is blank; give the variable a name"
    if name != name.strip():
        return f"has surrounding whitespace; write {name.strip()!r}"
    if any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in name):
        return "holds a control or invisible character; remove it"
    if "/" in name:
        return "holds '/', which divides groups in files; use another character"
    if len(name.encode()) > LONGEST_NAME:
        return f"is {len(name.encode())} bytes long; at most {LONGEST_NAME} can be stored"
    if name in RESERVED_NAMES:
        return "is reserved for the dimensions of a posterior; rename the variable"
    if RESERVED_PATTERN.fullmatch(name):
        return "is reserved for a parameter or a table's column; rename the variable"
    return None


def read_json(text: str) -> Any:
    """Return the content of a JSON text; raise ValueError for repeated names and numbers like NaN.

    A RecursionError is raised for a text that is nested too deeply.
    """

    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _ in pairs)
        if len(counts) < len(pairs):
            repeated = next(name for name, count in counts.items() if count > 1)
            raise ValueError(f"it gives {repeated!r} more than once")
        return dict(pairs)

    def refuse_constant(number: str) -> NoReturn:
        raise ValueError(f"it holds the number {number}; all numbers must be finite")

    return json.loads(text, object_pairs_hook=refuse_repeats, parse_constant=refuse_constant)


def read_list(given: object) -> list[Any] | None:
    """Return the elements of an iterable as a list, or None where it is none.

    An array without dimensions has `__iter__` and still cannot be iterated over.
    """
    try:
        return list(given)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return None


def require_distinct(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names, sorted, if all are legal and no two look the same."""
    seen: dict[str, object] = {}
    names = list(names)
    for name in names:
        look = unicodedata.normalize("NFC", str(name).strip())
        if look in seen:
            raise GraphError(
                f"two variables are called {seen[look]!r} and {name!r}; names must differ visibly"
            )
        seen[look] = name
    return tuple(sorted(require_name(name) for name in names))
