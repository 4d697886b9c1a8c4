"""Regressions in place of mechanisms: which are needed, what teaches them, and rows drawn by them.

Where latent causes join causes of the target, every variable has the regression that
`identification.sampling_plans` names. Its law stays as it is under some experiments only, and rows
under do() are drawn along the plan of what is set.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from causal_bo_ppl.data import Data
from causal_bo_ppl.data.learnability import require_learnable
from causal_bo_ppl.errors import ModelError, listed
from causal_bo_ppl.graph import CausalGraph, Names
from causal_bo_ppl.identification.sampling_plans import SamplingPlans
from causal_bo_ppl.mechanisms.gp.priors import GPPrior
from causal_bo_ppl.problem import Problem, Queries
from causal_bo_ppl.problem.queries import distinct_rows, set_label

SPARE = 3  # rows needed beyond the number of regressors
Draw = Callable[[str, np.ndarray], np.ndarray]


def needed_variables(graph: CausalGraph, target: str, sets: Sequence[Sequence[str]]) -> Names:
    """Return the variables whose mechanisms some effect depends on, in the graph's order."""
    needed = {name for members in sets for name in _needed_by_set(graph, target, tuple(members))}
    return tuple(name for name in graph.nodes if name in needed)


@lru_cache(maxsize=4096)
def _needed_by_set(graph: CausalGraph, target: str, members: Names) -> frozenset[str]:
    """Return the variables whose mechanisms the effect of one set depends on."""
    after = graph.do([name for name in members if name in graph.nodes])
    return frozenset({*after.ancestors(target), target} - set(members))


def regressors(problem: Problem, plans: SamplingPlans | None) -> dict[str, Names]:
    """Return what every variable that effects depend on is regressed on, in causal order.

    These are its causes, unless there are plans.
    """
    graph = problem.graph.ancestral(problem.target)
    if plans is not None:
        return {name: plans.given[name] for name in plans.variables}
    needed = needed_variables(graph, problem.target, problem.sets)
    return {name: graph.parents(name) for name in needed}


def usable_entries(plans: SamplingPlans | None, nodes: Sequence[str], data: Data) -> np.ndarray:
    """Return which rows say something about the equation of each variable in `nodes`, (n, p).

    None in which the variable was set. A regression also says nothing about rows of an experiment
    that changes the distribution of its variable given its regressors.
    """
    free = ~data.intervened[:, [data.nodes.index(name) for name in nodes]]
    if plans is None:
        return free
    firsts, groups = distinct_rows(~free)
    for number, first in enumerate(firsts):
        members = [name for name, is_free in zip(nodes, free[first], strict=True) if not is_free]
        if members:
            same = [plans.is_invariant(name, members) for name in nodes]
            free[groups == number] &= np.array(same)
    return free


def rows_of_target(
    problem: Problem, data: Data, queries: Queries, outcomes: np.ndarray
) -> tuple[np.ndarray, Data]:
    """Return which outcomes of the target alone are rows of its mechanism, and these rows.

    Where all causes of the target are set, and no latent cause joins it to them, its mechanism
    alone decides the outcome. In such a row every other variable counts as set, at its mean, so
    that the row says nothing about other mechanisms.

    Parameters
    ----------
    data:
        Rows that say where other variables lie.
    queries, outcomes:
        M interventions on the problem's variables, and what came out, (M,).

    Returns
    -------
    tuple
        Which are rows, (M,), and the rows.
    """
    graph, target = problem.graph, problem.target
    mask, place = np.asarray(queries.mask), graph.index(target)
    causes = [graph.index(name) for name in graph.parents(target)]
    which = np.asarray(mask[:, causes].all(axis=1) if causes else np.zeros(len(mask), bool))
    usual = data.values[data.is_observational]
    middle = usual.mean(axis=0) if len(usual) else np.zeros(mask.shape[1])
    values = np.where(mask, np.asarray(queries.value), middle)
    values[:, place] = outcomes
    is_set = np.ones(mask.shape, bool)
    is_set[:, place] = False
    return which, Data(data.nodes, target, values[which], is_set[which])


def require_rows(problem: Problem, plans: SamplingPlans | None, data: Data, prior: GPPrior) -> None:
    """Refuse rows that are too few, or vary too little, for an equation that is needed.

    Under a prior that says where all variables lie no rows are needed.
    """
    graph, given = problem.graph.ancestral(problem.target), regressors(problem, plans)
    if plans is not None:
        for cause, effect in problem.known:
            if effect in given and set(given[effect]) != set(graph.parents(effect)):
                raise ModelError(
                    f"the coefficient of {cause} -> {effect} is known, but latent causes join "
                    f"{effect!r} to others, and in its regression on {listed(given[effect])} the "
                    "coefficient is another one; leave it out of `known`"
                )
    if set(graph.nodes) <= set(prior.scales) & set(prior.ranges):
        return
    if plans is None:
        require_learnable(data, problem.graph, problem.known, nodes=given, spare=SPARE)
        return
    usable = dict(zip(graph.nodes, usable_entries(plans, graph.nodes, data).T, strict=True))
    require_learnable(
        data, problem.graph, problem.known, nodes=given, spare=SPARE, given=given, usable=usable
    )


def draw_under_plans(
    plans: SamplingPlans,
    learned: Sequence[str],
    nodes: Sequence[str],
    rows: np.ndarray,
    mask: np.ndarray,
    draw: Draw,
) -> np.ndarray:
    """Fill rows (n, r, p), in which set values and variables that are not learned stand.

    Where the experiment leaves the regressions of all that is drawn as they are, each variable is
    drawn by its regression on the row. Otherwise what reaches the target is drawn as the plan of
    the set says, jointly as under do(), and only the rest by regressions on the row.

    Parameters
    ----------
    learned, nodes:
        The variables that are drawn, in the order of their regressions; all variables.
    mask:
        What is set, (r, p).
    draw:
        A function of a variable and of rows (n, r', p) that draws it (n, r') by its regression.
    """
    firsts, groups = distinct_rows(mask)
    for number, first in enumerate(firsts):
        chosen = np.flatnonzero(groups == number)
        members = [name for name, is_set in zip(nodes, mask[first], strict=True) if is_set]
        part, own = rows[:, chosen], set(members)
        changed = [
            name for name in learned if name not in own and not plans.is_invariant(name, members)
        ]
        if changed and plans.target not in own:
            plan = plans.plan(members)
            drawn: list[np.ndarray] = []
            if lacking := {each.variable for each in plan.draws} - set(learned):
                raise ModelError(
                    f"rows of {set_label(tuple(members))} depend on the regressions of "
                    f"{listed(sorted(lacking))}, which no set of the problem needs; add it to the "
                    "sets"
                )
            for each in plan.draws:
                inputs = part.copy()
                for name, source in zip(plans.given[each.variable], each.sources, strict=True):
                    if not isinstance(source, str):
                        inputs[:, :, nodes.index(name)] = drawn[source]
                drawn.append(draw(each.variable, inputs))
            for each, values in zip(plan.draws, drawn, strict=True):
                if each.is_own:
                    part[:, :, nodes.index(each.variable)] = values
                    own.add(each.variable)
        for name in learned:
            if name not in own:
                part[:, :, nodes.index(name)] = draw(name, part)
        rows[:, chosen] = part
    return rows
