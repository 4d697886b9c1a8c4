"""Models on which an estimand is tried: random linear-Gaussian SEMs of the graph, and what is true in them.

V = a + W'V + e, e ~ N(0, Omega): under do(s), Y = tau'x + l'(a + e) over what is not set. Drawn by NumPy from a fixed
seed, so a verdict never changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.potentials import LOG_TWO_PI, Potential, Reals
from causal_bo_ppl.inputs import require_float64

TRIALS = 3
SEED = 20021
CAP = 25.0  # variance that parents may give; noise is near 1: small enough to invert, large enough to pass on


class Trials(NamedTuple):
    """t random SEMs in the graph's order: weights and noise (t, p, p), intercepts (t, p), and their moments."""

    weights: np.ndarray
    intercepts: np.ndarray
    noise: np.ndarray
    moments: Reals


def draw_trials(graph: CausalGraph, count: int) -> Trials:
    """SEMs in which every path and every arc counts, in deep graphs and in dense ones.

    Coefficients are near 1 in size, so that an effect does not fade along a path; those of a variable
    shrink only where its parents would give it a variance above CAP.
    """
    require_float64()
    draws = np.random.default_rng(SEED)
    size = len(graph.nodes)
    scale = draws.uniform(0.6, 1.4, (count, size))
    noise = _draw_noise(graph, draws, count) * scale[:, :, None] * scale[:, None, :]
    weights, grown = (
        np.zeros((count, size, size)),
        np.zeros((count, size, size)),
    )  # grown: variances without arcs
    for place, name in enumerate(graph.nodes):
        parents = [graph.index(cause) for cause in graph.parents(name)]
        column = draws.uniform(0.7, 1.3, (count, len(parents))) * draws.choice(
            [-1.0, 1.0], (count, len(parents))
        )
        inherited = np.einsum("ti,tij,tj->t", column, grown[:, parents][:, :, parents], column)
        column *= np.minimum(1.0, np.sqrt(CAP / np.maximum(inherited, CAP)))[:, None]
        weights[:, parents, place] = column
        shared = np.einsum("ti,tij->tj", column, grown[:, parents])
        grown[:, place], grown[:, :, place] = shared, shared
        grown[:, place, place] = np.minimum(inherited, CAP) + scale[:, place] ** 2
    intercepts = draws.normal(size=(count, size))
    solve = np.linalg.inv(np.eye(size) - weights.transpose(0, 2, 1))
    moments = Reals(
        (solve @ intercepts[..., None])[..., 0], solve @ noise @ solve.transpose(0, 2, 1)
    )
    return Trials(weights, intercepts, noise, moments)


def _draw_noise(graph: CausalGraph, draws: np.random.Generator, count: int) -> np.ndarray:
    """Correlations on the arcs; diagonally dominant, so positive definite."""
    noise = np.tile(np.eye(len(graph.nodes)), (count, 1, 1))
    arcs = {name: max(len(graph.spouses(name)), 1) for name in graph.nodes}
    for one, other in graph.bidirected:
        shared = (
            draws.uniform(0.4, 0.9, count)
            * draws.choice([-1.0, 1.0], count)
            / max(arcs[one], arcs[other])
        )
        noise[:, graph.index(one), graph.index(other)] = noise[
            :, graph.index(other), graph.index(one)
        ] = shared
    return noise


def _adjoints(trials: Trials, target: int, masks: np.ndarray) -> np.ndarray:
    """(t, M, p) sensitivity of Y to every node, l_i = sum over free j of W_ij l_j, for the sets in `masks`, (M, p)."""
    found = np.zeros((len(trials.weights), *masks.shape))
    found[:, :, target] = 1.0
    for node in range(target - 1, -1, -1):
        found[:, :, node] = np.einsum(
            "tmj,tj->tm", np.where(masks, 0.0, found), trials.weights[:, node]
        )
    return found


class Effects(NamedTuple):
    """What do of M sets does to Y in t trials: slopes (t, M, p), intercepts and variances (t, M)."""

    slopes: np.ndarray
    intercepts: np.ndarray
    variances: np.ndarray

    def potential(self, place: int, places: Sequence[int], target: int) -> Potential:
        """N(y; intercept + slopes'x, variance) of one set in every trial, as a potential over `places`."""
        intercept, variance = self.intercepts[:, place], self.variances[:, place]
        residual = -self.slopes[:, place, list(places)]
        residual[:, list(places).index(target)] = 1.0
        precision = residual[:, :, None] * residual[:, None, :] / variance[:, None, None]
        constant = -(LOG_TWO_PI + np.log(variance) + intercept**2 / variance) / 2
        return Potential(
            tuple(places), precision, residual * (intercept / variance)[:, None], constant
        )


def true_effects(trials: Trials, target: int, masks: np.ndarray) -> Effects:
    """The truth under do of the sets in `masks`, (M, p) boolean."""
    adjoint = _adjoints(trials, target, masks)
    slopes, loads = np.where(masks, adjoint, 0.0), np.where(masks, 0.0, adjoint)
    intercepts = np.einsum("tmj,tj->tm", loads, trials.intercepts)
    return Effects(
        slopes, intercepts, np.einsum("tmi,tij,tmj->tm", loads, trials.noise, loads, optimize=True)
    )
