"""The commands about systems whose truth is known.

Internals: the command line is called in this process.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import causal_bo_ppl as cb
from causal_bo_ppl.cli import app, simulations


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A demonstration without a name writes a report where it is called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.mark.slow
def test_demo_shows_graph_sets_and_exact_optimum():
    result = run("demo")
    assert result.exit_code == 0, result.output
    for shown in (
        "b1191 -> fixC",
        "218 intervention sets",
        "min E[b1583]",
        "0.336196",
        "3,488 vertices",
        "lacY = 4.67912",
        "218 of 218 sets identifiable and verified",
        "31 structural parameters of b1583, conjugate, 100 observations, exact",
        "3,488 vertices see 22 directions",
        "Best after 10 experiments",
    ):
        assert shown in result.output
    assert run("demo").stdout == result.stdout


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name",
    [
        "chain",
        "toy",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("synthetic", "healthcare")),
    ],
)
def test_demo_shows_any_system_and_learns_nonlinear_ones_with_processes(name):
    result = run("demo", name, "--rounds", "2", "--observations", "30")
    assert result.exit_code == 0, result.output
    assert "Exact optimum" in result.stdout and "Best after 2 experiments" in result.stdout
    assert ("directions of theta" in result.stdout) == (name == "chain")
    assert ("gp" in result.stdout.split("2  Learned")[1].splitlines()[0]) == (name != "chain")


@pytest.mark.heavy
def test_demo_learns_under_latent_confounding():
    result = run("demo", "funnel", "--rounds", "2")
    assert result.exit_code == 0 and "wishart, 100 observations, exact" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chain", "--observations", "3"), "only 3 rows"),
        (("toyy",), "did you mean 'toy'"),
    ],
)
def test_errors_are_shown_with_a_remedy_and_without_a_traceback(arguments, message):
    result = run("demo", *arguments)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output


@pytest.mark.heavy
def test_odd_option_is_an_error_without_a_traceback():
    for arguments in (
        ["--target", "yaeM"],
        ["toy", "--no-parents"],
        ["ecoli70", "--target", "[/x]"],
        ["toy", "--seed", "3"],
    ):
        result = run("demo", *arguments)
        assert (
            result.exit_code == 1 and "error:" in result.output and "Traceback" not in result.output
        )
    assert "[/x]" in run("demo", "ecoli70", "--target", "[/x]").output
    assert "ecoli70-yaeM" in run("demo", "ecoli70", "--rounds", "1").output


def test_demo_ends_with_a_report_and_says_where_it_is(tmp_path):
    path = tmp_path / "new" / "demo.html"
    result = run("demo", "chain", "--rounds", "1", "--report", str(path))
    assert "Validation: " in result.output and f"Report: {path}" in result.output
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.heavy
def test_readme_shows_how_the_demo_ends(folder):
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["demo"])
    ending = "\n".join(result.stdout.strip().splitlines()[-3:])
    assert (folder / "demo-report.html").read_text().startswith("<!doctype html>")
    assert ending in (Path(__file__).parents[2] / "README.md").read_text()


def positive(queries):
    return (queries.value >= 0).all(axis=1)


def test_levels_constraints_and_rules_of_a_problem_are_shown(capsys):
    chain = cb.models.load("chain")
    problem = cb.Problem(
        chain.problem.graph,
        "Y",
        domains={"X": cb.Levels([0, 2.5, 5]), "Z": (0, 5)},
        sets=2,
        constraints=[cb.LinearConstraint({"X": 1, "Z": 2}, upper=9, when="all")],
        feasible=positive,
    )
    simulations.show_system(replace(chain, problem=problem))
    shown = capsys.readouterr().out
    for words in (
        "0, 2.5, 5",
        "X + 2 Z <= 9, where all are set",
        "where positive(queries) is true",
    ):
        assert words in shown
    simulations.show_system(chain)
    assert "levels" not in capsys.readouterr().out


def test_systems_are_listed():
    assert run("systems").output.split() == [
        "chain",
        "ecoli70",
        "funnel",
        "healthcare",
        "synthetic",
        "toy",
    ]
    listed = json.loads(run("systems", "--json").stdout)
    assert listed == {"format_version": 1, "systems": list(cb.models.names())}


@pytest.mark.heavy
def test_bench_compares_methods_on_a_system():
    options = ["--methods", "gc-cbo,bo", "--seeds", "2", "--rounds", "2", "--observations", "20"]
    result = run("bench", "chain", *options, "--workers", "1", "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [line["method"] for line in shown["methods"]] == ["gc-cbo", "bo"]
    assert shown["mechanisms"] == "linear" and not shown["failed"]
