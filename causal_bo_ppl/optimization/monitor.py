"""Do outcomes contradict their predictions? Tests that hold however often one looks.

Outcome t has the predictive mean m_t and variance s_t^2, given all outcomes before it. Where its
variance is known, z_t = (y_t - m_t) / s_t are independent and standard normal under the model,
however the experiments were chosen. Where the variance was estimated with nu degrees of freedom,
all z share the error of that estimate: jointly they are Student's t, so that their mean square is
F(t, nu). In order of arrival this joint law is a product of Student's t,

    z_t | z_1, ..., z_(t-1)  ~  t(nu + t - 1),  scaled by sqrt((nu + sum z_s^2) / (nu + t - 1)),

so that each z_t has a standard normal quantile u_t of its own, independent of those before.

Every test is a ratio of likelihoods, alternative to model, averaged over the size of the deviation.
Under the model its expectation never exceeds 1, so that it reaches 1 / p with probability p at most
(Ville's inequality), at any time and with any stopping rule. The average of several such ratios has
the same property, whatever their dependence: that is the correction for looking after every outcome
and for the number of statistics.

What was predicted for every outcome, given all outcomes before it?

An outcome of query z is y = f(z) + e. Before it, f(z) has a mean and an sd, and e has a variance;
the two variances rest on an estimate with some degrees of freedom.

Do the outcomes of experiments contradict what was believed before them?

Every outcome is compared with its prediction, in order of arrival and given all outcomes before it.
What is improbable under the model, after correction for looking after every outcome and for the
number of statistics, is said in words: which interventions, which mechanisms, and what to do.

What can be known to be wrong before the first experiment?

Cheap checks of the rows: whether they contradict an independence that the graph implies, whether a
mechanism bends though it is fitted by a line, and whether interventions reach far beyond the rows.
What fails is said once, with what to do about it.

What did a state predict for outcomes, and do they contradict it? The analyst is told once.
"""

import html
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import log_ndtr, ndtri_exp, stdtr
from scipy.stats import chi2, norm
from scipy.stats import f as fisher
from scipy.stats import t as student

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.diagnostics import check_graph, check_overlap, check_predictive
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    MechanismError,
    ModelError,
    PosteriorError,
    listed,
)
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import State
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import labels, set_label, stack
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.surrogates.base import Told
from causal_bo_ppl.surrogates.discrepancy import DECISIVE_BAYES_FACTOR
from causal_bo_ppl.surrogates.discrepancy import noise_degrees as noise_degrees

SHIFT = 2.0  # sd of the shifts looked for, in sds of an outcome
INFLATIONS = np.array([2.0, 4.0, 8.0, 16.0, 64.0])  # of variances looked for
FARTHEST = 37.0  # sds: beyond, a normal tail probability is no float
MOST_LOG = 300.0  # of a likelihood ratio: sums of such ratios are still floats


# How much each ratio counts. Experiments are chosen where the model promises most, so that a wrong
# model shows first in outcomes that are worse than promised.
WEIGHTS = np.array([0.15, 0.4, 0.1, 0.15, 0.1, 0.1])


class Evidence(NamedTuple):
    """Likelihood ratios against the model after each of t outcomes, arrays of shape (t,).

    size: outcomes scatter more than predicted. worse, better: they are shifted in that direction.
    sets: those of one set are shifted. interventions: those of one intervention are shifted from
    what was believed when it was first tried. replicates: those of one intervention differ among
    themselves by more than noise.
    """

    size: np.ndarray
    worse: np.ndarray
    better: np.ndarray
    sets: np.ndarray
    interventions: np.ndarray
    replicates: np.ndarray

    @property
    def average(self) -> np.ndarray:
        """The average of all ratios with WEIGHTS, itself such a ratio."""
        return np.asarray(WEIGHTS @ np.stack(self))

    @property
    def corrected(self) -> np.ndarray:
        """Probability under the model that evidence ever becomes as strong as it was, (t,)."""
        strongest = np.maximum.accumulate(np.append(1.0, self.average))[1:]
        return np.asarray(1.0 / strongest)


