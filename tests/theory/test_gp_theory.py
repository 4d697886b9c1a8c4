"""Rank, gains and bounds of nonlinear mechanisms, and errors of mechanisms along paths.

Internals: slopes of single basis functions are compared below the bounds.
"""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.mechanisms.gp_basis import Form, Frame, Group, features, steepest
from causal_bo_ppl.theory import constants

pytestmark = pytest.mark.heavy
FEW = cb.GP(functions=8)


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def post(toy):
    return cb.fit(toy.problem, toy.observe(60, 0), mechanisms=FEW, method="conjugate")


def frame_of(count, low=-1.0, high=2.0):
    """A box of half-width 3 around 1 and data between `low` and `high`, for each cause."""
    ones = np.ones(count)
    return Frame(0 * ones, 1.0 * ones, 3.0 * ones, low * ones, high * ones)


def test_largest_slope_of_one_sine_is_its_amplitude_times_its_frequency():
    """c sin(k pi (x - m + L) / 2L) / sqrt(L), L = 6: slope c k pi / (2 L sqrt(L)) at its zeros."""
    form = Form(1, (Group((0,), (8,), "matern52"),), (0,))
    for number in (2, 4, 8):  # zero at the middle of the box, where the slope is largest
        coefficients = np.zeros(form.size)
        coefficients[1 + number] = -3.0
        expected = 3.0 * number * np.pi / (2 * 6.0 * np.sqrt(6.0))
        [found] = steepest(form, frame_of(1), coefficients)
        assert found == pytest.approx(expected, rel=1e-3) and found <= expected * (1 + 1e-9)


def test_largest_slope_counts_the_trend_and_the_hinges_beyond_the_data():
    form = Form(1, (Group((0,), (8,), "matern52"),), (0,))
    coefficients = np.zeros(form.size)
    coefficients[1] = 0.5  # the trend
    assert steepest(form, frame_of(1), coefficients) == pytest.approx([0.5])
    coefficients[-2:] = 2.0, 0.1  # below the data g falls by 2 for every step towards them
    assert steepest(form, frame_of(1), coefficients) == pytest.approx([1.5])
    coefficients[-2:] = 0.0, -4.0
    assert steepest(form, frame_of(1), coefficients) == pytest.approx([3.5])
    narrow = frame_of(1, low=-2.0, high=4.0 - 1e-6)  # a sliver of the box beyond the data
    coefficients[3] = 1.0
    least = np.abs(brute_slopes(form, narrow, coefficients, np.linspace(4 - 9e-7, 4 - 1e-7, 5)))
    assert steepest(form, narrow, coefficients)[0] >= least.max() - 1e-6


def brute_slopes(form, frame, coefficients, positions):
    """Central differences of features times coefficients along one cause."""
    step = 1e-8 if np.ptp(positions) < 1e-3 else 1e-6
    ends = [
        np.asarray(features(form, frame, [positions + move])) @ coefficients
        for move in (step, -step)
    ]
    return (ends[0] - ends[1]) / (2 * step)


@pytest.mark.parametrize("seed", range(4))
def test_largest_slope_is_that_of_brute_force(seed):
    form = Form(1, (Group((0,), (8,), "squared_exponential"),), (0,))
    coefficients = np.random.default_rng(seed).normal(size=form.size)
    positions = np.linspace(-8, 10, 20_001)
    slopes = np.abs(brute_slopes(form, frame_of(1), coefficients, positions))
    [found] = steepest(form, frame_of(1), coefficients)
    assert found == pytest.approx(slopes.max(), rel=1e-3)


def test_largest_slope_of_a_group_is_that_of_brute_force_in_each_cause():
    form = Form(3, (Group((0, 2), (4, 4), "matern52"), Group((1,), (4,), "matern52")), (0, 1, 2))
    coefficients = np.random.default_rng(5).normal(size=form.size)
    found = steepest(form, frame_of(3), coefficients)
    generator = np.random.default_rng(6)
    points = generator.uniform(-2, 4, (40_000, 3))
    for cause in range(3):
        ends = []
        for move in (1e-6, -1e-6):
            moved = points + move * (np.arange(3) == cause)
            ends.append(np.asarray(features(form, frame_of(3), list(moved.T))) @ coefficients)
        largest = np.abs((ends[0] - ends[1]) / 2e-6).max()
        assert largest * (1 - 1e-5) <= found[cause] * 1.01 and found[cause] <= 1.1 * largest


def test_slopes_of_linear_mechanisms_are_their_coefficients():
    system = cb.models.load("chain")
    line = cb.fit(system.problem, system.observe(60, 0))
    slopes = dict(zip(line.names, np.abs(line.mean), strict=True))
    found = theory.mechanism_slopes(line)
    assert found["X", "Z"] == pytest.approx(slopes["b[X->Z]"], rel=1e-12)
    assert found["Z", "Y"] == pytest.approx(slopes["b[Z->Y]"], rel=1e-12)
    total = cb.fit(system.problem, system.observe(60, 0), parameters="total_effect")
    with pytest.raises(cb.errors.PosteriorError, match="does not hold the mechanisms"):
        theory.mechanism_slopes(total)


