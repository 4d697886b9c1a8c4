"""Strict JAX for all tests: nothing is broadcast across ranks by accident."""

import os

import jax
import matplotlib
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


@pytest.fixture(scope="session")
def chain_graph():
    return cb.CausalGraph.parse("X -> Z -> Y")


@pytest.fixture
def make_problem(chain_graph):
    def build(graph=chain_graph, target="Y", **options):
        return cb.Problem(graph, target, **({"domains": {"X": (-5, 5), "Z": (-5, 20)}} | options))

    return build
