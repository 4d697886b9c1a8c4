"""How far are kernels from each other, what do they couple, and what do experiments teach?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.kernels.comparison import COMPARED, TERMS
from causal_bo_ppl.kernels.monte_carlo import MEASURES
from causal_bo_ppl.plots.labels import (
    CUT,
    SIDE,
    distinct,
    entitle,
    figure_beside,
    folded,
    legend_below,
    name_decades,
)
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, draw_squares, equal_runs

if TYPE_CHECKING:
    import xarray as xr

CLEAR = 3.0  # sds above what Monte-Carlo error alone gives
COLOURS = dict(zip(COMPARED, (BLUE, GREY, AMBER), strict=True))
NAMES = {
    "frobenius": "relative Frobenius error",
    "maximum": "largest absolute error",
    "spectral": "spectral error",
}
LABELS = {
    "between": "root mean square correlation",
    "explained": "share of variance explained",
    "correlation": "correlation of effects",
}
MOST = 40  # effects that get a row each
ACROSS = 60  # letters of all labels side by side
FEW = 24  # effects that are named one by one; of more, their sets are named


def draw_kernel_errors(
    found: "xr.Dataset",
    ax: Axes | None = None,
    *,
    comparison: str | None = None,
    measure: str = "frobenius",
) -> Axes:
    """Draw the error of a kernel for every pair of sets.

    found: the result of `cb.compare_kernels`. comparison: by default "jacobian - exact", or
    "jacobian - monte_carlo" where there is no exact kernel. A dot marks an error that Monte-Carlo
    error alone could make, less than 3 sds above what it gives.
    """
    _require_comparison("draw_kernel_errors", found)
    chosen = comparison or (
        "jacobian - exact" if found.attrs["reference"] == "exact" else "jacobian - monte_carlo"
    )
    for what, name, known in (("comparison", chosen, COMPARED), ("measure", measure, MEASURES)):
        if name not in known:
            raise ModelError(unknown(what, name, known))
    cells = found[measure].sel(comparison=chosen).values
    if np.isnan(cells).all():
        raise ModelError(
            f"there is no {chosen!r}: {found.attrs['method']!r} has no exact kernel; "
            "compare with draws"
        )
    norm = LogNorm(*_decades(cells)) if (cells > 0).any() else None
    ax = draw_squares(
        cells,
        [str(each) for each in found.left.values],
        ax,
        label=_units(found, measure),
        norm=norm,
    )
    scores = found[f"{measure}_z"].sel(comparison=chosen).values
    rows, columns = np.nonzero(scores < CLEAR)
    ax.plot(columns + 0.85, rows + 0.15, ".", color="white", ms=4, mec=INK, mew=0.3)
    noise = "\ndots: within Monte-Carlo error" if len(rows) else ""
    entitle(ax, f"{chosen}\n{int(found.rows)} rows{noise}", 40)
    return ax


def draw_errors_by_rows(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw the relative Frobenius error of all sets together against the number of rows.

    found: comparisons of several posteriors, joined by `xarray.concat([...], "rows")`. The shaded
    part is what Monte-Carlo error alone gives. Where there is an exact kernel, the broken line
    falls like 1 / rows, as in theory.
    """
    _require_comparison("draw_errors_by_rows", found, stacked=True)
    found = found.sortby("rows")
    rows = np.asarray(found.rows.values, float)
    if ax is None:
        ax = plt.figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    noise = found.overall_frobenius_se.max("comparison").values
    floor = 0.5 * float(
        np.nanmin(found.overall_frobenius.where(found.overall_frobenius > 0).values)
    )
    ax.fill_between(
        rows, floor, noise, color=GREY, alpha=0.25, lw=0, label="Monte-Carlo error alone"
    )
    for name, colour in COLOURS.items():
        error = found.overall_frobenius.sel(comparison=name).values
        if np.isfinite(error).any():
            ax.plot(rows, error, "o-", color=colour, ms=4, label=name)
    first = found.overall_frobenius.sel(comparison="jacobian - exact").values
    if np.isfinite(first).all():
        ax.plot(rows, first[0] * rows[0] / rows, "--", color=INK, lw=0.8, label="like 1 / rows")
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="relative Frobenius error, all sets")
    ax.set_ylim(floor, None)
    ax.set_xticks(rows, [f"{count:,.0f}" for count in rows])
    ax.xaxis.set_minor_locator(NullLocator())
    name_decades(ax.yaxis, *ax.get_ylim())
    entitle(ax, f"how far kernels are apart, effects on {found.attrs['target']}", 48)
    legend_below(ax)
    return ax


