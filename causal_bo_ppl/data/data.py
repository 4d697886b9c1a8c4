"""Are these rows usable for this graph? Observational and interventional rows in one record.

Tables of pandas, CSV and Parquet are read into checked arrays, and rows are written as tables.
"""

import csv
import html
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import CausalBOWarning, DataError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inputs import require_distinct
from causal_bo_ppl.problem import Queries

SHORT = (np.float32, np.float16)


class Posed(Protocol):
    """A graph with a target, for which a table is read; a `Problem` is one."""

    @property
    def graph(self) -> CausalGraph:
        """Causal graph of the variables."""

    @property
    def target(self) -> str:
        """Name of the variable to improve."""


@dataclass(frozen=True, eq=False)
class Data:
    """Complete rows of all variables, each with what was set in it.

    values: (n, p) finite float64, columns in the order of `nodes`; a private, read-only copy.
    intervened: (n, p) bool, which variables were set in a row; none in an observational one.
    unused: columns of the source that are not in the graph.
    """

    nodes: tuple[str, ...]
    target: str
    values: np.ndarray
    intervened: np.ndarray
    unused: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        object.__setattr__(self, "unused", tuple(self.unused))
        require_distinct(self.nodes)
        if self.target not in self.nodes:
            raise DataError(
                f"the target {self.target!r} is not among the columns {listed(self.nodes)}"
            )
        values = read_array(self.values, self.nodes)
        intervened = np.array(self.intervened)
        if intervened.dtype != bool or intervened.shape != values.shape:
            raise DataError(
                f"`intervened` must be boolean and of shape {values.shape}, got "
                f"{intervened.dtype} {intervened.shape}"
            )
        if intervened[:, self.nodes.index(self.target)].any():
            raise DataError(
                f"the target {self.target!r} is marked as set; its values would not be outcomes: "
                "drop those rows"
            )
        intervened.flags.writeable = False
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "intervened", intervened)

    def __reduce__(self) -> tuple[type["Data"], tuple[object, ...]]:
        # A copy is checked like the first.
        return Data, (self.nodes, self.target, self.values, self.intervened, self.unused)

    @classmethod
    def from_frame(
        cls, problem: Posed, frame: pd.DataFrame, *, intervened: str | Iterable[str] | None = None
    ) -> "Data":
        """Read a pandas table with a column for every variable of the graph.

        Parameters
        ----------
        problem:
            Whose variables are read.
        frame:
            The table. Boolean columns `do(X)` say in which rows X was set; without them the rows
            are observational. Other columns are ignored and listed in `unused`.
        intervened:
            Names of the variables that were set in all rows, instead of columns `do(X)`.

        Returns
        -------
        Data

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (0, 1)})
        >>> frame = pd.DataFrame({"X": [0.1, 0.9], "Y": [2.0, 3.0], "do(X)": [False, True]})
        >>> cb.Data.from_frame(problem, frame)
        Data(1 observational and 1 interventional rows of X, Y)
        """
        if not hasattr(problem, "graph") or not hasattr(problem, "target"):
            raise DataError(
                "rows are read for a problem, which has a graph and a target; "
                f"got {type(problem).__name__}"
            )
        nodes = problem.graph.nodes
        table = read_frame(frame, nodes)
        if intervened is None:
            return cls(nodes, problem.target, table.values, table.intervened, table.unused)
        if isinstance(intervened, Mapping):
            raise DataError(
                "`intervened` names variables; their values are read from the table's columns"
            )
        if table.intervened.any():
            raise DataError(
                "the table has do(...) columns and `intervened` was given too; keep one of them"
            )
        names = problem.graph.require(intervened)
        mask = np.broadcast_to(np.isin(nodes, names), table.values.shape)
        return cls(nodes, problem.target, table.values, mask, table.unused)

    @classmethod
    def from_csv(cls, problem: Posed, path: str | Path) -> "Data":
        """Read a CSV file with a header.

        Parameters
        ----------
        problem, path:
            Whose variables are read, and the file. Its columns are as in `from_frame`.

        Returns
        -------
        Data

        Examples
        --------
        >>> import tempfile
        >>> import causal_bo_ppl as cb
        >>> problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (0, 1)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"X": [0, 1], "Y": [2, 3]}).to_csv(f"{folder}/rows.csv", index=False)
        ...     cb.Data.from_csv(problem, f"{folder}/rows.csv")
        Data(2 observational and 0 interventional rows of X, Y)
        """
        return cls.from_frame(problem, read_csv(path))

    @classmethod
    def from_parquet(cls, problem: Posed, path: str | Path) -> "Data":
        """Read a Parquet file, which needs the extra `parquet`.

        Parameters
        ----------
        problem, path:
            Whose variables are read, and the file. Its columns are as in `from_frame`.

        Returns
        -------
        Data

        Examples
        --------
        >>> import tempfile
        >>> import causal_bo_ppl as cb
        >>> problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (0, 1)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"X": [0.1], "Y": [2.0]}).to_parquet(f"{folder}/rows.parquet")
        ...     cb.Data.from_parquet(problem, f"{folder}/rows.parquet")
        Data(1 observational and 0 interventional rows of X, Y)
        """
        return cls.from_frame(problem, read_parquet(path))

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a table that `from_frame` reads back.

        It has a column `do(X)` for every variable X that was set in some row.
        """
        return write_frame(self.values, self.intervened, self.nodes)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as CSV with all digits; `from_csv` reads the same numbers back."""
        self.to_frame().to_csv(path, index=False)

    def __len__(self) -> int:
        return len(self.values)

    def column(self, name: str) -> np.ndarray:
        """Return the values of one variable, an array of shape (n,)."""
        if name not in self.nodes:
            raise DataError(f"no column {name!r}; columns: {listed(self.nodes)}")
        return self.values[:, self.nodes.index(name)]

    @property
    def outcomes(self) -> np.ndarray:
        """Values of the target, an array of shape (n,)."""
        return self.column(self.target)

    @property
    def queries(self) -> Queries:
        """Interventions of the rows; one that sets nothing is an observation."""
        return Queries(self.intervened, np.where(self.intervened, self.values, 0.0))

    @property
    def is_observational(self) -> np.ndarray:
        """Whether nothing was set in each row, a boolean array of shape (n,)."""
        return np.asarray(~self.intervened.any(axis=1))

    def rows(self, chosen: slice | np.ndarray) -> "Data":
        """Return some of the rows, chosen by a slice, a boolean array or an index array."""
        return Data(
            self.nodes, self.target, self.values[chosen], self.intervened[chosen], self.unused
        )

    def join(self, other: "Data") -> "Data":
        """Return these rows followed by the other's."""
        if not isinstance(other, Data):
            raise DataError(
                f"only Data can be joined, got {type(other).__name__}; read it with Data.from_frame"
            )
        if (self.nodes, self.target) != (other.nodes, other.target):
            raise DataError(
                f"cannot join rows of {listed(self.nodes)} with rows of {listed(other.nodes)}"
            )
        values = np.vstack([self.values, other.values])
        intervened = np.vstack([self.intervened, other.intervened])
        unused = tuple(dict.fromkeys(self.unused + other.unused))
        return Data(self.nodes, self.target, values, intervened, unused)

    def __repr__(self) -> str:
        observed = int(self.is_observational.sum())
        ignored = f"; ignored columns: {listed(self.unused)}" if self.unused else ""
        rows = f"{observed} observational and {len(self) - observed} interventional rows"
        return f"Data({rows} of {listed(self.nodes)}{ignored})"

    def summary(self) -> pd.DataFrame:
        """Return the mean, sd and range of every variable, and in how many rows it was set."""
        return summarise(self.values, self.intervened, self.nodes)

    def _repr_html_(self) -> str:
        table = self.summary().to_html(float_format="{:.4g}".format)
        return f"<p>{html.escape(repr(self))}</p>{table}"


