"""What would Y be under do(...), for given theta? A response map, checked, batched and linearized.

The linearization error is exact where equations are linear and independent. Reveal the equations
one by one, the target's first. Equation j then moves the effect of z by lambda_j(z) times the
deviation of its coefficients times the mean m(z) of its causes, and lambda_j, the target's
sensitivity to it, depends on the equations revealed before. Such steps are uncorrelated, so that
effects have the covariances

    k(z, z') = sum_j E[lambda_j lambda_j'] m(z)'C_j m(z'),

whatever the shape of the posteriors. Linearization puts the product of means for E[lambda_j
lambda_j']; its error is the same sum with Cov(lambda_j, lambda_j'), found without a difference. The
sensitivities depend on the sets alone. They follow backwards, node by node: b_i becomes b_i + W_ij
b_j where j is not set. With w_j and C_j the mean and covariance of the coefficients of equation j,
the sensitivities b and b' under two sets have covariances

    Cov(b_i, b'_k) + w_ij Cov(b_j, b'_k) + Cov(b_i, b'_j) w_kj + w_ij w_kj Cov(b_j, b'_j)
        + C_j[i, k] E[b_j b'_j]

after that step. It starts from nothing and adds; no difference is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.typing import ArrayLike

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.errors import ArgumentError, NumericalError, listed
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import apply_to_many, effects_of_draws
from causal_bo_ppl.inputs import as_key, offered, read_count, read_share, require_float64
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.base import (
    AveragedMap,
    BatchedProgram,
    Coefficients,
    CurvedMap,
    HessianBounds,
    ResponseMap,
    ResponseProgram,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import distinct_rows, labels

PAIRS_IN_CACHE = 512  # of sets: their (p, p) covariances stay in the processor's cache
REMAINDER_DRAWS = 512  # of theta, for the linearization error


@jax.jit
def _effects(program: ResponseProgram, theta: jax.Array, batch: Any) -> jax.Array:
    return program.effects(theta, batch)


@jax.jit
def _linearize(
    program: ResponseProgram, theta: jax.Array, batch: Any
) -> tuple[jax.Array, jax.Array]:
    return program.linearize(theta, batch)


@dataclass(frozen=True, eq=False)
class Response:
    """The function r(theta, queries) = E[Y | do(...)] of a batch of queries.

    It is made by `cb.response(post)`.

    NumPy arrays give NumPy arrays; a theta that is a JAX array gives JAX arrays, also within a
    trace.

    `r(theta, queries)`, `jacobian`, `standard_errors` and `hessian_bounds` refuse illegal
    interventions; the other methods are for batches that were checked before.
    """

    post: Posterior
    propagation: str | None = None
    is_rough: bool = False  # whether averages over fewer points suffice
    is_lean: bool = False  # whether coordinates of theta with negligible influence are dropped

    @cached_property
    def map(self) -> ResponseMap:
        """The response map of the posterior's parameters."""
        whole = propagated(self.post, self.propagation)
        if isinstance(whole, AveragedMap) and self.is_rough:
            whole = whole.with_fewer_points()
        if isinstance(whole, AveragedMap) and self.is_lean:
            whole = whole.without_negligible_terms(self.post.mean, self.post.sd)
        return whole

    @property
    def names(self) -> tuple[str, ...]:
        """Names of theta's coordinates."""
        return self.map.names

    def __call__(self, theta: ArrayLike, queries: Queries) -> Any:
        """Return effects (M,) at theta (d,), or (s, M) at several thetas (s, d)."""
        return self.effects(theta, self.post.problem.require(queries))

    def effects(self, theta: ArrayLike, queries: Queries) -> Any:
        """Return effects (M,) at theta (d,), or (s, M) at several, of legal interventions."""
        point, queries = self._read(theta, (1, 2)), self.post.as_queries(queries)
        if point.ndim == 1:
            return _like(theta, self._apply(_effects, point, queries))
        if not len(point):
            return _like(theta, np.zeros((0, len(queries))))
        if isinstance(point, jax.core.Tracer):
            return self._apply(apply_to_many, point, queries)
        return _like(theta, effects_of_draws(self.map, np.asarray(point), queries))

    def jacobian(self, theta: ArrayLike, queries: Queries) -> Any:
        """Return derivatives (M, d) of the effects in theta, at theta (d,)."""
        return self.linearize(theta, self.post.problem.require(queries))[1]

    def linearize(self, theta: ArrayLike, queries: Queries) -> tuple[Any, Any]:
        """Return effects (M,) and derivatives (M, d) at theta (d,), of legal interventions."""
        point, queries = self._read(theta, (1,)), self.post.as_queries(queries)
        values, jacobian = self._apply(_linearize, point, queries)
        return _like(theta, values), _like(theta, jacobian)

    def learned_upstream(self, queries: Queries) -> Queries:
        """Return legal queries cut to the target and its causes; refuse unlearned effects."""
        self.map.batch(queries)
        return self.post.upstream(queries)

    def standard_errors(self, theta: ArrayLike, queries: Queries) -> np.ndarray:
        """Return the numerical error of each effect at theta (d,), an array of shape (M,).

        It is that of an average over points, estimated from other points; 0 where effects are known
        in closed form.
        """
        point, queries = self._read(theta, (1,)), self.post.problem.require(queries)
        if isinstance(self.map, AveragedMap):
            return self.map.standard_errors(np.asarray(point), queries)
        self.map.batch(queries)
        return np.zeros(len(queries))

    def hessian_bounds(self, queries: Queries, *, level: float = 0.95) -> HessianBounds:
        """Bound the curvature of each effect in theta, as the operator norm of its Hessian.

        Global where the effect's degree in theta is 2 at most, local within the credible ellipsoid
        of `level` otherwise; NaN where the mechanisms have no bound.
        """
        level, queries = read_share("level", level), self.post.problem.require(queries)
        if isinstance(self.map, CurvedMap):
            return self.map.hessian_bounds(self.post.mean, self.post.sd, queries, level)
        self.map.batch(queries)
        unknown = np.full(len(queries), np.nan)
        return HessianBounds(unknown, np.zeros(len(queries), bool), level)

    def _read(self, theta: ArrayLike, dimensions: tuple[int, ...]) -> jax.Array:
        require_float64()
        try:
            point = jnp.asarray(theta, float)
        except (TypeError, ValueError):
            raise ArgumentError(f"theta must be an array of numbers, got {theta!r}") from None
        size = len(self.names)
        if point.ndim not in dimensions or point.shape[-1] != size:
            shapes = {1: f"({size},)", 2: f"(s, {size})"}
            wanted = " or ".join(shapes[n] for n in dimensions)
            names = listed(self.names, most=6)
            raise ArgumentError(f"theta needs the shape {wanted} for {names}; got {point.shape}")
        if not isinstance(point, jax.core.Tracer) and not np.isfinite(np.asarray(point)).all():
            raise ArgumentError("theta must be finite; it holds NaN or infinity")
        return point

    def _apply(self, work: Callable[..., Any], theta: jax.Array, queries: Queries) -> Any:
        batch, program = self.map.batch(queries), self.map.program
        pieces: tuple[Any, ...] = ()
        if isinstance(program, BatchedProgram) and not isinstance(theta, jax.core.Tracer):
            pieces = program.together, program.side_by_side
        bound = partial(work, program, theta)
        return in_pieces(bound, batch, len(queries), theta.ndim - 1, *pieces)


