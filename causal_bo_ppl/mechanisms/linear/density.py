"""How do latent causes correlate the disturbances?

One number t for each arc, any real number. Row j of the factor C of the correlations R = C C' is (v_j, 1) divided by
its length, where v_j lies in the directions that leave R_ij = 0 wherever i and j, i before j, share no arc: C_< v_j
must be 0 there, C_< the rows before. With Q an orthonormal basis of these directions, v_j = Q t_j. So R is positive
definite by construction, every correlation matrix with these zeros has exactly one t, however large the district, and
the share of a disturbance's variance that those before it do not explain is 1 / (1 + |t_j|^2). In a district of two
R_ij is t / sqrt(1 + t^2).

The density of the linear-Gaussian SEM, fast: one vector of edges, rows as triangular factors.

V = a + W'V + e, e ~ N(0, S R S). Whole rows enter as the factor T of (V, 1) of all rows with the same variables set,
T'T their cross products; then e is T (I - W; -a), a function of the edges alone. Where only the target was measured,
Y ~ N(f, l'Omega l) with f its mean after surgery and l the adjoint.

Coordinates are whitened: coefficients are centre + s root z, log s = centre + width u, t = width v. Where `follows`, s
is the disturbance's own sd, so that a posterior of regressions is a product of standard normals; otherwise a constant,
so that the coefficients are linear in z.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, adjoint, mutilated_means
from causal_bo_ppl.problem import Queries

Arc = tuple[int, int]


def correlation_factor(size: int, arcs: Sequence[Arc], strengths: jax.Array) -> jax.Array:
    """(p, p) lower triangular C with C C' the correlations; arcs: places i < j, strengths (A,) in the same order."""
    rows = {later: [at for at, arc in enumerate(arcs) if arc[1] == later] for _, later in arcs}
    factor = jnp.eye(size)
    for later in sorted(rows):
        chosen = np.eye(size)[:, [arcs[at][0] for at in rows[later]]]
        allowed = solve_triangular(factor, jnp.asarray(chosen), lower=True)
        root = jnp.linalg.cholesky(allowed.T @ allowed)
        weights = solve_triangular(
            root, jnp.asarray(strengths)[np.array(rows[later])], lower=True, trans="T"
        )
        row = (allowed @ weights).at[later].set(1.0)
        factor = factor.at[later].set(row / jnp.sqrt((row**2).sum()))
    return factor


LOG_TWO_PI = float(np.log(2 * np.pi))


class Shape(NamedTuple):
    """What a program is compiled for; hashable.

    size: variables, the target last. equations: places of those that are learned. causes: for each of these the places
    of its regressors, `size` for the constant. arcs: pairs of places. known_noise: are the variances known?
    """

    size: int
    equations: tuple[int, ...]
    causes: tuple[tuple[int, ...], ...]
    arcs: tuple[Arc, ...]
    known_noise: bool
    follows: bool

    @property
    def width(self) -> int:
        """Most regressors of an equation."""
        return max(map(len, self.causes))

    @property
    def used(self) -> np.ndarray:
        """(E, D) which regressors exist."""
        return np.array(
            [[k < len(causes) for k in range(self.width)] for causes in self.causes], bool
        )

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the coefficients in a (p + 1, p) matrix, in the order of z."""
        pairs = [
            (cause, node)
            for node, causes in zip(self.equations, self.causes, strict=True)
            for cause in causes
        ]
        rows, columns = np.array(pairs, int).reshape(-1, 2).T
        return rows, columns

    @property
    def sites(self) -> dict[str, int]:
        """Names and sizes of the program's sites."""
        scales = 0 if self.known_noise else len(self.equations)
        found = {"coefficients": int(self.used.sum()), "scales": scales, "latent": len(self.arcs)}
        return {name: size for name, size in found.items() if size}


class Chart(NamedTuple):
    """How coordinates are read. centre (E, D), root (E, D, D), log_sd (E,), sd_width (E,), arc_width ()."""

    centre: np.ndarray
    root: np.ndarray
    log_sd: np.ndarray
    sd_width: np.ndarray
    arc_width: np.ndarray


class Before(NamedTuple):
    """The prior: given s2 the coefficients have density exp(-|half b - pull|^2 / 2 s2); s2 ~ IG(shape, rate).

    half (E, D, D), pull (E, D), shape (E,), rate (E,); fixed (p + 1, p): known coefficients. latent (): precision of
    the arcs' strengths.
    """

    half: np.ndarray
    pull: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    fixed: np.ndarray
    latent: np.ndarray


class Seen(NamedTuple):
    """The rows. factor (G, p + 1, p + 1), free (G, p), rows (G,): groups with the same variables set.

    queries, outcome (m,), weight (m,): where only the target was measured; weight 0 is padding.
    """

    factor: np.ndarray
    free: np.ndarray
    rows: np.ndarray
    queries: Queries
    outcome: np.ndarray
    weight: np.ndarray


class Point(NamedTuple):
    """Parameters: coefficients (E, D), log_sd (E,), strengths (A,) of the arcs, matrix (p + 1, p)."""

    coefficients: jax.Array
    log_sd: jax.Array
    strengths: jax.Array
    matrix: jax.Array


