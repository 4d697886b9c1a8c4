"""Plots of comparisons over many seeds: what is drawn, where, and that it can be read."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from helpers.drawn_texts import faults, lines, texts
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

import causal_bo_ppl as cb

SYSTEMS = [
    "toy chain",
    "synthetic, as in the paper",
    "healthcare PSA",
    "ecoli70 yaeM",
    "ecoli70 b1583, without parents, size <= 5",
]
MOVING = [
    "bo",
    "cbo",
    "cbo-noprior",
    "gc-cbo",
    "gc-cbo, expected improvement",
    "gc-cbo, no coupling",
    "gc-cbo, fixed kernel",
    "gc-cbo, whole observations",
    "gc-cbo, Thompson",
    "gc-cbo, look-ahead",
    "discrepancy by evidence",
    "random ($)",
]
STILL = ["posterior mean, no experiments", "posterior mean, as many passive observations"]


def curves(systems=SYSTEMS, moving=MOVING, still=STILL, smallest=1e-9):
    """Gaps from 3 down to `smallest` or 0; `bo` is not on the last of all systems."""
    rows = []
    for position, system in enumerate(systems):
        for turn, method in enumerate(moving):
            if method == "bo" and system == SYSTEMS[-1]:
                continue
            costs = 1.0 + turn % 3 + 2.0 * np.arange(25)
            middle = np.geomspace(3.0, smallest, 25) ** (1 / (1 + turn % 4))
            if (position + turn) % 2:
                middle[15:] = 0.0
            table = {"cost": costs, "lower": 0.5 * middle, "median": middle, "upper": 2 * middle}
            rows.append(pd.DataFrame({"system": system, "method": method} | table))
        for method, cost in zip(still, (0.0, np.nan), strict=False):
            line = {"cost": cost, "lower": 0.1, "median": 0.2 + len(rows) / 1000, "upper": 0.4}
            rows.append(pd.DataFrame([{"system": system, "method": method} | line]))
    found = pd.concat(rows, ignore_index=True)
    found.attrs = {"of": "recommended", "seeds": 60}
    return found


def look(line):
    return to_hex(line.get_color()), line.get_linestyle(), line.get_marker()


def test_convergence_draws_every_median_as_steps_that_hold_until_the_next_cost():
    table = curves()
    panels = cb.plots.draw_convergence(table)
    assert [ax.get_title().replace("\n", " ") for ax in panels] == SYSTEMS
    for ax, system in zip(panels, SYSTEMS, strict=True):
        rows = table[table["system"] == system]
        drawn = lines(ax)
        assert set(drawn) == {name.replace("$", r"\$") for name in rows["method"]}
        for method, curve in rows.groupby("method"):
            line = drawn[method.replace("$", r"\$")]
            if method in STILL:
                assert line.get_linestyle() == ":"
                np.testing.assert_array_equal(line.get_ydata(), curve["median"].repeat(2))
                np.testing.assert_array_equal(line.get_xdata(), [0, 1])  # from side to side
            else:
                assert line.get_drawstyle() == "steps-post"
                np.testing.assert_array_equal(line.get_xdata(), curve["cost"])
                np.testing.assert_array_equal(line.get_ydata(), curve["median"])


def test_bands_of_convergence_are_the_quartiles_step_by_step():
    table = curves(SYSTEMS[:1], ["cbo"], STILL[:1])
    [ax] = cb.plots.draw_convergence(table)
    [band] = ax.collections
    corners = band.get_paths()[0].vertices
    cbo = table[table["method"] == "cbo"]
    for column in ("lower", "upper"):
        for cost, value in zip(cbo["cost"], cbo[column], strict=True):
            assert (np.abs(corners - [cost, value]).max(axis=1) < 1e-12).any()
    middle = cbo["upper"].iloc[3], cbo["cost"].iloc[4]  # the fourth holds until the fifth cost
    assert (np.abs(corners - middle[::-1]).max(axis=1) < 1e-12).any()
    [span] = [each for each in ax.patches if isinstance(each, Rectangle)]
    assert (span.get_y(), span.get_y() + span.get_height()) == pytest.approx((0.1, 0.4))


def test_a_shuffled_table_is_drawn_in_the_order_of_costs():
    table = curves(SYSTEMS[:1], ["cbo", "gc-cbo"], [])
    mixed = table.sample(frac=1.0, random_state=0)
    [ax] = cb.plots.draw_convergence(mixed)
    for method, line in lines(ax).items():
        rows = table[table["method"] == method]
        np.testing.assert_array_equal(line.get_xdata(), rows["cost"])
        np.testing.assert_array_equal(line.get_ydata(), rows["median"])


def test_fourteen_methods_look_different_and_each_the_same_in_all_panels():
    panels = cb.plots.draw_convergence(curves())
    looks: dict[str, set[object]] = {}
    for ax in panels:
        for label, line in lines(ax).items():
            looks.setdefault(label, set()).add(look(line))
    assert len(looks) == 14 and all(len(seen) == 1 for seen in looks.values())
    assert len({seen.pop()[:2] for seen in looks.values()}) == 14
    [legend] = panels[0].figure.legends
    named = dict(zip(texts(legend.get_texts()), legend.get_lines(), strict=True))
    for ax in panels:
        for label, line in lines(ax).items():
            assert look(named[label]) == look(line)
    assert faults(panels) == []


def test_a_gap_of_zero_is_seen_apart_from_the_smallest_named_gap():
    panels = cb.plots.draw_convergence(curves())
    panels[0].figure.draw_without_rendering()
    for ax in panels:
        ticks = [tick for tick in ax.get_yticks() if ax.get_ylim()[0] <= tick <= ax.get_ylim()[1]]
        assert ax.get_yscale() == "symlog" and 0.0 in ticks and len(ticks) >= 4
        bottom = ax.get_window_extent().y0
        pixels = [ax.transData.transform((0, tick))[1] - bottom for tick in ticks]
        assert pixels[0] >= 3 and np.diff(pixels).min() > 10
        assert [line for line in ax.lines if set(line.get_ydata()) == {0} and len(line.get_xdata())]


def test_gaps_of_one_size_have_a_linear_axis_from_zero():
    [ax] = cb.plots.draw_convergence(curves(SYSTEMS[:1], ["cbo", "bo"], [], smallest=0.5))
    low, high = ax.get_ylim()
    assert ax.get_yscale() == "linear" and -0.3 < low < 0 and high > 6
    assert ax.get_title() == "toy chain\nmedian and middle half of 60 seeds" and faults(ax) == []


@pytest.mark.parametrize("gap", [0.0, 1e-12, -1e-13])
def test_gaps_that_are_all_zero_lie_on_the_baseline(gap):
    table = curves(SYSTEMS[:1], ["cbo"], [])
    table[["lower", "median", "upper"]] = gap
    [ax] = cb.plots.draw_convergence(table)
    assert ax.get_ylim() == (-0.04, 1.0) and faults(ax) == []


def test_negative_gaps_are_seen():
    table = curves(SYSTEMS[:1], ["cbo", "gc-cbo"], [])
    table.loc[table.index[-3:], ["lower", "median", "upper"]] = -0.02
    [ax] = cb.plots.draw_convergence(table)
    assert ax.get_ylim()[0] < -0.02 and -0.01 in np.round(ax.get_yticks(), 6)
    assert faults(ax) == []


def test_convergence_labels_the_gap_that_it_draws():
    labels = {"recommended": "of the recommended intervention", "tried": "of the best tried"}
    for of, wanted in labels.items():
        table = curves(SYSTEMS[:1], ["cbo"], [])
        table.attrs = {"of": of}
        [ax] = cb.plots.draw_convergence(table)
        assert ax.get_ylabel() == f"gap to the optimum,\n{wanted}"
        assert ax.get_xlabel() == "cumulative cost of interventions"
    table.attrs = {}
    assert cb.plots.draw_convergence(table)[0].get_ylabel() == "gap to the optimum"


@pytest.mark.parametrize("layout", ["constrained", "compressed", None])
def test_given_axes_are_drawn_on(layout):
    figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout=layout)
    if layout is None:
        figure.subplots_adjust(bottom=0.45)
    table = curves(SYSTEMS[:2], ["cbo", "gc-cbo"])
    panels = cb.plots.draw_convergence(table, axes)
    assert list(panels) == list(axes) and plt.get_fignums() == [figure.number]
    assert faults(panels) == []
    with pytest.raises(
        cb.errors.ArgumentError, match="has 2 panels .toy chain, .* was given 1 Axes"
    ):
        cb.plots.draw_convergence(table, axes[:1])


def transfer():
    """Errors of four methods by outcomes, for two systems and two numbers of observations."""
    names = ["cbo-noprior", "cbo", "gc-cbo, linear kernel", "gc-cbo, nonlinear kernel"]
    rows = []
    for system in ("funnel, linear", "funnel, nonlinear and shared"):
        for count in (30, 100):
            for turn, method in enumerate(names):
                for budget in (0, 3, 6, 12, 24, 48):
                    error = 1.6 * (1 + budget / 3) ** (-0.3 * turn) * (30 / count) ** 0.5
                    rows.append((system, method, count, budget, 0.8 * error, error, 1.3 * error))
    columns = ["system", "method", "observations", "budget", "lower", "median", "upper"]
    return pd.DataFrame(rows, columns=columns)


def test_transfer_has_a_panel_for_every_system_and_number_of_observations():
    table = transfer()
    panels = cb.plots.draw_transfer(table)
    assert [ax.get_title().replace("\n", " ") for ax in panels] == [
        "funnel, linear, 30 observations",
        "funnel, linear, 100 observations",
        "funnel, nonlinear and shared, 30 observations",
        "funnel, nonlinear and shared, 100 observations",
    ]
    groups = table.groupby(["system", "observations"], sort=False)
    for ax, (_, rows) in zip(panels, groups, strict=True):
        assert texts(ax.get_xticklabels()) == ["0", "3", "6", "12", "24", "48"]
        assert ax.get_yscale() == "log" and len(ax.collections) == 4
        for method, line in lines(ax).items():
            curve = rows[rows["method"] == method]
            np.testing.assert_array_equal(line.get_xdata(), np.arange(6))
            np.testing.assert_array_equal(line.get_ydata(), curve["median"])
            assert look(line) == look(lines(panels[0])[method])
    assert faults(panels) == []


def test_errors_of_zero_are_seen_and_a_missing_budget_leaves_a_gap():
    table = transfer().query("observations == 30 and system == 'funnel, linear'")
    table = table[(table["method"] != "cbo") | (table["budget"] != 6)].copy()
    table.loc[table["budget"] == 48, ["lower", "median", "upper"]] = 0.0
    [ax] = cb.plots.draw_transfer(table)
    np.testing.assert_array_equal(lines(ax)["cbo"].get_xdata(), [0, 1, 3, 4, 5])
    assert ax.get_ylim()[0] < 0 and ax.get_yscale() != "log" and faults(ax) == []


def sizes(methods):
    rows = []
    for size in (2, 3, 5):
        for turn, method in enumerate(methods):
            mean = 0.4 / (1 + turn) ** 2 if (turn + size) % 3 else 0.0
            rows.append((size, method, mean, 0.5 * mean, 2 * mean, 0.7 * mean))
    table = pd.DataFrame(rows, columns=["size", "method", "mean", "lower", "upper", "median"])
    table.attrs = {"of": "tried", "seeds": 60, "interval": "95 % interval of the mean"}
    return table


@pytest.mark.parametrize("count", [2, 14])
def test_sizes_draw_means_intervals_and_medians_in_groups(count):
    methods = [*MOVING, *STILL][-count:]
    table = sizes(methods)
    ax = cb.plots.draw_sizes(table)
    drawn = lines(ax)
    assert texts(ax.get_xticklabels()) == ["2", "3", "5"]
    for turn, method in enumerate(methods):
        rows, line = table[table["method"] == method], drawn[method.replace("$", r"\$")]
        np.testing.assert_array_equal(line.get_ydata(), rows["mean"])
        np.testing.assert_array_equal(np.round(line.get_xdata()), [0, 1, 2])
        interval, median = ax.collections[2 * turn : 2 * turn + 2]
        ends = np.array([each[:, 1] for each in interval.get_segments()])
        np.testing.assert_array_equal(ends, rows[["lower", "upper"]])
        for bar, value, at in zip(
            median.get_segments(), rows["median"], line.get_xdata(), strict=True
        ):
            np.testing.assert_array_equal(bar[:, 1], value)
            assert bar[0, 0] < at < bar[1, 0]
    apart = np.array([drawn[name.replace("$", r"\$")].get_xdata()[0] for name in methods])
    assert (np.diff(apart) > 0.05).all() and ax.get_ylim()[0] < 0
    assert len({look(line)[::2] for line in drawn.values()}) == count + 1
    assert faults(ax) == []


def differences(systems, scale=1.0):
    rows = []
    for position, system in enumerate(systems):
        size = scale**position
        rows.append((system, "gc-cbo", "cbo", -0.3 * size, -0.4 * size, -0.2 * size, 60))
        rows.append(
            (system, "gc-cbo, whole observations", "gc-cbo", -0.1 * size, -0.3 * size, 0.1, 60)
        )
        rows.append((system, "gc-cbo, expected improvement", "gc-cbo", 0.2, 0.1, 0.3, 60))
        rows.append((system, "gc-cbo, fixed kernel", "gc-cbo", 0.0, 0.0, 0.0, 59))
    columns = ["system", "method", "against", "mean", "lower", "upper", "seeds"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_differences_have_a_line_each_and_labels_for_both_sides(scale):
    table = differences(SYSTEMS, scale)
    ax = cb.plots.draw_differences(table)
    labels = texts(ax.get_yticklabels())
    assert labels[:2] == [
        "gc-cbo against cbo, 60 seeds",
        "gc-cbo, whole observations against gc-cbo, 60 seeds",
    ]
    intervals, means = ax.collections
    ends = np.array([each[:, 0] for each in intervals.get_segments()])
    np.testing.assert_array_equal(ends, table[["lower", "upper"]])
    heights = np.array([each[0, 1] for each in intervals.get_segments()])
    np.testing.assert_array_equal(heights, ax.get_yticks())
    np.testing.assert_array_equal(means.get_offsets(), np.column_stack([table["mean"], heights]))
    better, unclear, worse, same = (to_hex(each) for each in intervals.get_colors()[:4])
    assert unclear == same and len({better, unclear, worse}) == 3
    assert [line.get_xdata() for line in ax.lines] == [[0, 0]]
    written = {text.get_text(): text for text in ax.texts}
    assert set(SYSTEMS) <= set(written)
    first, second = written["← the first is better"], written["the second is better →"]
    assert to_hex(first.get_color()) == better and to_hex(second.get_color()) == worse
    zero = ax.transData.transform((0, 0))[0]
    assert first.get_window_extent().x1 < zero < second.get_window_extent().x0
    assert ax.get_xscale() == ("linear" if scale == 1.0 else "symlog")
    assert faults(ax) == []


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_differences_on_one_side_of_zero_leave_room_for_the_label_of_the_other(sign):
    table = differences(SYSTEMS[:1]).iloc[:1].copy()
    low, mean, high = np.sort(sign * np.array([0.2, 0.3, 0.4]))
    table[["mean", "lower", "upper"]] = mean, low, high
    ax = cb.plots.draw_differences(table)
    assert faults(ax) == []
    inside = ax.get_window_extent()
    for text in ax.texts:
        box = text.get_window_extent()
        assert inside.x0 < box.x0 and box.x1 < inside.x1


def test_differences_fit_into_given_axes():
    _, ax = plt.subplots(figsize=(8, 5), layout="constrained")
    assert cb.plots.draw_differences(differences(SYSTEMS[:2]), ax) is ax and faults(ax) == []
    table = differences(SYSTEMS[-1:])
    table[["mean", "lower", "upper"]] = 0.0
    assert faults(cb.plots.draw_differences(table)) == []


TABLES = {
    "convergence": lambda: curves(SYSTEMS[:1], ["cbo"]),
    "transfer": transfer,
    "sizes": lambda: sizes(["cbo", "gc-cbo"]),
    "differences": lambda: differences(SYSTEMS[:1]),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_without_columns_rows_or_numbers_are_refused(name):
    draw, table = getattr(cb.plots, f"draw_{name}"), TABLES[name]()
    with pytest.raises(
        cb.errors.DataError, match=f"draw_{name} needs the col.*; missing: method, lower;"
    ):
        draw(table.drop(columns=["method", "lower"]))
    with pytest.raises(cb.errors.DataError, match=f"draw_{name} needs at least one row"):
        draw(table.iloc[:0])
    with pytest.raises(
        cb.errors.DataError, match=f"draw_{name} needs a pandas.DataFrame, got dict"
    ):
        draw(table.to_dict())
    table.loc[table.index[1], "upper"] = np.nan
    with pytest.raises(
        cb.errors.DataError, match="finite numbers in 'upper', got .*nan.* in row 1"
    ):
        draw(table)
    assert not plt.get_fignums()


def test_a_method_with_experiments_must_have_all_costs():
    table = curves(SYSTEMS[:1], ["cbo"], [])
    for missing in (np.nan, "unknown"):
        broken = table.astype({"cost": object})
        broken.loc[table.index[4], "cost"] = missing
        with pytest.raises(
            cb.errors.DataError, match="'cbo' on 'toy chain' has 25 rows and some have no"
        ):
            cb.plots.draw_convergence(broken)


def test_numbers_that_were_read_as_text_are_drawn_as_numbers():
    table = curves(SYSTEMS[:1], ["cbo"], [])
    [ax] = cb.plots.draw_convergence(table.astype(str))
    np.testing.assert_array_equal(lines(ax)["cbo"].get_xdata(), table["cost"])
    np.testing.assert_array_equal(lines(ax)["cbo"].get_ydata(), table["median"])
