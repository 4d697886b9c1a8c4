"""How did an optimization go: its progress, its experiments, what they changed, any surprise?

Intervals of a recommended intervention are those of that intervention as if it had been given; they
do not account for the choice of the best, which the titles note.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.stats import t as student

from causal_bo_ppl.errors import ArgumentError, DataError
from causal_bo_ppl.inputs import read_count, read_share
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run
from causal_bo_ppl.optimization.monitor import Surprise
from causal_bo_ppl.optimization.run import restart
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, COLOURS, GREY, INK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import set_label, split_by_set

SELECTION_NOTE = "intervals do not account for the choice of the best"
MOST_TRIED = 6  # interventions or sets that have separate marks
OUTCOME_MARKS = tuple(zip("os^DvP.", (*COLOURS[3:], "#a16207", INK, GREY), strict=True))
MOST_VARIABLES = 20  # above, variables that were never intervened on are omitted
BAND_HEIGHT, DOMAIN_HEIGHT = 0.88, 0.54  # shares of the distance between two variables
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

    Raises
    ------
    ArgumentError
        If it is not a run, or `level` is not between 0 and 1.
    DataError
        If the run has no experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, key=0)
    >>> cb.plots.draw_run(run).get_xlabel()
    'experiment'
    """
    _require_runs("draw_run", (run,))
    trace, groups = run.trace, _tried(run)
    columns = 1 if max(len(label) for label, _ in groups) > style.SHORT_LABEL else 2
    ax = ax or style.new_axes(6.4, 3.4 + style.LINE_HEIGHT * (len(groups) + 3) / columns)
    numbers = trace["experiment"].to_numpy()
    _draw_recommended(ax, numbers, run, level, "mid", "best so far: mean and")
    for (label, chosen), (mark, colour) in zip(groups, OUTCOME_MARKS, strict=False):
        look: dict[str, Any] = {"marker": mark, "color": colour, "ls": "none", "ms": 5}
        ax.plot(numbers[chosen], trace["outcome"].to_numpy()[chosen], label=label, **look)
    if run.system is not None:
        look = {"ms": 10, "mew": 2, "color": AMBER, "label": "best so far: true effect"}
        ax.plot(numbers, trace["best_effect"], "_", **look)
        ax.axhline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    _number_experiments(ax, len(numbers))
    title = f"{_purpose(run)}\n{SELECTION_NOTE}"
    return style.finish(ax, title, "experiment", run.problem.label(run.problem.target), columns)


def _purpose(run: Run) -> str:
    """Return the method, the objective and the target of a run, for a title."""
    return f"{run.settings.name}: {run.problem.objective} {run.problem.target}"


def _number_experiments(ax: Axes, count: int) -> None:
    """Number the experiments along the horizontal axis."""
    ax.set_xlim(0.5, count + 0.5)
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
    shown = [name for name, _ in counted[:MOST_TRIED]]
    labels = dict(zip(shown, style.distinct(shown, style.LONG_LABEL), strict=True))
    rest = f"{len(counted) - len(shown)} other sets"
    written = np.array([labels.get(name, rest) for name in names])
    groups = [(label, written == label) for label in dict.fromkeys([*labels.values(), rest])]
    return [(f"outcome, {label} ({tried.sum()})", tried) for label, tried in groups if tried.any()]


