"""Mechanisms that bend, for one problem: how a graph, priors and rows become a density.

The family of mechanisms that bend: which variable depends how on its causes?
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.outcomes import Outcomes
from causal_bo_ppl.errors import ModelError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans, plan_sampling
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_covariance, factor_draws
from causal_bo_ppl.mechanisms.base import Task, Unevenness
from causal_bo_ppl.mechanisms.gp.basis import RULE, WIDER, Form, Frame, kernel_error
from causal_bo_ppl.mechanisms.gp.binding import Bound, bind_equation, starts, uneven_mechanisms
from causal_bo_ppl.mechanisms.gp.density import Chart, GPDensity, Told, log_outcomes
from causal_bo_ppl.mechanisms.gp.evidence import (
    LOG_TWO_PI,
    Beliefs,
    Known,
    Mode,
    find_mode,
    log_sds,
    mix,
)
from causal_bo_ppl.mechanisms.gp.priors import (
    GP,
    GPPrior,
    draw_under_plans,
    read_spread,
    regressors,
    require_rows,
    rows_of_target,
    usable_entries,
)
from causal_bo_ppl.mechanisms.gp.propagation import Equation, Setting, natural, normal_points, split
from causal_bo_ppl.mechanisms.gp.response_map import GPResponse, means_of_many
from causal_bo_ppl.problem import Problem, Queries

MIXED, DRAWS = 64, 1_024  # hyperparameters, or draws, that moments of theta are averaged over


@dataclass(frozen=True, eq=False)
class GPModel:
    """The mechanisms of the target's ancestral graph with their rows; see `interfaces.Model`.

    choices: how each variable depends on its causes; None for a linear mechanism. fixed: whether
    the hyperparameters, but the sds of disturbances, are held at the mode of their evidence. plans:
    where latent causes join causes of the target, the regressions that take the place of
    mechanisms, and how effects are averaged over their draws.
    """

    choices: Mapping[str, GP | None]
    task: Task
    fixed: bool = False
    plans: SamplingPlans | None = None

    theta_is_linear = False

    @property
    def data(self) -> Data:
        """The rows it learns from."""
        return self.task.data

    @property
    def prior(self) -> GPPrior:
        """What is believed before the rows."""
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
    def _columns(self) -> list[int]:
        return [self.data.nodes.index(name) for name in self.nodes]

    @cached_property
    def outcomes(self) -> Outcomes:
        """The outcomes of the target alone, over the model's variables."""
        columns = [self.task.problem.graph.index(name) for name in self.nodes]
        found = self.task.outcomes.columns(columns)
        self.response.require_planned(np.asarray(found.queries.mask))
        return found

    @cached_property
    def bound(self) -> tuple[Bound, ...]:
        """The equations that are learned, in causal order, with what is known about each."""
        problem, graph, usable = self.task.problem, self.graph, self.usable(self.data)
        given = regressors(problem, self.plans)

        def bind(name: str) -> Bound:
            rows, choice = usable[:, graph.index(name)], self.choices[name]
            return bind_equation(
                problem, graph, self.data, self.prior, choice, name, given[name], rows
            )

        return tuple(map(bind, given))

    def usable(self, data: Data) -> np.ndarray:
        """Return which rows say something about the equation of each variable, (n, p)."""
        return usable_entries(self.plans, self.nodes, data)

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """The equations that are learned."""
        return tuple(each.equation for each in self.bound)

    @cached_property
    def known(self) -> tuple[Known, ...]:
        """What is known about each of them."""
        return tuple(each.known for each in self.bound)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The hyperparameters of every equation at the mode of their evidence."""
        return tuple(
            find_mode(equation.form, known, starts(equation.form, known))
            for equation, _, known in self.bound
        )

    @cached_property
    def learned(self) -> np.ndarray:
        """Whether each variable's mechanism is learned, of shape (p,)."""
        found = np.zeros(len(self.nodes), bool)
        found[[equation.position for equation in self.equations]] = True
        return found

    @cached_property
    def response(self) -> GPResponse:
        """The map from coefficients and log sds to effects."""
        settings = tuple(each.setting for each in self.bound)
        return GPResponse(self.task.problem, self.equations, settings, plans=self.plans)

    @cached_property
    def density(self) -> GPDensity:
        """Prior and likelihood; new rows change its arrays only."""
        charts = tuple(
            Chart(mode.eta, _first(mode) if self.fixed else mode.root) for mode in self.modes
        )
        told = Told(*self.outcomes.padded())
        return GPDensity(self.known, charts, self.response.program, told, self.equations)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        """What each coordinate of psi moves."""
        names = []
        for equation, chart in zip(self.equations, self.density.charts, strict=True):
            node = self.nodes[equation.position]
            names += [f"z[{node},{number}]" for number in range(1, equation.form.size + 1)]
            names += [f"u[{node},{number}]" for number in range(1, 1 + chart.root.shape[1])]
        return tuple(names)

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of its covariance there, and the Newton decrement.

        Without outcomes of the target alone all are known from the evidence; None with outcomes.
        """
        size, left = len(self.coordinates), max(mode.decrement for mode in self.modes)
        return None if len(self.outcomes.values) else (np.zeros(size), np.eye(size), left)

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (d,) and a factor (d, r) of the covariance of theta, for psi Gaussian.

        Where psi is the one of `mode()`, coefficients are averaged over hyperparameters, exactly
        given each of them. Otherwise theta is averaged over draws of psi.
        """
        if self.mode() is None:
            points = normal_points(DRAWS, len(mode))
            theta = self.draws(mode + points @ factor.T)
            return theta.mean(axis=0), factor_draws(theta)
        size = len(self.response.names)
        mean, wide, start = np.zeros(size), np.zeros((size, size)), 0
        for equation, known, chart in zip(
            self.equations, self.known, self.density.charts, strict=True
        ):
            etas = chart.centre + normal_points(MIXED, chart.root.shape[1]) @ chart.root.T
            centre, spread = map(np.asarray, mix(equation.form, known, etas))
            end = start + equation.size
            mean[start:end], wide[start:end, start:end] = centre, factor_covariance(spread)
            start = end
        return mean, wide

    def given_hyperparameters(self) -> "GPModel":
        """Return the model with hyperparameters at the mode of their evidence."""
        return replace(self, fixed=True)

    def draws(self, psi: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at coordinates (n, k): the parameters of n models."""
        return np.asarray(in_pieces(partial(_thetas, self.density), np.asarray(psi), len(psi)))

    def theta(self, draws: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models."""
        return np.asarray(draws)

    def scales(self, draws: np.ndarray) -> np.ndarray:
        """Return the sds of the disturbances (n, p); 1 for variables that are not learned."""
        found = np.ones((len(draws), len(self.nodes)))
        for equation, (_, log_sd) in zip(self.equations, split(self.equations, draws), strict=True):
            found[:, equation.position] = np.exp(log_sd)
        return found

    def _means(self, draws: np.ndarray, rows: np.ndarray, at: int) -> np.ndarray:
        """Return the means (n, rows) of one equation's variable given rows (n or 1, rows, p)."""
        equation, setting = self.bound[at][:2]
        coefficients = split(self.equations, draws)[at][0]
        work = partial(means_of_many, equation)
        if rows.shape[0] == 1:
            shared = jnp.asarray(rows[0])
            return np.asarray(
                in_pieces(lambda c: work(setting, c, shared), coefficients, len(draws))
            )
        pairs = (coefficients, rows.reshape(len(rows), -1))
        shape = rows.shape[1:]

        def one(pair: Any) -> Any:
            return _means_of_each(equation, setting, pair[0], pair[1].reshape(-1, *shape))

        return np.asarray(in_pieces(one, pairs, len(draws)))

    def log_densities(self, draws: np.ndarray, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, (n, rows, p)."""
        found = np.zeros((len(draws), *values.shape))
        for at, equation in enumerate(self.equations):
            log_sd = split(self.equations, draws)[at][1][:, None]
            gap = values[:, equation.position] - self._means(draws, values[None], at)
            own = -0.5 * (gap * np.exp(-log_sd)) ** 2 - log_sd - 0.5 * LOG_TWO_PI
            found[:, :, equation.position] = np.where(free[:, equation.position], own, 0.0)
        return found

    def replicate(self, draws: np.ndarray, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one row for each of n models and each query, (n, rows, p).

        Variables that are not learned are drawn from Gaussians with their mean and sd.
        """
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        rows = np.zeros((len(draws), *mask.shape)) + np.where(mask, value, 0.0)
        generator = host_generator(key)
        for position in map(int, np.flatnonzero(~self.learned & ~mask.all(axis=0))):
            spread = read_spread(
                self.prior, self.nodes[position], self.data.column(self.nodes[position])
            )
            own = spread.draw(rows.shape[:2], generator)
            rows[:, :, position] = np.where(mask[:, position], value[:, position], own)
        learned = {self.nodes[each.position]: at for at, each in enumerate(self.equations)}

        def draw(name: str, inputs: np.ndarray) -> np.ndarray:
            sd = np.exp(split(self.equations, draws)[learned[name]][1])[:, None]
            noise = generator.standard_normal(inputs.shape[:2])
            return np.asarray(self._means(draws, inputs, learned[name]) + sd * noise)

        if self.plans is not None:
            return draw_under_plans(self.plans, tuple(learned), self.nodes, rows, mask, draw)
        for name, at in learned.items():
            position = self.equations[at].position
            rows[:, :, position] = np.where(mask[:, position], value[:, position], draw(name, rows))
        return rows

    def disturbances(self, draws: np.ndarray, rows: np.ndarray, position: int) -> np.ndarray:
        """Return the disturbances (n, rows) of one variable that give rows (n or 1, rows, p)."""
        [at] = [at for at, equation in enumerate(self.equations) if equation.position == position]
        return np.asarray(rows[:, :, position] - self._means(draws, rows, at))

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the disturbance of each variable is Gaussian with one sd, (p,): all are."""
        return np.ones(len(self.nodes), bool)

    def outcome_variances(self, draws: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean of the models."""
        self.response.require_planned(np.asarray(queries.mask))
        work = partial(_variances, self.response.program, jnp.asarray(draws.mean(axis=0)))
        return np.asarray(in_pieces(work, queries, len(queries)))

    def outcome_densities(self, draws: np.ndarray) -> np.ndarray | None:
        """Return the log density of each outcome under each model, (n, m); None without any."""
        if not len(self.outcomes.values):
            return None
        queries, values, _ = self.outcomes.padded()
        work = partial(_outcomes_of_many, self.response.program, queries, values)
        found = np.asarray(in_pieces(work, draws, len(draws)))
        return found[:, : len(self.outcomes.values)]

    def with_observations(self, rows: Data) -> "GPModel":
        """Return the same model with more rows."""
        return replace(self, task=replace(self.task, data=self.data.join(rows)))

    def target_observations(
        self, queries: Queries, outcomes: np.ndarray
    ) -> tuple[np.ndarray, Data]:
        """Return which outcomes (M,) of the target alone are rows of its mechanism, and the rows.

        Under latent causes none is.
        """
        if self.plans is not None:
            return np.zeros(len(queries), bool), self.data.select(slice(0, 0))
        return rows_of_target(self.task.problem, self.data, queries, outcomes)

    def draw_prior(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw n models before any row."""
        generator, parts = host_generator(key), []
        for equation, known in zip(self.equations, self.known, strict=True):
            frame, beliefs, _ = known
            noise = generator.standard_normal((n, equation.form.scales))
            eta = beliefs.centre + beliefs.width * noise
            white = generator.standard_normal((n, equation.form.size))
            spread = in_pieces(partial(_prior_sds, equation.form, frame, beliefs), eta, n)
            coefficients = np.exp(np.asarray(spread)) * white
            coefficients[:, 0] += beliefs.level
            parts += [coefficients, eta[:, :1]]
        return np.concatenate(parts, axis=1)

    def basis(self) -> pd.DataFrame:
        """Return a line for every Gaussian process: its basis, and how well it is resolved."""
        lines = []
        for (equation, setting, _), mode in zip(self.bound, self.modes, strict=True):
            at, names = 2, [self.nodes[position] for position in equation.causes]
            for group in equation.form.groups:
                own = mode.eta[at : at + 1 + len(group.columns)]
                at += len(own)
                half = WIDER * np.asarray(setting.frame.half)[list(group.columns)]
                resolved = RULE * half / np.array(group.functions)
                lines.append(
                    {
                        "variable": self.nodes[equation.position],
                        "causes": ", ".join(names[column] for column in group.columns),
                        "kernel": group.kernel,
                        "functions": group.size,
                        "amplitude": float(np.exp(own[0])),
                        "lengthscale": float(np.exp(own[1:]).min()),
                        "resolved": float(resolved.max()),
                        "error": kernel_error(group, setting.frame, own),
                    }
                )
        return pd.DataFrame(lines)

    def unevenness(self) -> list[Unevenness]:
        """Return for every mechanism that bends whether it bends as strongly everywhere."""
        return uneven_mechanisms(
            self.bound, self.modes, self.data, self.nodes, self.usable(self.data)
        )

    def explain(self) -> str:
        """Say why the density is not finite."""
        return (
            "the density of these mechanisms is not finite where the search should start; look for "
            f"values that cannot be among {listed(self.nodes)}, or give another cb.priors.GPPrior"
        )


def _first(mode: Mode) -> np.ndarray:
    """Return the direction (H, 1) in which only the log sd of the disturbance moves."""
    precision = np.linalg.inv(mode.root @ mode.root.T)
    return np.eye(len(mode.eta))[:, :1] / math.sqrt(max(precision[0, 0], 1e-12))


@jax.jit
def _thetas(density: GPDensity, psi: jax.Array) -> jax.Array:
    found: jax.Array = jax.lax.map(density.theta, psi)
    return found


@partial(jax.jit, static_argnums=0)
def _means_of_each(
    equation: Equation, setting: Setting, coefficients: jax.Array, rows: jax.Array
) -> jax.Array:
    """Return means (n, rows) for coefficients (n, K) and rows (n, rows, p)."""

    def one(pair: tuple[jax.Array, jax.Array]) -> Any:
        own, values = pair
        columns = [values[:, position] for position in range(values.shape[1])]
        return natural(equation, setting, own, columns, True) + jnp.zeros(len(values))

    found: jax.Array = jax.lax.map(one, (coefficients, rows), batch_size=16)
    return found


@jax.jit
def _variances(program: Any, theta: jax.Array, batch: Queries) -> jax.Array:
    found: jax.Array = program.variances(theta, batch)
    return found


@jax.jit
def _outcomes_of_many(
    program: Any, queries: Queries, values: jax.Array, theta: jax.Array
) -> jax.Array:
    found: jax.Array = jax.lax.map(lambda one: log_outcomes(program, one, queries, values), theta)
    return found


@partial(jax.jit, static_argnums=0)
def _prior_sds(form: Form, frame: Frame, beliefs: Beliefs, eta: jax.Array) -> jax.Array:
    found: jax.Array = jax.vmap(partial(log_sds, form, frame, beliefs))(eta)
    return found


REACH = (-2.5, 2.5)  # range of the data under a prior that no rows decide


@dataclass(frozen=True)
class GaussianProcesses:
    """The family V = g(causes) + e of a trend plus Gaussian processes; see `interfaces.Mechanisms`.

    Parameters
    ----------
    variables:
        {variable: `cb.GP(...)`, "gp" or "linear"}.
    others:
        The same for variables that are not named.
    """

    variables: Mapping[str, GP | str] = field(default_factory=dict)
    others: GP | str = "gp"

    name = "gp"

    def choice(self, variable: str) -> GP | None:
        """Return how a variable depends on its causes; None for a linear mechanism."""
        chosen = self.variables.get(variable, self.others)
        return GP() if chosen == "gp" else chosen if isinstance(chosen, GP) else None

    def bind(self, task: Task) -> "GPModel":
        """Return the model of a problem with its prior and rows."""
        _require_options(task)
        plans = find_plans(task.problem)
        prior = GPPrior() if task.prior is None else task.prior
        if not isinstance(prior, GPPrior):
            raise ModelError(f"mechanisms that bend take a cb.priors.GPPrior, got {prior!r}")
        _require_names(self, prior, task.problem, plans)
        require_rows(task.problem, plans, task.data, prior)
        graph = task.problem.graph.ancestral(task.problem.target)
        choices = {name: self.choice(name) for name in graph.nodes}
        return GPModel(choices, replace(task, prior=prior), plans=plans)

    def takes_experiments(self, problem: Problem) -> bool:
        """Return whether whole rows of every set of a problem say what their outcomes say.

        They do not where latent causes join the target to what is set: then the distribution of the
        target given its regressors is another one in the experiment than in rows of no experiment.
        """
        plans = find_plans(problem)
        return plans is None or all(plans.is_invariant(plans.target, each) for each in plans.sets)

    def proper_prior(self, problem: Problem) -> GPPrior:
        """Return a prior that no rows decide: all variables vary around 0 by about 1."""
        nodes = problem.graph.nodes
        around = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 1.0)
        return GPPrior(centres=around[0], scales=around[1], ranges=dict.fromkeys(nodes, REACH))


def find_plans(problem: Problem) -> SamplingPlans | None:
    """Return regressions and plans where latent causes join causes of the target, else None."""
    is_joined = problem.graph.ancestral(problem.target).bidirected
    return plan_sampling(problem) if is_joined else None


def read_choices(given: Mapping[Any, Any]) -> GaussianProcesses:
    """Return the family of a dictionary by variable; variables not named are linear."""
    for name, choice in given.items():
        if not isinstance(choice, GP) and choice not in ("gp", "linear"):
            raise ModelError(
                f'the mechanism of {name!r} must be "linear", "gp" or cb.GP(...), got {choice!r}'
            )
    return GaussianProcesses(dict(given), "linear")


def _require_names(
    family: GaussianProcesses, prior: GPPrior, problem: Problem, plans: SamplingPlans | None
) -> None:
    """Refuse names that are no variables of the graph, and groups of other than causes."""
    graph = problem.graph

    def causes(name: str) -> Names:
        return graph.parents(name) if plans is None else plans.given.get(name, ())

    for name in (*family.variables, *prior.scales, *prior.centres, *prior.ranges):
        if name not in graph.nodes:
            raise ModelError(unknown("variable", name, graph.nodes))
    for name, choice in family.variables.items():
        learned = [cause for cause in causes(name) if (cause, name) not in problem.known]
        if choice != "linear" and not learned:
            why = "has only causes with known coefficients" if causes(name) else "has none"
            raise ModelError(
                f"the mechanism of {name!r} cannot bend in its causes: it {why}; leave {name!r} "
                'out of `mechanisms`, or say "linear"'
            )
        groups = choice.groups if isinstance(choice, GP) else ()
        for each in (member for group in groups for member in group):
            if each not in causes(name):
                raise ModelError(
                    f"{each!r} is in a group of {name!r} but is none of its causes "
                    f"({listed(causes(name)) or 'it has none'})"
                )


def _require_options(task: Task) -> None:
    if task.parameters is not None:
        raise ModelError(
            f"parameters={task.parameters!r} is for linear mechanisms; theta of mechanisms that "
            "bend are their coefficients and log sds"
        )
    if not task.intercepts:
        raise ModelError("intercepts=False is for linear mechanisms; these have levels")
    if task.linear:
        raise ModelError("linear=True is for linear mechanisms; these are not linear")
