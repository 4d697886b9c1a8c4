"""What is inferred of all effects, given the data and what came back since? What is predicted?

A `Start` is what is known before the first experiment: the posterior given the data, and the
earlier experiments that it could not use. A `State` is a posterior and a surrogate, a pure
function of a start and of the observations made since: their order and grouping do not matter.
Whole rows update the posterior of the mechanisms, where the settings say so and no model
discrepancy is needed, and the surrogate is conditioned on all other outcomes.

Each outcome of a log is predicted by the mechanisms alone, given the outcomes that count before it;
`diagnostics.sequential` judges how well they agree.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import Observations, Replicates, merge_replicates, no_outcomes
from causal_bo_ppl.diagnostics.sequential import (
    CONTRADICT,
    DISCREPANCY_IN_USE,
    GP_IN_USE,
    PredictionArrays,
    Surprise,
    calls_for_discrepancy,
    condition_in_order,
    precheck,
    select_for_warning,
)
from causal_bo_ppl.effect_estimates.moments import target_moments
from causal_bo_ppl.effect_estimates.table import central_interval
from causal_bo_ppl.errors import DomainError, ExplorationError, NumericalError, SettingsError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import trait as method_trait
from causal_bo_ppl.inference.nuts import OwnSampler, describe_effort
from causal_bo_ppl.inference.posterior import choose_family, method_for, read_method
from causal_bo_ppl.inputs import offered, read_share
from causal_bo_ppl.linalg import first_best, first_largest, sign_of
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import RegressionModel, Task
from causal_bo_ppl.optimization.acquisition import ConfidenceBound, Context
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    for_measured,
    show,
    split_by_set,
    stack,
    to_mappings,
)
from causal_bo_ppl.problem.search_space import Candidates, Space
from causal_bo_ppl.surrogates import Surrogate, SurrogateMaker
from causal_bo_ppl.surrogates.base import find_fault
from causal_bo_ppl.surrogates.discrepancy import (
    DECISIVE_BAYES_FACTOR,
    INTERVAL_SDS,
    contradicts,
    disappoints,
)

FEWEST_OBSERVATIONS = 8  # that the checks before the first experiment need
MOST_KEPT_STATES = 8
ROWS_PREDICTED_TOGETHER = 16  # the smallest batch for which programs are compiled
MANY_ROUNDS = 4_096  # from which on more are predicted together
LEAST_DECISIVE_GAIN = 0.02  # sds of the target by which the model's best must be better
BY_OUTCOMES, BY_MODEL, BY_NOTHING = "outcomes", "model", "nothing"  # where what is best comes from


@dataclass(frozen=True, eq=False)
class Start:
    """What is known before the first experiment; immutable.

    problem, settings: what is optimized and how; the settings ask for a model discrepancy where
    the observations contradict the model. candidates: the interventions to choose from, with their
    costs. post: the posterior given the data. earlier: experiments in the data that the posterior
    did not use. takes_observations: whether the posterior can be updated by whole rows of
    experiments. checks: what was checked. omitted: why earlier experiments could not be used.
    """

    problem: Problem
    settings: Settings
    candidates: Candidates
    post: Posterior
    earlier: Observations
    takes_observations: bool = True
    checks: tuple[Check, ...] = ()
    omitted: tuple[str, ...] = ()

    @property
    def uses_observations(self) -> bool:
        """Whether whole rows of experiments may update the posterior of the mechanisms."""
        return self.settings.uses_observations and self.takes_observations


def begin(
    post: Posterior,
    settings: Settings,
    experiments: Data | None = None,
    *,
    takes_observations: bool = True,
) -> Start:
    """Return what is known before the first experiment, given a posterior; see `Start`.

    experiments: earlier ones that the posterior did not use; the surrogate is conditioned on their
    outcomes, with the noise that the model implies.
    """
    post = post if settings.accept is None else post.accept(settings.accept)
    problem, own_sets = post.problem, offered(settings.maker, "sets")
    sets = (None if own_sets is None else own_sets(problem)) or post.sets
    is_affine = post.distribution.response.is_affine
    candidates = Space(problem, sets).candidates(at_vertices=is_affine)
    nothing = Observations.of(problem.graph.nodes, problem.target)
    start = Start(problem, settings, candidates, post, nothing, takes_observations)
    if experiments is None or not len(experiments):
        return start
    queries, omitted = experiments.queries, list[str]()
    is_outside = ~problem.feasible(queries)
    base = take_measured(post) if is_outside.any() else post
    surrogate, is_used = settings.maker.begin(base), np.ones(len(queries), bool)
    for _, positions in split_by_set(queries):
        if fault := find_fault(surrogate, queries[positions]):
            omitted += [fault] * len(positions)
            is_used[positions] = False
    columns = {"outcome": experiments.outcomes, "is_out_of_domain": is_outside}
    earlier = Observations.of(problem.graph.nodes, problem.target, queries, **columns)
    return replace(start, earlier=earlier.select(is_used), omitted=tuple(omitted))


def begin_from_data(
    problem: Problem,
    data: Data,
    settings: Settings,
    key: jax.Array,
    given: Posterior | None = None,
) -> Start:
    """Fit the data, unless a posterior is given, and check what the surrogate relies on, once."""
    if given is None:
        post, experiments, takes = fit_data(problem, data, settings, jax.random.fold_in(key, 1))
    else:
        post, experiments, takes = given, data.select(slice(0, 0)), can_update(given)
    start = begin(post, settings, experiments, takes_observations=takes)
    checks = () if post.chosen is None else (post.chosen,)
    relies = offered(settings.maker.begin(start.post), "without_discrepancy") is not None
    relies = relies and post.distribution.model is not None
    if relies and post.n_observations >= FEWEST_OBSERVATIONS:
        checks = (*checks, *precheck(start.post, jax.random.fold_in(key, 2)))
    adjusted = settings.with_discrepancy(calls_for_discrepancy(checks))
    return replace(start, settings=adjusted, checks=checks)


def can_update(post: Posterior) -> bool:
    """Return whether whole rows of experiments can update a posterior."""
    if post.recipe is None or isinstance(post.recipe.method, OwnSampler):
        return False  # draws that were made elsewhere
    takes = offered(read_mechanisms(post.recipe.mechanisms), "takes_experiments")
    can_use = takes is None or takes(post.problem)
    return bool(can_use and method_trait(post.recipe.method, "takes_experiments"))


def fit_data(
    problem: Problem, data: Data, settings: Settings, key: jax.Array
) -> tuple[Posterior, Data, bool]:
    """Return the posterior, the earlier experiments that it did not use, and whether it could."""
    task = Task(problem, data, no_outcomes(len(problem.graph.nodes)), settings.prior)
    family, choice = choose_family(task, read_mechanisms(settings.mechanisms))
    default = offered(family, "default_method")
    usual = "laplace" if default is None else default(problem)
    method = method_for(family, choice, read_method(settings.inference or usual))
    options = {"mechanisms": family, "method": method, "prior": settings.prior, "key": key}
    takes = offered(family, "takes_experiments")
    can_use = takes is None or takes(problem)
    can_update = bool(method_trait(method, "takes_experiments") and can_use)
    is_used = data.is_observational | can_update
    if settings.learn_from == "rows" and not can_update:
        why = (
            f"{method.name}, the default here, learns from observational data only"
            if can_use
            else f"latent causes join {problem.target!r} to intervened variables"
        )
        raise SettingsError(
            f'{why}, so whole rows of experiments cannot be used; take learn_from="target"'
        )
    post = replace(fit(problem, data.select(is_used), **options), chosen=choice)
    return post, data.select(~is_used), can_update


def expect_effort(problem: Problem, data: Data, settings: Settings) -> str:
    """Return that the first fit is expected to take minutes; "" where it is not."""
    if settings.inference is None:
        return ""
    method = read_method(settings.inference)
    effort = describe_effort(method, len(data), len(problem.graph.nodes))
    if effort and settings.uses_observations and method_trait(method, "takes_experiments"):
        effort += ", and again after every whole row that is reported"
        effort += ' (not with learn_from="target")'
    return f'{effort}; fewer draws, or inference="laplace", take less' if effort else ""


def take_measured(post: Posterior) -> Posterior:
    """Return the same posterior, which also learns from interventions that are out of domain."""
    if post.problem.takes_measured:
        return post
    return replace(post, problem=for_measured(post.problem))


# The note wherever an interval of a chosen intervention is shown, in short and in full.
CHOICE_NOTE = "not adjusted for being chosen"
CHOICE_WARNING = (
    "The interval of a chosen intervention would be right if that intervention had been fixed "
    "beforehand. It does not account for the choice: what looks best is often something that is "
    "overestimated. Where many effects are weak and nearly equal, it holds the true effect less "
    "often than it says (in 77 to 84 % of the runs instead of 90 %, after one round on two "
    "networks). Outcomes that are measured after the choice are free of this."
)


@dataclass(frozen=True)
class Recommendation:
    """An intervention with the posterior mean and sd of its effect; `{}` is to set nothing.

    degrees: of Student's t, whose quantiles its interval needs. by: "outcomes", the best of the
    interventions that were tried, "model", the best of all by the surrogate, or "nothing", doing
    nothing. outcomes: how many of it are known. query: the intervention, a batch of one.
    best_tried: the best of those tried, where this is another one.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    degrees: float
    by: str
    outcomes: int
    query: Queries = field(repr=False, compare=False)
    best_tried: "Recommendation | None" = None

    @property
    def tried(self) -> "Recommendation | None":
        """The best of the interventions that were tried; None before any outcome."""
        return self if self.by == BY_OUTCOMES else self.best_tried

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen.

        Where many effects are weak and nearly equal, the interval of the one with the best mean
        holds the true effect less often than `level`.
        """
        return central_interval(self.mean, self.sd, self.degrees, read_share("level", level))

    @property
    def text(self) -> str:
        """The intervention, its mean and its interval in words, and the best tried if another."""
        low, high = self.interval()
        what = show(self.intervention, 4) if self.intervention else "to set nothing"
        text = f"{what}: {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}]"
        text += f", {CHOICE_NOTE}" if self.intervention else ""
        return text if self.best_tried is None else f"{text}; best tried {self.best_tried.text}"

    def __repr__(self) -> str:
        return f"Recommendation({self.text}; by {self.by})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><p>{html.escape(CHOICE_WARNING)}</p>"


@dataclass(frozen=True, eq=False)
class State:
    """The posterior and the surrogate after some observations; immutable.

    start: what was known before. recorded: earlier experiments and all observed rows, in an order
    that depends on their content alone. is_earlier: (t,), which of them were known before the first
    experiment, cost nothing and are not recommended.
    """

    start: Start
    recorded: Observations
    is_earlier: np.ndarray
    posterior: Posterior
    surrogate: Surrogate

    @property
    def problem(self) -> Problem:
        """The problem, which takes interventions out of domain where there were some."""
        return self.posterior.problem

    @property
    def settings(self) -> Settings:
        """How experiments are chosen and learned from."""
        return self.start.settings

    @property
    def own(self) -> Observations:
        """What was observed since the start."""
        return self.recorded.select(~self.is_earlier)

    @cached_property
    def tried(self) -> Replicates:
        """The experiments since the start that may be recommended, replicates merged.

        Outcomes without noise that contradict each other are refused.
        """
        recorded = self.recorded
        is_own = ~(self.is_earlier | recorded.is_passive | recorded.is_out_of_domain)
        queries, noises = recorded.queries[is_own], _given_noises(self.start, recorded)[is_own]
        if np.isnan(noises).any():
            noises = np.where(np.isnan(noises), self.noises(queries), noises)
        return merge_replicates(queries, recorded.outcome[is_own], noises)

    @cached_property
    def disappointing(self) -> Queries:
        """What was tried and came out worse than the posterior of its effect still says.

        The mean outcome is more than 2.5 standard errors worse, so that another outcome would tell
        of the model rather than of a better intervention. None where there is no causal model.
        """
        is_causal = offered(self.surrogate, "without_discrepancy") is not None
        if not (is_causal and len(self.tried.counts)):
            return self.tried.queries[:0]
        effects = self.surrogate.predict(self.tried.queries)
        return self.tried.queries[disappoints(self.tried, effects, self.problem.objective)]

    @property
    def expects_observations(self) -> bool:
        """Whether the next experiment is expected to give a whole row that is learned from."""
        is_own = ~(self.is_earlier | self.recorded.is_passive)
        return self.start.uses_observations and bool(self.recorded.has_row[is_own].all())

    @property
    def degrees(self) -> float:
        """Degrees of freedom of Student's t, whose quantiles intervals of effects need."""
        return float(getattr(self.surrogate, "degrees", np.inf))

    @property
    def discrepancy(self) -> float:
        """The amplitude of the model discrepancy; 0 where there is none."""
        found = getattr(self.surrogate, "discrepancy", None)
        return 0.0 if found is None else float(found.amplitude)

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
        tried, candidates = self.tried.queries, self.start.candidates.queries
        among = candidates if by_model or self.is_by_model else tried
        known = self.surrogate, self.problem.objective, candidates, among, len(tried) + 1
        return Context(*known, noise=self.noises)

    @property
    def is_by_model(self) -> bool:
        """Whether the best intervention by the model is recommended, tried or not."""
        return self.settings.report == "model" or not len(self.tried.counts)

    @cached_property
    def best(self) -> Recommendation:
        """What is recommended by the criterion `report`.

        By "best" the best of those tried, or doing nothing where that is better, unless the best
        of all by the model is decisively better than it; before any outcome what is better of the
        last two.
        """
        found = self._of_model() if self.is_by_model else self._of_tried()
        if self.settings.report != "best":
            return found
        tried = None if self.is_by_model else found
        nothing = self._of_nothing()
        if nothing is not None and self._gain(nothing, found) > 0:
            found = nothing
        if tried is not None and self._may_be_better(found):
            other = self._of_model()
            found = other if self._is_decisively_better(other, found) else found
        return found if found is tried else replace(found, best_tried=tried)

    def _of_tried(self) -> Recommendation:
        """Return the best of those tried.

        The effects of interventions with exact outcomes are known: the best of these is taken.
        """
        is_observed = self.settings.noise == 0 or self.settings.report == "observed"
        means = self.tried.means if is_observed else None
        return self._best_of(self.tried.queries, BY_OUTCOMES, means)

    def _of_model(self) -> Recommendation:
        """Return the best of all interventions by the surrogate."""
        space, tried = self.start.candidates.space, self.tried.queries
        found = find_best(space, ConfidenceBound(0.0), self.context(by_model=True), tried=tried)
        return self._best_of(found.query, BY_MODEL)

    def _of_nothing(self) -> Recommendation | None:
        """Return doing nothing, estimated as by `effects`; None where nothing is known of it.

        Where the surrogate does not imply E[Y], it is the mean of the observational rows.
        """
        query, degrees = self.problem.baseline(), self.degrees
        values = self.posterior.data.outcomes[self.posterior.data.is_observational]
        try:
            mean, sd = (float(part[0]) for part in self.surrogate.predict(query))
        except (ExplorationError, DomainError):
            if len(values) < 2:
                return None
            mean, degrees = float(values.mean()), float(len(values) - 1)
            sd = float(values.std(ddof=1) / np.sqrt(len(values)))
        return Recommendation({}, mean, sd, degrees, BY_NOTHING, len(values), query)

    def _best_of(self, among: Queries, by: str, means: np.ndarray | None = None) -> Recommendation:
        """Return the best of some interventions, by their predicted means or by other ones."""
        predicted = self.surrogate.predict(among)
        if not np.isfinite(predicted.mean).all():
            raise NumericalError(
                "the surrogate's predictions are not finite; nothing can be recommended"
            )
        index = first_best(predicted.mean if means is None else means, self.problem.objective)
        [intervention] = to_mappings(among[index], self.problem.graph.nodes)
        mean, sd = float(predicted.mean[index]), float(predicted.sd[index])
        count = int(self.own.is_of(among[index]).sum())
        return Recommendation(intervention, mean, sd, self.degrees, by, count, among[index])

    def _gain(self, one: Recommendation, other: Recommendation) -> float:
        """Return by how much the posterior mean of one recommendation is better."""
        return sign_of(self.problem.objective) * (one.mean - other.mean)

    def _may_be_better(self, found: Recommendation) -> bool:
        """Return whether some candidate's mean is better than nearly all of an interval."""
        sign = sign_of(self.problem.objective)
        means = sign * self.surrogate.predict(self.start.candidates.queries).mean
        return bool(means.max() > sign * found.mean + INTERVAL_SDS * found.sd)

    def _is_decisively_better(self, one: Recommendation, other: Recommendation) -> bool:
        """Return whether the interval of 90 % of a contrast lies on the better side of 0.

        The mean must be better than all of the other's interval too, and by 2 % of the target's sd:
        a neighbour that is hardly better does not take the place of what was measured. The sd of a
        contrast with doing nothing is at most the sum of both.
        """
        spread, least = one.sd + other.sd, LEAST_DECISIVE_GAIN * target_moments(self.start.post).sd
        if other.by != BY_NOTHING:
            joint = self.surrogate.joint(stack([one.query, other.query])).covariance
            spread = math.sqrt(max(joint[0, 0] + joint[1, 1] - 2 * joint[0, 1], 0.0))
        width = central_interval(0.0, spread, self.degrees, 0.9)[1]
        return bool(self._gain(one, other) > max(least, width, other.interval()[1] - other.mean))

    def for_rows(self, rows: Observations) -> "State":
        """Return the state that predicts some rows, also where these are out of domain."""
        if self.problem.takes_measured or not rows.is_out_of_domain.any():
            return self
        return infer_state(self.start, self.own, takes_measured=True)


