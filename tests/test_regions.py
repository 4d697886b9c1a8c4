"""Levels, linear constraints and one's own function: which interventions are legal, and designs.

Oracles: brute-force enumeration, linear programs, and half-space intersections by Qhull.
"""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import HalfspaceIntersection

import causal_bo_ppl as cb
from causal_bo_ppl.errors import CausalBOWarning, DomainError, ExplorationError
from causal_bo_ppl.problem.polytopes import first_of_each, independent_points
from causal_bo_ppl.problem.queries import (
    affine_anchors,
    default_design,
    fill_boxes,
    vertices_and_points,
)

NAMES = ("A", "B", "C", "D", "E", "F")


def posed(domains, constraints=(), **options):
    """A problem in which every variable with a domain is a cause of Y."""
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in domains])
    options = {"sets": [tuple(domains)]} | options
    return cb.Problem(graph, "Y", domains=domains, constraints=constraints, **options)


def random_constraints(rng, names, domains, count):
    """Constraints through points near the middle of the box, so that the region is not empty."""
    middle = {name: np.mean(list(domains[name])) for name in names}
    found = []
    for _ in range(count):
        chosen = rng.choice(list(names), rng.integers(1, len(names) + 1), replace=False)
        terms = {str(name): float(rng.normal() + 0.1) for name in chosen}
        centre = sum(terms[name] * middle[name] for name in terms)
        reach = sum(abs(terms[name]) * np.ptp(list(domains[name])) for name in terms)
        upper = centre + rng.uniform(0.02, 0.4) * reach
        lower = centre - rng.uniform(0.02, 0.4) * reach if rng.random() < 0.5 else None
        found.append(cb.LinearConstraint(terms, lower=lower, upper=upper))
    return found


def half_spaces(problem):
    names = problem.manipulable
    rows, bounds = [], []
    for each in problem.constraints:
        row = np.array([each.coefficients.get(name, 0.0) for name in names])
        for sign, bound in ((1, each.upper), (-1, each.lower)):
            if bound is not None:
                rows.append(sign * row)
                bounds.append(sign * bound)
    return np.array(rows), np.array(bounds)


def values_of(problem, queries):
    return np.asarray(queries.value)[:, [problem.graph.index(n) for n in problem.manipulable]]


@pytest.mark.parametrize("seed", range(12))
def test_best_vertex_is_the_optimum_of_every_linear_program(seed):
    rng = np.random.default_rng(seed)
    names = NAMES[: 2 + seed % 5]
    offset = 10.0 ** rng.integers(-3, 4)
    domains = {n: tuple(np.sort(rng.normal(size=2) + [0, 3]) * offset) for n in names}
    problem = posed(domains, random_constraints(rng, names, domains, 1 + seed % 4))
    points = values_of(problem, problem.vertices())
    rows, bounds = half_spaces(problem)
    size = np.abs(rows) @ np.abs(np.array(list(domains.values()))).max(axis=1)
    assert (points @ rows.T <= bounds + 1e-9 * size).all()
    for slope in rng.normal(size=(20, len(names))):
        best = linprog(slope, rows, bounds, bounds=list(domains.values()))
        assert best.status == 0
        assert (points @ slope).min() == pytest.approx(best.fun, rel=1e-7, abs=1e-7 * offset)


@pytest.mark.parametrize("seed", range(6))
def test_vertices_are_those_of_the_half_space_intersection(seed):
    rng = np.random.default_rng(100 + seed)
    names = NAMES[: 2 + seed % 3]
    domains = {name: (-1.0, 2.0) for name in names}
    problem = posed(domains, random_constraints(rng, names, domains, 3))
    rows, bounds = half_spaces(problem)
    sides = np.vstack([rows, np.eye(len(names)), -np.eye(len(names))])
    ends = np.concatenate([bounds, np.full(len(names), 2.0), np.full(len(names), 1.0)])
    stacked = np.column_stack([sides, -ends])
    hull = HalfspaceIntersection(stacked, np.full(len(names), 0.5)).intersections
    expected = np.array(sorted(set(map(tuple, (hull.round(7) + 0.0).tolist()))))
    found = values_of(problem, problem.vertices())
    assert np.allclose(found[np.lexsort(found.round(7).T[::-1])], expected, atol=1e-6)


