"""What is known before the first experiment? The data are fitted, and checked once."""

import hashlib
from dataclasses import replace
from importlib.metadata import version

import jax

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import digest
from causal_bo_ppl.data.outcomes import no_outcomes
from causal_bo_ppl.errors import SettingsError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.methods import read_method, trait
from causal_bo_ppl.inference.posterior import choose_family
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task, offered
from causal_bo_ppl.optimization.monitor import contradicts_graph, precheck, warn_of_failed_checks
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import State, begin
from causal_bo_ppl.problem import Problem

RECORDED_PACKAGES = ("jax", "numpy", "numpyro")  # whose versions are stored with a run
FEWEST_OBSERVATIONS = 8  # that the checks before the first round need


def begin_from_data(
    problem: Problem, data: Data, settings: Settings, key: jax.Array, *, stacklevel: int | None = 1
) -> tuple[State, tuple[Check, ...]]:
    """Fit the data there are, run the cheap checks once, and warn of those that failed.

    Parameters
    ----------
    problem, data, settings:
        What is optimized, the data to begin with, and how.
    key:
        For all that is drawn before the first experiment.
    stacklevel:
        Where warnings point to: 1 is the caller of this function, 2 the caller of that one;
        None issues no warning.

    Returns
    -------
    tuple of State and tuple of Check
        The state before the first experiment, and the checks.
    """
    level = None if stacklevel is None else stacklevel + 1
    post, experiments, takes = fit_data(problem, data, settings, jax.random.fold_in(key, 1))
    state = begin(post, settings, experiments, takes_observations=takes, stacklevel=level)
    checks = run_checks(state, jax.random.fold_in(key, 2))
    adjusted = settings.with_discrepancy(contradicts_graph(checks))
    if adjusted is not settings:
        state = begin(post, adjusted, experiments, takes_observations=takes, stacklevel=None)
    if level is not None:
        warn_of_failed_checks(checks, stacklevel=level)
    return state, checks


def digest_data(data: Data) -> str:
    """Return a hash of data, the same for any order of the observations."""
    return hashlib.sha256(f"{digest(data):x}".encode()).hexdigest()


def find_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of the packages that compute a run."""
    import causal_bo_ppl

    others = ((name, version(name)) for name in RECORDED_PACKAGES)
    return (("causal_bo_ppl", causal_bo_ppl.__version__), *others)


def run_checks(state: State, key: jax.Array) -> tuple[Check, ...]:
    """Run the cheap checks, where the surrogate relies on the mechanisms."""
    relies = offered(state.surrogate, "without_discrepancy") is not None
    relies = relies and state.base.distribution.model is not None
    checks = () if state.base.chosen is None else (state.base.chosen,)
    if not relies or state.base.n_observations < FEWEST_OBSERVATIONS:
        return checks
    return (*checks, *precheck(state.base, key))


def fit_data(
    problem: Problem, data: Data, settings: Settings, key: jax.Array
) -> tuple[Posterior, Data, bool]:
    """Return the posterior, the earlier experiments that it did not use, and whether it could."""
    task = Task(problem, data, no_outcomes(len(problem.graph.nodes)), settings.prior)
    family, choice = choose_family(task, read_mechanisms(settings.mechanisms))
    default = offered(family, "default_method")
    usual = "laplace" if default is None else default(problem)
    method = read_method(settings.inference or usual)
    options = {"mechanisms": family, "method": method, "prior": settings.prior, "key": key}
    takes = offered(family, "takes_experiments")
    can_use = takes is None or takes(problem)
    if trait(method, "takes_experiments") and can_use:
        post = replace(fit(problem, data, **options), chosen=choice)
        return post, data.select(slice(0, 0)), True
    if settings.learn_from == "rows":
        why = (
            f"{method.name}, the default here, learns from observational data only"
            if can_use
            else f"latent causes join {problem.target!r} to intervened variables"
        )
        raise SettingsError(
            f'{why}, so whole rows of experiments cannot be used; take learn_from="target"'
        )
    observed = data.select(data.is_observational)
    post = replace(fit(problem, observed, **options), chosen=choice)
    return post, data.select(~data.is_observational), False