def test_known_slopes_and_mechanisms_that_no_effect_needs_are_counted():
    graph = cb.CausalGraph.parse("W -> X; X -> Z -> Y; X -> Y")
    options = {"domains": {"X": (-2, 2), "Z": (-2, 2)}, "known": {("X", "Y"): -0.7}}
    problem = cb.Problem(graph, "Y", sets=[("X",), ("X", "Z")], **options)
    draws = np.random.default_rng(0)
    w, noise = draws.normal(size=60), draws.normal(size=(60, 3))
    x = w + noise[:, 0]
    z = np.sin(x) + 0.3 * noise[:, 1]
    values = np.stack([w, x, z, z - 0.7 * x + 0.3 * noise[:, 2]], axis=1)
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    fitted = cb.fit(problem, data, mechanisms={"Z": FEW}, method="conjugate")
    slopes = theory.mechanism_slopes(fitted)
    assert slopes["X", "Y"] == pytest.approx(0.7) and slopes["W", "X"] == 0.0
    at = fitted.names.index("b[Z->Y]")
    assert slopes["Z", "Y"] == pytest.approx(abs(fitted.mean[at]), rel=1e-12)
    mechanism = fitted.distribution.response.mechanism
    found = mechanism(fitted.mean[None], "Y", values)[0]
    level, slope = (fitted.mean[fitted.names.index(name)] for name in ("level[Y]", "b[Z->Y]"))
    np.testing.assert_allclose(
        found, level + slope * (z - z.mean()) - 0.7 * x, rtol=1e-9, atol=1e-9
    )
    with pytest.raises(
        cb.errors.MechanismError, match="unknown variable with a learned mechanism 'X'"
    ):
        mechanism(fitted.mean[None], "X", values)


def test_mechanism_of_linear_parameters_is_the_linear_predictor():
    system = cb.models.load("chain")
    line = cb.fit(system.problem, system.observe(60, 0))
    values = np.random.default_rng(0).normal(size=(5, 3))
    thetas = line.draws(4, 0)
    at = {name: thetas[:, [position]] for position, name in enumerate(line.names)}
    found = line.distribution.response.mechanism(thetas, "Y", values)
    np.testing.assert_allclose(found, at["a[Y]"] + at["b[Z->Y]"] * values[:, 1], rtol=1e-12)
    with pytest.raises(
        cb.errors.MechanismError, match="unknown variable with a learned mechanism 'X'"
    ):
        line.distribution.response.mechanism(thetas, "X", values)


def test_true_mechanisms_are_read_from_the_program(toy):
    values = np.random.default_rng(0).normal(size=(6, 3))
    found = toy.mechanisms(values)
    x, z, _ = values.T
    np.testing.assert_allclose(found.mean[:, 1], np.exp(-x), rtol=1e-12)
    np.testing.assert_allclose(found.mean[:, 2], np.cos(z) - np.exp(-z / 20), rtol=1e-12)
    np.testing.assert_array_equal(found.sd, 1.0)
    with pytest.raises(cb.errors.ModelError, match="does not draw it from a Normal but"):
        cb.models.load("healthcare").mechanisms(
            np.ones((2, len(cb.models.load("healthcare").problem.graph.nodes)))
        )


def test_suprema_of_nonlinear_effects_are_taken_over_points_that_fill_the_domains(post):
    queries, how = constants.design(post)
    assert how == "among 258 points that fill the domains" and len(queries) == 258
    values = np.asarray(queries.value)[np.asarray(queries.mask)[:, 1], 1]
    assert values.min() == -5.0 and values.max() == 20.0 and np.ptp(np.diff(values)) < 1e-12
    jacobian = cb.response(post).jacobian(post.mean, queries)
    largest = theory.kappa2(post)
    variances = ((jacobian @ post.covariance) * jacobian).sum(axis=1)
    assert largest.value == pytest.approx(variances.max(), rel=1e-9) and largest.how == how
    steep = theory.lipschitz(post)
    assert steep.value == pytest.approx(np.linalg.norm(jacobian, axis=1).max(), rel=1e-12)
    error = theory.parameter_error(post)
    assert 0 < error.pointwise <= error.value
    line = cb.fit(cb.models.load("chain").problem, cb.models.load("chain").observe(60, 0))
    assert theory.kappa2(line).how == "over all vertices"


