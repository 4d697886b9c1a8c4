"""The density of linear mechanisms, fast: rows enter as triangular factors.

V = a + W'V + e, e ~ N(0, S R S). Whole rows enter as the factor T of (V, 1) of all rows with the
same variables set, T'T being their cross products; then e is T (I - W; -a), a function of the
coefficients alone. Where only the target was measured, Y ~ N(f, l'Omega l) with f its mean after
surgery and l its sensitivity to each equation.

The coordinates psi are whitened: coefficients are centre + s root z, log s = centre + width u, and
strengths of latent causes are t = width v. s is the sd of a disturbance given those of its district
before it, unless variances are known: where latent causes are hardly told apart from effects, as by
a weak instrument, s is told all the same. Where `follows`, coefficients are scaled by this s, so
that a posterior of regressions is a product of standard normals; otherwise by a constant, so that
the coefficients are linear in z.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.linear.sem import LOG_TWO_PI, Reading, read_theta
from causal_bo_ppl.problem import Queries

Arc = tuple[int, int]


def correlation_factor(size: int, arcs: Sequence[Arc], strengths: jax.Array) -> jax.Array:
    """Return the lower triangular factor C of the disturbances' correlations R = C C'.

    Each arc has one strength t, any real number. Row j of C is (v_j, 1) divided by its length,
    where v_j lies in the directions that leave R_ij = 0 wherever i and j, i before j, share no arc:
    with C_< the rows before, C_< v_j must be 0 there. With Q an orthonormal basis of these
    directions, v_j = Q t_j. So R is positive definite by construction, every correlation matrix
    with these zeros has exactly one t, however large the district, and the share of a disturbance's
    variance that those before it do not explain is 1 / (1 + |t_j|^2). In a district of two R_ij is
    t / sqrt(1 + t^2).

    Parameters
    ----------
    size:
        Number of variables p.
    arcs:
        Pairs of places i < j that share a latent cause.
    strengths:
        Of shape (A,), in the order of the arcs.
    """
    rows = {later: [at for at, arc in enumerate(arcs) if arc[1] == later] for _, later in arcs}
    factor = jnp.eye(size)
    for later in sorted(rows):
        chosen = np.eye(size)[:, [arcs[at][0] for at in rows[later]]]
        allowed = solve_triangular(factor, jnp.asarray(chosen), lower=True)
        root = jnp.linalg.cholesky(allowed.T @ allowed)
        own = jnp.asarray(strengths)[np.array(rows[later])]
        row = allowed @ solve_triangular(root, own, lower=True, trans="T")
        row = row.at[later].set(1.0)
        factor = factor.at[later].set(row / jnp.sqrt((row**2).sum()))
    return factor


class Spec(NamedTuple):
    """What a density is compiled for; hashable.

    size: number of variables, the target last. equations: places of those that are learned. causes:
    for each of these the places of its regressors, `size` for the constant. arcs: pairs of places.
    known_noise: whether the variances are known. follows: see the module.
    """

    size: int
    equations: tuple[int, ...]
    causes: tuple[tuple[int, ...], ...]
    arcs: tuple[Arc, ...]
    known_noise: bool
    follows: bool

    @property
    def used(self) -> np.ndarray:
        """Whether each regressor exists, of shape (E, D) with D the most that an equation has."""
        width = max(map(len, self.causes))
        return np.array([[k < len(causes) for k in range(width)] for causes in self.causes], bool)

    @property
    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the coefficients in a (p + 1, p) matrix, in the order of z."""
        pairs = [
            (cause, node)
            for node, causes in zip(self.equations, self.causes, strict=True)
            for cause in causes
        ]
        rows, columns = np.array(pairs, int).reshape(-1, 2).T
        return rows, columns

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many coordinates psi belong to coefficients, to scales and to latent causes."""
        scales = 0 if self.known_noise else len(self.equations)
        return int(self.used.sum()), scales, len(self.arcs)


class Chart(NamedTuple):
    """How coordinates are read.

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


class RowTerms(NamedTuple):
    """The rows, in G groups with the same variables set, and m outcomes of the target alone.

    factor: (G, p + 1, p + 1). free: (G, p). rows: (G,) counts. queries, outcome (m,), weight (m,):
    the outcomes; weight 0 is padding.
    """

    factor: np.ndarray
    free: np.ndarray
    rows: np.ndarray
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


