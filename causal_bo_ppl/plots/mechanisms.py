"""How does every variable depend on each of its causes, before and after the observations?

A panel shows one cause and one effect: the mechanism along the cause, with the other causes at
their means, the observations, and the domain of the cause. The response map of the posterior must
offer `mechanism`; see `mechanisms.base.ResponseMap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.errors import ArgumentError, PosteriorError, listed
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import require_prior
from causal_bo_ppl.inference.posterior import require_posterior
from causal_bo_ppl.inputs import as_key, read_count, read_share
from causal_bo_ppl.mechanisms.base import MechanismMap
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import BLUE, INK
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.paths import learned_variables

MOST_PANELS, MOST_COLUMNS = 12, 4  # mechanisms that get a panel, and panels side by side
PANEL_LETTERS = 26  # letters that fit along a panel
CURVE_POINTS, CURVE_DRAWS = 120, 400


class Panel(NamedTuple):
    """One cause of one variable.

    grid: (n,) values of the cause. values: (n, p) of all variables, the other causes at their
    means. observations: (m, p), those in which the effect was not intervened on.
    """

    cause: str
    effect: str
    grid: np.ndarray
    values: np.ndarray
    observations: np.ndarray


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

    Raises
    ------
    PosteriorError
        If theta does not hold the mechanisms.
    ArgumentError
        If an edge is not a learned mechanism, or the number of Axes is wrong.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> [ax.get_xlabel() for ax in cb.plots.draw_mechanisms(post)]
    ['X', 'Z']
    """
    mechanism = _require_mechanisms("draw_mechanisms", post)
    tail = (1 - read_share("level", level)) / 2
    chosen, which = _choose(post, edges)
    theta = post.draws(read_count("draws", draws, 2), as_key(key))
    theta = theta[np.isfinite(theta).all(axis=1)]
    title = f"{post.method}, {post.n_observations} observations: {which}"
    panels = _panels("draw_mechanisms", axes, chosen, title)
    for ax, edge in zip(panels, chosen, strict=True):
        panel = _panel(post, *edge)
        curves = mechanism(theta, panel.effect, panel.values)
        low, high = np.quantile(curves, [tail, 1 - tail], axis=0)
        middle = mechanism(post.mean[None], panel.effect, panel.values)[0]
        style.shade(ax, panel.grid, low, high, BLUE, label=f"{level:.0%} of draws")
        ax.plot(panel.grid, middle, color=BLUE, label="posterior mean")
        if truth is not None:
            means = truth.mechanisms(panel.values).mean[:, post.problem.graph.index(panel.effect)]
            ax.plot(panel.grid, means, "--", color=INK, lw=1.2, label="truth")
        adjusted = _partial_residuals(post, mechanism, panel)
        _finish(ax, post, panel, adjusted, middle, [low, high])
    return style.legend_of_panels(panels, 6 if len(panels) > 2 else 3)


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
    with the data; lines that lie beyond the picture are counted. `draw_prior_predictive` shows
    whole data sets.

    Parameters
    ----------
    post:
        A posterior as in `draw_mechanisms`, whose prior can be drawn from; one that is scaled to
        the data as `cb.priors.ScaledPrior` says.
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

    Raises
    ------
    PosteriorError
        If theta does not hold the mechanisms, or nothing can be drawn from the prior: it is
        improper, or not known.
    ArgumentError
        If an edge is not a learned mechanism, or the number of Axes is wrong.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0), prior=cb.priors.FixedPrior())
    >>> [ax.get_xlabel() for ax in cb.plots.draw_prior(post, n=5)]
    ['X', 'Z']
    """
    mechanism = _require_mechanisms("draw_prior", post)
    count = read_count("n", n, 1)
    before = require_prior("draw_prior", post.distribution.draw_prior, count, as_key(key))
    chosen, which = _choose(post, edges)
    panels = _panels("draw_prior", axes, chosen, f"{count} draws of the prior: {which}")
    for ax, edge in zip(panels, chosen, strict=True):
        panel = _panel(post, *edge)
        curves = mechanism(before.theta[:count], panel.effect, panel.values)
        lines = ax.plot(panel.grid, curves.T, color=BLUE, lw=0.8, alpha=0.45)
        lines[0].set_label("a draw of the prior")
        seen = panel.observations[:, post.problem.graph.index(panel.effect)]
        _finish(ax, post, panel, seen, seen, np.quantile(curves, [0.1, 0.9], axis=0))
        _count_beyond(ax, curves)
    return style.legend_of_panels(panels, 6 if len(panels) > 2 else 3)


def _count_beyond(ax: Axes, curves: np.ndarray) -> None:
    """Write how many of the lines (n, k) do not pass through the picture, if there are any."""
    low, high = ax.get_ylim()
    beyond = int(((curves > high).all(axis=1) | (curves < low).all(axis=1)).sum())
    if beyond:
        text = f"{beyond} of {len(curves)} draws\nlie above or below"
        position: dict[str, Any] = {"transform": ax.transAxes, "ha": "center", "va": "top"}
        ax.text(0.5, 0.97, text, fontsize="x-small", color=BLUE, **position)


def _require_mechanisms(caller: str, post: Posterior) -> Callable[..., Any]:
    """Return the map from theta to mechanisms; refuse a posterior that does not hold them."""
    require_posterior(caller, post)
    known = post.distribution.response
    if not isinstance(known, MechanismMap):
        raise PosteriorError(
            f"{caller} shows mechanisms, but theta of this posterior ({post.kind} parameters) does "
            "not hold them; fit structural parameters or mechanisms of another family"
        )
    return known.mechanism


def _choose(post: Posterior, edges: Sequence[Edge] | None) -> tuple[list[Edge], str]:
    """Return the edges that get a panel, in causal order, and a description of them."""
    graph, learned = post.problem.graph, learned_variables(post)
    known = [(cause, effect) for effect in learned for cause in graph.parents(effect)]
    if not known:
        raise PosteriorError("no mechanism that is learned has a cause; there is nothing to draw")
    asked = known[-MOST_PANELS:] if edges is None else [tuple(edge) for edge in edges]
    if not asked or not set(asked) <= set(known):
        arrows = listed([" -> ".join(edge) for edge in known], most=8)
        given = listed([" -> ".join(edge) for edge in asked], most=8)
        raise ArgumentError(f"edges must be mechanisms that were learned ({arrows}); got {given}")
    chosen = [edge for edge in known if edge in asked]
    if len(chosen) == len(known):
        return chosen, "all mechanisms, cause by cause"
    return chosen, f"{len(chosen)} of {len(known)} pairs of cause and effect"


def _panel(post: Posterior, cause: str, effect: str) -> Panel:
    """Return at which values one mechanism is drawn."""
    graph, data = post.problem.graph, post.data
    observations = data.values[~data.intervened[:, graph.index(effect)]]
    ends = [*post.problem.domains.get(cause, ()), *observations[:, graph.index(cause)].tolist()]
    if not ends:
        raise PosteriorError(f"{cause!r} has no domain and no observations, so there is no range")
    grid = np.linspace(min(ends), max(ends), CURVE_POINTS)
    middle = observations.mean(axis=0) if len(observations) else np.zeros(len(graph.nodes))
    values = np.tile(middle, (CURVE_POINTS, 1))
    values[:, graph.index(cause)] = grid
    return Panel(cause, effect, grid, values, observations)


def _partial_residuals(post: Posterior, mechanism: Callable[..., Any], panel: Panel) -> np.ndarray:
    """Return the effect in every observation (m,), had the other causes been at their means.

    It is the residual of the fitted mechanism plus the mechanism along the cause alone.
    """
    graph, observations = post.problem.graph, panel.observations
    alone = np.tile(panel.values[0], (len(observations), 1))
    alone[:, graph.index(panel.cause)] = observations[:, graph.index(panel.cause)]
    fitted, along = (
        mechanism(post.mean[None], panel.effect, values)[0] for values in (observations, alone)
    )
    return np.asarray(observations[:, graph.index(panel.effect)] - fitted + along)


def _panels(caller: str, given: Any, chosen: list[Edge], title: str) -> np.ndarray:
    """Return an Axes for each mechanism; those of a new figure have a title above them."""
    names = [" -> ".join(edge) for edge in chosen]
    panels = style.panel_axes(caller, given, names, most_columns=MOST_COLUMNS, panel=(3.1, 2.7))
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
    observed = panel.observations[:, problem.graph.index(panel.cause)]
    ax.plot(observed, heights, ".", color=INK, ms=3, alpha=0.5, zorder=3, label="observations")
    domain = problem.domains.get(panel.cause)
    style.mark_data(ax, observed, (panel.grid[0], panel.grid[-1]), domain)
    shown = np.append(heights, line)
    style.set_heights(ax, shown if len(shown) else np.ravel(band), band)
    ax.set_xlabel(style.folded(problem.label(panel.cause), PANEL_LETTERS))
    ax.set_ylabel(style.folded(problem.label(panel.effect), PANEL_LETTERS))
    names = (style.short(name, PANEL_LETTERS // 2 - 3) for name in (panel.cause, panel.effect))
    ax.set_title(" → ".join(names), fontsize="medium")
