"""How does a result of NumPy become a JAX array without a copy, and without compiling anything?"""

from collections.abc import Sequence

import jax
import numpy as np

ALIGNED = 64  # bytes; JAX copies what lies elsewhere


def empty(shape: Sequence[int]) -> np.ndarray:
    """An array of float64, not filled, that JAX can take as it is."""
    size = 8 * int(np.prod(shape))
    raw = np.empty(size + ALIGNED, np.uint8)
    start = -raw.ctypes.data % ALIGNED
    return raw[start : start + size].view(np.float64).reshape(shape)


def hand_over(array: np.ndarray) -> jax.Array:
    """The same memory as a JAX array, where it is aligned; it must not be written to afterwards."""
    with jax.ensure_compile_time_eval():  # an array of numbers, also within a trace
        found: jax.Array = jax.device_put(array, may_alias=True)
    return found


def product(left: np.ndarray, right: np.ndarray) -> jax.Array:
    """Left times right as a JAX array; at a NumPy product's speed for every shape, without compiling."""
    return hand_over(np.matmul(left, right, out=empty((left.shape[0], right.shape[1]))))
