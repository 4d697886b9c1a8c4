"""Priors of equations: their meaning, what they refuse, and that they do not change later."""

import math

import numpy as np
import pytest
from helpers import fitted_cases as cases
from scipy import stats

import causal_bo_ppl as cb


def test_default_prior_does_not_depend_on_units():
    problem, truth = cases.random_problem(1)
    data = cases.simulate(problem, truth, 30, 0)
    scale, shift = np.array([2.0, 0.1, 30.0, 1.0, 5.0]), np.array([1.0, -4.0, 0.0, 7.0, 2.0])
    moved = cb.Data(data.nodes, data.target, data.values * scale + shift, data.intervened)
    one, other = (cb.fit(problem, each) for each in (data, moved))
    ratio = [
        scale[problem.graph.index(c.effect)]
        / (scale[problem.graph.index(c.cause)] if c.cause else 1.0)
        for c in one.parameters.coordinates
    ]
    slopes = np.array([bool(c.cause) for c in one.parameters.coordinates])
    np.testing.assert_allclose(other.mean[slopes], (one.mean * ratio)[slopes], rtol=1e-9)
    np.testing.assert_allclose(other.sd[slopes], (one.sd * ratio)[slopes], rtol=1e-9)


@pytest.mark.parametrize("n", [14, 25])
def test_default_intervals_cover_with_few_observations_and_many_parents(n):
    graph = cb.CausalGraph.from_edges([(f"P{i}", "Y") for i in range(10)])
    problem = cb.Problem(graph, "Y", domains={"P0": (-1, 1)}, sets=[("P0",)])
    covered = []
    for seed in range(150):
        draws = np.random.default_rng(seed)
        parents = draws.normal(size=(n, 10))
        values = np.column_stack([parents, parents.sum(axis=1) + draws.normal(size=n)])
        order = [f"P{i}" for i in range(10)]
        data = cb.Data(
            graph.nodes,
            "Y",
            values[:, [*map(order.index, graph.nodes[:-1]), 10]],
            np.zeros((n, 11), bool),
        )
        post = cb.fit(problem, data)
        node, position = graph.index("Y"), post.names.index("b[P0->Y]")
        distribution = post.distribution.posterior
        freedom = 2 * distribution.shape[node]
        half = stats.t.ppf(0.95, freedom) * post.sd[position] * np.sqrt((freedom - 2) / freedom)
        covered.append(abs(post.mean[position] - 1.0) <= half)
    assert abs(np.mean(covered) - 0.9) < 4.5 * np.sqrt(0.09 / 150)


