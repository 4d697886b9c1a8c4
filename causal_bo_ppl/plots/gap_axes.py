"""Which axis shows gaps that reach 0 and span orders of magnitude?"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, NullLocator

from causal_bo_ppl.plots.labels import name_decades
from causal_bo_ppl.plots.style import GREY

ZERO = 1e-9  # a gap that is not larger counts as 0
SPREAD = 30.0  # largest over smallest gap, above which an axis is logarithmic
LEAST_SPREAD = 8.0  # the same for errors that are all positive
DECADES = 5  # that an axis with 0 shows at most; it is linear below


def scale_gaps(ax: Axes, middle: np.ndarray, gaps: np.ndarray) -> None:
    """Choose the vertical axis of gaps, on which 0 is seen, and draw a line at 0.

    middle: the means or medians, which decide whether the axis is logarithmic. gaps: all that is
    drawn, ends of intervals included.
    """
    ax.axhline(0, color=GREY, lw=0.8, zorder=0)
    largest, least = float(gaps.max()), float(gaps.min())
    if largest <= ZERO and least >= -ZERO:
        ax.set_ylim(-0.04, 1.0)
        return
    least = min(least, 0.0)
    threshold = _threshold(middle)
    if threshold is None:
        height = max(largest, 0.0) - least
        ax.set_ylim(least - 0.04 * height, max(largest, 0.0) + 0.04 * height)
        return
    ax.set_yscale("symlog", linthresh=threshold, linscale=0.7)
    ax.set_ylim(1.5 * least - 0.2 * threshold, max(1.5 * largest, 1.5 * threshold))
    ticks = _powers(threshold, np.abs(gaps).max())
    negative = [-tick for tick in ticks if -tick >= least]
    _name_powers(ax.yaxis, [*negative[::-1], 0.0, *ticks])


def _threshold(values: np.ndarray) -> float | None:
    """Return below which size an axis is linear, or None where all of it should be.

    It is 1, 2 or 5 times a power of ten.
    """
    sizes = np.abs(values)
    largest = float(sizes.max())
    seen = sizes[sizes > max(ZERO, 10.0**-DECADES * largest)]
    if not seen.size or largest <= SPREAD * float(seen.min()):
        return None
    least = float(seen.min())
    power = float(10.0 ** np.floor(np.log10(least)))
    return max(step * power for step in (1, 2, 5) if step == 1 or step * power <= least)


def _powers(threshold: float, largest: float, most: int = 5) -> list[float]:
    """Return at most `most` powers of ten from a threshold to the largest, evenly spaced."""
    low, high = int(np.ceil(np.log10(threshold) - 1e-9)), int(np.floor(np.log10(largest)))
    every = max(1, -(-(high - low) // (most - 1)))
    return [float(10.0**power) for power in range(high, low - 1, -every)][::-1]


def _name_powers(axis: Axis, ticks: list[float]) -> None:
    """Set ticks at powers of ten and at 0."""

    def name(value: float, _: object) -> str:
        sign = "-" if value < 0 else ""
        return f"${sign}10^{{{round(np.log10(abs(value)))}}}$" if value else "0"

    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(name))
    axis.set_minor_locator(NullLocator())


def scale_errors(ax: Axes, middle: np.ndarray, errors: np.ndarray) -> None:
    """Choose the vertical axis of errors: that of gaps, or logarithmic where all are positive."""
    if errors.min() <= ZERO or middle.max() <= LEAST_SPREAD * middle.min():
        scale_gaps(ax, middle, errors)
        return
    ax.set_yscale("log")
    ax.set_ylim(errors.min() / 1.3, 1.3 * errors.max())
    name_decades(ax.yaxis, *ax.get_ylim())


def scale_differences(ax: Axes, middle: np.ndarray, values: np.ndarray) -> None:
    """Choose the horizontal axis of differences, with room for words on both sides of 0.

    middle: the means, which decide whether the axis is logarithmic. values: all that is drawn.
    """
    left, right = max(-float(values.min()), 0.0), max(float(values.max()), 0.0)
    if max(left, right) <= ZERO:
        left = right = 1.0
    threshold = _threshold(middle)
    if threshold is not None:
        ax.set_xscale("symlog", linthresh=threshold, linscale=0.7)
        ticks = _powers(threshold, max(left, right), 3)
        _name_powers(ax.xaxis, [*(-tick for tick in ticks[::-1]), 0.0, *ticks])
        left = right = 1.5 * max(left, right)
    ax.set_xlim(-1.05 * max(left, 0.6 * right), 1.05 * max(right, 0.6 * left))
