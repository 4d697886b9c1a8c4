"""How do effects depend on the parameters of linear mechanisms?

`EffectResponse`: effects are linear in slopes and intercepts, which are total effects or values of
verified estimands, and the query's values are the Jacobian. A slope tau[i|s] is the centred
response to x_i = 1 with the rest of s at 0, an intercept the response to s at 0. Of a minimal theta
these slopes and intercepts are polynomials, computed by its circuit.

`StructuralResponse`: effects as a function of the coefficients of the equations. With m the means
after surgery and l the sensitivity of the target to each equation, df/dW_ij = m_i l_j and
df/da_j = l_j where j is not set. The second derivative in W_ij and W_kl is
m_i T_jk l_l + m_k T_li l_j, with T the total effects after surgery: on a path one coefficient comes
before the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.stats import chi2

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ExplorationError, MechanismError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification import Coordinate, Parameters
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.base import HessianBounds
from causal_bo_ppl.mechanisms.linear_equations import (
    MODELS_AT_ONCE,
    LinearSEM,
    ThetaReader,
    known_matrix,
    read_theta,
    total_effects,
)
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import distinct_rows, split_by_set

Set = tuple[str, ...]
MOST_SLOPES_IN_MEMORY = 4_000_000  # numbers


def open_variables(parameters: Parameters) -> set[str]:
    """Return the variables that some set leaves free on the way to the target."""
    return {name for reduction in parameters.explored.reductions for name in reduction.open}


@dataclass(frozen=True, eq=False)
class LinearParameters:
    """The part of a response map that depends on its parameters alone; see `base.ResponseMap`."""

    problem: Problem
    parameters: Parameters
    _used: dict[Set, tuple[Coordinate, ...]] = field(default_factory=dict, repr=False)

    is_affine = True

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.parameters.names

    @property
    def sets(self) -> tuple[Set, ...]:
        """Sets whose effects the parameters determine."""
        return self.parameters.explored.sets

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every parameter: cause, effect, set variables, how many sets use it."""
        return self.parameters.to_frame()

    def canonical(self) -> str:
        """Return the kind of parameters, and whether there are intercepts."""
        return f"{self.parameters.kind}|{self.parameters.intercepts}"

    def attributes(self) -> dict[str, str]:
        """Return what a file must record for the coordinates to be known again."""
        intercepts = "yes" if self.parameters.intercepts else "no"
        return {"parameters": self.parameters.kind, "intercepts": intercepts}

    @cached_property
    def graph(self) -> CausalGraph:
        """The target's ancestral graph."""
        return self.problem.graph.ancestral(self.problem.target)

    @property
    def nodes(self) -> Set:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

    @cached_property
    def columns(self) -> list[int]:
        """Positions of these nodes among the variables of the problem's graph."""
        return [self.problem.graph.index(name) for name in self.nodes]

    def split(self, queries: Queries) -> tuple[Queries, list[Set], np.ndarray]:
        """Return the queries over `nodes`, the distinct sets, and which of them each query has."""
        mask = np.asarray(queries.mask)[:, self.columns]
        first, which = distinct_rows(mask)
        names = np.array(self.nodes)
        members = [tuple(names[row].tolist()) for row in mask[first]]
        return Queries(mask, np.asarray(queries.value)[:, self.columns]), members, which

    def require(self, members: Set) -> tuple[Coordinate, ...]:
        """Return the coordinates that a set uses; raise ExplorationError where theta lacks one."""
        if members in self._used:
            return self._used[members]
        row, coordinates = self._rows.get(members), self.parameters.coordinates
        if row is not None:
            used = tuple(compress(coordinates, self.parameters.uses[row]))
        else:
            used = self.parameters.used_by(members)
            if missing := [each.name for each in used if each.name not in self.names]:
                raise ExplorationError(self._fault(members, missing))
        self._used[members] = used
        return used

    @cached_property
    def _rows(self) -> dict[Set, int]:
        """Positions of the sets among those that were identified."""
        return {members: row for row, members in enumerate(self.sets)}

    def _fault(self, members: Set, missing: list[str]) -> str:
        if not members:
            return (
                "the effect of doing nothing was not fitted: no set of this problem needs all of "
                "it; it is the target's observational mean"
            )
        if members in self.problem.sets:
            return (
                f"the effect of do({listed(members)}) is not identifiable and was left out; the "
                "sets that were learned are in post.sets"
            )
        return (
            f"the effect of do({listed(members)}) needs {listed(missing, most=6)}, which no set of "
            "this problem uses, so it was not fitted; add that set to the problem's sets"
        )


