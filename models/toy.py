"""X -> Z -> Y, nonlinear; the variant `confounded` adds a latent cause of X and Y.

    X = e (+ U),  Z = exp(-X) + e,  Y = cos Z - exp(-Z / 20) + e (+ U),  all noise N(0, 1).

Source: the toy example of Aglietti et al. 2020 (Causal Bayesian Optimization). The confounded
variant is ours: U enters X and Y additively, so f_X and f_Z are the same and X's effect is
identified through the front door. Optimum by closed form: -2.171806 at Z = -3.2003.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.models.quadrature import lognormal_wave, normal_mean
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

GRAPHS = {
    None: CausalGraph.parse("X -> Z -> Y"),
    "confounded": CausalGraph.parse("X -> Z -> Y; X <-> Y"),
}
DOMAINS = {"X": (-5.0, 5.0), "Z": (-5.0, 20.0)}
MECHANISMS = "gp"  # with which an analyst would begin: smooth functions of unknown form


def model() -> None:
    """Draw one observation of the true system without confounding."""
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(mean_of_z(x), 1))
    numpyro.sample("Y", dist.Normal(effect_of_z(z), 1))


def confounded_model() -> None:
    """Draw one observation of the true system with a latent cause of X and Y."""
    u = numpyro.sample("U", dist.Normal(0, 1))
    x = numpyro.sample("X", dist.Normal(u, 1))
    z = numpyro.sample("Z", dist.Normal(mean_of_z(x), 1))
    numpyro.sample("Y", dist.Normal(effect_of_z(z) + u, 1))


def mean_of_z(x: jax.Array) -> jax.Array:
    """Return E[Z | X = x]."""
    return jnp.exp(-x)


def effect_of_z(z: jax.Array) -> jax.Array:
    """Return f_Z(z) = E[Y | do(Z = z)]."""
    return jnp.cos(z) - jnp.exp(-z / 20)


def effect_of_x(x: jax.Array) -> jax.Array:
    """Return f_X(x) = E[Y | do(X = x)].

    It holds the means of cos and exp of a Gaussian with mean exp(-x) and variance 1.
    """
    return jnp.exp(-0.5) * jnp.cos(mean_of_z(x)) - jnp.exp(-mean_of_z(x) / 20 + 1 / 800)


def natural_mean(sd_of_x: float) -> jax.Array:
    """Return E Y when nothing is set: the mean of f_X, its wave on a line where it decays."""
    decay = normal_mean(lambda x: jnp.exp(-mean_of_z(x) / 20 + 1 / 800), sd=sd_of_x)
    return jnp.exp(-0.5) * jnp.real(lognormal_wave(1.0, sd_of_x)) - decay


def response(queries: Queries, sd_of_x: float) -> jax.Array:
    """Return f_Z where Z is set, else f_X where X is set, else the mean of Y."""
    means: jax.Array = _response(queries, sd_of_x)  # a compiled function cannot be pickled
    return means


@partial(jax.jit, static_argnames="sd_of_x")
def _response(queries: Queries, sd_of_x: float) -> jax.Array:
    x, z, _ = jnp.asarray(queries.value).T  # X, Z, Y is the order of both graphs
    x_is_set, z_is_set, _ = jnp.asarray(queries.mask).T
    by_x = jnp.where(x_is_set, effect_of_x(x), natural_mean(sd_of_x))
    return jnp.where(z_is_set, effect_of_z(z), by_x)


def toy(variant: str | None = None, max_size: int | None = None) -> CausalSystem:
    """Build the nonlinear chain, with or without a latent cause of X and Y."""
    if variant not in GRAPHS:
        raise ArgumentError(f"toy has no variant {variant!r}; omit it or use 'confounded'")
    problem = Problem(
        GRAPHS[variant], "Y", domains=DOMAINS, sets="mis" if max_size is None else max_size
    )
    source = "Aglietti et al. 2020, toy example"
    if variant is None:
        plain = partial(response, sd_of_x=1.0)
        return CausalSystem("toy", problem, model, plain, False, source, MECHANISMS)
    exact = partial(response, sd_of_x=math.sqrt(2))
    source = f"{source}; the latent cause is ours"
    name = "toy-confounded"
    return CausalSystem(name, problem, confounded_model, exact, False, source, MECHANISMS)
