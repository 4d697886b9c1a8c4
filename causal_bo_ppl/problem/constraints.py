"""Which values may be set together?

A linear constraint is lower <= sum_i c_i x_i <= upper over the variables that are set: a budget, a
capacity, a mixture that must add up to one. Only what one sets can be constrained. So the terms of
variables that an intervention leaves alone are left out of the sum, as if they were 0, and a
constraint of which no variable is set says nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inputs import read_number, size_fault

# Of the range of the sum over the domains: a sum may pass a bound by this, since the vertices of a
# region and values that were read from a file are rounded.
SLACK = 1e-9
ROUNDING = 16 * np.finfo(float).eps  # of the sizes of the terms: offsets far from 0 are rounded


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
        the variables; the terms of variables that it does not set are left out, that is, they count
        as 0. This is the meaning of a budget. "all": only those that set all of the variables,
        which is the meaning of a relation such as "X is at most Z": {"X": 1, "Z": -1}, upper=0.

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
        below = "" if self.lower is None else f"{self.lower:.15g} <= "
        above = "" if self.upper is None else f" <= {self.upper:.15g}"
        return f"{below}{self._sum()}{above}" if above else f"{self._sum()} >= {self.lower:.15g}"

    def __repr__(self) -> str:
        when = "" if self.when == "any" else f", when={self.when!r}"
        return f"LinearConstraint({self}{when})"

    def _sum(self) -> str:
        terms: list[str] = []
        for name, coefficient in self.coefficients.items():
            size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.15g} "
            sign = "-" if coefficient < 0 else "+"
            lead = f" {sign} " if terms else sign.removeprefix("+")
            terms.append(f"{lead}{size}{name}")
        return "".join(terms)

    def applies(self, members: tuple[str, ...]) -> bool:
        """Return whether interventions on these variables are constrained."""
        rule = any if self.when == "any" else all
        return rule(name in members for name in self.coefficients)


def _read_coefficients(given: object) -> dict[str, float]:
    if not isinstance(given, Mapping) or not given:
        raise DomainError(
            f"a constraint needs coefficients such as {{'X': 1.0, 'Z': 2.0}}, got {given!r}"
        )
    found = {}
    for name, number in given.items():
        coefficient = read_number(name, number)
        if not math.isfinite(coefficient) or coefficient == 0:
            raise DomainError(
                f"the coefficient of {name!r} in a constraint is {coefficient}; give a finite "
                "number that is not 0, or leave the variable out"
            )
        if fault := size_fault(abs(coefficient)):
            raise DomainError(f"the coefficient of {name!r} in a constraint has the size {fault}")
        found[name] = coefficient
    return found


def _read_bound(name: str, bound: object) -> float | None:
    if bound is None:
        return None
    number = read_number(name, bound)
    if not math.isfinite(number):
        raise DomainError(f"the bound {name} of a constraint is {number}; leave it out instead")
    return number


@dataclass(frozen=True, eq=False)
class Budget:
    """A constraint as arrays over p variables in a fixed order.

    coefficients: (p,), 0 for variables it does not name. lower, upper: -inf and inf where there is
    no bound. low, high: the domains (p,); 0 for what is not manipulable.
    """

    constraint: LinearConstraint
    coefficients: np.ndarray
    lower: float
    upper: float
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
        return cls(
            constraint,
            np.array([constraint.coefficients.get(name, 0.0) for name in nodes]),
            -math.inf if constraint.lower is None else constraint.lower,
            math.inf if constraint.upper is None else constraint.upper,
            low,
            high,
        )

    def sums(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the sums (M,) over what is set; `mask` and `value` have the shape (M, p)."""
        return np.asarray((self.coefficients * np.where(mask, value, 0.0)).sum(axis=1))

    def slack(self, mask: np.ndarray) -> np.ndarray:
        """Return by how much the sums may pass their bounds, an array of shape (M,)."""
        size = np.abs(self.coefficients)
        wide = size * (self.high - self.low)
        largest = size * np.maximum(np.abs(self.low), np.abs(self.high))
        allowed = SLACK * wide + ROUNDING * largest
        return np.asarray(np.where(mask, allowed, 0.0).sum(axis=1))

    def is_kept(self, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return which interventions keep the constraint, or are not subject to it, (M,)."""
        named = mask[:, self.coefficients != 0]
        applies = named.any(axis=1) if self.constraint.when == "any" else named.all(axis=1)
        sums, slack = self.sums(mask, value), self.slack(mask)
        return np.asarray(~applies | ((sums >= self.lower - slack) & (sums <= self.upper + slack)))
