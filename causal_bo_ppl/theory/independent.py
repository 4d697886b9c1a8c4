"""How much could outcomes tell if no intervention set taught about another?

Independent surrogates have a block-diagonal kernel:
gamma_T = max over sum_s T_s = T of sum_s gamma_{T_s}^{(s)}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.inputs import read_count, read_size
from causal_bo_ppl.numerics import first_largest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import distinct_rows, set_label
from causal_bo_ppl.theory.gains import greedy, read_candidates, require_queries

ROUNDING = 1e-12  # share of a set's variance that the features of an RBF kernel may leave out


class IndependentGain(NamedTuple):
    """The information after each query, and how the queries were spread.

    gains: the information after each of T queries, an array of shape (T,). allocation: {block: how
    many of the T queries it got}.
    """

    gains: np.ndarray
    allocation: dict[Any, int]


class BlockFeatures(NamedTuple):
    """Features of kernels that are independent between blocks.

    features: an array of shape (M, r) whose products count within a block only, so that blocks
    share columns. blocks: the label of every row, an array of shape (M,).
    """

    features: np.ndarray
    blocks: np.ndarray


def independent_gain(features: Any, blocks: Any, noise: Any, rounds: int) -> IndependentGain:
    """Spread T queries over independent blocks so that greedy choices within each tell most.

    What greedy choices within a block add never grows, so the best allocation takes the T largest
    additions of all blocks. With the causal kernel's features this is the same kernel without
    coupling.

    features: an array of shape (M, r) for the M candidates. blocks: labels, an array of shape (M,).
    noise: a variance, or an array of shape (M,).
    """
    features, variances = read_candidates(features, noise)
    labels = np.asarray(blocks)
    if labels.shape != (len(features),):
        raise ModelError(
            f"blocks need one label for each of {len(features)} candidates; "
            f"got the shape {labels.shape}"
        )
    names, which = np.unique(labels, return_inverse=True)
    chosen, steps = greedy(features, variances, read_count("rounds", rounds, 1), which)
    counts = np.bincount(which[chosen], minlength=len(names))
    return IndependentGain(steps.cumsum(), dict(zip(names.tolist(), counts.tolist(), strict=True)))


def set_labels(problem: Problem, queries: Queries) -> np.ndarray:
    """Return the set of each query as a text such as "X, Z", an array of shape (M,)."""
    mask = np.asarray(require_queries(problem, queries).mask)
    first, which = distinct_rows(mask)
    names = np.array(problem.graph.nodes)
    return np.asarray(
        np.array([set_label(tuple(names[row].tolist())) for row in mask[first]])[which]
    )


def rbf_features(
    problem: Problem,
    queries: Queries,
    *,
    lengthscale: float,
    variances: float | Mapping[str, float],
) -> BlockFeatures:
    """Return features of an RBF kernel for every set on its own.

    Within a set k = v_s exp(-|u - u'|^2 / (2 l^2)), and 0 between sets. u holds the values of a
    set's members in units of their domains' widths, and so is the lengthscale l. variances: v_s,
    one for all or {set: variance}, the set written as by `set_labels`. Features come from a pivoted
    Cholesky factorization, so no M x M matrix is formed.
    """
    blocks, length = set_labels(problem, queries), read_size("lengthscale", lengthscale)
    points = _in_widths(problem, queries) / length
    roots = {name: _root(points[blocks == name]) for name in np.unique(blocks).tolist()}
    features = np.zeros((len(blocks), max(root.shape[1] for root in roots.values())))
    for name, root in roots.items():
        features[blocks == name, : root.shape[1]] = np.sqrt(_variance(variances, name)) * root
    return BlockFeatures(features, blocks)


def _variance(variances: float | Mapping[str, float], name: str) -> float:
    """Return the variance of the kernel of one set."""
    if isinstance(variances, Mapping) and name not in variances:
        raise ModelError(
            f"variances lack the set {name!r}; they hold {listed(variances)}: "
            "give one for every set"
        )
    own = variances[name] if isinstance(variances, Mapping) else variances
    return read_size(f"the variance of {name!r}", own, positive=False)


def _in_widths(problem: Problem, queries: Queries) -> np.ndarray:
    """Return values as distances from the lower ends of the domains, in widths of the domains.

    The array has the shape (M, p) and holds 0 where a variable is not set.
    """
    low, high = np.array([problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes]).T
    return np.where(queries.mask, (np.asarray(queries.value) - low) / (high - low), 0.0)


def _root(points: np.ndarray) -> np.ndarray:
    """Return an array of shape (m, r) whose products are exp(-|p - p'|^2 / 2), up to ROUNDING.

    Each column is for the point that the columns before it explain least.
    """
    left, columns = np.ones(len(points)), np.zeros((len(points), 0))
    while left.max(initial=0.0) > ROUNDING:
        pivot = first_largest(left)
        kernel = np.exp(-0.5 * ((points - points[pivot]) ** 2).sum(axis=1))
        column = (kernel - columns @ columns[pivot]) / np.sqrt(left[pivot])
        columns, left = np.column_stack([columns, column]), left - column**2
        left[pivot] = 0.0
    return columns
