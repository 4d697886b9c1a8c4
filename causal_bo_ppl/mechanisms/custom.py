"""User-defined mechanisms: NumPyro functions of the causes, or a whole NumPyro program.

A function of the causes draws its parameters by `numpyro.sample`, which gives their priors, and
returns the mean of its variable, to which Gaussian noise with a learned sd is added, or the
distribution of its variable given the causes::

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

Coordinates psi are first those of linear and Gaussian-process mechanisms, see `mechanisms.gp`, then
those of user-defined blocks: theta = centre + root psi, around the mode of each block given its
observations and with the width of the posterior there. Modes are found by damped Newton steps.
Blocks are independent given whole observations. The density is one program for all data of one
padded size: new observations compile nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import block_diag, solve_triangular

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.data.observations import Outcomes, no_outcomes
from causal_bo_ppl.errors import MechanismError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws, first_largest
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.custom_checking import (
    Kinds,
    read_function,
    read_program,
    require_formulas,
    require_mechanisms,
)
from causal_bo_ppl.mechanisms.custom_responses import (
    CustomResponse,
    PaddedObservations,
    Part,
    PathProgram,
    PathStep,
    Typical,
    disturbances_of_each,
    disturbances_of_many,
    is_exact,
    log_densities_of_many,
    samples_of_many,
    split_parts,
)
from causal_bo_ppl.mechanisms.custom_sites import Block, FunctionBlock, Noise, log_probability
from causal_bo_ppl.mechanisms.gp import (
    MOMENT_DRAWS,
    AffineChart,
    GaussianProcesses,
    GPDensity,
    TargetOutcomes,
    draw_equation,
    mixture_moments,
    read_choices,
    require_options,
    thetas_of_many,
    whitened_names,
)
from causal_bo_ppl.mechanisms.gp_priors import (
    CONSTANT_NOISE,
    SPARE_OBSERVATIONS,
    GPPrior,
    MechanismChoice,
    needed_variables,
    read_spread,
)
from causal_bo_ppl.mechanisms.gp_regressions import BoundEquation, Mode, bind_equation, bound_modes
from causal_bo_ppl.mechanisms.gp_responses import (
    Equation,
    log_outcomes_of_many,
    normal_points,
    variances_at,
)
from causal_bo_ppl.mechanisms.noise_models import (
    NoiseSetting,
    NoisyEquation,
    bind_noise,
    make_equation,
)
from causal_bo_ppl.problem import Problem, Queries

MOST_NEWTON_STEPS = 200
SMALLEST_DECREMENT = 1e-11  # of the log density, at which the Newton steps end
LARGEST_DECREMENT = 1e-6  # that counts as a mode, where rounding stops the search
LONGEST_STEP = 5.0  # in any coordinate
FLATTEST_CURVATURE = 1e-12  # relative to the largest, below which a direction counts as flat
START_DRAWS = 15  # draws of the prior that give starts
FOLLOWED_STARTS = 3  # starts with the smallest loss, from which Newton steps are made
NOISE_FLOOR = 1e-4  # constant sd of added noise, in sds of the variable
FEWEST_PADDED_OBSERVATIONS = 16  # that programs are compiled for


def block_likelihood(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    observations: PaddedObservations,
    theta: jax.Array,
) -> jax.Array:
    """Return the log likelihoods (v,) of the variables of a block at theta (k,)."""
    values, filled, free = map(jnp.asarray, observations)
    distributions = block.run(theta, setting, dict(zip(nodes, values.T, strict=True)))[1]
    sums = []
    for name in block.variables:
        position = nodes.index(name)
        if is_exact(distributions[name]):  # compared with the data once, by `require_formulas`
            sums.append(jnp.zeros(()))
            continue
        logs = log_probability(distributions[name], filled[:, position])
        sums.append(jnp.where(free[:, position], logs, 0.0).sum())
    return jnp.stack(sums)


compiled_likelihood = partial(jax.jit, static_argnums=(0, 1))(block_likelihood)


def block_prior(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> jax.Array:
    """Return the log prior of a block at theta (k,), which does not depend on the data."""
    log_prior: jax.Array = block.run(theta, setting, _typical_columns(nodes, typical))[0]
    return log_prior


def _typical_columns(nodes: tuple[str, ...], typical: Typical) -> dict[str, jax.Array]:
    """Return the mean (1,) of every variable, at which functions are run for their priors."""
    return dict(zip(nodes, jnp.asarray(typical.centre)[:, None], strict=True))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CustomDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `base.Density`.

    gp: the density of linear and Gaussian-process mechanisms, of which there may be none, with
    gp_size coordinates. charts: of the user-defined blocks. program: the paths to the target.
    """

    gp: GPDensity
    charts: tuple[AffineChart, ...]
    observations: PaddedObservations
    outcomes: TargetOutcomes
    program: PathProgram
    gp_size: int = field(metadata={"static": True})

    @property
    def one_by_one(self) -> bool:
        """Whether Gaussian-process mechanisms factor matrices."""
        return bool(self.gp.equations)

    def _blocks(self, psi: jax.Array) -> list[tuple[Block, Any, jax.Array]]:
        """Return every block with its setting and its coordinates of theta."""
        blocks, start, charts = [], self.gp_size, iter(self.charts)
        for part, setting in zip(self.program.parts, self.program.settings, strict=True):
            if isinstance(part, Equation):
                continue
            chart, end = next(charts), start + part.size
            theta = jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ psi[start:end]
            blocks.append((part, setting, theta))
            start = end
        return blocks

    def _block_priors(self, psi: jax.Array) -> jax.Array:
        nodes, typical = self.program.nodes, self.program.typical
        terms = [block_prior(b, nodes, s, typical, theta) for b, s, theta in self._blocks(psi)]
        return sum(terms, jnp.zeros(()))

    def _block_likelihoods(self, psi: jax.Array) -> jax.Array:
        nodes, data = self.program.nodes, self.observations
        terms = [block_likelihood(b, nodes, s, data, theta) for b, s, theta in self._blocks(psi)]
        total = sum((term.sum() for term in terms), jnp.zeros(()))
        queries, values, weights = self.outcomes
        if not len(values):
            return total
        logs = self.program.log_outcomes(self.theta(psi), queries, values)
        return total + jnp.where(jnp.asarray(weights) > 0, logs, 0.0).sum()

    def _add(self, total: jax.Array, term: Callable[[jax.Array], jax.Array], psi: Any) -> jax.Array:
        """Add a term of the Gaussian-process mechanisms, if there are any."""
        return total + term(psi[: self.gp_size]) if self.gp_size else total

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior at psi (k,), up to a constant."""
        return self._add(self._block_priors(psi), self.gp.log_prior, psi)

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes given psi (k,)."""
        return self._add(self._block_likelihoods(psi), self.gp.log_likelihood, psi)

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant."""
        total = self._block_priors(psi) + self._block_likelihoods(psi)
        return self._add(total, self.gp.log_posterior, psi)

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of Gaussian-process coefficients in psi, up to a constant."""
        return self._add(jnp.zeros(()), self.gp.log_volume, psi)

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coordinates of every part, in causal order."""
        rest = self.gp.theta(psi[: self.gp_size]) if self.gp_size else jnp.zeros(0)
        blocks, pieces = iter(self._blocks(psi)), []
        for part in self.program.parts:
            if isinstance(part, Equation):
                pieces.append(rest[: part.size])
                rest = rest[part.size :]
            else:
                pieces.append(next(blocks)[2])
        return jnp.concatenate(pieces)


class BlockMode(NamedTuple):
    """Mode of the density of a block.

    centre: (k,). root: (k, k), a factor of the inverse Hessian there, or a diagonal guess.
    decrement: the Newton decrement of the log density; infinite where no mode was found.
    """

    centre: np.ndarray
    root: np.ndarray
    decrement: float


class LossTerms(NamedTuple):
    """The loss at a point, its gradient (k,) and its Hessian (k, k)."""

    value: np.ndarray
    slope: np.ndarray
    curve: np.ndarray


@partial(jax.jit, static_argnums=(0, 1))
def _loss_terms(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    typical: Typical,
    observations: PaddedObservations,
    theta: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return minus the log posterior of a block with its first two derivatives."""

    def loss(point: jax.Array) -> jax.Array:
        likelihood = block_likelihood(block, nodes, setting, observations, point).sum()
        return -likelihood - block_prior(block, nodes, setting, typical, point)

    def both(point: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slope = jax.value_and_grad(loss)(point)
        return slope, (value, slope)

    curve, (value, slope) = jax.jacfwd(both, has_aux=True)(theta)
    return value, slope, curve


@partial(jax.jit, static_argnums=(0, 1))
def prior_draws(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, seeds: jax.Array
) -> jax.Array:
    """Draw coordinates (n, k) from the prior, one for each seed (n,)."""
    columns = _typical_columns(nodes, typical)
    drawn: jax.Array = jax.lax.map(
        lambda seed: block.draw(jax.random.key(seed), setting, columns), seeds
    )
    return drawn


def find_block_mode(
    block: Block,
    nodes: tuple[str, ...],
    setting: Any,
    typical: Typical,
    observations: PaddedObservations,
) -> BlockMode | None:
    """Return the highest mode reached from a few starts; None where no start has a density.

    Starts are coordinates of 0, the medians of the prior and draws from it.
    """
    if not block.size:
        return BlockMode(np.zeros(0), np.zeros((0, 0)), 0.0)

    def evaluate(theta: np.ndarray) -> LossTerms:
        terms = _loss_terms(block, nodes, setting, typical, observations, theta)
        return LossTerms(*map(np.asarray, terms))

    starts = [(start, evaluate(start)) for start in _starts(block, nodes, setting, typical)]
    usable = [start for start in starts if _is_usable(start[1])]
    if not usable:
        return None
    usable.sort(key=lambda start: start[1].value)
    ends = [_descend(evaluate, *start) for start in usable[:FOLLOWED_STARTS]]
    best = first_largest(-np.array([terms.value for _, terms in ends]))
    return _block_mode(*ends[best])


def _starts(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical
) -> list[np.ndarray]:
    zero = np.zeros(block.size)
    try:
        drawn = np.asarray(prior_draws(block, nodes, setting, typical, np.arange(START_DRAWS)))
    except MechanismError:  # an improper prior
        return [zero]
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    return [zero, np.median(drawn, axis=0), *drawn[:6]] if len(drawn) else [zero]


def _is_usable(terms: LossTerms) -> bool:
    return all(np.isfinite(term).all() for term in terms)


def _newton_step(terms: LossTerms) -> np.ndarray:
    """Return Newton's descent step, by the absolute values of the curvature."""
    sizes, directions = np.linalg.eigh((terms.curve + terms.curve.T) / 2)
    sizes = np.abs(sizes)
    sizes = np.maximum(sizes, max(FLATTEST_CURVATURE * sizes.max(), 1e-300))
    step = directions @ ((directions.T @ terms.slope) / sizes)
    return np.asarray(step / max(1.0, float(np.abs(step).max()) / LONGEST_STEP))


def _descend(
    evaluate: Callable[[np.ndarray], LossTerms], theta: np.ndarray, terms: LossTerms
) -> tuple[np.ndarray, LossTerms]:
    """Return the end point of Newton steps that are halved until the loss decreases."""
    for _ in range(MOST_NEWTON_STEPS):
        step = _newton_step(terms)
        decrease = float(terms.slope @ step)
        if 0.5 * decrease <= SMALLEST_DECREMENT:
            break
        length = 1.0
        while length > 1e-10:
            moved = evaluate(theta - length * step)
            if _is_usable(moved) and moved.value <= terms.value - 1e-4 * length * decrease:
                break
            length /= 2
        else:  # no step decreases the loss: rounding, or a kink
            break
        theta, terms = theta - length * step, moved
    return theta, terms


def _block_mode(theta: np.ndarray, terms: LossTerms) -> BlockMode:
    """Return the mode with its width; coordinates are scaled first, for they may differ much."""
    curve = (terms.curve + terms.curve.T) / 2
    width = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(curve)), 1e-8))
    try:
        lower = np.linalg.cholesky(width[:, None] * curve * width)
    except np.linalg.LinAlgError:  # no maximum there
        return BlockMode(theta, np.diag(width), np.inf)
    half = solve_triangular(lower, width * terms.slope, lower=True)
    root = width[:, None] * solve_triangular(lower, np.eye(len(theta)), lower=True).T
    decrement = 0.5 * float(half @ half)
    return BlockMode(theta, root, decrement if decrement <= LARGEST_DECREMENT else np.inf)


