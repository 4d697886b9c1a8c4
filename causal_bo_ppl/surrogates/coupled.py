"""The coupled surrogate: all effects share theta, so that one outcome informs all of them.

f(z) = m(z) + phi(z)'w + h(z), w ~ N(0, I), with a model discrepancy h = psi(z)'u that is 0 until
the evidence of the outcomes favours it. The prior covariance phi(z)'phi(z') of two effects is that
of a kernel:

- "jacobian": theta = theta_0 + F w with F F' the posterior covariance, and effects are linearized
  at a centre c: g(theta_c, z) + phi(z)'(w - c) with phi(z) = F'J(z)'. The linearization error
  counts as noise of an outcome, so that the surrogate is not overconfident.
- "monte_carlo": phi(z) are the centred effects of draws of theta; nothing is linearized.

So outcomes are a Bayesian linear regression on the weights w and u. Of t means and r weights
the smaller of two systems of equations is solved, of size t or r.

**Discrepancy.** It is a smooth function for every intervention set, for what the mechanisms miss;
that of the effect of a set s at values x is

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
from typing import NamedTuple, Self

import jax
import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import logsumexp
from scipy.stats import chi2, invgamma, norm
from scipy.stats import t as student

from causal_bo_ppl.data.observations import Replicates, merge_replicates
from causal_bo_ppl.effect_estimates.moments import DrawnResponse, WeightedResponse, weigh_response
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count
from causal_bo_ppl.linalg import (
    CovarianceBlock,
    Weights,
    clip_rounding,
    first_largest,
    log_evidences,
    no_weights_known,
    regress,
    shorten,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.responses import Prediction, Response
from causal_bo_ppl.surrogates.base import (
    JointPrediction,
    NoisyOutcomes,
    Numbers,
    as_queries,
    as_query,
    no_noisy_outcomes,
    predicted_outcomes,
    read_noisy_outcomes,
)

KERNELS = ("jacobian", "monte_carlo")
DEFAULT_DRAWS = 512  # of theta: a covariance is off by about 1 / sqrt(512) = 4 % of its scale
DRAWS_SEED = 0  # a constant, so that what is suggested depends on the key of the study alone
MOST_GAUSS_NEWTON_STEPS = 20
SMALL_STEP = 1e-3  # in prior sds: the linearization changes little within
SMALL_GAIN = 1e-7  # relative gain in the log density of theta at which the search ends
FAR_DISTANCE, RARE_PROBABILITY = 2.0, 1e-3  # r'K^-1 r / t of outcomes far off, and its probability
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


@dataclass(frozen=True)
class CoupledMaker:
    """The configuration of the coupled surrogate; see `couple`."""

    discrepancy: bool | str = False
    learns_noise: bool = False
    kernel: str = "jacobian"
    draws: int = DEFAULT_DRAWS
    key: jax.Array | int = DRAWS_SEED

    name = "coupled"

    def __post_init__(self) -> None:
        given = self.discrepancy
        if given not in (True, False, "auto") or not isinstance(given, bool | str):
            raise ArgumentError(f'discrepancy must be True, False or "auto"; got {given!r}')
        if self.kernel not in KERNELS:
            raise ArgumentError(f"kernel must be one of {', '.join(KERNELS)}; got {self.kernel!r}")
        read_count("draws", self.draws, 2)
        as_key(self.key)

    def begin(self, post: Posterior) -> "Coupled":
        """Return the surrogate before any outcome."""
        weighted, is_drawn = weigh_response(require_trusted(post)), self.kernel == "monte_carlo"
        linear = weighted.by_draws(self.draws, self.key) if is_drawn else weighted
        nothing, weights = no_noisy_outcomes(post.problem), no_weights_known(linear.size)
        merged, centre = merge_replicates(*nothing), np.zeros(linear.own)
        return Coupled(linear, centre, weights, nothing, merged, np.zeros(0), self)


@dataclass(frozen=True, eq=False)
class Coupled:
    """The coupled surrogate in weight space; made by `couple(post)`; see `base.Surrogate`.

    centre: theta's weights at which the response is linearized. weights: the posterior of all
    weights. observed: every outcome. outcomes: the same with the replicates of each of t
    interventions merged. remainders: variances (t,) of the linearization errors of their effects.
    maker: what may be learned besides theta. learned: the discrepancy and the noise.
    """

    linear: WeightedResponse | DrawnResponse
    centre: np.ndarray
    weights: Weights
    observed: NoisyOutcomes
    outcomes: Replicates
    remainders: np.ndarray
    maker: CoupledMaker = CoupledMaker()
    learned: Learned = Learned()

    @property
    def post(self) -> Posterior:
        """The posterior of theta before the outcomes."""
        return self.linear.post

    @property
    def discrepancy(self) -> Discrepancy | None:
        """The model discrepancy; None where the evidence does not favour one."""
        return self.learned.discrepancy

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is optimal."""
        return self.discrepancy is None and self.post.distribution.response.is_affine

    @property
    def degrees(self) -> float:
        """Degrees of freedom of Student's t, whose quantiles intervals of effects need."""
        if not self.maker.learns_noise:
            return np.inf
        return self.post.noise_degrees + len(self.observed.values)

    @property
    def response(self) -> Response:
        """The map from theta and queries to effects."""
        return self.linear.response

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights."""
        return self.linear.theta(weights)

    def require_known(self, queries: Queries) -> None:
        """Raise ExplorationError where theta does not determine the effect of a query."""
        self.response.map.batch(queries)

    def _linearize(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets (M,) and features (M, r): effects are offset + phi'w."""
        offsets, causal = self.linear.at(self.centre, queries)
        if self.discrepancy is None:
            return offsets, causal
        return offsets, np.concatenate([causal, self.discrepancy.features(queries)], axis=1)

    def _unexplored(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return indices and discrepancy features of the queries of each set without outcomes."""
        return [] if self.discrepancy is None else self.discrepancy.unexplored(queries)

    def features(self, queries: Queries) -> np.ndarray:
        """Return the derivatives (M, r) of effects in all weights."""
        return self._linearize(queries)[1]

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = as_queries(self.post.problem, queries)
        offsets, features = self._linearize(queries)
        variance = self.weights.variances(features)
        if self.discrepancy is not None:
            variance = variance + self.discrepancy.unexplored_variances(queries)
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def joint(self, queries: Queries) -> JointPrediction:
        """Return mean and joint covariance of the effects of a batch."""
        queries = as_queries(self.post.problem, queries)
        offsets, features = self._linearize(queries)
        covariance = self.weights.times(features) @ features.T
        for indices, part in self._unexplored(queries):
            covariance[np.ix_(indices, indices)] += part @ part.T
        return JointPrediction(offsets + features @ self.weights.mean, covariance)

    def cross_covariance(self, queries: Queries, others: Queries) -> np.ndarray:
        """Return the covariances (M, N) of the effects of two batches."""
        left, right, count = self.features(queries), self.features(others), len(queries)
        covariance = np.asarray(self.weights.times(left) @ right.T)
        for indices, part in self._unexplored(stack([queries, others])):
            first = indices < count
            own, other = indices[first], indices[~first] - count
            covariance[np.ix_(own, other)] += part[first] @ part[~first].T
        return covariance

    def mean_change_variances(
        self, queries: Queries, points: Queries, best: Queries
    ) -> np.ndarray | None:
        """Return how much one observation of all variables changes predictions, (M, J).

        That is the variance of the change of E[f(point) - f(best)] after an observation under each
        query. None where observations do not inform the mechanisms, or their information about the
        weights is not known.
        """
        if self.discrepancy is not None or isinstance(self.linear, DrawnResponse):
            return None
        expected = self.post.expected_information(queries)
        if expected is None:
            return None
        contrasts = self.features(points) - self.features(best)
        information, positions = expected.blocks, expected.positions
        known = information
        if len(self.outcomes.counts):  # outcomes have made groups of weights dependent
            size, covariance = contrasts.shape[1], self.weights.covariance
            information, positions = expected.whole(size)[:, None], np.arange(size)[None]
            known, contrasts = information @ covariance, contrasts @ covariance
        groups = np.where(positions >= 0, contrasts[:, positions], 0.0)
        gained = np.linalg.solve(np.eye(positions.shape[1]) + known, information)
        squares = groups[..., :, None] * groups[..., None, :]
        variances = gained.reshape(len(gained), -1) @ squares.reshape(len(contrasts), -1).T
        return clip_rounding(variances, np.full(variances.shape, (contrasts**2).sum(axis=1)))

    def without_discrepancy(self) -> Self:
        """Return the surrogate of the mechanisms alone given all outcomes."""
        if self.discrepancy is None:
            return self
        return replace(self, maker=replace(self.maker, discrepancy=False))._judge()

    def sample(self, key: jax.Array | int, queries: Queries, n: int = 1) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M)."""
        generator, count = host_generator(as_key(key)), read_count("n", n, 1)
        queries = as_queries(self.post.problem, queries)
        offsets, features = self._linearize(queries)
        draws = np.asarray(offsets + self.weights.draw(count, generator) @ features.T)
        for indices, part in self._unexplored(queries):
            draws[:, indices] += generator.standard_normal((count, part.shape[1])) @ part.T
        return draws

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        query = as_query(self.post.problem, query)
        new = read_noisy_outcomes(self.post, query, outcome, noise)
        mean, sd = self.predict(query)
        variances = sd**2 + self.learned.noise * new.variances + self.linear.noises(query)
        return float(student.logpdf(new.values[0], self.degrees, mean[0], np.sqrt(variances[0])))

    def condition(self, queries: Queries, outcomes: Numbers, noise: Numbers | None = None) -> Self:
        """Return the surrogate conditioned on outcomes (M,) of M queries.

        noise: variances of the outcomes' noise, by default those that the model implies. Once some
        are given, no common factor of them is learned.
        """
        new = read_noisy_outcomes(self.post, queries, outcomes, noise)
        maker = self.maker if noise is None else replace(self.maker, learns_noise=False)
        return replace(self, maker=maker)._join(new)._judge()

    def fantasize(self, queries: Queries, noise: Numbers | None = None) -> Self:
        """Return the surrogate as if queries had come out as predicted.

        Means stay the same, and variances become smaller; the noise and the discrepancy are not
        judged again.
        """
        new, learned = predicted_outcomes(self, queries, noise), self.learned
        if learned.discrepancy is not None:
            learned = learned._replace(discrepancy=learned.discrepancy.with_sets_of(new.queries))
        after = replace(self, learned=learned)._join(new)._condition()
        mean = np.zeros(len(after.weights.mean))  # weights of sets without outcomes stay 0
        mean[: len(self.weights.mean)] = self.weights.mean
        return replace(after, weights=replace(after.weights, mean=mean))

    def _join(self, new: NoisyOutcomes) -> Self:
        """Return the surrogate with more outcomes, from which nothing was learned yet."""
        observed = self.observed.join(new)
        merged = merge_replicates(*observed)
        remainders = self.linear.noises(merged.queries)
        return replace(self, observed=observed, outcomes=merged, remainders=remainders)

    def _judge(self) -> Self:
        """Return the surrogate after the evidence of all outcomes was weighed."""
        if self.maker.discrepancy is False and not self.maker.learns_noise:
            return self._condition()
        merged, discrepancy = self.outcomes, None
        values, features = self.linear.at(np.zeros(self.linear.own), merged.queries)
        if self.maker.discrepancy is not False:
            discrepancy = no_discrepancy(self.post.problem).with_sets_of(merged.queries)
        degrees = self.post.noise_degrees if self.maker.learns_noise else np.inf
        scale, residuals = target_scale(self.post, features), merged.means - values
        given = MeanOutcomes(merged, features, residuals, self.remainders, scale, degrees)
        alone, both = judge(given, discrepancy)
        is_on = self.maker.discrepancy is True or both.log_factor > np.log(DECISIVE_BAYES_FACTOR)
        if discrepancy is not None and self.linear.is_nonlinear:
            is_on = is_on or is_far_off(given, alone.noise)
        learned = both if is_on and discrepancy is not None else alone
        return replace(self, learned=learned)._condition()

    def relinearize(self) -> Self:
        """Return the surrogate linearized at the most probable theta given all outcomes.

        All other weights are integrated out. Theta is found by Gauss-Newton steps; a step that
        makes it less probable is halved. Effects by draws of theta stay as they are.
        """
        if not len(self.outcomes.counts) or isinstance(self.linear, DrawnResponse):
            return self
        centre, weights, own = self.centre, self.weights, self.linear.own
        loss = self._linearized_at(centre)[0]
        for _ in range(MOST_GAUSS_NEWTON_STEPS):
            step = weights.mean[:own] - centre
            after, offsets, features = self._linearized_at(centre + step)
            while after > loss and np.abs(step).max() > SMALL_STEP:
                step = step / 2
                after, offsets, features = self._linearized_at(centre + step)
            weights = self._regress(offsets, features)
            centre, gain, loss = centre + step, loss - after, after
            if np.abs(step).max() <= SMALL_STEP or gain <= SMALL_GAIN * max(loss, 1.0):
                break
        return replace(self, centre=centre, weights=weights)

    def _linearized_at(self, centre: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return minus the log posterior of theta, and offsets and features of outcomes there.

        All weights other than theta's explain what they can of the outcomes.
        """
        offsets, features = replace(self, centre=centre)._linearize(self.outcomes.queries)
        own, precisions = self.linear.own, self._precisions(features)
        residuals = self.outcomes.means - offsets - features[:, :own] @ centre
        others, loss = features[:, own:], centre @ centre
        if others.shape[1]:
            explained = regress(others, residuals, precisions).mean
            residuals, loss = residuals - others @ explained, loss + explained @ explained
        return float(loss + precisions @ residuals**2) / 2, offsets, features

    def _precisions(self, features: np.ndarray) -> np.ndarray:
        """Return the precisions of mean outcomes; 0 for an effect that depends on no weight."""
        prior = (features**2).sum(axis=1)
        noise = self.learned.noise * self.outcomes.variances + self.remainders + LEAST_NOISE * prior
        return np.where(prior > 0, 1 / np.where(noise > 0, noise, 1.0), 0.0)

    def _regress(self, offsets: np.ndarray, features: np.ndarray) -> Weights:
        """Return the weights that all outcomes imply, linearized with offsets and features."""
        return regress(features, self.outcomes.means - offsets, self._precisions(features))

    def _condition(self) -> Self:
        """Return the surrogate with the weights that all outcomes imply, at the same centre."""
        return replace(self, weights=self._regress(*self._linearize(self.outcomes.queries)))

    def __repr__(self) -> str:
        distinct = len(self.outcomes.counts)
        outcomes = f"{self.outcomes.counts.sum()} outcomes of {distinct} interventions"
        rest = "" if self.discrepancy is None else f", discrepancy {self.discrepancy.amplitude:.3g}"
        return f"Coupled({outcomes}, {self.linear.own} directions{rest}; {self.post!r})"


def couple(
    post: Posterior,
    *,
    discrepancy: bool | str = False,
    learns_noise: bool = False,
    kernel: str = "jacobian",
    draws: int = DEFAULT_DRAWS,
    key: jax.Array | int = DRAWS_SEED,
) -> Coupled:
    """Return the coupled surrogate of a posterior, before any outcome.

    Parameters
    ----------
    post:
        A posterior whose verdict did not fail, or that was accepted.
    discrepancy:
        Whether every set has a smooth function that is added to the effect that the mechanisms
        imply: "auto" as soon as the outcomes favour it by a Bayes factor above 20 or, for nonlinear
        effects, as soon as the outcomes are much further from the predictions than these allow.
    learns_noise:
        Whether the noise's variance is known up to a common factor only, which is then learned from
        the outcomes. Intervals need Student's quantiles with `surrogate.degrees`.
    kernel:
        The prior covariance of effects: "jacobian", linearized in theta, or "monte_carlo", that of
        effects of draws of theta, which holds for nonlinear effects too.
    draws, key:
        For kernel="monte_carlo", how many draws of theta are used, and a JAX key or an int seed.

    Returns
    -------
    Coupled
        With the methods `predict`, `joint`, `sample`, `condition` and `fantasize`.

    Raises
    ------
    ArgumentError
        If `discrepancy` is neither True nor False nor "auto", or there is no such kernel.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> surrogate = cb.surrogates.couple(cb.fit(system.problem, system.observe(200, 0)))
    >>> updated = surrogate.condition({"X": 2.0}, -2.2)
    >>> bool(updated.predict({"X": 2.0}).sd[0] < surrogate.predict({"X": 2.0}).sd[0])
    True
    """
    return CoupledMaker(discrepancy, bool(learns_noise), kernel, draws, key).begin(post)


def is_far_off(given: MeanOutcomes, factor: float) -> bool:
    """Return whether t outcomes are far from what the mechanisms alone imply.

    That is where r'K^-1 r / t exceeds 2, with K the covariance of the outcomes and a factor of the
    noise. Of few outcomes r'K^-1 r varies much, so that a chi-square variable must also exceed it
    in less than one of 1,000 cases.
    """
    count = len(given.residuals)
    [noises] = given.noises(np.array([factor]))
    weights = regress(given.features, given.residuals, 1 / noises).mean
    residuals = given.residuals - given.features @ weights
    total = float((residuals**2 / noises).sum() + weights @ weights)
    return total > FAR_DISTANCE * count and float(chi2.sf(total, count)) < RARE_PROBABILITY