class Prediction(NamedTuple):
    """Mean (M,) and standard deviation (M,) of effects."""

    mean: np.ndarray
    sd: np.ndarray


def _like(theta: ArrayLike, array: Any) -> Any:
    """Return a JAX array where theta is one, NumPy otherwise."""
    return jnp.asarray(array) if isinstance(theta, jax.Array) else np.asarray(array)


def propagated(post: Posterior, propagation: str | None) -> ResponseMap:
    """Return the response map of a posterior, with noise averaged by a named method."""
    whole = post.distribution.response
    if propagation is None:
        return whole
    found = whole.propagate(propagation) if isinstance(whole, AveragedMap) else None
    if found is None:
        raise ArgumentError(
            f"effects of {post.mechanisms} mechanisms are not averaged over noise; omit "
            f"propagation={propagation!r}"
        )
    return found


def response(post: Posterior, *, propagation: str | None = None) -> Response:
    """Return the map from theta and queries to effects, in the parameters of a posterior.

    Parameters
    ----------
    post:
        The posterior whose parameters theta are.
    propagation:
        How effects of nonlinear mechanisms are averaged over noise: "qmc" (the default), over
        quasi-Monte-Carlo points; "sigma", over two points for the noise of each variable, which is
        faster and less accurate. `cb.diagnostics.compare_propagations` reports its errors.

    Returns
    -------
    Response
        `r(theta, queries)` and `r.jacobian(theta, queries)`, compiled once for each shape of
        problem.

    Raises
    ------
    ArgumentError
        If `post` is no posterior, or its effects are not averaged over noise.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> r = cb.response(post)
    >>> q = system.problem.queries([{"X": 2.0}, {"Z": 2.0}])
    >>> r([0.8, -1.3], q).round(4).tolist(), r.jacobian([0.8, -1.3], q).round(4).tolist()
    ([-2.08, -2.6], [[-2.6, 1.6], [0.0, 2.0]])
    """
    require_float64()
    if not isinstance(post, Posterior):
        raise ArgumentError(
            f"a response needs a Posterior, got {type(post).__name__}; make one with "
            "cb.fit(problem, data)"
        )
    if propagation is None:
        return post.cached("response", lambda: Response(post))
    propagated(post, propagation)  # refused at once
    return Response(post, propagation)