def test_later_changes_of_the_arguments_change_nothing(make_problem):
    scales, data = {"Y": 1.0}, cb.models.load("chain").observe(5, 0)
    prior = cb.priors.FixedPrior(scales=scales)
    post = cb.fit(make_problem(), data, prior=prior)
    name = post.fingerprint
    before = cb.fit(make_problem(), data, prior=cb.priors.FixedPrior(scales={"Y": 1.0}))
    scales["Y"] = 100.0
    prior.scales["Y"] = 100.0
    assert np.array_equal(post.sd, before.sd) and post.fingerprint == name == before.fingerprint
    with pytest.raises(ValueError, match="read-only"):
        post.mean[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        cb.priors.MomentPrior(np.zeros(2), 1.0, np.eye(2), 6.0).scale[0, 0] = 2.0


def test_fingerprints_distinguish_priors_by_value_only(make_problem):
    data = cb.models.load("chain").observe(20, 0)

    def name(prior, **options):
        return cb.fit(make_problem(), data, prior=prior, **options).fingerprint

    assert (
        name(cb.priors.ScaledPrior(1))
        == name(cb.priors.ScaledPrior(1.0))
        != name(cb.priors.ScaledPrior(2.0))
    )
    one, other = {"X": 1.0, "Y": 2.0}, {"Y": 2.0, "X": 1.0}
    assert (
        name(cb.priors.FixedPrior(scales=one))
        == name(cb.priors.FixedPrior(scales=other))
        != name(cb.priors.FixedPrior(centres=one))
    )
    close = [
        cb.priors.MomentPrior(np.zeros(3), 1.0, np.eye(3) * s, 9.0) for s in (1.0, 1.000000001)
    ]
    assert name(close[0], method="wishart") != name(close[1], method="wishart")
    kinds = {name(None, parameters=kind) for kind in ("structural", "total_effect", "estimand")}
    assert (
        len(
            {
                *kinds,
                name(None, intercepts=True),
                cb.fit(make_problem(), data.select(slice(1, 20))).fingerprint,
            }
        )
        == 4
    )


def test_prior_alone_is_a_posterior_of_no_observations():
    problem, _ = cases.random_problem(0)
    empty = cb.Data(problem.graph.nodes, problem.target, np.zeros((0, 5)), np.zeros((0, 5), bool))
    post = cb.fit(
        problem,
        empty,
        prior=cb.priors.FixedPrior(slope_sd=3.0, noise_observations=6.0),
        intercepts=False,
    )
    np.testing.assert_allclose(post.mean, 0.0, atol=1e-14)
    np.testing.assert_allclose(
        post.covariance, np.eye(len(post.names)) * 9 * 6 / 4, rtol=1e-12
    )  # E s2 = 3 / 2


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"slope_sd": 0.0},
            cb.errors.MechanismError,
            "slope_sd must be a positive number, got 0.0",
        ),
        ({"noise_observations": 2.0}, cb.errors.MechanismError, "must be more than 2"),
        ({"noise_observations": math.nan}, cb.errors.MechanismError, "must be more than 2"),
        ({"noise_observations": None}, cb.errors.MechanismError, "must be a number, got None"),
        (
            {"centres": {"X": None}},
            cb.errors.MechanismError,
            "the centre of 'X' must be a number, got None",
        ),
        ({"scales": [1.0]}, cb.errors.MechanismError, "scales must be a mapping"),
        (
            {"slopes": {("X", "Z"): 1.0}},
            cb.errors.MechanismError,
            r"is a pair \(mean, sd\), got 1.0",
        ),
        (
            {"scales": {"X": -1.0}},
            cb.errors.MechanismError,
            "the scale of 'X' must be a positive number",
        ),
        (
            {"centres": {"X": math.inf}},
            cb.errors.MechanismError,
            "the centre of 'X' must be finite",
        ),
        (
            {"slopes": {("X", "Z"): (0.0, 0.0)}},
            cb.errors.MechanismError,
            "the prior sd of the slope",
        ),
        (
            {"slopes": {("X", "Z"): (math.nan, 1.0)}},
            cb.errors.MechanismError,
            "the prior mean of the slope",
        ),
    ],
)
def test_an_invalid_prior_is_refused(options, error, match):
    with pytest.raises(error, match=match):
        cb.priors.FixedPrior(**options)


def test_a_prior_of_another_problem_or_method_is_refused(make_problem):
    problem, data = make_problem(known={("Z", "Y"): 1.0}), cb.models.load("chain").observe(20, 0)
    for prior, match in (
        (cb.priors.FixedPrior(scales={"W": 1.0}), "unknown variable 'W'"),
        (cb.priors.FixedPrior(slopes={("X", "Y"): (0.0, 1.0)}), "which is no edge"),
        (cb.priors.FixedPrior(slopes={("Z", "Y"): (0.0, 1.0)}), "is known; it has no prior"),
        (
            cb.priors.MomentPrior(np.zeros(3), 1.0, np.eye(3), 6.0),
            "prior must be a ScaledPrior or a FixedPrior for this method",
        ),
        ("weak", "prior must be a ScaledPrior"),
    ):
        with pytest.raises(cb.errors.MechanismError, match=match):
            cb.fit(problem, data, prior=prior)
    with pytest.raises(cb.errors.MechanismError, match="observations must be a positive number"):
        cb.priors.ScaledPrior(observations=0)
