"""Which coordinates of theta does an intervention use, and does theta hold them?"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from causal_bo_ppl.errors import ExplorationError, listed
from causal_bo_ppl.identification import Coordinate, Parameters
from causal_bo_ppl.identification.parameters import Explored, collect
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import distinct_rows

Set = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Coverage:
    """The interventions whose effects follow from some parameters of a problem."""

    problem: Problem
    parameters: Parameters
    _used: dict[Set, tuple[Coordinate, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def nodes(self) -> Set:
        """The causes of the target and, last, the target."""
        return self.problem.graph.ancestral(self.problem.target).nodes

    @cached_property
    def _columns(self) -> list[int]:
        return [self.problem.graph.index(name) for name in self.nodes]

    def upstream(self, queries: Queries) -> Queries:
        """Return the queries cut to the target and its causes."""
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        return Queries(mask[:, self._columns], value[:, self._columns])

    def read(self, queries: Queries) -> tuple[Queries, list[tuple[Coordinate, ...]], np.ndarray]:
        """Return the queries upstream, the coordinates of each distinct set, and each query's set.

        Raises ExplorationError where theta lacks a coordinate that a query needs.
        """
        upstream = self.upstream(queries)
        mask = np.asarray(upstream.mask)
        first, which = distinct_rows(mask)
        names = np.array(self.nodes)
        used = [self._require(tuple(names[row].tolist())) for row in mask[first]]
        return upstream, used, which

    def _require(self, members: Set) -> tuple[Coordinate, ...]:
        """Return the coordinates that a set uses, all of which theta must hold."""
        if members not in self._used:
            graph, target, _, _, known = self.parameters.explored
            reduction = reduce_effect(graph, target, members)
            explored = Explored(graph, target, (members,), (reduction,), known)
            kind, intercepts = self.parameters.kind, self.parameters.intercepts
            used = collect(explored, kind, intercepts=intercepts).coordinates
            missing = [each.name for each in used if each.name not in self.parameters.names]
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
