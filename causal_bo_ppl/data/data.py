"""Are these observations usable for this graph? Observational and interventional ones in one table.

Tables of pandas, CSV and Parquet are read here. The digest of a table is a sum of hashes of its
rows, modulo 2^256: the same in any order, and that of joined tables is the sum of theirs. It
recognizes rows that were changed, lost or repeated by accident; it does not protect against
somebody who searches for other rows with the same digest.
"""

import csv
import hashlib
import html
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    ObservationError,
    closest,
    listed,
    unknown,
)
from causal_bo_ppl.inputs import require_distinct
from causal_bo_ppl.problem.interventions import READ_BACK_TOLERANCE, Queries

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

OTHERS_SET = (
    "other variables are marked as intervened than the suggested ones; report what was really set "
    "with actual={...}"
)
SHORT_FLOATS = (np.float32, np.float16)
# pandas reads the last digits of numbers as they were written from 3.1 on, and before on request.
IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
EXACT: dict[str, Any] = {} if IS_EXACT else {"float_precision": "round_trip"}
FORMULA_STARTS = ("=", "+", "-", "@")  # with these a cell is a formula for a spreadsheet


class Fresh(NamedTuple):
    """Values that were just made and that nobody else holds: they need not be copied."""

    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Data:
    """Complete observations of all variables, each with the variables that were set in it.

    Parameters
    ----------
    nodes, target:
        The names of the variables, and of the one to improve.
    values:
        Finite numbers of shape (n, p), columns in the order of `nodes`; a read-only copy is kept.
    intervened:
        A boolean array of shape (n, p): which variables were set; none in an observational row.
    unused:
        Columns of the source that are not in the graph.

    Raises
    ------
    DataError
        If a value is not finite, a shape is wrong, or the target is marked as set.

    Examples
    --------
    >>> Data(("X", "Y"), "Y", [[0.0, 1.0], [2.0, 5.0]], np.array([[False, False], [True, False]]))
    Data(2 observations of X, Y; 1 interventional)
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
        cls,
        problem: "Problem",
        frame: pd.DataFrame,
        *,
        intervened: str | Iterable[str] | None = None,
    ) -> "Data":
        """Read a pandas table with a column for every variable of the graph.

        Parameters
        ----------
        problem:
            Whose variables are read.
        frame:
            The table. Boolean columns `do(X)` mark the rows in which X was set; without them all
            rows are observational. Other columns are ignored and listed in `unused`.
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
        Data(2 observations of X, Y; 1 interventional)
        """
        if not hasattr(problem, "graph") or not hasattr(problem, "target"):
            raise DataError(
                "data are read for a problem, which has a graph and a target; "
                f"got {type(problem).__name__}"
            )
        nodes = problem.graph.nodes
        values, marks, unused = read_frame(frame, nodes)
        if intervened is None:
            return cls(nodes, problem.target, Fresh(values), marks, unused)  # type: ignore[arg-type]
        if isinstance(intervened, Mapping):
            raise DataError(
                "`intervened` names variables; their values are read from the table's columns"
            )
        if marks.any():
            raise DataError(
                "the table has do(...) columns and `intervened` was given too; keep one of them"
            )
        names = problem.graph.require(intervened)
        mask = np.broadcast_to(np.isin(nodes, names), values.shape)
        return cls(nodes, problem.target, Fresh(values), mask, unused)  # type: ignore[arg-type]

    @classmethod
    def from_csv(cls, problem: "Problem", path: str | Path) -> "Data":
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
        Data(2 observations of X, Y; 0 interventional)
        """
        return cls.from_frame(problem, read_csv(path))

    @classmethod
    def from_parquet(cls, problem: "Problem", path: str | Path) -> "Data":
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
        Data(1 observations of X, Y; 0 interventional)
        """
        return cls.from_frame(problem, read_parquet(path))

    def to_frame(self) -> pd.DataFrame:
        """Return the observations as a table that `from_frame` reads back.

        It has a boolean column `do(X)` for every variable X that was set in some row.
        """
        frame = pd.DataFrame(self.values, columns=list(self.nodes), copy=True)  # ours is read-only
        for column in np.flatnonzero(self.intervened.any(axis=0)).tolist():
            frame[f"do({self.nodes[column]})"] = self.intervened[:, column]
        return frame

    def to_csv(self, path: str | Path) -> None:
        """Write the observations as CSV with all digits; `from_csv` reads the same numbers back."""
        write_csv(self.to_frame(), path)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def fingerprint(self) -> str:
        """A hash of all rows, the same for any order of them."""
        return hashlib.sha256(f"{digest(self):x}".encode()).hexdigest()

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
        """Intervention of each observation; an observational one sets nothing."""
        return Queries(self.intervened, np.where(self.intervened, self.values, 0.0))

    @property
    def is_observational(self) -> np.ndarray:
        """Whether nothing was set in each row, a boolean array of shape (n,)."""
        return np.asarray(~self.intervened.any(axis=1))

    def select(self, chosen: slice | np.ndarray) -> "Data":
        """Return some observations, chosen by a slice, a boolean array or an index array."""
        try:
            values, intervened = self.values[chosen], self.intervened[chosen]
        except (IndexError, TypeError) as error:
            raise DataError(
                f"cannot choose observations by {chosen!r}: {error}; there are {len(self)}, chosen "
                "by a slice, a boolean array or an index array"
            ) from None
        return Data(self.nodes, self.target, values, intervened, self.unused)

    def join(self, other: "Data") -> "Data":
        """Return these observations followed by the other's."""
        if not isinstance(other, Data):
            raise DataError(
                f"only Data can be joined, got {type(other).__name__}; read it with Data.from_frame"
            )
        if (self.nodes, self.target) != (other.nodes, other.target):
            raise DataError(
                f"cannot join data of {listed(self.nodes)} with data of {listed(other.nodes)}"
            )
        values = np.vstack([self.values, other.values])
        intervened = np.vstack([self.intervened, other.intervened])
        unused = tuple(dict.fromkeys(self.unused + other.unused))
        fresh: Any = Fresh(values)
        return Data(self.nodes, self.target, fresh, intervened, unused)

    def __repr__(self) -> str:
        interventional = len(self) - int(self.is_observational.sum())
        ignored = f"; ignored columns: {listed(self.unused)}" if self.unused else ""
        return (
            f"Data({len(self)} observations of {listed(self.nodes)}; "
            f"{interventional} interventional{ignored})"
        )

    def summary(self) -> pd.DataFrame:
        """Return the mean, sd and range of every variable, and in how many rows it was set."""
        frame = pd.DataFrame(self.values, columns=list(self.nodes))
        table = frame.agg(["mean", "std", "min", "max"]).T.rename(columns={"std": "sd"})
        return table.assign(set_in=self.intervened.sum(axis=0))

    def _repr_html_(self) -> str:
        table = self.summary().to_html(float_format="{:.4g}".format)
        return f"<p>{html.escape(repr(self))}</p>{table}"


