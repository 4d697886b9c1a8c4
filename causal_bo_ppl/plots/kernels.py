"""How far are kernels apart, how are effects coupled, and how much variance do outcomes remove?

The pictures take the results of `cb.compare_kernels`, `cb.kernels.coupling` and `cb.kernels.variance_reduction`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.kernels.comparison import COMPARED, TERMS
from causal_bo_ppl.kernels.monte_carlo import MEASURES
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK

if TYPE_CHECKING:
    import xarray as xr

CLEAR_SDS = 3.0  # sds above Monte-Carlo error from which an error is clear
COMPARISON_COLOURS = dict(zip(COMPARED, (BLUE, GREY, AMBER), strict=True))
MEASURE_LABELS = {
    "frobenius": "relative Frobenius error",
    "maximum": "largest absolute error",
    "spectral": "spectral error",
}
COUPLING_LABELS = {
    "between": "root mean square correlation",
    "explained": "share of variance explained",
    "correlation": "correlation of effects",
}
MOST_BARS = 40  # effects that have a bar each, and sets with lines between them
ALL_LETTERS = 60  # letters of all labels side by side
MOST_NAMED = 24  # effects that are named one by one; of more, their sets are named


def draw_kernel_errors(
    found: "xr.Dataset",
    ax: Axes | None = None,
    *,
    comparison: str | None = None,
    measure: str = "frobenius",
) -> Axes:
    """Draw the error of a kernel for every pair of sets.

    A dot marks an error that Monte-Carlo error alone could make, less than 3 sds above it.

    Parameters
    ----------
    found:
        The result of `cb.compare_kernels`.
    ax:
        Where to draw; by default a new figure.
    comparison:
        By default "jacobian - exact", or "jacobian - monte_carlo" where there is no exact kernel.
    measure:
        "frobenius", "maximum" or "spectral".

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    _require_comparison("draw_kernel_errors", found)
    reference = "exact" if found.attrs["reference"] == "exact" else "monte_carlo"
    chosen = comparison or f"jacobian - {reference}"
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
    units = "" if measure == "frobenius" else f" ({_target(found)} squared)"
    sets = [str(each) for each in found.left.values]
    ax = style.draw_matrix(cells, sets, ax, label=MEASURE_LABELS[measure] + units, norm=norm)
    scores = found[f"{measure}_z"].sel(comparison=chosen).values
    rows, columns = np.nonzero(scores < CLEAR_SDS)
    ax.plot(columns + 0.85, rows + 0.15, ".", color="white", ms=4, mec=INK, mew=0.3)
    noise = "\ndots: within Monte-Carlo error" if len(rows) else ""
    style.entitle(ax, f"{chosen}\n{int(found.rows)} observations{noise}", 40)
    return ax


