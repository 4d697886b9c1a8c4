"""`causal-bo init`: from the columns of a table, however it is written, to a problem file."""

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

HEADER = "Datum;Luftmenge (m³/h);Sauerstoff [mg/L];Pumpe;NH4-N Ablauf (mg/L);Bemerkung\n"


def plant(folder, gaps=True):
    """A table as an office program writes it, in another language."""
    draws = np.random.default_rng(0)
    lines = [HEADER]
    for row in range(60):
        air, pump = 1200 + 150 * draws.normal(), int(draws.uniform() < 0.5)
        oxygen = 0.4 + 0.0016 * air + 0.1 * draws.normal()
        rest = 12 - 3 * oxygen - pump + 0.3 * draws.normal()
        cells = [
            f"{row % 28 + 1:02d}.03.2024",
            f"{air:.0f}",
            f"{oxygen:.2f}",
            str(pump),
            f"{rest:.2f}",
            "ok",
        ]
        cells[2] = "" if gaps and row == 7 else cells[2]
        lines.append(";".join(cells).replace(".", ",") + "\n")
    (folder / "plant.csv").write_text("".join(lines), encoding="cp1252")
    (folder / "plant.dag").write_text(
        'dag { "NH4-N Ablauf" [outcome]\n luftmenge [exposure]; Pumpe [exposure]; Frost [latent]\n'
        ' luftmenge -> Sauerstoff -> "NH4-N Ablauf"\n Pumpe -> "NH4-N Ablauf"; Last -> Sauerstoff\n'
        ' Last -> luftmenge\n Frost -> {luftmenge "NH4-N Ablauf"} }'
    )


def test_a_table_of_an_office_program_and_a_graph_of_dagitty_become_a_problem(shell):
    plant(shell.folder)
    result = shell("init", "plant.csv", "--graph", "plant.dag")
    assert "Without a column, so taken to be unobserved: Last." in result.stderr
    assert "Fill in line 6 of problem.toml" in result.stderr
    path = shell.folder / "problem.toml"
    text = path.read_text(encoding="utf-8")
    assert "Sauerstoff: 1" in text and 'encoding = "cp1252"' in text and 'decimal = ","' in text
    assert "line 6, objective: it must be" in shell("ask", code=1).stderr
    text = text.replace('objective = ""', 'objective = "min"')
    path.write_text(text, encoding="utf-8")
    problem = cb.Problem.read(path)
    expected = (
        "luftmenge -> Sauerstoff -> NH4; Pumpe -> NH4; luftmenge <-> NH4; luftmenge <-> Sauerstoff"
    )
    assert str(problem.graph) == str(
        cb.CausalGraph.from_edges(
            [
                ("luftmenge", "Sauerstoff"),
                ("Sauerstoff", "NH4-N Ablauf"),
                ("Pumpe", "NH4-N Ablauf"),
            ],
            [("luftmenge", "NH4-N Ablauf"), ("luftmenge", "Sauerstoff")],
        )
    ), expected
    assert problem.target == "NH4-N Ablauf" and problem.levels == {"Pumpe": (0.0, 1.0)}
    air = pd.read_csv(shell.folder / "plant.csv", sep=";", encoding="cp1252")["Luftmenge (m³/h)"]
    assert problem.domains["luftmenge"] == (air.min(), air.max())
    assert problem.units == {"luftmenge": "m³/h", "Sauerstoff": "mg/L", "NH4-N Ablauf": "mg/L"}
    refused = shell("effects", "Pumpe=1", code=1)
    assert "missing values in 1 of 60 observations (Sauerstoff: 1)" in refused.stderr


def test_observations_with_gaps_are_left_out_where_the_file_says_so(shell):
    plant(shell.folder)
    (shell.folder / "plant.dag").write_text(
        'dag { luftmenge -> Sauerstoff -> "NH4-N Ablauf"; Pumpe -> "NH4-N Ablauf" }'
    )
    shell("init", "plant.csv", "--graph", "plant.dag", "--objective", "min", "--set", "Pumpe")
    path = shell.folder / "problem.toml"
    path.write_text(path.read_text("utf-8").replace('"refuse"', '"drop"'), encoding="utf-8")
    result = shell("effects", "Pumpe=1", "--against", "Pumpe=0")
    assert "1 of 60 observations have missing values and are left out" in result.stderr
    shown = shell.json("effects", "Pumpe=1", "--against", "Pumpe=0")["effects"][0]
    assert -1.3 < shown["mean"] < -0.7  # the table was made with -1
    text = (shell.folder / "plant.csv").read_text("cp1252")
    (shell.folder / "plant.csv").write_text(
        text.replace("12,00", "12,x", 1).replace(";1;", ";ja;", 1), "cp1252"
    )
    assert (
        "cells that are no numbers, the first is 'ja'" in shell("effects", "Pumpe=1", code=1).stderr
    )


