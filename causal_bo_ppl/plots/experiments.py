"""Where did experiments go, and what did they change?"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator
from scipy.stats import t as student

from causal_bo_ppl.inputs import read_count, read_share
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run
from causal_bo_ppl.optimization.run import restart
from causal_bo_ppl.plots.labels import (
    CUT,
    distinct,
    entitle,
    figure_beside,
    folded,
    legend_below,
)
from causal_bo_ppl.plots.runs import CHOICE, require_runs
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import split_by_set
from causal_bo_ppl.surrogates import Surrogate

MOST_VARIABLES = 20  # above, variables that were never set are left out
BAND, INSIDE = 0.88, 0.54  # of the distance between variables: a band's height, its domain's


def draw_learning(run: Run, ax: Axes | None = None, *, most: int = 12, level: float = 0.9) -> Axes:
    """Draw what was believed of the best intervention of every set tried, before and after.

    Of each set the intervention tried whose mean is best in the end; the best sets first. Where the
    truth is known, it is marked.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    ax:
        Where to draw; by default a new figure.
    most:
        The largest number of sets that are drawn; the title says how many are left out.
    level:
        The probability of the intervals.
    """
    require_runs("draw_learning", (run,))
    share, count = read_share("level", level), read_count("most", most, 1)
    queries, found = _best_of_sets(run)
    shown = queries[:count]
    names = [_name(run.problem, each) for each in shown]
    if ax is None:
        ax, labels = figure_beside(names, 5.4, 0.44 * len(shown) + 1.9)
    else:
        labels = distinct(names, CUT)
    positions = np.arange(len(shown))
    for surrogate, offset, colour, label in (
        (restart(run).surrogate, -0.15, GREY, f"before: mean, {share:.0%} interval"),
        (run.surrogate, 0.15, BLUE, f"after {len(run.steps)} experiments"),
    ):
        mean, half = _interval(surrogate, shown, share)
        ax.hlines(positions + offset, mean - half, mean + half, color=colour, lw=2)
        ax.plot(mean, positions + offset, "o", ms=4.5, color=colour, label=label)
    if run.system is not None:
        truth = run.system.effect(shown)
        ax.plot(truth, positions, "|", ms=13, mew=2, color=AMBER, label="true effect")
        ax.axvline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    ax.set_yticks(positions, labels, fontsize="small")
    ax.set(xlabel=folded(run.problem.label(run.problem.target), 50), ylim=(len(shown) - 0.5, -0.5))
    title = f"{run.settings.method}, {run.problem.objective} {run.problem.target}: "
    if found > len(shown):
        title += f"{len(shown)} of {found} sets tried, {found - len(shown)} worse ones left out"
    else:
        title += "the set tried" if found == 1 else f"all {found} sets tried, the best first"
    entitle(ax, f"{title}\n{CHOICE}")
    legend_below(ax)
    return ax


def _best_of_sets(run: Run) -> tuple[Queries, int]:
    """Return of every set the best intervention tried, the best set first, and how many sets."""
    sign = 1.0 if run.problem.objective == "min" else -1.0
    losses = sign * run.surrogate.predict(run.queries).mean
    best = [rows[first_smallest(losses[rows])] for _, rows in split_by_set(run.queries)]
    order = np.array(best)[np.argsort(losses[best], kind="stable")]
    return run.queries[order], len(order)


def _interval(
    surrogate: Surrogate, queries: Queries, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and half the widths of intervals, both (M,)."""
    mean, sd = surrogate.predict(queries)
    degrees = float(getattr(surrogate, "degrees", np.inf))
    return mean, float(student.ppf((1 + level) / 2, degrees)) * sd


def _name(problem: Problem, query: Queries) -> str:
    """Return an intervention for a tick."""
    [intervention] = problem.interventions(query)
    words = ", ".join(f"{name} = {value:.3g}" for name, value in intervention.items())
    return words or "nothing set"


