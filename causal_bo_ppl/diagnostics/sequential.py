"""Does the model hold before the first experiment, and do outcomes agree with it as they arrive?

Before the first experiment `precheck` runs cheap checks of the observations: whether they
contradict an independence that the graph implies, whether a mechanism that is fitted as linear is
nonlinear, whether causes interact where the fit is additive, whether noise varies in size, and
whether interventions lie far from the observations.

Outcome t has the predictive mean m_t and variance s_t^2, given all outcomes before it. Where its
variance is known, z_t = (y_t - m_t) / s_t are independent and standard normal under the model,
however the experiments were chosen. Where the variance was estimated with nu degrees of freedom,
all z share the error of that estimate: jointly they are Student's t, so that their mean square is
F(t, nu). In order of arrival this joint law is a product of Student's t,

    z_t | z_1, ..., z_(t-1)  ~  t(nu + t - 1),  scaled by sqrt((nu + sum z_s^2) / (nu + t - 1)),

so that each z_t has a standard normal quantile u_t, independent of those before.

Every test is a ratio of likelihoods, alternative to model, averaged over the size of the deviation.
Under the model its expectation never exceeds 1, so that it reaches 1 / p with probability p at most
(Ville's inequality), at any time and with any stopping rule. The average of several such ratios has
the same property, whatever their dependence: that is the correction for looking after every outcome
and for the number of statistics. `Surprise` reports what is improbable after it: which
interventions, which mechanisms, and what to do.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import log_ndtr, ndtri_exp, stdtr
from scipy.stats import chi2, norm
from scipy.stats import f as fisher
from scipy.stats import t as student

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, judge
from causal_bo_ppl.diagnostics.graph_tests import check_graph
from causal_bo_ppl.diagnostics.noise import check_varying_noise
from causal_bo_ppl.diagnostics.overlap import check_overlap
from causal_bo_ppl.diagnostics.predictive import check_curvature
from causal_bo_ppl.diagnostics.regressions import check_interactions
from causal_bo_ppl.errors import DataError, MechanismError, ModelError, PosteriorError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import labels, set_label

SHIFT_SD = 2.0  # of the shifts that are looked for, in sds of an outcome
INFLATIONS = np.array([2.0, 4.0, 8.0, 16.0, 64.0])  # of variances that are looked for
LARGEST_SCORE = 37.0  # sds: beyond, a normal tail probability underflows
LARGEST_LOG_RATIO = 300.0  # of likelihoods: sums of such ratios are still finite
# The weight of each ratio. Experiments are chosen where the model promises most, so that a wrong
# model shows first in outcomes that are worse than promised.
RATIO_WEIGHTS = np.array([0.15, 0.4, 0.1, 0.15, 0.1, 0.1])
EXPECTATION_DRAWS = 256  # of models, with one row each, whose mean and sd are what is expected
OUTCOME_BLOCK = 64  # outcomes by which all later effects are updated at once
LEAST_RELATIVE_SPREAD = 1e-9  # of an outcome: smaller differences are rounding
LARGEST_DEGREES = 1e9  # of freedom: as good as infinitely many
MEAN_AND_NOISE_ALPHA = 5e-3  # the share of true models that fail each of these two checks
GRAPH_CHECK_ALPHA = 1e-3  # the share of true graphs that fail the check
CHECKS_OF_MEANS = ("causal graph", "mechanisms", "interactions")
ALARM_LEVEL = 1e-3  # corrected p-value below which the outcomes contradict the model
UNUSUAL_LEVEL = 0.05  # and below which they are unusual; 1 over a decisive Bayes factor
AGREE, UNUSUAL, CONTRADICT = "agree", "unusual", "contradict"
GP_IN_USE, DISCREPANCY_IN_USE = "nonlinear mechanisms", "discrepancy"  # advised where they are not
MOST_NAMED_IN_TEXT = 3  # interventions or mechanisms; the table has all
SIMILAR_P_RATIO = 100.0  # mechanisms whose p-value is within this factor are named together
MOST_SETS_WITHOUT_OVERLAP = 0.5  # share of the sets that may lack overlap without a warning


def precheck(post: Posterior, key: jax.Array | int = 0) -> tuple[Check, ...]:
    """Check once what would mislead an optimization.

    Parameters
    ----------
    post:
        The posterior before the first experiment.
    key:
        A JAX key or an int seed.

    Returns
    -------
    tuple of Check
        "causal graph", as `cb.diagnostics.check_graph`: a true one fails in one of 1,000 data sets.
        "mechanisms": a row for every mechanism with causes, failed where it is nonlinear. Both only
        where all effects are linear. "interactions" and "noise", as
        `cb.diagnostics.check_interactions` and `check_noise`, of the latter only whether noise
        varies in size; a true model fails either in at most one of 200 data sets. "overlap", as
        `cb.diagnostics.check_overlap`. A check that these observations or this posterior do not
        allow is omitted.
    """
    looks: list[Callable[[], Check]] = [
        lambda: check_interactions(post, alpha=MEAN_AND_NOISE_ALPHA, key=key),
        lambda: check_varying_noise(post, alpha=MEAN_AND_NOISE_ALPHA, key=key),
        lambda: check_overlap(post),
    ]
    if post.distribution.response.is_affine:
        looks.insert(0, lambda: check_graph(post, alpha=GRAPH_CHECK_ALPHA))
        looks.insert(1, lambda: check_curvature(post, key))
    checks = []
    for look in looks:
        try:
            checks.append(_with_consequence(look()))
        except (DataError, MechanismError, ModelError, PosteriorError):
            continue  # too few observations, or no draws of whole models
    return tuple(checks)


def _with_consequence(check: Check) -> Check:
    """Return a check with what its failure means for experiments."""
    if not calls_for_discrepancy((check,)):
        return check
    more = 'With discrepancy="auto" every set has a model discrepancy from the first outcome on.'
    return replace(check, advice=f"{check.advice} {more}".strip())


def calls_for_discrepancy(checks: tuple[Check, ...]) -> bool:
    """Return whether the observations contradict the graph or the mechanisms of means.

    Noise that varies and interventions far from the observations leave means as they are.
    """
    return any(each.name in CHECKS_OF_MEANS and each.verdict == FAILED for each in checks)


def select_for_warning(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the failed checks that an analyst is warned of before the first experiment.

    Corners of a few sets nearly always lie far from the observations, and while mechanisms are
    linear the sd of their effects accounts for it. So a lack of overlap is reported where a
    mechanism is nonlinear too, or where it concerns more than half of the sets: then the domains as
    a whole do not fit the observations.
    """
    failed = {check.name: check for check in checks if check.verdict == FAILED}
    overlap = failed.get("overlap")
    if overlap is not None and "mechanisms" not in failed:
        if len(overlap.failures) <= MOST_SETS_WITHOUT_OVERLAP * len(overlap.table):
            del failed["overlap"]
    return tuple(failed.values())


