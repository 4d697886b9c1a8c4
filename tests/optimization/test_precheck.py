"""Warnings before the first experiment, and when there are none.

Internals: every warning is tested without the run that follows it.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics.sequential import (
    calls_for_discrepancy,
    precheck,
    select_for_warning,
)


def look(system, observations, seed=0, **options):
    return precheck(cb.fit(system.problem, system.observe(observations, seed), **options), seed)


@pytest.mark.parametrize("observations", [50, 400])
def test_a_bowl_fitted_as_linear_fails_before_the_first_experiment(bowl, observations):
    checks = look(bowl, observations)
    names = ["causal graph", "mechanisms", "interactions", "noise", "overlap"]
    assert [check.name for check in checks] == names
    assert checks[1].verdict == "failed" and checks[1].failures.index.tolist() == ["Y"]
    with pytest.warns(
        cb.CausalBOWarning, match="before the first .*: 1 of 2 .* are nonlinear"
    ) as w:
        study = cb.Study(bowl.problem, bowl.observe(observations, 0), key=0)
    assert len(w) == 1 and w[0].filename == __file__
    assert 'mechanisms={"Y": "gp"}' in str(w[0].message)
    assert study.warnings == (str(w[0].message),)


def test_a_linear_system_is_begun_without_a_warning():
    checks = look(cb.models.load("chain"), 50)
    found = {check.name: check.verdict for check in checks}
    assert found.pop("interactions") == "not assessed"  # a chain has no two causes
    assert list(found.values()) == ["passed"] * 4 and not select_for_warning(checks)
    system = cb.models.load("chain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cb.Study(system.problem, system.observe(50, 0), key=0).warnings == ()


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
    assert calls_for_discrepancy(run.checks) and run.trace["discrepancy"].values[0] > 0
    assert run.settings.discrepancy == "auto"
    *_, last = run.retrace()
    assert last.surrogate.discrepancy.amplitude == run.surrogate.discrepancy.amplitude
    assert len(optimize(problem, progress=False, preset="cbo", **options)) == 1  # has no residual
