"""The commands of a study: ask, tell, retract, best and history, and the file in which it lies.

Internals: the command line is called in this process, and its lock is held by this test.
"""

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.cli.workspace import hold_lock


def python_study(folder, key=0):
    problem = cb.Problem.read(folder / "problem.toml")
    return cb.Study(problem, pd.read_csv(folder / "greenhouse.csv"), key=key)


def test_suggestions_are_those_of_python_with_the_same_key(greenhouse):
    study = python_study(greenhouse.folder, key=3)
    for number, outcome in enumerate((6.4, 6.9), 1):
        asked = greenhouse.json("ask", "--key", 3)["suggestions"]
        expected = study.ask()
        [shown] = asked
        assert shown["number"] == expected.number == number
        assert shown["intervention"] == expected.intervention
        assert (shown["mean"], shown["sd"]) == (expected.mean, expected.sd)
        assert (shown["lower"], shown["upper"]) == expected.interval(0.9)
        assert shown["why"] == str(expected.why)
        greenhouse("tell", number, outcome)
        study = study.tell(expected, outcome)
        best = greenhouse.json("best")["best"]
        assert (best["mean"], best["sd"]) == (study.best.mean, study.best.sd)
    batch = greenhouse.json("ask", "-n", 3, "--fix", "water=1")["suggestions"]
    expected = study.ask(3, fixed={"water": 1.0})
    assert [each["intervention"] for each in batch] == [each.intervention for each in expected]
    assert [each["number"] for each in batch] == [3, 4, 5]
    text = (greenhouse.folder / "study.json").read_text()
    again = cb.Study.from_json(text, pd.read_csv(greenhouse.folder / "greenhouse.csv"))
    assert again.best.mean == study.best.mean


def test_the_same_question_has_the_same_answer_until_something_is_recorded(greenhouse):
    first = greenhouse.json("ask")
    before = (greenhouse.folder / "study.json").read_bytes()
    assert greenhouse.json("ask") == first
    assert (greenhouse.folder / "study.json").read_bytes() == before
    more = greenhouse("ask", "--more")
    assert "Under way: 1: do(feed = 29.9, water = 1.78)" in more.stderr and "2. do(" in more.stdout
    greenhouse("tell", 1, "--cancel")
    assert [each["number"] for each in greenhouse.json("history")["open"]] == [2]
    assert [each["number"] for each in greenhouse.json("ask", "--more")["suggestions"]] == [3]
    greenhouse("tell", 3, "--cancel")
    pending = python_study(greenhouse.folder).ask(2)[:1]
    greenhouse("tell", 2, 6.5)
    assert greenhouse.json("history")["records"][0]["suggestion"] == 2
    assert pending[0].intervention == first["suggestions"][0]["intervention"]


def test_outcomes_replicates_whole_rows_failures_and_corrections_are_recorded(greenhouse):
    greenhouse("ask", "-n", 2)
    greenhouse("tell", 1, "6.4,6.9", "--who", "ann")
    greenhouse("tell", 2, "--failed", "leaked")
    greenhouse("tell", "feed=25, water=1.5", "nitrogen=118, crop=5.6")
    greenhouse("tell", "{}", '{"feed": 20, "water": 1, "nitrogen": 130, "crop": 4.9}')
    (greenhouse.folder / "new.csv").write_text(
        "feed,water,nitrogen,crop,do(feed)\n10,1.2,150,4.1,1\n12,1.0,149,4.2,0\n"
    )
    greenhouse("tell", "--rows", "new.csv")
    answer = greenhouse.json("tell", "feed=30", -5, "--sure")
    assert answer["recorded"][0]["outcome"] == -5 and answer["recorded"][0]["do(feed)"] == 30
    greenhouse("retract", 8, "typing error")
    table = greenhouse.json("history")["records"]
    assert [line["status"] for line in table] == [
        *["observed"] * 2, "failed", *["observed"] * 4, "retracted",
    ]  # fmt: skip
    assert [line["outcome"] for line in table[:2]] == [6.4, 6.9]
    assert "leaked" in greenhouse("history").stdout and "typing error" in table[7]["note"]
    study = python_study(greenhouse.folder)
    study = study.tell(study.ask(), [6.4, 6.9]).tell(
        {"feed": 25, "water": 1.5}, {"nitrogen": 118, "crop": 5.6}
    )
    study = study.tell({}, {"feed": 20, "water": 1, "nitrogen": 130, "crop": 4.9})
    study = study.tell(pd.read_csv(greenhouse.folder / "new.csv"))
    assert greenhouse.json("best")["best"]["mean"] == pytest.approx(study.best.mean, rel=1e-9)


REFUSED = [
    (("tell",), "report a suggestion by its number, or what was set, or a table"),
    (("tell", "1"), "give either an outcome, or why there is none"),
    (("tell", "7", "6"), "there is no suggestion 7 in study.json (open: 1)"),
    (("tell", "1", "six"), "cannot read the outcome 'six'"),
    (("tell", "1", "60"), "report it with --sure"),
    (("tell", "feed", "6"), "cannot read 'feed'; write each variable once"),
    (("tell", "feed=1, feed=2", "6"), "write each variable once"),
    (("tell", "feed=x", "6"), "cannot read 'x' in 'feed=x' as a number"),
    (("tell", "fed=1", "6"), "unknown variable 'fed'; did you mean 'feed'"),
    (("tell", "--rows", "none.csv"), "none.csv cannot be read"),
    (("tell", "feed=1", "--cancel"), "--cancel needs the number of a suggestion"),
    (("retract", "1", "why"), "causal-bo history has 0 of them"),
    (("ask", "--fix", "water=100"), "water = 100"),
    (("ask", "--key", "5"), "was begun with another key than 5"),
    (("effects", "crop=1"), "crop"),
]


