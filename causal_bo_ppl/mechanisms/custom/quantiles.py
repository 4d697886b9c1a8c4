"""Values of a distribution at given ranks, smooth in its parameters.

Most are inverses of distribution functions, which NumPyro knows for many distributions. Of those
made of gamma variables it does not: their quantiles are found by bisection, and the derivatives in
their parameters by one Newton step from there (the implicit function theorem). Draws of these by
rejection would jump when a parameter moves.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammainc, gammaln

from causal_bo_ppl.errors import ModelError

LOWEST = -700.0  # logarithm of the smallest gamma quantile
HALVINGS = 48


def is_exact(made: Any) -> bool:
    """Whether a variable is a function of its causes, without any disturbance."""
    return isinstance(made, dist.Delta)


def has_mean(made: Any) -> bool:
    """Whether a distribution knows its mean and variance."""
    try:
        return made.mean is not None and made.variance is not None
    except NotImplementedError:
        return False


def quantiles(made: Any, normal: Any, uniform: Any, extra: Any, key: jax.Array) -> Any:
    """Return values of a distribution at points of given ranks.

    Parameters
    ----------
    made:
        A distribution of one number, or of one for each point.
    normal, uniform:
        Standard normal and uniform points (S,) of the same ranks.
    extra:
        Further uniform points (S,), independent of these.
    key:
        For draws that follow the parameters (reparameterized), where no inverse is known.

    Raises
    ------
    ModelError
        If the distribution has no such draws either.
    """
    if is_exact(made):
        return made.v
    if type(made) is dist.Normal:
        return made.loc + made.scale * normal
    if isinstance(made, dist.Gamma):
        return gamma_quantile(made.concentration, uniform) / made.rate
    if isinstance(made, dist.InverseGamma):
        return made.rate / gamma_quantile(made.concentration, 1 - uniform)
    if isinstance(made, dist.Beta):
        one = gamma_quantile(made.concentration1, uniform)
        return one / (one + gamma_quantile(made.concentration0, extra))
    if isinstance(made, dist.StudentT):
        spread = gamma_quantile(made.df / 2, extra) / (made.df / 2)
        return made.loc + made.scale * normal / jnp.sqrt(spread)
    try:
        return made.icdf(uniform)
    except (NotImplementedError, ImportError):
        pass
    if not made.has_rsample:
        raise ModelError(f"{type(made).__name__} has no draws that follow its parameters")
    return made.sample(key, () if made.batch_shape else jnp.shape(uniform))


def gamma_quantile(shape: Any, uniform: Any) -> jax.Array:
    """Return quantiles of a gamma variable of rate 1, for shapes () or (S,) and ranks (S,)."""
    shape = jnp.asarray(shape, float) + jnp.zeros(jnp.shape(uniform))
    fixed = jax.lax.stop_gradient(shape)
    high = jnp.log(fixed + 40 * jnp.sqrt(fixed) + 800)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        below = gammainc(fixed, jnp.exp(middle)) < uniform
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    ends = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.full_like(fixed, LOWEST), high))
    root = jax.lax.stop_gradient((ends[0] + ends[1]) / 2)
    density = jnp.exp(fixed * root - jnp.exp(root) - gammaln(fixed))  # of the logarithm
    density = jnp.maximum(density, 1e-300)
    found: jax.Array = jnp.exp(root - (gammainc(shape, jnp.exp(root)) - uniform) / density)
    return found
