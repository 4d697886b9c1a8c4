"""Examples in docstrings and in the README run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


PACKAGE = ROOT / "causal_bo_ppl"
HEAVY = {"inference.netcdf"}
MODULES = [
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_docstrings_with_examples_are_found():
    assert len(MODULES) >= 15


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, marks=pytest.mark.heavy) if each in HEAVY else each for each in MODULES],
)
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(f"causal_bo_ppl.{module}"))
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.heavy
def test_examples_in_the_readme_run():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted >= 20 and result.failed == 0
