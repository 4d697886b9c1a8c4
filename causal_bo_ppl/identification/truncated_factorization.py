"""Effects whose factors are regressions on direct causes: their formula, checked for all sets.

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
from y0.dsl import Expression, Probability, Product, Sum

from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.evaluation import Potential
from causal_bo_ppl.identification.verification import (
    Effects,
    Trials,
    discrepancy,
    mark,
    true_effects,
)
from causal_bo_ppl.identification.y0_adapter import factors_of, variable

NUMBERS = 2**24  # loads that are held at once


class Regression(NamedTuple):
    """P(v | parents of v) in t trials: coefficients (t, k), intercept (t,) and variance (t,).

    `error` is the largest relative difference between the factor and the density that these give.
    """

    expression: Expression
    at: int
    parents: tuple[int, ...]
    coefficients: np.ndarray
    intercept: np.ndarray
    variance: np.ndarray
    error: float


def read_regression(
    graph: CausalGraph, name: str, expression: Expression, potential: Potential
) -> Regression | None:
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
    at, places = graph.index(name), potential.places
    here = places.index(at)
    own = potential.precision[:, here, here]
    row = -potential.precision[:, here] / own[:, None]
    intercept, variance = potential.information[:, here] / own, 1 / own
    density = Effects(row[:, None], intercept[:, None], variance[:, None])
    rebuilt = density.potential(0, range(len(places)), here)._replace(places=places)
    return Regression(
        expression,
        at,
        places[:here],
        row[:, :here],
        intercept,
        variance,
        discrepancy(potential, rebuilt),
    )


def write_all(
    target: str, opened: Iterable[Names], regressions: Mapping[str, Regression]
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
    regressions: Mapping[str, Regression],
    trials: Trials,
) -> Iterator[float]:
    """Yield, for every set, the largest relative error of its estimand over all trials.

    What is integrated is read from the estimand itself. The error is infinite where a factor is not
    one of `regressions`, or where the sum does not run over all variables of the factors but the
    target.
    """
    at = graph.index(target)
    own = np.zeros(len(graph.nodes))
    for part in regressions.values():
        own[part.at] = part.error
    block = max(1, NUMBERS // trials.intercepts.size)
    for start in range(0, len(estimands), block):
        masks = mark(graph, members[start : start + block])
        integrated = [
            _read_variables(estimand, target, regressions)
            for estimand in estimands[start : start + block]
        ]
        present = mark(graph, [names or () for names in integrated])
        found = _integrate(regressions, present.T, at)
        whole = _differences(found, true_effects(trials, at, masks))
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
    estimand: Expression, target: str, regressions: Mapping[str, Regression]
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


def _integrate(regressions: Mapping[str, Regression], present: np.ndarray, target: int) -> Effects:
    """Return the distributions of the target that M products of regressions give.

    `present` (p, M) says whose regressions stand in each product; all but the target's variable are
    integrated. Slopes are the loads of what is left, and 0 for the target itself.
    """
    parts = sorted(regressions.values(), key=lambda part: -part.at)
    trials = len(parts[0].intercept)
    loads = np.zeros((trials, *present.shape))
    intercepts, variances = np.zeros((2, trials, present.shape[1]))
    loads[:, target] = 1.0
    for part in parts:
        load = np.where(present[part.at], loads[:, part.at], 0.0)
        intercepts += load * part.intercept[:, None]
        variances += load**2 * part.variance[:, None]
        loads[:, list(part.parents)] += part.coefficients[:, :, None] * load[:, None]
        loads[:, part.at] -= load
    return Effects(loads.transpose(0, 2, 1), intercepts, variances)
