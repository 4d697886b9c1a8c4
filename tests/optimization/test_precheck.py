"""What is said before the first experiment, and what is not."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.monitor import (
    check_bends,
    contradicts_graph,
    precheck,
    to_be_said,
    warn_of,
)
from causal_bo_ppl.optimization.run import retrace


def look(system, rows, seed=0, **options):
    return precheck(cb.fit(system.problem, system.observe(rows, seed), **options), seed)


@pytest.mark.parametrize("rows", [50, 400])
def test_a_bowl_fitted_by_lines_is_noticed_before_the_first_experiment(bowl, rows):
    checks = look(bowl, rows)
    assert [check.name for check in checks] == ["causal graph", "mechanisms", "overlap"]
    assert checks[1].verdict == "failed" and checks[1].failures.index.tolist() == ["Y"]
    with pytest.warns(cb.CausalBOWarning, match="before the first experiment: 1 of 2 .* bend") as w:
        warn_of(checks)
    assert len(w) == 1 and w[0].filename == __file__
    assert 'mechanisms={"Y": "gp"}' in str(w[0].message)


def test_a_linear_system_is_begun_without_a_word():
    checks = look(cb.models.load("chain"), 50)
    assert [check.verdict for check in checks] == ["passed"] * 3 and not to_be_said(checks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of(checks)


def test_a_few_corners_far_out_are_recorded_and_most_are_said(make_problem):
    system = cb.models.load("chain")
    rows = system.observe(80, 0)
    wide = make_problem(domains={"X": (-80.0, 80.0), "Z": (-90.0, 90.0)})
    checks = precheck(cb.fit(wide, rows))
    assert [check.name for check in to_be_said(checks)] == ["overlap"]
    one = make_problem(domains={"X": (-80.0, 80.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(one, rows))
    assert checks[-1].verdict == "failed" and not to_be_said(checks)


def test_overlap_is_said_where_a_mechanism_bends_too(bowl):
    problem = cb.Problem(bowl.problem.graph, "Y", domains={"X": (-60.0, 60.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(problem, bowl.observe(100, 0)))
    assert [check.name for check in to_be_said(checks)] == ["mechanisms", "overlap"]


def test_what_cannot_be_checked_is_left_out():
    system = cb.models.load("chain")
    few = cb.fit(system.problem, system.observe(6, 0))
    assert [check.name for check in precheck(few)] == ["causal graph", "overlap"]
    with pytest.raises(cb.errors.DataError, match="6 observations are too few"):
        check_bends(few)


def test_rows_that_contradict_the_graph_are_named_and_begin_with_a_residual():
    """Y also follows A, for which the graph has no edge."""
    draws = np.random.default_rng(0).normal(size=(3, 80))
    a = draws[0]
    m = a + draws[1]
    table = pd.DataFrame({"A": a, "M": m, "Y": m - 2 * a + draws[2]})
    problem = cb.Problem(
        cb.CausalGraph.parse("A -> M -> Y"), "Y", domains={"A": (-3.0, 3.0), "M": (-3.0, 3.0)}
    )
    data = cb.Data.from_frame(problem, table)
    options = {"data": data, "experiment": lambda queries: [0.3], "rounds": 1, "key": 0}
    with pytest.warns(
        cb.CausalBOWarning, match="A and Y should be independent given M.*discrepancy="
    ):
        run = optimize(problem, progress=False, **options)
    assert contradicts_graph(run.checks) and run.trace["discrepancy"].values[0] > 0
    assert run.settings.discrepancy == "auto"
    *_, last = retrace(run)
    assert last.state.surrogate.discrepancy.amplitude == run.surrogate.discrepancy.amplitude
    assert optimize(problem, progress=False, preset="cbo", **options).steps  # has no residual


@pytest.mark.heavy
def test_mechanisms_that_may_bend_are_not_tested_for_bends(bowl):
    checks = look(bowl, 50, mechanisms=cb.GP(functions=8))
    assert [check.name for check in checks] == ["overlap"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [50, 100])
@pytest.mark.parametrize("name", ["chain", "ecoli70"])
def test_true_linear_systems_are_rarely_suspected(name, rows):
    network = {"target": "b1583", "parents": False, "max_size": 2} if name == "ecoli70" else {}
    system = cb.models.load(name, **network)
    assert sum(bool(to_be_said(look(system, rows, seed))) for seed in range(100)) <= 4
