"""What couples with what, and what does one experiment teach?"""

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.plots.effects import plain
from causal_bo_ppl.plots.posteriors import BLUE, GREY, INK
from causal_bo_ppl.plots.squares import draw_squares, runs, short

if TYPE_CHECKING:
    import xarray as xr

LABELS = {
    "between": "root mean square correlation",
    "explained": "share of variance explained",
    "correlation": "correlation of effects",
}
MOST, FEW = 40, 24  # effects that get a row each; and that are named one by one


def draw_coupling(found: "xr.Dataset", ax: Axes | None = None, *, of: str = "between") -> Axes:
    """Draw how doubts about the effects of all sets go together, sets in the order of the graph.

    found: of `cb.coupling`. of: "between" sets, "explained" (of the column's set, were the row's known), or
    "correlation" of all effects, with lines between sets.
    """
    if not {"between", "explained"} <= set(getattr(found, "data_vars", ())):
        raise ModelError(f"draw_coupling needs the result of cb.coupling, got {type(found).__name__}")
    if of not in LABELS:
        raise ModelError(unknown("part of a coupling", of, LABELS))
    signed = of == "correlation"
    names = _effects(found) if signed else [str(each) for each in found.left.values]
    colours: dict[str, Any] = (
        {"cmap": "RdBu_r", "vmin": -1, "vmax": 1} if signed else {"cmap": "viridis", "vmin": 0, "vmax": 1}
    )
    ax = draw_squares(found[of].values, names, ax, label=LABELS[of], **colours)
    if signed:
        for start in runs([str(each) for each in found.set.values])[0][1:].tolist():
            ax.axhline(start, color=INK, lw=0.6)
            ax.axvline(start, color=INK, lw=0.6)
    if of == "explained":
        ax.set(xlabel="explained set", ylabel="known set")
    ax.set_title(plain(f"effects on {found.attrs['target']}, {found.attrs['rows']} rows"), fontsize="medium")
    return ax


def draw_teaching(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw what experiments teach about all effects, which are ordered by their sets.

    found: of `cb.teaching`. One experiment: standard deviations before and after its outcome. Several: the share of
    variance that each removes.
    """
    if not {"reduction", "sd_after"} <= set(getattr(found, "data_vars", ())):
        raise ModelError(f"draw_teaching needs the result of cb.teaching, got {type(found).__name__}")
    effects, experiments = ([str(each) for each in found[name].values] for name in ("effect", "experiment"))
    if len(experiments) > 1:
        cells = found.reduction.values
        names = _effects(found)
        ax = draw_squares(cells, experiments, ax, label="share of variance removed", columns=names, vmin=0)
        ax.set(xlabel="effect", ylabel="experiment")
        return ax
    return _draw_one(found, effects, experiments[0], ax)


def _effects(found: "xr.Dataset") -> list[str]:
    """Names of the effects; of many, their sets'."""
    return [str(each) for each in (found.effect if found.sizes["effect"] <= FEW else found.set).values]


def _draw_one(found: "xr.Dataset", effects: list[str], experiment: str, ax: Axes | None) -> Axes:
    shown = np.arange(len(effects))
    if len(effects) > MOST:
        shown = np.sort(np.argsort(-np.nan_to_num(found.reduction.values[0]), kind="stable")[:MOST])
    if ax is None:
        ax = plt.figure(figsize=(7.0, min(0.26 * len(shown) + 1.6, 11.0)), layout="constrained").add_subplot()
    rows, before, after = np.arange(len(shown)), found.sd.values[shown], found.sd_after.values[0][shown]
    ax.barh(rows, before, height=0.72, color=GREY, alpha=0.35, label="before")
    ax.barh(rows, after, height=0.4, color=BLUE, label="after one outcome")
    for row, share in zip(rows, found.reduction.values[0][shown], strict=True):
        text = "known" if np.isnan(share) else f"-{100 * share:.2g} % of variance"
        ax.text(before[row], float(row), f" {text}", va="center", fontsize="x-small", color=INK)
    ax.set_yticks(rows, [short(effects[place]) for place in shown], fontsize="small" if len(shown) <= 24 else "x-small")
    ax.set(ylim=(len(shown) - 0.4, -0.6), xlim=(0, 1.35 * max(float(before.max(initial=0.0)), 1e-300)))
    ax.set_xlabel(plain(f"posterior sd of the effect on {found.attrs['target']}"))
    which = "" if len(shown) == len(effects) else f"\n{len(shown)} of {len(effects)} effects, those it tells most about"
    ax.set_title(f"what {short(experiment, 46)} teaches{which}", fontsize="medium", pad=22)
    ax.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return ax