def read(shape: Shape, chart: Chart, fixed: ArrayLike, sites: dict[str, jax.Array]) -> Point:
    """Parameters at given coordinates."""
    equations, used = len(shape.equations), shape.used
    z = jnp.zeros(used.shape).at[np.nonzero(used)].set(sites.get("coefficients", jnp.zeros(0)))
    log_sd = jnp.asarray(chart.log_sd)
    if not shape.known_noise:
        log_sd = log_sd + chart.sd_width * sites["scales"]
    scale = jnp.exp(log_sd if shape.follows else jnp.asarray(chart.log_sd))
    coefficients = jnp.asarray(chart.centre) + scale[:, None] * jnp.einsum(
        "ekl,el->ek", chart.root, z
    )
    rows, columns = shape.places
    matrix = jnp.asarray(fixed).at[rows, columns].set(coefficients[np.nonzero(used)])
    strengths = jnp.asarray(chart.arc_width) * sites.get("latent", jnp.zeros(0))
    return Point(coefficients, jnp.broadcast_to(log_sd, (equations,)), strengths, matrix)


def noise_root(shape: Shape, point: Point) -> jax.Array:
    """(p, p) factor of the disturbances' covariance; 1 for equations that are not learned."""
    sd = jnp.ones(shape.size).at[np.array(shape.equations)].set(jnp.exp(point.log_sd))
    return sd[:, None] * correlation_factor(shape.size, shape.arcs, point.strengths)


def log_prior(shape: Shape, before: Before, point: Point) -> jax.Array:
    """Log density of coefficients, variances s2 and strengths, up to a constant."""
    misfit = jnp.einsum("ekl,el->ek", before.half, point.coefficients) - before.pull
    precision = jnp.exp(-2 * point.log_sd)
    terms = -0.5 * precision * (misfit**2).sum(axis=1) - shape.used.sum(axis=1) * point.log_sd
    if not shape.known_noise:
        terms = terms - 2 * (before.shape + 1) * point.log_sd - before.rate * precision
    found: jax.Array = terms.sum() - 0.5 * before.latent * (point.strengths**2).sum()
    return found


def log_likelihood(shape: Shape, seen: Seen, point: Point) -> jax.Array:
    """Of whole rows and of outcomes."""
    found = _whole_rows(shape, seen, point)
    return found + _outcomes(shape, seen, point) if len(seen.outcome) else found


def _whole_rows(shape: Shape, seen: Seen, point: Point) -> jax.Array:
    columns = np.array(shape.equations)
    residual = jnp.eye(shape.size + 1, shape.size) - point.matrix
    errors = (jnp.asarray(seen.factor) @ residual)[:, :, columns] * seen.free[
        :, None, columns
    ]  # (G, p + 1, E)
    free, counts = jnp.asarray(seen.free)[:, columns], jnp.asarray(seen.rows)
    if not shape.arcs:
        squares = (errors**2).sum(axis=(0, 1))
        terms = 0.5 * jnp.exp(-2 * point.log_sd) * squares + (counts @ free) * (
            point.log_sd + 0.5 * LOG_TWO_PI
        )
        return -terms.sum()
    noise = noise_root(shape, point)[columns]
    covariance = noise @ noise.T
    both = free[:, :, None] * free[:, None, :]
    root = jnp.linalg.cholesky(
        both * covariance[None] + jnp.eye(len(columns))[None] * (1 - free)[:, None, :]
    )
    white = solve_triangular(root, jnp.matrix_transpose(errors), lower=True)
    logs = jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(axis=1) + 0.5 * LOG_TWO_PI * free.sum(
        axis=1
    )
    return -0.5 * (white**2).sum() - (counts * logs).sum()


def _outcomes(shape: Shape, seen: Seen, point: Point) -> jax.Array:
    root = noise_root(shape, point)
    sem = LinearSEM(point.matrix[:-1], point.matrix[-1], root @ root.T)
    mean = mutilated_means(sem, seen.queries)[:, -1]
    variance = ((adjoint(sem, seen.queries.mask, shape.size - 1) @ root) ** 2).sum(axis=1)
    terms = (seen.outcome - mean) ** 2 / variance + jnp.log(variance) + LOG_TWO_PI
    found: jax.Array = -0.5 * (seen.weight * terms).sum()
    return found


def linear_density(shape: Shape, chart: Chart, before: Before, seen: Seen) -> None:
    """The NumPyro program that is fitted: flat sites, prior and likelihood as factors."""
    sites = {
        name: numpyro.sample(name, dist.ImproperUniform(dist.constraints.real_vector, (), (size,)))
        for name, size in shape.sites.items()
    }
    point = read(shape, chart, before.fixed, sites)
    stretch = jnp.zeros(())
    if not shape.known_noise:
        stretch = 2 * point.log_sd.sum()  # of s2 in log s
        if shape.follows:
            stretch = stretch + (shape.used.sum(axis=1) * point.log_sd).sum()
    numpyro.factor("coordinates", stretch)
    numpyro.factor("log_prior", log_prior(shape, before, point))
    numpyro.factor("log_likelihood", log_likelihood(shape, seen, point))
