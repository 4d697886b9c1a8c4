"""How far are the kernels from each other, for which sets, and with how many rows?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from causal_bo_ppl.errors import ModelError, unknown
from causal_bo_ppl.kernels.blocks import MEASURES
from causal_bo_ppl.kernels.pairs import COMPARED, TERMS
from causal_bo_ppl.plots.effects import plain
from causal_bo_ppl.plots.posteriors import AMBER, BLUE, GREY, INK
from causal_bo_ppl.plots.squares import draw_squares

if TYPE_CHECKING:
    import xarray as xr

CLEAR = 3.0  # sds above what Monte-Carlo error alone gives
COLOURS = dict(zip(COMPARED, (BLUE, GREY, AMBER), strict=True))
NAMES = {"frobenius": "relative Frobenius error", "maximum": "largest absolute error", "spectral": "spectral error"}


def draw_kernel_errors(
    found: "xr.Dataset", ax: Axes | None = None, *, comparison: str | None = None, measure: str = "frobenius"
) -> Axes:
    """Draw the error of a kernel for every pair of sets.

    found: of `cb.compare_kernels`. comparison: by default "jacobian - exact", or against Monte Carlo where there is no
    exact kernel. A dot marks what Monte-Carlo error alone could be (less than 3 sds above it).
    """
    _require_comparison("draw_kernel_errors", found)
    chosen = comparison or ("jacobian - exact" if found.attrs["reference"] == "exact" else "jacobian - monte_carlo")
    for what, name, known in (("comparison", chosen, COMPARED), ("measure", measure, MEASURES)):
        if name not in known:
            raise ModelError(unknown(what, name, known))
    cells = found[measure].sel(comparison=chosen).values
    if np.isnan(cells).all():
        raise ModelError(f"there is no {chosen!r}: {found.attrs['method']!r} has no exact kernel; compare with draws")
    norm = LogNorm(*_decades(cells)) if (cells > 0).any() else None
    ax = draw_squares(cells, [str(each) for each in found.left.values], ax, label=_units(found, measure), norm=norm)
    scores = found[f"{measure}_z"].sel(comparison=chosen).values
    rows, columns = np.nonzero(scores < CLEAR)
    ax.plot(columns + 0.85, rows + 0.15, ".", color="white", ms=4, mec=INK, mew=0.3)
    noise = "\ndots: within Monte-Carlo error" if len(rows) else ""
    ax.set_title(f"{chosen}\n{int(found.rows)} rows{noise}", fontsize="medium")
    return ax


def draw_errors_by_rows(found: "xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw the relative Frobenius error of all sets together against the number of rows.

    found: comparisons of several posteriors, joined by `xarray.concat([...], "rows")`. The shaded part is what
    Monte-Carlo error alone gives; where there is an exact kernel the broken line falls like 1 / rows, as in theory.
    """
    _require_comparison("draw_errors_by_rows", found, stacked=True)
    found = found.sortby("rows")
    rows = np.asarray(found.rows.values, float)
    if ax is None:
        ax = plt.figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    noise = found.overall_frobenius_se.max("comparison").values
    floor = 0.5 * float(np.nanmin(found.overall_frobenius.where(found.overall_frobenius > 0).values))
    ax.fill_between(rows, floor, noise, color=GREY, alpha=0.25, lw=0, label="Monte-Carlo error alone")
    for name, colour in COLOURS.items():
        error = found.overall_frobenius.sel(comparison=name).values
        if np.isfinite(error).any():
            ax.plot(rows, error, "o-", color=colour, ms=4, label=name)
    first = found.overall_frobenius.sel(comparison="jacobian - exact").values
    if np.isfinite(first).all():
        ax.plot(rows, first[0] * rows[0] / rows, "--", color=INK, lw=0.8, label="like 1 / rows")
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="relative Frobenius error, all sets")
    ax.set_ylim(floor, None)
    ax.legend(frameon=False, fontsize="small")
    return ax


def draw_terms(found: "Mapping[str, xr.Dataset] | xr.Dataset", ax: Axes | None = None) -> Axes:
    """Draw how large the leading, mixed and remainder terms of the covariances are, of all sets together.

    found: one comparison, or {label: comparison}. By draws, with bars up to what Monte-Carlo error alone could make of
    a term that is 0 (twice its root mean square); a cross is the exact size, where it is known and not 0.
    """
    named: Mapping[str, Any] = found if not hasattr(found, "data_vars") else {"": found}
    for each in named.values():
        _require_comparison("draw_terms", each)
    if ax is None:
        ax = plt.figure(figsize=(1.6 * len(named) + 3.6, 4.0), layout="constrained").add_subplot()
    places = np.arange(len(named))
    for shift, (term, colour) in enumerate(zip(TERMS, (INK, AMBER, BLUE), strict=True)):
        at = places + 0.22 * (shift - 1)
        scale = [float(each.overall_drawn.sel(term="leading")) for each in named.values()]
        size, noise, exact = (
            np.array([float(each[name].sel(term=term)) for each in named.values()]) / scale
            for name in ("overall_drawn", "overall_drawn_se", "overall_size")
        )
        ax.bar(at, 2 * noise, width=0.18, color=GREY, alpha=0.35, label="could be 0" if shift == 0 else None)
        ax.plot(at, np.where(size > 0, size, np.nan), "o", color=colour, label=term)
        known = [each.attrs["reference"] == "exact" for each in named.values()]
        ax.plot(at[known], np.where(exact > 0, exact, np.nan)[known], "x", color=colour, ms=9)
    ax.plot([], [], "x", color=GREY, ms=9, label="exact")
    ax.set_xticks(places, [plain(str(name)) for name in named])
    ax.set(yscale="log", ylabel="Frobenius norm, relative to the leading term", xlim=(-0.6, len(named) - 0.4))
    ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    return ax


def _units(found: "xr.Dataset", measure: str) -> str:
    squared = "" if measure == "frobenius" else f" ({found.attrs['target']} squared)"
    return plain(NAMES[measure] + squared)


def _decades(cells: np.ndarray) -> tuple[float, float]:
    """A scale that holds all positive cells, from a tenth to a ten-thousandth of the largest."""
    high = 1.001 * float(np.nanmax(cells))
    return float(np.clip(0.999 * np.nanmin(cells[cells > 0]), 1e-4 * high, 0.1 * high)), high


def _require_comparison(who: str, found: object, stacked: bool = False) -> None:
    names = set(getattr(found, "data_vars", ()))
    if not {"overall_frobenius", "drawn"} <= names:
        raise ModelError(f"{who} needs the result of cb.compare_kernels, got {type(found).__name__}")
    if stacked != ("rows" in getattr(found, "sizes", ())):
        wanted = 'several, joined by xarray.concat([...], "rows")' if stacked else "one; select it with .isel(rows=...)"
        raise ModelError(f"{who} needs {wanted}")