def test_vertices_where_many_planes_meet_come_once_and_in_order():
    domains = {"A": (0, 1), "B": (0, 1), "C": (0, 1)}
    terms = dict.fromkeys("ABC", 1.0)
    cuts = [
        cb.LinearConstraint(terms, upper=2.0),  # through three corners
        cb.LinearConstraint({"A": 2.0, "B": 2.0, "C": 2.0}, upper=4.0),  # the same again
        cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=2.0),  # touches an edge
    ]
    problem = posed(domains, cuts)
    corners = [list(map(float, each)) for each in product((0, 1), repeat=3) if sum(each) <= 2]
    assert values_of(problem, problem.vertices()).tolist() == corners


def test_a_sum_that_is_fixed_leaves_a_flat_region_with_designs():
    domains = dict.fromkeys("ABC", (0.0, 1.0))
    mixture = cb.LinearConstraint(dict.fromkeys("ABC", 1.0), lower=1.0, upper=1.0)
    problem = posed(domains, [mixture])
    assert values_of(problem, problem.vertices()).tolist() == np.eye(3)[::-1].tolist()
    points = values_of(problem, problem.sobol(50))
    assert points.shape == (50, 3) and np.allclose(points.sum(axis=1), 1.0, atol=1e-9)
    assert len(np.unique(points.round(9), axis=0)) > 40
    # A third of a triangle's points lie nearest to each of its corners.
    shares = np.bincount(points.argmax(axis=1), minlength=3)
    assert (shares > 8).all()
    assert np.allclose(values_of(problem, problem.grid(5)).sum(axis=1), 1.0)
    assert len(affine_anchors(problem, problem.sets, None)) == 3


def test_levels_give_low_and_high_and_are_kept_by_every_design():
    problem = posed({"A": cb.Levels([20, 0, 5, 10]), "B": (-1, 1)}, sets=2)
    assert problem.domains == {"A": (0.0, 20.0), "B": (-1.0, 1.0)}
    assert problem.levels == {"A": (0.0, 5.0, 10.0, 20.0)}
    corners = problem.interventions(problem.vertices())
    assert corners == [
        {"A": 0.0},
        {"A": 20.0},
        {"B": -1.0},
        {"B": 1.0},
        *({"A": a, "B": b} for a in (0.0, 20.0) for b in (-1.0, 1.0)),
    ]
    for n, expected in ((2, [0, 20]), (3, [0, 10, 20]), (4, [0, 5, 10, 20]), (9, [0, 5, 10, 20])):
        grid = problem.grid(n)
        own = np.asarray(grid.value)[: len(expected), 0]
        assert own.tolist() == expected and len(grid) == len(expected) * (n + 1) + n
    sobol = problem.sobol(64)
    assert len(sobol) == 3 * 64
    own, counts = np.unique(np.asarray(sobol.value)[:64, 0], return_counts=True)
    assert own.tolist() == [0, 5, 10, 20] and counts.tolist() == [16] * 4
    for design in (
        fill_boxes(problem, problem.sets),
        default_design(problem, problem.sets, None, 9),
    ):
        problem.require(design)


def test_value_off_the_levels_is_refused_with_the_nearest():
    problem = posed({"A": cb.Levels([0, 5, 10, 20])})
    with pytest.raises(
        DomainError, match=r"do\(A = 6\) is none of the levels 0, 5, 10, 20; the n.* 5"
    ):
        problem.queries([{"A": 5.0}, {"A": 6.0}])
    with pytest.raises(DomainError, match="nearest is 20"):
        problem.queries([{"A": 15.1}])
    with pytest.raises(DomainError, match=r"lies outside \[0, 20\]"):
        problem.queries([{"A": 21.0}])


def test_value_that_a_file_rounded_is_its_level():
    problem = posed({"A": cb.Levels(np.linspace(0, 1, 11))})
    queries = problem.queries([{"A": 0.3}, {"A": 0.1 + 0.2}])
    assert queries.value[0, 0] == queries.value[1, 0] == problem.levels["A"][3]
    exact = problem.vertices()
    assert problem.require(exact) is exact


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "there are 0 levels"),
        ([1.0], r"there are 1 levels \(1.0\); give at least two"),
        ([1, 2, 1], "the level 1 is repeated"),
        ([0, np.nan], "the level nan is not finite"),
        ([0, -np.inf], "the level -inf is not finite"),
        ([0, 1, 1 + 1e-10], "too close"),
        (3.0, "levels must be a list"),
        ("12", "levels must be a list"),
        (["a", "b"], "must be a real number"),
        ([True, False], "must be a real number"),
    ],
)
def test_levels_that_are_none_are_refused(values, message):
    with pytest.raises(DomainError, match=message):
        cb.Levels(values)


