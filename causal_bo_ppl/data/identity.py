"""Are these the rows of this problem, and the same rows as before?"""

import hashlib

from causal_bo_ppl.data.data import Data, Posed
from causal_bo_ppl.errors import DataError, listed


def digest(rows: Data) -> int:
    """Return a sum of the hashes of all rows: the same in any order, and of parts the sum."""
    total = 0
    for values, intervened in zip(rows.values, rows.intervened, strict=True):
        total += int.from_bytes(hashlib.sha256(values.tobytes() + intervened.tobytes()).digest())
    return total % 2**256


def require_rows_of(problem: Posed, rows: Data) -> None:
    """Refuse rows of another graph."""
    if (rows.nodes, rows.target) != (problem.graph.nodes, problem.target):
        raise DataError(
            f"the rows are of {listed(rows.nodes)} with the target {rows.target!r}, the problem "
            f"has {listed(problem.graph.nodes)} and {problem.target!r}; read them for this problem"
        )
