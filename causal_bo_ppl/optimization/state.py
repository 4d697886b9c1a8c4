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
    PredictionArrays,
    Surprise,
    condition_in_order,
    contradicts_graph,
    precheck,
    select_for_warning,
)
from causal_bo_ppl.effect_estimates.table import central_interval
from causal_bo_ppl.errors import NumericalError, SettingsError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.draws import trait as method_trait
from causal_bo_ppl.inference.nuts import OwnSampler, describe_effort
from causal_bo_ppl.inference.posterior import choose_family, method_for, read_method
from causal_bo_ppl.inputs import offered, read_share
from causal_bo_ppl.linalg import first_best, first_largest
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.optimization.acquisition import ConfidenceBound, Context
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import (
    for_measured,
    show,
    split_by_set,
    to_mappings,
)
from causal_bo_ppl.problem.search_space import Candidates, Space
from causal_bo_ppl.surrogates import Surrogate, SurrogateMaker
from causal_bo_ppl.surrogates.base import find_fault
from causal_bo_ppl.surrogates.discrepancy import DECISIVE_BAYES_FACTOR, contradicts

FEWEST_OBSERVATIONS = 8  # that the checks before the first experiment need
MOST_KEPT_STATES = 8
ROWS_PREDICTED_TOGETHER = 16  # the smallest batch for which programs are compiled
MANY_ROUNDS = 4_096  # from which on more are predicted together


@dataclass(frozen=True, eq=False)
class Start:
    """What is known before the first experiment; immutable.

    problem, settings: what is optimized and how; the settings ask for a model discrepancy where
    the observations contradict the graph. candidates: the interventions to choose from, with their
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
    adjusted = settings.with_discrepancy(contradicts_graph(checks))
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


class Recommendation(NamedTuple):
    """An intervention with the posterior mean and sd of its effect.

    degrees: of Student's t, whose quantiles its interval needs. by: "outcomes", the best of the
    interventions that were tried, or "model", the best of all by the model. tried: how many
    outcomes of it are known.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    degrees: float
    by: str
    tried: int

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen.

        Where many effects are weak and nearly equal, the interval of the one with the best mean
        holds the true effect less often than `level`.
        """
        return central_interval(self.mean, self.sd, self.degrees, read_share("level", level))

    @property
    def text(self) -> str:
        """The intervention, its mean and its interval in words."""
        what, (low, high) = show(self.intervention, 4), self.interval()
        return f"{what}: {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}], {CHOICE_NOTE}"

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
        """The best intervention by the criterion `report`; before any outcome the model's.

        The effects of interventions with exact outcomes are known: the best of these is taken.
        """
        tried, report, is_by_model = self.tried, self.settings.report, self.is_by_model
        if is_by_model:
            rule, space = ConfidenceBound(0.0), self.start.candidates.space
            among = find_best(space, rule, self.context(), tried=tried.queries).query
        else:
            among = tried.queries
        predicted = self.surrogate.predict(among)
        if not np.isfinite(predicted.mean).all():
            raise NumericalError(
                "the surrogate's predictions are not finite; nothing can be recommended"
            )
        is_observed = not is_by_model and (self.settings.noise == 0 or report == "observed")
        index = first_best(tried.means if is_observed else predicted.mean, self.problem.objective)
        [intervention] = to_mappings(among[index], self.problem.graph.nodes)
        mean, sd = float(predicted.mean[index]), float(predicted.sd[index])
        by, count = "model" if is_by_model else "outcomes", self.own.is_of(among[index]).sum()
        return Recommendation(intervention, mean, sd, self.degrees, by, int(count))

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
    if not contradicts(found.tried, found.surrogate.predict(found.tried.queries).mean):
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
    read = offered(start.post.distribution.model, "target_observations")
    is_own = which & np.isnan(noises)
    if read is None or not (
        is_own.any() and start.takes_observations and start.settings.informs_mechanisms
    ):
        return np.zeros(len(which), bool), None
    is_row, rows = read(recorded.queries, recorded.outcome)
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
    log_factor = getattr(getattr(state.surrogate, "learned", None), "log_factor", -np.inf)
    is_decisive = log_factor > np.log(DECISIVE_BAYES_FACTOR)
    if state.discrepancy and is_decisive and settings.discrepancy == "auto":
        found["discrepancy"] = (
            f"The outcomes of experiments are better explained with a model discrepancy of "
            f"{state.discrepancy:.3g} for every set (Bayes factor "
            f"{np.exp(min(log_factor, 200.0)):.3g}): from here on they update the surrogate, not "
            "the mechanisms; `surprise` and cb.diagnostics.check_linearity help to find what is "
            "wrong"
        )
    elif (
        state.discrepancy
        and settings.discrepancy == start.settings.discrepancy == "auto"
        and (state.tried.variances > 0).any()
    ):
        tried, means = state.tried, without().predict(state.tried.queries).mean
        errors = np.where(tried.variances > 0, np.sqrt(tried.variances), np.inf)
        worst = first_largest(np.abs(tried.means - means) / errors)
        [where] = to_mappings(tried.queries[worst], state.problem.graph.nodes)
        found["discrepancy"] = (
            f"The outcomes of {show(where)} have the mean {tried.means[worst]:.4g}, where the "
            f"mechanisms imply {means[worst]:.4g}: a model discrepancy of {state.discrepancy:.3g} "
            "for every set is in use, and outcomes update the surrogate, not the mechanisms"
        )
    if surprise.alarm is not None:
        found["surprise"] = surprise.message
    return found
