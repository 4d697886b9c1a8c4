"""Frequent mistakes of new users are answered by what to do instead."""

from pathlib import Path

import pytest

import causal_bo_ppl as cb


@pytest.fixture(scope="module")
def chain():
    return cb.models.load("chain")


@pytest.fixture(scope="module")
def study(chain):
    return cb.Study(chain.problem, chain.observe(40, 0), key=0)


def test_part_of_an_observation_is_refused_with_what_it_lacks(study):
    with pytest.raises(
        cb.errors.ObservationError,
        match=r"row of do\(X = 1\) lacks the columns Z; where only Y was measured, report its",
    ):
        study.tell({"X": 1.0}, {"Y": -1.0})


@pytest.mark.parametrize("path", ["study.json", Path("study.json")])
def test_path_in_place_of_the_text_of_a_study_is_refused(chain, path):
    with pytest.raises(
        cb.errors.StoreError, match=r"give the text of the file, Path\(...\).read_text"
    ):
        cb.Study.from_json(path, chain.observe(40, 0))


def test_one_outcome_is_singular(study):
    updated = study.tell({"X": 1.0}, -1.0)
    assert "1 outcome;" in repr(updated) and "0 outcomes;" in repr(study)
    assert updated.surprise.text.startswith("The outcome agrees with what was predicted")
