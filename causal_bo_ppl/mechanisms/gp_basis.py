"""Which basis functions make up a mechanism: a trend, Hilbert-space Gaussian processes, hinges.

    g(v) = level + sum_i b_i (v_i - c_i) + sum_G f_G(clip(v_G))
           + sum_ij b_ij (v_i - c_i)(v_j - c_j) + sum_i (l_i [k_i - v_i]_+ + h_i [v_i - K_i]_+)

f_G is a Gaussian process of the causes in the group G, as a sum of products of sines that vanish at
the ends of an interval twice as wide as the box (Solin and Sarkka 2020). Outside the box a process
keeps its value at the edge and the trend continues. Beyond the range of the data, [k, K], hinges
change the slope; their prior is the uncertainty of the extrapolation. A linear mechanism has
neither processes nor hinges; it may have products of two causes, each less its mean.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from scipy.stats import qmc

BOUNDARY_FACTOR = 2.0  # half-width of the interval of the sines, in half-widths of the box
SMOOTHNESS = {"squared_exponential": math.inf, "matern52": 2.5, "matern32": 1.5}
KERNEL_PROBES = 64  # points of the box at which kernels are compared
FUNCTIONS_PER_LENGTHSCALE = 1.75  # that a squared exponential needs, for L in lengthscales
TERMS_PER_BLOCK = 8  # terms of a series that are summed in one pass
TAYLOR_ORDER = 8  # (pi / 4)^18 / 18! is less than the last digit of 1
SLOPE_GRID_SIZES = {1: 2_048, 2: 64, 3: 16}  # grid points of each cause, by the size of a group
INSIDE_BOX = 1 - 1e-9  # of the half-width of a box

Inputs = Sequence[Any] | Mapping[int, Any]  # values of the causes, by their position


class Group(NamedTuple):
    """Causes whose influence is one Gaussian process; hashable.

    columns: their positions among the causes of the mechanism. functions: the number of sines of
    each. kernel: the name of the covariance function.
    """

    columns: tuple[int, ...]
    functions: tuple[int, ...]
    kernel: str

    @property
    def size(self) -> int:
        """Number of basis functions of the group: all products of sines."""
        return math.prod(self.functions)


class Form(NamedTuple):
    """Static structure of a mechanism, for which programs are compiled; hashable.

    causes: the number of causes with a trend. groups: the Gaussian processes. hinged: positions of
    the causes with hinges at both ends of the data. products: pairs of causes that are multiplied.
    """

    causes: int
    groups: tuple[Group, ...]
    hinged: tuple[int, ...]
    products: tuple[tuple[int, int], ...] = ()

    @property
    def is_nonlinear(self) -> bool:
        """Whether there is a Gaussian process; only then the sd of the trend is learned."""
        return bool(self.groups)

    @property
    def is_linear(self) -> bool:
        """Whether the mean is affine in the causes."""
        return not self.groups and not self.products

    @property
    def multiplied(self) -> slice:
        """The positions of the coefficients of products."""
        start = 1 + self.causes + sum(group.size for group in self.groups)
        return slice(start, start + len(self.products))

    @property
    def size(self) -> int:
        """Number of coefficients of the mechanism."""
        return int(self.multiplied.stop) + 2 * len(self.hinged)

    @property
    def scales(self) -> int:
        """Number of hyperparameters: log sds, then amplitude and lengthscales by group."""
        return 1 + self.is_nonlinear + sum(1 + len(group.columns) for group in self.groups)


class Frame(NamedTuple):
    """Location and range of the causes of a mechanism; arrays (C,), one entry for each cause.

    origin: where the trend is 0, the mean of the data. middle, half: centre and half-width of the
    box, within which Gaussian processes vary. low, high: the range of the data, beyond which the
    hinges begin.
    """

    origin: Any
    middle: Any
    half: Any
    low: Any
    high: Any


def angles(group: Group, frame: Frame, inputs: Inputs) -> list[Any]:
    """Return pi (x + L) / 2L of each cause in a group, clipped at the box."""
    result = []
    for column in group.columns:
        half = jnp.asarray(frame.half)[column]
        inside = jnp.clip(inputs[column] - jnp.asarray(frame.middle)[column], -half, half)
        result.append(jnp.pi * (inside / (2 * BOUNDARY_FACTOR * half) + 0.5))
    return result


def heights(group: Group, frame: Frame) -> jax.Array:
    """Return the factor of all basis functions of a group, prod L^(-1/2)."""
    half = jnp.asarray(frame.half)[jnp.array(group.columns)]
    return jnp.prod(1 / jnp.sqrt(BOUNDARY_FACTOR * half))


def sines(group: Group, frame: Frame, inputs: Inputs) -> jax.Array:
    """Return the basis functions of a group at inputs of any shape, with a last axis for them."""
    first, *others = angles(group, frame, inputs)
    product = heights(group, frame) * waves(first, group.functions[0])
    for angle, count in zip(others, group.functions[1:], strict=True):
        wave = waves(angle, count)
        product = (product[..., :, None] * wave[..., None, :]).reshape(*jnp.shape(angle), -1)
    return product


def waves(angle: Any, count: int) -> jax.Array:
    """Return sin(j t) for j from 1 to a count, along a new last axis."""
    orders = jnp.arange(1, count + 1).reshape((1,) * jnp.ndim(angle) + (count,))
    return jnp.sin(angle[..., None] * orders)


def features(form: Form, frame: Frame, inputs: Sequence[Any]) -> jax.Array:
    """Return the features (..., K) of the coefficients; inputs: one array for each cause."""
    shape = jnp.shape(inputs[0]) if form.causes else ()
    columns = [jnp.ones((*shape, 1))]
    columns += [(value - frame.origin[cause])[..., None] for cause, value in enumerate(inputs)]
    columns += [sines(group, frame, inputs) for group in form.groups]
    columns += [product[..., None] for product in _products(form, frame, inputs)]
    for cause in form.hinged:
        columns += [hinge[..., None] for hinge in _hinges(frame, inputs[cause], cause)]
    return jnp.concatenate(columns, axis=-1)


def _products(form: Form, frame: Frame, inputs: Sequence[Any]) -> list[Any]:
    centred = [value - frame.origin[cause] for cause, value in enumerate(inputs)]
    return [centred[one] * centred[other] for one, other in form.products]


def _hinges(frame: Frame, value: Any, cause: int) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(frame.low[cause] - value, 0.0), jnp.maximum(value - frame.high[cause], 0.0)


def mean(
    form: Form,
    frame: Frame,
    coefficients: jax.Array,
    inputs: Sequence[Any],
    terms: jax.Array | None = None,
) -> Any:
    """Return the mean of a variable given its causes: features times coefficients, but faster.

    A series of sines is summed by Clenshaw's recurrence, which evaluates two functions only. terms:
    the number of sines (G,) that are summed of each group with one cause; None stands for all.
    """
    total, used = coefficients[0], 1 + form.causes
    for cause, value in enumerate(inputs):
        total = total + coefficients[1 + cause] * (value - frame.origin[cause])
    for number, group in enumerate(form.groups):
        weights = coefficients[used : used + group.size] * heights(group, frame)
        used += group.size
        if len(group.columns) == 1:
            count = jnp.asarray(group.size) if terms is None else terms[number]
            total = total + sine_series(weights, angles(group, frame, inputs)[0], count)
        else:
            total = total + sines(group, frame, inputs) @ weights / heights(group, frame)
    for product in _products(form, frame, inputs):
        total, used = total + coefficients[used] * product, used + 1
    for position, cause in enumerate(form.hinged):
        below, above = _hinges(frame, inputs[cause], cause)
        total = total + coefficients[used + 2 * position] * below
        total = total + coefficients[used + 2 * position + 1] * above
    return total


@jax.custom_vjp
def sine_series(coefficients: jax.Array, angle: jax.Array, terms: jax.Array) -> jax.Array:
    """Return sum_j c_j sin(j t) at angles t of any shape, by Clenshaw's recurrence.

    The angles of a box lie between pi / 4 and 3 pi / 4, where the recurrence loses no digits. Its
    derivatives, in reverse only, are recurrences too: no array of all sines is made. terms: the
    number of terms to sum; they are summed in blocks, and terms beyond the last block are ignored.
    """
    return _series_forward(coefficients, angle, terms)[0]


def _cosine_and_sine(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both at angles between pi / 4 and 3 pi / 4, to the last digit or two.

    All angles of a box lie there, since the interval is twice as wide (`BOUNDARY_FACTOR`). Both are
    short polynomials of the distance from pi / 2, which compilers turn into vector instructions;
    the library's functions for all angles take most of the time of a short series.
    """
    distance = angle - jnp.pi / 2
    square = distance * distance
    cosine, sine = (jnp.zeros(jnp.shape(angle)) for _ in range(2))
    for order in range(TAYLOR_ORDER, -1, -1):
        sign = (-1) ** order
        sine = sign / math.factorial(2 * order) + square * sine
        cosine = sign / math.factorial(2 * order + 1) + square * cosine
    return -distance * cosine, sine