def response_to_draws(post: Posterior) -> Response:
    """Return the response of a posterior for draws of its theta: of what hardly varies, nothing.

    Coefficients that are negligible for all plausible theta are left out, which changes no effect
    by more than about 1e-9 of its posterior sd.
    """
    return post.cached("response to draws", lambda: Response(post, is_lean=True))


def require_finite_effects(
    post: Posterior, queries: Queries, values: np.ndarray, advice: str
) -> np.ndarray:
    """Return effects (M,) or (s, M) of a batch; refuse those that are not finite, with advice."""
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        index = int(np.argwhere(is_bad)[:, -1].min())
        where = (
            "" if values.ndim == 1 else f" in {int(is_bad[:, index].sum())} of {len(values)} draws"
        )
        [label] = labels(post.problem, queries[index])
        raise NumericalError(f"the effect of {label} is not finite{where}; {advice}")
    return values


def compare_propagations(post: Posterior, queries: Queries) -> pd.DataFrame:
    """Compare the methods that average effects over noise, on the same queries.

    Parameters
    ----------
    post:
        A posterior of mechanisms whose effects are averages, such as mechanisms="gp".
    queries:
        M interventions.

    Returns
    -------
    pd.DataFrame
        A row for every query: the effect at the posterior mean by "qmc", its `standard_error`, the
        effect by each other propagation with its `error` against "qmc", and the `sd` of the effect
        under the posterior, which errors are to be compared with.

    Raises
    ------
    ArgumentError
        If `post` is no posterior, or its effects are not averaged over noise.
    DomainError
        If an intervention is not one of the problem's.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> data = system.observe(60, 0)
    >>> post = cb.fit(system.problem, data, mechanisms=cb.GP(), method="laplace", key=0)
    >>> table = cb.diagnostics.compare_propagations(post, [{"X": 1.0}])
    >>> table.columns.tolist()
    ['qmc', 'standard_error', 'sigma', 'sigma_error', 'sd']
    """
    if not isinstance(post, Posterior):
        raise ArgumentError(f"propagations are compared for a Posterior, got {type(post).__name__}")
    base = response(post, propagation="qmc")
    queries = post.problem.require(queries)
    values, jacobian = base.linearize(post.mean, queries)
    columns = {"qmc": values, "standard_error": base.standard_errors(post.mean, queries)}
    for name in base.map.propagations if isinstance(base.map, AveragedMap) else ():
        if name != "qmc":
            other = response(post, propagation=name).effects(post.mean, queries)
            columns |= {name: other, f"{name}_error": other - values}
    columns["sd"] = np.linalg.norm(jacobian @ post.factor, axis=1)
    return pd.DataFrame(columns, index=pd.Index(labels(post.problem, queries), name="effect"))


