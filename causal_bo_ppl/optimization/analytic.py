"""Which acquisitions have a closed form? Their interface, confidence bounds and improvements.

The acquisition value of a query is larger the better, whatever the objective. All that an
acquisition needs beside the surrogate is given to its optional method `prepare` once for each
suggestion.

Confidence bounds, for `max`: mu + sqrt(beta_t) s_func + lambda s_causal - eta c (practical), with
eps_t in place of lambda s_causal (regret-safe), or with eps_t(z) = sqrt(q J Sigma J') (pointwise);
for `min` the mirrored lower bounds. s_func is the surrogate's sd after all outcomes, s_causal =
sqrt(J Sigma J') that of the posterior before them, q a quantile of chi^2 with dim theta degrees of
freedom. Where effects are affine in the values, mu is affine and both sds are norms of affine
functions, hence convex: the best bound over a box lies at a vertex. A draw of all effects is
affine.

Expected improvement, for `max` and an effect f ~ N(mu, s^2): E[(f - best)_+] = s h(z), z = (mu -
best) / s and h(z) = phi(z) + z Phi(z); for `min` of best - f. It is exactly 0 below z = -38, its
logarithm is not. With R(t) = sqrt(pi/2) erfcx(t / sqrt 2) the ratio of tail and density,

    log h(-t) = -t^2/2 - log(2 pi)/2 + log(1 - t R(t)),    1 - t R(t) = t^-2 - 3 t^-4 + 15 t^-6 ...

Where effects are affine in the values x, f(x) = a(x) + b(x)'w with w normal, (f(x) - best)_+ is
convex in x for every w, and so is its mean: expected improvement is largest at a vertex of a box.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import jax
import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import chi2

from causal_bo_ppl.errors import ArgumentError, PluginError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_number, read_share, read_size
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.linalg import first_largest, first_smallest, tie_width
from causal_bo_ppl.mechanisms.base import offered
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.theory.constants import parameter_error

LOG_VALUE_FLOOR = 50.0  # below the best log value: e^-50 of the best is nothing beside it


class Acquisition(Protocol):
    """Interface of an acquisition: the value of an experiment, given a surrogate of all effects.

    Optional attributes, each with the value that is taken where it is missing:

    prepare(context) -> Acquisition
        The acquisition for one suggestion; see `Context`. By default it is used as it is.
    at_vertices = False
        Whether the value is largest at a vertex of the box wherever f(x) = a(x) + b(x)'w with a and
        b affine in the values x, w normal, and costs that do not depend on x.
    uses_costs = True
        Whether the value depends on the cost of a query.
    is_log = False
        Whether the value is a logarithm, so that -inf is legal and differences are ratios.
    is_nonnegative = False
        Whether the value is an amount that is never negative, so that it can be divided by a cost.
    is_one_batch = False
        Whether values can be compared within one batch only.
    is_random = False
        Whether it draws, so that the suggestions of a batch differ by themselves. Otherwise each is
        chosen after fantasizing that those before it came out as predicted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> class PureExploration:
    ...     name = "exploration"
    ...
    ...     def value(self, surrogate, queries, objective):
    ...         return surrogate.predict(queries).sd
    >>> cb.Settings(acquisition=PureExploration()).name
    'coupled, exploration'
    """

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the acquisition values of M queries, (M,); larger is better.

        A value must depend on the surrogate and the query alone, not on the rest of the batch.
        """


@dataclass(frozen=True, eq=False)
class Context:
    """What an acquisition may know when it is prepared for one suggestion.

    Attributes
    ----------
    surrogate:
        The surrogate now, with pending experiments and earlier ones of the batch fantasized.
    objective:
        "min" or "max".
    candidates:
        Interventions to choose from; their number is |Z| in the schedule of beta.
    recommendable:
        Interventions one of which is recommended in the end: those tried, or all candidates.
    round:
        The number of this experiment, from 1.
    noise:
        Function of queries that returns the variances of their outcomes' noise, (M,); None means
        what the posterior's model implies.
    key:
        For what is drawn.
    informs_mechanisms:
        Whether whole observations of experiments will update the mechanisms, not only outcomes.
    exact:
        Whether outcomes are the effects themselves, without noise.
    """

    surrogate: Surrogate
    objective: str
    candidates: Queries
    recommendable: Queries
    round: int = 1
    noise: Callable[[Queries], np.ndarray] | None = None
    key: jax.Array | None = None
    informs_mechanisms: bool = False
    exact: bool = False

    def incumbent(self) -> float:
        """Return the effect to improve upon, the best mean among `recommendable`."""
        among = self.recommendable if len(self.recommendable) else self.candidates
        means = self.surrogate.predict(among).mean
        return float(means[first_best(means, self.objective)])


