"""Mechanisms whose noise varies in size or has heavy tails.

Internals: quantiles of Student's t and the numbers of a mechanism have no public name.
"""

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.wrong_models import VARYING_NOISE
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms.noise_models import StudentNoise, normal_scores, student_quantile

PROBLEM = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains={"X": (-2, 2)})
QUERIES = [{"X": 0.0}, {"X": -1.5}, {"X": 2.0}]


def observe(count, seed, tails=None):
    draws = np.random.default_rng(seed)
    x, e = draws.normal(size=(2, count))
    u = draws.standard_t(tails, count) if tails else draws.normal(size=count)
    size = 1.0 if tails else 0.2 + 0.6 * np.abs(x)
    z = x + size * u
    return pd.DataFrame({"X": x, "Z": z, "Y": (z if tails else 0.5 * z**2) + 0.3 * e})


@pytest.fixture(scope="module")
def varying():
    choice = {"Z": cb.Linear(noise="varying"), "Y": cb.GP(functions=12)}
    return cb.fit(PROBLEM, observe(200, 0), mechanisms=choice, method="laplace")


@pytest.fixture(scope="module")
def student():
    choice = {"Z": cb.Linear(noise="student"), "Y": cb.Linear(noise="student")}
    return cb.fit(PROBLEM, observe(300, 1, tails=3), mechanisms=choice, method="laplace")


def numbers(post, variable):
    [setting] = [s for b, s in post.distribution.model.custom if b.variable == variable]
    return setting


def test_the_sd_follows_the_truth(varying):
    x = np.linspace(-1.8, 1.8, 7)
    table = pd.DataFrame({"X": x, "Z": 0.0, "Y": 0.0})
    data = cb.Data.from_frame(PROBLEM, table)
    sds = []
    models = varying.distribution.drawn(200, jax.random.key(0)).models
    for shift in (0.0, 1.0):
        values = data.values + shift * np.array([0.0, 1.0, 0.0])
        scores = varying.distribution.model.disturbances(models, values[None], 1)
        sds.append(scores / numbers(varying, "Z").unit)
    found = 1 / (sds[1] - sds[0])  # by how much a value of 1 more moves the score
    low, high = np.quantile(found, (0.005, 0.995), axis=0)
    truth = 0.2 + 0.6 * np.abs(x)
    assert ((low < truth) & (truth < high)).mean() > 0.8
    assert abs(np.log(found.mean(axis=0) / truth)).max() < 0.6  # a kink is smoothed


def test_effects_average_over_the_noise_that_varies(varying):
    """Against a simulation that has its own formulas of the basis and of its prior sds."""
    theta = dict(zip(varying.names, varying.mean, strict=True))
    setting = numbers(varying, "Z")
    frame = setting.frame
    middle, half, origin = (
        float(np.ravel(part)[0]) for part in (frame.middle, frame.half, frame.origin)
    )
    x_sd, order = varying.data.column("X").std(), np.arange(1, 17)
    frequency = order * np.pi / (4 * half)
    sds = [
        amplitude * np.sqrt(4 * 3**1.5 * length * x_sd) / (3 + (length * x_sd * frequency) ** 2)
        for amplitude in (0.25, 0.5, 1.0, 2.0)
        for length in (0.5, 1.0, 2.0)
    ]
    [chosen] = [sd for sd in sds if np.allclose(sd, np.asarray(setting.noise_sd)[2:18])]
    weights = chosen * [theta[f"g[X->Z,{j}]"] for j in order]
    e = np.random.default_rng(0).normal(size=400_000)
    for query, effect in zip(QUERIES, cb.response(varying)(varying.mean, QUERIES), strict=True):
        x = np.clip(query["X"], middle - half, middle + half)
        waves = np.sin(frequency * (x - middle + 2 * half)) / np.sqrt(2 * half)
        log_sd = theta["log_sd[Z]"] + theta["d[X->Z]"] * (x - origin) + waves @ weights
        log_sd += theta["d_below[X->Z]"] * max(origin - x, 0)
        log_sd += theta["d_above[X->Z]"] * max(x - origin, 0)
        z = theta["level[Z]"] + theta["b[X->Z]"] * (query["X"] - origin)
        z = z + np.sqrt(np.exp(2 * log_sd) + float(setting.floor) ** 2) * e
        values = np.column_stack([np.zeros(len(z)), z, np.zeros(len(z))])
        response = varying.distribution.response
        y = response.mechanism(varying.mean[None], "Y", values)[0]
        assert abs(effect - y.mean()) < 5 * y.std() / np.sqrt(len(y)) + 0.02 * y.std()


