"""The distribution of theta that a method of inference returns, and distributions that are draws.

Draws are of theta and of the parameters of models: of a model's coordinates, by a sampler, or of
theta alone, given. They are judged by R-hat, effective sample sizes, divergences and energy, with
limits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.checks import FAILED, PASSED, UNKNOWN, judge
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import (
    ArgumentError,
    MechanismError,
    PosteriorError,
    listed,
    unknown,
)
from causal_bo_ppl.inference import potentials
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.linalg import factor_draws
from causal_bo_ppl.mechanisms.base import (
    BatchedProgram,
    CoefficientModel,
    GenerativeModel,
    Mechanisms,
    Model,
    ModeModel,
    OutcomeModel,
    Prior,
    RegressionModel,
    ResponseMap,
    ResponseProgram,
    Task,
)
from causal_bo_ppl.mechanisms.linear_responses import StructuralResponse
from causal_bo_ppl.problem import Queries

THETAS_AT_ONCE = 64  # in one compiled program
NOMINAL_CHAINS = 4  # into which independent draws are divided
DEFAULT_DRAWS = 4_000
TRAITS: dict[str, Any] = {
    "needs_key": False,
    "takes_experiments": True,
    "uses_linearity": True,
    "learns_moments": False,
    "is_approximate": False,
}
NO_DENSITY = "the density that given draws come from is not known"


@jax.jit
def apply_to_many(program: ResponseProgram, theta: jax.Array, batch: Any) -> Any:
    """Return the effects (s, M) of thetas (s, d) on a batch of the response map."""
    if isinstance(program, BatchedProgram):
        return program.of_many(theta, batch)
    return jax.vmap(program.effects, (0, None))(theta, batch)


def effects_of_draws(response: ResponseMap, theta: np.ndarray, queries: Queries) -> np.ndarray:
    """Return effects (s, M) at finite thetas (s, d); few programs are compiled.

    Raises ExplorationError where theta does not determine the effect of a query.
    """
    if isinstance(response, StructuralResponse):
        return response.effects_of_many(theta, queries)
    batch, program = response.batch(queries), response.program
    together, side_by_side = None, False
    if isinstance(program, BatchedProgram):
        together, side_by_side = program.many_together, program.side_by_side

    def effects_of(block: np.ndarray) -> Any:
        work = partial(apply_to_many, program, jnp.asarray(block))
        return in_pieces(work, batch, len(queries), 1, together)

    return np.asarray(in_pieces(effects_of, theta, len(theta), 0, THETAS_AT_ONCE, side_by_side))


def draw_count(n: int | None) -> int:
    """Return about n, DEFAULT_DRAWS by default, as a multiple of NOMINAL_CHAINS."""
    return NOMINAL_CHAINS * -(-(n or DEFAULT_DRAWS) // NOMINAL_CHAINS)


class Drawn(NamedTuple):
    """Draws of a posterior, n in all, in `chains` equal parts one after the other.

    theta: (n, d). models: parameters of n models, as the family returns them; None where only theta
    is known. log_prior: (n,) up to a constant, or None. stats: {name: (chains, n / chains)} of the
    sampler. outcome_log_densities: (n, m) log densities of outcomes, where there are any.
    hyperparameters: (n, H), where they are drawn and no part of the models. note: of draws of a
    prior, how they differ from it; empty where they do not.
    """

    chains: int
    theta: np.ndarray
    models: Any = None
    log_prior: np.ndarray | None = None
    stats: dict[str, np.ndarray] = {}
    outcome_log_densities: np.ndarray | None = None
    hyperparameters: np.ndarray | None = None
    note: str = ""

    def thinned(self, most: int | None) -> "Drawn":
        """Return every so-many-th draw of each chain, at most about `most` in all."""
        length = len(self.theta) // self.chains
        step = 1 if most is None else max(1, -(-len(self.theta) // most))
        starts = np.arange(self.chains)[:, None] * length
        kept = (starts + np.arange(0, length, step)[None]).ravel()
        parts = self._replace(chains=None, stats=None, note=None)  # type: ignore[arg-type]
        stats = {name: value[:, ::step] for name, value in self.stats.items()}
        thinned: Drawn = jax.tree.map(lambda part: part[kept], parts)
        return thinned._replace(chains=self.chains, stats=stats, note=self.note)


def drawn_at(model: Model, psi: np.ndarray, chains: int, stats: dict[str, Any]) -> Drawn:
    """Return draws at coordinates (n, k) with their densities."""
    models, log_prior = model.draws(psi), potentials.log_priors(model, psi)
    densities = model.outcome_densities(models) if isinstance(model, OutcomeModel) else None
    etas = model.hyperparameters(psi) if isinstance(model, ModeModel) else None
    return Drawn(chains, model.theta(models), models, log_prior, stats, densities, etas)


def drawn_before(model: Model, n: int, key: jax.Array) -> Drawn | None:
    """Draw about n models from the prior; None where the model cannot.

    Raises MechanismError where a prior is improper.
    """
    if not isinstance(model, GenerativeModel):
        return None
    models, etas, note = model.draw_prior(draw_count(n), key)
    return Drawn(NOMINAL_CHAINS, model.theta(models), models, hyperparameters=etas, note=note)


def require_prior(
    who: str, draw_prior: Callable[[int, jax.Array], Drawn | None], n: int, key: jax.Array
) -> Drawn:
    """Draw about n times from a prior; refuse one that nothing can be drawn from."""
    try:
        drawn = draw_prior(n, key)
    except MechanismError as error:
        raise PosteriorError(f"{who} draws from the prior, and {error}") from None
    if drawn is None:
        raise PosteriorError(
            f"{who} draws from the prior, which is not known: draws were made elsewhere, or "
            "user-defined mechanisms offer no draw_prior(n, key); fit with a prior"
        )
    return drawn


class Limits(NamedTuple):
    """The limits of the diagnostics of a sampled posterior.

    Attributes
    ----------
    r_hat:
        The largest R-hat of a parameter.
    ess:
        The smallest effective sample size, bulk and tail, of all chains together.
    bfmi:
        The smallest estimated Bayesian fraction of missing information of a chain.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.diagnostics.Limits(ess=1_000.0)
    Limits(r_hat=1.01, ess=1000.0, bfmi=0.3)
    """

    r_hat: float = 1.01
    ess: float = 400.0
    bfmi: float = 0.3


def summarise(draws: np.ndarray, names: tuple[str, ...]) -> pd.DataFrame:
    """Return a table of draws (chains, n, d) with a row for each of d names, by ArviZ.

    It has mean and sd, their Monte-Carlo errors, effective sample sizes and R-hat.
    """
    from arviz_stats.base import array_stats

    by_name, sd = np.moveaxis(draws, -1, 0), draws.std(axis=(0, 1), ddof=1)
    squares = (by_name - by_name.mean(axis=(1, 2), keepdims=True)) ** 2
    columns = {
        "mean": draws.mean(axis=(0, 1)),
        "sd": sd,
        "mcse_mean": array_stats.mcse(by_name, method="mean"),
        # ArviZ's "sd" takes the effective sample size of the mean
        "mcse_sd": array_stats.mcse(squares, method="mean") / (2 * sd),
        "ess_bulk": array_stats.ess(by_name, method="bulk"),
        "ess_sd": array_stats.ess(squares, method="mean"),
        "ess_tail": array_stats.ess(by_name, method="tail", prob=(0.05, 0.95)),
        "r_hat": array_stats.rhat(by_name) if draws.shape[0] > 1 else np.full(len(names), np.nan),
    }
    columns = {name: np.asarray(value) for name, value in columns.items()}
    return pd.DataFrame(columns, index=pd.Index(names))


def effective_sizes(draws: np.ndarray) -> np.ndarray:
    """Return the effective sample sizes (d,) of the means of draws (chains, n, d).

    They are computed by ArviZ and at most the number of draws; where ArviZ cannot assess them, the
    number of chains.
    """
    from arviz_stats.base import array_stats

    chains, length, _ = draws.shape
    by_name = np.ascontiguousarray(np.moveaxis(draws, -1, 0))
    sizes = np.asarray(array_stats.ess(by_name, method="mean"), float)
    sizes = np.where(np.isfinite(sizes), sizes, chains)
    sizes = np.where(np.ptp(draws, axis=(0, 1)) > 0, sizes, np.inf)
    return np.asarray(np.clip(sizes, chains, chains * length))


def judge_chains(table: pd.DataFrame, stats: dict[str, np.ndarray], limits: Limits) -> pd.DataFrame:
    """Return a row for each diagnostic of draws: value, limit and verdict. NaN fails.

    table: as `summarise` makes it. stats: of the sampler, (chains, draws) each; divergences and
    energy are judged where the sampler has them. R-hat of one chain is not assessed.
    """
    r_hat = table["r_hat"]
    passed = bool((r_hat <= limits.r_hat).all())
    verdict = UNKNOWN if r_hat.isna().all() else judge(passed)
    worst = str(r_hat.idxmax()) if r_hat.notna().all() else ""
    rows = [("r_hat", r_hat.max(skipna=False), f"<= {limits.r_hat:g}", verdict, worst)]
    for name in ("ess_bulk", "ess_tail"):
        verdict, worst = judge(bool((table[name] >= limits.ess).all())), str(table[name].idxmin())
        rows.append((name, table[name].min(skipna=False), f">= {limits.ess:g}", verdict, worst))
    if "diverging" in stats:
        count = float(stats["diverging"].sum())
        rows.append(("divergences", count, "= 0", judge(not stats["diverging"].any()), ""))
    if "energy" in stats:
        from arviz_stats.base import array_stats

        bfmi = np.asarray(array_stats.bfmi(stats["energy"]))
        passed = bool((bfmi >= limits.bfmi).all())
        rows.append(("bfmi", float(bfmi.min()), f">= {limits.bfmi:g}", judge(passed), ""))
    columns = ["line", "value", "limit", "verdict", "worst"]
    return pd.DataFrame(rows, columns=columns).set_index("line")


def describe_chains(size: str, lines: pd.DataFrame) -> str:
    """Return a sentence on the quality of draws; size: a text on how many there are."""
    value, verdict = lines["value"], lines["verdict"]
    known = f"up to {value['r_hat']:.4f}" if verdict["r_hat"] != UNKNOWN else "unknown"
    numbers = (
        f"R-hat {known}, at least {value['ess_bulk']:.0f} effective draws "
        f"({value['ess_tail']:.0f} in the tails)"
    )
    if "divergences" in lines.index:
        numbers += f", {value['divergences']:.0f} divergences"
    if "bfmi" in lines.index:
        numbers += f", E-BFMI {value['bfmi']:.2f}"
    failed = [str(name) for name in lines.index[verdict == FAILED]]
    return f"{size}: {numbers}." + (f" Not good enough: {listed(failed)}." if failed else "")


def overall(lines: pd.DataFrame) -> str:
    """Return failed if a row failed, "not assessed" if one could not be assessed, else passed."""
    return next((each for each in (FAILED, UNKNOWN) if each in set(lines["verdict"])), PASSED)


def exact_lines(how: str) -> pd.DataFrame:
    """Return the table of diagnostics of a closed form, which has one row."""
    return pd.DataFrame(
        {"value": [0.0], "limit": ["= 0"], "verdict": [PASSED]},
        index=pd.Index([f"closed form: {how}"], name="line"),
    )


class ObservationModel(Protocol):
    """Density and simulation of observations under n models; a part of `mechanisms.base.Model`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The variables, the target last."""

    def log_densities(self, draws: Any, values: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Return the log density of each of m observations of p variables, (n, m, p)."""

    def replicate(self, draws: Any, queries: Queries, key: jax.Array) -> np.ndarray:
        """Draw one observation of each of n models under each of M queries, (n, M, p)."""