def prepare(rule: Acquisition, context: Context) -> Acquisition:
    """Return the acquisition for one suggestion; one without `prepare` is used as it is."""
    method = offered(rule, "prepare")
    prepared: Acquisition = rule if method is None else method(context)
    return prepared


def trait(rule: Acquisition, name: str) -> bool:
    """Return an optional attribute of an acquisition, or its default; see `Acquisition`."""
    return bool(getattr(rule, name, name == "uses_costs"))


def is_affine(surrogate: Surrogate) -> bool:
    """Return whether means of effects are affine in the values, and their sds convex."""
    declared = getattr(surrogate, "is_affine", None)
    return surrogate.post.distribution.response.is_affine if declared is None else bool(declared)


def sign_of(objective: str) -> float:
    """Return 1 for "max" and -1 for "min": effects times this are the larger the better."""
    return 1.0 if objective == "max" else -1.0


def acquisition_values(
    rule: Acquisition, surrogate: Surrogate, queries: Queries, objective: str
) -> np.ndarray:
    """Return the acquisition values of M queries, (M,); a log value may be -inf.

    Raises
    ------
    PluginError
        If they are not one finite number for each query.
    """
    values = np.asarray(rule.value(surrogate, queries, objective))
    wrong = ~np.isfinite(values)
    if trait(rule, "is_log"):
        wrong &= ~np.isneginf(values)
    if values.shape != (len(queries),) or wrong.any():
        raise PluginError(
            f"the acquisition {rule.name!r} gave an array of shape {values.shape} for "
            f"{len(queries)} queries, {int(wrong.sum())} of them not finite; it "
            "must give one finite number for each"
        )
    return values


def comparable(rule: Acquisition, values: np.ndarray) -> np.ndarray:
    """Return the values of n > 0 queries, with a floor far below the best where they are logs.

    Log values reach down without limit, so that a tolerance relative to their range would make a
    tie of everything that matters.
    """
    if not trait(rule, "is_log") or not np.isfinite(values).any():
        return values
    best = values.max()
    return np.asarray(np.maximum(values, best - LOG_VALUE_FLOOR - abs(best)))


def best_position(rule: Acquisition, values: np.ndarray) -> int:
    """Return the position of the largest acquisition value, the first of equally good ones."""
    return first_largest(comparable(rule, values))


def in_tie_widths(values: np.ndarray) -> np.ndarray:
    """Return values as multiples of the width of a tie, equal where only rounding differs."""
    return np.asarray(np.round(values / max(tie_width(values), np.finfo(float).tiny)))


def first_best(values: np.ndarray, objective: str) -> int:
    """Return the position of the best value, the first of equally good ones.

    Candidates come smallest set first, so that a smaller set wins a tie.
    """
    return first_smallest(values if objective == "min" else -values)


BETA_GROWTH = 1.5  # factor of beta where no bound is better than the best exact effect
LEAST_LEAD = 1e-6  # of the effects' size: a bound that is better by less counts as equal
USUAL_BETA, NOISY_BETA = 2.0, 9.0  # see `fixed_beta`
LARGEST_BETA = 1e12  # beyond it an effect is as good as known


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
        return float(2 * (np.log(size) + 2 * np.log(number) + np.log(np.pi**2 / (6 * self.delta))))


Beta = float | str | BetaSchedule | None


def read_beta(beta: object) -> float | BetaSchedule | None:
    """Return a number that is at least 0, or a schedule; "schedule" is `BetaSchedule()`.

    None stays: the number then depends on the situation, see `fixed_beta`.
    """
    if beta is None or isinstance(beta, BetaSchedule):
        return beta
    if isinstance(beta, str):
        if beta != "schedule":
            raise ArgumentError(
                'beta must be a number, "schedule" or cb.acquisition.BetaSchedule(delta), got '
                f"{beta!r}"
            )
        return BetaSchedule()
    return read_size("beta", beta, positive=False)


def fixed_beta(beta: Beta, context: Context) -> float:
    """Return beta as a number, for the round of the context.

    None is 2 where effects are affine in the values or outcomes are exact. Where effects are
    nonlinear and outcomes noisy it is 9: with 2, repeated outcomes of a local optimum hide the
    global one.
    """
    if beta is None:
        return USUAL_BETA if is_affine(context.surrogate) or context.exact else NOISY_BETA
    if isinstance(beta, BetaSchedule):
        return beta.at(context.round, max(len(context.candidates), 1))
    return float(beta)


def optimism(surrogate: Surrogate, queries: Queries, objective: str, beta: Beta) -> np.ndarray:
    """Return the confidence bounds of M effects, their sign turned for "min", (M,)."""
    if not isinstance(beta, int | float):
        raise ArgumentError(
            f"{beta!r} becomes a number in a round: call prepare(context) first, or give a number"
        )
    mean, sd = surrogate.predict(queries)
    return np.asarray(sign_of(objective) * mean + np.sqrt(beta) * sd)


