"""Are disturbances Gaussian, and independent of the causes? Tests with a known null distribution.

Disturbances e of n rows are projected on what is orthogonal to the constant and the causes,
r = e - Q Q'e, so that wrong coefficients of these do not matter. If e is Gaussian with one sd,

- the share of |r|^2 that lies along q powers of a cause, orthogonalized too, is
  Beta(q / 2, (n - k - q) / 2), with k the rank of Q: the F-test of added regressors;
- skewness and kurtosis of r are nearly those of n independent normals: transformed to normal scores
  by D'Agostino (1970) and by Anscombe and Glynn (1983).

Each draw of a posterior has disturbances of its own. At one draw from an exact posterior they are
distributed as the true ones, so that each p-value is uniform; twice the average of many is a valid
p-value however they depend on each other (Meng 1994). Linear mechanisms have the same r at every
draw, and then there is nothing to double.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import beta, norm

from causal_bo_ppl.graph import CausalGraph

FEWEST = 8  # rows beyond the regressors, for which the normal scores were tried
POWERS, FEW_POWERS = (2, 3, 4, 5), (2, 3)
MANY = 24  # rows beyond the regressors from which on four powers are added
NEW = 1e-6  # share of a column's length that must be new, or it says nothing
# The normal score of a low kurtosis is too large by up to a factor of 5 in the p-value, and low
# kurtosis harms least: it gets a small part of the error rate.
HEAVY, LIGHT = 0.9, 0.02
TAIL = float(norm.isf(0.05))  # sds on each side that hold 90 % of a Gaussian


class Ends(NamedTuple):
    """The median of a statistic's null distribution, and the ends of 90 % of it."""

    middle: float
    low: float
    high: float


class Tested(NamedTuple):
    """One statistic of disturbances, with what is expected of it.

    observed: of the rows, on average over the draws. expected: the null distribution. gap: how far
    the observed one is off, on the scale that is judged. p_values, scores, values: (s,) of each
    draw, the last two normal scores and values of the statistic. where: the cause that the
    statistic is about, if it is about one.
    """

    observed: float
    expected: Ends
    gap: float
    p_values: np.ndarray
    scores: np.ndarray
    values: np.ndarray
    where: str = ""


class Design(NamedTuple):
    """What disturbances of a variable are compared with, over the n rows in which it is free.

    rows: (n,) places of these rows. regressors: (n, k) orthonormal: constant and causes. added:
    {cause: (n, q)} orthonormal powers of each cause, orthogonal to the regressors; a cause that has
    two values has none.
    """

    rows: np.ndarray
    regressors: np.ndarray
    added: dict[str, np.ndarray]

    @property
    def freedom(self) -> int:
        """The number of rows beyond the regressors."""
        return len(self.rows) - int(self.regressors.shape[1])


def make_design(graph: CausalGraph, values: np.ndarray, free: np.ndarray, name: str) -> Design:
    """Return the regressors of a variable, from rows (n, p) and where they were not set.

    Under latent causes these are also the members of its district before it and their causes, and
    rows in which such a member was set are left out: given the others, the disturbance is Gaussian
    and independent of all before it, whatever the distribution of roots.
    """
    place, causes = graph.index(name), graph.parents(name)
    joined = joined_before(graph, name)
    members = {*causes, *joined, *(cause for each in joined for cause in graph.parents(each))}
    chosen = free[:, [place, *map(graph.index, joined)]].all(axis=1)
    linear = values[chosen][:, sorted(map(graph.index, members))]
    basis = _orthonormal(np.empty((len(linear), 0)), [np.ones(len(linear)), *linear.T])
    powers = POWERS if len(linear) - basis.shape[1] >= MANY else FEW_POWERS
    added = {}
    for cause in causes:
        column = values[chosen, graph.index(cause)]
        centred = column - column.mean() if len(column) else column
        largest = np.abs(centred).max(initial=0.0)
        scaled = centred / largest if largest > 0 else centred
        new = _orthonormal(basis, [scaled**power for power in powers])
        if new.shape[1]:
            added[cause] = new
    return Design(np.flatnonzero(chosen), basis, added)


def plain_design(n: int) -> Design:
    """Return a design of n rows for values themselves: they are centred, and nothing is added."""
    return Design(np.arange(n), np.full((n, 1), 1 / np.sqrt(n)), {})


def joined_before(graph: CausalGraph, name: str) -> tuple[str, ...]:
    """Return the variables before this one that latent causes join with it, through such ones."""
    last = graph.index(name)
    arcs = [arc for arc in graph.bidirected if max(map(graph.index, arc)) <= last]
    found = {name}
    while True:
        more = {each for arc in arcs if found & {*arc} for each in arc} - found
        if not more:
            return tuple(sorted(found - {name}, key=graph.index))
        found |= more


def _orthonormal(basis: np.ndarray, columns: list[np.ndarray]) -> np.ndarray:
    """Return an orthonormal basis (n, q) of what columns have beyond an orthonormal one (n, k)."""
    whole = basis
    for column in columns:
        length = np.linalg.norm(column)
        if not length > 0:
            continue
        rest = column / length
        for _ in range(2):  # once more, since rounding leaves a part
            rest = rest - whole @ (whole.T @ rest)
        size = np.linalg.norm(rest)
        if size > NEW:
            whole = np.column_stack([whole, rest / size])
    return whole[:, basis.shape[1] :]


