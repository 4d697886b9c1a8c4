"""How does every variable depend on its causes? Families of mechanisms, by name or object."""

from collections.abc import Callable, Mapping
from typing import Any

from causal_bo_ppl.errors import MechanismError
from causal_bo_ppl.mechanisms.base import Mechanisms, ResponseMap, Task, offered, read_component
from causal_bo_ppl.mechanisms.custom.model import CustomMechanisms, read_functions
from causal_bo_ppl.mechanisms.gp.model import GaussianProcesses, read_choices
from causal_bo_ppl.mechanisms.gp.priors import GP as GP
from causal_bo_ppl.mechanisms.linear.model import Linear
from causal_bo_ppl.mechanisms.selection import Automatic

# What `mechanisms=` takes.
Choice = str | GP | Mapping[str, str | GP | Callable[..., Any]] | Callable[[], object] | Mechanisms
FAMILIES: dict[str, Mechanisms] = {
    "linear": Linear(),
    "gp": GaussianProcesses(),
    "auto": Automatic(),
}


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
