"""What must an acquisition provide, and what may it know about the round? Its protocol.

An acquisition says how much a query is worth, larger is better whatever the objective. All that it
needs beside the surrogate is handed to its optional method `prepare` once for each suggestion.

Optimism in the face of doubt: confidence bounds, and one draw of all effects.

For `max`, mu + sqrt(beta_t) s_func + lambda s_causal - eta c (practical), with eps_t in place of
lambda s_causal (regret-safe), or with eps_t(z) = sqrt(q J Sigma J') (pointwise); for `min` the
mirrored lower bounds. s_func is the surrogate's sd after all outcomes, s_causal = sqrt(J Sigma J')
that of the posterior before them, q a quantile of chi^2 with dim theta degrees of freedom.

Where effects are affine in the values, mu is affine and both sds are norms of affine functions,
hence convex: the best bound over a box lies at a vertex. A draw of all effects is affine.

By how much may an experiment beat the best so far? Expected improvement and its logarithm.

For `max` and an effect f ~ N(mu, s^2), E[(f - best)_+] = s h(z), z = (mu - best) / s and
h(z) = phi(z) + z Phi(z); for `min` of best - f. Plain EI is exactly 0 below z = -38, its logarithm
is not. With R(t) = sqrt(pi/2) erfcx(t / sqrt 2) the ratio of tail and density,

    log h(-t) = -t^2/2 - log(2 pi)/2 + log(1 - t R(t)),    1 - t R(t) = t^-2 - 3 t^-4 + 15 t^-6 ...

Where effects are affine in the values x, f(x) = a(x) + b(x)'w with w normal, (f(x) - best)_+ is
convex in x for every w, and so is its mean: expected improvement is largest at a vertex of a box.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import chi2

from causal_bo_ppl.errors import DomainError, ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count, read_number, read_share, read_size
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.linalg import first_largest, first_smallest
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Prediction, Surrogate
from causal_bo_ppl.theory.constants import parameter_error

LOG_FLOOR = 50.0  # of a log worth below the best: e^-50 of the best is worth nothing beside it


class Acquisition(Protocol):
    """How much a query is worth, given what is believed about all effects.

    Optional, each with the value that is taken where it is missing:

    prepare(context) -> Acquisition
        The acquisition for one suggestion; see `Context`. By default it is used as it stands.
    at_vertices = False
        Whether the worth is largest at a vertex of the box wherever f(x) = a(x) + b(x)'w with a and
        b affine in the values x, w normal, and costs that do not depend on x.
    uses_costs = True
        Whether the cost of a query enters its worth.
    is_log = False
        Whether the worth is a logarithm, so that -inf is legal and differences are ratios.
    is_nonnegative = False
        Whether the worth is an amount that is never negative, so that it can be divided by a cost.
    is_one_batch = False
        Whether worths can be compared within one batch only.
    is_random = False
        Whether it draws, so that the suggestions of a batch differ by themselves. Otherwise each is
        chosen as if those before it had come out as predicted.
    """

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the worth of M queries, (M,); larger is better, whatever the objective.

        It must depend on the surrogate and the query alone, not on the other queries of the batch.
        """


@dataclass(frozen=True, eq=False)
class Context:
    """What an acquisition may know when it is prepared for one suggestion.

    Attributes
    ----------
    surrogate:
        What is believed now, pending experiments and earlier ones of the batch imagined.
    objective:
        "min" or "max".
    candidates:
        Interventions to choose from; their number is |Z| in the schedule of beta.
    recommendable:
        Interventions of which one is recommended in the end: those tried, or all candidates.
    round:
        The number of this experiment, from 1.
    best:
        The effect to improve upon; None means the best mean among `recommendable`.
    noise:
        Function of queries that returns the variances of their outcomes' noise, (M,); None means
        what the posterior's model implies.
    key:
        For what is drawn.
    rows:
        Whether whole rows of experiments will teach the mechanisms, not only their outcomes.
    exact:
        Whether outcomes are the effects themselves, without noise.
    """

    surrogate: Surrogate
    objective: str
    candidates: Queries
    recommendable: Queries
    round: int = 1
    best: float | None = None
    noise: Callable[[Queries], np.ndarray] | None = None
    key: jax.Array | None = None
    rows: bool = False
    exact: bool = False

    def incumbent(self) -> float:
        """Return the effect to improve upon."""
        if self.best is not None:
            return float(self.best)
        among = self.recommendable if len(self.recommendable) else self.candidates
        means = self.surrogate.predict(among).mean
        return float(means[first_best(means, self.objective)])


