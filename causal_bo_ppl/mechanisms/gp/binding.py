"""How does one mechanism that bends look on these rows: its form, its prior and what they say?

Does a mechanism bend as strongly everywhere, as its Gaussian processes assume?

The kernel of a process has one lengthscale and one amplitude for all values of a cause. Where the
curvature varies much, as that of exp(-x) does, these are those of the part with most rows, and
bands are too narrow where rows are sparse. So the cause x is replaced by a monotone function of it
that stretches one part against another,

    x -> w(u),  u = (x - mean) / sd,  w = (exp(a u) - 1) / a,  sinh(u) or arcsinh(2 u) / 2,

and the evidence of the same rows, with hyperparameters at their mode and Laplace's factor, is
compared with that of the cause as it is.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.base import Unevenness
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, Group, features
from causal_bo_ppl.mechanisms.gp.evidence import Beliefs, Known, Mode, Rows, condition, find_mode
from causal_bo_ppl.mechanisms.gp.priors import (
    GP,
    WITHIN,
    GPPrior,
    Spread,
    read_spread,
    steepest_slope,
)
from causal_bo_ppl.mechanisms.gp.propagation import Equation, Setting
from causal_bo_ppl.problem import Problem

FEWEST, MOST, ALL = 16, 48, 192  # functions of one cause, and of all causes of a variable
TOGETHER = {2: 12, 3: 6}  # functions of each cause in a group
USUAL = 10  # rows without intervention that say where variables usually lie
ROUNDING = 1e-4  # sd to which values are known at best, in sds of the variable
WIDE = 10.0  # sd of the slopes of linear mechanisms, in sds of the variable for one of the cause


class Bound(NamedTuple):
    """One equation, the numbers in it that are not learned, and what is known about the rest."""

    equation: Equation
    setting: Setting
    known: Known


def bind_equation(
    problem: Problem,
    graph: CausalGraph,
    data: Data,
    prior: GPPrior,
    choice: GP | None,
    name: str,
    regressors: Sequence[str],
    own: np.ndarray,
) -> Bound:
    """Return one equation with what its rows and the prior say.

    Parameters
    ----------
    graph:
        The target and its causes.
    choice:
        How the variable depends on its causes; None for a linear mechanism.
    name:
        The variable.
    regressors:
        Its causes, or what it is regressed on where latent causes join it to others.
    own:
        Which rows say something about the equation, (n,): none in which the variable was set.

    Where variables usually lie, and by how much they vary, is known from the rows in which nothing
    was set, where there are enough: experiments may send them anywhere.
    """
    columns = [data.nodes.index(node) for node in graph.nodes]
    values, position = data.values[:, columns], graph.index(name)
    usual = ~data.intervened.any(axis=1).astype(bool)
    if usual.sum() < USUAL:
        usual = np.ones(len(own), bool)
    given = [cause for cause in regressors if (cause, name) in problem.known]
    causes = [cause for cause in regressors if cause not in given]
    spreads = {node: read_spread(prior, node, values[usual, graph.index(node)]) for node in causes}
    centres = [
        prior.centres.get(node, float(values[usual, graph.index(node)].mean()) if len(own) else 0.0)
        for node in given
    ]
    slopes = np.array([problem.known[cause, name] for cause in given])
    outcome = (values[:, position] - values[:, [graph.index(cause) for cause in given]] @ slopes)[
        own
    ]
    spread = read_spread(prior, name, values[own & usual, position])
    level = spread.centre - float(slopes @ centres)
    seen = [values[own, graph.index(cause)] for cause in causes]
    frame = _frame(problem, causes, [spreads[cause] for cause in causes], seen)
    form = _form(name, choice, causes)
    units = np.array([spread.scale / spreads[cause].scale for cause in causes])
    steep = units.copy()
    for at, cause in enumerate(causes):
        if not {cause, name} <= set(prior.scales):
            steepest = steepest_slope(values[own & usual, graph.index(cause)], outcome[usual[own]])
            steep[at] = max(steepest, units[at])
    median = prior.target_lengthscale if name == problem.target else prior.lengthscale
    lengths = median * np.array([spreads[cause].scale for cause in causes])
    beliefs = _beliefs(prior, form, spread.scale, level, units, steep, lengths)
    found = np.ones((own.sum(), 1))
    if causes:
        work = partial(_features, form, Frame(*map(jnp.asarray, frame)))
        found = np.asarray(in_pieces(work, np.stack(seen, axis=1), len(found)))
    rows = read_rows(np.column_stack([found, outcome - level]))
    positions = tuple(map(graph.index, causes)), tuple(map(graph.index, given))
    equation = Equation(position, *positions, form)
    return Bound(equation, Setting(frame, slopes), Known(frame, beliefs, rows))


@partial(jax.jit, static_argnums=0)
def _features(form: Form, frame: Frame, values: jax.Array) -> jax.Array:
    """Return what the coefficients are multiplied by (n, K), for values (n, C) of the causes."""
    return features(form, frame, list(values.T))


def _frame(
    problem: Problem, causes: Sequence[str], spreads: Sequence[Spread], seen: Sequence[np.ndarray]
) -> Frame:
    """Return where the causes lie; the box holds the usual rows and the domain of each.

    seen: the values of each cause in all rows; hinges begin beyond those within the box.
    """
    ends, kinks = [], []
    for cause, spread, values in zip(causes, spreads, seen, strict=True):
        own = problem.domains.get(cause, (spread.low, spread.high))
        low, high = min(own[0], spread.low), max(own[1], spread.high)
        inside = values[(values >= low) & (values <= high)]
        ends.append((low, high))
        kinks.append(
            (
                min(inside.min(initial=spread.low), spread.low),
                max(inside.max(initial=spread.high), spread.high),
            )
        )
    box, (least, most) = np.array(ends).reshape(-1, 2), np.array(kinks).reshape(-1, 2).T
    origin = np.array([spread.centre for spread in spreads])
    return Frame(origin, box.mean(axis=1), (box[:, 1] - box[:, 0]) / 2, least, most)


def _form(name: str, choice: GP | None, causes: list[str]) -> Form:
    """Return what a mechanism is made of."""
    if choice is None or not causes:
        return Form(len(causes), (), ())
    if strange := [each for group in choice.groups for each in group if each not in causes]:
        raise ModelError(
            f"{strange[0]!r} is in a group of {name!r} but is none of its causes "
            f"({listed(causes) or 'it has none'}) whose influence is learned; give groups by "
            f"variable, such as mechanisms={{{name!r}: cb.GP(...)}}"
        )
    most = max(FEWEST, min(MOST, ALL // len(causes) // 8 * 8))
    grouped = {each for group in choice.groups for each in group}
    members = [*choice.groups, *((cause,) for cause in causes if cause not in grouped)]
    groups = []
    for group in sorted(members, key=lambda each: min(map(causes.index, each))):
        columns = tuple(sorted(map(causes.index, group)))
        functions = choice.functions or TOGETHER.get(len(group), most)
        groups.append(Group(columns, (functions,) * len(columns), choice.kernel))
    return Form(len(causes), tuple(groups), tuple(range(len(causes))))


def _beliefs(
    prior: GPPrior,
    form: Form,
    scale: float,
    level: float,
    units: np.ndarray,
    steep: np.ndarray,
    lengths: np.ndarray,
) -> Beliefs:
    """Return the prior of one mechanism in the units of its variables."""
    log_sd = np.zeros(form.size)
    log_sd[0] = math.log(prior.level * scale)
    trend = slice(1, 1 + form.causes)
    # The trend's hyperparameter is in units of the variable, for one sd of the cause.
    log_sd[trend] = np.log(units / scale) if form.is_nonlinear else np.log(WIDE * units)
    for position, at in enumerate(form.hinged):
        end = form.size - 2 * (len(form.hinged) - position)
        log_sd[end : end + 2] = math.log(prior.hinge * steep[at])
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
    return Beliefs(log_sd, np.asarray(level), np.array(centre), np.array(width))


def starts(form: Form, known: Known) -> np.ndarray:
    """Return where the search for the mode begins: medians, wiggly, and nearly linear."""
    centre = np.asarray(known.beliefs.centre)
    if not form.is_nonlinear:
        return centre[None]
    wiggly, straight, at = centre.copy(), centre.copy(), 2
    wiggly[0] -= 1.0
    for group in form.groups:
        count = 1 + len(group.columns)
        wiggly[at + 1 : at + count] -= 1.0
        straight[at] -= 1.5
        straight[at + 1 : at + count] += 1.0
        at += count
    return np.stack([centre, wiggly, straight])


def read_rows(columns: np.ndarray) -> Rows:
    """Return what rows of features and values (n, K + 1) say; its shapes do not depend on n.

    Values are taken to be rounded: without it the sd of a disturbance would go to 0 where a
    variable follows its causes exactly.
    """
    size, upper = columns.shape[1], np.linalg.qr(columns, mode="r")
    factor: np.ndarray = np.pad(upper, ((0, size - len(upper)), (0, 0)))
    count = len(columns)
    rounding = count * (ROUNDING * float(columns[:, -1].std())) ** 2 if count else 0.0
    factor[-1, -1] = math.hypot(factor[-1, -1], math.sqrt(rounding))
    return Rows(factor, np.asarray(float(count)), np.asarray(rounding))


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
        rows = np.flatnonzero(usable[:, equation.position])
        values = data.values[rows][:, columns]
        shared = values[:, list(equation.known)] @ np.asarray(bound.setting.slopes, float)
        given = Given(values[:, list(equation.causes)], values[:, equation.position] - shared)
        vary = [at for at in range(len(equation.causes)) if np.ptp(given.inputs[:, at]) > 0]
        if equation.form.is_nonlinear and vary:
            names = (nodes[equation.position], [nodes[position] for position in equation.causes])
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
    columns = np.column_stack(
        [_feature_matrix(form, frame, inputs), rows.outcome - known.beliefs.level]
    )
    again = Known(frame, known.beliefs, read_rows(columns))
    mode = find_mode(form, again, starts(form, again))
    volume = np.linalg.slogdet(mode.root)[1]
    return float(volume - mode.loss), _fit(form, again, mode, rows)[0]


_condition = partial(jax.jit, static_argnums=0)(condition)


def _feature_matrix(form: Form, frame: Frame, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(features(form, frame, [jnp.asarray(column) for column in inputs.T]))


def _fit(form: Form, known: Known, mode: Mode, given: Given) -> tuple[np.ndarray, np.ndarray]:
    """Return means (n,) at the rows and their posterior sds, for hyperparameters at the mode."""
    sd, mean, root = map(np.asarray, _condition(form, known, mode.eta))
    scaled = _feature_matrix(form, known.frame, given.inputs) * sd
    spread = solve_triangular(root, scaled.T, lower=True)
    return scaled @ mean + known.beliefs.level, np.sqrt((spread**2).sum(axis=0))
