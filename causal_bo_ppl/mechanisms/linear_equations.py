"""Linear structural equations: priors, regressions, moments, means after surgery and simulation.

    V = a + W'V + e,  e ~ N(0, Omega),

with W strictly upper triangular in topological order. Given complete observations the equations are
independent where no latent cause joins them: each is a regression on its parents, over the
observations in which its variable was not set. Prior and posterior of such an equation are
normal-inverse-gamma: s2 = Var e ~ IG(shape, rate), and given s2 its coefficients are N(centre, s2
precision^-1).

The vectors u = (regressors, response) of an equation enter as the triangular R with R'R = sum u u'.
A new observation changes R by Givens rotations, O(d^2); no cross product is formed, so no digits
are lost to the squares of large means.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from scipy.stats import norm
from scipy.stats import t as student

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DomainError, MechanismError, NumericalError, listed, unknown
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import (
    LARGEST_MAGNITUDE,
    LARGEST_SLOPE,
    SMALLEST_MAGNITUDE,
    as_float,
    host_generator,
    size_fault,
)
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep
from causal_bo_ppl.mechanisms.base import LOG_TWO_PI, Coefficients, ExpectedInformation, HeldOut
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import distinct_rows

MODELS_AT_ONCE = 64  # in one compiled program
OBSERVATIONS_PER_QR = 4_096
OBSERVATIONS_AT_ONCE = 16_384  # of a table that are copied at once


class LinearPrior:
    """Equality, hashing and JSON of the priors of linear mechanisms, which are dataclasses."""

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""

        def write(value: object) -> object:
            if isinstance(value, np.ndarray):
                return value.tobytes().hex()
            if isinstance(value, Mapping):
                return sorted((str(key), write(each)) for key, each in value.items())
            if isinstance(value, Sequence):
                return [write(each) for each in value]
            return float(value).hex()  # type: ignore[arg-type]

        values = [write(getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        return f"{type(self).__name__} {values}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LinearPrior) and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash(self.canonical())

    def to_json(self) -> str:
        """Return a JSON text that `from_json` reads back."""
        return json.dumps(prior_to_record(self))

    @staticmethod
    def from_json(text: str) -> "LinearPrior":
        """Return the prior of a JSON text that `to_json` wrote."""
        try:
            record = json.loads(text)
        except (TypeError, ValueError) as error:
            raise MechanismError(f"a prior is read from a JSON text: {error}") from None
        return prior_from_record(record)


@dataclass(frozen=True, eq=False)
class ScaledPrior(LinearPrior):
    """The default prior, scaled to the n observations, with the weight of m = `observations`.

    It moves a posterior by m / n, in any units.

    Where it is drawn from (`prior` and `prior_predictive` of `post.to_datatree()`,
    `cb.diagnostics.check_prior_predictive`, `cb.plots.draw_prior`), coefficients given s2 and the
    strengths of latent causes have the distributions below. The density of s2 is improper where m
    <= d and has no mean where m <= d + 2, so that 0.01 never suffices; s2 is then drawn from an
    inverse gamma with shape 2 and rate 2 times the variance of V_j, a guess of that variance with
    the weight of 4 observations, the default of `FixedPrior`. In the same way the covariance of
    moments is drawn from IW(k + 3, 4 times the diagonal of the sample covariance) where its prior
    has no mean. Posteriors are computed from the prior itself, never from what replaces it here.

    For equations it is Zellner's g-prior. Given s2 the slopes are N(0, s2 (n / m) (Xc'Xc)^-1), with
    Xc the centred parents; the mean of V_j at its parents' means is N(its sample mean, s2 / m); s2
    has the density of an inverse gamma with shape (m - d) / 2 and rate m / 2 times the variance of
    V_j, with d the number of coefficients. As m goes to 0 the posterior is the classical one,
    Student's t with n - d degrees of freedom.

    The strength t of a latent cause (`laplace`, `nuts`) is N(0, 1 / m); see
    `linear.correlation_factor`.

    For moments (`wishart`), kappa_0 = m and nu_0 = m - 1, centred at the sample mean, and Psi_0 is
    m times the diagonal of the sample covariance. As m goes to 0 this is Jeffreys' independent
    prior of mean and covariance. Under it a regression on all k - 1 other variables has n - 1
    degrees of freedom, not n - k: intervals are too narrow unless n >> k.

    Parameters
    ----------
    observations:
        The number of observations that have the weight of the prior, a positive number.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> data = system.observe(50, 0)
    >>> weak, strong = (
    ...     cb.fit(system.problem, data, prior=cb.priors.ScaledPrior(m)) for m in (0.01, 50)
    ... )
    >>> bool((abs(strong.mean[:1]) < abs(weak.mean[:1])).all())
    True
    """

    observations: float = 0.01

    def __post_init__(self) -> None:
        _read_size("observations", self.observations)


@dataclass(frozen=True, eq=False)
class FixedPrior(LinearPrior):
    """A proper prior that does not depend on the data: few observations, or none, are enough.

    Given s2, the slope of i in the equation of j is N(0, s2 (slope_sd / scale_i)^2), the mean of
    V_j at its parents' centres is N(centre_j, s2 intercept_sd^2), and s2 is IG(m / 2, m / 2 times
    (noise_sd scale_j)^2) with m = noise_observations: a guess of the sd of the noise with
    the weight of m observations.

    Parameters
    ----------
    slope_sd, intercept_sd, noise_sd:
        Without units: what has units is in `scales` and `centres`.
    noise_observations:
        More than 2, or s2 has no mean a priori; `math.inf` means that s2 is known.
    scales, centres:
        {variable: typical spread} and {variable: typical value}; 1 and 0 for variables that are not
        named.
    slopes:
        {(cause, effect): (mean, sd)} where more is known about a coefficient; sd at the guessed s2.
    latent_sd:
        Sd of the strength t of a latent cause, for `laplace` and `nuts`. In a district of two the
        correlation is t / sqrt(1 + t^2); for larger ones see `linear.correlation_factor`.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> prior = cb.priors.FixedPrior(slopes={("X", "Z"): (0.8, 0.01)})
    >>> post = cb.fit(system.problem, system.observe(5, 0), prior=prior)
    >>> post.mean.round(1).tolist()[0]
    0.8
    """

    slope_sd: float = 1.0
    intercept_sd: float = 1.0
    noise_sd: float = 1.0
    noise_observations: float = 4.0
    scales: Mapping[str, float] = field(default_factory=dict)
    centres: Mapping[str, float] = field(default_factory=dict)
    slopes: Mapping[Edge, tuple[float, float]] = field(default_factory=dict)
    latent_sd: float = 1.0

    def __post_init__(self) -> None:
        for name in ("slope_sd", "intercept_sd", "noise_sd", "latent_sd"):
            object.__setattr__(self, name, _read_size(name, getattr(self, name)))
        if not (
            2 < _number("noise_observations", self.noise_observations) <= LARGEST_MAGNITUDE
            or self.noise_observations == math.inf
        ):
            raise MechanismError(
                "noise_observations must be more than 2 and at most 1e50 (math.inf: known "
                f"variances), got "
                f"{self.noise_observations!r}"
            )
        object.__setattr__(self, "noise_observations", float(self.noise_observations))
        read = {
            "scales": lambda name, scale: _read_size(f"the scale of {name!r}", scale),
            "centres": lambda name, centre: _read_size(f"the centre of {name!r}", centre, 0.0),
            "slopes": _read_slope,
        }
        for field_name, reader in read.items():
            given = getattr(self, field_name)
            if not isinstance(given, Mapping):
                raise MechanismError(
                    f"{field_name} must be a mapping such as {{'X': 1.0}}, got {given!r}"
                )
            values = {name: reader(name, value) for name, value in given.items()}
            object.__setattr__(self, field_name, values)

    def require_fit(self, graph: CausalGraph, known: Mapping[Edge, float]) -> None:
        """Refuse names that the graph does not have, and slopes that are known."""
        for name in (*self.scales, *self.centres):
            if name not in graph.positions:
                raise MechanismError(f"the prior names an {unknown('variable', name, graph.nodes)}")
        for edge in self.slopes:
            if edge not in graph.directed:
                raise MechanismError(
                    f"the prior has a slope for {edge!r}, which is no edge of the graph"
                )
            if edge in known:
                raise MechanismError(
                    f"the coefficient of {' -> '.join(edge)} is known; it has no prior"
                )

    def noise_guess(self, node: str) -> float:
        """Return the guessed variance of the noise of a variable."""
        return (self.noise_sd * self.scales.get(node, 1.0)) ** 2

    def pseudo_observations(
        self, node: str, parents: tuple[str, ...], offset: float, intercept: bool
    ) -> np.ndarray:
        """Return pseudo-observations (regressors, response) that are equivalent to the prior.

        The sum of their squares is its quadratic form. offset: the contribution of known
        coefficients at the centres.
        """
        size = len(parents) + intercept
        vectors = np.zeros((size, size + 1))
        if intercept:
            centres = [self.centres.get(name, 0.0) for name in (*parents, node)]
            vectors[0] = [1.0, *centres[:-1], centres[-1] - offset]
            vectors[0] /= self.intercept_sd
        for position, parent in enumerate(parents, start=int(intercept)):
            mean, sd = self.slopes.get((parent, node), (0.0, None))
            if sd is None:
                ratio = self.scales.get(parent, 1.0) / self.slope_sd
            else:
                ratio = self.noise_guess(node) ** 0.5 / sd
            vectors[position, [position, -1]] = ratio, ratio * mean
        return vectors


@dataclass(frozen=True, eq=False)
class MomentPrior(LinearPrior):
    """The normal-inverse-Wishart prior of the observed moments, for `wishart`.

    The covariance is IW(nu, scale) and, given it, the mean is N(centre, covariance / kappa).

    Parameters
    ----------
    centre, scale:
        Arrays of shape (k,) and (k, k) over the target and its causes, in the graph's order.
    kappa:
        The number of observations that have the weight of the centre, a positive number.
    nu:
        Degrees of freedom, more than k + 1.

    Examples
    --------
    >>> import numpy as np
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> prior = cb.priors.MomentPrior(centre=np.zeros(3), kappa=1.0, scale=np.eye(3), nu=6.0)
    >>> cb.fit(system.problem, system.observe(50, 0), method="wishart", prior=prior).verdict
    'exact'
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    def __post_init__(self) -> None:
        try:
            centre, scale = np.array(self.centre, float), np.array(self.scale, float)
        except (TypeError, ValueError):
            raise MechanismError("centre and scale must be arrays of numbers") from None
        if centre.ndim != 1 or scale.shape != (len(centre), len(centre)):
            raise MechanismError(
                f"a moment prior needs centre (k,) and scale (k, k), got {centre.shape} and "
                f"{scale.shape}"
            )
        _read_size("kappa", self.kappa)
        if not len(centre) + 1 < _number("nu", self.nu) <= LARGEST_MAGNITUDE:
            raise MechanismError(
                f"nu must be finite and more than k + 1 = {len(centre) + 1}, got {self.nu!r}"
            )
        sd = np.sqrt(np.abs(np.diagonal(scale)))
        for k, (middle, size) in enumerate(zip(centre.tolist(), sd.tolist(), strict=True)):
            _read_size(f"centre[{k}]", middle, 0.0)
            _read_size(f"the root of scale[{k}, {k}]", size)
        is_symmetric = (np.abs(scale - scale.T) <= 1e-9 * np.outer(sd, sd)).all()  # NaN fails
        if not (is_symmetric and (np.linalg.eigvalsh(scale / np.outer(sd, sd)) > 0).all()):
            raise MechanismError("scale must be symmetric and positive definite")
        for name, array in (("centre", centre), ("scale", (scale + scale.T) / 2)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)


