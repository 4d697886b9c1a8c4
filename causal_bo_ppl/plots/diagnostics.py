"""Do intervals cover, is the posterior Gaussian, what does the prior predict, where are data?"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from scipy.stats import beta, chi2, kstwo

from causal_bo_ppl.checks import FAILED, Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.diagnostics.gaussian import standardized
from causal_bo_ppl.diagnostics.prior_predictive import FAR, predict_from_prior, share_beyond
from causal_bo_ppl.errors import ArgumentError, DataError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import summarise
from causal_bo_ppl.inference.posterior import require_inputs, require_posterior
from causal_bo_ppl.inference.potentials import PROPOSALS_PER_DRAW
from causal_bo_ppl.inputs import as_key, offered, read_count, read_share
from causal_bo_ppl.mechanisms import Choice
from causal_bo_ppl.mechanisms.base import Prior
from causal_bo_ppl.plots import style
from causal_bo_ppl.plots.style import AMBER, BLUE, GREY, INK
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import evaluate_rule, rule_name

DISTANCE_DRAWS = 4_000  # draws whose distances from the Gaussian are shown
MOST_EFFECTS = 20  # effects that are shown, the worst first
EVEN_QUANTILES, LARGEST_QUANTILES = 100, 50  # evenly spaced ones, and all of the largest
SIMULATED_SAMPLES = 4_000  # samples that a band is made from: its 1 % is known to 0.16 %
INNER_SHARE = 0.99  # of the observations lie inside the ellipse, as in check_overlap
GRID_TICKS = 121  # values of each variable at which constraints are evaluated
SIMULATED_SETS = 400  # data sets that shares of predictions are of
MOST_VARIABLES = 6  # whose predictions are drawn by default
MOST_STEPS = 100  # values of a data set that are drawn
FINITE = (-1e200, 1e200)  # predictions beyond are drawn at these
EXCLUDED_P = 1e-3  # of the coefficient that another model omits
NARROWEST_ELLIPSE = 1e-9  # width over length below which observations lie on a line


def draw_mahalanobis(
    post: Posterior, ax: Axes | None = None, *, level: float = 0.99, key: jax.Array | int = 0
) -> Axes:
    """Draw quantiles of the draws' squared distances from the Gaussian against those of chi-square.

    Were theta_Y Gaussian, all points together would lie in the band with probability `level`; those
    outside are marked. Points above the line in the upper right mean tails heavier than the
    Gaussian's.

    Parameters
    ----------
    post:
        A posterior by any method.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the band.
    key:
        For the draws.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If `post` is not a posterior, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> cb.plots.draw_mahalanobis(post).get_title()
    'is theta Gaussian? conjugate, 50 observations'
    """
    require_posterior("draw_mahalanobis", post)
    squares, degrees, effective = _squares(post, as_key(key))
    shares, *ends = quantile_band(effective, read_share("level", level))
    quantiles = np.quantile(squares, shares, method="hazen")
    expected, low, high = (chi2.ppf(each, degrees) for each in (shares, *ends))
    outside = (quantiles < low) | (quantiles > high)
    ax = ax or style.new_axes(4.8, 4.6)
    label = f"{100 * level:g} % band"
    style.shade(ax, expected, low, high, GREY, alpha=0.3, label=label)
    ax.plot(expected, expected, color=INK, lw=0.8, label="a Gaussian")
    for chosen, colour, where in ((~outside, BLUE, "in the band"), (outside, AMBER, "outside")):
        if chosen.any():
            look: dict[str, Any] = {"ms": 2.5, "color": colour, "label": f"draws, {where}"}
            ax.plot(expected[chosen], quantiles[chosen], "o", **look)
    title = f"is theta Gaussian? {post.method}, {post.n_observations} observations"
    label = f"quantile of chi-square, {degrees} degrees of freedom"
    return style.finish(ax, title, label, "squared Mahalanobis distance")


def _squares(post: Posterior, key: jax.Array) -> tuple[np.ndarray, int, int]:
    """Return squared distances of draws (n,), their degrees of freedom and effective sample size.

    The effective sample size is the number of independent draws with the same information.
    """
    resampled = offered(post.distribution, "resampled")
    if resampled is not None:
        # Draws of an approximation are Gaussian; take those of the density that it approximates.
        theta, weights = resampled(DISTANCE_DRAWS, key)
        z = standardized(post, theta)
        effective = int(DISTANCE_DRAWS * (1 - weights.lost) / (1 + 1 / PROPOSALS_PER_DRAW))
        return (z**2).sum(axis=1), z.shape[1], effective
    drawn = post.distribution.drawn(DISTANCE_DRAWS, key)
    z = standardized(post, drawn.theta)
    squares, effective = (z**2).sum(axis=1), len(z)
    if post.distribution.chains is not None:
        line = summarise(squares.reshape(drawn.chains, -1, 1), ("distance",))
        effective = min(effective, int(line[["ess_bulk", "ess_tail"]].to_numpy().min()))
    squares = squares[np.isfinite(squares)]
    return squares, z.shape[1], max(1, min(effective, len(squares)))


def quantile_band(count: int, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the simultaneous band of quantiles of `count` independent draws.

    All quantiles together stay between its ends with probability `level`. Order statistics of
    uniform draws are Beta. The level of each is the same, and found by simulation from the gaps
    between them, which are Gamma. Returns the probabilities of the quantiles and of the lower and
    upper ends of the band, (k,) each.
    """
    even = np.linspace(1, count, EVEN_QUANTILES)
    ranks = np.concatenate([even, count - np.arange(LARGEST_QUANTILES)])
    ranks = np.unique(ranks.clip(1).astype(int))
    gaps = np.diff([0, *ranks, count + 1])
    size = SIMULATED_SAMPLES, len(gaps)
    sums = np.random.default_rng(0).standard_gamma(gaps, size).cumsum(axis=1)
    below = beta.cdf(sums[:, :-1] / sums[:, -1:], ranks, count + 1 - ranks)
    local = np.quantile(np.minimum(below, 1 - below).min(axis=1), 1 - level)
    low, high = (np.asarray(end(local, ranks, count + 1 - ranks)) for end in (beta.ppf, beta.isf))
    return (ranks - 0.5) / count, low, high


