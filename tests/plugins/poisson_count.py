"""A user-defined mechanism: the target counts events, with a rate that is log-linear in a cause."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def count(Z):
    """The number of events given Z: Poisson with the rate exp(a + b Z)."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    return dist.Poisson(jnp.exp(a + b * Z))
