"""Is this formula the effect? Estimands against random linear-Gaussian models of the graph.

V = a + W'V + e with e ~ N(0, Omega); under do(s) = x, Y = tau'x + l'(a + e), with loads l = 0 for
what is set. Models are drawn by NumPy from a fixed seed, so that a verdict never changes. Floating
point shows in what a formula differs, exact arithmetic whether it differs at all.

Where no latent cause lies upstream, every district is one variable, Q[{v}] = P(v | parents of v),
and the effect is the truncated factorization

    P(Y | do(s)) = sum over D minus Y of the product over v in D of P(v | parents of v).

Every factor is verified once, whatever the number of sets that use it: without rounding, and as a
regression N(v; a + w'parents, s2) in random linear-Gaussian models. The whole of every set is then
integrated in these models variable by variable, latest first: a variable that enters the mean of Y
with the load l leaves l w for its parents, l a for the intercept and l^2 s2 for the variance. One
pass over the variables does that for all sets, in a time that grows with edges times sets; a Schur
complement for every set takes the third power of the variables times sets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from y0.dsl import Expression, Probability, Product, Sum, Variable

from causal_bo_ppl.checks import FAILED, PASSED, Check, judge
from causal_bo_ppl.errors import ArgumentError, DomainError
from causal_bo_ppl.graph.admg import CausalGraph, Names, read_graph, read_target
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
from causal_bo_ppl.identification.y0_adapter import all_names, factors_of, to_text, variable
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.linalg import adjoint_sweep

TRIALS = 3  # random models
TRIAL_SEED = 20021
# Largest variance that parents may give to a variable, whose own noise has a variance near 1: small
# enough for covariances to be inverted, large enough for an effect to be passed on.
MOST_INHERITED_VARIANCE = 25.0


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
    variable shrink only where its parents would give it a variance above MOST_INHERITED_VARIANCE.
    """
    require_float64()
    draws = np.random.default_rng(TRIAL_SEED)
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
        column *= np.minimum(
            1.0, np.sqrt(MOST_INHERITED_VARIANCE / np.maximum(inherited, MOST_INHERITED_VARIANCE))
        )[:, None]
        weights[:, parents, position] = column
        shared = np.einsum("ti,tij->tj", column, grown[:, parents])
        grown[:, position], grown[:, :, position] = shared, shared
        grown[:, position, position] = (
            np.minimum(inherited, MOST_INHERITED_VARIANCE) + scale[:, position] ** 2
        )
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
        pair = graph.index(one), graph.index(other)
        noise[:, *pair] = noise[:, *pair[::-1]] = shared
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
CHECKED_QUANTITIES = (
    "slopes",
    "intercept",
    "variance",
    "other variables",
    "integral over the target",
)
DIFFERENCE_TOO_SMALL = (
    "It is wrong, though by too little to be seen in random models: arithmetic without rounding "
    "shows it."
)
FORMULA_ADVICE = (
    "Do not use this formula; identify(graph, target, sets) derives one where one exists."
)


def check_estimand(
    graph: CausalGraph, target: str, intervened: str | Iterable[str], estimand: Expression
) -> Check:
    """Compare an estimand with P(target | do(intervened)) in random models.

    Parameters
    ----------
    graph, target, intervened:
        The causal graph, the target and the variables that are set.
    estimand:
        A y0 expression in the graph's names.

    Returns
    -------
    Check
        Its table has the largest relative error of the slopes, of the intercept and of the
        variance, of what must be zero (the coefficients of other variables), and of what must be
        one (the integral over the target). The check also fails where every line passes but
        arithmetic without rounding shows a difference.

    Raises
    ------
    ArgumentError, DomainError, GraphError
        If the estimand is no expression in observed variables, or a name cannot be used.

    Examples
    --------
    >>> from y0.dsl import P, X, Y
    >>> check_estimand(CausalGraph.parse("X -> Y; X <-> Y"), "Y", "X", P(Y | X)).passed
    False
    """
    target = read_target(read_graph(graph), target)
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
            f"an estimand has observed variables alone, without do() and stars: {estimand}"
        )
    query = f"P({target} | do({', '.join(members)}))" if members else f"P({target})"
    name = f"{query} = {to_text(estimand)}"
    try:
        require_density(estimand, graph, target)
        errors, whole = _compare(graph, target, members, estimand)
    except Unsound as fault:
        table = _table(dict.fromkeys(CHECKED_QUANTITIES, np.inf))
        return Check(name, table, f"It is wrong: {fault}.", FORMULA_ADVICE, whole=FAILED)
    table = _table(errors)
    if is_exact_effect(estimand, graph, target, members) and whole <= TOLERANCE:
        return Check(name, table, "It equals the effect in random models.", whole=PASSED)
    wrong = ", ".join(table.index[table["verdict"] == FAILED])
    text = f"It is wrong in {wrong}." if wrong else DIFFERENCE_TOO_SMALL
    return Check(name, table, text, FORMULA_ADVICE, whole=FAILED)


