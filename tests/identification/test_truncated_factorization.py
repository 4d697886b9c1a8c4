"""Effects without latent causes upstream: one pass over all sets agrees with dense algebra.

Internals: single factors and their errors are compared with dense algebra.
"""

from time import perf_counter, process_time

import numpy as np
import pytest
from helpers.oracles import random_admg
from y0.dsl import Product, Sum, Variable

import causal_bo_ppl as cb
from causal_bo_ppl.identification import algorithm as formulas
from causal_bo_ppl.identification.finite_field import is_exact_effect
from causal_bo_ppl.identification.parameters import reduce_effect, reduce_effects, surroundings
from causal_bo_ppl.identification.verification import (
    TRIALS,
    draw_trials,
    read_regression,
    truncated_errors,
)
from causal_bo_ppl.identification.y0_adapter import conditional

DIAMOND = cb.CausalGraph.parse("W -> X -> Z -> Y; W -> Z; X -> Y")


def questions(draws, arcs):
    """A random graph with so many arcs at most, a target, and sets of its causes."""
    while True:
        nodes, directed, bidirected = random_admg(draws, 8)
        if directed:
            break
    graph = cb.CausalGraph.from_edges(directed, bidirected[:arcs], nodes=nodes)
    target = str(draws.choice(sorted({effect for _, effect in directed})))
    causes = graph.ancestors(target)
    several = [causes, causes[:2], tuple(v for v in causes if draws.uniform() < 0.5)]
    return graph, target, list(dict.fromkeys([(), *((v,) for v in causes), *several]))


def dense(graph, target, members):
    """The estimand and its error by dense algebra, whatever the factors are."""
    causes = graph.ancestral(target)
    trials, reduction = draw_trials(causes, TRIALS), reduce_effect(causes, target, members)
    factors = {each: formulas.identify_factor(causes, each, trials) for each in reduction.districts}
    [answer] = formulas._of_factors(causes, target, [reduction], factors, trials)
    return answer


@pytest.mark.heavy
@pytest.mark.parametrize("arcs", [0, 1, 20])
def test_dense_proof_gives_the_same_formulas_and_verdicts(arcs):
    draws, count = np.random.default_rng(arcs), {True: 0, False: 0}
    for _ in range(40):
        graph, target, sets = questions(draws, arcs)
        for members, found in cb.identify(graph, target, sets, progress=False).items():
            other = dense(graph, target, members)
            assert (found.estimand, found.hedge, found.trials) == other[:1] + other[2:4]
            assert found.route == other.route
            if found.identifiable:
                assert max(found.error, other.error) < 1e-10 and found.verified
                assert is_exact_effect(found.estimand, graph, target, found.effective)
                count[found.of_regressions] += 1
    assert count[True] > 40 and (arcs < 20 or count[False] > 40)


@pytest.mark.parametrize("arcs", [0, 20])
def test_pass_over_all_sets_reduces_each_as_if_it_were_alone(arcs):
    draws = np.random.default_rng(arcs)
    for _ in range(60):
        graph, target, sets = questions(draws, arcs)
        sets += [(*sets[-1], "elsewhere")]
        found = reduce_effects(graph, target, sets)
        assert found == [reduce_effect(graph, target, members) for members in sets]


def parts():
    """The diamond, its regressions, and the estimand of do(W) with its factors by variable."""
    trials = draw_trials(DIAMOND, TRIALS)
    reduction = reduce_effect(DIAMOND, "Y", ["W"])
    factors = {
        each: formulas.identify_factor(DIAMOND, each, trials) for each in reduction.districts
    }
    regressions = formulas._regressions(DIAMOND, factors)
    return trials, regressions, {name: one.expression for name, one in regressions.items()}


def judged(estimand, trials, regressions, members=("W",)):
    [error] = truncated_errors(DIAMOND, "Y", [members], [estimand], regressions, trials)
    return error


def summed(factors, bound):
    return Sum(Product(tuple(factors)), frozenset(map(Variable, bound)))


