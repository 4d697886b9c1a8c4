"""Tables over seeds, compared with values computed by hand from made-up traces.

Internals: tables and published figures are tested without the runs that they summarize.
"""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import causal_bo_ppl as cb
from causal_bo_ppl.experiments.comparison import (
    Result,
    as_markdown,
    bootstrap,
    for_screen,
    markdown,
)
from causal_bo_ppl.experiments.paper_checks import ABLATION, BENCHMARKS, SIZES, TRANSFER
from causal_bo_ppl.experiments.reproduction import (
    MAIN,
    benchmark_cases,
    lay_out,
    published_benchmark,
)

OPTIMUM = -2.0


def trace(method, seed, costs, tried, recommended=None, case="one", objective="min"):
    tried = np.array(tried, float)
    own = tried if recommended is None else np.array(recommended, float)
    sign = 1 if objective == "min" else -1
    columns = {
        "cost": np.array(costs, float),
        "tried": tried,
        "recommended": own,
        "outcome": OPTIMUM + sign * tried,
        "effect": OPTIMUM + sign * tried,
        "recommended_effect": OPTIMUM + sign * own,
        "set": np.array(["X"] * len(tried)),
    }
    return xr.Dataset(
        {name: ("experiment", values) for name, values in columns.items()},
        coords={"experiment": np.arange(1, len(tried) + 1)},
        attrs={
            "case": case,
            "method": method,
            "seed": seed,
            "optimum": OPTIMUM,
            "objective": objective,
            "seconds": 2.0,
            "warnings": "",
            "versions": "",
            "identity": f"{method}{seed}",
            "unit": '{"settings": {"noise": 0.0}}',
        },
    )


@pytest.fixture
def found():
    results = (
        trace("a", 0, [1, 2, 4], [1.0, 0.5, 0.0], [2.0, 0.5, 0.25]),
        trace("a", 1, [2, 3], [0.8, 0.2], [0.8, 0.4]),
        trace("a", 2, [1, 3], [0.6, 0.1], [0.6, 0.1]),
        trace("b", 0, [1, 2], [1.5, 1.0]),
        trace("b", 1, [1, 2], [1.5, 0.5]),
        trace("none", 0, [0], [np.nan], [0.7]),
        trace("none", 1, [0], [np.nan], [0.9]),
    )
    return cb.experiments.Comparison(
        results, pd.DataFrame(columns=["system", "method", "seed", "error"])
    )


def test_table_has_the_final_gaps_of_every_seed(found):
    table = found.table(epsilon=0.06).set_index("method")
    gaps = np.array([0.0, 0.2, 0.1])
    assert table.loc["a", "mean"] == pytest.approx(OPTIMUM + gaps.mean())
    assert table.loc["a", "sd"] == pytest.approx(gaps.std(ddof=1))
    assert table.loc["a", "median"] == pytest.approx(OPTIMUM + 0.1)
    assert table.loc["a", "recommended_mean"] == pytest.approx(np.mean([0.25, 0.4, 0.1]))
    assert table.loc["a", "tried_median"] == pytest.approx(0.1)
    assert table.loc["a", "share_optimal"] == pytest.approx(1 / 3)
    assert table.loc["a", "cost"] == pytest.approx(np.mean([4, 3, 3]))
    assert table.loc["a", "cost_within"] == 4  # the median gap is 0.2 at cost 3, then 0.1
    assert np.isnan(table.loc["b", "cost_within"])
    assert np.isnan(table.loc["none", "tried_mean"])
    assert table.loc["none", "recommended_mean"] == pytest.approx(0.8)


def test_curves_are_quartiles_of_step_functions_of_the_cost(found):
    """They begin where all seeds have begun, and a trace that ended keeps its last value."""
    curves = found.curves("tried").query("method == 'a'").set_index("cost")
    assert curves.index.tolist() == [2, 3, 4]
    assert curves.loc[2, "median"] == pytest.approx(0.6)  # of 0.5, 0.8, 0.6
    assert curves.loc[3, "median"] == pytest.approx(0.2)  # of 0.5, 0.2, 0.1
    assert curves.loc[4, "median"] == pytest.approx(0.1)  # of 0.0, 0.2, 0.1
    assert curves.loc[4, "lower"] == pytest.approx(0.05)
    assert curves.loc[4, "upper"] == pytest.approx(0.15)
    level = found.curves().query("method == 'none'")
    assert level["median"].tolist() == [pytest.approx(0.8)] and level["cost"].tolist() == [0]


def test_differences_are_of_pairs_that_share_a_seed(found):
    table = found.differences("a", "tried").set_index("method")
    assert table.loc["b", "seeds"] == 2
    assert table.loc["b", "mean"] == pytest.approx(np.mean([1.0 - 0.0, 0.5 - 0.2]))
    assert 0.3 <= table.loc["b", "lower"] <= table.loc["b", "mean"] <= table.loc["b", "upper"] <= 1
    assert "none" not in table.index  # it tried nothing
    assert "none" in found.differences("a")["method"].tolist()


