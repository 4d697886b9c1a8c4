"""How does an intervention become an outcome? A simulated system, or the analyst's own experiment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError
from causal_bo_ppl.posterior.record import require_rows_of
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.system import CausalSystem

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

    def run(self, queries: Queries, key: jax.Array) -> Measured:
        """One outcome for each intervention."""
        found = self._perform(Queries(np.array(queries.mask), np.array(queries.value)), key)  # a copy: ours stays
        if isinstance(found, Data):
            require_rows_of(self.problem, found)
            return Measured(_require_same(found, queries).outcomes, found)
        outcomes = _as_array(found)
        if outcomes.shape != (len(queries),) or outcomes.dtype.kind not in "iuf":
            raise DataError(
                f"the experiment returned {outcomes.dtype} of shape {outcomes.shape} for {len(queries)} interventions; "
                "return one number for each, or Data"
            )
        if not np.isfinite(outcomes).all():
            [intervention] = self.problem.interventions(queries[np.flatnonzero(~np.isfinite(outcomes))[0]])
            raise DataError(f"the outcome of {intervention} is not finite: {outcomes.tolist()}; run it again")
        return Measured(outcomes.astype(float), None)

    def _perform(self, queries: Queries, key: jax.Array) -> "Data | np.ndarray | float":
        if self.experiment is not None:
            return self.experiment(queries)
        if self.system is None:
            raise DataError("a problem cannot be simulated: give `experiment`, a function from Queries to outcomes")
        if self.noise is None:
            return self.system.experiment(queries, key)
        draws = np.asarray(jax.random.normal(key, (len(queries),)))
        return np.asarray(self.system.effect(queries) + np.sqrt(self.noise) * draws)


def _require_same(rows: Data, queries: Queries) -> Data:
    """Refuse rows in which something else was set than asked for."""
    mask = np.asarray(queries.mask)
    if not (
        np.array_equal(rows.intervened, mask) and np.array_equal(rows.values[mask], np.asarray(queries.value)[mask])
    ):
        raise DataError("the experiment returned rows in which other values were set than those asked for")
    return rows


def _as_array(found: object) -> np.ndarray:
    if np.ma.isMaskedArray(found):
        raise DataError("the experiment returned a masked array; return plain numbers")
    try:
        return np.atleast_1d(np.asarray(found))
    except ValueError:
        raise DataError("the experiment returned something ragged; return one number for each intervention") from None
