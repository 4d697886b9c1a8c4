"""Did the chains of a sampled posterior explore, and do they agree?

Each function draws in a new figure. Traces and energies are ArviZ's pictures. Ranks are drawn here:
ArviZ's band depends on its version, and of two chains it holds every curve there can be.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.plots.labels import distinct
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK

if TYPE_CHECKING:
    import xarray as xr


MOST = 12  # parameters that are shown, the worst first
CHAINS = [BLUE, AMBER, "#10b981", "#a855f7", INK, GREY]  # a colour each, then from the start
SIMULATED, BLOCK = 2_000, 1_000_000  # orders that a band is made of, and numbers at once
POINTS = 200  # draws shown in a trace, which has no room for more
LEAST_DRAWS = 100  # that thinning leaves of a chain


def draw_trace(post: Posterior) -> np.ndarray:
    """Draw densities and traces of every chain, for at most 12 parameters, the largest R-hat first.

    Ticks at the bottom are divergences. Return the Axes of the densities and of the traces, an
    array of shape (k, 2).
    """
    sampled = _require_sampled("draw_trace", post)
    from arviz_plots import plot_trace_dist

    shown = _worst(sampled)
    hidden = dict.fromkeys(("label", "xlabel_trace"), False)
    options = {"compact": False, "rows": ["coordinate"], "cols": ["column"], "visuals": hidden}
    panels = _draw(plot_trace_dist, _tree(sampled, shown), (8.0, 1.1 * len(shown) + 0.7), options)
    names = distinct([str(name) for name in shown.index], 40)
    for (density, trace), name, (_, line) in zip(panels, names, shown.iterrows(), strict=True):
        density.set_title(name, fontsize="medium", loc="left")
        density.locator_params(axis="x", nbins=4)
        trace.set_title(_converged(line), fontsize="medium", loc="left")
        _lighten(trace)
    panels[-1, 0].set_xlabel("value")
    panels[-1, 1].set_xlabel("draw")
    return _entitle(panels, sampled, shown)


def draw_rank(post: Posterior) -> np.ndarray:
    """Draw how the ranks of each chain's draws depart from uniform.

    At most 12 parameters are shown, the largest R-hat first. Where chains agree, all curves of a
    panel stay within the band with probability 99 %. Draws are thinned by their effective number,
    since the band takes them as independent. Return the Axes, an array of shape (k,).
    """
    sampled = _require_sampled("draw_rank", post)
    if sampled.chains < 2:
        raise ModelError(
            "ranks compare chains, and there is only one; fit with method=cb.NUTS(chains=4)"
        )
    shown = _worst(sampled)
    every = _apart(sampled, shown)
    draws = np.concatenate([sampled.theta, sampled.stats["lp"][..., None]], axis=-1)[:, ::every]
    at = [list(sampled.summary.index).index(name) for name in shown.index]
    curves = rank_departures(draws[:, :, at])
    bound = rank_bound(sampled.chains, draws.shape[1])
    panels = _rank_panels(len(shown))
    names = distinct([str(name) for name in shown.index], 28)
    for position, (ax, name) in enumerate(zip(panels, names, strict=True)):
        ax.axhspan(-bound, bound, color=GREY, alpha=0.25, lw=0, label="99 % band")
        ranks = np.linspace(0, 1, curves.shape[1])
        for chain, curve in enumerate(curves[:, :, position]):
            colour = CHAINS[chain % len(CHAINS)]
            ax.plot(ranks, curve, color=colour, lw=1.2, label=f"chain {chain}")
        ax.axhline(0, color=GREY, lw=0.8, zorder=0)
        title = f"{name}\nR-hat {shown['r_hat'].iloc[position]:.3f}"
        ax.set_title(title, fontsize="medium", linespacing=1.4)
        ax.set_xlabel("fractional rank", fontsize="small")
    handles, labels = panels[0].get_legend_handles_labels()
    look: dict[str, Any] = {"ncols": 5, "frameon": False, "fontsize": "small"}
    panels[0].figure.legend(handles, labels, loc="outside lower center", **look)
    return _entitle(panels, sampled, shown)


def _rank_panels(count: int) -> np.ndarray:
    """Return Axes for `count` panels, at most four side by side, with one range of heights."""
    rows = -(-count // 4)
    columns = -(-count // rows)
    size = max(2.6 * columns, 5.0), 2.1 * rows + 0.9
    figure, axes = plt.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharey=True, sharex=True
    )
    for spare in axes.ravel()[count:]:
        spare.set_visible(False)
    for first in axes[:, 0]:
        first.set_ylabel("share of ranks below,\nminus uniform", fontsize="small")
    for ax in axes.ravel():
        ax.tick_params(labelsize="small", labelbottom=True)
    figure.align_ylabels()
    return np.asarray(axes.ravel()[:count])


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
    own = owners[None] == np.arange(chains)[:, None, None]
    below = np.concatenate([np.zeros((chains, 1, owners.shape[1])), own.cumsum(axis=1)], axis=1)
    total = chains * count
    return np.asarray(below / count - np.arange(total + 1)[:, None] / total)


@functools.cache
def rank_bound(chains: int, count: int, level: float = 0.99) -> float:
    """Return which departure none of the chains exceeds with probability `level`.

    All `chains` have `count` independent draws from one distribution, so that every order of the
    draws is equally likely; orders are drawn.
    """
    random, largest = np.random.default_rng(0), []
    owners = np.repeat(np.arange(chains), count)
    block = max(1, BLOCK // (chains * owners.size))
    for start in range(0, SIMULATED, block):
        orders = np.tile(owners, (min(block, SIMULATED - start), 1))
        found = _departures(random.permuted(orders, axis=1).T, chains, count)
        largest.append(np.abs(found).max(axis=(0, 1)))
    return float(np.quantile(np.concatenate(largest), level))


def draw_energy(post: Posterior) -> np.ndarray:
    """Draw E-BFMI of every chain with its limit, and how the energy and its changes spread.

    Where changes are much narrower, the tails are explored slowly. Return the Axes, an array of
    shape (2,).
    """
    sampled = _require_sampled("draw_energy", post)
    from arviz_plots import plot_energy

    limit, options = Limits().bfmi, {"visuals": {"legend": False, "title": False, "ylabel": False}}
    tree = _tree(sampled, _worst(sampled))
    chains, energy = panels = _draw(plot_energy, tree, (8.0, 2.8), {"threshold": limit} | options)
    chains.set_title("E-BFMI", fontsize="medium")
    chains.set(ylabel="chain", yticks=range(sampled.chains))
    chains.margins(y=0.2)
    chains.set_xlabel(f"below {limit:g}: too slow", fontsize="small")
    energy.set_title("energy", fontsize="medium")
    energy.set_xlabel("from its mean", fontsize="small")
    energy.legend(energy.lines, ["draws", "from draw to draw"], frameon=False, fontsize="small")
    size = f"{sampled.chains} x {sampled.draws} draws"
    energy.figure.suptitle(f"{size}: does the sampler reach the tails?", fontsize="medium")
    return panels


class Sampled(NamedTuple):
    """The chains of a posterior: theta (chains, n, d), statistics (chains, n) and their summary."""

    theta: np.ndarray
    stats: dict[str, np.ndarray]
    summary: pd.DataFrame

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return len(self.theta)

    @property
    def draws(self) -> int:
        """How many draws each chain has."""
        return int(self.theta.shape[1])


def _require_sampled(who: str, post: Posterior) -> Sampled:
    """Return the chains of a posterior that was sampled; refuse any other."""
    require_posterior(who, post)
    distribution = post.distribution
    stats = {} if distribution.chains is None else distribution.drawn(None, jax.random.key(0)).stats
    if distribution.chains is None or distribution.summary is None or "lp" not in stats:
        raise ModelError(
            f"{who} shows chains, but nothing was sampled by {post.method}; "
            "fit with method='nuts', or look at cb.check_posterior(post)"
        )
    return Sampled(distribution.chains, stats, distribution.summary)


def _worst(sampled: Sampled) -> pd.DataFrame:
    """Return the rows of the summary that are shown, largest R-hat first.

    They are coordinates and the log posterior; NaN counts as the worst.
    """
    worst = sampled.summary.sort_values(
        "r_hat", ascending=False, na_position="first", kind="stable"
    )
    return worst.head(MOST)


def _apart(sampled: Sampled, shown: pd.DataFrame) -> int:
    """Return the step at which draws are nearly independent of the one before."""
    effective = shown[["ess_bulk", "ess_tail"]].to_numpy().min()
    wanted = np.ceil(sampled.chains * sampled.draws / effective) if effective > 0 else 1
    return int(max(1, min(wanted, sampled.draws // LEAST_DRAWS)))


def _tree(sampled: Sampled, shown: pd.DataFrame) -> "xr.DataTree":
    """Return what ArviZ needs and no more: these draws, and the sampler's statistics."""
    import xarray as xr

    stats = sampled.stats
    draws = np.concatenate([sampled.theta, stats["lp"][..., None]], axis=-1)
    at = {name: range(size) for name, size in zip(("chain", "draw"), draws.shape, strict=False)}
    names = [str(name) for name in sampled.summary.index]
    theta = xr.DataArray(draws, {**at, "coordinate": names}, ("chain", "draw", "coordinate"))
    sampler = xr.Dataset({name: (("chain", "draw"), value) for name, value in stats.items()}, at)
    posterior = theta.sel(coordinate=[str(name) for name in shown.index]).to_dataset(name="theta")
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": sampler})


