"""Interventions given as dictionaries to every public function, and invalid arguments."""

import numpy as np
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb


@pytest.fixture(scope="module")
def post():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(60, 0))


BOTH = {"X": 1.0, "Z": -2.0}


def test_one_intervention_on_two_variables_is_one_query_in_every_public_function(post):
    queries, r = post.problem.queries([BOTH]), cb.response(post)
    surrogate = cb.surrogates.couple(post)
    functions = {
        "response": lambda at: r(post.mean, at),
        "many": lambda at: r(post.draws(3, 0), at),
        "jacobian": lambda at: r.jacobian(post.mean, at),
        "bounds": lambda at: r.hessian_bounds(at).bounds,
        "jacobian gram": lambda at: cb.jacobian_gram(post, at).gram,
        "exact gram": lambda at: cb.exact_gram(post, at).gram,
        "monte carlo gram": lambda at: cb.monte_carlo_gram(post, at, key=0).gram,
        "variances": lambda at: post.outcome_variances(at),
        "predict": lambda at: surrogate.predict(at).mean,
        "joint": lambda at: surrogate.joint(at).covariance,
        "sample": lambda at: surrogate.sample(0, at, 2),
        "condition": lambda at: surrogate.condition(at, 1.0, 0.5).predict(at).mean,
        "comparison": lambda at: cb.compare_kernels(post, at, key=0)["overall_frobenius"].values,
        "rank": lambda at: np.array([cb.theory.causal_rank(post, at)]),
        "gaussian": lambda at: cb.diagnostics.gaussian_error(post, at, key=0).details.to_numpy(),
        "variance_reduction": lambda at: (
            cb.kernels.variance_reduction(post, at, at)["reduction"].values
        ),
    }
    for name, function in functions.items():
        expected = function(queries)
        for given in (BOTH, [BOTH]):
            np.testing.assert_array_equal(function(given), expected, err_msg=name)
    assert cb.theory.theory_table(post, [BOTH, {"X": 3.0}], noise=1.0, rounds=2) is not None
    assert r(np.zeros((0, len(post.names))), BOTH).shape == (0, 1)
    with pytest.raises(cb.errors.DomainError, match="unknown manipulable variable 'Q'"):
        r(np.zeros((0, len(post.names))), [{"Q": 1.0}])


def test_negative_zero_is_zero(post):
    surrogate = cb.surrogates.couple(post).condition({"X": 0.0}, 1.0, 0.5)
    signed, plain = (surrogate.condition({"X": zero}, 3.0, 0.5) for zero in (-0.0, 0.0))
    np.testing.assert_array_equal(signed.weights.mean, plain.weights.mean)
    assert signed.outcomes.counts.tolist() == [2]


def test_a_density_of_one_intervention_refuses_two(post):
    surrogate, two = cb.surrogates.couple(post), [{"X": 1.0}, {"Z": 1.0}]
    with pytest.raises(cb.errors.ArgumentError, match="about one intervention; got Queries\\(2"):
        surrogate.log_density(two, [1.0, 2.0], 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": cb.NUTS}, r"got the class NUTS; write NUTS\(\)"),
        ({"method": cb.Laplace}, r"got the class Laplace; write Laplace\(\)"),
        ({"method": "magic"}, "method must be one of conjugate, wishart, laplace, nuts"),
        ({"mechanisms": 3}, "mechanisms must be one of linear, gp, auto, or an object with a name"),
    ],
)
def test_a_class_or_another_object_is_refused_as_method_or_mechanisms(post, options, message):
    with pytest.raises(cb.errors.ArgumentError, match=message):
        cb.fit(post.problem, post.data, **options)


def test_an_acquisition_that_gives_no_numbers_is_named():
    class Odd:
        name = "odd"

        def value(self, surrogate, queries, context):
            return np.full(len(queries), np.nan)

    class Short(Odd):
        def value(self, surrogate, queries, context):
            return np.zeros(2)

    for rule in (Odd(), Short()):
        with pytest.raises(
            cb.errors.PluginError, match="the acquisition 'odd' gave an array of shape"
        ):
            optimize(cb.models.load("chain"), acquisition=rule, rounds=1, key=0)
    with pytest.raises(
        cb.errors.SettingsError, match=r"prior must be a prior such as cb.priors.FixedPrior\(\)"
    ):
        cb.Settings(prior=3)


def test_a_study_learns_from_whole_observations_and_from_outcomes_alone(post):
    query = {"Z": 1.0}
    observation = cb.models.load("chain").experiment([query], 5)
    study = cb.Study(post.problem, post.data, key=0)
    mixed = study.tell(observation).tell(query, -1.0, variance=0.3)
    assert mixed.posterior.n_observations == post.n_observations + 1
    again = cb.surrogates.couple(post.update(observation)).condition(query, -1.0, 0.3).relinearize()
    np.testing.assert_allclose(mixed.surrogate.predict(query).mean, again.predict(query).mean)
