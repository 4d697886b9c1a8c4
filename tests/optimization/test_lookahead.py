"""Expected improvements, also of the recommendation, against quadrature and repeated updates.

Internals: formulas are compared at the edges of floats, and values for a given state.
"""

import jax
import numpy as np
import pytest
from helpers.acquisition_context import knowing, values_of
from helpers.dense_surrogate import dense_case
from helpers.runs import optimize
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.optimization import acquisition
from causal_bo_ppl.optimization.lookahead import (
    cross_covariance,
    envelope_gain,
    expected_improvement,
    log_expected_improvement,
    log_standard_improvement,
    promising,
    standard_improvement,
)

HALF = 0.5 * np.log(2 * np.pi)


def by_quadrature(t):
    """log h(-t) = -t^2/2 - log(2 pi)/2 - 2 log t + log of int s exp(-s - s^2 / 2t^2) ds."""
    inside, _ = quad(lambda s: s * np.exp(-s - s**2 / 2 / t**2), 0, 60, epsabs=0, epsrel=1e-13)
    return -t * t / 2 - HALF - 2 * np.log(t) + np.log(inside)


@pytest.mark.parametrize("t", [0.5, 1.0, 1.001, 3.0, 10.0, 37.0, 49.9, 50.1, 200.0, 1e3, 1e5])
def test_log_improvement_agrees_with_quadrature_in_the_tail(t):
    assert log_standard_improvement(-t) == pytest.approx(by_quadrature(t), rel=1e-12, abs=1e-12)


def test_log_improvement_agrees_with_another_formula_where_that_is_accurate():
    z = np.linspace(-5, 30, 300)
    other = norm.pdf(z) + z * np.exp(log_ndtr(z))
    np.testing.assert_allclose(log_standard_improvement(z), np.log(other), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(standard_improvement(z), other, rtol=1e-9)


def test_log_improvement_and_its_slope_are_finite_to_a_hundred_thousand_sds():
    z = -np.geomspace(1.0, 1e5, 400)
    width = 1e-4 * np.abs(z)
    ahead, behind = log_standard_improvement(z + width), log_standard_improvement(z - width)
    slopes = (ahead - behind) / (2 * width)
    # d log h / dz = Phi / h, here by the tail ratio; |z| < Phi / h < |z| + 2 / |z|
    assert np.isfinite(slopes).all() and (np.diff(log_standard_improvement(z)) < 0).all()
    far = z < -20
    np.testing.assert_allclose(slopes[far], -z[far] - 2 / z[far], rtol=1e-4)
    exact = np.exp(log_ndtr(z) - log_standard_improvement(z))
    # Logarithms of 5e9 have 1e-6 as their last digit, so that their difference is off by as much.
    np.testing.assert_allclose(slopes, exact, rtol=1e-5)


@pytest.mark.parametrize("edge", [-1.0, 1.0, -50.0])
def test_the_formulas_meet_where_one_takes_over(edge):
    near = log_standard_improvement(np.array([edge * (1 - 1e-13), edge * (1 + 1e-13)]))
    assert abs(near[1] - near[0]) <= 1e-11 * (1 + edge**2)


def test_zero_uncertainty_has_a_defined_value():
    gain = np.array([2.0, 0.0, -1.0, 2.0, -1.0])
    sd = np.array([0.0, 0.0, 0.0, 1e-320, 1e-320])
    assert expected_improvement(gain, sd).tolist() == [2.0, 0.0, 0.0, 2.0, 0.0]
    logs = log_expected_improvement(gain, sd)
    assert logs[0] == logs[3] == np.log(2.0)
    assert np.isneginf(logs[[1, 2, 4]]).all()


def by_grid(a, b):
    """E max_j (a_j + b_j Z) - max_j a_j by brute force over Z."""
    z = np.linspace(-12, 12, 200_001)
    best = (a[:, None] + b[:, None] * z).max(axis=0)
    return np.trapezoid((best - a.max()) * norm.pdf(z), z)


@pytest.mark.parametrize("seed", range(4))
def test_the_envelope_agrees_with_quadrature(seed):
    draws = np.random.default_rng(seed)
    a, b = draws.normal(size=(6, 9)), draws.normal(size=(6, 9)) * 0.7
    b[1] = 0.3  # all slopes equal
    b[2, 4:] = b[2, 0]  # some
    a[3] = 0.0  # all cross at one point
    a[4, 1:], b[4, 1:] = a[4, 0], b[4, 0]  # all lines are one
    found = envelope_gain(a, b)
    brute = [by_grid(*lines) for lines in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, brute, atol=1e-8)
    assert found[1] == found[4] == 0.0 and (found >= 0).all()


def test_a_gain_far_in_the_tail_is_small_and_not_lost():
    """Two lines that cross at Z = 30: the difference of two means would be 0."""
    found = envelope_gain(np.array([[0.0, -30.0]]), np.array([[0.0, 1.0]]))
    assert found[0] == pytest.approx(np.exp(-450 - 0.5 * np.log(2 * np.pi)) / 900, rel=0.01)


def test_slopes_that_differ_by_rounding_change_nothing():
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=(1, 5)), draws.normal(size=(1, 5))
    noisy = np.concatenate([b, b * (1 + 2e-16)], axis=1)
    np.testing.assert_allclose(
        envelope_gain(np.concatenate([a, a], axis=1), noisy), envelope_gain(a, b), rtol=1e-10
    )


