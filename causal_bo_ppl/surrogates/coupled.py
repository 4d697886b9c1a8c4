"""The coupled surrogate: all effects share theta, so that one outcome teaches about all of them.

f(z) = g(theta, z) with theta = theta_0 + F w, w ~ N(0, I), F F' the posterior covariance.
Linearized at a centre c: f(z) = g(theta_c, z) + phi(z)'(w - c), phi(z) = F'J(z)'. So outcomes are a
Bayesian linear regression on the weights w: t of them cost O(t r^2 + r^3), one more O(r^2), and a t
x t matrix is never formed. The variance of an outcome's noise is that of its replicates' mean plus
what linearization leaves out, so that the surrogate is not falsely certain.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

from causal_bo_ppl.data.outcomes import Replicates, merge_replicates
from causal_bo_ppl.errors import DataError, NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import (
    MOST,
    as_key,
    host_generator,
    read_count,
    read_number,
    require_outcomes,
    size_fault,
)
from causal_bo_ppl.kernels.exact import remainders
from causal_bo_ppl.numerics import clip_rounding
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.responses import Response, response
from causal_bo_ppl.surrogates.interface import Prediction

STEPS, CLOSE = 20, 1e-3  # Gauss-Newton, in prior sds: the linearization changes little within
LEAST = 1e-10  # of an effect's prior variance: the noise of an outcome that has none


class Weights(NamedTuple):
    """The posterior N(covariance information, covariance) of r weights.

    covariance: the posterior covariance (r, r). information: the sum of phi y / variance over all
    outcomes, (r,).
    """

    covariance: np.ndarray
    information: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean of the weights, (r,)."""
        return np.asarray(self.covariance @ self.information)


