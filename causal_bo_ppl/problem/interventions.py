"""Which interventions are meant, are they legal, what do they cost? M are two arrays (M, p).

An intervention is legal if it sets manipulable variables to values in their domains, at levels
where there are some, keeps the linear constraints, is accepted by a user-defined function, and
sets one of the problem's sets where these were named. Doing nothing is always legal.

A cost is one unit per variable, a constant per variable, a constant plus the size of every value
that is set, or any function of the interventions. A search needs to know which: where costs do not
depend on the values, the optimum stays at a vertex, and where they are a constant + |x|, the planes
x = 0 add further vertices.
"""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import pandas as pd
from jax.typing import ArrayLike

from causal_bo_ppl.errors import (
    CausalBOError,
    DomainError,
    ExplorationError,
    listed,
    shown,
    unknown,
)
from causal_bo_ppl.graph.admg import set_label as set_label
from causal_bo_ppl.inputs import read_list, read_number
from causal_bo_ppl.linalg import between
from causal_bo_ppl.problem.domains import nearest_levels, show_levels

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem

Unit = Callable[[int], np.ndarray]  # from a dimension d to (k, d) points of the unit cube
Boxes = Mapping[str, tuple[float, float]]
MOST_QUERIES = 1_000_000  # of a design
NEARBY = 1e-3  # of a domain's width: as good as the same point
READ_BACK_TOLERANCE = 1e-9  # of a domain's width: a value that was written to a file and read


@partial(  # the names are dropped: nothing is compiled again for others
    jax.tree_util.register_dataclass,
    data_fields=("mask", "value"),
    meta_fields=(),
    drop_fields=("names",),
)
@dataclass(frozen=True, eq=False)
class Queries:
    """M interventions on p variables, in the order of the graph's nodes.

    mask: (M, p) bool, which variables are set. value: (M, p) float, to what; 0 where not set.
    `len(queries)` is M; indices, slices and index arrays select interventions, and a loop yields
    one at a time. Passes through `jax.jit`.
    """

    mask: jax.Array | np.ndarray
    value: jax.Array | np.ndarray
    names: tuple[str, ...] = ()  # of the variables, where a problem made it; shown only

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def __getitem__(self, index: slice | ArrayLike) -> "Queries":
        chosen = index if isinstance(index, slice) else np.atleast_1d(np.asarray(index))
        if not isinstance(chosen, slice) and chosen.size == 0:
            chosen = chosen.astype(int)
        return Queries(np.asarray(self.mask)[chosen], np.asarray(self.value)[chosen], self.names)

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
    return replace(queries, names=tuple(names))


def stack(batches: Iterable[Queries]) -> Queries:
    """Join several batches into one, in the order given."""
    parts = list(batches)
    return Queries(
        np.concatenate([part.mask for part in parts]),
        np.concatenate([part.value for part in parts]),
        parts[0].names,
    )


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


def are_of_sets(
    queries: Queries, sets: Iterable[Sequence[str]], nodes: Sequence[str]
) -> np.ndarray:
    """Return which queries set just the members of one of some sets, (M,)."""
    known = {np.isin(nodes, list(members)).tobytes() for members in sets}
    return np.array([row.tobytes() in known for row in np.asarray(queries.mask)], bool)


Interventions = Mapping[str, float] | Sequence[Mapping[str, float]]


def require_few(count: int, sets: int) -> None:
    """Refuse a design of more than a million interventions, before it is made."""
    if count > MOST_QUERIES:
        raise ExplorationError(
            f"this design has {count:,} interventions over {sets:,} sets, more than "
            f"{MOST_QUERIES:,}; ask for fewer points or explore fewer or smaller sets"
        )


def place_points(
    nodes: Sequence[str], parts: Sequence[tuple[tuple[str, ...], np.ndarray]]
) -> Queries:
    """Join points (k, d) of several sets into one batch."""
    column = {name: position for position, name in enumerate(nodes)}
    shape = (sum(len(points) for _, points in parts), len(nodes))
    mask, value, start = np.zeros(shape, bool), np.zeros(shape), 0
    for members, points in parts:
        where = np.ix_(range(start, start + len(points)), [column[name] for name in members])
        mask[where], value[where] = True, points
        start += len(points)
    return named(Queries(mask, value), nodes)


