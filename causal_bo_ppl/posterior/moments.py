"""What do observational rows say about their own mean and covariance? Normal-inverse-Wishart, in closed form."""

from typing import NamedTuple

import jax
import numpy as np
from scipy.special import gammaincinv, ndtri
from scipy.stats import qmc

from causal_bo_ppl.keys import host_generator
from causal_bo_ppl.posterior.priors import MomentPrior, ScaledPrior

POINTS = 512  # of one even spread
TINY = 2.0**-53  # the Sobol points' resolution: no quantile is infinite


class Statistics(NamedTuple):
    """Of rows of k variables: how many, their mean (k,) and their sum of squares about it (k, k)."""

    rows: int
    mean: np.ndarray
    scatter: np.ndarray


class NormalInverseWishart(NamedTuple):
    """covariance ~ IW(nu, scale), mean ~ N(centre, covariance / kappa)."""

    centre: np.ndarray
    kappa: float
    scale: np.ndarray
    nu: float

    @property
    def mean_covariance(self) -> np.ndarray:
        """E covariance, scale / (nu - k - 1)."""
        return np.asarray(self.scale / (self.nu - len(self.centre) - 1))


def summarise(values: np.ndarray) -> Statistics:
    """Of rows (n, k)."""
    mean = values.mean(axis=0) if len(values) else np.zeros(values.shape[1])
    centred = values - mean
    return Statistics(len(values), mean, centred.T @ centred)


def merge(one: Statistics, other: Statistics) -> Statistics:
    """Of both sets of rows together."""
    rows = one.rows + other.rows
    if not rows:
        return one
    gap = other.mean - one.mean
    between = one.rows * other.rows / rows * np.outer(gap, gap)
    return Statistics(rows, one.mean + other.rows / rows * gap, one.scatter + other.scatter + between)


def before(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """The prior of mean and covariance; a scaled one takes its scale from the rows."""
    if isinstance(prior, MomentPrior):
        return NormalInverseWishart(prior.centre, prior.kappa, prior.scale, prior.nu)
    scale = np.diag(np.diagonal(found.scatter)) * prior.rows / found.rows
    return NormalInverseWishart(found.mean, prior.rows, scale, prior.rows - 1)


def log_prior(
    found: Statistics, prior: ScaledPrior | MomentPrior, means: np.ndarray, covariances: np.ndarray
) -> np.ndarray:
    """(n,) log density of means (n, k) and covariances (n, k, k), up to a constant."""
    centre, kappa, scale, nu = before(found, prior)
    precisions = np.linalg.inv(covariances)
    _, logs = np.linalg.slogdet(covariances)
    gaps = means - centre
    spread = np.einsum("ij,nji->n", scale, precisions) + kappa * np.einsum("ni,nij,nj->n", gaps, precisions, gaps)
    return np.asarray(-0.5 * ((nu + len(centre) + 2) * logs + spread))


def solve(found: Statistics, prior: ScaledPrior | MomentPrior) -> NormalInverseWishart:
    """The posterior of mean and covariance."""
    (centre, kappa, scale, nu), n = before(found, prior), found.rows
    gap = found.mean - centre
    after = scale + found.scatter + kappa * n / (kappa + n) * np.outer(gap, gap)
    return NormalInverseWishart((kappa * centre + n * found.mean) / (kappa + n), kappa + n, after, nu + n)


def draw(posterior: NormalInverseWishart, n: int, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """(n, k) means and (n, k, k) covariances: exact, independent draws."""
    size = len(posterior.centre)
    generator = host_generator(key)
    chi = 2 * generator.standard_gamma((posterior.nu - np.arange(size)) / 2, (n, size))
    return _place(posterior, chi, generator.standard_normal((n, size * (size + 1) // 2)))


def spread(posterior: NormalInverseWishart, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """POINTS draws that fill the posterior evenly: a scrambled Sobol sequence, the same for a seed."""
    size = len(posterior.centre)
    sequence = qmc.Sobol(size + size * (size + 1) // 2, rng=np.random.default_rng(seed))
    unit = np.clip(sequence.random(POINTS), TINY, 1 - TINY)
    chi = 2 * gammaincinv((posterior.nu - np.arange(size)) / 2, unit[:, :size])
    return _place(posterior, chi, ndtri(unit[:, size:]))


def _place(posterior: NormalInverseWishart, chi: np.ndarray, normals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From chi-squares (n, k) and normals (n, k (k + 1) / 2), by Bartlett's factor A of the precision.

    precision = U A A' U' with U U' = scale^-1, so covariance = C'C with C = A^-1 U^-1.
    """
    n, size = chi.shape
    lower = np.zeros((n, size, size))
    lower[:, *np.tril_indices(size, -1)] = normals[:, size:]
    lower[:, range(size), range(size)] = np.sqrt(chi)
    root = np.linalg.solve(lower, np.broadcast_to(np.linalg.cholesky(posterior.scale).T, lower.shape))
    means = posterior.centre + (normals[:, None, :size] @ root)[:, 0] / np.sqrt(posterior.kappa)
    return means, np.swapaxes(root, 1, 2) @ root
