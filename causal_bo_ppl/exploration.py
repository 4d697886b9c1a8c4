"""Which intervention sets are worth trying? All subsets, MIS, or POMIS.

MIS: X with X inside An(Y) in G_do(X). MUCT: in G[An(Y)], the smallest set that holds Y and is closed
under c-components and descendants; its border is IB = Pa(MUCT) minus MUCT; X is a POMIS iff
IB(G_do(X), Y) = X (Lee and Bareinboim 2018; non-manipulable variables, 2019). Variables that
cannot be set are projected out first. Each set costs polynomial work; all are produced lazily.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from math import comb

from causal_bo_ppl.errors import ExplorationError, GraphError
from causal_bo_ppl.graph import CausalGraph

Set = tuple[str, ...]
MOST_SETS = 100_000
MOST_FREE = 12  # manipulable variables whose subsets (4,095) are taken without a largest size


def count_subsets(n: int, max_size: int | None = None) -> int:
    """Number of non-empty subsets of n variables with at most `max_size` members."""
    return sum(comb(n, size) for size in range(1, min(n, max_size if max_size is not None else n) + 1))


def subsets(names: Iterable[str], max_size: int | None = None) -> Iterator[Set]:
    """All non-empty subsets up to a size, smallest first, lazily; refused when too many to try."""
    names = tuple(names)
    if max_size is not None and max_size < 1:
        raise ExplorationError(f"the largest size of an intervention set must be at least 1, got {max_size}")
    count = count_subsets(len(names), max_size)
    if count > MOST_SETS or (max_size is None and len(names) > MOST_FREE):
        pairs = count_subsets(len(names), 2)
        raise ExplorationError(
            f"{len(names)} manipulable variables have {count:,} intervention sets"
            f"{'' if max_size is None else f' of size up to {max_size}'}; give a smaller largest size "
            f"(sets=2 or max_size=2: {pairs:,}), or name the sets"
        )
    return (found for size in range(1, len(names) + 1)[:max_size] for found in combinations(names, size))


def mis(graph: CausalGraph, target: str, manipulable: Iterable[str] | None = None) -> tuple[Set, ...]:
    """Minimal intervention sets, the empty one included, smallest first."""
    return _listed(_minimal(_manipulable_graph(graph, target, manipulable), target, ()), graph, "MIS")


def pomis(graph: CausalGraph, target: str, manipulable: Iterable[str] | None = None) -> tuple[Set, ...]:
    """Possibly optimal minimal intervention sets, smallest first; the empty one where it is one.

    Optimality assumes that each domain covers the values its variable takes when something
    upstream is set; `Problem` warns where that is in doubt.
    """
    return _listed(_possibly_optimal(_manipulable_graph(graph, target, manipulable), target), graph, "POMIS")


def narrow_domains(
    graph: CausalGraph, target: str, widths: Mapping[str, float], known: Mapping[tuple[str, str], float]
) -> list[tuple[str, str]]:
    """Pairs (X, Z) where setting X may drive Z out of the domain that POMIS relies on.

    POMIS drops a minimal set because another, with Z in it, can do at least as well; that holds while
    Z's domain covers what the dropped set induces. Compared are widths: Z's domain against X's times
    the total effect of X on Z, with 1 for every coefficient that is not known.
    """
    kept = set(pomis(graph, target, widths))
    dropped = set().union(*set(mis(graph, target, widths)) - kept)
    effect = _total_effects(graph, known)
    return [
        (cause, name)
        for name in graph.require(set().union(*kept))
        for cause in graph.ancestors(name)
        if cause in dropped and abs(effect[cause, name]) * widths[cause] > widths[name]
    ]


def _total_effects(graph: CausalGraph, known: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    effect = {(cause, name): float(cause == name) for cause in graph.nodes for name in graph.nodes}
    for name in graph.nodes:
        for cause in graph.ancestors(name):
            effect[cause, name] = sum(
                effect[cause, parent] * known.get((parent, name), 1.0) for parent in graph.parents(name)
            )
    return effect


def _manipulable_graph(graph: CausalGraph, target: str, manipulable: Iterable[str] | None) -> CausalGraph:
    names = [name for name in graph.nodes if name != target] if manipulable is None else list(manipulable)
    if target in names:
        raise GraphError(f"the target {target!r} cannot be manipulated; leave it out")
    graph.require(target, "target")
    return graph.project([*graph.require(names), target]).ancestral(target)


def _listed(found: Iterator[frozenset[str]], graph: CausalGraph, kind: str) -> tuple[Set, ...]:
    distinct: set[frozenset[str]] = set()
    for members in found:
        distinct.add(members)
        if len(distinct) > MOST_SETS:
            raise ExplorationError(f"more than {MOST_SETS:,} {kind}; give a largest size or name the sets instead")
    ordered = (graph.require(members) for members in distinct)
    return tuple(sorted(ordered, key=lambda members: (len(members), [graph.index(name) for name in members])))


def _minimal(graph: CausalGraph, target: str, chosen: Set, free: Set | None = None) -> Iterator[frozenset[str]]:
    """Add variables against the causal order: what is set downstream stays an ancestor of Y."""
    yield frozenset(chosen)
    free = tuple(name for name in reversed(graph.nodes) if name != target) if free is None else free
    for position, name in enumerate(free):
        cut = graph.do(name).ancestral(target)
        rest = tuple(other for other in free[position + 1 :] if other in cut.nodes)
        yield from _minimal(cut, target, (*chosen, name), rest)


def _territory(graph: CausalGraph, target: str) -> frozenset[str]:
    """MUCT: the smallest set with Y that is closed under c-components and descendants in G[An(Y)]."""
    graph = graph.ancestral(target)
    closed, frontier = {target}, [target]
    while frontier:
        district = graph.district(frontier.pop())
        new = {*district, *graph.descendants(district)} - closed
        closed |= new
        frontier.extend(new)
    return frozenset(closed)


def _possibly_optimal(graph: CausalGraph, target: str) -> Iterator[frozenset[str]]:
    territory = _territory(graph, target)
    border = frozenset(graph.parents(territory))
    yield border
    inside = graph.do(border).subgraph(territory | border)
    order = tuple(name for name in reversed(graph.nodes) if name in territory and name != target)
    yield from _below(inside, target, order, frozenset())


def _below(graph: CausalGraph, target: str, order: Set, settled: frozenset[str]) -> Iterator[frozenset[str]]:
    """Intervene inside the territory, one variable after another; `settled` ones were tried before."""
    for position, name in enumerate(order):
        cut = graph.do(name)
        territory = _territory(cut, target)
        border = frozenset(cut.ancestral(target).parents(territory))
        tried = settled.union(order[:position])
        if border & tried:
            continue
        yield border
        rest = tuple(other for other in order[position + 1 :] if other in territory)
        if rest:
            yield from _below(cut.do(border).subgraph(territory | border), target, rest, tried)
