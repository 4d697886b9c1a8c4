"""Examples in docstrings and in the README run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "module",
    [
        "graph",
        "identification.effects",
        "identification.checking",
        "posterior.fitting",
        pytest.param("posterior.storage", marks=pytest.mark.heavy),
        "diagnostics.convergence",
        "responses",
        "kernels.jacobian",
        "kernels.exact",
        "kernels.monte_carlo",
        "theory.ranks",
        "theory.gains",
        "theory.bounds",
        "theory.constants",
        "theory.strength",
        "theory.paths",
        "theory.unexplored",
        "optimizer",
    ],
)
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(f"causal_bo_ppl.{module}"))
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.heavy
def test_examples_in_the_readme_run():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert result.attempted >= 20 and result.failed == 0
