"""What does linearity identify beyond ID?

With Omega(W) = (I - W')S(I - W), a model of the covariance S is a W whose Omega is zero for every pair without
an arc; Omega is then positive definite by itself. tau_s is locally identified when its gradient vanishes on the
null space of the Jacobian of these equations. It is identified when the half-trek criterion (Foygel, Draisma and
Drton 2012) solves every equation it goes through; failing that, solving from many starts may find a second tau, or
fail to: evidence, no proof.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.half_treks import half_trek_identified
from causal_bo_ppl.identification.reduction import Reduction, closure
from causal_bo_ppl.identification.trials import SEED, draw_trials

MODELS = 12  # random ones; a second effect may exist in some and not in others
STARTS = 50  # for each model
SPREADS = (0.5, 1.0, 2.0, 5.0)  # of the starts, by turns
FLAT = 1e-8  # of a gradient of length 1: what rounding leaves of zero
SOLVED = 1e-9  # of an entry of Omega that must be zero, relative to the largest variance
APART = 1e-5  # relative, between two values of tau: they are two
PATIENCE = 3.0  # seconds without a progress bar
Edge = tuple[str, str]


class LinearVerdict(NamedTuple):
    """identified: may it be used under linearity? verdict and evidence: what was found, and by which test."""

    identified: bool
    verdict: str
    evidence: str


class _Equations(NamedTuple):
    """The unknown weights and the pairs of disturbances that must be uncorrelated, of one random model."""

    rows: np.ndarray
    columns: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray
    covariance: np.ndarray


def judge(graph: CausalGraph, target: str, reduction: Reduction, known: Mapping[Edge, float]) -> LinearVerdict:
    """The verdict for one set; variables that are no causes of the target count too: they may be instruments.

    The half-trek criterion holds for almost all coefficients, so not for some that are known: these are left to
    the search.
    """
    models = _models(graph, known)
    gradients = [_gradient(graph, target, reduction, model) for model in models]
    if not gradients[0].any():
        return LinearVerdict(True, "identified under linearity", "every coefficient on its paths is known")
    if not all(map(_is_locally_identified, models, gradients)):
        evidence = "at a random model, others with the same covariance differ in it"
        return LinearVerdict(False, "not identified under linearity", evidence)
    settled = set() if known else half_trek_identified(graph)
    if _needed(graph, reduction) <= settled:
        return LinearVerdict(True, "identified under linearity", "half-trek criterion")
    frozen = [graph.index(name) for name in settled]
    return _weigh(*_search(graph, target, reduction, [_without(model, frozen) for model in models]))


def _weigh(solved: int, others: int) -> LinearVerdict:
    local, tried = "locally identified under linearity (finite-to-one)", f"{MODELS} random models, {STARTS} starts each"
    if others:
        return LinearVerdict(False, local, f"{others} of {solved} solutions have another effect")
    if solved < MODELS * STARTS // 5:
        return LinearVerdict(False, local, f"too few solutions to rule out others: {solved} ({tried})")
    evidence = f"numerical evidence, no proof: {solved} solutions, all with the same effect ({tried})"
    return LinearVerdict(True, "identified under linearity", evidence)


def _needed(graph: CausalGraph, reduction: Reduction) -> set[str]:
    """Variables whose equations the effect goes through: free, and moved by the set."""
    inside = set(reduction.open)
    return closure(reduction.effective, lambda name: inside.intersection(graph.children(name))) & inside


def _models(graph: CausalGraph, known: Mapping[Edge, float]) -> list[_Equations]:
    trials = draw_trials(graph, MODELS)
    weights = trials.weights.copy()
    for (cause, effect), value in known.items():
        weights[:, graph.index(cause), graph.index(effect)] = value
    unknown = [(graph.index(i), graph.index(j)) for i, j in graph.directed if (i, j) not in known]
    arcs = {(graph.index(i), graph.index(j)) for i, j in graph.bidirected}
    pairs = [pair for pair in combinations(range(len(graph.nodes)), 2) if pair not in arcs]
    rows, columns = np.array(unknown, int).reshape(-1, 2).T
    solve = np.linalg.inv(np.eye(len(graph.nodes)) - weights.transpose(0, 2, 1))
    covariances = solve @ trials.noise @ solve.transpose(0, 2, 1)
    shape = np.array(pairs, int).reshape(-1, 2)
    return [_Equations(rows, columns, shape, *model) for model in zip(weights, covariances, strict=True)]


def _without(equations: _Equations, settled: list[int]) -> _Equations:
    """The same equations with the coefficients of some variables no longer unknown: all models agree on them."""
    rest = ~np.isin(equations.columns, settled)
    return equations._replace(rows=equations.rows[rest], columns=equations.columns[rest])


def _residual(values: np.ndarray, equations: _Equations) -> np.ndarray:
    left = _left(values, equations)
    return np.asarray((left @ equations.covariance @ left.T)[tuple(equations.pairs.T)])


def _jacobian(values: np.ndarray, equations: _Equations) -> np.ndarray:
    """dOmega_ab / dW_ij = -[b = j] (BS)_ai - [a = j] (BS)_bi, B = I - W'."""
    product = _left(values, equations) @ equations.covariance
    one, other = equations.pairs.T
    first = np.where(other[:, None] == equations.columns, product[one][:, equations.rows], 0.0)
    return -first - np.where(one[:, None] == equations.columns, product[other][:, equations.rows], 0.0)


