"""How much is an experiment worth? All acquisitions by name, and what costs make of them.

Bounds and draws are in `confidence`, improvement over the best in `improvement`, improvement of the
recommendation in `lookahead`; here costs are subtracted or divided by. Where to look for the best
query is the subject of `search`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.inputs import read_size
from causal_bo_ppl.mechanisms.base import offered, read_record
from causal_bo_ppl.optimization.analytic import Acquisition as Acquisition
from causal_bo_ppl.optimization.analytic import BetaSchedule as BetaSchedule
from causal_bo_ppl.optimization.analytic import (
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
from causal_bo_ppl.optimization.analytic import confidence_bound as confidence_bound
from causal_bo_ppl.optimization.analytic import first_best as first_best
from causal_bo_ppl.optimization.lookahead import LookAhead
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.surrogates import Surrogate


class Wrapped:
    """What acquisitions that change the worth of another one share.

    rule: the other acquisition.
    """

    rule: Any

    uses_costs = True

    @property
    def _inner(self) -> Acquisition:
        inner: Acquisition = self.rule
        return inner

    @property
    def at_vertices(self) -> bool:
        """Whether the worth is largest at a vertex where effects are affine."""
        return trait(self._inner, "at_vertices")

    @property
    def is_one_batch(self) -> bool:
        """Whether worths can be compared within one batch only."""
        return trait(self._inner, "is_one_batch")

    @property
    def is_random(self) -> bool:
        """Whether it draws."""
        return trait(self._inner, "is_random")

    def prepare(self, context: Context) -> Any:
        """Return the acquisition for one suggestion."""
        return replace(self, rule=prepare(self._inner, context))  # type: ignore[type-var]


@dataclass(frozen=True)
class PerCost(Wrapped):
    """What another acquisition gives per unit of cost: worth / cost.

    rule: an acquisition that is never negative, by name or as a record; of a logarithm, the log of
    the cost is subtracted. A confidence bound has no zero, so that its ratio to a cost would depend
    on the units of the target: it is refused.

    Over costs that are constant + |x| on a box without 0 inside, a convex worth that is never
    negative divided by a cost that is affine is quasi-convex: it is largest at a vertex still.
    """

    rule: Acquisition | str

    def __post_init__(self) -> None:
        rule = read_acquisition(self.rule, 2.0)
        if not (trait(rule, "is_nonnegative") or trait(rule, "is_log")):
            raise ModelError(
                f"{rule.name!r} can be negative, so that its worth per unit of cost means nothing; "
                'take "ei", "log-ei" or "look-ahead", or subtract costs with CostSubtracted'
            )
        object.__setattr__(self, "rule", rule)

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return f"{self._inner.name} per cost"

    @property
    def is_log(self) -> bool:
        """Whether the worth is a logarithm."""
        return trait(self._inner, "is_log")

    @property
    def is_nonnegative(self) -> bool:
        """Whether the worth is never negative."""
        return trait(self._inner, "is_nonnegative")

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the worth of each query per unit of its cost, (M,)."""
        worth = self._inner.value(surrogate, queries, objective)
        costs = surrogate.post.problem.cost(queries)
        return np.asarray(worth - np.log(costs) if self.is_log else worth / costs)


@dataclass(frozen=True)
class CostSubtracted(Wrapped):
    """What another acquisition is worth less the cost: worth - eta cost.

    rule: an acquisition in units of the target, by name or as a record. eta: what one unit of cost
    outweighs, in units of the target.
    """

    rule: Acquisition | str
    eta: float

    def __post_init__(self) -> None:
        rule = read_acquisition(self.rule, 2.0)
        if trait(rule, "is_log"):
            raise ModelError(
                f"{rule.name!r} is a logarithm, from which no cost can be subtracted; take PerCost"
            )
        object.__setattr__(self, "rule", rule)
        object.__setattr__(self, "eta", read_size("eta", self.eta, positive=False))

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return f"{self._inner.name} less cost"

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Return the worth of each query less its cost, (M,)."""
        worth = self._inner.value(surrogate, queries, objective)
        return np.asarray(worth - self.eta * surrogate.post.problem.cost(queries))


@dataclass(frozen=True)
class InTurn:
    """Several acquisitions that take turns, one experiment each.

    rules: acquisitions by name or as records, the first one for the first experiment. Looking ahead
    and a confidence bound in turn learn what decides between the best interventions, and try them.
    """

    rules: tuple[Acquisition | str, ...] = ("look-ahead", "ucb")

    def __post_init__(self) -> None:
        given = (self.rules,) if isinstance(self.rules, str) else tuple(self.rules)
        rules = tuple(read_acquisition(each, 2.0) for each in given)
        if not rules:
            raise ModelError("which acquisitions take turns? Give at least one")
        object.__setattr__(self, "rules", rules)

    @property
    def _inner(self) -> tuple[Acquisition, ...]:
        inner: Any = self.rules
        return tuple(inner)

    @property
    def name(self) -> str:
        """The name of the acquisition, for tables and messages."""
        return ", ".join(rule.name for rule in self._inner) + " in turn"

    def prepare(self, context: Context) -> Acquisition:
        """Return the acquisition whose turn it is."""
        return prepare(self._inner[(context.round - 1) % len(self._inner)], context)

    def value(self, surrogate: Surrogate, queries: Queries, objective: str) -> np.ndarray:
        """Refuse: whose turn it is depends on the round."""
        raise ModelError("whose turn is it? Call prepare(context) first")


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
    rule: Acquisition = read_record("acquisition", given, known, "value")
    return rule


RECORDS: dict[str, type] = {
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
    """Return what a text keeps of an acquisition: of one's own only its name."""
    kind = type(rule)
    if RECORDS.get(kind.__name__) is not kind:
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
    """Return the acquisition that `write_acquisition` wrote; None for one of one's own."""
    if "record" not in written:
        return None
    options = dict(written.get("options", {}))
    if isinstance(options.get("rule"), dict):
        options["rule"] = read_written_acquisition(options["rule"])
    if isinstance(options.get("rules"), list):
        options["rules"] = [read_written_acquisition(each) for each in options["rules"]]
    if isinstance(options.get("beta"), dict):
        options["beta"] = BetaSchedule(**options["beta"])
    try:
        return RECORDS[written["record"]](**options)
    except (KeyError, TypeError) as error:
        raise ModelError(f"the acquisition {written!r} cannot be read: {error}") from None