def prepare(rule: Acquisition, context: Context) -> Acquisition:
    """Return the acquisition for one suggestion; one without `prepare` is used as it stands."""
    method = offered(rule, "prepare")
    prepared: Acquisition = rule if method is None else method(context)
    return prepared


def trait(rule: Acquisition, name: str) -> bool:
    """Return what an acquisition says about itself, or the default; see `Acquisition`."""
    return bool(getattr(rule, name, name == "uses_costs"))


def is_affine(surrogate: Surrogate) -> bool:
    """Return whether means of effects are affine in the values, and their sds convex."""
    own = getattr(surrogate, "is_affine", None)
    return surrogate.post.distribution.response.is_affine if own is None else bool(own)


def sign_of(objective: str) -> float:
    """Return 1 for "max" and -1 for "min": effects times this are the larger the better."""
    return 1.0 if objective == "max" else -1.0


def read_worth(
    rule: Acquisition, surrogate: Surrogate, queries: Queries, objective: str
) -> np.ndarray:
    """Return what an acquisition says; refuse what is not one finite number for each query.

    A log worth may be -inf: the query is worth nothing.
    """
    worth = np.asarray(rule.value(surrogate, queries, objective))
    wrong = ~np.isfinite(worth)
    if trait(rule, "is_log"):
        wrong &= ~np.isneginf(worth)
    if worth.shape != (len(queries),) or wrong.any():
        raise ModelError(
            f"the acquisition {rule.name!r} gave an array of shape {worth.shape} for "
            f"{len(queries)} queries, {int(wrong.sum())} of them not finite; it "
            "must give one finite number for each"
        )
    return worth


def comparable(rule: Acquisition, worth: np.ndarray) -> np.ndarray:
    """Return worths of n > 0 queries whose range says what a small difference is.

    Log worths reach down without limit, so that their range would make a tie of everything that
    matters; those far below the best are raised to one floor.
    """
    if not trait(rule, "is_log") or not np.isfinite(worth).any():
        return worth
    best = worth.max()
    return np.asarray(np.maximum(worth, best - LOG_FLOOR - abs(best)))


def most_worth(rule: Acquisition, worth: np.ndarray) -> int:
    """Return the place of the largest worth, the first one where several are equally good."""
    if not len(worth):
        raise DomainError("there is no intervention to choose from")
    return first_largest(comparable(rule, worth))


def first_best(values: np.ndarray, objective: str) -> int:
    """Return the place of the best value, the first one where several are equally good.

    Candidates come smallest set first, so that a smaller set wins a tie.
    """
    if not len(values):
        raise DomainError("there is no intervention to choose from")
    return first_smallest(values if objective == "min" else -values)


WIDER = 1.5  # by which beta grows where no bound beats the best effect that is known exactly
HAIR = 1e-6  # of the effects' size: a bound that is better by less does not beat it
USUAL_BETA, NOISY_BETA = 2.0, 9.0  # see `fixed_beta`
MOST_BETA = 1e12  # beyond it an effect is as good as known