def normal_scores(z: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return the standard normal quantiles u (t,) of standardized residuals z (t,).

    degrees: of freedom (t,) of the estimate of each variance, infinite where it is known; the
    variance is the posterior mean, nu / (nu - 2) times the squared scale of the Student's t. Where
    the degrees grow with the outcomes, the estimate has learned from these; where they stay as they
    are, what the outcomes say about the common factor is learned here.
    """
    rows, nu = np.arange(len(z)), np.asarray(degrees, float)
    known = ~np.isfinite(nu)
    nu = np.where(known, 1e9, nu)
    scaled = z * np.sqrt(nu / np.where(nu > 2, nu - 2, nu))
    learned = np.clip(nu - nu[:1], 0, rows)
    new = (rows - np.floor(learned)).astype(int)  # outcomes that the estimate has not seen
    squares = np.append(0.0, np.cumsum(scaled**2))
    factor = (nu + squares[rows] - squares[rows - new]) / (nu + new)
    with np.errstate(divide="ignore"):  # a tail that is no float is cut below
        tails = np.log(stdtr(nu + new, -np.abs(scaled) / np.sqrt(factor)))
    scores = np.where(known, np.abs(z), -ndtri_exp(np.minimum(tails, np.log(0.5))))
    return np.asarray(np.copysign(np.minimum(scores, FARTHEST), z))


def weigh_evidence(
    scores: np.ndarray,
    away: np.ndarray,
    sets: np.ndarray,
    interventions: np.ndarray,
    told: tuple[np.ndarray, ...],
) -> Evidence:
    """Return all likelihood ratios after each outcome.

    Parameters
    ----------
    scores:
        Standard normal under the model, (t,); positive where an outcome is above its prediction.
    away:
        1 where larger outcomes are worse, -1 where smaller ones are.
    sets, interventions:
        Whole numbers (t,) that are equal for outcomes of one set, and of one intervention; 0, 1,
        ... in order of their first outcome.
    told:
        Outcomes, predictive means, variances of effects and of noise, arrays of shape (t,).
    """
    ones = np.ones_like(scores)
    total, count = np.cumsum(scores), np.cumsum(ones)
    lasting = _lasting(interventions, told[2], told[3])
    by_set = _shift(cumulate(scores, sets), cumulate(ones, sets))
    by_intervention = _shift(
        cumulate(lasting * scores, interventions), cumulate(lasting**2, interventions)
    )
    return Evidence(
        _scatter(scores**2),
        _exp(_shift(total, count, away)),
        _exp(_shift(total, count, -away)),
        _share(by_set, sets),
        _share(by_intervention, interventions),
        _compare_replicates(scores, interventions, *told),
    )


def cumulate(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the sum, at each place, of the values of the same group up to there, (t,)."""
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(values[order])
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    before = np.repeat(sums[starts] - values[order][starts], np.diff(starts, append=len(values)))
    found = np.empty_like(sums)
    found[order] = sums - before
    return found


def _exp(logarithm: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(logarithm, MOST_LOG)))


def _scatter(squares: np.ndarray) -> np.ndarray:
    """Return the ratio of a larger variance to 1, averaged over INFLATIONS, (t,)."""
    count, total = np.arange(1, len(squares) + 1)[:, None], np.cumsum(squares)[:, None]
    ratios = -0.5 * count * np.log(INFLATIONS) + 0.5 * total * (1 - 1 / INFLATIONS)
    return np.asarray(_exp(ratios).mean(axis=1))


def _shift(sums: np.ndarray, sizes: np.ndarray, side: np.ndarray | None = None) -> np.ndarray:
    """Return the log ratio of shifts N(0, SHIFT^2) c_t to none, from sums of c u and of c^2.

    side: 1 or -1 where the shifts have this sign only.
    """
    precision = 1 + SHIFT**2 * sizes
    mean = SHIFT * sums / np.sqrt(precision)
    ratio = 0.5 * mean**2 - 0.5 * np.log(precision)
    return np.asarray(ratio if side is None else ratio + np.log(2) + log_ndtr(side * mean))


