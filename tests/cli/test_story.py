"""The page about the command line: its story is run line by line, its example of a file is read."""

import re
import shlex
import shutil

import pandas as pd
import pytest
from cli.conftest import ROOT

import causal_bo_ppl as cb

PAGE = (ROOT / "docs" / "command_line.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.heavy
def test_the_story_of_ten_lines_runs_from_a_table_to_a_report(shell):
    shutil.copy(ROOT / "docs" / "greenhouse.dagitty", shell.folder)
    [story] = blocks("shell")
    lines = story.splitlines()
    assert len(lines) == 10
    shown = {}
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "causal-bo"
        shown[line] = shell(*arguments)
    assert "may be used" in shown[lines[1]].stdout
    problem = cb.Problem.read("problem.toml")
    study = cb.Study(problem, pd.read_csv("greenhouse.csv"), key=0)
    first = study.ask()
    assert str(first.why) in shown[lines[2]].stdout
    study = study.tell(first, 6.4).tell({"feed": 25, "water": 1.5}, {"nitrogen": 118, "crop": 5.6})
    batch = study.ask(2, fixed={"water": 1.0})
    assert [each.number for each in batch] == [3, 4]
    assert all(str(each.why) in shown[lines[5]].stdout for each in batch)
    study = study.tell(batch[0], failed="the pump leaked")
    assert f"{study.best.mean:.4g}" in shown[lines[8]].stdout
    pages = [(shell.folder / name).read_text() for name in ("check.html", "report.html")]
    assert all(page.startswith("<!doctype html>") for page in pages)


def test_the_example_of_a_problem_file_says_what_it_shows(tmp_path):
    [text] = blocks("toml")
    graph = "dag { feed -> nitrogen -> crop; water -> {nitrogen crop}; soil -> {feed crop} }"
    (tmp_path / "model.dagitty").write_text(graph)
    (tmp_path / "problem.toml").write_text(text)
    problem = cb.Problem.read(tmp_path / "problem.toml")
    assert problem.graph.spouses("feed") == ("crop",) and problem.units["feed"] == "mL per day"
    assert problem.known == {("water", "nitrogen"): -2.5} and len(problem.constraints) == 1
