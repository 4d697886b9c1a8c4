"""Linear equations, each learned by its own regression in closed form.

Given complete rows the equations are independent where no latent cause joins them: each is a
regression on its parents, over the rows in which its variable was not set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import NumericalError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.mechanisms.interfaces import Coefficients, RowInformation
from causal_bo_ppl.mechanisms.linear.density import PriorTerms, Spec
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.regressions import (
    Evidence,
    NormalInverseGamma,
    absorb,
    compress_data,
    draw_equations,
    no_evidence,
    scaled_prior,
    solve_fixed,
    solve_scaled,
)
from causal_bo_ppl.mechanisms.linear.sem import Models, known_matrix, second_moments
from causal_bo_ppl.problem import Queries


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

    def place(self, coefficients: np.ndarray) -> np.ndarray:
        """Return coefficients (..., p, D) as matrices (..., p + 1, p), known ones added."""
        used = self.causes >= 0
        shape = (*coefficients.shape[:-2], *self.fixed.shape)
        matrices = np.broadcast_to(self.fixed, shape).copy()
        matrices[..., self.causes[used], np.nonzero(used)[0]] = coefficients[..., used]
        return matrices

    @cached_property
    def coefficients(self) -> Coefficients:
        """Mean and covariance roots of the coefficients of each equation."""
        mean = self.place(self.posterior.mean)
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

    def row_information(self, queries: Queries) -> RowInformation:
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
        places = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
        return RowInformation(blocks, places)

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
        return Models(self.place(coefficients), noises), log_prior.sum(axis=1)

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
        for place in np.flatnonzero(self.needed).tolist():
            if not all(np.isfinite(part[place]).all() for part in parts):
                raise NumericalError(
                    f"the posterior of the equation of {self.graph.nodes[place]!r} is not finite, "
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
        for place, (node, parents) in enumerate(
            zip(self.graph.nodes, self.free_parents, strict=True)
        ):
            if self.needed[place]:
                same = prior.pseudo_rows(node, parents, float(offsets[place]), self.intercepts)
                rows[: len(same), place, : len(same)] = same[:, :-1]
                rows[: len(same), place, -1] = same[:, -1]
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
