"""One mechanism as a finite sum: a trend, Gaussian processes in a Hilbert-space basis, hinges.

    g(v) = level + sum_i b_i (v_i - c_i) + sum_G f_G(clip(v_G)) + sum_i (l_i [k_i - v_i]_+
           + h_i [v_i - K_i]_+)

f_G is a Gaussian process of the causes in the group G, as a sum of products of sines that vanish at
the ends of an interval twice as wide as the box (Solin and Sarkka 2020). Outside the box a process
keeps its value at the edge; the trend goes on, and beyond the range of the data, [k, K], hinges
give it a slope of its own: what lies there is extrapolation, and its doubt is theirs.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln
from scipy.stats import qmc

WIDER = 2.0  # half-width of the interval of the sines, in half-widths of the box
SMOOTHNESS = {"squared_exponential": math.inf, "matern52": 2.5, "matern32": 1.5}
PROBES = 64  # points of the box at which kernels are compared
RULE = 1.75  # functions that a squared exponential needs, for L in lengthscales
UNROLLED = 8  # terms of a series that are summed in one pass
TAYLOR = 8  # (pi / 4)^18 / 18! is less than the last digit of 1
TICKS = {1: 2_048, 2: 64, 3: 16}  # of each cause in a group, between which slopes are looked at
INSIDE = 1 - 1e-9  # of the half-width of a box


class Group(NamedTuple):
    """Causes whose influence is one Gaussian process; hashable.

    columns: their places among the causes of the mechanism. functions: how many sines each has.
    kernel: the name of the covariance function.
    """

    columns: tuple[int, ...]
    functions: tuple[int, ...]
    kernel: str

    @property
    def size(self) -> int:
        """How many basis functions the group has: all products of sines."""
        return math.prod(self.functions)


class Form(NamedTuple):
    """What a mechanism is compiled for; hashable.

    causes: how many causes have a trend. groups: the Gaussian processes. hinged: places of the
    causes with hinges at both ends of the data. is_bent: whether the trend's sd is learned; it is
    wide and fixed for a linear mechanism.
    """

    causes: int
    groups: tuple[Group, ...]
    hinged: tuple[int, ...]

    @property
    def is_nonlinear(self) -> bool:
        """Whether there is a Gaussian process at all."""
        return bool(self.groups)

    @property
    def size(self) -> int:
        """How many coefficients the mechanism has."""
        return 1 + self.causes + sum(group.size for group in self.groups) + 2 * len(self.hinged)

    @property
    def scales(self) -> int:
        """How many hyperparameters it has: log sds, then amplitude and lengthscales by group."""
        return 1 + self.is_nonlinear + sum(1 + len(group.columns) for group in self.groups)


class Frame(NamedTuple):
    """Where a mechanism's causes lie; arrays (C,) with a number for each of its causes.

    origin: where the trend is 0, the mean of the data. middle, half: the box, within which Gaussian
    processes vary. low, high: the range of the data, beyond which the hinges begin.
    """

    origin: Any
    middle: Any
    half: Any
    low: Any
    high: Any


def angles(group: Group, frame: Frame, inputs: Sequence[Any]) -> list[Any]:
    """Return pi (x + L) / 2L of each cause in a group, clipped at the box."""
    found = []
    for column in group.columns:
        half = jnp.asarray(frame.half)[column]
        inside = jnp.clip(inputs[column] - jnp.asarray(frame.middle)[column], -half, half)
        found.append(jnp.pi * (inside / (2 * WIDER * half) + 0.5))
    return found


def heights(group: Group, frame: Frame) -> jax.Array:
    """Return the factor of all basis functions of a group, prod L^(-1/2)."""
    half = jnp.asarray(frame.half)[jnp.array(group.columns)]
    return jnp.prod(1 / jnp.sqrt(WIDER * half))


def sines(group: Group, frame: Frame, inputs: Sequence[Any]) -> jax.Array:
    """Return the basis functions of a group at inputs of any shape, with a last axis for them."""
    first, *others = angles(group, frame, inputs)
    product = heights(group, frame) * _waves(first, group.functions[0])
    for angle, count in zip(others, group.functions[1:], strict=True):
        wave = _waves(angle, count)
        product = (product[..., :, None] * wave[..., None, :]).reshape(*jnp.shape(angle), -1)
    return product


def _waves(angle: Any, count: int) -> jax.Array:
    """Return sin(j t) for j from 1 to a count, along a new last axis."""
    orders = jnp.arange(1, count + 1).reshape((1,) * jnp.ndim(angle) + (count,))
    return jnp.sin(angle[..., None] * orders)


def features(form: Form, frame: Frame, inputs: Sequence[Any]) -> jax.Array:
    """Return what the coefficients are multiplied by, (..., K), for one array for each cause."""
    shape = jnp.shape(inputs[0]) if form.causes else ()
    columns = [jnp.ones((*shape, 1))]
    columns += [(value - frame.origin[at])[..., None] for at, value in enumerate(inputs)]
    columns += [sines(group, frame, inputs) for group in form.groups]
    for at in form.hinged:
        columns += [part[..., None] for part in _hinges(frame, inputs[at], at)]
    return jnp.concatenate(columns, axis=-1)


def _hinges(frame: Frame, value: Any, at: int) -> tuple[jax.Array, jax.Array]:
    return jnp.maximum(frame.low[at] - value, 0.0), jnp.maximum(value - frame.high[at], 0.0)


def mean(
    form: Form,
    frame: Frame,
    coefficients: jax.Array,
    inputs: Sequence[Any],
    terms: jax.Array | None = None,
) -> Any:
    """Return the mean of a variable given its causes: features times coefficients, faster.

    A series of sines is summed by Clenshaw's recurrence, which evaluates two functions only. terms:
    how many sines of each group count, (G,), where it has one cause; None stands for all.
    """
    total, used = coefficients[0], 1 + form.causes
    for at, value in enumerate(inputs):
        total = total + coefficients[1 + at] * (value - frame.origin[at])
    for number, group in enumerate(form.groups):
        own = coefficients[used : used + group.size] * heights(group, frame)
        used += group.size
        if len(group.columns) == 1:
            count = jnp.asarray(group.size) if terms is None else terms[number]
            total = total + sine_series(own, angles(group, frame, inputs)[0], count)
        else:
            total = total + sines(group, frame, inputs) @ own / heights(group, frame)
    for position, at in enumerate(form.hinged):
        below, above = _hinges(frame, inputs[at], at)
        total = total + coefficients[used + 2 * position] * below
        total = total + coefficients[used + 2 * position + 1] * above
    return total


@jax.custom_vjp
def sine_series(coefficients: jax.Array, angle: jax.Array, terms: jax.Array) -> jax.Array:
    """Return sum_j c_j sin(j t) at angles t of any shape, by Clenshaw's recurrence.

    The angles of a box lie between pi / 4 and 3 pi / 4, where the recurrence loses no digits. Its
    derivatives, in reverse only, are recurrences too: no array of all sines is made. terms: how
    many terms count; they are summed in blocks, and what lies beyond the last block counts as 0.
    """
    return _series_forward(coefficients, angle, terms)[0]


def _cosine_and_sine(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both at angles between pi / 4 and 3 pi / 4, to the last digit or two.

    All angles of a box lie there, since the interval is twice as wide (`WIDER`). Both are short
    polynomials of the distance from pi / 2, which compilers turn into vector instructions; the
    library's functions for all angles take most of the time of a short series.
    """
    apart = angle - jnp.pi / 2
    square = apart * apart
    cosine, sine = (jnp.zeros(jnp.shape(angle)) for _ in range(2))
    for order in range(TAYLOR, -1, -1):
        sign = (-1) ** order
        sine = sign / math.factorial(2 * order) + square * sine
        cosine = sign / math.factorial(2 * order + 1) + square * cosine
    return -apart * cosine, sine


