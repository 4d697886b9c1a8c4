"""Linear mechanisms of one problem: how a graph, a prior and observations become a density.

    V_j = level_j + sum_i b_ij (V_i - c_i) + e_j,  e ~ N(0, S R S).

`linear_program` is the prior as a NumPyro program, which prior draws are made by and the density is
tested against. What is fitted is `density.LinearDensity`, which has the same density and is faster.
The posterior of every equation on its own, as if no latent cause joined any, gives the centre and
the widths of its coordinates.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import norm
from scipy.stats import t as student

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.data.outcomes import Outcomes
from causal_bo_ppl.errors import MechanismError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.linear import sem
from causal_bo_ppl.mechanisms.linear.density import (
    DataTerms,
    LinearDensity,
    Spec,
    Whitening,
    correlation_factor,
    noise_root,
)
from causal_bo_ppl.mechanisms.linear.parameters import (
    needed_equations,
    read_parameters,
    read_prior,
    require_learned,
)
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.regressions import Equations, learn_equations
from causal_bo_ppl.mechanisms.linear.responses import EffectResponse, StructuralResponse
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, Models
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows

LinearResponse = StructuralResponse | EffectResponse


def linear_program(
    graph: CausalGraph, prior: FixedPrior, known: Mapping[Edge, float], intercepts: bool
) -> Callable[[], LinearSEM]:
    """Return the NumPyro program of a fixed prior, which returns the model that it drew.

    Its sites are s2[X], b[X->Z], level[X] and t[X<->Y]; known coefficients, variances that the
    prior knows, and levels of equations without intercepts have none.
    """

    def variance(node: str) -> Any:
        shape, guess = prior.noise_observations / 2, prior.noise_guess(node)
        if math.isinf(shape):
            return guess
        rate = prior.noise_observations * guess / 2
        return numpyro.sample(f"s2[{node}]", dist.InverseGamma(shape, rate))

    def slope(cause: str, effect: str, noise_sd: jax.Array) -> Any:
        if (cause, effect) in known:
            return known[cause, effect]
        mean, sd = prior.slopes.get((cause, effect), (0.0, None))
        width = (
            prior.slope_sd / prior.scales.get(cause, 1.0)
            if sd is None
            else sd / prior.noise_guess(effect) ** 0.5
        )
        return numpyro.sample(f"b[{cause}->{effect}]", dist.Normal(mean, noise_sd * width))

    def parameters() -> LinearSEM:
        size = len(graph.nodes)
        weights, offsets, sds = jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(size)
        for position, node in enumerate(graph.nodes):
            sd = jnp.sqrt(variance(node))
            sds = sds.at[position].set(sd)
            at_centres = 0.0
            for cause in graph.parents(node):
                b = slope(cause, node, sd)
                weights = weights.at[graph.index(cause), position].set(b)
                at_centres += b * prior.centres.get(cause, 0.0)
            if intercepts:
                centred = dist.Normal(prior.centres.get(node, 0.0), sd * prior.intercept_sd)
                level = numpyro.sample(f"level[{node}]", centred)
                offsets = offsets.at[position].set(level - at_centres)
        arcs = [(graph.index(one), graph.index(other)) for one, other in graph.bidirected]
        strengths = [
            numpyro.sample(f"t[{one}<->{other}]", dist.Normal(0.0, prior.latent_sd))
            for one, other in graph.bidirected
        ]
        root = sds[:, None] * correlation_factor(size, arcs, jnp.array(strengths))
        return LinearSEM(weights, offsets, root @ root.T)

    return parameters


def draw_models(
    graph: CausalGraph,
    prior: FixedPrior,
    known: Mapping[Edge, float],
    intercepts: bool,
    n: int,
    key: jax.Array,
) -> Models:
    """Draw n models from a fixed prior, by running the NumPyro program n times at once."""
    program = _batched_program(graph, prior, tuple(known.items()), intercepts)
    seed = int(host_generator(key).integers(2**62))  # whatever kind of key was given
    keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), n)
    with HANDLER_LOCK:  # taken before JAX's own locks, never while it holds them
        parts = in_pieces(program, np.asarray(jax.random.key_data(keys)), n)
    weights, offsets, noises = map(np.asarray, parts)
    return Models(np.concatenate([weights, offsets[:, None, :]], axis=1), noises)


@lru_cache(maxsize=16)
def _batched_program(
    graph: CausalGraph, prior: FixedPrior, known: tuple[tuple[Edge, float], ...], intercepts: bool
) -> Callable[[jax.Array], LinearSEM]:
    program = linear_program(graph, prior, dict(known), intercepts)

    def run(words: jax.Array) -> LinearSEM:
        with numpyro.handlers.seed(rng_seed=jax.random.wrap_key_data(words, impl="threefry2x32")):
            return program()

    return jax.jit(jax.vmap(run))


class Linear:
    """The family V = a + W'V + e with Gaussian noise; see `base.Mechanisms`."""

    name = "linear"
    is_linear = True

    def default_method(self, problem: Problem) -> str:
        """Return "conjugate", or "wishart" where latent causes join causes of the target."""
        has_latent_causes = bool(problem.graph.ancestral(problem.target).bidirected)
        return "wishart" if has_latent_causes else "conjugate"

    def proper_prior(self, problem: Problem) -> FixedPrior:
        """Return a prior from which models can be drawn."""
        return FixedPrior()

    def bind(self, task: Task) -> "LinearModel":
        """Return the model of a problem with its prior and observations."""
        prior: ScaledPrior | FixedPrior = read_prior(task, ScaledPrior, FixedPrior)
        parameters = read_parameters(task, default="structural")
        problem, known = task.problem, parameters.explored.known
        graph = problem.graph.ancestral(problem.target)
        if isinstance(prior, ScaledPrior):
            needed = np.array(graph.nodes)[needed_equations(parameters, graph)].tolist()
            spare = 3 + task.intercepts
            require_learnable(task.data, problem.graph, problem.known, nodes=needed, spare=spare)
        outcomes = task.outcomes.columns([problem.graph.index(name) for name in graph.nodes])
        require_learned(parameters, graph.nodes, outcomes)
        response = make_response(problem, parameters)
        return LinearModel(
            problem, graph, known, task.intercepts, prior, response, task.data, outcomes
        )

    def response(self, task: Task) -> LinearResponse:
        """Return the map from theta to effects, which needs no observations."""
        return make_response(task.problem, read_parameters(task, default="structural"))


