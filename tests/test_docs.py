"""Examples in docstrings and in the README run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", ["graph"])
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(f"causal_bo_ppl.{module}"))
    assert result.attempted > 0 and result.failed == 0


def test_examples_in_the_readme_run():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted >= 10 and result.failed == 0


def test_readme_shows_the_demo_as_it_is():
    optimum = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5).optimum
    best = ", ".join(f"{name} = {value:.6g}" for name, value in optimum.intervention.items())
    assert f"{optimum.value:.6f} at do({best})" in (ROOT / "README.md").read_text()
