"""mechanisms="auto": lines where they are enough, and where not is said in words."""

import numpy as np
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.data import Data

GRAPH = cb.CausalGraph.parse("X -> Z -> Y; W -> Y")


def rows_of(bend, n=120, seed=1):
    """Rows by plain NumPy; Z bends in X by `bend`, and Y is linear."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=n), rng.normal(size=n)
    z = x + bend * (x**2 - 1) + 0.5 * rng.normal(size=n)
    y = 1.5 * z - w + 0.5 * rng.normal(size=n)
    table = {"X": x, "Z": z, "W": w, "Y": y}
    return np.stack([table[name] for name in GRAPH.nodes], axis=1)


def problem_and_rows(bend, **options):
    problem = cb.Problem(GRAPH, "Y", domains={"X": (-2, 2), "W": (-2, 2)}, sets=1)
    values = rows_of(bend, **options)
    return problem, Data(GRAPH.nodes, "Y", values, np.zeros(values.shape, bool))


@pytest.mark.heavy
def test_a_mechanism_that_bends_is_a_process_and_the_others_are_lines():
    graph = cb.CausalGraph.parse("X -> Z -> Y")  # W is noise of Y; both have one form
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)}, sets=1)
    values = rows_of(0.8)[:, [GRAPH.nodes.index(name) for name in graph.nodes]]
    data = Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(problem, data, mechanisms="auto")
    assert post.chosen.table["finding"].to_dict() == {"Z": "nonlinear", "Y": "linear is enough"}
    assert "Gaussian processes for Z and linear mechanisms for Y" in post.chosen.text
    assert any(name.startswith("f[X->Z") for name in post.names)
    assert not any(name.startswith("f[Z->Y") for name in post.names)
    by_hand = cb.fit(problem, data, mechanisms={"Z": "gp"})
    np.testing.assert_array_equal(post.mean, by_hand.mean)
    assert "Held-out observations chose" in post._repr_html_() and by_hand.chosen is None
    assert post.update(data.select(slice(0, 5))).chosen is post.chosen


@pytest.mark.slow
def test_where_lines_are_enough_everywhere_the_posterior_is_that_of_lines():
    problem, data = problem_and_rows(0.0)
    post = cb.fit(problem, data, mechanisms="auto")
    assert post.verdict == "exact" and post.mechanisms == "linear"
    np.testing.assert_array_equal(post.mean, cb.fit(problem, data).mean)
    assert post.chosen.text.startswith("Held-out observations chose lines for ")


@pytest.mark.slow
def test_a_run_and_a_study_go_on_with_what_the_rows_chose():
    problem, data = problem_and_rows(0.8)
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
    problem, data = problem_and_rows(0.5)
    with pytest.raises(cb.errors.DataError, match="there are 3; give at least 4"):
        cb.fit(problem, data.select(slice(0, 3)), mechanisms="auto")
    toy = cb.models.load("toy", variant="confounded")
    with pytest.raises(
        cb.errors.ModelError, match="latent cause joins 'X' and 'Y'.*cannot be compared"
    ):
        cb.fit(toy.problem, toy.observe(50, 0), mechanisms="auto")


@pytest.mark.slow
def test_lines_are_chosen_for_lines_and_processes_for_bends_in_most_data_sets():
    """Of 40 data sets each, at least 32 lines, and at least 38 bends of 0.8."""
    straight, bent = 0, 0
    for seed in range(40):
        for bend in (0.0, 0.8):
            problem, data = problem_and_rows(bend, seed=seed)
            finding = cb.fit(problem, data, mechanisms="auto").chosen.table.loc["Z", "finding"]
            straight += bend == 0 and finding == "linear is enough"
            bent += bend > 0 and finding == "nonlinear"
    assert straight >= 32 and bent >= 38
