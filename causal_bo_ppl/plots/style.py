"""What do all pictures share: colours, marks of the rows, and matrices drawn as squares?"""

import io
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.plots.labels import CUT, LETTER, SIDE, distinct, folded, name_decades

BLUE, AMBER, INK, GREY = "#2563eb", "#f59e0b", "#0f172a", "#94a3b8"
NO_COLOUR = "#e2e8f0"  # of cells that the colour scale does not hold
MOST_LABELS = 45  # rows with a label each; above, every second, third, ... has one
FARTHEST = 1.5  # ranges of what must be seen, which a picture shows above and below it
WIDE = 42  # letters of a label beside a matrix in a new figure
WRITTEN = 8  # rows up to which cells hold their numbers


def half_width(level: float) -> float:
    """Return half the width of a central Gaussian interval, in standard deviations."""
    if not 0 < level < 1:
        raise DomainError(f"level must lie between 0 and 1, got {level!r}")
    return NormalDist().inv_cdf((1 + level) / 2)


def mark_data(
    ax: Axes, seen: np.ndarray, ends: tuple[float, float], domain: tuple[float, float] | None
) -> None:
    """Mark along the horizontal axis where rows lie and where do() goes.

    What lies between `ends` but beyond the values `seen` (m,) is shaded; a bar at the bottom is the
    domain of the variable.
    """
    if len(seen):
        sides = ((ends[0], seen.min()), (seen.max(), ends[1]))
        for position, (low, high) in enumerate(sides):
            if high > low:
                label = "_" if position and sides[0][1] > sides[0][0] else "beyond the rows"
                ax.axvspan(low, high, color=GREY, alpha=0.18, lw=0, zorder=0, label=label)
    if domain is not None:
        bar: dict[str, Any] = {
            "transform": ax.get_xaxis_transform(),
            "color": AMBER,
            "solid_capstyle": "butt",
        }
        ax.plot(domain, (0.012, 0.012), lw=4, zorder=4, label="where do() goes", **bar)
    ax.set_xlim(*ends)


def set_heights(ax: Axes, shown: np.ndarray, band: Any) -> None:
    """Choose the vertical range: all numbers of `shown` (k,), and a band as far as there is room.

    A band that leaves them by more than FARTHEST times their range is cut off, since they would
    else be too small to see. Axes that share this range keep what they show.
    """
    least, most = float(np.min(shown)), float(np.max(shown))
    room = FARTHEST * (most - least) or np.inf
    low = min(least, max(float(np.min(band)), least - room))
    high = max(most, min(float(np.max(band)), most + room))
    margin = 0.06 * ((high - low) or 1.0)
    ends = [low - 1.5 * margin, high + margin]
    for other in ax.get_shared_y_axes().get_siblings(ax):
        if other is not ax and other.has_data():
            ends += other.get_ylim()
    ax.set_ylim(min(ends), max(ends))


def draw_squares(
    cells: np.ndarray,
    labels: list[str],
    ax: Axes | None,
    *,
    label: str,
    columns: list[str] | None = None,
    **options: Any,
) -> Axes:
    """Draw a matrix with a colour bar.

    A cell that has no colour, NaN or 0 on a log scale, stays grey. labels, columns: the labels of
    the rows and of the columns, by default the same; equal ones that follow each other are named
    once. options: keyword arguments of pcolormesh.
    """
    across = labels if columns is None else columns
    most = CUT if ax is not None else WIDE
    if ax is None:
        margins = [
            LETTER * max(map(len, distinct(sorted(set(names)), most)), default=0)
            for names in (labels, across)
        ]
        cell = 0.55 if max(cells.shape) <= WRITTEN else 0.3  # inches; numbers need more
        width, height = (min(max(2.4, cell * len(names)), 8.0) for names in (across, labels))
        size = width + margins[0] + 1.6, max(height, 2.8) + margins[1] + 0.8
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.set_facecolor(NO_COLOUR)
    hidden = ~np.isfinite(cells) | ((cells <= 0) if options.get("norm") is not None else False)
    drawn = ax.pcolormesh(
        np.ma.array(cells, mask=hidden), edgecolors="white", linewidth=_gap(cells), **options
    )
    _name(ax.set_xticks, across, most, rotation=90)
    _name(ax.set_yticks, labels, most)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8)
    bar.set_label(folded(label, SIDE))
    if options.get("norm") is not None:
        name_decades(bar.ax.yaxis, *drawn.get_clim())
    if max(cells.shape) <= WRITTEN:
        _write(ax, cells, hidden, drawn)
    return ax


def equal_runs(labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the ends of the runs of equal labels."""
    starts = np.flatnonzero(
        [
            position == 0 or labels[position] != labels[position - 1]
            for position in range(len(labels))
        ]
    )
    return starts, np.append(starts[1:], len(labels))


def _gap(cells: np.ndarray) -> float:
    """Return the width of the lines between cells; many cells leave no room for lines."""
    return 0.6 if max(cells.shape) <= 60 else 0.0


def _name(set_ticks: Callable[..., Any], labels: list[str], most: int, **options: Any) -> None:
    """Label the middle of each run of equal labels; of too many runs only some are labelled."""
    starts, ends = equal_runs(labels)
    every = -(-len(starts) // MOST_LABELS)
    middles = ((starts + ends) / 2)[::every]
    fitting = distinct(labels, most)
    shown = [fitting[start] for start in starts[::every]]
    options = {} if max(map(len, shown), default=0) <= 2 else options  # a letter needs no turning
    set_ticks(middles, shown, fontsize="small" if len(starts) <= 24 else "x-small", **options)


def _write(ax: Axes, cells: np.ndarray, hidden: np.ndarray, drawn: Any) -> None:
    """Write numbers into the cells, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            red, green, blue, _ = (
                (1.0, 1.0, 1.0, 1.0) if hidden[row, column] else drawn.cmap(drawn.norm(value))
            )
            colour = INK if 0.3 * red + 0.6 * green + 0.1 * blue > 0.55 else "white"
            written = ax.text(
                column + 0.5, row + 0.5, f"{value:.2g}", fontsize="small", color=colour
            )
            written.set(ha="center", va="center")


def to_png(axes: Any, dpi: int = 150) -> bytes:
    """Return the figure that some Axes belong to as the bytes of a PNG file, and close it.

    axes: an Axes, or an array of Axes of one figure.
    """
    figure: Figure = np.ravel(np.asarray(axes, object))[0].figure
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=dpi)
    plt.close(figure)
    return memory.getvalue()
