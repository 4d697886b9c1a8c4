"""Model discrepancy: a smooth function for every intervention set, for what the mechanisms miss.

The discrepancy of the effect of a set s at values x is

    h_s(x) = a sum over members j of u_sj(x_j) / sqrt(|s|),

with independent Gaussian processes u_sj of variance 1 and squared exponential covariances, whose
lengthscale is a share of the width of the member's domain. They are written in a finite basis, and
sets without outcomes need none: their discrepancies have their prior's variance, about a^2.

Do the outcomes favour a discrepancy, and how noisy are they? Both are decided by the evidence.

The outcomes y of t interventions are N(m, K + c V + R) under the mechanisms alone: K is the causal
kernel, V the noise that the model implies and R the linearization error. The factor c of the noise
has an inverse gamma prior around 1, with the degrees of freedom of the data. With a discrepancy
a^2 H(l) is added. Amplitudes a and lengthscales l lie on a grid and have a prior; so the evidence
of both hypotheses is a sum, and their ratio is a Bayes factor: while the mechanisms are right, the
chance that it ever exceeds 20 is at most 1 in 20 (Ville).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import logsumexp
from scipy.stats import invgamma, norm

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.problem import Problem, Queries

# Lengthscales in widths of a domain, each with its prior probability.
LENGTHSCALES = {0.05: 0.10, 0.1: 0.20, 0.2: 0.30, 0.4: 0.25, 0.8: 0.15}
NYSTROM_NODES = 80  # of the grid on which the basis is computed
LEAST_EIGENVALUE = 1e-10  # of the largest eigenvalue there: directions below it are dropped
DECISIVE_BAYES_FACTOR = 20.0  # from which on a discrepancy is used
AMPLITUDES = np.geomspace(0.01, 10.0, 13)  # in units of the target's sd
MEDIAN_AMPLITUDE, AMPLITUDE_SPREAD = 0.3, 1.5  # prior median, and prior sd of the logarithm
NOISE_FACTORS = 21  # of the grid of noise factors
FEWEST_DEGREES = 3.0  # of freedom: with fewer a variance has no posterior mean
MOST_IN_DENSE_GRAM = 64  # interventions whose covariance is formed; more are handled set by set
LEAST_NOISE = 1e-10  # of an effect's prior variance: the noise of an outcome that has none
LEAST_BLOCK_EIGENVALUE = 1e-14  # of a block's largest eigenvalue: smaller ones are rounding
LOG_TWO_PI = float(np.log(2 * np.pi))

# Indices (S, T) of the queries of S sets, -1 for padding, and features (S, T, m), 0 for padding.
FeatureBlock = tuple[np.ndarray, np.ndarray]


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

    def _set_features(self, members: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the features (n, m) of the basis functions of one set at values (n, p)."""
        scale = self.amplitude / np.sqrt(members.sum())
        shares = np.clip((value - self.low) / self.width, 0, 1)
        parts = [
            scale * basis(shares[:, index], self.lengthscale) for index in np.flatnonzero(members)
        ]
        return np.concatenate(parts, axis=1)

    def features(self, queries: Queries) -> np.ndarray:
        """Return features (M, m): the discrepancy is their product with m standard weights."""
        value = np.asarray(queries.value)
        features, start = np.zeros((len(value), self.size)), 0
        for members in self.sets:
            own = _indices_of(members, queries)
            part = self._set_features(members, value[own])
            features[own, start : start + part.shape[1]] = part
            start += part.shape[1]
        return features

    def blocks(self, queries: Queries) -> list[FeatureBlock]:
        """Return the features set by set, for sets of one size with about as many queries at once.

        See `FeatureBlock`; the features are those of each set's basis functions alone.
        """
        groups: dict[tuple[int, int], list[FeatureBlock]] = {}
        for members in self.sets:
            own = _indices_of(members, queries)
            if len(own):
                part = self._set_features(members, np.asarray(queries.value)[own])
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
        parts = []
        for members in _distinct(np.asarray(queries.mask)):
            if members.tobytes() not in known:
                own = _indices_of(members, queries)
                parts.append((own, self._set_features(members, np.asarray(queries.value)[own])))
        return parts

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


def _indices_of(members: np.ndarray, queries: Queries) -> np.ndarray:
    """Return the indices of the queries of one set."""
    return np.flatnonzero((np.asarray(queries.mask) == members).all(axis=1))


class MeanOutcomes(NamedTuple):
    """Mean outcomes of t interventions, and what the mechanisms alone imply for them.

    features: (t, r) of the causal kernel. residuals: (t,) means less the effects at the posterior
    mean. noises: (t,) variances of the means' noise, as the model implies it or as given.
    remainders: (t,) variances of the linearization error. repeats: how many outcomes are replicates
    of others. within: sum of their squared distances from their means, in units of their noise.
    scale: the target's sd. degrees: of freedom of the noise's variance; infinite where it is known.
    """

    features: np.ndarray
    residuals: np.ndarray
    noises: np.ndarray
    remainders: np.ndarray
    repeats: int
    within: float
    scale: float
    degrees: float

    def total_noises(self, factor: float, prior: np.ndarray) -> np.ndarray:
        """Return the noise (t,) of each mean, linearization error included.

        factor: of the noise. prior: variances (t,) of the effects.
        """
        noises = factor * self.noises + self.remainders + LEAST_NOISE * prior
        return np.where(noises > 0, noises, LEAST_NOISE * self.scale**2)  # an effect that is known


