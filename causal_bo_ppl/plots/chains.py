"""Did the chains of a sampled posterior explore, and do they agree?

Each function draws one of ArviZ's pictures in a new figure.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from causal_bo_ppl.diagnostics.convergence import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Limits, Posterior
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK, plain

if TYPE_CHECKING:
    import xarray as xr


MOST = 12  # parameters that are shown, the worst first
CHAINS = [BLUE, AMBER, "#10b981", "#a855f7", INK, GREY]  # a colour each, then from the start
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
    for (density, trace), (name, line) in zip(panels, shown.iterrows(), strict=True):
        density.set_title(plain(str(name)), fontsize="medium", loc="left")
        density.locator_params(axis="x", nbins=5)
        trace.set_title(_converged(line), fontsize="medium", loc="left")
        _lighten(trace)
    panels[-1, 0].set_xlabel("value")
    panels[-1, 1].set_xlabel("draw")
    return _entitle(panels, sampled, shown)


def draw_rank(post: Posterior) -> np.ndarray:
    """Draw how the ranks of each chain's draws depart from uniform.

    At most 12 parameters are shown, the largest R-hat first. Chains that agree stay within the band
    (with ArviZ 1: have a p-value above alpha). Draws are thinned by their effective number, since
    the band takes them as independent. Return the Axes, an array of shape (k,).
    """
    sampled = _require_sampled("draw_rank", post)
    if sampled.chains < 2:
        raise ModelError(
            "ranks compare chains, and there is only one; fit with method=cb.NUTS(chains=4)"
        )
    from arviz_plots import plot_rank

    shown = _worst(sampled)
    rows = -(-len(shown) // 4)
    columns = -(-len(shown) // rows)
    options = {
        "cols": ["coordinate"],
        "col_wrap": columns,
        "visuals": {"title": False, "xlabel": False},
    }
    tree = _tree(sampled, shown, every=_apart(sampled, shown))
    panels = _draw(plot_rank, tree, (max(2.6 * columns, 5.0), 2.3 * rows + 0.6), options)
    for ax, (name, line) in zip(panels, shown.iterrows(), strict=True):
        ax.axhline(0, color=GREY, lw=0.8, zorder=0)
        ax.set_title(
            f"{plain(str(name))}\nR-hat {line['r_hat']:.3f}", fontsize="medium", linespacing=1.4
        )
        ax.set_xlabel("fractional rank", fontsize="small")
    return _entitle(panels, sampled, shown)


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
    belief = post.belief
    stats = {} if belief.chains is None else belief.drawn(None, jax.random.key(0)).stats
    if belief.chains is None or belief.summary is None or "lp" not in stats:
        raise ModelError(
            f"{who} shows chains, but nothing was sampled by {post.method}; "
            "fit with method='nuts', or look at cb.check_posterior(post)"
        )
    return Sampled(belief.chains, stats, belief.summary)


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


def _tree(sampled: Sampled, shown: pd.DataFrame, every: int = 1) -> "xr.DataTree":
    """Return what ArviZ needs and no more: these draws, and the sampler's statistics."""
    import xarray as xr

    stats = {name: value[:, ::every] for name, value in sampled.stats.items()}
    draws = np.concatenate([sampled.theta[:, ::every], stats["lp"][..., None]], axis=-1)
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
        CHAINS[place % len(CHAINS)] for place in range(max(3, tree["posterior"].sizes["chain"]))
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
