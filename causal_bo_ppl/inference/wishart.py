"""What do observational rows say about their own mean and covariance? Normal-inverse-Wishart, in closed form.

What do observational rows say about the effects themselves, whatever latent causes there are?

A normal-inverse-Wishart posterior of the mean and covariance of the target and its causes, pushed through the verified
estimands. The graph's constraints are not used: consistent, not efficient, and sets may disagree slightly.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.learnability import require_spread
from causal_bo_ppl.errors import (
    CausalBOWarning,
    DataError,
    DomainError,
    ModelError,
    NumericalError,
    listed,
)
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Identification, Parameters
from causal_bo_ppl.identification.evaluation import effects_of
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.inference.convergence import Limits, exact_lines
from causal_bo_ppl.inference.draws import CHAINS, Drawn, Models, even
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, Prior, ScaledPrior
from causal_bo_ppl.numerics import factor_draws
from causal_bo_ppl.problem import Queries

POINTS = 512  # of one even spread_moments
TINY = 2.0**-53  # the Sobol points' resolution: no quantile is infinite


class Statistics(NamedTuple):
    """Of rows of k variables: how many, their mean (k,) and their sum of squares about it (k, k)."""

    rows: int
    mean: np.ndarray
    scatter: np.ndarray


class NormalInverseWishart(NamedTuple):
    """covariance ~ IW(nu, scale), mean ~ N(centre, covariance / kappa)."""

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    @property
    def mean_covariance(self) -> np.ndarray:
        """E covariance, scale / (nu - k - 1)."""
        return np.asarray(self.scale / (self.nu - len(self.centre) - 1))


def summarise_rows(values: np.ndarray) -> Statistics:
    """Of rows (n, k)."""
    mean = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
    centred = values - mean
    return Statistics(len(values), mean, centred.T @ centred)


def merge_statistics(one: Statistics, other: Statistics) -> Statistics:
    """Of both sets of rows together."""
    rows = one.rows + other.rows
    if not rows:
        return one
    gap = other.mean - one.mean
    between = one.rows * other.rows / rows * np.outer(gap, gap)
    return Statistics(
        rows, one.mean + other.rows / rows * gap, one.scatter + other.scatter + between
    )


def prior_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """The prior of mean and covariance; a scaled one takes its scale from the rows."""
    if isinstance(prior, MomentPrior):
        return NormalInverseWishart(prior.centre, prior.kappa, prior.scale, prior.nu)
    scale = np.diag(np.diagonal(found.scatter)) * prior.rows / found.rows
    return NormalInverseWishart(found.mean, prior.rows, scale, prior.rows - 1)


def log_prior_moments(
    found: Statistics, prior: ScaledPrior | MomentPrior, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """(n,) log density of means (n, k) and covariances (n, k, k), up to a constant."""
    centre, kappa, scale, nu = prior_moments(found, prior)
    precisions = np.linalg.inv(covariances)
    _, logs = np.linalg.slogdet(covariances)
    gaps = means - centre
    spread_moments = np.einsum("ij,nji->n", scale, precisions) + kappa * np.einsum(
        "ni,nij,nj->n", gaps, precisions, gaps
    )
    return np.asarray(-0.5 * ((nu + len(centre) + 2) * logs + spread_moments))


def solve_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """The posterior of mean and covariance."""
    (centre, kappa, scale, nu), n = prior_moments(found, prior), found.rows
    gap = found.mean - centre
    after = scale + found.scatter + kappa * n / (kappa + n) * np.outer(gap, gap)
    return NormalInverseWishart(
        (kappa * centre + n * found.mean) / (kappa + n), kappa + n, after, nu + n
    )


def draw_moments(
    posterior: NormalInverseWishart, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """(n, k) means and (n, k, k) covariances: exact, independent draws."""
    size = len(posterior.centre)
    generator = host_generator(key)
    chi = 2 * generator.standard_gamma((posterior.nu - np.arange(size)) / 2, (n, size))
    return _place_moments(posterior, chi, generator.standard_normal((n, size * (size + 1) // 2)))


def spread_moments(posterior: NormalInverseWishart, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """POINTS draws that fill the posterior evenly: a scrambled Sobol sequence, the same for a seed."""
    size = len(posterior.centre)
    sequence = qmc.Sobol(size + size * (size + 1) // 2, rng=np.random.default_rng(seed))
    unit = np.clip(sequence.random(POINTS), TINY, 1 - TINY)
    chi = 2 * gammaincinv((posterior.nu - np.arange(size)) / 2, unit[:, :size])
    return _place_moments(posterior, chi, ndtri(unit[:, size:]))


def _place_moments(
    posterior: NormalInverseWishart, chi: np.ndarray, normals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """From chi-squares (n, k) and normals (n, k (k + 1) / 2), by Bartlett's factor A of the precision.

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


