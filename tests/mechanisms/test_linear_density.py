"""The fast density of the linear model against dense formulas.

Internals: the density is compared with formulas point by point; `test_numpyro_models` compares it
with the NumPyro program.
"""

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from helpers.fitted_cases import random_problem, simulate
from scipy.stats import multivariate_normal, norm

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import Outcomes, no_outcomes
from causal_bo_ppl.inference.potentials import log_priors, potential
from causal_bo_ppl.mechanisms.linear import (
    LinearModel,
    correlation_factor,
    draw_models,
)
from causal_bo_ppl.mechanisms.linear_equations import LinearSEM
from causal_bo_ppl.mechanisms.linear_responses import StructuralResponse
from causal_bo_ppl.systems import simulate as simulate_program

pytestmark = pytest.mark.heavy
PRIOR = cb.priors.FixedPrior(
    slope_sd=0.7,
    intercept_sd=1.5,
    noise_sd=0.8,
    noise_observations=5.0,
    centres={"V1": 2.0},
    scales={"V2": 3.0},
)


NOISE = "/noise"  # no variable may hold a slash


def generate(graph, sem):
    """Generate observations of a linear SEM, one variable after the other, for `simulate`."""
    noise = numpyro.sample(
        NOISE,
        numpyro.distributions.MultivariateNormal(
            jnp.zeros(len(graph.nodes)), covariance_matrix=sem.noise
        ),
    )
    values = {}
    for position, node in enumerate(graph.nodes):
        total = sem.intercepts[position] + noise[..., position]
        for cause in graph.parents(node):
            total = total + sem.weights[graph.index(cause), position] * values[cause]
        values[node] = numpyro.deterministic(node, total)


def make_model(problem, data, prior=PRIOR, outcomes=None, scale_by_sd=True, intercepts=True):
    graph = problem.graph.ancestral(problem.target)
    identified = cb.identify(
        problem.graph, problem.target, [()]
    )  # parameters of nothing set: all equations
    theta = identified.parameters("structural", intercepts=intercepts)
    outcomes = no_outcomes(len(graph.nodes)) if outcomes is None else outcomes
    return LinearModel(
        problem,
        graph,
        problem.known,
        intercepts,
        prior,
        StructuralResponse(problem, theta),
        data,
        outcomes,
        scale_by_sd,
    )


def log_likelihoods(model, flat):
    evaluate = jax.jit(model.density.log_likelihood)
    return np.array([float(evaluate(row)) for row in flat])


@pytest.fixture(scope="module")
def confounded():
    problem, truth = random_problem(3, size=6, confounded=True, identifiable_only=True)
    assert max(map(len, problem.graph.districts())) >= 4
    return problem, simulate(problem, truth, 40, 0, interventional=True)


def test_correlations_are_definite_and_zero_where_no_arc_is():
    draws = np.random.default_rng(0)
    for size in (3, 5, 7, 7):
        arcs = [pair for pair in combinations(range(size), 2) if draws.uniform() < 0.6]
        make = jax.jit(partial(correlation_factor, size, arcs))
        factor = np.asarray(make(draws.normal(size=len(arcs)) * 3))
        found = factor @ factor.T
        assert np.allclose(np.diagonal(found), 1) and np.linalg.eigvalsh(found).min() > 0
        absent = [pair for pair in combinations(range(size), 2) if pair not in arcs]
        assert np.abs([found[pair] for pair in absent]).max(initial=0.0) < 1e-12
        assert np.abs([found[pair] for pair in arcs]).min(initial=1.0) > 0


def test_every_correlation_matrix_with_these_zeros_has_its_strengths():
    """Solved for row by row, by least squares in the directions that keep the zeros."""
    draws, arcs, found = np.random.default_rng(1), [(0, 1), (0, 3), (1, 2), (2, 3)], 0
    make = jax.jit(partial(correlation_factor, 4, arcs))
    while found < 10:
        wanted = np.eye(4)
        for one, other in arcs:
            wanted[one, other] = wanted[other, one] = draws.uniform(-0.9, 0.9)
        if np.linalg.eigvalsh(wanted).min() <= 0:
            continue
        root = np.linalg.cholesky(wanted)
        strengths = np.zeros(len(arcs))
        for later in range(1, 4):
            mine = [k for k, arc in enumerate(arcs) if arc[1] == later]
            allowed = np.linalg.inv(root[:later, :later])[:, [arcs[k][0] for k in mine]]
            basis = allowed @ np.linalg.inv(np.linalg.cholesky(allowed.T @ allowed)).T
            strengths[mine] = basis.T @ root[later, :later] / root[later, later]
        factor = np.asarray(make(strengths))
        assert np.allclose(factor @ factor.T, wanted, atol=1e-12)
        found += 1


def test_in_a_district_of_two_the_correlation_is_t_over_its_length():
    factor = np.asarray(jax.jit(partial(correlation_factor, 2, [(0, 1)]))(np.array([0.75])))
    assert (factor @ factor.T)[0, 1] == pytest.approx(0.6)


