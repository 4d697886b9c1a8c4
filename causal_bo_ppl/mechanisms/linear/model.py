"""The linear-Gaussian SEM as a NumPyro program: parameters, disturbances, then all variables.

    V_j = level_j + sum_i b_ij (V_i - c_i) + e_j,  e ~ N(0, S R S).

It is there to be read, simulated and checked against. What is fitted is `density.LinearDensity`,
which has the same density and is faster.

Linear mechanisms of one problem: how a graph, a prior and rows become a density.

The posterior of every equation on its own, as if no latent cause joined any, says where to start
and how wide to look.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

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
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.base import ResponseMap, Task
from causal_bo_ppl.mechanisms.linear import sem
from causal_bo_ppl.mechanisms.linear.density import (
    Chart,
    LinearDensity,
    RowTerms,
    Spec,
    correlation_factor,
    noise_root,
)
from causal_bo_ppl.mechanisms.linear.parameters import (
    identified,
    needed_equations,
    read_parameters,
    read_prior,
    require_learned,
)
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.regressions import Equations, learn_equations
from causal_bo_ppl.mechanisms.linear.responses import EffectResponse, StructuralResponse
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, Models
from causal_bo_ppl.mechanisms.simulation import HANDLER_LOCK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows


class NodePrior(NamedTuple):
    """The prior of one equation.

    Given s2, a slope is N(mean, s2 width^2) and the level is N(centre, s2 width^2).

    centre: the c of this variable. slopes: (parent, mean, width) of every parent; the width is 0
    where the slope is known. level: (centre, width), or None for an equation without intercept.
    noise: shape and rate of s2 ~ IG. guess: the prior guess of s2, which is its value where the
    shape is infinite.
    """

    centre: float
    slopes: tuple[tuple[str, float, float], ...]
    level: tuple[float, float] | None
    noise: tuple[float, float]
    guess: float


def linear_program(
    graph: CausalGraph, priors: tuple[NodePrior, ...], latent_sd: float = 1.0
) -> Callable[[], LinearSEM]:
    """Return the program of the parameters, which returns the model that it drew.

    Its sites are s2[X], b[X->Z], level[X] and t[X<->Y].
    """

    def variance(node: str, prior: NodePrior) -> Any:
        shape, rate = prior.noise
        return (
            prior.guess
            if math.isinf(shape)
            else numpyro.sample(f"s2[{node}]", dist.InverseGamma(shape, rate))
        )

    def slope(cause: str, effect: str, mean: float, width: Any) -> Any:
        return numpyro.sample(f"b[{cause}->{effect}]", dist.Normal(mean, width))

    def parameters() -> LinearSEM:
        size = len(graph.nodes)
        weights, intercepts, sds = jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(size)
        for position, (node, prior) in enumerate(zip(graph.nodes, priors, strict=True)):
            sd = jnp.sqrt(variance(node, prior))
            sds = sds.at[position].set(sd)
            at_centres = 0.0
            for cause, mean, width in prior.slopes:
                b = slope(cause, node, mean, sd * width) if width else mean
                weights = weights.at[graph.index(cause), position].set(b)
                at_centres += b * priors[graph.index(cause)].centre
            if prior.level is not None:
                level = numpyro.sample(
                    f"level[{node}]", dist.Normal(prior.level[0], sd * prior.level[1])
                )
                intercepts = intercepts.at[position].set(level - at_centres)
        arcs = [(graph.index(one), graph.index(other)) for one, other in graph.bidirected]
        drawn = [
            numpyro.sample(f"t[{one}<->{other}]", dist.Normal(0.0, latent_sd))
            for one, other in graph.bidirected
        ]
        root = sds[:, None] * correlation_factor(size, arcs, jnp.array(drawn))
        return LinearSEM(weights, intercepts, root @ root.T)

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
    program = _many(
        graph,
        tuple(node_prior(graph, prior, node, known, intercepts) for node in graph.nodes),
        prior.latent_sd,
    )
    seed = int(host_generator(key).integers(2**62))  # whatever kind of key was given
    keys = np.asarray(
        jax.random.key_data(jax.random.split(jax.random.key(seed, impl="threefry2x32"), n))
    )
    with HANDLER_LOCK:  # taken before JAX's own locks, never while it holds them
        weights, levels, noises = map(np.asarray, in_pieces(program, keys, n))
    return Models(np.concatenate([weights, levels[:, None, :]], axis=1), noises)


@lru_cache(maxsize=16)
def _many(
    graph: CausalGraph, priors: tuple[NodePrior, ...], latent_sd: float
) -> Callable[[jax.Array], LinearSEM]:
    program = linear_program(graph, priors, latent_sd)

    def one(words: jax.Array) -> LinearSEM:
        with numpyro.handlers.seed(rng_seed=jax.random.wrap_key_data(words, impl="threefry2x32")):
            return program()

    return jax.jit(jax.vmap(one))


def node_prior(
    graph: CausalGraph, prior: FixedPrior, node: str, known: Mapping[Edge, float], intercepts: bool
) -> NodePrior:
    """Return what a fixed prior says about one equation."""
    guess = prior.noise_guess(node)

    def slope(cause: str) -> tuple[str, float, float]:
        if (cause, node) in known:
            return cause, known[cause, node], 0.0
        mean, sd = prior.slopes.get((cause, node), (0.0, None))
        return (
            cause,
            mean,
            prior.slope_sd / prior.scales.get(cause, 1.0) if sd is None else sd / guess**0.5,
        )

    centre = prior.centres.get(node, 0.0)
    return NodePrior(
        centre,
        tuple(map(slope, graph.parents(node))),
        (centre, prior.intercept_sd) if intercepts else None,
        (prior.noise_rows / 2, prior.noise_rows * guess / 2),
        guess,
    )


class Linear:
    """The family V = a + W'V + e with Gaussian disturbances; see `interfaces.Mechanisms`."""

    name = "linear"
    is_linear = True

    def default_method(self, problem: Problem) -> str:
        """Return "conjugate", or "wishart" where latent causes join causes of the target."""
        is_joined = bool(problem.graph.ancestral(problem.target).bidirected)
        return "wishart" if is_joined else "conjugate"

    def proper_prior(self, problem: Problem) -> FixedPrior:
        """Return a prior from which models can be drawn."""
        return FixedPrior()

    def bind(self, task: Task) -> "LinearModel":
        """Return the model of a problem with its prior and rows."""
        parameters = read_parameters(task, default="structural")
        graph = task.problem.graph.ancestral(task.problem.target)
        prior = read_prior(task)
        if isinstance(prior, MomentPrior):
            raise ModelError(
                "a MomentPrior is for method='wishart'; this method takes a ScaledPrior or a "
                "FixedPrior"
            )
        if isinstance(prior, FixedPrior):
            prior.require_no_known(parameters.explored.known)
        else:
            opened = {name for each in parameters.explored.reductions for name in each.open}
            needed = {name for each in opened for name in graph.district(each)}
            spare = 3 + task.intercepts
            require_learnable(
                task.data, task.problem.graph, task.problem.known, nodes=needed, spare=spare
            )
        columns = [task.problem.graph.index(name) for name in graph.nodes]
        outcomes = task.outcomes.columns(columns)
        require_learned(parameters, graph.nodes, outcomes)
        return LinearModel(
            task.problem,
            graph,
            parameters.explored.known,
            task.intercepts,
            prior,
            make_response(task.problem, parameters),
            task.data,
            outcomes,
        )

    def response(self, task: Task) -> ResponseMap:
        """Return the map from theta to effects, which needs no rows."""
        return make_response(task.problem, read_parameters(task, default="structural"))


