"""Do the regressions that a model was fitted by miss something, such as an interaction?

A regression of a variable on its causes (under latent causes: on the regressors that effects are
averaged over) has a part without penalty, columns X with an orthonormal basis Q, and a part with a
Gaussian prior, features F in units of the noise, as those of Gaussian processes at the mode of
their hyperparameters. With v_0 = v - Q Q'v,

    R v = v_0 - F_0 (I + F_0'F_0)^-1 F_0' v_0

is Q_0 (Q_0' (I + F F') Q_0)^-1 Q_0' v, with Q_0 a basis of all that is orthogonal to X: the inverse
covariance of what the columns X cannot explain, in units of the noise. So the smoothing is part of
the null hypothesis: residuals R y have the covariance R, and for further columns Z

    (Z'Ry)' (Z'RZ)^-1 Z'Ry / (y'Ry)  ~  Beta(q / 2, (n - k - q) / 2),

exactly for given hyperparameters, up to one common factor of all variances. Without features this
is the F-test of added regressors.

X holds the regressors and powers of these, so that neither curvature that a linear mechanism lacks,
nor what a Gaussian process smooths away of it, is mistaken for something else.

**Interactions.** For every two regressors a and b of a regression the products ab, and ab, a^2 b,
a b^2, a^2 b^2 together, are tested beyond the fitted regression and powers of all regressors, by

    F = ((n - k - q) / q) S' G^-1 S / (y'Ry - S' G^-1 S),   S = Z'Ry,  G = Z'RZ.

Where the noise varies with a and b, so do products of it, and F is too large. So the statistic with
the covariance of S from squared residuals (HC3: each over the square of its own share of R),

    W = S' V^-1 S / q,   V = sum_i z_i z_i' (r_i / d_i)^2,   z = RZ,

must be as large: the p-value is the larger of the two, and twice the smaller of both sets of
products.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.stats import f as fisher

from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, Check, holm
from causal_bo_ppl.errors import DataError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_observations_known, require_posterior
from causal_bo_ppl.inputs import as_key, offered, read_share
from causal_bo_ppl.mechanisms.gp_priors import (
    CONSTANT,
    GP,
    MOST_CAUSES_IN_A_GROUP,
    Linear,
    MechanismChoice,
)

FEWEST_OBSERVATIONS = 8  # beyond the regressors, for which the tests were tried
MOST_OBSERVATIONS = 10_000  # of more, evenly spaced ones are tested: they show all that matters
LARGEST_POWER = 3  # of a regressor, where observations are many
OBSERVATIONS_PER_COLUMN = 4  # at least, so that powers cost little power
SMALLEST_NEW_SHARE = 1e-6  # of a column's length, below which the column is dependent on others
NOISE_DRAWS = 50  # of models whose noise is tested, where it has no closed form


class ObservedRegression(NamedTuple):
    """One regression with its observations.

    variable, regressors: their names. inputs: (n, c) values of the regressors. outcome: (n,) values
    of the variable. features: (n, K), those with a Gaussian prior. groups: regressors that have a
    joint process in the fitted mechanism. noise: (s, n) of draws of models, which is tested in
    place of the outcome where the fit has no closed form.
    """

    variable: str
    regressors: tuple[str, ...]
    inputs: np.ndarray
    outcome: np.ndarray
    features: np.ndarray
    groups: tuple[tuple[str, ...], ...] = ()
    noise: np.ndarray | None = None

    @property
    def is_testable(self) -> bool:
        """Whether there are enough observations beyond the regressors, and the variable varies."""
        enough = len(self.inputs) - self.inputs.shape[1] - 1 >= FEWEST_OBSERVATIONS
        return enough and bool(np.ptp(self.outcome) > 0)

    @property
    def scale(self) -> float:
        """The sd of the variable."""
        return float(self.outcome.std())

    @property
    def standardized(self) -> np.ndarray:
        """The regressors (n, c) with mean 0 and sd 1; 0 where they do not vary."""
        centred = self.inputs - self.inputs.mean(axis=0)
        sd = centred.std(axis=0)
        return np.asarray(centred / np.where(sd > 0, sd, 1.0))

    @property
    def response(self) -> np.ndarray:
        """What the regression explains, (n, s), in sds of the variable."""
        if self.noise is not None:
            return np.asarray(self.noise.T / self.scale)
        return np.asarray((self.outcome - self.outcome.mean())[:, None] / self.scale)

    def powers(self) -> np.ndarray:
        """Return the constant, the regressors and as many powers as observations allow, (n, k)."""
        inputs = self.standardized
        n, c = inputs.shape
        most = (n // OBSERVATIONS_PER_COLUMN - 1) // max(c, 1)
        powers = range(1, max(1, min(most, LARGEST_POWER)) + 1)
        return np.column_stack([np.ones(n), *(inputs**power for power in powers)])


class Smoother(NamedTuple):
    """The matrix R of a regression; see the module.

    basis: (n, k) orthonormal. features: (n, K), orthogonal to it. inverse: (K, K), that of one plus
    their cross products.
    """

    basis: np.ndarray
    features: np.ndarray
    inverse: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray, features: np.ndarray) -> "Smoother":
        """Return the smoother of columns (n, k) without a penalty and of features (n, K)."""
        basis = orthonormal(np.empty((len(columns), 0)), columns.T)
        features = features - basis @ (basis.T @ features)
        size = features.shape[1]
        inverse = np.zeros((0, 0))
        if size:
            inverse = np.linalg.inv(np.eye(size) + features.T @ features)
        return cls(basis, features, inverse)

    @property
    def freedom(self) -> int:
        """The number of observations beyond the columns without a penalty."""
        return int(self.basis.shape[0] - self.basis.shape[1])

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Return R v for every column of values (n, m)."""
        rest = values - self.basis @ (self.basis.T @ values)
        return np.asarray(rest - self.features @ (self.inverse @ (self.features.T @ rest)))

    def diagonal(self) -> np.ndarray:
        """Return the diagonal (n,) of R: the variances of residuals, in units of the noise."""
        smooth = ((self.features @ self.inverse) * self.features).sum(axis=1)
        return np.asarray(np.clip(1 - (self.basis**2).sum(axis=1) - smooth, 1e-12, 1.0))


