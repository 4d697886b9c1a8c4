"""How many directions of theta_Y can any response see? The rank of the stacked Jacobians, at a random point.

f(z) has df/dW_ij = m_i l_j and df/da_j = l_j for j not set: m the means under do(z), l the sensitivities of Y. A
response is affine in its values, so d + 1 random points of a set of d variables span all of its Jacobians. The rank is
taken over a finite field, without rounding: the larger of two random models is the generic one.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.identification.reduction import Names
from causal_bo_ppl.identification.residues import PRIME, SEED, Residues, draw_residues, eliminate, times

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
    places = [[graph.index(name) for name in members] for members in sets for _ in range(len(members) + 1)]
    for start in range(0, len(places), ROWS):
        rows = places[start : start + ROWS]
        mask = np.zeros((len(rows), len(graph.nodes)), bool)
        for row, columns in enumerate(rows):
            mask[row, columns] = True
        yield mask, np.where(mask, draws.integers(1, PRIME, mask.shape), 0)


def _jacobian(
    models: Residues, graph: CausalGraph, target: str, mask: np.ndarray, value: np.ndarray, coordinates: Sequence[Edge]
) -> np.ndarray:
    """(t, M, d): m_i l_j, or l_j, where j is free."""
    means = np.zeros((MODELS, *mask.shape), np.int64)
    loads = np.zeros_like(means)  # of free nodes; 0 where set
    for node in range(len(graph.nodes)):
        natural = times(means, models.weights[:, :, node, None])[..., 0] + models.intercepts[:, None, node]
        means[:, :, node] = np.where(mask[:, node], value[:, node], natural % PRIME)
    loads[:, :, graph.index(target)] = 1
    for node in range(graph.index(target) - 1, -1, -1):
        onward = times(loads, models.weights[:, node, :, None])[..., 0]
        loads[:, :, node] = np.where(mask[:, node], 0, onward)
    causes = [means[:, :, graph.index(cause)] if cause else np.ones_like(means[:, :, 0]) for cause, _ in coordinates]
    effects = [loads[:, :, graph.index(effect)] for _, effect in coordinates]
    return np.asarray(np.stack(causes, axis=-1) * np.stack(effects, axis=-1) % PRIME)
