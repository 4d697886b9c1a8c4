"""How did an optimization go: its progress, its experiments, what they changed, any surprise?

Intervals of a recommended intervention are those of that intervention as if it had been given; they
do not account for the choice of the best, and the titles say so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator
from scipy.stats import t as student

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.inputs import read_count, read_share
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run
from causal_bo_ppl.optimization.monitor import Surprise
from causal_bo_ppl.optimization.run import restart
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, COLOURS, GREY, INK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import set_label, split_by_set

CHOICE = "intervals do not account for the choice of the best"
MOST_TRIED = 6  # interventions or sets that have a mark of their own
MARKS = tuple(zip("os^DvP.", (*COLOURS[3:], "#a16207", INK, GREY), strict=True))
MOST_VARIABLES = 20  # above, variables that were never intervened on are omitted
BAND, INSIDE = 0.88, 0.54  # of the distance between variables: a band's height, its domain's
MOST_RUNS_OF_SETS = 12  # runs of experiments on one set that are named below the outcomes


def draw_run(run: Run, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw every outcome, and the posterior of the recommended intervention after it.

    Outcomes of one intervention have the same mark; where there were more than six interventions,
    those of one set have it. Where the true system is known, the true effect of the recommended
    intervention and the optimum are drawn too.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the interval.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, key=0)
    >>> cb.plots.draw_run(run).get_xlabel()
    'experiment'
    """
    require_runs("draw_run", (run,))
    trace, width = run.trace, style.half_width(level)
    groups = _tried(run)
    columns = 1 if max(len(label) for label, _ in groups) > style.SHORT_LABEL else 2
    ax = ax or style.new_axes(6.4, 3.4 + style.LINE * (len(groups) + 3) / columns)
    at = trace["experiment"].to_numpy()
    mean, half = trace["best_mean"].to_numpy(), width * trace["best_sd"].to_numpy()
    ax.fill_between(at, mean - half, mean + half, color=BLUE, alpha=0.2, lw=0, step="mid")
    ax.step(at, mean, where="mid", color=BLUE, label=f"best so far: mean and {level:.0%} interval")
    for (label, chosen), (mark, colour) in zip(groups, MARKS, strict=False):
        look: dict[str, Any] = {"marker": mark, "color": colour, "ls": "none", "ms": 5}
        ax.plot(at[chosen], trace["outcome"].to_numpy()[chosen], label=label, **look)
    if run.system is not None:
        look = {"ms": 10, "mew": 2, "color": AMBER, "label": "best so far: true effect"}
        ax.plot(at, trace["best_effect"], "_", **look)
        ax.axhline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    ax.set_ylabel(style.folded(run.problem.label(run.problem.target)))
    _number_experiments(ax, len(at))
    style.legend_below(ax, columns)
    style.entitle(
        ax, f"{run.settings.name}: {run.problem.objective} {run.problem.target}\n{CHOICE}"
    )
    return ax


def _number_experiments(ax: Axes, count: int) -> None:
    """Number the experiments along the horizontal axis."""
    ax.set(xlabel="experiment", xlim=(0.5, count + 0.5))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _written(intervention: Mapping[str, float]) -> str:
    """Return an intervention as a label."""
    values = ", ".join(f"{name} = {value:.3g}" for name, value in intervention.items())
    return values or "no intervention"


def _tried(run: Run) -> list[tuple[str, np.ndarray]]:
    """Return labels of what was tried, the most frequent first, and which outcomes each has, (t,).

    Of more than MOST_TRIED interventions the sets are named, and the rest of the sets together.
    """
    tried = run.problem.interventions(run.queries)
    names = [_written(each) for each in tried]
    if len(set(names)) > MOST_TRIED:
        names = [set_label(tuple(each)) if each else _written(each) for each in tried]
    counted = Counter(names).most_common()  # equal counts stay in the order of the experiments
    kept, found = [name for name, _ in counted[:MOST_TRIED]], []
    for label, name in zip(style.distinct(kept, style.LONG_LABEL), kept, strict=True):
        chosen = np.array([each == name for each in names])
        found.append((f"outcome, {label} ({chosen.sum()})", chosen))
    rest = np.array([name not in kept for name in names])
    if rest.any():
        found.append((f"outcome, {len(counted) - len(kept)} other sets ({rest.sum()})", rest))
    return found


