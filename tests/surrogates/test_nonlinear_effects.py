"""Coupled surrogates of nonlinear effects: linearization errors, and where they are made.

Internals: evaluations are counted and moments compared below the surrogate.
"""

import html
import logging
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.logs import recorded
from helpers.runs import optimize
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import Replicates
from causal_bo_ppl.effect_estimates import moments
from causal_bo_ppl.effect_estimates.moments import REMAINDER_DRAWS, smooth_moments, weigh_response
from causal_bo_ppl.mechanisms import gp_basis as basis
from causal_bo_ppl.optimization.acquisition import Context, fixed_beta
from causal_bo_ppl.optimization.state import begin, infer_state
from causal_bo_ppl.problem.search import zoom
from causal_bo_ppl.surrogates import coupled
from causal_bo_ppl.surrogates.coupled import MeanOutcomes, is_far_off

FEW = cb.GP(functions=16)


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def post(toy):
    return cb.fit(toy.problem, toy.observe(100, 0), mechanisms=FEW)


def test_derivatives_of_a_sine_series_are_those_of_its_terms():
    rng = np.random.default_rng(0)
    own, angle = jnp.asarray(rng.normal(size=21)), jnp.asarray(rng.uniform(0.8, 2.3, (3, 5)))
    pull = jnp.asarray(rng.normal(size=(3, 5)))
    orders = np.arange(1, 22)
    waves = np.sin(np.asarray(angle)[..., None] * orders)
    slopes = np.cos(np.asarray(angle)[..., None] * orders) * orders
    for terms in (21, 11):  # summed in blocks of eight: 16 of them count
        is_used = np.arange(21) < terms + -terms % basis.TERMS_PER_BLOCK
        series = partial(basis.sine_series, terms=jnp.asarray(terms))
        value, back = jax.vjp(series, own, angle)
        np.testing.assert_allclose(value, waves @ (own * is_used), atol=1e-12)
        for_own, for_angle = back(pull)
        np.testing.assert_allclose(for_own, np.tensordot(pull, waves, 2) * is_used, atol=1e-12)
        np.testing.assert_allclose(for_angle, pull * (slopes @ (own * is_used)), atol=1e-11)


@pytest.mark.heavy
def test_remainders_vary_together_as_those_of_draws_of_theta(post, toy):
    """Between the points at which they are computed too, to a fiftieth of their size."""
    queries = toy.problem.queries([{"X": x} for x in np.linspace(-4.9, 4.9, 23)])
    weighted, r = weigh_response(post), cb.response(post)
    theta = post.draws(REMAINDER_DRAWS, jax.random.key(0))
    line = r(post.mean, queries) + (theta - post.mean) @ r.jacobian(post.mean, queries).T
    missed = (r(theta, queries) - line).T / np.sqrt(REMAINDER_DRAWS)
    found = weighted.remainder_features(queries)
    expected = missed @ missed.T
    assert np.abs(found @ found.T - expected).max() < 0.02 * np.abs(expected).max()
    near = slice(8, 18)  # where they are small
    gap = np.abs(found[near] @ found[near].T - expected[near, near]).max()
    assert gap < 0.1 * np.abs(expected[near, near]).max()


def test_remainders_without_weights_count_as_noise(post, toy, monkeypatch):
    """All that the draws show is in the weights or in the noise."""
    queries = toy.problem.queries([{"X": x} for x in np.linspace(-4.9, 4.9, 9)])
    whole = (weigh_response(post)._changes(queries)[1] ** 2).sum(axis=1)
    for most, least in ((24, -1.0), (4, 1e-3)):
        monkeypatch.setattr(moments, "MOST_DIRECTIONS", most)
        fresh = weigh_response(replace(post))
        noises = fresh.noises(queries)
        both = (fresh.remainder_features(queries) ** 2).sum(axis=1) + noises
        np.testing.assert_allclose(both, whole, rtol=0.1, atol=1e-3 * whole.max())
        assert noises.max() > least * whole.max()


def test_smooth_moments_of_effects_are_those_of_draws(post, toy):
    """Against as many draws of theta, between the points at which they are computed."""
    at = [{"X": x} for x in np.linspace(-3.9, 4.9, 14)] + [{"Z": z} for z in (-3.3, 2.2, 17.0)]
    queries = toy.problem.queries(at)
    r, theta = cb.response(post), post.draws(REMAINDER_DRAWS, jax.random.key(0))
    drawn, found = r(theta, queries), smooth_moments(post, queries)
    line = (theta - post.mean).mean(axis=0) @ r.jacobian(post.mean, queries).T
    mean, sd = drawn.mean(axis=0) - line, drawn.std(axis=0, ddof=1)
    assert np.abs((found.mean - mean) / sd).max() < 0.1
    np.testing.assert_allclose(found.sd, sd, rtol=0.15)