def test_without_a_graph_the_file_lists_the_columns_and_says_what_is_missing(shell):
    result = shell("init", "greenhouse.csv")
    text = (shell.folder / "problem.toml").read_text()
    assert text.count("FILL IN") == 3 and "Fill in line 5, 6," in result.stderr
    assert "# domain = [" in text and "one of feed, water, nitrogen, crop" in text
    refused = shell("check", code=1)
    assert "problem.toml, line" in refused.stderr
    text = text.replace('target = ""', 'target = "crop"').replace(
        'objective = ""', 'objective = "max"'
    )
    text = text.replace("nitrogen\ncrop\n", "feed -> nitrogen -> crop; water -> crop\n", 1)
    text = text.replace('"""  # FILL IN: lines such as cause -> effect', '"""')
    text = text.replace("# domain = [0.05", "domain = [0.05")
    lines = text.split("\n")
    feed = next(k for k, line in enumerate(lines) if line == "[variables.feed]")
    lines[feed + 1] = lines[feed + 1].removeprefix("# ")
    (shell.folder / "problem.toml").write_text("\n".join(lines))
    assert list(cb.Problem.read("problem.toml").domains) == ["feed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.csv",), "none.csv cannot be read: No such file"),
        (("greenhouse.csv", "--graph", "none.txt"), "none.txt: none.txt cannot be read"),
        (("greenhouse.csv", "--target", "corp"), "unknown target 'corp'; did you mean 'crop'"),
        (("greenhouse.csv", "--objective", "most"), "--objective is max or min, got 'most'"),
        (("greenhouse.csv", "--graph", "graph.txt", "--set", "fed"), "unknown variable 'fed'"),
        (("greenhouse.csv", "--graph", "bad.txt"), "bad.txt: line 2 of the dagitty text"),
        (("greenhouse.csv", "--graph", "other.txt"), "no variable of other.txt is a column"),
        (("greenhouse.csv", "-o", "no/such/folder.toml"), "cannot be written: No such file"),
    ],
)
def test_what_cannot_begin_a_problem_is_refused(shell, arguments, message):
    (shell.folder / "bad.txt").write_text("dag {\n feed -- crop }")
    (shell.folder / "other.txt").write_text("a -> b")
    result = shell("init", *arguments, code=1)
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert not (shell.folder / "problem.toml").exists()


def test_nothing_is_overwritten(greenhouse):
    before = (greenhouse.folder / "problem.toml").read_bytes()
    assert "problem.toml exists" in greenhouse("init", "greenhouse.csv", code=1).stderr
    assert (greenhouse.folder / "problem.toml").read_bytes() == before


TRIAL = "Temp (°C),CO2 ppm,yield kg,yield total\n" + "".join(
    f"{t},{c},{t + c},{t}\n" for t, c in ((15, 400), (17, 420), (16, 390), (19, 450))
)


def test_a_unit_behind_the_name_of_a_variable_is_cut_off(shell):
    (shell.folder / "trial.csv").write_text(TRIAL.replace(",yield total", ",sum"), encoding="utf-8")
    (shell.folder / "model.dag").write_text(
        "dag { Temp -> yield; CO2 -> yield; yield [outcome]; CO2 [exposure] }"
    )
    shell("init", "trial.csv", "--graph", "model.dag", "--objective", "max")
    problem = cb.Problem.read(shell.folder / "problem.toml")
    assert problem.target == "yield" and not problem.graph.bidirected
    assert problem.units == {"Temp": "°C", "CO2": "ppm", "yield": "kg"}


def test_an_outcome_of_the_graph_without_a_column_is_refused(shell):
    """Two columns begin with its name; it is not taken to be latent, nor another the target."""
    (shell.folder / "trial.csv").write_text(TRIAL, encoding="utf-8")
    (shell.folder / "model.dag").write_text("dag { Temp -> yield; CO2 -> yield; yield [outcome] }")
    result = shell("init", "trial.csv", "--graph", "model.dag", "--objective", "max", code=1)
    assert "model.dag marks yield as outcome or exposure, and no column of trial.csv" in (
        result.stderr
    )
    assert not (shell.folder / "problem.toml").exists()
