"""Which errors does the package raise?

Every error states what was wrong, with which value, and what to do about it.
"""

import difflib
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "ArgumentError",
    "BusyError",
    "CausalBOError",
    "CausalBOWarning",
    "CheckFailed",
    "DataError",
    "DomainError",
    "ExperimentFailed",
    "ExplorationError",
    "GraphError",
    "MechanismError",
    "ModelError",
    "NotIdentifiable",
    "NumericalError",
    "ObservationError",
    "PluginError",
    "PosteriorError",
    "SeedError",
    "SettingsError",
    "StoreError",
    "UnverifiedEstimand",
    "WorkerError",
]


class CausalBOError(Exception):
    """The base of every error this package raises on purpose."""


class GraphError(CausalBOError, ValueError):
    """The causal graph, or a name in it, cannot be used."""


class DomainError(CausalBOError, ValueError):
    """A problem, or an intervention on it, is outside what is allowed."""


class ExplorationError(CausalBOError, ValueError):
    """The intervention sets asked for are too many, or not sets of this problem."""


class DataError(CausalBOError, ValueError):
    """The observations cannot be used for this graph."""


class ModelError(CausalBOError, ValueError):
    """A causal system, or the file that describes it, contradicts itself."""


class ArgumentError(CausalBOError, ValueError):
    """An argument of a function or an option of an object has a value that cannot be used."""


class SettingsError(CausalBOError, ValueError):
    """The settings of an optimization are invalid or contradict each other."""


class MechanismError(CausalBOError, ValueError):
    """The mechanisms, their priors or user-defined functions cannot be used for this problem."""


class PosteriorError(CausalBOError, ValueError):
    """A posterior cannot be used: it failed its checks or lacks what is asked of it."""


class ObservationError(CausalBOError, ValueError):
    """An outcome or an observation that was reported to a study cannot be recorded."""


class PluginError(CausalBOError, ValueError):
    """A user-defined family, method, surrogate or acquisition does not keep its interface."""


class CheckFailed(CausalBOError, ValueError):
    """A check that was required to pass failed."""


class NotIdentifiable(CausalBOError, ValueError):
    """An effect cannot be learned from observational data, however many there are.

    target, intervened: the variable affected and the variables set.
    districts: the hedge, a confounded component and the part of it whose effect on the target
        cannot be separated from the confounding.
    """

    def __init__(
        self,
        target: str,
        intervened: Iterable[str],
        districts: Iterable[Iterable[str]],
        advice: str,
    ) -> None:
        self.target, self.intervened = target, tuple(intervened)
        self.districts = tuple(tuple(district) for district in districts)
        self.advice = advice
        outer, inner = (f"{{{listed(district)}}}" for district in self.districts)
        super().__init__(
            f"E[{target} | do({listed(self.intervened)})] cannot be learned from observational "
            f"data: latent causes join {outer}, and within it the effect on {inner} cannot be "
            f"separated from that confounding; {advice}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.target, self.intervened, self.districts, self.advice)


class UnverifiedEstimand(CausalBOError, RuntimeError):
    """A formula for an effect did not pass its check; it is not returned."""


class ExperimentFailed(CausalBOError, RuntimeError):
    """An experiment raised, or gave no usable outcome.

    run: the `Run` until then, or None where nothing was measured.
    returned: the value that the experiment returned, where it could not be read as outcomes.
    """

    def __init__(self, message: str, run: object = None, returned: object = None) -> None:
        super().__init__(message)
        self.run, self.returned = run, returned


class NumericalError(CausalBOError, ArithmeticError):
    """A computation has no trustworthy result in floating point."""


class StoreError(CausalBOError, OSError):
    """A file cannot be read, or its content cannot be trusted."""


class BusyError(StoreError):
    """Another process is changing a file, and did not finish in time."""


class WorkerError(CausalBOError, RuntimeError):
    """The processes that were to compute cannot be started or reached."""


class SeedError(CausalBOError, TypeError):
    """A value that was given as a random key is not one."""


class CausalBOWarning(UserWarning):
    """Something works, but the analyst should look at it."""


def shown(error: BaseException) -> str:
    """Return the repr of an error for a message, also of one whose own repr raises."""
    try:
        return repr(error)
    except Exception:  # the repr is somebody else's code and may raise anything
        return f"{type(error).__name__} (its repr raises an error too)"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Return the names for a message, in the given order, cut after `most`; "none" for none."""
    texts = [str(name) for name in names]
    rest = f", ... ({len(texts) - most} more)" if len(texts) > most else ""
    return (", ".join(texts[:most]) + rest) if texts else "none"


def closest(name: object, known: Iterable[str]) -> str | None:
    """Return which of the known names may have been meant, or None where none is close.

    A name that differs in case or in spaces at its ends alone comes first.
    """
    plain: dict[str, str] = {}
    for each in known:
        plain.setdefault(each.strip().casefold(), each)
    wanted = str(name).strip().casefold()
    close = [wanted] if wanted in plain else difflib.get_close_matches(wanted, plain, n=1)
    return plain[close[0]] if close else None


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return a message that a name is not known, with the known names and a close one."""
    known = list(known)
    close = closest(name, known)
    hint = f"; did you mean {close!r}?" if close is not None else ""
    return f"unknown {what} {name!r}{hint} (known: {listed(known)})"


def warn_caller(messages: Iterable[str]) -> None:
    """Warn of each message, at the line outside of this package that led to it."""
    package, level, frame = f"{Path(__file__).parent}{os.sep}", 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    for message in messages:
        warnings.warn(message, CausalBOWarning, stacklevel=level)
