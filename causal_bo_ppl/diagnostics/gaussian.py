"""Which coordinates of theta, and which directions, does any effect depend on?

Some parameterizations hold more than effects can show: coefficients of high frequencies, or the sd
of the target's disturbance. Their shape says nothing about an answer.

How far is a posterior from the Gaussian that the kernel takes it for?

The distance is measured in theta and in the effects, and compared with Monte-Carlo error.
"""

from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import chi2, kstwo, norm

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, judge
from causal_bo_ppl.diagnostics.convergence import require_draws, require_posterior
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import summarise
from causal_bo_ppl.inference.potentials import (
    EQUAL,
    PROPOSALS,
    TOO_FEW,
    UNKNOWN_DENSITY,
    Importance,
)
from causal_bo_ppl.inputs import as_key, host_generator, read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import default_design, default_vertices, labels, stack
from causal_bo_ppl.responses import response

QUERIES = 64  # vertices, and as many points inside the boxes, beside the queries that were asked
LITTLE = 0.01  # share of an effect's sd up to which a coordinate hardly moves it
NOTHING = 1e-9  # the same for one that does not move it at all
WEAK = 0.01  # size of a direction, relative to the largest, below which effects do not show it


class Relevance(NamedTuple):
    """What of theta moves some effect, by linearization at the posterior mean.

    is_whole: whether every coordinate that varies moves some effect, however little. moves: (d,)
    whether a coordinate moves an effect by more than 1 % of that effect's sd; all do where theta
    is whole. scaled: (M, d) derivatives of effects in units of their sds.
    """

    is_whole: bool
    moves: np.ndarray
    scaled: np.ndarray

    def directions(self, post: Posterior, theta: np.ndarray) -> np.ndarray:
        """Return draws (n, d) along the k directions that effects show, standardized, (n, k)."""
        effects, sizes, _ = np.linalg.svd(self.scaled @ post.factor, full_matrices=False)
        kept = sizes > WEAK * sizes[0]
        return np.asarray((theta - post.mean) @ self.scaled.T @ (effects[:, kept] / sizes[kept]))


def find_relevance(post: Posterior, asked: Queries) -> Relevance:
    """Return what moves the effects of the queries asked, and of a design over all sets."""
    design = stack([asked, default_design(post.problem, post.sets, None, QUERIES)])
    jacobian = np.asarray(response(post).jacobian(post.mean, design))
    sd = np.linalg.norm(jacobian @ post.factor, axis=1)
    varies = np.isfinite(sd) & (sd > 0)
    scaled = jacobian[varies] / sd[varies, None]
    shares = np.abs(scaled * post.sd).max(axis=0, initial=0.0)
    is_whole = not varies.any() or bool(((shares > NOTHING) | ~(post.sd > 0)).all())
    return Relevance(is_whole, (shares > LITTLE) | is_whole, scaled)


NOISY = 3.0  # a Monte-Carlo error of so many tolerances says nothing
SURE = 3.3  # standard errors: 1 in 1,000
LARGEST = 4.0  # the same for the largest of many
PROPOSED = 16_000  # draws from the Gaussian
LEVELS, NEAR = (0.05, 0.95), 0.02  # ends of intervals, and how far around them a density is taken


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
        What is good enough; by default `cb.diagnostics.Tolerances()`.
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        Lines about theta: Pareto k and efficiency of the Gaussian as a proposal, Mahalanobis
        distances against chi-square, marginals with Holm's correction, Mardia's skewness and
        kurtosis. Lines about the effects: the largest error in any effect's mean, sd and 90 %
        interval. `details` has every effect, with what linearization makes of it. Where theta has
        coordinates that move no effect, as those of mechanisms that bend have, these are left out
        of the lines about theta, its directions are those that effects show, and the verdict is
        that of the lines about effects alone.

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
        raise ModelError(
            f"tolerances must be cb.diagnostics.Tolerances(distance=..., mean=..., ...), got {tolerances!r}"
        )
    for_draws, for_gaussian = jax.random.split(as_key(key))
    drawn, independent, weights = _draw(post, draws, for_draws)
    theta = drawn[np.isfinite(drawn).all(axis=1)]
    standard = host_generator(for_gaussian).standard_normal((PROPOSED, post.factor.shape[1]))
    asked = default_vertices(post.problem, post.sets, queries)
    if not len(asked):
        raise ModelError("there is no effect to compare: give at least one query")
    effects = compare_effects(post, asked, theta, post.mean + standard @ post.factor.T)
    relevance = find_relevance(post, asked)
    lines = [
        _pareto_line(weights, tolerances.pareto_k),
        _line("lost to importance weights", weights.lost, 0.0, tolerances.lost, weights.over),
        *_shape_lines(post, relevance, theta, independent, tolerances),
        *_effect_lines(effects, independent, tolerances),
    ]
    if len(theta) < len(drawn):
        share = 1 - len(theta) / len(drawn)
        lines.append(_line("undefined draws", share, 0.0, 0.0, "share of draws without a value"))
    table = pd.DataFrame(
        lines, columns=["line", "value", "noise", "tolerance", "verdict", "where"]
    ).set_index("line")
    failed = [str(name) for name in table.index[table["verdict"] == FAILED]]
    text = _tell(table, failed, len(asked))
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
    """Return draws (n, d) of the posterior itself, their worth, and weights for the Gaussian.

    The worth is the number of independent draws that would say as much.
    """
    for_draws, for_weights = jax.random.split(key)
    resampled = offered(post.distribution, "resampled")
    if resampled is not None:
        theta, weights = resampled(draws, for_draws)
        return theta, draws * (1 - weights.lost) / (1 + 1 / PROPOSALS), weights
    drawn = post.distribution.drawn(draws, for_draws)
    weights = post.distribution.importance(PROPOSED, for_weights)
    independent = (
        _independent(drawn.theta, drawn.chains, post)
        if post.distribution.chains is not None
        else float(len(drawn.theta))
    )
    return drawn.theta, independent, weights