DRAWN_WEIGHT = 4.0  # observations behind a variance that is drawn for one without a prior mean


def replaced_note(prior: ScaledPrior, names: Sequence[str]) -> str:
    """Return how draws differ from the prior where the variances of `names` have no prior mean.

    It is an empty text where no variance was replaced.
    """
    if not names:
        return ""
    return (
        f"under {type(prior).__name__}(observations={prior.observations:g}) the variances of the "
        f"noise of {listed(names)} have no mean, or are improper: they are drawn as if guessed "
        f"from the data with the weight of {DRAWN_WEIGHT:g} observations; all else is drawn from "
        "the prior itself"
    )


PRIORS = {kind.__name__: kind for kind in (ScaledPrior, FixedPrior, MomentPrior)}


def _read_slope(edge: object, distribution: Any) -> tuple[float, float]:
    try:
        mean, sd = distribution
    except (TypeError, ValueError):
        raise MechanismError(
            f"the prior of the slope {edge!r} is a pair (mean, sd), got {distribution!r}"
        ) from None
    mean = _read_size(f"the prior mean of the slope {edge!r}", mean, 0.0, LARGEST_SLOPE)
    return mean, _read_size(
        f"the prior sd of the slope {edge!r}", sd, 1 / LARGEST_SLOPE, LARGEST_SLOPE
    )


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise MechanismError(f"{name} must be a number, got {value!r}")
    return as_float(value)


