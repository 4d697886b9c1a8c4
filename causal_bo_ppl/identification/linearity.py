"""Which equations of a linear SEM does the covariance determine? (Foygel, Draisma and Drton 2012)

The equation of v is solved when half-treks without sided intersection lead to its parents from as many other
variables, none of them a spouse of v, and each solved already or not reached from v by a half-trek.

Do two linear models with one covariance differ in an effect? A search from many starts, in several random models.

What does linearity identify beyond ID?

With Omega(W) = (I - W')S(I - W), a model of the covariance S is a W whose Omega is zero for every pair without
an arc; Omega is then positive definite by itself. tau_s is locally identified when its gradient lies in the row space
of the Jacobian of these equations: a question of rank, answered without rounding. It is identified when the half-trek
criterion solves every equation it goes through; failing that, solving from many starts may find a second tau, or fail
to: evidence, no proof (`second_effects`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import networkx as nx
import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.finite_field import PRIME, draw_residues, eliminate, invert, times
from causal_bo_ppl.identification.random_models import SEED, draw_trials
from causal_bo_ppl.identification.reduction import Reduction, closure, moved
from causal_bo_ppl.inputs import PATIENCE


@lru_cache(maxsize=16)
def half_trek_identified(graph: CausalGraph) -> frozenset[str]:
    """Variables whose whole equation the half-trek criterion solves, for almost every model."""
    reach = {name: _half_trek_reach(graph, name) for name in graph.nodes}
    solved: set[str] = set()
    grown = True
    while grown:
        new = {
            name
            for name in graph.nodes
            if name not in solved and _is_solvable(graph, name, solved, reach)
        }
        grown, solved = bool(new), solved | new
    return frozenset(solved)


def _half_trek_reach(graph: CausalGraph, name: str) -> set[str]:
    return closure([name, *graph.spouses(name)], graph.children) - {name}


def _is_solvable(
    graph: CausalGraph, name: str, solved: set[str], reach: Mapping[str, set[str]]
) -> bool:
    """A half-trek system without sided intersection from allowed variables to all parents: a flow of that size."""
    parents, barred = graph.parents(name), {name, *graph.spouses(name)}
    allowed = [
        other
        for other in graph.nodes
        if other not in barred and (other in solved or other not in reach[name])
    ]
    flow = nx.DiGraph()
    for node in graph.nodes:
        for side in "left", "right":
            flow.add_edge((side, node, "in"), (side, node, "out"), capacity=1)
        for other in (node, *graph.spouses(node)):
            flow.add_edge(("left", node, "out"), ("right", other, "in"), capacity=1)
        for child in graph.children(node):
            flow.add_edge(("right", node, "out"), ("right", child, "in"), capacity=1)
    flow.add_edges_from((("source", ("left", other, "in")) for other in allowed), capacity=1)
    flow.add_edges_from(((("right", parent, "out"), "sink") for parent in parents), capacity=1)
    if not parents:
        return True
    return bool(allowed) and nx.maximum_flow_value(flow, "source", "sink") == len(parents)


MODELS = 12  # random ones; a second effect may exist in some and not in others
STARTS = 50  # for each model
FEWEST = 5  # solutions of every model, to be evidence
SPREADS = (0.5, 1.0, 2.0, 5.0)  # of the starts, by turns
SOLVED = 1e-9  # of an entry of Omega that must be zero, relative to the largest variance
LARGEST = 1e3  # coefficient of a solution: beyond, rounding is taken for one
APART = 1e-5  # relative, between two values of tau: they are two
Known = tuple[tuple[Edge, float], ...]


class LinearVerdict(NamedTuple):
    """identified: may it be used under linearity? verdict and evidence: what was found, and by which test."""

    identified: bool
    verdict: str
    evidence: str


class _Equations(NamedTuple):
    """One random model, its unknown weights, and the pairs of disturbances that must be uncorrelated."""

    causes: np.ndarray
    effects: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray
    covariance: np.ndarray


def look_for_another(
    graph: CausalGraph, target: str, reduction: Reduction, known: Known, settled: Collection[str]
) -> LinearVerdict:
    """The verdict on a locally identified effect; the equations of `settled` variables are the same in all models."""
    frozen = [graph.index(name) for name in settled]
    found = _search(
        graph, target, reduction, [_without(model, frozen) for model in _models(graph, known)]
    )
    local, tried = (
        "locally identified under linearity (finite-to-one)",
        f"{MODELS} random models, {STARTS} starts each",
    )
    solved, others = (sum(counts) for counts in zip(*found, strict=True))
    if others:
        return LinearVerdict(False, local, f"{others} of {solved} solutions have another effect")
    if min(count for count, _ in found) < FEWEST:
        return LinearVerdict(
            False, local, f"too few solutions to rule out others: {solved} ({tried})"
        )
    evidence = (
        f"numerical evidence, no proof: {solved} solutions, all with the same effect ({tried})"
    )
    return LinearVerdict(True, "identified under linearity", evidence)


def unknowns(graph: CausalGraph, known: Known) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Causes and effects of the unknown coefficients, and the pairs of disturbances that must be uncorrelated."""
    given = dict(known)
    edges = [tuple(map(graph.index, edge)) for edge in graph.directed if edge not in given]
    arcs = {tuple(map(graph.index, arc)) for arc in graph.bidirected}
    pairs = [pair for pair in combinations(range(len(graph.nodes)), 2) if pair not in arcs]
    causes, effects = np.array(edges, int).reshape(-1, 2).T
    return causes, effects, np.array(pairs, int).reshape(-1, 2)