def test_levels_are_sorted_and_equal_by_value():
    assert cb.Levels([3, 1, 2]) == cb.Levels(range(1, 4)) != cb.Levels([1, 2])
    assert repr(cb.Levels([0.5, 0])) == "Levels([0, 0.5])" and list(cb.Levels([2, 1])) == [1, 2]
    with pytest.raises(DomainError, match="domain of 'A' reaches"):
        posed({"A": cb.Levels([0, 1e80])})


@pytest.mark.parametrize("seed", range(8))
def test_best_vertex_is_the_best_of_all_feasible_combinations_of_levels(seed):
    rng = np.random.default_rng(seed)
    names = NAMES[: 2 + seed % 3]
    domains = {name: cb.Levels(rng.normal(size=rng.integers(2, 6)) * 3) for name in names}
    while True:
        try:
            problem = posed(domains, random_constraints(rng, names, domains, 2))
            break
        except DomainError:  # no combination of levels happens to be feasible
            pass
    everything = np.array(list(product(*(domains[name].values for name in names))))
    rows, bounds = half_spaces(problem)
    legal = everything[(everything @ rows.T <= bounds).all(axis=1)]
    found = values_of(problem, problem.vertices())
    assert {*map(tuple, found.tolist())} <= {*map(tuple, legal.tolist())}
    for slope in rng.normal(size=(30, len(names))):
        assert (found @ slope).min() == pytest.approx((legal @ slope).min(), rel=1e-12)
    assert np.array_equal(values_of(problem, problem.grid(6)), legal)
    mask, value = (
        np.zeros((len(everything), len(names) + 1), bool),
        np.zeros((len(everything), len(names) + 1)),
    )
    mask[:, :-1], value[:, :-1] = True, everything
    asked = problem.feasible(cb.Queries(mask, value))
    assert np.array_equal(asked, (everything @ rows.T <= bounds).all(axis=1))


