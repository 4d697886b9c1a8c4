"""Would the fitted model have produced these data?

Mean and sd of every variable are compared with those of observations drawn from the posterior. The
noise of every mechanism is tested for dependence on its causes (curvature) and for its distribution
(skewness, kurtosis), with null distributions that are known. The noise e of n observations is
projected on the complement of the constant and the causes, r = e - Q Q'e, so that wrong
coefficients of these do not matter. If e is Gaussian with one sd,

- the share of |r|^2 that lies along q powers of a cause, orthogonalized too, is
  Beta(q / 2, (n - k - q) / 2), with k the rank of Q: the F-test of added regressors;
- skewness and kurtosis of r are nearly those of n independent normals: transformed to normal scores
  by D'Agostino (1970) and by Anscombe and Glynn (1983).

Each draw of a posterior has its own noise. At one draw from an exact posterior it is distributed as
the true noise, so that each p-value is uniform; twice the average of many is a valid p-value
however they depend on each other (Meng 1994). Linear mechanisms have the same r at every draw, and
then there is nothing to double.

Mechanisms whose Gaussian processes assume that they are as nonlinear everywhere are compared with
the same on a stretched cause: a Bayes factor of 1000 against the assumption counts as a p-value of
1/1000, which it is at most, by Markov's inequality.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import beta, norm

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm, sentence
from causal_bo_ppl.diagnostics.regressions import (
    find_regressions,
    joined_before,
    regressors_given_district,
)
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import (
    require_draws,
    require_observations_known,
    require_posterior,
)
from causal_bo_ppl.inputs import as_key, read_share
from causal_bo_ppl.mechanisms.base import NoiseModel, RegressionModel, Unevenness
from causal_bo_ppl.mechanisms.regression_tests import (
    ObservedRegression,
    combine,
    find_interactions,
    orthonormal,
)
from causal_bo_ppl.problem import Queries

FEWEST_OBSERVATIONS = 8  # beyond the regressors, for which the normal scores were tested
CAUSE_POWERS, FEW_CAUSE_POWERS = (2, 3, 4, 5), (2, 3)
OBSERVATIONS_FOR_ALL_POWERS = 24  # beyond the regressors, from which on four powers are added
# The normal score of a low kurtosis is too large by up to a factor of 5 in the p-value, and low
# kurtosis harms least: it gets a small part of the error rate.
HEAVY_TAIL_SHARE, LIGHT_TAIL_SHARE = 0.9, 0.02
INTERVAL_SDS = float(norm.isf(0.05))  # on each side, which hold 90 % of a Gaussian


class NoiseTest(NamedTuple):
    """One statistic of the noise, with its null distribution.

    observed: of the data, on average over the draws. expected: the median of the null distribution
    and the ends of 90 % of it. gap: how far the observed one is off, on the scale that is judged.
    p_values, scores, values: (s,) of each draw, the last two normal scores and values of the
    statistic. where: the cause that the statistic is about, if it is about one.
    """

    observed: float
    expected: tuple[float, float, float]
    gap: float
    p_values: np.ndarray
    scores: np.ndarray
    values: np.ndarray
    where: str = ""


class NoiseDesign(NamedTuple):
    """The regressors of a variable's noise, over the n observations in which it was not set.

    positions: (n,) of these observations. regressors: (n, k) orthonormal: constant and causes.
    added: {cause: (n, q)} orthonormal powers of each cause, orthogonal to the regressors; a cause
    that has two values has none.
    """

    positions: np.ndarray
    regressors: np.ndarray
    added: dict[str, np.ndarray]

    @property
    def freedom(self) -> int:
        """The number of observations beyond the regressors."""
        return len(self.positions) - int(self.regressors.shape[1])


def make_design(
    graph: CausalGraph,
    values: np.ndarray,
    free: np.ndarray,
    name: str,
    regressors: Sequence[str] | None = None,
) -> NoiseDesign:
    """Return the regressors of a variable, from observations (n, p) and where they were not set.

    Under latent causes these are also the members of its district before it and their causes, or
    the `regressors` of the regression that effects are averaged over, and observations in which
    such a member was set are omitted: given the others, the noise is Gaussian and independent of
    all before it, whatever the distribution of roots.
    """
    position, joined = graph.index(name), joined_before(graph, name)
    causes = regressors_given_district(graph, name) if regressors is None else regressors
    chosen = free[:, [position, *map(graph.index, joined)]].all(axis=1)
    linear = values[chosen][:, sorted(map(graph.index, causes))]
    basis = orthonormal(np.empty((len(linear), 0)), [np.ones(len(linear)), *linear.T])
    is_large = len(linear) - basis.shape[1] >= OBSERVATIONS_FOR_ALL_POWERS
    powers = CAUSE_POWERS if is_large else FEW_CAUSE_POWERS
    added = {}
    for cause in causes:
        column = values[chosen, graph.index(cause)]
        centred = column - column.mean() if len(column) else column
        largest = np.abs(centred).max(initial=0.0)
        scaled = centred / largest if largest > 0 else centred
        new = orthonormal(basis, [scaled**power for power in powers])
        if new.shape[1]:
            added[cause] = new
    return NoiseDesign(np.flatnonzero(chosen), basis, added)


def assess_noise(noise: np.ndarray, design: NoiseDesign) -> dict[str, NoiseTest]:
    """Test the noise (s, n) of s draws for "curvature", "skewness" and "kurtosis".

    There is no curvature where no cause has more than two values, and nothing where fewer than 8
    observations are beyond the regressors or the causes explain all.
    """
    if design.freedom < FEWEST_OBSERVATIONS:
        return {}
    rest = noise - (noise @ design.regressors) @ design.regressors.T
    squares = (rest**2).sum(axis=1)
    if not (squares > 0).all():
        return {}
    shape = {"skewness": _skewness(rest, squares), "kurtosis": _kurtosis(rest, squares)}
    return ({"curvature": _curvature(rest, squares, design)} if design.added else {}) | shape


def _curvature(rest: np.ndarray, squares: np.ndarray, design: NoiseDesign) -> NoiseTest:
    """Return the partial correlation with powers of the cause where it is most significant.

    Its p-value is multiplied by the number of causes that were tried.
    """
    sizes = np.array([new.shape[1] for new in design.added.values()])
    ones, others = sizes / 2, (design.freedom - sizes) / 2
    shares = np.stack([((rest @ new) ** 2).sum(axis=1) for new in design.added.values()]) / squares
    tails = np.asarray(beta.sf(shares, ones[:, None], others[:, None]))
    best = int(np.log(np.maximum(tails, 1e-300)).mean(axis=1).argmin())
    share, one, other = float(shares[best].mean()), ones[best], others[best]
    expected = _middle_and_ends(np.sqrt(beta.ppf((0.5, 0.05, 0.95), one, other)))
    gap = float(np.sqrt(max(share - one / (one + other), 0.0)))
    p_values = np.minimum(len(shares) * tails.min(axis=0), 1.0)
    scores = np.asarray(norm.isf(np.clip(tails.min(axis=0), 1e-300, 1 - 1e-16)))
    where, values = list(design.added)[best], np.sqrt(shares[best])
    return NoiseTest(float(np.sqrt(share)), expected, gap, p_values, scores, values, where)


def _middle_and_ends(values: np.ndarray) -> tuple[float, float, float]:
    middle, low, high = map(float, values)
    return middle, low, high


def _skewness(rest: np.ndarray, squares: np.ndarray) -> NoiseTest:
    n = rest.shape[1]
    values = (rest**3).mean(axis=1) / (squares / n) ** 1.5
    scores, observed = skewness_scores(values, n), float(values.mean())
    expected = _middle_and_ends(skewness_at(INTERVAL_SDS * np.array([0.0, -1.0, 1.0]), n))
    p_values = 2 * norm.sf(np.abs(scores))
    return NoiseTest(observed, expected, abs(observed), p_values, scores, values)


def _kurtosis(rest: np.ndarray, squares: np.ndarray) -> NoiseTest:
    n = rest.shape[1]
    values = (rest**4).mean(axis=1) / (squares / n) ** 2
    scores, observed = kurtosis_scores(values, n), float(np.log(values).mean())
    expected = _middle_and_ends(kurtosis_at(INTERVAL_SDS * np.array([0.0, -1.0, 1.0]), n))
    heavy, light = norm.sf(scores) / HEAVY_TAIL_SHARE, norm.cdf(scores) / LIGHT_TAIL_SHARE
    p_values = np.minimum(np.minimum(heavy, light), 1.0)
    gap = abs(observed - float(np.log(expected[0])))
    return NoiseTest(float(np.exp(observed)), expected, gap, p_values, scores, values)


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


CURVATURE, UNEVEN, INTERACTION = "curvature", "uneven curvature", "interaction"
# The difference that matters, on the scale on which it is compared, and the share of the error
# rate: most where power is scarce, least for what a fitted model hardly misses.
TOLERANCE_AND_SHARE = {
    "mean": (0.1, 0.25),
    "sd": (0.1, 0.25),
    "skewness": (0.2, 1.5),
    "kurtosis": (0.2, 5.0),
    "residual skewness": (0.2, 1.5),
    "residual kurtosis": (0.2, 5.0),
    CURVATURE: (0.1, 3.0),
    INTERACTION: (0.1, 3.0),
    UNEVEN: (1.0, 2.0),
}
CURVATURE_CHECK_DRAWS = 400  # data sets that the observations are compared with
MOST_NAMED_MECHANISMS = 3  # in a text; the table has all


class PredictiveRow(NamedTuple):
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
    """Compare every variable with the predictions of the fitted model.

    A row fails where the difference is significant after Holm's correction and larger than what
    matters (a mean by 0.1 sd, an sd by 10 %, a skewness by 0.2, a kurtosis by 20 %, a correlation
    by 0.1).

    The curvature of a mechanism is the correlation of its noise with powers of a cause (2 to 5, or
    2 and 3 where there are few observations), of the cause where it is most significant. Residual
    skewness and kurtosis are those of the noise of a mechanism that has causes. For linear
    mechanisms the first is the F-test of added regressors, exact for any number of observations;
    skewness and kurtosis have normal scores that were tested from 8 observations on. For Gaussian
    processes, and other mechanisms with Gaussian noise, twice the average of the p-values over the
    draws is taken, which is valid on average over the prior. Noise of other distributions is
    compared with that of observations drawn anew.

    Of 100 observations with a standard normal cause and noise of sd 0.5, sin(2x) and tanh(2x) are
    found in more than nine of ten data sets; noise with 3 degrees of freedom in seven of ten, where
    the likelihood ratio alone at 1 % finds nearly nine. An interaction is that of the two causes of
    a mechanism where it is most significant; `cb.diagnostics.check_interactions` has all pairs.
    Noise that varies in size is tested by `cb.diagnostics.check_noise`. Where latent causes join
    variables, the causes are the regressors that effects are averaged over.

    Where effects are linear, they depend on a root that no latent cause joins to others by its mean
    alone. Whether such a root (an integer, a sex) is Gaussian is shown, but is harmless, and is not
    judged.

    A Gaussian process is as nonlinear everywhere. The "uneven curvature" of such a mechanism fails
    where the data would be far likelier (Bayes factor above 1 / `alpha`, corrected) if one part of
    a cause were stretched against another, and the mechanism's mean would change at some
    observation by more than one of its sds. Then bands are too narrow where observations are
    sparse: of 100 observations of C = exp(-B) + e, with B of variance 2 and e of variance 1, the
    90 % interval of do(B = -3) holds the truth in about half of the data sets in which -3 lies
    among the observations; nine in ten of those in which it does not are named.

    Parameters
    ----------
    post:
        A posterior whose draws are of whole models, from at least 8 observations.
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
        A row for every statistic of every variable: `observed`, `predicted` with 90 % of the
        predictions between `low` and `high`, the `gap` on the scale compared, its `tolerance`, and
        the p-value, raw and corrected; a row that is not judged has no corrected one. Variables
        that are constant or have fewer than 8 observations in which they were not set are not
        assessed, nor is noise with fewer than 8 observations beyond the causes. For an uneven
        curvature, `observed` is the mechanism's mean `where` it would change most if the cause were
        stretched, `predicted` the fitted one, and the gap is in posterior sds. For a curvature
        `where` names the cause.

    Raises
    ------
    DataError
        If there are fewer than 8 observations.
    PosteriorError
        If the draws are of theta alone, or too few.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> cb.diagnostics.check_predictive(cb.fit(system.problem, system.observe(100, 0))).passed
    True
    """
    require_posterior("check_predictive", post)
    if post.n_observations < FEWEST_OBSERVATIONS:
        raise DataError(
            f"{post.n_observations} observations are too few to compare with predictions; at least "
            f"{FEWEST_OBSERVATIONS} are needed"
        )
    require_draws("check_predictive", draws, post)
    alpha = read_share("alpha", alpha)
    table = pd.DataFrame(_rows(post, draws, as_key(key)), columns=PredictiveRow._fields)
    constants = [TOLERANCE_AND_SHARE.get(name, (np.nan, 1.0)) for name in table["statistic"]]
    table["tolerance"], shares = np.array(constants).T
    known, counts = table["tolerance"].notna(), table.pop("counts").to_numpy(bool)
    judged = np.where(counts, table["p_value"].to_numpy(float), np.nan)
    table.insert(len(table.columns) - 1, "p_corrected", holm(judged, shares))
    bad = counts & ~(table["gap"] <= table["tolerance"]) & ~(table["p_corrected"] >= alpha)
    table["verdict"] = np.where(known, np.where(bad, FAILED, PASSED), UNKNOWN)
    harmless = table[known & ~counts & (table["p_value"] < alpha)]
    advice = _advise(table, post.distribution.response.is_affine)
    text = _describe(table[counts], post.n_observations) + _describe_harmless(harmless)
    return Check("posterior predictive", table, text, advice)


def check_curvature(post: Posterior, key: jax.Array | int = 0) -> Check:
    """Check for linear mechanisms whose residuals correlate with powers of a cause.

    These are the rows "curvature" of `cb.diagnostics.check_predictive`, with p-values corrected for
    all of its rows.
    """
    whole = check_predictive(post, draws=CURVATURE_CHECK_DRAWS, key=key)
    lines = whole.table[whole.table["statistic"] == "curvature"]
    table = lines.drop(columns="statistic").set_index("variable")
    failed = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    if not len(failed):
        text = (
            f"None of {len(table)} mechanisms is visibly nonlinear in {post.n_observations} "
            "observations."
        )
        return Check("mechanisms", table, text, whole=None if len(table) else UNKNOWN)
    words = [
        f"the residuals of {name} given its causes correlate with powers of {line['where']} "
        f"(correlation {line['observed']:.2f}, a linear mechanism predicts {line['low']:.2f} to "
        f"{line['high']:.2f})"
        for name, line in failed.iterrows()
    ]
    chosen = ", ".join(f'"{name}": "gp"' for name in failed.index[:6])
    text = (
        f"{len(failed)} of {len(table)} mechanisms are nonlinear: "
        f"{listed(words, most=MOST_NAMED_MECHANISMS)}."
    )
    advice = (
        "Linear mechanisms mislead experiments far from the observations: optimize with "
        f"mechanisms={{{chosen}}}, compare with cb.diagnostics.check_linearity, or keep "
        'discrepancy="auto".'
    )
    return Check("mechanisms", table, text, advice)


def _rows(post: Posterior, draws: int, key: jax.Array) -> Iterator[PredictiveRow]:
    graph = post.problem.graph.ancestral(post.problem.target)
    values, free = post.learned_observations
    draw_key, data_key = jax.random.split(key)
    model = require_observations_known("check_predictive", post)
    models = post.distribution.drawn(draws, draw_key).thinned(draws).models
    replicated = _replicate(post, models, data_key)
    is_affine = post.distribution.response.is_affine
    for position, name in enumerate(graph.nodes):
        chosen = free[:, position]
        count = chosen.sum()
        if count < FEWEST_OBSERVATIONS or not np.ptp(values[chosen, position]) > 0:
            if count:
                is_enough = count >= FEWEST_OBSERVATIONS
                yield PredictiveRow(name, "constant" if is_enough else f"{count} observations")
            continue
        observed, predicted = values[None, chosen, position], replicated[:, chosen, position]
        yield _compare_means(name, observed, predicted)
        yield _compare_sds(name, observed, predicted)
        tests, has_noise = _assess(post, models, name, (observed, predicted), key)
        if not tests:
            few = f"fewer than {FEWEST_OBSERVATIONS} observations beyond its causes"
            yield PredictiveRow(name, few)
        is_root = not graph.parents(name)
        is_harmless = is_root and graph.district(name) == (name,) and is_affine
        for statistic, test in tests.items():
            is_whole = is_root or statistic == CURVATURE or not has_noise
            yield PredictiveRow(
                name,
                statistic if is_whole else f"residual {statistic}",
                test.observed,
                *test.expected,
                test.gap,
                combine(test.p_values),
                test.where,
                not is_harmless,
            )
    for regression in find_regressions("check_predictive", post, key):
        if len(regression.regressors) > 1 and regression.is_testable:
            yield from _interaction(regression)
    if isinstance(model, RegressionModel):
        yield from map(_uneven, model.unevenness())


def _replicate(post: Posterior, models: Any, key: jax.Array) -> np.ndarray:
    """Return predictions (s, n, p) of all variables, those that were set at their observed values.

    Variables whose mechanism no effect needs stay as observed too. What they cause together with
    their own causes is predicted from the observed values of both: new values of the causes would
    not go with them.
    """
    graph = post.problem.graph.ancestral(post.problem.target)
    values, free = post.learned_observations
    model = require_observations_known("check_predictive", post)
    drawn = model.replicate(models, Queries(~free, np.where(free, 0.0, values)), key)
    learned = zip(graph.nodes, post.distribution.learned, strict=True)
    held = [name for name, known in learned if not known]
    causes = {*graph.ancestors(held)} if held else set()
    later = [name for name in graph.descendants(held) if name not in causes] if held else []
    if not later or causes <= {*held}:
        return np.asarray(drawn)
    kept, columns = free.copy(), [graph.index(name) for name in later if name not in held]
    kept[:, [graph.index(name) for name in causes]] = False
    given = model.replicate(models, Queries(~kept, np.where(kept, 0.0, values)), key)
    whole = np.array(drawn)
    whole[:, :, columns] = np.asarray(given)[:, :, columns]
    return whole


def _assess(
    post: Posterior,
    models: Any,
    name: str,
    whole: tuple[np.ndarray, np.ndarray],
    key: jax.Array,
) -> tuple[dict[str, NoiseTest], bool]:
    """Test the noise of one variable; return also whether the model has any.

    whole: values (1, n) of the variable and predicted ones (s, n), which are compared where the
    model has no noise.
    """
    graph = post.problem.graph.ancestral(post.problem.target)
    values, free = post.learned_observations
    model, position = require_observations_known("check_predictive", post), graph.index(name)
    if not isinstance(model, NoiseModel):
        n = whole[0].shape[1]  # the values themselves, centred
        design = NoiseDesign(np.arange(n), np.full((n, 1), 1 / np.sqrt(n)), {})
        return _compare_scores(*(assess_noise(part, design) for part in whole)), False
    plans = getattr(model, "plans", None)
    design = make_design(graph, values, free, name, None if plans is None else plans.given[name])
    given = values[design.positions]
    tests = assess_noise(model.disturbances(models, given[None], position), design)
    if not model.gaussian[position]:
        mask = np.ones(given.shape, bool)
        mask[:, position] = False  # this variable is drawn anew given the others
        others = Queries(mask, np.where(mask, given, 0.0))
        again = model.replicate(models, others, jax.random.fold_in(key, position))
        noise = model.disturbances(models, again, position)
        tests = _compare_scores(tests, assess_noise(noise, design))
    return tests, True


def _compare_scores(
    observed: dict[str, NoiseTest], again: dict[str, NoiseTest]
) -> dict[str, NoiseTest]:
    """Replace the null distributions of a Gaussian by those of observations drawn anew.

    Scores are nearly normal where noise is not far from it, so that their differences are compared
    with normal ones.
    """
    compared = {}
    for name, test in observed.items():
        if name not in again:
            continue
        other, is_curvature = again[name], name == CURVATURE
        scale = np.log if name == "kurtosis" else float
        gap = abs(float(scale(test.observed) - scale(other.observed)))
        compared[name] = test._replace(
            expected=_middle_and_ends(np.quantile(other.values, (0.5, 0.05, 0.95))),
            gap=test.gap if is_curvature else gap,
            p_values=_p_values(test.scores - other.scores, not is_curvature),
        )
    return compared


def _p_values(gaps: np.ndarray, two_sided: bool) -> np.ndarray:
    """Return the p-value (1,) of draws' differences (s,) from 0, as if these were normal."""
    mean, spread = float(gaps.mean()), float(gaps.std(ddof=1))
    if not spread > 0:
        return np.array([float(not abs(mean) > 0)])
    score = mean / spread
    return np.atleast_1d(2 * norm.sf(abs(score)) if two_sided else norm.sf(score))


