"""What is known before the first experiment? Rows are learned from, and checked once."""

import hashlib
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

import jax

from causal_bo_ppl.checks import Check
from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import digest
from causal_bo_ppl.data.outcomes import no_outcomes
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior, fit
from causal_bo_ppl.inference.methods import read_method, trait
from causal_bo_ppl.inference.posterior import choose_family
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task, offered
from causal_bo_ppl.optimization.monitor import contradicts_graph, precheck, warn_of
from causal_bo_ppl.optimization.settings import Settings
from causal_bo_ppl.optimization.state import State, begin
from causal_bo_ppl.problem import Problem

PACKAGES = ("jax", "numpy", "numpyro")
FEWEST = 8  # rows that the checks before the first round need


class Beginning(NamedTuple):
    """The state before the first question, and what was checked."""

    state: State
    checks: tuple[Check, ...]


def begin_from_rows(
    problem: Problem, rows: Data, settings: Settings, key: jax.Array, *, stacklevel: int | None = 1
) -> Beginning:
    """Learn from the rows there are, run the cheap checks once, and say what failed.

    Parameters
    ----------
    problem, rows, settings:
        What is optimized, the rows to begin with, and how.
    key:
        For all that is drawn before the first question.
    stacklevel:
        Where warnings point to: 1 is the caller of this function, 2 the caller of that one;
        None says nothing of the checks and of rows that cannot be used.
    """
    level = None if stacklevel is None else stacklevel + 1
    post, experiments, takes_observations = learn(
        problem, rows, settings, jax.random.fold_in(key, 1)
    )
    state = begin(
        post, settings, experiments, takes_observations=takes_observations, stacklevel=level
    )
    checks = check(state, jax.random.fold_in(key, 2))
    doubtful = settings.with_discrepancy(contradicts_graph(checks))
    if doubtful is not settings:
        state = begin(
            post, doubtful, experiments, takes_observations=takes_observations, stacklevel=None
        )
    if level is not None:
        warn_of(checks, stacklevel=level)
    return Beginning(state, checks)


def digest_rows(rows: Data) -> str:
    """Return a hash of rows, the same in any order."""
    return hashlib.sha256(f"{digest(rows):x}".encode()).hexdigest()


def find_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of the packages that compute a run."""
    import causal_bo_ppl

    others = ((name, version(name)) for name in PACKAGES)
    return (("causal_bo_ppl", causal_bo_ppl.__version__), *others)


def check(state: State, key: jax.Array) -> tuple[Check, ...]:
    """Run the cheap checks, where the mechanisms are to be relied upon."""
    is_ours = offered(state.surrogate, "without_residual") is not None
    made = () if state.base.chosen is None else (state.base.chosen,)
    if not is_ours or state.base.distribution.model is None or state.base.n_observations < FEWEST:
        return made
    return (*made, *precheck(state.base, key))


def learn(
    problem: Problem, data: Data, settings: Settings, key: jax.Array
) -> tuple[Posterior, Data, bool]:
    """Return the posterior, rows of earlier experiments that it did not use, and if it could."""
    task = Task(problem, data, no_outcomes(len(problem.graph.nodes)), settings.prior)
    family, choice = choose_family(task, read_mechanisms(settings.mechanisms))
    default = offered(family, "default_method")
    usual = "laplace" if default is None else default(problem)
    method = read_method(settings.inference or usual)
    options = {"mechanisms": family, "method": method, "prior": settings.prior, "key": key}
    takes = offered(family, "takes_experiments")
    is_taught = takes is None or takes(problem)
    if trait(method, "takes_experiments") and is_taught:
        post = replace(fit(problem, data, **options), chosen=choice)
        return post, data.select(slice(0, 0)), True
    if settings.learn_from == "rows":
        why = (
            f"{method.name}, the default here, learns from observational rows only"
            if is_taught
            else f"latent causes join {problem.target!r} to what is set"
        )
        raise ModelError(
            f'{why}, so whole rows of experiments cannot be used; take learn_from="target"'
        )
    observed = data.select(data.is_observational)
    post = replace(fit(problem, observed, **options), chosen=choice)
    return post, data.select(~data.is_observational), False
