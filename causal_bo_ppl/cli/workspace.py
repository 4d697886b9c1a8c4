"""Where do the problem, the data and the study of a command come from, and how is it kept?

The study lies in one file beside the problem: the JSON text of the study, which
`cb.Study.from_json` reads too, with the suggestions that were made and that have no outcome yet.
It is replaced in one step, and a lock lets one process at a time change it, so that no outcome is
lost. The lock belongs to the process, and ends with it.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from causal_bo_ppl.cli.terminal import say
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_csv, read_parquet
from causal_bo_ppl.errors import (
    ArgumentError,
    BusyError,
    CausalBOError,
    DataError,
    ObservationError,
    SettingsError,
    StoreError,
    listed,
    unknown,
)
from causal_bo_ppl.inference.datatree import replace_file
from causal_bo_ppl.inputs import as_key, read_json, write_key
from causal_bo_ppl.optimization import Observe, Settings, Stop, Study
from causal_bo_ppl.optimization.choosing import Suggestion
from causal_bo_ppl.optimization.ingest import is_answer
from causal_bo_ppl.optimization.study import FORMAT_VERSION
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.problem_file import DataFile, ProblemFile, read_problem_file
from causal_bo_ppl.serialization import read_document, write_document

POLL_SECONDS = 0.05
NOTHING = ("", "{}", "nothing")


@dataclass(frozen=True)
class Asked:
    """A suggestion that was made, and why; `request` tells equal questions.

    is_cancelled: whether it will not be run. Its number is not used again.
    """

    suggestion: Suggestion
    why: str
    request: str
    is_cancelled: bool = False


@dataclass(frozen=True)
class Workspace:
    """The files of a command: the problem, and the study beside it."""

    file: ProblemFile
    study_path: Path
    given_key: int | None = None

    @classmethod
    def open(cls, problem: Path, study: Path | None = None, key: int | None = None) -> "Workspace":
        """Read the problem file."""
        if not problem.exists():
            raise ArgumentError(
                f"there is no {problem}; `causal-bo init data.csv` writes one, and --problem names "
                "another"
            )
        return cls(read_problem_file(problem, Problem), study or problem.parent / "study.json", key)

    @property
    def problem(self) -> Problem:
        """The problem as the file has it now."""
        return self.file.problem

    @property
    def key(self) -> int:
        """The seed: the option, the key of the problem file, or 0."""
        return next(each for each in (self.given_key, self.file.key, 0) if each is not None)

    @cached_property
    def data(self) -> Data:
        """The observations, with what was dropped said."""
        if self.file.data is None:
            raise DataError(f'{self.file.path.name} names no data; add data = "table.csv"')
        frame, dropped = read_table(self.file.data, self.problem.graph.nodes)
        if dropped:
            say(
                f"{self.file.data.path.name}: {dropped} of {len(frame) + dropped} observations "
                'have missing values and are left out (missing = "drop")'
            )
        return Data.from_frame(self.problem, frame)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the problem file."""
        try:
            return read_settings_table(self.file.settings)
        except CausalBOError as error:
            raise SettingsError(f"{self.file.path.name}, [settings]: {error}") from None

    @cached_property
    def is_begun(self) -> bool:
        """Whether there is a study file."""
        return self.study_path.exists()

    @cached_property
    def _read(self) -> tuple[Study, tuple[Asked, ...]]:
        if not self.is_begun:
            return Study(self.problem, self.data, self.settings, key=self.key), ()
        try:
            text = self.study_path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.study_path} cannot be read: {error}") from None
        try:
            document = read_document(text, "study", FORMAT_VERSION)
        except StoreError as error:
            raise StoreError(f"{self.study_path.name}: {error}") from None
        self._require_unchanged(document)
        study = Study.from_json(text, self.data)
        asked = tuple(_read_asked(each, study) for each in document.get("asked", ()))
        return study, asked

    def _require_unchanged(self, document: Mapping[str, Any]) -> None:
        """Refuse a study that was begun with another problem, other data, settings or key."""
        name, problem = self.study_path.name, self.file.path.name
        begin = "or begin another study with --study FILE"
        if document["problem"]["fingerprint"] != self.problem.fingerprint:
            raise StoreError(
                f"{problem} poses another problem than when {name} was begun (graph, target, "
                "domains, sets, costs, constraints or known coefficients differ); undo the "
                f"change, {begin}"
            )
        if document["data_digest"] != self.data.fingerprint:
            source = self.file.data.path.name if self.file.data else "the table"
            raise StoreError(
                f"{source} has other observations than when {name} was begun; restore it and "
                f"record new observations with `causal-bo tell --rows FILE`, {begin}"
            )
        settings = Settings.from_json(json.dumps(document["settings"]))
        if settings.to_json() != self.settings.to_json():
            raise StoreError(
                f"[settings] of {problem} differ from those with which {name} was begun; undo the "
                f"change, {begin}"
            )
        wanted = next((each for each in (self.given_key, self.file.key) if each is not None), None)
        if wanted is not None and document["key"] != _written_key(wanted):
            raise ArgumentError(
                f"{name} was begun with another key than {wanted}; omit it, {begin}"
            )

    @property
    def study(self) -> Study:
        """The study of the file, or one that begins now."""
        return self._read[0]

    @property
    def open_suggestions(self) -> tuple[Asked, ...]:
        """The suggestions without an outcome."""
        study, asked = self._read
        known = study.observations
        return tuple(
            each
            for each in asked
            if not each.is_cancelled and not is_answer(known, each.suggestion).any()
        )

    def find(self, number: int) -> Asked:
        """Return the suggestion of a number."""
        found = {each.suggestion.number: each for each in self._read[1]}
        if number not in found:
            raise ObservationError(
                f"there is no suggestion {number} in {self.study_path.name} (open: "
                f"{listed(each.suggestion.number for each in self.open_suggestions)}); report what "
                'was set instead: causal-bo tell "X=1" OUTCOME'
            )
        return found[number]

    def write(self, study: Study, asked: tuple[Asked, ...]) -> None:
        """Replace the study file in one step."""
        content = read_document(study.to_json(), "study", FORMAT_VERSION)
        content["asked"] = [_write_asked(each) for each in asked]
        text = write_document("study", FORMAT_VERSION, content)
        replace_file(self.study_path, (text + "\n").encode())

    @property
    def asked(self) -> tuple[Asked, ...]:
        """All suggestions that are remembered."""
        return self._read[1]


