"""How does ArviZ see a posterior? As a DataTree with the usual groups and named coordinates.

Every variable that was learned has its own dimension of rows, those in which it was not set.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from causal_bo_ppl.inference.draws import Drawn
from causal_bo_ppl.inference.methods import needs_linearity
from causal_bo_ppl.inference.prior_draws import draw_prior
from causal_bo_ppl.mechanisms.linear.sem import log_densities, replicate
from causal_bo_ppl.problem import Queries

if TYPE_CHECKING:
    import xarray as xr

    from causal_bo_ppl.inference.posterior import Posterior


MOST = 20_000_000  # numbers in one group: 160 MB
IID = "draws are independent; the chains are a mere division"


def to_datatree(post: "Posterior", draws: int | None, key: jax.Array) -> "xr.DataTree":
    """All groups of a posterior; draws: about how many, by default all that fit."""
    graph = post.problem.graph.ancestral(post.problem.target)
    values, free = post.learned_rows
    cells = free.size
    most = max(4, MOST // cells) if cells else None
    for_draws, for_rows, for_prior = jax.random.split(key, 3)
    drawn = post.belief.drawn(draws, for_draws).thinned(most)
    groups: dict[str, Any] = {
        "posterior": _parameters(drawn, post.belief.learned),
        "log_prior": {"prior": _split(drawn, drawn.log_prior)},
    }
    if drawn.stats:
        groups["sample_stats"] = drawn.stats
    if len(values):
        groups |= _about_rows(drawn, graph.nodes, values, free, for_rows)
    if drawn.told is not None:
        groups.setdefault("log_likelihood", {})[f"do({post.problem.target})"] = _split(
            drawn, drawn.told
        )
    before = draw_prior(post, len(drawn.theta), for_prior)
    if before is not None:
        groups["prior"] = _parameters(before, post.belief.learned)
    return _assemble(groups, graph.nodes, free, post, drawn)


def _assemble(
    groups: dict[str, Any],
    nodes: tuple[str, ...],
    free: np.ndarray,
    post: "Posterior",
    drawn: Drawn,
) -> "xr.DataTree":
    """Each group with its own dimensions: a variable may be called as a parameter is."""
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

    return {
        "causal_bo_ppl": causal_bo_ppl.__version__,
        "problem": post.problem.fingerprint,
        "posterior": post.fingerprint,
        "method": post.method,
        "parameters": post.parameters.kind,
        "intercepts": "yes" if post.parameters.intercepts else "no",
        "linear": "yes" if needs_linearity(post.problem, post.parameters) else "no",
        "verdict": post.verdict,
        "draws": "as sampled" if drawn.stats else IID,
    }


def _split(drawn: Drawn, values: np.ndarray) -> np.ndarray:
    """(n, ...) as (chains, n / chains, ...)."""
    return values.reshape(drawn.chains, -1, *values.shape[1:])


def _parameters(drawn: Drawn, learned: np.ndarray) -> dict[str, np.ndarray]:
    """Of every draw theta_Y and the sd of every disturbance that was learned."""
    sd = np.where(learned, np.sqrt(np.diagonal(drawn.models.noises, axis1=1, axis2=2)), np.nan)
    return {"theta": _split(drawn, drawn.theta), "sd": _split(drawn, sd)}


def _about_rows(
    drawn: Drawn, nodes: tuple[str, ...], values: np.ndarray, free: np.ndarray, key: jax.Array
) -> dict[str, dict[str, np.ndarray]]:
    arrays = {
        "log_likelihood": log_densities(*drawn.models, values, free),
        "posterior_predictive": replicate(
            *drawn.models, Queries(~free, np.where(free, 0.0, values)), key
        ),
    }
    shown = [(at, name) for at, name in enumerate(nodes) if free[:, at].any()]
    found = {
        group: {name: _split(drawn, part[:, free[:, at], at]) for at, name in shown}
        for group, part in arrays.items()
    }
    found["observed_data"] = {name: values[free[:, at], at] for at, name in shown}
    return found
