"""Surrogates of every set by itself, which learn from the outcomes of their set alone.

The surrogate without coupling is an ablation: every set has a separate coupled surrogate, so that
interventions on different sets have no covariance.

Independent surrogates are Gaussian processes. The effect of a set is a function f(x) = m(x) +
B(x) b + g(x) with b ~ N(0, 1), a known function B, and g a stationary process: its covariance is

    k(x, x') = a^2 c(x, x') + B(x) B(x'),

c an RBF or a Matern 5/2 correlation with a lengthscale for each variable, on inputs in units of the
domains' widths. Amplitude a, lengthscales and the scale of noise that was not given have log-normal
priors. They are set where the density of their logarithms given the outcomes is largest, found from
fixed starts, so that the order of outcomes cannot matter. A set without outcomes has the medians.

These are the baselines of causal Bayesian optimization (Aglietti et al. 2020). For "cbo" m and B
are the causal prior, mean and sd of the effect that the observational data imply by do-calculus,
integrated over theta. For "cbo-noprior" they are constants, so that the mean is integrated out
under a wide prior around the target's mean. The baseline "bo" is ordinary Bayesian optimization
without the graph: one such process, of the set of all manipulable variables. Problems whose sets
were found by a rule ("mis", "pomis", a largest size) accept that set in any query; for a problem
with explicit sets that lack it, take `problem.explore([problem.manipulable])`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs
from scipy.optimize import Bounds, minimize
from scipy.stats import norm

from causal_bo_ppl.data.observations import (
    NoisyOutcomes,
    merge_replicates,
    no_noisy_outcomes,
    read_noisy_outcomes,
)
from causal_bo_ppl.effect_estimates.moments import smooth_moments, target_moments
from causal_bo_ppl.errors import ArgumentError, ExplorationError, NumericalError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, offered, read_count, read_size
from causal_bo_ppl.linalg import clip_rounding, factor_covariance, first_smallest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.responses import Prediction
from causal_bo_ppl.surrogates.base import (
    JointPrediction,
    Numbers,
    Surrogate,
    SurrogateMaker,
    as_query,
    predicted_outcomes,
)
from causal_bo_ppl.surrogates.coupled import CoupledMaker

JITTERS = tuple(10.0**power for power in range(-10, -5))  # of a prior variance, the least first
SHORT_STARTS, LONG_STARTS = (0.25, 0.5), (1.0, 2.0)  # lengthscales, in medians of their prior
AMPLITUDE_STARTS = (0.3, 1.0, 3.0)  # in medians of the amplitude's prior
SEARCH_WIDTH = 5.0  # prior sds within which hyperparameters are searched for
PRECISION = {"ftol": 1e-14, "gtol": 1e-8, "maxiter": 200}  # of that search
CONSTANT_SPREAD = 3.0  # sds of the target: the prior sd of a constant mean
MOST_FITTED_SETS = 512  # that a configuration keeps


class Hyperparameters(NamedTuple):
    """The amplitude a, lengthscales (d,) in widths of the domains, and the factor of the noise."""

    amplitude: float
    lengthscales: np.ndarray
    noise_scale: float = 1.0


@dataclass(frozen=True)
class Hyperprior:
    """Independent log-normal priors, each by its median and the sd of its logarithm.

    amplitude: the median of a. lengthscale: the median of a lengthscale for one variable, in widths
    of its domain; for d variables it is sqrt(d) as large, as are distances between points of a box.
    Medians above 0.2 make few outcomes without noise too sure of a smooth function. noise_spread:
    of the factor of noise that was not given; its median is 1.
    """

    amplitude: float
    amplitude_spread: float = 1.0
    lengthscale: float = 0.15
    lengthscale_spread: float = 0.5
    noise_spread: float = 0.5

    def logs(self, variables: int, *, has_noise: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the medians and the sds of the logarithms of all hyperparameters."""
        lengthscale = math.log(self.lengthscale) + math.log(max(variables, 1)) / 2
        medians = [math.log(self.amplitude), *[lengthscale] * variables, 0.0]
        spreads = [self.amplitude_spread, *[self.lengthscale_spread] * variables, self.noise_spread]
        used = slice(None if has_noise else -1)
        return np.array(medians[used]), np.array(spreads[used])


