"""Which random key is this? (a JAX key, or an int seed at the user-facing doors)."""

from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np

from causal_bo_ppl.errors import SeedError
from causal_bo_ppl.precision import require_float64


def as_key(key: jax.Array | int) -> jax.Array:
    """Return a JAX key: an int is taken as a seed, a key passes through."""
    require_float64()
    if isinstance(key, jax.Array) and (
        (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ())
        or (key.dtype == jnp.uint32 and key.shape == (2,))
    ):
        return key
    if isinstance(key, bool) or not isinstance(key, Integral) or not 0 <= int(key) < 2**63:
        raise SeedError(f"key must be one JAX key or an int seed from 0 to 2^63 - 1, got {key!r}")
    return jax.random.key(int(key))


def host_generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator for a key: nothing is compiled, whatever shapes are drawn."""
    data = np.asarray(jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key)
    return np.random.default_rng([int(word) for word in data])
