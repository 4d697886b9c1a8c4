"""How is a number for every pair of sets, or of effects, drawn?"""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.plots.graphs import MOST_LABELS, plain

WRITTEN = 8  # rows up to which cells hold their numbers
DARK, LIGHT, NOTHING = "#0f172a", "white", "#e2e8f0"


def draw_squares(
    cells: np.ndarray,
    labels: list[str],
    ax: Axes | None,
    *,
    label: str,
    columns: list[str] | None = None,
    **options: Any,
) -> Axes:
    """Draw a matrix with a colour bar; a cell that has no colour, NaN or 0 on a log scale, stays grey.

    labels, columns: of the rows and columns; equal ones that follow each other are named once. options: of pcolormesh.
    """
    across = labels if columns is None else columns
    if ax is None:
        margins = [0.08 * min(max(map(len, names), default=0), 30) for names in (labels, across)]
        width, height = (min(max(2.4, 0.3 * len(names)), 8.0) for names in (across, labels))
        size = width + margins[0] + 1.6, max(height, 2.8) + margins[1] + 0.8
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.set_facecolor(NOTHING)
    hidden = ~np.isfinite(cells) | ((cells <= 0) if options.get("norm") is not None else False)
    drawn = ax.pcolormesh(
        np.ma.array(cells, mask=hidden), edgecolors="white", linewidth=_gap(cells), **options
    )
    _name(ax.set_xticks, across, rotation=90)
    _name(ax.set_yticks, labels)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(drawn, ax=ax, label=label, shrink=0.8)
    if max(cells.shape) <= WRITTEN:
        _write(ax, cells, hidden, drawn)
    return ax


def runs(labels: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the runs of equal labels."""
    starts = np.flatnonzero(
        [place == 0 or labels[place] != labels[place - 1] for place in range(len(labels))]
    )
    return starts, np.append(starts[1:], len(labels))


def short(text: str, most: int = 30) -> str:
    """A label that fits: what is too long loses its middle."""
    half = (most - 1) // 2
    return plain(text if len(text) <= most else f"{text[:half]}…{text[-half:]}")


def _gap(cells: np.ndarray) -> float:
    return 0.6 if max(cells.shape) <= 60 else 0.0


def _name(set_ticks: Callable[..., Any], labels: list[str], **options: Any) -> None:
    starts, ends = runs(labels)
    every = -(-len(starts) // MOST_LABELS)
    middles, shown = (
        ((starts + ends) / 2)[::every],
        [short(labels[start]) for start in starts[::every]],
    )
    options = {} if max(map(len, shown), default=0) <= 2 else options  # a letter needs no turning
    set_ticks(middles, shown, fontsize="small" if len(starts) <= 24 else "x-small", **options)


def _write(ax: Axes, cells: np.ndarray, hidden: np.ndarray, drawn: Any) -> None:
    """Numbers in the cells, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            red, green, blue, _ = (
                (1.0, 1.0, 1.0, 1.0) if hidden[row, column] else drawn.cmap(drawn.norm(value))
            )
            colour = DARK if 0.3 * red + 0.6 * green + 0.1 * blue > 0.55 else LIGHT
            written = ax.text(
                column + 0.5, row + 0.5, f"{value:.2g}", fontsize="small", color=colour
            )
            written.set(ha="center", va="center")
