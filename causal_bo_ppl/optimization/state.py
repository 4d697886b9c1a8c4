"""What was told? One list of outcomes in canonical order, and the same as arrays.

What is known at some point of an optimization, and the two pure functions over it: ask and tell.

The ledger is the one list of what was told. Belief is a function of the ledger in canonical order,
whatever the order and the grouping of telling: whole rows enter the posterior, where the settings
say so and no residual is asked for, and the surrogate is then made anew of all other outcomes.
"""

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.errors import CausalBOWarning, DomainError, ExplorationError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.analytic import (
    Acquisition,
    ConfidenceBound,
    Context,
    first_best,
    prepare,
    trait,
)
from causal_bo_ppl.optimization.maximize import (
    Affordable,
    Candidates,
    find_best,
    find_candidates,
    search_beyond,
)
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.feasibility import for_measured
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.surrogates import Surrogate


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
    is_out_of_domain: bool = False

    @property
    def is_passive(self) -> bool:
        """Whether nothing was set: a row was observed."""
        return not np.asarray(self.query.mask).any()

    def order(self) -> tuple[object, ...]:
        """Return what entries are sorted by: earlier ones first, then by what was set."""
        mask, value = np.asarray(self.query.mask)[0], np.asarray(self.query.value)[0]
        row = () if self.row is None else tuple(self.row.values[0].tolist())
        what = (tuple((~mask).tolist()), tuple(np.where(mask, value, 0.0).tolist()))
        noise = (self.noise is not None, self.noise or 0.0)
        return (not self.is_earlier, *what, self.outcome, *noise, row)


class Columns(NamedTuple):
    """The entries of a ledger as arrays, so that a round does not read them one by one.

    queries: (t, p). outcomes, costs: (t,). noises: (t,), NaN where the model implies them.
    is_earlier, is_passive, is_foreign: (t,), as in `Entry`.
    """

    queries: Queries
    outcomes: np.ndarray
    noises: np.ndarray
    costs: np.ndarray
    is_earlier: np.ndarray
    is_passive: np.ndarray
    is_out_of_domain: np.ndarray

    def insert(self, positions: list[int], entries: Sequence[Entry]) -> "Columns":
        """Return the columns with more entries, each before the entry at its place."""
        queries = stack([self.queries[:0], *(each.query for each in entries)])
        more: tuple[list[float], ...] = (
            [each.outcome for each in entries],
            [np.nan if each.noise is None else each.noise for each in entries],
            [each.cost for each in entries],
            [each.is_earlier for each in entries],
            [each.is_passive for each in entries],
            [each.is_out_of_domain for each in entries],
        )
        joined = Queries(
            np.insert(np.asarray(self.queries.mask), positions, np.asarray(queries.mask), axis=0),
            np.insert(np.asarray(self.queries.value), positions, np.asarray(queries.value), axis=0),
        )
        pairs = zip(self[1:], more, strict=True)
        arrays = (np.insert(np.asarray(each), positions, new) for each, new in pairs)
        return Columns(joined, *arrays)


def no_columns(problem: Problem) -> Columns:
    """Return the columns of an empty ledger."""
    nothing, is_none = np.zeros(0), np.zeros(0, bool)
    return Columns(problem.baseline()[:0], nothing, nothing, nothing, is_none, is_none, is_none)


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


@dataclass(frozen=True, eq=False)
class State:
    """All that is known at some point of an optimization; immutable.

    candidates: the interventions to choose from, with their costs. base: the posterior before any
    entry of the ledger. ledger: all that was told, in canonical order. posterior, surrogate: what
    is believed now. columns: the ledger as arrays. takes_rows: whether the posterior can learn from
    whole rows of experiments. lost: what experiments without an outcome have cost.
    """

    problem: Problem
    settings: Settings
    candidates: Candidates
    base: Posterior
    ledger: tuple[Entry, ...]
    posterior: Posterior
    surrogate: Surrogate
    columns: Columns
    takes_observations: bool = True
    lost: float = 0.0

    @property
    def spent(self) -> float:
        """What all experiments have cost."""
        return math.fsum([self.lost, *self.columns.costs.tolist()])

    @cached_property
    def tried(self) -> Replicates:
        """The experiments of this optimization that may be recommended, replicates merged."""
        all_told = self.columns
        own = ~(all_told.is_earlier | all_told.is_passive | all_told.is_out_of_domain)
        queries, values, noises = (
            all_told.queries[own],
            all_told.outcomes[own],
            all_told.noises[own],
        )
        if np.isnan(noises).any():
            noises = np.where(np.isnan(noises), self.noises(queries), noises)
        return merge_replicates(queries, values, noises)

    @property
    def expects_observations(self) -> bool:
        """Whether the next experiment's whole row will teach the posterior."""
        if not (self.settings.uses_observations and self.takes_observations):
            return False
        is_own = ~(self.columns.is_earlier | self.columns.is_passive)
        return all(self.ledger[at].row is not None for at in np.flatnonzero(is_own))

    def noise(self, query: Queries) -> float:
        """Return the variance of one outcome: given, or what the model implies."""
        return float(self.noises(query)[0])

    def noises(self, queries: Queries) -> np.ndarray:
        """Return the variances of outcomes of M queries, (M,): given, or what the model implies."""
        given = self.settings.noise
        if given is None:
            return self.posterior.outcome_variances(queries)
        return np.full(len(queries), float(given))


