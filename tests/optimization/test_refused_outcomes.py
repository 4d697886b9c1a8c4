"""Reports that cannot be recorded or are nearly impossible are refused; nothing changes.

Internals: predicted observations are compared before a study reads any.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest

import causal_bo_ppl as cb


@pytest.mark.parametrize(
    ("what", "outcome", "options", "message"),
    [
        ({"X": 1.0}, float("nan"), {}, r"do\(X = 1\) is nan; report a finite"),
        ({"X": 1.0}, [1.0, np.inf], {}, r"do\(X = 1\) is inf; report a finite"),
        ({"X": 1.0}, "much", {}, "must be a number, replicates or a whole row; got 'much'"),
        ({"X": 1.0}, True, {}, "must be a number, replicates or a whole row; got True"),
        ({"X": 1.0}, [[1.0], [2.0]], {}, "must be a number, replicates or a whole row"),
        ({"X": 1.0}, np.ones((2, 2)), {}, "must be a number, replicates or a whole row"),
        ({"X": 1.0}, [], {}, r"do\(X = 1\) has no outcome in this list"),
        ({"X": 1.0}, None, {}, r"outcome of do\(X = 1\) is missing"),
        ({"X": 1.0}, 1e60, {}, r"do\(X = 1\) is 1e\+60, but -.* was expected"),
        ({"X": 1.0}, 1e60, {"sure": True}, "an outcome of the target has the size 1e\\+60"),
        ({"X": 1.0}, 1.0, {"variance": 1e160}, "variance of the outcome's noise is 1e\\+160"),
        ({"X": 1.0}, 1.0, {"variance": -1.0}, "is -1; it must be 0 or more"),
        ({"X": 1.0}, 1.0, {"variance": np.nan}, "variance of an outcome is nan"),
        ({"X": 1.0}, [1.0, 2.0], {"variance": [1.0] * 3}, "3 variances for 2 numbers"),
        ({"X": 1.0}, 1.0, {"failed": "leaked"}, "failed and has an outcome too"),
        ({"X": 1.0}, None, {"failed": " "}, "state why"),
        ({"W": 1.0}, 1.0, {}, "unknown variable 'W'"),
        ({"X": np.nan}, 1.0, {}, "the value of X is nan"),
        ({"X": 1.0, "Y": 2.0}, None, {}, "'Y' is the target, which is not set"),
        ({}, 1.0, {}, "where nothing was set, the outcome alone is not informative"),
        ({"X": 1.0}, {"Z": 1.0}, {}, "lacks the columns Y"),
        ({"X": 1.0}, {"X": 2.0, "Z": 1.0, "Y": 0.0}, {}, "X = 2, suggested was 1"),
        ({"X": 1.0}, {"Z": 1.0, "Y": 0.0}, {"variance": 1.0}, "`variance` is of an outcome"),
        (3.0, 1.0, {}, "report the outcome of a suggestion .*got float"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(chain_study, what, outcome, options, message):
    before = chain_study.to_json()
    with pytest.raises(cb.errors.ObservationError, match=message):
        chain_study.tell(what, outcome, **options)
    assert chain_study.to_json() == before and not len(chain_study.observations)


def test_bad_row_of_a_table_changes_nothing(chain, chain_study):
    frame = chain.experiment(chain.problem.queries([{"X": 1.0}, {"Z": 1.0}]), 0).to_frame()
    frame.loc[1, "Y"] = np.nan
    with pytest.raises(cb.errors.ObservationError, match="column 'Y' holds 1 NaN"):
        chain_study.tell(frame)
    with pytest.raises(cb.errors.ObservationError, match="whole rows hold their outcomes"):
        chain_study.tell(frame, 1.0)
    with pytest.raises(cb.errors.ObservationError, match="the table has no rows"):
        chain_study.tell(frame[:0])


def test_outcome_far_from_what_was_expected_must_be_confirmed(chain_study):
    with pytest.raises(
        cb.errors.ObservationError, match=r"do\(X = 1\) is 5000, but -.* \+- .* was expected: is it"
    ):
        chain_study.tell({"X": 1.0}, 5000.0)
    with pytest.raises(cb.errors.ObservationError, match="sure=True"):
        chain_study.tell({"X": 1.0}, {"Z": 0.5, "Y": 5000.0})
    with pytest.raises(cb.errors.ObservationError, match="the outcome of nothing set is 5000, but"):
        chain_study.tell({}, {"X": 0.5, "Z": 0.5, "Y": 5000.0})
    with pytest.raises(
        cb.errors.ObservationError, match=r"was expected \(2 of 3 outcomes are like that\)"
    ):
        chain_study.tell({"X": 1.0}, [5000.0, -1.0, 4000.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        updated = chain_study.tell({"X": 1.0}, 5000.0, sure=True)
    assert ["model discrepancy" in str(each.message) for each in caught] == [True, False]
    assert "corrected for looking after every outcome" in str(caught[1].message)
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}
    assert (
        updated.observations.outcome.tolist() == [5000.0] and updated.surprise.verdict == "failed"
    )
    assert chain_study.tell({"X": 1.0}, -3.5).surprise.verdict == "passed"  # unlikely, and possible


def test_value_of_an_observation_far_from_its_prediction_must_be_confirmed(
    chain, chain_data, chain_study
):
    message = r"the row of do\(X = 1\) has Z = 5000, but 0\..* \+- .* was expected: is it a typing"
    with pytest.raises(cb.errors.ObservationError, match=message):
        chain_study.tell({"X": 1.0}, {"Z": 5000.0, "Y": -1.0})
    with pytest.raises(cb.errors.ObservationError, match="the row of nothing set has X = 900, but"):
        chain_study.tell({}, {"X": 900.0, "Z": 0.5, "Y": 0.5})
    rows = chain.experiment(chain.problem.queries([{"X": 2.0}, {"Z": 1.0}, {"X": 0.0}]), 0)
    frame = rows.to_frame()
    frame.loc[[0, 2], "Z"] = [-700.0, 800.0]
    with pytest.raises(
        cb.errors.ObservationError, match=r"Z = -700, .* \(2 values are like that\)"
    ):
        chain_study.tell(frame)
    assert len(chain_study.tell({"X": 1.0}, {"Z": 5000.0, "Y": -1.0}, sure=True).observations) == 1
    # Under do(X = 5) a value is usual that would be rare in the data, more so under do(X = 12).
    low, high = chain_data.values[:, 1].mean(), chain_data.values[:, 1].std()
    assert abs(5.5 - low) > 3 * high
    assert len(chain_study.tell({"X": 5.0}, {"Z": 5.5, "Y": -6.0}).observations) == 1
    assert len(chain_study.tell({"X": 12.0}, {"Z": 10.0, "Y": -13.0}).observations) == 1
    alone = cb.Study(chain.problem, chain_data, cb.Settings(learn_from="target"), key=0)
    assert len(alone.tell({"X": 1.0}, {"Z": 5000.0, "Y": -1.0}).observations) == 1  # Z is not used


def test_expected_values_of_observations_are_those_of_the_mean_model(chain, chain_study):
    from causal_bo_ppl.diagnostics.sequential import expect_variables
    from causal_bo_ppl.optimization.ingest import read_outcomes

    state, query = chain_study.state, chain.problem.queries({"X": 5.0})
    rows = read_outcomes(state.start, query, {"Z": 5.5, "Y": -6.0})
    mean, spread = expect_variables(state.posterior, rows.queries)
    named = dict(zip(state.posterior.names, state.posterior.mean, strict=True))
    z = named["a[Z]"] + 5.0 * named["b[X->Z]"]
    assert mean[0, 0] == 5.0 and abs(mean[0, 1] - z) < 4.5 * spread[0, 1] / 16
    assert abs(mean[0, 2] - named["a[Y]"] - named["b[Z->Y]"] * z) < 4.5 * spread[0, 2] / 16
