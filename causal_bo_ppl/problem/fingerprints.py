"""When are two problems the same?

A fingerprint is a hash of all that changes an answer. Functions, of which nobody can say whether
they are equal, enter by their values at some points of every set. What a problem does not have,
levels for example, leaves no trace, so that fingerprints outlive new features.
"""

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.problem.costs import evaluate_costs
from causal_bo_ppl.problem.feasibility import evaluate_rule
from causal_bo_ppl.problem.queries import fill_points, place_points, spread

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

PROBES = np.arange(5.0)[:, None]  # times irrational numbers: points of no symmetry
PROBED = 16  # points of every set at which functions are compared, where values are restricted


def find_fingerprint(problem: "Problem") -> str:
    """Return the hash of all that changes an answer."""
    graph, region = problem.graph, problem.region
    record: dict[str, object] = {
        "edges": [graph.nodes, graph.directed, graph.bidirected],
        "goal": [problem.target, problem.objective, problem.identifiable_only],
        "domains": [[name, *bounds] for name, bounds in problem.domains.items()],
        "sets": [problem.sets_are_explicit, problem.sets],
        "known": [[*edge, value] for edge, value in problem.known.items()],
        "costs": _probe_costs(problem),
    }
    if region.levels:
        record["levels"] = [[name, *values] for name, values in region.levels.items()]
    if region.constraints:
        record["constraints"] = sorted(
            json.dumps([each.coefficients, each.lower, each.upper, each.when])
            for each in region.constraints
        )
    if problem.feasible_rule is not None:
        points = [(members, region.fill(members, PROBED)) for members in problem.sets]
        probe = place_points(graph.nodes, points)
        record["feasible"] = evaluate_rule(problem.feasible_rule, probe).tolist()
    return hashlib.sha256(json.dumps(record, allow_nan=False).encode()).hexdigest()


def _probe_costs(problem: "Problem") -> list[float] | list[str]:
    """Return the costs of some interventions on every set."""
    if not problem.is_box:  # costs need be defined for legal values only
        costs = evaluate_costs(problem.costs, fill_points(problem, problem.sets, PROBED))
        return [f"{cost:.9g}" for cost in costs.tolist()]  # mixtures of vertices are rounded
    probe = spread(
        problem.graph.nodes,
        problem.sets,
        problem.domains,
        lambda size: PROBES @ np.sqrt(np.arange(2, 2 + size))[None] % 1.0,
        len(PROBES) * len(problem.sets),
    )
    numbers: list[float] = evaluate_costs(problem.costs, probe).tolist()
    return numbers
