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
from helpers.acquisition_context import knowing
from helpers.constrained_problems import breaches, random_polytope
from helpers.dense_surrogate import dense_case
from helpers.logs import recorded
from scipy.optimize import minimize

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import merge_replicates
from causal_bo_ppl.optimization.acquisition import Context
from causal_bo_ppl.optimization.choosing import choose
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.optimization.state import States, begin
from causal_bo_ppl.problem.designs import keeps_exactly
from causal_bo_ppl.problem.search import ascend, climb_pairs
from causal_bo_ppl.problem.search_space import Space


@dataclass(frozen=True)
class Plain:
    """An acquisition that is any function of the queries."""

    function: object
    name = "plain"
    uses_costs = False

    def value(self, surrogate, queries, context):
        return self.function(queries)


@pytest.fixture(scope="module")
def fitted():
    problem, truth = cases.random_problem(2, size=4)
    return problem, cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))


def box(sets=(("X",), ("Z",), ("X", "Z")), **options):
    """The space of a problem in two variables, and what a search in it knows."""
    problem, surrogate = dense_case()
    options = {"domains": {"X": (-2.0, 3.0), "Z": (-1.0, 2.0)}} | options
    posed = cb.Problem(problem.graph, "Y", sets=sets, **options)
    return Space(posed, posed.sets), knowing(surrogate, recommendable=surrogate.observed)


def whole(surrogate, **options):
    """The space of a surrogate's problem, and what a search in it knows."""
    problem = surrogate.post.problem
    return Space(problem, problem.sets), knowing(surrogate, problem.objective, **options)


@pytest.mark.parametrize(
    "rule", [cb.acquisition.ConfidenceBound(2.0), cb.acquisition.LogExpectedImprovement(-3.0)]
)
def test_where_effects_are_affine_all_vertices_are_enumerated(fitted, rule):
    problem, surrogate = fitted
    space, context = whole(surrogate)
    found = find_best(space, rule, context)
    values = rule.value(surrogate, problem.vertices(), context)
    assert found.value == pytest.approx(values.max(), abs=1e-12)
    assert found.value >= rule.value(surrogate, problem.grid(9), context).max() - 1e-9
    assert found.how == f"all {len(values)} vertices" and not found.note
    assert found.search.rule is rule
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
    space, context = whole(surrogate)
    found = find_best(space, rule, context)
    assert found.how == f"all {sum(3 ** len(each) for each in problem.sets)} vertices"
    inside = rule.value(surrogate, problem.grid(13), context)
    assert found.value >= inside.max() - 1e-9


def test_costs_of_another_shape_and_nonlinear_effects_need_a_search(fitted):
    def bowl(queries):
        return 1 + (np.asarray(queries.value) ** 2).sum(axis=1)

    problem, truth = cases.random_problem(2, size=4, costs=bowl)
    surrogate = cb.surrogates.couple(cb.fit(problem, cases.simulate(problem, truth, 15, 0)))
    rule, (space, context) = cb.acquisition.ConfidenceBound(2.0, eta=1.0), whole(surrogate)
    found = find_best(space, rule, context)
    assert "improved by brackets and gradients" in found.how
    assert found.value >= rule.value(surrogate, problem.grid(25), context).max() - 1e-9
    assert find_best(space, cb.acquisition.ConfidenceBound(2.0), context).how.startswith("all")


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
        value=lambda surrogate, queries, context: value_of(queries),
    )  # fmt: skip
    context = knowing(SimpleNamespace(is_affine=True), candidates=problem.baseline())
    found = find_best(Space(problem, problem.sets), rule, context)
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
    space, context = whole(surrogate, recommendable=surrogate.observed)
    rules = {
        "ucb": cb.acquisition.ConfidenceBound(2.0),
        "ei": cb.acquisition.ExpectedImprovement(),
        "log-ei": cb.acquisition.LogExpectedImprovement(),
        "look-ahead": cb.acquisition.LookAhead(noise=lambda queries: np.full(len(queries), 0.05)),
    }
    rule = rules[name]
    found = find_best(space, rule, context, tried=surrogate.observed)
    grid = problem.grid(41)
    values = rule.value(surrogate, grid, context)
    order, best = np.argsort(-values)[:6], float(values.max())
    for row in order:  # polished by scipy, alone
        mask = np.asarray(grid.mask)[row]
        ends = [problem.domains[each] for each in np.array(problem.graph.nodes)[mask]]

        def loss(x, mask=mask):
            value = np.zeros((1, 3))
            value[0, mask] = x
            queries = cb.problem.Queries(mask[None], value)
            return -float(rule.value(surrogate, queries, context)[0])

        polished = minimize(loss, np.asarray(grid.value)[row, mask], bounds=ends, tol=1e-13)
        best = max(best, -float(polished.fun))
    assert found.value >= best - 1e-7 * max(abs(best), 1e-3)
    problem.require(found.query)


