"""Does JAX still compute in 64-bit floats? Importing the package switched them on; anyone may switch them off again."""

import jax

from causal_bo_ppl.errors import ModelError


def require_float64() -> None:
    """Refuse to compute where JAX makes 32-bit floats, for the whole process or within a context of this thread.

    Half of the digits would be lost without a word. The check costs less than a microsecond.
    """
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise ModelError(
            "JAX was switched back to 32-bit floats, in which results lose half of their digits; switch 64-bit floats "
            'on again with jax.config.update("jax_enable_x64", True), or leave the context jax.enable_x64(False)'
        )