def _draw(
    plot: Any, tree: "xr.DataTree", size: tuple[float, float], options: dict[str, Any]
) -> np.ndarray:
    """Return the Axes of one of ArviZ's pictures.

    Facets are by coordinate alone, which works with every version of ArviZ.
    """
    figure = {"figsize": size, "figsize_units": "inches", "layout": "constrained"}
    colours = [
        CHAINS[position % len(CHAINS)]
        for position in range(max(3, tree["posterior"].sizes["chain"]))
    ]
    picture = plot(tree, backend="matplotlib", figure_kwargs=figure, color=colours, **options)
    return np.asarray(picture.viz["plot"].values)


def _lighten(trace: Axes) -> None:
    """Thin the lines of a trace to every so-many-th draw; divergences stay."""
    for chain in trace.lines:
        every = -(-len(np.asarray(chain.get_xdata())) // POINTS)
        chain.set(data=[np.asarray(values)[::every] for values in chain.get_data()])
        chain.set(linewidth=0.7, antialiased=False)  # which halves the size of a file


def _converged(line: pd.Series) -> str:
    """Return the R-hat and the effective number of draws as a title."""
    return (
        f"R-hat {line['r_hat']:.3f}, {min(line['ess_bulk'], line['ess_tail']):.0f} effective draws"
    )


def _entitle(panels: np.ndarray, sampled: Sampled, shown: pd.DataFrame) -> np.ndarray:
    """Say how long was drawn, and which parameters are shown."""
    count, total = len(shown), len(sampled.summary)
    which = (
        f"all {total} parameters" if count == total else f"the worst {count} of {total} parameters"
    )
    order = "largest R-hat first" if sampled.chains > 1 else "one chain has no R-hat"
    size = f"{sampled.chains} x {sampled.draws} draws"
    panels.flat[0].figure.suptitle(f"{size}: {which}, {order}", fontsize="medium")
    return panels
