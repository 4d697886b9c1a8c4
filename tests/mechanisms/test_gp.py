"""Nonlinear mechanisms: posterior, response and kernels.

Internals: basis, evidence and density are compared with dense formulas below `cb.fit`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import no_outcomes, read_outcomes
from causal_bo_ppl.inference.nuts import sample
from causal_bo_ppl.mechanisms import gp_basis as basis
from causal_bo_ppl.mechanisms import gp_regressions as evidence
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.gp_priors import steepest_slope
from causal_bo_ppl.mechanisms.gp_responses import normal_points

FEW = cb.GP(functions=8)
pytestmark = pytest.mark.heavy


def bind(problem, data, mechanisms="gp", prior=None, outcomes=None):
    none = no_outcomes(len(problem.graph.nodes))
    return read_mechanisms(mechanisms).bind(Task(problem, data, outcomes or none, prior))


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def data(toy):
    return toy.observe(100, 3)


@pytest.fixture(scope="module")
def post(toy, data):
    return cb.fit(toy.problem, data, mechanisms=cb.GP(functions=16))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param("squared_exponential", marks=pytest.mark.heavy),
        pytest.param("matern52", marks=pytest.mark.slow),
        pytest.param("matern32", marks=pytest.mark.slow),
    ],
)
def test_posterior_of_one_mechanism_is_that_of_exact_regression(kernel):
    problem = cb.Problem(cb.CausalGraph.parse("B -> C"), "C", domains={"B": (-2.0, 2.0)})
    rng = np.random.default_rng(3)
    b = rng.uniform(-2, 2, size=80)
    c = np.sin(2 * b) + b + 0.3 * rng.normal(size=80)
    data = cb.Data.from_frame(problem, pd.DataFrame({"B": b, "C": c}))
    model = bind(problem, data, cb.GP(kernel=kernel, functions=64))
    [(equation, setting, known)], [mode] = model.bound, model.modes
    mean, spread = evidence.mix(equation.form, known, mode.eta[None])
    grid = np.linspace(b.min(), b.max(), 21)
    features = jax.jit(lambda values: basis.features(equation.form, setting.frame, [values]))
    matrix = np.asarray(features(grid))
    ours = matrix @ mean[:-1], np.sqrt(np.einsum("ik,kl,il->i", matrix, spread[:-1, :-1], matrix))

    sd, trend, amplitude, length = np.exp(mode.eta)
    level = np.exp(2 * known.prior.log_sd[0])
    slope = np.exp(2 * known.prior.log_sd[1]) * trend**2

    def prior(one, other):
        process = amplitude**2 * basis.covariance(kernel, np.abs(one[:, None] - other) / length)
        return level + slope * np.outer(one - b.mean(), other - b.mean()) + process

    noisy = prior(b, b) + sd**2 * np.eye(len(b))
    cross = prior(grid, b)
    exact_mean = known.prior.level + cross @ np.linalg.solve(noisy, c - known.prior.level)
    exact = prior(grid, grid) - cross @ np.linalg.solve(noisy, cross.T)
    exact_sd = np.sqrt(np.diagonal(exact))
    # Matern processes are rougher: their sines converge more slowly.
    limit = {"squared_exponential": 0.01, "matern52": 0.02, "matern32": 0.05}[kernel]
    assert (np.abs(ours[0] - exact_mean) / exact_sd).max() < limit
    assert np.abs(ours[1] / exact_sd - 1).max() < limit


@pytest.mark.heavy
def test_effects_agree_with_one_dimensional_quadrature(toy, post):
    theta, model = post.draws(3, 0), post.distribution.model
    (z, z_setting, _), (y, y_setting, _) = model.bound
    queries = toy.problem.queries([{"X": value} for value in (-1.5, 0.0, 1.0)])
    found = cb.response(post)(theta, queries)
    errors = cb.response(post).standard_errors(theta[0], queries)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    of_z = jax.jit(lambda x: basis.features(z.form, z_setting.frame, [x]))
    of_y = jax.jit(lambda x: basis.features(y.form, y_setting.frame, [x]))
    for draw, effects in zip(theta, found, strict=True):
        first, second = draw[: z.form.size], draw[z.size : z.size + y.form.size]
        for effect, x in zip(effects, (-1.5, 0.0, 1.0), strict=True):
            centre = np.asarray(of_z(x)) @ first
            means = np.asarray(of_y(centre + np.exp(draw[z.form.size]) * nodes)) @ second
            assert abs(effect - weights @ means / weights.sum()) < 6 * errors.max() + 1e-9
    assert (errors < 0.01 * np.sqrt(np.diagonal(cb.jacobian_gram(post, queries).gram))).all()


def test_common_points_are_symmetric_so_that_linear_mechanisms_are_averaged_exactly(toy, data):
    linear = cb.fit(toy.problem, data, mechanisms={"Z": "linear"})
    assert linear.distribution.response.is_affine and not linear.distribution.response.is_linear
    theta, queries = linear.mean, toy.problem.queries([{"X": 2.0}, {"Z": -1.0}])
    level, slope, _, other, other_slope, _ = theta
    x_mean, z_mean = data.values[:, :2].mean(axis=0)
    expected = [other + other_slope * (level + slope * (2.0 - x_mean) - z_mean)]
    expected.append(other + other_slope * (-1.0 - z_mean))
    for name in ("qmc", "sigma"):
        r = cb.response(linear, propagation=name)
        np.testing.assert_allclose(r(theta, queries), expected, rtol=1e-9)
    assert np.abs(normal_points(256, 3).mean(axis=0)).max() < 1e-15
    conjugate = cb.fit(toy.problem, data)
    effects = cb.response(conjugate)(conjugate.mean, queries)
    np.testing.assert_allclose(expected, effects, rtol=1e-3)


@pytest.mark.heavy
def test_propagations_are_compared_in_one_table(toy, post):
    queries = toy.problem.queries([{"X": value} for value in (-1.0, 0.0, 1.0)] + [{"Z": 1.0}])
    table = cb.diagnostics.compare_propagations(post, queries)
    assert list(table.index[:1]) == ["do(X = -1)"]
    assert (table["sigma_error"].abs() < table["sd"]).all()
    np.testing.assert_allclose(table["sigma"] - table["qmc"], table["sigma_error"])
    assert table.loc["do(Z = 1)", "standard_error"] < 1e-12
    with pytest.raises(cb.errors.ArgumentError, match="propagation must be one of qmc, sigma, got"):
        cb.response(post, propagation="particles")
    with pytest.raises(cb.errors.ArgumentError, match="linear mechanisms are not averaged"):
        cb.diagnostics.compare_propagations(cb.fit(toy.problem, toy.observe(20, 0)), queries)


@pytest.mark.heavy
def test_nuts_agrees_with_the_closed_form_at_fixed_hyperparameters(toy, data):
    model = bind(toy.problem, data, FEW).given_hyperparameters()
    found = sample(
        model, cb.NUTS(chains=2, warmup=300, draws=500, progress=False), jax.random.key(0)
    )
    assert not found.stats["diverging"].any()
    mean, factor = model.moments(*model.mode()[:2])
    theta = found.chains.reshape(-1, len(mean))
    sd = np.sqrt((factor**2).sum(axis=1))
    moves = sd > 1e-6 * sd.max()
    gap = np.abs(theta.mean(axis=0) - mean)[moves] / sd[moves]
    assert gap.max() < 5 / np.sqrt(400)
    assert np.abs(theta.std(axis=0)[moves] / sd[moves] - 1).max() < 5 / np.sqrt(2 * 400)


@pytest.mark.heavy
def test_laplace_draws_have_its_moments_and_conjugate_is_narrower(toy, data):
    post, wide = (
        cb.fit(toy.problem, data, mechanisms=FEW, method=method)
        for method in ("conjugate", "laplace")
    )
    queries = toy.problem.queries([{"Z": value} for value in (-1.0, 0.0, 2.0, 5.0)])
    r = cb.response(wide)
    drawn = r(wide.draws(4_000, 0), queries)
    gram = np.sqrt(np.diagonal(cb.jacobian_gram(wide, queries).gram))
    np.testing.assert_allclose(drawn.std(axis=0), gram, rtol=0.1)
    np.testing.assert_allclose(drawn.mean(axis=0), r(wide.mean, queries), atol=0.1 * gram.max())
    narrow = np.sqrt(np.diagonal(cb.jacobian_gram(post, queries).gram))
    assert np.median(gram / narrow) > 1.0
    assert post.verdict == wide.verdict == "passed"


def test_observations_in_which_a_variable_was_set_do_not_inform_its_mechanism(toy, data):
    queries = toy.problem.sobol(8)
    more = toy.experiment(queries, 5)
    model = bind(toy.problem, data.join(more), FEW)
    set_there = more.intervened.sum(axis=0)
    counts = [float(known.statistics.count) for _, _, known in model.bound]
    assert counts == [len(data) + len(more) - set_there[1], len(data) + len(more)]


def test_update_is_a_refit_and_compiles_nothing(toy, data):
    options = {"mechanisms": FEW, "method": "conjugate"}
    first = cb.fit(toy.problem, data.select(slice(0, 60)), **options)
    queries = toy.problem.queries([{"X": 0.5}, {"Z": 1.0}])
    cb.jacobian_gram(first, queries)
    whole = cb.fit(toy.problem, data, **options)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    after = first.update(data.select(slice(60, None)))
    cb.jacobian_gram(after, queries)
    jax.monitoring.clear_event_listeners()
    assert not compiled
    np.testing.assert_allclose(after.mean, whole.mean, rtol=1e-9)
    np.testing.assert_allclose(after.covariance, whole.covariance, rtol=1e-7, atol=1e-12)


@pytest.mark.heavy
def test_density_of_an_outcome_of_the_target_alone_is_a_mixture_over_the_points(toy, data):
    queries = toy.problem.queries([{"X": 0.5}, {"Z": 1.0}])
    observed = read_outcomes(toy.problem, (queries, [0.3, -1.0]))
    model = bind(toy.problem, data, FEW, outcomes=observed)
    theta = model.draws(0.3 * np.random.default_rng(0).normal(size=(2, len(model.coordinates))))
    found = model.outcome_densities(theta)
    drawn = model.replicate(np.repeat(theta, 40_000, axis=0), queries, jax.random.key(1))
    outcomes = drawn[:, :, -1].reshape(2, 40_000, 2)
    near = np.abs(outcomes - np.array([0.3, -1.0])) < 0.1
    density = near.mean(axis=1) / 0.2
    error = np.sqrt(near.mean(axis=1) / 40_000) / 0.2
    assert (np.abs(np.exp(found) - density) < 5 * error + 0.02 * density).all()
    base = bind(toy.problem, data, FEW)
    psi = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=len(model.coordinates)))
    logs = [jax.jit(each.density.log_likelihood)(psi) for each in (model, base)]
    of_outcomes = model.outcome_densities(model.draws(psi[None]))
    assert float(logs[0] - logs[1]) == pytest.approx(float(of_outcomes.sum()), rel=1e-6)


@pytest.mark.heavy
def test_laplace_learns_from_outcomes_of_the_target_alone(toy, data):
    queries = toy.problem.queries([{"Z": -4.0}] * 6)
    before = cb.fit(toy.problem, data, mechanisms=FEW, method="laplace")
    after = cb.fit(
        toy.problem, data, mechanisms=FEW, method="laplace", outcomes=(queries, [-1.5] * 6)
    )
    asked = toy.problem.queries([{"Z": -4.0}])
    sds = [cb.jacobian_gram(post, asked).gram[0, 0] ** 0.5 for post in (before, after)]
    assert sds[1] < 0.6 * sds[0]
    assert abs(cb.response(after)(after.mean, asked)[0] + 1.5) < 1.0
    with pytest.raises(cb.errors.ArgumentError, match="learns from complete observations only"):
        cb.fit(toy.problem, data, mechanisms=FEW, outcomes=(queries, [-1.5] * 6))


@pytest.mark.heavy
def test_monte_carlo_kernel_shows_where_linearization_fails(toy, post):
    near = toy.problem.queries([{"X": value} for value in (-0.5, 0.0, 0.5)])
    far = toy.problem.queries([{"X": 5.0}])  # missed by about 0.4
    for queries, is_close in ((near, True), (far, False)):
        drawn = np.sqrt(np.diagonal(cb.monte_carlo_gram(post, queries, draws=1_000, key=0).gram))
        linear = np.sqrt(np.diagonal(cb.jacobian_gram(post, queries).gram))
        assert (np.abs(linear / drawn - 1) < 0.2).all() == is_close
    with pytest.raises(cb.errors.PosteriorError, match="second moments of their effects"):
        cb.exact_gram(post, near)


@pytest.mark.heavy
def test_tree_of_a_posterior_names_its_coordinates(post):
    tree = post.to_datatree(draws=40)
    assert tuple(tree["posterior"]["coordinate"].values) == post.names
    assert tree["prior"]["theta"].shape[-1] == len(post.names)
    frame = post.to_frame()
    assert frame.loc["b[X->Z]", "part"] == "slope of X" and "low[Z->Y]" in frame.index


@pytest.mark.slow
def test_contract_of_mechanisms_is_kept(toy, data):
    check = cb.testing.check_mechanisms(cb.GP(functions=3), toy.problem, data.select(slice(0, 40)))
    check.require()


def test_prior_is_written_and_read():
    prior = cb.priors.GPPrior(hinge=2.0, scales={"X": 2.0}, ranges={"X": (-1.0, 1.0)})
    again = cb.priors.GPPrior.from_json(prior.to_json())
    assert again.canonical() == prior.canonical() != cb.priors.GPPrior().canonical()
    with pytest.raises(cb.errors.MechanismError, match="exactly the fields"):
        cb.priors.GPPrior.from_json('{"hinge": 1.0}')


def test_the_order_of_names_in_a_group_does_not_matter(joined):
    problem, data = joined
    names = [
        bind(problem, data, {"Y": cb.GP(groups=[group], functions=4)}).response.names
        for group in (("A", "C"), ("C", "A"))
    ]
    assert names[0] == names[1]


def test_too_few_or_collinear_observations_are_refused(toy, data):
    with pytest.raises(cb.errors.DataError, match="only 2"):
        cb.fit(toy.problem, data.select(slice(0, 2)), mechanisms="gp")
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (-1.0, 1.0), "B": (-1.0, 1.0)})
    a = np.random.default_rng(0).normal(size=40)
    table = pd.DataFrame({"A": a, "B": 2 * a + 1, "Y": np.sin(a)})
    with pytest.raises(cb.errors.DataError, match="collinear"):
        cb.fit(problem, cb.Data.from_frame(problem, table), mechanisms="gp")


def test_many_observations_do_not_fail_by_rounding(toy):
    assert cb.fit(toy.problem, toy.observe(30_000, 0), mechanisms=FEW).verdict == "passed"


def test_standard_errors_of_sigma_points_are_their_errors(toy, data):
    post = cb.fit(toy.problem, data, mechanisms=FEW)
    queries = toy.problem.queries([{"X": 0.0}, {"X": 1.0}])
    table = cb.diagnostics.compare_propagations(post, queries)
    sigma = cb.response(post, propagation="sigma")
    found = sigma.standard_errors(post.mean, queries)
    np.testing.assert_allclose(found, table["sigma_error"].abs(), atol=0.01)


def test_wrong_options_are_refused(toy, data):
    for options, error, message in (
        ({"parameters": "structural"}, cb.errors.ArgumentError, "is for linear mechanisms"),
        ({"intercepts": False}, cb.errors.ArgumentError, "these have levels"),
        ({"linear": True, "method": "laplace"}, cb.errors.ArgumentError, "these are not linear"),
        ({"prior": cb.priors.FixedPrior()}, cb.errors.MechanismError, "take a cb.priors.GPPrior"),
        ({"mechanisms": {"W": "gp"}}, cb.errors.MechanismError, "W"),
        (
            {"mechanisms": {"Z": "cubic"}},
            cb.errors.MechanismError,
            'must be "linear", "gp", cb.Linear',
        ),
        (
            {"mechanisms": {"Y": cb.GP(groups=[("X", "Z")])}},
            cb.errors.MechanismError,
            "none of its causes",
        ),
        ({"method": "wishart"}, cb.errors.ArgumentError, "linear"),
        ({"prior": cb.priors.GPPrior(scales={"typo": 3.0})}, cb.errors.MechanismError, "typo"),
    ):
        with pytest.raises(error, match=message):
            cb.fit(toy.problem, data, **{"mechanisms": "gp", **options})
    for options, error, message in (
        ({"groups": ["DE"]}, cb.errors.MechanismError, "groups are lists of names"),
        (
            {"groups": [("A", "B", "C", "D")]},
            cb.errors.MechanismError,
            "two or three different causes",
        ),
        ({"groups": [("A", "B"), ("B", "C")]}, cb.errors.MechanismError, "one group only"),
        ({"kernel": "linear"}, cb.errors.MechanismError, "kernel must be one of"),
        ({"groups": 5}, cb.errors.MechanismError, "groups are lists of names"),
        (
            {"groups": [("A", "B", "C")], "functions": 48},
            cb.errors.MechanismError,
            "basis functions for one process",
        ),
        ({"functions": 1}, cb.errors.ArgumentError, "functions"),
    ):
        with pytest.raises(error, match=message):
            cb.GP(**options)
    for options, message in (
        ({"hinge": 0.0}, "hinge must be positive"),
        ({"scales": {"X": -1.0}}, "must be positive"),
        ({"ranges": {"X": (1.0, 0.0)}}, r"must be \(low, high\)"),
    ):
        with pytest.raises(cb.errors.MechanismError, match=message):
            cb.priors.GPPrior(**options)


def test_a_variable_that_is_a_function_of_its_causes_has_noise_of_the_size_of_rounding():
    """Otherwise its sd goes to 0, and the search for the mode does not end."""
    graph = cb.CausalGraph.parse("X -> Z -> Y")
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    z = np.tanh(x)
    values = np.stack([x, z, z**2 + 0.3 * rng.normal(size=60)], axis=1)
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)})
    post = cb.fit(problem, data, mechanisms=cb.GP(functions=16))
    assert post.verdict == "passed"
    sd = float(np.exp(post.mean[post.names.index("log_sd[Z]")])) / z.std()
    assert 0.5e-4 < sd < 0.02


def test_steepest_slopes_are_corrected_for_noise():
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(200, 30))
    alone = [steepest_slope(x, rng.normal(size=30)) for x in cause]
    assert np.median(alone) < 1.0  # without a correction 4.2
    steep = [steepest_slope(x, np.exp(-x) + 0.05 * rng.normal(size=30)) for x in cause]
    slopes = [np.exp(-np.sort(x)[2]) for x in cause]  # about the mean of the first of six bins
    assert 0.5 < np.median(np.array(steep) / slopes) < 1.1