def _interaction(regression: ObservedRegression) -> Iterator[PredictiveRow]:
    """Yield the row of the two regressors of one mechanism that interact most significantly."""
    tests = [test for test in find_interactions(regression) if np.isfinite(test.p_value)]
    if tests:
        most, freedom = min(tests, key=lambda test: test.p_value), len(regression.outcome)
        expected = np.sqrt(beta.ppf((0.5, 0.05, 0.95), 0.5, (freedom - 1) / 2))
        p_value, where = min(1.0, len(tests) * most.p_value), " * ".join(most.pair)
        numbers = most.observed, *_middle_and_ends(expected), most.gap, p_value, where
        yield PredictiveRow(regression.variable, INTERACTION, *numbers)


def _uneven(found: Unevenness) -> PredictiveRow:
    """Return the row of a mechanism with one of its causes stretched."""
    low, high = (found.fitted + sign * INTERVAL_SDS * found.sd for sign in (-1, 1))
    gap, p_value = abs(found.instead - found.fitted) / found.sd, np.exp(-max(found.log_factor, 0.0))
    means = (found.instead, found.fitted, low, high)
    where = f"{found.cause} = {found.value:.3g}"
    return PredictiveRow(found.variable, UNEVEN, *means, gap, float(p_value), where)


def _compare_means(name: str, observed: np.ndarray, predicted: np.ndarray) -> PredictiveRow:
    """Return the row of the mean, from values (1, n) and predicted ones (s, n)."""
    mean, means = observed.mean(), predicted.mean(axis=1)
    gap = abs(mean - means.mean()) / observed.std()
    return _moment_row(name, "mean", float(mean), means, gap, mean - means)


