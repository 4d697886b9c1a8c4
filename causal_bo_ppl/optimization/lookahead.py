"""What is an outcome expected to improve? Expected improvement and the knowledge gradient.

For `max` and an effect f ~ N(mu, s^2): E[(f - best)_+] = s h(z), z = (mu - best) / s and h(z) =
phi(z) + z Phi(z). It is exactly 0 below z = -38, its logarithm is not. With R(t) = sqrt(pi/2)
erfcx(t / sqrt 2) the ratio of tail and density,

    log h(-t) = -t^2/2 - log(2 pi)/2 + log(1 - t R(t)),    1 - t R(t) = t^-2 - 3 t^-4 + 15 t^-6 ...

Before an outcome of query z the posterior means at points j after it are a_j + b_j Z with
Z ~ N(0, 1), a_j = E f_j and b_j = Cov(f_j, f(z)) / sqrt(Var f(z) + noise). What is recommended
afterwards has the mean max_j (a_j + b_j Z), a convex piecewise linear function of Z with slopes
b_1 < ... < b_k that change at c_1 < ... < c_{k-1}, so that (Frazier, Powell and Dayanik 2009)

    E max_j (a_j + b_j Z) - max_j a_j = sum_i (b_{i+1} - b_i) h(-|c_i|).

A whole observation moves the means along several directions at once. The expectation then has no
closed form, and its upper bound is taken in which every point replaces the best one by itself (the
linear loss of Chick and Inoue 2001): sum_j s_j h(-(a_best - a_j) / s_j), s_j the sd of the change
of a_j - a_best. It orders experiments well also where one observation hardly changes the choice.
"""

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inputs import offered
from causal_bo_ppl.linalg import first_largest, in_tie_widths, sign_of, tie_width
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.surrogates import Surrogate

QUERIES_AT_ONCE = 256  # whose covariances with all points are held in memory
CONTENDERS = 16  # points that compete with the best one where whole observations are learned from
OBSERVATIONS_AT_ONCE = 2_048  # queries whose expected information is held in memory
PROMISING_SDS = 6.0  # what lies farther below the best mean is recommended once in 10^9 times
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
# Beyond t = 50 the sum 1 - t R(t) has lost 2500 units of its last digit, while the series, cut
# after six terms, is off by 135135 / 50^12 = 6e-16.
FAR_TAIL = 50.0
TAIL_SERIES = (-10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)  # of t^-2, the highest power first


def standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return h(z) = phi(z) + z Phi(z), the expected positive part of z + N(0, 1)."""
    z = np.asarray(z, float)
    density = np.exp(-0.5 * z * z - HALF_LOG_2PI)
    with np.errstate(over="ignore"):
        middle = density + np.where(np.isneginf(z), 0.0, z) * ndtr(z)
    tail = np.exp(log_standard_improvement(np.minimum(z, -1.0)))
    return np.asarray(np.where(z < -1, tail, middle))


def log_standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return log h(z), finite for z down to -1e150, with slope |z| in the far tail."""
    z = np.asarray(z, float)
    near = np.maximum(z, -1.0)
    # log h = log phi + log(1 + z Phi / phi) from -1 to 1, and log z + log(Phi + phi / z) above
    high = np.maximum(z, 1.0)
    above = np.log(high) + np.log(np.exp(log_ndtr(high)) + _density(high) / high)
    around = np.clip(near, -1.0, 1.0)
    middle = np.log(_density(around) + around * ndtr(around))
    t = np.maximum(-z, 1.0)
    close = np.minimum(t, FAR_TAIL)
    inner = np.log1p(-close * np.sqrt(np.pi / 2) * erfcx(close / np.sqrt(2)))
    far = np.maximum(t, FAR_TAIL)
    outer = np.log(np.polyval(TAIL_SERIES, far**-2.0)) - 2 * np.log(far)
    with np.errstate(over="ignore"):
        below = -0.5 * t * t - HALF_LOG_2PI + np.where(t > FAR_TAIL, outer, inner)
    return np.asarray(np.where(z > 1, above, np.where(z < -1, below, middle)))


def _density(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * z * z - HALF_LOG_2PI))


def expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return E[(gain + sd N(0, 1))_+], (M,); max(gain, 0) where sd is 0."""
    z = _ratio(gain, sd)
    with np.errstate(invalid="ignore"):
        uncertain = np.where(np.isfinite(z), sd * standard_improvement(z), np.maximum(gain, 0.0))
    return np.asarray(np.where(sd > 0, uncertain, np.maximum(gain, 0.0)))


def log_expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log E[(gain + sd N(0, 1))_+], (M,).

    Where sd is 0 it is log(gain), or -inf where nothing is gained.
    """
    z = _ratio(gain, sd)
    with np.errstate(divide="ignore"):
        certain = np.log(np.maximum(gain, 0.0))
        uncertain = np.log(sd) + log_standard_improvement(np.where(np.isfinite(z), z, 0.0))
    return np.asarray(np.where((sd > 0) & np.isfinite(z), uncertain, certain))


