"""How do the theory's quantities look: spectra, information gains, and posterior uncertainty?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.errors import DataError, ModelError, listed
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.theory.constants import leading
from causal_bo_ppl.theory.information_gains import spectrum
from causal_bo_ppl.theory.table import BY_DIMENSION, BY_RANK, CONTROL, COUPLED, RBF

GAIN_LINES: dict[str, dict[str, Any]] = {
    RBF: {"color": AMBER},
    CONTROL: {"color": GREY},
    BY_DIMENSION: {"color": INK, "ls": ":", "lw": 1.2},
    BY_RANK: {"color": INK, "ls": "--", "lw": 1.2},
    COUPLED: {"color": BLUE, "lw": 2.0},
}
DIAGNOSTICS = ("eigenvalues", "dimension", "covariances", "gains", "concentration")
DRAWN_ZERO = 1e-16  # share of the largest eigenvalue at which a zero is drawn
ROUNDING = 1e-12  # share of the largest eigenvalue below which one is rounding


def draw_gains(curves: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how the information gain grows with the number of outcomes.

    The curves are for the coupled kernel, its bounds, and independent sets with two kernels.

    Parameters
    ----------
    curves:
        The result of `cb.theory.gain_curves`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    if not isinstance(curves, pd.DataFrame) or not set(GAIN_LINES) <= set(curves.columns):
        raise ModelError(
            f"draw_gains needs the result of cb.theory.gain_curves, got {type(curves).__name__}"
        )
    ax = ax or style.new_axes(5.8, 4.2)
    facts = curves.attrs
    for name, look in GAIN_LINES.items():
        label = f"{name} (lengthscale {facts['lengthscale']:g})" if name == RBF else name
        ax.plot(curves.index, curves[name], label=label, **look)
    ax.set(xlabel="outcomes", ylabel="information gain (nats)")
    ax.set(xlim=(0, curves.index[-1]), ylim=(0, None))
    size = f"rank {facts['rank']} of {facts['dimension']}, {facts['sets']} sets"
    style.entitle(ax, f"{size}, kappa² / noise = {facts['kappa2'] / facts['noise']:.3g}")
    style.legend_below(ax)
    return ax


def draw_spectrum(gram: Any, ax: Axes | None = None, *, share: float = 0.99) -> Axes:
    """Draw the eigenvalues of a gram, largest first, and how few make up a share of the trace.

    Eigenvalues below a trillionth of the largest are rounding: the kernel's rank is where the
    spectrum falls.

    Parameters
    ----------
    gram:
        The result of `cb.jacobian_gram`, or an array of shape (n, n).
    ax:
        Where to draw; by default a new figure.
    share:
        The share of the trace.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    sizes = spectrum(gram)
    kept = leading(sizes, read_share("share", share))
    if not sizes.size or sizes[0] <= 0:
        raise ModelError("this gram is zero: all effects are known, there is no spectrum to draw")
    shown, count = np.maximum(sizes / sizes[0], DRAWN_ZERO), len(sizes)
    at = np.arange(1, count + 1)
    ax = ax or style.new_axes(5.4, 3.8)
    ax.plot(at, shown, "o-", color=GREY, ms=3.5, lw=0.8, label="eigenvalues of K")
    label = f"the {kept} that make up {100 * share:.4g} % of the trace"
    ax.plot(at[:kept], shown[:kept], "o", color=BLUE, ms=5, label=label)
    ax.axhspan(DRAWN_ZERO / 3, ROUNDING, color=GREY, alpha=0.2, lw=0, label="rounding")
    ax.set(xlabel="eigenvalue, largest first", ylabel="share of the largest")
    ax.set(yscale="log", ylim=(DRAWN_ZERO / 3, 3.0))
    ax.set_xlim(1 - 0.04 * count, count + 0.04 * max(count, 10))
    steps = (size * 10**power for power in range(12) for size in (1, 2, 5))
    step = next(each for each in steps if count / each <= 7)
    ax.set_xticks(np.unique([1, *range(step, count + 1, step)]))
    style.name_decades(ax.yaxis, *ax.get_ylim())
    style.entitle(ax, f"spectrum of K over {count} effects")
    style.legend_below(ax)
    return ax


