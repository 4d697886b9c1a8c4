"""The kernel by draws: the covariance of effects over draws of theta, for every posterior.

No response is linearized. With C the centred effects of S draws, k = C'C / (S - 1). The error of an
entry needs the fourth moments mu = E[c_i^2 c_j^2] alone, a product of squares:

    Var k_ij = (mu - k_ij^2) / S + (k_ij^2 + k_ii k_jj) / (S (S - 1)).

Dependent draws are equivalent to fewer independent ones: n_i, by the squares of effect i. An entry
counts as sqrt(n_i n_j) draws, since sums of products of two autocovariances stay below the
geometric mean of the sums of their squares.

The errors of a whole block of entries depend on each other, so they are found by a multiplier
bootstrap. Covariances of batches of draws differ by Monte-Carlo error; their differences, mixed
with random normal weights, are errors as a new set of draws would have them. Batches of consecutive
draws keep the dependence between draws.
"""

import warnings
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.errors import CausalBOWarning
from causal_bo_ppl.inference import Posterior
from causal_bo_ppl.inference.draws import effective_sizes
from causal_bo_ppl.inference.posterior import require_trusted
from causal_bo_ppl.kernels.exact import KernelEstimate
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.responses import draw_theta, require_finite_effects, response_to_draws

DEFAULT_DRAWS = 4_000
COLUMNS_AT_ONCE = 256  # of a gram or of draws
GOOD_RELATIVE_ERROR = 0.1  # that the advice aims at
LEAST_TAIL_DEGREES = 5.0  # of freedom: with 4 or fewer there is no fourth moment
MONTE_CARLO_ASSUMPTIONS = "{draws:,} draws by {method}{size}; no linearization; verdict {verdict}"
BATCHES, BOOTSTRAP_REPLICATES = 48, 100  # an error is known to 1 / sqrt(2 * 48) = 10 %


class CentredEffects(NamedTuple):
    """Effects of S draws, less their means.

    values: the centred effects, (S, M). sizes: the effective sample size of the mean square of each
    effect, (M,).
    """

    values: np.ndarray
    sizes: np.ndarray


def monte_carlo_gram(
    post: Posterior,
    queries: Queries,
    others: Queries | None = None,
    *,
    draws: int = DEFAULT_DRAWS,
    key: jax.Array | int,
) -> KernelEstimate:
    """Return the covariances of all effects of a batch, or between two batches, by draws of theta.

    Parameters
    ----------
    post:
        A posterior by any method.
    queries, others:
        M and K interventions; without `others` the gram is of the first batch with itself.
    draws:
        How many draws of theta are used. A sampled posterior gives at most those it has, evenly
        spaced in each chain.
    key:
        A JAX key or an int seed.

    Returns
    -------
    KernelEstimate
        The gram is (M, M) or (M, K), with the Monte-Carlo standard error of every entry; errors are
        infinite where the tails of theta are too heavy for them to be estimated.

    Raises
    ------
    ArgumentError
        If `post` is no posterior, or fewer than two draws are asked for.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.
    NumericalError
        If an effect is not finite in some draw.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> q = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> found, exact = cb.monte_carlo_gram(post, q, key=0), cb.exact_gram(post, q)
    >>> bool((abs(found.gram - exact.gram) < 4 * found.standard_error).all())
    True
    """
    theta, chains = draw_theta(require_trusted(post), draws, key)
    require = post.problem.require
    left = centred_effects(post, theta, require(queries), chains)
    right = left if others is None else centred_effects(post, theta, require(others), chains)
    size = min(float(side.sizes.min(initial=len(theta))) for side in (left, right))
    known = f", equivalent to {size:,.0f} independent ones or more" if chains else ""
    assumed = MONTE_CARLO_ASSUMPTIONS.format(
        draws=len(theta), method=post.method, size=known, verdict=post.status
    )
    scales = tuple(
        np.sqrt((side.values**2).sum(axis=0) / (len(theta) - 1)) for side in (left, right)
    )
    gram = np.empty((left.values.shape[1], right.values.shape[1]))
    np.matmul(left.values.T, right.values, out=gram)
    gram /= len(theta) - 1
    error = standard_errors(left, right, gram, scales)
    if warn_of_tails(post):
        error[:] = np.inf
    else:
        _warn_of_noise(error, scales, len(theta))
    return KernelEstimate(gram, error, assumed)