class EffectBatch(NamedTuple):
    """M queries over the p nodes of the ancestral graph and the constant 1.

    columns: (M, p + 1) positions of their coefficients in the numbers v of the program, d where
    there is none: v[d] = 0. known: (M, p + 1) slopes known in advance. values: (M, p + 1).
    """

    columns: jax.Array | np.ndarray
    known: jax.Array | np.ndarray
    values: jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EffectProgram:
    """Effects that are linear in v = (theta, 0, ...), see `Circuit`; see `base.ResponseProgram`."""

    constants: jax.Array
    layers: tuple[tuple[jax.Array, jax.Array], ...] = ()

    def numbers(self, theta: jax.Array) -> jax.Array:
        """Return v."""
        numbers = jnp.append(theta, self.constants)
        for left, right in self.layers:
            numbers = jnp.append(numbers, (numbers[left] * numbers[right]).sum(axis=1))
        return numbers

    def effects(self, theta: jax.Array, batch: EffectBatch) -> jax.Array:
        """Return the effects (M,)."""
        slopes = self.numbers(theta)[batch.columns] + batch.known
        return (slopes * batch.values).sum(axis=1)

    def linearize(self, theta: jax.Array, batch: EffectBatch) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d)."""
        weights = self._weights(len(self.numbers(theta)), batch)
        if not self.layers:
            return self.effects(theta, batch), weights[:, : len(theta)]
        return self.effects(theta, batch), weights @ jax.jacfwd(self.numbers)(theta)

    def hessian(self, theta: jax.Array, batch: EffectBatch) -> jax.Array:
        """Return the second derivatives, of shape (M, d, d)."""
        curvature = jax.jacfwd(jax.jacfwd(self.numbers))(theta)
        return jnp.tensordot(self._weights(len(curvature), batch), curvature, 1)

    def _weights(self, size: int, batch: EffectBatch) -> jax.Array:
        """Return the weights of v in the effects, of shape (M, n_v)."""
        rows = jnp.arange(len(batch.values))[:, None]
        return jnp.zeros((len(batch.values), size)).at[rows, batch.columns].add(batch.values)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StructuralProgram:
    """Effects of the target, the last of p nodes; see `base.ResponseProgram`.

    causes, effects_of: (d,) rows and columns of theta among the coefficients; the cause p is the
    constant 1, for an intercept. fixed: (p + 1, p) known coefficients.
    """

    causes: jax.Array
    effects_of: jax.Array
    fixed: jax.Array

    def matrix(self, theta: jax.Array) -> jax.Array:
        """Return the coefficients (p + 1, p) at theta (d,)."""
        return self.fixed.at[self.causes, self.effects_of].set(theta)

    def effects(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the effects (M,) of queries over the p nodes."""
        return self._means(theta, batch)[-2]

    def linearize(self, theta: jax.Array, batch: Queries) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives (M, d), by two sweeps."""
        means, loads = self._means(theta, batch), self._loads(theta, batch.mask)
        return means[-2], (means[self.causes] * loads[self.effects_of]).T

    def slopes(self, theta: jax.Array, mask: jax.Array) -> jax.Array:
        """Return derivatives of effects in the values of S sets, and the effects at 0.

        f = l'a + sum_i x_i sum_j W_ij l_j, with l depending on the set alone; mask (S, p), the
        result (S, p + 1).
        """
        matrix, loads = self.matrix(theta), self._loads(theta, mask).T
        slopes = jnp.where(mask, loads @ matrix[:-1].T, 0.0)
        return jnp.column_stack([slopes, loads @ matrix[-1]])

    def hessian(self, theta: jax.Array, batch: Queries) -> jax.Array:
        """Return the second derivatives, of shape (M, d, d)."""
        matrix = self.matrix(theta)
        means, loads = self._means(theta, batch).T, self._loads(theta, batch.mask).T
        model = LinearSEM(matrix[:-1], matrix[-1], jnp.zeros(self.fixed[:-1].shape))
        onward = jnp.pad(total_effects(model, batch.mask), ((0, 0), (0, 0), (0, 1)))
        between = onward[:, self.effects_of][:, :, self.causes]  # nothing moves the constant
        half = means[:, self.causes][:, :, None] * between * loads[:, self.effects_of][:, None, :]
        return half + jnp.matrix_transpose(half)

    def _means(self, theta: jax.Array, batch: Queries) -> jax.Array:
        mask, value = jnp.asarray(batch.mask).T, jnp.asarray(batch.value).T
        means: jax.Array = forward_sweep(self.matrix(theta), mask, value)
        return means

    def _loads(self, theta: jax.Array, mask: jax.Array | np.ndarray) -> jax.Array:
        weights = self.matrix(theta)[:-1]
        loads: jax.Array = adjoint_sweep(weights, jnp.asarray(mask).T, mask.shape[1] - 1)
        return loads


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, None))
def _slopes_of_many(program: StructuralProgram, theta: jax.Array, mask: jax.Array) -> jax.Array:
    return program.slopes(theta, mask)


@jax.jit
def _curvature(program: EffectProgram | StructuralProgram, theta: jax.Array, batch: Any) -> Any:
    """Return the operator norm of each Hessian at theta, of shape (M,)."""
    return jnp.abs(jnp.linalg.eigvalsh(program.hessian(theta, batch))).max(axis=1)


def bound_curvatures(
    programs: Sequence[EffectProgram | StructuralProgram],
    batches: Sequence[Any],
    is_global: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    level: float,
) -> HessianBounds:
    """Return the norms of Hessians, exact where `is_global` and elsewhere bounds within `level`.

    The second of the programs and batches have the absolute values of all constants and values.
    moments: mean and sd of theta.
    """
    mean, sd = moments
    reach = np.abs(mean) + np.sqrt(chi2.ppf(level, len(mean))) * sd
    exact, local = (
        in_pieces(partial(_curvature, program, jnp.asarray(point)), batch, len(is_global))
        for program, point, batch in zip(programs, (mean, reach), batches, strict=True)
    )
    return HessianBounds(np.where(is_global, exact, local), is_global, level)


@dataclass(frozen=True, eq=False)
class EffectResponse(LinearParameters):
    """The map from slopes and intercepts, or what they follow from, to effects.

    See `base.ResponseMap`.
    """

    @property
    def is_linear(self) -> bool:
        """Whether every effect is affine in theta."""
        return self.parameters.circuit is None

    @property
    def is_selection(self) -> bool:
        """Whether theta holds coefficients, as they are in the model."""
        return self.parameters.circuit is not None and self.parameters.circuit.is_selection

    @cached_property
    def program(self) -> EffectProgram:
        """The effects as a JAX pytree."""
        circuit = self.parameters.circuit
        with jax.ensure_compile_time_eval():  # kept: within a trace they would be its tracers
            if circuit is None:
                values = [value for _, value in self.parameters.fixed]
                return EffectProgram(jnp.array([0.0, *values]))
            layers = tuple((jnp.array(left), jnp.array(right)) for left, right in circuit.layers)
            return EffectProgram(jnp.array(circuit.constants), layers)

    @cached_property
    def reader(self) -> ThetaReader:
        """The query for every coordinate, to which it is the response of its effect.

        The last are those that are known, and are no longer in theta.
        """
        fixed = (coordinate for coordinate, _ in self.parameters.fixed)
        coordinates = (*self.parameters.coordinates, *fixed)
        mask = np.array([[name in each.given for name in self.nodes] for each in coordinates])
        value = np.array([[name == each.cause for name in self.nodes] for each in coordinates])
        is_intercept = np.array([not each.cause for each in coordinates], bool)
        effects = np.array([self.nodes.index(each.effect) for each in coordinates], int)
        return ThetaReader(None, Queries(mask, value.astype(float)), is_intercept, effects)

    def read(self, matrices: np.ndarray) -> np.ndarray:
        """Return theta of models (n, p + 1, p), and then the k known coordinates: (n, d + k)."""
        blocks = np.split(matrices, range(MODELS_AT_ONCE, len(matrices), MODELS_AT_ONCE))
        return np.concatenate([np.asarray(_read_many(self.reader, block)) for block in blocks])

    def push(self, matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Return a factor of the covariance of what `read` returns, (d + k, K).

        That of the coefficients, of shape (p + 1, p, K), is linearized at `matrix`.
        """
        return np.asarray(np.tensordot(np.asarray(_gradients(self.reader, matrix)), factor, 2))

    def batch(self, queries: Queries) -> EffectBatch:
        """Return the positions of the coefficients of every query in v, and its values.

        A coefficient that theta does not hold follows from known coefficients alone.
        """
        upstream, sets, which = self.split(queries)
        mask = np.asarray(upstream.mask)
        causes = (*self.nodes, "")
        columns = np.full((len(sets), len(causes)), len(self.names))
        for row, members in enumerate(sets):
            for cause, position in self._positions(members).items():
                columns[row, causes.index(cause)] = position
        known = np.zeros((len(which), len(causes)))
        weights = known_matrix(self.graph, self.parameters.explored.known)[:-1]
        if self.is_linear and weights.any():
            loads = adjoint_sweep(weights, mask.T, len(weights) - 1)
            is_missing = mask & (columns[which, :-1] == len(self.names))
            known[:, :-1] = (weights @ loads).T * is_missing
        values = np.column_stack([np.where(mask, upstream.value, 0.0), np.ones(len(mask))])
        return EffectBatch(columns[which], known, values)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def _positions(self, members: Set) -> Mapping[str, int]:
        """Return where the coefficients of a set lie in v, by their causes."""
        circuit = self.parameters.circuit
        if circuit is None:
            found = {each.cause: self._place[each.name] for each in self.require(members)}
            for position, (each, _) in enumerate(self.parameters.fixed, len(self.names) + 1):
                if self.parameters.uses_total(members, each.cause):
                    found[each.cause] = position
            return found
        effective = self.parameters.reduce(members).effective
        if effective not in circuit.slopes:
            total = replace(self.parameters, kind="total_effect", circuit=None)
            missing = [each.name for each in total.used_by(members)]
            raise ExplorationError(self._fault(members, missing))
        return circuit.slopes[effective]

    def hessian_bounds(
        self, mean: np.ndarray, sd: np.ndarray, queries: Queries, level: float
    ) -> HessianBounds:
        """Bound the curvature of each effect in theta, as `StructuralResponse` does.

        It is 0 where effects are linear in theta. The numbers of a circuit are polynomials whose
        coefficients are 1 or products of known ones.
        """
        batch, circuit = self.batch(queries), self.parameters.circuit
        if circuit is None:
            return HessianBounds(np.zeros(len(queries)), np.ones(len(queries), bool), level)
        sizes = batch._replace(values=np.abs(batch.values))
        is_global = (circuit.degrees[batch.columns] <= 2).all(axis=1)
        positive = replace(self.program, constants=jnp.abs(self.program.constants))
        programs = self.program, positive
        return bound_curvatures(programs, (batch, sizes), is_global, (mean, sd), level)