def test_what_cannot_be_recorded_is_refused_in_one_line(greenhouse):
    greenhouse("ask")
    before = (greenhouse.folder / "study.json").read_bytes()
    for arguments, message in REFUSED:
        result = greenhouse(*arguments, code=1)
        assert message in result.stderr and result.stderr.count("\n") == 1 and not result.stdout
    assert (greenhouse.folder / "study.json").read_bytes() == before


def test_a_negative_outcome_is_a_number_and_a_misspelt_option_is_not(greenhouse):
    greenhouse("tell", "feed=1", "-2.5e-1", "--sure")
    assert greenhouse.json("history")["records"][0]["outcome"] == -0.25
    assert "unexpected extra argument" in greenhouse("tell", "feed=1", "4", "--sur", code=2).stderr


def test_other_data_another_problem_or_other_settings_are_refused(greenhouse):
    greenhouse("ask")
    problem, table = (greenhouse.folder / name for name in ("problem.toml", "greenhouse.csv"))
    text, rows = problem.read_text(), table.read_text()
    table.write_text(rows + "20,1,120,5\n")
    assert "greenhouse.csv has other observations than when" in greenhouse("best", code=1).stderr
    table.write_text("\n".join([rows.split()[0], *reversed(rows.split()[1:])]) + "\n")
    greenhouse("best")  # in another order they are the same
    for old, new, message in (
        ('objective = "max"', 'objective = "min"', "poses another problem than when study.json"),
        ("# [settings]", '[settings]\nacquisition = "ei"', "[settings] of problem.toml differ"),
        ('sets = "mis"', 'sets = "mis"\nkey = 4', "was begun with another key than 4"),
    ):
        problem.write_text(text.replace(old, new, 1))
        assert message in greenhouse("ask", code=1).stderr
    problem.write_text(text.replace("[variables.feed]", '[variables.feed]\nunit = "mL"'))
    greenhouse("ask")
    study = greenhouse.folder / "study.json"
    study.write_text(study.read_text().replace("0.", "1.", 1))
    assert "checksum differs" in greenhouse("ask", code=1).stderr
    greenhouse("ask", "--study", "other.json")


def test_a_busy_study_is_not_touched_and_the_lock_ends_with_its_process(greenhouse):
    path = greenhouse.folder / "study.json"
    with hold_lock(path, 0.0):
        result = greenhouse("ask", "--wait", 0.1, code=4)
        assert "another process is changing study.json" in result.stderr
    assert [each.name for each in greenhouse.folder.glob(".study*")] == []
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys, time; file = open(sys.argv[1], 'w'); "
         "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)",
         str(greenhouse.folder / ".study.json.lock")],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout.read(4) == b"held"
        greenhouse("ask", "--wait", 0.1, code=4)
    finally:
        holder.kill()
        holder.communicate()
    greenhouse("ask")  # the file of the killed process is still there, and its lock is not


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    path, counted = tmp_path / "study.json", tmp_path / "count"
    counted.write_text("0")

    def count(_):
        for _ in range(25):
            with hold_lock(path, 60.0):
                counted.write_text(str(int(counted.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert counted.read_text() == "200"
    with (tmp_path / "free").open("w") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_no_outcome_is_lost_where_several_processes_report_at_once(greenhouse):
    greenhouse("ask")
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "causal_bo_ppl.cli", "tell", f"feed={10 + each}",
             str(4 + each / 10), "--sure", "--wait", "300"],
            cwd=greenhouse.folder, env=environment, stderr=subprocess.PIPE,
        )
        for each in range(6)
    ]  # fmt: skip
    for each in started:
        _, errors = each.communicate(timeout=500)
        assert each.returncode == 0, errors
    records = greenhouse.json("history")["records"]
    assert sorted(line["do(feed)"] for line in records) == [10, 11, 12, 13, 14, 15]


def test_a_failed_write_leaves_the_study_as_it_was(greenhouse, monkeypatch):
    greenhouse("ask")
    before = (greenhouse.folder / "study.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "No space left on device" in greenhouse("tell", 1, 6.4, code=1).stderr
    monkeypatch.undo()
    assert (greenhouse.folder / "study.json").read_bytes() == before
    names = {each.name for each in greenhouse.folder.iterdir()}
    assert names == {"graph.txt", "greenhouse.csv", "problem.toml", "study.json"}


def test_a_study_that_python_wrote_goes_on(greenhouse):
    study = python_study(greenhouse.folder)
    path = greenhouse.folder / "study.json"
    path.write_text(study.tell({"feed": 25.0}, 5.4).to_json())
    assert greenhouse.json("best")["best"]["best_tried"] == {"feed": 25.0}
    assert greenhouse.json("ask")["suggestions"][0]["number"] == 2
    assert len(json.loads(path.read_text())["asked"]) == 1
