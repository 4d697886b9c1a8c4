"""Plans by which effects are averaged over regressions, against exact models of several kinds.

Internals: a plan is compared with exact models before any posterior uses it.
"""

import itertools

import numpy as np
import pytest
from helpers.identified_cases import NAPKIN, random_query
from helpers.oracles import BinarySCM
from y0.dsl import Fraction

import causal_bo_ppl as cb
from causal_bo_ppl.identification import sampling_plans
from causal_bo_ppl.identification.sampling_plans import Draw, linear_effect, plan_sampling
from causal_bo_ppl.identification.verification import draw_trials


def make_problem(text, sets, target="Y", **options):
    graph = cb.CausalGraph.parse(text) if isinstance(text, str) else text
    domains = dict.fromkeys(graph.ancestors(target), (-1.0, 1.0))
    return cb.Problem(graph, target, domains=domains, sets=sets, **options)


def has_ratio(expression):
    """Whether a y0 expression holds a fraction anywhere."""
    if isinstance(expression, Fraction):
        return True
    inner = [getattr(expression, "expression", None), *getattr(expression, "expressions", ())]
    return any(has_ratio(each) for each in inner if each is not None)


def random_effects(seed, count):
    """Random graphs with an identifiable set: problem, identification."""
    draws, found = np.random.default_rng(seed), 0
    while found < count:
        nodes, directed, bidirected, chosen, target = random_query(draws, 6)
        graph = cb.CausalGraph(nodes, directed, bidirected)
        ids = cb.identify(graph, target, [chosen])
        if ids[chosen].identifiable and graph.ancestral(target).bidirected:
            found += 1
            yield make_problem(graph, [chosen], target), ids[chosen]


def enumerate_plan(plans, plan, joint, values):
    """P(target = 1) of a plan by brute force over all draws, from a table of binary variables."""
    nodes = plans.graph.nodes

    def chance(draw, bits):
        index = [slice(None)] * len(nodes)
        for name, source in zip(plans.given[draw.variable], draw.sources, strict=True):
            index[nodes.index(name)] = values[source] if isinstance(source, str) else bits[source]
        table, own = joint[tuple(index)], nodes.index(draw.variable)
        left = [at for at, each in enumerate(index) if isinstance(each, slice)]
        table = table.sum(axis=tuple(at for at, position in enumerate(left) if position != own))
        return table[1] / table.sum()

    total = 0.0
    for bits in itertools.product((0, 1), repeat=len(plan.draws) - 1):
        weight = 1.0
        for at, bit in enumerate(bits):
            one = chance(plan.draws[at], bits)
            weight *= one if bit else 1 - one
        total += weight * chance(plan.draws[-1], bits)
    return total


def test_front_door_draws_a_copy_of_what_is_set():
    plans = plan_sampling(make_problem("X -> Z -> Y; X <-> Y", [("X",), ("Z",)]))
    assert dict(plans.given) == {"X": (), "Z": ("X",), "Y": ("X", "Z")}
    copy = Draw("X", (), is_own=False)
    assert plans.plan(["X"]).draws == (copy, Draw("Z", ("X",), True), Draw("Y", (0, 1), True))
    assert plans.plan(["Z"]).draws == (copy, Draw("Y", (0, "Z"), True))


def test_regressions_of_synthetic_and_funnel_are_few_and_shared():
    plans = plan_sampling(cb.models.load("synthetic").problem)
    assert {name: set(plans.given[name]) for name in plans.variables} == {
        "F": set(),
        "A": {"F"},
        "B": set(),
        "C": {"B"},
        "D": {"C"},
        "E": {"A", "C"},
        "Y": set("ABDEF"),
    }
    drawn = {draw.variable: draw for draw in plans.plan(["B", "D"]).draws}
    assert not drawn["B"].is_own and drawn["C"].sources == ("B",) and "D" not in drawn
    funnel = plan_sampling(cb.models.load("funnel", variant="nonlinear").problem)
    sizes = {name: len(funnel.given[name]) for name in funnel.variables}
    assert sizes == {f"X{i}": 0 for i in range(1, 7)} | {f"M{i}": 2 for i in (1, 2, 3)} | {
        "H": 3,
        "Y": 7,
    }


def require_slopes(problem, found):
    """Compare a plan with the verified estimand in random linear models."""
    plans, graph = plan_sampling(problem), problem.graph
    moments = draw_trials(graph, 2).moments
    columns = [graph.index(name) for name in plans.graph.nodes]
    mean, covariance = np.asarray(moments.mean), np.asarray(moments.covariance)
    plan = plans.plan(found.intervened)
    part = covariance[:, columns][:, :, columns]
    slopes, intercepts, _ = linear_effect(plans, plan, mean[:, columns], part)
    exact = found.evaluate(covariance)
    centre = mean[:, graph.index(problem.target)]
    for at, name in enumerate(plan.intervened):
        np.testing.assert_allclose(slopes[:, at], exact[name], atol=1e-8, rtol=1e-6)
        centre = centre - exact[name] * mean[:, graph.index(name)]
    np.testing.assert_allclose(intercepts, centre, atol=1e-8, rtol=1e-6)