def test_sets_share_no_weights_of_remainders(post, toy):
    one, other = (weigh_response(post).remainder_features(q) for q in toy.problem.sobol(2)[::2])
    assert np.abs(one @ other.T).max() == 0


@pytest.mark.heavy
def test_the_sd_before_any_outcome_is_that_of_many_draws(post, toy):
    queries = toy.problem.queries([{"X": x} for x in (-2.0, 0.0, 2.0)] + [{"Z": 1.0}])
    drawn = cb.response(post)(post.draws(4_000, 1), queries)
    predicted = cb.surrogates.couple(post).predict(queries)
    about = np.sqrt(((drawn - predicted.mean) ** 2).mean(axis=0))
    np.testing.assert_allclose(predicted.sd, about, rtol=0.25)


def test_effects_that_are_linear_in_theta_have_no_remainders(post, toy):
    queries = toy.problem.queries([{"Z": z} for z in (-4.0, 3.0, 18.0)])
    assert np.abs(weigh_response(post).remainder_features(queries)).max() < 1e-9
    chain = cb.models.load("chain")
    linear = cb.fit(chain.problem, chain.observe(50, 0))
    assert weigh_response(linear).thetas.shape == (0, len(linear.mean))


def test_an_exact_outcome_informs_its_neighbours_beyond_the_data(post, toy):
    """Their linearization errors are nearly the same."""
    tried = toy.problem.queries([{"X": -5.0}])
    near = toy.problem.queries([{"X": -4.8}])
    before = cb.surrogates.couple(post)
    after = before.condition(tried, float(toy.effect(tried)[0]), 0.0).relinearize()
    assert after.predict(near).sd[0] < 0.3 * before.predict(near).sd[0]
    assert after.predict(tried).mean[0] == pytest.approx(float(toy.effect(tried)[0]), abs=1e-3)


def test_exact_outcomes_are_met_wherever_theta_is_linearized(post, toy):
    tried = toy.problem.queries([{"X": x} for x in (-3.0, -1.0, 2.0)] + [{"Z": -3.0}])
    updated = cb.surrogates.couple(post).condition(tried, toy.effect(tried), 0.0)
    for surrogate in (updated, updated.relinearize()):
        assert np.abs(surrogate.predict(tried).mean - toy.effect(tried)).max() < 1e-3
    moved = updated.relinearize()
    assert moved._linearized_at(moved.centre)[0] < updated._linearized_at(updated.centre)[0]


def test_outcomes_far_from_their_predictions_switch_a_discrepancy_on(post, toy, monkeypatch):
    """Whatever the Bayes factor says; outcomes of the model itself do not."""
    monkeypatch.setattr(coupled, "DECISIVE_BAYES_FACTOR", np.inf)
    rng, tried = np.random.default_rng(0), toy.problem.sobol(16)
    before = cb.surrogates.couple(post, discrepancy="auto")
    drawn = before.sample(0, tried)[0] + rng.normal(size=len(tried))
    assert before.condition(tried, drawn, 1.0).discrepancy is None
    strange = before.predict(tried).mean + 8 * before.predict(tried).sd * rng.choice([-1, 1], 32)
    assert (
        before.condition(tried, strange + 5 * rng.normal(size=len(tried)), 1.0).discrepancy
        is not None
    )


def test_distance_of_outcomes_is_that_of_a_dense_solve():
    rng = np.random.default_rng(0)
    features, residuals, noises = rng.normal(size=(9, 4)), rng.normal(size=9), rng.uniform(1, 2, 9)
    for size in np.linspace(0.5, 4.0, 15):
        means = Replicates(None, np.ones(9), None, noises, np.zeros(9))
        given = MeanOutcomes(means, features, size * residuals, np.zeros(9), 1.0, np.inf)
        total = (
            size**2
            * residuals
            @ np.linalg.solve(features @ features.T + np.diag(noises), residuals)
        )
        expected = total > 18 and stats.chi2.sf(total, 9) < 1e-3
        assert is_far_off(given, 1.0) == expected