def orthonormal(basis: np.ndarray, columns: Iterable[np.ndarray]) -> np.ndarray:
    """Return orthonormal columns (n, q) that extend an orthonormal basis (n, k) to the columns."""
    whole = basis
    for column in columns:
        length = np.linalg.norm(column)
        if not length > 0:
            continue
        rest = column / length
        for _ in range(2):  # twice, since rounding leaves a part
            rest = rest - whole @ (whole.T @ rest)
        size = np.linalg.norm(rest)
        if size > SMALLEST_NEW_SHARE:
            whole = np.column_stack([whole, rest / size])
    return np.asarray(whole[:, basis.shape[1] :])


def combine(p_values: np.ndarray) -> float:
    """Return one p-value for those of many draws, which need not be independent."""
    mean = float(p_values.mean())
    is_same = np.ptp(p_values) <= 1e-6 * mean
    return mean if is_same else min(1.0, 2 * mean)


def joined_before(graph: CausalGraph, name: str) -> tuple[str, ...]:
    """Return the variables before this one that latent arcs join to it, also through others."""
    last = graph.index(name)
    arcs = [arc for arc in graph.bidirected if max(map(graph.index, arc)) <= last]
    members: set[str] = set()
    more = {name}
    while more:
        members |= more
        more = {end for arc in arcs if members & {*arc} for end in arc} - members
    return tuple(sorted(members - {name}, key=graph.index))


def regressors_given_district(graph: CausalGraph, name: str) -> tuple[str, ...]:
    """Return the causes of a variable, and under latent causes its district before it with causes.

    Given these, the noise of Gaussian linear mechanisms is independent of all before it.
    """
    joined = joined_before(graph, name)
    causes = {*graph.parents(name), *joined}
    return graph.ordered(causes.union(*(graph.parents(member) for member in joined)))


