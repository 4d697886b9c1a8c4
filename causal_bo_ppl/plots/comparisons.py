"""How do methods compare over many seeds: by cost, by outcomes, by size of sets, and in pairs?

Each function takes a table of summaries, such as quartiles over seeds. A method has one colour and
one line style in all panels of a picture.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine

from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.plots.gap_axes import ZERO, scale_differences, scale_errors, scale_gaps
from causal_bo_ppl.plots.labels import (
    CUT,
    LETTER,
    LINE,
    SIDE,
    distinct,
    entitle,
    figure_beside,
    folded,
    legend_below,
    plain,
)
from causal_bo_ppl.plots.method_looks import Look, legend_columns, legend_line, method_looks
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, equal_runs

COST = "cumulative cost of interventions"
GAPS = {
    "recommended": "gap to the optimum,\nof what is recommended",
    "tried": "gap to the optimum,\nof the best tried",
}
QUARTILES = ("lower", "median", "upper")
HEADER: dict[str, Any] = {"fontsize": "small", "fontweight": "bold", "va": "center"}
ACROSS, PANEL = 3, (4.0, 2.9)  # panels side by side at most, and the inches of one


def draw_convergence(
    curves: pd.DataFrame, axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw the gap to the true optimum against the cost of interventions, for every system.

    Lines are medians over seeds, which hold from one cost to the next and end in a dot, and bands
    are the middle half of the seeds. A method with one cost only in every system makes no
    experiments and is a dotted horizontal line. Where medians differ by more than a factor of 30,
    the vertical axis is logarithmic over at most five decades and linear from there to 0, so that
    a gap of 0 is seen.

    Parameters
    ----------
    curves:
        The columns are system, method, cost, lower, median and upper. `curves.attrs` may say "of",
        which is "recommended" or "tried", and "seeds".
    axes:
        Where to draw, as many Axes as there are systems; by default a new figure.

    Returns
    -------
    numpy.ndarray
        The Axes, one for every system in order of appearance.
    """
    curves = _read("draw_convergence", curves, ("system", "method", "cost", *QUARTILES), QUARTILES)
    curves = curves.assign(cost=pd.to_numeric(curves["cost"], errors="coerce"))
    looks = method_looks(curves["method"], _without_experiments(curves))
    groups = {str(name): own for name, own in curves.groupby("system", sort=False)}
    panels = _panels("draw_convergence", list(groups), axes, looks)
    for ax, own in zip(panels, groups.values(), strict=True):
        for method, curve in own.groupby("method", sort=False):
            _draw_curve(ax, curve.sort_values("cost", kind="stable"), looks[str(method)])
        costs = own["cost"].to_numpy(float)
        most = float(np.max(costs[np.isfinite(costs)], initial=0.0)) or 1.0
        ax.set_xlim(-0.01 * most, 1.03 * most)
        scale_gaps(ax, own["median"].to_numpy(float), own[[*QUARTILES]].to_numpy(float))
    of = str(curves.attrs.get("of", ""))
    _name_axes(panels, COST, GAPS.get(of, f"gap to the optimum, {of}".removesuffix(", ")))
    _finish(panels, looks, curves, new=axes is None)
    return panels


