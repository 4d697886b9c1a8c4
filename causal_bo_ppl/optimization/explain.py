"""Why is this experiment suggested? Its expected gain, its runner-up and its uncertainties.

What is recommended has the regret E[max_j f_j - f_best]. An outcome y leaves E max_j f_j as it is,
on average, so that it is expected to reduce that regret by E_y max_j E[f_j | y] - max_j E f_j: the
outcome is drawn from its predictive, and every mean follows it by Cov(f_j, f(z)) / Var y. A whole
row moves the means along several directions; how far, relative to the best, has the covariance

    C_jk = (D_j,best + D_k,best - D_jk) / 2,  D_jk the variance of the move of E[f_j - f_k],

over all rows that may be observed. The moves are drawn as if they were normal; they are a mixture,
since some rows are more informative than others, so that the gain of a row is known up to a factor
near 1.
"""

import html
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import norm

from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import first_largest, sign_of
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.acquisition import (
    Context,
    acquisition_values,
    best_position,
    comparable,
    trait,
)
from causal_bo_ppl.optimization.choosing import MOST_RECOMMENDABLE, Choice
from causal_bo_ppl.optimization.lookahead import CONTENDERS, cross_covariance, promising
from causal_bo_ppl.optimization.state import CHOICE_NOTE
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import labels, stack, to_mappings
from causal_bo_ppl.surrogates.base import Surrogate

UNUSED_COORDINATE = 1e-9  # of the largest: an effect that a coordinate moves by less ignores it
GAIN_PAIRS = 4_096  # of outcomes that are drawn, each with its mirror image
LEAST_RELATIVE_GAIN = 1e-12  # of the largest mean: smaller gains are rounding
SAME_INTERVENTION = 0.05  # of a domain's width: as good as the same value
LEAST_SHOWN_PROBABILITY = 1e-3
LEAST_NAMED_SHARE = 0.05  # of an effect's variance, from which on a parameter is named
MOST_NAMED_PARAMETERS = 4  # in the text; the table has all


def uncertainty_shares(surrogate: Surrogate, queries: Queries) -> np.ndarray | None:
    """Return how much of the uncertainty of each effect is due to each coordinate of theta, (M, d).

    That is the share of the effect's variance that would vanish if the coordinate were known, given
    all outcomes: Cov(theta_i, f)^2 / (Var theta_i Var f). Coordinates that depend on each other
    share their uncertainty, so that the shares of a query may sum to more than 1; a coordinate that
    the effect does not depend on has none.

    None where the surrogate has no weights of theta.
    """
    inner: Any = surrogate
    weights = getattr(inner, "weights", None)
    if weights is None or not hasattr(inner, "centre"):
        return None
    factor, covariance = inner.linear.factor, weights.covariance
    size = factor.shape[1]
    _, jacobian = inner.response.linearize(inner.theta(inner.centre), queries)
    together = inner.features(queries) @ covariance[:, :size] @ factor.T
    variances = ((factor @ covariance[:size, :size]) * factor).sum(axis=1)
    scale = surrogate.predict(queries).sd[:, None] ** 2 * variances[None, :]
    matters = np.abs(jacobian) * np.sqrt(variances)
    used = matters > UNUSED_COORDINATE * matters.max(axis=1, keepdims=True)
    shares = np.where(used & (scale > 0), together**2 / np.where(scale > 0, scale, 1.0), 0.0)
    return np.asarray(np.minimum(shares, 1.0))


class RegretReduction(NamedTuple):
    """An expected reduction of regret, in units of the target, and its Monte Carlo error.

    by_row: whether it is that of a whole row, not of the outcome alone.
    """

    value: float
    standard_error: float
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

    Attributes
    ----------
    title:
        The intervention, and mean and interval of its effect.
    rule:
        The acquisition that chose it, and among what.
    gain:
        By how much its outcome, or its whole row, is expected to reduce the regret of what is
        recommended; None for a suggestion to observe.
    runner_up:
        The second best intervention; None where there is no other choice.
    cost:
        The cost of the experiment.
    uncertainties:
        The share of the effect's variance that would vanish if a parameter were known, largest
        first; empty where the surrogate knows no parameters.
    note:
        Earlier failures, and that the stopping rule is met.
    learns_from_rows:
        Whether whole rows update the mechanisms. `gain` counts them where their effect is known.
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
        return (
            f"{what} is expected to reduce the regret of what is recommended by {about}"
            f"{gain.value:.3g} (+- {gain.standard_error:.1g}){more}."
        )

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(part)}</li>" for part in self._sentences())
        return f"<ul>{lines}</ul>"


def _describe_runner_up(second: RunnerUp) -> str:
    setting = ", ".join(f"{name} = {value:.4g}" for name, value in second.intervention.items())
    gap = f"{-math.expm1(-second.gap):.0%}" if second.is_log else f"{second.gap:.3g}"
    is_small = second.chance < LEAST_SHOWN_PROBABILITY
    chance = f"below {LEAST_SHOWN_PROBABILITY:g}" if is_small else f"{second.chance:.2g}"
    return (
        f"Next came do({setting}), whose acquisition value is {gap} lower; its effect, "
        f"{second.mean:.4g} +- {second.sd:.2g}, is the better one with probability {chance}."
    )


