"""Linear constraints: which interventions are legal, their vertices and designs.

Oracles: brute-force enumeration, linear programs, and half-space intersections by Qhull.

Internals: anchors and independent points are compared below the designs that use them.
"""

from itertools import product

import numpy as np
import pytest
from helpers.constrained_problems import NAMES, half_spaces, posed, random_constraints, values_of
from scipy.optimize import linprog
from scipy.spatial import HalfspaceIntersection

import causal_bo_ppl as cb
from causal_bo_ppl.problem.designs import affine_anchors
from causal_bo_ppl.problem.regions import first_of_each, independent_points


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


def test_terms_of_variables_that_are_not_set_do_not_count_in_a_budget():
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
        cb.errors.DomainError,
        match=r"do\(A = 8, B = 1.5\) breaks the constraint A \+ 2 B <= 10: .* is 11;",
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
def test_constraint_without_effect_is_refused(options, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        cb.LinearConstraint(**({"coefficients": {"A": 1.0}, "upper": 1.0} | options))


def test_problem_whose_constraints_cannot_be_kept_is_refused():
    domains = {"A": (0, 1), "B": (0, 1)}
    high = cb.LinearConstraint({"A": 1.0, "B": 1.0}, lower=1.5)
    with pytest.raises(
        cb.errors.DomainError,
        match=r"no values of \{A\} .* constraint \(A \+ B >= 1.5\) \(B not set, so not part",
    ):
        posed(domains, [high], sets=2)
    assert len(posed(domains, [high]).vertices()) == 3
    low = cb.LinearConstraint({"A": 1.0, "B": 2.0}, upper=1.9)
    with pytest.raises(
        cb.errors.DomainError, match=r"\{A, B\} .* constraints \(A \+ B >= 1.5\) and \(A \+ 2 B <="
    ):
        posed(domains, [high, low, cb.LinearConstraint({"A": 1.0}, upper=0.9)])
    with pytest.raises(cb.errors.DomainError, match=r"no values of \{A\} .* \(0.1 <= A <= 0.9\)"):
        posed({"A": cb.Levels([0, 1])}, [cb.LinearConstraint({"A": 1.0}, lower=0.1, upper=0.9)])
    with pytest.raises(
        cb.errors.DomainError, match="A <= 1: unknown manipulable variable 'W'|W <= 1: unknown"
    ):
        posed(domains, [cb.LinearConstraint({"W": 1.0}, upper=1.0)])
    with pytest.raises(cb.errors.DomainError, match="constraints must be a list such as"):
        posed(domains, [{"A": 1.0}])
    many = {f"V{position:02}": (0.0, 1.0) for position in range(24)}
    with pytest.raises(cb.errors.ExplorationError, match="may meet in .* points"):
        posed(many, [cb.LinearConstraint(dict.fromkeys(many, 1.0), upper=3.0)])


def test_pomis_warns_where_values_are_constrained():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    domains = {"X": (-5, 5), "Z": (-5, 20)}
    with pytest.warns(cb.CausalBOWarning, match="POMIS assumes that every value"):
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


def test_costs_report_whether_they_depend_on_the_values():
    domains = {"A": (-1, 1), "B": (-1, 1)}
    plain = posed(domains)
    constant = posed(domains, costs={"A": 2.0, "B": 3.0})
    size = posed(domains, costs="magnitude")
    custom = posed(domains, costs=lambda queries: np.ones(len(queries)))
    assert [each.cost_is_constant for each in (plain, constant, size, custom)] == [
        True,
        True,
        False,
        False,
    ]
    assert [each.cost_is_magnitude for each in (plain, constant, size, custom)] == [
        False,
        False,
        True,
        False,
    ]
    assert size.cost([{"A": -0.5, "B": 1.0}]).tolist() == [3.5] and size == posed(
        domains, costs=cb.problem.MagnitudeCost(1.0)
    )
