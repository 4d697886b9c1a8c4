"""Is a formula exactly Q[C], or exactly P(Y | do(s)), in random models of the graph over a finite field?"""

from collections.abc import Collection

import numpy as np
from y0.dsl import Expression

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.expressions import all_names
from causal_bo_ppl.identification.potentials import Unsound, evaluate
from causal_bo_ppl.identification.reduction import Names
from causal_bo_ppl.identification.residues import (
    PRIME,
    Residue,
    Residues,
    are_equal,
    draw_residues,
    invert,
    reciprocal,
    times,
)

MODELS = 2  # each misses a wrong formula with a probability below one in a hundred thousand


def is_exact_factor(expression: Expression, graph: CausalGraph, district: Names) -> bool:
    """Does the expression equal Q[district], normalization included?"""
    models = draw_residues(graph, MODELS)
    return _is_exact(expression, graph, models, _true_factor(graph, models, district))


def is_exact_effect(expression: Expression, graph: CausalGraph, target: str, intervened: Collection[str]) -> bool:
    """Does the expression equal P(target | do(intervened)), and depend on nothing else?"""
    models = draw_residues(graph, MODELS)
    return _is_exact(expression, graph, models, _true_effect(graph, models, target, intervened))


def require_density(expression: Expression, graph: CausalGraph, target: str) -> None:
    """Refuse, with Unsound, an expression that is no density of the target in any model.

    In floating point the precision of such an expression is a rounded zero: positive, negative or
    exactly 0, depending on the processor. In the field it is 0.
    """
    found = _evaluate(expression, graph, draw_residues(graph, MODELS))
    if graph.index(target) not in found.places:
        raise Unsound("it is no density of the target")
    at = found.places.index(graph.index(target))
    if not found.precision[:, at, at].any():
        raise Unsound("it is no density of the target, whose precision is 0 in it")


def _is_exact(expression: Expression, graph: CausalGraph, models: Residues, truth: Residue) -> bool:
    if not all_names(expression) <= set(graph.nodes):
        return False
    try:
        return are_equal(_evaluate(expression, graph, models), truth)
    except Unsound:
        return False


def _evaluate(expression: Expression, graph: CausalGraph, models: Residues) -> Residue:
    return evaluate(expression, models, {name: place for place, name in enumerate(graph.nodes)})


def _true_factor(graph: CausalGraph, models: Residues, district: Names) -> Residue:
    """The density of the district's disturbances, as a potential of it and its parents."""
    places = [graph.index(name) for name in graph.require([*district, *graph.parents(district)])]
    members = [graph.index(name) for name in district]
    inverse, determinant = invert(models.noise[:, members][:, :, members])
    residual = (np.eye(len(graph.nodes), dtype=np.int64) - models.weights)[:, places][:, :, members] % PRIME
    constants = models.intercepts[:, members, None]
    pull = times(inverse, constants)
    return Residue(
        tuple(places),
        times(times(residual, inverse), residual.transpose(0, 2, 1)),
        times(residual, pull)[..., 0],
        times(constants.transpose(0, 2, 1), pull)[:, 0, 0],
        reciprocal(determinant),
        len(members),
    )


def _true_effect(graph: CausalGraph, models: Residues, target: str, intervened: Collection[str]) -> Residue:
    """N(y; intercept + slopes'x, variance), with l_i = sum over free j of W_ij l_j."""
    at, chosen = graph.index(target), [graph.index(name) for name in graph.require(intervened)]
    loads = np.zeros((MODELS, len(graph.nodes), 1), np.int64)
    loads[:, at] = 1
    slopes = loads.copy()  # of what is set; its load is 0
    for node in range(at - 1, -1, -1):
        loads[:, node] = slopes[:, node] = times(models.weights[:, None, node], loads)[:, 0]
        loads[:, node] *= node not in chosen
    variance = times(times(loads.transpose(0, 2, 1), models.noise), loads)[:, 0, 0]
    intercept = times(loads.transpose(0, 2, 1), models.intercepts[:, :, None])[:, 0, 0]
    places = sorted([at, *chosen])
    residual = -slopes[:, places]
    residual[:, places.index(at)] = 1
    scaled = residual % PRIME * reciprocal(variance)[:, None, None] % PRIME
    return Residue(
        tuple(places),
        times(scaled, residual.transpose(0, 2, 1) % PRIME),
        scaled[..., 0] * intercept[:, None] % PRIME,
        intercept * intercept % PRIME * reciprocal(variance) % PRIME,
        reciprocal(variance),
        1,
    )
