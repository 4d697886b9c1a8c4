"""What is believed about theta and about effects, and how often are such beliefs right?"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.errors import DataError, DomainError, ModelError, unknown
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.plots.labels import (
    CUT,
    SIDE,
    distinct,
    entitle,
    figure_beside,
    folded,
    legend_below,
)
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, half_width, mark_data, set_heights
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates import Coupled, couple
from causal_bo_ppl.systems import CausalSystem

POINTS, DRAWS = 101, 400  # of a curve
SCALES = ("shared", "own")
ALL_LETTERS = 72  # of the names of all methods side by side
NARROW = 1 / 200  # of the farthest end: half an interval below this is a dot on a shared axis


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
    """
    half, names = half_width(level) * post.sd, [str(name) for name in post.names]
    far = np.abs(post.mean) + half
    if scale not in (None, *SCALES):
        raise ModelError(unknown("scale", str(scale), SCALES))
    mixed = bool((half < NARROW * far.max()).any()) if scale is None else scale == "own"
    if ax is None:
        ax, labels = figure_beside(names, 5.6 if mixed else 4.4, 0.24 * len(names) + 1.2)
    else:
        labels = distinct(names, CUT)
    rows, unit = np.arange(len(names)), np.where(far > 0, far, 1.0) if mixed else 1.0
    bars: dict[str, Any] = {"fmt": "o", "ms": 3.5, "color": BLUE, "elinewidth": 1.4}
    ax.errorbar(post.mean / unit, rows, xerr=half / unit, **bars)
    ax.axvline(0, color=GREY, lw=0.8, zorder=0)
    ax.set_yticks(rows, labels, fontsize="small")
    ax.set_ylim(len(names) - 0.4, -0.6)
    if mixed:
        _write_intervals(ax, post.mean, half)
    each = "\nof each coordinate on its own scale, 0 to 1" if mixed else ""
    ax.set_xlabel(f"posterior mean and {level:.0%} interval{each}")
    entitle(ax, f"theta of {post.problem.target}: {post.method}, {post.n_observations} rows", 56)
    return ax


def _write_intervals(ax: Axes, mean: np.ndarray, half: np.ndarray) -> None:
    """Write means and intervals, in the units of each coordinate, at the right of the Axes."""
    ax.set_xlim(-1.08, 1.08)
    ax.set_xticks([-1, 0, 1])
    for row, (middle, size) in enumerate(zip(mean, half, strict=True)):
        text = f"{middle:.3g}  [{middle - size:.3g}, {middle + size:.3g}]"
        ax.text(1.02, row, text, transform=ax.get_yaxis_transform(), va="center", fontsize="small")