def test_points_are_found_to_a_millionth_of_the_domain():
    space, context = box()
    optimum = np.array([0.123456, 1.654321, 0.0])
    shape = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])

    def value_of(queries):
        x = np.asarray(queries.value) - optimum
        both = np.asarray(queries.mask)[:, :2].all(axis=1)
        return np.where(both, np.exp(-((x @ shape) * x).sum(axis=1)), 0.0)

    found = find_best(space, Plain(value_of), context)
    widths = np.array([5.0, 3.0, 1.0])
    assert (np.abs(np.asarray(found.query.value)[0] - optimum) <= 2e-6 * widths).all()


def test_a_point_near_the_end_of_a_domain_is_found_as_well():
    space, context = box(sets=(("X",),))
    optimum = 3.0 - 5.0 * 2.0**-16  # nearer to the end than the step of a difference

    def value_of(queries):
        return -(np.abs(np.asarray(queries.value)[:, 0] - optimum) ** 2)

    found = find_best(space, Plain(value_of), context)
    assert abs(float(found.query.value[0, 0]) - optimum) <= 1e-5


def test_gradients_use_batches_of_two_shapes_only():
    space, context = box()
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
    levels, ends = cb.Levels([-2.0, 0.4, 1.5, 3.0]), (-1.0, 2.0)
    space, context = box(domains={"X": levels, "Z": ends})

    def value_of(queries):
        x = np.asarray(queries.value)
        return -((x[:, 0] - 1.2) ** 2) - (x[:, 1] - 0.77) ** 2 - np.asarray(queries.mask)[:, 2]

    found = find_best(space, Plain(value_of), context, tried=context.recommendable)
    x, z, _ = np.asarray(found.query.value)[0]
    assert x == 1.5 and abs(z - 0.77) < 1e-5
    every, _ = box(domains={"X": levels, "Z": cb.Levels([0.0, 2.0])})
    found = find_best(every, Plain(value_of), context)
    assert np.asarray(found.query.value)[0].tolist() == [1.5, 0.0, 0.0]
    listed = np.asarray(every.filling().queries.value)
    assert set(listed[:, 0]) <= {0.0, *levels} and set(listed[:, 1]) <= {0.0, 2.0}


def test_nothing_infeasible_is_proposed_and_none_left_is_an_error():
    def disc(queries):
        return (np.asarray(queries.value)[:, :2] ** 2).sum(axis=1) <= 1.0

    space, context = box(feasible=disc)

    def value_of(queries):
        seen.append(queries)
        return np.asarray(queries.value)[:, :2].sum(axis=1)

    seen = []
    found = find_best(space, Plain(value_of), context)
    assert disc(found.query).all() and found.value > 1.3  # sqrt 2 on the circle
    bound = find_best(space, cb.acquisition.ConfidenceBound(2.0), context)
    assert bound.how.endswith("gradients")

    is_open = [True]
    closed, _ = box(feasible=lambda queries: np.full(len(queries), is_open[0]))
    is_open[0] = False
    with pytest.raises(cb.errors.DomainError, match="`feasible` rejects all 64 Sobol points"):
        find_best(closed, Plain(value_of), context)


