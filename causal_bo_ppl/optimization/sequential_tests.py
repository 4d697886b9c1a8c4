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
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri_exp, stdtr

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
