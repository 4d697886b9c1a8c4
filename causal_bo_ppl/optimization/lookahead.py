"""How much better will the recommendation be after one more outcome? The knowledge gradient.

Before an outcome of query z its posterior means at points j are a_j + b_j Z with Z ~ N(0, 1),
a_j = E f_j and b_j = Cov(f_j, f(z)) / sqrt(Var f(z) + noise). What is recommended afterwards has
the mean max_j (a_j + b_j Z), a convex piecewise linear function of Z with slopes b_1 < ... < b_k
that change at c_1 < ... < c_{k-1}, so that (Frazier, Powell and Dayanik 2009)

    E max_j (a_j + b_j Z) - max_j a_j = sum_i (b_{i+1} - b_i) h(-|c_i|),  h(x) = phi(x) + x Phi(x).

A whole observation moves the means along several directions at once. The expectation then has no
closed form, and its upper bound is taken in which every point replaces the best one by itself (the
linear loss of Chick and Inoue 2001): sum_j s_j h(-(a_best - a_j) / s_j), s_j the sd of the change
of a_j - a_best. It orders experiments well also where one observation hardly changes the choice.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.linalg import first_largest, tie_width
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.optimization.analytic import (
    Context,
    in_tie_widths,
    sign_of,
    standard_improvement,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import stack
from causal_bo_ppl.surrogates import Surrogate

QUERIES_AT_ONCE = 256  # whose covariances with all points are held in memory
CONTENDERS = 16  # points that compete with the best one where whole observations are learned from
OBSERVATIONS_AT_ONCE = 2_048  # queries whose expected information is held in memory
PROMISING_SDS = 6.0  # what lies farther below the best mean is recommended once in 10^9 times


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
    """Return Cov[f(z), f(z')] of M queries with J points, (M, J).

    By the surrogate's optional method `cross_covariance(queries, points)`, otherwise as a part of
    the joint covariance.
    """
    method = offered(surrogate, "cross_covariance")
    if method is not None:
        return np.asarray(method(queries, points))
    joint = surrogate.covariance(stack([queries, points]))
    return np.asarray(joint[: len(queries), len(queries) :])


@dataclass(frozen=True, eq=False)
class LookAhead:
    """Expected improvement of the recommendation by one more outcome, in units of the target.

    Where whole observations of experiments update the mechanisms, the recommendation may lie at any
    of at most 16 candidates, and the value is the upper bound of the module. The information of
    observations is known for conjugate posteriors; otherwise the outcome alone counts.

    Parameters
    ----------
    most:
        The number of points among which the recommendation may lie, beside the query itself. Those
        farther than 6 sds below the best mean are not among them, and of the others the `most` with
        the largest mean + 2 sd are taken: fewer points can only lower the value.
    points, noise, informs_mechanisms:
        The points, the variances of outcomes, and whether whole observations update the mechanisms,
        as `prepare` finds them in the context.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.Settings(acquisition=cb.acquisition.LookAhead(most=64)).rule.most
    64
    """

    most: int = 128
    points: Queries | None = None
    noise: Callable[[Queries], np.ndarray] | None = None
    informs_mechanisms: bool = False

    name = "look-ahead"
    at_vertices = False  # how much is learned is not convex in the values
    uses_costs = False
    is_nonnegative = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", read_count("most", self.most, 1))

    def prepare(self, context: Context) -> "LookAhead":
        """Return the acquisition with the points where the recommendation may lie."""
        surrogate, objective, points = context.surrogate, context.objective, self.points
        informs = offered(surrogate, "mean_change_variances")
        if points is None and context.informs_mechanisms and informs is not None:
            most = min(self.most, CONTENDERS)
            leading = promising(surrogate, context.candidates, objective, most)
            if informs(leading[:1], leading, leading[:1]) is not None:
                return replace(self, points=leading, noise=context.noise, informs_mechanisms=True)
        if points is None:
            among = context.recommendable if len(context.recommendable) else context.candidates
            points = promising(surrogate, among, objective, self.most)
        noise = context.noise if self.noise is None else self.noise
        return replace(self, points=points, noise=noise)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the expected improvements of the recommendation, (M,)."""
        if self.points is None or not len(self.points):
            raise ArgumentError(
                "the points where the recommendation may lie are not known: call prepare(context) "
                "first, or give points"
            )
        sign, means = sign_of(objective), surrogate.predict(self.points).mean
        if self.informs_mechanisms:
            return _observation_values(surrogate, queries, self.points, sign * means)
        mean, sd = surrogate.predict(queries)
        variances = self.noise or surrogate.post.outcome_variances
        spread = np.sqrt(sd**2 + variances(queries))
        scale = np.where(spread > 0, spread, 1.0)
        parts = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            slopes = cross_covariance(surrogate, queries[part], self.points) / scale[part, None]
            own_slope = sd[part] ** 2 / scale[part]
            a = sign * np.column_stack([np.broadcast_to(means, slopes.shape), mean[part]])
            gain = envelope_gain(a, sign * np.column_stack([slopes, own_slope]))
            parts.append(gain + np.maximum(a[:, -1] - (sign * means).max(), 0.0))
        return np.concatenate([np.zeros(0), *parts])


def _observation_values(
    surrogate: Surrogate, queries: Queries, points: Queries, means: np.ndarray
) -> np.ndarray:
    """Return the upper bounds (M,) of the improvement by one whole observation of each query.

    means: of the points, the larger the better.
    """
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
    """Return the queries that may turn out best, at most `most`, in their order.

    The one with the best mean is always among them.
    """
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
