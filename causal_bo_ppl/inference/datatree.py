"""How does ArviZ see a posterior? As a DataTree with the usual groups and named coordinates.

Every variable that was learned has its own dimension of rows, those in which it was not set.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.problem import Queries

if TYPE_CHECKING:
    import xarray as xr

    from causal_bo_ppl.inference.interfaces import Belief, RowModel
    from causal_bo_ppl.inference.posterior import Posterior


MOST = 20_000_000  # numbers in one group: 160 MB
IID = "draws are independent; the chains are a mere division"


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
