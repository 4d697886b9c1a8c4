"""Are these the draws that a posterior of this problem can have? Checks of a tree from a file."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from causal_bo_ppl.errors import StoreError, listed
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.identification.parameters import KINDS
from causal_bo_ppl.inference.methods import METHODS, VERDICTS, identified, needed_equations
from causal_bo_ppl.problem import Problem

if TYPE_CHECKING:
    import xarray as xr


AGAIN = "fit and write it again"
BY_ROW = ("log_likelihood", "posterior_predictive", "observed_data")


def require_posterior(tree: "xr.DataTree", problem: Problem) -> None:
    """Refuse a tree that no posterior of this problem has; the file's checksum is not enough.

    Raises
    ------
    StoreError
        Says what is wrong; begins with a verb, so that the caller can put the path before it.
    """
    if "posterior" not in tree.children or "theta" not in tree["posterior"].data_vars:
        raise StoreError("holds no posterior of theta; write it with post.to_netcdf(path)")
    if str(tree.attrs.get("problem")) != problem.fingerprint:
        raise StoreError(
            "is of another problem (graph, target, domains, sets or known coefficients differ); "
            "read it with the problem it was fitted for"
        )
    method = _word(tree, "method", METHODS)
    _word(tree, "verdict", VERDICTS[method])
    parameters = _parameters(tree, problem)
    for name in ("posterior", "prior"):
        if name in tree.children:
            _require_names(tree[name], name, parameters, problem)
    _require_numbers(tree, parameters, problem, method)
    _require_sizes(tree)
    for name in BY_ROW:
        if name in tree.children:
            _require_rows(tree[name], name, problem)


def _word(tree: "xr.DataTree", name: str, known: Iterable[str]) -> str:
    """Return a root attribute that must be one of a few words."""
    value = tree.attrs.get(name)
    if not isinstance(value, str) or value not in known:
        raise StoreError(f"has the {name} {value!r}, not one of: {listed(known)}; {AGAIN}")
    return value


def _parameters(tree: "xr.DataTree", problem: Problem) -> Parameters:
    """The parameters that a fit of this problem with the recorded options has."""
    kind = _word(tree, "parameters", KINDS)
    intercepts = _word(tree, "intercepts", ("yes", "no")) == "yes"
    found = identified(problem, _word(tree, "linear", ("yes", "no")) == "yes")
    return found.parameters(kind, intercepts=intercepts)


def _require_names(group: Any, name: str, parameters: Parameters, problem: Problem) -> None:
    nodes = problem.graph.ancestral(problem.target).nodes
    for variable, dimension, names in (
        ("theta", "coordinate", parameters.names),
        ("sd", "variable", nodes),
    ):
        found = group.data_vars.get(variable)
        if found is None or found.dims != ("chain", "draw", dimension) or found.dtype != np.float64:
            shown = "none" if found is None else f"dimensions {found.dims} and type {found.dtype}"
            raise StoreError(f"has {variable} in {name} with {shown}; expected float64 draws")
        if tuple(map(str, found[dimension].values)) != names:
            raise StoreError(
                f"has the {dimension} names {listed(found[dimension].values, 8)} in {name}; "
                f"this problem has {listed(names, 8)}, in this order"
            )


def _require_numbers(tree: Any, parameters: Parameters, problem: Problem, method: str) -> None:
    """Check theta and the standard deviations of the disturbances, draw by draw.

    Only wishart may draw NaN for theta: a ratio whose denominator passes zero has no value there.
    A prior is as wide as it was made, so its draws may overflow.
    """
    theta, sd = (tree["posterior"][name].values for name in ("theta", "sd"))
    wrong = np.isinf(theta) if method == "wishart" else ~np.isfinite(theta)
    if wrong.any():
        name = parameters.names[int(np.argwhere(wrong)[0][-1])]
        raise StoreError(f"has draws of {name} that are not finite; {AGAIN}")
    graph = problem.graph.ancestral(problem.target)
    learned = needed_equations(parameters, graph) | (method == "wishart")
    positive = np.isfinite(sd) & (sd > 0)
    _require_sd(np.where(learned, positive, np.isnan(sd)), "posterior", graph.nodes)
    if "prior" in tree.children:
        before = tree["prior"]["sd"].values
        _require_sd(np.where(learned, before > 0, np.isnan(before)), "prior", graph.nodes)


def _require_sd(right: np.ndarray, group: str, nodes: tuple[str, ...]) -> None:
    if not right.all():
        name = nodes[int(np.argwhere(~right)[0][-1])]
        raise StoreError(
            f"has standard deviations of {name!r} in {group} that are not positive, or NaN though "
            f"it was learned, or a number though it was not; {AGAIN}"
        )


def _require_sizes(tree: "xr.DataTree") -> None:
    """Every group about the posterior's draws has the same chains and draws, at least one."""
    chains, draws = tree["posterior"]["theta"].shape[:2]
    for name, group in tree.children.items():
        allowed = {(chains, draws)} if name != "prior" else {tuple(group["theta"].shape[:2])}
        for variable, values in group.data_vars.items() if name != "observed_data" else ():
            sizes = values.shape[:2]
            if values.dims[:2] != ("chain", "draw") or 0 in sizes or sizes not in allowed:
                raise StoreError(
                    f"has {variable!r} in {name} with sizes {dict(values.sizes)}; theta has "
                    f"{chains} chains of {draws} draws, and every group needs at least one; {AGAIN}"
                )


def _require_rows(group: Any, name: str, problem: Problem) -> None:
    """A group with a number for every row has variables of the graph, each with its own rows."""
    known = {*problem.graph.ancestral(problem.target).nodes, f"do({problem.target})"}
    if strange := sorted(set(map(str, group.data_vars)) - known):
        raise StoreError(f"has variables in {name} that the graph does not: {listed(strange)}")
    drawn = () if name == "observed_data" else ("chain", "draw")
    for variable, values in group.data_vars.items():
        if values.dims != (*drawn, f"row[{variable}]"):
            expected = "one number for every row"
            raise StoreError(f"has {variable!r} in {name} over {values.dims}, not {expected}")
