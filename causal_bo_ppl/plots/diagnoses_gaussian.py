"""How far is a posterior from the Gaussian that it is taken for?"""

from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import beta, chi2

from causal_bo_ppl.diagnostics import Check
from causal_bo_ppl.diagnostics.gaussian import standardized
from causal_bo_ppl.diagnostics.importance import PROPOSALS, resampled
from causal_bo_ppl.diagnostics.inputs import require_posterior
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.keys import as_key
from causal_bo_ppl.plots.effects import plain
from causal_bo_ppl.plots.posteriors import AMBER, BLUE, GREY, INK, half_width
from causal_bo_ppl.posterior import Posterior
from causal_bo_ppl.posterior.laplace import Laplace
from causal_bo_ppl.posterior.verdict import summarise

DRAWS = 4_000
MOST = 20  # effects shown, the worst first
POINTS, LARGEST = 100, 50  # quantiles shown: evenly spaced ones, and all of the largest
SIMULATED = 4_000  # samples that a band is made from: its 1 % is known to 0.16 %


class Band(NamedTuple):
    """Probabilities (k,) of quantiles, and the probabilities between which they stay."""

    place: np.ndarray
    low: np.ndarray
    high: np.ndarray


def draw_mahalanobis(post: Posterior, ax: Axes | None = None, *, level: float = 0.99, key: jax.Array | int = 0) -> Axes:
    """Draw quantiles of the draws' squared distances from the Gaussian against those of chi-square.

    Were theta_Y Gaussian, all points together would lie in the band with probability `level`; those outside are marked.
    Above the line in the upper right: tails heavier than the Gaussian's.
    """
    require_posterior("draw_mahalanobis", post)
    half_width(level)  # refuses 99
    squares, degrees, effective = _squares(post, as_key(key))
    band = quantile_band(effective, level)
    found = np.quantile(squares, band.place, method="hazen")
    expected, low, high = (chi2.ppf(each, degrees) for each in band)
    outside = (found < low) | (found > high)
    if ax is None:
        ax = plt.figure(figsize=(4.8, 4.2), layout="constrained").add_subplot()
    ax.fill_between(expected, low, high, color=GREY, alpha=0.3, lw=0, label=f"{100 * level:g} % band")
    ax.plot(expected, expected, color=INK, lw=0.8, label="a Gaussian")
    for chosen, colour, label in ((~outside, BLUE, "draws, in the band"), (outside, AMBER, "draws, outside")):
        if chosen.any():
            ax.plot(expected[chosen], found[chosen], "o", ms=2.5, color=colour, label=label)
    ax.set(xlabel=f"quantile of chi-square, {degrees} degrees of freedom", ylabel="squared Mahalanobis distance")
    ax.set_title(f"{post.method}, {post.rows} rows", fontsize="medium")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return ax


def _squares(post: Posterior, key: jax.Array) -> tuple[np.ndarray, int, int]:
    """Squared distances (n,) of draws, their degrees of freedom, and how many independent ones they are worth."""
    if isinstance(post.belief, Laplace):  # its own draws are Gaussian: those of the density it stands for
        theta, weights = resampled(post.belief, DRAWS, key)
        z = standardized(post, theta)
        return (z**2).sum(axis=1), z.shape[1], int(DRAWS * (1 - weights.lost) / (1 + 1 / PROPOSALS))
    drawn = post.belief.drawn(DRAWS, key)
    z = standardized(post, drawn.theta)
    squares, effective = (z**2).sum(axis=1), len(z)
    if drawn.stats:
        line = summarise(squares.reshape(drawn.chains, -1, 1), ("distance",))
        effective = min(effective, int(line[["ess_bulk", "ess_tail"]].to_numpy().min()))
    squares = squares[np.isfinite(squares)]
    return squares, z.shape[1], max(1, min(effective, len(squares)))


