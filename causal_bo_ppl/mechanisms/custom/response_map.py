"""The map from theta to effects of an analyst's mechanisms: names, coverage and points.

An analyst's mechanisms at many parameters: densities, means and rows, compiled once.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ExplorationError, ModelError, listed, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.base import Extrapolation
from causal_bo_ppl.mechanisms.custom.density import CustomDensity, Rows
from causal_bo_ppl.mechanisms.custom.propagation import (
    Part,
    PathProgram,
    Points,
    Step,
    Typical,
    even_points,
    has_mean,
    other_points,
    split_parts,
)
from causal_bo_ppl.mechanisms.custom.sites import Block, FunctionBlock, log_probability
from causal_bo_ppl.mechanisms.gp.priors import needed_variables
from causal_bo_ppl.mechanisms.gp.propagation import FEW_POINTS, POINTS, Equation
from causal_bo_ppl.mechanisms.gp.response_map import coordinate_names
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, set_label

OTHERS, MORE = 8, 1_024  # sets of points by which the error of an average is judged, their size
NEAR = 0.1  # ranges beyond the data within which an input that is not set counts as inside


@dataclass(frozen=True, eq=False)
class CustomResponse:
    """Effects as averages over disturbances; see `interfaces.ResponseMap`.

    parts: the blocks of parameters, in causal order. settings: what is fixed in each. steps: the
    variables that effects depend on, the target last. ends: (2, p) range of the rows.
    """

    problem: Problem
    parts: tuple[Part, ...]
    settings: tuple[Any, ...]
    steps: tuple[Step, ...]
    typical: Typical
    ends: np.ndarray
    is_drawn: bool = False
    points: int = POINTS

    is_affine = False
    is_linear = False

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def _coordinates(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for part in self.parts:
            if isinstance(part, Equation):
                found += coordinate_names(self.graph, part)
            else:
                found += part.labels
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta."""
        return tuple(name for name, _, _ in self._coordinates)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets of the problem."""
        return self.problem.sets

    @cached_property
    def program(self) -> PathProgram:
        """The effects as a JAX pytree."""
        count = len(self.steps) if self.is_drawn else len(self.steps) - 1
        return self._program(even_points(self.points, count))

    def _program(self, points: Points) -> PathProgram:
        with jax.ensure_compile_time_eval():  # kept: within a trace they would be its tracers
            fixed, points, typical = jax.tree.map(
                jnp.asarray, (self.settings, points, self.typical)
            )
        nodes = self.graph.nodes
        return PathProgram(
            fixed, points, typical, self.parts, self.steps, nodes, is_drawn=self.is_drawn
        )

    def roughly(self) -> "CustomResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEW_POINTS))

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        mask = np.asarray(queries.mask)[:, columns]
        value = np.asarray(queries.value)[:, columns]
        learned = {self.graph.nodes[step.position] for step in self.steps}
        for row in distinct_rows(mask)[0]:
            pairs = zip(self.graph.nodes, mask[row], strict=True)
            members = tuple(name for name, is_set in pairs if is_set)
            needed = needed_variables(self.graph, self.problem.target, [members])
            if lacking := [name for name in needed if name not in learned]:
                raise ExplorationError(
                    f"the effect of {set_label(members)} depends on the mechanisms of "
                    f"{listed(lacking)}, which no set of the problem needs, so that they were not "
                    "learned; add it to the sets"
                )
        return Queries(mask, value)

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the error (M,) of the averages at theta (d,), judged by many other points."""
        batch, count = self.batch(queries), len(self.steps) - (not self.is_drawn)
        if not count:
            return np.zeros(len(batch.mask))

        def average(program: PathProgram) -> np.ndarray:
            work = partial(_effects, program, jnp.asarray(theta))
            return np.asarray(in_pieces(work, batch, len(batch.mask)))

        points = [other_points(MORE, count, seed) for seed in range(OTHERS)]
        others = [average(self._program(each)) for each in points]
        noise = np.std(others, axis=0, ddof=1) / np.sqrt(OTHERS)
        return np.asarray(np.hypot(average(self.program) - np.mean(others, axis=0), noise))

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the range of the data.

        An input that is set counts as outside as soon as it leaves that range, others beyond a
        tenth of it. What an analyst's function says there is its own claim.
        """
        batch, nodes = self.batch(queries), self.graph.nodes
        inputs = tuple(
            (nodes[step.position], cause)
            for step in self.steps
            for cause in self.graph.parents(nodes[step.position])
        )
        positions = tuple((nodes.index(one), nodes.index(other)) for one, other in inputs)
        work = partial(_beyond, self.program, positions, jnp.asarray(theta), jnp.asarray(self.ends))
        found = in_pieces(work, batch, len(batch.mask))
        outside, shares, far = map(np.asarray, found)
        return Extrapolation(inputs, outside, shares, far, np.zeros(len(self.names), bool))

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned = [self.graph.nodes[step.position] for step in self.steps]
        if variable not in learned:
            raise ModelError(unknown("variable with a learned mechanism", variable, learned))
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        rows = jnp.asarray(np.asarray(values)[:, columns])
        work = partial(means_of_many, learned.index(variable), self.program, rows)
        return np.asarray(in_pieces(work, np.asarray(theta), len(theta)))

    def site_values(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return {parameter: values (s, ...)} of the analyst's parameters, for thetas (s, d)."""
        found: dict[str, np.ndarray] = {}
        own = split_parts(self.parts, jnp.asarray(theta))
        for part, setting, each in zip(self.parts, self.settings, own, strict=True):
            if not isinstance(part, Equation):
                values = _values(part, self.graph.nodes, setting, self.typical, each)
                found |= {name: np.asarray(value) for name, value in values.items()}
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every coordinate: the variable, and what it is of its mechanism."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that tells this parameterization from others of the same problem.

        Functions are told apart by their names, parameters and byte code, not by what they call.
        """
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        return f"custom|{self.functions}|{self.points}|{arrays}"

    @property
    def functions(self) -> str:
        """What the parts are, as a JSON text."""
        return json.dumps([_describe(part) for part in self.parts])

    def attributes(self) -> dict[str, str]:
        """Return what a file records; functions themselves are not written."""
        return {"parameters": "custom", "functions": self.functions}


def _describe(part: Part) -> list[object]:
    if isinstance(part, Equation):
        return ["ours", list(part)]
    function = part.function if isinstance(part, FunctionBlock) else part.program
    code = getattr(function, "__code__", None)
    digest = "" if code is None else hashlib.sha256(code.co_code).hexdigest()[:16]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return [part.variables, name, digest, [list(site) for site in part.sites], part.adds_noise]


@jax.jit
def _effects(program: PathProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    return program.effects(theta, batch)


@partial(jax.jit, static_argnums=0)
def means_of_many(at: int, program: PathProgram, rows: jax.Array, theta: jax.Array) -> jax.Array:
    """Return means (n, rows) of the variable of one step, for thetas (n, d) and the same rows.

    Medians where its distribution does not know its mean.
    """
    columns = [rows[:, position] for position in range(rows.shape[1])]

    def one(each: jax.Array) -> Any:
        own = split_parts(program.parts, each)
        made = program.conditional(own, program.steps[at], columns, False)
        centre = made.mean if has_mean(made) else made.icdf(0.5)
        return centre + jnp.zeros(len(rows))

    found: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return found


@partial(jax.jit, static_argnums=1)
def _beyond(
    program: PathProgram,
    positions: tuple[tuple[int, int], ...],
    theta: jax.Array,
    ends: jax.Array,
    batch: Queries,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return how many paths leave the data: (M,) at all, (M, k) by input, and how far."""
    target = program.steps[-1].position

    def one(query: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        mask, value = query
        columns, _ = program.paths(theta, mask, value)
        acts = {target: jnp.ones((), bool)}
        for effect, cause in sorted(positions, reverse=True):  # causes stand before effects
            reached = acts.get(effect, jnp.zeros((), bool)) & ~mask[cause]
            acts[cause] = acts.get(cause, jnp.zeros((), bool)) | reached
        gone = []
        for effect, cause in positions:
            low, high = ends[0, cause], ends[1, cause]
            over = jnp.maximum(low - columns[cause], columns[cause] - high)
            far = over / jnp.where(high > low, high - low, 1.0)
            out = far > jnp.where(mask[cause], 0.0, NEAR)
            gone.append(jnp.where(acts[effect] & out, far, 0.0))
        table = jnp.stack(gone) if gone else jnp.zeros((0, len(program.points.normal)))
        share = (table > 0).mean(axis=1, dtype=float)
        distance = table.mean(axis=1) / jnp.where(share > 0, share, 1.0)
        return (table > 0).any(axis=0).mean(dtype=float), share, distance

    arrays = (jnp.asarray(batch.mask), jnp.asarray(batch.value))
    found: tuple[jax.Array, jax.Array, jax.Array]
    found = jax.lax.map(one, arrays, batch_size=16)
    return found


@partial(jax.jit, static_argnums=(0, 1))
def _values(
    block: Block, nodes: tuple[str, ...], setting: Any, typical: Typical, theta: jax.Array
) -> dict[str, Any]:
    centre = jnp.asarray(typical.centre)
    columns = {name: centre[position : position + 1] for position, name in enumerate(nodes)}
    found: dict[str, Any] = jax.lax.map(lambda each: block.values(each, setting, columns), theta)
    return found


@jax.jit
def thetas_of_many(density: CustomDensity, psi: jax.Array) -> jax.Array:
    """Return theta (n, d) at coordinates (n, k)."""
    found: jax.Array = jax.lax.map(density.theta, psi)
    return found


@jax.jit
def outcome_variances(program: PathProgram, theta: jax.Array, batch: Queries) -> jax.Array:
    """Return the variance of one outcome under each query (M,), at theta (d,)."""
    return program.variances(theta, batch)


@jax.jit
def outcomes_of_many(
    program: PathProgram, queries: Queries, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return the log density of each outcome (n, m), at thetas (n, d)."""
    found: jax.Array = jax.lax.map(lambda one: program.log_outcomes(one, queries, values), theta)
    return found


@jax.jit
def rows_of_many(program: PathProgram, mask: Any, value: Any, pair: Any) -> jax.Array:
    """Draw rows (n, rows, p) under queries (rows, p), for thetas (n, d) and seeds (n, 1)."""
    found: jax.Array = jax.lax.map(
        lambda one: program.rows(one[0], mask, value, one[1][0]), pair, batch_size=16
    )
    return found


@jax.jit
def log_densities_of_many(program: PathProgram, rows: Rows, theta: jax.Array) -> jax.Array:
    """Return the log densities (n, rows, p) of rows at thetas (n, d)."""
    columns = [rows.values[:, position] for position in range(rows.values.shape[1])]

    def one(each: jax.Array) -> jax.Array:
        own, found = split_parts(program.parts, each), [jnp.zeros(len(rows.values))] * len(columns)
        for step in program.steps:
            made = program.conditional(own, step, columns, False)
            logs = log_probability(made, rows.filled[:, step.position])
            found[step.position] = jnp.where(rows.free[:, step.position], logs, 0.0)
        return jnp.stack(found, axis=1)

    found: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return found


@partial(jax.jit, static_argnums=(0, 2))
def means_of_each(
    at: int, program: PathProgram, shape: tuple[int, ...], theta: jax.Array, rows: jax.Array
) -> jax.Array:
    """Return means (n, rows) for thetas (n, d), each with its own rows."""

    def one(pair: Any) -> jax.Array:
        found: jax.Array = means_of_many(at, program, pair[1].reshape(shape), pair[0][None])
        return found[0]

    found: jax.Array = jax.lax.map(one, (theta, rows), batch_size=16)
    return found