class PredictionArrays(NamedTuple):
    """Outcomes and what was predicted for each given those before it, arrays of shape (t,).

    mean, sd: of the effects. noise: variances of the outcomes' noise. degrees: of freedom of the
    estimates of the variances, infinite where they are known.
    """

    mean: np.ndarray
    sd: np.ndarray
    noise: np.ndarray
    outcome: np.ndarray
    degrees: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of each outcome, never below rounding errors."""
        least = LEAST_RELATIVE_SPREAD * np.maximum(np.abs(self.outcome), np.abs(self.mean))
        return np.asarray(np.sqrt(np.maximum(self.sd**2 + self.noise, least**2)))

    @property
    def z(self) -> np.ndarray:
        """Standardized residual of each outcome."""
        spread, gap = self.spread, self.outcome - self.mean
        return np.asarray(np.where(spread > 0, gap / np.where(spread > 0, spread, 1.0), 0.0))


class LikelihoodRatios(NamedTuple):
    """Likelihood ratios against the model after each of t outcomes, arrays of shape (t,).

    size: outcomes scatter more than predicted. worse, better: they are shifted in that direction.
    sets: those of one set are shifted. interventions: those of one intervention are shifted from
    the prediction before its first outcome. replicates: those of one intervention differ among
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
        """The average of all ratios with RATIO_WEIGHTS, itself such a ratio."""
        return np.asarray(RATIO_WEIGHTS @ np.stack(self))

    @property
    def corrected(self) -> np.ndarray:
        """Probability under the model that evidence ever becomes as strong as it was, (t,)."""
        strongest = np.maximum.accumulate(np.append(1.0, self.average))[1:]
        return np.asarray(1.0 / strongest)


