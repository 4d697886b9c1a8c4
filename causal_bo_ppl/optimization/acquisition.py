"""Which experiment is best? Acquisitions: their interface, and all that the package knows by name.

The acquisition value of a query is larger the better, whatever the objective. All that an
acquisition needs beside the surrogate is in a `Context`, made once for each suggestion, which also
keeps what is computed once. `maximize` finds the query with the largest value.

Confidence bounds, for `max`: mu + sqrt(beta_t) s_func + lambda s_causal - eta c (practical), with
eps_t in place of lambda s_causal (regret-safe), or with eps_t(z) = sqrt(q J Sigma J') (pointwise);
for `min` the mirrored lower bounds. s_func is the surrogate's sd after all outcomes, s_causal =
sqrt(J Sigma J') that of the posterior before them, q a quantile of chi^2 with dim theta degrees of
freedom. Where effects are affine in the values, mu is affine and both sds are norms of affine
functions, hence convex: the best bound over a box lies at a vertex. A draw of all effects is
affine. With f(x) = a(x) + b(x)'w and w normal, (f(x) - best)_+ is convex in x for every w, and so
is its mean: expected improvement is largest at a vertex as well.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from scipy.stats import chi2

from causal_bo_ppl.errors import ArgumentError, PluginError, SettingsError
from causal_bo_ppl.inputs import (
    offered,
    read_component,
    read_count,
    read_number,
    read_share,
    read_size,
)
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.linalg import first_best, first_largest, sign_of
from causal_bo_ppl.optimization.lookahead import (
    CONTENDERS,
    expected_improvement,
    log_expected_improvement,
    observation_gains,
    outcome_gains,
    promising,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate
from causal_bo_ppl.theory.constants import Beta, BetaSchedule, parameter_error

LOG_VALUE_FLOOR = 50.0  # below the best log value: e^-50 of the best is nothing beside it
Computed = TypeVar("Computed")


@dataclass(frozen=True, eq=False)
class Context:
    """What an acquisition may know beside the surrogate; made once for each suggestion.

    surrogate: with pending experiments and earlier ones of the batch fantasized. objective: "min"
    or "max". candidates: interventions to choose from; their number is |Z| in the schedule of beta.
    recommendable: those one of which is recommended in the end, tried ones or all candidates.
    round: the number of this experiment, from 1. noise: returns the variances of the noise of
    queries' outcomes; None for what the model implies. key: for what is drawn. informs_mechanisms:
    whether whole observations of experiments will update the mechanisms, not only outcomes. exact:
    whether outcomes are the effects themselves, without noise.
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
    _computed: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def sign(self) -> float:
        """1 for "max" and -1 for "min": effects times this are the larger the better."""
        return sign_of(self.objective)

    @property
    def contenders(self) -> Queries:
        """What may be recommended; all candidates where nothing was tried."""
        return self.recommendable if len(self.recommendable) else self.candidates

    @cached_property
    def incumbent(self) -> float:
        """The effect to improve upon, the best mean among what may be recommended."""
        means = self.surrogate.predict(self.contenders).mean
        return float(means[first_best(means, self.objective)])

    @cached_property
    def is_affine(self) -> bool:
        """Whether means of effects are affine in the values, and their sds convex."""
        declared = getattr(self.surrogate, "is_affine", None)
        if declared is None:
            return self.surrogate.post.distribution.response.is_affine
        return bool(declared)

    @cached_property
    def draws_functions(self) -> bool:
        """Whether a key draws one function, whichever queries it is evaluated at.

        A surrogate that factors the covariance of the batch draws another one for every batch.
        """
        queries, key = self.candidates, jax.random.key(0) if self.key is None else self.key
        if len(queries) < 2:
            return True
        ends = (np.array([0, -1]), np.array([-1]))
        both, alone = (np.asarray(self.surrogate.sample(key, queries[rows]))[0] for rows in ends)
        largest = max(float(np.abs(both).max()), float(np.abs(alone).max()))
        return bool(abs(both[1] - alone[0]) <= 1e-8 * largest)

    def once(self, what: Hashable, compute: Callable[[], Computed]) -> Computed:
        """Return what a function computes, called at most once for this suggestion and `what`."""
        if what not in self._computed:
            self._computed[what] = compute()
        found: Computed = self._computed[what]
        return found


