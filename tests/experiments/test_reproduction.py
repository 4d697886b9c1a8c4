"""The paper's tables, computed again: small runs of each, and what is written.

Internals: single units of a reproduction are run, since a whole one takes hours, and the command
line is called in this process.
"""

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import causal_bo_ppl as cb
from causal_bo_ppl.cli import app
from causal_bo_ppl.experiments.comparison import origin_note
from causal_bo_ppl.experiments.execution import UnitRunner
from causal_bo_ppl.experiments.paper_checks import Transfer, draw_training, held_out, run_theory
from causal_bo_ppl.experiments.units import Loaded
from causal_bo_ppl.models import funnel

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(scope="module")
def theory(folder):
    return cb.experiments.reproduce("theory", quick=True, folder=folder, workers=1, progress=False)


def test_every_row_of_the_theory_has_its_structure(theory):
    rows = theory.table.set_index("quantity")
    checked = rows["holds in"][rows["must hold"] != ""]
    assert len(checked) == 12 and (checked == "2 of 2").all()
    assert rows.loc["bound by rank", "median"] == pytest.approx(7.068, abs=1e-3)
    assert rows.loc["bound by rank", "published"] == 7.068
    control = rows.loc["independent gain, causal", "median"]
    assert control < rows.loc["independent gain, RBF", "median"] / 2


def test_reproduction_writes_traces_tables_and_figures(theory, folder):
    ends = ("nc", "csv", "md", "png")
    assert {path.name for path in theory.files} == {f"theory-quick.{end}" for end in ends}
    with xr.open_dataset(folder / "theory-quick.nc") as stored:
        assert stored["value"].sizes["seed"] == 2
        rank = stored["value"].sel(quantity="rank").to_numpy()
    assert rank.tolist() == [2.0, 2.0]
    table = pd.read_csv(folder / "theory-quick.csv")
    assert len(table) == len(theory.table)
    text = (folder / "theory-quick.md").read_text()
    assert "`causal-bo reproduce theory --quick`" in text and "5.416" in text
    assert (folder / "theory-quick.png").read_bytes().startswith(b"\x89PNG")
    assert "s on 1 worker: a speed-up of" in repr(theory) and 0 < theory.wall <= theory.seconds
    assert theory.origin == "" and "<table" in theory._repr_html_()


def test_second_call_computes_nothing(theory, folder):
    again = cb.experiments.reproduce("theory", quick=True, folder=folder, workers=1, progress=False)
    assert again.busy == 0 and "computed before" in again.pace
    pd.testing.assert_frame_equal(again.table, theory.table)


def test_units_of_another_state_of_the_code_are_reported(theory, folder):
    with UnitRunner(folder, workers=1, progress=False) as runner:
        stored = run_theory([0, 1], runner).results
    assert origin_note(stored) == ""
    older = [stored[0], stored[1].assign_attrs(code="another")]
    assert "2 different states of the code** (the same versions, other source" in origin_note(older)
    newer = [stored[0], stored[1].assign_attrs(versions="jax 9")]
    assert "; jax 9)" in origin_note(newer)


def test_transfer_is_measured_on_sets_that_were_never_tried():
    problem = cb.models.load("funnel", seed=0).problem
    held, ends = held_out(problem, funnel.HELD_OUT)
    tried = draw_training(problem, funnel.TRAINING, 8, jax.random.key(0))
    sets = {tuple(each) for each in problem.interventions(held)}
    assert not sets & {tuple(each) for each in problem.interventions(tried)}
    assert len(ends) == len(funnel.HELD_OUT) - 1 and ends[:4] == [5, 10, 15, 20]
    for name, (low, high) in problem.domains.items():
        for query in problem.interventions(tried):
            assert low <= query.get(name, low) <= high


def test_transfer_at_budget_0_is_the_error_of_the_posterior_mean():
    """Computed independently: effects of `cb.effects` at the held-out grid, set by set."""
    measured = Transfer("funnel", "gc-cbo", 3, Loaded("funnel", {"seed": 3}), 60, (0, 4)).measure()
    system = cb.models.load("funnel", seed=3)
    data = system.observe(60, jax.random.split(jax.random.key(3), 3)[0])
    post = cb.fit(system.problem, data, method="wishart")
    errors = []
    for members in funnel.HELD_OUT:
        ticks = [np.linspace(*system.problem.domains[name], 5) for name in members]
        grid = [
            dict(zip(members, map(float, point), strict=True))
            for point in np.stack(np.meshgrid(*ticks), -1).reshape(-1, len(members))
        ]
        effects = cb.response(post)(post.mean, system.problem.queries(grid))
        errors.append(np.sqrt(np.mean((effects - system.effect(grid)) ** 2)))
    assert float(measured["error"][0]) == pytest.approx(np.mean(errors), rel=1e-6)
    assert float(measured["error"][1]) != pytest.approx(np.mean(errors), rel=1e-6)


def test_command_writes_what_the_function_does_and_prints_the_speed_up(theory, folder):
    result = CliRunner().invoke(
        app, ["reproduce", "theory", "--quick", "--folder", str(folder), "--workers", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "Quantities of the theory" in result.output and "2 of 2" in result.output
    assert "theory-quick.nc" in result.output and "computed before" in result.output


def test_unknown_reproduction_is_refused_with_the_known_ones(folder):
    with pytest.raises(cb.errors.ArgumentError, match="unknown reproduction 'tables'"):
        cb.experiments.reproduce("tables", folder=folder)
    result = CliRunner().invoke(app, ["reproduce", "tables", "--folder", str(folder)])
    assert result.exit_code == 1 and "benchmarks" in result.output + str(result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transfer", "benchmarks", "sweep", "ablation", "noise"])
def test_every_reproduction_runs_quickly(name, folder):
    found = cb.experiments.reproduce(name, quick=True, folder=folder, progress=False)
    assert not len(found.failed) and len(found.table) >= 6
    assert all(path.stat().st_size > 0 for path in found.files)
    ends = {path.suffix for path in found.files}
    assert ends == {".nc", ".csv", ".md", ".png"}
