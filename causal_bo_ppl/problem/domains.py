"""Which values may variables be set to, alone and together?

A domain is an interval (low, high), or a finite list of levels: the settings of a dial, or the
doses that are in stock. The extreme levels are then the domain's low and high.

A linear constraint is lower <= sum_i c_i x_i <= upper over the variables that are set: a budget, a
capacity, a mixture that must add up to one. Only what is set can be constrained. So the terms of
variables that an intervention does not set are not part of the sum, as if they were 0, and a
constraint of which no variable is set does not apply.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Union

import numpy as np

from causal_bo_ppl.errors import DomainError, listed, unknown
from causal_bo_ppl.inputs import read_list, read_number, size_fault

if TYPE_CHECKING:
    from causal_bo_ppl.graph import CausalGraph

Bounds = tuple[float, float]
Domain = Union[Bounds, "Levels"]

# Of a domain's width: a value this near to a level is that level, as after a round trip through a
# file. Levels must be farther apart than twice this.
LEVEL_ROUNDING = 1e-9
# Of the range of the sum over the domains: a sum may pass a bound by this, since the vertices of a
# region and values that were read from a file are rounded.
SUM_SLACK = 1e-9
SUM_ROUNDING = 16 * np.finfo(float).eps  # of the sizes of the terms: offsets far from 0 are rounded


@dataclass(frozen=True)
class Levels:
    """A finite list of the values to which a variable may be set.

    Parameters
    ----------
    values:
        At least two finite numbers, all different; they are sorted.

    Raises
    ------
    DomainError
        If there are fewer than two levels, or some are repeated, nearly equal or not finite.

    Examples
    --------
    >>> Levels([20, 0, 5, 10])
    Levels([0, 5, 10, 20])
    >>> Levels([0, 5, 10, 20]).bounds
    (0.0, 20.0)
    """

    values: tuple[float, ...]

    def __init__(self, values: Iterable[float]) -> None:
        object.__setattr__(self, "values", _read_levels(values))

    @property
    def bounds(self) -> tuple[float, float]:
        """The extreme levels (low, high)."""
        return self.values[0], self.values[-1]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[float]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Levels([{show_levels(self.values)}])"


def show_levels(values: tuple[float, ...], most: int = 20) -> str:
    """Return the levels for a message or a table, cut after `most`."""
    return listed((f"{value:.15g}" for value in values), most)


def _read_levels(values: object) -> tuple[float, ...]:
    given = None if isinstance(values, str | bytes) else read_list(values)
    if given is None:
        raise DomainError(f"levels must be a list such as Levels([0, 5, 10]), got {values!r}")
    numbers = sorted(read_number("a level", level) for level in given)
    if not np.isfinite(numbers).all():
        raise DomainError(f"the levels {listed(numbers)} are not all finite; remove those")
    if len(numbers) < 2:
        raise DomainError(
            f"there are {len(numbers)} levels ({listed(numbers)}); give at least two, or treat the "
            "variable as a constant"
        )
    steps = np.diff(numbers)
    if not (steps > 2 * LEVEL_ROUNDING * (numbers[-1] - numbers[0])).all():
        near = int(np.argmin(steps))
        raise DomainError(
            f"the level {numbers[near]:.17g} is repeated, or too close to {numbers[near + 1]:.17g} "
            "to be distinguished from it; give every level once"
        )
    return tuple(numbers)


def nearest_levels(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return for every value the nearest level, the lower one of two equally near."""
    positions = np.asarray(levels)
    after = np.clip(np.searchsorted(positions, values), 1, len(positions) - 1)
    below, above = positions[after - 1], positions[after]
    return np.asarray(np.where(values - below <= above - values, below, above))


