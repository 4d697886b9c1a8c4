"""The coupled surrogate: all effects share theta, so that one outcome informs all of them.

f(z) = g(theta, z) + h(z) with theta = theta_0 + F w, w ~ N(0, I), F F' the posterior covariance,
and a model discrepancy h = psi(z)'u that is 0 until the evidence of the outcomes favours it.
Linearized at a centre c: g(theta, z) = g(theta_c, z) + phi(z)'(w - c), phi(z) = F'J(z)'. So
outcomes are a Bayesian linear regression on the weights w and u: t of them cost O(t r^2 + r^3), one
more O(r^2). Of t outcomes the smaller of two systems of equations is solved, of size t or r. The
variance of an outcome's noise is that of its replicates' mean plus that of the linearization error,
so that the surrogate is not overconfident.

The ablation without coupling: the same posterior, block-diagonal over sets.

Every set has its separate surrogate, the coupled one by default, which is conditioned on the
outcomes of that set alone: within a set nothing differs, and between sets nothing is learned. Its
covariance is

    k(z, z') of the coupled surrogate where z and z' set the same variables, 0 otherwise,

so that the difference to the coupled surrogate is the effect of coupling alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.stats import chi2, norm
from scipy.stats import t as student

from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.effect_estimates.moments import WeightedResponse, weigh_response
from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count
from causal_bo_ppl.linalg import clip_rounding
from causal_bo_ppl.mechanisms.base import ExpectedInformation, offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.responses import Prediction, Response
from causal_bo_ppl.surrogates.base import (
    NoisyOutcomes,
    Surrogate,
    SurrogateMaker,
    no_noisy_outcomes,
    read_noisy_outcomes,
    require_one,
)
from causal_bo_ppl.surrogates.discrepancy import (
    DECISIVE_BAYES_FACTOR,
    LEAST_NOISE,
    Discrepancy,
    MeanOutcomes,
    judge,
    no_discrepancy,
    noise_degrees,
    target_scale,
)

MOST_GAUSS_NEWTON_STEPS = 20
SMALL_STEP = 1e-3  # in prior sds: the linearization changes little within
SMALL_GAIN = 1e-7  # relative gain in the log density of theta at which the search ends
FAR_DISTANCE, RARE_PROBABILITY = 2.0, 1e-3  # r'K^-1 r / t of outcomes far off, and its probability


class Weights(NamedTuple):
    """The posterior N(mean, covariance) of r weights with standard normal priors."""

    covariance: np.ndarray
    mean: np.ndarray

    def variances(self, features: np.ndarray) -> np.ndarray:
        """Return the variances (M,) of phi'w, for features (M, r)."""
        variances = ((features @ self.covariance) * features).sum(axis=1)
        return clip_rounding(variances, (features**2).sum(axis=1))

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Draw n weights, (n, r)."""
        sizes, directions = np.linalg.eigh(self.covariance)
        root = directions * np.sqrt(np.maximum(sizes, 0.0))
        return np.asarray(self.mean + generator.standard_normal((n, len(root))) @ root.T)

    def update(self, feature: np.ndarray, precision: float, information: float) -> "Weights":
        """Return the weights after a rank-one update.

        `precision` and `information` are the increases in 1 / v and in residual / v that one more
        outcome brings; a replicate brings both too, since it changes an earlier mean.
        """
        direction = self.covariance @ feature
        growth = 1 + precision * float(feature @ direction)
        covariance = self.covariance - (precision / growth) * np.outer(direction, direction)
        step = (information - precision * float(feature @ self.mean)) / growth
        return Weights(covariance, self.mean + step * direction)


def regress(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """Return the weights given residuals (t,) with features (t, r) and precisions 1 / v (t,).

    A residual is y = phi'w + e with e ~ N(0, v). Those of precision 0 are not used.
    """
    used = precisions > 0
    phi, known, noise = features[used], residuals[used], 1 / precisions[used]
    size = features.shape[1]
    if len(known) <= size:
        factor = cho_factor(phi @ phi.T + np.diag(noise), lower=True)
        gain = cho_solve(factor, phi)
        covariance = np.eye(size) - phi.T @ gain
        return Weights((covariance + covariance.T) / 2, known @ gain)
    order = np.argsort(noise, kind="stable")  # large rows first: the factorization is then stable
    scale = 1 / np.sqrt(noise[order])
    rows = np.concatenate([phi[order] * scale[:, None], np.eye(size)])
    values = np.concatenate([known[order] * scale, np.zeros(size)])
    orthogonal, triangle = np.linalg.qr(rows)
    root = solve_triangular(triangle, np.eye(size))
    return Weights(root @ root.T, root @ (orthogonal.T @ values))


def _mean_change_variances(
    weights: Weights, expected: ExpectedInformation, contrasts: np.ndarray, has_outcomes: bool
) -> np.ndarray:
    """Return the variances (M, J) of the changes that observations make to the means of contrasts.

    expected: the information about the weights, before any outcome, of one observation of each of M
    queries. contrasts: features (J, r). has_outcomes: whether outcomes have made groups of weights
    dependent.
    """
    information, positions = expected.blocks, expected.positions
    known = information
    if has_outcomes:
        size = contrasts.shape[1]
        information, positions = expected.whole(size)[:, None], np.arange(size)[None]
        known, contrasts = information @ weights.covariance, contrasts @ weights.covariance
    groups = np.where(positions >= 0, contrasts[:, positions], 0.0)
    gained = np.linalg.solve(np.eye(positions.shape[1]) + known, information)
    squares = groups[..., :, None] * groups[..., None, :]
    variances = gained.reshape(len(gained), -1) @ squares.reshape(len(contrasts), -1).T
    return clip_rounding(variances, np.full(variances.shape, (contrasts**2).sum(axis=1)))


class CoupledOptions(NamedTuple):
    """What a coupled surrogate may learn besides theta.

    discrepancy: False, True, or "auto": as soon as the evidence of the outcomes favours it.
    learns_noise: whether the variance of the outcomes' noise is known up to a common factor only.
    """

    discrepancy: bool | str = False
    learns_noise: bool = False

    @property
    def learns_theta_alone(self) -> bool:
        """Whether only theta is learned."""
        return self.discrepancy is False and not self.learns_noise


class Learned(NamedTuple):
    """What was learned from the evidence of all outcomes besides theta.

    discrepancy: None where there is none. noise: the factor of the noise's variance. log_factor:
    the logarithm of the Bayes factor of a discrepancy against none.
    """

    discrepancy: Discrepancy | None = None
    noise: float = 1.0
    log_factor: float = -np.inf


@dataclass(frozen=True, eq=False)
class Coupled:
    """The coupled surrogate in weight space; made by `couple(post)`; see `base.Surrogate`.

    centre: theta's weights at which the response is linearized. weights: the posterior of all
    weights. observed: every outcome. outcomes: the same with the replicates of each of t
    interventions merged. remainders: variances (t,) of the linearization errors of their
    effects. learned: the discrepancy and the noise.
    """

    linear: WeightedResponse
    centre: np.ndarray
    weights: Weights
    observed: NoisyOutcomes
    outcomes: Replicates
    remainders: np.ndarray
    options: CoupledOptions = CoupledOptions()
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
        if not self.options.learns_noise:
            return np.inf
        return noise_degrees(self.post) + len(self.observed.values)

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights."""
        return self.linear.theta(weights)

    @property
    def response(self) -> Response:
        """The map from theta and queries to effects."""
        return self.linear.response

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
        queries = self.post.problem.require(queries)
        offsets, features = self._linearize(queries)
        variance = self.weights.variances(features)
        if self.discrepancy is not None:
            variance = variance + self.discrepancy.unexplored_variances(queries)
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M)."""
        features = self.features(queries)
        covariance = np.asarray(features @ self.weights.covariance @ features.T)
        for indices, part in self._unexplored(queries):
            covariance[np.ix_(indices, indices)] += part @ part.T
        return covariance

    def cross_covariance(self, queries: Queries, others: Queries) -> np.ndarray:
        """Return the covariances (M, N) of the effects of two batches."""
        left, right, count = self.features(queries), self.features(others), len(queries)
        covariance = np.asarray(left @ self.weights.covariance @ right.T)
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
        query. None where observations do not inform the mechanisms, or their information is not
        known.
        """
        if self.discrepancy is not None:
            return None
        expected = self.post.expected_information(queries)
        if expected is None:
            return None
        contrasts = self.features(points) - self.features(best)
        has_outcomes = len(self.outcomes.counts) > 0
        return _mean_change_variances(self.weights, expected, contrasts, has_outcomes)

    def without_discrepancy(self) -> "Coupled":
        """Return the surrogate of the mechanisms alone given all outcomes."""
        if self.discrepancy is None:
            return self
        return replace(self, options=self.options._replace(discrepancy=False))._judge()

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M)."""
        generator, count = host_generator(as_key(key)), read_count("n", n, 1)
        offsets, features = self._linearize(queries)
        draws = np.asarray(offsets + self.weights.draw(count, generator) @ features.T)
        for indices, part in self._unexplored(queries):
            draws[:, indices] += generator.standard_normal((count, part.shape[1])) @ part.T
        return draws

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        new = self._read(require_one(self.post.problem.require(query)), outcome, noise)
        mean, sd = self.predict(new.queries)
        noises = self.learned.noise * new.variances + self.linear.noises(new.queries)
        spread, residual = float(np.sqrt(sd**2 + noises)[0]), float(new.values[0] - mean[0])
        if np.isfinite(self.degrees):
            return float(student.logpdf(residual, self.degrees, scale=spread))
        return float(norm.logpdf(residual, scale=spread))

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Coupled":
        """Return the surrogate conditioned on outcomes of some interventions.

        One outcome is a rank-one update; for several the weights are solved for anew.

        Parameters
        ----------
        queries:
            M interventions.
        outcomes:
            Observed outcomes, (M,); a number for one intervention.
        noise:
            Variances of the outcomes' noise, by default those that the model implies. Once some are
            given, no common factor is learned.
        """
        new = self._read(queries, outcomes, noise)
        options = self.options if noise is None else self.options._replace(learns_noise=False)
        after = replace(self, options=options)._join(new)
        if len(new.values) != 1 or not self.options.learns_theta_alone:
            return after._judge()
        return replace(after, weights=self.weights.update(*self._gain(after, new.queries)))

    def _read(
        self, queries: Queries, outcomes: float | np.ndarray, noise: float | np.ndarray | None
    ) -> NoisyOutcomes:
        queries = self.post.problem.require(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        return read_noisy_outcomes(queries, outcomes, variances)

    def _join(self, new: NoisyOutcomes) -> "Coupled":
        """Return the surrogate with more outcomes, from which nothing was learned yet."""
        observed = self.observed.join(new)
        merged = merge_replicates(*observed)
        remainders = self.linear.noises(merged.queries)
        return replace(self, observed=observed, outcomes=merged, remainders=remainders)

    def _judge(self) -> "Coupled":
        """Return the surrogate after the evidence of all outcomes was weighed."""
        if self.options.learns_theta_alone:
            return self._condition()
        merged, discrepancy = self.outcomes, None
        values, features = self.linear.at(np.zeros(self.linear.own), merged.queries)
        if self.options.discrepancy is not False:
            discrepancy = no_discrepancy(self.post.problem).with_sets_of(merged.queries)
        outcomes = MeanOutcomes(
            features,
            merged.means - values,
            merged.variances,
            self.remainders,
            int(merged.counts.sum()) - len(merged.counts),
            float(merged.squares.sum()),
            target_scale(self.post, features),
            noise_degrees(self.post) if self.options.learns_noise else np.inf,
        )
        found = judge(outcomes, discrepancy, merged.queries)
        is_on = self.options.discrepancy is True or found.log_factor > np.log(DECISIVE_BAYES_FACTOR)
        if discrepancy is not None and self.linear.blocks:
            is_on = is_on or is_far_off(outcomes, found.noise_alone)
        learned = Learned(None, found.noise_alone, found.log_factor)
        if is_on and found.discrepancy is not None:
            learned = Learned(found.discrepancy, found.noise_with, found.log_factor)
        return replace(self, learned=learned)._condition()

    def fantasize(self, query: Queries, noise: float) -> "Coupled":
        """Return the surrogate as if a query had come out as predicted.

        Means stay the same, and variances become smaller.
        """
        new = self._read(query, 0.0, noise)
        here = self._extend_basis(new.queries)
        predicted = here.predict(new.queries).mean
        variances = np.maximum(new.variances, np.finfo(float).tiny)
        after = here._join(NoisyOutcomes(new.queries, predicted, variances))
        feature, precision, _ = here._gain(after, new.queries)
        information = precision * float(feature @ here.weights.mean)
        return replace(after, weights=here.weights.update(feature, precision, information))

    def _gain(self, after: "Coupled", query: Queries) -> tuple[np.ndarray, float, float]:
        """Return the feature of a query, and the precision and information that it gained."""
        [offset], [feature] = self._linearize(query)
        index = _position_of(after.outcomes, query)
        (before, old), (now, more) = (
            each._information(index, offset, feature) for each in (self, after)
        )
        return feature, now - before, more - old

    def _extend_basis(self, queries: Queries) -> "Coupled":
        """Return the same surrogate, with weights for the discrepancies of more sets."""
        if self.discrepancy is None or not self._unexplored(queries):
            return self
        wider = self.discrepancy.with_sets_of(queries)
        old, more = len(self.weights.mean), np.zeros(wider.size - self.discrepancy.size)
        covariance = np.eye(old + len(more))
        covariance[:old, :old] = self.weights.covariance
        weights = Weights(covariance, np.append(self.weights.mean, more))
        return replace(self, learned=self.learned._replace(discrepancy=wider), weights=weights)

    def _information(self, index: int, offset: float, feature: np.ndarray) -> tuple[float, float]:
        """Return precision of an intervention's mean outcome, and precision times residual.

        Both are 0 where it was not tried.
        """
        if index >= len(self.outcomes.counts):
            return 0.0, 0.0
        precision = float(self._precisions(feature[None], slice(index, index + 1))[0])
        return precision, precision * float(self.outcomes.means[index] - offset)

    def relinearize(self) -> "Coupled":
        """Return the surrogate linearized at the most probable theta given all outcomes.

        All other weights are integrated out. It is found by Gauss-Newton steps of cost
        O(t r^2 + r^3); a step that makes theta less probable is halved.
        """
        if not len(self.outcomes.counts):
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

    def _precisions(self, features: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
        """Return precisions of chosen mean outcomes; 0 for an effect that depends on no weight."""
        prior = (features**2).sum(axis=1)
        noise = self.learned.noise * self.outcomes.variances[chosen]
        noise = noise + self.remainders[chosen] + LEAST_NOISE * prior
        return np.where(prior > 0, 1 / np.where(noise > 0, noise, 1.0), 0.0)

    def _regress(self, offsets: np.ndarray, features: np.ndarray) -> Weights:
        """Return the weights that all outcomes imply, linearized with offsets and features."""
        return regress(features, self.outcomes.means - offsets, self._precisions(features))

    def _condition(self) -> "Coupled":
        """Return the surrogate with the weights that all outcomes imply, at the same centre."""
        return replace(self, weights=self._regress(*self._linearize(self.outcomes.queries)))

    def __repr__(self) -> str:
        distinct = len(self.outcomes.counts)
        outcomes = f"{self.outcomes.counts.sum()} outcomes of {distinct} interventions"
        rest = "" if self.discrepancy is None else f", discrepancy {self.discrepancy.amplitude:.3g}"
        size = self.linear.own
        return f"Coupled({outcomes}, {size} directions{rest}; {self.post!r})"


def couple(
    post: Posterior, *, discrepancy: bool | str = False, learns_noise: bool = False
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

    Returns
    -------
    Coupled
        With the methods `predict`, `sample`, `tell` and `fantasize`.

    Raises
    ------
    ArgumentError
        If `discrepancy` is neither True nor False nor "auto".

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> surrogate = cb.surrogates.couple(cb.fit(system.problem, system.observe(200, 0)))
    >>> tried = system.problem.queries([{"X": 2.0}])
    >>> updated = surrogate.tell(tried, -2.2)
    >>> bool(updated.predict(tried).sd[0] < surrogate.predict(tried).sd[0])
    True
    """
    post = require_trusted(post)
    if discrepancy not in (True, False, "auto") or not isinstance(discrepancy, bool | str):
        raise ArgumentError(f'discrepancy must be True, False or "auto"; got {discrepancy!r}')
    linear, nothing = weigh_response(post), no_noisy_outcomes(len(post.problem.graph.nodes))
    return Coupled(
        linear,
        np.zeros(linear.own),
        Weights(np.eye(linear.size), np.zeros(linear.size)),
        nothing,
        merge_replicates(*nothing),
        np.zeros(0),
        CoupledOptions(discrepancy, bool(learns_noise)),
    )


