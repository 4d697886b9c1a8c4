"""Is this matrix a covariance, and what are its eigenvalues?

How much do outcomes tell about the effects, and how much could they at most?

T outcomes with noise of variance s2 carry I = 1/2 logdet(I + K/s2) about the effects, K the gram of their queries.
"""

from typing import Any, NamedTuple

import numpy as np

from causal_bo_ppl.errors import ModelError, NumericalError
from causal_bo_ppl.inputs import read_count
from causal_bo_ppl.kernels import KernelEstimate
from causal_bo_ppl.numerics import first_largest
from causal_bo_ppl.problem import Queries

ROUNDING = 1e-10  # of the trace: sums of thousands of products, and differences of such, keep this many digits


def spectrum(gram: Any, noise: Any = 1.0) -> np.ndarray:
    """(T,) eigenvalues of D^-1/2 K D^-1/2, D the variances of the noise, largest first; a rounded zero is 0.

    gram: (T, T), or the record of a kernel.
    """
    matrix = _read_gram(gram)
    root = np.sqrt(read_noise(noise, len(matrix)))
    with np.errstate(over="ignore"):
        scaled = require_finite("the gram over the noise", matrix / root[:, None] / root[None, :])
    sizes = np.linalg.eigvalsh(scaled)[::-1]
    allowed = ROUNDING * float(np.abs(sizes).sum())
    if not (sizes >= -allowed).all():
        raise NumericalError(
            f"this gram is no covariance: it has the eigenvalue {sizes[-1]:.3g}, the largest is {sizes[0]:.3g}; "
            "compute it from features, whose products cannot be negative"
        )
    return np.asarray(np.maximum(sizes, 0.0))


def _read_gram(gram: Any) -> np.ndarray:
    found = read_array("a gram", gram.gram if isinstance(gram, KernelEstimate) else gram)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise ModelError(
            f"a gram needs the shape (T, T), the same queries on both sides; got {found.shape}"
        )
    require_finite("the gram", found)
    gap = np.abs(found - found.T)
    if not (gap <= ROUNDING * np.abs(found).max(initial=0.0)).all():
        row, column = np.unravel_index(gap.argmax(), gap.shape)
        raise ModelError(
            f"a gram is symmetric, this one holds {found[row, column]:g} at ({row}, {column}) and "
            f"{found[column, row]:g} at ({column}, {row}); take the same queries on both sides"
        )
    return np.asarray((found + found.T) / 2)


class Gain(NamedTuple):
    """Queries chosen one after another. chosen: (T,) rows of the candidates. gains: (T,) information after each."""

    chosen: np.ndarray
    gains: np.ndarray


def information_gain(gram: Any, noise: Any) -> float:
    """I = 1/2 logdet(I + K/s2), in nats; with a variance for every query 1/2 logdet(I + D^-1/2 K D^-1/2).

    gram: (T, T), or the record of a kernel. noise: a variance, or (T,) variances.

    Examples
    --------
    >>> round(information_gain([[3.0, 0.0], [0.0, 8.0]], noise=1.0), 4)  # log 6
    1.7918
    """
    return float(0.5 * np.log1p(spectrum(gram, noise)).sum())


def gain_path(features: Any, noise: Any) -> np.ndarray:
    """(T,) information after each of T queries: sum_t 1/2 log(1 + sigma_{t-1}^2(z_t) / s2).

    features: (T, r) in the order of the queries; noise: a variance, or (T,) variances. O(T r^2), never T x T.
    """
    features, variances = read_candidates(features, noise)
    root, gains = np.eye(features.shape[1]), np.zeros(len(features))
    for step, (feature, variance) in enumerate(zip(features, variances, strict=True)):
        seen = feature @ root
        gains[step] = 0.5 * np.log1p(seen @ seen / variance)
        root = learn(root, seen, variance)
    return gains.cumsum()


