"""Is an intervention legal here, and if not, what is wrong with it?

An intervention is legal if it sets manipulable variables to values in their domains, at levels
where there are some, keeps the linear constraints, is accepted by a user-defined function, and
sets one of the problem's sets where these were named. Doing nothing is always legal.
"""

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
    if (mask.shape, mask.dtype, value.shape, value.dtype) != (shape, bool, shape, np.float64):
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
    mask, value = np.asarray(batch.mask), np.asarray(batch.value)
    low, high = problem.region.all_bounds
    legal = np.asarray((~mask | ((value >= low) & (value <= high))).all(axis=1))
    if not problem.region.is_box:
        legal &= ~problem.region.find_off_levels(mask, value).any(axis=1)
        legal &= problem.region.find_kept(mask, value).all(axis=1)
    if problem.sets_are_explicit:
        first, which = distinct_rows(mask)
        explored = [_is_explored(problem, _names(problem, row)) for row in mask[first]]
        legal &= np.array(explored, bool)[which]
    return np.asarray(legal & _accepted(problem, batch, legal))


def require_legal(problem: "Problem", queries: object) -> Queries:
    """Return a batch of legal interventions; raise DomainError for the first that is not."""
    batch = read_arrays(problem, queries)
    mask, value = np.asarray(batch.mask), np.asarray(batch.value)
    if problem.takes_measured:
        _require_measured(problem, mask, value)
        return batch
    _require_bounds(problem, mask, value)
    if not problem.region.is_box:
        _require_levels(problem, mask, value)
        _require_constraints(problem, mask, value)
    if problem.sets_are_explicit:
        _require_explored(problem, mask)
    if problem.feasible_rule is not None:
        accepted = _accepted(problem, batch, np.ones(len(batch), bool))
        if not accepted.all():
            row = int(np.flatnonzero(~accepted)[0])
            raise DomainError(
                f"do({_assignments(problem, mask[row], value[row])}) is rejected by the problem's "
                f"function {rule_name(problem.feasible_rule)!r}; choose among interventions for "
                "which problem.feasible(queries) is True"
            )
    return batch


def for_measured(problem: "Problem") -> "Problem":
    """Return the same problem, whose `require` takes any intervention that can be measured.

    A measurement is data, even where the problem may not propose its intervention. So only an
    intervention on the target and values that are not finite are refused. `feasible` and designs
    are those of the problem.
    """
    other = object.__new__(type(problem))
    other.__dict__.update(problem.__dict__, takes_measured=True)
    return other


def write_mappings(problem: "Problem", queries: Queries) -> list[dict[str, float]]:
    """Return legal interventions as {variable: value} mappings."""
    nodes = problem.graph.nodes
    rows = zip(np.asarray(queries.mask), np.asarray(queries.value), strict=True)
    return [
        {nodes[column]: float(value[column]) for column in np.flatnonzero(mask)}
        for mask, value in rows
    ]


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


def _accepted(problem: "Problem", batch: Queries, legal: np.ndarray) -> np.ndarray:
    """Return which interventions the user-defined rule accepts; it is asked about legal ones."""
    asked = legal & np.asarray(batch.mask).any(axis=1)
    accepted = np.ones(len(batch), bool)
    if problem.feasible_rule is not None and asked.any():
        accepted[asked] = evaluate_rule(problem.feasible_rule, batch[np.flatnonzero(asked)])
    return accepted


def _require_bounds(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> None:
    low, high = problem.region.all_bounds
    # A comparison with NaN is false: neither NaN nor what is not manipulable is inside.
    bad = mask & ~((value >= low) & (value <= high))
    if bad.any():
        row, position = np.argwhere(bad)[0]
        name = problem.graph.nodes[position]
        if name not in problem.region.domains:
            raise DomainError(unknown("manipulable variable", name, problem.region.domains))
        raise DomainError(
            f"do({name} = {value[row, position]:.15g}) lies outside "
            f"[{low[position]:.15g}, {high[position]:.15g}]; "
            "widen the domain in the problem, or clip the value"
        )


def _require_levels(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> None:
    off = problem.region.find_off_levels(mask, value)
    if off.any():
        row, position = np.argwhere(off)[0]
        name, number = problem.graph.nodes[position], value[row, position]
        levels = problem.region.levels[name]
        [near] = nearest_levels(np.array([number]), levels)
        raise DomainError(
            f"do({name} = {number:.15g}) is none of the levels {show_levels(levels)}; the nearest "
            f"is {near:.15g}"
        )


def _require_constraints(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> None:
    kept = problem.region.find_kept(mask, value)
    if not kept.all():
        row, which = np.argwhere(~kept)[0]
        budget = problem.region.budgets[which]
        [total] = budget.sums(mask[[row]], value[[row]])
        raise DomainError(
            f"do({_assignments(problem, mask[row], value[row])}) breaks the constraint "
            f"{budget.constraint}: its sum over what is set is {total:.15g}; change the values, "
            "or relax the constraint in the problem"
        )


def _is_explored(problem: "Problem", members: tuple[str, ...]) -> bool:
    return not members or problem.has_set(members)


def _require_explored(problem: "Problem", mask: np.ndarray) -> None:
    for row in mask[distinct_rows(mask)[0]]:
        asked = _names(problem, row)
        if _is_explored(problem, asked):
            continue
        near = min(problem.sets, key=lambda members: len(set(members) ^ set(asked)))
        missing = [name for name in near if name not in asked]
        extra = [name for name in asked if name not in near]
        raise DomainError(
            f"{{{listed(asked)}}} is not a set of this problem; compared with "
            f"{{{listed(near)}}}, missing: {listed(missing)}; extra: {listed(extra)}"
        )


def _names(problem: "Problem", row: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, is_set in zip(problem.graph.nodes, row, strict=True) if is_set)


def _assignments(problem: "Problem", mask: np.ndarray, value: np.ndarray) -> str:
    pairs = zip(problem.graph.nodes, mask, value, strict=True)
    return ", ".join(f"{name} = {number:.6g}" for name, is_set, number in pairs if is_set)
