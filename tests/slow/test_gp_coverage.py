"""Coverage of the credible intervals of effects of nonlinear mechanisms."""

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

FEW = cb.GP(functions=8)
CHAIN = cb.Problem(
    cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-2.0, 2.0), "Z": (-2.0, 2.0)}
)
ASKED = CHAIN.queries([{"X": -1.5}, {"X": 0.0}, {"X": 1.0}, {"Z": -1.5}, {"Z": 0.0}, {"Z": 1.0}])
SEEDS = 20


def calibrate(method, simulations, **options):
    return cb.diagnostics.calibrate(
        CHAIN,
        method=method,
        mechanisms=FEW,
        observations=60,
        simulations=simulations,
        queries=ASKED,
        progress=False,
        key=1,
        **options,
    )


@pytest.mark.slow
def test_nuts_is_calibrated():
    check = calibrate(cb.NUTS(chains=2, warmup=300, draws=300, progress=False), 100)
    assert check.verdict == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("method, least", [("laplace", 0.83), ("conjugate", 0.75)])
def test_intervals_at_the_mode_of_the_evidence_cover_nearly_as_often(method, least):
    # 200 simulations: .88 to .90 by laplace, .80 to .89 by conjugate, which ignores the
    # uncertainty of the hyperparameters; three standard errors of a coverage are .06.
    check = calibrate(method, 200)
    assert least < check.table["coverage"].min() and check.table["coverage"].max() < 0.97


def intervals(post, queries, key=0):
    draws = cb.response(post)(post.draws(400, key), queries)
    return np.quantile(draws, (0.05, 0.95), axis=0)


@pytest.mark.slow
def test_intervals_of_toy_cover_the_truth_within_the_data_and_beyond():
    system = cb.models.load("toy")
    grids = {"X": np.linspace(-5, 5, 41), "Z": np.linspace(-5, 20, 51)}
    for name, grid in grids.items():
        queries = system.problem.queries([{name: value} for value in grid])
        truth, inner, outer = np.asarray(system.effect(queries)), [], []
        for seed in range(SEEDS):
            data = system.observe(100, 100 + seed)
            low, high = intervals(cb.fit(system.problem, data, mechanisms="gp"), queries)
            covered, column = (low <= truth) & (truth <= high), data.column(name)
            inside = (grid >= column.min()) & (grid <= column.max())
            inner.append(covered[inside].mean())
            outer.append(covered[~inside].mean())
        assert 0.80 <= np.mean(inner) <= 0.98, name
        assert np.mean(outer) >= 0.80, name


@pytest.mark.slow
def test_effects_beyond_the_data_of_an_exponential_are_covered_or_reported():
    problem = cb.Problem(cb.CausalGraph.parse("B -> C"), "C", domains={"B": (-5.0, 4.0)})
    queries = problem.queries([{"B": -5.0}, {"B": -4.0}])
    right = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        b = np.sqrt(2) * rng.normal(size=100)
        table = pd.DataFrame({"B": b, "C": np.exp(-b) + rng.normal(size=100)})
        post = cb.fit(problem, cb.Data.from_frame(problem, table), mechanisms="gp")
        low, high = intervals(post, queries)
        truth = np.exp([5.0, 4.0])
        named = cb.diagnostics.check_extrapolation(post, queries).table["verdict"] == "failed"
        right.append(((low <= truth) & (truth <= high)) | named.to_numpy())
    assert (np.mean(right, axis=0) >= 0.8).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, options, seeds",
    [("chain", {}, SEEDS), ("ecoli70", {"target": "yaeM", "max_size": 1}, SEEDS)],
)
def test_a_linear_truth_costs_little(name, options, seeds):
    system = cb.models.load(name, **options)
    problem, ratios, covered, covered_linear = system.problem, [], [], []
    for seed in range(seeds):
        data = system.observe(100, 50 + seed)
        asked = [
            {member: float(np.quantile(data.column(member), share)) for member in members}
            for members in problem.sets
            for share in (0.2, 0.8)
        ]
        queries = problem.queries(
            [
                {key: float(np.clip(value, *problem.domains[key])) for key, value in each.items()}
                for each in asked
            ]
        )
        truth = np.asarray(system.effect(queries))
        gp, linear = (
            intervals(cb.fit(problem, data, mechanisms=each), queries) for each in ("gp", "linear")
        )
        ratios.append((gp[1] - gp[0]) / (linear[1] - linear[0]))
        covered.append((gp[0] <= truth) & (truth <= gp[1]))
        covered_linear.append((linear[0] <= truth) & (truth <= linear[1]))
    assert np.mean(ratios) <= 1.3
    assert np.mean(covered) >= np.mean(covered_linear) - 0.06
