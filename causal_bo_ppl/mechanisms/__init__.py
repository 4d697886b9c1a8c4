"""How does every variable depend on its causes? Families of mechanisms, by name or object.

Choices of mechanisms, and priors, of every family are written to JSON and read again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.checks import require_sizes
from causal_bo_ppl.data.data import read_data
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.errors import ArgumentError, DomainError, MechanismError, listed
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.mechanisms.base import Mechanisms, ResponseMap, Task, offered, read_component
from causal_bo_ppl.mechanisms.custom import CustomMechanisms, read_functions
from causal_bo_ppl.mechanisms.gp import GaussianProcesses, read_choices
from causal_bo_ppl.mechanisms.gp_priors import GP as GP
from causal_bo_ppl.mechanisms.gp_priors import GPPrior
from causal_bo_ppl.mechanisms.linear import Linear
from causal_bo_ppl.mechanisms.linear_priors import prior_from_record, prior_to_record
from causal_bo_ppl.mechanisms.numpyro_models import NumPyroModel, program_of
from causal_bo_ppl.mechanisms.selection import Automatic
from causal_bo_ppl.problem import Problem

# What `mechanisms=` takes.
Choice = str | GP | Mapping[str, str | GP | Callable[..., Any]] | Callable[[], object] | Mechanisms
FAMILIES: dict[str, Mechanisms] = {
    "linear": Linear(),
    "gp": GaussianProcesses(),
    "auto": Automatic(),
}

VARIABLES_KEY, GP_KEY = "variables", "gp"  # of a dictionary by variable, and of a `cb.GP`
CUSTOM_NAME = "custom"  # of user-defined functions


def read_mechanisms(given: object) -> Mechanisms:
    """Return a family of mechanisms, given by its name, by variable, or as a user-defined object.

    given: "linear", "gp" or "auto"; `cb.GP(...)` for all variables; {variable: "linear", "gp",
    `cb.GP(...)` or a NumPyro function of the causes}; a NumPyro program over all variables; or a
    family.
    """
    if isinstance(given, GP):
        return GaussianProcesses(others=given)
    if isinstance(given, Mapping):
        has_functions = any(map(callable, given.values()))
        return read_functions(given) if has_functions else read_choices(given)
    if callable(given) and not isinstance(given, type) and offered(given, "bind") is None:
        return CustomMechanisms(program=given)
    family: Mechanisms = read_component("mechanisms", given, FAMILIES, "bind")
    return family


def read_response(given: object, task: Task) -> tuple[str, ResponseMap]:
    """Return the name of a family and its response map, without any data.

    given: a name, a family that offers `response(task)`, or a response map itself.
    """
    if offered(given, "batch") is not None:
        return str(getattr(given, "name", "given")), given  # type: ignore[return-value]
    family = read_mechanisms(given)
    response = offered(family, "response")
    if response is None:
        raise MechanismError(
            f"{family.name} mechanisms offer no response map without data; give the map itself"
        )
    return family.name, response(task)


def write_prior(prior: Any) -> dict[str, object]:
    """Return a prior as a dictionary that JSON can hold; refuses a user-defined prior."""
    if isinstance(prior, GPPrior):
        return {"prior": "GPPrior", **json.loads(prior.to_json())}
    return prior_to_record(prior)


def read_prior(record: object) -> Any:
    """Return the prior of such a dictionary; raises MechanismError for anything else."""
    if isinstance(record, dict) and record.get("prior") == "GPPrior":
        return GPPrior.from_json(json.dumps({k: v for k, v in record.items() if k != "prior"}))
    return prior_from_record(record)


def write_mechanisms(given: Any) -> object:
    """Return what `mechanisms=` was given, for JSON; a user-defined family by its name.

    Functions are recorded by their names; what holds them is named "custom" as a whole.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, GP):
        return {GP_KEY: asdict(given)}
    if isinstance(given, Mapping):
        pairs = {name: _write_choice(choice) for name, choice in given.items()}
        has_functions = any(map(callable, given.values()))
        return ({"name": CUSTOM_NAME} if has_functions else {}) | {VARIABLES_KEY: pairs}
    if isinstance(getattr(given, "name", None), str):
        return {"name": given.name}
    return {"name": CUSTOM_NAME, "program": _function_name(given)}


def _write_choice(choice: Any) -> object:
    if callable(choice):
        return {"function": _function_name(choice)}
    return write_mechanisms(choice)


def _function_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def read_written_mechanisms(record: Any) -> Any:
    """Return what `write_mechanisms` was given, but for a user-defined family."""
    if not isinstance(record, dict):
        return record
    if set(record) == {VARIABLES_KEY} and isinstance(record[VARIABLES_KEY], dict):
        return {name: read_written_mechanisms(each) for name, each in record[VARIABLES_KEY].items()}
    if set(record) != {GP_KEY} or not isinstance(record[GP_KEY], dict):
        raise MechanismError(
            f"mechanisms are a name, {VARIABLES_KEY} or {GP_KEY}; got {listed(record)}"
        )
    try:
        return GP(**record[GP_KEY])
    except TypeError as error:
        raise MechanismError(f"the options of cb.GP cannot be read: {error}") from None


