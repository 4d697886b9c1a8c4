"""The best query over all sets: exact at vertices, by climbing, and by batched gradients.

Internals: the search is compared with brute force below the optimizer.
"""

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import fitted_cases as cases
from helpers.dense_surrogate import dense_case
from scipy.optimize import minimize

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.analytic import Context, prepare
from causal_bo_ppl.optimization.maximize import Space, ascend, climb_pairs, find_best
from causal_bo_ppl.optimization.state import Entry, ask, begin, tell


@dataclass(frozen=True)
class Plain:
    """An acquisition that is any function of the queries."""

    function: object
    name = "plain"
    uses_costs = False

    def value(self, surrogate, queries, objective):
        return self.function(queries)


@pytest.fixture(scope="module")
def fitted():
    problem, truth = cases.random_problem(2, size=4)
    return problem, cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))


def box(sets=(("X",), ("Z",), ("X", "Z")), **options):
    problem, surrogate = dense_case()
    return Space(problem, sets, **options), surrogate


def grid_best(space, surrogate, rule, n=401):
    """The best of a dense grid over every box."""
    queries = space.problem.grid(n)
    return float(rule.value(surrogate, queries, space.problem.objective).max())


@pytest.mark.parametrize(
    "rule", [cb.acquisition.ConfidenceBound(2.0), cb.acquisition.LogExpectedImprovement(-3.0)]
)
def test_where_effects_are_affine_all_vertices_are_enumerated(fitted, rule):
    problem, surrogate = fitted
    found = find_best(Space(problem, problem.sets), surrogate, rule)
    values = rule.value(surrogate, problem.vertices(), "min")
    assert found.value == pytest.approx(values.max(), abs=1e-12)
    assert found.value >= rule.value(surrogate, problem.grid(9), "min").max() - 1e-9
    assert found.how == f"all {len(values)} vertices"
    assert found.cost == problem.cost(found.query)[0]


@pytest.mark.parametrize(
    "rule",
    [
        cb.acquisition.ConfidenceBound(2.0, eta=0.4),
        cb.acquisition.PerCost(cb.acquisition.ExpectedImprovement(0.0)),
        cb.acquisition.CostSubtracted(cb.acquisition.ExpectedImprovement(0.0), 0.2),
    ],
)
def test_costs_with_a_kink_at_zero_are_solved_by_cutting_boxes_there(rule):
    problem, truth = cases.random_problem(2, size=4, costs=cb.problem.MagnitudeCost(0.5))
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))
    found = find_best(Space(problem, problem.sets), surrogate, rule)
    assert found.how == f"all {sum(3 ** len(each) for each in problem.sets)} vertices"
    inside = rule.value(surrogate, problem.grid(13), "min")
    assert found.value >= inside.max() - 1e-9


def test_costs_of_another_shape_and_nonlinear_effects_need_a_search(fitted):
    def bowl(queries):
        return 1 + (np.asarray(queries.value) ** 2).sum(axis=1)

    problem, truth = cases.random_problem(2, size=4, costs=bowl)
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))
    rule, space = cb.acquisition.ConfidenceBound(2.0, eta=1.0), Space(problem, problem.sets)
    found = find_best(space, surrogate, rule)
    assert "improved by brackets and gradients" in found.how
    assert found.value >= rule.value(surrogate, problem.grid(25), "min").max() - 1e-9
    assert find_best(space, surrogate, cb.acquisition.ConfidenceBound(2.0)).how.startswith("all")


