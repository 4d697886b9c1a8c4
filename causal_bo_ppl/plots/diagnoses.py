"""May we believe it? Pictures of checks: of the Gaussian, of effects, of calibration and of overlap."""

from collections.abc import Sequence

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from scipy.stats import chi2, kstwo

from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.checks import FAILED, Check
from causal_bo_ppl.diagnostics.gaussian import standardized
from causal_bo_ppl.diagnostics.inputs import require_inputs, require_posterior
from causal_bo_ppl.errors import DomainError, ModelError
from causal_bo_ppl.plots.diagnoses_draws import independent_draws, quantile_band
from causal_bo_ppl.plots.effects import plain
from causal_bo_ppl.plots.posteriors import AMBER, BLUE, GREY, INK, half_width
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.problem import Problem

MOST = 20  # effects shown, the worst first
INNER = 0.99  # of the rows lie inside the ellipse, as in check_overlap


def draw_mahalanobis(post: Posterior, ax: Axes | None = None, *, level: float = 0.99, key: jax.Array | int = 0) -> Axes:
    """Draw quantiles of the draws' squared distances from the Gaussian against those of chi-square.

    Were theta_Y Gaussian, all of them would lie in the band, `level` of the time; points outside are marked. Above the
    line in the upper right: tails heavier than the Gaussian's.
    """
    require_posterior("draw_mahalanobis", post)
    half_width(level)
    theta, effective = independent_draws(post, key)
    z = standardized(post, theta)
    places, *ends = quantile_band(effective, level)
    found = np.quantile((z**2).sum(axis=1), places, method="hazen")
    expected, low, high = (chi2.ppf(each, z.shape[1]) for each in (places, *ends))
    outside = (found < low) | (found > high)
    if ax is None:
        ax = plt.figure(figsize=(4.8, 4.2), layout="constrained").add_subplot()
    ax.fill_between(expected, low, high, color=GREY, alpha=0.3, lw=0, label=f"{level:.0%} band")
    ax.plot(expected, expected, color=INK, lw=1, label="Gaussian")
    ax.plot(expected[~outside], found[~outside], ".", ms=4, color=BLUE, label="posterior, in the band")
    if outside.any():
        ax.plot(expected[outside], found[outside], ".", ms=4, color=AMBER, label="posterior, outside")
    ax.set(xlabel=f"quantile of chi-square ({z.shape[1]} degrees of freedom)", ylabel="squared Mahalanobis distance")
    ax.set_title(f"{post.method}, {post.rows} rows", fontsize="medium")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return ax


def draw_effect_errors(check: Check, ax: Axes | None = None) -> Axes:
    """Draw 90 % intervals of effects by the posterior, by Gaussian theta and by the linearized effect, side by side.

    check: of `cb.gaussian_error`. In posterior sds from the posterior mean; at most 20 effects, the worst first.
    """
    details = _details("draw_effect_errors", check, "Gaussian error")
    shown = details.loc[_errors(details).sort_values(ascending=False, kind="stable").index].head(MOST)
    half = half_width(0.9) * shown["linear_sd"]
    ends = {
        "posterior": (BLUE, shown["mean"], shown["low"], shown["high"]),
        "Gaussian theta": (AMBER, shown["gaussian_mean"], shown["gaussian_low"], shown["gaussian_high"]),
        "linearized effect": (GREY, shown["linear_mean"], shown["linear_mean"] - half, shown["linear_mean"] + half),
    }
    if ax is None:
        ax = plt.figure(figsize=(6.4, 0.42 * len(shown) + 1.5), layout="constrained").add_subplot()
    rows, scale = np.arange(len(shown)), shown["sd"].where(shown["sd"] > 0, 1.0)
    for offset, (label, (colour, *parts)) in zip((-0.22, 0.0, 0.22), ends.items(), strict=True):
        centre, low, high = (((part - shown["mean"]) / scale).to_numpy() for part in parts)
        ax.hlines(rows + offset, low, high, color=colour, lw=1.6)
        ax.plot(centre, rows + offset, "o", ms=3.5, color=colour, label=label)
    ax.set_yticks(rows, [plain(str(name)) for name in shown.index], fontsize="small")
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.set_xlabel("posterior sds from the posterior mean; 90 % intervals")
    which = "all" if len(shown) == len(details) else f"the worst {len(shown)} of"
    ax.set_title(f"{which} {len(details)} effects, largest error first", fontsize="medium")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.5 / ax.get_figure().get_figheight()))
    return ax
