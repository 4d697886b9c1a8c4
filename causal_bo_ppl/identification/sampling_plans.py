"""How is an effect averaged by regressions of observed variables, whatever latent causes there are?

P(Y | do(s)) = sum over D minus Y of prod_j Q[C_j], C_j the districts of G[D]; see `parameters`. In
a topological order of the graph, with T the district of G that holds C,

    Q[T] = prod over v in T of P(v | b(v)),   b(v): the district of v among earlier variables,
                                              with its parents, without v,

and Q[C] = sum over T minus C of Q[T] where C has no other ancestors within G[T] (Tian and Pearl
2002). Such an effect is a nest of averages, and a *plan* is how to draw from it: a list of draws,
each of one variable by its regression on earlier draws or on values that are set. Members of C and
all that D holds are drawn once; a member of T minus C is summed within one factor, so that every
factor has a copy of its own (x' of the front door). What a factor does not depend on, though its
regressions do, is drawn as if nothing were set.

Every variable has one regression, shared by all effects, and their product is the density of a row.
Where C has other ancestors A within G[T], the conditionals of Q[A] are those of P as long as no
variable of T minus A comes before them; otherwise they are ratios, and there is no plan.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from causal_bo_ppl.errors import MechanismError, NotIdentifiable, UnverifiedEstimand, listed
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.parameters import (
    HedgeFound,
    Reduction,
    ancestors_within,
    district_within,
    reduce_effect,
    reduce_effects,
)
from causal_bo_ppl.identification.verification import (
    TOLERANCE,
    TRIALS,
    draw_trials,
    relative_error,
    true_effects,
)

if TYPE_CHECKING:
    from causal_bo_ppl.problem import Problem

MOST_ORDERS, ORDER_SEED = 64, 20021  # topological orders that are tried
NATURAL = -1  # the district of a draw as if nothing were set


class RatioNeeded(Exception):
    """The factor of a district is a ratio of sums in this order of the variables."""

    def __init__(self, district: Names) -> None:
        super().__init__(district)
        self.district = district


class Draw(NamedTuple):
    """One draw of a variable by its regression.

    sources: for each regressor the index of an earlier draw, or the name of a variable whose set
    value is taken. is_own: whether it is the variable itself under do(), not a copy of it.
    """

    variable: str
    sources: tuple[int | str, ...]
    is_own: bool


class Plan(NamedTuple):
    """How the target is drawn under do(intervened): the draws, the target's last.

    intervened: the members of the set that affect the target.
    """

    intervened: Names
    draws: tuple[Draw, ...]


@dataclass(frozen=True, eq=False)
class SamplingPlans:
    """The regressions that all effects share, and the plan of every intervention set.

    graph: the target and its causes. given: the regressors of every variable, whose keys are in the
    order of the regressions. sets: the intervention sets whose effects are needed.
    """

    graph: CausalGraph
    target: str
    given: Mapping[str, Names]
    sets: tuple[Names, ...]
    _kept: dict[Names, Plan] = field(default_factory=dict, repr=False)
    _same: dict[tuple[str, Names], bool] = field(default_factory=dict, repr=False)

    @property
    def variables(self) -> Names:
        """The variables whose regressions the sets need, in the order of the regressions."""
        used = {draw.variable for members in self.sets for draw in self.plan(members).draws}
        return tuple(name for name in self.given if name in used)

    def plan(self, intervened: Iterable[str]) -> Plan:
        """Return the plan of one set; members that do not affect the target play no part."""
        reduction = reduce_effect(self.graph, self.target, tuple(intervened))
        if reduction.effective not in self._kept:
            try:
                plan = _make_plan(self.graph, self.given, reduction)
            except HedgeFound as hedge:
                advice = "leave the set out, or identifiable_only=True"
                raise NotIdentifiable(
                    self.target, reduction.effective, hedge.districts, advice
                ) from None
            _verify(self, plan)
            self._kept[reduction.effective] = plan
        return self._kept[reduction.effective]

    def is_invariant(self, variable: str, intervened: Iterable[str]) -> bool:
        """Return whether P(variable | regressors) stays as it is under do(intervened).

        It does if the regressors separate the variable from an arrow that points at every member of
        the set.
        """
        members = self.graph.ordered(name for name in intervened if name in self.graph.nodes)
        if (variable, members) not in self._same:
            self._same[variable, members] = self._is_separated(variable, members)
        return self._same[variable, members]

    def _is_separated(self, variable: str, members: Names) -> bool:
        if variable in members:
            return False
        switch = max(self.graph.nodes, key=len) + "'"
        marked = CausalGraph(
            (switch, *self.graph.nodes),
            (*((switch, name) for name in members), *self.graph.directed),
            self.graph.bidirected,
        )
        return marked.m_separated(variable, switch, self.given[variable])


def plan_sampling(problem: "Problem") -> SamplingPlans:
    """Return regressions and plans for the effects of all sets of a problem.

    Among topological orders the one is taken whose regressions have the fewest regressors in all.
    Every plan is compared with the truth of random linear-Gaussian models.

    Raises
    ------
    NotIdentifiable
        If an effect cannot be learned at all.
    MechanismError
        If an effect is a ratio of averages.
    """
    sets = problem.identification.require_usable()
    graph = problem.graph.ancestral(problem.target)
    reductions = reduce_effects(graph, problem.target, sets)
    districts = {
        district: index
        for index, reduction in enumerate(reductions)
        for district in reversed(reduction.districts)
    }
    ratios = []
    for given in _candidates(graph):
        try:
            for district in districts:
                _factor(graph, given, district)
        except RatioNeeded as needed:
            ratios.append(needed.district)
            continue
        plans = SamplingPlans(graph, problem.target, given, sets)
        for members in sets:
            plans.plan(members)
        return plans
    members = sets[districts[ratios[0]]]
    raise MechanismError(
        f"the effect of do({', '.join(members)}) on {problem.target!r} needs a ratio of averages, "
        f"for the distribution of {listed(ratios[0])} whatever else is set, and regressions cannot "
        'be divided by each other; drop this set, or take mechanisms="linear" with '
        'method="wishart"'
    )


def _candidates(graph: CausalGraph) -> Iterator[dict[str, Names]]:
    """Yield the regressors of all variables in several orders, the fewest first."""
    found: dict[tuple[tuple[str, Names], ...], None] = {}
    for order in _orders(graph):
        given = {name: _regressors(graph, order, index) for index, name in enumerate(order)}
        found.setdefault(tuple(given.items()))
    ranked = sorted(found, key=lambda each: sum(len(names) for _, names in each))
    yield from map(dict, ranked)


def _orders(graph: CausalGraph) -> Iterator[Names]:
    """Yield topological orders: that of the graph, then drawn ones from a fixed seed."""
    yield graph.nodes
    generator = np.random.default_rng(ORDER_SEED)
    if not graph.bidirected:
        return
    for _ in range(MOST_ORDERS):
        order: list[str] = []
        waiting = list(graph.nodes)
        while waiting:
            ready = [name for name in waiting if set(graph.parents(name)) <= set(order)]
            order.append(ready[int(generator.integers(len(ready)))])
            waiting.remove(order[-1])
        yield tuple(order)


def _regressors(graph: CausalGraph, order: Sequence[str], index: int) -> Names:
    """Return b(v) of the variable at an index: its district among earlier ones, with parents."""
    district = district_within(graph, order[index], order[: index + 1])
    return graph.ordered(set(graph.with_parents(district)) - {order[index]})


def _factor(graph: CausalGraph, given: Mapping[str, Names], district: Names) -> Names:
    """Return T such that Q[district] is the sum over T minus the district of prod P(v | b(v)).

    Raises HedgeFound where there is no formula, RatioNeeded where it is a ratio.
    """
    rank = {name: position for position, name in enumerate(given)}
    last = max(rank[name] for name in district)  # later variables sum to 1
    inside = district_within(graph, district[0], [name for name in given if rank[name] <= last])
    while True:
        causes = ancestors_within(graph, district, inside)
        if causes == district:
            return inside
        if causes == inside:
            raise HedgeFound(inside, district)
        smaller = district_within(graph, district[0], causes)
        summed = set(inside) - set(causes)
        if min(rank[name] for name in summed) < max(rank[name] for name in smaller):
            raise RatioNeeded(district)
        inside = smaller


def _make_plan(graph: CausalGraph, given: Mapping[str, Names], reduction: Reduction) -> Plan:
    """Return the draws of one effect, in the order of the regressions.

    A draw is found by its variable and the index of its factor, or NATURAL.
    """
    factors = [(set(each), set(_factor(graph, given, each))) for each in reduction.districts]
    own = {name: index for index, (district, _) in enumerate(factors) for name in district}
    target = graph.nodes[-1]
    found: dict[tuple[str, int], tuple[tuple[str, int] | str, ...]] = {}

    def source(name: str, factor: int) -> tuple[str, int] | str:
        if factor != NATURAL and name in factors[factor][1]:
            return name, factor
        if factor != NATURAL and name in own:
            return name, own[name]
        return name if factor != NATURAL and name in reduction.effective else (name, NATURAL)

    waiting = [(target, own[target])]
    while waiting:
        name, factor = waiting.pop()
        if (name, factor) not in found:
            found[name, factor] = tuple(source(each, factor) for each in given[name])
            waiting += [each for each in found[name, factor] if isinstance(each, tuple)]
    rank = {name: position for position, name in enumerate(given)}
    keys = sorted(found, key=lambda key: (rank[key[0]], own.get(key[0], NATURAL) != key[1], key[1]))
    positions = {key: position for position, key in enumerate(keys)}
    draws = tuple(
        Draw(
            key[0],
            tuple(each if isinstance(each, str) else positions[each] for each in found[key]),
            own.get(key[0], NATURAL - 1) == key[1],
        )
        for key in keys
    )
    return Plan(reduction.effective, draws)


def linear_effect(
    plans: SamplingPlans, plan: Plan, mean: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what a plan gives if its regressions are those of a Gaussian.

    mean, covariance: (..., p) and (..., p, p), of the variables of `plans.graph`.

    Returns
    -------
    Slopes (..., d) in the values of `plan.intervened`, intercept (...) and variance (...) of the
    target.
    """
    count, index = len(plan.intervened), plans.graph.index
    rows: list[np.ndarray] = []
    for index_of_draw, draw in enumerate(plan.draws):
        position, given = index(draw.variable), list(map(index, plans.given[draw.variable]))
        cross = covariance[..., given, position]
        slopes = np.linalg.solve(covariance[..., given, :][..., given], cross[..., None])[..., 0]
        row = np.zeros((*mean.shape[:-1], 1 + count + len(plan.draws)))
        row[..., 0] = mean[..., position] - (slopes * mean[..., given]).sum(axis=-1)
        left = covariance[..., position, position] - (slopes * cross).sum(axis=-1)
        row[..., 1 + count + index_of_draw] = np.sqrt(left)
        for number, each in enumerate(draw.sources):
            weight = slopes[..., number]
            if isinstance(each, str):
                row[..., 1 + plan.intervened.index(each)] += weight
            else:
                row += weight[..., None] * rows[each]
        rows.append(row)
    slopes, weights = rows[-1][..., 1 : 1 + count], rows[-1][..., 1 + count :]
    return slopes, rows[-1][..., 0], (weights**2).sum(axis=-1)


def _verify(plans: SamplingPlans, plan: Plan) -> None:
    """Compare a plan with the truth of random models: slopes, intercept and variance."""
    graph, trials = plans.graph, draw_trials(plans.graph, TRIALS)
    mask = np.array([[name in plan.intervened for name in graph.nodes]])
    truth = true_effects(trials, graph.index(plans.target), mask)
    slopes, intercept, variance = linear_effect(plans, plan, *trials.moments)
    true = truth.slopes[:, 0, mask[0]], truth.intercepts[:, 0], truth.variances[:, 0]
    pairs = zip((slopes, intercept, variance), true, strict=True)
    error = max(relative_error(one, other, 1.0) for one, other in pairs)
    if not error <= TOLERANCE:
        raise UnverifiedEstimand(
            f"averages of regressions miss the effect of do({', '.join(plan.intervened)}) on "
            f"{plans.target!r} in a random model by {error:.1e}"
        )
