"""What was reported to a study, and what follows from it?

Numbers, replicates, whole rows and failures become records. They are read and checked before
anything changes, and each is recorded once: what was recorded before with the same value is
skipped or refused; with another value it is refused, unless it was measured again.

A typing error, another unit or a swapped sample gives a value that is nearly impossible under the
model and that lies far from what was expected also on the scale of its variable. Such an outcome is
refused until it is confirmed, and so is another variable of a whole row: whole rows update every
mechanism. Smaller contradictions are the subject of `optimization.monitor`.

Records enter the ledger of a state. An intervention that is out of domain, of another set or beyond
its bounds, is data: the state learns from it where the surrogate or the mechanisms predict its
effect.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import numpy as np
import pandas as pd
from scipy.stats import t as student

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.effect_estimates.moments import target_moments
from causal_bo_ppl.errors import DomainError, ExplorationError, ObservationError, listed, unknown
from causal_bo_ppl.inputs import read_list, read_number, require_float64
from causal_bo_ppl.optimization.experiments import READ_BACK_TOLERANCE, read_rows
from causal_bo_ppl.optimization.explain import Suggestion
from causal_bo_ppl.optimization.monitor import PredictedOutcome, PredictionArrays, predict_outcomes
from causal_bo_ppl.optimization.state import Entry, State, take_measured, tell
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.feasibility import for_measured
from causal_bo_ppl.problem.interventions import named, stack
from causal_bo_ppl.surrogates.base import NoisyOutcomes
from causal_bo_ppl.surrogates.discrepancy import noise_degrees

if TYPE_CHECKING:
    from causal_bo_ppl.optimization.study import Study

OUT_OF_DOMAIN = "out of domain"
OUTCOMES_PER_BLOCK = 1_024  # of a table, which are predicted together
LEAST_PROBABILITY = 1e-6  # two-sided: a value below it must be confirmed
LEAST_DISTANCE = 3.0  # sds of its variable in the data: a nearer value need not be confirmed
EXPECTATION_DRAWS = 256  # of models, with one row each, whose mean and sd are what is expected
FEWEST_OBSERVATIONS_FOR_SCALE = 8  # that tell the usual values of a variable


class StudyRecord(NamedTuple):
    """One thing that was reported to a study.

    query: the intervention, a batch of one. outcome: the value of the target; None where the
    experiment failed. variance: of the outcome's noise, where it was given. row: the values of all
    variables, where they were measured. number: of the suggestion it answers; None where it was not
    suggested. failed: why there is no outcome. cost: what was paid. is_out_of_domain: see `Entry`.
    predicted: the prediction of the outcome, where there was one.
    """

    query: Queries
    outcome: float | None
    variance: float | None = None
    row: Data | None = None
    number: int | None = None
    failed: str = ""
    cost: float = 0.0
    is_out_of_domain: bool = False
    predicted: PredictedOutcome | None = None

    @property
    def is_passive(self) -> bool:
        """Whether nothing was set."""
        return not np.asarray(self.query.mask).any()

    def entry(self, known_noise: float | None) -> Entry:
        """Return the entry of the ledger; known_noise: of all outcomes, where it was given."""
        noise = known_noise if self.variance is None else self.variance
        if self.is_passive:
            noise = 0.0  # as the loop records its observations
        outcome = math.nan if self.outcome is None else self.outcome
        return Entry(
            self.query, outcome, noise, self.row, self.cost, is_out_of_domain=self.is_out_of_domain
        )

    def setting(self) -> tuple[bytes, bytes]:
        """Return what was set, so that it can be compared."""
        mask = np.asarray(self.query.mask)
        return mask.tobytes(), (np.where(mask, np.asarray(self.query.value), 0.0) + 0.0).tobytes()

    def is_of(self, query: Queries) -> bool:
        """Return whether it is of this intervention."""
        return self.setting() == StudyRecord(query, None).setting()


def answered(records: Sequence[StudyRecord], given: Suggestion) -> list[StudyRecord]:
    """Return what was recorded of a suggestion: its outcomes, and that it failed."""
    return [each for each in records if each.number == given.number and each.is_of(given.query)]


def require_own(fingerprint: str, suggestion: Suggestion) -> None:
    """Refuse a suggestion of another study; fingerprint: of this one."""
    if suggestion.study != fingerprint:
        raise ObservationError(
            f"suggestion {suggestion.number}, {suggestion.label}, is of another study (another "
            "problem, other data, settings or key); report what was set as {variable: value}"
        )


def read_intervention(problem: Problem, given: Mapping[Any, Any]) -> Queries:
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
    return _legal_forms(problem, Queries(mask, value))


def _legal_forms(problem: Problem, queries: Queries) -> Queries:
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


def read_outcomes(
    state: State, query: Queries, outcome: object, variance: object = None, failed: object = None
) -> list[StudyRecord]:
    """Return the records of the results of one intervention.

    Parameters
    ----------
    state:
        The state before.
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
    [base] = _base_records(state, query)
    where = describe(state.problem, query)
    if failed is not None:
        if not isinstance(failed, str) or not failed.strip():
            raise ObservationError(f'state why {where} failed: failed="leaked"; got {failed!r}')
        if outcome is not None or variance is not None:
            raise ObservationError(f"{where} failed and has an outcome too; report one of them")
        return [base._replace(failed=failed.strip())]
    if outcome is None:
        raise ObservationError(
            f"the outcome of {where} is missing; report a number, replicates or a whole row, or "
            'failed="why"'
        )
    if _is_rows(state.problem, outcome):
        if variance is not None:
            raise ObservationError(
                "`variance` is of an outcome that is reported as a number; from whole rows the "
                "model learns the noise"
            )
        rows = _rows_of(state.problem, query, outcome)
        return [base._replace(outcome=float(row.outcomes[0]), row=row) for row in split_rows(rows)]
    values = _read_numbers(where, outcome)
    if base.is_passive:
        raise ObservationError(
            "where nothing was set, the outcome alone is not informative: report the whole row, "
            f"tell({{}}, {{...}}), with all of {', '.join(state.problem.graph.nodes)}"
        )
    if state.settings.learn_from == "rows":
        raise ObservationError('learn_from="rows" needs whole rows; report all variables')
    variances = _read_variances(variance, len(values))
    return [
        base._replace(outcome=value, variance=each)
        for value, each in zip(values, variances, strict=True)
    ]


