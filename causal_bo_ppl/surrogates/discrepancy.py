"""Model discrepancy: a smooth function for every intervention set, for what the mechanisms miss.

The discrepancy of the effect of a set s at values x is

    h_s(x) = a sum over members j of u_sj(x_j) / sqrt(|s|),

with independent Gaussian processes u_sj of variance 1 and squared exponential covariances, whose
lengthscale is a share of the width of the member's domain. They are written in a finite basis, and
sets without outcomes need none: their discrepancies have their prior's variance, about a^2.

Whether there is one, and how noisy outcomes are, is decided by the evidence. The outcomes y of t
interventions are N(m, K + c V + R) under the mechanisms alone: K is the causal kernel, V the noise
that the model implies and R the linearization error. The factor c of the noise has an inverse gamma
prior around 1, with the degrees of freedom of the data. With a discrepancy a^2 H(l) is added.
Amplitudes a and lengthscales l lie on a grid and have a prior; so the evidence of both hypotheses
is a sum, and their ratio is a Bayes factor: while the mechanisms are right, the chance that it ever
exceeds 20 is at most 1 in 20 (Ville).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import logsumexp
from scipy.stats import invgamma, norm

from causal_bo_ppl.data.observations import Replicates
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import CovarianceBlock, first_largest, log_evidences, shorten
from causal_bo_ppl.problem import Problem, Queries

# Lengthscales in widths of a domain, each with its prior probability.
LENGTHSCALES = {0.05: 0.10, 0.1: 0.20, 0.2: 0.30, 0.4: 0.25, 0.8: 0.15}
NYSTROM_NODES = 80  # of the grid on which the basis is computed
LEAST_EIGENVALUE = 1e-10  # of the largest eigenvalue there: directions below it are dropped
DECISIVE_BAYES_FACTOR = 20.0  # from which on a discrepancy is used
AMPLITUDES = np.geomspace(0.01, 10.0, 13)  # in units of the target's sd
MEDIAN_AMPLITUDE, AMPLITUDE_SPREAD = 0.3, 1.5  # prior median, and prior sd of the logarithm
NOISE_FACTORS = 21  # of the grid of noise factors
MOST_NUMBERS = 4_000_000  # in one array of the evidence: 32 MB
LEAST_NOISE = 1e-10  # of an effect's prior variance: the noise of an outcome that has none


@lru_cache(maxsize=16)
def _projection(lengthscale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (n,) in [0, 1], and a matrix (n, m) that takes covariances to basis functions.

    The basis functions are those of Nystrom's method: exact at the nodes, up to `LEAST_EIGENVALUE`.
    """
    nodes = (chebpts1(NYSTROM_NODES) + 1) / 2
    sizes, directions = np.linalg.eigh(_correlations(nodes, nodes, lengthscale))
    used = sizes > LEAST_EIGENVALUE * sizes.max()
    return nodes, directions[:, used] / np.sqrt(sizes[used])


def _correlations(left: np.ndarray, right: np.ndarray, lengthscale: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * ((left[:, None] - right[None]) / lengthscale) ** 2))


