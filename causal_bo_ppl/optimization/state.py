"""What is known at some point of an optimization, and the two pure functions over it: ask and tell.

The ledger is the one list of what was told. Belief is a function of the ledger in canonical order,
whatever the order and the grouping of telling: whole rows enter the posterior, where the settings
say so, and the surrogate is then made anew of all other outcomes.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
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
from causal_bo_ppl.optimization.interface import Context, first_best, prepare
from causal_bo_ppl.optimization.search import find_best
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates import Surrogate


class Suggestion(NamedTuple):
    """A suggested intervention: what is believed of its effect, its worth and its cost.

    bound: what the acquisition makes of it, in the direction of the target: the confidence bound
    for "ucb".
    """

    query: Queries
    mean: float
    sd: float
    bound: float
    cost: float


class Best(NamedTuple):
    """What is recommended: a query of one row, with mean and sd of its effect."""

    query: Queries
    mean: float
    sd: float


class Entry(NamedTuple):
    """One outcome in the ledger.

    query: the intervention, in one row. outcome: what the target came out as. noise: the variance
    of its noise. row: the whole row, where it was measured. cost: what was paid. is_earlier:
    whether it was known before the optimization began, so that it cost nothing here and is not
    recommended.
    """

    query: Queries
    outcome: float
    noise: float
    row: Data | None = None
    cost: float = 0.0
    is_earlier: bool = False

    def order(self) -> tuple[object, ...]:
        """Return what entries are sorted by: earlier ones first, then by what was set."""
        mask, value = np.asarray(self.query.mask)[0], np.asarray(self.query.value)[0]
        row = () if self.row is None else tuple(self.row.values[0].tolist())
        what = (tuple((~mask).tolist()), tuple(np.where(mask, value, 0.0).tolist()))
        return (not self.is_earlier, *what, self.outcome, self.noise, row)


@dataclass(frozen=True, eq=False)
class State:
    """All that is known at some point of an optimization; immutable.

    candidates: the interventions to choose from, with their costs. base: the posterior before any
    entry of the ledger. ledger: all that was told, in canonical order. posterior, surrogate: what
    is believed now.
    """

    problem: Problem
    settings: Settings
    candidates: Candidates
    base: Posterior
    ledger: tuple[Entry, ...]
    posterior: Posterior
    surrogate: Surrogate

    @property
    def spent(self) -> float:
        """What all experiments have cost."""
        return math.fsum(entry.cost for entry in self.ledger)

    @property
    def tried(self) -> Replicates:
        """The experiments of this optimization, replicates merged."""
        own = [entry for entry in self.ledger if not entry.is_earlier]
        queries = stack([self.problem.baseline()[:0], *(entry.query for entry in own)])
        values, noises = (np.array([entry[at] for entry in own], float) for at in (1, 2))
        return merge_replicates(queries, values, noises)

    def noise(self, query: Queries) -> float:
        """Return the variance of one outcome: given, or what the model implies."""
        return float(self.noises(query)[0])

    def noises(self, queries: Queries) -> np.ndarray:
        """Return the variances of outcomes of M queries, (M,): given, or what the model implies."""
        given = self.settings.known_noise
        if given is None:
            return self.posterior.outcome_variances(queries)
        return np.full(len(queries), float(given))


def begin(post: Posterior, settings: Settings, experiments: Data | None = None) -> State:
    """Return the state before the first question.

    experiments: rows of earlier experiments that the posterior did not use; their outcomes are told
    to the surrogate, with the model's noise. Those that it cannot use are left out with a warning.
    """
    post = post if settings.accept is None else post.accept(settings.accept)
    surrogate = settings.maker.begin(post)
    state = State(post.problem, settings, find_candidates(post), post, (), post, surrogate)
    if experiments is None or not len(experiments):
        return state
    entries, left_out = [], []
    for query, outcome in zip(experiments.queries, experiments.outcomes.tolist(), strict=True):
        try:
            noise = float(post.outcome_variances(query)[0])
            surrogate.tell(query, outcome, noise)
            entries.append(Entry(query, outcome, noise, is_earlier=True))
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

    Each is chosen as if those before it, and what is pending, had come out as predicted. key: for
    acquisitions that draw, another for each of the n.
    """
    surrogate, candidates = state.surrogate, state.candidates
    objective, tried = state.problem.objective, state.tried.queries
    by_model = state.settings.report == "model" or not len(tried)
    spent = [state.spent]
    for query in pending:
        surrogate = surrogate.imagine(query, state.noise(query))
        spent.append(float(state.problem.cost(query)[0]))
    count = sum(not entry.is_earlier for entry in state.ledger) + len(spent)
    chosen: list[Suggestion] = []
    for place in range(read_count("n", n, 1)):
        pays = partial(_is_affordable, state.settings, spent=tuple(spent))
        if not pays(candidates.costs).any():
            break
        context = Context(
            surrogate,
            objective,
            candidates.queries,
            candidates.queries if by_model else tried,
            round=count + place,
            noise=state.noises,
            key=None if key is None else jax.random.fold_in(key, place),
        )
        rule = prepare(state.settings.rule, context)
        limit = None if state.settings.budget is None else pays
        found = find_best(candidates.space, surrogate, rule, affordable=limit, tried=tried)
        mean, sd = (float(part[0]) for part in surrogate.predict(found.query))
        bound = found.worth if objective == "max" else -found.worth
        chosen.append(Suggestion(found.query, mean, sd, bound, found.cost))
        spent.append(found.cost)
        if place + 1 < n:
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
    checked = [entry._replace(query=state.problem.require(entry.query)) for entry in entries]
    ledger = tuple(sorted((*state.ledger, *checked), key=Entry.order))
    posterior = _posterior(state, ledger)
    surrogate = state.settings.maker.begin(posterior)
    alone = [entry for entry in ledger if not _is_row(state, entry)]
    if alone:
        queries = stack([entry.query for entry in alone])
        values, noises = (np.array([entry[at] for entry in alone], float) for at in (1, 2))
        surrogate = surrogate.tell(queries, values, noises)
        recentre = offered(surrogate, "recentre")
        if recentre is not None and state.settings.kernel == "adaptive":
            surrogate = recentre()
    after = replace(state, ledger=ledger, posterior=posterior, surrogate=surrogate)
    after.tried  # noqa: B018  (refuses outcomes without noise that contradict each other)
    return after


def _posterior(state: State, ledger: Sequence[Entry]) -> Posterior:
    """Return the posterior after the whole rows of the ledger, where the settings use them."""
    rows = [entry.row for entry in ledger if _is_row(state, entry) and entry.row is not None]
    return state.base.update(reduce(Data.join, rows)) if rows else state.base


def _is_row(state: State, entry: Entry) -> bool:
    """Return whether an entry teaches the posterior by its whole row, not the surrogate."""
    is_used = state.settings.update == "full" and not entry.is_earlier
    return is_used and entry.row is not None


def recommend(state: State) -> Best:
    """Return the best intervention as `report` understands it; before any outcome the model's."""
    tried = state.tried
    by_model = state.settings.report == "model" or not len(tried.counts)
    among = state.candidates.queries if by_model else tried.queries
    predicted = state.surrogate.predict(among)
    if not np.isfinite(predicted.mean).all():
        raise ModelError("the surrogate's predictions are not finite; nothing can be recommended")
    is_observed = state.settings.report == "observed" and not by_model
    at = first_best(tried.means if is_observed else predicted.mean, state.problem.objective)
    return Best(among[at], float(predicted.mean[at]), float(predicted.sd[at]))
