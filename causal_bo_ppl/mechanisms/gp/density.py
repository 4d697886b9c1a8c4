"""The posterior density of mechanisms that bend, in coordinates in which it is nearly Gaussian.

The coordinates of one mechanism are z (K,) and u (R,): its hyperparameters are eta = eta_0 + R u
around the mode of the evidence, and given these its whitened coefficients are w = m(eta) +
root(eta)^-T z, the posterior of the rows. So z is exactly standard Gaussian and independent of u,
unless outcomes of the target alone join the mechanisms; samplers have little left to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.mechanisms.gp.basis import Form
from causal_bo_ppl.mechanisms.gp.evidence import LOG_TWO_PI, Conditional, Known, condition, loss
from causal_bo_ppl.mechanisms.gp.propagation import Equation, PointProgram, split
from causal_bo_ppl.problem import Queries


class Chart(NamedTuple):
    """How hyperparameters are read: eta = centre (H,) + root (H, R) u."""

    centre: Any
    root: Any


class Told(NamedTuple):
    """Outcomes of the target alone: what was set, (m,) values, and weights, 0 for padding."""

    queries: Queries
    values: Any
    weights: Any


class Part(NamedTuple):
    """One mechanism at a point: its hyperparameters and coefficients."""

    eta: jax.Array
    given: Conditional
    white: jax.Array
    coefficients: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GPDensity:
    """Prior and likelihood of all mechanisms over coordinates psi; see `interfaces.Density`."""

    known: tuple[Known, ...]
    charts: tuple[Chart, ...]
    program: PointProgram
    told: Told
    equations: tuple[Equation, ...] = field(metadata={"static": True})

    one_by_one = True  # two batches of Cholesky factors could block each other

    def _pieces(self, psi: jax.Array) -> Iterator[tuple[Form, Known, jax.Array, jax.Array]]:
        """Yield the form of every mechanism, what is known about it, and its z and eta."""
        start = 0
        for equation, known, chart in zip(self.equations, self.known, self.charts, strict=True):
            size, free = equation.form.size, jnp.shape(chart.root)[1]
            z, u = psi[start : start + size], psi[start + size : start + size + free]
            start += size + free
            yield equation.form, known, z, jnp.asarray(chart.centre) + jnp.asarray(chart.root) @ u

    def parts(self, psi: jax.Array) -> list[Part]:
        """Return every mechanism at psi (k,)."""
        found = []
        for form, known, z, eta in self._pieces(psi):
            given = condition(form, known, eta)
            white = given.mean + solve_triangular(given.root, z, lower=True, trans="T")
            coefficients = (given.sd * white).at[0].add(known.beliefs.level)
            found.append(Part(eta, given, white, coefficients))
        return found

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log density of whitened coefficients and hyperparameters, but a constant."""
        total = jnp.zeros(())
        for part, known in zip(self.parts(psi), self.known, strict=True):
            moved = (part.eta - known.beliefs.centre) / known.beliefs.width
            total = total - 0.5 * (part.white**2).sum() - 0.5 * (moved**2).sum()
        return total

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all rows and outcomes."""
        total, parts = jnp.zeros(()), self.parts(psi)
        for part, known in zip(parts, self.known, strict=True):
            factor = jnp.asarray(known.rows.factor)
            own = part.coefficients.at[0].add(-known.beliefs.level)
            misfit = (factor[:, -1] - factor[:, :-1] @ own) * jnp.exp(-part.eta[0])
            noise = known.rows.count * (part.eta[0] + 0.5 * LOG_TWO_PI)
            total = total - 0.5 * (misfit**2).sum() - noise
        return total + self._log_told(parts) if len(self.told.values) else total

    def _log_told(self, parts: list[Part]) -> jax.Array:
        """Return the log density of all outcomes of the target alone."""
        terms = log_outcomes(self.program, _join(parts), self.told.queries, self.told.values)
        total: jax.Array = (self.told.weights * terms).sum()
        return total

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return log prior, likelihood and volume together, up to a constant.

        Of the rows' part only the evidence is needed: given the hyperparameters z is Gaussian.
        """
        total = jnp.zeros(())
        for form, known, z, eta in self._pieces(psi):
            total = total - 0.5 * (z**2).sum() - loss(form, known, eta)
        return total + self._log_told(self.parts(psi)) if len(self.told.values) else total

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,): the coefficients and the log sd of every mechanism."""
        return _join(self.parts(psi))

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of whitened coefficients in psi, up to a constant."""
        roots = [jnp.diagonal(part.given.root) for part in self.parts(psi)]
        return -sum((jnp.log(root).sum() for root in roots), jnp.zeros(()))


def _join(parts: list[Part]) -> jax.Array:
    pieces = [piece for part in parts for piece in (part.coefficients, part.eta[:1])]
    return jnp.concatenate(pieces)


def log_outcomes(
    program: PointProgram, theta: jax.Array, queries: Queries, values: jax.Array
) -> jax.Array:
    """Return the log density of each outcome of the target alone, (m,).

    Upstream disturbances are averaged over the points, so that an outcome is a mixture of
    Gaussians, one for every point.
    """
    log_sd = split(program.equations, theta)[-1][1]

    def one(query: Queries, value: jax.Array) -> jax.Array:
        means = program.means(theta, query.mask, query.value, False)
        logs = -0.5 * ((value - means) * jnp.exp(-log_sd)) ** 2
        top = jax.scipy.special.logsumexp(logs) - jnp.log(len(means))
        whole: jax.Array = top - log_sd - 0.5 * LOG_TWO_PI
        return whole

    arrays = Queries(jnp.asarray(queries.mask), jnp.asarray(queries.value))
    found: jax.Array = jax.vmap(one)(arrays, jnp.asarray(values))
    return found