def draw_experiments(run: Run, ax: Axes | None = None) -> Axes:
    """Draw which variables every experiment set, and where in their domains, in order.

    Each variable has a band with its domain, the highest value on top, and lines at its levels. A
    mark is a value that was set, its colour the outcome; vertical lines join the members of a set.
    What is recommended in the end is ringed.
    """
    require_runs("draw_experiments", (run,))
    problem, mask = run.problem, np.asarray(run.queries.mask)
    names = list(problem.manipulable)
    used = [name for name in names if mask[:, problem.graph.index(name)].any()]
    shown = names if len(names) <= MOST_VARIABLES else used
    if ax is None:
        longest = max(map(len, distinct([problem.label(name) for name in shown], CUT)))
        wide = min(4.2 + 0.22 * len(run.steps), 12.0) + 0.06 * longest
        size = (wide, max(0.62 * len(shown) + 1.9, 3.6))
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    heights = _heights(problem, run.queries, shown)
    at = np.arange(1, len(run.steps) + 1)
    outcomes = run.trace["outcome"].to_numpy()
    _draw_domains(ax, problem, shown)
    low, high = np.nanmin(heights, axis=1), np.nanmax(heights, axis=1)
    ax.vlines(at, low, high, color=GREY, lw=0.8, zorder=2)
    best = np.array([_is_same(run, position) for position in range(len(at))])
    colours: dict[str, Any] = {
        "cmap": "viridis" if problem.objective == "min" else "viridis_r",
        "norm": Normalize(outcomes.min(), outcomes.max()),
        "zorder": 3,
    }
    where = [np.broadcast_to(each[:, None], heights.shape).ravel() for each in (at, outcomes)]
    drawn = ax.scatter(where[0], heights.ravel(), c=where[1], s=34, **colours)
    if best.any():
        rings = np.broadcast_to(at[:, None], heights.shape)[best].ravel()
        ring: dict[str, Any] = {"s": 95, "facecolors": "none", "edgecolors": AMBER, "lw": 1.8}
        ax.scatter(rings, heights[best].ravel(), zorder=4, label="recommended", **ring)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.9)
    bar.set_label(folded(f"outcome, {problem.label(problem.target)}; better is darker", 28))
    ax.set(xlabel="experiment", ylim=(len(shown) - 0.5, -0.5))
    ax.set_xlim(0.4, len(at) + 0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    sets = len(list(split_by_set(run.queries)))
    left = f", {len(names) - len(shown)} variables never set" if len(names) > len(shown) else ""
    title = f"{run.settings.method}, {problem.objective} {problem.target}: "
    title += f"{sets} of {len(problem.sets)} sets tried{left}"
    entitle(ax, title)
    if best.any():
        legend_below(ax, markerscale=0.7)
    return ax


def _is_same(run: Run, position: int) -> bool:
    """Return whether an experiment tried what is recommended in the end."""
    [tried] = run.problem.interventions(run.steps[position].suggestion.query)
    return tried == run.best.intervention


def _heights(problem: Problem, queries: Queries, names: list[str]) -> np.ndarray:
    """Return where marks are drawn, (t, n); NaN for a variable that was not set."""
    columns = [problem.graph.index(name) for name in names]
    mask, value = np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns]
    low, high = np.array([problem.domains[name] for name in names]).T
    shares = (value - low) / np.where(high > low, high - low, 1.0)
    return np.where(mask, np.arange(len(names)) - INSIDE * (shares - 0.5), np.nan)


def _draw_domains(ax: Axes, problem: Problem, names: list[str]) -> None:
    """Draw a band for every variable, lines at its levels, and name it with its ends."""
    for position, name in enumerate(names):
        low, high = problem.domains[name]
        ax.axhspan(position - BAND / 2, position + BAND / 2, color=GREY, alpha=0.18, lw=0, zorder=0)
        for value in problem.levels.get(name, ()):
            line = position - INSIDE * ((value - low) / (high - low) - 0.5)
            ax.axhline(line, color="white", lw=1, zorder=1)
    labels = distinct([problem.label(name) for name in names], CUT)
    ax.set_yticks(range(len(names)), labels, fontsize="small")
    ends = [position + side * INSIDE / 2 for position in range(len(names)) for side in (1, -1)]
    values = [f"{value:.3g}" for name in names for value in problem.domains[name]]
    ax.set_yticks(ends, values, fontsize="x-small", minor=True)
    ax.tick_params(axis="y", which="both", length=0)
