"""Is this formula the effect? An estimand is compared with the truth in random models.

Linear-Gaussian models in floating point say in what it differs, exact arithmetic whether it differs
at all.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from y0.dsl import Expression, Variable

from causal_bo_ppl.checks import FAILED, PASSED, Check, judge
from causal_bo_ppl.errors import DomainError, ModelError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.finite_field import is_exact_effect, require_density
from causal_bo_ppl.identification.potentials import (
    Potential,
    Unsound,
    evaluate,
    on_places,
    union,
)
from causal_bo_ppl.identification.random_models import TRIALS, draw_trials, true_effects
from causal_bo_ppl.identification.reduction import Names
from causal_bo_ppl.identification.y0_adapter import all_names, to_text
from causal_bo_ppl.problem import validation

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
        raise ModelError(f"an estimand is a y0 expression, got {estimand!r}")
    graph.require(all_names(estimand))
    if any(type(one) is not Variable or one.star is not None for one in estimand.get_variables()):
        raise ModelError(
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
    places = {name: place for place, name in enumerate(graph.nodes)}
    at, inside = places[target], np.array([name in members for name in graph.nodes])
    truth = true_effects(trials, at, inside[None])
    potential = evaluate(estimand, trials.moments, places)
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
    around = [places[name] for name in graph.require([target, *members])]
    return errors, discrepancy(potential, truth.potential(0, around, at))


def _of_target(
    potential: Potential, target: int, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coefficients of all variables for the target, its precision and information."""
    spread = on_places(potential, tuple(range(size)))
    own = spread.precision[:, target, target]
    return -spread.precision[:, target] / own[:, None], own, spread.information[:, target]


def discrepancy(found: Potential, truth: Potential) -> float:
    """Return the largest relative difference of two potentials over all trials.

    It is infinite where `found` is not finite. Equal potentials are equal densities: slopes,
    intercept, variance, normalization, and no dependence on any other variable.
    """
    places = union([found.places, truth.places])
    pairs = zip(on_places(found, places)[1:], on_places(truth, places)[1:], strict=True)
    return max(_error(one, other, 1.0) for one, other in pairs)


def _error(found: np.ndarray, truth: np.ndarray, least: float = 0.0) -> float:
    """Return the largest difference relative to the size of the truth, or to `least` if larger."""
    if not np.isfinite(found).all():
        return float(np.inf)
    size = np.max(np.abs(truth), initial=least)
    return float(np.max(np.abs(found - truth), initial=0.0) / (size if size > 0 else 1.0))
