"""What does a task ask of linear mechanisms: which prior, which parameters, which equations?"""

import warnings
from copy import deepcopy
from functools import lru_cache

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Outcomes
from causal_bo_ppl.errors import CausalBOWarning, DataError, ModelError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Identifications, Parameters, identify
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.mechanisms.interfaces import Task
from causal_bo_ppl.mechanisms.linear.effect_response import EffectResponse
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.structural_response import StructuralResponse
from causal_bo_ppl.problem import Problem

FAR = 5.0  # standard errors of a mean from 0: centred rows are 0 apart from rounding


def read_prior(task: Task) -> ScaledPrior | FixedPrior | MomentPrior:
    """Return a copy of the prior of a task, by default one that is scaled to the data."""
    prior = task.prior
    if prior is not None and not isinstance(prior, ScaledPrior | FixedPrior | MomentPrior):
        raise ModelError(
            f"prior must be a ScaledPrior, a FixedPrior or a MomentPrior, got {prior!r}"
        )
    if isinstance(prior, FixedPrior):
        prior.require_names(task.problem.graph)
    return deepcopy(prior) or ScaledPrior()


def read_parameters(task: Task, default: str) -> Parameters:
    """Return the coordinates of theta that a task asks for, of the sets that can be learned."""
    found = identified(task.problem, task.linear)
    kind = default if task.parameters is None else task.parameters
    parameters = found.parameters(kind, intercepts=task.intercepts)
    if not parameters.names:
        raise ModelError("every coefficient that matters is known: there is nothing left to learn")
    if not task.intercepts:
        _warn_unless_centred(task.data, task.problem)
    return parameters


def _warn_unless_centred(data: Data, problem: Problem) -> None:
    values = data.values[data.is_observational]
    if len(values) < 2:
        return
    error = np.maximum(values.std(axis=0, ddof=1), np.finfo(float).tiny) / np.sqrt(len(values))
    names = [*problem.graph.ancestors(problem.target), problem.target]
    columns = [data.nodes.index(name) for name in names]
    centred = np.abs(values.mean(axis=0)) <= FAR * error
    far = [name for name, at in zip(names, columns, strict=True) if not centred[at]]
    if far:
        warnings.warn(
            f"intercepts=False takes the means as 0, but those of {listed(far, most=5)} are not: "
            "centre the rows, or leave intercepts in",
            CausalBOWarning,
            stacklevel=5,
        )


def identified(problem: Problem, linear: bool) -> Identifications:
    """Identify every set of a problem; computed once, however often it is fitted or read.

    With `linear`, sets whose effects only linear mechanisms identify are usable too.
    """
    found = _identified(problem)
    if not linear:
        return found
    kept = {"identifiable_only": found.identifiable_only, "linear": True}
    return Identifications(found.graph, found.target, found.values(), **kept)


@lru_cache(maxsize=16)
def _identified(problem: Problem) -> Identifications:
    return identify(problem)


def needed_equations(parameters: Parameters, graph: CausalGraph) -> np.ndarray:
    """Return whether some effect depends on each variable's equation, or on one of its district.

    graph: the target's ancestral graph, with p variables; the result has the shape (p,).
    """
    opened = {name for reduction in parameters.explored.reductions for name in reduction.open}
    return np.isin(graph.nodes, [name for each in opened for name in graph.district(each)])


LinearResponse = StructuralResponse | EffectResponse


def make_response(problem: Problem, parameters: Parameters) -> LinearResponse:
    """Return the map from parameters of any kind to effects."""

    def needs_linearity() -> bool:
        found = _identified(problem)
        return not all(found[members].identifiable for members in parameters.explored.sets)

    kind = StructuralResponse if parameters.kind == "structural" else EffectResponse
    return kind(problem, parameters, needs_linearity)


def require_learned(parameters: Parameters, nodes: tuple[str, ...], outcomes: Outcomes) -> None:
    """Refuse outcomes that depend on an equation which no set of the problem uses."""
    graph, target, _, reductions, _ = parameters.explored
    learned = {name for reduction in reductions for name in reduction.open}
    for row in np.unique(np.asarray(outcomes.queries.mask), axis=0):
        members = [name for name, is_set in zip(nodes, row, strict=True) if is_set]
        opened = reduce_effect(graph, target, members).open
        missing = [name for name in opened if name not in learned]
        if missing:
            what = f"do({', '.join(members)})" if members else "doing nothing"
            raise DataError(
                f"an outcome of {what} depends on the equation of {missing[0]!r}, which no set of "
                "the problem needs; add that set to the problem, or give the whole row as data"
            )
