"""May a tree from a file be believed? It must be one that a posterior of this problem has."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from causal_bo_ppl.errors import ModelError, StoreError, listed
from causal_bo_ppl.inference.datatree import BY_ROW, DISTURBANCES, EFFECTS, ROWS
from causal_bo_ppl.mechanisms import FAMILIES
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Problem

if TYPE_CHECKING:
    import xarray as xr


AGAIN = "fit and write it again"


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
    # Imported here: fitting imports posteriors, and these import this module.
    from causal_bo_ppl.inference.fitting import METHODS, trait

    method = METHODS.get(_word(tree, "method"))
    _word(tree, "verdict", trait(method, "verdicts"))
    is_moments = bool(trait(method, "learns_moments"))
    names, learned = _recorded(tree, problem, is_moments)
    for name in ("posterior", "prior"):
        if name in tree.children:
            _require_names(tree[name], name, names, problem, learned)
    _require_numbers(tree, names, problem, is_moments, learned)
    _require_sizes(tree)
    for name in BY_ROW:
        if name in tree.children:
            _require_rows(tree[name], name, problem)
    if ROWS in tree.children:
        _require_given_rows(tree[ROWS], problem)


def _word(tree: "xr.DataTree", name: str, known: Iterable[str] = ()) -> str:
    """Return a root attribute that must be a text, one of a few where these are given."""
    value = tree.attrs.get(name)
    if not isinstance(value, str) or (known and value not in known):
        raise StoreError(f"has the {name} {value!r}, not one of: {listed(known)}; {AGAIN}")
    return value


def _recorded(
    tree: "xr.DataTree", problem: Problem, is_moments: bool
) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Return the names of theta's coordinates, and which variables were learned, (p,) or None.

    A family that is known by its name says both; a method that learns moments learns all. For other
    families the file's own names are taken, and there may be no standard deviations.
    """
    family = FAMILIES.get(_word(tree, "mechanisms"))
    recorded = None if family is None else offered(family, "recorded")
    if recorded is None or tree.attrs["method"] == "given draws":
        own = tree["posterior"]["theta"].coords.get("coordinate")
        has_sd = "sd" in tree["posterior"].data_vars
        size = len(problem.graph.ancestral(problem.target).nodes)
        names = () if own is None else tuple(map(str, own.values))
        return names, np.ones(size, bool) if has_sd else None
    try:
        names, learned = recorded(problem, dict(tree.attrs))
    except ModelError as error:
        raise StoreError(f"{error}; {AGAIN}") from None
    return names, learned | is_moments


def _require_names(
    group: Any, name: str, names: tuple[str, ...], problem: Problem, learned: np.ndarray | None
) -> None:
    expected = [("theta", "coordinate", names)]
    if learned is not None and learned.any():
        expected.append(("sd", DISTURBANCES, _learned_nodes(problem, learned)))
    if "effect" in group.data_vars:
        found = group.data_vars["effect"]
        own = found.coords[EFFECTS].values if EFFECTS in found.dims else ()
        expected.append(("effect", EFFECTS, tuple(map(str, own))))
    for variable, dimension, labels in expected:
        found = group.data_vars.get(variable)
        if found is None or found.dims != ("chain", "draw", dimension) or found.dtype != np.float64:
            shown = "none" if found is None else f"dimensions {found.dims} and type {found.dtype}"
            raise StoreError(f"has {variable} in {name} with {shown}; expected float64 draws")
        if tuple(map(str, found[dimension].values)) != labels:
            raise StoreError(
                f"has the {dimension} names {listed(found[dimension].values, 8)} in {name}; "
                f"this problem has {listed(labels, 8)}, in this order"
            )


def _learned_nodes(problem: Problem, learned: np.ndarray) -> tuple[str, ...]:
    nodes = problem.graph.ancestral(problem.target).nodes
    return tuple(name for name, is_learned in zip(nodes, learned, strict=True) if is_learned)


