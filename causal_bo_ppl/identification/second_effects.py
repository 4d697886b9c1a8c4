"""Do two linear models with one covariance differ in an effect? A search from many starts, in several random models."""

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.reduction import Reduction
from causal_bo_ppl.identification.trials import SEED, draw_trials

MODELS = 12  # random ones; a second effect may exist in some and not in others
STARTS = 50  # for each model
FEWEST = 5  # solutions of every model, to be evidence
SPREADS = (0.5, 1.0, 2.0, 5.0)  # of the starts, by turns
SOLVED = 1e-9  # of an entry of Omega that must be zero, relative to the largest variance
LARGEST = 1e3  # coefficient of a solution: beyond, rounding is taken for one
APART = 1e-5  # relative, between two values of tau: they are two
PATIENCE = 3.0  # seconds without a progress bar
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
    found = _search(graph, target, reduction, [_without(model, frozen) for model in _models(graph, known)])
    local, tried = "locally identified under linearity (finite-to-one)", f"{MODELS} random models, {STARTS} starts each"
    solved, others = (sum(counts) for counts in zip(*found, strict=True))
    if others:
        return LinearVerdict(False, local, f"{others} of {solved} solutions have another effect")
    if min(count for count, _ in found) < FEWEST:
        return LinearVerdict(False, local, f"too few solutions to rule out others: {solved} ({tried})")
    evidence = f"numerical evidence, no proof: {solved} solutions, all with the same effect ({tried})"
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
    return tuple(_Equations(*unknowns(graph, known), *model) for model in zip(weights, covariances, strict=True))


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
    for model in tqdm(models, desc="looking for a second effect", unit="model", delay=PATIENCE, leave=False):
        truth = _slopes(graph, target, reduction, model.weights)
        gaps = [np.abs(_slopes(graph, target, reduction, other) - truth).max() for other in _solutions(model, draws)]
        found.append((len(gaps), int(np.sum(np.array(gaps) > APART * np.abs(truth).max()))))
        if found[-1][1]:
            break
    return found


def _slopes(graph: CausalGraph, target: str, reduction: Reduction, weights: np.ndarray) -> np.ndarray:
    free, members = ([graph.index(name) for name in names] for names in (reduction.open, reduction.effective))
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
        if np.abs(found.fun).max(initial=0.0) <= SOLVED * size and np.abs(found.x).max(initial=0.0) < LARGEST:
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
