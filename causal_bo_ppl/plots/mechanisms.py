"""How does every variable depend on each of its causes, before and after the rows?

A panel shows one cause and one effect: the mechanism along the cause, with the other causes at
their means, the rows, and where the cause may be set. The response map of the posterior must offer
`mechanism`; see `mechanisms.interfaces.ResponseMap`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.plots.labels import folded, short
from causal_bo_ppl.plots.style import BLUE, INK, half_width, mark_data, set_heights
from causal_bo_ppl.systems import CausalSystem
from causal_bo_ppl.theory.paths import learned_variables

MOST = 12  # mechanisms that get a panel, those nearest to the target
COLUMNS = 4  # panels side by side, at most
PANEL = 26  # letters that fit along a panel
POINTS, DRAWS = 120, 400  # of a curve


class Panel(NamedTuple):
    """One cause of one variable.

    places: (n,) values of the cause. values: (n, p) of all variables, the other causes at their
    means. rows: (m, p), those in which the effect was not set.
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
    draws: int = DRAWS,
    key: jax.Array | int = 0,
) -> np.ndarray:
    """Draw every mechanism along each of its causes, with its band, the rows, and where do() goes.

    Other causes are held at their means over the rows. A band that is far wider than what the rows
    and the mean span is cut off. Rows are moved to where they would lie had
    their other causes been at these means, by the fitted mechanism; with one cause they are as
    they were seen. Beyond the range of the rows, which is shaded, all is extrapolation.

    Parameters
    ----------
    post:
        A posterior whose theta holds the mechanisms: bent ones, or linear ones with structural
        parameters.
    axes:
        As many Axes as there are panels; a new figure by default.
    edges:
        Pairs (cause, effect); by default all between the target and its causes whose mechanism is
        learned, at most 12, those nearest to the target.
    level:
        The share of posterior draws within the band at each place.
    truth:
        A system whose true mechanisms are drawn too.
    draws:
        How many draws the band is made of.
    key:
        For these draws.

    Returns
    -------
    np.ndarray
        The Axes, one for each panel.
    """
    mechanism = _require_mechanisms("draw_mechanisms", post)
    half_width(level)  # refuses a level such as 90
    chosen, known = _choose(post, edges)
    theta = post.draws(read_count("draws", draws, 2), as_key(key))
    theta = theta[np.isfinite(theta).all(axis=1)]
    panels = [_panel(post, *edge) for edge in chosen]
    positions = _axes(
        axes, chosen, f"{post.method}, {post.n_observations} rows: {_which(chosen, known)}"
    )
    for ax, panel in zip(positions, panels, strict=True):
        curves = mechanism(theta, panel.effect, panel.values)
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
        middle = mechanism(post.mean[None], panel.effect, panel.values)[0]
        ax.fill_between(
            panel.positions, low, high, color=BLUE, alpha=0.2, lw=0, label=f"{level:.0%} of draws"
        )
        ax.plot(panel.positions, middle, color=BLUE, label="posterior mean")
        if truth is not None:
            at = post.problem.graph.index(panel.effect)
            ax.plot(
                panel.positions,
                truth.mechanisms(panel.values).mean[:, at],
                "--",
                color=INK,
                lw=1.2,
                label="truth",
            )
        _finish(ax, post, panel, _moved(post, mechanism, panel), middle, [low, high])
    return _legend(positions, axes is None)


def draw_prior(
    post: Posterior,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    edges: Sequence[Edge] | None = None,
    n: int = 30,
    key: jax.Array | int = 0,
) -> np.ndarray:
    """Draw mechanisms that were plausible before any row, beside the rows that came.

    Each line is one draw of the prior, along one cause and with the others at their means. Where
    the rows lie far from all lines, or fill a tiny part of what the lines do, the prior is at odds
    with them; lines that lie beyond the picture are counted. Parameters are as in
    `draw_mechanisms`; n: how many lines there are.

    Returns
    -------
    np.ndarray
        The Axes, one for each panel.
    """
    mechanism = _require_mechanisms("draw_prior", post)
    count = read_count("n", n, 1)
    before = post.distribution.draw_prior(count, as_key(key))
    if before is None:
        raise ModelError(
            f"nothing can be drawn from the prior of this posterior ({type(post.prior).__name__}): "
            "it is scaled to the rows; fit with a prior that is a distribution on its own"
        )
    chosen, known = _choose(post, edges)
    positions = _axes(axes, chosen, f"before any row: {count} draws, {_which(chosen, known)}")
    for ax, edge in zip(positions, chosen, strict=True):
        panel = _panel(post, *edge)
        curves = mechanism(before.theta[:count], panel.effect, panel.values)
        for position, curve in enumerate(curves):
            label = "_" if position else "a draw of the prior"
            ax.plot(panel.positions, curve, color=BLUE, lw=0.8, alpha=0.45, label=label)
        seen = panel.rows[:, post.problem.graph.index(panel.effect)]
        _finish(ax, post, panel, seen, seen, np.quantile(curves, [0.1, 0.9], axis=0))
        _count_beyond(ax, curves)
    return _legend(positions, axes is None)


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


