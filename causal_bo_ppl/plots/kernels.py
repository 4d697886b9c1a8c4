"""How far are kernels apart, how are effects coupled, and what follows for the theory?

Errors of kernels, couplings of effects and reductions of their variances; then the quantities of
the theory: spectra, information gains, and posterior uncertainty.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator

from causal_bo_ppl.errors import ArgumentError, DataError, listed, unknown
from causal_bo_ppl.inputs import read_share
from causal_bo_ppl.kernels.comparison import COMPARED, TERMS
from causal_bo_ppl.kernels.monte_carlo import MEASURES
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.theory.information_gains import (
    BY_DIMENSION,
    BY_RANK,
    CONTROL,
    COUPLED_GAIN,
    RBF,
    leading,
    spectrum,
)

CLEAR_SCORE = 3.0  # an error so many standard errors above 0 is not Monte-Carlo error alone
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
LETTERS_OF_LABELS = 60  # letters of all labels side by side
MOST_NAMED_EFFECTS = 24  # of more effects, their sets are named
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


def draw_kernel_errors(
    result: xr.Dataset,
    ax: Axes | None = None,
    *,
    comparison: str | None = None,
    measure: str = "frobenius",
) -> Axes:
    """Draw the error of a kernel for every pair of sets.

    A dot marks an error that Monte-Carlo error alone could make, less than 3 sds above it.

    Parameters
    ----------
    result:
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

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.compare_kernels`, or the comparison or the measure is unknown
        or not part of it.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> result = cb.compare_kernels(post, post.problem.grid(3), draws=200, progress=False, key=0)
    >>> cb.plots.draw_kernel_errors(result).get_title().splitlines()
    ['jacobian - exact', '50 observations']
    """
    _require_comparison("draw_kernel_errors", result)
    reference = "exact" if result.attrs["reference"] == "exact" else "monte_carlo"
    chosen = comparison or f"jacobian - {reference}"
    for what, name, known in (("comparison", chosen, COMPARED), ("measure", measure, MEASURES)):
        if name not in known:
            raise ArgumentError(unknown(what, name, known))
    cells = result[measure].sel(comparison=chosen).values
    if np.isnan(cells).all():
        raise ArgumentError(
            f"there is no {chosen!r}: {result.attrs['method']!r} has no exact kernel; "
            "compare with draws"
        )
    norm = LogNorm(*_decades(cells)) if (cells > 0).any() else None
    units = "" if measure == "frobenius" else f" ({_target(result)} squared)"
    sets = [str(each) for each in result.left.values]
    ax = style.draw_matrix(cells, sets, ax, label=MEASURE_LABELS[measure] + units, norm=norm)
    scores = result[f"{measure}_z"].sel(comparison=chosen).values
    rows, columns = np.nonzero(scores < CLEAR_SCORE)
    ax.plot(columns + 0.85, rows + 0.15, ".", color="white", ms=4, mec=INK, mew=0.3)
    noise = "\ndots: within Monte-Carlo error" if len(rows) else ""
    title = f"{chosen}\n{int(result.observations)} observations{noise}"
    return style.finish(ax, title, columns=0, most=40)


def draw_errors_by_observations(result: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the relative Frobenius error of all sets together against the number of observations.

    The shaded part is Monte-Carlo error alone. Where there is an exact kernel, the broken line
    falls like 1 / observations, as in theory.

    Parameters
    ----------
    result:
        Comparisons of several posteriors, joined by `xarray.concat([...], "observations")`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.compare_kernels` for several posteriors.

    Examples
    --------
    >>> import xarray as xr
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> result = cb.compare_kernels(post, post.problem.grid(3), draws=200, progress=False, key=0)
    >>> more = cb.fit(chain.problem, chain.observe(200, 0))
    >>> other = cb.compare_kernels(more, post.problem.grid(3), draws=200, progress=False, key=0)
    >>> both = xr.concat([result, other], "observations")
    >>> cb.plots.draw_errors_by_observations(both).get_xlabel()
    'observations'
    """
    _require_comparison("draw_errors_by_observations", result, stacked=True)
    result = result.sortby("observations")
    counts, errors = np.asarray(result.observations.values, float), result.overall_frobenius
    ax = ax or style.new_axes(5.6, 4.2)
    noise = result.overall_frobenius_se.max("comparison").values
    floor = 0.5 * float(np.nanmin(errors.where(errors > 0).values))
    style.shade(ax, counts, floor, noise, GREY, alpha=0.25, label="Monte-Carlo error alone")
    for name, colour in COMPARISON_COLOURS.items():
        error = errors.sel(comparison=name).values
        if np.isfinite(error).any():
            ax.plot(counts, error, "o-", color=colour, ms=4, label=name)
    first = errors.sel(comparison="jacobian - exact").values
    if np.isfinite(first).all():
        guide = first[0] * counts[0] / counts
        ax.plot(counts, guide, "--", color=INK, lw=0.8, label="like 1 / observations")
    ax.set(xscale="log", yscale="log", ylim=(floor, None))
    ax.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    ax.xaxis.set_minor_locator(NullLocator())
    style.name_decades(ax.yaxis, *ax.get_ylim())
    title = f"errors of the kernels of effects on {result.attrs['target']}"
    return style.finish(ax, title, "observations", "relative Frobenius error, all sets", most=48)


def draw_terms(result: Mapping[str, xr.Dataset] | xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw how large the leading, mixed and remainder terms of the covariances are.

    The sizes are those of all sets together. Points are by draws, with bars up to twice the
    Monte-Carlo error: a term below could be 0. A cross is the exact size, where it is known and not
    0. A term that is 0 in all draws has a 0 at the bottom.

    Parameters
    ----------
    result:
        The result of `cb.compare_kernels`, which is named by its number of observations; or
        {label: result}.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.compare_kernels`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> result = cb.compare_kernels(post, post.problem.grid(3), draws=200, progress=False, key=0)
    >>> cb.plots.draw_terms(result).get_title()
    'parts of the covariances of effects on Y'
    """
    named = {"": result} if isinstance(result, xr.Dataset) else dict(result)
    results = list(named.values())
    for each in results:
        _require_comparison("draw_terms", each)
    labels = [str(name) or f"{int(each.observations)} observations" for name, each in named.items()]
    ax = ax or style.new_axes(1.6 * len(named) + 3.6, 4.0)
    positions, bottom = np.arange(len(named)), ax.get_xaxis_transform()
    known = np.array([each.attrs["reference"] == "exact" for each in results])
    scale = [float(each.overall_drawn.sel(term="leading")) for each in results]
    for shift, (term, colour) in enumerate(zip(TERMS, (INK, AMBER, BLUE), strict=True)):
        x = positions + 0.22 * (shift - 1)
        size, noise, exact = (
            np.array([float(each[name].sel(term=term)) for each in results]) / scale
            for name in ("overall_drawn", "overall_drawn_se", "overall_size")
        )
        label = "_" if shift else "twice the Monte-Carlo error"
        ax.bar(x, 2 * noise, width=0.18, color=GREY, alpha=0.35, label=label)
        ax.plot(x, np.where(size > 0, size, np.nan), "o", color=colour, label=term)
        ax.plot(x[known], np.where(exact > 0, exact, np.nan)[known], "x", color=colour, ms=9)
        for position in x[~(size > 0)]:
            ax.text(position, 0.02, "0", transform=bottom, ha="center", color=colour)
    if known.any():
        ax.plot([], [], "x", color=GREY, ms=9, label="exact")
    letters = max(LETTERS_OF_LABELS // len(named), 10)
    ax.set_xticks(positions, [style.folded(label, letters) for label in labels])
    ax.set(yscale="log", xlim=(-0.6, len(named) - 0.4))
    low, high = ax.get_ylim()
    low, high = min(low, 0.05), max(high, 2.0)  # a leading term alone, which is 1, is seen too
    ax.set_ylim(low, high)
    style.name_decades(ax.yaxis, low, high)
    title = f"parts of the covariances of effects on {results[0].attrs['target']}"
    label = "Frobenius norm, relative to the leading term"
    return style.finish(ax, title, ylabel=label, columns=3, most=44)


def _target(result: xr.Dataset) -> str:
    """Return the name of the target, with its unit where it has one."""
    unit = result.attrs.get("unit", "")
    return f"{result.attrs['target']} [{unit}]" if unit else str(result.attrs["target"])


def _decades(cells: np.ndarray) -> tuple[float, float]:
    """Return the ends of a scale for all positive cells.

    It starts between a ten-thousandth and a tenth of the largest.
    """
    high = 1.001 * float(np.nanmax(cells))
    return float(np.clip(0.999 * np.nanmin(cells[cells > 0]), 1e-4 * high, 0.1 * high)), high


def _require_comparison(caller: str, result: object, stacked: bool = False) -> None:
    """Refuse anything but a comparison of kernels, and one that is not stacked as asked."""
    style.require_result(caller, result, {"overall_frobenius", "drawn"}, "cb.compare_kernels")
    if stacked != ("observations" in getattr(result, "sizes", ())):
        several = 'several, joined by xarray.concat([...], "observations")'
        raise ArgumentError(
            f"{caller} needs "
            f"{several if stacked else 'one; select it with .isel(observations=...)'}"
        )


def draw_coupling(result: xr.Dataset, ax: Axes | None = None, *, of: str = "between") -> Axes:
    """Draw how the posteriors of the effects of all sets are correlated.

    Sets are in the order of the graph.

    Parameters
    ----------
    result:
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

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.kernels.coupling`, or `of` is unknown.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_coupling(cb.kernels.coupling(post)).get_title()
    'effects on Y, 50 observations'
    """
    style.require_result("draw_coupling", result, {"between", "explained"}, "cb.kernels.coupling")
    if of not in COUPLING_LABELS:
        raise ArgumentError(unknown("part of a coupling", of, COUPLING_LABELS))
    signed = of == "correlation"
    names = _effects(result) if signed else [str(each) for each in result.left.values]
    colours: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": 1}
    colours |= {"cmap": "RdBu_r", "vmin": -1} if signed else {}
    ax = style.draw_matrix(result[of].values, names, ax, label=COUPLING_LABELS[of], **colours)
    starts = style.equal_runs([str(each) for each in result.set.values])[0][1:].tolist()
    for start in starts if signed and len(starts) < MOST_BARS else ():  # more would hide the cells
        ax.axhline(start, color=INK, lw=0.6)
        ax.axvline(start, color=INK, lw=0.6)
    what = "effect" if signed and result.sizes["effect"] <= MOST_NAMED_EFFECTS else "set"
    labels = ("explained set", "known set") if of == "explained" else (what, what)
    title = f"effects on {result.attrs['target']}, {result.attrs['observations']} observations"
    return style.finish(ax, title, *labels, columns=0, most=44)


def draw_variance_reduction(result: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw by how much an outcome of each experiment reduces the variance of all effects.

    For one experiment, posterior sds before and after its outcome are drawn; for several, the share
    of variance that each removes. Effects are ordered by their sets.

    Parameters
    ----------
    result:
        The result of `cb.kernels.variance_reduction`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the result of `cb.kernels.variance_reduction`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> result = cb.kernels.variance_reduction(post, [{"Z": 4.0}])
    >>> cb.plots.draw_variance_reduction(result).get_title()
    'variance reduction by do(Z = 4)'
    """
    maker = "cb.kernels.variance_reduction"
    style.require_result("draw_variance_reduction", result, {"reduction", "sd_after"}, maker)
    experiments = [str(each) for each in result["experiment"].values]
    if len(experiments) == 1:
        return _draw_one(result, experiments[0], ax)
    label = "share of variance removed"
    ax = style.draw_matrix(
        result.reduction.values, experiments, ax, label=label, columns=_effects(result), vmin=0
    )
    by = "" if result.sizes["effect"] <= MOST_NAMED_EFFECTS else ", by set"
    title = f"variance reduction by one outcome, effects on {result.attrs['target']}"
    return style.finish(ax, title, f"effect{by}", "experiment", 0, most=50)


def _effects(result: xr.Dataset) -> list[str]:
    """Return the names of the effects or, where there are many, of their sets."""
    few = result.sizes["effect"] <= MOST_NAMED_EFFECTS
    return [str(each) for each in (result.effect if few else result.set).values]


def _draw_one(result: xr.Dataset, experiment: str, ax: Axes | None) -> Axes:
    """Draw sds before and after one experiment; of many effects, the most reduced ones."""
    total, shares = result.sizes["effect"], result.reduction.values[0]
    shown = np.sort(np.argsort(-np.nan_to_num(shares), kind="stable")[:MOST_BARS])
    names = [str(each) for each in result["effect"].values[shown]]
    ax = style.list_axes(ax, names, 4.8, min(0.26 * len(shown) + 1.8, 12.0))
    positions = np.arange(len(shown))
    before, after = result.sd.values[shown], result.sd_after.values[0][shown]
    ax.barh(positions, before, height=0.72, color=GREY, alpha=0.35, label="before")
    ax.barh(positions, after, height=0.4, color=BLUE, label="after one outcome")
    for position, share, sd in zip(positions, 100 * shares[shown], before, strict=True):
        # 99.6 is written as 99.6 rather than as 100.
        percent = f"{share:.2g}" if share < 99 else f"{share:.3g}"
        text = " known" if np.isnan(share) else f" -{percent} % of variance"
        ax.text(sd, float(position), text, va="center", fontsize="x-small", color=INK)
    ax.set_xlim(0, 1.35 * max(float(before.max(initial=0.0)), 1e-300))
    which = f"\n{len(shown)} of {total} effects, the most reduced" if len(shown) < total else ""
    label = f"posterior sd of the effect on {_target(result)}"
    return style.finish(ax, f"variance reduction by {experiment}{which}", label, most=50)


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