def draw_theta(post: Posterior, draws: int, key: jax.Array | int) -> tuple[np.ndarray, int]:
    """Return draws of theta (S, d), chain after chain, and the number of chains.

    The number is 0 where the draws are independent.
    """
    count, chains = read_count("draws", draws, 2), post.distribution.chains
    if chains is not None:
        step = max(1, -(-chains[..., 0].size // count))
        return chains[:, ::step].reshape(-1, chains.shape[-1]), len(chains)
    theta = post.draws(count, as_key(key))
    undefined = int((~np.isfinite(theta)).any(axis=1).sum())
    if undefined:
        raise NumericalError(
            f"{undefined} of {len(theta)} draws by {post.method} have no value, so effects have no "
            "covariance; use post.quantiles, or more observations"
        )
    return theta, 0


def independent_coefficients(post: Posterior) -> Coefficients | None:
    """Return the moments of a posterior's independent equations; None where it has none."""
    offer = offered(post.distribution, "coefficients")
    return None if offer is None else offer()


def remainders(post: Posterior, queries: Queries) -> np.ndarray:
    """Return the variance of the linearization error of the effect of each legal query, (M,).

    It is exact where equations are independent, 0 where effects are linear in theta, and elsewhere
    the mean square of the remainders of draws.
    """
    effect, coefficients = response(post), independent_coefficients(post)
    if coefficients is not None:
        return remainder_variances(coefficients, effect.learned_upstream(queries))
    if effect.map.is_linear:
        return np.zeros(len(queries))
    theta = post.draws(REMAINDER_DRAWS, jax.random.key(0))
    values, jacobian = effect.linearize(post.mean, queries)
    missed = effect.effects(theta, queries) - values - (theta - post.mean) @ jacobian.T
    return np.asarray((missed**2).mean(axis=0))


def remainder_variances(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return exact less Jacobian variances (M,); queries are over the ancestral graph."""
    mask = np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    squares = (equation_moves(coefficients, queries) ** 2).sum(axis=2)
    shares = adjoint_covariances(coefficients, mask[first], mask[first])
    return np.asarray((shares[which] * squares).sum(axis=1))


def mean_adjoints(coefficients: Coefficients, mask: np.ndarray) -> np.ndarray:
    """Return the mean sensitivity of the target to each equation under sets (S, p), (S, p).

    The equations are independent, so that the mean of a product along a path is that of the means.
    """
    loads = adjoint_sweep(coefficients.mean[:-1], mask.T, mask.shape[1] - 1)
    return np.asarray(loads.T)


def adjoint_covariances(
    coefficients: Coefficients, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Return covariances (P, p) of the sensitivities under P pairs of sets, masks (P, p).

    That of a node is due to the equations after it; it is 0 where the node is set in either set.
    """
    covariances = np.zeros(left.T.shape)
    for start in range(0, len(left), PAIRS_IN_CACHE):
        part = slice(start, start + PAIRS_IN_CACHE)
        covariances[:, part] = _covariances(coefficients, left[part].T, right[part].T)
    return np.asarray(covariances.T)


def _covariances(coefficients: Coefficients, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return covariances (p, P) for masks (p, P): pairs come last and lie together in memory."""
    means = (mean_adjoints(coefficients, left.T) * mean_adjoints(coefficients, right.T)).T
    size, pairs = left.shape
    spread, own = np.zeros((size, size, pairs)), np.zeros((size, pairs))
    for node in reversed(range(size)):
        weights, root = coefficients.mean[:node, node], coefficients.roots[:node, node]
        own[node] = np.where(left[node] | right[node], 0.0, spread[node, node])
        parents = np.flatnonzero((weights != 0) | root.any(axis=1))
        ahead, behind = spread[node, :node] * ~left[node], spread[:node, node] * ~right[node]
        slopes, noise = weights[parents], root[parents] @ root[parents].T
        spread[parents, :node] += slopes[:, None, None] * ahead
        spread[:node, parents] += slopes[:, None] * behind[:, None]
        spread[parents[:, None], parents] += noise[..., None] * (own[node] + means[node])
        spread[parents[:, None], parents] += np.outer(slopes, slopes)[..., None] * own[node]
    return own


def equation_moves(coefficients: Coefficients, queries: Queries) -> np.ndarray:
    """Return the change of a node per sd in each direction of its equation, root'm, (M, p, D)."""
    mask, value = np.asarray(queries.mask).T, np.asarray(queries.value).T
    causes = forward_sweep(coefficients.mean, mask, value)
    return np.asarray(np.einsum("im,ijd->mjd", causes, coefficients.roots, optimize=True))
