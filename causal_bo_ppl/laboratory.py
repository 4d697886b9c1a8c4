"""How does an intervention become an outcome? A simulated system, or the analyst's own experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.numbers import require_outcomes
from causal_bo_ppl.posterior.record import require_rows_of
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.system import CausalSystem

READ_BACK = 1e-9  # of a domain's width: a value read back from a file
Experiment = Callable[[Queries], "Data | np.ndarray | float"]


class Measured(NamedTuple):
    """Outcomes (M,), and the whole rows where they were measured."""

    outcomes: np.ndarray
    rows: Data | None


@dataclass(frozen=True, eq=False)
class Laboratory:
    """Where experiments are run.

    experiment: from Queries to Data (whole rows) or to one outcome for each; otherwise the system is simulated: rows
    with its own noise, its exact effects (`noise` is 0), or these with Gaussian noise of a given variance.
    """

    problem: Problem
    system: CausalSystem | None
    experiment: Experiment | None
    noise: float | None

    def __post_init__(self) -> None:
        if self.experiment is not None and not callable(self.experiment):
            raise DataError(f"experiment must be a function from Queries to outcomes, got {self.experiment!r}")
        if self.experiment is None and self.system is None:
            raise DataError("a problem cannot be simulated: give `experiment`, a function from Queries to outcomes")

    def run(self, queries: Queries, key: jax.Array) -> Measured:
        """One outcome for each intervention."""
        found = self._perform(Queries(np.array(queries.mask), np.array(queries.value)), key)  # a copy: ours stays
        if isinstance(found, Data):
            require_rows_of(self.problem, found)
            rows = _as_asked(found, queries, self.problem)
            require_outcomes(rows.outcomes)
            return Measured(rows.outcomes, rows)
        outcomes = _as_array(found)
        if outcomes.shape != (len(queries),) or outcomes.dtype.kind not in "iuf":
            raise DataError(
                f"the experiment returned {outcomes.dtype} of shape {outcomes.shape} for {len(queries)} interventions; "
                "return one number for each, or Data"
            )
        if not np.isfinite(outcomes).all():
            [intervention] = self.problem.interventions(queries[np.flatnonzero(~np.isfinite(outcomes))[0]])
            raise DataError(f"the outcome of {intervention} is not finite: {outcomes.tolist()}; run it again")
        require_outcomes(outcomes)
        return Measured(outcomes.astype(float), None)

    def _perform(self, queries: Queries, key: jax.Array) -> "Data | np.ndarray | float":
        if self.experiment is not None:
            return self.experiment(queries)
        assert self.system is not None  # noqa: S101  (checked above; for the type checker)
        if self.noise is None:
            return self.system.experiment(queries, key)
        draws = np.asarray(jax.random.normal(key, (len(queries),)))
        return np.asarray(self.system.effect(queries) + np.sqrt(self.noise) * draws)


def _as_asked(rows: Data, queries: Queries, problem: Problem) -> Data:
    """The rows with the values asked for; refused where others were set by more than rounding."""
    mask, asked = np.asarray(queries.mask), np.asarray(queries.value)
    if not np.array_equal(rows.intervened, mask):
        raise DataError("the experiment returned rows in which other variables are marked as set than those asked for")
    width = np.array([np.ptp(problem.domains.get(name, (0.0, 0.0))) for name in rows.nodes])
    bad = np.argwhere(mask & ~(np.abs(rows.values - asked) <= READ_BACK * width))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"row {row} of the experiment has {rows.nodes[column]} = {rows.values[row, column]:.9g}, asked for was "
            f"{asked[row, column]:.9g}; record what was really set with Data, and fit it"
        )
    return Data(rows.nodes, rows.target, np.where(mask, asked, rows.values), mask, rows.unused)


def _as_array(found: object) -> np.ndarray:
    if np.ma.isMaskedArray(found):
        raise DataError("the experiment returned a masked array; return plain numbers")
    try:
        return np.atleast_1d(np.asarray(found))
    except ValueError:
        raise DataError("the experiment returned something ragged; return one number for each intervention") from None