def _compare_sds(name: str, observed: np.ndarray, predicted: np.ndarray) -> PredictiveRow:
    """Return the row of the sd; cube roots of variances are nearly Gaussian."""
    sd, sds = observed.std(), predicted.std(axis=1)
    gap = abs(np.log(sd) - np.log(sds).mean())
    return _moment_row(name, "sd", float(sd), sds, gap, np.cbrt(sd**2) - np.cbrt(sds**2))


def _moment_row(
    name: str, statistic: str, observed: float, predicted: np.ndarray, gap: float, gaps: np.ndarray
) -> PredictiveRow:
    middle, (low, high) = float(predicted.mean()), np.quantile(predicted, (0.05, 0.95)).tolist()
    p_value = combine(_p_values(gaps, True))
    return PredictiveRow(name, statistic, observed, middle, low, high, float(gap), p_value)


def _describe(table: pd.DataFrame, count: int) -> str:
    failed = table[table["verdict"] == FAILED].sort_values("p_value", kind="stable")
    assessed = (table["verdict"] != UNKNOWN).sum()
    unknown = table.loc[table["verdict"] == UNKNOWN, "variable"].unique()
    rest = (
        f" Not assessed (constant, or fewer than {FEWEST_OBSERVATIONS} observations beyond its "
        f"causes): {listed(unknown)}."
        if len(unknown)
        else ""
    )
    if not len(failed):
        statistics = f"{assessed} statistics of {count} observations"
        return f"All of {statistics} lie where the model predicts them.{rest}"
    parts = "; ".join(_describe_row(row) for _, row in failed.head(3).iterrows())
    share = f"{len(failed)} of {assessed} statistics"
    return f"The model would not have produced these data ({share}): {parts}.{rest}"


