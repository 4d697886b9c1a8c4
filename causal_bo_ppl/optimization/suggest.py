"""What is believed after all that was told? Records enter the ledger of a state.

An intervention that may not be proposed, of another set or beyond its domain, is data: the state is
opened for it, and learns from it where the surrogate or the mechanisms know its effect.

Is it enough? `Settings.stop` says when no experiment is worth its cost, round by round.

A study never ends by itself: it says that its rule would end a run of `optimize` here, and answers
all the same when it is asked.

Which experiments does a study suggest? Those that the loop of `optimize` would run.

A round has a key of its own. Its number follows from how many outcomes were told, in whatever order
and grouping, so that asking changes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.effect_estimates.table import effects
from causal_bo_ppl.errors import DataError, DomainError, ExplorationError
from causal_bo_ppl.inputs import read_count, read_list, require_float64
from causal_bo_ppl.optimization.experiments import best_gain, explain_stop, observes
from causal_bo_ppl.optimization.explain import Reasons, Suggestion, Suggestions, explain
from causal_bo_ppl.optimization.ingest import (
    OUT_OF_DOMAIN,
    Record,
    answered,
    predict_records,
    require_own,
)
from causal_bo_ppl.optimization.run import Recommendation
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import Choice, State, choose, take_measured, tell
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import read_interventions

if TYPE_CHECKING:
    from causal_bo_ppl.optimization.study import Study

BLOCK = 1_024  # outcomes of a table that are predicted together


def open_for(state: State, records: Sequence[Record]) -> State:
    """Return the state, opened where one of the records may not be proposed."""
    return take_measured(state) if any(each.is_out_of_domain for each in records) else state


def believe(start: State, records: Sequence[Record]) -> State:
    """Return what is believed after all records, given the state before any of them."""
    state, noise = open_for(start, records), start.settings.noise
    entries = [each.entry(noise) for each in records if not each.failed]
    return add_losses(tell(state, entries) if entries else state, records)


def learn(state: State, records: Sequence[Record]) -> tuple[State, list[Record]]:
    """Return the state after more records, and these with what was predicted for them.

    Raises
    ------
    DataError
        If an outcome of an intervention that may not be proposed cannot be learned from.
    """
    told, noise = list[Record](), state.settings.noise
    try:
        for start in range(0, len(records), BLOCK):
            part = predict_records(state, list(records[start : start + BLOCK]))
            entries = [each.entry(noise) for each in part if not each.failed]
            state, told = tell(state, entries) if entries else state, [*told, *part]
    except (DomainError, ExplorationError) as error:
        if not any(each.is_out_of_domain for each in records):
            raise
        raise DataError(
            f"an outcome {OUT_OF_DOMAIN.split(':')[0]} cannot be learned from here: {error}. Tell the "
            "whole row where the mechanisms learn from rows, or change the problem"
        ) from error
    return state, told


def add_losses(state: State, records: Sequence[Record]) -> State:
    """Return the state with what failed experiments have cost."""
    return replace(state, lost=math.fsum(each.cost for each in records if each.failed))


def find_stop(start: State, records: Sequence[Record], settings: Settings) -> str:
    """Return why the rule would end the experiments; empty where it would not, or there is none.

    Parameters
    ----------
    start:
        What was known before anything was told.
    records:
        All that was told, in that order: the rule is about rounds one after another.
    settings:
        `stop`, and what makes a round: `batch` and `observe`.
    """
    stop = settings.stop
    if stop is None:
        return ""
    told = [each for each in records if not each.failed]
    latest, idle = 0.0, 0
    for count in reversed(find_round_ends(told, settings)[-stop.patience :]):
        gain = best_gain(believe(start, told[:count]))
        if not gain < stop.gain:
            break
        latest, idle = gain if not idle else latest, idle + 1
    return explain_stop(stop, latest, idle)


def find_round_ends(told: Sequence[Record], settings: Settings) -> list[int]:
    """Return how many outcomes were there at the end of every round, the first being before any.

    Rounds are counted as the loop of `optimize` counts them; rows that were observed without being
    asked for make none, and are known at the end of the last.
    """
    rows = 0 if settings.observe is None else settings.observe.batch
    passive = np.cumsum([0, *(each.is_passive for each in told)])
    active = np.arange(len(told) + 1) - passive
    rounds = active // settings.batch + (passive // rows if rows else 0)
    ends = np.unique(np.maximum.accumulate(rounds), return_index=True)[1].tolist()
    if active[-1] % settings.batch == 0:
        ends[-1] = len(told)
    return [int(each) for each in ends]


class Turn(NamedTuple):
    """Where a study stands.

    outcomes: how many were told. place: how many of them in this round, see `Settings.batch`.
    round: its number, from 1.
    """

    outcomes: int
    position: int
    round: int


def find_turn(state: State) -> Turn:
    """Return where a study stands; rounds are counted as the loop of `optimize` counts them."""
    own = [each for each in state.ledger if not each.is_earlier]
    passive = sum(each.is_passive for each in own)
    policy, batch = state.settings.observe, state.settings.batch
    active = len(own) - passive
    rounds = active // batch + (0 if policy is None else passive // policy.batch)
    return Turn(len(own), active % batch, rounds + 1)


def suggest(study: "Study", n: int, pending: object) -> Suggestions:
    """Return what to try next, at most n experiments; see `Study.ask`."""
    require_float64()
    count, under_way = read_count("n", n, 1), _read_pending(study, pending)
    waiting = [query for query in under_way if np.asarray(query.mask).any()]
    turn = find_turn(study.state)
    told = [each.number or 0 for each in study.records]
    first = max([turn.outcomes, *told]) + len(waiting) + 1
    of_round = jax.random.fold_in(study.round_key, turn.round)
    if not under_way and not turn.position and observes(study.state, of_round):
        return Suggestions([_observation(study, first)])
    key = jax.random.fold_in(jax.random.fold_in(study.round_key, 0), turn.round)
    choices = choose(study.state, count, waiting, key, position=turn.position)
    if not choices:
        raise DomainError(
            f"{study.spent:g} of the budget {study.settings.budget:g} are spent, and what is left "
            "pays for no experiment; begin a study with a larger budget in Settings"
        )
    return Suggestions(
        _suggestion(study, choice, first + at, jax.random.fold_in(key, first + at))
        for at, choice in enumerate(choices)
    )


def _read_pending(study: "Study", pending: object) -> list[Queries]:
    is_one = isinstance(pending, Suggestion | Mapping | Queries)
    given = [pending] if is_one else read_list(pending)
    if given is None:
        raise DomainError(f"pending is a list of suggestions or interventions; got {pending!r}")
    found: list[Queries] = []
    for each in given:
        if isinstance(each, Suggestion):
            require_own(study.fingerprint, each)
            found += [] if answered(study.records, each) else [each.query]
        else:
            found.extend(read_interventions(study.problem, each))
    return found


def _suggestion(study: "Study", choice: Choice, number: int, key: jax.Array) -> Suggestion:
    chosen = choice.suggestion
    [intervention] = study.problem.interventions(chosen.query)
    degrees = float(getattr(study.surrogate, "degrees", np.inf))
    interval = Recommendation(intervention, chosen.mean, chosen.sd, degrees).interval()

    def why() -> Reasons:
        return explain(study.problem, choice, interval, key, _note(study, chosen.query))

    return Suggestion(
        intervention, chosen.mean, chosen.sd, chosen.cost, number, chosen.bound, 1, chosen.query,
        study.fingerprint, degrees, why,
    )  # fmt: skip


def _note(study: "Study", query: Queries) -> str:
    """Return that it failed before, and that it is enough by the settings, where it is so."""
    failures = [each.failed for each in study.records if each.failed and each.is_of(query)]
    said = [f"It failed before: {'; '.join(failures)}."] if failures else []
    said += [f"By Settings.stop it is enough: {study.stopped}."] if study.stopped else []
    return " ".join(said)


def _observation(study: "Study", number: int) -> Suggestion:
    """Return the suggestion to observe rows, where the settings say so."""
    policy, nothing = study.settings.observe, study.problem.baseline()
    assert policy is not None  # noqa: S101  (asked before)
    [line] = effects(study, nothing).to_dict("records")
    cost = policy.batch * policy.cost
    rule = (
        "the expected gain per unit of cost"
        if policy.probability is None
        else f"chance, with probability {policy.probability:g}"
    )

    def why() -> Reasons:
        title = f"Observe {policy.batch} rows without setting anything."
        return Reasons(title, rule, None, None, cost, note=_note(study, nothing))

    return Suggestion(
        {}, line["mean"], line["sd"], cost, number, line["mean"], policy.batch, nothing,
        study.fingerprint, np.inf, why,
    )  # fmt: skip
