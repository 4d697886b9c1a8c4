"""What do the rows of one mechanism say, given its hyperparameters, and about them?

Given the hyperparameters eta (log sd of the disturbance, log sd of the trend, log amplitudes and
log lengthscales) the coefficients c = s w, w ~ N(0, I) with prior sds s(eta), are Gaussian: with T
the triangular factor of (features, values) and B = T_1 diag(s) / sd,

    w | rows, eta ~ N(m, A^-1),  A = I + B'B,  m = A^-1 B' t / sd,

and the evidence p(rows | eta) is known. Its cost does not depend on the number of rows.
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
FLAT, MOST = 1e-3, 100  # gradient at which a search ends, in prior sds, and its steps at most
POLISH, CLOSE = 4, 1e-11  # Newton steps at the mode, and the decrement at which they end
NEAR = 1e-4  # distance at which gradients are compared, in prior sds


class Beliefs(NamedTuple):
    """What is believed about one mechanism before its rows.

    log_sd: (K,) logarithms of the prior sds of coefficients; of the trend those of a slope where
    its hyperparameter is 0, and 0 for Gaussian processes, whose hyperparameters decide. level: the
    prior mean of the level; all others are 0. centre, width: (H,) Gaussian priors of the
    hyperparameters.
    """

    log_sd: Any
    level: Any
    centre: Any
    width: Any


class Rows(NamedTuple):
    """The rows of one mechanism.

    factor: (K + 1, K + 1), the triangular factor of features and values less the prior level, its
    last entry with the rounding. count: how many. rounding: the sum of squares by which values are
    taken to differ from what was meant, because they are known to some digits only.
    """

    factor: Any
    count: Any
    rounding: Any


class Known(NamedTuple):
    """All that is known about one mechanism besides its form; a JAX pytree."""

    frame: Frame
    beliefs: Beliefs
    rows: Rows


class Conditional(NamedTuple):
    """Coefficients given hyperparameters.

    sd: (K,) prior sds. mean: (K,) of the whitened coefficients w. root: (K, K), the lower Cholesky
    factor of their precision.
    """

    sd: jax.Array
    mean: jax.Array
    root: jax.Array


def log_sds(form: Form, frame: Frame, beliefs: Beliefs, eta: jax.Array) -> jax.Array:
    """Return the logarithms of the prior sds of all coefficients, (K,)."""
    fixed = jnp.asarray(beliefs.log_sd)
    if not form.is_nonlinear:
        return fixed
    trend = slice(1, 1 + form.causes)
    parts, used = [fixed[:1], fixed[trend] + eta[1]], 2
    for group in form.groups:
        count = 1 + len(group.columns)
        parts.append(0.5 * log_spectrum(group, frame, eta[used : used + count]))
        used += count
    return jnp.concatenate([*parts, fixed[len(fixed) - 2 * len(form.hinged) :]])


def condition(form: Form, known: Known, eta: jax.Array) -> Conditional:
    """Return the coefficients' posterior given the hyperparameters."""
    spread = log_sds(form, known.frame, known.beliefs, eta)
    mean, root, _ = _solve(jnp.asarray(known.rows.factor), spread, eta[0])
    return Conditional(jnp.exp(spread), mean, root)


