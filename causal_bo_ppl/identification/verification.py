"""Is this formula the effect? Estimands against random linear-Gaussian models of the graph.

V = a + W'V + e with e ~ N(0, Omega); under do(s) = x, Y = tau'x + l'(a + e), with loads l = 0 for
what is set. Models are drawn by NumPy from a fixed seed, so that a verdict never changes. Floating
point says in what a formula differs, exact arithmetic whether it differs at all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from y0.dsl import Expression, Variable

from causal_bo_ppl.checks import FAILED, PASSED, Check, judge
from causal_bo_ppl.errors import ArgumentError, DomainError
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.evaluation import (
    LOG_TWO_PI,
    Potential,
    Reals,
    Unsound,
    evaluate,
    on_positions,
    union,
)
from causal_bo_ppl.identification.finite_field import is_exact_effect, require_density
from causal_bo_ppl.identification.y0_adapter import all_names, to_text
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.linalg import adjoint_sweep
from causal_bo_ppl.problem import validation

TRIALS = 3
SEED = 20021
# Largest variance that parents may give to a variable, whose own noise has a variance near 1: small
# enough for covariances to be inverted, large enough for an effect to be passed on.
CAP = 25.0


class Trials(NamedTuple):
    """Random SEMs, t of them, with variables in the graph's order.

    Attributes
    ----------
    weights, noise:
        The coefficients W, W_ij that of i for j, and the covariances Omega, of shape (t, p, p).
    intercepts:
        The intercepts a, of shape (t, p).
    moments:
        The means and covariances that follow from these.
    """

    weights: np.ndarray
    intercepts: np.ndarray
    noise: np.ndarray
    moments: Reals


def draw_trials(graph: CausalGraph, count: int) -> Trials:
    """Draw SEMs in which every path and every arc counts, in deep graphs and in dense ones.

    Coefficients are near 1 in size, so that an effect does not fade along a path; those of a
    variable shrink only where its parents would give it a variance above CAP.
    """
    require_float64()
    draws = np.random.default_rng(SEED)
    size = len(graph.nodes)
    scale = draws.uniform(0.6, 1.4, (count, size))
    noise = _draw_noise(graph, draws, count) * scale[:, :, None] * scale[:, None, :]
    weights = np.zeros((count, size, size))
    grown = np.zeros((count, size, size))  # covariances as they would be without arcs
    for position, name in enumerate(graph.nodes):
        parents = [graph.index(cause) for cause in graph.parents(name)]
        column = draws.uniform(0.7, 1.3, (count, len(parents))) * draws.choice(
            [-1.0, 1.0], (count, len(parents))
        )
        inherited = np.einsum("ti,tij,tj->t", column, grown[:, parents][:, :, parents], column)
        column *= np.minimum(1.0, np.sqrt(CAP / np.maximum(inherited, CAP)))[:, None]
        weights[:, parents, position] = column
        shared = np.einsum("ti,tij->tj", column, grown[:, parents])
        grown[:, position], grown[:, :, position] = shared, shared
        grown[:, position, position] = np.minimum(inherited, CAP) + scale[:, position] ** 2
    intercepts = draws.normal(size=(count, size))
    solve = np.linalg.inv(np.eye(size) - weights.transpose(0, 2, 1))
    moments = Reals(
        (solve @ intercepts[..., None])[..., 0], solve @ noise @ solve.transpose(0, 2, 1)
    )
    return Trials(weights, intercepts, noise, moments)


def _draw_noise(graph: CausalGraph, draws: np.random.Generator, count: int) -> np.ndarray:
    """Draw correlations on the arcs, diagonally dominant and so positive definite, (t, p, p)."""
    noise = np.tile(np.eye(len(graph.nodes)), (count, 1, 1))
    arcs = {name: max(len(graph.spouses(name)), 1) for name in graph.nodes}
    for one, other in graph.bidirected:
        shared = (
            draws.uniform(0.4, 0.9, count)
            * draws.choice([-1.0, 1.0], count)
            / max(arcs[one], arcs[other])
        )
        at = graph.index(one), graph.index(other)
        noise[:, *at] = noise[:, *at[::-1]] = shared
    return noise


class Effects(NamedTuple):
    """The distributions of Y under do of M sets in t trials.

    Slopes have the shape (t, M, p), intercepts and variances (t, M).
    """

    slopes: np.ndarray
    intercepts: np.ndarray
    variances: np.ndarray

    def potential(self, position: int, positions: Sequence[int], target: int) -> Potential:
        """Return the density N(y; intercept + slopes'x, variance) of one set in every trial.

        It is a potential over `positions`, which are the target and what is set.
        """
        intercept, variance = self.intercepts[:, position], self.variances[:, position]
        residual = -self.slopes[:, position, list(positions)]
        residual[:, list(positions).index(target)] = 1.0
        precision = residual[:, :, None] * residual[:, None, :] / variance[:, None, None]
        constant = -(LOG_TWO_PI + np.log(variance) + intercept**2 / variance) / 2
        return Potential(
            tuple(positions), precision, residual * (intercept / variance)[:, None], constant
        )


def mark(graph: CausalGraph, sets: Sequence[Collection[str]]) -> np.ndarray:
    """Return which variables stand in which set, a boolean array of shape (M, p)."""
    masks = np.zeros((len(sets), len(graph.nodes)), bool)
    rank = {name: position for position, name in enumerate(graph.nodes)}
    columns = [rank[name] for members in sets for name in members]
    masks[np.repeat(np.arange(len(sets)), [len(members) for members in sets]), columns] = True
    return masks


def true_effects(trials: Trials, target: int, masks: np.ndarray) -> Effects:
    """Return the true effects of the sets in `masks`, a boolean array of shape (M, p)."""
    swept = adjoint_sweep(trials.weights, masks.T, target)
    loads, slopes = (part.transpose(0, 2, 1) for part in (swept, trials.weights @ swept))
    slopes = np.where(masks, slopes, 0.0)
    intercepts = np.einsum("tmj,tj->tm", loads, trials.intercepts)
    return Effects(
        slopes, intercepts, np.einsum("tmi,tij,tmj->tm", loads, trials.noise, loads, optimize=True)
    )


TOLERANCE = 1e-7  # relative; right formulas are off by 1e-15 to 1e-11
ROWS = ("slopes", "intercept", "variance", "other variables", "integral over the target")
FAINT = (
    "It is wrong, though by too little to be seen in random models: arithmetic without rounding "
    "shows it."
)
ADVICE = "Do not use this formula; identify(graph, target, sets) derives one where one exists."


def check_estimand(
    graph: CausalGraph, target: str, intervened: str | Iterable[str], estimand: Expression
) -> Check:
    """Compare an estimand with P(target | do(intervened)) in random models.

    The estimand is a y0 expression in the graph's names. The table of the check has the largest
    relative error of the slopes, of the intercept and of the variance, of what must be zero (the
    coefficients of other variables), and of what must be one (the integral over the target). The
    check also fails where every line passes but arithmetic without rounding shows a difference.

    Examples
    --------
    >>> from y0.dsl import P, X, Y
    >>> check_estimand(CausalGraph.parse("X -> Y; X <-> Y"), "Y", "X", P(Y | X)).passed
    False
    """
    target = validation.read_target(validation.read_graph(graph), target)
    members = graph.require(intervened)
    if target in members:
        raise DomainError(
            f"the target {target!r} stands among the intervened variables {members}; "
            "it cannot be set"
        )
    if not isinstance(estimand, Expression):
        raise ArgumentError(f"an estimand is a y0 expression, got {estimand!r}")
    graph.require(all_names(estimand))
    if any(type(one) is not Variable or one.star is not None for one in estimand.get_variables()):
        raise ArgumentError(
            f"an estimand speaks of observed variables alone, without do() and stars: {estimand}"
        )
    query = f"P({target} | do({', '.join(members)}))" if members else f"P({target})"
    name = f"{query} = {to_text(estimand)}"
    try:
        require_density(estimand, graph, target)
        errors, whole = _compare(graph, target, members, estimand)
    except Unsound as fault:
        table = _table(dict.fromkeys(ROWS, np.inf))
        return Check(name, table, f"It is wrong: {fault}.", ADVICE, whole=FAILED)
    table = _table(errors)
    if is_exact_effect(estimand, graph, target, members) and whole <= TOLERANCE:
        return Check(name, table, "It equals the effect in random models.", whole=PASSED)
    wrong = ", ".join(table.index[table["verdict"] == FAILED])
    text = f"It is wrong in {wrong}." if wrong else FAINT
    return Check(name, table, text, ADVICE, whole=FAILED)


def _table(errors: Mapping[str, float]) -> pd.DataFrame:
    verdicts = [judge(error <= TOLERANCE) for error in errors.values()]
    index = pd.Index(errors, name="quantity")
    return pd.DataFrame({"error": list(errors.values()), "verdict": verdicts}, index=index)


def _compare(
    graph: CausalGraph, target: str, members: Names, estimand: Expression
) -> tuple[dict[str, float], float]:
    """Return the error of every quantity, and that of the whole density."""
    trials = draw_trials(graph, TRIALS)
    positions = {name: position for position, name in enumerate(graph.nodes)}
    at, inside = positions[target], np.array([name in members for name in graph.nodes])
    truth = true_effects(trials, at, inside[None])
    potential = evaluate(estimand, trials.moments, positions)
    row, own, pull = _of_target(potential, at, len(graph.nodes))
    left = trials.moments.integrate(potential, {at})  # must be 1 whatever the other variables are
    errors = {
        "slopes": _error(row[:, inside], truth.slopes[:, 0, inside]),
        "intercept": _error(pull / own, truth.intercepts[:, 0]),
        "variance": _error(1 / own, truth.variances[:, 0]),
        "other variables": _error(
            np.delete(row, [at, *np.flatnonzero(inside)], axis=1), np.zeros(1)
        ),
        "integral over the target": max(_error(piece, np.zeros(1)) for piece in left[1:]),
    }
    around = [positions[name] for name in graph.require([target, *members])]
    return errors, discrepancy(potential, truth.potential(0, around, at))


def _of_target(
    potential: Potential, target: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coefficients of all variables for the target, its precision and information."""
    spread = on_positions(potential, tuple(range(size)))
    own = spread.precision[:, target, target]
    return -spread.precision[:, target] / own[:, None], own, spread.information[:, target]


def discrepancy(found: Potential, truth: Potential) -> float:
    """Return the largest relative difference of two potentials over all trials.

    It is infinite where `found` is not finite. Equal potentials are equal densities: slopes,
    intercept, variance, normalization, and no dependence on any other variable.
    """
    positions = union([found.positions, truth.positions])
    pairs = zip(on_positions(found, positions)[1:], on_positions(truth, positions)[1:], strict=True)
    return max(_error(one, other, 1.0) for one, other in pairs)


def _error(found: np.ndarray, truth: np.ndarray, least: float = 0.0) -> float:
    """Return the largest difference relative to the size of the truth, or to `least` if larger."""
    if not np.isfinite(found).all():
        return float(np.inf)
    size = np.max(np.abs(truth), initial=least)
    return float(np.max(np.abs(found - truth), initial=0.0) / (size if size > 0 else 1.0))
