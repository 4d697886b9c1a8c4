"""Which interventions are meant? A batch of M interventions is two arrays of shape (M, p)."""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import jax
import numpy as np
import pandas as pd
from jax.typing import ArrayLike

from causal_bo_ppl.errors import DomainError, listed, unknown
from causal_bo_ppl.graph.admg import set_label as set_label
from causal_bo_ppl.inputs import read_list, read_number

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Queries:
    """M interventions on p variables, in the order of the graph's nodes.

    mask: (M, p) bool, which variables are set. value: (M, p) float, to what; 0 where not set.
    `len(queries)` is M; indices, slices and index arrays select interventions, and a loop yields
    one at a time. Passes through `jax.jit`.
    """

    mask: jax.Array | np.ndarray
    value: jax.Array | np.ndarray

    names: ClassVar[tuple[str, ...]] = ()  # of the variables, where a problem made it; shown only

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __getitem__(self, index: slice | ArrayLike) -> "Queries":
        chosen = index if isinstance(index, slice) else np.atleast_1d(np.asarray(index))
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(int)
        selected = Queries(np.asarray(self.mask)[chosen], np.asarray(self.value)[chosen])
        return named(selected, self.names)

    def __iter__(self) -> Iterator["Queries"]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Queries({len(self)} interventions on {self.mask.shape[-1]} variables)"

    def repeat(self, times: int) -> "Queries":
        """Return the batch with `times` consecutive replicates of each intervention."""
        return self[np.repeat(np.arange(len(self)), times)]

    def _repr_html_(self) -> str:
        mask = np.asarray(self.mask)
        names = self.names or [f"variable {column + 1}" for column in range(mask.shape[1])]
        values = np.where(mask, np.asarray(self.value), np.nan)
        table = pd.DataFrame(values, columns=[f"do({name})" for name in names])
        table = table.dropna(axis="columns", how="all")
        shown = table.to_html(max_rows=60, float_format="{:.6g}".format, na_rep="")
        return f"<p>{html.escape(repr(self))}</p>{shown}"


def named(queries: Queries, names: Sequence[str]) -> Queries:
    """Return the same batch, which shows itself with the names of its variables."""
    if not names or tuple(names) == queries.names:
        return queries
    labelled = Queries(queries.mask, queries.value)
    object.__setattr__(labelled, "names", tuple(names))
    return labelled


def stack(batches: Iterable[Queries]) -> Queries:
    """Join several batches into one, in the order given."""
    parts = list(batches)
    joined = Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
    )
    return named(joined, parts[0].names)


def distinct_rows(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the distinct rows of a boolean array of shape (M, p).

    Bits are packed into words, which sort much faster than rows; of a run of equal rows only the
    first is sorted.

    Returns
    -------
    first: the index of the first row of each kind, an array of shape (k,).
    which: for every row the position of its kind in `first`, an array of shape (M,).
    """
    starts = np.flatnonzero(np.append(True, (mask[1:] != mask[:-1]).any(axis=1)))[: len(mask)]
    bits = np.packbits(mask[starts], axis=1)
    words = np.ascontiguousarray(np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))).view(np.uint64)
    keys = words[:, 0] if words.shape[1] == 1 else words
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    lengths = np.diff(np.append(starts, len(mask)))
    return starts[first], np.repeat(which.reshape(-1), lengths)


def split_by_set(queries: Queries) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield every set of a batch: its mask (p,) as bytes, and the indices of its queries."""
    mask = np.ascontiguousarray(queries.mask, bool)
    first, which = distinct_rows(mask)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(first)))
    for index, indices in zip(first, np.split(order, ends)[:-1], strict=True):
        yield mask[index].tobytes(), indices


Interventions = Mapping[str, float] | Sequence[Mapping[str, float]]


def read_interventions(problem: "Problem", given: object) -> Queries:
    """Return a batch of interventions, given as Queries, as one mapping or as several.

    `{}` sets nothing; its effect is the observational mean of the target.

    Raises
    ------
    DomainError
        If these are no interventions, or one of them is not legal.
    """
    if isinstance(given, Queries):
        return problem.require(given)
    batches = [problem.queries(one) if one else problem.baseline() for one in _as_list(given)]
    return stack([problem.baseline()[:0], *batches])


class Sets(NamedTuple):
    """The sets of a batch, ordered by their first member in causal order, then by the next.

    labels: the name of each set. indices: for each set, the indices of its queries.
    """

    labels: tuple[str, ...]
    indices: tuple[np.ndarray, ...]

    @property
    def order(self) -> np.ndarray:
        """Indices of all queries, set after set, an array of shape (M,)."""
        return np.concatenate([np.zeros(0, int), *self.indices])


def split_sets(problem: "Problem", queries: Queries) -> Sets:
    """Return the sets of a batch, and which queries belong to each."""
    mask = np.asarray(problem.require(queries).mask)
    first, which = distinct_rows(mask)
    members = [tuple(np.flatnonzero(mask[row]).tolist()) for row in first]
    order = sorted(range(len(first)), key=lambda position: members[position])
    labels = tuple(
        set_label(tuple(problem.graph.nodes[node] for node in members[position]))
        for position in order
    )
    return Sets(labels, tuple(np.flatnonzero(which == position) for position in order))


def labels(problem: "Problem", queries: Queries) -> list[str]:
    """Return the interventions as texts, with enough digits to distinguish different ones."""
    asked = problem.interventions(queries)
    different = len({tuple(intervention.items()) for intervention in asked})
    for digits in (4, 6, 9, 12, 17):
        texts = [
            f"do({', '.join(f'{name} = {x:.{digits}g}' for name, x in intervention.items())})"
            if intervention
            else "nothing set"
            for intervention in asked
        ]
        if len(set(texts)) == different:
            break
    return texts


def read_mappings(
    interventions: object, nodes: Sequence[str], manipulable: Sequence[str]
) -> Queries:
    """Return mappings {variable: value} as a batch, in their order; values are not yet checked."""
    mappings = _as_list(interventions)
    mask, value = np.zeros((len(mappings), len(nodes)), bool), np.zeros((len(mappings), len(nodes)))
    for index, intervention in enumerate(mappings):
        if not intervention:
            raise DomainError(
                f"intervention {index} is missing its variables; doing nothing is observing: "
                "use problem.baseline()"
            )
        for name, number in intervention.items():
            if not isinstance(name, str) or name not in manipulable:
                raise DomainError(unknown("manipulable variable", name, manipulable))
            column = nodes.index(name)
            mask[index, column], value[index, column] = True, read_number(name, number)
    return named(Queries(mask, value), nodes)


def _as_list(interventions: object) -> list[Mapping[str, float]]:
    """Return one mapping or several as a list; refuse anything else."""
    given = [interventions] if isinstance(interventions, Mapping) else read_list(interventions)
    if given is None or not all(isinstance(one, Mapping) for one in given):
        got = repr(interventions) if given is None else listed(given, most=3)
        raise DomainError(
            "interventions are Queries, or mappings such as [{'X': 1.0}, {'Z': 2.0}], where {} "
            f"sets nothing; got {got}"
        )
    return given