@dataclass(frozen=True, eq=False)
class Estimands:
    """Slopes and intercepts of the verified estimands, as functionals of an uncertain mean and covariance.

    graph: the target's ancestral graph. effects: for every distinct effective set its estimand.
    """

    graph: CausalGraph
    effects: dict[tuple[str, ...], Any]
    parameters: Parameters
    prior: ScaledPrior | MomentPrior
    statistics: Statistics

    settings = ""
    verdict = "exact"
    moments_by = f"{SPREADS} even spreads of {POINTS} draws"

    @cached_property
    def posterior(self) -> NormalInverseWishart:
        """Of the mean and covariance."""
        return solve_moments(self.statistics, self.prior)

    def _push(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """theta_Y (n, d) at given means (n, k) and covariances (n, k, k); NaN where an estimand is not defined."""
        asked = [(estimand, effective) for effective, estimand in self.effects.items()]
        found = np.empty((len(means), len(self.parameters)))
        for start in range(0, len(means), DRAWS):
            rows = slice(start, start + DRAWS)
            slopes = effects_of(asked, self.graph, self.graph.nodes[-1], covariances[rows])
            by_set = {
                effective: each for effective, (each, _) in zip(self.effects, slopes, strict=True)
            }
            for column, coordinate in enumerate(self.parameters.coordinates):
                each = by_set[coordinate.given]
                if coordinate.cause:
                    found[rows, column] = each[:, coordinate.given.index(coordinate.cause)]
                else:
                    at = [self.graph.index(name) for name in coordinate.given]
                    found[rows, column] = means[rows, -1] - (each * means[rows][:, at]).sum(axis=1)
        return found

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) exact draws of theta_Y; NaN where an estimand is not defined."""
        return self._push(*draw_moments(self.posterior, n, key))

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known: all."""
        return np.ones(len(self.graph.nodes), bool)

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Exact draws of all, by default 4,000; only mean and covariance are known, so the model has no edges."""
        means, covariances = draw_moments(self.posterior, even(n), key)
        matrices = np.zeros((len(means), means.shape[1] + 1, means.shape[1]))
        matrices[:, -1] = means
        log_prior = log_prior_moments(self.statistics, self.prior, means, covariances)
        return Drawn(
            CHAINS, self._push(means, covariances), Models(matrices, covariances), log_prior, {}
        )

    def without_rows(self) -> "Estimands":
        """What was believed before any row."""
        return replace(self, statistics=summarise_rows(np.zeros((0, len(self.graph.nodes)))))

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Nothing can have failed."""
        return exact_lines("moments of the observed variables")

    @cached_property
    def spreads(self) -> np.ndarray:
        """(SPREADS, POINTS, d) even draws of theta_Y; raises where an estimand is not defined at one of them."""
        found = np.stack(
            [self._push(*spread_moments(self.posterior, seed)) for seed in range(SPREADS)]
        )
        undefined = np.isnan(found).mean(axis=(0, 1))
        if undefined.any():
            worst = int(undefined.argmax())
            raise NumericalError(
                f"{self.parameters.names[worst]} has no covariance: its estimand is not defined at "
                f"{undefined[worst]:.1%} of the posterior's draws, where a denominator passes zero. Look at "
                "post.quantiles instead, add rows, or drop this set"
            )
        return found

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""
        flat = self.spreads.reshape(-1, len(self.parameters))
        return flat.mean(axis=0), factor_draws(flat)

    def standard_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the mean (d,) and of the sd (d,), from the disagreement of the even spreads."""
        parts = self.spreads.mean(axis=1), self.spreads.std(axis=1, ddof=1)
        mean, sd = (np.std(part, axis=0, ddof=1) / np.sqrt(SPREADS) for part in parts)
        return mean, sd

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome under each query, at the posterior mean of the covariance; queries (M, k)."""
        mask = np.asarray(queries.mask)
        kinds, rows = np.unique(mask, axis=0, return_inverse=True)
        return np.array([self._variance(self._effective(kind)) for kind in kinds])[rows.reshape(-1)]

    def _variance(self, effective: tuple[str, ...]) -> float:
        covariance = self.posterior.mean_covariance
        if not effective:
            return float(covariance[-1, -1])
        [(_, found)] = effects_of(
            [(self.effects[effective], effective)],
            self.graph,
            self.graph.nodes[-1],
            covariance[None],
        )
        return float(found[0])

    def _effective(self, mask: np.ndarray) -> tuple[str, ...]:
        members = [name for name, is_set in zip(self.graph.nodes, mask, strict=True) if is_set]
        effective = reduce_effect(self.graph, self.graph.nodes[-1], members).effective
        if effective and effective not in self.effects:
            raise DomainError(
                f"the effect of do({listed(members)}) was not fitted: no usable set of the problem has it"
            )
        return effective

    def update(self, rows: Data) -> "Estimands":
        """The posterior after more observational rows."""
        more = summarise_rows(observed(rows, self.graph))
        return replace(self, statistics=merge_statistics(self.statistics, more)).require_finite()

    def require_finite(self) -> "Estimands":
        """Return this belief if its moments are finite: otherwise nothing about them is exact."""
        finite = np.isfinite(self.posterior.centre) & np.isfinite(self.posterior.scale).all(axis=1)
        if not finite.all():
            where = self.graph.nodes[int(finite.argmin())]
            raise NumericalError(
                f"the moments of {where!r} are not finite, so the posterior is not exact; change its units, or look "
                "for values that cannot be"
            )
        return self


