"""Healthcare with its logistic mechanisms, written as user-defined functions.

Internals: the mechanisms are those of the model's module.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.models import healthcare

pytestmark = pytest.mark.slow


LOGISTIC = healthcare.MECHANISMS


@pytest.fixture(scope="module")
def system():
    return cb.models.load("healthcare")


@pytest.fixture(scope="module")
def post(system):
    return cb.fit(system.problem, system.observe(100, 0), mechanisms=LOGISTIC, method="laplace")


def test_mechanisms_without_noise_are_learned_exactly(post):
    """aspirin = s(-8 + 0.10 age + 0.03 bmi), statin = s(-13 + 0.10 age + 0.20 bmi)."""
    truth = {
        "level[aspirin]": -8 + 6.5 + 0.78,
        "by_age[aspirin]": 1.0,
        "by_bmi[aspirin]": 0.03,
        "level[statin]": -13 + 6.5 + 5.2,
        "by_age[statin]": 1.0,
        "by_bmi[statin]": 0.2,
        "level[cancer]": 2.2 - 3.25 + 0.26,
        "by_age[cancer]": -0.5,
        "by_bmi[cancer]": 0.01,
        "by_aspirin[cancer]": 0.02,
        "by_statin[cancer]": -0.04,
    }
    positions = [post.names.index(name) for name in truth]
    np.testing.assert_allclose(post.mean[positions], list(truth.values()), atol=1e-3)
    assert (post.sd[positions] < 2e-3).all() and post.verdict == "passed"


def test_effects_at_the_truth_are_those_of_the_system(system, post):
    """Age is taken as Gaussian with the moments of U(55, 75); PSA is nearly linear in it."""
    theta, r = post.mean.copy(), cb.response(post)
    data = post.distribution.model.data
    means = {name: data.column(name).mean() for name in data.nodes}
    slopes = {"age": 0.04, "bmi": -0.15, "statin": -0.60, "aspirin": 0.55, "cancer": 1.0}
    level = 6.8 + sum(slope * means[name] for name, slope in slopes.items())
    values = {f"b[{name}->PSA]": slope for name, slope in slopes.items()}
    values |= {"level[PSA]": level, "log_sd[PSA]": np.log(0.4), "level[age]": 65.0}
    values |= {"log_sd[age]": np.log(20 / np.sqrt(12)), "b[age->bmi]": -0.01}
    values |= {"level[bmi]": 27 - 0.01 * means["age"], "log_sd[bmi]": np.log(0.7)}
    for name, value in values.items():
        theta[post.names.index(name)] = value
    queries = system.problem.vertices()
    np.testing.assert_allclose(r(theta, queries), system.effect(queries), atol=2e-3)


def test_diagnostics_warn_of_missing_overlap(system, post):
    overlap, beyond = cb.diagnostics.check_overlap(post), cb.diagnostics.check_extrapolation(post)
    assert overlap.verdict == beyond.verdict == "failed"
    assert "aspirin is nearly a function of age, bmi" in overlap.text
    wide = cb.effects(post, [{"aspirin": 0.0, "statin": 1.0}], key=0)["sd"].iloc[0]
    assert wide > 1.0  # where outcomes vary by 0.4


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_found_at_cost_66(system, seed):
    options = {"noise": 0.0, "observations": 100, "rounds": 66, "budget": 66.0}
    with pytest.warns(cb.CausalBOWarning, match="aspirin is nearly a function of age, bmi"):
        run = optimize(system, mechanisms=LOGISTIC, key=seed, progress=False, **options)
    queries = system.problem.queries([run.best.intervention])
    assert abs(float(system.effect(queries)[0]) - system.optimum.value) < 0.002


def test_formulas_of_the_system_are_accepted_without_parameters(system):
    """Deterministic sites of a program are formulas, which the data must satisfy."""

    def program():
        age = numpyro.sample("age", dist.Uniform(55.0, 75.0))
        bmi = numpyro.sample("bmi", dist.Normal(healthcare.mean_bmi(age), 0.7))
        aspirin = numpyro.deterministic("aspirin", healthcare.natural_aspirin(age, bmi))
        statin = numpyro.deterministic("statin", healthcare.natural_statin(age, bmi))
        risk = healthcare.cancer_risk(age, bmi, aspirin, statin)
        cancer = numpyro.deterministic("cancer", risk)
        names = ("by_age", "by_bmi", "by_statin", "by_aspirin", "by_cancer")
        slopes = [numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in names]
        causes = (age - 65, bmi - 26, statin, aspirin, cancer)
        mean = numpyro.sample("level", dist.Normal(5.0, 3.0))
        for slope, cause in zip(slopes, causes, strict=True):
            mean = mean + slope * cause
        numpyro.sample("PSA", dist.Normal(mean, numpyro.sample("sd", dist.HalfNormal(1.0))))

    post = cb.fit(system.problem, system.observe(100, 0), mechanisms=program, method="laplace")
    truth = [0.04, -0.15, -0.60, 0.55, 1.0, 6.8 + 2.6 - 3.9, np.log(0.4)]
    queries = system.problem.vertices()
    effects = post.distribution.response.program.effects(jnp.asarray(truth), post.upstream(queries))
    np.testing.assert_allclose(effects, system.effect(queries), atol=1e-3)
    assert post.distribution.model.learned.tolist() == [True, True, False, False, False, True]
    model = post.distribution.model
    samples = model.replicate(post.draws(5, 0), system.problem.vertices(), jax.random.key(0))
    assert np.isfinite(samples).all()
    wrong = system.observe(2, 1)
    moved = wrong.values + 0.1 * (np.array(wrong.nodes) == "statin")
    with pytest.raises(
        cb.errors.MechanismError, match="'statin' has no noise, but its formula is 0.1"
    ):
        post.update(cb.Data(wrong.nodes, "PSA", moved, wrong.intervened))