def _given_noises(start: Start, recorded: Observations) -> np.ndarray:
    """Return the variances of the outcomes' noise, (t,); NaN where the model implies them."""
    given = np.nan if start.settings.noise is None else float(start.settings.noise)
    return np.where(np.isnan(recorded.variance), given, recorded.variance)


def infer_state(start: Start, observations: Observations, *, takes_measured: bool = False) -> State:
    """Return the state after some observations.

    takes_measured: whether it predicts interventions out of domain, though there was none.

    Each outcome is used once, under one of two hypotheses: whole rows update the mechanisms and the
    surrogate is conditioned on the outcomes without a row; or the surrogate, which adds a model
    discrepancy to the mechanisms, is conditioned on all outcomes. The first is kept until the
    evidence of the outcomes favours a discrepancy, or until the mean outcome of an intervention
    contradicts its effect. Rows that the surrogate cannot use, those of passive observations and
    those out of domain, always update the mechanisms. An outcome that cannot be used raises a
    CausalBOError.
    """
    own = observations.canonical()
    earlier = start.earlier.canonical()
    recorded, settings = earlier.join(own), start.settings
    is_earlier = np.arange(len(recorded)) < len(earlier)
    takes_measured = takes_measured or bool(recorded.is_out_of_domain.any())
    base = take_measured(start.post) if takes_measured else start.post
    noises = np.where(is_earlier, np.nan, _given_noises(start, recorded))
    is_row = recorded.has_row & ~is_earlier & ~recorded.is_passive & start.uses_observations
    is_apart = recorded.is_passive | (recorded.is_out_of_domain & is_row)
    is_row &= ~is_apart

    def condition(
        post: Posterior, which: np.ndarray, maker: SurrogateMaker = settings.maker
    ) -> Surrogate:
        """Return a new surrogate that is conditioned on the chosen outcomes, (t,)."""
        surrogate, is_implied = maker.begin(post), np.isnan(noises)
        for chosen, given in ((which & is_implied, None), (which & ~is_implied, noises)):
            if chosen.any():
                variances = None if given is None else given[chosen]
                queries, outcomes = recorded.queries[chosen], recorded.outcome[chosen]
                surrogate = surrogate.condition(queries, outcomes, variances)
        return surrogate

    def inferred(post: Posterior, surrogate: Surrogate) -> State:
        """Return the state, linearized at its present theta where the settings ask for it."""
        relinearize = offered(surrogate, "relinearize") if settings.relinearize else None
        model = surrogate if relinearize is None else relinearize()
        found = State(start, recorded, is_earlier, post, model)
        found.tried  # noqa: B018  (refuses outcomes without noise that contradict each other)
        return found

    observed = _with_rows(base, recorded, is_apart)
    is_alone, alone = _rows_of_target(start, recorded, ~is_apart & ~is_row & ~is_earlier, noises)
    if (is_row | is_alone).any() and settings.discrepancy == "auto":
        surrogate = condition(observed, ~is_apart)
        if getattr(surrogate, "discrepancy", None) is not None:
            return inferred(observed, surrogate)
    posterior = _with_rows(observed, recorded, is_row, alone)
    found = inferred(posterior, condition(posterior, ~is_apart & ~is_row & ~is_alone))
    if not (is_row | is_alone).any() or settings.discrepancy != "auto":
        return found
    effects = found.surrogate.predict(found.tried.queries)
    if not contradicts(found.tried, effects, start.problem.objective):
        return found
    forced = replace(settings, discrepancy=True).maker  # rows do not explain what came out
    return inferred(observed, condition(observed, ~is_apart, forced))