def test_wrong_products_and_sums_are_seen():
    trials, regressions, of = parts()
    right = summed([of["Y"], of["Z"], of["X"]], "XZ")
    assert judged(right, trials, regressions) < 1e-12
    assert judged(right, trials, regressions, members=("X",)) > 1e-3  # the effect of another set
    assert judged(summed([of["Y"], of["Z"]], "Z"), trials, regressions) > 1e-3  # X is left free
    for wrong in (
        summed([of["Y"], of["Z"], of["X"]], "Z"),  # X has a factor and is not summed
        summed([of["Y"], of["Z"], of["X"]], "XYZ"),
        summed([of["Y"], of["Z"], of["Z"], of["X"]], "XZ"),
        summed([of["Z"], of["X"]], "XZ"),  # no density of the target
        summed([conditional("Y", ["Z"]), of["Z"], of["X"]], "XZ"),  # lacks the arrow from X
        summed([conditional("Y", ["X", "Z"]), of["Z"], of["X"]], "XZ"),  # was never verified
    ):
        assert np.isinf(judged(wrong, trials, regressions)), wrong


def test_wrong_coefficient_of_one_factor_is_seen_in_every_set_that_uses_it():
    trials, regressions, of = parts()
    right = summed([of["Y"], of["Z"], of["X"]], "XZ")
    for change in ({"coefficients": 1.001}, {"intercept": 1.001}, {"variance": 1.001}):
        [(field, factor)] = change.items()
        changed = regressions["Z"]._replace(**{field: getattr(regressions["Z"], field) * factor})
        assert judged(right, trials, regressions | {"Z": changed}) > 1e-6
    alone = regressions["Z"].coefficients * [1.001, 1.0]  # of W, which is set: a slope and no more
    changed = regressions["Z"]._replace(coefficients=alone)
    assert DIAMOND.nodes[regressions["Z"].parents[0]] == "W"
    assert judged(right, trials, regressions | {"Z": changed}) > 1e-6
    uncertain = regressions["X"]._replace(error=1.0)
    assert judged(right, trials, regressions | {"X": uncertain}) == 1.0


def test_only_regressions_on_all_direct_causes_count_as_such():
    trials = draw_trials(DIAMOND, TRIALS)
    positions = {name: DIAMOND.index(name) for name in DIAMOND.nodes}
    for expression in (conditional("Z", ["X"]), conditional("Z", []), conditional("W", [])):
        potential = formulas.evaluate(expression, trials.moments, positions)
        assert read_regression(DIAMOND, "Z", expression, potential) is None
    expression = conditional("Z", ["W", "X"])
    potential = formulas.evaluate(expression, trials.moments, positions)
    found = read_regression(DIAMOND, "Z", expression, potential)
    weights = trials.weights[:, [positions["W"], positions["X"]], positions["Z"]]
    assert np.allclose(found.coefficients, weights, rtol=1e-9) and found.error < 1e-12
    doubled = potential._replace(constant=potential.constant + np.log(2))
    assert read_regression(DIAMOND, "Z", expression, doubled).error > 0.1


def test_estimand_that_misses_the_truth_is_not_returned(monkeypatch):
    def blind(graph, target, members, *rest):
        return (1e-3 for _ in members)

    monkeypatch.setattr(formulas, "truncated_errors", blind)
    with pytest.raises(cb.errors.UnverifiedEstimand, match=r"P\(Y \| do\(X\)\).* by 1.0e-03"):
        cb.identify(DIAMOND, "Y", ["X"])


def test_parents_of_one_variable_may_have_any_distribution_in_its_check():
    graph = cb.CausalGraph.parse("A; B; C; A -> Y; B -> Y; C -> Y")
    around = surroundings(graph, ("Y",))
    assert around.directed == (*[("A", v) for v in "BCY"], *[("B", v) for v in "CY"], ("C", "Y"))
    assert surroundings(graph, ("A",)).nodes == ("A",)