def no_data(problem: Problem) -> Data:
    """Return a table of no observations of a problem."""
    empty = np.zeros((0, len(problem.graph.nodes)))
    return Data(problem.graph.nodes, problem.target, empty, empty.astype(bool))


def read_task(
    problem: Problem,
    data: Data | pd.DataFrame,
    prior: Any = None,
    parameters: str | None = None,
    intercepts: bool = True,
    linear: bool = False,
) -> Task:
    """Return what is to be learned, from arguments as `cb.fit` takes them."""
    require_float64()
    if not isinstance(problem, Problem):
        raise DomainError(
            f"a Problem is needed, got {type(problem).__name__}; of a system take system.problem"
        )
    for name, flag in (("intercepts", intercepts), ("linear", linear)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} must be True or False, got {flag!r}")
    if parameters is not None and not isinstance(parameters, str):
        raise ArgumentError(f"parameters must be a text such as 'structural', got {parameters!r}")
    observations = read_data(problem, data)
    require_sizes(observations)
    outcomes = no_outcomes(len(problem.graph.nodes))
    return Task(problem, observations, outcomes, prior, parameters, intercepts, linear)


def numpyro_model(
    problem: Problem,
    data: Data | pd.DataFrame | None = None,
    mechanisms: Choice = "linear",
    *,
    prior: Any = None,
    intercepts: bool = True,
    linear: bool = False,
) -> NumPyroModel:
    """Return the model that `cb.fit` fits as a NumPyro program.

    It runs under `numpyro.infer.MCMC(NUTS(model))`, `Predictive`, `AutoLaplaceApproximation`,
    `numpyro.handlers` and `numpyro.render_model`. `cb.Posterior.from_numpyro` takes its draws.

    Sites of parameters are `b[X->Z]`, a slope, `a[Z]`, an intercept, `sd[Z]` of the noise, and
    `t[X<->Y]`, the strength of a latent cause. Nonlinear mechanisms have `level[Z]` in place of the
    intercept, the mean where all causes are at their means; `trend[Z]`, the sd of the slopes;
    `amplitude[X->Z]` and `lengthscale[X->Z]` of a Gaussian process, and `f[X->Z]`, its standardized
    coefficients in the Hilbert-space basis; `low[X->Z]` and `high[X->Z]`, how the slope changes
    beyond the data. A parameter that a user-defined function of Z calls `most` is `most[Z]`.

    The target and each of its causes is a site of its own name, observed where there are data.
    Values that an experiment set are not scored, and what is downstream sees them. Variables that
    are no causes of the target have no site.

    Where latent causes join variables, linear mechanisms have correlated noise. In new rows the
    standardized noise has sites `e[X]`, so that `do` on one variable leaves the noise of others.
    Other mechanisms are replaced by regressions on the variables that verified estimands need, as
    their sites say (`b[X->Y|X,Z]`). The program is then the density of a row, but the distribution
    under an intervention only where this changes no regression: `model.do` refuses the others.
    `numpyro.handlers.do` cannot know, and must not be used on such a program.

    Parameters
    ----------
    problem:
        The problem whose mechanisms these are.
    data:
        Observations, as `cb.fit` takes them. Without any all variables are drawn, for which the
        prior must not be scaled to data: `FixedPrior`, or a `GPPrior` with `centres`, `scales` and
        `ranges`.
    mechanisms, prior, intercepts, linear:
        As in `cb.fit`; for mechanisms="auto" take `post.numpyro_model` of a posterior. The default
        `ScaledPrior` is improper, and is drawn as if it had the weight of d + 2 observations for an
        equation with d coefficients.

    Returns
    -------
    NumPyroModel

    Raises
    ------
    MechanismError
        If the mechanisms or the prior cannot be used for this problem.
    DataError
        If the data are not of this problem, or do not determine an equation.

    Examples
    --------
    >>> import jax
    >>> import causal_bo_ppl as cb
    >>> from numpyro.infer import Predictive
    >>> system = cb.models.load("chain")
    >>> model = cb.numpyro_model(system.problem, system.observe(50, 0))
    >>> model.mechanisms["Y"].names
    ('a[Y]', 'b[Z->Y]')
    >>> drawn = Predictive(model.do({"Z": 2.0}), num_samples=10)(jax.random.key(0), rows=3)
    >>> drawn["b[Z->Y]"].shape, drawn["Y"].shape
    ((10,), (10, 3))
    """
    if data is None and isinstance(problem, Problem):
        data = no_data(problem)
    task = read_task(problem, data, prior, None, intercepts, linear)
    family = read_mechanisms(mechanisms)
    if isinstance(family, Automatic):
        raise MechanismError(
            'mechanisms="auto" chooses by a fit; take cb.fit(problem, data, mechanisms="auto", '
            "method=...).numpyro_model, or name the mechanisms"
        )
    return program_of(family.bind(task))
