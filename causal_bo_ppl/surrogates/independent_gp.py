"""Gaussian processes of single sets, with hyperparameters at their most probable values.

The effect of a set is a function f(x) = m(x) + B(x) b + g(x) with b ~ N(0, I), columns B of known
functions, and g a stationary process: its covariance is

    k(x, x') = a^2 c(x, x') + B(x) B(x')',

c an RBF or a Matern 5/2 correlation with a lengthscale for each variable, on inputs in units of the
domains' widths. Amplitude a, lengthscales and the scale of noise that was not given have log-normal
priors. They are set where the density of their logarithms given the outcomes is largest: a pure
function of the outcomes, found from fixed starts, so that the order of outcomes cannot matter.

Independent surrogates: a Gaussian process for every set, which learns from that set's outcomes.

The baselines `cbo` and `cbo-noprior` of causal Bayesian optimization (Aglietti et al. 2020). With
the causal prior

    E f(x) = m(x),   Cov[f(x), f(x')] = a^2 c(x, x') + s(x) s(x'),

m and s the mean and sd of the effect that the observational data imply by do-calculus, integrated
over theta. Without it the mean is a constant, integrated out under a wide prior around the target's
mean. Hyperparameters are fitted to the outcomes of each set, with the priors of `Hyperprior`; a set
without outcomes has their medians.

The plain surrogate: one Gaussian process over all manipulable variables, without the graph.

The baseline `bo`, ordinary Bayesian optimization. Every manipulable variable is set in every
experiment, and f(x) = E[Y | do(all of them = x)] has a constant mean, integrated out under a wide
prior around the target's mean in the observational data, and a stationary covariance with a
lengthscale for each variable.

It models the one set of all manipulable variables. Problems whose sets were found by a rule ("mis",
"pomis", a largest size) accept that set in any query; for a problem with explicit sets that lack
it, take `problem.explore([problem.manipulable])`.
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
from causal_bo_ppl.effect_estimates.moments import smooth_moments, target_moments
from causal_bo_ppl.errors import ArgumentError, ExplorationError, NumericalError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import as_key, host_generator, read_count, read_size
from causal_bo_ppl.linalg import clip_rounding, factor_covariance, first_smallest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import split_by_set, stack
from causal_bo_ppl.responses import Prediction
from causal_bo_ppl.surrogates.base import (
    NoisyOutcomes,
    no_noisy_outcomes,
    read_noisy_outcomes,
    require_one,
)

JITTERS = tuple(10.0**power for power in range(-10, -5))  # of a prior variance, the least first
SHORT_STARTS, LONG_STARTS = (0.25, 0.5), (1.0, 2.0)  # lengthscales, in medians of their prior
AMPLITUDE_STARTS = (0.3, 1.0, 3.0)  # in medians of the amplitude's prior
SEARCH_WIDTH = 5.0  # prior sds within which hyperparameters are searched for
CONSTANT_SPREAD = 3.0  # sds of the target: the prior sd of a constant mean
MOST_FITTED_SETS = 512  # cached with a posterior


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
    variances that the model implies where none was given, to be multiplied by the factor of the
    noise; 0 elsewhere. freedom, squares: of replicates whose noise was not given, their number less
    that of their interventions, and the sum of their squared distances to their mean in units of
    the implied variances.
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

    def digest(self, queries: Queries, text: str) -> bytes:
        """Return a hash of the outcomes, of their queries and of a text."""
        parts = [queries.mask, queries.value, self.values, self.given, self.implied]
        text = repr((text, len(self.values), self.freedom, self.squares))
        joined = b"".join(np.asarray(part).tobytes() for part in parts)
        return hashlib.sha256(text.encode() + joined).digest()


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


def _require_options(kernel: str, amplitude: float) -> None:
    """Refuse an unknown correlation, and an amplitude that is not positive."""
    if kernel not in CORRELATIONS:
        raise ArgumentError(f"kernel must be one of {', '.join(CORRELATIONS)}; got {kernel!r}")
    read_size("amplitude", amplitude)


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

    def predict(self, inputs: GPInputs) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n,) and variances (n,) at some inputs."""
        cross = prior_covariance(self.kernel, self.hyper, self.inputs, inputs)
        before = prior_variances(self.hyper, inputs)
        explained = dtrtrs(self.root, cross, lower=1)[0]
        variances = clip_rounding(before - (explained**2).sum(axis=0), before)
        return inputs.mean + self.weights @ cross, variances

    def covariance(self, inputs: GPInputs) -> np.ndarray:
        """Return the joint covariance (n, n) at some inputs."""
        cross = prior_covariance(self.kernel, self.hyper, self.inputs, inputs)
        explained = dtrtrs(self.root, cross, lower=1)[0]
        before = prior_covariance(self.kernel, self.hyper, inputs, inputs)
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

    The least share is always added: outcomes without noise of near interventions need it, and
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
    logs: np.ndarray, kernel: str, inputs: GPInputs, outcomes: SetOutcomes, prior: Hyperprior
) -> tuple[float, np.ndarray]:
    """Return minus the log density of the outcomes and of the logs of hyperparameters.

    It is 1/2 r'K^-1 r + 1/2 log |2 pi K| minus the log priors, with r the outcomes less the prior
    mean and K their covariance; where noise is learned, replicates add the density of their spread.

    Returns
    -------
    The value, and its gradient in the logs.
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

    There may be several modes: short lengthscales with little noise, long ones with more. A fixed
    lattice of starts is compared, and the search is run from the best start of short and from that
    of long lengthscales.
    """
    variables = inputs.x.shape[1]
    medians, spreads = prior.logs(variables, has_noise=outcomes.has_noise)
    data, searches = (kernel, inputs, outcomes, prior), []
    has_both = variables and len(outcomes.values) > 1
    for lengths in (SHORT_STARTS, LONG_STARTS) if has_both else (LONG_STARTS,):
        moves = np.log([(height, length) for height in AMPLITUDE_STARTS for length in lengths])
        starts = np.repeat(medians[None], len(moves), axis=0)
        starts[:, 0] += moves[:, 0]
        starts[:, 1 : 1 + variables] += moves[:, 1:]
        losses = [negative_log_posterior(start, *data)[0] for start in starts]
        searches.append(
            minimize(
                negative_log_posterior,
                starts[first_smallest(np.array(losses))],
                data,
                method="L-BFGS-B",
                jac=True,
                bounds=Bounds(medians - SEARCH_WIDTH * spreads, medians + SEARCH_WIDTH * spreads),
                options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": 200},
            )
        )
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


