"""What does a causal graph look like, and which effects can be learned from it?"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

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
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.problem import COLOURS

POINTS_PER_INCH = 90
DASHES = (0, (4, 3))
HEDGE = "#fde68a"


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

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    ax = _fit(drawn, ax)
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": OUTLINE}
    arc = arrow | {"arrowstyle": "<|-|>", "color": DASHED, "ls": DASHES, "zorder": 2}
    for points in drawn.arrows:
        ax.add_patch(FancyArrowPatch(path=_smooth(points), **arrow))
    for points in drawn.arcs:
        curve = Path(points, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        ax.add_patch(FancyArrowPatch(path=curve, **arc))
    for name, centre in drawn.centres.items():
        edge = (AMBER, 2.4) if name in outlined else (OUTLINE, 1.0)
        _draw_box(ax, name, centre, drawn.width, (fills or {}).get(name, PLAIN), *edge)
    return ax


def draw_problem(problem: Problem, ax: Axes | None = None) -> Axes:
    """Draw the ancestral graph of the target.

    The target and the variables that can be intervened on are marked by colour.

    Parameters
    ----------
    problem:
        The problem whose graph is drawn.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.plots.draw_problem(cb.models.load("chain").problem).get_title()
    'min Y'
    """
    causes = problem.graph.ancestral(problem.target)
    fills = dict.fromkeys(problem.manipulable, COLOURS["manipulable"])
    ax = draw_graph(causes, ax, fills=fills | {problem.target: COLOURS["target"]})
    style.entitle(ax, f"{problem.objective} {problem.label(problem.target)}")
    style.legend_below(ax, 3, handles=_legend_keys(COLOURS, causes))
    return ax


def _legend_keys(colours: Mapping[str, str], graph: CausalGraph) -> list[Artist]:
    """Return the patches that explain the colours of boxes, and the line of latent causes."""
    keys: list[Artist] = [
        Patch(facecolor=colour, edgecolor=OUTLINE, label=kind) for kind, colour in colours.items()
    ]
    if graph.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    return keys


def _fit(drawn: Sketch, ax: Axes | None) -> Axes:
    """Return the given Axes, or new ones, without a frame and in the units of the sketch."""
    left, top, right, bottom = drawn.extent()
    width, height = (right - left) / POINTS_PER_INCH, (bottom - top) / POINTS_PER_INCH
    ax = ax or style.new_axes(max(width, 4.0), max(height + 0.3, 1.5))
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
    """Draw a box whose text is a path in the same units, so that both scale with the Axes.

    It is drawn above the arcs, which would otherwise strike out the names that they pass.
    """
    x, y = centre
    look: dict[str, Any] = {"fc": fill, "ec": edge, "lw": wide, "zorder": 3}
    look["boxstyle"] = f"round,pad=0,rounding_size={HEIGHT / 2}"
    ax.add_patch(FancyBboxPatch((x - width / 2, y - HEIGHT / 2), width, HEIGHT, **look))
    text = TextPath((0, 0), style.plain(name), size=13)
    box = text.get_extents()
    position = Affine2D().translate(-(box.x0 + box.x1) / 2, -4.5).scale(1, -1).translate(x, y)
    ax.add_patch(PathPatch(position.transform_path(text), color=INK, lw=0.2, zorder=4))


def draw_sharing(parameters: Parameters, ax: Axes | None = None) -> Axes:
    """Draw which intervention set (row) uses which coordinate of theta_Y (column).

    An experiment on one set informs all sets that share its coordinates.

    Parameters
    ----------
    parameters:
        The coordinates of theta_Y, from `cb.identify(...).parameters(...)`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    table = parameters.sharing()
    sets, names = ([str(name) for name in each] for each in (table.index, table.columns))
    look: dict[str, Any] = {"cmap": ListedColormap([PLAIN, BLUE]), "vmin": 0, "vmax": 1}
    ax = style.draw_matrix(table.to_numpy(), sets, ax, columns=names, **look)
    ax.set_xlabel(f"coordinates of theta ({parameters.kind})")
    ax.set_ylabel(f"intervention set ({len(sets)})")
    size = f"dimension {parameters.dimension}, generic rank {parameters.rank}"
    style.entitle(ax, f"blue: the set uses it; {size}", 60)
    return ax


