"""Which family of mechanisms? Given by name or as an object; compared on held-out observations.

Choices of mechanisms, and priors, of every family are written to JSON and read again.

Two candidates of a mechanism see the same observations, so that the standard error of the
difference of their log densities is that of n paired differences:

    difference = sum_i d_i,    standard error = sqrt(n) sd(d_i).

Observations are held out one by one: in closed form where the posterior has one, otherwise by
Pareto-smoothed importance sampling (PSIS-LOO). How "auto" chooses is in `mechanisms.automatic`.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.checks import PASSED, UNKNOWN
from causal_bo_ppl.errors import MechanismError, listed
from causal_bo_ppl.inputs import offered, read_component
from causal_bo_ppl.mechanisms.base import HeldOut, Mechanisms, ResponseMap, Task
from causal_bo_ppl.mechanisms.families import (
    CustomMechanisms,
    GaussianProcesses,
    read_choices,
    read_functions,
    with_noise_models,
)
from causal_bo_ppl.mechanisms.gp_priors import GP, GPPrior, Linear
from causal_bo_ppl.mechanisms.linear import LinearMechanisms
from causal_bo_ppl.mechanisms.linear_equations import prior_from_record, prior_to_record
from causal_bo_ppl.problem import Problem

WORST_PARETO_K = 0.7  # beyond it the held-out density of that observation is not reliable
MARGIN, LEAST_GAIN = 4.0, 1.0  # see `compare_with_linear`
MOST_GAIN_OF_ONE = 5.0  # that one observation may add: a single large gain has a large error
SELECTION_DRAWS = 2_000
LINEAR, NONLINEAR, UNDECIDED = "linear is enough", "nonlinear", "undecided"
RELIABLE_SHARE = 0.9  # of the observations must be reliable where a mechanism is called nonlinear
FEWEST_OBSERVATIONS = 4  # that can be held out one by one
SELECTION_COLUMNS = (
    "mechanism observations difference se largest_k linear_k finding verdict".split()
)


class Diagnosable(Protocol):
    """A posterior whose draws are written as an ArviZ DataTree."""

    def to_datatree(
        self, *, draws: int, key: jax.Array | int, observations: tuple[str, ...]
    ) -> Any:
        """Return draws with the pointwise groups that are asked for."""


@dataclass(frozen=True)
class Automatic:
    """The family "auto"; see `base.Mechanisms`.

    It stands for the family that `automatic.choose_mechanisms` returns.
    """

    name = "auto"
    is_automatic = True

    def bind(self, task: Task) -> Any:
        """Return the model in which every mechanism is a Gaussian process."""
        return GaussianProcesses().bind(task)


def hold_out_each(post: Diagnosable, draws: int, key: jax.Array | int) -> dict[str, HeldOut]:
    """Hold out every observation of every mechanism and return the results by variable."""
    in_closed_form = offered(getattr(post, "distribution", None), "held_out")
    known: dict[str, HeldOut] | None = in_closed_form and in_closed_form(post)
    if known is not None:
        return known
    from arviz_stats import loo

    wanted = ("log_likelihood", "observed_data")
    tree, held_out = post.to_datatree(draws=draws, key=key, observations=wanted), {}
    for name in map(str, tree["observed_data"].data_vars):
        indices = np.asarray(tree["log_likelihood"][name].coords[f"observation[{name}]"])
        if len(indices) < 2:
            unknown = np.full(len(indices), np.nan)
            held_out[name] = HeldOut(indices, unknown, unknown, np.nan, np.nan)
            continue
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", UserWarning)  # of large k: tables report them
            result = loo(tree, var_name=name, pointwise=True)
        elpd = np.asarray(result.elpd_i)
        # Weights that floats cannot hold give NaN with a small k: such an observation is the worst.
        pareto_k = np.where(np.isfinite(elpd), result.pareto_k, np.inf)
        held_out[name] = HeldOut(indices, elpd, pareto_k, float(result.se), float(result.p))
    return held_out


def compare_with_linear(
    problem: Problem,
    flexible: Mapping[str, HeldOut],
    linear: Mapping[str, HeldOut],
    *,
    margin: float = MARGIN,
    least: float = LEAST_GAIN,
) -> pd.DataFrame:
    """Compare each mechanism that has causes with a linear one; see `check_linearity`.

    Parameters
    ----------
    problem:
        The problem, whose graph has the causes of each variable.
    flexible, linear:
        Held-out predictions of nonlinear mechanisms and of linear ones.
    margin, least:
        By how much, in log density summed over the observations, a nonlinear mechanism may at most
        be better where a linear one is enough, and must at least be better to be called nonlinear.
    """
    names = [name for name in flexible if name in linear and problem.graph.parents(name)]
    if not names:
        raise MechanismError("no mechanism with causes was learned; there is nothing to compare")
    rows = [(name, *_compare(flexible[name], linear[name], margin, least)) for name in names]
    return pd.DataFrame(rows, columns=SELECTION_COLUMNS).set_index("mechanism")


def _compare(flexible: HeldOut, linear: HeldOut, margin: float, least: float) -> tuple[object, ...]:
    """Return the row of the table for one mechanism."""
    gaps, count = flexible.elpd - linear.elpd, len(flexible.observations)
    if count < 2:
        return count, *[np.nan] * 4, UNDECIDED, UNKNOWN
    difference, error = _sum_with_error(gaps)
    reliable, linear_is_reliable = (
        each.is_exact | (each.pareto_k <= WORST_PARETO_K) for each in (flexible, linear)
    )
    gain, gain_error = _sum_with_error(np.minimum(gaps[reliable], MOST_GAIN_OF_ONE))
    if reliable.mean() >= RELIABLE_SHARE and gain > max(least, 2 * gain_error):
        finding = NONLINEAR
    elif difference + 2 * error < margin and bool(linear_is_reliable.all()):
        finding = LINEAR
    else:
        finding = UNDECIDED
    shapes = float(flexible.pareto_k.max()), float(linear.pareto_k.max())
    verdict = UNKNOWN if finding == UNDECIDED else PASSED
    return count, difference, error, *shapes, finding, verdict


def _sum_with_error(gaps: np.ndarray) -> tuple[float, float]:
    """Return the sum of differences (n,) and its standard error, infinite for less than two."""
    error = np.sqrt(len(gaps)) * gaps.std(ddof=1) if len(gaps) > 1 else np.inf
    return float(gaps.sum()), float(error)


def describe_comparison(table: pd.DataFrame) -> str:
    """Return the findings of a comparison as sentences."""
    parts = []
    for finding, words in (
        (NONLINEAR, "These mechanisms are nonlinear"),
        (LINEAR, "A linear mechanism predicts as well for"),
        (UNDECIDED, "The observations do not decide for"),
    ):
        found = table[table["finding"] == finding]
        if len(found):
            columns = zip(found.index, found["difference"], found["se"], strict=True)
            numbers = [f"{name} ({gap:+.1f} +- {error:.1f})" for name, gap, error in columns]
            parts.append(f"{words}: {listed(numbers, most=6)}.")
    parts.append(
        "In brackets: log density of held-out observations, compared with a linear mechanism."
    )
    return " ".join(parts)


def advise_on_comparison(table: pd.DataFrame) -> str:
    """Return what to do about the findings of a comparison."""
    others = [str(name) for name in table.index[table["finding"] != LINEAR]]
    if not others:
        return 'Linear mechanisms predict as well: mechanisms="linear" is simpler and exact.'
    if len(others) < len(table):
        chosen = ", ".join(f'"{name}": "gp"' for name in others[:6])
        more = ", ..." if len(others) > 6 else ""
        return f"Some may as well be linear: mechanisms={{{chosen}{more}}} keeps the others linear."
    if (table["finding"] == UNDECIDED).any():
        return "Keep nonlinear mechanisms where the observations do not decide, or add more."
    return ""


# What `mechanisms=` takes.
OneChoice = str | GP | Linear
Choice = (
    OneChoice | Mapping[str, OneChoice | Callable[..., Any]] | Callable[[], object] | Mechanisms
)
FAMILIES: dict[str, Mechanisms] = {
    "linear": LinearMechanisms(),
    "gp": GaussianProcesses(),
    "auto": Automatic(),
}

VARIABLES_KEY, GP_KEY = "variables", "gp"  # of a dictionary by variable, and of a `cb.GP`
OPTIONS = {GP_KEY: GP, "linear": Linear}  # records of options, by their key
CUSTOM_NAME = "custom"  # of user-defined functions


def read_mechanisms(given: object) -> Mechanisms:
    """Return a family of mechanisms, given by its name, by variable, or as a user-defined object.

    given: "linear", "gp" or "auto"; `cb.GP(...)` or `cb.Linear(...)` for all variables; {variable:
    one of these, but "auto", or a NumPyro function of the causes}; a NumPyro program over all
    variables; or a family.
    """
    if isinstance(given, GP | Linear):
        return with_noise_models(GaussianProcesses(others=given))
    if isinstance(given, Mapping):
        has_functions = any(map(callable, given.values()))
        return read_functions(given) if has_functions else with_noise_models(read_choices(given))
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
    for key, kind in OPTIONS.items():
        if isinstance(given, GP | Linear) and isinstance(given, kind):
            return {key: asdict(given)}
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
    [key, *others] = record or [""]
    if others or key not in OPTIONS or not isinstance(record[key], dict):
        raise MechanismError(
            f"mechanisms are a name, {VARIABLES_KEY} or one of {listed(OPTIONS)}; got "
            f"{listed(record)}"
        )
    try:
        return OPTIONS[key](**record[key])
    except TypeError as error:
        name = OPTIONS[key].__name__
        raise MechanismError(f"the options of cb.{name} cannot be read: {error}") from None
