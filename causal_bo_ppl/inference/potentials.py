"""The negative log posterior of any model, and how well a Gaussian approximates it.

It is evaluated with its derivatives, and points are found where it is finite. As a proposal for
importance sampling a Gaussian is judged by the ratios of the two densities.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.mechanisms.base import (
    Density,
    JointDensity,
    Model,
    ModeModel,
    SequentialDensity,
    TransformedDensity,
)

START_RADIUS = 2.0  # posterior standard deviations, as Stan starts
MOST_START_ATTEMPTS = 8  # each nearer to the centre
EXACT_RATIO_RANGE = 1e-9  # range of the log ratios below which the Gaussian is exact
LARGEST_NEGLIGIBLE_LOSS = 0.05  # share lost below which the tail of the weights does not matter
PROPOSALS_PER_DRAW = 4  # for each draw resampled
FEWEST_DRAWS_PER_DIMENSION = 50  # of a covariance that is estimated from them
TOO_FEW_DRAWS = "too few draws for a covariance"
UNKNOWN_DENSITY = "no density of the estimands is known"
WHOLE, COEFFICIENTS = "the whole model", "coefficients"


def potential(density: Density, psi: jax.Array) -> jax.Array:
    """Return the negative log posterior density of coordinates psi (k,), up to a constant."""
    if isinstance(density, JointDensity):
        return -density.log_posterior(psi)
    log_density = density.log_prior(psi) + density.log_likelihood(psi)
    if isinstance(density, TransformedDensity):
        log_density = density.log_volume(psi) + log_density
    return -log_density


@jax.jit
def value_and_gradient(density: Density, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the potential and its gradient at psi (k,)."""
    found: tuple[jax.Array, jax.Array] = jax.value_and_grad(potential, argnums=1)(density, psi)
    return found


def for_each(density: Density, work: Callable[[jax.Array], Any], rows: jax.Array) -> Any:
    """Map a function over the rows of an array, all at once or one after another.

    One after another where the density has `one_by_one`: it calls LAPACK more than once, and XLA
    may deadlock when two batches of such calls share its threads.
    """
    if isinstance(density, SequentialDensity) and density.one_by_one:
        return jax.lax.map(work, rows)
    return jax.vmap(work)(rows)


def derivatives(density: Density, work: Callable[..., jax.Array], psi: jax.Array) -> jax.Array:
    """Return the derivatives (..., k) of a function of psi (k,), by forward differentiation."""
    columns = for_each(density, lambda way: jax.jvp(work, (psi,), (way,))[1], jnp.eye(len(psi)))
    return jnp.moveaxis(columns, 0, -1)


@jax.jit
def hessian(density: Density, psi: jax.Array) -> jax.Array:
    """Return the second derivatives of the potential at psi (k,)."""
    return derivatives(density, jax.grad(partial(potential, density)), psi)


@partial(jax.jit, static_argnums=0)
def _evaluate(function: Callable[..., jax.Array], density: Density, psi: jax.Array) -> Any:
    return for_each(density, partial(function, density), psi)


def potentials(model: Model, psi: np.ndarray) -> np.ndarray:
    """Return the potential at many coordinates (n, k), of shape (n,)."""
    known = model.log_posteriors(psi) if isinstance(model, ModeModel) else None
    if known is not None:
        return np.asarray(-known)
    return np.asarray(in_pieces(partial(_evaluate, potential, model.density), psi, len(psi)))


def log_priors(model: Model, psi: np.ndarray) -> np.ndarray:
    """Return the log prior at many coordinates (n, k), of shape (n,)."""
    known = model.log_priors(psi) if isinstance(model, ModeModel) else None
    if known is not None:
        return np.asarray(known)
    work = partial(_evaluate, type(model.density).log_prior, model.density)
    return np.asarray(in_pieces(work, psi, len(psi)))


def find_starts(model: Model, count: int, key: jax.Array) -> np.ndarray:
    """Return coordinates (count, k) with a finite density and gradient, where chains may start."""
    shape = (count, len(model.coordinates))
    drawn = np.asarray(jax.random.uniform(key, shape, minval=-START_RADIUS, maxval=START_RADIUS))
    return np.stack([_nearest_usable(model, start) for start in drawn])


def _nearest_usable(model: Model, start: np.ndarray) -> np.ndarray:
    for attempt in range(MOST_START_ATTEMPTS):
        nearer = start * 0.5**attempt
        value, gradient = value_and_gradient(model.density, nearer)
        if np.isfinite(value) and np.isfinite(gradient).all():
            return nearer
    raise NumericalError(explain(model))


def explain(model: Model) -> str:
    """Return why the density is not finite where it should be, as far as the model knows."""
    if isinstance(model, ModeModel):
        return model.explain()
    return (
        "the model's density is not finite near the coordinates 0, where the search should start; "
        "rescale the data, or give a stronger prior"
    )


class Importance(NamedTuple):
    """Importance weights of n draws from a Gaussian.

    pareto_k: tail of the density ratios; NaN where there are none. lost: share of the draws that
    the weights cost. over: what the ratios are densities of. weights: (n,), summing to 1.
    """

    pareto_k: float
    lost: float
    over: str
    weights: np.ndarray


def not_assessed(draws: int, reason: str) -> Importance:
    """Return equal weights, with the reason why there are no ratios."""
    return Importance(np.nan, np.nan, reason, np.full(draws, 1 / draws))


def weigh(ratios: np.ndarray, over: str) -> Importance:
    """Smooth the weights of log ratios (n,) by PSIS; over: what the ratios are of.

    Where the ratios differ by more than floats can hold, ArviZ returns NaN with a small Pareto k.
    Then the largest ratio has all the weight, and k is infinite.
    """
    if np.ptp(ratios) < EXACT_RATIO_RANGE:
        equal = np.full(len(ratios), 1 / len(ratios))
        return Importance(-np.inf, 0.0, f"{over}: exactly Gaussian", equal)
    from arviz_stats.base import array_stats

    with np.errstate(all="ignore"):
        logs, pareto_k = array_stats.psislw(-ratios)  # it takes the negative
    weights = np.exp(logs)
    if np.isnan(weights).any():
        pareto_k, weights = np.inf, (np.arange(len(ratios)) == ratios.argmax()).astype(float)
    lost = 1 - 1 / (weights**2).sum() / len(ratios)
    remark = f"{over}: weights are practically equal" if lost < LARGEST_NEGLIGIBLE_LOSS else over
    return Importance(float(pareto_k), float(lost), remark, weights)


def resample(weights: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Return indices (draws,) chosen systematically in proportion to weights that sum to 1."""
    positions = (generator.uniform() + np.arange(draws)) / draws
    return np.minimum(np.searchsorted(np.cumsum(weights), positions), len(weights) - 1)


def ratios_of_model(model: Model, psi: np.ndarray, standard: np.ndarray) -> np.ndarray:
    """Return log ratios of a model's density to the Gaussian with the moments of psi (m, k).

    They are evaluated at n points of that Gaussian, made of standard normals (n, k).
    """
    centre, root = psi.mean(axis=0), np.linalg.cholesky(np.cov(psi.T).reshape(psi.shape[1], -1))
    points = centre + standard @ root.T
    return np.asarray(0.5 * (standard**2).sum(axis=1) - potentials(model, points))
