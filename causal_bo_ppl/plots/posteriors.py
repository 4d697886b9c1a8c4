"""What is the posterior of theta and of the effects, do intervals cover, and do chains agree?

Pictures of chains are each drawn in a new figure. Traces and energies are ArviZ's pictures. Ranks
are drawn here: ArviZ's band depends on its version, and for two chains that of ArviZ 0.8 holds
every curve there can be.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.errors import ArgumentError, PosteriorError, unknown
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.inference.posterior import require_posterior
from causal_bo_ppl.inputs import as_key, read_count
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, COLOURS, GREY, INK
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import response
from causal_bo_ppl.surrogates import Coupled, couple
from causal_bo_ppl.systems import CausalSystem

CURVE_POINTS, CURVE_DRAWS = 101, 400
LETTERS_OF_METHODS = 72  # letters of the names of all methods side by side
NARROWEST_INTERVAL = 1 / 200  # half its width over the farthest end; a dot on a shared axis
MOST_PARAMETERS = 12  # parameters that are shown, the largest R-hat first
SIMULATED_ORDERS = 2_000  # orders of draws that a band is made from
MOST_NUMBERS_AT_ONCE = 1_000_000  # numbers of simulated orders held in memory
MOST_TRACE_POINTS = 200  # draws shown in a trace, which cannot show more
FEWEST_DRAWS = 100  # draws of a chain that thinning keeps


def draw_posterior(
    post: Posterior, ax: Axes | None = None, *, level: float = 0.9, scale: str | None = None
) -> Axes:
    """Draw the mean and the central interval of every coordinate of theta_Y.

    The interval is that of the Gaussian with the posterior's mean and variance.

    Parameters
    ----------
    post:
        A posterior by any method.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the intervals.
    scale:
        "shared": all coordinates have one axis, in their own units. "own": each coordinate is
        divided by the end of its interval that is farthest from 0, so that coordinates in
        different units can be seen beside each other, and its mean and interval are written at
        the right. By default "shared" where every interval is wide enough to be seen.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If `scale` is unknown, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_posterior(post).get_title()
    'theta of Y: conjugate, 50 observations'
    """
    if scale not in (None, "shared", "own"):
        raise ArgumentError(unknown("scale", scale, ("shared", "own")))
    half, names = style.half_width(level) * post.sd, [str(name) for name in post.names]
    far = np.abs(post.mean) + half
    is_narrow = bool((half < NARROWEST_INTERVAL * far.max()).any())
    is_scaled = is_narrow if scale is None else scale == "own"
    ax = style.list_axes(ax, names, 5.6 if is_scaled else 4.4, 0.24 * len(names) + 1.2)
    unit = np.where(far > 0, far, 1.0) if is_scaled else 1.0
    bars: dict[str, Any] = {"fmt": "o", "ms": 3.5, "color": BLUE, "elinewidth": 1.4}
    ax.errorbar(post.mean / unit, np.arange(len(names)), xerr=half / unit, **bars)
    ax.axvline(0, color=GREY, lw=0.8, zorder=0)
    label = f"posterior mean and {level:.0%} interval"
    if is_scaled:
        label = f"{label}\nof each coordinate on its own scale, 0 to 1"
        ax.set(xlim=(-1.08, 1.08), xticks=[-1, 0, 1])
        side: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "fontsize": "small"}
        for row, (mean, size) in enumerate(zip(post.mean, half, strict=True)):
            text = f"{mean:.3g}  [{mean - size:.3g}, {mean + size:.3g}]"
            ax.text(1.02, row, text, va="center", **side)
    title = f"theta of {post.problem.target}: {post.method}, {post.n_observations} observations"
    return style.finish(ax, title, label, columns=0, most=56)


def draw_response(
    model: Posterior | Coupled,
    name: str,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    truth: CausalSystem | Callable[[Queries], np.ndarray] | None = None,
    fixed: Mapping[str, float] | None = None,
    draws: int = CURVE_DRAWS,
    key: jax.Array | int = 0,
) -> Axes:
    """Draw E[Y | do(X = x)] over the domain of one variable, with its interval.

    For a posterior, these are the mean and the interval of its draws before any experiment, and as
    thin lines the interval of the Jacobian kernel, which linearizes the effect in theta. For a
    surrogate, they are its mean and interval given its outcomes. The observations are drawn
    too, and ticks mark their values of the variable; what is shaded is extrapolation. An interval
    that is far wider than the range of observations and mean is cut off.

    Parameters
    ----------
    model:
        A posterior or a surrogate.
    name:
        The variable that is set along the horizontal axis.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the interval.
    truth:
        A system, or a function from queries to true effects.
    fixed:
        {variable: value} of others that are set at the same time.
    draws, key:
        How many draws of the posterior the interval is made of, and their key.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If the variable has no domain or is in `fixed`, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_response(post, "Z", truth=chain).get_xlabel()
    'do(Z)'
    """
    surrogate = couple(model) if isinstance(model, Posterior) else model
    post, width, others = surrogate.post, style.half_width(level), dict(fixed or {})
    problem = post.problem
    if name not in problem.domains or name in others:
        free = [each for each in problem.manipulable if each not in others]
        raise ArgumentError(f"{name!r} has no domain, or is fixed; choose one of {', '.join(free)}")
    grid = problem.region.ticks(name, CURVE_POINTS)
    legal = problem.feasible([{name: float(value), **others} for value in grid])
    grid = grid[legal] if legal.any() else grid  # where none is, the next line raises the reason
    queries = problem.queries([{name: float(value), **others} for value in grid])
    ax = ax or style.new_axes(5.6, 3.8)
    observed, outcomes = post.data.column(name), post.data.outcomes
    faint: dict[str, Any] = {"color": GREY, "ms": 3, "alpha": 0.6, "zorder": 1}
    ax.plot(observed, outcomes, ".", label="observations", **faint)
    title = f"{post.method}, {post.n_observations} observations"
    if isinstance(model, Posterior):
        effect = response(post)
        mean, jacobian = effect.linearize(post.mean, queries)
        half = width * np.linalg.norm(jacobian @ post.factor, axis=1)
        for end, label in ((mean - half, "linearized in theta"), (mean + half, "_")):
            ax.plot(grid, end, color=BLUE, lw=0.9, ls=":", label=label)
        theta = post.draws(read_count("draws", draws, 2), as_key(key))
        effects = effect(theta[np.isfinite(theta).all(axis=1)], queries)
        mean = effects.mean(axis=0)
        low, high = np.quantile(effects, [(1 - level) / 2, (1 + level) / 2], axis=0)
    else:
        mean, sd = surrogate.predict(queries)
        low, high = mean - width * sd, mean + width * sd
        title = f"{title}, {len(surrogate.observed.values)} outcomes"
    style.shade(ax, grid, low, high, BLUE, label=f"{level:.0%} interval")
    ax.plot(grid, mean, color=BLUE, label="posterior mean")
    shown = np.append(mean, outcomes)
    if truth is not None:
        exact = truth.effect if isinstance(truth, CausalSystem) else truth
        shown = np.append(shown, exact(queries))
        ax.plot(grid, shown[-len(grid) :], "--", color=INK, label="truth")
    rug: dict[str, Any] = {"color": INK, "lw": 0.6, "alpha": 0.5, "label": "observed values"}
    ax.vlines(observed, 0.0, 0.03, transform=ax.get_xaxis_transform(), **rug)
    style.mark_data(ax, observed, (float(grid[0]), float(grid[-1])), None)
    style.set_heights(ax, shown, [low, high])
    held = "".join(f", {problem.label(other)} = {value:.4g}" for other, value in others.items())
    labels = f"do({problem.label(name)}{held})", f"E[{problem.label(problem.target)}]"
    return style.finish(ax, title, *labels, columns=3)


def draw_coverage(
    intervals: Mapping[str, np.ndarray],
    truth: float,
    ax: Axes | None = None,
    *,
    quantity: str = "effect",
) -> Axes:
    """Draw the intervals of many data sets, and how many of them cover the truth.

    Parameters
    ----------
    intervals:
        {method: array of shape (n, 2)}, the ends of the intervals.
    truth:
        The true value.
    ax:
        Where to draw; by default a new figure.
    quantity:
        The label of the vertical axis.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If the intervals of a method do not have the shape (n, 2).

    Examples
    --------
    >>> import numpy as np
    >>> import causal_bo_ppl as cb
    >>> intervals = {"regression": np.array([[0.1, 0.9], [0.6, 1.2]])}
    >>> [label] = cb.plots.draw_coverage(intervals, 0.5).get_xticklabels()
    >>> label.get_text().splitlines()
    ['regression', '50% of 2 cover the truth']
    """
    ax = ax or style.new_axes(6.4, 3.8)
    start, ticks, letters = 0, {}, max(LETTERS_OF_METHODS // len(intervals), 12)
    for label, given in intervals.items():
        ends = np.asarray(given, float)
        if ends.ndim != 2 or ends.shape[1] != 2:
            raise ArgumentError(
                f"the intervals of {label!r} need the shape (n, 2), got {ends.shape}"
            )
        ends = ends[np.argsort(ends.mean(axis=1))]
        covers = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        positions = start + np.arange(len(ends))
        ax.vlines(positions, *ends.T, color=np.where(covers, BLUE, AMBER), lw=0.9)
        share = f"{covers.mean():.0%} of {len(ends)} cover the truth"
        ticks[positions.mean()] = f"{style.folded(label, letters)}\n{style.folded(share, letters)}"
        start += len(ends) + max(4, len(ends) // 12)
    ax.axhline(truth, color=INK, lw=1, ls="--", label=f"truth, {truth:.4g}")
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.tick_params(axis="x", length=0)
    for colour, label in ((BLUE, "interval covers it"), (AMBER, "interval misses it")):
        ax.plot([], [], color=colour, lw=1.4, label=label)
    ax.spines[["top", "right"]].set_visible(False)
    return style.finish(ax, "", ylabel=quantity, columns=3)


class Sampled(NamedTuple):
    """The chains of the parameters that are shown, the largest R-hat first.

    draws: (chains, n, k), of coordinates of theta and of the log posterior. stats: the sampler's
    statistics, (chains, n) each. summary: a row for each of the k parameters. total: the number of
    parameters, shown or not.
    """

    draws: np.ndarray
    stats: dict[str, np.ndarray]
    summary: pd.DataFrame
    total: int

    @property
    def size(self) -> str:
        """The numbers of chains and draws as a text."""
        return f"{len(self.draws)} x {self.draws.shape[1]} draws"

    def labels(self, most: int) -> list[str]:
        """Return the names of the parameters in at most `most` letters."""
        return style.distinct([str(name) for name in self.summary.index], most)


def draw_trace(post: Posterior) -> np.ndarray:
    """Draw densities and traces of every chain, for at most 12 parameters, the largest R-hat first.

    Ticks at the bottom are divergences.

    Parameters
    ----------
    post:
        A posterior that was sampled, such as by `method="nuts"`.

    Returns
    -------
    numpy.ndarray
        The Axes of the densities and of the traces, an array of shape (k, 2).

    Raises
    ------
    PosteriorError
        If the posterior has no chains.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> nuts = cb.NUTS(chains=2, draws=100, progress=False)
    >>> post = cb.fit(chain.problem, chain.observe(60, 0), method=nuts, key=0)
    >>> cb.plots.draw_trace(post).shape
    (5, 2)
    """
    sampled = _require_sampled("draw_trace", post)
    from arviz_plots import plot_trace_dist

    hidden = dict.fromkeys(("label", "xlabel_trace"), False)
    options = {"compact": False, "rows": ["coordinate"], "cols": ["column"], "visuals": hidden}
    panels = _draw_by_arviz(plot_trace_dist, sampled, 1.1 * len(sampled.summary) + 0.7, options)
    rows = zip(panels, sampled.labels(40), sampled.summary.to_dict("records"), strict=True)
    for (density, trace), name, row in rows:
        density.set_title(name, fontsize="medium", loc="left")
        density.locator_params(axis="x", nbins=4)
        effective = f"{min(row['ess_bulk'], row['ess_tail']):.0f} effective draws"
        trace.set_title(f"R-hat {row['r_hat']:.3f}, {effective}", fontsize="medium", loc="left")
        for chain in trace.lines:  # thinned without antialiasing, a file has half the size
            every = -(-len(np.asarray(chain.get_xdata())) // MOST_TRACE_POINTS)
            chain.set(data=[np.asarray(values)[::every] for values in chain.get_data()])
            chain.set(linewidth=0.7, antialiased=False)
    panels[-1, 0].set_xlabel("value")
    panels[-1, 1].set_xlabel("draw")
    return _entitle(panels, sampled)


def draw_rank(post: Posterior) -> np.ndarray:
    """Draw how the ranks of each chain's draws depart from uniform.

    At most 12 parameters are shown, the largest R-hat first. Where chains agree, all curves of a
    panel stay within the band with probability 99 %. Draws are thinned by their effective sample
    size, since the band is that of independent draws.

    Parameters
    ----------
    post:
        A posterior that was sampled with at least two chains.

    Returns
    -------
    numpy.ndarray
        The Axes, an array of shape (k,).

    Raises
    ------
    PosteriorError
        If the posterior has no chains, or only one.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> nuts = cb.NUTS(chains=2, draws=100, progress=False)
    >>> post = cb.fit(chain.problem, chain.observe(60, 0), method=nuts, key=0)
    >>> cb.plots.draw_rank(post).shape
    (5,)
    """
    sampled = _require_sampled("draw_rank", post)
    chains = len(sampled.draws)
    if chains < 2:
        raise PosteriorError(
            "ranks compare chains, and there is only one; fit with method=cb.NUTS(chains=4)"
        )
    draws = sampled.draws[:, :: _thinning(sampled)]
    curves, bound = rank_departures(draws), rank_bound(chains, draws.shape[1])
    names = sampled.labels(28)
    size: dict[str, Any] = {"most_columns": 4, "panel": (2.6, 2.1), "below": 0.9}
    panels = style.panel_axes("draw_rank", None, names, sharex=True, sharey=True, **size)
    ranks = np.linspace(0, 1, curves.shape[1])
    for position, (ax, name) in enumerate(zip(panels, names, strict=True)):
        ax.axhspan(-bound, bound, color=GREY, alpha=0.25, lw=0, label="99 % band")
        for chain, curve in enumerate(curves[:, :, position]):
            colour = COLOURS[chain % len(COLOURS)]
            ax.plot(ranks, curve, color=colour, lw=1.2, label=f"chain {chain}")
        ax.axhline(0, color=GREY, lw=0.8, zorder=0)
        title = f"{name}\nR-hat {sampled.summary['r_hat'].iloc[position]:.3f}"
        ax.set_title(title, fontsize="medium", linespacing=1.4)
        ax.set_xlabel("fractional rank", fontsize="small")
        ax.tick_params(labelsize="small", labelbottom=True)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel("ECDF of ranks\nminus uniform", fontsize="small")
    style.legend_of_panels(panels, 5)
    return _entitle(panels, sampled)


def rank_departures(draws: np.ndarray) -> np.ndarray:
    """Return how the ranks of each chain depart from uniform.

    The value at rank r of all N = chains * n draws is the share of the chain's draws among the r
    smallest, minus r / N; it is 0 at both ends. draws: (chains, n, k). Returns (chains, N + 1, k).
    """
    chains, count, size = draws.shape
    order = np.argsort(draws.reshape(chains * count, size), axis=0, kind="stable")
    return _departures(order // count, chains, count)


def _departures(owners: np.ndarray, chains: int, count: int) -> np.ndarray:
    """Return departures (chains, N + 1, k), given which chain has each rank, (N, k)."""
    is_owner = owners[None] == np.arange(chains)[:, None, None]
    below = np.pad(is_owner.cumsum(axis=1), ((0, 0), (1, 0), (0, 0)))
    return np.asarray(below / count - np.linspace(0, 1, chains * count + 1)[:, None])


@functools.cache
def rank_bound(chains: int, count: int, level: float = 0.99) -> float:
    """Return the departure that none of the chains exceeds with probability `level`.

    All `chains` have `count` independent draws from one distribution, so that every order of the
    draws is equally likely; orders are simulated.
    """
    random, largest = np.random.default_rng(0), []
    owners = np.repeat(np.arange(chains), count)
    block = max(1, MOST_NUMBERS_AT_ONCE // (chains * owners.size))
    for start in range(0, SIMULATED_ORDERS, block):
        orders = np.tile(owners, (min(block, SIMULATED_ORDERS - start), 1))
        departures = _departures(random.permuted(orders, axis=1).T, chains, count)
        largest.append(np.abs(departures).max(axis=(0, 1)))
    return float(np.quantile(np.concatenate(largest), level))


def draw_energy(post: Posterior) -> np.ndarray:
    """Draw E-BFMI of every chain with its limit, and the spread of the energy and of its changes.

    Where changes are much narrower, the tails are explored slowly.

    Parameters
    ----------
    post:
        A posterior that was sampled, such as by `method="nuts"`.

    Returns
    -------
    numpy.ndarray
        The Axes of E-BFMI and of the energy, an array of shape (2,).

    Raises
    ------
    PosteriorError
        If the posterior has no chains.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> nuts = cb.NUTS(chains=2, draws=100, progress=False)
    >>> post = cb.fit(chain.problem, chain.observe(60, 0), method=nuts, key=0)
    >>> cb.plots.draw_energy(post).shape
    (2,)
    """
    sampled = _require_sampled("draw_energy", post)
    from arviz_plots import plot_energy

    limit = Limits().bfmi
    hidden = dict.fromkeys(("legend", "title", "ylabel"), False)
    options = {"threshold": limit, "visuals": hidden}
    chains, energy = panels = _draw_by_arviz(plot_energy, sampled, 2.8, options)
    chains.set_title("E-BFMI", fontsize="medium")
    chains.set(ylabel="chain", yticks=range(len(sampled.draws)))
    chains.margins(y=0.2)
    chains.set_xlabel(f"below {limit:g}: too slow", fontsize="small")
    energy.set_title("energy", fontsize="medium")
    energy.set_xlabel("difference from its mean", fontsize="small")
    energy.legend(energy.lines, ["marginal", "transitions"], **style.SMALL_LEGEND)
    energy.figure.suptitle(f"{sampled.size}: does the sampler reach the tails?", fontsize="medium")
    return panels


def _require_sampled(caller: str, post: Posterior) -> Sampled:
    """Return the chains of a posterior that was sampled; refuse any other."""
    require_posterior(caller, post)
    distribution = post.distribution
    stats = {} if distribution.chains is None else distribution.drawn(None, jax.random.key(0)).stats
    if distribution.chains is None or distribution.summary is None or "lp" not in stats:
        raise PosteriorError(
            f"{caller} shows chains, but nothing was sampled by {post.method}; "
            "fit with method='nuts', or look at cb.diagnostics.check_posterior(post)"
        )
    draws = np.concatenate([distribution.chains, stats["lp"][..., None]], axis=-1)
    r_hat = np.nan_to_num(distribution.summary["r_hat"].to_numpy(), nan=np.inf)
    worst = np.argsort(-r_hat, kind="stable")[:MOST_PARAMETERS]
    return Sampled(draws[..., worst], stats, distribution.summary.iloc[worst], draws.shape[-1])


def _thinning(sampled: Sampled) -> int:
    """Return the step at which draws are nearly independent of the one before."""
    chains, count, _ = sampled.draws.shape
    effective = sampled.summary[["ess_bulk", "ess_tail"]].to_numpy().min()
    wanted = np.ceil(chains * count / effective) if effective > 0 else 1
    return int(max(1, min(wanted, count // FEWEST_DRAWS)))


def _draw_by_arviz(
    plot: Any, sampled: Sampled, height: float, options: dict[str, Any]
) -> np.ndarray:
    """Return the Axes of one of ArviZ's pictures.

    Facets are by coordinate alone, which works with every version of ArviZ.
    """
    import xarray as xr

    index = {"chain": range(len(sampled.draws)), "draw": range(sampled.draws.shape[1])}
    names = [str(name) for name in sampled.summary.index]
    theta = xr.DataArray(sampled.draws, {**index, "coordinate": names}, (*index, "coordinate"))
    stats = xr.Dataset(
        {name: (tuple(index), value) for name, value in sampled.stats.items()}, index
    )
    groups = {"posterior": theta.to_dataset(name="theta"), "sample_stats": stats}
    tree = xr.DataTree.from_dict(groups)
    figure = {"figsize": (8.0, height), "figsize_units": "inches", "layout": "constrained"}
    colours = [COLOURS[chain % len(COLOURS)] for chain in range(max(3, len(sampled.draws)))]
    look = {"backend": "matplotlib", "figure_kwargs": figure, "color": colours}
    return np.asarray(plot(tree, **look, **options).viz["plot"].values)


def _entitle(panels: np.ndarray, sampled: Sampled) -> np.ndarray:
    """Write how many draws there are, and which parameters are shown."""
    count, total = len(sampled.summary), sampled.total
    which = f"all {total}" if count == total else f"the worst {count} of {total}"
    order = "largest R-hat first" if len(sampled.draws) > 1 else "one chain has no R-hat"
    title = f"{sampled.size}: {which} parameters, {order}"
    panels.flat[0].figure.suptitle(title, fontsize="medium")
    return panels
