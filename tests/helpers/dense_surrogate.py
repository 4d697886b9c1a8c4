"""A dense Gaussian process over all interventions, for oracles: plain algebra with t x t matrices.

Effects of one set have an RBF kernel in the values; those of two sets share a part of it.
"""

from dataclasses import dataclass, replace

import jax
import numpy as np
from helpers import fitted_cases as cases
from helpers.joined_queries import joined

import causal_bo_ppl as cb


@dataclass(frozen=True, eq=False)
class Dense:
    post: object
    length: float = 1.0
    shared: float = 0.5
    observed: object = None
    outcomes: np.ndarray = None
    noises: np.ndarray = None
    is_affine = False

    def prior(self, a, b):
        x, y = (np.where(q.mask, q.value, 0.0) for q in (a, b))
        distance = ((x[:, None] - y[None]) ** 2).sum(axis=2)
        same = (np.asarray(a.mask)[:, None] == np.asarray(b.mask)[None]).all(axis=2)
        return np.exp(-distance / 2 / self.length**2) * np.where(same, 1.0, self.shared)

    def moments(self, queries):
        if self.observed is None:
            return np.zeros(len(queries)), self.prior(queries, queries)
        noisy = self.prior(self.observed, self.observed) + np.diag(self.noises)
        across = self.prior(queries, self.observed)
        gain = np.linalg.solve(noisy, across.T).T
        return gain @ self.outcomes, self.prior(queries, queries) - gain @ across.T

    def predict(self, queries):
        mean, covariance = self.moments(queries)
        return cb.surrogates.Prediction(mean, np.sqrt(np.maximum(np.diagonal(covariance), 0.0)))

    def joint(self, queries):
        return cb.surrogates.JointPrediction(*self.moments(queries))

    def sample(self, key, queries, n=1):
        mean, covariance = self.moments(queries)
        sizes, directions = np.linalg.eigh(covariance)
        root = directions * np.sqrt(np.maximum(sizes, 0.0))
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return mean + generator.standard_normal((n, len(mean))) @ root.T

    def condition(self, queries, outcomes, noise=None):
        outcomes, noises = (np.broadcast_to(each, len(queries)) for each in (outcomes, noise))
        if self.observed is None:
            return replace(self, observed=queries, outcomes=outcomes, noises=noises)
        return replace(
            self,
            observed=joined([self.observed, queries]),
            outcomes=np.append(self.outcomes, outcomes),
            noises=np.append(self.noises, noises),
        )

    def fantasize(self, queries, noise=None):
        return self.condition(queries, self.predict(queries).mean, noise)


def dense_case(objective="min", costs=None, observed=6, seed=0):
    """Two causes of Y, three sets, a fitted posterior, and a dense process with some outcomes."""
    graph = cb.CausalGraph.parse("X -> Y; Z -> Y")
    problem = cb.Problem(
        graph,
        "Y",
        objective,
        domains={"X": (-2.0, 3.0), "Z": (-1.0, 2.0)},
        sets=[["X"], ["Z"], ["X", "Z"]],
        costs=costs,
    )
    draws = np.random.default_rng(seed)
    truth = {("X", "Y"): 1.0, ("Z", "Y"): -1.0}
    post = cb.fit(problem, cases.simulate(problem, truth, 40, seed))
    surrogate = Dense(post)
    if observed:
        queries = problem.sobol(4)[np.arange(1, 1 + observed)]
        surrogate = surrogate.condition(queries, draws.normal(size=observed), 0.05)
    return problem, surrogate