def read_table(state: State, given: object) -> list[StudyRecord]:
    """Return the records of whole rows that hold themselves what was set in them."""
    rows = _read_rows(state.problem, given)
    bases = _base_records(state, _legal_forms(state.problem, rows.queries))
    return [
        base._replace(outcome=float(row.outcomes[0]), row=row)
        for base, row in zip(bases, split_rows(rows), strict=True)
    ]


def _read_rows(problem: Problem, given: object) -> Data:
    rows = read_data(problem, given if isinstance(given, Data) else _as_frame(given))
    if not len(rows):
        raise ObservationError("the table has no rows; there is nothing to record")
    return rows


def is_table(given: object) -> bool:
    """Return whether this is a table of whole rows, or one row of such a table."""
    if isinstance(given, Mapping):
        return any(isinstance(name, str) and name.startswith("do(") for name in given)
    return isinstance(given, Data | pd.DataFrame | pd.Series)


def split_rows(rows: Data) -> list[Data]:
    """Return the rows one by one."""
    return [rows.select(slice(index, index + 1)) for index in range(len(rows))]


def _base_records(state: State, queries: Queries) -> list[StudyRecord]:
    """Return records without outcomes: what was set, its cost, and whether it is out of domain."""
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
    is_out_of_domain = is_active & ~(legal & is_explored)
    parts = zip(queries, costs.tolist(), is_out_of_domain.tolist(), strict=True)
    return [
        StudyRecord(query, None, cost=cost, is_out_of_domain=is_outside)
        for query, cost, is_outside in parts
    ]