def monte_carlo_features(
    post: Posterior, queries: Queries, *, draws: int = DEFAULT_DRAWS, key: jax.Array | int
) -> np.ndarray:
    """Return features whose products are the kernel: centred effects of draws / sqrt(S - 1).

    Parameters
    ----------
    post:
        A posterior by any method.
    queries:
        M interventions.
    draws:
        How many draws of theta are used; see `monte_carlo_gram`.
    key:
        A JAX key or an int seed.

    Returns
    -------
    np.ndarray
        Features of shape (M, S), for the S draws that were used.

    Raises
    ------
    ArgumentError
        If `post` is no posterior, or fewer than two draws are asked for.
    PosteriorError
        If the posterior's verdict is not trusted and was not accepted.
    DomainError
        If an intervention is not one of the problem's.
    NumericalError
        If an effect is not finite in some draw.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> system = cb.models.load("chain")
    >>> post = cb.fit(system.problem, system.observe(200, 0), intercepts=False)
    >>> queries = system.problem.queries([{"X": 1.0}, {"Z": 1.0}])
    >>> features = cb.kernels.monte_carlo_features(post, queries, draws=100, key=0)
    >>> features.shape
    (2, 100)
    >>> gram = cb.monte_carlo_gram(post, queries, draws=100, key=0).gram
    >>> bool(abs(features @ features.T - gram).max() < 1e-12)
    True
    """
    theta, _ = draw_theta(require_trusted(post), draws, key)
    centred = centred_effects(post, theta, post.problem.require(queries), 0).values
    return np.asarray(np.divide(centred.T, np.sqrt(len(theta) - 1)))


def centred_effects(
    post: Posterior, theta: np.ndarray, queries: Queries, chains: int
) -> CentredEffects:
    """Return the effects of draws (S, d) less their means, and their effective sample sizes.

    The queries were checked before.
    """
    values = np.array(response_to_draws(post).effects(theta, queries))
    require_finite_effects(post, queries, values, "narrow its domain, or add observations")
    values -= values[0].copy()  # a known effect becomes 0, not rounding
    values -= values.mean(axis=0)
    return CentredEffects(values, _effective_sizes(values, chains))


def warn_of_tails(post: Posterior) -> bool:
    """Warn where fourth moments hardly exist, and return whether that is so.

    Covariances of such draws have errors that the draws do not show.
    """
    if post.distribution.tail_degrees > LEAST_TAIL_DEGREES:
        return False
    warnings.warn(
        f"theta has the tails of Student's t with {post.distribution.tail_degrees:.3g} degrees of "
        "freedom, too heavy for errors of covariances to be seen in draws (more than "
        f"{LEAST_TAIL_DEGREES:g} are needed); use cb.exact_gram, or add observations",
        CausalBOWarning,
        stacklevel=3,
    )
    return True


