"""Which colours, layouts, labels, ticks and matrices do all pictures share?

Names come from the columns of a table and may be long. A label that is shortened must still differ
from every other label of its picture.
"""

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from causal_bo_ppl.errors import ArgumentError, listed
from causal_bo_ppl.inputs import read_share

BLUE, AMBER, INK, GREY = "#2563eb", "#f59e0b", "#0f172a", "#94a3b8"
COLOURS = (BLUE, AMBER, INK, "#16a34a", "#db2777", "#7c3aed", "#0891b2")  # methods, groups, chains
EMPTY_CELL = "#e2e8f0"  # colour of cells outside the colour scale
LETTER, TITLE_LETTER, TICK_LETTER = 0.075, 0.085, 0.1  # widths of a letter in inches
LINE_HEIGHT, PADDING = 0.17, 0.14  # of a line of text, and gaps below an axis, in inches
LONG_LABEL, SHORT_LABEL = 64, 34  # letters of a label: in a new figure, and in given Axes
MATRIX_LABEL = 42  # letters of a label beside a matrix in a new figure
HORIZONTAL_LABEL, VERTICAL_LABEL = 50, 34  # letters in a line of the label of an axis
FEWEST_LETTERS = 9  # letters that a part of a shortened label keeps
MOST_LABELS = 45  # labelled rows of a matrix; above, every second, third, ... has a label
MOST_WRITTEN_CELLS = 8  # rows and columns up to which the cells of a matrix show their numbers
MOST_RANGES = 1.5  # ranges of the data that a picture shows above and below them
ASSIGNED_VALUE = re.compile(r" = (-?\d[\d.]*(?:e[+-]?\d+)?)(?=\)?$)")
SMALL_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": "small"}


def half_width(level: float) -> float:
    """Return half the width of a central Gaussian interval, in standard deviations."""
    return NormalDist().inv_cdf((1 + read_share("level", level)) / 2)


def require_result(caller: str, given: object, names: Iterable[str], maker: str) -> None:
    """Refuse what lacks the columns or variables that a result of the function `maker` has."""
    if not set(names) <= set(getattr(given, "data_vars", getattr(given, "columns", ()))):
        raise ArgumentError(f"{caller} needs the result of {maker}, got {type(given).__name__}")


def require_kind(caller: str, given: object, kind: type, advice: str) -> None:
    """Refuse what is not of a kind, with advice where one is found."""
    if not isinstance(given, kind):
        got = type(given).__name__
        raise ArgumentError(f"{caller} needs {kind.__name__}, got {got}; {advice}")


def new_axes(width: float, height: float) -> Axes:
    """Return the Axes of a new figure, whose size is given in inches."""
    return plt.figure(figsize=(width, height), layout="constrained").add_subplot()


def list_axes(
    ax: Axes | None,
    names: Sequence[str],
    width: float,
    height: float,
    positions: np.ndarray | None = None,
) -> Axes:
    """Return Axes with one horizontal line for each name, the first on top.

    New Axes are about `width` inches wide, beside the labels. positions: the heights of the lines,
    by default 0, 1, 2, ...
    """
    labels = distinct(names, LONG_LABEL if ax is None else SHORT_LABEL)
    ax = ax or new_axes(width + LETTER * max(map(len, labels), default=0), height)
    heights = np.arange(len(names)) if positions is None else positions
    ax.set_yticks(heights, labels, fontsize=_label_size(len(names)))
    ax.set_ylim(heights[-1] + 0.6, -0.6)
    return ax


def _label_size(count: int) -> str:
    """Return the font size of labels side by side, given their number."""
    return "small" if count <= MOST_LABELS // 2 else "x-small"