@pytest.mark.parametrize("objective", ["min", "max"])
def test_the_value_is_the_mean_improvement_of_what_is_recommended_after_an_outcome(objective):
    problem, surrogate = dense_case(objective)
    queries, points, noise = problem.sobol(3)[:4], surrogate.observed, 0.2
    rule = cb.acquisition.LookAhead(points=points, noise=lambda each: np.full(len(each), noise))
    values = values_of(rule, surrogate, queries, objective)
    sign, draws = 1.0 if objective == "max" else -1.0, np.random.default_rng(1)
    now = (sign * surrogate.predict(points).mean).max()
    for row, query in enumerate(queries):
        mean, sd = (float(part[0]) for part in surrogate.predict(query))
        gains = []
        for outcome in mean + np.sqrt(sd**2 + noise) * draws.normal(size=400):
            after = surrogate.condition(query, outcome, noise)
            gains.append(max((sign * after.predict(each).mean).max() for each in (points, query)))
        gains = np.array(gains) - now
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        assert abs(gains.mean() - values[row]) <= 4.5 * error + 1e-9


def test_the_value_does_not_depend_on_the_batch_and_is_never_negative():
    problem, surrogate = dense_case()
    queries = problem.grid(20)
    context = knowing(surrogate, recommendable=surrogate.observed)
    rule = cb.acquisition.LookAhead()
    values = rule.value(surrogate, queries, context)
    alone = [rule.value(surrogate, queries[row], context)[0] for row in range(0, len(queries), 50)]
    np.testing.assert_allclose(values[::50], alone, atol=1e-12)
    assert (values >= 0).all() and values.max() > 0


def test_covariances_with_points_are_blocks_of_the_joint_covariance():
    problem, surrogate = dense_case()
    queries, points = problem.grid(18), problem.sobol(2)
    found = cross_covariance(surrogate, queries, points)
    assert len(queries) > 256 and found.shape == (len(queries), len(points))
    for row in (0, 100, len(queries) - 1):
        mean, covariance = surrogate.moments(
            cb.problem.Queries(
                np.vstack([queries.mask[row : row + 1], points.mask]),
                np.vstack([queries.value[row : row + 1], points.value]),
            )
        )
        np.testing.assert_allclose(found[row], covariance[0, 1:], atol=1e-12)


def test_only_points_that_may_turn_out_best_are_kept():
    problem, surrogate = dense_case("max")
    among = problem.grid(12)
    mean, sd = surrogate.predict(among)
    kept = promising(surrogate, among, "max", 10)
    assert len(kept) == 10
    assert surrogate.predict(kept).mean.max() == pytest.approx(mean.max())
    everything, fewer = (
        values_of(cb.acquisition.LookAhead(points=points), surrogate, among[:5], "max")
        for points in (among, kept)
    )
    assert (fewer <= everything + 1e-12).all() and (fewer > 0).any()


def test_points_of_the_recommendation_are_found_once_for_a_suggestion(monkeypatch):
    problem, surrogate = dense_case()
    found = []

    def record(*arguments):
        found.append(promising(*arguments))
        return found[-1]

    monkeypatch.setattr(acquisition, "promising", record)
    context, rule = knowing(surrogate), cb.acquisition.LookAhead(most=4)
    first = rule.value(surrogate, problem.sobol(4), context)
    np.testing.assert_array_equal(rule.value(surrogate, problem.sobol(4), context), first)
    assert len(found) == 1 and len(found[0]) == 4
    rule.value(surrogate, problem.sobol(4), knowing(surrogate))
    assert len(found) == 2


def test_look_ahead_at_no_point_is_refused():
    with pytest.raises(cb.errors.ArgumentError, match="most must be a whole number, at least 1"):
        cb.acquisition.LookAhead(most=0)


@pytest.fixture(scope="module")
def fork():
    """A system whose equations have several causes, and a posterior of it."""
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    return system, cb.fit(system.problem, system.observe(150, 3))


def test_the_information_of_an_observation_is_its_mean_over_simulations(fork):
    system, post = fork
    problem, equations = post.problem, post.distribution.equations
    query = problem.vertices()[70]
    [intervention] = problem.interventions(query)
    graph, draws, count = equations.graph, np.random.default_rng(0), 40_000
    values = np.ones((count, len(graph.nodes) + 1))
    matrix, noise = equations.at_mean.matrices[0], equations.posterior.variance
    for at, node in enumerate(graph.nodes):
        parents = [graph.index(name) for name in graph.parents(node)]
        own = matrix[-1, at] + values[:, parents] @ matrix[parents, at]
        own = own + np.sqrt(noise[at]) * draws.standard_normal(count)
        values[:, at] = intervention.get(node, own)
    found = post.expected_information(query).whole(post.factor.shape[1])[0]
    assert found.shape == (post.factor.shape[1],) * 2
    start = 0
    for at, node in enumerate(graph.nodes):
        used = equations.causes[at][equations.causes[at] >= 0]
        root = equations.posterior.root[at][: len(used), : len(used)]
        block = found[start : start + len(used), start : start + len(used)]
        features = values[:, used] @ root
        products = features[:, :, None] * features[:, None, :] * (node not in intervention)
        error = products.std(axis=0) / np.sqrt(count)
        assert (np.abs(block - products.mean(axis=0)) <= 5 * error + 1e-12).all()
        start += len(used)
    assert start == len(found)


