"""What can be learned, through what, and what confounding would have made of it?"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from causal_bo_ppl.data import Data
from causal_bo_ppl.drawing import DASHED, GREY
from causal_bo_ppl.errors import DataError, DomainError, listed
from causal_bo_ppl.identification import Identification, Parameters
from causal_bo_ppl.plots.graphs import DASHES, draw_graph
from causal_bo_ppl.problem import COLOURS

HEDGE = "#fde68a"
USED = ListedColormap(["#f1f5f9", "#2563eb"])
MOST_LABELS = 45  # rows with a label each; above, every second, third, ...


def draw_sharing(parameters: Parameters, ax: Axes | None = None) -> Axes:
    """Draw which intervention set (row) uses which coordinate of theta_Y (column): what one experiment shares."""
    table = parameters.sharing()
    rows, columns = table.shape
    if ax is None:
        size = max(4.0, 0.28 * columns + 2.0), min(max(2.5, 0.2 * rows + 1.6), 9.0)
        ax = plt.figure(figsize=size, layout="constrained").add_subplot()
    ax.pcolormesh(table.to_numpy(), cmap=USED, vmin=0, vmax=1, edgecolors="white", linewidth=0.5 if rows < 100 else 0)
    every = -(-rows // MOST_LABELS)
    ax.set_xticks(np.arange(columns) + 0.5, [plain(name) for name in table.columns], rotation=90, fontsize="small")
    labels = [plain(str(name)) for name in table.index[::every]]
    ax.set_yticks(np.arange(0, rows, every) + 0.5, labels, fontsize="x-small")
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel=f"coordinates of theta ({parameters.kind})", ylabel=f"intervention set ({rows})")
    ax.set_title(f"dimension {parameters.dimension}, generic rank {parameters.rank}", fontsize="medium")
    return ax


def draw_identification(found: Identification, ax: Axes | None = None) -> Axes:
    """Draw the graph of an effect; where it cannot be learned, the confounded component is marked."""
    fills = {name: HEDGE for district in found.hedge[:1] for name in district}
    fills |= dict.fromkeys(found.intervened, COLOURS["manipulable"]) | {found.target: COLOURS["target"]}
    ax = draw_graph(found.graph, ax, fills=fills)
    keys: list[Artist] = [
        Patch(facecolor=COLOURS["target"], edgecolor=GREY, label="target"),
        Patch(facecolor=COLOURS["manipulable"], edgecolor=GREY, label="intervened"),
    ]
    if found.graph.bidirected:
        keys.append(Line2D([], [], color=DASHED, ls=DASHES, label="latent cause"))
    if HEDGE in fills.values():
        keys.append(Patch(facecolor=HEDGE, edgecolor=GREY, label="rest of the hedge"))
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, fontsize="small")
    verdict = f"identifiable ({found.route})" if found.identifiable else "not identifiable"
    ax.set_title(plain(f"{found.query}: {verdict}"), fontsize="medium")
    return ax


def draw_effect(
    found: Identification,
    data: Data,
    ax: Axes | None = None,
    *,
    truth: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Axes:
    """Draw E[Y | do(X = x)] by the verified estimand beside the regression E[Y | X = x], with the rows.

    For a set of one variable; the Gaussian model with the moments of the observational rows. `truth` maps values
    to true effects.
    """
    if len(found.intervened) != 1:
        raise DomainError(f"a line needs a set of one variable, got {{{', '.join(found.intervened)}}}")
    if not found.identifiable:
        raise found.not_identifiable()
    if data.nodes != found.graph.nodes:
        raise DataError(f"the rows are of {listed(data.nodes)}, the effect is on {listed(found.graph.nodes)}")
    rows = np.asarray(data.values)[~np.asarray(data.intervened).any(axis=1)]
    name, (x, y) = found.intervened[0], (found.graph.index(v) for v in (found.intervened[0], found.target))
    mean, covariance = rows.mean(axis=0), np.cov(rows.T)
    ends = np.array([rows[:, x].min(), rows[:, x].max()])
    if ax is None:
        ax = plt.figure(figsize=(5.2, 4.0), layout="constrained").add_subplot()
    ax.plot(rows[:, x], rows[:, y], ".", color="#94a3b8", ms=3, alpha=0.5, label="observed rows")
    regression = mean[y] + covariance[x, y] / covariance[x, x] * (ends - mean[x])
    ax.plot(ends, regression, color="#f59e0b", label=plain(f"regression E[{found.target} | {name}]"))
    learned = [found.evaluate(covariance, mean, {name: float(end)}) for end in ends]
    ax.plot(ends, learned, color="#2563eb", label=plain(f"estimand E[{found.target} | do({name})]"))
    if truth is not None:
        fine = np.linspace(ends[0], ends[1], 100)
        ax.plot(fine, truth(fine), "--", color="#0f172a", label="truth")
    ax.set(xlabel=plain(name), ylabel=plain(found.target))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False, fontsize="small")
    return ax


def plain(text: str) -> str:
    """A dollar in a name is a dollar, not mathematics."""
    return text.replace("$", r"\$")
