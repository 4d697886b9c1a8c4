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
from causal_bo_ppl.errors import ArgumentError, DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.layout import DASHED, HEIGHT, PLAIN, Point, sketch
from causal_bo_ppl.graph.layout import GREY as OUTLINE
from causal_bo_ppl.identification import Identification, Parameters
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.problem import NODE_COLOURS

POINTS_PER_INCH = 90
DASHES = (0, (4, 3))
HEDGE_FILL = "#fde68a"


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

    Raises
    ------
    ArgumentError
        If it is no CausalGraph.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> ax = cb.plots.draw_graph(cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"))
    >>> ax.axison
    False
    """
    style.require_kind("draw_graph", graph, CausalGraph, "a problem has its .graph")
    drawn = sketch(graph.nodes, graph.directed, graph.bidirected)
    left, top, right, bottom = drawn.extent()
    width, height = (right - left) / POINTS_PER_INCH, (bottom - top) / POINTS_PER_INCH
    ax = ax or style.new_axes(max(width, 4.0), max(height + 0.3, 1.5))
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.set_axis_off()
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 9, "color": OUTLINE}
    arc = arrow | {"arrowstyle": "<|-|>", "color": DASHED, "ls": DASHES, "zorder": 2}
    for points in drawn.arrows:
        ax.add_patch(FancyArrowPatch(path=_smooth(points), **arrow))
    for ends in drawn.arcs:
        curve = Path(ends, [Path.MOVETO, Path.CURVE3, Path.CURVE3])
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

    Raises
    ------
    ArgumentError
        If it is no Problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.plots.draw_problem(cb.models.load("chain").problem).get_title()
    'min Y'
    """
    style.require_kind("draw_problem", problem, Problem, "a system has its .problem")
    causes = problem.graph.ancestral(problem.target)
    fills = dict.fromkeys(problem.manipulable, NODE_COLOURS["manipulable"])
    ax = draw_graph(causes, ax, fills=fills | {problem.target: NODE_COLOURS["target"]})
    title = f"{problem.objective} {problem.label(problem.target)}"
    return style.finish(ax, title, columns=3, handles=_legend_keys(NODE_COLOURS, causes))


def _legend_keys(colours: Mapping[str, str], graph: CausalGraph) -> list[Artist]:
    """Return the patches that explain the colours of boxes, and the line of latent causes."""
    keys: list[Artist] = [
        Patch(facecolor=colour, edgecolor=OUTLINE, label=kind) for kind, colour in colours.items()
    ]
    if graph.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    return keys


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

    It is drawn above the arcs, which would otherwise strike through the names that they pass.
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

    Raises
    ------
    ArgumentError
        If these are no parameters of identified effects.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> parameters = cb.identify(chain.problem).parameters("structural")
    >>> cb.plots.draw_sharing(parameters).get_ylabel()
    'intervention set (2)'
    """
    advice = "take cb.identify(problem).parameters()"
    style.require_kind("draw_sharing", parameters, Parameters, advice)
    table = parameters.sharing()
    sets, names = ([str(name) for name in each] for each in (table.index, table.columns))
    look: dict[str, Any] = {"cmap": ListedColormap([PLAIN, BLUE]), "vmin": 0, "vmax": 1}
    ax = style.draw_matrix(table.to_numpy(), sets, ax, columns=names, **look)
    size = f"dimension {parameters.dimension}, generic rank {parameters.rank}"
    labels = f"coordinates of theta ({parameters.kind})", f"intervention set ({len(sets)})"
    return style.finish(ax, f"blue: the set uses it; {size}", *labels, columns=0, most=60)


def draw_identification(identification: Identification, ax: Axes | None = None) -> Axes:
    """Draw the graph of an effect, and the hedge that makes it unidentifiable, if there is one.

    All variables of the hedge, a confounded component, have a thick outline, also the target and
    the intervened variables.

    Parameters
    ----------
    identification:
        The identification of one set, such as `cb.identify(problem)["X"]`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the identification of one set.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> cb.plots.draw_identification(cb.identify(chain.problem)["X"]).get_title()
    'P(Y | do(X)): identifiable (y0)'
    """
    advice = 'take one of cb.identify(problem), such as ids["X"]'
    style.require_kind("draw_identification", identification, Identification, advice)
    hedge = [name for district in identification.hedge[:1] for name in district]
    colours = {"target": NODE_COLOURS["target"], "intervened": NODE_COLOURS["manipulable"]}
    fills = dict.fromkeys(hedge, HEDGE_FILL)
    fills |= dict.fromkeys(identification.intervened, colours["intervened"])
    fills[identification.target] = colours["target"]
    ax = draw_graph(identification.graph, ax, fills=fills, outlined=hedge)
    keys = _legend_keys(colours, identification.graph)
    if hedge:
        keys.append(Patch(facecolor=HEDGE_FILL, edgecolor=AMBER, lw=2, label="hedge (confounded)"))
    found = f"identifiable ({identification.route})"
    verdict = found if identification.identifiable else "not identifiable"
    return style.finish(ax, f"{identification.query}: {verdict}", handles=keys)


def draw_effect(
    identification: Identification,
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
    identification:
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

    Raises
    ------
    ArgumentError
        If the set does not have exactly one variable.
    NotIdentifiable
        If the effect is not identifiable.
    DataError
        If the data are of another graph.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> identification = cb.identify(chain.problem)["Z"]
    >>> cb.plots.draw_effect(identification, chain.observe(50, 0)).get_title()
    'effect of Z on Y, 50 observations'
    """
    if len(identification.intervened) != 1:
        given = ", ".join(identification.intervened)
        raise ArgumentError(f"draw_effect needs a set of one variable, got {{{given}}}")
    if not identification.identifiable:
        raise identification.not_identifiable()
    graph = identification.graph
    if data.nodes != graph.nodes:
        raise DataError(f"the data are of {listed(data.nodes)}, the graph of {listed(graph.nodes)}")
    passive = np.asarray(data.values)[~np.asarray(data.intervened).any(axis=1)]
    names = identification.intervened[0], identification.target
    x, y = (graph.index(name) for name in names)
    mean, covariance = passive.mean(axis=0), np.cov(passive.T)
    ends = np.array([passive[:, x].min(), passive[:, x].max()])
    ax = ax or style.new_axes(5.2, 4.0)
    ax.plot(passive[:, x], passive[:, y], ".", color=GREY, ms=3, alpha=0.5, label="observations")
    regression = mean[y] + covariance[x, y] / covariance[x, x] * (ends - mean[x])
    x_name, y_name = (style.short(name, 18) for name in names)
    wide: dict[str, Any] = {"lw": 4.0, "alpha": 0.7}  # seen also where both lines are the same
    ax.plot(ends, regression, color=AMBER, label=f"regression E[{y_name} | {x_name}]", **wide)
    effects = [identification.evaluate(covariance, mean, {names[0]: float(end)}) for end in ends]
    ax.plot(ends, effects, color=BLUE, label=f"estimand E[{y_name} | do({x_name})]")
    if truth is not None:
        fine = np.linspace(ends[0], ends[1], 100)
        ax.plot(fine, truth(fine), "--", color=INK, label="truth")
    label = str if problem is None else problem.label
    title = f"effect of {names[0]} on {names[1]}, {len(passive)} observations"
    columns = 1 if len(x_name + y_name) > 24 else 2
    return style.finish(ax, title, label(names[0]), label(names[1]), columns, most=50)