def test_sets_of_many_variables_are_filled_with_their_vertices():
    names = [f"A{position}" for position in range(5)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    problem = cb.Problem(graph, "Y", domains=dict.fromkeys(names, (-1, 1)), sets=[names, names[:2]])
    design = constants.fill_boxes(problem, problem.sets)
    rows = np.asarray(design.value)[:, :5][np.asarray(design.mask)[:, :5].all(axis=1)]
    corners = {tuple(row) for row in rows.tolist() if (np.abs(row) == 1).all()}
    assert len(corners) == 2**5 and len(rows) == 2**5 + 128 and len(design) == len(rows) + 121


def test_table_of_the_theory_runs_for_nonlinear_mechanisms(post):
    table = theory.theory_table(post, noise=1.0, rounds=6).set_index("quantity")
    value = table["value"]
    assert 2 < value["rank"] == cb.theory.causal_rank(post) <= value["dimension"] == len(post.names)
    assert value["covariance error"] < 1e-4 * value["kappa^2"]
    gain = value["information gain"]
    assert gain <= value["bound by rank"] <= value["bound by dimension"]
    assert "points that fill the domains" in table.loc["kappa^2", "how"]
    assert table.loc["dimension", "how"] == "of theta_Y, gp"
    strength = theory.design_strength(post)
    assert strength.index.tolist() == ["Z", "Y"]
    design = np.column_stack([np.ones(60), post.data.column("X")])
    smallest = np.linalg.eigvalsh(design.T @ design / 60)[0]
    assert strength.loc["Z", "lambda_min"] == pytest.approx(smallest, rel=1e-9)
    queries = post.problem.grid(3)
    assert (theory.kernel_drift([post, post], queries).to_numpy() == 0).all()
    assert theory.variance_sum_ratio([post, post], queries[:2], 1.0) > 0


def test_the_uncertainty_of_effects_can_be_followed_over_data_of_nonlinear_mechanisms(toy):
    table = theory.concentration(toy.problem, toy.observe(60, 0), [60], mechanisms=FEW)
    assert table.index.tolist() == [60] and np.isfinite(table.to_numpy()).all()


def test_errors_of_mechanisms_are_the_largest_over_the_box(toy, post):
    table = theory.mechanism_errors(post, toy)
    mechanism = post.distribution.response.mechanism

    def gap(z):
        at = np.array([[0.0, z, 0.0]])
        return -abs(mechanism(post.mean[None], "Y", at)[0, 0] - np.cos(z) + np.exp(-z / 20))

    positions = np.linspace(-5, 20, 101)
    best = min(
        minimize_scalar(gap, bounds=(low, high), method="bounded").fun
        for low, high in zip(positions[:-1:10], positions[10::10], strict=True)
    )
    best = min(best, gap(-5.0), gap(20.0))
    assert table.loc["Y", "mean"] == pytest.approx(-best, rel=1e-3)
    sd = np.exp(post.mean[post.names.index("log_sd[Z]")])
    assert table.loc["Z", "noise"] == pytest.approx(np.sqrt(2 / np.pi) * abs(sd - 1))
    assert table.loc["Y", "noise"] == 0.0


def test_no_effect_is_off_by_more_than_the_bound_along_the_fitted_paths(toy, post):
    table = theory.path_errors(post, toy, key=1)
    assert (table["error"] <= table["expected"] + 4 * table["standard_error"] + 1e-9).all()
    assert (table["error"] <= (1 + 1e-9) * table["bound"]).all()
    assert table.loc["Z", "outside"] == 0.0 and table.loc["X", "outside"] > 0.1
    errors, slopes = theory.mechanism_errors(post, toy)["error"], theory.mechanism_slopes(post)
    by_hand = errors["Y"] + slopes["Z", "Y"] * errors["Z"]
    assert table.loc["X", "bound"] == pytest.approx(by_hand, rel=1e-12)
    assert table.attrs["slopes"]["Z -> Y"] == slopes["Z", "Y"]
    inside = toy.problem.queries([{"X": 0.0}, {"X": 1.0}])
    there = theory.path_errors(post, toy, inside, key=1)
    assert there.index.tolist() == ["X"] and there.loc["X", "expected"] < table.loc["X", "expected"]


def test_bound_is_reached_by_linear_mechanisms_whose_errors_add_up():
    """One coefficient is off and all slopes are positive: the bound is the error itself."""
    system = cb.models.load("chain")
    data = system.observe(200, 0)
    line = cb.fit(system.problem, data, intercepts=False)
    only = system.problem.queries([{"Z": 5.0}, {"Z": -5.0}])
    table = theory.path_errors(line, system, only, key=0)
    assert table.loc["Z", "expected"] == pytest.approx(table.loc["Z", "error"], rel=1e-9)
    assert table.loc["Z", "error"] == pytest.approx(5 * abs(line.mean[1] + 1.3), rel=1e-9)


def test_bounds_beside_the_truth_refuse_what_is_not_a_truth(toy, post):
    for wrong, match in [
        (toy.problem, "the truth must be a CausalSystem, got Problem"),
        (cb.models.load("synthetic"), "another graph than the posterior's problem"),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            theory.path_errors(post, wrong, key=0)
    confounded = cb.models.load("toy", variant="confounded")
    line = cb.fit(confounded.problem, confounded.observe(100, 0), method="wishart")
    with pytest.raises(cb.errors.ArgumentError, match="a latent cause joins 'X' and 'Y'"):
        theory.path_errors(line, confounded, key=0)