class ThetaDistribution(Protocol):
    """The posterior distribution of theta as a method of inference returns it.

    Kernels and checks use it through `Posterior`, whatever method it came from. Queries are over
    the variables of `model.nodes`.

    Optional, found by `offered`: `coefficients()`, the `Coefficients` of linear equations that are
    independent given the data, and `expected_information(queries)`, the `ExpectedInformation` of
    one observation of each query about the weights w of theta = mean + factor w; see
    `mechanisms.base`.
    """

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""

    @property
    def model(self) -> ObservationModel | None:
        """The model whose parameters were drawn; None where only theta is known."""

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed, for tables and messages."""

    @property
    def verdict(self) -> str:
        """Whether the computation worked: "exact", "passed", "failed" or "not assessed"."""

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, (p,); the values of others are given."""

    @property
    def settings(self) -> str:
        """Options and key that the numbers depend on; empty if nothing is drawn."""

    @property
    def chains(self) -> np.ndarray | None:
        """Draws of theta that depend on each other, (chains, n, d); None where draws do not."""

    @property
    def summary(self) -> pd.DataFrame | None:
        """Convergence of every coordinate of theta; None where nothing was sampled."""

    @property
    def effective_draws(self) -> float:
        """The effective sample size of the covariance; infinite in closed form."""

    @property
    def tail_degrees(self) -> float:
        """Fewest degrees of freedom of a coordinate that is Student's t; infinite for others."""

    @property
    def is_gaussian(self) -> bool:
        """Whether theta is Gaussian by construction."""

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Draw theta (n, d)."""

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Draw theta about n times with the whole models; by default all there are, or 4,000."""

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; None where it is not known.

        Raises MechanismError where it is improper.
        """

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return weights of N(mean, covariance) as a proposal for the posterior."""

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return a table of diagnostics of the computation: value, limit and verdict."""

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on how the posterior was computed, and how well."""

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, (M,)."""

    def update(self, data: Data) -> "ThetaDistribution":
        """Return the distribution after more observations."""


class ModelDistribution:
    """The part of a `ThetaDistribution` that follows from its model alone."""

    model: Model

    @property
    def response(self) -> ResponseMap:
        """The map from theta to effects."""
        return self.model.response

    @property
    def prior(self) -> Prior:
        """The prior of the parameters."""
        return self.model.prior

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, of shape (p,)."""
        return self.model.learned

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; None where the model cannot."""
        return drawn_before(self.model, n, key)


def learned_entries(
    model: ObservationModel | None, learned: np.ndarray, data: Data, nodes: Sequence[str]
) -> np.ndarray:
    """Return which values of n observations inform a density, (n, p) over `nodes`.

    Those are the values of variables that were not set and whose density is learned (`learned`,
    (p,)), unless the model has it that the experiment has changed the density.
    """
    if isinstance(model, RegressionModel):
        return np.asarray(model.usable(data) & learned)
    return np.asarray(~data.intervened[:, [data.nodes.index(name) for name in nodes]] & learned)


class InferenceMethod(Protocol):
    """A method of inference: from a task, its mechanisms and a key to a distribution of theta.

    It may have these attributes too, which `trait` reads with the defaults in brackets:

    - `takes_experiments` (True): whether it learns from observations in which something was set.
    - `uses_linearity` (True): whether it can learn what only linear mechanisms identify.
    - `learns_moments` (False): whether it learns moments of all observed variables, whatever the
      mechanisms. Theta may then have no value in some draws.
    - `is_approximate` (False): whether its intervals may be off even where the computation worked.

    Optional methods are found by `offered`: `proper_prior(problem)`, a prior that can be drawn
    from; `shortened()`, the same method with fewer draws, for many fits; `resume(model, psi, stats,
    key, sizes)`, the distribution of draws that it made before, see `NUTS.resume`.
    """

    @property
    def name(self) -> str:
        """The name of the method, for tables and messages."""

    @property
    def needs_key(self) -> bool:
        """Whether it draws at random."""

    def infer(self, task: Task, mechanisms: Mechanisms, key: jax.Array | None) -> ThetaDistribution:
        """Return the posterior of theta given the data and outcomes of the task."""


def trait(method: object, name: str) -> Any:
    """Return a property of a method, or its default where the method does not have it."""
    return getattr(method, name, TRAITS[name])


class Recipe(NamedTuple):
    """The arguments of `fit`, by which a posterior can be computed again.

    mechanisms: the choice as it was given. task: with the data of the first fit; those of later
    updates are in the posterior. key: None where none was given.
    """

    mechanisms: Any
    method: InferenceMethod
    task: Task
    key: jax.Array | None


def require_no_outcomes(task: Task, method: str) -> None:
    """Refuse outcomes of the target alone."""
    if len(task.outcomes.values):
        raise ArgumentError(
            f"{method} learns from complete observations only; for outcomes of the target alone "
            "use method='nuts' or 'laplace', or condition a surrogate on them: "
            "cb.surrogates.couple(post).condition(query, outcome)"
        )


class ThetaDraws:
    """The part of a `ThetaDistribution` that follows from draws of theta alone.

    chains: draws of theta, (chains, n, d). stats: {name: (chains, n)} of the sampler, may be empty.
    """

    response: Any
    chains: Any
    stats: Any

    tail_degrees = np.inf
    is_gaussian = False

    @property
    def _theta(self) -> np.ndarray:
        """All draws of theta, chain after chain, of shape (n, d)."""
        return np.asarray(self.chains.reshape(-1, self.chains.shape[-1]))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (d,) of theta, and a factor (d, r) of its covariance."""
        return self._theta.mean(axis=0), factor_draws(self._theta)

    @cached_property
    def effective_draws(self) -> float:
        """The effective sample size of the covariance of theta."""
        squares = (self.chains - self._theta.mean(axis=0)) ** 2
        return float(effective_sizes(squares).min(initial=np.inf))

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """Choose n of the draws of theta at random, each at most once while there are enough."""
        order = host_generator(key).permutation(len(self._theta))
        return self._theta[np.resize(order, n) if n > len(order) else order[:n]]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Convergence of every coordinate of theta, and of the log posterior where it is known."""
        if "lp" not in self.stats:
            return summarise(self.chains, self.response.names)
        draws = np.concatenate([self.chains, self.stats["lp"][..., None]], axis=-1)
        return summarise(draws, (*self.response.names, "log posterior"))

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Return a table of diagnostics of the chains."""
        return judge_chains(self.summary, self.stats, limits)

    @cached_property
    def verdict(self) -> str:
        """Whether the chains agree, and are long enough."""
        return overall(self.lines(Limits()))