def _require_runs(caller: str, runs: Sequence[Run]) -> None:
    """Refuse objects that are not runs with experiments, and runs that cannot be compared."""
    if not runs or not all(isinstance(run, Run) for run in runs):
        got = ", ".join(sorted({type(run).__name__ for run in runs})) or "nothing"
        raise ArgumentError(f"{caller} needs a Run, or several; got {got}")
    if not all(run.steps for run in runs):
        raise DataError("a run has no experiment yet, so that nothing can be drawn")
    if len(runs) > 1 and any(run.system is None for run in runs):
        raise DataError("several runs are compared by their gaps, which need the true system")
    if any(run.problem != runs[0].problem for run in runs):
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

    Raises
    ------
    ArgumentError
        If they are not runs, or `level` is not between 0 and 1.
    DataError
        If a run has no experiment, or the runs cannot be compared.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_progress(run).get_title()
    'gc-cbo: min Y, optimum -6.5'
    """
    groups: dict[str, list[Run]] = {}
    if isinstance(runs, Mapping):
        groups = {name: list(members) for name, members in runs.items()}
        several = [run for members in groups.values() for run in members]
    else:
        several = [runs] if isinstance(runs, Run) else list(runs)
    _require_runs("draw_progress", several)
    if not groups and len(several) > 1:
        for run in several:
            groups.setdefault(run.settings.name, []).append(run)
    first, share = several[0], read_share("level", level)
    ax = ax or style.new_axes(6.4, 3.8)
    title, label = _purpose(first), first.problem.label(first.problem.target)
    if len(several) > 1:
        title = f"{len(several)} runs: {first.problem.objective} {first.problem.target}"
    if first.system is None:
        costs = first.trace["total_cost"].to_numpy()
        _draw_recommended(ax, costs, first, share, "post", "recommended: mean,")
        ax.plot(costs, first.trace["outcome"], "o", ms=4, color=GREY, label="outcome")
        title = f"{title}\n{SELECTION_NOTE}"
    else:
        if groups:
            _draw_groups(ax, groups)
        else:
            _draw_gaps(ax, first)
        title = f"{title}, optimum {first.system.optimum.value:.4g}"
        label = f"gap to the optimum, {label}"
        highest = max(float(np.max(line.get_ydata())) for line in ax.lines)
        top = ax.get_ylim()[1] if highest > 0 else 1.0
        ax.set_ylim(-0.04 * top, top)  # a gap of 0 is seen
    ax.set_xlim(left=0)
    return style.finish(ax, title, "cumulative cost", label, 1 if len(several) > 1 else 2)


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


def _draw_recommended(
    ax: Axes, x: np.ndarray, run: Run, level: float, step: Literal["mid", "post"], label: str
) -> None:
    """Draw the posterior mean of the recommended intervention with its interval."""
    mean, half = run.trace["best_mean"], style.half_width(level) * run.trace["best_sd"]
    style.shade(ax, x, mean - half, mean + half, BLUE, step=step)
    ax.step(x, mean, where=step, color=BLUE, label=f"{label} {level:.0%} interval")


def _draw_groups(ax: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw the median gap of every group against cost, and the middle half of its runs.

    A group is drawn at the costs at which all of its runs have begun and none has ended.
    """
    for position, (name, runs) in enumerate(groups.items()):
        spent = [run.trace["total_cost"].to_numpy() for run in runs]
        begun, ended = max(each[0] for each in spent), min(each[-1] for each in spent)
        costs = np.unique(np.concatenate(spent))
        costs = costs[(costs >= begun) & (costs <= max(ended, begun))]
        gaps = [
            run.regret()[np.searchsorted(each, costs, side="right") - 1]
            for run, each in zip(runs, spent, strict=True)
        ]
        low, middle, high = np.quantile(gaps, (0.25, 0.5, 0.75), axis=0)
        colour = COLOURS[position % len(COLOURS)]
        style.shade(ax, costs, low, high, colour, alpha=0.15, step="post")
        label = style.plain(f"{name}, {len(runs)} runs: {middle[-1]:.3g} at cost {costs[-1]:.4g}")
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
        The largest number of sets that are drawn; the title has the number of those omitted.
    level:
        The probability of the intervals.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not a run, or `level` or `most` is out of range.
    DataError
        If the run has no experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_learning(run).get_xlabel()
    'Y'
    """
    _require_runs("draw_learning", (run,))
    share, problem = read_share("level", level), run.problem
    best = _best_of_sets(run)
    shown, total = best[: read_count("most", most, 1)], len(best)
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
    which = "the set tried" if total == 1 else f"all {total} sets tried, the best first"
    if total > len(names):
        which = f"{len(names)} of {total} sets tried, {total - len(names)} worse ones omitted"
    title = f"{_purpose(run)}, {which}\n{SELECTION_NOTE}"
    return style.finish(ax, title, problem.label(problem.target))


def _best_of_sets(run: Run) -> Queries:
    """Return the best intervention that was tried of every set, the best set first."""
    sign = 1.0 if run.problem.objective == "min" else -1.0
    losses = sign * run.surrogate.predict(run.queries).mean
    best = [members[first_smallest(losses[members])] for _, members in split_by_set(run.queries)]
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

    Raises
    ------
    ArgumentError
        If it is not a run.
    DataError
        If the run has no experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_experiments(run).get_xlabel()
    'experiment'
    """
    _require_runs("draw_experiments", (run,))
    problem, mask = run.problem, np.asarray(run.queries.mask)
    names = list(problem.manipulable)
    if len(names) > MOST_VARIABLES:
        names = [name for name in names if mask[:, problem.graph.index(name)].any()]
    labels = style.distinct([problem.label(name) for name in names], style.SHORT_LABEL)
    count, never_set = len(run.steps), len(problem.manipulable) - len(names)
    width = min(4.2 + 0.22 * count, 12.0) + 0.06 * max(map(len, labels))
    ax = ax or style.new_axes(width, max(0.62 * len(names) + 1.9, 3.6))
    _draw_domains(ax, problem, names, labels)
    heights, outcomes = _heights(problem, run.queries, names), run.trace["outcome"].to_numpy()
    numbers = np.arange(1, count + 1)
    ax.vlines(numbers, np.nanmin(heights, 1), np.nanmax(heights, 1), color=GREY, lw=0.8, zorder=2)
    x, colours = (np.repeat(each, len(names)) for each in (numbers, outcomes))
    scale = "viridis" if problem.objective == "min" else "viridis_r"
    drawn = ax.scatter(x, heights.ravel(), c=colours, cmap=scale, s=34, zorder=3)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.9)
    bar.set_label(style.folded(f"outcome, {problem.label(problem.target)}; better is darker", 28))
    ax.set_ylim(len(names) - 0.5, -0.5)
    _number_experiments(ax, count)
    is_best = [each == run.best.intervention for each in problem.interventions(run.queries)]
    if any(is_best):
        ring: dict[str, Any] = {"s": 95, "facecolors": "none", "edgecolors": AMBER, "lw": 1.8}
        chosen = np.repeat(is_best, len(names))
        ax.scatter(x[chosen], heights.ravel()[chosen], zorder=4, label="recommended", **ring)
    sets = len(list(split_by_set(run.queries)))
    omitted = f", {never_set} variables never set" if never_set else ""
    title = f"{_purpose(run)}, {sets} of {len(problem.sets)} sets tried{omitted}"
    return style.finish(ax, title, "experiment", columns=2 * any(is_best), markerscale=0.7)