def require_runs(who: str, runs: Sequence[object]) -> None:
    """Refuse objects that are not runs with experiments, and runs that cannot be compared."""
    found = [run for run in runs if isinstance(run, Run)]
    if not runs or len(found) < len(runs):
        got = ", ".join(sorted({type(run).__name__ for run in runs})) or "nothing"
        raise DataError(f"{who} needs a Run, or several; got {got}")
    if not all(run.steps for run in found):
        raise DataError("a run has no experiment yet, so that nothing can be drawn")
    if len(found) > 1 and any(run.system is None for run in found):
        raise DataError("several runs are compared by their gaps, which need the true system")
    if any(run.problem != found[0].problem for run in found):
        raise DataError("the runs are of different problems; draw those of one problem together")


def draw_progress(
    runs: Run | Iterable[Run] | Mapping[str, Iterable[Run]],
    ax: Axes | None = None,
    *,
    level: float = 0.9,
) -> Axes:
    """Draw the best so far against the cumulative cost.

    For one run whose true system is known, the gaps to the optimum are drawn, of the recommended
    intervention and of the best that was tried, which only an oracle knows; otherwise the
    recommended effect with its interval, and every outcome. For several runs, the median gap of the
    recommended intervention is drawn for each method, with a band that holds the middle half of its
    runs.

    Parameters
    ----------
    runs:
        A run, or several runs of one problem whose true system is known; or a dictionary of such
        runs by the names of the groups, which replace the names of the methods.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the interval.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    groups: dict[str, Sequence[Run]] = {}
    if isinstance(runs, Mapping):
        groups = {name: tuple(own) for name, own in runs.items()}
        several = [run for own in groups.values() for run in own]
    else:
        several = [runs] if isinstance(runs, Run) else list(runs)
    require_runs("draw_progress", several)
    style.half_width(level)  # refuses a level such as 99
    first, problem, system = several[0], several[0].problem, several[0].system
    ax = ax or style.new_axes(6.4, 3.8)
    if not groups and len(several) > 1:
        methods = dict.fromkeys(run.settings.name for run in several)
        groups = {name: [run for run in several if run.settings.name == name] for name in methods}
    if groups:
        _draw_groups(ax, groups)
    elif system is not None:
        _draw_gaps(ax, first)
    else:
        _draw_recommended(ax, first, level)
    target, title = problem.label(problem.target), f"{problem.objective} {problem.target}"
    which = first.settings.name if len(several) == 1 else f"{len(several)} runs"
    if system is None:
        style.entitle(ax, f"{which}: {title}\n{CHOICE}")
        ax.set_ylabel(style.folded(target))
    else:
        style.entitle(ax, f"{which}: {title}, optimum {system.optimum.value:.4g}")
        ax.set_ylabel(style.folded(f"gap to the optimum, {target}"))
        highest = max(float(np.max(line.get_ydata())) for line in ax.lines)
        top = ax.get_ylim()[1] if highest > 0 else 1.0
        ax.set_ylim(-0.04 * top, top)  # a gap of 0 is seen
    ax.set_xlabel("cumulative cost")
    ax.set_xlim(left=0)
    style.legend_below(ax, 1 if len(several) > 1 else 2)
    return ax


def _draw_gaps(ax: Axes, run: Run) -> None:
    """Draw both gaps of one run."""
    costs = run.trace["total_cost"].to_numpy()
    for of, colour, dashes, label, width in (
        ("recommended", BLUE, "-", "recommended", 3.0),
        ("tried", AMBER, "--", "best tried, known to an oracle only", 1.5),
    ):
        gaps = run.regret(of)
        look: dict[str, Any] = {"color": colour, "ls": dashes, "lw": width, "marker": "o"}
        look["label"] = f"{label}: {gaps[-1]:.3g} at the end"
        ax.step(costs, gaps, where="post", ms=2 * width, **look)


def _draw_recommended(ax: Axes, run: Run, level: float) -> None:
    """Draw the effect of the recommended intervention with its interval, and every outcome."""
    trace = run.trace
    costs, mean = trace["total_cost"].to_numpy(), trace["best_mean"].to_numpy()
    half = style.half_width(level) * trace["best_sd"].to_numpy()
    ax.fill_between(costs, mean - half, mean + half, color=BLUE, alpha=0.2, lw=0, step="post")
    ax.step(costs, mean, where="post", color=BLUE, label=f"recommended: mean, {level:.0%} interval")
    ax.plot(costs, trace["outcome"], "o", ms=4, color=GREY, label="outcome")


def _draw_groups(ax: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw the median gap of every group against cost, and the middle half of its runs.

    A group is drawn at the costs at which all of its runs have begun and none has ended.
    """
    for position, (name, own) in enumerate(groups.items()):
        spent = [run.trace["total_cost"].to_numpy() for run in own]
        begun, ended = max(each[0] for each in spent), min(each[-1] for each in spent)
        costs = np.unique(np.concatenate(spent))
        costs = costs[(costs >= begun) & (costs <= max(ended, begun))]
        gaps = [
            run.regret()[np.searchsorted(each, costs, side="right") - 1]
            for run, each in zip(own, spent, strict=True)
        ]
        low, middle, high = np.quantile(gaps, (0.25, 0.5, 0.75), axis=0)
        colour = COLOURS[position % len(COLOURS)]
        ax.fill_between(costs, low, high, color=colour, alpha=0.15, lw=0, step="post")
        label = style.plain(f"{name}, {len(own)} runs: {middle[-1]:.3g} at cost {costs[-1]:.4g}")
        ax.step(costs, middle, where="post", color=colour, lw=1.8, label=label)