def _describe_row(row: pd.Series) -> str:
    about = f"the {row['statistic']} of {row['variable']} is {row['observed']:.3g}"
    if row["statistic"] == UNEVEN:
        about = (
            f"{row['variable']} is more nonlinear in one part of the data than in another: near "
            f"{row['where']} its mean may be {row['observed']:.3g}"
        )
    return f"{about}, predicted {row['predicted']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def _describe_harmless(harmless: pd.DataFrame) -> str:
    """Return a sentence about roots that are not Gaussian, where effects do not depend on it."""
    names = harmless["variable"].unique()
    if not len(names):
        return ""
    verb, their = ("is", "its mean") if len(names) == 1 else ("are", "their means")
    return (
        f" {listed(names)} {verb} not Gaussian, which is harmless for effects: with linear "
        f"mechanisms they depend on {their} alone."
    )


def _advise(table: pd.DataFrame, is_affine: bool) -> str:
    """Return the advice; is_affine: whether the effects of these mechanisms are linear.

    Curvature that is not modelled makes the noise look other than Gaussian, so that only the
    curvature is mentioned then.
    """
    rows = table[table["verdict"] == FAILED]
    nonlinear = rows.loc[rows["statistic"].isin((CURVATURE, INTERACTION)), "variable"]
    is_left = rows["statistic"].str.startswith("residual") & rows["variable"].isin(nonlinear)
    failed = set(rows.loc[~is_left, "statistic"])
    advice = []
    if CURVATURE in failed:
        advice.append(
            'a mechanism is nonlinear: take mechanisms="gp" for it, transform the variable, or do '
            "not trust effects far from the data"
            if is_affine
            else "a mechanism is more nonlinear than these mechanisms can be: do not keep it "
            "linear, give it more functions or a shorter lengthscale, let causes that act "
            "together share a group, or look for outliers"
        )
    elif UNEVEN in failed:
        advice.append(
            "a mechanism is more nonlinear in one part of the data than in another, and its bands "
            "are too narrow where observations are sparse: give it more functions if "
            "cb.diagnostics.check_basis fails, transform the cause so that the curvature is even "
            "(its logarithm or exponential), add observations there, or take intervals there as "
            "twice as wide; noise that varies in size looks alike"
        )
    if INTERACTION in failed:
        advice.append(
            "causes interact: cb.diagnostics.check_interactions(post) names mechanisms that hold it"
        )
    if failed & {"residual skewness", "residual kurtosis"}:
        advice.append(
            "the noise of a mechanism is not Gaussian: look for outliers, bounds or several groups "
            "in the residuals; averages over it are off where a later mechanism is nonlinear"
        )
    elif failed & {"skewness", "kurtosis"}:
        advice.append(
            "a variable is not Gaussian: look for outliers, bounds or several groups, or "
            "transform it"
        )
    if failed & {"mean", "sd"}:
        advice.append(
            "location or scale is off: look at the prior, known coefficients and what was set in "
            "which observations"
        )
    return sentence(advice)
