"""Which experiments are next, given a state, and why? Does another one pay?

`best_gain` and `gain_of_observations` are the expected improvement of the mean effect of the
recommendation by the best experiment and by more observations, in units of the target.

**Why.** What is recommended has the regret E[max_j f_j - f_best]. An outcome leaves E max_j f_j as
it is, on average, so that it is expected to reduce that regret by what it improves the mean of what
is recommended, which `lookahead` has in closed form. A whole row moves the means along several
directions; how far, relative to the best, has the covariance

    C_jk = (D_j,best + D_k,best - D_jk) / 2,  D_jk the variance of the move of E[f_j - f_k],

over all rows that may be observed. The moves are drawn as if they were normal; they are a mixture,
since some rows are more informative than others, so that the gain of a row is known up to a factor
near 1.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import norm, qmc

from causal_bo_ppl.effect_estimates.table import central_interval
from causal_bo_ppl.inputs import host_generator, offered, read_share
from causal_bo_ppl.linalg import first_largest, sign_of
from causal_bo_ppl.optimization.acquisition import (
    Context,
    LookAhead,
    PerCost,
    acquisition_values,
    best_position,
    comparable,
    trait,
)
from causal_bo_ppl.optimization.lookahead import CONTENDERS, promising
from causal_bo_ppl.optimization.maximize import Found, find_best
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import CHOICE_NOTE, CHOICE_WARNING, State
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import labels, next_to, set_label, show, stack, to_mappings
from causal_bo_ppl.surrogates.coupled import uncertainty_shares

MOST_RECOMMENDABLE = 128  # interventions among which the recommendation may lie
GAIN_QMC_POINTS = 256  # at which an expectation over further observations is averaged
GAIN_PAIRS = 4_096  # of outcomes that are drawn, each with its mirror image
LEAST_RELATIVE_GAIN = 1e-12  # of the largest mean: smaller gains are rounding
SAME_INTERVENTION = 0.05  # of a domain's width: as good as the same value
LEAST_SHOWN_PROBABILITY = 1e-3
LEAST_NAMED_SHARE = 0.05  # of an effect's variance, from which on a parameter is named
MOST_NAMED_PARAMETERS = 4  # in the text; the table has all


def choose(
    state: State,
    n: int = 1,
    pending: Sequence[Queries] = (),
    key: jax.Array | None = None,
    *,
    spent: float = 0.0,
    position: int = 0,
    is_limited: bool = True,
    fixed: Mapping[str, float] | None = None,
) -> tuple[Found, ...]:
    """Return the next experiments that can be paid for, at most n, the best first.

    Each is chosen as if the outcomes of those before it, and of pending ones, were as predicted; an
    acquisition that draws takes independent draws instead.

    pending: experiments under way, batches of one. key: for what is drawn. spent: what was paid so
    far. position: how many outcomes of this round are known. is_limited: whether the budget counts.
    fixed: values of variables that are held.
    """
    surrogate, settings, start = state.surrogate, state.settings, state.start
    settings = settings if is_limited else replace(settings, budget=None)
    tried, costs = state.tried.queries, [spent]
    for query in pending:
        surrogate = surrogate.fantasize(query, float(state.noises(query)[0]))
        costs.append(float(state.problem.cost(query)[0]))
    count = int((~state.is_earlier).sum()) + len(costs)
    first, chosen, begun = position + len(costs) - 1, list[Found](), list(pending)
    candidates = start.candidates
    if fixed is not None:
        is_affine = start.post.distribution.response.is_affine
        candidates = candidates.space.hold(fixed).candidates(at_vertices=is_affine)
    for index in range(n):
        pays = partial(is_affordable, settings, spent=tuple(costs))
        if not pays(candidates.costs).any():
            break
        context = replace(
            state.context(),
            surrogate=surrogate,
            round=count + index,
            key=None if key is None else jax.random.fold_in(key, first + index),
            informs_mechanisms=state.expects_observations,
            exact=settings.noise == 0,
        )
        found = find_best(
            candidates.space,
            settings.rule,
            context,
            affordable=None if settings.budget is None else pays,
            tried=tried,
            known=state.tried if context.exact else None,
            avoided=stack([tried, *begun]) if context.exact else None,  # they would tell the same
        )
        chosen.append(found)
        costs.append(found.cost)
        begun.append(found.query)
        if index + 1 < n and not trait(found.search.rule, "is_random"):
            surrogate = surrogate.fantasize(found.query, float(state.noises(found.query)[0]))
    return tuple(chosen)


def is_affordable(settings: Settings, costs: np.ndarray, spent: Sequence[float]) -> np.ndarray:
    """Return which costs (M,) the budget still pays for, (M,)."""
    budget = math.inf if settings.budget is None else settings.budget * (1 + 1e-12)  # sums round
    return np.asarray(costs + math.fsum(spent) <= budget)


def best_gain(state: State, *, by_model: bool = False) -> float:
    """Return what the best experiment is expected to improve, per unit of cost.

    by_model: whether any intervention may be recommended, or by `report` those tried.
    """
    context, tried = state.context(by_model=by_model), state.tried.queries
    space = state.start.candidates.space
    return find_best(space, PerCost(LookAhead()), context, tried=tried).value


def observes(state: State, spent: float, key: jax.Array) -> bool:
    """Return whether a round observes instead of running an experiment, by `Settings.observe`.

    spent: what was paid so far. key: that of the round, for a policy that observes at random.
    """
    policy = state.settings.observe
    observed = int(state.recorded.is_passive.sum())
    if policy is None or observed + policy.batch > policy.most:
        return False
    price = policy.batch * policy.cost
    if not is_affordable(state.settings, np.array([price]), (spent,))[0]:
        return False
    if policy.probability is not None:
        return bool(jax.random.uniform(jax.random.fold_in(key, 1)) < policy.probability)
    return gain_of_observations(state, policy.batch) / price > best_gain(state, by_model=True)


def gain_of_observations(state: State, count: int) -> float:
    """Return what a number of further observations is expected to improve.

    N observations leave a covariance Sigma of theta; n more leave about N / (N + n) of it, so that
    means of effects will move by a Gaussian with the covariance n / (N + n) of theirs. Any
    intervention may be recommended: among one that was tried, observations change nothing.
    """
    objective, surrogate = state.problem.objective, state.surrogate
    points = promising(surrogate, state.start.candidates.queries, objective, MOST_RECOMMENDABLE)
    mean = sign_of(objective) * surrogate.predict(points).mean
    sizes, directions = np.linalg.eigh(surrogate.joint(points).covariance)
    share = count / (state.posterior.n_observations + count)
    is_positive = sizes > 1e-12 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
    root = directions[:, is_positive] * np.sqrt(share * sizes[is_positive])
    if not root.shape[1]:
        return 0.0
    unit = qmc.Sobol(min(root.shape[1], qmc.Sobol.MAXDIM), rng=0).random(GAIN_QMC_POINTS)
    draws = norm.ppf(np.clip(unit, 1e-9, 1 - 1e-9))
    both = np.concatenate([draws, -draws]) @ root.T[: draws.shape[1]]
    return float(max((mean + both).max(axis=1).mean() - mean.max(), 0.0))


@dataclass(frozen=True, eq=False)
class Suggestion:
    """An experiment that a study suggests.

    intervention: {variable: value}; `{}` is to observe, without setting anything. mean, sd: of its
    effect. cost: of the experiment. number: of the experiment, from 1. bound: its acquisition
    value, in the direction of the target. observations: how many are suggested; more than 1 only
    where nothing is set. query: the intervention, a batch of one. study: the fingerprint of the
    study that made it. degrees: of Student's t, whose quantiles the interval needs. how: how it was
    chosen, in short. noise: the variance of the noise that is expected of its outcome; NaN where
    nothing is set.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    cost: float
    number: int
    bound: float
    observations: int
    query: Queries
    study: str
    degrees: float
    how: str
    explain: Callable[[], Any] | None = field(repr=False)
    noise: float = np.nan

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval of the effect; it ignores that this was chosen."""
        return central_interval(self.mean, self.sd, self.degrees, read_share("level", level))

    @cached_property
    def why(self) -> Any:
        """Why it is suggested, computed on first access; its `text` is shown.

        Of a suggestion that was copied to another process it is only how it was chosen.
        """
        return self.how if self.explain is None else self.explain()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process knows: all but the computation of `why`."""
        return {name: value for name, value in self.__dict__.items() if name != "why"} | {
            "explain": None
        }

    @property
    def label(self) -> str:
        """The intervention as a text."""
        nothing = f"collect {self.observations} observations"
        return show(self.intervention) if self.intervention else nothing

    def __repr__(self) -> str:
        low, high = self.interval()
        effect = f"expected {self.mean:.4g}, 90 % in [{low:.4g}, {high:.4g}]"
        effect += f", {CHOICE_NOTE}" if self.intervention else ""
        return f"Suggestion({self.number}: {self.label}; {effect}; cost {self.cost:g})"

    def _repr_html_(self) -> str:
        reasons = html.escape(self.why) if self.explain is None else self.why._repr_html_()
        return f"{Suggestions([self])._repr_html_()}{reasons}"