def _read_size(
    name: str, value: object, least: float = SMALLEST_MAGNITUDE, most: float = LARGEST_MAGNITUDE
) -> float:
    """Return a finite number of a size whose squares neither overflow nor underflow.

    It must be positive unless `least` is 0.
    """
    number = _number(name, value)
    if not math.isfinite(number) or (least > 0 and number <= 0):
        wanted = "a positive number" if least > 0 else "finite"
        raise MechanismError(f"{name} must be {wanted}, got {value!r}")
    fault = size_fault(abs(number), least, most)
    if fault:
        raise MechanismError(f"{name} has the size {fault}")
    return number


def prior_to_record(prior: object) -> dict[str, object]:
    """Return a prior as a dictionary that JSON can hold.

    Infinity is written as a text, and a mapping as a list of pairs.
    """
    if not isinstance(prior, LinearPrior):
        raise MechanismError(f"a user-defined prior cannot be written as JSON; got {prior!r}")

    def write(value: Any) -> object:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, Mapping):
            return [list(pair) for pair in value.items()]
        return "inf" if value == math.inf else value

    parts = asdict(prior)  # type: ignore[call-overload]
    return {"prior": type(prior).__name__} | {name: write(part) for name, part in parts.items()}


def prior_from_record(record: object) -> LinearPrior:
    """Return the prior of such a dictionary; raises MechanismError for anything else."""
    if not isinstance(record, dict) or record.get("prior") not in PRIORS:
        raise MechanismError(f"a prior is one of {', '.join(PRIORS)}; got {record!r}")
    kind: type[LinearPrior] = PRIORS[record["prior"]]
    parts = {name: part for name, part in record.items() if name != "prior"}
    try:
        for name in {"scales", "centres", "slopes"} & set(parts):
            pairs = [(tuple(key) if isinstance(key, list) else key, v) for key, v in parts[name]]
            parts[name] = {key: tuple(v) if isinstance(v, list) else v for key, v in pairs}
        parts |= {name: math.inf for name, part in parts.items() if part == "inf"}
        return kind(**parts)
    except (TypeError, ValueError) as error:
        if isinstance(error, MechanismError):
            raise
        raise MechanismError(f"the parts of a {kind.__name__} cannot be read: {error}") from None


class LinearSEM(NamedTuple):
    """Parameters of one linear structural equation model, in topological order.

    weights: (p, p); weights[i, j] is the coefficient of V_i in the equation of V_j.
    intercepts: (p,). noise: (p, p) covariance of the noise e.
    """

    weights: jax.Array
    intercepts: jax.Array
    noise: jax.Array


class Models(NamedTuple):
    """Draws of whole models.

    matrices: (n, p + 1, p) coefficients, the last row being intercepts. noises: (n, p, p).
    """

    matrices: np.ndarray
    noises: np.ndarray


def known_matrix(graph: CausalGraph, known: Mapping[Edge, float]) -> np.ndarray:
    """Return the known coefficients as a (p + 1, p) matrix, 0 elsewhere and for intercepts."""
    matrix = np.zeros((len(graph.nodes) + 1, len(graph.nodes)))
    for cause, effect in known:
        if cause in graph.nodes and effect in graph.nodes:
            matrix[graph.index(cause), graph.index(effect)] = known[cause, effect]
    return matrix


def implied_mean(sem: LinearSEM) -> jax.Array:
    """Return the observational mean (I - W')^-1 a, of shape (p,)."""
    return solve_triangular(_unit_lower(sem), sem.intercepts, lower=True, unit_diagonal=True)


def implied_covariance(sem: LinearSEM) -> jax.Array:
    """Return the observational covariance (I - W')^-1 Omega (I - W)^-1, of shape (p, p)."""
    left = solve_triangular(_unit_lower(sem), sem.noise, lower=True, unit_diagonal=True)
    return solve_triangular(_unit_lower(sem), left.T, lower=True, unit_diagonal=True)


def _unit_lower(sem: LinearSEM) -> jax.Array:
    return jnp.eye(len(sem.intercepts)) - sem.weights.T


@jax.jit
def mutilated_means(sem: LinearSEM, queries: Queries) -> jax.Array:
    """Return the mean of every variable under each intervention, of shape (M, p)."""
    matrix = jnp.concatenate([sem.weights, sem.intercepts[None]])
    mask, value = jnp.asarray(queries.mask).T, jnp.asarray(queries.value).T
    means: jax.Array = forward_sweep(matrix, mask, value)
    return means[:-1].T