def basis(points: np.ndarray, lengthscale: float) -> np.ndarray:
    """Return basis functions (n, m) of one process at points (n,) in [0, 1]."""
    nodes, projection = _projection(lengthscale)
    return np.asarray(_correlations(points, nodes, lengthscale) @ projection)


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """Discrepancies of all sets, written in a basis for those that have outcomes.

    low, width: (p,) of the domains, beyond which a discrepancy keeps its value at the edge. sets:
    (S, p), masks of the sets with outcomes. amplitude: a, in units of the target. lengthscale: in
    widths of the domains.
    """

    low: np.ndarray
    width: np.ndarray
    sets: np.ndarray
    amplitude: float = 1.0
    lengthscale: float = 0.2

    def with_sets_of(self, queries: Queries) -> "Discrepancy":
        """Return the same discrepancy with a basis for the sets of more queries."""
        masks = np.concatenate([self.sets, np.asarray(queries.mask)])
        return replace(self, sets=_distinct(masks))

    @property
    def size(self) -> int:
        """The number of basis functions."""
        return int(_projection(self.lengthscale)[1].shape[1] * self.sets.sum())

    def _parts(
        self, sets: Iterable[np.ndarray], queries: Queries
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, for each set, the indices of its queries and features (n, m) of its functions."""
        mask, shares = np.asarray(queries.mask), (np.asarray(queries.value) - self.low) / self.width
        for members in sets:
            own = np.flatnonzero((mask == members).all(axis=1))
            inside, scale = np.clip(shares[own], 0, 1), self.amplitude / np.sqrt(members.sum())
            columns = [inside[:, index] for index in np.flatnonzero(members)]
            parts = [scale * basis(column, self.lengthscale) for column in columns]
            yield own, np.concatenate(parts, axis=1)

    def features(self, queries: Queries) -> np.ndarray:
        """Return features (M, m): the discrepancy is their product with m standard weights."""
        features, start = np.zeros((len(queries), self.size)), 0
        for own, part in self._parts(self.sets, queries):
            features[own, start : start + part.shape[1]] = part
            start += part.shape[1]
        return features

    def blocks(self, queries: Queries) -> list[CovarianceBlock]:
        """Return the features set by set, for sets of one size with about as many queries at once.

        See `CovarianceBlock`; the features are those of each set's basis functions alone.
        """
        groups: dict[tuple[int, int], list[CovarianceBlock]] = {}
        for own, part in self._parts(self.sets, queries):
            if len(own):
                size = 1 << (len(own) - 1).bit_length()
                padding = (0, size - len(own))
                padded = (np.pad(own, padding, constant_values=-1), np.pad(part, (padding, (0, 0))))
                groups.setdefault((size, part.shape[1]), []).append(padded)
        return [
            (np.stack([indices for indices, _ in group]), np.stack([part for _, part in group]))
            for group in groups.values()
        ]

    def unexplored(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return indices and features (n, m) of the queries of each set without outcomes.

        An intervention that sets nothing is no experiment and has no discrepancy.
        """
        known = {members.tobytes() for members in self.sets}
        found = _distinct(np.asarray(queries.mask))
        new = [members for members in found if members.tobytes() not in known]
        return list(self._parts(new, queries))

    def unexplored_variances(self, queries: Queries) -> np.ndarray:
        """Return the variances (M,) of discrepancies of sets without outcomes; 0 for the others."""
        mask, known = np.asarray(queries.mask), {members.tobytes() for members in self.sets}
        is_new = np.array([row.any() and row.tobytes() not in known for row in mask], bool)
        return np.where(is_new, self.amplitude**2, 0.0)


def no_discrepancy(problem: Problem) -> Discrepancy:
    """Return the discrepancy of a problem before any outcome."""
    nodes = problem.graph.nodes
    bounds = np.array([problem.domains.get(name, (0.0, 1.0)) for name in nodes], float)
    return Discrepancy(bounds[:, 0], bounds[:, 1] - bounds[:, 0], np.zeros((0, len(nodes)), bool))


def _distinct(masks: np.ndarray) -> np.ndarray:
    """Return distinct masks that set something, in the order in which they first appear."""
    found = {members.tobytes(): members for members in masks if members.any()}
    return np.array(list(found.values()), bool).reshape(-1, masks.shape[1])


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


def judge(given: MeanOutcomes, discrepancy: Discrepancy | None) -> tuple[Learned, Learned]:
    """Return what is learned with the mechanisms alone, and with the most probable discrepancy.

    discrepancy: of the problem, with a basis for the sets of all outcomes; None where none is
    considered.
    """
    given = given._replace(features=shorten(given.features))
    factors, log_priors = noise_factors(given.degrees)
    # Distances among replicates depend on the factor of the noise alone.
    repeats = int((given.outcomes.counts - 1).sum())
    within = float(given.outcomes.squares.sum())
    spread = -0.5 * (repeats * np.log(factors) + within / factors) + log_priors
    alone = _evidence(given, factors, None)[:, 0] + spread
    noise = float(np.exp(alone - logsumexp(alone)) @ factors)
    if discrepancy is None:
        return Learned(noise=noise), Learned(noise=noise)
    priors = norm.logpdf(np.log(AMPLITUDES), np.log(MEDIAN_AMPLITUDE), AMPLITUDE_SPREAD)
    priors -= logsumexp(priors)
    evidence = np.empty((len(LENGTHSCALES), len(factors), len(AMPLITUDES)))
    for row, (lengthscale, chance) in enumerate(LENGTHSCALES.items()):
        unit = replace(discrepancy, amplitude=given.scale, lengthscale=lengthscale)
        evidence[row] = _evidence(given, factors, unit) + priors + np.log(chance)
    evidence += spread[:, None]
    best = first_largest(logsumexp(evidence, axis=1).ravel())
    row, column = divmod(best, len(AMPLITUDES))
    chosen = replace(
        discrepancy,
        amplitude=float(given.scale * AMPLITUDES[column]),
        lengthscale=list(LENGTHSCALES)[row],
    )
    weights = logsumexp(evidence, axis=(0, 2))
    noise_with = float(np.exp(weights - logsumexp(weights)) @ factors)
    log_factor = float(logsumexp(evidence) - logsumexp(alone))
    return Learned(None, noise, log_factor), Learned(chosen, noise_with, log_factor)


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
