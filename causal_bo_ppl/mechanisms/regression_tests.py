"""Which statistics of a regression show an interaction, or noise that varies in size?

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

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import norm

FEWEST_OBSERVATIONS = 8  # beyond the regressors, for which the tests were tried
LARGEST_POWER = 3  # of a regressor, where observations are many
OBSERVATIONS_PER_COLUMN = 4  # at least, so that powers cost little power
SMALLEST_NEW_SHARE = 1e-6  # of a column's length, below which the column is dependent on others
PRODUCTS = np.array([(1, 1), (2, 1), (1, 2), (2, 2)])  # powers of a and b
OBSERVATIONS_FOR_ALL_PRODUCTS = 24  # beyond all columns, from which on more than ab is tested
SMALLEST_EIGENVALUE = 1e-8  # of products, relative to the largest, below which they are dependent
GRID_QUANTILES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])  # of either regressor
MOST_NUMBERS_AT_ONCE = 4_000_000  # of products of many pairs, so that memory is bounded


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


def size_columns(values: np.ndarray) -> np.ndarray:
    """Return the columns (n, 2) that sizes are compared with: values and their distances."""
    scale = values.std()
    distances = values - np.median(values)
    return np.column_stack([distances, np.abs(distances)]) / (scale if scale > 0 else 1.0)


def size_scores(rest: np.ndarray) -> np.ndarray:
    """Return half-normal scores of the sizes in each column (n, m), less their mean."""
    n = len(rest)
    ranks = np.argsort(np.argsort(np.abs(rest), axis=0, kind="stable"), axis=0, kind="stable")
    quantiles = norm.ppf(0.5 + 0.5 * (np.arange(n) + 0.5) / n)
    return np.asarray((quantiles - quantiles.mean())[ranks])


def share_along(scores: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the share (m,) of the variance of scores (n, m) along orthonormal columns (n, q)."""
    return np.asarray(((columns.T @ scores) ** 2).sum(axis=0) / (scores**2).sum(axis=0))


def mean_columns(regression: ObservedRegression) -> np.ndarray:
    """Return powers, and products of pairs where observations are many, (n, k)."""
    inputs, powers = regression.standardized, regression.powers()
    n, c = inputs.shape
    one, other = np.triu_indices(c, 1)
    if (powers.shape[1] + len(one)) * OBSERVATIONS_PER_COLUMN > n:
        return powers
    return np.column_stack([powers, inputs[:, one] * inputs[:, other]])
