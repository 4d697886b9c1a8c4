"""What is known at some point of an optimization, and the two pure functions over it: ask and tell.

The ledger is the one list of what was told. Belief is a function of the ledger in canonical order,
whatever the order and the grouping of telling: whole rows enter the posterior, where the settings
say so and no residual is asked for, and the surrogate is then made anew of all other outcomes.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.errors import CausalBOWarning, DomainError, ExplorationError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.optimization.candidates import Candidates, find_candidates
from causal_bo_ppl.optimization.confidence import ConfidenceBound
from causal_bo_ppl.optimization.interface import (
    Acquisition,
    Context,
    first_best,
    prepare,
    trait,
)
from causal_bo_ppl.optimization.search import Affordable, find_best
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates import Surrogate


class Suggestion(NamedTuple):
    """A suggested intervention: what is believed of its effect, its worth and its cost.

    bound: what the acquisition makes of it, in the direction of the target: the confidence bound
    for "ucb". why: how it was chosen, in words.
    """

    query: Queries
    mean: float
    sd: float
    bound: float
    cost: float
    why: str = ""


class Choice(NamedTuple):
    """A suggestion, and what it was found with.

    context: what the acquisition knew. rule: the acquisition, prepared for this suggestion.
    affordable: function of costs (M,) that returns which could be paid for, (M,).
    """

    suggestion: Suggestion
    context: Context
    rule: Acquisition
    affordable: Affordable


class Best(NamedTuple):
    """What is recommended: a query of one row, with mean and sd of its effect."""

    query: Queries
    mean: float
    sd: float


class Entry(NamedTuple):
    """One outcome in the ledger.

    query: the intervention, in one row. outcome: what the target came out as. noise: the variance
    of its noise; None where it is what the model implies. row: the whole row, where it was
    measured. cost: what was paid. is_earlier: whether it was known before the optimization began,
    so that it cost nothing here and is not recommended. is_foreign: whether it is of a set or of
    values that may not be proposed; it is data, and is not recommended.
    """

    query: Queries
    outcome: float
    noise: float | None
    row: Data | None = None
    cost: float = 0.0
    is_earlier: bool = False
    is_foreign: bool = False

    @property
    def is_passive(self) -> bool:
        """Whether nothing was set: a row was observed."""
        return not np.asarray(self.query.mask).any()

    def order(self) -> tuple[object, ...]:
        """Return what entries are sorted by: earlier ones first, then by what was set."""
        mask, value = np.asarray(self.query.mask)[0], np.asarray(self.query.value)[0]
        row = () if self.row is None else tuple(self.row.values[0].tolist())
        what = (tuple((~mask).tolist()), tuple(np.where(mask, value, 0.0).tolist()))
        return (not self.is_earlier, *what, self.outcome, self.noise or 0.0, row)


@dataclass(frozen=True, eq=False)
class State:
    """All that is known at some point of an optimization; immutable.

    candidates: the interventions to choose from, with their costs. base: the posterior before any
    entry of the ledger. ledger: all that was told, in canonical order. posterior, surrogate: what
    is believed now. takes_rows: whether the posterior can learn from whole rows of experiments.
    lost: what experiments without an outcome have cost.
    """

    problem: Problem
    settings: Settings
    candidates: Candidates
    base: Posterior
    ledger: tuple[Entry, ...]
    posterior: Posterior
    surrogate: Surrogate
    takes_rows: bool = True
    lost: float = 0.0

    @property
    def spent(self) -> float:
        """What all experiments have cost."""
        return math.fsum([self.lost, *(entry.cost for entry in self.ledger)])

    @property
    def tried(self) -> Replicates:
        """The experiments of this optimization that may be recommended, replicates merged."""
        own = [
            each
            for each in self.ledger
            if not (each.is_earlier or each.is_passive or each.is_foreign)
        ]
        queries = stack([self.problem.baseline()[:0], *(entry.query for entry in own)])
        values = np.array([entry.outcome for entry in own], float)
        noises = np.array([np.nan if each.noise is None else each.noise for each in own], float)
        if np.isnan(noises).any():
            noises = np.where(np.isnan(noises), self.noises(queries), noises)
        return merge_replicates(queries, values, noises)

    @property
    def expects_rows(self) -> bool:
        """Whether the next experiment's whole row will teach the posterior."""
        own = [entry for entry in self.ledger if not (entry.is_earlier or entry.is_passive)]
        is_used = self.settings.uses_rows and self.takes_rows
        return is_used and all(entry.row is not None for entry in own)

    def noise(self, query: Queries) -> float:
        """Return the variance of one outcome: given, or what the model implies."""
        return float(self.noises(query)[0])

    def noises(self, queries: Queries) -> np.ndarray:
        """Return the variances of outcomes of M queries, (M,): given, or what the model implies."""
        given = self.settings.known_noise
        if given is None:
            return self.posterior.outcome_variances(queries)
        return np.full(len(queries), float(given))


