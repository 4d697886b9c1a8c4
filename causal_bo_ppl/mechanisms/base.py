"""What must a family of mechanisms, and a map from parameters to effects, provide?

Each protocol is small, and the docstring of a method is the equation that it must satisfy;
`causal_bo_ppl.testing` checks them. What is compiled are JAX pytrees: arrays are their leaves, and
all that a program is compiled for are their static fields, so that new data compile nothing.

Some families know more in closed form. Such methods are optional; `inputs.offered` finds them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import Outcomes
from causal_bo_ppl.problem import Problem, Queries

Set = tuple[str, ...]
LOG_TWO_PI = float(np.log(2 * np.pi))


class Prior(Protocol):
    """The prior distribution of the parameters."""

    def canonical(self) -> str:
        """Return a text that is the same for equal priors only."""


class ResponseProgram(Protocol):
    """Effects as pure functions of theta; a JAX pytree with this class as its type.

    `batch` is what `ResponseMap.batch` returned for M queries: arrays with one row for each.

    Optional, where effects are expensive: `of_many(theta, batch)`, the effects (s, M) of thetas
    (s, d); `together`, how many queries a batch should hold; `side_by_side`, whether several
    batches may be evaluated at once, by threads.
    """

    def effects(self, theta: jax.Array, batch: Any) -> jax.Array:
        """Return E[Y | do(z)] at theta (d,) for every query z of the batch, of shape (M,)."""

    def linearize(self, theta: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives in theta, of shape (M, d)."""


class HessianBounds(NamedTuple):
    """Bounds on the operator norm of each effect's Hessian in theta.

    bounds: (M,). is_global: (M,), whether a bound holds for every theta (the effect has degree 2 at
    most, its Hessian is constant and the bound is its norm) or only within the Gaussian credible
    ellipsoid of `level`.
    """

    bounds: np.ndarray
    is_global: np.ndarray
    level: float


class Extrapolation(NamedTuple):
    """Where paths from M queries to the target leave the range of the data.

    inputs: (variable, cause) of every input of a mechanism that is learned, k in all. outside: (M,)
    the share of averaged paths on which an input lies outside the range of its data. shares: (M, k)
    the same for each input; 0 where its mechanism has no influence under the query. distances: (M,
    k) how far those paths lie beyond, on average, in ranges of the data. beyond: (d,) whether a
    coordinate of theta acts outside the data only.
    """

    inputs: tuple[tuple[str, str], ...]
    outside: np.ndarray
    shares: np.ndarray
    distances: np.ndarray
    beyond: np.ndarray


class Unevenness(NamedTuple):
    """How much better a mechanism would fit if one of its causes were transformed nonlinearly.

    variable, cause: the mechanism, and the cause whose transformation helps most. value: of that
    cause in the observation where the fit would change most, in sds. fitted, sd: the mechanism's
    mean there and its posterior sd. instead: the mean with the cause transformed. log_factor: the
    log Bayes factor of all transformations, on average, against none.
    """

    variable: str
    cause: str
    value: float
    fitted: float
    sd: float
    instead: float
    log_factor: float


class HeldOut(NamedTuple):
    """Predictions of one mechanism for n observations, each made without that observation.

    observations: (n,) positions among the posterior's observations. elpd: (n,) log densities.
    pareto_k: (n,) shapes of the tails of the importance weights that would leave each observation
    out. standard_error: of the sum of `elpd`. size: effective number of parameters. is_exact:
    whether the densities are a closed form, so that they are right whatever `pareto_k` is. A single
    observation cannot be held out; then all but its position is NaN.
    """

    observations: np.ndarray
    elpd: np.ndarray
    pareto_k: np.ndarray
    standard_error: float
    size: float
    is_exact: bool = False

    @classmethod
    def known(
        cls, observations: np.ndarray, elpd: np.ndarray, whole: np.ndarray, k: np.ndarray
    ) -> "HeldOut":
        """Return exact predictions; whole: the log densities (n,) given all observations."""
        if len(elpd) < 2:
            unknown = np.full(len(elpd), np.nan)
            return cls(observations, unknown, unknown, np.nan, np.nan, True)
        error = float(np.sqrt(len(elpd)) * elpd.std())
        return cls(observations, elpd, k, error, float((whole - elpd).sum()), True)