def _is_rows(problem: Problem, outcome: object) -> bool:
    if isinstance(outcome, Data | pd.DataFrame | Mapping):
        return True
    if isinstance(outcome, pd.Series):
        return problem.target in outcome.index
    return isinstance(outcome, list | tuple) and any(isinstance(each, Mapping) for each in outcome)


def _rows_of(problem: Problem, query: Queries, given: object) -> Data:
    """Return whole rows of one intervention, in which just that was set."""
    if not isinstance(given, Data):
        frame, was_set = _as_frame(given), write_setting(problem, query)
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
    rows = _read_rows(problem, given)
    results = read_rows(rows, query.repeat(len(rows)), problem)
    fault = next((each for each in results.faults if each), "")
    if fault or results.rows is None:
        raise ObservationError(fault)
    return results.rows


def _as_frame(given: Any) -> pd.DataFrame:
    if isinstance(given, pd.DataFrame):
        return given
    rows = [given] if isinstance(given, Mapping | pd.Series) else given
    return pd.DataFrame([dict(row) for row in rows])


def _read_numbers(where: str, outcome: object) -> list[float]:
    is_many = isinstance(outcome, Sequence) and not isinstance(outcome, str | bytes)
    is_many = is_many or getattr(outcome, "ndim", 0) == 1  # arrays and columns
    given = list(outcome) if is_many else [outcome]  # type: ignore[call-overload]
    if not given:
        raise ObservationError(
            f'{where} has no outcome in this list; report a number, or failed="why"'
        )
    options = ("a number, replicates or a whole row", 'a finite number, or failed="why"')
    return [_read_finite(f"the outcome of {where}", each, *options) for each in given]


def _read_variances(variance: object, count: int) -> list[float | None]:
    if variance is None:
        return [None] * count
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


def write_setting(problem: Problem, query: Queries) -> dict[str, float]:
    """Return what one intervention sets, legal or not, as {variable: value}."""
    parts = zip(problem.graph.nodes, query.mask[0], query.value[0], strict=True)
    return {name: float(value) for name, is_set, value in parts if is_set}


def describe(problem: Problem, query: Queries) -> str:
    """Return an intervention as a text, legal or not."""
    words = [f"{name} = {value:.6g}" for name, value in write_setting(problem, query).items()]
    return f"do({', '.join(words)})" if words else "nothing set"


def predict_records(state: State, records: list[StudyRecord]) -> list[StudyRecord]:
    """Return the records with the predictions of the mechanisms, where there are some."""
    positions = find_predictable(state, records)
    if not positions:
        return records
    outcomes = _stack_outcomes(state, [records[index] for index in positions])
    predicted = dict(zip(positions, predict_outcomes(state, outcomes), strict=True))
    return [each._replace(predicted=predicted.get(index)) for index, each in enumerate(records)]


def require_expected_outcomes(state: State, records: Sequence[StudyRecord]) -> None:
    """Refuse outcomes that are far from what was expected.

    Raises
    ------
    ObservationError
        If an outcome has a probability below 1e-6 under the model, and lies more than 3 sds of the
        target from what was expected; the error says how to report it all the same.
    """
    chosen = [records[index] for index in find_predictable(state, records)]
    observed = [each for each in records if each.is_passive and each.outcome is not None]
    usual = target_moments(state.base)
    mean, spread = np.zeros(0), np.zeros(0)
    if chosen:
        queries, outcomes, noises = _stack_outcomes(state, chosen)
        factor = float(getattr(getattr(state.surrogate, "learned", None), "noise", 1.0))
        mean, sd = state.surrogate.predict(queries)
        degrees = np.full(len(mean), np.inf)
        spread = PredictionArrays(mean, sd, noises * max(factor, 1.0), outcomes, degrees).spread
    mean = np.append(mean, [usual.mean] * len(observed))
    spread = np.append(spread, [usual.sd] * len(observed))
    outcomes = np.array([each.outcome for each in (*chosen, *observed)], float)
    gap = np.abs(outcomes - mean)
    bad = (gap > LEAST_DISTANCE * usual.sd) & _is_improbable(state, gap, spread)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        more = f" ({bad.sum()} of {len(bad)} outcomes are like that)" if bad.sum() > 1 else ""
        where = describe(state.problem, (*chosen, *observed)[first].query)
        _refuse(f"the outcome of {where} is", outcomes[first], mean[first], spread[first], more)