@pytest.mark.parametrize("scale_by_sd", [True, False])
def test_likelihood_of_observations_is_that_of_the_mutilated_system(confounded, scale_by_sd):
    """V_R ~ N((I - W_RR')^-1 (a_R + W_sR'x), (I - W_RR')^-1 Omega_RR (I - W_RR)^-1), one by one."""
    problem, data = confounded
    model = make_model(problem, data, scale_by_sd=scale_by_sd)
    flat = np.random.default_rng(2).normal(size=(3, len(model.coordinates))) * 0.3
    matrices, noises = model.draws(flat)
    found = log_likelihoods(model, flat)
    columns = [data.nodes.index(name) for name in model.graph.nodes]
    for matrix, noise, likelihood in zip(matrices, noises, found, strict=True):
        total = 0.0
        for values, is_set in zip(
            data.values[:, columns], data.intervened[:, columns], strict=True
        ):
            free = ~is_set
            inverse = np.linalg.inv(np.eye(free.sum()) - matrix[:-1][np.ix_(free, free)].T)
            mean = inverse @ (
                matrix[-1, free] + matrix[:-1][np.ix_(is_set, free)].T @ values[is_set]
            )
            covariance = inverse @ noise[np.ix_(free, free)] @ inverse.T
            total += multivariate_normal(mean, covariance).logpdf(values[free])
        assert likelihood == pytest.approx(total, rel=1e-10)


def test_likelihood_of_outcomes_is_that_of_the_target_after_surgery(confounded):
    problem, data = confounded
    nodes = problem.graph.ancestral(problem.target).nodes
    mask = np.zeros((3, len(nodes)), bool)
    mask[0, 0] = mask[1, [0, 2]] = mask[2, 1] = True
    value, outcomes = np.where(mask, 0.7, 0.0), np.array([0.3, -1.0, 2.0])
    without, model = (
        make_model(problem, data),
        make_model(problem, data, outcomes=Outcomes(cb.problem.Queries(mask, value), outcomes)),
    )
    flat = np.random.default_rng(4).normal(size=(2, len(model.coordinates))) * 0.3
    matrices, noises = model.draws(flat)
    found, densities = (
        log_likelihoods(model, flat) - log_likelihoods(without, flat),
        model.outcome_densities(model.draws(flat)),
    )
    for row, (matrix, noise) in enumerate(zip(matrices, noises, strict=True)):
        total = 0.0
        for is_set, given, outcome in zip(mask, value, outcomes, strict=True):
            free = ~is_set
            inverse = np.linalg.inv(np.eye(free.sum()) - matrix[:-1][np.ix_(free, free)].T)
            mean = inverse @ (
                matrix[-1, free] + matrix[:-1][np.ix_(is_set, free)].T @ given[is_set]
            )
            covariance = inverse @ noise[np.ix_(free, free)] @ inverse.T
            total += norm(mean[-1], np.sqrt(covariance[-1, -1])).logpdf(outcome)
        assert found[row] == pytest.approx(total, rel=1e-8) and densities[
            row
        ].sum() == pytest.approx(total, rel=1e-10)


def test_both_kinds_of_coordinates_have_the_same_density(confounded):
    """Potentials differ by the log determinant of the transformation."""
    problem, data = confounded
    scaled = make_model(problem, data)
    flat = np.random.default_rng(5).normal(size=(3, len(scaled.coordinates))) * 0.3
    fixed, same = scaled.with_linear_theta(flat)
    assert not fixed.scale_by_sd
    assert np.allclose(fixed.draws(same).matrices, scaled.draws(flat).matrices, atol=1e-10)
    count = int(scaled.spec.used.sum())
    scales = flat[:, count : count + len(scaled.spec.equations)] * scaled.density.whitening.sd_width
    stretch = (scales * scaled.spec.used.sum(axis=1)).sum(axis=1)
    one, other = (
        np.array([float(evaluate(row)) for row in rows])
        for evaluate, rows in (
            (jax.jit(partial(potential, scaled.density)), flat),
            (jax.jit(partial(potential, fixed.density)), same),
        )
    )
    assert np.ptp(one + stretch - other) < 1e-8


@pytest.mark.parametrize("scale_by_sd", [True, False])
def test_the_volume_is_that_of_coefficients_variances_and_latent_strengths(confounded, scale_by_sd):
    """By the determinant of all derivatives."""
    model = make_model(*confounded, scale_by_sd=scale_by_sd)
    flat = np.random.default_rng(7).normal(size=(3, len(model.coordinates)))

    def parameters(psi):
        point = model.density.point(psi)
        variances = jnp.exp(2 * point.log_sd)
        return jnp.concatenate([point.coefficients[model.spec.used], variances, point.strengths])

    slopes, volume = jax.jit(jax.jacfwd(parameters)), jax.jit(model.density.log_volume)
    exact = [np.linalg.slogdet(slopes(row))[1] for row in flat]
    found = [float(volume(row)) for row in flat]
    assert model.spec.arcs and np.ptp(np.array(exact) - found) < 1e-9


