"""How much information do outcomes carry about the effects, and how much at most?

T outcomes with noise of variance s2 carry the information I = 1/2 logdet(I + K/s2) about the
effects, where K is the gram of their queries. It is computed from the eigenvalues of K, or from
features whose products are K. Where no intervention set informs another, K is block-diagonal:
gamma_T = max over sum_s T_s = T of sum_s gamma_{T_s}^{(s)}. A kernel of rank r allows
gamma_T <= r/2 log(1 + T kappa^2 / (s2 r)).

`gain_curves` has the information after 1 to T outcomes, with and without coupling, and its bounds;
`theory_table` has it with the constants of the theory in one table.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from causal_bo_ppl.errors import ArgumentError, NumericalError, unknown
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.inputs import read_count, read_share, read_size
from causal_bo_ppl.kernels import jacobian_features
from causal_bo_ppl.linalg import first_largest, largest_gap
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.designs import fill_points
from causal_bo_ppl.problem.interventions import split_sets
from causal_bo_ppl.responses import response
from causal_bo_ppl.theory.constants import design, kappa2, lipschitz

# Relative to the trace: sums of thousands of products, and their differences, are exact to this.
GRAM_TOLERANCE = 1e-10
RANK_TOLERANCE = 1e-9  # of the largest singular value; rounding leaves about 1e-15 of a zero
NARROW_STEP = 1e-5  # of a coordinate's size
STEP_TOLERANCE = 1e-6  # of a derivative: the difference of two steps that agree
POINTS_PER_SET = 64  # Sobol points, for kernels that are not affine in the values
COUPLED_GAIN, BY_RANK, BY_DIMENSION = "coupled", "bound by rank", "bound by dimension"
CONTROL, RBF = "independent, causal", "independent, RBF"
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


def causal_rank(
    post: Posterior, queries: Queries | None = None, *, known: str | Iterable[str] = ()
) -> int:
    """Compute r_causal, the rank of the Jacobian kernel over these queries.

    It is the number of directions of theta on which the effects of the queries depend, at most dim
    theta_Y, and is found by the singular values of the features J F, F F' = Sigma, so units of
    theta do not matter.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        By default all vertices, or points that fill the domains where effects are not affine in the
        values: the rank over all interventions may then be larger.
    known:
        Names of coordinates that are taken as known exactly, at their posterior means. The rank is
        then that of J_o F_o N, where o are the other coordinates and N the directions in which the
        known ones do not move: F_o N is a root of the others' covariance given the known ones,
        found without an inverse.

    Returns
    -------
    int
        The rank.

    Raises
    ------
    ArgumentError
        If theta has no coordinate of a known name.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> cb.theory.causal_rank(post, system.problem.vertices())
    2
    >>> cb.theory.causal_rank(post, system.problem.vertices(), known="b[Z->Y]")
    1
    """
    post = require_trusted(post)
    fixed = _positions(post.names, known)
    queries = design(post).queries if queries is None else post.problem.require(queries)
    jacobian = response(post).jacobian(post.mean, queries)
    features = np.delete(jacobian, fixed, axis=1) @ _conditional_root(post.factor, fixed)
    # Rows of unit length, so that the size of a query's values does not matter.
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return _count(np.linalg.svd(features / np.where(lengths > 0, lengths, 1.0), compute_uv=False))


def effective_rank(gram: Any, *, share: float = 0.99) -> int:
    """Compute r_eff, how few eigenvalues of K hold this share of its trace.

    r_eff = min r with sum_{i<=r} l_i >= share sum_i l_i. It is taken of K, not of Sigma: a count of
    Sigma's eigenvalues above a threshold depends on the units of theta, one of K's does not.

    Parameters
    ----------
    gram:
        An array of shape (T, T), or a KernelEstimate.
    share:
        The share of the trace, between 0 and 1.

    Returns
    -------
    int
        The effective rank; 0 for a gram of zeros.

    Raises
    ------
    ArgumentError
        If the gram is not symmetric, or the share does not lie between 0 and 1.
    NumericalError
        If the gram is not finite, or has a negative eigenvalue.

    Examples
    --------
    >>> effective_rank([[9.0, 0.0, 0.0], [0.0, 0.95, 0.0], [0.0, 0.0, 0.05]], share=0.99)
    2
    """
    return leading(spectrum(gram), read_share("share", share))


def leading(sizes: np.ndarray, share: float) -> int:
    """Count how many eigenvalues, largest first, hold the share of their sum, up to rounding."""
    held = np.cumsum(sizes)
    if not held.size or held[-1] <= 0:
        return 0
    return int(np.searchsorted(held, share * (1 - RANK_TOLERANCE) * held[-1])) + 1


def _positions(names: tuple[str, ...], known: str | Iterable[str]) -> list[int]:
    """Return the positions of the known coordinates; refuse a name that theta does not have."""
    wanted = (known,) if isinstance(known, str) else tuple(known)
    for name in wanted:
        if name not in names:
            raise ArgumentError(
                f"{unknown('coordinate of theta', name, names)}; name only what post.names holds"
            )
    return [position for position, name in enumerate(names) if name in wanted]


def _conditional_root(factor: np.ndarray, fixed: list[int]) -> np.ndarray:
    """Return a root of the other coordinates' covariance where those of `fixed` are known.

    It has the shape (d - k, r'), where k coordinates are fixed.
    """
    lengths = np.linalg.norm(factor[fixed], axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(factor[fixed] / np.where(lengths > 0, lengths, 1.0))
    return np.asarray(np.delete(factor, fixed, axis=0) @ directions[_count(sizes) :].T)


def _count(sizes: np.ndarray) -> int:
    """Count the singular values that are not zero up to rounding."""
    return int((sizes > RANK_TOLERANCE * sizes.max(initial=0.0)).sum())


def information_gain_bound(rank: int, T: int, kappa2: float, noise: float) -> float:
    """Bound gamma_T by r/2 log(1 + T kappa^2 / (s2 r)), which is 0 for rank 0.

    The bound grows with the rank, so r_causal in place of dim theta_Y is never worse.

    Parameters
    ----------
    rank:
        The rank r of the kernel.
    T:
        The number of outcomes.
    kappa2:
        The largest k(z, z).
    noise:
        The variance s2 of the outcomes' noise.

    Returns
    -------
    float
        The bound, in nats.

    Raises
    ------
    ArgumentError
        If an argument is negative, or the noise is 0.

    Examples
    --------
    >>> round(information_gain_bound(2, 320, 7.33, 1.0), 2)
    7.07
    """
    rank, rounds = read_count("rank", rank, 0), read_count("T", T, 0)
    largest, noise = read_size("kappa2", kappa2, positive=False), read_size("noise", noise)
    return float(rank / 2 * np.log1p(rounds * largest / (noise * rank))) if rank else 0.0


def gain_curves(
    post: Posterior,
    queries: Queries | None = None,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
) -> pd.DataFrame:
    """Tabulate the information after 1 to `rounds` outcomes, and its bounds.

    Each query is chosen greedily.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        The candidates; by default all vertices, or points that fill the domains where effects are
        not affine in the values.
    noise:
        The variance of one outcome.
    rounds:
        The number of outcomes.
    lengthscale:
        Of the RBF kernels, in widths of the domains.

    Returns
    -------
    pd.DataFrame
        A row for each number of outcomes. coupled: with the causal kernel. independent, causal: the
        control, the same kernel without covariances between sets. independent, RBF: an RBF kernel
        for every set, with that set's largest causal variance; greedy among Sobol points that fill
        the domains. `attrs` holds rank, dimension and kappa^2 among others.

    Raises
    ------
    ArgumentError
        If there is no query, or a number cannot be used.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(100, 0))
    >>> curves = cb.theory.gain_curves(post, noise=0.5, rounds=10)
    >>> bool((curves["coupled"] <= curves["bound by rank"]).all())
    True
    """
    rounds, variance = read_count("rounds", rounds, 1), read_size("noise", noise)
    queries = design(post).queries if queries is None else require_queries(post.problem, queries)
    features = jacobian_features(post, queries)
    rank, dimension = causal_rank(post, queries), len(post.names)
    largest, blocks = kappa2(post).value, set_labels(post.problem, queries)
    rbf = _rbf(post, lengthscale)
    counts = np.arange(1, rounds + 1)
    bounds = {
        name: [information_gain_bound(size, int(count), largest, variance) for count in counts]
        for name, size in ((BY_RANK, rank), (BY_DIMENSION, dimension))
    }
    curves = {
        COUPLED_GAIN: greedy_gain(features, variance, rounds).gains,
        **bounds,
        CONTROL: independent_gain(features, blocks, variance, rounds).gains,
        RBF: independent_gain(*rbf, variance, rounds).gains,
    }
    table = pd.DataFrame(curves, index=pd.Index(counts, name="outcomes"))
    table.attrs = {
        "noise": variance,
        "lengthscale": lengthscale,
        "queries": len(queries),
        "sets": len(np.unique(blocks)),
        "rank": rank,
        "dimension": dimension,
        "kappa2": largest,
        "observations": post.n_observations,
    }
    return table


def _rbf(post: Posterior, lengthscale: float) -> BlockFeatures:
    """Return the features of an RBF kernel for every set that was learned.

    They are those of points that fill the set's box. The variance of a set's kernel is its largest
    causal variance.
    """
    queries, sets = design(post).queries, post.sets
    variances = (jacobian_features(post, queries) ** 2).sum(axis=1)
    labels = set_labels(post.problem, queries)
    own = {name: float(variances[labels == name].max()) for name in np.unique(labels).tolist()}
    points = fill_points(post.problem, sets, POINTS_PER_SET)
    return rbf_features(post.problem, points, lengthscale=lengthscale, variances=own)


Quantity = tuple[str, float, str]  # its name, its value, and how it was computed


def theory_table(
    post: Posterior,
    queries: Queries | None = None,
    *,
    noise: float,
    rounds: int = 320,
    lengthscale: float = 0.2,
) -> pd.DataFrame:
    """Return a table of the theory's quantities over these queries, by default all vertices.

    Parameters
    ----------
    post, queries, noise, rounds, lengthscale:
        As in `gain_curves`.

    Returns
    -------
    pd.DataFrame
        Columns quantity, value and how. The table holds rank(K) and dim theta_Y; the largest error
        of a covariance; the greedy information gain of `rounds` outcomes, and its bounds; the same
        for independent sets, with RBF kernels and, as control, with the causal kernel itself, which
        separates coupling from the choice of a kernel; kappa^2, L and tr Sigma.

    Raises
    ------
    ArgumentError
        If there is no query, or a number cannot be used.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(100, 0), intercepts=False)
    >>> cb.theory.theory_table(post, noise=0.5, rounds=10)["value"][:2].tolist()
    [2.0, 2.0]
    """
    queries = design(post).queries if queries is None else queries
    curves = gain_curves(post, queries, noise=noise, rounds=rounds, lengthscale=lengthscale)
    lines = [*_rank_rows(post, queries, curves), *_gain_rows(curves), *_constant_rows(post)]
    table = pd.DataFrame(lines, columns=["quantity", "value", "how"])
    table.attrs = curves.attrs | {"rounds": len(curves)}
    return table


def _rank_rows(post: Posterior, queries: Queries, curves: pd.DataFrame) -> list[Quantity]:
    """Return the rows for the rank, the dimension and the error of the covariances."""
    features = jacobian_features(post, queries)
    numerical = central_differences(post, queries)
    error = largest_gap((features, features), (numerical @ post.covariance, numerical))
    how = (
        "largest |k - J Sigma J'| of two queries, J by differences of effects at theta; "
        f"the largest k is {(features**2).sum(axis=1).max():.4g}"
    )
    return [
        ("rank", curves.attrs["rank"], f"of K over {len(queries)} queries"),
        ("dimension", len(post.names), f"of theta_Y, {post.kind}"),
        ("covariance error", error, how),
    ]


def central_differences(post: Posterior, queries: Queries) -> np.ndarray:
    """Return the derivatives of the effects by central differences, an array of shape (M, d).

    Wide steps are exact up to rounding where effects are affine in every single coordinate, as for
    linear mechanisms; where narrow ones disagree with them, the narrow ones are taken.
    """
    steps = np.maximum(np.abs(post.mean), post.sd)
    steps = np.where(steps > 0, steps, 1.0)
    wide, narrow = (_central(post, queries, size * steps) for size in (1.0, NARROW_STEP))
    same = np.abs(wide - narrow) <= STEP_TOLERANCE * np.abs(wide).max(axis=0, initial=0.0)
    return np.where(same.all(axis=0), wide, narrow)


def _central(post: Posterior, queries: Queries, steps: np.ndarray) -> np.ndarray:
    """Return central differences of the effects (M, d) with a step for every coordinate."""
    effect, columns = response(post), [np.zeros((len(queries), 0))]
    for position, step in enumerate(steps.tolist()):
        move = step * (np.arange(len(post.mean)) == position)
        ends = [effect(post.mean + sign * move, queries) for sign in (1.0, -1.0)]
        columns.append((ends[0] - ends[1])[:, None] / (2 * step))
    return np.concatenate(columns, axis=1)


def _gain_rows(curves: pd.DataFrame) -> list[Quantity]:
    """Return the rows for the information gains and their bounds."""
    last, rounds, attrs = curves.iloc[-1], len(curves), curves.attrs
    bound = f"r/2 log(1 + {rounds} kappa^2 / (s2 r)), kappa^2 = {attrs['kappa2']:.4g}, r = "
    greedy = f"greedy over the queries, {rounds} outcomes, noise variance {attrs['noise']:g}"
    rbf = (
        f"RBF kernel, lengthscale {attrs['lengthscale']:g} domain widths, variance the set's "
        f"largest causal one; greedy over {POINTS_PER_SET} Sobol points of every set"
    )
    control = "the causal kernel within each set, 0 between sets"
    return [
        ("information gain", last[COUPLED_GAIN], greedy),
        (BY_RANK, last[BY_RANK], f"{bound}rank"),
        (BY_DIMENSION, last[BY_DIMENSION], f"{bound}dimension"),
        ("independent gain, RBF", last[RBF], rbf),
        ("independent gain, causal", last[CONTROL], control),
    ]


def _constant_rows(post: Posterior) -> list[Quantity]:
    """Return the rows for kappa^2, L and the trace of Sigma."""
    largest, slope = kappa2(post), lipschitz(post)
    trace = f"of Sigma from {post.n_observations} observations, by {post.moments_by}"
    return [
        ("kappa^2", largest.value, f"largest k(z, z) {largest.how}, at {largest.intervention}"),
        ("L", slope.value, f"largest |J(z)| {slope.how}, at {slope.intervention}"),
        ("trace", float(np.trace(post.covariance)), trace),
    ]
