"""Conjugate posteriors of equations: dense formulas, updates, priors, refusals.

Internals: statistics of one regression are compared with dense formulas.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms import linear_equations as regressions


def by_names(post, names):
    positions = [post.names.index(name) for name in names]
    return post.mean[positions], post.covariance[np.ix_(positions, positions)]


def scaled_prior(regressors, response, intercepts, weight=0.01):
    """Zellner's prior as documented: precision and centre in raw coordinates, shape and rate."""
    n, share = len(response), weight / len(response)
    if not intercepts:
        gram, size = share * regressors.T @ regressors, regressors.shape[1]
        return gram, np.zeros(size), (weight - size) / 2, weight / 2 * np.mean(response**2)
    means = regressors[:, 1:].mean(axis=0)
    to_centred = np.eye(regressors.shape[1])
    to_centred[0, 1:] = means  # the mean at the parents' means is a + means'b
    centred = regressors[:, 1:] - means
    block = np.zeros((regressors.shape[1],) * 2)
    block[0, 0], block[1:, 1:] = weight, share * centred.T @ centred
    centre = np.linalg.solve(to_centred, np.eye(regressors.shape[1])[0] * response.mean())
    assert n > 2
    return (
        to_centred.T @ block @ to_centred,
        centre,
        (weight - len(centre)) / 2,
        weight / 2 * response.var(),
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("intercepts", [True, False])
def test_default_posterior_equals_the_dense_formula(seed, intercepts):
    problem, truth = cases.random_problem(seed, known=seed % 2)
    data = cases.simulate(problem, truth, 40, seed, interventional=True, lift=0.5 * intercepts)
    post = cb.fit(problem, data, intercepts=intercepts)
    checked = 0
    for node in problem.graph.nodes:
        regressors, response, names = cases.design(problem, data, node, intercepts)
        if not names:
            continue
        mean, covariance, variance = cases.dense_regression(
            regressors, response, *scaled_prior(regressors, response, intercepts)
        )
        held = [position for position, name in enumerate(names) if name in post.names]
        found = by_names(post, [names[position] for position in held])
        np.testing.assert_allclose(found[0], mean[held], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1], covariance[np.ix_(held, held)], rtol=1e-10, atol=1e-13)
        assert post.distribution.posterior.variance[problem.graph.index(node)] == pytest.approx(
            variance, rel=1e-10
        )
        checked += len(held)
    assert checked == len(post.names) > 4


@pytest.mark.parametrize("seed", range(3))
def test_fixed_prior_equals_the_dense_formula(seed):
    problem, truth = cases.random_problem(seed, known=1)
    free = [edge for edge in problem.graph.directed if edge not in problem.known]
    prior = cb.priors.FixedPrior(
        slope_sd=0.7,
        intercept_sd=2.0,
        noise_sd=1.5,
        noise_observations=6.0,
        scales={"V0": 2.0, "V4": 0.5},
        centres={"V0": 1.0, "V2": -3.0, "V4": 5.0},
        slopes={free[-1]: (0.4, 0.2)},
    )
    data = cases.simulate(
        problem, truth, 3, seed, interventional=True
    )  # fewer observations than coefficients
    post = cb.fit(problem, data, prior=prior)
    scale, centre = (lambda v: prior.scales.get(v, 1.0)), (lambda v: prior.centres.get(v, 0.0))
    for node in problem.graph.nodes:
        regressors, response, names = cases.design(problem, data, node)
        causes = [name[2:-1].split("->")[0] for name in names[1:]]
        guess = (1.5 * scale(node)) ** 2
        quadratic = np.zeros((len(names),) * 2)
        row = np.array([1.0, *map(centre, causes)])
        quadratic += np.outer(row, row) / 2.0**2
        offset = sum(
            value * centre(cause)
            for (cause, effect), value in problem.known.items()
            if effect == node
        )
        linear = row * (centre(node) - offset) / 2.0**2
        for position, cause in enumerate(causes, start=1):
            mean, precision = (
                (0.4, guess / 0.2**2)
                if (cause, node) == free[-1]
                else (0.0, (scale(cause) / 0.7) ** 2)
            )
            quadratic[position, position] += precision
            linear[position] += precision * mean
        before = np.linalg.solve(quadratic, linear)
        mean, covariance, _ = cases.dense_regression(
            regressors, response, quadratic, before, 3.0, 3.0 * guess
        )
        held = [position for position, name in enumerate(names) if name in post.names]
        found = by_names(post, [names[position] for position in held])
        np.testing.assert_allclose(found[0], mean[held], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found[1], covariance[np.ix_(held, held)], rtol=1e-10, atol=1e-13)