def _independent(theta: np.ndarray, chains: int, post: Posterior) -> float:
    """Return how many independent draws these (n, d) are worth, by the worst coordinate."""
    summary = summarise(theta.reshape(chains, -1, theta.shape[1]), post.names)
    return float(min(summary[["ess_bulk", "ess_sd"]].to_numpy().min(), len(theta)))


def _line(
    name: str, value: float, noise: float, tolerance: float, where: str
) -> tuple[object, ...]:
    verdict = judge(value - noise <= tolerance)
    if where in (UNKNOWN_DENSITY, TOO_FEW) or (
        verdict == PASSED and noise > NOISY * abs(tolerance)
    ):
        verdict = UNKNOWN
    return name, value, noise, tolerance, verdict, where


def _pareto_line(weights: Importance, tolerance: float) -> tuple[object, ...]:
    """Return the line of Pareto k; the tail of weights that are practically equal passes."""
    name, value, noise, limit, verdict, where = _line(
        "Pareto k", weights.pareto_k, 0.0, tolerance, weights.over
    )
    return name, value, noise, limit, judge(True) if weights.lost < EQUAL else verdict, where


def _shape_lines(
    post: Posterior, relevance: Relevance, theta: np.ndarray, n: float, tolerances: Tolerances
) -> list[tuple[object, ...]]:
    """Return the lines about theta, of what effects show of it."""
    whole = relevance.is_whole
    z = standardized(post, theta) if whole else relevance.directions(post, theta)
    size, squares = z.shape[1], np.sort((z**2).sum(axis=1))
    distance = _distance(chi2.cdf(squares, size))
    moves = np.flatnonzero((post.sd > 0) & relevance.moves)
    scaled = np.sort((theta[:, moves] - post.mean[moves]) / post.sd[moves], axis=0)
    marginals = [_distance(column) for column in norm.cdf(scaled).T]
    worst = int(np.argmax(marginals))
    p_values = kstwo.sf(marginals, int(n))
    corrected = holm(np.asarray(p_values))
    skewness = (mardia_skewness(z) - size * (size + 1) * (size + 2) / n) / size
    skewness_noise = SURE * 6 / n * np.sqrt(size * (size + 1) * (size + 2) / 3) / size
    kurtosis = (squares**2).mean() / (size * (size + 2)) - 1
    kurtosis_noise = SURE * np.sqrt(8 / (n * size * (size + 2)))
    where = f"{post.names[moves[worst]]}, corrected p = {corrected[worst]:.2g}"
    return [
        _line(
            "Mahalanobis distances",
            distance,
            float(kstwo.isf(1e-3, int(n))),
            tolerances.distance,
            "chi-square",
        ),
        _line("marginals", marginals[worst], _band(len(marginals), n), tolerances.distance, where),
        _line(
            "Mardia skewness",
            max(skewness, 0.0),
            skewness_noise,
            tolerances.skewness,
            "per dimension",
        ),
        _line(
            "Mardia kurtosis", abs(kurtosis), kurtosis_noise, tolerances.kurtosis, _tails(kurtosis)
        ),
    ]


def _tails(kurtosis: float) -> str:
    return "heavier tails" if kurtosis > 0 else "lighter tails"


