"""How does ArviZ see a posterior, and may a tree from a file be believed?

A DataTree with the usual groups and named coordinates. Every variable that was learned has its own
dimension of rows, those in which it was not set.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from causal_bo_ppl.errors import ModelError, StoreError, listed
from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.mechanisms import FAMILIES
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.problem import Problem, Queries

if TYPE_CHECKING:
    import xarray as xr

    from causal_bo_ppl.inference.interfaces import Belief, RowModel
    from causal_bo_ppl.inference.posterior import Posterior


AGAIN = "fit and write it again"
BY_ROW = ("log_likelihood", "posterior_predictive", "observed_data")
MOST = 20_000_000  # numbers in one group: 160 MB
IID = "draws are independent; the chains are a mere division"


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
    nodes = problem.graph.ancestral(problem.target).nodes
    expected = [("theta", "coordinate", names)]
    expected += [] if learned is None else [("sd", "variable", nodes)]
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
    if learned is None:
        return
    nodes, sd = problem.graph.ancestral(problem.target).nodes, tree["posterior"]["sd"].values
    positive = np.isfinite(sd) & (sd > 0)
    _require_sd(np.where(learned, positive, np.isnan(sd)), "posterior", nodes)
    if "prior" in tree.children:
        before = tree["prior"]["sd"].values
        _require_sd(np.where(learned, before > 0, np.isnan(before)), "prior", nodes)


def _require_sd(right: np.ndarray, group: str, nodes: tuple[str, ...]) -> None:
    if not right.all():
        name = nodes[int(np.argwhere(~right)[0][-1])]
        raise StoreError(
            f"has standard deviations of {name!r} in {group} that are not positive, or NaN though "
            f"it was learned, or a number though it was not; {AGAIN}"
        )


def _require_sizes(tree: "xr.DataTree") -> None:
    """Refuse groups whose chains and draws are not those of the posterior's, at least one."""
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


def to_datatree(post: "Posterior", draws: int | None, key: jax.Array) -> "xr.DataTree":
    """Return all groups of a posterior as a tree.

    draws: about how many draws it shall have; by default all that fit.
    """
    nodes = post.problem.graph.ancestral(post.problem.target).nodes
    values, free = post.learned_rows
    most = max(4, MOST // free.size) if free.size else None
    for_draws, for_rows, for_prior = jax.random.split(key, 3)
    belief, model = post.belief, post.belief.model
    drawn = belief.drawn(draws, for_draws).thinned(most)
    groups: dict[str, Any] = {"posterior": _parameters(drawn, belief)}
    if drawn.log_prior is not None:
        groups["log_prior"] = {"prior": _split(drawn, drawn.log_prior)}
    if drawn.stats:
        groups["sample_stats"] = drawn.stats
    if len(values) and model is not None:
        groups |= _about_rows(drawn, model, values, free, for_rows)
    if drawn.told is not None:
        told = {f"do({post.problem.target})": _split(drawn, drawn.told)}
        groups.setdefault("log_likelihood", {}).update(told)
    before = belief.draw_prior(len(drawn.theta), for_prior)
    if before is not None:
        groups["prior"] = _parameters(before, belief)
    return _assemble(groups, nodes, free, post, drawn)


def _assemble(
    groups: dict[str, Any],
    nodes: tuple[str, ...],
    free: np.ndarray,
    post: "Posterior",
    drawn: Drawn,
) -> "xr.DataTree":
    """Return the groups as a tree, each with its own dimensions.

    They are assembled one by one because a variable may have the name of a parameter.
    """
    import xarray as xr
    from arviz_base import from_dict

    rows = {f"row[{name}]": np.flatnonzero(free[:, at]) for at, name in enumerate(nodes)}
    by_row = {name: [f"row[{name}]"] for name in (*nodes, f"do({post.problem.target})")}
    by_draw = {"theta": ["coordinate"], "sd": ["variable"]}
    names = {"coordinate": list(post.names), "variable": list(nodes)}
    found = {}
    for group, variables in groups.items():
        about_parameters = group in ("posterior", "prior")
        dims, coords = (by_draw, names) if about_parameters else (by_row, rows)
        dims = {} if group in ("log_prior", "sample_stats") else dims
        tree = from_dict({group: variables}, dims=dims, coords=coords if dims else {})
        found[group] = tree[group].to_dataset()
    whole = xr.DataTree.from_dict(found)
    whole.attrs.update(_attributes(post, drawn))
    return whole


def _attributes(post: "Posterior", drawn: Drawn) -> dict[str, str]:
    import causal_bo_ppl

    attributes = {
        "causal_bo_ppl": causal_bo_ppl.__version__,
        "problem": post.problem.fingerprint,
        "posterior": post.fingerprint,
        "method": post.method,
        "mechanisms": post.mechanisms,
        "verdict": post.verdict,
        "accepted": post.accepted,
        "draws": IID if post.belief.chains is None else "as sampled",
    }
    record = offered(post.belief.response, "attributes")
    return attributes | ({} if record is None else record())


def _split(drawn: Drawn, values: np.ndarray) -> np.ndarray:
    """Return values (n, ...) as (chains, n / chains, ...)."""
    return values.reshape(drawn.chains, -1, *values.shape[1:])


def _parameters(drawn: Drawn, belief: "Belief") -> dict[str, np.ndarray]:
    """Return theta of every draw, and the sd of every disturbance that was learned."""
    theta = {"theta": _split(drawn, drawn.theta)}
    scales = offered(belief.model, "scales")
    if scales is None:
        return theta
    sd = np.where(belief.learned, scales(drawn.models), np.nan)
    return theta | {"sd": _split(drawn, sd)}


def _about_rows(
    drawn: Drawn, model: "RowModel", values: np.ndarray, free: np.ndarray, key: jax.Array
) -> dict[str, dict[str, np.ndarray]]:
    given = Queries(~free, np.where(free, 0.0, values))
    arrays = {
        "log_likelihood": model.log_densities(drawn.models, values, free),
        "posterior_predictive": model.replicate(drawn.models, given, key),
    }
    shown = [(at, name) for at, name in enumerate(model.nodes) if free[:, at].any()]
    groups = {
        group: {name: _split(drawn, part[:, free[:, at], at]) for at, name in shown}
        for group, part in arrays.items()
    }
    groups["observed_data"] = {name: values[free[:, at], at] for at, name in shown}
    return groups