@pytest.mark.heavy
@pytest.mark.parametrize("prior", [None, cb.priors.FixedPrior()], ids=["scaled", "fixed"])
def test_a_thousand_updates_equal_a_refit(prior):
    problem, truth = cases.random_problem(2)
    start = cases.simulate(problem, truth, 20, 0)
    more = cases.simulate(problem, truth, 1000, 1, interventional=True)
    post = cb.fit(problem, start, prior=prior)
    for row in range(1000):
        post = post.update(more.select(slice(row, row + 1)))
    whole = cb.fit(problem, start.join(more), prior=prior)
    np.testing.assert_allclose(
        post.mean, whole.mean, rtol=1e-9, atol=1e-9 * np.abs(whole.mean).max()
    )
    np.testing.assert_allclose(
        post.covariance, whole.covariance, rtol=1e-9, atol=1e-9 * np.abs(whole.covariance).max()
    )
    assert (
        post.n_observations == whole.n_observations == 1020
        and post.fingerprint == whole.fingerprint
    )
    assert post.update(more.select(slice(0, 0))).fingerprint == post.fingerprint


def test_updates_keep_their_digits_far_from_zero():
    problem, truth = cases.random_problem(2)
    data = cases.simulate(problem, truth, 300, 0)
    far = cb.Data(data.nodes, data.target, data.values * 1e-3 + 1e6, data.intervened)
    post = cb.fit(problem, far.select(slice(0, 50)))
    for row in range(50, 300):
        post = post.update(far.select(slice(row, row + 1)))
    near = cb.fit(problem, data)
    slopes = [position for position, name in enumerate(post.names) if name.startswith("b[")]
    np.testing.assert_allclose(
        post.mean[slopes], near.mean[slopes], rtol=1e-5
    )  # the data themselves have 7 digits


def test_one_more_vector_updates_a_triangular_factor():
    factor = np.triu(np.random.default_rng(0).normal(size=(3, 4, 4)))
    row = np.random.default_rng(1).normal(size=(3, 4))
    row[2] = 0
    found = regressions.rotate(factor, row)
    expected = np.swapaxes(factor, 1, 2) @ factor + row[:, :, None] * row[:, None, :]
    np.testing.assert_allclose(np.swapaxes(found, 1, 2) @ found, expected, rtol=1e-12, atol=1e-12)
    assert np.allclose(found, np.triu(found), atol=1e-14)


def test_uncertainty_is_right_where_means_are_far_larger_than_spreads():
    """Slope and intercept are then almost perfectly correlated.

    An effect at the mean is their small difference.
    """
    graph = cb.CausalGraph.parse("X -> Y")
    draws = np.random.default_rng(0)
    x, noise = draws.normal(size=(2, 40))
    sds = []
    for mean in (0.0, 1e7, 1e9):
        values = np.column_stack([x + mean, x + noise])
        problem = cb.Problem(graph, "Y", domains={"X": (mean - 1, mean + 1)})
        post = cb.fit(problem, cb.Data(graph.nodes, "Y", values, np.zeros((40, 2), bool)))
        sds.append(cb.surrogates.couple(post).predict(problem.queries([{"X": mean}])).sd[0])
    assert sds[1:] == pytest.approx([sds[0]] * 2, rel=1e-5)


def test_equations_that_no_effect_uses_are_not_learned(make_problem):
    data = cb.models.load("chain").observe(30, 0)
    mask = data.intervened.copy()
    mask[:, 1] = True  # Z was always set: its equation has no observations
    problem = make_problem(sets=[("Z",)])
    post = cb.fit(problem, cb.Data(data.nodes, "Y", data.values, mask))
    whole = cb.fit(problem, data)
    assert post.names == ("b[Z->Y]", "a[Y]")
    np.testing.assert_allclose(post.covariance, whole.covariance, rtol=1e-9)
    np.testing.assert_allclose(post.draws(5, 0), whole.draws(5, 0), rtol=1e-9)
    query = problem.queries([{"Z": 1.0}])
    np.testing.assert_allclose(
        post.outcome_variances(query), post.distribution.posterior.variance[2]
    )
    with pytest.raises(
        cb.errors.DomainError, match="needs an equation that no set of the problem uses"
    ):
        post.outcome_variances(problem.baseline())