def are_levels(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return which values are levels, up to the rounding of a file; NaN is none."""
    width = levels[-1] - levels[0]
    is_near = np.abs(values - nearest_levels(values, levels)) <= LEVEL_ROUNDING * width
    return np.asarray(is_near)


@dataclass(frozen=True)
class LinearConstraint:
    """A linear constraint lower <= sum_i c_i x_i <= upper on the values that are set.

    Parameters
    ----------
    coefficients:
        {variable: coefficient} of manipulable variables, none of them 0.
    lower, upper:
        The bounds of the sum; at least one of them. Equal bounds fix the sum.
    when:
        Which interventions are constrained. "any" (default): every one that sets at least one of
        the variables; variables that it does not set count as 0. This is the meaning of a budget.
        "all": only those that set all of the variables, which is the meaning of a relation such as
        "X is at most Z": {"X": 1, "Z": -1}, upper=0.

    Raises
    ------
    DomainError
        If a coefficient or a bound is not finite, or both bounds are missing or contradict.

    Notes
    -----
    A sum may pass a bound by 1e-9 of its range over the domains. Minimal intervention sets
    (sets="mis" or "pomis") are found by the graph alone. A set that is not minimal has the effects
    of a smaller one, but a constraint may allow other values for it: name the sets yourself where
    such sets matter.

    Examples
    --------
    >>> LinearConstraint({"X": 1.0, "Z": 2.0}, upper=10.0)
    LinearConstraint(X + 2 Z <= 10)
    >>> LinearConstraint({"X": 1.0, "Z": -1.0}, lower=-5, upper=0, when="all")
    LinearConstraint(-5 <= X - Z <= 0, when='all')
    """

    coefficients: dict[str, float]
    lower: float | None = field(default=None, kw_only=True)
    upper: float | None = field(default=None, kw_only=True)
    when: str = field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", _read_coefficients(self.coefficients))
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _read_bound(name, getattr(self, name)))
        if self.lower is None and self.upper is None:
            raise DomainError(f"the constraint on {self._sum()} has no bound; give lower or upper")
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise DomainError(
                f"the constraint {self} has its lower bound above its upper; swap them"
            )
        if not isinstance(self.when, str) or self.when not in ("any", "all"):
            raise DomainError(f'when must be "any" or "all", got {self.when!r}')

    def __hash__(self) -> int:
        return hash((*self.coefficients.items(), self.lower, self.upper, self.when))

    def __str__(self) -> str:
        if self.lower is not None and self.lower == self.upper:
            return f"{self._sum()} = {self.lower:.15g}"
        if self.upper is None:
            return f"{self._sum()} >= {self.lower:.15g}"
        below = "" if self.lower is None else f"{self.lower:.15g} <= "
        return f"{below}{self._sum()} <= {self.upper:.15g}"

    def __repr__(self) -> str:
        when = "" if self.when == "any" else f", when={self.when!r}"
        return f"LinearConstraint({self}{when})"

    def _sum(self) -> str:
        terms = ""
        for name, coefficient in self.coefficients.items():
            size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.15g} "
            sign = "-" if coefficient < 0 else "+"
            terms += f"{f' {sign} ' if terms else sign.removeprefix('+')}{size}{name}"
        return terms

    def applies(self, members: tuple[str, ...]) -> bool:
        """Return whether interventions on these variables are constrained."""
        rule = any if self.when == "any" else all
        return rule(name in members for name in self.coefficients)


def _read_coefficients(given: object) -> dict[str, float]:
    if not isinstance(given, Mapping) or not given:
        raise DomainError(
            f"a constraint needs coefficients such as {{'X': 1.0, 'Z': 2.0}}, got {given!r}"
        )
    coefficients = {name: read_number(name, number) for name, number in given.items()}
    for name, coefficient in coefficients.items():
        if not math.isfinite(coefficient) or coefficient == 0:
            raise DomainError(
                f"the coefficient of {name!r} in a constraint is {coefficient}; give a finite "
                "number that is not 0, or remove the variable"
            )
        if fault := size_fault(abs(coefficient)):
            raise DomainError(f"the coefficient of {name!r} in a constraint has the size {fault}")
    return coefficients


def _read_bound(name: str, bound: object) -> float | None:
    number = None if bound is None else read_number(name, bound)
    if number is not None and not math.isfinite(number):
        raise DomainError(f"the bound {name} of a constraint is {number}; give None instead")
    return number


def require_mapping(what: str, given: object, example: str) -> None:
    """Refuse what is no mapping."""
    if not isinstance(given, Mapping):
        raise DomainError(f"{what} must be a mapping such as {example}, got {given!r}")


def read_domains(
    graph: "CausalGraph", target: str, domains: Mapping[str, Domain]
) -> dict[str, Bounds]:
    """Return the domains in graph order, each a finite interval of an ancestor of the target."""
    require_mapping("domains", domains, "{'X': (-1, 1)}")
    if not domains:
        raise DomainError(
            "no variable may be set; give at least one domain, for example {'X': (-1, 1)}"
        )
    if target in domains:
        raise DomainError(
            f"the target {target!r} is among the manipulable variables; remove it from the domains"
        )
    causes = graph.ancestors(target)
    for name in domains:
        if name not in graph.positions:
            raise DomainError(unknown("manipulable variable", name, graph.nodes))
        if name not in causes:
            raise DomainError(
                f"{name!r} cannot affect {target!r}: it is not among its causes "
                f"({listed(causes)}); remove it"
            )
    return {name: _read_bounds(name, domains[name]) for name in graph.ordered(domains)}


def _read_bounds(name: str, bounds: Domain) -> Bounds:
    bounds = bounds.bounds if isinstance(bounds, Levels) else bounds
    try:
        low, high = (read_number(name, bound) for bound in bounds)
    except (TypeError, ValueError):
        raise DomainError(
            f"the domain of {name!r} must be a pair of numbers (low, high), got {bounds!r}"
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise DomainError(
            f"the domain of {name!r} is [{low}, {high}]; both bounds must be finite, and low below "
            "high"
        )
    if fault := size_fault(max(abs(low), abs(high))):
        raise DomainError(f"the domain of {name!r} reaches {fault}")
    if fault := size_fault(high - low, most=math.inf):
        raise DomainError(f"the domain of {name!r} has the width {fault}")
    return low, high


def read_levels(
    graph: "CausalGraph", domains: Mapping[str, Domain]
) -> dict[str, tuple[float, ...]]:
    """Return the levels of the variables that have some, in graph order."""
    given = {name: domains[name] for name in graph.ordered(domains)}
    return {name: each.values for name, each in given.items() if isinstance(each, Levels)}


def read_constraints(
    domains: Mapping[str, Bounds], constraints: Iterable[LinearConstraint]
) -> tuple[LinearConstraint, ...]:
    """Return the constraints, each on manipulable variables, named in graph order."""
    given = read_list(constraints)
    if given is None or not all(isinstance(constraint, LinearConstraint) for constraint in given):
        raise DomainError(
            "constraints must be a list such as [LinearConstraint({'X': 1.0}, upper=2.0)], got "
            f"{constraints!r}"
        )
    ordered = []
    for constraint in given:
        for name in constraint.coefficients:
            if name not in domains:
                fault = unknown("manipulable variable", name, domains)
                raise DomainError(f"the constraint {constraint}: {fault}")
        terms = {name: x for name in domains if (x := constraint.coefficients.get(name))}
        ordered.append(replace(constraint, coefficients=terms))
    return tuple(ordered)


@dataclass(frozen=True, eq=False)
class Budget:
    """A constraint as arrays over p variables in a fixed order.

    coefficients: (p,), 0 for variables it does not name. low, high: the domains (p,); 0 for
    variables that are not manipulable.
    """

    constraint: LinearConstraint
    coefficients: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def read(
        cls,
        constraint: LinearConstraint,
        nodes: tuple[str, ...],
        domains: Mapping[str, tuple[float, float]],
    ) -> "Budget":
        """Return the constraint as arrays in the order of the nodes."""
        low, high = np.array([domains.get(name, (0.0, 0.0)) for name in nodes]).T
        coefficients = np.array([constraint.coefficients.get(name, 0.0) for name in nodes])
        return cls(constraint, coefficients, low, high)

    def sums(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the sums (M,) over what is set; `mask` and `value` have the shape (M, p)."""
        return np.asarray((self.coefficients * np.where(mask, value, 0.0)).sum(axis=1))

    def slack(self, mask: np.ndarray) -> np.ndarray:
        """Return by how much the sums may pass their bounds, an array of shape (M,)."""
        size = np.abs(self.coefficients)
        wide = size * (self.high - self.low)
        largest = size * np.maximum(np.abs(self.low), np.abs(self.high))
        allowed = SUM_SLACK * wide + SUM_ROUNDING * largest
        return np.asarray(np.where(mask, allowed, 0.0).sum(axis=1))

    def is_kept(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return which interventions keep the constraint, or are not subject to it, (M,)."""
        named = mask[:, self.coefficients != 0]
        applies = named.any(axis=1) if self.constraint.when == "any" else named.all(axis=1)
        sums, slack = self.sums(mask, value), self.slack(mask)
        lower, upper = self.constraint.lower, self.constraint.upper
        is_high_enough = True if lower is None else sums >= lower - slack
        is_low_enough = True if upper is None else sums <= upper + slack
        return np.asarray(~applies | (is_high_enough & is_low_enough))
