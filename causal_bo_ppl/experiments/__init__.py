"""Do the published claims hold, and how do methods compare on other systems?

`sweep` compares methods on systems with known truth over many seeds; `reproduce` makes the tables
and figures of the paper. Units are computed by Dask workers, on this machine or on a cluster. Names
are loaded when first used: a worker does not import matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from causal_bo_ppl.experiments.comparison import Case as Case
    from causal_bo_ppl.experiments.comparison import Comparison as Comparison
    from causal_bo_ppl.experiments.comparison import sweep as sweep
    from causal_bo_ppl.experiments.reproduction import NAMES as NAMES
    from causal_bo_ppl.experiments.reproduction import Reproduction as Reproduction
    from causal_bo_ppl.experiments.reproduction import reproduce as reproduce

_HOMES = {
    "Case": "comparison",
    "Comparison": "comparison",
    "NAMES": "reproduction",
    "Reproduction": "reproduction",
    "reproduce": "reproduction",
    "sweep": "comparison",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Load a name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
