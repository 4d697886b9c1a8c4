"""How do methods compare over many seeds: by cost, by outcomes, by size of sets, and in pairs?

Each function takes a table of summaries, such as quartiles over seeds. A method has one colour and
one kind of line in all panels of a picture.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, COLOURS, GREY, INK

QUARTILES = ["lower", "median", "upper"]
GAP_LABELS = {"recommended": "of the recommended intervention", "tried": "of the best tried"}
METHOD_LINES = list(product((("-", "o"), ("--", "s"), ("-.", "^")), COLOURS))  # of methods in turn
DOTTED_LINES = list(product((":", (0, (1, 4))), COLOURS[::-1]))  # of methods without experiments
MOST_COLUMNS, PANEL = 3, (4.0, 2.9)  # panels side by side at most, and the inches of one
ZERO_GAP = 1e-9  # a gap that is not larger counts as 0
MOST_DECADES = 5  # decades that an axis with 0 shows at most; it is linear below
LINEAR_SPREAD = 30.0  # largest over smallest gap, up to which an axis is linear
LINEAR_ERRORS = 8.0  # the same for errors that are all positive
Looks = dict[str, dict[str, Any]]  # the keyword arguments of the line of each method


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
        The columns are system, method, cost, lower, median and upper. `curves.attrs` may have
        "of", which is "recommended" or "tried", and "seeds".
    axes:
        Where to draw, as many Axes as there are systems; by default a new figure.

    Returns
    -------
    numpy.ndarray
        The Axes, one for every system in order of appearance.

    Raises
    ------
    DataError
        If the table is empty, lacks columns, or has numbers that are not finite.
    ArgumentError
        If the number of Axes is wrong.

    Examples
    --------
    >>> import pandas as pd
    >>> import causal_bo_ppl as cb
    >>> quartiles = {"lower": [0.4, 0.1], "median": [0.5, 0.2], "upper": [0.6, 0.3]}
    >>> curves = pd.DataFrame({"system": "toy", "method": "cbo", "cost": [1.0, 2.0]} | quartiles)
    >>> [ax] = cb.plots.draw_convergence(curves)
    >>> ax.get_xlabel()
    'cumulative cost of interventions'
    """
    curves = _read("draw_convergence", curves, ["system", "method", "cost"], QUARTILES)
    curves = curves.assign(cost=pd.to_numeric(curves["cost"], errors="coerce"))
    dotted = _without_experiments(curves)
    looks = _method_looks(curves["method"], dotted)
    groups = {str(name): table for name, table in curves.groupby("system", sort=False)}
    panels = _panels("draw_convergence", list(groups), axes, looks)
    for ax, table in zip(panels, groups.values(), strict=True):
        for method, curve in table.groupby("method", sort=False):
            _draw_curve(ax, curve.sort_values("cost", kind="stable"), looks[str(method)], dotted)
        most = float(np.nanmax([*table["cost"], 0.0])) or 1.0
        ax.set_xlim(-0.01 * most, 1.03 * most)
        _scale_gaps(ax, table[["median"]].to_numpy(), table[QUARTILES].to_numpy())
    labels = "cumulative cost of interventions", _gap_label(curves)
    return _finish(panels, labels, looks, curves, is_new=axes is None)


