"""Where do we look for the next experiment? Over all sets at once, the best query of a rule.

Where effects are affine in the values and the acquisition is then largest at vertices, all vertices
of all sets are enumerated, which solves this step exactly; where costs are constant + |x|, every
box is cut at 0 and its pieces' vertices are taken. Sets with too many vertices are climbed, one
variable at a time. Otherwise vertices, Sobol points and what was tried are evaluated in one batch,
and the best of them are improved: in sets of one variable within brackets that shrink, in others
by batched gradients. Ties go to the first, in the order of sets.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.errors import CausalBOWarning, DomainError
from causal_bo_ppl.numerics import TIE
from causal_bo_ppl.optimization.ascent import ascend
from causal_bo_ppl.optimization.candidates import Candidates, Space, nothing_left
from causal_bo_ppl.optimization.climbing import climb, climb_pairs
from causal_bo_ppl.optimization.interface import (
    Acquisition,
    comparable,
    is_affine,
    most_worth,
    read_worth,
    trait,
)
from causal_bo_ppl.optimization.zooming import zoom
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import distinct_rows, stack
from causal_bo_ppl.surrogates import Surrogate

CLIMBERS = 64  # starts that are climbed at once
IMPROVED, FEW_IMPROVED = 16, 5  # points that are improved by gradients; where effects are dear
NEXT_TO = 1e-3  # of a domain's width: as good as the same point
Affordable = Callable[[np.ndarray], np.ndarray]


class Found(NamedTuple):
    """The best query, its worth and its cost, and in words how it was found."""

    query: Queries
    worth: float
    cost: float
    how: str


def find_best(
    space: Space,
    surrogate: Surrogate,
    rule: Acquisition,
    *,
    affordable: Affordable | None = None,
    tried: Queries | None = None,
    known: Queries | None = None,
) -> Found:
    """Return the query that is worth most among all sets.

    Parameters
    ----------
    space:
        Where interventions may lie.
    surrogate:
        What is believed about their effects.
    rule:
        A prepared acquisition; see `optimization.interface.prepare`.
    affordable:
        Function of costs (M,) that returns which can be paid for, (M,).
    tried:
        Interventions that were tried, from which the search starts too.
    known:
        Interventions whose effects are known exactly: others are preferred to them.

    Raises
    ------
    DomainError
        If no intervention may be proposed or paid for.
    """
    return _Search(space, surrogate, rule, affordable, known).run(tried)


@dataclass(frozen=True, eq=False)
class _Search:
    """One search: what all of its steps share."""

    space: Space
    surrogate: Surrogate
    rule: Acquisition
    affordable: Affordable | None
    known: Queries | None = None

    def run(self, tried: Queries | None) -> Found:
        kind = self.exact_kind()
        if kind is not None:
            listed, first = self.space.listed(kind), self.space.first(kind)
            is_constant = self.space.problem.cost_is_constant
            if is_constant or all(self.pays(part.costs).all() for part in (listed, first)):
                return self.enumerate(kind, listed, first)
        return self.explore(tried)

    def exact_kind(self) -> str | None:
        """Return which combinations hold the best query for sure, or None where none do."""
        at_vertices = is_affine(self.surrogate) and trait(self.rule, "at_vertices")
        if not at_vertices or not self.space.has_corners:
            return None
        problem = self.space.problem
        if problem.cost_is_constant or not trait(self.rule, "uses_costs"):
            return "ends"
        cuts = problem.cost_is_magnitude and self.space.corners is None
        return "cut" if cuts else None

    def enumerate(self, kind: str, listed: Candidates, first: Candidates) -> Found:
        """Choose among all combinations; those of large sets are climbed."""
        queries, costs = listed.queries, listed.costs
        how = f"all {len(queries):,} vertices"
        if len(first.queries):
            climbed = self.climb(first, kind)
            queries = stack([queries, first.queries, climbed])
            costs = np.concatenate([costs, first.costs, self.space.problem.cost(climbed)])
            how = f"{how} of the smaller sets, and larger sets one variable at a time"
        return self.choose(queries, costs, self.worth(queries), how)

    def climb(self, first: Candidates, kind: str) -> Queries:
        starts = self.leading(first.queries, self.masked(first.queries), CLIMBERS)
        if trait(self.rule, "is_one_batch") or not len(starts):
            return starts
        return climb_pairs(self.masked, starts, self.space.choices(kind))

    def explore(self, tried: Queries | None) -> Found:
        """Evaluate vertices, Sobol points and what was tried, and improve the best of them."""
        parts = [self.space.listed("levels"), self.space.first("levels"), self.space.filling()]
        queries = stack([part.queries for part in parts])
        costs = np.concatenate([part.costs for part in parts])
        if tried is not None and len(tried):
            kept = self.legal(tried)
            queries, costs = stack([queries, kept]), np.append(costs, self.space.problem.cost(kept))
        worth, how = self.worth(queries), f"{len(queries):,} points"
        if trait(self.rule, "is_one_batch"):
            return self.choose(queries, costs, worth, how)
        payable = np.where(self.pays(costs), worth, -np.inf)
        if not (payable > -np.inf).any() or self.is_flat(worth[self.pays(costs)]):
            return self.choose(queries, costs, worth, how)
        improved, ways = self.refine(queries, payable)
        queries, worth = stack([queries, improved]), np.append(worth, self.masked(improved))
        costs = np.append(costs, self.space.problem.cost(improved))
        return self.choose(queries, costs, worth, f"{how}, the best improved by {ways}")

    def refine(self, queries: Queries, worth: np.ndarray) -> tuple[Queries, str]:
        """Return better queries than the best of these, and in words how they were found."""
        low, high = self.space.bounds()
        mask = np.asarray(queries.mask)
        is_line = (mask.sum(axis=1) == 1) & (mask & (high > low)).any(axis=1)
        found, ways = [queries[:0]], []
        if is_line.any():
            most = float(worth.max())
            found.append(zoom(self.masked, queries[is_line], worth[is_line], low, high, most))
            ways.append("brackets")
        starts = self.leading(queries[~is_line], worth[~is_line], self.improved())
        if len(starts):
            found.append(self.improve(starts))
            ways.append("gradients")
        return stack(found), " and ".join(ways)

    def improved(self) -> int:
        """Return how many points are improved: few where effects are dear."""
        program = self.surrogate.post.belief.response.program
        return IMPROVED if getattr(program, "together", None) is None else FEW_IMPROVED

    def improve(self, starts: Queries) -> Queries:
        """Move all free variables by gradients, those with levels one at a time, by turns."""
        low, high = self.space.bounds()
        size = max(len(members) for members in self.space.sets)
        reached = starts
        if (high > low).any():
            reached = ascend(self.worth, self.allows, starts, low, high, size)
        if not self.space.levels:
            return reached
        names = self.space.problem.graph.nodes
        choices = [
            values if name in self.space.levels else values[:0]
            for name, values in zip(names, self.space.choices("levels"), strict=True)
        ]
        climbed = climb(self.masked, reached, choices)
        if (high > low).any() and not np.array_equal(climbed.value, reached.value):
            return stack([reached, ascend(self.worth, self.allows, climbed, low, high, size)])
        return stack([reached, climbed])

    def legal(self, tried: Queries) -> Queries:
        """Return what was tried of the sets that may be proposed, and is allowed."""
        nodes, mask = self.space.problem.graph.nodes, np.asarray(tried.mask)
        first, which = distinct_rows(mask)
        sets = {frozenset(members) for members in self.space.sets}
        named = [frozenset(np.array(nodes, object)[mask[row]]) for row in first]
        known = np.array([each in sets for each in named], bool)[which]
        kept = tried[known]
        same = (np.asarray(self.space.snap(kept).value) == np.asarray(kept.value)).all(axis=1)
        kept = kept[same]
        return kept[self.space.allows(kept)]

    def worth(self, queries: Queries) -> np.ndarray:
        """Return the worths (M,), -inf where a query is not legal."""
        legal, objective = self.space.allows(queries), self.space.problem.objective
        if legal.all():
            return read_worth(self.rule, self.surrogate, queries, objective)
        # A legal one stands for each of the others: as many are evaluated, and none is refused.
        some = queries if legal.any() else self.space.filling().queries
        first = int(np.flatnonzero(legal)[0]) if legal.any() else 0
        mask = np.where(legal[:, None], queries.mask, some.mask[first])
        value = np.where(legal[:, None], queries.value, some.value[first])
        found = read_worth(self.rule, self.surrogate, Queries(mask, value), objective)
        return np.where(legal, found, -np.inf)

    def pays(self, costs: np.ndarray) -> np.ndarray:
        given = self.affordable
        return np.ones(len(costs), bool) if given is None else np.asarray(given(costs), bool)

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries may be proposed and paid for, (M,)."""
        allowed = self.space.allows(queries)
        if self.affordable is None:
            return allowed
        return np.asarray(allowed & self.pays(self.space.problem.cost(queries)))

    def masked(self, queries: Queries) -> np.ndarray:
        """Return the worths (M,), -inf where a query may not be proposed."""
        return np.asarray(np.where(self.allows(queries), self.worth(queries), -np.inf))

    def leading(self, queries: Queries, worth: np.ndarray, most: int) -> Queries:
        """Return the best queries, at most `most`, half of them the best ones of their sets."""
        usable = np.flatnonzero(worth > -np.inf)
        if not len(usable):
            return queries[:0]
        order = usable[np.argsort(-_steps(comparable(self.rule, worth[usable])), kind="stable")]
        which = distinct_rows(np.asarray(queries.mask)[order])[1]
        heads = order[np.sort(np.unique(which, return_index=True)[1])][: most // 2]
        rest = order[~np.isin(order, heads)][: most - len(heads)]
        return queries[np.concatenate([heads, rest])]

    def is_known(self, queries: Queries) -> np.ndarray:
        """Return which queries (M,) lie at, or next to, one whose effect is known exactly."""
        if self.known is None:
            return np.zeros(len(queries), bool)
        return next_to(self.space.problem, queries, self.known)

    def is_flat(self, worth: np.ndarray) -> bool:
        """Return whether all worths are equal up to rounding."""
        numbers = comparable(self.rule, worth)
        if not np.isfinite(numbers).all():
            return not np.isfinite(numbers).any()
        return not np.ptp(numbers) > TIE * np.abs(numbers).max(initial=0.0)

    def choose(self, queries: Queries, costs: np.ndarray, worth: np.ndarray, how: str) -> Found:
        usable = np.flatnonzero(self.pays(costs))
        if not len(usable):
            reason = "none can be paid for" if len(queries) else nothing_left(self.space)
            raise DomainError(f"{reason}; the cheapest costs {costs.min(initial=np.inf):g}")
        fresh = usable[~self.is_known(queries[usable])]
        usable = fresh if len(fresh) else usable
        if (
            len(usable) > 1
            and self.is_flat(worth[usable])
            and not getattr(self.surrogate, "begins_flat", False)
        ):
            message = (
                f"all {len(usable)} interventions look equally good; the first of a smallest "
                "set is taken"
            )
            warnings.warn(message, CausalBOWarning, stacklevel=8)
        at = int(usable[most_worth(self.rule, worth[usable])])
        return Found(queries[at], float(worth[at]), float(costs[at]), how)


def next_to(problem: Problem, queries: Queries, others: Queries) -> np.ndarray:
    """Return which queries (M,) lie at some others, or so near that they teach nothing more."""
    mask, value = np.asarray(queries.mask), np.asarray(queries.value)
    found = np.zeros(len(mask), bool)
    ends = [problem.domains.get(name, (0.0, 1.0)) for name in problem.graph.nodes]
    near = NEXT_TO * np.ptp(np.array(ends), axis=1)
    for kind, at in zip(others.mask, others.value, strict=True):
        same = (mask == kind).all(axis=1)
        found |= same & (np.abs(value - at) <= near).all(axis=1)
    return found


def _steps(worth: np.ndarray) -> np.ndarray:
    """Return worths in units of 1e-9 of their range: rounding does not decide their order."""
    finite = worth[np.isfinite(worth)]
    width = 1e-9 * np.ptp(finite) if finite.size else 0.0
    return np.asarray(np.round(worth / width)) if width > 0 else np.zeros(len(worth))
