"""What is known about the mean and covariance of variables, before and after some rows?

The normal-inverse-Wishart family: covariance ~ IW(nu, scale) and, given it, mean ~ N(centre,
covariance / kappa). Given n rows with mean m and sum of squares S about it,

    kappa' = kappa + n,  nu' = nu + n,  centre' = (kappa centre + n m) / kappa',
    scale' = scale + S + (kappa n / kappa') (m - centre)(m - centre)'.

What do the observed moments say about effects, whatever latent causes there are?

The mean and covariance of the target and its causes have a posterior in closed form, whatever
latent causes there are. The graph's constraints are not used: effects are consistent, not
efficient, and sets may disagree slightly.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_spread
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    DomainError,
    ModelError,
    NumericalError,
    listed,
)
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.identification.evaluation import effects_of
from causal_bo_ppl.identification.parameters import reduce_effect
from causal_bo_ppl.inference.conjugate import require_no_outcomes
from causal_bo_ppl.inference.draws import CHAINS, Drawn, Limits, even, exact_lines
from causal_bo_ppl.inference.potentials import UNKNOWN_DENSITY, Importance, not_assessed
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms.base import Mechanisms, ResponseMap, Task
from causal_bo_ppl.mechanisms.linear import sem
from causal_bo_ppl.mechanisms.linear.parameters import identified, read_parameters, read_prior
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.responses import EffectResponse
from causal_bo_ppl.mechanisms.linear.sem import Models
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows

POINTS = 512  # draws of one even spread
TINY = 2.0**-53  # the Sobol points' resolution: no quantile is infinite


class Statistics(NamedTuple):
    """Rows of k variables: their number, mean (k,), and sum of squares about the mean (k, k)."""

    rows: int
    mean: np.ndarray
    scatter: np.ndarray


class NormalInverseWishart(NamedTuple):
    """A distribution of a mean (k,) and a covariance (k, k).

    The covariance is IW(nu, scale) and, given it, the mean is N(centre, covariance / kappa).
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    @property
    def mean_covariance(self) -> np.ndarray:
        """Mean of the covariance, scale / (nu - k - 1)."""
        return np.asarray(self.scale / (self.nu - len(self.centre) - 1))


def summarise_rows(values: np.ndarray) -> Statistics:
    """Return the statistics of rows (n, k)."""
    mean = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
    centred = values - mean
    return Statistics(len(values), mean, centred.T @ centred)


def merge_statistics(one: Statistics, other: Statistics) -> Statistics:
    """Return the statistics of both sets of rows together."""
    rows = one.rows + other.rows
    if not rows:
        return one
    gap = other.mean - one.mean
    between = one.rows * other.rows / rows * np.outer(gap, gap)
    return Statistics(
        rows, one.mean + other.rows / rows * gap, one.scatter + other.scatter + between
    )


def prior_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """Return the prior of mean and covariance; a scaled one takes its scale from the rows."""
    if isinstance(prior, MomentPrior):
        return NormalInverseWishart(prior.centre, prior.kappa, prior.scale, prior.nu)
    scale = np.diag(np.diagonal(found.scatter)) * prior.rows / found.rows
    return NormalInverseWishart(found.mean, prior.rows, scale, prior.rows - 1)


