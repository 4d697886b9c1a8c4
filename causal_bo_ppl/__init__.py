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
    from causal_bo_ppl import experiments as experiments
    from causal_bo_ppl import models as models
    from causal_bo_ppl import plots as plots
    from causal_bo_ppl import testing as testing
    from causal_bo_ppl import theory as theory
    from causal_bo_ppl.checks import Check as Check
    from causal_bo_ppl.data import Data as Data
    from causal_bo_ppl.diagnostics import Tolerances as Tolerances
    from causal_bo_ppl.diagnostics import calibrate as calibrate
    from causal_bo_ppl.diagnostics import check_basis as check_basis
    from causal_bo_ppl.diagnostics import check_extrapolation as check_extrapolation
    from causal_bo_ppl.diagnostics import check_graph as check_graph
    from causal_bo_ppl.diagnostics import check_linearity as check_linearity
    from causal_bo_ppl.diagnostics import check_loo as check_loo
    from causal_bo_ppl.diagnostics import check_overlap as check_overlap
    from causal_bo_ppl.diagnostics import check_posterior as check_posterior
    from causal_bo_ppl.diagnostics import check_predictive as check_predictive
    from causal_bo_ppl.diagnostics import gaussian_error as gaussian_error
    from causal_bo_ppl.diagnostics import prior_sensitivity as prior_sensitivity
    from causal_bo_ppl.effect_estimates import effects as effects
    from causal_bo_ppl.errors import CausalBOError as CausalBOError
    from causal_bo_ppl.errors import CausalBOWarning as CausalBOWarning
    from causal_bo_ppl.errors import DataError as DataError
    from causal_bo_ppl.errors import DomainError as DomainError
    from causal_bo_ppl.errors import ExperimentFailed as ExperimentFailed
    from causal_bo_ppl.errors import ExplorationError as ExplorationError
    from causal_bo_ppl.errors import GraphError as GraphError
    from causal_bo_ppl.errors import ModelError as ModelError
    from causal_bo_ppl.errors import NotIdentifiable as NotIdentifiable
    from causal_bo_ppl.errors import NumericalError as NumericalError
    from causal_bo_ppl.errors import SeedError as SeedError
    from causal_bo_ppl.errors import StoreError as StoreError
    from causal_bo_ppl.errors import UnverifiedEstimand as UnverifiedEstimand
    from causal_bo_ppl.errors import WorkerError as WorkerError
    from causal_bo_ppl.graph import CausalGraph as CausalGraph
    from causal_bo_ppl.graph import mis as mis
    from causal_bo_ppl.graph import pomis as pomis
    from causal_bo_ppl.identification import check_estimand as check_estimand
    from causal_bo_ppl.identification import identify as identify
    from causal_bo_ppl.inference import NUTS as NUTS
    from causal_bo_ppl.inference import Conjugate as Conjugate
    from causal_bo_ppl.inference import Laplace as Laplace
    from causal_bo_ppl.inference import Limits as Limits
    from causal_bo_ppl.inference import Posterior as Posterior
    from causal_bo_ppl.inference import Wishart as Wishart
    from causal_bo_ppl.inference import fit as fit
    from causal_bo_ppl.kernels import KernelEstimate as KernelEstimate
    from causal_bo_ppl.kernels import compare_kernels as compare_kernels
    from causal_bo_ppl.kernels import coupling as coupling
    from causal_bo_ppl.kernels import exact_gram as exact_gram
    from causal_bo_ppl.kernels import jacobian_features as jacobian_features
    from causal_bo_ppl.kernels import jacobian_gram as jacobian_gram
    from causal_bo_ppl.kernels import monte_carlo_features as monte_carlo_features
    from causal_bo_ppl.kernels import monte_carlo_gram as monte_carlo_gram
    from causal_bo_ppl.kernels import variance_reduction as variance_reduction
    from causal_bo_ppl.mechanisms.gp.priors import GP as GP
    from causal_bo_ppl.mechanisms.gp.priors import GPPrior as GPPrior
    from causal_bo_ppl.mechanisms.linear.priors import FixedPrior as FixedPrior
    from causal_bo_ppl.mechanisms.linear.priors import MomentPrior as MomentPrior
    from causal_bo_ppl.mechanisms.linear.priors import ScaledPrior as ScaledPrior
    from causal_bo_ppl.optimization import BetaSchedule as BetaSchedule
    from causal_bo_ppl.optimization import ConfidenceBound as ConfidenceBound
    from causal_bo_ppl.optimization import CostSubtracted as CostSubtracted
    from causal_bo_ppl.optimization import ExpectedImprovement as ExpectedImprovement
    from causal_bo_ppl.optimization import InTurn as InTurn
    from causal_bo_ppl.optimization import LogExpectedImprovement as LogExpectedImprovement
    from causal_bo_ppl.optimization import LookAhead as LookAhead
    from causal_bo_ppl.optimization import Observe as Observe
    from causal_bo_ppl.optimization import PerCost as PerCost
    from causal_bo_ppl.optimization import PointwiseBound as PointwiseBound
    from causal_bo_ppl.optimization import RegretSafeBound as RegretSafeBound
    from causal_bo_ppl.optimization import Run as Run
    from causal_bo_ppl.optimization import Settings as Settings
    from causal_bo_ppl.optimization import Stop as Stop
    from causal_bo_ppl.optimization import Study as Study
    from causal_bo_ppl.optimization import Thompson as Thompson
    from causal_bo_ppl.optimization import decompose_regret as decompose_regret
    from causal_bo_ppl.optimization import optimize as optimize
    from causal_bo_ppl.problem import Levels as Levels
    from causal_bo_ppl.problem import LinearConstraint as LinearConstraint
    from causal_bo_ppl.problem import MagnitudeCost as MagnitudeCost
    from causal_bo_ppl.problem import Problem as Problem
    from causal_bo_ppl.problem import Queries as Queries
    from causal_bo_ppl.responses import Response as Response
    from causal_bo_ppl.responses import compare_propagations as compare_propagations
    from causal_bo_ppl.responses import response as response
    from causal_bo_ppl.surrogates import couple as couple
    from causal_bo_ppl.systems import CausalSystem as CausalSystem
    from causal_bo_ppl.theory import causal_rank as causal_rank
    from causal_bo_ppl.theory import information_gain as information_gain
    from causal_bo_ppl.theory import information_gain_bound as information_gain_bound
    from causal_bo_ppl.theory import theory_table as theory_table