def spread(
    nodes: Sequence[str], sets: Sequence[tuple[str, ...]], domains: Boxes, unit: Unit, count: int
) -> Queries:
    """Map `unit(d)`, points of the unit cube, into the box of every set, set after set.

    count: the number of points of all sets, checked before anything is made.
    """
    require_few(count, len(sets))
    points = {size: unit(size) for size in sorted({len(members) for members in sets})}
    placed = []
    for members in sets:
        low, high = np.array([domains[name] for name in members]).T
        placed.append((members, between(low, high, points[len(members)])))
    return place_points(nodes, placed)


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
    nothing, names = problem.baseline(), (problem.graph.nodes, problem.manipulable)
    batches = [read_mappings(one, *names) if one else nothing for one in _as_list(given)]
    return problem.require(stack([nothing[:0], *batches]))


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
    mask = np.asarray(queries.mask)
    first, which = distinct_rows(mask)
    members = [tuple(np.flatnonzero(mask[row]).tolist()) for row in first]
    order = sorted(range(len(first)), key=lambda position: members[position])
    labels = tuple(
        set_label(tuple(problem.graph.nodes[node] for node in members[position]))
        for position in order
    )
    return Sets(labels, tuple(np.flatnonzero(which == position) for position in order))


def show(intervention: Mapping[str, float], digits: int = 6) -> str:
    """Return an intervention as a text, such as do(X = 1, Z = 2.5)."""
    words = (f"{name} = {value:.{digits}g}" for name, value in intervention.items())
    return f"do({', '.join(words)})"


def labels(problem: "Problem", queries: Queries) -> list[str]:
    """Return the interventions as texts, with enough digits to distinguish different ones."""
    asked = to_mappings(queries, problem.graph.nodes)
    different = len({tuple(intervention.items()) for intervention in asked})
    for digits in (4, 6, 9, 12, 17):
        texts = [show(each, digits) if each else "nothing set" for each in asked]
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
    return Queries(mask, value, tuple(nodes))


def to_mappings(queries: Queries, nodes: Sequence[str]) -> list[dict[str, float]]:
    """Return a batch as mappings {variable: value}: the inverse of `read_mappings`."""
    return [
        {nodes[column]: float(value[column]) for column in np.flatnonzero(mask).tolist()}
        for mask, value in zip(np.asarray(queries.mask), np.asarray(queries.value), strict=True)
    ]


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


def read_arrays(problem: "Problem", queries: object) -> Queries:
    """Return a batch whose arrays have the shapes and types of this problem; refuse any other.

    Whole numbers become floats, and values that are levels or bounds up to rounding just these.
    """
    if not isinstance(queries, Queries):
        raise DomainError(
            f"expected Queries, got {type(queries).__name__}; "
            "build them with problem.queries([...])"
        )
    if np.asarray(queries.value).dtype.kind in "iu":  # whole numbers are exact in float64
        queries = replace(queries, value=np.asarray(queries.value, float))
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    shape = (len(queries), len(problem.graph.nodes))
    kinds = (mask.dtype, value.dtype) == (np.dtype(bool), np.dtype(float))
    if not kinds or mask.shape != shape or value.shape != shape:
        raise DomainError(
            f"queries need a boolean and a float64 array of shape (M, {shape[1]}), got "
            f"{mask.dtype} {mask.shape} and {value.dtype} {value.shape}; "
            "build them with problem.queries"
        )
    exact = problem.region.snap(mask, value)
    return queries if exact is value else replace(queries, value=exact)


def legal_forms(problem: "Problem", queries: Queries) -> Queries:
    """Return the legal interventions that these are, up to rounding of values read from a file.

    Those that are not legal stay as they are.
    """
    mask, value = np.asarray(queries.mask), np.array(queries.value)
    low, high = problem.region.all_bounds
    inside = np.clip(value, low, high)
    is_near = mask & (np.abs(inside - value) <= READ_BACK_TOLERANCE * (high - low))
    near = Queries(mask, np.where(is_near, inside, value))
    legal = problem.feasible(near)
    value[legal] = np.asarray(problem.require(near[legal]).value)
    return named(Queries(mask, value), problem.graph.nodes)