def draw_prior_predictive(
    given: Posterior | Problem,
    data: Data | None = None,
    axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    *,
    mechanisms: Choice | None = None,
    prior: Prior | None = None,
    variables: Sequence[str] | None = None,
    n: int = 50,
    key: jax.Array | int = 0,
) -> np.ndarray:
    """Draw the distributions of data sets that the prior predicts, beside the observations.

    Each line is the cumulative share of the values of one data set, drawn as in
    `cb.diagnostics.check_prior_predictive`; steep lines far from each other mean that the prior is
    vague about where a variable lies, flat ones that it is vague about its spread. The horizontal
    axis is stretched around the observations (by the arcsinh), so that predictions of any size are
    seen beside them; shaded at both sides is what lies more than 10 observed ranges outside.

    Parameters
    ----------
    given, data, mechanisms, prior:
        A posterior, or a problem and what `cb.fit` would take.
    axes:
        Where to draw, an Axes for each variable; by default a new figure.
    variables:
        The variables that are drawn; by default the target and up to five before it.
    n:
        How many data sets are drawn.
    key:
        For these data sets.

    Returns
    -------
    numpy.ndarray
        The Axes, one for each variable.

    Raises
    ------
    PosteriorError
        If nothing can be drawn from the prior.
    DataError
        If no variable whose mechanism is learned varies in the observations.
    ArgumentError
        If a variable has no predictions, or the number of Axes is wrong.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> panels = cb.plots.draw_prior_predictive(chain.problem, chain.observe(50, 0))
    >>> [ax.get_xlabel() for ax in panels]
    ['Z', 'Y']
    """
    caller, count = "draw_prior_predictive", read_count("n", n, 1)
    draws = max(count, SIMULATED_SETS)
    found = predict_from_prior(caller, given, data, mechanisms, prior, draws, as_key(key))
    varying = [name for name, values in found.observed.items() if np.ptp(values) > 0]
    chosen = varying[-MOST_VARIABLES:] if variables is None else list(variables)
    if not varying:
        raise DataError(f"{caller}: no variable whose mechanism is learned varies in these data")
    if not chosen or not set(chosen) <= set(varying):
        raise ArgumentError(
            f"variables must be some of {listed(varying, most=8)}, which are predicted; got "
            f"{variables!r}"
        )
    problem = given.problem if isinstance(given, Posterior) else given
    panels = style.panel_axes(caller, axes, chosen, most_columns=3, panel=(3.2, 2.5), below=1.1)
    if axes is None:
        title = f"{count} data sets that {type(found.prior).__name__} predicts"
        panels[0].figure.suptitle(title, fontsize="medium")
    for ax, name in zip(panels, chosen, strict=True):
        observed, predicted = found.observed[name], found.predicted[name]
        _draw_shares(ax, observed, predicted[:count])
        beyond = share_beyond(observed, predicted, FAR)
        ax.set_title(f"{beyond:.0%} far outside", fontsize="small")
        ax.set(xlabel=style.folded(problem.label(name)), ylim=(0, 1), yticks=[0, 0.5, 1])
    panels[0].set_ylabel("cumulative share")
    return style.legend_of_panels(panels, 3)