def _rows_of_target(
    start: Start, recorded: Observations, which: np.ndarray, noises: np.ndarray
) -> tuple[np.ndarray, Data | None]:
    """Return which outcomes are rows of the target's mechanism by themselves, (t,), and the rows.

    This is so where all causes of the target were set, if the family of mechanisms offers it. Their
    noise must be that of the mechanism.
    """
    model, is_own = start.post.distribution.model, which & np.isnan(noises)
    if not isinstance(model, RegressionModel) or not (
        is_own.any() and start.takes_observations and start.settings.informs_mechanisms
    ):
        return np.zeros(len(which), bool), None
    is_row, rows = model.target_observations(recorded.queries, recorded.outcome)
    is_used = is_own & is_row
    return is_used, rows.select(is_used[is_row]) if is_used.any() else None


def _with_rows(
    post: Posterior, recorded: Observations, which: np.ndarray, others: Data | None = None
) -> Posterior:
    """Return the posterior updated by the chosen whole rows, and by others at the same time."""
    parts = [recorded.rows(which)] if (which & recorded.has_row).any() else []
    parts += [] if others is None else [others]
    if not parts:
        return post
    values, intervened = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("values", "intervened")
    )
    return post.update(Data(recorded.nodes, recorded.target, values, intervened))


def recommend(state: State) -> tuple[Recommendation, float]:
    """Return the best intervention, and the amplitude of the model discrepancy."""
    return state.best, state.discrepancy