def draw_transfer(
    errors: pd.DataFrame, axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw held-out errors against the number of outcomes, by system and number of observations.

    Points are medians over seeds and bands are the middle half of the seeds. Budgets have equal
    distances, whatever they are. The vertical axis is logarithmic where all errors are positive
    and their medians differ by more than a factor of 8.

    Parameters
    ----------
    errors:
        The columns are system, method, observations (their number), budget, lower, median and
        upper. `errors.attrs` may have "seeds".
    axes:
        Where to draw, one for every system and number of observations; by default a new figure.

    Returns
    -------
    numpy.ndarray
        The Axes, one for every system and number of observations in order of appearance.

    Raises
    ------
    DataError
        If the table is empty, lacks columns, or has numbers that are not finite.
    ArgumentError
        If the number of Axes is wrong.

    Examples
    --------
    >>> import pandas as pd
    >>> import causal_bo_ppl as cb
    >>> quartiles = {"lower": [0.4, 0.1], "median": [0.5, 0.2], "upper": [0.6, 0.3]}
    >>> errors = {"system": "toy", "method": "cbo", "observations": 30, "budget": [0, 5]}
    >>> [ax] = cb.plots.draw_transfer(pd.DataFrame(errors | quartiles))
    >>> ax.get_ylabel()
    'error of held-out effects'
    """
    numbers = ["observations", "budget", *QUARTILES]
    errors = _read("draw_transfer", errors, ["system", "method"], numbers)
    looks = _method_looks(errors["method"])
    groups = {
        f"{system}, {count:,g} observations": table
        for (system, count), table in errors.groupby(["system", "observations"], sort=False)
    }
    budgets = np.unique(errors["budget"])
    panels = _panels("draw_transfer", list(groups), axes, looks)
    for ax, table in zip(panels, groups.values(), strict=True):
        for method, curve in table.groupby("method", sort=False):
            ordered, look = curve.sort_values("budget"), looks[str(method)]
            positions = np.searchsorted(budgets, ordered["budget"])
            low, middle, high = ordered[QUARTILES].to_numpy().T
            style.shade(ax, positions, low, high, look["color"], alpha=0.12, zorder=1)
            ax.plot(positions, middle, **look)
        ax.set_xticks(range(len(budgets)), [f"{count:g}" for count in budgets])
        ax.set_xlim(-0.25, len(budgets) - 0.75)
        middle, drawn = table["median"].to_numpy(), table[QUARTILES].to_numpy()
        if drawn.min() > ZERO_GAP and middle.max() > LINEAR_ERRORS * middle.min():
            ax.set_yscale("log")
            style.name_decades(ax.yaxis, *ax.get_ylim())
        else:
            _scale_gaps(ax, middle, drawn)
    labels = "outcomes of interventions", "error of held-out effects"
    return _finish(panels, labels, looks, errors, is_new=axes is None)


def draw_sizes(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw gaps to the optimum by the largest size of an intervention set, methods side by side.

    A point is the mean over seeds, the line through it its interval, and a bar across it the
    median. The vertical axis is that of `draw_convergence`.

    Parameters
    ----------
    table:
        The columns are size, method, mean, lower, upper and median. `table.attrs` may have "of"
        and "seeds" as in `draw_convergence`, and the name of the "interval".
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    DataError
        If the table is empty, lacks columns, or has numbers that are not finite.

    Examples
    --------
    >>> import pandas as pd
    >>> import causal_bo_ppl as cb
    >>> gaps = {"mean": 0.3, "lower": 0.2, "upper": 0.4, "median": 0.25}
    >>> table = pd.DataFrame({"size": [1, 2], "method": "cbo"} | gaps)
    >>> cb.plots.draw_sizes(table).get_ylabel()
    'gap to the optimum'
    """
    numbers = ["mean", "lower", "upper", "median"]
    table = _read("draw_sizes", table, ["method"], ["size", *numbers])
    looks, sizes = _method_looks(table["method"]), np.unique(table["size"])
    width = max(6.4, 0.16 * len(looks) * len(sizes) + 1.5)
    columns = _legend_columns(looks, width if ax is None else style.SHORT_LABEL * style.LETTER)
    ax = ax or style.new_axes(width, 3.6 + style.LINE_HEIGHT * -(-(len(looks) + 1) // columns))
    step = 0.8 / len(looks)
    for position, (method, look) in enumerate(looks.items()):
        rows, colour = table[table["method"] == method], look["color"]
        x = np.searchsorted(sizes, rows["size"]) + step * (position - (len(looks) - 1) / 2)
        ax.vlines(x, rows["lower"], rows["upper"], color=colour, lw=1.6)
        ax.hlines(rows["median"], x - 0.42 * step, x + 0.42 * step, color=colour, lw=1.6)
        mark = look | {"ls": "none", "ms": 5.5, "mec": "white", "mew": 0.6, "clip_on": False}
        ax.plot(x, rows["mean"], **mark)
    for between in np.arange(len(sizes) - 1) + 0.5:
        ax.axvline(between, color=GREY, lw=0.6, alpha=0.6)
    ax.plot([], [], marker="_", ms=9, mew=1.6, ls="none", color=GREY, label="median")
    ax.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    ax.set_xlim(-0.5, len(sizes) - 0.5)
    _scale_gaps(ax, table[["mean", "median"]].to_numpy(), table[numbers].to_numpy())
    title = f"mean, {table.attrs.get('interval', 'interval')} and median{_of_seeds(table)}"
    label = "largest size of an intervention set"
    return style.finish(ax, title, label, _gap_label(table), columns)


def draw_differences(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw paired differences of gaps with their intervals, one line for every comparison.

    A difference is the gap of `method` minus the gap of `against` with the same data and noise, so
    that a negative one means that `method` is better. Intervals that contain 0 are grey. Where
    means differ by more than a factor of 30, the axis is logarithmic on both sides of 0.

    Parameters
    ----------
    table:
        The columns are system, method, against, mean, lower, upper and seeds. `table.attrs` may
        have "of" as in `draw_convergence`, and the name of the "interval".
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    DataError
        If the table is empty, lacks columns, or has numbers that are not finite.

    Examples
    --------
    >>> import pandas as pd
    >>> import causal_bo_ppl as cb
    >>> row = {"system": "toy", "method": "gc-cbo", "against": "cbo", "mean": -0.3}
    >>> table = pd.DataFrame([row | {"lower": -0.4, "upper": -0.2, "seeds": 60}])
    >>> [label] = cb.plots.draw_differences(table).get_yticklabels()
    >>> label.get_text()
    'gc-cbo against cbo, 60 seeds'
    """
    numbers = ["mean", "lower", "upper", "seeds"]
    table = _read("draw_differences", table, ["system", "method", "against"], numbers)
    pairs = zip(table["method"], table["against"], table["seeds"], strict=True)
    names = [f"{method} against {against}, {seeds:g} seeds" for method, against, seeds in pairs]
    systems = [str(name) for name in table["system"]]
    starts, ends = style.equal_runs(systems)
    above = np.repeat(np.arange(1, len(starts) + 1), ends - starts)  # lines with names of systems
    positions = np.arange(len(names)) + above
    ax = style.list_axes(ax, names, 5.4, 0.27 * (len(names) + len(starts)) + 1.5, positions)
    ax.set_ylim(top=-1.4)
    mean, low, high = (table[name].to_numpy() for name in numbers[:3])
    colours = np.where(high < -ZERO_GAP, BLUE, np.where(low > ZERO_GAP, AMBER, GREY))
    bold: dict[str, Any] = {"fontsize": "small", "fontweight": "bold", "va": "center"}
    bold["transform"] = ax.get_yaxis_transform()
    for turn, (start, end) in enumerate(zip(starts, ends, strict=True)):
        header, last = positions[start] - 1, positions[end - 1]
        ax.text(0.01, header, style.plain(systems[start]), **bold)
        if turn % 2 == 0:
            ax.axhspan(header - 0.5, last + 0.5, color=GREY, alpha=0.12, lw=0, zorder=0)
    ax.axvline(0, color=INK, lw=1, zorder=1)
    ax.hlines(positions, low, high, color=colours, lw=2.2)
    ax.scatter(mean, positions, c=colours, s=34, zorder=3, edgecolors="white", linewidths=0.6)
    most = float(np.abs([mean, low, high]).max())
    threshold = _threshold(mean)
    if threshold is not None:
        ax.set_xscale("symlog", linthresh=threshold, linscale=0.7)
        ax.xaxis.get_major_locator().set_params(numticks=6)  # type: ignore[call-arg]
    limit = (1.1 if threshold is None else 1.5) * (most if most > ZERO_GAP else 1.0)
    ax.set_xlim(-limit, limit)  # a label fits on both sides
    side: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    ax.annotate("← the first is better", (0, -0.95), (-6, 0), ha="right", color=BLUE, **side)
    ax.annotate("the second is better →", (0, -0.95), (6, 0), color=AMBER, **side)
    gaps = f"gaps {GAP_LABELS.get(str(table.attrs.get('of', '')), '')}".strip()
    what = table.attrs.get("interval", "bootstrap interval")
    ax.set_xlabel(style.folded(f"paired difference of {gaps}: mean and {what}", 50))
    return ax


def _read(caller: str, table: object, names: list[str], numbers: list[str]) -> pd.DataFrame:
    """Return a table whose numbers are floats.

    Refuse anything but a table, an empty one, missing columns, and numbers that are not finite.
    """
    if not isinstance(table, pd.DataFrame):
        raise DataError(f"{caller} needs a pandas.DataFrame, got {type(table).__name__}")
    if missing := [name for name in [*names, *numbers] if name not in table.columns]:
        raise DataError(
            f"{caller} needs the columns {listed([*names, *numbers])}; missing: {listed(missing)}; "
            f"the table has {listed(table.columns)}"
        )
    if table.empty:
        raise DataError(f"{caller} needs at least one row, and this table is empty")
    read = table[numbers].apply(pd.to_numeric, errors="coerce").astype(float)
    for row, column in np.argwhere(~np.isfinite(read.to_numpy()))[:1]:
        raise DataError(
            f"{caller} needs finite numbers in {numbers[column]!r}, got "
            f"{table[numbers[column]].iloc[row]!r} in row {row}; omit the methods without a result"
        )
    return table.assign(**read, **{name: table[name].astype(str) for name in names[:2]})


def _without_experiments(curves: pd.DataFrame) -> set[str]:
    """Return the methods that have one cost only in every system; refuse costs that are missing."""
    costs = curves.groupby(["system", "method"])["cost"].agg(["size", "count"]).reset_index()
    incomplete = costs[(costs["size"] > 1) & (costs["count"] < costs["size"])]
    for row in incomplete.to_dict("records"):
        raise DataError(
            f"{row['method']!r} on {row['system']!r} has {row['size']} rows and some have no cost; "
            "only a method with a single row, which makes no experiments, may have none"
        )
    longest = costs.groupby("method")["size"].max()
    return {str(method) for method in longest.index[longest == 1]}


def _method_looks(methods: Iterable[str], dotted: Collection[str] = ()) -> Looks:
    """Return how the line of every method is drawn, in order of appearance.

    Earlier lines are wider, so that they are seen below later ones that are equal to them. Methods
    in `dotted` take their colours from the other end.
    """
    names = list(dict.fromkeys(methods))
    moving, still = ([name for name in names if (name in dotted) == d] for d in (False, True))
    looks: Looks = {}
    for position, (name, ((dashes, marker), colour)) in enumerate(zip(moving, cycle(METHOD_LINES))):  # noqa: B905
        width = 2.6 - 1.4 * position / max(len(moving) - 1, 1)
        looks[name] = {"color": colour, "ls": dashes, "marker": marker, "ms": 4.0, "lw": width}
    for name, (dots, colour) in zip(still, cycle(DOTTED_LINES)):  # noqa: B905
        looks[name] = {"color": colour, "ls": dots, "lw": 1.8}
    labels = dict(zip(names, style.distinct(names, style.LONG_LABEL), strict=True))
    return {name: look | {"label": labels[name]} for name, look in looks.items()}


def _legend_columns(looks: Looks, width: float) -> int:
    """Return how many columns of a legend fit into a width in inches, all about equally long."""
    longest = max(len(look["label"]) for look in looks.values())
    most = int(np.clip(width // (0.9 * style.LETTER * longest + 0.65), 1, 5))
    return -(-len(looks) // -(-len(looks) // most))


def _draw_curve(ax: Axes, curve: pd.DataFrame, look: Any, dotted: Collection[str]) -> None:
    """Draw the median of one method as steps with a dot at its end, and its band."""
    low, middle, high = curve[QUARTILES].to_numpy().T
    if curve["method"].iloc[0] in dotted:
        ax.axhspan(low[0], high[0], color=look["color"], alpha=0.06, lw=0, zorder=1)
        ax.axhline(middle[0], **look)
        return
    costs = curve["cost"].to_numpy()
    style.shade(ax, costs, low, high, look["color"], alpha=0.12, zorder=1, step="post")
    ax.step(costs, middle, where="post", markevery=[len(costs) - 1], **look)


def _gap_label(table: pd.DataFrame) -> str:
    """Return the label of an axis of gaps, with the kind of gap where the table has it."""
    of = GAP_LABELS.get(str(table.attrs.get("of", "")))
    return f"gap to the optimum,\n{of}" if of else "gap to the optimum"


def _threshold(values: np.ndarray) -> float | None:
    """Return below which power of ten an axis is linear, or None where all of it should be."""
    sizes = np.abs(values)
    seen = sizes[sizes > max(ZERO_GAP, 10.0**-MOST_DECADES * sizes.max())]
    if not seen.size or sizes.max() <= LINEAR_SPREAD * seen.min():
        return None
    return float(10.0 ** np.floor(np.log10(seen.min())))


def _scale_gaps(ax: Axes, middle: np.ndarray, gaps: np.ndarray) -> None:
    """Choose the vertical axis of gaps, on which 0 is seen, and draw a line at 0.

    middle: the means or medians, which decide whether the axis is logarithmic. gaps: all that is
    drawn, ends of intervals included.
    """
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    ax.margins(y=0.04)
    threshold = _threshold(middle)
    if np.abs(gaps).max() <= ZERO_GAP:
        ax.set_ylim(-0.04, 1.0)
    elif threshold is not None:
        ax.set_yscale("symlog", linthresh=threshold, linscale=0.7)


def _panels(
    caller: str, titles: list[str], given: Sequence[Axes] | np.ndarray | None, looks: Looks
) -> np.ndarray:
    """Return Axes with titles, given ones or of a new figure with space for a legend below."""
    lines = -(-len(looks) // _legend_columns(looks, PANEL[0] * min(len(titles), MOST_COLUMNS)))
    size: dict[str, Any] = {"most_columns": MOST_COLUMNS, "panel": PANEL}
    panels = style.panel_axes(caller, given, titles, below=0.5 + style.LINE_HEIGHT * lines, **size)
    for ax, title in zip(panels, titles, strict=True):
        style.entitle(ax, title)
    return panels


def _finish(
    panels: np.ndarray, labels: tuple[str, str], looks: Looks, table: pd.DataFrame, *, is_new: bool
) -> np.ndarray:
    """Label the axes, add one legend for all panels below them, and a title to a new figure."""
    figure = panels[0].figure
    for ax in panels:
        position = ax.get_subplotspec()
        ax.tick_params(labelsize="small")
        ax.set_xlabel(labels[0], fontsize="small")
        if position is None or position.is_first_col():
            ax.set_ylabel(labels[1], fontsize="small")
    if is_new:
        title = f"median and middle half{_of_seeds(table) or ' of the seeds'}"
        if len(panels) == 1:
            panels[0].set_title(f"{panels[0].get_title()}\n{title}", fontsize="medium")
        else:
            figure.suptitle(title, fontsize="medium")
    columns = _legend_columns(looks, figure.bbox.width / figure.dpi)
    lines = [Line2D([], [], **look) for look in looks.values()]
    return style.legend_of_panels(panels, columns, handles=lines, handlelength=3.2)


def _of_seeds(table: pd.DataFrame) -> str:
    """Return the number of seeds of a table as a text, which is empty where it is not given."""
    seeds = table.attrs.get("seeds")
    return "" if seeds is None else f" of {seeds} seeds"
