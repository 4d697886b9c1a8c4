"""Warnings before the first experiment, and when there are none.

Internals: every warning is tested without the run that follows it.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.monitor import (
    check_curvature,
    contradicts_graph,
    precheck,
    select_for_warning,
    warn_of_failed_checks,
)
from causal_bo_ppl.optimization.run import retrace


def look(system, observations, seed=0, **options):
    return precheck(cb.fit(system.problem, system.observe(observations, seed), **options), seed)


@pytest.mark.parametrize("observations", [50, 400])
def test_a_bowl_fitted_as_linear_fails_before_the_first_experiment(bowl, observations):
    checks = look(bowl, observations)
    assert [check.name for check in checks] == ["causal graph", "mechanisms", "overlap"]
    assert checks[1].verdict == "failed" and checks[1].failures.index.tolist() == ["Y"]
    with pytest.warns(
        cb.CausalBOWarning, match="before the first .*: 1 of 2 .* are nonlinear"
    ) as w:
        warn_of_failed_checks(checks)
    assert len(w) == 1 and w[0].filename == __file__
    assert 'mechanisms={"Y": "gp"}' in str(w[0].message)


def test_a_linear_system_is_begun_without_a_warning():
    checks = look(cb.models.load("chain"), 50)
    assert [check.verdict for check in checks] == ["passed"] * 3 and not select_for_warning(checks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_failed_checks(checks)


def test_a_few_corners_far_out_are_recorded_and_most_are_reported(make_problem):
    system = cb.models.load("chain")
    rows = system.observe(80, 0)
    wide = make_problem(domains={"X": (-80.0, 80.0), "Z": (-90.0, 90.0)})
    checks = precheck(cb.fit(wide, rows))
    assert [check.name for check in select_for_warning(checks)] == ["overlap"]
    one = make_problem(domains={"X": (-80.0, 80.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(one, rows))
    assert checks[-1].verdict == "failed" and not select_for_warning(checks)


def test_overlap_is_reported_where_a_mechanism_is_nonlinear_too(bowl):
    problem = cb.Problem(bowl.problem.graph, "Y", domains={"X": (-60.0, 60.0), "Z": (-3.0, 3.0)})
    checks = precheck(cb.fit(problem, bowl.observe(100, 0)))
    assert [check.name for check in select_for_warning(checks)] == ["mechanisms", "overlap"]


def test_what_cannot_be_checked_is_omitted():
    system = cb.models.load("chain")
    few = cb.fit(system.problem, system.observe(6, 0))
    assert [check.name for check in precheck(few)] == ["causal graph", "overlap"]
    with pytest.raises(cb.errors.DataError, match="6 observations are too few"):
        check_curvature(few)


def test_data_that_contradict_the_graph_are_reported_and_begin_with_a_discrepancy():
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
def test_nonlinear_mechanisms_are_not_tested_for_curvature(bowl):
    checks = look(bowl, 50, mechanisms=cb.GP(functions=8))
    assert [check.name for check in checks] == ["overlap"]


@pytest.mark.slow
@pytest.mark.parametrize("observations", [50, 100])
@pytest.mark.parametrize("name", ["chain", "ecoli70"])
def test_true_linear_systems_rarely_fail(name, observations):
    network = {"target": "b1583", "parents": False, "max_size": 2} if name == "ecoli70" else {}
    system = cb.models.load(name, **network)
    assert (
        sum(bool(select_for_warning(look(system, observations, seed))) for seed in range(100)) <= 4
    )