def _ratio(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.asarray(gain / np.where(sd > 0, sd, 1.0))


def envelope_gain(intercepts: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return E[max_j (a_j + b_j Z)] - max_j a_j for M families of J linear functions, (M,).

    intercepts, slopes: a and b of shape (M, J). The upper envelope is followed from the function
    with the smallest slope to the next one that crosses it, for all families at once; each step
    costs O(M J), and there are as many steps as the longest envelope has pieces.
    """
    a, b = intercepts, slopes
    gains = np.zeros(len(a))
    lowest = b == b.min(axis=1, keepdims=True)
    current = np.where(lowest, a, -np.inf).argmax(axis=1)
    rows = np.arange(len(a))
    while len(rows):
        here_a, here_b = a[rows, current][:, None], b[rows, current][:, None]
        steeper = b[rows] - here_b
        is_steeper = steeper > 0
        going = is_steeper.any(axis=1)
        if not going.any():
            break
        rows, steeper, is_steeper = rows[going], steeper[going], is_steeper[going]
        with np.errstate(over="ignore"):
            crossings = (here_a[going] - a[rows]) / np.where(is_steeper, steeper, 1.0)
        crossings = np.where(is_steeper, crossings, np.inf)
        first = crossings.min(axis=1, keepdims=True)
        # Of those that cross at one point the steepest goes on.
        current = np.where(crossings == first, steeper, -np.inf).argmax(axis=1)
        change = steeper[np.arange(len(rows)), current]
        gains[rows] += change * standard_improvement(-np.abs(first[:, 0]))
    return gains


def cross_covariance(surrogate: Surrogate, queries: Queries, points: Queries) -> np.ndarray:
    """Return Cov[f(z), f(z')] of M queries with J points; a part of their joint covariance."""
    method = offered(surrogate, "cross_covariance")
    if method is not None:
        return np.asarray(method(queries, points))
    joint = surrogate.joint(stack([queries, points])).covariance
    return np.asarray(joint[: len(queries), len(queries) :])


def outcome_gains(
    surrogate: Surrogate, queries: Queries, points: Queries, sign: float, noises: np.ndarray
) -> np.ndarray:
    """Return the expected improvement of the recommendation by an outcome of each query, (M,).

    points: where the recommendation may lie, beside the query itself. sign: of the objective.
    noises: the variances of the outcomes' noise, (M,).
    """
    means, (mean, sd) = surrogate.predict(points).mean, surrogate.predict(queries)
    spread = np.sqrt(sd**2 + noises)
    scale = np.where(spread > 0, spread, 1.0)
    parts = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        slopes = cross_covariance(surrogate, queries[part], points) / scale[part, None]
        own_slope = sd[part] ** 2 / scale[part]
        a = sign * np.column_stack([np.broadcast_to(means, slopes.shape), mean[part]])
        gain = envelope_gain(a, sign * np.column_stack([slopes, own_slope]))
        parts.append(gain + np.maximum(a[:, -1] - (sign * means).max(), 0.0))
    return np.concatenate([np.zeros(0), *parts])


def observation_gains(
    surrogate: Surrogate, queries: Queries, points: Queries, sign: float
) -> np.ndarray:
    """Return upper bounds (M,) of the improvement by one whole observation of each query.

    points: where the recommendation may lie. sign: of the objective.
    """
    means = sign * surrogate.predict(points).mean
    informs = offered(surrogate, "mean_change_variances")
    best = first_largest(means)
    parts = []
    for start in range(0, len(queries), OBSERVATIONS_AT_ONCE):
        part = queries[start : start + OBSERVATIONS_AT_ONCE]
        variances = informs and informs(part, points, points[best])
        if variances is None:
            raise ArgumentError(
                "this surrogate does not know what whole observations change; take "
                "informs_mechanisms=False"
            )
        spread = np.sqrt(variances)
        safe = np.where(spread > 0, spread, 1.0)
        gains = safe * standard_improvement((means - means[best]) / safe)
        others = np.arange(len(means)) != best
        parts.append(np.where(spread > 0, gains, 0.0)[:, others].sum(axis=1))
    return np.concatenate([np.zeros(0), *parts])


def promising(surrogate: Surrogate, queries: Queries, objective: str, most: int) -> Queries:
    """Return at most `most` queries that may turn out best, that of the best mean, ordered."""
    mean, sd = surrogate.predict(queries)
    mean = sign_of(objective) * mean
    near = np.flatnonzero(mean + PROMISING_SDS * sd >= mean.max() - tie_width(mean))
    if len(near) <= most:
        return queries[near]
    bound = mean[near] + 2 * sd[near]
    # Of equal ones the first; the one with the best mean before all others.
    rounded = in_tie_widths(bound)
    rounded[int(np.flatnonzero(mean[near] >= mean.max() - tie_width(mean))[0])] = np.inf
    return queries[np.sort(near[np.argsort(-rounded, kind="stable")[:most]])]