def begin(
    post: Posterior,
    settings: Settings,
    experiments: Data | None = None,
    *,
    takes_observations: bool = True,
    stacklevel: int | None = 1,
) -> State:
    """Return the state before the first question.

    experiments: rows of earlier experiments that the posterior did not use; their outcomes are told
    to the surrogate, with the model's noise. Those that it cannot use are left out with a warning.
    takes_rows: whether the posterior can learn from whole rows of experiments. stacklevel: where
    the warning points to, 1 is the caller of this function; None says nothing.
    """
    post = post if settings.accept is None else post.accept(settings.accept)
    maker = settings.maker
    surrogate, own_sets = maker.begin(post), offered(maker, "sets")
    candidates = find_candidates(post, None if own_sets is None else own_sets(post.problem))
    problem, nothing = post.problem, no_columns(post.problem)
    state = State(
        problem, settings, candidates, post, (), post, surrogate, nothing, takes_observations
    )
    if experiments is None or not len(experiments):
        return state
    queries, values = experiments.queries, experiments.outcomes
    is_out_of_domain = ~problem.feasible(queries)
    state = take_measured(state) if is_out_of_domain.any() else state
    entries, left_out = [], []
    for _, rows in split_by_set(queries):
        try:
            state.surrogate.predict(queries[rows])
        except (DomainError, ExplorationError) as error:
            left_out += [str(error)] * len(rows)
            continue
        told = zip(
            queries[rows], values[rows].tolist(), is_out_of_domain[rows].tolist(), strict=True
        )
        entries += [
            Entry(query, value, None, is_earlier=True, is_out_of_domain=foreign)
            for query, value, foreign in told
        ]
    if left_out and stacklevel is not None:
        message = (
            f"{len(left_out)} of {len(experiments)} earlier experiments are left out; the first: "
            f"{left_out[0]}"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)
    return tell(state, entries)


def take_measured(state: State) -> State:
    """Return the same state, which learns from interventions that may not be proposed too."""
    if state.problem.takes_measured:
        return state
    problem = for_measured(state.problem)
    opened = replace(state, problem=problem, base=replace(state.base, problem=problem))
    posterior, surrogate = _believe(opened)
    return replace(opened, posterior=posterior, surrogate=surrogate)


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
    position: int = 0,
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
        surrogate = surrogate.fantasize(query, state.noise(query))
        spent.append(float(state.problem.cost(query)[0]))
    count = int((~state.columns.is_earlier).sum()) + len(spent)
    first = position + len(spent) - 1
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
            rows=state.expects_observations,
            exact=state.settings.noise == 0,
        )
        rule = prepare(state.settings.rule, context)
        limit = None if state.settings.budget is None else pays
        known = tried if state.settings.noise == 0 else None  # asking again teaches nothing
        search = partial(
            find_best, candidates.space, surrogate, affordable=limit, tried=tried, known=known
        )
        if known is None or not len(known):
            found = search(rule=rule)
        else:
            rule, found = search_beyond(search, rule, context, state.tried)
        mean, sd = (float(part[0]) for part in surrogate.predict(found.query))
        bound = found.value if objective == "max" else -found.value
        why = f"{rule.name}: the best of {found.how}"
        suggestion = Suggestion(found.query, mean, sd, bound, found.cost, why)
        chosen.append(Choice(suggestion, context, rule, pays))
        spent.append(found.cost)
        if at + 1 < n and not trait(rule, "is_random"):
            surrogate = surrogate.fantasize(found.query, state.noise(found.query))
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
        if entry.is_out_of_domain and entry.row is not None and _uses_observations(state)
        else entry._replace(query=state.problem.require(entry.query))
        for entry in entries
    ]
    new = sorted(checked, key=Entry.order)
    positions = [bisect_right(state.ledger, each.order(), key=Entry.order) for each in new]
    ledger = list(state.ledger)
    for position, entry in zip(reversed(positions), reversed(new), strict=True):
        ledger.insert(position, entry)
    told = replace(state, ledger=tuple(ledger), columns=state.columns.insert(positions, new))
    posterior, surrogate = _believe(told)
    after = replace(told, posterior=posterior, surrogate=surrogate)
    after.tried  # noqa: B018  (refuses outcomes without noise that contradict each other)
    return after


