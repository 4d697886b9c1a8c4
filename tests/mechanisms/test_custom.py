"""User-defined mechanisms: density, posterior and effects.

Internals: the density is compared point by point with the NumPyro program.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from helpers.custom_cases import (
    CHAIN,
    CONFOUNDED,
    PROBLEM,
    decay,
    decay_whole,
    observe,
    saturate,
    saturate_whole,
    simulate,
    whole,
)
from numpyro.infer.util import potential_energy
from scipy import stats
from scipy.integrate import quad

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import no_outcomes
from causal_bo_ppl.inference.potentials import potential
from causal_bo_ppl.mechanisms import custom_sites as blocks
from causal_bo_ppl.mechanisms import read_mechanisms
from causal_bo_ppl.mechanisms.base import Task
from causal_bo_ppl.mechanisms.custom_sites import gamma_quantile, quantiles
from causal_bo_ppl.mechanisms.scm_responses import even_points

pytestmark = pytest.mark.heavy
CUSTOM = {"Z": saturate, "Y": decay}
SDS = {"Z": 0.2, "Y": 0.3}
INTERVENTIONS = [{"X": 1.0}, {"X": 6.0}, {"Z": 2.0}, {"Z": 0.3}]


@pytest.fixture(scope="module")
def data():
    """Return 100 observations, and 16 in which X or Z was set."""
    return observe(100, 0).join(simulate(PROBLEM.sobol(8), 1))


@pytest.fixture(scope="module")
def post(data):
    return cb.fit(PROBLEM, data, mechanisms=CUSTOM, method="laplace")


def bind(data, mechanisms=CUSTOM, problem=PROBLEM):
    task = Task(problem, data, no_outcomes(len(problem.graph.nodes)))
    return read_mechanisms(mechanisms).bind(task)


def true_theta(post):
    """Return theta of the system that generated the data."""
    model = post.distribution.model
    floors = {block.variable: model.noise_of(block).floor for block in model.blocks}
    sds = [np.sqrt(SDS[name] ** 2 - floors[name] ** 2) for name in ("Z", "Y")]
    return np.array([np.log(3.0), np.log(1.5), np.log(sds[0]), 1.0, 2.0, np.log(sds[1])])


def test_theta_are_the_unconstrained_parameters(post):
    names = ("log_most[Z]", "log_half[Z]", "log_sd[Z]", "a[Y]", "b[Y]", "log_sd[Y]")
    assert post.names == names and post.kind == "custom"
    parts = post.distribution.response.to_frame()["part"]
    assert parts.iloc[[0, 2]].tolist() == ["log of the parameter most", "log sd of the noise"]


def test_posterior_covers_the_saturation_curve(post):
    assert (np.abs(post.mean - true_theta(post)) < 4.5 * post.sd).all() and post.verdict == "passed"
    assert post.sd[0] < 0.1 and post.distribution.is_gaussian


def test_density_is_that_of_numpyro(data):
    """The joint density, with volumes of the transformations and set values masked."""
    model = bind(data)
    noise = {block.variable: model.noise_of(block) for block in model.blocks}
    columns = dict(zip(data.nodes, data.values.T, strict=True))
    free = dict(zip(data.nodes, ~data.intervened.T, strict=True))

    def program():
        for name, function, cause in (("Z", saturate, "X"), ("Y", decay, "Z")):
            centre, width, floor = noise[name]
            with numpyro.handlers.scope(prefix=name):
                mean = function(columns[cause])
                learned = numpyro.sample("sd", dist.LogNormal(centre, width))
            with numpyro.handlers.mask(mask=free[name]):
                sd = jnp.sqrt(learned**2 + floor**2)
                numpyro.sample(name, dist.Normal(mean, sd), obs=columns[name])

    psi = np.random.default_rng(0).normal(size=(4, 6))
    theta = model.draws(psi)
    sites = ["Z/most", "Z/half", "Z/sd", "Y/a", "Y/b", "Y/sd"]
    of_program = jax.jit(partial(potential_energy, program, (), {}))
    theirs = [of_program(dict(zip(sites, each, strict=True))) for each in theta]
    ours = list(map(jax.jit(partial(potential, model.density)), psi))
    np.testing.assert_allclose(np.diff(ours), np.diff(theirs), rtol=1e-9)
    parts = model.log_densities(theta, data.values, ~data.intervened)
    likelihood = list(map(jax.jit(model.density.log_likelihood), psi))
    np.testing.assert_allclose(parts.sum(axis=(1, 2)), likelihood, rtol=1e-9)


def test_effects_agree_with_simulated_outcomes(post):
    queries = PROBLEM.queries(INTERVENTIONS)
    outcomes = simulate(queries.repeat(100_000), 7).outcomes.reshape(4, -1)
    errors = outcomes.std(axis=1) / np.sqrt(outcomes.shape[1])
    r = cb.response(post)
    effects = r(true_theta(post), queries)
    assert (np.abs(effects - outcomes.mean(axis=1)) < 4.5 * errors).all()
    assert (r.standard_errors(true_theta(post), queries) < 1e-3).all()
    variances = post.distribution.model.outcome_variances(true_theta(post)[None], queries)
    np.testing.assert_allclose(variances, outcomes.var(axis=1), rtol=0.03)
    table = cb.effects(post, INTERVENTIONS, key=0)
    assert (np.abs(table["mean"] - effects) < 4.5 * table["sd"]).all()


def test_derivatives_are_differences(post):
    r, queries, step = cb.response(post), PROBLEM.queries(INTERVENTIONS), 1e-6
    moves = np.vstack([post.mean + step * np.eye(6), post.mean - step * np.eye(6)])
    ahead, behind = np.split(r(moves, queries), 2)
    np.testing.assert_allclose(
        r.jacobian(post.mean, queries), (ahead - behind).T / (2 * step), atol=1e-7
    )


def test_observations_in_which_a_variable_was_set_do_not_inform_its_mechanism(post, data):
    queries = PROBLEM.queries([{"Z": z} for z in np.linspace(0.0, 4.0, 12)])
    more = post.update(simulate(queries, 5))
    np.testing.assert_allclose(more.mean[:2], post.mean[:2], atol=1e-4)  # the sd's prior moves
    assert (more.sd[3:5] < post.sd[3:5]).all()
    both = cb.fit(PROBLEM, data.join(simulate(queries, 5)), mechanisms=CUSTOM, method="laplace")
    np.testing.assert_allclose(more.mean, both.mean, atol=1e-6)
    assert more.fingerprint == both.fingerprint != post.fingerprint


def test_new_observations_of_the_same_padded_shape_compile_nothing(post):
    before = blocks._loss_terms._cache_size()
    r, queries = cb.response(post), PROBLEM.queries(INTERVENTIONS)
    r.jacobian(post.mean, queries)
    again = post.update(observe(3, 9))
    cb.response(again).jacobian(again.mean, queries)
    assert blocks._loss_terms._cache_size() == before
    from causal_bo_ppl import responses

    count = responses._linearize._cache_size()
    last = again.update(observe(1, 10))
    cb.response(last).jacobian(last.mean, queries)
    assert responses._linearize._cache_size() == count


@pytest.mark.slow
def test_a_program_is_the_same_model_as_its_functions(data):
    functions = {"Z": saturate_whole, "Y": decay_whole}
    by_variable = cb.fit(PROBLEM, data, mechanisms=functions, method="laplace")
    program = cb.fit(PROBLEM, data, mechanisms=whole, method="laplace")
    assert program.names == ("centre", "log_most", "log_half", "log_first", "a", "b", "log_second")
    np.testing.assert_allclose(program.mean[1:], by_variable.mean, atol=1e-6)
    np.testing.assert_allclose(program.sd[1:], by_variable.sd, rtol=1e-5)
    assert (program.mean[0], program.sd[0]) == pytest.approx((0.0, 1.0))  # no effect depends on X
    queries = PROBLEM.queries(INTERVENTIONS)
    one, other = (cb.response(each)(each.mean, queries) for each in (program, by_variable))
    np.testing.assert_allclose(one, other, atol=1e-6)


def linear(causes):
    """A linear mechanism with the prior of cb.priors.FixedPrior()."""
    variance = numpyro.sample("variance", dist.InverseGamma(2.0, 2.0))
    sd = jnp.sqrt(variance)
    level = numpyro.sample("level", dist.Normal(0.0, sd))
    total = level
    for name, values in causes.items():
        total = total + numpyro.sample(f"slope_{name}", dist.Normal(0.0, sd)) * values
    return dist.Normal(total, sd)


@pytest.mark.slow
def test_a_linear_function_is_the_linear_family_under_the_same_prior(data):
    custom = cb.fit(PROBLEM, data, mechanisms={"Z": linear, "Y": linear}, method="laplace")
    ours = cb.fit(PROBLEM, data, method="laplace", prior=cb.priors.FixedPrior())
    exact = cb.fit(PROBLEM, data, method="conjugate", prior=cb.priors.FixedPrior())
    pairs = {
        "slope_X[Z]": "b[X->Z]",
        "slope_Z[Y]": "b[Z->Y]",
        "level[Z]": "a[Z]",
        "level[Y]": "a[Y]",
    }
    for name, same in pairs.items():
        index = custom.names.index(name)
        for other, sd_error in ((ours, 1e-4), (exact, 0.05)):
            position = other.names.index(same)
            assert custom.mean[index] == pytest.approx(other.mean[position], abs=1e-6), name
            assert custom.sd[index] == pytest.approx(other.sd[position], rel=sd_error), name


def test_the_density_of_an_outcome_is_a_mixture_over_the_noise(post):
    """Compare p(y | do(x)) with quadrature over the noise of Z."""
    theta, queries = true_theta(post), PROBLEM.queries([{"X": 0.7}, {"X": 5.0}, {"Z": 1.0}])
    values = np.array([1.9, 0.8, 2.0])
    found = post.distribution.response.program.log_outcomes(theta, queries, jnp.asarray(values))
    for x, y, ours in zip((0.7, 5.0), values, np.asarray(found), strict=False):
        mean = 3 * x / (1.5 + x)

        def joint(z, y=y, mean=mean):
            return stats.norm.pdf(y, 1 + 2 * np.exp(-z), 0.3) * stats.norm.pdf(z, mean, 0.2)

        assert ours == pytest.approx(np.log(quad(joint, mean - 2, mean + 2)[0]), abs=2e-3)
    assert found[2] == pytest.approx(stats.norm.logpdf(2.0, 1 + 2 * np.exp(-1.0), 0.3))


@pytest.mark.slow
def test_outcomes_alone_inform_the_posterior_as_whole_observations(data):
    queries = PROBLEM.queries([{"Z": 0.1}] * 12)
    more, options = simulate(queries, 3), {"mechanisms": CUSTOM, "method": "laplace"}
    outcomes = cb.fit(PROBLEM, data, outcomes=(queries, more.outcomes), **options)
    joined = cb.fit(PROBLEM, data.join(more), **options)
    np.testing.assert_allclose(outcomes.mean, joined.mean, atol=2e-3)
    np.testing.assert_allclose(outcomes.sd, joined.sd, rtol=1e-2)


def spread(W):
    """Return a distribution whose noise is neither Gaussian nor additive."""
    log_mean = numpyro.sample("m", dist.Normal(0.0, 1.0)) + 0.3 * W
    return dist.LogNormal(log_mean, numpyro.sample("s", dist.HalfNormal(1.0)))


def waiting():
    return dist.Gamma(
        numpyro.sample("shape", dist.LogNormal(0.0, 1.0)),
        numpyro.sample("rate", dist.LogNormal(0.0, 1.0)),
    )


def counted(W, Z):
    level = numpyro.sample("a", dist.Normal(0.0, 1.0))
    return dist.Poisson(jnp.exp(level - 0.4 * Z) + numpyro.sample("c", dist.HalfNormal(1.0)) * W**2)


@pytest.fixture(scope="module")
def skewed():
    """Return a posterior of a gamma root, a log-normal cause and a counted target."""
    rng, n = np.random.default_rng(2), 300
    w = rng.gamma(2.0, 1 / 1.5, size=n)
    z = np.exp(0.1 + 0.3 * w + 0.4 * rng.normal(size=n))
    y = rng.poisson(np.exp(1.0 - 0.4 * z) + 0.5 * w**2)
    data = cb.Data.from_frame(CONFOUNDED, pd.DataFrame({"W": w, "Z": z, "Y": y.astype(float)}))
    mechanisms = {"W": waiting, "Z": spread, "Y": counted}
    return cb.fit(CONFOUNDED, data, mechanisms=mechanisms, method="laplace")


@pytest.mark.slow
def test_noise_may_have_any_distribution(skewed):
    """E[Y | do(z)] = exp(a - 0.4 z) + c E[W^2], in closed form for a gamma root."""
    shape, rate, a, c = 2.0, 1.5, 1.0, 0.5
    truth = np.array([np.log(shape), np.log(rate), a, np.log(c)])
    assert skewed.names == ("log_shape[W]", "log_rate[W]", "a[Y]", "log_c[Y]")
    assert (np.abs(skewed.mean - truth) < 4.5 * skewed.sd).all()
    z = np.array([0.5, 3.0])
    queries = CONFOUNDED.queries([{"Z": float(each)} for each in z])
    r, square = cb.response(skewed), shape * (shape + 1) / rate**2
    exact = np.exp(a - 0.4 * z) + c * square
    np.testing.assert_allclose(r(truth, queries), exact, rtol=5e-3)
    errors = r.standard_errors(truth, queries)
    assert (np.abs(r(truth, queries) - exact) < 4.5 * errors).all() and (errors < 0.02).all()
    by_shape = c * (2 * shape + 1) * shape / rate**2  # d/d log shape
    np.testing.assert_allclose(r.jacobian(truth, queries)[:, 0], by_shape, rtol=1e-2)
    draws = np.repeat(truth[None], 20_000, axis=0)
    samples = skewed.distribution.model.replicate(draws, queries, jax.random.key(0))
    counts = samples[:, :, -1]
    errors = counts.std(axis=0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(axis=0) - r(truth, queries)) < 4.5 * errors).all()
    assert (samples[:, :, 1] == z).all() and (counts == np.round(counts)).all()
    table = cb.diagnostics.check_predictive(skewed, draws=100).table
    assert table["verdict"].isin(["passed", "failed"]).all()


@pytest.mark.slow
def test_a_target_without_a_known_mean_is_averaged_over_its_quantiles(data):
    def bounded(Z):
        level = numpyro.sample("a", dist.Normal(0.0, 1.0))
        inner = dist.Normal(level - Z, 0.5)
        stretch = dist.transforms.AffineTransform(0.0, 5.0)
        return dist.TransformedDistribution(inner, [dist.transforms.SigmoidTransform(), stretch])

    clipped = cb.Data(CHAIN.nodes, "Y", np.clip(data.values, 0.05, 4.95), data.intervened)
    model = bind(clipped, {"Z": saturate, "Y": bounded})
    theta = np.append(np.log([3.0, 1.5, 0.2]), 0.7)
    program, query = model.response.program, PROBLEM.queries([{"Z": 1.2}])
    ours = float(program.effects(jnp.asarray(theta), query)[0])

    def integrand(e):
        return 5 / (1 + np.exp(1.2 - 0.7 - 0.5 * e)) * stats.norm.pdf(e)

    assert ours == pytest.approx(quad(integrand, -8, 8)[0], abs=2e-3)


def test_quantiles_of_gamma_variables_and_their_derivatives_are_exact():
    ranks = np.tile((np.arange(16) + 0.5) / 16, 4)
    shapes = np.repeat([0.05, 0.7, 3.0, 250.0], 16)
    quantile = partial(gamma_quantile, uniform=ranks)
    found, slope = jax.jit(lambda shape: jax.jvp(quantile, (shape,), (shape,)))(shapes)
    np.testing.assert_allclose(found, stats.gamma.ppf(ranks, shapes), rtol=1e-8)
    ends = [stats.gamma.ppf(ranks, shapes * (1 + sign * 1e-5)) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("distribution", "theirs"),
    [
        (dist.InverseGamma(4.0, 2.0), stats.invgamma(4.0, scale=2.0)),
        (dist.Beta(2.0, 3.5), stats.beta(2.0, 3.5)),
        (dist.StudentT(7.0, 1.0, 2.0), stats.t(7.0, 1.0, 2.0)),
        (dist.Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2.0)),
        (dist.Exponential(2.0), stats.expon(scale=0.5)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_values_at_points_have_the_distribution(distribution, theirs):
    points = even_points(4_096, 1)
    columns = [np.asarray(part)[:, 0] for part in points[:3]]
    values = np.asarray(quantiles(distribution, *columns, jax.random.key(0)))
    distance = stats.kstest(values, theirs.cdf).statistic
    assert distance < (2.0 / np.sqrt(4_096) if isinstance(distribution, dist.Weibull) else 0.01)


def test_kernels_diagnostics_and_trees_take_custom_posteriors(post):
    queries = PROBLEM.sobol(3)
    linear_gram = cb.jacobian_gram(post, queries).gram
    drawn = cb.monte_carlo_gram(post, queries, key=0).gram
    scale = np.sqrt(np.outer(np.diagonal(drawn), np.diagonal(drawn)))
    assert (np.abs(linear_gram - drawn) < 0.3 * scale).all()
    assert cb.diagnostics.check_posterior(post).passed
    assert cb.diagnostics.check_loo(post).table["elpd"].notna().all()
    assert cb.diagnostics.check_predictive(post, draws=100).passed
    found = cb.diagnostics.check_extrapolation(
        post, PROBLEM.queries([{"X": 8.0}, {"X": 1.5}])
    ).table
    assert found["verdict"].tolist() == ["failed", "passed"]
    tree = post.to_datatree(draws=40)
    assert tuple(tree["posterior"]["theta"].coords["coordinate"].values) == post.names
    assert "saturate" in tree.attrs["functions"] and tree.attrs["mechanisms"] == "custom"
    before = post.distribution.draw_prior(400, jax.random.key(0))
    log_most = before.theta[:, 0]
    assert abs(log_most.mean()) < 4.5 / 20 and log_most.std() == pytest.approx(1.0, rel=0.2)


@pytest.mark.slow
def test_nuts_agrees_with_laplace_and_mixes_with_processes(data, post):
    sampled = cb.fit(PROBLEM, data, mechanisms=CUSTOM, method=cb.NUTS(progress=False), key=0)
    assert sampled.verdict == "passed"
    assert (np.abs(sampled.mean - post.mean) < 0.3 * post.sd).all()
    np.testing.assert_allclose(sampled.sd, post.sd, rtol=0.2)
    mixed = {"Z": saturate, "Y": cb.GP(functions=8)}
    joint = cb.fit(PROBLEM, data, mechanisms=mixed, method="laplace")
    np.testing.assert_allclose(joint.mean[:3], post.mean[:3], atol=1e-6)
    alone = cb.fit(
        PROBLEM, data, mechanisms={"Z": "linear", "Y": cb.GP(functions=8)}, method="laplace"
    )
    np.testing.assert_allclose(joint.mean[3:], alone.mean[3:], atol=1e-6)
    chains = cb.fit(PROBLEM, data, mechanisms=mixed, method=cb.NUTS(progress=False), key=0)
    assert chains.verdict == "passed"
    queries = PROBLEM.queries(INTERVENTIONS)
    for one, other in ((sampled, post), (chains, joint)):
        tables = [cb.effects(each, queries, key=0) for each in (one, other)]
        gap = np.abs(tables[0]["mean"] - tables[1]["mean"]) / tables[0]["sd"]
        assert (gap < 0.4).all()


@pytest.mark.slow
@pytest.mark.parametrize("mechanisms", [CUSTOM, whole, {"Z": saturate, "Y": cb.GP(functions=8)}])
def test_user_defined_mechanisms_keep_the_contract(data, mechanisms):
    assert cb.testing.check_mechanisms(mechanisms, PROBLEM, data).require().passed


@pytest.mark.slow
def test_intervals_cover_the_true_effects():
    """60 data sets of size 60, 90 % intervals of four effects by the delta method."""
    queries = PROBLEM.queries(INTERVENTIONS)
    exact = simulate(queries.repeat(200_000), 11).outcomes.reshape(4, -1).mean(axis=1)
    inside = []
    for seed in range(60):
        fitted = cb.fit(PROBLEM, observe(60, 100 + seed), mechanisms=CUSTOM, method="laplace")
        values, jacobian = cb.response(fitted).linearize(fitted.mean, queries)
        sd = np.linalg.norm(jacobian @ fitted.factor, axis=1)
        inside.append(np.abs(values - exact) < 1.645 * sd)
    shares = np.mean(inside, axis=0)
    assert (shares > 0.76).all() and 0.82 < shares.mean() < 0.97, shares
