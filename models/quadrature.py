"""What is the mean of a function of a Gaussian?

The trapezoidal rule on the whole line: for functions analytic in a strip around it the error falls
exponentially in 1/step. Waves that grow faster than the density falls need another line.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

DEFAULT_STEP = 0.05
REACH = 9.0  # the density beyond 9 standard deviations is 1e-18


def normal_rule(step: float = DEFAULT_STEP) -> tuple[jax.Array, jax.Array]:
    """Return nodes and weights, arrays of shape (k,), for the mean under N(0, 1)."""
    nodes = jnp.arange(-REACH, REACH + step / 2, step)
    density = jnp.exp(-(nodes**2) / 2)
    return nodes, density / density.sum()


def normal_mean(
    function: Callable[[jax.Array], jax.Array],
    mean: jax.Array | float = 0.0,
    sd: jax.Array | float = 1.0,
    step: float = DEFAULT_STEP,
) -> jax.Array:
    """Return E f(N(mean, sd^2)) for every entry of `mean` and `sd`, broadcast together.

    `function` is f, and acts elementwise.
    """
    nodes, weights = normal_rule(step)
    mean, sd = jnp.broadcast_arrays(jnp.asarray(mean, float), jnp.asarray(sd, float))
    nodes = jnp.expand_dims(nodes, tuple(range(mean.ndim)))
    return function(mean[..., None] + sd[..., None] * nodes) @ weights


def lognormal_wave(frequency: float, sd: float) -> jax.Array:
    """Return E exp(i t exp(Z)), Z ~ N(0, sd^2), t > 0, a complex number with nearly all digits.

    On the real line the wave oscillates ever faster; on the line Im Z = 0.7 it decays instead, and
    the integral over both is the same.
    """
    z = jnp.arange(-REACH * sd, REACH * sd, DEFAULT_STEP * sd / 5) + 0.7j
    density = jnp.exp(-((z / sd) ** 2) / 2) * (DEFAULT_STEP / 5) / jnp.sqrt(2 * jnp.pi)
    return (jnp.exp(1j * frequency * jnp.exp(z)) * density).sum()
