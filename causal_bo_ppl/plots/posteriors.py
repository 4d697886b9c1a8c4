"""What is the posterior of theta and of the effects, and how often do its intervals cover?"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.errors import ArgumentError, unknown
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates import Coupled, couple
from causal_bo_ppl.systems import CausalSystem

CURVE_POINTS, CURVE_DRAWS = 101, 400
LETTERS_OF_METHODS = 72  # letters of the names of all methods side by side
NARROWEST_INTERVAL = 1 / 200  # half its width over the farthest end; a dot on a shared axis


def draw_posterior(
    post: Posterior, ax: Axes | None = None, *, level: float = 0.9, scale: str | None = None
) -> Axes:
    """Draw the mean and the central interval of every coordinate of theta_Y.

    The interval is that of the Gaussian with the posterior's mean and variance.

    Parameters
    ----------
    post:
        A posterior by any method.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the intervals.
    scale:
        "shared": all coordinates have one axis, in their own units. "own": each coordinate is
        divided by the end of its interval that is farthest from 0, so that coordinates in
        different units can be seen beside each other, and its mean and interval are written at
        the right. By default "shared" where every interval is wide enough to be seen.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If `scale` is unknown, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_posterior(post).get_title()
    'theta of Y: conjugate, 50 observations'
    """
    if scale not in (None, "shared", "own"):
        raise ArgumentError(unknown("scale", scale, ("shared", "own")))
    half, names = style.half_width(level) * post.sd, [str(name) for name in post.names]
    far = np.abs(post.mean) + half
    is_narrow = bool((half < NARROWEST_INTERVAL * far.max()).any())
    is_scaled = is_narrow if scale is None else scale == "own"
    ax = style.list_axes(ax, names, 5.6 if is_scaled else 4.4, 0.24 * len(names) + 1.2)
    unit = np.where(far > 0, far, 1.0) if is_scaled else 1.0
    bars: dict[str, Any] = {"fmt": "o", "ms": 3.5, "color": BLUE, "elinewidth": 1.4}
    ax.errorbar(post.mean / unit, np.arange(len(names)), xerr=half / unit, **bars)
    ax.axvline(0, color=GREY, lw=0.8, zorder=0)
    label = f"posterior mean and {level:.0%} interval"
    if is_scaled:
        label = f"{label}\nof each coordinate on its own scale, 0 to 1"
        ax.set(xlim=(-1.08, 1.08), xticks=[-1, 0, 1])
        side: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "fontsize": "small"}
        for row, (mean, size) in enumerate(zip(post.mean, half, strict=True)):
            text = f"{mean:.3g}  [{mean - size:.3g}, {mean + size:.3g}]"
            ax.text(1.02, row, text, va="center", **side)
    title = f"theta of {post.problem.target}: {post.method}, {post.n_observations} observations"
    return style.finish(ax, title, label, columns=0, most=56)


def draw_response(
    model: Posterior | Coupled,
    name: str,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    truth: CausalSystem | Callable[[Queries], np.ndarray] | None = None,
    fixed: Mapping[str, float] | None = None,
    draws: int = CURVE_DRAWS,
    key: jax.Array | int = 0,
) -> Axes:
    """Draw E[Y | do(X = x)] over the domain of one variable, with its interval.

    For a posterior, these are the mean and the interval of its draws before any experiment, and as
    thin lines the interval of the Jacobian kernel, which linearizes the effect in theta. For a
    surrogate, they are its mean and interval given its outcomes. The observations are drawn
    too, and ticks mark their values of the variable; what is shaded is extrapolation. An interval
    that is far wider than the range of observations and mean is cut off.

    Parameters
    ----------
    model:
        A posterior or a surrogate.
    name:
        The variable that is set along the horizontal axis.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the interval.
    truth:
        A system, or a function from queries to true effects.
    fixed:
        {variable: value} of others that are set at the same time.
    draws, key:
        How many draws of the posterior the interval is made of, and their key.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If the variable has no domain or is in `fixed`, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_response(post, "Z", truth=chain).get_xlabel()
    'do(Z)'
    """
    surrogate = couple(model) if isinstance(model, Posterior) else model
    post, width, others = surrogate.post, style.half_width(level), dict(fixed or {})
    problem = post.problem
    if name not in problem.domains or name in others:
        free = [each for each in problem.manipulable if each not in others]
        raise ArgumentError(f"{name!r} has no domain, or is fixed; choose one of {', '.join(free)}")
    grid = problem.region.ticks(name, CURVE_POINTS)
    legal = problem.feasible([{name: float(value), **others} for value in grid])
    grid = grid[legal] if legal.any() else grid  # where none is, the next line raises the reason
    queries = problem.queries([{name: float(value), **others} for value in grid])
    ax = ax or style.new_axes(5.6, 3.8)
    observed, outcomes = post.data.column(name), post.data.outcomes
    faint: dict[str, Any] = {"color": GREY, "ms": 3, "alpha": 0.6, "zorder": 1}
    ax.plot(observed, outcomes, ".", label="observations", **faint)
    title = f"{post.method}, {post.n_observations} observations"
    if isinstance(model, Posterior):
        effect = response(post)
        mean, jacobian = effect.linearize(post.mean, queries)
        half = width * np.linalg.norm(jacobian @ post.factor, axis=1)
        for end, label in ((mean - half, "linearized in theta"), (mean + half, "_")):
            ax.plot(grid, end, color=BLUE, lw=0.9, ls=":", label=label)
        theta = post.draws(read_count("draws", draws, 2), as_key(key))
        effects = effect(theta[np.isfinite(theta).all(axis=1)], queries)
        mean = effects.mean(axis=0)
        low, high = np.quantile(effects, [(1 - level) / 2, (1 + level) / 2], axis=0)
    else:
        mean, sd = surrogate.predict(queries)
        low, high = mean - width * sd, mean + width * sd
        title = f"{title}, {len(surrogate.observed.values)} outcomes"
    style.shade(ax, grid, low, high, BLUE, label=f"{level:.0%} interval")
    ax.plot(grid, mean, color=BLUE, label="posterior mean")
    shown = np.append(mean, outcomes)
    if truth is not None:
        exact = truth.effect if isinstance(truth, CausalSystem) else truth
        shown = np.append(shown, exact(queries))
        ax.plot(grid, shown[-len(grid) :], "--", color=INK, label="truth")
    rug: dict[str, Any] = {"color": INK, "lw": 0.6, "alpha": 0.5, "label": "observed values"}
    ax.vlines(observed, 0.0, 0.03, transform=ax.get_xaxis_transform(), **rug)
    style.mark_data(ax, observed, (float(grid[0]), float(grid[-1])), None)
    style.set_heights(ax, shown, [low, high])
    held = "".join(f", {problem.label(other)} = {value:.4g}" for other, value in others.items())
    labels = f"do({problem.label(name)}{held})", f"E[{problem.label(problem.target)}]"
    return style.finish(ax, title, *labels, columns=3)


def draw_coverage(
    intervals: Mapping[str, np.ndarray],
    truth: float,
    ax: Axes | None = None,
    *,
    quantity: str = "effect",
) -> Axes:
    """Draw the intervals of many data sets, and how many of them cover the truth.

    Parameters
    ----------
    intervals:
        {method: array of shape (n, 2)}, the ends of the intervals.
    truth:
        The true value.
    ax:
        Where to draw; by default a new figure.
    quantity:
        The label of the vertical axis.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If the intervals of a method do not have the shape (n, 2).

    Examples
    --------
    >>> import numpy as np
    >>> import causal_bo_ppl as cb
    >>> intervals = {"regression": np.array([[0.1, 0.9], [0.6, 1.2]])}
    >>> [label] = cb.plots.draw_coverage(intervals, 0.5).get_xticklabels()
    >>> label.get_text().splitlines()
    ['regression', '50% of 2 cover the truth']
    """
    ax = ax or style.new_axes(6.4, 3.8)
    start, ticks, letters = 0, {}, max(LETTERS_OF_METHODS // len(intervals), 12)
    for label, given in intervals.items():
        ends = np.asarray(given, float)
        if ends.ndim != 2 or ends.shape[1] != 2:
            raise ArgumentError(
                f"the intervals of {label!r} need the shape (n, 2), got {ends.shape}"
            )
        ends = ends[np.argsort(ends.mean(axis=1))]
        covers = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        positions = start + np.arange(len(ends))
        ax.vlines(positions, *ends.T, color=np.where(covers, BLUE, AMBER), lw=0.9)
        share = f"{covers.mean():.0%} of {len(ends)} cover the truth"
        ticks[positions.mean()] = f"{style.folded(label, letters)}\n{style.folded(share, letters)}"
        start += len(ends) + max(4, len(ends) // 12)
    ax.axhline(truth, color=INK, lw=1, ls="--", label=f"truth, {truth:.4g}")
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="x", length=0)
    for colour, label in ((BLUE, "interval covers it"), (AMBER, "interval misses it")):
        ax.plot([], [], color=colour, lw=1.4, label=label)
    ax.spines[["top", "right"]].set_visible(False)
    return style.finish(ax, "", ylabel=quantity, columns=3)
