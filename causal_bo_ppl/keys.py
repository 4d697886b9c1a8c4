"""Which random key is this? (a JAX key, or an int seed at the user-facing doors)."""

import operator

import jax


def as_key(key: jax.Array | int) -> jax.Array:
    """Return a JAX key: an int is taken as a seed, a key passes through."""
    if isinstance(key, jax.Array):
        return key
    try:
        seed = operator.index(key)
    except TypeError:
        raise TypeError(f"key must be a JAX key or an int seed, got {key!r}") from None
    if isinstance(key, bool):
        raise TypeError(f"key must be a JAX key or an int seed, got {key!r}")
    return jax.random.key(seed)
