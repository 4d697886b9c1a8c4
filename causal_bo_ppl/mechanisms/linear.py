"""Linear mechanisms of one problem: how a graph, a prior and observations become a density.

    V_j = level_j + sum_i b_ij (V_i - c_i) + e_j,  e ~ N(0, S R S).

`numpyro_models` has the same model as a NumPyro program. What is fitted is `LinearDensity`, which
has the same density and is faster.

Complete observations enter as the factor T of (V, 1) of all those with the same variables set, T'T
being their cross products; then e is T (I - W; -a), a function of the coefficients alone. Where
only the target was measured, Y ~ N(f, l'Omega l) with f its mean after surgery and l its
sensitivity to each equation.

The coordinates psi are whitened: coefficients are centre + s root z, log s = centre + width u, and
strengths of latent causes are t = width v. Centres and widths come from the posterior of every
equation on its own, as if no latent cause joined any. s is the conditional sd of e given the noise
of earlier variables of its district, unless variances are known: it is well determined even where
latent causes are hardly distinguished from effects, as by a weak instrument. With `scale_by_sd`,
coefficients are scaled by this s, so that a posterior of regressions is a product of standard
normals; otherwise by a constant, so that the coefficients are linear in z.
"""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from scipy.stats import norm
from scipy.stats import t as student

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_learnable
from causal_bo_ppl.data.observations import Outcomes
from causal_bo_ppl.errors import CausalBOWarning, DataError, MechanismError, listed
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, PriorDraws, Task
from causal_bo_ppl.mechanisms.linear_equations import (
    Equations,
    FixedPrior,
    LinearObservations,
    LinearPrior,
    Models,
    PriorTerms,
    ScaledPrior,
    ThetaReader,
    learn_equations,
    outcome_densities,
    outcome_variances,
    read_theta,
    replaced_note,
)
from causal_bo_ppl.mechanisms.linear_responses import (
    EffectResponse,
    StructuralResponse,
    open_variables,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows

Arc = tuple[int, int]
MOST_STANDARD_ERRORS = 5.0  # of a mean from 0: the mean of centred data is 0 but for rounding
LinearResponse = StructuralResponse | EffectResponse


def correlation_factor(size: int, arcs: Sequence[Arc], strengths: jax.Array) -> jax.Array:
    """Return the lower triangular factor C of the correlations R = C C' of the noise.

    Each arc has one strength t, any real number. Row j of C is (v_j, 1) divided by its length,
    where v_j lies in the directions that leave R_ij = 0 wherever i and j, i before j, share no arc:
    with C_< the rows before, C_< v_j must be 0 there. With Q an orthonormal basis of these
    directions, v_j = Q t_j. So R is positive definite by construction, every correlation matrix
    with these zeros has exactly one t, however large the district, and the share of the variance of
    e_j that the noise before it does not explain is 1 / (1 + |t_j|^2). In a district of two R_ij is
    t / sqrt(1 + t^2).

    Parameters
    ----------
    size:
        Number of variables p.
    arcs:
        Pairs of positions i < j that share a latent cause.
    strengths:
        Of shape (A,), in the order of the arcs.
    """
    arcs_of = {later: [k for k, arc in enumerate(arcs) if arc[1] == later] for _, later in arcs}
    factor = jnp.eye(size)
    for later in sorted(arcs_of):
        earlier = np.eye(size)[:, [arcs[k][0] for k in arcs_of[later]]]
        allowed = solve_triangular(factor, jnp.asarray(earlier), lower=True)
        root = jnp.linalg.cholesky(allowed.T @ allowed)
        strength = jnp.asarray(strengths)[np.array(arcs_of[later])]
        row = allowed @ solve_triangular(root, strength, lower=True, trans="T")
        row = row.at[later].set(1.0)
        factor = factor.at[later].set(row / jnp.sqrt((row**2).sum()))
    return factor


def arc_strengths(size: int, arcs: Sequence[Arc], noises: np.ndarray) -> np.ndarray:
    """Return the strengths (n, A) of arcs at covariances (n, p, p): see `correlation_factor`."""
    strengths = np.zeros((len(noises), len(arcs)))
    root = np.linalg.cholesky(noises) if arcs else noises
    for later in sorted({later for _, later in arcs}):
        chosen = [k for k, arc in enumerate(arcs) if arc[1] == later]
        block = root[:, :later, :later]
        before = block / np.linalg.norm(block, axis=2, keepdims=True)
        earlier = np.eye(size)[:later, [arcs[k][0] for k in chosen]]
        allowed = np.linalg.solve(before, np.broadcast_to(earlier, (len(root), *earlier.shape)))
        turned = np.swapaxes(allowed, 1, 2)
        row = root[:, later, :later, None] / root[:, later, later, None, None]
        inner = np.linalg.cholesky(turned @ allowed)
        strengths[:, chosen] = np.linalg.solve(inner, turned @ row)[..., 0]
    return strengths


class Spec(NamedTuple):
    """The static structure that a density is compiled for; hashable.

    size: number of variables, the target last. equations: positions of those that are learned.
    causes: for each of these the positions of its regressors, `size` for the constant. arcs: pairs
    of positions. known_noise: whether the variances are known. scale_by_sd: see the module.
    """

    size: int
    equations: tuple[int, ...]
    causes: tuple[tuple[int, ...], ...]
    arcs: tuple[Arc, ...]
    known_noise: bool
    scale_by_sd: bool

    @property
    def used(self) -> np.ndarray:
        """Whether each regressor exists, of shape (E, D) with D the most that an equation has."""
        width = max(map(len, self.causes))
        return np.array([[k < len(causes) for k in range(width)] for causes in self.causes], bool)

    @property
    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the coefficients in a (p + 1, p) matrix, in the order of z."""
        counts = [len(causes) for causes in self.causes]
        rows = np.array([cause for causes in self.causes for cause in causes], int)
        return rows, np.repeat(np.array(self.equations, int), counts)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of coordinates psi of coefficients, of scales and of latent causes."""
        scales = 0 if self.known_noise else len(self.equations)
        return int(self.used.sum()), scales, len(self.arcs)


class Whitening(NamedTuple):
    """Centres and widths of the whitened coordinates.

    centre: (E, D). root: (E, D, D). log_sd: (E,). sd_width: (E,). arc_width: a number.
    """

    centre: np.ndarray
    root: np.ndarray
    log_sd: np.ndarray
    sd_width: np.ndarray
    arc_width: np.ndarray


class DataTerms(NamedTuple):
    """Observations in G groups with the same variables set, and m outcomes of the target alone.

    factor: (G, p + 1, p + 1). free: (G, p). counts: (G,) observations. queries, outcome (m,),
    weight (m,): the outcomes; weight 0 is padding.
    """

    factor: np.ndarray
    free: np.ndarray
    counts: np.ndarray
    queries: Queries
    outcome: np.ndarray
    weight: np.ndarray


class Point(NamedTuple):
    """Parameters of one model.

    coefficients: (E, D). log_sd: (E,). strengths: (A,) of the latent causes. matrix: (p + 1, p).
    """

    coefficients: jax.Array
    log_sd: jax.Array
    strengths: jax.Array
    matrix: jax.Array


def noise_root(spec: Spec, point: Point) -> jax.Array:
    """Return a (p, p) factor of the covariance of the noise; 1 for equations not learned."""
    sd = jnp.ones(spec.size).at[np.array(spec.equations)].set(jnp.exp(point.log_sd))
    return sd[:, None] * correlation_factor(spec.size, spec.arcs, point.strengths)


def log_prior(spec: Spec, prior: PriorTerms, point: Point) -> jax.Array:
    """Return the log density of coefficients, variances s2 and strengths, up to a constant."""
    misfit = jnp.einsum("ekl,el->ek", prior.half, point.coefficients) - prior.pull
    precision = jnp.exp(-2 * point.log_sd)
    terms = -0.5 * precision * (misfit**2).sum(axis=1) - spec.used.sum(axis=1) * point.log_sd
    if not spec.known_noise:
        terms = terms - 2 * (prior.shape + 1) * point.log_sd - prior.rate * precision
    total: jax.Array = terms.sum() - 0.5 * prior.latent * (point.strengths**2).sum()
    return total


def log_likelihood(spec: Spec, data: DataTerms, point: Point) -> jax.Array:
    """Return the log density of the complete observations and of the target's outcomes."""
    total = _log_observations(spec, data, point)
    return total + _log_outcomes(spec, data, point) if len(data.outcome) else total


def _log_observations(spec: Spec, data: DataTerms, point: Point) -> jax.Array:
    columns = np.array(spec.equations)
    residual = jnp.eye(spec.size + 1, spec.size) - point.matrix
    errors = (jnp.asarray(data.factor) @ residual)[:, :, columns] * data.free[:, None, columns]
    free, counts = jnp.asarray(data.free)[:, columns], jnp.asarray(data.counts)
    if not spec.arcs:
        squares = 0.5 * jnp.exp(-2 * point.log_sd) * (errors**2).sum(axis=(0, 1))
        return -(squares + (counts @ free) * (point.log_sd + 0.5 * LOG_TWO_PI)).sum()
    noise = noise_root(spec, point)[columns]
    covariance = noise @ noise.T
    both = free[:, :, None] * free[:, None, :]
    fill = jnp.eye(len(columns))[None] * (1 - free)[:, None, :]
    root = jnp.linalg.cholesky(both * covariance[None] + fill)
    white = solve_triangular(root, jnp.matrix_transpose(errors), lower=True)
    logs = jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    logs = logs + 0.5 * LOG_TWO_PI * free.sum(axis=1)
    return -0.5 * (white**2).sum() - (counts * logs).sum()


def _log_outcomes(spec: Spec, data: DataTerms, point: Point) -> jax.Array:
    mask, value = jnp.asarray(data.queries.mask).T, jnp.asarray(data.queries.value).T
    mean = forward_sweep(point.matrix, mask, value)[-2]
    loads = adjoint_sweep(point.matrix[:-1], mask, spec.size - 1)
    variance = ((loads.T @ noise_root(spec, point)) ** 2).sum(axis=1)
    terms = (data.outcome - mean) ** 2 / variance + jnp.log(variance) + LOG_TWO_PI
    total: jax.Array = -0.5 * (data.weight * terms).sum()
    return total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearDensity:
    """Prior and likelihood of linear mechanisms over coordinates psi; see `base.Density`."""

    whitening: Whitening
    prior: PriorTerms
    data: DataTerms
    reader: ThetaReader
    spec: Spec = field(metadata={"static": True})

    def log_sds(self, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return conditional log sds (E,) of the noise given earlier noise, and marginal ones.

        Where variances are learned the former are coordinates, which are determined well even
        where latent causes are not. The marginal variance is 1 + |t_j|^2 times the conditional one;
        see `correlation_factor`.
        """
        spec, (count, scales, _) = self.spec, self.spec.sizes
        conditional = jnp.asarray(self.whitening.log_sd)
        if not spec.known_noise:
            conditional = conditional + self.whitening.sd_width * psi[count : count + scales]
        if spec.known_noise or not spec.arcs:
            return conditional, conditional
        strengths = jnp.asarray(self.whitening.arc_width) * psi[count + scales :]
        joined = [[later == node for _, later in spec.arcs] for node in spec.equations]
        return conditional, conditional + 0.5 * jnp.log1p(np.array(joined, float) @ strengths**2)

    def point(self, psi: jax.Array) -> Point:
        """Return the parameters at psi (k,)."""
        spec, whitening, used = self.spec, self.whitening, self.spec.used
        count, scales, _ = spec.sizes
        z = jnp.zeros(used.shape).at[np.nonzero(used)].set(psi[:count])
        strengths = jnp.asarray(whitening.arc_width) * psi[count + scales :]
        conditional, log_sd = self.log_sds(psi)
        scale = jnp.exp(conditional if spec.scale_by_sd else jnp.asarray(whitening.log_sd))
        moved = jnp.einsum("ekl,el->ek", whitening.root, z)
        coefficients = jnp.asarray(whitening.centre) + scale[:, None] * moved
        known = jnp.asarray(self.prior.fixed)
        matrix = known.at[spec.positions].set(coefficients[np.nonzero(used)])
        return Point(coefficients, log_sd, strengths, matrix)

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior of coefficients, variances and strengths, up to a constant."""
        return log_prior(self.spec, self.prior, self.point(psi))

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes."""
        return log_likelihood(self.spec, self.data, self.point(psi))

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,) at psi (k,)."""
        return read_theta(self.reader, self.point(psi).matrix)

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of coefficients and variances s2 in psi, up to a constant."""
        if self.spec.known_noise:
            return jnp.zeros(())
        conditional, log_sd = self.log_sds(psi)
        volume = 2 * log_sd.sum()  # of s2 in log s
        if self.spec.scale_by_sd:
            volume = volume + (self.spec.used.sum(axis=1) * conditional).sum()
        return volume


def read_prior(task: Task, *kinds: type[LinearPrior]) -> Any:
    """Return a copy of the prior of a task, by default one that is scaled to the data.

    kinds: the classes of priors that the method of inference takes.
    """
    prior = ScaledPrior() if task.prior is None else deepcopy(task.prior)
    if not isinstance(prior, kinds):
        names = " or a ".join(kind.__name__ for kind in kinds)
        raise MechanismError(f"prior must be a {names} for this method, got {prior!r}")
    if isinstance(prior, FixedPrior):
        prior.require_fit(task.problem.graph, task.problem.known)
    return prior


def read_parameters(task: Task, default: str) -> Parameters:
    """Return the coordinates of theta that a task asks for, of the sets that can be learned."""
    known_effects = task.problem.known_effects
    if known_effects and default == "structural":
        default = "total_effect"
    kind = default if task.parameters is None else task.parameters
    found = task.problem.identification
    found = found.with_linearity() if task.linear else found
    parameters = found.parameters(kind, intercepts=task.intercepts)
    left = set(known_effects) - {f"tau[{each.cause}]" for each, _ in parameters.fixed}
    if left:
        raise MechanismError(
            f"the known {listed(sorted(left))} is no coordinate of {kind!r} parameters, which "
            "cannot hold it fixed: take parameters='total_effect' and, among the sets, one in "
            "which nothing else between that variable and the target is set; a total effect that "
            "follows from known coefficients is not known a second time"
        )
    if not parameters.names:
        raise MechanismError(
            "every coefficient that matters is known: there is nothing left to learn"
        )
    if not task.intercepts:
        _warn_unless_centred(task.data, task.problem)
    return parameters


def _warn_unless_centred(data: Data, problem: Problem) -> None:
    values = data.values[data.is_observational]
    if len(values) < 2:
        return
    error = np.maximum(values.std(axis=0, ddof=1), np.finfo(float).tiny) / np.sqrt(len(values))
    is_centred = np.abs(values.mean(axis=0)) <= MOST_STANDARD_ERRORS * error
    names = [*problem.graph.ancestors(problem.target), problem.target]
    far = [name for name in names if not is_centred[data.nodes.index(name)]]
    if far:
        warnings.warn(
            f"intercepts=False takes the means as 0, but those of {listed(far, most=5)} are not: "
            "centre the data, or use intercepts=True",
            CausalBOWarning,
            stacklevel=5,
        )


def needed_equations(parameters: Parameters, graph: CausalGraph) -> np.ndarray:
    """Return whether some effect depends on each variable's equation, or on one of its district.

    graph: the target's ancestral graph, with p variables; the result has the shape (p,).
    """
    districts = map(graph.district, open_variables(parameters))
    return np.isin(graph.nodes, [name for district in districts for name in district])


def require_learned(parameters: Parameters, nodes: tuple[str, ...], outcomes: Outcomes) -> None:
    """Refuse outcomes that depend on an equation which no set of the problem uses."""
    learned = open_variables(parameters)
    for row in np.unique(np.asarray(outcomes.queries.mask), axis=0):
        members = tuple(compress(nodes, row))
        missing = [name for name in parameters.reduce(members).open if name not in learned]
        if missing:
            what = f"do({', '.join(members)})" if members else "doing nothing"
            raise DataError(
                f"an outcome of {what} depends on the equation of {missing[0]!r}, which no set of "
                "the problem needs; add that set to the problem, or give the complete observation "
                "as data"
            )


def join_noise(
    matrices: np.ndarray, variances: np.ndarray, arcs: Sequence[Arc], width: float, key: jax.Array
) -> Models:
    """Return n models with matrices (n, p + 1, p) and variances (n, p), their noise correlated.

    Strengths of the arcs are drawn with the sd `width`.
    """
    count, size = variances.shape
    roots = np.sqrt(variances)[:, :, None] * np.eye(size)
    if arcs:
        strengths = width * host_generator(key).standard_normal((count, len(arcs)))
        work = partial(_correlation_factors, size, tuple(arcs))
        roots = np.sqrt(variances)[:, :, None] * np.asarray(in_pieces(work, strengths, count))
    return Models(matrices, roots @ np.swapaxes(roots, 1, 2))


def draw_models(
    graph: CausalGraph,
    prior: FixedPrior,
    known: Mapping[Edge, float],
    intercepts: bool,
    n: int,
    key: jax.Array,
) -> Models:
    """Draw n models from a fixed prior: from the posterior of no observations."""
    for_equations, for_arcs = jax.random.split(key)
    size, nodes = len(graph.nodes), graph.nodes
    none = Data(nodes, nodes[-1], np.zeros((0, size)), np.zeros((0, size), bool))
    equations = learn_equations(graph, known, intercepts, prior, np.ones(size, bool), none)
    matrices, noises = equations.draw(n, for_equations)[0]
    variances = noises.diagonal(axis1=1, axis2=2)
    arcs = [(graph.index(one), graph.index(other)) for one, other in graph.bidirected]
    return join_noise(matrices, variances, arcs, prior.latent_sd, for_arcs)


@partial(jax.jit, static_argnums=(0, 1))
def _correlation_factors(size: int, arcs: tuple[Arc, ...], strengths: jax.Array) -> jax.Array:
    factors: jax.Array = jax.vmap(partial(correlation_factor, size, arcs))(strengths)
    return factors


class LinearMechanisms:
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
class LinearModel(LinearObservations):
    """The linear SEM of the target's ancestral graph with its observations; see `base.Model`.

    scale_by_sd: see the module.
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
        needed = np.flatnonzero(self.learned)
        learned = set(needed.tolist())
        pairs = [tuple(map(self.graph.index, arc)) for arc in self.graph.bidirected]
        return Spec(
            size=len(self.graph.nodes),
            equations=tuple(needed.tolist()),
            causes=tuple(tuple(row[row >= 0].tolist()) for row in self.equations.causes[needed]),
            arcs=tuple((one, other) for one, other in pairs if learned >= {one, other}),
            known_noise=self.equations.has_known_noise,
            scale_by_sd=self.scale_by_sd,
        )

    @cached_property
    def density(self) -> LinearDensity:
        """Prior and likelihood; new observations change its arrays only.

        Refused where a total effect is known, which is a nonlinear constraint on coefficients.
        """
        if self.response.parameters.fixed:
            raise MechanismError(
                f"the known {listed(self.problem.known_effects)} is conditioned on in closed form "
                'only: take method="conjugate", or leave it out of the problem'
            )
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
        return self.response.is_selection and (not self.scale_by_sd or self.spec.known_noise)

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
        return outcome_variances(matrix, noise, self.learned, queries)

    def outcome_densities(self, draws: Models) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        return outcome_densities(draws, self.outcomes.queries, self.outcomes.values)

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

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The names of edges whose coefficients are learned, and of arcs."""
        rows, columns = self.spec.positions
        pairs = [(row, column) for row, column in zip(rows, columns, strict=True)]
        names, size = self.graph.nodes, len(self.graph.nodes)
        edges = tuple(f"{names[cause]}->{names[effect]}" for cause, effect in pairs if cause < size)
        arcs = tuple(f"{names[one]}<->{names[other]}" for one, other in self.spec.arcs)
        return {"edge": edges, "arc": arcs}

    def named(
        self, draws: Models, hyperparameters: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return coefficients b, intercepts a and strengths t of latent causes, by name."""
        rows, columns = self.spec.positions
        values, is_slope = draws.matrices[:, rows, columns], rows < len(self.graph.nodes)
        strengths = arc_strengths(self.spec.size, self.spec.arcs, draws.noises)
        return {"b": values[:, is_slope], "a": values[:, ~is_slope], "t": strengths}

    def draw_prior(self, n: int, key: jax.Array, equations: Equations | None = None) -> PriorDraws:
        """Draw n models from the prior; one that is scaled to the data as `ScaledPrior` says.

        equations: with the data that the prior is scaled to; by default those of the model. Raises
        MechanismError where a total effect is known, which no draw would have.
        """
        if self.response.parameters.fixed:
            raise MechanismError(
                "the prior cannot be drawn from where a total effect is known: no draw of the "
                "coefficients would have that effect"
            )
        if isinstance(self.prior, FixedPrior):
            fixed = self.graph, self.prior, self.known, self.intercepts
            return PriorDraws(draw_models(*fixed, n, key))
        for_equations, for_arcs = jax.random.split(key)
        drawn = (equations or self.equations).draw_prior(n, for_equations)
        models = join_noise(*drawn, self.spec.arcs, self.prior.observations**-0.5, for_arcs)
        learned = np.array(self.graph.nodes)[self.learned]
        note = replaced_note(self.prior, learned[~self.equations.has_prior_mean].tolist())
        return PriorDraws(models, note=note)

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
