"""Linear regressions in closed form: normal-inverse-gamma posteriors by triangular factors.

The rows u = (regressors, response) of an equation enter as the triangular R with R'R = sum u u'. A
new row changes R by Givens rotations, O(d^2); no cross product is formed, so no digits are lost to
the squares of large means.
"""

from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.problem.queries import distinct_rows

BLOCK = 4_096  # rows reduced at once
ROWS = 16_384  # rows of a table that are copied at once


class Evidence(NamedTuple):
    """What rows say about E equations, padded to D regressors.

    factor: (E, D + 1, D + 1) upper triangular; column D is the response. rows: (E,) counts of rows.
    """

    factor: np.ndarray
    rows: np.ndarray


class NormalInverseGamma(NamedTuple):
    """Posteriors of E equations: s2 ~ IG(shape, rate), and coefficients N(mean, s2 root root').

    mean: (E, D). root: (E, D, D), zero where padded. shape, rate: (E,) each; the shape is infinite
    where s2 is known. variance: the mean of s2, (E,).
    """

    mean: np.ndarray
    root: np.ndarray
    shape: np.ndarray
    rate: np.ndarray
    variance: np.ndarray


def no_evidence(equations: int, width: int) -> Evidence:
    """Return the evidence of no rows."""
    return Evidence(np.zeros((equations, width + 1, width + 1)), np.zeros(equations))


