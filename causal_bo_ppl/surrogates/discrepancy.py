"""Model discrepancy: a smooth function for every intervention set, for what the mechanisms miss.

The discrepancy h_s of the effect of a set s is a Gaussian process of all its values x together, so
that it can express an interaction. At values that are c_j of the width of the domain of x_j apart
it has the covariance

    a^2 exp(-1/2 mean_j (c_j / l)^2),

and discrepancies of different sets are independent: a part that a set shares with its subsets
hardly helps (tests/benchmarks/shared_discrepancies.py). Values beyond a domain count as its end.
Every process is written in the functions of finitely many of the tried interventions (its pivots),
which is exact at all that were tried; elsewhere what these do not explain is added to the variance.

Whether there is one, and how noisy outcomes are, is decided by the evidence. The outcomes y of t
interventions are N(m, K + c V + R) under the mechanisms alone: K is the causal kernel, V the noise
that the model implies and R the linearization error. The factor c of the noise has an inverse gamma
prior around 1, with the degrees of freedom of the data. With a discrepancy a^2 H(l) is added.
Amplitudes a and lengthscales l lie on a grid and have a prior; so the evidence of both hypotheses
is a sum, and their ratio is a Bayes factor: while the mechanisms are right, the chance that it ever
exceeds 20 is at most 1 in 20 (Ville).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from scipy.stats import invgamma, norm
from scipy.stats import t as student

from causal_bo_ppl.data.observations import Replicates
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import (
    CovarianceBlock,
    factor_pivoted,
    first_best,
    first_largest,
    log_evidences,
    shorten,
    sign_of,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows
from causal_bo_ppl.responses import Prediction

# Lengthscales in widths of a domain, each with its prior probability.
LENGTHSCALES = {0.05: 0.10, 0.1: 0.20, 0.2: 0.30, 0.4: 0.25, 0.8: 0.15}
CONTRADICTION_SDS, DISAPPOINTING_SDS = 3.0, 2.5  # see `contradicts`
FEWEST_REPEATS, LEAST_SPREAD, INTERVAL_SDS = 4, 0.1, 1.645  # see `contradicted`
LEAST_VARIANCE = 1e-10  # of the process's: what is known up to it counts as known
DECISIVE_BAYES_FACTOR = 20.0  # from which on a discrepancy is used
AMPLITUDES = np.geomspace(0.01, 10.0, 13)  # in units of the target's sd
MEDIAN_AMPLITUDE, AMPLITUDE_SPREAD = 0.3, 1.5  # prior median, and prior sd of the logarithm
NOISE_FACTORS = 21  # of the grid of noise factors
MOST_NUMBERS = 4_000_000  # in one array of the evidence: 32 MB
LEAST_NOISE = 1e-10  # of an effect's prior variance: the noise of an outcome that has none


def correlations(left: np.ndarray, right: np.ndarray, lengthscale: float) -> np.ndarray:
    """Return the correlations (n, k) of a process at points (n, d) and (k, d) in [0, 1]^d."""
    scaled, other = (each / (lengthscale * np.sqrt(left.shape[1])) for each in (left, right))
    squares = (scaled**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * scaled @ other.T
    return np.asarray(np.exp(-0.5 * np.maximum(squares, 0.0)))


class SetBasis(NamedTuple):
    """The functions of one set's process.

    members: (p,). columns: (m,) positions among all features. pivots: (m, d) in [0, 1]^d. root: the
    lower Cholesky factor (m, m) of their correlations.
    """

    members: np.ndarray
    columns: np.ndarray
    pivots: np.ndarray
    root: np.ndarray


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """Discrepancies of all sets, written in the functions of K pivots.

    low, width: (p,) of the domains. mask, share: (K, p) of the pivots, as positions in the domains.
    amplitude: a, in units of the target. lengthscale: in widths of the domains.
    """

    low: np.ndarray
    width: np.ndarray
    mask: np.ndarray
    share: np.ndarray
    amplitude: float = 1.0
    lengthscale: float = 0.2

    def shares(self, queries: Queries) -> np.ndarray:
        """Return values as positions in the domains, (M, p); 0 for variables that are not set."""
        inside = np.clip((np.asarray(queries.value) - self.low) / self.width, 0.0, 1.0)
        return np.where(queries.mask, inside, 0.0)

    def at(self, queries: Queries) -> "Discrepancy":
        """Return the same discrepancy with pivots among some interventions alone."""
        pivots = [
            own[factor_pivoted(correlations(points, points, self.lengthscale), LEAST_VARIANCE)[1]]
            for _, own, points in self._split(queries)
        ]
        chosen = np.concatenate([np.zeros(0, int), *pivots])
        mask, share = np.asarray(queries.mask)[chosen], self.shares(queries)[chosen]
        return replace(self, mask=mask, share=share)

    def join(self, queries: Queries) -> "Discrepancy":
        """Return the same discrepancy with more pivots, which come after those that there are."""
        found = self
        for query in queries:
            is_new = found.remainder_variances(query)[0] > LEAST_VARIANCE * found.amplitude**2
            if is_new:
                mask = np.concatenate([found.mask, np.asarray(query.mask)])
                found = replace(
                    found, mask=mask, share=np.concatenate([found.share, found.shares(query)])
                )
        return found

    @cached_property
    def bases(self) -> dict[bytes, SetBasis]:
        """The functions of each set with pivots, by its mask."""
        found = {}
        for members, own, points in _split(self.mask, self.share):
            root = np.linalg.cholesky(correlations(points, points, self.lengthscale))
            found[members.tobytes()] = SetBasis(members, own, points, root)
        return found

    def _split(self, queries: Queries) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return _split(np.asarray(queries.mask), self.shares(queries))

    def _functions(self, members: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the functions of a set at points (n, d), (n, m); there are none without pivots."""
        basis = self.bases.get(members.tobytes())
        if basis is None:
            return np.zeros((len(points), 0))
        cross = correlations(basis.pivots, points, self.lengthscale)
        return np.asarray(solve_triangular(basis.root, cross, lower=True, check_finite=False).T)

    def features(self, queries: Queries) -> np.ndarray:
        """Return features (M, K): the discrepancy at pivots is their product with K weights."""
        features = np.zeros((len(queries), len(self.mask)))
        for members, own, points in self._split(queries):
            if (basis := self.bases.get(members.tobytes())) is not None:
                values = self.amplitude * self._functions(members, points)
                features[own[:, None], basis.columns] = values
        return features

    def remainders(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return what pivots do not explain: indices and a factor of its covariance, set by set."""
        found = []
        for members, own, points in self._split(queries):
            functions = self._functions(members, points)
            left = correlations(points, points, self.lengthscale) - functions @ functions.T
            if (np.diagonal(left) > LEAST_VARIANCE).any():
                found.append((own, self.amplitude * factor_pivoted(left, LEAST_VARIANCE)[0]))
        return found

    def remainder_variances(self, queries: Queries) -> np.ndarray:
        """Return the variances (M,) of what pivots do not explain; 0 where nothing is set."""
        found = np.zeros(len(queries))
        for members, own, points in self._split(queries):
            found[own] = 1.0 - (self._functions(members, points) ** 2).sum(axis=1)
        return np.asarray(self.amplitude**2 * np.maximum(found, 0.0))

    def blocks(self, queries: Queries) -> list[CovarianceBlock]:
        """Return factors of the covariance of some queries set by set; see `CovarianceBlock`.

        Sets with about as many queries stand together.
        """
        groups: dict[int, list[CovarianceBlock]] = {}
        for _, own, points in self._split(queries):
            covariance = self.amplitude**2 * correlations(points, points, self.lengthscale)
            factor = factor_pivoted(covariance, LEAST_VARIANCE * self.amplitude**2)[0]
            size = 1 << (len(own) - 1).bit_length()
            padded = np.pad(factor, ((0, size - len(own)), (0, size - factor.shape[1])))
            indices = np.pad(own, (0, size - len(own)), constant_values=-1)
            groups.setdefault(size, []).append((indices, padded))
        return [
            (np.stack([indices for indices, _ in group]), np.stack([part for _, part in group]))
            for group in groups.values()
        ]


def no_discrepancy(problem: Problem) -> Discrepancy:
    """Return the discrepancy of a problem before any outcome."""
    nodes = problem.graph.nodes
    bounds = np.array([problem.domains.get(name, (0.0, 1.0)) for name in nodes], float)
    nothing = np.zeros((0, len(nodes)))
    return Discrepancy(bounds[:, 0], np.ptp(bounds, axis=1), nothing.astype(bool), nothing)


def _split(
    mask: np.ndarray, share: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield members (p,), indices (n,) and points (n, d) of each set that sets something."""
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for row, own in zip(first, np.split(order, ends[:-1]), strict=True) if len(first) else ():
        if mask[row].any():
            yield mask[row], own, share[own][:, mask[row]]


class MeanOutcomes(NamedTuple):
    """Mean outcomes of t interventions, and what the mechanisms alone imply for them.

    outcomes: replicates merged. features: (t, r) of the causal kernel. residuals: (t,) means less
    the effects at the posterior mean. remainders: (t,) variances of the linearization error. scale:
    the target's sd. degrees: of freedom of the noise's variance; infinite where it is known.
    """

    outcomes: Replicates
    features: np.ndarray
    residuals: np.ndarray
    remainders: np.ndarray
    scale: float
    degrees: float

    def noises(self, factors: np.ndarray, added: np.ndarray | float = 0.0) -> np.ndarray:
        """Return the noise (k, t) of each mean, linearization error included, for k factors of it.

        added: variances (t,) that a discrepancy adds to those of the effects.
        """
        prior = (self.features**2).sum(axis=1) + added
        noises = factors[:, None] * self.outcomes.variances + self.remainders + LEAST_NOISE * prior
        return np.where(noises > 0, noises, LEAST_NOISE * self.scale**2)  # an effect that is known


class Learned(NamedTuple):
    """What was learned from the evidence of all outcomes besides theta.

    discrepancy: None where there is none. noise: the factor of the noise's variance. log_factor:
    the logarithm of the Bayes factor of a discrepancy against none.
    """

    discrepancy: Discrepancy | None = None
    noise: float = 1.0
    log_factor: float = -np.inf


class Evidence(NamedTuple):
    """The evidence of t mean outcomes, with and without a discrepancy.

    factors: (f,) of the noise. alone: (f,) log evidence of the mechanisms alone. both: (l, f, k)
    with a discrepancy, for each lengthscale and amplitude; empty where none is considered. unit:
    the discrepancy before any outcome, with an amplitude of the target's sd.
    """

    queries: Queries
    factors: np.ndarray
    alone: np.ndarray
    both: np.ndarray
    unit: Discrepancy | None

    @property
    def log_factor(self) -> float:
        """The logarithm of the Bayes factor of a discrepancy against none."""
        return float(logsumexp(self.both) - logsumexp(self.alone)) if self.both.size else -np.inf

    def without(self) -> Learned:
        """Return what is learned with the mechanisms alone."""
        weights = np.exp(self.alone - logsumexp(self.alone))
        return Learned(None, float(weights @ self.factors), self.log_factor)

    def with_discrepancy(self, least: int = 0) -> Learned:
        """Return what is learned with the most probable discrepancy.

        least: the position of the smallest amplitude that may be taken.
        """
        assert self.unit is not None  # noqa: S101  (the caller considers one)
        best = first_largest(logsumexp(self.both[:, :, least:], axis=1).ravel())
        row, column = divmod(best, len(AMPLITUDES) - least)
        size = float(self.unit.amplitude * AMPLITUDES[least + column])
        lengthscale = list(LENGTHSCALES)[row]
        chosen = replace(self.unit, amplitude=size, lengthscale=lengthscale).at(self.queries)
        logs = logsumexp(self.both[:, :, least:], axis=(0, 2))
        noise = float(np.exp(logs - logsumexp(logs)) @ self.factors)
        return Learned(chosen, noise, self.log_factor)


def weigh_evidence(given: MeanOutcomes, discrepancy: Discrepancy | None) -> Evidence:
    """Return the evidence of all outcomes without a discrepancy and, if one is given, with it."""
    given = given._replace(features=shorten(given.features))
    factors, log_priors = noise_factors(given.degrees)
    # Distances among replicates depend on the factor of the noise alone.
    repeats = int((given.outcomes.counts - 1).sum())
    within = float(given.outcomes.squares.sum())
    spread = -0.5 * (repeats * np.log(factors) + within / factors) + log_priors
    alone, queries = _evidence(given, factors, None)[:, 0] + spread, given.outcomes.queries
    if discrepancy is None:
        return Evidence(queries, factors, alone, np.zeros((0, len(factors), 0)), None)
    priors = norm.logpdf(np.log(AMPLITUDES), np.log(MEDIAN_AMPLITUDE), AMPLITUDE_SPREAD)
    priors -= logsumexp(priors)
    both = np.empty((len(LENGTHSCALES), len(factors), len(AMPLITUDES)))
    unit = replace(discrepancy, amplitude=given.scale)
    for row, (lengthscale, chance) in enumerate(LENGTHSCALES.items()):
        alike = replace(unit, lengthscale=lengthscale)
        both[row] = _evidence(given, factors, alike) + priors + np.log(chance)
    return Evidence(queries, factors, alone, both + spread[:, None], unit)


def contradicts(
    outcomes: Replicates,
    effects: Prediction,
    objective: str,
    errors: np.ndarray | float = 0.0,
) -> bool:
    """Return whether a mean outcome contradicts its effect, or what looks best disappoints.

    See `contradicted` and `disappoints`; the latter has the lower limit, since what looks best is
    what would be recommended, and tried again.
    """
    if not len(effects.mean):
        return False
    best = first_best(effects.mean, objective)
    is_far = contradicted(outcomes, effects, errors, best=best).any()
    return bool(is_far or disappoints(outcomes, effects, objective, errors)[best])


def disappoints(
    outcomes: Replicates,
    effects: Prediction,
    objective: str,
    errors: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Return which mean outcomes are 2.5 standard errors worse than their effects, (t,)."""
    is_worse = sign_of(objective) * (outcomes.means - effects.mean) < 0
    far = contradicted(outcomes, effects, errors, sds=DISAPPOINTING_SDS)
    return np.asarray(is_worse & far)


def contradicted(
    outcomes: Replicates,
    effects: Prediction,
    errors: np.ndarray | float = 0.0,
    *,
    best: int | None = None,
    sds: float = CONTRADICTION_SDS,
) -> np.ndarray:
    """Return which mean outcomes lie too many standard errors from their effects, (t,).

    From the mean of an effect, with the standard error that the noise of the model implies or, with
    enough replicates, that of the spread of all of them, whichever is smaller; the model counts as
    2 replicates. And from its interval of 90 %, with the standard error of the spread of at least 3
    outcomes of this intervention, by Student's t: the model's noise may be far too large here. That
    spread counts as a tenth of the model's at least, since outcomes may be rounded. An outcome
    without noise is left out: it is known, and what it contradicts is the linearization.

    effects: means and sds of the t effects. errors: variances (t,) of the linearization error.
    best: the position of what is recommended, by which the limit is a number of sds; of several
    others one is off by chance more often, so that their limit is the one beyond which some of t
    lies as rarely (3.7 for ten). None takes each by itself.
    """
    own, count = outcomes.counts - 1, len(outcomes.means)
    repeats, chances = int(own.sum()), np.full(count, norm.sf(sds))
    if best is not None:
        chances[np.arange(count) != best] /= max(count, 1)
    limits, noises = np.asarray(norm.isf(chances)), np.sqrt(outcomes.variances + errors)
    if repeats >= FEWEST_REPEATS:
        spread = float(np.sqrt((outcomes.squares.sum() + 2) / (repeats + 2)))
        limits = np.minimum(limits, spread * student.isf(chances, repeats + 2))
    degrees = np.maximum(own, 1)
    spreads = np.maximum(np.sqrt(outcomes.squares / degrees), LEAST_SPREAD)
    alone = INTERVAL_SDS * effects.sd + spreads * student.isf(chances, degrees) * noises
    sizes = np.minimum(limits * noises, np.where(own > 1, alone, np.inf))
    return np.asarray((np.abs(outcomes.means - effects.mean) > sizes) & (outcomes.variances > 0))


def _evidence(given: MeanOutcomes, factors: np.ndarray, unit: Discrepancy | None) -> np.ndarray:
    """Return the log evidence for factors of the noise, (f, 1), or (f, k) for each amplitude.

    unit: a discrepancy to which the amplitudes refer; None for the mechanisms alone.
    """
    blocks = [] if unit is None else unit.blocks(given.outcomes.queries)
    amplitudes = np.zeros(1) if unit is None else AMPLITUDES
    added = np.zeros(len(given.residuals) + 1)  # the last one is padding
    for indices, part in blocks:
        added[indices] = (part**2).sum(axis=2)
    noises = given.noises(factors, amplitudes.max() ** 2 * added[:-1])
    numbers = len(amplitudes) * noises.size * (given.features.shape[1] + 1)
    pieces = np.array_split(noises, min(len(noises), 1 + numbers // MOST_NUMBERS))
    columns = (given.features, blocks, amplitudes, given.residuals)
    return np.concatenate([log_evidences(*columns, piece) for piece in pieces])


def noise_factors(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of the noise, and logarithms of their prior probabilities.

    They reach ten prior sds to both sides of 1; where the noise is known, 1 is the only one.
    """
    if not np.isfinite(degrees):
        return np.ones(1), np.zeros(1)
    logs = np.sqrt(2 / degrees) * np.linspace(-10.0, 10.0, NOISE_FACTORS)
    priors = invgamma.logpdf(np.exp(logs), degrees / 2, scale=degrees / 2) + logs
    return np.exp(logs), priors - logsumexp(priors)


def target_scale(post: Posterior, features: np.ndarray) -> float:
    """Return the sd of the target, in which amplitudes of a discrepancy are measured."""
    known = post.data.outcomes if post.n_observations > 1 else np.zeros(1)
    sds = (float(np.std(known)), float(np.sqrt((features**2).sum(axis=1).mean())), 1.0)
    return next(sd for sd in sds if sd > 0)
