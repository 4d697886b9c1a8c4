"""The family of an analyst's own mechanisms: functions by variable, or a whole program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from causal_bo_ppl.data.learnability import require_learnable
from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.mechanisms.custom.blocks import Block
from causal_bo_ppl.mechanisms.custom.checking import Kinds, require_mechanisms
from causal_bo_ppl.mechanisms.custom.model import CustomModel
from causal_bo_ppl.mechanisms.custom.reading import read_function, read_program
from causal_bo_ppl.mechanisms.gp.family import GaussianProcesses, read_choices
from causal_bo_ppl.mechanisms.gp.priors import GPPrior
from causal_bo_ppl.mechanisms.gp.regressions import needed_variables
from causal_bo_ppl.mechanisms.interfaces import Task
from causal_bo_ppl.problem import Problem

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class CustomMechanisms:
    """Mechanisms that an analyst wrote as NumPyro functions; see `interfaces.Mechanisms`.

    Parameters
    ----------
    functions:
        {variable: function of its causes}.
    others:
        How the other variables depend on their causes; linear where it does not say.
    program:
        A program with a site for every variable, in place of functions.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    others: GaussianProcesses = field(default_factory=lambda: GaussianProcesses({}, "linear"))
    program: Function | None = None

    name = "custom"

    def bind(self, task: Task) -> CustomModel:
        """Return the model of a problem with its prior and rows."""
        _require_options(task)
        problem = task.problem
        graph = problem.graph.ancestral(problem.target)
        if graph.bidirected:
            one, other = graph.bidirected[0]
            raise ModelError(
                f"a latent cause joins {one!r} and {other!r}, upstream of the target, so that "
                "mechanisms fitted to the rows would be biased; mechanisms of one's own need "
                'graphs without such arcs, mechanisms="linear" takes method="wishart" or "nuts"'
            )
        prior = GPPrior() if task.prior is None else task.prior
        if not isinstance(prior, GPPrior):
            raise ModelError(
                f"functions have priors of their own, and linear or bent mechanisms beside them "
                f"take a cb.GPPrior; got {prior!r}"
            )
        for name in (*self.functions, *self.others.variables):
            if name not in problem.graph.nodes:
                raise ModelError(unknown("variable", name, problem.graph.nodes))
        needed = needed_variables(graph, problem.target, problem.sets)
        blocks = self._blocks(problem, needed)
        own = {name for block in blocks for name in block.variables}
        kinds = _check(task, blocks)
        ours = [name for name in needed if name not in own]
        if ours and not set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
            require_learnable(task.data, problem.graph, problem.known, nodes=ours, spare=3)
        if not ours and not sum(block.size for block in blocks):
            raise ModelError("these mechanisms have no parameters, so that nothing can be learned")
        choices = {name: self.others.choice(name) for name in graph.nodes}
        return CustomModel(blocks, choices, kinds, replace(task, prior=prior))

    def _blocks(self, problem: Problem, needed: tuple[str, ...]) -> tuple[Block, ...]:
        """Return the analyst's mechanisms that effects depend on; all are read."""
        whole = problem.graph
        if self.program is not None:
            if problem.known:
                raise ModelError(_known_edge(*next(iter(problem.known))))
            return (read_program(self.program, whole.nodes, needed),)
        for cause, name in problem.known:
            if name in self.functions:
                raise ModelError(_known_edge(cause, name))
        found = {
            name: read_function(function, name, whole.parents(name), whole.nodes)
            for name, function in self.functions.items()
        }
        return tuple(found[name] for name in needed if name in found)

    def default_method(self, problem: Problem) -> str:
        """Return the method of inference that is taken where none is named."""
        return "laplace"

    def proper_prior(self, problem: Problem) -> GPPrior:
        """Return a prior of all that functions leave open, which no rows decide."""
        return GaussianProcesses().proper_prior(problem)


def read_functions(given: Mapping[Any, Any]) -> CustomMechanisms:
    """Return the family of a dictionary by variable that holds functions."""
    functions = {name: each for name, each in given.items() if callable(each)}
    rest = {name: each for name, each in given.items() if name not in functions}
    for name, each in functions.items():
        if isinstance(each, type):
            raise ModelError(
                f"the mechanism of {name!r} must be a function of its causes, got the class "
                f"{each.__name__}"
            )
    return CustomMechanisms(functions, read_choices(rest))


def _check(task: Task, blocks: tuple[Block, ...]) -> Kinds:
    """Refuse mechanisms that cannot be learned; return what all variables are."""
    values, free, graph = task.data.values, ~task.data.intervened, task.problem.graph
    parents = {name: graph.parents(name) for name in graph.nodes}
    target, exact, is_drawn = task.problem.target, list[str](), False
    for block in blocks:
        kinds = require_mechanisms(block, graph.nodes, values, free, parents, target)
        exact += kinds.exact
        is_drawn = is_drawn or kinds.is_drawn
    return Kinds(tuple(exact), is_drawn)


def _known_edge(cause: str, name: str) -> str:
    return (
        f"the coefficient of {cause!r} in {name!r} is known to the problem, but the mechanism of "
        f"{name!r} is a function of its own; put the number into the function, and take it out of "
        "`known`"
    )


def _require_options(task: Task) -> None:
    if task.parameters is not None:
        raise ModelError(
            f"parameters={task.parameters!r} is for linear mechanisms; theta of one's own "
            "mechanisms are their parameters"
        )
    if not task.intercepts:
        raise ModelError("intercepts=False is for linear mechanisms; these have levels")
    if task.linear:
        raise ModelError("linear=True is for linear mechanisms; these are not linear")