@pytest.mark.heavy
def test_information_of_an_observation_is_how_much_new_ones_move_the_means(fork):
    system, post = fork
    problem, surrogate = post.problem, cb.surrogates.couple(post)
    points = problem.vertices()[[5, 40, 60, 90]]
    query, best = problem.vertices()[70], points[3]
    expected = surrogate.mean_change_variances(query, points, best)[0]
    models, _ = post.distribution.equations.draw(400, jax.random.key(1))
    rows = post.distribution.model.replicate(models, post.upstream(query), jax.random.key(2))[:, 0]
    columns = [problem.graph.index(name) for name in post.distribution.model.nodes]
    moved = []
    for row in rows:
        whole = np.zeros((1, len(problem.graph.nodes)))
        whole[0, columns] = row
        data = cb.Data(problem.graph.nodes, problem.target, whole, np.asarray(query.mask))
        after = cb.surrogates.couple(post.update(data)).predict(points).mean
        moved.append(after - after[3])
    found = np.var(moved, axis=0)
    assert expected[3] == pytest.approx(0, abs=1e-12) == found[3]
    np.testing.assert_allclose(found[:3], expected[:3], rtol=5 * np.sqrt(2 / 400) + 0.1)


def test_information_of_observations_after_outcomes_is_that_of_dense_algebra(fork):
    _, post = fork
    vertices = post.problem.vertices()
    updated = cb.surrogates.couple(post).condition(
        vertices[[3, 50]], np.array([1.0, 2.0]), np.array([0.4, 0.2])
    )
    queries, points, best = vertices[:6], vertices[[5, 40, 60]], vertices[8]
    for surrogate in (cb.surrogates.couple(post), updated):
        information = post.expected_information(queries).whole(post.factor.shape[1])
        prior = surrogate.weights.covariance
        apart = surrogate._linearize(points)[1] - surrogate._linearize(best)[1]
        after = np.linalg.inv(np.linalg.inv(prior) + information)
        wanted = np.einsum("ja,mab,jb->mj", apart, prior - after, apart)
        np.testing.assert_allclose(
            surrogate.mean_change_variances(queries, points, best), wanted, rtol=1e-8, atol=1e-14
        )


def test_looking_ahead_counts_whole_observations_where_they_inform_mechanisms(fork):
    system, post = fork
    queries, surrogate = post.problem.vertices(), cb.surrogates.couple(post)
    rule = cb.acquisition.LookAhead()
    plain, rows = (
        knowing(surrogate, recommendable=queries[:0], informs_mechanisms=flag)
        for flag in (False, True)
    )
    points, counts = rule.find_points(rows)
    assert counts and not rule.find_points(plain)[1] and len(points) == 16
    own = [rule.value(surrogate, queries, context) for context in (plain, rows)]
    assert (own[1] >= 0).all() and own[1].max() > own[0].max()
    with_residual = cb.surrogates.couple(post, discrepancy=True).condition(
        queries[:4], np.arange(4.0), np.ones(4)
    )
    after = knowing(with_residual, informs_mechanisms=True)
    # Outcomes then inform the discrepancy, not the mechanisms.
    assert not rule.find_points(after)[1]
    given = cb.acquisition.LookAhead(points=points, informs_mechanisms=True)
    with pytest.raises(cb.errors.ArgumentError, match="what whole observations change"):
        given.value(with_residual, queries[:2], after)


def test_acquisitions_take_turns_and_are_read_back():
    rule = cb.acquisition.InTurn((cb.acquisition.LookAhead(most=8), "ucb"))
    settings = cb.Settings(rounds=4, acquisition=rule)
    again = cb.Settings.from_json(settings.to_json()).acquisition
    assert [each.name for each in again.rules] == ["look-ahead", "ucb"]
    assert again.rules[0].most == 8
    system = cb.models.load("chain")
    run = optimize(system, rounds=4, acquisition=rule, key=0, progress=False)
    names = [why.split(":")[0] for why in run.trace["why"].values]
    assert names == ["look-ahead", "ucb", "look-ahead", "ucb"]
    for number, name in enumerate(("look-ahead", "ucb"), 3):
        own = values_of(rule, run.surrogate, run.queries, round=number)
        alone = rule.rules[number - 3]
        assert alone.name == name
        np.testing.assert_array_equal(own, values_of(alone, run.surrogate, run.queries))
    with pytest.raises(cb.errors.ArgumentError, match="at least one"):
        cb.acquisition.InTurn(())