def test_bootstrap_intervals_cover_the_mean_at_their_level():
    """400 sets of 40 differences with a true mean of 0.3."""
    draws, inside = np.random.default_rng(5), 0
    for _ in range(400):
        mean, low, high = bootstrap(draws.normal(0.3, 1.0, 40), 0.9)
        assert low < mean < high
        inside += low <= 0.3 <= high
    assert 0.83 <= inside / 400 <= 0.94


def test_effects_of_a_maximization_lie_below_the_optimum():
    found = cb.experiments.Comparison((trace("a", 0, [1], [0.5], objective="max"),), pd.DataFrame())
    assert found.units["effect"].tolist() == [OPTIMUM - 0.5]


def test_traces_hold_every_seed_padded(found):
    traces = found.traces
    assert traces.sizes == {"unit": 7, "experiment": 3}
    assert traces["tried"].sel(unit=1).to_numpy()[:2].tolist() == [0.8, 0.2]
    assert np.isnan(traces["tried"].sel(unit=1).to_numpy()[2])
    assert traces["seed"].to_numpy().tolist() == [0, 1, 2, 0, 1, 0, 1]


@pytest.mark.parametrize("call", ["curves", "differences"])
def test_unknown_gaps_and_methods_are_refused(found, call):
    arguments = ("a",) if call == "differences" else ()
    with pytest.raises(cb.errors.ArgumentError, match='"recommended" or "tried"'):
        getattr(found, call)(*arguments, "best")
    with pytest.raises(cb.errors.ArgumentError, match="unknown method 'c'"):
        found.differences("c")


def test_published_figures_stand_beside_ours(found):
    table = lay_out(found, lambda system, method: ABLATION.get("cbo") if method == "a" else None)
    first = table.set_index("method").loc["a"]
    assert first["published_mean"] == 0.7775
    assert first["published_gap"] == pytest.approx(0.7775 - 0.3183)
    assert np.isnan(table.set_index("method").loc["b", "published_mean"])
    written = Result(table, found.differences("a"), found.traces, found.failed, "Notes.", {})
    text = markdown("ablation", written, "causal-bo x")
    assert "`causal-bo x`" in text and "Notes." in text and "0.7775" in text and "in pairs" in text
    title, shown = for_screen(table)
    assert "gaps" in title and shown["published"].tolist() == ["0.4592", "-", "-"]


def test_tables_in_markdown_have_a_cell_for_every_number():
    table = pd.DataFrame({"a": ["x|y", "z"], "b": [1.23456, np.nan], "c": [3, 1e-17]})
    assert as_markdown(table).splitlines() == [
        "| a | b | c |",
        "| --- | --- | --- |",
        "| x\\|y | 1.2346 | 3 |",
        "| z | - | 0 |",
    ]


def test_comparison_is_written_with_its_figures(found, tmp_path):
    files = found.write(tmp_path / "new", "mine")
    names = {path.name for path in files}
    assert {"mine.nc", "mine.csv", "mine.md", "mine-tried.png", "mine-differences.csv"} <= names
    assert len(pd.read_csv(tmp_path / "new" / "mine.csv")) == 3
    with xr.open_dataset(tmp_path / "new" / "mine.nc") as kept:
        xr.testing.assert_equal(kept.load(), found.traces)
    with pytest.raises(cb.errors.ArgumentError, match="a name without folders"):
        found.write(tmp_path, "in/side")


def test_units_that_failed_are_written_too(found, tmp_path):
    lost = pd.DataFrame([{"system": "one", "method": "c", "seed": 3, "error": "no data"}])
    files = cb.experiments.Comparison(found.results, lost).write(tmp_path, "mine")
    assert "mine-failed.csv" in {path.name for path in files}
    assert "no data" in (tmp_path / "mine.md").read_text()
    found.write(tmp_path, "mine")
    assert not (tmp_path / "mine-failed.csv").exists()


def test_published_tables_agree_with_the_text_of_the_paper():
    """Ratios and gaps that the paper states in its text."""
    assert TRANSFER["linear", "gc-cbo"][-1] / TRANSFER["linear", "cbo"][-1] == pytest.approx(
        0.106, abs=5e-4
    )
    nonlinear = TRANSFER["nonlinear", "gc-cbo, nonlinear"][-1]
    assert nonlinear / TRANSFER["nonlinear", "cbo"][-1] == pytest.approx(0.082, abs=5e-4)
    assert BENCHMARKS["b1583", "gc-cbo"].gap == pytest.approx(0.0317)
    assert SIZES[5, "gc-cbo"].gap == 0 and ABLATION["gc-cbo"].gap == 0


def test_no_benchmark_costs_more_than_published():
    cases = benchmark_cases()
    for (system, method), published in BENCHMARKS.items():
        assert cases[system].by_method[method]["budget"] <= published.cost


def test_every_row_of_the_main_table_has_its_published_figures_or_none():
    pairs = [(name, method) for name in benchmark_cases() for method in MAIN]
    figures = {pair: published_benchmark(*pair) for pair in pairs}
    assert sum(each is not None for each in figures.values()) == len(BENCHMARKS)
    assert figures["yaeM, direct causes", "bo"] == BENCHMARKS["yaeM", "bo"]
    assert figures["yaeM", "bo"] is None and figures["yaeM", "no experiment"] is None