@dataclass(frozen=True, eq=False)
class SampledDistribution(ThetaDraws, ModelDistribution):
    """Draws of a model's coordinates; see `ThetaDistribution`.

    psi: coordinates, (chains, n, k). stats: {name: (chains, n)} of the sampler, may be empty. by:
    the name of the method. size: a text on how many draws there are. settings: options and key that
    the draws depend on. again: a function that samples the same model with more observations.
    changed: whether they are of another prior or likelihood than the model's.
    """

    model: Model
    psi: np.ndarray
    stats: dict[str, np.ndarray]
    by: str
    size: str
    settings: str
    again: Callable[[Model], "SampledDistribution"]
    changed: bool = False

    @property
    def prior(self) -> Prior:
        """The prior of the parameters, where it is known."""
        return UnknownPrior() if self.changed else self.model.prior

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Draw about n times from the prior; None where it is not known."""
        return None if self.changed else drawn_before(self.model, n, key)

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed."""
        return f"{self.psi.shape[0]} x {self.psi.shape[1]} draws by {self.by}"

    @property
    def _flat(self) -> np.ndarray:
        """Coordinates of all draws, chain after chain, of shape (n, k)."""
        return self.psi.reshape(-1, self.psi.shape[-1])

    @cached_property
    def models(self) -> Any:
        """All draws of the models, chain after chain."""
        return self.model.draws(self._flat)

    @cached_property
    def chains(self) -> np.ndarray:
        """Draws of theta, of shape (chains, n, d)."""
        return self.model.theta(self.models).reshape(*self.psi.shape[:2], -1)

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return self._all.thinned(n)

    @cached_property
    def _all(self) -> Drawn:
        drawn = drawn_at(self.model, self._flat, len(self.psi), self.stats)
        return drawn._replace(log_prior=None) if self.changed else drawn

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return weights of the Gaussian with the moments of the draws.

        The weights are of the coefficients alone, where their density is known; otherwise of the
        whole model, in coordinates in which theta is linear where the model offers them.
        """
        if self.changed:
            return potentials.not_assessed(draws, NO_DENSITY)
        size = len(self.model.coordinates)
        if len(self._flat) < potentials.FEWEST_DRAWS_PER_DIMENSION * size:
            return potentials.not_assessed(draws, potentials.TOO_FEW_DRAWS)
        generator = host_generator(key)
        model, psi = self.model, self._flat
        if isinstance(model, CoefficientModel):
            known = model.coefficient_ratio(self.models, draws, generator)
            if known is not None:
                return potentials.weigh(known, potentials.COEFFICIENTS)
            model, psi = model.with_linear_theta(psi)
        standard = generator.standard_normal((draws, size))
        ratios = potentials.ratios_of_model(model, psi, standard)
        return potentials.weigh(ratios, potentials.WHOLE)

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on the number and the quality of the draws."""
        return describe_chains(self.size, lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Return the variance of one outcome under each query, at the posterior means."""
        return self.model.outcome_variances(self.models, queries)

    def update(self, data: Data) -> "SampledDistribution":
        """Return draws after more observations."""
        return self.again(self.model.with_observations(data))


class UnknownPrior:
    """The prior of draws that were made elsewhere."""

    def canonical(self) -> str:
        """Return "unknown"."""
        return "unknown"


@dataclass(frozen=True, eq=False)
class GivenDraws(ThetaDraws):
    """Draws of theta alone; see `ThetaDistribution`.

    chains: (chains, n, d); draws that are independent may come as one chain or as several.
    """

    response: ResponseMap
    chains: np.ndarray
    size: int  # number of variables upstream of the target, itself included

    model = None
    prior = UnknownPrior()
    stats = MappingProxyType[str, np.ndarray]({})

    @property
    def settings(self) -> str:
        """The draws themselves, on which the numbers depend."""
        return self.chains.tobytes().hex()

    @property
    def learned(self) -> np.ndarray:
        """Whether the density of each variable is learned, (p,): none is."""
        return np.zeros(self.size, bool)

    @property
    def moments_by(self) -> str:
        """The method by which mean and covariance were computed."""
        return f"{self.chains.shape[0]} x {self.chains.shape[1]} given draws"

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Return all draws, or every so-many-th of each chain so that about n remain."""
        return Drawn(len(self.chains), self._theta).thinned(n)

    def draw_prior(self, n: int, key: jax.Array) -> Drawn | None:
        """Return None: the prior is not known."""
        return None

    def importance(self, draws: int, key: jax.Array) -> potentials.Importance:
        """Return equal weights: the density is not known."""
        return potentials.not_assessed(draws, NO_DENSITY)

    def describe(self, lines: pd.DataFrame) -> str:
        """Return a sentence on the number and the quality of the draws."""
        chains, draws, _ = self.chains.shape
        return describe_chains(f"{chains} chains of {draws} given draws", lines)

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """Raise PosteriorError: draws of theta do not determine the variance of an outcome."""
        raise PosteriorError(
            "draws of theta alone do not determine the variance of an outcome; give it as `noise`"
        )

    def update(self, data: Data) -> "GivenDraws":
        """Raise PosteriorError: draws that were made elsewhere cannot be updated."""
        raise PosteriorError(
            "draws that were made elsewhere cannot be updated; draw again with all observations, "
            "or use cb.fit"
        )


def read_draws(draws: object, names: tuple[str, ...]) -> np.ndarray:
    """Return draws of theta as an array (chains, n, d), all finite.

    draws: an array (n, d) or (chains, n, d) in the order of the names, or {name: (n,) or
    (chains, n)}.
    """
    if isinstance(draws, Mapping):
        for name in draws:
            if name not in names:
                raise ArgumentError(f"the draws hold an {unknown('coordinate', name, names)}")
        missing = [name for name in names if name not in draws]
        if missing:
            raise ArgumentError(f"the draws lack the coordinates {listed(missing)}")
        columns = [np.asarray(draws[name]) for name in names]
        if len({column.shape for column in columns}) != 1:
            raise ArgumentError("the coordinates have draws of different shapes; give each as many")
        draws = np.stack(columns, axis=-1)
    array = np.asarray(draws)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3) or array.shape[-1] != len(names):
        raise ArgumentError(
            f"draws need the shape (n, {len(names)}) or (chains, n, {len(names)}) for "
            f"{listed(names, most=6)}; got {array.dtype} of shape {array.shape}"
        )
    array = array.astype(float).reshape(-1, *array.shape[-2:])
    if array.shape[1] < 4 or not np.isfinite(array).all():
        raise ArgumentError("draws must be finite, and at least 4 in each chain")
    return array
