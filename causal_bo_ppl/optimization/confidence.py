"""Optimism in the face of doubt: confidence bounds, and one draw of all effects.

For `max`, mu + sqrt(beta_t) s_func + lambda s_causal - eta c (practical), with eps_t in place of
lambda s_causal (regret-safe), or with eps_t(z) = sqrt(q J Sigma J') (pointwise); for `min` the
mirrored lower bounds. s_func is the surrogate's sd after all outcomes, s_causal = sqrt(J Sigma J')
that of the posterior before them, q a quantile of chi^2 with dim theta degrees of freedom.

Where effects are affine in the values, mu is affine and both sds are norms of affine functions,
hence convex: the best bound over a box lies at a vertex. A draw of all effects is affine.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import chi2

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inputs import read_count, read_share, read_size
from causal_bo_ppl.kernels.jacobian import jacobian_features
from causal_bo_ppl.optimization.interface import Context, is_affine, sign_of
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Prediction, Surrogate
from causal_bo_ppl.theory.constants import parameter_error

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
                f'beta must be a number, "schedule" or cb.BetaSchedule(delta), got {beta!r}'
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

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
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

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
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

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
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

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
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
