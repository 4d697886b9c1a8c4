"""Of what was told, what is new? Answers to suggestions, outcomes that nobody asked for, tables.

What was told before with the same value is left out or asked back; with another value it is
refused, unless it was measured again.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from causal_bo_ppl.campaign.suggestions import Suggestion, Suggestions
from causal_bo_ppl.campaign.told import (
    Record,
    answered,
    describe,
    is_table,
    read_intervention,
    read_outcomes_told,
    read_table_told,
    require_own,
    split_rows,
)
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.inputs import read_list, require_float64
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.feasibility import for_measured

if TYPE_CHECKING:
    from causal_bo_ppl.campaign.study import Study


def read_answers(
    study: "Study", what: object, outcome: Any, *, variance: Any, failed: Any, again: bool
) -> list[Record]:
    """Return the records of what was told; none where it was told before; see `Study.tell`."""
    require_float64()
    options = {"variance": variance, "failed": failed}
    if isinstance(what, Suggestions):
        return _read_batch(study, what, outcome, options, again)
    if isinstance(what, Suggestion):
        return _read_answer(study, what, outcome, options, again)
    if isinstance(what, Queries):
        found = for_measured(study.problem).interventions(what)
        what = found[0] if len(found) == 1 else found
    if is_table(what):
        if outcome is not None or variance is not None or failed is not None:
            raise DataError(
                "whole rows hold their outcomes; tell them without `outcome`, `variance` and "
                "`failed`, or tell(intervention, outcome)"
            )
        records = read_table_told(study.state, what)
    elif isinstance(what, Mapping):
        query = read_intervention(study.problem, what)
        records = read_outcomes_told(study.state, query, outcome, **options)
    elif isinstance(what, list | tuple) and what and all(isinstance(x, Mapping) for x in what):
        pairs = _pair("interventions", len(what), outcome, options)
        records = [
            record
            for place, each in pairs
            for record in read_outcomes_told(
                study.state, read_intervention(study.problem, what[place]), each
            )
        ]
    else:
        raise DataError(
            "tell what came out of a suggestion, of an intervention {variable: value}, or whole "
            f"rows (Data or a table); got {type(what).__name__}"
        )
    if not again:
        _require_new(study, records)
    return records


def _read_batch(
    study: "Study", batch: Suggestions, outcomes: Any, options: dict[str, Any], again: bool
) -> list[Record]:
    return [
        record
        for place, outcome in _pair("suggestions", len(batch), outcomes, options)
        for record in _read_answer(study, batch[place], outcome, options, again)
    ]


def _pair(what: str, count: int, outcomes: Any, options: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return the places of a batch for which there is an outcome, each with it."""
    if isinstance(outcomes, pd.DataFrame):
        outcomes = outcomes.to_dict("records")
    elif isinstance(outcomes, Data):
        outcomes = split_rows(outcomes)
    given = None if isinstance(outcomes, Mapping | str) else read_list(outcomes)
    has_options = any(each is not None for each in options.values())
    if given is None or len(given) != count or has_options:
        raise DataError(
            f"a batch of {count} {what} is told with a list of as many outcomes, None for those "
            "that are not there yet, or with a table of as many whole rows; tell variances and "
            "failures one by one"
        )
    return [(place, each) for place, each in enumerate(given) if each is not None]


def _read_answer(
    study: "Study", suggestion: Suggestion, outcome: Any, options: dict[str, Any], again: bool
) -> list[Record]:
    """Return what answers a suggestion; nothing where all of it was told before.

    An outcome after a failure is new: the experiment was run again.
    """
    require_own(study.fingerprint, suggestion)
    query, number = suggestion.query, suggestion.number
    records = read_outcomes_told(study.state, query, outcome, number=number, **options)
    before = answered(study.records, suggestion)
    if again or not before:
        return records
    if not Counter(map(_content, records)) - Counter(map(_content, before)):
        return []
    outcomes = [each for each in before if not each.failed]
    if not outcomes:
        return records
    raise DataError(
        f"suggestion {number}, {describe(study.problem, query)}, was told as "
        f"{listed(map(_shown, outcomes))} and is now told as {listed(map(_shown, records))}; if it "
        "was measured again, tell it with again=True"
    )


def _require_new(study: "Study", records: list[Record]) -> None:
    """Refuse an outcome that nobody asked for and that is known with the same digits.

    The number of a row and the row itself are one outcome, whichever was told first.
    """
    outcomes = [each for each in records if not each.failed]
    known = _find_known(study, has_rows=any(each.row is not None for each in outcomes))
    numbers = {each[:-1] for each in known if each[-1] is None}
    measured = {each[:-1] for each in known}
    for record in outcomes:
        identity = _identity(record)
        same_number = identity[:-1] in (measured if record.row is None else numbers)
        if identity in known or same_number:
            raise DataError(
                f"{describe(study.problem, record.query)} with the outcome {record.outcome!r} is "
                "known already, with the same digits; if it is another measurement, tell it with "
                "again=True"
            )


def _find_known(study: "Study", *, has_rows: bool) -> set[tuple[object, ...]]:
    """Return what identifies all outcomes that are known.

    has_rows: whether observed rows matter too, beside those of experiments.
    """
    told = {_identity(each) for each in study.records if not each.failed}
    data = study.data if has_rows else study.data.rows(~study.data.is_observational)
    settings = np.where(data.intervened, data.values, 0.0) + 0.0
    rows = zip(data.intervened, settings, data.outcomes.tolist(), data.values, strict=True)
    return told | {
        (mask.tobytes(), setting.tobytes(), outcome, values.tobytes())
        for mask, setting, outcome, values in rows
    }


def _shown(record: Record) -> str:
    if record.failed:
        return f"failed ({record.failed})"
    return f"{record.outcome!r}" + (" with its row" if record.row is not None else "")


def _content(record: Record) -> tuple[object, ...]:
    row = None if record.row is None else record.row.values.tobytes()
    return record.outcome, record.variance, record.failed, row


def _identity(record: Record) -> tuple[object, ...]:
    return *record.setting(), record.outcome, _content(record)[-1]
