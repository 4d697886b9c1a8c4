"""What is a causal system whose truth is known? Its problem, generator and exact effects."""

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.errors import DataError, ModelError
from causal_bo_ppl.inputs import as_key, read_count, require_float64
from causal_bo_ppl.mechanisms.simulation import simulate
from causal_bo_ppl.numerics import first_smallest
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import Interventions
from causal_bo_ppl.systems.search import best_of_each_set, best_vertices


class Optimum(NamedTuple):
    """The best intervention of a problem, its exact effect, and how it was found."""

    value: float
    intervention: dict[str, float]
    how: str


@dataclass(frozen=True, eq=False)
class CausalSystem:
    """A causal system with known truth.

    model: NumPyro program of the truth; every variable of the graph is a site of its name. It runs
        once for a whole batch, inside a plate: each site holds one number per row, shape (M,).
        Several threads may simulate; their programs run one after the other.
    response: returns the exact E[Y | do(...)] of a batch of legal queries, an array of shape (M,);
        `effect` calls it and checks what goes in and comes out.
    is_affine: whether the response is affine in the values of each set, so that its optimum is at
        a vertex.
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
        rows = read_count("the number of rows", n, 0, DataError)
        return self._rows(self.problem.baseline().repeat(rows), key)

    def experiment(self, queries: Queries | Interventions, key: jax.Array | int) -> Data:
        """Draw one row under each intervention."""
        return self._rows(self.problem.require(queries), key)

    def _rows(self, queries: Queries, key: jax.Array | int) -> Data:
        nodes = self.problem.graph.nodes
        values = (
            simulate(self.model, nodes, queries, as_key(key))
            if len(queries)
            else np.empty((0, len(nodes)))
        )
        return Data(nodes, self.problem.target, np.asarray(values), np.asarray(queries.mask))

    def effect(self, queries: Queries | Interventions) -> np.ndarray:
        """Return the exact effects E[Y | do(...)], an array of shape (M,).

        The effect of a query that sets nothing is the observational mean.
        """
        require_float64()
        queries = self.problem.require(queries)
        raw = np.asarray(self.response(queries))
        if raw.shape != (len(queries),) or raw.dtype.kind not in "iuf":
            raise ModelError(
                f"the response of {self.name!r} has shape {raw.shape} and dtype {raw.dtype} for "
                f"{len(queries)} queries; it must return one real number for each"
            )
        effects = raw.astype(float)
        bad = np.flatnonzero(~np.isfinite(effects))
        if len(bad):
            [intervention] = self.problem.interventions(queries[bad[0]])
            raise ModelError(
                f"the response of {self.name!r} to {intervention} is {effects[bad[0]]}; "
                "it must be finite"
            )
        return effects

    @cached_property
    def optimum(self) -> Optimum:
        """Best intervention over all sets; of equally good ones the first in order of `sets`."""
        if self.is_affine:
            queries = best_vertices(self.problem, self.effect)
            count = sum(2 ** len(members) for members in self.problem.sets)
            how = f"exact, over the {count:,} vertices of {len(self.problem.sets)} sets"
        else:
            queries = best_of_each_set(self.problem, self.effect)
            how = (
                f"grid and pattern search of the exact response over {len(self.problem.sets)} sets"
            )
        effects = np.asarray(self.effect(queries))
        best = first_smallest(effects if self.problem.objective == "min" else -effects)
        return Optimum(float(effects[best]), self.problem.interventions(queries[best])[0], how)

    def __repr__(self) -> str:
        return f"CausalSystem({self.name!r}, {self.problem!r})"

    def _repr_html_(self) -> str:
        title = f"<h4>{html.escape(self.name)}</h4><p>{html.escape(self.source)}</p>"
        return title + self.problem._repr_html_()
