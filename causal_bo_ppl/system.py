"""The record of a causal system whose truth is known: its problem, its generator, its exact effects."""

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl import designs
from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.keys import as_key
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries
from causal_bo_ppl.sem.simulation import simulate

FIRST_GRID, NEXT_GRID = 10_000, 300  # points of the grids of the search, whatever the number of variables
NARROWEST = 1e-9  # of a domain's width: where the successive grids stop


class Optimum(NamedTuple):
    """The best intervention of a problem, its exact effect, and how it was found."""

    value: float
    intervention: dict[str, float]
    how: str


@dataclass(frozen=True, eq=False)
class CausalSystem:
    """A causal system with known truth.

    model: NumPyro program of the truth; every variable of the graph is a site of its name.
    response: exact E[Y | do(...)] of a batch of legal queries, (M,); `effect` is its checked door.
    is_affine: whether the response is affine in the values of each set, so that a vertex is optimal.
    source: where the numbers come from.
    """

    name: str
    problem: Problem
    model: Callable[[], object]
    response: Callable[[Queries], jax.Array]
    is_affine: bool
    source: str

    def observe(self, n: int, key: jax.Array | int) -> Data:
        """Draw n observational rows."""
        if n < 0:
            raise DataError(f"cannot observe {n} rows; ask for 0 or more")
        return self._rows(self.problem.baseline().repeat(n), key)

    def experiment(self, queries: Queries, key: jax.Array | int) -> Data:
        """One row for each intervention."""
        return self._rows(self.problem.require(queries), key)

    def _rows(self, queries: Queries, key: jax.Array | int) -> Data:
        nodes = self.problem.graph.nodes
        values = simulate(self.model, nodes, queries, as_key(key)) if len(queries) else np.empty((0, len(nodes)))
        return Data(nodes, self.problem.target, np.asarray(values), np.asarray(queries.mask))

    def effect(self, queries: Queries) -> jax.Array:
        """(M,) exact E[Y | do(...)]; what sets nothing has the observational mean."""
        found = self.response(self.problem.require(queries))
        if found.shape != (len(queries),):
            raise ModelError(f"the response of {self.name!r} has shape {found.shape} for {len(queries)} queries")
        return found

    @cached_property
    def optimum(self) -> Optimum:
        """The best intervention over all sets; of equally good ones the first in the order of `sets`."""
        if self.is_affine:
            queries = self.problem.vertices()
            how = f"exact, over the {len(queries):,} vertices of {len(self.problem.sets)} sets"
        else:
            queries = self._search()
            how = f"successive grids of the exact response, {len(self.problem.sets)} sets"
        effects = np.asarray(self.effect(queries))
        signed = effects if self.problem.objective == "min" else -effects
        best = int(np.flatnonzero(signed <= signed.min() + 1e-10 * (1 + abs(signed.min())))[0])
        return Optimum(float(effects[best]), self.problem.interventions(queries[best])[0], how)

    def _search(self) -> Queries:
        """The best query of every set, by grids that close in on the best point so far."""
        return self.problem.queries([self._search_set(members) for members in self.problem.sets])

    def _search_set(self, members: tuple[str, ...]) -> dict[str, float]:
        sign = 1.0 if self.problem.objective == "min" else -1.0
        outer = np.array([self.problem.domains[name] for name in members])
        box, rows = outer, FIRST_GRID
        while True:
            points = max(round(rows ** (1 / len(members))), 5)
            bounds = {name: (low, high) for name, (low, high) in zip(members, box.tolist(), strict=True)}
            queries = designs.spread(self.problem.graph.nodes, [members], bounds, designs.lattice(points), rows)
            best = queries[int(np.argmin(sign * np.asarray(self.effect(queries))))]
            centre = np.array([best.value[0, self.problem.graph.index(name)] for name in members])
            if (np.ptp(box, axis=1) <= NARROWEST * np.ptp(outer, axis=1)).all():
                return dict(zip(members, centre.tolist(), strict=True))
            cells = 2 * np.ptp(box, axis=1) / (points - 1)
            box = np.clip(np.array([centre - cells, centre + cells]).T, outer[:, :1], outer[:, 1:])
            rows = NEXT_GRID

    def __repr__(self) -> str:
        return f"CausalSystem({self.name!r}, {self.problem!r})"

    def _repr_html_(self) -> str:
        return f"<h4>{html.escape(self.name)}</h4><p>{html.escape(self.source)}</p>{self.problem._repr_html_()}"