def draw_response(
    believed: Posterior | Coupled,
    name: str,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    truth: CausalSystem | Callable[[Queries], np.ndarray] | None = None,
    at: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    key: jax.Array | int = 0,
) -> Axes:
    """Draw E[Y | do(X = x)] over the domain of one variable, with its interval.

    For a posterior this is what it says before any experiment: the mean and the interval of its
    draws, and as thin lines the interval of the Jacobian kernel, which linearizes the effect in
    theta. For a surrogate it is what is believed after its outcomes. The rows are drawn as they
    were seen, and ticks mark their values of the variable; what is shaded is extrapolation. An
    interval that is far wider than what rows and mean span is cut off.

    Parameters
    ----------
    believed:
        A posterior or a surrogate.
    name:
        The variable that is set along the horizontal axis.
    level:
        The probability of the interval.
    truth:
        A system, or a function from queries to true effects.
    at:
        {variable: value} of others that are set at the same time.
    draws, key:
        How many draws of the posterior the interval is made of, and their key.
    """
    surrogate = couple(believed) if isinstance(believed, Posterior) else believed
    problem, width = surrogate.post.problem, half_width(level)
    others = dict(at or {})
    if name not in problem.domains or name in others:
        free = [each for each in problem.manipulable if each not in others]
        raise DomainError(f"{name!r} may not be set; choose one of {', '.join(free)}")
    positions = problem.region.ticks(name, POINTS)
    legal = problem.feasible([{name: float(position), **others} for position in positions])
    positions = (
        positions[legal] if legal.any() else positions
    )  # where none is legal, the next line says why
    queries = problem.queries([{name: float(position), **others} for position in positions])
    mean, sd = surrogate.predict(queries)
    if isinstance(believed, Posterior):
        mean, jacobian = response(problem, believed).linearize(believed.mean, queries)
        sd = np.linalg.norm(jacobian @ believed.factor, axis=1)
    low, high = mean - width * sd, mean + width * sd
    if ax is None:
        ax = plt.figure(figsize=(5.6, 3.8), layout="constrained").add_subplot()
    seen, outcomes = surrogate.post.data.column(name), surrogate.post.data.outcomes
    faint: dict[str, Any] = {
        "color": GREY,
        "ms": 3,
        "alpha": 0.6,
        "zorder": 1,
        "label": "target in the rows",
    }
    ax.plot(seen, outcomes, ".", **faint)
    if isinstance(believed, Posterior):
        for end, label in ((low, "linearized in theta"), (high, "_")):
            ax.plot(positions, end, color=BLUE, lw=0.9, ls=":", label=label)
        theta = believed.draws(read_count("draws", draws, 2), as_key(key))
        theta = theta[np.isfinite(theta).all(axis=1)]
        effects = response(problem, believed)(theta, queries)
        mean = effects.mean(axis=0)
        low, high = np.quantile(effects, [(1 - level) / 2, (1 + level) / 2], axis=0)
    ax.fill_between(
        positions, low, high, color=BLUE, alpha=0.2, lw=0, label=f"{level:.0%} interval"
    )
    ax.plot(positions, mean, color=BLUE, label="posterior mean")
    shown = np.append(mean, outcomes)
    if truth is not None:
        exact = truth.effect if isinstance(truth, CausalSystem) else truth
        effects = np.asarray(exact(queries))
        ax.plot(positions, effects, "--", color=INK, label="truth")
        shown = np.append(shown, effects)
    mark_data(ax, seen, (float(positions[0]), float(positions[-1])), None)
    _rug(ax, seen)
    set_heights(ax, shown, [low, high])
    given = "".join(f", {problem.label(other)} = {value:.4g}" for other, value in others.items())
    ax.set(
        xlabel=folded(f"do({problem.label(name)}{given})", 50),
        ylabel=folded(f"E[{problem.label(problem.target)}]", SIDE),
    )
    told = "" if isinstance(believed, Posterior) else f", {len(believed.told.values)} outcomes"
    entitle(ax, f"{surrogate.post.method}, {surrogate.post.n_observations} rows{told}")
    legend_below(ax, 3)
    return ax


def _rug(ax: Axes, seen: np.ndarray) -> None:
    """Draw a tick at the bottom for the value of every row."""
    if len(seen):
        ends, across = ax.get_xlim(), ax.get_xaxis_transform()
        ticks = ax.vlines(seen, 0.0, 0.03, color=INK, lw=0.6, alpha=0.5, transform=across)
        ticks.set_label("rows")
        ax.set_xlim(*ends)


def draw_coverage(
    intervals: Mapping[str, np.ndarray],
    truth: float,
    ax: Axes | None = None,
    *,
    quantity: str = "effect",
) -> Axes:
    """Draw the intervals of many data sets, and how many of them hold the truth.

    intervals: {method: array of shape (n, 2)}.
    """
    if ax is None:
        ax = plt.figure(figsize=(6.4, 3.8), layout="constrained").add_subplot()
    start, ticks = 0, []
    for label, ends in intervals.items():
        ends = np.asarray(ends, float)
        if ends.ndim != 2 or ends.shape[1] != 2:
            raise DataError(f"the intervals of {label!r} need the shape (n, 2), got {ends.shape}")
        ends = ends[np.argsort(ends.mean(axis=1))]
        covers = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        rows = start + np.arange(len(ends))
        for hit, colour in ((True, BLUE), (False, AMBER)):
            chosen = covers == hit
            ax.vlines(rows[chosen], *ends[chosen].T, color=colour, lw=0.9)
        words = f"{covers.mean():.0%} of {len(ends)} hold the truth"
        room = max(ALL_LETTERS // len(intervals), 12)
        ticks.append((rows.mean(), "\n".join(folded(part, room) for part in (label, words))))
        start += len(ends) + max(4, len(ends) // 12)
    ax.axhline(truth, color=INK, lw=1, ls="--", label=f"truth, {truth:.4g}")
    ax.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel(folded(quantity, SIDE))
    for colour, label in ((BLUE, "interval holds it"), (AMBER, "interval misses it")):
        ax.plot([], [], color=colour, lw=1.4, label=label)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