class Acquisition(Protocol):
    """Interface of an acquisition: the value of an experiment, given a surrogate of all effects.

    Optional attributes, each with the value that is taken where it is missing; one that wraps
    another acquisition, its `rule`, has the attributes of that:

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
        Whether values can be compared within one batch only; see `Context.draws_functions`.
    is_random = False
        Whether it draws, so that the suggestions of a batch differ by themselves. Otherwise each is
        chosen after fantasizing that those before it came out as predicted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> class PureExploration:
    ...     name = "exploration"
    ...
    ...     def value(self, surrogate, queries, context):
    ...         return surrogate.predict(queries).sd
    >>> cb.Settings(acquisition=PureExploration()).name
    'coupled, exploration'
    """

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the acquisition values of M queries, (M,); larger is better.

        A value must not depend on the rest of the batch. What is the same for all queries of a
        suggestion is found in the context, or computed by `context.once`.
        """


def trait(rule: Acquisition, name: str) -> bool:
    """Return an optional attribute of an acquisition, or its default; see `Acquisition`."""
    wrapped = getattr(rule, "rule", None)
    default = name == "uses_costs" if wrapped is None else trait(wrapped, name)
    return bool(getattr(rule, name, default))


def acquisition_values(rule: Acquisition, queries: Queries, context: Context) -> np.ndarray:
    """Return the acquisition values of M queries, (M,), finite but for logs, which may be -inf."""
    values = np.asarray(rule.value(context.surrogate, queries, context))
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

    Otherwise a tolerance relative to their range would make a tie of everything that matters.
    """
    if not trait(rule, "is_log") or not np.isfinite(values).any():
        return values
    best = values.max()
    return np.asarray(np.maximum(values, best - LOG_VALUE_FLOOR - abs(best)))


def best_position(rule: Acquisition, values: np.ndarray) -> int:
    """Return the position of the largest acquisition value, the first of equally good ones."""
    return first_largest(comparable(rule, values))


BETA_GROWTH = 1.5  # factor of beta where no bound is better than the best exact effect
LEAST_LEAD = 1e-6  # of the effects' size: a bound that is better by less counts as equal
USUAL_BETA, NOISY_BETA = 2.0, 9.0  # see `fixed_beta`
LARGEST_BETA = 1e12  # beyond it an effect is as good as known


def read_beta(beta: object) -> float | BetaSchedule | None:
    """Return a number that is at least 0, or a schedule; "schedule" is `BetaSchedule()`.

    None stays, see `fixed_beta`.
    """
    if beta is None or isinstance(beta, BetaSchedule):
        return beta
    if beta == "schedule":
        return BetaSchedule()
    if isinstance(beta, str):
        choices = 'a number, "schedule" or cb.acquisition.BetaSchedule(delta)'
        raise ArgumentError(f"beta must be {choices}, got {beta!r}")
    return read_size("beta", beta, positive=False)


def fixed_beta(beta: Beta, context: Context) -> float:
    """Return beta as a number, for the round of the context.

    None is 2 where effects are affine in the values or outcomes are exact. Where effects are
    nonlinear and outcomes noisy it is 9: with 2, repeated outcomes of a local optimum hide the
    global one.
    """
    if beta is None:
        return USUAL_BETA if context.is_affine or context.exact else NOISY_BETA
    if isinstance(beta, BetaSchedule):
        return beta.at(context.round, max(len(context.candidates), 1))
    return float(beta)