@jax.jit
def total_effects(sem: LinearSEM, mask: jax.Array) -> jax.Array:
    """Return the effect of a unit shock to equation j on the mean of k, of shape (M, p, p).

    It is 0 where j or k is set. One forward sweep without intercepts has p columns for each of the
    M sets, with one shock in each.
    """
    count, size = mask.shape
    matrix = jnp.concatenate([sem.weights, jnp.zeros((1, size))])
    sets = jnp.repeat(jnp.asarray(mask).T, size, axis=1)
    shocks = jnp.tile(jnp.eye(size), count)
    effects: jax.Array = forward_sweep(matrix, sets, jnp.zeros(sets.shape), shocks)
    return effects[:-1].reshape(size, count, size).transpose(1, 2, 0)


@jax.jit
def _loads(weights: jax.Array, mask: jax.Array) -> jax.Array:
    loads: jax.Array = adjoint_sweep(weights, jnp.asarray(mask).T, mask.shape[1] - 1)
    return loads.T


def outcome_variances(
    matrix: np.ndarray, noise: np.ndarray, learned: np.ndarray, queries: Queries
) -> np.ndarray:
    """Return the variance l' Omega l of one outcome under each of M queries, of shape (M,).

    Parameters
    ----------
    matrix, noise:
        The model: coefficients (p + 1, p) and covariance of the noise (p, p).
    learned:
        Whose equations are known, of shape (p,); a query that depends on another is refused.
    queries:
        Interventions on the p variables, of which the target is the last.
    """
    sweep = partial(_loads, jnp.asarray(matrix[:-1]))
    loads = np.asarray(in_pieces(sweep, np.asarray(queries.mask), len(queries)))
    if loads[:, ~learned].any():
        raise DomainError(
            "a query needs an equation that no set of the problem uses, so it was not fitted"
        )
    safe = np.where(np.outer(learned, learned), noise, 0.0)
    return np.asarray(((loads @ safe) * loads).sum(axis=1))


def second_moments(matrix: np.ndarray, noise: np.ndarray, queries: Queries) -> np.ndarray:
    """Return E[v v'] of v = (variables, 1) under each of M queries, (M, p + 1, p + 1).

    matrix, noise: the model: coefficients (p + 1, p) and covariance of the noise (p, p).
    """
    model = LinearSEM(jnp.asarray(matrix[:-1]), jnp.asarray(matrix[-1]), jnp.asarray(noise))
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    means = in_pieces(partial(mutilated_means, model), Queries(mask, value), len(mask))
    means = np.column_stack([np.asarray(means), np.ones(len(mask))])
    first, which = distinct_rows(mask)
    moved = np.asarray(in_pieces(partial(total_effects, model), mask[first], len(first)))
    moments = np.asarray(means[:, :, None] * means[:, None, :])
    moments[:, :-1, :-1] += (np.swapaxes(moved, 1, 2) @ noise @ moved)[which]
    return moments


def outcome_densities(models: Models, queries: Queries, outcomes: np.ndarray) -> np.ndarray:
    """Return the log density of each of m outcomes under each of n models, of shape (n, m)."""
    chunks = zip(*map(_chunks, models), strict=True)
    densities = [np.asarray(_densities(*chunk, queries, outcomes)) for chunk in chunks]
    return np.concatenate(densities)[: len(models.noises)]