def find_regressions(
    who: str, post: Posterior, key: jax.Array | int = 0
) -> list[ObservedRegression]:
    """Return the regressions of a posterior with their observations, in causal order.

    Raises
    ------
    PosteriorError
        If the draws are of theta alone.
    DataError
        If there are fewer than 8 observations.
    """
    require_posterior(who, post)
    model = require_observations_known(who, post)
    if post.n_observations < FEWEST_OBSERVATIONS:
        raise DataError(
            f"{post.n_observations} observations are too few to see what is wrong with a model; "
            f"at least {FEWEST_OBSERVATIONS} are needed"
        )
    graph, fitted = post.problem.graph.ancestral(post.problem.target), offered(model, "regressions")
    values, free = post.learned_observations
    if fitted is not None:
        usable = np.zeros(free.shape, bool)
        for column, chosen in enumerate(free.T):
            usable[spaced(chosen), column] = True
        return [ObservedRegression(*each) for each in fitted(usable)]
    noise, is_linear = offered(model, "disturbances"), post.distribution.response.is_affine
    if not is_linear and noise is None:
        return []
    models, found = None, []
    if not is_linear:
        models = post.distribution.drawn(NOISE_DRAWS, as_key(key)).thinned(NOISE_DRAWS).models
    for position, name in enumerate(graph.nodes):
        regressors, joined = regressors_given_district(graph, name), joined_before(graph, name)
        is_free = np.asarray(free[:, [position, *map(graph.index, joined)]].all(axis=1))
        given = values[spaced(is_free)]
        inputs = given[:, list(map(graph.index, regressors))]
        regression = ObservedRegression(
            name, regressors, inputs, given[:, position], np.zeros((len(given), 0))
        )
        if noise is not None and models is not None and regression.is_testable:
            regression = regression._replace(noise=noise(models, given[None], position))
        found.append(regression)
    return found


def spaced(chosen: np.ndarray) -> np.ndarray:
    """Return the positions of chosen observations, of too many evenly spaced ones."""
    positions = np.flatnonzero(chosen)
    if len(positions) <= MOST_OBSERVATIONS:
        return positions
    evenly = np.linspace(0, len(positions) - 1, MOST_OBSERVATIONS).round().astype(int)
    return np.asarray(positions[evenly])


PRODUCTS = np.array([(1, 1), (2, 1), (1, 2), (2, 2)])  # powers of a and b
OBSERVATIONS_FOR_ALL_PRODUCTS = 24  # beyond all columns, from which on more than ab is tested
SMALLEST_CORRELATION = 0.1  # with products, beyond what chance explains: less is harmless
SMALLEST_EFFECT = 0.01  # of an interaction, in sds of the variable: less is harmless
SMALLEST_EIGENVALUE = 1e-8  # of products, relative to the largest, below which they are dependent
GRID_QUANTILES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])  # of either regressor
MOST_NUMBERS_AT_ONCE = 4_000_000  # of products of many pairs, so that memory is bounded
MOST_PAIRS_NAMED = 3  # in a text; the table has all
NOT_TESTED = (np.nan,) * 4  # observed, gap, tolerance and effect
PAIR_COLUMNS = "mechanism first second observed gap tolerance effect where p_value".split()


class PairTest(NamedTuple):
    """The test of one pair of regressors.

    pair: their names. observed: the partial correlation with the products. gap: the same beyond
    what chance explains. effect: by how much the mean of the variable differs from an additive one
    at most, in sds of the variable, over the central 90 % of either regressor. at: the values of
    the regressors there. p_value: see the module; NaN where products depend on the powers.
    """

    pair: tuple[str, str]
    observed: float
    gap: float
    effect: float
    at: tuple[float, float]
    p_value: float


