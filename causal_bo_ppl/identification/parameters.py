"""How many directions of theta_Y can any response see? The rank of the stacked Jacobians, at a random point.

f(z) has df/dW_ij = m_i l_j and df/da_j = l_j for j not set: m the means under do(z), l the sensitivities of Y. A
response is affine in its values, so d + 1 random points of a set of d variables span all of its Jacobians. The rank is
taken over a finite field, without rounding: the larger of two random models is the generic one.

Which quantities do all effects share? theta_Y in three parameterizations, and its true dimension.

structural: b[i->j], where some set leaves j free with a path to Y open and reaches i (or, with intercepts, leaves i
free too), and a[j]. total_effect: tau[i|members of s on directed paths from i to Y], tau[Y|s] for the intercept.
estimand: est[i|s], est[Y|s], of the verified estimands. In an intercept and in `est` s is its members that affect Y.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.finite_field import (
    PRIME,
    SEED,
    Residues,
    draw_residues,
    eliminate,
    times,
)
from causal_bo_ppl.identification.reduction import Names, Reduction, closure, moved
from causal_bo_ppl.problem.queries import set_label

MODELS = 2
ROWS = 20_000  # of a Jacobian held at once


def generic_rank(
    graph: CausalGraph,
    target: str,
    sets: Sequence[Names],
    known: Mapping[Edge, float],
    coordinates: Sequence[Edge],
    centred: bool,
) -> int:
    """The rank over all sets of the Jacobian in `coordinates`: (cause, effect) pairs, the cause "" for an intercept."""
    models = draw_residues(graph, MODELS, known)
    if centred:
        models = models._replace(intercepts=np.zeros_like(models.intercepts))
    spanned = [np.zeros((0, len(coordinates)), np.int64)] * MODELS
    for mask, value in _points(graph, sets):
        jacobian = _jacobian(models, graph, target, mask, value, coordinates)
        spanned = [eliminate(np.vstack(pair)) for pair in zip(spanned, jacobian, strict=True)]
    return max(len(rows) for rows in spanned)


def _points(graph: CausalGraph, sets: Sequence[Names]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Queries as (mask, value): d + 1 random points of every set of d variables."""
    draws = np.random.default_rng(SEED)
    places = [
        [graph.index(name) for name in members] for members in sets for _ in range(len(members) + 1)
    ]
    for start in range(0, len(places), ROWS):
        rows = places[start : start + ROWS]
        mask = np.zeros((len(rows), len(graph.nodes)), bool)
        for row, columns in enumerate(rows):
            mask[row, columns] = True
        yield mask, np.where(mask, draws.integers(1, PRIME, mask.shape), 0)


def _jacobian(
    models: Residues,
    graph: CausalGraph,
    target: str,
    mask: np.ndarray,
    value: np.ndarray,
    coordinates: Sequence[Edge],
) -> np.ndarray:
    """(t, M, d): m_i l_j, or l_j, where j is free."""
    means = np.zeros((MODELS, *mask.shape), np.int64)
    loads = np.zeros_like(means)  # of free nodes; 0 where set
    for node in range(len(graph.nodes)):
        natural = (
            times(means, models.weights[:, :, node, None])[..., 0]
            + models.intercepts[:, None, node]
        )
        means[:, :, node] = np.where(mask[:, node], value[:, node], natural % PRIME)
    loads[:, :, graph.index(target)] = 1
    for node in range(graph.index(target) - 1, -1, -1):
        onward = times(loads, models.weights[:, node, :, None])[..., 0]
        loads[:, :, node] = np.where(mask[:, node], 0, onward)
    causes = [
        means[:, :, graph.index(cause)] if cause else np.ones_like(means[:, :, 0])
        for cause, _ in coordinates
    ]
    effects = [loads[:, :, graph.index(effect)] for _, effect in coordinates]
    return np.asarray(np.stack(causes, axis=-1) * np.stack(effects, axis=-1) % PRIME)


KINDS = ("structural", "total_effect", "estimand")


class Coordinate(NamedTuple):
    """One entry of theta_Y: the coefficient of `cause` for `effect`, or an intercept of `effect` where cause is "".

    given: the intervened variables that it is a coefficient under; none for a structural one.
    """

    name: str
    cause: str
    effect: str
    given: Names = ()


class Explored(NamedTuple):
    """The sets whose effects are parameterized, with what is left of the graph under each."""

    graph: CausalGraph
    target: str
    sets: tuple[Names, ...]
    reductions: tuple[Reduction, ...]
    known: dict[Edge, float]