def _draw_shares(ax: Axes, observed: np.ndarray, predicted: np.ndarray) -> None:
    """Draw cumulative shares of observations (m,) and of predicted data sets (s, m)."""
    low, high = observed.min(), observed.max()
    middle, half = (low + high) / 2, (high - low) / 2

    def stretch(values: Any) -> np.ndarray:
        return np.asarray(np.arcsinh((np.asarray(values, float) - middle) / half))

    shares = np.linspace(0.0, 1.0, min(len(observed), MOST_STEPS))
    finite = np.clip(np.nan_to_num(predicted, nan=np.finfo(float).max), *FINITE)
    lines = stretch(np.quantile(finite, shares, axis=1))
    look: dict[str, Any] = {"color": BLUE, "lw": 0.7, "alpha": 0.4}
    ax.plot(lines, np.broadcast_to(shares[:, None], lines.shape), **look)[0].set_label(
        "a predicted data set"
    )
    own = stretch(np.quantile(observed, shares))
    ax.plot(own, shares, color=INK, lw=2, label="observations", zorder=3)
    end = max(float(np.quantile(np.abs(lines), 0.995)), float(stretch(middle + 4 * half))) * 1.05
    ax.set_xlim(-end, end)
    ax.axvspan(*stretch([low, high]), color=GREY, alpha=0.2, lw=0, label="observed range", zorder=0)
    edge = float(stretch(high + FAR * 2 * half))
    if end > edge:
        for ends in ((-end, -edge), (edge, end)):
            ax.axvspan(*ends, color=AMBER, alpha=0.15, lw=0, label="_", zorder=0)
        ax.patches[-1].set_label("more than 10 ranges outside")
    powers = np.arange(1, np.log10(np.sinh(end)) + 1)
    powers = powers[:: max(1, -(-len(powers) // 3))]  # at most three at each side
    if end <= edge:
        ticks = np.array([low - 2 * half, low, high, high + 2 * half])
    else:
        reach = 2 * half * 10.0**powers
        ticks = np.concatenate([(low - reach)[::-1], [middle], high + reach])
    places = stretch(ticks)
    seen = np.abs(places) <= end
    names = [f"{tick:.3g}" for tick in ticks[seen]]
    ax.set_xticks(places[seen], names, fontsize="x-small")


def draw_effect_errors(check: Check, ax: Axes | None = None) -> Axes:
    """Draw 90 % intervals of effects: by the posterior, Gaussian theta and the linearized effect.

    At most 20 effects are shown, the largest error first, in posterior sds from their mean.

    Parameters
    ----------
    check:
        The result of `cb.diagnostics.gaussian_error`.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the result of that check.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> post = cb.fit(chain.problem, chain.observe(50, 0))
    >>> check = cb.diagnostics.gaussian_error(post, draws=1000, key=0)
    >>> cb.plots.draw_effect_errors(check).get_title()
    'all 4 effects, largest error first'
    """
    details = _require_details("draw_effect_errors", check, "Gaussian error", "gaussian_error")
    scaled = _scaled(details)
    order = _largest_errors(scaled).sort_values(ascending=False, kind="stable").index
    shown = scaled.loc[order].head(MOST_EFFECTS)
    ax = style.list_axes(ax, [str(name) for name in shown.index], 4.8, 0.4 * len(shown) + 1.5)
    for kind, label, colour, offset in (
        ("", "posterior", BLUE, -0.24),
        ("gaussian_", "Gaussian theta", AMBER, 0.0),
        ("linear_", "linearized effect", INK, 0.24),
    ):
        heights = np.arange(len(shown)) + offset
        ax.hlines(heights, shown[f"{kind}low"], shown[f"{kind}high"], color=colour, lw=1.6)
        ax.plot(shown[f"{kind}mean"], heights, "o", ms=3.5, color=colour, label=label)
    which = f"the worst {len(shown)} of" if len(shown) < len(details) else "all"
    title = f"{which} {len(details)} effects, largest error first"
    label = "posterior sds from the posterior mean;\n90 % intervals"
    return style.finish(ax, title, label, columns=3, columnspacing=1.0, handletextpad=0.4)


def _scaled(details: pd.DataFrame) -> pd.DataFrame:
    """Return means and interval ends in posterior sds from the posterior mean.

    An effect without an sd stays in its own units.
    """
    half, middle = style.half_width(0.9) * details["linear_sd"], details["linear_mean"]
    ends = details.assign(linear_low=middle - half, linear_high=middle + half)
    names = [name for name in ends.columns if not name.endswith("sd")]
    unit = details["sd"].where(details["sd"] > 0, 1.0)
    return ends[names].sub(details["mean"], axis=0).div(unit, axis=0)


def _largest_errors(scaled: pd.DataFrame) -> pd.Series:
    """Return for every effect how far a mean or an interval's end is from the posterior's."""
    ends = ["mean", "low", "high"]
    errors = [scaled[[kind + end for end in ends]].to_numpy() for kind in ("gaussian_", "linear_")]
    return pd.Series(np.abs(errors - scaled[ends].to_numpy()).max(axis=(0, 2)), scaled.index)


def _require_details(caller: str, check: Check, name: str, maker: str) -> pd.DataFrame:
    """Return the details of a check if it is of the kind that has them; refuse any other."""
    if not isinstance(check, Check) or check.name != name or check.details is None:
        got = f"the check {check.name!r}" if isinstance(check, Check) else type(check).__name__
        raise ArgumentError(f"{caller} needs the result of cb.diagnostics.{maker}, got {got}")
    return check.details


def draw_calibration(check: Check, ax: Axes | None = None, *, level: float = 0.99) -> Axes:
    """Draw how the ranks of true effects among posterior draws depart from uniform.

    There is a curve for each effect. Above 0 on the left and below on the right, intervals are too
    narrow; the other way round, too wide. Where a curve is above 0 everywhere, the posterior of the
    effect is too high. All curves stay in the band with probability at least `level`; a curve
    leaves the band of 99 % where uniformity fails at alpha = 0.01.

    Parameters
    ----------
    check:
        The result of `cb.diagnostics.calibrate`.
    ax:
        Where to draw; by default a new figure.
    level:
        The probability of the band.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is not the result of that check, or `level` is not between 0 and 1.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> check = cb.diagnostics.calibrate(chain.problem, simulations=40, key=0)
    >>> cb.plots.draw_calibration(check).get_xlabel()
    'rank of the true effect in its posterior'
    """
    ranks = _require_details("draw_calibration", check, "calibration", "calibrate")
    count, effects = ranks.shape
    bound = kstwo.isf((1 - read_share("level", level)) / effects, count)
    ax = ax or style.new_axes(5.6, 3.8)
    ax.axhspan(-bound, bound, color=GREY, alpha=0.3, lw=0, label=f"{100 * level:g} % band")
    ax.axhline(0, color=INK, lw=0.8)
    failed = (check.table["verdict"] == FAILED).to_numpy()
    steps = (np.arange(count + 1) / count).repeat(2)
    for chosen, colour, verdict in ((~failed, BLUE, "passed"), (failed, AMBER, "failed")):
        for order, name in enumerate(ranks.columns[chosen]):
            x = np.concatenate([[0.0], np.sort(ranks[name].to_numpy()).repeat(2), [1.0]])
            label = f"_{name}" if order else f"effects that {verdict}: {chosen.sum()} of {effects}"
            ax.plot(x, steps - x, color=colour, lw=1, alpha=0.8, label=label)
    ax.set_xlim(0, 1)
    covered = f"{check.table['coverage'].min():.0%} to {check.table['coverage'].max():.0%}"
    title = f"{count} data sets: 90 % intervals cover the truth in {covered}"
    label = "rank of the true effect in its posterior"
    return style.finish(ax, title, label, "ECDF of ranks minus uniform")


def draw_overlap(
    problem: Problem, data: Data, names: Sequence[str], ax: Axes | None = None
) -> Axes:
    """Draw the observations of two variables, the box of their domains, and an ellipse.

    The ellipse is around 99 % of the observations. The corner farthest from them is marked. The
    title has its distance: the `reach` of `cb.diagnostics.check_overlap` for the set of these two,
    where both act on the target. Levels are drawn as dots, or as lines where one of the two has
    levels; where linear constraints or `feasible` forbid setting both so, the box is shaded.

    Parameters
    ----------
    problem:
        The problem whose domains are drawn.
    data:
        At least three observations.
    names:
        Two variables that can be intervened on.
    ax:
        Where to draw; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If `names` are not two different variables that can be intervened on.
    DataError
        If there are fewer than three observations.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> chain = cb.models.load("chain")
    >>> cb.plots.draw_overlap(chain.problem, chain.observe(50, 0), ["X", "Z"]).get_ylabel()
    'Z'
    """
    require_inputs("draw_overlap", problem, data)
    if isinstance(names, str) or len({*names} & {*problem.domains}) < 2 or len(names) > 2:
        known = ", ".join(problem.manipulable)
        raise ArgumentError(f"draw_overlap needs two different variables of {known}; got {names!r}")
    if len(data) < 3:
        raise DataError(f"an ellipse needs at least 3 observations, got {len(data)}")
    pair = names[0], names[1]
    values = np.stack([data.column(name) for name in pair], axis=1)
    is_set = data.intervened[:, [problem.graph.index(name) for name in pair]].any(axis=1)
    ax = ax or style.new_axes(5.6, 4.4)
    for chosen, colour, label in (
        (~is_set, GREY, "observations"),
        (is_set, AMBER, "one of the two was intervened on"),
    ):
        if chosen.any():
            ax.plot(*values[chosen].T, ".", color=colour, ms=4, alpha=0.6, label=label)
    low, high = np.array([problem.domains[name] for name in pair]).T
    box: dict[str, Any] = {"fill": False, "ec": BLUE, "lw": 1.4, "label": "domains of do()"}
    ax.add_patch(Rectangle((low[0], low[1]), *(high - low), **box))
    title = _surround(ax, values, _restrict(ax, problem, pair))
    ax.margins(0.08)
    return style.finish(ax, title, problem.label(pair[0]), problem.label(pair[1]))


def _restrict(ax: Axes, problem: Problem, pair: tuple[str, str]) -> np.ndarray:
    """Draw levels and forbidden parts of the box; return the corners of what is left, (k, 2)."""
    ends = np.array([problem.domains[name] for name in pair])
    corners = np.stack(np.meshgrid(*ends), axis=-1).reshape(-1, 2)
    if problem.is_box and problem.feasible_rule is None:
        return corners
    ticks = [
        np.array(problem.levels.get(name, tuple(np.linspace(*problem.domains[name], GRID_TICKS))))
        for name in pair
    ]
    points = np.stack(np.meshgrid(*ticks), axis=-1)
    allowed = _allowed(problem, pair, points.reshape(-1, 2)).reshape(points.shape[:2])
    ax.use_sticky_edges = False  # the box is to be seen as a box
    if any(name in problem.levels for name in pair):
        size = 9 if all(name in problem.levels for name in pair) else 1.5
        ax.plot(*points[allowed].T, ".", ms=size, color=BLUE, zorder=1, label="allowed levels")
    elif not allowed.all():
        forbidden: dict[str, Any] = {"levels": [-0.5, 0.5], "colors": [AMBER], "alpha": 0.2}
        ax.contourf(*ticks, allowed.astype(float), zorder=0, **forbidden)
        rules = [str(each) for each in problem.region.applying(tuple(sorted(pair)))]
        rules += [] if problem.feasible_rule is None else [rule_name(problem.feasible_rule)]
        label = style.folded(f"forbidden by {'; '.join(rules)}")
        style.shade(ax, [], [], [], AMBER, label=label)
    members = tuple(sorted(pair, key=problem.graph.index))
    if not problem.region.is_plain(members):
        corners = problem.region.vertices(members)[:, [members.index(name) for name in pair]]
    return np.asarray(corners[_allowed(problem, pair, corners)])


def _allowed(problem: Problem, pair: tuple[str, str], points: np.ndarray) -> np.ndarray:
    """Return which points (k, 2), all in the box and at levels, satisfy all constraints, (k,)."""
    columns = [problem.graph.index(name) for name in pair]
    mask, value = (np.zeros((len(points), len(problem.graph.nodes)), t) for t in (bool, float))
    mask[:, columns], value[:, columns] = True, points
    allowed = problem.region.contains(pair, points)
    if problem.feasible_rule is not None and allowed.any():
        inside = np.flatnonzero(allowed)
        allowed[inside] = evaluate_rule(problem.feasible_rule, Queries(mask, value)[inside])
    return allowed


def _surround(ax: Axes, values: np.ndarray, corners: np.ndarray) -> str:
    """Draw the ellipse around the observations, mark the farthest corner, and return a title.

    values: the observations, (n, 2). corners: those of the box, or of what is left of it, (k, 2).
    """
    centre = values.mean(axis=0)
    unit = np.where(np.ptp(values, axis=0) > 0, values.std(axis=0), 1.0)
    scaled = (values - centre) / unit
    _, sizes, directions = np.linalg.svd(scaled / np.sqrt(len(values)), full_matrices=False)
    if not sizes[1] > NARROWEST_ELLIPSE * sizes[0]:
        return "the data lie on a line: no box overlaps with them"
    whiten = directions.T / sizes
    inner = np.quantile(np.linalg.norm(scaled @ whiten, axis=1), INNER_SHARE)
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = inner * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    ellipse = centre + unit * (circle * sizes @ directions)
    ax.plot(*ellipse.T, color=INK, lw=1.2, label="around 99 % of the data")
    if not len(corners):
        return "no corner of the box is feasible"
    reaches = np.linalg.norm((corners - centre) / unit @ whiten, axis=1) / inner
    ax.plot(*corners[reaches.argmax()], "x", color=BLUE, ms=8, mew=2, label="farthest corner")
    return f"the farthest corner lies {reaches.max():.2g} times as far out as 99 % of the data"


def draw_robustness(table: pd.DataFrame, ax: Axes | None = None, *, most: int = 24) -> Axes:
    """Draw what other models say of the recommendation: a tornado.

    A bar goes from the effect of the recommendation by the present model to its effect by another
    one; it is amber where that model recommends something else by which more than a limit is
    gained, and pale where the data exclude that model. A latent cause has the effect at which
    another intervention becomes the best, with the correlation of the disturbances at which it
    does.

    Parameters
    ----------
    table:
        The attribute `robustness` of what `cb.validate` returned.
    ax:
        Where to draw; by default a new figure.
    most:
        How many alternatives are drawn, the largest changes first.

    Returns
    -------
    matplotlib.axes.Axes
        The Axes that were drawn on.

    Raises
    ------
    ArgumentError
        If it is no such table.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> data = system.observe(100, 0)
    >>> found = cb.validate(system.problem, data, only=["robustness"], key=0)
    >>> cb.plots.draw_robustness(found.robustness).get_xlabel()
    'E[Y | do(Z = 5)]'
    """
    style.require_result("draw_robustness", table, ["effect", "regret", "strength"], "cb.validate")
    base, limit = float(table.attrs["effect"]), float(table.attrs["limit"])
    known = table[np.isfinite(table["effect"].to_numpy(float))]
    is_latent = (known["kind"] == "latent cause added").to_numpy()
    known = known[~is_latent | known["strength"].notna().to_numpy()]
    sizes = np.abs(known["effect"].to_numpy(float) - base)
    shown = known.iloc[np.argsort(-sizes, kind="stable")[:most]][::-1]
    ax = ax or style.new_axes(7.5, 0.6 + 0.28 * max(len(shown), 3))
    matters = ((shown["regret"] > limit) | shown["strength"].notna()).to_numpy()
    excluded = (shown["p_value"].to_numpy(float) < EXCLUDED_P).tolist()
    widths = shown["effect"].to_numpy(float) - base
    for place, (width, amber, pale) in enumerate(zip(widths, matters, excluded, strict=True)):
        colour = AMBER if amber else BLUE
        ax.barh(place, width, left=base, height=0.62, color=colour, alpha=0.35 if pale else 1.0)
    for place, strength in enumerate(shown["strength"].to_numpy(float)):
        if np.isfinite(strength):
            note, end = f"correlation {strength:.2g}", base + widths[place]
            side = "left" if widths[place] >= 0 else "right"
            gap = 3 if side == "left" else -3
            ax.annotate(
                note,
                (end, place),
                (gap, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize="x-small",
                color=INK,
            )
    ax.axvline(base, color=INK, lw=1)
    names = style.distinct([str(name) for name in shown.index], style.MATRIX_LABEL)
    ax.set_yticks(range(len(shown)), names, fontsize="small")
    ax.margins(x=0.18)
    keys = [
        Patch(color=BLUE, label="same recommendation, or hardly better"),
        Patch(color=AMBER, label="another recommendation"),
        Patch(color=AMBER, alpha=0.35, label="pale: the data exclude it"),
    ]
    xlabel = f"E[{table.attrs['target']} | {table.attrs['recommendation']}]"
    title = "The effect of the recommendation under other models"
    return style.finish(ax, title, xlabel, columns=2, handles=keys)
