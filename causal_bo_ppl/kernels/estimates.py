"""What is a kernel of effects, and may it be trusted?"""

from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.buffers import hand_over
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import require_float64

TRUSTED = ("exact", "passed")


class KernelEstimate(NamedTuple):
    """Covariances of effects, and how far they may be from the truth.

    gram: (M, M), or (M, K) between two batches. standard_error: Monte-Carlo error of the entries; a zero that
    broadcasts, where there is none. assumed: under which conditions the gram is the covariance.
    """

    gram: jax.Array
    standard_error: jax.Array
    assumed: str

    def __repr__(self) -> str:
        rows, columns = self.gram.shape
        error = float(np.max(self.standard_error, initial=0.0))
        noise = f"standard errors up to {error:.3g}" if error > 0 else "no Monte-Carlo error"
        return f"KernelEstimate({rows} x {columns} covariances of effects, {noise}; {self.assumed})"


def no_error() -> jax.Array:
    """A zero that broadcasts."""
    return hand_over(np.zeros(()))


def require_trusted(post: Posterior, accept_unconverged: bool) -> Posterior:
    """The posterior, if its computation worked or the analyst accepts it anyway."""
    require_float64()
    if not isinstance(post, Posterior):
        raise ModelError(
            f"a kernel needs a Posterior, got {type(post).__name__}; make one with cb.fit"
        )
    if post.verdict not in TRUSTED and not accept_unconverged:
        raise ModelError(
            f"the posterior's verdict is {post.verdict!r}; look at cb.check_posterior(post), or pass "
            "accept_unconverged=True, which is recorded"
        )
    return post
