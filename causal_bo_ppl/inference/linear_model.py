"""How do a graph, a prior and rows become the arguments of the linear model's density?

The posterior of every equation on its own, as if no latent cause joined any, says where to start and how wide to look.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import numpy as np

from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import ModelError
from causal_bo_ppl.graph import CausalGraph, Edge
from causal_bo_ppl.inference.draws import Models
from causal_bo_ppl.inference.equations import Equations, learn_equations
from causal_bo_ppl.inference.noise import outcome_densities
from causal_bo_ppl.inference.outcomes import Outcomes
from causal_bo_ppl.mechanisms.linear import density as density
from causal_bo_ppl.mechanisms.linear.density import Before, Chart, Seen, Shape
from causal_bo_ppl.mechanisms.linear.priors import FixedPrior, MomentPrior, Prior, ScaledPrior
from causal_bo_ppl.mechanisms.linear.readout import Readout
from causal_bo_ppl.problem.queries import distinct_rows

Sites = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The linear SEM of the target's ancestral graph with its rows; follows: see `sem.linear_density`."""

    graph: CausalGraph
    known: Mapping[Edge, float]
    intercepts: bool
    prior: ScaledPrior | FixedPrior
    readout: Readout
    data: Data
    outcomes: Outcomes
    follows: bool = True

    @cached_property
    def equations(self) -> Equations:
        """Every equation by its own regression."""
        return learn_equations(
            self.graph, self.known, self.intercepts, self.prior, self.readout, self.data
        )

    @cached_property
    def shape(self) -> Shape:
        """What is compiled."""
        return self.equations.shape(self.follows)

    @cached_property
    def arguments(self) -> tuple[Chart, Before, Seen]:
        """Of the density; arrays only, so that new rows compile nothing."""
        return self._chart(), self.equations.before, self._seen()

    def _chart(self) -> Chart:
        found, needed = self.equations.posterior, self.equations.needed
        if self.shape.known_noise:
            log_sd, width = 0.5 * np.log(found.variance[needed]), np.zeros(needed.sum())
        else:
            log_sd = 0.5 * np.log(found.rate[needed] / found.shape[needed])
            width = 0.5 / np.sqrt(found.shape[needed])
        arc_width = np.asarray(1 / np.sqrt(1.0 + len(self.data)))
        return Chart(found.mean[needed], found.root[needed], log_sd, width, arc_width)

    def _seen(self) -> Seen:
        columns = [self.data.nodes.index(name) for name in self.graph.nodes]
        values, free = self.data.values[:, columns], ~self.data.intervened[:, columns]
        first, which = distinct_rows(free)
        whole, size = np.column_stack([values, np.ones(len(values))]), len(columns) + 1
        groups = _power_of_two(len(first))
        factor, frees, rows = (
            np.zeros((groups, size, size)),
            np.zeros((groups, size - 1)),
            np.zeros(groups),
        )
        for place, at in enumerate(first):
            part = np.linalg.qr(whole[which == place], mode="r")
            factor[place, : len(part)] = part
            frees[place], rows[place] = free[at], (which == place).sum()
        return Seen(factor, frees, rows, *self.outcomes.padded())

    def models(self, flat: np.ndarray) -> Models:
        """Parameters at coordinates (n, k)."""
        work = partial(_models, self.shape, *self.arguments[:2])
        matrices, noises = in_pieces(work, np.asarray(flat), len(flat))
        return Models(np.asarray(matrices), np.asarray(noises))

    def log_parts(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) log prior and (n,) log likelihood at coordinates (n, k)."""
        prior, likelihood = in_pieces(
            partial(_log_parts, self.shape, self.arguments), np.asarray(flat), len(flat)
        )
        return np.asarray(prior), np.asarray(likelihood)

    def told(self, models: Models) -> np.ndarray | None:
        """(n, m) log densities of the outcomes under models; None without any."""
        if not len(self.outcomes.values):
            return None
        return outcome_densities(models, self.outcomes.queries, self.outcomes.values)

    @property
    def dimension(self) -> int:
        """Number of coordinates."""
        return sum(self.shape.sites.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each coordinate moves."""
        nodes = (*self.graph.nodes, "1")
        learned = [self.graph.nodes[place] for place in self.shape.equations]
        pairs = zip(*self.shape.places, strict=True)
        found = [f"b[{nodes[cause]}->{nodes[effect]}]" for cause, effect in pairs]
        found += [] if self.shape.known_noise else [f"sd[{name}]" for name in learned]
        return (*found, *(f"t[{nodes[one]}<->{nodes[other]}]" for one, other in self.shape.arcs))

    def with_rows(self, rows: Data) -> "LinearModel":
        """The same model with more rows."""
        return replace(self, data=self.data.join(rows))


def split(shape: Shape, flat: jax.Array) -> Sites:
    """A flat vector (k,) as the sites of the density."""
    sizes = shape.sites
    ends = np.cumsum(list(sizes.values()))
    return {
        name: flat[end - sizes[name] : end] for name, end in zip(sizes, ends.tolist(), strict=True)
    }


@partial(jax.jit, static_argnames="shape")
def _models(
    shape: Shape, chart: Chart, before: Before, flat: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        point = density.read(shape, chart, before.fixed, split(shape, row))
        root = density.noise_root(shape, point)
        return point.matrix, root @ root.T

    found: tuple[jax.Array, jax.Array] = jax.vmap(one)(flat)
    return found


@partial(jax.jit, static_argnames="shape")
def _log_parts(
    shape: Shape, arguments: tuple[Chart, Before, Seen], flat: jax.Array
) -> tuple[jax.Array, jax.Array]:
    chart, before, seen = arguments

    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        point = density.read(shape, chart, before.fixed, split(shape, row))
        return density.log_prior(shape, before, point), density.log_likelihood(shape, seen, point)

    found: tuple[jax.Array, jax.Array] = jax.vmap(one)(flat)
    return found


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def make_linear_model(
    graph: CausalGraph,
    known: Mapping[Edge, float],
    intercepts: bool,
    prior: Prior,
    readout: Readout,
    data: Data,
    outcomes: Outcomes,
) -> LinearModel:
    """The model; graph: the target's ancestral graph."""
    if isinstance(prior, MomentPrior):
        raise ModelError(
            "a MomentPrior is for method='wishart'; this method takes a ScaledPrior or a FixedPrior"
        )
    if isinstance(prior, FixedPrior):
        prior.require_no_known(known)
    return LinearModel(graph, known, intercepts, prior, readout, data, outcomes)
