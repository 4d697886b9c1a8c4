"""A study is made of a problem and data, and has a text and an HTML representation."""

import pandas as pd
import pytest
from helpers.study_cases import confounded

import causal_bo_ppl as cb


def test_study_shows_records_effects_and_surprise(chain, chain_study):
    assert repr(chain_study).startswith("Study(min Y, 0 outcomes; the model's best do(Z = 5)")
    assert chain_study.best.by == "model" and "Nothing is recorded yet" in chain_study._repr_html_()
    updated = chain_study.tell(chain_study.ask(), -6.0).tell({"X": 5.0}, -5.0, variance=0.25)
    table = updated.to_frame()
    assert table["outcome"].tolist() == [-6.0, -5.0] and table["suggestion"].tolist() == [1, pd.NA]
    assert table["do(Z)"].tolist()[0] == 5.0 and table["variance"].tolist()[1] == 0.25
    assert (table["z"] == (table["outcome"] - table["expected"]) / table["spread"]).all()
    shown = updated._repr_html_()
    assert "Surprise: The 2 outcomes agree" in shown and "do(X = 5)" in shown
    assert "2 outcomes; best do(Z = 5)" in repr(updated) and updated.best.by == "outcomes"
    with pytest.raises(AttributeError, match="never changes"):
        updated.records = ()


def test_study_needs_a_problem_data_settings_and_a_key(chain, chain_data):
    with pytest.raises(cb.errors.ArgumentError, match="a study needs a Problem, got CausalSystem"):
        cb.Study(chain, chain_data, key=0)
    with pytest.raises(
        cb.errors.DataError, match="data must be cb.Data or a pandas .*got NoneType"
    ):
        cb.Study(chain.problem, None, key=0)
    with pytest.raises(cb.errors.SettingsError, match="settings must be cb.Settings"):
        cb.Study(chain.problem, chain_data, {"beta": 1.0}, key=0)
    with pytest.raises(cb.errors.SeedError, match="key must be"):
        cb.Study(chain.problem, chain_data, key="seed")
    with pytest.raises(cb.errors.DataError, match="read them for this problem"):
        cb.Study(chain.problem, cb.models.load("healthcare").observe(9, 0), key=0)
    with pytest.raises(cb.errors.ObservationError, match="needs whole rows"):
        full = cb.Study(chain.problem, chain_data, cb.Settings(learn_from="rows"), key=0)
        full.tell({"X": 1.0}, -1.0)


def test_data_frame_begins_the_same_study(chain, chain_data, chain_study):
    assert (
        cb.Study(chain.problem, chain_data.to_frame(), key=0).fingerprint == chain_study.fingerprint
    )


def test_earlier_experiments_that_cannot_be_used_are_reported_by_a_warning():
    problem, seen, experiment = confounded()
    rows = experiment(problem.queries([{"X": 1.0}, {"X": 9e-1}, {"Z": 1.0}]))
    alone = cb.Problem(problem.graph, "Y", domains=problem.domains, sets=[["Z"]])
    with pytest.warns(cb.CausalBOWarning, match="2 of 3 earlier experiments are omit") as caught:
        study = cb.Study(alone, seen.join(rows), key=0)
    assert [each.filename for each in caught] == [__file__]
    again = cb.Study.from_json(study.to_json(), seen.join(rows))  # without a word
    assert again.ask().mean == study.ask().mean and len(study.state.ledger) == 1


def test_data_frames_are_taken_wherever_data_are(chain, chain_data, chain_study):
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}]), 3)
    assert chain_study.tell(rows.to_frame()).best == chain_study.tell(rows).best
    one = rows.select(slice(0, 1))
    reported = [chain_study.tell({"Z": 2.0}, each) for each in (one, one.to_frame())]
    assert reported[0].to_frame().equals(reported[1].to_frame())
    assert reported[0].to_frame()["whole_row"].all()
    seen = chain.observe(3, 9)
    passive = [chain_study.tell({}, each) for each in (seen, seen.to_frame())]
    assert passive[0].posterior.n_observations == passive[1].posterior.n_observations == 43
    batch = chain_study.ask(2)
    answers = chain.experiment(chain.problem.queries([each.intervention for each in batch]), 4)
    both = [chain_study.tell(batch, each) for each in (answers, answers.to_frame())]
    assert both[0].ask().mean == both[1].ask().mean
    again = cb.Study.from_json(both[0].to_json(), chain_data.to_frame())
    assert again.ask().mean == both[0].ask().mean
    with pytest.raises(cb.errors.ObservationError, match="column"):
        chain_study.tell(rows.to_frame().drop(columns="X"))
