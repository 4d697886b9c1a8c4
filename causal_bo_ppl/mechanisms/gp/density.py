"""In which coordinates is the posterior density of nonlinear mechanisms nearly Gaussian?

The coordinates of one mechanism are z (K,) and u (R,): its hyperparameters are eta = eta_0 + R u
around the mode of the evidence, and given these its whitened coefficients are w = m(eta) +
root(eta)^-T z, their posterior given the observations. So z is exactly standard Gaussian and
independent of u, unless outcomes of the target alone join the mechanisms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.mechanisms.gp.basis import Form
from causal_bo_ppl.mechanisms.gp.evidence import (
    LOG_TWO_PI,
    Conditional,
    KnownTerms,
    condition,
    loss,
)
from causal_bo_ppl.mechanisms.gp.propagation import AveragingProgram, Equation
from causal_bo_ppl.problem import Queries


class AffineChart(NamedTuple):
    """Affine coordinates u of parameters: eta = centre (H,) + root (H, R) u."""

    centre: Any
    root: Any


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