class Judgement(NamedTuple):
    """The evidence for a discrepancy.

    log_factor: the logarithm of the Bayes factor of a discrepancy against none. discrepancy: the
    most probable one. noise_alone, noise_with: factor of the noise, without and with it.
    """

    log_factor: float
    discrepancy: Discrepancy | None
    noise_alone: float
    noise_with: float


class DiscrepancyCovariance(NamedTuple):
    """What a discrepancy adds to the covariance of t outcomes.

    variances: (t,). gram: (t, t) where they are few, otherwise empty. blocks: see
    `Discrepancy.blocks`.
    """

    variances: np.ndarray
    gram: np.ndarray
    blocks: list[FeatureBlock]

    @classmethod
    def of(cls, discrepancy: Discrepancy, queries: Queries) -> "DiscrepancyCovariance":
        """Return what a discrepancy adds to the outcomes of t queries."""
        blocks, count = discrepancy.blocks(queries), len(queries)
        variances = np.zeros(count)
        gram = np.zeros((count, count) if count <= MOST_IN_DENSE_GRAM else (0, 0))
        for indices, features in blocks:
            for own, part in zip(indices, features, strict=True):
                own, part = own[own >= 0], part[own >= 0]
                variances[own] = (part**2).sum(axis=1)
                if len(gram):
                    gram[np.ix_(own, own)] = part @ part.T
        return cls(variances, gram, blocks)


def judge(outcomes: MeanOutcomes, discrepancy: Discrepancy | None, queries: Queries) -> Judgement:
    """Compare the mechanisms alone with the mechanisms and a discrepancy.

    discrepancy: of the problem, with a basis for the sets of all outcomes; None where none is
    considered. queries: the t interventions.
    """
    factors, log_priors = noise_factors(outcomes.degrees)
    # Distances among replicates depend on the factor of the noise alone.
    spread = -0.5 * (outcomes.repeats * np.log(factors) + outcomes.within / factors) + log_priors
    alone = np.array([_evidence(outcomes, factor, None) for factor in factors]).ravel() + spread
    noise = float(np.exp(alone - logsumexp(alone)) @ factors)
    if discrepancy is None:
        return Judgement(-np.inf, None, noise, noise)
    priors = norm.logpdf(np.log(AMPLITUDES), np.log(MEDIAN_AMPLITUDE), AMPLITUDE_SPREAD)
    priors -= logsumexp(priors)
    evidence = np.empty((len(LENGTHSCALES), len(factors), len(AMPLITUDES)))
    for row, (lengthscale, chance) in enumerate(LENGTHSCALES.items()):
        unit = replace(discrepancy, amplitude=outcomes.scale, lengthscale=lengthscale)
        added = DiscrepancyCovariance.of(unit, queries)
        for column, factor in enumerate(factors):
            evidence[row, column] = _evidence(outcomes, factor, added) + priors + np.log(chance)
    evidence += spread[:, None]
    best = first_largest(logsumexp(evidence, axis=1).ravel())
    row, column = divmod(best, len(AMPLITUDES))
    chosen = replace(
        discrepancy,
        amplitude=float(outcomes.scale * AMPLITUDES[column]),
        lengthscale=list(LENGTHSCALES)[row],
    )
    weights = logsumexp(evidence, axis=(0, 2))
    noise_with = float(np.exp(weights - logsumexp(weights)) @ factors)
    return Judgement(float(logsumexp(evidence) - logsumexp(alone)), chosen, noise, noise_with)


def _evidence(
    outcomes: MeanOutcomes, factor: float, added: DiscrepancyCovariance | None
) -> np.ndarray:
    """Return the log evidence with a factor of the noise: (1,), or (k,) for each amplitude."""
    causal = outcomes.features
    scales = np.zeros(1) if added is None else AMPLITUDES
    prior = (causal**2).sum(axis=1)
    if added is not None:
        prior = prior + scales.max() ** 2 * added.variances
    noises = outcomes.total_noises(factor, prior)
    if len(causal) > MOST_IN_DENSE_GRAM:
        blocks = [] if added is None else added.blocks
        return log_evidences_in_blocks(causal, blocks, scales, outcomes.residuals, noises)
    gram = np.broadcast_to(causal @ causal.T, (len(scales), len(causal), len(causal)))
    if added is not None:
        gram = gram + scales[:, None, None] ** 2 * added.gram
    return log_evidences(gram, outcomes.residuals, noises)


def log_evidences(gram: np.ndarray, residuals: np.ndarray, noises: np.ndarray) -> np.ndarray:
    """Return log N(residuals; 0, gram + diag(noise)) for stacks (..., t, t) and (..., t)."""
    size = len(residuals)
    root = np.linalg.cholesky(gram + noises[..., None] * np.eye(size))
    values = np.broadcast_to(residuals[:, None], (*root.shape[:-1], 1))
    white = np.linalg.solve(root, values)[..., 0]
    return np.asarray(-0.5 * ((white**2).sum(axis=-1) + _log_determinant(root) + size * LOG_TWO_PI))


