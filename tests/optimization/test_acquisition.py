"""Confidence bounds, improvements, draws, what costs make of them, and ties.

Internals: values are compared for a given state, without a search.
"""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import fitted_cases as cases
from helpers.acquisition_context import knowing, values_of
from helpers.dense_surrogate import dense_case
from scipy.integrate import quad
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.linalg import first_best
from causal_bo_ppl.optimization.acquisition import (
    best_position,
    read_acquisition,
    trait,
)
from causal_bo_ppl.optimization.choosing import choose
from causal_bo_ppl.optimization.state import States, begin
from causal_bo_ppl.problem.designs import vertices


@pytest.mark.parametrize("objective", ["min", "max"])
def test_no_point_of_any_box_beats_the_best_vertex(objective):
    problem, truth = cases.random_problem(2, size=4, objective=objective)
    post = cb.fit(problem, cases.simulate(problem, truth, 15, 0))
    surrogate = cb.surrogates.couple(post)
    for query, outcome in zip(problem.sobol(1), [1.0, -2.0, 0.5, 3.0, 1.0, 0.0, 2.0], strict=True):
        surrogate = surrogate.condition(query, outcome, 1.0)
    for beta in (0.0, 2.0, 50.0):
        corners, inside = problem.vertices(), problem.grid(9)
        at_vertices, everywhere = (
            values_of(cb.acquisition.ConfidenceBound(beta), surrogate, queries, objective)
            for queries in (corners, inside)
        )
        assert at_vertices.max() == pytest.approx(everywhere.max(), abs=1e-9)


def test_bound_is_optimistic_in_the_direction_of_the_goal():
    predicted = cb.surrogates.Prediction(np.array([1.0, 2.0]), np.array([0.5, 0.0]))
    surrogate, rule = (
        SimpleNamespace(predict=lambda queries: predicted),
        cb.acquisition.ConfidenceBound(4.0),
    )
    assert rule.value(surrogate, None, knowing(surrogate, "max", ())).tolist() == [2.0, 2.0]
    assert (-rule.value(surrogate, None, knowing(surrogate, "min", ()))).tolist() == [0.0, 2.0]


def test_of_equal_bounds_the_first_is_taken():
    assert first_best(np.array([3.0, 1.0 + 1e-13, 1.0, 2.0]), "min") == 1
    assert first_best(np.array([3.0, 3.0 + 1e-13, 1.0]), "max") == 0


def test_vertices_of_some_sets_are_those_of_the_problem():
    problem, _ = cases.random_problem(0, size=4)
    whole = problem.vertices()
    assert np.array_equal(vertices(problem, problem.sets).value, whole.value)
    some = vertices(problem, problem.sets[:2])
    assert np.array_equal(some.value, whole.value[: len(some)])


@pytest.fixture(scope="module")
def fitted():
    problem, truth = cases.random_problem(2, size=4)
    return problem, cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))


@pytest.mark.parametrize("objective", ["min", "max"])
def test_practical_bounds_are_the_formula(fitted, objective):
    problem, surrogate = fitted
    queries, sign = problem.grid(3), 1.0 if objective == "max" else -1.0
    mean, sd = surrogate.predict(queries)
    causal_sd = np.sqrt(np.diagonal(cb.jacobian_gram(surrogate.post, queries).gram))
    expected = sign * mean + np.sqrt(3.0) * sd + 0.7 * causal_sd - 0.2 * problem.cost(queries)
    rule = cb.acquisition.ConfidenceBound(3.0, causal=0.7, eta=0.2)
    found = values_of(rule, surrogate, queries, objective)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_the_regret_safe_bound_picks_the_query_of_the_practical_one(seed):
    problem, truth = cases.random_problem(seed, size=4)
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 20, seed)))
    queries = problem.vertices()
    safe = cb.acquisition.RegretSafeBound(2.0)
    plain, wide = (
        values_of(r, surrogate, queries) for r in (cb.acquisition.ConfidenceBound(2.0), safe)
    )
    assert first_best(plain, "max") == first_best(wide, "max")
    eps = cb.theory.parameter_error(surrogate.post).value
    np.testing.assert_allclose(wide - plain, eps, rtol=1e-9)
    given = cb.acquisition.RegretSafeBound(2.0, eps=eps)
    np.testing.assert_allclose(values_of(given, surrogate, queries), wide)


def test_the_pointwise_bound_is_never_wider_than_the_regret_safe_one(fitted):
    problem, surrogate = fitted
    queries = problem.vertices()
    plain, wide, pointwise = (
        values_of(rule, surrogate, queries, "max")
        for rule in (
            cb.acquisition.ConfidenceBound(2.0),
            cb.acquisition.RegretSafeBound(2.0),
            cb.acquisition.PointwiseBound(2.0),
        )
    )
    extra = pointwise - plain
    assert (extra >= 0).all() and (pointwise <= wide + 1e-9).all()
    largest = cb.theory.parameter_error(surrogate.post).pointwise
    assert extra.max() == pytest.approx(largest, rel=1e-9)


