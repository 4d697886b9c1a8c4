"""Which is the smallest set of named quantities that determines every effect exactly?

Write L_i(s) for the total effect of variable i on the target Y while the set s is held, and treat
the constant 1 as one more cause, of every variable that has an intercept. Then, with L_Y = 1,

    L_i(s) = sum over children j of i outside s of c_ij L_j(s),

and the response is f_s(x) = L_1(s) + sum over i in s of x_i L_i(s). A variable that no set changes
can be *contracted*: what passes through it becomes part of the coefficients of its causes for its
effects, c_ij + c_ik c_kj. L_i(s) depends on s only through the variables that are open between i
and Y, so that sets share it. Thus all responses are outputs of one circuit of sums and products,
whose inputs are the coefficients that are not known.

theta_Y, "minimal", is a smallest vertex cut of this circuit: the fewest of its quantities, inputs
or not, that every path from an unknown coefficient to a response passes. By the theorem of Menger
a maximum flow finds it. So each coordinate is a polynomial in the coefficients, with a name and a
meaning: b[X->Z] and a[Z], coefficients; b[X->..->Z] and a[..->Z], coefficients after a contraction;
tau[X|X,Z], a total effect. And each response is a polynomial in the coordinates: what they
determine they determine everywhere, not only near one point.

The rank of the Jacobian of all responses is at most the size of any cut, since responses factor
through it. On both ECOLI70 problems (13 and 22 of 19 and 31 for b1583, 16 and 26 of as many for
yaeM), and on 97 of 100 random problems of up to 7 variables, the smallest cut *is* the rank: then
no parameterization at all has fewer coordinates. Where it is larger, the sets are an irregular
selection, or variables that no set changes have several causes and several effects without arrows
between these, or are joined to each other. With one such variable k + m coefficients are seen by
their k m products only, a matrix of rank one, of which no k + m - 1 polynomials determine the rest
where one of them is 0. Theta then has more coordinates than `Parameters.rank`, which is exact in
any case, as are the effects.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from causal_bo_ppl.graph.admg import CausalGraph, Edge, Names

CONSTANT = ""  # the cause of intercepts
Edges = dict[Edge, float | None]  # coefficients, None where unknown
Effect = tuple[str, int]  # a cause, and the variables open between it and the target, as bits
Unit = Edge | Effect


class Quantity(NamedTuple):
    """A coordinate of the minimal theta: what `cause` adds to the mean of `effect` while set.

    The cause of an intercept is "". given: the variables that are held, the cause among them.
    is_path: whether it is a coefficient after a contraction. is_total: whether it is a total effect
    on the target. Otherwise it is a coefficient of the model.
    """

    cause: str
    effect: str
    given: Names
    is_path: bool = False
    is_total: bool = False


@dataclass(frozen=True, eq=False)
class Circuit:
    """Total effects as polynomials in theta: v = (theta, 0, 1, constants, sums of products).

    quantities: the d coordinates. fixed: elements of the cut that are known total effects.
    constants: 0, the values of these, 1 and known coefficients, which follow theta in v.
    layers: pairs of positions (n, t) in v; each pair adds the n numbers sum_t v[left] v[right].
    slopes: {set: {cause: position in v}}, by the members of the set that affect the target; "" is
    the cause of the intercept. uses: (n_v, d), which coordinates each number of v depends on.
    """

    quantities: tuple[Quantity, ...]
    constants: tuple[float, ...]
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    slopes: Mapping[Names, Mapping[str, int]]
    uses: np.ndarray
    fixed: tuple[Quantity, ...] = ()

    @property
    def is_selection(self) -> bool:
        """Whether every coordinate is a coefficient of the model."""
        parts = (*self.quantities, *self.fixed)
        return not any(each.is_path or each.is_total for each in parts)

    @property
    def degrees(self) -> np.ndarray:
        """The degree in theta of every number of v."""
        found = np.repeat([1, 0], [len(self.quantities), len(self.constants)])
        for left, right in self.layers:
            found = np.concatenate([found, (found[left] + found[right]).max(axis=1)])
        return found


def find_circuit(
    graph: CausalGraph,
    target: str,
    sets: Sequence[Names],
    known: Mapping[Edge, float],
    intercepts: bool,
    totals: Mapping[str, float],
) -> Circuit:
    """Return a smallest circuit over all contractions that are tried.

    They are none, all, and every one that adds no coefficient. graph: the target's ancestral graph.
    sets: of each the members that affect the target. totals: {cause: known total effect}.
    """
    edges: Edges = {edge: known.get(edge) for edge in graph.directed}
    if intercepts:
        edges |= {(CONSTANT, name): None for name in graph.nodes}
    changed = {target}.union(*sets)
    passive = [name for name in graph.nodes if name not in changed]
    whole = edges
    for name in passive:
        whole = contract(whole, name)
    trials = [_Cut(graph, target, each, sets) for each in (edges, _shorten(edges, passive), whole)]
    return min(trials, key=lambda trial: len(trial.chosen)).circuit(totals)


def contract(edges: Edges, name: str) -> Edges:
    """Return the coefficients without a variable, through which its causes act on its effects."""
    kept = {edge: value for edge, value in edges.items() if name not in edge}
    causes = {cause: value for (cause, effect), value in edges.items() if effect == name}
    effects = {effect: value for (cause, effect), value in edges.items() if cause == name}
    for (cause, first), (effect, last) in product(causes.items(), effects.items()):
        direct = kept.get((cause, effect), 0.0)
        if first is None or last is None or direct is None:
            kept[cause, effect] = None
        else:
            kept[cause, effect] = direct + first * last
    return kept


def _shorten(edges: Edges, passive: Collection[str]) -> Edges:
    """Contract, one after another, the variables without which there are no more coefficients."""
    left, size = list(passive), -1
    while len(left) != size:
        size = len(left)
        for name in left.copy():
            shorter = contract(edges, name)
            if len(shorter) <= len(edges):
                edges = shorter
                left.remove(name)
    return edges


def _rank(unit: Unit, order: Mapping[str, int]) -> tuple[bool, bool, int, int]:
    """Return the place of a coordinate: coefficients, total effects, then intercepts."""
    cause, last = unit
    place = order[last] if isinstance(last, str) else last
    return not cause, not isinstance(last, str), order[cause], place


class _Cut:
    """A smallest vertex cut of the circuit over some coefficients.

    Of equally small ones it is the one nearest to the coefficients. effects: {(i, open variables):
    its terms (edge, effect of the child)}, children first; the target itself is None. given:
    {effect: held variables}. outputs: {set: {cause: effect}}. chosen: the cut, in order.
    """

    def __init__(
        self, graph: CausalGraph, target: str, edges: Edges, sets: Iterable[Names]
    ) -> None:
        self.graph, self.target, self.edges = graph, target, edges
        kept = {name for edge in edges for name in edge}
        self.nodes = [CONSTANT, *(name for name in graph.nodes if name in kept | {target})]
        self.children: dict[str, list[str]] = {name: [] for name in self.nodes}
        for cause, effect in edges:
            self.children[cause].append(effect)
        self.effects: dict[Effect, list[tuple[Edge, Effect | None]]] = {}
        self.given: dict[Effect, Names] = {}
        self.outputs = {members: self._sweep(members) for members in dict.fromkeys(sets)}
        self.chosen = self._choose()

    def _sweep(self, members: Names) -> dict[str, Effect]:
        """Add the effects of all variables while a set is held; return those of its members."""
        held, bits = set(members), {name: 1 << k for k, name in enumerate(self.nodes)}
        found: dict[str, Effect] = {}
        opened, stopped = {self.target: bits[self.target]}, dict.fromkeys(self.nodes, 0)
        for name in reversed(self.nodes):
            free = [child for child in self.children[name] if child not in held]
            stopped[name] = sum(
                {bits[child] for child in self.children[name] if child in held}
            ) | reduce(or_, (stopped[child] for child in free), 0)
            live = [child for child in free if child in opened]
            if name == self.target or not live:
                continue
            within = reduce(or_, (opened[child] for child in live))
            found[name] = key = name, within
            if name not in held:
                opened[name] = within | bits[name]
            if key not in self.effects:
                self.effects[key] = [((name, child), found.get(child)) for child in live]
                on_paths = stopped[name]
                self.given[key] = tuple(
                    each for each in self.nodes[1:] if each == name or on_paths & bits[each]
                )
        return {name: found[name] for name in (*members, CONSTANT) if name in found}

    def _choose(self) -> list[Unit]:
        """Return the smallest cut by a maximum flow through vertices of capacity 1."""
        units: list[Unit] = [edge for edge in self.edges if self.edges[edge] is None]
        units += self.effects
        place = {unit: 2 + 2 * k for k, unit in enumerate(units)}  # 0: source, 1: sink
        arcs = [(place[unit], place[unit] + 1, 1) for unit in units]
        most = len(units) + 1
        arcs += [(0, place[edge], most) for edge, value in self.edges.items() if value is None]
        for key, terms in self.effects.items():
            parts = {part for term in terms for part in term if part in place}
            arcs += [(place[part] + 1, place[key], most) for part in parts]
        ends = {key for slopes in self.outputs.values() for key in slopes.values()}
        arcs += [(place[key] + 1, 1, most) for key in ends]
        rows, columns, sizes = np.array(arcs, np.int32).reshape(-1, 3).T
        shape = (2 + 2 * len(units),) * 2
        capacity: Any = csr_array((sizes, (rows, columns)), shape=shape)
        residual = (capacity - maximum_flow(capacity, 0, 1).flow).tocsr()
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
        cut = [unit for unit, k in place.items() if k in reached and k + 1 not in reached]
        order = {name: k for k, name in enumerate(self.nodes)}
        return sorted(cut, key=lambda unit: _rank(unit, order))

    def _quantity(self, unit: Unit) -> Quantity:
        """Return an element of the cut as a coordinate."""
        cause, effect = unit
        if not isinstance(effect, str):
            return Quantity(cause, self.target, self.given[cause, effect], is_total=True)
        if not self._is_path(cause, effect):
            return Quantity(cause, effect, self.graph.parents(effect))
        names = set(self.graph.ancestors(effect))
        if cause:
            names &= {cause, *self.graph.descendants(cause)}
        return Quantity(cause, effect, tuple(filter(names.__contains__, self.nodes)), is_path=True)

    def _is_path(self, cause: str, effect: str) -> bool:
        """Return whether a contracted variable lies between a cause and its effect."""
        between: set[str] = set()
        frontier = [effect]
        while frontier:
            gone = {
                name for name in self.graph.parents(frontier.pop()) if name not in self.children
            }
            frontier += gone - between
            between |= gone
        return any(not cause or cause in self.graph.parents(name) for name in between)

    def circuit(self, totals: Mapping[str, float]) -> Circuit:
        """Return the circuit from the cut to the outputs.

        It has the effect of doing nothing too, where the cut determines it. totals: total effects
        that are known, which become constants where they are in the cut.
        """
        found = {unit: self._quantity(unit) for unit in self.chosen}
        fixed = {
            unit: each
            for unit, each in found.items()
            if each.is_total and each.given == (each.cause,) and each.cause in totals
        }
        free = [unit for unit in self.chosen if unit not in fixed]
        size, place = len(free), {unit: k for k, unit in enumerate(free)}
        place |= {unit: size + 1 + k for k, unit in enumerate(fixed)}
        constants = [0.0, *(totals[each.cause] for each in fixed.values()), 1.0]
        one = size + len(constants) - 1
        for edge, value in self.edges.items():
            if value is not None:
                place[edge] = size + len(constants)
                constants.append(value)
        swept = {**self.outputs, (): self._sweep(())}
        layer = {unit: 0 for unit in place}
        for key, terms in self.effects.items():
            parts = [part for term in terms for part in term if part is not None]
            if key not in layer and all(part in layer for part in parts):
                layer[key] = 1 + max(layer[part] for part in parts)
        outputs = {
            members: slopes
            for members, slopes in swept.items()
            if members in self.outputs or all(key in layer for key in slopes.values())
        }
        layers: list[tuple[np.ndarray, np.ndarray]] = []
        uses = np.eye(size + len(constants), size, dtype=bool)
        needed = self._needed(
            {key for slopes in outputs.values() for key in slopes.values()}, place
        )
        for depth in range(1, 1 + max((layer[key] for key in needed), default=0)):
            keys = [key for key in self.effects if key in needed and layer[key] == depth]
            width = max(len(self.effects[key]) for key in keys)
            pair = np.full((2, len(keys), width), size)  # filled up with zeros times zeros
            for row, key in enumerate(keys):
                for column, (edge, below) in enumerate(self.effects[key]):
                    pair[:, row, column] = place[edge], one if below is None else place[below]
            place |= {key: len(uses) + row for row, key in enumerate(keys)}
            uses = np.concatenate([uses, uses[pair].any(axis=(0, 2))])
            layers.append((pair[0], pair[1]))
        slopes = {
            members: {cause: place[key] for cause, key in ends.items()}
            for members, ends in outputs.items()
        }
        quantities, known = tuple(found[unit] for unit in free), tuple(fixed.values())
        return Circuit(quantities, tuple(constants), tuple(layers), slopes, uses, known)

    def _needed(self, keys: set[Effect], given: Collection[Unit]) -> set[Effect]:
        """Return the effects that these are computed from, themselves included, but for `given`."""
        found: set[Effect] = set()
        frontier = [key for key in keys if key not in given]
        while frontier:
            key = frontier.pop()
            if key not in found:
                found.add(key)
                below = [part for _, part in self.effects[key] if part is not None]
                frontier += [part for part in below if part not in given]
        return found