class Table(NamedTuple):
    """Arrays in graph order, and the columns that no variable claims."""

    values: np.ndarray
    intervened: np.ndarray
    unused: tuple[str, ...]


def read_frame(frame: pd.DataFrame, nodes: Sequence[str]) -> Table:
    """Take the graph's columns out of a table, with the `do(X)` columns that say what was set."""
    if not isinstance(frame, pd.DataFrame):
        kind = type(frame).__name__
        raise DataError(f"rows come as a pandas DataFrame, got {kind}; read a file by pd.read_csv")
    _require_distinct("column", frame.columns)
    _require_distinct("row label", frame.index)
    marks = {f"do({name})": name for name in nodes}
    missing = [name for name in nodes if name not in frame.columns]
    claimed = {*nodes, *marks}
    unused = tuple(
        str(name) for name in frame.columns if not (isinstance(name, str) and name in claimed)
    )
    if missing:
        is_cut_wrong = len(frame.columns) == 1 and re.search(r"[;\t|]", str(frame.columns[0]))
        raise DataError(
            f"the table lacks the columns {listed(missing)}; its unused columns are: "
            + listed(unused)
            + ("; say by pd.read_csv(path, sep=...) what separates them" if is_cut_wrong else "")
        )
    names = "|".join(re.escape(name) for name in nodes)
    for column in unused:
        if re.fullmatch(rf"do\s*\(.*|do[\s_.:\[-]*({names})\]?", column, re.IGNORECASE):
            raise DataError(f"the table marks an {unknown('intervention', column, marks)}")
    columns = [_read_column(frame[name], name) for name in nodes] if len(frame) else []
    values = np.column_stack(columns) if columns else np.empty((0, len(nodes)))
    _warn_of_short_floats([name for name in nodes if frame[name].dtype in SHORT])
    _require_finite(values, nodes, list(frame.index))
    intervened = np.column_stack([_read_mark(frame, f"do({name})") for name in nodes])
    return Table(values, intervened, unused)


