"""Which names may a variable bear?

A name that would fail later (in a file, in a posterior's group) is refused at the door.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from causal_bo_ppl.errors import GraphError

RESERVED = frozenset({"chain", "draw"})  # a posterior group silently drops variables of these names
SITE = re.compile(r"(a|b|sd|s2|t|level|tau|est|row)\[.*\]|do\(.*\)")  # names of parameters, and of columns of a table
LONGEST = 200  # bytes; netCDF fails at 256, after sampling


def require_name(name: object) -> str:
    """Return the name if a variable may bear it; raise GraphError otherwise."""
    if not isinstance(name, str):
        raise GraphError(f"variable names are strings, got {name!r} ({type(name).__name__}); use {str(name)!r}")
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
    if len(name.encode()) > LONGEST:
        return f"is {len(name.encode())} bytes long; at most {LONGEST} can be stored"
    if name in RESERVED:
        return "is reserved for the dimensions of a posterior; rename the variable"
    if SITE.fullmatch(name):
        return "is reserved for a parameter or a table's column; rename the variable"
    return None


def read_list(given: object) -> list[Any] | None:
    """Return the elements of what can be gone through, or None; some arrays only look as if they could."""
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
            raise GraphError(f"two variables are called {seen[look]!r} and {name!r}; names must differ visibly")
        seen[look] = name
    return tuple(sorted(require_name(name) for name in names))