def quantile_band(count: int, level: float) -> Band:
    """Where quantiles of `count` independent draws stay, all at once with probability `level`.

    Order statistics of uniform draws are Beta; the level of each is the same, and found by simulation from gaps between
    them, which are Gamma.
    """
    ranks = np.concatenate([np.linspace(1, count, POINTS), count - np.arange(LARGEST)])
    ranks = np.unique(ranks.clip(1).astype(int))
    gaps = np.diff([0, *ranks, count + 1])
    sums = np.random.default_rng(0).standard_gamma(gaps, (SIMULATED, len(gaps))).cumsum(axis=1)
    below = beta.cdf(sums[:, :-1] / sums[:, -1:], ranks, count + 1 - ranks)
    local = np.quantile(np.minimum(below, 1 - below).min(axis=1), 1 - level)
    low, high = (np.asarray(end(local, ranks, count + 1 - ranks)) for end in (beta.ppf, beta.isf))
    return Band((ranks - 0.5) / count, low, high)


def draw_effect_errors(check: Check, ax: Axes | None = None) -> Axes:
    """Draw 90 % intervals of effects: by the posterior, by Gaussian theta, and by the linearized effect.

    check: of `cb.gaussian_error`. At most 20 effects, the largest error first, in posterior sds from their mean.
    """
    details = require_details("draw_effect_errors", check, "Gaussian error", "cb.gaussian_error")
    scaled = _scaled(details)
    shown = scaled.loc[_gaps(scaled).sort_values(ascending=False, kind="stable").index].head(MOST)
    if ax is None:
        ax = plt.figure(figsize=(6.4, 0.4 * len(shown) + 1.5), layout="constrained").add_subplot()
    rows = np.arange(len(shown))
    kinds = {"": ("posterior", BLUE), "gaussian_": ("Gaussian theta", AMBER), "linear_": ("linearized effect", INK)}
    for offset, (kind, (label, colour)) in zip((-0.24, 0.0, 0.24), kinds.items(), strict=True):
        ax.hlines(rows + offset, shown[f"{kind}low"], shown[f"{kind}high"], color=colour, lw=1.6)
        ax.plot(shown[f"{kind}mean"], rows + offset, "o", ms=3.5, color=colour, label=label)
    ax.set_yticks(rows, [plain(str(name)) for name in shown.index], fontsize="small")
    ax.set(xlabel="posterior sds from the posterior mean; 90 % intervals", ylim=(len(shown) - 0.5, -0.5))
    which = f"the worst {len(shown)} of" if len(shown) < len(details) else "all"
    ax.set_title(f"{which} {len(details)} effects, largest error first", fontsize="medium", pad=24)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize="small")
    return ax


def _scaled(details: pd.DataFrame) -> pd.DataFrame:
    """Means and interval ends in posterior sds from the posterior mean; an effect without an sd in its own units."""
    half = half_width(0.9) * details["linear_sd"]
    found = details.assign(linear_low=details["linear_mean"] - half, linear_high=details["linear_mean"] + half)
    ends = [name for name in found.columns if not name.endswith("sd")]
    return found[ends].sub(details["mean"], axis=0).div(details["sd"].where(details["sd"] > 0, 1.0), axis=0)


def _gaps(scaled: pd.DataFrame) -> pd.Series:
    """(M,) how far a mean or an end of an interval is from the posterior's, at most."""
    parts = [
        (scaled[kind + end] - scaled[end]).abs() for kind in ("gaussian_", "linear_") for end in ("mean", "low", "high")
    ]
    return pd.concat(parts, axis=1).max(axis=1)


def require_details(who: str, check: Check, name: str, maker: str) -> pd.DataFrame:
    """Return the details of a check if it is of the kind that has them."""
    if not isinstance(check, Check) or check.name != name or check.details is None:
        got = f"the check {check.name!r}" if isinstance(check, Check) else type(check).__name__
        raise ModelError(f"{who} needs the result of {maker}, got {got}")
    return check.details