def draw_concentration(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw how the uncertainty of theta and of effects falls with the number of observations.

    Lines that fall like N^-1 and N^-1/2 are drawn beside it.

    Parameters
    ----------
    table:
        The result of `cb.theory.concentration`, or its column trace alone, by the number of
        observations.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.
    """
    if not isinstance(table, pd.DataFrame) or "trace" not in table.columns:
        raise ModelError(
            "draw_concentration needs the result of cb.theory.concentration, "
            f"got {type(table).__name__}"
        )
    ax = ax or style.new_axes(5.6, 4.2)
    counts = np.asarray(table.index, float)
    level = f"{100 * (1 - table.attrs.get('delta', 0.05)):g} %"
    target = str(table.attrs.get("target", "target"))
    for name, label, colour in (
        ("trace", "tr Sigma, in units of theta squared", BLUE),
        ("eps_pointwise", f"largest error of an effect, {level}, in units of {target}", AMBER),
        ("error", "distance of theta from the truth, in units of theta", GREY),
    ):
        if name in table.columns:
            ax.plot(counts, table[name], "o-", color=colour, ms=4, label=style.folded(label, 60))
    for name, power, dashes in (("trace", 1.0, "--"), ("eps_pointwise", 0.5, ":")):
        if name in table.columns:
            guide = table[name].iloc[0] * (counts[0] / counts) ** power
            ax.plot(counts, guide, dashes, color=INK, lw=0.9, label=f"like N^-{power:g}")
    ax.set(xscale="log", yscale="log", xlabel="observations N", ylabel="size, in the units below")
    ax.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    ax.minorticks_off()
    style.name_decades(ax.yaxis, *ax.get_ylim())
    style.entitle(ax, "how uncertainty falls with the number of observations")
    style.legend_below(ax, 1)
    return ax


def draw_theory(
    diagnostics: Mapping[str, Any], axes: Sequence[Axes] | np.ndarray | None = None
) -> np.ndarray:
    """Draw four diagnostics of the theory, as the paper does for the chain.

    The panels are the spectrum of the kernel with the dimension of theta, covariances between sets
    by formula and by another computation, the information gains, and how uncertainty falls with the
    number of observations.

    Parameters
    ----------
    diagnostics:
        "eigenvalues" has the spectrum of K; "dimension" is the number of parameters; "covariances"
        has the analytic and the numerical value of every pair, an array of shape (n, 2); "gains" is
        the result of `cb.theory.gain_curves`; "concentration" has a column trace, with the number
        of observations in a column rows or as the index, as the result of `cb.theory.concentration`
        has.
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
    titles = ["spectrum", "covariances", "gains", "concentration"]
    size: dict[str, Any] = {"most_columns": 2, "panel": (5.5, 4.2), "below": 0.0}
    panels = style.panel_axes("draw_theory", axes, titles, **size)
    _draw_rank(panels[0], diagnostics["eigenvalues"], int(diagnostics["dimension"]))
    _draw_covariances(panels[1], diagnostics["covariances"])
    draw_gains(diagnostics["gains"], panels[2])
    table = diagnostics["concentration"]
    has_column = isinstance(table, pd.DataFrame) and "rows" in table.columns
    draw_concentration(table.set_index("rows") if has_column else table, panels[3])
    return panels


def _draw_rank(ax: Axes, eigenvalues: Any, dimension: int) -> None:
    """Draw a spectrum, and where it must end."""
    sizes = _numbers("eigenvalues", eigenvalues, (-1,))
    draw_spectrum(np.diag(sizes), ax)
    rank, label = int((sizes > ROUNDING * sizes.max()).sum()), f"dimension of theta, {dimension}"
    ax.axvline(dimension + 0.5, color=AMBER, ls="--", lw=1.2, label=label)
    style.entitle(ax, f"rank {rank} of K over {len(sizes)} effects, dimension of theta {dimension}")
    style.legend_below(ax)


def _draw_covariances(ax: Axes, covariances: Any) -> None:
    """Draw numerical against analytic covariances, and the line on which they are equal."""
    pairs = _numbers("covariances", covariances, (-1, 2))
    analytic, numerical = pairs.T
    low, high = float(pairs.min()), float(pairs.max())
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    ends = low - margin, high + margin
    ax.plot(ends, ends, color=GREY, lw=1.2, label="equal")
    ax.plot(analytic, numerical, "o", color=BLUE, ms=4, alpha=0.6, mew=0, label="pairs of effects")
    ax.set(xlim=ends, ylim=ends, xlabel="analytic covariance", ylabel="numerical covariance")
    largest = float(np.abs(numerical - analytic).max())
    style.entitle(ax, f"covariances of {len(pairs)} pairs, largest difference {largest:.2g}")
    style.legend_below(ax)


def _numbers(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return finite numbers of this shape, in which -1 is any length from 1 on, or refuse them."""
    found = np.asarray(values, float)
    fits = found.ndim == len(shape) and found.shape[1:] == shape[1:]
    if not (fits and found.size and np.isfinite(found).all()):
        wanted = f"({', '.join(['n', *map(str, shape[1:])])})"
        raise DataError(f"{name} must be finite numbers of shape {wanted}, got {found.shape}")
    return found