def test_the_schedule_of_beta_grows_with_rounds_and_queries():
    assert cb.acquisition.BetaSchedule(0.05).at(3, 40) == pytest.approx(
        2 * np.log(40 * 9 * np.pi**2 / 0.3)
    )
    with pytest.raises(cb.errors.ArgumentError, match="delta must lie between 0 and 1"):
        cb.acquisition.BetaSchedule(1.0)
    with pytest.raises(cb.errors.ArgumentError, match='beta must be a number, "schedule" or'):
        cb.acquisition.ConfidenceBound("linear")


def test_a_schedule_is_the_number_of_the_round(fitted):
    problem, surrogate = fitted
    queries = problem.vertices()
    scheduled = values_of(cb.acquisition.ConfidenceBound("schedule"), surrogate, queries, round=5)
    beta = cb.acquisition.BetaSchedule().at(5, len(queries))
    given = values_of(cb.acquisition.ConfidenceBound(beta), surrogate, queries, round=2)
    np.testing.assert_array_equal(scheduled, given)


def test_what_is_the_same_for_a_suggestion_is_computed_once(fitted):
    problem, surrogate = fitted
    context, calls = knowing(surrogate), []

    def compute():
        calls.append(1)
        return len(calls)

    assert [context.once("it", compute), context.once("it", compute)] == [1, 1]
    assert dataclasses.replace(context, round=2).once("it", compute) == 2
    assert context.incumbent is context.incumbent


def test_one_draw_decides_all_sets_at_once(fitted):
    problem, surrogate = fitted
    key = jax.random.key(3)
    rule, context = cb.acquisition.Thompson(), knowing(surrogate, key=key)
    queries = problem.vertices()
    values = rule.value(surrogate, queries, context)
    assert context.draws_functions
    np.testing.assert_allclose(values, -surrogate.sample(key, queries)[0])
    np.testing.assert_allclose(values[5:7], rule.value(surrogate, queries[5:7], context))
    with pytest.raises(cb.errors.ArgumentError, match="Thompson sampling draws: give a key"):
        values_of(rule, surrogate, queries)


def test_draws_of_a_batch_are_compared_within_it_only():
    problem, surrogate = dense_case()
    assert not knowing(surrogate, key=jax.random.key(0)).draws_functions


def test_a_batch_by_thompson_is_one_of_independent_draws():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(20, 0))
    settings = cb.Settings(rounds=1, acquisition="thompson", learn_from="target")
    state = States(begin(post, settings)).before
    key = jax.random.key(3)
    chosen = choose(state, 4, key=key)
    among = state.start.candidates.queries
    for position, each in enumerate(chosen):
        drawn = state.surrogate.sample(jax.random.fold_in(key, position), among)[0]
        index = int(drawn.argmin() if system.problem.objective == "min" else drawn.argmax())
        assert system.problem.interventions(each.query) == system.problem.interventions(
            among[index]
        )


def test_thompson_chooses_each_vertex_as_often_as_it_is_best(fitted):
    problem, surrogate = fitted
    queries, n = problem.vertices(), 600
    often = np.zeros(len(queries))
    for key in jax.random.split(jax.random.key(1), n):
        drawn = values_of(cb.acquisition.Thompson(key), surrogate, queries)
        often[first_best(drawn, "max")] += 1
    draws = surrogate.sample(2, queries, 40_000)
    share = np.bincount(draws.argmin(axis=1), minlength=len(queries)) / len(draws)
    error = np.sqrt(share * (1 - share) / n) + 3 / n
    assert (np.abs(often / n - share) <= 4.5 * error).all()


def test_costs_are_subtracted_or_divided_by(fitted):
    problem, surrogate = fitted
    queries, costs = problem.vertices(), problem.cost(problem.vertices())
    plain = values_of(cb.acquisition.ExpectedImprovement(0.0), surrogate, queries)
    rules = {
        "ratio": cb.acquisition.PerCost(cb.acquisition.ExpectedImprovement(0.0)),
        "log": cb.acquisition.PerCost(cb.acquisition.LogExpectedImprovement(0.0)),
        "less": cb.acquisition.CostSubtracted(cb.acquisition.ExpectedImprovement(0.0), 0.3),
    }
    values = {name: values_of(rule, surrogate, queries) for name, rule in rules.items()}
    np.testing.assert_allclose(values["ratio"], plain / costs)
    np.testing.assert_allclose(np.exp(values["log"]), plain / costs, rtol=1e-9)
    np.testing.assert_allclose(values["less"], plain - 0.3 * costs)
    assert rules["ratio"].name == "ei per cost"
    assert trait(rules["log"], "is_log") and not trait(rules["less"], "is_nonnegative")
    assert trait(rules["less"], "at_vertices") and trait(rules["less"], "uses_costs")
    named = values_of(cb.acquisition.PerCost("ei"), surrogate, queries)
    best = float(surrogate.predict(queries).mean.min())
    given = values_of(cb.acquisition.ExpectedImprovement(best), surrogate, queries)
    np.testing.assert_allclose(named, given / costs)
    with pytest.raises(cb.errors.ArgumentError, match="'ucb' can be negative"):
        cb.acquisition.PerCost("ucb")
    with pytest.raises(cb.errors.ArgumentError, match="'log-ei' is a logarithm"):
        cb.acquisition.CostSubtracted("log-ei", 1.0)


