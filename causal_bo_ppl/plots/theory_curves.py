"""How do the theory's quantities look: spectra, gains, and how doubt falls with rows?"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.errors import DataError, ModelError, listed
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.plots.labels import entitle, folded, legend_below, name_decades
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.theory.constants import leading
from causal_bo_ppl.theory.information_gains import spectrum
from causal_bo_ppl.theory.table import BY_DIMENSION, BY_RANK, CONTROL, COUPLED, RBF

STYLES: dict[str, dict[str, Any]] = {
    RBF: {"color": AMBER},
    CONTROL: {"color": GREY},
    BY_DIMENSION: {"color": INK, "ls": ":", "lw": 1.2},
    BY_RANK: {"color": INK, "ls": "--", "lw": 1.2},
    COUPLED: {"color": BLUE, "lw": 2.0},
}
DIAGNOSTICS = ("eigenvalues", "dimension", "covariances", "gains", "concentration")
NOTHING = 1e-16  # share of the largest eigenvalue at which a zero is drawn
ROUNDED = 1e-12  # share of the largest eigenvalue below which one is rounding


def draw_gains(curves: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how information grows with outcomes.

    The curves are for the coupled kernel, its bounds, and independent sets with two kernels.
    curves: the result of `cb.theory.gain_curves`.
    """
    if not isinstance(curves, pd.DataFrame) or not set(STYLES) <= set(curves.columns):
        raise ModelError(
            f"draw_gains needs the result of cb.theory.gain_curves, got {type(curves).__name__}"
        )
    if ax is None:
        ax = plt.figure(figsize=(5.8, 4.2), layout="constrained").add_subplot()
    said = curves.attrs
    for name, style in STYLES.items():
        label = f"{name} (lengthscale {said['lengthscale']:g})" if name == RBF else name
        ax.plot(curves.index, curves[name], label=label, **style)
    ax.set(
        xlabel="outcomes",
        ylabel="information gain (nats)",
        xlim=(0, curves.index[-1]),
        ylim=(0, None),
    )
    words = f"rank {said['rank']} of {said['dimension']}, {said['sets']} sets, kappa² / noise = "
    entitle(ax, f"{words}{said['kappa2'] / said['noise']:.3g}")
    legend_below(ax)
    return ax


def draw_spectrum(gram: Any, ax: Axes | None = None, *, share: float = 0.99) -> Axes:
    """Draw the eigenvalues of a gram, largest first, and how few hold a share of the trace.

    What lies below a trillionth of the largest is rounding: the kernel's rank is where the fall is.
    """
    sizes = spectrum(gram)
    kept = leading(sizes, read_share("share", share))
    if not sizes.size or sizes[0] <= 0:
        raise ModelError("this gram is zero: all effects are known, there is no spectrum to draw")
    shown = np.maximum(sizes / sizes[0], NOTHING)
    positions = np.arange(1, len(sizes) + 1)
    if ax is None:
        ax = plt.figure(figsize=(5.4, 3.8), layout="constrained").add_subplot()
    ax.plot(positions, shown, "o-", color=GREY, ms=3.5, lw=0.8, label="eigenvalues of K")
    ax.plot(
        positions[:kept],
        shown[:kept],
        "o",
        color=BLUE,
        ms=5,
        label=f"the {kept} that hold {100 * share:.4g} % of the trace",
    )
    ax.axhspan(NOTHING / 3, ROUNDED, color=GREY, alpha=0.2, lw=0, label="rounding")
    ax.set(
        yscale="log",
        xlabel="eigenvalue, largest first",
        ylabel="share of the largest",
        ylim=(NOTHING / 3, 3.0),
        xlim=(1 - 0.04 * len(sizes), len(sizes) + 0.04 * max(len(sizes), 10)),
    )
    ax.set_xticks(_whole_ticks(len(sizes)))
    name_decades(ax.yaxis, *ax.get_ylim())
    entitle(ax, f"spectrum of K over {len(sizes)} effects")
    legend_below(ax)
    return ax


def _whole_ticks(count: int) -> list[int]:
    """Return at most eight ticks from 1 to about `count`: 1, and multiples of a round number."""
    steps = [size * 10**power for power in range(12) for size in (1, 2, 5)]
    step = next(each for each in steps if count / each <= 7)
    return list(range(1, count + 1)) if step == 1 else [1, *range(step, count + 1, step)]


