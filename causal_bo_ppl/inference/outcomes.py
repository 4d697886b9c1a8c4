"""Of which experiments is only the target known?"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import DataError
from causal_bo_ppl.identification import Parameters
from causal_bo_ppl.identification.reduction import reduce_effect
from causal_bo_ppl.inputs import require_outcomes
from causal_bo_ppl.problem import Problem, Queries

LEAST = 16  # outcomes that a program is compiled for, where there are any


class Outcomes(NamedTuple):
    """queries: what was set, over the target's ancestral graph; values: (m,) of the target."""

    queries: Queries
    values: np.ndarray

    def padded(self) -> tuple[Queries, np.ndarray, np.ndarray]:
        """Filled up to a power of two, so that few programs are compiled; and (m,) weights, 0 for padding."""
        count = len(self.values)
        size = max(LEAST, 1 << (count - 1).bit_length()) if count else 0
        mask, value = np.asarray(self.queries.mask), np.asarray(self.queries.value)
        fill = ((0, size - count), (0, 0))
        queries = Queries(np.pad(mask, fill, mode="edge") if count else mask, np.pad(value, fill))
        return queries, np.pad(self.values, fill[0]), np.pad(np.ones(count), fill[0])

    def digest(self) -> int:
        """A sum of the hashes of all outcomes, whatever their order; 0 for none."""
        mask, value = (
            np.asarray(self.queries.mask),
            np.where(self.queries.mask, self.queries.value, 0.0),
        )
        rows = zip(mask, value, self.values, strict=True)
        texts = (
            b"outcome" + kind.tobytes() + at.tobytes() + outcome.tobytes()
            for kind, at, outcome in rows
        )
        return sum(int.from_bytes(hashlib.sha256(text).digest()) for text in texts)


def no_outcomes(variables: int) -> Outcomes:
    """None."""
    return Outcomes(Queries(np.zeros((0, variables), bool), np.zeros((0, variables))), np.zeros(0))


def read_outcomes(
    problem: Problem,
    parameters: Parameters,
    given: tuple[Queries, Sequence[float] | np.ndarray] | None,
) -> Outcomes:
    """Check interventions and outcomes, and cut them to the target and its causes."""
    causes = problem.graph.ancestral(problem.target).nodes
    if given is None:
        return no_outcomes(len(causes))
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], Queries):
        raise DataError(
            f"outcomes are a pair (queries, values), got {type(given).__name__}; see problem.queries"
        )
    queries = problem.require(given[0])
    values = np.array(given[1])
    if values.dtype.kind not in "iuf":
        raise DataError(
            f"the outcomes' values must be numbers, one for each intervention; got {values.dtype}"
        )
    values = values.astype(float)
    if values.shape != (len(queries),) or not np.isfinite(values).all():
        raise DataError(
            f"{len(queries)} interventions need as many finite outcomes; got an array of shape {values.shape} "
            f"with {int((~np.isfinite(values)).sum())} that are not finite"
        )
    require_outcomes(values)
    columns = [problem.graph.index(name) for name in causes]
    mask, value = np.asarray(queries.mask)[:, columns], np.asarray(queries.value)[:, columns]
    _require_learned(parameters, causes, mask)
    return Outcomes(Queries(mask, value), values)


def _require_learned(parameters: Parameters, causes: tuple[str, ...], mask: np.ndarray) -> None:
    """Refuse outcomes that depend on an equation which no set of the problem uses."""
    graph, target, _, reductions, _ = parameters.explored
    learned = {name for reduction in reductions for name in reduction.open}
    for row in np.unique(mask, axis=0):
        members = [name for name, is_set in zip(causes, row, strict=True) if is_set]
        missing = [
            name for name in reduce_effect(graph, target, members).open if name not in learned
        ]
        if missing:
            what = f"do({', '.join(members)})" if members else "doing nothing"
            raise DataError(
                f"an outcome of {what} depends on the equation of {missing[0]!r}, which no set of the problem needs; "
                "add that set to the problem, or give the whole row as data"
            )