def _clenshaw(
    coefficients: jax.Array, cosine: jax.Array, terms: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the last two sums of b_j = c_j + 2 cos(t) b_{j+1} - b_{j+2}, down to j = 1."""
    twice = 2 * cosine
    padded = jnp.pad(coefficients, (0, -len(coefficients) % UNROLLED))
    blocks = padded.reshape(-1, UNROLLED)
    count = -(-terms // UNROLLED)

    def visit(step: Any, carried: Any) -> Any:
        one, two = carried
        block = blocks[count - 1 - step]
        for position in range(UNROLLED - 1, -1, -1):
            one, two = block[position] + twice * one - two, one
        return one, two

    zero = jnp.zeros(jnp.shape(cosine))
    found: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(0, count, visit, (zero, zero))
    return found


def _sums_of_sines(
    weights: jax.Array, cosine: jax.Array, sine: jax.Array, count: int, terms: jax.Array
) -> jax.Array:
    """Return the sums of w sin(j t) over all angles for j from 1 to a count, 0 beyond `terms`."""
    twice = 2 * cosine

    def visit(step: Any, carried: Any) -> Any:
        now, before, sums = carried
        found = []
        for _position in range(UNROLLED):
            found.append(jnp.sum(now))
            now, before = twice * now - before, now
        return now, before, sums.at[step].set(jnp.stack(found))

    sums = jnp.zeros((-(-count // UNROLLED), UNROLLED))
    start = weights * sine, jnp.zeros(jnp.shape(sine)), sums
    found = jax.lax.fori_loop(0, -(-terms // UNROLLED), visit, start)[2]
    return jnp.ravel(found)[:count]


def _series_forward(
    coefficients: jax.Array, angle: jax.Array, terms: jax.Array
) -> tuple[jax.Array, Any]:
    cosine, sine = _cosine_and_sine(angle)
    first, _ = _clenshaw(coefficients, cosine, terms)
    return first * sine, (coefficients, cosine, sine, terms)


def _series_backward(kept: Any, weights: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    coefficients, cosine, sine, terms = kept
    orders = jnp.arange(1, len(coefficients) + 1)
    one, two = _clenshaw(coefficients * orders, cosine, terms)
    slopes = one * cosine - two  # the series of cosines
    sums = _sums_of_sines(weights, cosine, sine, len(coefficients), terms)
    return sums, weights * slopes, None


sine_series.defvjp(_series_forward, _series_backward)


def steepest(form: Form, frame: Frame, coefficients: np.ndarray) -> np.ndarray:
    """Return the largest |dg/dv_i| over all values, of shape (C,).

    Influences add up over groups, so each is looked at on its own: on a grid within its box, whose
    ticks include both sides of every hinge, and beyond the box in closed form, where only trend
    and hinges have a slope. A peak between two ticks is missed by about 1e-4 of its height for one
    cause, by more for groups of several.
    """
    trend = np.asarray(coefficients[1 : 1 + form.causes])
    largest = np.where(form.is_nonlinear, 0.0, np.abs(trend))
    for group in form.groups:
        axes = [_ticks(frame, column, TICKS[len(group.columns)]) for column in group.columns]
        points = np.zeros((np.prod([len(axis) for axis in axes]), form.causes))
        points[:, group.columns] = np.stack(np.meshgrid(*axes), axis=-1).reshape(len(points), -1)
        slopes = np.asarray(_gradients(form, frame, jnp.asarray(coefficients), points))
        for column in group.columns:
            largest[column] = np.abs(slopes[:, column]).max()
    hinges = np.asarray(coefficients[form.size - 2 * len(form.hinged) : form.size]).reshape(-1, 2)
    for at, (below, above) in zip(form.hinged, hinges, strict=True):
        largest[at] = max(largest[at], abs(trend[at] - below), abs(trend[at] + above))
    return largest


def _ticks(frame: Frame, column: int, count: int) -> np.ndarray:
    """Return values of one cause within its box: evenly spaced, and both sides of each hinge."""
    middle, half, low, high = (
        float(np.asarray(part)[column])
        for part in (frame.middle, frame.half, frame.low, frame.high)
    )
    even = middle + half * INSIDE * np.linspace(-1, 1, count)
    sides = np.array([low, high])[:, None] + 1e-9 * half * np.array([-1.0, 1.0])
    return np.clip(np.append(even, sides.ravel()), even[0], even[-1])


@partial(jax.jit, static_argnums=0)
def _gradients(form: Form, frame: Frame, coefficients: jax.Array, points: jax.Array) -> jax.Array:
    """Return the slopes (n, C) of a mechanism at points (n, C)."""

    def value(point: jax.Array) -> jax.Array:
        return features(form, frame, list(point)) @ coefficients

    found: jax.Array = jax.lax.map(jax.grad(value), points, batch_size=256)
    return found


def log_spectrum(group: Group, frame: Frame, scales: jax.Array) -> jax.Array:
    """Return the log variances of a group's coefficients.

    They are the spectral density of the kernel at the frequencies of the basis functions.

    scales: log amplitude, and the log lengthscale of each cause, (1 + c,).
    """
    count, log_lengths = len(group.columns), scales[1:]
    half = jnp.asarray(frame.half)[jnp.array(group.columns)]
    squares = jnp.zeros(1)  # of lengthscale times frequency, summed over the causes
    for at, functions in enumerate(group.functions):
        frequency = jnp.pi * jnp.arange(1, functions + 1) / (2 * WIDER * half[at])
        own = (jnp.exp(log_lengths[at]) * frequency) ** 2
        squares = (squares[:, None] + own[None]).ravel()
    smoothness = SMOOTHNESS[group.kernel]
    if math.isinf(smoothness):
        shape = 0.5 * count * math.log(2 * math.pi) - 0.5 * squares
    else:
        power = smoothness + 0.5 * count
        constant = count * math.log(2) + 0.5 * count * math.log(math.pi)
        constant += float(gammaln(power) - gammaln(smoothness))
        constant += smoothness * math.log(2 * smoothness)
        shape = constant - power * jnp.log(2 * smoothness + squares)
    return 2 * scales[0] + log_lengths.sum() + shape


def covariance(kernel: str, distance: np.ndarray) -> np.ndarray:
    """Return the exact kernel of amplitude 1 at distances in lengthscales."""
    smoothness = SMOOTHNESS[kernel]
    if math.isinf(smoothness):
        return np.asarray(np.exp(-0.5 * distance**2))
    scaled = math.sqrt(2 * smoothness) * distance
    polynomial = 1 + scaled + (scaled**2 / 3 if smoothness == 2.5 else 0.0)
    return np.asarray(polynomial * np.exp(-scaled))


def kernel_error(group: Group, frame: Frame, scales: np.ndarray) -> float:
    """Return by how much the basis misses the exact kernel within the box, of amplitude 1.

    Constants and linear functions do not count: level and trend of the mechanism hold them.

    scales: log amplitude, and the log lengthscale of each cause, (1 + c,).
    """
    columns = np.array(group.columns)
    middle, half = (np.asarray(part)[columns] for part in (frame.middle, frame.half))
    points = middle + half * (2 * qmc.Sobol(len(columns), scramble=False).random(PROBES) - 1)
    inputs: list[Any] = [None] * (max(group.columns) + 1)
    for position, column in enumerate(group.columns):
        inputs[column] = jnp.asarray(points[:, position])
    waves = np.asarray(sines(group, frame, inputs))
    unit = jnp.asarray(np.append(0.0, scales[1:]))
    variances = np.exp(np.asarray(log_spectrum(group, frame, unit)))
    apart = (points[:, None] - points[None]) / np.exp(np.asarray(scales[1:]))
    exact = covariance(group.kernel, np.linalg.norm(apart, axis=2))
    straight, _ = np.linalg.qr(np.column_stack([np.ones(len(points)), points]))
    missed = (waves * variances) @ waves.T - exact
    missed -= straight @ (straight.T @ missed)
    missed -= (missed @ straight) @ straight.T
    return float(np.abs(missed).max())
