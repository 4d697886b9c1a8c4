"""mechanisms="auto": linear mechanisms where they are enough, and a report of the choice.

Internals: log likelihoods that overflow are given to `hold_out_each`, since hardly any data have
them; the choice is made without the fit that follows.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from helpers.runs import optimize
from helpers.wrong_models import INTERACTIONS, SOUND_LINEAR, VARYING_NOISE, five

import causal_bo_ppl as cb
from causal_bo_ppl.inference.posterior import choose_family, read_task
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.selection import compare_with_linear, hold_out_each

GRAPH = cb.CausalGraph.parse("X -> Z -> Y; W -> Y")


def simulate(curvature, n=120, seed=1):
    """Observations by plain NumPy; Z is quadratic in X by `curvature`, and Y is linear."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=n), rng.normal(size=n)
    z = x + curvature * (x**2 - 1) + 0.5 * rng.normal(size=n)
    y = 1.5 * z - w + 0.5 * rng.normal(size=n)
    table = {"X": x, "Z": z, "W": w, "Y": y}
    return np.stack([table[name] for name in GRAPH.nodes], axis=1)


def problem_and_data(curvature, **options):
    problem = cb.Problem(GRAPH, "Y", domains={"X": (-2, 2), "W": (-2, 2)}, sets=1)
    values = simulate(curvature, **options)
    return problem, cb.Data(GRAPH.nodes, "Y", values, np.zeros(values.shape, bool))


@pytest.mark.heavy
def test_a_nonlinear_mechanism_is_a_process_and_the_others_are_linear():
    graph = cb.CausalGraph.parse("X -> Z -> Y")  # W is noise of Y; both have one form
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)}, sets=1)
    values = simulate(0.8)[:, [GRAPH.nodes.index(name) for name in graph.nodes]]
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(problem, data, mechanisms="auto")
    assert post.chosen.table["finding"].to_dict() == {"Z": "nonlinear", "Y": "linear is enough"}
    assert "chose linear mechanisms for Y; Gaussian processes for Z" in post.chosen.text
    assert any(name.startswith("f[X->Z") for name in post.names)
    assert not any(name.startswith("f[Z->Y") for name in post.names)
    by_hand = cb.fit(problem, data, mechanisms={"Z": "gp"})
    np.testing.assert_array_equal(post.mean, by_hand.mean)
    assert "held-out observations chose" in post._repr_html_() and by_hand.chosen is None
    assert post.update(data.select(slice(0, 5))).chosen is post.chosen


@pytest.mark.slow
def test_where_all_are_linear_the_posterior_is_that_of_linear_mechanisms():
    problem, data = problem_and_data(0.0)
    post = cb.fit(problem, data, mechanisms="auto")
    assert post.verdict == "exact" and post.mechanisms == "linear"
    np.testing.assert_array_equal(post.mean, cb.fit(problem, data).mean)
    assert post.chosen.text.startswith("Tests and held-out observations chose linear mechanisms")


@pytest.mark.slow
def test_a_run_and_a_study_use_the_mechanisms_that_the_data_chose():
    problem, data = problem_and_data(0.8)
    study = cb.Study(problem, data, cb.Settings(mechanisms="auto"), key=0)
    by_hand = cb.Study(problem, data, cb.Settings(mechanisms={"Z": "gp"}), key=0)
    assert study.ask().intervention == by_hand.ask().intervention
    again = cb.Study.from_json(study.to_json(), data)
    assert again.ask().intervention == study.ask().intervention
    run = optimize(
        problem, data=data, mechanisms="auto", experiment=lambda q: np.zeros(len(q)), rounds=1,
        key=0, progress=False,
    )  # fmt: skip
    assert run.checks[0].name == "mechanisms chosen" and "Z" in run.checks[0].text


def test_what_cannot_be_compared_is_refused_by_name():
    problem, data = problem_and_data(0.5)
    with pytest.raises(cb.errors.DataError, match="there are 3; give at least 4"):
        cb.fit(problem, data.select(slice(0, 3)), mechanisms="auto")


@pytest.mark.slow
def test_linear_and_nonlinear_mechanisms_are_recognized_in_most_data_sets():
    """Of 40 data sets each, at least 37 linear ones, and at least 38 with curvature 0.8."""
    found = {0.0: [], 0.8: []}
    for seed in range(40):
        for curvature, findings in found.items():
            problem, data = problem_and_data(curvature, seed=seed)
            table = cb.fit(problem, data, mechanisms="auto").chosen.table
            findings.append(table.loc["Z", "finding"])
    assert found[0.0].count("linear is enough") >= 37
    assert found[0.8].count("nonlinear") >= 38


