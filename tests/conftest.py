"""Strict JAX for all tests: nothing is broadcast across ranks by accident.

Internals: chains are sent on other trajectories inside the sampler.
"""

import os

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import causal_bo_ppl as cb

matplotlib.use("agg")
jax.config.update("jax_numpy_rank_promotion", "raise")
TRAJECTORIES = int(os.environ.get("OTHER_TRAJECTORIES", "0"))


@pytest.fixture(scope="session", autouse=True)
def other_trajectories():
    """Send chains on the trajectories of another processor, if OTHER_TRAJECTORIES is above 0.

    Rounding grows along a chain: after some steps a processor that rounds differently draws as if
    the key were another.
    """
    with pytest.MonkeyPatch.context() as patch:
        if TRAJECTORIES:
            from causal_bo_ppl.inference import nuts as sampled

            run_chains = sampled.run_chains

            def run_others(model, sampling, key):
                return run_chains(model, sampling, jax.random.fold_in(key, TRAJECTORIES))

            patch.setattr(sampled, "run_chains", run_others)
        yield


@pytest.fixture(autouse=True)
def close_figures():
    """Close the figures that a test opened; matplotlib warns of more than twenty."""
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def chain_graph():
    return cb.CausalGraph.parse("X -> Z -> Y")


@pytest.fixture(scope="session")
def chain():
    return cb.models.load("chain")


@pytest.fixture(scope="session")
def chain_data(chain):
    return chain.observe(40, 0)


@pytest.fixture(scope="session")
def chain_study(chain, chain_data):
    return cb.Study(chain.problem, chain_data, key=0)


@pytest.fixture
def make_problem(chain_graph):
    def build(graph=chain_graph, target="Y", **options):
        return cb.Problem(graph, target, **({"domains": {"X": (-5, 5), "Z": (-5, 20)}} | options))

    return build


@pytest.fixture(scope="session")
def joined():
    """Two causes that act together, one of them with a known slope, and experimental data."""
    graph = cb.CausalGraph.parse("A -> C; B -> C; C -> Y; A -> Y; B -> Y")
    domains = {"A": (-3.0, 3.0), "B": (-3.0, 3.0), "C": (-4.0, 4.0)}
    problem = cb.Problem(graph, "Y", domains=domains, known={("B", "C"): 0.7})
    rng, n = np.random.default_rng(0), 60
    a, b = rng.normal(size=(2, n))
    c = np.sin(a) + 0.7 * b + 0.3 * rng.normal(size=n)
    y = a * b + np.cos(c) + 0.2 * rng.normal(size=n)
    values = np.column_stack([a, b, c, y])
    intervened = np.zeros((n, 4), bool)
    intervened[:20, 2] = True
    return problem, cb.Data(graph.nodes, "Y", values, intervened)


@pytest.fixture(scope="session")
def bowl():
    """X ~ N(0, 1), Z = X + e, Y = (Z - 0.5)^2 + e with unit e: no line describes Y."""

    def model():
        x = numpyro.sample("X", dist.Normal(0, 1))
        z = numpyro.sample("Z", dist.Normal(x, 1))
        numpyro.sample("Y", dist.Normal((z - 0.5) ** 2, 1))

    def response(queries):
        sets_x, sets_z = queries.mask[:, 0], queries.mask[:, 1]
        mean = jnp.where(sets_z, queries.value[:, 1], jnp.where(sets_x, queries.value[:, 0], 0.0))
        return (mean - 0.5) ** 2 + jnp.where(sets_z, 0.0, jnp.where(sets_x, 1.0, 2.0))

    graph = cb.CausalGraph.parse("X -> Z -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-3.0, 3.0), "Z": (-3.0, 3.0)})
    return cb.CausalSystem("bowl", problem, model, response, False, "test")