@lru_cache(maxsize=16)
def _models(graph: CausalGraph, known: Known) -> tuple[_Equations, ...]:
    trials = draw_trials(graph, MODELS)
    weights = trials.weights.copy()
    for (cause, effect), value in known:
        weights[:, graph.index(cause), graph.index(effect)] = value
    solve = np.linalg.inv(np.eye(len(graph.nodes)) - weights.transpose(0, 2, 1))
    covariances = solve @ trials.noise @ solve.transpose(0, 2, 1)
    return tuple(
        _Equations(*unknowns(graph, known), *model)
        for model in zip(weights, covariances, strict=True)
    )


def _without(model: _Equations, settled: Sequence[int]) -> _Equations:
    rest = ~np.isin(model.effects, settled)
    return model._replace(causes=model.causes[rest], effects=model.effects[rest])


def _search(
    graph: CausalGraph, target: str, reduction: Reduction, models: Sequence[_Equations]
) -> list[tuple[int, int]]:
    """For every model, how many starts reach one of the same covariance, and how many of these have another effect.

    Ends with the first model that has one.
    """
    draws, found = np.random.default_rng(SEED), []
    for model in tqdm(
        models, desc="looking for a second effect", unit="model", delay=PATIENCE, leave=False
    ):
        truth = _slopes(graph, target, reduction, model.weights)
        gaps = [
            np.abs(_slopes(graph, target, reduction, other) - truth).max()
            for other in _solutions(model, draws)
        ]
        found.append((len(gaps), int(np.sum(np.array(gaps) > APART * np.abs(truth).max()))))
        if found[-1][1]:
            break
    return found


def _slopes(
    graph: CausalGraph, target: str, reduction: Reduction, weights: np.ndarray
) -> np.ndarray:
    free, members = (
        [graph.index(name) for name in names] for names in (reduction.open, reduction.effective)
    )
    onward = np.linalg.inv(np.eye(len(free)) - weights[np.ix_(free, free)])
    return np.asarray(weights[np.ix_(members, free)] @ onward[:, free.index(graph.index(target))])


def _solutions(model: _Equations, draws: np.random.Generator) -> Iterator[np.ndarray]:
    """Weights that give the model's covariance, from random starts."""
    size = np.abs(np.diagonal(model.covariance)).max()
    for turn, start in enumerate(draws.normal(size=(STARTS, len(model.causes)))):
        found = least_squares(
            _residual,
            start * SPREADS[turn % len(SPREADS)],
            _jacobian,
            method="dogbox",  # lm runs away along directions that the equations do not see
            args=(model,),
            xtol=1e-15,
            ftol=1e-15,
            max_nfev=200,
        )
        if (
            np.abs(found.fun).max(initial=0.0) <= SOLVED * size
            and np.abs(found.x).max(initial=0.0) < LARGEST
        ):
            yield np.asarray(np.eye(len(model.weights)) - _left(found.x, model).T)


