"""What is wrong with the texts of a picture: which are cut off, and which lie on each other."""

SLACK = 1.0  # pixels by which a text may reach beyond the edge


def visible_texts(figure):
    """Return the texts of a picture that are seen, with their boxes in pixels."""
    figure.draw_without_rendering()
    texts = [*figure.texts, *(text for each in figure.legends for text in each.get_texts())]
    texts += [] if figure._suptitle is None else [figure._suptitle]
    for ax in figure.axes:
        if ax.get_visible():
            texts += [ax.title, ax._left_title, *ax.texts]
            texts += ax.get_legend().get_texts() if ax.get_legend() else []
            texts += [*_axis_texts(ax.xaxis), *_axis_texts(ax.yaxis)] if ax.axison else []
    shown = [text for text in texts if text.get_visible() and text.get_text().strip()]
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


def cut_off(figure):
    """Return the texts that reach beyond the edge of the picture."""
    page = figure.bbox.padded(SLACK)
    return [
        text
        for text, box in visible_texts(figure)
        if box.x0 < page.x0 or box.y0 < page.y0 or box.x1 > page.x1 or box.y1 > page.y1
    ]


def overlapping(figure):
    """Return the pairs of texts that lie on each other."""
    shown = visible_texts(figure)
    return [
        (one, other)
        for position, (one, box) in enumerate(shown)
        for other, beside in shown[:position]
        if box.overlaps(beside)
    ]


def faults(panels):
    """Return what is wrong with the texts of a picture, and Axes that are squeezed by them."""
    figure = panels.flat[0].figure if hasattr(panels, "flat") else panels.figure
    found = [f"cut off: {text!r}" for text in cut_off(figure)]
    found += [f"overlap: {one!r} and {other!r}" for one, other in overlapping(figure)]
    for ax in figure.axes:
        box = ax.get_window_extent()
        bar = hasattr(ax, "_colorbar")
        if ax.get_visible() and not bar and (box.width < 100 or box.height < 40):
            found.append(f"squeezed: {box.width:.0f} x {box.height:.0f} pixels")
    return found
