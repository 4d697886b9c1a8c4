"""How did an optimization go: its progress, its experiments, what they changed, any surprise?

Each picture is of a run, or of a study, which is a run whose true system is not known. Experiments
are numbered by their outcomes, in the order in which these count. Failed experiments have no
number; retracted ones are not drawn, and what both cost is part of the cumulative cost.

Intervals of a recommended intervention are those of that intervention as if it had been given; they
do not account for the choice of the best, which the titles note.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from causal_bo_ppl.data.observations import (
    FAILED_EXPERIMENT,
    OUT_OF_DOMAIN,
    RETRACTED,
    Observations,
)
from causal_bo_ppl.diagnostics.sequential import Surprise
from causal_bo_ppl.effect_estimates.table import central_interval
from causal_bo_ppl.errors import ArgumentError, DataError
from causal_bo_ppl.inputs import read_count, read_list, read_share
from causal_bo_ppl.linalg import first_smallest
from causal_bo_ppl.optimization import Run, Study
from causal_bo_ppl.optimization.state import (
    Recommendation,
    State,
    find_predictable,
    infer_state,
)
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, COLOURS, GREY, INK
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.problem.interventions import set_label, split_by_set

SELECTION_NOTE = "intervals do not account for the choice of the best"
MOST_TRIED = 6  # interventions or sets that have separate marks
OUTCOME_MARKS = tuple(zip("os^DvP.", (*COLOURS[3:], "#a16207", INK, GREY), strict=True))
MOST_VARIABLES = 20  # above, variables that were never intervened on are omitted
BAND_HEIGHT, DOMAIN_HEIGHT = 0.88, 0.54  # shares of the distance between two variables
MOST_BEYOND = 0.24  # of the domain's length, to which values farther beyond it are moved
CROSS: dict[str, Any] = {"marker": "x", "color": "#b91c1c", "zorder": 3, "label": "failed"}
MOST_RUNS_OF_SETS = 12  # runs of experiments on one set that are named below the outcomes


def draw_run(run: Run | Study, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw every outcome, and the posterior of the recommended intervention after it.

    Outcomes of one intervention have the same mark; where there were more than six interventions,
    those of one set have it. Where the true system is known, the true effect of the recommended
    intervention and the optimum are drawn too.

    Parameters
    ----------
    run:
        A run or a study, with at least one outcome of an experiment.
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
        If it is neither a run nor a study, or `level` is not between 0 and 1.
    DataError
        If there is no outcome of an experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, key=0)
    >>> cb.plots.draw_run(run).get_xlabel()
    'experiment'
    """
    [run] = _read_runs("draw_run", (run,))
    groups, best = _tried(run.experiments), [each for each, _ in run.recommended]
    columns = 1 if max(len(label) for label, _ in groups) > style.SHORT_LABEL else 2
    ax = ax or style.new_axes(6.4, 3.4 + style.LINE_HEIGHT * (len(groups) + 3) / columns)
    numbers = np.arange(1, len(run) + 1)
    _draw_recommended(ax, numbers, best, level, "mid", "best so far: mean and")
    for (label, chosen), (mark, colour) in zip(groups, OUTCOME_MARKS, strict=False):
        look: dict[str, Any] = {"marker": mark, "color": colour, "ls": "none", "ms": 5}
        ax.plot(numbers[chosen], run.experiments.outcome[chosen], label=label, **look)
    if run.system is not None:
        look = {"ms": 10, "mew": 2, "color": AMBER, "label": "best so far: true effect"}
        ax.plot(numbers, run.system.effect([each.intervention for each in best]), "_", **look)
        ax.axhline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    _number_experiments(ax, len(numbers))
    title = f"{_purpose(run)}\n{SELECTION_NOTE}"
    return style.finish(ax, title, "experiment", run.problem.label(run.problem.target), columns)


def _read_runs(caller: str, given: object) -> list[Run]:
    """Return runs of what was given, each a run or a study.

    Other objects are refused, runs without outcomes, and runs that cannot be compared.
    """
    of = _elements(given)
    if not of or not all(isinstance(each, Run | Study) for each in of):
        got = ", ".join(sorted({type(each).__name__ for each in of})) or "nothing"
        raise ArgumentError(f"{caller} needs a Run or a Study, or several; got {got}")
    runs = [Run(each) if isinstance(each, Study) else each for each in of]
    if not all(len(run) for run in runs):
        raise DataError(
            "a run or a study has no experiment yet that has an outcome, so that nothing can be "
            "drawn"
        )
    if len(runs) > 1 and any(run.system is None for run in runs):
        raise DataError(
            "several runs or studies are compared by their gaps, which need the true system"
        )
    if any(run.problem != runs[0].problem for run in runs):
        raise DataError("the runs are of different problems; draw those of one problem together")
    return runs