def test_a_bound_is_widened_until_some_candidate_beats_what_is_known(post, toy):
    surrogate, candidates = cb.surrogates.couple(post), toy.problem.sobol(16)
    context = Context(surrogate, "min", candidates, candidates)
    mean, sd = surrogate.predict(candidates)
    best = float((mean - 3.0 * sd).min())
    wider = cb.acquisition.ConfidenceBound(2.0).widen(context, candidates, best)
    assert wider.beta == pytest.approx(2.0 * 1.5**4)  # the first power above 3 ** 2
    assert (mean - np.sqrt(wider.beta) * sd).min() < best
    rule = cb.acquisition.ConfidenceBound(2.0)
    assert rule.widen(context, candidates, float(mean.min())).beta == 2.0
    zero = cb.acquisition.ConfidenceBound(0.0)
    assert zero.widen(context, candidates, best) is zero
    assert rule.widen(context, candidates[np.arange(0)], best) is rule


def test_the_default_bound_is_wider_for_nonlinear_effects_and_noisy_outcomes(post, toy):
    nonlinear, candidates = cb.surrogates.couple(post), toy.problem.sobol(4)
    chain = cb.models.load("chain")
    linear = cb.surrogates.couple(cb.fit(chain.problem, chain.observe(50, 0)))
    noisy = Context(nonlinear, "min", candidates, candidates)
    assert fixed_beta(None, noisy) == 9.0
    assert fixed_beta(None, replace(noisy, exact=True)) == 2.0
    vertices = chain.problem.vertices()
    affine = Context(linear, "min", vertices, vertices)
    assert fixed_beta(None, affine) == 2.0
    assert fixed_beta(4.0, noisy) == 4.0
    assert cb.Settings.from_json(cb.Settings().to_json()) == cb.Settings()


def test_brackets_find_every_peak_to_a_ten_thousandth_of_the_domain():
    domains = {"A": (-2.0, 3.0), "B": (0.0, 10.0)}
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    problem = cb.Problem(graph, "Y", domains=domains, sets=1)
    positions = {("A",): 0.321, ("B",): 7.654}
    sizes = []

    def value(queries):
        sizes.append(len(queries))
        at = np.asarray(queries.value).sum(axis=1)
        peak = np.where(queries.mask[:, 0], positions["A",], positions["B",])
        return -(np.abs(at - peak) ** 1.5)

    points = problem.sobol(16)
    low, high = (np.array([domains.get(n, (0, 0))[at] for n in graph.nodes]) for at in (0, 1))
    found = zoom(value, points, value(points), low, high)
    reached = np.asarray(found.value)[np.arange(len(found)), found.mask.argmax(axis=1)]
    best = {
        n: np.abs(reached[found.mask[:, at]] - positions[n,]).min() for at, n in enumerate("AB")
    }
    assert best["A"] < 5e-4 and best["B"] < 1e-3
    assert len(set(sizes[1:])) == 1  # one shape: nothing is compiled twice


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::causal_bo_ppl.errors.CausalBOWarning")  # few functions
def test_rounds_with_nonlinear_mechanisms_reach_the_optimum_of_toy_and_compile_nothing_new(toy):
    """Exact outcomes; programs are compiled in the first rounds only."""
    seen = []

    def watch(run):
        seen.append(compiled())

    run = optimize(toy, mechanisms=FEW, noise=0.0, rounds=24, key=0, callback=watch, progress=False)
    assert run.regret()[-1] < 0.005 and run.regret("tried")[-1] < 0.005
    assert seen[-1] == seen[3]
    assert run.extrapolation.verdict == "failed" and "beyond the data" in repr(run)
    assert "rely on what came out" in run.extrapolation.advice
    assert run.extrapolation.text in html.unescape(run._repr_html_())


def compiled():
    from causal_bo_ppl import responses

    return sum(getattr(responses, name)._cache_size() for name in ("_effects", "_linearize"))


