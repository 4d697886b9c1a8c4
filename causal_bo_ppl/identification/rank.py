"""How many directions of theta_Y can any response see? The rank of the stacked Jacobians, at random points.

f(z) has df/dW_ij = m_i l_j and df/da_j = l_j for j not set: m the means under do(z), l the sensitivities of Y. A
response is affine in its values, so d + 1 random points of a set of d variables span all of its Jacobians.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from causal_bo_ppl.graph import CausalGraph
from causal_bo_ppl.identification.reduction import Names
from causal_bo_ppl.identification.trials import SEED, Trials, adjoints, draw_trials

POINTS = 2  # at a random point the rank is generic with probability 1; a second guards against bad luck
ROWS = 20_000  # of a Jacobian held at once
NEGLIGIBLE = 1e-10  # of the largest singular value, rows and columns of the Jacobian scaled to length 1
TINY = 1e-300

Edge = tuple[str, str]


def generic_rank(
    graph: CausalGraph,
    target: str,
    sets: Sequence[Names],
    known: Mapping[Edge, float],
    coordinates: Sequence[Edge],
    centred: bool,
) -> int:
    """The rank over all sets of the Jacobian in `coordinates`: (cause, effect) pairs, the cause "" for an intercept."""
    if not coordinates:
        return 0
    trials = _with_known(draw_trials(graph, POINTS), graph, known)
    if centred:
        trials = trials._replace(intercepts=np.zeros_like(trials.intercepts))
    squares = [np.zeros((0, len(coordinates)))] * POINTS
    for rows in _chunks(graph, sets):
        jacobian = _jacobian(trials, graph, target, *rows, coordinates)
        jacobian /= np.maximum(np.linalg.norm(jacobian, axis=-1, keepdims=True), TINY)
        squares = [np.asarray(np.linalg.qr(np.vstack(pair), mode="r")) for pair in zip(squares, jacobian, strict=True)]
    return max(_rank(square) for square in squares)


def _rank(square: np.ndarray) -> int:
    sizes = np.linalg.svd(square / np.maximum(np.linalg.norm(square, axis=0), TINY), compute_uv=False)
    return int(np.sum(sizes > NEGLIGIBLE * sizes.max())) if sizes.size and sizes.max() > 0 else 0


def _with_known(trials: Trials, graph: CausalGraph, known: Mapping[Edge, float]) -> Trials:
    weights = trials.weights.copy()
    for (cause, effect), value in known.items():
        weights[:, graph.index(cause), graph.index(effect)] = value
    return trials._replace(weights=weights)


def _chunks(graph: CausalGraph, sets: Sequence[Names]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Queries as (mask, value): d + 1 random points of every set of d variables."""
    draws = np.random.default_rng(SEED)
    distinct = list(dict.fromkeys(sets))
    places = [[graph.index(name) for name in members] for members in distinct for _ in range(len(members) + 1)]
    for start in range(0, len(places), ROWS):
        rows = places[start : start + ROWS]
        mask = np.zeros((len(rows), len(graph.nodes)), bool)
        for row, columns in enumerate(rows):
            mask[row, columns] = True
        yield mask, np.where(mask, draws.normal(size=mask.shape), 0.0)


def _jacobian(
    trials: Trials, graph: CausalGraph, target: str, mask: np.ndarray, value: np.ndarray, coordinates: Sequence[Edge]
) -> np.ndarray:
    """(t, M, d): m_i l_j, or l_j, where j is free."""
    free = np.where(mask, 0.0, adjoints(trials, graph.index(target), mask))
    means = np.zeros_like(free)
    for node in range(len(graph.nodes)):
        natural = np.einsum("tmi,ti->tm", means, trials.weights[:, :, node]) + trials.intercepts[:, None, node]
        means[:, :, node] = np.where(mask[:, node], value[:, node], natural)
    loads = [free[:, :, graph.index(effect)] for _, effect in coordinates]
    moved = [means[:, :, graph.index(cause)] if cause else 1.0 for cause, _ in coordinates]
    return np.stack([load * mean for load, mean in zip(loads, moved, strict=True)], axis=-1)