class Suggestions(tuple[Suggestion, ...]):
    """A batch of suggestions, the best first; shown as a table."""

    __slots__ = ()

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """Return a row for every suggestion, with a column do(X) for every variable that is set."""
        names = dict.fromkeys(name for each in self for name in each.intervention)
        rows = [
            {"set": set_label(tuple(each.intervention))}
            | {f"do({name})": each.intervention.get(name) for name in names}
            | {"mean": each.mean, "sd": each.sd}
            | dict(zip(("lower", "upper"), each.interval(level), strict=True))
            | {"cost": each.cost}
            for each in self
        ]
        return pd.DataFrame(rows, index=pd.Index([each.number for each in self], name="number"))

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(float_format="{:.4g}".format, na_rep="")
        return f"{table}<p>{html.escape(CHOICE_WARNING)}</p>"


class RegretReduction(NamedTuple):
    """An expected reduction of regret, in units of the target, and its Monte Carlo error.

    by_row: whether it is that of a whole row, not of the outcome alone, which has a closed form.
    """

    value: float
    standard_error: float = 0.0
    by_row: bool = False


class RunnerUp(NamedTuple):
    """The intervention with the second best acquisition value.

    intervention, mean, sd: as of a suggestion. gap: how much lower its acquisition value is.
    chance: the probability that its effect is the better one. is_log: whether acquisition values,
    and so their gap, are logarithms.
    """

    intervention: dict[str, float]
    mean: float
    sd: float
    gap: float
    chance: float
    is_log: bool = False