@pytest.mark.parametrize("seed", range(6))
def test_best_vertex_of_levels_and_intervals_is_the_best_of_all_slices(seed):
    rng = np.random.default_rng(seed)
    domains = {"A": cb.Levels(rng.normal(size=4)), "B": (-1.0, 1.0), "C": (0.0, 2.0)}
    domains |= {"D": cb.Levels([0.0, 1.0, 3.0])}
    problem = posed(domains, random_constraints(rng, "ABCD", domains, 2))
    rows, bounds = half_spaces(problem)
    points = values_of(problem, problem.vertices())
    slices = list(product(domains["A"], domains["D"]))
    for slope in rng.normal(size=(10, 4)):
        best = np.inf
        for a, d in slices:
            found = linprog(slope, rows, bounds, bounds=[(a, a), (-1, 1), (0, 2), (d, d)])
            best = found.fun if found.status == 0 and found.fun < best else best
        assert (points @ slope).min() == pytest.approx(best, abs=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_vertices_with_kinks_maximize_what_is_convex_where_no_sign_changes(seed):
    """A convex function minus |x|, over a polytope that is cut by the axes: a fine grid agrees."""
    rng = np.random.default_rng(seed)
    domains = {"A": (-1.0, 2.0), "B": cb.Levels([-2.0, -1.5, -0.5, 1.0, 1.5])}
    cut = cb.LinearConstraint({"A": 1.0, "B": float(rng.uniform(0.3, 1))}, upper=1.0)
    problem = posed(domains, [cut])
    points = values_of(problem, problem.vertices(kinks=True))
    assert 0.0 in points[:, 0]
    fine = np.array(list(product(np.linspace(-1, 2, 3001), domains["B"])))
    fine = fine[fine @ list(cut.coefficients.values()) <= 1.0]
    for slope, cost in zip(rng.normal(size=(20, 2)), rng.uniform(0, 3, 20), strict=True):

        def gain(at, slope=slope, cost=cost):
            return (at @ slope) ** 2 + at @ slope - cost * np.abs(at).sum(axis=1)

        assert gain(points).max() >= gain(fine).max() - 1e-9
        assert gain(points).max() <= gain(fine).max() + 0.1


def test_terms_of_variables_that_are_not_set_are_left_out_of_a_budget():
    budget = cb.LinearConstraint({"A": 1.0, "B": 2.0}, upper=10.0)
    problem = posed({"A": (0, 20), "B": (0, 20), "C": (0, 1)}, [budget], sets=3)
    assert problem.feasible([{"A": 10.0}, {"A": 10.5}, {"B": 5.0}, {"B": 5.5}]).tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert problem.feasible([{"A": 8.0, "B": 1.0}, {"A": 8.0, "B": 1.1}]).tolist() == [True, False]
    assert problem.feasible([{"C": 1.0}]).all() and problem.feasible(problem.baseline()).all()
    corners = problem.interventions(problem.vertices())
    assert [each for each in corners if set(each) == {"A"}] == [{"A": 0.0}, {"A": 10.0}]
    assert [each for each in corners if set(each) == {"A", "B"}] == [
        {"A": 0.0, "B": 0.0},
        {"A": 0.0, "B": 5.0},
        {"A": 10.0, "B": 0.0},
    ]
    with pytest.raises(
        DomainError, match=r"do\(A = 8, B = 1.5\) breaks the constraint A \+ 2 B <= 10: .* is 11;"
    ):
        problem.queries([{"A": 8.0, "B": 1.5}])


def test_relation_holds_where_all_its_variables_are_set():
    order = cb.LinearConstraint({"A": 1.0, "B": -1.0}, upper=0.0, when="all")
    problem = posed({"A": (0, 4), "B": (0, 4)}, [order], sets=2)
    assert problem.feasible([{"A": 4.0}, {"B": 0.0}]).all()
    assert problem.feasible([{"A": 2.0, "B": 2.0}, {"A": 2.0, "B": 1.9}]).tolist() == [True, False]
    assert len(problem.vertices()) == 2 + 2 + 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficients": {}}, "a constraint needs coefficients"),
        ({"coefficients": [("A", 1.0)]}, "a constraint needs coefficients"),
        ({"coefficients": {"A": 0.0}}, "coefficient of 'A' in a constraint is 0.0"),
        ({"coefficients": {"A": np.inf}}, "coefficient of 'A' in a constraint is inf"),
        ({"coefficients": {"A": 1e90}}, "coefficient of 'A' in a constraint has the size"),
        ({"coefficients": {"A": "1"}}, "value of 'A' must be a real number"),
        ({"upper": None}, "has no bound; give lower or upper"),
        ({"upper": np.nan}, "the bound upper of a constraint is nan"),
        ({"lower": 2.0}, "2 <= A <= 1 has its lower bound above"),
        ({"when": "some"}, 'when must be "any" or "all"'),
    ],
)
def test_constraint_that_says_nothing_is_refused(options, message):
    with pytest.raises(DomainError, match=message):
        cb.LinearConstraint(**({"coefficients": {"A": 1.0}, "upper": 1.0} | options))


def test_problem_whose_constraints_cannot_be_kept_is_refused():
    domains = {"A": (0, 1), "B": (0, 1)}
    high = cb.LinearConstraint({"A": 1.0, "B": 1.0}, lower=1.5)
    with pytest.raises(
        DomainError,
        match=r"no values of \{A\} .* constraint \(A \+ B >= 1.5\) \(B not set, so left",
    ):
        posed(domains, [high], sets=2)
    assert len(posed(domains, [high]).vertices()) == 3
    low = cb.LinearConstraint({"A": 1.0, "B": 2.0}, upper=1.9)
    with pytest.raises(
        DomainError, match=r"\{A, B\} .* constraints \(A \+ B >= 1.5\) and \(A \+ 2 B <="
    ):
        posed(domains, [high, low, cb.LinearConstraint({"A": 1.0}, upper=0.9)])
    with pytest.raises(DomainError, match=r"no values of \{A\} .* \(0.1 <= A <= 0.9\)"):
        posed({"A": cb.Levels([0, 1])}, [cb.LinearConstraint({"A": 1.0}, lower=0.1, upper=0.9)])
    with pytest.raises(
        DomainError, match="A <= 1: unknown manipulable variable 'W'|W <= 1: unknown"
    ):
        posed(domains, [cb.LinearConstraint({"W": 1.0}, upper=1.0)])
    with pytest.raises(DomainError, match="constraints must be a list such as"):
        posed(domains, [{"A": 1.0}])
    many = {f"V{place:02}": (0.0, 1.0) for place in range(24)}
    with pytest.raises(ExplorationError, match="may meet in .* points"):
        posed(many, [cb.LinearConstraint(dict.fromkeys(many, 1.0), upper=3.0)])