@dataclass(frozen=True)
class CoupledMaker:
    """The configuration of the coupled surrogate; see `couple`."""

    discrepancy: bool | str = False
    learns_noise: bool = False

    name = "coupled"

    def begin(self, post: Posterior) -> Coupled:
        """Return the surrogate before any outcome."""
        return couple(post, discrepancy=self.discrepancy, learns_noise=self.learns_noise)


def is_far_off(outcomes: MeanOutcomes, factor: float) -> bool:
    """Return whether t outcomes are far from what the mechanisms alone imply.

    That is where r'K^-1 r / t exceeds 2, with K the covariance of the outcomes and a factor of the
    noise. Of few outcomes r'K^-1 r varies much, so that a chi-square variable must also exceed it
    in less than one of 1,000 cases.
    """
    count = len(outcomes.residuals)
    if not count:
        return False
    noises = outcomes.total_noises(factor, (outcomes.features**2).sum(axis=1))
    weights = regress(outcomes.features, outcomes.residuals, 1 / noises).mean
    residuals = outcomes.residuals - outcomes.features @ weights
    total = float((residuals**2 / noises).sum() + weights @ weights)
    return total > FAR_DISTANCE * count and float(chi2.sf(total, count)) < RARE_PROBABILITY


def _position_of(merged: Replicates, query: Queries) -> int:
    """Return the position of one intervention among merged ones."""
    mask, value = np.asarray(query.mask)[0], np.where(query.mask, query.value, 0.0)[0]
    same = (merged.queries.mask == mask) & (merged.queries.value == value)
    return int(np.flatnonzero(np.asarray(same).all(axis=1))[0])


