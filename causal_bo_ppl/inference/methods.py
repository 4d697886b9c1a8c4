"""Which methods of inference are there, and which properties has each?"""

from dataclasses import asdict, is_dataclass
from typing import Any

from causal_bo_ppl.errors import ArgumentError, listed
from causal_bo_ppl.inference.base import InferenceMethod
from causal_bo_ppl.inference.conjugate import Conjugate
from causal_bo_ppl.inference.laplace import Laplace
from causal_bo_ppl.inference.nuts import NUTS
from causal_bo_ppl.inference.wishart import Wishart
from causal_bo_ppl.mechanisms.base import read_component

METHODS: dict[str, InferenceMethod] = {
    method.name: method for method in (Conjugate(), Wishart(), Laplace(), NUTS())
}
TRAITS: dict[str, Any] = {
    "needs_key": False,
    "takes_experiments": True,
    "uses_linearity": True,
    "learns_moments": False,
    "is_approximate": False,
}


def read_method(given: object) -> InferenceMethod:
    """Return a method of inference, given by its name or as a user-defined configuration."""
    method: InferenceMethod = read_component("method", given, METHODS, "infer")
    return method


def trait(method: object, name: str) -> Any:
    """Return a property of a method, or its default where the method does not have it."""
    return getattr(method, name, TRAITS[name])


def write_method(method: Any) -> object:
    """Return a method of inference for JSON: None and names as they are, others with options.

    A user-defined method is written by its name alone.
    """
    if method is None or isinstance(method, str):
        return method
    if type(method) is type(METHODS.get(method.name)) and is_dataclass(method):
        return {"name": method.name, "options": asdict(method)}
    return {"name": method.name}


def read_written_method(record: Any) -> Any:
    """Return the method that `write_method` was given; a user-defined one as it was written."""
    if not isinstance(record, dict) or "options" not in record:
        return record
    name, options = record.get("name"), record["options"]
    if name not in METHODS or not isinstance(options, dict):
        raise ArgumentError(f"inference must be one of {listed(METHODS)}; got {record!r}")
    try:
        return type(METHODS[name])(**options)
    except TypeError as error:
        raise ArgumentError(f"the options of {name} cannot be read: {error}") from None
