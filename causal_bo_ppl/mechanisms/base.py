"""What must a family of mechanisms, and a map from parameters to effects, provide?

Each protocol is small, and the docstring of a method is the equation that it must satisfy;
`causal_bo_ppl.testing` checks them. What is compiled are JAX pytrees: arrays are their leaves, and
all that a program is compiled for are their static fields, so that new data compile nothing.

Some know more: a closed form, the mode, the noise, named parameters. Each such capability is a
runtime protocol, and callers ask `isinstance(model, NoiseModel)`; its members cost nothing to look
up, since Python 3.11 evaluates properties for the answer. Where a model has a capability
for some kinds of mechanisms only, its methods return None for the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import pandas as pd

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.observations import Outcomes
from causal_bo_ppl.graph import Edge
from causal_bo_ppl.problem import Problem, Queries

Set = tuple[str, ...]
LOG_TWO_PI = float(np.log(2 * np.pi))


@runtime_checkable
class Canonical(Protocol):
    """What is compared by a text: a prior of parameters, or a parameterization of effects."""

    def canonical(self) -> str:
        """Return a text that is the same for equals only."""


Prior = Canonical


class ResponseProgram(Protocol):
    """Effects as pure functions of theta; a JAX pytree with this class as its type.

    `batch` is what `ResponseMap.batch` returned for M queries: arrays with one row for each.
    """

    def effects(self, theta: jax.Array, batch: Any) -> jax.Array:
        """Return E[Y | do(z)] at theta (d,) for every query z of the batch, of shape (M,)."""

    def linearize(self, theta: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        """Return the effects (M,) and their derivatives in theta, of shape (M, d)."""


@runtime_checkable
class BatchedProgram(ResponseProgram, Protocol):
    """A program of expensive effects.

    together, many_together: how many queries a batch should hold, for one theta and for many.
    side_by_side: whether several batches may be evaluated at once, by threads.
    """

    together: int
    many_together: int
    side_by_side: bool

    def of_many(self, theta: jax.Array, batch: Any) -> jax.Array:
        """Return the effects (s, M) of thetas (s, d)."""


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
    """The map from theta and an intervention to the effect: r(theta, z) = E[Y | do(z)]."""

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


@runtime_checkable
class DescribedMap(Protocol):
    """A response map that files and tables describe."""

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for every coordinate of theta."""

    def attributes(self) -> dict[str, str]:
        """Return what a file must record for the coordinates to be known again."""


@runtime_checkable
class CurvedMap(Protocol):
    """A response map whose second derivatives are bounded."""

    def hessian_bounds(
        self, mean: np.ndarray, sd: np.ndarray, queries: Queries, level: float
    ) -> HessianBounds:
        """Return bounds where theta has a mean and sds (d,)."""


@runtime_checkable
class AveragedMap(Protocol):
    """A response map whose effects are averages over points of the noise.

    propagations: the kinds of averages. acting: which coordinates of theta (d,) have an influence.
    """

    @property
    def propagations(self) -> tuple[str, ...]:
        """The kinds of averages."""

    @property
    def acting(self) -> np.ndarray:
        """Which coordinates of theta (d,) have an influence."""

    def standard_errors(self, theta: np.ndarray, queries: Queries) -> np.ndarray:
        """Return the errors (M,) of the averages at theta (d,)."""

    def propagate(self, propagation: str) -> ResponseMap | None:
        """Return the same map with another kind of average; None where there is none."""

    def with_fewer_points(self) -> Any:
        """Return the same map with averages over fewer points."""

    def without_negligible_terms(self, mean: np.ndarray, sd: np.ndarray) -> Any:
        """Return the same map where coordinates do not act that are negligible near the mean."""

    def extrapolation(self, theta: np.ndarray, queries: Queries) -> Extrapolation:
        """Return where paths at theta (d,) leave the range of the data."""


@runtime_checkable
class MechanismMap(Protocol):
    """A response map whose theta determines the mechanisms themselves, V = g(causes) + e."""

    def mechanism(self, theta: np.ndarray, variable: str, values: np.ndarray) -> np.ndarray:
        """Return the mean g (s, n) of a variable given its causes, for thetas (s, d).

        values: (n, p), all variables of the problem's graph.
        """

    def slopes(self, theta: np.ndarray) -> dict[Edge, float] | None:
        """Return the largest |dg/dcause| over all values of the causes, at theta (d,).

        It is returned for the mechanisms that effects depend on; None where it is not known.
        """

    def scales(self, theta: np.ndarray) -> dict[str, float] | None:
        """Return the sds of the noise at theta (d,); None where effects do not depend on them."""


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
    """The posterior density of a model, as pure functions of its coordinates psi; a JAX pytree."""

    def log_prior(self, psi: jax.Array) -> jax.Array:
        """Return the log density of the prior at psi (k,), up to a constant."""

    def log_likelihood(self, psi: jax.Array) -> jax.Array:
        """Return the log density of all observations and outcomes given psi (k,)."""

    def theta(self, psi: jax.Array) -> jax.Array:
        """Return theta (d,), the coordinates of the response map, at psi (k,)."""


@runtime_checkable
class TransformedDensity(Density, Protocol):
    """A density whose prior is not over psi itself."""

    def log_volume(self, psi: jax.Array) -> jax.Array:
        """Return the log volume of the prior's coordinates in psi, up to a constant."""


@runtime_checkable
class SequentialDensity(Protocol):
    """A density that may have to be evaluated at one psi after another."""

    @property
    def one_by_one(self) -> bool:
        """Whether it must be: it factors matrices more than once."""