def observed(data: Data, graph: CausalGraph) -> np.ndarray:
    """(n, k) values of the target and its causes; refuses rows in which something was set."""
    if not data.is_observational.all():
        raise DataError(
            f"wishart learns from observational rows only; {int((~data.is_observational).sum())} of {len(data)} rows "
            "have something set: pass data.rows(data.is_observational)"
        )
    return data.values[:, [data.nodes.index(name) for name in graph.nodes]]


def fit_estimands(
    graph: CausalGraph,
    found: Sequence[Identification],
    parameters: Parameters,
    prior: Prior,
    data: Data,
) -> Estimands:
    """The posterior by Wishart; graph: the target's ancestral graph."""
    if parameters.kind != "estimand":
        raise ModelError(
            f'wishart knows effects, not mechanisms: take parameters="estimand", not {parameters.kind!r}'
        )
    if parameters.explored.known:
        raise ModelError(
            "wishart cannot use known coefficients; leave `known` out of the problem, or use another method"
        )
    if isinstance(prior, FixedPrior):
        raise ModelError(
            "a FixedPrior is for method='conjugate'; wishart takes a ScaledPrior or a MomentPrior"
        )
    if isinstance(prior, MomentPrior) and len(prior.centre) != len(graph.nodes):
        raise ModelError(
            f"the moment prior has {len(prior.centre)} variables; it needs {listed(graph.nodes)}"
        )
    values = observed(data, graph)
    size = len(graph.nodes)
    if isinstance(prior, ScaledPrior):
        if not len(values) > size + 2:
            raise DataError(
                f"wishart needs more than {size + 2} observational rows for {size} variables, got {len(values)}; "
                "add rows, or give a MomentPrior"
            )
        _require_definite(values, graph)
        if len(values) < ENOUGH * size:
            warnings.warn(
                f"{len(values)} rows are few for the moments of {size} variables: intervals by wishart are too narrow "
                f"below about {ENOUGH * size}; add rows, or give a MomentPrior",
                CausalBOWarning,
                stacklevel=3,
            )
    effects = {each.effective: each.estimand for each in found if each.estimand is not None}
    return Estimands(graph, effects, parameters, prior, summarise_rows(values)).require_finite()


def _require_definite(values: np.ndarray, graph: CausalGraph) -> None:
    for name, column in zip(graph.nodes, values.T, strict=True):
        require_spread(
            column,
            f"{name!r} is constant in these rows; its effect cannot be learned: vary it or drop it",
        )
    _, sizes, directions = np.linalg.svd(
        (values - values.mean(axis=0)) / values.std(axis=0), full_matrices=False
    )
    if not sizes[-1] > 1e-7 * sizes[0]:
        weights = np.abs(directions[-1])
        together = [
            name
            for name, weight in zip(graph.nodes, weights, strict=True)
            if weight > 0.1 * weights.max()
        ]
        raise DataError(f"{listed(together)} are exactly collinear in these rows; drop one of them")