def make_response(problem: Problem, parameters: Parameters) -> LinearResponse:
    """Return the map from parameters of any kind to effects."""
    kind = StructuralResponse if parameters.kind == "structural" else EffectResponse
    return kind(problem, parameters)


@dataclass(frozen=True, eq=False)
class LinearModel(sem.LinearObservations):
    """The linear SEM of the target's ancestral graph with its observations; see `base.Model`.

    scale_by_sd: see `density`.
    """

    problem: Problem
    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    response: LinearResponse
    data: Data
    outcomes: Outcomes
    scale_by_sd: bool = True

    @cached_property
    def learned(self) -> np.ndarray:
        """Whether each variable's equation is learned, of shape (p,)."""
        return needed_equations(self.response.parameters, self.graph)

    @cached_property
    def equations(self) -> Equations:
        """Every equation by its own regression."""
        return learn_equations(
            self.graph, self.known, self.intercepts, self.prior, self.learned, self.data
        )

    @cached_property
    def spec(self) -> Spec:
        """The static structure of the density."""
        return self.equations.spec(self.scale_by_sd)

    @cached_property
    def density(self) -> LinearDensity:
        """Prior and likelihood; new observations change its arrays only."""
        prior, reader = self.equations.prior_terms, self.response.reader
        return LinearDensity(self._whitening(), prior, self._data_terms(), reader, self.spec)

    def _whitening(self) -> Whitening:
        solved, needed = self.equations.posterior, self.learned
        if self.spec.known_noise:
            log_sd, width = 0.5 * np.log(solved.variance[needed]), np.zeros(needed.sum())
        else:
            log_sd = 0.5 * np.log(solved.rate[needed] / solved.shape[needed])
            width = 0.5 / np.sqrt(solved.shape[needed])
        arc_width = np.asarray(1 / np.sqrt(1.0 + len(self.data)))
        return Whitening(solved.mean[needed], solved.root[needed], log_sd, width, arc_width)

    def _data_terms(self) -> DataTerms:
        columns = [self.data.nodes.index(name) for name in self.graph.nodes]
        values, free = self.data.values[:, columns], ~self.data.intervened[:, columns]
        first, which = distinct_rows(free)
        whole, size = np.column_stack([values, np.ones(len(values))]), len(columns) + 1
        groups = 1 << max(len(first) - 1, 0).bit_length()
        factors, counts = np.zeros((groups, size, size)), np.zeros(groups)
        patterns = np.zeros((groups, size - 1))
        for group, pattern in enumerate(free[first]):
            factor = np.linalg.qr(whole[which == group], mode="r")
            factors[group, : len(factor)] = factor
            patterns[group], counts[group] = pattern, (which == group).sum()
        return DataTerms(factors, patterns, counts, *self.outcomes.padded())

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Name of the parameter that each coordinate of psi changes."""
        nodes = (*self.graph.nodes, "1")
        pairs = zip(*self.spec.positions, strict=True)
        names = [f"b[{nodes[cause]}->{nodes[effect]}]" for cause, effect in pairs]
        if not self.spec.known_noise:
            names += [f"sd[{nodes[position]}]" for position in self.spec.equations]
        return (*names, *(f"t[{nodes[one]}<->{nodes[other]}]" for one, other in self.spec.arcs))

    @property
    def is_correlated(self) -> bool:
        """Whether latent causes correlate the coordinates a posteriori."""
        return bool(self.spec.arcs)

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi."""
        return (not self.response.is_linear) and (not self.scale_by_sd or self.spec.known_noise)

    def draws(self, psi: np.ndarray) -> Models:
        """Return the models at coordinates (n, k)."""
        matrices, noises = in_pieces(partial(_models, self.density), np.asarray(psi), len(psi))
        return Models(np.asarray(matrices), np.asarray(noises))

    def theta(self, draws: Models) -> np.ndarray:
        """Return theta (n, d) of models."""
        return self.response.read(draws.matrices)

    def outcome_variances(self, draws: Models, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        matrix, noise = draws.matrices.mean(axis=0), draws.noises.mean(axis=0)
        return sem.outcome_variances(matrix, noise, self.learned, queries)

    def outcome_densities(self, draws: Models) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        return sem.outcome_densities(draws, self.outcomes.queries, self.outcomes.values)

    def with_observations(self, data: Data) -> "LinearModel":
        """Return the same model with more observations."""
        return replace(self, data=self.data.join(data))

    def closed_form(self) -> Equations:
        """Return the posterior in closed form; refused where a latent cause joins two equations."""
        if self.graph.bidirected:
            one, other = self.graph.bidirected[0]
            raise MechanismError(
                f"conjugate regressions would be biased: a latent cause joins {one!r} and "
                f'{other!r}, upstream of the target; use method="wishart", which is valid under '
                "latent confounding"
            )
        return self.equations

    def draw_prior(self, n: int, key: jax.Array) -> Models | None:
        """Draw n models from the prior; None under a prior that is scaled to the data."""
        if not isinstance(self.prior, FixedPrior):
            return None
        return draw_models(self.graph, self.prior, self.known, self.intercepts, n, key)

    def with_linear_theta(self, psi: np.ndarray | None = None) -> tuple["LinearModel", Any]:
        """Return the same model, and coordinates (n, k), in which coefficients are linear."""
        model = replace(self, scale_by_sd=False)
        if psi is None or not self.scale_by_sd or self.spec.known_noise:
            return model, psi
        count, scales, _ = self.spec.sizes
        logs = psi[:, count : count + scales] * self.density.whitening.sd_width
        factor = np.exp(logs)[:, np.nonzero(self.spec.used)[0]]
        return model, np.concatenate([psi[:, :count] * factor, psi[:, count:]], axis=1)

    def mode_coverage(self, level: float) -> float:
        """Return the exact posterior probability of an interval of the Gaussian at the mode.

        It is that of a coefficient in the worst regression: exactly it is Student's t with nu
        degrees of freedom and scale s, and at the mode Gaussian with sd s sqrt(nu / (nu + k)), with
        k the number of coefficients.
        """
        if self.spec.known_noise:
            return level
        used = (self.equations.causes >= 0).sum(axis=1)[self.learned]
        degrees = 2 * self.equations.posterior.shape[self.learned]
        half = norm.ppf((1 + level) / 2) * np.sqrt(degrees / (degrees + used))
        return float(np.min(1 - 2 * student.sf(half, degrees)))

    def coefficient_ratio(
        self, draws: Models, n: int, generator: np.random.Generator
    ) -> np.ndarray | None:
        """Return log ratios (n,) of the exact density of coefficients to that of a Gaussian.

        The Gaussian has the mean and covariance of `draws`, from which n points are drawn. None
        where latent causes or outcomes join the equations.
        """
        if self.spec.arcs or len(self.outcomes.values):
            return None
        coefficients = draws.matrices[:, *self.spec.positions]
        centre, size = coefficients.mean(axis=0), coefficients.shape[1]
        root = np.linalg.cholesky(np.cov(coefficients.T).reshape(size, -1))
        z = generator.standard_normal((n, size))
        used = np.nonzero((self.equations.causes >= 0) & self.learned[:, None])
        proposed = np.zeros((n, 1, 1)) + self.equations.posterior.mean
        proposed[:, *used] = centre + z @ root.T
        return np.asarray(self.equations.log_student(proposed) + 0.5 * (z**2).sum(axis=1))


@jax.jit
@partial(jax.vmap, in_axes=(None, 0))
def _models(density: LinearDensity, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    point = density.point(psi)
    root = noise_root(density.spec, point)
    return point.matrix, root @ root.T
