"""On what does an effect depend: on which part of the graph, and on which quantities theta_Y?

P(Y | do(s)) = sum over D minus Y of prod_j Q[C_j]. D holds Y and all that reaches it without
passing s, the C_j are the districts of G[D], and the c-factor Q[C] = P(C | do(all else)) is a
function of C and its parents (Tian and Pearl 2002). Sets with the same D have the same effect, and
the factors Q[C] are shared between sets: each is identified once.

theta_Y, the quantities that all effects share, has four parameterizations:

structural: b[i->j], where some set leaves j free with an open path to Y and reaches i (or, with
intercepts, leaves i free too), and the intercepts a[j].
total_effect: tau[i|members of s on directed paths from i to Y], and tau[Y|s] for the intercept.
estimand: est[i|s] and est[Y|s], the slopes and intercept of the verified estimand.
minimal: the fewest coefficients b, sums over paths b[i->..->j] and total effects tau of which all
effects are polynomials; see `minimal`.
In an intercept and in `est`, s stands for its members that affect Y.

The number of directions that any response can see is the rank of the stacked Jacobians of all
responses at a random point. A response f(z) has df/dW_ij = m_i l_j and df/da_j = l_j for j not set,
with the means m under do(z) and the sensitivities l of Y. It is affine in its values, so d + 1
random points of a set of d variables span all of its Jacobians. The rank is taken over a finite
field, without rounding: the larger one of two random models is the generic rank.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, compress
from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import ArgumentError
from causal_bo_ppl.graph.admg import CausalGraph, Edge, Names, set_label
from causal_bo_ppl.identification.finite_field import (
    FIELD_SEED,
    PRIME,
    Residues,
    draw_residues,
    eliminate,
    times,
)
from causal_bo_ppl.identification.minimal import Circuit, Quantity, find_circuit
from causal_bo_ppl.linalg import adjoint_sweep, forward_sweep

RANK_MODELS = 2
MOST_JACOBIAN_ROWS = 20_000  # rows of a Jacobian that are held at once
KINDS = ("structural", "total_effect", "estimand", "minimal")


class HedgeFound(Exception):
    """There is no formula: of the districts (T, C), C inside T, An(C) in G[T] is all of T."""

    def __init__(self, outer: Names, inner: Names) -> None:
        super().__init__(outer, inner)
        self.districts = outer, inner


class Reduction(NamedTuple):
    """The part of the graph that matters under do(s), all names in graph order.

    Attributes
    ----------
    effective:
        The members of s that still affect the target.
    open:
        The set D: the target and all that reaches it without passing s.
    districts:
        The districts of the graph over `open`.
    """

    effective: Names
    open: Names
    districts: tuple[Names, ...]


def reduce_effect(graph: CausalGraph, target: str, intervened: Collection[str]) -> Reduction:
    """Return the part of the graph that matters for the target when a set is intervened on."""
    return reduce_effects(graph, target, [intervened])[0]


def reduce_effects(
    graph: CausalGraph, target: str, sets: Sequence[Collection[str]]
) -> list[Reduction]:
    """Return the part of the graph that matters for every set, by one pass over the variables.

    A variable is open if it is not set and some child of it is open; it still affects the target if
    it is set and some child is open. Names that the graph does not have are ignored.
    """
    known = set(graph.nodes)
    cut = graph.masks([known.intersection(members) for members in sets])
    opened, effective = np.zeros_like(cut), np.zeros_like(cut)
    opened[:, graph.index(target)] = True
    for name in reversed(graph.nodes[: graph.index(target)]):
        position, below = graph.index(name), [graph.index(child) for child in graph.children(name)]
        reaches = opened[:, below].any(axis=1)
        opened[:, position] = reaches & ~cut[:, position]
        effective[:, position] = reaches & cut[:, position]
    single, reductions = [(name,) for name in graph.nodes], []
    for members, marks in zip(effective.tolist(), opened.tolist(), strict=True):
        inside = tuple(compress(graph.nodes, marks))
        districts = _districts(graph, inside) if graph.bidirected else compress(single, marks)
        effective_members = tuple(compress(graph.nodes, members))
        reductions.append(Reduction(effective_members, inside, tuple(districts)))
    return reductions


def moved(graph: CausalGraph, reduction: Reduction) -> set[str]:
    """Return the open variables that the set affects: those on open paths from it."""
    inside = set(reduction.open)
    reached = closure(reduction.effective, lambda name: inside.intersection(graph.children(name)))
    return reached & inside


def _districts(graph: CausalGraph, inside: Names) -> Iterator[Names]:
    """Yield the districts of the graph over `inside`, in the order of their first members."""
    seen: set[str] = set()
    allowed = frozenset(inside)
    for name in inside:
        if name not in seen:
            district = district_within(graph, name, allowed) if graph.spouses(name) else (name,)
            seen.update(district)
            yield district


def district_within(graph: CausalGraph, name: str, inside: Iterable[str]) -> Names:
    """Return the district of a variable in the graph over `inside`."""
    allowed = frozenset(inside)
    return graph.ordered(closure([name], lambda other: allowed.intersection(graph.spouses(other))))


def ancestors_within(graph: CausalGraph, names: Names, inside: Names) -> Names:
    """Return An(names), themselves included, in the graph over `inside`."""
    allowed = set(inside)
    return graph.ordered(closure(names, lambda name: allowed.intersection(graph.parents(name))))


def surroundings(graph: CausalGraph, district: Names) -> CausalGraph:
    """Return the smallest graph in which Q[district] is the same question.

    It holds the district of all of G around `district`, with the parents of that one. The latent
    projection onto these adds no edge at a member: what is projected out is neither parent nor
    spouse of one. Where the district is one variable, nothing is assumed about the distribution of
    its parents: they have all arrows among themselves, in the order of the graph. So the question
    is the same for all variables with as many parents.
    """
    whole = graph.district(district[0])
    around = graph.with_parents(whole)
    if len(whole) > 1:
        return graph.project(around)
    return CausalGraph.from_edges(combinations(around, 2), nodes=whole)


def closure(start: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Return all names reached from `start` by steps of `onward`, those of `start` included."""
    reached = set(start)
    frontier = list(reached)
    while frontier:
        new = set(onward(frontier.pop())) - reached
        reached |= new
        frontier.extend(new)
    return reached


