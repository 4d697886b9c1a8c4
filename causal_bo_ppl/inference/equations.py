"""What do complete rows say about the equations upstream of the target? Conjugate, where no latent cause joins them.

Given complete rows the equations are independent: each is a regression on its parents, over the rows in which its
variable was not set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DomainError, ModelError, NumericalError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inference.convergence import Limits, exact_lines
from causal_bo_ppl.inference.draws import CHAINS, Drawn, Models, even
from causal_bo_ppl.inference.methods import needed_equations
from causal_bo_ppl.mechanisms.linear import regressions
from causal_bo_ppl.mechanisms.linear.density import Before, Shape
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, Prior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.readout import Readout
from causal_bo_ppl.mechanisms.linear.regressions import Evidence, NormalInverseGamma
from causal_bo_ppl.mechanisms.linear.sem import LinearSEM, adjoint, known_matrix
from causal_bo_ppl.problem import Queries


@dataclass(frozen=True, eq=False)
class Equations:
    """Normal-inverse-gamma posteriors of all equations of an ancestral graph, whose last node is the target.

    readout: how theta_Y is read off them.
    """

    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    readout: Readout
    evidence: Evidence

    settings = ""
    verdict = "exact"

    @cached_property
    def free_parents(self) -> tuple[tuple[str, ...], ...]:
        """Of each node, the parents whose coefficients are unknown."""
        return tuple(
            tuple(parent for parent in self.graph.parents(node) if (parent, node) not in self.known)
            for node in self.graph.nodes
        )

    @cached_property
    def needed(self) -> np.ndarray:
        """(E,) whether some effect depends on the equation or on its district's; the others are not learned."""
        return needed_equations(self.readout.parameters, self.graph)

    @cached_property
    def causes(self) -> np.ndarray:
        """(E, D) place of each regressor among the nodes: p for the constant 1, -1 for padding."""
        constant = [len(self.graph.nodes)] if self.intercepts else []
        rows = [
            constant + [self.graph.index(name) for name in parents] if is_needed else []
            for parents, is_needed in zip(self.free_parents, self.needed, strict=True)
        ]
        width = max(map(len, rows))
        return np.array([row + [-1] * (width - len(row)) for row in rows], int).reshape(
            len(rows), width
        )

    @cached_property
    def posterior(self) -> NormalInverseGamma:
        """Of every equation; one that is not needed has no variance."""
        used = self.causes >= 0
        if isinstance(self.prior, ScaledPrior):
            found = regressions.solve_scaled(self.evidence, used, self.intercepts, self.prior.rows)
        else:
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            found = regressions.solve_fixed(self.evidence, used, guess, self.prior.noise_rows)
        shape, variance = (
            np.where(self.needed, part, fill)
            for part, fill in ((found.shape, 1.0), (found.variance, np.nan))
        )
        return found._replace(shape=shape, variance=variance)

    def shape(self, follows: bool) -> Shape:
        """What the density of these equations is compiled for; follows: see `sem.linear_density`."""
        needed = np.flatnonzero(self.needed)
        learned = set(needed.tolist())
        pairs = [
            (self.graph.index(one), self.graph.index(other)) for one, other in self.graph.bidirected
        ]
        return Shape(
            size=len(self.graph.nodes),
            equations=tuple(needed.tolist()),
            causes=tuple(tuple(row[row >= 0].tolist()) for row in self.causes[needed]),
            arcs=tuple(pair for pair in pairs if learned.issuperset(pair)),
            known_noise=isinstance(self.prior, FixedPrior)
            and bool(np.isinf(self.prior.noise_rows)),
            follows=follows,
        )

    @cached_property
    def before(self) -> Before:
        """The prior as the density takes it."""
        if isinstance(self.prior, ScaledPrior):
            used = self.causes >= 0
            parts = regressions.scaled_prior(self.evidence, used, self.intercepts, self.prior.rows)
            latent = self.prior.rows
        else:
            latent = self.prior.latent_sd**-2
            rows = np.swapaxes(self.prior_rows(self.prior), 0, 1)
            guess = np.array([self.prior.noise_guess(node) for node in self.graph.nodes])
            worth = 0.0 if np.isinf(self.prior.noise_rows) else self.prior.noise_rows
            parts = rows[..., :-1], rows[..., -1], np.full(len(guess), worth / 2), worth * guess / 2
        half, pull, shape, rate = (part[self.needed] for part in parts)
        return Before(half, pull, shape, rate, self.fixed, np.asarray(latent))

    @cached_property
    def fixed(self) -> np.ndarray:
        """(p + 1, p) known coefficients; the last row is the intercepts."""
        return known_matrix(self.graph, self.known)

    def place(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients (..., E, D) as matrices (..., p + 1, p), known ones added."""
        used = self.causes >= 0
        found = np.broadcast_to(self.fixed, (*coefficients.shape[:-2], *self.fixed.shape)).copy()
        found[..., self.causes[used], np.nonzero(used)[0]] = coefficients[..., used]
        return found

    @cached_property
    def sem(self) -> LinearSEM:
        """The model at the posterior means."""
        matrix = jnp.asarray(self.place(self.posterior.mean))
        return LinearSEM(matrix[:-1], matrix[-1], jnp.diag(jnp.asarray(self.posterior.variance)))

    @cached_property
    def coefficient_factor(self) -> np.ndarray:
        """(p + 1, p, K): coefficients are their means plus this times K standard directions, some to each equation."""
        size, (equations, width) = len(self.graph.nodes), self.causes.shape
        found = np.zeros((size + 1, size, equations, width))
        for node, causes in enumerate(self.causes):
            used = causes >= 0
            root = np.sqrt(self.posterior.variance[node]) * self.posterior.root[node]
            found[causes[used], node, node] = root[used]
        directions = found.reshape(size + 1, size, equations * width)
        return directions[..., (self.causes >= 0).ravel()]

    @property
    def moments_by(self) -> str:
        """How mean and covariance of theta_Y were found."""
        return "closed form" if self.readout.is_structural else "delta method"

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (d,) of theta_Y, and a factor (d, r) of its covariance."""
        matrix = self.place(self.posterior.mean)
        return self.readout.read(matrix[None])[0], self.readout.push(
            matrix, self.coefficient_factor
        )

    def draw(self, n: int, key: jax.Array) -> np.ndarray:
        """(n, d) exact draws of theta_Y."""
        return self.readout.read(self.place(regressions.draw(self.posterior, n, key)[0]))

    @property
    def learned(self) -> np.ndarray:
        """(k,) of which variables the density is known."""
        return self.needed

    def drawn(self, n: int | None, key: jax.Array) -> Drawn:
        """Exact draws of all, by default 4,000; equations that are not needed have disturbances with sd 1."""
        coefficients, variances = regressions.draw(self.posterior, even(n), key)
        matrices, variances = self.place(coefficients), np.where(self.needed, variances, 1.0)
        noises = variances[:, :, None] * np.eye(len(self.graph.nodes))
        half, pull, shape, rate, *_ = self.before
        inside, spread = coefficients[:, self.needed], variances[:, self.needed]
        misfit = ((np.einsum("ekl,nel->nek", half, inside) - pull) ** 2).sum(axis=-1)
        count = (self.causes[self.needed] >= 0).sum(axis=1)
        log_prior = -0.5 * misfit / spread - 0.5 * count * np.log(spread)
        if np.isfinite(self.posterior.shape[self.needed]).all():
            log_prior = log_prior - (shape + 1) * np.log(spread) - rate / spread
        return Drawn(
            CHAINS, self.readout.read(matrices), Models(matrices, noises), log_prior.sum(axis=1), {}
        )

    def lines(self, limits: Limits) -> pd.DataFrame:
        """Nothing can have failed."""
        return exact_lines("regression of every equation")

    def outcome_variances(self, queries: Queries) -> np.ndarray:
        """(M,) variance of one outcome, l' Omega l over the nodes not set, at the posterior means; queries (M, p)."""
        sweep = partial(adjoint, self.sem, target=len(self.graph.nodes) - 1)
        loads = np.asarray(in_pieces(sweep, np.asarray(queries.mask), len(queries)))
        found = np.where(loads == 0, 0.0, loads**2 * self.posterior.variance).sum(axis=1)
        if np.isnan(found).any():
            raise DomainError(
                "a query needs an equation that no set of the problem uses, so it was not fitted"
            )
        return np.asarray(found)

    def update(self, rows: Data) -> "Equations":
        """The posterior after more rows, observational or not: exactly that of all rows together."""
        return replace(self, evidence=self._absorb(self.evidence, rows)).require_finite()

    def require_finite(self) -> "Equations":
        """Return these equations if their posteriors are finite: otherwise nothing about them is exact."""
        for place in np.flatnonzero(self.needed).tolist():
            parts = (self.posterior.mean, self.posterior.root, self.posterior.variance)
            if not all(np.isfinite(part[place]).all() for part in parts):
                raise NumericalError(
                    f"the posterior of the equation of {self.graph.nodes[place]!r} is not finite, so it is not exact; "
                    "change the units of its variables, or look for values that cannot be"
                )
        return self

    def _absorb(self, evidence: Evidence, data: Data) -> Evidence:
        columns = [data.nodes.index(name) for name in self.graph.nodes]
        whole, free = regressions.compress(data.values[:, columns], ~data.intervened[:, columns])
        values, free = whole[:, :-1], free & self.needed
        padded = np.column_stack([whole, np.zeros(len(whole))])  # causes p, the constant, and -1
        responses = values - values @ self.fixed[:-1]
        rows = (
            np.concatenate([padded[:, self.causes], responses[..., None]], axis=-1)
            * free[..., None]
        )
        return regressions.absorb(evidence, rows, (~data.intervened[:, columns]).sum(axis=0))

    def prior_rows(self, prior: FixedPrior) -> np.ndarray:
        """(D, E, D + 1) rows that say the same as a fixed prior."""
        centres = np.array([prior.centres.get(name, 0.0) for name in self.graph.nodes])
        offsets = centres @ self.fixed[:-1]
        most = self.causes.shape[1]
        rows = np.zeros((most, len(self.graph.nodes), most + 1))
        for place, (node, parents) in enumerate(
            zip(self.graph.nodes, self.free_parents, strict=True)
        ):
            if self.needed[place]:
                found = prior.pseudo_rows(node, parents, float(offsets[place]), self.intercepts)
                rows[: len(found), place, : len(found)], rows[: len(found), place, -1] = (
                    found[:, :-1],
                    found[:, -1],
                )
        return rows


def learn_equations(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: ScaledPrior | FixedPrior,
    readout: Readout,
    data: Data,
) -> Equations:
    """Every equation by its own regression, as if no latent cause joined any."""
    bare = Equations(graph, known, intercepts, prior, readout, Evidence(np.empty(0), np.empty(0)))
    before = regressions.nothing(*bare.causes.shape)
    if isinstance(prior, FixedPrior):
        before = regressions.absorb(
            before, bare.prior_rows(prior), np.zeros(len(graph.nodes))
        )  # not counted as rows
    return replace(bare, evidence=bare._absorb(before, data)).require_finite()


def fit_equations(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: Prior,
    readout: Readout,
    data: Data,
) -> Equations:
    """The conjugate posterior; graph: the target's ancestral graph."""
    if graph.bidirected:
        one, other = graph.bidirected[0]
        raise ModelError(
            f"conjugate regressions would be biased: a latent cause joins {one!r} and {other!r}, upstream of the "
            'target; use method="wishart", which is valid under latent confounding'
        )
    if isinstance(prior, MomentPrior):
        raise ModelError(
            "a MomentPrior is for method='wishart'; conjugate takes a ScaledPrior or a FixedPrior"
        )
    if isinstance(prior, FixedPrior):
        prior.require_no_known(known)
    return learn_equations(graph, known, intercepts, prior, readout, data)