@runtime_checkable
class JointDensity(Density, Protocol):
    """A density whose prior, likelihood and volume together are faster than each of them."""

    def log_posterior(self, psi: jax.Array) -> jax.Array:
        """Return the sum of log prior, likelihood and volume, up to a constant."""


class Model(Protocol):
    """A family's mechanisms for one problem, with its prior and its data.

    `draws` below stands for the parameters of n models, as the family returns them for n
    coordinates psi. Arrays of m observations have a column for each of the p variables in `nodes`.
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


class PriorDraws(NamedTuple):
    """Draws of the prior of n models.

    hyperparameters: (n, H), where they are drawn too. note: how draws differ from the prior, where
    an improper part of it is replaced; empty where they do not.
    """

    models: Any
    hyperparameters: np.ndarray | None = None
    note: str = ""


@runtime_checkable
class GenerativeModel(Protocol):
    """A model whose prior can be drawn from."""

    def draw_prior(self, n: int, key: jax.Array) -> PriorDraws:
        """Draw n models; raises MechanismError where the prior is improper."""


@runtime_checkable
class NoiseModel(Protocol):
    """A model in which variables have additive noise."""

    @property
    def gaussian(self) -> np.ndarray:
        """Whether the noise of each variable is Gaussian with one sd, (p,)."""

    def scales(self, draws: Any) -> np.ndarray | None:
        """Return the sds of the noise of all variables, (n, p); None where not all have one."""

    def disturbances(self, draws: Any, values: np.ndarray, position: int) -> np.ndarray:
        """Return the noise (n, m) of one variable at observations (n, m, p), or (1, m, p)."""


@runtime_checkable
class NamedModel(Protocol):
    """A model whose parameters have names, as `inference.datatree.PARAMETERS` lists them.

    labels: {dimension: names} of what they are of.
    """

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """{dimension: names} of what the parameters are of."""

    def named(self, draws: Any, hyperparameters: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Return {variable: (n, k)}, also of hyperparameters (n, H) where these are given."""


@runtime_checkable
class OutcomeModel(Protocol):
    """A model that learns from outcomes of the target alone."""

    def outcome_densities(self, draws: Any) -> np.ndarray | None:
        """Return log densities (n, m) of the task's outcomes; None without any."""


@runtime_checkable
class ModeModel(Protocol):
    """A model whose mode is known, and what depends on its hyperparameters in closed form."""

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi."""

    def mode(self) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the mode of psi, a factor of the covariance there, and the Newton decrement.

        None where they must be searched for.
        """

    def moments(self, mode: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and a factor of the covariance of theta, for a Gaussian psi."""

    def hyperparameters(self, psi: np.ndarray) -> np.ndarray:
        """Return the hyperparameters (n, H) at coordinates (n, k)."""

    def given_hyperparameters(self) -> Model | None:
        """Return the model with its hyperparameters at the mode of their evidence."""

    def log_priors(self, psi: np.ndarray) -> np.ndarray | None:
        """Return the log prior (n,) at coordinates (n, k); None where it is not faster."""

    def log_posteriors(self, psi: np.ndarray) -> np.ndarray | None:
        """Return the log posterior (n,) at coordinates (n, k); None where it is not faster."""

    def held_out(self) -> dict[str, HeldOut] | None:
        """Hold out every observation of every variable; None where there is no closed form."""

    def explain(self) -> str:
        """Return a sentence on why the density is not finite."""


@runtime_checkable
class CoefficientModel(Protocol):
    """A model of linear coefficients, which is exact for independent equations."""

    @property
    def theta_is_linear(self) -> bool:
        """Whether theta is linear in psi."""

    def with_linear_theta(self, psi: np.ndarray | None = None) -> tuple[Model, Any]:
        """Return the same model and psi in coordinates in which theta is linear."""

    def mode_coverage(self, level: float) -> float:
        """Return the share of the exact posterior in its central intervals of `level`."""

    def coefficient_ratio(
        self, draws: Any, n: int, generator: np.random.Generator
    ) -> np.ndarray | None:
        """Return log ratios (n,) of the exact density of coefficients to a Gaussian.

        It has the moments of the draws; None where the exact density is not known.
        """


@runtime_checkable
class RegressionModel(Protocol):
    """A model that consists of regressions on basis functions."""

    def basis(self) -> pd.DataFrame:
        """Return a table of finite bases with their errors, a row for each."""

    def unevenness(self) -> list[Unevenness]:
        """Return an `Unevenness` for each mechanism that is assumed to be stationary."""

    def regressions(self, usable: np.ndarray) -> list[Any] | None:
        """Return every regression with its observations, for usable entries (n, p).

        These are records with `variable`, `regressors`, `inputs`, `outcome`, `features` and
        `groups`; None where some mechanisms are no regressions.
        """

    def usable(self, data: Data) -> np.ndarray:
        """Return which observations inform the density of each variable, (m, p)."""

    def target_observations(
        self, queries: Queries, outcomes: np.ndarray
    ) -> tuple[np.ndarray, Data]:
        """Return which outcomes of the target alone (M,) are observations of its mechanism.

        The second result are these observations.
        """


class Mechanism(Protocol):
    """How one variable depends on its causes: the two lines of a model on paper.

    It is a part of a NumPyro program: called with the values of all earlier variables it draws its
    parameters at their sites, which gives their priors, and returns the conditional distribution.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """{site: shape} of its parameters."""

    @property
    def formula(self) -> str:
        """The mechanism on paper."""

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Draw the parameters; return the distribution of the variable given the causes."""


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
