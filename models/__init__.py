"""Which causal systems of known truth are there to try? One file each, loaded by its name."""

if __name__ != "causal_bo_ppl.models":
    raise ImportError("this folder is a part of causal_bo_ppl; write `import causal_bo_ppl.models`")

import inspect
from importlib import import_module
from numbers import Integral
from typing import TYPE_CHECKING

from causal_bo_ppl.errors import ArgumentError, listed, unknown

if TYPE_CHECKING:
    from causal_bo_ppl.models.networks import gaussian_network as gaussian_network
    from causal_bo_ppl.systems import CausalSystem

__all__ = ["gaussian_network", "load", "names"]

_SYSTEMS = ("chain", "ecoli70", "funnel", "healthcare", "synthetic", "toy")


def names() -> tuple[str, ...]:
    """Return the names of the systems that `load` builds.

    Returns
    -------
    tuple of str
        The names in alphabetical order.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.models.names()
    ('chain', 'ecoli70', 'funnel', 'healthcare', 'synthetic', 'toy')
    """
    return _SYSTEMS


def load(
    name: str,
    *,
    variant: str | None = None,
    target: str | None = None,
    parents: bool = True,
    max_size: int | None = None,
    seed: int = 0,
) -> "CausalSystem":
    """Build a system by name; an option that the system does not have must stay at its default.

    Parameters
    ----------
    name:
        One of `names()`.
    variant:
        Another truth or other domains under the same graph, such as "confounded" or "daggp".
    target, parents:
        For ecoli70 only: the variable to improve, and whether its parents may be set.
    max_size:
        Explore all sets up to this size instead of the system's own.
    seed:
        For funnel only: which coefficients are drawn.

    Returns
    -------
    CausalSystem
        It has a `problem`, `observe(n, key)`, `experiment(queries, key)`, the exact
        `effect(queries)` and the `optimum`.

    Raises
    ------
    ArgumentError
        If there is no such system, or it does not have an option that was given.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> system.optimum.value, system.optimum.intervention
    (-6.5, {'Z': 5.0})
    """
    from causal_bo_ppl.inputs import require_float64

    require_float64()
    if name not in _SYSTEMS:
        raise ArgumentError(unknown("system", name, _SYSTEMS))
    build = getattr(import_module(f"{__name__}.{name}"), name)
    accepted = inspect.signature(build).parameters
    chosen = {}
    for option, value, default, kinds in (
        ("variant", variant, None, str),
        ("target", target, None, str),
        ("parents", parents, True, bool),
        ("max_size", max_size, None, Integral),
        ("seed", seed, 0, object),
    ):
        if value is default or value == default:
            continue
        if not isinstance(value, kinds):
            raise ArgumentError(
                f"{option} cannot be {value!r}; see help(causal_bo_ppl.models.load)"
            )
        if option not in accepted:
            raise ArgumentError(
                f"{name!r} has no option {option!r} (given: {value!r}); "
                f"its options: {listed(accepted)}"
            )
        chosen[option] = value
    system: CausalSystem = build(**chosen)
    return system


def __getattr__(name: str) -> object:
    """Load the reader of networks on first use: with it come JAX and NumPyro."""
    if name != "gaussian_network":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from causal_bo_ppl.models.networks import gaussian_network

    return gaussian_network