@dataclass(frozen=True, eq=False)
class States:
    """The states after parts of a log; the last ones are kept, with numbers found from them.

    start: what was known before the first experiment.
    """

    start: Start
    _states: dict[int, State] = field(default_factory=dict, repr=False)
    _numbers: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)

    def of_start(self, start: Start) -> "States":
        """Return the states of the same start with other limits, with the numbers found so far."""
        return States(start, {}, dict(self._numbers))

    @property
    def before(self) -> State:
        """The state before any observation."""
        nodes, target = self.start.problem.graph.nodes, self.start.problem.target
        return self.after(Observations.of(nodes, target))

    def after(self, observations: Observations) -> State:
        """Return the state after some observations, found again or computed."""
        name = observations.digest
        found = self._states.pop(name, None) or infer_state(self.start, observations)
        self._states[name] = found  # the last used stands last
        if len(self._states) > MOST_KEPT_STATES:
            self._states.pop(next(name for name in self._states if name))
        return found

    def number(self, what: object, observations: Observations, find: Callable[[State], Any]) -> Any:
        """Return what `find` makes of the state after some observations, found once."""
        name = (what, observations.digest)
        return self.once(name, lambda: find(self.after(observations)))

    def once(self, name: tuple[object, int], find: Callable[[], Any]) -> Any:
        """Return what is found after the observations with a digest, (what, digest), found once."""
        if name not in self._numbers:
            self._numbers[name] = find()
        return self._numbers[name]

    def keep(self, name: tuple[object, int], found: Any) -> None:
        """Keep what was found before, under the name that `once` looks for."""
        self._numbers[name] = found