class GPInputs(NamedTuple):
    """Inputs x (n, d) in widths of the domains, prior means m(x) (n,) and functions B(x) (n, k)."""

    x: np.ndarray
    mean: np.ndarray
    basis: np.ndarray

    def of_set(self, key: bytes, indices: np.ndarray | slice) -> "GPInputs":
        """Return the chosen inputs of one set, over its variables alone."""
        columns = np.flatnonzero(np.frombuffer(key, bool))
        return GPInputs(self.x[indices][:, columns], self.mean[indices], self.basis[indices])


class SetOutcomes(NamedTuple):
    """Mean outcomes of t distinct interventions on one set.

    values: (t,). given: (t,) variances of their noise, 0 where it was not given. implied: (t,)
    variances that the model implies where none was given, before the factor of the noise; 0
    elsewhere. freedom, squares: of replicates whose noise was not given, their number less that of
    their interventions, and the sum of squared distances to their means in implied variances.
    """

    values: np.ndarray
    given: np.ndarray
    implied: np.ndarray
    freedom: int = 0
    squares: float = 0.0

    @property
    def has_noise(self) -> bool:
        """Whether the scale of some noise is to be learned."""
        return bool((self.implied > 0).any())


def rbf(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return exp(-r^2 / 2) at squared distances r^2 in lengthscales, (n, k), and its factor.

    With the factor, d c / d log l_j = factor * u_j^2.
    """
    values = np.exp(-squares / 2)
    return values, values


def matern52(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (1 + q + q^2 / 3) exp(-q) with q = sqrt(5) r, at squared distances r^2; see `rbf`."""
    far = np.sqrt(5 * squares)
    decay = np.exp(-far)
    return (1 + far + far**2 / 3) * decay, 5 / 3 * (1 + far) * decay


CORRELATIONS = {"rbf": rbf, "matern52": matern52}


def _squares(x: np.ndarray, others: np.ndarray, lengthscales: np.ndarray) -> np.ndarray:
    """Return u_j^2 (d, n, k), squared differences of each variable in its lengthscale."""
    left, right = (x / lengthscales).T, (others / lengthscales).T
    return np.asarray((left[:, :, None] - right[:, None, :]) ** 2)


def prior_covariance(
    kernel: str, hyper: Hyperparameters, inputs: GPInputs, others: GPInputs
) -> np.ndarray:
    """Return k(x, x') of two batches before any outcome, of shape (n, k)."""
    squares = _squares(inputs.x, others.x, hyper.lengthscales).sum(axis=0)
    values, _ = CORRELATIONS[kernel](squares)
    return np.asarray(hyper.amplitude**2 * values + inputs.basis @ others.basis.T)


def prior_variances(hyper: Hyperparameters, inputs: GPInputs) -> np.ndarray:
    """Return k(x, x) before any outcome, of shape (n,)."""
    return np.asarray(hyper.amplitude**2 + (inputs.basis**2).sum(axis=1))


@dataclass(frozen=True, eq=False)
class ConditionedGP:
    """The process given outcomes, with fixed hyperparameters.

    inputs: of the t outcomes. root: the lower Cholesky factor of the covariance of the mean
    outcomes. weights: that covariance's inverse times their residuals from the prior mean, (t,).
    jitter: what was added to each of its diagonal entries, as a share of the prior variance.
    """

    kernel: str
    hyper: Hyperparameters
    inputs: GPInputs
    root: np.ndarray
    weights: np.ndarray
    jitter: float

    def _explained(self, inputs: GPInputs) -> tuple[np.ndarray, np.ndarray]:
        """Return covariances (t, n) of outcomes and inputs, and a root of what they explain."""
        cross = prior_covariance(self.kernel, self.hyper, self.inputs, inputs)
        return cross, dtrtrs(self.root, cross, lower=1)[0]

    def predict(self, inputs: GPInputs) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n,) and variances (n,) at some inputs."""
        before, (cross, explained) = prior_variances(self.hyper, inputs), self._explained(inputs)
        variances = clip_rounding(before - (explained**2).sum(axis=0), before)
        return inputs.mean + self.weights @ cross, variances

    def covariance(self, inputs: GPInputs) -> np.ndarray:
        """Return the joint covariance (n, n) at some inputs."""
        before = prior_covariance(self.kernel, self.hyper, inputs, inputs)
        explained = self._explained(inputs)[1]
        return np.asarray(before - explained.T @ explained)


def condition_gp(
    kernel: str, hyper: Hyperparameters, inputs: GPInputs, outcomes: SetOutcomes
) -> ConditionedGP:
    """Return the process given outcomes, with the least jitter that makes it definite."""
    covariance = prior_covariance(kernel, hyper, inputs, inputs)
    covariance += np.diag(outcomes.given + hyper.noise_scale * outcomes.implied)
    root, jitter = factorise(covariance, prior_variances(hyper, inputs))
    weights = dpotrs(root, outcomes.values - inputs.mean, lower=1)[0]
    return ConditionedGP(kernel, hyper, inputs, root, weights, jitter)


def factorise(covariance: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a lower Cholesky factor, and the jitter added to the diagonal as a share of `sizes`.

    The least share is always added, so that hyperparameters are compared under the same matrix.
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
    logs: np.ndarray, kernel: str, inputs: GPInputs, outcomes: SetOutcomes, prior: Hyperprior
) -> tuple[float, np.ndarray]:
    """Return minus the log density of outcomes and logs of hyperparameters, and its gradient.

    It is 1/2 r'K^-1 r + 1/2 log |2 pi K| minus the log priors, with r the outcomes less the prior
    mean and K their covariance; where noise is learned, replicates add the density of their spread.
    """
    variables, count, has_noise = inputs.x.shape[1], len(outcomes.values), outcomes.has_noise
    hyper = read_logs(logs, variables)
    squares = _squares(inputs.x, inputs.x, hyper.lengthscales)
    correlations, factors = CORRELATIONS[kernel](squares.sum(axis=0))
    power, noise = hyper.amplitude**2, hyper.noise_scale * outcomes.implied
    covariance = power * correlations + inputs.basis @ inputs.basis.T
    covariance += np.diag(outcomes.given + noise)
    root, jitter = factorise(covariance, prior_variances(hyper, inputs))
    residuals = outcomes.values - inputs.mean
    inverse = dpotrs(root, np.eye(count), lower=1)[0]
    weights = inverse @ residuals
    log_determinant = 2 * np.log(np.diagonal(root)).sum()
    loss = (residuals @ weights + log_determinant + count * math.log(2 * math.pi)) / 2
    inner = (inverse - np.outer(weights, weights)) / 2  # d loss = sum of inner * dK
    slopes = [2 * power * ((inner * correlations).sum() + jitter * np.trace(inner))]
    slopes.extend(power * np.einsum("ij,kij->k", inner * factors, squares))
    if has_noise:
        loss += (outcomes.freedom * logs[-1] + outcomes.squares / hyper.noise_scale) / 2
        own = (outcomes.freedom - outcomes.squares / hyper.noise_scale) / 2
        slopes.append(np.diagonal(inner) @ noise + own)
    medians, spreads = prior.logs(variables, has_noise=has_noise)
    z = (logs - medians) / spreads
    loss += (z @ z) / 2 + np.log(spreads).sum() + len(z) * math.log(2 * math.pi) / 2
    return float(loss), np.array(slopes) + z / spreads


def most_probable(
    kernel: str, inputs: GPInputs, outcomes: SetOutcomes, prior: Hyperprior
) -> Hyperparameters:
    """Return the hyperparameters at the mode of their logs given the outcomes.

    There may be a mode with short lengthscales and one with long ones and more noise: the search is
    run from the best of a fixed lattice of starts of either kind.
    """
    variables = inputs.x.shape[1]
    medians, spreads = prior.logs(variables, has_noise=outcomes.has_noise)
    data, searches = (kernel, inputs, outcomes, prior), []
    bounds = Bounds(medians - SEARCH_WIDTH * spreads, medians + SEARCH_WIDTH * spreads)
    options: dict[str, Any] = {"method": "L-BFGS-B", "jac": True, "options": PRECISION}
    has_both = variables and len(outcomes.values) > 1
    for lengths in (SHORT_STARTS, LONG_STARTS) if has_both else (LONG_STARTS,):
        moves = np.log([(height, length) for height in AMPLITUDE_STARTS for length in lengths])
        starts = np.repeat(medians[None], len(moves), axis=0)
        starts[:, 0] += moves[:, 0]
        starts[:, 1 : 1 + variables] += moves[:, 1:]
        losses = [negative_log_posterior(start, *data)[0] for start in starts]
        start = starts[first_smallest(np.array(losses))]
        searches.append(minimize(negative_log_posterior, start, data, bounds=bounds, **options))
    best = searches[first_smallest(np.array([float(search.fun) for search in searches]))]
    return read_logs(np.asarray(best.x), variables)


class SetPrior(NamedTuple):
    """The prior of every set before its outcomes.

    constant: mean and sd of a constant prior mean; None for the causal prior. members: the only set
    that is modelled, where there is one. width: of each variable's domain, (p,).
    """

    hyperprior: Hyperprior
    kernel: str
    constant: tuple[float, float] | None
    members: tuple[str, ...] | None
    width: np.ndarray

    def medians(self, variables: int) -> Hyperparameters:
        """Return the hyperparameters of a set without outcomes: the medians of their priors."""
        return read_logs(self.hyperprior.logs(variables, has_noise=False)[0], variables)


@dataclass(frozen=True, eq=False)
class Independent:
    """A Gaussian process for every set; made by `IndependentMaker`; see `base.Surrogate`.

    observed: every outcome. is_implied: (m,) whether the variance of its noise was not given, so
    that its scale is learned. sets: the processes of the sets that have outcomes. _fitted: the
    processes that the configuration keeps, by their outcomes.
    """

    post: Posterior
    prior: SetPrior
    observed: NoisyOutcomes
    is_implied: np.ndarray
    sets: Mapping[bytes, ConditionedGP]
    _fitted: dict[object, ConditionedGP] = field(default_factory=dict, repr=False)

    is_affine = False  # a vertex need not be optimal

    @property
    def is_uninformed(self) -> bool:
        """Whether all interventions have the same prior and there is no outcome yet."""
        return self.prior.constant is not None and not len(self.observed.values)

    def hyperparameters(self) -> dict[tuple[str, ...], Hyperparameters]:
        """Return the fitted hyperparameters of every set that has outcomes."""
        nodes = np.array(self.post.problem.graph.nodes)
        return {
            tuple(nodes[np.frombuffer(key, bool)].tolist()): process.hyper
            for key, process in self.sets.items()
        }

    def require_known(self, queries: Queries) -> None:
        """Raise ExplorationError where the effect of a query is not modelled."""
        mask = np.asarray(queries.mask)
        if self.prior.constant is not None and not mask.any(axis=1).all():
            raise ExplorationError(
                "without a causal prior the effect of setting nothing is not modelled; set a "
                "variable"
            )
        if self.prior.members is not None:
            nodes = np.array(self.post.problem.graph.nodes)
            others = mask[(mask != np.isin(nodes, self.prior.members)).any(axis=1)]
            if len(others):
                raise ExplorationError(
                    f"this surrogate models do({listed(self.prior.members)}) alone, with every "
                    f"variable set; got do({listed(nodes[others[0]])})"
                )

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self.post.as_queries(queries)
        inputs = self._inputs(queries)
        mean, variance = inputs.mean.copy(), prior_variances(self.prior.medians(0), inputs)
        for key, indices in split_by_set(queries):
            if key in self.sets:
                own = inputs.of_set(key, indices)
                mean[indices], variance[indices] = self.sets[key].predict(own)
        return Prediction(mean, np.sqrt(variance))

    def joint(self, queries: Queries) -> JointPrediction:
        """Return mean and joint covariance of the effects of a batch; 0 between sets."""
        queries = self.post.as_queries(queries)
        inputs, covariance = self._inputs(queries), np.zeros((len(queries), len(queries)))
        for key, indices in split_by_set(queries):
            own = inputs.of_set(key, indices)
            if key in self.sets:
                block = self.sets[key].covariance(own)
            else:
                block = prior_covariance(self.prior.kernel, self._hyper(key), own, own)
            covariance[np.ix_(indices, indices)] = block
        return JointPrediction(self.predict(queries).mean, covariance)

    def sample(self, key: jax.Array | int, queries: Queries, n: int = 1) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M), in O(M^3)."""
        queries = self.post.as_queries(queries)
        shape, (mean, covariance) = (read_count("n", n, 1), len(queries)), self.joint(queries)
        draws = host_generator(as_key(key)).standard_normal(shape)
        for _, indices in split_by_set(queries):
            root = factor_covariance(covariance[np.ix_(indices, indices)])
            draws[:, indices] = draws[:, indices] @ root.T
        return np.asarray(mean + draws)

    def condition(self, queries: Queries, outcomes: Numbers, noise: Numbers | None = None) -> Self:
        """Return the surrogate conditioned on outcomes of some interventions.

        Hyperparameters of their sets are fitted again. Where variances of the noise are not given,
        a factor of those that the model implies is learned for each set.
        """
        queries = self.post.as_queries(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        new = read_noisy_outcomes(queries, outcomes, variances)
        after = self._join(new, noise is None)
        return replace(after, sets={**self.sets, **after._fit(new.queries)})

    def fantasize(self, queries: Queries, noise: Numbers | None = None) -> Self:
        """Return the surrogate as if queries had come out as predicted; nothing is fitted."""
        new = predicted_outcomes(self, queries, noise)
        after, sets = self._join(new, False), dict(self.sets)
        for key, _ in split_by_set(new.queries):
            tried, outcomes = after._merged(key)
            inputs = self._inputs(tried).of_set(key, slice(None))
            sets[key] = condition_gp(self.prior.kernel, self._hyper(key), inputs, outcomes)
        return replace(after, sets=sets)

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        query = as_query(self.post, query)
        new = read_noisy_outcomes(query, outcome, noise)
        mean, sd = self.predict(query)
        return float(norm.logpdf(new.values[0], mean[0], np.sqrt(sd[0] ** 2 + new.variances[0])))

    def _join(self, new: NoisyOutcomes, is_implied: bool) -> Self:
        flags = np.append(self.is_implied, np.full(len(new.values), is_implied))
        return replace(self, observed=self.observed.join(new), is_implied=flags)

    def _inputs(self, queries: Queries) -> GPInputs:
        """Return inputs over all p variables, prior means and basis of a batch that is known."""
        self.require_known(queries)
        positions, count = np.asarray(queries.value) / self.prior.width, len(queries)
        if self.prior.constant is None:
            mean, sd = smooth_moments(self.post, queries)
        else:
            mean, sd = (np.full(count, part) for part in self.prior.constant)
        return GPInputs(positions, mean, sd[:, None])

    def _hyper(self, key: bytes) -> Hyperparameters:
        """Return the hyperparameters of a set: without outcomes the medians of their priors."""
        if key in self.sets:
            return self.sets[key].hyper
        return self.prior.medians(int(np.frombuffer(key, bool).sum()))

    def _fit(self, queries: Queries) -> dict[bytes, ConditionedGP]:
        """Return the processes of the sets of some queries given all of their outcomes."""
        found, fitted, prior = dict[bytes, ConditionedGP](), self._fitted, self.prior
        for key, _ in split_by_set(queries):
            tried, outcomes = self._merged(key)
            arrays = (self.post.mean, tried.mask, tried.value, *outcomes)
            name = (self.post.fingerprint, prior[:-1], *(np.asarray(x).tobytes() for x in arrays))
            process = fitted.pop(name, None)
            if process is None:
                own = self._inputs(tried).of_set(key, slice(None))
                hyper = most_probable(prior.kernel, own, outcomes, prior.hyperprior)
                process = condition_gp(prior.kernel, hyper, own, outcomes)
            found[key] = fitted[name] = process  # the last used stand last
        for oldest in list(fitted)[: -max(MOST_FITTED_SETS, len(found))]:
            fitted.pop(oldest, None)
        return found

    def _merged(self, key: bytes) -> tuple[Queries, SetOutcomes]:
        """Return all outcomes of one set, replicates merged, in a canonical order."""
        own = (np.asarray(self.observed.queries.mask) == np.frombuffer(key, bool)).all(axis=1)
        parts = [self.observed.select(own & (self.is_implied == flag)) for flag in (False, True)]
        given, implied = (merge_replicates(*part) for part in parts)
        queries = stack([given.queries, implied.queries])
        values = np.append(given.means, implied.means)
        known = np.append(given.variances, np.zeros(len(implied.means)))
        scaled = np.append(np.zeros(len(given.means)), implied.variances)
        order = np.lexsort([known, *np.asarray(queries.value).T[::-1]])
        freedom = int((implied.counts - 1)[implied.variances > 0].sum())
        spread = (freedom, float(implied.squares.sum()))
        return queries[order], SetOutcomes(values[order], known[order], scaled[order], *spread)

    def __repr__(self) -> str:
        outcomes = f"{len(self.observed.values)} outcomes of {len(self.sets)} sets"
        return f"Independent({outcomes}; {self.post!r})"


@dataclass(frozen=True)
class IndependentMaker:
    """The configuration of a Gaussian process for every set, or of one for all variables.

    It keeps what was fitted, by the outcomes.

    Parameters
    ----------
    causal_prior:
        Whether the prior mean and sd of effects are those that the data imply ("cbo"), or the mean
        is a constant and the process stationary ("cbo-noprior").
    kernel:
        The correlation of two effects of one set: "rbf" or "matern52".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational data.
    is_plain:
        Whether there is one process, of all manipulable variables together, without a causal prior
        ("bo"; its correlation is "matern52").

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> cbo = IndependentMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> updated, both = cbo.condition([{"Z": -3.0}], -2.15, 0.0), [{"Z": -2.9}, {"X": 0.0}]
    >>> (updated.predict(both).sd < cbo.predict(both).sd).tolist()
    [True, False]
    """

    causal_prior: bool = True
    kernel: str = "rbf"
    amplitude: float = 1.0
    is_plain: bool = False
    _fitted: dict[object, ConditionedGP] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.kernel not in CORRELATIONS:
            known = ", ".join(CORRELATIONS)
            raise ArgumentError(f"kernel must be one of {known}; got {self.kernel!r}")
        read_size("amplitude", self.amplitude)

    @property
    def name(self) -> str:
        """The name of the baseline."""
        return "bo" if self.is_plain else "cbo" if self.causal_prior else "cbo-noprior"

    def sets(self, problem: Problem) -> tuple[tuple[str, ...], ...] | None:
        """Return the only sets that may be suggested, where not all sets of the problem may be."""
        return (problem.manipulable,) if self.is_plain else None

    def begin(self, post: Posterior) -> Independent:
        """Return the surrogate before any outcome."""
        problem, target = require_trusted(post).problem, target_moments(post)
        members = problem.manipulable if self.is_plain else None
        if members and problem.sets_are_explicit and members not in problem.sets:
            raise ExplorationError(
                f"plain optimization sets {listed(members)} together, which is not among the "
                "explicit sets of this problem; add that set, or take "
                "problem.explore([problem.manipulable])"
            )
        ends = np.array([problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes])
        has_constant = self.is_plain or not self.causal_prior
        constant = (target.mean, CONSTANT_SPREAD * target.sd) if has_constant else None
        hyperprior = Hyperprior(self.amplitude * target.sd)
        prior = SetPrior(hyperprior, self.kernel, constant, members, np.ptp(ends, axis=1))
        nothing = no_noisy_outcomes(len(problem.graph.nodes))
        return Independent(post, prior, nothing, np.zeros(0, bool), {}, self._fitted)


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
        """Whether this is so for all sets' surrogates or, where they do not say it, for effects."""
        default = self.post.distribution.response.is_affine
        parts = (self.before, *self.sets.values())
        return all(bool(getattr(each, "is_affine", default)) for each in parts)

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch; sets without outcomes all together."""
        queries = self.post.as_queries(queries)
        (mean, sd), is_new = np.empty((2, len(queries))), np.ones(len(queries), bool)
        for key, indices in split_by_set(queries):
            if key in self.sets:
                mean[indices], sd[indices] = self.sets[key].predict(queries[indices])
                is_new[indices] = False
        if is_new.any():
            mean[is_new], sd[is_new] = self.before.predict(queries[is_new])
        return Prediction(mean, sd)

    def joint(self, queries: Queries) -> JointPrediction:
        """Return mean and joint covariance of the effects of a batch; 0 between sets."""
        queries = self.post.as_queries(queries)
        mean, covariance = np.empty(len(queries)), np.zeros((len(queries), len(queries)))
        for _, indices, own in self._split(queries):
            mean[indices], covariance[np.ix_(indices, indices)] = own.joint(queries[indices])
        return JointPrediction(mean, covariance)

    def sample(self, key: jax.Array | int, queries: Queries, n: int = 1) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M); sets are drawn independently."""
        queries = self.post.as_queries(queries)
        draws, sets = np.empty((read_count("n", n, 1), len(queries))), list(self._split(queries))
        keys = jax.random.split(as_key(key), max(len(sets), 1))
        for (_, indices, own), part in zip(sets, keys, strict=False):
            draws[:, indices] = own.sample(part, queries[indices], n)
        return draws

    def condition(self, queries: Queries, outcomes: Numbers, noise: Numbers | None = None) -> Self:
        """Return the surrogate conditioned on outcomes (M,) of M queries; see `base.Surrogate`."""
        queries = self.post.as_queries(queries)
        new = read_noisy_outcomes(queries, outcomes, 0.0 if noise is None else noise)
        sets = dict(self.sets)
        for key, indices, own in self._split(new.queries):
            variances = None if noise is None else new.variances[indices]
            sets[key] = own.condition(new.queries[indices], new.values[indices], variances)
        return replace(self, sets=sets)

    def fantasize(self, queries: Queries, noise: Numbers | None = None) -> Self:
        """Return the surrogate as if queries had come out as predicted."""
        new, sets = predicted_outcomes(self, queries, noise), dict(self.sets)
        for key, chosen, own in self._split(new.queries):
            sets[key] = own.fantasize(new.queries[chosen], new.variances[chosen])
        return replace(self, sets=sets)

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        [(_, _, own)] = self._split(as_query(self.post, query))
        return own.log_density(query, outcome, noise)

    def relinearize(self) -> Self:
        """Return the surrogate with every set's approximations made anew at its outcomes."""
        sets = dict(self.sets)
        for key, surrogate in self.sets.items():
            if relinearize := offered(surrogate, "relinearize"):
                sets[key] = relinearize()
        return replace(self, sets=sets)

    def require_known(self, queries: Queries) -> None:
        """Raise ExplorationError where the effect of a query is not modelled."""
        (offered(self.before, "require_known") or self.before.predict)(queries)

    def _split(self, queries: Queries) -> Iterator[tuple[bytes, np.ndarray, Surrogate]]:
        """Yield the name of each set, the indices of its queries, and its surrogate."""
        for key, indices in split_by_set(queries):
            yield key, indices, self.sets.get(key, self.before)

    def __repr__(self) -> str:
        return f"Uncoupled({len(self.sets)} sets with outcomes; {self.post!r})"


@dataclass(frozen=True)
class UncoupledMaker:
    """The configuration of a separate surrogate for every set, by default the coupled one.

    of: the configuration of the surrogate of one set.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> alone = UncoupledMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> updated, both = alone.condition([{"Z": 2.0}], -2.6, 0.1), [{"Z": 1.0}, {"X": 1.0}]
    >>> (updated.predict(both).sd < alone.predict(both).sd).tolist()
    [True, False]
    """

    of: SurrogateMaker = field(default_factory=CoupledMaker)

    name = "uncoupled"

    def begin(self, post: Posterior) -> Uncoupled:
        """Return the surrogate before any outcome."""
        return Uncoupled(self.of.begin(post))
