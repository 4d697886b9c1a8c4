"""The page on the paper's claims: its tables are the summaries, and its examples run."""

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
SUMMARIES = sorted(path.stem for path in (ROOT / "docs" / "summaries").glob("*.csv"))


@pytest.fixture(scope="module")
def claims():
    spec = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_reproduction_has_a_summary_and_a_figure():
    assert SUMMARIES == sorted(["theory", "transfer", "benchmarks", "sweep", "ablation", "noise"])
    for name in SUMMARIES:
        assert PAGE.with_name("summaries").joinpath(f"{name}.png").stat().st_size > 1_000
        assert f"summaries/{name}.png" in PAGE.read_text()


@pytest.mark.parametrize("name", SUMMARIES)
def test_tables_of_the_page_are_the_summaries_with_the_command_that_made_them(name, claims):
    assert claims.block(name) in PAGE.read_text()
    first = (ROOT / "docs" / "summaries" / f"{name}.csv").read_text().splitlines()[0]
    assert re.fullmatch(rf"# causal-bo reproduce {name}( --seeds \d+)?", first)
    assert f"`causal-bo reproduce {name}" in PAGE.read_text()


@pytest.mark.heavy
def test_examples_of_the_page_run():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 2 and result.failed == 0
