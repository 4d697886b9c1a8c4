"""The coupled surrogate: all effects share theta, so that one outcome teaches about all of them.

f(z) = g(theta, z) + h(z) with theta = theta_0 + F w, w ~ N(0, I), F F' the posterior covariance,
and a residual h = psi(z)'u that is left out until the evidence of the outcomes asks for it.
Linearized at a centre c: g(theta, z) = g(theta_c, z) + phi(z)'(w - c), phi(z) = F'J(z)'. So
outcomes are a Bayesian linear regression on the weights w and u: t of them cost O(t r^2 + r^3), one
more O(r^2). The variance of an outcome's noise is that of its replicates' mean plus what
linearization leaves out, so that the surrogate is not falsely certain.

The ablation without coupling: the same beliefs, block-diagonal over sets.

Every set has a surrogate of its own, the coupled one by default, which is told the outcomes of that
set alone: within a set nothing differs, and between sets nothing is learned. Its covariance is

    k(z, z') of the coupled surrogate where z and z' set the same variables, 0 otherwise,

so that the difference to the coupled surrogate is what coupling alone is worth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.effect_estimates.moments import Prediction, WeightedResponse, weigh_response
from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.responses import Response
from causal_bo_ppl.surrogates.base import (
    Surrogate,
    SurrogateMaker,
    Told,
    no_told,
    read_told,
    require_one,
    row_of,
)
from causal_bo_ppl.surrogates.discrepancy import (
    ENOUGH,
    LEAST_NOISE,
    Learned,
    Options,
    Outcomes,
    Residual,
    begin_residual,
    is_missed,
    judge,
    noise_degrees,
    target_scale,
)
from causal_bo_ppl.surrogates.weights import Weights, condition, extend, lessons, no_outcome

STEPS, CLOSE = 20, 1e-3  # Gauss-Newton, in prior sds: the linearization changes little within
LITTLE = 1e-7  # a gain in the log density of theta after which it stays where it is


@dataclass(frozen=True, eq=False)
class Coupled:
    """The coupled surrogate in weight space; made by `couple(post)`; see `interface.Surrogate`.

    centre: theta's weights at which the response is linearized.
    weights: the posterior of all weights. told: every outcome as it was told. outcomes: the same
    outcomes with the replicates of each of t interventions merged. remainders: what linearization
    leaves out of the variance of each of these t effects. learned: a residual and the noise.
    """

    linear: WeightedResponse
    centre: np.ndarray
    weights: Weights
    told: Told
    outcomes: Replicates
    remainders: np.ndarray
    options: Options = Options()
    learned: Learned = Learned()

    @property
    def post(self) -> Posterior:
        """The posterior that was believed before the outcomes."""
        return self.linear.post

    @property
    def residual(self) -> Residual | None:
        """What is added to the mechanisms' effects; None where the evidence does not ask for it."""
        return self.learned.residual

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is best."""
        return self.residual is None and self.post.distribution.response.is_affine

    @property
    def degrees(self) -> float:
        """Degrees of freedom of Student's t, whose quantiles intervals of effects need."""
        return (
            noise_degrees(self.post) + len(self.told.values)
            if self.options.learns_noise
            else np.inf
        )

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
        if self.residual is None:
            return offsets, causal
        return offsets, np.concatenate([causal, self.residual.features(queries)], axis=1)

    def features(self, queries: Queries) -> np.ndarray:
        """Return the derivatives (M, r) of effects in all weights."""
        return self._linearize(queries)[1]

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self.post.problem.require(queries)
        offsets, features = self._linearize(queries)
        variance = self.weights.variances(features)
        if self.residual is not None:
            variance = variance + self.residual.unexplored_variances(queries)
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M)."""
        features = self._linearize(queries)[1]
        found = np.asarray(features @ self.weights.covariance @ features.T)
        for rows, own in [] if self.residual is None else self.residual.unexplored(queries):
            found[np.ix_(rows, rows)] += own @ own.T
        return found

    def cross_covariance(self, queries: Queries, others: Queries) -> np.ndarray:
        """Return the covariances (M, N) of the effects of two batches."""
        left, right = self._linearize(queries)[1], self._linearize(others)[1]
        found = np.asarray(left @ self.weights.covariance @ right.T)
        if self.residual is None:
            return found
        both = self.residual.unexplored(stack([queries, others]))
        for rows, own in both:
            first = rows < len(queries)
            found[np.ix_(rows[first], rows[~first] - len(queries))] += own[first] @ own[~first].T
        return found

    def row_lessons(self, queries: Queries, points: Queries, best: Queries) -> np.ndarray | None:
        """Return how much one whole row of each query moves the effects of points, (M, J).

        That is the variance of the change of E[f(point) - f(best)], over rows that may come out.
        None where whole rows do not teach the mechanisms, or how much is not known.
        """
        taught = None if self.residual is not None else self.post.expected_information(queries)
        if taught is None:
            return None
        apart = self._linearize(points)[1] - self._linearize(best)[1]
        return lessons(self.weights, taught, apart, len(self.outcomes.counts) > 0)

    def without_residual(self) -> "Coupled":
        """Return what the mechanisms alone make of all outcomes."""
        if self.residual is None:
            return self
        return replace(self, options=self.options._replace(residual=False))._judge()

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M)."""
        generator, count = host_generator(as_key(key)), read_count("n", n, 1)
        offsets, features = self._linearize(queries)
        found = np.asarray(offsets + self.weights.draw(count, generator) @ features.T)
        for rows, own in [] if self.residual is None else self.residual.unexplored(queries):
            found[:, rows] += generator.standard_normal((count, own.shape[1])) @ own.T
        return found

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all that was told."""
        told = require_one(self._read(query, outcome, noise))
        mean, sd = self.predict(told.queries)
        noises = self.learned.noise * told.variances + self.linear.noises(told.queries)
        spread, gap = float(np.sqrt(sd**2 + noises)[0]), float(told.values[0] - mean[0])
        if np.isfinite(self.degrees):
            return float(student.logpdf(gap, self.degrees, scale=spread))
        return float(norm.logpdf(gap, scale=spread))

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Coupled":
        """Return the surrogate after outcomes of some interventions.

        One outcome is a rank-one update; of several the weights are solved for anew.

        Parameters
        ----------
        queries:
            M interventions.
        outcomes:
            What came out, (M,); a number for one intervention.
        noise:
            Variances of the outcomes' noise, by default those that the model implies. Once some are
            given, no common factor is learned.
        """
        new = self._read(queries, outcomes, noise)
        told = self.told.join(new)
        options = self.options if noise is None else self.options._replace(learns_noise=False)
        merged = merge_replicates(*told)
        left_out = self.linear.noises(merged.queries)
        after = replace(self, told=told, outcomes=merged, remainders=left_out, options=options)
        if len(new.values) != 1 or not self.options.is_plain:
            return after._judge()
        row = row_of(merged, new.queries)
        offsets, features = self._linearize(new.queries)
        (before, old), (now, more) = (
            each._evidence(row, offsets[0], features[0]) for each in (self, after)
        )
        return replace(after, weights=extend(self.weights, features[0], now - before, more - old))

    def _read(
        self, queries: Queries, outcomes: float | np.ndarray, noise: float | np.ndarray | None
    ) -> Told:
        queries = self.post.problem.require(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        return read_told(queries, outcomes, variances)

    def _judge(self) -> "Coupled":
        """Return the surrogate after the evidence of all outcomes was weighed."""
        if self.options.is_plain:
            return self._condition()
        merged, residual = self.outcomes, None
        values, features = self.linear.at(np.zeros(self.linear.own), merged.queries)
        if self.options.residual is not False:
            residual = begin_residual(self.post.problem).having(merged.queries)
        outcomes = Outcomes(
            features,
            merged.means - values,
            merged.variances,
            self.remainders,
            int(merged.counts.sum()) - len(merged.counts),
            float(merged.squares.sum()),
            target_scale(self.post, features),
            noise_degrees(self.post) if self.options.learns_noise else np.inf,
        )
        found = judge(outcomes, residual, merged.queries)
        is_on = self.options.residual is True or found.log_factor > np.log(ENOUGH)
        if residual is not None and self.linear.blocks:
            is_on = is_on or is_missed(outcomes, found.noise_alone)
        learned = Learned(None, found.noise_alone, found.log_factor)
        if is_on and found.residual is not None:
            learned = Learned(found.residual, found.noise_with, found.log_factor)
        return replace(self, learned=learned)._condition()

    def fantasize(self, query: Queries, noise: float) -> "Coupled":
        """Return the surrogate as if a query had come out as predicted: less doubt, same means."""
        told = require_one(self._read(query, 0.0, noise))
        told = told._replace(variances=np.maximum(told.variances, np.finfo(float).tiny))
        here = self._widened(told.queries)
        joined = self.told.join(told._replace(values=here.predict(told.queries).mean))
        merged = merge_replicates(*joined)
        after = replace(
            here, told=joined, outcomes=merged, remainders=self.linear.noises(merged.queries)
        )
        row = row_of(merged, told.queries)
        offsets, features = here._linearize(told.queries)
        before, now = (each._evidence(row, offsets[0], features[0])[0] for each in (here, after))
        gained = now - before
        pull = gained * float(features[0] @ here.weights.mean)
        return replace(after, weights=extend(here.weights, features[0], gained, pull))

    def _widened(self, queries: Queries) -> "Coupled":
        """Return the same beliefs, with weights for the residuals of more sets."""
        if self.residual is None or not self.residual.unexplored(queries):
            return self
        wider = self.residual.having(queries)
        old, more = len(self.weights.mean), np.zeros(wider.size - self.residual.size)
        covariance = np.eye(old + len(more))
        covariance[:old, :old] = self.weights.covariance
        weights = Weights(covariance, np.append(self.weights.mean, more))
        learned = self.learned._replace(residual=wider)
        return replace(self, learned=learned, weights=weights)

    def _evidence(self, row: int, offset: float, feature: np.ndarray) -> tuple[float, float]:
        """Return precision of an intervention's mean outcome, and precision times residual.

        Both are 0 where it was not tried.
        """
        if row >= len(self.outcomes.counts):
            return 0.0, 0.0
        noise, left_out = self.outcomes.variances[row], self.remainders[row]
        noise = self.learned.noise * noise
        precision = float(_precisions(noise, left_out, feature[None])[0])
        return precision, precision * float(self.outcomes.means[row] - offset)

    def relinearize(self) -> "Coupled":
        """Linearize where the outcomes have moved theta, and learn from all of them again.

        That is theta's most probable value, all other weights integrated out, found by Gauss-Newton
        steps, O(t r^2 + r^3) each; one that makes theta less probable is halved.
        """
        if not len(self.outcomes.counts):
            return self
        centre, weights, own = self.centre, self.weights, self.linear.own
        loss = self._linearized_at(centre)[0]
        for _ in range(STEPS):
            step = weights.mean[:own] - centre
            after, offsets, features = self._linearized_at(centre + step)
            while after > loss and np.abs(step).max() > CLOSE:
                step = step / 2
                after, offsets, features = self._linearized_at(centre + step)
            residuals = self.outcomes.means - offsets
            weights = condition(features, residuals, self._precisions(features))
            centre, gained, loss = centre + step, loss - after, after
            if np.abs(step).max() <= CLOSE or gained <= LITTLE * max(loss, 1.0):
                break
        return replace(self, centre=centre, weights=weights)

    def _linearized_at(self, centre: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return minus the log posterior of theta, and offsets and features of outcomes there.

        All weights other than theta's explain what they can of the outcomes.
        """
        offsets, features = replace(self, centre=centre)._linearize(self.outcomes.queries)
        own, precisions = self.linear.own, self._precisions(features)
        gaps, others = self.outcomes.means - offsets - features[:, :own] @ centre, features[:, own:]
        loss = centre @ centre
        if others.shape[1]:
            explained = condition(others, gaps, precisions).mean
            gaps, loss = gaps - others @ explained, loss + explained @ explained
        return float(loss + precisions @ gaps**2) / 2, offsets, features

    def _precisions(self, features: np.ndarray) -> np.ndarray:
        noises = self.learned.noise * self.outcomes.variances
        return _precisions(noises, self.remainders, features)

    def _condition(self) -> "Coupled":
        """Return the surrogate with the weights that all outcomes imply, at the same centre."""
        offsets, features = self._linearize(self.outcomes.queries)
        weights = condition(features, self.outcomes.means - offsets, self._precisions(features))
        return replace(self, weights=weights)

    def __repr__(self) -> str:
        distinct = len(self.outcomes.counts)
        outcomes = f"{self.outcomes.counts.sum()} outcomes of {distinct} interventions"
        rest = "" if self.residual is None else f", residual {self.residual.amplitude:.3g}"
        size = self.linear.own
        return f"Coupled({outcomes}, {size} directions{rest}; {self.post!r})"


