"""How far is a posterior from the Gaussian by which the kernel approximates it?

The distance is measured in theta and in the effects, and compared with Monte-Carlo error. Some
parameterizations hold coordinates on which no effect depends, such as coefficients of high
frequencies or the sd of the target's noise: `find_relevance` finds those on which effects depend.
"""

from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import chi2, ks_1samp, kstwo, norm

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, judge
from causal_bo_ppl.errors import ArgumentError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import summarise
from causal_bo_ppl.inference.posterior import require_draws, require_posterior
from causal_bo_ppl.inference.potentials import (
    LARGEST_NEGLIGIBLE_LOSS,
    PROPOSALS_PER_DRAW,
    TOO_FEW_DRAWS,
    UNKNOWN_DENSITY,
    Importance,
)
from causal_bo_ppl.inputs import as_key, host_generator, offered, read_count
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.designs import default_design, default_vertices
from causal_bo_ppl.problem.interventions import labels, stack
from causal_bo_ppl.responses import Response, response

DESIGN_QUERIES = 64  # vertices, and as many points inside the boxes, beside the given queries
SMALL_SHARE = 0.01  # of an effect's sd, up to which a coordinate hardly moves it
ZERO_SHARE = 1e-9  # the same for one that does not move it at all
SMALLEST_DIRECTION = 0.01  # relative to the largest; effects hardly depend on smaller ones
MOST_NOISE = 3.0  # Monte-Carlo error in tolerances, above which a row is not assessed
SIGNIFICANT_ERRORS = 3.3  # standard errors: 1 in 1,000
SIGNIFICANT_LARGEST = 4.0  # the same for the largest of many
GAUSSIAN_DRAWS = 8_000  # whose effects are compared
WEIGHED_DRAWS = 16_000  # by importance
# Ends of intervals, and how far around them a density is estimated.
INTERVAL_ENDS, DENSITY_WINDOW = (0.05, 0.95), 0.02


class Relevance(NamedTuple):
    """Coordinates of theta that move some effect, by linearization at the posterior mean.

    is_whole: whether every coordinate that varies moves some effect, however little. moves: (d,)
    whether a coordinate moves an effect by more than 1 % of that effect's sd; all do where theta
    is whole. scaled: (M, d) derivatives of effects in units of their sds.
    """

    is_whole: bool
    moves: np.ndarray
    scaled: np.ndarray

    def directions(self, post: Posterior, theta: np.ndarray) -> np.ndarray:
        """Return draws (n, d) along the k directions that move effects, standardized, (n, k)."""
        effects, sizes, _ = np.linalg.svd(self.scaled @ post.factor, full_matrices=False)
        kept = sizes > SMALLEST_DIRECTION * sizes[0]
        return np.asarray((theta - post.mean) @ self.scaled.T @ (effects[:, kept] / sizes[kept]))


def find_relevance(post: Posterior, asked: Queries) -> Relevance:
    """Return which coordinates move effects of the queries, and of a design over all sets."""
    design = stack([asked, default_design(post.problem, post.sets, None, DESIGN_QUERIES)])
    jacobian = np.asarray(response(post).linearize(post.mean, design)[1])
    sd = np.linalg.norm(jacobian @ post.factor, axis=1)
    varies = np.isfinite(sd) & (sd > 0)
    scaled = jacobian[varies] / sd[varies, None]
    shares = np.abs(scaled * post.sd).max(axis=0, initial=0.0)
    is_whole = not varies.any() or bool(((shares > ZERO_SHARE) | ~(post.sd > 0)).all())
    return Relevance(is_whole, (shares > SMALL_SHARE) | is_whole, scaled)


class Tolerances(NamedTuple):
    """How far a posterior may be from a Gaussian, beyond Monte-Carlo error.

    Attributes
    ----------
    pareto_k, lost:
        Of importance sampling: the Pareto k, and the share of draws that the weights cost.
    distance:
        Between distribution functions.
    skewness, kurtosis:
        Mardia's, per dimension and relative to a Gaussian's.
    mean, interval:
        In posterior sds of the effect.
    sd:
        Relative to the posterior sd of the effect.
    """

    pareto_k: float = 0.7
    lost: float = 0.5
    distance: float = 0.05
    skewness: float = 0.1
    kurtosis: float = 0.15
    mean: float = 0.1
    sd: float = 0.1
    interval: float = 0.1


