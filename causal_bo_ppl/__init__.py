"""Graph-coupled causal Bayesian optimization.

Importing this package switches JAX to 64-bit floats (`jax_enable_x64`): every number here is a
float64. Where JAX has not been imported yet, that happens as soon as anybody imports it. All else
is loaded when first used, so that the import itself costs next to nothing.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"


class _Switch:
    """Finds JAX as Python does, and switches it to 64-bit floats at the end of its import."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how JAX is imported; nothing for any other module."""
        spec = PathFinder.find_spec(name, path, target) if name == "jax" else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _switch_on(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _switch_on(jax: ModuleType) -> None:
    jax.config.update("jax_enable_x64", True)
    if _Switch in sys.meta_path:
        sys.meta_path.remove(_Switch)


if "jax" in sys.modules:
    _switch_on(import_module("jax"))
else:
    sys.meta_path.insert(0, _Switch)

if TYPE_CHECKING:
    from causal_bo_ppl import acquisition as acquisition
    from causal_bo_ppl import diagnostics as diagnostics
    from causal_bo_ppl import errors as errors
    from causal_bo_ppl import experiments as experiments
    from causal_bo_ppl import graph as graph
    from causal_bo_ppl import kernels as kernels
    from causal_bo_ppl import models as models
    from causal_bo_ppl import optimization as optimization
    from causal_bo_ppl import plots as plots
    from causal_bo_ppl import priors as priors
    from causal_bo_ppl import problem as problem
    from causal_bo_ppl import surrogates as surrogates
    from causal_bo_ppl import testing as testing
    from causal_bo_ppl import theory as theory
    from causal_bo_ppl import validation as validation
    from causal_bo_ppl.data import Data as Data
    from causal_bo_ppl.effect_estimates import effects as effects
    from causal_bo_ppl.errors import CausalBOError as CausalBOError
    from causal_bo_ppl.errors import CausalBOWarning as CausalBOWarning
    from causal_bo_ppl.graph import CausalGraph as CausalGraph
    from causal_bo_ppl.identification import identify as identify
    from causal_bo_ppl.inference import NUTS as NUTS
    from causal_bo_ppl.inference import Conjugate as Conjugate
    from causal_bo_ppl.inference import Laplace as Laplace
    from causal_bo_ppl.inference import Posterior as Posterior
    from causal_bo_ppl.inference import Wishart as Wishart
    from causal_bo_ppl.inference import fit as fit
    from causal_bo_ppl.inference import numpyro_model as numpyro_model
    from causal_bo_ppl.kernels import compare_kernels as compare_kernels
    from causal_bo_ppl.kernels import exact_gram as exact_gram
    from causal_bo_ppl.kernels import jacobian_gram as jacobian_gram
    from causal_bo_ppl.kernels import monte_carlo_gram as monte_carlo_gram
    from causal_bo_ppl.mechanisms import GP as GP
    from causal_bo_ppl.mechanisms import Linear as Linear
    from causal_bo_ppl.optimization import Run as Run
    from causal_bo_ppl.optimization import Settings as Settings
    from causal_bo_ppl.optimization import Study as Study
    from causal_bo_ppl.optimization import optimize as optimize
    from causal_bo_ppl.problem import Levels as Levels
    from causal_bo_ppl.problem import LinearConstraint as LinearConstraint
    from causal_bo_ppl.problem import Problem as Problem
    from causal_bo_ppl.reports import report as report
    from causal_bo_ppl.responses import response as response
    from causal_bo_ppl.systems import CausalSystem as CausalSystem
    from causal_bo_ppl.validation import validate as validate

_NAMESPACES = {
    "acquisition",
    "diagnostics",
    "errors",
    "experiments",
    "graph",
    "kernels",
    "models",
    "optimization",
    "plots",
    "priors",
    "problem",
    "surrogates",
    "testing",
    "theory",
    "validation",
}
_MODULES = {
    "data": ("Data",),
    "effect_estimates": ("effects",),
    "errors": (
        "CausalBOError",
        "CausalBOWarning",
    ),
    "graph": ("CausalGraph",),
    "identification": ("identify",),
    "inference": (
        "Conjugate",
        "Laplace",
        "NUTS",
        "Posterior",
        "Wishart",
        "fit",
        "numpyro_model",
    ),
    "kernels": (
        "compare_kernels",
        "exact_gram",
        "jacobian_gram",
        "monte_carlo_gram",
    ),
    "mechanisms": (
        "GP",
        "Linear",
    ),
    "optimization": (
        "Run",
        "Settings",
        "Study",
        "optimize",
    ),
    "problem": (
        "Levels",
        "LinearConstraint",
        "Problem",
    ),
    "reports": ("report",),
    "responses": ("response",),
    "systems": ("CausalSystem",),
    "validation": ("validate",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted({*_NAMESPACES, *_MODULE_OF})


def __getattr__(name: str) -> object:
    """Load a public name or a namespace when it is first used."""
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