@dataclass(frozen=True)
class BetaSchedule:
    """The schedule beta_t = 2 log(|Z| t^2 pi^2 / (6 delta)) of a finite domain of |Z| queries.

    With it all bounds of all rounds hold together with probability 1 - delta at least.

    Examples
    --------
    >>> round(BetaSchedule(0.1).at(1, 100), 2), round(BetaSchedule(0.1).at(20, 100), 2)
    (14.81, 26.79)
    """

    delta: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", read_share("delta", self.delta))

    def at(self, number: int, size: int) -> float:
        """Return beta in round `number`, counted from 1, among `size` queries."""
        number, size = read_count("number", number, 1), read_count("size", size, 1)
        spread = np.log(size) + 2 * np.log(number) + np.log(np.pi**2 / (6 * self.delta))
        return float(2 * spread)


Beta = float | str | BetaSchedule | None


def read_beta(beta: object) -> float | BetaSchedule | None:
    """Return a number that is at least 0, or a schedule; "schedule" is `BetaSchedule()`.

    None stays: what is taken then depends on what is asked, see `fixed_beta`.
    """
    if beta is None:
        return None
    if isinstance(beta, str):
        if beta != "schedule":
            raise ModelError(
                f'beta must be a number, "schedule" or cb.acquisition.BetaSchedule(delta), got {beta!r}'
            )
        return BetaSchedule()
    return beta if isinstance(beta, BetaSchedule) else read_size("beta", beta, positive=False)


def fixed_beta(beta: Beta, context: Context) -> float:
    """Return beta as a number, for the round that the context describes.

    None is 2 where effects are affine in the values or outcomes are exact. Where effects bend and
    outcomes are noisy it is 9: with 2, repeated outcomes of a local optimum hide the global one.
    """
    given = read_beta(beta)
    if given is None:
        return USUAL_BETA if is_affine(context.surrogate) or context.exact else NOISY_BETA
    if isinstance(given, BetaSchedule):
        return given.at(context.round, max(len(context.candidates), 1))
    return given


def optimism(surrogate: Surrogate, queries: Queries, objective: str, beta: Beta) -> np.ndarray:
    """Return the confidence bounds of M effects, their sign turned for "min", (M,)."""
    if not isinstance(beta, int | float):
        raise ModelError(
            f"{beta!r} becomes a number in a round: call prepare(context) first, or give a number"
        )
    return sign_of(objective) * confidence_bound(surrogate.predict(queries), beta, objective)


def confidence_bound(predicted: Prediction, beta: float, objective: str) -> np.ndarray:
    """Return the optimistic value of each effect, (M,)."""
    return np.asarray(predicted.mean + sign_of(objective) * np.sqrt(beta) * predicted.sd)


def causal_sd(post: Posterior, queries: Queries) -> np.ndarray:
    """Return s_causal(z) = sqrt(J Sigma J') of M queries, (M,): doubt before any outcome."""
    return np.asarray(np.linalg.norm(jacobian_features(post, queries), axis=1))


def priced(surrogate: Surrogate, queries: Queries, eta: float) -> np.ndarray | float:
    """Return eta times the cost of each query; no cost is computed where eta is 0."""
    return eta * surrogate.post.problem.cost(queries) if eta > 0 else 0.0


class Bound:
    """What confidence bounds share: beta of the round, and costs that eta weighs."""

    beta: Any
    eta: float

    at_vertices = True

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if each.name == "beta":
                value = read_beta(value)
            elif each.name == "delta":
                value = read_share("delta", value)
            elif value is not None:
                value = read_size(each.name, value, positive=False)
            object.__setattr__(self, each.name, value)

    @property
    def uses_costs(self) -> bool:
        """Whether costs enter."""
        return self.eta > 0

    def prepare(self, context: Context) -> Any:
        """Return the bound with the round's beta."""
        return replace(self, beta=fixed_beta(self.beta, context))  # type: ignore[type-var]

    def widen(self, context: Context, best: float) -> Any:
        """Return the bound with the least beta, times powers of 1.5, that some candidate needs.

        It needs it for its bound to be better than an effect that is known exactly. The bound
        itself is returned where none is in doubt, or where there is no candidate.
        """
        if not len(context.candidates):
            return self
        mean, sd = context.surrogate.predict(context.candidates)
        short = sign_of(context.objective) * (best - mean) + HAIR * (np.abs(best) + np.ptp(mean))
        sds = np.where(sd > 0, short / np.where(sd > 0, sd, 1.0), np.inf)
        needed = max(float(sds.min()), 0.0)
        beta = float(self.beta)
        if not 0 < beta < needed**2 < MOST_BETA:
            return self
        power = np.ceil(np.log(needed**2 / beta) / np.log(WIDER))
        return replace(self, beta=beta * WIDER**power)  # type: ignore[type-var]


