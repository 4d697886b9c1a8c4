"""Draws of priors: their distributions in closed form, and what trees and files hold of them.

Internals: strengths of latent causes and hyperparameters are read off models and coordinates.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from helpers.saved_posteriors import refused
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms.linear import arc_strengths, correlation_factor

pytestmark = pytest.mark.heavy
DRAWS = 4_000
LEAST_P = 1e-4  # of one test; all together fail by chance in under 1 of 300 keys


def agrees(values, distribution):
    """Check draws against a distribution by Kolmogorov and Smirnov."""
    assert stats.kstest(np.ravel(values), distribution.cdf).pvalue > LEAST_P


def flat(tree, group, name, **where):
    return tree[group][name].sel(where).values.reshape(DRAWS, -1)


@pytest.fixture(scope="module")
def two_causes():
    """Y has the causes X and Z, whose values are correlated and far from 0."""
    graph = cb.CausalGraph.parse("X -> Z; X -> Y; Z -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (0, 90), "Z": (-90, 90)})
    x, *e = np.random.default_rng(0).normal(size=(3, 80))
    z = 5 * x - 20 + e[0]
    frame = pd.DataFrame({"X": 40 + 3 * x, "Z": z, "Y": 0.1 * z + 7 + 0.2 * e[1]})
    return problem, cb.Data.from_frame(problem, frame)


@pytest.mark.parametrize("method", ["conjugate", "laplace"])
def test_default_prior_is_normal_inverse_gamma_with_the_weight_that_it_states(two_causes, method):
    """Slopes and level are those of 1/100 of an observation; s2 is the guess of 4 observations."""
    problem, data = two_causes
    tree = cb.fit(problem, data, method=method).to_datatree(draws=DRAWS, key=3)
    values = np.stack([data.column(name) for name in "XZ"], axis=1)
    y, m, n = data.column("Y"), 0.01, 80
    s2 = flat(tree, "prior", "sd", node="Y")[:, 0] ** 2
    agrees(s2, stats.invgamma(2, scale=2 * y.var()))
    centred = values - values.mean(axis=0)
    b = flat(tree, "prior", "b", edge=["X->Y", "Z->Y"])
    squares = ((b @ centred.T) ** 2).sum(axis=1) * m / n / s2
    agrees(squares, stats.chi2(2))
    gap = flat(tree, "prior", "a", node="Y")[:, 0] + b @ values.mean(axis=0) - y.mean()
    agrees(gap * np.sqrt(m / s2), stats.norm)
    one = np.linalg.inv(centred.T @ centred)[0, 0] * n / m * y.var()
    agrees(b[:, 0] / np.sqrt(one), stats.t(4))
    note = tree["prior"].attrs["note"]
    assert "variances of the noise of X, Z, Y have no mean" in note and "of 4 observations" in note
    assert tree["prior_predictive"].attrs["note"] == note


def test_a_scaled_prior_that_is_proper_is_drawn_as_it_is(two_causes):
    problem, data = two_causes
    post = cb.fit(problem, data, prior=cb.priors.ScaledPrior(20))
    tree = post.to_datatree(draws=DRAWS, key=1)
    y = data.column("Y")
    s2 = flat(tree, "prior", "sd", node="Y")[:, 0] ** 2
    agrees(s2, stats.invgamma((20 - 3) / 2, scale=20 / 2 * y.var()))
    assert tree["prior"].attrs["note"] == ""
    barely = cb.fit(problem, data, prior=cb.priors.ScaledPrior(4.5)).to_datatree(draws=8)
    assert "noise of Y have" in barely["prior"].attrs["note"]  # Z has one coefficient fewer


def test_prior_of_an_updated_posterior_is_scaled_to_all_observations(chain):
    data, more = chain.observe(20, 0), chain.observe(15, 1)
    updated = cb.fit(chain.problem, data).update(more).to_datatree(draws=40)
    at_once = cb.fit(chain.problem, data.join(more)).to_datatree(draws=40)
    for name in ("theta", "sd"):
        np.testing.assert_allclose(updated["prior"][name], at_once["prior"][name], rtol=1e-9)


def test_known_coefficients_keep_their_values_in_draws_of_the_prior():
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y; X -> Y"),
        "Y",
        domains={"X": (-1, 1)},
        known={("Z", "Y"): 2.5},
    )
    values = np.random.default_rng(0).normal(size=(20, 3))
    post = cb.fit(problem, cb.Data(problem.graph.nodes, "Y", values, np.zeros((20, 3), bool)))
    before = post.distribution.draw_prior(100, jax.random.key(0))
    assert (before.models.matrices[:, 1, 2] == 2.5).all()
    assert set(post.to_datatree(draws=8)["prior"]["edge"].values) == {"X->Z", "X->Y"}


def test_strengths_of_latent_causes_are_read_off_the_covariance():
    arcs = ((0, 2), (1, 2), (0, 3), (2, 3))
    random = np.random.default_rng(1)
    strengths, sds = random.normal(size=(50, 4)), random.uniform(0.1, 9, size=(50, 4))
    factors = np.stack([correlation_factor(4, arcs, jnp.asarray(t)) for t in strengths])
    roots = sds[:, :, None] * factors
    found = arc_strengths(4, arcs, roots @ np.swapaxes(roots, 1, 2))
    np.testing.assert_allclose(found, strengths, rtol=1e-8, atol=1e-9)
    assert arc_strengths(4, (), np.eye(4)[None]).shape == (1, 0)


def test_latent_causes_have_strengths_by_name_a_priori_and_a_posteriori(tmp_path):
    problem = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-9, 9)})
    u, *e = np.random.default_rng(0).normal(size=(4, 300))
    x = u + e[0]
    z = 0.8 * x + e[1]
    data = cb.Data.from_frame(problem, pd.DataFrame({"X": x, "Z": z, "Y": u - z + e[2]}))
    post = cb.fit(problem, data, method="laplace", prior=cb.priors.ScaledPrior(4))
    tree = post.to_datatree(draws=DRAWS)
    assert tree["prior"]["arc"].values.tolist() == ["X<->Y"]
    agrees(flat(tree, "prior", "t"), stats.norm(0, 0.5))
    fixed = cb.fit(problem, data, method="laplace", prior=cb.priors.FixedPrior(latent_sd=2.0))
    agrees(flat(fixed.to_datatree(draws=DRAWS), "prior", "t"), stats.norm(0, 2))
    noises = post.distribution.drawn(DRAWS, jax.random.split(jax.random.key(0), 3)[0]).models.noises
    r = noises[:, 0, 2] / np.sqrt(noises[:, 0, 0] * noises[:, 2, 2])
    np.testing.assert_allclose(flat(tree, "posterior", "t")[:, 0], r / np.sqrt(1 - r**2))
    path = post.save(tmp_path / "post.nc", draws=16, observations="prior_predictive")
    assert np.array_equal(cb.Posterior.load(path, problem).mean, post.mean)
    spoiled = post.to_datatree(draws=16)
    spoiled["prior"] = spoiled["prior"].to_dataset().assign_coords(arc=["X<->Z"])
    refused(spoiled, problem, "has the arc names X<->Z in 'prior'; this posterior has X<->Y")


def test_parameters_by_name_are_those_of_theta(chain):
    post = cb.fit(chain.problem, chain.observe(30, 0))
    tree = post.to_datatree(draws=100)
    for group in ("prior", "posterior"):
        for name, dim in (("b", "edge"), ("a", "node")):
            for label in tree[group][dim].values.tolist():
                theta = tree[group]["theta"].sel(coordinate=f"{name}[{label}]").values
                assert np.array_equal(tree[group][name].sel({dim: label}).values, theta)
    centred = cb.fit(chain.problem, chain.observe(30, 0), prior=cb.priors.FixedPrior())
    assert set(centred.to_datatree(draws=8)["posterior"].data_vars) == {"theta", "b", "a", "sd"}


def test_default_prior_of_moments_has_the_weight_that_it_states(chain):
    data = chain.observe(40, 0)
    post = cb.fit(chain.problem, data, method="wishart")
    before = post.distribution.draw_prior(DRAWS, jax.random.key(2))
    for position, name in enumerate(post.problem.graph.nodes):
        values, variances = data.column(name), before.models.noises[:, position, position]
        agrees(variances, stats.invgamma(2, scale=2 * values.var()))
        gaps = before.models.matrices[:, -1, position] - values.mean()
        agrees(gaps / np.sqrt(variances / 0.01), stats.norm)
    assert "X, Z, Y have no mean" in before.note
    prior = cb.priors.MomentPrior(np.zeros(3), 2.0, np.diag([1.0, 4.0, 9.0]), 8.0)
    own = cb.fit(chain.problem, data, method="wishart", prior=prior)
    drawn = own.distribution.draw_prior(DRAWS, jax.random.key(2))
    agrees(drawn.models.noises[:, 2, 2], stats.invgamma((8 - 3 + 1) / 2, scale=9 / 2))
    assert drawn.note == ""


def test_predictions_of_the_prior_have_the_moments_of_a_simulation(chain):
    """FixedPrior with known variances; what was set stays as it was."""
    prior = cb.priors.FixedPrior(
        slope_sd=0.7, intercept_sd=2.0, noise_sd=1.5, noise_observations=np.inf, centres={"Z": 4.0}
    )
    tried = chain.experiment(chain.problem.queries([{"Z": 3.0}] * 2), 1)
    data = chain.observe(10, 0).join(tried)
    tree = cb.fit(chain.problem, data, prior=prior).to_datatree(draws=DRAWS, observations=True)
    x, random = data.column("X"), np.random.default_rng(5)
    size = (200_000, 1)
    b, d = 0.7 * 1.5 * random.normal(size=(2, *size))
    levels = 1.5 * 2.0 * random.normal(size=(2, *size))
    e = 1.5 * random.normal(size=(2, size[0], 12))
    z = np.where(np.arange(12) < 10, 4 + levels[0] + b * x + e[0], 3.0)
    y = levels[1] + d * (z - 4) + e[1]
    for name, simulated in (("Z", z[:, :10]), ("Y", y)):
        found = flat(tree, "prior_predictive", name)
        assert found.shape == (DRAWS, simulated.shape[1])
        error = simulated.std(axis=0) / np.sqrt(DRAWS)
        assert (np.abs(found.mean(axis=0) - simulated.mean(axis=0)) < 4.5 * error).all()
        np.testing.assert_allclose(found.std(axis=0), simulated.std(axis=0), rtol=0.08)
        pairs = [np.corrcoef(sample[:, [0, 5]].T)[0, 1] for sample in (found, simulated)]
        assert abs(pairs[0] - pairs[1]) < 0.08


def test_hyperparameters_of_processes_are_drawn_by_name(chain):
    """A priori they are log-normal; a posteriori those of the coordinates."""
    data = chain.observe(30, 0)
    prior = cb.priors.GPPrior(
        lengthscale=0.8,
        amplitude_spread=0.3,
        centres=dict.fromkeys("XZY", 0.0),
        scales={"X": 2.0, "Z": 3.0, "Y": 1.0},
        ranges=dict.fromkeys("XZY", (-5.0, 5.0)),
    )
    kind = {"Z": cb.GP(functions=8)}
    post = cb.fit(chain.problem, data, mechanisms=kind, method="laplace", prior=prior)
    tree = post.to_datatree(draws=DRAWS)
    assert tree["prior"]["process"].values.tolist() == ["X->Z"]
    spread = prior.lengthscale_spread
    agrees(flat(tree, "prior", "lengthscale"), stats.lognorm(spread, scale=0.8 * 2.0))
    agrees(flat(tree, "prior", "trend"), stats.lognorm(prior.trend_spread, scale=3.0))
    heights = np.log(flat(tree, "prior", "amplitude"))
    assert heights.std() == pytest.approx(0.3, rel=0.05)
    model = post.distribution.model
    psi = np.random.default_rng(0).normal(size=(5, len(model.coordinates)))
    states = [model.density.states(jnp.asarray(each)) for each in psi]
    etas = np.array([np.concatenate([state.eta for state in each]) for each in states])
    np.testing.assert_allclose(model.hyperparameters(psi), etas, rtol=1e-10)
    named = model.named(model.draws(psi), etas)
    np.testing.assert_allclose(named["trend"][:, 0], np.exp(etas[:, 1]))
    np.testing.assert_allclose(named["amplitude"][:, 0], np.exp(etas[:, 2]))
    np.testing.assert_allclose(named["lengthscale"][:, 0], np.exp(etas[:, 3]))
    held = cb.fit(chain.problem, data, mechanisms=kind).to_datatree(draws=8)["posterior"]
    assert "amplitude" not in held and held["f"].sizes["function"] == 8


def test_a_prior_that_is_improper_is_refused_by_name(chain):
    def saturate(X):
        most = numpyro.sample("most", dist.ImproperUniform(dist.constraints.real, (), ()))
        return most * jnp.tanh(X)

    data = chain.observe(60, 0)
    post = cb.fit(chain.problem, data, mechanisms={"Z": saturate}, method="laplace")
    tree = post.to_datatree(draws=20)
    assert "prior" not in tree.children and "posterior_predictive" in tree.children
    said = "the prior of the parameter 'most' of the mechanism of 'Z', ImproperUniform, is improper"
    assert said in tree.attrs["no_prior"]
    with pytest.raises(cb.errors.PosteriorError, match=said):
        post.to_datatree(draws=20, observations="prior_predictive")
    with pytest.raises(cb.errors.PosteriorError, match=said):
        cb.diagnostics.check_prior_predictive(post)
    given = cb.Posterior.from_draws(chain.problem, np.zeros((2, 8, 4)) + np.arange(8)[:, None])
    assert "which is not known" in given.to_datatree().attrs["no_prior"]
