"""A smooth function of its own for every intervention set, for what the mechanisms get wrong.

The residual of the effect of a set s at values x is

    h_s(x) = a sum over members j of u_sj(x_j) / sqrt(|s|),

with independent Gaussian processes u_sj of variance 1 and squared exponential covariances, whose
lengthscale is a share of the width of the member's domain. They are written in a finite basis, and
sets without outcomes need none: their residuals have their prior's variance, about a^2.

Do the outcomes ask for a residual, and how noisy are they? Both are decided by their evidence.

The outcomes y of t interventions are N(m, K + c V + R) under the mechanisms alone: K is the causal
kernel, V the noise that the model implies and R what linearization leaves out. The factor c of the
noise has an inverse gamma prior around 1, with the degrees of freedom of the rows. With a residual
a^2 H(l) is added. Amplitudes a and lengthscales l lie on a grid and have a prior; so the evidence
of both hypotheses is a sum, and their ratio is a Bayes factor: while the mechanisms are right, the
chance that it ever exceeds 20 is at most 1 in 20 (Ville).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import logsumexp
from scipy.stats import chi2, invgamma, norm

from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.surrogates.weights import condition, log_evidences, log_evidences_in_blocks

# Lengthscales in widths of a domain, each with its probability before any outcome.
LENGTHS = {0.05: 0.10, 0.1: 0.20, 0.2: 0.30, 0.4: 0.25, 0.8: 0.15}
NODES = 80  # of the grid on which the basis is found
LEAST_EIGENVALUE = 1e-10  # of the largest eigenvalue there: what the basis leaves out


@lru_cache(maxsize=16)
def _projection(length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (n,) in [0, 1], and a matrix (n, m) that takes covariances to basis functions.

    The basis functions are those of Nystrom's method: exact at the nodes, up to `LEAST`.
    """
    nodes = (chebpts1(NODES) + 1) / 2
    sizes, directions = np.linalg.eigh(_covariances(nodes, nodes, length))
    kept = sizes > LEAST_EIGENVALUE * sizes.max()
    return nodes, directions[:, kept] / np.sqrt(sizes[kept])


def _covariances(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * ((left[:, None] - right[None]) / length) ** 2))


def basis(positions: np.ndarray, length: float) -> np.ndarray:
    """Return basis functions (n, m) of one process at positions (n,) in [0, 1]."""
    nodes, projection = _projection(length)
    return np.asarray(_covariances(positions, nodes, length) @ projection)


