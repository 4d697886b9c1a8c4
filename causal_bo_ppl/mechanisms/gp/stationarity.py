"""Does a mechanism bend as strongly everywhere, as its Gaussian processes assume?

The kernel of a process has one lengthscale and one amplitude for all values of a cause. Where the
curvature varies much, as that of exp(-x) does, these are those of the part with most rows, and
bands are too narrow where rows are sparse. So the cause x is replaced by a monotone function of it
that stretches one part against another,

    x -> w(u),  u = (x - mean) / sd,  w = (exp(a u) - 1) / a,  sinh(u) or arcsinh(2 u) / 2,

and the evidence of the same rows, with hyperparameters at their mode and Laplace's factor, is
compared with that of the cause as it is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from causal_bo_ppl.data import Data
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, features
from causal_bo_ppl.mechanisms.gp.binding import Bound, read_rows, starts
from causal_bo_ppl.mechanisms.gp.evidence import Known, Mode, condition, find_mode
from causal_bo_ppl.mechanisms.gp.priors import WITHIN
from causal_bo_ppl.mechanisms.interfaces import Unevenness

RATES = (-1.0, -0.5, 0.5, 1.0)  # of exponential stretches, for one sd of the cause
FAR = 4.0  # sds of the cause beyond which a stretch goes on as a straight line

Stretch = Callable[[np.ndarray], np.ndarray]


class Given(NamedTuple):
    """The rows of one mechanism: inputs (n, C), and outcomes (n,) less what is known of them."""

    inputs: np.ndarray
    outcome: np.ndarray


def uneven_mechanisms(
    equations: Sequence[Bound],
    modes: Sequence[Mode],
    data: Data,
    nodes: Sequence[str],
    usable: np.ndarray,
) -> list[Unevenness]:
    """Return for every mechanism that bends what stretching one of its causes would change.

    modes: the hyperparameters of each equation. nodes: the variables of the model. usable: (n, p)
    which rows say something about the equation of each variable.
    """
    columns, found = [data.nodes.index(name) for name in nodes], []
    for bound, mode in zip(equations, modes, strict=True):
        equation = bound.equation
        rows = np.flatnonzero(usable[:, equation.place])
        values = data.values[rows][:, columns]
        shared = values[:, list(equation.known)] @ np.asarray(bound.setting.slopes, float)
        given = Given(values[:, list(equation.causes)], values[:, equation.place] - shared)
        vary = [at for at in range(len(equation.causes)) if np.ptp(given.inputs[:, at]) > 0]
        if equation.form.is_bent and vary:
            names = (nodes[equation.place], [nodes[place] for place in equation.causes])
            found.append(_look(bound, mode, given, vary, shared, names))
    return found


def _look(
    bound: Bound,
    mode: Mode,
    given: Given,
    vary: Sequence[int],
    shared: np.ndarray,
    names: tuple[str, list[str]],
) -> Unevenness:
    """Return what stretching the causes at the places `vary` changes in one mechanism."""
    form, known = bound.equation.form, bound.known
    fitted, sd = _fit(form, known, mode, given)
    gains, fits = [], []
    for at in vary:
        plain, _ = _stretched(form, known, given, at, lambda u: u)
        for stretch in _stretches():
            score, means = _stretched(form, known, given, at, stretch)
            gains.append(score - plain if np.isfinite(score) else -np.inf)
            fits.append((at, means))
    at, instead = fits[int(np.argmax(gains))]
    row = int(np.argmax(np.abs(instead - fitted) / sd))
    factor = float(np.logaddexp.reduce(gains) - np.log(len(gains)))
    return Unevenness(
        names[0],
        names[1][at],
        value=float(given.inputs[row, at]),
        fitted=float(fitted[row] + shared[row]),
        sd=float(sd[row]),
        instead=float(instead[row] + shared[row]),
        log_factor=factor,
    )


def _stretches() -> list[Stretch]:
    """Return the monotone functions that a cause, in sds, is replaced by."""
    pairs: list[tuple[Stretch, Stretch]] = [
        (partial(_exponential, rate), partial(_growth, rate)) for rate in RATES
    ]
    pairs += [(np.sinh, np.cosh), (_compressed, _compression)]
    return [partial(_straight_beyond, *pair) for pair in pairs]


def _exponential(rate: float, u: np.ndarray) -> np.ndarray:
    return np.asarray(np.expm1(rate * u) / rate)


def _growth(rate: float, u: np.ndarray) -> np.ndarray:
    """Return the slope of `_exponential`."""
    return np.asarray(np.exp(rate * u))


def _compressed(u: np.ndarray) -> np.ndarray:
    return np.asarray(np.arcsinh(2 * u) / 2)


def _compression(u: np.ndarray) -> np.ndarray:
    """Return the slope of `_compressed`."""
    return np.asarray(1 / np.sqrt(1 + 4 * u**2))


def _straight_beyond(bend: Stretch, slope: Stretch, u: np.ndarray) -> np.ndarray:
    """Return a function that goes on as a straight line where it would grow without measure."""
    inside = np.clip(u, -FAR, FAR)
    return np.asarray(bend(inside) + slope(inside) * (u - inside))


def _stretched(
    form: Form,
    known: Known,
    given: Given,
    at: int,
    stretch: Stretch,
) -> tuple[float, np.ndarray]:
    """Return log evidence, up to a constant, and fitted means (n,) with one cause stretched.

    The stretched cause keeps its mean and sd, so that the prior stays as it is, and its box is the
    range of the rows, as in `priors.read_spread`.
    """
    column = given.inputs[:, at]
    centre, scale = column.mean(), column.std()
    moved = stretch((column - centre) / scale)
    moved = centre + scale * (moved - moved.mean()) / moved.std()
    inputs = given.inputs.copy()
    inputs[:, at] = moved
    low = max(moved.min(), centre - WITHIN * scale)
    high = min(moved.max(), centre + WITHIN * scale)
    parts = [np.array(part, float) for part in known.frame]
    for part, value in zip(parts[1:], ((low + high) / 2, (high - low) / 2, low, high), strict=True):
        part[at] = value
    frame, rows = Frame(*parts), given._replace(inputs=inputs)
    columns = np.column_stack([_features(form, frame, inputs), rows.outcome - known.beliefs.level])
    again = Known(frame, known.beliefs, read_rows(columns))
    mode = find_mode(form, again, starts(form, again))
    volume = np.linalg.slogdet(mode.root)[1]
    return float(volume - mode.loss), _fit(form, again, mode, rows)[0]


_condition = partial(jax.jit, static_argnums=0)(condition)


def _features(form: Form, frame: Frame, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(features(form, frame, [jnp.asarray(column) for column in inputs.T]))


def _fit(form: Form, known: Known, mode: Mode, given: Given) -> tuple[np.ndarray, np.ndarray]:
    """Return means (n,) at the rows and their posterior sds, for hyperparameters at the mode."""
    sd, mean, root = map(np.asarray, _condition(form, known, mode.eta))
    scaled = _features(form, known.frame, given.inputs) * sd
    spread = solve_triangular(root, scaled.T, lower=True)
    return scaled @ mean + known.beliefs.level, np.sqrt((spread**2).sum(axis=0))
