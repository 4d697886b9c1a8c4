"""Errors along paths and of unexplored sets, against enumeration and a simulated nonlinear SEM.

Internals: every query is assigned to its set by the labels of the theory.
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.theory.information_gains import set_labels

pytestmark = pytest.mark.heavy


def random_slopes(problem, seed):
    draws = np.random.default_rng(seed)
    slopes = {edge: float(draws.uniform(0, 2)) for edge in problem.graph.directed}
    return slopes, {name: float(draws.uniform(0, 0.5)) for name in problem.graph.nodes}


@pytest.mark.parametrize("seed", range(4))
def test_path_sensitivities_are_sums_over_enumerated_paths(seed):
    problem, _ = cases.random_problem(seed)
    slopes, errors = random_slopes(problem, seed)

    def enumerate_paths(node, members):
        if node == problem.target:
            return [1.0]
        onward = [child for child in problem.graph.children(node) if child not in members]
        return [
            slopes[node, child] * rest
            for child in onward
            for rest in enumerate_paths(child, members)
        ]

    table = theory.path_sensitivities(problem, slopes)
    bound = theory.path_lipschitz_bound(problem, slopes, errors)
    for members, (label, line) in zip(problem.sets, table.iterrows(), strict=True):
        expected = {
            node: 0.0 if node in members else sum(enumerate_paths(node, members))
            for node in problem.graph.nodes
        }
        assert label == ", ".join(members) and line.to_dict() == pytest.approx(expected, rel=1e-12)
        assert bound[label] == pytest.approx(
            sum(expected[node] * errors[node] for node in errors), rel=1e-12
        )


@pytest.mark.parametrize("seed", range(3))
def test_no_effect_of_a_perturbed_nonlinear_model_is_off_by_more_than_the_path_bound(seed):
    problem, _ = cases.random_problem(seed)
    slopes, errors = random_slopes(problem, seed)
    nodes, queries, draws = problem.graph.nodes, problem.sobol(2), np.random.default_rng(seed)
    noise = draws.normal(size=(500, len(nodes)))
    bound = theory.path_lipschitz_bound(problem, slopes, errors)

    def effect(mask, value, curve, fault):
        found = np.zeros(noise.shape)
        for position, node in enumerate(nodes):
            causes = problem.graph.parents(node)
            shares = [slopes[cause, node] * curve(found[:, nodes.index(cause)]) for cause in causes]
            natural = (
                sum(shares)
                + noise[:, position]
                + fault(errors[node], found[:, :position].sum(axis=1))
            )
            found[:, position] = value[position] if mask[position] else natural
        return found[:, nodes.index(problem.target)].mean()

    faults = [lambda size, u: size * np.cos(3 * u), lambda size, u: size]
    for row, label in enumerate(set_labels(problem, queries)):
        mask, value = queries.mask[row], queries.value[row]
        for curve in (np.tanh, np.sin, lambda u: u):
            exact = effect(mask, value, curve, lambda size, u: 0.0)
            gaps = [abs(effect(mask, value, curve, fault) - exact) for fault in faults]
            assert max(gaps) <= bound[label] * (1 + 1e-9)
        assert gaps[1] == pytest.approx(
            bound[label], rel=1e-9
        )  # linear, all errors at once: the bound is reached


def test_invalid_slopes_and_errors_are_refused(chain):
    slopes, problem = {("X", "Z"): 0.8, ("Z", "Y"): 1.3}, chain.problem
    for given, errors, match in [
        ({("X", "Z"): 0.8}, {}, "slopes lack Z -> Y; give one for every edge upstream"),
        (slopes | {("X", "Y"): 1.0}, {}, r"unknown edge \('X', 'Y'\)"),
        (
            slopes | {("X", "Z"): -0.8},
            {},
            "the slope of X -> Z must be finite and 0 or more, got -0.8",
        ),
        (slopes | {("X", "Z"): np.nan}, {}, "the slope of X -> Z must be finite"),
        (slopes, {"Y": 1.0}, "errors lack the mechanisms of Z; give a bound for each"),
        (slopes, {"Y": 1.0, "Z": -1.0}, "the error of 'Z' must be finite and 0 or more"),
        (slopes, {"Y": 1.0, "Z": 1.0, "W": 1.0}, "unknown variable 'W'"),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            theory.path_lipschitz_bound(problem, given, errors)


def test_exploration_error_is_the_gain_of_the_omitted_sets(chain):
    problem = chain.problem
    for objective in ("min", "max"):
        options = {"objective": objective, "domains": problem.domains}
        narrow = replace(chain, problem=cb.Problem(problem.graph, "Y", sets=[("X",)], **options))
        found = theory.exploration_error(narrow)
        assert found.value == pytest.approx(1.3 * 5 - 1.04 * 5, rel=1e-12)
        assert abs(found.best.value) == pytest.approx(6.5) and list(
            found.explored.intervention
        ) == ["X"]
        whole = replace(chain, problem=cb.Problem(problem.graph, "Y", sets="mis", **options))
        assert theory.exploration_error(whole).value == 0.0


def test_what_unexplored_sets_cost_is_found_over_all_subsets():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    problem = system.problem
    everything = cb.Problem(
        problem.graph, problem.target, domains=problem.domains, sets=len(problem.domains)
    )
    best = float(np.min(system.effect(everything.vertices())))
    found = theory.exploration_error(system)
    assert found.value == pytest.approx(system.optimum.value - best, rel=1e-9) and found.value > 0.5
    with pytest.raises(
        cb.errors.ArgumentError,
        match="eps_E needs a CausalSystem, whose truth is known; got Problem",
    ):
        theory.exploration_error(problem)