def _is_improbable(state: State, gap: np.ndarray, spread: np.ndarray) -> np.ndarray:
    z = gap / np.where(spread > 0, spread, 1.0)
    return np.asarray(2 * student.sf(z, noise_degrees(state.posterior)) < LEAST_PROBABILITY)


def _refuse(what: str, value: float, mean: float, spread: float, more: str) -> NoReturn:
    raise ObservationError(
        f"{what} {value:.6g}, but {mean:.4g} +- {spread:.2g} was expected{more}: is it a typing "
        "error, another unit or another sample? Check it, and if it is right, report it with "
        "sure=True"
    )


def find_predictable(state: State, records: Sequence[StudyRecord]) -> list[int]:
    """Return the positions of the records whose outcomes were predicted.

    Outcomes of a set that is out of domain are not, where the surrogate does not know the set.
    """
    knows: dict[bytes, bool] = {}
    positions = []
    for position, record in enumerate(records):
        kind = np.asarray(record.query.mask).tobytes()
        if record.is_out_of_domain and kind not in knows:
            knows[kind] = _knows(state, record.query)
        is_known = not record.is_out_of_domain or knows[kind]
        if record.outcome is not None and not record.is_passive and is_known:
            positions.append(position)
    return positions


def _knows(state: State, query: Queries) -> bool:
    try:
        state.surrogate.predict(query)
    except (DomainError, ExplorationError):
        return False
    return True


def _stack_outcomes(state: State, records: list[StudyRecord]) -> NoisyOutcomes:
    """Return outcomes with the variances of their noise: given, or what the model implies."""
    queries = stack(each.query for each in records)
    outcomes = np.array([each.outcome for each in records], float)
    given = np.array([each.variance for each in records], float)
    return NoisyOutcomes(queries, outcomes, np.where(np.isnan(given), state.noises(queries), given))


def predictions(records: tuple[StudyRecord, ...]) -> list[PredictedOutcome]:
    """Return the predicted outcomes, in the order in which they were recorded."""
    return [each.predicted for each in records if each.predicted is not None]


def require_expected_rows(state: State, records: Sequence[StudyRecord]) -> None:
    """Refuse whole rows in which a variable is far from what was expected.

    Only values that update the mechanisms count: of the target's causes, not set themselves, and of
    experiments only where their whole rows are learned from.

    Raises
    ------
    ObservationError
        If a value lies more than 3 sds of its variable from the mean of the observations, and has a
        probability below 1e-6 under what was set; the error says how to report it all the same.
    """
    uses = state.uses_observations
    chosen = [each for each in records if each.row is not None and (each.is_passive or uses)]
    problem, data = state.problem, state.base.data
    observed = data.values[data.is_observational]
    if not chosen or len(observed) < FEWEST_OBSERVATIONS_FOR_SCALE:
        return
    values, was_set = (
        np.concatenate([np.asarray(getattr(each.row, name)) for each in chosen])
        for name in ("values", "intervened")
    )
    mean, sd = np.broadcast_to(observed.mean(axis=0), values.shape).copy(), observed.std(axis=0)
    spread = np.broadcast_to(sd, values.shape).copy()
    is_cause = np.isin(problem.graph.nodes, list(problem.graph.ancestors(problem.target)))
    far = (np.abs(values - mean) > LEAST_DISTANCE * sd) & (sd > 0) & is_cause & ~was_set
    active = np.flatnonzero(far.any(axis=1) & was_set.any(axis=1))
    if len(active):
        mean[active], spread[active] = _expect(state, [chosen[index] for index in active])
    bad = far & _is_improbable(state, np.abs(values - mean), spread)
    if bad.any():
        row, column = first = tuple(np.argwhere(bad)[0])
        more = f" ({int(bad.sum())} values are like that)" if bad.sum() > 1 else ""
        name, where = problem.graph.nodes[column], describe(problem, chosen[row].query)
        what = f"the row of {where} has {name} ="
        _refuse(what, values[first], mean[first], spread[first], more)