def test_plans_have_the_slopes_of_the_verified_estimands():
    for problem, found in random_effects(5, 15):
        require_slopes(problem, found)


@pytest.mark.slow
def test_exactly_the_estimands_with_a_ratio_have_no_plan():
    ratios = 0
    for problem, found in random_effects(1, 300):
        if not has_ratio(found.estimand):
            require_slopes(problem, found)
            continue
        ratios += 1
        with pytest.raises(cb.errors.MechanismError, match="needs a ratio of averages"):
            plan_sampling(problem)
    assert ratios


def test_plans_are_right_in_binary_models_where_nothing_is_linear():
    """In the last one A is drawn twice: it is a cause of Y, and summed beside S in Y's factor."""
    draws, problems = (
        np.random.default_rng(7),
        [problem for problem, found in random_effects(6, 15) if not has_ratio(found.estimand)],
    )
    problems.append(make_problem("A -> M -> Y; S -> N -> Y; A <-> S; S <-> Y", [("S",)]))
    for problem in problems:
        plans = plan_sampling(problem)
        graph, plan = plans.graph, plans.plan(problem.sets[0])
        scm = BinarySCM(draws, graph.nodes, graph.directed, graph.bidirected)
        values = dict.fromkeys(plan.intervened, 1)
        truth = scm.joint(plan.intervened)
        for name in reversed(graph.nodes):
            at = graph.index(name)
            truth = truth[(slice(None),) * at + (1,)] if name in values else truth
        truth = truth.reshape(-1, 2).sum(axis=0)  # the target is the last axis
        ours = enumerate_plan(plans, plan, scm.joint(), values)
        assert ours == pytest.approx(truth[1] / truth.sum(), abs=1e-9)
    assert sum(draw.variable == "A" for draw in plan.draws) == 2


def test_invariant_regressions_are_those_that_an_experiment_leaves_as_they_are():
    """Covariances under do(s), s drawn at random, by dense algebra."""
    seen = {True: 0, False: 0}
    for problem, found in random_effects(8, 12):
        if has_ratio(found.estimand):
            continue
        plans = plan_sampling(problem)
        graph, trials = plans.graph, draw_trials(plans.graph, 1)
        members = list(graph.nodes[:-1][seen[True] % 2 :: 2])
        at = [graph.index(name) for name in members]
        weights, noise = trials.weights[0].copy(), trials.noise[0].copy()
        weights[:, at] = 0.0
        noise[at], noise[:, at] = 0.0, 0.0
        noise[at, at] = 2.0
        solve = np.linalg.inv(np.eye(len(weights)) - weights.T)
        spreads = np.asarray(trials.moments.covariance)[0], solve @ noise @ solve.T
        for name, given in plans.given.items():
            if name in members:
                assert not plans.is_invariant(name, members)
                continue
            positions, own = [graph.index(each) for each in given], graph.index(name)
            laws = []
            for spread in spreads:
                slopes = np.linalg.solve(
                    spread[np.ix_(positions, positions)], spread[positions, own]
                )
                left = spread[own, own] - slopes @ spread[positions, own]
                laws.append(np.append(slopes, left))
            same = bool(np.allclose(*laws, rtol=1e-7, atol=1e-9))
            assert plans.is_invariant(name, members) == same, (graph, name, given, members)
            seen[same] += 1
    assert min(seen.values()) > 5


def test_another_order_of_the_variables_avoids_a_ratio():
    """B is no cause of C, but comes before it in the graph's own order."""
    text = "A -> C -> Y; B -> Y; A <-> B; B <-> C"
    problem = make_problem(text, [("A", "B")])
    assert problem.graph.nodes.index("B") < problem.graph.nodes.index("C")
    plans = plan_sampling(problem)
    order = list(plans.given)
    assert plans.given["C"] == ("A",) and order.index("C") < order.index("B")


def test_hedges_and_ratios_are_refused_by_name():
    with pytest.raises(cb.errors.NotIdentifiable, match="cannot be learned"):
        plan_sampling(make_problem("X -> Y; X <-> Y", [("X",)]))
    with pytest.raises(cb.errors.MechanismError, match=r"do\(X\) on 'Y' needs a ratio.*wishart"):
        plan_sampling(make_problem(NAPKIN, [("X",)]))


def test_a_wrong_plan_is_found_out(monkeypatch):
    wrong = sampling_plans._make_plan

    def without_copies(graph, given, reduction):
        plan = wrong(graph, given, reduction)
        draws = tuple(
            draw._replace(sources=tuple("X" if each == 0 else each for each in draw.sources))
            for draw in plan.draws
        )
        return plan._replace(draws=draws)

    monkeypatch.setattr(sampling_plans, "_make_plan", without_copies)
    with pytest.raises(cb.errors.UnverifiedEstimand, match="miss the effect of do"):
        plan_sampling(make_problem("X -> Z -> Y; X <-> Y", [("X",)]))