def _distance(cumulative: np.ndarray) -> float:
    """Return the Kolmogorov-Smirnov distance of sorted probabilities from uniformity."""
    steps = np.arange(len(cumulative) + 1) / len(cumulative)
    return float(np.maximum(np.abs(cumulative - steps[:-1]), np.abs(cumulative - steps[1:])).max())


def _band(marginals: int, n: float) -> float:
    """Return what the largest of several distances of n Gaussian draws stays below.

    It does so 999 times of 1,000.
    """
    return float(kstwo.isf(1e-3 / marginals, int(n)))


def mardia_skewness(z: np.ndarray) -> float:
    """Return the mean of (z_i'z_j)^3 over all pairs of standardized draws (n, r)."""
    blocks = np.array_split(z, max(1, len(z) // 500))
    products = (block @ z.T for block in blocks)
    return float(sum(np.vdot(each * each, each) for each in products) / len(z) ** 2)


def compare_effects(
    post: Posterior, queries: Queries, theta: np.ndarray, gaussian: np.ndarray
) -> pd.DataFrame:
    """Return a table with a line for each effect.

    It has the moments and interval of the effect by the posterior's draws `theta`, those by draws
    of the `gaussian`, and mean and sd of the linearized effect.
    """
    effect = response(post)
    values, jacobian = map(np.asarray, effect.linearize(post.mean, queries))
    columns: dict[str, np.ndarray] = {}
    for name, draws in (("", theta), ("gaussian_", gaussian)):
        columns |= _summary(name, np.asarray(effect(draws, queries)))
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
    low, high = np.quantile(effects, LEVELS, axis=0)
    around = [np.quantile(effects, (level - NEAR, level + NEAR), axis=0) for level in LEVELS]
    slowest = np.max([np.ptp(each, axis=0) / (2 * NEAR) for each in around], axis=0)  # 1 / density
    errors = {
        "sd_error": np.sqrt(np.maximum(fourth - 1, 0) / 4),
        "end_error": np.sqrt(LEVELS[0] * LEVELS[1]) * slowest,
    }
    parts = {"mean": effects.mean(axis=0), "sd": sd, "low": low, "high": high} | errors
    return {f"{name}{part}": value for part, value in parts.items()}


def _effect_lines(
    effects: pd.DataFrame, n: float, tolerances: Tolerances
) -> list[tuple[object, ...]]:
    """Return a line for each kind of error, of the effect where it most exceeds its noise."""
    column = {str(name): effects[name].to_numpy() for name in effects}
    known = (column["sd"] == 0) & (column["gaussian_sd"] == 0)  # such an effect has no error
    sd = np.where(known, 1.0, column["sd"])

    def noise(error: str, scale: np.ndarray) -> np.ndarray:
        ours, theirs = (column[f"{who}{error}"] / scale for who in ("", "gaussian_"))
        return np.asarray(LARGEST * np.sqrt(ours**2 / n + theirs**2 / PROPOSED))

    low, high = (np.abs(column[f"gaussian_{end}"] - column[end]) / sd for end in ("low", "high"))
    same = np.full(len(sd), LARGEST * np.sqrt(1 / n + 1 / PROPOSED))
    lines = {
        "effect: mean": (
            np.abs(column["gaussian_mean"] - column["mean"]) / sd,
            same,
            tolerances.mean,
        ),
        "effect: sd": (
            np.where(known, 0.0, np.abs(column["gaussian_sd"] / sd - 1)),
            noise("sd_error", np.ones(len(sd))),
            tolerances.sd,
        ),
        "effect: 90 % interval": (
            np.maximum(low, high),
            noise("end_error", sd),
            tolerances.interval,
        ),
    }
    worst = []
    for name, (error, doubt, limit) in lines.items():
        at = int(np.argmax(np.nan_to_num(error - doubt, nan=np.inf)))
        worst.append(_line(name, float(error[at]), float(doubt[at]), limit, str(effects.index[at])))
    return worst


def _tell(table: pd.DataFrame, failed: list[str], count: int) -> str:
    value, noise = table["value"], table["noise"]
    effects = (
        "Taking theta as Gaussian moves the mean of an effect by up to "
        f"{value['effect: mean']:.2f} sd, its sd by {value['effect: sd']:.0%} and its 90 % "
        f"interval by {value['effect: 90 % interval']:.2f} sd "
        f"({count} effects), of which Monte-Carlo error can be {noise['effect: mean']:.2f} sd, "
        f"{noise['effect: sd']:.0%} and {noise['effect: 90 % interval']:.2f} sd."
    )
    return effects + (
        f" Too far from a Gaussian: {listed(failed)}."
        if failed
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
            "rows."
        )
    return (
        "Theta is not Gaussian, but effects are hardly touched: look at `details`, and add rows "
        "where you can."
    )