def draw_learning(run: Run, ax: Axes | None = None, *, most: int = 12, level: float = 0.9) -> Axes:
    """Draw the posterior of the best intervention of every set tried, before and after the run.

    Of each set, the intervention is shown whose posterior mean is best in the end; the best sets
    come first. Where the true system is known, the true effects are marked.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    ax:
        Where to draw; by default a new figure.
    most:
        The largest number of sets that are drawn; the title says how many are omitted.
    level:
        The probability of the intervals.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    require_runs("draw_learning", (run,))
    share, problem = read_share("level", level), run.problem
    best = _best_of_sets(run)
    shown, found = best[: read_count("most", most, 1)], len(best)
    names = [_written(each) for each in problem.interventions(shown)]
    ax = style.list_axes(ax, names, 5.4, 0.44 * len(names) + 1.9)
    positions = np.arange(len(names))
    for surrogate, offset, colour, label in (
        (restart(run).surrogate, -0.15, GREY, f"before: mean, {share:.0%} interval"),
        (run.surrogate, 0.15, BLUE, f"after {len(run.steps)} experiments"),
    ):
        mean, sd = surrogate.predict(shown)
        degrees = float(getattr(surrogate, "degrees", np.inf))
        half = float(student.ppf((1 + share) / 2, degrees)) * sd
        ax.hlines(positions + offset, mean - half, mean + half, color=colour, lw=2)
        ax.plot(mean, positions + offset, "o", ms=4.5, color=colour, label=label)
    if run.system is not None:
        truth = run.system.effect(shown)
        ax.plot(truth, positions, "|", ms=13, mew=2, color=AMBER, label="true effect")
        ax.axvline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    ax.set_xlabel(style.folded(problem.label(problem.target), 50))
    which = "the set tried" if found == 1 else f"all {found} sets tried, the best first"
    if found > len(names):
        which = f"{len(names)} of {found} sets tried, {found - len(names)} worse ones omitted"
    style.entitle(
        ax, f"{run.settings.name}, {problem.objective} {problem.target}: {which}\n{CHOICE}"
    )
    style.legend_below(ax)
    return ax


def _best_of_sets(run: Run) -> Queries:
    """Return the best intervention that was tried of every set, the best set first."""
    sign = 1.0 if run.problem.objective == "min" else -1.0
    losses = sign * run.surrogate.predict(run.queries).mean
    best = [rows[first_smallest(losses[rows])] for _, rows in split_by_set(run.queries)]
    return run.queries[np.array(best)[np.argsort(losses[best], kind="stable")]]


def draw_experiments(run: Run, ax: Axes | None = None) -> Axes:
    """Draw which variables every experiment set, and to which values of their domains, in order.

    Each variable has a band with its domain, the highest value on top, and lines at its levels. A
    mark is a value that was set, its colour the outcome; vertical lines join the members of a set.
    The experiments with the intervention that is recommended in the end are ringed.

    Parameters
    ----------
    run:
        A run with at least one experiment.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    require_runs("draw_experiments", (run,))
    problem, mask = run.problem, np.asarray(run.queries.mask)
    names = list(problem.manipulable)
    used = [name for name in names if mask[:, problem.graph.index(name)].any()]
    shown = names if len(names) <= MOST_VARIABLES else used
    labels = style.distinct([problem.label(name) for name in shown], style.SHORT_LABEL)
    wide = min(4.2 + 0.22 * len(run.steps), 12.0) + 0.06 * max(map(len, labels))
    ax = ax or style.new_axes(wide, max(0.62 * len(shown) + 1.9, 3.6))
    _draw_domains(ax, problem, shown, labels)
    heights, outcomes = _heights(problem, run.queries, shown), run.trace["outcome"].to_numpy()
    at = np.arange(1, len(run.steps) + 1)
    ax.vlines(at, np.nanmin(heights, 1), np.nanmax(heights, 1), color=GREY, lw=0.8, zorder=2)
    colours: dict[str, Any] = {"cmap": "viridis" if problem.objective == "min" else "viridis_r"}
    colours["norm"] = Normalize(outcomes.min(), outcomes.max())
    repeats = len(shown)
    drawn = ax.scatter(
        at.repeat(repeats), heights.ravel(), c=outcomes.repeat(repeats), s=34, zorder=3, **colours
    )
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.9)
    bar.set_label(style.folded(f"outcome, {problem.label(problem.target)}; better is darker", 28))
    ax.set_ylim(len(shown) - 0.5, -0.5)
    _number_experiments(ax, len(at))
    sets = len(list(split_by_set(run.queries)))
    left = f", {len(names) - len(shown)} variables never set" if len(names) > len(shown) else ""
    title = f"{run.settings.name}, {problem.objective} {problem.target}: "
    style.entitle(ax, f"{title}{sets} of {len(problem.sets)} sets tried{left}")
    tried = problem.interventions(run.queries)
    best = np.array([each == run.best.intervention for each in tried])
    if best.any():
        ring: dict[str, Any] = {"s": 95, "facecolors": "none", "edgecolors": AMBER, "lw": 1.8}
        rings = at[best].repeat(repeats)
        ax.scatter(rings, heights[best].ravel(), zorder=4, label="recommended", **ring)
        style.legend_below(ax, markerscale=0.7)
    return ax


