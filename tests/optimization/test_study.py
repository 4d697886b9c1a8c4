"""A study is made of a problem and rows, and shows itself."""

import pandas as pd
import pytest
from helpers.study_cases import confounded

import causal_bo_ppl as cb


def test_study_shows_what_was_told_believed_and_surprising(chain, chain_study):
    assert repr(chain_study).startswith("Study(min Y, 0 outcomes; the model's best do(Z = 5)")
    assert chain_study.best.by == "model" and "Nothing was told yet" in chain_study._repr_html_()
    told = chain_study.tell(chain_study.ask(), -6.0).tell({"X": 5.0}, -5.0, variance=0.25)
    table = told.to_frame()
    assert table["outcome"].tolist() == [-6.0, -5.0] and table["asked"].tolist() == [1, pd.NA]
    assert table["do(Z)"].tolist()[0] == 5.0 and table["variance"].tolist()[1] == 0.25
    assert (table["z"] == (table["outcome"] - table["expected"]) / table["spread"]).all()
    shown = told._repr_html_()
    assert "What surprised: The 2 outcomes agree" in shown and "do(X = 5)" in shown
    assert "2 outcomes; best do(Z = 5)" in repr(told) and told.best.by == "outcomes"
    with pytest.raises(AttributeError, match="never changes"):
        told.records = ()


def test_study_needs_a_problem_rows_settings_and_a_key(chain, chain_data):
    with pytest.raises(cb.errors.DomainError, match="a study needs a Problem, got CausalSystem"):
        cb.Study(chain, chain_data, key=0)
    with pytest.raises(cb.errors.DataError, match="rows come as a pandas DataFrame, got NoneType"):
        cb.Study(chain.problem, None, key=0)
    with pytest.raises(cb.errors.SettingsError, match="settings must be cb.Settings"):
        cb.Study(chain.problem, chain_data, {"beta": 1.0}, key=0)
    with pytest.raises(cb.errors.SeedError, match="key must be"):
        cb.Study(chain.problem, chain_data, key="seed")
    with pytest.raises(cb.errors.DataError, match="read them for this problem"):
        cb.Study(chain.problem, cb.models.load("healthcare").observe(9, 0), key=0)
    with pytest.raises(cb.errors.DataError, match='learn_from="rows" needs whole rows'):
        full = cb.Study(chain.problem, chain_data, cb.Settings(learn_from="rows"), key=0)
        full.tell({"X": 1.0}, -1.0)


def test_table_of_pandas_begins_the_same_study(chain, chain_data, chain_study):
    assert (
        cb.Study(chain.problem, chain_data.to_frame(), key=0).fingerprint == chain_study.fingerprint
    )


def test_earlier_experiments_that_cannot_be_used_are_said_where_the_study_is_made():
    problem, seen, experiment = confounded()
    rows = experiment(problem.queries([{"X": 1.0}, {"X": 9e-1}, {"Z": 1.0}]))
    alone = cb.Problem(problem.graph, "Y", domains=problem.domains, sets=[["Z"]])
    with pytest.warns(cb.CausalBOWarning, match="2 of 3 earlier experiments are left") as caught:
        study = cb.Study(alone, seen.join(rows), key=0)
    assert [each.filename for each in caught] == [__file__]
    again = cb.Study.from_json(study.to_json(), seen.join(rows))  # without a word
    assert again.ask().mean == study.ask().mean and len(study.state.ledger) == 1