def panel_axes(
    caller: str,
    given: Axes | Sequence[Axes] | np.ndarray | None,
    titles: Sequence[str],
    *,
    most_columns: int,
    panel: tuple[float, float],
    below: float = 0.8,
    **options: Any,
) -> np.ndarray:
    """Return an Axes for each title: the given ones, or those of a new figure.

    panel: width and height of a new panel in inches. below: inches for legend and titles. options:
    keyword arguments of `matplotlib.pyplot.subplots`. A wrong number of given Axes is refused.
    """
    count = len(titles)
    if given is not None:
        panels = np.asarray(given, dtype=object).ravel()
        if len(panels) != count:
            raise ArgumentError(
                f"{caller} has {count} panels ({listed(titles, most=6)}) and was given "
                f"{len(panels)} Axes; give one for each panel"
            )
        return panels
    rows = -(-count // most_columns)
    columns = -(-count // rows)
    size = max(panel[0] * columns, 5.0), panel[1] * rows + below
    options |= {"figsize": size, "layout": "constrained", "squeeze": False}
    axes = plt.subplots(rows, columns, **options)[1].ravel()
    for spare in axes[count:]:
        spare.set_visible(False)
    return np.asarray(axes[:count])


def shade(
    ax: Axes, x: Any, low: Any, high: Any, colour: str, *, alpha: float = 0.2, **options: Any
) -> None:
    """Shade the band between two curves."""
    ax.fill_between(x, low, high, color=colour, alpha=alpha, lw=0, **options)


def legend_of_panels(panels: np.ndarray, columns: int, **options: Any) -> np.ndarray:
    """Draw one legend for all panels, of all that has a label by default, and return the panels.

    It is below the figure where its layout is constrained, and below the last panel otherwise.
    options: keyword arguments of the legend.
    """
    if "handles" not in options:
        labelled = [zip(*ax.get_legend_handles_labels(), strict=True) for ax in panels]
        handles = {label: handle for pairs in labelled for handle, label in pairs}
        options["handles"] = list(handles.values())
    if isinstance(panels[0].figure.get_layout_engine(), ConstrainedLayoutEngine):
        position = {"loc": "outside lower center", "ncols": columns}
        panels[0].figure.legend(**position, **SMALL_LEGEND, **options)
    else:
        legend_below(panels[-1], 1, **options)
    return panels


def plain(text: str) -> str:
    """Escape dollars: one in a name is a dollar, not mathematics."""
    return text.replace("$", r"\$")


def _cut(text: str, most: int) -> str:
    """Return a text without its middle, if it is longer than `most` letters."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def short(text: str, most: int) -> str:
    """Return a label of at most `most` letters; a longer one loses its middle."""
    return plain(_cut(text, most))


def folded(text: str, most: int = VERTICAL_LABEL) -> str:
    """Return a text in lines of at most `most` letters."""
    lines = [textwrap.fill(line, most, break_on_hyphens=False) for line in text.split("\n")]
    return plain("\n".join(lines))


def distinct(texts: Sequence[str], most: int) -> list[str]:
    """Return labels of at most `most` letters, or as many more as it takes to distinguish texts.

    The values of a longer text are rounded to two or three digits. Then its longest parts between
    commas lose their middles, so that of an intervention on several variables the beginnings of all
    names and the ends of all values remain.
    """
    different = set(texts)
    for size in range(most, max(map(len, texts), default=0)):
        labels = {text: _cut_parts(text, size) for text in different}
        if len(set(labels.values())) == len(different):
            return [plain(labels[text]) for text in texts]
    return [plain(text) for text in texts]


def _rounded(match: re.Match[str]) -> str:
    """Return a value with two digits, or three where it is at least 100."""
    value = float(match[1])
    return f"={value:.3g}" if abs(value) >= 100 else f"={value:.2g}"


def _cut_parts(text: str, most: int) -> str:
    """Round the values of a text, then cut the longest of its parts until it fits."""
    if len(text) <= most:
        return text
    parts = [ASSIGNED_VALUE.sub(_rounded, part) for part in text.split(", ")]
    for size in range(most, FEWEST_LETTERS - 1, -1):
        text = ", ".join(_cut(part, size) for part in parts)
        if len(text) <= most:
            return text
    return _cut(text, most)


def entitle(ax: Axes, text: str, most: int | None = None) -> None:
    """Write a title in lines of `most` letters, by default about as wide as the Axes."""
    if most is None:
        most = max(int(_inches(ax) * min(1.0, 1.3 * ax.get_position().width) / TITLE_LETTER), 20)
    ax.set_title(folded(text, most), fontsize="medium")


def finish(
    ax: Axes,
    title: str,
    xlabel: str = "",
    ylabel: str = "",
    columns: int = 2,
    *,
    most: int | None = None,
    **options: Any,
) -> Axes:
    """Write the labels of the axes and the title, draw the legend below, and return the Axes.

    columns: those of the legend, or 0 where there is none. most: letters in a line of the title.
    options: keyword arguments of the legend.
    """
    ax.set(xlabel=folded(xlabel, HORIZONTAL_LABEL), ylabel=folded(ylabel))
    entitle(ax, title, most)
    if columns:
        legend_below(ax, columns, **options)
    return ax


def _inches(ax: Axes) -> float:
    """Return the width of the figure of some Axes in inches."""
    return float(ax.figure.bbox.width / ax.figure.dpi)


def legend_below(ax: Axes, columns: int = 2, **options: Any) -> None:
    """Draw the legend below the label of the horizontal axis, however many lines it has."""
    lines = [label.get_text().count("\n") + 1 for label in ax.get_xticklabels()] or [1]
    count = (max(lines) if ax.axison else 0) + len(ax.get_xlabel().splitlines())
    shift = ScaledTranslation(
        0, -PADDING * ax.axison - LINE_HEIGHT * count, ax.figure.dpi_scale_trans
    )
    position = {"bbox_to_anchor": (0.5, 0.0), "bbox_transform": ax.transAxes + shift}
    ax.legend(loc="upper center", ncols=columns, **position, **SMALL_LEGEND, **options)


def name_decades(axis: Axis, low: float, high: float) -> None:
    """Choose ticks of a logarithmic axis from `low` to `high`, so that several have a number.

    Over more than three decades they are powers of ten, over many decades every second, third, ...
    with 1 among them; over fewer they are 1, 2 and 5, or as many as it takes.
    """
    decades = np.log10(high) - np.log10(low)
    axis.set_minor_locator(NullLocator())
    if decades > 3:
        every = int(np.ceil(decades / 6))
        powers = np.arange(np.ceil(np.log10(low) / every), np.log10(high) // every + 1) * every
        axis.set_ticks(10.0**powers)
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if decades > 0.8 else MaxNLocator(5))
        axis.set_major_formatter("{x:.6g}")


def mark_data(
    ax: Axes, observed: np.ndarray, ends: tuple[float, float], domain: tuple[float, float] | None
) -> None:
    """Mark along the horizontal axis where observations lie, and the domain of interventions.

    The parts between `ends` that lie beyond the values `observed` (m,) are shaded; a bar at the
    bottom is the domain of the variable.
    """
    label = "beyond the observations"
    gaps = ((ends[0], observed.min()), (observed.max(), ends[1])) if len(observed) else ()
    for low, high in gaps:
        if high > low:
            ax.axvspan(low, high, color=GREY, alpha=0.18, lw=0, zorder=0, label=label)
            label = "_"
    if domain is not None:
        bar: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "solid_capstyle": "butt"}
        ax.plot(domain, (0.012, 0.012), lw=4, color=AMBER, zorder=4, label="domain of do()", **bar)
    ax.set_xlim(*ends)
    letters = max(len(f"{end:.6g}") for end in ends)
    count = _inches(ax) * ax.get_position().width / (TICK_LETTER * letters + 0.25)
    ax.xaxis.set_major_locator(MaxNLocator(int(np.clip(count, 2, 9)), steps=[1, 2, 2.5, 5, 10]))


def set_heights(ax: Axes, shown: np.ndarray, band: Any) -> None:
    """Choose the vertical range: all numbers of `shown` (k,), and a band as far as it fits.

    A band that leaves these numbers by more than MOST_RANGES times their range is cut off, since
    they would otherwise be too small to see. Axes that share this range keep what they show.
    """
    least, most = float(np.min(shown)), float(np.max(shown))
    margin = MOST_RANGES * (most - least) or np.inf
    low = min(least, max(float(np.min(band)), least - margin))
    high = max(most, min(float(np.max(band)), most + margin))
    space = 0.06 * ((high - low) or 1.0)
    ends = [low - 1.5 * space, high + space]
    for other in ax.get_shared_y_axes().get_siblings(ax):
        if other is not ax and other.has_data():
            ends += other.get_ylim()
    ax.set_ylim(min(ends), max(ends))


def draw_matrix(
    cells: np.ndarray,
    labels: list[str],
    ax: Axes | None,
    *,
    label: str = "",
    columns: list[str] | None = None,
    **options: Any,
) -> Axes:
    """Draw a matrix, with a colour bar where there is a label for it.

    A cell that has no colour, NaN or 0 on a log scale, stays grey. labels, columns: the labels of
    the rows and of the columns, by default the same; equal ones that follow each other are written
    once. options: keyword arguments of pcolormesh.
    """
    across = labels if columns is None else columns
    most = SHORT_LABEL if ax is not None else MATRIX_LABEL
    is_written = bool(label) and max(cells.shape) <= MOST_WRITTEN_CELLS
    is_log = options.get("norm") is not None
    if ax is None:
        left, below = (LETTER * max(map(len, distinct(each, most))) for each in (labels, across))
        cell = 0.55 if is_written else 0.3  # inches; numbers need more
        width, height = (min(max(2.4, cell * len(each)), 8.0) for each in (across, labels))
        ax = new_axes(width + left + 1.6, max(height, 2.8 if label else 1.6) + below + 0.8)
    ax.set_facecolor(EMPTY_CELL)
    hidden = ~np.isfinite(cells) | ((cells <= 0) & is_log)
    options |= {"edgecolors": "white", "lw": 0.6 if max(cells.shape) <= 60 else 0.0}
    drawn = ax.pcolormesh(np.ma.array(cells, mask=hidden), **options)
    _label_runs(ax.set_xticks, across, most, rotation=90)
    _label_runs(ax.set_yticks, labels, most)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if label:
        bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8)
        bar.set_label(folded(label))
        if is_log:
            name_decades(bar.ax.yaxis, *drawn.get_clim())
    if is_written:
        _write_numbers(ax, cells, hidden, drawn)
    return ax


def equal_runs(labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the ends of the runs of equal labels."""
    names = np.asarray(labels, dtype=object)
    starts = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    return starts, np.append(starts[1:], len(labels))


def _label_runs(set_ticks: Any, labels: list[str], most: int, **options: Any) -> None:
    """Label the middle of each run of equal labels; of too many runs only some are labelled."""
    starts, ends = equal_runs(labels)
    every = -(-len(starts) // MOST_LABELS)
    fitting = distinct(labels, most)
    shown = [fitting[start] for start in starts[::every]]
    options = {} if max(map(len, shown)) <= 2 else options  # a letter needs no turning
    options["fontsize"] = _label_size(len(starts))
    set_ticks(((starts + ends) / 2)[::every], shown, **options)


def _write_numbers(ax: Axes, cells: np.ndarray, hidden: np.ndarray, drawn: Any) -> None:
    """Write numbers into the cells, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            fill = np.ones(4) if hidden[row, column] else np.array(drawn.cmap(drawn.norm(value)))
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": "small"}
            look["color"] = INK if fill[:3] @ [0.3, 0.6, 0.1] > 0.55 else "white"
            ax.text(column + 0.5, row + 0.5, f"{value:.2g}", **look)


def to_png(axes: Any, dpi: int = 150) -> bytes:
    """Return a figure as the bytes of a PNG file, and close it.

    Parameters
    ----------
    axes:
        An Axes, or an array of Axes of one figure.
    dpi:
        The resolution in dots per inch.

    Returns
    -------
    bytes
        The content of the file.

    Raises
    ------
    ArgumentError
        If it is not drawn on a figure.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> image = cb.plots.to_png(cb.plots.draw_graph(cb.CausalGraph.parse("X -> Y")))
    >>> image[1:4]
    b'PNG'
    """
    figure, memory = _figure_of("to_png", axes), io.BytesIO()
    figure.savefig(memory, format="png", dpi=dpi)
    plt.close(figure)
    return memory.getvalue()


def to_svg(axes: Any) -> str:
    """Return a figure as an SVG text, the same for the same figure, and close it.

    Parameters
    ----------
    axes:
        An Axes, or an array of Axes of one figure.

    Returns
    -------
    str
        The content of the file; letters are drawn as outlines.

    Raises
    ------
    ArgumentError
        If it is not drawn on a figure.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.plots.to_svg(cb.plots.draw_graph(cb.CausalGraph.parse("X -> Y")))[:5]
    '<?xml'
    """
    figure, memory = _figure_of("to_svg", axes), io.StringIO()
    with plt.rc_context({"svg.hashsalt": "causal_bo_ppl", "svg.fonttype": "path"}):
        figure.savefig(memory, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return memory.getvalue()


def _figure_of(caller: str, axes: Any) -> Figure:
    found = [getattr(each, "figure", None) for each in np.ravel(np.asarray(axes, object))[:1]]
    if not found or not isinstance(found[0], Figure):
        raise ArgumentError(f"{caller} needs Axes of a figure, got {type(axes).__name__}")
    return found[0]