def _clenshaw(
    coefficients: jax.Array, cosine: jax.Array, terms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the last two sums of b_j = c_j + 2 cos(t) b_{j+1} - b_{j+2}, down to j = 1."""
    twice = 2 * cosine
    padded = jnp.pad(coefficients, (0, -len(coefficients) % TERMS_PER_BLOCK))
    blocks = padded.reshape(-1, TERMS_PER_BLOCK)
    count = -(-terms // TERMS_PER_BLOCK)

    def visit(step: Any, carried: Any) -> Any:
        one, two = carried
        block = blocks[count - 1 - step]
        for position in range(TERMS_PER_BLOCK - 1, -1, -1):
            one, two = block[position] + twice * one - two, one
        return one, two

    zero = jnp.zeros(jnp.shape(cosine))
    sums: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(0, count, visit, (zero, zero))
    return sums


def _sums_of_sines(
    weights: jax.Array, cosine: jax.Array, sine: jax.Array, count: int, terms: jax.Array
) -> jax.Array:
    """Return the sums of w sin(j t) over all angles for j from 1 to a count, 0 beyond `terms`."""
    twice = 2 * cosine

    def visit(step: Any, carried: Any) -> Any:
        now, before, sums = carried
        block = []
        for _position in range(TERMS_PER_BLOCK):
            block.append(jnp.sum(now))
            now, before = twice * now - before, now
        return now, before, sums.at[step].set(jnp.stack(block))

    sums = jnp.zeros((-(-count // TERMS_PER_BLOCK), TERMS_PER_BLOCK))
    start = weights * sine, jnp.zeros(jnp.shape(sine)), sums
    sums = jax.lax.fori_loop(0, -(-terms // TERMS_PER_BLOCK), visit, start)[2]
    return jnp.ravel(sums)[:count]


def _series_forward(
    coefficients: jax.Array, angle: jax.Array, terms: jax.Array
) -> tuple[jax.Array, Any]:
    cosine, sine = _cosine_and_sine(angle)
    first, _ = _clenshaw(coefficients, cosine, terms)
    return first * sine, (coefficients, cosine, sine, terms)


def _series_backward(residuals: Any, weights: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    coefficients, cosine, sine, terms = residuals
    orders = jnp.arange(1, len(coefficients) + 1)
    one, two = _clenshaw(coefficients * orders, cosine, terms)
    slopes = one * cosine - two  # the series of cosines
    sums = _sums_of_sines(weights, cosine, sine, len(coefficients), terms)
    return sums, weights * slopes, None


sine_series.defvjp(_series_forward, _series_backward)


def steepest(form: Form, frame: Frame, coefficients: np.ndarray) -> np.ndarray:
    """Return the largest |dg/dv_i| over all values, of shape (C,).

    Influences add up over groups, so each is searched separately: on a grid within its box that
    includes both sides of every hinge, and beyond the box in closed form, where only trend and
    hinges have a slope. The slope of a cause in a product has no largest value, it is infinite. A
    peak between two grid points is missed by about 1e-4 of its height for one cause, by more for
    groups of several.
    """
    trend = np.asarray(coefficients[1 : 1 + form.causes])
    largest = np.where(form.is_nonlinear, 0.0, np.abs(trend))
    for group in form.groups:
        count = SLOPE_GRID_SIZES[len(group.columns)]
        axes = [_slope_grid(frame, column, count) for column in group.columns]
        points = np.zeros((np.prod([len(axis) for axis in axes]), form.causes))
        points[:, group.columns] = np.stack(np.meshgrid(*axes), axis=-1).reshape(len(points), -1)
        slopes = np.asarray(_gradients(form, frame, jnp.asarray(coefficients), points))
        for column in group.columns:
            largest[column] = np.abs(slopes[:, column]).max()
    hinges = np.asarray(coefficients[form.size - 2 * len(form.hinged) : form.size]).reshape(-1, 2)
    for cause, (below, above) in zip(form.hinged, hinges, strict=True):
        beyond = abs(trend[cause] - below), abs(trend[cause] + above)
        largest[cause] = max(largest[cause], *beyond)
    for pair, weight in zip(form.products, coefficients[form.multiplied], strict=True):
        largest[list(pair)] = np.inf if abs(weight) > 0 else largest[list(pair)]
    return largest


def _slope_grid(frame: Frame, column: int, count: int) -> np.ndarray:
    """Return values of one cause within its box: evenly spaced, and both sides of each hinge."""
    middle, half, low, high = (float(np.asarray(part)[column]) for part in frame[1:])
    even = middle + half * INSIDE_BOX * np.linspace(-1, 1, count)
    sides = np.array([low, high])[:, None] + 1e-9 * half * np.array([-1.0, 1.0])
    return np.clip(np.append(even, sides.ravel()), even[0], even[-1])


@partial(jax.jit, static_argnums=0)
def _gradients(form: Form, frame: Frame, coefficients: jax.Array, points: jax.Array) -> jax.Array:
    """Return the slopes (n, C) of a mechanism at points (n, C)."""

    def value(point: jax.Array) -> jax.Array:
        return features(form, frame, list(point)) @ coefficients

    slopes: jax.Array = jax.lax.map(jax.grad(value), points, batch_size=256)
    return slopes


def log_spectrum(group: Group, frame: Frame, scales: jax.Array) -> jax.Array:
    """Return the log variances of a group's coefficients.

    They are the spectral density of the kernel at the frequencies of the basis functions.

    scales: log amplitude, and the log lengthscale of each cause, (1 + c,).
    """
    count, log_lengths = len(group.columns), scales[1:]
    half = jnp.asarray(frame.half)[jnp.array(group.columns)]
    squares = jnp.zeros(1)  # of lengthscale times frequency, summed over the causes
    for cause, functions in enumerate(group.functions):
        frequency = jnp.pi * jnp.arange(1, functions + 1) / (2 * BOUNDARY_FACTOR * half[cause])
        square = (jnp.exp(log_lengths[cause]) * frequency) ** 2
        squares = (squares[:, None] + square[None]).ravel()
    constant, smoothness = kernel_constants(group)
    shape = 2 * constant - 0.5 * squares
    if math.isfinite(smoothness):
        power = smoothness + 0.5 * count
        shape = 2 * constant - power * jnp.log(2 * smoothness + squares)
    return 2 * scales[0] + log_lengths.sum() + shape


def kernel_constants(group: Group) -> tuple[float, float]:
    """Return the log sd of a coefficient of amplitude, lengthscales and frequency factor 1.

    The second number is the smoothness of the kernel; see `log_spectrum`.
    """
    count, smoothness = len(group.columns), SMOOTHNESS[group.kernel]
    if math.isinf(smoothness):
        return 0.25 * count * math.log(2 * math.pi), smoothness
    power = smoothness + 0.5 * count
    constant = count * math.log(2) + 0.5 * count * math.log(math.pi)
    constant += float(gammaln(power) - gammaln(smoothness))
    return 0.5 * (constant + smoothness * math.log(2 * smoothness)), smoothness


def covariance(kernel: str, distance: np.ndarray) -> np.ndarray:
    """Return the exact kernel of amplitude 1 at distances in lengthscales."""
    smoothness = SMOOTHNESS[kernel]
    if math.isinf(smoothness):
        return np.asarray(np.exp(-0.5 * distance**2))
    scaled = math.sqrt(2 * smoothness) * distance
    polynomial = 1 + scaled + (scaled**2 / 3 if smoothness == 2.5 else 0.0)
    return np.asarray(polynomial * np.exp(-scaled))


def kernel_error(group: Group, frame: Frame, scales: np.ndarray) -> float:
    """Return the largest error of the basis within the box, against the kernel of amplitude 1.

    Constants and linear functions are projected out, since level and trend represent them.

    scales: log amplitude, and the log lengthscale of each cause, (1 + c,).
    """
    columns = np.array(group.columns)
    middle, half = (np.asarray(part)[columns] for part in (frame.middle, frame.half))
    points = middle + half * (2 * qmc.Sobol(len(columns), scramble=False).random(KERNEL_PROBES) - 1)
    inputs = dict(zip(group.columns, jnp.asarray(points).T, strict=True))
    waves = np.asarray(sines(group, frame, inputs))
    unit = jnp.asarray(np.append(0.0, scales[1:]))
    variances = np.exp(np.asarray(log_spectrum(group, frame, unit)))
    differences = (points[:, None] - points[None]) / np.exp(np.asarray(scales[1:]))
    exact = covariance(group.kernel, np.linalg.norm(differences, axis=2))
    linear, _ = np.linalg.qr(np.column_stack([np.ones(len(points)), points]))
    error = (waves * variances) @ waves.T - exact
    error -= linear @ (linear.T @ error)
    error -= (error @ linear) @ linear.T
    return float(np.abs(error).max())
