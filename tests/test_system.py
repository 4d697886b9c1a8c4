from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.sem.simulation import simulate
from causal_bo_ppl.testing import check_system

load = cb.models.load
SMALL = [("chain", {}), ("toy", {}), ("toy", {"variant": "confounded"}), ("healthcare", {})]
SMALL += [("synthetic", {"variant": variant}) for variant in (None, "daggp", "paper")]
LARGE = [("funnel", {"variant": "linear"}), ("funnel", {"variant": "nonlinear", "seed": 1})]
LARGE += [
    ("ecoli70", {"target": "yaeM", "max_size": 1}),
    ("ecoli70", {"target": "b1583", "parents": False, "max_size": 2}),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "options"), SMALL + LARGE)
def test_shipped_system_keeps_its_promises(name, options):
    check_system(load(name, **options), draws=100_000, per_set=2, key=2026)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"target": "b1583", "parents": False, "max_size": 5}, {"target": "yaeM"}])
def test_large_system_keeps_its_promises_on_every_set(options):
    check_system(load("ecoli70", **options), draws=100_000, per_set=2, key=2026)


def broken(**changes):
    return replace(load("chain"), **changes)


def response_with(slope):
    def response(queries):
        x, z, _ = jnp.asarray(queries.value).T
        return jnp.where(jnp.asarray(queries.mask)[:, 1], -1.3 * z, slope * x)

    return response


def wrong_sites():
    x = numpyro.sample("X", dist.Normal(0, 1))
    numpyro.sample("Zed", dist.Normal(x, 1))
    numpyro.sample("Y", dist.Normal(0, 1))


def extra_edge():
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(0.8 * x, 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z + 0.01 * x, 1))


def missing_edge():
    numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(0, 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z, 1))


def constant():
    x = numpyro.deterministic("X", jnp.array(1.0))
    z = numpyro.deterministic("Z", 0.8 * x)
    numpyro.deterministic("Y", -1.3 * z)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": wrong_sites}, "no site for Z"),
        ({"model": extra_edge}, "'Y' reacts to X, Z in the model, but its parents in the graph are Z"),
        ({"model": missing_edge}, "'Z' reacts to none in the model"),
        ({"model": constant}, "another key gave the same outcomes"),
        ({"response": response_with(-1.02)}, "simulated outcomes have the mean"),
        ({"response": lambda queries: response_with(-1.04)(queries) * jnp.nan}, "not finite"),
        (
            {"response": lambda queries: response_with(-1.04)(queries) + 0.001 * len(queries)},
            "depends on its neighbours",
        ),
        ({"response": lambda queries: response_with(-1.04)(queries)[:, None]}, r"has shape \(4, 1\)"),
    ],
)
def test_system_that_contradicts_itself_is_caught(changes, message):
    check_system(broken(response=response_with(-1.04)), draws=100_000)
    with pytest.raises(ModelError, match=message):
        check_system(broken(**changes), draws=100_000)


def test_optimum_that_is_none_is_caught():
    """A response said to be affine but with its optimum inside: the vertices miss it."""
    graph = cb.CausalGraph.parse("X -> Y")

    def model():
        x = numpyro.sample("X", dist.Normal(0, 1))
        numpyro.sample("Y", dist.Normal(x**2, 1))

    def response(queries):
        mask, x = queries.mask[:, 0], queries.value[:, 0]
        return jnp.where(mask, x**2, 1.0)

    problem = cb.Problem(graph, "Y", domains={"X": (-1.0, 2.0)})
    check_system(cb.CausalSystem("bowl", problem, model, response, False, "test"), draws=20_000)
    with pytest.raises(ModelError, match="a query reaches .*, the optimum only 1"):
        check_system(cb.CausalSystem("bowl", problem, model, response, True, "test"), draws=20_000)


def test_surgery_acts_row_by_row_and_downstream_sees_it():
    system = load("chain")
    queries = system.problem.queries([{"X": 2.0}, {"Z": -1.0}])
    both = cb.Queries(np.vstack([queries.mask, [[False] * 3]]), np.vstack([queries.value, [[0.0] * 3]]))
    rows = np.asarray(simulate(system.model, system.problem.graph.nodes, both, jax.random.key(0)))
    free = np.asarray(simulate(system.model, system.problem.graph.nodes, both[[2, 2, 2]], jax.random.key(0)))
    assert rows[0, 0] == 2.0 and rows[1, 1] == -1.0
    noise = free - np.column_stack([np.zeros(3), 0.8 * free[:, 0], -1.3 * free[:, 1]])  # the same disturbances
    np.testing.assert_allclose(rows[0], [2.0, 1.6 + noise[0, 1], -1.3 * rows[0, 1] + noise[0, 2]], atol=1e-12)
    np.testing.assert_allclose(rows[1], [free[1, 0], -1.0, 1.3 + noise[1, 2]], atol=1e-12)
    np.testing.assert_array_equal(rows[2], free[2])


def test_a_variable_may_be_called_rows():
    graph = cb.CausalGraph.from_edges([("rows", "Y")])

    def model():
        numpyro.sample("Y", dist.Normal(numpyro.sample("rows", dist.Normal(0, 1)), 1))

    problem = cb.Problem(graph, "Y", domains={"rows": (0, 1)})
    system = cb.CausalSystem("odd", problem, model, partial(lambda q: q.value[:, 0]), True, "test")
    assert len(system.observe(4, 0)) == 4