def log_likelihoods(spread):
    """A stand-in for a posterior: log likelihoods of 60 observations of Z, the first one spread."""
    densities = -1 - 0.1 * np.random.default_rng(0).chisquare(1, size=(4, 500, 60))
    densities[..., 0] *= spread
    along, at = "observation[Z]", {"observation[Z]": np.arange(60)}
    groups = {
        "log_likelihood": xr.Dataset({"Z": (("chain", "draw", along), densities)}, at),
        "observed_data": xr.Dataset({"Z": (along, np.zeros(60))}, at),
        "posterior": xr.Dataset({"theta": (("chain", "draw"), densities[..., 1])}),
    }
    return SimpleNamespace(to_datatree=lambda **_: xr.DataTree.from_dict(groups))


def test_observation_whose_weights_overflow_is_the_least_reliable_of_all():
    """ArviZ returns a NaN for it, and a k of 0.03, which would pass."""
    held_out = hold_out_each(log_likelihoods(1e5), 2000, 0)
    assert held_out["Z"].pareto_k[0] == np.inf and (held_out["Z"].pareto_k[1:] < 0.7).all()
    problem, _ = problem_and_data(0.0)
    for pair in ((held_out, hold_out_each(log_likelihoods(1.0), 2000, 0)), (held_out, held_out)):
        table = compare_with_linear(problem, *pair)
        assert table.loc["Z", "finding"] == "undecided" and table.loc["Z", "largest_k"] == np.inf


CHOICES = {
    "product": (INTERACTIONS["product"], {"Y": "cb.Linear(interactions=[('A', 'B')])"}),
    "front door": (
        INTERACTIONS["front door"],
        {"Z": "linear", "Y": "cb.Linear(interactions=[('X', 'Z')])"},
    ),
    "gate": (INTERACTIONS["gate"], {"Y": "cb.GP(groups=[('A', 'B')])"}),
    "noise": (VARYING_NOISE["before a line"], {"Z": 'cb.Linear(noise="varying")', "Y": "linear"}),
    "tails": (
        five(lambda x: x, tails=3),
        dict.fromkeys("BCDY", 'cb.Linear(noise="student")'),
    ),
}


@pytest.mark.parametrize("system", CHOICES)
def test_the_choice_is_what_the_data_ask_for(system):
    make, expected = CHOICES[system]
    problem, data = make(5, 300)
    task = read_task(problem, data, None, None, True)
    family, check = choose_family(task, read_mechanisms("auto"))
    assert check.table["choice"].to_dict() == expected
    assert check.passed and "chose" in check.text


def test_the_choice_depends_neither_on_rounding_nor_on_the_order_of_the_observations():
    problem, data = INTERACTIONS["product"](5, 100)
    shuffled = np.random.default_rng(0).permutation(len(data))
    values = data.values[shuffled] * (1 + 1e-13 * np.random.default_rng(1).normal(size=(100, 3)))
    moved = cb.Data(data.nodes, data.target, values, data.intervened[shuffled])
    one, other = (
        choose_family(read_task(problem, each, None, None, True), read_mechanisms("auto"))[1]
        for each in (data, moved)
    )
    assert one.table["choice"].to_dict() == other.table["choice"].to_dict()
    numbers = ["difference", "se", "p_nonlinear", "p_interaction"]
    np.testing.assert_allclose(one.table[numbers], other.table[numbers], rtol=1e-5)


def test_noise_that_was_chosen_is_fitted_by_laplace_and_survives_a_file(tmp_path):
    problem, data = VARYING_NOISE["before a line"](5, 300)
    post = cb.fit(problem, data, mechanisms="auto")
    assert post.method == "laplace" and post.verdict == "passed"
    again = cb.Posterior.load(post.save(tmp_path / "post.nc", draws=50), problem)
    assert again.fingerprint == post.fingerprint and (again.mean == post.mean).all()


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 100, 400])
def test_a_linear_truth_stays_linear(n):
    """In at least 93 % of 200 data sets of a chain, 95 % less a standard error."""
    kept = 0
    for seed in range(200):
        task = read_task(*SOUND_LINEAR["chain"](7_000 + seed, n), None, None, True)
        choices = choose_family(task, read_mechanisms("auto"))[1].table["choice"]
        kept += (choices == "linear").all()
    assert kept >= 186
