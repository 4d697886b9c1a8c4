"""Systems: what is checked, refused and simulated.

Internals: a model is simulated without the checks of a system, and grids have its number of
points.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.systems import DESIGN_POINTS, simulate

load = cb.models.load
SMALL = [("chain", {}), ("toy", {}), ("toy", {"variant": "confounded"}), ("healthcare", {})]
SMALL += [("synthetic", {"variant": variant}) for variant in (None, "daggp", "paper")]
LARGE = [("funnel", {"variant": "linear"}), ("funnel", {"variant": "nonlinear", "seed": 1})]
LARGE += [("ecoli70", {"target": "b1583", "parents": False, "max_size": 1})]


def check_system(system, **options):
    """Raise where a promise is broken."""
    return cb.testing.check_system(system, **options).require()


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "options"), SMALL[:3] + SMALL[4:5])
def test_shipped_system_passes_its_checks(name, options):
    check_system(load(name, **options), draws=20_000, per_set=2, key=2026)  # in full: `make slow`


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "options"), SMALL[:5])
def test_the_model_with_which_to_begin_is_a_program_over_all_variables(name, options):
    system = load(name, **options)
    graph, data = system.problem.graph, system.observe(80, 0)
    model = cb.numpyro_model(system.problem, data, mechanisms=system.assumed_mechanisms)
    with jax.numpy_rank_promotion("allow"):  # NumPyro's own Hilbert-space functions need it
        trace = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace()
    causes = set(graph.ancestral(system.problem.target).nodes)
    assert {name for name, site in trace.items() if site.get("is_observed")} >= causes
    assert set(model.parameters) <= set(trace)


WHOLE = [
    ("ecoli70", {"target": "b1583", "parents": False, "max_size": 5}),
    ("ecoli70", {"target": "yaeM"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), SMALL + LARGE + WHOLE)
def test_shipped_system_passes_all_checks_in_full(name, options):
    check_system(load(name, **options), draws=100_000, per_set=2, key=2026)


def broken(**changes):
    return replace(load("chain"), **changes)


def response_with(slope):
    def response(queries):
        x, z, _ = jnp.where(jnp.asarray(queries.mask), jnp.asarray(queries.value), 0.0).T
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


def rare_edge():
    """X acts on Y itself only where observations are rare, but inside the domain."""
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(0.8 * x, 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z + jnp.maximum(x - 2.5, 0), 1))


def hidden_cause():
    u = numpyro.sample("U", dist.Normal(0, 1))
    x = numpyro.sample("X", dist.Normal(0.5 * u, 1))
    z = numpyro.sample("Z", dist.Normal(0.8 * x, 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z + 0.5 * u, 1))


def hidden_spread():
    """The latent cause moves only the spread of both."""
    scale = jnp.exp(numpyro.sample("U", dist.Normal(0, 1)))
    x = numpyro.sample("X", dist.Normal(0, scale))
    z = numpyro.sample("Z", dist.Normal(0.8 * x, 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z, scale))


def two_columns():
    x = numpyro.sample("X", dist.Normal(0, 1))
    z = numpyro.sample("Z", dist.Normal(jnp.stack([0.8 * x, x]), 1))
    numpyro.sample("Y", dist.Normal(-1.3 * z[0], 1))


def constant():
    x = numpyro.deterministic("X", jnp.array(1.0))
    z = numpyro.deterministic("Z", 0.8 * x)
    numpyro.deterministic("Y", -1.3 * z)


def wrong_baseline(queries):
    return jnp.where(jnp.asarray(queries.mask).any(axis=1), response_with(-1.04)(queries), 100.0)


def wrong_pair(queries):
    return response_with(-1.04)(queries) + 100.0 * jnp.asarray(queries.mask)[:, :2].all(axis=1)


def wrong_at_the_end(queries):
    at_the_end = (jnp.abs(jnp.asarray(queries.value)) > 4.99) & jnp.asarray(queries.mask)
    return response_with(-1.04)(queries) + 3.0 * at_the_end.any(axis=1)


def careless(queries):
    """Reads Z's value whether it is set or not."""
    x, z, _ = jnp.asarray(queries.value).T
    return jnp.where(jnp.asarray(queries.mask)[:, 0], -1.04 * x, -1.3 * z)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": wrong_sites}, "no site for Z"),
        ({"model": extra_edge}, "'Y' reacts to X in the model, but its parents in the graph are Z"),
        ({"model": rare_edge}, "'Y' reacts to X in the model, but its parents in the graph are Z"),
        (
            {"model": hidden_cause},
            "noise of 'X' and 'Y' is dependent in the .* no arc X <-> Y",
        ),
        (
            {"model": hidden_spread},
            "noise of 'X' and 'Y' is dependent in the .* no arc X <-> Y",
        ),
        ({"model": constant}, "another key gave the same observations"),
        ({"model": two_columns}, r"site 'Z' has shape \(2, \d+\)"),
        ({"response": response_with(-1.02)}, "simulated outcomes have the mean"),
        (
            {"response": lambda queries: response_with(-1.04)(queries) * jnp.nan},
            "is nan; it must be finite",
        ),
        (
            {"response": lambda queries: response_with(-1.04)(queries) + 0.001 * len(queries)},
            "depends on its neighbours",
        ),
        (
            {"response": lambda queries: response_with(-1.04)(queries)[:, None]},
            r"has shape \(\d+, 1\)",
        ),
        ({"response": wrong_baseline}, "effect of {} is stated as 100"),
        ({"response": wrong_pair}, "effect of {'X': .*, 'Z': .*} is stated as"),
        ({"response": wrong_at_the_end}, "simulated outcomes have the mean"),
        ({"response": careless}, "values of variables that are not set"),
    ],
)
def test_system_that_contradicts_itself_is_caught(changes, message):
    with pytest.raises(cb.errors.CheckFailed, match=message):
        check_system(broken(**changes), draws=20_000)