HASH_LANES = 4  # hashes of 64 bits for every row
HASHED_AT_ONCE = 2**18  # numbers hashed at once: they stay in the processor's cache
HASH_SEED = 20021
Words = np.ndarray  # of uint64, in which sums and products are modulo 2^64


def digest(data: Data) -> int:
    """Return the sum of the hashes of all rows: the same in any order, and of parts the sum.

    A row is the bits of its values, and one bit for each variable: whether it was set.
    Every word w_c of these is scrambled by itself, and lane l of the row's hash is the scrambled
    sum over c of w_c k_cl, with fixed odd numbers k_cl.
    """
    total = 0
    step = max(1, HASHED_AT_ONCE // len(data.nodes))
    for start in range(0, len(data), step):
        block = slice(start, start + step)
        total += _sum_of_hashes(
            [*data.values[block].view(np.uint64).T, *_bits(data.intervened[block])]
        )
    return total % 2**256


def _bits(marks: np.ndarray) -> Words:
    """Return marks (n, p) as words (ceil(p / 64), n), one bit for each mark."""
    bits = np.packbits(marks, axis=1, bitorder="little")
    padded = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))))
    return padded.view("<u8").astype(np.uint64).T


@lru_cache(maxsize=64)
def _constants(width: int) -> tuple[Words, Words]:
    """Return what is added to every word (w,), and the factors of every lane (w, HASH_LANES)."""
    draws = np.random.default_rng(HASH_SEED)
    shifts, factors = (
        draws.integers(2**63, size=shape, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for shape in (width, (width, HASH_LANES))
    )
    return shifts, factors


def _sum_of_hashes(columns: Sequence[Words]) -> int:
    """Return the sum of the hashes of n rows, given as columns of n words."""
    shifts, factors = _constants(len(columns))
    words = [_scramble(column + shift) for column, shift in zip(columns, shifts, strict=True)]
    total = 0
    for lane in range(HASH_LANES):
        hashes = np.zeros(len(words[0]), np.uint64)
        for word, factor in zip(words, factors[:, lane], strict=True):
            hashes += word * factor
        hashes = _scramble(hashes)
        high, low = hashes >> np.uint64(32), hashes & np.uint64(2**32 - 1)
        total += ((int(high.sum()) << 32) + int(low.sum())) << (64 * lane)
    return total


def _scramble(words: Words) -> Words:
    """Make every bit of the words depend on all bits, by the last steps of SplitMix64.

    The words are changed in place, and returned.
    """
    shifted = np.empty_like(words)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(factor)
    return words


def require_data_of(problem: "Problem", data: Data) -> None:
    """Refuse observations of another graph or another target."""
    if (data.nodes, data.target) != (problem.graph.nodes, problem.target):
        raise DataError(
            f"the data are of {listed(data.nodes)} with the target {data.target!r}, the problem "
            f"has {listed(problem.graph.nodes)} and {problem.target!r}; read them for this problem"
        )


def match_rows(rows: Data, queries: Queries, problem: "Problem") -> tuple[Data, tuple[str, ...]]:
    """Return whole rows, one for each intervention, and why each cannot be used, "" where it can.

    The suggested values count as those that were set, up to rounding; a row in which something else
    was set cannot be used.
    """
    mask, suggested = np.asarray(queries.mask), np.asarray(queries.value)
    if len(rows) != len(mask):
        raise ObservationError(
            f"the experiment returned {len(rows)} rows for {len(mask)} interventions; return one "
            "for each"
        )
    width = np.array([np.ptp(problem.domains.get(name, (0.0, 0.0))) for name in rows.nodes])
    differs = mask & ~(np.abs(rows.values - suggested) <= READ_BACK_TOLERANCE * width)
    faults = tuple(
        _fault(rows, row, suggested[row], differs[row]) if same else OTHERS_SET
        for row, same in enumerate((rows.intervened == mask).all(axis=1))
    )
    values = np.where(mask & ~differs, suggested, rows.values)
    return Data(rows.nodes, rows.target, values, rows.intervened, rows.unused), faults


def _fault(rows: Data, row: int, suggested: np.ndarray, differs: np.ndarray) -> str:
    if not differs.any():
        return ""
    column = int(np.flatnonzero(differs)[0])
    return (
        f"row {row} of the experiment has {rows.nodes[column]} = {rows.values[row, column]:.9g}, "
        f"suggested was {suggested[column]:.9g}; report what was really set with actual={{...}}"
    )


def read_data(problem: "Problem", given: object) -> Data:
    """Return data for a problem, given as Data or as a pandas table; see `Data.from_frame`."""
    if isinstance(given, pd.DataFrame):
        return Data.from_frame(problem, given)
    if not isinstance(given, Data):
        raise DataError(
            "data must be cb.Data or a pandas DataFrame with a column for every variable, got "
            f"{type(given).__name__}"
        )
    require_data_of(problem, given)
    return given


def read_frame(
    frame: pd.DataFrame, nodes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the values and what was set, (n, p) each in graph order, and the unused columns.

    A column `do(X)` marks the rows in which X was set.
    """
    if not isinstance(frame, pd.DataFrame):
        kind = type(frame).__name__
        raise DataError(f"data come as a pandas DataFrame, got {kind}; read a file by pd.read_csv")
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
            + ("; name their separator by pd.read_csv(path, sep=...)" if is_cut_wrong else "")
            + _hint(missing, unused)
        )
    names = "|".join(re.escape(name) for name in nodes)
    for column in unused:
        if re.fullmatch(rf"do\s*\(.*|do[\s_.:\[-]*({names})\]?", column, re.IGNORECASE):
            raise DataError(f"the table marks an {unknown('intervention', column, marks)}")
    columns = [_read_column(frame[name], name) for name in nodes] if len(frame) else []
    values = np.column_stack(columns) if columns else np.empty((0, len(nodes)))
    _warn_of_short_floats([name for name in nodes if frame[name].dtype in SHORT_FLOATS])
    _require_finite(values, nodes, frame.index)
    intervened = np.column_stack([_read_mark(frame, f"do({name})") for name in nodes])
    return values, intervened, unused


def _hint(missing: Sequence[str], unused: Sequence[str]) -> str:
    """Return which unused columns may be the missing ones, or nothing."""
    meant = {name: close for name in missing if (close := closest(name, unused)) is not None}
    if not meant:
        return ""
    pairs = " and ".join(f"{close!r} for {name!r}" for name, close in meant.items())
    columns = {close: name for name, close in meant.items()}
    return f"; did you mean {pairs}? rename by frame.rename(columns={columns})"


def read_array(values: object, nodes: Sequence[str]) -> np.ndarray:
    """Return a read-only float64 copy of shape (n, p), all finite."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError("the values are a masked array; drop or repair the masked ones")
    try:
        rows = values.values if isinstance(values, Fresh) else np.array(values)
    except ValueError:
        raise DataError(
            "the rows have different lengths; every row needs one value for each variable"
        ) from None
    if rows.ndim != 2 or rows.shape[1] != len(nodes):
        raise DataError(
            f"values need the shape (n, {len(nodes)}) for {listed(nodes)}, got {rows.shape}"
        )
    if rows.dtype in SHORT_FLOATS:
        _warn_of_short_floats(nodes)
    rows = _to_float(rows, *nodes)
    _require_finite(rows, nodes, range(len(rows)))
    rows.flags.writeable = False
    return rows


def _read_column(column: "pd.Series[float]", name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(column.dtype):
        raise DataError(f"column {name!r} has dtype {column.dtype}; convert it to numbers first")
    if column.isna().any():  # a missing nullable integer becomes NaN, which is refused
        column = column.astype(float)
    return _to_float(column.to_numpy(), name)


def _to_float(values: np.ndarray, *names: str) -> np.ndarray:
    """Return the values as float64; refuse any that are not booleans, integers or floats."""
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"column {listed(names)!r} has dtype {values.dtype}; convert it to numbers first"
        )
    return values.astype(np.float64, copy=False)


def _warn_of_short_floats(names: Sequence[str]) -> None:
    if names:
        message = (
            f"columns {listed(names)} are float32 or float16; converted to float64, "
            "the digits lost stay lost"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=4)


def _require_finite(
    values: np.ndarray, nodes: Sequence[str], labels: "pd.Index[Any] | range"
) -> None:
    good = np.isfinite(values)
    if not good.all():
        counts, first = (~good).sum(axis=0).tolist(), good.argmin(axis=0).tolist()
        found = [
            f"column {name!r} holds {count} NaN or infinite values, the first in row {labels[row]}"
            for name, count, row in zip(nodes, counts, first, strict=True)
            if count
        ]
        raise DataError(f"{listed(found)}; drop or repair those rows")


def _require_distinct(what: str, labels: "pd.Index[str]") -> None:
    try:
        with np.errstate(over="ignore"):
            repeated = labels[:0] if labels.is_unique else labels[labels.duplicated()]
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


def read_csv(
    path: str | Path, separator: str = ",", decimal: str = ".", encoding: str = "utf-8-sig"
) -> pd.DataFrame:
    """Read a CSV file; repeated column names are refused, not renamed."""
    try:
        with Path(path).open(newline="", encoding=encoding) as file:
            rows = csv.reader(file, delimiter=separator)
            header = next(rows, [])
            _require_distinct("column", pd.Index(header))
            if not header:
                raise csv.Error("it is empty")
            for line, row in enumerate(rows, start=2):
                if row and len(row) != len(header):
                    raise csv.Error(f"line {line} has another number of fields than the header")
        options: dict[str, Any] = {"sep": separator, "decimal": decimal, "encoding": encoding}
        frame: pd.DataFrame = pd.read_csv(Path(path), index_col=False, **options, **EXACT)
        return frame.rename(columns=lambda name: name[1:] if _is_quoted(name) else name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path") from None
    except LookupError:
        raise DataError(f"{encoding!r} is no encoding; name one such as utf-8 or cp1252") from None
    except (csv.Error, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV table with a header line: {error}") from None


def read_parquet(path: str | Path) -> pd.DataFrame:
    """Read a Parquet file, which needs pyarrow."""
    try:
        return pd.read_parquet(Path(path), engine="pyarrow")
    except OSError as error:
        reason = error.strerror or "there is no such file"
        raise DataError(f"{path} cannot be read: {reason}; check the path") from None
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow; install causal_bo_ppl[parquet]") from None
    except ValueError as error:  # pyarrow's ArrowInvalid is one
        raise DataError(f"{path} is not a Parquet file: {error}") from None


def write_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table of numbers as CSV with all digits.

    A name that a spreadsheet would take as a formula gets an apostrophe before it, which `read_csv`
    takes away again.
    """
    quoted = frame.rename(
        columns=lambda name: f"'{name}" if name.startswith(FORMULA_STARTS) else name
    )
    quoted.to_csv(path, index=False)


def _is_quoted(name: str) -> bool:
    return name.startswith(tuple(f"'{mark}" for mark in FORMULA_STARTS))
