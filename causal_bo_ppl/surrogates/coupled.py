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
"""

from dataclasses import dataclass, replace
from typing import Self

import jax
import numpy as np
from scipy.stats import chi2
from scipy.stats import t as student

from causal_bo_ppl.data.observations import (
    NoisyOutcomes,
    Replicates,
    merge_replicates,
    no_noisy_outcomes,
    read_noisy_outcomes,
)
from causal_bo_ppl.effect_estimates.moments import DrawnResponse, WeightedResponse, weigh_response
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count
from causal_bo_ppl.linalg import Weights, clip_rounding, no_weights_known, regress
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.responses import Prediction, Response
from causal_bo_ppl.surrogates.base import (
    JointPrediction,
    Numbers,
    as_query,
    predicted_outcomes,
)
from causal_bo_ppl.surrogates.discrepancy import (
    AMPLITUDES,
    DECISIVE_BAYES_FACTOR,
    LEAST_NOISE,
    Discrepancy,
    Learned,
    MeanOutcomes,
    contradicts,
    no_discrepancy,
    target_scale,
    weigh_evidence,
)

KERNELS = ("jacobian", "monte_carlo")
DEFAULT_DRAWS = 512  # of theta: a covariance is off by about 1 / sqrt(512) = 4 % of its scale
DRAWS_SEED = 0  # a constant, so that what is suggested depends on the key of the study alone
MOST_GAUSS_NEWTON_STEPS = 20
SMALL_STEP = 1e-3  # in prior sds: the linearization changes little within
SMALL_GAIN = 1e-7  # relative gain in the log density of theta at which the search ends
FAR_DISTANCE, RARE_PROBABILITY = 2.0, 1e-3  # r'K^-1 r / t of outcomes far off, and its probability

UNUSED_COORDINATE = 1e-9  # of the largest: an effect that a coordinate moves by less ignores it


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
        nothing, weights = (
            no_noisy_outcomes(len(post.problem.graph.nodes)),
            no_weights_known(linear.size),
        )
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

    def _remainders(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return what of discrepancies no weight explains; see `Discrepancy.remainders`."""
        return [] if self.discrepancy is None else self.discrepancy.remainders(queries)

    def features(self, queries: Queries) -> np.ndarray:
        """Return the derivatives (M, r) of effects in all weights."""
        return self._linearize(queries)[1]

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self.post.as_queries(queries)
        offsets, features = self._linearize(queries)
        variance = self.weights.variances(features)
        if self.discrepancy is not None:
            variance = variance + self.discrepancy.remainder_variances(queries)
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def joint(self, queries: Queries) -> JointPrediction:
        """Return mean and joint covariance of the effects of a batch."""
        queries = self.post.as_queries(queries)
        offsets, features = self._linearize(queries)
        covariance = self.weights.times(features) @ features.T
        for indices, part in self._remainders(queries):
            covariance[np.ix_(indices, indices)] += part @ part.T
        return JointPrediction(offsets + features @ self.weights.mean, covariance)

    def cross_covariance(self, queries: Queries, others: Queries) -> np.ndarray:
        """Return the covariances (M, N) of the effects of two batches."""
        left, right, count = self.features(queries), self.features(others), len(queries)
        covariance = np.asarray(self.weights.times(left) @ right.T)
        for indices, part in self._remainders(stack([queries, others])):
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
        queries = self.post.as_queries(queries)
        offsets, features = self._linearize(queries)
        draws = np.asarray(offsets + self.weights.draw(count, generator) @ features.T)
        for indices, part in self._remainders(queries):
            draws[:, indices] += generator.standard_normal((count, part.shape[1])) @ part.T
        return draws

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        query = as_query(self.post, query)
        new = read_noisy_outcomes(query, outcome, noise)
        mean, sd = self.predict(query)
        variances = sd**2 + self.learned.noise * new.variances + self.linear.noises(query)
        return float(student.logpdf(new.values[0], self.degrees, mean[0], np.sqrt(variances[0])))

    def condition(self, queries: Queries, outcomes: Numbers, noise: Numbers | None = None) -> Self:
        """Return the surrogate conditioned on outcomes (M,) of M queries.

        Once variances of their noise are given, no common factor of them is learned.
        """
        queries = self.post.as_queries(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        new = read_noisy_outcomes(queries, outcomes, variances)
        maker = self.maker if noise is None else replace(self.maker, learns_noise=False)
        return replace(self, maker=maker)._join(new)._judge()

    def fantasize(self, queries: Queries, noise: Numbers | None = None) -> Self:
        """Return the surrogate as if queries had come out as predicted; nothing is judged."""
        new, learned = predicted_outcomes(self, queries, noise), self.learned
        if learned.discrepancy is not None:
            learned = learned._replace(discrepancy=learned.discrepancy.join(new.queries))
        after = replace(self, learned=learned)._join(new)._condition()
        mean = np.zeros(len(after.weights.mean))  # weights of new pivots stay 0
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
            discrepancy = no_discrepancy(self.post.problem)
        degrees = self.post.noise_degrees if self.maker.learns_noise else np.inf
        scale, residuals = target_scale(self.post, features), merged.means - values
        given = MeanOutcomes(merged, features, residuals, self.remainders, scale, degrees)
        found = weigh_evidence(given, discrepancy)
        after, means = replace(self, learned=found.without())._conditioned()
        if discrepancy is None:
            return after
        is_on = self.maker.discrepancy is True or found.log_factor > np.log(DECISIVE_BAYES_FACTOR)
        is_on = is_on or (self.linear.is_nonlinear and is_far_off(given, after.learned.noise))
        if not (is_on or contradicts(merged, means, self.remainders)):
            return after
        for least in range(len(AMPLITUDES)):  # the outcomes win: the least that they need
            after, means = replace(self, learned=found.with_discrepancy(least))._conditioned()
            if not contradicts(merged, means, self.remainders):
                break
        return after

    def relinearize(self) -> Self:
        """Return the surrogate linearized at the most probable theta, by Gauss-Newton steps.

        All other weights are integrated out. Effects by draws of theta stay as they are.
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
        """Return minus the log posterior of theta, and offsets and features of outcomes there."""
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
        return self._conditioned()[0]

    def _conditioned(self) -> tuple[Self, np.ndarray]:
        """Return the same, and the means (t,) of the effects of what was tried."""
        offsets, features = self._linearize(self.outcomes.queries)
        weights = self._regress(offsets, features)
        return replace(self, weights=weights), offsets + features @ weights.mean

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
    noise, and where a chi-square variable exceeds it in less than one of 1,000 cases.
    """
    count = len(given.residuals)
    [noises] = given.noises(np.array([factor]))
    weights = regress(given.features, given.residuals, 1 / noises).mean
    residuals = given.residuals - given.features @ weights
    total = float((residuals**2 / noises).sum() + weights @ weights)
    return total > FAR_DISTANCE * count and float(chi2.sf(total, count)) < RARE_PROBABILITY


def uncertainty_shares(surrogate: object, queries: Queries) -> np.ndarray | None:
    """Return how much of the uncertainty of each effect is due to each coordinate of theta, (M, d).

    That is the share of the effect's variance that would vanish if the coordinate were known, given
    all outcomes: Cov(theta_i, f)^2 / (Var theta_i Var f). Coordinates that depend on each other
    share their uncertainty, so that the shares of a query may sum to more than 1; a coordinate that
    the effect does not depend on has none.

    None where the surrogate has no weights of theta.
    """
    if not isinstance(surrogate, Coupled):
        return None
    factor, covariance = surrogate.linear.factor, surrogate.weights.covariance
    size = factor.shape[1]
    _, jacobian = surrogate.response.linearize(surrogate.theta(surrogate.centre), queries)
    together = surrogate.features(queries) @ covariance[:, :size] @ factor.T
    variances = ((factor @ covariance[:size, :size]) * factor).sum(axis=1)
    scale = surrogate.predict(queries).sd[:, None] ** 2 * variances[None, :]
    matters = np.abs(jacobian) * np.sqrt(variances)
    used = matters > UNUSED_COORDINATE * matters.max(axis=1, keepdims=True)
    shares = np.where(used & (scale > 0), together**2 / np.where(scale > 0, scale, 1.0), 0.0)
    return np.asarray(np.minimum(shares, 1.0))
