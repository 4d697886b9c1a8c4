"""How does a causal graph look on paper?"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from causal_bo_ppl.drawing import DASHED, GREY, HEIGHT, PLAIN, Point, Sketch, sketch
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.problem import COLOURS, Problem

POINTS_PER_INCH = 90
DASHES = (0, (4, 3))


def draw_graph(graph: CausalGraph, ax: Axes | None = None, *, fills: Mapping[str, str] | None = None) -> Axes:
    """Draw causes left of effects; dashed arcs are latent common causes."""
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    ax = _fit(drawn, ax)
    for points in drawn.arrows:
        ax.add_patch(FancyArrowPatch(path=_smooth(points), arrowstyle="-|>", mutation_scale=9, color=GREY))
    for arc in drawn.arcs:
        curve = Path(arc, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        ax.add_patch(
            FancyArrowPatch(path=curve, arrowstyle="<|-|>", mutation_scale=9, color=DASHED, ls=DASHES, zorder=5)
        )
    for name, centre in drawn.centres.items():
        _draw_box(ax, name, centre, drawn.width, (fills or {}).get(name, PLAIN))
    return ax


def draw_problem(problem: Problem, ax: Axes | None = None) -> Axes:
    """Draw what can affect the target; the target and the variables one may set are marked by colour."""
    causes = problem.graph.ancestral(problem.target)
    fills = dict.fromkeys(problem.manipulable, COLOURS["manipulable"]) | {problem.target: COLOURS["target"]}
    ax = draw_graph(causes, ax, fills=fills)
    keys: list[Artist] = [Patch(facecolor=colour, edgecolor=GREY, label=kind) for kind, colour in COLOURS.items()]
    if causes.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False, fontsize="small")
    return ax


def _fit(drawn: Sketch, ax: Axes | None) -> Axes:
    left, top, right, bottom = drawn.extent()
    if ax is None:
        size = max((right - left) / POINTS_PER_INCH, 4.0), max((bottom - top) / POINTS_PER_INCH + 0.3, 1.5)
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.set_axis_off()
    return ax


def _smooth(points: Sequence[Point]) -> Path:
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        vertices += [((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]
        codes += [Path.CURVE4] * 3
    return Path(vertices, codes)


def _draw_box(ax: Axes, name: str, centre: Point, width: float, fill: str) -> None:
    """A box whose text is a path in the same units, so that both scale with the axes."""
    x, y = centre
    style = f"round,pad=0,rounding_size={HEIGHT / 2}"
    corner = x - width / 2, y - HEIGHT / 2
    ax.add_patch(FancyBboxPatch(corner, width, HEIGHT, boxstyle=style, facecolor=fill, edgecolor=GREY, zorder=3))
    text = TextPath((0, 0), name.replace("$", r"\$"), size=13)  # a dollar in a name is a dollar, not mathematics
    box = text.get_extents()
    place = Affine2D().translate(-(box.x0 + box.x1) / 2, -4.5).scale(1, -1).translate(x, y)
    ax.add_patch(PathPatch(place.transform_path(text), color="#0f172a", lw=0.2, zorder=4))
