"""How much information do outcomes carry about the effects, and how much at most?

T outcomes with noise of variance s2 carry the information I = 1/2 logdet(I + K/s2) about the
effects, where K is the gram of their queries. It is computed from the eigenvalues of K, or from
features whose products are K. Where no intervention set informs another, K is block-diagonal:
gamma_T = max over sum_s T_s = T of sum_s gamma_{T_s}^{(s)}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.errors import ArgumentError, NumericalError
from causal_bo_ppl.inputs import read_count, read_size
from causal_bo_ppl.linalg import first_largest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.interventions import split_sets

# Relative to the trace: sums of thousands of products, and their differences, are exact to this.
GRAM_TOLERANCE = 1e-10
MOST_VARIANCE_OMITTED = 1e-12  # share of a set's variance, by the features of an RBF kernel


def spectrum(gram: Any, noise: Any = 1.0) -> np.ndarray:
    """Return the eigenvalues of D^-1/2 K D^-1/2, largest first, an array of shape (T,).

    D holds the variances of the noise. An eigenvalue that is negative by rounding only is returned
    as 0. gram: an array of shape (T, T), or a KernelEstimate. noise: a variance, or an array of
    shape (T,).
    """
    matrix = _read_gram(gram)
    root = np.sqrt(read_noise(noise, len(matrix)))
    with np.errstate(over="ignore"):
        scaled = require_finite("the gram over the noise", matrix / root[:, None] / root[None, :])
    sizes = np.linalg.eigvalsh(scaled)[::-1]
    allowed = GRAM_TOLERANCE * float(np.abs(sizes).sum())
    if not (sizes >= -allowed).all():
        raise NumericalError(
            f"this gram is no covariance: it has the eigenvalue {sizes[-1]:.3g}, the largest is "
            f"{sizes[0]:.3g}; compute it from features, whose products cannot be negative"
        )
    return np.asarray(np.maximum(sizes, 0.0))


def _read_gram(gram: Any) -> np.ndarray:
    """Return a gram as a symmetric, finite array of shape (T, T); refuse anything else."""
    matrix = read_array("a gram", getattr(gram, "gram", gram))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ArgumentError(
            f"a gram needs the shape (T, T), the same queries on both sides; got {matrix.shape}"
        )
    require_finite("the gram", matrix)
    gap = np.abs(matrix - matrix.T)
    if not (gap <= GRAM_TOLERANCE * np.abs(matrix).max(initial=0.0)).all():
        row, column = np.unravel_index(gap.argmax(), gap.shape)
        raise ArgumentError(
            f"a gram is symmetric, this one holds {matrix[row, column]:g} at ({row}, {column}) and "
            f"{matrix[column, row]:g} at ({column}, {row}); take the same queries on both sides"
        )
    return np.asarray((matrix + matrix.T) / 2)


class GreedyGain(NamedTuple):
    """Queries that were chosen one after another, and the information that they carry.

    chosen: the indices of the candidates, an array of shape (T,). gains: the information after each
    choice, an array of shape (T,).
    """

    chosen: np.ndarray
    gains: np.ndarray


def information_gain(gram: Any, noise: Any) -> float:
    """Compute I = 1/2 logdet(I + K/s2), in nats.

    With a variance for every query it is 1/2 logdet(I + D^-1/2 K D^-1/2).

    Parameters
    ----------
    gram:
        An array of shape (T, T), or a KernelEstimate.
    noise:
        A variance, or an array of shape (T,).

    Returns
    -------
    float
        The information in nats.

    Raises
    ------
    ArgumentError
        If the gram is not symmetric, or the noise not positive.
    NumericalError
        If the gram is not finite, or has a negative eigenvalue.

    Examples
    --------
    >>> round(information_gain([[3.0, 0.0], [0.0, 8.0]], noise=1.0), 4)  # log 6
    1.7918
    """
    return float(0.5 * np.log1p(spectrum(gram, noise)).sum())


def greedy_gain(features: Any, noise: Any, rounds: int) -> GreedyGain:
    """Choose each query where the effect is most uncertain: z_t = argmax sigma_{t-1}^2(z) / s2(z).

    A query may be chosen again. Of candidates that are equally good up to rounding the first is
    taken.

    The information is monotone and submodular in the queries, so the greatest over the candidates,
    gamma_T = max 1/2 logdet(I + K_A/s2) over |A| = T, lies between the greedy one and the greedy
    one divided by 1 - 1/e (Nemhauser, Wolsey and Fisher 1978). For effects affine in the values
    sigma^2 is convex in them: with the vertices as candidates this is the greedy choice over the
    whole domain.

    Parameters
    ----------
    features:
        An array of shape (M, r) for the M candidates.
    noise:
        A variance, or an array of shape (M,).
    rounds:
        The number T of choices. The cost is O(T M r).

    Returns
    -------
    GreedyGain
        The chosen candidates, and the information after each choice.

    Raises
    ------
    ArgumentError
        If the features, the noise or the number of rounds cannot be used.

    Examples
    --------
    >>> greedy_gain([[1.0, 0.0], [0.0, 2.0]], 1.0, 3).chosen.tolist()
    [1, 0, 1]
    """
    features, variances = read_candidates(features, noise)
    chosen, steps = greedy(
        features, variances, read_count("rounds", rounds, 1), np.zeros(len(features), int)
    )
    return GreedyGain(chosen, steps.cumsum())


def read_candidates(features: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return features of shape (M, r) and variances of the noise of shape (M,), both checked."""
    features = read_array("features", features)
    if features.ndim != 2 or not len(features):
        raise ArgumentError(
            f"features need the shape (M, r), a row for every query; got {features.shape}"
        )
    require_finite("features", features)
    variances = read_noise(noise, len(features))
    with np.errstate(over="ignore"):
        require_finite("variance over noise", (features**2).sum(axis=1) / variances)
    return features, variances