def generic_rank(
    graph: CausalGraph,
    target: str,
    sets: Sequence[Names],
    known: Mapping[Edge, float],
    coordinates: Sequence[Edge],
    centred: bool,
) -> int:
    """Return the rank of the Jacobian of all responses in `coordinates`.

    These are pairs (cause, effect), where the cause is "" for an intercept.
    """
    models = draw_residues(graph, RANK_MODELS, known)
    if centred:
        models = models._replace(intercepts=np.zeros_like(models.intercepts))
    spanned = [np.zeros((0, len(coordinates)), np.int64)] * RANK_MODELS
    for mask, value in _points(graph, sets):
        jacobian = _jacobian(models, graph, target, mask, value, coordinates)
        spanned = [eliminate(np.vstack(pair)) for pair in zip(spanned, jacobian, strict=True)]
    return max(len(rows) for rows in spanned)


def _points(graph: CausalGraph, sets: Sequence[Names]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield batches of queries (mask, value): d + 1 random points of every set of d variables."""
    draws = np.random.default_rng(FIELD_SEED)
    points = [members for members in sets for _ in range(len(members) + 1)]
    for start in range(0, len(points), MOST_JACOBIAN_ROWS):
        mask = graph.masks(points[start : start + MOST_JACOBIAN_ROWS])
        yield mask, np.where(mask, draws.integers(1, PRIME, mask.shape), 0)


def _jacobian(
    models: Residues,
    graph: CausalGraph,
    target: str,
    mask: np.ndarray,
    value: np.ndarray,
    coordinates: Sequence[Edge],
) -> np.ndarray:
    """Return the derivatives (t, M, d): m_i l_j, or l_j for an intercept; 0 where j is set."""
    matrices = np.concatenate([models.weights, models.intercepts[:, None]], axis=1)
    means = forward_sweep(matrices, mask.T, value.T, product=times)
    loads = adjoint_sweep(models.weights, mask.T, graph.index(target), times)
    causes = [graph.index(cause) if cause else len(graph.nodes) for cause, _ in coordinates]
    effects = [graph.index(effect) for _, effect in coordinates]
    return np.asarray((means[:, causes] * loads[:, effects] % PRIME).transpose(0, 2, 1))


class Coordinate(NamedTuple):
    """One entry of theta_Y: the coefficient of `cause` for `effect`, or an intercept of `effect`.

    The cause of an intercept is "". `given` are the intervened variables under which it is a
    coefficient: none for a structural one, and the direct causes for one that is "minimal".
    """

    name: str
    cause: str
    effect: str
    given: Names = ()


class Explored(NamedTuple):
    """The sets whose effects are parameterized, each with the part of the graph that matters.

    known, known_effects: {(cause, effect): coefficient} and {"tau[X]": total effect on the target}.
    """

    graph: CausalGraph
    target: str
    sets: tuple[Names, ...]
    reductions: tuple[Reduction, ...]
    known: dict[Edge, float]
    known_effects: dict[str, float] = {}


@dataclass(frozen=True, eq=False)
class Parameters:
    """Named coordinates of theta_Y, and which intervention set uses which.

    `uses` is a boolean array of shape (number of sets, dimension). `circuit` has the total effects
    as polynomials in the minimal theta; it is None in other parameterizations. `fixed` are the
    coordinates that were known, with their values, and are no longer in theta.
    """

    kind: str
    intercepts: bool
    coordinates: tuple[Coordinate, ...]
    uses: np.ndarray
    explored: Explored
    circuit: Circuit | None = None
    fixed: tuple[tuple[Coordinate, float], ...] = ()

    @cached_property
    def names(self) -> Names:
        """Names of the coordinates, in order."""
        return tuple(coordinate.name for coordinate in self.coordinates)

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return len(self.coordinates)

    @cached_property
    def rank(self) -> int:
        """Number of directions of theta_Y that any response can see.

        It is measured at a random point of the model, as the rank of the stacked Jacobians of all
        responses. Without intercepts the model is centred.
        """
        structural = collect(self.explored, "structural", intercepts=self.intercepts)
        edges = [(one.cause, one.effect) for one in structural.coordinates]
        if not edges:
            return 0
        graph, target, sets, _, known, _ = self.explored
        rank = generic_rank(graph, target, sets, known, edges, not self.intercepts)
        alone = [(coordinate.cause,) for coordinate, _ in self.fixed]
        slopes = [edge for edge in edges if edge[0]]
        return rank - generic_rank(graph, target, alone, known, slopes, centred=True)

    def uses_total(self, members: Names, cause: str) -> bool:
        """Return whether tau[cause|cause] is the slope of a cause where a set is intervened on."""
        graph, target = self.explored.graph, self.explored.target
        below = {cause, *graph.descendants(cause)} & {cause, *graph.ancestors(target)}
        return below.intersection(members) == {cause}

    def used_by(self, members: Names) -> tuple[Coordinate, ...]:
        """Return the coordinates that a set needs, in this parameterization; it may be any set."""
        explored = self.explored._replace(sets=(members,), reductions=(self.reduce(members),))
        return collect(explored, self.kind, intercepts=self.intercepts).coordinates

    def reduce(self, members: Names) -> Reduction:
        """Return the part of the graph that matters under do(members); it may be any set."""
        if members in self._reductions:
            return self._reductions[members]
        return reduce_effect(self.explored.graph, self.explored.target, members)

    @cached_property
    def _reductions(self) -> dict[Names, Reduction]:
        return dict(zip(self.explored.sets, self.explored.reductions, strict=True))

    def sharing(self) -> pd.DataFrame:
        """Return a table of which set (row) uses which coordinate (column)."""
        index = pd.Index(map(set_label, self.explored.sets), name="set")
        return pd.DataFrame(self.uses, index=index, columns=list(self.names))

    def to_frame(self) -> pd.DataFrame:
        """Return a row for every coordinate: cause, effect, what is set, how many sets use it."""
        rows = [(one.cause, one.effect, ", ".join(one.given)) for one in self.coordinates]
        frame = pd.DataFrame(rows, list(self.names), columns=["cause", "effect", "given"])
        return frame.rename_axis("coordinate").assign(used_by=self.uses.sum(axis=0))

    def __len__(self) -> int:
        return self.dimension

    def __repr__(self) -> str:
        counts = f"{self.dimension} coordinates for {len(self.explored.sets)} sets"
        return f"Parameters({self.kind}: {counts})"

    def _repr_html_(self) -> str:
        title = f"<p>theta_Y, {self.kind}: dimension {self.dimension}, generic rank {self.rank}</p>"
        return title + self.to_frame().to_html(max_rows=60)


def require_kind(kind: object) -> None:
    """Refuse what is no name of a parameterization."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(f"parameters are one of {', '.join(KINDS)}; got {kind!r}")


def collect(explored: Explored, kind: str, *, intercepts: bool) -> Parameters:
    """Return the coordinates that the sets of `explored` use, without known coefficients."""
    require_kind(kind)
    if kind in ("structural", "minimal"):
        return (_structural if kind == "structural" else _minimal)(explored, intercepts)
    pick = {"total_effect": _total_effect, "estimand": _estimand}[kind]
    pairs = zip(explored.sets, explored.reductions, strict=True)
    used = [list(pick(explored, *pair, intercepts)) for pair in pairs]
    coordinates = list(dict.fromkeys(coordinate for row in used for coordinate in row))
    fixed = _fixed(explored, coordinates) if kind == "total_effect" else ()
    for coordinate, _ in fixed:
        coordinates.remove(coordinate)
    column = {coordinate: position for position, coordinate in enumerate(coordinates)}
    uses = np.zeros((len(explored.sets), len(coordinates)), bool)
    for position, row in enumerate(used):
        uses[position, [column[coordinate] for coordinate in row if coordinate in column]] = True
    uses.flags.writeable = False
    return Parameters(kind, intercepts, tuple(coordinates), uses, explored, None, fixed)


def _fixed(
    explored: Explored, coordinates: Sequence[Coordinate]
) -> tuple[tuple[Coordinate, float], ...]:
    """Return the coordinates that are known total effects, with their values."""
    totals = {f"tau[{each.cause}]": each for each in coordinates if _is_total(each, explored)}
    return tuple(
        (totals[label], value) for label, value in explored.known_effects.items() if label in totals
    )


def _is_total(coordinate: Coordinate | Quantity, explored: Explored) -> bool:
    """Return whether a coordinate is the total effect of one variable that alone is set."""
    is_slope = bool(coordinate.cause) and coordinate.effect == explored.target
    return is_slope and coordinate.given == (coordinate.cause,)


def _structural(explored: Explored, intercepts: bool) -> Parameters:
    """Return the structural coordinates: slopes in the order of edges, intercepts in that of nodes.

    A set uses b[i->j] where it leaves j open and reaches i, or leaves j open at all if there are
    intercepts, which may be passed on by any cause.
    """
    graph, _, _, reductions, known, _ = explored
    opened = graph.masks([reduction.open for reduction in reductions])
    passing = (
        np.ones_like(opened)
        if intercepts
        else graph.masks([{*each.effective, *moved(graph, each)} for each in reductions])
    )
    edges = [edge for edge in graph.directed if edge not in known]
    causes, effects = (
        np.array([[graph.index(name) for name in edge] for edge in edges], int).reshape(-1, 2).T
    )
    uses = opened[:, effects] & passing[:, causes]
    coordinates = [
        Coordinate(f"b[{_label(one)}->{_label(other)}]", one, other) for one, other in edges
    ]
    if intercepts:
        uses = np.concatenate([uses, opened], axis=1)
        coordinates += [Coordinate(f"a[{_label(name)}]", "", name) for name in graph.nodes]
    used = uses.any(axis=0)
    uses = uses[:, used]
    uses.flags.writeable = False
    return Parameters("structural", intercepts, tuple(compress(coordinates, used)), uses, explored)


def _minimal(explored: Explored, intercepts: bool) -> Parameters:
    """Return the fewest coordinates of which all effects are polynomials.

    A set uses those that its total effects, or its intercept, depend on.
    """
    graph, target, _, reductions, known, known_effects = explored
    sets = [reduction.effective for reduction in reductions]
    values = {label[4:-1]: value for label, value in known_effects.items()}
    circuit = find_circuit(graph.ancestral(target), target, sets, known, intercepts, values)
    fixed = tuple((_name(explored, each), values[each.cause]) for each in circuit.fixed)
    uses = np.zeros((len(sets), len(circuit.quantities)), bool)
    for row, members in enumerate(sets):
        uses[row] = circuit.uses[list(circuit.slopes[members].values())].any(axis=0)
    uses.flags.writeable = False
    coordinates = tuple(_name(explored, each) for each in circuit.quantities)
    return Parameters("minimal", intercepts, coordinates, uses, explored, circuit, fixed)


def _name(explored: Explored, quantity: Quantity) -> Coordinate:
    """Return an element of a minimal theta with its name."""
    cause, effect, given, is_path, is_total = quantity
    if is_total:
        return _coefficient("tau", explored, cause, given)
    ends = [*([_label(cause)] if cause else []), *([".."] if is_path else []), _label(effect)]
    return Coordinate(f"{'b' if cause else 'a'}[{'->'.join(ends)}]", cause, effect, given)


def _total_effect(
    explored: Explored, members: Names, reduction: Reduction, intercepts: bool
) -> Iterable[Coordinate]:
    graph, upstream = explored.graph, {explored.target, *explored.graph.ancestors(explored.target)}
    for cause in reduction.effective:
        below = {cause, *graph.descendants(cause)} & upstream
        if not _is_known(explored, cause, reduction):
            yield _coefficient("tau", explored, cause, [name for name in members if name in below])
    if intercepts:
        yield _coefficient("tau", explored, "", reduction.effective)


def _estimand(
    explored: Explored, members: Names, reduction: Reduction, intercepts: bool
) -> Iterable[Coordinate]:
    for cause in reduction.effective:
        if not _is_known(explored, cause, reduction):
            yield _coefficient("est", explored, cause, reduction.effective)
    if intercepts:
        yield _coefficient("est", explored, "", reduction.effective)


def _is_known(explored: Explored, cause: str, reduction: Reduction) -> bool:
    """Return whether every coefficient on every open path from the cause to the target is known."""
    graph, inside = explored.graph, set(reduction.open)
    reached = closure([cause], lambda name: inside.intersection(graph.children(name)))
    return all(
        (parent, child) in explored.known
        for child in reached & inside
        for parent in graph.parents(child)
        if parent in reached
    )


def _coefficient(prefix: str, explored: Explored, cause: str, given: Sequence[str]) -> Coordinate:
    name = f"{prefix}[{_label(cause or explored.target)}|{','.join(map(_label, given))}]"
    return Coordinate(name, cause, explored.target, tuple(given))


def _label(name: str) -> str:
    """Return the name, quoted where it holds a character that separates names in a coordinate.

    So no two coordinates have the same name.
    """
    return json.dumps(name, ensure_ascii=False) if any(mark in name for mark in ',|[]>"') else name
