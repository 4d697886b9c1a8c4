"""How do a graph, mechanisms, priors and data define a posterior?

Every variable has its own kind of mechanism: linear, Gaussian processes, or user-defined. Density,
draws, simulation and effects are made of these once, whatever the kinds.

A mechanism that is linear or has Gaussian processes is an *equation*, a linear trend plus Gaussian
processes in a Hilbert-space basis. Its coordinates are z (K,) and u (R,): its hyperparameters are
eta = eta_0 + R u around the mode of the evidence, and given these its whitened coefficients are
w = m(eta) + root(eta)^-T z, their posterior given the observations. So z is exactly standard
Gaussian and independent of u, unless outcomes of the target alone join the mechanisms.

The coordinates of a user-defined *block* are affine, theta = centre + root psi, around its mode
given its observations and with the width of the posterior there. Coordinates psi are first those of
all equations, then those of all blocks; theta holds the parts in causal order.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.scipy.linalg import solve_triangular
from scipy.linalg import block_diag

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import Outcomes
from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_covariance, factor_draws
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, HeldOut, PriorDraws, Task, Unevenness
from causal_bo_ppl.mechanisms.custom_checking import Kinds, require_formulas
from causal_bo_ppl.mechanisms.custom_sites import (
    Block,
    BlockMode,
    FunctionBlock,
    Noise,
    PaddedObservations,
    Typical,
    block_log_densities,
    block_log_densities_of_many,
    block_prior,
    block_samples_of_each,
    find_block_mode,
    prior_draws,
)
from causal_bo_ppl.mechanisms.gp_basis import (
    BOUNDARY_FACTOR,
    FUNCTIONS_PER_LENGTHSCALE,
    Form,
    kernel_error,
)
from causal_bo_ppl.mechanisms.gp_priors import (
    GPPrior,
    MechanismChoice,
    draw_under_plans,
    observations_of_target,
    read_spread,
    regressors,
    usable_entries,
)
from causal_bo_ppl.mechanisms.gp_regressions import (
    AffineChart,
    BoundEquation,
    Conditional,
    FittedRegression,
    KnownTerms,
    Mode,
    Reduced,
    bind_equation,
    bound_modes,
    condition,
    evaluate_many,
    fitted_regressions,
    hold_out_given,
    log_sds_of_many,
    loss,
    mix,
    reduce_mechanisms,
    samples_of_mechanisms,
    scales_of,
    uneven_mechanisms,
)
from causal_bo_ppl.mechanisms.gp_responses import (
    AveragingProgram,
    Equation,
    coordinate_names,
    log_outcomes_of_many,
    normal_points,
    scale_sites,
    variances_at,
)
from causal_bo_ppl.mechanisms.noise_models import NoiseSetting, NoisyEquation, bind_noise
from causal_bo_ppl.mechanisms.scm_responses import (
    Part,
    SCMResponse,
    means_given,
    noise_given,
    split_parts,
)
from causal_bo_ppl.problem import Queries

MIXTURE_POINTS = 64  # hyperparameters that moments of theta are averaged over
FARTHEST_SHARE = 1.5  # of the points of an average, so that they reach 3.6 posterior sds
MOMENT_DRAWS = 1_024  # draws of psi that moments of theta are averaged over
NOISE_FLOOR = 1e-4  # constant sd of noise added to user-defined means, in sds of the variable
FEWEST_PADDED_OBSERVATIONS = 16  # that programs of user-defined mechanisms are compiled for

GP_DIMENSIONS = {
    "level": "equation",
    "b": "edge",
    "f": "function",
    "low": "hinge",
    "high": "hinge",
    "trend": "nonlinear_node",
    "amplitude": "process",
    "lengthscale": "input",
}


class TargetOutcomes(NamedTuple):
    """Outcomes of the target alone: interventions, (m,) values, and weights, 0 for padding."""

    queries: Queries
    values: Any
    weights: Any


class MechanismState(NamedTuple):
    """Hyperparameters and coefficients of one equation at given coordinates."""

    eta: jax.Array
    given: Conditional
    white: jax.Array
    coefficients: jax.Array


class BlockTerms(NamedTuple):
    """The arrays of user-defined blocks: coordinates, settings, observations of all variables."""

    charts: tuple[AffineChart, ...] = ()
    settings: tuple[Noise, ...] = ()
    observations: Any = None
    typical: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SCMDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `base.Density`.

    known, charts: of the equations. blocks: of the user-defined blocks. program: effects of theta.
    parts: all equations and blocks, in the order of theta.
    """

    known: tuple[KnownTerms, ...]
    charts: tuple[AffineChart, ...]
    blocks: BlockTerms
    program: AveragingProgram
    outcomes: TargetOutcomes
    parts: tuple[Part, ...] = field(metadata={"static": True})
    nodes: Names = field(metadata={"static": True})

    @property
    def one_by_one(self) -> bool:
        """Whether there are equations: two batches of Cholesky factors could block each other."""
        return bool(self.charts)

    def _equations(self, psi: jax.Array) -> Iterator[tuple[Form, KnownTerms, jax.Array, jax.Array]]:
        """Yield form, known terms, z and eta of every equation."""
        equations, start = [part for part in self.parts if isinstance(part, Equation)], 0
        for equation, known, chart in zip(equations, self.known, self.charts, strict=True):
            size, free = equation.form.size, jnp.shape(chart.root)[1]
            z, u = psi[start : start + size], psi[start + size : start + size + free]
            start += size + free
            yield equation.form, known, z, jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ u

    def _blocks(self, psi: jax.Array) -> list[tuple[Block, Noise, jax.Array]]:
        """Return every block with its setting and its coordinates of theta."""
        blocks = [part for part in self.parts if not isinstance(part, Equation)]
        start, found = len(psi) - sum(block.size for block in blocks), []
        terms = zip(blocks, self.blocks.settings, self.blocks.charts, strict=True)
        for block, setting, (centre, root) in terms:
            end = start + block.size
            theta = jnp.asarray(centre) + jnp.asarray(root) @ psi[start:end]
            found.append((block, setting, theta))
            start = end
        return found

    def states(self, psi: jax.Array) -> list[MechanismState]:
        """Return the parameters of every equation at psi (k,)."""
        result = []
        for form, known, z, eta in self._equations(psi):
            given = condition(form, known, eta)
            white = given.mean + solve_triangular(given.root, z, lower=True, trans="T")
            coefficients = (given.sd * white).at[0].add(known.prior.level)
            result.append(MechanismState(eta, given, white, coefficients))
        return result

    def _block_priors(self, psi: jax.Array) -> jax.Array:
        terms = [
            block_prior(block, self.nodes, setting, self.blocks.typical, theta)
            for block, setting, theta in self._blocks(psi)
        ]
        return sum(terms, jnp.zeros(()))

    def _joint_likelihoods(self, psi: jax.Array) -> jax.Array:
        """Return the log density of the blocks' observations and of all outcomes of the target."""
        total, data = jnp.zeros(()), self.blocks.observations
        for block, setting, theta in self._blocks(psi):
            total = total + block_log_densities(block, self.nodes, setting, data, theta).sum()
        queries, values, weights = self.outcomes
        if not len(values):
            return total
        logs = self.program.log_outcomes(self.theta(psi), queries, values)
        return total + jnp.where(jnp.asarray(weights) > 0, logs, 0.0).sum()

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior of whitened coefficients, hyperparameters and blocks' coordinates.

        It is known up to a constant.
        """
        total = self._block_priors(psi)
        for state, known in zip(self.states(psi), self.known, strict=True):
            scaled = (state.eta - known.prior.centre) / known.prior.width
            total = total - 0.5 * (state.white**2).sum() - 0.5 * (scaled**2).sum()
        return total

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes."""
        total = self._joint_likelihoods(psi)
        for state, known in zip(self.states(psi), self.known, strict=True):
            factor = jnp.asarray(known.statistics.factor)
            centred = state.coefficients.at[0].add(-known.prior.level)
            misfit = (factor[:, -1] - factor[:, :-1] @ centred) * jnp.exp(-state.eta[0])
            noise = known.statistics.count * (state.eta[0] + 0.5 * LOG_TWO_PI)
            total = total - 0.5 * (misfit**2).sum() - noise
        return total

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant.

        Of the observations of equations only the evidence is needed: given the hyperparameters z is
        Gaussian.
        """
        total = self._block_priors(psi) + self._joint_likelihoods(psi)
        for form, known, z, eta in self._equations(psi):
            total = total - 0.5 * (z**2).sum() - loss(form, known, eta)
        return total

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coordinates of every part, in causal order."""
        states, blocks, pieces = iter(self.states(psi)), iter(self._blocks(psi)), []
        for part in self.parts:
            if isinstance(part, Equation):
                state = next(states)
                pieces += [state.coefficients, state.eta[:1]]
            else:
                pieces.append(next(blocks)[2])
        return jnp.concatenate(pieces)

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of whitened coefficients in psi, up to a constant."""
        roots = [jnp.diagonal(state.given.root) for state in self.states(psi)]
        return -sum((jnp.log(root).sum() for root in roots), jnp.zeros(()))


@dataclass(frozen=True, eq=False)
class SCM:
    """Mechanisms of the target's ancestral graph with their data; see `base.Model`.

    choices: how each variable depends on its causes; None for a linear mechanism. blocks: the
    user-defined mechanisms, in causal order. kinds: which variables have no noise, and whether the
    mean of the target's distribution is available. unneeded: functions that no effect depends on.
    fixed: whether the hyperparameters, except the sds of the noise, are held at the mode of their
    evidence. plans: where latent causes join causes of the target, the regressions that replace
    mechanisms, and how effects are averaged over their draws; then no mechanism is user-defined.
    """

    choices: Mapping[str, MechanismChoice]
    task: Task
    blocks: tuple[Block, ...] = ()
    kinds: Kinds = Kinds((), False)
    unneeded: tuple[Block, ...] = ()
    fixed: bool = False
    plans: SamplingPlans | None = None

    @property
    def data(self) -> Data:
        """The observations it learns from."""
        return self.task.data

    @property
    def prior(self) -> GPPrior:
        """The prior of linear and Gaussian-process mechanisms, and of noise added to means."""
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
    def outcomes(self) -> Outcomes:
        """The outcomes of the target alone, over the model's variables."""
        columns = [self.task.problem.graph.index(name) for name in self.nodes]
        outcomes = self.task.outcomes.columns(columns)
        self.response.require_planned(np.asarray(outcomes.queries.mask))
        return outcomes

    @cached_property
    def _columns(self) -> list[int]:
        return [self.data.nodes.index(name) for name in self.nodes]

    def usable(self, data: Data) -> np.ndarray:
        """Return which observations inform the equation of each variable, (n, p)."""
        return usable_entries(self.plans, self.nodes, data)

    @cached_property
    def bound(self) -> tuple[BoundEquation, ...]:
        """The equations that are learned, in causal order, with their known terms."""
        custom = {name for block in self.blocks for name in block.variables}
        usable = dict(zip(self.nodes, self.usable(self.data).T, strict=True))
        return tuple(
            bind_equation(self.task, self.graph, self.choices[name], name, given, usable[name])
            for name, given in regressors(self.task.problem, self.plans).items()
            if name not in custom
        )

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """The equations that are learned."""
        return tuple(each.equation for each in self.bound)

    @cached_property
    def _noise_settings(self) -> dict[str, NoiseSetting]:
        """The numbers of mechanisms whose noise varies or has heavy tails, by variable."""
        usable, noisy = self.usable(self.data), (*self.blocks, *self.unneeded)
        return {
            block.variable: bind_noise(
                self.task, self.graph, block, self.choices[block.variable], usable
            )
            for block in noisy
            if isinstance(block, NoisyEquation)
        }

    def noise_of(self, block: Block) -> Any:
        """Return the prior of the noise that is added to a mean, or all numbers of a mechanism."""
        if isinstance(block, NoisyEquation):
            return self._noise_settings[block.variable]
        if not isinstance(block, FunctionBlock) or not block.adds_noise:
            return Noise(*np.zeros(3))
        values, free = self.data.column(block.variable), self.usable(self.data)
        values = values[free[:, self.nodes.index(block.variable)]]
        scale = read_spread(self.prior, block.variable, values).scale
        share = self.prior.noise if block.causes else 1.0
        centre, floor = np.log(share * scale), NOISE_FLOOR * scale
        return Noise(*map(np.asarray, (centre, self.prior.noise_spread, floor)))

    @cached_property
    def _owners(self) -> dict[str, tuple[Part, Any]]:
        """{variable: the part that holds its mechanism, and its setting}, in causal order."""
        owners: dict[str, tuple[Part, Any]] = {
            self.nodes[each.equation.position]: each[:2] for each in self.bound
        }
        for block in self.blocks:
            owners |= dict.fromkeys(block.variables, (block, self.noise_of(block)))
        return {name: owners[name] for name in regressors(self.task.problem, self.plans)}

    @cached_property
    def parts(self) -> dict[Part, Any]:
        """Every equation and block that effects depend on, with its setting, in causal order."""
        return dict(self._owners.values())

    @property
    def custom(self) -> list[tuple[Block, Any]]:
        """The user-defined blocks with the priors of their noise, in causal order."""
        return [(part, each) for part, each in self.parts.items() if not isinstance(part, Equation)]

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
        values, free = self.data.values[:, self._columns], self.usable(self.data)
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
        wanted = set(self._owners) - set(self.kinds.exact)
        return np.array([name in wanted for name in self.nodes])

    @cached_property
    def response(self) -> SCMResponse:
        """The map from parameters to effects."""
        values, ends = self.data.values[:, self._columns], np.zeros((2, len(self.nodes)))
        if len(values):
            ends = np.stack([values.min(axis=0), values.max(axis=0)])
        made = self.task.problem, tuple(self.parts), tuple(self.parts.values()), self.typical, ends
        return SCMResponse(*made, is_drawn=self.kinds.is_drawn, plans=self.plans)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The hyperparameters of every equation at the mode of their evidence."""
        return bound_modes(self.bound)

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
    def density(self) -> SCMDensity:
        """Prior and likelihood; new observations change its arrays only."""
        charts = tuple(
            AffineChart(mode.eta, _noise_direction(mode) if self.fixed else mode.root)
            for mode in self.modes
        )
        known, outcomes = tuple(each.known for each in self.bound), self.outcomes.padded()
        fixed = self.response.program, TargetOutcomes(*outcomes), tuple(self.parts), self.nodes
        return SCMDensity(known, charts, self._block_terms(), *fixed)

    def _block_terms(self) -> BlockTerms:
        if not self.blocks:
            return BlockTerms()
        charts = tuple(AffineChart(mode.centre, mode.root) for mode in self.block_modes)
        settings = tuple(setting for _, setting in self.custom)
        return BlockTerms(charts, settings, self.observations, self.typical)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates of psi."""
        names = []
        for equation, chart in zip(self.equations, self.density.charts, strict=True):
            node = self.nodes[equation.position]
            names += [f"z[{node},{number}]" for number in range(1, equation.form.size + 1)]
            names += [f"u[{node},{number}]" for number in range(1, 1 + chart.root.shape[1])]
        return (*names, *(label for block, _ in self.custom for label, _, _ in block.labels))

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi, as it is where all mechanisms are user-defined."""
        custom = {name for block in self.blocks for name in block.variables}
        return custom >= set(regressors(self.task.problem, self.plans))

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of its covariance there, and the Newton decrement.

        Without outcomes of the target alone all follow from the modes of the mechanisms; None with
        outcomes, and where a block has no proper mode.
        """
        size = len(self.coordinates)
        found: tuple[Mode | BlockMode, ...] = (*self.modes, *self.block_modes)
        decrements = [mode.decrement for mode in found]
        has_modes = not self.blocks or np.isfinite(decrements).all()
        if len(self.outcomes.values) or not has_modes:
            return None
        return np.zeros(size), np.eye(size), max(decrements)

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (d,) and a factor (d, r) of the covariance of theta, for psi Gaussian.

        Where psi is the one of `mode()`, coefficients are averaged over hyperparameters, exactly
        given each of them. Otherwise theta is averaged over draws of psi, unless it is linear.
        """
        if not self.theta_is_linear and self.mode() is None:
            theta = self.draws(mode + normal_points(MOMENT_DRAWS, len(mode)) @ factor.T)
            return theta.mean(axis=0), factor_draws(theta)
        density = self.density
        equations = iter(zip(self.equations, density.known, density.charts, strict=True))
        blocks = iter(density.blocks.charts)
        pairs = [
            _mixture_moments(*next(equations)) if isinstance(part, Equation) else next(blocks)
            for part in self.parts
        ]
        means, roots = zip(*pairs, strict=True)
        centre, root = np.concatenate(means), block_diag(*roots)
        return (centre + root @ mode, root @ factor) if self.theta_is_linear else (centre, root)

    def given_hyperparameters(self) -> "SCM | None":
        """Return the model with hyperparameters at the mode of their evidence.

        None beside user-defined mechanisms, which have no closed form.
        """
        return None if self.blocks else replace(self, fixed=True)

    def draws(self, psi: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at coordinates (n, k): the parameters of n models."""
        return self._evaluate(psi)[0]

    def log_priors(self, psi: np.ndarray) -> np.ndarray | None:
        """Return the log prior at coordinates (n, k), up to a constant; see `SCMDensity`.

        None where the density must be evaluated for it: beside user-defined mechanisms.
        """
        return None if self.blocks else self._evaluate(psi)[1]

    def log_posteriors(self, psi: np.ndarray) -> np.ndarray | None:
        """Return the log posterior at coordinates (n, k), up to a constant.

        None beside user-defined mechanisms and outcomes of the target alone.
        """
        return None if self.blocks or self.mode() is None else self._evaluate(psi)[2]

    @cached_property
    def _reduced(self) -> list[Reduced]:
        """Return every equation without coefficients that are negligible near the mode."""
        terms = []
        for (equation, _, known), chart in zip(self.bound, self.density.charts, strict=True):
            farther = chart._replace(root=FARTHEST_SHARE * np.asarray(chart.root))
            terms.append((equation.form, known, chart, mixture_points(farther)))
        return reduce_mechanisms(terms)

    def _evaluate(self, psi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return theta (n, d), and log prior and posterior (n,) of equations, at psi (n, k)."""
        psi, found, start = np.asarray(psi), dict[Part, np.ndarray](), 0
        log_prior, log_posterior = np.zeros((2, len(psi)))
        terms = zip(self.equations, self.density.charts, self._reduced, strict=True)
        for equation, chart, reduced in terms:
            size, free = equation.form.size, np.shape(chart.root)[1]
            z, u = psi[:, start : start + size], psi[:, start + size : start + size + free]
            start += size + free
            more = reduced.scales.fixed.shape[0] - size, len(reduced.chart.centre) - free
            pair = np.pad(z, ((0, 0), (0, more[0]))), np.pad(u, ((0, 0), (0, more[1])))
            numbers = in_pieces(partial(_evaluate_pair, reduced), pair, len(psi))
            coefficients, log_sd, prior, posterior = map(np.asarray, numbers)
            found[equation] = np.column_stack([coefficients[:, :size], log_sd])
            log_prior, log_posterior = log_prior + prior, log_posterior + posterior
        for (block, _), (centre, root) in zip(self.custom, self.density.blocks.charts, strict=True):
            found[block] = centre + psi[:, start : start + block.size] @ root.T
            start += block.size
        theta = np.concatenate([found[part] for part in self.parts], axis=1)
        return theta, log_prior, log_posterior

    def theta(self, draws: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models."""
        return np.asarray(draws)

    def _split(self, draws: np.ndarray) -> dict[Part, np.ndarray]:
        """Return the coordinates (n, k) of every part."""
        pieces = split_parts(tuple(self.parts), np.asarray(draws))
        return dict(zip(self.parts, pieces, strict=True))

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable, as `disturbances`, is Gaussian with one sd, (p,)."""
        noisy = [
            name for name, (part, _) in self._owners.items() if isinstance(part, NoisyEquation)
        ]
        return self._has_one_sd | np.isin(self.nodes, noisy)

    @property
    def _has_one_sd(self) -> np.ndarray:
        named = {
            name: isinstance(part, Equation) or part.adds_noise
            for name, (part, _) in self._owners.items()
        }
        return np.array([named.get(name, not self.blocks) for name in self.nodes])

    def scales(self, draws: np.ndarray) -> np.ndarray | None:
        """Return the sds of the noise (n, p); 1 for variables that are not learned.

        None beside user-defined mechanisms, where some depend on the causes or are not learned.
        """
        if not self._has_one_sd.all():
            return None
        sds, thetas = np.ones((len(draws), len(self.nodes))), self._split(draws)
        for name, (part, setting) in self._owners.items():
            floor = 0.0 if isinstance(part, Equation) else float(setting.floor)
            sds[:, self.graph.index(name)] = np.hypot(np.exp(thetas[part][:, -1]), floor)
        return sds

    def _means(self, draws: np.ndarray, values: np.ndarray, name: str) -> np.ndarray:
        """Return the means (n, m) of a variable given values (n or 1, m, p)."""
        part, setting = self._owners[name]
        return means_given(part, setting, self.nodes, name, self._split(draws)[part], values)

    def log_densities(self, draws: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, m, p)."""
        logs, thetas = np.zeros((len(draws), *values.shape)), self._split(draws)
        free = free & self.learned
        for equation in self.equations:
            position, log_sd = equation.position, thetas[equation][:, -1:]
            means = self._means(draws, values[None], self.nodes[position])
            terms = -0.5 * ((values[:, position] - means) * np.exp(-log_sd)) ** 2 - log_sd
            logs[:, :, position] = np.where(free[:, position], terms - 0.5 * LOG_TWO_PI, 0.0)
        usual = values[free.argmax(axis=0), np.arange(values.shape[1])]
        arrays = map(jnp.asarray, (values, np.where(free, values, usual), free))
        observed = PaddedObservations(*arrays)
        for block, setting in self.custom:
            places = [self.graph.index(name) for name in block.variables]
            work = partial(block_log_densities_of_many, block, self.nodes, setting, observed)
            logs[:, :, places] = in_pieces(work, thetas[block], len(draws))
        return logs

    def replicate(self, draws: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one sample of all variables for each of n models and m queries, (n, m, p).

        Variables that no effect depends on are drawn from Gaussians with their mean and sd.
        """
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        samples = np.zeros((len(draws), *mask.shape)) + np.where(mask, value, 0.0)
        generator, thetas = host_generator(key), self._split(draws)

        def fill(name: str, drawn: np.ndarray) -> None:
            position = self.nodes.index(name)
            samples[:, :, position] = np.where(mask[:, position], value[:, position], drawn)

        for position, name in enumerate(self.nodes):
            if name not in self._owners and not mask[:, position].all():
                centre = self.prior.centres.get(name, self.typical.centre[position])
                scale = self.prior.scales.get(name, self.typical.scale[position])
                fill(name, centre + scale * generator.standard_normal(samples.shape[:2]))

        def draw(name: str, inputs: np.ndarray) -> np.ndarray:
            part, setting = self._owners[name]
            if isinstance(part, Equation):
                noise = generator.standard_normal(inputs.shape[:2])
                means = self._means(draws, inputs, name)
                return np.asarray(means + np.exp(thetas[part][:, -1:]) * noise)
            seeds = generator.integers(0, 2**31, (len(draws), 1))
            rows = thetas[part], seeds, inputs.reshape(len(draws), -1)

            fixed = part, name, self.nodes, setting

            def sample(row: Any) -> Any:
                values = row[2].reshape(-1, *inputs.shape[1:])
                return block_samples_of_each(*fixed, row[0], row[1], values)

            return np.asarray(in_pieces(sample, rows, len(draws)))

        if self.plans is not None:
            return draw_under_plans(
                self.plans, tuple(self._owners), self.nodes, samples, mask, draw
            )
        for name in self._owners:
            fill(name, draw(name, samples))
        return samples

    def disturbances(self, draws: np.ndarray, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (n, m) of one variable in observations (n or 1, m, p).

        Noise that varies in size, or has heavy tails, is given by its normal scores times a typical
        sd: Gaussian with one sd under the model.
        """
        part, setting = self._owners[self.nodes[position]]
        own = self._split(draws)[part]
        return noise_given(part, setting, self.nodes, self.nodes[position], own, values)

    def outcome_variances(self, draws: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        self.response.require_planned(np.asarray(queries.mask))
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

    def with_observations(self, observations: Data) -> "SCM":
        """Return the same model with more observations; formulas without noise must hold there."""
        require_formulas(self.blocks, observations, self.kinds.exact)
        return replace(self, task=replace(self.task, data=self.data.join(observations)))

    def target_observations(
        self, queries: Queries, outcomes: np.ndarray
    ) -> tuple[np.ndarray, Data]:
        """Return which outcomes (M,) of the target alone inform its mechanism as observations.

        The second result are these observations. Under latent causes, and beside user-defined
        mechanisms, there are none.
        """
        if self.plans is not None or self.blocks:
            return np.zeros(len(queries), bool), self.data.select(slice(0, 0))
        return observations_of_target(self.task.problem, self.data, queries, outcomes)

    def draw_prior(self, n: int, key: jax.Array) -> PriorDraws:
        """Draw theta (n, d) and hyperparameters (n, H); an improper prior is refused by name."""
        generator, known = host_generator(key), iter(each.known for each in self.bound)
        thetas, etas = [], [np.zeros((n, 0))]
        for part, setting in self.parts.items():
            if isinstance(part, Equation):
                theta, eta = _draw_equation(part, next(known), n, generator)
                etas.append(eta)
            else:
                seeds = generator.integers(0, 2**31, n)
                theta = np.asarray(prior_draws(part, self.nodes, setting, self.typical, seeds))
            thetas.append(theta)
        return PriorDraws(np.concatenate(thetas, axis=1), np.concatenate(etas, axis=1))

    def hyperparameters(self, psi: np.ndarray) -> np.ndarray:
        """Return the hyperparameters (n, H) of all equations at coordinates (n, k)."""
        etas, start = [np.zeros((len(psi), 0))], 0
        for equation, (centre, root) in zip(self.equations, self.density.charts, strict=True):
            first = start + equation.form.size
            start = first + np.shape(root)[1]
            etas.append(np.asarray(centre) + psi[:, first:start] @ np.asarray(root).T)
        return np.concatenate(etas, axis=1)

    @cached_property
    def _coefficients(self) -> list[tuple[str, str, int]]:
        """(variable, label, place in theta) of all coefficients but the log sds of the noise."""
        entries, start = [], 0
        for part in self.parts:
            if isinstance(part, Equation):
                names = [name for name, _, _ in coordinate_names(self.graph, part)]
                for place, name in enumerate(names[:-1], start=start):
                    variable, _, label = name.removesuffix("]").partition("[")
                    entries.append((variable, label, place))
            start += part.size
        return entries

    @cached_property
    def _hyperparameters(self) -> list[tuple[str, str, int]]:
        """(variable, label, place) of hyperparameters; none where they are held at their mode."""
        entries: list[tuple[str, str, int]] = []
        place = 0
        for equation in () if self.fixed else self.equations:
            sites = scale_sites(self.graph, equation)
            for number, (site, label) in enumerate(sites[1:], start=place + 1):
                entries.append((site.partition("[")[0], label, number))
            place += len(sites)
        return entries

    @cached_property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The names of what coefficients and hyperparameters belong to, by dimension."""
        names: dict[str, dict[str, None]] = {dim: {} for dim in GP_DIMENSIONS.values()}
        for variable, label, _ in (*self._coefficients, *self._hyperparameters):
            names[GP_DIMENSIONS[variable]][label] = None
        return {dim: tuple(labels) for dim, labels in names.items()}

    def named(
        self, draws: np.ndarray, hyperparameters: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return the coefficients, and the hyperparameters that are drawn, by name."""
        parts = [(self._coefficients, draws)]
        if hyperparameters is not None:
            parts.append((self._hyperparameters, np.exp(hyperparameters)))
        found = {}
        for entries, source in parts:
            for variable in GP_DIMENSIONS:
                places = [place for name, _, place in entries if name == variable]
                if places:
                    found[variable] = source[:, places]
        return found

    def basis(self) -> pd.DataFrame:
        """Return a table with a row for every Gaussian process: its basis, and its resolution."""
        rows = []
        for (equation, setting, _), mode in zip(self.bound, self.modes, strict=True):
            start, names = 2, [self.nodes[position] for position in equation.causes]
            for group in equation.form.groups:
                scales = mode.eta[start : start + 1 + len(group.columns)]
                start += len(scales)
                half = BOUNDARY_FACTOR * np.asarray(setting.frame.half)[list(group.columns)]
                resolved = FUNCTIONS_PER_LENGTHSCALE * half / np.array(group.functions)
                rows.append(
                    {
                        "variable": self.nodes[equation.position],
                        "causes": ", ".join(names[column] for column in group.columns),
                        "kernel": group.kernel,
                        "functions": group.size,
                        "amplitude": float(np.exp(scales[0])),
                        "lengthscale": float(np.exp(scales[1:]).min()),
                        "resolved": float(resolved.max()),
                        "error": kernel_error(group, setting.frame, scales),
                    }
                )
        return pd.DataFrame(rows)

    def regressions(self, usable: np.ndarray) -> list[FittedRegression] | None:
        """Return every regression at the mode of its hyperparameters, for usable entries (n, p).

        None beside user-defined mechanisms, which are no regressions.
        """
        if self.blocks:
            return None
        return fitted_regressions(self.bound, self.modes, self.data, self.nodes, usable)

    def held_out(self) -> dict[str, HeldOut] | None:
        """Hold out every observation of every equation, in closed form given hyperparameters.

        They are averaged over as the moments of theta are. None beside user-defined mechanisms, and
        where outcomes of the target alone join the mechanisms.
        """
        if self.blocks or self.mode() is None:
            return None
        usable, found = self.usable(self.data), {}
        samples = samples_of_mechanisms(self.bound, self.data, self.nodes, usable)
        for bound, chart, sample in zip(self.bound, self.density.charts, samples, strict=True):
            position = bound.equation.position
            rows = np.flatnonzero(usable[:, position])
            if len(rows):
                etas = mixture_points(chart)
                logs = log_sds_of_many(scales_of(bound.equation.form, bound.known), etas)
                parts = hold_out_given(bound, etas, np.asarray(logs), sample)
                found[self.nodes[position]] = HeldOut.known(rows, *parts)
        return found

    def unevenness(self) -> list[Unevenness]:
        """Return for every Gaussian-process mechanism whether its curvature is uneven."""
        return uneven_mechanisms(
            self.bound, self.modes, self.data, self.nodes, self.usable(self.data)
        )

    def explain(self) -> str:
        """Return a message about a density that is not finite."""
        for block, setting in self.custom:
            if not np.isfinite(self._densities_at_zero(block, setting)).all():
                return self._explain_block(block, setting)
        advice = "" if self.blocks else ", or give another cb.priors.GPPrior"
        return (
            "the density of these mechanisms is not finite where the search should start; look for "
            f"impossible values of {listed(self.nodes)}{advice}"
        )

    def _densities_at_zero(self, block: Block, setting: Noise) -> np.ndarray:
        """Return the log likelihoods (v,) of the variables of a block at coordinates of 0."""
        fixed = block, self.nodes, setting, self.observations
        logs = np.asarray(block_log_densities_of_many(*fixed, np.zeros((1, block.size))))
        return np.asarray(logs[0].sum(axis=0))

    def _explain_block(self, block: Block, setting: Noise) -> str:
        """Return a message that names the variables whose density is not finite."""
        logs = self._densities_at_zero(block, setting)
        wrong = [n for n, log in zip(block.variables, logs, strict=True) if not np.isfinite(log)]
        names = listed(wrong or block.variables)
        return (
            f"the log density of {names} or its derivatives are not finite for any parameters that "
            f"were tried (coordinates of 0, medians of the priors and draws from them), so that "
            f"{block.owner} cannot be fitted: look for values outside the support of its "
            "distribution, logarithms or roots of negative numbers, and priors far from the data"
        )


def _evaluate_pair(reduced: Reduced, pair: tuple[np.ndarray, np.ndarray]) -> Any:
    return evaluate_many(reduced, *pair)


def mixture_points(chart: AffineChart) -> np.ndarray:
    """Return hyperparameters (n, H) that averages over them are made of."""
    points = normal_points(MIXTURE_POINTS, chart.root.shape[1])
    return np.asarray(chart.centre + points @ chart.root.T)


def _mixture_moments(
    equation: Equation, known: KnownTerms, chart: AffineChart
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (k,) and a factor (k, k) of the covariance of one equation's theta.

    Coefficients are averaged over hyperparameters, exactly given each of them.
    """
    mean, covariance = map(np.asarray, mix(equation.form, known, mixture_points(chart)))
    return mean, factor_covariance(covariance)


def _draw_equation(
    equation: Equation, known: KnownTerms, n: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw coefficients and log sd (n, K + 1) of an equation, and its hyperparameters (n, H)."""
    prior = known.prior
    eta = prior.centre + prior.width * generator.standard_normal((n, equation.form.scales))
    white = generator.standard_normal((n, equation.form.size))
    log_sd = in_pieces(partial(log_sds_of_many, scales_of(equation.form, known)), eta, n)
    coefficients = np.exp(np.asarray(log_sd)) * white
    coefficients[:, 0] += prior.level
    return np.column_stack([coefficients, eta[:, :1]]), eta


def _noise_direction(mode: Mode) -> np.ndarray:
    """Return the direction (H, 1) in which only the log sd of the noise changes."""
    precision = np.linalg.inv(mode.root @ mode.root.T)
    return np.eye(len(mode.eta))[:, :1] / math.sqrt(max(precision[0, 0], 1e-12))
