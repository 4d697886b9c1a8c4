"""Which regressions was a model fitted by, and what do their residuals look like without the fit?

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
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_observations_known, require_posterior
from causal_bo_ppl.inputs import as_key, offered

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
