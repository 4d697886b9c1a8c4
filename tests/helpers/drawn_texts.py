"""What is written and drawn in a figure, and what is wrong with its texts."""

import numpy as np

SLACK = 1.0  # pixels by which a text may reach beyond the edge


def texts(found):
    return [each.get_text() for each in found]


def legend(ax):
    """Return the texts of the legend."""
    return texts(ax.get_legend().get_texts())


def labels(ax):
    """Return the labels of all that is drawn, in the order of the legend."""
    return ax.get_legend_handles_labels()[1]


def drawn(ax, label):
    """Return the line with a label."""
    [found] = [each for each in ax.lines if each.get_label() == label]
    return found


def lines(ax):
    """Return the lines that have a label, by label."""
    return {each.get_label(): each for each in ax.lines if not each.get_label().startswith("_")}


def visible_texts(figure):
    """Return the texts of a figure that are seen, with their boxes in pixels."""
    figure.draw_without_rendering()
    found = [*figure.texts, *(text for each in figure.legends for text in each.get_texts())]
    found += [] if figure._suptitle is None else [figure._suptitle]
    for ax in figure.axes:
        if ax.get_visible():
            found += [ax.title, ax._left_title, *ax.texts]
            found += ax.get_legend().get_texts() if ax.get_legend() else []
            found += [*_axis_texts(ax.xaxis), *_axis_texts(ax.yaxis)] if ax.axison else []
    shown = [text for text in found if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in dict.fromkeys(shown)]


def _axis_texts(axis):
    """Return the label of an axis, and the labels of the ticks between its ends."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    ticks = [
        tick.label1
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        if low - slack <= tick.get_loc() <= high + slack and tick.label1.get_visible()
    ]
    return [axis.label, *ticks] if axis.get_visible() else []


def faults(panels):
    """Return texts that are cut off, pairs that overlap, and Axes that texts squeeze.

    The figure is laid out, as on paper; warnings are errors.
    """
    figure = np.asarray(panels, dtype=object).flat[0].figure
    shown, page = visible_texts(figure), figure.bbox.padded(SLACK)
    found = [
        f"cut off: {text!r}"
        for text, box in shown
        if box.x0 < page.x0 or box.y0 < page.y0 or box.x1 > page.x1 or box.y1 > page.y1
    ]
    found += [
        f"overlap: {one!r} and {other!r}"
        for position, (one, box) in enumerate(shown)
        for other, beside in shown[:position]
        if box.overlaps(beside)
    ]
    for ax in figure.axes:
        box = ax.get_window_extent()
        bar = hasattr(ax, "_colorbar")
        if ax.get_visible() and not bar and (box.width < 100 or box.height < 40):
            found.append(f"squeezed: {box.width:.0f} x {box.height:.0f} pixels")
    return found