@dataclass(frozen=True, eq=False)
class Residual:
    """Residuals of all sets, written in a basis for those that have outcomes.

    low, width: (p,) of the domains, beyond which a residual keeps its value at the edge. kinds:
    (S, p), the sets with outcomes as masks. amplitude: a, in units of the target. length: the
    lengthscale, in widths of the domains.
    """

    low: np.ndarray
    width: np.ndarray
    kinds: np.ndarray
    amplitude: float = 1.0
    length: float = 0.2

    def having(self, queries: Queries) -> "Residual":
        """Return the same residual with a basis for the sets of more queries."""
        kinds = np.concatenate([self.kinds, np.asarray(queries.mask)])
        return replace(self, kinds=_distinct(kinds))

    def _members(self) -> Iterator[tuple[np.ndarray, int]]:
        for kind in self.kinds:
            for position in np.flatnonzero(kind):
                yield kind, int(position)

    @property
    def size(self) -> int:
        """The number of basis functions."""
        each = _projection(self.length)[1].shape[1]
        return int(each * self.kinds.sum())

    def _positions(self, value: np.ndarray, position: int) -> np.ndarray:
        return np.asarray(
            np.clip((value[:, position] - self.low[position]) / self.width[position], 0, 1)
        )

    def features(self, queries: Queries) -> np.ndarray:
        """Return features (M, m): the residual is their product with m standard weights."""
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        found, each = np.zeros((len(mask), self.size)), _projection(self.length)[1].shape[1]
        rows = {kind.tobytes(): np.flatnonzero((mask == kind).all(axis=1)) for kind in self.kinds}
        for at, (kind, position) in enumerate(self._members()):
            own = rows[kind.tobytes()]
            scale = self.amplitude / np.sqrt(kind.sum())
            part = basis(self._positions(value[own], position), self.length)
            found[own, at * each : (at + 1) * each] = scale * part
        return found

    def blocks(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the features set by set, for sets of one size with about as many queries at once.

        Each pair holds the rows (S, T) of S sets, -1 where they are filled up, and the features
        (S, T, m) of these sets' own weights, 0 there.
        """
        mask = np.asarray(queries.mask)
        found: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        for kind in self.kinds:
            rows = np.flatnonzero((mask == kind).all(axis=1))
            if len(rows):
                own = replace(self, kinds=kind[None]).features(queries[rows])
                size = 1 << (len(rows) - 1).bit_length()
                filled = np.concatenate([rows, np.full(size - len(rows), -1)])
                more = np.zeros((size - len(rows), own.shape[1]))
                found.setdefault((size, own.shape[1]), []).append(
                    (filled, np.concatenate([own, more]))
                )
        return [
            (np.stack([rows for rows, _ in group]), np.stack([own for _, own in group]))
            for group in found.values()
        ]

    def unexplored(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return rows and features (n, m) of the queries of each set without outcomes.

        An intervention that sets nothing is no experiment and has no residual.
        """
        mask, known = np.asarray(queries.mask), {kind.tobytes() for kind in self.kinds}
        found = []
        for kind in _distinct(mask):
            if kind.tobytes() not in known:
                rows = np.flatnonzero((mask == kind).all(axis=1))
                found.append((rows, replace(self, kinds=kind[None]).features(queries[rows])))
        return found

    def unexplored_variances(self, queries: Queries) -> np.ndarray:
        """Return the variances (M,) of residuals of sets without outcomes; 0 for the others."""
        mask, known = np.asarray(queries.mask), {kind.tobytes() for kind in self.kinds}
        is_new = np.array([row.any() and row.tobytes() not in known for row in mask], bool)
        return np.where(is_new, self.amplitude**2, 0.0)


def begin_residual(problem: Problem) -> Residual:
    """Return the residual of a problem before any outcome."""
    nodes = problem.graph.nodes
    bounds = np.array([problem.domains.get(name, (0.0, 1.0)) for name in nodes], float)
    kinds = np.zeros((0, len(nodes)), bool)
    return Residual(bounds[:, 0], bounds[:, 1] - bounds[:, 0], kinds)


def _distinct(kinds: np.ndarray) -> np.ndarray:
    """Return distinct masks that set something, in the order in which they first appear."""
    found = {kind.tobytes(): kind for kind in kinds if kind.any()}
    return np.array(list(found.values()), bool).reshape(-1, kinds.shape[1])


ENOUGH = 20.0  # the Bayes factor from which on a residual is used
MISSED, RARELY = 2.0, 1e-3  # r'K^-1 r / t of outcomes that are missed by far, and how rare it is
AMPLITUDES = np.geomspace(0.01, 10.0, 13)  # in units of the target's sd
USUAL, SPREAD = 0.3, 1.5  # of the amplitude's prior: median, and sd of its logarithm
FACTORS = 21  # of the noise
FEWEST = 3.0  # degrees of freedom: with fewer a variance has no posterior mean
MOST = 64  # interventions whose covariance is formed; more are judged set by set
LEAST_NOISE = 1e-10  # of an effect's prior variance: the noise of an outcome that has none


class Options(NamedTuple):
    """What a coupled surrogate may learn besides theta.

    residual: False, True, or "auto": as soon as the evidence of the outcomes asks for it.
    learns_noise: whether the variance of the outcomes' noise is known up to a common factor only.
    """

    residual: bool | str = False
    learns_noise: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether only theta is learned."""
        return self.residual is False and not self.learns_noise


class Learned(NamedTuple):
    """What the evidence of all outcomes says besides theta.

    residual: None where there is none. noise: the factor of the noise's variance. log_factor: the
    logarithm of the Bayes factor of a residual against none.
    """

    residual: Residual | None = None
    noise: float = 1.0
    log_factor: float = -np.inf


class Outcomes(NamedTuple):
    """What is known of t mean outcomes before a residual is considered.

    features: (t, r) of the causal kernel. residuals: (t,) what the posterior mean does not explain.
    noises: (t,) variances of the means' noise, as the model implies it or as given. left_out: (t,)
    what linearization leaves out. repeats: how many outcomes are replicates of others. within: sum
    of their squared distances from their means, in units of their noise. scale: the target's sd.
    degrees: of freedom of the noise's variance; infinite where it is known.
    """

    features: np.ndarray
    residuals: np.ndarray
    noises: np.ndarray
    left_out: np.ndarray
    repeats: int
    within: float
    scale: float
    degrees: float


class Judgement(NamedTuple):
    """What the evidence says.

    log_factor: the logarithm of the Bayes factor of a residual against none. residual: the most
    probable one. noise_alone, noise_with: factor of the noise, without and with it.
    """

    log_factor: float
    residual: Residual | None
    noise_alone: float
    noise_with: float


class Added(NamedTuple):
    """What a residual of amplitude 1 adds to t outcomes.

    variances: (t,). gram: (t, t) where they are few, otherwise empty. blocks: see
    `Residual.blocks`.
    """

    variances: np.ndarray
    gram: np.ndarray
    blocks: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, residual: Residual, queries: Queries) -> "Added":
        """Return what a residual adds to the outcomes of t queries."""
        blocks, count = residual.blocks(queries), len(queries)
        variances = np.zeros(count)
        gram = np.zeros((count, count) if count <= MOST else (0, 0))
        for rows, factors in blocks:
            for own, each in zip(rows, factors, strict=True):
                own, each = own[own >= 0], each[own >= 0]
                variances[own] = (each**2).sum(axis=1)
                if len(gram):
                    gram[np.ix_(own, own)] = each @ each.T
        return cls(variances, gram, blocks)


def judge(outcomes: Outcomes, residual: Residual | None, queries: Queries) -> Judgement:
    """Compare the mechanisms alone with the mechanisms and a residual.

    residual: of the problem, with a basis for the sets of all outcomes; None where none is
    considered. queries: the t interventions.
    """
    factors, chances = noise_factors(outcomes.degrees)
    alone = np.array([_evidence(outcomes, each, None) for each in factors]).ravel()
    alone += _within(outcomes, factors) + chances
    noise = float(np.exp(alone - logsumexp(alone)) @ factors)
    if residual is None:
        return Judgement(-np.inf, None, noise, noise)
    priors = norm.logpdf(np.log(AMPLITUDES), np.log(USUAL), SPREAD)
    priors -= logsumexp(priors)
    found = np.empty((len(LENGTHS), len(factors), len(AMPLITUDES)))
    for at, (length, chance) in enumerate(LENGTHS.items()):
        added = Added.of(replace(residual, amplitude=outcomes.scale, length=length), queries)
        for position, each in enumerate(factors):
            found[at, position] = _evidence(outcomes, each, added) + priors + np.log(chance)
    found += (_within(outcomes, factors) + chances)[:, None]
    log_factor = float(logsumexp(found) - logsumexp(alone))
    by_scale = logsumexp(found, axis=1)
    row, column = divmod(first_largest(by_scale.ravel()), len(AMPLITUDES))
    chosen = replace(
        residual,
        amplitude=float(outcomes.scale * AMPLITUDES[column]),
        length=list(LENGTHS)[row],
    )
    weights = logsumexp(found, axis=(0, 2))
    noise_with = float(np.exp(weights - logsumexp(weights)) @ factors)
    return Judgement(log_factor, chosen, noise, noise_with)


def is_missed(outcomes: Outcomes, factor: float) -> bool:
    """Return whether the mechanisms alone miss t outcomes by far: r'K^-1 r / t exceeds 2.

    K is the covariance of the outcomes, with a factor of the noise. Of few outcomes r'K^-1 r varies
    much, so that a chi-square variable must also exceed it in less than one of 1,000 cases.
    """
    count = len(outcomes.residuals)
    if not count:
        return False
    noises = _noises(outcomes, factor, (outcomes.features**2).sum(axis=1))
    weights = condition(outcomes.features, outcomes.residuals, 1 / noises).mean
    gaps = outcomes.residuals - outcomes.features @ weights
    total = float((gaps**2 / noises).sum() + weights @ weights)
    return total > MISSED * count and float(chi2.sf(total, count)) < RARELY


def _noises(outcomes: Outcomes, factor: float, prior: np.ndarray) -> np.ndarray:
    """Return the noise (t,) of each outcome; prior: variances of the effects."""
    noises = factor * outcomes.noises + outcomes.left_out + LEAST_NOISE * prior
    return np.where(noises > 0, noises, LEAST_NOISE * outcomes.scale**2)  # an effect that is known


def _evidence(outcomes: Outcomes, factor: float, added: "Added | None") -> np.ndarray:
    """Return the log evidence with a factor of the noise: (1,), or (k,) for each amplitude."""
    causal = outcomes.features
    scales = np.zeros(1) if added is None else AMPLITUDES
    prior = (causal**2).sum(axis=1)
    if added is not None:
        prior = prior + scales.max() ** 2 * added.variances
    noises = _noises(outcomes, factor, prior)
    if len(causal) > MOST:
        blocks = [] if added is None else added.blocks
        return log_evidences_in_blocks(causal, blocks, scales, outcomes.residuals, noises)
    gram = np.broadcast_to(causal @ causal.T, (len(scales), len(causal), len(causal)))
    if added is not None:
        gram = gram + scales[:, None, None] ** 2 * added.gram
    return log_evidences(gram, outcomes.residuals, noises)


def _within(outcomes: Outcomes, factors: np.ndarray) -> np.ndarray:
    """Return the log evidence (F,) of distances among replicates, for each factor of the noise."""
    return np.asarray(-0.5 * (outcomes.repeats * np.log(factors) + outcomes.within / factors))


def noise_factors(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of the noise, and logarithms of their prior probabilities.

    They reach ten prior sds to both sides of 1; where the noise is known, 1 is the only one.
    """
    if not np.isfinite(degrees):
        return np.ones(1), np.zeros(1)
    logs = np.sqrt(2 / degrees) * np.linspace(-10.0, 10.0, FACTORS)
    priors = invgamma.logpdf(np.exp(logs), degrees / 2, scale=degrees / 2) + logs
    return np.exp(logs), priors - logsumexp(priors)


def noise_degrees(post: Posterior) -> float:
    """Return the degrees of freedom with which a posterior knows the noise of the target.

    These are the rows in which the target was not set, minus the parameters of its equation.
    """
    if not post.n_observations:
        return FEWEST
    data, graph = post.data, post.problem.graph
    free = ~data.intervened[:, graph.index(post.problem.target)]
    return float(max(free.sum() - len(graph.parents(post.problem.target)) - 1, FEWEST))


def target_scale(post: Posterior, features: np.ndarray) -> float:
    """Return the sd of the target, in which amplitudes of a residual are measured."""
    known = post.data.outcomes if post.n_observations > 1 else np.zeros(1)
    sds = (float(np.std(known)), float(np.sqrt((features**2).sum(axis=1).mean())), 1.0)
    return next(each for each in sds if each > 0)
