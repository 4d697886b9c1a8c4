"""Gaussian weights with standard priors, and what outcomes say about them.

An outcome is y = phi'w + e with w ~ N(0, I) of r weights and e ~ N(0, v). Of t outcomes the smaller
of two systems of equations is solved, of size t or r: O(t r min(t, r)).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from causal_bo_ppl.linalg import clip_rounding
from causal_bo_ppl.mechanisms.base import ExpectedInformation

LEAST = 1e-14  # of a block's largest eigenvalue: smaller ones are rounding
LOG_TWO_PI = float(np.log(2 * np.pi))


class Weights(NamedTuple):
    """The posterior N(mean, covariance) of r weights."""

    covariance: np.ndarray
    mean: np.ndarray

    def variances(self, features: np.ndarray) -> np.ndarray:
        """Return the variances (M,) of phi'w, for features (M, r)."""
        found = ((features @ self.covariance) * features).sum(axis=1)
        return clip_rounding(found, (features**2).sum(axis=1))

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Draw n weights, (n, r)."""
        sizes, directions = np.linalg.eigh(self.covariance)
        root = directions * np.sqrt(np.maximum(sizes, 0.0))
        return np.asarray(self.mean + generator.standard_normal((n, len(root))) @ root.T)


def no_outcome(size: int) -> Weights:
    """Return the weights before any outcome."""
    return Weights(np.eye(size), np.zeros(size))


def condition(features: np.ndarray, residuals: np.ndarray, precisions: np.ndarray) -> Weights:
    """Return the weights given residuals (t,) with features (t, r) and precisions 1 / v (t,).

    Outcomes of precision 0 teach nothing.
    """
    used = precisions > 0
    phi, known, noise = features[used], residuals[used], 1 / precisions[used]
    size = features.shape[1]
    if len(known) <= size:
        factor = cho_factor(phi @ phi.T + np.diag(noise), lower=True)
        gain = cho_solve(factor, phi)
        covariance = np.eye(size) - phi.T @ gain
        return Weights((covariance + covariance.T) / 2, known @ gain)
    order = np.argsort(noise, kind="stable")  # large rows first: the factorization is then stable
    scale = 1 / np.sqrt(noise[order])
    rows = np.concatenate([phi[order] * scale[:, None], np.eye(size)])
    values = np.concatenate([known[order] * scale, np.zeros(size)])
    orthogonal, triangle = np.linalg.qr(rows)
    root = solve_triangular(triangle, np.eye(size))
    return Weights(root @ root.T, root @ (orthogonal.T @ values))


def extend(weights: Weights, feature: np.ndarray, precision: float, pull: float) -> Weights:
    """Return the weights after a rank-one update.

    `precision` and `pull` are the increases in 1 / v and in residual / v that one more outcome
    brings; a replicate brings both too, since it changes an earlier mean.
    """
    toward = weights.covariance @ feature
    growth = 1 + precision * float(feature @ toward)
    covariance = weights.covariance - (precision / growth) * np.outer(toward, toward)
    step = (pull - precision * float(feature @ weights.mean)) / growth
    return Weights(covariance, weights.mean + step * toward)


def lessons(
    weights: Weights, taught: ExpectedInformation, apart: np.ndarray, has_outcomes: bool
) -> np.ndarray:
    """Return the variances (M, J) of how far rows move the means of J features (J, r).

    taught: what the row of each of M queries says about the weights before any outcome.
    has_outcomes: whether outcomes have joined the weights of its groups.
    """
    information, positions = taught.blocks, taught.positions
    known = information
    if has_outcomes:
        size = apart.shape[1]
        information, positions = taught.whole(size)[:, None], np.arange(size)[None]
        known, apart = information @ weights.covariance, apart @ weights.covariance
    groups = np.where(positions >= 0, apart[:, positions], 0.0)
    gained = np.linalg.solve(np.eye(positions.shape[1]) + known, information)
    squares = groups[..., :, None] * groups[..., None, :]
    found = gained.reshape(len(gained), -1) @ squares.reshape(len(apart), -1).T
    return clip_rounding(found, np.full(found.shape, (apart**2).sum(axis=1)))


def log_evidences(gram: np.ndarray, residuals: np.ndarray, noises: np.ndarray) -> np.ndarray:
    """Return log N(residuals; 0, gram + diag(noise)) for stacks (..., t, t) and (..., t)."""
    size = len(residuals)
    diagonal = noises[..., None] * np.eye(size)
    root = np.linalg.cholesky(gram + diagonal)
    values = np.broadcast_to(residuals[:, None], (*root.shape[:-1], 1))
    white = np.linalg.solve(root, values)[..., 0]
    logs = 2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    return np.asarray(-0.5 * ((white**2).sum(axis=-1) + logs + size * LOG_TWO_PI))


def log_evidences_in_blocks(
    features: np.ndarray,
    blocks: Sequence[tuple[np.ndarray, np.ndarray]],
    sizes: np.ndarray,
    residuals: np.ndarray,
    noises: np.ndarray,
) -> np.ndarray:
    """Return log N(residuals; 0, F F' + a^2 B + diag(noise)) for each of k sizes a, (k,).

    B is block-diagonal and given by its factors, so that no matrix of the size t is formed: each
    block is diagonalized by itself, in whichever of its two dimensions is smaller.

    Parameters
    ----------
    features:
        F, (t, r).
    blocks:
        Pairs of rows (S, T) of S blocks, -1 where they are filled up, and factors (S, T, m).
    sizes:
        The k sizes a.
    residuals, noises:
        Of t outcomes, (t,).
    """
    white = np.append(1 / np.sqrt(noises), 0.0)
    plain, values = features * white[:-1, None], residuals * white[:-1]
    padded = np.column_stack([plain, values])
    padded = np.concatenate([padded, np.zeros((1, padded.shape[1]))])
    spectra, turned = [np.zeros(0)], [np.zeros((0, padded.shape[1]))]
    others = np.ones(len(padded), bool)
    rest = np.zeros((padded.shape[1],) * 2)  # what no block moves
    for rows, factors in blocks:
        others[rows] = False
        spectrum, along = _diagonalize(factors * white[rows][..., None], padded[rows])
        spectra.append(spectrum)
        turned.append(along)
        if factors.shape[1] > factors.shape[2]:
            own = padded[rows].reshape(-1, len(rest))
            rest = rest + own.T @ own - along.T @ along
    spectrum, along = np.concatenate(spectra), np.concatenate(turned)
    rest = rest + padded[others].T @ padded[others]
    spread = sizes[:, None] ** 2 * spectrum
    width = padded.shape[1]
    products = (along[:, :, None] * along[:, None, :]).reshape(len(along), width**2)
    moved = (1 / (1 + spread)) @ products
    whole = rest + moved.reshape(len(sizes), width, width)
    inner, pull = np.eye(plain.shape[1]) + whole[:, :-1, :-1], whole[:, :-1, -1]
    root = np.linalg.cholesky(inner)
    explained = np.linalg.solve(root, pull[..., None])[..., 0]
    logs = 2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    logs = logs + np.log1p(spread).sum(axis=1) + np.log(noises).sum()
    misfit = whole[:, -1, -1] - (explained**2).sum(axis=-1)
    return np.asarray(-0.5 * (misfit + logs + len(residuals) * LOG_TWO_PI))


def _diagonalize(factors: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues (n,) of all blocks, and columns (S, T, c) along eigenvectors, (n, c)."""
    turned = factors.transpose(0, 2, 1)
    if factors.shape[1] <= factors.shape[2]:
        spectrum, vectors = np.linalg.eigh(factors @ turned)
        along = vectors.transpose(0, 2, 1) @ columns
    else:
        spectrum, vectors = np.linalg.eigh(turned @ factors)
        least = LEAST * spectrum.max(axis=1, keepdims=True)
        scale = np.where(spectrum > least, 1 / np.sqrt(np.maximum(spectrum, 1e-300)), 0.0)
        along = scale[..., None] * (vectors.transpose(0, 2, 1) @ (turned @ columns))
    return np.maximum(spectrum, 0.0).ravel(), along.reshape(-1, columns.shape[2])