_read_many = jax.jit(jax.vmap(read_theta, (None, 0)))
_gradients = jax.jit(jax.jacrev(read_theta, argnums=1))


@dataclass(frozen=True, eq=False)
class StructuralResponse(LinearParameters):
    """The map from coefficients to effects; see `base.ResponseMap`."""

    is_linear = False
    is_selection = True

    @cached_property
    def program(self) -> StructuralProgram:
        """The effects as a JAX pytree."""
        position = {name: k for k, name in enumerate((*self.nodes, ""))}  # an intercept's cause: ""
        coordinates = self.parameters.coordinates
        causes = [position[each.cause] for each in coordinates]
        effects = [position[each.effect] for each in coordinates]
        fixed = known_matrix(self.graph, self.parameters.explored.known)
        with jax.ensure_compile_time_eval():  # kept: within a trace they would be its tracers
            arrays = jnp.array(causes, int), jnp.array(effects, int), jnp.array(fixed)
        return StructuralProgram(*arrays)

    @cached_property
    def reader(self) -> ThetaReader:
        """The positions of theta among the coefficients."""
        return ThetaReader(self._positions, None, None)

    @cached_property
    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.program.causes), np.asarray(self.program.effects_of)

    def read(self, matrices: np.ndarray) -> np.ndarray:
        """Return theta (n, d) of models (n, p + 1, p)."""
        return np.asarray(matrices[:, *self._positions])

    def push(self, matrix: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """Return a factor (d, K) of theta's covariance from that of coefficients, (p + 1, p, K)."""
        return np.asarray(factor[self._positions])

    def batch(self, queries: Queries) -> Queries:
        """Return the queries over the target and its causes."""
        upstream, sets, _ = self.split(queries)
        for members in sets:
            self.require(members)
        return upstream

    def effects_of_many(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the effects (s, M) of many thetas (s, d).

        One sweep for every set, then a product for its queries.
        """
        batch = self.batch(queries)
        mask, value = np.asarray(batch.mask), np.asarray(batch.value)
        first, _ = distinct_rows(mask)
        points = np.column_stack([np.where(mask, value, 0.0), np.ones(len(mask))])
        effects = np.empty((len(theta), len(mask)))
        cells = MODELS_AT_ONCE * max(len(first), 1) * points.shape[1]
        step = MODELS_AT_ONCE * max(1, MOST_SLOPES_IN_MEMORY // cells)
        groups = [members for _, members in split_by_set(batch)]
        for start in range(0, len(theta), step):
            slopes = self._slopes(theta[start : start + step], mask[first])
            for position, members in enumerate(groups):
                is_run = members[-1] - members[0] == len(members) - 1
                target = slice(members[0], members[-1] + 1) if is_run else members
                effects[start : start + step, target] = slopes[:, position] @ points[members].T
        return effects

    def _slopes(self, theta: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """Return slopes (s, S, p + 1), a fixed number of models at once to compile few programs."""

        def slopes_of(block: np.ndarray) -> np.ndarray:
            work = partial(_slopes_of_many, self.program, jnp.asarray(block))
            return np.asarray(in_pieces(work, masks, len(masks), 1))

        return np.asarray(in_pieces(slopes_of, theta, len(theta), 0, MODELS_AT_ONCE))

    def hessian_bounds(
        self, mean: np.ndarray, sd: np.ndarray, queries: Queries, level: float
    ) -> HessianBounds:
        """Bound the curvature of each effect in theta, as the operator norm of its Hessian.

        Global where the effect's degree in theta is 2 at most. Otherwise the Hessian is unbounded,
        and the bound is local: over the box around the credible ellipsoid of `level`. An entry is a
        polynomial in coefficients and values with coefficients 1: it grows with their absolute
        values, and the norm of a nonnegative matrix grows with its entries.
        """
        batch = self.batch(queries)
        sizes = Queries(batch.mask, np.abs(np.asarray(batch.value)))
        positive = replace(self.program, fixed=jnp.abs(self.program.fixed))
        is_global = self._degrees(np.asarray(batch.mask)) <= 2
        programs = self.program, positive
        return bound_curvatures(programs, (batch, sizes), is_global, (mean, sd), level)

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """
        if variable not in self._learned:
            raise MechanismError(
                unknown("variable with a learned mechanism", variable, self._learned)
            )
        matrices = np.zeros((len(theta), 1, 1)) + np.asarray(self.program.fixed)
        matrices[:, *self._positions] = theta
        weights = matrices[:, :, self.nodes.index(variable)]
        return np.asarray(weights[:, :-1] @ np.asarray(values)[:, self.columns].T + weights[:, -1:])

    def slopes(self, theta: np.ndarray) -> dict[Edge, float]:
        """Return the absolute coefficients of the mechanisms that effects depend on."""
        sizes, index = np.abs(np.asarray(self.program.matrix(jnp.asarray(theta)))), self.graph.index
        return {
            (cause, effect): float(sizes[index(cause), index(effect)])
            for cause, effect in self.graph.directed
            if effect in self._learned
        }

    def scales(self, theta: np.ndarray) -> None:
        """Return None: effects do not depend on the sds of the noise."""

    @cached_property
    def _learned(self) -> tuple[str, ...]:
        """The variables that some set leaves free on the way to the target."""
        return tuple(name for name in self.nodes if name in open_variables(self.parameters))

    def _degrees(self, mask: np.ndarray) -> np.ndarray:
        """Return the degree of each effect in theta: unknown coefficients on the longest path."""
        fixed = np.asarray(self.program.fixed)
        present, unknown = fixed != 0, np.zeros(fixed.shape, bool)
        unknown[self._positions] = True
        most = np.zeros((len(mask), len(present)), int)
        for node in range(mask.shape[1]):
            longer = most + unknown[:, node]
            reached = np.where(present[:, node] | unknown[:, node], longer, 0)
            most[:, node] = np.where(mask[:, node], 0, reached.max(axis=1))
        return most[:, -2]
