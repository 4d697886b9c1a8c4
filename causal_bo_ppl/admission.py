"""May this problem be posed? Each part of a problem is checked here once, and put into graph order."""

import math
import warnings
from collections.abc import Iterable, Mapping

from causal_bo_ppl.errors import CausalBOWarning, DomainError, ExplorationError, GraphError, listed, unknown
from causal_bo_ppl.exploration import mis, narrow_domains, pomis, subsets
from causal_bo_ppl.graph import CausalGraph

Set = tuple[str, ...]
Bounds = tuple[float, float]
Edge = tuple[str, str]
Sets = str | int | Iterable[str | Iterable[str]]


def read_target(graph: CausalGraph, target: str) -> str:
    """The target, which must have at least one cause."""
    graph.require([target], "target")
    if not graph.ancestors(target):
        others = listed(name for name in graph.nodes if graph.ancestors(name))
        raise GraphError(
            f"the target {target!r} has no causes in the graph; nothing can change it (others have: {others})"
        )
    return target


def read_objective(objective: str) -> str:
    """Either "min" or "max"."""
    if objective not in ("min", "max"):
        raise DomainError(f'objective must be "min" or "max", got {objective!r}')
    return objective


def read_number(name: str, number: object) -> float:
    """A real number for a variable; not a bool, a text or an array."""
    try:
        if isinstance(number, bool | str | bytes | complex):
            raise TypeError
        return float(number)  # type: ignore[arg-type]
    except TypeError:
        raise DomainError(f"the value of {name!r} must be a real number, got {number!r}") from None


def read_domains(graph: CausalGraph, target: str, domains: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """The domains in graph order, each a finite interval of an ancestor of the target."""
    if not domains:
        raise DomainError("no variable may be set; give at least one domain, for example {'X': (-1, 1)}")
    if target in domains:
        raise DomainError(f"the target {target!r} is among the manipulable variables; leave it out of the domains")
    causes = graph.ancestors(target)
    for name in domains:
        if name not in graph.nodes:
            raise DomainError(unknown("manipulable variable", name, graph.nodes))
        if name not in causes:
            raise DomainError(
                f"{name!r} cannot affect {target!r}: it is not among its causes ({listed(causes)}); leave it out"
            )
    return {name: _read_bounds(name, domains[name]) for name in graph.require(domains)}


def _read_bounds(name: str, bounds: Bounds) -> Bounds:
    try:
        low, high = (read_number(name, bound) for bound in bounds)
    except (TypeError, ValueError):
        raise DomainError(f"the domain of {name!r} must be a pair of numbers (low, high), got {bounds!r}") from None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise DomainError(f"the domain of {name!r} is [{low}, {high}]; both bounds must be finite")
    if low == high:
        raise DomainError(f"the domain of {name!r} is the single value {low}; fix it as a constant instead")
    if low > high:
        raise DomainError(f"the domain of {name!r} is [{low}, {high}], its low above its high; swap them")
    return low, high


def read_known(graph: CausalGraph, known: Mapping[Edge, float]) -> dict[Edge, float]:
    """Known coefficients, each of an edge that the graph has."""
    for edge, value in known.items():
        if edge not in graph.directed:
            raise GraphError(
                f"known holds a coefficient for {edge!r}, which is no edge; edges: {listed(graph.directed)}"
            )
        if not math.isfinite(read_number(" -> ".join(edge), value)):
            raise DomainError(f"the known coefficient of {' -> '.join(edge)} is {value}; give a finite number")
    return {edge: float(known[edge]) for edge in graph.directed if edge in known}


def read_sets(
    graph: CausalGraph, target: str, domains: Mapping[str, Bounds], sets: Sets, known: Mapping[Edge, float]
) -> tuple[Set, ...]:
    """The intervention sets, without the empty one: doing nothing is observing."""
    if sets == "mis":
        found = mis(graph, target, domains)
    elif sets == "pomis":
        found = pomis(graph, target, domains)
        _warn_of_narrow_domains(graph, target, domains, known)
    elif isinstance(sets, str | bool):
        raise ExplorationError(f'sets must be "mis", "pomis", a largest size, or the sets themselves; got {sets!r}')
    elif isinstance(sets, int):
        found = tuple(subsets(domains, sets))
    else:
        found = tuple(dict.fromkeys(_read_set(graph, target, domains, members) for members in sets))
    kept = tuple(members for members in found if members)
    if not kept:
        raise ExplorationError("no intervention set is left to try besides the empty one; give other sets or domains")
    return kept


def _read_set(graph: CausalGraph, target: str, domains: Mapping[str, Bounds], members: str | Iterable[str]) -> Set:
    names = (members,) if isinstance(members, str) else tuple(members)
    if target in names:
        raise DomainError(f"the target {target!r} stands in the set {names}; it cannot be set")
    for name in names:
        if name not in domains:
            raise DomainError(unknown("manipulable variable", name, domains))
    return graph.require(names)


def _warn_of_narrow_domains(
    graph: CausalGraph, target: str, domains: Mapping[str, Bounds], known: Mapping[Edge, float]
) -> None:
    widths = {name: high - low for name, (low, high) in domains.items()}
    pairs = narrow_domains(graph, target, widths, known)
    if pairs:
        shown = listed(f"{name} when {cause} is set" for cause, name in pairs)
        warnings.warn(
            "POMIS assumes that a domain covers the values its variable takes when something upstream is set; "
            f"that is in doubt for {shown} (unknown coefficients taken as 1): widen that domain, or use sets='mis'",
            CausalBOWarning,
            stacklevel=4,
        )
