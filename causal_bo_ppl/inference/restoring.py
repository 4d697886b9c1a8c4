"""How is a posterior made again from its tree, so that it can go on?

A tree holds the rows and what `fit` was given. Closed forms and modes are computed again from
these, which gives the same numbers; chains are not run again: their draws are in the tree. What a
text cannot hold, functions and records of one's own, must be given back. The fingerprint of what
was made must be that of the posterior that was written.
"""

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.data import digest
from causal_bo_ppl.data.outcomes import Outcomes, no_outcomes
from causal_bo_ppl.errors import CausalBOError, ModelError, StoreError
from causal_bo_ppl.inference.base import Recipe
from causal_bo_ppl.inference.datatree import COORDINATES, ROWS
from causal_bo_ppl.inference.fitting import (
    choose_family,
    fit,
    read_method,
    read_written_method,
    write_method,
)
from causal_bo_ppl.inference.netcdf import LARGEST, open_datatree, require_tree
from causal_bo_ppl.inference.posterior import Posterior
from causal_bo_ppl.inputs import read_key, require_float64, write_key
from causal_bo_ppl.mechanisms import Choice, read_mechanisms
from causal_bo_ppl.mechanisms.base import Prior, Task, offered
from causal_bo_ppl.mechanisms.serialization import (
    read_prior,
    read_written_mechanisms,
    write_mechanisms,
    write_prior,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import named

if TYPE_CHECKING:
    import xarray as xr


GIVEN = "given draws"  # the method of draws that were made elsewhere
ROUNDING = 1e-9  # by which theta of the same draws may differ on another processor
AGAIN = "fit and write it again"


class Given(NamedTuple):
    """What the analyst gives back because a text cannot hold it; None where nothing is given."""

    mechanisms: Any
    method: Any
    prior: Any


def write_recipe(post: Posterior) -> str:
    """Return what `fit` was given as a JSON text; empty where nothing was fitted."""
    if post.recipe is None:
        return ""
    mechanisms, method, task, key = post.recipe
    try:
        prior = None if task.prior is None else write_prior(task.prior)
    except ModelError:  # of one's own
        prior = {"name": type(task.prior).__name__}
    record = {
        "mechanisms": write_mechanisms(mechanisms),
        "method": write_method(method),
        "prior": prior,
        "parameters": task.parameters,
        "intercepts": task.intercepts,
        "linear": task.linear,
        "key": None if key is None else write_key(key),
        "parts": [len(part) for part in post.parts],
    }
    return json.dumps(record, allow_nan=False)


def read_datatree(
    source: "str | Path | xr.DataTree",
    problem: Problem,
    *,
    mechanisms: Choice | None = None,
    method: Any = None,
    prior: Prior | None = None,
    largest: int = LARGEST,
) -> Posterior:
    """Make the posterior again from its file or its tree; it goes on as if nothing had happened.

    Effects, couplings, updates and files of the posterior are those of the one that was written. A
    posterior by "nuts" keeps its draws; where the tree has only some of them (`draws=` was given
    when it was made), it is sampled again with its key.

    Parameters
    ----------
    source:
        A file that `post.to_netcdf` or `cb.write_datatree` wrote, or a tree that
        `post.to_datatree` made.
    problem:
        The problem that the posterior was fitted for.
    mechanisms, method, prior:
        What was given to `fit` and a file cannot hold: functions, and records of your own. Leave
        them out otherwise.
    largest:
        Bytes that the file and what it declares may have together.

    Returns
    -------
    Posterior

    Raises
    ------
    StoreError
        If the file or tree is refused (see `cb.open_datatree`), lacks what is needed, or gives
        another posterior than the one that was written.

    Examples
    --------
    >>> import tempfile
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(50, 0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = cb.read_datatree(post.to_netcdf(f"{folder}/post.nc"), system.problem)
    >>> again
    Posterior(4 structural parameters of Y, conjugate, 50 rows, exact)
    >>> bool((again.mean == post.mean).all())
    True
    """
    require_float64()
    if isinstance(source, str | Path):
        tree, where = open_datatree(source, problem, largest=largest), f"{str(source)!r}"
    else:
        tree, where = require_tree(source, problem), "the tree"
    try:
        post = _restore(tree, problem, Given(mechanisms, method, prior))
        _require_same(tree, post)
    except StoreError as error:
        raise StoreError(f"{where} {error}") from None
    except CausalBOError as error:
        raise StoreError(f"{where} holds no posterior that can go on: {error}") from error
    accepted = str(tree.attrs.get("accepted", ""))
    return post.accept(accepted) if accepted else post


def _restore(tree: Any, problem: Problem, given: Given) -> Posterior:
    if tree.attrs["method"] == GIVEN:
        return _restore_draws(tree, problem, given)
    record = _read_record(tree.attrs.get("recipe"))
    parts = _read_parts(tree, problem, record["parts"])
    recipe = _read_recipe(tree, record, problem, parts[0], given)
    resume = offered(recipe.method, "resume")
    if resume is not None and COORDINATES in tree.children and recipe.key is not None:
        return _resume(tree, parts, recipe, resume)
    task, (queries, values) = recipe.task, recipe.task.outcomes
    post = fit(
        problem,
        parts[0],
        mechanisms=recipe.mechanisms,
        method=recipe.method,
        parameters=task.parameters,
        intercepts=task.intercepts,
        prior=task.prior,
        outcomes=(queries, values) if len(values) else None,
        linear=task.linear,
        key=recipe.key,
    )
    for part in parts[1:]:
        post = post.update(part)
    return post


def _restore_draws(tree: Any, problem: Problem, given: Given) -> Posterior:
    """Return a posterior of draws that were made elsewhere."""
    chosen = tree.attrs["mechanisms"] if given.mechanisms is None else given.mechanisms
    attributes = tree.attrs
    return Posterior.from_draws(
        problem,
        tree["posterior"]["theta"].values,
        mechanisms=chosen,
        parameters=attributes.get("parameters"),
        intercepts=attributes.get("intercepts", "yes") == "yes",
    )


def _read_record(text: object) -> dict[str, Any]:
    """Return what `write_recipe` wrote."""
    try:
        record = json.loads(str(text))
        wanted = "mechanisms method prior parameters intercepts linear key parts".split()
        if set(record) != set(wanted):
            raise ValueError
    except (TypeError, ValueError):
        raise StoreError(
            f"does not say how the posterior was fitted, so that it cannot go on; {AGAIN}"
        ) from None
    return dict(record)


def _read_parts(tree: Any, problem: Problem, sizes: Any) -> tuple[Data, ...]:
    """Return the rows of the first fit and of each update."""
    nodes = problem.graph.nodes
    values, was_set = np.zeros((0, len(nodes))), np.zeros((0, len(nodes)), bool)
    if ROWS in tree.children and "values" in tree[ROWS].data_vars:
        values, was_set = tree[ROWS]["values"].values, tree[ROWS]["was_set"].values
    is_count = isinstance(sizes, list) and all(type(each) is int and each >= 0 for each in sizes)
    if not is_count or not sizes or sum(sizes) != len(values):
        raise StoreError(f"has {len(values)} rows in parts of {sizes}; {AGAIN}")
    ends = list(accumulate(sizes, initial=0))
    return tuple(
        Data(nodes, problem.target, values[start:end], was_set[start:end])
        for start, end in zip(ends[:-1], ends[1:], strict=True)
    )


def _read_recipe(
    tree: Any, record: dict[str, Any], problem: Problem, rows: Data, given: Given
) -> Recipe:
    """Return what `fit` was given, with what a text cannot hold as the analyst gives it back."""
    mechanisms, method, prior = record["mechanisms"], record["method"], record["prior"]
    if _is_own("mechanisms", mechanisms, given.mechanisms):
        mechanisms = given.mechanisms
    else:
        mechanisms = read_written_mechanisms(mechanisms)
    if _is_own("method", method, given.method):
        method = read_method(given.method)
    else:
        method = read_method(read_written_method(method))
    if _is_own("prior", prior, given.prior):
        prior = given.prior
    elif prior is not None:
        prior = read_prior(prior)
    key = None if record["key"] is None else read_key(record["key"])
    options = (record["parameters"], record["intercepts"], record["linear"])
    return Recipe(
        mechanisms, method, Task(problem, rows, _read_told(tree, problem), prior, *options), key
    )


def _is_own(name: str, written: Any, given: object) -> bool:
    """Return whether something was written by its name alone, and so must be given back."""
    is_own = isinstance(written, dict) and "name" in written and "options" not in written
    if is_own and given is None:
        raise StoreError(
            f"was fitted with {name} of one's own, {written['name']!r}, which a file cannot "
            f"hold; give them back with read_datatree(..., {name}=...)"
        )
    if given is not None and not is_own:
        raise StoreError(f"holds its own {name}, {written!r}; leave out {name}=")
    return is_own


def _read_told(tree: Any, problem: Problem) -> Outcomes:
    nodes = problem.graph.nodes
    if ROWS not in tree.children or "outcome" not in tree[ROWS].data_vars:
        return no_outcomes(len(nodes))
    group = tree[ROWS]
    queries = Queries(group["told_was_set"].values, group["told_values"].values)
    return Outcomes(problem.require(named(queries, nodes)), group["outcome"].values)


def _resume(tree: Any, parts: tuple[Data, ...], recipe: Recipe, resume: Any) -> Posterior:
    """Return a posterior of chains with the draws that the tree holds."""
    task = recipe.task
    family, choice = choose_family(
        task.problem, task.data, read_mechanisms(recipe.mechanisms), task.prior
    )
    model = family.bind(task)
    for part in parts[1:]:
        model = model.with_observations(part)
    stats = {}
    if "sample_stats" in tree.children:
        stats = {str(name): each.values for name, each in tree["sample_stats"].data_vars.items()}
    sizes = list(accumulate(map(len, parts)))
    psi = tree[COORDINATES]["psi"].values
    distribution = resume(model, psi, stats, recipe.key, sizes)
    digested = (sum(map(digest, parts)) + task.outcomes.digest()) % 2**256
    made = Posterior(
        task.problem, recipe.method.name, distribution, parts, digested, "", family.name, choice
    )
    theta, own = tree["posterior"]["theta"].values, distribution.chains
    close = ROUNDING * np.abs(theta).max()
    if own.shape != theta.shape or not (np.abs(own - theta) <= close).all():
        raise StoreError(f"has draws of theta that are not those of its chains; {AGAIN}")
    return replace(made, recipe=recipe)


def _require_same(tree: Any, post: Posterior) -> None:
    """Refuse a posterior that is not the one that was written."""
    if post.fingerprint != tree.attrs.get("posterior") or post.verdict != tree.attrs["verdict"]:
        raise StoreError(
            "gives another posterior than the one that was written: rows, prior, method, functions "
            f"or draws are others, or only some of the draws were kept; {AGAIN} without draws="
        )