def _effective_sizes(centred: np.ndarray, chains: int) -> np.ndarray:
    draws, count = centred.shape
    if not chains:
        return np.full(count, float(draws))
    sizes = np.zeros(count)
    for start in range(0, count, COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        squares = centred[:, part] ** 2
        sizes[part] = effective_sizes(squares.reshape(chains, -1, squares.shape[1]))
    return sizes


def standard_errors(
    left: CentredEffects, right: CentredEffects, gram: np.ndarray, scales: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Return the standard errors of a gram (M, K); the effects are overwritten by their squares.

    scales: the standard deviations of the M and of the K effects.
    """
    count = len(left.values)
    np.square(left.values, out=left.values)
    if right is not left:
        np.square(right.values, out=right.values)
    errors = np.empty(gram.shape)
    np.matmul(left.values.T, right.values, out=errors)
    spare = 1 - 1 / count + 1 / (count * (count - 1))  # the entry's square holds its own error
    loss = np.sqrt(count / left.sizes), np.sqrt(count / right.sizes)
    for start in range(0, len(gram), COLUMNS_AT_ONCE):
        rows = slice(start, start + COLUMNS_AT_ONCE)
        fourth, squares = errors[rows], gram[rows] ** 2
        # The centred draws' mean of products, made unbiased for Gaussians.
        fourth *= count / (count - 1) ** 2
        fourth -= squares
        fourth /= count
        fourth += (squares + np.outer(scales[0][rows] ** 2, scales[1] ** 2)) / (count * (count - 1))
        fourth *= np.outer(loss[0][rows], loss[1]) / spare
        np.sqrt(np.maximum(fourth, 0.0, out=fourth), out=fourth)
    return errors


def _warn_of_noise(error: np.ndarray, scales: tuple[np.ndarray, ...], draws: int) -> None:
    """Warn where errors reach the size of what they are errors of.

    A covariance may be 0, so an error is compared with the product of the two standard deviations.
    """
    worst = 0.0
    for start in range(0, len(error), COLUMNS_AT_ONCE):
        rows = slice(start, start + COLUMNS_AT_ONCE)
        scale = np.outer(scales[0][rows], scales[1])
        ratio = np.divide(error[rows], scale, out=np.zeros_like(scale), where=scale > 0)
        worst = max(worst, float(ratio.max(initial=0.0)))
    if worst > 1 - 1e-9:
        needed = int(np.ceil(draws * (worst / GOOD_RELATIVE_ERROR) ** 2))
        warnings.warn(
            f"with {draws} draws the Monte-Carlo error of a covariance is {worst:.1f} times its "
            f"scale; about {needed:,} such draws would reduce it to {GOOD_RELATIVE_ERROR:.0%}",
            CausalBOWarning,
            stacklevel=3,
        )


class EffectBatches(NamedTuple):
    """Centred draws in B batches, of shape (B, n, M) each.

    linear: of the linearized effects. remainders: of the linearization errors.
    """

    linear: np.ndarray
    remainders: np.ndarray

    def columns(self, chosen: np.ndarray) -> "EffectBatches":
        """Return the draws of some of the queries."""
        return EffectBatches(self.linear[:, :, chosen], self.remainders[:, :, chosen])


def cut_batches(draws: np.ndarray, chains: int) -> np.ndarray:
    """Return draws (S, M) in batches of consecutive ones, of shape (B, n, M).

    The draws are of `chains` chains one after the other, 0 if they are independent. The last few of
    each chain may be dropped.
    """
    chains = max(chains, 1)
    batches = max(1, min(BATCHES // chains, len(draws) // chains // 2))
    length = len(draws) // chains // batches
    used = draws.reshape(chains, -1, draws.shape[1])[:, : batches * length]
    return used.reshape(chains * batches, length, draws.shape[1])


def bootstrap_weights(batches: int, generator: np.random.Generator) -> np.ndarray:
    """Draw weights (R, B) that turn covariances of batches into errors of their mean."""
    weights = generator.standard_normal((BOOTSTRAP_REPLICATES, batches))
    weights -= weights.mean(axis=1, keepdims=True)
    return np.asarray(weights / np.sqrt(batches * (batches - 1)))


def batch_covariances(left: EffectBatches, right: EffectBatches) -> dict[str, np.ndarray]:
    """Return the covariances of I and J effects in every batch by name, of shape (B, I, J) each.

    The names are the terms "leading", "mixed" and "remainder", then "nonlinear", the sum of the
    last two, and "all".
    """
    turned = EffectBatches(*(np.swapaxes(part, 1, 2) / left.linear.shape[1] for part in left))
    leading = turned.linear @ right.linear
    mixed = turned.linear @ right.remainders + turned.remainders @ right.linear
    remainder = turned.remainders @ right.remainders
    nonlinear = mixed + remainder
    return {
        "leading": leading,
        "mixed": mixed,
        "remainder": remainder,
        "nonlinear": nonlinear,
        "all": leading + nonlinear,
    }


def batch_errors(batches: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Monte-Carlo errors (R, I, J) of the mean of covariances (B, I, J)."""
    return np.tensordot(weights, batches, axes=1)


def frobenius(blocks: np.ndarray) -> np.ndarray:
    """Return the Frobenius norms (...) of blocks (..., I, J)."""
    return np.asarray(np.sqrt((blocks**2).sum(axis=(-2, -1))))


def maximum(blocks: np.ndarray) -> np.ndarray:
    """Return the largest absolute entries (...) of blocks (..., I, J)."""
    return np.asarray(np.abs(blocks).max(axis=(-2, -1)))


def spectral(blocks: np.ndarray) -> np.ndarray:
    """Return the largest singular values (...) of blocks (..., I, J)."""
    small = blocks if blocks.shape[-2] <= blocks.shape[-1] else np.swapaxes(blocks, -1, -2)
    squares = np.linalg.eigvalsh(small @ np.swapaxes(small, -1, -2))[..., -1]
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


MEASURES = {"frobenius": frobenius, "maximum": maximum, "spectral": spectral}


def score_size(size: float, errors: np.ndarray) -> tuple[float, float]:
    """Return the root mean square of errors (R,), and by how many sds a size exceeds their mean.

    The errors are a measure of Monte-Carlo errors. The second number is of powers of 2/3, cube
    roots of squares, in which norms of errors are nearly normal (Wilson and Hilferty 1931).
    """
    powers = errors ** (2 / 3)
    spread = powers.std(ddof=1)
    distance = float((size ** (2 / 3) - powers.mean()) / spread) if spread > 0 else np.nan
    return float(np.sqrt((errors**2).mean())), distance
