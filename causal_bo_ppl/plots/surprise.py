"""Did outcomes come out as predicted?"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.optimization.monitor import Surprise
from causal_bo_ppl.plots.labels import entitle, legend_below, short
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, equal_runs, half_width

MOST_SETS = 12  # runs of one set that are named below the outcomes


def draw_surprise(surprise: object, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Draw every outcome's distance from its prediction, and what all of them add up to.

    Distances are standard normal under the model. The signed sum over sqrt(t) leaves the band where
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
    """
    found = getattr(surprise, "surprise", surprise)
    if not isinstance(found, Surprise):
        raise DataError(f"draw_surprise needs a Surprise or a run, got {type(surprise).__name__}")
    if not found.told:
        raise DataError("there is no outcome yet, so that nothing can be drawn")
    width = half_width(level)
    if ax is None:
        ax = plt.figure(figsize=(6.4, 3.8), layout="constrained").add_subplot()
    table, away = found.table, 1.0 if found.problem.objective == "min" else -1.0
    at, score = table.index.to_numpy(), table["score"].to_numpy()
    ax.axhspan(-width, width, color=GREY, alpha=0.2, lw=0, label=f"{level:.0%} of outcomes")
    ax.axhline(0.0, color=GREY, lw=0.8)
    ax.plot(at, table["signed"], color=BLUE, lw=1.6, label="signed sum over √t")
    for chosen, colour, word in ((away * score > 0, AMBER, "worse"), (away * score <= 0, INK, "")):
        if chosen.any():
            label = f"outcome, {word or 'better'} than predicted"
            ax.plot(at[chosen], score[chosen], "o", ms=5, color=colour, label=label)
    if found.alarm is not None:
        ax.axvline(found.alarm, color=INK, ls="--", lw=1, label=f"p < 0.001 from {found.alarm} on")
    _name_sets(ax, table["set"].tolist())
    ends = np.append(score, table["signed"].to_numpy())
    ax.set_ylim(min(ends.min(), -width) - 0.9, max(ends.max(), width) + 0.5)
    ax.set(xlabel="experiment", ylabel="sds from the prediction")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlim(0.5, len(at) + 0.5)
    legend_below(ax)
    entitle(ax, f"{found.problem.label(found.problem.target)}: {_title(found)}")
    return ax


def _name_sets(ax: Axes, sets: list[str]) -> None:
    """Name what was set in every run of experiments at the bottom, where there are few runs."""
    starts, ends = equal_runs(sets)
    if len(starts) > MOST_SETS:
        return
    for start, end in zip(starts, ends, strict=True):
        room = max(int(60 * (end - start) / len(sets)), 5)
        ax.text(
            (start + end + 1) / 2,
            0.02,
            short(sets[start], room),
            transform=ax.get_xaxis_transform(),
            ha="center",
            fontsize="x-small",
            color=INK,
        )


def _title(found: Surprise) -> str:
    if found.alarm is None:
        return f"outcomes agree with their predictions (p = {found.p:.2g})"
    how = "scatter more than predicted" if found.is_scatter else "contradict what was believed"
    return f"outcomes {how} (p = {found.p:.1g})"
