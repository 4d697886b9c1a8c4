"""How do effects, densities and samples of user-defined mechanisms depend on their parameters?"""

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
from causal_bo_ppl.errors import MechanismError, unknown
from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.mechanisms.base import Extrapolation
from causal_bo_ppl.mechanisms.custom.density import PaddedObservations
from causal_bo_ppl.mechanisms.custom.propagation import (
    AveragingPoints,
    Part,
    PathProgram,
    PathStep,
    Typical,
    even_points,
    has_mean,
    other_points,
    split_parts,
)
from causal_bo_ppl.mechanisms.custom.sites import FunctionBlock, log_probability
from causal_bo_ppl.mechanisms.gp.propagation import (
    AVERAGING_POINTS,
    ERROR_POINTS,
    ERROR_REPLICATES,
    FEWER_AVERAGING_POINTS,
    Equation,
    Excess,
    averaging_errors,
    excess_beyond,
    over_queries,
    summarize_excess,
)
from causal_bo_ppl.mechanisms.gp.response_map import coordinate_names, upstream_queries
from causal_bo_ppl.problem import Problem, Queries


@dataclass(frozen=True, eq=False)
class CustomResponse:
    """Effects as averages over the noise; see `base.ResponseMap`.

    parts: the blocks of parameters, in causal order. settings: the fixed numbers of each. steps:
    the variables that effects depend on, the target last. ends: (2, p) range of the data.
    """

    problem: Problem
    parts: tuple[Part, ...]
    settings: tuple[Any, ...]
    steps: tuple[PathStep, ...]
    typical: Typical
    ends: np.ndarray
    is_drawn: bool = False
    points: int = AVERAGING_POINTS

    is_affine = False
    is_linear = False

    @cached_property
    def graph(self) -> CausalGraph:
        """The target and its causes."""
        return self.problem.graph.ancestral(self.problem.target)

    @cached_property
    def _coordinates(self) -> list[tuple[str, str, str]]:
        labels = [
            coordinate_names(self.graph, part) if isinstance(part, Equation) else part.labels
            for part in self.parts
        ]
        return [label for each in labels for label in each]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta."""
        return tuple(name for name, _, _ in self._coordinates)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The intervention sets of the problem."""
        return self.problem.sets

    @property
    def _free(self) -> int:
        """Number of variables whose noise is averaged over."""
        return len(self.steps) if self.is_drawn else len(self.steps) - 1

    @property
    def _learned(self) -> list[str]:
        return [self.graph.nodes[step.position] for step in self.steps]

    @cached_property
    def program(self) -> PathProgram:
        """The effects as a JAX pytree."""
        return self._program(even_points(self.points, self._free))

    def _program(self, points: AveragingPoints) -> PathProgram:
        with jax.ensure_compile_time_eval():  # cached: within a trace they would be its tracers
            arrays = self.settings, points, self.typical
            settings, points, typical = jax.tree.map(jnp.asarray, arrays)
        fixed = self.parts, self.steps, self.graph.nodes, self.is_drawn
        return PathProgram(settings, points, typical, *fixed)

    def with_fewer_points(self) -> "CustomResponse":
        """Return the same map with averages over fewer points."""
        return replace(self, points=min(self.points, FEWER_AVERAGING_POINTS))

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        return upstream_queries(self.problem, queries, self._learned)

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the errors (M,) of the averages at theta (d,), estimated by other points."""
        batch, free = self.batch(queries), self._free
        if not free:
            return np.zeros(len(batch.mask))
        points = [other_points(ERROR_POINTS, free, seed) for seed in range(ERROR_REPLICATES)]
        return averaging_errors(self.program, map(self._program, points), theta, batch)

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the range of the data.

        An input that is set is outside where it leaves that range, others beyond a tenth of it.
        """
        batch, nodes = self.batch(queries), self.graph.nodes
        inputs = tuple(
            (name, cause) for name in self._learned for cause in self.graph.parents(name)
        )
        positions = tuple((nodes.index(one), nodes.index(other)) for one, other in inputs)
        work = partial(_beyond, self.program, positions, jnp.asarray(theta), jnp.asarray(self.ends))
        outside, shares, distances = map(np.asarray, in_pieces(work, batch, len(batch.mask)))
        beyond = np.zeros(len(self.names), bool)
        return Extrapolation(inputs, outside, shares, distances, beyond)

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        learned = self._learned
        if variable not in learned:
            raise MechanismError(unknown("variable with a learned mechanism", variable, learned))
        columns = [self.problem.graph.index(name) for name in self.graph.nodes]
        chosen = jnp.asarray(np.asarray(values)[:, columns])
        work = partial(means_of_many, learned.index(variable), self.program, chosen)
        return np.asarray(in_pieces(work, np.asarray(theta), len(theta)))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every coordinate: its variable, and what it stands for."""
        columns = ["coordinate", "variable", "part"]
        return pd.DataFrame(self._coordinates, columns=columns).set_index("coordinate")

    def canonical(self) -> str:
        """Return a text that distinguishes this parameterization from others of the problem.

        Functions are identified by names, parameters and byte code, not by what they call.
        """
        arrays = [np.asarray(part).tolist() for part in jax.tree.leaves(self.settings)]
        return f"custom|{self.attributes()['functions']}|{self.points}|{arrays}"

    def attributes(self) -> dict[str, str]:
        """Return the texts that a file stores; functions themselves are not written."""
        return {"parameters": "custom", "functions": json.dumps(list(map(_describe, self.parts)))}


def _describe(part: Part) -> list[object]:
    if isinstance(part, Equation):
        return ["ours", list(part)]
    function = part.function if isinstance(part, FunctionBlock) else part.program
    code = getattr(function, "__code__", None)
    digest = "" if code is None else hashlib.sha256(code.co_code).hexdigest()[:16]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return [part.variables, name, digest, [list(site) for site in part.sites], part.adds_noise]


@partial(jax.jit, static_argnums=0)
def means_of_many(
    index: int, program: PathProgram, values: jax.Array, theta: jax.Array
) -> jax.Array:
    """Return means (n, m) of the variable of one step, for thetas (n, d) and values (m, p).

    Medians where the mean of its distribution is not available.
    """
    columns = list(values.T)

    def one(each: jax.Array) -> Any:
        thetas = split_parts(program.parts, each)
        distribution = program.conditional(thetas, program.steps[index], columns, False)
        centre = distribution.mean if has_mean(distribution) else distribution.icdf(0.5)
        return centre + jnp.zeros(len(values))

    means: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return means


@partial(jax.jit, static_argnums=1)
def _beyond(
    program: PathProgram,
    positions: tuple[tuple[int, int], ...],
    theta: jax.Array,
    ends: jax.Array,
    batch: Queries,
) -> Excess:
    """Return the shares of paths that leave the data, (M,) and (M, k) by input, and distances."""
    target, never = program.steps[-1].position, jnp.zeros((), bool)

    def one(query: Queries) -> Excess:
        mask, excess = query.mask, []
        columns, _ = program.paths(theta, mask, query.value)
        acts = {target: jnp.ones((), bool)}
        for effect, cause in sorted(positions, reverse=True):  # causes stand before effects
            acts[cause] = acts.get(cause, never) | (acts.get(effect, never) & ~mask[cause])
        for effect, cause in positions:
            beyond = excess_beyond(columns[cause], ends[0, cause], ends[1, cause], mask[cause])
            excess.append(jnp.where(acts[effect], beyond, 0.0))
        return summarize_excess(excess, len(program.points.normal))

    return over_queries(one, batch)


@jax.jit
def samples_of_many(program: PathProgram, mask: Any, value: Any, pair: Any) -> jax.Array:
    """Draw all variables (n, m, p) under queries (m, p), for thetas (n, d) and seeds (n, 1)."""
    samples: jax.Array = jax.lax.map(
        lambda one: program.sample(one[0], mask, value, one[1][0]), pair, batch_size=16
    )
    return samples


@jax.jit
def log_densities_of_many(
    program: PathProgram, observations: PaddedObservations, theta: jax.Array
) -> jax.Array:
    """Return the log densities (n, m, p) of observations at thetas (n, d)."""
    values, filled, free = observations
    columns = list(values.T)

    def one(each: jax.Array) -> jax.Array:
        thetas, logs = split_parts(program.parts, each), [jnp.zeros(len(values))] * len(columns)
        for step in program.steps:
            distribution = program.conditional(thetas, step, columns, False)
            terms = log_probability(distribution, filled[:, step.position])
            logs[step.position] = jnp.where(free[:, step.position], terms, 0.0)
        return jnp.stack(logs, axis=1)

    logs: jax.Array = jax.lax.map(one, theta, batch_size=16)
    return logs


@partial(jax.jit, static_argnums=(0, 2))
def means_of_each(
    index: int, program: PathProgram, shape: tuple[int, ...], theta: jax.Array, values: jax.Array
) -> jax.Array:
    """Return means (n, m) for thetas (n, d), each with its values (n, m * p)."""

    def one(pair: Any) -> Any:
        return means_of_many(index, program, pair[1].reshape(shape), pair[0][None])[0]

    means: jax.Array = jax.lax.map(one, (theta, values), batch_size=16)
    return means
