"""Which system does a file of a linear-Gaussian network describe?

The file is JSON in the layout of `ecoli70.json`:

    {"nodes": [name, ...], "arcs": [[parent, child], ...],
     "cpds": {name: {"coefficients": {"(Intercept)": [a], parent: [w], ...},
                     "variance": [v], "parents": [...]}}}

V_j = a_j + sum_i w_ij V_i + N(0, v_j). Domains are the population mean +- 2 standard deviations,
computed from the network itself.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.graph.intervention_sets import subsets
from causal_bo_ppl.inputs import read_json, require_float64
from causal_bo_ppl.mechanisms.linear_equations import (
    LinearSEM,
    implied_covariance,
    implied_mean,
    mutilated_means,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.systems import CausalSystem

INTERCEPT = "(Intercept)"
REACH = 2.0  # domains reach this many population standard deviations from the mean


def gaussian_network(
    path: str | Path,
    *,
    target: str,
    manipulable: str | Iterable[str] | None = None,
    max_size: int | None = None,
    objective: str = "min",
    name: str | None = None,
    source: str | None = None,
) -> CausalSystem:
    """Build a system from a file of a linear-Gaussian network.

    Parameters
    ----------
    path:
        The file, in the layout of `ecoli70.json`.
    target, objective:
        The variable to improve, and "min" or "max".
    manipulable:
        The variables that may be set; by default all causes of the target.
    max_size:
        The largest size of an intervention set; it must be given for more than 12 variables.
    name, source:
        The name and the description of the system; by default those of the file.

    Returns
    -------
    CausalSystem

    Raises
    ------
    ModelError
        If the file is not such a network, or contradicts itself.

    Examples
    --------
    >>> from pathlib import Path
    >>> import causal_bo_ppl as cb
    >>> path = Path(cb.models.__file__).with_name("ecoli70.json")
    >>> system = cb.models.gaussian_network(path, target="yceP", max_size=1)
    >>> len(system.problem.sets)
    3
    """
    require_float64()
    graph, sem = read_network(Path(path))
    graph.require([target], "target")
    names = graph.ancestors(target) if manipulable is None else graph.require(manipulable)
    sets = tuple(subsets(names)) if max_size is None else max_size
    problem = Problem(
        graph, target, objective, domains=population_domains(graph, sem, names), sets=sets
    )
    exact = partial(network_response, *ancestral_part(graph, sem, target))
    name, source = name or Path(path).stem, source or f"linear-Gaussian network {Path(path).name}"
    return CausalSystem(name, problem, partial(network_model, graph, sem), exact, True, source)


def population_domains(
    graph: CausalGraph, sem: LinearSEM, names: Iterable[str]
) -> dict[str, tuple[float, float]]:
    """Return the population mean +- 2 standard deviations of each variable."""
    mean, sd = np.asarray(implied_mean(sem)), np.sqrt(np.diagonal(implied_covariance(sem)))
    low, high = mean - REACH * sd, mean + REACH * sd
    return {name: (float(low[graph.index(name)]), float(high[graph.index(name)])) for name in names}


def network_model(graph: CausalGraph, sem: LinearSEM) -> None:
    """Draw one observation of the true system, a site for each variable in causal order.

    The noise of different variables is independent.
    """
    weights, intercepts = np.asarray(sem.weights), np.asarray(sem.intercepts)
    sds = np.sqrt(np.diagonal(sem.noise))
    values: dict[str, jax.Array] = {}
    for column, name in enumerate(graph.nodes):
        mean = intercepts[column] + sum(
            weights[graph.index(cause), column] * values[cause] for cause in graph.parents(name)
        )
        # sds are positive, which was checked when the file was read
        values[name] = numpyro.sample(name, dist.Normal(mean, sds[column], validate_args=False))


def ancestral_part(graph: CausalGraph, sem: LinearSEM, target: str) -> tuple[LinearSEM, np.ndarray]:
    """Return the equations that matter to the target, and their columns in the graph.

    The target comes last.
    """
    columns = np.array([graph.index(name) for name in (*graph.ancestors(target), target)])
    square = np.ix_(columns, columns)
    weights, intercepts, noise = map(np.asarray, sem)  # cut in NumPy: JAX would compile each shape
    return LinearSEM(
        *map(jnp.array, (weights[square], intercepts[columns], noise[square]))
    ), columns


def network_response(sem: LinearSEM, columns: np.ndarray, queries: Queries) -> jax.Array:
    """Return E Y under each intervention, from the equations upstream of the target."""
    upstream = Queries(
        jnp.asarray(queries.mask)[:, columns], jnp.asarray(queries.value)[:, columns]
    )
    means: jax.Array = mutilated_means(sem, upstream)
    return means[:, -1]


def read_network(path: Path) -> tuple[CausalGraph, LinearSEM]:
    """Read and check a network file; a contradiction in it is refused with the variable's name."""
    graph, cpds = _read_record(path)
    size = len(graph.nodes)
    weights, intercepts, noise = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for column, name in enumerate(graph.nodes):
        where, parents = f"{path}, variable {name!r}", graph.parents(name)
        coefficients = _numbers(cpds[name], where)
        for what, named in (
            ("coefficients", [cause for cause in coefficients if cause != INTERCEPT]),
            ("parents", cpds[name].get("parents", list(parents))),
        ):
            if not isinstance(named, list) or set(map(str, named)) != set(parents):
                raise ModelError(
                    f"{where}: its {what} are {named!r}, its arcs come from {listed(parents)}"
                )
        intercepts[column] = coefficients.pop(INTERCEPT, 0.0)
        noise[column] = _number(cpds[name].get("variance"), f"{where}, variance")
        if not noise[column] > 0:
            raise ModelError(f"{where}: its variance is {noise[column]}; it must be positive")
        for cause, weight in coefficients.items():
            weights[graph.index(cause), column] = weight
    return graph, LinearSEM(jnp.array(weights), jnp.array(intercepts), jnp.diag(jnp.array(noise)))


def _read_record(path: Path) -> tuple[CausalGraph, dict[str, Any]]:
    try:
        record = read_json(path.read_text(encoding="utf-8"))
        nodes, arcs, cpds = record["nodes"], record["arcs"], record["cpds"]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} is not a network file ({error}); it needs nodes, arcs and cpds"
        ) from None
    if not (isinstance(nodes, list) and isinstance(arcs, list) and isinstance(cpds, dict)):
        raise ModelError(
            f"{path} is not a network file: nodes and arcs must be lists, cpds must map names"
        )
    graph = CausalGraph.from_edges(arcs, nodes=nodes)
    if set(cpds) != set(graph.nodes):
        raise ModelError(
            f"{path}: nodes and cpds name different variables: "
            f"{listed(sorted(set(cpds) ^ set(graph.nodes)))}"
        )
    return graph, cpds


def _numbers(cpd: Any, where: str) -> dict[str, float]:
    if not isinstance(cpd, Mapping) or not isinstance(cpd.get("coefficients"), Mapping):
        raise ModelError(f"{where}: a cpd needs coefficients and a variance, got {cpd!r}")
    return {
        name: _number(value, f"{where}, coefficient of {name!r}")
        for name, value in cpd["coefficients"].items()
    }


def _number(value: Any, where: str) -> float:
    """Return a number that stands bare or alone in a list."""
    number = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > 1e300:
        raise ModelError(f"{where} must be one finite number, got {value!r}")
    return float(number)
