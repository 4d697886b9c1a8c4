"""How is a sketch of a graph written as inline SVG?"""

import html
from collections.abc import Mapping, Sequence
from itertools import pairwise

from causal_bo_ppl.drawing import DASHED, GREY, HEIGHT, PLAIN, Edge, Point, sketch

MARKERS = "".join(
    f'<marker id="cb-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0,0L10,5L0,10z" fill="{colour}"/></marker>'
    for name, colour in (("cause", GREY), ("latent", DASHED))
)


def draw_svg(
    nodes: Sequence[str],
    directed: Sequence[Edge],
    bidirected: Sequence[Edge],
    fills: Mapping[str, str] | None = None,
) -> str:
    """Draw a graph: arrows for mechanisms, dashed arcs for latent common causes."""
    drawn = sketch(nodes, directed, bidirected)
    left, top, right, bottom = drawn.extent()
    boxes = [_box(name, at, drawn.width, (fills or {}).get(name, PLAIN)) for name, at in drawn.centres.items()]
    body = [*map(_arrow, drawn.arrows), *boxes, *(_arc(*points) for points in drawn.arcs)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}" '
        f'width="{right - left:.0f}" style="max-width:100%;background:white" role="img" aria-label="causal graph" '
        f'font-family="sans-serif" font-size="13"><defs>{MARKERS}</defs>{"".join(body)}</svg>'
    )


def _arrow(points: Sequence[Point]) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        path += f"C{middle:.1f},{y0:.1f} {middle:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.4" marker-end="url(#cb-cause)"/>'


def _arc(start: Point, control: Point, end: Point) -> str:
    path = f"M{start[0]:.1f},{start[1]:.1f}Q{control[0]:.1f},{control[1]:.1f} {end[0]:.1f},{end[1]:.1f}"
    ends = 'marker-start="url(#cb-latent)" marker-end="url(#cb-latent)"'
    return f'<path d="{path}" fill="none" stroke="{DASHED}" stroke-width="1.4" stroke-dasharray="5 4" {ends}/>'


def _box(name: str, centre: Point, width: float, fill: str) -> str:
    x, y = centre
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{width:.1f}" height="{HEIGHT:.0f}" '
        f'rx="{HEIGHT / 2:.0f}" fill="{fill}" stroke="{GREY}"/>'
        f'<text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle" fill="#0f172a">{html.escape(name)}</text>'
    )
