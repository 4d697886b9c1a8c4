"""How did an optimization go, and how do several compare?"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.optimization import Run
from causal_bo_ppl.plots.labels import (
    CUT,
    LINE,
    LONG,
    SIDE,
    distinct,
    entitle,
    folded,
    legend_below,
    plain,
)
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, half_width
from causal_bo_ppl.problem.interventions import set_label

COLOURS = (BLUE, AMBER, INK, "#16a34a", "#db2777", "#7c3aed", "#0891b2", GREY)
COST = "cost of what was done so far"
CHOICE = "intervals do not account for the choice of the best"
MOST_TRIED = 6  # interventions or sets that have a mark of their own
MARKS = (
    ("o", "#16a34a"),
    ("s", "#db2777"),
    ("^", "#7c3aed"),
    ("D", "#0891b2"),
    ("v", "#a16207"),
    ("P", INK),
    (".", GREY),
)


def draw_run(run: Run, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw every outcome with what was tried, and what was then believed of the best intervention.

    Outcomes of one intervention have the same mark; where there were more than six interventions,
    those of one set have it. Where the true system is known, the true effect of the best
    intervention and the optimum are drawn too. The interval is that of the intervention as if it
    had been given: it does not account for the choice of the best.
    """
    trace, width = run.trace, half_width(level)
    groups = _tried(run)
    columns = 1 if max(len(label) for label, _ in groups) > CUT else 2
    if ax is None:
        below = LINE * (len(groups) + 3) / columns
        ax = plt.figure(figsize=(6.4, 3.4 + below), layout="constrained").add_subplot()
    at = trace["experiment"].to_numpy()
    mean, sd = trace["best_mean"].to_numpy(), trace["best_sd"].to_numpy()
    ax.fill_between(
        at, mean - width * sd, mean + width * sd, color=BLUE, alpha=0.2, lw=0, step="mid"
    )
    ax.step(at, mean, where="mid", color=BLUE, label=f"best so far: mean and {level:.0%} interval")
    for (label, chosen), (mark, colour) in zip(groups, MARKS, strict=False):
        look: dict[str, Any] = {"marker": mark, "color": colour, "ls": "none", "ms": 5}
        ax.plot(at[chosen], trace["outcome"].to_numpy()[chosen], label=label, **look)
    if run.system is not None:
        ax.plot(
            at,
            trace["best_effect"],
            "_",
            ms=10,
            mew=2,
            color=AMBER,
            label="best so far: true effect",
        )
        ax.axhline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    ax.set(xlabel="experiment", ylabel=folded(run.problem.label(run.problem.target), SIDE))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(0.5, len(at) + 0.5)
    legend_below(ax, columns)
    entitle(ax, f"{run.settings.method}: {run.problem.objective} {run.problem.target}\n{CHOICE}")
    return ax


def _tried(run: Run) -> list[tuple[str, np.ndarray]]:
    """Return labels of what was tried, the most frequent first, and which outcomes each has, (t,).

    Of more than MOST_TRIED interventions the sets are named, and the rest of the sets together.
    """
    tried = run.problem.interventions(run.queries)
    words = [
        ", ".join(f"{name} = {value:.3g}" for name, value in each.items()) or "nothing set"
        for each in tried
    ]
    if len(set(words)) > MOST_TRIED:
        words = [set_label(tuple(each)) if each else "nothing set" for each in tried]
    counted = Counter(words).most_common()  # equal counts stay in the order of the experiments
    kept = [word for word, _ in counted[:MOST_TRIED]]
    labels = [
        f"outcome, {label} ({count})"
        for label, (_, count) in zip(distinct(kept, LONG), counted, strict=False)
    ]
    found = [
        (label, np.array([word == own for word in words]))
        for label, own in zip(labels, kept, strict=True)
    ]
    rest = np.array([word not in kept for word in words])
    if rest.any():
        found.append((f"outcome, {len(counted) - len(kept)} other sets ({rest.sum()})", rest))
    return found


def draw_progress(
    runs: Run | Iterable[Run] | Mapping[str, Iterable[Run]],
    ax: Axes | None = None,
    *,
    level: float = 0.9,
) -> Axes:
    """Draw the best so far against what it has cost.

    Of one run whose truth is known the gaps to the optimum are drawn, of what is recommended and of
    the best that was tried, which only an oracle knows; otherwise the recommended effect with its
    interval, and every outcome. Of several runs the median gap of what is recommended is drawn for
    each method, with a band that holds the middle half of its runs.

    Parameters
    ----------
    runs:
        A run, or several runs of one problem whose truth is known; or a dictionary of such runs by
        the names that they are drawn under, in place of their methods'.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the interval.
    """
    named = {name: tuple(own) for name, own in runs.items()} if isinstance(runs, Mapping) else None
    if named is not None:
        several = tuple(run for own in named.values() for run in own)
    else:
        several = (runs,) if isinstance(runs, Run) else tuple(runs)
    require_runs("draw_progress", several)
    half_width(level)  # refuses a level such as 99
    if ax is None:
        ax = plt.figure(figsize=(6.4, 3.8), layout="constrained").add_subplot()
    problem, first = several[0].problem, several[0]
    target, system = problem.label(problem.target), first.system
    if named is not None or len(several) > 1:
        _draw_groups(ax, named or _by_method(several))
    elif system is not None:
        _draw_gaps(ax, first)
    else:
        _draw_belief(ax, first, level)
    known = "" if system is None else f", optimum {system.optimum.value:.4g}"
    which = first.settings.method if len(several) == 1 else f"{len(several)} runs"
    believed = f"\n{CHOICE}" if system is None else ""
    entitle(ax, f"{which}: {problem.objective} {problem.target}{known}{believed}")
    ax.set(
        xlabel=COST,
        ylabel=folded(target if system is None else f"gap to the optimum, {target}", SIDE),
    )
    if system is not None:
        ax.set_ylim(*_room(ax))
    ax.set_xlim(left=0)
    legend_below(ax, 1 if len(several) > 1 else 2)
    return ax


