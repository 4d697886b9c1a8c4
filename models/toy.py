"""X -> Z -> Y, nonlinear; the variant `confounded` adds a latent cause of X and Y.

    X = e (+ U),  Z = exp(-X) + e,  Y = cos Z - exp(-Z / 20) + e (+ U),  all noise N(0, 1).

Source: the toy example of Aglietti et al. 2020 (Causal Bayesian Optimization). The confounded
variant is ours: U enters X and Y additively, so f_X and f_Z are the same and X's effect is
identified through the front door. Optimum by closed form: -2.171806 at Z = -3.2003.
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.quadrature import normal_mean
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.system import CausalSystem

GRAPHS = {None: CausalGraph.parse("X -> Z -> Y"), "confounded": CausalGraph.parse("X -> Z -> Y; X <-> Y")}
DOMAINS = {"X": (-5.0, 5.0), "Z": (-5.0, 20.0)}


def model() -> None:
    """The truth without confounding."""
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(jnp.exp(-x), 1))
    numpyro.sample("Y", dist.Normal(jnp.cos(z) - jnp.exp(-z / 20), 1))


def confounded_model() -> None:
    """The truth with a latent cause of X and Y."""
    u = numpyro.sample("U", dist.Normal(0, 1))
    x = numpyro.sample("X", dist.Normal(u, 1))
    z = numpyro.sample("Z", dist.Normal(jnp.exp(-x), 1))
    numpyro.sample("Y", dist.Normal(jnp.cos(z) - jnp.exp(-z / 20) + u, 1))


def effect_of_z(z: jax.Array) -> jax.Array:
    """f_Z."""
    return jnp.cos(z) - jnp.exp(-z / 20)


def effect_of_x(x: jax.Array) -> jax.Array:
    """f_X: the means of cos and exp of a Gaussian with mean exp(-x) and variance 1."""
    mean = jnp.exp(-x)
    return jnp.exp(-0.5) * jnp.cos(mean) - jnp.exp(-mean / 20 + 1 / 800)


def toy(variant: str | None = None, max_size: int | None = None) -> CausalSystem:
    """The nonlinear chain, with or without a latent cause of X and Y."""
    if variant not in GRAPHS:
        raise ModelError(f"toy has no variant {variant!r}; leave it out or use 'confounded'")
    graph = GRAPHS[variant]
    x, z = graph.index("X"), graph.index("Z")
    spread_of_x = 1.0 if variant is None else jnp.sqrt(2.0)

    @jax.jit
    def response(queries: Queries) -> jax.Array:
        mask, value = jnp.asarray(queries.mask), jnp.asarray(queries.value)
        free = normal_mean(effect_of_x, 0.0, spread_of_x)
        by_x = jnp.where(mask[:, x], effect_of_x(value[:, x]), free)
        return jnp.where(mask[:, z], effect_of_z(value[:, z]), by_x)

    problem = Problem(graph, "Y", domains=DOMAINS, sets="mis" if max_size is None else max_size)
    name, truth = ("toy", model) if variant is None else ("toy-confounded", confounded_model)
    return CausalSystem(name, problem, truth, response, False, "Aglietti et al. 2020, toy example")
