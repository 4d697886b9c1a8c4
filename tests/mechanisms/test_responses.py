"""Responses and their derivatives: dense algebra, autodiff, finite differences.

What theta does not hold is refused.

Internals: curvatures are compared, and compilations counted, below `cb.response`.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fitted_cases as cases
from helpers import oracles
from scipy.stats import chi2

import causal_bo_ppl as cb
from causal_bo_ppl import responses
from causal_bo_ppl.mechanisms.linear_responses import _curvature

KINDS = ["structural", "total_effect", "estimand", "minimal"]


def random_queries(problem, n, seed):
    """Any manipulable variables at any values of their domains; the problem has all sets."""
    draws = np.random.default_rng(seed)
    low, high = np.array([problem.domains.get(name, (0.0, 0.0)) for name in problem.graph.nodes]).T
    mask = (draws.uniform(size=(n, len(low))) < 0.5) & (high > low)
    mask[~mask.any(axis=1), 0] = True
    return cb.problem.Queries(mask, np.where(mask, draws.uniform(low, high, mask.shape), 0.0))


def fitted(seed, kind="structural", known=1, intercepts=True):
    problem, truth = cases.random_problem(seed, known=known)
    data = cases.simulate(problem, truth, 40, seed, lift=0.5 * intercepts)
    return problem, cb.fit(problem, data, parameters=kind, intercepts=intercepts)


def matrices(post):
    """Weights and intercepts at the posterior mean of a structural posterior.

    By its coordinates' names.
    """
    graph, known = post.problem.graph, post.problem.known
    weights, intercepts = np.zeros((len(graph.nodes),) * 2), np.zeros(len(graph.nodes))
    for (cause, effect), value in known.items():
        weights[graph.index(cause), graph.index(effect)] = value
    for coordinate, value in zip(post.parameters.coordinates, post.mean, strict=True):
        if coordinate.cause:
            weights[graph.index(coordinate.cause), graph.index(coordinate.effect)] = value
        else:
            intercepts[graph.index(coordinate.effect)] = value
    return weights, intercepts


@pytest.mark.parametrize("intercepts", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_all_parameterizations_agree_with_the_solved_system(seed, intercepts):
    problem, post = fitted(seed, intercepts=intercepts)
    queries = random_queries(problem, 40, seed)
    weights, offsets = matrices(post)
    expected = [
        oracles.dense_effect(weights, offsets, 4, np.flatnonzero(mask), value[mask])
        for mask, value in zip(queries.mask, queries.value, strict=True)
    ]
    for kind in KINDS:
        _, other = fitted(seed, kind, intercepts=intercepts)
        found = cb.response(other)(other.mean, queries)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_jacobian_agrees_with_autodiff_and_finite_differences(kind):
    problem, post = fitted(1, kind)
    r, queries = cb.response(post), random_queries(problem, 12, 1)
    theta = jnp.asarray(post.mean)
    found = np.asarray(r.jacobian(theta, queries))
    assert found.shape == (12, len(post.names))
    np.testing.assert_allclose(
        found, jax.jit(jax.jacfwd(lambda theta: r(theta, queries)))(theta), rtol=1e-10, atol=1e-10
    )
    step = 1e-6
    for column in range(len(post.names)):
        ends = [np.asarray(r(theta.at[column].add(sign * step), queries)) for sign in (1, -1)]
        np.testing.assert_allclose(
            found[:, column], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-7
        )
    values, again = r.linearize(theta, queries)
    assert np.array_equal(again, found) and np.allclose(values, r(theta, queries), rtol=1e-14)


@pytest.mark.heavy
@pytest.mark.parametrize("intercepts", [True, False])
def test_hessian_agrees_with_autodiff(intercepts):
    problem, post = fitted(2, intercepts=intercepts)
    r, queries = cb.response(post), random_queries(problem, 10, 2)
    theta = jnp.asarray(post.mean)
    upstream = post.upstream(queries)
    expected = jax.jit(jax.jacfwd(jax.jacfwd(lambda theta: r(theta, queries))))(theta)
    found = jax.jit(lambda theta: r.map.program.hessian(theta, upstream))(theta)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
    norms = np.abs(np.linalg.eigvalsh(np.asarray(expected))).max(axis=1)
    np.testing.assert_allclose(
        _curvature(r.map.program, theta, upstream), norms, rtol=1e-9, atol=1e-10
    )


@pytest.mark.heavy
def test_hessian_bounds_hold_within_the_ellipsoid_and_everywhere_where_they_are_global():
    problem, post = fitted(3)
    r, queries = cb.response(post), random_queries(problem, 30, 3)
    found = r.hessian_bounds(queries, level=0.9)
    upstream = post.upstream(queries)
    draws = np.random.default_rng(0).normal(size=(60, len(post.names)))
    radius = np.sqrt(chi2.ppf(0.9, len(post.names)))
    sphere = draws / np.linalg.norm(draws, axis=1, keepdims=True)
    inside = post.mean + radius * sphere @ np.linalg.cholesky(post.covariance).T
    program = r.map.program
    largest = np.max(
        [_curvature(program, jnp.asarray(point), upstream) for point in inside], axis=0
    )
    assert (largest <= found.bounds * (1 + 1e-10)).all() and 0 < found.is_global.sum() < 30
    flipped = replace(r.map)  # a bound by absolute values knows no signs
    flipped.__dict__["program"] = replace(program, fixed=-program.fixed)
    again = flipped.hessian_bounds(-post.mean, post.sd, queries, 0.9)
    local = ~found.is_global
    assert np.asarray(program.fixed).any() and np.array_equal(again.is_global, found.is_global)
    assert np.array_equal(again.bounds[local], found.bounds[local])
    anywhere = _curvature(program, jnp.asarray(draws[0] * 100), upstream)
    np.testing.assert_allclose(
        np.asarray(anywhere)[found.is_global], found.bounds[found.is_global], rtol=1e-9
    )
    assert (np.asarray(anywhere)[~found.is_global] > found.bounds[~found.is_global]).any()


def test_effects_linear_in_theta_have_no_curvature():
    problem, post = fitted(3, "total_effect")
    found = cb.response(post).hessian_bounds(random_queries(problem, 5, 0))
    assert found.bounds.tolist() == [0.0] * 5 and found.is_global.all()
    with pytest.raises(cb.errors.ArgumentError, match="level must lie between 0 and 1, got 95"):
        cb.response(post).hessian_bounds(problem.vertices(), level=95)


@pytest.mark.parametrize("kind", ["structural", "estimand", "minimal"])
def test_many_thetas_are_many_responses(kind):
    problem, post = fitted(4, kind)
    r, queries, draws = cb.response(post), random_queries(problem, 5, 0), post.draws(70, 0)
    found = r(draws, queries)
    assert found.shape == (70, 5)
    np.testing.assert_allclose(found[66], r(draws[66], queries), rtol=1e-12)


@pytest.mark.parametrize("kind", ["structural", "estimand", "minimal"])
@pytest.mark.parametrize("n", [0, 1, 16, 17, 2_000, 2_100, 9_000])
def test_a_batch_of_any_size_is_that_of_its_queries(kind, n):
    problem, post = fitted(0, kind)
    r, few = cb.response(post), random_queries(problem, 16, 0)
    which = np.arange(n) % 16
    values, jacobian = r.linearize(post.mean, few[which])
    expected, slopes = r.linearize(post.mean, few)
    np.testing.assert_allclose(values, np.asarray(expected)[which], rtol=1e-14)
    np.testing.assert_allclose(jacobian, np.asarray(slopes)[which], rtol=1e-14)


def test_nothing_is_compiled_again_for_other_queries_or_data():
    problem, post = fitted(1, known=0)
    other = cb.fit(problem, cases.simulate(problem, cases.random_problem(1)[1], 55, 9))
    cb.response(post).linearize(post.mean, random_queries(problem, 200, 0))
    before = responses._linearize._cache_size()
    for n in (20, 100, 256):
        cb.response(other).linearize(other.mean, random_queries(problem, n, n))
    assert responses._linearize._cache_size() == before
    _, third = fitted(1, "estimand", known=0)
    cb.response(third).linearize(third.mean, random_queries(problem, 30, 0))
    compiled = responses._linearize._cache_size()
    cb.response(third).linearize(third.mean, random_queries(problem, 90, 1))
    assert responses._linearize._cache_size() == compiled


def test_chain_has_the_jacobian_of_the_paper(make_problem):
    problem = make_problem()
    post = cb.fit(problem, cb.models.load("chain").observe(30, 0), intercepts=False)
    found = cb.response(post).jacobian([0.8, -1.3], problem.queries([{"X": 2.0}, {"Z": 3.0}]))
    np.testing.assert_allclose(found, [[-1.3 * 2, 0.8 * 2], [0.0, 3.0]], rtol=1e-14)


def test_an_effect_that_theta_does_not_hold_is_refused(make_problem):
    problem = make_problem(sets="pomis")
    data = cb.models.load("chain").observe(30, 0)
    for kind, missing in (
        ("structural", r"b\[X->Z\], a\[Z\]"),
        ("estimand", r"est\[X\|X\], est\[Y\|X\]"),
    ):
        post = cb.fit(problem, data, parameters=kind)
        r = cb.response(post)
        with pytest.raises(
            cb.errors.ExplorationError,
            match=rf"the effect of do\(X\) needs {missing}, which no set of this",
        ):
            r(post.mean, problem.queries([{"X": 1.0}]))
        assert r(post.mean, problem.queries([{"X": 1.0, "Z": 2.0}])) == r(
            post.mean, problem.queries([{"Z": 2.0}])
        )
        with pytest.raises(
            cb.errors.ExplorationError, match="the effect of doing nothing was not fitted"
        ):
            r(post.mean, problem.baseline())


def test_an_invalid_theta_or_posterior_is_refused(make_problem):
    problem, data = make_problem(), cb.models.load("chain").observe(30, 0)
    post = cb.fit(problem, data)
    r, queries = cb.response(post), problem.queries([{"X": 1.0}])
    with pytest.raises(
        cb.errors.ArgumentError,
        match=r"theta needs the shape \(4,\) or \(s, 4\) for .*; got \(3,\)",
    ):
        r(post.mean[:3], queries)
    with pytest.raises(cb.errors.ArgumentError, match=r"theta needs the shape \(4,\) for"):
        r.jacobian(post.draws(2, 0), queries)
    with pytest.raises(cb.errors.ArgumentError, match="a response needs a Posterior, got Data"):
        cb.response(data)
    with pytest.raises(cb.errors.DomainError, match="lies outside"):
        r(
            post.mean,
            cb.problem.Queries(np.array([[True, False, False]]), np.array([[99.0, 0.0, 0.0]])),
        )