def _residual(values: np.ndarray, model: _Equations) -> np.ndarray:
    left = _left(values, model)
    return np.asarray((left @ model.covariance @ left.T)[tuple(model.pairs.T)])


def _jacobian(values: np.ndarray, model: _Equations) -> np.ndarray:
    """dOmega_ab / dW_ij = -[b = j] (BS)_ai - [a = j] (BS)_bi, B = I - W'."""
    product = _left(values, model) @ model.covariance
    one, other = model.pairs.T
    first = np.where(other[:, None] == model.effects, product[one][:, model.causes], 0.0)
    return -first - np.where(one[:, None] == model.effects, product[other][:, model.causes], 0.0)


def _left(values: np.ndarray, model: _Equations) -> np.ndarray:
    weights = model.weights.copy()
    weights[model.causes, model.effects] = values
    return np.asarray(np.eye(len(weights)) - weights.T)


def judge(
    graph: CausalGraph, target: str, reduction: Reduction, known: Mapping[Edge, float]
) -> LinearVerdict:
    """The verdict for one set; variables that are no causes of the target count too: they may be instruments."""
    return _judge(graph, target, reduction, tuple(known.items()))


@lru_cache(maxsize=100_000)  # sets with equal reductions have one effect
def _judge(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> LinearVerdict:
    gradient = _gradient(graph, target, reduction, known)
    if not gradient.any():
        return LinearVerdict(
            True, "identified under linearity", "every coefficient on its paths is known"
        )
    spanned = _row_space(graph, known)
    if len(eliminate(np.vstack([spanned, gradient]))) > len(spanned):
        evidence = "at a random model, others with the same covariance differ in it"
        return LinearVerdict(False, "not identified under linearity", evidence)
    # The criterion holds for almost all coefficients, and given ones may be among the rest.
    settled = frozenset() if known else half_trek_identified(graph)
    if moved(graph, reduction) <= settled:
        return LinearVerdict(True, "identified under linearity", "half-trek criterion")
    return look_for_another(graph, target, reduction, known, settled)


@lru_cache(maxsize=16)
def _row_space(graph: CausalGraph, known: Known) -> np.ndarray:
    """Of d Omega_ab / d W_ij = -[b = j] (BS)_ai - [a = j] (BS)_bi, B = I - W', at a random model."""
    model = draw_residues(graph, 1, dict(known))
    causes, effects, pairs = unknowns(graph, known)
    left = (np.eye(len(graph.nodes), dtype=np.int64) - model.weights[0].T) % PRIME
    product, (one, other) = times(left, model.covariance[0]), pairs.T
    first = np.where(other[:, None] == effects, product[one][:, causes], 0)
    return eliminate(-first - np.where(one[:, None] == effects, product[other][:, causes], 0))


def _gradient(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> np.ndarray:
    """(d, e) derivatives of every slope in every unknown weight W_ij: what i gets, times how Y answers to j."""
    weights = draw_residues(graph, 1, dict(known)).weights
    free, members = (
        [graph.index(name) for name in names] for names in (reduction.open, reduction.effective)
    )
    [inner], _ = invert((np.eye(len(free), dtype=np.int64) - weights[:, free][:, :, free]) % PRIME)
    gets, answers = (
        np.zeros((len(members), len(graph.nodes)), np.int64),
        np.zeros(len(graph.nodes), np.int64),
    )
    gets[:, free] = times(weights[0, members][:, free], inner)
    gets[np.arange(len(members)), members] = 1
    answers[free] = inner[:, free.index(graph.index(target))]
    causes, effects, _ = unknowns(graph, known)
    return np.asarray(gets[:, causes] * answers[effects] % PRIME)
