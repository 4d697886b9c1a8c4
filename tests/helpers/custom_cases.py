"""User-defined mechanisms, with problems and data for their tests."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import causal_bo_ppl as cb

CHAIN = cb.CausalGraph.parse("X -> Z -> Y")
DOMAINS = {"X": (0.5, 8.0), "Z": (0.0, 4.0)}
PROBLEM = cb.Problem(CHAIN, "Y", domains=DOMAINS, sets=[("X",), ("Z",)])
SHARED = cb.CausalGraph.parse("W -> Z; W -> Y; Z -> Y")
CONFOUNDED = cb.Problem(SHARED, "Y", domains={"Z": (0.0, 4.0)}, sets=[("Z",)])


def saturate(X):
    most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
    half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
    return most * X / (half + X)


def decay(Z):
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    return a + b * jnp.exp(-Z)


def whole():
    """Draw both mechanisms as one program, with explicit sds."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    X = numpyro.sample("X", dist.LogNormal(centre, 0.5))
    most = numpyro.sample("most", dist.LogNormal(0.0, 1.0))
    half = numpyro.sample("half", dist.LogNormal(0.0, 1.0))
    first = numpyro.sample("first", dist.LogNormal(-1.0, 1.0))
    Z = numpyro.sample("Z", dist.Normal(most * X / (half + X), first))
    a = numpyro.sample("a", dist.Normal(0.0, 3.0))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    second = numpyro.sample("second", dist.LogNormal(-1.0, 1.0))
    numpyro.sample("Y", dist.Normal(a + b * jnp.exp(-Z), second))


def saturate_whole(X):
    """Return the distribution of Z in `whole`."""
    mean = saturate(X)
    return dist.Normal(mean, numpyro.sample("first", dist.LogNormal(-1.0, 1.0)))


def decay_whole(Z):
    mean = decay(Z)
    return dist.Normal(mean, numpyro.sample("second", dist.LogNormal(-1.0, 1.0)))


def simulate(queries, seed):
    """Return samples of Z = 3 X / (1.5 + X) + e/5 and Y = 1 + 2 exp(-Z) + 0.3 e."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    noise = np.random.default_rng(seed).normal(size=mask.shape)
    x = np.where(mask[:, 0], value[:, 0], np.exp(0.3 + 0.5 * noise[:, 0]))
    z = np.where(mask[:, 1], value[:, 1], 3 * x / (1.5 + x) + 0.2 * noise[:, 1])
    y = 1 + 2 * np.exp(-z) + 0.3 * noise[:, 2]
    return cb.Data(("X", "Z", "Y"), "Y", np.column_stack([x, z, y]), mask)


def observe(n, seed):
    return simulate(PROBLEM.baseline().repeat(n), seed)
