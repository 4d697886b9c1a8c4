"""Which mechanisms does each variable have: linear, Gaussian processes, or user-defined?

A user-defined function of the causes draws its parameters by `numpyro.sample`, which gives their
priors, and returns the mean of its variable, to which Gaussian noise with a learned sd is added, or
the distribution of its variable given the causes::

    def saturate(X):
        most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
        half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
        return most * X / (half + X)

    post = cb.fit(problem, data, mechanisms={"Z": saturate, "Y": "gp"}, method="laplace")

Causes are passed as keywords, under their names; a function whose only parameter is called `causes`
is given them as one mapping, for names that are no identifiers. Values are arrays with one number
for each of many observations, so that `jax.numpy` is needed, and no plate over observations.
Variables that are not named are linear. `mechanisms=program` takes a whole program instead, with a
site for every variable of the graph.

Theta are the unconstrained parameters, as NumPyro's samplers see them: `b[Z]` of a real parameter b
of the mechanism of Z, `log_most[Z]` of a positive one, `logit_share[Z]` of one between 0 and 1,
`free_x[Z]` of others; and `log_sd[Z]` where noise was added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.errors import ArgumentError, MechanismError, unknown
from causal_bo_ppl.identification.sampling_plans import SamplingPlans, plan_sampling
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.custom_checking import (
    read_function,
    read_program,
    require_mechanisms,
)
from causal_bo_ppl.mechanisms.custom_sites import Block
from causal_bo_ppl.mechanisms.gp_priors import (
    CONSTANT_NOISE,
    GP,
    SPARE_OBSERVATIONS,
    GPPrior,
    Linear,
    MechanismChoice,
    needed_variables,
    require_observations,
)
from causal_bo_ppl.mechanisms.noise_models import NoisyEquation, make_equation
from causal_bo_ppl.mechanisms.scm import SCM
from causal_bo_ppl.problem import Problem

UNIT_RANGE = (-2.5, 2.5)  # of the data under a prior that does not depend on them


@dataclass(frozen=True)
class GaussianProcesses:
    """The family V = g(causes) + e of a trend plus Gaussian processes; see `base.Mechanisms`.

    Parameters
    ----------
    variables:
        {variable: `cb.GP(...)`, `cb.Linear(...)`, "gp" or "linear"}.
    others:
        The same for variables that are not named.
    """

    variables: Mapping[str, GP | Linear | str] = field(default_factory=dict)
    others: GP | Linear | str = "gp"

    name = "gp"

    def choice(self, variable: str) -> MechanismChoice:
        """Return how a variable depends on its causes; None for a linear mechanism."""
        chosen = self.variables.get(variable, self.others)
        return GP() if chosen == "gp" else None if isinstance(chosen, str) else chosen

    def bind(self, task: Task) -> SCM:
        """Return the model of a problem with its prior and data."""
        require_options(task)
        plans = find_plans(task.problem)
        prior = GPPrior() if task.prior is None else task.prior
        if not isinstance(prior, GPPrior):
            raise MechanismError(f"nonlinear mechanisms take a cb.priors.GPPrior, got {prior!r}")
        _require_names(self, prior, task.problem, plans)
        require_observations(task.problem, plans, task.data, prior)
        graph = task.problem.graph.ancestral(task.problem.target)
        choices = {name: self.choice(name) for name in graph.nodes}
        return SCM(choices, replace(task, prior=prior), plans=plans)

    def takes_experiments(self, problem: Problem) -> bool:
        """Return whether whole observations of every set are as informative as their outcomes.

        They are not where latent causes join the target to variables that are set: then the
        distribution of the target given its regressors differs between experiments and data.
        """
        plans = find_plans(problem)
        return plans is None or all(plans.is_invariant(plans.target, each) for each in plans.sets)

    def proper_prior(self, problem: Problem) -> GPPrior:
        """Return a prior that does not depend on data: all variables vary around 0 by about 1."""
        nodes = problem.graph.nodes
        centres, scales = (dict.fromkeys(nodes, value) for value in (0.0, 1.0))
        return GPPrior(centres=centres, scales=scales, ranges=dict.fromkeys(nodes, UNIT_RANGE))


def find_plans(problem: Problem) -> SamplingPlans | None:
    """Return regressions and plans where latent causes join causes of the target, else None."""
    is_joined = problem.graph.ancestral(problem.target).bidirected
    return plan_sampling(problem) if is_joined else None


def read_choices(given: Mapping[Any, Any]) -> GaussianProcesses:
    """Return the family of a dictionary by variable; variables not named are linear."""
    for name, choice in given.items():
        if not isinstance(choice, GP | Linear) and choice not in ("gp", "linear"):
            raise MechanismError(
                f'the mechanism of {name!r} must be "linear", "gp", cb.Linear(...) or cb.GP(...), '
                f"got {choice!r}"
            )
    return GaussianProcesses(dict(given), "linear")


def _require_names(
    family: GaussianProcesses, prior: GPPrior, problem: Problem, plans: SamplingPlans | None
) -> None:
    """Refuse names that are not in the graph, and nonlinear mechanisms without causes to learn."""
    graph = problem.graph
    for name in (*family.variables, *prior.scales, *prior.centres, *prior.ranges):
        if name not in graph.positions:
            raise MechanismError(unknown("variable", name, graph.nodes))
    for name, choice in family.variables.items():
        causes = graph.parents(name) if plans is None else plans.given.get(name, ())
        is_nonlinear = not isinstance(choice, Linear) and choice != "linear"
        if is_nonlinear and all((cause, name) in problem.known for cause in causes):
            why = "has only causes with known coefficients" if causes else "has none"
            raise MechanismError(
                f"the mechanism of {name!r} cannot be nonlinear in its causes: it {why}; remove "
                f'{name!r} from `mechanisms`, or give "linear"'
            )


def require_options(task: Task) -> None:
    """Refuse options of linear mechanisms."""
    if task.parameters is not None:
        raise ArgumentError(
            f"parameters={task.parameters!r} is for linear mechanisms; theta of other mechanisms "
            "are all their parameters"
        )
    if task.problem.known_effects:
        raise ArgumentError(
            f"the known {', '.join(task.problem.known_effects)} is for linear mechanisms; the "
            "effects of others have no slope"
        )
    if not task.intercepts:
        raise ArgumentError("intercepts=False is for linear mechanisms; these have levels")
    if task.linear:
        raise ArgumentError("linear=True is for linear mechanisms; these are not linear")


@dataclass(frozen=True, eq=False)
class CustomMechanisms:
    """User-defined mechanisms, written as NumPyro functions; see `base.Mechanisms`.

    Parameters
    ----------
    functions:
        {variable: function of its causes}.
    others:
        How the other variables depend on their causes; by default they are linear.
    program:
        A program with a site for every variable, in place of functions.
    """

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    others: GaussianProcesses = field(default_factory=lambda: GaussianProcesses({}, "linear"))
    program: Callable[..., Any] | None = None

    name = "custom"

    def bind(self, task: Task) -> SCM:
        """Return the model of a problem with its prior and data."""
        require_options(task)
        problem = task.problem
        graph = problem.graph.ancestral(problem.target)
        if graph.bidirected:
            one, other = graph.bidirected[0]
            raise MechanismError(
                f"a latent cause joins {one!r} and {other!r}, upstream of the target, so that "
                "mechanisms fitted to the data would be biased; user-defined mechanisms need "
                'graphs without such arcs, mechanisms="linear" takes method="wishart" or "nuts"'
            )
        prior = GPPrior() if task.prior is None else task.prior
        if not isinstance(prior, GPPrior):
            raise MechanismError(
                "user-defined functions contain their priors, and other mechanisms beside them "
                f"take a cb.priors.GPPrior; got {prior!r}"
            )
        for name in (*self.functions, *self.others.variables):
            if name not in problem.graph.positions:
                raise MechanismError(unknown("variable", name, problem.graph.nodes))
        needed = needed_variables(graph, problem.target, problem.sets)
        blocks, unneeded = self._blocks(problem, needed)
        custom = {name for block in blocks for name in block.variables}
        functions = [block for block in blocks if not isinstance(block, NoisyEquation)]
        kinds = require_mechanisms(functions, problem, task.data)
        custom -= {block.variable for block in blocks if isinstance(block, NoisyEquation)}
        others, spare = [name for name in needed if name not in custom], SPARE_OBSERVATIONS
        if others and not set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
            require_learnable(task.data, problem.graph, problem.known, nodes=others, spare=spare)
        if not others and not any(block.size for block in blocks):
            raise MechanismError("these mechanisms have no parameters that can be learned")
        choices = {name: self.others.choice(name) for name in graph.nodes}
        return SCM(choices, replace(task, prior=prior), blocks, kinds, unneeded)

    def _blocks(
        self, problem: Problem, needed: tuple[str, ...]
    ) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """Return the user-defined mechanisms that effects depend on, and the others."""
        graph = problem.graph
        for cause, name in problem.known:
            if self.program is not None or name in self.functions:
                raise MechanismError(
                    f"the coefficient of {cause!r} in {name!r} is known to the problem, but the "
                    f"mechanism of {name!r} is user-defined; put the number into the function, and "
                    "remove it from `known`"
                )
        if self.program is not None:
            return (read_program(self.program, graph.nodes, needed),), ()
        blocks: dict[str, Block] = {
            name: read_function(function, name, graph.parents(name), graph.nodes)
            for name, function in self.functions.items()
        }
        upstream = graph.ancestral(problem.target).nodes
        for name in upstream:
            causes = graph.parents(name)
            joined = [cause for cause in causes if (cause, name) in problem.known]
            learned = [cause for cause in causes if cause not in joined]
            equation = make_equation(name, self.others.choice(name), learned, joined)
            if equation is not None and name not in blocks:
                blocks[name] = equation
        mine = [name for name in upstream if name in blocks]
        chosen = tuple(blocks[name] for name in mine if name in needed)
        return chosen, tuple(blocks[name] for name in mine if name not in needed)

    def proper_prior(self, problem: Problem) -> GPPrior:
        """Return a prior of other mechanisms and of added noise that does not depend on data."""
        return GaussianProcesses().proper_prior(problem)


def read_functions(given: Mapping[Any, Any]) -> CustomMechanisms:
    """Return the family of a dictionary by variable that holds functions."""
    functions = {name: each for name, each in given.items() if callable(each)}
    rest = {name: each for name, each in given.items() if name not in functions}
    for name, each in functions.items():
        if isinstance(each, type):
            raise MechanismError(
                f"the mechanism of {name!r} must be a function of its causes, got the class "
                f"{each.__name__}"
            )
    return CustomMechanisms(functions, read_choices(rest))


def with_noise_models(family: GaussianProcesses) -> GaussianProcesses | CustomMechanisms:
    """Return the family that holds mechanisms whose noise varies or has heavy tails, if any do."""
    choices = (*family.variables.values(), family.others)
    has_one_sd = all(isinstance(each, str) or each.noise == CONSTANT_NOISE for each in choices)
    return family if has_one_sd else CustomMechanisms(others=family)
