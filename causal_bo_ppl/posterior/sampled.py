"""What do draws by NUTS say about theta_Y?"""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.keys import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.posterior.chains import Chains, Sampling, run_chains
from causal_bo_ppl.posterior.drawn import Drawn, Models
from causal_bo_ppl.posterior.linear_model import LinearModel
from causal_bo_ppl.posterior.noise import outcome_variances
from causal_bo_ppl.posterior.priors import Prior
from causal_bo_ppl.posterior.verdict import Limits, judge_chains, overall, summarise
from causal_bo_ppl.queries import Queries


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws of the linear model. key: what they were drawn with."""

    model: LinearModel
    sampling: Sampling
    key: jax.Array
    chains: Chains

    @property
    def prior(self) -> Prior:
        """What was believed before."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known."""
        return self.model.equations.needed

    @property
    def settings(self) -> str:
        """All that the draws depend on besides the rows."""
        kept = (self.sampling.chains, self.sampling.warmup, self.sampling.draws, self.sampling.target_accept)
        return f"{kept} {self.sampling.depth} {np.asarray(jax.random.key_data(self.key)).tolist()}"

    @property
    def moments_by(self) -> str:
        """How mean and covariance were found."""
        return f"{self.sampling.chains} x {self.sampling.draws} draws by NUTS"

    @cached_property
    def models(self) -> Models:
        """All draws of the model, chain after chain."""
        return self.model.models(self.chains.flat.reshape(-1, self.model.dimension))

    @cached_property
    def theta(self) -> np.ndarray:
        """(chains, draws, d) draws of theta_Y."""
        found = self.model.readout.read(self.models.matrices)
        return found.reshape(*self.chains.flat.shape[:2], -1)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        return flat.mean(axis=0), factor_draws(flat)

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) of the draws at random: each at most once, as long as there are enough."""
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        return np.asarray(flat[_choose(len(flat), n, key)])

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """All draws, or every so-many-th of each chain so that about n remain."""
        return self._all.thinned(n)

    @cached_property
    def _all(self) -> Drawn:
        log_prior, _ = self.model.log_parts(self.chains.flat.reshape(-1, self.model.dimension))
        theta, told = self.theta.reshape(-1, self.theta.shape[-1]), self.model.told(self.models)
        return Drawn(len(self.theta), theta, self.models, log_prior, self.chains.stats, told)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Convergence of every coordinate of theta_Y, and of the log posterior."""
        lp = self.chains.stats["lp"][..., None]
        names = (*self.model.readout.parameters.names, "log posterior")
        return summarise(np.concatenate([self.theta, lp], axis=-1), names)

    def lines(self, limits: Limits) -> pd.DataFrame:
        """What the computation's success is judged by."""
        return judge_chains(self.summary, self.chains.stats, limits)

    @cached_property
    def verdict(self) -> str:
        """Did the chains agree, and explore?"""
        return overall(self.lines(Limits()))

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome at the posterior means."""
        return outcome_variances(
            self.models.matrices.mean(axis=0), self.models.noises.mean(axis=0), self.learned, queries
        )

    def update(self, rows: Data) -> "Sampled":
        """After more rows: drawn anew, with a key of its own."""
        model = self.model.with_rows(rows)
        return sample(model, self.sampling, jax.random.fold_in(self.key, len(model.data)))


def _choose(available: int, n: int, key: jax.Array) -> np.ndarray:
    order = host_generator(key).permutation(available)
    return np.resize(order, n) if n > available else order[:n]


def sample(model: LinearModel, sampling: Sampling, key: jax.Array) -> Sampled:
    """The posterior by NUTS."""
    model = replace(model, follows=True)
    return Sampled(model, sampling, key, run_chains(model, sampling, key))