def draw_identification(found: Identification, ax: Axes | None = None) -> Axes:
    """Draw the graph of an effect, and the hedge that makes it unidentifiable, if there is one.

    All variables of the hedge, a confounded component, have a thick outline, also the target and
    the intervened variables.

    Parameters
    ----------
    found:
        The identification of one set, such as `cb.identify(problem)["X"]`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    hedge = [name for district in found.hedge[:1] for name in district]
    fills = dict.fromkeys(hedge, HEDGE) | dict.fromkeys(found.intervened, COLOURS["manipulable"])
    fills[found.target] = COLOURS["target"]
    ax = draw_graph(found.graph, ax, fills=fills, outlined=hedge)
    colours = {"target": COLOURS["target"], "intervened": COLOURS["manipulable"]}
    keys = _legend_keys(colours, found.graph)
    if hedge:
        keys.append(Patch(facecolor=HEDGE, edgecolor=AMBER, lw=2, label="hedge (confounded)"))
    style.legend_below(ax, handles=keys)
    verdict = f"identifiable ({found.route})" if found.identifiable else "not identifiable"
    style.entitle(ax, f"{found.query}: {verdict}")
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

    The observations are drawn too. The model is Gaussian with the moments of the observational
    data.

    Parameters
    ----------
    found:
        The identification of a set of one variable.
    data:
        Observations of the same graph.
    ax:
        Where to draw; by default a new figure.
    truth:
        A function from values to true effects.
    problem:
        The problem whose units are written beside the names.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    if len(found.intervened) != 1:
        given = ", ".join(found.intervened)
        raise DomainError(f"draw_effect needs a set of one variable, got {{{given}}}")
    if not found.identifiable:
        raise found.not_identifiable()
    if data.nodes != found.graph.nodes:
        raise DataError(
            f"the data are of {listed(data.nodes)}, the effect is on {listed(found.graph.nodes)}"
        )
    seen = np.asarray(data.values)[~np.asarray(data.intervened).any(axis=1)]
    names = found.intervened[0], found.target
    x, y = (found.graph.index(name) for name in names)
    mean, covariance = seen.mean(axis=0), np.cov(seen.T)
    ends = np.array([seen[:, x].min(), seen[:, x].max()])
    ax = ax or style.new_axes(5.2, 4.0)
    ax.plot(seen[:, x], seen[:, y], ".", color=GREY, ms=3, alpha=0.5, label="observations")
    regression = mean[y] + covariance[x, y] / covariance[x, x] * (ends - mean[x])
    x_name, y_name = (style.short(name, 18) for name in names)
    wide: dict[str, Any] = {"lw": 4.0, "alpha": 0.7}  # seen also where both lines are the same
    ax.plot(ends, regression, color=AMBER, label=f"regression E[{y_name} | {x_name}]", **wide)
    effects = [found.evaluate(covariance, mean, {names[0]: float(end)}) for end in ends]
    ax.plot(ends, effects, color=BLUE, label=f"estimand E[{y_name} | do({x_name})]")
    if truth is not None:
        fine = np.linspace(ends[0], ends[1], 100)
        ax.plot(fine, truth(fine), "--", color=INK, label="truth")
    labels = names if problem is None else [problem.label(name) for name in names]
    ax.set(xlabel=style.folded(labels[0], 44), ylabel=style.folded(labels[1]))
    style.entitle(ax, f"effect of {names[0]} on {names[1]}, {len(seen)} observations", 50)
    style.legend_below(ax, 1 if len(x_name + y_name) > 24 else 2)
    return ax
