"""The density of linear mechanisms, with observations compressed to triangular factors.

V = a + W'V + e, e ~ N(0, S R S). Complete observations enter as the factor T of (V, 1) of all those
with the same variables set, T'T being their cross products; then e is T (I - W; -a), a function of
the coefficients alone. Where only the target was measured, Y ~ N(f, l'Omega l) with f its mean
after surgery and l its sensitivity to each equation.

The coordinates psi are whitened: coefficients are centre + s root z, log s = centre + width u, and
strengths of latent causes are t = width v. s is the conditional sd of e given the noise of earlier
variables of its district, unless variances are known: it is well determined even where latent
causes are hardly distinguished from effects, as by a weak instrument. With `scale_by_sd`,
coefficients are scaled by this s, so that a posterior of regressions is a product of standard
normals; otherwise by a constant, so that the coefficients are linear in z.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.linear.sem import LOG_TWO_PI, ThetaReader, read_theta
from causal_bo_ppl.problem import Queries

Arc = tuple[int, int]


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


class PriorTerms(NamedTuple):
    """The prior: given s2 the coefficients b have density exp(-|half b - pull|^2 / 2 s2).

    half: (E, D, D). pull: (E, D). shape, rate: (E,) of s2 ~ IG. fixed: (p + 1, p) known
    coefficients. latent: precision of the strengths of latent causes.
    """

    half: np.ndarray
    pull: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    fixed: np.ndarray
    latent: np.ndarray


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