def log_evidences_in_blocks(
    features: np.ndarray,
    blocks: Sequence[FeatureBlock],
    amplitudes: np.ndarray,
    residuals: np.ndarray,
    noises: np.ndarray,
) -> np.ndarray:
    """Return log N(residuals; 0, F F' + a^2 B + diag(noise)) for each of k amplitudes a, (k,).

    B is block-diagonal and given by its factors, so that no matrix of the size t is formed: each
    block is diagonalized by itself, in whichever of its two dimensions is smaller.

    Parameters
    ----------
    features:
        F, (t, r).
    blocks:
        Factors of B.
    amplitudes:
        The k amplitudes a.
    residuals, noises:
        Of t outcomes, (t,).
    """
    white = np.append(1 / np.sqrt(noises), 0.0)
    columns = np.column_stack([features * white[:-1, None], residuals * white[:-1]])
    columns = np.concatenate([columns, np.zeros((1, columns.shape[1]))])
    width = columns.shape[1]
    spectra, rotated = [np.zeros(0)], [np.zeros((0, width))]
    in_no_block = np.ones(len(columns), bool)
    unaffected = np.zeros((width, width))  # products of columns that no block changes
    for indices, factors in blocks:
        in_no_block[indices] = False
        spectrum, along = _diagonalize(factors * white[indices][..., None], columns[indices])
        spectra.append(spectrum)
        rotated.append(along)
        if factors.shape[1] > factors.shape[2]:
            own = columns[indices].reshape(-1, width)
            unaffected = unaffected + own.T @ own - along.T @ along
    along = np.concatenate(rotated)
    unaffected = unaffected + columns[in_no_block].T @ columns[in_no_block]
    spread = amplitudes[:, None] ** 2 * np.concatenate(spectra)
    products = (along[:, :, None] * along[:, None, :]).reshape(len(along), width**2)
    shrunk = (1 / (1 + spread)) @ products
    whole = unaffected + shrunk.reshape(len(amplitudes), width, width)
    root = np.linalg.cholesky(np.eye(width - 1) + whole[:, :-1, :-1])
    explained = np.linalg.solve(root, whole[:, :-1, -1][..., None])[..., 0]
    logs = _log_determinant(root) + np.log1p(spread).sum(axis=1) + np.log(noises).sum()
    misfit = whole[:, -1, -1] - (explained**2).sum(axis=-1)
    return np.asarray(-0.5 * (misfit + logs + len(residuals) * LOG_TWO_PI))


def _log_determinant(root: np.ndarray) -> np.ndarray:
    """Return the log determinants (...) of matrices with these Cholesky factors."""
    return np.asarray(2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1))


def _diagonalize(factors: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (n,) of all blocks, and columns (S, T, c) along eigenvectors, (n, c)."""
    transposed = factors.transpose(0, 2, 1)
    if factors.shape[1] <= factors.shape[2]:
        spectrum, vectors = np.linalg.eigh(factors @ transposed)
        along = vectors.transpose(0, 2, 1) @ columns
    else:
        spectrum, vectors = np.linalg.eigh(transposed @ factors)
        least = LEAST_BLOCK_EIGENVALUE * spectrum.max(axis=1, keepdims=True)
        scale = np.where(spectrum > least, 1 / np.sqrt(np.maximum(spectrum, 1e-300)), 0.0)
        along = scale[..., None] * (vectors.transpose(0, 2, 1) @ (transposed @ columns))
    return np.maximum(spectrum, 0.0).ravel(), along.reshape(-1, columns.shape[2])


def noise_factors(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of the noise, and logarithms of their prior probabilities.

    They reach ten prior sds to both sides of 1; where the noise is known, 1 is the only one.
    """
    if not np.isfinite(degrees):
        return np.ones(1), np.zeros(1)
    logs = np.sqrt(2 / degrees) * np.linspace(-10.0, 10.0, NOISE_FACTORS)
    priors = invgamma.logpdf(np.exp(logs), degrees / 2, scale=degrees / 2) + logs
    return np.exp(logs), priors - logsumexp(priors)


def noise_degrees(post: Posterior) -> float:
    """Return the degrees of freedom with which a posterior knows the noise of the target.

    These are the observations in which the target was not set, minus the parameters of its
    equation.
    """
    if not post.n_observations:
        return FEWEST_DEGREES
    data, graph = post.data, post.problem.graph
    free = ~data.intervened[:, graph.index(post.problem.target)]
    return float(max(free.sum() - len(graph.parents(post.problem.target)) - 1, FEWEST_DEGREES))


def target_scale(post: Posterior, features: np.ndarray) -> float:
    """Return the sd of the target, in which amplitudes of a discrepancy are measured."""
    known = post.data.outcomes if post.n_observations > 1 else np.zeros(1)
    sds = (float(np.std(known)), float(np.sqrt((features**2).sum(axis=1).mean())), 1.0)
    return next(sd for sd in sds if sd > 0)