def unfitted(is_affine=False):
    """What a search knows of effects that are given by the acquisition itself."""
    response = SimpleNamespace(program=None)
    post = SimpleNamespace(distribution=SimpleNamespace(response=response))
    surrogate = SimpleNamespace(is_affine=is_affine, post=post)
    return Context(surrogate, "max", (), ())


@pytest.mark.parametrize("seed", range(25))
def test_what_is_found_in_a_polytope_keeps_everything_exactly(seed):
    """Smooth values whose optimum lies inside, outside and at corners, by all kinds of search."""
    problem, rng = random_polytope(seed), np.random.default_rng(seed)
    space, nodes = Space(problem, problem.sets), problem.graph.nodes
    if not keeps_exactly(problem, space.listed("levels").queries).all():
        pytest.skip("one point is left, whose sums differ by the order of their terms")
    low, width = (np.array([ends(problem.domains.get(name, (0.0, 1.0))) for name in nodes])
                  for ends in (min, np.ptp))  # fmt: skip
    for peak in rng.uniform(-0.5, 1.5, size=(2, len(nodes))):

        def value_of(queries, peak=peak):
            shares = np.where(queries.mask, (np.asarray(queries.value) - low) / width, peak)
            return -((shares - peak) ** 2).sum(axis=1)

        found = find_best(space, Plain(value_of), unfitted())
        assert breaches(problem, found.query) == 0
        assert found.value == value_of(found.query)[0] >= value_of(problem.vertices()).max() - 1e-6


@pytest.mark.parametrize("is_affine", [True, False])
def test_held_values_stay_and_all_others_are_searched(is_affine):
    problem, _ = dense_case()
    space = Space(problem, problem.sets).hold({"X": 0.7})

    def value_of(queries):
        x = np.asarray(queries.value)
        return -((x[:, 0] - 2.0) ** 2) - (x[:, 1] - 0.123456) ** 2 * (1 - 2 * is_affine)

    rule = SimpleNamespace(
        name="parabola", uses_costs=False, at_vertices=is_affine,
        value=lambda surrogate, queries, context: value_of(queries),
    )  # fmt: skip
    found = find_best(space, rule, unfitted(is_affine), tried=problem.queries([{"X": 2.0}]))
    [best] = problem.interventions(found.query)
    assert best["X"] == 0.7
    if is_affine:
        assert best["Z"] == 2.0 and found.how == "all 3 vertices"
    else:
        assert best["Z"] == pytest.approx(0.123456, abs=3e-6) and found.how.endswith("by brackets")
    alone = find_best(Space(problem, (("X",),)).hold({"X": 0.7}), rule, unfitted(is_affine))
    assert problem.interventions(alone.query) == [{"X": 0.7}] and not alone.note
    with pytest.raises(cb.errors.DomainError, match="none can be paid for; the cheapest costs 1"):
        find_best(space, rule, unfitted(is_affine), affordable=lambda costs: costs <= 0.5)


def test_the_best_with_a_value_held_is_that_of_a_dense_grid():
    problem, surrogate = dense_case()
    space, context = whole(surrogate, recommendable=surrogate.observed)
    for name, value in (("X", -1.3), ("Z", 0.4)):
        held = space.hold({name: value})
        other = "Z" if name == "X" else "X"
        line = np.linspace(*problem.domains[other], 4001)
        grid = problem.queries([{name: value}, *({name: value, other: each} for each in line)])
        for rule in (cb.acquisition.ConfidenceBound(2.0), cb.acquisition.LookAhead()):
            found = find_best(held, rule, context, tried=surrogate.observed)
            assert problem.interventions(found.query)[0][name] == value
            assert found.value >= rule.value(surrogate, grid, context).max() - 1e-9


def test_bounds_are_widened_among_what_is_held_where_outcomes_are_exact():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    surrogate = cb.surrogates.couple(post)
    space = Space(system.problem, system.problem.sets).hold({"X": 1.0})
    held = space.candidates(at_vertices=True)
    best = float(surrogate.predict(held.queries).mean.min()) - 1.0
    known = merge_replicates(held.queries[:1], np.array([best]), np.zeros(1))
    context = knowing(surrogate, exact=True)
    rule = cb.acquisition.ConfidenceBound(1e-6)
    found = find_best(space, rule, context, known=known, avoided=known.queries)
    assert system.problem.interventions(found.query)[0]["X"] == 1.0