@dataclass(frozen=True, eq=False)
class Reasons:
    """Why an experiment is suggested; its text is shown.

    title: the intervention, and mean and interval of its effect. rule: the acquisition that chose
    it, and among what. gain: by how much its outcome, or its whole row, is expected to reduce the
    regret of what is recommended; None for a suggestion to observe. runner_up: the second best
    intervention; None where there is no other choice. cost: of the experiment. uncertainties: the
    share of the effect's variance that would vanish if a parameter were known, largest first; empty
    where the surrogate knows no parameters. note: earlier failures, and that the stopping rule is
    met. learns_from_rows: whether whole rows update the mechanisms; `gain` counts them where their
    effect is known.
    """

    title: str
    rule: str
    gain: RegretReduction | None
    runner_up: RunnerUp | None
    cost: float
    uncertainties: "pd.Series[float]" = field(default_factory=lambda: pd.Series(dtype=float))
    note: str = ""
    learns_from_rows: bool = False

    @property
    def text(self) -> str:
        """All reasons as a text."""
        return " ".join(self._sentences())

    def _sentences(self) -> list[str]:
        sentences = [self.title]
        if self.gain is not None:
            sentences.append(self._describe_gain(self.gain))
        sentences.append(f"Chosen by {self.rule}.")
        if self.runner_up is not None:
            sentences.append(_describe_runner_up(self.runner_up))
        sentences.append(f"It costs {self.cost:g}.")
        named = self.uncertainties[self.uncertainties >= LEAST_NAMED_SHARE]
        words = [f"{name} ({share:.0%})" for name, share in named.items()][:MOST_NAMED_PARAMETERS]
        if words:
            sentences.append(f"The uncertainty of its effect rests on {', '.join(words)}.")
        return [*sentences, self.note] if self.note else sentences

    def _describe_gain(self, gain: RegretReduction) -> str:
        what, more, about = "Its outcome", "", ""
        if gain.by_row:
            what, about = "Its whole row", "about "
        elif self.learns_from_rows:
            what, more = "Its outcome alone", "; a whole row is more informative"
        if not gain.value > 2 * gain.standard_error:
            return f"{what} is hardly expected to change the recommendation{more}."
        error = f" (+- {gain.standard_error:.1g})" if gain.standard_error else ""
        return (
            f"{what} is expected to reduce the regret of what is recommended by {about}"
            f"{gain.value:.3g}{error}{more}."
        )

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(part)}</li>" for part in self._sentences())
        return f"<ul>{lines}</ul>"


def _describe_runner_up(second: RunnerUp) -> str:
    gap = f"{-math.expm1(-second.gap):.0%}" if second.is_log else f"{second.gap:.3g}"
    is_small = second.chance < LEAST_SHOWN_PROBABILITY
    chance = f"below {LEAST_SHOWN_PROBABILITY:g}" if is_small else f"{second.chance:.2g}"
    return (
        f"Next came {show(second.intervention, 4)}, whose acquisition value is {gap} lower; its "
        f"effect, {second.mean:.4g} +- {second.sd:.2g}, is the better one with probability "
        f"{chance}."
    )