def _share(logarithms: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the average over groups of their ratios so far, group k with weight 1 / (k (k + 1)).

    The ratio of a group that has no outcome yet is 1; the weights of all groups sum to 1.
    """
    weights, now = 1 / ((groups + 1.0) * (groups + 2.0)), _exp(logarithms)
    steps = now - 1.0  # ratio now, minus that after the group's outcome before: a sum of steps
    order = np.argsort(groups, kind="stable")
    later = np.diff(groups[order], prepend=-1) == 0
    steps[order[later]] -= steps[order[np.flatnonzero(later) - 1]]
    return np.asarray(np.maximum(1 + np.cumsum(weights * steps), 0.0))


def _lasting(groups: np.ndarray, doubts: np.ndarray, noises: np.ndarray) -> np.ndarray:
    """Return how much of a bias of an intervention each of its outcomes still shows, (t,).

    The belief follows earlier outcomes, and what it has taken over is no longer seen: after k
    replicates with noise v the variance d of the effect has become d v / (v + k d), and the
    fraction that remains of the bias is the ratio of the two.
    """
    first = np.unique(groups, return_index=True)[1][groups]
    began, total = doubts[first], doubts + noises
    left = np.where(began > 0, doubts / np.where(began > 0, began, 1.0), 1.0)
    return np.asarray(left * np.sqrt(total[first] / np.where(total > 0, total, 1.0)))


def _compare_replicates(
    scores: np.ndarray,
    groups: np.ndarray,
    outcomes: np.ndarray,
    means: np.ndarray,
    doubts: np.ndarray,
    noises: np.ndarray,
) -> np.ndarray:
    """Return the ratio of predicting replicates by those before them, with more noise, (t,)."""
    own = np.where(noises > 0, 1 / np.where(noises > 0, noises, 1.0), 0.0)
    precision = cumulate(own, groups) - own
    is_later = (precision > 0) & (own > 0)
    weight = np.where(is_later, precision, 1.0)
    before = (cumulate(own * outcomes, groups) - own * outcomes) / weight
    spread = np.sqrt(np.where(is_later, doubts + noises, 1.0))
    centre = np.where(is_later, (before - means) / spread, 0.0)[:, None]
    variance = ((noises + 1 / weight) / spread**2)[:, None] * INFLATIONS
    ratios = 0.5 * (scores[:, None] ** 2 - (scores[:, None] - centre) ** 2 / variance)
    ratios = np.where(is_later[:, None], ratios - 0.5 * np.log(variance), 0.0)
    return np.asarray(_exp(np.cumsum(ratios, axis=0)).mean(axis=1))


BLOCK = 64  # outcomes of which all later effects learn at once
ROUNDING = 1e-9  # of an outcome: differences below it are none


class PredictedOutcome(NamedTuple):
    """An outcome and what was predicted for it, given all outcomes before it.

    query: the intervention, in one row. mean, sd: of its effect. noise: the variance of the
    outcome's noise. outcome: what came out. degrees: of freedom of the estimate of the variances,
    infinite where they are known.
    """

    query: Queries
    mean: float
    sd: float
    noise: float
    outcome: float
    degrees: float = np.inf


class Arrays(NamedTuple):
    """What was predicted and what came out, arrays of shape (t,); see `PredictedOutcome`."""

    mean: np.ndarray
    sd: np.ndarray
    noise: np.ndarray
    outcome: np.ndarray
    degrees: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of each outcome, never below what rounding leaves."""
        least = ROUNDING * np.maximum(np.abs(self.outcome), np.abs(self.mean))
        return np.asarray(np.sqrt(np.maximum(self.sd**2 + self.noise, least**2)))

    @property
    def z(self) -> np.ndarray:
        """Standardized residual of each outcome."""
        spread, gap = self.spread, self.outcome - self.mean
        return np.asarray(np.where(spread > 0, gap / np.where(spread > 0, spread, 1.0), 0.0))


def predict_in_order(
    surrogate: Surrogate, told: Told, degrees: float = np.inf
) -> tuple[PredictedOutcome, ...]:
    """Predict each outcome of a batch given the outcomes of the batch before it.

    Parameters
    ----------
    surrogate:
        What was believed before the batch.
    told:
        The interventions of the batch, what came out, and the variances of the noise.
    degrees:
        Of freedom of the variances before the batch, see `noise_degrees`.
    """
    mean, doubt = surrogate.predict(told.queries).mean, surrogate.covariance(told.queries)
    means, variances = condition_in_order(mean, doubt, told.values, told.variances)
    columns = (means, np.sqrt(variances), told.variances, told.values)
    numbers = zip(told.queries, *(each.tolist() for each in columns), strict=True)
    return tuple(
        PredictedOutcome(query, mean, sd, noise, outcome, degrees)
        for query, mean, sd, noise, outcome in numbers
    )


def condition_in_order(
    mean: np.ndarray, covariance: np.ndarray, outcomes: np.ndarray, noises: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of each of m effects given the outcomes before it, (m,) each.

    An outcome moves all later effects by their covariance with it over its variance. Within a block
    the outcomes are learned from one by one, and all later effects learn from a block at once, so
    that the m^3 operations are products of matrices.

    Parameters
    ----------
    mean, covariance:
        Of the effects before any outcome, (m,) and (m, m).
    outcomes, noises:
        What came out, and the variances of the noise, (m,) each.
    """
    mean, doubt = np.array(mean, float), np.array(covariance, float)
    for start in range(0, len(mean), BLOCK):
        stop = min(start + BLOCK, len(mean))
        gains = np.zeros((len(mean), stop - start))
        totals = np.zeros(stop - start)
        for at in range(start, stop):
            done = at - start
            # What the block's outcomes up to here leave of the covariance with this effect.
            left = doubt[at:, at] - gains[at:, :done] @ (totals[:done] * gains[at, :done])
            left[0] = doubt[at, at] = max(float(left[0]), 0.0)
            totals[done] = left[0] + noises[at]
            gains[at:, done] = left / totals[done] if totals[done] > 0 else 0.0
            mean[at + 1 :] += gains[at + 1 :, done] * (outcomes[at] - mean[at])
        later = gains[stop:]
        doubt[stop:, stop:] -= (later * totals) @ later.T
    return mean, np.diagonal(doubt).copy()


IMPROBABLE = 1e-3  # corrected: below, the outcomes are a surprise
MOST_NAMED_INTERVENTIONS = 3  # interventions that the text names; the table has all
ALIKE = 100.0  # times the smallest p: mechanisms up to there are named together
EVERY = 100  # outcomes up to which each is looked at when it arrives
KNOWN = 1e9  # degrees of freedom: as good as infinitely many


def assess(problem: Problem, told: Sequence[PredictedOutcome]) -> "Surprise":
    """Compare outcomes with what was predicted for them.

    Parameters
    ----------
    problem:
        What was optimized.
    told:
        Every outcome with its prediction, in order of arrival.

    Returns
    -------
    Surprise
        `surprise.p` is the corrected probability, `surprise.table` the running statistics.

    Raises
    ------
    DataError
        If a number is not finite, or a variance is negative.
    """
    numbers = np.array([each[1:5] for each in told], float).reshape(-1, 4)
    if not np.isfinite(numbers).all() or (numbers[:, 1:3] < 0).any():
        bad = ~np.isfinite(numbers).all(axis=1) | (numbers[:, 1:3] < 0).any(axis=1)
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"outcome {row + 1} has mean, sd, noise and outcome {numbers[row].tolist()}; they must "
            "be finite, sd and noise not negative"
        )
    return Surprise(problem, tuple(told))


@dataclass(frozen=True, eq=False)
class Surprise:
    """How well outcomes agree with what was predicted for them; made by `assess`.

    problem: what was optimized. told: every outcome with its prediction, in order of arrival.
    """

    problem: Problem
    told: tuple[PredictedOutcome, ...]

    @cached_property
    def arrays(self) -> Arrays:
        """Predictions and outcomes as arrays."""
        numbers = np.array([each[1:] for each in self.told], float).reshape(-1, 5)
        return Arrays(*numbers.T)

    @cached_property
    def queries(self) -> Queries:
        """The interventions, in order of arrival."""
        return stack([self.problem.baseline()[:0], *(each.query for each in self.told)])

    @cached_property
    def scores(self) -> np.ndarray:
        """Residuals as standard normal quantiles, independent under the model, (t,)."""
        return normal_scores(self.arrays.z, self.arrays.degrees)

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Which set and which intervention each outcome is of, numbered as they first appear."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0) + 0.0
        sets = [kind.tobytes() for kind in mask]
        return _number(sets), _number([a + b.tobytes() for a, b in zip(sets, value, strict=True)])

    @cached_property
    def evidence(self) -> Evidence:
        """Likelihood ratios against the model after each outcome."""
        away = np.asarray(1.0 if self.problem.objective == "min" else -1.0)
        found = self.arrays
        told = (found.outcome, found.mean, found.sd**2, found.noise)
        return weigh_evidence(self.scores, away, *self._groups, told)

    @cached_property
    def p(self) -> float:
        """Probability under the model of evidence that ever is so strong; 1 for no outcome.

        It holds for looking after every outcome, and for all statistics together.
        """
        return float(self.evidence.corrected[-1]) if self.told else 1.0

    @cached_property
    def alarm(self) -> int | None:
        """The experiment, counted from 1, at which p fell below 0.001; None where it did not."""
        if not self.told:
            return None
        below = np.flatnonzero(self.evidence.corrected < IMPROBABLE)
        return int(below[0]) + 1 if len(below) else None

    @property
    def verdict(self) -> str:
        """Verdict: "failed" where p is below 0.001, "not assessed" without outcomes."""
        return judge(self.alarm is None) if self.told else UNKNOWN

    @property
    def is_scatter(self) -> bool:
        """Whether outcomes scatter rather than being shifted, judged where evidence is largest."""
        parts = Evidence(*(WEIGHTS[:, None] * np.stack(self.evidence)))
        most = int(self.evidence.average.argmax())
        scatter = parts.size[most] + parts.replicates[most]
        return bool(scatter > sum(part[most] for part in parts) - scatter)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Running statistics, a line for every outcome.

        `z` is the standardized residual, `score` its normal quantile. `size` is the sum of squares
        of the scores (chi-square), `signed` their sum over sqrt(t), `set_signed` the same for the
        outcomes of this set; each with its own p-value. `p_corrected` is for all together.
        """
        found, scores, (sets, _) = self.arrays, self.scores, self._groups
        count, ones = np.arange(1, len(scores) + 1), np.ones(len(scores))
        size, signed = np.cumsum(scores**2), np.cumsum(scores) / np.sqrt(count)
        per_set = cumulate(scores, sets) / np.sqrt(cumulate(ones, sets))
        asked = self.problem.interventions(self.queries)
        columns = {
            "set": [set_label(tuple(each)) for each in asked],
            "intervention": labels(self.problem, self.queries) if asked else [],
            "predicted": found.mean,
            "spread": found.spread,
            "outcome": found.outcome,
            "z": found.z,
            "score": scores,
            "size": size,
            "p_size": chi2.sf(size, count),
            "signed": signed,
            "p_signed": 2 * norm.sf(np.abs(signed)),
            "set_signed": per_set,
            "p_set": 2 * norm.sf(np.abs(per_set)),
            "p_corrected": self.evidence.corrected,
        }
        return pd.DataFrame(columns, index=pd.Index(count, name="experiment"))

    @cached_property
    def interventions(self) -> pd.DataFrame:
        """What was believed of each intervention and what came out, most surprising first.

        `believed` and `sd` are of the effect before the first of its `outcomes`, `came_out` is
        their mean. `z` compares the two; `p_bias` is its tail probability by Student's t.
        `noise_ratio` is the variance of replicates over what was predicted; `p_noise` its tail
        probability by Fisher's F, NaN for a single outcome.
        """
        lines, found, (_, groups) = [], self.arrays, self._groups
        names = labels(self.problem, self.queries) if self.told else []
        for group in range(int(groups.max(initial=-1)) + 1):
            rows = np.flatnonzero(groups == group)
            lines.append((names[rows[0]], len(rows), *_compare(found, rows)))
        columns = "outcomes believed sd came_out z p_bias noise_ratio p_noise".split()
        table = pd.DataFrame(lines, columns=["intervention", *columns]).set_index("intervention")
        least = table[["p_bias", "p_noise"]].min(axis=1)
        return table.loc[least.sort_values(kind="stable").index]

    @cached_property
    def mechanisms(self) -> pd.DataFrame:
        """The mechanisms between what was set and the target, the most suspicious first.

        A line for every mechanism on a directed path from a member of a set to the target, after
        surgery: how many `outcomes` ran through it, `signed` and `size` of their scores, and `p`,
        twice the smaller of the two p-values.
        """
        graph, target, mask = self.problem.graph, self.problem.target, np.asarray(self.queries.mask)
        through: dict[str, list[int]] = {}
        for group in range(int(self._groups[0].max(initial=-1)) + 1):
            rows = np.flatnonzero(self._groups[0] == group)
            members = [graph.nodes[at] for at in np.flatnonzero(mask[rows[0]])]
            for name in between(self.problem, members) or [target]:
                through.setdefault(name, []).extend(rows.tolist())
        lines = []
        for name in graph.require(through):
            scores = self.scores[through[name]]
            size, signed = float(scores @ scores), float(scores.sum() / np.sqrt(len(scores)))
            p = min(2 * chi2.sf(size, len(scores)), 4 * norm.sf(abs(signed)), 1.0)
            lines.append((name, len(scores), signed, size, float(p)))
        columns = "mechanism outcomes signed size p".split()
        table = pd.DataFrame(lines, columns=columns).set_index("mechanism")
        return table.loc[table["p"].sort_values(kind="stable").index]

    @cached_property
    def text(self) -> str:
        """What was believed, what came out, and how improbable that is."""
        if not self.told:
            return "There is no outcome yet."
        if self.alarm is None:
            count = len(self.told)
            agree = "outcome agrees" if count == 1 else f"{count} outcomes agree"
            return (
                f"The {agree} with what was predicted (p = {self.p:.2g}, corrected for looking "
                "after every outcome)."
            )
        how = "scatter more than predicted" if self.is_scatter else "contradict what was believed"
        lines = [self._tell(name) for name in self._named()]
        behind = listed(self._suspects(), most=5)
        return (
            f"The outcomes of experiments {how}: under the model the probability of such outcomes "
            f"is {self.p:.1g}, corrected for looking after every outcome (below {IMPROBABLE:g} "
            f"since experiment {self.alarm}). {'; '.join(lines)}. Between what was set and "
            f"{self.problem.target} acts the mechanism of {behind}."
        )

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        if self.verdict != FAILED:
            return ""
        if self.is_scatter:
            return (
                "Repeat an intervention to measure the noise of outcomes, and give it as noise=; "
                "look for outliers and for conditions that changed between experiments; see "
                "whether a mechanism bends: cb.diagnostics.check_predictive(post)."
            )
        names = listed(self._suspects(), most=5)
        return (
            "Look at the experiments first: was set what was asked for? See whether a mechanism "
            f"bends ({names}): cb.diagnostics.check_predictive(post), or cb.diagnostics.check_linearity of a fit with "
            'mechanisms="gp"; if so, optimize with mechanisms="gp". See whether an arrow or a '
            "latent cause is missing: cb.diagnostics.check_graph(problem, data). Until then let outcomes "
            'correct the model: discrepancy="auto"; do not trust the intervals.'
        )

    @property
    def message(self) -> str:
        """The words of a warning."""
        return f"{self.text} {self.advice}".strip()

    def _named(self) -> list[str]:
        """Return the interventions that the text names: the worst, and others that are improbable.

        Those that are improbable have a p-value below a tenth divided by their number.
        """
        least = self.interventions[["p_bias", "p_noise"]].min(axis=1).head(MOST_NAMED_INTERVENTIONS)
        return [str(least.index[0]), *map(str, least.index[1:][least.iloc[1:] < 0.1 / len(least)])]

    def _suspects(self) -> list[str]:
        p = self.mechanisms["p"]
        return [str(name) for name in p.index[p <= max(ALIKE * p.iloc[0], 1e-300)]]

    def _tell(self, name: str) -> str:
        line: Any = self.interventions.loc[name]
        rows = (self.table["intervention"] == name).to_numpy()
        spread = float(self.table.loc[rows, "spread"].iloc[0])
        count, gap = int(line["outcomes"]), float(line["came_out"] - line["believed"])
        side = "worse" if (gap > 0) == (self.problem.objective == "min") else "better"
        came = f"{count} outcomes came out at {line['came_out']:.3g} on average"
        one = f"the outcome came out at {line['came_out']:.3g}"
        noisy = (
            f", and vary {line['noise_ratio']:.2g} times as much as their noise should"
            if line["p_noise"] < 0.01
            else ""
        )
        return (
            f"{name}: believed was {line['believed']:.3g} +- {line['sd']:.2g}, a single outcome "
            f"+- {spread:.2g}; {came if count > 1 else one}, {side} than believed "
            f"(z = {line['z']:.1f}){noisy}"
        )

    def __repr__(self) -> str:
        return f"Surprise: {self.verdict}. {self.message}"

    def _repr_html_(self) -> str:
        advice = f"<p><em>{html.escape(self.advice)}</em></p>" if self.advice else ""
        title = f"<p><strong>surprise: {self.verdict}.</strong> {html.escape(self.text)}</p>"
        tables = (self.interventions, self.mechanisms, self.table)
        shown = "".join(each.to_html(max_rows=60, float_format="{:.4g}".format) for each in tables)
        return title + advice + shown


def is_due(count: int) -> bool:
    """Return whether to look after this many outcomes: after each of the first 100, then rarer.

    A look costs a time proportional to the outcomes; a fiftieth more outcomes between two looks
    keeps that constant per outcome. The correction holds for any times of looking, and evidence
    that an earlier look would have seen is found by the next.
    """
    return count <= EVERY or count % (count // 50) == 0


def between(problem: Problem, members: Sequence[str]) -> tuple[str, ...]:
    """Return the variables whose mechanisms carry an effect of a set to the target.

    They lie on directed paths from a member to the target, in the graph after surgery.
    """
    after, target = problem.graph.do(members), problem.target
    causes = {target, *after.ancestors(target)}
    return tuple(name for name in after.descendants(members) if name in causes)


def _number(keys: Sequence[bytes]) -> np.ndarray:
    """Return a number for each key, 0, 1, ... in order of first appearance."""
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], int)


def _compare(found: Arrays, rows: np.ndarray) -> tuple[float, ...]:
    """Return belief, sd, mean outcome, z, p_bias, noise ratio and p_noise of one intervention."""
    outcomes, noise, first = found.outcome[rows], found.noise[rows], rows[0]
    mean, nu = float(outcomes.mean()), float(min(found.degrees[first], KNOWN))
    variance = found.sd[first] ** 2 + noise.sum() / len(rows) ** 2
    least = (ROUNDING * max(abs(mean), abs(found.mean[first]))) ** 2
    gap, wide = mean - float(found.mean[first]), max(float(variance), least)
    z = gap / wide**0.5 if wide > 0 else 0.0
    p_bias = float(2 * student.sf(abs(z), nu))
    ratio, p_noise, typical = np.nan, np.nan, float(noise.mean())
    if len(rows) > 1 and typical > 0:
        ratio = float(outcomes.var(ddof=1)) / typical
        p_noise = float(fisher.sf(ratio, len(rows) - 1, nu))
    return float(found.mean[first]), float(found.sd[first]), mean, z, p_bias, ratio, p_noise


GRAPH, RARELY = "causal graph", 1e-3  # the share of true graphs that may be doubted
DRAWS = 400  # data sets that the rows are compared with
MOST_FAILED = 0.5  # of the sets may lack overlap without a word
MOST_NAMED_MECHANISMS = 3  # mechanisms that the text names; the table has all


def precheck(post: Posterior, key: jax.Array | int = 0) -> tuple[Check, ...]:
    """Look once at what would mislead an optimization.

    Parameters
    ----------
    post:
        What is believed before the first experiment.
    key:
        A JAX key or an int seed.

    Returns
    -------
    tuple of Check
        "causal graph": as `cb.diagnostics.check_graph`; a true one fails in one of 1,000 data sets. Only where
        effects cannot bend, as are the next. "mechanisms": a line for every mechanism with causes,
        failed where it bends. "overlap": as `cb.diagnostics.check_overlap`. A check that cannot be made of
        these rows or of this posterior is left out.
    """
    checks = []
    if post.distribution.response.is_affine:
        checks.append(_assessed(lambda: _check_graph(post)))
        checks.append(_assessed(lambda: check_bends(post, as_key(key))))
    checks.append(_assessed(lambda: check_overlap(post)))
    return tuple(check for check in checks if check is not None)


def _assessed(look: Callable[[], Check]) -> Check | None:
    """Return a check, or None where these rows or this posterior do not allow it."""
    try:
        return look()
    except (
        DataError,
        MechanismError,
        ModelError,
        PosteriorError,
    ):  # too few rows, or no draws of whole models
        return None


def _check_graph(post: Posterior) -> Check:
    """Test the independences that the graph implies; say what a failure means for experiments."""
    found = check_graph(post, alpha=RARELY)
    if found.verdict != FAILED:
        return found
    advice = f'{found.advice} With discrepancy="auto" every set has a residual from the first outcome on.'
    return replace(found, advice=advice)


def contradicts_graph(checks: tuple[Check, ...]) -> bool:
    """Return whether the rows contradict the graph, before any outcome does."""
    return any(check.name == GRAPH and check.verdict == FAILED for check in checks)


def check_bends(post: Posterior, key: jax.Array | int = 0) -> Check:
    """Look for linear mechanisms whose disturbances follow powers of a cause.

    These are the lines "curvature" of `cb.diagnostics.check_predictive`, with p-values corrected for all of its
    lines.
    """
    whole = check_predictive(post, draws=DRAWS, key=key)
    lines = whole.table[whole.table["statistic"] == "curvature"]
    table = lines.drop(columns="statistic").set_index("variable")
    bent = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    if not len(bent):
        text = f"None of {len(table)} mechanisms bends visibly in {post.n_observations} rows."
        return Check("mechanisms", table, text, whole=None if len(table) else UNKNOWN)
    words = [
        f"what the causes of {name} leave unexplained follows powers of {line['where']} "
        f"(correlation {line['observed']:.2f}, a line predicts {line['low']:.2f} to "
        f"{line['high']:.2f})"
        for name, line in bent.head(MOST_NAMED_MECHANISMS).iterrows()
    ]
    more = (
        f"; {len(bent) - MOST_NAMED_MECHANISMS} more likewise"
        if len(bent) > MOST_NAMED_MECHANISMS
        else ""
    )
    chosen = ", ".join(f'"{name}": "gp"' for name in bent.index[:6])
    text = f"{len(bent)} of {len(table)} mechanisms bend: {'; '.join(words)}{more}."
    advice = (
        f"A line misleads experiments far from the rows: optimize with mechanisms={{{chosen}}}, "
        'compare with cb.diagnostics.check_linearity, or keep discrepancy="auto".'
    )
    return Check("mechanisms", table, text, advice)


def to_be_said(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the failed checks that an analyst should hear of before the first experiment.

    Corners of a few sets nearly always lie far from the rows, and while mechanisms are straight the
    sd of their effects says so. So the overlap is mentioned where a mechanism bends too, or where
    it fails for more than half of the sets: then the domains as a whole do not fit the rows.
    """
    failed = {check.name: check for check in checks if check.verdict == FAILED}
    overlap = failed.get("overlap")
    if overlap is not None and "mechanisms" not in failed:
        if len(overlap.failures) <= MOST_FAILED * len(overlap.table):
            failed.pop("overlap")
    return tuple(failed.values())


def warn_of(checks: tuple[Check, ...], stacklevel: int = 1) -> None:
    """Warn once of every check that should be heard of, with its text and its advice.

    stacklevel: 1 points at the caller of this function, 2 at the caller of that one, and so on.
    """
    for check in to_be_said(checks):
        message = f"before the first experiment: {check.text} {check.advice}".strip()
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)


class Said(NamedTuple):
    """What the analyst was told before.

    warned: that outcomes contradict the model. switched: that a residual is used.
    """

    warned: bool = False
    switched: bool = False


def predict_outcomes(state: State, told: Told) -> tuple[PredictedOutcome, ...]:
    """Return what the mechanisms alone predicted for each outcome of a batch.

    state: what was known before the batch.
    """
    without = offered(state.surrogate, "without_residual")
    surrogate = state.surrogate if without is None else without()
    return predict_in_order(surrogate, told, noise_degrees(state.posterior))


def warn_of_contradictions(
    state: State,
    settings: Settings,
    told: Sequence[PredictedOutcome],
    said: Said,
    stacklevel: int = 1,
) -> Said:
    """Warn, once each, that outcomes contradict the mechanisms and that a residual is used.

    Parameters
    ----------
    state:
        What is known after all outcomes.
    settings:
        Those that were given; the state's may ask for a residual where rows contradict the graph.
    told:
        Every outcome with its prediction, in order of arrival.
    said:
        What was said before.
    stacklevel:
        1 points at the caller of this function, 2 at the caller of that one, and so on.
    """
    if offered(state.surrogate, "without_residual") is None:
        return said
    warned, switched = said
    learned = getattr(state.surrogate, "learned", None)
    residual = getattr(learned, "discrepancy", None)
    is_auto, log_factor = settings.discrepancy == "auto", getattr(learned, "log_factor", -np.inf)
    if (
        log_factor > np.log(DECISIVE_BAYES_FACTOR)
        and is_auto
        and residual is not None
        and not switched
    ):
        message = (
            f"The outcomes of experiments are better explained with a residual of "
            f"{residual.amplitude:.3g} for every set (Bayes factor "
            f"{np.exp(min(log_factor, 200.0)):.3g}): from here on they teach the "
            "surrogate, not the mechanisms; `surprise` and cb.diagnostics.check_linearity help to find what is "
            "wrong"
        )
        warnings.warn(message, CausalBOWarning, stacklevel=stacklevel + 1)
        switched = True
    if not warned and is_due(len(told)):
        found = assess(state.problem, told)
        if found.alarm is not None:
            warnings.warn(found.message, CausalBOWarning, stacklevel=stacklevel + 1)
            warned = True
    return Said(warned, switched)
