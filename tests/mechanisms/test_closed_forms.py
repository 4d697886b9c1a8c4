"""Closed forms in place of draws and refits: held-out densities, effects, shared programs.

Internals: densities and coordinates of single mechanisms have no public name; neither have the
programs that are compiled.
"""

from contextlib import contextmanager

import jax
import numpy as np
import pytest
from helpers.fitted_cases import random_problem, simulate
from helpers.protein_network import protein_data, protein_problem
from scipy import stats
from scipy.special import logsumexp

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics.loo import hold_out
from causal_bo_ppl.inference.draws import effects_of_draws
from causal_bo_ppl.inference.potentials import potential
from causal_bo_ppl.mechanisms.gp_basis import features
from causal_bo_ppl.mechanisms.gp_regressions import log_sds, loss
from causal_bo_ppl.mechanisms.scm import mixture_points


def without(data, row):
    parts = (np.delete(part, row, axis=0) for part in (data.values, data.intervened))
    return cb.Data(data.nodes, data.target, *parts)


@contextmanager
def programs_compiled():
    """Count the programs that are compiled or read from the cache."""
    counted, is_on = [], [True]

    def note(event, *_, **__):
        if is_on and "backend_compile" in event:
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield counted
    is_on.clear()


@pytest.fixture(scope="module")
def proteins():
    data = protein_data(120, seed=3)
    return cb.fit(protein_problem(data), data, mechanisms="gp", method="laplace")


@pytest.mark.parametrize("weight", [4.0, np.inf], ids=["learned noise", "known noise"])
def test_held_out_densities_of_linear_mechanisms_are_those_of_refits(weight):
    """Every refit predicts the observation that it lacks: Student's t, or a normal."""
    problem, truth = random_problem(2, size=4)
    data = simulate(problem, truth, 14, 0, interventional=True)
    prior = cb.priors.FixedPrior(noise_observations=weight, slope_sd=1.5, intercept_sd=3.0)
    found = hold_out("test", cb.fit(problem, data, prior=prior), 100, 0)
    nodes = list(problem.graph.nodes)
    for name, held in found.items():
        assert held.is_exact
        for row, elpd in zip(held.observations, held.elpd, strict=True):
            equations = cb.fit(problem, without(data, row), prior=prior).distribution.equations
            position, solved = nodes.index(name), equations.posterior
            used = equations.causes[position] >= 0
            x = np.append(data.values[row], 1.0)[equations.causes[position][used]]
            mean, root = solved.mean[position][used], solved.root[position][used]
            spread = 1 + ((x @ root) ** 2).sum()
            gap, shape = data.values[row, position] - x @ mean, solved.shape[position]
            if np.isinf(weight):
                scale = np.sqrt(solved.variance[position] * spread)
                expected = stats.norm.logpdf(gap, scale=scale)
            else:
                scale = np.sqrt(solved.rate[position] / shape * spread)
                expected = stats.t.logpdf(gap, 2 * shape, scale=scale)
            assert elpd == pytest.approx(expected, abs=1e-9)


def test_held_out_densities_of_nonlinear_mechanisms_are_those_of_dense_conditionals(proteins):
    """Given each hyperparameter a Gaussian of all observations is conditioned on all but one."""
    model, found = proteins.distribution.model, hold_out("test", proteins, 100, 0)
    data, density = proteins.data, model.density
    for (equation, setting, known), chart in zip(model.bound, density.charts, strict=True):
        name = model.nodes[equation.position]
        columns = [data.column(model.nodes[cause]) for cause in equation.causes]
        matrix = np.ones((len(data), 1))
        if columns:
            matrix = np.asarray(features(equation.form, setting.frame, columns))
        values, logs = data.column(name) - float(known.prior.level), []
        for eta in mixture_points(chart):
            sds = np.exp(np.asarray(log_sds(equation.form, known.frame, known.prior, eta)))
            covariance = (matrix * sds) @ (matrix * sds).T + np.exp(2 * eta[0]) * np.eye(len(data))
            precision = np.linalg.inv(covariance)
            sd = 1 / np.sqrt(np.diagonal(precision))  # of one given the others
            logs.append(stats.norm.logpdf(sd**2 * (precision @ values), scale=sd))
        expected = np.log(len(logs)) - logsumexp(-np.array(logs), axis=0)
        np.testing.assert_allclose(found[name].elpd, expected, atol=1e-6)


