"""How did an optimization go?"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from causal_bo_ppl.optimization import Run
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, half_width, plain


def draw_run(run: Run, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw every outcome, and what was believed of the best intervention after it.

    Where the true system is known, the true effect of that intervention and the optimum are drawn
    too.
    """
    trace, width = run.trace, half_width(level)
    if ax is None:
        ax = plt.figure(figsize=(6.4, 3.8), layout="constrained").add_subplot()
    at = trace["experiment"].to_numpy()
    mean, sd = trace["best_mean"].to_numpy(), trace["best_sd"].to_numpy()
    ax.fill_between(
        at, mean - width * sd, mean + width * sd, color=BLUE, alpha=0.2, lw=0, step="mid"
    )
    ax.step(at, mean, where="mid", color=BLUE, label=f"best so far: mean and {level:.0%} interval")
    ax.plot(at, trace["outcome"], "o", ms=4, color=GREY, label="outcome")
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
    ax.set(xlabel="experiment", ylabel=plain(run.problem.label(run.problem.target)))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(0.5, len(at) + 0.5)
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize="small"
    )
    ax.set_title(
        plain(f"{run.settings.method}: {run.problem.objective} {run.problem.target}"),
        fontsize="medium",
    )
    return ax