def greedy(
    features: np.ndarray, noise: np.ndarray, rounds: int, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices chosen and the information that each adds, two arrays of shape (T,).

    which: the block of every candidate, an array of shape (M,). An outcome informs its block only.
    """
    seen, members = features.copy(), _members(which)
    ratios = (seen**2).sum(axis=1) / noise
    chosen, steps = np.zeros(rounds, int), np.zeros(rounds)
    for step in range(rounds):
        best = first_largest(ratios)
        chosen[step], steps[step] = best, 0.5 * np.log1p(ratios[best])
        rows = members[which[best]]
        seen[rows] = learn(seen[rows], seen[best], noise[best])
        ratios[rows] = (seen[rows] ** 2).sum(axis=1) / noise[rows]
    return chosen, steps


def learn(seen: np.ndarray, outcome: np.ndarray, noise: float) -> np.ndarray:
    """Return features of shape (n, r) after an outcome whose features are w, of shape (r,).

    Their products are the covariance given the outcome. By Potter's square root,
    I - w w' / (s2 + w'w) = (I - b w w')^2 with b = 1 / (s2 + w'w + sqrt(s2 (s2 + w'w))), a variance
    stays a sum of squares, however small it becomes.
    """
    total = noise + outcome @ outcome
    pull = (seen @ outcome) / (total + np.sqrt(noise * total))
    return np.asarray(seen - pull[:, None] * outcome)


def _members(which: np.ndarray) -> list[slice | np.ndarray]:
    """Return the indices of each block."""
    if not which.any():
        return [slice(None)]
    order = np.argsort(which, kind="stable")
    return list(np.split(order, np.cumsum(np.bincount(which))[:-1]))


def read_array(name: str, given: Any) -> np.ndarray:
    """Return an array of float64 numbers, of any shape.

    Whole numbers are converted exactly; 32-bit floats and text are refused.
    """
    try:
        array = np.asarray(given)
    except ValueError:
        raise ArgumentError(
            f"{name} must be an array of numbers; its rows differ in length"
        ) from None
    if array.dtype.kind not in "iu" and array.dtype != np.float64:
        raise ArgumentError(
            f"{name} must hold float64 numbers, got {array.dtype}; "
            "compute it in float64 from the start"
        )
    return np.asarray(array, float)


def require_finite(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array if it holds neither NaN nor infinity; raise NumericalError otherwise."""
    if not np.isfinite(array).all():
        position = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise NumericalError(
            f"{name} holds {array[position]} at {position}; find its origin, or change units"
        )
    return array


def read_noise(noise: Any, count: int) -> np.ndarray:
    """Return a variance of the noise for every query, an array of shape (count,).

    noise: one positive variance for all queries, or one for each.
    """
    variances = read_array("noise", noise)
    if variances.shape not in ((), (count,)):
        raise ArgumentError(
            f"noise is one variance, or one for each of the {count} queries; "
            f"got the shape {variances.shape}"
        )
    wrong = ~((variances > 0) & np.isfinite(variances))
    if wrong.any():
        raise ArgumentError(
            f"noise must be a positive, finite variance, got {variances[wrong].flat[0]:g}; "
            "exact outcomes have no finite gain"
        )
    return np.broadcast_to(variances, (count,))


def require_queries(problem: Problem, queries: Queries) -> Queries:
    """Return the queries, checked, if there are any; raise ArgumentError otherwise."""
    queries = problem.require(queries)
    if not len(queries):
        raise ArgumentError("there are no queries; take some, such as problem.vertices()")
    return queries


class IndependentGain(NamedTuple):
    """The information after each query, and how the queries were distributed.

    gains: the information after each of T queries, an array of shape (T,). allocation: {block: how
    many of the T queries it got}.
    """

    gains: np.ndarray
    allocation: dict[Any, int]


# Features (M, r), whose products count within a block only, and the block (M,) of each row.
BlockFeatures = tuple[np.ndarray, np.ndarray]


def independent_gain(features: Any, blocks: Any, noise: Any, rounds: int) -> IndependentGain:
    """Distribute T queries over independent blocks so that greedy choices carry most information.

    What greedy choices within a block add never grows, so the best allocation takes the T largest
    additions of all blocks. With the causal kernel's features this is the same kernel without
    coupling.

    Parameters
    ----------
    features:
        An array of shape (M, r) for the M candidates.
    blocks:
        Their labels, an array of shape (M,).
    noise:
        A variance, or an array of shape (M,).
    rounds:
        The number T of queries.

    Returns
    -------
    IndependentGain
        The information after each query, and the number of queries of each block.

    Raises
    ------
    ArgumentError
        If an argument has a wrong shape or value.

    Examples
    --------
    >>> independent_gain([[1.0], [2.0]], ["a", "b"], 1.0, 3).allocation
    {'a': 1, 'b': 2}
    """
    features, variances = read_candidates(features, noise)
    labels = np.asarray(blocks)
    if labels.shape != (len(features),):
        raise ArgumentError(
            f"blocks need one label for each of {len(features)} candidates; "
            f"got the shape {labels.shape}"
        )
    names, which = np.unique(labels, return_inverse=True)
    chosen, steps = greedy(features, variances, read_count("rounds", rounds, 1), which)
    counts = np.bincount(which[chosen], minlength=len(names))
    return IndependentGain(steps.cumsum(), dict(zip(names.tolist(), counts.tolist(), strict=True)))


def set_labels(problem: Problem, queries: Queries) -> np.ndarray:
    """Return the set of each query as a text such as "X, Z", an array of shape (M,)."""
    sets = split_sets(problem, require_queries(problem, queries))
    counts = [len(rows) for rows in sets.indices]
    return np.repeat(np.array(sets.labels), counts)[np.argsort(sets.order)]


def rbf_features(
    problem: Problem, queries: Queries, *, lengthscale: float, variances: Mapping[str, float]
) -> BlockFeatures:
    """Return features of an independent RBF kernel for every set.

    Within a set k = v_s exp(-|u - u'|^2 / (2 l^2)), and 0 between sets. u holds the values of a
    set's members in units of their domains' widths, and so is the lengthscale l. Features come from
    a pivoted Cholesky factorization, so no M x M matrix is formed.

    Parameters
    ----------
    problem, queries:
        The problem and M interventions.
    lengthscale:
        l, in widths of the domains.
    variances:
        {set: v_s}, the set written as by `set_labels`.

    Returns
    -------
    BlockFeatures
        The features, and the set of each query.

    Raises
    ------
    ArgumentError
        If there is no query, or the lengthscale is not positive.
    """
    blocks, length = set_labels(problem, queries), read_size("lengthscale", lengthscale)
    points = _in_widths(problem, queries) / length
    roots = {name: _root(points[blocks == name]) for name in np.unique(blocks).tolist()}
    features = np.zeros((len(blocks), max(root.shape[1] for root in roots.values())))
    for name, root in roots.items():
        features[blocks == name, : root.shape[1]] = np.sqrt(variances[name]) * root
    return features, blocks


def _in_widths(problem: Problem, queries: Queries) -> np.ndarray:
    """Return values as distances from the lower ends of the domains, in widths of the domains.

    The array has the shape (M, p) and holds 0 where a variable is not set.
    """
    low, high = np.array([problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes]).T
    return np.where(queries.mask, (np.asarray(queries.value) - low) / (high - low), 0.0)


def _root(points: np.ndarray) -> np.ndarray:
    """Return an array of shape (m, r) whose products are exp(-|p - p'|^2 / 2).

    Up to `MOST_VARIANCE_OMITTED` of each variance may be missing. Each column is for the point that
    the columns before it explain least.
    """
    left, columns = np.ones(len(points)), np.zeros((len(points), 0))
    while left.max(initial=0.0) > MOST_VARIANCE_OMITTED:
        pivot = first_largest(left)
        kernel = np.exp(-0.5 * ((points - points[pivot]) ** 2).sum(axis=1))
        column = (kernel - columns @ columns[pivot]) / np.sqrt(left[pivot])
        columns, left = np.column_stack([columns, column]), left - column**2
        left[pivot] = 0.0
    return columns
