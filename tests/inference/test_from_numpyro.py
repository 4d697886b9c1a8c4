"""Draws of an analyst's own sampler as a posterior: NumPyro's own machinery on our programs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from helpers import custom_cases as custom
from helpers.fitted_cases import random_problem, simulate
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoLaplaceApproximation

import causal_bo_ppl as cb

FIELDS = ("energy", "num_steps", "accept_prob", "potential_energy", "diverging")
SETS = [{"X": 1.0}, {"Z": -1.0}]
from_numpyro = cb.Posterior.from_numpyro


@pytest.fixture(autouse=True)
def numpyro_may_broadcast():
    with jax.numpy_rank_promotion("allow"):
        yield


def run(program, draws=500, chains=2, key=0):
    options = {"num_warmup": draws, "num_samples": draws, "num_chains": chains}
    options |= {"chain_method": "sequential", "progress_bar": False}
    mcmc = MCMC(NUTS(program), **options)
    mcmc.run(jax.random.key(key), extra_fields=FIELDS)
    return mcmc


@pytest.fixture(scope="module")
def data(chain):
    return chain.observe(60, 0).join(chain.experiment(chain.problem.sobol(8), 1))


@pytest.fixture(scope="module")
def sampled(chain, data):
    with jax.numpy_rank_promotion("allow"):
        return run(cb.numpyro_model(chain.problem, data), 1_000)


@pytest.fixture(scope="module")
def post(chain, data, sampled):
    return from_numpyro(chain.problem, data, sampled)


def sites(program, shape, seed=0):
    """Parameters of every program that are possible and spread little."""
    draws, found = np.random.default_rng(seed), {}
    free = ("a[", "b[", "f[", "t[", "level[", "low[", "high[", "centre")
    for name, inner in program.parameters.items():
        value = 0.1 * draws.normal(size=(*shape, *inner))
        found[name] = value if name.startswith(free) else np.exp(value)
    return found


def require_same(one, other, errors=5.0):
    """Means and sds of two sampled posteriors agree within their Monte-Carlo errors."""
    tables = [each.distribution.summary for each in (one, other)]
    for what in ("mean", "sd"):
        gap, error = (tables[0][what] - tables[1][what]).drop("log posterior", errors="ignore"), 0.0
        error = np.hypot(*(table[f"mcse_{what}"].reindex(gap.index) for table in tables))
        assert (gap.abs() < errors * error).all(), (what, gap / error)


def test_nuts_by_numpyro_agrees_with_the_posterior_in_closed_form(chain, data, post):
    exact = cb.fit(chain.problem, data)
    table = post.distribution.summary.drop("log posterior")
    assert (np.abs(table["mean"] - exact.mean) < 5 * table["mcse_mean"]).all()
    assert (np.abs(table["sd"] - exact.sd) < 5 * table["mcse_sd"]).all()


def test_its_posterior_goes_on_to_verdict_effects_kernels_checks_and_files(
    chain, data, post, tmp_path
):
    assert post.verdict == "passed" and post.method == "numpyro" and post.n_observations == 76
    assert list(cb.diagnostics.check_posterior(post).table.index[:3]) == [
        "r_hat",
        "ess_bulk",
        "ess_tail",
    ]
    exact = cb.fit(chain.problem, data)
    ours, theirs = (cb.effects(each, SETS, key=0) for each in (post, exact))
    np.testing.assert_allclose(ours["mean"], theirs["mean"], atol=0.1 * theirs["sd"].min())
    gram = cb.jacobian_gram(post, SETS).gram
    np.testing.assert_allclose(gram, cb.jacobian_gram(exact, SETS).gram, rtol=0.2)
    assert cb.monte_carlo_gram(post, SETS, draws=400, key=0).gram.shape == (2, 2)
    assert cb.diagnostics.check_loo(post, key=0).passed
    suggested = cb.surrogates.couple(post).condition(chain.problem.queries(SETS), [0.1, 1.0])
    assert np.isfinite(suggested.predict(chain.problem.queries(SETS))[0]).all()
    tree = post.to_datatree(observations=True)
    assert {"log_likelihood", "log_prior", "sample_stats", "observed_data"} <= set(tree.children)
    assert int(tree["sample_stats"]["diverging"].sum()) == 0
    again = cb.Posterior.load(post.save(tmp_path / "post.nc"), chain.problem)
    assert np.array_equal(again.mean, post.mean) and again.fingerprint == post.fingerprint
    assert again.verdict == "passed" and repr(again.numpyro_model) == repr(post.numpyro_model)
    with pytest.raises(cb.errors.PosteriorError, match="cannot be updated"):
        post.update(chain.observe(5, 2))
    with pytest.raises(cb.errors.StoreError, match="cannot be made again"):
        cb.Posterior.load(post.save(tmp_path / "few.nc", draws=40), chain.problem)


def test_draws_of_a_changed_program_have_no_known_density(chain, data, sampled, post):
    """Draws under the default prior stand for those of an analyst who changed a stronger one."""
    assert not post.distribution.changed and post.prior.canonical() != "unknown"
    stronger = {"prior": cb.priors.ScaledPrior(5.0)}
    other = from_numpyro(chain.problem, data, sampled, **stronger)
    assert other.distribution.changed and other.prior.canonical() == "unknown"
    assert np.array_equal(other.mean, post.mean) or np.allclose(other.mean, post.mean, rtol=1e-9)
    assert "log_prior" not in other.to_datatree().children
    table = cb.diagnostics.gaussian_error(other, key=0).table
    assert "not known" in " ".join(map(str, table.to_numpy().ravel()))
    by_site = sampled.get_samples(group_by_chain=True)
    assert not from_numpyro(chain.problem, data, by_site).distribution.changed
    assert from_numpyro(chain.problem, data, by_site, changed=True).distribution.changed


def linear_case(n=40):
    problem, truth = random_problem(3, size=5, known=2)
    return problem, simulate(problem, truth, n, 0, interventional=True), "linear"


def latent_case(n=40):
    problem, truth = random_problem(3, size=5, confounded=True, identifiable_only=True)
    return problem, simulate(problem, truth, n, 0, interventional=True), "linear"


def custom_case():
    data = custom.observe(40, 0).join(custom.simulate(custom.PROBLEM.sobol(8), 1))
    return custom.PROBLEM, data, {"Z": custom.saturate, "Y": custom.decay}


@pytest.mark.parametrize("case", [linear_case, latent_case, custom_case])
def test_theta_is_read_off_the_sites(case):
    problem, data, mechanisms = case()
    program = cb.numpyro_model(problem, data, mechanisms)
    draws = sites(program, (2, 30))
    post = from_numpyro(problem, data, draws, mechanisms=mechanisms)
    theta = dict(zip(post.names, np.moveaxis(post.distribution.chains, -1, 0), strict=True))
    for name, values in theta.items():
        site = name.removeprefix("log_")
        expected = np.log(draws[site]) if name.startswith("log_") else draws[site]
        np.testing.assert_allclose(values, expected, atol=1e-9)
    assert post.verdict in ("passed", "failed") and np.isfinite(post.mean).all()
    if program.arcs.members:  # strengths and sds, by the covariance of the noise
        models, node = post.distribution.models, program.arcs.members[0]
        index = problem.graph.ancestral(problem.target).index(node)
        sd = np.sqrt(models.noises[:, index, index])
        np.testing.assert_allclose(sd, np.ravel(draws[f"sd[{node}]"]), rtol=1e-9)


@pytest.mark.slow
def test_coefficients_of_gaussian_processes_are_read_off_the_sites(joined):
    problem, data = joined
    chosen = {"C": cb.GP(functions=6), "Y": cb.GP(groups=[("A", "B")], functions=4)}
    program = cb.numpyro_model(problem, data, chosen)
    draws = sites(program, (2, 10))
    post = from_numpyro(problem, data, draws, mechanisms=chosen)
    theta = dict(zip(post.names, np.moveaxis(post.distribution.chains, -1, 0), strict=True))
    for name in ("level[Y]", "b[A->C]", "low[A->C]"):
        np.testing.assert_allclose(theta[name], draws[name], atol=1e-9)
    np.testing.assert_allclose(theta["log_sd[Y]"], np.log(draws["sd[Y]"]), atol=1e-9)
    ratio = theta["f[A->C,1]"] / draws["f[A->C]"][..., 0]
    assert np.isfinite(ratio).all() and (ratio > 0).all()  # sds of the first function
    assert "unknown" not in post.prior.canonical() and post.numpyro_model.nodes == program.nodes


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: {k: v for k, v in d.items() if k != "sd[Y]"}, r"lack the sites sd\[Y\]; the"),
        (lambda d: d | {"b[Z->Y]": d["b[Z->Y]"][:, :3]}, "give each site as many draws"),
        (lambda d: d | {"b[Z->Y]": d["b[Z->Y]"][..., None]}, r"need the shape \(n\) or \(chains"),
        (lambda d: d | {"a[Y]": np.full_like(d["a[Y]"], np.nan)}, r"'a\[Y\]' are not all finite"),
        (lambda d: d | {"sd[Y]": -d["sd[Y]"]}, r"draws of sd\[Y\] are not possible"),
        (lambda d: {k: v[:, :2] for k, v in d.items()}, "at least 4 draws, got 2"),
        (lambda d: [1.0], "numpyro.infer.MCMC object after `run`"),
        (lambda d: d | {"a[Y]": np.full((2, 20), "x")}, r"need the shape"),
    ],
)
def test_draws_that_do_not_fit_the_program_are_refused(chain, data, change, match):
    draws = sites(cb.numpyro_model(chain.problem, data), (2, 20))
    with pytest.raises(cb.errors.ArgumentError, match=match):
        from_numpyro(chain.problem, data, change(draws))


def test_other_sites_are_ignored_and_named(chain, data):
    program = cb.numpyro_model(chain.problem, data)
    draws = sites(program, (2, 20)) | {"X": np.zeros((2, 20, 76))}
    expected = from_numpyro(chain.problem, data, draws)  # a variable: no remark
    with pytest.warns(cb.errors.CausalBOWarning, match="hold extra, which the program does not"):
        found = from_numpyro(chain.problem, data, draws | {"extra": np.zeros((2, 20))})
    assert np.array_equal(found.mean, expected.mean)
    without = {name: value for name, value in draws.items() if name not in ("a[X]", "sd[X]")}
    found = from_numpyro(chain.problem, data, without)  # no effect depends on the mechanism of X
    assert np.array_equal(found.mean, expected.mean)


def test_draws_without_chains_are_not_assessed(chain, data, sampled):
    one = from_numpyro(chain.problem, data, sampled.get_samples())
    assert one.verdict == "not assessed" and one.n_observations == 76
    with pytest.raises(cb.errors.ArgumentError, match="call its method `run` first"):
        idle = MCMC(NUTS(cb.numpyro_model(chain.problem, data)), num_warmup=1, num_samples=1)
        from_numpyro(chain.problem, data, idle)


def laplace_by_numpyro(program, start, steps=600):
    """Mean and covariance of NumPyro's Laplace approximation, in its unconstrained coordinates."""
    guide = AutoLaplaceApproximation(program, init_loc_fn=numpyro.infer.init_to_value(values=start))
    optimizer = numpyro.optim.Adam(lambda step: 0.03 * 0.99**step)
    svi = SVI(program, guide, optimizer, Trace_ELBO())
    found = svi.run(jax.random.key(0), steps, progress_bar=False)
    normal = guide.get_posterior(found.params)
    positions = guide._unpack_latent(jnp.arange(len(normal.mean)))
    return positions, np.asarray(normal.mean), np.asarray(normal.covariance_matrix)


