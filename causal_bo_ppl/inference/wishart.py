"""What do the observed moments imply about effects, whatever latent causes there are?

The mean and covariance of the target and its causes have a normal-inverse-Wishart posterior in
closed form, whatever latent causes there are: covariance ~ IW(nu, scale) and, given it, mean ~
N(centre, covariance / kappa). Given n observations with mean m and sum of squares S about it,

    kappa' = kappa + n,  nu' = nu + n,  centre' = (kappa centre + n m) / kappa',
    scale' = scale + S + (kappa n / kappa') (m - centre)(m - centre)'.

The graph's constraints are not used: effects are consistent, not efficient, and sets may disagree
slightly.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_spread
from causal_bo_ppl.errors import (
    ArgumentError,
    CausalBOWarning,
    DataError,
    DomainError,
    MechanismError,
    NumericalError,
    listed,
)
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.identification.evaluation import effects_of
from causal_bo_ppl.inference.draws import (
    NOMINAL_CHAINS,
    Drawn,
    Limits,
    draw_count,
    exact_lines,
    require_no_outcomes,
)
from causal_bo_ppl.inference.potentials import UNKNOWN_DENSITY, Importance, not_assessed
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms.base import Mechanisms, ResponseMap, Task
from causal_bo_ppl.mechanisms.linear import read_parameters, read_prior
from causal_bo_ppl.mechanisms.linear_equations import (
    DRAWN_WEIGHT,
    LinearObservations,
    Models,
    MomentPrior,
    ScaledPrior,
    replaced_note,
)
from causal_bo_ppl.mechanisms.linear_responses import EffectResponse
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows

DRAWS_PER_SPREAD = 512
SPREADS = 8  # independent Sobol sequences of draws by which moments are computed
SOBOL_RESOLUTION = 2.0**-53  # no quantile is infinite
OBSERVATIONS_PER_VARIABLE = 5  # 90 % intervals of a regression on all of them then cover 88 %
DRAWS_AT_ONCE = 1_024  # pushed through the estimands


class MomentStatistics(NamedTuple):
    """The number of observations of k variables, their mean (k,), and scatter about it (k, k)."""

    n: int
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


def summarise_moments(values: np.ndarray) -> MomentStatistics:
    """Return the statistics of observations (n, k)."""
    mean = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
    centred = values - mean
    return MomentStatistics(len(values), mean, centred.T @ centred)


def merge_statistics(one: MomentStatistics, other: MomentStatistics) -> MomentStatistics:
    """Return the statistics of both sets of observations together."""
    n = one.n + other.n
    if not n:
        return one
    gap = other.mean - one.mean
    scatter = one.scatter + other.scatter + one.n * other.n / n * np.outer(gap, gap)
    return MomentStatistics(n, one.mean + other.n / n * gap, scatter)


def prior_moments(
    statistics: MomentStatistics, prior: ScaledPrior | MomentPrior
) -> NormalInverseWishart:
    """Return the prior of mean and covariance; a scaled one takes its scale from the data."""
    if isinstance(prior, MomentPrior):
        return NormalInverseWishart(prior.centre, prior.kappa, prior.scale, prior.nu)
    scale = np.diag(np.diagonal(statistics.scatter)) * prior.observations / statistics.n
    return NormalInverseWishart(statistics.mean, prior.observations, scale, prior.observations - 1)


def log_density(
    distribution: NormalInverseWishart, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """Return the log density of means (n, k) and covariances (n, k, k), up to a constant."""
    centre, kappa, scale, nu = distribution
    precisions = np.linalg.inv(covariances)
    _, logs = np.linalg.slogdet(covariances)
    gaps = means - centre
    trace = np.einsum("ij,nji->n", scale, precisions)
    distance = np.einsum("ni,nij,nj->n", gaps, precisions, gaps)
    return np.asarray(-0.5 * ((nu + len(centre) + 2) * logs + trace + kappa * distance))


def solve_moments(
    statistics: MomentStatistics, prior: ScaledPrior | MomentPrior
) -> NormalInverseWishart:
    """Return the posterior of mean and covariance."""
    (centre, kappa, scale, nu), n = prior_moments(statistics, prior), statistics.n
    gap = statistics.mean - centre
    after = scale + statistics.scatter + kappa * n / (kappa + n) * np.outer(gap, gap)
    mean = (kappa * centre + n * statistics.mean) / (kappa + n)
    return NormalInverseWishart(mean, kappa + n, after, nu + n)


def draw_moments(
    posterior: NormalInverseWishart, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Draw means (n, k) and covariances (n, k, k), independently and exactly."""
    size = len(posterior.centre)
    generator = host_generator(key)
    chi = 2 * generator.standard_gamma((posterior.nu - np.arange(size)) / 2, (n, size))
    return _moments_from_bartlett(
        posterior, chi, generator.standard_normal((n, size * (size + 1) // 2))
    )


def spread_moments(posterior: NormalInverseWishart, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return quasi-random draws: DRAWS_PER_SPREAD means (n, k) and covariances (n, k, k).

    They follow a Sobol sequence that the seed scrambles.
    """
    size = len(posterior.centre)
    sequence = qmc.Sobol(size + size * (size + 1) // 2, rng=np.random.default_rng(seed))
    unit = np.clip(sequence.random(DRAWS_PER_SPREAD), SOBOL_RESOLUTION, 1 - SOBOL_RESOLUTION)
    chi = 2 * gammaincinv((posterior.nu - np.arange(size)) / 2, unit[:, :size])
    return _moments_from_bartlett(posterior, chi, ndtri(unit[:, size:]))


def _moments_from_bartlett(
    posterior: NormalInverseWishart, chi: np.ndarray, normals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return moments by Bartlett's factor A of chi-squares (n, k) and normals (n, k (k + 1) / 2).

    precision = U A A' U' with U U' = scale^-1, so covariance = C'C with C = A^-1 U^-1.
    """
    n, size = chi.shape
    lower = np.zeros((n, size, size))
    lower[:, *np.tril_indices(size, -1)] = normals[:, size:]
    lower[:, range(size), range(size)] = np.sqrt(chi)
    scale_root = np.broadcast_to(np.linalg.cholesky(posterior.scale).T, lower.shape)
    root = np.linalg.solve(lower, scale_root)
    means = posterior.centre + (normals[:, None, :size] @ root)[:, 0] / np.sqrt(posterior.kappa)
    return means, np.swapaxes(root, 1, 2) @ root


@dataclass(frozen=True)
class Wishart:
    """A normal-inverse-Wishart posterior of the observed moments, pushed through the estimands.

    It is valid under latent confounding, and takes observational data only.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("toy", variant="confounded")
    >>> cb.fit(system.problem, system.observe(100, 0), method=cb.Wishart()).verdict
    'exact'
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
            raise ArgumentError(
                "wishart needs no mechanisms: the estimands of a Gaussian are linear; leave out "
                f"mechanisms={mechanisms.name!r}"
            )
        require_no_outcomes(task, self.name)
        prior: ScaledPrior | MomentPrior = read_prior(task, ScaledPrior, MomentPrior)
        parameters = read_parameters(task, default="estimand")
        if parameters.kind != "estimand":
            raise ArgumentError(
                'wishart learns effects, not mechanisms: take parameters="estimand", not '
                f"{parameters.kind!r}"
            )
        if parameters.explored.known:
            raise MechanismError(
                "wishart cannot use known coefficients; leave `known` out of the problem, or use "
                "another method"
            )
        graph = task.problem.graph.ancestral(task.problem.target)
        if isinstance(prior, MomentPrior) and len(prior.centre) != len(graph.nodes):
            raise MechanismError(
                f"the moment prior has {len(prior.centre)} variables; it needs "
                f"{listed(graph.nodes)}"
            )
        values = observed(task.data, graph)
        if isinstance(prior, ScaledPrior):
            _require_observations(values, graph)
        identifications = task.problem.identification
        chosen = [identifications[members] for members in parameters.explored.sets]
        effects = {each.effective: each.estimand for each in chosen if each.estimand is not None}
        empty = summarise_moments(values[:0])
        before = MomentDistribution(task.problem, graph, effects, parameters, prior, empty)
        return before.update(task.data)


@dataclass(frozen=True, eq=False)
class ObservedMoments(LinearObservations):
    """Observations given their moments alone: a model without edges."""

    graph: CausalGraph


@dataclass(frozen=True, eq=False)
class MomentDistribution:
    """Estimands as functionals of an uncertain mean and covariance; see `draws.ThetaDistribution`.

    graph: the target's ancestral graph, with k nodes. effects: the estimand of every distinct
    effective set.
    """

    problem: Problem
    graph: CausalGraph
    effects: dict[tuple[str, ...], Any]
    parameters: Parameters
    prior: ScaledPrior | MomentPrior
    statistics: MomentStatistics

    settings = ""
    verdict = "exact"
    moments_by = f"{SPREADS} even spreads of {DRAWS_PER_SPREAD} draws"
    chains = None
    summary = None
    effective_draws = float(SPREADS * DRAWS_PER_SPREAD)  # at least: even spreads are more exact
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
        """The model of observations given the moments."""
        return ObservedMoments(self.graph)

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
        for start in range(0, len(means), DRAWS_AT_ONCE):
            block = slice(start, start + DRAWS_AT_ONCE)
            results = effects_of(asked, self.graph, self.graph.nodes[-1], covariances[block])
            slopes = dict(zip(self.effects, (each for each, _ in results), strict=True))
            for column, coordinate in enumerate(self.parameters.coordinates):
                slope = slopes[coordinate.given]
                if coordinate.cause:
                    theta[block, column] = slope[:, coordinate.given.index(coordinate.cause)]
                else:
                    causes = [self.graph.index(name) for name in coordinate.given]
                    centre = (slope * means[block][:, causes]).sum(axis=1)
                    theta[block, column] = means[block, -1] - centre
        return theta

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d), exactly; NaN where an estimand is not defined."""
        return self._push(*draw_moments(self.posterior, n, key))

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta with the moments, by default 4,000 times."""
        drawn = self._drawn(*draw_moments(self.posterior, draw_count(n), key))
        means, covariances = drawn.models.matrices[:, -1], drawn.models.noises
        prior = prior_moments(self.statistics, self.prior)
        return drawn._replace(log_prior=log_density(prior, means, covariances))

    def _drawn(self, means: np.ndarray, covariances: np.ndarray) -> Drawn:
        matrices = np.zeros((len(means), means.shape[1] + 1, means.shape[1]))
        matrices[:, -1] = means
        theta = self._push(means, covariances)
        return Drawn(NOMINAL_CHAINS, theta, Models(matrices, covariances))

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; one that is scaled to the data as `ScaledPrior` says.

        In a draw theta may have no value.
        """
        prior, size, note = prior_moments(self.statistics, self.prior), len(self.graph.nodes), ""
        if isinstance(self.prior, ScaledPrior) and not prior.nu > size + 1:
            scale = prior.scale * DRAWN_WEIGHT / prior.kappa
            prior = prior._replace(nu=size + DRAWN_WEIGHT - 1, scale=scale)
            note = replaced_note(self.prior, self.graph.nodes)
        means, covariances = draw_moments(prior, draw_count(n), key)
        return self._drawn(means, covariances)._replace(note=note)

    def importance(self, draws: int, key: jax.Array) -> Importance:
        """Return equal weights: no density of the estimands is known."""
        return not_assessed(draws, UNKNOWN_DENSITY)

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return the one row of a closed form."""
        return exact_lines("moments of the observed variables")

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on how the posterior was computed."""
        return "wishart is a closed form: nothing was sampled and nothing can have failed."

    @cached_property
    def spreads(self) -> np.ndarray:
        """Quasi-random draws of theta, of shape (SPREADS, DRAWS_PER_SPREAD, d).

        Raises NumericalError where an estimand is not defined at one of them.
        """
        spreads = [self._push(*spread_moments(self.posterior, seed)) for seed in range(SPREADS)]
        undefined = np.isnan(spreads).mean(axis=(0, 1))
        if undefined.any():
            worst = int(undefined.argmax())
            raise NumericalError(
                f"{self.parameters.names[worst]} has no covariance: its estimand is not defined at "
                f"{undefined[worst]:.1%} of the posterior's draws, where a denominator passes "
                "zero. Look at post.quantiles instead, add observations, or drop this set"
            )
        return np.stack(spreads)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""
        flat = self.spreads.reshape(-1, len(self.parameters))
        return flat.mean(axis=0), factor_draws(flat)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the mean covariance."""
        mask = np.asarray(queries.mask)
        first, which = distinct_rows(mask)
        return np.asarray(np.array([self._variance(row) for row in mask[first]])[which])

    def _variance(self, mask: np.ndarray) -> float:
        """Return the variance of one outcome where the variables of a mask (k,) are set."""
        members = tuple(compress(self.graph.nodes, mask))
        target, covariance = self.graph.nodes[-1], self.posterior.mean_covariance
        effective = self.parameters.reduce(members).effective
        if not effective:
            return float(covariance[-1, -1])
        if effective not in self.effects:
            raise DomainError(
                f"the effect of do({listed(members)}) was not fitted: no usable set of the problem "
                "has it"
            )
        asked = [(self.effects[effective], effective)]
        [(_, variance)] = effects_of(asked, self.graph, target, covariance[None])
        return float(variance[0])

    def update(self, data: Data) -> "MomentDistribution":
        """Return the posterior after more observational data."""
        more = summarise_moments(observed(data, self.graph))
        updated = replace(self, statistics=merge_statistics(self.statistics, more))
        centre, _, scale, _ = updated.posterior
        finite = np.isfinite(centre) & np.isfinite(scale).all(axis=1)
        if not finite.all():
            where = self.graph.nodes[int(finite.argmin())]
            raise NumericalError(
                f"the moments of {where!r} are not finite, so the posterior is not exact; change "
                "its units, or look for values that cannot be"
            )
        return updated


def observed(data: Data, graph: CausalGraph) -> np.ndarray:
    """Return values (n, k) of the target and its causes; refuse interventional data."""
    if not data.is_observational.all():
        raise DataError(
            "wishart learns from observational data only; in "
            f"{int((~data.is_observational).sum())} of {len(data)} observations something was set: "
            "pass data.select(data.is_observational), or give all to cb.Study(problem, data, key=0)"
        )
    return np.asarray(data.values[:, [data.nodes.index(name) for name in graph.nodes]])


def _require_observations(values: np.ndarray, graph: CausalGraph) -> None:
    """Refuse observations that do not determine a covariance; warn of few."""
    size = len(graph.nodes)
    if not len(values) > size + 2:
        raise DataError(
            f"wishart needs more than {size + 2} observations for {size} variables, got "
            f"{len(values)}; add observations, or give a MomentPrior"
        )
    for name, column in zip(graph.nodes, values.T, strict=True):
        fault = "is constant in these data; its effect cannot be learned: vary it or drop it"
        require_spread(column, f"{name!r} {fault}")
    standardised = (values - values.mean(axis=0)) / values.std(axis=0)
    _, sizes, directions = np.linalg.svd(standardised, full_matrices=False)
    if not sizes[-1] > 1e-7 * sizes[0]:
        weights = np.abs(directions[-1])
        pairs = zip(graph.nodes, weights, strict=True)
        together = [name for name, weight in pairs if weight > 0.1 * weights.max()]
        raise DataError(f"{listed(together)} are exactly collinear in these data; drop one of them")
    enough = OBSERVATIONS_PER_VARIABLE * size
    if len(values) < enough:
        warnings.warn(
            f"{len(values)} observations are few for the moments of {size} variables: intervals by "
            f"wishart are too narrow below about {enough}; add some, or give a MomentPrior",
            CausalBOWarning,
            stacklevel=4,
        )
