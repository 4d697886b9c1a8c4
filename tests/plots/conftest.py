"""Posteriors, runs and comparisons of all tests of plots: fitting is slow, drawing is not."""

import numpy as np
import pandas as pd
import pytest
from helpers.long_names import CATALYST, HEAT, PRESSURE, PROFIT
from helpers.runs import optimize

import causal_bo_ppl as cb

FEW_FUNCTIONS = cb.GP(functions=8)


@pytest.fixture(scope="session")
def posts(chain):
    """Closed-form posteriors of the chain, after few and after more observations."""
    return [cb.fit(chain.problem, chain.observe(count, 1)) for count in (15, 60)]


@pytest.fixture(scope="session")
def linear(posts):
    return posts[1]


@pytest.fixture(scope="session")
def few(chain):
    """A posterior far from Gaussian."""
    return cb.fit(chain.problem, chain.observe(8, 1))


@pytest.fixture(scope="session")
def errors(few):
    return cb.diagnostics.gaussian_error(few, key=0)


@pytest.fixture(scope="session")
def comparisons(posts):
    return [
        cb.compare_kernels(post, post.problem.grid(3), draws=400, progress=False, key=0)
        for post in posts
    ]


@pytest.fixture(scope="session")
def sampled(chain):
    method = cb.NUTS(chains=2, draws=100, progress=False)
    return cb.fit(chain.problem, chain.observe(60, 0), method=method, key=0)


@pytest.fixture(scope="session")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="session")
def nonlinear(toy):
    return cb.fit(toy.problem, toy.observe(60, 0), mechanisms=FEW_FUNCTIONS, method="conjugate")


@pytest.fixture(scope="session")
def three():
    """Y is linear in three causes, Z nonlinear in one; Z was set in the last ten observations."""
    graph = cb.CausalGraph.parse("X -> Z -> Y; X -> Y; W -> Y")
    domains, sets = {"X": (-3, 3), "Z": (-6, 2)}, [("X",), ("X", "Z")]
    problem = cb.Problem(graph, "Y", domains=domains, sets=sets, units={"Z": "mg/l"})
    noise = np.random.default_rng(0).normal(size=(70, 4))
    w, x = noise[:, 0], noise[:, 1]
    is_set = np.arange(70) >= 60
    z = np.where(is_set, -5.0, np.sin(x) + 0.5 * noise[:, 2])
    y = z + 0.5 * x - w + 0.5 * noise[:, 3]
    values = np.stack([{"W": w, "X": x, "Z": z, "Y": y}[name] for name in graph.nodes], axis=1)
    intervened = np.zeros(values.shape, bool)
    intervened[:, graph.nodes.index("Z")] = is_set
    data = cb.Data(graph.nodes, "Y", values, intervened)
    return cb.fit(problem, data, mechanisms={"Z": FEW_FUNCTIONS}, method="conjugate")


@pytest.fixture(scope="session")
def chain_run(chain):
    options = {"rounds": 4, "observations": 30, "learn_from": "target", "progress": False}
    return optimize(chain, key=0, **options)


@pytest.fixture(scope="session")
def run():
    """Six experiments on several sets."""
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    options = {"rounds": 6, "observations": 50, "acquisition": "thompson", "progress": False}
    return optimize(system, key=1, **options)


@pytest.fixture(scope="session")
def plant():
    """A posterior of variables with long names and units, of sizes from 0.002 to 300,000."""
    noise = np.random.default_rng(3).normal(size=(5, 120))
    heat, pressure, catalyst = 350 + 12 * noise[0], 101325 + 4000 * noise[1], 2e-3 + 4e-4 * noise[2]
    share = 0.004 * (heat - 350) + 120 * (catalyst - 0.002) + 0.5 + 0.02 * noise[3]
    profit = 5e5 * share + 5 * (pressure - 101325) - 900 * (heat - 350) + 8000 * noise[4]
    columns = {HEAT: heat, PRESSURE: pressure, CATALYST: catalyst, "yield %": share, PROFIT: profit}
    edges = [(HEAT, "yield %"), (CATALYST, "yield %"), ("yield %", PROFIT)]
    graph = cb.CausalGraph.from_edges([*edges, (PRESSURE, PROFIT), (HEAT, PROFIT)])
    domains = {HEAT: (330, 380), PRESSURE: (95000, 115000), CATALYST: (0.001, 0.004)}
    units = {PROFIT: "$ of 2024", HEAT: "K", PRESSURE: "Pa"}
    problem = cb.Problem(graph, PROFIT, objective="max", domains=domains, sets=2, units=units)
    return cb.fit(problem, cb.Data.from_frame(problem, pd.DataFrame(columns)))


@pytest.fixture(scope="session")
def plant_run(plant):
    draws = np.random.default_rng(0)

    def experiment(queries):
        means = cb.effects(plant, queries)["mean"].to_numpy()
        return means + 8000 * draws.normal(size=len(queries))

    options = {"rounds": 7, "acquisition": "thompson", "learn_from": "target", "progress": False}
    return optimize(plant.problem, data=plant.data, experiment=experiment, key=1, **options)