def causal_sd(post: Posterior, queries: Queries) -> np.ndarray:
    """Return s_causal(z) = sqrt(J Sigma J') of M queries, (M,): the sd before any outcome."""
    return np.asarray(np.linalg.norm(jacobian_features(post, queries), axis=1))


class Optimistic:
    """Base of confidence bounds: beta of the round, and costs weighed by eta."""

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
        """Whether the value depends on costs."""
        return self.eta > 0

    def _bounds(
        self, surrogate: Surrogate, queries: Queries, objective: str, extra: np.ndarray | float
    ) -> np.ndarray:
        """Return the bounds plus something less costs, their sign turned for "min"."""
        bounds = optimism(surrogate, queries, objective, self.beta) + extra
        return bounds - self.eta * surrogate.post.problem.cost(queries) if self.eta else bounds

    def prepare(self, context: Context) -> Any:
        """Return the bound with the round's beta."""
        return replace(self, beta=fixed_beta(self.beta, context))  # type: ignore[type-var]

    def widen(self, context: Context, best: float) -> Any:
        """Return the bound with the least beta, times powers of 1.5, that some candidate needs.

        With it the bound of that candidate is better than an effect that is known exactly. The
        bound itself is returned where no effect is uncertain, or where there is no candidate.
        """
        if not len(context.candidates):
            return self
        mean, sd = context.surrogate.predict(context.candidates)
        size = np.abs(best) + np.ptp(mean)
        short = sign_of(context.objective) * (best - mean) + LEAST_LEAD * size
        sds = np.where(sd > 0, short / np.where(sd > 0, sd, 1.0), np.inf)
        needed = max(float(sds.min()), 0.0)
        beta = float(self.beta)
        if not 0 < beta < needed**2 < LARGEST_BETA:
            return self
        power = np.ceil(np.log(needed**2 / beta) / np.log(BETA_GROWTH))
        return replace(self, beta=beta * BETA_GROWTH**power)  # type: ignore[type-var]


@dataclass(frozen=True)
class ConfidenceBound(Optimistic):
    """The optimistic value of an effect, mu + sqrt(beta) s_func + causal s_causal - eta cost.

    For "min" it is the mirrored lower bound.

    Parameters
    ----------
    beta:
        A number, "schedule", `BetaSchedule(delta)`, or None: 2, or 9 where effects are nonlinear
        and outcomes noisy, as for the name "ucb".
    causal:
        The weight lambda of the sd before any outcome; above 0 that uncertainty counts twice.
    eta:
        What one unit of cost outweighs, in units of the target.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.Settings(acquisition=cb.acquisition.ConfidenceBound(4.0)).rule.beta
    4.0
    """

    beta: Beta = 2.0
    causal: float = 0.0
    eta: float = 0.0

    name = "ucb"

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        extra = self.causal * causal_sd(surrogate.post, queries) if self.causal else 0.0
        return self._bounds(surrogate, queries, objective, extra)


@dataclass(frozen=True)
class RegretSafeBound(Optimistic):
    """The bound mu + sqrt(beta) s_func + eps_t - eta cost, which holds though theta is not known.

    eps_t is the same for every query, so the query chosen is that of `ConfidenceBound`; only the
    reported bound is wider.

    Parameters
    ----------
    beta, eta:
        As in `ConfidenceBound`.
    delta:
        The probability at which theta may lie farther away.
    eps:
        eps_t, which `prepare` computes.
    """

    beta: Beta = 2.0
    delta: float = 0.05
    eta: float = 0.0
    eps: float | None = None

    name = "ucb-regret-safe"

    def prepare(self, context: Context) -> Any:
        """Return the bound with the round's beta and eps_t, which is computed once."""
        return replace(super().prepare(context), eps=self._error(context.surrogate.post))

    def _error(self, post: Posterior) -> float:
        return parameter_error(post, delta=self.delta).value if self.eps is None else self.eps

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        return self._bounds(surrogate, queries, objective, self._error(surrogate.post))