def _written_key(key: int) -> dict[str, object]:
    return write_key(as_key(key))


@contextmanager
def hold_lock(path: Path, patience: float) -> Iterator[None]:
    """Let one process at a time change a file; BusyError where another does for too long.

    The lock is an advisory one of the system on a file beside it, which is removed at the end. It
    ends with its process, and it is never taken from one.
    """
    lock, end = path.with_name(f".{path.name}.lock"), time.monotonic() + patience
    while True:
        try:
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(
                f"cannot lock {path}: {error.strerror}; choose a folder that can be written"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file between these two steps.
            if lock.exists() and os.fstat(descriptor).st_ino == lock.stat().st_ino:
                break
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(descriptor)
                raise BusyError(
                    f"another process is changing {path.name}, for more than {patience:g} s; try "
                    "again, or wait longer with --wait SECONDS"
                ) from None
            time.sleep(POLL_SECONDS)
        except FileNotFoundError:
            pass
        os.close(descriptor)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _write_asked(asked: Asked) -> dict[str, object]:
    given = asked.suggestion
    numbers = ("mean", "sd", "cost", "number", "bound", "observations")
    record: dict[str, object] = {name: getattr(given, name) for name in numbers}
    record |= {"intervention": given.intervention, "how": given.how, "study": given.study}
    record["degrees"] = given.degrees if np.isfinite(given.degrees) else None
    return (
        record
        | {"why": asked.why, "request": asked.request}
        | ({"is_cancelled": True} if asked.is_cancelled else {})
    )


def _read_asked(record: Mapping[str, Any], study: Study) -> Asked:
    others = {name: record[name] for name in ("why", "request", "is_cancelled") if name in record}
    values = {name: record[name] for name in record if name not in (*others, "degrees")}
    intervention = values["intervention"]
    problem = study.problem
    query = problem.queries([intervention]) if intervention else problem.baseline()
    degrees = np.inf if record["degrees"] is None else record["degrees"]
    suggestion = Suggestion(**values, query=query, degrees=degrees, explain=None)
    return Asked(suggestion, **others)


def read_settings_table(given: Mapping[str, Any]) -> Settings:
    """Return the settings that a table of a problem file describes."""
    values = dict(given)
    known = ["preset", *(each.name for each in fields(Settings) if each.name != "prior")]
    for name in values:
        if name not in known:
            raise SettingsError(unknown("setting", name, known))
    for name, kind in (("observe", Observe), ("stop", Stop)):
        if isinstance(values.get(name), dict):
            for key in values[name]:
                if key not in (options := [each.name for each in fields(kind)]):
                    raise SettingsError(f"{name}: {unknown('key', key, options)}")
            if name == "stop" and "gain" not in values[name]:
                raise SettingsError("stop needs a gain")
            values[name] = kind(**values[name])
    preset = values.pop("preset", None)
    return Settings(**values) if preset is None else Settings.preset(preset, **values)


def read_table(source: DataFile, nodes: tuple[str, ...]) -> tuple[pd.DataFrame, int]:
    """Return the table of a problem, and how many observations with missing values were left out.

    Columns get the names of their variables. A cell that is no number is named.
    """
    if source.path.suffix == ".parquet":
        frame = read_parquet(source.path)
    else:
        frame = read_csv(source.path, source.separator, source.decimal, source.encoding)
    columns = dict(source.columns)
    if missing := [column for column in columns.values() if column not in frame.columns]:
        raise DataError(
            f"{source.path.name} has no column {missing[0]!r}; columns: {listed(frame.columns)}"
        )
    chosen = {columns.get(name, name): name for name in nodes}
    frame = frame[[name for name in frame.columns if name in chosen or name.startswith("do(")]]
    frame = frame.rename(columns=chosen)
    used = [name for name in nodes if name in frame.columns]
    frame = frame.assign(**{name: _numbers(source, name, frame[name]) for name in used})
    lacks = frame[used].isna().any(axis=1)
    if not lacks.any():
        return frame, 0
    if source.missing == "drop":
        return frame[~lacks].reset_index(drop=True), int(lacks.sum())
    gaps = {name: int(count) for name, count in frame[used].isna().sum().items() if count}
    raise DataError(
        f"{source.path.name} has missing values in {int(lacks.sum())} of {len(frame)} observations "
        f"({listed(f'{name}: {count}' for name, count in gaps.items())}); fill them in, or leave "
        f'these observations out: data = {{ file = "{source.path.name}", ..., missing = "drop" }}'
    )


def _numbers(source: DataFile, name: str, column: "pd.Series[Any]") -> "pd.Series[Any]":
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    numbers = pd.to_numeric(column.astype(str).str.strip(), errors="coerce")
    wrong = np.flatnonzero(numbers.isna() & column.notna())
    if len(wrong):
        label = source.columns.get(name, name)
        cell = str(column.iloc[wrong[0]])
        is_comma = source.separator != "," and re.match(r"-?\d+,\d+$", cell)
        hint = '; is the decimal mark a comma? data = { ..., decimal = "," }' if is_comma else ""
        raise DataError(
            f"{source.path.name}: column {label!r} has {len(wrong)} cells that are no numbers, the "
            f"first is {cell!r} in observation {wrong[0] + 1}; correct or empty them{hint}"
        )
    return numbers


def read_assignments(text: str) -> dict[str, float]:
    """Read `feed=40, water=1.5`, or JSON such as {"feed": 40}; nothing is set by `{}`."""
    if text.strip() in NOTHING:
        return {}
    if text.strip().startswith("{"):
        try:
            given = read_json(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"cannot read {text!r} as JSON: {error}") from None
        return {name: _number(value, text) for name, value in given.items()}
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.rpartition("="))
        if not equals or not name or name in found:
            raise ArgumentError(
                f"cannot read {text!r}; write each variable once: feed=40, water=1.5"
            )
        found[name] = _number(value, text)
    return found


def _number(value: Any, text: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"cannot read {value!r} in {text!r} as a number") from None