def require_runs(who: str, runs: tuple[object, ...]) -> None:
    """Refuse what are no runs with experiments, and several that cannot be compared."""
    if not runs or not all(isinstance(run, Run) for run in runs):
        got = ", ".join(sorted({type(run).__name__ for run in runs})) or "nothing"
        raise DataError(f"{who} needs a Run, or several; got {got}")
    found = [run for run in runs if isinstance(run, Run)]
    if not all(run.steps for run in found):
        raise DataError("a run has no experiment yet, so that nothing can be drawn")
    if len(found) > 1 and any(run.system is None for run in found):
        raise DataError("several runs are compared by their gaps, which need the truth")
    if any(run.problem != found[0].problem for run in found):
        raise DataError("the runs are of different problems; draw those of one problem together")


def _room(ax: Axes) -> tuple[float, float]:
    """Return a vertical range from 0, in which a gap of 0 can be seen."""
    top = max(ax.get_ylim()[1], np.finfo(float).tiny)
    highest = max((float(np.max(line.get_ydata())) for line in ax.lines), default=0.0)
    top = top if highest > 0 else 1.0
    return -0.04 * top, top


def _draw_gaps(ax: Axes, run: Run) -> None:
    """Draw both gaps of one run."""
    costs = run.trace["total_cost"].to_numpy()
    for of, colour, style, label in (
        ("recommended", BLUE, "-", "recommended"),
        ("tried", AMBER, "--", "best tried, as an oracle sees it"),
    ):
        gaps = run.regret(of)
        name, wide = f"{label}: {gaps[-1]:.3g} at last", 3.0 if of == "recommended" else 1.5
        look: dict[str, Any] = {"color": colour, "ls": style, "lw": wide, "marker": "o"}
        ax.step(costs, gaps, where="post", ms=2 * wide, label=name, **look)


def _draw_belief(ax: Axes, run: Run, level: float) -> None:
    """Draw what is recommended with its interval, and every outcome."""
    trace = run.trace
    costs, mean = trace["total_cost"].to_numpy(), trace["best_mean"].to_numpy()
    half = half_width(level) * trace["best_sd"].to_numpy()
    ax.fill_between(costs, mean - half, mean + half, color=BLUE, alpha=0.2, lw=0, step="post")
    ax.step(costs, mean, where="post", color=BLUE, label=f"recommended: mean, {level:.0%} interval")
    ax.plot(costs, trace["outcome"], "o", ms=4, color=GREY, label="outcome")


def _by_method(runs: tuple[Run, ...]) -> dict[str, tuple[Run, ...]]:
    methods = dict.fromkeys(run.settings.method for run in runs)
    return {name: tuple(run for run in runs if run.settings.method == name) for name in methods}


def _draw_groups(ax: Axes, groups: Mapping[str, tuple[Run, ...]]) -> None:
    """Draw the median gap of every group against cost, and the middle half of its runs."""
    for position, (name, own) in enumerate(groups.items()):
        costs, gaps = _common_costs(own)
        low, middle, high = np.quantile(gaps, (0.25, 0.5, 0.75), axis=0)
        colour = COLOURS[position % len(COLOURS)]
        ax.fill_between(costs, low, high, color=colour, alpha=0.15, lw=0, step="post")
        label = plain(f"{name}, {len(own)} runs: {middle[-1]:.3g} at cost {costs[-1]:.4g}")
        ax.step(costs, middle, where="post", color=colour, lw=1.8, label=label)


def _common_costs(runs: tuple[Run, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return costs (n,) at which all runs have begun, and the runs' gaps there, (k, n).

    They end with the run that spent least.
    """
    spent = [run.trace["total_cost"].to_numpy() for run in runs]
    every = np.unique(np.concatenate(spent))
    begun, ended = max(each[0] for each in spent), min(each[-1] for each in spent)
    costs = every[(every >= begun) & (every <= max(ended, begun))]
    gaps = [
        run.regret()[np.searchsorted(each, costs, side="right") - 1]
        for run, each in zip(runs, spent, strict=True)
    ]
    return costs, np.array(gaps)
