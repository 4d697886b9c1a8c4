"""What would Y be under do(...), for given theta?"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy.stats import chi2

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ExplorationError, ModelError, listed
from causal_bo_ppl.identification import Coordinate, Parameters
from causal_bo_ppl.identification.parameters import Explored, collect
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.mechanisms.linear import structural_response as wiring
from causal_bo_ppl.mechanisms.linear import total_response as lines
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import distinct_rows

Set = tuple[str, ...]
THETAS = 64  # models at once, where effects are lines


class HessianBounds(NamedTuple):
    """Bounds on the operator norm of each effect's Hessian in theta.

    bounds: (M,). is_global: (M,), whether a bound holds for every theta (the effect has degree 2 at most, its Hessian
    is constant and the bound is its norm) or only within the Gaussian credible ellipsoid of `level`.
    """

    bounds: np.ndarray
    is_global: np.ndarray
    level: float


@dataclass(frozen=True, eq=False)
class Response:
    """r(theta, queries): E[Y | do(...)] of a batch of queries. Made by `cb.response(problem, post)`."""

    post: Posterior
    _used: dict[Set, tuple[Coordinate, ...]] = field(
        default_factory=dict, repr=False
    )  # of the sets asked for so far

    @property
    def parameters(self) -> Parameters:
        """The coordinates of theta."""
        return self.post.parameters

    @property
    def names(self) -> tuple[str, ...]:
        """Names of theta's coordinates."""
        return self.post.names

    @property
    def is_structural(self) -> bool:
        """Are theta's coordinates coefficients of the equations? Otherwise the effects are linear in them."""
        return self.parameters.kind == "structural"

    def __call__(self, theta: ArrayLike, queries: Queries) -> Any:
        """(M,) effects at theta (d,); (s, M) for several thetas (s, d)."""
        room, theta = wiring if self.is_structural else lines, self._read(theta, (1, 2))
        if theta.ndim == 1:
            found: jax.Array = self._apply(room.values, theta, queries)
            return found
        if not len(theta):
            return jnp.zeros((0, len(queries)))
        if isinstance(theta, jax.core.Tracer):
            return jnp.asarray(self._apply(room.values_of_many, theta, queries))
        if self.is_structural:
            return wiring.effects_of_many(self._constants, np.asarray(theta), self.require(queries))
        filled = np.pad(np.asarray(theta), ((0, -len(theta) % THETAS), (0, 0)))
        values = np.empty((len(filled), len(queries)))
        points = self._prepare(queries)
        for start in range(0, len(filled), THETAS):
            work = partial(
                lines.values_of_many, self._constants, jnp.asarray(filled[start : start + THETAS])
            )
            values[start : start + THETAS] = in_pieces(work, points, len(queries), 1)
        return values[: len(theta)]

    def jacobian(self, theta: ArrayLike, queries: Queries) -> jax.Array:
        """(M, d) derivatives of the effects in theta, at theta (d,)."""
        return self.linearize(theta, queries)[1]

    def linearize(self, theta: ArrayLike, queries: Queries) -> tuple[jax.Array, jax.Array]:
        """Effects (M,) and their Jacobian (M, d) at theta (d,), by one pair of sweeps."""
        room = wiring if self.is_structural else lines
        values, jacobian = self._apply(room.linearize, self._read(theta, (1,)), queries)
        return values, jacobian

    def hessian_bounds(self, queries: Queries, *, level: float = 0.95) -> HessianBounds:
        """Bound the curvature of each effect in theta, as the operator norm of its Hessian.

        Global where the effect's degree in theta is 2 at most. Otherwise the Hessian is unbounded, and the bound is
        local: over the box around the credible ellipsoid of `level`, by absolute values.
        """
        if not (isinstance(level, float) and 0 < level < 1):
            raise ModelError(f"level must lie between 0 and 1, got {level!r}")
        if not self.is_structural:
            self._prepare(queries)
            return HessianBounds(np.zeros(len(queries)), np.ones(len(queries), bool), level)
        reach = np.abs(self.post.mean) + np.sqrt(chi2.ppf(level, len(self.names))) * self.post.sd
        exact = self._apply(wiring.curvature, jnp.asarray(self.post.mean), queries)
        local = self._apply(wiring.largest_curvature, jnp.asarray(reach), queries)
        is_global = (
            wiring.degree(self._constants, np.asarray(self.post.upstream(queries).mask)) <= 2
        )
        return HessianBounds(np.where(is_global, exact, local), is_global, level)

    @cached_property
    def _nodes(self) -> np.ndarray:
        """The target's causes and, last, the target."""
        return np.array(self.post.problem.graph.ancestral(self.post.problem.target).nodes)

    @cached_property
    def _constants(self) -> Any:
        return wiring.wire(self.parameters) if self.is_structural else None

    def _read(self, theta: ArrayLike, dimensions: tuple[int, ...]) -> jax.Array:
        require_float64()
        try:
            found = jnp.asarray(theta, float)
        except (TypeError, ValueError):
            raise ModelError(f"theta must be an array of numbers, got {theta!r}") from None
        if found.ndim not in dimensions or found.shape[-1] != len(self.names):
            wanted = " or ".join(
                {1: "({d},)", 2: "(s, {d})"}[n].format(d=len(self.names)) for n in dimensions
            )
            raise ModelError(
                f"theta needs the shape {wanted} for {listed(self.names, most=6)}; got {found.shape}"
            )
        if not isinstance(found, jax.core.Tracer) and not np.isfinite(np.asarray(found)).all():
            raise ModelError("theta must be finite; it holds NaN or infinity")
        return found

    def _apply(self, work: Callable[..., Any], theta: jax.Array, queries: Queries) -> Any:
        return in_pieces(
            partial(work, self._constants, theta),
            self._prepare(queries),
            len(queries),
            theta.ndim - 1,
        )

    def require(self, queries: Queries) -> Queries:
        """The batch cut to the target and its causes, the target last; refused where theta lacks what it needs."""
        return self._held(queries)[0]

    def _prepare(self, queries: Queries) -> Queries | lines.Points:
        upstream, used, which = self._held(queries)
        return (
            upstream if self.is_structural else lines.place(self.parameters, upstream, used, which)
        )

    def _held(self, queries: Queries) -> tuple[Queries, list[tuple[Coordinate, ...]], np.ndarray]:
        """The batch upstream, the coordinates that each of its sets uses, and the set of every query."""
        upstream = self.post.upstream(queries)
        first, which = distinct_rows(np.asarray(upstream.mask))
        used = [
            self._require_held(tuple(self._nodes[row].tolist()))
            for row in np.asarray(upstream.mask)[first]
        ]
        return upstream, used, which

    def _require_held(self, members: Set) -> tuple[Coordinate, ...]:
        """The coordinates that a set uses, all of which theta must hold."""
        if members not in self._used:
            graph, target, _, _, known = self.parameters.explored
            explored = Explored(
                graph, target, (members,), (reduce_effect(graph, target, members),), known
            )
            used = collect(
                explored, self.parameters.kind, intercepts=self.parameters.intercepts
            ).coordinates
            missing = [each.name for each in used if each.name not in self.names]
            if missing and not members:
                raise ExplorationError(
                    "the effect of doing nothing was not fitted: no set of this problem needs all of it; it is the "
                    "target's observational mean"
                )
            if missing and members in self.post.problem.sets:
                raise ExplorationError(
                    f"the effect of do({listed(members)}) is not identifiable and was left out; the sets that were "
                    "learned are in post.parameters.explored.sets"
                )
            if missing:
                raise ExplorationError(
                    f"the effect of do({listed(members)}) needs {listed(missing, most=6)}, which no set of this "
                    "problem uses, so it was not fitted; add that set to the problem's sets"
                )
            self._used[members] = used
        return self._used[members]


def response(problem: Problem, post: Posterior) -> Response:
    """The map from theta and queries to effects, in the parameters of a posterior.

    Linear mechanisms, in closed form: two sweeps over the graph give effects and Jacobian, compiled once for each
    shape of problem.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> r = cb.response(system.problem, post)
    >>> q = system.problem.queries([{"X": 2.0}, {"Z": 2.0}])
    >>> r([0.8, -1.3], q).round(4).tolist(), r.jacobian([0.8, -1.3], q).round(4).tolist()
    ([-2.08, -2.6], [[-2.6, 1.6], [0.0, 2.0]])
    """
    require_float64()
    if not isinstance(post, Posterior):
        raise ModelError(
            f"a response needs a Posterior, got {type(post).__name__}; make one with cb.fit(problem, data)"
        )
    if not isinstance(problem, Problem) or problem != post.problem:
        raise ModelError("this posterior is of another problem; fit this one, or pass post.problem")
    found = post.__dict__.get(
        "_response"
    )  # kept with the posterior, which is immutable, and gone with it
    return (
        found
        if isinstance(found, Response)
        else post.__dict__.setdefault("_response", Response(post))
    )