def begin(
    post: Posterior,
    settings: Settings,
    experiments: Data | None = None,
    *,
    takes_rows: bool = True,
) -> State:
    """Return the state before the first question.

    experiments: rows of earlier experiments that the posterior did not use; their outcomes are told
    to the surrogate, with the model's noise. Those that it cannot use are left out with a warning.
    takes_rows: whether the posterior can learn from whole rows of experiments.
    """
    post = post if settings.accept is None else post.accept(settings.accept)
    maker = settings.maker
    surrogate, own_sets = maker.begin(post), offered(maker, "sets")
    candidates = find_candidates(post, None if own_sets is None else own_sets(post.problem))
    state = State(post.problem, settings, candidates, post, (), post, surrogate, takes_rows)
    if experiments is None or not len(experiments):
        return state
    entries, left_out = [], []
    for query, outcome in zip(experiments.queries, experiments.outcomes.tolist(), strict=True):
        try:
            noise = float(post.outcome_variances(query)[0])
            surrogate.tell(query, outcome, noise)
            entries.append(Entry(query, outcome, None, is_earlier=True))
        except (DomainError, ExplorationError) as error:
            left_out.append(str(error))
    if left_out:
        message = (
            f"{len(left_out)} of {len(experiments)} earlier experiments are left out; the first: "
            f"{left_out[0]}"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=4)
    return tell(state, entries)


def ask(
    state: State,
    n: int = 1,
    pending: Iterable[Queries] = (),
    key: jax.Array | None = None,
) -> tuple[Suggestion, ...]:
    """Return the next experiments that can be paid for, at most n, the most worthwhile first.

    Each is chosen as if those before it, and what is pending, had come out as predicted; an
    acquisition that draws takes independent draws instead. key: for these, another for each of n.
    """
    return tuple(each.suggestion for each in choose(state, n, pending, key))


def choose(
    state: State,
    n: int = 1,
    pending: Iterable[Queries] = (),
    key: jax.Array | None = None,
    *,
    place: int = 0,
) -> tuple[Choice, ...]:
    """Return what `ask` suggests, with what each suggestion was found with.

    place: how many experiments of this round were told before; what is drawn depends on it and on
    the number of pending ones.
    """
    surrogate, candidates = state.surrogate, state.candidates
    objective, tried = state.problem.objective, state.tried.queries
    by_model = state.settings.report == "model" or not len(tried)
    spent = [state.spent]
    for query in pending:
        surrogate = surrogate.imagine(query, state.noise(query))
        spent.append(float(state.problem.cost(query)[0]))
    count = sum(not entry.is_earlier for entry in state.ledger) + len(spent)
    first = place + len(spent) - 1
    chosen: list[Choice] = []
    for at in range(read_count("n", n, 1)):
        pays = partial(_is_affordable, state.settings, spent=tuple(spent))
        if not pays(candidates.costs).any():
            break
        context = Context(
            surrogate,
            objective,
            candidates.queries,
            candidates.queries if by_model else tried,
            round=count + at,
            noise=state.noises,
            key=None if key is None else jax.random.fold_in(key, first + at),
            rows=state.expects_rows,
        )
        rule = prepare(state.settings.rule, context)
        limit = None if state.settings.budget is None else pays
        known = tried if state.settings.known_noise == 0 else None  # asking again teaches nothing
        found = find_best(
            candidates.space, surrogate, rule, affordable=limit, tried=tried, known=known
        )
        mean, sd = (float(part[0]) for part in surrogate.predict(found.query))
        bound = found.worth if objective == "max" else -found.worth
        why = f"{rule.name}: the best of {found.how}"
        suggestion = Suggestion(found.query, mean, sd, bound, found.cost, why)
        chosen.append(Choice(suggestion, context, rule, pays))
        spent.append(found.cost)
        if at + 1 < n and not trait(rule, "is_random"):
            surrogate = surrogate.imagine(found.query, state.noise(found.query))
    return tuple(chosen)