@dataclass(frozen=True, eq=False)
class Parameters:
    """Named coordinates of theta_Y and which intervention set uses which.

    uses: (number of sets, dimension) bool.
    """

    kind: str
    intercepts: bool
    coordinates: tuple[Coordinate, ...]
    uses: np.ndarray
    explored: Explored

    @property
    def names(self) -> Names:
        """Names of the coordinates, in order."""
        return tuple(coordinate.name for coordinate in self.coordinates)

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return len(self.coordinates)

    @cached_property
    def rank(self) -> int:
        """Number of directions of theta_Y that any response can see, at a random point of the model.

        Measured: the rank of the stacked Jacobians of all responses. Without intercepts the model is centred.
        """
        return self.generic_rank()

    def generic_rank(self, *, centred: bool | None = None) -> int:
        """The rank; `centred=False` with `intercepts=False` takes intercepts as known and not zero."""
        structural = collect(self.explored, "structural", intercepts=self.intercepts)
        edges = [(found.cause, found.effect) for found in structural.coordinates]
        if not edges:
            return 0
        is_centred = not self.intercepts if centred is None else centred
        if is_centred and self.intercepts:
            raise ModelError(
                "a centred model has no intercepts; take parameters(..., intercepts=False)"
            )
        graph, target, sets, _, known = self.explored
        return generic_rank(graph, target, sets, known, edges, is_centred)

    def sharing(self) -> pd.DataFrame:
        """Which set (row) uses which coordinate (column)."""
        index = pd.Index(map(set_label, self.explored.sets), name="set")
        return pd.DataFrame(self.uses, index=index, columns=list(self.names))

    def to_frame(self) -> pd.DataFrame:
        """A row for every coordinate: cause, effect, what is set, and how many sets use it."""
        rows = [(found.cause, found.effect, ", ".join(found.given)) for found in self.coordinates]
        frame = pd.DataFrame(
            rows,
            index=pd.Index(self.names, name="coordinate"),
            columns=["cause", "effect", "given"],
        )
        return frame.assign(used_by=self.uses.sum(axis=0))

    def __len__(self) -> int:
        return self.dimension

    def __repr__(self) -> str:
        return f"Parameters({self.kind}: {self.dimension} coordinates for {len(self.explored.sets)} sets)"

    def _repr_html_(self) -> str:
        title = f"<p>theta_Y, {self.kind}: dimension {self.dimension}, generic rank {self.rank}</p>"
        return title + self.to_frame().to_html(max_rows=60)


def require_kind(kind: object) -> None:
    """Refuse what is no name of a parameterization."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(f"parameters are one of {', '.join(KINDS)}; got {kind!r}")


def collect(explored: Explored, kind: str, *, intercepts: bool) -> Parameters:
    """The coordinates that the sets of `explored` use, known coefficients left out."""
    require_kind(kind)
    pick = {"structural": _structural, "total_effect": _total_effect, "estimand": _estimand}[kind]
    used = [
        list(pick(explored, members, reduction, intercepts))
        for members, reduction in zip(explored.sets, explored.reductions, strict=True)
    ]
    distinct = dict.fromkeys(coordinate for row in used for coordinate in row)
    found = (
        sorted(distinct, key=partial(_edge_order, explored.graph))
        if kind == "structural"
        else list(distinct)
    )
    column = {coordinate: place for place, coordinate in enumerate(found)}
    uses = np.zeros((len(explored.sets), len(found)), bool)
    for place, row in enumerate(used):
        uses[place, [column[coordinate] for coordinate in row]] = True
    uses.flags.writeable = False
    return Parameters(kind, intercepts, tuple(found), uses, explored)


def _edge_order(graph: CausalGraph, coordinate: Coordinate) -> tuple[bool, int, int]:
    """Slopes in the order of the graph's edges, then intercepts in the order of its nodes."""
    cause = graph.index(coordinate.cause) if coordinate.cause else -1
    return not coordinate.cause, cause, graph.index(coordinate.effect)


def _structural(
    explored: Explored, members: Names, reduction: Reduction, intercepts: bool
) -> Iterable[Coordinate]:
    graph, reached = explored.graph, {*reduction.effective, *moved(explored.graph, reduction)}
    for effect in reduction.open:
        for cause in graph.parents(effect):
            if (cause in reached or intercepts) and (cause, effect) not in explored.known:
                yield Coordinate(f"b[{_label(cause)}->{_label(effect)}]", cause, effect)
        if intercepts:
            yield Coordinate(f"a[{_label(effect)}]", "", effect)


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
    """Is every coefficient on every open path from the cause to the target known?"""
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
    """The name, quoted where it holds what separates names here: two coordinates are never called the same."""
    return json.dumps(name, ensure_ascii=False) if any(mark in name for mark in ',|[]>"') else name