def draw_errors_by_observations(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw the relative Frobenius error of all sets together against the number of observations.

    The shaded part is Monte-Carlo error alone. Where there is an exact kernel, the broken line
    falls like 1 / observations, as in theory.

    Parameters
    ----------
    found:
        Comparisons of several posteriors, joined by `xarray.concat([...], "rows")`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    _require_comparison("draw_errors_by_observations", found, stacked=True)
    found = found.sortby("rows")
    counts, errors = np.asarray(found.rows.values, float), found.overall_frobenius
    ax = ax or style.new_axes(5.6, 4.2)
    noise = found.overall_frobenius_se.max("comparison").values
    floor = 0.5 * float(np.nanmin(errors.where(errors > 0).values))
    shade: dict[str, Any] = {"color": GREY, "alpha": 0.25, "lw": 0}
    ax.fill_between(counts, floor, noise, label="Monte-Carlo error alone", **shade)
    for name, colour in COMPARISON_COLOURS.items():
        error = errors.sel(comparison=name).values
        if np.isfinite(error).any():
            ax.plot(counts, error, "o-", color=colour, ms=4, label=name)
    first = errors.sel(comparison="jacobian - exact").values
    if np.isfinite(first).all():
        guide = first[0] * counts[0] / counts
        ax.plot(counts, guide, "--", color=INK, lw=0.8, label="like 1 / observations")
    ax.set(xscale="log", yscale="log", xlabel="observations")
    ax.set(ylabel="relative Frobenius error, all sets", ylim=(floor, None))
    ax.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    ax.xaxis.set_minor_locator(NullLocator())
    style.name_decades(ax.yaxis, *ax.get_ylim())
    style.entitle(ax, f"how far kernels are apart, effects on {found.attrs['target']}", 48)
    style.legend_below(ax)
    return ax


def draw_terms(found: "Mapping[str, xr.Dataset] | xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw how large the leading, mixed and remainder terms of the covariances are.

    The sizes are those of all sets together. Points are by draws, with bars up to twice the
    Monte-Carlo error: a term below could be 0. A cross is the exact size, where it is known and not
    0. A term that is 0 in all draws has a 0 at the bottom.

    Parameters
    ----------
    found:
        The result of `cb.compare_kernels`, which is named by its number of observations; or
        {label: result}.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    is_one = hasattr(found, "data_vars") or not isinstance(found, Mapping)
    named: Mapping[str, Any] = {"": found} if is_one else found
    for each in named.values():
        _require_comparison("draw_terms", each)
    labels = [str(name) or f"{int(each.rows)} observations" for name, each in named.items()]
    ax = ax or style.new_axes(1.6 * len(named) + 3.6, 4.0)
    positions, bottom = np.arange(len(named)), ax.get_xaxis_transform()
    known = np.array([each.attrs["reference"] == "exact" for each in named.values()])
    scale = [float(each.overall_drawn.sel(term="leading")) for each in named.values()]
    for shift, (term, colour) in enumerate(zip(TERMS, (INK, AMBER, BLUE), strict=True)):
        at = positions + 0.22 * (shift - 1)
        size, noise, exact = (
            np.array([float(each[name].sel(term=term)) for each in named.values()]) / scale
            for name in ("overall_drawn", "overall_drawn_se", "overall_size")
        )
        label = "_" if shift else "twice the Monte-Carlo error"
        ax.bar(at, 2 * noise, width=0.18, color=GREY, alpha=0.35, label=label)
        ax.plot(at, np.where(size > 0, size, np.nan), "o", color=colour, label=term)
        ax.plot(at[known], np.where(exact > 0, exact, np.nan)[known], "x", color=colour, ms=9)
        for position in at[~(size > 0)]:
            ax.text(position, 0.02, "0", transform=bottom, ha="center", color=colour)
    if known.any():
        ax.plot([], [], "x", color=GREY, ms=9, label="exact")
    room = max(ALL_LETTERS // len(named), 10)
    ax.set_xticks(positions, [style.folded(label, room) for label in labels])
    ax.set(yscale="log", xlim=(-0.6, len(named) - 0.4))
    ax.set_ylabel(style.folded("Frobenius norm, relative to the leading term"))
    low, high = ax.get_ylim()
    low, high = min(low, 0.05), max(high, 2.0)  # a leading term alone, which is 1, is seen too
    ax.set_ylim(low, high)
    style.name_decades(ax.yaxis, low, high)
    target = next(iter(named.values())).attrs["target"]
    style.entitle(ax, f"parts of the covariances of effects on {target}", 44)
    style.legend_below(ax, 3)
    return ax


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


def _require_result(who: str, found: object, variables: set[str], maker: str) -> None:
    """Refuse anything but a result of `maker`, which has these variables."""
    if not variables <= set(getattr(found, "data_vars", ())):
        raise ModelError(f"{who} needs the result of {maker}, got {type(found).__name__}")


def _require_comparison(who: str, found: object, stacked: bool = False) -> None:
    """Refuse anything but a comparison of kernels, and one that is not stacked as asked."""
    _require_result(who, found, {"overall_frobenius", "drawn"}, "cb.compare_kernels")
    if stacked != ("rows" in getattr(found, "sizes", ())):
        several = 'several, joined by xarray.concat([...], "rows")'
        raise ModelError(
            f"{who} needs {several if stacked else 'one; select it with .isel(rows=...)'}"
        )


def draw_coupling(found: "xr.Dataset", ax: Axes | None = None, *, of: str = "between") -> Axes:
    """Draw how the posteriors of the effects of all sets are correlated.

    Sets are in the order of the graph.

    Parameters
    ----------
    found:
        The result of `cb.kernels.coupling`.
    ax:
        Where to draw; by default a new figure.
    of:
        "between" sets; "explained", the share of variance of the column's set that would be
        explained were the row's set known; or "correlation" of all effects, with lines between
        sets.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    _require_result("draw_coupling", found, {"between", "explained"}, "cb.kernels.coupling")
    if of not in COUPLING_LABELS:
        raise ModelError(unknown("part of a coupling", of, COUPLING_LABELS))
    signed = of == "correlation"
    names = _effects(found) if signed else [str(each) for each in found.left.values]
    colours = {"cmap": "RdBu_r" if signed else "viridis", "vmin": -1 if signed else 0, "vmax": 1}
    ax = style.draw_matrix(found[of].values, names, ax, label=COUPLING_LABELS[of], **colours)
    starts = style.equal_runs([str(each) for each in found.set.values])[0][1:].tolist()
    for start in starts if signed and len(starts) < MOST_BARS else ():  # more would hide the cells
        ax.axhline(start, color=INK, lw=0.6)
        ax.axvline(start, color=INK, lw=0.6)
    what = "effect" if signed and found.sizes["effect"] <= MOST_NAMED else "set"
    across, down = ("explained set", "known set") if of == "explained" else (what, what)
    ax.set(xlabel=across, ylabel=down)
    style.entitle(ax, f"effects on {found.attrs['target']}, {found.attrs['rows']} observations", 44)
    return ax


def draw_variance_reduction(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw by how much an outcome of each experiment reduces the variance of all effects.

    For one experiment, posterior sds before and after its outcome are drawn; for several, the share
    of variance that each removes. Effects are ordered by their sets.

    Parameters
    ----------
    found:
        The result of `cb.kernels.variance_reduction`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    _require_result(
        "draw_variance_reduction", found, {"reduction", "sd_after"}, "cb.kernels.variance_reduction"
    )
    experiments = [str(each) for each in found["experiment"].values]
    if len(experiments) == 1:
        return _draw_one(found, experiments[0], ax)
    label = "share of variance removed"
    ax = style.draw_matrix(
        found.reduction.values, experiments, ax, label=label, columns=_effects(found), vmin=0
    )
    by = "" if found.sizes["effect"] <= MOST_NAMED else ", by set"
    ax.set(xlabel=f"effect{by}", ylabel="experiment")
    style.entitle(ax, f"variance reduction by one outcome, effects on {found.attrs['target']}", 50)
    return ax


def _effects(found: "xr.Dataset") -> list[str]:
    """Return the names of the effects or, where there are many, of their sets."""
    few = found.sizes["effect"] <= MOST_NAMED
    return [str(each) for each in (found.effect if few else found.set).values]


def _draw_one(found: "xr.Dataset", experiment: str, ax: Axes | None) -> Axes:
    """Draw sds before and after one experiment; of many effects, the most reduced ones."""
    total, shares = found.sizes["effect"], found.reduction.values[0]
    shown = np.sort(np.argsort(-np.nan_to_num(shares), kind="stable")[:MOST_BARS])
    names = [str(each) for each in found["effect"].values[shown]]
    ax = style.list_axes(ax, names, 4.8, min(0.26 * len(shown) + 1.8, 12.0))
    positions = np.arange(len(shown))
    before, after = found.sd.values[shown], found.sd_after.values[0][shown]
    ax.barh(positions, before, height=0.72, color=GREY, alpha=0.35, label="before")
    ax.barh(positions, after, height=0.4, color=BLUE, label="after one outcome")
    for position, share, sd in zip(positions, 100 * shares[shown], before, strict=True):
        # 99.6 is written as 99.6 rather than as 100.
        percent = f"{share:.2g}" if share < 99 else f"{share:.3g}"
        text = " known" if np.isnan(share) else f" -{percent} % of variance"
        ax.text(sd, position, text, va="center", fontsize="x-small", color=INK)
    ax.set_xlim(0, 1.35 * max(float(before.max(initial=0.0)), 1e-300))
    ax.set_xlabel(style.folded(f"posterior sd of the effect on {_target(found)}", 44))
    which = f"\n{len(shown)} of {total} effects, the most reduced" if len(shown) < total else ""
    style.entitle(ax, f"variance reduction by {experiment}{which}", 50)
    style.legend_below(ax)
    return ax