def compress_rows(values: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return fewer rows that say the same as values (n, p) with free variables (n, p).

    The rows (values, 1) with the same free variables become a triangular factor. The results have
    the shapes (m, p + 1) and (m, p).
    """
    return _merge(np.column_stack([values, np.ones(len(values))]), free)


def compress_data(data: Data, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return what `compress_rows` says of some columns of rows, of which no copy is made.

    Blocks of rows are added one after another to the factors of those before.
    """
    whole, free = np.empty((0, len(columns) + 1)), np.empty((0, len(columns)), bool)
    for start in range(0, len(data), ROWS):
        block = slice(start, start + ROWS)
        values, fixed = data.values[block][:, columns], data.intervened[block][:, columns]
        rows = np.column_stack([values, np.ones(len(values))])
        whole, free = _merge(np.concatenate([whole, rows]), np.concatenate([free, ~fixed]))
    return whole, free


def _merge(whole: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, which = distinct_rows(free)
    groups = [whole[which == place] for place in range(len(first))]
    parts = [
        np.asarray(np.linalg.qr(each, mode="r")) if len(each) > each.shape[1] else each
        for each in groups
    ]
    return np.concatenate([whole[:0], *parts]), np.repeat(
        free[first], [len(part) for part in parts], axis=0
    )


def absorb(evidence: Evidence, rows: np.ndarray, counts: np.ndarray) -> Evidence:
    """Add rows (n, E, D + 1), zero where they do not count for an equation.

    counts: how many rows count for each equation, of shape (E,).
    """
    factor = evidence.factor
    if len(rows) < factor.shape[-1]:
        for row in rows:
            factor = rotate(factor, row)
    else:
        for start in range(0, len(rows), BLOCK):
            block = np.swapaxes(rows[start : start + BLOCK], 0, 1)
            factor = np.asarray(np.linalg.qr(np.concatenate([factor, block], axis=1), mode="r"))
    return Evidence(factor, evidence.rows + counts)


def rotate(factor: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return the factors (E, k, k) after one more row each, an array of shape (E, k).

    Givens rotations do so in O(k^2) for each equation.
    """
    factor, row = factor.copy(), row.copy()
    for k in range(row.shape[-1]):
        length = np.hypot(factor[:, k, k], row[:, k])
        turns = length > 0
        safe = np.where(turns, length, 1.0)
        cosine = np.where(turns, factor[:, k, k] / safe, 1.0)[:, None]
        sine = np.where(turns, row[:, k] / safe, 0.0)[:, None]
        upper, lower = factor[:, k, k:], row[:, k:]
        factor[:, k, k:], row[:, k:] = cosine * upper + sine * lower, cosine * lower - sine * upper
    return factor


def solve_scaled(
    evidence: Evidence, used: np.ndarray, intercept: bool, prior_rows: float
) -> NormalInverseGamma:
    """Return the posteriors under the g-prior worth `prior_rows` rows.

    used: which regressors exist, of shape (E, D).
    """
    root, pulls, unexplained = _split(evidence, used)
    count = np.maximum(evidence.rows, 1)
    shrinkage = 1 / (1 + prior_rows / count)
    is_slope = np.arange(used.shape[1]) >= intercept  # the sample mean is the prior's centre
    explained = (pulls[:, is_slope] ** 2).sum(axis=1)
    shrunk = np.where(is_slope, shrinkage[:, None], 1.0) * pulls
    shape = (prior_rows + count - used.sum(axis=1)) / 2  # a degree of freedom for every coefficient
    rate = (
        prior_rows * (unexplained + explained) / count + unexplained + explained * (1 - shrinkage)
    ) / 2
    mean = (root @ shrunk[..., None])[..., 0]
    return NormalInverseGamma(
        mean, root * np.sqrt(shrinkage)[:, None, None], shape, rate, rate / (shape - 1)
    )


def scaled_prior(
    evidence: Evidence, used: np.ndarray, intercept: bool, prior_rows: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the g-prior itself, as four arrays.

    They are half (E, D, D) and pull (E, D) of |half b - pull|^2 / s2, and shape (E,) and rate (E,)
    of s2.
    """
    _, pulls, unexplained = _split(evidence, used)
    width, count = used.shape[1], np.maximum(evidence.rows, 1)
    share = np.sqrt(prior_rows / count)
    is_slope = np.arange(width) >= intercept
    half = (
        share[:, None, None]
        * evidence.factor[:, :width, :width]
        * used[:, None, :]
        * used[:, :, None]
    )
    rate = prior_rows * (unexplained + (pulls[:, is_slope] ** 2).sum(axis=1)) / count / 2
    return (
        half,
        share[:, None] * np.where(is_slope, 0.0, pulls),
        (prior_rows - used.sum(axis=1)) / 2,
        rate,
    )


def solve_fixed(
    evidence: Evidence, used: np.ndarray, guess: np.ndarray, noise_rows: float
) -> NormalInverseGamma:
    """Return the posteriors under a fixed prior.

    The prior's pseudo-rows are in the evidence but not counted. guess: guessed variances, of shape
    (E,).
    """
    root, pulls, unexplained = _split(evidence, used)
    mean = (root @ pulls[..., None])[..., 0]
    if np.isinf(noise_rows):
        return NormalInverseGamma(
            mean, root, np.full(len(guess), np.inf), np.full(len(guess), np.inf), guess
        )
    shape, rate = (noise_rows + evidence.rows) / 2, (noise_rows * guess + unexplained) / 2
    return NormalInverseGamma(mean, root, shape, rate, rate / (shape - 1))


def _split(evidence: Evidence, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R_xx^-1, the response in its coordinates, and the unexplained sum of squares.

    They are zero where the equations are padded.
    """
    factor, width = evidence.factor, used.shape[1]
    responses = factor[:, :width, width]
    square = factor[:, :width, :width] + np.eye(width) * ~used[:, None, :]
    inverse = np.linalg.inv(square) * used[:, None, :] * used[:, :, None]
    unexplained = factor[:, width, width] ** 2 + (responses**2 * ~used).sum(axis=1)
    return inverse, responses * used, unexplained


def draw_equations(
    posterior: NormalInverseGamma, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Draw coefficients (n, E, D) and variances (n, E), independently and exactly."""
    generator = host_generator(key)
    shape = np.where(np.isinf(posterior.shape), 1.0, posterior.shape)
    gamma = generator.standard_gamma(shape, (n, len(shape)))
    noise = np.where(np.isinf(posterior.shape), posterior.variance, posterior.rate / gamma)
    noise = np.where(np.isfinite(noise), noise, 1.0)  # of equations that are not learned
    standard = generator.standard_normal((n, *posterior.mean.shape))
    spread = np.einsum("ekl,nel->nek", posterior.root, standard)
    return posterior.mean + np.sqrt(noise)[..., None] * spread, noise
