"""What must an acquisition provide, and what may it know about the round? Its protocol.

An acquisition says how much a query is worth, larger is better whatever the objective. All that it
needs beside the surrogate is handed to its optional method `prepare` once for each suggestion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from causal_bo_ppl.errors import DomainError, ModelError
from causal_bo_ppl.mechanisms.interfaces import offered
from causal_bo_ppl.numerics import first_largest, first_smallest
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate

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

    def worth(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
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
    return surrogate.post.belief.response.is_affine if own is None else bool(own)


def sign_of(objective: str) -> float:
    """Return 1 for "max" and -1 for "min": effects times this are the larger the better."""
    return 1.0 if objective == "max" else -1.0


def read_worth(
    rule: Acquisition, surrogate: Surrogate, queries: Queries, objective: str
) -> np.ndarray:
    """Return what an acquisition says; refuse what is not one finite number for each query.

    A log worth may be -inf: the query is worth nothing.
    """
    worth = np.asarray(rule.worth(surrogate, queries, objective))
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
