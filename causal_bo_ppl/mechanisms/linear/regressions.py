"""Linear equations, each learned by its own regression in closed form.

Given complete observations the equations are independent where no latent cause joins them: each is
a regression on its parents, over the observations in which its variable was not set, with a
normal-inverse-gamma posterior.

The vectors u = (regressors, response) of an equation enter as the triangular R with R'R = sum u u'.
A new observation changes R by Givens rotations, O(d^2); no cross product is formed, so no digits
are lost to the squares of large means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inputs import host_generator
from causal_bo_ppl.mechanisms.base import Coefficients, ExpectedInformation
from causal_bo_ppl.mechanisms.linear.density import PriorTerms, Spec
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.sem import Models, known_matrix, second_moments
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import distinct_rows

OBSERVATIONS_PER_QR = 4_096
OBSERVATIONS_AT_ONCE = 16_384  # of a table that are copied at once


class RegressionStatistics(NamedTuple):
    """Sufficient statistics of E equations, padded to D regressors.

    factor: (E, D + 1, D + 1) upper triangular; column D is the response. counts: (E,) observations.
    """

    factor: np.ndarray
    counts: np.ndarray


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


def compress_data(data: Data, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return fewer vectors (variables, 1) with the cross products of the data in some columns.

    Those with the same free variables become a triangular factor. The results have the shapes
    (m, p + 1) and (m, p). Blocks are added one after another, so that the data are not copied.
    """
    whole, free = np.empty((0, len(columns) + 1)), np.empty((0, len(columns)), bool)
    for start in range(0, len(data), OBSERVATIONS_AT_ONCE):
        block = slice(start, start + OBSERVATIONS_AT_ONCE)
        values, fixed = data.values[block][:, columns], data.intervened[block][:, columns]
        whole = np.concatenate([whole, np.column_stack([values, np.ones(len(values))])])
        free = np.concatenate([free, ~fixed])
        first, which = distinct_rows(free)
        parts = [_compress(whole[which == group]) for group in range(len(first))]
        whole, free = np.concatenate(parts), np.repeat(free[first], list(map(len, parts)), axis=0)
    return whole, free


def _compress(vectors: np.ndarray) -> np.ndarray:
    is_long = len(vectors) > vectors.shape[1]
    return np.asarray(np.linalg.qr(vectors, mode="r")) if is_long else vectors


def absorb(
    statistics: RegressionStatistics, vectors: np.ndarray, counts: np.ndarray
) -> RegressionStatistics:
    """Add vectors (n, E, D + 1), zero where they do not count for an equation.

    counts: how many observations count for each equation, of shape (E,).
    """
    factor = statistics.factor
    if len(vectors) < factor.shape[-1]:
        for vector in vectors:
            factor = rotate(factor, vector)
    else:
        for start in range(0, len(vectors), OBSERVATIONS_PER_QR):
            block = np.swapaxes(vectors[start : start + OBSERVATIONS_PER_QR], 0, 1)
            factor = np.asarray(np.linalg.qr(np.concatenate([factor, block], axis=1), mode="r"))
    return RegressionStatistics(factor, statistics.counts + counts)


