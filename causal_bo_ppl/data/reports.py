"""How is what somebody measured read? Interventions, numbers, replicates and whole rows.

Values that were written to a file and read again count as those that are legal.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causal_bo_ppl.data.data import Data, read_data
from causal_bo_ppl.errors import DomainError, ObservationError, listed, unknown
from causal_bo_ppl.inputs import read_number
from causal_bo_ppl.problem.interventions import Queries, named, to_mappings

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

READ_BACK_TOLERANCE = 1e-9  # of a domain's width: a value that was written to a file and read
OTHERS_SET = (
    "other variables are marked as intervened than the suggested ones; report what was really set "
    "with actual={...}"
)


def read_intervention(problem: "Problem", given: Mapping[Any, Any]) -> Queries:
    """Return what was set, legal or not, as a batch of one; `{}` is to observe.

    Raises
    ------
    ObservationError
        If a name is not a variable that can be set, or a value is not a finite number.
    """
    nodes = problem.graph.nodes
    mask, value = np.zeros((1, len(nodes)), bool), np.zeros((1, len(nodes)))
    for name, number in given.items():
        if isinstance(name, str) and name == problem.target:
            raise ObservationError(
                f"{name!r} is the target, which is not set: tell(intervention, outcome), or "
                "tell(intervention, row) with a whole row; {} is the intervention that sets nothing"
            )
        if name not in problem.graph.positions:
            raise ObservationError(
                unknown("variable", name, [each for each in nodes if each != problem.target])
            )
        column = nodes.index(name)
        mask[0, column], value[0, column] = True, _read_finite(f"the value of {name}", number)
    return legal_forms(problem, Queries(mask, value))


def legal_forms(problem: "Problem", queries: Queries) -> Queries:
    """Return the legal interventions that these are, up to rounding of values read from a file.

    Those that are not legal stay as they are.
    """
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    low, high = problem.region.all_bounds
    inside = np.clip(value, low, high)
    is_near = mask & (np.abs(inside - value) <= READ_BACK_TOLERANCE * (high - low))
    near = Queries(mask, np.where(is_near, inside, value))
    legal = problem.feasible(near)
    value[legal] = np.asarray(problem.require(near[legal]).value)
    return named(Queries(mask, value), problem.graph.nodes)


def read_table_rows(problem: "Problem", given: object) -> Data:
    """Return the whole rows of a table, at least one."""
    rows = read_data(problem, given if isinstance(given, Data) else _as_frame(given))
    if not len(rows):
        raise ObservationError("the table has no rows; there is nothing to record")
    return rows


def is_table(given: object) -> bool:
    """Return whether this is a table of whole rows, or one row of such a table."""
    if isinstance(given, Mapping):
        return any(isinstance(name, str) and name.startswith("do(") for name in given)
    return isinstance(given, Data | pd.DataFrame | pd.Series)


def is_rows(problem: "Problem", outcome: object) -> bool:
    """Return whether an outcome is given as whole rows, not as numbers."""
    if isinstance(outcome, Data | pd.DataFrame | Mapping):
        return True
    if isinstance(outcome, pd.Series):
        return problem.target in outcome.index
    return isinstance(outcome, list | tuple) and any(isinstance(each, Mapping) for each in outcome)


def rows_of(problem: "Problem", query: Queries, given: object) -> Data:
    """Return whole rows of one intervention, in which just that was set."""
    if not isinstance(given, Data):
        frame, was_set = _as_frame(given), to_mappings(query, problem.graph.nodes)[0]
        frame = frame.assign(
            **{name: value for name, value in was_set.items() if name not in frame.columns}
        )
        missing = [name for name in problem.graph.nodes if name not in frame.columns]
        if missing:
            raise ObservationError(
                f"the whole row of {describe(problem, query)} lacks the columns {listed(missing)}; "
                f"where only {problem.target} was measured, report its number alone"
            )
        is_marked = any(str(name).startswith("do(") for name in frame.columns)
        intervened = None if is_marked or not was_set else list(was_set)
        given = Data.from_frame(problem, frame, intervened=intervened)
    rows = read_table_rows(problem, given)
    used, faults = match_rows(rows, query.repeat(len(rows)), problem)
    fault = next((each for each in faults if each), "")
    if fault:
        raise ObservationError(fault)
    return used


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


def _as_frame(given: Any) -> pd.DataFrame:
    if isinstance(given, pd.DataFrame):
        return given
    rows = [given] if isinstance(given, Mapping | pd.Series) else given
    return pd.DataFrame([dict(row) for row in rows])


def read_numbers(where: str, outcome: object) -> list[float]:
    """Return the outcomes of an intervention, one or several finite numbers."""
    is_many = isinstance(outcome, Sequence) and not isinstance(outcome, str | bytes)
    is_many = is_many or getattr(outcome, "ndim", 0) == 1  # arrays and columns
    given = list(outcome) if is_many else [outcome]  # type: ignore[call-overload]
    if not given:
        raise ObservationError(
            f'{where} has no outcome in this list; report a number, or failed="why"'
        )
    options = ("a number, replicates or a whole row", 'a finite number, or failed="why"')
    return [_read_finite(f"the outcome of {where}", each, *options) for each in given]


def read_variances(variance: object, count: int) -> list[float]:
    """Return a variance for each of some numbers, NaN where none is given."""
    if variance is None:
        return [math.nan] * count
    given = np.ravel(np.asarray(variance, object)).tolist()
    if len(given) not in (1, count):
        raise ObservationError(
            f"{len(given)} variances for {count} numbers; give one, or one for each"
        )
    numbers = [_read_finite("the variance of an outcome", each) for each in given]
    if min(numbers) < 0:
        raise ObservationError(
            f"the variance of an outcome is {min(numbers):g}; it must be 0 or more (a variance, "
            "not an sd)"
        )
    return [*numbers] * (count if len(numbers) == 1 else 1)


def _read_finite(
    what: str, given: object, kind: str = "a number", wanted: str = "a finite number"
) -> float:
    try:
        number = read_number(what, given)
    except DomainError:
        raise ObservationError(f"{what} must be {kind}; got {given!r}") from None
    if not math.isfinite(number):
        raise ObservationError(f"{what} is {number}; report {wanted}")
    return number


def describe(problem: "Problem", query: Queries) -> str:
    """Return an intervention as a text, legal or not."""
    words = [
        f"{name} = {value:.6g}"
        for name, value in to_mappings(query, problem.graph.nodes)[0].items()
    ]
    return f"do({', '.join(words)})" if words else "nothing set"