def read_point(spec: Spec, chart: Chart, fixed: ArrayLike, psi: jax.Array) -> Point:
    """Return the parameters at coordinates psi (k,)."""
    used, (count, scales, _) = spec.used, spec.sizes
    z = jnp.zeros(used.shape).at[np.nonzero(used)].set(psi[:count])
    strengths = jnp.asarray(chart.arc_width) * psi[count + scales :]
    own, log_sd = log_sds(spec, chart, psi)
    scale = jnp.exp(own if spec.follows else jnp.asarray(chart.log_sd))
    moved = jnp.einsum("ekl,el->ek", chart.root, z)
    coefficients = jnp.asarray(chart.centre) + scale[:, None] * moved
    rows, columns = spec.positions
    matrix = jnp.asarray(fixed).at[rows, columns].set(coefficients[np.nonzero(used)])
    return Point(coefficients, log_sd, strengths, matrix)


def log_sds(spec: Spec, chart: Chart, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log sds (E,) of disturbances given those of their districts before them, and of all.

    Where variances are learned the first are coordinates: rows tell them well even where they tell
    little about latent causes. The whole variance is 1 + |t_j|^2 times that given those before; see
    `correlation_factor`.
    """
    count, scales, _ = spec.sizes
    own = jnp.asarray(chart.log_sd)
    if not spec.known_noise:
        own = own + chart.sd_width * psi[count : count + scales]
    if spec.known_noise or not spec.arcs:
        return own, own
    strengths = jnp.asarray(chart.arc_width) * psi[count + scales :]
    joined = np.array([[later == node for _, later in spec.arcs] for node in spec.equations], float)
    return own, own + 0.5 * jnp.log1p(joined @ strengths**2)


def noise_root(spec: Spec, point: Point) -> jax.Array:
    """Return a (p, p) factor of the disturbances' covariance; 1 for equations not learned."""
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


def log_likelihood(spec: Spec, rows: RowTerms, point: Point) -> jax.Array:
    """Return the log density of the whole rows and of the target's outcomes."""
    total = _log_rows(spec, rows, point)
    return total + _log_outcomes(spec, rows, point) if len(rows.outcome) else total


def _log_rows(spec: Spec, rows: RowTerms, point: Point) -> jax.Array:
    columns = np.array(spec.equations)
    residual = jnp.eye(spec.size + 1, spec.size) - point.matrix
    errors = (jnp.asarray(rows.factor) @ residual)[:, :, columns] * rows.free[:, None, columns]
    free, counts = jnp.asarray(rows.free)[:, columns], jnp.asarray(rows.rows)
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


def _log_outcomes(spec: Spec, rows: RowTerms, point: Point) -> jax.Array:
    mask, value = jnp.asarray(rows.queries.mask).T, jnp.asarray(rows.queries.value).T
    mean = forward_sweep(point.matrix, mask, value)[-2]
    loads = adjoint_sweep(point.matrix[:-1], mask, spec.size - 1)
    variance = ((loads.T @ noise_root(spec, point)) ** 2).sum(axis=1)
    terms = (rows.outcome - mean) ** 2 / variance + jnp.log(variance) + LOG_TWO_PI
    total: jax.Array = -0.5 * (rows.weight * terms).sum()
    return total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearDensity:
    """Prior and likelihood of linear mechanisms over coordinates psi; see `interfaces.Density`."""

    chart: Chart
    prior: PriorTerms
    rows: RowTerms
    reading: Reading
    spec: Spec = field(metadata={"static": True})

    def point(self, psi: jax.Array) -> Point:
        """Return the parameters at psi (k,)."""
        return read_point(self.spec, self.chart, self.prior.fixed, psi)

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log prior of coefficients, variances and strengths, up to a constant."""
        return log_prior(self.spec, self.prior, self.point(psi))

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all rows and outcomes."""
        return log_likelihood(self.spec, self.rows, self.point(psi))

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,) at psi (k,)."""
        return read_theta(self.reading, self.point(psi).matrix)

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of coefficients and variances s2 in psi, up to a constant."""
        if self.spec.known_noise:
            return jnp.zeros(())
        own, log_sd = log_sds(self.spec, self.chart, psi)
        volume = 2 * log_sd.sum()  # of s2 in log s
        if self.spec.follows:
            volume = volume + (self.spec.used.sum(axis=1) * own).sum()
        return volume