def causal_sd(context: Context, queries: Queries) -> np.ndarray:
    """Return s_causal(z) = sqrt(J Sigma J') of M queries, (M,): the sd before any outcome."""
    return np.asarray(np.linalg.norm(jacobian_features(context.surrogate.post, queries), axis=1))


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

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the bounds, their sign turned where the target is minimized."""
        mean, sd = surrogate.predict(queries)
        bounds = context.sign * mean + np.sqrt(fixed_beta(self.beta, context)) * sd
        bounds = np.asarray(bounds + self.excess(queries, context))
        return bounds - self.eta * surrogate.post.problem.cost(queries) if self.eta else bounds

    def excess(self, queries: Queries, context: Context) -> np.ndarray | float:
        """Return by how much the bounds are wider than mean + sqrt(beta) sd, (M,) or a number."""
        raise NotImplementedError

    def widen(self, context: Context, candidates: Queries, best: float) -> Any:
        """Return the bound with the least beta, times powers of 1.5, that some candidate needs.

        With it the bound of that candidate is better than an effect that is known exactly.
        """
        if not len(candidates):
            return self
        mean, sd = context.surrogate.predict(candidates)
        size = np.abs(best) + np.ptp(mean)
        short = context.sign * (best - mean) + LEAST_LEAD * size
        sds = np.where(sd > 0, short / np.where(sd > 0, sd, 1.0), np.inf)
        needed = max(float(sds.min()), 0.0)
        beta = fixed_beta(self.beta, context)
        if not 0 < beta < needed**2 < LARGEST_BETA:
            return self
        power = np.ceil(np.log(needed**2 / beta) / np.log(BETA_GROWTH))
        return replace(self, beta=beta * BETA_GROWTH**power)  # type: ignore[type-var]


@dataclass(frozen=True)
class ConfidenceBound(Optimistic):
    """The optimistic value of an effect, mu + sqrt(beta) s_func + causal s_causal - eta cost.

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

    def excess(self, queries: Queries, context: Context) -> np.ndarray | float:
        """Return causal s_causal."""
        return self.causal * causal_sd(context, queries) if self.causal else 0.0


@dataclass(frozen=True)
class RegretSafeBound(Optimistic):
    """The bound mu + sqrt(beta) s_func + eps_t - eta cost, which holds though theta is not known.

    eps_t is the same for every query, so the query chosen is that of `ConfidenceBound`; only the
    reported bound is wider. beta, eta: as in `ConfidenceBound`. delta: the probability at which
    theta may lie farther away. eps: eps_t; None means that of the posterior.
    """

    beta: Beta = 2.0
    delta: float = 0.05
    eta: float = 0.0
    eps: float | None = None

    name = "ucb-regret-safe"

    def excess(self, queries: Queries, context: Context) -> np.ndarray | float:
        """Return eps_t, which is computed once for a suggestion."""
        if self.eps is not None:
            return self.eps
        post, delta = context.surrogate.post, self.delta
        return context.once(("eps", delta), lambda: parameter_error(post, delta=delta).value)


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

    def excess(self, queries: Queries, context: Context) -> np.ndarray | float:
        """Return eps_t(z)."""
        quantile = float(chi2.ppf(1 - self.delta, len(context.surrogate.post.names)))
        return np.asarray(np.sqrt(quantile) * causal_sd(context, queries))


@dataclass(frozen=True)
class Thompson:
    """Thompson sampling: the value of a query is its effect in one draw of all effects.

    Each suggestion has a key of its own, so that a batch is one of independent draws, without
    fantasized outcomes. key: for the draw; None means that of the context. is_one_batch: whether
    values of two batches are never compared, even if a key draws one function for both.
    """

    key: jax.Array | None = None
    is_one_batch: bool = False

    name = "thompson"
    at_vertices = True
    is_random = True
    uses_costs = False

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the effects of one draw, their sign turned where the target is minimized."""
        key = context.key if self.key is None else self.key
        if key is None:
            raise ArgumentError("Thompson sampling draws: give a key to the context")
        drawn = np.asarray(surrogate.sample(key, queries))
        return np.asarray(context.sign * drawn.reshape(-1))


@dataclass(frozen=True)
class ExpectedImprovement:
    """Expected improvement over the best effect so far, E[(f - best)_+] for "max".

    best: the effect to improve upon; None means the best mean of what can be recommended.
    """

    best: float | None = None

    name = "ei"
    at_vertices = True
    uses_costs = False
    is_nonnegative = True

    def __post_init__(self) -> None:
        if self.best is not None:
            object.__setattr__(self, "best", read_number("best", self.best))
            if not np.isfinite(self.best):
                raise ArgumentError(f"best must be finite, got {self.best}")

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the expected improvements, (M,)."""
        mean, sd = surrogate.predict(queries)
        best = context.incumbent if self.best is None else self.best
        return self.improvement(context.sign * (mean - best), sd)

    improvement = staticmethod(expected_improvement)


@dataclass(frozen=True)
class LogExpectedImprovement(ExpectedImprovement):
    """Logarithm of the expected improvement, which still differs where that underflows.

    best: as in `ExpectedImprovement`.
    """

    name = "log-ei"
    is_log = True
    is_nonnegative = False
    improvement = staticmethod(log_expected_improvement)