def assess_disturbances(errors: np.ndarray, design: Design) -> dict[str, Tested]:
    """Test disturbances (s, n) of s draws for "curvature", "skewness" and "kurtosis".

    There is no curvature where no cause has more than two values, and nothing where fewer than 8
    rows are beyond the regressors or the causes explain all.
    """
    if design.freedom < FEWEST:
        return {}
    rest = errors - (errors @ design.regressors) @ design.regressors.T
    squares = (rest**2).sum(axis=1)
    if not (squares > 0).all():
        return {}
    shape = {"skewness": _skewness(rest, squares), "kurtosis": _kurtosis(rest, squares)}
    return ({"curvature": _curvature(rest, squares, design)} if design.added else {}) | shape


def combine(p_values: np.ndarray) -> float:
    """Return one p-value for those of many draws, which need not be independent."""
    mean = float(p_values.mean())
    is_same = np.ptp(p_values) <= 1e-6 * mean
    return mean if is_same else min(1.0, 2 * mean)


def _curvature(rest: np.ndarray, squares: np.ndarray, design: Design) -> Tested:
    """Return the partial correlation with powers of the cause where it is most significant.

    Its p-value is multiplied by the number of causes that were tried.
    """
    shares = {
        cause: ((rest @ new) ** 2).sum(axis=1) / squares for cause, new in design.added.items()
    }
    halves = {
        cause: (new.shape[1] / 2, (design.freedom - new.shape[1]) / 2)
        for cause, new in design.added.items()
    }
    tails = np.stack([beta.sf(shares[cause], *halves[cause]) for cause in shares])
    cause = list(shares)[int(np.log(np.maximum(tails, 1e-300)).mean(axis=1).argmin())]
    share, (one, other) = float(shares[cause].mean()), halves[cause]
    middle, low, high = np.sqrt(beta.ppf((0.5, 0.05, 0.95), one, other))
    gap = np.sqrt(max(share - one / (one + other), 0.0))
    p_values = np.minimum(len(shares) * tails.min(axis=0), 1.0)
    scores = norm.isf(np.clip(tails.min(axis=0), 1e-300, 1 - 1e-16))
    ends, values = Ends(float(middle), float(low), float(high)), np.sqrt(shares[cause])
    return Tested(float(np.sqrt(share)), ends, float(gap), p_values, scores, values, cause)


def _skewness(rest: np.ndarray, squares: np.ndarray) -> Tested:
    n = rest.shape[1]
    values = (rest**3).mean(axis=1) / (squares / n) ** 1.5
    scores = skewness_scores(values, n)
    ends = Ends(*skewness_at(np.array([0.0, -TAIL, TAIL]), n).tolist())
    gap = abs(float(values.mean()))
    return Tested(float(values.mean()), ends, gap, 2 * norm.sf(np.abs(scores)), scores, values)


def _kurtosis(rest: np.ndarray, squares: np.ndarray) -> Tested:
    n = rest.shape[1]
    values = (rest**4).mean(axis=1) / (squares / n) ** 2
    scores = kurtosis_scores(values, n)
    ends = Ends(*kurtosis_at(np.array([0.0, -TAIL, TAIL]), n).tolist())
    p_values = np.minimum(np.minimum(norm.sf(scores) / HEAVY, norm.cdf(scores) / LIGHT), 1.0)
    gap = abs(float(np.log(values).mean()) - float(np.log(ends.middle)))
    return Tested(float(np.exp(np.log(values).mean())), ends, gap, p_values, scores, values)


def skewness_scores(values: np.ndarray, n: int) -> np.ndarray:
    """Return normal scores of the skewness of n normals (D'Agostino 1970)."""
    unit, width, power = _skewness_constants(n)
    return np.asarray(power * np.arcsinh(values / (unit * width)))


def skewness_at(scores: np.ndarray, n: int) -> np.ndarray:
    """Return the skewness that has these normal scores."""
    unit, width, power = _skewness_constants(n)
    return np.asarray(unit * width * np.sinh(scores / power))


def _skewness_constants(n: int) -> tuple[float, float, float]:
    unit = np.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))  # the sd of the skewness
    fourth = 3.0 * (n**2 + 27 * n - 70) * (n + 1) * (n + 3)
    fourth /= (n - 2) * (n + 5) * (n + 7) * (n + 9)
    square = np.sqrt(2 * (fourth - 1)) - 1
    return float(unit), float(np.sqrt(2 / (square - 1))), float(1 / np.sqrt(0.5 * np.log(square)))


def kurtosis_scores(values: np.ndarray, n: int) -> np.ndarray:
    """Return normal scores of the kurtosis of n normals (Anscombe and Glynn 1983)."""
    mean, sd, degrees = _kurtosis_constants(n)
    ratio = 1 + (values - mean) / sd * np.sqrt(2 / (degrees - 4))
    with np.errstate(divide="ignore"):
        root = np.cbrt((1 - 2 / degrees) / ratio)
    return np.asarray((1 - 2 / (9 * degrees) - root) / np.sqrt(2 / (9 * degrees)))


def kurtosis_at(scores: np.ndarray, n: int) -> np.ndarray:
    """Return the kurtosis that has these normal scores."""
    mean, sd, degrees = _kurtosis_constants(n)
    root = 1 - 2 / (9 * degrees) - scores * np.sqrt(2 / (9 * degrees))
    ratio = (1 - 2 / degrees) / root**3
    return np.asarray(mean + sd * (ratio - 1) / np.sqrt(2 / (degrees - 4)))


def _kurtosis_constants(n: int) -> tuple[float, float, float]:
    """Return mean and sd of the kurtosis, and the degrees of freedom of its reciprocal's root."""
    mean = 3 * (n - 1) / (n + 1)
    sd = np.sqrt(24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5)))
    third = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9))
    third *= np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    degrees = 6 + 8 / third * (2 / third + np.sqrt(1 + 4 / third**2))
    return float(mean), float(sd), float(degrees)