def _is_affordable(settings: Settings, costs: np.ndarray, spent: Sequence[float]) -> np.ndarray:
    budget = math.inf if settings.budget is None else settings.budget * (1 + 1e-12)  # sums round
    return np.asarray(costs + math.fsum(spent) <= budget)


def tell(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after more outcomes.

    Raises
    ------
    CausalBOError
        If an outcome cannot be used; the state itself is unchanged.
    """
    checked = [
        entry
        if entry.is_foreign and _is_row(state, entry)
        else entry._replace(query=state.problem.require(entry.query))
        for entry in entries
    ]
    ledger = tuple(sorted((*state.ledger, *checked), key=Entry.order))
    posterior, surrogate = _believe(state, ledger)
    after = replace(state, ledger=ledger, posterior=posterior, surrogate=surrogate)
    after.tried  # noqa: B018  (refuses outcomes without noise that contradict each other)
    return after


def _believe(state: State, ledger: Sequence[Entry]) -> tuple[Posterior, Surrogate]:
    """Return the posterior and the surrogate after all that was told; each outcome is used once.

    Two hypotheses compete: whole rows teach the mechanisms, and only outcomes without a row the
    surrogate; or all outcomes are told to the surrogate, which adds a residual to the mechanisms.
    The first is kept until the evidence of the outcomes asks for a residual. Rows of which the
    surrogate may know nothing, those observed and foreign ones, teach the mechanisms always.
    """
    is_apart = [each.is_passive or (each.is_foreign and _is_row(state, each)) for each in ledger]
    rows_only = [entry for entry, apart in zip(ledger, is_apart, strict=True) if apart]
    others = [entry for entry, apart in zip(ledger, is_apart, strict=True) if not apart]
    observed = _with_rows(state.base, rows_only)
    used = [entry for entry in others if _is_row(state, entry)]
    if used and state.settings.residual == "auto":
        surrogate = _tell(state, observed, others)
        if getattr(surrogate, "residual", None) is not None:
            return observed, surrogate
    posterior = _with_rows(observed, used)
    return posterior, _tell(state, posterior, [each for each in others if not _is_row(state, each)])


def _with_rows(post: Posterior, entries: Sequence[Entry]) -> Posterior:
    rows = [entry.row for entry in entries if entry.row is not None]
    if not rows:
        return post
    values, intervened = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("values", "intervened")
    )
    return post.update(Data(rows[0].nodes, rows[0].target, values, intervened))


def _tell(state: State, posterior: Posterior, entries: Sequence[Entry]) -> Surrogate:
    """Return a new surrogate that was told some outcomes."""
    surrogate = state.settings.maker.begin(posterior)
    if not entries:
        return surrogate
    for is_given in (False, True):
        chosen = [entry for entry in entries if (entry.noise is not None) == is_given]
        if chosen:
            queries = stack([entry.query for entry in chosen])
            values = np.array([entry.outcome for entry in chosen], float)
            noises = np.array([entry.noise for entry in chosen], float) if is_given else None
            surrogate = surrogate.tell(queries, values, noises)
    recentre = offered(surrogate, "recentre")
    if recentre is not None and state.settings.kernel == "adaptive":
        surrogate = recentre()
    return surrogate


def _is_row(state: State, entry: Entry) -> bool:
    """Return whether an entry teaches the posterior by its whole row, not the surrogate."""
    is_used = state.settings.uses_rows and state.takes_rows and not entry.is_earlier
    return is_used and entry.row is not None


def recommend(state: State) -> Best:
    """Return the best intervention as `report` understands it; before any outcome the model's."""
    tried = state.tried
    if state.settings.report == "model" or not len(tried.counts):
        rule = ConfidenceBound(0.0)
        among = find_best(state.candidates.space, state.surrogate, rule, tried=tried.queries).query
    else:
        among = tried.queries
    predicted = state.surrogate.predict(among)
    if not np.isfinite(predicted.mean).all():
        raise ModelError("the surrogate's predictions are not finite; nothing can be recommended")
    is_observed = state.settings.report == "observed" and len(among) == len(tried.means)
    at = first_best(tried.means if is_observed else predicted.mean, state.problem.objective)
    return Best(among[at], float(predicted.mean[at]), float(predicted.sd[at]))
