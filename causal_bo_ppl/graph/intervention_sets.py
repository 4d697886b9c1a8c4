"""Which intervention sets should be tried? All subsets, MIS, or POMIS.

A set X is a MIS iff X is inside An(Y) in G_do(X). The MUCT is the smallest set in G[An(Y)] that
holds Y and is closed under c-components and descendants; its border is IB = Pa(MUCT) minus MUCT. X
is a POMIS iff IB(G_do(X), Y) = X (Lee and Bareinboim 2018; non-manipulable variables, 2019).
Variables that cannot be set are projected out first. Each set costs polynomial work; all are
produced lazily. Sets are integers inside, one bit for each variable in causal order: surgery is a
mask of what was cut.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations, islice
from math import comb
from numbers import Integral
from typing import NamedTuple, cast

from causal_bo_ppl.errors import (
    CausalBOWarning,
    DomainError,
    ExplorationError,
    GraphError,
    listed,
    unknown,
)
from causal_bo_ppl.graph.admg import CausalGraph, Edge

Set = tuple[str, ...]
Sets = str | int | Iterable[str | Iterable[str]]
MOST_SETS = 100_000
MOST_FREE = 12  # manipulable variables whose subsets (4,095) are taken without a largest size


class FoundSets(NamedTuple):
    """The sets that a rule, "mis", "pomis" or a largest size, gave before: no search is needed."""

    rule: str | int
    sets: tuple[tuple[str, ...], ...]


def count_subsets(n: int, max_size: int | None = None) -> int:
    """Return the number of non-empty subsets of n variables with at most `max_size` members."""
    return sum(comb(n, size) for size in range(1, n + 1)[:max_size])


def subsets(names: Iterable[str], max_size: int | None = None) -> Iterator[Set]:
    """Return the non-empty subsets up to a size lazily, smallest first; refuse too many."""
    names = tuple(names)
    if max_size is not None and max_size < 1:
        raise ExplorationError(
            f"the largest size of an intervention set must be at least 1, got {max_size}"
        )
    count = count_subsets(len(names), max_size)
    if count > MOST_SETS or (max_size is None and len(names) > MOST_FREE):
        pairs = count_subsets(len(names), 2)
        raise ExplorationError(
            f"{len(names)} manipulable variables have {count:,} intervention sets"
            f"{'' if max_size is None else f' of size up to {max_size}'}; give a smaller largest "
            f"size (sets=2 or max_size=2: {pairs:,}), or name the sets"
        )
    sizes = range(1, len(names) + 1)[:max_size]
    return (members for size in sizes for members in combinations(names, size))


def mis(
    graph: CausalGraph, target: str, manipulable: str | Iterable[str] | None = None
) -> tuple[Set, ...]:
    """Return the minimal intervention sets, the empty one included, smallest first.

    Parameters
    ----------
    graph, target:
        The causal graph, and the variable to improve.
    manipulable:
        The variables that may be set; by default all but the target.

    Returns
    -------
    tuple of tuples of names

    Raises
    ------
    GraphError
        If the graph has no variable of a given name, or the target is manipulable.
    ExplorationError
        If there are more than 100,000 sets.

    Examples
    --------
    >>> mis(CausalGraph.parse("X -> Z -> Y"), "Y")
    ((), ('X',), ('Z',))
    """
    network = _Network(_manipulable_graph(graph, target, manipulable), target)
    certain = 2 ** network.parents[network.target].bit_count()  # all subsets of the parents are MIS
    if certain > MOST_SETS:
        raise _too_many(f"at least {certain:,} MIS (all subsets of the target's parents)")
    return _listed(network.minimal(), network, graph, "MIS")


def pomis(
    graph: CausalGraph, target: str, manipulable: str | Iterable[str] | None = None
) -> tuple[Set, ...]:
    """Return the possibly optimal minimal intervention sets, smallest first.

    The empty set is among them where it is possibly optimal. Optimality assumes that each domain
    covers the values its variable takes when something upstream is set; `Problem` warns where that
    is uncertain.

    Parameters
    ----------
    graph, target:
        The causal graph, and the variable to improve.
    manipulable:
        The variables that may be set; by default all but the target.

    Returns
    -------
    tuple of tuples of names

    Raises
    ------
    GraphError
        If the graph has no variable of a given name, or the target is manipulable.
    ExplorationError
        If there are more than 100,000 sets.

    Examples
    --------
    >>> pomis(CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y")
    ((), ('Z',))
    """
    network = _Network(_manipulable_graph(graph, target, manipulable), target)
    return _listed(network.possibly_optimal(), network, graph, "POMIS")


def in_order(graph: CausalGraph, sets: Iterable[Iterable[str]]) -> tuple[Set, ...]:
    """Return the distinct sets, smallest first, then in graph order, whatever order they had."""
    ordered = {graph.require(members) for members in sets}
    return tuple(
        sorted(ordered, key=lambda members: (len(members), [graph.index(name) for name in members]))
    )


def narrow_domains(
    graph: CausalGraph,
    target: str,
    widths: Mapping[str, float],
    known: Mapping[tuple[str, str], float],
    kept: Iterable[Set],
) -> list[tuple[str, str]]:
    """Return pairs (X, Z) where setting X may drive Z out of the domain that `kept` relies on.

    POMIS drops a minimal set because another, with Z in it, can do at least as well; that holds
    while Z's domain covers the values that the dropped set induces. The width of Z's domain is
    compared with that of X's times the total effect of X on Z, with 1 for every coefficient that is
    not known.
    """
    dropped = _dropped(graph, target, widths)
    effect = _total_effects(graph, known)
    return [
        (cause, name)
        for name in graph.ordered(set().union(*kept))
        for cause in graph.ancestors(name)
        if cause in dropped and abs(effect[cause, name]) * widths[cause] > widths[name]
    ]


def _dropped(graph: CausalGraph, target: str, manipulable: Iterable[str]) -> set[str]:
    """Return the variables of the minimal sets that POMIS drops.

    Past a thousand minimal sets these are all variables that may be set.
    """
    network = _Network(_manipulable_graph(graph, target, manipulable), target)
    kept, dropped, free = set(network.possibly_optimal()), 0, (1 << network.target) - 1
    for count, members in enumerate(network.minimal()):
        dropped |= 0 if members in kept else members
        if dropped == free or count > 1000:
            return set(manipulable)
    return set(network.names(dropped))


def _total_effects(
    graph: CausalGraph, known: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    effect = {(cause, name): float(cause == name) for cause in graph.nodes for name in graph.nodes}
    for name in graph.nodes:
        for cause in graph.ancestors(name):
            effect[cause, name] = sum(
                effect[cause, parent] * known.get((parent, name), 1.0)
                for parent in graph.parents(name)
            )
    return effect


def _manipulable_graph(
    graph: CausalGraph, target: str, manipulable: str | Iterable[str] | None
) -> CausalGraph:
    graph.require([target], "target")
    names = graph.require(
        [name for name in graph.nodes if name != target] if manipulable is None else manipulable
    )
    if target in names:
        raise GraphError(f"the target {target!r} cannot be manipulated; remove it")
    return graph.project([*names, target]).ancestral(target)


def _too_many(count: str) -> ExplorationError:
    return ExplorationError(
        f"there are {count}; give a largest size (sets=2), or name the sets (at most {MOST_SETS:,})"
    )


def _listed(
    sets: Iterator[int], network: "_Network", graph: CausalGraph, kind: str
) -> tuple[Set, ...]:
    kept = list(islice(sets, MOST_SETS + 1))
    if len(kept) > MOST_SETS:
        raise _too_many(f"more than {MOST_SETS:,} {kind}")
    return in_order(graph, map(network.names, kept))


class _Network:
    """A graph of ancestors of the target, which is its last node, as bit masks in causal order."""

    def __init__(self, graph: CausalGraph, target: str) -> None:
        self.nodes = (*(name for name in graph.nodes if name != target), target)
        self.target = len(self.nodes) - 1
        self.parents = [self._bits(graph.parents(name)) for name in self.nodes]
        self.onward = [
            self._bits((*graph.children(name), *graph.spouses(name))) for name in self.nodes
        ]

    def _bits(self, names: Iterable[str]) -> int:
        return sum(1 << self.nodes.index(name) for name in set(names))

    def names(self, members: int) -> list[str]:
        return [name for position, name in enumerate(self.nodes) if members >> position & 1]

    def ancestors(self, cut: int) -> int:
        """Return An(Y), Y included, when no arrow points at what was cut."""
        reached = 1 << self.target
        for position in range(self.target, -1, -1):
            if reached >> position & 1 and not cut >> position & 1:
                reached |= self.parents[position]
        return reached

    def territory(self, cut: int) -> int:
        """Return the MUCT after surgery.

        It is closed under children and spouses inside An(Y), and so under districts too.
        """
        inside = self.ancestors(cut) & ~cut
        closed = frontier = 1 << self.target
        while frontier:
            position = frontier.bit_length() - 1
            new = self.onward[position] & inside & ~closed
            closed, frontier = closed | new, (frontier | new) & ~(1 << position)
        return closed

    def border(self, territory: int) -> int:
        around = 0
        for position in range(self.target + 1):
            around |= self.parents[position] if territory >> position & 1 else 0
        return around & ~territory

    def minimal(self, chosen: int = 0, below: int | None = None) -> Iterator[int]:
        """Yield the minimal sets that contain `chosen` and otherwise positions before `below`.

        Variables are added against the causal order, so that what is set downstream stays an
        ancestor of Y.
        """
        yield chosen
        free = self.ancestors(chosen) & ~chosen
        for position in range((self.target if below is None else below) - 1, -1, -1):
            if free >> position & 1:
                yield from self.minimal(chosen | 1 << position, position)

    def possibly_optimal(self) -> Iterator[int]:
        """Yield the border of the territory, then the borders after surgery inside it."""
        territory = self.territory(0)
        yield self.border(territory)
        yield from self._inside(self.border(territory), territory & ~(1 << self.target), 0)

    def _inside(self, cut: int, order: int, tried: int) -> Iterator[int]:
        """Yield the borders after cutting one variable of `order` after another, last first.

        A border that contains a variable of `tried` was yielded before, and is skipped.
        """
        while order:
            position = order.bit_length() - 1
            order &= ~(1 << position)
            territory = self.territory(cut | 1 << position)
            border = self.border(territory)
            if not border & tried:
                yield border
                yield from self._inside(cut | border, order & territory, tried)
            tried |= 1 << position


def read_sets(
    graph: CausalGraph,
    target: str,
    domains: Mapping[str, tuple[float, float]],
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
    if idle := [name for name in graph.ordered(set().union(*chosen)) if name not in names]:
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
    domains: Mapping[str, tuple[float, float]],
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