def condition(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """Return the weights given residuals (t,) with features (t, r) and precisions (t,).

    The precision matrix is I + Phi' P Phi.
    """
    weighted = features * precisions[:, None]
    factor = cho_factor(np.eye(features.shape[1]) + features.T @ weighted, lower=True)
    inverse = cho_solve(factor, np.eye(features.shape[1]))
    return Weights((inverse + inverse.T) / 2, residuals @ weighted)


def extend(weights: Weights, feature: np.ndarray, precision: float, information: float) -> Weights:
    """Return the weights after a rank-one update.

    `precision` and `information` are the increases in 1 / variance and in residual / variance that
    one more outcome brings; a replicate brings both too, since it changes an earlier mean.
    """
    pull = weights.covariance @ feature
    shrink = precision / (1 + precision * (feature @ pull))
    covariance = weights.covariance - shrink * np.outer(pull, pull)
    return Weights(covariance, weights.information + information * feature)


class Told(NamedTuple):
    """Outcomes as they were told: queries in m rows, values (m,) and variances (m,) of noise."""

    queries: Queries
    values: np.ndarray
    variances: np.ndarray

    def join(self, other: "Told") -> "Told":
        """Return these outcomes followed by others."""
        values = np.append(self.values, other.values)
        variances = np.append(self.variances, other.variances)
        return Told(stack([self.queries, other.queries]), values, variances)


@dataclass(frozen=True, eq=False)
class Coupled:
    """The coupled surrogate in weight space; made by `couple(post)`; see `interface.Surrogate`.

    centre: the weights (r,) at which the response is linearized. weights: the posterior of all
    weights. told: every outcome as it was told. outcomes: the same outcomes with the replicates of
    each of t interventions merged. remainders: what linearization leaves out of the variance of
    each of these t effects.
    """

    response: Response
    centre: np.ndarray
    weights: Weights
    told: Told
    outcomes: Replicates
    remainders: np.ndarray
    _kept: dict[bytes, float] = field(default_factory=dict, repr=False)  # remainders by query

    @property
    def post(self) -> Posterior:
        """The posterior that was believed before the outcomes."""
        return self.response.post

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """Return the parameters (d,) with these weights."""
        return np.asarray(self.post.mean + self.post.factor @ weights)

    def _linearize(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets (M,) and features phi (M, r): effects are offset + phi'w."""
        values, jacobian = self.response.linearize(self.theta(self.centre), queries)
        features = jacobian @ self.post.factor
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            [intervention] = self.post.problem.interventions(queries[row])
            raise NumericalError(
                f"the effect of {intervention} is {values[row]}; theta has run away"
            )
        return values - features @ self.centre, features

    def predict(self, queries: Queries) -> Prediction:
        """Return mean and sd of the effects of a batch."""
        queries = self.post.problem.require(queries)
        offsets, features = self._linearize(queries)
        variance = ((features @ self.weights.covariance) * features).sum(axis=1)
        variance = clip_rounding(variance, (features**2).sum(axis=1))
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def covariance(self, queries: Queries) -> np.ndarray:
        """Return the joint covariance of the effects of a batch, (M, M)."""
        features = self._linearize(queries)[1]
        return np.asarray(features @ self.weights.covariance @ features.T)

    def sample(self, queries: Queries, n: int, key: jax.Array | int) -> np.ndarray:
        """Draw all effects of a batch at once, n times, (n, M)."""
        offsets, features = self._linearize(queries)
        sizes, directions = np.linalg.eigh(self.weights.covariance)
        root = directions * np.sqrt(np.maximum(sizes, 0.0))
        standard = host_generator(as_key(key)).standard_normal((read_count("n", n, 1), len(root)))
        weights = self.weights.mean + standard @ root.T
        return np.asarray(offsets + weights @ features.T)

    def log_density(self, query: Queries, outcome: float, noise: float) -> float:
        """Return the log density of an outcome of one query, given all that was told."""
        told = _require_one(self._read(query, outcome, noise))
        mean, sd = self.predict(told.queries)
        spread = np.sqrt(sd**2 + told.variances + self._left_out(told.queries))
        return float(norm.logpdf(told.values[0], mean[0], spread[0]))

    def tell(
        self,
        queries: Queries,
        outcomes: float | np.ndarray,
        noise: float | np.ndarray | None = None,
    ) -> "Coupled":
        """Return the surrogate after outcomes of some interventions.

        One outcome is a rank-one update; of several the weights are solved for anew.

        Parameters
        ----------
        queries:
            M interventions.
        outcomes:
            What came out, (M,); a number for one intervention.
        noise:
            Variances of the outcomes' noise, by default those that the model implies.
        """
        new = self._read(queries, outcomes, noise)
        told = self.told.join(new)
        merged = merge_replicates(*told)
        left_out = self._left_out(merged.queries)
        after = replace(self, told=told, outcomes=merged, remainders=left_out)
        if len(new.values) != 1:
            return after._centred_at(self.centre)
        row = _row_of(merged, new.queries)
        offsets, features = self._linearize(new.queries)
        (before, old), (now, more) = (
            each._evidence(row, offsets[0], features[0]) for each in (self, after)
        )
        return replace(after, weights=extend(self.weights, features[0], now - before, more - old))

    def _read(
        self, queries: Queries, outcomes: float | np.ndarray, noise: float | np.ndarray | None
    ) -> Told:
        queries = self.post.problem.require(queries)
        variances = self.post.outcome_variances(queries) if noise is None else noise
        return read_told(queries, outcomes, variances)

    def _left_out(self, queries: Queries) -> np.ndarray:
        """Return what linearization leaves out of each effect's variance, (M,); computed once."""
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        keys = [kind.tobytes() + at.tobytes() for kind, at in zip(mask, value, strict=True)]
        new = [row for row, key in enumerate(keys) if key not in self._kept]
        if new:
            found = remainders(self.post, queries[np.array(new)])
            self._kept.update(zip((keys[row] for row in new), found.tolist(), strict=True))
        return np.array([self._kept[key] for key in keys])

    def imagine(self, query: Queries, noise: float) -> "Coupled":
        """Return the surrogate as if a query had come out as predicted: less doubt, same means."""
        told = _require_one(self._read(query, 0.0, noise))
        told = told._replace(variances=np.maximum(told.variances, np.finfo(float).tiny))
        predicted = self.predict(told.queries).mean
        joined = self.told.join(told._replace(values=predicted))
        merged = merge_replicates(*joined)
        after = replace(
            self, told=joined, outcomes=merged, remainders=self._left_out(merged.queries)
        )
        row = _row_of(merged, told.queries)
        offsets, features = self._linearize(told.queries)
        before, now = (each._evidence(row, offsets[0], features[0])[0] for each in (self, after))
        gained = now - before
        pull = gained * float(features[0] @ self.weights.mean)
        return replace(after, weights=extend(self.weights, features[0], gained, pull))

    def _evidence(self, row: int, offset: float, feature: np.ndarray) -> tuple[float, float]:
        """Return precision of an intervention's mean outcome, and precision times residual.

        Both are 0 where it was not tried.
        """
        if row >= len(self.outcomes.counts):
            return 0.0, 0.0
        noise, left_out = self.outcomes.variances[row], self.remainders[row]
        precision = float(_precisions(noise, left_out, feature[None])[0])
        return precision, precision * float(self.outcomes.means[row] - offset)

    def recentre(self) -> "Coupled":
        """Linearize where the outcomes have moved theta, and learn from all of them again.

        That is theta's most probable value, found by Gauss-Newton steps, O(t r^2 + r^3) each; one
        that makes theta less probable is halved.
        """
        if not len(self.outcomes.counts):
            return self
        here, loss = self, self._loss(self.centre)
        for _ in range(STEPS):
            step = here.weights.mean - here.centre
            while (after := self._loss(here.centre + step)) > loss and np.abs(step).max() > CLOSE:
                step = step / 2
            here, loss = here._centred_at(here.centre + step), after
            if np.abs(step).max() <= CLOSE:
                break
        return here

    def _loss(self, centre: np.ndarray) -> float:
        """Return minus the log posterior of the weights, up to a constant."""
        queries = self.outcomes.queries
        values, jacobian = self.response.linearize(self.theta(centre), queries)
        features = jacobian @ self.post.factor
        precisions = _precisions(self.outcomes.variances, self.remainders, features)
        misfit = precisions @ (self.outcomes.means - values) ** 2
        return float(centre @ centre + misfit) / 2

    def _centred_at(self, centre: np.ndarray) -> "Coupled":
        moved = replace(self, centre=centre)
        offsets, features = moved._linearize(self.outcomes.queries)
        precisions = _precisions(self.outcomes.variances, self.remainders, features)
        weights = condition(features, self.outcomes.means - offsets, precisions)
        return replace(moved, weights=weights)

    def __repr__(self) -> str:
        distinct = len(self.outcomes.counts)
        outcomes = f"{self.outcomes.counts.sum()} outcomes of {distinct} interventions"
        return f"Coupled({outcomes}, {len(self.centre)} directions; {self.post!r})"


def couple(post: Posterior) -> Coupled:
    """Return the coupled surrogate of a posterior, before any outcome.

    Parameters
    ----------
    post:
        A posterior whose verdict did not fail, or that was accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> surrogate = cb.couple(cb.fit(system.problem, system.observe(200, 0)))
    >>> tried = system.problem.queries([{"X": 2.0}])
    >>> told = surrogate.tell(tried, -2.2)
    >>> bool(told.predict(tried).sd[0] < surrogate.predict(tried).sd[0])
    True
    """
    post = require_trusted(post)
    size, nodes = post.factor.shape[1], len(post.problem.graph.nodes)
    blank = np.zeros((0, nodes))
    nothing = Told(Queries(blank.astype(bool), blank), np.zeros(0), np.zeros(0))
    weights, effects = Weights(np.eye(size), np.zeros(size)), response(post.problem, post)
    merged = merge_replicates(*nothing)
    kept = post.__dict__.setdefault("_remainders", {})  # gone with the posterior
    return Coupled(effects, np.zeros(size), weights, nothing, merged, np.zeros(0), kept)


@dataclass(frozen=True)
class CoupledMaker:
    """Makes the coupled surrogate; see `interface.SurrogateMaker`."""

    name = "coupled"

    def begin(self, post: Posterior) -> Coupled:
        """Return the surrogate before any outcome."""
        return couple(post)


def _require_one(told: Told) -> Told:
    if len(told.values) != 1:
        raise DataError(f"this is about one intervention; got {told.queries!r}")
    return told


def _row_of(merged: Replicates, query: Queries) -> int:
    mask, value = np.asarray(query.mask)[0], np.where(query.mask, query.value, 0.0)[0]
    same = (merged.queries.mask == mask) & (merged.queries.value == value)
    return int(np.flatnonzero(np.asarray(same).all(axis=1))[0])


def _precisions(
    variances: np.ndarray, left_out: np.ndarray | float, features: np.ndarray
) -> np.ndarray:
    """Return precisions (t,) of mean outcomes; an effect that no weight moves teaches nothing."""
    prior = (features**2).sum(axis=1)
    noise = variances + left_out + LEAST * prior
    return np.where(prior > 0, 1 / np.where(noise > 0, noise, 1.0), 0.0)


def read_told(queries: Queries, outcomes: object, noise: object) -> Told:
    """Check outcomes of queries that were checked, one finite number each, and their variances.

    Raises
    ------
    DataError
        If there is not one outcome and one variance for each query, or one of them cannot be used.
    """
    values, variances = (
        np.array([read_number(name, each) for each in np.ravel(np.asarray(given, object))])
        for name, given in (("outcome", outcomes), ("noise", noise))
    )
    if len(variances) == 1:
        variances = np.repeat(variances, len(queries))
    if not len(queries) or len(values) != len(queries) or len(variances) != len(queries):
        raise DataError(
            f"tell one outcome of each intervention; got {len(values)} outcomes and "
            f"{len(variances)} variances of {queries!r}"
        )
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise DataError(f"the outcome is {bad}; it must be finite: leave a failed experiment out")
    wrong = ~(np.isfinite(variances) & (variances >= 0))
    if wrong.any():
        raise DataError(
            f"the variance of the outcome's noise is {variances[wrong][0]}; it must be finite, and "
            "not negative"
        )
    require_outcomes(values)
    if fault := size_fault(float(variances.max()), 0.0, MOST**2):
        raise DataError(f"the variance of the outcome's noise is {fault}")
    return Told(queries, values, variances)
