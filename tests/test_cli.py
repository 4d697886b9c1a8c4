"""The command line: what it shows, writes and refuses.

Internals: the command line is called in this process.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import causal_bo_ppl as cb
from causal_bo_ppl import cli
from causal_bo_ppl.cli import app


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


@pytest.mark.parametrize("name", ["chain", "toy", "healthcare"])
def test_demo_shows_any_system_and_optimizes_linear_ones(name):
    result = run("demo", name, "--rounds", "3", "--observations", "30")
    assert result.exit_code == 0 and "Exact optimum" in result.output
    assert ("Best after 3 experiments" in result.output) == (name == "chain")


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
    assert "Validation: " in result.stdout and f"Report: {path}" in result.stdout
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.heavy
def test_readme_shows_how_the_demo_ends():
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["demo"])
    ending = "\n".join(result.stdout.strip().splitlines()[-3:])
    assert ending in (Path(__file__).parents[1] / "README.md").read_text()


def positive(queries):
    return (queries.value >= 0).all(axis=1)


def test_levels_constraints_and_rules_of_a_problem_are_shown(monkeypatch, capsys):
    chain = cb.models.load("chain")
    problem = cb.Problem(
        chain.problem.graph,
        "Y",
        domains={"X": cb.Levels([0, 2.5, 5]), "Z": (0, 5)},
        sets=2,
        constraints=[cb.LinearConstraint({"X": 1, "Z": 2}, upper=9, when="all")],
        feasible=positive,
    )
    monkeypatch.setattr(cli, "console", Console(width=120, highlight=False))
    cli.show(replace(chain, problem=problem))
    shown = capsys.readouterr().out
    for words in (
        "0, 2.5, 5",
        "X + 2 Z <= 9, where all are set",
        "where positive(queries) is true",
    ):
        assert words in shown
    cli.show(chain)
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
