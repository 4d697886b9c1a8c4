"""Compare the results of today's code with the recorded ones; run by `make golden`."""

import json
from pathlib import Path

import pytest
from golden.cases import CASES
from golden.entries import find_differences

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
pytestmark = pytest.mark.golden


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_that_were_recorded(name):
    found = json.loads(json.dumps(CASES[name]()))
    differences = find_differences(RECORDED[name], found)
    assert not differences, "\n".join([f"{name}:", *differences])


def test_every_recorded_case_still_exists():
    assert list(RECORDED) == list(CASES)