def test_pomis_warns_where_values_are_constrained():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    domains = {"X": (-5, 5), "Z": (-5, 20)}
    with pytest.warns(CausalBOWarning, match="POMIS assumes that every value"):
        cb.Problem(
            graph,
            "Y",
            domains=domains,
            sets="pomis",
            constraints=[cb.LinearConstraint({"Z": 1.0}, upper=3.0)],
        )


@pytest.mark.parametrize("seed", range(5))
def test_sobol_points_of_every_region_are_n_and_legal(seed):
    rng = np.random.default_rng(seed)
    domains = {"A": cb.Levels([0.0, 1.0, 4.0]), "B": (-1.0, 1.0), "C": (0.0, 1.0)}
    constraints = random_constraints(rng, "ABC", domains, 2)
    thin = cb.LinearConstraint({"B": 1.0, "C": 1.0}, lower=0.5, upper=0.5 + 1e-5, when="all")
    problem = posed(domains, [*constraints, thin], sets=[("A", "B", "C")])
    for n in (1, 7, 40):
        points = problem.sobol(n)
        assert len(points) == n and problem.feasible(points).all()
    assert np.array_equal(problem.sobol(9).value, problem.sobol(9).value)


def ring(queries):
    """Which interventions lie outside the unit circle; NaN-free and vectorized."""
    return (np.asarray(queries.value) ** 2).sum(axis=1) >= 1.0


def test_own_function_is_asked_by_require_and_by_designs():
    problem = posed({"A": (-2, 2), "B": (-2, 2)}, feasible=ring, sets=2)
    assert problem.feasible([{"A": 0.5}, {"A": 1.5}, {"A": 0.5, "B": 0.5}]).tolist() == [
        False,
        True,
        False,
    ]
    with pytest.raises(
        DomainError, match=r"do\(A = 0.5\) is rejected by the problem's own .* 'ring'"
    ):
        problem.queries([{"A": 1.5}, {"A": 0.5}])
    assert problem.feasible(problem.baseline()).all() and len(problem.require(problem.baseline()))
    for design in (
        problem.grid(5),
        problem.sobol(16),
        problem.vertices(),
        fill_boxes(problem, problem.sets),
        default_design(problem, problem.sets, None, 12),
        affine_anchors(problem, problem.sets, None),
        vertices_and_points(problem, problem.sets, 8),
    ):
        problem.require(design)
        assert len(np.unique(np.asarray(design.mask), axis=0)) == 3
    assert len(problem.sobol(16)) == 48
    assert len(problem.grid(5)) == 4 + 4 + 24  # of 5, 5 and 25, those inside the circle are missing


def test_set_of_which_no_point_is_feasible_is_named():
    def inner(queries):
        return (np.asarray(queries.value) ** 2).sum(axis=1) < 1.0

    problem = posed({"A": (-2, 2), "B": (-2, 2)}, feasible=inner, sets=2)
    with pytest.raises(DomainError, match=r"`feasible` rejects all 2 vertices of \{A\}; take more"):
        problem.vertices()
    assert len(vertices_and_points(problem, problem.sets, 8)) == 24
    with pytest.raises(DomainError, match=r"`feasible` rejects all 16 Sobol points of \{A\}"):
        posed({"A": (-2, 2)}, feasible=lambda queries: np.zeros(len(queries), bool))
    mixture = cb.LinearConstraint({"A": 1.0, "B": 1.0}, lower=0.3, upper=0.3, when="all")
    problem = posed({"A": (0, 1), "B": (0, 1)}, [mixture])
    with pytest.raises(
        DomainError, match=r"none of the points of the grid of \{A, B\} keeps the c"
    ):
        problem.grid(2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3.0, "feasible must be a function of Queries, got 3.0"),
        (lambda queries: True, r"'<lambda>' for `feasible` returned bool of shape \(\)"),
        (lambda queries: np.ones(len(queries)), "returned float64"),
    ],
)
def test_own_function_that_returns_no_mask_is_refused(function, message):
    with pytest.raises(DomainError, match=message):
        posed({"A": (0, 1)}, feasible=function)