def _require_numbers(
    tree: Any,
    names: tuple[str, ...],
    problem: Problem,
    is_moments: bool,
    learned: np.ndarray | None,
) -> None:
    """Check theta and the standard deviations of the disturbances, draw by draw.

    Only a method that learns moments may draw NaN for theta: a ratio whose denominator passes zero
    has no value there.
    A prior is as wide as it was made, so its draws may overflow.
    """
    theta = tree["posterior"]["theta"].values
    wrong = np.isinf(theta) if is_moments else ~np.isfinite(theta)
    if wrong.any():
        name = names[int(np.argwhere(wrong)[0][-1])]
        raise StoreError(f"has draws of {name} that are not finite; {AGAIN}")
    if learned is None or not learned.any():
        return
    nodes = _learned_nodes(problem, learned)
    for name in ("posterior", "prior"):
        sd = tree[name]["sd"].values if name in tree.children else np.ones(1)
        right = (sd > 0) & (np.isfinite(sd) | (name == "prior"))
        if not right.all():
            wrong = nodes[int(np.argwhere(~right)[0][-1])]
            raise StoreError(
                f"has standard deviations of {wrong!r} in {name} that are not positive; {AGAIN}"
            )


def _require_sizes(tree: "xr.DataTree") -> None:
    """Refuse groups whose chains and draws are not those of the posterior's, at least one."""
    chains, draws = tree["posterior"]["theta"].shape[:2]
    for name, group in tree.children.items():
        allowed = {(chains, draws)} if name != "prior" else {tuple(group["theta"].shape[:2])}
        if name in ("observed_data", ROWS):
            continue
        for variable, values in group.data_vars.items():
            sizes = values.shape[:2]
            if values.dims[:2] != ("chain", "draw") or 0 in sizes or sizes not in allowed:
                raise StoreError(
                    f"has {variable!r} in {name} with sizes {dict(values.sizes)}; theta has "
                    f"{chains} chains of {draws} draws, and every group needs at least one; {AGAIN}"
                )


def _require_rows(group: Any, name: str, problem: Problem) -> None:
    """Refuse a group with a number for every row unless its variables are of the graph.

    Each of them must have its own dimension of rows.
    """
    known = {*problem.graph.ancestral(problem.target).nodes, f"do({problem.target})"}
    if strange := sorted(set(map(str, group.data_vars)) - known):
        raise StoreError(f"has variables in {name} that the graph does not: {listed(strange)}")
    drawn = () if name == "observed_data" else ("chain", "draw")
    for variable, values in group.data_vars.items():
        if values.dims != (*drawn, f"row[{variable}]"):
            expected = "one number for every row"
            raise StoreError(f"has {variable!r} in {name} over {values.dims}, not {expected}")


def _require_given_rows(group: Any, problem: Problem) -> None:
    """Refuse rows, or outcomes that were told, of other variables or of another kind."""
    kinds = {"values": "row", "was_set": "row", "outcome": "told"}
    kinds |= {"told_values": "told", "told_was_set": "told"}
    found = set(map(str, group.data_vars))
    wanted = {
        name for name, kind in kinds.items() if {"row": "values", "told": "outcome"}[kind] in found
    }
    if found != wanted:
        raise StoreError(f"has {listed(sorted(found))} in {ROWS}, not {listed(sorted(wanted))}")
    for name, values in group.data_vars.items():
        dims = (kinds[name],) if name == "outcome" else (kinds[name], "node")
        kind = np.dtype(bool if name.endswith("was_set") else float)
        if values.dims != dims or values.dtype != kind:
            raise StoreError(
                f"has {name!r} in {ROWS} over {values.dims} of type {values.dtype}; expected "
                f"{kind} over {dims}"
            )
    if "node" not in group.coords or tuple(map(str, group["node"].values)) != problem.graph.nodes:
        raise StoreError(f"has rows of other variables than {listed(problem.graph.nodes)}")