LinearResponse = StructuralResponse | EffectResponse


def make_response(problem: Problem, parameters: Parameters) -> LinearResponse:
    """Return the map from parameters of any kind to effects."""

    def needs_linearity() -> bool:
        found = identified(problem, False)
        return not all(found[members].identifiable for members in parameters.explored.sets)

    kind = StructuralResponse if parameters.kind == "structural" else EffectResponse
    return kind(problem, parameters, needs_linearity)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The linear SEM of the target's ancestral graph with its rows; see `interfaces.Model`.

    follows: see `density`.
    """

    problem: Problem
    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    response: LinearResponse
    data: Data
    outcomes: Outcomes
    follows: bool = True

    @property
    def nodes(self) -> tuple[str, ...]:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

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
        """What is compiled."""
        return self.equations.spec(self.follows)

    @cached_property
    def density(self) -> LinearDensity:
        """Prior and likelihood; new rows change its arrays only."""
        return LinearDensity(
            self._chart(),
            self.equations.prior_terms,
            self._row_terms(),
            self.response.reading,
            self.spec,
        )

    def _chart(self) -> Chart:
        solved, needed = self.equations.posterior, self.learned
        if self.spec.known_noise:
            log_sd, width = 0.5 * np.log(solved.variance[needed]), np.zeros(needed.sum())
        else:
            log_sd = 0.5 * np.log(solved.rate[needed] / solved.shape[needed])
            width = 0.5 / np.sqrt(solved.shape[needed])
        arc_width = np.asarray(1 / np.sqrt(1.0 + len(self.data)))
        return Chart(solved.mean[needed], solved.root[needed], log_sd, width, arc_width)

    def _row_terms(self) -> RowTerms:
        columns = [self.data.nodes.index(name) for name in self.graph.nodes]
        values, free = self.data.values[:, columns], ~self.data.intervened[:, columns]
        first, which = distinct_rows(free)
        whole, size = np.column_stack([values, np.ones(len(values))]), len(columns) + 1
        groups = 1 << max(len(first) - 1, 0).bit_length()
        factor, rows = np.zeros((groups, size, size)), np.zeros(groups)
        frees = np.zeros((groups, size - 1))
        for position, at in enumerate(first):
            part = np.linalg.qr(whole[which == position], mode="r")
            factor[position, : len(part)] = part
            frees[position], rows[position] = free[at], (which == position).sum()
        return RowTerms(factor, frees, rows, *self.outcomes.padded())

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """What each coordinate of psi moves."""
        nodes = (*self.graph.nodes, "1")
        learned = [self.graph.nodes[position] for position in self.spec.equations]
        pairs = zip(*self.spec.positions, strict=True)
        names = [f"b[{nodes[cause]}->{nodes[effect]}]" for cause, effect in pairs]
        names += [] if self.spec.known_noise else [f"sd[{name}]" for name in learned]
        return (*names, *(f"t[{nodes[one]}<->{nodes[other]}]" for one, other in self.spec.arcs))

    @property
    def is_correlated(self) -> bool:
        """Whether latent causes correlate the coordinates a posteriori."""
        return bool(self.spec.arcs)

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi."""
        return (not self.response.is_linear) and (not self.follows or self.spec.known_noise)

    def draws(self, psi: np.ndarray) -> Models:
        """Return the models at coordinates (n, k)."""
        matrices, noises = in_pieces(partial(_models, self.density), np.asarray(psi), len(psi))
        return Models(np.asarray(matrices), np.asarray(noises))

    def theta(self, draws: Models) -> np.ndarray:
        """Return theta (n, d) of models."""
        return self.response.read(draws.matrices)

    def scales(self, draws: Models) -> np.ndarray:
        """Return the sds of the disturbances (n, p)."""
        return np.asarray(np.sqrt(np.diagonal(draws.noises, axis1=1, axis2=2)))

    def log_densities(self, draws: Models, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, rows, p)."""
        return sem.log_densities(draws, values, free)

    def replicate(self, draws: Models, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw new rows of every model, (n, rows, p)."""
        return sem.replicate(draws, queries, key)

    def disturbances(self, draws: Models, rows: np.ndarray, position: int) -> np.ndarray:
        """Return the disturbances (n, rows) of one variable that give rows (n, rows, p)."""
        return sem.disturbances(draws, rows, position)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the disturbance of each variable is Gaussian with one sd, (p,): all are."""
        return np.ones(len(self.nodes), bool)

    def outcome_variances(self, draws: Models, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        matrix, noise = draws.matrices.mean(axis=0), draws.noises.mean(axis=0)
        return sem.outcome_variances(matrix, noise, self.learned, queries)

    def outcome_densities(self, draws: Models) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        return sem.outcome_densities(draws, self.outcomes.queries, self.outcomes.values)

    def with_observations(self, rows: Data) -> "LinearModel":
        """Return the same model with more rows."""
        return replace(self, data=self.data.join(rows))

    def closed_form(self) -> Equations:
        """Return the posterior in closed form; refused where a latent cause joins two equations."""
        if self.graph.bidirected:
            one, other = self.graph.bidirected[0]
            raise ModelError(
                f"conjugate regressions would be biased: a latent cause joins {one!r} and "
                f'{other!r}, upstream of the target; use method="wishart", which is valid under '
                "latent confounding"
            )
        return self.equations

    def draw_prior(self, n: int, key: jax.Array) -> Models | None:
        """Draw n models before any row; None under a prior that is scaled to the rows."""
        if not isinstance(self.prior, FixedPrior):
            return None
        return draw_models(self.graph, self.prior, self.known, self.intercepts, n, key)

    def straighten(self, psi: np.ndarray | None = None) -> tuple["LinearModel", Any]:
        """Return the same model, and coordinates (n, k), with coefficients linear in them."""
        straight = replace(self, follows=False)
        if psi is None or not self.follows or self.spec.known_noise:
            return straight, psi
        count, scales, _ = self.spec.sizes
        logs = psi[:, count : count + scales] * self.density.chart.sd_width
        factor = np.exp(logs)[:, np.nonzero(self.spec.used)[0]]
        return straight, np.concatenate([psi[:, :count] * factor, psi[:, count:]], axis=1)

    def narrowness(self) -> float:
        """Return the sd that a Gaussian at the mode gives, relative to the exact one.

        Of the worst regression: the mode of (coefficients, log sd) takes disturbances as smaller
        than they are on average.
        """
        if self.spec.known_noise:
            return 1.0
        degrees, used = self._degrees
        return float(np.sqrt((np.maximum(degrees - 2, 0) / (degrees + used)).min()))

    def mode_coverage(self, level: float) -> float:
        """Return how much of the exact posterior an interval of the Gaussian at the mode holds.

        Of a coefficient in the worst regression: exactly it is Student's t with nu degrees of
        freedom and scale s, and at the mode Gaussian with sd s sqrt(nu / (nu + k)), with k the
        number of coefficients.
        """
        if self.spec.known_noise:
            return level
        degrees, used = self._degrees
        half = norm.ppf((1 + level) / 2) * np.sqrt(degrees / (degrees + used))
        return float(np.min(1 - 2 * student.sf(half, degrees)))

    @property
    def _degrees(self) -> tuple[np.ndarray, np.ndarray]:
        """Degrees of freedom (E,) of every regression, and how many coefficients it has."""
        used = (self.equations.causes >= 0).sum(axis=1)[self.learned]
        return 2 * self.equations.posterior.shape[self.learned], used

    def coefficient_ratio(
        self, draws: Models, n: int, generator: np.random.Generator
    ) -> np.ndarray | None:
        """Return log ratios (n,) of the exact density of coefficients to that of a Gaussian.

        The Gaussian has the mean and covariance of `draws`, from which n points are drawn. None
        where latent causes or outcomes join the equations.
        """
        if self.spec.arcs or len(self.outcomes.values):
            return None
        chosen = draws.matrices[:, *self.spec.positions]
        centre, size = chosen.mean(axis=0), chosen.shape[1]
        root = np.linalg.cholesky(np.cov(chosen.T).reshape(size, -1))
        z = generator.standard_normal((n, size))
        used = np.nonzero((self.equations.causes >= 0) & self.learned[:, None])
        shape = (len(z), *self.equations.causes.shape)
        proposed = np.zeros(shape) + self.equations.posterior.mean
        proposed[:, used[0], used[1]] = centre + z @ root.T
        return np.asarray(self.equations.log_student(proposed) + 0.5 * (z**2).sum(axis=1))

    def explain(self) -> str:
        """Say which variable's likelihood is not finite where chains should start."""
        values = self.data.values[:, [self.data.nodes.index(name) for name in self.graph.nodes]]
        solved = self.equations.posterior
        for position in self.spec.equations:
            node = self.graph.nodes[position]
            parts = (solved.mean[position], solved.rate[position], values[:, position] ** 2)
            finite = all(np.isfinite(part).all() for part in (*parts, solved.variance[position]))
            if not finite or not solved.variance[position] > 0:
                largest = np.abs(values[:, position]).max(initial=0.0)
                return (
                    f"the likelihood of {node!r} is not finite where the chains should start (its "
                    f"largest value is {largest:.3g}, its residual variance "
                    f"{solved.variance[position]:.3g}); rescale {node!r}, or look for values that "
                    "cannot be"
                )
        return (
            "the model's density is not finite where the chains should start; rescale the data, "
            "or give a FixedPrior"
        )


@jax.jit
def _models(density: LinearDensity, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        point = density.point(row)
        root = noise_root(density.spec, point)
        return point.matrix, root @ root.T

    models: tuple[jax.Array, jax.Array] = jax.vmap(one)(psi)
    return models
