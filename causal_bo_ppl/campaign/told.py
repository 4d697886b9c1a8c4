"""What did the analyst tell? Numbers, replicates, whole rows and failures become records.

Nothing is learned here: what cannot be used is refused before anything changes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.campaign.suggestions import Suggestion
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.identity import require_rows_of
from causal_bo_ppl.errors import DataError, DomainError, listed, unknown
from causal_bo_ppl.inputs import MOST, read_number, require_outcomes, size_fault
from causal_bo_ppl.optimization.experiments import READ_BACK, read_rows
from causal_bo_ppl.optimization.predicted_outcomes import PredictedOutcome
from causal_bo_ppl.optimization.state import Entry, State
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import named

FOREIGN = "of a set or of values that may not be proposed: learned from, never suggested"


class Record(NamedTuple):
    """One thing that was told.

    query: the intervention, in one row. outcome: what the target came out as; None where the
    experiment failed. variance: of the outcome's noise, where it was given. row: the whole row,
    where it was measured. number: of the suggestion it answers; None where nobody asked. failed:
    why there is no outcome. cost: what was paid. is_foreign: see `Entry`. predicted: what was
    expected of the outcome, where something was.
    """

    query: Queries
    outcome: float | None
    variance: float | None = None
    row: Data | None = None
    number: int | None = None
    failed: str = ""
    cost: float = 0.0
    is_foreign: bool = False
    predicted: PredictedOutcome | None = None

    @property
    def is_passive(self) -> bool:
        """Whether nothing was set."""
        return not np.asarray(self.query.mask).any()

    def entry(self, known_noise: float | None) -> Entry:
        """Return what the ledger keeps; known_noise: of all outcomes, where it was given."""
        noise = known_noise if self.variance is None else self.variance
        if self.is_passive:
            noise = 0.0  # as the loop records rows that it observes
        outcome = math.nan if self.outcome is None else self.outcome
        return Entry(self.query, outcome, noise, self.row, self.cost, is_foreign=self.is_foreign)

    def setting(self) -> tuple[bytes, bytes]:
        """Return what was set, so that it can be compared."""
        return _setting(self.query)

    def is_of(self, query: Queries) -> bool:
        """Return whether it is of this intervention."""
        return self.setting() == _setting(query)


def _setting(query: Queries) -> tuple[bytes, bytes]:
    mask = np.asarray(query.mask)
    return mask.tobytes(), (np.where(mask, np.asarray(query.value), 0.0) + 0.0).tobytes()


def answered(records: Sequence[Record], suggestion: Suggestion) -> list[Record]:
    """Return what was told of a suggestion: its outcomes, and that it failed."""
    return [
        each
        for each in records
        if each.number == suggestion.number and each.is_of(suggestion.query)
    ]


def require_own(fingerprint: str, suggestion: Suggestion) -> None:
    """Refuse a suggestion of another study; fingerprint: of this one."""
    if suggestion.study != fingerprint:
        raise DataError(
            f"suggestion {suggestion.number}, {suggestion.label}, is of another study (another "
            "problem, other rows, settings or key); tell what was set as {variable: value}"
        )


def read_intervention(problem: Problem, given: Mapping[Any, Any]) -> Queries:
    """Return what was set, legal or not, as a query of one row; `{}` is to observe.

    Raises
    ------
    DataError
        If a name is not a variable that can be set, or a value is not a finite number.
    """
    nodes = problem.graph.nodes
    mask, value = np.zeros((1, len(nodes)), bool), np.zeros((1, len(nodes)))
    for name, number in given.items():
        if name == problem.target:
            raise DataError(
                f"{name!r} is the target, which is not set: tell(intervention, outcome), or "
                "tell(intervention, row) with a whole row; {} is the intervention that sets nothing"
            )
        if name not in nodes:
            raise DataError(
                unknown("variable", name, [each for each in nodes if each != problem.target])
            )
        column = nodes.index(name)
        mask[0, column], value[0, column] = True, _read_finite(f"the value of {name}", number)
    return _legal_forms(problem, Queries(mask, value))


def _legal_forms(problem: Problem, queries: Queries) -> Queries:
    """Return the legal interventions that these are, up to what reading a value back may change.

    Those that are not legal stay as they are.
    """
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    low, high = problem.region.all_bounds
    inside = np.clip(value, low, high)
    is_near = mask & (np.abs(inside - value) <= READ_BACK * (high - low))
    near = Queries(mask, np.where(is_near, inside, value))
    legal = problem.feasible(near)
    value[legal] = np.asarray(problem.require(near[legal]).value)
    return named(Queries(mask, value), problem.graph.nodes)


def read_outcomes_told(
    state: State,
    query: Queries,
    outcome: object,
    *,
    variance: object = None,
    failed: str | None = None,
    number: int | None = None,
) -> list[Record]:
    """Return the records of what one intervention gave.

    Parameters
    ----------
    state:
        What was known before.
    query:
        The intervention, in one row.
    outcome:
        A number, replicates, or whole rows: a mapping, a table or Data.
    variance:
        Of each number told; one, or as many.
    failed:
        Why there is no outcome.
    number:
        Of the suggestion.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    base = _base_records(state, query)[0]._replace(number=number)
    where = describe(state.problem, query)
    if failed is not None:
        if not isinstance(failed, str) or not failed.strip():
            raise DataError(f'say in words why {where} failed: failed="leaked"; got {failed!r}')
        if outcome is not None or variance is not None:
            raise DataError(f"{where} failed and has an outcome too; tell one of them")
        return [base._replace(failed=failed.strip())]
    if outcome is None:
        raise DataError(
            f'what came out of {where}? Tell a number, replicates or a whole row, or failed="why"'
        )
    if _is_rows(state.problem, outcome):
        if variance is not None:
            raise DataError(
                "`variance` is of a number that is told; of whole rows the model learns the noise"
            )
        rows = _rows_of(state.problem, query, outcome)
        return [base._replace(outcome=float(row.outcomes[0]), row=row) for row in split_rows(rows)]
    values = _read_numbers(where, outcome)
    if base.is_passive:
        raise DataError(
            f"where nothing was set, the outcome alone teaches nothing: tell the whole row, "
            f"tell({{}}, {{...}}), with all of {', '.join(state.problem.graph.nodes)}"
        )
    if state.settings.update == "full":
        raise DataError('update="full" needs whole rows; tell the whole row of the experiment')
    variances = _read_variances(variance, len(values))
    return [
        base._replace(outcome=value, variance=each)
        for value, each in zip(values, variances, strict=True)
    ]


