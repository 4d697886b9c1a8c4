"""How do the theory's quantities look: spectra, information gains, and posterior uncertainty?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.errors import ArgumentError, DataError, listed
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.theory.constants import leading
from causal_bo_ppl.theory.information_gains import spectrum
from causal_bo_ppl.theory.table import BY_DIMENSION, BY_RANK, CONTROL, COUPLED_GAIN, RBF

GAIN_LINES: dict[str, dict[str, Any]] = {
    RBF: {"color": AMBER},
    CONTROL: {"color": GREY},
    BY_DIMENSION: {"color": INK, "ls": ":", "lw": 1.2},
    BY_RANK: {"color": INK, "ls": "--", "lw": 1.2},
    COUPLED_GAIN: {"color": BLUE, "lw": 2.0},
}
PANELS_NEED = ("eigenvalues", "dimension", "covariances", "gains", "concentration")
DRAWN_ZERO = 1e-16  # share of the largest eigenvalue at which a zero is drawn
ROUNDING_SHARE = 1e-12  # of the largest eigenvalue, below which one is rounding


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

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.theory.gain_curves`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> curves = cb.theory.gain_curves(post, post.problem.grid(3), noise=0.5, rounds=20)
    >>> cb.plots.draw_gains(curves).get_ylabel()
    'information gain (nats)'
    """
    style.require_result("draw_gains", curves, GAIN_LINES, "cb.theory.gain_curves")
    ax = ax or style.new_axes(5.8, 4.2)
    facts = curves.attrs
    for name, look in GAIN_LINES.items():
        label = f"{name} (lengthscale {facts['lengthscale']:g})" if name == RBF else name
        ax.plot(curves.index, curves[name], label=label, **look)
    ax.set(xlim=(0, curves.index[-1]), ylim=(0, None))
    size = f"rank {facts['rank']} of {facts['dimension']}, {facts['sets']} sets"
    title = f"{size}, kappa² / noise = {facts['kappa2'] / facts['noise']:.3g}"
    return style.finish(ax, title, "outcomes", "information gain (nats)")


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

    Raises
    ------
    ArgumentError
        If all eigenvalues are 0, or `share` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> gram = cb.jacobian_gram(post, post.problem.grid(3))
    >>> cb.plots.draw_spectrum(gram).get_title()
    'spectrum of K over 6 effects'
    """
    sizes = spectrum(gram)
    leading_count = leading(sizes, read_share("share", share))
    if not sizes.size or sizes[0] <= 0:
        raise ArgumentError("this gram is zero, so that it has no spectrum: all effects are known")
    shown, count = np.maximum(sizes / sizes[0], DRAWN_ZERO), len(sizes)
    numbers = np.arange(1, count + 1)
    ax = ax or style.new_axes(5.4, 3.8)
    ax.plot(numbers, shown, "o-", color=GREY, ms=3.5, lw=0.8, label="eigenvalues of K")
    label = f"the {leading_count} that make up {100 * share:.4g} % of the trace"
    ax.plot(numbers[:leading_count], shown[:leading_count], "o", color=BLUE, ms=5, label=label)
    ax.axhspan(DRAWN_ZERO / 3, ROUNDING_SHARE, color=GREY, alpha=0.2, lw=0, label="rounding")
    ax.set(yscale="log", ylim=(DRAWN_ZERO / 3, 3.0))
    ax.set_xlim(1 - 0.04 * count, count + 0.04 * max(count, 10))
    steps = (size * 10**power for power in range(12) for size in (1, 2, 5))
    step = next(each for each in steps if count / each <= 7)
    ax.set_xticks(np.unique([1, *range(step, count + 1, step)]))
    style.name_decades(ax.yaxis, *ax.get_ylim())
    title = f"spectrum of K over {count} effects"
    return style.finish(ax, title, "eigenvalue, largest first", "share of the largest")


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

    Raises
    ------
    ArgumentError
        If there is no column trace.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> table = cb.theory.concentration(chain.problem, chain.observe(200, 0))
    >>> cb.plots.draw_concentration(table).get_xlabel()
    'observations N'
    """
    style.require_result("draw_concentration", table, ["trace"], "cb.theory.concentration")
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
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    ax.minorticks_off()
    style.name_decades(ax.yaxis, *ax.get_ylim())
    title = "how uncertainty falls with the number of observations"
    return style.finish(ax, title, "observations N", "size, in the units below", 1)


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

    Raises
    ------
    DataError
        If a diagnostic is missing, or its numbers are not finite or have another shape.
    ArgumentError
        If the number of Axes is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> queries = post.problem.grid(3)
    >>> gram = cb.jacobian_gram(post, queries).gram
    >>> diagnostics = {
    ...     "eigenvalues": np.linalg.eigvalsh(gram),
    ...     "dimension": len(post.names),
    ...     "covariances": np.column_stack([gram[0], cb.exact_gram(post, queries).gram[0]]),
    ...     "gains": cb.theory.gain_curves(post, queries, noise=0.5, rounds=20),
    ...     "concentration": cb.theory.concentration(chain.problem, chain.observe(200, 0)),
    ... }
    >>> cb.plots.draw_theory(diagnostics).shape
    (4,)
    """
    if missing := [name for name in PANELS_NEED if name not in diagnostics]:
        raise DataError(f"draw_theory needs {listed(PANELS_NEED)}; missing: {listed(missing)}")
    titles = ["spectrum", "covariances", "gains", "concentration"]
    panels = style.panel_axes("draw_theory", axes, titles, most_columns=2, panel=(5.5, 4.2))
    _draw_rank(panels[0], diagnostics["eigenvalues"], int(diagnostics["dimension"]))
    _draw_covariances(panels[1], diagnostics["covariances"])
    draw_gains(diagnostics["gains"], panels[2])
    table = diagnostics["concentration"]
    draw_concentration(
        table.set_index("observations") if "observations" in table else table, panels[3]
    )
    return panels


def _draw_rank(ax: Axes, eigenvalues: Any, dimension: int) -> None:
    """Draw a spectrum, and the dimension of theta at which it must end."""
    sizes = _numbers("eigenvalues", eigenvalues, (-1,))
    draw_spectrum(np.diag(sizes), ax)
    rank = int((sizes > ROUNDING_SHARE * sizes.max()).sum())
    limit = f"dimension of theta, {dimension}"
    ax.axvline(dimension + 0.5, color=AMBER, ls="--", lw=1.2, label=limit)
    title = f"rank {rank} of K over {len(sizes)} effects, dimension of theta {dimension}"
    style.finish(ax, title, ax.get_xlabel(), ax.get_ylabel())


def _draw_covariances(ax: Axes, covariances: Any) -> None:
    """Draw numerical against analytic covariances, and the line on which they are equal."""
    pairs = _numbers("covariances", covariances, (-1, 2))
    analytic, numerical = pairs.T
    largest = float(np.abs(numerical - analytic).max())
    low, high = float(pairs.min()), float(pairs.max())
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    ends = low - margin, high + margin
    ax.plot(ends, ends, color=GREY, lw=1.2, label="equal")
    ax.plot(analytic, numerical, "o", color=BLUE, ms=4, alpha=0.6, mew=0, label="pairs of effects")
    ax.set(xlim=ends, ylim=ends)
    title = f"covariances of {len(pairs)} pairs, largest difference {largest:.2g}"
    style.finish(ax, title, "analytic covariance", "numerical covariance")


def _numbers(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return finite numbers of this shape, in which -1 is any length from 1 on, or refuse them."""
    array = np.asarray(values, float)
    fits = array.ndim == len(shape) and array.shape[1:] == shape[1:]
    if not (fits and array.size and np.isfinite(array).all()):
        wanted = f"({', '.join(['n', *map(str, shape[1:])])})"
        raise DataError(f"{name} must be finite numbers of shape {wanted}, got {array.shape}")
    return array