def test_verification_reports_how_the_whole_was_compared():
    found = cb.identify(DIAMOND, "Y", ["X"])["X"]
    assert "integrated variable by variable, in 3 random" in found.verification
    front = cb.identify(cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", ["X"])["X"]
    assert "every factor without rounding" in front.verification
    assert "variable by variable" not in front.verification


def test_marks_and_truth_of_many_sets_do_not_depend_on_blocks(monkeypatch):
    graph, target, sets = questions(np.random.default_rng(3), 0)
    one = cb.identify(graph, target, sets)
    monkeypatch.setattr(cb.identification.verification, "LOADS_IN_MEMORY", 1)
    other = cb.identify(graph, target, sets)
    assert all(each.error < 1e-12 for each in (*one.values(), *other.values()))
    assert [each.text for each in one.values()] == [each.text for each in other.values()]


def network(size):
    """A random network in which a variable has about two causes among the forty before it."""
    draws = np.random.default_rng(0)
    names, edges = [f"V{position:04}" for position in range(size)], []
    for position in range(1, size):
        near = names[max(0, position - 40) : position]
        chosen = draws.choice(near, min(len(near), draws.poisson(2)), replace=False)
        edges += [(str(cause), names[position]) for cause in chosen]
    graph = cb.CausalGraph.from_edges(edges, nodes=names)
    return graph, max(names, key=lambda name: len(graph.ancestors(name)))


@pytest.mark.slow
def test_all_single_sets_of_500_and_of_1000_nodes_are_identified_in_seconds(capsys):
    cb.identify(*network(20), 1)
    for size, most in ((250, 30), (500, 30), (1000, 120)):
        graph, target = network(size)
        sets = [(name,) for name in graph.ancestors(target)]
        start = perf_counter()
        found = cb.identify(graph, target, sets, progress=False)
        took = perf_counter() - start
        with capsys.disabled():
            print(f"\n{size} nodes, {len(sets)} sets: {took:.1f} s", end="")  # noqa: T201
        assert took < most and all(one.verified for one in found.values())
        chosen = sets[len(sets) // 2]
        mean, covariance = dense_moments(graph)
        [(slope,)] = [found[chosen].evaluate(covariance).values()]
        assert slope == pytest.approx(total_effect(graph, chosen[0], target), rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_minimal_sets_of_sixteen_direct_causes_are_fitted_in_ten_seconds():
    names = [f"X{position:02}" for position in range(16)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    problem = cb.Problem(graph, "Y", domains={name: (-1, 1) for name in names}, sets="mis")
    values = np.random.default_rng(0).normal(size=(300, 17))
    values[:, -1] += values[:, :-1].sum(axis=1)
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    start = process_time()
    post = cb.fit(problem, data)
    assert process_time() - start < 10 and len(problem.sets) == 2**16 - 1
    design = np.column_stack([np.ones(300), values[:, :-1]])
    oracle = np.linalg.lstsq(design, values[:, -1], rcond=None)[0]
    found = [post.mean[post.names.index(f"b[{name}->Y]")] for name in names]
    assert np.allclose(found, oracle[1:], atol=1e-3)


def weights_of(graph):
    """Coefficients of every edge, 0.5 or -0.5 by turns."""
    weights = np.zeros((len(graph.nodes),) * 2)
    for position, (cause, effect) in enumerate(graph.directed):
        weights[graph.index(cause), graph.index(effect)] = 0.5 - position % 2
    return weights


def dense_moments(graph):
    solve = np.linalg.inv(np.eye(len(graph.nodes)) - weights_of(graph).T)
    return np.zeros(len(graph.nodes)), solve @ solve.T


def total_effect(graph, cause, target):
    weights = weights_of(graph)
    weights[:, graph.index(cause)] = 0.0
    solve = np.linalg.inv(np.eye(len(graph.nodes)) - weights)
    return solve[graph.index(cause), graph.index(target)]