def test_checks_pass_where_the_noise_is_modelled_and_fail_where_it_is_not():
    problem, data = VARYING_NOISE["before a square"](11, 150)
    plain = cb.fit(problem, data, mechanisms="gp")
    assert not cb.diagnostics.check_noise(plain).passed
    choice = {"Z": cb.Linear(noise="varying"), "Y": "gp"}
    post = cb.fit(problem, data, mechanisms=choice, method="laplace")
    assert cb.diagnostics.check_noise(post).passed
    assert cb.diagnostics.check_predictive(post).passed


def test_tails_are_learned(student):
    theta = dict(zip(student.names, student.mean, strict=True))
    assert 2.2 < 2 + np.exp(theta["log_df[Z]"]) < 6
    assert 2 + np.exp(theta["log_df[Y]"]) > 6
    slope = stats.t.fit(student.data.column("Z") - student.data.column("X"))
    assert abs(np.exp(theta["log_scale[Z]"]) / slope[2] - 1) < 0.15
    assert cb.diagnostics.check_predictive(student).passed


def test_new_observations_have_the_noise_of_the_model(student):
    models = np.repeat(student.mean[None], 1, axis=0)
    theta = dict(zip(student.names, student.mean, strict=True))
    queries = PROBLEM.queries([{"X": 0.0}]).repeat(20_000)
    drawn = student.distribution.model.replicate(models, queries, jax.random.key(0))[0, :, 1]
    origin = student.data.column("X").mean()
    df, scale = 2 + np.exp(theta["log_df[Z]"]), np.exp(theta["log_scale[Z]"])
    mean = theta["level[Z]"] - theta["b[X->Z]"] * origin
    assert stats.kstest(drawn, stats.t(df, mean, scale).cdf).pvalue > 1e-4


def test_disturbances_are_normal_scores():
    values = np.array([-30.0, -2.0, 0.0, 0.5, 400.0])
    scores = normal_scores(StudentNoise(3.5, 0.2, 0.7), values)
    tails = stats.t(3.5, 0.2, 0.7)
    expected = np.where(
        values < 0.2, stats.norm.ppf(tails.cdf(values)), stats.norm.isf(tails.sf(values))
    )
    np.testing.assert_allclose(scores, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("df", "error"), [(2.1, 1e-3), (3.0, 1e-4), (7.0, 1e-5), (300.0, 1e-7)])
def test_quantiles_are_those_of_students_t(df, error):
    ranks = (np.arange(256) + 0.5) / 256
    np.testing.assert_allclose(student_quantile(df, ranks), stats.t.ppf(ranks, df), rtol=error)


def test_noise_survives_files_settings_and_studies(varying, tmp_path):
    again = cb.Posterior.load(varying.save(tmp_path / "post.nc", draws=100), PROBLEM)
    assert again.fingerprint == varying.fingerprint and (again.mean == varying.mean).all()
    settings = cb.Settings(mechanisms={"Z": cb.GP(noise="varying"), "Y": "gp"}, inference="laplace")
    assert cb.Settings.from_json(settings.to_json()) == settings


def test_noise_of_roots_and_known_slopes():
    known = cb.Problem(PROBLEM.graph, "Y", domains={"X": (-2, 2)}, known={("X", "Z"): 1.0})
    choice = {"X": cb.Linear(noise="student"), "Z": cb.Linear(noise="student")}
    post = cb.fit(known, observe(300, 1, tails=3), mechanisms=choice, method="laplace")
    assert "b[X->Z]" not in post.names
    found = cb.effects(post, [{"X": 1.0}, {"X": 0.0}], key=0)
    slope = post.to_frame().loc["b[Z->Y]", "mean"]
    assert abs(found["mean"][0] - found["mean"][1] - slope) < 1e-6 + 0.05 * found["sd"][0]


def test_closed_forms_are_refused():
    with pytest.raises(cb.errors.MechanismError, match='method="laplace"'):
        cb.fit(PROBLEM, observe(60, 0), mechanisms={"Z": cb.GP(noise="varying")})