def test_check_refuses_anything_but_a_system():
    for options in ({"draws": 1}, {"per_set": 0}, {"per_set": 1.5}):
        with pytest.raises(cb.errors.ArgumentError, match="must be a whole number, at least"):
            check_system(load("chain"), **options)
    with pytest.raises(cb.errors.ArgumentError, match="checks a CausalSystem, got Problem"):
        check_system(load("chain").problem)
    for response in (
        lambda queries: None,
        lambda queries: ["a"] * len(queries),
        lambda queries: 1j * queries.value[:, 0],
    ):
        system = broken(response=response)
        with pytest.raises(cb.errors.ModelError, match="must return one real number for each"):
            system.effect(system.problem.baseline())


@pytest.mark.heavy
def test_system_built_by_hand_passes():
    check_system(broken(response=response_with(-1.04)), draws=100_000)


@pytest.mark.heavy
def test_declared_cause_without_an_effect_is_warned_of():
    system = broken(model=missing_edge, response=response_with(0.0))
    with pytest.warns(cb.CausalBOWarning, match="'Z' did not react to its parents X"):
        check_system(system, draws=1000)


def one_cause(mean, distribution, domain, name="user-defined"):
    """X -> Y with a mean of Y that is exact."""

    def model():
        distribution(mean(numpyro.sample("X", dist.Normal(0, 1))))

    def response(queries):
        grid = jnp.linspace(-9, 9, 4001)
        natural = mean(grid) @ (jnp.exp(-(grid**2) / 2) / jnp.exp(-(grid**2) / 2).sum())
        return jnp.where(queries.mask[:, 0], mean(jnp.asarray(queries.value)[:, 0]), natural)

    problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": domain})
    return cb.CausalSystem(name, problem, model, response, False, "test")


@pytest.mark.slow
@pytest.mark.parametrize(
    "system",
    [
        one_cause(lambda x: x**2, lambda mean: numpyro.deterministic("Y", mean), (-1, 2)),
        one_cause(
            lambda x: jnp.maximum(x - 3.5, 0),
            lambda mean: numpyro.sample("Y", dist.Normal(mean, 1)),
            (-5, 5),
        ),
        one_cause(
            lambda x: jnp.exp(x - 3), lambda mean: numpyro.sample("Y", dist.Poisson(mean)), (-1, 1)
        ),
        one_cause(
            jnp.sin, lambda mean: numpyro.sample("Y", dist.Normal(mean, 1e-3)), (-1e-9, 1e-9)
        ),
    ],
    ids=["deterministic", "rare", "counts", "narrow"],
)
def test_unusual_but_right_system_passes(system):
    check_system(system, draws=20_000)


@pytest.mark.heavy
def test_category_may_index_a_table_when_it_is_set_and_when_it_is_not():
    means = jnp.array([1.0, -2.0, 4.0])

    def model():
        kind = numpyro.sample("K", dist.DiscreteUniform(0, 2))
        numpyro.sample("Y", dist.Normal(means[kind], 1))

    problem = cb.Problem(cb.CausalGraph.parse("K -> Y"), "Y", domains={"K": (0, 2)})
    system = cb.CausalSystem(
        "table", problem, model, lambda q: means[q.value[:, 0].astype(int)], False, "test"
    )
    assert len(system.observe(5, 0)) == 5
    rows = system.experiment(problem.queries([{"K": 2.0}]).repeat(1000), 0)
    assert abs(rows.outcomes.mean() - 4.0) < 0.2