@pytest.mark.slow
def test_laplace_by_numpyro_is_that_of_fit():
    """For user-defined mechanisms theta are the unconstrained coordinates: no volume between."""
    problem, data, mechanisms = custom_case()
    post = cb.fit(problem, data, mechanisms=mechanisms, method="laplace")
    program = cb.numpyro_model(problem, data, mechanisms)
    at_mode = dict(zip(post.names, post.mean, strict=True))
    start = {
        name.removeprefix("log_"): np.exp(value) if name.startswith("log_") else value
        for name, value in at_mode.items()
    }
    start |= {"level[X]": data.column("X").mean(), "sd[X]": data.column("X").std()}
    positions, mean, covariance = laplace_by_numpyro(program, start)
    chosen = [int(positions[name.removeprefix("log_")]) for name in post.names]
    np.testing.assert_allclose(mean[chosen], post.mean, atol=0.02 * post.sd.min())
    np.testing.assert_allclose(
        covariance[np.ix_(chosen, chosen)],
        post.covariance,
        rtol=0.05,
        atol=0.02 * post.sd.min() ** 2,
    )


def laplace_and_start(problem, data, program):
    """Return our Laplace posterior, and values of all sites near its mode."""
    ours = cb.fit(problem, data, method="laplace")
    start = {name: jnp.zeros(shape) for name, shape in program.parameters.items()}
    start |= {
        name: jnp.asarray(data.column(name[3:-1]).std()) for name in start if name[:2] == "sd"
    }
    found = dict(zip(ours.names, ours.mean, strict=True))
    return ours, start | {name: jnp.asarray(found[name]) for name in start if name in found}


