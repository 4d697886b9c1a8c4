"""A Gaussian process of one function on a box, with hyperparameters at their most probable values.

The function is f(x) = m(x) + B(x) b + g(x) with b ~ N(0, I), columns B of known functions, and g a
stationary process: its covariance is

    k(x, x') = a^2 c(x, x') + B(x) B(x')',

c an RBF or a Matern 5/2 correlation with a lengthscale for each variable, on inputs in units of the
domains' widths. Amplitude a, lengthscales and the scale of noise that was not given are log-normal
before the outcomes. They are set where the density of their logarithms given the outcomes is
largest: a pure function of the outcomes, found from fixed starts, so that the order of telling
cannot matter.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs, dtrtrs
from scipy.optimize import Bounds, minimize

from causal_bo_ppl.errors import ModelError, NumericalError
from causal_bo_ppl.numerics import clip_rounding, first_smallest

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
