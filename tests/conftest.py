"""Strict JAX for all tests: nothing is broadcast across ranks by accident."""

import jax
import matplotlib
import pytest

import causal_bo_ppl as cb

matplotlib.use("agg")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def chain_graph():
    return cb.CausalGraph.parse("X -> Z -> Y")


@pytest.fixture
def make_problem(chain_graph):
    def build(graph=chain_graph, target="Y", **options):
        return cb.Problem(graph, target, **({"domains": {"X": (-5, 5), "Z": (-5, 20)}} | options))

    return build
