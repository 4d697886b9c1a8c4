"""What does a causal graph look like, and what can be learned from it?"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

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
from causal_bo_ppl.plots.labels import (
    CUT,
    LETTER,
    SIDE,
    distinct,
    entitle,
    figure_beside,
    folded,
    legend_below,
    plain,
    short,
)
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, MOST_LABELS
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.problem import COLOURS

POINTS_PER_INCH = 90
DASHES = (0, (4, 3))
HEDGE = "#fde68a"
USED = ListedColormap([PLAIN, BLUE])


def draw_graph(
    graph: CausalGraph,
    ax: Axes | None = None,
    *,
    fills: Mapping[str, str] | None = None,
    outlined: Collection[str] = (),
) -> Axes:
    """Draw causes left of effects; dashed arcs are latent common causes.

    Parameters
    ----------
    graph:
        The graph, of which every variable is a box.
    ax:
        Where to draw; by default a new figure.
    fills:
        {variable: colour} of boxes that are not plain.
    outlined:
        Variables whose boxes have a thick outline.
    """
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
                path=curve, arrowstyle="<|-|>", mutation_scale=9, color=DASHED, ls=DASHES, zorder=2
            )
        )
    for name, centre in drawn.centres.items():
        edge = (AMBER, 2.4) if name in outlined else (OUTLINE, 1.0)
        _draw_box(ax, name, centre, drawn.width, (fills or {}).get(name, PLAIN), *edge)
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
    entitle(ax, f"{problem.objective} {problem.label(problem.target)}")
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


def _draw_box(
    ax: Axes, name: str, centre: Point, width: float, fill: str, edge: str, wide: float
) -> None:
    """Draw a box whose text is a path in the same units, so that both scale with the axes.

    It is drawn above the arcs, which would else strike out the names that they pass.
    """
    x, y = centre
    style = f"round,pad=0,rounding_size={HEIGHT / 2}"
    corner = x - width / 2, y - HEIGHT / 2
    ax.add_patch(
        FancyBboxPatch(corner, width, HEIGHT, boxstyle=style, fc=fill, ec=edge, lw=wide, zorder=3)
    )
    text = TextPath((0, 0), plain(name), size=13)
    box = text.get_extents()
    position = Affine2D().translate(-(box.x0 + box.x1) / 2, -4.5).scale(1, -1).translate(x, y)
    ax.add_patch(PathPatch(position.transform_path(text), color=INK, lw=0.2, zorder=4))


def draw_sharing(parameters: Parameters, ax: Axes | None = None) -> Axes:
    """Draw which intervention set (row) uses which coordinate of theta_Y (column).

    Sets that use a coordinate share what an experiment on one of them tells about it.
    """
    table = parameters.sharing()
    rows, columns = table.shape
    sets, names = ([str(name) for name in each] for each in (table.index, table.columns))
    if ax is None:
        below = LETTER * max(map(len, distinct(names)), default=0)
        height = min(max(1.6, 0.2 * rows), 8.0) + below + 0.9
        ax, labels = figure_beside(sets, max(2.6, 0.28 * columns) + 0.6, height)
    else:
        labels = distinct(sets, CUT)
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
        distinct(names),
        rotation=90,
        fontsize="small",
    )
    ax.set_yticks(np.arange(0, rows, every) + 0.5, labels[::every], fontsize="x-small")
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel=f"coordinates of theta ({parameters.kind})", ylabel=f"intervention set ({rows})")
    entitle(
        ax,
        f"blue: the set uses it; dimension {parameters.dimension}, generic rank {parameters.rank}",
    )
    return ax


def draw_identification(found: Identification, ax: Axes | None = None) -> Axes:
    """Draw the graph of an effect.

    Where the effect cannot be learned, all variables of the confounded component (the hedge) have
    a thick outline, also the target and what is set.
    """
    hedge = [name for district in found.hedge[:1] for name in district]
    fills = dict.fromkeys(hedge, HEDGE)
    fills |= dict.fromkeys(found.intervened, COLOURS["manipulable"]) | {
        found.target: COLOURS["target"]
    }
    ax = draw_graph(found.graph, ax, fills=fills, outlined=hedge)
    keys: list[Artist] = [
        Patch(facecolor=COLOURS["target"], edgecolor=OUTLINE, label="target"),
        Patch(facecolor=COLOURS["manipulable"], edgecolor=OUTLINE, label="intervened"),
    ]
    if found.graph.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    if hedge:
        keys.append(Patch(facecolor=HEDGE, edgecolor=AMBER, lw=2, label="hedge (confounded)"))
    ax.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        ncols=2,
        frameon=False,
        fontsize="small",
    )
    verdict = f"identifiable ({found.route})" if found.identifiable else "not identifiable"
    entitle(ax, f"{found.query}: {verdict}")
    return ax


def draw_effect(
    found: Identification,
    data: Data,
    ax: Axes | None = None,
    *,
    truth: Callable[[np.ndarray], np.ndarray] | None = None,
    problem: Problem | None = None,
) -> Axes:
    """Draw E[Y | do(X = x)] by the verified estimand beside the regression E[Y | X = x].

    The rows are drawn too. The model is Gaussian with the moments of the observational rows.

    Parameters
    ----------
    found:
        The identification of a set of one variable.
    data:
        Rows of the same graph.
    ax:
        Where to draw; by default a new figure.
    truth:
        A function from values to true effects.
    problem:
        Whose units are written beside the names.
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
    x_name, y_name = (short(each, 18) for each in (name, found.target))
    wide: dict[str, Any] = {
        "color": AMBER,
        "lw": 4.0,
        "alpha": 0.7,
    }  # seen also where both lines are the same
    ax.plot(ends, regression, label=f"regression E[{y_name} | {x_name}]", **wide)
    learned = [found.evaluate(covariance, mean, {name: float(end)}) for end in ends]
    ax.plot(ends, learned, color=BLUE, label=f"estimand E[{y_name} | do({x_name})]")
    if truth is not None:
        fine = np.linspace(ends[0], ends[1], 100)
        ax.plot(fine, truth(fine), "--", color=INK, label="truth")
    x_label, y_label = (
        each if problem is None else problem.label(each) for each in (name, found.target)
    )
    ax.set(xlabel=folded(x_label, 44), ylabel=folded(y_label, SIDE))
    entitle(ax, f"effect of {name} on {found.target}, {len(rows)} rows observed", 50)
    legend_below(ax, 1 if len(x_name + y_name) > 24 else 2)
    return ax
