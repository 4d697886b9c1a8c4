"""What came back from experiments? One immutable table with a row for everything reported.

Everything that a study infers follows from these rows and from the data that it began with. Where
only the target matters, `Outcomes` are the interventions and its values, `NoisyOutcomes` these with
the variances of their noise, and `Replicates` those of distinct interventions.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, ObservationError, StoreError, listed
from causal_bo_ppl.inputs import LARGEST_MAGNITUDE, read_number, require_outcomes, size_fault
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import named, set_label, stack

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

OBSERVED, FAILED_EXPERIMENT, RETRACTED = "observed", "failed", "retracted"
STATUSES = (OBSERVED, FAILED_EXPERIMENT, RETRACTED)
TEXT_COLUMNS = ("status", "note", "who", "when")
KINDS: dict[str, type] = {"mask": bool, "number": int, "is_out_of_domain": bool}
KINDS |= dict.fromkeys(TEXT_COLUMNS, object)  # all other columns are floats
DEFAULTS: dict[str, Any] = {
    "outcome": math.nan,
    "variance": math.nan,
    "cost": 0.0,
    "number": 0,
    "status": OBSERVED,
    "note": "",
    "who": "",
    "when": "",
    "is_out_of_domain": False,
}
OUT_OF_DOMAIN = "out of domain"
FEWEST_COMPILED = 16  # outcomes that a program is compiled for, where there are any
EQUAL_OUTCOMES = 1e-9  # of the largest outcome: two outcomes without noise are equal


@dataclass(frozen=True, eq=False)
class Observations:
    """Everything that was reported of t experiments on p variables, one row each; immutable.

    Attributes
    ----------
    nodes, target:
        The names of the variables, and of the one to improve.
    mask, value:
        Which variables were set, and to what, (t, p); nothing is set in a passive observation.
    outcome:
        The target's value, (t,); NaN where there is none.
    variance:
        Of the outcome's noise, (t,); NaN where it is what the model implies.
    measured:
        The values of all variables, (t, p); NaN in all of them where only the target was measured.
    cost:
        What was paid, (t,).
    number:
        Of the suggestion that is answered, (t,); 0 where it was not suggested.
    status:
        "observed", "failed" or "retracted", (t,); only observed rows are learned from.
    note:
        Why it failed or was retracted, or what was suggested where something else was set, (t,).
    who, when:
        Who reported it and when, (t,), as given.
    is_out_of_domain:
        Whether its set or its values may not be proposed, (t,): such a row is data, and is never
        recommended.

    Raises
    ------
    ObservationError
        If a column has another length, a status is unknown, or an observed outcome is not finite.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> study = cb.Study(system.problem, system.observe(50, 0), key=0).tell({"X": 2.0}, -2.1)
    >>> study.observations
    Observations(1 observed)
    >>> study.observations.to_frame()[["do(X)", "outcome", "status"]].values.tolist()
    [[2.0, -2.1, 'observed']]
    """

    nodes: tuple[str, ...]
    target: str
    mask: np.ndarray
    value: np.ndarray
    outcome: np.ndarray
    variance: np.ndarray
    measured: np.ndarray
    cost: np.ndarray
    number: np.ndarray
    status: np.ndarray
    note: np.ndarray
    who: np.ndarray
    when: np.ndarray
    is_out_of_domain: np.ndarray

    def __post_init__(self) -> None:
        count, width = len(self.mask), len(self.nodes)
        for name in COLUMNS:
            shape = (count, width) if name in ("mask", "value", "measured") else (count,)
            column: np.ndarray = np.array(getattr(self, name), KINDS.get(name, float))
            if column.shape != shape:
                raise ObservationError(
                    f"the column {name!r} of observations has the shape {column.shape}; it must "
                    f"have {shape}"
                )
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        unknown = sorted({str(status) for status in self.status} - set(STATUSES))
        if unknown:
            raise ObservationError(
                f"a status is one of {', '.join(STATUSES)}; got {listed(unknown)}"
            )
        lacks = self.is_observed & ~np.isfinite(self.outcome)
        if lacks.any():
            raise ObservationError(
                f"observation {int(np.flatnonzero(lacks)[0]) + 1} has no finite outcome; record "
                'it with the status "failed"'
            )

    @classmethod
    def of(
        cls, nodes: Sequence[str], target: str, queries: Queries | None = None, **columns: Any
    ) -> "Observations":
        """Return observations of some interventions; columns that are not given have defaults.

        Parameters
        ----------
        nodes, target:
            The names of the variables, and of the one to improve.
        queries:
            What was set; without them there are no observations.
        columns:
            Arrays, or one value for all rows; see the attributes.
        """
        width = len(nodes)
        if queries is None:
            queries = Queries(np.zeros((0, width), bool), np.zeros((0, width)))
        mask, count = np.asarray(queries.mask, bool), len(queries)
        value = np.where(mask, np.asarray(queries.value), 0.0) + 0.0  # no negative zero
        table: dict[str, Any] = {"mask": mask, "value": value}
        table["measured"] = columns.pop("measured", np.full((count, width), np.nan))
        for name, usual in DEFAULTS.items():
            given: np.ndarray = np.asarray(columns.pop(name, usual), KINDS.get(name, float))
            table[name] = np.broadcast_to(given, (count,)) if given.ndim == 0 else given
        if columns:
            raise ObservationError(f"observations have no column {listed(columns)}")
        return cls(tuple(nodes), target, **table)

    def __len__(self) -> int:
        return len(self.outcome)

    @cached_property
    def queries(self) -> Queries:
        """What was set, a batch of t interventions."""
        return named(Queries(self.mask, self.value), self.nodes)

    @property
    def is_observed(self) -> np.ndarray:
        """Which rows are learned from, (t,)."""
        return np.asarray(self.status == OBSERVED, bool)

    @property
    def is_passive(self) -> np.ndarray:
        """In which rows nothing was set, (t,): observations, not experiments."""
        return np.asarray(~self.mask.any(axis=1))

    @property
    def has_row(self) -> np.ndarray:
        """In which rows all variables were measured, (t,)."""
        return np.asarray(np.isfinite(self.measured).all(axis=1))

    @property
    def was_suggested(self) -> np.ndarray:
        """Which rows answer a suggestion, (t,)."""
        return np.asarray(self.number > 0)

    @cached_property
    def order(self) -> np.ndarray:
        """The positions of the observed rows in the order in which they count.

        A suggestion depends on outcomes of earlier suggestions alone, so that outcomes of
        suggestions count in the order of their numbers, whenever they were reported, and those of
        one suggestion in the order of their hashes, which does not depend on their size. Others
        count when they were reported: nobody knows what their choice depended on.
        """
        rows = np.flatnonzero(self.is_observed)
        is_numbered, numbers = self.was_suggested[rows], self.number.tolist()
        numbered = rows[is_numbered].tolist()
        rows[is_numbered] = sorted(numbered, key=lambda row: (numbers[row], self.hashes[row]))
        return rows

    @cached_property
    def in_order(self) -> "Observations":
        """The observed rows in the order in which they count."""
        return self.select(self.order)

    def select(self, chosen: Any) -> "Observations":
        """Return some of the rows, chosen by a mask, indices or a slice."""
        columns = {name: getattr(self, name)[chosen] for name in COLUMNS}
        rows = np.arange(len(self))[chosen].tolist()
        return self._with_valid(columns, [self.hashes[row] for row in rows])

    def join(self, others: "Observations") -> "Observations":
        """Return these rows followed by others, which must be of the same variables."""
        if (self.nodes, self.target) != (others.nodes, others.target):
            raise ObservationError(
                f"observations of {listed(others.nodes)} with the target {others.target!r} cannot "
                f"follow those of {listed(self.nodes)} with the target {self.target!r}"
            )
        parts = {
            name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in COLUMNS
        }
        return self._with_valid(parts, [*self.hashes, *others.hashes])

    def _with_valid(
        self, columns: Mapping[str, np.ndarray], hashes: Sequence[int]
    ) -> "Observations":
        """Return a table of columns that need neither be checked nor be hashed again."""
        table = object.__new__(Observations)
        for column in columns.values():
            column.flags.writeable = False
        table.__dict__.update(nodes=self.nodes, target=self.target, hashes=tuple(hashes))
        table.__dict__.update(columns)
        return table

    def with_columns(self, **columns: Any) -> "Observations":
        """Return the table with other columns in place of some."""
        return replace(self, **columns)

    def change(self, row: int, **values: Any) -> "Observations":
        """Return the table with other values in some columns of one row."""
        changed = dict[str, Any]()
        for name, value in values.items():
            changed[name] = np.array(getattr(self, name))
            changed[name][row] = value
        return replace(self, **changed)

    def is_of(self, query: Queries) -> np.ndarray:
        """Return which rows are of this intervention, (t,)."""
        mask = np.asarray(query.mask)[0]
        value = np.where(mask, np.asarray(query.value)[0], 0.0)
        return np.asarray((self.mask == mask).all(axis=1) & (self.value == value).all(axis=1))

    def rows(self, chosen: np.ndarray) -> Data:
        """Return the whole rows among the chosen ones as data."""
        used = np.asarray(chosen) & self.has_row
        return Data(self.nodes, self.target, self.measured[used], self.mask[used])

    def canonical(self) -> "Observations":
        """Return the observed rows in an order that depends on their content alone."""
        table = self.select(self.is_observed)
        keys = [table.variance, table.outcome, *table.measured.T[::-1]]
        keys += [*table.value.T[::-1], *(~table.mask).T[::-1]]
        return table.select(np.lexsort(keys)) if len(table) else table

    @cached_property
    def hashes(self) -> tuple[int, ...]:
        """A hash of what is learned from each row."""
        columns = (self.mask, self.value, self.outcome, self.variance, self.measured)
        lines = zip(*(np.ascontiguousarray(column) for column in columns), strict=True)
        texts = (b"".join(part.tobytes() for part in line) for line in lines)
        return tuple(int.from_bytes(hashlib.sha256(text).digest()) for text in texts)

    @cached_property
    def digest(self) -> int:
        """A sum of the hashes of all observed rows: the same in any order; 0 for none."""
        return sum(
            each for each, is_used in zip(self.hashes, self.is_observed, strict=True) if is_used
        )

    def settings(self) -> list[dict[str, float]]:
        """Return what was set in each row as {variable: value}, legal or not."""
        return [
            {name: float(x) for name, is_set, x in zip(self.nodes, m, v, strict=True) if is_set}
            for m, v in zip(self.mask, self.value, strict=True)
        ]

    def notes(self) -> list[str]:
        """Return what is to be said of each row besides a failure: retractions, out of domain."""
        found = []
        for status, note, is_outside in zip(
            self.status, self.note, self.is_out_of_domain, strict=True
        ):
            outside = OUT_OF_DOMAIN if is_outside else ""
            if status == RETRACTED:
                found.append(f"retracted: {note}")
            elif status == FAILED_EXPERIMENT:
                found.append(outside)
            else:
                outside += ": learned from, never suggested" if is_outside else ""
                found.append("; ".join(filter(None, (outside, str(note)))))
        return found

    def identities(self, of: str) -> tuple[int, ...]:
        """Return hashes of what was set and came out, with all that was measured for `of="row"`."""
        unknown = {"variance": np.full(len(self), np.nan)}
        if of == "number":
            unknown["measured"] = np.full(self.measured.shape, np.nan)
        return self.with_columns(**unknown).hashes

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every observation, with columns do(X) for what was ever set.

        Where whole rows were measured, their values are in columns measured(X). The table is read
        back by `Observations.from_frame`.
        """
        columns: dict[str, Any] = {
            "suggestion": pd.array([int(number) or None for number in self.number], dtype="Int64"),
            "set": [set_label(tuple(setting)) for setting in self.settings()],
        }
        columns |= {
            f"do({name})": np.where(self.mask[:, index], self.value[:, index], np.nan)
            for index, name in enumerate(self.nodes)
            if self.mask[:, index].any()
        }
        columns |= {"outcome": self.outcome, "variance": self.variance}
        if not np.isnan(self.measured).all():
            columns |= {
                f"measured({name})": self.measured[:, index]
                for index, name in enumerate(self.nodes)
            }
        columns |= {name: getattr(self, name) for name in ("cost", *TEXT_COLUMNS)}
        columns["out_of_domain"] = self.is_out_of_domain
        return pd.DataFrame(columns, index=pd.RangeIndex(1, len(self) + 1, name="record"))

    @classmethod
    def from_frame(cls, problem: "Problem", frame: pd.DataFrame) -> "Observations":
        """Read the table that `to_frame` returned.

        Parameters
        ----------
        problem:
            Whose variables are in the columns.
        frame:
            The table; only the outcome and what was set are required.

        Raises
        ------
        ObservationError
            If a column is missing or names something that is no variable.
        """
        nodes, target, count = problem.graph.nodes, problem.target, len(frame)
        strangers = [
            name
            for name in map(str, frame.columns)
            if name.startswith(("do(", "measured(")) and name.partition("(")[2][:-1] not in nodes
        ]
        if "outcome" not in frame.columns or strangers:
            what = f"unknown columns {listed(strangers)}" if strangers else "no column 'outcome'"
            raise ObservationError(f"the table has {what}; write it with observations.to_frame()")
        value, measured = np.full((2, count, len(nodes)), np.nan)
        for index, name in enumerate(nodes):
            for prefix, table in (("do", value), ("measured", measured)):
                if f"{prefix}({name})" in frame.columns:
                    table[:, index] = frame[f"{prefix}({name})"].to_numpy(float)
        mask, outcome = ~np.isnan(value), frame["outcome"].to_numpy(float)
        queries = Queries(mask, np.where(mask, value, 0.0))
        columns: dict[str, Any] = {"outcome": outcome, "measured": measured}
        names = {"suggestion": "number", "out_of_domain": "is_out_of_domain"}
        for name in ("variance", "cost", *TEXT_COLUMNS, *names):
            if name in frame.columns:
                column, kind = names.get(name, name), KINDS.get(names.get(name, name), float)
                usual: Any = {int: 0, object: ""}.get(kind, math.nan)  # files have no empty text
                columns[column] = frame[name].fillna(usual).to_numpy(kind)
        return cls.of(nodes, target, queries, **columns)

    def to_xarray(self) -> xr.Dataset:
        """Return the table as a Dataset over the dimensions observation and variable."""
        set_to = np.where(self.mask, self.value, np.nan)
        columns: dict[str, Any] = {
            "do": (("observation", "variable"), set_to),
            "measured": (("observation", "variable"), self.measured),
        }
        for name in DEFAULTS:
            column = getattr(self, name)
            column = column.astype(str) if name in TEXT_COLUMNS else column
            columns[name] = ("observation", column)
        coords = {"observation": np.arange(1, len(self) + 1), "variable": list(self.nodes)}
        return xr.Dataset(columns, coords, attrs={"target": self.target})

    @classmethod
    def from_xarray(cls, dataset: xr.Dataset) -> "Observations":
        """Read the Dataset that `to_xarray` returned."""
        set_to = dataset["do"].to_numpy()
        queries = Queries(~np.isnan(set_to), np.nan_to_num(set_to))
        columns = {name: dataset[name].to_numpy() for name in ("measured", *DEFAULTS)}
        nodes = [str(name) for name in dataset["variable"].to_numpy()]
        return cls.of(nodes, str(dataset.attrs["target"]), queries, **columns)

    def to_json(self) -> str:
        """Return a JSON text with an object for every observation; `from_json` reads it back."""
        return json.dumps(
            {"nodes": self.nodes, "target": self.target, "observations": self.to_records()},
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> "Observations":
        """Read the text that `to_json` returned.

        Raises
        ------
        StoreError
            If it is not such a text.
        """
        try:
            written = json.loads(text)
            return cls.from_records(written["nodes"], written["target"], written["observations"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise StoreError(f"this is not a text of observations: {error}") from None

    def to_records(self) -> list[dict[str, Any]]:
        """Return an object for every row that JSON can hold."""
        records = []
        for row, setting in enumerate(self.settings()):
            record: dict[str, Any] = {"set": setting}
            for name in DEFAULTS:
                record[name] = getattr(self, name)[row : row + 1].tolist()[0]
            record |= {name: _write_number(record[name]) for name in ("outcome", "variance")}
            values = [_write_number(each) for each in self.measured[row].tolist()]
            is_empty = all(each is None for each in values)
            records.append(record | {"measured": None if is_empty else values})
        return records

    @classmethod
    def from_records(
        cls, nodes: Sequence[str], target: str, records: Iterable[Mapping[str, Any]]
    ) -> "Observations":
        """Read what `to_records` returned."""
        given = list(records)
        mask = np.zeros((len(given), len(nodes)), bool)
        value, measured = np.zeros(mask.shape), np.full(mask.shape, np.nan)
        for row, record in enumerate(given):
            for name, number in record["set"].items():
                column = list(nodes).index(name)
                mask[row, column], value[row, column] = True, float(number)
            if record["measured"] is not None:
                measured[row] = [_read_number(each) for each in record["measured"]]
        columns: dict[str, Any] = {"measured": measured}
        for name in DEFAULTS:
            found = [record[name] for record in given]
            if name in ("outcome", "variance"):
                found = [_read_number(each) for each in found]
            columns[name] = np.array(found, KINDS.get(name, float))
        return cls.of(nodes, target, Queries(mask, value), **columns)

    def __repr__(self) -> str:
        counts = {status: int((self.status == status).sum()) for status in STATUSES}
        words = [f"{count} {status}" for status, count in counts.items() if count]
        return f"Observations({', '.join(words) or 'none'})"

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=60, float_format="{:.4g}".format, na_rep="")
        return f"<p>{self!r}</p>{table}"


COLUMNS = tuple(each.name for each in fields(Observations) if each.name not in ("nodes", "target"))


def _write_number(number: float) -> float | str | None:
    """Return a float as JSON can hold it: None for NaN, a text for infinities."""
    return None if math.isnan(number) else number if math.isfinite(number) else str(number)


def _read_number(written: float | str | None) -> float:
    return math.nan if written is None else float(written)


class Outcomes(NamedTuple):
    """Interventions, and the outcomes of the target.

    queries: m interventions on some variables. values: the target's outcomes, (m,).
    """

    queries: Queries
    values: np.ndarray

    def columns(self, chosen: Sequence[int]) -> "Outcomes":
        """Return the same outcomes with queries restricted to some variables."""
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        return Outcomes(Queries(mask[:, list(chosen)], value[:, list(chosen)]), self.values)

    def padded(self) -> tuple[Queries, np.ndarray, np.ndarray]:
        """Fill up to a power of two, so that few programs are compiled.

        Returns queries and values with the same number of rows, and weights: 1, or 0 for padding.
        """
        count = len(self.values)
        size = max(FEWEST_COMPILED, 1 << (count - 1).bit_length()) if count else 0
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        fill = ((0, size - count), (0, 0))
        queries = Queries(np.pad(mask, fill, mode="edge") if count else mask, np.pad(value, fill))
        return queries, np.pad(self.values, fill[0]), np.pad(np.ones(count), fill[0])

    def digest(self) -> int:
        """Return a sum of the hashes of all outcomes, the same in any order; 0 for none."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0)
        rows = zip(mask, value, self.values, strict=True)
        texts = (b"outcome" + b"".join(part.tobytes() for part in row) for row in rows)
        return sum(int.from_bytes(hashlib.sha256(text).digest()) for text in texts)


def no_outcomes(variables: int) -> Outcomes:
    """Return an empty record over a number of variables."""
    empty = np.zeros((0, variables))
    return Outcomes(Queries(empty.astype(bool), empty), np.zeros(0))


def read_outcomes(
    problem: "Problem", given: tuple[Queries, Sequence[float] | np.ndarray] | None
) -> Outcomes:
    """Check a pair (queries, values) of experiments on a problem; None is no experiment.

    Raises
    ------
    DataError
        If it is no such pair, or a value is no finite number of a usable size.
    """
    if given is None:
        return no_outcomes(len(problem.graph.nodes))
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataError(
            f"outcomes are a pair (queries, values), got {type(given).__name__}; see "
            "problem.queries"
        )
    queries, values = problem.require(given[0]), np.array(given[1])
    if values.dtype.kind not in "iuf":
        raise DataError(f"outcomes must be numbers, one for each intervention; got {values.dtype}")
    values = values.astype(float)
    if values.shape != (len(queries),) or not np.isfinite(values).all():
        raise DataError(
            f"{len(queries)} interventions need as many finite outcomes; got an array of shape "
            f"{values.shape} with {int((~np.isfinite(values)).sum())} that are not finite"
        )
    require_outcomes(values)
    return Outcomes(queries, values)


class NoisyOutcomes(NamedTuple):
    """Observed outcomes: m queries, values (m,) and variances (m,) of their noise."""

    queries: Queries
    values: np.ndarray
    variances: np.ndarray

    def join(self, other: "NoisyOutcomes") -> "NoisyOutcomes":
        """Return these outcomes followed by others."""
        queries = stack([self.queries, other.queries])
        return NoisyOutcomes(queries, *map(np.append, self[1:], other[1:]))

    def select(self, chosen: np.ndarray) -> "NoisyOutcomes":
        """Return the outcomes for which a mask (m,) is true."""
        return NoisyOutcomes(self.queries[chosen], self.values[chosen], self.variances[chosen])


def no_noisy_outcomes(variables: int) -> NoisyOutcomes:
    """Return an empty record over a number of variables."""
    return NoisyOutcomes(*no_outcomes(variables), np.zeros(0))


def read_noisy_outcomes(queries: Queries, outcomes: object, noise: object) -> NoisyOutcomes:
    """Check outcomes of legal queries, one finite number each, and the variances of their noise.

    A DataError is raised if there is not one outcome and one variance for each query, or one of
    them cannot be used.
    """
    values, variances = _read_numbers("outcome", outcomes), _read_numbers("noise", noise)
    if len(variances) == 1:
        variances = np.repeat(variances, len(queries))
    if not len(queries) or len(values) != len(queries) or len(variances) != len(queries):
        raise DataError(
            f"give one outcome for each intervention; got {len(values)} outcomes and "
            f"{len(variances)} variances of {queries!r}"
        )
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise DataError(f"the outcome is {bad}; it must be finite: omit a failed experiment")
    wrong = ~(np.isfinite(variances) & (variances >= 0))
    if wrong.any():
        raise DataError(
            f"the variance of the outcome's noise is {variances[wrong][0]}; it must be finite, and "
            "not negative"
        )
    require_outcomes(values)
    if fault := size_fault(float(variances.max()), 0.0, LARGEST_MAGNITUDE**2):
        raise DataError(f"the variance of the outcome's noise is {fault}")
    return NoisyOutcomes(queries, values, variances)


def _read_numbers(name: str, given: object) -> np.ndarray:
    """Return numbers as a float array of one dimension; refuse anything else."""
    if isinstance(given, np.ndarray) and given.dtype == float:
        return given.ravel()
    return np.array([read_number(name, number) for number in np.ravel(np.asarray(given, object))])


class Replicates(NamedTuple):
    """Outcomes of t distinct interventions, each with all of its replicates.

    counts: (t,). means: (t,) of their outcomes, weighted by precision. variances: (t,) of these
    means' noise. squares: (t,) sums of the squared distances of the outcomes from their mean, in
    units of their noise.
    """

    queries: Queries
    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    squares: np.ndarray


def merge_replicates(queries: Queries, values: np.ndarray, variances: np.ndarray) -> Replicates:
    """Merge outcomes of equal interventions, in the order in which each first appears.

    Parameters
    ----------
    queries, values, variances:
        m interventions, their outcomes, and the variances of their noise. An outcome without noise
        decides; two that differ are refused.
    """
    mask, value = np.asarray(queries.mask), np.where(queries.mask, queries.value, 0.0) + 0.0
    first, which = _group(mask, value)
    size, exact = len(first), variances == 0
    given = np.where(exact, 1.0, variances)
    least = np.full(size, np.inf)
    np.minimum.at(least, which, given)
    relative = least[which] / given  # precisions, in units that cannot overflow
    total = np.bincount(which, relative, size)
    means = np.bincount(which, relative * values, size) / total
    squares = np.bincount(which, (values - means[which]) ** 2 / given, size)
    noises = least / total
    if exact.any():
        known, decided = _decided(which[exact], values[exact], size, np.abs(values).max())
        means = np.where(known, decided, means)
        noises, squares = np.where(known, 0.0, noises), np.where(known, 0.0, squares)
    counts = np.bincount(which, minlength=size)
    return Replicates(Queries(mask[first], value[first]), counts, means, noises, squares)


def _group(mask: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row (t,) of each distinct intervention, and for every row which it is."""
    same = (mask[1:] == mask[:-1]).all(axis=1) & (value[1:] == value[:-1]).all(axis=1)
    starts = np.flatnonzero(np.append(True, ~same))[: len(mask)]  # of runs of equal rows
    positions: dict[bytes, int] = {}
    kinds = [
        positions.setdefault(one.tobytes() + values.tobytes(), len(positions))
        for one, values in zip(mask[starts], value[starts], strict=True)
    ]
    which = np.repeat(np.array(kinds, int), np.diff(np.append(starts, len(mask))))
    first = np.full(len(positions), len(mask))
    np.minimum.at(first, which, np.arange(len(mask)))
    return first, which


def _decided(
    which: np.ndarray, values: np.ndarray, size: int, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return which interventions (t,) have an outcome without noise, and the first of these."""
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, which, values)
    np.maximum.at(high, which, values)
    differs = np.flatnonzero(high - low > EQUAL_OUTCOMES * largest)
    if len(differs):
        first = differs[0]
        raise DataError(
            f"the same intervention gave {low[first]:.9g} and {high[first]:.9g}, though outcomes "
            "have no noise; give its variance as `noise`"
        )
    decided = np.zeros(size)
    decided[which[::-1]] = values[::-1]
    return high > -np.inf, decided
