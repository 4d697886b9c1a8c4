"""What does one draw of a posterior hold? Theta, the whole model, and what the method says about it."""

from typing import NamedTuple

import numpy as np

CHAINS, DRAWS = 4, 4_000  # of posteriors that are drawn from at once: chains are a mere division


def even(n: int | None) -> int:
    """About n draws, as many in each chain; DRAWS by default."""
    return CHAINS * -(-(n or DRAWS) // CHAINS)


class Models(NamedTuple):
    """Draws of the whole model: matrices (n, p + 1, p) of coefficients, intercepts last; noises (n, p, p)."""

    matrices: np.ndarray
    noises: np.ndarray


class Drawn(NamedTuple):
    """n draws, in `chains` equal parts one after the other.

    theta: (n, d). models: of all equations; of moments they have no edges. log_prior: (n,) up to a constant.
    stats: {name: (chains, n / chains)} of the sampler. told: (n, m) log densities of outcomes, where there are any.
    """

    chains: int
    theta: np.ndarray
    models: Models
    log_prior: np.ndarray
    stats: dict[str, np.ndarray]
    told: np.ndarray | None = None

    def thinned(self, most: int | None) -> "Drawn":
        """Every so-many-th draw of each chain, at most about `most` in all."""
        length = len(self.theta) // self.chains
        step = 1 if most is None else max(1, -(-len(self.theta) // most))
        kept = (np.arange(self.chains)[:, None] * length + np.arange(0, length, step)[None]).ravel()
        return Drawn(
            self.chains,
            self.theta[kept],
            Models(*(part[kept] for part in self.models)),
            self.log_prior[kept],
            {name: value[:, ::step] for name, value in self.stats.items()},
            None if self.told is None else self.told[kept],
        )
