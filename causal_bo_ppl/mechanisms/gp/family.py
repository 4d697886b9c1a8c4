"""The family of mechanisms that bend: which variable depends how on its causes?"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError, listed, unknown
from causal_bo_ppl.graph import Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans, plan_sampling
from causal_bo_ppl.mechanisms.gp.model import GPModel
from causal_bo_ppl.mechanisms.gp.priors import GP, GPPrior
from causal_bo_ppl.mechanisms.gp.recording import recorded_names
from causal_bo_ppl.mechanisms.gp.regressions import require_rows
from causal_bo_ppl.mechanisms.interfaces import Task
from causal_bo_ppl.problem import Problem

REACH = (-2.5, 2.5)  # range of the data under a prior that no rows decide


@dataclass(frozen=True)
class GaussianProcesses:
    """The family V = g(causes) + e of a trend plus Gaussian processes; see `interfaces.Mechanisms`.

    Parameters
    ----------
    variables:
        {variable: `cb.GP(...)`, "gp" or "linear"}.
    others:
        The same for variables that are not named.
    """

    variables: Mapping[str, GP | str] = field(default_factory=dict)
    others: GP | str = "gp"

    name = "gp"

    def choice(self, variable: str) -> GP | None:
        """Return how a variable depends on its causes; None for a linear mechanism."""
        chosen = self.variables.get(variable, self.others)
        return GP() if chosen == "gp" else chosen if isinstance(chosen, GP) else None

    def bind(self, task: Task) -> "GPModel":
        """Return the model of a problem with its prior and rows."""
        _require_options(task)
        plans = find_plans(task.problem)
        prior = GPPrior() if task.prior is None else task.prior
        if not isinstance(prior, GPPrior):
            raise ModelError(f"mechanisms that bend take a cb.GPPrior, got {prior!r}")
        _require_names(self, prior, task.problem, plans)
        require_rows(task.problem, plans, task.data, prior)
        graph = task.problem.graph.ancestral(task.problem.target)
        choices = {name: self.choice(name) for name in graph.nodes}
        return GPModel(choices, replace(task, prior=prior), plans=plans)

    def takes_experiments(self, problem: Problem) -> bool:
        """Return whether whole rows of every set of a problem say what their outcomes say.

        They do not where latent causes join the target to what is set: then the distribution of the
        target given its regressors is another one in the experiment than in rows of no experiment.
        """
        plans = find_plans(problem)
        return plans is None or all(plans.is_invariant(plans.target, each) for each in plans.sets)

    def proper_prior(self, problem: Problem) -> GPPrior:
        """Return a prior that no rows decide: all variables vary around 0 by about 1."""
        nodes = problem.graph.nodes
        around = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 1.0)
        return GPPrior(centres=around[0], scales=around[1], ranges=dict.fromkeys(nodes, REACH))

    def recorded(
        self, problem: Problem, attributes: Mapping[str, object]
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the names of theta and the equations learned, as a file's attributes say."""
        return recorded_names(problem, attributes)


def find_plans(problem: Problem) -> SamplingPlans | None:
    """Return regressions and plans where latent causes join causes of the target, else None."""
    is_joined = problem.graph.ancestral(problem.target).bidirected
    return plan_sampling(problem) if is_joined else None


def read_choices(given: Mapping[Any, Any]) -> GaussianProcesses:
    """Return the family of a dictionary by variable; variables not named are linear."""
    for name, choice in given.items():
        if not isinstance(choice, GP) and choice not in ("gp", "linear"):
            raise ModelError(
                f'the mechanism of {name!r} must be "linear", "gp" or cb.GP(...), got {choice!r}'
            )
    return GaussianProcesses(dict(given), "linear")


def _require_names(
    family: GaussianProcesses, prior: GPPrior, problem: Problem, plans: SamplingPlans | None
) -> None:
    """Refuse names that are no variables of the graph, and groups of other than causes."""
    graph = problem.graph

    def causes(name: str) -> Names:
        return graph.parents(name) if plans is None else plans.given.get(name, ())

    for name in (*family.variables, *prior.scales, *prior.centres, *prior.ranges):
        if name not in graph.nodes:
            raise ModelError(unknown("variable", name, graph.nodes))
    for name, choice in family.variables.items():
        learned = [cause for cause in causes(name) if (cause, name) not in problem.known]
        if choice != "linear" and not learned:
            why = "has only causes with known coefficients" if causes(name) else "has none"
            raise ModelError(
                f"the mechanism of {name!r} cannot bend in its causes: it {why}; leave {name!r} "
                'out of `mechanisms`, or say "linear"'
            )
        groups = choice.groups if isinstance(choice, GP) else ()
        for each in (member for group in groups for member in group):
            if each not in causes(name):
                raise ModelError(
                    f"{each!r} is in a group of {name!r} but is none of its causes "
                    f"({listed(causes(name)) or 'it has none'})"
                )


def _require_options(task: Task) -> None:
    if task.parameters is not None:
        raise ModelError(
            f"parameters={task.parameters!r} is for linear mechanisms; theta of mechanisms that "
            "bend are their coefficients and log sds"
        )
    if not task.intercepts:
        raise ModelError("intercepts=False is for linear mechanisms; these have levels")
    if task.linear:
        raise ModelError("linear=True is for linear mechanisms; these are not linear")
