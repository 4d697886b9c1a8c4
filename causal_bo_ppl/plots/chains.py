"""Did the chains of a sampled posterior explore, and do they agree?

Each function draws in a new figure. Traces and energies are ArviZ's pictures. Ranks are drawn here:
ArviZ's band depends on its version, and for two chains that of ArviZ 0.8 holds every curve there
can be.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import PosteriorError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import COLOURS, GREY

MOST_PARAMETERS = 12  # parameters that are shown, the largest R-hat first
SIMULATED_ORDERS = 2_000  # orders of draws that a band is made from
MOST_NUMBERS_AT_ONCE = 1_000_000  # numbers of simulated orders held in memory
MOST_TRACE_POINTS = 200  # draws shown in a trace, which cannot show more
FEWEST_DRAWS = 100  # draws of a chain that thinning keeps


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
    panels = _draw(plot_trace_dist, sampled, 1.1 * len(sampled.summary) + 0.7, options)
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
    chains, energy = panels = _draw(plot_energy, sampled, 2.8, options)
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


def _draw(plot: Any, sampled: Sampled, height: float, options: dict[str, Any]) -> np.ndarray:
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
