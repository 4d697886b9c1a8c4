"""How does ArviZ see a posterior? A DataTree with the usual groups and named coordinates.

Groups with a number for every draw and row are made on request only: they grow with the product of
both. In these every variable that was learned has its own dimension of rows, those in which it was
not set. `constant_data` holds the rows themselves, once, so that a posterior can be made again from
its tree; `unconstrained_posterior` holds what a sampler drew, for the same reason.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference.draws import Drawn, effects_of_draws
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import labels, read_interventions

if TYPE_CHECKING:
    import xarray as xr

    from causal_bo_ppl.inference.base import ObservationModel, ThetaDistribution
    from causal_bo_ppl.inference.posterior import Posterior


BY_ROW = ("log_likelihood", "posterior_predictive", "observed_data")
ROWS, EFFECTS, DISTURBANCES = "constant_data", "intervention", "node"
COORDINATES = "unconstrained_posterior"
MOST = 20_000_000  # numbers in one group: 160 MB
IID = "draws are independent; the chains are a mere division"


class Wanted(NamedTuple):
    """What a tree shall hold.

    draws: about how many; None for all. rows: the groups with a number for every row. effects: the
    interventions whose effects are a variable of the posterior; None for no such variable.
    """

    draws: int | None
    rows: tuple[str, ...]
    effects: Queries | None


def read_wanted(post: "Posterior", draws: int | None, rows: object, effects: object) -> Wanted:
    """Return what a tree shall hold, as `Posterior.to_datatree` is asked for it."""
    draws = None if draws is None else read_count("draws", draws, 4)
    if isinstance(rows, bool):
        groups: tuple[str, ...] = BY_ROW if rows else ()
    else:
        given = (rows,) if isinstance(rows, str) else rows
        is_listed = isinstance(given, list | tuple) and all(each in BY_ROW for each in given)
        if not is_listed:
            raise ModelError(
                f"rows must be True, False or some of the groups {listed(BY_ROW)}; got {rows!r}"
            )
        groups = tuple(each for each in BY_ROW if each in given)  # type: ignore[operator]
    if effects is None:
        return Wanted(draws, groups, None)
    queries = read_interventions(post.problem, effects)
    if not len(queries):
        raise ModelError("effects names no intervention; give some, such as [{'X': 1.0}], or None")
    post.distribution.response.batch(queries)  # refused before anything is drawn
    return Wanted(draws, groups, queries)


def to_datatree(post: "Posterior", wanted: Wanted, key: jax.Array) -> "xr.DataTree":
    """Return the wanted groups of a posterior as a tree."""
    for_draws, for_rows, for_prior = jax.random.split(key, 3)
    distribution = post.distribution
    drawn = distribution.drawn(wanted.draws, for_draws)
    if wanted.rows:
        values, free = post.learned_observations
        drawn = drawn.thinned(max(4, MOST // free.size) if free.size else None)
    groups: dict[str, Any] = {"posterior": _parameters(drawn, distribution)}
    if wanted.effects is not None:
        found = _effects(drawn.theta, distribution, wanted.effects)
        groups["posterior"]["effect"] = _split(drawn, found)
    if drawn.log_prior is not None:
        groups["log_prior"] = {"prior": _split(drawn, drawn.log_prior)}
    if drawn.stats:
        groups["sample_stats"] = drawn.stats
    if wanted.rows and len(values) and distribution.model is not None:
        groups |= _about_rows(drawn, distribution.model, values, free, for_rows, wanted.rows)
    if drawn.told is not None and "log_likelihood" in wanted.rows:
        told = {f"do({post.problem.target})": _split(drawn, drawn.told)}
        groups.setdefault("log_likelihood", {}).update(told)
    before = distribution.draw_prior(len(drawn.theta), for_prior)
    if before is not None:
        groups["prior"] = _parameters(before, distribution)
    return _assemble(groups, post, drawn, wanted.effects)


def _effects(theta: np.ndarray, distribution: "ThetaDistribution", queries: Queries) -> np.ndarray:
    """Return effects (n, M) of draws of theta (n, d); NaN for a draw that has no value."""
    known = np.isfinite(theta).all(axis=1)
    effects = np.full((len(theta), len(queries)), np.nan)
    if known.any():
        effects[known] = effects_of_draws(distribution.response, theta[known], queries)
    return effects


def _assemble(
    groups: dict[str, Any], post: "Posterior", drawn: Drawn, effects: Queries | None
) -> "xr.DataTree":
    """Return the groups as a tree, each with its own dimensions.

    They are assembled one by one because a variable may have the name of a parameter.
    """
    import xarray as xr
    from arviz_base import from_dict

    problem, found = post.problem, {}
    nodes = problem.graph.ancestral(problem.target).nodes
    by_row = {name: [f"row[{name}]"] for name in (*nodes, f"do({problem.target})")}
    rows: dict[str, Any] = {}
    if any(group in groups for group in BY_ROW):
        free = post.learned_observations[1]
        rows = {f"row[{name}]": np.flatnonzero(free[:, at]) for at, name in enumerate(nodes)}
    by_draw = {"theta": ["coordinate"], "sd": [DISTURBANCES], "effect": [EFFECTS]}
    learned = [
        name
        for name, is_learned in zip(nodes, post.distribution.learned, strict=True)
        if is_learned
    ]
    names = {"coordinate": list(post.names), DISTURBANCES: learned}
    if effects is not None:
        names[EFFECTS] = labels(problem, effects)
    for group, variables in groups.items():
        about_parameters = group in ("posterior", "prior")
        dims, coords = (by_draw, names) if about_parameters else (by_row, rows)
        dims = {} if group in ("log_prior", "sample_stats") else dims
        used = {name: dims[name] for name in variables if name in dims}
        shown = {each for own in used.values() for each in own}
        kept = {name: label for name, label in coords.items() if name in shown}
        found[group] = from_dict({group: variables}, dims=used, coords=kept)[group].to_dataset()
    return _finish(xr.DataTree.from_dict(found | _for_another_time(post, drawn)), post)


def _for_another_time(post: "Posterior", drawn: Drawn) -> dict[str, "xr.Dataset"]:
    """Return the rows, and what a sampler drew where all of it is there, for `read_datatree`."""
    import xarray as xr

    groups, nodes = {}, list(post.problem.graph.nodes)
    variables: dict[str, Any] = {}
    if post.n_observations:
        variables["values"] = (("row", "node"), post.data.values)
        variables["was_set"] = (("row", "node"), post.data.intervened)
    told = None if post.recipe is None else post.recipe.task.outcomes
    if told is not None and len(told.values):
        variables["outcome"] = (("told",), told.values)
        variables["told_values"] = (("told", "node"), np.asarray(told.queries.value))
        variables["told_was_set"] = (("told", "node"), np.asarray(told.queries.mask))
    if variables:
        groups[ROWS] = xr.Dataset(variables, coords={"node": nodes})
    psi = getattr(post.distribution, "psi", None)
    if psi is not None and psi.shape[0] * psi.shape[1] == len(drawn.theta):
        names = list(post.distribution.model.coordinates)  # type: ignore[union-attr]
        psi_dims = ("chain", "draw", "unconstrained")
        coords = {"chain": np.arange(psi.shape[0]), "draw": np.arange(psi.shape[1])}
        groups[COORDINATES] = xr.Dataset(
            {"psi": (psi_dims, psi)}, coords=coords | {"unconstrained": names}
        )
    return groups


def _finish(tree: "xr.DataTree", post: "Posterior") -> "xr.DataTree":
    """Return the tree with attributes that say what it is of."""
    import causal_bo_ppl
    from causal_bo_ppl.inference.restoring import write_recipe

    tree.attrs |= {
        "causal_bo_ppl": causal_bo_ppl.__version__,
        "problem": post.problem.fingerprint,
        "posterior": post.fingerprint,
        "method": post.method,
        "mechanisms": post.mechanisms,
        "verdict": post.verdict,
        "accepted": post.accepted,
        "draws": IID if post.distribution.chains is None else "as sampled",
        "recipe": write_recipe(post),
    }
    record = offered(post.distribution.response, "attributes")
    tree.attrs |= {} if record is None else record()
    return tree


def _split(drawn: Drawn, values: np.ndarray) -> np.ndarray:
    """Return values (n, ...) as (chains, n / chains, ...)."""
    return values.reshape(drawn.chains, -1, *values.shape[1:])


def _parameters(drawn: Drawn, distribution: "ThetaDistribution") -> dict[str, np.ndarray]:
    """Return theta of every draw, and the sds of the disturbances that were learned, if any."""
    theta = {"theta": _split(drawn, drawn.theta)}
    scales = offered(distribution.model, "scales")
    if scales is None or not distribution.learned.any():
        return theta
    return theta | {"sd": _split(drawn, scales(drawn.models)[:, distribution.learned])}


def _about_rows(
    drawn: Drawn,
    model: "ObservationModel",
    values: np.ndarray,
    free: np.ndarray,
    key: jax.Array,
    wanted: tuple[str, ...],
) -> dict[str, dict[str, np.ndarray]]:
    """Return the wanted groups with a number for every row of every variable that was learned."""
    shown = [(at, name) for at, name in enumerate(model.nodes) if free[:, at].any()]
    groups: dict[str, dict[str, np.ndarray]] = {}

    def keep(group: str, array: np.ndarray) -> None:
        groups[group] = {name: _split(drawn, array[:, free[:, at], at]) for at, name in shown}

    if "log_likelihood" in wanted:
        keep("log_likelihood", model.log_densities(drawn.models, values, free))
    if "posterior_predictive" in wanted:
        given = Queries(~free, np.where(free, 0.0, values))
        keep("posterior_predictive", model.replicate(drawn.models, given, key))
    if "observed_data" in wanted:
        groups["observed_data"] = {name: values[free[:, at], at] for at, name in shown}
    return groups
