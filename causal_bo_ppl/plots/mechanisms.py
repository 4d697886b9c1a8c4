"""How does every variable depend on each of its causes, before and after the observations?

A panel shows one cause and one effect: the mechanism along the cause, with the other causes at
their means, the observations, and the domain of the cause. The response map of the posterior must
offer `mechanism`; see `mechanisms.interfaces.ResponseMap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import BLUE, INK
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.paths import learned_variables

MOST_PANELS, MOST_COLUMNS = 12, 4  # mechanisms that get a panel, and panels side by side
PANEL_LETTERS = 26  # letters that fit along a panel
CURVE_POINTS, CURVE_DRAWS = 120, 400


class Panel(NamedTuple):
    """One cause of one variable.

    places: (n,) values of the cause. values: (n, p) of all variables, the other causes at their
    means. rows: (m, p), the observations in which the effect was not intervened on.
    """

    cause: str
    effect: str
    positions: np.ndarray
    values: np.ndarray
    rows: np.ndarray


def draw_mechanisms(
    post: Posterior,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    edges: Sequence[Edge] | None = None,
    level: float = 0.9,
    truth: CausalSystem | None = None,
    draws: int = CURVE_DRAWS,
    key: jax.Array | int = 0,
) -> np.ndarray:
    """Draw every mechanism along each of its causes, with its band, the observations and domains.

    Other causes are held at their means over the observations. A band that is far wider than the
    range of observations and mean is cut off. Observations are moved by the fitted mechanism to
    where they would lie had their other causes been at these means; with one cause they are drawn
    as they are. Beyond the range of the observations, which is shaded, all is extrapolation.

    Parameters
    ----------
    post:
        A posterior whose theta holds the mechanisms: nonlinear ones, or linear ones with structural
        parameters.
    axes:
        As many Axes as there are panels; a new figure by default.
    edges:
        Pairs (cause, effect); by default all between the target and its causes whose mechanism is
        learned, at most 12, those nearest to the target.
    level:
        The share of posterior draws within the band at each value of the cause.
    truth:
        A system whose true mechanisms are drawn too.
    draws:
        How many draws the band is made of.
    key:
        For these draws.

    Returns
    -------
    numpy.ndarray
        The Axes, one for each panel.
    """
    mechanism = _require_mechanisms("draw_mechanisms", post)
    style.half_width(level)  # refuses a level such as 90
    chosen, which = _choose(post, edges)
    theta = post.draws(read_count("draws", draws, 2), as_key(key))
    theta = theta[np.isfinite(theta).all(axis=1)]
    title = f"{post.method}, {post.n_observations} observations: {which}"
    panels = _panels("draw_mechanisms", axes, chosen, title)
    for ax, edge in zip(panels, chosen, strict=True):
        panel = _panel(post, *edge)
        curves = mechanism(theta, panel.effect, panel.values)
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
        middle = mechanism(post.mean[None], panel.effect, panel.values)[0]
        shade: dict[str, Any] = {"color": BLUE, "alpha": 0.2, "lw": 0}
        ax.fill_between(panel.positions, low, high, label=f"{level:.0%} of draws", **shade)
        ax.plot(panel.positions, middle, color=BLUE, label="posterior mean")
        if truth is not None:
            means = truth.mechanisms(panel.values).mean[:, post.problem.graph.index(panel.effect)]
            ax.plot(panel.positions, means, "--", color=INK, lw=1.2, label="truth")
        _finish(ax, post, panel, _moved(post, mechanism, panel), middle, [low, high])
    return _explain(panels, axes is None)


def draw_prior(
    post: Posterior,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    edges: Sequence[Edge] | None = None,
    n: int = 30,
    key: jax.Array | int = 0,
) -> np.ndarray:
    """Draw mechanisms from the prior, beside the observations.

    Each line is one draw of the prior, along one cause and with the others at their means. Where
    the observations lie far from all lines, or fill a tiny part of their range, the prior conflicts
    with the data; lines that lie beyond the picture are counted.

    Parameters
    ----------
    post:
        A posterior as in `draw_mechanisms`, whose prior can be drawn from.
    axes, edges:
        As in `draw_mechanisms`.
    n:
        How many draws of the prior are drawn.
    key:
        For these draws.

    Returns
    -------
    numpy.ndarray
        The Axes, one for each panel.
    """
    mechanism = _require_mechanisms("draw_prior", post)
    count = read_count("n", n, 1)
    before = post.distribution.draw_prior(count, as_key(key))
    if before is None:
        raise ModelError(
            f"nothing can be drawn from the prior of this posterior ({type(post.prior).__name__}): "
            "it is scaled to the data; fit with a prior that is a distribution by itself"
        )
    chosen, which = _choose(post, edges)
    panels = _panels("draw_prior", axes, chosen, f"{count} draws of the prior: {which}")
    for ax, edge in zip(panels, chosen, strict=True):
        panel = _panel(post, *edge)
        curves = mechanism(before.theta[:count], panel.effect, panel.values)
        lines = ax.plot(panel.positions, curves.T, color=BLUE, lw=0.8, alpha=0.45)
        lines[0].set_label("a draw of the prior")
        seen = panel.rows[:, post.problem.graph.index(panel.effect)]
        _finish(ax, post, panel, seen, seen, np.quantile(curves, [0.1, 0.9], axis=0))
        _count_beyond(ax, curves)
    return _explain(panels, axes is None)


def _count_beyond(ax: Axes, curves: np.ndarray) -> None:
    """Write how many of the lines (n, k) do not pass through the picture, if there are any."""
    low, high = ax.get_ylim()
    beyond = int(((curves > high).all(axis=1) | (curves < low).all(axis=1)).sum())
    if beyond:
        text = f"{beyond} of {len(curves)} draws\nlie above or below"
        position: dict[str, Any] = {"transform": ax.transAxes, "ha": "center", "va": "top"}
        ax.text(0.5, 0.97, text, fontsize="x-small", color=BLUE, **position)


def _require_mechanisms(who: str, post: Posterior) -> Callable[..., Any]:
    """Return the map from theta to mechanisms; refuse a posterior that does not hold them."""
    require_posterior(who, post)
    mechanism = offered(post.distribution.response, "mechanism")
    if mechanism is None:
        raise ModelError(
            f"{who} shows mechanisms, but theta of this posterior ({post.kind} parameters) does "
            "not hold them; fit structural parameters or mechanisms of another family"
        )
    return mechanism


def _choose(post: Posterior, edges: Sequence[Edge] | None) -> tuple[list[Edge], str]:
    """Return the edges that get a panel, in causal order, and which they are in words."""
    graph, learned = post.problem.graph, learned_variables(post)
    known = [(cause, effect) for effect in learned for cause in graph.parents(effect)]
    if not known:
        raise ModelError("no mechanism that is learned has a cause; there is nothing to draw")
    asked = known[-MOST_PANELS:] if edges is None else [tuple(edge) for edge in edges]
    if strange := [edge for edge in asked if edge not in known] or ([] if asked else [()]):
        arrows = [" -> ".join(edge) for edge in known]
        raise ModelError(
            f"{' -> '.join(map(str, strange[0])) or 'nothing'!r} is no mechanism that was learned; "
            f"choose among {listed(arrows, most=8)}"
        )
    chosen = [edge for edge in known if edge in asked]
    if len(chosen) == len(known):
        return chosen, "all mechanisms, cause by cause"
    return chosen, f"{len(chosen)} of {len(known)} pairs of cause and effect"


def _panel(post: Posterior, cause: str, effect: str) -> Panel:
    """Return at which values one mechanism is drawn."""
    graph, data = post.problem.graph, post.data
    rows = data.values[~data.intervened[:, graph.index(effect)]]
    ends = [*post.problem.domains.get(cause, ()), *rows[:, graph.index(cause)].tolist()]
    if not ends:
        raise ModelError(f"{cause!r} has no domain and no observations, so there is no range")
    positions = np.linspace(min(ends), max(ends), CURVE_POINTS)
    middle = rows.mean(axis=0) if len(rows) else np.zeros(len(graph.nodes))
    values = np.repeat(middle[None], CURVE_POINTS, axis=0)
    values[:, graph.index(cause)] = positions
    return Panel(cause, effect, positions, values, rows)


def _moved(post: Posterior, mechanism: Callable[..., Any], panel: Panel) -> np.ndarray:
    """Return the effect in every observation (m,), had the other causes been at their means.

    It is the residual of the fitted mechanism plus the mechanism along the cause alone.
    """
    graph, rows = post.problem.graph, panel.rows
    alone = np.repeat(panel.values[:1], len(rows), axis=0)
    alone[:, graph.index(panel.cause)] = rows[:, graph.index(panel.cause)]
    fitted, along = (mechanism(post.mean[None], panel.effect, each)[0] for each in (rows, alone))
    return np.asarray(rows[:, graph.index(panel.effect)] - fitted + along)


def _panels(who: str, given: Any, chosen: list[Edge], title: str) -> np.ndarray:
    """Return an Axes for each mechanism; those of a new figure have a title above them."""
    names = [" -> ".join(edge) for edge in chosen]
    panels = style.panel_axes(who, given, names, most_columns=MOST_COLUMNS, panel=(3.1, 2.7))
    if given is None:
        figure = panels[0].figure
        figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)
        figure.suptitle(style.folded(title, int(figure.get_figwidth() / 0.09)), fontsize="medium")
    return panels


def _finish(
    ax: Axes, post: Posterior, panel: Panel, heights: np.ndarray, line: np.ndarray, band: Any
) -> None:
    """Add the observations, their range, the domain and the names.

    The vertical range holds all of the observations and of the line.
    """
    problem = post.problem
    seen = panel.rows[:, problem.graph.index(panel.cause)]
    ax.plot(seen, heights, ".", color=INK, ms=3, alpha=0.5, zorder=3, label="observations")
    style.mark_data(
        ax, seen, (panel.positions[0], panel.positions[-1]), problem.domains.get(panel.cause)
    )
    shown = np.append(heights, line)
    style.set_heights(ax, shown if len(shown) else np.ravel(band), band)
    ax.set_xlabel(style.folded(problem.label(panel.cause), PANEL_LETTERS))
    ax.set_ylabel(style.folded(problem.label(panel.effect), PANEL_LETTERS))
    cause, effect = (
        style.short(each, PANEL_LETTERS // 2 - 3) for each in (panel.cause, panel.effect)
    )
    ax.set_title(f"{cause} → {effect}", fontsize="medium")


def _explain(panels: np.ndarray, is_new: bool) -> np.ndarray:
    """Add one legend: below all panels of a new figure, or in the first of the given Axes."""
    found = [pair for ax in panels for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    shown: dict[str, Any] = {label: handle for handle, label in found}
    if is_new:
        position = {"loc": "outside lower center", "ncols": 3 if len(panels) < 3 else 6}
        panels[0].figure.legend(shown.values(), shown.keys(), **position, **style.SMALL_LEGEND)
    else:
        panels[0].legend(shown.values(), shown.keys(), **style.SMALL_LEGEND)
    return panels