def draw_concentration(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how doubt about theta and about effects falls with rows, beside N^-1 and N^-1/2.

    table: the result of `cb.theory.concentration`, or its column trace alone, by rows.
    """
    if not isinstance(table, pd.DataFrame) or "trace" not in table.columns:
        raise ModelError(
            "draw_concentration needs the result of cb.theory.concentration, "
            f"got {type(table).__name__}"
        )
    if ax is None:
        ax = plt.figure(figsize=(5.6, 4.2), layout="constrained").add_subplot()
    rows = np.asarray(table.index, float)
    level = f"{100 * (1 - table.attrs.get('delta', 0.05)):g} %"
    target = str(table.attrs.get("target", "target"))
    shown = {
        "trace": ("tr Sigma, in units of theta squared", BLUE),
        "eps_pointwise": (f"largest error of an effect, {level}, in units of {target}", AMBER),
        "error": ("distance of theta from the truth, in units of theta", GREY),
    }
    shown = {name: look for name, look in shown.items() if name in table.columns}
    for name, (label, colour) in shown.items():
        ax.plot(rows, table[name], "o-", color=colour, ms=4, label=folded(label, 60))
    for name, power, style in (("trace", 1.0, "--"), ("eps_pointwise", 0.5, ":")):
        if name not in shown:
            continue
        guide = table[name].iloc[0] * (rows[0] / rows) ** power
        ax.plot(rows, guide, style, color=INK, lw=0.9, label=f"like N^-{power:g}")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="rows N",
        ylabel="size, in the units below",
    )
    ax.set_xticks(rows, [f"{count:,.0f}" for count in rows], minor=False)
    ax.minorticks_off()
    name_decades(ax.yaxis, *ax.get_ylim())
    entitle(ax, "how doubt falls with rows")
    legend_below(ax, 1)
    return ax


def draw_theory(
    diagnostics: Mapping[str, Any], axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw four diagnostics of the theory, as the paper does for the chain.

    The panels are the spectrum of the kernel with the dimension of theta, covariances between sets
    by formula and by another computation, the information gains, and how doubt falls with rows.

    Parameters
    ----------
    diagnostics:
        "eigenvalues" has the spectrum of K; "dimension" is the number of parameters; "covariances"
        has the analytic and the numerical value of every pair, an array of shape (n, 2); "gains" is
        the result of `cb.theory.gain_curves`; "concentration" has a column trace, with the rows as
        a column or as the index, as the result of `cb.theory.concentration` has.
    axes:
        Where to draw, four Axes; by default a new figure.

    Returns
    -------
    numpy.ndarray
        The four Axes, in the order above.
    """
    if not isinstance(diagnostics, Mapping):
        raise DataError(f"draw_theory needs a dictionary, got {type(diagnostics).__name__}")
    if missing := [name for name in DIAGNOSTICS if name not in diagnostics]:
        raise DataError(f"draw_theory needs {listed(DIAGNOSTICS)}; missing: {listed(missing)}")
    if axes is None:
        _, axes = plt.subplots(2, 2, figsize=(11.0, 8.4), layout="constrained")
    panels = np.asarray(axes, dtype=object).ravel()
    if len(panels) != 4:
        raise DataError(f"draw_theory has 4 panels and was given {len(panels)} Axes")
    _draw_rank(panels[0], diagnostics["eigenvalues"], int(diagnostics["dimension"]))
    _draw_covariances(panels[1], diagnostics["covariances"])
    draw_gains(diagnostics["gains"], panels[2])
    table = diagnostics["concentration"]
    by_rows = isinstance(table, pd.DataFrame) and "rows" in table.columns
    draw_concentration(table.set_index("rows") if by_rows else table, panels[3])
    return panels


def _draw_rank(ax: Axes, eigenvalues: Any, dimension: int) -> None:
    """Draw a spectrum, and where it must end."""
    sizes = _numbers("eigenvalues", eigenvalues, 1)
    draw_spectrum(np.diag(sizes), ax)
    rank = int((sizes > ROUNDED * sizes.max()).sum())
    ax.axvline(
        dimension + 0.5, color=AMBER, ls="--", lw=1.2, label=f"dimension of theta, {dimension}"
    )
    entitle(ax, f"rank {rank} of K over {len(sizes)} effects, dimension of theta {dimension}")
    legend_below(ax)


def _draw_covariances(ax: Axes, covariances: Any) -> None:
    """Draw numerical against analytic covariances, and the line on which they are equal."""
    pairs = _numbers("covariances", covariances, 2)
    if pairs.shape[1] != 2:
        raise DataError(
            f"covariances need two columns, analytic and numerical, got shape {pairs.shape}"
        )
    analytic, numerical = pairs.T
    low, high = float(pairs.min()), float(pairs.max())
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    ends = low - margin, high + margin
    ax.plot(ends, ends, color=GREY, lw=1.2, label="equal")
    ax.plot(analytic, numerical, "o", color=BLUE, ms=4, alpha=0.6, mew=0, label="pairs of effects")
    ax.set(xlim=ends, ylim=ends, xlabel="analytic covariance", ylabel="numerical covariance")
    largest = float(np.abs(numerical - analytic).max())
    entitle(ax, f"covariances of {len(pairs)} pairs, largest difference {largest:.2g}")
    legend_below(ax)


def _numbers(name: str, values: Any, dimensions: int) -> np.ndarray:
    """Return an array of finite numbers with so many dimensions, or refuse it."""
    found = np.asarray(values, float)
    if found.ndim != dimensions or not found.size or not np.isfinite(found).all():
        raise DataError(
            f"{name} must be finite numbers in {dimensions} dimension(s), got shape {found.shape}"
        )
    return found