def test_observations_of_one_pattern_are_compressed_without_loss():
    draws = np.random.default_rng(0)
    values = draws.normal(size=(500, 3)) + [1e3, 0.0, -5.0]
    free = draws.uniform(size=(500, 3)) < [0.5, 0.5, 1.0]
    data = cb.Data(("A", "B", "Y"), "Y", values, ~free)
    whole, patterns = regressions.compress_data(data, [0, 1, 2])
    assert len(whole) <= 4 * 4 and whole.shape[1] == 4
    for pattern in np.unique(free, axis=0):
        rows = np.column_stack([values, np.ones(500)])[(free == pattern).all(axis=1)]
        kept = whole[(patterns == pattern).all(axis=1)]
        np.testing.assert_allclose(kept.T @ kept, rows.T @ rows, rtol=1e-12, atol=1e-9)
    assert regressions.compress_data(data.select(slice(0, 0)), [0, 1, 2])[0].shape == (0, 4)


def test_fit_and_update_take_a_data_frame(chain):
    data = chain.observe(30, 0)
    more = chain.experiment(chain.problem.queries([{"Z": 1.0}, {"Z": -2.0}]), 1)
    from_data, from_frame = (cb.fit(chain.problem, each) for each in (data, data.to_frame()))
    assert from_frame.fingerprint == from_data.fingerprint
    assert np.array_equal(from_frame.mean, from_data.mean)
    plain = pd.DataFrame(data.values, columns=list(data.nodes))
    assert cb.fit(chain.problem, plain).fingerprint == from_data.fingerprint
    updated = from_frame.update(more.to_frame())
    assert updated.fingerprint == from_data.update(more).fingerprint
    assert updated.data.intervened[-2:, data.nodes.index("Z")].all()
    for work in (lambda given: cb.fit(chain.problem, given), from_data.update):
        with pytest.raises(cb.errors.DataError, match="must be cb.Data or a pandas DataFrame"):
            work(data.values)
        with pytest.raises(cb.errors.DataError, match="Z"):
            work(plain.drop(columns="Z"))


def test_draws_have_the_posterior_moments_and_student_tails():
    problem, truth = cases.random_problem(3)
    post = cb.fit(problem, cases.simulate(problem, truth, 12, 0))
    draws = post.draws(40_000, 0)
    standard = (draws - post.mean) / post.sd
    assert np.abs(standard.mean(axis=0)).max() < 4.5 / np.sqrt(40_000)
    products = standard.T @ standard / 40_000
    correlation = post.covariance / np.outer(post.sd, post.sd)
    error = np.sqrt(((standard[:, :, None] * standard[:, None, :]) ** 2).mean(axis=0) / 40_000)
    assert (np.abs(products - correlation) < 4.5 * error).all()
    assert np.array_equal(draws, post.draws(40_000, jax.random.key(0)))
    node = problem.graph.index(problem.target)
    shape = post.distribution.posterior.shape[node]
    held = [
        position
        for position, c in enumerate(post.parameters.coordinates)
        if c.effect == problem.target
    ]
    excess = (standard[:, held] ** 4).mean(axis=0)
    assert np.allclose(
        excess, 3 * (2 * shape - 2) / (2 * shape - 4), rtol=0.15
    )  # t with 2 shape degrees, not Gaussian


def test_known_variances_give_the_gaussian_posterior():
    problem, truth = cases.random_problem(4)
    data = cases.simulate(problem, truth, 30, 0, lift=0.0)
    post = cb.fit(
        problem,
        data,
        prior=cb.priors.FixedPrior(noise_observations=math.inf, noise_sd=2.0),
        intercepts=False,
    )
    regressors, _, names = cases.design(problem, data, problem.target, intercepts=False)
    expected = np.linalg.inv(np.eye(len(names)) / 4.0 + regressors.T @ regressors / 4.0)
    np.testing.assert_allclose(by_names(post, names)[1], expected, rtol=1e-10)
    assert post.draws(2000, 0).std(axis=0, ddof=1) == pytest.approx(post.sd, rel=0.1)


