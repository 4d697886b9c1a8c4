"""Where does each variable lie on the page, and how do its edges run?

Causes stand left of their effects, in layers; a layer's order is improved by the barycentre rule,
in which an edge over several layers takes a position in each layer that it crosses. Rows then move
towards their neighbours' as far as the order allows. The sketch is drawn as inline SVG.
"""

import html
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

Point = tuple[float, float]
Edge = tuple[str, str]
LAYOUT_SWEEPS = 12
HEIGHT, GAP, LETTER = 30.0, 48.0, 8.0  # of a box, between boxes, of a letter
GREY, DASHED, PLAIN = "#475569", "#b45309", "#f1f5f9"  # mechanisms, latent causes, boxes


class Sketch(NamedTuple):
    """A picture in points, y downwards: boxes by their centres, edges by what they pass.

    arrows: for each directed edge the points that a smooth curve passes, from box to box.
    arcs: for each bidirected edge start, control point and end of a quadratic curve.
    """

    centres: dict[str, Point]
    width: float
    arrows: list[list[Point]]
    arcs: list[tuple[Point, Point, Point]]

    def extent(self) -> tuple[float, float, float, float]:
        """Return the left, top, right and bottom of everything, with a margin."""
        crests = [
            tuple((s + 2 * c + e) / 4 for s, c, e in zip(*arc, strict=True)) for arc in self.arcs
        ]
        columns, rows = zip(
            *self.centres.values(),
            *(p for route in self.arrows for p in route),
            *crests,
            strict=True,
        )
        side, margin = self.width / 2 + 16, HEIGHT / 2 + 16
        return min(columns) - side, min(rows) - margin, max(columns) + side, max(rows) + margin


def sketch(nodes: Sequence[str], directed: Sequence[Edge], bidirected: Sequence[Edge]) -> Sketch:
    """Lay out a graph whose nodes are given in topological order."""
    width = max(28 + LETTER * max(map(len, nodes)), 56)
    positions, stops = _position(nodes, directed)
    points = {item: (x * (width + GAP), y * (HEIGHT + 28)) for item, (x, y) in positions.items()}
    arrows = []
    for passed in stops.values():
        (x0, y0), *between, (x1, y1) = (points[stop] for stop in passed)
        arrows.append([(x0 + width / 2, y0), *between, (x1 - width / 2, y1)])
    middle = sum(points[node][1] for node in nodes) / len(nodes)
    arcs = [_arc(points[one], points[other], middle, width) for one, other in bidirected]
    return Sketch({node: points[node] for node in nodes}, width, arrows, arcs)


def _arc(one: Point, other: Point, middle: float, width: float) -> tuple[Point, Point, Point]:
    """Return a bow from box to box as start, control point and end.

    It runs above the boxes in the upper half of the picture, below them in the lower half, and
    beside them where both stand in one column.
    """
    (x0, y0), (x1, y1) = sorted([one, other])
    if x0 == x1:
        edge = x0 - width / 2
        return (edge, y0), (edge - 0.3 * (y1 - y0), (y0 + y1) / 2), (edge, y1)
    side = 1.0 if (y0 + y1) / 2 > middle else -1.0
    y0, y1 = y0 + side * (HEIGHT / 2 + 1), y1 + side * (HEIGHT / 2 + 1)
    return (
        (x0, y0),
        ((x0 + x1) / 2 - side * 0.3 * (y1 - y0), (y0 + y1) / 2 + side * 0.3 * (x1 - x0)),
        (x1, y1),
    )