def _expect(state: State, records: Sequence[StudyRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of every variable under what was set in each record, (n, p) each.

    A variable that the model does not draw has an infinite sd: nothing is expected of it.
    """
    post, nodes = state.posterior, state.problem.graph.nodes
    mean, spread = np.zeros((len(records), len(nodes))), np.full((len(records), len(nodes)), np.inf)
    model = post.distribution.model
    if model is None:
        return mean, spread
    for_models, for_rows = jax.random.split(jax.random.key(0))
    drawn = post.distribution.drawn(EXPECTATION_DRAWS, for_models).thinned(EXPECTATION_DRAWS)
    queries = post.upstream(stack(each.query for each in records))
    rows = model.replicate(drawn.models, queries, for_rows)
    columns = [state.problem.graph.index(name) for name in model.nodes]
    mean[:, columns], spread[:, columns] = rows.mean(axis=0), rows.std(axis=0, ddof=1)
    return mean, spread


def read_answers(
    study: "Study", what: object, outcome: Any, *, variance: Any, failed: Any, again: bool
) -> list[StudyRecord]:
    """Return the new records of a report; none where all was recorded before; see `Study.tell`."""
    require_float64()
    options = {"variance": variance, "failed": failed}
    if isinstance(what, Queries):
        asked = for_measured(study.problem).interventions(what)
        what = asked[0] if len(asked) == 1 else asked
    records = list[StudyRecord]()
    if is_table(what):
        if outcome is not None or variance is not None or failed is not None:
            raise ObservationError(
                "whole rows hold their outcomes; report them without `outcome`, `variance` and "
                "`failed`, or use tell(intervention, outcome)"
            )
        records = read_table(study.state, what)
    elif isinstance(what, Suggestion | Mapping):
        records = _read_one(study, what, outcome, options, again)
    elif isinstance(what, list | tuple) and all(isinstance(x, Suggestion | Mapping) for x in what):
        for position, each in _pair(len(what), outcome, options):
            records += _read_one(study, what[position], each, {}, again)
    else:
        raise ObservationError(
            "report the outcome of a suggestion or of an intervention {variable: value}, or whole "
            f"rows (Data or a table); got {type(what).__name__}"
        )
    if not again:
        _require_new(study, [each for each in records if each.number is None and not each.failed])
    return records


def _pair(count: int, outcomes: Any, options: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return the positions in a batch for which there is an outcome, each with it."""
    if isinstance(outcomes, pd.DataFrame):
        outcomes = outcomes.to_dict("records")
    elif isinstance(outcomes, Data):
        outcomes = split_rows(outcomes)
    given = None if isinstance(outcomes, Mapping | str) else read_list(outcomes)
    has_options = any(each is not None for each in options.values())
    if given is None or len(given) != count or has_options:
        raise ObservationError(
            f"a batch of {count} is reported with a list of as many outcomes, None for those that "
            "are not known yet, or with a table of as many whole rows; report variances and "
            "failures one by one"
        )
    return [(position, each) for position, each in enumerate(given) if each is not None]


def _read_one(
    study: "Study", what: Suggestion | Mapping[Any, Any], outcome: Any, options: Any, again: bool
) -> list[StudyRecord]:
    """Return the records of a suggestion or an intervention.

    There are none where all of a suggestion was recorded before. An outcome after a failure is new:
    the experiment was run again.
    """
    if not isinstance(what, Suggestion):
        query = read_intervention(study.problem, what)
        return read_outcomes(study.state, query, outcome, **options)
    require_own(study.fingerprint, what)
    records = [
        each._replace(number=what.number)
        for each in read_outcomes(study.state, what.query, outcome, **options)
    ]
    before = answered(study.records, what)
    if again or not before:
        return records
    if not Counter(map(_content, records)) - Counter(map(_content, before)):
        return []
    outcomes = [each for each in before if not each.failed]
    if not outcomes:
        return records
    raise ObservationError(
        f"suggestion {what.number}, {what.label}, was recorded with "
        f"{listed(map(_shown, outcomes))} and is now reported with "
        f"{listed(map(_shown, records))}; if it was measured again, report it with again=True"
    )


def _require_new(study: "Study", outcomes: list[StudyRecord]) -> None:
    """Refuse an outcome that was not suggested and that is known with the same digits.

    The number of a row and the row itself are one outcome, whichever was recorded first.
    """
    if not outcomes:
        return
    known = _find_known(study, has_rows=any(each.row is not None for each in outcomes))
    numbers = {each[:-1] for each in known if each[-1] is None}
    measured = {each[:-1] for each in known}
    for record in outcomes:
        identity = _identity(record)
        same_number = identity[:-1] in (measured if record.row is None else numbers)
        if identity in known or same_number:
            raise ObservationError(
                f"{describe(study.problem, record.query)} with the outcome {record.outcome!r} is "
                "known already, with the same digits; if it is another measurement, report it with "
                "again=True"
            )


def _find_known(study: "Study", *, has_rows: bool) -> set[tuple[object, ...]]:
    """Return what identifies all outcomes that are known.

    has_rows: whether observations matter too, beside experiments.
    """
    recorded = {_identity(each) for each in study.records if not each.failed}
    data = study.data if has_rows else study.data.select(~study.data.is_observational)
    settings = np.where(data.intervened, data.values, 0.0) + 0.0
    rows = zip(data.intervened, settings, data.outcomes.tolist(), data.values, strict=True)
    return recorded | {
        (mask.tobytes(), setting.tobytes(), outcome, values.tobytes())
        for mask, setting, outcome, values in rows
    }


def _shown(record: StudyRecord) -> str:
    if record.failed:
        return f"failed ({record.failed})"
    return f"{record.outcome!r}" + (" with its row" if record.row is not None else "")


def _content(record: StudyRecord) -> tuple[object, ...]:
    row = None if record.row is None else record.row.values.tobytes()
    return record.outcome, record.variance, record.failed, row


def _identity(record: StudyRecord) -> tuple[object, ...]:
    return *record.setting(), record.outcome, _content(record)[-1]


def condition(start: State, records: Sequence[StudyRecord]) -> State:
    """Return the state after all records, given the state before any of them."""
    state, noise = _open_for(start, records), start.settings.noise
    entries = [each.entry(noise) for each in records if not each.failed]
    return add_losses(tell(state, entries) if entries else state, records)


def learn(
    state: State, records: Sequence[StudyRecord], *, sure: bool
) -> tuple[State, list[StudyRecord]]:
    """Return the state after more records, and these with their predictions.

    sure: whether values that are far from what was expected are recorded all the same.

    Raises
    ------
    ObservationError
        If a value is far from what was expected, or if an outcome that is out of domain cannot be
        learned from.
    """
    state = _open_for(state, records)
    if not sure:
        require_expected_outcomes(state, records)
        require_expected_rows(state, records)
    predicted, noise = list[StudyRecord](), state.settings.noise
    try:
        for start in range(0, len(records), OUTCOMES_PER_BLOCK):
            part = predict_records(state, list(records[start : start + OUTCOMES_PER_BLOCK]))
            entries = [each.entry(noise) for each in part if not each.failed]
            state, predicted = tell(state, entries) if entries else state, [*predicted, *part]
    except (DomainError, ExplorationError) as error:
        if not any(each.is_out_of_domain for each in records):
            raise
        raise ObservationError(
            f"an outcome {OUT_OF_DOMAIN} cannot be learned from here: {error}. Report the whole "
            "row where the mechanisms learn from rows, or change the problem"
        ) from error
    return state, predicted


def _open_for(state: State, records: Sequence[StudyRecord]) -> State:
    """Return the state, one that takes all interventions where a record is out of domain."""
    return take_measured(state) if any(each.is_out_of_domain for each in records) else state


def add_losses(state: State, records: Sequence[StudyRecord]) -> State:
    """Return the state with the cost of failed experiments."""
    return replace(state, lost=math.fsum(each.cost for each in records if each.failed))
