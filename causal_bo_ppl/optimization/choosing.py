"""Which experiments are next, given a state? Does another one pay, or is it better to observe?

`best_gain` and `gain_of_observations` are the expected improvement of the mean effect of the
recommendation by the best experiment and by more observations, in units of the target.
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

from causal_bo_ppl.linalg import sign_of
from causal_bo_ppl.optimization.acquisition import Acquisition, Context, LookAhead, PerCost, trait
from causal_bo_ppl.optimization.lookahead import promising
from causal_bo_ppl.optimization.maximize import Affordable, find_best
from causal_bo_ppl.optimization.settings import Settings, Stop
from causal_bo_ppl.optimization.state import CHOICE_NOTE, CHOICE_WARNING, Recommendation, State
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import set_label, stack

MOST_RECOMMENDABLE = 128  # interventions among which the recommendation may lie
GAIN_QMC_POINTS = 256  # at which an expectation over further observations is averaged


class Choice(NamedTuple):
    """An intervention that the acquisition proposes, and what it was found with.

    mean, sd: of its effect. bound: its acquisition value in the direction of the target: the
    confidence bound for "ucb". how: how it was chosen, as a text. context: what the acquisition
    knew. rule: the acquisition by which it is the best. affordable: function of costs (M,) that
    returns which could be paid for, (M,). candidates: the interventions that were compared first.
    note: what is remarkable about the search, mostly empty.
    """

    query: Queries
    mean: float
    sd: float
    bound: float
    cost: float
    how: str
    context: Context
    rule: Acquisition
    affordable: Affordable
    candidates: Queries
    note: str = ""


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
) -> tuple[Choice, ...]:
    """Return the next experiments that can be paid for, at most n, the best first.

    Each is chosen as if the outcomes of those before it, and of pending ones, were as predicted; an
    acquisition that draws takes independent draws instead.

    Parameters
    ----------
    state:
        What is inferred of all effects.
    n:
        How many experiments.
    pending:
        Experiments under way, batches of one.
    key:
        For what is drawn, another for each experiment.
    spent:
        What was paid so far.
    position:
        How many outcomes of this round are known; what is drawn depends on it and on the number of
        pending experiments.
    is_limited:
        Whether the budget counts.
    fixed:
        Values of variables that are held.
    """
    surrogate, settings, start = state.surrogate, state.settings, state.start
    settings = settings if is_limited else replace(settings, budget=None)
    objective, tried, costs = state.problem.objective, state.tried.queries, [spent]
    for query in pending:
        surrogate = surrogate.fantasize(query, float(state.noises(query)[0]))
        costs.append(float(state.problem.cost(query)[0]))
    count = int((~state.is_earlier).sum()) + len(costs)
    first, chosen, begun = position + len(costs) - 1, list[Choice](), list(pending)
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
        mean, sd = (float(part[0]) for part in surrogate.predict(found.query))
        bound = found.value if objective == "max" else -found.value
        how = f"{found.rule.name}: the best of {found.how}"
        numbers = found.query, mean, sd, bound, found.cost
        knew = context, found.rule, pays, candidates.queries
        chosen.append(Choice(*numbers, how, *knew, found.note))
        costs.append(found.cost)
        begun.append(found.query)
        if index + 1 < n and not trait(found.rule, "is_random"):
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


def explain_stop(stop: Stop, gain: float, idle: int) -> str:
    """Return why to stop, as a text; empty where the rule does not ask for it.

    gain: what the best experiment is expected to improve, per unit of cost. idle: in how many
    successive rounds that was less than the gain of the rule.
    """
    if idle < stop.patience:
        return ""
    return (
        f"no experiment paid for its cost in {idle} rounds: one more outcome would improve the "
        f"recommendation by {gain:.3g} per unit of cost, less than {stop.gain:g}"
    )


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

    Attributes
    ----------
    intervention:
        {variable: value}; `{}` is to observe, without setting anything.
    mean, sd:
        Posterior mean and sd of its effect; `interval` returns an interval.
    cost:
        The cost of the experiment.
    number:
        The number of the experiment, from 1.
    bound:
        Its acquisition value, in the direction of the target.
    observations:
        How many observations are suggested; more than 1 only where nothing is set.
    query:
        The intervention, a batch of one.
    study:
        The fingerprint of the study that made it.
    degrees:
        Of Student's t, whose quantiles the interval needs.
    how:
        How it was chosen, in short.
    noise:
        The variance of the noise that is expected of its outcome, known for those of a run.
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
        effect = Recommendation(self.intervention, self.mean, self.sd, self.degrees)
        return effect.interval(level)

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
        words = ", ".join(f"{name} = {value:.6g}" for name, value in self.intervention.items())
        return f"do({words})" if words else f"collect {self.observations} observations"

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