def _chunks(part: np.ndarray) -> list[np.ndarray]:
    """Cut an array into equal parts, the last one filled up with copies: one program does."""
    whole = np.concatenate([part, np.repeat(part[-1:], -len(part) % MODELS_AT_ONCE, axis=0)])
    return np.split(whole, len(whole) // MODELS_AT_ONCE)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, None, None))
def _densities(
    matrix: jax.Array, noise: jax.Array, queries: Queries, outcomes: jax.Array
) -> jax.Array:
    loads = _loads(matrix[:-1], jnp.asarray(queries.mask))
    variance = ((loads @ noise) * loads).sum(axis=1)
    sem = LinearSEM(matrix[:-1], matrix[-1], noise)
    gaps = outcomes - mutilated_means(sem, queries)[:, -1]
    densities: jax.Array = -0.5 * (gaps**2 / variance + jnp.log(2 * jnp.pi * variance))
    return densities


class LinearObservations:
    """Density and simulation of observations under draws of linear models; see `base.Model`.

    graph: the target's ancestral graph, with p variables.
    """

    graph: CausalGraph

    @property
    def nodes(self) -> tuple[str, ...]:
        """The causes of the target and, last, the target."""
        return self.graph.nodes

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable is Gaussian with one sd, (p,): all are."""
        return np.ones(len(self.nodes), bool)

    def scales(self, draws: Models) -> np.ndarray:
        """Return the sds (s, p) of the noise of all variables."""
        return np.asarray(np.sqrt(np.diagonal(draws.noises, axis1=1, axis2=2)))

    def disturbances(self, draws: Models, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (s, n) of one variable at observations (s or 1, n, p) of s models."""
        weights = draws.matrices[:, :, position]
        mean = (values @ weights[:, :-1, None])[..., 0] + weights[:, -1:]
        return np.asarray(values[:, :, position] - mean)

    def log_densities(self, draws: Models, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes and the noise before it.

        The shape is (s, n, p) for s models and observations (n, p); 0 where a variable was set.
        """
        errors = values - np.column_stack([values, np.ones(len(values))]) @ draws.matrices
        scales = np.ones((len(draws.matrices), *values.shape))
        first, which = distinct_rows(free)
        for group, pattern in enumerate(free[first]):
            members = which == group
            covariance = np.where(np.outer(pattern, pattern), draws.noises, np.eye(len(pattern)))
            root = np.linalg.cholesky(covariance)
            part = np.swapaxes(errors[:, members] * pattern, 1, 2)
            errors[:, members] = np.swapaxes(np.linalg.solve(root, part), 1, 2)
            scales[:, members] = np.diagonal(root, axis1=1, axis2=2)[:, None, :]
        logs = -0.5 * errors**2 - np.log(scales) - 0.5 * LOG_TWO_PI
        return np.asarray(np.where(free, logs, 0.0))

    def replicate(self, draws: Models, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw new observations (s, n, p) of s models, one under each of n queries."""
        standard = host_generator(key).standard_normal((len(draws.matrices), *queries.mask.shape))
        roots = np.swapaxes(np.linalg.cholesky(draws.noises), 1, 2)
        noise = np.swapaxes(standard @ roots, 1, 2)
        mask, value = np.asarray(queries.mask).T, np.asarray(queries.value).T
        values = forward_sweep(draws.matrices, mask, value, noise)
        return np.asarray(np.swapaxes(values[:, :-1], 1, 2))


class ThetaReader(NamedTuple):
    """How theta is read off the coefficients of one model.

    positions: rows and columns of coefficients, (d,) each; None where the coordinates are means of
    the variables `effects` (d,) under queries over the p nodes: then is_intercept (d,) marks those
    that are not centred.
    """

    positions: tuple[np.ndarray, np.ndarray] | None
    queries: Queries | None
    is_intercept: np.ndarray | None
    effects: np.ndarray | None = None


def read_theta(reader: ThetaReader, matrix: jax.Array) -> jax.Array:
    """Return theta (d,) of a model (p + 1, p); traceable."""
    if reader.positions is not None:
        return matrix[reader.positions]
    assert reader.queries is not None and reader.effects is not None  # noqa: S101
    mask, value = jnp.asarray(reader.queries.mask).T, jnp.asarray(reader.queries.value).T
    centred = forward_sweep(matrix.at[-1].set(0.0), mask, value)
    means = jnp.where(jnp.asarray(reader.is_intercept), forward_sweep(matrix, mask, value), centred)
    return means[jnp.asarray(reader.effects), np.arange(mask.shape[1])]


class RegressionStatistics(NamedTuple):
    """Sufficient statistics of E equations, padded to D regressors.

    factor: (E, D + 1, D + 1) upper triangular; column D is the response. counts: (E,) observations.
    """

    factor: np.ndarray
    counts: np.ndarray


class PriorTerms(NamedTuple):
    """The prior: given s2 the coefficients b have density exp(-|half b - pull|^2 / 2 s2).

    half: (E, D, D). pull: (E, D). shape, rate: (E,) of s2 ~ IG. fixed: (p + 1, p) known
    coefficients. latent: precision of the strengths of latent causes.
    """

    half: np.ndarray
    pull: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    fixed: np.ndarray
    latent: np.ndarray


class NormalInverseGamma(NamedTuple):
    """Posteriors of E equations: s2 ~ IG(shape, rate), and coefficients N(mean, s2 root root').

    mean: (E, D). root: (E, D, D), zero where padded. shape, rate: (E,) each; the shape is infinite
    where s2 is known. variance: the mean of s2, (E,).
    """

    mean: np.ndarray
    root: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    variance: np.ndarray


def compress_data(data: Data, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return fewer vectors (variables, 1) with the cross products of the data in some columns.

    Those with the same free variables become a triangular factor. The results have the shapes
    (m, p + 1) and (m, p). Blocks are added one after another, so that the data are not copied.
    """
    whole, free = np.empty((0, len(columns) + 1)), np.empty((0, len(columns)), bool)
    for start in range(0, len(data), OBSERVATIONS_AT_ONCE):
        block = slice(start, start + OBSERVATIONS_AT_ONCE)
        values, fixed = data.values[block][:, columns], data.intervened[block][:, columns]
        whole = np.concatenate([whole, np.column_stack([values, np.ones(len(values))])])
        free = np.concatenate([free, ~fixed])
        first, which = distinct_rows(free)
        parts = [_compress(whole[which == group]) for group in range(len(first))]
        whole, free = np.concatenate(parts), np.repeat(free[first], list(map(len, parts)), axis=0)
    return whole, free


def _compress(vectors: np.ndarray) -> np.ndarray:
    is_long = len(vectors) > vectors.shape[1]
    return np.asarray(np.linalg.qr(vectors, mode="r")) if is_long else vectors


def absorb(
    statistics: RegressionStatistics, vectors: np.ndarray, counts: np.ndarray
) -> RegressionStatistics:
    """Add vectors (n, E, D + 1), zero where they do not count for an equation.

    counts: how many observations count for each equation, of shape (E,).
    """
    factor = statistics.factor
    if len(vectors) < factor.shape[-1]:
        for vector in vectors:
            factor = rotate(factor, vector)
    else:
        for start in range(0, len(vectors), OBSERVATIONS_PER_QR):
            block = np.swapaxes(vectors[start : start + OBSERVATIONS_PER_QR], 0, 1)
            factor = np.asarray(np.linalg.qr(np.concatenate([factor, block], axis=1), mode="r"))
    return RegressionStatistics(factor, statistics.counts + counts)


def rotate(factor: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the factors (E, k, k) after one more vector each, an array of shape (E, k).

    Givens rotations do so in O(k^2) for each equation.
    """
    factor, vector = factor.copy(), vector.copy()
    for k in range(vector.shape[-1]):
        length = np.hypot(factor[:, k, k], vector[:, k])
        turns = length > 0
        safe = np.where(turns, length, 1.0)
        cosine = np.where(turns, factor[:, k, k] / safe, 1.0)[:, None]
        sine = np.where(turns, vector[:, k] / safe, 0.0)[:, None]
        upper, lower = factor[:, k, k:], vector[:, k:]
        rotated = cosine * upper + sine * lower, cosine * lower - sine * upper
        factor[:, k, k:], vector[:, k:] = rotated
    return factor


def solve_scaled(
    statistics: RegressionStatistics, used: np.ndarray, intercept: bool, weight: float
) -> NormalInverseGamma:
    """Return the posteriors under the g-prior with the weight of so many observations.

    used: which regressors exist, of shape (E, D).
    """
    root, pulls, unexplained = _split(statistics, used)
    count = np.maximum(statistics.counts, 1)
    shrinkage = 1 / (1 + weight / count)
    is_slope = np.arange(used.shape[1]) >= intercept  # the sample mean is the prior's centre
    explained = (pulls[:, is_slope] ** 2).sum(axis=1)
    shrunk = np.where(is_slope, shrinkage[:, None], 1.0) * pulls
    shape = (weight + count - used.sum(axis=1)) / 2  # a degree of freedom for every coefficient
    prior_rate = weight * (unexplained + explained) / count
    rate = (prior_rate + unexplained + explained * (1 - shrinkage)) / 2
    mean, root = (root @ shrunk[..., None])[..., 0], root * np.sqrt(shrinkage)[:, None, None]
    return NormalInverseGamma(mean, root, shape, rate, rate / (shape - 1))


def scaled_prior(
    statistics: RegressionStatistics, used: np.ndarray, intercept: bool, weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the g-prior itself, as four arrays.

    They are half (E, D, D) and pull (E, D) of |half b - pull|^2 / s2, and shape (E,) and rate (E,)
    of s2.
    """
    _, pulls, unexplained = _split(statistics, used)
    width, count = used.shape[1], np.maximum(statistics.counts, 1)
    share, is_slope = np.sqrt(weight / count), np.arange(width) >= intercept
    half = share[:, None, None] * statistics.factor[:, :width, :width]
    pull = share[:, None] * np.where(is_slope, 0.0, pulls)
    rate = weight * (unexplained + (pulls[:, is_slope] ** 2).sum(axis=1)) / count / 2
    return half * used[:, None, :] * used[:, :, None], pull, (weight - used.sum(axis=1)) / 2, rate


def solve_fixed(
    statistics: RegressionStatistics, used: np.ndarray, guess: np.ndarray, weight: float
) -> NormalInverseGamma:
    """Return the posteriors under a fixed prior.

    The prior's pseudo-observations are in the factor but not counted. guess: guessed variances
    (E,), with the weight of so many observations.
    """
    root, pulls, unexplained = _split(statistics, used)
    mean = (root @ pulls[..., None])[..., 0]
    if np.isinf(weight):
        infinite = np.full(len(guess), np.inf)
        return NormalInverseGamma(mean, root, infinite, infinite, guess)
    shape, rate = (weight + statistics.counts) / 2, (weight * guess + unexplained) / 2
    return NormalInverseGamma(mean, root, shape, rate, rate / (shape - 1))


def _split(
    statistics: RegressionStatistics, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R_xx^-1, the response in its coordinates, and the unexplained sum of squares.

    They are zero where the equations are padded.
    """
    factor, width = statistics.factor, used.shape[1]
    responses = factor[:, :width, width]
    square = factor[:, :width, :width] + np.eye(width) * ~used[:, None, :]
    inverse = np.linalg.inv(square) * used[:, None, :] * used[:, :, None]
    unexplained = factor[:, width, width] ** 2 + (responses**2 * ~used).sum(axis=1)
    return inverse, responses * used, unexplained


def draw_equations(
    posterior: NormalInverseGamma, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Draw coefficients (n, E, D) and variances (n, E), independently and exactly."""
    generator = host_generator(key)
    shape = np.where(np.isinf(posterior.shape), 1.0, posterior.shape)
    gamma = generator.standard_gamma(shape, (n, len(shape)))
    noise = np.where(np.isinf(posterior.shape), posterior.variance, posterior.rate / gamma)
    noise = np.where(np.isfinite(noise), noise, 1.0)  # of equations that are not learned
    standard = generator.standard_normal((n, *posterior.mean.shape))
    spread = np.einsum("ekl,nel->nek", posterior.root, standard)
    return posterior.mean + np.sqrt(noise)[..., None] * spread, noise


@dataclass(frozen=True, eq=False)
class Equations:
    """Normal-inverse-gamma posteriors of all equations of an ancestral graph, the target last.

    needed: (p,), whether some effect depends on the equation or on one of its district; the others
    are not learned. statistics: those of the observations.
    """

    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    needed: np.ndarray
    statistics: RegressionStatistics

    @cached_property
    def free_parents(self) -> tuple[tuple[str, ...], ...]:
        """The parents of each variable whose coefficients are unknown."""
        return tuple(
            tuple(parent for parent in self.graph.parents(node) if (parent, node) not in self.known)
            for node in self.graph.nodes
        )

    @cached_property
    def causes(self) -> np.ndarray:
        """Positions of the regressors, of shape (p, D): p for the constant 1, -1 for padding."""
        constant = [len(self.graph.nodes)] if self.intercepts else []
        causes = [
            constant + [self.graph.index(name) for name in parents] if is_needed else []
            for parents, is_needed in zip(self.free_parents, self.needed, strict=True)
        ]
        width = max(map(len, causes))
        padded = [each + [-1] * (width - len(each)) for each in causes]
        return np.array(padded, int).reshape(len(causes), width)

    @cached_property
    def posterior(self) -> NormalInverseGamma:
        """The posterior of every equation; one that is not needed has no variance."""
        used = self.causes >= 0
        if isinstance(self.prior, ScaledPrior):
            solved = solve_scaled(self.statistics, used, self.intercepts, self.prior.observations)
        else:
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            solved = solve_fixed(self.statistics, used, guess, self.prior.noise_observations)
        shape = np.where(self.needed, solved.shape, 1.0)
        return solved._replace(shape=shape, variance=np.where(self.needed, solved.variance, np.nan))

    @property
    def has_known_noise(self) -> bool:
        """Whether the variances are known by the prior."""
        return isinstance(self.prior, FixedPrior) and bool(np.isinf(self.prior.noise_observations))

    @cached_property
    def prior_terms(self) -> PriorTerms:
        """The prior as the density takes it."""
        if isinstance(self.prior, ScaledPrior):
            used, latent = self.causes >= 0, self.prior.observations
            parts = scaled_prior(self.statistics, used, self.intercepts, self.prior.observations)
        else:
            latent = self.prior.latent_sd**-2
            pseudo = np.swapaxes(self.pseudo_observations(self.prior), 0, 1)
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            weight = 0.0 if self.has_known_noise else self.prior.noise_observations
            shape = np.full(len(guess), weight / 2)
            parts = pseudo[..., :-1], pseudo[..., -1], shape, weight * guess / 2
        half, pull, shape, rate = (part[self.needed] for part in parts)
        return PriorTerms(half, pull, shape, rate, self.fixed, np.asarray(latent))

    @cached_property
    def fixed(self) -> np.ndarray:
        """Known coefficients, of shape (p + 1, p); the last row holds the intercepts."""
        return known_matrix(self.graph, self.known)

    def position(self, coefficients: np.ndarray) -> np.ndarray:
        """Return coefficients (..., p, D) as matrices (..., p + 1, p), known ones added."""
        used = self.causes >= 0
        shape = (*coefficients.shape[:-2], *self.fixed.shape)
        matrices = np.broadcast_to(self.fixed, shape).copy()
        matrices[..., self.causes[used], np.nonzero(used)[0]] = coefficients[..., used]
        return matrices

    @cached_property
    def coefficients(self) -> Coefficients:
        """Mean and covariance roots of the coefficients of each equation."""
        mean = self.position(self.posterior.mean)
        roots = np.zeros((*mean.shape, self.causes.shape[1]))
        for node, causes in enumerate(self.causes):
            used = causes >= 0
            if used.any():
                root = np.sqrt(self.posterior.variance[node]) * self.posterior.root[node]
                roots[causes[used], node] = root[used]
        return Coefficients(mean, roots)

    @cached_property
    def at_mean(self) -> Models:
        """The one model at the posterior means; sd 1 where an equation is not learned."""
        noise = np.diag(np.where(self.needed, self.posterior.variance, 1.0))
        return Models(self.coefficients.mean[None], noise[None])

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the posterior means."""
        [matrix], [noise] = self.at_mean
        return outcome_variances(matrix, noise, self.needed, queries)

    @cached_property
    def directions(self) -> np.ndarray:
        """A root of the covariance of all coefficients, of shape (p + 1, p, K).

        Coefficients are their means plus this times K standard normals, of which each equation has
        its own.
        """
        size, width = self.causes.shape
        moves = np.zeros((size + 1, size, size, width))
        for node in range(size):
            moves[:, node, node] = self.coefficients.roots[:, node]
        return moves.reshape(size + 1, size, size * width)[..., (self.causes >= 0).ravel()]

    def expected_information(self, queries: Queries) -> ExpectedInformation:
        """Return the expected information of one observation of each of M queries.

        About the K standard normals of `directions` it is root' E[u u'] root for an equation with
        regressors u, zero for one that is set, or whose causes are not all set or learned, and zero
        between equations.
        """
        mask, size = np.asarray(queries.mask), len(self.graph.nodes)
        models = self.at_mean
        moments = second_moments(models.matrices[0], models.noises[0], queries)
        known = np.ones((len(mask), size), bool)
        for node, parents in enumerate(map(self.graph.parents, self.graph.nodes)):
            causes = known[:, [self.graph.index(name) for name in parents]].all(axis=1)
            known[:, node] = mask[:, node] | (causes & self.needed[node])
        blocks = np.zeros((len(mask), *self.causes.shape, self.causes.shape[1]))
        for node, causes in enumerate(self.causes):
            used = causes[causes >= 0]
            root = self.posterior.root[node][: len(used), : len(used)]
            information = root.T @ moments[:, used[:, None], used] @ root
            is_informed = known[:, node] & ~mask[:, node]
            blocks[:, node, : len(used), : len(used)] = information * is_informed[:, None, None]
        used = self.causes >= 0
        positions = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
        return ExpectedInformation(blocks, positions)

    def draw(self, n: int, key: jax.Array) -> tuple[Models, np.ndarray]:
        """Draw n models exactly, with their log prior (n,) up to a constant."""
        coefficients, variances = draw_equations(self.posterior, n, key)
        variances = np.where(self.needed, variances, 1.0)
        noises = variances[:, :, None] * np.eye(len(self.graph.nodes))
        half, pull, shape, rate, *_ = self.prior_terms
        inside, spread = coefficients[:, self.needed], variances[:, self.needed]
        misfit = ((np.einsum("ekl,nel->nek", half, inside) - pull) ** 2).sum(axis=-1)
        count = (self.causes[self.needed] >= 0).sum(axis=1)
        log_prior = -0.5 * misfit / spread - 0.5 * count * np.log(spread)
        if not self.has_known_noise:
            log_prior = log_prior - (shape + 1) * np.log(spread) - rate / spread
        return Models(self.position(coefficients), noises), log_prior.sum(axis=1)

    @property
    def has_prior_mean(self) -> np.ndarray:
        """Whether the variance of each learned equation has a mean a priori, of shape (E,)."""
        return np.asarray((self.prior_terms.shape > 1) | self.has_known_noise)

    def draw_prior(self, n: int, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        """Draw matrices (n, p + 1, p) and variances (n, p) from a prior scaled to the data.

        A variance without a prior mean is drawn as `ScaledPrior` says.
        """
        half, pull, shape, rate, _, latent = self.prior_terms
        generator, used = host_generator(key), (self.causes >= 0)[self.needed]
        signs = np.where(np.diagonal(half, axis1=1, axis2=2) < 0, -1.0, 1.0)  # QR leaves them open
        half, pull = half * signs[..., None], pull * signs
        guess = np.where(self.has_prior_mean, shape, DRAWN_WEIGHT / 2)
        rate = np.where(self.has_prior_mean, rate, rate * DRAWN_WEIGHT / latent)
        noise = rate / generator.standard_gamma(guess, (n, len(guess)))
        standard = generator.standard_normal((n, *used.shape))
        moved = np.linalg.inv(half + np.eye(used.shape[1]) * ~used[:, None, :])
        inside = np.einsum("ekl,nel->nek", moved, pull + np.sqrt(noise)[..., None] * standard)
        coefficients = np.zeros((n, *self.causes.shape))
        coefficients[:, self.needed] = inside
        variances = np.ones((n, len(self.needed)))
        variances[:, self.needed] = noise
        return self.position(coefficients), variances

    def log_student(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the log density of coefficients (n, p, D), up to a constant, of shape (n,)."""
        solved, used = self.posterior, (self.causes >= 0)[self.needed]
        gaps = (coefficients - solved.mean)[:, self.needed]
        padded = solved.root[self.needed] + np.eye(used.shape[1]) * ~used[:, None, :]
        square = (np.einsum("ekl,nel->nek", np.linalg.inv(padded), gaps) ** 2).sum(axis=-1)
        shape, rate = solved.shape[self.needed], solved.rate[self.needed]
        if self.has_known_noise:
            return np.asarray(-0.5 * (square / solved.variance[self.needed]).sum(axis=1))
        power = shape + used.sum(axis=1) / 2
        return np.asarray(-(power * np.log1p(square / (2 * rate))).sum(axis=1))

    def held_out(self, values: np.ndarray, free: np.ndarray) -> dict[str, HeldOut]:
        """Hold out every observation of every equation, exactly.

        values, free: all observations (n, p) that were learned from, and which inform an equation.
        With the leverage h = x'Vx and the residual r of an observation, the posterior without it
        has the shape a - 1/2 and the rate b - r^2 / 2(1 - h), and predicts it by Student's t around
        r / (1 - h) with the variance inflated by 1 / (1 - h). Importance weights that would leave
        it out have moments up to the order 1 / k, k = h + r^2 / 2b.
        """
        whole, solved, found = np.column_stack([values, np.ones(len(values))]), self.posterior, {}
        means = whole @ self.coefficients.mean
        for node, name in enumerate(self.graph.nodes):
            rows, used = np.flatnonzero(free[:, node]), self.causes[node] >= 0
            if not len(rows):
                continue
            inputs = whole[np.ix_(rows, self.causes[node][used])]
            leverage = ((inputs @ solved.root[node][used]) ** 2).sum(axis=1)
            kept = np.maximum(1 - leverage, np.finfo(float).eps)
            residual = values[rows, node] - means[rows, node]
            shape, rate = solved.shape[node], solved.rate[node]
            if np.isinf(shape):
                sd, k = np.sqrt(solved.variance[node]), leverage
                without = norm.logpdf(residual / kept, scale=sd / np.sqrt(kept))
                together = norm.logpdf(residual, scale=sd * np.sqrt(1 + leverage))
            else:
                k = leverage + residual**2 / (2 * rate)
                rest = np.maximum(rate - residual**2 / (2 * kept), np.finfo(float).eps * rate)
                scale = np.sqrt(rest / (shape - 0.5) / kept)
                without = student.logpdf(residual / kept, 2 * shape - 1, scale=scale)
                scale = np.sqrt(rate / shape * (1 + leverage))
                together = student.logpdf(residual, 2 * shape, scale=scale)
            found[name] = HeldOut.known(rows, without, together, k)
        return found

    @property
    def tail_degrees(self) -> float:
        """The fewest degrees of freedom of an equation whose coefficients are Student's t."""
        return float(2 * self.posterior.shape[self.needed].min(initial=np.inf))

    def update(self, data: Data) -> "Equations":
        """Return the equations after more observations: exactly those of all together."""
        columns = [data.nodes.index(name) for name in self.graph.nodes]
        whole, free = compress_data(data, columns)
        padded = np.column_stack([whole, np.zeros(len(whole))])  # causes p, the constant, and -1
        responses = whole[:, :-1] - whole[:, :-1] @ self.fixed[:-1]
        vectors = np.concatenate([padded[:, self.causes], responses[..., None]], axis=-1)
        vectors = vectors * (free & self.needed)[..., None]
        counts = len(data) - data.intervened.sum(axis=0)[columns]
        updated = replace(self, statistics=absorb(self.statistics, vectors, counts))
        parts = (updated.posterior.mean, updated.posterior.root, updated.posterior.variance)
        for position in np.flatnonzero(self.needed).tolist():
            if not all(np.isfinite(part[position]).all() for part in parts):
                raise NumericalError(
                    f"the posterior of the equation of {self.graph.nodes[position]!r} is not "
                    "finite, so it is not exact; change the units of its variables, or look for "
                    "values that cannot be"
                )
        return updated

    def pseudo_observations(self, prior: FixedPrior) -> np.ndarray:
        """Return vectors (D, p, D + 1) that are equivalent to a fixed prior."""
        centres = np.array([prior.centres.get(name, 0.0) for name in self.graph.nodes])
        offsets, most = centres @ self.fixed[:-1], self.causes.shape[1]
        vectors = np.zeros((most, len(self.graph.nodes), most + 1))
        for k in np.flatnonzero(self.needed).tolist():
            names = self.graph.nodes[k], self.free_parents[k]
            pseudo = prior.pseudo_observations(*names, float(offsets[k]), self.intercepts)
            vectors[: len(pseudo), k, : len(pseudo)] = pseudo[:, :-1]
            vectors[: len(pseudo), k, -1] = pseudo[:, -1]
        return vectors


def learn_equations(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: ScaledPrior | FixedPrior,
    needed: np.ndarray,
    data: Data,
) -> Equations:
    """Learn every equation by its own regression, as if no latent cause joined any."""
    none = RegressionStatistics(np.empty(0), np.zeros(len(graph.nodes)))
    equations = Equations(graph, known, intercepts, prior, needed, none)
    count, width = equations.causes.shape
    empty = none._replace(factor=np.zeros((count, width + 1, width + 1)))
    if isinstance(prior, FixedPrior):  # its pseudo-observations are not counted
        empty = absorb(empty, equations.pseudo_observations(prior), np.zeros(count))
    return replace(equations, statistics=empty).update(data)
