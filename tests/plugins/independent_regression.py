"""A user-defined surrogate: a conjugate linear regression for every set by itself."""

from dataclasses import dataclass, replace

import jax
import numpy as np
from scipy.stats import norm

import causal_bo_ppl as cb


@dataclass(frozen=True)
class IndependentRegression:
    """Effects are a + b'x within a set, (a, b) ~ N(0, width^2), and unrelated between sets."""

    width: float = 10.0
    name = "independent regression"

    def begin(self, post):
        return Regressions(post, self.width, post.problem.baseline()[:0], np.zeros(0), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Regressions:
    post: cb.Posterior
    width: float
    queries: object
    outcomes: np.ndarray
    noises: np.ndarray

    def _features(self, queries):
        """One block of columns (1, x) for every set of the problem."""
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        names = np.array(self.post.problem.graph.nodes)
        sets = [self.post.problem.position(names[row].tolist()) for row in mask]
        found = np.zeros((len(mask), len(self.post.problem.sets), mask.shape[1] + 1))
        rows = np.column_stack([np.ones(len(mask)), np.where(mask, value, 0.0)])
        found[np.arange(len(mask)), sets] = rows
        return found.reshape(len(mask), found.shape[1] * found.shape[2])

    def _weights(self):
        features = self._features(self.queries)
        precision = np.eye(features.shape[1]) / self.width**2 + features.T @ (
            features / self.noises[:, None]
        )
        covariance = np.linalg.inv(precision)
        return covariance @ features.T @ (self.outcomes / self.noises), covariance

    def predict(self, queries):
        (mean, covariance), at = self._weights(), self._features(queries)
        return cb.surrogates.Prediction(at @ mean, np.sqrt(((at @ covariance) * at).sum(axis=1)))

    def joint(self, queries):
        (mean, covariance), at = self._weights(), self._features(queries)
        return cb.surrogates.JointPrediction(at @ mean, at @ covariance @ at.T)

    def sample(self, key, queries, n=1):
        mean, covariance = self._weights()
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        draws = generator.multivariate_normal(mean, covariance, n, method="cholesky")
        return draws @ self._features(queries).T

    def condition(self, queries, outcomes, noise=None):
        noise = self.post.outcome_variances(queries) if noise is None else noise
        noise = np.maximum(np.broadcast_to(noise, len(queries)), 1e-12)
        return replace(
            self,
            queries=cb.problem.Queries(
                np.concatenate([self.queries.mask, queries.mask]),
                np.concatenate([self.queries.value, queries.value]),
            ),
            outcomes=np.append(self.outcomes, outcomes),
            noises=np.append(self.noises, noise),
        )

    def fantasize(self, queries, noise=None):
        return self.condition(queries, self.predict(queries).mean, noise)

    def log_density(self, query, outcome, noise):
        mean, sd = self.predict(query)
        return float(norm.logpdf(outcome, mean[0], np.sqrt(sd[0] ** 2 + noise)))
