"""How is E[Y | do(...)] of nonlinear mechanisms averaged over the noise?

The average is over points that are the same for every query and every theta, so that effects are
smooth in both. "qmc" takes scrambled Sobol points whose coordinates have the mean 0 and the
variance 1, so that linear mechanisms are averaged exactly. "sigma" takes two points for each noise
variable at a distance of the square root of their number, exact for polynomials of third degree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, qmc

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.mechanisms.gp.basis import Form, Frame, features, mean
from causal_bo_ppl.mechanisms.gp.evidence import LOG_TWO_PI
from causal_bo_ppl.problem import Queries

AVERAGING_POINTS = 256  # of the noise that effects are averaged over
FEWER_AVERAGING_POINTS = 64  # the same for rough averages
QUERIES_AT_ONCE = 16  # queries that are averaged at once, so that memory is bounded
TOLERATED_EXCESS = 0.1  # ranges beyond the data within which an input that is not set is inside
ERROR_REPLICATES = 8  # sets of other points by which the error of an average is estimated
ERROR_POINTS = 1_024  # points of each of these sets

Result = TypeVar("Result")
Excess = tuple[jax.Array, jax.Array, jax.Array]


class Equation(NamedTuple):
    """One mechanism among the variables of a model; hashable.

    position: of the variable. causes: positions of the causes whose influence is learned. known:
    positions of causes with a known slope.
    """

    position: int
    causes: tuple[int, ...]
    known: tuple[int, ...]
    form: Form

    @property
    def size(self) -> int:
        """Number of its coordinates of theta: coefficients and the log sd."""
        return self.form.size + 1


class Setting(NamedTuple):
    """Numbers of one equation that are not learned.

    frame: location and range of its causes. slopes: (k,) known slopes. terms: the number of
    functions (G,) of each of its processes that are not negligible; None stands for all.
    """

    frame: Frame
    slopes: Any
    terms: Any = None


def split(equations: tuple[Equation, ...], theta: Any) -> list[tuple[Any, Any]]:
    """Return the coefficients and the log sd of every equation."""
    parts, start = [], 0
    for equation in equations:
        end = start + equation.form.size
        parts.append((theta[..., start:end], theta[..., end]))
        start = end + 1
    return parts


def natural(
    equation: Equation, setting: Setting, coefficients: jax.Array, columns: list[Any], fast: bool
) -> Any:
    """Return the mean of a variable given all columns of values.

    fast: by recurrences, which have derivatives in reverse mode only; otherwise by products with
    the features.
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
    """Return points (count, size) of a standard Gaussian, each coordinate stratified.

    Scrambled Sobol points, of which every coordinate has one in each of `count` equally probable
    intervals; it is moved to the interval's mean, and all are scaled to the variance 1.
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
    """Return scrambled Sobol points (count, size) of a standard Gaussian, to estimate errors."""
    return np.asarray(norm.ppf(qmc.Sobol(size, rng=1 + seed).random(count)))


def sigma_points(size: int) -> np.ndarray:
    """Return 2 n points (2 n, n) with the first three moments of a standard Gaussian."""
    if not size:
        return np.zeros((1, 0))
    return np.asarray(np.concatenate([np.eye(size), -np.eye(size)]) * np.sqrt(size))


def over_queries(work: Callable[[Queries], Result], batch: Queries) -> Result:
    """Return the results of the work on every query, a fixed number at once."""
    arrays = Queries(jnp.asarray(batch.mask), jnp.asarray(batch.value))
    if len(arrays) <= QUERIES_AT_ONCE:
        return jax.vmap(work)(arrays)
    result: Result = jax.lax.map(work, arrays, batch_size=QUERIES_AT_ONCE)
    return result


class AveragingProgram:
    """Effects as averages over points of the target's mean; see `base.ResponseProgram`."""

    together = QUERIES_AT_ONCE
    side_by_side = True
    equations: tuple[Equation, ...]

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        raise NotImplementedError

    def effect(self, theta: jax.Array, query: Queries) -> jax.Array:
        """Return E[Y | do(z)] for one query."""
        return self.means(theta, query.mask, query.value, True).mean()

    def effects(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return E[Y | do(z)] at theta (d,) for every query, of shape (M,)."""
        return over_queries(lambda query: self.effect(theta, query), batch)

    def linearize(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d), by reverse differentiation."""
        slope = jax.value_and_grad(self.effect)
        return over_queries(lambda query: slope(theta, query), batch)

    def of_many(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the effects (s, M) of several thetas (s, d)."""
        effects: jax.Array = jax.lax.map(lambda one: self.effects(one, batch), theta)
        return effects

    def variances(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the variance of one outcome under each query, (M,)."""
        noise = jnp.exp(2 * split(self.equations, theta)[-1][1])

        def one(query: Queries) -> jax.Array:
            return self.means(theta, query.mask, query.value, True).var() + noise

        return over_queries(one, batch)

    def log_outcomes(self, theta: jax.Array, queries: Queries, values: jax.Array) -> jax.Array:
        """Return the log density of each outcome of the target alone, (m,).

        An outcome is a mixture of Gaussians, one for every point of the noise upstream.
        """
        log_sd = split(self.equations, theta)[-1][1]

        def one(query: Queries, value: jax.Array) -> Any:
            means = self.means(theta, query.mask, query.value, False)
            logs = -0.5 * ((value - means) * jnp.exp(-log_sd)) ** 2
            mixture = jax.scipy.special.logsumexp(logs) - jnp.log(len(means))
            return mixture - log_sd - 0.5 * LOG_TWO_PI

        arrays = Queries(jnp.asarray(queries.mask), jnp.asarray(queries.value))
        logs: jax.Array = jax.vmap(one)(arrays, jnp.asarray(values))
        return logs


@jax.jit
def effects_at(program: AveragingProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the effects (M,) of a program at theta (d,)."""
    return program.effects(theta, batch)


@jax.jit
def variances_at(program: AveragingProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the variance of one outcome under each query (M,), at theta (d,)."""
    return program.variances(theta, batch)


@jax.jit
def log_outcomes_of_many(
    program: AveragingProgram, queries: Queries, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return the log density of each outcome (n, m), at thetas (n, d)."""
    logs: jax.Array = jax.lax.map(lambda one: program.log_outcomes(one, queries, values), theta)
    return logs


def averaging_errors(
    program: AveragingProgram,
    others: Iterable[AveragingProgram],
    theta: np.ndarray,
    batch: Queries,
) -> np.ndarray:
    """Return the errors (M,) of averages at theta (d,), against programs with other points."""

    def average(each: AveragingProgram) -> np.ndarray:
        work = partial(effects_at, each, jnp.asarray(theta))
        return np.asarray(in_pieces(work, batch, len(batch.mask)))

    replicates = [average(other) for other in others]
    noise = np.std(replicates, axis=0, ddof=1) / np.sqrt(len(replicates))
    return np.asarray(np.hypot(average(program) - np.mean(replicates, axis=0), noise))


def excess_beyond(values: jax.Array, low: Any, high: Any, is_set: Any) -> jax.Array:
    """Return by how much values (S,) leave the range of the data, in ranges; 0 inside.

    A value that is not set counts as inside up to `TOLERATED_EXCESS` beyond the range.
    """
    excess = jnp.maximum(low - values, values - high) / jnp.where(high > low, high - low, 1.0)
    return jnp.where(excess > jnp.where(is_set, 0.0, TOLERATED_EXCESS), excess, 0.0)


def summarize_excess(excess: list[jax.Array], count: int) -> Excess:
    """Return the share of paths outside the data, the same by input (k,), and the distances (k,).

    excess: of every input at each of `count` points. Distances are averaged over the paths outside.
    """
    table = jnp.stack(excess) if excess else jnp.zeros((0, count))
    outside = table > 0
    share = outside.mean(axis=1, dtype=float)
    distance = table.mean(axis=1) / jnp.where(share > 0, share, 1.0)
    return outside.any(axis=0).mean(dtype=float), share, distance


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointProgram(AveragingProgram):
    """Effects as averages over points; see `base.ResponseProgram`.

    settings: one for each equation. points: (S, E - 1) standardized noise of all variables but the
    target. size: the number of variables, the target last.
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
        for index, (equation, setting, (coefficients, log_sd)) in enumerate(parts):
            position = equation.position
            centre = natural(equation, setting, coefficients, columns, fast)
            if position == self.size - 1:
                return [*columns[:-1], centre + blank]
            drawn = centre + jnp.exp(log_sd) * self.points[:, index]
            columns[position] = jnp.where(mask[position], value[position], drawn)
        raise AssertionError("the target's equation is always learned")

    def means(self, theta: jax.Array, mask: Any, value: Any, fast: bool) -> jax.Array:
        """Return the mean of the target at every point (S,), given all its causes there."""
        means: jax.Array = self.paths(theta, mask, value, fast)[-1]
        return means

    def beyond(self, theta: jax.Array, batch: Queries) -> Excess:
        """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances.

        Inputs are the causes of all equations, one after the other. An input counts where its
        equation has an influence on the target under the query. See `summarize_excess`.
        """

        def one(query: Queries) -> Excess:
            columns = self.paths(theta, query.mask, query.value, True)
            acting, excess = _acting(self.equations, self.size, query.mask), []
            for equation, setting in zip(self.equations, self.settings, strict=True):
                low, high = jnp.asarray(setting.frame.low), jnp.asarray(setting.frame.high)
                for index, cause in enumerate(equation.causes):
                    ends = low[index], high[index]
                    beyond = excess_beyond(columns[cause], *ends, query.mask[cause])
                    excess.append(jnp.where(acting[equation.position], beyond, 0.0))
            return summarize_excess(excess, len(self.points))

        return over_queries(one, batch)


def _acting(equations: tuple[Equation, ...], size: int, mask: Any) -> list[Any]:
    """Return whether each variable's mechanism has an influence on the target under a query."""
    acting = [jnp.zeros((), bool)] * (size - 1) + [jnp.ones((), bool)]
    for equation in reversed(equations):
        for cause in (*equation.causes, *equation.known):
            acting[cause] = acting[cause] | (acting[equation.position] & ~mask[cause])
    return acting