def normal_scores(z: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return the standard normal quantiles u (t,) of standardized residuals z (t,).

    degrees: of freedom (t,) of the estimate of each variance, infinite where it is known; the
    variance is the posterior mean, nu / (nu - 2) times the squared scale of the Student's t. Where
    the degrees grow with the outcomes, the estimate was updated by these; where they stay as they
    are, the common factor is updated here.
    """
    order, nu = np.arange(len(z)), np.asarray(degrees, float)
    known = ~np.isfinite(nu)
    nu = np.where(known, 1e9, nu)
    scaled = z * np.sqrt(nu / np.where(nu > 2, nu - 2, nu))
    used = np.clip(nu - nu[:1], 0, order)
    new = (order - np.floor(used)).astype(int)  # outcomes that the estimate has not used
    squares = np.append(0.0, np.cumsum(scaled**2))
    factor = (nu + squares[order] - squares[order - new]) / (nu + new)
    with np.errstate(divide="ignore"):  # a tail that underflows is cut below
        tails = np.log(stdtr(nu + new, -np.abs(scaled) / np.sqrt(factor)))
    scores = np.where(known, np.abs(z), -ndtri_exp(np.minimum(tails, np.log(0.5))))
    return np.asarray(np.copysign(np.minimum(scores, LARGEST_SCORE), z))


def weigh_evidence(
    scores: np.ndarray,
    away: np.ndarray,
    sets: np.ndarray,
    interventions: np.ndarray,
    arrays: PredictionArrays,
) -> LikelihoodRatios:
    """Return all likelihood ratios after each outcome.

    Parameters
    ----------
    scores:
        Standard normal under the model, (t,); positive where an outcome is above its prediction.
    away:
        1 where larger outcomes are worse, -1 where smaller ones are.
    sets, interventions:
        Integers (t,) that are equal for outcomes of one set, and of one intervention; 0, 1, ... in
        order of their first outcome.
    arrays:
        Outcomes and their predictions.
    """
    ones = np.ones_like(scores)
    total, count = np.cumsum(scores), np.cumsum(ones)
    lasting = _remaining_bias(interventions, arrays)
    by_set = _shift(cumulate(scores, sets), cumulate(ones, sets))
    by_intervention = _shift(
        cumulate(lasting * scores, interventions), cumulate(lasting**2, interventions)
    )
    return LikelihoodRatios(
        _scatter(scores**2),
        _exp(_shift(total, count, away)),
        _exp(_shift(total, count, -away)),
        _share(by_set, sets),
        _share(by_intervention, interventions),
        _replicate_ratio(scores, interventions, arrays),
    )


def cumulate(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return, at each position, the sum of the values of its group up to there, (t,)."""
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(values[order])
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    before = np.repeat(sums[starts] - values[order][starts], np.diff(starts, append=len(values)))
    within = np.empty_like(sums)
    within[order] = sums - before
    return within


def _exp(logarithm: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(logarithm, LARGEST_LOG_RATIO)))