@dataclass(frozen=True, eq=False)
class LookAhead:
    """Expected improvement of the recommendation by one more outcome, in units of the target.

    Where whole observations of experiments update the mechanisms, the recommendation may lie at any
    of at most 16 candidates, and the value is the upper bound of `lookahead`. The information of
    observations is known for conjugate posteriors; otherwise the outcome alone counts.

    Parameters
    ----------
    most:
        The number of points among which the recommendation may lie, beside the query itself: those
        with the largest mean + 2 sd. Fewer points can only lower the value.
    points, noise:
        The points, and the variances of outcomes as a function of queries; None means those of the
        context.
    informs_mechanisms:
        Whether whole observations count where `points` are given; otherwise the context tells.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.Settings(acquisition=cb.acquisition.LookAhead(most=64)).rule.most
    64
    """

    most: int = 128
    points: Queries | None = None
    noise: Callable[[Queries], np.ndarray] | None = None
    informs_mechanisms: bool = False

    name = "look-ahead"
    at_vertices = False  # how much is learned is not convex in the values
    uses_costs = False
    is_nonnegative = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", read_count("most", self.most, 1))

    def find_points(self, context: Context) -> tuple[Queries, bool]:
        """Return where the recommendation may lie, and whether whole observations count."""
        if self.points is not None:
            return self.points, self.informs_mechanisms
        surrogate, objective = context.surrogate, context.objective
        informs = offered(surrogate, "mean_change_variances")
        if context.informs_mechanisms and informs is not None:
            most = min(self.most, CONTENDERS)
            leading = promising(surrogate, context.candidates, objective, most)
            if informs(leading[:1], leading, leading[:1]) is not None:
                return leading, True
        points = promising(surrogate, context.contenders, objective, self.most)
        return points, self.informs_mechanisms

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the expected improvements of the recommendation, (M,)."""
        points, by_observation = context.once(self, lambda: self.find_points(context))
        if by_observation:
            return observation_gains(surrogate, queries, points, context.sign)
        variances = self.noise or context.noise or surrogate.post.outcome_variances
        return outcome_gains(surrogate, queries, points, context.sign, variances(queries))


@dataclass(frozen=True)
class PerCost:
    """Another acquisition per unit of cost: value / cost.

    rule: an acquisition that is never negative, by name or as an object; of a logarithm, the log of
    the cost is subtracted. What can be negative raises ArgumentError: its ratio to a cost would
    depend on the zero of the target. Over costs that are constant + |x| on a box without 0 inside,
    a convex value divided by an affine cost is quasi-convex: it is largest at a vertex still.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.acquisition.PerCost("look-ahead").name
    'look-ahead per cost'
    """

    rule: Any

    uses_costs = True

    def __post_init__(self) -> None:
        rule = read_acquisition(self.rule, USUAL_BETA)
        if not (trait(rule, "is_nonnegative") or trait(rule, "is_log")):
            raise ArgumentError(
                f"{rule.name!r} can be negative, so that its value per unit of cost means nothing; "
                'take "ei", "log-ei" or "look-ahead", or subtract costs with CostSubtracted'
            )
        object.__setattr__(self, "rule", rule)

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return f"{self.rule.name} per cost"

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the value of each query per unit of its cost, (M,)."""
        values = self.rule.value(surrogate, queries, context)
        costs = surrogate.post.problem.cost(queries)
        return np.asarray(values - np.log(costs) if trait(self, "is_log") else values / costs)


