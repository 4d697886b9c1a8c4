"""Are these observations usable for this graph? Observational and interventional ones in one table.

The digest of a table is a sum of hashes of its rows, modulo 2^256: the same in any order, and that
of joined tables is the sum of theirs. It recognizes rows that were changed, lost or repeated by
accident; it does not protect against somebody who searches for other rows with the same digest.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causal_bo_ppl.data.tables import (
    Fresh,
    read_array,
    read_csv,
    read_frame,
    read_parquet,
    write_csv,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inputs import require_distinct
from causal_bo_ppl.problem.interventions import Queries

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem


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