def _position(
    nodes: Sequence[str], directed: Sequence[Edge]
) -> tuple[dict[object, Point], dict[Edge, list[object]]]:
    """Return the layer and row of every variable and of every stop of an edge, and all stops."""
    depth = _depths(nodes, directed)
    stops = {(tail, head): _stops(tail, head, depth) for tail, head in directed}
    layers: list[list[object]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in nodes:
        layers[depth[node]].append(node)
    for (tail, _), passed in stops.items():
        for step, stop in enumerate(passed[1:-1], start=1):
            layers[depth[tail] + step].append(stop)
    neighbours = _neighbours(stops)
    row = {
        item: _middle(position, layer) for layer in layers for position, item in enumerate(layer)
    }
    for sweep in range(LAYOUT_SWEEPS):
        for layer in layers if sweep % 2 else reversed(layers):
            # The sort is stable: ties keep their order.
            layer.sort(key=lambda item: _barycentre(item, row, neighbours))
            row |= {item: _middle(position, layer) for position, item in enumerate(layer)}
    for sweep in range(LAYOUT_SWEEPS):
        for layer in layers if sweep % 2 else reversed(layers):
            row |= _settle(layer, row, neighbours)
    positions = {item: (float(x), row[item]) for x, layer in enumerate(layers) for item in layer}
    return positions, stops


def _depths(nodes: Sequence[str], directed: Sequence[Edge]) -> dict[str, int]:
    """Return each variable's layer: the length of the longest path to it from a source.

    Sources then move right, next to their nearest effect.
    """
    depth = dict.fromkeys(nodes, 0)
    for head in nodes:
        depth[head] = max((depth[tail] + 1 for tail, other in directed if other == head), default=0)
    for tail in reversed(nodes):
        if all(head != tail for _, head in directed):
            depth[tail] = min(
                (depth[head] - 1 for other, head in directed if other == tail), default=0
            )
    return depth


def _stops(tail: str, head: str, depth: Mapping[str, int]) -> list[object]:
    between = [(tail, head, layer) for layer in range(depth[tail] + 1, depth[head])]
    return [tail, *between, head]


def _neighbours(stops: Mapping[Edge, list[object]]) -> dict[object, list[object]]:
    around: dict[object, list[object]] = {}
    for passed in stops.values():
        for left, right in pairwise(passed):
            around.setdefault(left, []).append(right)
            around.setdefault(right, []).append(left)
    return around


def _middle(position: int, layer: Sequence[object]) -> float:
    return position - (len(layer) - 1) / 2


def _barycentre(
    item: object, row: Mapping[object, float], neighbours: Mapping[object, list[object]]
) -> float:
    around = neighbours.get(item, [item])
    return sum(row[other] for other in around) / len(around)


def _settle(
    layer: Sequence[object], row: Mapping[object, float], neighbours: Mapping[object, list[object]]
) -> dict[object, float]:
    """Return the rows nearest to the neighbours' that keep the order and the distances.

    They are the solution of an isotonic regression.
    """
    from scipy.optimize import isotonic_regression

    sizes = [1.0 if isinstance(item, str) else 0.4 for item in layer]
    offset = list(
        accumulate(
            (left + right) / 2 for left, right in zip([-sizes[0], *sizes], sizes, strict=False)
        )
    )
    wanted = [
        _barycentre(item, row, neighbours) - shift
        for item, shift in zip(layer, offset, strict=True)
    ]
    rows = isotonic_regression(wanted).x
    return {item: float(y) + shift for item, y, shift in zip(layer, rows, offset, strict=True)}


MARKERS = "".join(
    f'<marker id="cb-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
    f'markerHeight="7" orient="auto-start-reverse">'
    f'<path d="M0,0L10,5L0,10z" fill="{colour}"/></marker>'
    for name, colour in (("cause", GREY), ("latent", DASHED))
)


def draw_svg(
    nodes: Sequence[str],
    directed: Sequence[Edge],
    bidirected: Sequence[Edge],
    fills: Mapping[str, str] | None = None,
) -> str:
    """Return a graph as inline SVG: arrows for mechanisms, dashed arcs for latent causes."""
    drawn = sketch(nodes, directed, bidirected)
    left, top, right, bottom = drawn.extent()
    boxes = [
        _box(name, centre, drawn.width, (fills or {}).get(name, PLAIN))
        for name, centre in drawn.centres.items()
    ]
    body = [*map(_arrow, drawn.arrows), *boxes, *(_arc_path(*points) for points in drawn.arcs)]
    width, height = f"{right - left:.0f}", f"{bottom - top:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="{left:.0f} {top:.0f} {width} {height}" width="{width}" '
        f'style="max-width:100%;background:white" role="img" aria-label="causal graph" '
        f'font-family="sans-serif" font-size="13"><defs>{MARKERS}</defs>{"".join(body)}</svg>'
    )


def _arrow(points: Sequence[Point]) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        path += f"C{middle:.1f},{y0:.1f} {middle:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return (
        f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.4" '
        f'marker-end="url(#cb-cause)"/>'
    )


def _arc_path(start: Point, control: Point, end: Point) -> str:
    (x0, y0), (x1, y1), (x2, y2) = start, control, end
    path = f"M{x0:.1f},{y0:.1f}Q{x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f}"
    return (
        f'<path d="{path}" fill="none" stroke="{DASHED}" stroke-width="1.4" '
        f'stroke-dasharray="5 4" marker-start="url(#cb-latent)" marker-end="url(#cb-latent)"/>'
    )


def _box(name: str, centre: Point, width: float, fill: str) -> str:
    x, y = centre
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{width:.1f}" '
        f'height="{HEIGHT:.0f}" rx="{HEIGHT / 2:.0f}" fill="{fill}" stroke="{GREY}"/>'
        f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" fill="#0f172a">'
        f"{html.escape(name)}</text>"
    )