def _left(values: np.ndarray, equations: _Equations) -> np.ndarray:
    weights = equations.weights.copy()
    weights[equations.rows, equations.columns] = values
    return np.asarray(np.eye(len(weights)) - weights.T)


def _truth(equations: _Equations) -> np.ndarray:
    return np.asarray(equations.weights[equations.rows, equations.columns])


def _is_locally_identified(equations: _Equations, gradient: np.ndarray) -> bool:
    jacobian = _jacobian(_truth(equations), equations)
    jacobian /= np.maximum(np.linalg.norm(jacobian, axis=1, keepdims=True), 1e-300)
    _, sizes, directions = np.linalg.svd(np.linalg.qr(jacobian, mode="r"))  # far more equations than unknowns
    rank = int(np.sum(sizes > FLAT * sizes.max(initial=0.0)))
    lengths = np.linalg.norm(gradient, axis=1, keepdims=True)
    unit = gradient / np.where(lengths > 0, lengths, 1.0)
    return bool(np.abs(unit @ directions[rank:].T).max(initial=0.0) <= 100 * FLAT)


def _sweep(graph: CausalGraph, target: str, reduction: Reduction, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What every node gets from a unit of each member, (d, p), and how Y answers to every free node, (p,)."""
    free, causes = ([graph.index(name) for name in names] for names in (reduction.open, reduction.effective))
    inner = np.linalg.inv(np.eye(len(free)) - weights[np.ix_(free, free)])
    moved, loads = np.zeros((len(causes), len(graph.nodes))), np.zeros(len(graph.nodes))
    moved[:, free] = weights[np.ix_(causes, free)] @ inner
    moved[np.arange(len(causes)), causes] = 1.0
    loads[free] = inner[:, free.index(graph.index(target))]
    return moved, loads


def _gradient(graph: CausalGraph, target: str, reduction: Reduction, equations: _Equations) -> np.ndarray:
    """(d, e) derivatives of every slope in every unknown weight W_ij: what i gets, times how Y answers to j."""
    moved, loads = _sweep(graph, target, reduction, equations.weights)
    return np.asarray(moved[:, equations.rows] * loads[equations.columns])


def _search(graph: CausalGraph, target: str, reduction: Reduction, models: list[_Equations]) -> tuple[int, int]:
    """Number of starts that reach a model of the same covariance, and how many of these have another effect.

    Ends with the first model that has one.
    """
    draws, at, solved, others = np.random.default_rng(SEED), graph.index(target), 0, 0
    for model in tqdm(models, desc="looking for a second effect", unit="model", delay=PATIENCE, leave=False):
        truth = _sweep(graph, target, reduction, model.weights)[0][:, at]
        for weights in _solutions(model, draws):
            slopes = _sweep(graph, target, reduction, weights)[0][:, at]
            solved += 1
            others += bool(np.abs(slopes - truth).max() > APART * np.abs(truth).max())
        if others:
            break
    return solved, others


def _solutions(model: _Equations, draws: np.random.Generator) -> Iterator[np.ndarray]:
    """Weights that give the model's covariance, from random starts."""
    size = np.abs(np.diagonal(model.covariance)).max()
    enough = len(model.pairs) >= len(model.rows)  # equations for Levenberg-Marquardt, far faster than the other
    for turn, start in enumerate(draws.normal(size=(STARTS, len(model.rows)))):
        found = least_squares(
            _residual,
            start * SPREADS[turn % len(SPREADS)],
            _jacobian,
            method="lm" if enough else "dogbox",
            args=(model,),
            xtol=1e-15,
            ftol=1e-15,
            max_nfev=200,
        )
        if np.abs(found.fun).max(initial=0.0) <= SOLVED * size:
            yield np.asarray(np.eye(len(model.weights)) - _left(found.x, model).T)