def _choose(post: Posterior, edges: Sequence[Edge] | None) -> tuple[list[Edge], int]:
    """Return the edges that get a panel, in causal order, and how many there are."""
    graph, learned = post.problem.graph, learned_variables(post)
    known = [(cause, effect) for effect in learned for cause in graph.parents(effect)]
    if edges is None:
        if not known:
            raise ModelError("no mechanism that is learned has a cause; there is nothing to draw")
        return known[-MOST:], len(known)
    asked = [tuple(edge) for edge in edges]
    if strange := [edge for edge in asked if edge not in known] or ([] if asked else [()]):
        words = [" -> ".join(edge) for edge in known]
        raise ModelError(
            f"{' -> '.join(map(str, strange[0])) or 'nothing'!r} is no mechanism that was learned; "
            f"choose among {listed(words, most=8)}"
        )
    return [edge for edge in known if edge in asked], len(known)


def _which(chosen: list[Edge], known: int) -> str:
    """Say how many of the mechanisms are shown."""
    count = len(chosen)
    if count == known:
        return "all mechanisms, cause by cause"
    return f"{count} of {known} pairs of cause and effect"


def _panel(post: Posterior, cause: str, effect: str) -> Panel:
    """Return where one mechanism is looked at."""
    graph, data = post.problem.graph, post.data
    rows = data.values[~data.intervened[:, graph.index(effect)]]
    seen = rows[:, graph.index(cause)]
    ends = [*post.problem.domains.get(cause, ()), *seen.tolist()]
    if not ends:
        raise ModelError(f"{cause!r} has no domain and no rows, so there is no range to draw")
    positions = np.linspace(min(ends), max(ends), POINTS)
    middle = rows.mean(axis=0) if len(rows) else np.zeros(len(graph.nodes))
    values = np.repeat(middle[None], POINTS, axis=0)
    values[:, graph.index(cause)] = positions
    return Panel(cause, effect, positions, values, rows)


def _moved(post: Posterior, mechanism: Callable[..., Any], panel: Panel) -> np.ndarray:
    """Return the effect in every row (m,), had the other causes been at their means.

    It is the residual of the fitted mechanism plus the mechanism along the cause alone.
    """
    graph, rows = post.problem.graph, panel.rows
    alone = np.repeat(panel.values[:1], len(rows), axis=0)
    alone[:, graph.index(panel.cause)] = rows[:, graph.index(panel.cause)]
    own, there = (mechanism(post.mean[None], panel.effect, each)[0] for each in (rows, alone))
    return np.asarray(rows[:, graph.index(panel.effect)] - own + there)


def _axes(given: Any, chosen: list[Edge], title: str) -> np.ndarray:
    """Return an Axes for each panel, in a new figure with a title if none are given."""
    if given is not None:
        found = np.atleast_1d(np.asarray(given, dtype=object)).ravel()
        if len(found) != len(chosen):
            words = listed([" -> ".join(edge) for edge in chosen], most=6)
            raise ModelError(
                f"there are {len(found)} Axes for {len(chosen)} panels ({words}); give one for each"
            )
        return found
    columns = min(COLUMNS, len(chosen)) if len(chosen) != 2 * COLUMNS - 2 else COLUMNS - 1
    rows = -(-len(chosen) // columns)
    size = max(3.1 * columns, 4.4), 2.7 * rows + 0.8
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.07)  # type: ignore[union-attr,call-arg]
    figure.suptitle(folded(title, int(size[0] / 0.09)), fontsize="medium")
    for spare in axes.ravel()[len(chosen) :]:
        spare.set_visible(False)
    return np.asarray(axes.ravel()[: len(chosen)])


def _finish(
    ax: Axes, post: Posterior, panel: Panel, heights: np.ndarray, line: np.ndarray, band: Any
) -> None:
    """Add the rows, their range, the domain and the names; rows and line are seen as a whole."""
    problem = post.problem
    seen = panel.rows[:, problem.graph.index(panel.cause)]
    ax.plot(seen, heights, ".", color=INK, ms=3, alpha=0.5, zorder=3, label="rows")
    mark_data(ax, seen, (panel.positions[0], panel.positions[-1]), problem.domains.get(panel.cause))
    shown = np.append(heights, line)
    set_heights(ax, shown if len(shown) else np.ravel(band), band)
    ax.set(
        xlabel=folded(problem.label(panel.cause), PANEL),
        ylabel=folded(problem.label(panel.effect), PANEL),
    )
    long = max(len(f"{end:.4g}") for end in ax.get_xlim()) > 4  # such numbers need more room
    ax.xaxis.set_major_locator(MaxNLocator(3 if long else 4))
    half = PANEL // 2
    ax.set_title(f"{short(panel.cause, half)} → {short(panel.effect, half)}", fontsize="medium")


def _legend(positions: np.ndarray, whole: bool) -> np.ndarray:
    """Explain the colours once: below the whole figure, or in the first of the Axes given."""
    shown: dict[str, Any] = {}
    for ax in positions:
        handles, labels = ax.get_legend_handles_labels()
        shown |= {label: handle for label, handle in zip(labels, handles, strict=True)}
    if whole:
        positions[0].figure.legend(
            shown.values(),
            shown.keys(),
            loc="outside lower center",
            ncols=3 if len(positions) < 3 else 6,
            frameon=False,
            fontsize="small",
        )
    else:
        positions[0].legend(shown.values(), shown.keys(), frameon=False, fontsize="small")
    return positions