@dataclass(frozen=True)
class ConfidenceBound(Bound):
    """The optimistic value of an effect, mu + sqrt(beta) s_func + causal s_causal - eta cost.

    beta: a number, "schedule", `BetaSchedule(delta)` or None, see `fixed_beta`. causal: the weight
    lambda of the doubt about theta before any outcome; above 0 that doubt counts twice. eta: what
    one unit of cost outweighs, in units of the target. For "min" it is the mirrored lower bound.
    """

    beta: Beta = 2.0
    causal: float = 0.0
    eta: float = 0.0

    name = "ucb"

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        worth = optimism(surrogate, queries, objective, self.beta)
        if self.causal > 0:
            worth = worth + self.causal * causal_sd(surrogate.post, queries)
        return np.asarray(worth - priced(surrogate, queries, self.eta))


class ErrorBound(NamedTuple):
    """How far effects may be off because theta is not known, and whether saying so says anything.

    value: eps_t, the same for every query. pointwise: the largest of the bounds by each query's
    own sd. spread: the range of the predicted effects among which one is chosen.
    """

    value: float
    pointwise: float
    spread: float

    @property
    def is_vacuous(self) -> bool:
        """Whether the bound exceeds the range of all predicted effects: then it rules out none."""
        return not self.value < self.spread

    def __str__(self) -> str:
        words = (
            f"effects may be off by {self.value:.3g}, by {self.pointwise:.3g} when each is judged "
            f"by its own sd; predicted effects span {self.spread:.3g}"
        )
        return f"{words}: the bound is vacuous" if self.is_vacuous else words


def error_bound(surrogate: Surrogate, queries: Queries, delta: float = 0.05) -> ErrorBound:
    """Compute eps_t of the surrogate's posterior, beside the range of the effects of some queries.

    eps_t = L times the radius of theta at level delta; effects are computed in closed form, so that
    no error of Monte Carlo is added.
    """
    error, means = parameter_error(surrogate.post, delta=delta), surrogate.predict(queries).mean
    return ErrorBound(error.value, error.pointwise, float(np.ptp(means)) if len(means) else 0.0)


@dataclass(frozen=True)
class RegretSafeBound(Bound):
    """The bound mu + sqrt(beta) s_func + eps_t - eta cost, which holds though theta is not known.

    eps_t is the same for every query, so the query chosen is that of `ConfidenceBound`; only the
    bound that is reported with it is wider. `error_bound` says whether it is vacuous. delta: the
    probability at which theta may lie farther away.
    """

    beta: Beta = 2.0
    delta: float = 0.05
    eta: float = 0.0
    eps: float | None = None

    name = "ucb-regret-safe"

    def prepare(self, context: Context) -> Any:
        """Return the bound with the round's beta and eps_t, which is computed once."""
        eps = self.eps
        if eps is None:
            eps = parameter_error(context.surrogate.post, delta=self.delta).value
        return replace(super().prepare(context), eps=eps)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        eps = self.eps
        if eps is None:
            eps = parameter_error(surrogate.post, delta=self.delta).value
        worth = optimism(surrogate, queries, objective, self.beta)
        return np.asarray(worth + eps - priced(surrogate, queries, self.eta))


