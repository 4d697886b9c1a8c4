"""Optima, optimization and diagnoses of problems whose values are restricted.

Oracles: brute force over fine grids and over all combinations of levels, and linear programs.

Internals: the best of one set is compared with brute force.
"""

from dataclasses import replace
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.optimize import linprog

import causal_bo_ppl as cb
from causal_bo_ppl.systems import best_of_restricted_set

BUDGET = cb.LinearConstraint({"X": 1.0, "Z": 1.0}, lower=-6.0, upper=3.0)


def restricted(system, *, levels=None, sets=2, **options):
    """The same system under restrictions."""
    domains = system.problem.domains | {
        name: cb.Levels(values) for name, values in (levels or {}).items()
    }
    problem = cb.Problem(
        system.problem.graph,
        system.problem.target,
        system.problem.objective,
        domains=domains,
        sets=sets,
        **options,
    )
    return replace(system, problem=problem)


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


def best_by_force(system, ticks):
    """The best effect over all legal combinations of these values."""
    problem, sign = system.problem, 1.0 if system.problem.objective == "min" else -1.0
    best = np.inf
    for members in problem.sets:
        points = np.array(list(product(*(ticks[name] for name in members))))
        columns = [problem.graph.index(name) for name in members]
        mask, value = (
            np.zeros((len(points), len(problem.graph.nodes)), kind) for kind in (bool, float)
        )
        mask[:, columns], value[:, columns] = True, points
        queries = cb.problem.Queries(mask, value)
        queries = queries[problem.feasible(queries)]
        best = min(best, float((sign * system.effect(queries)).min()))
    return sign * best


@pytest.mark.parametrize("objective", ["min", "max"])
def test_optimum_of_an_affine_response_solves_the_linear_program(chain, objective):
    plain = replace(
        chain,
        problem=cb.Problem(
            chain.problem.graph, "Y", objective, sets=2, domains=chain.problem.domains
        ),
    )
    system = restricted(plain, constraints=[BUDGET])
    sign, best = (1.0 if objective == "min" else -1.0), np.inf
    for members in system.problem.sets:
        start = float(plain.effect([dict.fromkeys(members, 0.0)])[0])
        slope = [
            float(plain.effect([dict.fromkeys(members, 0.0) | {name: 1.0}])[0]) - start
            for name in members
        ]
        row = np.ones((1, len(members)))
        found = linprog(
            sign * np.array(slope),
            np.vstack([row, -row]),
            [3.0, 6.0],
            bounds=[system.problem.domains[name] for name in members],
        )
        best = min(best, found.fun + sign * start)
    assert system.optimum.value == pytest.approx(sign * best, abs=1e-9)
    assert "vertices" in system.optimum.how
    system.problem.queries([system.optimum.intervention])


def test_optimum_of_levels_is_the_best_combination(chain, toy):
    levels = {"X": [-4, -1, 0, 3.5], "Z": [-3, 0.5, 2, 11, 19]}
    for system in (restricted(chain, levels=levels), restricted(toy, levels=levels)):
        found = system.optimum
        assert found.value == pytest.approx(best_by_force(system, levels), abs=1e-12)
        both = restricted(system, levels=levels, constraints=[BUDGET])
        assert both.optimum.value == pytest.approx(best_by_force(both, levels), abs=1e-12)
        both.problem.queries([both.optimum.intervention])


@pytest.mark.parametrize("case", ["constraint", "mixed", "function", "flat"])
def test_optimum_of_a_nonlinear_response_is_found_on_the_border(toy, case):
    ticks = {name: np.linspace(*bounds, 2001) for name, bounds in toy.problem.domains.items()}
    options = {"constraints": [cb.LinearConstraint({"Z": 1.0}, upper=-3.6)]}
    if case == "mixed":
        options = {"levels": {"X": [-4.0, 0.0, 4.5]}, "constraints": [BUDGET]}
        ticks["X"] = np.array(options["levels"]["X"])
    if case == "function":
        options = {"feasible": lambda queries: ((queries.value - 1.0) ** 2).sum(axis=1) >= 30.0}
    if case == "flat":
        flat = cb.LinearConstraint({"X": 1.0, "Z": 1.0}, lower=1.0, upper=1.0)
        options = {"constraints": [flat], "sets": [("X", "Z")]}
        ticks = {"X": np.linspace(-5, 5, 2001), "Z": None}
    system = restricted(toy, **options)
    found = system.optimum
    system.problem.queries([found.intervention])
    if case == "flat":
        line = [{"X": float(x), "Z": 1.0 - float(x)} for x in ticks["X"]]
        forced = float(system.effect(line).min())
    else:
        forced = best_by_force(
            system, {n: each[::10] if len(each) > 9 else each for n, each in ticks.items()}
        )
    assert found.value <= forced + 1e-9 and found.value >= forced - 0.05


