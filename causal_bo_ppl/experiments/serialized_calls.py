"""How does a unit of work reach another process, and how does its result or failure come back?

Tasks, units and results travel as bytes of `cloudpickle`, which writes functions and classes of a
script or a notebook by value and those of installed modules by name. Both ends are processes of the
same user who runs the same code; nothing that was stored in a file is ever read here.
"""

import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import cloudpickle


class Failed(NamedTuple):
    """What is left of a unit that gave no result.

    error: type and message of the exception, or how the process died.
    traceback: the lines of Python that led to the exception; empty where the process died.
    died: whether the process that ran the unit died, instead of raising an exception.
    tried: how often the unit was begun. On a cluster the scheduler counts: see `run_units`.
    """

    error: str
    traceback: str
    died: bool
    tried: int


def describe(error: BaseException, during: str = "") -> Failed:
    """Return an exception as a record of words, which can travel whatever the exception holds."""
    words = "".join(traceback.format_exception_only(error)).strip()
    return Failed(during + words, "".join(traceback.format_exception(error)), False, 1)


def pack(unit: object) -> bytes | Failed:
    """Return a unit as bytes, or why it cannot leave this process."""
    try:
        return bytes(cloudpickle.dumps(unit))
    except Exception as error:  # pickling runs code of the unit's classes, which may raise anything
        return describe(error, "the unit cannot be pickled: ")


def unpack(result: bytes) -> Any:
    """Return the result that `compute` packed, or a `Failed` where it cannot be read here."""
    try:
        return cloudpickle.loads(result)
    except Exception as error:  # unpickling runs code of the result's classes
        return describe(error, "the result cannot be unpickled: ")


@lru_cache(maxsize=1)
def _read_task(task: bytes) -> Callable[[Any], Any]:
    """Return the task; the same object for every unit, so that its programs are compiled once."""
    function: Callable[[Any], Any] = cloudpickle.loads(task)
    return function


def compute(task: bytes, unit: bytes) -> bytes:
    """Return the packed result of a packed task for a packed unit, or a packed `Failed`.

    An exception of the task, also SystemExit, and a result that cannot be pickled become `Failed`.
    """
    try:
        result = _read_task(task)(cloudpickle.loads(unit))
    except (Exception, SystemExit) as error:  # the task is somebody else's code
        return bytes(cloudpickle.dumps(describe(error)))
    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:  # pickling runs code of the result's classes
        return bytes(cloudpickle.dumps(describe(error, "the result cannot be pickled: ")))