def test_known_coefficients_stay_fixed_and_leave_theta(make_problem):
    problem = make_problem(known={("Z", "Y"): -1.3})
    data = cb.models.load("chain").observe(50, 0)
    post = cb.fit(problem, data, intercepts=False)
    assert post.names == ("b[X->Z]",)
    r = cb.response(post)
    np.testing.assert_allclose(
        r(post.mean, problem.queries([{"X": 1.0}, {"Z": 2.0}])), [-1.3 * post.mean[0], -2.6]
    )
    for kind in ("total_effect", "estimand"):
        other = cb.fit(problem, data, intercepts=False, parameters=kind)
        found = cb.response(other)(other.mean, problem.queries([{"X": 1.0}, {"Z": 2.0}]))
        assert len(other.names) == 1
        np.testing.assert_allclose(found, [-1.3 * post.mean[0], -2.6])  # the slope of Z is known
    with pytest.raises(cb.errors.MechanismError, match="every coefficient that matters is known"):
        cb.fit(make_problem(known={("Z", "Y"): 1.0, ("X", "Z"): 1.0}), data, intercepts=False)


def test_a_known_coefficient_is_a_remedy_for_collinear_parents():
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    draws = np.random.default_rng(0)
    a = draws.normal(size=30)
    values = np.column_stack([a, 2 * a, 3 * a + draws.normal(size=30)])
    options = {"domains": {"A": (-1, 1), "B": (-1, 1)}}
    data = cb.Data(("A", "B", "Y"), "Y", values, np.zeros((30, 3), bool))
    with pytest.raises(cb.errors.DataError, match="A, B of 'Y' are exactly collinear"):
        cb.fit(cb.Problem(graph, "Y", **options), data)
    post = cb.fit(cb.Problem(graph, "Y", known={("B", "Y"): 1.0}, **options), data)
    assert (
        abs(post.mean[post.names.index("b[A->Y]")] - 1.0) < 5 * post.sd[post.names.index("b[A->Y]")]
    )


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["total_effect", "estimand"])
def test_other_parameters_are_the_same_posterior_by_the_delta_method(kind):
    problem, truth = cases.random_problem(5, known=1)
    data = cases.simulate(problem, truth, 60, 0)
    structural, other = cb.fit(problem, data), cb.fit(problem, data, parameters=kind)
    assert structural.moments_by == "closed form" and other.moments_by == "delta method"
    full = other.distribution.equations
    used = full.causes >= 0

    def read(coefficients):  # through JAX alone: one vector of all unknown coefficients
        matrix = (
            jnp.asarray(full.fixed).at[full.causes[used], np.nonzero(used)[0]].set(coefficients)
        )
        _, queries, is_intercept, _ = other.distribution.response.reader
        values = []
        for mask, value, keeps in zip(queries.mask, queries.value, is_intercept, strict=True):
            weights = jnp.where(mask[None, :], 0.0, matrix[:-1])
            start = jnp.where(mask, value, keeps * matrix[-1])
            values.append(jnp.linalg.solve(jnp.eye(5) - weights.T, start)[-1])
        return jnp.stack(values)

    centre = jnp.asarray(full.posterior.mean[used])
    blocks = cases.covariances(full.posterior)
    spread = np.zeros((used.sum(),) * 2)
    start = 0
    for block, row in zip(blocks, used, strict=True):
        spread[start : start + row.sum(), start : start + row.sum()] = block[np.ix_(row, row)]
        start += row.sum()
    jacobian = np.asarray(jax.jacfwd(read)(centre))
    np.testing.assert_allclose(other.mean, read(centre), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        other.covariance, jacobian @ spread @ jacobian.T, rtol=1e-9, atol=1e-13
    )
    draws = other.draws(7, 3)
    single = full.position(regressions.draw_equations(full.posterior, 7, jax.random.key(3))[0])
    np.testing.assert_allclose(
        draws[4], read(jnp.asarray(single[4][full.causes[used], np.nonzero(used)[0]])), rtol=1e-10
    )


@pytest.mark.slow
def test_trace_of_the_covariance_falls_like_one_over_n():
    system = cb.models.load("chain")
    sizes = [25, 50, 100, 200, 400, 800, 1600, 3200]
    traces = [
        np.trace(cb.fit(system.problem, system.observe(n, 7), intercepts=False).covariance)
        for n in sizes
    ]
    slope = np.polyfit(np.log(sizes), np.log(traces), 1)[0]
    assert -1.1 <= slope <= -0.9, slope
