"""Linear regressions in closed form: normal-inverse-gamma posteriors by triangular factors.

The rows u = (regressors, response) of an equation enter as the triangular R with R'R = sum u u'. A
new row changes R by Givens rotations, O(d^2); no cross product is formed, so no digits are lost to
the squares of large means.

Linear equations, each learned by its own regression in closed form.

Given complete rows the equations are independent where no latent cause joins them: each is a
regression on its parents, over the rows in which its variable was not set.
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
    groups = [whole[which == position] for position in range(len(first))]
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


@dataclass(frozen=True, eq=False)
class Equations:
    """Normal-inverse-gamma posteriors of all equations of an ancestral graph, the target last.

    needed: (p,), whether some effect depends on the equation or on one of its district; the others
    are not learned. evidence: what the rows say.
    """

    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    needed: np.ndarray
    evidence: Evidence

    @cached_property
    def free_parents(self) -> tuple[tuple[str, ...], ...]:
        """The parents of each variable whose coefficients are unknown."""
        return tuple(
            tuple(parent for parent in self.graph.parents(node) if (parent, node) not in self.known)
            for node in self.graph.nodes
        )

    @cached_property
    def causes(self) -> np.ndarray:
        """Places of the regressors, of shape (p, D): p for the constant 1, -1 for padding."""
        constant = [len(self.graph.nodes)] if self.intercepts else []
        rows = [
            constant + [self.graph.index(name) for name in parents] if is_needed else []
            for parents, is_needed in zip(self.free_parents, self.needed, strict=True)
        ]
        width = max(map(len, rows))
        padded = [row + [-1] * (width - len(row)) for row in rows]
        return np.array(padded, int).reshape(len(rows), width)

    @cached_property
    def posterior(self) -> NormalInverseGamma:
        """The posterior of every equation; one that is not needed has no variance."""
        used = self.causes >= 0
        if isinstance(self.prior, ScaledPrior):
            solved = solve_scaled(self.evidence, used, self.intercepts, self.prior.rows)
        else:
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            solved = solve_fixed(self.evidence, used, guess, self.prior.noise_rows)
        shape = np.where(self.needed, solved.shape, 1.0)
        return solved._replace(shape=shape, variance=np.where(self.needed, solved.variance, np.nan))

    def spec(self, follows: bool) -> Spec:
        """Return what the density of these equations is compiled for; follows: see `density`."""
        needed = np.flatnonzero(self.needed)
        learned = set(needed.tolist())
        pairs = [tuple(map(self.graph.index, arc)) for arc in self.graph.bidirected]
        return Spec(
            size=len(self.graph.nodes),
            equations=tuple(needed.tolist()),
            causes=tuple(tuple(row[row >= 0].tolist()) for row in self.causes[needed]),
            arcs=tuple((one, other) for one, other in pairs if learned >= {one, other}),
            known_noise=self.has_known_noise,
            follows=follows,
        )

    @property
    def has_known_noise(self) -> bool:
        """Whether the prior says that the variances are known."""
        return isinstance(self.prior, FixedPrior) and bool(np.isinf(self.prior.noise_rows))

    @cached_property
    def prior_terms(self) -> PriorTerms:
        """The prior as the density takes it."""
        if isinstance(self.prior, ScaledPrior):
            used, latent = self.causes >= 0, self.prior.rows
            parts = scaled_prior(self.evidence, used, self.intercepts, self.prior.rows)
        else:
            latent = self.prior.latent_sd**-2
            rows = np.swapaxes(self.pseudo_rows(self.prior), 0, 1)
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            worth = 0.0 if np.isinf(self.prior.noise_rows) else self.prior.noise_rows
            shape = np.full(len(guess), worth / 2)
            parts = rows[..., :-1], rows[..., -1], shape, worth * guess / 2
        half, pull, shape, rate = (part[self.needed] for part in parts)
        return PriorTerms(half, pull, shape, rate, self.fixed, np.asarray(latent))

    @cached_property
    def fixed(self) -> np.ndarray:
        """Known coefficients, of shape (p + 1, p); the last row is the intercepts."""
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
        """How coefficients move along K standard directions, of shape (p + 1, p, K).

        Coefficients are their means plus this times standard normals; each equation has its own.
        """
        size, (equations, width) = len(self.graph.nodes), self.causes.shape
        moves = np.zeros((size + 1, size, equations, width))
        for node in range(size):
            moves[:, node, node] = self.coefficients.roots[:, node]
        return moves.reshape(size + 1, size, equations * width)[..., (self.causes >= 0).ravel()]

    def expected_information(self, queries: Queries) -> ExpectedInformation:
        """Return what one whole row of each of M queries will say about the K directions.

        The expected information about their standard normals is root' E[u u'] root for an equation
        with regressors u, nothing for one that is set, or whose causes are not all set or learned,
        and nothing between equations.
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
            taught = root.T @ moments[:, used[:, None], used] @ root
            counts = known[:, node] & ~mask[:, node]
            blocks[:, node, : len(used), : len(used)] = taught * counts[:, None, None]
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

    def update(self, rows: Data) -> "Equations":
        """Return the equations after more rows: exactly those of all rows together."""
        return replace(self, evidence=self._absorb(self.evidence, rows)).require_finite()

    def require_finite(self) -> "Equations":
        """Return these equations if their posteriors are finite; nothing is exact otherwise."""
        parts = (self.posterior.mean, self.posterior.root, self.posterior.variance)
        for position in np.flatnonzero(self.needed).tolist():
            if not all(np.isfinite(part[position]).all() for part in parts):
                raise NumericalError(
                    f"the posterior of the equation of {self.graph.nodes[position]!r} is not finite, "
                    "so it is not exact; change the units of its variables, or look for values "
                    "that cannot be"
                )
        return self

    def _absorb(self, evidence: Evidence, data: Data) -> Evidence:
        columns = [data.nodes.index(name) for name in self.graph.nodes]
        whole, free = compress_data(data, columns)
        values, free = whole[:, :-1], free & self.needed
        padded = np.column_stack([whole, np.zeros(len(whole))])  # causes p, the constant, and -1
        responses = values - values @ self.fixed[:-1]
        rows = np.concatenate([padded[:, self.causes], responses[..., None]], axis=-1)
        counts = len(data) - data.intervened.sum(axis=0)[columns]
        return absorb(evidence, rows * free[..., None], counts)

    def pseudo_rows(self, prior: FixedPrior) -> np.ndarray:
        """Return rows (D, p, D + 1) that say the same as a fixed prior."""
        centres = np.array([prior.centres.get(name, 0.0) for name in self.graph.nodes])
        offsets, most = centres @ self.fixed[:-1], self.causes.shape[1]
        rows = np.zeros((most, len(self.graph.nodes), most + 1))
        for position, (node, parents) in enumerate(
            zip(self.graph.nodes, self.free_parents, strict=True)
        ):
            if self.needed[position]:
                same = prior.pseudo_rows(node, parents, float(offsets[position]), self.intercepts)
                rows[: len(same), position, : len(same)] = same[:, :-1]
                rows[: len(same), position, -1] = same[:, -1]
        return rows


def learn_equations(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: ScaledPrior | FixedPrior,
    needed: np.ndarray,
    data: Data,
) -> Equations:
    """Learn every equation by its own regression, as if no latent cause joined any."""
    bare = Equations(graph, known, intercepts, prior, needed, Evidence(np.empty(0), np.empty(0)))
    evidence = no_evidence(*bare.causes.shape)
    if isinstance(prior, FixedPrior):  # its rows are not counted
        evidence = absorb(evidence, bare.pseudo_rows(prior), np.zeros(len(graph.nodes)))
    return replace(bare, evidence=bare._absorb(evidence, data)).require_finite()