def test_own_function_cannot_change_the_batch_and_sees_legal_values_only():
    seen = []

    def greedy(queries):
        seen.append(np.array(queries.value))
        queries.value.fill(0.0)
        return np.ones(len(queries), bool)

    problem = posed({"A": cb.Levels([1, 2, 4])}, feasible=greedy)
    queries = cb.Queries(np.ones((3, 2), bool) & [True, False], np.array([[1, 0], [3, 0], [9, 0]]))
    assert problem.feasible(queries).tolist() == [True, False, False]
    assert queries.value[0, 0] == 1.0
    assert {*np.concatenate(seen)[:, 0].tolist()} <= {1.0, 2.0, 4.0}


@pytest.mark.parametrize("seed", range(3))
def test_feasible_is_what_require_takes(seed):
    rng = np.random.default_rng(seed)
    domains = {"A": cb.Levels([-1.0, 0.0, 2.0]), "B": (-1.0, 1.0), "C": (0.0, 2.0)}
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=1.2)
    problem = posed(domains, [budget], feasible=ring, sets=[("A", "B"), ("A", "B", "C"), ("C",)])
    mask = rng.random((300, 4)) < 0.6
    value = rng.choice([-1.0, 0.0, 2.0, 0.7, 1.0, np.nan, np.inf, 5.0], size=(300, 4))
    asked = problem.feasible(cb.Queries(mask, value))
    taken = []
    for row in range(300):
        try:
            problem.require(cb.Queries(mask[[row]], value[[row]]))
            taken.append(True)
        except DomainError:
            taken.append(False)
    assert asked.tolist() == taken and 0 < asked.sum() < 300


def test_anchors_determine_affine_effects():
    rng = np.random.default_rng(0)
    domains = {name: (-1.0, 2.0) for name in "ABCD"}
    problem = posed(domains, random_constraints(rng, "ABCD", domains, 3))
    anchors = values_of(problem, affine_anchors(problem, problem.sets, None))
    assert anchors.shape == (5, 4) and np.linalg.cond(np.diff(anchors, axis=0)) < 1e3
    flat = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 5)) + 3.0
    assert len(independent_points(flat)) == 3 and len(independent_points(flat[:1])) == 1
    assert first_of_each(
        np.array([[1.0, 2], [1 + 1e-13, 0], [0, 5], [1.0, 2 - 1e-12]])
    ).tolist() == [
        2,
        1,
        0,
    ]


def test_costs_say_whether_they_depend_on_the_values():
    domains = {"A": (-1, 1), "B": (-1, 1)}
    plain = posed(domains)
    constant = posed(domains, costs={"A": 2.0, "B": 3.0})
    size = posed(domains, costs="magnitude")
    own = posed(domains, costs=lambda queries: np.ones(len(queries)))
    assert [each.cost_is_constant for each in (plain, constant, size, own)] == [
        True,
        True,
        False,
        False,
    ]
    assert [each.cost_is_magnitude for each in (plain, constant, size, own)] == [
        False,
        False,
        True,
        False,
    ]
    assert size.cost([{"A": -0.5, "B": 1.0}]).tolist() == [3.5] and size == posed(
        domains, costs=cb.MagnitudeCost(1.0)
    )


def test_the_same_problem_with_other_sets_keeps_all_that_restricts_it():
    budget = cb.LinearConstraint({"A": 1.0, "B": 1.0}, upper=2.0)
    domains = {"A": cb.Levels([0, 1, 3]), "B": (0, 2)}
    problem = posed(domains, [budget], feasible=ring, units={"A": "mg"}, costs={"A": 1.0, "B": 2.0})
    other = problem.explore(1)
    assert other.sets == (("A",), ("B",)) and other.levels == problem.levels
    assert other.constraints == problem.constraints and other.feasible_rule is ring
    assert other.units == problem.units and other.explore([("A", "B")]) == problem