def gaussian_error(
    post: Posterior,
    queries: Queries | None = None,
    *,
    draws: int = 4_000,
    tolerances: Tolerances | None = None,
    key: jax.Array | int,
) -> Check:
    """Compare a posterior of theta_Y with N(mean, covariance).

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        Effects to compare; by default vertices of all sets, at most 256.
    draws:
        How many draws of the posterior are used, at least 1,000.
    tolerances:
        By default `cb.diagnostics.Tolerances()`.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        Rows about theta: Pareto k and efficiency of the Gaussian as a proposal, Mahalanobis
        distances against chi-square, marginals with Holm's correction, Mardia's skewness and
        kurtosis. Rows about the effects: the largest error in any effect's mean, sd and 90 %
        interval. `details` has every effect, also as linearization predicts it. Where theta has
        coordinates that move no effect, as that of nonlinear mechanisms has, these are omitted from
        the rows about theta, its directions are those that move effects, and the verdict is that of
        the rows about effects alone.

    Raises
    ------
    ArgumentError
        If there is no query, or `tolerances` is no `Tolerances`.
    PosteriorError
        If the posterior has too few draws.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.gaussian_error(cb.fit(system.problem, system.observe(200, 0)), key=0).passed
    True
    """
    require_posterior("gaussian_error", post)
    read_count("draws", draws, 1_000)  # tails are compared
    draws = require_draws("gaussian_error", draws, post)
    tolerances = Tolerances() if tolerances is None else tolerances
    if not isinstance(tolerances, Tolerances):
        raise ArgumentError(
            "tolerances must be cb.diagnostics.Tolerances(distance=..., mean=..., ...), got "
            f"{tolerances!r}"
        )
    draw_key, gaussian_key = jax.random.split(as_key(key))
    drawn, independent, weights = _draw(post, draws, draw_key)
    theta = drawn[np.isfinite(drawn).all(axis=1)]
    standard = host_generator(gaussian_key).standard_normal((GAUSSIAN_DRAWS, post.factor.shape[1]))
    asked = default_vertices(post.problem, post.sets, queries)
    if not len(asked):
        raise ArgumentError("there is no effect to compare: give at least one query")
    effects = compare_effects(post, asked, theta, post.mean + standard @ post.factor.T)
    relevance = find_relevance(post, asked)
    pareto = _row("Pareto k", weights.pareto_k, 0.0, tolerances.pareto_k, weights.over)
    if (
        weights.lost < LARGEST_NEGLIGIBLE_LOSS
    ):  # the tail of weights that are practically equal passes
        pareto = pareto | {"verdict": PASSED}
    rows = [
        pareto,
        _row("lost to importance weights", weights.lost, 0.0, tolerances.lost, weights.over),
        *_shape_rows(post, relevance, theta, independent, tolerances),
        *_effect_rows(effects, independent, tolerances),
    ]
    if len(theta) < len(drawn):
        share = 1 - len(theta) / len(drawn)
        rows.append(_row("undefined draws", share, 0.0, 0.0, "share of draws without a value"))
    table = pd.DataFrame(rows).set_index("line")
    text = _describe(table, len(asked))
    if relevance.is_whole:
        return Check("Gaussian error", table, text, _advise(table), effects)
    about = table[[str(name).startswith(("effect", "undefined")) for name in table.index]]
    text += (
        f" Of {len(post.names)} coordinates {(~relevance.moves).sum()} hardly move an effect, or "
        "none: the verdict is that of the effects."
    )
    whole = Check("effects", about, "").verdict
    return Check("Gaussian error", table, text, _advise(about), effects, whole)


def standardized(post: Posterior, theta: np.ndarray) -> np.ndarray:
    """Return draws (n, d) in the coordinates in which the Gaussian is standard.

    The result has the shape (n, r), with r the rank of the covariance.
    """
    scale = np.where(post.sd > 0, post.sd, 1.0)
    directions, sizes, _ = np.linalg.svd(post.factor / scale[:, None], full_matrices=False)
    kept = sizes > 1e-9 * sizes[0]
    return np.asarray((theta - post.mean) / scale @ (directions[:, kept] / sizes[kept]))


def _draw(post: Posterior, draws: int, key: jax.Array) -> tuple[np.ndarray, float, Importance]:
    """Return draws (n, d) of the posterior, their effective number, and importance weights."""
    draw_key, weight_key = jax.random.split(key)
    resampled = offered(post.distribution, "resampled")
    if resampled is not None:
        theta, weights = resampled(draws, draw_key)
        return theta, draws * (1 - weights.lost) / (1 + 1 / PROPOSALS_PER_DRAW), weights
    drawn = post.distribution.drawn(draws, draw_key)
    theta, weights = drawn.theta, post.distribution.importance(WEIGHED_DRAWS, weight_key)
    if post.distribution.chains is None:
        return theta, float(len(theta)), weights
    summary = summarise(theta.reshape(drawn.chains, -1, theta.shape[1]), post.names)
    smallest = summary[["ess_bulk", "ess_sd"]].to_numpy().min()  # of the worst coordinate
    return theta, float(min(smallest, len(theta))), weights