def test_only_what_can_be_paid_for_is_proposed(fitted):
    rule, (space, context) = cb.acquisition.ConfidenceBound(), whole(fitted[1])
    found = find_best(space, rule, context, affordable=lambda costs: costs <= 1)
    assert found.cost == 1.0
    with pytest.raises(cb.errors.DomainError, match="none can be paid for; the cheapest costs 1"):
        find_best(space, rule, context, affordable=lambda costs: costs <= 0.5)
    costly, truth = cases.random_problem(2, size=4, costs=cb.problem.MagnitudeCost(0.5))
    other = whole(cb.surrogates.couple(cb.fit(costly, cases.simulate(costly, truth, 15, 0))))
    found = find_best(other[0], rule, other[1], affordable=lambda costs: costs <= 1.2)
    assert found.cost <= 1.2 and "gradients" in found.how


def test_equal_values_give_the_first_and_a_note():
    space, context = box()
    found = find_best(space, Plain(lambda queries: np.zeros(len(queries))), context)
    assert found.note.endswith(
        "interventions look equally good; the first of a smallest set is taken"
    )
    assert np.asarray(found.query.value)[0].tolist() == [-2.0, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_does_not_hang_on_the_last_digits(seed):
    space, context = box()
    draws = np.random.default_rng(seed)

    def value_of(queries, noise=0.0):
        x = np.asarray(queries.value)
        smooth = np.cos(2 * x[:, 0]) + np.sin(3 * x[:, 1])
        return smooth * (1 + noise * draws.choice([-2e-16, 0.0, 2e-16], len(x)))

    plain = find_best(space, Plain(value_of), context)
    other = find_best(space, Plain(lambda queries: value_of(queries, 1.0)), context)
    np.testing.assert_array_equal(plain.query.mask, other.query.mask)
    np.testing.assert_allclose(plain.query.value, other.query.value, atol=1e-5)


def test_draws_that_differ_by_batch_are_compared_in_one():
    space, context = whole(dense_case()[1], key=jax.random.key(0))
    found = find_best(space, cb.acquisition.Thompson(), context)
    assert not context.draws_functions and found.how.endswith("points")


def test_tried_interventions_of_other_sets_are_no_candidates():
    space, context = box(sets=(("X",), ("Z",)))
    tried = context.surrogate.post.problem.queries([{"X": 0.5}, {"X": 0.1, "Z": 0.2}])

    def spike(queries):
        return (np.abs(np.asarray(queries.value)[:, 0] - 0.5) < 1e-12).astype(float)

    found = find_best(space, Plain(spike), context, tried=tried)
    assert np.asarray(found.query.value)[0].tolist() == [0.5, 0.0, 0.0]
    both = Plain(lambda queries: np.asarray(queries.mask).sum(axis=1) + 0.01 * queries.value[:, 0])
    assert np.asarray(find_best(space, both, context, tried=tried).query.mask).sum() == 1


@pytest.mark.parametrize("name", ["ucb", "ucb-pointwise", "ei", "log-ei", "thompson", "look-ahead"])
def test_asking_follows_every_acquisition(name):
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    log = recorded(system.problem, [{"X": 1.0}], [0.3], variance=0.5, cost=1.0)
    state = States(begin(post, cb.Settings(acquisition=name, noise=0.5))).after(log)
    first, again = (choose(state, 2, key=jax.random.key(1)) for _ in range(2))
    assert len(first) == 2
    assert [each.bound for each in first] == [each.bound for each in again]
    for each in first:
        assert system.problem.require(each.query) is each.query and each.cost == 1.0


def test_every_suggestion_of_a_batch_has_a_separate_draw():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0))
    state = States(begin(post, cb.Settings(acquisition="thompson"))).before
    bounds = [each.bound for each in choose(state, 4, key=jax.random.key(1))]
    assert len(set(bounds)) == 4
    with pytest.raises(cb.errors.ArgumentError, match="Thompson sampling draws"):
        choose(state)


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
