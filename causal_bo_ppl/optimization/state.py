"""What is known at some point of an optimization, and what should be tried next?

A `State` holds a ledger, the list of all recorded outcomes in canonical order, and the posterior
and the surrogate that follow from it. `ask` and `tell` are pure functions of a state. Posterior and
surrogate do not depend on the order or the grouping in which outcomes were recorded: whole rows
update the posterior of the mechanisms, where the settings say so and no model discrepancy is
needed, and the surrogate is then conditioned anew on all other outcomes.
"""

import html
import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import t as student

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DomainError,
    ExplorationError,
    NumericalError,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count, read_share
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

MOST_RECOMMENDABLE = 128  # interventions among which the recommendation may lie


class Entry(NamedTuple):
    """One outcome in the ledger.

    query: the intervention, a batch of one. outcome: the value of the target. noise: the variance
    of its noise; None where it is what the model implies. row: the values of all variables, where
    they were measured. cost: what was paid. is_earlier: whether it was known before the
    optimization began, so that it cost nothing here and is not recommended. is_out_of_domain:
    whether its set or its values may not be proposed; it is data, and is not recommended.
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
        """Whether nothing was set: an observation, not an experiment."""
        return not np.asarray(self.query.mask).any()

    def order(self) -> tuple[object, ...]:
        """Return the sort key of the ledger: earlier entries first, then by what was set."""
        mask, value = np.asarray(self.query.mask)[0], np.asarray(self.query.value)[0]
        row = () if self.row is None else tuple(self.row.values[0].tolist())
        setting = (tuple((~mask).tolist()), tuple(np.where(mask, value, 0.0).tolist()))
        noise = (self.noise is not None, self.noise or 0.0)
        return (not self.is_earlier, *setting, self.outcome, *noise, row)


class LedgerArrays(NamedTuple):
    """The entries of a ledger as arrays, so that a round does not read them one by one.

    queries: t interventions. outcomes, costs: (t,). noises: (t,), NaN where the model implies them.
    is_earlier, is_passive, is_out_of_domain: (t,), as in `Entry`.
    """

    queries: Queries
    outcomes: np.ndarray
    noises: np.ndarray
    costs: np.ndarray
    is_earlier: np.ndarray
    is_passive: np.ndarray
    is_out_of_domain: np.ndarray

    @classmethod
    def of(cls, problem: Problem, entries: Sequence[Entry]) -> "LedgerArrays":
        """Return the arrays of some entries, in their order."""
        return cls(
            stack([problem.baseline()[:0], *(each.query for each in entries)]),
            np.array([each.outcome for each in entries], float),
            np.array([np.nan if each.noise is None else each.noise for each in entries], float),
            np.array([each.cost for each in entries], float),
            np.array([each.is_earlier for each in entries], bool),
            np.array([each.is_passive for each in entries], bool),
            np.array([each.is_out_of_domain for each in entries], bool),
        )

    def insert(self, positions: list[int], new: "LedgerArrays") -> "LedgerArrays":
        """Return the arrays with further entries, each before the entry at its position."""

        def join(old: np.ndarray, added: np.ndarray) -> np.ndarray:
            return np.insert(np.asarray(old), positions, np.asarray(added), axis=0)

        joined: LedgerArrays = jax.tree.map(join, self, new)
        return joined


class Proposal(NamedTuple):
    """An intervention that the acquisition proposes.

    mean, sd: of its effect. bound: its acquisition value in the direction of the target: the
    confidence bound for "ucb". why: how it was chosen, as a text.
    """

    query: Queries
    mean: float
    sd: float
    bound: float
    cost: float
    why: str = ""


class Choice(NamedTuple):
    """A proposal, and what it was found with.

    context: what the acquisition knew. rule: the acquisition, prepared for this proposal.
    affordable: function of costs (M,) that returns which could be paid for, (M,).
    """

    suggestion: Proposal
    context: Context
    rule: Acquisition
    affordable: Affordable


class BestQuery(NamedTuple):
    """The recommended intervention, a batch of one, with mean and sd of its effect."""

    query: Queries
    mean: float
    sd: float


@dataclass(frozen=True, eq=False)
class State:
    """Everything that is known at some point of an optimization; immutable.

    candidates: the interventions to choose from, with their costs. base: the posterior before any
    entry of the ledger. ledger: all recorded outcomes, in canonical order. posterior, surrogate:
    the present models of the mechanisms and of all effects. columns: the ledger as arrays.
    takes_observations: whether the posterior can be updated by whole rows of experiments. lost: the
    cost of experiments without an outcome.
    """

    problem: Problem
    settings: Settings
    candidates: Candidates
    base: Posterior
    ledger: tuple[Entry, ...]
    posterior: Posterior
    surrogate: Surrogate
    columns: LedgerArrays
    takes_observations: bool = True
    lost: float = 0.0

    @property
    def spent(self) -> float:
        """The total cost of all experiments."""
        return math.fsum([self.lost, *self.columns.costs.tolist()])

    @cached_property
    def tried(self) -> Replicates:
        """The experiments of this optimization that may be recommended, replicates merged."""
        recorded = self.columns
        is_own = ~(recorded.is_earlier | recorded.is_passive | recorded.is_out_of_domain)
        queries, noises = recorded.queries[is_own], recorded.noises[is_own]
        if np.isnan(noises).any():
            noises = np.where(np.isnan(noises), self.noises(queries), noises)
        return merge_replicates(queries, recorded.outcomes[is_own], noises)

    @property
    def uses_observations(self) -> bool:
        """Whether whole rows of experiments update the posterior of the mechanisms."""
        return self.settings.uses_observations and self.takes_observations

    @property
    def expects_observations(self) -> bool:
        """Whether the next experiment is expected to give a whole row that is learned from."""
        if not self.uses_observations:
            return False
        is_own = ~(self.columns.is_earlier | self.columns.is_passive)
        return all(self.ledger[position].row is not None for position in np.flatnonzero(is_own))

    def noise(self, query: Queries) -> float:
        """Return the variance of one outcome: given, or what the model implies."""
        return float(self.noises(query)[0])

    def noises(self, queries: Queries) -> np.ndarray:
        """Return the variances of outcomes of M queries, (M,): given, or what the model implies."""
        given = self.settings.noise
        if given is None:
            return self.posterior.outcome_variances(queries)
        return np.full(len(queries), float(given))

    def context(self, *, by_model: bool = False) -> Context:
        """Return what an acquisition knows of the next experiment.

        by_model: whether any intervention may be recommended, or by `report` those tried.
        """
        tried, candidates = self.tried.queries, self.candidates.queries
        of_all = by_model or self.settings.report == "model" or not len(tried)
        among = candidates if of_all else tried
        number, objective = len(tried) + 1, self.problem.objective
        return Context(
            self.surrogate, objective, candidates, among, round=number, noise=self.noises
        )


def begin(
    post: Posterior,
    settings: Settings,
    experiments: Data | None = None,
    *,
    takes_observations: bool = True,
    stacklevel: int | None = 1,
) -> State:
    """Return the state before the first experiment.

    experiments: earlier experiments that the posterior did not use; the surrogate is conditioned on
    their outcomes, with the noise that the model implies. Those that it cannot use are omitted with
    a warning. takes_observations: whether the posterior can be updated by whole rows of
    experiments. stacklevel: where the warning points to, 1 is the caller of this function; None
    issues no warning.
    """
    post = post if settings.accept is None else post.accept(settings.accept)
    maker = settings.maker
    surrogate, own_sets = maker.begin(post), offered(maker, "sets")
    candidates = find_candidates(post, None if own_sets is None else own_sets(post.problem))
    problem, empty = post.problem, LedgerArrays.of(post.problem, ())
    models = (post, (), post, surrogate)
    state = State(problem, settings, candidates, *models, empty, takes_observations)
    if experiments is None or not len(experiments):
        return state
    queries, values = experiments.queries, experiments.outcomes
    is_out_of_domain = ~problem.feasible(queries)
    state = take_measured(state) if is_out_of_domain.any() else state
    entries, omitted = [], []
    for _, positions in split_by_set(queries):
        try:
            state.surrogate.predict(queries[positions])
        except (DomainError, ExplorationError) as error:
            omitted += [str(error)] * len(positions)
            continue
        parts = (queries[positions], values[positions], is_out_of_domain[positions])
        entries += [
            Entry(query, float(value), None, is_earlier=True, is_out_of_domain=bool(is_outside))
            for query, value, is_outside in zip(*parts, strict=True)
        ]
    if omitted and stacklevel is not None:
        message = (
            f"{len(omitted)} of {len(experiments)} earlier experiments are omitted; the first: "
            f"{omitted[0]}"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)
    return tell(state, entries)


def take_measured(state: State) -> State:
    """Return the same state, which also learns from interventions that are out of domain."""
    if state.problem.takes_measured:
        return state
    problem = for_measured(state.problem)
    base = replace(state.base, problem=problem)
    return _update_models(replace(state, problem=problem, base=base))


def ask(
    state: State, n: int = 1, pending: Iterable[Queries] = (), key: jax.Array | None = None
) -> tuple[Proposal, ...]:
    """Return the next experiments that can be paid for, at most n, the best first.

    Each is chosen as if the outcomes of those before it, and of pending ones, were as predicted; an
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
    """Return what `ask` proposes, with what each proposal was found with.

    position: how many outcomes of this round were recorded before; what is drawn depends on it and
    on the number of pending experiments.
    """
    surrogate, candidates = state.surrogate, state.candidates
    objective, tried = state.problem.objective, state.tried.queries
    spent = [state.spent]
    for query in pending:
        surrogate = surrogate.fantasize(query, state.noise(query))
        spent.append(float(state.problem.cost(query)[0]))
    count = int((~state.columns.is_earlier).sum()) + len(spent)
    first = position + len(spent) - 1
    chosen: list[Choice] = []
    for index in range(read_count("n", n, 1)):
        pays = partial(_is_affordable, state.settings, spent=tuple(spent))
        if not pays(candidates.costs).any():
            break
        context = replace(
            state.context(),
            surrogate=surrogate,
            round=count + index,
            key=None if key is None else jax.random.fold_in(key, first + index),
            informs_mechanisms=state.expects_observations,
            exact=state.settings.noise == 0,
        )
        rule = prepare(state.settings.rule, context)
        limit = None if state.settings.budget is None else pays
        known = tried if state.settings.noise == 0 else None  # replicates are not informative
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
        proposal = Proposal(found.query, mean, sd, bound, found.cost, why)
        chosen.append(Choice(proposal, context, rule, pays))
        spent.append(found.cost)
        if index + 1 < n and not trait(rule, "is_random"):
            surrogate = surrogate.fantasize(found.query, state.noise(found.query))
    return tuple(chosen)