def read_table_told(state: State, given: object) -> list[Record]:
    """Return the records of whole rows that say themselves what was set in them."""
    problem = state.problem
    if isinstance(given, Data):
        require_rows_of(problem, given)
        rows = given
    else:
        rows = Data.from_frame(problem, _as_frame(given))
    if not len(rows):
        raise DataError("the table has no rows; there is nothing to tell")
    bases = _base_records(state, _legal_forms(problem, rows.queries))
    return [
        base._replace(outcome=float(row.outcomes[0]), row=row)
        for base, row in zip(bases, split_rows(rows), strict=True)
    ]


def is_table(given: object) -> bool:
    """Return whether this is a table of whole rows, or one row of such a table."""
    if isinstance(given, Mapping):
        return any(isinstance(name, str) and name.startswith("do(") for name in given)
    return isinstance(given, Data | pd.DataFrame | pd.Series)


def split_rows(rows: Data) -> list[Data]:
    """Return the rows one by one."""
    return [rows.rows(slice(at, at + 1)) for at in range(len(rows))]


def _base_records(state: State, queries: Queries) -> list[Record]:
    """Return records without outcomes: what was set, what it cost, and whether it is foreign."""
    problem, policy = state.problem, state.settings.observe
    mask, legal = np.asarray(queries.mask), problem.feasible(queries)
    is_active = mask.any(axis=1)
    costs = np.full(len(mask), 0.0 if policy is None else policy.cost)
    costs[is_active] = 0.0
    paid = np.flatnonzero(is_active & legal)
    costs[paid] = problem.cost(queries[paid])
    nodes = problem.graph.nodes
    explored = {np.isin(nodes, members).tobytes() for members in state.candidates.space.sets}
    is_explored = np.array([each.tobytes() in explored for each in mask], bool)
    is_foreign = is_active & ~(legal & is_explored)
    told = zip(queries, costs.tolist(), is_foreign.tolist(), strict=True)
    return [Record(query, None, cost=cost, is_foreign=foreign) for query, cost, foreign in told]


