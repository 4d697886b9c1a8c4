"""Which prior and parameters does a task ask for, and which effects do the parameters determine?

Parameters of linear mechanisms are coefficients, total effects, or values of estimands.
"""

import warnings
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Outcomes
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    ExplorationError,
    MechanismError,
    listed,
)
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Coordinate, Parameters, identify
from causal_bo_ppl.identification.parameters import Explored, collect, reduce_effect
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, LinearPrior, ScaledPrior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows

Set = tuple[str, ...]
MOST_STANDARD_ERRORS = 5.0  # of a mean from 0: the mean of centred data is 0 but for rounding


def read_prior(task: Task, *kinds: type[LinearPrior]) -> Any:
    """Return a copy of the prior of a task, by default one that is scaled to the data.

    kinds: the classes of priors that the method of inference takes.
    """
    prior = ScaledPrior() if task.prior is None else deepcopy(task.prior)
    if not isinstance(prior, kinds):
        names = " or a ".join(kind.__name__ for kind in kinds)
        raise MechanismError(f"prior must be a {names} for this method, got {prior!r}")
    if isinstance(prior, FixedPrior):
        prior.require_fit(task.problem.graph, task.problem.known)
    return prior


def read_parameters(task: Task, default: str) -> Parameters:
    """Return the coordinates of theta that a task asks for, of the sets that can be learned."""
    kind = default if task.parameters is None else task.parameters
    identifications = identify(task.problem, linear=task.linear)
    parameters = identifications.parameters(kind, intercepts=task.intercepts)
    if not parameters.names:
        raise MechanismError(
            "every coefficient that matters is known: there is nothing left to learn"
        )
    if not task.intercepts:
        _warn_unless_centred(task.data, task.problem)
    return parameters


def _warn_unless_centred(data: Data, problem: Problem) -> None:
    values = data.values[data.is_observational]
    if len(values) < 2:
        return
    error = np.maximum(values.std(axis=0, ddof=1), np.finfo(float).tiny) / np.sqrt(len(values))
    is_centred = np.abs(values.mean(axis=0)) <= MOST_STANDARD_ERRORS * error
    names = [*problem.graph.ancestors(problem.target), problem.target]
    far = [name for name in names if not is_centred[data.nodes.index(name)]]
    if far:
        warnings.warn(
            f"intercepts=False takes the means as 0, but those of {listed(far, most=5)} are not: "
            "centre the data, or use intercepts=True",
            CausalBOWarning,
            stacklevel=5,
        )


def open_variables(parameters: Parameters) -> set[str]:
    """Return the variables that some set leaves free on the way to the target."""
    return {name for reduction in parameters.explored.reductions for name in reduction.open}


def needed_equations(parameters: Parameters, graph: CausalGraph) -> np.ndarray:
    """Return whether some effect depends on each variable's equation, or on one of its district.

    graph: the target's ancestral graph, with p variables; the result has the shape (p,).
    """
    districts = map(graph.district, open_variables(parameters))
    return np.isin(graph.nodes, [name for district in districts for name in district])


def require_learned(parameters: Parameters, nodes: tuple[str, ...], outcomes: Outcomes) -> None:
    """Refuse outcomes that depend on an equation which no set of the problem uses."""
    graph, target, learned = *parameters.explored[:2], open_variables(parameters)
    for row in np.unique(np.asarray(outcomes.queries.mask), axis=0):
        members = [name for name, is_set in zip(nodes, row, strict=True) if is_set]
        opened = reduce_effect(graph, target, members).open
        missing = [name for name in opened if name not in learned]
        if missing:
            what = f"do({', '.join(members)})" if members else "doing nothing"
            raise DataError(
                f"an outcome of {what} depends on the equation of {missing[0]!r}, which no set of "
                "the problem needs; add that set to the problem, or give the complete observation "
                "as data"
            )


@lru_cache(maxsize=4096)  # every posterior of a problem asks for the same sets
def _coordinates(
    graph: CausalGraph,
    target: str,
    members: Set,
    known: tuple[tuple[tuple[str, str], float], ...],
    kind: str,
    intercepts: bool,
) -> tuple[Coordinate, ...]:
    """Return the coordinates of theta that one set uses."""
    reduction = reduce_effect(graph, target, members)
    explored = Explored(graph, target, (members,), (reduction,), dict(known))
    return collect(explored, kind, intercepts=intercepts).coordinates


@dataclass(frozen=True, eq=False)
class LinearParameters:
    """The part of a response map that depends on its parameters alone; see `base.ResponseMap`."""

    problem: Problem
    parameters: Parameters
    _used: dict[Set, tuple[Coordinate, ...]] = field(default_factory=dict, repr=False)

    is_affine = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.parameters.names

    @property
    def sets(self) -> tuple[Set, ...]:
        """Sets whose effects the parameters determine."""
        return self.parameters.explored.sets

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every parameter: cause, effect, set variables, how many sets use it."""
        return self.parameters.to_frame()

    def canonical(self) -> str:
        """Return the kind of parameters, and whether there are intercepts."""
        return f"{self.parameters.kind}|{self.parameters.intercepts}"

    def attributes(self) -> dict[str, str]:
        """Return what a file must record for the coordinates to be known again."""
        intercepts = "yes" if self.parameters.intercepts else "no"
        return {"parameters": self.parameters.kind, "intercepts": intercepts}

    @cached_property
    def graph(self) -> CausalGraph:
        """The target's ancestral graph."""
        return self.problem.graph.ancestral(self.problem.target)

    @property
    def nodes(self) -> Set:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

    @cached_property
    def columns(self) -> list[int]:
        """Positions of these nodes among the variables of the problem's graph."""
        return [self.problem.graph.index(name) for name in self.nodes]

    def cover(self, queries: Queries) -> tuple[Queries, list[tuple[Coordinate, ...]], np.ndarray]:
        """Return the queries over `nodes`, the coordinates of each distinct set, each query's set.

        Raises ExplorationError where theta lacks a coordinate that a query needs.
        """
        mask = np.asarray(queries.mask)[:, self.columns]
        first, which = distinct_rows(mask)
        names = np.array(self.nodes)
        used = [self._require(tuple(names[row].tolist())) for row in mask[first]]
        return Queries(mask, np.asarray(queries.value)[:, self.columns]), used, which

    def _require(self, members: Set) -> tuple[Coordinate, ...]:
        """Return the coordinates that a set uses, all of which theta must hold."""
        if members not in self._used:
            graph, target, _, _, known = self.parameters.explored
            kind, intercepts = self.parameters.kind, self.parameters.intercepts
            used = _coordinates(graph, target, members, tuple(known.items()), kind, intercepts)
            missing = [each.name for each in used if each.name not in self.names]
            if missing:
                raise ExplorationError(self._fault(members, missing))
            self._used[members] = used
        return self._used[members]

    def _fault(self, members: Set, missing: list[str]) -> str:
        if not members:
            return (
                "the effect of doing nothing was not fitted: no set of this problem needs all of "
                "it; it is the target's observational mean"
            )
        if members in self.problem.sets:
            return (
                f"the effect of do({listed(members)}) is not identifiable and was left out; the "
                "sets that were learned are in post.sets"
            )
        return (
            f"the effect of do({listed(members)}) needs {listed(missing, most=6)}, which no set of "
            "this problem uses, so it was not fitted; add that set to the problem's sets"
        )