def _row(name: str, value: float, noise: float, tolerance: float, where: str) -> dict[str, object]:
    verdict = judge(value - noise <= tolerance)
    if where in (UNKNOWN_DENSITY, TOO_FEW_DRAWS) or (
        verdict == PASSED and noise > MOST_NOISE * abs(tolerance)
    ):
        verdict = UNKNOWN
    numbers = {"value": value, "noise": noise, "tolerance": tolerance}
    return {"line": name, **numbers, "verdict": verdict, "where": where}


def _shape_rows(
    post: Posterior, relevance: Relevance, theta: np.ndarray, n: float, tolerances: Tolerances
) -> list[dict[str, object]]:
    """Return the rows about theta, or about those directions of it that move effects."""
    whole = relevance.is_whole
    z = standardized(post, theta) if whole else relevance.directions(post, theta)
    size, squares = z.shape[1], np.sort((z**2).sum(axis=1))
    distance = ks_1samp(squares, chi2(size).cdf, method="asymp").statistic
    moves = np.flatnonzero((post.sd > 0) & relevance.moves)
    scaled = (theta[:, moves] - post.mean[moves]) / post.sd[moves]
    marginals = np.asarray(ks_1samp(scaled, norm.cdf, method="asymp").statistic)
    worst = int(np.argmax(marginals))
    corrected = holm(np.asarray(kstwo.sf(marginals, int(n))))
    where = f"{post.names[moves[worst]]}, corrected p = {corrected[worst]:.2g}"
    # 999 of 1,000 times the largest distance of n Gaussian draws stays below these.
    noise, largest_noise = (float(kstwo.isf(1e-3 / k, int(n))) for k in (1, len(marginals)))
    skewness = (mardia_skewness(z) - size * (size + 1) * (size + 2) / n) / size
    skewness_noise = SIGNIFICANT_ERRORS * 6 / n * np.sqrt(size * (size + 1) * (size + 2) / 3) / size
    kurtosis = (squares**2).mean() / (size * (size + 2)) - 1
    kurtosis_noise = SIGNIFICANT_ERRORS * np.sqrt(8 / (n * size * (size + 2)))
    tails = "heavier tails" if kurtosis > 0 else "lighter tails"
    limits = tolerances
    return [
        _row("Mahalanobis distances", float(distance), noise, limits.distance, "chi-square"),
        _row("marginals", float(marginals[worst]), largest_noise, limits.distance, where),
        _row(
            "Mardia skewness", max(skewness, 0.0), skewness_noise, limits.skewness, "per dimension"
        ),
        _row("Mardia kurtosis", abs(kurtosis), kurtosis_noise, limits.kurtosis, tails),
    ]