def couple(post: Posterior, *, residual: bool | str = False, learns_noise: bool = False) -> Coupled:
    """Return the coupled surrogate of a posterior, before any outcome.

    Parameters
    ----------
    post:
        A posterior whose verdict did not fail, or that was accepted.
    residual:
        Whether every set has a smooth function of its own, added to the effect that the mechanisms
        imply: "auto" as soon as the outcomes favour it by a Bayes factor above 20 or, where effects
        bend, as soon as the mechanisms miss the outcomes by far more than they allow for.
    learns_noise:
        Whether the noise's variance is known up to a common factor only, which is then learned from
        the outcomes. Intervals need Student's quantiles with `surrogate.degrees`.

    Returns
    -------
    Coupled
        With the methods `predict`, `sample`, `tell` and `fantasize`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> surrogate = cb.surrogates.couple(cb.fit(system.problem, system.observe(200, 0)))
    >>> tried = system.problem.queries([{"X": 2.0}])
    >>> told = surrogate.tell(tried, -2.2)
    >>> bool(told.predict(tried).sd[0] < surrogate.predict(tried).sd[0])
    True
    """
    post = require_trusted(post)
    if residual not in (True, False, "auto") or not isinstance(residual, bool | str):
        raise ModelError(f'residual must be True, False or "auto"; got {residual!r}')
    linear, nothing = weigh_response(post), no_told(len(post.problem.graph.nodes))
    return Coupled(
        linear,
        np.zeros(linear.own),
        no_outcome(linear.size),
        nothing,
        merge_replicates(*nothing),
        np.zeros(0),
        Options(residual, bool(learns_noise)),
    )


