"""How does one mechanism that bends look on these rows: its form, its prior and what they say?"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, Group, features
from causal_bo_ppl.mechanisms.gp.evidence import Beliefs, Known, Rows
from causal_bo_ppl.mechanisms.gp.priors import GP, GPPrior, Spread, read_spread, steepest_slope
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
    values, place = data.values[:, columns], graph.index(name)
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
    outcome = (values[:, place] - values[:, [graph.index(cause) for cause in given]] @ slopes)[own]
    spread = read_spread(prior, name, values[own & usual, place])
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
    places = tuple(map(graph.index, causes)), tuple(map(graph.index, given))
    equation = Equation(place, *places, form)
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
    log_sd[trend] = np.log(units / scale) if form.is_bent else np.log(WIDE * units)
    for place, at in enumerate(form.hinged):
        end = form.size - 2 * (len(form.hinged) - place)
        log_sd[end : end + 2] = math.log(prior.hinge * steep[at])
    noise = prior.noise if form.causes else 1.0
    centre, width = [math.log(noise * scale)], [prior.noise_spread]
    if form.is_bent:
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
    if not form.is_bent:
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
