"""How are methods told apart in all panels of a picture?"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D

from causal_bo_ppl.plots.labels import LETTER, LONG, distinct
from causal_bo_ppl.plots.style import AMBER, BLUE, INK

COLOURS = (BLUE, AMBER, INK, "#16a34a", "#db2777", "#7c3aed", "#0891b2")
DASHES, MARKERS = ("-", "--", "-."), ("o", "s", "^", "D")  # of every seven methods in turn
DOTS = (":", (0, (1, 4)))  # of methods that make no experiments


class Look(NamedTuple):
    """How a method is drawn in every panel."""

    colour: str
    dashes: Any  # a line style
    marker: str
    width: float
    label: str
    level: bool = False  # a horizontal line, of a method without experiments


def method_looks(methods: Iterable[object], level: Iterable[str] = ()) -> dict[str, Look]:
    """Return the look of every method, in order of appearance.

    Earlier lines are wider, so that they are seen below later ones that are equal to them. Methods
    in `level` are dotted, and take their colours from the other end.
    """
    names, dotted = list(dict.fromkeys(str(name) for name in methods)), set(level)
    moving = [name for name in names if name not in dotted]
    labels = dict(zip(names, distinct(names, LONG), strict=True))
    looks = {}
    for position, name in enumerate(moving):
        turn, at = divmod(position, len(COLOURS))
        dashes, marker = DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)]
        width = 2.6 - 1.4 * position / max(len(moving) - 1, 1)
        looks[name] = Look(COLOURS[at], dashes, marker, width, labels[name])
    for position, name in enumerate(name for name in names if name in dotted):
        turn, at = divmod(position, len(COLOURS))
        dots = DOTS[turn % len(DOTS)]
        looks[name] = Look(COLOURS[-1 - at], dots, "None", 1.8, labels[name], level=True)
    return looks


def legend_columns(looks: dict[str, Look], width: float) -> int:
    """Return how many columns of a legend fit into a width in inches, all about equally long."""
    longest = max(len(look.label) for look in looks.values())
    most = int(np.clip(width // (0.9 * LETTER * longest + 0.65), 1, 5))
    return -(-len(looks) // -(-len(looks) // most))


def legend_line(look: Look) -> Line2D:
    """Return the line of a method for the legend, with its mark in the middle."""
    line: dict[str, Any] = {"ls": look.dashes, "lw": min(look.width, 2.0), "marker": look.marker}
    return Line2D([], [], color=look.colour, ms=4.0, label=look.label, **line)