def mardia_skewness(z: np.ndarray) -> float:
    """Return the mean of (z_i'z_j)^3 over all pairs of standardized draws (n, r)."""
    blocks = np.array_split(z, max(1, len(z) // 500))
    products = (block @ z.T for block in blocks)
    return float(sum(np.vdot(product * product, product) for product in products) / len(z) ** 2)


def compare_effects(
    post: Posterior, queries: Queries, theta: np.ndarray, gaussian: np.ndarray
) -> pd.DataFrame:
    """Return a table with a row for each effect.

    It has the moments and interval of the effect by the posterior's draws `theta`, those by draws
    of the `gaussian`, and mean and sd of the linearized effect. Where effects are averages over
    noise, all are over the same few points: what they are off by is common to both.
    """
    effect = Response(post, is_rough=True, is_lean=True)
    values, jacobian = map(np.asarray, effect.linearize(post.mean, queries))
    columns: dict[str, np.ndarray] = {}
    for name, draws in (("", theta), ("gaussian_", gaussian)):
        columns |= _summary(name, np.asarray(effect.effects(draws, queries)))
    columns["linear_mean"] = values
    columns["linear_sd"] = np.linalg.norm(jacobian @ post.factor, axis=1)
    return pd.DataFrame(columns, index=pd.Index(labels(post.problem, queries), name="effect"))


def _summary(name: str, effects: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean, sd and interval of effects (n, M), each of shape (M,), under prefixed names.

    `sd_error` and `end_error` are the errors of sd and interval ends that one draw would have.
    """
    varies = np.ptp(effects, axis=0) > 0  # a known effect has sd 0, not rounding
    sd = np.where(varies, effects.std(axis=0, ddof=1), 0.0)
    scale = np.where(varies, sd, 1.0)
    fourth = (((effects - effects.mean(axis=0)) / scale) ** 4).mean(axis=0)
    low, high = np.quantile(effects, INTERVAL_ENDS, axis=0)
    window = np.array([-DENSITY_WINDOW, DENSITY_WINDOW])
    around = [np.ptp(np.quantile(effects, end + window, axis=0), axis=0) for end in INTERVAL_ENDS]
    slowest = np.max(around, axis=0) / (2 * DENSITY_WINDOW)  # 1 / density
    parts = {
        "mean": effects.mean(axis=0),
        "sd": sd,
        "low": low,
        "high": high,
        "sd_error": np.sqrt(np.maximum(fourth - 1, 0) / 4),
        "end_error": np.sqrt(INTERVAL_ENDS[0] * INTERVAL_ENDS[1]) * slowest,
    }
    return {f"{name}{part}": value for part, value in parts.items()}


def _effect_rows(
    effects: pd.DataFrame, n: float, tolerances: Tolerances
) -> list[dict[str, object]]:
    """Return a row for each kind of error, of the effect where it most exceeds its noise."""
    column = {str(name): effects[name].to_numpy() for name in effects}
    known = (column["sd"] == 0) & (column["gaussian_sd"] == 0)  # such an effect has no error
    sd = np.where(known, 1.0, column["sd"])

    def noise(error: str, scale: np.ndarray) -> np.ndarray:
        ours, theirs = (column[f"{who}{error}"] / scale for who in ("", "gaussian_"))
        return np.asarray(SIGNIFICANT_LARGEST * np.sqrt(ours**2 / n + theirs**2 / GAUSSIAN_DRAWS))

    low, high = (np.abs(column[f"gaussian_{end}"] - column[end]) / sd for end in ("low", "high"))
    mean_noise = np.full(len(sd), SIGNIFICANT_LARGEST * np.sqrt(1 / n + 1 / GAUSSIAN_DRAWS))
    mean_error = np.abs(column["gaussian_mean"] - column["mean"]) / sd
    sd_error = np.where(known, 0.0, np.abs(column["gaussian_sd"] / sd - 1))
    sd_noise, end_noise = noise("sd_error", np.ones(len(sd))), noise("end_error", sd)
    kinds = {
        "effect: mean": (mean_error, mean_noise, tolerances.mean),
        "effect: sd": (sd_error, sd_noise, tolerances.sd),
        "effect: 90 % interval": (np.maximum(low, high), end_noise, tolerances.interval),
    }
    rows = []
    for name, (error, noises, limit) in kinds.items():
        worst = int(np.argmax(np.nan_to_num(error - noises, nan=np.inf)))
        where = str(effects.index[worst])
        rows.append(_row(name, float(error[worst]), float(noises[worst]), limit, where))
    return rows


def _describe(table: pd.DataFrame, count: int) -> str:
    value, noise = table["value"], table["noise"]
    failed = table.index[table["verdict"] == FAILED]
    effects = (
        "Taking theta as Gaussian moves the mean of an effect by up to "
        f"{value['effect: mean']:.2f} sd, its sd by {value['effect: sd']:.0%} and its 90 % "
        f"interval by {value['effect: 90 % interval']:.2f} sd "
        f"({count} effects), of which Monte-Carlo error can be {noise['effect: mean']:.2f} sd, "
        f"{noise['effect: sd']:.0%} and {noise['effect: 90 % interval']:.2f} sd."
    )
    return effects + (
        f" Too far from a Gaussian: {listed(failed)}."
        if len(failed)
        else " Beyond that error it is within all tolerances."
    )


def _advise(table: pd.DataFrame) -> str:
    failed = [str(name) for name in table.index[table["verdict"] == FAILED]]
    unsure = (table["verdict"] == UNKNOWN) & ~table["where"].eq(UNKNOWN_DENSITY)
    if unsure.any():
        return f"Draw longer: Monte-Carlo error hides {listed(table.index[unsure])}."
    if not failed:
        return ""
    if any(name.startswith("effect") for name in failed):
        return (
            "Do not act on the Gaussian's intervals: take quantiles of effects from draws, and add "
            "observations."
        )
    return (
        "Theta is not Gaussian, but effects are hardly changed: see `details`, and add "
        "observations where possible."
    )
