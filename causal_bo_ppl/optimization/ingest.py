"""How does a report become observations? It is read and checked before anything changes.

Numbers, replicates, whole rows and failures become rows of the log, each once: what was recorded
before is skipped or refused, unless it was measured again.

A typing error, another unit or a swapped sample gives a value that is nearly impossible under the
model and that lies far from what was expected also on the scale of its variable. Such an outcome is
refused until it is confirmed, and so is another variable of a whole row.

An intervention that is out of domain, of another set or beyond its bounds, is data: it is learned
from where the surrogate or the mechanisms predict its effect.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import match_rows, read_data
from causal_bo_ppl.data.observations import (
    FAILED_EXPERIMENT,
    OUT_OF_DOMAIN,
    RETRACTED,
    Observations,
)
from causal_bo_ppl.diagnostics.sequential import PredictionArrays, expect_variables
from causal_bo_ppl.effect_estimates.moments import target_moments
from causal_bo_ppl.errors import DomainError, ObservationError, listed, unknown
from causal_bo_ppl.inputs import read_list, read_number, require_float64
from causal_bo_ppl.optimization.choosing import Suggestion
from causal_bo_ppl.optimization.state import Start, State, find_predictable, implied_noises
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    are_of_sets,
    for_measured,
    labels,
    legal_forms,
    show,
    to_mappings,
)
from causal_bo_ppl.surrogates.base import find_fault

if TYPE_CHECKING:
    from causal_bo_ppl.optimization.study import Study

LEAST_PROBABILITY = 1e-6  # two-sided: a value below it must be confirmed
LEAST_DISTANCE = 3.0  # sds of its variable in the data: a nearer value need not be confirmed
FEWEST_OBSERVATIONS_FOR_SCALE = 8  # that tell the usual values of a variable
SUGGESTED_INSTEAD = "suggested was"  # in the note of a row in which something else was set


def read_intervention(problem: Problem, given: Mapping[Any, Any]) -> Queries:
    """Return what was set, legal or not, as a batch of one; `{}` is to observe."""
    nodes = problem.graph.nodes
    mask, value = np.zeros((1, len(nodes)), bool), np.zeros((1, len(nodes)))
    for name, number in given.items():
        if isinstance(name, str) and name == problem.target:
            raise ObservationError(
                f"{name!r} is the target, which is not set: tell(intervention, outcome), or "
                "tell(intervention, row) with a whole row; {} is the intervention that sets nothing"
            )
        if name not in problem.graph.positions:
            others = [each for each in nodes if each != problem.target]
            raise ObservationError(unknown("variable", name, others))
        column = nodes.index(name)
        mask[0, column], value[0, column] = True, _read_finite(f"the value of {name}", number)
    return legal_forms(problem, Queries(mask, value))


def read_table_rows(problem: Problem, given: object) -> Data:
    """Return the whole rows of a table, at least one."""
    rows = read_data(problem, given if isinstance(given, Data) else _as_frame(given))
    if not len(rows):
        raise ObservationError("the table has no rows; there is nothing to record")
    return rows


def _is_table(given: object) -> bool:
    """Return whether this is a table of whole rows, or one row of such a table."""
    if isinstance(given, Mapping):
        return any(isinstance(name, str) and name.startswith("do(") for name in given)
    return isinstance(given, Data | pd.DataFrame | pd.Series)


def is_rows(problem: Problem, outcome: object) -> bool:
    """Return whether an outcome is given as whole rows, not as numbers."""
    if isinstance(outcome, Data | pd.DataFrame | Mapping):
        return True
    if isinstance(outcome, pd.Series):
        return problem.target in outcome.index
    return isinstance(outcome, list | tuple) and any(isinstance(each, Mapping) for each in outcome)


def rows_of(problem: Problem, query: Queries, given: object) -> Data:
    """Return whole rows of one intervention, in which just that was set."""
    if not isinstance(given, Data):
        frame, [was_set] = _as_frame(given), to_mappings(query, problem.graph.nodes)
        frame = frame.assign(**{name: was_set[name] for name in was_set if name not in frame})
        missing = [name for name in problem.graph.nodes if name not in frame.columns]
        if missing:
            raise ObservationError(
                f"the whole row of {labels(problem, query)[0]} lacks the columns "
                f"{listed(missing)}; where only {problem.target} was measured, report its number "
                "alone"
            )
        is_marked = any(str(name).startswith("do(") for name in frame.columns)
        intervened = None if is_marked or not was_set else list(was_set)
        given = Data.from_frame(problem, frame, intervened=intervened)
    rows = read_table_rows(problem, given)
    used, faults = match_rows(rows, query.repeat(len(rows)), problem)
    if fault := next((each for each in faults if each), ""):
        raise ObservationError(fault)
    return used


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


class Report(NamedTuple):
    """What `Study.tell` was given besides the intervention and the outcome; see there."""

    variance: Any = None
    actual: Any = None
    failed: Any = None
    again: bool = False
    who: str = ""
    when: str = ""


def read_report(study: "Study", what: object, outcome: Any, report: Report) -> Observations:
    """Return the new rows of a report; none where all was recorded before; see `Study.tell`."""
    start, known = study.start, study.observations
    require_float64()
    if isinstance(what, Queries):
        asked = for_measured(start.problem).interventions(what)
        what = asked[0] if len(asked) == 1 else asked
    new = Observations.of(start.problem.graph.nodes, start.problem.target)
    if _is_table(what):
        if outcome is not None or any(each is not None for each in report[:3]):
            raise ObservationError(
                "whole rows hold their outcomes and what was set; report them without `outcome`, "
                "`variance`, `actual` and `failed`, or use tell(intervention, outcome)"
            )
        new = _read_table(start, what)
    elif isinstance(what, Suggestion | Mapping):
        new = _read_one(study, known, what, outcome, report)
    elif isinstance(what, list | tuple) and all(isinstance(x, Suggestion | Mapping) for x in what):
        for position, each in _pair(len(what), outcome, report):
            alone, before = Report(again=report.again), known.join(new)  # it is checked against all
            part = _read_one(study, before, what[position], each, alone)
            if not report.again:
                _require_new(study, before, part)
            new = new.join(part)
    else:
        raise ObservationError(
            "report the outcome of a suggestion or of an intervention {variable: value}, or whole "
            f"rows (Data or a table); got {type(what).__name__}"
        )
    if not report.again:
        _require_new(study, known, new)
    signed = {"who": report.who, "when": report.when}
    for name, text in signed.items() if len(new) else ():
        if not isinstance(text, str):
            raise ObservationError(f"{name!r} is a text; got {text!r}")
        new = new.with_columns(**{name: np.full(len(new), text, object)})
    return new


def _pair(count: int, outcomes: Any, report: Report) -> list[tuple[int, Any]]:
    """Return the positions in a batch for which there is an outcome, each with it."""
    if isinstance(outcomes, pd.DataFrame):
        outcomes = outcomes.to_dict("records")
    elif isinstance(outcomes, Data):
        outcomes = [outcomes.select(slice(row, row + 1)) for row in range(len(outcomes))]
    given = None if isinstance(outcomes, Mapping | str) else read_list(outcomes)
    if given is None or len(given) != count or any(each is not None for each in report[:3]):
        raise ObservationError(
            f"a batch of {count} is reported with a list of as many outcomes, None for those that "
            "are not known yet, or with a table of as many whole rows; report variances, what was "
            "really set and failures one by one"
        )
    return [(position, each) for position, each in enumerate(given) if each is not None]


def _read_one(
    study: "Study", known: Observations, what: Any, outcome: Any, report: Report
) -> Observations:
    """Return the rows of a suggestion or an intervention; none where all was recorded before.

    An outcome after a failure is new: the experiment was run again.
    """
    start, actual = study.start, report.actual
    if actual is not None and not isinstance(actual, Mapping):
        raise ObservationError(
            f"actual is what was really set, {{variable: value}}; got {actual!r}"
        )
    if not isinstance(what, Suggestion):
        query = read_intervention(start.problem, what if actual is None else actual)
        return read_outcomes(start, query, outcome, report.variance, report.failed)
    require_own(study, what)
    query = what.query if actual is None else read_intervention(start.problem, actual)
    rows = read_outcomes(start, query, outcome, report.variance, report.failed)
    rows = rows.with_columns(number=np.full(len(rows), what.number))
    if report.failed is not None or actual is not None:  # what was suggested is paid for
        rows = rows.with_columns(cost=np.maximum(rows.cost, what.cost))
    if actual is not None and not rows.is_of(what.query).all():
        notes = ["; ".join(filter(None, (str(each), _instead(what)))) for each in rows.note]
        rows = rows.with_columns(note=np.array(notes, object))
    before = known.select(is_answer(known, what) & (known.status != RETRACTED))
    if report.again or not len(before):
        return rows
    if not _contents(rows) - _contents(before):
        return rows.select(slice(0, 0))
    outcomes = before.select(before.is_observed)
    is_part = not what.intervention and len(outcomes) + len(rows) <= what.observations
    if not len(outcomes) or is_part:
        return rows
    raise ObservationError(
        f"suggestion {what.number}, {what.label}, was recorded with "
        f"{listed(_shown(outcomes, what))} and is now reported with {listed(_shown(rows, what))}; "
        "if it was measured again, report it with again=True, and if it was wrong, retract it with "
        "study.retract(record, why)"
    )


def is_answer(known: Observations, given: Suggestion) -> np.ndarray:
    """Return which rows answer a suggestion, (t,).

    Suggestions that were asked for in different states of a study may have the same number.
    """
    answers = known.number == given.number
    for row in np.flatnonzero(answers & ~known.is_of(given.query)):
        answers[row] = str(known.note[row]).endswith(_instead(given))
    return np.asarray(answers)


def _instead(given: Suggestion) -> str:
    return f"{SUGGESTED_INSTEAD} {given.label}"


def require_own(study: "Study", suggestion: Suggestion) -> None:
    """Refuse a suggestion of another study."""
    if suggestion.study != study.fingerprint:
        raise ObservationError(
            f"suggestion {suggestion.number}, {suggestion.label}, is of another study (another "
            "problem, other data, settings or key); report what was set as {variable: value}"
        )


def _require_new(study: "Study", known: Observations, rows: Observations) -> None:
    """Refuse an outcome that was not suggested and that is known with the same digits.

    The number of a row and the row itself are one outcome, whichever was recorded first.
    """
    new = rows.select(~rows.was_suggested & rows.is_observed)
    if not len(new):
        return
    earlier = study.data.select(~study.data.is_observational | new.has_row.any())
    columns = {"outcome": earlier.outcomes, "measured": earlier.values}
    given = Observations.of(known.nodes, known.target, earlier.queries, **columns)
    recorded = known.select(known.is_observed).join(given)
    numbers, wholes = (set(recorded.identities(name)) for name in ("number", "row"))
    pairs = zip(new.identities("number"), new.identities("row"), strict=True)
    for row, (number, whole) in enumerate(pairs):
        if not wholes.isdisjoint((number, whole)) if new.has_row[row] else number in numbers:
            where = labels(study.problem, new.queries[row])[0]
            raise ObservationError(
                f"{where} with the outcome {float(new.outcome[row])!r} is known already, with the "
                "same digits; if it is another measurement, report it with again=True"
            )


def _shown(rows: Observations, given: Suggestion) -> list[str]:
    texts, is_suggested = [], rows.is_of(given.query)
    for row, setting in enumerate(rows.settings()):
        whole = " with its row" if rows.has_row[row] else ""
        whole += "" if is_suggested[row] else f" under {show(setting)}"
        is_failed = rows.status[row] == FAILED_EXPERIMENT
        text = f"failed ({rows.note[row]})" if is_failed else f"{float(rows.outcome[row])!r}{whole}"
        texts.append(text)
    return texts


def _contents(rows: Observations) -> Counter[tuple[object, ...]]:
    return Counter(zip(rows.status, rows.note, rows.hashes, strict=True))


def read_outcomes(
    start: Start, query: Queries, outcome: object, variance: object = None, failed: object = None
) -> Observations:
    """Return the rows of the results of one intervention, a batch of one.

    outcome: a number, replicates, or whole rows: a mapping, a table or Data. variance: of each
    number; one, or as many. failed: why there is no outcome.
    """
    problem, where = start.problem, labels(start.problem, query)[0]
    if failed is not None:
        if not isinstance(failed, str) or not failed.strip():
            raise ObservationError(f'state why {where} failed: failed="leaked"; got {failed!r}')
        if outcome is not None or variance is not None:
            raise ObservationError(f"{where} failed and has an outcome too; report one of them")
        return _rows(start, query, status=FAILED_EXPERIMENT, note=failed.strip())
    if outcome is None:
        raise ObservationError(
            f"the outcome of {where} is missing; report a number, replicates or a whole row, or "
            'failed="why"'
        )
    if is_rows(problem, outcome):
        if variance is not None:
            raise ObservationError(
                "`variance` is of an outcome that is reported as a number; from whole rows the "
                "model learns the noise"
            )
        rows = rows_of(problem, query, outcome)
        queries = query.repeat(len(rows))
        return _rows(start, queries, outcome=rows.outcomes, measured=rows.values)
    values = read_numbers(where, outcome)
    if not np.asarray(query.mask).any():
        raise ObservationError(
            "where nothing was set, the outcome alone is not informative: report the whole row, "
            f"tell({{}}, {{...}}), with all of {', '.join(problem.graph.nodes)}"
        )
    if start.settings.learn_from == "rows":
        raise ObservationError('learn_from="rows" needs whole rows; report all variables')
    variances = read_variances(variance, len(values))
    return _rows(start, query.repeat(len(values)), outcome=values, variance=variances)


def _rows(start: Start, queries: Queries, **columns: Any) -> Observations:
    """Return observations, with their cost and whether they are out of domain."""
    problem, policy = start.problem, start.settings.observe
    nodes, target, sets = problem.graph.nodes, problem.target, start.candidates.space.sets
    is_active, is_legal = np.asarray(queries.mask).any(axis=1), problem.feasible(queries)
    costs = np.where(is_active, 0.0, 0.0 if policy is None else policy.cost)
    paid = np.flatnonzero(is_active & is_legal)
    costs[paid] = problem.cost(queries[paid])
    is_outside = is_active & ~(is_legal & are_of_sets(queries, sets, nodes))
    return Observations.of(
        nodes, target, queries, cost=costs, is_out_of_domain=is_outside, **columns
    )


def _read_table(start: Start, given: object) -> Observations:
    """Return the observations in whole rows, which hold themselves what was set in them."""
    rows = read_table_rows(start.problem, given)
    queries = legal_forms(start.problem, rows.queries)
    return _rows(start, queries, outcome=rows.outcomes, measured=rows.values)


def require_learnable(state: State, new: Observations) -> None:
    """Refuse outcomes out of domain whose effects nothing predicts.

    Whole rows are learned from all the same, where the mechanisms learn from rows.
    """
    is_row = new.has_row & state.start.uses_observations
    for row in np.flatnonzero(new.is_observed & new.is_out_of_domain & ~is_row).tolist():
        if fault := find_fault(state.surrogate, new.queries[row]):
            raise ObservationError(
                f"an outcome {OUT_OF_DOMAIN} cannot be learned from here: {fault}. Report the "
                "whole row where the mechanisms learn from rows, or change the problem"
            )


def require_expected(state: State, new: Observations) -> None:
    """Refuse outcomes, and other values of whole rows, that are far from what was expected.

    Such a value has a probability below 1e-6 under the model, and lies more than 3 sds of its
    variable from what was expected; the error says how to report it all the same. Of the other
    variables only values that update the mechanisms count: of the target's causes, not set
    themselves, and of experiments only where their whole rows are learned from.
    """
    _require_expected_outcomes(state, new.select(new.is_observed))
    _require_expected_rows(state, new.select(new.is_observed & new.has_row))


def _require_expected_outcomes(state: State, new: Observations) -> None:
    usual, is_predictable = target_moments(state.start.post), find_predictable(state, new)
    chosen, passive = new.select(is_predictable), new.select(new.is_passive)
    mean, spread = np.zeros(0), np.zeros(0)
    if len(chosen):
        factor = float(getattr(getattr(state.surrogate, "learned", None), "noise", 1.0))
        noises = implied_noises(state, chosen) * max(factor, 1.0)
        mean, sd = state.surrogate.predict(chosen.queries)
        degrees = np.full(len(mean), np.inf)
        spread = PredictionArrays(mean, sd, noises, chosen.outcome, degrees).spread
    mean = np.append(mean, [usual.mean] * len(passive))
    spread = np.append(spread, [usual.sd] * len(passive))
    both = chosen.join(passive)
    far = np.abs(both.outcome - mean) > LEAST_DISTANCE * usual.sd

    def describe(row: int) -> str:
        return f"the outcome of {labels(state.problem, both.queries[row])[0]} is"

    _refuse_improbable(state, far, both.outcome, mean, spread, describe, f"of {len(far)} outcomes")


def _refuse_improbable(
    state: State,
    far: np.ndarray,
    values: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray,
    describe: Callable[..., str],
    of: str,
) -> None:
    """Refuse the first of the values far from their means that the model makes improbable."""
    z = np.abs(values - mean) / np.where(spread > 0, spread, 1.0)
    bad = far & (2 * student.sf(z, state.posterior.noise_degrees) < LEAST_PROBABILITY)
    if not bad.any():
        return
    first, count = tuple(np.argwhere(bad)[0]), int(bad.sum())
    more = f" ({count} {of} are like that)" if count > 1 else ""
    raise ObservationError(
        f"{describe(*first)} {values[first]:.6g}, but {mean[first]:.4g} +- {spread[first]:.2g} was "
        f"expected{more}: is it a typing error, another unit or another sample? Check it, and if "
        "it is right, report it with sure=True"
    )


def _require_expected_rows(state: State, rows: Observations) -> None:
    chosen = rows.select(rows.is_passive | state.start.uses_observations)
    problem, data = state.problem, state.start.post.data
    observed = data.values[data.is_observational]
    if not len(chosen) or len(observed) < FEWEST_OBSERVATIONS_FOR_SCALE:
        return
    values, was_set = chosen.measured, chosen.mask
    mean, sd = np.broadcast_to(observed.mean(axis=0), values.shape).copy(), observed.std(axis=0)
    spread = np.broadcast_to(sd, values.shape).copy()
    is_cause = np.isin(problem.graph.nodes, list(problem.graph.ancestors(problem.target)))
    far = (np.abs(values - mean) > LEAST_DISTANCE * sd) & (sd > 0) & is_cause & ~was_set
    active = np.flatnonzero(far.any(axis=1) & was_set.any(axis=1))
    if len(active):
        mean[active], spread[active] = expect_variables(state.posterior, chosen.queries[active])

    def describe(row: int, column: int) -> str:
        where = labels(problem, chosen.queries[row])[0]
        return f"the row of {where} has {problem.graph.nodes[column]} ="

    _refuse_improbable(state, far, values, mean, spread, describe, "values")