def _heights(problem: Problem, queries: Queries, names: list[str]) -> np.ndarray:
    """Return where marks are drawn, (t, n); NaN for a variable that was not set."""
    columns = [problem.graph.index(name) for name in names]
    mask, value = np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns]
    low, high = np.array([problem.domains[name] for name in names]).T
    shares = (value - low) / np.where(high > low, high - low, 1.0)
    return np.where(mask, np.arange(len(names)) - DOMAIN_HEIGHT * (shares - 0.5), np.nan)


def _draw_domains(ax: Axes, problem: Problem, names: list[str], labels: list[str]) -> None:
    """Draw a band for every variable, with its label, lines at its levels and its ends."""
    half, inner = BAND_HEIGHT / 2, DOMAIN_HEIGHT / 2
    for position, name in enumerate(names):
        low, high = problem.domains[name]
        ax.axhspan(position - half, position + half, color=GREY, alpha=0.18, lw=0, zorder=0)
        for level in problem.levels.get(name, ()):
            height = position - DOMAIN_HEIGHT * ((level - low) / (high - low) - 0.5)
            ax.axhline(height, color="white", lw=1, zorder=1)
    ax.set_yticks(range(len(names)), labels, fontsize="small")
    ends = [end for row in range(len(names)) for end in (row + inner, row - inner)]
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

    Raises
    ------
    DataError
        If it is neither a surprise nor a run, or there is no outcome.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_surprise(run).get_ylabel()
    'standardized residual'
    """
    found = getattr(surprise, "surprise", surprise)
    if not isinstance(found, Surprise):
        raise DataError(f"draw_surprise needs a Surprise or a run, got {type(surprise).__name__}")
    if not found.outcomes:
        raise DataError("there is no outcome yet, so that nothing can be drawn")
    width, table, problem = style.half_width(level), found.table, found.problem
    ax = ax or style.new_axes(6.4, 3.8)
    numbers, score = table.index.to_numpy(), table["score"].to_numpy()
    ax.axhspan(-width, width, color=GREY, alpha=0.2, lw=0, label=f"{level:.0%} of outcomes")
    ax.axhline(0.0, color=GREY, lw=0.8)
    ax.plot(numbers, table["signed"], color=BLUE, lw=1.6, label="signed sum over √t")
    worse = score > 0 if problem.objective == "min" else score < 0
    for chosen, colour, word in ((worse, AMBER, "worse"), (~worse, INK, "better")):
        if chosen.any():
            label = f"outcome, {word} than predicted"
            ax.plot(numbers[chosen], score[chosen], "o", ms=5, color=colour, label=label)
    verdict = f"agree with their predictions (p = {found.p:.2g})"
    if found.alarm is not None:
        ax.axvline(found.alarm, color=INK, ls="--", lw=1, label=f"p < 0.001 from {found.alarm} on")
        how = "scatter more than predicted" if found.is_scatter else "contradict their predictions"
        verdict = f"{how} (p = {found.p:.1g})"
    _name_sets(ax, table["set"].tolist())
    ends = [*score, *table["signed"], -width, width]
    ax.set_ylim(min(ends) - 0.9, max(ends) + 0.5)
    _number_experiments(ax, len(numbers))
    title = f"{problem.label(problem.target)}: outcomes {verdict}"
    return style.finish(ax, title, "experiment", "standardized residual")


def _name_sets(ax: Axes, sets: list[str]) -> None:
    """Name the set of every run of experiments at the bottom, where there are few runs."""
    starts, ends = style.equal_runs(sets)
    look: dict[str, Any] = {"ha": "center", "fontsize": "x-small", "color": INK}
    for start, end in zip(starts, ends, strict=True) if len(starts) <= MOST_RUNS_OF_SETS else ():
        name = style.short(sets[start], max(int(60 * (end - start) / len(sets)), 5))
        ax.text((start + end + 1) / 2, 0.02, name, transform=ax.get_xaxis_transform(), **look)
