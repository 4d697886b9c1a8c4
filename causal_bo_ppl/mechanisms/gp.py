"""How do a graph, priors and data define the posterior of nonlinear mechanisms?

A mechanism is a linear trend plus a Gaussian process in a Hilbert-space basis. The coordinates of
one mechanism are z (K,) and u (R,): its hyperparameters are eta = eta_0 + R u around the mode of
the evidence, and given these its whitened coefficients are w = m(eta) + root(eta)^-T z, their
posterior given the observations. So z is exactly standard Gaussian and independent of u, unless
outcomes of the target alone join the mechanisms.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
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
from causal_bo_ppl.errors import ArgumentError, MechanismError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans, plan_sampling
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_covariance, factor_draws
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, HeldOut, Task, Unevenness
from causal_bo_ppl.mechanisms.gp_basis import (
    BOUNDARY_FACTOR,
    FUNCTIONS_PER_LENGTHSCALE,
    Form,
    kernel_error,
)
from causal_bo_ppl.mechanisms.gp_priors import (
    GP,
    GPPrior,
    Linear,
    MechanismChoice,
    draw_under_plans,
    observations_of_target,
    read_spread,
    regressors,
    require_observations,
    usable_entries,
)
from causal_bo_ppl.mechanisms.gp_regressions import AffineChart as AffineChart
from causal_bo_ppl.mechanisms.gp_regressions import (
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
    GPResponse,
    Setting,
    coordinate_names,
    log_outcomes_of_many,
    means_of_many,
    natural,
    normal_points,
    split,
    variances_at,
)
from causal_bo_ppl.problem import Problem, Queries

MIXTURE_POINTS = 64  # hyperparameters that moments of theta are averaged over
FARTHEST_SHARE = 1.5  # of the points of an average, so that they reach 3.6 posterior sds
MOMENT_DRAWS = 1_024  # draws of psi that moments of theta are averaged over
UNIT_RANGE = (-2.5, 2.5)  # of the data under a prior that does not depend on them


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
    """Hyperparameters and coefficients of one mechanism at given coordinates."""

    eta: jax.Array
    given: Conditional
    white: jax.Array
    coefficients: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GPDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `interfaces.Density`."""

    known: tuple[KnownTerms, ...]
    charts: tuple[AffineChart, ...]
    program: AveragingProgram
    outcomes: TargetOutcomes
    equations: tuple[Equation, ...] = field(metadata={"static": True})

    one_by_one = True  # two batches of Cholesky factors could block each other

    def _pieces(self, psi: jax.Array) -> Iterator[tuple[Form, KnownTerms, jax.Array, jax.Array]]:
        """Yield form, known terms, z and eta of every mechanism."""
        start = 0
        for equation, known, chart in zip(self.equations, self.known, self.charts, strict=True):
            size, free = equation.form.size, jnp.shape(chart.root)[1]
            z, u = psi[start : start + size], psi[start + size : start + size + free]
            start += size + free
            yield equation.form, known, z, jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ u

    def states(self, psi: jax.Array) -> list[MechanismState]:
        """Return the parameters of every mechanism at psi (k,)."""
        result = []
        for form, known, z, eta in self._pieces(psi):
            given = condition(form, known, eta)
            white = given.mean + solve_triangular(given.root, z, lower=True, trans="T")
            coefficients = (given.sd * white).at[0].add(known.prior.level)
            result.append(MechanismState(eta, given, white, coefficients))
        return result

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior of whitened coefficients and hyperparameters, up to a constant."""
        total = jnp.zeros(())
        for state, known in zip(self.states(psi), self.known, strict=True):
            scaled = (state.eta - known.prior.centre) / known.prior.width
            total = total - 0.5 * (state.white**2).sum() - 0.5 * (scaled**2).sum()
        return total

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes."""
        total = jnp.zeros(())
        for state, known in zip(self.states(psi), self.known, strict=True):
            factor = jnp.asarray(known.statistics.factor)
            centred = state.coefficients.at[0].add(-known.prior.level)
            misfit = (factor[:, -1] - factor[:, :-1] @ centred) * jnp.exp(-state.eta[0])
            noise = known.statistics.count * (state.eta[0] + 0.5 * LOG_TWO_PI)
            total = total - 0.5 * (misfit**2).sum() - noise
        return self._add_outcomes(total, psi)

    def _add_outcomes(self, total: jax.Array, psi: jax.Array) -> jax.Array:
        """Add the log density of all outcomes of the target alone."""
        queries, values, weights = self.outcomes
        if not len(values):
            return total
        logs = self.program.log_outcomes(self.theta(psi), queries, values)
        return total + jnp.sum(weights * logs)

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant.

        Of the observations only the evidence is needed: given the hyperparameters z is Gaussian.
        """
        total = jnp.zeros(())
        for form, known, z, eta in self._pieces(psi):
            total = total - 0.5 * (z**2).sum() - loss(form, known, eta)
        return self._add_outcomes(total, psi)

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coefficients and the log sd of every mechanism."""
        states = self.states(psi)
        return jnp.concatenate([p for s in states for p in (s.coefficients, s.eta[:1])])

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of whitened coefficients in psi, up to a constant."""
        roots = [jnp.diagonal(state.given.root) for state in self.states(psi)]
        return -sum((jnp.log(root).sum() for root in roots), jnp.zeros(()))


@jax.jit
def thetas_of_many(density: Any, psi: jax.Array) -> jax.Array:
    """Return theta (n, d) of a density at coordinates (n, k)."""
    theta: jax.Array = jax.lax.map(density.theta, psi)
    return theta


@dataclass(frozen=True, eq=False)
class GPModel:
    """Mechanisms of the target's ancestral graph with their data; see `base.Model`.

    choices: how each variable depends on its causes; None for a linear mechanism. fixed: whether
    the hyperparameters, except the sds of the noise, are held at the mode of their evidence. plans:
    where latent causes join causes of the target, the regressions that replace mechanisms, and how
    effects are averaged over their draws.
    """

    choices: Mapping[str, MechanismChoice]
    task: Task
    fixed: bool = False
    plans: SamplingPlans | None = None

    theta_is_linear = False

    @property
    def data(self) -> Data:
        """The observations it learns from."""
        return self.task.data

    @property
    def prior(self) -> GPPrior:
        """The prior of all mechanisms."""
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
    def bound(self) -> tuple[BoundEquation, ...]:
        """The equations that are learned, in causal order, with their known terms."""
        usable = dict(zip(self.nodes, self.usable(self.data).T, strict=True))
        return tuple(
            bind_equation(self.task, self.graph, self.choices[name], name, given, usable[name])
            for name, given in regressors(self.task.problem, self.plans).items()
        )

    def usable(self, data: Data) -> np.ndarray:
        """Return which observations inform the equation of each variable, (n, p)."""
        return usable_entries(self.plans, self.nodes, data)

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """The equations that are learned."""
        return tuple(each.equation for each in self.bound)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The hyperparameters of every equation at the mode of their evidence."""
        return bound_modes(self.bound)

    @cached_property
    def learned(self) -> np.ndarray:
        """Whether each variable's mechanism is learned, of shape (p,)."""
        positions = [equation.position for equation in self.equations]
        return np.isin(np.arange(len(self.nodes)), positions)

    @cached_property
    def response(self) -> GPResponse:
        """The map from coefficients and log sds to effects."""
        settings = tuple(each.setting for each in self.bound)
        return GPResponse(self.task.problem, self.equations, settings, plans=self.plans)

    @cached_property
    def density(self) -> GPDensity:
        """Prior and likelihood; new observations change its arrays only."""
        charts = tuple(
            AffineChart(mode.eta, _noise_direction(mode) if self.fixed else mode.root)
            for mode in self.modes
        )
        known = tuple(each.known for each in self.bound)
        outcomes = TargetOutcomes(*self.outcomes.padded())
        return GPDensity(known, charts, self.response.program, outcomes, self.equations)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates of psi."""
        return whitened_names(self.nodes, self.equations, self.density.charts)

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of its covariance there, and the Newton decrement.

        Without outcomes of the target alone all follow from the evidence; None with outcomes.
        """
        size, decrement = len(self.coordinates), max(mode.decrement for mode in self.modes)
        return None if len(self.outcomes.values) else (np.zeros(size), np.eye(size), decrement)

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (d,) and a factor (d, r) of the covariance of theta, for psi Gaussian.

        Where psi is the one of `mode()`, coefficients are averaged over hyperparameters, exactly
        given each of them. Otherwise theta is averaged over draws of psi.
        """
        if self.mode() is None:
            theta = self.draws(mode + normal_points(MOMENT_DRAWS, len(mode)) @ factor.T)
            return theta.mean(axis=0), factor_draws(theta)
        terms = zip(self.equations, self.density.known, self.density.charts, strict=True)
        means, factors = zip(*(mixture_moments(*each) for each in terms), strict=True)
        return np.concatenate(means), block_diag(*factors)

    def given_hyperparameters(self) -> "GPModel":
        """Return the model with hyperparameters at the mode of their evidence."""
        return replace(self, fixed=True)

    def draws(self, psi: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at coordinates (n, k): the parameters of n models."""
        return self._evaluate(psi)[0]

    def log_priors(self, psi: np.ndarray) -> np.ndarray:
        """Return the log prior at coordinates (n, k), up to a constant; see `GPDensity`."""
        return self._evaluate(psi)[1]

    def log_posteriors(self, psi: np.ndarray) -> np.ndarray | None:
        """Return the log posterior at coordinates (n, k), up to a constant.

        None where outcomes of the target alone join the mechanisms.
        """
        return None if self.mode() is None else self._evaluate(psi)[2]

    @cached_property
    def _reduced(self) -> list[Reduced]:
        """Return every mechanism without coefficients that are negligible near the mode."""
        terms = []
        for (equation, _, known), chart in zip(self.bound, self.density.charts, strict=True):
            farther = chart._replace(root=FARTHEST_SHARE * np.asarray(chart.root))
            terms.append((equation.form, known, chart, mixture_points(farther)))
        return reduce_mechanisms(terms)

    def _evaluate(self, psi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return theta (n, d), log prior (n,) and log posterior (n,) at coordinates (n, k)."""
        psi, parts, start = np.asarray(psi), [], 0
        log_prior, log_posterior = np.zeros((2, len(psi)))
        terms = zip(self.equations, self.density.charts, self._reduced, strict=True)
        for equation, chart, reduced in terms:
            size, free = equation.form.size, np.shape(chart.root)[1]
            z, u = psi[:, start : start + size], psi[:, start + size : start + size + free]
            start += size + free
            more = reduced.scales.fixed.shape[0] - size, len(reduced.chart.centre) - free
            pair = np.pad(z, ((0, 0), (0, more[0]))), np.pad(u, ((0, 0), (0, more[1])))
            work = partial(_evaluate_pair, reduced)
            found = in_pieces(work, pair, len(psi))
            coefficients, log_sd, prior, posterior = map(np.asarray, found)
            parts += [coefficients[:, :size], log_sd[:, None]]
            log_prior, log_posterior = log_prior + prior, log_posterior + posterior
        return np.concatenate(parts, axis=1), log_prior, log_posterior

    def theta(self, draws: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models."""
        return np.asarray(draws)

    def scales(self, draws: np.ndarray) -> np.ndarray:
        """Return the sds of the noise (n, p); 1 for variables that are not learned."""
        sds = np.ones((len(draws), len(self.nodes)))
        for equation, (_, log_sd) in zip(self.equations, split(self.equations, draws), strict=True):
            sds[:, equation.position] = np.exp(log_sd)
        return sds

    @property
    def _indices(self) -> dict[str, int]:
        """{variable: index of its equation}."""
        return {self.nodes[each.position]: index for index, each in enumerate(self.equations)}

    def _means(self, draws: np.ndarray, values: np.ndarray, index: int) -> np.ndarray:
        """Return the means (n, m) of one equation's variable given values (n or 1, m, p)."""
        equation, setting, _ = self.bound[index]
        coefficients = split(self.equations, draws)[index][0]
        if len(values) == 1:
            work = partial(means_of_many, equation, setting, values=jnp.asarray(values[0]))
            return np.asarray(in_pieces(work, coefficients, len(draws)))
        shape, pairs = values.shape[1:], (coefficients, values.reshape(len(values), -1))

        def one(pair: Any) -> Any:
            return _means_of_each(equation, setting, pair[0], pair[1].reshape(-1, *shape))

        return np.asarray(in_pieces(one, pairs, len(draws)))

    def log_densities(self, draws: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, m, p)."""
        logs = np.zeros((len(draws), *values.shape))
        for index, equation in enumerate(self.equations):
            position, log_sd = equation.position, split(self.equations, draws)[index][1][:, None]
            residual = values[:, position] - self._means(draws, values[None], index)
            terms = -0.5 * (residual * np.exp(-log_sd)) ** 2 - log_sd - 0.5 * LOG_TWO_PI
            logs[:, :, position] = np.where(free[:, position], terms, 0.0)
        return logs

    def replicate(self, draws: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one sample of all variables for each of n models and m queries, (n, m, p).

        Variables that are not learned are drawn from Gaussians with their mean and sd.
        """
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        samples = np.zeros((len(draws), *mask.shape)) + np.where(mask, value, 0.0)
        generator, indices = host_generator(key), self._indices

        def fill(name: str, drawn: np.ndarray) -> None:
            position = self.nodes.index(name)
            samples[:, :, position] = np.where(mask[:, position], value[:, position], drawn)

        for position in map(int, np.flatnonzero(~self.learned & ~mask.all(axis=0))):
            name = self.nodes[position]
            centre, scale, *_ = read_spread(self.prior, name, self.data.column(name))
            fill(name, centre + scale * generator.standard_normal(samples.shape[:2]))

        def draw(name: str, inputs: np.ndarray) -> np.ndarray:
            sd = np.exp(split(self.equations, draws)[indices[name]][1])[:, None]
            noise = generator.standard_normal(inputs.shape[:2])
            return np.asarray(self._means(draws, inputs, indices[name]) + sd * noise)

        if self.plans is not None:
            return draw_under_plans(self.plans, tuple(indices), self.nodes, samples, mask, draw)
        for name in indices:
            fill(name, draw(name, samples))
        return samples

    def disturbances(self, draws: np.ndarray, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (n, m) of one variable in observations (n or 1, m, p)."""
        means = self._means(draws, values, self._indices[self.nodes[position]])
        return np.asarray(values[:, :, position] - means)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable is Gaussian with one sd, (p,): all are."""
        return np.ones(len(self.nodes), bool)

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
        logs = np.asarray(in_pieces(work, draws, len(draws)))
        return logs[:, : len(self.outcomes.values)]

    def with_observations(self, observations: Data) -> "GPModel":
        """Return the same model with more observations."""
        return replace(self, task=replace(self.task, data=self.data.join(observations)))

    def target_observations(
        self, queries: Queries, outcomes: np.ndarray
    ) -> tuple[np.ndarray, Data]:
        """Return which outcomes (M,) of the target alone inform its mechanism as observations.

        The second result are these observations. Under latent causes there are none.
        """
        if self.plans is not None:
            return np.zeros(len(queries), bool), self.data.select(slice(0, 0))
        return observations_of_target(self.task.problem, self.data, queries, outcomes)

    def draw_prior(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d) of n models from the prior."""
        return self.draw_prior_with_hyperparameters(n, key)[0]

    def draw_prior_with_hyperparameters(
        self, n: int, key: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw theta (n, d) and hyperparameters (n, H) of n models from the prior."""
        generator = host_generator(key)
        pairs = [draw_equation(each.equation, each.known, n, generator) for each in self.bound]
        thetas, etas = zip(*pairs, strict=True)
        return np.concatenate(thetas, axis=1), np.concatenate(etas, axis=1)

    def hyperparameters(self, psi: np.ndarray) -> np.ndarray:
        """Return the hyperparameters (n, H) of all equations at coordinates (n, k)."""
        etas, start = [], 0
        for equation, (centre, root) in zip(self.equations, self.density.charts, strict=True):
            first = start + equation.form.size
            start = first + np.shape(root)[1]
            etas.append(np.asarray(centre) + psi[:, first:start] @ np.asarray(root).T)
        return np.concatenate(etas, axis=1)

    @cached_property
    def _coefficients(self) -> list[tuple[str, str, int]]:
        """(variable, label, place in theta) of all coefficients but the log sds of the noise."""
        entries, start = [], 0
        for equation in self.equations:
            names = [name for name, _, _ in coordinate_names(self.graph, equation)]
            for place, name in enumerate(names[:-1], start=start):
                variable, _, label = name.removesuffix("]").partition("[")
                entries.append((variable, label, place))
            start += len(names)
        return entries

    @cached_property
    def _hyperparameters(self) -> list[tuple[str, str, int]]:
        """(variable, label, place) of hyperparameters; none where they are held at their mode."""
        entries: list[tuple[str, str, int]] = []
        place = 0
        for equation in () if self.fixed else self.equations:
            _, _, node = coordinate_names(self.graph, equation)[0][0][:-1].partition("[")
            causes = [self.nodes[position] for position in equation.causes]
            names = ["sd", *(["trend"] if equation.form.is_nonlinear else [])]
            labels = [node] * len(names)
            for group in equation.form.groups:
                members = [causes[column] for column in group.columns]
                process = f"{'*'.join(members)}->{node}"
                inputs = [f"{process},{each}" for each in members] if members[1:] else [process]
                names += ["amplitude", *(["lengthscale"] * len(members))]
                labels += [process, *inputs]
            entries += zip(names, labels, range(place, place + len(names)), strict=True)
            place += len(names)
        return [entry for entry in entries if entry[0] != "sd"]

    @cached_property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The names of what coefficients and hyperparameters belong to, by dimension."""
        names: dict[str, dict[str, None]] = {dim: {} for dim in GP_DIMENSIONS.values()}
        for variable, label, _ in (*self._coefficients, *self._hyperparameters):
            names[GP_DIMENSIONS[variable]][label] = None
        return {dim: tuple(labels) for dim, labels in names.items()}

    def named(self, draws: np.ndarray, etas: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Return the coefficients, and the hyperparameters that are drawn, by name."""
        parts = [(self._coefficients, draws)]
        if etas is not None:
            parts.append((self._hyperparameters, np.exp(etas)))
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

    def regressions(self, usable: np.ndarray) -> list[FittedRegression]:
        """Return every regression at the mode of its hyperparameters, for usable entries (n, p)."""
        return fitted_regressions(self.bound, self.modes, self.data, self.nodes, usable)

    def held_out(self) -> dict[str, HeldOut] | None:
        """Hold out every observation of every equation, in closed form given hyperparameters.

        They are averaged over as the moments of theta are. None where outcomes of the target alone
        join the mechanisms.
        """
        if self.mode() is None:
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
        """Return for every nonlinear mechanism whether its curvature is uneven."""
        return uneven_mechanisms(
            self.bound, self.modes, self.data, self.nodes, self.usable(self.data)
        )

    def explain(self) -> str:
        """Return a message about a density that is not finite."""
        return (
            "the density of these mechanisms is not finite where the search should start; look for "
            f"impossible values of {listed(self.nodes)}, or give another cb.priors.GPPrior"
        )


def _evaluate_pair(reduced: Reduced, pair: tuple[np.ndarray, np.ndarray]) -> Any:
    return evaluate_many(reduced, *pair)


def whitened_names(
    nodes: Names, equations: Sequence[Equation], charts: Sequence[AffineChart]
) -> tuple[str, ...]:
    """Return the names of the coordinates z and u of all equations; see the module."""
    names = []
    for equation, chart in zip(equations, charts, strict=True):
        node = nodes[equation.position]
        names += [f"z[{node},{number}]" for number in range(1, equation.form.size + 1)]
        names += [f"u[{node},{number}]" for number in range(1, 1 + chart.root.shape[1])]
    return tuple(names)


def mixture_points(chart: AffineChart) -> np.ndarray:
    """Return hyperparameters (n, H) that averages over them are made of."""
    points = normal_points(MIXTURE_POINTS, chart.root.shape[1])
    return np.asarray(chart.centre + points @ chart.root.T)


def mixture_moments(
    equation: Equation, known: KnownTerms, chart: AffineChart
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (k,) and a factor (k, k) of the covariance of one equation's theta.

    Coefficients are averaged over hyperparameters, exactly given each of them.
    """
    mean, covariance = map(np.asarray, mix(equation.form, known, mixture_points(chart)))
    return mean, factor_covariance(covariance)


def draw_equation(
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


@partial(jax.jit, static_argnums=0)
def _means_of_each(
    equation: Equation, setting: Setting, coefficients: jax.Array, values: jax.Array
) -> jax.Array:
    """Return means (n, m) for coefficients (n, K), each with its values (n, m, p)."""

    def one(pair: tuple[jax.Array, jax.Array]) -> Any:
        columns = list(pair[1].T)
        return natural(equation, setting, pair[0], columns, True) + jnp.zeros(len(pair[1]))

    means: jax.Array = jax.lax.map(one, (coefficients, values), batch_size=16)
    return means


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

    def bind(self, task: Task) -> "GPModel":
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
        return GPModel(choices, replace(task, prior=prior), plans=plans)

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
