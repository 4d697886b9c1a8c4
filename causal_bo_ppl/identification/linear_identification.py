"""What do linear mechanisms identify beyond ID?

With Omega(W) = (I - W')S(I - W), a model of the covariance S is a W whose Omega is zero for every
pair without an arc; Omega is then positive definite by itself. Three tests follow one another:

1. Local identification: the gradient of the effect tau_s lies in the row space of the Jacobian of
   these equations. This is a question of rank, answered without rounding.
2. The half-trek criterion (Foygel, Draisma and Drton 2012): tau_s is identified when every equation
   that it goes through is solved. The equation of v is solved when half-treks without sided
   intersection lead to its parents from as many other variables, none of them a spouse of v, and
   each solved already or not reached from v by a half-trek.
3. A search: solving the equations from many starts in several random models finds a second tau, or
   fails to. The latter is evidence, no proof.
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
from causal_bo_ppl.identification.parameters import Reduction, closure, moved
from causal_bo_ppl.identification.verification import TRIAL_SEED, draw_trials
from causal_bo_ppl.inputs import PROGRESS_DELAY


@lru_cache(maxsize=16)
def half_trek_identified(graph: CausalGraph) -> frozenset[str]:
    """Return the variables whose equations the half-trek criterion solves, in almost all models."""
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
    """Return whether the equation of a variable can be solved, given those solved already.

    A half-trek system without sided intersection from allowed variables to all parents is a flow of
    that size, left sides and right sides of half-treks being two copies of the graph.
    """
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


SEARCHED_MODELS = 12  # random models; a second effect may exist in some and not in others
STARTS_PER_MODEL = 50  # starts of the search in each model
FEWEST_SOLUTIONS = 5  # solutions that every model must have for evidence
START_SDS = (0.5, 1.0, 2.0, 5.0)  # standard deviations of the starts, by turns
ZERO_COVARIANCE = (
    1e-9  # largest entry of Omega that counts as zero, relative to the largest variance
)
LARGEST_COEFFICIENT = (
    1e3  # largest coefficient of a solution; beyond it rounding looks like a solution
)
DIFFERENT_EFFECT = 1e-5  # relative difference from which on two values of tau are two
Known = tuple[tuple[Edge, float], ...]


class LinearVerdict(NamedTuple):
    """Whether an effect is identified under linearity, the verdict as text, and its evidence."""

    identified: bool
    verdict: str
    evidence: str


class _Equations(NamedTuple):
    """One random model: its unknown weights, and pairs of variables with uncorrelated noise."""

    causes: np.ndarray
    effects: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray
    covariance: np.ndarray


def look_for_another(
    graph: CausalGraph, target: str, reduction: Reduction, known: Known, settled: Collection[str]
) -> LinearVerdict:
    """Return the verdict on a locally identified effect, by a search for a second one.

    The equations of `settled` variables are the same in all models of a covariance.
    """
    frozen = [graph.index(name) for name in settled]
    counts = _search(
        graph, target, reduction, [_without(model, frozen) for model in _models(graph, known)]
    )
    local = "locally identified under linearity (finite-to-one)"
    tried = f"{SEARCHED_MODELS} random models, {STARTS_PER_MODEL} starts each"
    solved, others = (sum(column) for column in zip(*counts, strict=True))
    if others:
        return LinearVerdict(False, local, f"{others} of {solved} solutions have another effect")
    if min(count for count, _ in counts) < FEWEST_SOLUTIONS:
        evidence = f"too few solutions to rule out others: {solved} ({tried})"
        return LinearVerdict(False, local, evidence)
    evidence = f"numerical evidence, no proof: {solved} solutions, all with the same effect"
    return LinearVerdict(True, "identified under linearity", f"{evidence} ({tried})")


def unknowns(graph: CausalGraph, known: Known) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the causes and effects of the unknown coefficients, and the pairs without an arc.

    All are positions in the graph; the noise of such a pair must be uncorrelated.
    """
    given = dict(known)
    edges = [tuple(map(graph.index, edge)) for edge in graph.directed if edge not in given]
    arcs = {tuple(map(graph.index, arc)) for arc in graph.bidirected}
    pairs = [pair for pair in combinations(range(len(graph.nodes)), 2) if pair not in arcs]
    causes, effects = np.array(edges, int).reshape(-1, 2).T
    return causes, effects, np.array(pairs, int).reshape(-1, 2)