def log_prior_moments(
    found: Statistics, prior: ScaledPrior | MomentPrior, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """Return the log prior of means (n, k) and covariances (n, k, k), up to a constant."""
    centre, kappa, scale, nu = prior_moments(found, prior)
    precisions = np.linalg.inv(covariances)
    _, logs = np.linalg.slogdet(covariances)
    gaps = means - centre
    trace = np.einsum("ij,nji->n", scale, precisions)
    distance = np.einsum("ni,nij,nj->n", gaps, precisions, gaps)
    return np.asarray(-0.5 * ((nu + len(centre) + 2) * logs + trace + kappa * distance))


def solve_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """Return the posterior of mean and covariance."""
    (centre, kappa, scale, nu), n = prior_moments(found, prior), found.rows
    gap = found.mean - centre
    after = scale + found.scatter + kappa * n / (kappa + n) * np.outer(gap, gap)
    return NormalInverseWishart(
        (kappa * centre + n * found.mean) / (kappa + n), kappa + n, after, nu + n
    )


def draw_moments(
    posterior: NormalInverseWishart, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Draw means (n, k) and covariances (n, k, k), independently and exactly."""
    size = len(posterior.centre)
    generator = host_generator(key)
    chi = 2 * generator.standard_gamma((posterior.nu - np.arange(size)) / 2, (n, size))
    return _place_moments(posterior, chi, generator.standard_normal((n, size * (size + 1) // 2)))


def spread_moments(posterior: NormalInverseWishart, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return POINTS draws that fill the posterior evenly: means (n, k) and covariances (n, k, k).

    They follow a Sobol sequence that the seed scrambles.
    """
    size = len(posterior.centre)
    sequence = qmc.Sobol(size + size * (size + 1) // 2, rng=np.random.default_rng(seed))
    unit = np.clip(sequence.random(POINTS), TINY, 1 - TINY)
    chi = 2 * gammaincinv((posterior.nu - np.arange(size)) / 2, unit[:, :size])
    return _place_moments(posterior, chi, ndtri(unit[:, size:]))


def _place_moments(
    posterior: NormalInverseWishart, chi: np.ndarray, normals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Make draws of chi-squares (n, k) and normals (n, k (k + 1) / 2) by Bartlett's factor A.

    precision = U A A' U' with U U' = scale^-1, so covariance = C'C with C = A^-1 U^-1.
    """
    n, size = chi.shape
    lower = np.zeros((n, size, size))
    lower[:, *np.tril_indices(size, -1)] = normals[:, size:]
    lower[:, range(size), range(size)] = np.sqrt(chi)
    root = np.linalg.solve(
        lower, np.broadcast_to(np.linalg.cholesky(posterior.scale).T, lower.shape)
    )
    means = posterior.centre + (normals[:, None, :size] @ root)[:, 0] / np.sqrt(posterior.kappa)
    return means, np.swapaxes(root, 1, 2) @ root


SPREADS = 8  # independent even spreads, whose disagreement is the error of the moments
ENOUGH = 5  # rows per variable: 90 % intervals of a regression on all of them then cover 88 %
DRAWS = 1_024  # pushed through at once


@dataclass(frozen=True)
class Wishart:
    """A normal-inverse-Wishart posterior of the observed moments, pushed through the estimands.

    It is valid under latent confounding, and takes observational rows only.
    """

    name = "wishart"
    needs_key = False
    takes_experiments = False
    uses_linearity = False
    learns_moments = True

    def proper_prior(self, problem: Problem) -> MomentPrior:
        """Return a prior of the moments that can be drawn from: the mean covariance is 1."""
        size = len(problem.graph.ancestral(problem.target).nodes)
        return MomentPrior(np.zeros(size), 1.0, 4.0 * np.eye(size), size + 5.0)

    def infer(
        self, task: Task, mechanisms: Mechanisms, key: jax.Array | None
    ) -> "MomentDistribution":
        """Return the posterior of the verified estimands."""
        if not getattr(mechanisms, "is_linear", False):
            raise ModelError(
                "wishart needs no mechanisms: the estimands of a Gaussian are linear; leave out "
                f"mechanisms={mechanisms.name!r}"
            )
        if task.linear:
            raise ModelError(
                'wishart cannot use what only linearity identifies; take method="nuts" or "laplace"'
            )
        require_no_outcomes(task, self.name)
        parameters, prior = read_parameters(task, default="estimand"), read_prior(task)
        if parameters.kind != "estimand":
            raise ModelError(
                'wishart knows effects, not mechanisms: take parameters="estimand", not '
                f"{parameters.kind!r}"
            )
        if parameters.explored.known:
            raise ModelError(
                "wishart cannot use known coefficients; leave `known` out of the problem, or use "
                "another method"
            )
        if isinstance(prior, FixedPrior):
            raise ModelError(
                "a FixedPrior is for method='conjugate'; wishart takes a ScaledPrior or a "
                "MomentPrior"
            )
        graph = task.problem.graph.ancestral(task.problem.target)
        if isinstance(prior, MomentPrior) and len(prior.centre) != len(graph.nodes):
            raise ModelError(
                f"the moment prior has {len(prior.centre)} variables; it needs "
                f"{listed(graph.nodes)}"
            )
        values = observed(task.data, graph)
        if isinstance(prior, ScaledPrior):
            _require_rows(values, graph)
        found = identified(task.problem, False)
        chosen = [found[members] for members in parameters.explored.sets]
        effects = {each.effective: each.estimand for each in chosen if each.estimand is not None}
        statistics = summarise_rows(values)
        distribution = MomentDistribution(
            task.problem, graph, effects, parameters, prior, statistics
        )
        return distribution.require_finite()


class ObservedMoments:
    """Rows by their observed moments alone: a model without edges."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes

    def scales(self, draws: Models) -> np.ndarray:
        """Return the sds of all variables, (n, k)."""
        return np.asarray(np.sqrt(np.diagonal(draws.noises, axis1=1, axis2=2)))

    def log_densities(self, draws: Models, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given those before it, (n, rows, k)."""
        return sem.log_densities(draws, values, free)

    def disturbances(self, draws: Models, rows: np.ndarray, position: int) -> np.ndarray:
        """Return the disturbances (n, rows) of one variable that give rows (n, rows, p)."""
        return sem.disturbances(draws, rows, position)

    @property
    def gaussian(self) -> np.ndarray:
        """Whether each variable is Gaussian given those before it, (k,): all are."""
        return np.ones(len(self.nodes), bool)

    def replicate(self, draws: Models, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw new rows, (n, rows, k)."""
        return sem.replicate(draws, queries, key)


@dataclass(frozen=True, eq=False)
class MomentDistribution:
    """Estimands as functionals of an uncertain mean and covariance; see `interfaces.ThetaDistribution`.

    graph: the target's ancestral graph, with k nodes. effects: the estimand of every distinct
    effective set.
    """

    problem: Problem
    graph: CausalGraph
    effects: dict[tuple[str, ...], Any]
    parameters: Parameters
    prior: ScaledPrior | MomentPrior
    statistics: Statistics

    settings = ""
    verdict = "exact"
    moments_by = f"{SPREADS} even spreads of {POINTS} draws"
    chains = None
    summary = None
    worth = float(SPREADS * POINTS)  # even spreads are worth more
    tail_degrees = np.inf
    is_gaussian = False

    @cached_property
    def posterior(self) -> NormalInverseWishart:
        """The posterior of the mean and covariance."""
        return solve_moments(self.statistics, self.prior)

    @cached_property
    def response(self) -> ResponseMap:
        """The map from estimands to effects."""
        return EffectResponse(self.problem, self.parameters)

    @cached_property
    def model(self) -> ObservedMoments:
        """What the moments say about rows."""
        return ObservedMoments(self.graph.nodes)

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, of shape (k,): all are."""
        return np.ones(len(self.graph.nodes), bool)

    def _push(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """Return theta (n, d) at means (n, k) and covariances (n, k, k).

        It is NaN where an estimand is not defined.
        """
        asked = [(estimand, effective) for effective, estimand in self.effects.items()]
        theta = np.empty((len(means), len(self.parameters)))
        for start in range(0, len(means), DRAWS):
            rows = slice(start, start + DRAWS)
            found = effects_of(asked, self.graph, self.graph.nodes[-1], covariances[rows])
            slopes = {
                effective: each for effective, (each, _) in zip(self.effects, found, strict=True)
            }
            for column, coordinate in enumerate(self.parameters.coordinates):
                each = slopes[coordinate.given]
                if coordinate.cause:
                    theta[rows, column] = each[:, coordinate.given.index(coordinate.cause)]
                else:
                    at = [self.graph.index(name) for name in coordinate.given]
                    centre = (each * means[rows][:, at]).sum(axis=1)
                    theta[rows, column] = means[rows, -1] - centre
        return theta

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d), exactly; NaN where an estimand is not defined."""
        return self._push(*draw_moments(self.posterior, n, key))

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta with the moments, by default 4,000 times."""
        means, covariances = draw_moments(self.posterior, even(n), key)
        matrices = np.zeros((len(means), means.shape[1] + 1, means.shape[1]))
        matrices[:, -1] = means
        models = Models(matrices, covariances)
        log_prior = log_prior_moments(self.statistics, self.prior, means, covariances)
        return Drawn(CHAINS, self._push(means, covariances), models, log_prior)

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times before any row; None where the prior is scaled to the rows."""
        if not isinstance(self.prior, MomentPrior):
            return None
        nothing = summarise_rows(np.zeros((0, len(self.graph.nodes))))
        return replace(self, statistics=nothing).drawn(even(n), key)

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return equal weights: no density of the estimands is known."""
        return not_assessed(draws, UNKNOWN_DENSITY)

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return one line that says that nothing can have failed."""
        return exact_lines("moments of the observed variables")

    def describe(self, lines: pd.DataFrame) -> str:
        """Say how the posterior was computed."""
        return "wishart is a closed form: nothing was sampled and nothing can have failed."

    @cached_property
    def spreads(self) -> np.ndarray:
        """Even draws of theta, of shape (SPREADS, POINTS, d).

        Raises NumericalError where an estimand is not defined at one of them.
        """
        spreads = [self._push(*spread_moments(self.posterior, seed)) for seed in range(SPREADS)]
        undefined = np.isnan(spreads).mean(axis=(0, 1))
        if undefined.any():
            worst = int(undefined.argmax())
            raise NumericalError(
                f"{self.parameters.names[worst]} has no covariance: its estimand is not defined at "
                f"{undefined[worst]:.1%} of the posterior's draws, where a denominator passes "
                "zero. Look at post.quantiles instead, add rows, or drop this set"
            )
        return np.stack(spreads)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""
        flat = self.spreads.reshape(-1, len(self.parameters))
        return flat.mean(axis=0), factor_draws(flat)

    def standard_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the errors of the mean (d,) and of the sd (d,), by how the even spreads differ."""
        parts = self.spreads.mean(axis=1), self.spreads.std(axis=1, ddof=1)
        mean, sd = (np.std(part, axis=0, ddof=1) / np.sqrt(SPREADS) for part in parts)
        return mean, sd

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean covariance."""
        first, which = distinct_rows(np.asarray(queries.mask))
        sets = [self._effective(kind) for kind in np.asarray(queries.mask)[first]]
        variances = np.array([self._variance(effective) for effective in sets])
        return np.asarray(variances[which])

    def _variance(self, effective: tuple[str, ...]) -> float:
        covariance = self.posterior.mean_covariance
        if not effective:
            return float(covariance[-1, -1])
        asked, target = [(self.effects[effective], effective)], self.graph.nodes[-1]
        [(_, variance)] = effects_of(asked, self.graph, target, covariance[None])
        return float(variance[0])

    def _effective(self, mask: np.ndarray) -> tuple[str, ...]:
        members = [name for name, is_set in zip(self.graph.nodes, mask, strict=True) if is_set]
        effective = reduce_effect(self.graph, self.graph.nodes[-1], members).effective
        if effective and effective not in self.effects:
            raise DomainError(
                f"the effect of do({listed(members)}) was not fitted: no usable set of the problem "
                "has it"
            )
        return effective

    def update(self, rows: Data) -> "MomentDistribution":
        """Return the belief after more observational rows."""
        more = summarise_rows(observed(rows, self.graph))
        return replace(self, statistics=merge_statistics(self.statistics, more)).require_finite()

    def require_finite(self) -> "MomentDistribution":
        """Return this belief if its moments are finite; nothing about them is exact otherwise."""
        finite = np.isfinite(self.posterior.centre) & np.isfinite(self.posterior.scale).all(axis=1)
        if not finite.all():
            where = self.graph.nodes[int(finite.argmin())]
            raise NumericalError(
                f"the moments of {where!r} are not finite, so the posterior is not exact; change "
                "its units, or look for values that cannot be"
            )
        return self


def observed(data: Data, graph: CausalGraph) -> np.ndarray:
    """Return values (n, k) of the target and its causes; refuse rows in which something was set."""
    if not data.is_observational.all():
        raise DataError(
            "wishart learns from observational rows only; "
            f"{int((~data.is_observational).sum())} of {len(data)} rows have something set: pass "
            "data.select(data.is_observational), or let cb.Study(problem, data, key=0) take them all"
        )
    return np.asarray(data.values[:, [data.nodes.index(name) for name in graph.nodes]])


def _require_rows(values: np.ndarray, graph: CausalGraph) -> None:
    """Refuse rows that determine no covariance; warn of few."""
    size = len(graph.nodes)
    if not len(values) > size + 2:
        raise DataError(
            f"wishart needs more than {size + 2} observational rows for {size} variables, got "
            f"{len(values)}; add rows, or give a MomentPrior"
        )
    for name, column in zip(graph.nodes, values.T, strict=True):
        require_spread(
            column,
            f"{name!r} is constant in these rows; its effect cannot be learned: vary it or drop it",
        )
    standardised = (values - values.mean(axis=0)) / values.std(axis=0)
    _, sizes, directions = np.linalg.svd(standardised, full_matrices=False)
    if not sizes[-1] > 1e-7 * sizes[0]:
        weights = np.abs(directions[-1])
        pairs = zip(graph.nodes, weights, strict=True)
        together = [name for name, weight in pairs if weight > 0.1 * weights.max()]
        raise DataError(f"{listed(together)} are exactly collinear in these rows; drop one of them")
    if len(values) < ENOUGH * size:
        warnings.warn(
            f"{len(values)} rows are few for the moments of {size} variables: intervals by wishart "
            f"are too narrow below about {ENOUGH * size}; add rows, or give a MomentPrior",
            CausalBOWarning,
            stacklevel=4,
        )