@dataclass(frozen=True)
class CoupledMaker:
    """Makes the coupled surrogate; see `interface.SurrogateMaker` and `couple`."""

    residual: bool | str = False
    learns_noise: bool = False

    name = "coupled"

    def begin(self, post: Posterior) -> Coupled:
        """Return the surrogate before any outcome."""
        return couple(post, residual=self.residual, learns_noise=self.learns_noise)


def _precisions(
    variances: np.ndarray, left_out: np.ndarray | float, features: np.ndarray
) -> np.ndarray:
    """Return precisions (t,) of mean outcomes; an effect that no weight moves teaches nothing."""
    prior = (features**2).sum(axis=1)
    noise = variances + left_out + LEAST_NOISE * prior
    return np.where(prior > 0, 1 / np.where(noise > 0, noise, 1.0), 0.0)


@dataclass(frozen=True, eq=False)
class Uncoupled:
    """A surrogate for every set; made by `UncoupledMaker`; see `interface.Surrogate`.

    before: what is believed about each set that has no outcomes. sets: the surrogates of the sets
    that have outcomes, each told of its own only.
    """

    before: Surrogate
    sets: Mapping[bytes, Surrogate] = field(default_factory=dict)

    @property
    def post(self) -> Posterior:
        """The posterior that was believed before the outcomes."""
        return self.before.post

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is optimal.

        It is what the surrogates of the sets say of themselves, or else whether effects are affine.
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
        for surrogate, rows in self._told_apart(queries):
            mean[rows], sd[rows] = surrogate.predict(queries[rows])
        return Prediction(mean, sd)

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M); 0 between sets."""
        queries = self.post.problem.require(queries)
        joint = np.zeros((len(queries), len(queries)))
        for key, rows in split_by_set(queries):
            joint[np.ix_(rows, rows)] = self._of(key).covariance(queries[rows])
        return joint

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M); sets are drawn independently."""
        queries = self.post.problem.require(queries)
        draws = np.empty((read_count("n", n, 1), len(queries)))
        sets = list(split_by_set(queries))
        keys = jax.random.split(as_key(key), max(len(sets), 1))
        for (name, rows), own in zip(sets, keys, strict=False):
            draws[:, rows] = self._of(name).sample(queries[rows], n, own)
        return draws

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Uncoupled":
        """Return the surrogate after outcomes (M,) of M queries; see `interface.Surrogate`."""
        queries = self.post.problem.require(queries)
        values = np.ravel(np.asarray(outcomes, object))
        count = 1 if noise is None else np.size(noise)
        if len(values) != len(queries) or count not in (1, len(queries)) or not len(queries):
            raise DataError(
                f"tell one outcome of each intervention; got {len(values)} outcomes and {count} "
                f"variances of {queries!r}"
            )
        variances = None if noise is None else np.broadcast_to(np.ravel(noise), len(queries))
        after = dict(self.sets)
        for key, rows in split_by_set(queries):
            own = None if variances is None else variances[rows]
            after[key] = self._of(key).tell(queries[rows], values[rows], own)
        return replace(self, sets=after)

    def fantasize(self, query: Queries, noise: float) -> "Uncoupled":
        """Return the surrogate as if one query had come out as predicted."""
        key = self._one(query)
        return replace(self, sets={**self.sets, key: self._of(key).fantasize(query, noise)})

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all that was told."""
        return self._of(self._one(query)).log_density(query, outcome, noise)

    def relinearize(self) -> "Uncoupled":
        """Return the same beliefs with every set's approximations made anew at its own outcomes."""
        moved = {}
        for key, surrogate in self.sets.items():
            relinearize = offered(surrogate, "relinearize")
            moved[key] = surrogate if relinearize is None else relinearize()
        return replace(self, sets=moved)

    def _of(self, key: bytes) -> Surrogate:
        return self.sets.get(key, self.before)

    def _one(self, query: Queries) -> bytes:
        query = self.post.problem.require(query)
        if len(query) != 1:
            raise DataError(f"this is about one intervention; got {query!r}")
        return next(split_by_set(query))[0]

    def _told_apart(self, queries: Queries) -> Iterator[tuple[Surrogate, np.ndarray]]:
        """Yield each surrogate with its rows; that of sets without outcomes comes last, once."""
        rest = [np.zeros(0, int)]
        for key, rows in split_by_set(queries):
            if key in self.sets:
                yield self.sets[key], rows
            else:
                rest.append(rows)
        if len(rest) > 1:
            yield self.before, np.concatenate(rest)

    def __repr__(self) -> str:
        return f"Uncoupled({len(self.sets)} sets with outcomes; {self.post!r})"


@dataclass(frozen=True)
class UncoupledMaker:
    """Makes a surrogate for every set on its own; see `interface.SurrogateMaker`.

    Parameters
    ----------
    of:
        What makes the surrogate of one set: the coupled one, unless another is given.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> alone = UncoupledMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> told = alone.tell(system.problem.queries([{"Z": 2.0}]), -2.6, 0.1)
    >>> same, other = system.problem.queries([{"Z": 1.0}, {"X": 1.0}])
    >>> bool(told.predict(same).sd < alone.predict(same).sd)
    True
    >>> bool(told.predict(other).sd < alone.predict(other).sd)
    False
    """

    of: SurrogateMaker = field(default_factory=CoupledMaker)

    name = "uncoupled"

    def begin(self, post: Posterior) -> Uncoupled:
        """Return the surrogate before any outcome."""
        return Uncoupled(self.of.begin(post))