def test_every_name_is_an_acquisition_that_keeps_its_contract(fitted):
    problem, surrogate = fitted
    names = ("ucb", "ucb-regret-safe", "ucb-pointwise", "ei", "log-ei", "thompson", "look-ahead")
    for name in names:
        assert read_acquisition(name, 2.0).name == name
        assert cb.testing.check_acquisition(name, surrogate).require().passed


def test_only_the_acquisition_that_is_named_is_made(monkeypatch):
    def refuse(self):
        raise AssertionError

    monkeypatch.setattr(cb.acquisition.LookAhead, "__post_init__", refuse)
    assert read_acquisition("ucb").name == "ucb" and cb.Settings().rule.name == "ucb"
    with pytest.raises(AssertionError):
        read_acquisition("look-ahead")


def test_small_log_values_do_not_make_a_tie_of_large_ones():
    rule = cb.acquisition.LogExpectedImprovement(0.0)
    values = np.array([-5e9, -1.0, -0.9, -np.inf])
    assert best_position(rule, values) == 2
    assert best_position(rule, np.array([-np.inf, -np.inf])) == 0
    assert best_position(rule, np.array([-2e6, -2e6 - 1e-9, -5e9])) == 0


@pytest.mark.parametrize("objective", ["min", "max"])
def test_improvement_is_the_mean_of_what_is_gained(objective):
    problem, surrogate = dense_case(objective)
    queries, best = problem.sobol(3), 0.3
    mean, sd = surrogate.predict(queries)
    sign = 1.0 if objective == "max" else -1.0

    def gained(f, mean, sd):
        return max(sign * (f - best), 0.0) * norm.pdf(f, mean, sd)

    brute = [
        quad(gained, *ends, args=moments, points=[best], limit=200)[0]
        for ends, moments in zip(zip(mean - 9 * sd, mean + 9 * sd, strict=True),
                                 zip(mean, sd, strict=True), strict=True)
    ]  # fmt: skip
    values = values_of(cb.acquisition.ExpectedImprovement(best), surrogate, queries, objective)
    np.testing.assert_allclose(values, brute, rtol=1e-6, atol=1e-9)
    logs = values_of(cb.acquisition.LogExpectedImprovement(best), surrogate, queries, objective)
    np.testing.assert_allclose(np.exp(logs), values, rtol=1e-10)


def test_the_effect_to_improve_upon_is_the_best_that_can_be_recommended():
    problem, surrogate = dense_case("min")
    queries = problem.sobol(3)
    best = float(surrogate.predict(surrogate.observed).mean.min())
    rule = cb.acquisition.ExpectedImprovement()
    context = knowing(surrogate, recommendable=surrogate.observed)
    assert context.incumbent == best
    given = values_of(cb.acquisition.ExpectedImprovement(best), surrogate, queries)
    np.testing.assert_array_equal(rule.value(surrogate, queries, context), given)
    blank = knowing(surrogate, "max", recommendable=surrogate.observed[:0])
    assert blank.incumbent == surrogate.predict(problem.vertices()).mean.max()
    with pytest.raises(cb.errors.ArgumentError, match="best must be finite"):
        cb.acquisition.LogExpectedImprovement(np.inf)


@pytest.mark.parametrize("objective", ["min", "max"])
def test_improvement_of_affine_effects_is_largest_at_a_vertex(objective):
    """(f(x) - best)_+ is convex in x for every draw of the weights, and so is its mean."""
    problem, truth = cases.random_problem(2, size=4, objective=objective)
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))
    corners, inside = problem.vertices(), problem.grid(9)
    means = surrogate.predict(corners).mean
    spread = np.ptp(means)
    for best in (means.min() - spread, means.mean(), means.max() + spread):
        rule = cb.acquisition.LogExpectedImprovement(float(best))
        at_corners, everywhere = (
            values_of(rule, surrogate, queries, objective) for queries in (corners, inside)
        )
        assert at_corners.max() == pytest.approx(everywhere.max(), abs=1e-9)