def read_array(values: object, nodes: Sequence[str]) -> np.ndarray:
    """Copy rows into a read-only float64 array of shape (n, p), all finite."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError("the rows are a masked array; drop or repair the masked values")
    try:
        rows = np.array(values)
    except ValueError:
        raise DataError(
            "the rows have ragged lengths; every row needs one value for each variable"
        ) from None
    if rows.ndim != 2 or rows.shape[1] != len(nodes):
        raise DataError(
            f"rows need the shape (n, {len(nodes)}) for {listed(nodes)}, got {rows.shape}"
        )
    if rows.dtype in SHORT:
        _warn_of_short_floats(nodes)
    rows = _to_float(rows, listed(nodes))
    _require_finite(rows, nodes, range(len(rows)))
    rows.flags.writeable = False
    return rows


def _read_column(column: "pd.Series[float]", name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(column.dtype):
        raise DataError(f"column {name!r} has dtype {column.dtype}; convert it to numbers first")
    if column.isna().any():  # a missing nullable integer becomes NaN, which is refused
        column = column.astype(float)
    return _to_float(column.to_numpy(), name)


def _to_float(values: np.ndarray, name: str) -> np.ndarray:
    """Return the values as float64; refuse any that are not booleans, integers or floats."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"column {name!r} has dtype {values.dtype}; convert it to numbers first")
    return values.astype(np.float64)


def _warn_of_short_floats(names: Sequence[str]) -> None:
    if names:
        message = (
            f"columns {listed(names)} are float32 or float16; converted to float64, "
            "the digits lost stay lost"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=4)


def _require_finite(values: np.ndarray, nodes: Sequence[str], labels: Sequence[object]) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        column = int(np.flatnonzero(bad.any(axis=0))[0])
        rows = np.flatnonzero(bad[:, column])
        raise DataError(
            f"column {nodes[column]!r} holds {len(rows)} NaN or infinite values, "
            f"the first in row {labels[rows[0]]}; drop or repair those rows"
        )


def _require_distinct(what: str, labels: "pd.Index[str]") -> None:
    try:
        with np.errstate(over="ignore"):
            repeated = labels[labels.duplicated()]
    except (OverflowError, TypeError):  # labels of kinds that cannot be compared
        repeated = labels[labels.map(repr).duplicated()]
    if len(repeated):
        raise DataError(
            f"the {what} {repeated.tolist()[0]!r} stands twice in the table; "
            f"make every {what} unique"
        )


def _read_mark(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name not in frame.columns:
        return np.zeros(len(frame), bool)
    marks = frame[name]
    if marks.isna().any() or not marks.isin([0, 1]).all():
        raise DataError(
            f"column {name!r} must hold True or False (1 or 0) in every row, "
            f"got {listed(marks.unique())}; fill in False where it was not set"
        )
    return marks.to_numpy(dtype=bool)


def read_csv(path: str | Path) -> pd.DataFrame:
    """Read a CSV file; repeated column names are refused, not renamed."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            _require_distinct("column", pd.Index(header))
            ragged = next(
                (line for line, row in enumerate(rows, start=2) if row and len(row) != len(header)),
                None,
            )
        if not header or ragged:
            fault = (
                f"line {ragged} has another number of fields than the header"
                if ragged
                else "it is empty"
            )
            raise DataError(f"{path} is not a CSV table with a header line: {fault}")
        return pd.read_csv(Path(path), index_col=False)
    except (csv.Error, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV table with a header line: {error}") from None


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a Parquet file; where pyarrow is missing, say what to install."""
    try:
        return pd.read_parquet(Path(path), engine="pyarrow")
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow; install causal_bo_ppl[parquet]") from None
    except ValueError as error:  # pyarrow's ArrowInvalid is one
        raise DataError(f"{path} is not a Parquet file: {error}") from None


def write_frame(values: np.ndarray, intervened: np.ndarray, nodes: Sequence[str]) -> pd.DataFrame:
    """Return rows as a table with a boolean column `do(X)` for every variable set in some row."""
    frame = pd.DataFrame(values, columns=list(nodes))
    for column in np.flatnonzero(intervened.any(axis=0)).tolist():
        frame[f"do({nodes[column]})"] = intervened[:, column]
    return frame


def summarise(values: np.ndarray, intervened: np.ndarray, nodes: Sequence[str]) -> pd.DataFrame:
    """Return a table with a row for every variable: how it varies, and how often it was set."""
    frame = pd.DataFrame(values, columns=list(nodes))
    summary = frame.agg(["mean", "std", "min", "max"]).T.rename(columns={"std": "sd"})
    return summary.assign(set_in=intervened.sum(axis=0))
