"""What is the posterior of the coefficients of one mechanism, and of its hyperparameters?

Given the hyperparameters eta (log sd of the noise, log sd of the trend, log amplitudes and log
lengthscales) the coefficients c = s w, w ~ N(0, I) with prior sds s(eta), are Gaussian: with T
the triangular factor of (features, values) and B = T_1 diag(s) / sd,

    w | data, eta ~ N(m, A^-1),  A = I + B'B,  m = A^-1 B' t / sd,

and the evidence p(data | eta) is known. Its cost does not depend on the number of observations.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, log_spectrum

LOG_TWO_PI = float(np.log(2 * np.pi))
SMALLEST_GRADIENT = 1e-3  # at which the BFGS search ends, in prior sds
MOST_BFGS_STEPS = 100
MOST_NEWTON_STEPS = 4  # after the BFGS search
SMALLEST_DECREMENT = 1e-11  # at which the Newton steps end
DIFFERENCE_STEP = 1e-4  # of finite differences of gradients, in prior sds


class MechanismPrior(NamedTuple):
    """Prior of one mechanism.

    log_sd: (K,) logarithms of the prior sds of coefficients; of the trend those of a slope where
    its hyperparameter is 0, and 0 for Gaussian processes, whose hyperparameters decide. level: the
    prior mean of the level; all others are 0. centre, width: (H,) Gaussian priors of the
    hyperparameters.
    """

    log_sd: Any
    level: Any
    centre: Any
    width: Any


class SufficientStatistics(NamedTuple):
    """Sufficient statistics of the observations of one mechanism.

    factor: (K + 1, K + 1), the triangular factor of features and values less the prior level, its
    last entry with the rounding error. count: the number of observations. rounding: the sum of
    squares of the assumed rounding errors of the values.
    """

    factor: Any
    count: Any
    rounding: Any


class KnownTerms(NamedTuple):
    """All arrays from which one mechanism is learned; a JAX pytree."""

    frame: Frame
    prior: MechanismPrior
    statistics: SufficientStatistics


class Conditional(NamedTuple):
    """Posterior of the coefficients given hyperparameters.

    sd: (K,) prior sds. mean: (K,) of the whitened coefficients w. root: (K, K), the lower Cholesky
    factor of their precision.
    """

    sd: jax.Array
    mean: jax.Array
    root: jax.Array


def log_sds(form: Form, frame: Frame, prior: MechanismPrior, eta: jax.Array) -> jax.Array:
    """Return the logarithms of the prior sds of all coefficients, (K,)."""
    fixed = jnp.asarray(prior.log_sd)
    if not form.is_nonlinear:
        return fixed
    trend = slice(1, 1 + form.causes)
    parts, used = [fixed[:1], fixed[trend] + eta[1]], 2
    for group in form.groups:
        count = 1 + len(group.columns)
        parts.append(0.5 * log_spectrum(group, frame, eta[used : used + count]))
        used += count
    return jnp.concatenate([*parts, fixed[len(fixed) - 2 * len(form.hinged) :]])


def condition(form: Form, known: KnownTerms, eta: jax.Array) -> Conditional:
    """Return the coefficients' posterior given the hyperparameters."""
    log_sd = log_sds(form, known.frame, known.prior, eta)
    mean, root, _ = _solve(jnp.asarray(known.statistics.factor), log_sd, eta[0])
    return Conditional(jnp.exp(log_sd), mean, root)