def test_coordinates_of_sds_are_conditional_on_earlier_noise(confounded):
    """The factor of the covariance of the noise has these sds on its diagonal."""
    model = make_model(*confounded)
    [psi] = np.random.default_rng(8).normal(size=(1, len(model.coordinates)))
    conditional, _ = model.density.log_sds(jnp.asarray(psi))
    covariance = model.draws(psi[None]).noises[0]
    root = np.linalg.cholesky(covariance)[model.spec.equations, model.spec.equations]
    np.testing.assert_allclose(np.exp(conditional), root, rtol=1e-10)


def test_scaled_prior_of_the_density_is_the_conjugate_one():
    """Prior times likelihood of one equation is the normal-inverse-gamma posterior."""
    problem, truth = random_problem(1, size=4)
    data = simulate(problem, truth, 30, 1)
    model = make_model(problem, data, prior=cb.priors.ScaledPrior(0.5))
    flat = np.random.default_rng(6).normal(size=(6, len(model.coordinates)))
    prior, likelihood = log_priors(model, flat), log_likelihoods(model, flat)
    exact = model.equations.posterior
    matrices, noises = model.draws(flat)
    expected = np.zeros(len(flat))
    for node in model.spec.equations:
        used = model.equations.causes[node] >= 0
        gaps = matrices[:, model.equations.causes[node][used], node] - exact.mean[node][used]
        precision = np.linalg.inv(exact.root[node] @ exact.root[node].T + np.diag(~used * 1.0))[
            np.ix_(used, used)
        ]
        s2 = noises[:, node, node]
        expected += -(exact.shape[node] + 1 + used.sum() / 2) * np.log(s2) - exact.rate[node] / s2
        expected += -0.5 * np.einsum("ni,ij,nj->n", gaps, precision, gaps) / s2
    assert np.ptp(prior + likelihood - expected) < 1e-8


def test_prior_draws_have_the_moments_of_the_fixed_prior():
    graph = cb.CausalGraph.parse("A -> B; A <-> B")
    prior = cb.priors.FixedPrior(
        slope_sd=0.5, noise_observations=12.0, noise_sd=2.0, centres={"A": 3.0}, intercept_sd=0.2
    )
    matrices, noises = draw_models(graph, prior, {}, True, 4_000, jax.random.key(0))
    slope, s2 = matrices[:, 0, 1], noises[:, 1, 1]
    expected = 12 * 4 / (12 - 2)  # mean of IG(6, 24)
    assert s2.mean() == pytest.approx(expected, abs=5 * s2.std() / np.sqrt(4_000))
    assert slope.std() == pytest.approx(0.5 * np.sqrt(expected), rel=0.08)
    assert (matrices[:, 2, 1] + 3 * slope).std() == pytest.approx(0.2 * np.sqrt(expected), rel=0.08)
    correlation = noises[:, 0, 1] / np.sqrt(noises[:, 0, 0] * s2)
    assert (
        np.abs(np.quantile(correlation / np.sqrt(1 - correlation**2), [0.16, 0.84]) - [-1, 1]).max()
        < 0.08
    )


def test_known_variances_and_coefficients_are_not_drawn():
    graph = cb.CausalGraph.parse("A -> B")
    prior = cb.priors.FixedPrior(noise_observations=np.inf, noise_sd=0.5)
    matrices, noises = draw_models(graph, prior, {("A", "B"): 0.8}, False, 20, jax.random.key(0))
    assert (
        (matrices[:, 0, 1] == 0.8).all()
        and np.allclose(noises, 0.25 * np.eye(2))
        and not matrices[:, 2].any()
    )


def test_simulated_observations_have_the_moments_of_the_parameters_under_interventions():
    """Simulated by NumPyro with surgery.

    Means and covariance of the mutilated system by dense algebra.
    """
    graph = cb.CausalGraph.parse("A -> B -> C; A <-> C")
    weights = np.zeros((3, 3))
    weights[0, 1], weights[1, 2] = 0.8, -1.3
    noise = np.array([[1.0, 0.0, 0.6], [0.0, 0.5, 0.0], [0.6, 0.0, 2.0]])
    sem = LinearSEM(jnp.asarray(weights), jnp.array([1.0, 0.0, -2.0]), jnp.asarray(noise))
    mask = np.tile([False, True, False], (4_000, 1))
    queries = cb.problem.Queries(mask, np.where(mask, 3.0, 0.0))
    with jax.numpy_rank_promotion("allow"):  # inside NumPyro
        values = np.asarray(
            simulate_program(partial(generate, graph, sem), graph.nodes, queries, jax.random.key(0))
        )
    assert (values[:, 1] == 3).all()  # the value set is what the trace holds
    expected = np.array([1.0, -2.0 - 1.3 * 3])
    assert np.abs(values[:, [0, 2]].mean(axis=0) - expected).max() < 5 * np.sqrt(2 / 4_000)
    assert np.abs(np.cov(values[:, [0, 2]].T) - noise[np.ix_([0, 2], [0, 2])]).max() < 0.25
