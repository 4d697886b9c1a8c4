"""May this problem be posed?

Each part of a problem is checked here once, and put into the order of the graph's nodes.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from numbers import Integral
from typing import TypeVar, cast

from causal_bo_ppl.errors import (
    CausalBOWarning,
    DomainError,
    ExplorationError,
    GraphError,
    listed,
    unknown,
)
from causal_bo_ppl.graph import CausalGraph, mis, pomis
from causal_bo_ppl.graph.intervention_sets import (
    MOST_SETS,
    FoundSets,
    in_order,
    narrow_domains,
    subsets,
)
from causal_bo_ppl.inputs import LARGEST_SLOPE, read_list, read_number, size_fault
from causal_bo_ppl.problem.domains import Levels, LinearConstraint

Set = tuple[str, ...]
Bounds = tuple[float, float]
Domain = Bounds | Levels
Function = TypeVar("Function", bound=Callable[..., object])
Edge = tuple[str, str]
Sets = str | int | Iterable[str | Iterable[str]]


def read_objective(objective: str) -> str:
    """Return the objective; refuse anything but "min" and "max"."""
    if not isinstance(objective, str) or objective not in ("min", "max"):
        raise DomainError(f'objective must be "min" or "max", got {objective!r}')
    return objective


def read_flag(name: str, flag: object) -> bool:
    """Return a switch; refuse anything but True and False."""
    if not isinstance(flag, bool):
        raise DomainError(f"{name} must be True or False, got {flag!r}")
    return flag


def read_units(graph: CausalGraph, units: Mapping[str, str]) -> dict[str, str]:
    """Return the units by variable, in graph order."""
    _require_mapping("units", units, "{'X': 'mg'}")
    return {name: str(units[name]) for name in graph.require(units)}


def _require_mapping(what: str, given: object, example: str) -> None:
    if not isinstance(given, Mapping):
        raise DomainError(f"{what} must be a mapping such as {example}, got {given!r}")


def read_domains(
    graph: CausalGraph, target: str, domains: Mapping[str, Domain]
) -> dict[str, Bounds]:
    """Return the domains in graph order, each a finite interval of an ancestor of the target."""
    _require_mapping("domains", domains, "{'X': (-1, 1)}")
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
    return {name: _read_bounds(name, domains[name]) for name in graph.require(domains)}


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


def read_levels(graph: CausalGraph, domains: Mapping[str, Domain]) -> dict[str, tuple[float, ...]]:
    """Return the levels of the variables that have some, in graph order."""
    given = {name: domains[name] for name in graph.require(domains)}
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


def read_function(name: str, function: Function | None) -> Function | None:
    """Return a function of `Queries`, or None; refuse anything else."""
    if function is not None and not callable(function):
        raise DomainError(f"{name} must be a function of Queries, got {function!r}")
    return function


def warn_of_restricted_values() -> None:
    """Warn that POMIS assumes a free choice of values."""
    warnings.warn(
        "POMIS assumes that every value of a set's domains may be chosen; constraints and a "
        "function `feasible` may rule out the best of a set that it prefers: use sets='mis', or "
        "name the sets",
        CausalBOWarning,
        stacklevel=3,
    )


def read_known(graph: CausalGraph, known: Mapping[Edge, float]) -> dict[Edge, float]:
    """Return the known coefficients in graph order, each of an edge that the graph has."""
    _require_mapping("known", known, "{('X', 'Z'): 0.8}")
    edges = frozenset(graph.directed)
    for edge, value in known.items():
        if edge not in edges:
            raise GraphError(
                f"known holds a coefficient for {edge!r}, which is no edge; "
                f"edges: {listed(graph.directed)}"
            )
        label = " -> ".join(edge)
        number = read_number(label, value)
        if not math.isfinite(number) or number == 0:
            raise DomainError(
                f"the known coefficient of {label} is {value}; give a finite number, or drop the "
                "edge where it is 0"
            )
        if fault := size_fault(abs(number), 0.0, LARGEST_SLOPE):
            raise DomainError(f"the known coefficient of {label} has the size {fault}")
    return {edge: float(known[edge]) for edge in graph.directed if edge in known}


def read_rule(sets: Sets | FoundSets) -> str | int | None:
    """Return the rule for the sets, "mis", "pomis" or a largest size; None for named sets."""
    if isinstance(sets, FoundSets):
        return sets.rule
    if isinstance(sets, Integral):
        return int(sets)
    return sets if isinstance(sets, str) else None


def read_sets(
    graph: CausalGraph,
    target: str,
    domains: Mapping[str, Bounds],
    sets: Sets,
    known: Mapping[Edge, float],
) -> tuple[Set, ...]:
    """Return a problem's intervention sets, without the empty one: doing nothing is observing."""
    found = expand_sets(graph, target, sets, domains)
    if isinstance(sets, str) and sets == "pomis":
        _warn_of_narrow_domains(graph, target, domains, known, found)
    if len(found) > MOST_SETS:
        raise ExplorationError(
            f"{len(found):,} sets are too many to explore; give at most {MOST_SETS:,}"
        )
    kept = tuple(members for members in found if members)
    if not kept:
        raise ExplorationError(
            "no intervention set is left to try besides the empty one; give other sets or domains"
        )
    return kept


