"""How does a report become observations? It is read and checked before anything changes.

Numbers, replicates, whole rows and failures become rows of the log, each once: what was recorded
before with the same value is skipped or refused; with another value it is refused, unless it was
measured again.

A typing error, another unit or a swapped sample gives a value that is nearly impossible under the
model and that lies far from what was expected also on the scale of its variable. Such an outcome is
refused until it is confirmed, and so is another variable of a whole row: whole rows update every
mechanism. Smaller contradictions are the subject of `optimization.state`.

An intervention that is out of domain, of another set or beyond its bounds, is data: it is learned
from where the surrogate or the mechanisms predict its effect.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
import pandas as pd
from scipy.stats import t as student

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import (
    FAILED_EXPERIMENT,
    OUT_OF_DOMAIN,
    RETRACTED,
    Observations,
)
from causal_bo_ppl.data.reports import (
    describe,
    is_rows,
    is_table,
    legal_forms,
    read_intervention,
    read_numbers,
    read_table_rows,
    read_variances,
    rows_of,
)
from causal_bo_ppl.diagnostics.sequential import PredictionArrays
from causal_bo_ppl.effect_estimates.moments import target_moments
from causal_bo_ppl.errors import ObservationError, listed
from causal_bo_ppl.inputs import read_list, require_float64
from causal_bo_ppl.optimization.choosing import Suggestion
from causal_bo_ppl.optimization.state import Start, State, find_predictable, implied_noises
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import for_measured
from causal_bo_ppl.surrogates.base import find_fault

LEAST_PROBABILITY = 1e-6  # two-sided: a value below it must be confirmed
LEAST_DISTANCE = 3.0  # sds of its variable in the data: a nearer value need not be confirmed
EXPECTATION_DRAWS = 256  # of models, with one row each, whose mean and sd are what is expected
FEWEST_OBSERVATIONS_FOR_SCALE = 8  # that tell the usual values of a variable


SUGGESTED_INSTEAD = "suggested was"  # in the note of a row in which something else was set


class Report(NamedTuple):
    """What `Study.tell` was given besides the intervention and the outcome; see there."""

    variance: Any = None
    actual: Any = None
    failed: Any = None
    again: bool = False
    who: str = ""
    when: str = ""


def read_report(
    start: Start,
    known: Observations,
    data: Data,
    fingerprint: str,
    what: object,
    outcome: Any,
    report: Report,
) -> Observations:
    """Return the new rows of a report; none where all was recorded before; see `Study.tell`.

    Parameters
    ----------
    start:
        What was known before the first experiment.
    known, data:
        What was recorded before, and the data that the study began with.
    fingerprint:
        Of the study, whose suggestions are accepted.
    what, outcome, report:
        What was reported.
    """
    require_float64()
    if isinstance(what, Queries):
        asked = for_measured(start.problem).interventions(what)
        what = asked[0] if len(asked) == 1 else asked
    found = [Observations.of(start.problem.graph.nodes, start.problem.target)]
    if is_table(what):
        if outcome is not None or any(each is not None for each in report[:3]):
            raise ObservationError(
                "whole rows hold their outcomes and what was set; report them without `outcome`, "
                "`variance`, `actual` and `failed`, or use tell(intervention, outcome)"
            )
        found.append(_read_table(start, what))
    elif isinstance(what, Suggestion | Mapping):
        found.append(_read_one(start, known, fingerprint, what, outcome, report))
    elif isinstance(what, list | tuple) and all(isinstance(x, Suggestion | Mapping) for x in what):
        for position, each in _pair(len(what), outcome, report):
            alone, before = Report(again=report.again), known
            for part in found:  # an entry is checked against those before it, too
                before = before.join(part)
            found.append(_read_one(start, before, fingerprint, what[position], each, alone))
            if not report.again:
                _require_new(before, data, _unasked(found[-1]), start.problem)
    else:
        raise ObservationError(
            "report the outcome of a suggestion or of an intervention {variable: value}, or whole "
            f"rows (Data or a table); got {type(what).__name__}"
        )
    new = found[0]
    for part in found[1:]:
        new = new.join(part)
    if not report.again:
        _require_new(known, data, _unasked(new), start.problem)
    return _signed(new, report) if len(new) else new


def _unasked(rows: Observations) -> Observations:
    """Return the outcomes that nobody suggested."""
    return rows.select(~rows.was_suggested & rows.is_observed)


def _signed(new: Observations, report: Report) -> Observations:
    """Return the rows with who reported them, and when."""
    for name in ("who", "when"):
        if not isinstance(getattr(report, name), str):
            raise ObservationError(f"{name!r} is a text; got {getattr(report, name)!r}")
    columns = {name: np.full(len(new), getattr(report, name), object) for name in ("who", "when")}
    return new.with_columns(**columns)


def _pair(count: int, outcomes: Any, report: Report) -> list[tuple[int, Any]]:
    """Return the positions in a batch for which there is an outcome, each with it."""
    if isinstance(outcomes, pd.DataFrame):
        outcomes = outcomes.to_dict("records")
    elif isinstance(outcomes, Data):
        outcomes = [outcomes.select(slice(row, row + 1)) for row in range(len(outcomes))]
    given = None if isinstance(outcomes, Mapping | str) else read_list(outcomes)
    has_options = any(each is not None for each in report[:3])
    if given is None or len(given) != count or has_options:
        raise ObservationError(
            f"a batch of {count} is reported with a list of as many outcomes, None for those that "
            "are not known yet, or with a table of as many whole rows; report variances, what was "
            "really set and failures one by one"
        )
    return [(position, each) for position, each in enumerate(given) if each is not None]


def _read_one(
    start: Start,
    known: Observations,
    fingerprint: str,
    what: Suggestion | Mapping[Any, Any],
    outcome: Any,
    report: Report,
) -> Observations:
    """Return the rows of a suggestion or an intervention.

    There are none where all of a suggestion was recorded before. An outcome after a failure is new:
    the experiment was run again.
    """
    actual = report.actual
    if actual is not None and not isinstance(actual, Mapping):
        raise ObservationError(
            f"actual is what was really set, {{variable: value}}; got {actual!r}"
        )
    if not isinstance(what, Suggestion):
        query = read_intervention(start.problem, what if actual is None else actual)
        return read_outcomes(start, query, outcome, report.variance, report.failed)
    require_own(fingerprint, what)
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
    if not Counter(_contents(rows)) - Counter(_contents(before)):
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
    text = _instead(given)
    is_instead = np.array([str(note).endswith(text) for note in known.note], bool)
    return np.asarray((known.number == given.number) & (known.is_of(given.query) | is_instead))


def _instead(given: Suggestion) -> str:
    return f"{SUGGESTED_INSTEAD} {given.label}"


def require_own(fingerprint: str, suggestion: Suggestion) -> None:
    """Refuse a suggestion of another study; fingerprint: of this one."""
    if suggestion.study != fingerprint:
        raise ObservationError(
            f"suggestion {suggestion.number}, {suggestion.label}, is of another study (another "
            "problem, other data, settings or key); report what was set as {variable: value}"
        )


def _require_new(known: Observations, data: Data, new: Observations, problem: Problem) -> None:
    """Refuse an outcome that was not suggested and that is known with the same digits.

    The number of a row and the row itself are one outcome, whichever was recorded first.
    """
    if not len(new):
        return
    is_experiment = ~data.is_observational | new.has_row.any()
    earlier = data.select(is_experiment)
    rows = zip(earlier.intervened, earlier.values, earlier.outcomes.tolist(), strict=True)
    recorded = set(_identities(known.select(known.is_observed)))
    recorded |= {
        (mask.tobytes(), (np.where(mask, values, 0.0) + 0.0).tobytes(), outcome, values.tobytes())
        for mask, values, outcome in rows
    }
    numbers = {each[:-1] for each in recorded if each[-1] is None}
    measured = {each[:-1] for each in recorded}
    for row, identity in enumerate(_identities(new)):
        same_number = identity[:-1] in (measured if identity[-1] is None else numbers)
        if identity in recorded or same_number:
            where = describe(problem, new.queries[row])
            raise ObservationError(
                f"{where} with the outcome {float(new.outcome[row])!r} is known already, with the "
                "same digits; if it is another measurement, report it with again=True"
            )


def _shown(rows: Observations, given: Suggestion) -> list[str]:
    texts, is_suggested = [], rows.is_of(given.query)
    for row, setting in enumerate(rows.settings()):
        whole = " with its row" if rows.has_row[row] else ""
        words = ", ".join(f"{name} = {value:.6g}" for name, value in setting.items())
        whole += "" if is_suggested[row] else f" under do({words})"
        is_failed = rows.status[row] == FAILED_EXPERIMENT
        text = f"failed ({rows.note[row]})" if is_failed else f"{float(rows.outcome[row])!r}{whole}"
        texts.append(text)
    return texts


def _contents(rows: Observations) -> list[tuple[object, ...]]:
    columns = (rows.outcome, rows.variance, rows.measured, rows.mask, rows.value)
    return [
        (str(rows.status[row]), str(rows.note[row]), *(column[row].tobytes() for column in columns))
        for row in range(len(rows))
    ]


def _identities(rows: Observations) -> list[tuple[object, ...]]:
    return [
        (
            rows.mask[row].tobytes(),
            rows.value[row].tobytes(),
            float(rows.outcome[row]),
            rows.measured[row].tobytes() if rows.has_row[row] else None,
        )
        for row in range(len(rows))
    ]


def read_outcomes(
    start: Start, query: Queries, outcome: object, variance: object = None, failed: object = None
) -> Observations:
    """Return the rows of the results of one intervention.

    Parameters
    ----------
    start:
        What was known before the first experiment.
    query:
        The intervention, a batch of one.
    outcome:
        A number, replicates, or whole rows: a mapping, a table or Data.
    variance:
        Of each number; one, or as many.
    failed:
        Why there is no outcome.

    Raises
    ------
    ObservationError
        If it cannot be read.
    """
    problem, where = start.problem, describe(start.problem, query)
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
    is_active = np.asarray(queries.mask).any(axis=1)
    costs = np.where(is_active, 0.0, 0.0 if policy is None else policy.cost)
    paid = np.flatnonzero(is_active & problem.feasible(queries))
    costs[paid] = problem.cost(queries[paid])
    is_outside = start.is_out_of_domain(queries)
    nodes, target = problem.graph.nodes, problem.target
    return Observations.of(
        nodes, target, queries, cost=costs, is_out_of_domain=is_outside, **columns
    )


def rows_of_data(start: Start, rows: Data, queries: Queries | None = None) -> Observations:
    """Return the observations in whole rows, which hold themselves what was set in them."""
    given = rows.queries if queries is None else queries
    return _rows(start, given, outcome=rows.outcomes, measured=rows.values)


def _read_table(start: Start, given: object) -> Observations:
    rows = read_table_rows(start.problem, given)
    return rows_of_data(start, rows, legal_forms(start.problem, rows.queries))


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

    Raises
    ------
    ObservationError
        If a value has a probability below 1e-6 under the model, and lies more than 3 sds of its
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
    gap = np.abs(both.outcome - mean)
    bad = (gap > LEAST_DISTANCE * usual.sd) & _is_improbable(state, gap, spread)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        more = f" ({bad.sum()} of {len(bad)} outcomes are like that)" if bad.sum() > 1 else ""
        what = f"the outcome of {describe(state.problem, both.queries[first])} is"
        _refuse(what, both.outcome[first], mean[first], spread[first], more)


def _is_improbable(state: State, gap: np.ndarray, spread: np.ndarray) -> np.ndarray:
    z = gap / np.where(spread > 0, spread, 1.0)
    return np.asarray(2 * student.sf(z, state.posterior.noise_degrees) < LEAST_PROBABILITY)


def _refuse(what: str, value: float, mean: float, spread: float, more: str) -> NoReturn:
    raise ObservationError(
        f"{what} {value:.6g}, but {mean:.4g} +- {spread:.2g} was expected{more}: is it a typing "
        "error, another unit or another sample? Check it, and if it is right, report it with "
        "sure=True"
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
        mean[active], spread[active] = _expect(state, chosen.queries[active])
    bad = far & _is_improbable(state, np.abs(values - mean), spread)
    if bad.any():
        row, column = first = tuple(np.argwhere(bad)[0])
        more = f" ({int(bad.sum())} values are like that)" if bad.sum() > 1 else ""
        name, where = problem.graph.nodes[column], describe(problem, chosen.queries[row])
        what = f"the row of {where} has {name} ="
        _refuse(what, values[first], mean[first], spread[first], more)


def _expect(state: State, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of every variable under each of n interventions, (n, p) each.

    A variable that the model does not draw has an infinite sd: nothing is expected of it.
    """
    post, nodes = state.posterior, state.problem.graph.nodes
    mean, spread = np.zeros((len(queries), len(nodes))), np.full((len(queries), len(nodes)), np.inf)
    model = post.distribution.model
    if model is None:
        return mean, spread
    for_models, for_rows = jax.random.split(jax.random.key(0))
    drawn = post.distribution.drawn(EXPECTATION_DRAWS, for_models).thinned(EXPECTATION_DRAWS)
    rows = model.replicate(drawn.models, post.upstream(queries), for_rows)
    columns = [state.problem.graph.index(name) for name in model.nodes]
    mean[:, columns], spread[:, columns] = rows.mean(axis=0), rows.std(axis=0, ddof=1)
    return mean, spread
