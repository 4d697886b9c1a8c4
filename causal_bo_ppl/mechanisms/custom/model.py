"""How do user-defined functions, priors and data define a posterior?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import block_diag

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.data.outcomes import Outcomes, no_outcomes
from causal_bo_ppl.errors import MechanismError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.custom.checking import (
    Kinds,
    read_function,
    read_program,
    require_formulas,
    require_mechanisms,
)
from causal_bo_ppl.mechanisms.custom.density import (
    BlockMode,
    CustomDensity,
    PaddedObservations,
    compiled_likelihood,
    find_block_mode,
    prior_draws,
)
from causal_bo_ppl.mechanisms.custom.propagation import Part, PathStep, Typical, split_parts
from causal_bo_ppl.mechanisms.custom.response_map import (
    CustomResponse,
    log_densities_of_many,
    means_of_each,
    means_of_many,
    samples_of_many,
)
from causal_bo_ppl.mechanisms.custom.sites import Block, FunctionBlock, Noise
from causal_bo_ppl.mechanisms.gp.binding import BoundEquation, bind_equation, bound_modes
from causal_bo_ppl.mechanisms.gp.density import (
    AffineChart,
    GPDensity,
    TargetOutcomes,
    thetas_of_many,
)
from causal_bo_ppl.mechanisms.gp.evidence import Mode
from causal_bo_ppl.mechanisms.gp.model import (
    MOMENT_DRAWS,
    GaussianProcesses,
    draw_equation,
    mixture_moments,
    read_choices,
    require_options,
    whitened_names,
)
from causal_bo_ppl.mechanisms.gp.priors import (
    GP,
    SPARE_OBSERVATIONS,
    GPPrior,
    needed_variables,
    read_spread,
)
from causal_bo_ppl.mechanisms.gp.propagation import (
    Equation,
    log_outcomes_of_many,
    normal_points,
    variances_at,
)
from causal_bo_ppl.problem import Problem, Queries

NOISE_FLOOR = 1e-4  # constant sd of added noise, in sds of the variable
FEWEST_PADDED_OBSERVATIONS = 16  # that programs are compiled for


@dataclass(frozen=True, eq=False)
class CustomModel:
    """Mechanisms of the target's ancestral graph with their data; see `base.Model`.

    blocks: the user-defined ones, in causal order. choices: how every other variable depends on its
    causes; None for a linear mechanism. kinds: which variables have no noise, and whether the mean
    of the target's distribution is available.
    """

    blocks: tuple[Block, ...]
    choices: Mapping[str, GP | None]
    kinds: Kinds
    task: Task

    @property
    def data(self) -> Data:
        """The observations it learns from."""
        return self.task.data

    @property
    def prior(self) -> GPPrior:
        """The prior of linear and Gaussian-process mechanisms, and of added noise."""
        prior: GPPrior = self.task.prior
        return prior

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.task.problem.graph.ancestral(self.task.problem.target)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """The variables that effects depend on, in causal order."""
        return needed_variables(self.graph, self.task.problem.target, self.task.problem.sets)

    @cached_property
    def outcomes(self) -> Outcomes:
        """The outcomes of the target alone, over the model's variables."""
        columns = [self.task.problem.graph.index(name) for name in self.nodes]
        return self.task.outcomes.columns(columns)

    @cached_property
    def _columns(self) -> list[int]:
        return [self.data.nodes.index(name) for name in self.nodes]

    @cached_property
    def bound(self) -> tuple[BoundEquation, ...]:
        """The linear and Gaussian-process equations, in causal order."""
        custom = {name for block in self.blocks for name in block.variables}
        free = dict(zip(self.nodes, ~self.data.intervened[:, self._columns].T, strict=True))
        graph, others = self.graph, [name for name in self.needed if name not in custom]
        return tuple(
            bind_equation(
                self.task, graph, self.choices[name], name, graph.parents(name), free[name]
            )
            for name in others
        )

    @cached_property
    def _layout(self) -> tuple[tuple[Part, ...], tuple[Any, ...], tuple[PathStep, ...]]:
        """The parts in causal order, their settings, and the steps to the target."""
        owners: dict[str, tuple[Part, Any]] = {
            self.nodes[each.equation.position]: each[:2] for each in self.bound
        }
        for block in self.blocks:
            owners |= dict.fromkeys(block.variables, (block, self._noise(block)))
        settings = dict(owners[name] for name in self.needed)
        parts = tuple(settings)
        steps = [
            PathStep(self.graph.index(name), parts.index(owners[name][0])) for name in self.needed
        ]
        return parts, tuple(settings.values()), tuple(steps)

    def _noise(self, block: Block) -> Noise:
        """Return the prior of the noise that is added to a mean."""
        if not isinstance(block, FunctionBlock) or not block.adds_noise:
            return Noise(*np.zeros(3))
        position = self.data.nodes.index(block.variable)
        free = ~self.data.intervened[:, position]
        scale = read_spread(self.prior, block.variable, self.data.values[free, position]).scale
        share = self.prior.noise if block.causes else 1.0
        centre, floor = np.log(share * scale), NOISE_FLOOR * scale
        return Noise(*map(np.asarray, (centre, self.prior.noise_spread, floor)))

    @cached_property
    def typical(self) -> Typical:
        """Mean and sd of the observations of every variable; 0 and 1 where there are none."""
        values = self.data.values[:, self._columns]
        if not len(values):
            return Typical(np.zeros(len(self.nodes)), np.ones(len(self.nodes)))
        return Typical(values.mean(axis=0), values.std(axis=0))

    @cached_property
    def observations(self) -> PaddedObservations:
        """All observations, padded to a power of two, so that few programs are compiled."""
        values, free = self.data.values[:, self._columns], ~self.data.intervened[:, self._columns]
        size = max(FEWEST_PADDED_OBSERVATIONS, 1 << max(len(values) - 1, 0).bit_length())
        padding = ((0, size - len(values)), (0, 0))
        usual = np.asarray(self.typical.centre)
        if len(values):
            usual = values[free.argmax(axis=0), np.arange(len(usual))]
        filled = np.where(free, values, usual)
        padded = np.pad(values, padding, mode="edge") if len(values) else np.tile(usual, (size, 1))
        filled = np.concatenate([filled, np.tile(usual, (size - len(values), 1))])
        return PaddedObservations(padded, filled, np.pad(free, padding))

    @cached_property
    def learned(self) -> np.ndarray:
        """Whether each variable's density is learned, (p,); not of one without noise."""
        wanted = set(self.needed) - set(self.kinds.exact)
        return np.array([name in wanted for name in self.nodes])

    @cached_property
    def response(self) -> CustomResponse:
        """The map from parameters to effects."""
        parts, settings, steps = self._layout
        values = self.data.values[:, self._columns]
        ends = np.zeros((2, len(self.nodes)))
        if len(values):
            ends = np.stack([values.min(axis=0), values.max(axis=0)])
        fixed = self.typical, ends, self.kinds.is_drawn
        return CustomResponse(self.task.problem, parts, settings, steps, *fixed)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The hyperparameters of all equations at the mode of their evidence."""
        return bound_modes(self.bound)

    @property
    def _custom(self) -> list[tuple[Block, Noise]]:
        """The user-defined blocks with their settings, in causal order."""
        pairs = zip(*self._layout[:2], strict=True)
        return [(part, setting) for part, setting in pairs if not isinstance(part, Equation)]

    @cached_property
    def block_modes(self) -> tuple[BlockMode, ...]:
        """The modes of the user-defined blocks; refuses one that has no density anywhere."""
        modes = []
        for block, setting in self._custom:
            mode = find_block_mode(block, self.nodes, setting, self.typical, self.observations)
            if mode is None:
                raise MechanismError(self._explain_block(block, setting))
            modes.append(mode)
        return tuple(modes)

    @cached_property
    def density(self) -> CustomDensity:
        """Prior and likelihood; new observations change its arrays only."""
        charts = tuple(AffineChart(mode.eta, mode.root) for mode in self.modes)
        known = tuple(each.known for each in self.bound)
        none = TargetOutcomes(*no_outcomes(len(self.nodes)).padded())
        program, equations = self.response.program, tuple(each.equation for each in self.bound)
        gp = GPDensity(known, charts, program, none, equations)
        size = len(whitened_names(self.nodes, equations, charts))
        blocks = tuple(AffineChart(mode.centre, mode.root) for mode in self.block_modes)
        outcomes = TargetOutcomes(*self.outcomes.padded())
        return CustomDensity(gp, blocks, self.observations, outcomes, program, size)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates of psi."""
        names = whitened_names(self.nodes, self.density.gp.equations, self.density.gp.charts)
        return (*names, *(label for block, _ in self._custom for label, _, _ in block.labels))

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi, as it is where all mechanisms are user-defined."""
        return not self.bound

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of its covariance there, and the Newton decrement.

        None with outcomes of the target alone, and where a block has no proper mode.
        """
        size = len(self.coordinates)
        decrements = [*(m.decrement for m in self.modes), *(m.decrement for m in self.block_modes)]
        if len(self.outcomes.values) or not np.isfinite(decrements).all():
            return None
        return np.zeros(size), np.eye(size), max(decrements)

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (d,) and a factor (d, r) of the covariance of theta, for psi Gaussian.

        Coefficients of Gaussian-process mechanisms are averaged over their hyperparameters.
        """
        gp, blocks = self.density.gp, iter(self.density.charts)
        if not self.theta_is_linear and self.mode() is None:
            theta = self.draws(mode + normal_points(MOMENT_DRAWS, len(mode)) @ factor.T)
            return theta.mean(axis=0), factor_draws(theta)
        equations = iter(zip(gp.equations, gp.known, gp.charts, strict=True))
        pairs = [
            mixture_moments(*next(equations)) if isinstance(part, Equation) else next(blocks)
            for part in self._layout[0]
        ]
        means, roots = zip(*pairs, strict=True)
        centre, root = np.concatenate(means), block_diag(*roots)
        return (centre + root @ mode, root @ factor) if self.theta_is_linear else (centre, root)

    def draws(self, psi: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at coordinates (n, k): the parameters of n models."""
        work = partial(thetas_of_many, self.density)
        return np.asarray(in_pieces(work, np.asarray(psi), len(psi)))

    def theta(self, draws: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models."""
        return np.asarray(draws)

    def log_densities(self, draws: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, m, p)."""
        free = free & self.learned
        usual = values[free.argmax(axis=0), np.arange(values.shape[1])]
        arrays = map(jnp.asarray, (values, np.where(free, values, usual), free))
        observations = PaddedObservations(*arrays)
        work = partial(log_densities_of_many, self.response.program, observations)
        return np.asarray(in_pieces(work, np.asarray(draws), len(draws)))

    def replicate(self, draws: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one sample of all variables for each of n models and m queries, (n, m, p).

        Variables that no effect depends on are drawn from Gaussians with their mean and sd.
        """
        seeds = host_generator(key).integers(0, 2**31, (len(draws), 1))
        mask, value = jnp.asarray(queries.mask), jnp.asarray(queries.value)
        work = partial(samples_of_many, self.response.program, mask, value)
        return np.array(in_pieces(work, (np.asarray(draws), seeds), len(draws)))

    def disturbances(self, draws: np.ndarray, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (n, m) of one variable in observations (n or 1, m, p)."""
        index = [step.position for step in self.response.steps].index(position)
        program, shape = self.response.program, values.shape[1:]
        if len(values) == 1:
            work = partial(means_of_many, index, program, jnp.asarray(values[0]))
            return np.asarray(values[:, :, position] - in_pieces(work, draws, len(draws)))
        pairs = (np.asarray(draws), values.reshape(len(values), -1))
        means = in_pieces(
            lambda pair: means_of_each(index, program, shape, *pair), pairs, len(draws)
        )
        return np.asarray(values[:, :, position] - means)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable is Gaussian with one sd, (p,)."""
        parts, _, steps = self._layout
        is_gaussian = [isinstance(part, Equation) or part.adds_noise for part in parts]
        positions = [step.position for step in steps if is_gaussian[step.part]]
        return self.learned & np.isin(np.arange(len(self.nodes)), positions)

    @property
    def scales(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The sds (n, p) of the noise of n models.

        None where some depend on the causes, and where some variables are not learned.
        """
        return self._scales if self.gaussian.all() else None

    def _scales(self, draws: np.ndarray) -> np.ndarray:
        sds = np.ones((len(draws), len(self.nodes)))
        parts, settings, steps = self._layout
        thetas = split_parts(parts, np.asarray(draws))
        for position, index in steps:
            floor = 0.0 if isinstance(parts[index], Equation) else settings[index].floor
            sds[:, position] = np.hypot(np.exp(thetas[index][:, -1]), floor)
        return sds

    def outcome_variances(self, draws: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        work = partial(variances_at, self.response.program, jnp.asarray(draws.mean(axis=0)))
        return np.asarray(in_pieces(work, queries, len(queries)))

    def outcome_densities(self, draws: np.ndarray) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        queries, values, _ = self.outcomes.padded()
        work = partial(log_outcomes_of_many, self.response.program, queries, values)
        logs = np.asarray(in_pieces(work, np.asarray(draws), len(draws)))
        return logs[:, : len(self.outcomes.values)]

    def with_observations(self, observations: Data) -> "CustomModel":
        """Return the same model with more observations; formulas without noise must hold there."""
        require_formulas(self.blocks, observations, self.kinds.exact)
        return replace(self, task=replace(self.task, data=self.data.join(observations)))

    def draw_prior(self, n: int, key: jax.Array) -> np.ndarray | None:
        """Draw theta (n, d) of n models from the prior; None under an improper prior."""
        generator, pieces = host_generator(key), []
        known = iter(each.known for each in self.bound)
        for part, setting in zip(*self._layout[:2], strict=True):
            if isinstance(part, Equation):
                pieces.append(draw_equation(part, next(known), n, generator))
                continue
            seeds = generator.integers(0, 2**31, n)
            try:
                drawn = prior_draws(part, self.nodes, setting, self.typical, seeds)
            except NotImplementedError:
                return None
            pieces.append(np.asarray(drawn))
        return np.concatenate(pieces, axis=1)

    def explain(self) -> str:
        """Return a message about a density that is not finite."""
        for block, setting in self._custom:
            if not np.isfinite(self._likelihoods_at_zero(block, setting)).all():
                return self._explain_block(block, setting)
        return (
            "the density of these mechanisms is not finite where the search should start; look for "
            f"impossible values of {listed(self.nodes)}"
        )

    def _likelihoods_at_zero(self, block: Block, setting: Noise) -> np.ndarray:
        arguments = setting, self.observations, jnp.zeros(block.size)
        return np.asarray(compiled_likelihood(block, self.nodes, *arguments))

    def _explain_block(self, block: Block, setting: Noise) -> str:
        """Return a message that names the variables whose density is not finite."""
        logs = self._likelihoods_at_zero(block, setting)
        wrong = [n for n, log in zip(block.variables, logs, strict=True) if not np.isfinite(log)]
        names = listed(wrong or block.variables)
        return (
            f"the log density of {names} or its derivatives are not finite for any parameters that "
            f"were tried (coordinates of 0, medians of the priors and draws from them), so that "
            f"{block.owner} cannot be fitted: look for values outside the support of its "
            "distribution, logarithms or roots of negative numbers, and priors far from the data"
        )


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

    def bind(self, task: Task) -> CustomModel:
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
        blocks = self._blocks(problem, needed)
        custom = {name for block in blocks for name in block.variables}
        kinds = require_mechanisms(blocks, problem, task.data)
        others, spare = [name for name in needed if name not in custom], SPARE_OBSERVATIONS
        if others and not set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
            require_learnable(task.data, problem.graph, problem.known, nodes=others, spare=spare)
        if not others and not any(block.size for block in blocks):
            raise MechanismError("these mechanisms have no parameters that can be learned")
        choices = {name: self.others.choice(name) for name in graph.nodes}
        return CustomModel(blocks, choices, kinds, replace(task, prior=prior))

    def _blocks(self, problem: Problem, needed: tuple[str, ...]) -> tuple[Block, ...]:
        """Return the user-defined mechanisms that effects depend on; all are checked."""
        graph = problem.graph
        for cause, name in problem.known:
            if self.program is not None or name in self.functions:
                raise MechanismError(
                    f"the coefficient of {cause!r} in {name!r} is known to the problem, but the "
                    f"mechanism of {name!r} is user-defined; put the number into the function, and "
                    "remove it from `known`"
                )
        if self.program is not None:
            return (read_program(self.program, graph.nodes, needed),)
        blocks = {
            name: read_function(function, name, graph.parents(name), graph.nodes)
            for name, function in self.functions.items()
        }
        return tuple(blocks[name] for name in needed if name in blocks)

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