@pytest.mark.slow
@pytest.mark.parametrize("case", [linear_case, latent_case])
def test_laplace_by_numpyro_approaches_that_of_fit_for_linear_mechanisms(case):
    """The modes are in other coordinates of sds and strengths, so that they differ by order 1/n."""
    problem, data, _ = case(4_000)
    program = cb.numpyro_model(problem, data)
    post, start = laplace_and_start(problem, data, program)
    positions, mean, covariance = laplace_by_numpyro(program, start, steps=1_500)
    chosen = [int(positions[name]) for name in post.names]
    np.testing.assert_allclose(mean[chosen] / post.sd, post.mean / post.sd, atol=0.05)
    scale = np.outer(post.sd, post.sd)
    np.testing.assert_allclose(
        covariance[np.ix_(chosen, chosen)] / scale, post.covariance / scale, atol=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", [linear_case, latent_case, custom_case])
def test_nuts_by_numpyro_agrees_with_nuts_of_fit(case):
    problem, data, mechanisms = case()
    mcmc = run(cb.numpyro_model(problem, data, mechanisms), 1_000)
    ours = cb.fit(problem, data, mechanisms=mechanisms, method="nuts", key=0)
    require_same(from_numpyro(problem, data, mcmc, mechanisms=mechanisms), ours)


@pytest.mark.slow
def test_nuts_by_numpyro_agrees_with_nuts_of_fit_for_gaussian_processes():
    toy = cb.models.load("toy")
    data, few = toy.observe(60, 0), cb.GP(functions=6)
    mcmc = run(cb.numpyro_model(toy.problem, data, few), 600)
    theirs = from_numpyro(toy.problem, data, mcmc, mechanisms=few)
    ours = cb.fit(toy.problem, data, mechanisms=few, method="nuts", key=0)
    asked = [{"X": 0.5}, {"Z": 1.0}]
    one, other = (
        cb.response(each)(each.distribution.chains.reshape(-1, len(each.names)), asked)
        for each in (theirs, ours)
    )
    spread = np.hypot(one.std(axis=0), other.std(axis=0))
    assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) < 0.2 * spread).all()
    assert (np.abs(np.log(one.std(axis=0) / other.std(axis=0))) < 0.2).all()