def find_interactions(regression: ObservedRegression) -> list[PairTest]:
    """Return the tests of all pairs of regressors of one regression."""
    pairs = np.array(list(combinations(range(len(regression.regressors)), 2)), int).reshape(-1, 2)
    smoother = Smoother.of(regression.powers(), regression.features)
    if smoother.freedom < 2:
        return []
    is_large = smoother.freedom - len(PRODUCTS) >= OBSERVATIONS_FOR_ALL_PRODUCTS
    counts = (1, len(PRODUCTS)) if is_large else (1,)
    step = max(1, MOST_NUMBERS_AT_ONCE // (len(PRODUCTS) * regression.response.size))
    found: list[PairTest] = []
    for start in range(0, len(pairs), step):
        some = pairs[start : start + step]
        tested = [_test(regression, smoother, some, count) for count in counts]
        for number, (one, other) in enumerate(some):
            by_count = [each[number] for each in tested]
            best = min(by_count, key=lambda each: np.inf if np.isnan(each[0]) else each[0])
            p_value = float(np.minimum(1.0, len(by_count) * best[0]))  # NaN stays NaN
            effect, where = _largest_effect(regression, (one, other), best[3])
            names = regression.regressors[one], regression.regressors[other]
            found.append(PairTest(names, best[1], best[2], effect, where, p_value))
    return found


def _test(
    regression: ObservedRegression, smoother: Smoother, pairs: np.ndarray, count: int
) -> list[tuple[float, float, float, np.ndarray]]:
    """Return p-value, partial correlation, gap and coefficients of `count` products, by pair."""
    response = regression.response
    inputs, n = regression.standardized, len(response)
    one, other = inputs[:, pairs[:, 0]], inputs[:, pairs[:, 1]]
    columns = np.stack([one**a * other**b for a, b in PRODUCTS[:count]], axis=2)  # (n, P, q)
    lengths = np.sqrt((columns**2).sum(axis=0))
    columns = columns / np.where(lengths > 0, lengths, 1.0)
    smooth = smoother.apply(columns.reshape(n, -1)).reshape(columns.shape)
    gram = np.einsum("npq,npr->pqr", columns, smooth)
    # Orthonormal combinations of the products that the powers do not explain; of others none.
    values, vectors = np.linalg.eigh((gram + np.swapaxes(gram, 1, 2)) / 2)
    is_new = values > SMALLEST_EIGENVALUE * np.maximum(values[:, -1:], 1e-3)
    rotation = vectors * np.where(is_new, 1 / np.sqrt(np.where(is_new, values, 1.0)), 0.0)[:, None]
    smooth = np.einsum("npq,pqr->npr", smooth, rotation)
    residual = smoother.apply(response)
    total = (response * residual).sum(axis=0)
    score = np.einsum("npr,ns->psr", smooth, response)
    size = np.maximum(is_new.sum(axis=1), 1)
    others = smoother.freedom - size
    explained = (score**2).sum(axis=2)
    ratio = explained / size[:, None] / np.maximum(total - explained, 1e-300) * others[:, None]
    classical = fisher.sf(ratio, size[:, None], others[:, None])
    rest = residual[:, None] - np.einsum("npr,psr->nps", smooth, score)
    kept = smoother.diagonal()[:, None] - (smooth**2).sum(axis=2)
    squares = (rest / np.maximum(kept, 1e-3)[:, :, None]) ** 2
    covariance = np.einsum("npq,npr,nps->psqr", smooth, smooth, squares, optimize=True)
    covariance = covariance + np.eye(count) * (~is_new)[:, None, None, :]
    scale = np.maximum(np.trace(covariance, axis1=2, axis2=3), 1e-300)[..., None, None]
    covariance = covariance + 1e-12 * scale * np.eye(count)
    solved = np.linalg.solve(covariance, score[..., None])[..., 0]
    robust = fisher.sf((score * solved).sum(axis=2) / size[:, None], size[:, None], others[:, None])
    p_values = np.maximum(classical, robust)
    shares = (explained / np.maximum(total, 1e-300)).mean(axis=1)
    by_chance = size / smoother.freedom
    coefficients = np.einsum("pqr,psr->pq", rotation, score) / score.shape[1]
    coefficients = coefficients / np.where(lengths > 0, lengths, 1.0)
    return [
        (
            combine(p_values[index]) if is_new[index].any() else np.nan,
            float(np.sqrt(shares[index])),
            float(np.sqrt(max(shares[index] - by_chance[index], 0.0))),
            coefficients[index],
        )
        for index in range(len(pairs))
    ]


def _largest_effect(
    regression: ObservedRegression, pair: tuple[int, int], coefficients: np.ndarray
) -> tuple[float, tuple[float, float]]:
    """Return the largest deviation from an additive mean, in sds, and where it is.

    The products are evaluated on a grid of quantiles, and what is additive on it is subtracted.
    """
    one, other = pair
    standard, natural = regression.standardized, regression.inputs
    grid = np.quantile(standard[:, [one, other]], GRID_QUANTILES, axis=0)
    table = sum(
        weight * np.outer(grid[:, 0] ** a, grid[:, 1] ** b)
        for weight, (a, b) in zip(coefficients, PRODUCTS, strict=False)
    )
    means = table.mean(axis=0), table.mean(axis=1)
    table = table - means[0] - means[1][:, None] + table.mean()
    row, column = np.unravel_index(np.abs(table).argmax(), table.shape)
    values = np.quantile(natural[:, [one, other]], GRID_QUANTILES, axis=0)
    return float(table[row, column]), (float(values[row, 0]), float(values[column, 1]))


def check_interactions(post: Posterior, *, alpha: float = 0.01, key: jax.Array | int = 0) -> Check:
    """Test every two causes of a mechanism for interaction beyond what the fitted mechanism has.

    Products of the two (of higher powers too, where observations are many) are added to the fitted
    regression, together with squares and cubes of all causes, so that curvature is not mistaken for
    an interaction. For linear mechanisms this is the F-test of added regressors. For Gaussian
    processes the smoothing at the mode of the hyperparameters is part of the null distribution;
    pairs that share a group are tested beyond it. Where latent causes join variables, the
    regressions are those that effects are averaged over: at the front door that of Y on Z and X.
    Where the noise of a mechanism has no closed form, twice the average of the p-values over draws
    of models is taken.

    Noise that varies in size looks like an interaction; a pair fails only where a statistic that
    allows for it is significant too. That costs power where there is such noise.

    Parameters
    ----------
    post:
        A posterior of whole models, from at least 8 observations.
    alpha:
        How often a true model may fail at all: in at most this share of data sets. p-values are
        corrected for the number of pairs (Holm).
    key:
        A JAX key or an int seed, for user-defined mechanisms, whose noise is drawn.

    Returns
    -------
    Check
        A row for every pair of every mechanism with two causes or more: the partial correlation
        `observed` with the products, and the `gap`, the same beyond what chance explains. A row
        fails where it is significant, the gap larger than the `tolerance`, and the `effect` more
        than 0.01. `effect` is by how much the mean of the variable differs from an additive one, in
        sds of the variable, at the values `where` it differs most, within the central 90 % of the
        observations of either cause.
        Mechanisms with fewer than 8 observations beyond the causes, and pairs whose products are
        functions of powers, are not assessed.

    Raises
    ------
    DataError
        If there are fewer than 8 observations.
    PosteriorError
        If the draws are of theta alone.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> import numpy as np, pandas as pd
    >>> graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    >>> problem = cb.Problem(graph, target="Y", domains={"A": (-2, 2), "B": (-2, 2)})
    >>> a, b, e = np.random.default_rng(0).normal(size=(3, 100))
    >>> table = pd.DataFrame({"A": a, "B": b, "Y": a * b + 0.5 * a + e})
    >>> check = cb.diagnostics.check_interactions(cb.fit(problem, table))
    >>> check.verdict, check.advice.split(": ", 1)[1]
    ('failed', 'fit with mechanisms={"Y": cb.GP(groups=[("A", "B")])}.')
    """
    alpha, lines = read_share("alpha", alpha), list[tuple[object, ...]]()
    regressions = find_regressions("check_interactions", post, key)
    for regression in regressions:
        tests = find_interactions(regression) if regression.is_testable else []
        lines += [_line(regression.variable, test) for test in tests]
        if not tests and len(regression.regressors) > 1:
            few = f"fewer than {FEWEST_OBSERVATIONS} observations beyond its causes"
            lines.append(
                (regression.variable, *regression.regressors[:2], *NOT_TESTED, few, np.nan)
            )
    table = pd.DataFrame(lines, columns=PAIR_COLUMNS).set_index(PAIR_COLUMNS[:3])
    numbers = table[["gap", "tolerance", "p_value"]].to_numpy(float).T
    table["p_corrected"] = holm(numbers[2])
    bad = (numbers[0] > numbers[1]) & (table["p_corrected"].to_numpy() < alpha)
    bad &= table["effect"].abs().to_numpy() > SMALLEST_EFFECT
    is_known = np.isfinite(numbers[2])
    table["verdict"] = np.where(is_known, np.where(bad, FAILED, PASSED), UNKNOWN)
    failed = table[bad].sort_values("p_value", kind="stable")
    advice = _advise(post, failed, {each.variable for each in regressions if each.regressors})
    return Check("interactions", table, _describe(table, failed), advice)


def _line(variable: str, test: PairTest) -> tuple[object, ...]:
    one, other = test.pair
    where = f"{one} = {test.at[0]:.3g}, {other} = {test.at[1]:.3g}"
    numbers = test.observed, test.gap, SMALLEST_CORRELATION, test.effect, where, test.p_value
    return variable, one, other, *numbers


def _describe(table: pd.DataFrame, failed: pd.DataFrame) -> str:
    if not len(table):
        return "No mechanism has two causes that could interact."
    unknown = table.index[table["verdict"] == UNKNOWN]
    assessed, rest = len(table) - len(unknown), ""
    if len(unknown):
        names = listed([f"{one} and {other} in {name}" for name, one, other in unknown], most=5)
        rest = f" Not assessed (too few observations, or products that are powers): {names}."
    if not len(failed):
        return f"None of {assessed} pairs of causes visibly interacts.{rest}"
    parts = [
        f"{row['first']} and {row['second']} in the mechanism of {row['mechanism']}, whose mean at "
        f"{row['where']} differs by {row['effect']:+.2g} sds from a sum of their influences "
        f"(p = {row['p_corrected']:.1g})"
        for _, row in failed.head(MOST_PAIRS_NAMED).reset_index().iterrows()
    ]
    verb = "interacts" if len(failed) == 1 else "interact"
    return f"{len(failed)} of {assessed} pairs of causes {verb}: {'; '.join(parts)}.{rest}"


def _advise(post: Posterior, failed: pd.DataFrame, dependent: set[str]) -> str:
    """Return the advice: mechanisms that hold the interactions, to be pasted.

    dependent: the variables that have regressors.
    """
    if not len(failed):
        return ""
    model, wrong = post.distribution.model, "Effects that depend on these mechanisms are wrong"
    is_additive = post.distribution.response.is_affine or offered(model, "regressions") is not None
    if not is_additive:
        names = listed(dict.fromkeys(name for name, _, _ in failed.index))
        return f"{wrong}: let the functions of {names} hold the products."
    former: Mapping[str, MechanismChoice] = getattr(model, "choices", {})
    chosen = {name: choice for name, choice in former.items() if choice and name in dependent}
    for name, one, other in failed.index:
        before = chosen.get(name, GP())
        nonlinear = before if isinstance(before, GP) else GP(noise=before.noise)
        groups = _join(nonlinear.groups, (one, other))
        chosen[name] = replace(nonlinear, groups=groups, functions=None)
    written = ", ".join(f'"{name}": {_write(choice)}' for name, choice in chosen.items())
    return f"{wrong}: fit with mechanisms={{{written}}}."


def _join(groups: Sequence[Sequence[str]], pair: tuple[str, str]) -> list[tuple[str, ...]]:
    """Return groups that hold the pair too; as they are where a group would be too large."""
    joined = tuple(name for group in groups if {*group} & {*pair} for name in group)
    whole = tuple(dict.fromkeys((*joined, *pair)))
    if len(whole) > MOST_CAUSES_IN_A_GROUP:
        return [tuple(group) for group in groups]
    return [*(tuple(group) for group in groups if not {*group} & {*pair}), whole]


def _write(choice: GP | Linear) -> str:
    """Return the text that makes a choice."""
    if choice == GP():
        return '"gp"'
    noise = "" if choice.noise == CONSTANT else f"noise={_quote(choice.noise)}"
    if isinstance(choice, Linear):
        pairs = choice.interactions
        if not isinstance(pairs, str):
            pairs = f"[{', '.join(f'({_quote(a)}, {_quote(b)})' for a, b in pairs)}]"
        options = [f"interactions={pairs}" if choice.interactions else "", noise]
        return f"cb.Linear({', '.join(filter(None, options))})"
    groups = ", ".join(f"({', '.join(map(_quote, group))})" for group in choice.groups)
    parts = [f"groups=[{groups}]"] if choice.groups else []
    parts += [f"kernel={_quote(choice.kernel)}"] if choice.kernel != GP().kernel else []
    parts += [f"functions={choice.functions}"] if choice.functions is not None else []
    parts += [noise] if noise else []
    return f"cb.GP({', '.join(parts)})"


def _quote(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
