"""Which form, prior and sufficient statistics does one equation have, given the data?

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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.base import Task, Unevenness
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, Group, features
from causal_bo_ppl.mechanisms.gp.evidence import (
    KnownTerms,
    MechanismPrior,
    Mode,
    SufficientStatistics,
    condition,
    find_mode,
)
from causal_bo_ppl.mechanisms.gp.priors import (
    GP,
    RANGE_IN_SDS,
    GPPrior,
    Spread,
    read_spread,
    steepest_slope,
)
from causal_bo_ppl.mechanisms.gp.propagation import Equation, Setting
from causal_bo_ppl.problem import Problem

FEWEST_FUNCTIONS, MOST_FUNCTIONS = 16, 48  # of one cause, by default
MOST_FUNCTIONS_OF_A_VARIABLE = 192  # of all its causes, by default
FUNCTIONS_IN_A_GROUP = {2: 12, 3: 6}  # of each cause, by the number of causes in a group
FEWEST_OBSERVATIONAL = 10  # observations without intervention that give location and scale
ROUNDING_ERROR = 1e-4  # sd of the rounding errors of values, in sds of the variable
LINEAR_SLOPE_SD = 10.0  # of linear mechanisms, in sds of the variable for one sd of the cause
STRETCH_RATES = (-1.0, -0.5, 0.5, 1.0)  # of exponential stretches, for one sd of the cause
STRETCH_RANGE = 4.0  # sds of the cause beyond which a stretch continues linearly

Stretch = Callable[[np.ndarray], np.ndarray]


class BoundEquation(NamedTuple):
    """One equation, the numbers in it that are not learned, and those it is learned from."""

    equation: Equation
    setting: Setting
    known: KnownTerms


def bind_equation(
    task: Task,
    graph: CausalGraph,
    choice: GP | None,
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
    frame, form = _frame(problem, causes, spreads, inputs), _form(name, choice, causes)
    units = np.array([spread.scale / each.scale for each in spreads])
    steepest = units.copy()
    for index, cause in enumerate(causes):
        if not {cause, name} <= set(prior.scales):
            slope = steepest_slope(columns[cause][usable & usual], outcome[usual[usable]])
            steepest[index] = max(slope, units[index])
    median = prior.target_lengthscale if name == problem.target else prior.lengthscale
    lengths = median * np.array([each.scale for each in spreads])
    scaled_prior = _scale_prior(prior, form, spread.scale, level, units, steepest, lengths)
    matrix = np.ones((usable.sum(), 1))
    if causes:
        work = partial(_features, form, Frame(*map(jnp.asarray, frame)))
        matrix = np.asarray(in_pieces(work, np.stack(inputs, axis=1), len(matrix)))
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


def _form(name: str, choice: GP | None, causes: list[str]) -> Form:
    """Return the structure of a mechanism."""
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
    return tuple(
        find_mode(equation.form, known, starts(equation.form, known))
        for equation, _, known in bound
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
    return SufficientStatistics(factor, np.asarray(float(count)), np.asarray(rounding))


class MechanismSample(NamedTuple):
    """Observations of one mechanism: inputs (n, C), and values (n,) less their known part (n,)."""

    inputs: np.ndarray
    outcome: np.ndarray
    known_part: np.ndarray


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
    columns, result = [data.nodes.index(name) for name in nodes], []
    for bound, mode in zip(equations, modes, strict=True):
        equation = bound.equation
        values = data.values[usable[:, equation.position]][:, columns]
        known_part = values[:, list(equation.known)] @ np.asarray(bound.setting.slopes, float)
        inputs, outcome = values[:, list(equation.causes)], values[:, equation.position]
        sample = MechanismSample(inputs, outcome - known_part, known_part)
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
    range of the data, as in `priors.read_spread`.
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
    matrix = _feature_matrix(form, frame, inputs)
    statistics = summarize(np.column_stack([matrix, sample.outcome - known.prior.level]))
    known = KnownTerms(frame, known.prior, statistics)
    mode = find_mode(form, known, starts(form, known))
    volume = np.linalg.slogdet(mode.root)[1]
    return float(volume - mode.loss), _fit(form, known, mode, stretched)[0]


_condition = partial(jax.jit, static_argnums=0)(condition)


def _feature_matrix(form: Form, frame: Frame, inputs: np.ndarray) -> np.ndarray:
    return np.asarray(features(form, frame, [jnp.asarray(column) for column in inputs.T]))


def _fit(
    form: Form, known: KnownTerms, mode: Mode, sample: MechanismSample
) -> tuple[np.ndarray, np.ndarray]:
    """Return fitted means (n,) and their posterior sds, for hyperparameters at the mode."""
    sd, mean, root = map(np.asarray, _condition(form, known, mode.eta))
    scaled = _feature_matrix(form, known.frame, sample.inputs) * sd
    whitened = solve_triangular(root, scaled.T, lower=True)
    return scaled @ mean + known.prior.level, np.sqrt((whitened**2).sum(axis=0))