@dataclass(frozen=True, eq=False)
class Uncoupled:
    """A surrogate for every set; made by `UncoupledMaker`; see `base.Surrogate`.

    before: the surrogate of each set that has no outcomes. sets: the surrogates of the sets that
    have outcomes, each conditioned on those of its set alone.
    """

    before: Surrogate
    sets: Mapping[bytes, Surrogate] = field(default_factory=dict)

    @property
    def post(self) -> Posterior:
        """The posterior of theta before the outcomes."""
        return self.before.post

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is optimal.

        That is the property of the sets' surrogates or, where they lack it, of the effects.
        """
        default = self.post.distribution.response.is_affine
        parts = (self.before, *self.sets.values())
        return all(bool(getattr(each, "is_affine", default)) for each in parts)

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch.

        Sets without outcomes are predicted together, the others one by one.
        """
        queries = self.post.problem.require(queries)
        mean, sd = np.empty(len(queries)), np.empty(len(queries))
        for surrogate, indices in self._by_surrogate(queries):
            mean[indices], sd[indices] = surrogate.predict(queries[indices])
        return Prediction(mean, sd)

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M); 0 between sets."""
        queries = self.post.problem.require(queries)
        joint = np.zeros((len(queries), len(queries)))
        for key, indices in split_by_set(queries):
            joint[np.ix_(indices, indices)] = self._of(key).covariance(queries[indices])
        return joint

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M); sets are drawn independently."""
        queries = self.post.problem.require(queries)
        draws = np.empty((read_count("n", n, 1), len(queries)))
        sets = list(split_by_set(queries))
        keys = jax.random.split(as_key(key), max(len(sets), 1))
        for (name, indices), own in zip(sets, keys, strict=False):
            draws[:, indices] = self._of(name).sample(queries[indices], n, own)
        return draws

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Uncoupled":
        """Return the surrogate conditioned on outcomes (M,) of M queries; see `base.Surrogate`."""
        queries = self.post.problem.require(queries)
        new = read_noisy_outcomes(queries, outcomes, 0.0 if noise is None else noise)
        sets = dict(self.sets)
        for key, indices in split_by_set(queries):
            own = None if noise is None else new.variances[indices]
            sets[key] = self._of(key).tell(queries[indices], new.values[indices], own)
        return replace(self, sets=sets)

    def fantasize(self, query: Queries, noise: float) -> "Uncoupled":
        """Return the surrogate as if one query had come out as predicted."""
        key, _ = next(split_by_set(require_one(self.post.problem.require(query))))
        return replace(self, sets={**self.sets, key: self._of(key).fantasize(query, noise)})

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        key, _ = next(split_by_set(require_one(self.post.problem.require(query))))
        return self._of(key).log_density(query, outcome, noise)

    def relinearize(self) -> "Uncoupled":
        """Return the surrogate with every set's approximations made anew at its outcomes."""
        sets = {}
        for key, surrogate in self.sets.items():
            relinearize = offered(surrogate, "relinearize")
            sets[key] = surrogate if relinearize is None else relinearize()
        return replace(self, sets=sets)

    def _of(self, key: bytes) -> Surrogate:
        return self.sets.get(key, self.before)

    def _by_surrogate(self, queries: Queries) -> Iterator[tuple[Surrogate, np.ndarray]]:
        """Yield each surrogate and its queries; that of sets without outcomes comes last, once."""
        rest = [np.zeros(0, int)]
        for key, indices in split_by_set(queries):
            if key in self.sets:
                yield self.sets[key], indices
            else:
                rest.append(indices)
        if len(rest) > 1:
            yield self.before, np.concatenate(rest)

    def __repr__(self) -> str:
        return f"Uncoupled({len(self.sets)} sets with outcomes; {self.post!r})"


@dataclass(frozen=True)
class UncoupledMaker:
    """The configuration of a separate surrogate for every set.

    Parameters
    ----------
    of:
        The configuration of the surrogate of one set, by default the coupled one.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> alone = UncoupledMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> updated = alone.tell(system.problem.queries([{"Z": 2.0}]), -2.6, 0.1)
    >>> same, other = system.problem.queries([{"Z": 1.0}, {"X": 1.0}])
    >>> bool(updated.predict(same).sd < alone.predict(same).sd)
    True
    >>> bool(updated.predict(other).sd < alone.predict(other).sd)
    False
    """

    of: SurrogateMaker = field(default_factory=CoupledMaker)

    name = "uncoupled"

    def begin(self, post: Posterior) -> Uncoupled:
        """Return the surrogate before any outcome."""
        return Uncoupled(self.of.begin(post))