_ROOMS = {"experiments", "models", "plots", "testing", "theory"}
_HOMES = {
    "checks": ("Check",),
    "data": ("Data",),
    "diagnostics": (
        "Tolerances",
        "calibrate",
        "check_basis",
        "check_extrapolation",
        "check_graph",
        "check_linearity",
        "check_loo",
        "check_overlap",
        "check_posterior",
        "check_predictive",
        "gaussian_error",
        "prior_sensitivity",
    ),
    "effect_estimates": ("effects",),
    "errors": (
        "CausalBOError",
        "CausalBOWarning",
        "DataError",
        "DomainError",
        "ExperimentFailed",
        "ExplorationError",
        "GraphError",
        "ModelError",
        "NotIdentifiable",
        "NumericalError",
        "SeedError",
        "StoreError",
        "UnverifiedEstimand",
        "WorkerError",
    ),
    "graph": ("CausalGraph", "mis", "pomis"),
    "identification": ("check_estimand", "identify"),
    "inference": (
        "Conjugate",
        "Laplace",
        "Limits",
        "NUTS",
        "Posterior",
        "Wishart",
        "fit",
    ),
    "kernels": (
        "KernelEstimate",
        "compare_kernels",
        "coupling",
        "exact_gram",
        "jacobian_features",
        "jacobian_gram",
        "monte_carlo_features",
        "monte_carlo_gram",
        "variance_reduction",
    ),
    "mechanisms.gp.priors": ("GP", "GPPrior"),
    "mechanisms.linear.priors": ("FixedPrior", "MomentPrior", "ScaledPrior"),
    "optimization": (
        "BetaSchedule",
        "ConfidenceBound",
        "CostSubtracted",
        "ExpectedImprovement",
        "LogExpectedImprovement",
        "LookAhead",
        "Observe",
        "InTurn",
        "PerCost",
        "PointwiseBound",
        "RegretSafeBound",
        "Run",
        "Settings",
        "Stop",
        "Study",
        "Thompson",
        "decompose_regret",
        "optimize",
    ),
    "problem": ("Levels", "LinearConstraint", "MagnitudeCost", "Problem", "Queries"),
    "responses": ("Response", "compare_propagations", "response"),
    "surrogates": ("couple",),
    "systems": ("CausalSystem",),
    "theory": ("causal_rank", "information_gain", "information_gain_bound", "theory_table"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted({*_ROOMS, *_HOME})


def __getattr__(name: str) -> object:
    """Load a public name from its room on first use."""
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
