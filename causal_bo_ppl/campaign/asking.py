"""Which experiments does a study suggest? Those that the loop of `optimize` would run.

A round has a key of its own. Its number follows from how many outcomes were told, in whatever order
and grouping, so that asking changes nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.campaign.reasons import Reasons, explain
from causal_bo_ppl.campaign.suggestions import Suggestion, Suggestions
from causal_bo_ppl.campaign.told import answered, require_own
from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inputs import read_count, read_list, require_float64
from causal_bo_ppl.optimization.observing import observes
from causal_bo_ppl.optimization.run import Recommendation
from causal_bo_ppl.optimization.state import Choice, State, choose
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import read_interventions
from causal_bo_ppl.surrogates.effect_tables import effects

if TYPE_CHECKING:
    from causal_bo_ppl.campaign.study import Study


class Turn(NamedTuple):
    """Where a study stands.

    outcomes: how many were told. place: how many of them in this round, see `Settings.batch`.
    round: its number, from 1.
    """

    outcomes: int
    place: int
    round: int


def find_turn(state: State) -> Turn:
    """Return where a study stands; rounds are counted as the loop of `optimize` counts them."""
    own = [each for each in state.ledger if not each.is_earlier]
    passive = sum(each.is_passive for each in own)
    policy, batch = state.settings.observe, state.settings.batch
    active = len(own) - passive
    rounds = active // batch + (0 if policy is None else passive // policy.rows)
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
    if not under_way and not turn.place and observes(study.state, of_round):
        return Suggestions([_observation(study, first)])
    key = jax.random.fold_in(jax.random.fold_in(study.round_key, 0), turn.round)
    choices = choose(study.state, count, waiting, key, place=turn.place)
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
    cost = policy.rows * policy.cost
    rule = (
        "the expected gain per unit of cost"
        if policy.probability is None
        else f"chance, with probability {policy.probability:g}"
    )

    def why() -> Reasons:
        title = f"Observe {policy.rows} rows without setting anything."
        return Reasons(title, rule, None, None, cost, note=_note(study, nothing))

    return Suggestion(
        {}, line["mean"], line["sd"], cost, number, line["mean"], policy.rows, nothing,
        study.fingerprint, np.inf, why,
    )  # fmt: skip