def _reported(run: Run) -> Observations:
    """Return all that was reported: outcomes in the order in which they count.

    What failed or was retracted stays where it was reported.
    """
    log = run.study.observations
    order = np.arange(len(log))
    order[log.is_observed] = log.order
    return log.select(order)


def _purpose(run: Run) -> str:
    """Return the method, the objective and the target of a run, for a title."""
    return f"{run.settings.name}: {run.problem.objective} {run.problem.target}"


def _number_experiments(ax: Axes, count: int, is_numbered: np.ndarray | None = None) -> None:
    """Number the experiments along the horizontal axis.

    is_numbered: (count,), which of them have a number; by default all.
    """
    ax.set_xlim(0.5, count + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if is_numbered is not None and not is_numbered.all():
        positions = np.flatnonzero(is_numbered) + 1
        ticks = MaxNLocator(integer=True, min_n_ticks=1).tick_values(1, len(positions))
        numbers = [int(tick) for tick in ticks if 1 <= tick <= len(positions)]
        ax.set_xticks([positions[number - 1] for number in numbers], list(map(str, numbers)))


def _written(intervention: Mapping[str, float]) -> str:
    """Return an intervention as a label."""
    values = ", ".join(f"{name} = {value:.3g}" for name, value in intervention.items())
    return values or "no intervention"


def _tried(experiments: Observations) -> list[tuple[str, np.ndarray]]:
    """Return labels of what was tried, the most frequent first, and which outcomes each has, (t,).

    Of more than MOST_TRIED interventions the sets are named, and the rest of the sets together.
    """
    tried = experiments.settings()
    notes = np.where(experiments.is_out_of_domain, f", {OUT_OF_DOMAIN}", "")
    names = [_written(each) + note for each, note in zip(tried, notes, strict=True)]
    if len(set(names)) > MOST_TRIED:
        names = [set_label(tuple(each)) + note for each, note in zip(tried, notes, strict=True)]
    counted = Counter(names).most_common()  # equal counts stay in the order of the experiments
    shown = [name for name, _ in counted[:MOST_TRIED]]
    labels = dict(zip(shown, style.distinct(shown, style.LONG_LABEL), strict=True))
    rest = f"{len(counted) - len(shown)} other sets"
    written = np.array([labels.get(name, rest) for name in names])
    groups = [(label, written == label) for label in dict.fromkeys([*labels.values(), rest])]
    return [(f"outcome, {label} ({which.sum()})", which) for label, which in groups if which.any()]


def draw_progress(
    runs: Run | Study | Iterable[Run | Study] | Mapping[str, Iterable[Run | Study]],
    ax: Axes | None = None,
    *,
    level: float = 0.9,
) -> Axes:
    """Draw the best so far against the cumulative cost.

    For one run whose true system is known, the gaps to the optimum are drawn, of the recommended
    intervention and of the best that was tried, which only an oracle knows; otherwise, as for a
    study, the recommended effect with its interval, and every outcome. For several runs, the median
    gap of the recommended intervention is drawn for each method, with a band that holds the middle
    half of its runs. Experiments that failed are crosses at the bottom of the picture of one run.

    Parameters
    ----------
    runs:
        A run or a study; or several runs of one problem whose true system is known; or a dictionary
        of such runs by the names of the groups, which replace the names of the methods. A study
        whose system is known is such a run: `cb.Run(study, system)`.
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
        If they are neither runs nor studies, or `level` is not between 0 and 1.
    DataError
        If one has no outcome of an experiment, or they cannot be compared.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_progress(run).get_title()
    'gc-cbo: min Y, optimum -6.5'
    """
    groups: dict[str, list[Run]] = {}
    if isinstance(runs, Mapping):
        given = {name: _elements(members) for name, members in runs.items()}
        several = _read_runs("draw_progress", [each for part in given.values() for each in part])
        rest = iter(several)
        groups = {name: list(islice(rest, len(part))) for name, part in given.items()}
    else:
        several = _read_runs("draw_progress", runs)
    if not groups and len(several) > 1:
        for run in several:
            groups.setdefault(run.settings.name, []).append(run)
    first, share = several[0], read_share("level", level)
    ax = ax or style.new_axes(6.4, 3.8)
    title, label = _purpose(first), first.problem.label(first.problem.target)
    if len(several) > 1:
        title = f"{len(several)} runs: {first.problem.objective} {first.problem.target}"
    if first.system is None:
        costs, outcomes = _costs(first)[0], first.experiments.outcome
        best = [each for each, _ in first.recommended]
        _draw_recommended(ax, costs, best, share, "post", "recommended: mean,")
        ax.plot(costs, outcomes, "o", ms=4, color=GREY, label="outcome")
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
    _mark_failed(ax, _costs(first)[1] if len(several) == 1 else np.zeros(0))
    is_free = any(_costs(run)[0][0] == 0 for run in several)
    ax.set_xlim(left=-0.03 * ax.get_xlim()[1] if is_free else 0)  # a mark at cost 0 is seen
    return style.finish(ax, title, "cumulative cost", label, 1 if len(several) > 1 else 2)


def _elements(given: object) -> list[Any]:
    """Return the elements of a list, or what is no list as the only element."""
    found = None if isinstance(given, Run | Study) else read_list(given)
    return [given] if found is None else found


def _costs(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return what was spent up to every experiment with an outcome, and up to every failed one."""
    rows = _reported(run)
    spent, is_failed = np.cumsum(rows.cost), rows.status == FAILED_EXPERIMENT
    return spent[rows.is_observed & ~rows.is_passive], spent[is_failed & ~rows.is_passive]


def _mark_failed(ax: Axes, costs: np.ndarray) -> None:
    """Draw crosses at some costs, below all else."""
    if len(costs):
        low, high = ax.get_ylim()
        ax.set_ylim(low - 0.1 * (high - low), high)
        look: dict[str, Any] = {"ls": "none", "ms": 5, "transform": ax.get_xaxis_transform()}
        ax.plot(costs, np.full(len(costs), 0.045), **look, **CROSS)


def _draw_gaps(ax: Axes, run: Run) -> None:
    """Draw both gaps of one run."""
    costs, _ = _costs(run)
    for of, colour, dashes, label, width in (
        ("recommended", BLUE, "-", "recommended", 3.0),
        ("tried", AMBER, "--", "best tried, known to an oracle only", 1.5),
    ):
        gaps = run.regret(of)
        look: dict[str, Any] = {"color": colour, "ls": dashes, "lw": width, "marker": "o"}
        look["label"] = f"{label}: {gaps[-1]:.3g} at the end"
        ax.step(costs, gaps, where="post", ms=2 * width, **look)


def _draw_recommended(
    ax: Axes,
    x: np.ndarray,
    best: list[Recommendation],
    level: float,
    step: Literal["mid", "post"],
    label: str,
) -> None:
    """Draw the posterior mean of the recommended intervention with its interval."""
    mean, sd = np.array([(each.mean, each.sd) for each in best]).T
    half, text = style.half_width(level) * sd, f"{label} {level:.0%} interval"
    if len(best) == 1:  # a step of one point has no length
        ax.errorbar(x, mean, yerr=half, fmt="_", ms=12, capsize=0, color=BLUE, label=text)
    else:
        style.shade(ax, x, mean - half, mean + half, BLUE, step=step)
        ax.step(x, mean, where=step, color=BLUE, label=text)


def _draw_groups(ax: Axes, groups: Mapping[str, Sequence[Run]]) -> None:
    """Draw the median gap of every group against cost, and the middle half of its runs.

    A group is drawn at the costs at which all of its runs have begun and none has ended.
    """
    for position, (name, runs) in enumerate(groups.items()):
        spent = [_costs(run)[0] for run in runs]
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
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        label = style.plain(f"{name}, {count}: {middle[-1]:.3g} at cost {costs[-1]:.4g}")
        ax.step(costs, middle, where="post", color=colour, lw=1.8, label=label)


def draw_learning(
    run: Run | Study, ax: Axes | None = None, *, most: int = 12, level: float = 0.9
) -> Axes:
    """Draw the posterior of the best intervention of every set tried, before and after outcomes.

    Of each set, the intervention is shown whose posterior mean is best in the end; the best sets
    come first. An intervention out of domain is shown where no other of its set was tried, and
    omitted where the surrogate cannot predict it. Where the true system is known, the true effects
    are marked.

    Parameters
    ----------
    run:
        A run or a study, with at least one outcome of an experiment.
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
        If it is neither a run nor a study, or `level` or `most` is out of range.
    DataError
        If there is no outcome of an experiment, or none that can be predicted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_learning(run).get_xlabel()
    'Y'
    """
    [run] = _read_runs("draw_learning", (run,))
    share, problem, before = read_share("level", level), run.problem, _before(run)
    is_known = find_predictable(before, run.experiments)
    is_known &= find_predictable(run.study.state, run.experiments)
    if not is_known.any():
        raise DataError(f"all experiments are {OUT_OF_DOMAIN}, and the surrogate predicts none")
    tried = run.experiments.select(is_known)
    best = _best_of_sets(run, tried)
    chosen, total = tried.select(best[: read_count("most", most, 1)]), len(best)
    shown = chosen.queries
    names = [
        _written(each) + f", {OUT_OF_DOMAIN}" * bool(is_outside)
        for each, is_outside in zip(chosen.settings(), chosen.is_out_of_domain, strict=True)
    ]
    ax = style.list_axes(ax, names, 5.4, 0.44 * len(names) + 1.9)
    positions = np.arange(len(names))
    count = f"{len(run)} experiment{'s' * (len(run) > 1)}"
    for surrogate, offset, colour, label in (
        (before.surrogate, -0.15, GREY, f"before: mean, {share:.0%} interval"),
        (run.surrogate, 0.15, BLUE, f"after {count}"),
    ):
        mean, sd = surrogate.predict(shown)
        degrees = float(getattr(surrogate, "degrees", np.inf))
        low, high = central_interval(mean, sd, degrees, share)
        ax.hlines(positions + offset, low, high, color=colour, lw=2)
        ax.plot(mean, positions + offset, "o", ms=4.5, color=colour, label=label)
    if run.system is not None:
        is_legal = ~chosen.is_out_of_domain
        truth = run.system.effect(shown[is_legal])
        ax.plot(truth, positions[is_legal], "|", ms=13, mew=2, color=AMBER, label="true effect")
        ax.axvline(run.system.optimum.value, color=INK, ls="--", lw=1, label="true optimum")
    which = "the set tried" if total == 1 else f"all {total} sets tried, the best first"
    if total > len(names):
        which = f"{len(names)} of {total} sets tried, {total - len(names)} worse ones omitted"
    unknown = len(list(split_by_set(run.queries))) - total
    which += f", {unknown} that cannot be predicted omitted" if unknown else ""
    title = f"{_purpose(run)}, {which}\n{SELECTION_NOTE}"
    return style.finish(ax, title, problem.label(problem.target))


def _before(run: Run) -> State:
    """Return posterior and surrogate before any outcome, also for interventions out of domain."""
    study = run.study
    if not run.experiments.is_out_of_domain.any():
        return study.states.before
    return infer_state(study.start, study.observations.select(slice(0, 0)), takes_measured=True)


def _best_of_sets(run: Run, tried: Observations) -> np.ndarray:
    """Return the positions of the best intervention of every set, the best set first.

    Of a set it is one in the domain, where there is any.
    """
    sign = 1.0 if run.problem.objective == "min" else -1.0
    losses, best = sign * run.surrogate.predict(tried.queries).mean, []
    for _, members in split_by_set(tried.queries):
        legal = members[~tried.is_out_of_domain[members]]
        among = legal if len(legal) else members
        best.append(among[first_smallest(losses[among])])
    return np.array(best)[np.argsort(losses[best], kind="stable")]


def draw_experiments(run: Run | Study, ax: Axes | None = None) -> Axes:
    """Draw which variables every experiment set, and to which values of their domains, in order.

    Each variable has a band with its domain, the highest value on top, and lines at its levels. A
    mark is a value that was set, its colour the outcome; vertical lines join the members of a set.
    Experiments out of domain are diamonds, and values far beyond a domain lie at the edge of its
    band; a variable without a domain has that of the values that were set. Failed experiments are
    crosses between the others. The experiments with the intervention that is recommended in the end
    are ringed.

    Parameters
    ----------
    run:
        A run or a study, with at least one outcome of an experiment.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is neither a run nor a study.
    DataError
        If there is no outcome of an experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_experiments(run).get_xlabel()
    'experiment'
    """
    [run] = _read_runs("draw_experiments", (run,))
    problem, rows = run.problem, _reported(run)
    rows = rows.select(~rows.is_passive & (rows.status != RETRACTED))
    names = _shown_variables(problem, rows)
    ranges = [_range(problem, rows, name) for name in names]
    labels = style.distinct([_variable_label(problem, name) for name in names], style.SHORT_LABEL)
    count, never_set = len(rows), len(set(problem.manipulable) - set(names))
    width = min(4.2 + 0.22 * count, 12.0) + 0.06 * max(map(len, labels))
    ax = ax or style.new_axes(width, max(0.62 * len(names) + 1.9, 3.6))
    _draw_domains(ax, problem, names, ranges, labels)
    heights, x = _heights(rows, names, ranges), np.arange(1, count + 1)
    ax.vlines(x, np.nanmin(heights, 1), np.nanmax(heights, 1), color=GREY, lw=0.8, zorder=2)
    _draw_marks(ax, problem, rows, heights)
    ax.set_ylim(len(names) - 0.5, -0.5)
    _number_experiments(ax, count, rows.is_observed)
    is_best = np.array([each == run.best.intervention for each in rows.settings()])
    is_best &= rows.is_observed
    if is_best.any():
        ring: dict[str, Any] = {"s": 95, "facecolors": "none", "edgecolors": AMBER, "lw": 1.8}
        _scatter(ax, heights, is_best, zorder=4, label="recommended", **ring)
    title = f"{_purpose(run)}, {_count_sets(run)}"
    title += f", {never_set} variables never set" if never_set else ""
    columns = len(ax.get_legend_handles_labels()[1])
    return style.finish(ax, title, "experiment", columns=columns, markerscale=0.7)


def _shown_variables(problem: Problem, rows: Observations) -> list[str]:
    """Return the variables that may be set or were; of very many those that were."""
    were_set = {name for each in rows.settings() for name in each}
    names = [*problem.manipulable, *(name for name in rows.nodes if name in were_set)]
    names = list(dict.fromkeys(names))
    return names if len(names) <= MOST_VARIABLES else [each for each in names if each in were_set]


def _variable_label(problem: Problem, name: str) -> str:
    """Return the label of a variable, which notes that it has no domain."""
    return problem.label(name) + ("" if name in problem.domains else ", no domain")


def _range(problem: Problem, rows: Observations, name: str) -> tuple[float, float]:
    """Return the domain of a variable; where it has none, the range of the values it was set to."""
    if name in problem.domains:
        low, high = problem.domains[name]
        return float(low), float(high)
    column = rows.nodes.index(name)
    values = rows.value[rows.mask[:, column], column]
    return float(values.min()), float(values.max())


def _count_sets(run: Run) -> str:
    """Return in words how many sets were tried, of those that may be and of others."""
    tried = [tuple(each) for each in run.experiments.settings()]
    legal, different = {frozenset(each) for each in run.problem.sets}, set(map(frozenset, tried))
    text = f"{len(different & legal)} of {len(legal)} sets tried"
    others = len(different - legal)
    return f"{text}, and {others} other{'s' * (others > 1)}" if others else text


def _scatter(
    ax: Axes,
    heights: np.ndarray,
    chosen: np.ndarray,
    colours: np.ndarray | None = None,
    **look: Any,
) -> Any:
    """Draw marks of the chosen experiments, (t,), at those of the heights (t, n) that are finite.

    colours: the numbers of all experiments that are shown as colours, (t,).
    """
    rows, columns = np.nonzero(np.isfinite(heights) & chosen[:, None])
    look |= {} if colours is None else {"c": colours[rows]}
    return ax.scatter(rows + 1, heights[rows, columns], **look)


def _draw_marks(ax: Axes, problem: Problem, rows: Observations, heights: np.ndarray) -> None:
    """Draw a mark for every value that was set, and the scale of the colours."""
    outcomes = rows.outcome[rows.is_observed]
    scale = "viridis" if problem.objective == "min" else "viridis_r"
    look: dict[str, Any] = {"cmap": scale, "s": 34, "zorder": 3}
    look["norm"] = Normalize(float(outcomes.min()), float(outcomes.max()))
    is_inside = rows.is_observed & ~rows.is_out_of_domain
    is_outside = rows.is_observed & rows.is_out_of_domain
    drawn = _scatter(ax, heights, is_inside, rows.outcome, **look)
    if is_outside.any():
        _scatter(ax, heights, is_outside, rows.outcome, marker="D", **look)
        ax.scatter([], [], marker="D", color=GREY, label=OUT_OF_DOMAIN)  # in the legend alone
    if (~rows.is_observed).any():
        _scatter(ax, heights, ~rows.is_observed, s=34, **CROSS)
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.9)
    bar.set_label(style.folded(f"outcome, {problem.label(problem.target)}; better is darker", 28))


def _heights(rows: Observations, names: list[str], ranges: list[tuple[float, float]]) -> np.ndarray:
    """Return where marks are drawn, (t, n); NaN for a variable that was not set."""
    columns = [rows.nodes.index(name) for name in names]
    low, high = np.array(ranges).T
    shares = (rows.value[:, columns] - low) / np.where(high > low, high - low, 1.0)
    shares = np.clip(np.where(high > low, shares, 0.5 + shares), -MOST_BEYOND, 1 + MOST_BEYOND)
    heights = np.arange(len(names)) - DOMAIN_HEIGHT * (shares - 0.5)
    return np.where(rows.mask[:, columns], heights, np.nan)


def _draw_domains(
    ax: Axes,
    problem: Problem,
    names: list[str],
    ranges: list[tuple[float, float]],
    labels: list[str],
) -> None:
    """Draw a band for every variable, with its label, lines at its levels and its ends."""
    half, inner = BAND_HEIGHT / 2, DOMAIN_HEIGHT / 2
    ends = dict[float, str]()
    for position, (name, (low, high)) in enumerate(zip(names, ranges, strict=True)):
        ax.axhspan(position - half, position + half, color=GREY, alpha=0.18, lw=0, zorder=0)
        for level in problem.levels.get(name, ()):
            height = position - DOMAIN_HEIGHT * ((level - low) / (high - low) - 0.5)
            ax.axhline(height, color="white", lw=1, zorder=1)
        ends |= {position + inner: f"{low:.3g}", position - inner: f"{high:.3g}"}
    ax.set_yticks(range(len(names)), labels, fontsize="small")
    ax.set_yticks(list(ends), list(ends.values()), fontsize="x-small", minor=True)
    ax.tick_params(axis="y", which="both", length=0)


def draw_surprise(surprise: object, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw the standardized residual of every outcome, and their signed sum.

    Residuals are standard normal under the model. The signed sum over sqrt(t) leaves the band where
    outcomes are shifted. Outcomes that are worse than predicted are amber. A dashed line marks the
    experiment at which the outcomes became a surprise. Outcomes out of domain that could not be
    predicted are not drawn and not counted.

    Parameters
    ----------
    surprise:
        A `Surprise`, or a run or a study, which have one.
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
        If it is neither a surprise, a run nor a study, or there is no outcome that was predicted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> run = cb.optimize(cb.models.load("chain"), rounds=2, observations=30, progress=False, key=0)
    >>> cb.plots.draw_surprise(run).get_ylabel()
    'standardized residual'
    """
    found = getattr(surprise, "surprise", surprise)
    if not isinstance(found, Surprise):
        got = type(surprise).__name__
        raise DataError(f"draw_surprise needs a Surprise, a run or a study, got {got}")
    if not len(found):
        raise DataError("there is no outcome yet that was predicted, so that nothing can be drawn")
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
    title, label = f"{problem.label(problem.target)}: outcomes {verdict}", "experiment"
    if isinstance(surprise, Run | Study):
        total = len(Run(surprise) if isinstance(surprise, Study) else surprise)
        label += f", of {len(found)} that were predicted of {total}" * (len(found) < total)
    return style.finish(ax, title, label, "standardized residual")


def _name_sets(ax: Axes, sets: list[str]) -> None:
    """Name the set of every run of experiments at the bottom, where there are few runs."""
    starts, ends = style.equal_runs(sets)
    look: dict[str, Any] = {"ha": "center", "fontsize": "x-small", "color": INK}
    for start, end in zip(starts, ends, strict=True) if len(starts) <= MOST_RUNS_OF_SETS else ():
        name = style.short(sets[start], max(int(60 * (end - start) / len(sets)), 5))
        ax.text((start + end + 1) / 2, 0.02, name, transform=ax.get_xaxis_transform(), **look)