def expected_row_gain(context: Context, query: Queries, key: jax.Array) -> RegretReduction | None:
    """Return by how much a whole row of a query is expected to reduce the regret.

    None where whole rows do not update the mechanisms, or where their effect is not known. Of the
    interventions that may be recommended the 16 most promising count.
    """
    surrogate = context.surrogate
    find_moves = offered(surrogate, "mean_change_variances") if context.informs_mechanisms else None
    leading = promising(surrogate, context.contenders, context.objective, CONTENDERS)
    points = stack([leading, query])
    if find_moves is None or find_moves(query, points, query) is None:
        return None
    means = sign_of(context.objective) * surrogate.predict(points).mean
    best = first_largest(means[:-1])
    apart = np.stack([find_moves(query, points, other)[0] for other in points])
    moves = (apart[best][:, None] + apart[best][None, :] - apart) / 2
    sizes, directions = np.linalg.eigh((moves + moves.T) / 2)
    root = directions * np.sqrt(np.maximum(sizes, 0.0))
    draws = host_generator(key).standard_normal((GAIN_PAIRS, root.shape[1])) @ root.T
    up, down = ((means + each).max(axis=1) for each in (draws, -draws))
    gains = (up + down) / 2 - float(means[best])
    gains[gains <= LEAST_RELATIVE_GAIN * np.abs(means).max()] = 0.0
    # Where no drawn row changes the choice, a rarer one may: about once in as many draws.
    least = float(np.linalg.norm(np.ptp(root, axis=0))) / GAIN_PAIRS
    error = max(float(gains.std(ddof=1) / np.sqrt(GAIN_PAIRS)), least)
    return RegretReduction(float(gains.mean()), error, by_row=True)


def find_runner_up(choice: Found) -> RunnerUp | None:
    """Return the best candidate that is not close to what was chosen; None where there is none.

    Candidates are the vertices of all sets, and points inside where effects are nonlinear.
    """
    query, search, problem = choice.query, choice.search, choice.search.space.problem
    surrogate, is_log = search.context.surrogate, trait(search.rule, "is_log")
    is_affine = surrogate.post.distribution.response.is_affine
    candidates = search.space.candidates(at_vertices=is_affine).queries
    is_near = next_to(problem, candidates, query, SAME_INTERVENTION)
    others = candidates[np.flatnonzero(~is_near & search.pays(problem.cost(candidates)))]
    if not len(others):
        return None
    values = acquisition_values(search.rule, stack([query, others]), search.context)
    best, compared = best_position(search.rule, values[1:]), comparable(search.rule, values)
    pair = stack([query, others[best]])
    mean, sd = surrogate.predict(pair)
    joint = surrogate.joint(pair).covariance
    spread = float(np.sqrt(max(joint[0, 0] + joint[1, 1] - 2 * joint[0, 1], 0.0)))
    ahead = sign_of(problem.objective) * float(mean[1] - mean[0])
    chance = float(norm.cdf(ahead / spread)) if spread > 0 else float(ahead > 0)
    [intervention] = to_mappings(others[best], problem.graph.nodes)
    gap = max(float(compared[0] - compared[1 + best]), 0.0)
    return RunnerUp(intervention, float(mean[1]), float(sd[1]), gap, chance, is_log)


def explain(suggestion: Suggestion, choice: Found, key: jax.Array, note: str = "") -> Reasons:
    """Return why a choice was made, which a suggestion is about; its interval is that of 90 %."""
    context, query, problem = choice.search.context, choice.query, choice.search.space.problem
    [label], (low, high) = labels(problem, query), suggestion.interval()
    title = (
        f"{label}: E[{problem.target}] is expected at {suggestion.mean:.4g}, 90 % in "
        f"[{low:.4g}, {high:.4g}], {CHOICE_NOTE}."
    )
    gain = expected_row_gain(context, query, key)
    if gain is None:
        by_outcome = replace(context, informs_mechanisms=False)
        [value] = LookAhead().value(context.surrogate, query, by_outcome)
        gain = RegretReduction(float(value))
    shares = uncertainty_shares(context.surrogate, query)
    uncertainties = pd.Series(dtype=float)
    if shares is not None:
        names = pd.Index(context.surrogate.post.names, name="parameter")
        order = np.argsort(-shares[0].round(9), kind="stable")  # rounding does not decide
        uncertainties = pd.Series(shares[0], names, name="share").iloc[order]
    second, informs = find_runner_up(choice), context.informs_mechanisms
    found = (suggestion.how, gain, second, suggestion.cost, uncertainties, note, informs)
    return Reasons(title, *found)
