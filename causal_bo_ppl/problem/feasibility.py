"""Is an intervention legal here, and if not, what is wrong with it?

An intervention is legal if it sets manipulable variables to values in their domains, at levels
where there are some, keeps the linear constraints, is accepted by a user-defined function, and
sets one of the problem's sets where these were named. Doing nothing is always legal.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from causal_bo_ppl.errors import CausalBOError, DomainError, listed, shown, unknown
from causal_bo_ppl.problem.domains import CostFunction, Rule, nearest_levels, show_levels
from causal_bo_ppl.problem.interventions import Queries, distinct_rows, named

if TYPE_CHECKING:
    from causal_bo_ppl.problem.problem import Problem


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
        queries = named(Queries(queries.mask, np.asarray(queries.value, float)), queries.names)
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
    return queries if exact is value else named(Queries(queries.mask, exact), queries.names)


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
    return Queries(np.array(queries.mask), np.array(queries.value))


def rule_name(rule: Rule) -> str:
    """Return the name of a function for a message."""
    return str(getattr(rule, "__name__", type(rule).__name__))


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
