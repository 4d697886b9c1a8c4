"""Is this the same code of somebody else as before? Functions and records told apart by content.

A name is not enough: a function may have been changed since. A pickle is too much: it holds line
numbers, names of files and random numbers, which change although the code does not. So functions
are described by their instructions, constants, defaults and closures, with the functions and
constants of their own module that they use; records by their class and their fields.
"""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = "causal_bo_ppl"
PLAIN = (type(None), bool, int, float, complex, str, bytes)


def holds_own_code(value: object) -> bool:
    """Return whether a value is, or holds, a function or a record from outside of the package."""
    if isinstance(value, PLAIN):
        return False
    if isinstance(value, Mapping):
        return any(map(holds_own_code, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_own_code, value))
    inside = str(getattr(type(value), "__module__", "")).split(".")[0] == PACKAGE
    if inside and dataclasses.is_dataclass(value):
        return any(holds_own_code(getattr(value, each.name)) for each in dataclasses.fields(value))
    return not inside


@functools.cache
def digest_package() -> str:
    """Return a hash of the source files of this package, as they are when it is first asked for."""
    import causal_bo_ppl
    from causal_bo_ppl import models

    digest = hashlib.sha256()
    for position in (causal_bo_ppl, models):
        folder = Path(str(position.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()[:12]


def digest_code(value: object) -> str:
    """Return a hash of what a value computes, the same in every process."""
    digest = hashlib.sha256()
    for part in _parts(value, set()):
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Give the texts that describe a value; seen: what is being described, for loops."""
    if isinstance(value, PLAIN):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in seen:
        yield "again"
        return
    seen = seen | {id(value)}
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield f"key {key!r}"
            yield from _parts(value[key], seen)
    elif isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        for item in items:
            yield from _parts(item, seen)
        yield f"end of {len(value)}"
    elif isinstance(value, types.CodeType):
        yield from _code(value, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _parts(part, seen)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__, seen)
        yield from _parts(value.__self__, seen)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = np.asarray(value)
        yield f"array {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    else:
        yield from _class(type(value), seen)
        yield from _parts(dict(getattr(value, "__dict__", {})), seen)


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    code = function.__code__
    yield from _code(code, seen)
    yield from _parts(function.__defaults__, seen)
    yield from _parts(function.__kwdefaults__, seen)
    for cell in function.__closure__ or ():
        yield from _parts(_content(cell), seen)
    for name in code.co_names:
        used = function.__globals__.get(name)
        is_own = getattr(used, "__module__", None) == function.__module__
        if isinstance(used, (*PLAIN, tuple)) or (is_own and isinstance(used, types.FunctionType)):
            yield f"uses {name}"
            yield from _parts(used, seen)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _code(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield f"code {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        yield from _parts(constant, seen)


def _class(kind: type, seen: set[int]) -> Iterator[str]:
    yield f"class {kind.__qualname__}"
    if kind.__module__.split(".")[0] in (PACKAGE, "builtins"):
        return
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, types.FunctionType | property | staticmethod | classmethod):
            inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
            yield f"method {name}"
            yield from _parts(inner, seen)