@dataclass(frozen=True)
class PointwiseBound(Optimistic):
    """The bound mu + sqrt(beta) s_func + eps_t(z) - eta cost with eps_t(z) = sqrt(q J Sigma J').

    q is the 1 - delta quantile of chi^2 with dim theta degrees of freedom. It is the confidence
    bound with the causal weight sqrt(q), and never wider than the regret-safe one. beta, delta and
    eta are as in `RegretSafeBound`.
    """

    beta: Beta = 2.0
    delta: float = 0.05
    eta: float = 0.0

    name = "ucb-pointwise"

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        quantile = float(chi2.ppf(1 - self.delta, len(surrogate.post.names)))
        extra = np.sqrt(quantile) * causal_sd(surrogate.post, queries)
        return self._bounds(surrogate, queries, objective, extra)


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling: the value of a query is its effect in one draw of all effects.

    Each suggestion has a key of its own, so that a batch is one of independent draws, without
    fantasized outcomes. key and is_one_batch are found by `prepare`.
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
            raise ArgumentError("Thompson sampling draws: give a key to the context")
        is_function = draws_functions(context.surrogate, context.candidates, key)
        return replace(self, key=key, is_one_batch=not is_function)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the effects of one draw, their sign turned where the target is minimized."""
        if self.key is None:
            raise ArgumentError("Thompson sampling draws: call prepare(context) with a key first")
        drawn = np.asarray(surrogate.sample(queries, 1, self.key))
        return np.asarray(sign_of(objective) * drawn.reshape(-1))


def draws_functions(surrogate: Surrogate, queries: Queries, key: jax.Array) -> bool:
    """Return whether a key draws one function, whichever queries it is evaluated at.

    A surrogate with finitely many weights draws these. One that factors the covariance of the
    batch draws another function for every batch; values of two batches then cannot be compared.
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
FAR_TAIL = 50.0
TAIL_SERIES = (-10395.0, 945.0, -105.0, 15.0, -3.0, 1.0)  # of t^-2, the highest power first


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
    close = np.minimum(t, FAR_TAIL)
    inner = np.log1p(-close * np.sqrt(np.pi / 2) * erfcx(close / np.sqrt(2)))
    far = np.maximum(t, FAR_TAIL)
    outer = np.log(np.polyval(TAIL_SERIES, far**-2.0)) - 2 * np.log(far)
    with np.errstate(over="ignore"):
        below = -0.5 * t * t - HALF_LOG_2PI + np.where(t > FAR_TAIL, outer, inner)
    return np.asarray(np.where(z > 1, above, np.where(z < -1, below, middle)))


def _density(z: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * z * z - HALF_LOG_2PI))


def expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return E[(gain + sd N(0, 1))_+], (M,); max(gain, 0) where sd is 0."""
    z = _ratio(gain, sd)
    with np.errstate(invalid="ignore"):
        uncertain = np.where(np.isfinite(z), sd * standard_improvement(z), np.maximum(gain, 0.0))
    return np.asarray(np.where(sd > 0, uncertain, np.maximum(gain, 0.0)))


def log_expected_improvement(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return log E[(gain + sd N(0, 1))_+], (M,).

    Where sd is 0 it is log(gain), or -inf where nothing is gained.
    """
    z = _ratio(gain, sd)
    with np.errstate(divide="ignore"):
        certain = np.log(np.maximum(gain, 0.0))
        uncertain = np.log(sd) + log_standard_improvement(np.where(np.isfinite(z), z, 0.0))
    return np.asarray(np.where((sd > 0) & np.isfinite(z), uncertain, certain))


def _ratio(gain: np.ndarray, sd: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return np.asarray(gain / np.where(sd > 0, sd, 1.0))


class Improvement:
    """Base of expected improvements: the effect to improve upon."""

    best: float | None

    at_vertices = True
    uses_costs = False

    def __post_init__(self) -> None:
        if self.best is None:
            return
        object.__setattr__(self, "best", read_number("best", self.best))
        if not np.isfinite(self.best):
            raise ArgumentError(f"best must be finite, got {self.best}")

    def prepare(self, context: Context) -> Any:
        """Return the acquisition with the effect to improve upon."""
        best = context.incumbent() if self.best is None else self.best
        return replace(self, best=best)  # type: ignore[type-var]

    def _gains(
        self, surrogate: Surrogate, queries: Queries, objective: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much each predicted effect is better than the best, and its sd."""
        if self.best is None:
            raise ArgumentError(
                "the effect to improve upon is not known: call prepare(context) first, or give best"
            )
        mean, sd = surrogate.predict(queries)
        return sign_of(objective) * (mean - self.best), sd


@dataclass(frozen=True)
class ExpectedImprovement(Improvement):
    """Expected improvement over the best effect so far, E[(f - best)_+] for "max".

    best: the effect to improve upon; None means the best mean of what can be recommended, which
    `prepare` finds.
    """

    best: float | None = None

    name = "ei"
    is_nonnegative = True

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the expected improvements, (M,)."""
        return expected_improvement(*self._gains(surrogate, queries, objective))


@dataclass(frozen=True)
class LogExpectedImprovement(Improvement):
    """Logarithm of the expected improvement, which still differs where that underflows.

    best: as in `ExpectedImprovement`.
    """

    best: float | None = None

    name = "log-ei"
    is_log = True

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the logarithms of the expected improvements, (M,)."""
        return log_expected_improvement(*self._gains(surrogate, queries, objective))
