"""The expected improvement of the recommendation, against quadrature and repeated updates.

Internals: the acquisition is compared with quadrature for a given state, below the optimizer.
"""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.dense_surrogate import dense_case
from helpers.runs import optimize
from scipy.stats import norm

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.analytic import Context, prepare
from causal_bo_ppl.optimization.lookahead import cross_covariance, envelope_gain, promising


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
    values = rule.value(surrogate, queries, objective)
    sign, draws = 1.0 if objective == "max" else -1.0, np.random.default_rng(1)
    now = (sign * surrogate.predict(points).mean).max()
    for row, query in enumerate(queries):
        mean, sd = (float(part[0]) for part in surrogate.predict(query))
        gains = []
        for outcome in mean + np.sqrt(sd**2 + noise) * draws.normal(size=400):
            after = surrogate.tell(query, outcome, noise)
            gains.append(max((sign * after.predict(each).mean).max() for each in (points, query)))
        gains = np.array(gains) - now
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        assert abs(gains.mean() - values[row]) <= 4.5 * error + 1e-9


def test_the_value_does_not_depend_on_the_batch_and_is_never_negative():
    problem, surrogate = dense_case()
    queries = problem.grid(20)
    context = Context(surrogate, "min", problem.vertices(), surrogate.observed)
    rule = prepare(cb.acquisition.LookAhead(), context)
    values = rule.value(surrogate, queries, "min")
    alone = [rule.value(surrogate, queries[row], "min")[0] for row in range(0, len(queries), 50)]
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
    everything = cb.acquisition.LookAhead(points=among).value(surrogate, among[:5], "max")
    fewer = cb.acquisition.LookAhead(points=kept).value(surrogate, among[:5], "max")
    assert (fewer <= everything + 1e-12).all() and (fewer > 0).any()


def test_look_ahead_without_points_is_refused():
    problem, surrogate = dense_case()
    with pytest.raises(cb.errors.ArgumentError, match="may lie are not known"):
        cb.acquisition.LookAhead().value(surrogate, problem.vertices(), "min")
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
    updated = cb.surrogates.couple(post).tell(
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
    context = Context(
        cb.surrogates.couple(post), "min", post.problem.vertices(), post.problem.vertices()[:0]
    )
    plain, rows = (
        prepare(cb.acquisition.LookAhead(), dataclasses.replace(context, informs_mechanisms=flag))
        for flag in (False, True)
    )
    assert rows.informs_mechanisms and not plain.informs_mechanisms and len(rows.points) == 16
    queries = post.problem.vertices()
    own = [rule.value(context.surrogate, queries, "min") for rule in (plain, rows)]
    assert (own[1] >= 0).all() and own[1].max() > own[0].max()
    with_residual = cb.surrogates.couple(post, discrepancy=True).tell(
        queries[:4], np.arange(4.0), np.ones(4)
    )
    after = prepare(
        cb.acquisition.LookAhead(),
        dataclasses.replace(context, surrogate=with_residual, informs_mechanisms=True),
    )
    assert not after.informs_mechanisms  # outcomes then inform the discrepancy, not the mechanisms
    with pytest.raises(cb.errors.ArgumentError, match="what whole observations change"):
        rows.value(with_residual, queries[:2], "min")


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
    with pytest.raises(cb.errors.ArgumentError, match="whose turn it is depends"):
        rule.value(run.surrogate, run.queries, "min")
    with pytest.raises(cb.errors.ArgumentError, match="at least one"):
        cb.acquisition.InTurn(())
