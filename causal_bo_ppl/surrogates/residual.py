"""A smooth function of its own for every intervention set, for what the mechanisms get wrong.

The residual of the effect of a set s at values x is

    h_s(x) = a sum over members j of u_sj(x_j) / sqrt(|s|),

with independent Gaussian processes u_sj of variance 1 and squared exponential covariances, whose
lengthscale is a share of the width of the member's domain. They are written in a finite basis, and
sets without outcomes need none: their residuals have their prior's variance, about a^2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import chebpts1

from causal_bo_ppl.problem import Problem, Queries

# Lengthscales in widths of a domain, each with its probability before any outcome.
LENGTHS = {0.05: 0.10, 0.1: 0.20, 0.2: 0.30, 0.4: 0.25, 0.8: 0.15}
NODES = 80  # of the grid on which the basis is found
LEAST = 1e-10  # of the largest eigenvalue there: what the basis leaves out


@lru_cache(maxsize=16)
def _projection(length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (n,) in [0, 1], and a matrix (n, m) that takes covariances to basis functions.

    The basis functions are those of Nystrom's method: exact at the nodes, up to `LEAST`.
    """
    nodes = (chebpts1(NODES) + 1) / 2
    sizes, directions = np.linalg.eigh(_covariances(nodes, nodes, length))
    kept = sizes > LEAST * sizes.max()
    return nodes, directions[:, kept] / np.sqrt(sizes[kept])


def _covariances(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * ((left[:, None] - right[None]) / length) ** 2))


def basis(positions: np.ndarray, length: float) -> np.ndarray:
    """Return basis functions (n, m) of one process at positions (n,) in [0, 1]."""
    nodes, projection = _projection(length)
    return np.asarray(_covariances(positions, nodes, length) @ projection)


@dataclass(frozen=True, eq=False)
class Residual:
    """Residuals of all sets, written in a basis for those that have outcomes.

    low, width: (p,) of the domains, beyond which a residual keeps its value at the edge. kinds:
    (S, p), the sets with outcomes as masks. amplitude: a, in units of the target. length: the
    lengthscale, in widths of the domains.
    """

    low: np.ndarray
    width: np.ndarray
    kinds: np.ndarray
    amplitude: float = 1.0
    length: float = 0.2

    def having(self, queries: Queries) -> "Residual":
        """Return the same residual with a basis for the sets of more queries."""
        kinds = np.concatenate([self.kinds, np.asarray(queries.mask)])
        return replace(self, kinds=_distinct(kinds))

    def _members(self) -> Iterator[tuple[np.ndarray, int]]:
        for kind in self.kinds:
            for place in np.flatnonzero(kind):
                yield kind, int(place)

    @property
    def size(self) -> int:
        """The number of basis functions."""
        each = _projection(self.length)[1].shape[1]
        return int(each * self.kinds.sum())

    def _positions(self, value: np.ndarray, place: int) -> np.ndarray:
        return np.asarray(np.clip((value[:, place] - self.low[place]) / self.width[place], 0, 1))

    def features(self, queries: Queries) -> np.ndarray:
        """Return features (M, m): the residual is their product with m standard weights."""
        mask, value = np.asarray(queries.mask), np.asarray(queries.value)
        found, each = np.zeros((len(mask), self.size)), _projection(self.length)[1].shape[1]
        rows = {kind.tobytes(): np.flatnonzero((mask == kind).all(axis=1)) for kind in self.kinds}
        for at, (kind, place) in enumerate(self._members()):
            own = rows[kind.tobytes()]
            scale = self.amplitude / np.sqrt(kind.sum())
            part = basis(self._positions(value[own], place), self.length)
            found[own, at * each : (at + 1) * each] = scale * part
        return found

    def blocks(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the features set by set, for sets of one size with about as many queries at once.

        Each pair holds the rows (S, T) of S sets, -1 where they are filled up, and the features
        (S, T, m) of these sets' own weights, 0 there.
        """
        mask = np.asarray(queries.mask)
        found: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        for kind in self.kinds:
            rows = np.flatnonzero((mask == kind).all(axis=1))
            if len(rows):
                own = replace(self, kinds=kind[None]).features(queries[rows])
                size = 1 << (len(rows) - 1).bit_length()
                filled = np.concatenate([rows, np.full(size - len(rows), -1)])
                more = np.zeros((size - len(rows), own.shape[1]))
                found.setdefault((size, own.shape[1]), []).append(
                    (filled, np.concatenate([own, more]))
                )
        return [
            (np.stack([rows for rows, _ in group]), np.stack([own for _, own in group]))
            for group in found.values()
        ]

    def unexplored(self, queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return rows and features (n, m) of the queries of each set without outcomes.

        An intervention that sets nothing is no experiment and has no residual.
        """
        mask, known = np.asarray(queries.mask), {kind.tobytes() for kind in self.kinds}
        found = []
        for kind in _distinct(mask):
            if kind.tobytes() not in known:
                rows = np.flatnonzero((mask == kind).all(axis=1))
                found.append((rows, replace(self, kinds=kind[None]).features(queries[rows])))
        return found

    def unexplored_variances(self, queries: Queries) -> np.ndarray:
        """Return the variances (M,) of residuals of sets without outcomes; 0 for the others."""
        mask, known = np.asarray(queries.mask), {kind.tobytes() for kind in self.kinds}
        is_new = np.array([row.any() and row.tobytes() not in known for row in mask], bool)
        return np.where(is_new, self.amplitude**2, 0.0)


def begin_residual(problem: Problem) -> Residual:
    """Return the residual of a problem before any outcome."""
    nodes = problem.graph.nodes
    bounds = np.array([problem.domains.get(name, (0.0, 1.0)) for name in nodes], float)
    kinds = np.zeros((0, len(nodes)), bool)
    return Residual(bounds[:, 0], bounds[:, 1] - bounds[:, 0], kinds)


def _distinct(kinds: np.ndarray) -> np.ndarray:
    """Return distinct masks that set something, in the order in which they first appear."""
    found = {kind.tobytes(): kind for kind in kinds if kind.any()}
    return np.array(list(found.values()), bool).reshape(-1, kinds.shape[1])