def _believe(state: State) -> tuple[Posterior, Surrogate]:
    """Return the posterior and the surrogate after all that was told; each outcome is used once.

    Two hypotheses compete: rows teach the mechanisms, and only outcomes without a row the
    surrogate; or all outcomes are told to the surrogate, which adds a residual to the mechanisms.
    The first is kept until the evidence of the outcomes asks for a residual. Rows of which the
    surrogate may know nothing, those observed and foreign ones, teach the mechanisms always.
    """
    is_row = _are_rows(state)
    is_apart = state.columns.is_passive | (state.columns.is_out_of_domain & is_row)
    is_row = is_row & ~is_apart
    observed = _with_rows(state.base, _rows(state, is_apart))
    is_alone, alone = _rows_of_target(state, ~is_apart & ~is_row)
    if (is_row | is_alone).any() and state.settings.discrepancy == "auto":
        surrogate = _tell(state, observed, ~is_apart)
        if getattr(surrogate, "discrepancy", None) is not None:
            return observed, _relinearize(state, surrogate)
    posterior = _with_rows(observed, _rows(state, is_row) + alone)
    told = _tell(state, posterior, ~is_apart & ~is_row & ~is_alone)
    return posterior, _relinearize(state, told)


def _rows(state: State, which: np.ndarray) -> list[Data]:
    chosen = (state.ledger[at].row for at in np.flatnonzero(which))
    return [row for row in chosen if row is not None]


def _rows_of_target(state: State, which: np.ndarray) -> tuple[np.ndarray, list[Data]]:
    """Return which outcomes are rows of the target's mechanism by themselves, (t,), and the rows.

    So they are where all causes of the target were set, if the mechanisms say so. Their noise must
    be that of the mechanism.
    """
    told, nothing = state.columns, np.zeros(len(which), bool)
    read = offered(state.base.distribution.model, "target_observations")
    own = which & np.isnan(told.noises) & ~told.is_earlier
    if read is None or not (
        own.any() and state.takes_observations and state.settings.informs_mechanisms
    ):
        return nothing, []
    is_row, rows = read(told.queries, told.outcomes)
    found = own & is_row
    return found, [rows.select(found[is_row])] if found.any() else []


def _with_rows(post: Posterior, rows: Sequence[Data]) -> Posterior:
    if not rows:
        return post
    values, intervened = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("values", "intervened")
    )
    return post.update(Data(rows[0].nodes, rows[0].target, values, intervened))


def _tell(state: State, posterior: Posterior, which: np.ndarray) -> Surrogate:
    """Return a new surrogate that was told the chosen outcomes, (t,)."""
    surrogate, told = state.settings.maker.begin(posterior), state.columns
    if not which.any():
        return surrogate
    is_given = ~np.isnan(told.noises)
    for chosen, noises in ((which & ~is_given, None), (which & is_given, told.noises)):
        if chosen.any():
            given = None if noises is None else noises[chosen]
            surrogate = surrogate.tell(told.queries[chosen], told.outcomes[chosen], given)
    return surrogate


def _relinearize(state: State, surrogate: Surrogate) -> Surrogate:
    """Return the surrogate linearized where outcomes have moved theta, if the kernel adapts."""
    relinearize = offered(surrogate, "relinearize")
    if relinearize is None or not state.settings.relinearize:
        return surrogate
    found: Surrogate = relinearize()
    return found


def _uses_observations(state: State) -> bool:
    return state.settings.uses_observations and state.takes_observations


def _are_rows(state: State) -> np.ndarray:
    """Return which entries (t,) teach the posterior by their whole rows, not the surrogate."""
    told = state.columns
    if not _uses_observations(state):
        return np.zeros(len(told.outcomes), bool)
    has_row = np.array([entry.row is not None for entry in state.ledger], bool)
    return np.asarray(has_row & ~told.is_earlier & ~told.is_passive)


def recommend(state: State) -> Best:
    """Return the best intervention as `report` understands it; before any outcome the model's.

    The effects of those tried with exact outcomes are known: the best of these is recommended.
    """
    tried = state.tried
    if state.settings.report == "model" or not len(tried.counts):
        rule = ConfidenceBound(0.0)
        among = find_best(state.candidates.space, state.surrogate, rule, tried=tried.queries).query
    else:
        among = tried.queries
    predicted = state.surrogate.predict(among)
    if not np.isfinite(predicted.mean).all():
        raise ModelError("the surrogate's predictions are not finite; nothing can be recommended")
    is_exact = state.settings.noise == 0 and state.settings.report != "model"
    is_observed = (is_exact or state.settings.report == "observed") and len(tried.means) > 0
    at = first_best(tried.means if is_observed else predicted.mean, state.problem.objective)
    return Best(among[at], float(predicted.mean[at]), float(predicted.sd[at]))
