"""What would Y be under do(...), for given theta? A response map, checked and batched."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_share, require_float64
from causal_bo_ppl.mechanisms.interfaces import HessianBounds, ResponseMap, ResponseProgram, offered
from causal_bo_ppl.problem import Problem, Queries

THETAS = 64  # models at once


@jax.jit
def _effects(program: ResponseProgram, theta: jax.Array, batch: Any) -> jax.Array:
    return program.effects(theta, batch)


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, None))
def _effects_of_many(program: ResponseProgram, theta: jax.Array, batch: Any) -> jax.Array:
    return program.effects(theta, batch)


@jax.jit
def _linearize(
    program: ResponseProgram, theta: jax.Array, batch: Any
) -> tuple[jax.Array, jax.Array]:
    return program.linearize(theta, batch)


@dataclass(frozen=True, eq=False)
class Response:
    """The function r(theta, queries) = E[Y | do(...)] of a batch of queries.

    It is made by `cb.response(problem, post)`.

    NumPy arrays give NumPy arrays; a theta that is a JAX array gives JAX arrays, also within a
    trace.
    """

    post: Posterior

    @property
    def map(self) -> ResponseMap:
        """The response map of the posterior's parameters."""
        return self.post.belief.response

    @property
    def names(self) -> tuple[str, ...]:
        """Names of theta's coordinates."""
        return self.map.names

    def __call__(self, theta: ArrayLike, queries: Queries) -> Any:
        """Return effects (M,) at theta (d,), or (s, M) at several thetas (s, d)."""
        at, queries = self._read(theta, (1, 2)), self.post.problem.require(queries)
        if at.ndim == 1:
            return _like(theta, self._apply(_effects, at, queries))
        if not len(at):
            return _like(theta, np.zeros((0, len(queries))))
        if isinstance(at, jax.core.Tracer):
            return self._apply(_effects_of_many, at, queries)
        many = offered(self.map, "effects_of_many") or self._in_blocks
        return _like(theta, many(np.asarray(at), queries))

    def _in_blocks(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return effects (s, M), a fixed number of thetas at once: few programs are compiled."""
        filled = np.pad(theta, ((0, -len(theta) % THETAS), (0, 0)), mode="edge")
        effects, batch = np.empty((len(filled), len(queries))), self.map.batch(queries)
        for start in range(0, len(filled), THETAS):
            block = jnp.asarray(filled[start : start + THETAS])
            work = partial(_effects_of_many, self.map.program, block)
            effects[start : start + THETAS] = in_pieces(work, batch, len(queries), 1)
        return effects[: len(theta)]

    def jacobian(self, theta: ArrayLike, queries: Queries) -> Any:
        """Return derivatives (M, d) of the effects in theta, at theta (d,)."""
        return self.linearize(theta, queries)[1]

    def linearize(self, theta: ArrayLike, queries: Queries) -> tuple[Any, Any]:
        """Return effects (M,) and their derivatives (M, d) at theta (d,)."""
        at, queries = self._read(theta, (1,)), self.post.problem.require(queries)
        values, jacobian = self._apply(_linearize, at, queries)
        return _like(theta, values), _like(theta, jacobian)

    def require(self, queries: Queries) -> Queries:
        """Return the queries cut to the target and its causes; refuse what theta does not hold."""
        queries = self.post.problem.require(queries)
        self.map.batch(queries)
        return self.post.upstream(queries)

    def hessian_bounds(self, queries: Queries, *, level: float = 0.95) -> HessianBounds:
        """Bound the curvature of each effect in theta, as the operator norm of its Hessian.

        Global where the effect's degree in theta is 2 at most, local within the credible ellipsoid
        of `level` otherwise; NaN where the mechanisms know no bound.
        """
        level, queries = read_share("level", level), self.post.problem.require(queries)
        bounds = offered(self.map, "hessian_bounds")
        if bounds is None:
            self.map.batch(queries)
            unknown = np.full(len(queries), np.nan)
            return HessianBounds(unknown, np.zeros(len(queries), bool), level)
        found: HessianBounds = bounds(self.post.mean, self.post.sd, queries, level)
        return found

    def _read(self, theta: ArrayLike, dimensions: tuple[int, ...]) -> jax.Array:
        require_float64()
        try:
            at = jnp.asarray(theta, float)
        except (TypeError, ValueError):
            raise ModelError(f"theta must be an array of numbers, got {theta!r}") from None
        size = len(self.names)
        if at.ndim not in dimensions or at.shape[-1] != size:
            shapes = {1: f"({size},)", 2: f"(s, {size})"}
            wanted = " or ".join(shapes[n] for n in dimensions)
            raise ModelError(
                f"theta needs the shape {wanted} for {listed(self.names, most=6)}; got {at.shape}"
            )
        if not isinstance(at, jax.core.Tracer) and not np.isfinite(np.asarray(at)).all():
            raise ModelError("theta must be finite; it holds NaN or infinity")
        return at

    def _apply(self, work: Callable[..., Any], theta: jax.Array, queries: Queries) -> Any:
        batch = self.map.batch(queries)
        bound = partial(work, self.map.program, theta)
        return in_pieces(bound, batch, len(queries), theta.ndim - 1)


def _like(theta: ArrayLike, found: Any) -> Any:
    """Return a JAX array where theta is one, NumPy otherwise."""
    return jnp.asarray(found) if isinstance(theta, jax.Array) else np.asarray(found)


def response(problem: Problem, post: Posterior) -> Response:
    """Return the map from theta and queries to effects, in the parameters of a posterior.

    Parameters
    ----------
    problem, post:
        A problem, and a posterior that was fitted for it.

    Returns
    -------
    Response
        `r(theta, queries)` and `r.jacobian(theta, queries)`, compiled once for each shape of
        problem.

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
            f"a response needs a Posterior, got {type(post).__name__}; make one with "
            "cb.fit(problem, data)"
        )
    if not isinstance(problem, Problem) or problem != post.problem:
        raise ModelError("this posterior is of another problem; fit this one, or pass post.problem")
    kept = post.__dict__.get("_response")  # kept with the posterior, which is immutable
    if isinstance(kept, Response):
        return kept
    made: Response = post.__dict__.setdefault("_response", Response(post))
    return made
