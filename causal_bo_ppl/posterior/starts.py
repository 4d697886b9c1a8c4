"""Where do chains start? Around the equations' own posteriors, where the density is finite."""

from functools import partial

import jax
import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.posterior.linear_model import LinearModel
from causal_bo_ppl.posterior.potentials import flat_potential
from causal_bo_ppl.sem.linear_density import Shape

SPREAD = 2.0  # posterior standard deviations, as Stan starts
TRIES = 8  # each nearer to the centre


@partial(jax.jit, static_argnames="shape")
def value_and_gradient(shape: Shape, arguments: object, flat: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the potential, at coordinates (k,)."""
    found: tuple[jax.Array, jax.Array] = jax.value_and_grad(flat_potential, argnums=2)(shape, arguments, flat)
    return found


def find_starts(model: LinearModel, count: int, key: jax.Array) -> np.ndarray:
    """(count, k) coordinates with a finite density and gradient."""
    drawn = np.asarray(jax.random.uniform(key, (count, model.dimension), minval=-SPREAD, maxval=SPREAD))
    return np.stack([_nearest_usable(model, start) for start in drawn])


def _nearest_usable(model: LinearModel, start: np.ndarray) -> np.ndarray:
    for attempt in range(TRIES):
        nearer = start * 0.5**attempt
        value, gradient = value_and_gradient(model.shape, model.arguments, nearer)
        if np.isfinite(value) and np.isfinite(gradient).all():
            return nearer
    raise ModelError(explain(model))


def explain(model: LinearModel) -> str:
    """Which node's likelihood is not finite where the chains should start."""
    values = model.data.values[:, [model.data.nodes.index(name) for name in model.graph.nodes]]
    posterior = model.equations.posterior
    for place in model.shape.equations:
        node = model.graph.nodes[place]
        parts = (posterior.mean[place], posterior.rate[place], posterior.variance[place], values[:, place] ** 2)
        if not all(np.isfinite(part).all() for part in parts) or not posterior.variance[place] > 0:
            largest = np.abs(values[:, place]).max(initial=0.0)
            return (
                f"the likelihood of {node!r} is not finite where the chains should start (its largest value is "
                f"{largest:.3g}, its residual variance {posterior.variance[place]:.3g}); rescale {node!r}, or look for "
                "values that cannot be"
            )
    return "the model's density is not finite where the chains should start; rescale the data, or give a FixedPrior"