def _scatter(squares: np.ndarray) -> np.ndarray:
    """Return the ratio of a larger variance to 1, averaged over INFLATIONS, (t,)."""
    count, total = np.arange(1, len(squares) + 1)[:, None], np.cumsum(squares)[:, None]
    ratios = -0.5 * count * np.log(INFLATIONS) + 0.5 * total * (1 - 1 / INFLATIONS)
    return np.asarray(_exp(ratios).mean(axis=1))


def _shift(sums: np.ndarray, sizes: np.ndarray, side: np.ndarray | None = None) -> np.ndarray:
    """Return the log ratio of shifts N(0, SHIFT_SD^2) c_t to none, from sums of c u and of c^2.

    side: 1 or -1 where the shifts have this sign only.
    """
    precision = 1 + SHIFT_SD**2 * sizes
    mean = SHIFT_SD * sums / np.sqrt(precision)
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


def _remaining_bias(groups: np.ndarray, arrays: PredictionArrays) -> np.ndarray:
    """Return how much of a bias of an intervention each of its outcomes still shows, (t,).

    The model follows earlier outcomes and takes over part of the bias: after k replicates with
    noise v the variance d of the effect has become d v / (v + k d), and the fraction that remains
    of the bias is the ratio of the two.
    """
    first = np.unique(groups, return_index=True)[1][groups]
    variances = arrays.sd**2
    initial, total = variances[first], variances + arrays.noise
    fraction = np.where(initial > 0, variances / np.where(initial > 0, initial, 1.0), 1.0)
    return np.asarray(fraction * np.sqrt(total[first] / np.where(total > 0, total, 1.0)))


def _replicate_ratio(
    scores: np.ndarray, groups: np.ndarray, arrays: PredictionArrays
) -> np.ndarray:
    """Return the ratio of predicting replicates by those before them, with more noise, (t,)."""
    outcomes, noises = arrays.outcome, arrays.noise
    precisions = np.where(noises > 0, 1 / np.where(noises > 0, noises, 1.0), 0.0)
    earlier = cumulate(precisions, groups) - precisions
    is_later = (earlier > 0) & (precisions > 0)
    weight = np.where(is_later, earlier, 1.0)
    before = (cumulate(precisions * outcomes, groups) - precisions * outcomes) / weight
    spread = np.sqrt(np.where(is_later, arrays.sd**2 + noises, 1.0))
    centre = np.where(is_later, (before - arrays.mean) / spread, 0.0)[:, None]
    variance = ((noises + 1 / weight) / spread**2)[:, None] * INFLATIONS
    ratios = 0.5 * (scores[:, None] ** 2 - (scores[:, None] - centre) ** 2 / variance)
    ratios = np.where(is_later[:, None], ratios - 0.5 * np.log(variance), 0.0)
    return np.asarray(_exp(np.cumsum(ratios, axis=0)).mean(axis=1))


def compare_intervention(arrays: PredictionArrays, members: np.ndarray) -> tuple[float, ...]:
    """Return prediction, sd, mean outcome, z, p_bias, noise ratio and p_noise of an intervention.

    members: the positions of its outcomes.
    """
    outcomes, noise, first = arrays.outcome[members], arrays.noise[members], members[0]
    predicted, sd = float(arrays.mean[first]), float(arrays.sd[first])
    mean, nu = float(outcomes.mean()), float(min(arrays.degrees[first], LARGEST_DEGREES))
    least = (LEAST_RELATIVE_SPREAD * max(abs(mean), abs(predicted))) ** 2
    variance = max(float(arrays.sd[first] ** 2 + noise.sum() / len(members) ** 2), least)
    z = (mean - predicted) / variance**0.5 if variance > 0 else 0.0
    p_bias = float(2 * student.sf(abs(z), nu))
    ratio, p_noise, typical = np.nan, np.nan, float(noise.mean())
    if len(members) > 1 and typical > 0:
        ratio = float(outcomes.var(ddof=1)) / typical
        p_noise = float(fisher.sf(ratio, len(members) - 1, nu))
    return predicted, sd, mean, z, p_bias, ratio, p_noise


