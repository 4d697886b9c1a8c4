"""What are the true effects in random linear-Gaussian SEMs, on which estimands are tried?

V = a + W'V + e with e ~ N(0, Omega); under do(s) = x, Y = tau'x + l'(a + e), with loads l = 0 for
what is set. The models are drawn by NumPy from a fixed seed, so a verdict never changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.potentials import LOG_TWO_PI, Potential, Reals
from causal_bo_ppl.inputs import require_float64
from causal_bo_ppl.sweeps import adjoint_sweep

TRIALS = 3
SEED = 20021
# Largest variance that parents may give to a variable, whose own noise has a variance near 1: small
# enough for covariances to be inverted, large enough for an effect to be passed on.
CAP = 25.0


class Trials(NamedTuple):
    """Random SEMs, t of them, with variables in the graph's order.

    Attributes
    ----------
    weights, noise:
        The coefficients W, W_ij that of i for j, and the covariances Omega, of shape (t, p, p).
    intercepts:
        The intercepts a, of shape (t, p).
    moments:
        The means and covariances that follow from these.
    """

    weights: np.ndarray
    intercepts: np.ndarray
    noise: np.ndarray
    moments: Reals


def draw_trials(graph: CausalGraph, count: int) -> Trials:
    """Draw SEMs in which every path and every arc counts, in deep graphs and in dense ones.

    Coefficients are near 1 in size, so that an effect does not fade along a path; those of a
    variable shrink only where its parents would give it a variance above CAP.
    """
    require_float64()
    draws = np.random.default_rng(SEED)
    size = len(graph.nodes)
    scale = draws.uniform(0.6, 1.4, (count, size))
    noise = _draw_noise(graph, draws, count) * scale[:, :, None] * scale[:, None, :]
    weights = np.zeros((count, size, size))
    grown = np.zeros((count, size, size))  # covariances as they would be without arcs
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
    """Draw correlations on the arcs, diagonally dominant and so positive definite, (t, p, p)."""
    noise = np.tile(np.eye(len(graph.nodes)), (count, 1, 1))
    arcs = {name: max(len(graph.spouses(name)), 1) for name in graph.nodes}
    for one, other in graph.bidirected:
        shared = (
            draws.uniform(0.4, 0.9, count)
            * draws.choice([-1.0, 1.0], count)
            / max(arcs[one], arcs[other])
        )
        at = graph.index(one), graph.index(other)
        noise[:, *at] = noise[:, *at[::-1]] = shared
    return noise


class Effects(NamedTuple):
    """The distributions of Y under do of M sets in t trials.

    Slopes have the shape (t, M, p), intercepts and variances (t, M).
    """

    slopes: np.ndarray
    intercepts: np.ndarray
    variances: np.ndarray

    def potential(self, place: int, places: Sequence[int], target: int) -> Potential:
        """Return the density N(y; intercept + slopes'x, variance) of one set in every trial.

        It is a potential over `places`, which are the target and what is set.
        """
        intercept, variance = self.intercepts[:, place], self.variances[:, place]
        residual = -self.slopes[:, place, list(places)]
        residual[:, list(places).index(target)] = 1.0
        precision = residual[:, :, None] * residual[:, None, :] / variance[:, None, None]
        constant = -(LOG_TWO_PI + np.log(variance) + intercept**2 / variance) / 2
        return Potential(
            tuple(places), precision, residual * (intercept / variance)[:, None], constant
        )


def true_effects(trials: Trials, target: int, masks: np.ndarray) -> Effects:
    """Return the true effects of the sets in `masks`, a boolean array of shape (M, p)."""
    swept = adjoint_sweep(trials.weights, masks.T, target)
    loads, slopes = (part.transpose(0, 2, 1) for part in (swept, trials.weights @ swept))
    slopes = np.where(masks, slopes, 0.0)
    intercepts = np.einsum("tmj,tj->tm", loads, trials.intercepts)
    return Effects(
        slopes, intercepts, np.einsum("tmi,tij,tmj->tm", loads, trials.noise, loads, optimize=True)
    )
