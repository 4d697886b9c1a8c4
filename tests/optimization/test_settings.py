"""Settings and priors as JSON, presets, and what is refused."""

import json
import math

import numpy as np
import pytest
from helpers.runs import PRESETS, optimize
from plugins.exploration import PureExploration
from plugins.importance_resampling import ImportanceResampling
from plugins.independent_regression import IndependentRegression
from plugins.quadratic import Quadratic

import causal_bo_ppl as cb

PRIORS = [
    cb.priors.ScaledPrior(observations=0.25),
    cb.priors.FixedPrior(),
    cb.priors.FixedPrior(
        slope_sd=0.1,
        noise_observations=math.inf,
        scales={"X": 3.0},
        slopes={("X", "Z"): (0.8, 0.1)},
    ),
    cb.priors.MomentPrior(np.array([0.1, -0.2]), 1.0, np.array([[2.0, 0.3], [0.3, 1.0]]), 6.5),
    cb.priors.GPPrior(
        lengthscale=0.1 + 0.2, scales={"X": 3.0, "Z": 0.1}, ranges={"X": (-1.5, 2.0)}
    ),
]


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_a_prior_is_read_back_with_all_its_digits(prior):
    again = type(prior).from_json(prior.to_json())
    assert type(again) is type(prior) and again.canonical() == prior.canonical()


@pytest.mark.parametrize(
    "settings",
    [
        cb.Settings(),
        cb.Settings.preset("gc-cbo-fixed", rounds=7, noise=0.1),
        cb.Settings(budget=3.5, inference="laplace", prior=PRIORS[2], accept="a dry run"),
        cb.Settings(rounds=2, inference=cb.NUTS(chains=2, target_accept=0.9)),
        cb.Settings(rounds=2, mechanisms="gp", prior=PRIORS[4]),
        cb.Settings(rounds=2, mechanisms=cb.GP(groups=[("D", "E")], functions=8)),
        cb.Settings(mechanisms={"name": "linear", "Y": cb.GP(kernel="matern52"), "Z": "gp"}),
        cb.Settings(mechanisms={}, prior=cb.priors.GPPrior()),
    ],
)
def test_settings_are_read_back(settings):
    again = cb.Settings.from_json(settings.to_json())
    assert again == settings and again.to_json() == settings.to_json()
    assert again.prior == settings.prior and type(again.mechanisms) is type(settings.mechanisms)


def test_priors_of_nonlinear_mechanisms_are_equal_where_their_parts_are():
    one, other = (
        cb.priors.GPPrior(scales=scales) for scales in ({"X": 2, "Z": 1}, {"Z": 1, "X": 2})
    )
    assert one == other and hash(one) == hash(other) and one != cb.priors.GPPrior()
    with pytest.raises(cb.errors.MechanismError, match="a prior is read from a JSON text"):
        cb.priors.GPPrior.from_json("{")


def test_a_user_defined_family_is_given_back_by_name():
    settings = cb.Settings(rounds=1, mechanisms=Quadratic())
    text = settings.to_json()
    given = {settings.mechanisms.name: settings.mechanisms}
    assert cb.Settings.from_json(text, given).mechanisms is settings.mechanisms
    with pytest.raises(cb.errors.SettingsError, match="a text cannot hold; give it to from_json"):
        cb.Settings.from_json(text)