def _is_affordable(settings: Settings, costs: np.ndarray, spent: Sequence[float]) -> np.ndarray:
    budget = math.inf if settings.budget is None else settings.budget * (1 + 1e-12)  # sums round
    return np.asarray(costs + math.fsum(spent) <= budget)


def tell(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after further outcomes.

    Raises
    ------
    CausalBOError
        If an outcome cannot be used; the state itself is unchanged.
    """
    checked = [
        entry
        if entry.is_out_of_domain and entry.row is not None and state.uses_observations
        else entry._replace(query=state.problem.require(entry.query))
        for entry in entries
    ]
    new = sorted(checked, key=Entry.order)
    positions = [bisect_right(state.ledger, each.order(), key=Entry.order) for each in new]
    ledger = list(state.ledger)
    for position, entry in zip(reversed(positions), reversed(new), strict=True):
        ledger.insert(position, entry)
    columns = state.columns.insert(positions, LedgerArrays.of(state.problem, new))
    after = _update_models(replace(state, ledger=tuple(ledger), columns=columns))
    after.tried  # noqa: B018  (refuses outcomes without noise that contradict each other)
    return after


def _update_models(state: State) -> State:
    """Return the state with the posterior and the surrogate after all entries of its ledger.

    Each outcome is used once, under one of two hypotheses: whole rows update the mechanisms and the
    surrogate is conditioned on the outcomes without a row; or the surrogate, which adds a model
    discrepancy to the mechanisms, is conditioned on all outcomes. The first is kept until the
    evidence of the outcomes favours a discrepancy. Rows that the surrogate cannot use, those of
    passive observations and those out of domain, always update the mechanisms.
    """
    recorded = state.columns
    has_row = np.array([entry.row is not None for entry in state.ledger], bool)
    is_row = has_row & ~recorded.is_earlier & ~recorded.is_passive & state.uses_observations
    is_apart = recorded.is_passive | (recorded.is_out_of_domain & is_row)
    is_row = is_row & ~is_apart
    observed = _with_rows(state.base, _rows(state, is_apart))
    is_alone, alone = _rows_of_target(state, ~is_apart & ~is_row)
    if (is_row | is_alone).any() and state.settings.discrepancy == "auto":
        surrogate = _condition(state, observed, ~is_apart)
        if getattr(surrogate, "discrepancy", None) is not None:
            return replace(state, posterior=observed, surrogate=_relinearize(state, surrogate))
    posterior = _with_rows(observed, _rows(state, is_row) + alone)
    surrogate = _condition(state, posterior, ~is_apart & ~is_row & ~is_alone)
    return replace(state, posterior=posterior, surrogate=_relinearize(state, surrogate))


def _rows(state: State, which: np.ndarray) -> list[Data]:
    chosen = (state.ledger[position].row for position in np.flatnonzero(which))
    return [row for row in chosen if row is not None]


def _rows_of_target(state: State, which: np.ndarray) -> tuple[np.ndarray, list[Data]]:
    """Return which outcomes are rows of the target's mechanism by themselves, (t,), and the rows.

    This is so where all causes of the target were set, if the family of mechanisms offers it. Their
    noise must be that of the mechanism.
    """
    recorded = state.columns
    read = offered(state.base.distribution.model, "target_observations")
    is_own = which & np.isnan(recorded.noises) & ~recorded.is_earlier
    if read is None or not (
        is_own.any() and state.takes_observations and state.settings.informs_mechanisms
    ):
        return np.zeros(len(which), bool), []
    is_row, rows = read(recorded.queries, recorded.outcomes)
    is_used = is_own & is_row
    return is_used, [rows.select(is_used[is_row])] if is_used.any() else []


def _with_rows(post: Posterior, rows: Sequence[Data]) -> Posterior:
    if not rows:
        return post
    values, intervened = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("values", "intervened")
    )
    return post.update(Data(rows[0].nodes, rows[0].target, values, intervened))


def _condition(state: State, posterior: Posterior, which: np.ndarray) -> Surrogate:
    """Return a new surrogate that is conditioned on the chosen outcomes, (t,)."""
    surrogate, recorded = state.settings.maker.begin(posterior), state.columns
    is_implied = np.isnan(recorded.noises)
    for chosen, noises in ((which & is_implied, None), (which & ~is_implied, recorded.noises)):
        if chosen.any():
            given = None if noises is None else noises[chosen]
            surrogate = surrogate.tell(recorded.queries[chosen], recorded.outcomes[chosen], given)
    return surrogate


def _relinearize(state: State, surrogate: Surrogate) -> Surrogate:
    """Return the surrogate linearized at its present theta, where the settings ask for it."""
    relinearize = offered(surrogate, "relinearize")
    if relinearize is None or not state.settings.relinearize:
        return surrogate
    found: Surrogate = relinearize()
    return found


def recommend(state: State) -> BestQuery:
    """Return the best intervention by the criterion `report`; before any outcome the model's.

    The effects of interventions with exact outcomes are known: the best of these is recommended.
    """
    tried = state.tried
    if state.settings.report == "model" or not len(tried.counts):
        rule = ConfidenceBound(0.0)
        among = find_best(state.candidates.space, state.surrogate, rule, tried=tried.queries).query
    else:
        among = tried.queries
    predicted = state.surrogate.predict(among)
    if not np.isfinite(predicted.mean).all():
        raise NumericalError(
            "the surrogate's predictions are not finite; nothing can be recommended"
        )
    is_exact = state.settings.noise == 0 and state.settings.report != "model"
    is_observed = (is_exact or state.settings.report == "observed") and len(tried.means) > 0
    index = first_best(tried.means if is_observed else predicted.mean, state.problem.objective)
    return BestQuery(among[index], float(predicted.mean[index]), float(predicted.sd[index]))


# The note wherever an interval of a chosen intervention is shown, in short and in full.
CHOICE_NOTE = "not adjusted for being chosen"
CHOICE_WARNING = (
    "The interval of a chosen intervention would be right if that intervention had been fixed "
    "beforehand. It does not account for the choice: what looks best is often something that is "
    "overestimated. Where many effects are weak and nearly equal, it holds the true effect less "
    "often than it says (in 77 to 84 % of the runs instead of 90 %, after one round on two "
    "networks). Outcomes that are measured after the choice are free of this."
)


class Recommendation(NamedTuple):
    """An intervention with the posterior mean and sd of its effect.

    degrees: of Student's t, whose quantiles its interval needs. by: "outcomes", the best of the
    interventions that were tried, or "model", the best of all by the model.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    degrees: float = np.inf
    by: str = "outcomes"

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen.

        Where many effects are weak and nearly equal, the interval of the one with the best mean
        holds the true effect less often than `level`.
        """
        width = float(student.ppf((1 + read_share("level", level)) / 2, self.degrees)) * self.sd
        return self.mean - width, self.mean + width

    @property
    def text(self) -> str:
        """The intervention, its mean and its interval in words."""
        words = ", ".join(f"{name} = {value:.4g}" for name, value in self.intervention.items())
        low, high = self.interval()
        return f"do({words}): {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}], {CHOICE_NOTE}"

    def __repr__(self) -> str:
        return f"Recommendation({self.text}; by {self.by})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><p>{html.escape(CHOICE_WARNING)}</p>"


def recommendation(state: State) -> Recommendation:
    """Return the recommendation of a state."""
    best, degrees = recommend(state), float(getattr(state.surrogate, "degrees", np.inf))
    [intervention] = state.problem.interventions(best.query)
    is_model = state.settings.report == "model" or not len(state.tried.counts)
    by = "model" if is_model else "outcomes"
    return Recommendation(intervention, best.mean, best.sd, degrees, by)
