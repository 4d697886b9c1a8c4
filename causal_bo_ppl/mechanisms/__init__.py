"""How is every variable made from its causes? Families of mechanisms, by name or by record."""

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.mechanisms.interfaces import (
    Mechanisms,
    Model,
    ResponseMap,
    Task,
    offered,
    read_record,
)
from causal_bo_ppl.mechanisms.linear.model import Linear

__all__ = ["FAMILIES", "Mechanisms", "Model", "ResponseMap", "Task", "read_mechanisms"]

FAMILIES: dict[str, Mechanisms] = {"linear": Linear()}


def read_mechanisms(given: object) -> Mechanisms:
    """Return a family of mechanisms, given by its name or as a record of one's own."""
    family: Mechanisms = read_record("mechanisms", given, FAMILIES, "bind")
    return family


def read_response(given: object, task: Task) -> tuple[str, ResponseMap]:
    """Return the name of a family and its response map, without any rows.

    given: a name, a family that offers `response(task)`, or a response map itself.
    """
    if offered(given, "batch") is not None:
        return str(getattr(given, "name", "given")), given  # type: ignore[return-value]
    family = read_mechanisms(given)
    response = offered(family, "response")
    if response is None:
        raise ModelError(
            f"{family.name} mechanisms offer no response map without rows; give the map itself"
        )
    return family.name, response(task)
