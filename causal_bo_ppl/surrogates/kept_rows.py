"""Which effects were linearized before? Offsets and features, kept by centre and query.

A round asks for the same queries again and again: the candidates of a search with one bound and
with a wider one, what was found, what was tried. Offsets and features depend on the centre and on
the query alone, not on outcomes nor on the acquisition, so that each is computed once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from causal_bo_ppl.problem import Queries

CENTRES = 3  # besides 0, at which outcomes are weighed in every round
MOST = 4_096  # queries of one centre
Linearized = tuple[np.ndarray, np.ndarray]
Row = tuple[float, np.ndarray]


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Offsets and features of the queries at each of a few centres."""

    _centres: dict[bytes, dict[bytes, Row]] = field(default_factory=dict, repr=False)

    def at(
        self, centre: np.ndarray, queries: Queries, compute: Callable[[Queries], Linearized]
    ) -> Linearized:
        """Return offsets (M,) and features (M, r) of a batch, of which only new rows are computed.

        Parameters
        ----------
        centre:
            Weights at which the response is linearized.
        queries:
            M interventions.
        compute:
            Function of queries that returns their offsets and features at this centre.
        """
        keys, known = _row_keys(queries), self._of_centre(centre)
        new: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if key not in known:
                new.setdefault(key, row)
        if len(new) == len(keys):
            offsets, features = compute(queries)
            self._keep(known, keys, offsets, features)
            return offsets, features
        fresh: dict[bytes, Row] = {}
        if new:
            offsets, features = compute(queries[np.array(list(new.values()))])
            self._keep(known, list(new), offsets, features)
            fresh.update(zip(new, zip(offsets.tolist(), features, strict=True), strict=True))
        rows = [fresh[key] if key in fresh else known[key] for key in keys]
        return np.array([row[0] for row in rows]), np.stack([row[1] for row in rows])

    def _of_centre(self, centre: np.ndarray) -> dict[bytes, Row]:
        """Return what is kept of a centre; the oldest ones are forgotten, but for 0."""
        name = (np.asarray(centre, float) + 0.0).tobytes()
        if name not in self._centres:
            others = [each for each in list(self._centres) if any(each)]
            for oldest in others[: max(len(others) - CENTRES + 1, 0)]:
                self._centres.pop(oldest, None)
        return self._centres.setdefault(name, {})

    def _keep(
        self, known: dict[bytes, Row], keys: list[bytes], offsets: np.ndarray, features: np.ndarray
    ) -> None:
        if len(known) + len(keys) <= MOST:
            known.update(zip(keys, zip(offsets.tolist(), features, strict=True), strict=True))


def _row_keys(queries: Queries) -> list[bytes]:
    """Return one text of bytes for each query, equal where set variables and values are."""
    mask = np.ascontiguousarray(queries.mask, bool)
    value = np.where(mask, np.asarray(queries.value, float), 0.0) + 0.0
    whole = np.concatenate([mask.view(np.uint8), value.view(np.uint8)], axis=1)
    text, width = whole.tobytes(), whole.shape[1]
    return [text[start : start + width] for start in range(0, len(text), width)]