def condition_in_order(
    mean: np.ndarray, covariance: np.ndarray, outcomes: np.ndarray, noises: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of each of m effects given the outcomes before it, (m,) each.

    An outcome moves all later effects by their covariance with it over its variance. Within a block
    effects are updated by one outcome after another, and all later effects by a block at once, so
    that the m^3 operations are products of matrices.

    Parameters
    ----------
    mean, covariance:
        Of the effects before any outcome, (m,) and (m, m).
    outcomes, noises:
        The outcomes and the variances of their noise, (m,) each.
    """
    mean, joint = np.array(mean, float), np.array(covariance, float)
    for start in range(0, len(mean), OUTCOME_BLOCK):
        stop = min(start + OUTCOME_BLOCK, len(mean))
        gains = np.zeros((len(mean), stop - start))
        totals = np.zeros(stop - start)
        for now in range(start, stop):
            done = now - start
            # The covariance with this effect, given the outcomes of the block before it.
            column = joint[now:, now] - gains[now:, :done] @ (totals[:done] * gains[now, :done])
            column[0] = joint[now, now] = max(float(column[0]), 0.0)
            totals[done] = column[0] + noises[now]
            gains[now:, done] = column / totals[done] if totals[done] > 0 else 0.0
            mean[now + 1 :] += gains[now + 1 :, done] * (outcomes[now] - mean[now])
        later = gains[stop:]
        joint[stop:, stop:] -= (later * totals) @ later.T
    return mean, np.diagonal(joint).copy()


def expect_variables(post: Posterior, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and sd of every variable under each of n interventions, (n, p) each.

    A variable that the model does not draw has an infinite sd: nothing is expected of it.
    """
    nodes = post.problem.graph.nodes
    mean, spread = np.zeros((len(queries), len(nodes))), np.full((len(queries), len(nodes)), np.inf)
    model = post.distribution.model
    if model is None:
        return mean, spread
    for_models, for_rows = jax.random.split(jax.random.key(0))
    drawn = post.distribution.drawn(EXPECTATION_DRAWS, for_models).thinned(EXPECTATION_DRAWS)
    rows = model.replicate(drawn.models, post.upstream(queries), for_rows)
    columns = [post.problem.graph.index(name) for name in model.nodes]
    mean[:, columns], spread[:, columns] = rows.mean(axis=0), rows.std(axis=0, ddof=1)
    return mean, spread


@dataclass(frozen=True, eq=False)
class Surprise:
    """How well outcomes agree with their predictions.

    problem: what was optimized. queries: the interventions, in the order in which they count.
    arrays: their outcomes and predictions. log_factor: the logarithm of the Bayes factor of a model
    discrepancy. has_discrepancy: whether one is in use because of the outcomes. checks: those of
    the observations before the first experiment. in_use: settings that need not be advised.
    """

    problem: Problem
    queries: Queries
    arrays: PredictionArrays
    log_factor: float = -np.inf
    has_discrepancy: bool = False
    checks: tuple[Check, ...] = ()
    in_use: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrays.outcome)

    @cached_property
    def scores(self) -> np.ndarray:
        """Residuals as standard normal quantiles, independent under the model, (t,)."""
        return normal_scores(self.arrays.z, self.arrays.degrees)

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray]:
        """The set and the intervention of each outcome, numbered as they first appear."""
        mask = np.asarray(self.queries.mask)
        value = np.where(mask, np.asarray(self.queries.value), 0.0) + 0.0
        sets = [row.tobytes() for row in mask]
        both = [kind + row.tobytes() for kind, row in zip(sets, value, strict=True)]
        return pd.factorize(np.array(sets, object))[0], pd.factorize(np.array(both, object))[0]

    @cached_property
    def evidence(self) -> LikelihoodRatios:
        """Likelihood ratios against the model after each outcome."""
        away = np.asarray(1.0 if self.problem.objective == "min" else -1.0)
        return weigh_evidence(self.scores, away, *self._groups, self.arrays)

    @cached_property
    def p(self) -> float:
        """Probability under the model of evidence that is ever so strong; 1 for no outcome.

        It holds for looking after every outcome, and for all statistics together.
        """
        return float(np.append(1.0, self.evidence.corrected)[-1])

    @cached_property
    def alarm(self) -> int | None:
        """The experiment, counted from 1, at which p fell below 0.001; None where it did not."""
        below = np.flatnonzero(self.evidence.corrected < ALARM_LEVEL)
        return int(below[0]) + 1 if len(below) else None

    @cached_property
    def grade(self) -> str:
        """How the outcomes stand to the model: "agree", "unusual" or "contradict".

        Under the model a Bayes factor ever exceeds B with probability 1 / B at most, so that it is
        judged as p is: contradictions have a p below 0.001 or a factor above 1,000; what is unusual
        has a p below 0.05, a factor above 20, or made a model discrepancy necessary.
        """
        least = min(self.p, float(np.exp(-max(self.log_factor, 0.0))))
        if least < ALARM_LEVEL:
            return CONTRADICT
        return UNUSUAL if least < UNUSUAL_LEVEL or self.has_discrepancy else AGREE

    @property
    def verdict(self) -> str:
        """Verdict: "failed" where outcomes contradict the model, "not assessed" without any."""
        return judge(self.grade != CONTRADICT) if len(self) else UNKNOWN

    @property
    def is_scatter(self) -> bool:
        """Whether outcomes scatter rather than being shifted, judged where evidence is largest."""
        parts = LikelihoodRatios(*(RATIO_WEIGHTS[:, None] * np.stack(self.evidence)))
        most = int(self.evidence.average.argmax())
        scatter = parts.size[most] + parts.replicates[most]
        return bool(scatter > sum(part[most] for part in parts) - scatter)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Running statistics, a row for every outcome.

        `z` is the standardized residual, `score` its normal quantile. `size` is the sum of squares
        of the scores (chi-square), `signed` their sum over sqrt(t), `set_signed` the same for the
        outcomes of this set; each with a p-value. `p_corrected` is for all together.
        """
        arrays, scores, (sets, _) = self.arrays, self.scores, self._groups
        count, ones = np.arange(1, len(scores) + 1), np.ones(len(scores))
        size, signed = np.cumsum(scores**2), np.cumsum(scores) / np.sqrt(count)
        per_set = cumulate(scores, sets) / np.sqrt(cumulate(ones, sets))
        interventions = self.problem.interventions(self.queries)
        columns = {
            "set": [set_label(tuple(each)) for each in interventions],
            "intervention": self._labels,
            "predicted": arrays.mean,
            "spread": arrays.spread,
            "outcome": arrays.outcome,
            "z": arrays.z,
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
    def _labels(self) -> list[str]:
        return labels(self.problem, self.queries) if len(self) else []

    @cached_property
    def interventions(self) -> pd.DataFrame:
        """Predictions and outcomes of each intervention, most surprising first.

        `predicted` and `sd` are of the effect before the first of its `outcomes`, `mean_outcome` is
        their mean. `z` compares the two; `p_bias` is its tail probability by Student's t.
        `noise_ratio` is the variance of replicates over what was predicted; `p_noise` its tail
        probability by Fisher's F, NaN for a single outcome.
        """
        lines, (_, groups) = [], self._groups
        for group in range(int(groups.max(initial=-1)) + 1):
            members = np.flatnonzero(groups == group)
            comparison = compare_intervention(self.arrays, members)
            lines.append((self._labels[members[0]], len(members), *comparison))
        columns = "outcomes predicted sd mean_outcome z p_bias noise_ratio p_noise".split()
        table = pd.DataFrame(lines, columns=["intervention", *columns]).set_index("intervention")
        least = table[["p_bias", "p_noise"]].min(axis=1)
        return table.loc[least.sort_values(kind="stable").index]

    @cached_property
    def mechanisms(self) -> pd.DataFrame:
        """The mechanisms between intervened variables and the target, the most suspicious first.

        A row for every mechanism on a directed path from a member of a set to the target, after
        surgery: how many `outcomes` depend on it, `signed` and `size` of their scores, and `p`,
        twice the smaller of the two p-values.
        """
        graph, mask, sets = self.problem.graph, np.asarray(self.queries.mask), self._groups[0]
        through: dict[str, list[int]] = {}
        for group in range(int(sets.max(initial=-1)) + 1):
            positions = np.flatnonzero(sets == group)
            members = [graph.nodes[column] for column in np.flatnonzero(mask[positions[0]])]
            for name in between(self.problem, members) or [self.problem.target]:
                through.setdefault(name, []).extend(positions.tolist())
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
        """The predictions, the outcomes, and how improbable these are."""
        if not len(self):
            return "There is no outcome yet."
        if self.grade == AGREE:
            count = len(self)
            agree = "outcome agrees" if count == 1 else f"{count} outcomes agree"
            return f"The {agree} with what was predicted ({self._evidence})."
        how = "scatter more than predicted" if self.is_scatter else "contradict their predictions"
        how = how if self.grade == CONTRADICT else "are unusual under the model"
        since = f"; below {ALARM_LEVEL:g} since experiment {self.alarm}" if self.alarm else ""
        lines = [self._describe(name) for name in self._named()]
        return (
            f"The outcomes of experiments {how} ({self._evidence}{since}). {'; '.join(lines)}. "
            f"Between the intervened variables and {self.problem.target} acts the mechanism of "
            f"{self._suspects}{self._suspected_part[0]}."
        )

    @property
    def _evidence(self) -> str:
        """The evidence against the model in words."""
        found = f"p = {self.p:.2g}, corrected for looking after every outcome"
        if self.log_factor > np.log(1 / UNUSUAL_LEVEL):
            factor = np.exp(min(self.log_factor, LARGEST_LOG_RATIO))
            found += f"; Bayes factor {factor:.3g} for a discrepancy"
        return found + ("; a discrepancy is in use" if self.has_discrepancy else "")

    @cached_property
    def _suspected_part(self) -> tuple[str, str]:
        """What of the suspected mechanisms is contradicted, and what to fit; empty where unknown.

        It is what the observations contradict as well; or a product, where only outcomes under both
        causes together are improbable.
        """
        is_noise = self.is_scatter and self.evidence.replicates[-1] > 1 / UNUSUAL_LEVEL
        kinds = ("noise",) if is_noise else ("interactions", "mechanisms", "noise")
        failed = {
            (check.name, row if isinstance(row, str) else row[0]): row
            for check in self.checks
            if check.name in kinds
            for row in check.failures.index
        }
        for kind in kinds:
            for name in self._suspected:
                row: Any = failed.get((kind, name))
                if row is not None and kind == "interactions":
                    return self._product(name, row[1], row[2], "; the observations show it too")
                if row is not None:
                    what = (
                        "noise varies in size" if kind == "noise" else "form is not the fitted one"
                    )
                    fit = f'mechanisms={{"{name}": "gp"}}' if kind == "mechanisms" else ""
                    return f"; in the observations too the {what}: that of {name}", fit
        if is_noise:
            return ", whose noise is larger than what was fitted", ""
        return self._find_product()

    def _find_product(self) -> tuple[str, str]:
        """Return a product of two causes, where each cause alone came out as predicted."""
        tried = dict(zip(self._labels, self.problem.interventions(self.queries), strict=True))
        p, graph = self.interventions["p_bias"], self.problem.graph
        fine = [tried[label] for label in p.index[p > UNUSUAL_LEVEL]]
        worst = tried[p.index[0]]
        for name in self._suspected:
            causes = [each for each in graph.parents(name) if each in worst]
            for pair in combinations(causes, 2):
                counts = {sum(cause in each for cause in pair) for each in fine}
                if 1 in counts and 2 not in counts:
                    return self._product(name, *pair, "; each alone is as predicted")
        return "", ""

    def _product(self, name: str, one: str, other: str, why: str) -> tuple[str, str]:
        what = f", probably a product of {one} and {other} in that of {name}{why}"
        return what, f'mechanisms={{"{name}": cb.GP(groups=[("{one}", "{other}")])}}'

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        if not len(self) or self.grade == AGREE:
            return ""
        if self.grade == UNUSUAL:
            return "Measure it again before you rely on what the mechanisms imply." + self._fit
        if self.is_scatter:
            return (
                "Repeat an intervention to measure the noise of outcomes, and give it as noise=; "
                "look for outliers and for conditions that changed between experiments; see "
                "whether a mechanism is nonlinear: cb.diagnostics.check_predictive(post)."
            )
        nonlinear = (
            f"whether a mechanism is nonlinear ({listed(self._suspected, most=5)}): "
            "cb.diagnostics.check_predictive(post), or cb.diagnostics.check_linearity of a fit "
            'with mechanisms="gp"; if so, optimize with mechanisms="gp"'
        )
        if GP_IN_USE in self.in_use:
            nonlinear = "what the mechanisms lack: cb.diagnostics.check_predictive(post)"
        until = 'let outcomes correct the model: discrepancy="auto"; do not trust the intervals'
        if DISCREPANCY_IN_USE in self.in_use:
            until = "do not trust the intervals of what was not tried"
        return (
            "Check the experiments first: was each variable set to the suggested value?"
            f"{self._fit} See {nonlinear}. See whether an edge or a latent cause is missing: "
            f"cb.diagnostics.check_graph(problem, data). Until then {until}."
        )

    @property
    def _fit(self) -> str:
        """The mechanisms to fit as a sentence; empty where none is suspected."""
        return f" Fit {self._suspected_part[1]}." if self._suspected_part[1] else ""

    @property
    def message(self) -> str:
        """The text of a warning."""
        return f"{self.text} {self.advice}".strip()

    def _named(self) -> list[str]:
        """Return the interventions that the text names: the worst, and others that are improbable.

        Those that are improbable have a p-value below a tenth divided by their number.
        """
        least = self.interventions[["p_bias", "p_noise"]].min(axis=1).head(MOST_NAMED_IN_TEXT)
        return [str(least.index[0]), *map(str, least.index[1:][least.iloc[1:] < 0.1 / len(least)])]

    @property
    def _suspected(self) -> list[str]:
        """The mechanisms that the outcomes contradict most."""
        p = self.mechanisms["p"]
        return list(p.index[p <= max(SIMILAR_P_RATIO * p.iloc[0], 1e-300)])

    @property
    def _suspects(self) -> str:
        return listed(self._suspected, most=5)

    def _describe(self, name: str) -> str:
        line: Any = self.interventions.loc[name]
        spread = float(self.arrays.spread[self._labels.index(name)])
        count, mean, predicted = int(line["outcomes"]), line["mean_outcome"], line["predicted"]
        side = "worse" if (mean > predicted) == (self.problem.objective == "min") else "better"
        outcomes = f"the mean of {count} outcomes is" if count > 1 else "the outcome is"
        noisy = ""
        if line["p_noise"] < 0.01:
            noisy = f", and they vary {line['noise_ratio']:.2g} times as much as their noise should"
        return (
            f"{name}: predicted was {predicted:.3g} +- {line['sd']:.2g}, a single outcome "
            f"+- {spread:.2g}; {outcomes} {mean:.3g}, {side} than predicted "
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


def between(problem: Problem, members: Sequence[str]) -> tuple[str, ...]:
    """Return the variables whose mechanisms carry an effect of a set to the target.

    They lie on directed paths from a member to the target, in the graph after surgery.
    """
    after, target = problem.graph.do(members), problem.target
    causes = {target, *after.ancestors(target)}
    return tuple(name for name in after.descendants(members) if name in causes)
