"""What do outcomes say about the weights of features? Bayesian linear regression, y = phi'w + noise, w ~ N(0, I).

t outcomes cost O(t r^2 + r^3), one more O(r^2); a t x t matrix is never formed.

Which outcomes have been seen? Replicates of one intervention are kept as their number and mean.

What do we believe about every effect after k experiments? All effects share theta, so one outcome teaches about all.

f(z) = g(theta, z) with theta = theta_0 + F w, w ~ N(0, I), F F' the posterior covariance. Linearized at a centre c:
f(z) = g(theta_c, z) + phi(z)'(w - c), phi(z) = F'J(z)'. The variance of an outcome's noise is that of its replicates'
mean plus what linearization leaves out, so that the surrogate is not falsely certain.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from causal_bo_ppl.errors import DataError, NumericalError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import MOST, read_number, require_outcomes, size_fault
from causal_bo_ppl.kernels.remainders import remainders
from causal_bo_ppl.numerics import clip_rounding
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import Response, response


class Weights(NamedTuple):
    """Posterior N(covariance information, covariance) of r weights.

    covariance: (r, r); information: (r,), the sum of phi y / variance.
    """

    covariance: np.ndarray
    information: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(r,)."""
        return np.asarray(self.covariance @ self.information)


def condition(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """From features (t, r), residuals (t,) and the precisions (t,) of their noise: I + Phi' P Phi, inverted."""
    weighted = features * precisions[:, None]
    factor = cho_factor(np.eye(features.shape[1]) + features.T @ weighted, lower=True)
    inverse = cho_solve(factor, np.eye(features.shape[1]))
    return Weights((inverse + inverse.T) / 2, residuals @ weighted)


def extend(weights: Weights, feature: np.ndarray, precision: float, information: float) -> Weights:
    """After one more outcome, or a changed one: by how much its precision, and its precision times residual, grew."""
    pull = weights.covariance @ feature
    shrink = precision / (1 + precision * (feature @ pull))
    return Weights(
        weights.covariance - shrink * np.outer(pull, pull),
        weights.information + information * feature,
    )


SAME = 1e-9  # of the largest outcome: two outcomes without noise are equal


class Outcomes(NamedTuple):
    """t distinct interventions. counts: (t,); means: (t,) of their outcomes; variances: (t,) of these means' noise."""

    queries: Queries
    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray


def no_outcomes(variables: int) -> Outcomes:
    """Nothing seen yet."""
    empty = np.zeros((0, variables))
    return Outcomes(Queries(empty.astype(bool), empty), np.zeros(0, int), np.zeros(0), np.zeros(0))


def add(seen: Outcomes, query: Queries, outcome: float, noise: float) -> tuple[Outcomes, int]:
    """One more outcome, and the row it belongs to. Without noise equal outcomes are one; unequal ones are refused."""
    mask, value = np.asarray(query.mask)[0], np.where(query.mask, query.value, 0.0)[0]
    same = (seen.queries.mask == mask).all(axis=1) & (seen.queries.value == value).all(axis=1)
    if not same.any():
        queries = Queries(
            np.vstack([seen.queries.mask, mask]), np.vstack([seen.queries.value, value])
        )
        grown = (
            np.append(seen.counts, 1),
            np.append(seen.means, outcome),
            np.append(seen.variances, noise),
        )
        return Outcomes(queries, *grown), len(seen.counts)
    row = int(np.flatnonzero(same)[0])
    counts, means, variances = (part.copy() for part in seen[1:])
    counts[row] += 1
    size = float(np.abs([outcome, *means]).max())
    means[row], variances[row] = _average(means[row], variances[row], outcome, noise, size)
    return Outcomes(seen.queries, counts, means, variances), row


def _average(
    mean: float, variance: float, outcome: float, noise: float, size: float
) -> tuple[float, float]:
    """Mean of both, weighted by their precisions, and its variance; size: of the largest outcome, for rounding."""
    if variance == noise == 0:
        if abs(outcome - mean) > SAME * size:
            raise DataError(
                f"the same intervention gave {mean:.9g} and {outcome:.9g}, though outcomes are said to have no noise; "
                "give its variance as `noise`"
            )
        return mean, 0.0
    share = variance / (variance + noise)
    return mean + share * (outcome - mean), share * noise


STEPS, CLOSE = (
    20,
    1e-3,
)  # Gauss-Newton, in prior standard deviations: the linearization changes little within
LEAST = 1e-10  # of an effect's prior variance: the noise of an outcome that has none


class Prediction(NamedTuple):
    """Mean (M,) and standard deviation (M,) of effects."""

    mean: np.ndarray
    sd: np.ndarray


@dataclass(frozen=True, eq=False)
class Coupled:
    """The coupled surrogate in weight space. Made by `couple(post)`; `tell` and `recentre` return new ones.

    centre: (r,) weights at which the response is linearized. remainders: (t,) of the distinct interventions seen.
    """

    response: Response
    centre: np.ndarray
    weights: Weights
    outcomes: Outcomes
    remainders: np.ndarray

    @property
    def post(self) -> Posterior:
        """What was believed before the outcomes."""
        return self.response.post

    def theta(self, weights: np.ndarray) -> np.ndarray:
        """(d,) parameters with these weights."""
        return np.asarray(self.post.mean + self.post.factor @ weights)

    @property
    def mean_theta(self) -> np.ndarray:
        """(d,) what is now believed of theta_Y."""
        return self.theta(self.weights.mean)

    @property
    def covariance_theta(self) -> np.ndarray:
        """(d, d) what is left of doubt about theta_Y."""
        return np.asarray(self.post.factor @ self.weights.covariance @ self.post.factor.T)

    def _linearize(self, queries: Queries) -> tuple[np.ndarray, np.ndarray]:
        """(M,) what phi'w is added to, and features phi (M, r)."""
        values, jacobian = map(
            np.asarray, self.response.linearize(self.theta(self.centre), queries)
        )
        features = jacobian @ self.post.factor
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            [intervention] = self.post.problem.interventions(queries[row])
            raise NumericalError(
                f"the effect of {intervention} is {values[row]}; theta has run away"
            )
        return values - features @ self.centre, features

    def predict(self, queries: Queries) -> Prediction:
        """Mean and sd of the effects of a batch."""
        offsets, features = self._linearize(queries)
        variance = ((features @ self.weights.covariance) * features).sum(axis=1)
        variance = clip_rounding(variance, (features**2).sum(axis=1))
        return Prediction(offsets + features @ self.weights.mean, np.sqrt(variance))

    def tell(self, query: Queries, outcome: float, noise: float | None = None) -> "Coupled":
        """After one more outcome of an intervention: a rank-one update. noise: its variance, by default the model's."""
        noise = float(self.post.outcome_variances(query)[0]) if noise is None else noise
        _require_outcome(query, outcome, noise)
        seen, row = add(self.outcomes, query, float(outcome), float(noise))
        left_out = self.remainders
        if row == len(left_out):
            left_out = np.append(left_out, remainders(self.post, query))
        offsets, features = self._linearize(query)
        (before, old), (after, new) = (
            self._evidence(outcomes, row, left_out[row], offsets[0], features[0])
            for outcomes in (self.outcomes, seen)
        )
        weights = extend(self.weights, features[0], after - before, new - old)
        return replace(self, weights=weights, outcomes=seen, remainders=left_out)

    def imagine(self, query: Queries, noise: float) -> "Coupled":
        """As if the query had been tried and come out as predicted: less doubt, the same means."""
        _require_outcome(query, 0.0, noise)
        predicted = float(self.predict(query).mean[0])
        seen, row = add(self.outcomes, query, predicted, max(noise, np.finfo(float).tiny))
        left_out = np.append(self.remainders, remainders(self.post, query))[: len(seen.counts)]
        offsets, features = self._linearize(query)
        before, after = (
            self._evidence(each, row, left_out[row], offsets[0], features[0])[0]
            for each in (self.outcomes, seen)
        )
        gained = after - before
        weights = extend(
            self.weights, features[0], gained, gained * float(features[0] @ self.weights.mean)
        )
        return replace(self, weights=weights, outcomes=seen, remainders=left_out)

    def _evidence(
        self, seen: Outcomes, row: int, left_out: float, offset: float, feature: np.ndarray
    ) -> tuple[float, float]:
        """Precision of an intervention's mean outcome, and precision times residual; nothing where not seen."""
        if row >= len(seen.counts):
            return 0.0, 0.0
        precision = float(_precisions(seen.variances[row], left_out, feature[None])[0])
        return precision, precision * float(seen.means[row] - offset)

    def recentre(self) -> "Coupled":
        """Linearize where the outcomes have moved theta, its most probable value, and learn from all of them again.

        By Gauss-Newton steps, O(t r^2 + r^3) each; one that makes theta less probable is halved.
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
        """Minus the log posterior of the weights, up to a constant."""
        values, jacobian = map(
            np.asarray, self.response.linearize(self.theta(centre), self.outcomes.queries)
        )
        precisions = _precisions(
            self.outcomes.variances, self.remainders, jacobian @ self.post.factor
        )
        return float(centre @ centre + precisions @ (self.outcomes.means - values) ** 2) / 2

    def _centred_at(self, centre: np.ndarray) -> "Coupled":
        moved = replace(self, centre=centre)
        offsets, features = moved._linearize(self.outcomes.queries)
        precisions = _precisions(self.outcomes.variances, self.remainders, features)
        return replace(
            moved, weights=condition(features, self.outcomes.means - offsets, precisions)
        )

    def __repr__(self) -> str:
        outcomes = (
            f"{self.outcomes.counts.sum()} outcomes of {len(self.outcomes.counts)} interventions"
        )
        return f"Coupled({outcomes}, {len(self.centre)} directions; {self.post!r})"


def couple(post: Posterior) -> Coupled:
    """The surrogate before any outcome."""
    post = require_trusted(post)
    size = post.factor.shape[1]
    nothing = no_outcomes(len(post.problem.graph.nodes))
    weights = Weights(np.eye(size), np.zeros(size))
    return Coupled(response(post.problem, post), np.zeros(size), weights, nothing, np.zeros(0))


def _precisions(
    variances: np.ndarray, left_out: np.ndarray | float, features: np.ndarray
) -> np.ndarray:
    """(t,) of mean outcomes; an effect that the weights cannot move teaches nothing."""
    prior = (features**2).sum(axis=1)
    noise = variances + left_out + LEAST * prior
    return np.where(prior > 0, 1 / np.where(noise > 0, noise, 1.0), 0.0)


def _require_outcome(query: Queries, outcome: float, noise: float) -> None:
    if not isinstance(query, Queries) or len(query) != 1:
        raise DataError(
            f"tell the outcome of one intervention, as Queries of one row; got {query!r}"
        )
    outcome, noise = read_number("outcome", outcome), read_number("noise", noise)
    if not np.isfinite(outcome):
        raise DataError(
            f"the outcome is {outcome}; it must be finite: leave a failed experiment out"
        )
    if not (np.isfinite(noise) and noise >= 0):
        raise DataError(
            f"the variance of the outcome's noise is {noise}; it must be finite, and not negative"
        )
    require_outcomes(outcome)
    if fault := size_fault(noise, 0.0, MOST**2):
        raise DataError(f"the variance of the outcome's noise is {fault}")
