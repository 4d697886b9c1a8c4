"""What does a causal graph look like, and what can be learned from it?"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, DomainError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.layout import DASHED, HEIGHT, PLAIN, Point, Sketch, sketch
from causal_bo_ppl.graph.layout import GREY as OUTLINE
from causal_bo_ppl.identification import Identification, Parameters
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, MOST_LABELS, plain
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.display import COLOURS

POINTS_PER_INCH = 90
DASHES = (0, (4, 3))
HEDGE = "#fde68a"
USED = ListedColormap([PLAIN, BLUE])


def draw_graph(
    graph: CausalGraph, ax: Axes | None = None, *, fills: Mapping[str, str] | None = None
) -> Axes:
    """Draw causes left of effects; dashed arcs are latent common causes."""
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    ax = _fit(drawn, ax)
    for points in drawn.arrows:
        ax.add_patch(
            FancyArrowPatch(path=_smooth(points), arrowstyle="-|>", mutation_scale=9, color=OUTLINE)
        )
    for arc in drawn.arcs:
        curve = Path(arc, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        ax.add_patch(
            FancyArrowPatch(
                path=curve, arrowstyle="<|-|>", mutation_scale=9, color=DASHED, ls=DASHES, zorder=5
            )
        )
    for name, centre in drawn.centres.items():
        _draw_box(ax, name, centre, drawn.width, (fills or {}).get(name, PLAIN))
    return ax


def draw_problem(problem: Problem, ax: Axes | None = None) -> Axes:
    """Draw what can affect the target.

    The target and the variables that may be set are marked by colour.
    """
    causes = problem.graph.ancestral(problem.target)
    fills = dict.fromkeys(problem.manipulable, COLOURS["manipulable"]) | {
        problem.target: COLOURS["target"]
    }
    ax = draw_graph(causes, ax, fills=fills)
    keys: list[Artist] = [
        Patch(facecolor=colour, edgecolor=OUTLINE, label=kind) for kind, colour in COLOURS.items()
    ]
    if causes.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    ax.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=3,
        frameon=False,
        fontsize="small",
    )
    return ax


def _fit(drawn: Sketch, ax: Axes | None) -> Axes:
    """Return the given Axes, or new ones, without a frame and in the units of the sketch."""
    left, top, right, bottom = drawn.extent()
    if ax is None:
        size = (
            max((right - left) / POINTS_PER_INCH, 4.0),
            max((bottom - top) / POINTS_PER_INCH + 0.3, 1.5),
        )
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.set_axis_off()
    return ax


def _smooth(points: Sequence[Point]) -> Path:
    """Return a smooth curve through the points that is horizontal at each of them."""
    vertices, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        vertices += [((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]
        codes += [Path.CURVE4] * 3
    return Path(vertices, codes)


def _draw_box(ax: Axes, name: str, centre: Point, width: float, fill: str) -> None:
    """Draw a box whose text is a path in the same units, so that both scale with the axes."""
    x, y = centre
    style = f"round,pad=0,rounding_size={HEIGHT / 2}"
    corner = x - width / 2, y - HEIGHT / 2
    ax.add_patch(
        FancyBboxPatch(
            corner, width, HEIGHT, boxstyle=style, facecolor=fill, edgecolor=OUTLINE, zorder=3
        )
    )
    text = TextPath((0, 0), plain(name), size=13)
    box = text.get_extents()
    place = Affine2D().translate(-(box.x0 + box.x1) / 2, -4.5).scale(1, -1).translate(x, y)
    ax.add_patch(PathPatch(place.transform_path(text), color=INK, lw=0.2, zorder=4))


def draw_sharing(parameters: Parameters, ax: Axes | None = None) -> Axes:
    """Draw which intervention set (row) uses which coordinate of theta_Y (column).

    Sets that use a coordinate share what an experiment on one of them tells about it.
    """
    table = parameters.sharing()
    rows, columns = table.shape
    if ax is None:
        size = max(4.0, 0.28 * columns + 2.0), min(max(2.5, 0.2 * rows + 1.6), 9.0)
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.pcolormesh(
        table.to_numpy(),
        cmap=USED,
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=0.5 if rows < 100 else 0,
    )
    every = -(-rows // MOST_LABELS)
    ax.set_xticks(
        np.arange(columns) + 0.5,
        [plain(name) for name in table.columns],
        rotation=90,
        fontsize="small",
    )
    labels = [plain(str(name)) for name in table.index[::every]]
    ax.set_yticks(np.arange(0, rows, every) + 0.5, labels, fontsize="x-small")
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel=f"coordinates of theta ({parameters.kind})", ylabel=f"intervention set ({rows})")
    ax.set_title(
        f"dimension {parameters.dimension}, generic rank {parameters.rank}", fontsize="medium"
    )
    return ax


def draw_identification(found: Identification, ax: Axes | None = None) -> Axes:
    """Draw the graph of an effect.

    Where the effect cannot be learned, the confounded component is marked.
    """
    fills = {name: HEDGE for district in found.hedge[:1] for name in district}
    fills |= dict.fromkeys(found.intervened, COLOURS["manipulable"]) | {
        found.target: COLOURS["target"]
    }
    ax = draw_graph(found.graph, ax, fills=fills)
    keys: list[Artist] = [
        Patch(facecolor=COLOURS["target"], edgecolor=OUTLINE, label="target"),
        Patch(facecolor=COLOURS["manipulable"], edgecolor=OUTLINE, label="intervened"),
    ]
    if found.graph.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    if HEDGE in fills.values():
        keys.append(Patch(facecolor=HEDGE, edgecolor=OUTLINE, label="rest of the hedge"))
    ax.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        frameon=False,
        fontsize="small",
    )
    verdict = f"identifiable ({found.route})" if found.identifiable else "not identifiable"
    ax.set_title(plain(f"{found.query}: {verdict}"), fontsize="medium")
    return ax


def draw_effect(
    found: Identification,
    data: Data,
    ax: Axes | None = None,
    *,
    truth: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Axes:
    """Draw E[Y | do(X = x)] by the verified estimand beside the regression E[Y | X = x].

    The rows are drawn too. The set must have one variable. The model is Gaussian with the moments
    of the observational rows. truth: a function from values to true effects.
    """
    if len(found.intervened) != 1:
        raise DomainError(
            f"a line needs a set of one variable, got {{{', '.join(found.intervened)}}}"
        )
    if not found.identifiable:
        raise found.not_identifiable()
    if data.nodes != found.graph.nodes:
        raise DataError(
            f"the rows are of {listed(data.nodes)}, the effect is on {listed(found.graph.nodes)}"
        )
    rows = np.asarray(data.values)[~np.asarray(data.intervened).any(axis=1)]
    name, (x, y) = (
        found.intervened[0],
        (found.graph.index(v) for v in (found.intervened[0], found.target)),
    )
    mean, covariance = rows.mean(axis=0), np.cov(rows.T)
    ends = np.array([rows[:, x].min(), rows[:, x].max()])
    if ax is None:
        ax = plt.figure(figsize=(5.2, 4.0), layout="constrained").add_subplot()
    ax.plot(rows[:, x], rows[:, y], ".", color=GREY, ms=3, alpha=0.5, label="observed rows")
    regression = mean[y] + covariance[x, y] / covariance[x, x] * (ends - mean[x])
    ax.plot(ends, regression, color=AMBER, label=plain(f"regression E[{found.target} | {name}]"))
    learned = [found.evaluate(covariance, mean, {name: float(end)}) for end in ends]
    ax.plot(ends, learned, color=BLUE, label=plain(f"estimand E[{found.target} | do({name})]"))
    if truth is not None:
        fine = np.linspace(ends[0], ends[1], 100)
        ax.plot(fine, truth(fine), "--", color=INK, label="truth")
    ax.set(xlabel=plain(name), ylabel=plain(found.target))
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize="small"
    )
    return ax