def greedy_gain(features: Any, noise: Any, rounds: int) -> Gain:
    """Choose each query where the effect is most in doubt: z_t = argmax sigma_{t-1}^2(z) / s2(z), with repetition.

    Of candidates that are equally good up to rounding the first is taken.

    The information is monotone and submodular in the queries, so the greatest over the candidates,
    gamma_T = max 1/2 logdet(I + K_A/s2) over |A| = T, lies between the greedy one and that over 1 - 1/e (Nemhauser,
    Wolsey and Fisher 1978). For effects affine in the values sigma^2 is convex in them: with the vertices as
    candidates this is the greedy choice over the whole domain.

    features: (M, r) of the candidates; noise: a variance, or (M,) variances. O(T M r).
    """
    features, variances = read_candidates(features, noise)
    chosen, steps = greedy(
        features, variances, read_count("rounds", rounds, 1), np.zeros(len(features), int)
    )
    return Gain(chosen, steps.cumsum())


def read_candidates(features: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features (M, r) and variances (M,) of the noise."""
    features = read_features(features)
    variances = read_noise(noise, len(features))
    with np.errstate(over="ignore"):
        require_finite("variance over noise", (features**2).sum(axis=1) / variances)
    return features, variances


def greedy(
    features: np.ndarray, noise: np.ndarray, rounds: int, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (T,) chosen and what each adds (T,); which: (M,) blocks, an outcome teaches about its own only."""
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
    """Features (n, r) after an outcome with features w (r,): their products are the covariance given it.

    I - w w' / (s2 + w'w) = (I - b w w')^2 with b = 1 / (s2 + w'w + sqrt(s2 (s2 + w'w))) (Potter's square root): a
    variance stays a sum of squares, however small it becomes.
    """
    total = noise + outcome @ outcome
    pull = (seen @ outcome) / (total + np.sqrt(noise * total))
    return np.asarray(seen - pull[:, None] * outcome)


def _members(which: np.ndarray) -> list[slice | np.ndarray]:
    """The rows of each block."""
    if not which.any():
        return [slice(None)]
    order = np.argsort(which, kind="stable")
    return list(np.split(order, np.cumsum(np.bincount(which))[:-1]))


def read_array(name: str, given: Any) -> np.ndarray:
    """Return float64 numbers, of any shape; whole numbers are exact in them, 32-bit floats and text are refused."""
    try:
        found = np.asarray(given)
    except ValueError:
        raise ModelError(f"{name} must be an array of numbers; its rows differ in length") from None
    if found.dtype.kind not in "iu" and found.dtype != np.float64:
        raise ModelError(
            f"{name} must hold float64 numbers, got {found.dtype}; compute it in float64 from the start"
        )
    return np.asarray(found, float)


def require_finite(name: str, array: np.ndarray) -> np.ndarray:
    """Return the array if it holds neither NaN nor infinity."""
    if not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise NumericalError(
            f"{name} holds {array[place]} at {place}; find out where it comes from, or change units"
        )
    return array


def read_features(features: Any) -> np.ndarray:
    """(M, r) features of at least one query."""
    found = read_array("features", features)
    if found.ndim != 2 or not len(found):
        raise ModelError(
            f"features need the shape (M, r), a row for every query; got {found.shape}"
        )
    return require_finite("features", found)


def read_noise(noise: Any, count: int) -> np.ndarray:
    """(count,) variances of one outcome each, from one for all or one for each."""
    found = read_array("noise", noise)
    if found.shape not in ((), (count,)):
        raise ModelError(
            f"noise is one variance, or one for each of the {count} queries; got the shape {found.shape}"
        )
    if not ((found > 0) & np.isfinite(found)).all():
        bad = found[~((found > 0) & np.isfinite(found))].flat[0]
        raise ModelError(
            f"noise must be a positive, finite variance, got {bad:g}; exact outcomes have no finite gain"
        )
    return np.broadcast_to(found, (count,))


def require_queries(queries: Queries) -> Queries:
    """Return the batch if it holds any."""
    if not isinstance(queries, Queries):
        raise ModelError(
            f"queries must be Queries, got {type(queries).__name__}; build them with problem.queries"
        )
    if not len(queries):
        raise ModelError("there are no queries; take some, such as problem.vertices()")
    return queries