class ResponseMap(Protocol):
    """The map from theta and an intervention to the effect: r(theta, z) = E[Y | do(z)].

    Optional: `to_frame()`, a table with a row for every coordinate of theta; `canonical()`, a text
    that differs between parameterizations of the same problem; `attributes()`, what a file must
    record for the coordinates to be known again. Where a closed form is known:
    `effects_of_many(theta, queries)`, the effects (s, M) of many thetas (s, d);
    `hessian_bounds(mean, sd, queries, level)`, see `HessianBounds`. Where effects are averages over
    points: `standard_errors(theta, queries)`, their errors (M,); `propagate(name)`, the same map
    with another kind of average, one of `propagations`; `with_fewer_points()`, the same map
    with fewer points; `with_residuals(residuals)`, the program with noise of the distribution of
    residuals, {variable: (n,)}, instead of Gaussian noise. Where the range of the data is
    known: `extrapolation(theta, queries)`, see `Extrapolation`.

    Where theta determines the mechanisms themselves, V = g(causes) + e:

    - `mechanism(theta, variable, values)`: the mean g (s, n) of a variable given its causes, for
      many thetas (s, d) and values (n, p) of all variables of the problem's graph.
    - `slopes(theta)`: {(cause, effect): largest |dg/dcause| over all values of the causes} at theta
      (d,), for the mechanisms that effects depend on.
    - `scales(theta)`: {variable: sd of its noise} at theta (d,); not offered where effects do not
      depend on sds.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of theta."""

    @property
    def sets(self) -> tuple[Set, ...]:
        """Intervention sets whose effects theta determines."""

    @property
    def is_affine(self) -> bool:
        """Whether every effect is affine in the values of its set, so that a vertex is optimal."""

    @property
    def is_linear(self) -> bool:
        """Whether every effect is affine in theta, so that there is no linearization error."""

    @property
    def program(self) -> ResponseProgram:
        """The effects as a JAX pytree."""

    def batch(self, queries: Queries) -> Any:
        """Return the arrays that the program takes for queries over all variables of the graph.

        Raises ExplorationError where theta does not determine the effect of a query.
        """


class Coefficients(NamedTuple):
    """Moments of linear equations that are independent of each other given the data.

    mean: (p + 1, p) coefficients, intercepts last. roots: (p + 1, p, D) of each equation's
    covariance C_j = root_j root_j'.
    """

    mean: np.ndarray
    roots: np.ndarray


class ExpectedInformation(NamedTuple):
    """Expected information of one observation of each of M queries about r standard normal weights.

    blocks: (M, E, D, D) information, of E groups of at most D weights that are independent of each
    other. positions: (E, D) of these weights, -1 where a group is filled up with zeros.
    """

    blocks: np.ndarray
    positions: np.ndarray

    def whole(self, size: int) -> np.ndarray:
        """Return the information as matrices (M, r, r); size: r."""
        information = np.zeros((len(self.blocks), size, size))
        for position, block in zip(self.positions, np.moveaxis(self.blocks, 1, 0), strict=True):
            used = position >= 0
            information[:, position[used][:, None], position[used]] = block[:, used][:, :, used]
        return information


