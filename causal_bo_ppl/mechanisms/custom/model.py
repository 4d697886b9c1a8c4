"""An analyst's mechanisms for one problem: how functions, priors and rows become a density.

The family of an analyst's own mechanisms: functions by variable, or a whole program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.data.outcomes import Outcomes
from causal_bo_ppl.errors import ModelError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_covariance, factor_draws
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
    Rows,
    compiled_likelihood,
    find_block_mode,
    prior_draws,
)
from causal_bo_ppl.mechanisms.custom.propagation import Part, Step, Typical, split_parts
from causal_bo_ppl.mechanisms.custom.response_map import (
    CustomResponse,
    log_densities_of_many,
    means_of_each,
    means_of_many,
    outcome_variances,
    outcomes_of_many,
    rows_of_many,
    thetas_of_many,
)
from causal_bo_ppl.mechanisms.custom.sites import Block, FunctionBlock, Noise
from causal_bo_ppl.mechanisms.gp.binding import Bound, bind_equation, starts
from causal_bo_ppl.mechanisms.gp.density import Chart, GPDensity, Told
from causal_bo_ppl.mechanisms.gp.evidence import Mode, find_mode, log_sds, mix
from causal_bo_ppl.mechanisms.gp.model import GaussianProcesses, read_choices
from causal_bo_ppl.mechanisms.gp.priors import GP, GPPrior, needed_variables, read_spread
from causal_bo_ppl.mechanisms.gp.propagation import Equation, PointProgram, normal_points
from causal_bo_ppl.problem import Problem, Queries

FLOOR = 1e-4  # sd of an added disturbance at least, in sds of the variable
LEAST = 16  # rows that programs are compiled for
MIXED, DRAWS = 64, 1_024  # hyperparameters, or draws, that moments of theta are averaged over


@dataclass(frozen=True, eq=False)
class CustomModel:
    """The mechanisms of the target's ancestral graph with their rows; see `interfaces.Model`.

    blocks: the analyst's, in causal order. choices: how every other variable depends on its
    causes; None for a linear mechanism. kinds: which variables have no disturbance, and whether
    the target knows its mean.
    """

    blocks: tuple[Block, ...]
    choices: Mapping[str, GP | None]
    kinds: Kinds
    task: Task

    @property
    def data(self) -> Data:
        """The rows it learns from."""
        return self.task.data

    @property
    def prior(self) -> GPPrior:
        """What is believed about linear and bent mechanisms, and about added disturbances."""
        found: GPPrior = self.task.prior
        return found

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
    def bound(self) -> tuple[Bound, ...]:
        """The linear and bent equations, in causal order."""
        own = {name for block in self.blocks for name in block.variables}
        problem, graph = self.task.problem, self.graph
        columns = [self.data.nodes.index(name) for name in graph.nodes]
        free = ~self.data.intervened[:, columns]

        def bind(name: str) -> Bound:
            rows, choice = free[:, graph.index(name)], self.choices[name]
            causes = graph.parents(name)
            return bind_equation(problem, graph, self.data, self.prior, choice, name, causes, rows)

        return tuple(bind(name) for name in self.needed if name not in own)

    @cached_property
    def _layout(self) -> tuple[tuple[Part, ...], tuple[Any, ...], tuple[Step, ...]]:
        """The parts in causal order, their settings, and the steps to the target."""
        ours = {self.nodes[each.equation.position]: each for each in self.bound}
        theirs = {name: block for block in self.blocks for name in block.variables}
        parts: list[Part] = []
        settings: list[Any] = []
        steps = []
        for name in self.needed:
            part: Part = ours[name].equation if name in ours else theirs[name]
            if part not in parts:
                setting = ours[name].setting if name in ours else self._noise(theirs[name])
                parts.append(part)
                settings.append(setting)
            steps.append(Step(self.graph.index(name), parts.index(part)))
        return tuple(parts), tuple(settings), tuple(steps)

    def _noise(self, block: Block) -> Noise:
        """Return what is believed about the disturbance that is added to a mean."""
        if not isinstance(block, FunctionBlock) or not block.adds_noise:
            return Noise(*np.zeros(3))
        at = self.data.nodes.index(block.variable)
        free = ~self.data.intervened[:, at]
        scale = read_spread(self.prior, block.variable, self.data.values[free, at]).scale
        share = self.prior.noise if block.causes else 1.0
        return Noise(
            *map(np.asarray, (np.log(share * scale), self.prior.noise_spread, FLOOR * scale))
        )

    @cached_property
    def typical(self) -> Typical:
        """Mean and sd of the rows of every variable; 0 and 1 where there are none."""
        values = self.data.values[:, [self.data.nodes.index(name) for name in self.nodes]]
        if not len(values):
            return Typical(np.zeros(len(self.nodes)), np.ones(len(self.nodes)))
        return Typical(values.mean(axis=0), values.std(axis=0))

    @cached_property
    def rows(self) -> Rows:
        """All rows, filled up to a power of two, so that few programs are compiled."""
        columns = [self.data.nodes.index(name) for name in self.nodes]
        values, free = self.data.values[:, columns], ~self.data.intervened[:, columns]
        count = max(LEAST, 1 << (len(values) - 1).bit_length()) if len(values) else LEAST
        fill = ((0, count - len(values)), (0, 0))
        usual = np.asarray(self.typical.centre)
        if len(values):
            usual = values[free.argmax(axis=0), np.arange(len(columns))]
        filled = np.where(free, values, usual)
        whole = np.pad(values, fill, mode="edge") if len(values) else np.tile(usual, (count, 1))
        wide = np.concatenate([filled, np.tile(usual, (count - len(values), 1))])
        return Rows(whole, wide, np.pad(free, fill))

    @cached_property
    def learned(self) -> np.ndarray:
        """Whether each variable's density is learned, (p,); not of one without a disturbance."""
        wanted = set(self.needed) - set(self.kinds.exact)
        return np.array([name in wanted for name in self.nodes])

    @cached_property
    def response(self) -> CustomResponse:
        """The map from parameters to effects."""
        parts, settings, steps = self._layout
        values = self.data.values[:, [self.data.nodes.index(name) for name in self.nodes]]
        none = np.zeros((2, len(self.nodes)))
        ends = np.stack([values.min(axis=0), values.max(axis=0)]) if len(values) else none
        drawn = self.kinds.is_drawn
        problem = self.task.problem
        return CustomResponse(problem, parts, settings, steps, self.typical, ends, drawn)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The hyperparameters of linear and bent equations at the mode of their evidence."""
        return tuple(
            find_mode(equation.form, known, starts(equation.form, known))
            for equation, _, known in self.bound
        )

    @cached_property
    def block_modes(self) -> tuple[BlockMode, ...]:
        """The modes of the analyst's blocks; refuses one that has no density anywhere."""
        found = []
        for part, setting in zip(*self._layout[:2], strict=True):
            if isinstance(part, Equation):
                continue
            mode = find_block_mode(part, self.nodes, setting, self.typical, self.rows)
            if mode is None:
                raise ModelError(self._explain_block(part, setting))
            found.append(mode)
        return tuple(found)

    @cached_property
    def density(self) -> CustomDensity:
        """Prior and likelihood; new rows change its arrays only."""
        equations = tuple(each.equation for each in self.bound)
        charts = tuple(Chart(mode.eta, mode.root) for mode in self.modes)
        known = tuple(each.known for each in self.bound)
        settings = tuple(each.setting for each in self.bound)
        empty = np.zeros((0, len(self.nodes)))
        none = Told(Queries(empty.astype(bool), empty), np.zeros(0), np.zeros(0))
        still = PointProgram(settings, jnp.zeros((1, 0)), equations, len(self.nodes))
        bent = GPDensity(known, charts, still, none, equations)
        size = sum(each.form.size for each in equations)
        size += sum(chart.root.shape[1] for chart in charts)
        own = tuple(Chart(mode.centre, mode.root) for mode in self.block_modes)
        told = Told(*self.outcomes.padded())
        return CustomDensity(bent, own, self.rows, told, self.response.program, size)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """What each coordinate of psi moves."""
        names = []
        for (equation, *_), mode in zip(self.bound, self.modes, strict=True):
            node = self.nodes[equation.position]
            names += [f"z[{node},{number}]" for number in range(1, equation.form.size + 1)]
            names += [f"u[{node},{number}]" for number in range(1, 1 + mode.root.shape[1])]
        own = [part for part in self._layout[0] if not isinstance(part, Equation)]
        return (*names, *(label for part in own for label, _, _ in part.labels))

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi, as it is where all mechanisms are the analyst's."""
        return not self.bound

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of its covariance there, and the Newton decrement.

        None with outcomes of the target alone, and where a block has no proper mode.
        """
        size = len(self.coordinates)
        left = [each.decrement for each in self.modes]
        left += [each.decrement for each in self.block_modes]
        if len(self.outcomes.values) or not np.isfinite(left).all():
            return None
        return np.zeros(size), np.eye(size), max(left)

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (d,) and a factor (d, r) of the covariance of theta, for psi Gaussian.

        Coefficients of linear and bent mechanisms are averaged over their hyperparameters.
        """
        if self.theta_is_linear:
            root = _block_diagonal([chart.root for chart in self.density.charts])
            centre = np.concatenate([chart.centre for chart in self.density.charts])
            return centre + root @ mode, root @ factor
        if self.mode() is None:
            theta = self.draws(mode + normal_points(DRAWS, len(mode)) @ factor.T)
            return theta.mean(axis=0), factor_draws(theta)
        means, roots = [], []
        ours, theirs = iter(zip(self.bound, self.modes, strict=True)), iter(self.density.charts)
        for part in self._layout[0]:
            if isinstance(part, Equation):
                (_, _, known), at = next(ours)
                etas = at.eta + normal_points(MIXED, len(at.eta)) @ at.root.T
                centre, spread = map(np.asarray, mix(part.form, known, etas))
                means.append(centre)
                roots.append(factor_covariance(spread))
            else:
                chart = next(theirs)
                means.append(np.asarray(chart.centre))
                roots.append(np.asarray(chart.root))
        return np.concatenate(means), _block_diagonal(roots)

    def draws(self, psi: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at coordinates (n, k): the parameters of n models."""
        return np.asarray(
            in_pieces(partial(thetas_of_many, self.density), np.asarray(psi), len(psi))
        )

    def theta(self, draws: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models."""
        return np.asarray(draws)

    def log_densities(self, draws: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, rows, p)."""
        free = free & self.learned
        usual = values[free.argmax(axis=0), np.arange(values.shape[1])]
        rows = Rows(*map(jnp.asarray, (values, np.where(free, values, usual), free)))
        work = partial(log_densities_of_many, self.response.program, rows)
        return np.asarray(in_pieces(work, np.asarray(draws), len(draws)))

    def replicate(self, draws: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one row for each of n models and each query, (n, rows, p).

        Variables that no effect depends on are drawn from Gaussians with their mean and sd.
        """
        seeds = host_generator(key).integers(0, 2**31, (len(draws), 1))
        mask, value = jnp.asarray(queries.mask), jnp.asarray(queries.value)
        work = partial(rows_of_many, self.response.program, mask, value)
        return np.array(in_pieces(work, (np.asarray(draws), seeds), len(draws)))

    def disturbances(self, draws: np.ndarray, rows: np.ndarray, position: int) -> np.ndarray:
        """Return values less their means given the causes (n, rows), of rows (n or 1, rows, p)."""
        [at] = [at for at, step in enumerate(self.response.steps) if step.position == position]
        program = self.response.program
        if len(rows) == 1:
            work = partial(means_of_many, at, program, jnp.asarray(rows[0]))
            return np.asarray(rows[:, :, position] - in_pieces(work, draws, len(draws)))
        shape = rows.shape[1:]
        pairs = (np.asarray(draws), rows.reshape(len(rows), -1))
        means = in_pieces(lambda pair: means_of_each(at, program, shape, *pair), pairs, len(draws))
        return np.asarray(rows[:, :, position] - means)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the disturbance of each variable is Gaussian with one sd, (p,)."""
        parts, _, steps = self._layout
        own = [isinstance(part, Equation) or part.adds_noise for part in parts]
        return self.learned & np.isin(np.arange(len(self.nodes)), [p for p, at in steps if own[at]])

    @property
    def scales(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The sds (n, p) of all disturbances of n models.

        None where some depend on the causes, and where some variables are not learned.
        """
        return self._scales if self.gaussian.all() else None

    def _scales(self, draws: np.ndarray) -> np.ndarray:
        found = np.ones((len(draws), len(self.nodes)))
        parts, settings, steps = self._layout
        own = split_parts(parts, np.asarray(draws))
        for position, at in steps:
            floor = 0.0 if isinstance(parts[at], Equation) else settings[at].floor
            found[:, position] = np.hypot(np.exp(own[at][:, -1]), floor)
        return found

    def outcome_variances(self, draws: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        work = partial(outcome_variances, self.response.program, jnp.asarray(draws.mean(axis=0)))
        return np.asarray(in_pieces(work, queries, len(queries)))

    def outcome_densities(self, draws: np.ndarray) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        queries, values, _ = self.outcomes.padded()
        work = partial(outcomes_of_many, self.response.program, queries, values)
        found = np.asarray(in_pieces(work, np.asarray(draws), len(draws)))
        return found[:, : len(self.outcomes.values)]

    def with_observations(self, rows: Data) -> "CustomModel":
        """Return the same model with more rows; formulas without disturbance must hold in them."""
        for block in self.blocks:
            nodes, free = rows.nodes, ~rows.intervened
            require_formulas(block, nodes, rows.values, free, self.kinds.exact)
        return replace(self, task=replace(self.task, data=self.data.join(rows)))

    def draw_prior(self, n: int, key: jax.Array) -> np.ndarray | None:
        """Draw n models before any row; None under an improper prior."""
        generator, pieces = host_generator(key), []
        known = iter(each.known for each in self.bound)
        for part, setting in zip(*self._layout[:2], strict=True):
            if isinstance(part, Equation):
                pieces.append(_draw_equation(part, next(known), n, generator))
                continue
            seeds = generator.integers(0, 2**31, n)
            try:
                drawn = prior_draws(part, self.nodes, setting, self.typical, seeds)
            except NotImplementedError:
                return None
            pieces.append(np.asarray(drawn))
        return np.concatenate(pieces, axis=1)

    def explain(self) -> str:
        """Say why the density is not finite."""
        for part, setting in zip(*self._layout[:2], strict=True):
            if not isinstance(part, Equation):
                at = jnp.zeros(part.size)
                found = np.asarray(compiled_likelihood(part, self.nodes, setting, self.rows, at))
                if not np.isfinite(found).all():
                    return self._explain_block(part, setting)
        return (
            "the density of these mechanisms is not finite where the search should start; look for "
            f"values that cannot be among {listed(self.nodes)}"
        )

    def _explain_block(self, block: Block, setting: Any) -> str:
        """Say which variable's density is not finite, at coordinates of 0."""
        at = jnp.zeros(block.size)
        found = np.asarray(compiled_likelihood(block, self.nodes, setting, self.rows, at))
        pairs = zip(block.variables, found, strict=True)
        wrong = [name for name, each in pairs if not np.isfinite(each)]
        names = listed(wrong or block.variables)
        return (
            f"the log density of {names} or its derivatives are not finite for any parameters that "
            f"were tried (coordinates of 0, medians of the priors and draws from them), so that "
            f"{block.owner} cannot be fitted: look for rows outside of its distribution's support, "
            "logarithms or roots of negative numbers, and priors far from the data"
        )


def _block_diagonal(roots: list[Any]) -> np.ndarray:
    sizes = np.array([np.shape(root) for root in roots]).reshape(-1, 2)
    found, (row, column) = np.zeros(sizes.sum(axis=0)), (0, 0)
    for root, (high, wide) in zip(roots, sizes, strict=True):
        found[row : row + high, column : column + wide] = root
        row, column = row + high, column + wide
    return found


def _draw_equation(
    equation: Equation, known: Any, n: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw coefficients and log sd (n, K + 1) of a linear or bent equation from their prior."""
    frame, beliefs, _ = known
    eta = beliefs.centre + beliefs.width * generator.standard_normal((n, equation.form.scales))
    white = generator.standard_normal((n, equation.form.size))
    spread = np.asarray(jax.vmap(partial(log_sds, equation.form, frame, beliefs))(eta))
    coefficients = np.exp(spread) * white
    coefficients[:, 0] += beliefs.level
    return np.column_stack([coefficients, eta[:, :1]])


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
                f"take a cb.priors.GPPrior; got {prior!r}"
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