@pytest.mark.parametrize("names", ["A", "AB", "ABC", "ABCD", "ABCDEF", "ABCDEFGH"])
@pytest.mark.heavy
def test_optimum_inside_a_box_of_any_size_is_found(names):
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in "ABCDEFGH"])
    centre = jnp.linspace(-0.4, 0.9, 8)

    def bowl(queries):
        offset = jnp.where(
            jnp.asarray(queries.mask)[:, :8], jnp.asarray(queries.value)[:, :8] - centre[None], 0.0
        )
        return (offset**2).sum(axis=1) + 0.5 * offset[:, 0] * offset[:, 1]

    problem = cb.Problem(graph, "Y", domains=dict.fromkeys(names, (-1.0, 2.0)), sets=[tuple(names)])
    optimum = cb.CausalSystem("bowl", problem, None, bowl, False, "test").optimum
    assert optimum.value == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(list(optimum.intervention.values()), centre[: len(names)], atol=1e-6)


@pytest.mark.heavy
def test_best_of_several_basins_is_found():
    """The deepest well lies between two points of the first grid.

    The lowest point of that grid is in a broader well.
    """
    cell = 2 / (DESIGN_POINTS - 1)
    deep, broad = -1 + 1000.5 * cell, 0.5

    def mean(x):
        return -jnp.exp(-(((x - deep) / (0.6 * cell)) ** 2)) - 0.9 * jnp.exp(
            -(((x - broad) / 0.1) ** 2)
        )

    optimum = one_cause(
        mean, lambda mean: numpyro.sample("Y", dist.Normal(mean, 1)), (-1, 1)
    ).optimum
    assert optimum.value == pytest.approx(-1.0, abs=1e-9) and optimum.intervention[
        "X"
    ] == pytest.approx(deep, abs=1e-8)


@pytest.mark.heavy
def test_optimum_that_is_none_is_caught():
    """A response declared as affine but with its optimum inside: the vertices miss it."""
    graph = cb.CausalGraph.parse("X -> Y")

    def model():
        x = numpyro.sample("X", dist.Normal(0, 1))
        numpyro.sample("Y", dist.Normal(x**2, 1))

    def response(queries):
        mask, x = queries.mask[:, 0], queries.value[:, 0]
        return jnp.where(mask, x**2, 1.0)

    problem = cb.Problem(graph, "Y", domains={"X": (-1.0, 2.0)})
    check_system(cb.CausalSystem("bowl", problem, model, response, False, "test"), draws=20_000)
    with pytest.raises(cb.errors.CheckFailed, match="a query reaches .*, the optimum only 1"):
        check_system(cb.CausalSystem("bowl", problem, model, response, True, "test"), draws=20_000)


def test_surgery_acts_on_each_observation_and_downstream():
    system = load("chain")
    queries = system.problem.queries([{"X": 2.0}, {"Z": -1.0}])
    both = cb.problem.Queries(
        np.vstack([queries.mask, [[False] * 3]]), np.vstack([queries.value, [[0.0] * 3]])
    )
    rows = np.asarray(simulate(system.model, system.problem.graph.nodes, both, jax.random.key(0)))
    free = np.asarray(
        simulate(system.model, system.problem.graph.nodes, both[[2, 2, 2]], jax.random.key(0))
    )
    assert rows[0, 0] == 2.0 and rows[1, 1] == -1.0
    noise = free - np.column_stack(
        [np.zeros(3), 0.8 * free[:, 0], -1.3 * free[:, 1]]
    )  # the same noise
    np.testing.assert_allclose(
        rows[0], [2.0, 1.6 + noise[0, 1], -1.3 * rows[0, 1] + noise[0, 2]], atol=1e-12
    )
    np.testing.assert_allclose(rows[1], [free[1, 0], -1.0, 1.3 + noise[1, 2]], atol=1e-12)
    np.testing.assert_array_equal(rows[2], free[2])


def test_a_variable_may_be_called_rows():
    graph = cb.CausalGraph.from_edges([("rows", "Y")])

    def model():
        numpyro.sample("Y", dist.Normal(numpyro.sample("rows", dist.Normal(0, 1)), 1))

    problem = cb.Problem(graph, "Y", domains={"rows": (0, 1)})
    system = cb.CausalSystem("odd", problem, model, partial(lambda q: q.value[:, 0]), True, "test")
    assert len(system.observe(4, 0)) == 4
