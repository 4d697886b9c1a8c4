"""The commands that look at a problem, and what all commands have in common.

Internals: the command line is called in this process.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import causal_bo_ppl as cb
from causal_bo_ppl.cli import app


@pytest.mark.heavy
def test_check_prints_every_card_writes_a_report_and_says_whether_it_may_be_used(greenhouse):
    result = greenhouse("check", "--report", "report.html")
    assert re.search("Verdict: (may be used|use with care)", result.stdout)
    assert "identification" in result.stdout and "Wrote report.html" in result.stderr
    page = (greenhouse.folder / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "crop" in page
    greenhouse("tell", "feed=25, water=1.5", "5.6")
    answer = greenhouse.json("check")["validation"]
    assert answer["verdict"] in result.stdout or answer["verdict"] == "use with care"


@pytest.mark.heavy
def test_check_fails_where_the_data_contradict_the_graph(greenhouse):
    (greenhouse.folder / "graph.txt").write_text(
        "nitrogen -> feed -> crop; water -> feed; water <-> crop"
    )
    (greenhouse.folder / "problem.toml").unlink()
    greenhouse(
        "init", "greenhouse.csv", "--graph", "graph.txt", "--objective", "max", "--set", "feed"
    )
    result = greenhouse("check", code=3)
    assert "Verdict: do not use" in result.stdout


def test_effects_are_those_of_python(greenhouse):
    problem = cb.Problem.read("problem.toml")
    study = cb.Study(problem, cb.Data.from_csv(problem, "greenhouse.csv"), key=0)
    expected = study.effects(
        [{"feed": 25}, {"feed": 20, "water": 1}], against={"feed": 10}, level=0.5
    )
    shown = greenhouse.json(
        "effects", "feed=25", "feed=20, water=1", "--against", "feed=10", "--level", "0.5"
    )
    assert [line["mean"] for line in shown["effects"]] == expected["mean"].tolist()
    assert [line["upper"] for line in shown["effects"]] == expected["upper"].tolist()
    assert "crop, 90 % intervals" in greenhouse("effects", "{}").stdout


def test_identify_prints_formulas_and_its_exit_code_says_whether_all_are_known(greenhouse):
    result = greenhouse("identify")
    assert "do(feed, water)\n    sum_{nitrogen} [P(crop | water, nitrogen)" in result.stdout
    path = greenhouse.folder / "problem.toml"
    (greenhouse.folder / "graph.txt").write_text(
        "feed -> crop; feed <-> crop; water -> crop; nitrogen -> crop"
    )
    shown = greenhouse.json("identify", code=3)
    assert {line["set"]: line["identifiable"] for line in shown["sets"]}["feed"] is False
    assert "not identifiable: latent causes join" in greenhouse("identify", code=3).stdout
    path.write_text(
        path.read_text().replace('sets = "mis"', 'sets = "mis"\nidentifiable_only = true')
    )
    greenhouse("identify")


def test_kernels_plots_and_reports_are_made(greenhouse):
    shown = greenhouse.json("kernels")
    assert shown["interventions"] == 8 and shown["errors"][0]["comparison"] == "jacobian - exact"
    assert 0 <= shown["errors"][0]["frobenius"] < 0.2
    greenhouse("tell", "feed=25", "5.4")
    for what, name in (("problem", "a.png"), ("response", "b.svg"), ("progress", "c.pdf")):
        greenhouse("plot", what, "-o", name)
        assert (greenhouse.folder / name).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert (
        "unknown plot 'progres'; did you mean 'progress'"
        in greenhouse("plot", "progres", "-o", "x.png", code=1).stderr
    )
    assert (
        "a picture is a .png, .svg or .pdf"
        in greenhouse("plot", "problem", "-o", "x", code=1).stderr
    )
    greenhouse("report")
    assert "feed" in (greenhouse.folder / "report.html").read_text()


def test_every_command_has_help_with_an_example_and_wrong_usage_is_2():
    names = [command.name for command in app.registered_commands]
    wanted = "init check identify effects kernels plot report ask tell retract best history"
    assert names == [*wanted.split(), "systems", "demo", "bench", "reproduce"]
    for name in names:
        shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [name, "--help"]).stdout
        assert f"Example: causal-bo {name}" in shown and "--debug" in shown
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(app, ["ask", "-n", "x"]).exit_code == 2
    assert CliRunner().invoke(app, ["--version"]).stdout == f"{cb.__version__}\n"


def test_errors_take_one_line_and_debug_raises(shell):
    result = shell("ask", code=1)
    assert result.stderr.startswith("error: there is no problem.toml; `causal-bo init data.csv`")
    assert result.stderr.count("\n") == 1
    raised = CliRunner().invoke(app, ["ask", "--debug"]).exception
    assert isinstance(raised, cb.errors.ArgumentError)


def test_an_error_that_is_not_ours_is_said_in_one_line_too(greenhouse, monkeypatch):
    def broken(*_, **__):
        raise TypeError("two\nlines")

    monkeypatch.setattr(cb.Study, "to_frame", broken)
    result = greenhouse("history", code=1)
    assert "TypeError: two lines; this should not happen" in result.stderr


def test_colours_are_for_terminals_and_help_is_quick(greenhouse):
    """In processes of their own, as a person would call it; seconds of the processor."""

    def run(*arguments, **environment):
        code = "import time; from causal_bo_ppl.cli import app\ntry: app()\nfinally: import sys; " \
               "sys.stderr.write(f'{time.process_time():.3f}')"  # fmt: skip
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False,
            cwd=greenhouse.folder, env=os.environ | environment,
        )  # fmt: skip

    done = run("--help", FORCE_COLOR="1", NO_COLOR="1")
    assert not re.search(r"\x1b\[(3[0-7]|9[0-7]|38)", done.stdout) and "history" in done.stdout
    assert float(done.stderr) < 0.5
    failed = run("ask", "--problem", "none.toml")
    assert failed.returncode == 1 and "\x1b" not in failed.stderr
    assert json.loads(run("systems", "--json").stdout)["format_version"] == 1