@dataclass(frozen=True, eq=False)
class CustomModel:
    """Mechanisms of the target's ancestral graph with their data; see `base.Model`.

    blocks: the user-defined ones, in causal order. choices: how every other variable depends on its
    causes; None for a linear mechanism. kinds: which variables have no noise, and whether the mean
    of the target's distribution is available. unneeded: functions that no effect depends on.
    """

    blocks: tuple[Block, ...]
    choices: Mapping[str, MechanismChoice]
    kinds: Kinds
    task: Task
    unneeded: tuple[Block, ...] = ()

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

    @cached_property
    def _noise_settings(self) -> dict[str, NoiseSetting]:
        """The numbers of mechanisms whose noise varies or has heavy tails, by variable."""
        usable = ~self.data.intervened[:, self._columns]
        return {
            block.variable: bind_noise(
                self.task, self.graph, block, self.choices[block.variable], usable
            )
            for block in (*self.blocks, *self.unneeded)
            if isinstance(block, NoisyEquation)
        }

    def _noise(self, block: Block) -> Noise | NoiseSetting:
        """Return the prior of the noise that is added to a mean, or all numbers of a mechanism."""
        if isinstance(block, NoisyEquation):
            return self._noise_settings[block.variable]
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
    def custom(self) -> list[tuple[Block, Any]]:
        """The user-defined blocks with their settings, in causal order."""
        pairs = zip(*self._layout[:2], strict=True)
        return [(part, setting) for part, setting in pairs if not isinstance(part, Equation)]

    @property
    def all_custom(self) -> list[tuple[Block, Any]]:
        """The same, and those that no effect depends on."""
        return [*self.custom, *((block, self._noise(block)) for block in self.unneeded)]

    @cached_property
    def block_modes(self) -> tuple[BlockMode, ...]:
        """The modes of the user-defined blocks; refuses one that has no density anywhere."""
        modes = []
        for block, setting in self.custom:
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
        return (*names, *(label for block, _ in self.custom for label, _, _ in block.labels))

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
        """Return the noise (n, m) of one variable in observations (n or 1, m, p).

        See `custom_responses.disturbances_of_many`.
        """
        index = [step.position for step in self.response.steps].index(position)
        program, shape = self.response.program, values.shape[1:]
        if len(values) == 1:
            work = partial(disturbances_of_many, index, program, jnp.asarray(values[0]))
            return np.asarray(in_pieces(work, draws, len(draws)))
        pairs = (np.asarray(draws), values.reshape(len(values), -1))
        noise = in_pieces(
            lambda pair: disturbances_of_each(index, program, shape, *pair), pairs, len(draws)
        )
        return np.asarray(noise)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable, as `disturbances`, is Gaussian with one sd, (p,)."""
        return np.asarray(self._is_of(Equation, NoisyEquation) | self._has_one_sd)

    @property
    def _has_one_sd(self) -> np.ndarray:
        adds = [block.variables[0] for block in self.blocks if block.adds_noise]
        return self._is_of(Equation) | (self.learned & np.isin(self.nodes, adds))

    def _is_of(self, *kinds: type) -> np.ndarray:
        parts, _, steps = self._layout
        positions = [step.position for step in steps if isinstance(parts[step.part], kinds)]
        return np.asarray(self.learned & np.isin(np.arange(len(self.nodes)), positions))

    @property
    def scales(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The sds (n, p) of the noise of n models.

        None where some depend on the causes, and where some variables are not learned.
        """
        return self._scales if self._has_one_sd.all() else None

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

    def draw_prior(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d) of n models from the prior; an improper one is refused by name."""
        generator, pieces = host_generator(key), []
        known = iter(each.known for each in self.bound)
        for part, setting in zip(*self._layout[:2], strict=True):
            if isinstance(part, Equation):
                pieces.append(draw_equation(part, next(known), n, generator)[0])
                continue
            seeds = generator.integers(0, 2**31, n)
            drawn = prior_draws(part, self.nodes, setting, self.typical, seeds)
            pieces.append(np.asarray(drawn))
        return np.concatenate(pieces, axis=1)

    def explain(self) -> str:
        """Return a message about a density that is not finite."""
        for block, setting in self.custom:
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
        return CustomModel(blocks, choices, kinds, replace(task, prior=prior), unneeded)

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