@pytest.mark.parametrize("seed", range(3))
def test_climbing_finds_the_optimum_of_an_affine_mean_and_a_convex_sd(seed):
    """Twenty variables; all 2^20 vertices are enumerated in blocks of 2^16."""
    draws = np.random.default_rng(seed)
    slopes, root = draws.normal(size=20), draws.normal(size=(20, 6)) / 3

    def value_of(queries):
        x = np.asarray(queries.value)[:, :20]
        return x @ slopes + np.sqrt(2.0) * np.linalg.norm(x @ root + 0.3, axis=1)

    names = [f"V{index:02d}" for index in range(20)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    problem = cb.Problem(graph, "Y", domains=dict.fromkeys(names, (-1.0, 1.0)), sets=[names])
    assert list(graph.nodes) == [*names, "Y"]
    rule = SimpleNamespace(
        name="affine and convex", at_vertices=True, uses_costs=False,
        value=lambda surrogate, queries, objective: value_of(queries),
    )  # fmt: skip
    surrogate = SimpleNamespace(is_affine=True)
    found = find_best(Space(problem, problem.sets), surrogate, rule)
    tail = np.array(list(product([-1.0, 1.0], repeat=16)))
    best = -np.inf
    for head in product([-1.0, 1.0], repeat=4):
        x = np.column_stack([np.broadcast_to(head, (len(tail), 4)), tail])
        value = x @ slopes + np.sqrt(2.0) * np.linalg.norm(x @ root + 0.3, axis=1)
        best = max(best, float(value.max()))
    assert found.value == pytest.approx(best, rel=1e-12)
    assert found.how.endswith("larger sets one variable at a time")


def test_climbing_by_pairs_leaves_a_point_that_no_single_change_improves():
    """x1 x2 + x1 / 4 + x2 / 4 at (-1, -1) is better than after either change alone."""
    problem, _ = dense_case()

    def value_of(queries):
        x, z = np.asarray(queries.value)[:, 0], np.asarray(queries.value)[:, 1]
        return x * z + 0.25 * x + 0.25 * z

    start = cb.problem.Queries(np.array([[True, True, False]]), np.array([[-1.0, -1.0, 0.0]]))
    choices = [np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), np.zeros(0)]
    reached = climb_pairs(value_of, start, choices)
    assert value_of(reached).max() == 1.5


@pytest.mark.parametrize("objective", ["min", "max"])
@pytest.mark.parametrize("name", ["ucb", "ei", "log-ei", "look-ahead"])
def test_a_smooth_value_is_solved_as_well_as_by_other_optimizers(objective, name):
    problem, surrogate = dense_case(objective)
    space = Space(problem, problem.sets)
    context = Context(surrogate, objective, problem.vertices(), surrogate.observed)
    rules = {
        "ucb": cb.acquisition.ConfidenceBound(2.0),
        "ei": cb.acquisition.ExpectedImprovement(),
        "log-ei": cb.acquisition.LogExpectedImprovement(),
        "look-ahead": cb.acquisition.LookAhead(noise=lambda queries: np.full(len(queries), 0.05)),
    }
    rule = prepare(rules[name], context)
    found = find_best(space, surrogate, rule, tried=surrogate.observed)
    grid = problem.grid(41)
    values = rule.value(surrogate, grid, objective)
    order, best = np.argsort(-values)[:6], float(values.max())
    for row in order:  # polished by scipy, alone
        mask = np.asarray(grid.mask)[row]
        ends = [problem.domains[each] for each in np.array(problem.graph.nodes)[mask]]

        def loss(x, mask=mask):
            value = np.zeros((1, 3))
            value[0, mask] = x
            return -float(
                rule.value(surrogate, cb.problem.Queries(mask[None], value), objective)[0]
            )

        polished = minimize(loss, np.asarray(grid.value)[row, mask], bounds=ends, tol=1e-13)
        best = max(best, -float(polished.fun))
    assert found.value >= best - 1e-7 * max(abs(best), 1e-3)
    problem.require(found.query)


def test_points_are_found_to_a_millionth_of_the_domain():
    space, surrogate = box()
    optimum = np.array([0.123456, 1.654321, 0.0])
    shape = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])

    def value_of(queries):
        x = np.asarray(queries.value) - optimum
        both = np.asarray(queries.mask)[:, :2].all(axis=1)
        return np.where(both, np.exp(-((x @ shape) * x).sum(axis=1)), 0.0)

    found = find_best(space, surrogate, Plain(value_of))
    widths = np.array([5.0, 3.0, 1.0])
    assert (np.abs(np.asarray(found.query.value)[0] - optimum) <= 2e-6 * widths).all()


def test_a_point_near_the_end_of_a_domain_is_found_as_well():
    space, surrogate = box(sets=(("X",),))
    optimum = 3.0 - 5.0 * 2.0**-16  # nearer to the end than the step of a difference

    def value_of(queries):
        return -(np.abs(np.asarray(queries.value)[:, 0] - optimum) ** 2)

    found = find_best(space, surrogate, Plain(value_of))
    assert abs(float(found.query.value[0, 0]) - optimum) <= 1e-5


