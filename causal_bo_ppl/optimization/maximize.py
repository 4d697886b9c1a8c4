"""Which intervention has the largest acquisition value? The search over all sets at once.

**Search.** Where effects are affine in the values and the acquisition is then largest at vertices,
all vertices of all sets are enumerated, which is exact; where costs are constant + |x|, every box
is cut at 0. Otherwise vertices, Sobol points and what was tried are evaluated in one batch, and the
best of them are improved: in sets of one variable within brackets that shrink, in others by batched
gradients (`problem.search`). Ties go to the first, in the order of sets.

**Wider bounds** (`_search_beyond`). Where no bound is better than the best exact outcome, bounds
widen until one is: otherwise the remaining rounds would only confirm what is known. Where effects
are nonlinear, every second round asks for a gain of a share of the range of all outcomes, so that a
local optimum, where every round gains a little, does not hold a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from causal_bo_ppl.data.observations import Replicates
from causal_bo_ppl.errors import DomainError
from causal_bo_ppl.inputs import offered
from causal_bo_ppl.linalg import TIE, in_tie_widths
from causal_bo_ppl.mechanisms.base import BatchedProgram
from causal_bo_ppl.optimization.acquisition import (
    LEAST_LEAD,
    Acquisition,
    Context,
    acquisition_values,
    best_position,
    comparable,
    fixed_beta,
    in_round,
    trait,
)
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.interventions import NEARBY, distinct_rows, next_to, stack
from causal_bo_ppl.problem.search import ascend, climb, climb_pairs, zoom
from causal_bo_ppl.problem.search_space import Candidates, Space

MOST_CLIMBERS = 64  # starts that are climbed at once
IMPROVED, FEW_IMPROVED = 16, 5  # points improved by gradients; where effects are expensive
Affordable = Callable[[np.ndarray], np.ndarray]


class Found(NamedTuple):
    """The best query, its acquisition value and its cost, and how it was found.

    how: in words. search: with the acquisition by which it is the best: of several in turn the one
    whose turn it was, and a bound that was widened. note: what is to be warned of, "" for nothing.
    """

    query: Queries
    value: float
    cost: float
    how: str
    search: "Search"
    note: str

    @property
    def bound(self) -> float:
        """The acquisition value in the direction of the target: the confidence bound for "ucb"."""
        return self.search.context.sign * self.value


def find_best(
    space: Space,
    rule: Acquisition,
    context: Context,
    *,
    affordable: Affordable | None = None,
    tried: Queries | None = None,
    known: Replicates | None = None,
    avoided: Queries | None = None,
    reach: float = NEARBY,
) -> Found:
    """Return the query with the largest acquisition value among all sets.

    space: where interventions may lie. affordable: which costs (M,) can be paid for, (M,). tried:
    interventions from which the search starts too. known: exact outcomes; bounds are widened that
    do not promise more than the best of them. avoided: interventions to which others are preferred,
    as far as they lie within a share `reach` of the domains' widths.
    A DomainError is raised if no intervention may be proposed or paid for.
    """
    known = known if known is not None and len(known.means) else None
    avoided = context.candidates[:0] if avoided is None else avoided
    search = Search(space, in_round(rule, context), context, affordable, tried, avoided, reach)
    return search.run() if known is None else _search_beyond(search, known)


@dataclass(frozen=True, eq=False)
class Search:
    """One search: what all of its steps share; see `find_best`."""

    space: Space
    rule: Acquisition
    context: Context
    affordable: Affordable | None
    tried: Queries | None
    avoided: Queries
    reach: float = NEARBY

    def run(self) -> Found:
        """Return the best query."""
        kind = self.exact_kind()
        if kind is not None:
            listed, first = self.space.listed(kind), self.space.first(kind)
            is_constant = self.space.problem.cost_is_constant
            if is_constant or all(self.pays(part.costs).all() for part in (listed, first)):
                return self.enumerate(kind, listed, first)
        return self.explore()

    @property
    def is_one_batch(self) -> bool:
        """Whether values can be compared within one batch only."""
        is_drawn = trait(self.rule, "is_random") and not self.context.draws_functions
        return is_drawn or trait(self.rule, "is_one_batch")

    def exact_kind(self) -> str | None:
        """Return which combinations hold the best query for sure, or None where none do."""
        at_vertices = self.context.is_affine and trait(self.rule, "at_vertices")
        if not at_vertices or not self.space.has_corners:
            return None
        problem = self.space.problem
        if problem.cost_is_constant or not trait(self.rule, "uses_costs"):
            return "ends"
        return "cut" if problem.cost_is_magnitude and not self.space.is_cut else None

    def enumerate(self, kind: str, listed: Candidates, first: Candidates) -> Found:
        """Choose among all combinations; those of large sets are climbed."""
        queries, costs = listed.queries, listed.costs
        how = f"all {len(queries):,} vertices"
        if len(first.queries):
            climbed = self.leading(first.queries, self.masked(first.queries), MOST_CLIMBERS)
            if len(climbed) and not self.is_one_batch:
                climbed = climb_pairs(self.masked, climbed, self.space.choices(kind))
            queries = stack([queries, first.queries, climbed])
            costs = np.concatenate([costs, first.costs, self.space.problem.cost(climbed)])
            how = f"{how} of the smaller sets, and larger sets one variable at a time"
        return self.choose(queries, costs, self.value(queries), how)

    def explore(self) -> Found:
        """Evaluate vertices, Sobol points and what was tried, and improve the best of them."""
        parts = [self.space.listed("levels"), self.space.first("levels"), self.space.filling()]
        queries = stack([part.queries for part in parts])
        costs = np.concatenate([part.costs for part in parts])
        if self.tried is not None and len(self.tried):
            legal = self.space.select(self.tried)
            queries = stack([queries, legal])
            costs = np.append(costs, self.space.problem.cost(legal))
        values, how, pays = self.value(queries), f"{len(queries):,} points", self.pays(costs)
        payable = np.where(pays, values, -np.inf)
        is_done = not (payable > -np.inf).any() or self.is_flat(values[pays])
        if is_done or self.is_one_batch:
            return self.choose(queries, costs, values, how)
        improved, ways = self.refine(queries, payable)
        queries, values = stack([queries, improved]), np.append(values, self.masked(improved))
        costs = np.append(costs, self.space.problem.cost(improved))
        return self.choose(queries, costs, values, f"{how}, the best improved by {ways}")

    def refine(self, queries: Queries, values: np.ndarray) -> tuple[Queries, str]:
        """Return better queries than the best of these, and in words how they were found."""
        (low, high), fixed = self.space.bounds(), self.space.fixed
        is_held = np.array([name in fixed for name in self.space.problem.graph.nodes], bool)
        mask = np.asarray(queries.mask) & ~is_held
        is_line = (mask.sum(axis=1) == 1) & (mask & (high > low)).any(axis=1)
        improved, ways = [queries[:0]], []
        if is_line.any():
            most = float(values.max())
            improved.append(zoom(self.masked, queries[is_line], values[is_line], low, high, most))
            ways.append("brackets")
        program = self.context.surrogate.post.distribution.response.program
        most_improved = FEW_IMPROVED if isinstance(program, BatchedProgram) else IMPROVED
        others = ~is_line & mask.any(axis=1)  # nothing moves where everything is held
        starts = self.leading(queries[others], values[others], most_improved)
        if len(starts):
            improved.append(self.improve(starts))
            ways.append("gradients")
        return stack(improved), " and ".join(ways)

    def improve(self, starts: Queries) -> Queries:
        """Move all free variables by gradients, those with levels one at a time, by turns."""
        reached, levels = self.ascend(starts), self.space.problem.levels
        if not levels:
            return reached
        climbed = climb(self.masked, reached, self.space.choices("levels", levels))
        is_same = np.array_equal(climbed.value, reached.value)
        return stack([reached, climbed if is_same else self.ascend(climbed)])

    def ascend(self, starts: Queries) -> Queries:
        """Move all free variables by gradients; what is reached keeps constraints exactly."""
        low, high = self.space.bounds()
        if not (high > low).any():
            return starts
        size = max(len(members) for members in self.space.sets)
        reached = ascend(self.value, self.allows, starts, low, high, size)
        return self.space.make_exact(reached)

    def value(self, queries: Queries) -> np.ndarray:
        """Return the acquisition values (M,), -inf where a query is not legal."""
        legal = self.space.allows(queries)
        if legal.all():
            return acquisition_values(self.rule, queries, self.context)
        # A legal one stands for each of the others: as many are evaluated, and none is refused.
        some = queries[legal] if legal.any() else self.space.filling().queries
        chosen = np.where(legal, np.arange(len(legal)), len(legal))
        values = acquisition_values(self.rule, stack([queries, some[:1]])[chosen], self.context)
        return np.where(legal, values, -np.inf)

    def pays(self, costs: np.ndarray) -> np.ndarray:
        """Return which costs can be paid for, (M,)."""
        given = self.affordable
        return np.ones(len(costs), bool) if given is None else np.asarray(given(costs), bool)

    def allows(self, queries: Queries) -> np.ndarray:
        """Return which queries may be proposed and paid for, (M,)."""
        allowed = self.space.allows(queries)
        if self.affordable is None:
            return allowed
        return np.asarray(allowed & self.pays(self.space.problem.cost(queries)))

    def masked(self, queries: Queries) -> np.ndarray:
        """Return the acquisition values (M,), -inf where a query may not be proposed."""
        allowed = self.allows(queries) & self.space.is_exact(queries)
        return np.asarray(np.where(allowed, self.value(queries), -np.inf))

    def leading(self, queries: Queries, values: np.ndarray, most: int) -> Queries:
        """Return the best queries, at most `most`, half of them the best ones of their sets."""
        usable = np.flatnonzero(values > -np.inf)
        if not len(usable):
            return queries[:0]
        steps = in_tie_widths(comparable(self.rule, values[usable]))
        order = usable[np.argsort(-steps, kind="stable")]
        which = distinct_rows(np.asarray(queries.mask)[order])[1]
        heads = order[np.sort(np.unique(which, return_index=True)[1])][: most // 2]
        rest = order[~np.isin(order, heads)][: most - len(heads)]
        return queries[np.concatenate([heads, rest])]

    def is_flat(self, values: np.ndarray) -> bool:
        """Return whether all values are equal up to rounding."""
        numbers = comparable(self.rule, values)
        if not np.isfinite(numbers).all():
            return not np.isfinite(numbers).any()
        return not np.ptp(numbers) > TIE * np.abs(numbers).max(initial=0.0)

    def choose(self, queries: Queries, costs: np.ndarray, values: np.ndarray, how: str) -> Found:
        """Return the best of those that can be paid for, and that are not to be avoided."""
        usable = np.flatnonzero(self.pays(costs))
        if not len(usable):
            reason = "none can be paid for" if len(queries) else self.space.nothing_left()
            raise DomainError(f"{reason}; the cheapest costs {costs.min(initial=np.inf):g}")
        if len(self.avoided):
            fresh = usable[~next_to(self.space.problem, queries[usable], self.avoided, self.reach)]
            usable = fresh if len(fresh) else usable
        is_uninformed, note = getattr(self.context.surrogate, "is_uninformed", False), ""
        if len(usable) > 1 and self.is_flat(values[usable]) and not is_uninformed:
            note = f"all {len(usable)} interventions look equally good; the first of a smallest "
            note += "set is taken"
        best = int(usable[best_position(self.rule, values[usable])])
        return Found(queries[best], float(values[best]), float(costs[best]), how, self, note)


LEAST_GAIN_SHARE = 0.02  # of the range of outcomes: the least gain asked for in every second round


def _search_beyond(search: Search, outcomes: Replicates) -> Found:
    """Return the best query by a bound that is better than the best exact outcome, where it can."""
    rule, context, space = search.rule, search.context, search.space
    widen, sign = offered(rule, "widen"), context.sign
    if widen is None:
        return search.run()
    best = float(sign * (sign * outcomes.means).max())
    among = context.candidates
    if space.fixed:
        among = space.candidates(at_vertices=context.is_affine).queries
    among = among[~next_to(space.problem, among, search.avoided)]

    def search_wider(goal: float, found: Found | None = None) -> Found:
        wider: Acquisition = widen(context, among, goal)
        if wider is rule:
            return found or search.run()
        found, rules = replace(search, rule=wider).run(), (rule, wider)
        before, after = (fixed_beta(getattr(each, "beta", None), context) for each in rules)
        reason = "no candidate promised enough more than the best outcome"
        how = f"{found.how}; beta {after:.3g} instead of {before:.3g}: {reason}"
        return found._replace(how=how)

    if context.round % 2 == 0 and not context.is_affine:
        gain = max(LEAST_LEAD * abs(best), LEAST_GAIN_SHARE * float(np.ptp(outcomes.means)))
        return search_wider(best + sign * gain)
    found = search.run()
    is_better = found.value > sign * best + LEAST_LEAD * abs(best)
    return found if is_better else search_wider(best, found)