def expand_sets(
    graph: CausalGraph, target: str, sets: Sets, manipulable: Collection[str] | None = None
) -> tuple[Set, ...]:
    """Return the intervention sets that `sets` stands for, smallest first, the empty one too.

    Parameters
    ----------
    sets:
        "mis", "pomis", a largest size, or the sets themselves.
    manipulable:
        The variables that may be in a set; all causes of the target where this is None.
    """
    names = graph.ancestors(target) if manipulable is None else tuple(manipulable)
    if isinstance(sets, str) and sets in ("mis", "pomis"):
        return mis(graph, target, names) if sets == "mis" else pomis(graph, target, names)
    if isinstance(sets, str | bool) or not isinstance(sets, Integral | Iterable):
        raise ExplorationError(
            'sets must be "mis", "pomis", a largest size, or a list of sets such as '
            f'[("X", "Z")]; got {sets!r}'
        )
    if isinstance(sets, Integral):
        return tuple(subsets(names, int(sets)))
    chosen = in_order(graph, [_read_set(target, members, manipulable) for members in sets])
    if idle := [name for name in graph.require(set().union(*chosen)) if name not in names]:
        raise DomainError(
            f"{listed(idle)} cannot affect {target!r}, whose causes are {listed(names)}; remove it"
        )
    return chosen


def _read_set(
    target: str, members: str | Iterable[str], manipulable: Collection[str] | None
) -> Set:
    """Return the members of one set; refuse the target and what is not manipulable."""
    alone = isinstance(members, str) or not isinstance(members, Iterable)
    names = cast(Set, (members,) if alone else tuple(members))
    if not all(isinstance(name, str) for name in names):
        raise ExplorationError(f"a set is a name or several names, got {members!r}")
    if target in names:
        raise DomainError(f"the target {target!r} stands in the set {names}; it cannot be set")
    if manipulable is not None:
        for name in names:
            if name not in manipulable:
                raise DomainError(unknown("manipulable variable", name, manipulable))
    return names


def _warn_of_narrow_domains(
    graph: CausalGraph,
    target: str,
    domains: Mapping[str, Bounds],
    known: Mapping[Edge, float],
    kept: tuple[Set, ...],
) -> None:
    widths = {name: high - low for name, (low, high) in domains.items()}
    pairs = narrow_domains(graph, target, widths, known, kept)
    if pairs:
        shown = listed(f"{name} when {cause} is set" for cause, name in pairs)
        warnings.warn(
            "POMIS assumes that a domain covers the values its variable takes when something "
            f"upstream is set; that is uncertain for {shown} (unknown coefficients taken as 1): "
            "widen that domain, or use sets='mis'",
            CausalBOWarning,
            stacklevel=4,
        )
