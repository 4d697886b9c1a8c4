"""Draws of a posterior: theta, the whole models, and what the method says about each draw."""

from typing import Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.inference.potentials import log_priors
from causal_bo_ppl.mechanisms.interfaces import Model, offered

CHAINS, DRAWS = 4, 4_000  # of posteriors that are drawn from at once: chains are a mere division


def even(n: int | None) -> int:
    """Return about n, DRAWS by default, as a multiple of CHAINS."""
    return CHAINS * -(-(n or DRAWS) // CHAINS)


class Drawn(NamedTuple):
    """Draws of a posterior, n in all, in `chains` equal parts one after the other.

    theta: (n, d). models: parameters of n models, as the family makes them; None where only theta
    is known. log_prior: (n,) up to a constant, or None. stats: {name: (chains, n / chains)} of the
    sampler. told: (n, m) log densities of outcomes, where there are any.
    """

    chains: int
    theta: np.ndarray
    models: Any = None
    log_prior: np.ndarray | None = None
    stats: dict[str, np.ndarray] = {}
    told: np.ndarray | None = None

    def thinned(self, most: int | None) -> "Drawn":
        """Return every so-many-th draw of each chain, at most about `most` in all."""
        length = len(self.theta) // self.chains
        step = 1 if most is None else max(1, -(-len(self.theta) // most))
        starts = np.arange(self.chains)[:, None] * length
        kept = (starts + np.arange(0, length, step)[None]).ravel()
        models, log_prior, told = jax.tree.map(
            lambda part: part[kept], (self.models, self.log_prior, self.told)
        )
        stats = {name: value[:, ::step] for name, value in self.stats.items()}
        return Drawn(self.chains, self.theta[kept], models, log_prior, stats, told)


def choose_draws(draws: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """Choose n of the draws (m, d) at random: each at most once, as long as there are enough."""
    order = generator.permutation(len(draws))
    return np.asarray(draws[np.resize(order, n) if n > len(draws) else order[:n]])


def drawn_at(model: Model, psi: np.ndarray, chains: int, stats: dict[str, Any]) -> Drawn:
    """Return draws at coordinates (n, k) with all that the model says about them."""
    models = model.draws(psi)
    outcomes = offered(model, "outcome_densities")
    told = None if outcomes is None else outcomes(models)
    return Drawn(chains, model.theta(models), models, log_priors(model, psi), stats, told)


def drawn_before(model: Model, n: int, key: jax.Array) -> Drawn | None:
    """Draw about n models before any row; None where the model cannot."""
    draw_prior = offered(model, "draw_prior")
    models = None if draw_prior is None else draw_prior(even(n), key)
    return None if models is None else Drawn(CHAINS, model.theta(models), models)
