"""What is the negative log posterior of the linear model, as NumPyro computes it from its program?"""

from functools import partial
from typing import Any

import jax
from numpyro.infer.util import potential_energy

from causal_bo_ppl.posterior.linear_model import Sites, split
from causal_bo_ppl.sem.handler_lock import HANDLER_LOCK
from causal_bo_ppl.sem.linear_density import Shape, linear_density


def potential(shape: Shape, arguments: tuple[Any, ...], sites: Sites) -> jax.Array:
    """At given sites, up to a constant; arguments: chart, prior and rows."""
    with HANDLER_LOCK:  # while this is traced; what is compiled runs without handlers
        found: jax.Array = potential_energy(partial(linear_density, shape), arguments, {}, sites)
    return found


def flat_potential(shape: Shape, arguments: tuple[Any, ...], flat: jax.Array) -> jax.Array:
    """At coordinates (k,)."""
    return potential(shape, arguments, split(shape, flat))
