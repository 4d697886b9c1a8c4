"""How does every variable depend on its causes? Families of mechanisms, by name or object.

Choices of mechanisms, and priors, of every family are written to JSON and read again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.inputs import offered, read_component
from causal_bo_ppl.mechanisms.base import Mechanisms, ResponseMap, Task
from causal_bo_ppl.mechanisms.custom import CustomMechanisms, read_functions
from causal_bo_ppl.mechanisms.gp import GaussianProcesses, read_choices
from causal_bo_ppl.mechanisms.gp_priors import GP as GP
from causal_bo_ppl.mechanisms.gp_priors import GPPrior
from causal_bo_ppl.mechanisms.linear import Linear
from causal_bo_ppl.mechanisms.linear_priors import prior_from_record, prior_to_record
from causal_bo_ppl.mechanisms.selection import Automatic

# What `mechanisms=` takes.
Choice = str | GP | Mapping[str, str | GP | Callable[..., Any]] | Callable[[], object] | Mechanisms
FAMILIES: dict[str, Mechanisms] = {
    "linear": Linear(),
    "gp": GaussianProcesses(),
    "auto": Automatic(),
}

VARIABLES_KEY, GP_KEY = "variables", "gp"  # of a dictionary by variable, and of a `cb.GP`
CUSTOM_NAME = "custom"  # of user-defined functions


def read_mechanisms(given: object) -> Mechanisms:
    """Return a family of mechanisms, given by its name, by variable, or as a user-defined object.

    given: "linear", "gp" or "auto"; `cb.GP(...)` for all variables; {variable: "linear", "gp",
    `cb.GP(...)` or a NumPyro function of the causes}; a NumPyro program over all variables; or a
    family.
    """
    if isinstance(given, GP):
        return GaussianProcesses(others=given)
    if isinstance(given, Mapping):
        has_functions = any(map(callable, given.values()))
        return read_functions(given) if has_functions else read_choices(given)
    if callable(given) and not isinstance(given, type) and offered(given, "bind") is None:
        return CustomMechanisms(program=given)
    family: Mechanisms = read_component("mechanisms", given, FAMILIES, "bind")
    return family


def read_response(given: object, task: Task) -> tuple[str, ResponseMap]:
    """Return the name of a family and its response map, without any data.

    given: a name, a family that offers `response(task)`, or a response map itself.
    """
    if offered(given, "batch") is not None:
        return str(getattr(given, "name", "given")), given  # type: ignore[return-value]
    family = read_mechanisms(given)
    response = offered(family, "response")
    if response is None:
        raise MechanismError(
            f"{family.name} mechanisms offer no response map without data; give the map itself"
        )
    return family.name, response(task)


def write_prior(prior: Any) -> dict[str, object]:
    """Return a prior as a dictionary that JSON can hold; refuses a user-defined prior."""
    if isinstance(prior, GPPrior):
        return {"prior": "GPPrior", **json.loads(prior.to_json())}
    return prior_to_record(prior)


def read_prior(record: object) -> Any:
    """Return the prior of such a dictionary; raises MechanismError for anything else."""
    if isinstance(record, dict) and record.get("prior") == "GPPrior":
        return GPPrior.from_json(json.dumps({k: v for k, v in record.items() if k != "prior"}))
    return prior_from_record(record)


def write_mechanisms(given: Any) -> object:
    """Return what `mechanisms=` was given, for JSON; a user-defined family by its name.

    Functions are recorded by their names; what holds them is named "custom" as a whole.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, GP):
        return {GP_KEY: asdict(given)}
    if isinstance(given, Mapping):
        pairs = {name: _write_choice(choice) for name, choice in given.items()}
        has_functions = any(map(callable, given.values()))
        return ({"name": CUSTOM_NAME} if has_functions else {}) | {VARIABLES_KEY: pairs}
    if isinstance(getattr(given, "name", None), str):
        return {"name": given.name}
    return {"name": CUSTOM_NAME, "program": _function_name(given)}


def _write_choice(choice: Any) -> object:
    if callable(choice):
        return {"function": _function_name(choice)}
    return write_mechanisms(choice)


def _function_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def read_written_mechanisms(record: Any) -> Any:
    """Return what `write_mechanisms` was given, but for a user-defined family."""
    if not isinstance(record, dict):
        return record
    if set(record) == {VARIABLES_KEY} and isinstance(record[VARIABLES_KEY], dict):
        return {name: read_written_mechanisms(each) for name, each in record[VARIABLES_KEY].items()}
    if set(record) != {GP_KEY} or not isinstance(record[GP_KEY], dict):
        raise MechanismError(
            f"mechanisms are a name, {VARIABLES_KEY} or {GP_KEY}; got {listed(record)}"
        )
    try:
        return GP(**record[GP_KEY])
    except TypeError as error:
        raise MechanismError(f"the options of cb.GP cannot be read: {error}") from None