def test_averages_over_hyperparameters_are_those_of_refits_on_a_grid():
    """p(y_i | others) = p(y) / p(others), both integrated over the sd of the noise by a sum."""
    system = cb.models.load("toy")
    data = system.observe(150, 1)
    post = cb.fit(system.problem, data, mechanisms=cb.GP(functions=8))  # other scales are fixed
    model = post.distribution.model
    held = hold_out("test", post, 100, 0)["Z"]
    [index] = [i for i, e in enumerate(model.equations) if model.nodes[e.position] == "Z"]
    (equation, setting, known), mode = model.bound[index], model.modes[index]
    matrix = np.asarray(features(equation.form, setting.frame, [data.column("X")]))
    values, grid = data.column("Z") - float(known.prior.level), np.linspace(-0.8, 0.8, 161)
    sds = np.exp(np.asarray(log_sds(equation.form, known.frame, known.prior, mode.eta)))

    def evidence(rows):
        """Integrate over the noise: the other hyperparameters stay at their mode."""
        total = []
        for moved in mode.eta[0] + grid:
            part = matrix[rows] * sds
            covariance = part @ part.T + np.exp(2 * moved) * np.eye(len(part))
            prior = stats.norm.logpdf(moved, known.prior.centre[0], known.prior.width[0])
            likelihood = stats.multivariate_normal(cov=covariance).logpdf(values[rows])
            total.append(prior + likelihood)
        return logsumexp(total)

    everything = np.arange(len(data))
    whole = evidence(everything)
    for row in range(0, len(data), 15):
        expected = whole - evidence(np.delete(everything, row))
        assert held.elpd[row] == pytest.approx(expected, abs=0.02)