def draw_terms(found: "Mapping[str, xr.Dataset] | xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw how large the leading, mixed and remainder terms of the covariances are.

    The sizes are those of all sets together. found: one comparison, which is named by its rows, or
    {label: comparison}. Points are by draws, with bars up to what Monte-Carlo error alone could
    make of a term that is 0 (twice its root mean square). A cross is the exact size, where it is
    known and not 0. A term that is 0 in all draws has a 0 at the bottom.
    """
    named: Mapping[str, Any] = found if not hasattr(found, "data_vars") else {"": found}
    for each in named.values():
        _require_comparison("draw_terms", each)
    if named is not found:
        named = {f"{int(named[''].rows)} rows": named[""]}
    if ax is None:
        ax = plt.figure(figsize=(1.6 * len(named) + 3.6, 4.0), layout="constrained").add_subplot()
    positions, bottom, crosses = np.arange(len(named)), ax.get_xaxis_transform(), False
    for shift, (term, colour) in enumerate(zip(TERMS, (INK, AMBER, BLUE), strict=True)):
        at = positions + 0.22 * (shift - 1)
        scale = [float(each.overall_drawn.sel(term="leading")) for each in named.values()]
        size, noise, exact = (
            np.array([float(each[name].sel(term=term)) for each in named.values()]) / scale
            for name in ("overall_drawn", "overall_drawn_se", "overall_size")
        )
        ax.bar(
            at,
            2 * noise,
            width=0.18,
            color=GREY,
            alpha=0.35,
            label="could be 0" if shift == 0 else None,
        )
        ax.plot(at, np.where(size > 0, size, np.nan), "o", color=colour, label=term)
        known = np.array([each.attrs["reference"] == "exact" for each in named.values()])
        ax.plot(at[known], np.where(exact > 0, exact, np.nan)[known], "x", color=colour, ms=9)
        if known.any():
            crosses = True
        for position in at[~(size > 0)]:
            ax.text(position, 0.02, "0", transform=bottom, ha="center", color=colour)
    if crosses:
        ax.plot([], [], "x", color=GREY, ms=9, label="exact")
    room = max(ACROSS // len(named), 10)
    ax.set_xticks(positions, [folded(str(name), room) for name in named])
    ax.set(
        yscale="log",
        ylabel=folded("Frobenius norm, relative to the leading term", SIDE),
        xlim=(-0.6, len(named) - 0.4),
    )
    low, high = ax.get_ylim()
    low, high = min(low, 0.05), max(high, 2.0)  # a leading term alone, which is 1, is seen too
    ax.set_ylim(low, high)
    name_decades(ax.yaxis, low, high)
    target = next(iter(named.values())).attrs["target"]
    entitle(ax, f"parts of the covariances of effects on {target}", 44)
    legend_below(ax, 3)
    return ax


def _units(found: "xr.Dataset", measure: str) -> str:
    """Return the name of a measure with its units."""
    squared = "" if measure == "frobenius" else f" ({_target(found)} squared)"
    return NAMES[measure] + squared


def _target(found: "xr.Dataset") -> str:
    """Return the name of the target, with its unit where it has one."""
    unit = found.attrs.get("unit", "")
    return f"{found.attrs['target']} [{unit}]" if unit else str(found.attrs["target"])


def _decades(cells: np.ndarray) -> tuple[float, float]:
    """Return the ends of a scale for all positive cells.

    It starts between a ten-thousandth and a tenth of the largest.
    """
    high = 1.001 * float(np.nanmax(cells))
    return float(np.clip(0.999 * np.nanmin(cells[cells > 0]), 1e-4 * high, 0.1 * high)), high


def _require_comparison(who: str, found: object, stacked: bool = False) -> None:
    """Refuse what is no comparison of kernels, or not stacked by rows as asked."""
    names = set(getattr(found, "data_vars", ()))
    if not {"overall_frobenius", "drawn"} <= names:
        raise ModelError(
            f"{who} needs the result of cb.compare_kernels, got {type(found).__name__}"
        )
    if stacked != ("rows" in getattr(found, "sizes", ())):
        wanted = (
            'several, joined by xarray.concat([...], "rows")'
            if stacked
            else "one; select it with .isel(rows=...)"
        )
        raise ModelError(f"{who} needs {wanted}")


def draw_coupling(found: "xr.Dataset", ax: Axes | None = None, *, of: str = "between") -> Axes:
    """Draw how doubts about the effects of all sets go together, sets in the order of the graph.

    found: the result of `cb.coupling`. of: "between" sets, "explained" (of the column's set, were
    the row's known), or "correlation" of all effects, with lines between sets.
    """
    if not {"between", "explained"} <= set(getattr(found, "data_vars", ())):
        raise ModelError(
            f"draw_coupling needs the result of cb.coupling, got {type(found).__name__}"
        )
    if of not in LABELS:
        raise ModelError(unknown("part of a coupling", of, LABELS))
    signed = of == "correlation"
    names = _effects(found) if signed else [str(each) for each in found.left.values]
    colours: dict[str, Any] = (
        {"cmap": "RdBu_r", "vmin": -1, "vmax": 1}
        if signed
        else {"cmap": "viridis", "vmin": 0, "vmax": 1}
    )
    ax = draw_squares(found[of].values, names, ax, label=LABELS[of], **colours)
    if signed:
        starts = equal_runs([str(each) for each in found.set.values])[0][1:].tolist()
        if len(starts) < MOST:  # more lines would hide the cells
            for start in starts:
                ax.axhline(start, color=INK, lw=0.6)
                ax.axvline(start, color=INK, lw=0.6)
    if of == "explained":
        ax.set(xlabel="explained set", ylabel="known set")
    else:
        what = "effect" if signed and found.sizes["effect"] <= FEW else "set"
        ax.set(xlabel=what, ylabel=what)
    entitle(ax, f"effects on {found.attrs['target']}, {found.attrs['rows']} rows", 44)
    return ax


def draw_variance_reduction(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw what experiments teach about all effects, which are ordered by their sets.

    found: the result of `cb.variance_reduction`. For one experiment, standard deviations before and after its
    outcome are drawn; for several, the share of variance that each removes.
    """
    if not {"reduction", "sd_after"} <= set(getattr(found, "data_vars", ())):
        raise ModelError(
            f"draw_teaching needs the result of cb.teaching, got {type(found).__name__}"
        )
    effects, experiments = (
        [str(each) for each in found[name].values] for name in ("effect", "experiment")
    )
    if len(experiments) > 1:
        cells = found.reduction.values
        names = _effects(found)
        ax = draw_squares(
            cells, experiments, ax, label="share of variance removed", columns=names, vmin=0
        )
        by = "" if found.sizes["effect"] <= FEW else ", by set"
        ax.set(xlabel=f"effect{by}", ylabel="experiment")
        entitle(ax, f"what one outcome teaches about effects on {found.attrs['target']}", 50)
        return ax
    return _draw_one(found, effects, experiments[0], ax)


def _effects(found: "xr.Dataset") -> list[str]:
    """Return the names of the effects or, where there are many, of their sets."""
    return [
        str(each) for each in (found.effect if found.sizes["effect"] <= FEW else found.set).values
    ]


def _draw_one(found: "xr.Dataset", effects: list[str], experiment: str, ax: Axes | None) -> Axes:
    """Draw what one experiment teaches; of many effects, those it tells most about."""
    shown = np.arange(len(effects))
    if len(effects) > MOST:
        shown = np.sort(np.argsort(-np.nan_to_num(found.reduction.values[0]), kind="stable")[:MOST])
    names = [effects[position] for position in shown]
    if ax is None:
        ax, labels = figure_beside(names, 4.8, min(0.26 * len(shown) + 1.8, 12.0))
    else:
        labels = distinct(names, CUT)
    rows, before, after = (
        np.arange(len(shown)),
        found.sd.values[shown],
        found.sd_after.values[0][shown],
    )
    ax.barh(rows, before, height=0.72, color=GREY, alpha=0.35, label="before")
    ax.barh(rows, after, height=0.4, color=BLUE, label="after one outcome")
    for row, share in zip(rows, found.reduction.values[0][shown], strict=True):
        text = "known" if np.isnan(share) else f"-{_percent(share)} % of variance"
        ax.text(before[row], float(row), f" {text}", va="center", fontsize="x-small", color=INK)
    ax.set_yticks(rows, labels, fontsize="small" if len(shown) <= 24 else "x-small")
    ax.set(
        ylim=(len(shown) - 0.4, -0.6), xlim=(0, 1.35 * max(float(before.max(initial=0.0)), 1e-300))
    )
    ax.set_xlabel(folded(f"posterior sd of the effect on {_target(found)}", 44))
    which = (
        ""
        if len(shown) == len(effects)
        else f"\n{len(shown)} of {len(effects)} effects, those it tells most about"
    )
    entitle(ax, f"what {experiment} teaches{which}", 50)
    legend_below(ax)
    return ax


def _percent(share: float) -> str:
    """Return a share in percent with two digits, and 99.6 as 99.6 rather than as 100."""
    percent = 100 * share
    return f"{percent:.2g}" if percent < 99 else f"{percent:.3g}"
