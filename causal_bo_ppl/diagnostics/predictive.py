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

Would the model have produced such rows?

Mean and sd of every variable are compared with those of rows drawn from the posterior. The
disturbances of every mechanism are tested for what causes leave unexplained (curvature) and for
their distribution (skewness, kurtosis), with null distributions that are known; see
`disturbance_tests`.

Mechanisms whose Gaussian processes assume that they bend as strongly everywhere are compared with
the same on a stretched cause: a Bayes factor of 1000 against the assumption counts as a p-value of
1/1000, which it is at most, by Markov's inequality.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import beta, norm

from causal_bo_ppl.checks import FAILED, UNKNOWN, Check, holm, judge, sentence
from causal_bo_ppl.diagnostics.convergence import (
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.base import ObservationModel
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.base import Unevenness, offered
from causal_bo_ppl.problem import Queries

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
    position, causes = graph.index(name), graph.parents(name)
    joined = joined_before(graph, name)
    members = {*causes, *joined, *(cause for each in joined for cause in graph.parents(each))}
    chosen = free[:, [position, *map(graph.index, joined)]].all(axis=1)
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


CURVATURE = "curvature"
# The differences that matter, on the scales on which they are compared, and how the error rate is
# shared: most where power is scarce, least for what a fitted model hardly misses.
TOLERANCES = {
    "mean": 0.1,
    "sd": 0.1,
    "skewness": 0.2,
    "kurtosis": 0.2,
    "residual skewness": 0.2,
    "residual kurtosis": 0.2,
    CURVATURE: 0.1,
    "uneven curvature": 1.0,
}
SHARES = {
    "mean": 0.25,
    "sd": 0.25,
    "skewness": 1.5,
    "kurtosis": 5.0,
    "residual skewness": 1.5,
    "residual kurtosis": 5.0,
    CURVATURE: 3.0,
    "uneven curvature": 2.0,
}


class Line(NamedTuple):
    """One statistic of one variable; `counts`: whether it is judged."""

    variable: str
    statistic: str
    observed: float = np.nan
    predicted: float = np.nan
    low: float = np.nan
    high: float = np.nan
    gap: float = np.nan
    p_value: float = np.nan
    where: str = ""
    counts: bool = True


def check_predictive(
    post: Posterior, *, draws: int = 400, alpha: float = 0.01, key: jax.Array | int = 0
) -> Check:
    """Compare every variable with what the fitted model predicts for it.

    A line fails where the difference is significant after Holm's correction and larger than what
    matters (a mean by 0.1 sd, an sd by 10 %, a skewness by 0.2, a kurtosis by 20 %, a correlation
    by 0.1).

    The curvature of a mechanism is the correlation of its disturbances with powers of a cause (2 to
    5, or 2 and 3 where there are few rows), of the cause where it is most significant. Residual
    skewness and kurtosis are those of the disturbances of a mechanism that has causes. For linear
    mechanisms the first is the F-test of added regressors, exact for any number of rows; skewness
    and kurtosis have normal scores that were tried from 8 rows on. For Gaussian processes, and
    other mechanisms with Gaussian disturbances, twice the average of the p-values over the draws is
    taken, which is valid on average over the prior. Disturbances of other kinds are compared with
    those of rows drawn anew.

    Of 100 rows with a standard normal cause and disturbances of sd 0.5, sin(2x) and tanh(2x) are
    found in more than nine of ten data sets; disturbances with 3 degrees of freedom in seven of
    ten, where the likelihood ratio alone at 1 % finds nearly nine. Interactions of causes, and
    disturbances that vary in size, are not looked for.

    Where effects are lines, they depend on a root that no latent cause joins to others by its mean
    alone. Whether such a root (an integer, a sex) is Gaussian is shown, but does no harm, and is
    not judged.

    A Gaussian process bends as strongly everywhere. The "uneven curvature" of such a mechanism
    fails where the rows would be far likelier (Bayes factor above 1 / `alpha`, corrected) if one
    part of a cause were stretched against another, and the mechanism's mean would change in some
    row by more than one of its sds. Then bands are too narrow where rows are sparse: of 100 rows of
    C = exp(-B) + e, with B of variance 2 and e of variance 1, the 90 % interval of do(B = -3) holds
    the truth in about half of the data sets in which -3 lies among the rows; nine in ten of those
    in which it does not are named.

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 8 rows.
    draws:
        How many data sets are predicted.
    alpha:
        How often a true model may fail at all, over all variables and statistics: in at most this
        share of data sets. p-values are corrected for their number (Holm, weighted: a curvature
        gets twelve times the share of a mean).
    key:
        A JAX key or an int seed.

    Returns
    -------
    Check
        A line for every statistic of every variable: `observed`, `predicted` with 90 % of the
        predictions between `low` and `high`, the `gap` on the scale compared, its `tolerance`, and
        the p-value, raw and corrected; a line that is not judged has no corrected one. Variables
        that are constant or have fewer than 8 free rows are not assessed, nor are disturbances with
        fewer than 8 rows beyond the causes. For an uneven curvature, `observed` is the mechanism's
        mean in the row `where` it would change most if the cause were stretched, `predicted` what
        was fitted, and the gap is in posterior sds. For a curvature `where` names the cause.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_predictive(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_predictive", post)
    if post.n_observations < FEWEST:
        raise DataError(
            f"{post.n_observations} rows are too few to compare with predictions; at least {FEWEST} are "
            "needed"
        )
    require_draws("check_predictive", draws, post)
    alpha = read_share("alpha", alpha)
    table = pd.DataFrame(_lines(post, draws, as_key(key)), columns=Line._fields)
    known, counts = table["statistic"].isin(list(TOLERANCES)), table.pop("counts").to_numpy(bool)
    judged = np.where(counts, table["p_value"].to_numpy(float), np.nan)
    table["p_corrected"] = holm(judged, table["statistic"].map(SHARES).fillna(1.0).to_numpy())
    table["tolerance"] = table["statistic"].map(TOLERANCES)
    bad = counts & ~(table["gap"] <= table["tolerance"]) & ~(table["p_corrected"] >= alpha)
    table["verdict"] = [
        judge(not each) if is_known else UNKNOWN for each, is_known in zip(bad, known, strict=True)
    ]
    harmless = table[known & ~counts & (table["p_value"] < alpha)]
    advice = _advise(table, post.distribution.response.is_affine)
    text = _tell(table[counts], post.n_observations) + _tell_harmless(harmless)
    return Check("posterior predictive", table, text, advice)


def _lines(post: Posterior, draws: int, key: jax.Array) -> Iterator[Line]:
    graph, (values, free) = (
        post.problem.graph.ancestral(post.problem.target),
        post.learned_observations,
    )
    for_draws, for_rows = jax.random.split(key)
    model = require_observations_known("check_predictive", post)
    models = post.distribution.drawn(draws, for_draws).thinned(draws).models
    rows = model.replicate(models, Queries(~free, np.where(free, 0.0, values)), for_rows)
    is_affine = post.distribution.response.is_affine
    for position, name in enumerate(graph.nodes):
        chosen = free[:, position]
        if chosen.sum() < FEWEST or not np.ptp(values[chosen, position]) > 0:
            if chosen.any():
                why = "constant" if chosen.sum() >= FEWEST else f"{chosen.sum()} rows"
                yield Line(name, why)
            continue
        seen, predicted = values[None, chosen, position], rows[:, chosen, position]
        yield _compare_means(name, seen, predicted)
        yield _compare_sds(name, seen, predicted)
        found, is_own = _assess(post, models, name, (seen, predicted), key)
        if not found:
            yield Line(name, f"fewer than {FEWEST} rows beyond its causes")
        is_root = not graph.parents(name)
        is_harmless = is_root and graph.district(name) == (name,) and is_affine
        for statistic, each in found.items():
            is_whole = is_root or statistic == CURVATURE or not is_own
            line = Line(
                name,
                statistic if is_whole else f"residual {statistic}",
                each.observed,
                *each.expected,
                each.gap,
                combine(each.p_values),
                each.where,
            )
            yield line._replace(counts=not is_harmless)
    stretched = offered(model, "unevenness")
    if stretched is not None:
        yield from map(_uneven, stretched())


def _assess(
    post: Posterior,
    models: Any,
    name: str,
    whole: tuple[np.ndarray, np.ndarray],
    key: jax.Array,
) -> tuple[dict[str, Tested], bool]:
    """Test the disturbances of one variable; return also whether the model has any.

    whole: values (1, n) of the variable and predicted ones (s, n), which are compared where the
    model has no disturbances.
    """
    graph, (values, free) = (
        post.problem.graph.ancestral(post.problem.target),
        post.learned_observations,
    )
    model, position = require_observations_known("check_predictive", post), graph.index(name)
    errors = offered(model, "disturbances")
    if errors is None:
        alone = plain_design(whole[0].shape[1])
        return _compare_scores(*(assess_disturbances(each, alone) for each in whole)), False
    design = make_design(graph, values, free, name)
    given = values[design.rows][None]
    found = assess_disturbances(errors(models, given, position), design)
    known = getattr(model, "gaussian", None)
    if known is None or not known[position]:
        again = _replicate_one(model, models, given[0], position, jax.random.fold_in(key, position))
        theirs = assess_disturbances(errors(models, again, position), design)
        found = _compare_scores(found, theirs)
    return found, True


def _replicate_one(
    model: ObservationModel, models: Any, values: np.ndarray, position: int, key: jax.Array
) -> np.ndarray:
    """Draw one variable anew given the others in rows (n, p), of shape (s, n, p)."""
    mask = np.ones(values.shape, bool)
    mask[:, position] = False
    return model.replicate(models, Queries(mask, np.where(mask, values, 0.0)), key)


def _compare_scores(seen: dict[str, Tested], again: dict[str, Tested]) -> dict[str, Tested]:
    """Replace the null distributions of a Gaussian by those of rows drawn anew.

    Scores are nearly normal where disturbances are not far from it, so that their differences are
    compared with normal ones.
    """
    return {
        name: each._replace(
            expected=Ends(*np.quantile(again[name].values, (0.5, 0.05, 0.95)).tolist()),
            gap=each.gap if name == CURVATURE else abs(_scaled(name, each, again[name])),
            p_values=_p_values(each.scores - again[name].scores, name != CURVATURE),
        )
        for name, each in seen.items()
        if name in again
    }


def _scaled(name: str, one: Tested, other: Tested) -> float:
    """Return the difference of two statistics on the scale on which they are judged."""
    scale = np.log if name == "kurtosis" else float
    return float(scale(one.observed) - scale(other.observed))


def _p_values(gaps: np.ndarray, two_sided: bool) -> np.ndarray:
    """Return the p-value (1,) of draws' differences (s,) from 0, as if these were normal."""
    mean, spread = float(gaps.mean()), float(gaps.std(ddof=1))
    if not spread > 0:
        return np.array([float(not abs(mean) > 0)])
    score = mean / spread
    return np.atleast_1d(2 * norm.sf(abs(score)) if two_sided else norm.sf(score))


def _uneven(found: Unevenness) -> Line:
    """Return the line of a mechanism with one of its causes stretched."""
    low, high = (found.fitted + sign * TAIL * found.sd for sign in (-1, 1))
    gap, p_value = abs(found.instead - found.fitted) / found.sd, np.exp(-max(found.log_factor, 0.0))
    means = (found.instead, found.fitted, low, high)
    where = f"{found.cause} = {found.value:.3g}"
    return Line(found.variable, "uneven curvature", *means, gap, float(p_value), where)


def _compare_means(name: str, seen: np.ndarray, predicted: np.ndarray) -> Line:
    """Return the line of the mean, from values (1, n) and predicted ones (s, n)."""
    mean, means = seen.mean(), predicted.mean(axis=1)
    gap = abs(mean - means.mean()) / seen.std()
    return _line(name, "mean", float(mean), means, gap, mean - means)


def _compare_sds(name: str, seen: np.ndarray, predicted: np.ndarray) -> Line:
    """Return the line of the sd; cube roots of variances are nearly Gaussian."""
    sd, sds = seen.std(), predicted.std(axis=1)
    gap = abs(np.log(sd) - np.log(sds).mean())
    return _line(name, "sd", float(sd), sds, gap, np.cbrt(sd**2) - np.cbrt(sds**2))


def _line(
    name: str, statistic: str, seen: float, predicted: np.ndarray, gap: float, gaps: np.ndarray
) -> Line:
    low, high = np.quantile(predicted, (0.05, 0.95))
    p_value = combine(_p_values(gaps, True))
    middle = float(predicted.mean())
    return Line(name, statistic, seen, middle, float(low), float(high), float(gap), p_value)


def _tell(table: pd.DataFrame, rows: int) -> str:
    failed = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    assessed = table[table["verdict"] != UNKNOWN]
    left_out = table.loc[table["verdict"] == UNKNOWN, "variable"]
    rest = (
        f" Not assessed (constant, or fewer than {FEWEST} free rows beyond its causes): "
        f"{listed(left_out.unique())}."
        if len(left_out)
        else ""
    )
    if not len(failed):
        statistics = f"{len(assessed)} statistics of {rows} rows"
        return f"All of {statistics} lie where the model predicts them.{rest}"
    words = [
        (
            f"{line['variable']} bends more in one part of the data than in another: near "
            f"{line['where']} its mean may be {line['observed']:.3g}, "
            if line["statistic"] == "uneven curvature"
            else f"the {line['statistic']} of {line['variable']} is {line['observed']:.3g}, "
        )
        + f"predicted {line['predicted']:.3g} [{line['low']:.3g}, {line['high']:.3g}]"
        for _, line in failed.head(3).iterrows()
    ]
    count = f"{len(failed)} of {len(assessed)} statistics"
    return f"The model would not have produced these rows ({count}): {'; '.join(words)}.{rest}"


def _tell_harmless(harmless: pd.DataFrame) -> str:
    """Say which roots are not Gaussian, and that effects do not depend on it."""
    names = harmless["variable"].unique()
    if not len(names):
        return ""
    verb, their = ("is", "its mean") if len(names) == 1 else ("are", "their means")
    return (
        f" {listed(names)} {verb} not Gaussian, which is harmless for effects: with straight "
        f"mechanisms they depend on {their} alone."
    )


def _advise(table: pd.DataFrame, is_affine: bool) -> str:
    """Say what to do; is_affine: whether the effects of these mechanisms cannot bend.

    What a bend leaves in the disturbances is no reason to doubt that these are Gaussian.
    """
    lines = table[table["verdict"] == FAILED]
    bent = lines.loc[lines["statistic"] == CURVATURE, "variable"]
    is_left = lines["statistic"].str.startswith("residual") & lines["variable"].isin(bent)
    failed = set(lines.loc[~is_left, "statistic"])
    advice = []
    if CURVATURE in failed:
        advice.append(
            'a mechanism bends: take mechanisms="gp" for it, transform the variable, or do not '
            "trust effects far from the data"
            if is_affine
            else "a mechanism bends more than these mechanisms follow: let it bend where it was "
            "kept linear, give it more functions or a shorter lengthscale, let causes that act "
            "together share a group, or look for outliers"
        )
    elif "uneven curvature" in failed:
        advice.append(
            "a mechanism bends more in one part of the data than in another, and its bands are too "
            "narrow where rows are sparse: give it more functions if cb.diagnostics.check_basis fails, "
            "transform the cause so that it bends evenly (its logarithm or exponential), add rows "
            "there, or take intervals there for twice as wide; "
            "disturbances that vary in size look alike"
        )
    if failed & {"residual skewness", "residual kurtosis"}:
        advice.append(
            "a disturbance is not Gaussian: look for outliers, bounds or several groups in what "
            "the causes leave unexplained; averages over it are off where a later mechanism bends"
        )
    elif failed & {"skewness", "kurtosis"}:
        advice.append(
            "a variable is not Gaussian: look for outliers, bounds or several groups, or "
            "transform it"
        )
    if failed & {"mean", "sd"}:
        advice.append(
            "location or scale is off: look at the prior, known coefficients and what was set in "
            "which rows"
        )
    return sentence(advice)