@dataclass(frozen=True, eq=False)
class Independent:
    """A Gaussian process for every set; made by `IndependentMaker`; see `base.Surrogate`.

    observed: every outcome. is_implied: (m,) whether the variance of its noise was not given, so
    that its scale is learned. sets: the processes of the sets that have outcomes. _fitted: a
    cache of processes by their outcomes.
    """

    post: Posterior
    prior: SetPrior
    observed: NoisyOutcomes
    is_implied: np.ndarray
    sets: Mapping[bytes, ConditionedGP]
    _fitted: dict[bytes, ConditionedGP] = field(default_factory=dict, repr=False)

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

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self._require(queries)
        inputs = self._inputs(queries)
        mean, variance = inputs.mean.copy(), prior_variances(self._median_hyper(0), inputs)
        for key, indices in split_by_set(queries):
            if key in self.sets:
                own = inputs.of_set(key, indices)
                mean[indices], variance[indices] = self.sets[key].predict(own)
        return Prediction(mean, np.sqrt(variance))

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M); 0 between sets."""
        queries = self._require(queries)
        inputs, joint = self._inputs(queries), np.zeros((len(queries), len(queries)))
        for key, indices in split_by_set(queries):
            joint[np.ix_(indices, indices)] = self._block(key, inputs.of_set(key, indices))
        return joint

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M).

        The cost grows with the cube of the number of queries of one set.
        """
        queries, count = self._require(queries), read_count("n", n, 1)
        draws = host_generator(as_key(key)).standard_normal((count, len(queries)))
        inputs, mean = self._inputs(queries), self.predict(queries).mean
        for name, indices in split_by_set(queries):
            root = factor_covariance(self._block(name, inputs.of_set(name, indices)))
            draws[:, indices] = draws[:, indices] @ root.T
        return np.asarray(mean + draws)

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Independent":
        """Return the surrogate conditioned on outcomes of some interventions.

        Hyperparameters of these interventions' sets are fitted again to all of their outcomes;
        other sets stay as they are.

        Parameters
        ----------
        queries:
            M interventions.
        outcomes:
            Observed outcomes, (M,); a number for one intervention.
        noise:
            Variances of the outcomes' noise; where they are not given, those that the model
            implies, times a factor that is learned for each set.
        """
        queries = self._require(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        new = read_noisy_outcomes(queries, outcomes, variances)
        after = self._join(new, noise is None)
        informed = [key for key, _ in split_by_set(queries)]
        return replace(after, sets={**self.sets, **after._fit(informed)})

    def fantasize(self, query: Queries, noise: float) -> "Independent":
        """Return the surrogate as if a query had come out as predicted.

        Means stay the same, and variances become smaller. Hyperparameters stay as they are.
        """
        new = read_noisy_outcomes(self._require(query), 0.0, noise)
        # An earlier outcome without noise decides; this one agrees up to rounding.
        variances = np.maximum(new.variances, np.finfo(float).tiny)
        predicted = self.predict(new.queries).mean
        after = self._join(NoisyOutcomes(new.queries, predicted, variances), False)
        [(key, _)] = split_by_set(new.queries)
        queries, outcomes = after._merged(key)
        inputs = self._inputs(queries).of_set(key, slice(None))
        known = self.sets.get(key)
        hyper = known.hyper if known is not None else self._median_hyper(inputs.x.shape[1])
        process = condition_gp(self.prior.kernel, hyper, inputs, outcomes)
        return replace(after, sets={**self.sets, key: process})

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all outcomes."""
        new = read_noisy_outcomes(require_one(self._require(query)), outcome, noise)
        mean, sd = self.predict(new.queries)
        spread = np.sqrt(sd**2 + new.variances)
        return float(norm.logpdf(new.values[0], mean[0], spread[0]))

    def _require(self, queries: Queries) -> Queries:
        """Return the queries if they are legal, and of the one set that is modelled if there is."""
        queries = self.post.problem.require(queries)
        if self.prior.constant is not None and not np.asarray(queries.mask).any(axis=1).all():
            raise ExplorationError(
                "without a causal prior the effect of setting nothing is not modelled; set a "
                "variable"
            )
        if self.prior.members is not None:
            nodes, mask = self.post.problem.graph.nodes, np.asarray(queries.mask)
            wanted = np.isin(nodes, self.prior.members)
            if not (mask == wanted).all():
                index = int(np.flatnonzero((mask != wanted).any(axis=1))[0])
                found = [name for name, is_set in zip(nodes, mask[index], strict=True) if is_set]
                raise ExplorationError(
                    f"this surrogate models do({listed(self.prior.members)}) alone, with every "
                    f"variable set; got do({listed(found)})"
                )
        return Queries(queries.mask, np.where(queries.mask, queries.value, 0.0) + 0.0)

    def _join(self, new: NoisyOutcomes, is_implied: bool) -> "Independent":
        flags = np.append(self.is_implied, np.full(len(new.values), is_implied))
        return replace(self, observed=self.observed.join(new), is_implied=flags)

    def _inputs(self, queries: Queries) -> GPInputs:
        """Return inputs over all p variables, prior means and basis of a batch."""
        positions = np.asarray(queries.value) / self.prior.width
        if self.prior.constant is None:
            mean, sd = smooth_moments(self.post, queries)
            return GPInputs(positions, mean, sd[:, None])
        middle, wide = self.prior.constant
        count = len(queries)
        return GPInputs(positions, np.full(count, middle), np.full((count, 1), wide))

    def _median_hyper(self, variables: int) -> Hyperparameters:
        """Return the hyperparameters of a set without outcomes: the medians of their priors."""
        return read_logs(self.prior.hyperprior.logs(variables, has_noise=False)[0], variables)

    def _block(self, key: bytes, inputs: GPInputs) -> np.ndarray:
        if key in self.sets:
            return self.sets[key].covariance(inputs)
        hyper = self._median_hyper(inputs.x.shape[1])
        return prior_covariance(self.prior.kernel, hyper, inputs, inputs)

    def _fit(self, keys: list[bytes]) -> dict[bytes, ConditionedGP]:
        """Return the processes of some sets given all of their outcomes.

        Those of the same outcomes are cached; the causal prior of all others is found at once.
        """
        merged = {key: self._merged(key) for key in keys}
        names = {
            key: outcomes.digest(queries, repr(self.prior[:-1]))
            for key, (queries, outcomes) in merged.items()
        }
        new = [key for key in keys if names[key] not in self._fitted]
        if new:
            inputs = self._inputs(stack([merged[key][0] for key in new]))
            ends = np.cumsum([len(merged[key][0]) for key in new])
            for key, indices in zip(new, np.split(np.arange(ends[-1]), ends), strict=False):
                own, outcomes = inputs.of_set(key, indices), merged[key][1]
                hyper = most_probable(self.prior.kernel, own, outcomes, self.prior.hyperprior)
                self._fitted[names[key]] = condition_gp(self.prior.kernel, hyper, own, outcomes)
        found = {key: self._fitted.pop(names[key]) for key in keys}
        self._fitted.update((names[key], found[key]) for key in keys)  # the last used stand last
        while len(self._fitted) > max(MOST_FITTED_SETS, len(keys)):
            self._fitted.pop(next(iter(self._fitted)))
        return found

    def _merged(self, key: bytes) -> tuple[Queries, SetOutcomes]:
        """Return all outcomes of one set, replicates merged, in a canonical order."""
        own = (np.asarray(self.observed.queries.mask) == np.frombuffer(key, bool)).all(axis=1)
        parts = [self.observed.select(own & (self.is_implied == flag)) for flag in (False, True)]
        given, implied = (merge_replicates(*part) for part in parts)
        none = np.zeros(len(given.means)), np.zeros(len(implied.means))
        queries = stack([given.queries, implied.queries])
        values = np.append(given.means, implied.means)
        known, scaled = np.append(given.variances, none[1]), np.append(none[0], implied.variances)
        order = np.lexsort([known, *np.asarray(queries.value).T[::-1]])
        spread = _spread_of_replicates(*parts[1])
        outcomes = SetOutcomes(values[order], known[order], scaled[order], *spread)
        return queries[order], outcomes

    def __repr__(self) -> str:
        outcomes = f"{len(self.observed.values)} outcomes of {len(self.sets)} sets"
        return f"Independent({outcomes}; {self.post!r})"


@dataclass(frozen=True)
class IndependentMaker:
    """The configuration of a Gaussian process for every set.

    Parameters
    ----------
    causal_prior:
        Whether the prior mean and sd of effects are those that the data imply ("cbo"), or the mean
        is a constant and the process stationary ("cbo-noprior").
    kernel:
        The correlation of two effects of one set: "rbf" or "matern52".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational data.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy")
    >>> cbo = IndependentMaker().begin(cb.fit(system.problem, system.observe(100, 0)))
    >>> updated = cbo.tell(system.problem.queries([{"Z": -3.0}]), -2.15, 0.0)
    >>> near, other = system.problem.queries([{"Z": -2.9}, {"X": 0.0}])
    >>> bool(updated.predict(near).sd < cbo.predict(near).sd)
    True
    >>> bool(updated.predict(other).sd < cbo.predict(other).sd)
    False
    """

    causal_prior: bool = True
    kernel: str = "rbf"
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        _require_options(self.kernel, self.amplitude)

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
    constant = None if causal_prior else (target.mean, CONSTANT_SPREAD * target.sd)
    hyperprior = Hyperprior(amplitude * target.sd)
    prior = SetPrior(hyperprior, kernel, constant, members, np.ptp(ends, axis=1))
    fitted = post.__dict__.setdefault("_fitted_sets", {})  # gone with the posterior
    nothing = no_noisy_outcomes(len(nodes))
    return Independent(post, prior, nothing, np.zeros(0, bool), {}, fitted)


def _spread_of_replicates(
    queries: Queries, values: np.ndarray, variances: np.ndarray
) -> tuple[int, float]:
    """Return how many replicates there are beyond one of each, and their standardized spread.

    The spread is the sum of squared distances to the mean of their intervention, over variances.
    """
    used = variances > 0
    if used.sum() < 2:
        return 0, 0.0
    weights, outcomes = 1 / variances[used], values[used]
    _, group = np.unique(np.asarray(queries.value)[used], axis=0, return_inverse=True)
    group = group.reshape(-1)
    means = np.bincount(group, weights * outcomes) / np.bincount(group, weights)
    return int(used.sum() - len(means)), float(weights @ (outcomes - means[group]) ** 2)


@dataclass(frozen=True)
class PlainMaker:
    """The configuration of one Gaussian process over all manipulable variables.

    Parameters
    ----------
    kernel:
        The correlation of two effects: "matern52" or "rbf".
    amplitude:
        The median of the amplitude's prior, in sds of the target in the observational data.

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
        _require_options(self.kernel, self.amplitude)

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
                "explicit sets of this problem; add that set, or take "
                "problem.explore([problem.manipulable])"
            )
        return begin(post, self.kernel, self.amplitude, causal_prior=False, members=members)