def test_search_slides_along_an_oblique_face():
    """A quadratic with its free minimum outside of a polytope: known by projection."""
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in "ABC"])
    cut = cb.LinearConstraint({"A": 1.0, "B": 2.0, "C": -1.0}, upper=0.3)
    domains = dict.fromkeys("ABC", (-1.0, 1.0))
    problem = cb.Problem(graph, "Y", domains=domains, sets=[("A", "B", "C")], constraints=[cut])
    centre, normal = np.array([0.6, 0.5, 0.1]), np.array([1.0, 2.0, -1.0])
    nearest = centre - (centre @ normal - 0.3) / (normal @ normal) * normal

    def loss(queries):
        return ((np.asarray(queries.value)[:, :3] - centre) ** 2).sum(axis=1)

    found = best_of_restricted_set(problem, loss, ("A", "B", "C"))
    assert np.allclose(np.asarray(found.value)[0, :3], nearest, atol=1e-5)
    assert loss(found)[0] == pytest.approx(((nearest - centre) ** 2).sum(), abs=1e-8)


def test_equally_good_values_are_the_lowest(make_problem):
    problem = make_problem(domains={"X": cb.Levels([-5, 0, 5]), "Z": (-5, 20)}, sets=[("X", "Z")])
    found = best_of_restricted_set(problem, lambda queries: np.ones(len(queries)) + 0.1, ("X", "Z"))
    assert problem.interventions(found) == [{"X": -5.0, "Z": -5.0}]


@pytest.mark.heavy
def test_system_under_restrictions_passes_its_checks(chain):
    system = restricted(
        chain,
        levels={"X": [-4, -1, 0, 3.5]},
        constraints=[BUDGET],
        feasible=lambda queries: queries.value.sum(axis=1) > -5.5,
    )
    assert cb.testing.check_system(system, draws=20_000, per_set=2, key=0).passed


@pytest.fixture(scope="module")
def fitted(chain):
    system = restricted(chain, levels={"X": [-4, -1, 0, 3.5]}, constraints=[BUDGET], sets="mis")
    return system, cb.fit(system.problem, system.observe(80, 0))


def test_every_suggestion_is_legal(fitted):
    system, _ = fitted
    run = cb.optimize(system, rounds=6, observations=60, progress=False, key=0)
    assert len(run) == 6 and system.problem.feasible(run.queries).all()
    assert system.problem.feasible([run.best.intervention]).all()
    assert min(run.regret()) >= -1e-9


def test_user_defined_function_makes_the_search_look_inside(chain):
    system = restricted(
        chain, sets="mis", feasible=lambda queries: np.abs(queries.value).max(axis=1) < 4.5
    )
    run = cb.optimize(system, rounds=4, observations=60, progress=False, key=0)
    assert len(run) == 4 and system.problem.feasible(run.queries).all()


@pytest.mark.heavy
def test_diagnoses_theory_and_pictures_ask_about_legal_interventions_only(fitted):
    system, post = fitted
    assert cb.diagnostics.check_overlap(post) is not None
    cb.theory.theory_table(post, noise=1.0, rounds=3)
    cb.theory.kappa2(post)
    cb.kernels.coupling(post)
    cb.diagnostics.prior_sensitivity(post)
    cb.diagnostics.gaussian_error(post, key=0)
    cb.compare_kernels(post, post.problem.vertices(), key=0)
    assert cb.theory.exploration_error(system).value == pytest.approx(0.0, abs=1e-9)
    ax = cb.plots.draw_response(post, "X", key=0)
    plt.close(ax.figure)


def test_fewer_values_never_improve_the_optimum(toy):
    free = toy.optimum.value
    for options in ({"levels": {"X": [-5, 0, 5]}}, {"constraints": [BUDGET]}):
        assert restricted(toy, **options).optimum.value >= free - 1e-9