@lru_cache(maxsize=16)
def _models(graph: CausalGraph, known: Known) -> tuple[_Equations, ...]:
    trials = draw_trials(graph, SEARCHED_MODELS)
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
    """Count, for every model, the solutions, and those among them with another effect.

    A solution is a start that reaches a model of the same covariance. The search ends with the
    first model that has another effect.
    """
    draws, counts = np.random.default_rng(TRIAL_SEED), []
    for model in tqdm(
        models, desc="looking for a second effect", unit="model", delay=PROGRESS_DELAY, leave=False
    ):
        truth = _slopes(graph, target, reduction, model.weights)
        gaps = [
            np.abs(_slopes(graph, target, reduction, other) - truth).max()
            for other in _solutions(model, draws)
        ]
        counts.append(
            (len(gaps), int(np.sum(np.array(gaps) > DIFFERENT_EFFECT * np.abs(truth).max())))
        )
        if counts[-1][1]:
            break
    return counts


def _slopes(
    graph: CausalGraph, target: str, reduction: Reduction, weights: np.ndarray
) -> np.ndarray:
    free, members = _indices(graph, reduction)
    onward = np.linalg.inv(np.eye(len(free)) - weights[np.ix_(free, free)])
    return np.asarray(weights[np.ix_(members, free)] @ onward[:, free.index(graph.index(target))])


def _indices(graph: CausalGraph, reduction: Reduction) -> tuple[list[int], list[int]]:
    """Return the positions of the open variables and of the effective members of a set."""
    free, members = (
        list(map(graph.index, names)) for names in (reduction.open, reduction.effective)
    )
    return free, members


def _solutions(model: _Equations, draws: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield weights that give the model's covariance, found from random starts."""
    size = np.abs(np.diagonal(model.covariance)).max()
    for turn, start in enumerate(draws.normal(size=(STARTS_PER_MODEL, len(model.causes)))):
        fit = least_squares(
            _residual,
            start * START_SDS[turn % len(START_SDS)],
            _jacobian,
            method="dogbox",  # "lm" diverges along directions that do not change the equations
            args=(model,),
            xtol=1e-15,
            ftol=1e-15,
            max_nfev=200,
        )
        is_solution = np.abs(fit.fun).max(initial=0.0) <= ZERO_COVARIANCE * size
        if is_solution and np.abs(fit.x).max(initial=0.0) < LARGEST_COEFFICIENT:
            yield np.asarray(np.eye(len(model.weights)) - _left(fit.x, model).T)


def _residual(values: np.ndarray, model: _Equations) -> np.ndarray:
    left = _left(values, model)
    return np.asarray((left @ model.covariance @ left.T)[tuple(model.pairs.T)])


def _jacobian(values: np.ndarray, model: _Equations) -> np.ndarray:
    """Return dOmega_ab / dW_ij = -[b = j] (BS)_ai - [a = j] (BS)_bi, with B = I - W'."""
    product = _left(values, model) @ model.covariance
    one, other = model.pairs.T
    first = np.where(other[:, None] == model.effects, product[one][:, model.causes], 0.0)
    return -first - np.where(one[:, None] == model.effects, product[other][:, model.causes], 0.0)


def _left(values: np.ndarray, model: _Equations) -> np.ndarray:
    """Return I - W' with the unknown weights at `values`."""
    weights = model.weights.copy()
    weights[model.causes, model.effects] = values
    return np.asarray(np.eye(len(weights)) - weights.T)


@lru_cache(maxsize=100_000)  # sets with equal reductions have one effect
def judge(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> LinearVerdict:
    """Return the verdict for one set.

    The graph should have variables that are no causes of the target too: they may be instruments.
    """
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
    """Return rows that span the row space of the Jacobian at a random model, without rounding.

    The Jacobian is that of `_jacobian`, over the finite field.
    """
    model = draw_residues(graph, 1, dict(known))
    causes, effects, pairs = unknowns(graph, known)
    left = (np.eye(len(graph.nodes), dtype=np.int64) - model.weights[0].T) % PRIME
    product, (one, other) = times(left, model.covariance[0]), pairs.T
    first = np.where(other[:, None] == effects, product[one][:, causes], 0)
    return eliminate(-first - np.where(one[:, None] == effects, product[other][:, causes], 0))


def _gradient(graph: CausalGraph, target: str, reduction: Reduction, known: Known) -> np.ndarray:
    """Return the derivatives of the d slopes in the e unknown weights W_ij, of shape (d, e).

    The derivative is the effect of the member on i, times the effect of j on Y.
    """
    weights = draw_residues(graph, 1, dict(known)).weights
    free, members = _indices(graph, reduction)
    [inner], _ = invert((np.eye(len(free), dtype=np.int64) - weights[:, free][:, :, free]) % PRIME)
    gets = np.zeros((len(members), len(graph.nodes)), np.int64)
    answers = np.zeros(len(graph.nodes), np.int64)
    gets[:, free] = times(weights[0, members][:, free], inner)
    gets[np.arange(len(members)), members] = 1
    answers[free] = inner[:, free.index(graph.index(target))]
    causes, effects, _ = unknowns(graph, known)
    return np.asarray(gets[:, causes] * answers[effects] % PRIME)
