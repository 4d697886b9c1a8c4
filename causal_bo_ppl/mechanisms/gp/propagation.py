"""E[Y | do(...)] of bent mechanisms: averages over disturbances, and cheaper approximations.

Disturbances are averaged over points that are the same for every query and every theta, so that
effects are smooth in both. "qmc" takes scrambled Sobol points whose coordinates have the mean 0
and the variance 1, so that linear mechanisms are averaged exactly. "sigma" takes two points for
each disturbance at a distance of the square root of their number, exact for polynomials of third
degree. "moments" carries means and covariances instead of points.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, Group, features, mean
from causal_bo_ppl.problem import Queries

POINTS = 256  # disturbances that are averaged over
FEW_POINTS = 64  # the same where a rough average will do
TOGETHER = 16  # queries that are averaged at once, so that memory is bounded
NEAR = 0.1  # ranges beyond the data within which an input that is not set counts as inside
NODES = {0: 1, 1: 20, 2: 10, 3: 7}  # of Gauss-Hermite quadrature, by the number of causes

Result = TypeVar("Result")


class Equation(NamedTuple):
    """One mechanism among the variables of a model; hashable.

    place: of the variable. causes: places of the causes whose influence is learned. known: places
    of causes with a known slope.
    """

    position: int
    causes: tuple[int, ...]
    known: tuple[int, ...]
    form: Form

    @property
    def size(self) -> int:
        """How many coordinates of theta belong to it: coefficients and the log sd."""
        return self.form.size + 1


class Setting(NamedTuple):
    """The numbers of one equation that are not learned.

    frame: where its causes lie. slopes: (k,) known slopes. terms: how many functions of each of its
    processes count, (G,); None stands for all.
    """

    frame: Frame
    slopes: Any
    terms: Any = None


def split(equations: tuple[Equation, ...], theta: Any) -> list[tuple[Any, Any]]:
    """Return the coefficients and the log sd of every equation."""
    found, start = [], 0
    for equation in equations:
        end = start + equation.form.size
        found.append((theta[..., start:end], theta[..., end]))
        start = end + 1
    return found


def natural(
    equation: Equation, setting: Setting, coefficients: jax.Array, columns: list[Any], fast: bool
) -> Any:
    """Return the mean of a variable given all columns of values.

    fast: by recurrences, for values only; else by products with the features, whose derivatives are
    cheap.
    """
    inputs = [columns[cause] for cause in equation.causes]
    if fast:
        total = mean(equation.form, setting.frame, coefficients, inputs, setting.terms)
    else:
        total = features(equation.form, setting.frame, inputs) @ coefficients
    for slope, cause in zip(setting.slopes, equation.known, strict=True):
        total = total + slope * columns[cause]
    return total


@lru_cache(maxsize=64)
def normal_points(count: int, size: int) -> np.ndarray:
    """Return points (count, size) of a standard Gaussian, each coordinate well spread.

    Scrambled Sobol points, of which every coordinate has one in each of `count` equally probable
    intervals; there it is put at the interval's mean, and all are scaled to the variance 1.
    """
    if not size:
        return np.zeros((1, 0))
    heights = np.concatenate([[0.0], norm.pdf(norm.ppf(np.arange(1, count) / count)), [0.0]])
    means = -np.diff(heights)
    means = (means - means[::-1]) / 2  # symmetric up to the last digit
    means /= np.sqrt((means**2).mean())
    return np.asarray(means[(qmc.Sobol(size, rng=0).random(count) * count).astype(int)])


@lru_cache(maxsize=64)
def other_points(count: int, size: int, seed: int) -> np.ndarray:
    """Return scrambled Sobol points (count, size) of a standard Gaussian, by which to judge."""
    return np.asarray(norm.ppf(qmc.Sobol(size, rng=1 + seed).random(count)))


def sigma_points(size: int) -> np.ndarray:
    """Return 2 n points (2 n, n) with the first three moments of a standard Gaussian."""
    if not size:
        return np.zeros((1, 0))
    return np.asarray(np.concatenate([np.eye(size), -np.eye(size)]) * np.sqrt(size))


class Program:
    """What the ways of averaging share; see `interfaces.ResponseProgram`."""

    together = TOGETHER
    side_by_side = True

    def effect(self, theta: jax.Array, query: Queries, fast: bool) -> jax.Array:
        """Return E[Y | do(z)] for one query; `fast` where no derivative is needed."""
        raise NotImplementedError

    def effects(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return E[Y | do(z)] at theta (d,) for every query, of shape (M,)."""
        return one_by_one(lambda query: self.effect(theta, query, True), batch)

    def linearize(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d), by reverse differentiation."""
        slope = jax.value_and_grad(self.effect)
        return one_by_one(lambda query: slope(theta, query, True), batch)

    def of_many(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the effects (s, M) of several thetas (s, d)."""
        found: jax.Array = jax.lax.map(lambda one: self.effects(one, batch), theta)
        return found


