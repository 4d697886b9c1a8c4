"""Examples in docstrings, in the README and in the guide run and print what they show."""

import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
from helpers.public_names import public_names

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[1]


PACKAGE = ROOT / "causal_bo_ppl"
HEAVY = {
    "diagnostics.overlap",
    "diagnostics.loo",
    "inference.posterior",
    "experiments.execution",
    "experiments.reproduction",
    "experiments.comparison",
}
MODULES = [
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]
MODULES += ["models", "models.networks"]  # a link, which is not followed


def test_docstrings_with_examples_are_found():
    assert len(MODULES) >= 15


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, marks=pytest.mark.heavy) if each in HEAVY else each for each in MODULES],
)
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(f"causal_bo_ppl.{module}"))
    assert result.attempted > 0 and result.failed == 0


METHODS = """
CausalGraph.parse CausalGraph.from_edges CausalGraph.read Problem
Problem.read Problem.to_toml Problem.queries Problem.grid Problem.sobol
Problem.vertices Data.from_frame Data.from_csv Data.from_parquet Posterior.draws Posterior.update
Posterior.to_datatree Posterior.save Posterior.load Settings Study Study.ask Study.tell
Study.effects Study.to_json Study.from_json
""".split()  # the classes and methods that an analyst needs first
FUNCTIONS = [name for name, value in public_names().items() if inspect.isfunction(value)]


@pytest.mark.parametrize("name", [*METHODS, *FUNCTIONS])
def test_docstring_has_parameters_returns_and_examples(name):
    found = reduce(getattr, name.split("."), cb)
    text = inspect.getdoc(found)
    sections = dict(re.findall(r"^(\w+)\n-+\n(.*?)(?=^\w+\n-+$|\Z)", text, re.M | re.S))
    takes = [each for each in inspect.signature(found).parameters if each not in ("self", "cls")]
    explained = re.findall(r"^(\S.*):$", sections.get("Parameters", ""), re.M)
    named = {each for line in explained for each in line.split(", ")}
    assert named == set(takes), named ^ set(takes)
    assert inspect.isclass(found) or sections["Returns"].strip()
    assert ">>> " in sections["Examples"]
    assert found.__module__.removeprefix("causal_bo_ppl.") in MODULES
    assert "Raises" in sections or not takes or name in METHODS


def blocks_of_the_readme(language):
    """The fenced blocks of the README in one language, without those that are doctests."""
    found = re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S
    )
    return [block for block in found if ">>> " not in block]


@pytest.mark.heavy
def test_readme_begins_with_a_study_that_another_process_continues(tmp_path, monkeypatch):
    """As a new user would: a table, a graph of three lines, ask, tell; then another process."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "greenhouse.csv", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    today, tomorrow = blocks_of_the_readme("python")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(today, "README.md", "exec"), {})  # noqa: S102
    done = subprocess.run(
        [sys.executable, "-c", tomorrow],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert [shown.getvalue(), done.stdout] == blocks_of_the_readme("text")
    code = [line for line in today.splitlines() if line and "import" not in line]
    assert len(code) <= 15


def test_readme_stays_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 220
    for name in ("README.md", "docs/guide.md", "docs/claims.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            path, _, position = target.partition("#")
            found = page.parent / path
            assert found.exists(), target
            assert not position or position in headings(found), target


def test_readme_lists_every_package_and_names_existing_tests():
    text = (ROOT / "README.md").read_text()
    tree = re.search(r"^causal_bo_ppl/\n(.*?)^```$", text, re.M | re.S)[1]
    listed = set(re.findall(r"(?<= )(\w+/|\w+\.py)(?=\s)", tree))
    found = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    found |= {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert found == listed - {"linear/", "gp/", "custom/"}
    named = re.findall(r"tests/[\w/]+\.py", text)
    assert len(named) > 8 and all((ROOT / name).is_file() for name in named)


def headings(page):
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, by ArviZ 0.8's compare
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        pytest.param("docs/guide.md", marks=pytest.mark.slow),
        pytest.param("docs/when_the_model_is_wrong.md", marks=pytest.mark.slow),
    ],
)
def test_examples_in_the_pages_run(name):
    result = doctest.testfile(str(ROOT / name), module_relative=False)
    assert result.attempted >= 10 and result.failed == 0