def _solve(
    factor: jax.Array, log_sd: jax.Array, log_noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return mean (K,) and root (K, K) of the whitened coefficients, and the rows' misfit."""
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
    """Return log p(rows) of one mechanism, for given prior sds and a given sd of the disturbance.

    factor, count: the rows, which are not differentiated.
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

    With C = A^-1 the derivative in log s_k is C_kk + m_k^2 - 1, and in the log sd of the
    disturbance it is K - tr C plus the misfit less the number of rows.
    """
    factor, count, log_sd, log_noise = primals
    mean, root, misfit = _solve(factor, log_sd, log_noise)
    inverse = solve_triangular(root, jnp.eye(len(log_sd)), lower=True)
    left = (inverse**2).sum(axis=0)
    by_sd = left + mean**2 - 1
    by_noise = len(log_sd) - left.sum() + misfit - count
    return _sum(mean, root, misfit, count, log_noise), by_sd @ tangents[2] + by_noise * tangents[3]


def loss(form: Form, known: Known, eta: jax.Array) -> jax.Array:
    """Return minus the log evidence and the log prior of the hyperparameters."""
    centre, width = jnp.asarray(known.beliefs.centre), jnp.asarray(known.beliefs.width)
    prior = -0.5 * (((eta - centre) / width) ** 2).sum()
    spread, rows = log_sds(form, known.frame, known.beliefs, eta), known.rows
    factor, count = jnp.asarray(rows.factor), jnp.asarray(rows.count)
    return -log_evidence(factor, count, spread, eta[0]) - prior


class Mode(NamedTuple):
    """The mode of the hyperparameters.

    eta: (H,). root: (H, H), a factor of the inverse Hessian there. decrement: by how much the log
    evidence could still rise. spread: by how much the starts differ in it. loss: see `loss`.
    """

    eta: np.ndarray
    root: np.ndarray
    decrement: float
    spread: float
    loss: float


class Step(NamedTuple):
    """Where a search is: the point, its loss and gradient, the inverse Hessian, and the step."""

    at: jax.Array
    value: jax.Array
    slope: jax.Array
    inverse: jax.Array
    length: jax.Array
    steps: jax.Array


@partial(jax.jit, static_argnums=0)
def _search(form: Form, known: Known, starts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return where each start (S, H) ends, and its loss, by BFGS with steps that are halved.

    The density is evaluated at one place only, so that little is compiled.
    """
    width = jnp.asarray(known.beliefs.width)

    def one(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        look = jax.value_and_grad(lambda moved: loss(form, known, start + width * moved))
        size = len(start)

        def goes_on(step: Step) -> jax.Array:
            return (jnp.abs(step.slope).max() > FLAT) & (step.steps < MOST) & (step.length > 1e-8)

        def visit(step: Step) -> Step:
            way = -step.inverse @ step.slope
            way = way / jnp.maximum(1.0, jnp.linalg.norm(way))  # a prior sd in all, at most
            moved = step.at + step.length * way
            value, slope = look(moved)
            usable = jnp.isfinite(value) & jnp.isfinite(slope).all()
            good = usable & (value <= step.value + 1e-4 * step.length * way @ step.slope)
            taken, change = moved - step.at, slope - step.slope
            curved = taken @ change
            turn = jnp.eye(size) - jnp.outer(taken, change) / jnp.where(curved > 0, curved, 1.0)
            bent = turn @ step.inverse @ turn.T + jnp.outer(taken, taken) / curved
            inverse = jnp.where(good & (curved > 1e-12), bent, step.inverse)
            kept = jax.tree.map(
                lambda new, old: jnp.where(good, new, old),
                (moved, value, slope, 1.0),
                (step.at, step.value, step.slope, 0.5 * step.length),
            )
            at, value, slope, length = kept
            return Step(at, value, slope, inverse, length, step.steps + 1)

        zero = jnp.zeros(size)
        value, slope = look(zero)
        begun = Step(zero, value, slope, jnp.eye(size), jnp.ones(()), jnp.zeros((), int))
        found = jax.lax.while_loop(goes_on, visit, begun)
        return start + width * found.at, found.value

    ends: tuple[jax.Array, jax.Array] = jax.lax.map(one, starts)
    return ends


@partial(jax.jit, static_argnums=0)
def _look(form: Form, known: Known, etas: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss (n,) and its gradient (n, H) at several hyperparameters (n, H)."""
    look = jax.value_and_grad(partial(loss, form, known))
    found: tuple[jax.Array, jax.Array] = jax.lax.map(look, etas)
    return found


def _curvature(form: Form, known: Known, eta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss, its gradient (H,) and its Hessian (H, H), by differences of gradients."""
    steps = NEAR * np.diag(np.asarray(known.beliefs.width, float))
    values, slopes = map(np.asarray, _look(form, known, np.vstack([eta, eta + steps, eta - steps])))
    count = len(eta)
    hessian = (slopes[1 : 1 + count] - slopes[1 + count :]) / (2 * np.diagonal(steps)[:, None])
    return float(values[0]), slopes[0], (hessian + hessian.T) / 2


def find_mode(form: Form, known: Known, starts: np.ndarray) -> Mode:
    """Return the best mode of the evidence that is found from several starts (S, H)."""
    ends, losses = map(np.asarray, _search(form, known, starts))
    usable = np.where(np.isfinite(losses), losses, np.inf)
    eta = ends[first_largest(-usable)]
    value, slope, hessian = _curvature(form, known, eta)
    for _ in range(POLISH):
        try:
            step = np.linalg.solve(hessian, slope)
        except np.linalg.LinAlgError:
            break
        if not np.isfinite(step).all() or 0.5 * slope @ step <= CLOSE:
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
        root, decrement = np.diag(np.asarray(known.beliefs.width, float)), np.inf
    finite = usable[np.isfinite(usable)]
    apart = float(np.ptp(finite)) if len(finite) else np.inf
    return Mode(eta, root, decrement, apart, value)


@partial(jax.jit, static_argnums=0)
def mix(form: Form, known: Known, etas: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean (K + 1,) and covariance of coefficients and log sd over hyperparameters (n, H).

    A mixture of Gaussians: the mean covariance, plus the covariance of the means.
    """

    def one(eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        given = condition(form, known, eta)
        spread = solve_triangular(given.root, jnp.diag(given.sd), lower=True)
        return jnp.append(given.sd * given.mean, eta[0]), spread

    means, spreads = jax.lax.map(one, etas)
    centre = means.mean(axis=0)
    apart = means - centre[None]
    within = jnp.einsum("nkl,nkm->lm", spreads, spreads)
    covariance = (jnp.pad(within, (0, 1)) + apart.T @ apart) / len(etas)
    return centre.at[0].add(known.beliefs.level), covariance
