"""How do names, ticks and legends fit into a picture?

Names come from the columns of a table, so that they may be long. A label that is cut must still
differ from every other label of its picture.
"""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

LETTER, LINE = 0.075, 0.17  # inches that a small letter and a line of text take
GAPS = 0.14  # inches between axis, ticks, label and legend, all together
LONG, CUT = 64, 34  # letters of a row's label: in a new figure, and in Axes that were given
LEAST = 9  # letters that must be left of a part of a label, so that it says something
VALUE = re.compile(r" = (-?\d[\d.]*(?:e[+-]?\d+)?)(?=\)?$)")
TITLE = 0.085  # inches that a letter of a title takes
SIDE = 34  # letters in a line of the label of a vertical axis


def plain(text: str) -> str:
    """Escape dollars: one in a name is a dollar, not mathematics."""
    return text.replace("$", r"\$")


def _cut(text: str, most: int) -> str:
    """Return a text without its middle, if it is longer than `most` letters."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def short(text: str, most: int = 30) -> str:
    """Return a label that fits: the middle of a longer one is left out."""
    return plain(_cut(text, most))


def folded(text: str, most: int) -> str:
    """Return a text in lines of at most `most` letters."""
    lines = [textwrap.fill(line, most, break_on_hyphens=False) for line in text.split("\n")]
    return plain("\n".join(lines))


def distinct(texts: Sequence[str], most: int = 30) -> list[str]:
    """Return labels of at most `most` letters, or as many more as it takes to tell texts apart.

    A longer text first has its values rounded to two or three digits; then each of its parts that
    commas separate loses its own middle, so that of an intervention on several variables the
    beginnings of all names and the ends of all values remain.
    """
    different = len(set(texts))
    longest = max(map(len, texts), default=0)
    for size in range(most, longest):
        labels = [_cut_parts(text, size) for text in texts]
        if len(set(labels)) == different:
            return [plain(label) for label in labels]
    return [plain(text) for text in texts]


def _rounded(found: re.Match[str]) -> str:
    """Return a value with two digits, or three where it is at least 100."""
    value = float(found[1])
    return f"={value:.3g}" if abs(value) >= 100 else f"={value:.2g}"


def _cut_parts(text: str, most: int) -> str:
    """Round the values of a text, then cut the longest of its parts, until it fits."""
    if len(text) <= most:
        return text
    parts = [VALUE.sub(_rounded, part) for part in text.split(", ")]
    text = ", ".join(parts)
    room = most - 2 * (len(parts) - 1)
    if len(text) <= most or room < LEAST * len(parts):
        return _cut(text, most)
    sizes = np.array([len(part) for part in parts])
    share, free = room // len(parts), room
    for size in np.sort(sizes):  # short parts leave their room to the longer ones
        left = int((sizes >= size).sum())
        share = free // left
        if size > share:
            break
        free -= int(size)
    return ", ".join(_cut(part, max(share, LEAST)) for part in parts)


def figure_beside(texts: Sequence[str], width: float, height: float) -> tuple[Axes, list[str]]:
    """Return new Axes about `width` inches wide, and labels for which there is room beside them."""
    labels = distinct(texts, LONG)
    size = width + LETTER * max(map(len, labels), default=0), height
    return plt.figure(figsize=size, layout="constrained").add_subplot(), labels


def entitle(ax: Axes, text: str, most: int | None = None) -> None:
    """Write a title in as many lines as it takes, by default of the width of the Axes or so."""
    if most is None:
        page = ax.figure.bbox.width / ax.figure.dpi  # inches
        most = max(int(page * min(1.0, 1.3 * ax.get_position().width) / TITLE), 20)
    ax.set_title(folded(text, most), fontsize="medium")


def legend_below(ax: Axes, columns: int = 2, **options: Any) -> Legend:
    """Explain the colours below the label of the horizontal axis, however many lines it has."""
    lines = ax.get_xlabel().count("\n") + bool(ax.get_xlabel())
    ticks = max([tick.get_text().count("\n") + 1 for tick in ax.get_xticklabels()] or [1])
    down = -GAPS - LINE * (lines + ticks)
    below = ScaledTranslation(0, down, ax.figure.dpi_scale_trans)
    look: dict[str, Any] = {"frameon": False, "fontsize": "small", "ncols": columns} | options
    position = {"bbox_to_anchor": (0.5, 0.0), "bbox_transform": ax.transAxes + below}
    return ax.legend(loc="upper center", **position, **look)


def name_decades(axis: Axis, low: float, high: float) -> None:
    """Choose ticks of a logarithmic axis from `low` to `high`, so that several have a number.

    Over several decades powers of ten are named, of many decades every second, third, ... and 1
    among them; over fewer 1, 2 and 5, or as many as it takes.
    """
    decades = np.log10(high) - np.log10(low)
    axis.set_minor_formatter(NullFormatter())
    if decades > 3:
        every = int(np.ceil(decades / 6))
        powers = np.arange(np.ceil(np.log10(low) / every), np.log10(high) // every + 1) * every
        axis.set_ticks(10.0**powers)
        axis.set_minor_locator(NullLocator())
        return
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    if decades > 0.8:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