def test_user_defined_objects_are_written_by_name_and_given_back():
    records = PureExploration(), IndependentRegression(3.0), ImportanceResampling(500)
    rule, surrogate, method = records
    settings = cb.Settings(acquisition=rule, surrogate=surrogate, inference=method, rounds=1)
    text = settings.to_json()
    functions = {each.name: each for each in records}
    assert cb.Settings.from_json(text, functions) == settings
    with pytest.raises(cb.errors.SettingsError, match="a text cannot hold; give it to from_json"):
        cb.Settings.from_json(text)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda record: record.pop("noise"), cb.errors.SettingsError, "the settings lack noise"),
        (lambda record: record.update(colour=1), cb.errors.SettingsError, "the unknown colour"),
        (
            lambda record: record.update(format=1),
            cb.errors.SettingsError,
            "written in format 1, and this version reads",
        ),
        (
            lambda record: record.update(report="magic"),
            cb.errors.SettingsError,
            "report must be one of",
        ),
        (
            lambda record: record.update(prior={"prior": "os.system"}),
            cb.errors.MechanismError,
            "a prior is one of",
        ),
        (
            lambda record: record.update(prior={"prior": "GPPrior"}),
            cb.errors.MechanismError,
            "has exactly the fields",
        ),
        (
            lambda record: record.update(mechanisms={"gp": {"x": 1}}),
            cb.errors.MechanismError,
            "options of cb.GP cannot be",
        ),
        (
            lambda record: record.update(mechanisms={"Y": "gp"}),
            cb.errors.MechanismError,
            "mechanisms are a name, variables",
        ),
        (
            lambda record: record.update(mechanisms={"variables": {"Y": 1}}),
            cb.errors.MechanismError,
            "mechanism of 'Y' must",
        ),
        (
            lambda record: record.update(mechanisms=None),
            cb.errors.ArgumentError,
            "mechanisms must be",
        ),
        (
            lambda record: record.update(rounds=-1),
            cb.errors.SettingsError,
            "rounds must be a whole number",
        ),
        (
            lambda record: record.update(inference={"name": "nuts", "options": {"x": 1}}),
            cb.errors.ArgumentError,
            "options",
        ),
    ],
)
def test_texts_that_were_changed_are_refused(change, error, message):
    record = json.loads(cb.Settings(rounds=3).to_json())
    change(record)
    with pytest.raises(error, match=message):
        cb.Settings.from_json(json.dumps(record))
    with pytest.raises(cb.errors.SettingsError, match="read from a JSON text"):
        cb.Settings.from_json("{")
    with pytest.raises(cb.errors.MechanismError, match="read from a JSON text"):
        cb.priors.FixedPrior.from_json("{")


def test_rounds_and_observations_override_those_of_the_settings():
    system = cb.models.load("chain")
    settings = cb.Settings(rounds=3, observations=30, noise=1.0)
    one = cb.optimize(system, settings, key=0)
    other = cb.optimize(system, cb.Settings(noise=1.0), rounds=3, observations=30, key=0)
    assert one.trace["outcome"].values.tolist() == other.trace["outcome"].values.tolist()
    assert one.settings == other.settings == settings
    assert cb.optimize(system, settings, rounds=1, key=0).settings.rounds == 1
    for given in ("magic", 3):
        with pytest.raises(cb.errors.SettingsError, match="preset"):
            cb.optimize(system, given, rounds=1, key=0)
    with pytest.raises(cb.errors.SettingsError, match=f"one of {str(PRESETS)[1:-1]}; got"):
        cb.Settings.preset("magic")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_named_and_differ_in_some_fields_from_the_default(name):
    preset = cb.Settings.preset(name, rounds=7)
    assert preset.name == name and preset.rounds == 7 and preset.mechanisms == "linear"
    default = cb.Settings(rounds=7, report="mean")  # methods are compared by what they tried
    assert (preset == default) == (name == "gc-cbo")
    study = cb.Study(
        cb.models.load("chain").problem, cb.models.load("chain").observe(30, 0), name, key=0
    )
    assert study.settings == cb.Settings.preset(name)


def test_settings_that_are_no_preset_are_named_by_their_parts():
    beta = cb.acquisition.ConfidenceBound(4.0)
    assert cb.Settings(acquisition=beta).name == "gc-cbo"
    assert cb.Settings.preset("cbo", acquisition="thompson").name == "cbo, thompson"
    assert cb.Settings(surrogate=IndependentRegression(), relinearize=False).name.endswith(", ucb")


def test_data_may_be_a_table():
    system = cb.models.load("chain")
    data = system.observe(30, 0)
    one, other = (
        cb.optimize(system, data=each, rounds=2, key=0) for each in (data, data.to_frame())
    )
    assert one.to_frame().equals(other.to_frame())


def test_a_run_keeps_all_that_it_depends_on():
    system = cb.models.load("chain")
    run = optimize(system, rounds=2, observations=30, prior=cb.priors.FixedPrior(), key=7)
    assert run.surrogate.post.prior.canonical() == cb.priors.FixedPrior().canonical()
    assert len(run.study.data_digest) == 64
    other = optimize(system, rounds=2, observations=31, prior=cb.priors.FixedPrior(), key=7)
    assert run.study.data_digest != other.study.data_digest
    attributes = run.trace.attrs
    assert attributes["data_digest"] == run.study.data_digest and attributes["verdict"]
    assert (
        attributes["key"] == "0 7" and f"causal_bo_ppl {cb.__version__}," in attributes["versions"]
    )
