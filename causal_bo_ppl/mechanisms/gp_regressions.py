"""The regression of one nonlinear mechanism: form, prior, evidence and posterior given the data.

Given the hyperparameters eta (log sd of the noise, log sd of the trend, log amplitudes and log
lengthscales) the coefficients c = s w, w ~ N(0, I) with prior sds s(eta), are Gaussian: with T
the triangular factor of (features, values) and B = T_1 diag(s) / sd,

    w | data, eta ~ N(m, A^-1),  A = I + B'B,  m = A^-1 B' t / sd,

and the evidence p(data | eta) is known. Its cost does not depend on the number of observations.

`uneven_mechanisms` tests an assumption of the form: the kernel of a process has one lengthscale and
one amplitude for all values of a cause. Where the curvature varies much, as that of exp(-x) does,
these are those of the part with most observations, and credible intervals are too narrow where
observations are sparse. So the cause x is replaced by a monotone function that stretches one part
against another,

    x -> w(u),  u = (x - mean) / sd,  w = (exp(a u) - 1) / a,  sinh(u) or arcsinh(2 u) / 2,

and the evidence of the same data, with hyperparameters at their mode and Laplace's factor, is
compared with that of the cause itself.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import solve_triangular
from scipy.special import logsumexp

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, Task, Unevenness
from causal_bo_ppl.mechanisms.gp_basis import (
    BOUNDARY_FACTOR,
    Form,
    Frame,
    Group,
    features,
    kernel_constants,
    log_spectrum,
)
from causal_bo_ppl.mechanisms.gp_priors import (
    RANGE_IN_SDS,
    GPPrior,
    Linear,
    MechanismChoice,
    Spread,
    read_spread,
    steepest_slope,
)
from causal_bo_ppl.mechanisms.gp_responses import Equation, Setting
from causal_bo_ppl.problem import Problem

SMALLEST_GRADIENT = 1e-3  # at which the BFGS search ends, in prior sds
MOST_BFGS_STEPS = 100
MOST_NEWTON_STEPS = 30  # after the BFGS search; hardly ever more than four
SMALLEST_SHARE = 1e-3  # of a Newton step, at which halving it ends
LEAST_STEP_DOWN = 0.1  # along a direction of negative curvature, in prior sds
SMALLEST_DECREMENT = 1e-11  # at which the Newton steps end
DIFFERENCE_STEP = 1e-4  # of finite differences of gradients, in prior sds
FEWEST_FUNCTIONS, MOST_FUNCTIONS = 16, 48  # of one cause, by default
MOST_FUNCTIONS_OF_A_VARIABLE = 192  # of all its causes, by default
FUNCTIONS_IN_A_GROUP = {2: 12, 3: 6}  # of each cause, by the number of causes in a group
FEWEST_OBSERVATIONAL = 10  # observations without intervention that give location and scale
ROUNDING_ERROR = 1e-4  # sd of the rounding errors of values, in sds of the variable
LINEAR_SLOPE_SD = 10.0  # of linear mechanisms, in sds of the variable for one sd of the cause
# Mechanisms are padded to so many coefficients, or multiples of many, to share programs.
FEW_COEFFICIENTS, COEFFICIENTS_TOGETHER = 8, 32
LOG_OF_NOTHING = -300.0  # log prior sd of a coefficient that is padding
NEGLIGIBLE_COLUMN = 1e-9  # prior sd of the length of a contribution, in sds of the noise
NEGLIGIBLE_FEATURE = 1e-7  # prior sd of its contribution, in sds of the noise; squares count
STRETCH_RATES = (-1.0, -0.5, 0.5, 1.0)  # of exponential stretches, for one sd of the cause
STRETCH_RANGE = 4.0  # sds of the cause beyond which a stretch continues linearly
Stretch = Callable[[np.ndarray], np.ndarray]


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
    last entry with the rounding error. gram: (K, K) products of the features. count: the number of
    observations. rounding: the sum of squares of the assumed rounding errors of the values.
    """

    factor: Any
    gram: Any
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
    return jnp.concatenate([*parts, fixed[form.multiplied.start :]])


def condition(form: Form, known: KnownTerms, eta: jax.Array) -> Conditional:
    """Return the coefficients' posterior given the hyperparameters."""
    log_sd = log_sds(form, known.frame, known.prior, eta)
    mean, root, _ = _solve(_arrays(known.statistics), log_sd, eta[0])
    return Conditional(jnp.exp(log_sd), mean, root)


def _arrays(statistics: SufficientStatistics) -> SufficientStatistics:
    return SufficientStatistics(*map(jnp.asarray, statistics))


