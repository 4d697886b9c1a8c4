"""What is the estimand of an effect made of, and is it right as a whole?

The sum, over all free variables but the target, of the product of the factors; compared with the truth in every trial.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm
from y0.dsl import Expression

from causal_bo_ppl.errors import UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.factors import Factor
from causal_bo_ppl.identification.potentials import Potential, evaluate, on_places, union
from causal_bo_ppl.identification.random_models import Trials, true_effects
from causal_bo_ppl.identification.reduction import Names, Reduction
from causal_bo_ppl.identification.y0_adapter import arranged, joint, product, to_text, total

PATIENCE = 3.0  # seconds without a progress bar


TOLERANCE = 1e-7  # relative; right formulas are off by 1e-15 to 1e-11


class Answer(NamedTuple):
    """An estimand with its route and its largest relative error over the trials; or the hedge that forbids one."""

    estimand: Expression | None
    route: str
    hedge: tuple[Names, ...]
    trials: int
    error: float


def assemble_all(
    graph: CausalGraph,
    target: str,
    effects: Sequence[Reduction],
    factors: Mapping[Names, Factor],
    trials: Trials,
) -> list[Answer]:
    """The verified estimand of every effect, or its hedge; raises UnverifiedEstimand where one is not right."""
    members = [set(reduction.effective) for reduction in effects]
    masks = np.array([[name in chosen for name in graph.nodes] for chosen in members])
    truth, at = true_effects(trials, graph.index(target), masks), graph.index(target)
    answers = []
    shown = tqdm(effects, desc="verifying", unit="effect", delay=PATIENCE, leave=False)
    for place, reduction in enumerate(shown):
        needed = [factors[district] for district in reduction.districts if reduction.effective]
        hedge = next((factor.hedge for factor in needed if factor.hedge), ())
        if hedge:
            answers.append(Answer(None, "none", hedge, 0, np.nan))
            continue
        places = [graph.index(name) for name in graph.require([target, *reduction.effective])]
        estimand = _assemble(graph, target, reduction, needed)
        error = _error(graph, estimand, needed, trials, truth.potential(place, places, at))
        if not error <= TOLERANCE:
            raise UnverifiedEstimand(
                f"the estimand of P({target} | do({listed(reduction.effective)})) misses the truth of a random model "
                f"by {error:.1e}: {to_text(estimand)}"
            )
        route = "rederived" if any(factor.route == "rederived" for factor in needed) else "y0"
        answers.append(Answer(estimand, route, (), len(trials.weights), error))
    return answers


def _assemble(
    graph: CausalGraph, target: str, reduction: Reduction, factors: Sequence[Factor]
) -> Expression:
    """The product of the factors summed over all free variables but the target; P(target) where nothing is set."""
    if not reduction.effective:
        return joint([target])
    whole = product(factor.expression for factor in factors)
    return arranged(total(whole, set(reduction.open) - {target}), graph)


def _error(
    graph: CausalGraph,
    estimand: Expression,
    factors: Sequence[Factor],
    trials: Trials,
    truth: Potential,
) -> float:
    memo = {part: potential for factor in factors for part, potential in factor.potentials.items()}
    places = {name: place for place, name in enumerate(graph.nodes)}
    return discrepancy(evaluate(estimand, trials.moments, places, memo), truth)


def discrepancy(found: Potential, truth: Potential) -> float:
    """Largest relative difference of two potentials, over all trials; infinite where one is not finite.

    Equal potentials are equal densities: slopes, intercept, variance, normalization, and no dependence
    on any other variable.
    """
    places = union([found.places, truth.places])
    pairs = zip(on_places(found, places)[1:], on_places(truth, places)[1:], strict=True)
    return max(_difference(one, other) for one, other in pairs)


def _difference(found: np.ndarray, truth: np.ndarray) -> float:
    if not np.isfinite(found).all():
        return float(np.inf)
    return float(
        np.max(np.abs(found - truth), initial=0.0) / max(1.0, np.max(np.abs(truth), initial=0.0))
    )