@dataclass(frozen=True)
class PointwiseBound(Bound):
    """The bound mu + sqrt(beta) s_func + eps_t(z) - eta cost with eps_t(z) = sqrt(q J Sigma J').

    q is the 1 - delta quantile of chi^2 with dim theta degrees of freedom. It is the confidence
    bound with the causal weight sqrt(q), and never wider than the regret-safe one.
    """

    beta: Beta = 2.0
    delta: float = 0.05
    eta: float = 0.0

    name = "ucb-pointwise"

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        post = surrogate.post
        quantile = float(chi2.ppf(1 - self.delta, len(post.names)))
        worth = optimism(surrogate, queries, objective, self.beta)
        worth = worth + np.sqrt(quantile) * causal_sd(post, queries)
        return np.asarray(worth - priced(surrogate, queries, self.eta))


@dataclass(frozen=True)
class Thompson:
    """One draw of all effects decides all sets at once: the worth of a query is its drawn effect.

    Each suggestion has a key of its own, so that a batch is one of independent draws: none of them
    is imagined to have come out before the next.
    """

    key: jax.Array | None = None
    is_one_batch: bool = False

    name = "thompson"
    at_vertices = True
    is_random = True
    uses_costs = False

    def prepare(self, context: Context) -> "Thompson":
        """Return the draw of this suggestion."""
        key = context.key if self.key is None else self.key
        if key is None:
            raise ModelError("Thompson sampling draws: give the context, or Thompson(key), a key")
        fixed = draws_functions(context.surrogate, context.candidates, key)
        return replace(self, key=key, is_one_batch=not fixed)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the effects of one draw, their sign turned where the target is minimized."""
        if self.key is None:
            raise ModelError("Thompson sampling draws: call prepare(context) with a key first")
        drawn = np.asarray(surrogate.sample(queries, 1, self.key))
        return np.asarray(sign_of(objective) * drawn.reshape(-1))


def draws_functions(surrogate: Surrogate, queries: Queries, key: jax.Array) -> bool:
    """Return whether a key draws one function, whichever queries it is evaluated at.

    A surrogate with finitely many weights draws these. One that factors the covariance of the
    batch draws another function for every batch; worths of two batches then cannot be compared.
    """
    if len(queries) < 2:
        return False
    both = np.asarray(surrogate.sample(queries[np.array([0, len(queries) - 1])], 1, key))
    alone = np.asarray(surrogate.sample(queries[len(queries) - 1], 1, key))
    gap = abs(float(both[0, 1] - alone[0, 0]))
    return bool(gap <= 1e-8 * max(float(np.abs(both).max()), float(np.abs(alone).max())))


HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
# Beyond t = 50 the sum 1 - t R(t) has lost 2500 units of its last digit, while the series, cut
# after six terms, is off by 135135 / 50^12 = 6e-16.
FAR = 50.0
SERIES = (-10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)  # of t^-2, the highest power first


def standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return h(z) = phi(z) + z Phi(z), the expected positive part of z + N(0, 1)."""
    z = np.asarray(z, float)
    density = np.exp(-0.5 * z * z - HALF_LOG_2PI)
    with np.errstate(over="ignore"):
        middle = density + np.where(np.isneginf(z), 0.0, z) * ndtr(z)
    tail = np.exp(log_standard_improvement(np.minimum(z, -1.0)))
    return np.asarray(np.where(z < -1, tail, middle))


