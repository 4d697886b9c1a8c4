"""What do the data say about theta_Y? One result for every method of inference."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.learnability import require_sizes
from causal_bo_ppl.errors import DataError, ModelError, NumericalError, listed
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inference.convergence import Limits
from causal_bo_ppl.inference.datatree import to_datatree
from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.inference.netcdf import write_datatree
from causal_bo_ppl.inputs import as_key, read_number, require_float64
from causal_bo_ppl.mechanisms.linear.priors import Prior
from causal_bo_ppl.problem import Problem, Queries

if TYPE_CHECKING:
    import xarray as xr


TRUSTED = ("exact", "passed")


class Belief(Protocol):
    """What a method of inference knows. Queries are over the target's ancestral graph."""

    @property
    def prior(self) -> Prior:
        """What was believed before."""

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""

    @property
    def verdict(self) -> str:
        """Did the computation work: "exact", "passed", "failed" or "not assessed"."""

    @property
    def learned(self) -> np.ndarray:
        """(k,) of the target and its causes, whose densities the method knows; the others' rows are taken as given."""

    @property
    def settings(self) -> str:
        """What the numbers depend on besides problem, prior and rows; empty where nothing is drawn."""

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) draws of theta_Y."""

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """About n draws of theta_Y with the whole model; by default all there are, or 4,000."""

    def lines(self, limits: Limits) -> pd.DataFrame:
        """What the computation's success is judged by: a line each, with value, limit and verdict."""

    def update(self, rows: Data) -> "Belief":
        """The same after more rows."""

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of theta_Y, the parameters that all effects share.

    method: how it was found. belief: what the method knows beyond theta_Y. parts: the rows it was learned from.
    digest: a sum of their hashes, whatever their order.
    """

    problem: Problem
    parameters: Parameters
    method: str
    belief: Belief
    parts: tuple[Data, ...]
    digest: int
    accepted: str = ""

    @property
    def rows(self) -> int:
        """How many rows it was learned from."""
        return sum(map(len, self.parts))

    @cached_property
    def data(self) -> Data:
        """The rows it was learned from."""
        return reduce(Data.join, self.parts)

    @property
    def verdict(self) -> str:
        """Did the computation work? "exact" for a closed form; else "passed", "failed" or "not assessed"."""
        return self.belief.verdict

    @property
    def status(self) -> str:
        """The verdict, and why it was accepted where the analyst accepted it."""
        return f"{self.verdict}, accepted: {self.accepted}" if self.accepted else self.verdict

    def accept(self, why: str) -> "Posterior":
        """Return this posterior with the analyst's reason to use it whatever its verdict is.

        Parameters
        ----------
        why:
            The reason, at least a word. Kernels, comparisons, runs and files that are made from the
            returned posterior record it, and it stays with later updates.

        Examples
        --------
        >>> import causal_bo_ppl as cb
        >>> system = cb.models.load("chain")
        >>> post = cb.fit(system.problem, system.observe(50, 0)).accept("a dry run")
        >>> post.status
        'exact, accepted: a dry run'
        """
        if not isinstance(why, str) or not why.strip():
            raise ModelError(f"say in words why this posterior is accepted; got {why!r}")
        return replace(self, accepted=why.strip())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta_Y."""
        return self.parameters.names

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        require_float64()
        mean, factor = self.belief.moments()
        covariance = factor @ factor.T
        finite = np.isfinite(mean) & np.isfinite(covariance).all(axis=1)
        if not finite.all() and self.verdict in ("exact", "passed"):
            raise NumericalError(
                f"the mean or variance of {self.names[int(finite.argmin())]} is not finite, so the verdict "
                f"{self.verdict!r} does not hold; change the units of its variables"
            )
        for part in (mean, factor, covariance):
            part.flags.writeable = False
        return mean, factor, covariance

    @property
    def mean(self) -> np.ndarray:
        """(d,) posterior mean; where the covariance is by the delta method, theta_Y of the mean equations."""
        return self._moments[0]

    @property
    def covariance(self) -> np.ndarray:
        """(d, d) posterior covariance; `moments_by` says how it was found."""
        return self._moments[2]

    @property
    def factor(self) -> np.ndarray:
        """(d, r) with factor factor' the covariance."""
        return self._moments[1]

    @property
    def sd(self) -> np.ndarray:
        """(d,) posterior standard deviations."""
        return np.asarray(np.sqrt(np.diagonal(self.covariance)))

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found: "closed form", "delta method", or from how many draws."""
        return self.belief.moments_by

    @property
    def prior(self) -> Prior:
        """What was believed before the rows."""
        return self.belief.prior

    @cached_property
    def learned_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Values (n, k) of the target and its causes, and where they are random: not set, and of a known density."""
        values, intervened = (
            self.data.values[:, self._columns],
            self.data.intervened[:, self._columns],
        )
        return values, ~intervened & self.belief.learned

    @cached_property
    def fingerprint(self) -> str:
        """Hash of problem, parameters, method, prior and rows; the order of the rows does not matter."""
        parts = [
            self.problem.fingerprint,
            self.parameters.kind,
            str(self.parameters.intercepts),
            self.method,
        ]
        settings = [self.belief.settings] if self.belief.settings else []
        text = "|".join(
            [*parts, self.prior.canonical(), str(self.rows), f"{self.digest:x}", *settings]
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def draws(self, n: int, key: jax.Array | int) -> np.ndarray:
        """(n, d) independent draws of theta_Y."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ModelError(f"cannot draw {n!r} times; ask for a whole number, at least 1")
        return self.belief.draw(int(n), as_key(key))

    def quantiles(
        self, levels: float | Sequence[float], *, draws: int = 4_000, key: jax.Array | int
    ) -> pd.DataFrame:
        """Quantiles of every coordinate, from draws; infinite where too many draws have no value."""
        levels = [
            read_number("level", level) for level in np.atleast_1d(np.asarray(levels, dtype=object))
        ]
        if not all(0 < level < 1 for level in levels):
            raise ModelError(f"levels must lie between 0 and 1, got {levels}")
        found = self.draws(draws, key)
        ends = [np.nan_to_num(found, nan=np.inf if level >= 0.5 else -np.inf) for level in levels]
        columns = {
            level: np.quantile(end, level, axis=0, method="inverted_cdf")
            for level, end in zip(levels, ends, strict=True)
        }
        return pd.DataFrame(columns, index=pd.Index(self.names, name="coordinate"))

    def update(self, rows: Data) -> "Posterior":
        """A new posterior after more rows: the same as fitting all of them at once."""
        require_float64()
        if not isinstance(rows, Data):
            raise DataError(
                f"a posterior learns from Data, got {type(rows).__name__}; read it with Data.from_frame"
            )
        require_rows_of(self.problem, rows)
        require_sizes(rows, self.parts)
        return replace(
            self,
            belief=self.belief.update(rows),
            parts=(*self.parts, rows),
            digest=(self.digest + digest(rows)) % 2**256,
        )

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome under each intervention, as the model implies it."""
        return self.belief.outcome_variances(self.upstream(queries))

    def to_datatree(self, *, draws: int | None = None, key: jax.Array | int = 0) -> "xr.DataTree":
        """The draws as ArviZ's DataTree, with log prior, log likelihood, predictions, rows and sampler statistics.

        draws: about how many; by default all there are, unless groups with a number for every row would grow beyond
        160 MB: then every so-many-th. The group `prior` is there for priors that can be drawn from.
        """
        if draws is not None and (
            isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 4
        ):
            raise ModelError(f"draws must be a whole number, at least 4; got {draws!r}")
        return to_datatree(self, draws, as_key(key))

    def to_netcdf(
        self, path: str | Path, *, draws: int | None = None, key: jax.Array | int = 0
    ) -> Path:
        """Write `to_datatree` to a netCDF file; `cb.read_datatree(path, problem)` reads it back."""
        return write_datatree(self.to_datatree(draws=draws, key=key), path)

    def upstream(self, queries: Queries) -> Queries:
        """The batch cut to the target and its causes, the target last."""
        require_float64()
        queries = self.problem.require(queries)
        return Queries(
            np.asarray(queries.mask)[:, self._columns], np.asarray(queries.value)[:, self._columns]
        )

    @cached_property
    def _columns(self) -> list[int]:
        graph = self.problem.graph
        return [graph.index(name) for name in graph.ancestral(self.problem.target).nodes]

    def to_frame(self) -> pd.DataFrame:
        """A row for every coordinate: cause, effect, mean and sd."""
        frame = self.parameters.to_frame()[["cause", "effect", "given", "used_by"]]
        return frame.assign(mean=self.mean, sd=self.sd)

    def __repr__(self) -> str:
        shape = f"{len(self.names)} {self.parameters.kind} parameters"
        return f"Posterior({shape} of {self.problem.target}, {self.method}, {self.rows} rows, {self.status})"

    def _repr_html_(self) -> str:
        title = f"<p>{len(self.names)} {self.parameters.kind} parameters, {self.method} posterior from {self.rows} rows"
        note = f"verdict: {self.status}; moments: {self.moments_by}"
        return f"{title}; {note}</p>{self.to_frame().to_html(max_rows=60, float_format='{:.4g}'.format)}"


def digest(rows: Data) -> int:
    """A sum of the hashes of all rows: the same in any order, and of parts the sum."""
    total = 0
    for values, intervened in zip(rows.values, rows.intervened, strict=True):
        total += int.from_bytes(hashlib.sha256(values.tobytes() + intervened.tobytes()).digest())
    return total % 2**256


def require_rows_of(problem: Problem, rows: Data) -> None:
    """Refuse rows of another graph."""
    if (rows.nodes, rows.target) != (problem.graph.nodes, problem.target):
        raise DataError(
            f"the rows are of {listed(rows.nodes)} with the target {rows.target!r}, the problem has "
            f"{listed(problem.graph.nodes)} and {problem.target!r}; read them for this problem"
        )


def require_trusted(post: Posterior) -> Posterior:
    """Return the posterior if its computation worked, or if the analyst accepted that it did not.

    Raises
    ------
    ModelError
        If the verdict is neither "exact" nor "passed" and `post.accept("why")` was not called.
    """
    require_float64()
    if not isinstance(post, Posterior):
        raise ModelError(
            f"a Posterior is needed here, got {type(post).__name__}; make one with cb.fit"
        )
    if post.verdict not in TRUSTED and not post.accepted:
        raise ModelError(
            f"the posterior's verdict is {post.verdict!r}; look at cb.check_posterior(post), or go "
            'on with post.accept("why"), which every result made from it will record'
        )
    return post