class Density(Protocol):
    """The posterior density of a model, as pure functions of its coordinates psi; a JAX pytree.

    Optional: `log_volume(psi)`, the log volume of the prior's coordinates in psi, where the prior
    is not over psi itself; `log_posterior(psi)`, the sum of all three, where it is faster;
    `one_by_one`, whether it must be evaluated at one psi after another, as
    where it factors matrices more than once.
    """

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log density of the prior at psi (k,), up to a constant."""

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes given psi (k,)."""

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,), the coordinates of the response map, at psi (k,)."""


class Model(Protocol):
    """A family's mechanisms for one problem, with its prior and its data.

    `draws` below stands for the parameters of n models, as the family returns them for n
    coordinates psi. Arrays of m observations have a column for each of the p variables in `nodes`.

    A model may offer more, which others look up by `offered` and by `getattr`:

    - `scales(draws)`: the sds of the noise of all variables, (n, p).
    - `disturbances(draws, values, position)`: the noise (n, m) of one variable at observations
      (n, m, p), or (1, m, p) where all models share them.
    - `gaussian`: whether the noise of each variable is Gaussian with one sd, (p,), where there is
      additive noise.
    - `outcome_densities(draws)`: log densities (n, m) of the task's outcomes; None without any.
    - `draw_prior(n, key)`: draws of the prior; raises MechanismError where it is improper. Where a
      part of it is replaced by a proper one, `prior_note` is a text that says so. With
      `draw_prior_with_hyperparameters(n, key)` the hyperparameters (n, H) are drawn too, and
      `hyperparameters(psi)` are those at coordinates (n, k).
    - `named(draws)` or, with hyperparameters, `named(draws, hyperparameters)`: {variable: (n, k)},
      the parameters by name as `inference.datatree.PARAMETERS` lists them, and `labels`,
      {dimension: names} of what they are of.
    - `mode()`: the mode of psi, a factor of the covariance there, and the Newton decrement; None
      where they must be searched for.
    - `moments(mode, factor)`: mean and a factor of the covariance of theta, for a Gaussian psi.
    - `given_hyperparameters()`: the model with its hyperparameters at the mode of their evidence.
    - `with_linear_theta(psi)`: the same model and psi in coordinates in which theta is linear.
    - `mode_coverage(level)`: the share of the exact posterior in its central intervals of `level`.
    - `coefficient_ratio(draws, n, generator)`: log ratios (n,) of the exact density of coefficients
      to the Gaussian with the moments of the draws; None where that density is not known.
    - `basis()`: a table of finite bases with their errors, a row for each.
    - `held_out()`: the `HeldOut` of every variable in closed form; None where there is none.
    - `unevenness()`: a list of `Unevenness`, one for each nonlinear mechanism, where these are
      assumed to be stationary.
    - `regressions(usable)`: every regression with its observations, for usable entries (n, p), as
      records with `variable`, `regressors`, `inputs`, `outcome`, `features` and `groups`.
    - `usable(data)`: which observations inform the density of each variable, (m, p), where that is
      not all in which it was not set.
    - `target_observations(queries, outcomes)`: which outcomes of the target alone are observations
      of its mechanism by themselves, (M,), and these observations, where they inform more than
      coefficients.
    - `explain()`: a sentence on why the density is not finite.
    - `is_correlated`: whether a sampler should learn a whole covariance of psi.
    - `theta_is_linear`: whether theta is linear in psi.
    """

    @property
    def nodes(self) -> Set:
        """The variables of the model, the target last."""

    @property
    def data(self) -> Data:
        """The observations that it learns from."""

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, of shape (p,); others are given."""

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""

    @property
    def response(self) -> ResponseMap:
        """The map from theta, which `theta` reads off the draws, to effects."""

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the k coordinates psi, around which 0 is a good guess and 1 a typical width."""

    @property
    def density(self) -> Density:
        """Prior and likelihood as a JAX pytree."""

    def draws(self, psi: np.ndarray) -> Any:
        """Return the parameters of n models at coordinates (n, k)."""

    def theta(self, draws: Any) -> np.ndarray:
        """Return theta of n models, of shape (n, d)."""

    def log_densities(self, draws: Any, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each value given its causes, of shape (n, m, p).

        It is 0 where `free` (m, p) is False; the sum over all is the log likelihood.
        """

    def replicate(self, draws: Any, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw an observation of each of n models under each of M queries, of shape (n, M, p)."""

    def outcome_variances(self, draws: Any, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query over `nodes`, of shape (M,).

        It is that of the mean of the draws.
        """

    def with_observations(self, data: Data) -> "Model":
        """Return the same model with more observations."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learned: a problem, its data and outcomes, and the options of `fit`.

    parameters, intercepts, linear: options of linear mechanisms, which others refuse: the kind of
    coordinates, whether equations have intercepts, and whether sets count that only linear
    mechanisms identify. A family reads `problem.identification` when it is bound, with
    `with_linearity()` where these count, and hands on what its model needs.
    """

    problem: Problem
    data: Data
    outcomes: Outcomes
    prior: Any = None
    parameters: str | None = None
    intercepts: bool = True
    linear: bool = False


class Mechanisms(Protocol):
    """A family of mechanisms, before any data: how every variable depends on its causes.

    A family may offer more, which others look up by `offered` and by `getattr`:

    - `is_linear`: whether every mechanism is linear in the causes; False where it is not offered.
    - `default_method(problem)`: the name of the method of inference that is taken where none is
      named; "laplace" where it is not offered.
    - `proper_prior(problem)`: a prior from which models can be drawn.
    - `takes_experiments(problem)`: whether complete observations of experiments are as informative
      as their outcomes; True where it is not offered.
    - `response(task)`: the response map, which needs no data.
    """

    @property
    def name(self) -> str:
        """The name of the family, for tables and messages."""

    def bind(self, task: Task) -> Model:
        """Return the model of one problem; raises MechanismError for what the family cannot do."""