class Predicted(NamedTuple):
    """Outcomes and what was predicted for them.

    rows: the positions in the log, in the order in which they count. arrays: predictions and
    outcomes, in that order.
    """

    rows: np.ndarray
    arrays: PredictionArrays


NOTHING_PREDICTED = Predicted(np.zeros(0, int), PredictionArrays(*np.zeros((5, 0))))


def find_predictable(state: State, rows: Observations) -> np.ndarray:
    """Return which outcomes can be predicted, (t,): of experiments on sets that are known."""
    is_known = ~rows.is_out_of_domain
    for _, positions in split_by_set(rows.queries) if not is_known.all() else ():
        if rows.is_out_of_domain[positions].any():
            is_known[positions] |= not find_fault(state.surrogate, rows.queries[positions])
    return np.asarray(is_known & rows.is_observed & ~rows.is_passive)


def implied_noises(state: State, rows: Observations) -> np.ndarray:
    """Return the variances of the outcomes' noise, (t,): given, or what the model implies."""
    return np.where(np.isnan(rows.variance), state.noises(rows.queries), rows.variance)


def predict_outcomes(state: State, rows: Observations) -> PredictionArrays:
    """Predict each of some outcomes by the mechanisms alone, given the outcomes before it."""
    if not len(rows):
        return NOTHING_PREDICTED.arrays
    without = offered(state.surrogate, "without_discrepancy")
    surrogate = state.surrogate if without is None else without()
    noises, joint = implied_noises(state, rows), surrogate.joint(rows.queries)
    means, variances = condition_in_order(joint.mean, joint.covariance, rows.outcome, noises)
    degrees = np.full(len(rows), state.posterior.noise_degrees)
    return PredictionArrays(means, np.sqrt(variances), noises, rows.outcome, degrees)