def one_by_one(work: Callable[[Queries], Result], batch: Queries) -> Result:
    """Do the work on every query, a fixed number at once."""
    arrays = Queries(jnp.asarray(batch.mask), jnp.asarray(batch.value))
    if len(arrays) <= TOGETHER:
        return jax.vmap(work)(arrays)
    found: Result = jax.lax.map(work, arrays, batch_size=TOGETHER)
    return found


class AveragingProgram(Program):
    """Effects as averages over points of the target's mean given all else."""

    equations: tuple[Equation, ...]

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,)."""
        raise NotImplementedError

    def effect(self, theta: jax.Array, query: Queries, fast: bool) -> jax.Array:
        """Return E[Y | do(z)] for one query; `fast` where no derivative is needed."""
        return self.means(theta, query.mask, query.value, fast).mean()

    def variances(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the variance of one outcome under each query, (M,)."""
        noise = jnp.exp(2 * split(self.equations, theta)[-1][1])

        def one(query: Queries) -> jax.Array:
            return self.means(theta, query.mask, query.value, True).var() + noise

        return one_by_one(one, batch)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointProgram(AveragingProgram):
    """Effects as averages over points; see `interfaces.ResponseProgram`.

    settings: one for each equation. points: (S, E - 1) standardized disturbances of all variables
    but the target. size: the number of variables, the target last.
    """

    settings: tuple[Setting, ...]
    points: jax.Array
    equations: tuple[Equation, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def paths(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> list[Any]:
        """Return all variables at every point, (S,) each; of the target its mean given the rest."""
        blank = jnp.zeros(len(self.points))
        columns: list[Any] = [blank + value[position] for position in range(self.size)]
        parts = zip(self.equations, self.settings, split(self.equations, theta), strict=True)
        for at, (equation, setting, (coefficients, log_sd)) in enumerate(parts):
            own = natural(equation, setting, coefficients, columns, fast)
            if equation.position == self.size - 1:
                return [*columns[:-1], own + blank]
            own = own + jnp.exp(log_sd) * self.points[:, at]
            columns[equation.position] = jnp.where(
                mask[equation.position], value[equation.position], own
            )
        raise AssertionError("the target's equation is always learned")

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        found: jax.Array = self.paths(theta, mask, value, fast)[-1]
        return found

    def beyond(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return how many paths leave the data: (M,) at all, (M, k) by input, and by how much.

        Inputs are the causes of all equations, one after the other. An input counts where its
        equation has an influence on the target under the query. Distances are in ranges of the
        data, averaged over the paths outside.
        """

        def one(query: Queries) -> tuple[jax.Array, jax.Array, jax.Array]:
            columns = self.paths(theta, query.mask, query.value, True)
            acting, excess = _acting(self.equations, self.size, query.mask), []
            for equation, setting in zip(self.equations, self.settings, strict=True):
                low, high = jnp.asarray(setting.frame.low), jnp.asarray(setting.frame.high)
                for at, cause in enumerate(equation.causes):
                    over = jnp.maximum(low[at] - columns[cause], columns[cause] - high[at])
                    far = over / (high[at] - low[at])
                    out = far > jnp.where(query.mask[cause], 0.0, NEAR)
                    excess.append(jnp.where(acting[equation.position] & out, far, 0.0))
            gone = jnp.stack(excess) if excess else jnp.zeros((0, len(self.points)))
            outside = gone > 0
            share = outside.mean(axis=1, dtype=float)
            distance = gone.mean(axis=1) / jnp.where(share > 0, share, 1.0)
            return outside.any(axis=0).mean(dtype=float), share, distance

        return one_by_one(one, batch)


def _acting(equations: tuple[Equation, ...], size: int, mask: Any) -> list[Any]:
    """Return whether each variable's mechanism has an influence on the target under a query."""
    acting = [jnp.zeros((), bool)] * (size - 1) + [jnp.ones((), bool)]
    for equation in reversed(equations):
        for cause in (*equation.causes, *equation.known):
            acting[cause] = acting[cause] | (acting[equation.position] & ~mask[cause])
    return acting


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MomentProgram(Program):
    """Effects by Gaussians with matched moments; see `interfaces.ResponseProgram`.

    All variables are taken as jointly Gaussian. The mean of a mechanism, its variance and its mean
    slopes are found by quadrature over its causes, group after group; covariances with other
    variables follow from the mean slopes (Stein's lemma).
    """

    settings: tuple[Setting, ...]
    equations: tuple[Equation, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    def effect(self, theta: jax.Array, query: Queries, fast: bool) -> jax.Array:
        """Return E[Y | do(z)] for one query, with or without derivatives."""
        mask, value = query.mask, query.value
        means, spread = jnp.asarray(value), jnp.zeros((self.size, self.size))
        parts = zip(self.equations, self.settings, split(self.equations, theta), strict=True)
        centre = jnp.zeros(())
        for equation, setting, (coefficients, log_sd) in parts:
            centre, slopes, extra = _project(equation, setting, coefficients, means, spread)
            if equation.position == self.size - 1:
                break
            row = slopes @ spread
            variance = row @ slopes + extra + jnp.exp(2 * log_sd)
            position, is_set = equation.position, mask[equation.position]
            means = means.at[position].set(jnp.where(is_set, value[position], centre))
            row = jnp.where(is_set, 0.0, row.at[position].set(variance))
            spread = spread.at[position].set(row).at[:, position].set(row)
        return centre


def _project(
    equation: Equation,
    setting: Setting,
    coefficients: jax.Array,
    means: jax.Array,
    spread: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the mean of a mechanism, its mean slopes (p,), and the variance beyond these.

    The causes are Gaussian. Terms of one group are averaged together, over the causes' own
    Gaussian; between groups, only what the slopes explain is correlated.
    """
    form, frame = equation.form, setting.frame
    inputs = [means[cause] for cause in equation.causes]
    total, used = coefficients[0], 1 + form.causes
    slopes = jnp.zeros(len(means))
    for at, cause in enumerate(equation.causes):
        total = total + coefficients[1 + at] * (inputs[at] - frame.origin[at])
        slopes = slopes.at[cause].add(coefficients[1 + at])
    for slope, cause in zip(setting.slopes, equation.known, strict=True):
        total = total + slope * means[cause]
        slopes = slopes.at[cause].add(slope)
    terms: list[tuple[tuple[int, ...], Group | None]]
    terms = [(group.columns, group) for group in form.groups]
    terms += [((at,), None) for at in form.hinged]
    extra, hinge = jnp.zeros(()), len(coefficients) - 2 * len(form.hinged)
    for columns, group in terms:
        if group is None:
            single = Form(form.causes, (), columns)
            own, hinge = coefficients[hinge : hinge + 2], hinge + 2
        else:
            single = Form(form.causes, (group,), ())
            own, used = coefficients[used : used + group.size], used + group.size
        padded = jnp.concatenate([jnp.zeros(1 + form.causes), own])
        centre, gradient, variance = _quadrature(
            equation, single, frame, padded, columns, means, spread
        )
        total = total + centre
        chosen = jnp.array([equation.causes[column] for column in columns])
        slopes = slopes.at[chosen].add(gradient)
        explained = gradient @ spread[chosen][:, chosen] @ gradient
        extra = extra + jnp.maximum(variance - explained, 0.0)
    return total, slopes, extra


def _quadrature(
    equation: Equation,
    form: Form,
    frame: Frame,
    coefficients: jax.Array,
    columns: tuple[int, ...],
    means: jax.Array,
    spread: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return mean, mean gradient (c,) and variance of one term over the Gaussian of its causes."""
    nodes, weights = _hermite(len(columns))
    chosen = jnp.array([equation.causes[column] for column in columns])
    own = spread[chosen][:, chosen]
    size = jnp.diagonal(own)
    # Causes that are set have no variance: the root must not divide by it.
    jitter = jnp.where(size > 0, 1e-12 * size, 1.0)
    root = jnp.linalg.cholesky(own + jnp.diag(jitter))
    root = jnp.where((size > 0)[:, None] & (size > 0)[None], root, 0.0)
    at = means[chosen][None] + nodes @ root.T

    def term(point: jax.Array) -> jax.Array:
        inputs = [jnp.zeros(()) + means[cause] for cause in equation.causes]
        for position, column in enumerate(columns):
            inputs[column] = point[position]
        return features(form, frame, inputs) @ coefficients

    values, gradients = jax.vmap(jax.value_and_grad(term))(at)
    centre = weights @ values
    return centre, weights @ gradients, weights @ (values - centre) ** 2


@lru_cache(maxsize=4)
def _hermite(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (n, size) and weights (n,) of Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[size])
    weights = weights / weights.sum()
    grids = np.meshgrid(*[nodes] * size, indexing="ij")
    products = np.meshgrid(*[weights] * size, indexing="ij")
    return np.stack([each.ravel() for each in grids], axis=1), np.prod(products, axis=0).ravel()
