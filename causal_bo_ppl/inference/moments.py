"""What is known about the mean and covariance of variables, before and after some rows?

The normal-inverse-Wishart family: covariance ~ IW(nu, scale) and, given it, mean ~ N(centre,
covariance / kappa). Given n rows with mean m and sum of squares S about it,

    kappa' = kappa + n,  nu' = nu + n,  centre' = (kappa centre + n m) / kappa',
    scale' = scale + S + (kappa n / kappa') (m - centre)(m - centre)'.
"""

from typing import NamedTuple

import jax
import numpy as np
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.linear.priors import MomentPrior, ScaledPrior

POINTS = 512  # draws of one even spread
TINY = 2.0**-53  # the Sobol points' resolution: no quantile is infinite


class Statistics(NamedTuple):
    """Rows of k variables: their number, mean (k,), and sum of squares about the mean (k, k)."""

    rows: int
    mean: np.ndarray
    scatter: np.ndarray


class NormalInverseWishart(NamedTuple):
    """A distribution of a mean (k,) and a covariance (k, k).

    The covariance is IW(nu, scale) and, given it, the mean is N(centre, covariance / kappa).
    """

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    @property
    def mean_covariance(self) -> np.ndarray:
        """Mean of the covariance, scale / (nu - k - 1)."""
        return np.asarray(self.scale / (self.nu - len(self.centre) - 1))


def summarise_rows(values: np.ndarray) -> Statistics:
    """Return the statistics of rows (n, k)."""
    mean = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
    centred = values - mean
    return Statistics(len(values), mean, centred.T @ centred)


def merge_statistics(one: Statistics, other: Statistics) -> Statistics:
    """Return the statistics of both sets of rows together."""
    rows = one.rows + other.rows
    if not rows:
        return one
    gap = other.mean - one.mean
    between = one.rows * other.rows / rows * np.outer(gap, gap)
    return Statistics(
        rows, one.mean + other.rows / rows * gap, one.scatter + other.scatter + between
    )


def prior_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """Return the prior of mean and covariance; a scaled one takes its scale from the rows."""
    if isinstance(prior, MomentPrior):
        return NormalInverseWishart(prior.centre, prior.kappa, prior.scale, prior.nu)
    scale = np.diag(np.diagonal(found.scatter)) * prior.rows / found.rows
    return NormalInverseWishart(found.mean, prior.rows, scale, prior.rows - 1)


def log_prior_moments(
    found: Statistics, prior: ScaledPrior | MomentPrior, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """Return the log prior of means (n, k) and covariances (n, k, k), up to a constant."""
    centre, kappa, scale, nu = prior_moments(found, prior)
    precisions = np.linalg.inv(covariances)
    _, logs = np.linalg.slogdet(covariances)
    gaps = means - centre
    trace = np.einsum("ij,nji->n", scale, precisions)
    distance = np.einsum("ni,nij,nj->n", gaps, precisions, gaps)
    return np.asarray(-0.5 * ((nu + len(centre) + 2) * logs + trace + kappa * distance))


def solve_moments(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """Return the posterior of mean and covariance."""
    (centre, kappa, scale, nu), n = prior_moments(found, prior), found.rows
    gap = found.mean - centre
    after = scale + found.scatter + kappa * n / (kappa + n) * np.outer(gap, gap)
    return NormalInverseWishart(
        (kappa * centre + n * found.mean) / (kappa + n), kappa + n, after, nu + n
    )


def draw_moments(
    posterior: NormalInverseWishart, n: int, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Draw means (n, k) and covariances (n, k, k), independently and exactly."""
    size = len(posterior.centre)
    generator = host_generator(key)
    chi = 2 * generator.standard_gamma((posterior.nu - np.arange(size)) / 2, (n, size))
    return _place_moments(posterior, chi, generator.standard_normal((n, size * (size + 1) // 2)))


def spread_moments(posterior: NormalInverseWishart, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return POINTS draws that fill the posterior evenly: means (n, k) and covariances (n, k, k).

    They follow a Sobol sequence that the seed scrambles.
    """
    size = len(posterior.centre)
    sequence = qmc.Sobol(size + size * (size + 1) // 2, rng=np.random.default_rng(seed))
    unit = np.clip(sequence.random(POINTS), TINY, 1 - TINY)
    chi = 2 * gammaincinv((posterior.nu - np.arange(size)) / 2, unit[:, :size])
    return _place_moments(posterior, chi, ndtri(unit[:, size:]))


def _place_moments(
    posterior: NormalInverseWishart, chi: np.ndarray, normals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Make draws of chi-squares (n, k) and normals (n, k (k + 1) / 2) by Bartlett's factor A.

    precision = U A A' U' with U U' = scale^-1, so covariance = C'C with C = A^-1 U^-1.
    """
    n, size = chi.shape
    lower = np.zeros((n, size, size))
    lower[:, *np.tril_indices(size, -1)] = normals[:, size:]
    lower[:, range(size), range(size)] = np.sqrt(chi)
    root = np.linalg.solve(
        lower, np.broadcast_to(np.linalg.cholesky(posterior.scale).T, lower.shape)
    )
    means = posterior.centre + (normals[:, None, :size] @ root)[:, 0] / np.sqrt(posterior.kappa)
    return means, np.swapaxes(root, 1, 2) @ root