@pytest.mark.parametrize(
    "options",
    [
        {"domains": {"X": cb.Levels([-2, -1, 0, 1, 2]), "W": (-2, 2)}},
        {"constraints": [cb.LinearConstraint({"X": 1.0, "W": 1.0}, upper=1.0)]},
        {"feasible": lambda queries: np.asarray(queries.value)[:, 0] < 1.0},
    ],
    ids=["levels", "constraint", "function"],
)
@pytest.mark.heavy
def test_nonlinear_effects_are_searched_at_feasible_interventions_only(options):
    rng, graph = np.random.default_rng(0), cb.CausalGraph.parse("X -> Z -> Y; W -> Y")
    x, w = rng.normal(size=(2, 60))
    z = np.sin(2 * x) + 0.3 * rng.normal(size=60)
    columns = {"X": x, "W": w, "Z": z, "Y": z - w + 0.3 * rng.normal(size=60)}
    values = np.stack([columns[name] for name in graph.nodes], axis=1)
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    problem = cb.Problem(
        graph, "Y", **({"domains": {"X": (-2, 2), "W": (-2, 2)}, "sets": 2} | options)
    )
    study = cb.Study(problem, data, cb.Settings(mechanisms={"Z": FEW}), key=0)
    asked = study.ask().intervention
    assert problem.feasible([asked]).all()


def test_new_observations_compile_nothing(post, toy, caplog):
    """Whatever their number: observations are padded to one of a few sizes."""
    data = toy.experiment(toy.problem.sobol(4), 1)
    first = post.update(data.select(slice(0, 1))).mean
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        others = [post.update(data.select(slice(0, count))).mean for count in (2, 3, 5)]
    assert not [each for each in caplog.records if "Compiling" in each.getMessage()]
    assert all(len(each) == len(first) for each in others)


def test_observations_far_away_do_not_change_the_usual_range_of_variables(post, toy):
    """do(X = -5) sends Z to about 148, far beyond its domain."""
    data = toy.experiment(toy.problem.queries([{"X": -5.0}] * 3 + [{"Z": 15.0}]), 1)
    after = post.update(data)
    for old, new in zip(post.distribution.model.bound, after.distribution.model.bound, strict=True):
        np.testing.assert_array_equal(old.setting.frame.half, new.setting.frame.half)
        np.testing.assert_array_equal(old.setting.frame.origin, new.setting.frame.origin)
        np.testing.assert_array_equal(old.known.prior.centre, new.known.prior.centre)
    frame = after.distribution.model.bound[-1].setting.frame
    assert frame.high[0] == 15.0 and frame.low[0] > -5.0


def test_noisy_outcomes_under_set_causes_of_the_target_inform_its_mechanism(post, toy):
    """They equal observations in which all else was set; others inform the surrogate."""
    settings = cb.Settings(mechanisms=FEW, learn_from="target", discrepancy=False)
    problem, start = toy.problem, begin(post, settings)
    values = np.linspace(-4.0, 18.0, 12)
    effects = np.asarray(toy.effect([{"Z": float(z)} for z in values]))
    asked = [*({"Z": float(z)} for z in values), {"X": 0.5}]
    state = infer_state(start, recorded(problem, asked, [*effects, -0.3]))
    middle = post.parts[0].column("X").mean()
    observed = np.stack([np.full(12, middle), values, effects], axis=1)
    is_set = np.tile([True, True, False], (12, 1))
    expected = post.update(cb.Data(problem.graph.nodes, "Y", observed, is_set))
    np.testing.assert_allclose(state.posterior.mean, expected.mean, rtol=1e-6, atol=1e-8)
    assert len(state.surrogate.observed.values) == 1  # of X
    before, after = (each.distribution.model.modes for each in (post, state.posterior))
    assert np.abs(after[-1].eta - before[-1].eta).max() > 0.1  # hyperparameters of Y
    np.testing.assert_allclose(after[0].eta, before[0].eta, rtol=1e-6, atol=1e-6)


def test_outcomes_whose_noise_is_not_the_mechanisms_stay_with_the_surrogate(post, toy):
    query = toy.problem.queries([{"Z": 1.0}])
    for options, noise in (
        ({"noise": 0.0}, 0.0),
        ({}, 0.25),
        ({"relinearize": False}, None),
        ({"surrogate": "uncoupled"}, None),
    ):
        settings = cb.Settings(mechanisms=FEW, learn_from="target", discrepancy=False, **options)
        log = recorded(toy.problem, query, [-0.4], variance=np.nan if noise is None else noise)
        state = infer_state(begin(post, settings), log)
        assert state.posterior is post


def test_under_latent_causes_no_outcome_informs_the_mechanism_of_the_target():
    system = cb.models.load("toy", variant="confounded")
    confounded = cb.fit(system.problem, system.observe(60, 0), mechanisms=FEW)
    queries = system.problem.queries([{"Z": 1.0}])
    is_row, rows = confounded.distribution.model.target_observations(queries, np.zeros(1))
    assert not is_row.any() and len(rows) == 0
