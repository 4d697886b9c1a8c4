"""What is believed about theta and about effects, and how often are such beliefs right?"""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.errors import DataError, DomainError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, half_width, plain
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Coupled, couple

POINTS = 60  # of a curve


def draw_posterior(post: Posterior, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw the mean and the central interval of every coordinate of theta_Y.

    The interval is that of the Gaussian with the posterior's mean and variance.
    """
    width = half_width(level)
    if ax is None:
        ax = plt.figure(
            figsize=(5.6, 0.24 * len(post.names) + 1.2), layout="constrained"
        ).add_subplot()
    rows = np.arange(len(post.names))
    ax.errorbar(post.mean, rows, xerr=width * post.sd, fmt="o", ms=3.5, color=BLUE, elinewidth=1.4)
    ax.axvline(0, color=GREY, lw=0.8, zorder=0)
    ax.set_yticks(rows, [plain(name) for name in post.names], fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel(f"posterior mean and {level:.0%} interval")
    ax.set_title(f"{post.method}, {post.rows} rows", fontsize="medium")
    return ax


def draw_response(
    believed: Posterior | Coupled,
    name: str,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    truth: Callable[[Queries], np.ndarray] | None = None,
) -> Axes:
    """Draw E[Y | do(X = x)] over the domain of one variable, with its interval.

    For a posterior this is what it says before any experiment, for a surrogate what is believed
    after its outcomes. truth: a function from queries to true effects.
    """
    surrogate = couple(believed) if isinstance(believed, Posterior) else believed
    problem, width = surrogate.post.problem, half_width(level)
    if name not in problem.domains:
        raise DomainError(
            f"{name!r} may not be set; choose one of {', '.join(problem.manipulable)}"
        )
    places = np.linspace(*problem.domains[name], POINTS)
    queries = problem.queries([{name: float(place)} for place in places])
    mean, sd = surrogate.predict(queries)
    if ax is None:
        ax = plt.figure(figsize=(5.2, 3.6), layout="constrained").add_subplot()
    ax.fill_between(
        places,
        mean - width * sd,
        mean + width * sd,
        color=BLUE,
        alpha=0.2,
        lw=0,
        label=f"{level:.0%}",
    )
    ax.plot(places, mean, color=BLUE, label="posterior mean")
    if truth is not None:
        ax.plot(places, np.asarray(truth(queries)), "--", color=INK, label="truth")
    ax.set(
        xlabel=plain(f"do({problem.label(name)})"),
        ylabel=plain(f"E[{problem.label(problem.target)}]"),
    )
    ax.legend(frameon=False, fontsize="small")
    return ax


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
        ticks.append((rows.mean(), f"{label}\n{covers.mean():.0%} of {len(ends)} hold the truth"))
        start += len(ends) + max(4, len(ends) // 12)
    ax.axhline(truth, color=INK, lw=1, ls="--")
    ax.set_xticks([at for at, _ in ticks], [plain(text) for _, text in ticks])
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel(plain(quantity))
    ax.spines[["top", "right"]].set_visible(False)
    return ax