def _heights(problem: Problem, queries: Queries, names: list[str]) -> np.ndarray:
    """Return where marks are drawn, (t, n); NaN for a variable that was not set."""
    columns = [problem.graph.index(name) for name in names]
    mask, value = np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns]
    low, high = np.array([problem.domains[name] for name in names]).T
    shares = (value - low) / np.where(high > low, high - low, 1.0)
    return np.where(mask, np.arange(len(names)) - INSIDE * (shares - 0.5), np.nan)


def _draw_domains(ax: Axes, problem: Problem, names: list[str], labels: list[str]) -> None:
    """Draw a band for every variable, with its label, lines at its levels and its ends."""
    for position, name in enumerate(names):
        low, high = problem.domains[name]
        ax.axhspan(position - BAND / 2, position + BAND / 2, color=GREY, alpha=0.18, lw=0, zorder=0)
        for value in problem.levels.get(name, ()):
            line = position - INSIDE * ((value - low) / (high - low) - 0.5)
            ax.axhline(line, color="white", lw=1, zorder=1)
    ax.set_yticks(range(len(names)), labels, fontsize="small")
    ends = [position + side * INSIDE / 2 for position in range(len(names)) for side in (1, -1)]
    values = [f"{value:.3g}" for name in names for value in problem.domains[name]]
    ax.set_yticks(ends, values, fontsize="x-small", minor=True)
    ax.tick_params(axis="y", which="both", length=0)