def rotate(factor: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return the factors (E, k, k) after one more vector each, an array of shape (E, k).

    Givens rotations do so in O(k^2) for each equation.
    """
    factor, vector = factor.copy(), vector.copy()
    for k in range(vector.shape[-1]):
        length = np.hypot(factor[:, k, k], vector[:, k])
        turns = length > 0
        safe = np.where(turns, length, 1.0)
        cosine = np.where(turns, factor[:, k, k] / safe, 1.0)[:, None]
        sine = np.where(turns, vector[:, k] / safe, 0.0)[:, None]
        upper, lower = factor[:, k, k:], vector[:, k:]
        rotated = cosine * upper + sine * lower, cosine * lower - sine * upper
        factor[:, k, k:], vector[:, k:] = rotated
    return factor


def solve_scaled(
    statistics: RegressionStatistics, used: np.ndarray, intercept: bool, weight: float
) -> NormalInverseGamma:
    """Return the posteriors under the g-prior with the weight of so many observations.

    used: which regressors exist, of shape (E, D).
    """
    root, pulls, unexplained = _split(statistics, used)
    count = np.maximum(statistics.counts, 1)
    shrinkage = 1 / (1 + weight / count)
    is_slope = np.arange(used.shape[1]) >= intercept  # the sample mean is the prior's centre
    explained = (pulls[:, is_slope] ** 2).sum(axis=1)
    shrunk = np.where(is_slope, shrinkage[:, None], 1.0) * pulls
    shape = (weight + count - used.sum(axis=1)) / 2  # a degree of freedom for every coefficient
    prior_rate = weight * (unexplained + explained) / count
    rate = (prior_rate + unexplained + explained * (1 - shrinkage)) / 2
    mean, root = (root @ shrunk[..., None])[..., 0], root * np.sqrt(shrinkage)[:, None, None]
    return NormalInverseGamma(mean, root, shape, rate, rate / (shape - 1))


def scaled_prior(
    statistics: RegressionStatistics, used: np.ndarray, intercept: bool, weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the g-prior itself, as four arrays.

    They are half (E, D, D) and pull (E, D) of |half b - pull|^2 / s2, and shape (E,) and rate (E,)
    of s2.
    """
    _, pulls, unexplained = _split(statistics, used)
    width, count = used.shape[1], np.maximum(statistics.counts, 1)
    share, is_slope = np.sqrt(weight / count), np.arange(width) >= intercept
    half = share[:, None, None] * statistics.factor[:, :width, :width]
    pull = share[:, None] * np.where(is_slope, 0.0, pulls)
    rate = weight * (unexplained + (pulls[:, is_slope] ** 2).sum(axis=1)) / count / 2
    return half * used[:, None, :] * used[:, :, None], pull, (weight - used.sum(axis=1)) / 2, rate


def solve_fixed(
    statistics: RegressionStatistics, used: np.ndarray, guess: np.ndarray, weight: float
) -> NormalInverseGamma:
    """Return the posteriors under a fixed prior.

    The prior's pseudo-observations are in the factor but not counted. guess: guessed variances
    (E,), with the weight of so many observations.
    """
    root, pulls, unexplained = _split(statistics, used)
    mean = (root @ pulls[..., None])[..., 0]
    if np.isinf(weight):
        infinite = np.full(len(guess), np.inf)
        return NormalInverseGamma(mean, root, infinite, infinite, guess)
    shape, rate = (weight + statistics.counts) / 2, (weight * guess + unexplained) / 2
    return NormalInverseGamma(mean, root, shape, rate, rate / (shape - 1))


def _split(
    statistics: RegressionStatistics, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R_xx^-1, the response in its coordinates, and the unexplained sum of squares.

    They are zero where the equations are padded.
    """
    factor, width = statistics.factor, used.shape[1]
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


@dataclass(frozen=True, eq=False)
class Equations:
    """Normal-inverse-gamma posteriors of all equations of an ancestral graph, the target last.

    needed: (p,), whether some effect depends on the equation or on one of its district; the others
    are not learned. statistics: those of the observations.
    """

    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    needed: np.ndarray
    statistics: RegressionStatistics

    @cached_property
    def free_parents(self) -> tuple[tuple[str, ...], ...]:
        """The parents of each variable whose coefficients are unknown."""
        return tuple(
            tuple(parent for parent in self.graph.parents(node) if (parent, node) not in self.known)
            for node in self.graph.nodes
        )

    @cached_property
    def causes(self) -> np.ndarray:
        """Positions of the regressors, of shape (p, D): p for the constant 1, -1 for padding."""
        constant = [len(self.graph.nodes)] if self.intercepts else []
        causes = [
            constant + [self.graph.index(name) for name in parents] if is_needed else []
            for parents, is_needed in zip(self.free_parents, self.needed, strict=True)
        ]
        width = max(map(len, causes))
        padded = [each + [-1] * (width - len(each)) for each in causes]
        return np.array(padded, int).reshape(len(causes), width)

    @cached_property
    def posterior(self) -> NormalInverseGamma:
        """The posterior of every equation; one that is not needed has no variance."""
        used = self.causes >= 0
        if isinstance(self.prior, ScaledPrior):
            solved = solve_scaled(self.statistics, used, self.intercepts, self.prior.observations)
        else:
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            solved = solve_fixed(self.statistics, used, guess, self.prior.noise_observations)
        shape = np.where(self.needed, solved.shape, 1.0)
        return solved._replace(shape=shape, variance=np.where(self.needed, solved.variance, np.nan))

    def spec(self, scale_by_sd: bool) -> Spec:
        """Return the static structure of the density; scale_by_sd: see `density`."""
        needed = np.flatnonzero(self.needed)
        learned = set(needed.tolist())
        pairs = [tuple(map(self.graph.index, arc)) for arc in self.graph.bidirected]
        return Spec(
            size=len(self.graph.nodes),
            equations=tuple(needed.tolist()),
            causes=tuple(tuple(row[row >= 0].tolist()) for row in self.causes[needed]),
            arcs=tuple((one, other) for one, other in pairs if learned >= {one, other}),
            known_noise=self.has_known_noise,
            scale_by_sd=scale_by_sd,
        )

    @property
    def has_known_noise(self) -> bool:
        """Whether the variances are known by the prior."""
        return isinstance(self.prior, FixedPrior) and bool(np.isinf(self.prior.noise_observations))

    @cached_property
    def prior_terms(self) -> PriorTerms:
        """The prior as the density takes it."""
        if isinstance(self.prior, ScaledPrior):
            used, latent = self.causes >= 0, self.prior.observations
            parts = scaled_prior(self.statistics, used, self.intercepts, self.prior.observations)
        else:
            latent = self.prior.latent_sd**-2
            pseudo = np.swapaxes(self.pseudo_observations(self.prior), 0, 1)
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            weight = 0.0 if self.has_known_noise else self.prior.noise_observations
            shape = np.full(len(guess), weight / 2)
            parts = pseudo[..., :-1], pseudo[..., -1], shape, weight * guess / 2
        half, pull, shape, rate = (part[self.needed] for part in parts)
        return PriorTerms(half, pull, shape, rate, self.fixed, np.asarray(latent))

    @cached_property
    def fixed(self) -> np.ndarray:
        """Known coefficients, of shape (p + 1, p); the last row holds the intercepts."""
        return known_matrix(self.graph, self.known)

    def position(self, coefficients: np.ndarray) -> np.ndarray:
        """Return coefficients (..., p, D) as matrices (..., p + 1, p), known ones added."""
        used = self.causes >= 0
        shape = (*coefficients.shape[:-2], *self.fixed.shape)
        matrices = np.broadcast_to(self.fixed, shape).copy()
        matrices[..., self.causes[used], np.nonzero(used)[0]] = coefficients[..., used]
        return matrices

    @cached_property
    def coefficients(self) -> Coefficients:
        """Mean and covariance roots of the coefficients of each equation."""
        mean = self.position(self.posterior.mean)
        roots = np.zeros((*mean.shape, self.causes.shape[1]))
        for node, causes in enumerate(self.causes):
            used = causes >= 0
            if used.any():
                root = np.sqrt(self.posterior.variance[node]) * self.posterior.root[node]
                roots[causes[used], node] = root[used]
        return Coefficients(mean, roots)

    @cached_property
    def at_mean(self) -> Models:
        """The one model at the posterior means; sd 1 where an equation is not learned."""
        noise = np.diag(np.where(self.needed, self.posterior.variance, 1.0))
        return Models(self.coefficients.mean[None], noise[None])

    @cached_property
    def directions(self) -> np.ndarray:
        """A root of the covariance of all coefficients, of shape (p + 1, p, K).

        Coefficients are their means plus this times K standard normals, of which each equation has
        its own.
        """
        size, width = self.causes.shape
        moves = np.zeros((size + 1, size, size, width))
        for node in range(size):
            moves[:, node, node] = self.coefficients.roots[:, node]
        return moves.reshape(size + 1, size, size * width)[..., (self.causes >= 0).ravel()]

    def expected_information(self, queries: Queries) -> ExpectedInformation:
        """Return the expected information of one observation of each of M queries.

        About the K standard normals of `directions` it is root' E[u u'] root for an equation with
        regressors u, zero for one that is set, or whose causes are not all set or learned, and zero
        between equations.
        """
        mask, size = np.asarray(queries.mask), len(self.graph.nodes)
        models = self.at_mean
        moments = second_moments(models.matrices[0], models.noises[0], queries)
        known = np.ones((len(mask), size), bool)
        for node, parents in enumerate(map(self.graph.parents, self.graph.nodes)):
            causes = known[:, [self.graph.index(name) for name in parents]].all(axis=1)
            known[:, node] = mask[:, node] | (causes & self.needed[node])
        blocks = np.zeros((len(mask), *self.causes.shape, self.causes.shape[1]))
        for node, causes in enumerate(self.causes):
            used = causes[causes >= 0]
            root = self.posterior.root[node][: len(used), : len(used)]
            information = root.T @ moments[:, used[:, None], used] @ root
            is_informed = known[:, node] & ~mask[:, node]
            blocks[:, node, : len(used), : len(used)] = information * is_informed[:, None, None]
        used = self.causes >= 0
        positions = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
        return ExpectedInformation(blocks, positions)

    def draw(self, n: int, key: jax.Array) -> tuple[Models, np.ndarray]:
        """Draw n models exactly, with their log prior (n,) up to a constant."""
        coefficients, variances = draw_equations(self.posterior, n, key)
        variances = np.where(self.needed, variances, 1.0)
        noises = variances[:, :, None] * np.eye(len(self.graph.nodes))
        half, pull, shape, rate, *_ = self.prior_terms
        inside, spread = coefficients[:, self.needed], variances[:, self.needed]
        misfit = ((np.einsum("ekl,nel->nek", half, inside) - pull) ** 2).sum(axis=-1)
        count = (self.causes[self.needed] >= 0).sum(axis=1)
        log_prior = -0.5 * misfit / spread - 0.5 * count * np.log(spread)
        if not self.has_known_noise:
            log_prior = log_prior - (shape + 1) * np.log(spread) - rate / spread
        return Models(self.position(coefficients), noises), log_prior.sum(axis=1)

    def log_student(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the log density of coefficients (n, p, D), up to a constant, of shape (n,)."""
        solved, used = self.posterior, (self.causes >= 0)[self.needed]
        gaps = (coefficients - solved.mean)[:, self.needed]
        padded = solved.root[self.needed] + np.eye(used.shape[1]) * ~used[:, None, :]
        square = (np.einsum("ekl,nel->nek", np.linalg.inv(padded), gaps) ** 2).sum(axis=-1)
        shape, rate = solved.shape[self.needed], solved.rate[self.needed]
        if self.has_known_noise:
            return np.asarray(-0.5 * (square / solved.variance[self.needed]).sum(axis=1))
        power = shape + used.sum(axis=1) / 2
        return np.asarray(-(power * np.log1p(square / (2 * rate))).sum(axis=1))

    @property
    def tail_degrees(self) -> float:
        """The fewest degrees of freedom of an equation whose coefficients are Student's t."""
        return float(2 * self.posterior.shape[self.needed].min(initial=np.inf))

    def update(self, data: Data) -> "Equations":
        """Return the equations after more observations: exactly those of all together."""
        columns = [data.nodes.index(name) for name in self.graph.nodes]
        whole, free = compress_data(data, columns)
        padded = np.column_stack([whole, np.zeros(len(whole))])  # causes p, the constant, and -1
        responses = whole[:, :-1] - whole[:, :-1] @ self.fixed[:-1]
        vectors = np.concatenate([padded[:, self.causes], responses[..., None]], axis=-1)
        vectors = vectors * (free & self.needed)[..., None]
        counts = len(data) - data.intervened.sum(axis=0)[columns]
        updated = replace(self, statistics=absorb(self.statistics, vectors, counts))
        parts = (updated.posterior.mean, updated.posterior.root, updated.posterior.variance)
        for position in np.flatnonzero(self.needed).tolist():
            if not all(np.isfinite(part[position]).all() for part in parts):
                raise NumericalError(
                    f"the posterior of the equation of {self.graph.nodes[position]!r} is not "
                    "finite, so it is not exact; change the units of its variables, or look for "
                    "values that cannot be"
                )
        return updated

    def pseudo_observations(self, prior: FixedPrior) -> np.ndarray:
        """Return vectors (D, p, D + 1) that are equivalent to a fixed prior."""
        centres = np.array([prior.centres.get(name, 0.0) for name in self.graph.nodes])
        offsets, most = centres @ self.fixed[:-1], self.causes.shape[1]
        vectors = np.zeros((most, len(self.graph.nodes), most + 1))
        for k in np.flatnonzero(self.needed).tolist():
            names = self.graph.nodes[k], self.free_parents[k]
            pseudo = prior.pseudo_observations(*names, float(offsets[k]), self.intercepts)
            vectors[: len(pseudo), k, : len(pseudo)] = pseudo[:, :-1]
            vectors[: len(pseudo), k, -1] = pseudo[:, -1]
        return vectors


def learn_equations(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: ScaledPrior | FixedPrior,
    needed: np.ndarray,
    data: Data,
) -> Equations:
    """Learn every equation by its own regression, as if no latent cause joined any."""
    none = RegressionStatistics(np.empty(0), np.zeros(len(graph.nodes)))
    equations = Equations(graph, known, intercepts, prior, needed, none)
    count, width = equations.causes.shape
    empty = none._replace(factor=np.zeros((count, width + 1, width + 1)))
    if isinstance(prior, FixedPrior):  # its pseudo-observations are not counted
        empty = absorb(empty, equations.pseudo_observations(prior), np.zeros(count))
    return replace(equations, statistics=empty).update(data)