def test_influence_is_the_order_up_to_which_importance_weights_have_moments():
    """One observation far out decides its mechanism; the moments of others' weights all exist."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    y = x + rng.normal(size=30)
    x[7], y[7] = 0.0, 60.0  # it has the sd, not the slope
    graph = cb.CausalGraph.parse("X -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1)})
    data = cb.Data(graph.nodes, "Y", np.stack([x, y], axis=1), np.zeros((30, 2), bool))
    for mechanisms in ("linear", "gp"):
        held = hold_out("test", cb.fit(problem, data, mechanisms=mechanisms), 100, 0)["Y"]
        assert held.pareto_k.argmax() == 7 and held.pareto_k[7] > 0.9
        assert np.delete(held.pareto_k, 7).max() < 0.5


def test_coordinates_mean_the_same_without_coefficients_that_do_not_matter(proteins):
    """Theta and densities against those of whole mechanisms, each a dense regression."""
    model = proteins.distribution.model
    psi = np.random.default_rng(0).normal(size=(5, len(model.coordinates)))
    density = model.density
    theta, log_prior, log_posterior = (
        np.stack([np.asarray(jax.jit(work)(each)) for each in psi])
        for work in (density.theta, density.log_prior, density.log_posterior)
    )
    np.testing.assert_allclose(model.draws(psi) / proteins.sd, theta / proteins.sd, atol=1e-6)
    np.testing.assert_allclose(model.log_priors(psi), log_prior, atol=1e-6)
    np.testing.assert_allclose(model.log_posteriors(psi), log_posterior, rtol=1e-9)
    whole = [float(jax.jit(potential)(density, each)) for each in psi]
    np.testing.assert_allclose(model.log_posteriors(psi), -np.array(whole), rtol=1e-9)


def test_effects_without_negligible_coefficients_are_those_of_all(proteins):
    """To 1e-7 of their posterior sds."""
    response = proteins.distribution.response
    queries, theta = proteins.problem.sobol(1), proteins.draws(40, 0)
    lean = response.without_negligible_terms(proteins.mean, proteins.sd)
    assert not lean.acting.all()
    whole, fewer = (effects_of_draws(each, theta, queries) for each in (response, lean))
    assert (np.abs(whole - fewer).max(axis=0) <= 1e-7 * whole.std(axis=0)).all()


def test_effects_of_many_thetas_are_those_of_each(proteins):
    """What a set does not change is computed once for all; the other way everything, each time."""
    queries, theta = proteins.problem.sobol(1), proteins.draws(3, 1)
    many = effects_of_draws(proteins.distribution.response, theta, queries)
    each = [cb.response(proteins)(one, queries) for one in theta]
    np.testing.assert_allclose(many, each, rtol=1e-10)


def test_a_second_data_set_of_the_same_shape_compiles_nothing(proteins):
    problem, more = proteins.problem, protein_data(120, seed=4)
    others = cb.Problem(
        problem.graph, problem.target, objective="min", domains=dict(problem.domains), sets=3
    )

    def use(data, its_problem):
        post = cb.fit(its_problem, data, mechanisms="gp")
        cb.effects(post, [{"PKA": 20.0}, {"Raf": 20.0}], key=0)
        cb.diagnostics.check_loo(post)

    use(protein_data(120, seed=3), problem)
    with programs_compiled() as compiled:
        use(more, others)
    assert not compiled


def test_mechanisms_of_one_shape_share_the_programs_of_the_search():
    """Three nonlinear mechanisms of one cause compile what one of them does."""
    rng, n = np.random.default_rng(0), 60
    x = rng.normal(size=n)
    z = np.sin(x) + 0.3 * rng.normal(size=n)
    w = np.tanh(z) + 0.3 * rng.normal(size=n)
    y = w**2 + 0.3 * rng.normal(size=n)
    table = {"X": x, "Z": z, "W": w, "Y": y}
    counts = []
    for text, target in (("X -> Z", "Z"), ("X -> Z -> W -> Y", "Y")):
        graph = cb.CausalGraph.parse(text)
        values = np.stack([table[name] for name in graph.nodes], axis=1)
        problem = cb.Problem(graph, target, domains={"X": (-1, 1)}, sets=1)
        data = cb.Data(graph.nodes, target, values, np.zeros(values.shape, bool))
        jax.clear_caches()
        with programs_compiled() as compiled:
            cb.fit(problem, data, mechanisms=cb.GP(functions=13)).moments_by  # noqa: B018
        counts.append(len(compiled))
    assert counts[1] == counts[0] > 0


def test_the_search_for_hyperparameters_does_not_end_at_a_saddle():
    """Beside these data the evidence of Z has a shoulder, where the search once stopped."""
    rng = np.random.default_rng(15)
    x, w = rng.normal(size=120), rng.normal(size=120)
    z = x + 0.8 * (x**2 - 1) + 0.5 * rng.normal(size=120)
    y = 1.5 * z - w + 0.5 * rng.normal(size=120)
    table = {"X": x, "Z": z, "W": w, "Y": y}
    graph = cb.CausalGraph.parse("X -> Z -> Y; W -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2), "W": (-2, 2)}, sets=1)
    values = np.stack([table[name] for name in graph.nodes], axis=1)
    data = cb.Data(graph.nodes, "Y", values, np.zeros(values.shape, bool))
    post = cb.fit(problem, data, mechanisms="gp")
    assert post.verdict == "passed"
    model = post.distribution.model
    names = [model.nodes[equation.position] for equation in model.equations]
    for name, bound, mode in zip(names, model.bound, model.modes, strict=True):
        assert mode.decrement < 1e-8, name
        form, known = bound.equation.form, bound.known
        best = float(loss(form, known, mode.eta))
        for direction in np.eye(len(mode.eta)):
            for step in (-0.05, 0.05):
                assert float(loss(form, known, mode.eta + step * direction)) > best
    assert post.sd[post.names.index("log_sd[Z]")] < 0.2