def draw_transfer(
    errors: pd.DataFrame, axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw held-out errors against the number of outcomes, for every system and number of rows.

    Points are medians over seeds and bands are the middle half of the seeds. Budgets have equal
    distances, whatever they are. The vertical axis is logarithmic where all errors are positive
    and their medians differ by more than a factor of 8.

    Parameters
    ----------
    errors:
        The columns are system, method, rows, budget, lower, median and upper. `errors.attrs` may
        say "seeds".
    axes:
        Where to draw, one for every system and number of rows; by default a new figure.

    Returns
    -------
    numpy.ndarray
        The Axes, one for every system and number of rows in order of appearance.
    """
    numbers = ("rows", "budget", *QUARTILES)
    errors = _read("draw_transfer", errors, ("system", "method", *numbers), numbers)
    looks = method_looks(errors["method"])
    groups = {
        f"{system}, {rows:,g} rows": own
        for (system, rows), own in errors.groupby(["system", "rows"], sort=False)
    }
    budgets = np.unique(errors["budget"].to_numpy(float))
    panels = _panels("draw_transfer", list(groups), axes, looks)
    for ax, own in zip(panels, groups.values(), strict=True):
        for method, curve in own.groupby("method", sort=False):
            ordered, look = curve.sort_values("budget"), looks[str(method)]
            at = np.searchsorted(budgets, ordered["budget"].to_numpy(float))
            ax.fill_between(at, ordered["lower"], ordered["upper"], **_band(look))
            line = {"marker": look.marker, "ms": 4.0, "lw": look.width, "ls": look.dashes}
            ax.plot(at, ordered["median"], color=look.colour, label=look.label, **line)
        ax.set_xticks(range(len(budgets)), [f"{count:g}" for count in budgets])
        ax.set_xlim(-0.25, len(budgets) - 0.75)
        scale_errors(ax, own["median"].to_numpy(float), own[[*QUARTILES]].to_numpy(float))
    _name_axes(panels, "outcomes of interventions", "error of held-out effects")
    _finish(panels, looks, errors, new=axes is None)
    return panels


def draw_sizes(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw gaps to the optimum by the largest size of an intervention set, methods side by side.

    A point is the mean over seeds, the line through it its interval, and a bar across it the
    median. The vertical axis is that of `draw_convergence`.

    Parameters
    ----------
    table:
        The columns are size, method, mean, lower, upper and median. `table.attrs` may say "of" and
        "seeds" as in `draw_convergence`, and what the "interval" is.
    ax:
        Where to draw; by default a new figure.
    """
    numbers = ("size", "mean", "lower", "upper", "median")
    table = _read("draw_sizes", table, ("method", *numbers), numbers)
    looks = method_looks(table["method"])
    sizes = np.unique(table["size"].to_numpy(float))
    width = max(6.4, 0.16 * len(looks) * len(sizes) + 1.5)
    columns = legend_columns(looks, width if ax is None else CUT * LETTER)
    if ax is None:
        below = LINE * -(-(len(looks) + 1) // columns)
        ax = plt.figure(figsize=(width, 3.6 + below), layout="constrained").add_subplot()
    step = 0.8 / len(looks)
    for position, (method, look) in enumerate(looks.items()):
        own = table[table["method"].astype(str) == method]
        at = np.searchsorted(sizes, own["size"].to_numpy(float)) + step * (
            position - (len(looks) - 1) / 2
        )
        half = 0.42 * step
        ax.vlines(at, own["lower"], own["upper"], color=look.colour, lw=1.6)
        ax.hlines(own["median"], at - half, at + half, color=look.colour, lw=1.6)
        mark: dict[str, Any] = {"marker": look.marker, "ms": 5.5, "mec": "white", "ls": "none"}
        ax.plot(
            at, own["mean"], color=look.colour, label=look.label, mew=0.6, clip_on=False, **mark
        )
    for between in np.arange(len(sizes) - 1) + 0.5:
        ax.axvline(between, color=GREY, lw=0.6, alpha=0.6)
    ax.plot([], [], marker="_", ms=9, mew=1.6, ls="none", color=GREY, label="median")
    ax.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    ax.set(xlabel="largest size of an intervention set", xlim=(-0.5, len(sizes) - 0.5))
    middle = table[["mean", "median"]].to_numpy(float)
    scale_gaps(ax, middle, table[[*numbers[1:]]].to_numpy(float))
    of = str(table.attrs.get("of", ""))
    ax.set_ylabel(folded(GAPS.get(of, "gap to the optimum"), SIDE))
    what = str(table.attrs.get("interval", "interval"))
    entitle(ax, f"mean, {what} and median{_over_seeds(table)}")
    legend_below(ax, columns)
    return ax


def draw_differences(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw paired differences of gaps with their intervals, one line for every comparison.

    A difference is the gap of `method` minus the gap of `against` with the same data and noise, so
    that a negative one says that `method` is better. Intervals that hold 0 are grey. Where
    means differ by more than a factor of 30, the axis is logarithmic on both sides of 0.

    Parameters
    ----------
    table:
        The columns are system, method, against, mean, lower, upper and seeds. `table.attrs` may say
        "of" as in `draw_convergence`, and what the "interval" is.
    ax:
        Where to draw; by default a new figure.
    """
    numbers = ("mean", "lower", "upper", "seeds")
    table = _read("draw_differences", table, ("system", "method", "against", *numbers), numbers)
    names = [
        f"{method} against {against}, {seeds:g} seeds"
        for method, against, seeds in zip(
            table["method"], table["against"], table["seeds"], strict=True
        )
    ]
    systems = [str(name) for name in table["system"]]
    starts, ends = equal_runs(systems)
    if ax is None:
        ax, labels = figure_beside(names, 5.4, 0.27 * (len(names) + len(starts)) + 1.5)
    else:
        labels = distinct(names, CUT)
    above = np.repeat(np.arange(1, len(starts) + 1), ends - starts)  # lines with names of systems
    positions = np.arange(len(names)) + above
    mean, low, high = (table[name].to_numpy(float) for name in ("mean", "lower", "upper"))
    colours = np.where(high < -ZERO, BLUE, np.where(low > ZERO, AMBER, GREY))
    for turn, (start, end) in enumerate(zip(starts, ends, strict=True)):
        header, last = positions[start] - 1, positions[end - 1]
        ax.text(0.01, header, plain(systems[start]), transform=ax.get_yaxis_transform(), **HEADER)
        if turn % 2 == 0:
            ax.axhspan(header - 0.5, last + 0.5, color=GREY, alpha=0.12, lw=0, zorder=0)
    ax.axvline(0, color=INK, lw=1, zorder=1)
    ax.hlines(positions, low, high, color=colours, lw=2.2)
    ax.scatter(mean, positions, c=colours, s=34, zorder=3, edgecolors="white", linewidths=0.6)
    ax.set_yticks(positions, labels, fontsize="small")
    ax.set_ylim(positions[-1] + 0.6, -1.4)
    scale_differences(ax, mean, np.concatenate([mean, low, high]))
    side: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    ax.annotate("← the first is better", (0, -0.95), (-6, 0), ha="right", color=BLUE, **side)
    ax.annotate("the second is better →", (0, -0.95), (6, 0), color=AMBER, **side)
    of = {"recommended": " of what is recommended", "tried": " of the best tried"}
    what = str(table.attrs.get("interval", "bootstrap interval"))
    gaps = f"gaps{of.get(str(table.attrs.get('of', '')), '')}"
    ax.set_xlabel(folded(f"paired difference of {gaps}: mean and {what}", 50))
    return ax


def _read(who: str, table: object, columns: Iterable[str], numbers: Iterable[str]) -> pd.DataFrame:
    """Return a table whose numbers are floats.

    Refuse what is no table, has no rows, lacks columns, or has numbers that are not finite.
    """
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"{who} needs a pandas.DataFrame, got {type(table).__name__}")
    if missing := [name for name in columns if name not in table.columns]:
        raise DataError(
            f"{who} needs the columns {listed(columns)}; missing: {listed(missing)}; "
            f"the table has {listed(table.columns)}"
        )
    if table.empty:
        raise DataError(f"{who} needs at least one row, and this table is empty")
    read = {name: pd.to_numeric(table[name], errors="coerce").astype(float) for name in numbers}
    for name, values in read.items():
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(
                f"{who} needs finite numbers in {name!r}, got {table[name].iloc[row]!r} in row "
                f"{row}; leave out the methods that have no result"
            )
    return table.assign(**read)


def _without_experiments(curves: pd.DataFrame) -> set[str]:
    """Return the methods that have one cost only in every system; refuse costs that are missing."""
    counts = curves.groupby(["system", "method"])["cost"].agg(["size", "count"])
    lacking = counts[(counts["size"] > 1) & (counts["count"] < counts["size"])]
    if len(lacking):
        system, method = lacking.index[0]
        raise DataError(
            f"{method!r} on {system!r} has {lacking['size'].iloc[0]} rows and some have no cost; "
            "only a method with a single row, which makes no experiments, may have none"
        )
    longest = counts["size"].groupby("method").max()
    return {str(name) for name in longest.index[longest == 1]}


def _band(look: Look) -> dict[str, Any]:
    """Return how a band is drawn."""
    return {"color": look.colour, "alpha": 0.12, "lw": 0, "zorder": 1}


def _draw_curve(ax: Axes, curve: pd.DataFrame, look: Look) -> None:
    """Draw the median of one method as steps with a dot at its end, and its band."""
    costs = curve["cost"].to_numpy(float)
    low, middle, high = (curve[name].to_numpy(float) for name in QUARTILES)
    line: dict[str, Any] = {"color": look.colour, "ls": look.dashes, "label": look.label}
    if look.level:
        ax.axhspan(low[0], high[0], **{**_band(look), "alpha": 0.06})
        ax.axhline(middle[0], lw=look.width, **line)
        return
    ax.fill_between(costs, low, high, step="post", **_band(look))
    ends = {"marker": look.marker, "ms": 4.0, "markevery": [len(costs) - 1]}
    ax.step(costs, middle, where="post", lw=look.width, **ends, **line)


def _panels(
    who: str, titles: list[str], axes: Sequence[Axes] | np.ndarray | None, looks: dict[str, Look]
) -> np.ndarray:
    """Return Axes with titles, given ones or of a new figure with room for a legend below."""
    count, given = len(titles), None
    if axes is not None:
        given = np.asarray(axes, dtype=object).ravel()
        if len(given) != count:
            raise DataError(
                f"{who} has {count} panels ({listed(titles)}) and was given {len(given)} Axes"
            )
        for ax, title in zip(given, titles, strict=True):
            entitle(ax, title)
        return given
    rows = -(-count // ACROSS)
    columns = -(-count // rows)
    width, height = max(PANEL[0] * columns, 6.4), PANEL[1] * rows + 0.5
    below = LINE * -(-len(looks) // legend_columns(looks, width))
    figure, grid = plt.subplots(
        rows, columns, figsize=(width, height + below), layout="constrained", squeeze=False
    )
    for spare in grid.ravel()[count:]:
        spare.remove()
    for ax, title in zip(grid.ravel(), titles, strict=False):
        entitle(ax, title, int(width / columns / 0.09))
    return np.asarray(grid.ravel()[:count])


def _name_axes(panels: np.ndarray, across: str, up: str) -> None:
    """Label horizontal axes without a panel below, and vertical ones at the left."""
    for position, ax in enumerate(panels):
        where = ax.get_subplotspec()
        ax.tick_params(labelsize="small")
        below = where is not None and any(_is_below(ax, other) for other in panels[position + 1 :])
        if not below:
            ax.set_xlabel(across, fontsize="small")
        if where is None or where.is_first_col():
            ax.set_ylabel(folded(up, SIDE), fontsize="small")


def _is_below(ax: Axes, other: Axes) -> bool:
    """Return whether another panel stands in the same column of one grid."""
    one, two = ax.get_subplotspec(), other.get_subplotspec()
    if one is None or two is None or one.get_gridspec() is not two.get_gridspec():
        return False
    return bool(one.colspan.start == two.colspan.start and one.rowspan.start < two.rowspan.start)


def _finish(panels: np.ndarray, looks: dict[str, Look], table: pd.DataFrame, *, new: bool) -> None:
    """Explain the methods of all panels once, below them, and the lines above a new figure."""
    figure = panels[0].figure
    handles = [legend_line(look) for look in looks.values()]
    columns = legend_columns(looks, figure.bbox.width / figure.dpi)
    if new:
        words = f"median and middle half{_over_seeds(table) or ' of the seeds'}"
        if len(panels) == 1:
            panels[0].set_title(f"{panels[0].get_title()}\n{plain(words)}", fontsize="medium")
        else:
            figure.suptitle(plain(words), fontsize="medium")
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        look: dict[str, Any] = {"frameon": False, "fontsize": "small", "ncols": columns}
        figure.legend(handles=handles, loc="outside lower center", handlelength=3.2, **look)
    else:
        legend_below(panels[-1], 1, handles=handles, handlelength=3.2)


def _over_seeds(table: pd.DataFrame) -> str:
    """Return over how many seeds a table tells, or nothing where it does not say."""
    seeds = table.attrs.get("seeds")
    return "" if seeds is None else f" of {seeds} seeds"
