"""What do observational rows say about the effects themselves, whatever latent causes there are?

A normal-inverse-Wishart posterior of the mean and covariance of the target and its causes, pushed through the verified
estimands. The graph's constraints are not used: consistent, not efficient, and sets may disagree slightly.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import CausalBOWarning, DataError, DomainError, ModelError, NumericalError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification import Identification, Parameters
from causal_bo_ppl.identification.evaluation import effects_of
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.learnable import require_spread
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.posterior import moments
from causal_bo_ppl.posterior.drawn import CHAINS, Drawn, Models, even
from causal_bo_ppl.posterior.moments import NormalInverseWishart, Statistics
from causal_bo_ppl.posterior.priors import FixedPrior, MomentPrior, Prior, ScaledPrior
from causal_bo_ppl.posterior.verdict import Limits, exact_lines
from causal_bo_ppl.queries import Queries

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
    moments_by = f"{SPREADS} even spreads of {moments.POINTS} draws"

    @cached_property
    def posterior(self) -> NormalInverseWishart:
        """Of the mean and covariance."""
        return moments.solve(self.statistics, self.prior)

    def _push(self, means: np.ndarray, covariances: np.ndarray) -> np.ndarray:
        """theta_Y (n, d) at given means (n, k) and covariances (n, k, k); NaN where an estimand is not defined."""
        asked = [(estimand, effective) for effective, estimand in self.effects.items()]
        found = np.empty((len(means), len(self.parameters)))
        for start in range(0, len(means), DRAWS):
            rows = slice(start, start + DRAWS)
            slopes = effects_of(asked, self.graph, self.graph.nodes[-1], covariances[rows])
            by_set = {effective: each for effective, (each, _) in zip(self.effects, slopes, strict=True)}
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
        return self._push(*moments.draw(self.posterior, n, key))

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known: all."""
        return np.ones(len(self.graph.nodes), bool)

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Exact draws of all, by default 4,000; only mean and covariance are known, so the model has no edges."""
        means, covariances = moments.draw(self.posterior, even(n), key)
        matrices = np.zeros((len(means), means.shape[1] + 1, means.shape[1]))
        matrices[:, -1] = means
        log_prior = moments.log_prior(self.statistics, self.prior, means, covariances)
        return Drawn(CHAINS, self._push(means, covariances), Models(matrices, covariances), log_prior, {})

    def without_rows(self) -> "Estimands":
        """What was believed before any row."""
        return replace(self, statistics=moments.summarise(np.zeros((0, len(self.graph.nodes)))))

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Nothing can have failed."""
        return exact_lines("moments of the observed variables")

    @cached_property
    def spreads(self) -> np.ndarray:
        """(SPREADS, POINTS, d) even draws of theta_Y; raises where an estimand is not defined at one of them."""
        found = np.stack([self._push(*moments.spread(self.posterior, seed)) for seed in range(SPREADS)])
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
            [(self.effects[effective], effective)], self.graph, self.graph.nodes[-1], covariance[None]
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
        more = moments.summarise(observed(rows, self.graph))
        return replace(self, statistics=moments.merge(self.statistics, more)).require_finite()

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
    graph: CausalGraph, found: Sequence[Identification], parameters: Parameters, prior: Prior, data: Data
) -> Estimands:
    """The posterior by Wishart; graph: the target's ancestral graph."""
    if parameters.kind != "estimand":
        raise ModelError(f'wishart knows effects, not mechanisms: take parameters="estimand", not {parameters.kind!r}')
    if parameters.explored.known:
        raise ModelError(
            "wishart cannot use known coefficients; leave `known` out of the problem, or use another method"
        )
    if isinstance(prior, FixedPrior):
        raise ModelError("a FixedPrior is for method='conjugate'; wishart takes a ScaledPrior or a MomentPrior")
    if isinstance(prior, MomentPrior) and len(prior.centre) != len(graph.nodes):
        raise ModelError(f"the moment prior has {len(prior.centre)} variables; it needs {listed(graph.nodes)}")
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
    return Estimands(graph, effects, parameters, prior, moments.summarise(values)).require_finite()


def _require_definite(values: np.ndarray, graph: CausalGraph) -> None:
    for name, column in zip(graph.nodes, values.T, strict=True):
        require_spread(column, f"{name!r} is constant in these rows; its effect cannot be learned: vary it or drop it")
    _, sizes, directions = np.linalg.svd((values - values.mean(axis=0)) / values.std(axis=0), full_matrices=False)
    if not sizes[-1] > 1e-7 * sizes[0]:
        weights = np.abs(directions[-1])
        together = [name for name, weight in zip(graph.nodes, weights, strict=True) if weight > 0.1 * weights.max()]
        raise DataError(f"{listed(together)} are exactly collinear in these rows; drop one of them")