def _is_rows(problem: Problem, outcome: object) -> bool:
    if isinstance(outcome, Data | pd.DataFrame | Mapping):
        return True
    if isinstance(outcome, pd.Series):
        return problem.target in outcome.index
    return isinstance(outcome, list | tuple) and any(isinstance(each, Mapping) for each in outcome)


def _rows_of(problem: Problem, query: Queries, given: object) -> Data:
    """Return whole rows of one intervention, in which just that was set."""
    if isinstance(given, Data):
        require_rows_of(problem, given)
        rows = given
    else:
        frame = _as_frame(given)
        pairs = zip(problem.graph.nodes, query.mask[0], query.value[0], strict=True)
        was_set = {name: float(value) for name, is_set, value in pairs if is_set}
        frame = frame.assign(
            **{name: value for name, value in was_set.items() if name not in frame.columns}
        )
        missing = [name for name in problem.graph.nodes if name not in frame.columns]
        if missing:
            raise DataError(
                f"the whole row of {describe(problem, query)} lacks the columns {listed(missing)}; "
                f"where only {problem.target} was measured, tell its number alone"
            )
        is_marked = any(str(name).startswith("do(") for name in frame.columns)
        intervened = None if is_marked or not was_set else list(was_set)
        rows = Data.from_frame(problem, frame, intervened=intervened)
    if not len(rows):
        raise DataError("the table has no rows; there is nothing to tell")
    found = read_rows(rows, query.repeat(len(rows)), problem)
    fault = next((each for each in found.faults if each), "")
    if fault or found.rows is None:
        raise DataError(fault)
    return found.rows


def _as_frame(given: Any) -> pd.DataFrame:
    if isinstance(given, pd.DataFrame):
        return given
    if isinstance(given, Mapping | pd.Series):
        return pd.DataFrame([dict(given)])
    return pd.DataFrame([dict(each) for each in given])


def _read_numbers(where: str, outcome: object) -> list[float]:
    is_many = isinstance(outcome, Sequence) and not isinstance(outcome, str | bytes)
    is_many = is_many or getattr(outcome, "ndim", 0) == 1  # arrays and columns
    each = list(outcome) if is_many else [outcome]  # type: ignore[call-overload]
    if not each:
        raise DataError(f'{where} has no outcome in this list; tell a number, or failed="why"')
    return [_read_outcome(where, one) for one in each]


def _read_outcome(where: str, outcome: object) -> float:
    try:
        number = read_number("outcome", outcome)
    except DomainError:
        raise DataError(
            f"the outcome of {where} must be a number, replicates or a whole row; got {outcome!r}"
        ) from None
    if not math.isfinite(number):
        raise DataError(
            f"the outcome of {where} is {number}; the experiment stays open: tell a finite number, "
            'or failed="why"'
        )
    require_outcomes(np.array([number]))
    return number


def _read_variances(variance: object, count: int) -> list[float | None]:
    if variance is None:
        return [None] * count
    each = np.ravel(np.asarray(variance, object)).tolist()
    if len(each) not in (1, count):
        raise DataError(f"{len(each)} variances for {count} numbers; give one, or one for each")
    numbers = [_read_finite("the variance of an outcome", one) for one in each]
    for number in numbers:
        if number < 0:
            raise DataError(
                f"the variance of an outcome is {number:g}; it must be 0 or more (a variance, not "
                "an sd)"
            )
        if fault := size_fault(number, 0.0, MOST**2):
            raise DataError(f"the variance of an outcome is {fault}")
    return [*numbers] * (count if len(numbers) == 1 else 1)


def _read_finite(what: str, given: object) -> float:
    try:
        number = read_number(what, given)
    except DomainError:
        raise DataError(f"{what} must be a number; got {given!r}") from None
    if not math.isfinite(number):
        raise DataError(f"{what} is {number}; it must be finite")
    return number


def describe(problem: Problem, query: Queries) -> str:
    """Return an intervention in words, legal or not."""
    if not np.asarray(query.mask).any():
        return "nothing set"
    pairs = zip(problem.graph.nodes, query.mask[0], query.value[0], strict=True)
    return f"do({', '.join(f'{name} = {value:.6g}' for name, is_set, value in pairs if is_set)})"