def _solve(
    factor: jax.Array, log_sd: jax.Array, log_noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return mean (K,) and root (K, K) of the whitened coefficients, and the misfit of the data."""
    scaled = factor[:, :-1] * jnp.exp(log_sd - log_noise)[None]
    values = factor[:, -1] * jnp.exp(-log_noise)
    root = jnp.linalg.cholesky(jnp.eye(len(log_sd)) + scaled.T @ scaled)
    half = solve_triangular(root, scaled.T @ values, lower=True)
    mean = solve_triangular(root, half, lower=True, trans="T")
    return mean, root, ((values - scaled @ mean) ** 2).sum()


@jax.custom_jvp
def log_evidence(
    factor: jax.Array, count: jax.Array, log_sd: jax.Array, log_noise: jax.Array
) -> jax.Array:
    """Return the log evidence of one mechanism, for given prior sds and a given sd of the noise.

    factor, count: the sufficient statistics, which are not differentiated.
    """
    mean, root, misfit = _solve(factor, log_sd, log_noise)
    return _sum(mean, root, misfit, count, log_noise)


def _sum(mean: Any, root: Any, misfit: Any, count: Any, log_noise: Any) -> jax.Array:
    """Return the log evidence from the solution."""
    noise = count * (log_noise + 0.5 * LOG_TWO_PI)
    total: jax.Array = -0.5 * (misfit + (mean**2).sum()) - noise
    return total - jnp.log(jnp.diagonal(root)).sum()


@log_evidence.defjvp
def _evidence_slope(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Return the evidence and its derivative, with one more triangular solve.

    With C = A^-1 the derivative in log s_k is C_kk + m_k^2 - 1, and in the log sd of the noise it
    is K - tr C plus the misfit less the number of observations.
    """
    factor, count, log_sd, log_noise = primals
    mean, root, misfit = _solve(factor, log_sd, log_noise)
    inverse = solve_triangular(root, jnp.eye(len(log_sd)), lower=True)
    variances = (inverse**2).sum(axis=0)
    by_sd = variances + mean**2 - 1
    by_noise = len(log_sd) - variances.sum() + misfit - count
    return _sum(mean, root, misfit, count, log_noise), by_sd @ tangents[2] + by_noise * tangents[3]


def loss(form: Form, known: KnownTerms, eta: jax.Array) -> jax.Array:
    """Return minus the log evidence and the log prior of the hyperparameters."""
    centre, width = jnp.asarray(known.prior.centre), jnp.asarray(known.prior.width)
    log_prior = -0.5 * (((eta - centre) / width) ** 2).sum()
    log_sd = log_sds(form, known.frame, known.prior, eta)
    factor, count, _ = map(jnp.asarray, known.statistics)
    return -log_evidence(factor, count, log_sd, eta[0]) - log_prior


class Mode(NamedTuple):
    """The mode of the hyperparameters.

    eta: (H,). root: (H, H), a factor of the inverse Hessian there. decrement: the remaining Newton
    decrement of the log evidence. loss: see `loss`.
    """

    eta: np.ndarray
    root: np.ndarray
    decrement: float
    loss: float


class SearchState(NamedTuple):
    """State of a BFGS search: the point, its loss and gradient, the inverse Hessian, the step."""

    point: jax.Array
    value: jax.Array
    slope: jax.Array
    inverse: jax.Array
    length: jax.Array
    steps: jax.Array


@partial(jax.jit, static_argnums=0)
def _search(form: Form, known: KnownTerms, starts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the end point of BFGS from each start (S, H), and its loss; steps are halved.

    The density is evaluated in one expression only, so that little is compiled.
    """
    width = jnp.asarray(known.prior.width)

    def one(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        evaluate = jax.value_and_grad(lambda moved: loss(form, known, start + width * moved))
        size = len(start)

        def goes_on(state: SearchState) -> jax.Array:
            is_steep = jnp.abs(state.slope).max() > SMALLEST_GRADIENT
            return is_steep & (state.steps < MOST_BFGS_STEPS) & (state.length > 1e-8)

        def visit(state: SearchState) -> SearchState:
            direction = -state.inverse @ state.slope
            direction = direction / jnp.maximum(1.0, jnp.linalg.norm(direction))  # 1 prior sd
            moved = state.point + state.length * direction
            value, slope = evaluate(moved)
            usable = jnp.isfinite(value) & jnp.isfinite(slope).all()
            decrease = 1e-4 * state.length * direction @ state.slope
            good = usable & (value <= state.value + decrease)
            step, change = moved - state.point, slope - state.slope
            curved = step @ change
            turn = jnp.eye(size) - jnp.outer(step, change) / jnp.where(curved > 0, curved, 1.0)
            updated = turn @ state.inverse @ turn.T + jnp.outer(step, step) / curved
            inverse = jnp.where(good & (curved > 1e-12), updated, state.inverse)
            point, value, slope, length = jax.tree.map(
                lambda new, old: jnp.where(good, new, old),
                (moved, value, slope, 1.0),
                (state.point, state.value, state.slope, 0.5 * state.length),
            )
            return SearchState(point, value, slope, inverse, length, state.steps + 1)

        zero = jnp.zeros(size)
        state = SearchState(zero, *evaluate(zero), jnp.eye(size), jnp.ones(()), jnp.zeros((), int))
        state = jax.lax.while_loop(goes_on, visit, state)
        return start + width * state.point, state.value

    ends: tuple[jax.Array, jax.Array] = jax.lax.map(one, starts)
    return ends


@partial(jax.jit, static_argnums=0)
def _losses(form: Form, known: KnownTerms, etas: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss (n,) and its gradient (n, H) at several hyperparameters (n, H)."""
    pair: tuple[jax.Array, jax.Array]
    pair = jax.lax.map(jax.value_and_grad(partial(loss, form, known)), etas)
    return pair


def _curvature(
    form: Form, known: KnownTerms, eta: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss, its gradient (H,) and its Hessian (H, H), by differences of gradients."""
    steps, count = DIFFERENCE_STEP * np.diag(np.asarray(known.prior.width, float)), len(eta)
    etas = np.vstack([eta, eta + steps, eta - steps])
    values, slopes = map(np.asarray, _losses(form, known, etas))
    hessian = (slopes[1 : 1 + count] - slopes[1 + count :]) / (2 * np.diagonal(steps)[:, None])
    return float(values[0]), slopes[0], (hessian + hessian.T) / 2


def find_mode(form: Form, known: KnownTerms, starts: np.ndarray) -> Mode:
    """Return the highest mode of the evidence that is reached from several starts (S, H)."""
    ends, losses = map(np.asarray, _search(form, known, starts))
    usable = np.where(np.isfinite(losses), losses, np.inf)
    eta = ends[first_largest(-usable)]
    value, slope, hessian = _curvature(form, known, eta)
    for _ in range(MOST_NEWTON_STEPS):
        try:
            step = np.linalg.solve(hessian, slope)
        except np.linalg.LinAlgError:
            break
        if not np.isfinite(step).all() or 0.5 * slope @ step <= SMALLEST_DECREMENT:
            break
        moved = _curvature(form, known, eta - step)
        rounding = 1e-12 * (1 + abs(value))  # a loss of 1e5 cannot show a fall of 1e-9
        if not moved[0] <= value + rounding:
            break
        eta, (value, slope, hessian) = eta - step, moved
    try:
        root = np.linalg.inv(np.linalg.cholesky(hessian)).T
        decrement = 0.5 * float(((root.T @ slope) ** 2).sum())
    except np.linalg.LinAlgError:  # no maximum there
        root, decrement = np.diag(np.asarray(known.prior.width, float)), np.inf
    return Mode(eta, root, decrement, value)


@partial(jax.jit, static_argnums=0)
def mix(form: Form, known: KnownTerms, etas: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean (K + 1,) and covariance of coefficients and log sd over hyperparameters (n, H).

    A mixture of Gaussians: the mean covariance, plus the covariance of the means.
    """

    def one(eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        sd, mean, root = condition(form, known, eta)
        return jnp.append(sd * mean, eta[0]), solve_triangular(root, jnp.diag(sd), lower=True)

    means, roots = jax.lax.map(one, etas)
    centre = means.mean(axis=0)
    deviations = means - centre[None]
    within = jnp.einsum("nkl,nkm->lm", roots, roots)
    covariance = (jnp.pad(within, (0, 1)) + deviations.T @ deviations) / len(etas)
    return centre.at[0].add(known.prior.level), covariance