def _solve(
    statistics: SufficientStatistics, log_sd: jax.Array, log_noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return mean (K,) and root (K, K) of the whitened coefficients, and the misfit of the data."""
    scale = jnp.exp(log_sd - log_noise)
    factor, values = statistics.factor[:, :-1], statistics.factor[:, -1] * jnp.exp(-log_noise)
    root = jnp.linalg.cholesky(
        jnp.eye(len(log_sd)) + scale[:, None] * statistics.gram * scale[None]
    )
    half = solve_triangular(root, scale * (values @ factor), lower=True)
    mean = solve_triangular(root, half, lower=True, trans="T")
    return mean, root, ((values - factor @ (scale * mean)) ** 2).sum()


@jax.custom_jvp
def log_evidence(
    statistics: SufficientStatistics, log_sd: jax.Array, log_noise: jax.Array
) -> jax.Array:
    """Return the log evidence of one mechanism, for given prior sds and a given sd of the noise.

    The sufficient statistics are not differentiated.
    """
    mean, root, misfit = _solve(statistics, log_sd, log_noise)
    return _sum(mean, root, misfit, statistics.count, log_noise)


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
    statistics, log_sd, log_noise = primals
    mean, root, misfit = _solve(statistics, log_sd, log_noise)
    inverse = solve_triangular(root, jnp.eye(len(log_sd)), lower=True)
    variances = (inverse**2).sum(axis=0)
    by_sd = variances + mean**2 - 1
    by_noise = len(log_sd) - variances.sum() + misfit - statistics.count
    value = _sum(mean, root, misfit, statistics.count, log_noise)
    return value, by_sd @ tangents[1] + by_noise * tangents[2]


def loss(form: Form, known: KnownTerms, eta: jax.Array) -> jax.Array:
    """Return minus the log evidence and the log prior of the hyperparameters."""
    centre, width = jnp.asarray(known.prior.centre), jnp.asarray(known.prior.width)
    log_prior = -0.5 * (((eta - centre) / width) ** 2).sum()
    log_sd = log_sds(form, known.frame, known.prior, eta)
    return -log_evidence(_arrays(known.statistics), log_sd, eta[0]) - log_prior


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


class Scales(NamedTuple):
    """Prior sds of K coefficients as a function of H hyperparameters eta, of any mechanism.

    With q = squares exp(2 eta), the squares of lengthscales times frequencies, log s is fixed +
    linear eta less q / 4 for a squared exponential, less (power / 2) log(smooth + q) for a Matern
    kernel. fixed, power, smooth: (K,). linear, squares: (K, H).
    """

    fixed: Any
    linear: Any
    squares: Any
    power: Any
    smooth: Any

    def log_sds(self, eta: jax.Array) -> jax.Array:
        """Return the logarithms of the prior sds, (K,); see `log_sds`."""
        squares = self.squares @ jnp.exp(2 * eta)
        log_sds: jax.Array = self.fixed + self.linear @ eta - self.decay(squares)
        return log_sds

    def decay(self, squares: Any) -> Any:
        """Return by how much log sds fall at frequencies, for q (..., K)."""
        is_matern = self.power > 0
        positive = jnp.where(is_matern, self.smooth + squares, 1.0)
        return jnp.where(is_matern, 0.5 * self.power * jnp.log(positive), squares / 4)


class Regression(NamedTuple):
    """One regression as arrays: mechanisms of one shape share one compiled program.

    Rows of coefficients and columns of hyperparameters may be padding, which changes nothing.
    """

    scales: Scales
    centre: Any
    width: Any
    statistics: SufficientStatistics

    def loss(self, eta: jax.Array) -> jax.Array:
        """Return minus the log evidence and the log prior of the hyperparameters."""
        log_prior: jax.Array = -0.5 * (((eta - self.centre) / self.width) ** 2).sum()
        return -log_evidence(self.statistics, self.scales.log_sds(eta), eta[0]) - log_prior


def scales_of(form: Form, known: KnownTerms) -> Scales:
    """Return the prior sds of a mechanism's coefficients as a function of its hyperparameters."""
    fixed, shape = np.array(known.prior.log_sd, float), (form.size, form.scales)
    linear, squares, power, smooth = *np.zeros((2, *shape)), *np.zeros((2, form.size))
    linear[1 : 1 + form.causes, 1 : 1 + form.is_nonlinear] = 1.0
    first, number = 1 + form.causes, 2
    for group in form.groups:
        last, lengths = first + group.size, slice(number + 1, number + 1 + len(group.columns))
        half = BOUNDARY_FACTOR * np.asarray(known.frame.half, float)[list(group.columns)]
        orders = np.meshgrid(*(np.arange(1, 1 + count) for count in group.functions), indexing="ij")
        frequencies = np.stack([each.ravel() for each in orders], axis=1) * np.pi / (2 * half)
        linear[first:last, number], linear[first:last, lengths] = 1.0, 0.5
        squares[first:last, lengths] = frequencies**2
        constant, degrees = kernel_constants(group)
        fixed[first:last] = constant
        if np.isfinite(degrees):
            power[first:last] = degrees + 0.5 * len(group.columns)
            smooth[first:last] = 2 * degrees
        first, number = last, lengths.stop
    return Scales(fixed, linear, squares, power, smooth)


def padded_regression(
    form: Form, known: KnownTerms, size: int, count: int, kept: np.ndarray | None = None
) -> Regression:
    """Return a regression with so many coefficients and hyperparameters; kept: (k,) the former."""
    scales, statistics, prior = scales_of(form, known), known.statistics, known.prior
    if kept is not None:
        columns = np.append(kept, form.size)
        factor = np.asarray(np.linalg.qr(np.asarray(statistics.factor)[:, columns], mode="r"))
        gram = np.asarray(statistics.gram)[np.ix_(kept, kept)]
        statistics = statistics._replace(factor=factor, gram=gram)
        scales = Scales(*(part[kept] for part in scales))
    more, fewer = size - len(scales.fixed), count - len(np.asarray(prior.centre))
    rows = Scales(
        np.pad(scales.fixed, (0, more), constant_values=LOG_OF_NOTHING),
        *(np.pad(part, ((0, more), (0, fewer))) for part in scales[1:3]),
        *(np.pad(part, (0, more)) for part in scales[3:]),
    )
    given = np.asarray(statistics.factor)
    whole = np.zeros((size + 1, size + 1))
    whole[: len(given), : len(given) - 1] = given[:, :-1]
    whole[: len(given), -1] = given[:, -1]
    gram = np.pad(np.asarray(statistics.gram), (0, more))
    centre = np.pad(np.asarray(prior.centre, float), (0, fewer))
    width = np.pad(np.asarray(prior.width, float), (0, fewer), constant_values=1.0)
    return Regression(rows, centre, width, statistics._replace(factor=whole, gram=gram))


def common_shapes(forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return padded numbers of coefficients and hyperparameters that mechanisms share.

    Those of few coefficients have another shape, since padding to many would be slow.
    """
    shapes = []
    for form in forms:
        is_few = form.size <= FEW_COEFFICIENTS
        alike = [each for each in forms if (each.size <= FEW_COEFFICIENTS) == is_few]
        count = max(each.scales for each in alike)
        shapes.append((round_up(max(each.size for each in alike)), -(-count // 4) * 4))
    return shapes


def round_up(count: int, step: int = COEFFICIENTS_TOGETHER) -> int:
    """Return the padded number of coefficients: few, or a multiple of a step."""
    step = FEW_COEFFICIENTS if count <= FEW_COEFFICIENTS else step
    return -(-max(count, 1) // step) * step


class AffineChart(NamedTuple):
    """Affine coordinates u of parameters: eta = centre (H,) + root (H, R) u."""

    centre: Any
    root: Any


class Reduced(NamedTuple):
    """One mechanism for draws of its coordinates: coefficients that matter are few.

    A coefficient whose contribution is negligible for all plausible hyperparameters is independent
    of the data and of the others: its posterior is its prior. scales: of all coefficients. kept:
    the positions of those that matter. regression: of these alone. Arrays are padded.
    """

    scales: Scales
    kept: Any
    regression: Regression
    level: Any
    chart: AffineChart


@jax.jit
def log_sds_of_many(scales: Scales, etas: jax.Array) -> jax.Array:
    """Return the logarithms of prior sds (n, K) for several hyperparameters (n, H)."""
    log_sds: jax.Array = jax.vmap(lambda eta: scales.log_sds(eta))(etas)
    return log_sds


def reduce_mechanisms(
    terms: Sequence[tuple[Form, KnownTerms, AffineChart, np.ndarray]],
) -> list[Reduced]:
    """Return mechanisms without coefficients that do not matter, padded to few shapes.

    terms: form, known terms, chart, and plausible hyperparameters (n, H) of each.
    """
    shapes = common_shapes([form for form, *_ in terms])
    reduced = []
    for (form, known, chart, etas), (size, count) in zip(terms, shapes, strict=True):
        whole = padded_regression(form, known, size, count).scales
        log_sd = np.asarray(
            log_sds_of_many(whole, np.pad(etas, ((0, 0), (0, count - etas.shape[1]))))
        )
        sizes = np.exp((log_sd[:, : form.size] - etas[:, :1]).max(axis=0))
        lengths = sizes * np.sqrt(np.diagonal(np.asarray(known.statistics.gram)))
        positions = np.flatnonzero(~(lengths < NEGLIGIBLE_COLUMN))
        fewer = min(round_up(len(positions), 2 * COEFFICIENTS_TOGETHER), size)
        centre, root = np.asarray(chart.centre, float), np.asarray(chart.root, float)
        more = count - len(centre)
        chart = AffineChart(
            np.pad(centre, (0, more)), np.pad(root, ((0, more), (0, count - root.shape[1])))
        )
        padded = np.pad(positions, (0, fewer - len(positions)), constant_values=size)
        regression = padded_regression(form, known, fewer, count, positions)
        reduced.append(Reduced(whole, padded, regression, np.asarray(known.prior.level), chart))
    return reduced


@jax.jit
def evaluate_many(reduced: Reduced, z: jax.Array, u: jax.Array) -> tuple[jax.Array, ...]:
    """Return what n coordinates z (n, K) and u (n, R) of a mechanism stand for.

    They are coefficients (n, K), log sd, log prior and log posterior (n,); see `scm.SCMDensity`.
    """
    scales, kept, regression, level, chart = jax.tree.map(jnp.asarray, reduced)

    def one(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        own, moved = pair
        eta = chart.centre + chart.root @ moved
        statistics, log_sd = regression.statistics, regression.scales.log_sds(eta)
        mean, root, misfit = _solve(statistics, log_sd, eta[0])
        inner = own.at[kept].get(mode="fill", fill_value=0.0)
        inner = mean + solve_triangular(root, inner, lower=True, trans="T")
        white = own.at[kept].set(inner, mode="drop")
        coefficients = (jnp.exp(scales.log_sds(eta)) * white).at[0].add(level)
        scaled = ((eta - regression.centre) / regression.width) ** 2
        log_prior = -0.5 * (white**2).sum() - 0.5 * scaled.sum()
        evidence = _sum(mean, root, misfit, statistics.count, eta[0]) - 0.5 * scaled.sum()
        return coefficients, eta[0], log_prior, evidence - 0.5 * (own**2).sum()

    found: tuple[jax.Array, ...] = jax.lax.map(one, (z, u))
    return found


@jax.jit
def _search(regression: Regression, starts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the end point of BFGS from each start (S, H), and its loss; steps are halved.

    The density is evaluated in one expression only, so that little is compiled.
    """
    width = jnp.asarray(regression.width)

    def one(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        evaluate = jax.value_and_grad(lambda moved: regression.loss(start + width * moved))
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


@jax.jit
def _losses(regression: Regression, etas: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the loss (n,) and its gradient (n, H) at several hyperparameters (n, H)."""
    pair: tuple[jax.Array, jax.Array]
    pair = jax.lax.map(jax.value_and_grad(regression.loss), etas)
    return pair


def _curvature(regression: Regression, eta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss, its gradient (H,) and its Hessian (H, H), by differences of gradients."""
    steps, count = DIFFERENCE_STEP * np.diag(regression.width), len(eta)
    etas = np.vstack([eta, eta + steps, eta - steps])
    values, slopes = map(np.asarray, _losses(regression, etas))
    hessian = (slopes[1 : 1 + count] - slopes[1 + count :]) / (2 * np.diagonal(steps)[:, None])
    return float(values[0]), slopes[0], (hessian + hessian.T) / 2


def _downhill(slope: np.ndarray, hessian: np.ndarray, width: np.ndarray) -> np.ndarray | None:
    """Return the Newton step (H,) to subtract, None where next to nothing can be gained.

    Near a saddle it is one of the saddle-free Newton method: along a direction of negative
    curvature it leads down, by a tenth of a prior sd at least. A gradient may vanish there too.
    """
    if not (np.isfinite(slope).all() and np.isfinite(hessian).all()):
        return None
    curvatures, directions = np.linalg.eigh(hessian * np.outer(width, width))
    along = directions.T @ (width * slope)
    down = curvatures <= 0
    if not down.any() and 0.5 * (along**2 / curvatures).sum() <= SMALLEST_DECREMENT:
        return None
    steps = np.abs(along) / np.where(down, np.maximum(-curvatures, 1e-6), curvatures)
    steps = np.where(down, np.clip(steps, LEAST_STEP_DOWN, 1.0), steps)
    return np.asarray(width * (directions @ np.where(along < 0, -steps, steps)))


def find_mode(
    form: Form, known: KnownTerms, starts: np.ndarray, shape: tuple[int, int] | None = None
) -> Mode:
    """Return the highest mode of the evidence that is reached from several starts (S, H).

    shape: the padded one that is compiled for, see `common_shapes`; by default of this form.
    """
    shape = common_shapes([form])[0] if shape is None else shape
    regression, count = padded_regression(form, known, *shape), starts.shape[1]
    starts = np.pad(starts, ((0, 0), (0, shape[1] - count)))
    ends, losses = map(np.asarray, _search(regression, starts))
    usable = np.where(np.isfinite(losses), losses, np.inf)
    eta = ends[first_largest(-usable)]
    value, slope, hessian = _curvature(regression, eta)
    for _ in range(MOST_NEWTON_STEPS):
        step = _downhill(slope, hessian, regression.width)
        if step is None:
            break
        rounding = 1e-12 * (1 + abs(value))  # a loss of 1e5 cannot show a fall of 1e-9
        size, moved = 1.0, _curvature(regression, eta - step)
        while not moved[0] <= value + rounding and size > SMALLEST_SHARE:
            size /= 2
            moved = _curvature(regression, eta - size * step)
        if not moved[0] <= value + rounding:
            break
        eta, (value, slope, hessian) = eta - size * step, moved
    eta, slope, hessian = eta[:count], slope[:count], hessian[:count, :count]
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


class BoundEquation(NamedTuple):
    """One equation, the numbers in it that are not learned, and those it is learned from."""

    equation: Equation
    setting: Setting
    known: KnownTerms


def bind_equation(
    task: Task,
    graph: CausalGraph,
    choice: MechanismChoice,
    name: str,
    regressors: Sequence[str],
    usable: np.ndarray,
) -> BoundEquation:
    """Return one equation with its prior and the sufficient statistics of its observations.

    Location and scale of the variables are estimated from observations without intervention, where
    there are enough, since experiments may shift the variables arbitrarily.

    Parameters
    ----------
    task:
        Problem, data and prior.
    graph:
        The target and its causes.
    choice:
        How the variable depends on its causes; None for a linear mechanism.
    name:
        The variable.
    regressors:
        Its causes, or its regressors where latent causes join it to others.
    usable:
        Which observations inform the equation, (n,): none in which the variable was set.
    """
    problem, data, prior = task.problem, task.data, task.prior
    values = data.values[:, [data.nodes.index(node) for node in graph.nodes]]
    columns = dict(zip(graph.nodes, values.T, strict=True))
    usual = ~data.intervened.any(axis=1).astype(bool)
    if usual.sum() < FEWEST_OBSERVATIONAL:
        usual = np.ones(len(usable), bool)
    given = [cause for cause in regressors if (cause, name) in problem.known]
    causes = [cause for cause in regressors if cause not in given]
    spreads = [read_spread(prior, cause, columns[cause][usual]) for cause in causes]
    centres = [
        prior.centres.get(cause, float(columns[cause][usual].mean()) if len(usable) else 0.0)
        for cause in given
    ]
    slopes = np.array([problem.known[cause, name] for cause in given])
    known_part = values[:, [graph.index(cause) for cause in given]] @ slopes
    outcome = (columns[name] - known_part)[usable]
    spread = read_spread(prior, name, columns[name][usable & usual])
    level = spread.centre - float(slopes @ centres)
    inputs = [columns[cause][usable] for cause in causes]
    frame, form = _frame(problem, causes, spreads, inputs), make_form(name, choice, causes)
    units = np.array([spread.scale / each.scale for each in spreads])
    steepest = units.copy()
    for index, cause in enumerate(causes):
        if not {cause, name} <= set(prior.scales):
            slope = steepest_slope(columns[cause][usable & usual], outcome[usual[usable]])
            steepest[index] = max(slope, units[index])
    median = prior.target_lengthscale if name == problem.target else prior.lengthscale
    lengths = median * np.array([each.scale for each in spreads])
    scaled_prior = _scale_prior(prior, form, spread.scale, level, units, steepest, lengths)
    count = int(usable.sum())
    table = np.stack(inputs, axis=1) if causes else np.empty((count, 0))
    matrix = feature_matrix(form, frame, table, count)
    statistics = summarize(np.column_stack([matrix, outcome - level]))
    positions = tuple(map(graph.index, causes)), tuple(map(graph.index, given))
    equation = Equation(graph.index(name), *positions, form)
    known = KnownTerms(frame, scaled_prior, statistics)
    return BoundEquation(equation, Setting(frame, slopes), known)


@partial(jax.jit, static_argnums=0)
def _features(form: Form, frame: Frame, values: jax.Array) -> jax.Array:
    """Return the features (n, K) at values (n, C) of the causes."""
    return features(form, frame, list(values.T))


def _frame(
    problem: Problem, causes: Sequence[str], spreads: Sequence[Spread], inputs: Sequence[np.ndarray]
) -> Frame:
    """Return location and range of the causes; the box contains the usual range and the domain.

    inputs: all values of each cause; hinges begin beyond those within the box.
    """
    ends, kinks = [], []
    for cause, spread, values in zip(causes, spreads, inputs, strict=True):
        domain = problem.domains.get(cause, (spread.low, spread.high))
        low, high = min(domain[0], spread.low), max(domain[1], spread.high)
        inside = values[(values >= low) & (values <= high)]
        ends.append((low, high))
        kinks.append((inside.min(initial=spread.low), inside.max(initial=spread.high)))
    box, (least, most) = np.array(ends).reshape(-1, 2), np.array(kinks).reshape(-1, 2).T
    origin = np.array([spread.centre for spread in spreads])
    return Frame(origin, box.mean(axis=1), (box[:, 1] - box[:, 0]) / 2, least, most)


def make_form(name: str, choice: MechanismChoice, causes: list[str]) -> Form:
    """Return the structure of a mechanism."""
    if isinstance(choice, Linear):
        return Form(len(causes), (), (), choice.products(name, causes))
    if choice is None or not causes:
        return Form(len(causes), (), ())
    grouped = [cause for group in choice.groups for cause in group]
    if unknown := [cause for cause in grouped if cause not in causes]:
        raise MechanismError(
            f"{unknown[0]!r} is in a group of {name!r} but is none of its causes "
            f"({listed(causes)}) whose influence is learned; give groups by variable, such as "
            f"mechanisms={{{name!r}: cb.GP(...)}}"
        )
    share = MOST_FUNCTIONS_OF_A_VARIABLE // len(causes) // 8 * 8
    default = max(FEWEST_FUNCTIONS, min(MOST_FUNCTIONS, share))
    members = [*choice.groups, *((cause,) for cause in causes if cause not in grouped)]
    groups = []
    for columns in sorted(tuple(sorted(map(causes.index, group))) for group in members):
        functions = choice.functions or FUNCTIONS_IN_A_GROUP.get(len(columns), default)
        groups.append(Group(columns, (functions,) * len(columns), choice.kernel))
    return Form(len(causes), tuple(groups), tuple(range(len(causes))))


def _scale_prior(
    prior: GPPrior,
    form: Form,
    scale: float,
    level: float,
    units: np.ndarray,
    steepest: np.ndarray,
    lengths: np.ndarray,
) -> MechanismPrior:
    """Return the prior of one mechanism in the units of its variables."""
    log_sd = np.zeros(form.size)
    log_sd[0] = math.log(prior.level * scale)
    trend = slice(1, 1 + form.causes)
    # The trend's hyperparameter is in units of the variable, for one sd of the cause.
    log_sd[trend] = np.log(units / scale if form.is_nonlinear else LINEAR_SLOPE_SD * units)
    slopes = units / scale  # of one sd of the variable for one of the cause
    for place, (one, other) in enumerate(form.products, start=form.multiplied.start):
        log_sd[place] = math.log(LINEAR_SLOPE_SD * scale * slopes[one] * slopes[other])
    for position, cause in enumerate(form.hinged):
        end = form.size - 2 * (len(form.hinged) - position)
        log_sd[end : end + 2] = math.log(prior.hinge * steepest[cause])
    noise = prior.noise if form.causes else 1.0
    centre, width = [math.log(noise * scale)], [prior.noise_spread]
    if form.is_nonlinear:
        centre.append(math.log(prior.trend * scale))
        width.append(prior.trend_spread)
    for group in form.groups:
        centre.append(math.log(prior.amplitude * scale))
        width.append(prior.amplitude_spread)
        centre += [math.log(lengths[column]) for column in group.columns]
        width += [prior.lengthscale_spread] * len(group.columns)
    return MechanismPrior(log_sd, np.asarray(level), np.array(centre), np.array(width))


def bound_modes(bound: Sequence[BoundEquation]) -> tuple[Mode, ...]:
    """Return the hyperparameters of every equation at the mode of their evidence."""
    shapes = common_shapes([each.form for each, *_ in bound])
    return tuple(
        find_mode(each.form, known, starts(each.form, known), shape)
        for (each, _, known), shape in zip(bound, shapes, strict=True)
    )


def starts(form: Form, known: KnownTerms) -> np.ndarray:
    """Return starts of the search for the mode: medians, short waves, and nearly linear."""
    centre = np.asarray(known.prior.centre)
    if not form.is_nonlinear:
        return centre[None]
    wiggly, linear, start = centre.copy(), centre.copy(), 2
    wiggly[0] -= 1.0
    for group in form.groups:
        lengths = slice(start + 1, start + 1 + len(group.columns))
        wiggly[lengths] -= 1.0
        linear[start] -= 1.5
        linear[lengths] += 1.0
        start = lengths.stop
    return np.stack([centre, wiggly, linear])


def summarize(columns: np.ndarray) -> SufficientStatistics:
    """Return the sufficient statistics of features and values (n, K + 1).

    Their shapes do not depend on n. Values are assumed to be rounded; otherwise the sd of the noise
    would go to 0 where a variable is a function of its causes.
    """
    size, upper = columns.shape[1], np.linalg.qr(columns, mode="r")
    factor: np.ndarray = np.pad(upper, ((0, size - len(upper)), (0, 0)))
    count = len(columns)
    rounding = count * (ROUNDING_ERROR * float(columns[:, -1].std())) ** 2 if count else 0.0
    factor[-1, -1] = math.hypot(factor[-1, -1], math.sqrt(rounding))
    gram = factor[:, :-1].T @ factor[:, :-1]
    return SufficientStatistics(factor, gram, np.asarray(float(count)), np.asarray(rounding))


class FittedRegression(NamedTuple):
    """One regression with its observations, at the mode of its hyperparameters.

    variable, regressors: names, of the latter the learned ones first. inputs: (n, c) values of the
    regressors. outcome: (n,) of the variable. features: (n, K) those of Gaussian processes and
    hinges, so that the outcome less level, trend and noise has the covariance F F' in units of the
    noise. groups: regressors that have a joint process.
    """

    variable: str
    regressors: tuple[str, ...]
    inputs: np.ndarray
    outcome: np.ndarray
    features: np.ndarray
    groups: tuple[tuple[str, ...], ...]


def fitted_regressions(
    equations: Sequence[BoundEquation],
    modes: Sequence[Mode],
    data: Data,
    nodes: Sequence[str],
    usable: np.ndarray,
) -> list[FittedRegression]:
    """Return every regression at its mode; usable: (n, p) which observations it is returned for."""
    columns, result = [data.nodes.index(name) for name in nodes], []
    for (equation, _, known), mode in zip(equations, modes, strict=True):
        values = data.values[usable[:, equation.position]][:, columns]
        form, positions = equation.form, [*equation.causes, *equation.known]
        names = tuple(nodes[position] for position in positions)
        features = np.zeros((len(values), 0))
        if not form.is_linear and len(values):
            inputs = values[:, list(equation.causes)]
            matrix = feature_matrix(form, known.frame, inputs, len(inputs))
            [log_sd] = np.asarray(log_sds_of_many(scales_of(form, known), mode.eta[None]))
            features = (matrix * np.exp(log_sd - mode.eta[0]))[:, 1 + form.causes :]
        groups = tuple(
            tuple(names[column] for column in group.columns)
            for group in form.groups
            if len(group.columns) > 1
        )
        outcome = values[:, equation.position]
        variable = nodes[equation.position]
        result.append(
            FittedRegression(variable, names, values[:, positions], outcome, features, groups)
        )
    return result


class MechanismSample(NamedTuple):
    """Observations of one mechanism: inputs (n, C), and values (n,) less their known part (n,)."""

    inputs: np.ndarray
    outcome: np.ndarray
    known_part: np.ndarray


def samples_of_mechanisms(
    equations: Sequence[BoundEquation], data: Data, nodes: Sequence[str], usable: np.ndarray
) -> list[MechanismSample]:
    """Return the observations of every mechanism; usable: (n, p) which inform each variable's."""
    columns, result = [data.nodes.index(name) for name in nodes], []
    for bound in equations:
        equation = bound.equation
        values = data.values[usable[:, equation.position]][:, columns]
        known_part = values[:, list(equation.known)] @ np.asarray(bound.setting.slopes, float)
        inputs, outcome = values[:, list(equation.causes)], values[:, equation.position]
        result.append(MechanismSample(inputs, outcome - known_part, known_part))
    return result


def hold_out_given(
    bound: BoundEquation, etas: np.ndarray, log_sd: np.ndarray, sample: MechanismSample
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hold out every observation of one mechanism, given hyperparameters (P, H) of equal weight.

    Given one of them, with the variance v_i of the mean of observation i, the leverage
    h_i = v_i / sd^2 and the residual r_i, the density without it is N(r_i / (1 - h_i); 0,
    sd^2 / (1 - h_i)). The weight of the hyperparameters without the observation is the inverse of
    this density, so that their average is harmonic. Nothing is refitted.

    Parameters
    ----------
    log_sd:
        The log prior sds (P, K) of the coefficients.

    Returns
    -------
    tuple
        Log densities (n,) of the observations without and with themselves, and the share k (n,) of
        each in coefficients and noise; see `linear_equations.Equations.held_out`.
    """
    known, count = bound.known, len(sample.outcome)
    matrix = feature_matrix(bound.equation.form, known.frame, sample.inputs, count)
    outcome, sds = sample.outcome - known.prior.level, np.exp(etas[:, 0])
    sizes = np.exp(log_sd - etas[:, :1]).max(axis=0) * np.abs(matrix).max(axis=0)
    used = sizes > NEGLIGIBLE_FEATURE
    matrix, gram = matrix[:, used], np.asarray(known.statistics.gram)[np.ix_(used, used)]
    moment = matrix.T @ outcome
    without, together, k = np.empty((3, len(etas), count))
    for number, (sd, log_sds_here) in enumerate(zip(sds, log_sd[:, used], strict=True)):
        scale = np.exp(log_sds_here) / sd
        root = np.linalg.cholesky(np.eye(len(scale)) + scale[:, None] * gram * scale)
        mean = scipy.linalg.cho_solve((root, True), scale * moment / sd)
        half = scipy.linalg.solve_triangular(root, (matrix * scale).T, lower=True)
        leverage = (half**2).sum(axis=0)
        residual = (outcome - sd * (matrix @ (scale * mean))) / sd
        kept = np.maximum(1 - leverage, np.finfo(float).eps)
        without[number] = -0.5 * (residual**2 / kept - np.log(kept))
        together[number] = -0.5 * (residual**2 / (1 + leverage) + np.log1p(leverage))
        total = (residual**2).sum() + (mean**2).sum()
        k[number] = leverage + residual**2 / total
    noise = np.log(sds)[:, None] + 0.5 * LOG_TWO_PI
    elpd = np.log(len(etas)) - logsumexp(noise - without, axis=0)
    whole = logsumexp(together - noise, axis=0) - np.log(len(etas))
    return elpd, whole, k.mean(axis=0)


def uneven_mechanisms(
    equations: Sequence[BoundEquation],
    modes: Sequence[Mode],
    data: Data,
    nodes: Sequence[str],
    usable: np.ndarray,
) -> list[Unevenness]:
    """Return for every nonlinear mechanism how stretching one of its causes changes the fit.

    modes: the hyperparameters of each equation. nodes: the variables of the model. usable: (n, p)
    which observations inform the equation of each variable.
    """
    samples, result = samples_of_mechanisms(equations, data, nodes, usable), []
    for bound, mode, sample in zip(equations, modes, samples, strict=True):
        equation, inputs = bound.equation, sample.inputs
        if equation.form.is_nonlinear and np.ptp(inputs, axis=0).any():
            names = [nodes[position] for position in (equation.position, *equation.causes)]
            result.append(_compare_stretches(bound, mode, sample, names))
    return result


def _compare_stretches(
    bound: BoundEquation, mode: Mode, sample: MechanismSample, names: Sequence[str]
) -> Unevenness:
    """Return how stretching one cause changes the fit of one mechanism.

    names: of the variable and of its causes.
    """
    form, known, known_part = bound.equation.form, bound.known, sample.known_part
    fitted, sd = _fit(form, known, mode, sample)
    gains, fits = [], []
    for cause in map(int, np.flatnonzero(np.ptp(sample.inputs, axis=0))):
        unchanged, _ = _stretched(form, known, sample, cause, lambda u: u)
        for stretch in _stretches():
            score, means = _stretched(form, known, sample, cause, stretch)
            gains.append(score - unchanged if np.isfinite(score) else -np.inf)
            fits.append((cause, means))
    cause, instead = fits[int(np.argmax(gains))]
    row = int(np.argmax(np.abs(instead - fitted) / sd))
    return Unevenness(
        names[0],
        names[1 + cause],
        value=float(sample.inputs[row, cause]),
        fitted=float(fitted[row] + known_part[row]),
        sd=float(sd[row]),
        instead=float(instead[row] + known_part[row]),
        log_factor=float(np.logaddexp.reduce(gains) - np.log(len(gains))),
    )


def _stretches() -> list[Stretch]:
    """Return the monotone functions that a cause, in sds, is replaced by."""

    def exponential(rate: float) -> tuple[Stretch, Stretch]:
        return lambda u: np.expm1(rate * u) / rate, lambda u: np.exp(rate * u)

    pairs: list[tuple[Stretch, Stretch]] = [
        *map(exponential, STRETCH_RATES),
        (np.sinh, np.cosh),
        (lambda u: np.arcsinh(2 * u) / 2, lambda u: 1 / np.sqrt(1 + 4 * u**2)),
    ]
    return [partial(_linear_beyond, *pair) for pair in pairs]


def _linear_beyond(function: Stretch, slope: Stretch, u: np.ndarray) -> np.ndarray:
    """Return a function that continues linearly beyond `STRETCH_RANGE`."""
    inside = np.clip(u, -STRETCH_RANGE, STRETCH_RANGE)
    return np.asarray(function(inside) + slope(inside) * (u - inside))


def _stretched(
    form: Form, known: KnownTerms, sample: MechanismSample, cause: int, stretch: Stretch
) -> tuple[float, np.ndarray]:
    """Return log evidence, up to a constant, and fitted means (n,) with one cause stretched.

    The stretched cause keeps its mean and sd, so that the prior is unchanged, and its box is the
    range of the data, as in `gp_priors.read_spread`.
    """
    column = sample.inputs[:, cause]
    centre, scale = column.mean(), column.std()
    moved = stretch((column - centre) / scale)
    moved = centre + scale * (moved - moved.mean()) / moved.std()
    inputs = sample.inputs.copy()
    inputs[:, cause] = moved
    low = max(moved.min(), centre - RANGE_IN_SDS * scale)
    high = min(moved.max(), centre + RANGE_IN_SDS * scale)
    parts = [np.array(part, float) for part in known.frame]
    for part, value in zip(parts[1:], ((low + high) / 2, (high - low) / 2, low, high), strict=True):
        part[cause] = value
    frame, stretched = Frame(*parts), sample._replace(inputs=inputs)
    matrix = feature_matrix(form, frame, inputs, len(inputs))
    statistics = summarize(np.column_stack([matrix, sample.outcome - known.prior.level]))
    known = KnownTerms(frame, known.prior, statistics)
    mode = find_mode(form, known, starts(form, known))
    volume = np.linalg.slogdet(mode.root)[1]
    return float(volume - mode.loss), _fit(form, known, mode, stretched)[0]


_condition = partial(jax.jit, static_argnums=0)(condition)


def feature_matrix(form: Form, frame: Frame, inputs: np.ndarray, count: int) -> np.ndarray:
    """Return the features (n, K) at inputs (n, C); count: n, also where there are no causes."""
    if not form.causes:
        return np.ones((count, 1))
    work = partial(_features, form, Frame(*map(jnp.asarray, frame)))
    return np.asarray(in_pieces(work, inputs, count))


def _fit(
    form: Form, known: KnownTerms, mode: Mode, sample: MechanismSample
) -> tuple[np.ndarray, np.ndarray]:
    """Return fitted means (n,) and their posterior sds, for hyperparameters at the mode."""
    sd, mean, root = map(np.asarray, _condition(form, known, mode.eta))
    scaled = feature_matrix(form, known.frame, sample.inputs, len(sample.inputs)) * sd
    whitened = scipy.linalg.solve_triangular(root, scaled.T, lower=True)
    return scaled @ mean + known.prior.level, np.sqrt((whitened**2).sum(axis=0))