def _table(errors: Mapping[str, float]) -> pd.DataFrame:
    verdicts = [judge(error <= TOLERANCE) for error in errors.values()]
    index = pd.Index(errors, name="quantity")
    return pd.DataFrame({"error": list(errors.values()), "verdict": verdicts}, index=index)


def _compare(
    graph: CausalGraph, target: str, members: Names, estimand: Expression
) -> tuple[dict[str, float], float]:
    """Return the error of every quantity, and that of the whole density."""
    trials = draw_trials(graph, TRIALS)
    position = graph.index(target)
    inside = np.array([name in members for name in graph.nodes])
    truth = true_effects(trials, position, inside[None])
    potential = evaluate(estimand, trials.moments, graph.positions)
    row, own, pull = _of_target(potential, position, len(graph.nodes))
    # Must be 1, whatever the other variables are.
    integral = trials.moments.integrate(potential, {position})
    errors = {
        "slopes": relative_error(row[:, inside], truth.slopes[:, 0, inside]),
        "intercept": relative_error(pull / own, truth.intercepts[:, 0]),
        "variance": relative_error(1 / own, truth.variances[:, 0]),
        "other variables": relative_error(
            np.delete(row, [position, *np.flatnonzero(inside)], axis=1), np.zeros(1)
        ),
        "integral over the target": max(
            relative_error(piece, np.zeros(1)) for piece in integral[1:]
        ),
    }
    around = [graph.index(name) for name in graph.ordered([target, *members])]
    return errors, discrepancy(potential, truth.potential(0, around, position))


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
    return max(relative_error(one, other, 1.0) for one, other in pairs)


def relative_error(found: np.ndarray, truth: np.ndarray, least: float = 0.0) -> float:
    """Return the largest difference relative to the size of the truth, or to `least` if larger."""
    if not np.isfinite(found).all():
        return float(np.inf)
    size = np.max(np.abs(truth), initial=least)
    return float(np.max(np.abs(found - truth), initial=0.0) / (size if size > 0 else 1.0))


LOADS_IN_MEMORY = 2**24


class FactorRegression(NamedTuple):
    """P(v | parents of v) in t trials: coefficients (t, k), intercept (t,) and variance (t,).

    `error` is the largest relative difference between the factor and the density that these give.
    """

    expression: Expression
    position: int
    parents: tuple[int, ...]
    coefficients: np.ndarray
    intercept: np.ndarray
    variance: np.ndarray
    error: float


def read_regression(
    graph: CausalGraph, name: str, expression: Expression, potential: Potential
) -> FactorRegression | None:
    """Return a factor as the regression of a variable on its parents, or None if it is another.

    The potential is the value of the expression in every trial.
    """
    parents = graph.parents(name)
    if not (
        isinstance(expression, Probability)
        and tuple(one.name for one in expression.children) == (name,)
        and tuple(one.name for one in expression.parents) == parents
    ):
        return None
    position, positions = graph.index(name), potential.positions
    here = positions.index(position)
    own = potential.precision[:, here, here]
    row = -potential.precision[:, here] / own[:, None]
    intercept, variance = potential.information[:, here] / own, 1 / own
    density = Effects(row[:, None], intercept[:, None], variance[:, None])
    rebuilt = density.potential(0, range(len(positions)), here)._replace(positions=positions)
    return FactorRegression(
        expression,
        position,
        positions[:here],
        row[:, :here],
        intercept,
        variance,
        discrepancy(potential, rebuilt),
    )


