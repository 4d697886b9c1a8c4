"""The negative log posterior of any model, its derivatives, and points where it is finite."""

from functools import partial

import jax
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.mechanisms.interfaces import Density, Model, offered

SPREAD = 2.0  # posterior standard deviations, as Stan starts
TRIES = 8  # each nearer to the centre


def potential(density: Density, psi: jax.Array) -> jax.Array:
    """Return the negative log posterior density of coordinates psi (k,), up to a constant."""
    log_density = density.log_prior(psi) + density.log_likelihood(psi)
    log_volume = offered(density, "log_volume")
    return -(log_density if log_volume is None else log_volume(psi) + log_density)


@jax.jit
def value_and_gradient(density: Density, psi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the potential and its gradient at psi (k,)."""
    found: tuple[jax.Array, jax.Array] = jax.value_and_grad(potential, argnums=1)(density, psi)
    return found


@jax.jit
def hessian(density: Density, psi: jax.Array) -> jax.Array:
    """Return the second derivatives of the potential at psi (k,)."""
    found: jax.Array = jax.hessian(potential, argnums=1)(density, psi)
    return found


@jax.jit
def _potentials(density: Density, psi: jax.Array) -> jax.Array:
    found: jax.Array = jax.vmap(partial(potential, density))(psi)
    return found


@jax.jit
def _log_priors(density: Density, psi: jax.Array) -> jax.Array:
    found: jax.Array = jax.vmap(density.log_prior)(psi)
    return found


def potentials(model: Model, psi: np.ndarray) -> np.ndarray:
    """Return the potential at many coordinates (n, k), of shape (n,)."""
    return np.asarray(in_pieces(partial(_potentials, model.density), psi, len(psi)))


def log_priors(model: Model, psi: np.ndarray) -> np.ndarray:
    """Return the log prior at many coordinates (n, k), of shape (n,)."""
    return np.asarray(in_pieces(partial(_log_priors, model.density), psi, len(psi)))


def find_starts(model: Model, count: int, key: jax.Array) -> np.ndarray:
    """Return coordinates (count, k) with a finite density and gradient, where chains may start."""
    shape = (count, len(model.coordinates))
    drawn = np.asarray(jax.random.uniform(key, shape, minval=-SPREAD, maxval=SPREAD))
    return np.stack([_nearest_usable(model, start) for start in drawn])


def _nearest_usable(model: Model, start: np.ndarray) -> np.ndarray:
    for attempt in range(TRIES):
        nearer = start * 0.5**attempt
        value, gradient = value_and_gradient(model.density, nearer)
        if np.isfinite(value) and np.isfinite(gradient).all():
            return nearer
    raise ModelError(explain(model))


def explain(model: Model) -> str:
    """Say why the density is not finite where it should be, as far as the model knows."""
    say = offered(model, "explain")
    if say is not None:
        return str(say())
    return (
        "the model's density is not finite near the coordinates 0, where the search should start; "
        "rescale the data, or give a stronger prior"
    )
