"""The coupled surrogate equals the dense Gaussian process; replicates, noise, relinearizing.

Internals: the dense oracle needs the linearization errors.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl.responses import remainders


@pytest.fixture(scope="module")
def post():
    problem, truth = cases.random_problem(1)
    return cb.fit(problem, cases.simulate(problem, truth, 25, 0))


def condition(surrogate, queries, outcomes, noise):
    for query, outcome, variance in zip(queries, outcomes, noise, strict=True):
        surrogate = surrogate.condition(query, outcome, variance)
    return surrogate


def dense_gp(post, queries, outcomes, noise, at):
    """Mean and sd by the t x t formula, linearized at the posterior mean."""
    r = cb.response(post)
    gram, cross = cb.jacobian_gram(post, queries).gram, cb.jacobian_gram(post, at, queries).gram
    inverse = np.linalg.inv(np.asarray(gram) + np.diag(noise + remainders(post, queries)))
    mean = r(post.mean, at) + cross @ inverse @ (outcomes - r(post.mean, queries))
    variance = np.diagonal(cb.jacobian_gram(post, at).gram - cross @ inverse @ cross.T)
    return np.asarray(mean), np.sqrt(variance)


def test_weight_space_equals_the_dense_gaussian_process(post):
    problem, draws = post.problem, np.random.default_rng(0)
    queries, at = problem.sobol(1), problem.sobol(3)
    outcomes, noise = draws.normal(size=len(queries)), draws.uniform(0.5, 2.0, len(queries))
    found = condition(cb.surrogates.couple(post), queries, outcomes, noise).predict(at)
    mean, sd = dense_gp(post, queries, outcomes, noise, at)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.sd, sd, rtol=1e-7, atol=1e-8)
    before = cb.surrogates.couple(post).predict(at)
    np.testing.assert_allclose(before.mean, cb.response(post)(post.mean, at), rtol=1e-12)
    np.testing.assert_allclose(
        before.sd**2, np.diagonal(cb.jacobian_gram(post, at).gram), rtol=1e-9
    )


def test_rank_one_updates_equal_learning_from_all_outcomes_again(post):
    draws = np.random.default_rng(1)
    queries = post.problem.sobol(2)[draws.integers(0, 20, 60)]  # many replicates
    updated = condition(
        cb.surrogates.couple(post), queries, draws.normal(size=60), draws.uniform(0.5, 2.0, 60)
    )
    offsets, features = updated._linearize(updated.outcomes.queries)
    precisions = 1 / (
        updated.outcomes.variances + updated.remainders + 1e-10 * (features**2).sum(axis=1)
    )
    covariance = np.linalg.inv(
        np.eye(features.shape[1]) + features.T @ (features * precisions[:, None])
    )
    mean = covariance @ features.T @ (precisions * (updated.outcomes.means - offsets))
    np.testing.assert_allclose(updated.weights.covariance, covariance, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(updated.weights.mean, mean, rtol=1e-8, atol=1e-10)
    assert len(updated.outcomes.counts) < 25 and updated.outcomes.counts.sum() == 60
    moved = updated.relinearize()
    assert (
        np.abs(moved.centre - moved.weights.mean).max() < 2e-3
        and moved.outcomes is updated.outcomes
    )
    assert "60 outcomes of" in repr(moved)


def test_replicates_are_their_mean_with_the_variance_divided(post):
    query = post.problem.queries([{"V0": 1.0}])
    three = condition(cb.surrogates.couple(post), [query] * 3, [1.0, 2.0, 6.0], [0.9] * 3)
    one = cb.surrogates.couple(post).condition(query, 3.0, 0.3)
    for left, right in zip(
        three.predict(post.problem.sobol(1)), one.predict(post.problem.sobol(1)), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=1e-9)
    assert three.outcomes.counts.tolist() == [3] and three.outcomes.means.tolist() == [
        pytest.approx(3.0)
    ]
    mixed = condition(cb.surrogates.couple(post), [query] * 2, [1.0, 4.0], [1.0, 0.5])
    assert mixed.outcomes.means.tolist() == [pytest.approx(3.0)]  # weighted 1 to 2
    assert mixed.outcomes.variances.tolist() == [pytest.approx(1 / 3)]


def test_outcomes_without_noise_must_repeat(post):
    query = post.problem.queries([{"V3": 1.0}])
    once = cb.surrogates.couple(post).condition(query, 1.5, 0.0)
    assert once.condition(query, 1.5, 0.0).outcomes.counts.tolist() == [2]
    np.testing.assert_allclose(
        once.condition(query, 1.5, 0.0).weights.mean, once.weights.mean, rtol=1e-9
    )
    with pytest.raises(
        cb.errors.DataError, match="gave 1.5 and 2.5, though outcomes have no noise"
    ):
        once.condition(query, 2.5, 0.0)


def test_exact_outcomes_do_not_make_it_falsely_certain():
    """Without its linearization error, 90 % intervals would cover far too seldom."""
    problem, truth = cases.random_problem(1)
    covered, positions = [], problem.sobol(2)
    for seed in range(12):
        post = cb.fit(problem, cases.simulate(problem, truth, 25, seed))
        theta = post.draws(1, seed)[0]
        effects = np.asarray(cb.response(post)(theta, positions))
        surrogate = condition(
            cb.surrogates.couple(post), positions[::3], effects[::3], [0.0] * len(positions[::3])
        )
        found = surrogate.relinearize().relinearize().predict(positions)
        covered.append(np.abs(found.mean - effects) <= 1.645 * found.sd + 1e-9)
    assert np.mean(covered) > 0.8


def test_relinearizing_finds_the_most_probable_theta():
    """Gauss-Newton steps end where the gradient of the log posterior of the weights is zero."""
    problem, truth = cases.random_problem(1)
    post = cb.fit(problem, cases.simulate(problem, truth, 25, 0))
    queries = problem.sobol(1)
    outcomes = np.asarray(cb.response(post)(post.draws(1, 3)[0], queries))
    surrogate = condition(cb.surrogates.couple(post), queries, outcomes, [0.05] * len(queries))
    surrogate = surrogate.relinearize()
    at, r = surrogate.weights.mean, surrogate.response
    theta = surrogate.theta(at)
    values, jacobian = r.linearize(theta, surrogate.outcomes.queries)
    features = np.asarray(jacobian) @ post.factor
    precisions = 1 / (
        surrogate.outcomes.variances + surrogate.remainders + 1e-10 * (features**2).sum(axis=1)
    )
    gradient = features.T @ (precisions * (surrogate.outcomes.means - np.asarray(values))) - at
    np.testing.assert_allclose(gradient, 0.0, atol=1e-2)
    np.testing.assert_allclose(
        surrogate.predict(queries).mean, r(theta, queries), rtol=1e-3, atol=1e-4
    )
    after = post.factor @ surrogate.weights.covariance @ post.factor.T
    assert np.linalg.eigvalsh(post.covariance - after).min() > -1e-12


@pytest.mark.parametrize(
    ("outcome", "noise", "match"),
    [
        (np.nan, 1.0, "the outcome is nan; it must be finite"),
        (np.inf, 1.0, "the outcome is inf"),
        (1.0, -1.0, "variance of the outcome's noise is -1"),
        (1.0, np.nan, "variance of the outcome's noise is nan"),
    ],
)
def test_invalid_outcome_is_refused(post, outcome, noise, match):
    with pytest.raises(cb.errors.DataError, match=match):
        cb.surrogates.couple(post).condition(post.problem.queries([{"V0": 1.0}]), outcome, noise)


def test_a_surprising_outcome_does_not_move_it_far():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(8, 0))
    updated = cb.surrogates.couple(post).condition(system.problem.queries([{"X": 2.0}]), 8.0, 0.01)
    at = system.problem.queries([{"Z": 2.0}])
    first = updated.relinearize()
    second = first.relinearize()
    assert float(second.predict(at).mean[0]) == pytest.approx(
        float(first.predict(at).mean[0]), abs=0.02
    )
    assert first._linearized_at(first.centre)[0] <= updated._linearized_at(updated.centre)[0]


def far_prediction(offset):
    """Of the effect of X at 1 above its mean, less its part that grows with the offset."""
    x, z, y = np.random.default_rng(0).normal(size=(3, 100))
    x = x + offset
    z = 0.8 * x + z
    graph = cb.CausalGraph.parse("X -> Z -> Y; X -> Y")
    problem = cb.Problem(
        graph,
        "Y",
        domains={"X": (offset - 3, offset + 3), "Z": (0.8 * offset - 3, 0.8 * offset + 3)},
    )
    values = np.column_stack([x, z, y - 1.3 * z])
    post = cb.fit(problem, cb.Data(graph.nodes, "Y", values, np.zeros((100, 3), bool)))
    query = problem.queries([{"X": offset + 1.0}])
    found = (
        cb.surrogates.couple(post)
        .condition(query, -1.04 * offset, 1.0)
        .relinearize()
        .predict(query)
    )
    return float(found.mean[0]) + 1.04 * offset, float(found.sd[0])


def test_large_means_do_not_matter():
    near = far_prediction(0.0)
    for offset in (1e4, 1e6):
        assert far_prediction(offset) == pytest.approx(near, rel=1e-4)


def test_the_noise_of_outcomes_and_of_fantasized_ones_is_by_default_that_of_the_model(post):
    query = post.problem.queries([{"V0": 1.0}])
    surrogate = cb.surrogates.couple(post).condition(query, 1.0)
    assert surrogate.outcomes.variances[0] == pytest.approx(float(post.outcome_variances(query)[0]))
    for noise in (np.nan, -1.0):
        with pytest.raises(cb.errors.DataError, match="variance of the outcome's noise is"):
            surrogate.fantasize(query, noise)
    batch = post.problem.sobol(1)
    fantasized = surrogate.fantasize(batch)
    assert fantasized.outcomes.variances[1:] == pytest.approx(post.outcome_variances(batch))


def test_fantasizing_a_batch_is_fantasizing_one_after_the_other(post):
    tried, batch, at = post.problem.sobol(1)[:2], post.problem.sobol(1)[1:], post.problem.sobol(2)
    for discrepancy in (False, True):
        before = cb.surrogates.couple(post, discrepancy=discrepancy).condition(tried, [1.0, 2.0], 1)
        single = before
        for query in batch:
            single = single.fantasize(query, 0.5)
        together = before.fantasize(batch, 0.5)
        np.testing.assert_allclose(together.predict(at).mean, before.predict(at).mean, atol=1e-9)
        np.testing.assert_allclose(single.joint(at).covariance, together.joint(at).covariance)
        assert (together.predict(at).sd < before.predict(at).sd).all()


def test_two_interventions_are_not_one_outcome(post):
    with pytest.raises(
        cb.errors.DataError, match="give one outcome for each intervention.*2 interventions"
    ):
        cb.surrogates.couple(post).condition(
            post.problem.queries([{"V0": 1.0}, {"V1": 1.0}]), 1.0, 1.0
        )


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["laplace", cb.NUTS(progress=False)], ids=["laplace", "nuts"])
def test_the_linearization_error_of_drawn_posteriors_is_noise_of_their_outcomes(method):
    """f = a_Y + b (a_Z + c x): what is missed is db dm, m = a_Z + c x.

    Whose mean square is Vb Vm + 2 Cov(b, m)^2.
    """
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(40, 0), method=method, key=0)
    position = {name: index for index, name in enumerate(post.names)}
    slope, mediator = np.zeros((2, len(post.names)))
    slope[position["b[Z->Y]"]] = mediator[position["a[Z]"]] = 1.0
    mediator[position["b[X->Z]"]] = 4.0
    of = post.covariance
    expected = slope @ of @ slope * (mediator @ of @ mediator) + 2 * (slope @ of @ mediator) ** 2
    query = system.problem.queries([{"X": 4.0}])
    found = remainders(post, query)[0]
    error = np.sqrt(8 / 512)  # of the mean square of a product of two normals, in 512 draws
    assert (
        found == pytest.approx(expected, rel=5 * error)
        and expected > 1e-3 * post.outcome_variances(query)[0]
    )
    updated = cb.surrogates.couple(post).condition(query, -3.0, 0.0)
    assert updated.remainders[0] == found
    _, jacobian = cb.response(post).linearize(post.mean, query)
    prior = float(np.asarray(jacobian @ of @ jacobian.T)[0, 0])
    assert updated.predict(query).sd[0] ** 2 == pytest.approx(
        prior * found / (prior + found), rel=1e-6
    )