def log_standard_improvement(z: np.ndarray) -> np.ndarray:
    """Return log h(z), finite for z down to -1e150, with slope |z| in the far tail."""
    z = np.asarray(z, float)
    near = np.maximum(z, -1.0)
    # log h = log phi + log(1 + z Phi / phi) from -1 to 1, and log z + log(Phi + phi / z) above
    high = np.maximum(z, 1.0)
    above = np.log(high) + np.log(np.exp(log_ndtr(high)) + _density(high) / high)
    around = np.clip(near, -1.0, 1.0)
    middle = np.log(_density(around) + around * ndtr(around))
    t = np.maximum(-z, 1.0)
    close = np.minimum(t, FAR)
    inner = np.log1p(-close * np.sqrt(np.pi / 2) * erfcx(close / np.sqrt(2)))
    far = np.maximum(t, FAR)
    outer = np.log(np.polyval(SERIES, far**-2.0)) - 2 * np.log(far)
    with np.errstate(over="ignore"):
        below = -0.5 * t * t - HALF_LOG_2PI + np.where(t > FAR, outer, inner)
    return np.asarray(np.where(z > 1, above, np.where(z < -1, below, middle)))


def _density(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * z * z - HALF_LOG_2PI))


def expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return E[(gain + sd N(0, 1))_+], (M,); max(gain, 0) where sd is 0."""
    z = _ratio(gain, sd)
    with np.errstate(invalid="ignore"):
        doubtful = np.where(np.isfinite(z), sd * standard_improvement(z), np.maximum(gain, 0.0))
    return np.asarray(np.where(sd > 0, doubtful, np.maximum(gain, 0.0)))


def log_expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log E[(gain + sd N(0, 1))_+], (M,).

    Where sd is 0 it is log(gain), or -inf where nothing is gained.
    """
    z = _ratio(gain, sd)
    with np.errstate(divide="ignore"):
        certain = np.log(np.maximum(gain, 0.0))
        doubtful = np.log(sd) + log_standard_improvement(np.where(np.isfinite(z), z, 0.0))
    return np.asarray(np.where((sd > 0) & np.isfinite(z), doubtful, certain))


def _ratio(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.asarray(gain / np.where(sd > 0, sd, 1.0))


@dataclass(frozen=True)
class ExpectedImprovement:
    """Expected improvement over the best effect so far, E[(f - best)_+] for "max".

    best: the effect to improve upon; None means the best mean of what can be recommended, which
    `prepare` finds.
    """

    best: float | None = None

    name = "ei"
    at_vertices = True
    uses_costs = False
    is_nonnegative = True

    def __post_init__(self) -> None:
        _read_best(self)

    def prepare(self, context: Context) -> "ExpectedImprovement":
        """Return the acquisition with the effect to improve upon."""
        return self if self.best is not None else replace(self, best=context.incumbent())

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the expected improvements, (M,)."""
        return expected_improvement(*_gains(self.best, surrogate, queries, objective))


@dataclass(frozen=True)
class LogExpectedImprovement:
    """Logarithm of the expected improvement, which tells queries apart where that underflows.

    best: as in `ExpectedImprovement`.
    """

    best: float | None = None

    name = "log-ei"
    at_vertices = True
    uses_costs = False
    is_log = True

    def __post_init__(self) -> None:
        _read_best(self)

    def prepare(self, context: Context) -> "LogExpectedImprovement":
        """Return the acquisition with the effect to improve upon."""
        return self if self.best is not None else replace(self, best=context.incumbent())

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the logarithms of the expected improvements, (M,)."""
        return log_expected_improvement(*_gains(self.best, surrogate, queries, objective))


def _read_best(rule: ExpectedImprovement | LogExpectedImprovement) -> None:
    if rule.best is None:
        return
    best = read_number("best", rule.best)
    if not np.isfinite(best):
        raise ModelError(f"best must be finite, got {best}")
    object.__setattr__(rule, "best", best)


def _gains(
    best: float | None, surrogate: Surrogate, queries: Queries, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much each predicted effect is better than the best, and its sd."""
    if best is None:
        raise ModelError(
            "improvement over what? Call prepare(context) first, or give best=, the effect to "
            "improve upon"
        )
    mean, sd = surrogate.predict(queries)
    return sign_of(objective) * (mean - best), sd