def test_gradients_use_batches_of_two_shapes_only():
    space, surrogate = box()
    sizes = []

    def value_of(queries):
        sizes.append(len(queries))
        x = np.asarray(queries.value)
        return -((x - 0.3) ** 2).sum(axis=1)

    starts = space.problem.sobol(5)
    low, high = space.bounds()
    reached = ascend(value_of, space.allows, starts, low, high, 2)
    assert len(set(sizes)) == 2 and len(sizes) < 40
    assert (value_of(reached) >= value_of(starts)).all()


def test_variables_with_levels_are_set_to_these_only():
    levels = {"X": (-2.0, 0.4, 1.5, 3.0)}
    space, surrogate = box(levels=levels)

    def value_of(queries):
        x = np.asarray(queries.value)
        return -((x[:, 0] - 1.2) ** 2) - (x[:, 1] - 0.77) ** 2 - np.asarray(queries.mask)[:, 2]

    found = find_best(space, surrogate, Plain(value_of), tried=surrogate.observed)
    x, z, _ = np.asarray(found.query.value)[0]
    assert x == 1.5 and abs(z - 0.77) < 1e-5
    every, _ = box(levels=levels | {"Z": (0.0, 2.0)})
    found = find_best(every, surrogate, Plain(value_of))
    assert np.asarray(found.query.value)[0].tolist() == [1.5, 0.0, 0.0]
    listed = np.asarray(every.filling().queries.value)
    assert set(listed[:, 0]) <= {0.0, *levels["X"]} and set(listed[:, 1]) <= {0.0, 2.0}


def test_nothing_infeasible_is_proposed_and_none_left_is_an_error():
    def disc(queries):
        return (np.asarray(queries.value)[:, :2] ** 2).sum(axis=1) <= 1.0

    space, surrogate = box(feasible=disc)

    def value_of(queries):
        seen.append(queries)
        return np.asarray(queries.value)[:, :2].sum(axis=1)

    seen = []
    found = find_best(space, surrogate, Plain(value_of))
    assert disc(found.query).all() and found.value > 1.3  # sqrt 2 on the circle
    assert find_best(space, surrogate, cb.acquisition.ConfidenceBound(2.0)).how.endswith(
        "gradients"
    )

    def none(queries):
        return np.zeros(len(queries), bool)

    with pytest.raises(cb.errors.DomainError, match="`feasible` leaves none of those of 3 sets"):
        find_best(box(feasible=none)[0], surrogate, Plain(value_of))


def test_given_corners_stand_for_the_vertices_of_the_boxes(fitted):
    problem, surrogate = fitted
    corners = problem.vertices()[np.array([3, 8, 11])]
    found = find_best(
        Space(problem, problem.sets, corners=corners), surrogate, cb.acquisition.ConfidenceBound()
    )
    values = cb.acquisition.ConfidenceBound().value(surrogate, corners, "min")
    assert found.value == values.max() and found.how == "all 3 vertices"


def test_only_what_can_be_paid_for_is_proposed(fitted):
    problem, surrogate = fitted
    space = Space(problem, problem.sets)
    found = find_best(
        space, surrogate, cb.acquisition.ConfidenceBound(), affordable=lambda costs: costs <= 1
    )
    assert found.cost == 1.0
    with pytest.raises(cb.errors.DomainError, match="none can be paid for; the cheapest costs 1"):
        find_best(
            space,
            surrogate,
            cb.acquisition.ConfidenceBound(),
            affordable=lambda costs: costs <= 0.5,
        )
    costly, truth = cases.random_problem(2, size=4, costs=cb.problem.MagnitudeCost(0.5))
    other = cb.surrogates.couple(cb.fit(costly, cases.simulate(costly, truth, 15, 0)))
    found = find_best(
        Space(costly, costly.sets),
        other,
        cb.acquisition.ConfidenceBound(),
        affordable=lambda costs: costs <= 1.2,
    )
    assert found.cost <= 1.2 and "gradients" in found.how


