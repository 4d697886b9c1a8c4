"""What did the analyst tell? Numbers, replicates, whole rows and failures become records.

Nothing is learned here: what cannot be used is refused before anything changes.

Is an outcome so far from what was expected that it should be asked back? And what was expected?

A typing error, another unit or a swapped sample gives an outcome that the model holds for nearly
impossible and that lies far from what was expected also on the target's own scale. Smaller
contradictions are the subject of `optimization.surprise`.

Is another variable of a whole row so far from what was expected that it should be asked back?

A whole row teaches every mechanism, so that a typing error in any of its columns spoils what is
believed as much as one in the outcome. A value is asked back where it lies far from all rows that
were observed and is nearly impossible under what was set, by rows that are drawn from the model.

Of what was told, what is new? Answers to suggestions, outcomes that nobody asked for, tables.

What was told before with the same value is left out or asked back; with another value it is
refused, unless it was measured again.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import t as student

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import require_data_of
from causal_bo_ppl.effect_estimates.moments import target_moments
from causal_bo_ppl.errors import DataError, DomainError, ExplorationError, listed, unknown
from causal_bo_ppl.inputs import (
    LARGEST_MAGNITUDE,
    read_list,
    read_number,
    require_float64,
    require_outcomes,
    size_fault,
)
from causal_bo_ppl.optimization.experiments import READ_BACK, read_rows
from causal_bo_ppl.optimization.explain import Suggestion, Suggestions
from causal_bo_ppl.optimization.monitor import (
    Arrays,
    PredictedOutcome,
    noise_degrees,
    predict_outcomes,
)
from causal_bo_ppl.optimization.state import Entry, State
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.feasibility import for_measured
from causal_bo_ppl.problem.interventions import named, stack
from causal_bo_ppl.surrogates.base import Told

if TYPE_CHECKING:
    from causal_bo_ppl.optimization.study import Study

OUT_OF_DOMAIN = "of a set or of values that may not be proposed: learned from, never suggested"


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
    is_out_of_domain: bool = False
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
        return Entry(
            self.query, outcome, noise, self.row, self.cost, is_out_of_domain=self.is_out_of_domain
        )

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
    if state.settings.learn_from == "rows":
        raise DataError('learn_from="rows" needs whole rows; tell the whole row of the experiment')
    variances = _read_variances(variance, len(values))
    return [
        base._replace(outcome=value, variance=each)
        for value, each in zip(values, variances, strict=True)
    ]


def read_table_told(state: State, given: object) -> list[Record]:
    """Return the records of whole rows that say themselves what was set in them."""
    problem = state.problem
    if isinstance(given, Data):
        require_data_of(problem, given)
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
    return [rows.select(slice(at, at + 1)) for at in range(len(rows))]


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
    is_out_of_domain = is_active & ~(legal & is_explored)
    told = zip(queries, costs.tolist(), is_out_of_domain.tolist(), strict=True)
    return [
        Record(query, None, cost=cost, is_out_of_domain=foreign) for query, cost, foreign in told
    ]


def _is_rows(problem: Problem, outcome: object) -> bool:
    if isinstance(outcome, Data | pd.DataFrame | Mapping):
        return True
    if isinstance(outcome, pd.Series):
        return problem.target in outcome.index
    return isinstance(outcome, list | tuple) and any(isinstance(each, Mapping) for each in outcome)


def _rows_of(problem: Problem, query: Queries, given: object) -> Data:
    """Return whole rows of one intervention, in which just that was set."""
    if isinstance(given, Data):
        require_data_of(problem, given)
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
        if fault := size_fault(number, 0.0, LARGEST_MAGNITUDE**2):
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


IMPROBABLE = 1e-6  # two-sided: below, an outcome is asked back
FAR = 3.0  # sds of the target in the rows: nearer ones are not asked back


def predict_records(state: State, records: list[Record]) -> list[Record]:
    """Return the records with what the mechanisms predicted for each outcome, where they did."""
    positions = find_predictable(state, records)
    if not positions:
        return records
    chosen = [records[at] for at in positions]
    found = predict_outcomes(state, _read_told(state, chosen))
    after = list(records)
    for at, predicted in zip(positions, found, strict=True):
        after[at] = records[at]._replace(predicted=predicted)
    return after


def require_expected(state: State, records: list[Record]) -> None:
    """Refuse outcomes that are far from what was expected.

    Raises
    ------
    DataError
        If an outcome has a probability below 1e-6 under all that is believed, and lies more than 3
        sds of the target from what was expected; the error says how to tell it all the same.
    """
    chosen = [records[at] for at in find_predictable(state, records)]
    observed = [each for each in records if each.is_passive and each.outcome is not None]
    usual = target_moments(state.base)
    mean, spread, outcomes = np.zeros(0), np.zeros(0), np.zeros(0)
    if chosen:
        queries, outcomes, noises = _read_told(state, chosen)
        factor = float(getattr(getattr(state.surrogate, "learned", None), "noise", 1.0))
        mean, sd = state.surrogate.predict(queries)
        unknown = np.full(len(mean), np.inf)
        found = Arrays(mean, sd, noises * max(factor, 1.0), outcomes, unknown)
        spread = found.spread
    mean = np.append(mean, [usual.mean] * len(observed))
    spread = np.append(spread, [usual.sd] * len(observed))
    outcomes = np.append(outcomes, np.array([each.outcome for each in observed], float))
    gap = np.abs(outcomes - mean)
    z = gap / np.where(spread > 0, spread, 1.0)
    p = 2 * student.sf(z, noise_degrees(state.posterior))
    bad = np.flatnonzero((p < IMPROBABLE) & (gap > FAR * usual.sd))
    if not len(bad):
        return
    first, told = int(bad[0]), [*chosen, *observed]
    more = f" ({len(bad)} of {len(told)} outcomes are like that)" if len(bad) > 1 else ""
    raise DataError(
        f"{describe(state.problem, told[first].query)} came out as {outcomes[first]:.6g}, but "
        f"{mean[first]:.4g} +- {spread[first]:.2g} was expected{more}: is it a typing error, "
        "another unit or another sample? Look again, and if it is right, tell it with sure=True"
    )


def find_predictable(state: State, records: Sequence[Record]) -> list[int]:
    """Return the places of the records of whose outcomes something was expected.

    Of a set that may not be proposed nothing is expected where the surrogate does not know it.
    """
    knows: dict[bytes, bool] = {}
    found = []
    for position, record in enumerate(records):
        if record.outcome is None or record.is_passive:
            continue
        kind = np.asarray(record.query.mask).tobytes()
        if record.is_out_of_domain and kind not in knows:
            knows[kind] = _knows(state, record.query)
        if not record.is_out_of_domain or knows[kind]:
            found.append(position)
    return found


def _knows(state: State, query: Queries) -> bool:
    try:
        state.surrogate.predict(query)
    except (DomainError, ExplorationError):
        return False
    return True


def _read_told(state: State, records: list[Record]) -> Told:
    """Return outcomes with the variances of their noise, those that were given where there are."""
    queries = stack(each.query for each in records)
    outcomes = np.array([each.outcome for each in records], float)
    given = np.array([np.nan if each.variance is None else each.variance for each in records])
    return Told(queries, outcomes, np.where(np.isnan(given), state.noises(queries), given))


def predictions(records: tuple[Record, ...]) -> list[PredictedOutcome]:
    """Return what was predicted, in the order in which it was told."""
    return [each.predicted for each in records if each.predicted is not None]


DRAWS = 256  # of models, with one row each, whose mean and sd are what is expected
FEWEST = 8  # observed rows that tell what is usual


def require_expected_rows(state: State, records: Sequence[Record]) -> None:
    """Refuse whole rows in which a variable is far from what was expected.

    Only values that teach the mechanisms count: of the target's causes, not set themselves, and of
    rows of experiments only where these teach more than their outcomes.

    Raises
    ------
    DataError
        If a value lies more than 3 sds of its variable from the mean of the observed rows, and has
        a probability below 1e-6 under what was set; the error says how to tell it all the same.
    """
    teaches = state.settings.uses_observations and state.takes_observations
    chosen = [each for each in records if each.row is not None and (each.is_passive or teaches)]
    problem, data = state.problem, state.base.data
    observed = data.values[data.is_observational]
    if not chosen or len(observed) < FEWEST:
        return
    values, was_set = (
        np.concatenate([np.asarray(getattr(each.row, name)) for each in chosen])
        for name in ("values", "intervened")
    )
    mean, sd = np.broadcast_to(observed.mean(axis=0), values.shape).copy(), observed.std(axis=0)
    spread = np.broadcast_to(sd, values.shape).copy()
    is_cause = np.isin(problem.graph.nodes, list(problem.graph.ancestors(problem.target)))
    far = (np.abs(values - mean) > FAR * sd) & (sd > 0) & is_cause & ~was_set
    active = np.flatnonzero(far.any(axis=1) & was_set.any(axis=1))
    if len(active):
        mean[active], spread[active] = _expect(state, [chosen[at] for at in active])
    z = np.abs(values - mean) / np.where(spread > 0, spread, 1.0)
    bad = far & (2 * student.sf(z, noise_degrees(state.posterior)) < IMPROBABLE)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    more = f" ({int(bad.sum())} values are like that)" if bad.sum() > 1 else ""
    raise DataError(
        f"the row of {describe(problem, chosen[row].query)} has {problem.graph.nodes[column]} = "
        f"{values[row, column]:.6g}, but {mean[row, column]:.4g} +- {spread[row, column]:.2g} was "
        f"expected{more}: is it a typing error, another unit or another sample? Look again, and if "
        "it is right, tell it with sure=True"
    )


def _expect(state: State, records: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of every variable under what was set in each record, (n, p) each.

    A variable that the model does not draw has an infinite sd: nothing is expected of it.
    """
    post, nodes = state.posterior, state.problem.graph.nodes
    mean, spread = np.zeros((len(records), len(nodes))), np.full((len(records), len(nodes)), np.inf)
    model = post.distribution.model
    if model is None:
        return mean, spread
    for_models, for_rows = jax.random.split(jax.random.key(0))
    models = post.distribution.drawn(DRAWS, for_models).thinned(DRAWS).models
    queries = post.upstream(stack(each.query for each in records))
    drawn = model.replicate(models, queries, for_rows)
    columns = [state.problem.graph.index(name) for name in model.nodes]
    mean[:, columns], spread[:, columns] = drawn.mean(axis=0), drawn.std(axis=0, ddof=1)
    return mean, spread


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
            for position, each in pairs
            for record in read_outcomes_told(
                study.state, read_intervention(study.problem, what[position]), each
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
        for position, outcome in _pair("suggestions", len(batch), outcomes, options)
        for record in _read_answer(study, batch[position], outcome, options, again)
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
    return [(position, each) for position, each in enumerate(given) if each is not None]


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
    data = study.data if has_rows else study.data.select(~study.data.is_observational)
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