def expected_gain(
    context: Context, query: Queries, noise: float, key: jax.Array
) -> RegretReduction:
    """Return by how much an outcome of a query is expected to reduce the regret.

    Parameters
    ----------
    context:
        The surrogate, and the interventions among which one is recommended; the query itself may be
        recommended too after its outcome.
    query:
        One intervention.
    noise:
        The variance of its outcome's noise.
    key:
        For the outcomes that are drawn.
    """
    surrogate, sign = context.surrogate, sign_of(context.objective)
    points = _find_contenders(context, MOST_RECOMMENDABLE)
    means = sign * surrogate.predict(points).mean
    mean, sd = (float(part[0]) for part in surrogate.predict(query))
    variance = sd**2 + noise
    before = float(means.max())
    if not variance > 0:
        return RegretReduction(max(sign * mean - before, 0.0), 0.0)
    slopes = cross_covariance(surrogate, query, points)[0] / np.sqrt(variance)
    intercepts = np.append(means, sign * mean)
    slopes = sign * np.append(slopes, sd**2 / np.sqrt(variance))
    return _average(intercepts, before, slopes[:, None], key)


def _find_contenders(context: Context, most: int) -> Queries:
    return promising(context.surrogate, context.contenders, context.objective, most)


def expected_row_gain(context: Context, query: Queries, key: jax.Array) -> RegretReduction | None:
    """Return by how much a whole row of a query is expected to reduce the regret.

    None where whole rows do not update the mechanisms, or where their effect is not known. Of the
    interventions that may be recommended the 16 most promising count; see `expected_gain`.
    """
    surrogate = context.surrogate
    find_moves = offered(surrogate, "mean_change_variances") if context.informs_mechanisms else None
    points = stack([_find_contenders(context, CONTENDERS), query])
    if find_moves is None or find_moves(query, points, query) is None:
        return None
    means = sign_of(context.objective) * surrogate.predict(points).mean
    best = first_largest(means[:-1])
    apart = np.stack([find_moves(query, points, other)[0] for other in points])
    moves = (apart[best][:, None] + apart[best][None, :] - apart) / 2
    sizes, directions = np.linalg.eigh((moves + moves.T) / 2)
    root = directions * np.sqrt(np.maximum(sizes, 0.0))
    return _average(means, float(means[best]), root, key)._replace(by_row=True)


def _average(means: np.ndarray, before: float, root: np.ndarray, key: jax.Array) -> RegretReduction:
    """Return E[max_j (m_j + (R Z)_j)] - before, Z standard normal, for means (J,) and R (J, r)."""
    draws = host_generator(key).standard_normal((GAIN_PAIRS, root.shape[1])) @ root.T
    up, down = ((means + each).max(axis=1) for each in (draws, -draws))
    gains = (up + down) / 2 - before
    gains[gains <= LEAST_RELATIVE_GAIN * np.abs(means).max()] = 0.0
    # Where no drawn outcome changes the choice, a rarer one may: about once in as many draws.
    least = float(np.linalg.norm(np.ptp(root, axis=0))) / GAIN_PAIRS
    error = max(float(gains.std(ddof=1) / np.sqrt(GAIN_PAIRS)), least)
    return RegretReduction(float(gains.mean()), error)


def find_runner_up(problem: Problem, choice: Choice) -> RunnerUp | None:
    """Return the best candidate that is not close to what was chosen; None where there is none.

    Candidates are the vertices of all sets, and points inside where effects are nonlinear.
    """
    query, candidates = choice.query, choice.candidates
    mask, value = np.asarray(candidates.mask), np.asarray(candidates.value)
    widths = [np.ptp(problem.domains.get(name, (0.0, 0.0))) for name in problem.graph.nodes]
    is_near = (mask == np.asarray(query.mask)).all(axis=1)
    gaps = np.abs(value - np.asarray(query.value))
    is_near &= (gaps <= SAME_INTERVENTION * np.array(widths)).all(axis=1)
    others = candidates[np.flatnonzero(~is_near & choice.affordable(problem.cost(candidates)))]
    if not len(others):
        return None
    surrogate, both = choice.context.surrogate, stack([query, others])
    values = acquisition_values(choice.rule, both, choice.context)
    best, compared = best_position(choice.rule, values[1:]), comparable(choice.rule, values)
    pair = stack([query, others[best]])
    mean, sd = surrogate.predict(pair)
    joint = surrogate.joint(pair).covariance
    spread = float(np.sqrt(max(joint[0, 0] + joint[1, 1] - 2 * joint[0, 1], 0.0)))
    ahead = sign_of(problem.objective) * float(mean[1] - mean[0])
    chance = float(norm.cdf(ahead / spread)) if spread > 0 else float(ahead > 0)
    [intervention] = to_mappings(others[best], problem.graph.nodes)
    gap = max(float(compared[0] - compared[1 + best]), 0.0)
    is_log = trait(choice.rule, "is_log")
    return RunnerUp(intervention, float(mean[1]), float(sd[1]), gap, chance, is_log)


def explain(
    problem: Problem, choice: Choice, interval: tuple[float, float], key: jax.Array, note: str = ""
) -> Reasons:
    """Return why a choice was made; interval: of its effect, with a probability of 90 %."""
    context, query = choice.context, choice.query
    [label] = labels(problem, query)
    title = (
        f"{label}: E[{problem.target}] is expected at {choice.mean:.4g}, 90 % in "
        f"[{interval[0]:.4g}, {interval[1]:.4g}], {CHOICE_NOTE}."
    )
    noise = context.noise or context.surrogate.post.outcome_variances
    gain = expected_row_gain(context, query, key)
    if gain is None:
        gain = expected_gain(context, query, float(noise(query)[0]), key)
    shares = uncertainty_shares(context.surrogate, query)
    uncertainties: pd.Series[float] = pd.Series(dtype=float)
    if shares is not None:
        names = pd.Index(context.surrogate.post.names, name="parameter")
        order = np.argsort(-shares[0].round(9), kind="stable")  # rounding does not decide
        uncertainties = pd.Series(shares[0], names, name="share").iloc[order]
    second = find_runner_up(problem, choice)
    return Reasons(
        title,
        choice.how,
        gain,
        second,
        choice.cost,
        uncertainties,
        note,
        context.informs_mechanisms,
    )