def test_equal_values_give_the_first_and_a_warning():
    space, surrogate = box()
    flat = Plain(lambda queries: np.zeros(len(queries)))
    with pytest.warns(cb.CausalBOWarning, match="interventions look equally good"):
        found = find_best(space, surrogate, flat)
    assert np.asarray(found.query.value)[0].tolist() == [-2.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_does_not_hang_on_the_last_digits(seed):
    space, surrogate = box()
    draws = np.random.default_rng(seed)

    def value_of(queries, noise=0.0):
        x = np.asarray(queries.value)
        smooth = np.cos(2 * x[:, 0]) + np.sin(3 * x[:, 1])
        return smooth * (1 + noise * draws.choice([-2e-16, 0.0, 2e-16], len(x)))

    plain = find_best(space, surrogate, Plain(value_of))
    other = find_best(space, surrogate, Plain(lambda queries: value_of(queries, 1.0)))
    np.testing.assert_array_equal(plain.query.mask, other.query.mask)
    np.testing.assert_allclose(plain.query.value, other.query.value, atol=1e-5)


def test_draws_that_differ_by_batch_are_compared_in_one():
    problem, surrogate = dense_case()
    space, key = Space(problem, problem.sets), jax.random.key(0)
    rule = prepare(
        cb.acquisition.Thompson(),
        Context(surrogate, "min", problem.vertices(), surrogate.observed, key=key),
    )
    found = find_best(space, surrogate, rule)
    assert rule.is_one_batch and found.how.endswith("points")


def test_tried_interventions_of_other_sets_are_no_candidates():
    space, surrogate = box(sets=(("X",), ("Z",)))
    tried = space.problem.queries([{"X": 0.5}, {"X": 0.1, "Z": 0.2}])

    def spike(queries):
        return (np.abs(np.asarray(queries.value)[:, 0] - 0.5) < 1e-12).astype(float)

    found = find_best(space, surrogate, Plain(spike), tried=tried)
    assert np.asarray(found.query.value)[0].tolist() == [0.5, 0.0, 0.0]
    both = Plain(lambda queries: np.asarray(queries.mask).sum(axis=1) + 0.01 * queries.value[:, 0])
    assert np.asarray(find_best(space, surrogate, both, tried=tried).query.mask).sum() == 1


@pytest.mark.parametrize("name", ["ucb", "ucb-pointwise", "ei", "log-ei", "thompson", "look-ahead"])
def test_asking_follows_every_acquisition(name):
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    state = begin(post, cb.Settings(acquisition=name, noise=0.5))
    state = tell(state, [Entry(system.problem.queries([{"X": 1.0}]), 0.3, 0.5, cost=1.0)])
    first, again = (ask(state, 2, key=jax.random.key(1)) for _ in range(2))
    assert len(first) == 2
    assert [each.bound for each in first] == [each.bound for each in again]
    for each in first:
        assert system.problem.require(each.query) is each.query and each.cost == 1.0


def test_every_suggestion_of_a_batch_has_a_separate_draw():
    system = cb.models.load("chain")
    state = begin(
        cb.fit(system.problem, system.observe(40, 0)), cb.Settings(acquisition="thompson")
    )
    bounds = [each.bound for each in ask(state, 4, key=jax.random.key(1))]
    assert len(set(bounds)) == 4
    with pytest.raises(cb.errors.ArgumentError, match="Thompson sampling draws"):
        ask(state)


def test_a_quasi_newton_step_that_the_box_turns_downhill_does_not_end_the_search():
    """A narrow ridge that ends at a side of the box: a clipped step may promise a loss."""
    space, _ = box()
    (low, high), peak = space.bounds(), np.array([5.0, 2.5])
    sides = np.stack(np.meshgrid(*(np.linspace(low[side], high[side], 801) for side in (0, 1))), -1)
    for turn in np.linspace(0.1, 1.4, 14):
        ways = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])

        def height(points, ways=ways):
            return -((((points - peak) @ ways) ** 2) @ np.array([1.0, 200.0]))

        starts = space.problem.sobol(8)
        starts = starts[np.asarray(starts.mask).sum(axis=1) == 2]
        reached = ascend(
            lambda queries, height=height: height(np.asarray(queries.value)[:, :2]),
            space.allows, starts, low, high, 2,
        )  # fmt: skip
        best = height(sides.reshape(-1, 2)).max()
        np.testing.assert_array_less(best - 1e-3, height(np.asarray(reached.value)[:, :2]))