def next_to(
    problem: "Problem", queries: Queries, others: Queries, share: float = NEARBY
) -> np.ndarray:
    """Return which queries (M,) lie at some others, or within a share of the domains' widths."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    is_near = np.zeros(len(mask), bool)
    ends = [problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes]
    reach = share * np.ptp(np.array(ends), axis=1)
    for other_mask, other_value in zip(others.mask, others.value, strict=True):
        same = (mask == other_mask).all(axis=1)
        is_near |= same & (np.abs(value - other_value) <= reach).all(axis=1)
    return is_near


def find_feasible(problem: "Problem", queries: Queries) -> np.ndarray:
    """Return which interventions of a batch are legal, each by itself, an array of shape (M,)."""
    batch = read_arrays(problem, queries)
    legal = np.ones(len(batch), bool)
    for is_kept, _ in _rules(problem, batch):
        legal &= is_kept
    return legal


def require_legal(problem: "Problem", queries: object) -> Queries:
    """Return a batch of legal interventions; raise DomainError for the first that is not."""
    batch = read_arrays(problem, queries)
    if problem.takes_measured:
        _require_measured(problem, np.asarray(batch.mask), np.asarray(batch.value))
        return batch
    for is_kept, describe in _rules(problem, batch):
        if not is_kept.all():
            raise DomainError(describe(int(np.argmin(is_kept))))
    return batch


def _rules(problem: "Problem", batch: Queries) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
    """Yield which interventions keep each rule, (M,), and a function that describes a breach.

    The user-defined function comes last, and sees only interventions that keep all other rules.
    """
    mask, value, region = np.asarray(batch.mask), np.asarray(batch.value), problem.region
    low, high = region.all_bounds
    # A comparison with NaN is false: neither NaN nor what is not manipulable is inside.
    inside = ~mask | ((value >= low) & (value <= high))
    legal = np.asarray(inside.all(axis=1))
    yield legal, lambda row: _outside(problem, value[row], inside[row])
    if not region.is_box:
        on_levels, kept = ~region.find_off_levels(mask, value), region.find_kept(mask, value)
        has_levels, keeps_all = np.asarray(on_levels.all(axis=1)), np.asarray(kept.all(axis=1))
        yield has_levels, lambda row: _off_levels(problem, value[row], on_levels[row])
        yield keeps_all, lambda row: _broken(problem, mask[row], value[row], kept[row])
        legal = legal & has_levels & keeps_all
    if problem.sets_are_explicit:
        first, which = distinct_rows(mask)
        members = [_names(problem, row) for row in mask[first]]
        explored = np.array([not names or problem.has_set(names) for names in members], bool)[which]
        yield explored, lambda row: _not_explored(problem, _names(problem, mask[row]))
        legal = legal & explored
    if problem.feasible_rule is not None:
        asked = np.flatnonzero(legal & mask.any(axis=1))
        accepted, rule = np.ones(len(batch), bool), problem.feasible_rule
        if len(asked):
            accepted[asked] = evaluate_rule(rule, batch[asked])
        yield (
            accepted,
            lambda row: (
                f"do({_assignments(problem, mask[row], value[row])}) is rejected by the problem's "
                f"function {rule_name(rule)!r}; choose among interventions for which "
                "problem.feasible(queries) is True"
            ),
        )


def for_measured(problem: "Problem") -> "Problem":
    """Return the same problem, whose `require` takes any intervention that can be measured.

    A measurement is data, even where the problem may not propose its intervention. So only an
    intervention on the target and values that are not finite are refused. `feasible` and designs
    are those of the problem.
    """
    other = object.__new__(type(problem))
    other.__dict__.update(problem.__dict__, takes_measured=True)
    return other


def _require_measured(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> None:
    bad = mask & ~np.isfinite(value)
    bad[:, problem.graph.index(problem.target)] |= mask[:, problem.graph.index(problem.target)]
    if bad.any():
        row, position = np.argwhere(bad)[0]
        raise DomainError(
            f"do({problem.graph.nodes[position]} = {value[row, position]:.15g}) cannot have been "
            f"measured: values are finite, and the target {problem.target} is not set"
        )


def _outside(problem: "Problem", value: np.ndarray, inside: np.ndarray) -> str:
    position = int(np.argmin(inside))
    name, domains = problem.graph.nodes[position], problem.region.domains
    if name not in domains:
        return unknown("manipulable variable", name, domains)
    low, high = domains[name]
    return (
        f"do({name} = {value[position]:.15g}) lies outside [{low:.15g}, {high:.15g}]; "
        "widen the domain in the problem, or clip the value"
    )


def _off_levels(problem: "Problem", value: np.ndarray, on_levels: np.ndarray) -> str:
    position = int(np.argmin(on_levels))
    name, number = problem.graph.nodes[position], value[position]
    levels = problem.region.levels[name]
    [near] = nearest_levels(np.array([number]), levels)
    return (
        f"do({name} = {number:.15g}) is none of the levels {show_levels(levels)}; the nearest is "
        f"{near:.15g}"
    )


def _broken(problem: "Problem", mask: np.ndarray, value: np.ndarray, kept: np.ndarray) -> str:
    budget = problem.region.budgets[int(np.argmin(kept))]
    [total] = budget.sums(mask[None], value[None])
    return (
        f"do({_assignments(problem, mask, value)}) breaks the constraint {budget.constraint}: its "
        f"sum over what is set is {total:.15g}; change the values, or relax the constraint in the "
        "problem"
    )


def _not_explored(problem: "Problem", asked: tuple[str, ...]) -> str:
    near = min(problem.sets, key=lambda members: len(set(members) ^ set(asked)))
    missing = [name for name in near if name not in asked]
    extra = [name for name in asked if name not in near]
    return (
        f"{{{listed(asked)}}} is not a set of this problem; compared with {{{listed(near)}}}, "
        f"missing: {listed(missing)}; extra: {listed(extra)}"
    )


def _names(problem: "Problem", row: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, is_set in zip(problem.graph.nodes, row, strict=True) if is_set)


def _assignments(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> str:
    pairs = zip(problem.graph.nodes, mask, value, strict=True)
    return ", ".join(f"{name} = {number:.6g}" for name, is_set, number in pairs if is_set)


CostFunction = Callable[[Queries], np.ndarray]
Costs = Mapping[str, float] | CostFunction | str | None
Rule = Callable[[Queries], np.ndarray]  # which interventions are feasible


@dataclass(frozen=True)
class ConstantCost:
    """The cost c(z) = sum of a constant for each variable that is set.

    constants: one for each variable, in the order of the graph's nodes.
    """

    constants: tuple[float, ...]

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        mask = np.asarray(queries.mask)  # summed as it stands: products by BLAS differ by processor
        return np.asarray(np.where(mask, np.asarray(self.constants), 0.0).sum(axis=1))


@dataclass(frozen=True)
class MagnitudeCost:
    """The cost c(z) = sum of (constant + |x|) over the variables set to x.

    Examples
    --------
    >>> import causal_bo_ppl as cb
    >>> problem = cb.Problem(
    ...     cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-5, 5)}, costs=MagnitudeCost(2.0)
    ... )
    >>> problem.cost([{"X": -3.0}])
    array([5.])
    """

    constant: float = 1.0

    def __call__(self, queries: Queries) -> np.ndarray:
        """Return the costs of a batch, an array of shape (M,)."""
        costs = self.constant + np.abs(np.asarray(queries.value))
        return np.asarray(np.where(np.asarray(queries.mask), costs, 0.0).sum(axis=1))


def read_costs(costs: Costs, nodes: tuple[str, ...], manipulable: tuple[str, ...]) -> CostFunction:
    """Return the costs as a function of a batch; None means one unit per variable."""
    if callable(costs):
        return costs
    if isinstance(costs, str) and costs == "magnitude":
        return MagnitudeCost()
    if costs is not None and not isinstance(costs, Mapping):
        raise DomainError(
            'costs must be {variable: cost}, "magnitude" (1 + |x| per variable) or a function of '
            f"Queries, got {costs!r}"
        )
    given = (
        dict.fromkeys(manipulable, 1.0)
        if costs is None
        else {name: read_number(name, cost) for name, cost in costs.items()}
    )
    if set(given) != set(manipulable):
        missing, extra = (
            listed(sorted(names, key=str))
            for names in ({*manipulable} - {*given}, {*given} - {*manipulable})
        )
        raise DomainError(
            f"costs must name each manipulable variable; missing: {missing}; "
            f"not manipulable: {extra}"
        )
    for name, cost in given.items():
        if not (np.isfinite(cost) and cost > 0):
            raise DomainError(f"the cost of {name!r} is {cost}; costs must be positive and finite")
    return ConstantCost(tuple(given.get(name, 0.0) for name in nodes))


def evaluate_rule(rule: Rule, queries: Queries) -> np.ndarray:
    """Return which interventions a user-defined function accepts, a boolean array (M,)."""
    accepted = np.asarray(rule(_copy(queries)))
    if accepted.dtype != bool or accepted.shape != (len(queries),):
        raise DomainError(
            f"the function {rule_name(rule)!r} for `feasible` returned {accepted.dtype} of shape "
            f"{accepted.shape} for {len(queries)} interventions; return (M,) booleans"
        )
    return np.array(accepted)


def evaluate_costs(costs: CostFunction, queries: Queries) -> np.ndarray:
    """Return the costs of a batch, an array of shape (M,); refuse any not positive and finite."""
    try:
        numbers = np.asarray(costs(_copy(queries)))
    except CausalBOError:
        raise
    except Exception as error:  # the function is somebody else's code and may raise anything
        raise DomainError(
            f"the cost function raised {shown(error)} for {len(queries)} interventions; it must "
            "return the cost of every legal intervention"
        ) from error
    if numbers.dtype.kind not in "iuf" or numbers.shape != (len(queries),):
        raise DomainError(
            f"the cost function returned {numbers.dtype} of shape {numbers.shape} for "
            f"{len(queries)} interventions; return (M,) real numbers"
        )
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    bad &= np.asarray(queries.mask).any(axis=1) | ~(numbers == 0)  # doing nothing may be free
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DomainError(
            f"the cost of intervention {row} is {numbers[row]}; costs must be positive and finite"
        )
    return numbers.astype(float)


def _copy(queries: Queries) -> Queries:
    """Return a copy for a user-defined function, which may write into it."""
    return replace(queries, mask=np.array(queries.mask), value=np.array(queries.value))


def rule_name(rule: Rule) -> str:
    """Return the name of a function for a message."""
    return str(getattr(rule, "__name__", type(rule).__name__))