def write_all(
    target: str, opened: Iterable[Names], regressions: Mapping[str, FactorRegression]
) -> Iterator[Expression]:
    """Yield the truncated factorization of every effect, its factors from the last one back."""
    variables = {name: variable(name) for name in regressions}
    for names in opened:
        parts = tuple(regressions[name].expression for name in reversed(names))
        bound = frozenset(variables[name] for name in names if name != target)
        whole = parts[0] if len(parts) == 1 else Product(parts)
        yield Sum(whole, bound) if bound else whole


def truncated_errors(
    graph: CausalGraph,
    target: str,
    members: Sequence[Names],
    estimands: Sequence[Expression],
    regressions: Mapping[str, FactorRegression],
    trials: Trials,
) -> Iterator[float]:
    """Yield, for every set, the largest relative error of its estimand over all trials.

    What is integrated is read from the estimand itself. The error is infinite where a factor is not
    one of `regressions`, or where the sum does not run over all variables of the factors but the
    target.
    """
    position = graph.index(target)
    own = np.zeros(len(graph.nodes))
    for part in regressions.values():
        own[part.position] = part.error
    block = max(1, LOADS_IN_MEMORY // trials.intercepts.size)
    for start in range(0, len(estimands), block):
        masks = graph.masks(members[start : start + block])
        integrated = [
            _read_variables(estimand, target, regressions)
            for estimand in estimands[start : start + block]
        ]
        present = graph.masks([names or () for names in integrated])
        found = _integrate(regressions, present.T, position)
        whole = _differences(found, true_effects(trials, position, masks))
        whole = np.maximum(whole, np.where(present, own, 0.0).max(axis=1))
        is_read = np.array([names is not None for names in integrated])
        yield from np.where(is_read & np.isfinite(whole), whole, np.inf).tolist()


def _differences(found: Effects, truth: Effects) -> np.ndarray:
    """Return the largest relative difference of every one of M effects over all trials, (M,).

    Slopes are compared for every variable, and so for those on which an effect must not depend.
    """
    slopes = np.abs(found.slopes - truth.slopes).max(axis=2)
    sizes = np.maximum(np.abs(truth.slopes).max(axis=2), 1.0)
    shift = np.abs(found.intercepts - truth.intercepts)
    spread = np.abs(found.variances - truth.variances)
    parts = (
        slopes / sizes,
        shift / np.maximum(np.abs(truth.intercepts), 1.0),
        spread / truth.variances,
    )
    return np.asarray(np.max([part.max(axis=0) for part in parts], axis=0))


def _read_variables(
    estimand: Expression, target: str, regressions: Mapping[str, FactorRegression]
) -> list[str] | None:
    """Return the variables whose regressions are the factors of an estimand.

    None where a factor is no verified regression, stands twice, or where the sum does not run over
    all of these variables but the target.
    """
    inner = estimand.expression if isinstance(estimand, Sum) else estimand
    bound = {one.name for one in estimand.ranges} if isinstance(estimand, Sum) else set()
    names = []
    for part in factors_of(inner):
        name = part.children[0].name if isinstance(part, Probability) else ""
        if name not in regressions or regressions[name].expression is not part:
            return None
        names.append(name)
    is_whole = target in names and len(set(names)) == len(names) and bound == {*names} - {target}
    return names if is_whole else None


def _integrate(
    regressions: Mapping[str, FactorRegression], present: np.ndarray, target: int
) -> Effects:
    """Return the distributions of the target that M products of regressions give.

    `present` (p, M) marks the regressions that stand in each product; all but the target is
    integrated. Slopes are the loads of the other variables, and 0 for the target itself.
    """
    parts = sorted(regressions.values(), key=lambda part: -part.position)
    trials = len(parts[0].intercept)
    loads = np.zeros((trials, *present.shape))
    intercepts, variances = np.zeros((2, trials, present.shape[1]))
    loads[:, target] = 1.0
    for part in parts:
        load = np.where(present[part.position], loads[:, part.position], 0.0)
        intercepts += load * part.intercept[:, None]
        variances += load**2 * part.variance[:, None]
        loads[:, list(part.parents)] += part.coefficients[:, :, None] * load[:, None]
        loads[:, part.position] -= load
    return Effects(loads.transpose(0, 2, 1), intercepts, variances)
