"""How are tables of pandas, CSV and Parquet read into arrays?"""

import csv
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import CausalBOWarning, DataError, closest, listed, unknown

SHORT_FLOATS = (np.float32, np.float16)
# pandas reads the last digits of numbers as they were written from 3.1 on, and before on request.
IS_EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
EXACT: dict[str, Any] = {} if IS_EXACT else {"float_precision": "round_trip"}


class Fresh(NamedTuple):
    """Values that were just made and that nobody else holds: they need not be copied."""

    values: np.ndarray


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


def read_csv(path: str | Path) -> pd.DataFrame:
    """Read a CSV file; repeated column names are refused, not renamed."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            _require_distinct("column", pd.Index(header))
            if not header:
                raise csv.Error("it is empty")
            for line, row in enumerate(rows, start=2):
                if row and len(row) != len(header):
                    raise csv.Error(f"line {line} has another number of fields than the header")
        frame: pd.DataFrame = pd.read_csv(Path(path), index_col=False, **EXACT)
        return frame.rename(columns=lambda name: name[1:] if _is_quoted(name) else name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path") from None
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


FORMULA_STARTS = ("=", "+", "-", "@")  # with these a cell is a formula for a spreadsheet


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
