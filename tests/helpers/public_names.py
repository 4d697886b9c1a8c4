"""The public names of the package: those at the top, and those of its namespaces."""

from importlib import import_module
from types import ModuleType

import causal_bo_ppl as cb

NAMESPACES = sorted(name for name in cb.__all__ if isinstance(getattr(cb, name), ModuleType))


def public_names():
    """Return {dotted name: object} of every public name; no object is listed twice."""
    found = {name: getattr(cb, name) for name in cb.__all__ if name not in NAMESPACES}
    for namespace in NAMESPACES:
        module = import_module(f"causal_bo_ppl.{namespace}")
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith("causal_bo_ppl")
            if (
                is_ours
                and not name.startswith("_")
                and not any(value is one for one in found.values())
            ):
                found[f"{namespace}.{name}"] = value
    return found
