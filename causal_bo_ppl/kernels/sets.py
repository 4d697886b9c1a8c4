"""Which queries of a batch belong to which intervention set?"""

from typing import NamedTuple

import numpy as np

from causal_bo_ppl.identification.coordinates import set_label
from causal_bo_ppl.problem import Problem
from causal_bo_ppl.queries import Queries, distinct_rows


class Sets(NamedTuple):
    """The sets of a batch, ordered by the graph: by their first member in causal order, then by the next.

    labels: their names. rows: of each, which queries belong to it.
    """

    labels: tuple[str, ...]
    rows: tuple[np.ndarray, ...]

    @property
    def order(self) -> np.ndarray:
        """(M,) all queries, set after set."""
        return np.concatenate([np.zeros(0, int), *self.rows])


def split_sets(problem: Problem, queries: Queries) -> Sets:
    """The sets of a batch."""
    mask = np.asarray(problem.require(queries).mask)
    first, which = distinct_rows(mask)
    members = [tuple(np.flatnonzero(mask[row]).tolist()) for row in first]
    order = sorted(range(len(first)), key=lambda place: members[place])
    labels = tuple(set_label(tuple(problem.graph.nodes[node] for node in members[place])) for place in order)
    return Sets(labels, tuple(np.flatnonzero(which == place) for place in order))
