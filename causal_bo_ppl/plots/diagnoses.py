"""May we believe the intervals, and do the interventions lie where rows are?"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from scipy.stats import kstwo

from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics import Check
from causal_bo_ppl.diagnostics.checks import FAILED
from causal_bo_ppl.diagnostics.inputs import require_inputs
from causal_bo_ppl.errors import DataError, DomainError
from causal_bo_ppl.plots.diagnoses_gaussian import require_details
from causal_bo_ppl.plots.effects import plain
from causal_bo_ppl.plots.posteriors import AMBER, BLUE, GREY, INK, half_width
from causal_bo_ppl.problem import Problem

INNER = 0.99  # of the rows lie inside the ellipse, as in check_overlap
FLAT = 1e-9  # rows narrower than this, relative to their length, lie on a line


def draw_calibration(check: Check, ax: Axes | None = None, *, level: float = 0.99) -> Axes:
    """Draw how the places of true effects among posterior draws depart from uniform, a curve for each effect.

    check: of `cb.calibrate`. Above 0 on the left and below on the right: intervals are too narrow; the other way round:
    too wide. All above: effects are believed too high. All curves stay in the band with probability `level` (at least);
    a curve leaves that of 99 % where uniformity fails at alpha = 0.01.
    """
    places = require_details("draw_calibration", check, "calibration", "cb.calibrate")
    half_width(level)  # refuses 99
    count, effects = places.shape
    bound = kstwo.isf((1 - level) / effects, count)
    if ax is None:
        ax = plt.figure(figsize=(5.6, 3.8), layout="constrained").add_subplot()
    ax.axhspan(-bound, bound, color=GREY, alpha=0.3, lw=0, label=f"{100 * level:g} % band")
    ax.axhline(0, color=INK, lw=0.8)
    failed = (check.table["verdict"] == FAILED).to_numpy()
    for chosen, colour, word in ((~failed, BLUE, "passed"), (failed, AMBER, "failed")):
        for order, name in enumerate(places.columns[chosen]):
            at = np.concatenate([[0.0], np.sort(places[name].to_numpy()).repeat(2), [1.0]])
            steps = (np.arange(count + 1) / count).repeat(2)
            label = f"_{name}" if order else f"effects that {word}: {chosen.sum()} of {effects}"
            ax.plot(at, steps - at, color=colour, lw=1, alpha=0.8, label=label)
    ax.set(
        xlabel="place of the true effect in its posterior", ylabel="share of places below, minus uniform", xlim=(0, 1)
    )
    low, high = check.table["coverage"].min(), check.table["coverage"].max()
    ax.set_title(f"{count} data sets: 90 % intervals hold the truth in {low:.0%} to {high:.0%}", fontsize="medium")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize="small")
    return ax


def draw_overlap(problem: Problem, data: Data, names: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw the rows of two variables, the box they may be set in, and the ellipse around 99 % of the rows.

    The corner farthest from the rows is marked. The title says how far out it lies: the `reach` of `cb.check_overlap`
    for the set of these two, where both act on the target.
    """
    require_inputs("draw_overlap", problem, data)
    pair = _require_pair(problem, data, names)
    values = np.stack([data.column(name) for name in pair], axis=1)
    low, high = np.array([problem.domains[name] for name in pair]).T
    is_set = data.intervened[:, [problem.graph.index(name) for name in pair]].any(axis=1)
    if ax is None:
        ax = plt.figure(figsize=(5.2, 4.4), layout="constrained").add_subplot()
    for chosen, colour, label in ((~is_set, GREY, "rows, observed"), (is_set, AMBER, "rows that set one of the two")):
        if chosen.any():
            ax.plot(*values[chosen].T, ".", color=colour, ms=4, alpha=0.6, label=label)
    ax.add_patch(Rectangle((low[0], low[1]), *(high - low), fill=False, ec=BLUE, lw=1.4, label="may be set"))
    ax.set_title(_surround(ax, values, np.stack([low, high], axis=1)), fontsize="medium")
    ax.margins(0.08)
    ax.set(xlabel=plain(problem.label(pair[0])), ylabel=plain(problem.label(pair[1])))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize="small")
    return ax


def _require_pair(problem: Problem, data: Data, names: Sequence[str]) -> tuple[str, str]:
    pair = tuple(names)
    if isinstance(names, str) or len(pair) != 2 or pair[0] == pair[1]:
        raise DomainError(f"draw_overlap needs two variables, such as ('A', 'B'); got {names!r}")
    for name in pair:
        if name not in problem.domains:
            raise DomainError(f"{name!r} may not be set; choose two of {', '.join(problem.manipulable)}")
    if len(data) < 3:
        raise DataError(f"an ellipse needs at least 3 rows, got {len(data)}; observe some more")
    return pair


def _surround(ax: Axes, values: np.ndarray, box: np.ndarray) -> str:
    """Draw the ellipse around rows (n, 2) and mark the corner of the box (2, 2) farthest out; how far, in words."""
    centre, unit = values.mean(axis=0), np.where(np.ptp(values, axis=0) > 0, values.std(axis=0), 1.0)
    scaled = (values - centre) / unit
    _, sizes, directions = np.linalg.svd(scaled / np.sqrt(len(values)), full_matrices=False)
    if not sizes[1] > FLAT * sizes[0]:
        return "the rows lie on a line: no box overlaps with them"
    whiten = directions.T / sizes
    inner = np.quantile(np.linalg.norm(scaled @ whiten, axis=1), INNER)
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = inner * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    ax.plot(*(centre + unit * (circle * sizes @ directions)).T, color=INK, lw=1.2, label="around 99 % of the rows")
    corners = np.stack(np.meshgrid(*box), axis=-1).reshape(-1, 2)
    reaches = np.linalg.norm((corners - centre) / unit @ whiten, axis=1) / inner
    ax.plot(*corners[reaches.argmax()], "x", color=BLUE, ms=8, mew=2, label="farthest corner")
    return f"the farthest corner lies {reaches.max():.2g} times as far out as 99 % of the rows"