@dataclass(frozen=True)
class CostSubtracted:
    """Another acquisition less the cost: value - eta cost.

    rule: an acquisition in units of the target, by name or as an object; a logarithm raises
    ArgumentError. eta: what one unit of cost outweighs, in units of the target.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.acquisition.CostSubtracted("ei", 0.1).name
    'ei less cost'
    """

    rule: Any
    eta: float

    uses_costs = True
    is_nonnegative = False

    def __post_init__(self) -> None:
        rule = read_acquisition(self.rule, USUAL_BETA)
        if trait(rule, "is_log"):
            raise ArgumentError(
                f"{rule.name!r} is a logarithm, from which no cost can be subtracted; take PerCost"
            )
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "eta", read_size("eta", self.eta, positive=False))

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return f"{self.rule.name} less cost"

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the value of each query less its cost, (M,)."""
        values = self.rule.value(surrogate, queries, context)
        return np.asarray(values - self.eta * surrogate.post.problem.cost(queries))


@dataclass(frozen=True)
class InTurn:
    """Several acquisitions that take turns, one experiment each.

    rules: by name or as objects, the first one for the first experiment.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.acquisition.InTurn(("thompson", "ei")).name
    'thompson, ei in turn'
    """

    rules: Any = ("look-ahead", "ucb")

    def __post_init__(self) -> None:
        given = (self.rules,) if isinstance(self.rules, str) else tuple(self.rules)
        if not given:
            raise ArgumentError("at least one acquisition must be given to take turns")
        rules = tuple(read_acquisition(rule, USUAL_BETA) for rule in given)
        object.__setattr__(self, "rules", rules)

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return ", ".join(rule.name for rule in self.rules) + " in turn"

    def value(self, surrogate: Surrogate, queries: Queries, context: Context) -> np.ndarray:
        """Return the values by the acquisition whose turn it is, (M,)."""
        return in_round(self, context).value(surrogate, queries, context)


def in_round(rule: Acquisition, context: Context) -> Acquisition:
    """Return the acquisition of one suggestion: of several in turn, the one whose turn it is."""
    if isinstance(rule, InTurn):
        return in_round(rule.rules[(context.round - 1) % len(rule.rules)], context)
    if isinstance(rule, PerCost | CostSubtracted):
        return replace(rule, rule=in_round(rule.rule, context))
    return rule


NAMED_ACQUISITIONS: dict[str, Callable[[float | None], Acquisition]] = {
    "ucb": ConfidenceBound,
    "ucb-regret-safe": RegretSafeBound,
    "ucb-pointwise": PointwiseBound,
    "ei": lambda beta: ExpectedImprovement(),
    "log-ei": lambda beta: LogExpectedImprovement(),
    "thompson": lambda beta: Thompson(),
    "look-ahead": lambda beta: LookAhead(),
}


def read_acquisition(given: object, beta: float | None = None) -> Acquisition:
    """Return an acquisition, given by its name or as an object.

    beta: of the confidence bounds that are given by name.
    """
    if isinstance(given, str) and given in NAMED_ACQUISITIONS:
        return NAMED_ACQUISITIONS[given](beta)
    rule: Acquisition = read_component("acquisition", given, NAMED_ACQUISITIONS, "value")
    return rule


WRITTEN_ACQUISITIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (ConfidenceBound, RegretSafeBound, PointwiseBound, Thompson, ExpectedImprovement,
                 LogExpectedImprovement, LookAhead, PerCost, CostSubtracted, InTurn)
}  # fmt: skip


def write_acquisition(rule: Any) -> dict[str, Any]:
    """Return what a text holds of an acquisition; of a user-defined one only its name."""
    kind: type = type(rule)
    if WRITTEN_ACQUISITIONS.get(kind.__name__) is not kind:
        return {"name": rule.name}
    options = {each.name: _write_option(getattr(rule, each.name)) for each in fields(rule)}
    simple = (bool, int, float, str, dict, list, type(None))
    kept = {name: value for name, value in options.items() if isinstance(value, simple)}
    return {"record": kind.__name__, "options": kept}


def _write_option(value: Any) -> Any:
    if offered(value, "value"):
        return write_acquisition(value)
    if isinstance(value, tuple):
        return [write_acquisition(part) for part in value]
    return {"delta": value.delta} if isinstance(value, BetaSchedule) else value


def read_written_acquisition(written: Mapping[str, Any]) -> Any:
    """Return the acquisition that `write_acquisition` wrote; None for a user-defined one."""
    if "record" not in written:
        return None
    try:
        options = {name: _read_option(value) for name, value in written["options"].items()}
        return WRITTEN_ACQUISITIONS[written["record"]](**options)
    except (KeyError, TypeError) as error:
        raise SettingsError(f"the acquisition {written!r} cannot be read: {error}") from None


def _read_option(written: Any) -> Any:
    if isinstance(written, list):
        return [read_written_acquisition(part) for part in written]
    if not isinstance(written, dict):
        return written
    return BetaSchedule(**written) if "delta" in written else read_written_acquisition(written)