def split_rounds(sequence: Observations, batch: int) -> list[tuple[slice, tuple[object, int]]]:
    """Return the parts of a sequence of observed rows that are predicted together, and their names.

    These are the rounds of a batch of experiments; from the 16th round on two of them and later
    more, so that few states are needed. What is predicted of a part is found by the hashes of its
    rows and of those before it.
    """
    before = np.cumsum(~sequence.is_passive) - ~sequence.is_passive  # experiments before each row
    rounds = before // batch
    most = max(ROWS_PREDICTED_TOGETHER // batch, 1)
    steps = [
        step if number >= MANY_ROUNDS else min(step, most)
        for number in rounds.tolist()
        for step in (1 << max(number.bit_length() - 4, 0),)
    ]
    starts = np.flatnonzero((before % batch == 0) & (rounds % np.array(steps, int) == 0))
    ends = np.append(starts[1:], len(sequence))[: len(starts)]
    parts = [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    digests = [0, *accumulate(sequence.hashes)]
    return [(part, (sequence.hashes[part], digests[part.start])) for part in parts]


def predict_log(states: States, log: Observations) -> Predicted:
    """Predict every outcome of a log, given the outcomes that count before it."""
    order, found = log.order, [NOTHING_PREDICTED]
    sequence = log.in_order
    for part, name in split_rounds(sequence, states.start.settings.batch):
        each = states.once(name, partial(_predict_part, states, sequence, part))
        found.append(each._replace(rows=order[part][each.rows]))
    rows, arrays = zip(*found, strict=True)
    joined = PredictionArrays(*(np.concatenate(column) for column in zip(*arrays, strict=True)))
    return Predicted(np.concatenate(rows), joined)


def _predict_part(states: States, sequence: Observations, part: slice) -> Predicted:
    """Return what is predicted of a part of a sequence; `rows` are positions in the part."""
    block = sequence.select(part)
    if block.is_passive.all():
        return NOTHING_PREDICTED
    state = states.after(sequence.select(slice(0, part.start))).for_rows(block)
    chosen = find_predictable(state, block)
    return Predicted(np.flatnonzero(chosen), predict_outcomes(state, block.select(chosen)))


def recall_predictions(
    states: States, log: Observations, written: Sequence[Sequence[float] | None]
) -> None:
    """Keep predictions that were written before, so that they need not be computed again.

    written: mean, sd, noise and degrees of every row of the log; None where it was not predicted.
    """
    order, sequence = log.order, log.in_order
    for part, name in split_rounds(sequence, states.start.settings.batch):
        found = [written[row] for row in order[part]]
        chosen = np.flatnonzero([each is not None for each in found])
        numbers = np.array([each for each in found if each is not None], float).reshape(-1, 4)
        mean, sd, noise, degrees = numbers.T
        outcomes = sequence.outcome[part][chosen]
        states.keep(name, Predicted(chosen, PredictionArrays(mean, sd, noise, outcomes, degrees)))


def find_surprise(
    state: State, queries: Queries, arrays: PredictionArrays, settings: Settings
) -> Surprise:
    """Return how outcomes agree with their predictions, and with what the surrogate made of them.

    settings: those that were given; those of the start may ask for a model discrepancy where
    observations contradict the graph.
    """
    log_factor = getattr(getattr(state.surrogate, "learned", None), "log_factor", -np.inf)
    is_found = bool(state.discrepancy) and state.settings.discrepancy == "auto"
    in_use = [] if settings.mechanisms == "linear" else [GP_IN_USE]
    in_use += [DISCREPANCY_IN_USE] if settings.discrepancy is not False else []
    found = (float(log_factor), is_found, state.start.checks, tuple(in_use))
    return Surprise(state.problem, queries, arrays, *found)


def find_warnings(state: State, surprise: Surprise, settings: Settings) -> dict[str, str]:
    """Return what an analyst is warned of, by kind; each kind is said once.

    settings: those that were given; those of the start may ask for a model discrepancy where
    observations contradict the graph.
    """
    found, start = dict[str, str](), state.start
    if start.omitted:
        count = len(start.omitted)
        found["earlier experiments"] = (
            f"{count} of {count + len(start.earlier)} earlier experiments are omitted; the first: "
            f"{start.omitted[0]}"
        )
    for check in select_for_warning(start.checks):
        message = f"before the first experiment: {check.text} {check.advice}".strip()
        found[f"check of the {check.name}"] = message
    without = offered(state.surrogate, "without_discrepancy")
    if without is None:
        return found
    log_factor = surprise.log_factor
    is_decisive = log_factor > np.log(DECISIVE_BAYES_FACTOR)
    if state.discrepancy and is_decisive and settings.discrepancy == "auto":
        found["discrepancy"] = (
            f"The outcomes of experiments are better explained with a model discrepancy of "
            f"{state.discrepancy:.3g} for every set (Bayes factor "
            f"{np.exp(min(log_factor, 200.0)):.3g}): from here on they update the surrogate, not "
            "the mechanisms; `surprise` and cb.diagnostics.check_linearity help to find what is "
            "wrong"
        )
    elif state.discrepancy and settings.discrepancy == "auto":
        tried, effects = state.tried, without().predict(state.tried.queries)
        is_new = start.settings.discrepancy == "auto"  # or the checks called for it before
        is_new = is_new or contradicts(tried, effects, state.problem.objective)
        if is_new and (tried.variances > 0).any():
            found["discrepancy"] = _describe_contradiction(state, effects.mean)
    if surprise.grade == CONTRADICT:
        found["surprise"] = surprise.message
    return found


def _describe_contradiction(state: State, means: np.ndarray) -> str:
    """Return which outcomes contradict the means that the mechanisms alone imply."""
    tried = state.tried
    errors = np.where(tried.variances > 0, np.sqrt(tried.variances), np.inf)
    worst = first_largest(np.abs(tried.means - means) / errors)
    [where] = to_mappings(tried.queries[worst], state.problem.graph.nodes)
    return (
        f"The outcomes of {show(where)} have the mean {tried.means[worst]:.4g}, where the "
        f"mechanisms imply {means[worst]:.4g}: a model discrepancy of {state.discrepancy:.3g} "
        "for every set is in use, and outcomes update the surrogate, not the mechanisms"
    )