def draw_surprise(surprise: object, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw the standardized residual of every outcome, and their signed sum.

    Residuals are standard normal under the model. The signed sum over sqrt(t) leaves the band where
    outcomes are shifted. Outcomes that are worse than predicted are amber. A dashed line marks the
    experiment at which the outcomes became a surprise.

    Parameters
    ----------
    surprise:
        A `Surprise`, or a run that has one.
    ax:
        Where to draw; by default a new figure.
    level:
        The share of outcomes within the band, where predictions are right.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    found = getattr(surprise, "surprise", surprise)
    if not isinstance(found, Surprise):
        raise DataError(f"draw_surprise needs a Surprise or a run, got {type(surprise).__name__}")
    if not found.told:
        raise DataError("there is no outcome yet, so that nothing can be drawn")
    width, table = style.half_width(level), found.table
    ax = ax or style.new_axes(6.4, 3.8)
    at, score = table.index.to_numpy(), table["score"].to_numpy()
    ax.axhspan(-width, width, color=GREY, alpha=0.2, lw=0, label=f"{level:.0%} of outcomes")
    ax.axhline(0.0, color=GREY, lw=0.8)
    ax.plot(at, table["signed"], color=BLUE, lw=1.6, label="signed sum over √t")
    worse = score > 0 if found.problem.objective == "min" else score < 0
    for chosen, colour, word in ((worse, AMBER, "worse"), (~worse, INK, "better")):
        if chosen.any():
            label = f"outcome, {word} than predicted"
            ax.plot(at[chosen], score[chosen], "o", ms=5, color=colour, label=label)
    if found.alarm is not None:
        ax.axvline(found.alarm, color=INK, ls="--", lw=1, label=f"p < 0.001 from {found.alarm} on")
    _name_sets(ax, table["set"].tolist())
    ends = [*score, *table["signed"], -width, width]
    ax.set(ylabel="standardized residual", ylim=(min(ends) - 0.9, max(ends) + 0.5))
    _number_experiments(ax, len(at))
    style.legend_below(ax)
    verdict = f"outcomes agree with their predictions (p = {found.p:.2g})"
    if found.alarm is not None:
        how = "scatter more than predicted" if found.is_scatter else "contradict their predictions"
        verdict = f"outcomes {how} (p = {found.p:.1g})"
    style.entitle(ax, f"{found.problem.label(found.problem.target)}: {verdict}")
    return ax


def _name_sets(ax: Axes, sets: list[str]) -> None:
    """Name the set of every run of experiments at the bottom, where there are few runs."""
    starts, ends = style.equal_runs(sets)
    look: dict[str, Any] = {"ha": "center", "fontsize": "x-small", "color": INK}
    for start, end in zip(starts, ends, strict=True) if len(starts) <= MOST_RUNS_OF_SETS else ():
        name = style.short(sets[start], max(int(60 * (end - start) / len(sets)), 5))
        ax.text((start + end + 1) / 2, 0.02, name, transform=ax.get_xaxis_transform(), **look)
