"""Which acquisitions can be named, combined, and written to a text?

Closed forms are in `analytic`, the expected improvement of the recommendation in `lookahead`; here
costs are subtracted or divided by. `maximize` finds the query with the largest value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ArgumentError, SettingsError
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.mechanisms.base import offered, read_component
from causal_bo_ppl.optimization.analytic import (
    USUAL_BETA,
    BetaSchedule,
    ConfidenceBound,
    Context,
    ExpectedImprovement,
    LogExpectedImprovement,
    PointwiseBound,
    RegretSafeBound,
    Thompson,
    prepare,
    trait,
)
from causal_bo_ppl.optimization.analytic import Acquisition as Acquisition
from causal_bo_ppl.optimization.lookahead import LookAhead
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate


class WithCosts:
    """Base of acquisitions that combine another one, `rule`, with costs."""

    rule: Any

    uses_costs = True

    @property
    def at_vertices(self) -> bool:
        """Whether the value is largest at a vertex where effects are affine."""
        return trait(self.rule, "at_vertices")

    @property
    def is_one_batch(self) -> bool:
        """Whether values can be compared within one batch only."""
        return trait(self.rule, "is_one_batch")

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return trait(self.rule, "is_random")

    def prepare(self, context: Context) -> Any:
        """Return the acquisition for one suggestion."""
        return replace(self, rule=prepare(self.rule, context))  # type: ignore[type-var]


@dataclass(frozen=True)
class PerCost(WithCosts):
    """Another acquisition per unit of cost: value / cost.

    Over costs that are constant + |x| on a box without 0 inside, a convex value that is never
    negative divided by an affine cost is quasi-convex: it is largest at a vertex still.

    Parameters
    ----------
    rule:
        An acquisition that is never negative, by name or as an object; of a logarithm, the log of
        the cost is subtracted. A confidence bound has no zero, so that its ratio to a cost would
        depend on the units of the target: it is refused.

    Raises
    ------
    ArgumentError
        If the other acquisition can be negative.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.acquisition.PerCost("look-ahead").name
    'look-ahead per cost'
    """

    rule: Any

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

    @property
    def is_log(self) -> bool:
        """Whether the value is a logarithm."""
        return trait(self.rule, "is_log")

    @property
    def is_nonnegative(self) -> bool:
        """Whether the value is never negative."""
        return trait(self.rule, "is_nonnegative")

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the value of each query per unit of its cost, (M,)."""
        values = self.rule.value(surrogate, queries, objective)
        costs = surrogate.post.problem.cost(queries)
        return np.asarray(values - np.log(costs) if self.is_log else values / costs)


@dataclass(frozen=True)
class CostSubtracted(WithCosts):
    """Another acquisition less the cost: value - eta cost.

    Parameters
    ----------
    rule:
        An acquisition in units of the target, by name or as an object.
    eta:
        What one unit of cost outweighs, in units of the target.

    Raises
    ------
    ArgumentError
        If the other acquisition is a logarithm.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> cb.acquisition.CostSubtracted("ei", 0.1).name
    'ei less cost'
    """

    rule: Any
    eta: float

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

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the value of each query less its cost, (M,)."""
        values = self.rule.value(surrogate, queries, objective)
        return np.asarray(values - self.eta * surrogate.post.problem.cost(queries))


@dataclass(frozen=True)
class InTurn:
    """Several acquisitions that take turns, one experiment each.

    Looking ahead and a confidence bound in turn learn what decides between the best interventions,
    and try them.

    Parameters
    ----------
    rules:
        Acquisitions by name or as objects, the first one for the first experiment.

    Raises
    ------
    ArgumentError
        If there is none.

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

    def prepare(self, context: Context) -> Acquisition:
        """Return the acquisition whose turn it is."""
        return prepare(self.rules[(context.round - 1) % len(self.rules)], context)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Refuse: whose turn it is depends on the round."""
        raise ArgumentError("whose turn it is depends on the round: call prepare(context) first")


def read_acquisition(given: object, beta: float | None = None) -> Acquisition:
    """Return an acquisition, given by its name or as an object.

    beta: of the confidence bounds that are given by name.
    """
    known: dict[str, Acquisition] = {
        "ucb": ConfidenceBound(beta),
        "ucb-regret-safe": RegretSafeBound(beta),
        "ucb-pointwise": PointwiseBound(beta),
        "ei": ExpectedImprovement(),
        "log-ei": LogExpectedImprovement(),
        "thompson": Thompson(),
        "look-ahead": LookAhead(),
    }
    rule: Acquisition = read_component("acquisition", given, known, "value")
    return rule


WRITTEN_ACQUISITIONS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        ConfidenceBound,
        RegretSafeBound,
        PointwiseBound,
        Thompson,
        ExpectedImprovement,
        LogExpectedImprovement,
        LookAhead,
        PerCost,
        CostSubtracted,
        InTurn,
    )
}


def write_acquisition(rule: Any) -> dict[str, Any]:
    """Return what a text holds of an acquisition; of a user-defined one only its name."""
    kind = type(rule)
    if WRITTEN_ACQUISITIONS.get(kind.__name__) is not kind:
        return {"name": rule.name}
    options: dict[str, Any] = {}
    for each in fields(rule):
        value = getattr(rule, each.name)
        if offered(value, "value"):
            value = write_acquisition(value)
        elif isinstance(value, BetaSchedule):
            value = {"delta": value.delta}
        elif isinstance(value, tuple):
            value = [write_acquisition(part) for part in value]
        if value is None or isinstance(value, bool | int | float | str | dict | list):
            options[each.name] = value
    return {"record": kind.__name__, "options": options}


def read_written_acquisition(written: Mapping[str, Any]) -> Any:
    """Return the acquisition that `write_acquisition` wrote; None for a user-defined one."""
    if "record" not in written:
        return None
    options = dict(written.get("options", {}))
    if "rule" in options:
        options["rule"] = read_written_acquisition(options["rule"])
    if "rules" in options:
        options["rules"] = [read_written_acquisition(part) for part in options["rules"]]
    if isinstance(options.get("beta"), dict):
        options["beta"] = BetaSchedule(**options["beta"])
    try:
        return WRITTEN_ACQUISITIONS[written["record"]](**options)
    except (KeyError, TypeError) as error:
        raise SettingsError(f"the acquisition {written!r} cannot be read: {error}") from None
