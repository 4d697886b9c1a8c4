"""A user-defined method of inference: importance resampling of a Laplace proposal.

Internals: a method of inference builds on the proposal and the density of the package, which have
no public names.
"""

from dataclasses import dataclass

import jax
import numpy as np

from causal_bo_ppl.inference.draws import SampledDistribution
from causal_bo_ppl.inference.laplace import approximate
from causal_bo_ppl.inference.potentials import WHOLE, potentials, resample, weigh

CHAINS = 4


@dataclass(frozen=True)
class ImportanceResampling:
    """Gaussian draws at the mode, chosen in proportion to their importance weights."""

    draws: int = 2_000
    name = "importance"
    needs_key = True

    def infer(self, task, mechanisms, key):
        return self.resample(mechanisms.bind(task), key)

    def resample(self, model, key):
        words = np.asarray(jax.random.key_data(key)).tolist()
        proposal, generator = approximate(model), np.random.default_rng(words)
        z = generator.standard_normal((8 * self.draws, len(proposal.mode)))
        psi = proposal.mode + z @ proposal.factor.T
        ratios = 0.5 * (z**2).sum(axis=1) - potentials(proposal.model, psi)
        chosen = generator.permutation(
            resample(weigh(ratios, WHOLE).weights, self.draws, generator)
        )
        return SampledDistribution(
            model=proposal.model,
            psi=psi[chosen].reshape(CHAINS, -1, psi.shape[1]),
            stats={},
            by="importance resampling",
            size=f"{self.draws} draws of {len(z)} proposals",
            settings=f"{self.draws} {words}",
            again=lambda longer: self.resample(longer, jax.random.fold_in(key, len(longer.data))),
        )
