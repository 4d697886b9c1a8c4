"""Logs of observations that no study has read.

Internals: a study would check them.
"""

from causal_bo_ppl.data.observations import Observations
from causal_bo_ppl.problem import Queries


def recorded(problem, interventions, outcomes, **columns):
    """Return observations of some interventions; other columns as of `Observations.of`."""
    is_read = isinstance(interventions, Queries)
    queries = interventions if is_read else problem.queries(interventions)
    return Observations.of(
        problem.graph.nodes, problem.target, queries, outcome=outcomes, **columns
    )
