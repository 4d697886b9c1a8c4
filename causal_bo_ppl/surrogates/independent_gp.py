"""A Gaussian process of one function on a box, with hyperparameters at their most probable values.

The function is f(x) = m(x) + B(x) b + g(x) with b ~ N(0, I), columns B of known functions, and g a
stationary process: its covariance is

    k(x, x') = a^2 c(x, x') + B(x) B(x')',

c an RBF or a Matern 5/2 correlation with a lengthscale for each variable, on inputs in units of the
domains' widths. Amplitude a, lengthscales and the scale of noise that was not given are log-normal
before the outcomes. They are set where the density of their logarithms given the outcomes is
largest: a pure function of the outcomes, found from fixed starts, so that the order of telling
cannot matter.

Independent surrogates: a Gaussian process for every set, which learns from its own set only.

The baselines `cbo` and `cbo-noprior` of causal Bayesian optimization (Aglietti et al. 2020). The
effect of setting the variables of a set to x is a process of its own. With the causal prior

    E f(x) = m(x),   Cov[f(x), f(x')] = a^2 c(x, x') + s(x) s(x'),

m and s the mean and sd of the effect that the observational rows imply by do-calculus, integrated
over theta. Without it the mean is a constant, integrated out under a wide prior around the target's
mean. Amplitude a, lengthscales and the scale of noise that was not given are fitted to the outcomes
of each set, with the priors of `gp_regression.Hyperprior`; a set without outcomes has their
medians.

The plain surrogate: one Gaussian process over all manipulable variables, without the graph.

The baseline `bo`, ordinary Bayesian optimization. Every manipulable variable is set in every
experiment, and f(x) = E[Y | do(all of them = x)] has a constant mean, integrated out under a wide
prior around the target's mean in the observational rows, and a stationary covariance with a
lengthscale for each variable.

It is asked and told about the one set of all manipulable variables. Problems whose sets were found
by a rule ("mis", "pomis", a largest size) accept that set in any query; a problem with explicit
sets that lack it is posed anew by `all_at_once`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs
from scipy.optimize import Bounds, minimize
from scipy.stats import norm

from causal_bo_ppl.data.outcomes import merge_replicates
from causal_bo_ppl.effect_estimates.moments import Prediction, smooth_moments, target_moments
from causal_bo_ppl.errors import DataError, ExplorationError, ModelError, NumericalError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count, read_size
from causal_bo_ppl.linalg import clip_rounding, factor_covariance, first_smallest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.surrogates.base import Told, no_told, read_told

JITTERS = tuple(10.0**power for power in range(-10, -5))  # of a prior variance, the least first
SHORT, LONG = (0.25, 0.5), (1.0, 2.0)  # starts of lengthscales, in medians of their prior
HEIGHTS = (0.3, 1.0, 3.0)  # starts of the amplitude, in medians of its prior
REACH = 5.0  # prior sds within which hyperparameters are searched for


class Hyperparameters(NamedTuple):
    """The amplitude a, lengthscales (d,) in widths of the domains, and the factor of the noise."""

    amplitude: float
    lengthscales: np.ndarray
    noise_scale: float = 1.0


@dataclass(frozen=True)
class Hyperprior:
    """Independent log-normal priors, each by its median and the sd of its logarithm.

    amplitude: the median of a; `amplitude_spread` the sd of log a.
    lengthscale: the median of a lengthscale for one variable, in widths of its domain; for d
        variables it is sqrt(d) as large, as are distances between points of a box. Medians above
        0.2 make few outcomes without noise too sure of a smooth function.
    noise_spread: the sd of the log of the factor of noise that was not given; its median is 1.
    """

    amplitude: float
    amplitude_spread: float = 1.0
    lengthscale: float = 0.15
    lengthscale_spread: float = 0.5
    noise_spread: float = 0.5

    def centre(self, variables: int, *, has_noise: bool) -> np.ndarray:
        """Return the medians of the logarithms of all hyperparameters."""
        lengthscale = math.log(self.lengthscale) + math.log(max(variables, 1)) / 2
        logs = [math.log(self.amplitude), *[lengthscale] * variables]
        return np.array([*logs, 0.0] if has_noise else logs)

    def spread(self, variables: int, *, has_noise: bool) -> np.ndarray:
        """Return the sds of the logarithms of all hyperparameters."""
        spreads = [self.amplitude_spread, *[self.lengthscale_spread] * variables]
        return np.array([*spreads, self.noise_spread] if has_noise else spreads)


class Points(NamedTuple):
    """Places x (n, d) in widths of the domains, prior means m(x) (n,) and functions B(x) (n, k)."""

    x: np.ndarray
    mean: np.ndarray
    basis: np.ndarray


class Observations(NamedTuple):
    """Mean outcomes of t distinct places.

    values: (t,). given: (t,) variances of their noise, 0 where it was not given. implied: (t,)
    variances that the model implies where none was given, to be multiplied by the factor of the
    noise; 0 elsewhere. freedom, squares: of replicates whose noise was not given, their number less
    that of their places, and the sum of their squared distances to their mean in units of the
    implied variances.
    """

    points: Points
    values: np.ndarray
    given: np.ndarray
    implied: np.ndarray
    freedom: int = 0
    squares: float = 0.0

    @property
    def has_noise(self) -> bool:
        """Whether the scale of some noise is to be learned."""
        return bool((self.implied > 0).any())

    @property
    def variables(self) -> int:
        """The number d of variables."""
        return int(self.points.x.shape[1])


class Correlation(NamedTuple):
    """Correlations (n, k), and their factor (n, k): d c / d log l_j = factor * u_j^2."""

    values: np.ndarray
    slopes: np.ndarray


def rbf(squares: np.ndarray) -> Correlation:
    """Return exp(-r^2 / 2) at squared distances r^2 in lengthscales."""
    values = np.exp(-squares / 2)
    return Correlation(values, values)


def matern52(squares: np.ndarray) -> Correlation:
    """Return (1 + q + q^2 / 3) exp(-q) with q = sqrt(5) r, at squared distances r^2."""
    far = np.sqrt(5 * squares)
    decay = np.exp(-far)
    return Correlation((1 + far + far**2 / 3) * decay, 5 / 3 * (1 + far) * decay)


CORRELATIONS = {"rbf": rbf, "matern52": matern52}


def require_correlation(name: str) -> str:
    """Return the name of a correlation; refuse an unknown one."""
    if name not in CORRELATIONS:
        raise ModelError(f"kernel must be one of {', '.join(CORRELATIONS)}; got {name!r}")
    return name


def _squares(x: np.ndarray, others: np.ndarray, lengthscales: np.ndarray) -> np.ndarray:
    """Return u_j^2 (d, n, k), squared differences of each variable in its lengthscale."""
    left, right = (x / lengthscales).T, (others / lengthscales).T
    return np.asarray((left[:, :, None] - right[:, None, :]) ** 2)


def prior_covariance(
    kernel: str, hyper: Hyperparameters, points: Points, others: Points
) -> np.ndarray:
    """Return k(x, x') of two batches before any outcome, of shape (n, k)."""
    squares = _squares(points.x, others.x, hyper.lengthscales).sum(axis=0)
    values = CORRELATIONS[kernel](squares).values
    return np.asarray(hyper.amplitude**2 * values + points.basis @ others.basis.T)


def prior_variances(hyper: Hyperparameters, points: Points) -> np.ndarray:
    """Return k(x, x) before any outcome, of shape (n,)."""
    return np.asarray(hyper.amplitude**2 + (points.basis**2).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Conditioned:
    """The process given outcomes, with fixed hyperparameters.

    root: the lower Cholesky factor of the covariance of the mean outcomes. pull: that covariance's
    inverse times their distances to the prior mean, (t,). jitter: what was added to each of its
    diagonal entries, as a share of the prior variance.
    """

    kernel: str
    hyper: Hyperparameters
    points: Points
    root: np.ndarray
    pull: np.ndarray
    jitter: float

    def predict(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n,) and variances (n,) at some places."""
        cross = prior_covariance(self.kernel, self.hyper, self.points, points)
        before = prior_variances(self.hyper, points)
        shrunk = dtrtrs(self.root, cross, lower=1)[0]
        variances = clip_rounding(before - (shrunk**2).sum(axis=0), before)
        return points.mean + self.pull @ cross, variances

    def covariance(self, points: Points) -> np.ndarray:
        """Return the joint covariance (n, n) at some places."""
        cross = prior_covariance(self.kernel, self.hyper, self.points, points)
        shrunk = dtrtrs(self.root, cross, lower=1)[0]
        before = prior_covariance(self.kernel, self.hyper, points, points)
        return np.asarray(before - shrunk.T @ shrunk)


def condition(kernel: str, hyper: Hyperparameters, seen: Observations) -> Conditioned:
    """Return the process given outcomes, with the least jitter that makes it definite."""
    covariance = prior_covariance(kernel, hyper, seen.points, seen.points)
    covariance += np.diag(seen.given + hyper.noise_scale * seen.implied)
    root, jitter = factorise(covariance, prior_variances(hyper, seen.points))
    pull = dpotrs(root, seen.values - seen.points.mean, lower=1)[0]
    return Conditioned(kernel, hyper, seen.points, root, pull, jitter)


def factorise(covariance: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a lower Cholesky factor, and the jitter added to the diagonal as a share of `sizes`.

    The least share is always added: outcomes without noise of near places need it, and
    hyperparameters are compared under the same matrix.

    Raises
    ------
    NumericalError
        If the matrix is not finite, or not definite with the largest share of 1e-6.
    """
    if not np.isfinite(covariance).all():
        raise NumericalError(
            f"{int((~np.isfinite(covariance)).sum())} covariances of outcomes are not finite; "
            "check the outcomes, or change the units of the target"
        )
    for jitter in JITTERS:
        root, fault = dpotrf(covariance + np.diag(jitter * sizes), lower=1, clean=1)
        if fault == 0:
            return root, jitter
    raise NumericalError(
        f"the covariance of {len(sizes)} outcomes is not positive definite, even with a jitter of "
        f"{JITTERS[-1]:g} of the prior variances; give the outcomes a variance as `noise`"
    )


def read_logs(logs: np.ndarray, variables: int) -> Hyperparameters:
    """Return the hyperparameters with these logarithms: a, lengthscales, the noise's factor."""
    values = np.exp(logs)
    scale = float(values[-1]) if len(logs) > variables + 1 else 1.0
    return Hyperparameters(float(values[0]), values[1 : 1 + variables], scale)


def negative_log_posterior(
    logs: np.ndarray, kernel: str, seen: Observations, prior: Hyperprior
) -> tuple[float, np.ndarray]:
    """Return minus the log density of the outcomes and of the logs of hyperparameters.

    It is 1/2 r'K^-1 r + 1/2 log |2 pi K| minus the log priors, with r the outcomes less the prior
    mean and K their covariance; where noise is learned, replicates add the density of their spread.

    Returns
    -------
    The value, and its gradient in the logs.
    """
    hyper, count = read_logs(logs, seen.variables), len(seen.values)
    each = _squares(seen.points.x, seen.points.x, hyper.lengthscales)
    found = CORRELATIONS[kernel](each.sum(axis=0))
    power, noise = hyper.amplitude**2, hyper.noise_scale * seen.implied
    covariance = power * found.values + seen.points.basis @ seen.points.basis.T
    covariance += np.diag(seen.given + noise)
    root, jitter = factorise(covariance, prior_variances(hyper, seen.points))
    residuals = seen.values - seen.points.mean
    inverse = dpotrs(root, np.eye(count), lower=1)[0]
    pull = inverse @ residuals
    log_determinant = 2 * np.log(np.diagonal(root)).sum()
    loss = (residuals @ pull + log_determinant + count * math.log(2 * math.pi)) / 2
    inner = (inverse - np.outer(pull, pull)) / 2  # d loss = sum of inner * dK
    slopes = [2 * power * ((inner * found.values).sum() + jitter * np.trace(inner))]
    slopes.extend(power * np.einsum("ij,kij->k", inner * found.slopes, each))
    if seen.has_noise:
        loss += (seen.freedom * logs[-1] + seen.squares / hyper.noise_scale) / 2
        own = (seen.freedom - seen.squares / hyper.noise_scale) / 2
        slopes.append(np.diagonal(inner) @ noise + own)
    centre = prior.centre(seen.variables, has_noise=seen.has_noise)
    spread = prior.spread(seen.variables, has_noise=seen.has_noise)
    z = (logs - centre) / spread
    loss += (z @ z) / 2 + np.log(spread).sum() + len(z) * math.log(2 * math.pi) / 2
    return float(loss), np.array(slopes) + z / spread


def most_probable(kernel: str, seen: Observations, prior: Hyperprior) -> Hyperparameters:
    """Return the hyperparameters at the mode of their logs given the outcomes.

    There may be several modes: short lengthscales with little noise, long ones with more. A fixed
    lattice of starts is compared, and the best start of short and of long lengthscales are both
    followed uphill.
    """
    count, has_noise = seen.variables, seen.has_noise
    centre = prior.centre(count, has_noise=has_noise)
    spread = prior.spread(count, has_noise=has_noise)
    if not len(seen.values):
        return read_logs(centre, count)
    climbs = []
    for widths in (SHORT, LONG) if count and len(seen.values) > 1 else (LONG,):
        moves = np.log([(height, width) for height in HEIGHTS for width in widths])
        starts = np.repeat(centre[None], len(moves), axis=0)
        starts[:, 0] += moves[:, 0]
        starts[:, 1 : 1 + count] += moves[:, 1:]
        losses = [negative_log_posterior(start, kernel, seen, prior)[0] for start in starts]
        climbs.append(
            minimize(
                negative_log_posterior,
                starts[first_smallest(np.array(losses))],
                (kernel, seen, prior),
                method="L-BFGS-B",
                jac=True,
                bounds=Bounds(centre - REACH * spread, centre + REACH * spread),
                options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": 200},
            )
        )
    best = climbs[first_smallest(np.array([float(climb.fun) for climb in climbs]))]
    return read_logs(np.asarray(best.x), count)


WIDE = 3.0  # sds of the target: the prior sd of a constant mean
MOST_KEPT = 512  # fitted sets kept with a posterior


class Beliefs(NamedTuple):
    """What is believed about every set before its outcomes.

    constant: mean and sd of a constant prior mean; None for the causal prior. members: the only set
    that is modelled, where there is one. width: of each variable's domain, (p,).
    """

    hyperprior: Hyperprior
    kernel: str
    constant: tuple[float, float] | None
    members: tuple[str, ...] | None
    width: np.ndarray


class Merged(NamedTuple):
    """The outcomes of one set with replicates merged; the fields of `Observations`, at queries."""

    queries: Queries
    values: np.ndarray
    given: np.ndarray
    implied: np.ndarray
    freedom: int
    squares: float

    def at(self, points: Points) -> Observations:
        """Return them as observations at the places of their queries."""
        return Observations(points, *self[1:])

    def digest(self, text: str) -> bytes:
        """Return a hash of the outcomes and of a text."""
        parts = [self.queries.mask, self.queries.value, self.values, self.given, self.implied]
        text = repr((text, len(self.values), self.freedom, self.squares))
        joined = b"".join(np.asarray(part).tobytes() for part in parts)
        return hashlib.sha256(text.encode() + joined).digest()


@dataclass(frozen=True, eq=False)
class Independent:
    """A Gaussian process for every set; made by `IndependentMaker`; see `interface.Surrogate`.

    told: every outcome as it was told. is_implied: (m,) whether the variance of its noise was not
    given, so that its scale is learned. sets: the processes of the sets that have outcomes.
    """

    post: Posterior
    beliefs: Beliefs
    told: Told
    is_implied: np.ndarray
    sets: Mapping[bytes, Conditioned]
    _kept: dict[bytes, Conditioned] = field(default_factory=dict, repr=False)

    @property
    def is_affine(self) -> bool:
        """Whether means are affine and sds convex in the values, so that a vertex is optimal."""
        return False

    @property
    def begins_flat(self) -> bool:
        """Whether nothing is known yet, so that all interventions must look equally good."""
        return self.beliefs.constant is not None and not len(self.told.values)

    @property
    def jitter(self) -> float:
        """The largest jitter that the covariance of a set's outcomes needed, as a share."""
        return max((each.jitter for each in self.sets.values()), default=0.0)

    def hyperparameters(self) -> dict[tuple[str, ...], Hyperparameters]:
        """Return the fitted hyperparameters of every set that has outcomes."""
        return {_names(self.post, key): each.hyper for key, each in self.sets.items()}

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self._require(queries)
        points = self._points(queries)
        variance = prior_variances(self._untold(0), points)
        mean = points.mean.copy()
        for key, rows in split_by_set(queries):
            if key in self.sets:
                found = self.sets[key].predict(_of_set(points, key, rows))
                mean[rows], variance[rows] = found
        return Prediction(mean, np.sqrt(variance))

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M); 0 between sets."""
        queries = self._require(queries)
        points, joint = self._points(queries), np.zeros((len(queries), len(queries)))
        for key, rows in split_by_set(queries):
            joint[np.ix_(rows, rows)] = self._block(key, _of_set(points, key, rows))
        return joint

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M).

        The cost grows with the cube of the number of queries of one set.
        """
        queries, count = self._require(queries), read_count("n", n, 1)
        draws = host_generator(as_key(key)).standard_normal((count, len(queries)))
        points, mean = self._points(queries), self.predict(queries).mean
        for name, rows in split_by_set(queries):
            root = factor_covariance(self._block(name, _of_set(points, name, rows)))
            draws[:, rows] = draws[:, rows] @ root.T
        return np.asarray(mean + draws)

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Independent":
        """Return the surrogate after outcomes of some interventions.

        Hyperparameters of the sets that were told are fitted again to all of their outcomes; other
        sets stay as they are.

        Parameters
        ----------
        queries:
            M interventions.
        outcomes:
            What came out, (M,); a number for one intervention.
        noise:
            Variances of the outcomes' noise; where they are not given, those that the model
            implies, times a factor that is learned for each set.
        """
        queries = self._require(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        new = read_told(queries, outcomes, variances)
        after = self._join(new, noise is None)
        touched = [key for key, _ in split_by_set(queries)]
        return replace(after, sets={**self.sets, **after._learn(touched)})

    def fantasize(self, query: Queries, noise: float) -> "Independent":
        """Return the surrogate as if a query had come out as predicted: less doubt, same means.

        Hyperparameters stay as they are.
        """
        told = self._read_one(query, 0.0, noise)
        # An outcome without noise that was told before decides; this one agrees up to rounding.
        variances = np.maximum(told.variances, np.finfo(float).tiny)
        predicted = self.predict(told.queries).mean
        after = self._join(told._replace(values=predicted, variances=variances), False)
        [(key, _)] = split_by_set(told.queries)
        own = after._merged(key)
        seen = own.at(_of_set(self._points(own.queries), key, slice(None)))
        known = key in self.sets
        hyper = self.sets[key].hyper if known else self._untold(seen.variables)
        learned = condition(self.beliefs.kernel, hyper, seen)
        return replace(after, sets={**self.sets, key: learned})

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all that was told."""
        told = self._read_one(query, outcome, noise)
        mean, sd = self.predict(told.queries)
        spread = np.sqrt(sd**2 + told.variances)
        return float(norm.logpdf(told.values[0], mean[0], spread[0]))

    def _require(self, queries: Queries) -> Queries:
        """Return the queries if they are legal, and of the one set that is modelled if there is."""
        queries = self.post.problem.require(queries)
        if self.beliefs.constant is not None and not np.asarray(queries.mask).any(axis=1).all():
            raise ExplorationError(
                "without a causal prior nothing is believed about doing nothing; set a variable"
            )
        if self.beliefs.members is not None:
            nodes, mask = self.post.problem.graph.nodes, np.asarray(queries.mask)
            wanted = np.isin(nodes, self.beliefs.members)
            if not (mask == wanted).all():
                row = int(np.flatnonzero((mask != wanted).any(axis=1))[0])
                found = [name for name, is_set in zip(nodes, mask[row], strict=True) if is_set]
                raise ExplorationError(
                    f"this surrogate models do({listed(self.beliefs.members)}) alone, with every "
                    f"variable set; got do({listed(found)})"
                )
        return Queries(queries.mask, np.where(queries.mask, queries.value, 0.0) + 0.0)

    def _read_one(self, query: Queries, outcome: float, noise: float) -> Told:
        told = read_told(self._require(query), outcome, noise)
        if len(told.values) != 1:
            raise DataError(f"this is about one intervention; got {told.queries!r}")
        return told

    def _join(self, new: Told, is_implied: bool) -> "Independent":
        flags = np.append(self.is_implied, np.full(len(new.values), is_implied))
        return replace(self, told=self.told.join(new), is_implied=flags)

    def _points(self, queries: Queries) -> Points:
        """Return places over all p variables, prior means and basis of a batch."""
        positions = np.asarray(queries.value) / self.beliefs.width
        if self.beliefs.constant is None:
            mean, sd = smooth_moments(self.post, queries)
            return Points(positions, mean, sd[:, None])
        middle, wide = self.beliefs.constant
        count = len(queries)
        return Points(positions, np.full(count, middle), np.full((count, 1), wide))

    def _untold(self, variables: int) -> Hyperparameters:
        """Return the hyperparameters of a set without outcomes: the medians of their priors."""
        centre = self.beliefs.hyperprior.centre(variables, has_noise=False)
        return read_logs(centre, variables)

    def _block(self, key: bytes, points: Points) -> np.ndarray:
        if key in self.sets:
            return self.sets[key].covariance(points)
        hyper = self._untold(points.x.shape[1])
        return prior_covariance(self.beliefs.kernel, hyper, points, points)

    def _learn(self, keys: list[bytes]) -> dict[bytes, Conditioned]:
        """Return the processes of some sets given all of their outcomes.

        Those of the same outcomes are kept; the causal prior of all others is found at once.
        """
        merged = {key: self._merged(key) for key in keys}
        names = {key: each.digest(repr(self.beliefs[:-1])) for key, each in merged.items()}
        new = [key for key in keys if names[key] not in self._kept]
        if new:
            points = self._points(stack([merged[key].queries for key in new]))
            ends = np.cumsum([len(merged[key].values) for key in new])
            for key, rows in zip(new, np.split(np.arange(ends[-1]), ends), strict=False):
                seen = merged[key].at(_of_set(points, key, rows))
                hyper = most_probable(self.beliefs.kernel, seen, self.beliefs.hyperprior)
                self._kept[names[key]] = condition(self.beliefs.kernel, hyper, seen)
        found = {key: self._kept.pop(names[key]) for key in keys}
        self._kept.update((names[key], found[key]) for key in keys)  # the last used stand last
        while len(self._kept) > max(MOST_KEPT, len(keys)):
            self._kept.pop(next(iter(self._kept)))
        return found

    def _merged(self, key: bytes) -> Merged:
        """Return all outcomes of one set, replicates merged, in an order of their own."""
        own = (np.asarray(self.told.queries.mask) == np.frombuffer(key, bool)).all(axis=1)
        parts = [self._told(own & (self.is_implied == flag)) for flag in (False, True)]
        given, implied = (merge_replicates(*part) for part in parts)
        none = np.zeros(len(given.means)), np.zeros(len(implied.means))
        queries = stack([given.queries, implied.queries])
        values = np.append(given.means, implied.means)
        known, scaled = np.append(given.variances, none[1]), np.append(none[0], implied.variances)
        order = np.lexsort([known, *np.asarray(queries.value).T[::-1]])
        spread = _spread_of_replicates(*parts[1])
        return Merged(queries[order], values[order], known[order], scaled[order], *spread)

    def _told(self, chosen: np.ndarray) -> Told:
        queries, values, variances = self.told
        return Told(queries[np.flatnonzero(chosen)], values[chosen], variances[chosen])

    def __repr__(self) -> str:
        outcomes = f"{len(self.told.values)} outcomes of {len(self.sets)} sets"
        return f"Independent({outcomes}; {self.post!r})"


@dataclass(frozen=True)
class IndependentMaker:
    """Makes a Gaussian process for every set; see `interface.SurrogateMaker`.

    Parameters
    ----------
    causal_prior:
        Whether the prior mean and sd of effects are those that the rows imply ("cbo"), or the mean
        is a constant and the process stationary ("cbo-noprior").
    kernel:
        The correlation of two effects of one set: "rbf" or "matern52".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational rows.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> cbo = IndependentMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> told = cbo.tell(system.problem.queries([{"Z": -3.0}]), -2.15, 0.0)
    >>> near, other = system.problem.queries([{"Z": -2.9}, {"X": 0.0}])
    >>> bool(told.predict(near).sd < cbo.predict(near).sd)
    True
    >>> bool(told.predict(other).sd < cbo.predict(other).sd)
    False
    """

    causal_prior: bool = True
    kernel: str = "rbf"
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        require_correlation(self.kernel)
        object.__setattr__(self, "amplitude", read_size("amplitude", self.amplitude))

    @property
    def name(self) -> str:
        """The name of the baseline."""
        return "cbo" if self.causal_prior else "cbo-noprior"

    def begin(self, post: Posterior) -> Independent:
        """Return the surrogate before any outcome."""
        return begin(post, self.kernel, self.amplitude, causal_prior=self.causal_prior)


def begin(
    post: Posterior,
    kernel: str,
    amplitude: float,
    *,
    causal_prior: bool,
    members: tuple[str, ...] | None = None,
) -> Independent:
    """Return independent processes before any outcome; of one set only, where it is given."""
    problem, target = require_trusted(post).problem, target_moments(post)
    nodes, domains = problem.graph.nodes, problem.domains
    ends = np.array([domains.get(name, (0.0, 1.0)) for name in nodes])
    constant = None if causal_prior else (target.mean, WIDE * target.sd)
    hyperprior = Hyperprior(amplitude * target.sd)
    beliefs = Beliefs(hyperprior, kernel, constant, members, np.ptp(ends, axis=1))
    nothing = no_told(len(nodes))
    kept = post.__dict__.setdefault("_fitted_sets", {})  # gone with the posterior
    return Independent(post, beliefs, nothing, np.zeros(0, bool), {}, kept)


def _of_set(points: Points, key: bytes, rows: np.ndarray | slice) -> Points:
    """Return the points of one set, over its own variables."""
    columns = np.flatnonzero(np.frombuffer(key, bool))
    return Points(points.x[rows][:, columns], points.mean[rows], points.basis[rows])


def _names(post: Posterior, key: bytes) -> tuple[str, ...]:
    positions = np.flatnonzero(np.frombuffer(key, bool))
    return tuple(post.problem.graph.nodes[position] for position in positions)


def _spread_of_replicates(
    queries: Queries, values: np.ndarray, variances: np.ndarray
) -> tuple[int, float]:
    """Return how many replicates there are beyond one of each, and their standardized spread.

    It is the sum of squared distances to the mean of their place, over their variances.
    """
    used = variances > 0
    if used.sum() < 2:
        return 0, 0.0
    weights, outcomes = 1 / variances[used], values[used]
    _, position = np.unique(np.asarray(queries.value)[used], axis=0, return_inverse=True)
    position = position.reshape(-1)
    means = np.bincount(position, weights * outcomes) / np.bincount(position, weights)
    return int(used.sum() - len(means)), float(weights @ (outcomes - means[position]) ** 2)


@dataclass(frozen=True)
class PlainMaker:
    """Makes one Gaussian process over all manipulable variables; see `interface.SurrogateMaker`.

    Parameters
    ----------
    kernel:
        The correlation of two effects: "matern52" or "rbf".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational rows.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> maker = PlainMaker()
    >>> maker.sets(system.problem)
    (('X', 'Z'),)
    >>> bo = maker.begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> tried = system.problem.queries([{"X": 0.0, "Z": -3.0}])
    >>> bool(bo.tell(tried, -2.15, 0.0).predict(tried).sd < 1e-3)
    True
    """

    kernel: str = "matern52"
    amplitude: float = 1.0

    name = "bo"

    def __post_init__(self) -> None:
        require_correlation(self.kernel)
        object.__setattr__(self, "amplitude", read_size("amplitude", self.amplitude))

    def sets(self, problem: Problem) -> tuple[tuple[str, ...], ...]:
        """Return the only set that may be suggested: all manipulable variables at once."""
        return (problem.manipulable,)

    def begin(self, post: Posterior) -> Independent:
        """Return the surrogate before any outcome."""
        problem = post.problem
        [members] = self.sets(problem)
        if problem.sets_are_explicit and members not in problem.sets:
            raise ExplorationError(
                f"plain optimization sets {listed(members)} together, which is not among the "
                "explicit sets of this problem; add that set, or pose the problem by "
                "surrogates.plain.all_at_once(problem)"
            )
        return begin(post, self.kernel, self.amplitude, causal_prior=False, members=members)


def all_at_once(problem: Problem) -> Problem:
    """Return the same problem with one set, that of all manipulable variables.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> all_at_once(cb.models.load("toy").problem).sets
    (('X', 'Z'),)
    """
    return problem.explore([problem.manipulable])
