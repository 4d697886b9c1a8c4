"""Sweeps: units are stored, are independent of where they run, and are compared.

Internals: what is stored for a unit is read and changed between two sweeps.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from helpers.runs import optimize
from helpers.scripted_units import soon

import causal_bo_ppl as cb
from causal_bo_ppl.experiments.comparison import _observe_more, cross, make_settings, read_methods
from causal_bo_ppl.experiments.units import (
    Loaded,
    NoExperiment,
    Optimization,
    UnitStore,
    digest_code,
    read_seeds,
    refer_to,
    run_unit,
)

METHODS = ("gc-cbo", "cbo", "no experiment", "more observations")
SHORT = {"rounds": 3, "observations": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("swept")


@pytest.fixture(scope="module")
def swept(folder):
    return cb.experiments.sweep("chain", METHODS, settings=SHORT, seeds=2, folder=folder, workers=2)


def unit(seed=0, system=None, case="chain", method="gc-cbo", **settings):
    system = Loaded("chain") if system is None else system
    return Optimization(
        case, method, seed, system, cb.Settings.preset("gc-cbo", **SHORT, **settings)
    )


def test_units_are_identified_by_what_they_compute_and_not_by_their_labels():
    usual = unit().identity
    assert unit(case="another", method="label").identity == usual
    others = [
        unit(seed=1),
        unit(system=Loaded("toy")),
        unit(system=Loaded("chain", {"max_size": 1})),
        unit(acquisition=cb.acquisition.ConfidenceBound(3.0)),
        NoExperiment("chain", "none", 0, Loaded("chain"), cb.Settings(**SHORT)),
    ]
    identities = [usual, *(each.identity for each in others)]
    assert len(set(identities)) == len(identities)


SOURCE = """
{above}
import numpyro
import numpyro.distributions as dist

WIDTH = {width}

def prior():
    return numpyro.sample("slope", dist.Normal(0, WIDTH))

def z(x):
    return prior() * x, {sd}

class Rule:
    name = "mine"
    def value(self, surrogate, queries, context):
        return surrogate.predict(queries).mean * {sd}
"""


def user_module(directory, **options):
    """Return a module with a mechanism that uses another function and a constant."""
    name = f"user_{len(list(directory.iterdir()))}"
    path = directory / f"{name}.py"
    path.write_text(SOURCE.format(**({"above": "", "width": 1.0, "sd": 1.0} | options)))
    spec = importlib.util.spec_from_file_location("user", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_user_defined_code_is_recognized_by_what_it_computes(tmp_path):
    """Its name, which stays the same, and its lines, which may move, do not count."""
    usual, moved, other, deep = (
        user_module(tmp_path, **options)
        for options in ({}, {"above": "# a comment\n\n"}, {"sd": 2.0}, {"width": 9.0})
    )
    identities = [unit(mechanisms={"Z": each.z}).identity for each in (usual, moved, other, deep)]
    assert identities[0] == identities[1] and len(set(identities)) == 3
    rules = [unit(acquisition=each.Rule()).identity for each in (usual, moved, other)]
    assert rules[0] == rules[1] != rules[2]


def test_configurations_of_the_package_count_by_their_values():
    """Two equal ones are the same, also where they are different objects."""

    def configurations(cost="log-ei", kernel="matern52", chains=2):
        return [cb.acquisition.PerCost(cost), cb.GP(kernel=kernel), cb.NUTS(chains=chains), "gp"]

    usual = [digest_code(each) for each in configurations()]
    assert usual == [digest_code(each) for each in configurations()] and len(set(usual)) == 4
    others = [digest_code(each) for each in configurations("ei", "matern32", 3)]
    assert all(one != other for one, other in zip(usual[:3], others, strict=False))
    assert digest_code({"Y": "gp", "Z": lambda x: x}) != digest_code({"Y": "gp", "Z": lambda x: -x})


@pytest.mark.heavy
def test_methods_of_a_seed_share_observations_and_noise(swept):
    """The first outcome of a set is the same number for every method."""
    firsts = {
        (each.attrs["method"], each.attrs["seed"]): each
        for each in swept.results
        if each.attrs["method"] in ("gc-cbo", "cbo")
    }
    assert len(firsts) == 4
    for seed in (0, 1):
        one, other = (firsts[method, seed].isel(experiment=0) for method in ("gc-cbo", "cbo"))
        assert str(one["set"].item()) == str(other["set"].item()) == "Z"
        apart = float(one["outcome"] - one["effect"])
        assert apart == pytest.approx(float(other["outcome"] - other["effect"]), abs=1e-9)
    noises = [float(firsts["cbo", seed]["outcome"][0]) for seed in (0, 1)]
    assert noises[0] != pytest.approx(noises[1], abs=1e-6)


def test_run_that_stops_before_any_experiment_has_a_recommendation():
    stopped = unit(stop=cb.optimization.Stop(gain=1e6, patience=1)).measure()
    assert stopped.sizes["experiment"] == 1 and np.isnan(stopped["tried"].item())
    assert stopped["recommended"].item() >= 0 and stopped["cost"].item() == 0


@pytest.mark.heavy
def test_effect_that_beats_the_optimum_is_warned_of():
    chain = cb.models.load("chain")
    wrong = replace(chain, name="wrong")
    wrong.__dict__["optimum"] = chain.optimum._replace(value=0.0)
    own = cb.Settings(rounds=1, observations=40)
    with pytest.warns(cb.CausalBOWarning, match="better than its optimum"):
        Optimization("chain", "gc-cbo", 0, refer_to(wrong), own).measure()


def test_several_settings_have_their_own_number_of_additional_observations():
    methods = cross(
        read_methods(["gc-cbo", "more observations"]),
        {"short": {"rounds": 3}, "long": {"rounds": 5}},
    )
    case = cb.experiments.Case("chain", by_method={"more observations": {"observations": 7}})
    results = [
        xr.Dataset(
            {"tried": ("experiment", np.zeros(count))},
            attrs={"case": "chain", "method": f"gc-cbo, {group}", "seed": 0},
        )
        for group, count in (("short", 3), ("long", 5))
    ]
    plan = [("chain", method) for method in methods]
    units = _observe_more(plan, {"chain": case}, {"chain": Loaded("chain")}, results)
    assert [(each.method, each.additional) for each in units] == [
        ("more observations, short", 3),
        ("more observations, long", 5),
    ]
    assert {each.settings.observations for each in units} == {7}


@pytest.mark.heavy
def test_user_defined_system_is_recognized_by_its_observations_and_its_effects():
    systems = [cb.models.load("funnel", seed=seed) for seed in (0, 0, 1)]
    digests = [refer_to(system).digest for system in systems]
    assert digests[0] == digests[1] != digests[2]
    other = replace(systems[0], response=lambda queries: 2 * systems[0].response(queries))
    assert refer_to(other).digest != digests[0]


@pytest.mark.heavy
def test_unit_is_the_run_that_optimize_makes(swept):
    """Gaps, costs and outcomes are those of `cb.optimize` with the same settings and key."""
    run = optimize(cb.models.load("chain"), **SHORT, key=1, progress=False)
    [found] = [each for each in swept.results if each.attrs["seed"] == 1][:1]
    assert found.attrs["method"] == "gc-cbo"
    np.testing.assert_allclose(found["outcome"], run.trace["outcome"], rtol=1e-9)
    np.testing.assert_allclose(found["recommended"], run.regret(), atol=1e-9)
    np.testing.assert_allclose(found["tried"], run.regret("tried"), atol=1e-9)
    np.testing.assert_allclose(found["cost"], run.trace["total_cost"])


@pytest.mark.heavy
def test_without_experiments_the_best_vertex_by_the_posterior_mean_is_recommended(swept):
    """The vertex is found by a search over all; "more observations" had three more."""
    import jax

    system = cb.models.load("chain")
    data_key = jax.random.split(jax.random.key(0))[0]
    data = system.observe(SHORT["observations"], data_key)
    vertices = system.problem.vertices()
    best = cb.surrogates.couple(cb.fit(system.problem, data)).predict(vertices).mean.argmin()
    effect = float(system.effect(vertices[int(best)])[0])
    units = swept.units.set_index(["method", "seed"])
    assert units.loc[("no experiment", 0), "recommended_effect"] == pytest.approx(effect)
    assert units.loc[("no experiment", 0), "experiments"] == 0
    more = [each for each in swept.results if each.attrs["method"] == "more observations"]
    assert [json.loads(each.attrs["unit"])["additional"] for each in more] == [3, 3]


@pytest.mark.heavy
def test_results_do_not_depend_on_where_or_in_which_order_units_ran(swept):
    again = cb.experiments.sweep("chain", METHODS[2::-1], settings=SHORT, seeds=[1, 0], workers=1)
    expected = {each.attrs["identity"]: each for each in swept.results}
    assert len(again.results) == 6 and len(expected) == 8
    for each in again.results:
        xr.testing.assert_identical(
            each.drop_attrs(), expected[each.attrs["identity"]].drop_attrs()
        )


@pytest.mark.heavy
def test_finished_sweep_computes_nothing_again(swept, folder, tmp_path):
    same = cb.experiments.sweep("chain", METHODS, settings=SHORT, seeds=2, folder=folder, workers=1)
    assert same.wall == 0 and not any(each.attrs["is_new"] for each in same.results)
    xr.testing.assert_identical(same.traces, swept.traces)
    again = UnitStore(tmp_path)
    again.keep(unit(), same.results[0])  # what was read is written as it was
    assert UnitStore(tmp_path).find(unit()).attrs == same.results[0].attrs


@pytest.mark.heavy
def test_larger_sweep_computes_what_is_new_or_damaged_and_warns(swept, folder):
    path = folder / "units" / f"{swept.results[0].attrs['identity']}.nc"
    others = [each for each in (folder / "units").iterdir() if each != path]
    files = {each: each.stat().st_mtime_ns for each in others}
    whole = path.read_bytes()
    path.write_bytes(whole[:-300] + bytes([whole[-300] ^ 1]) + whole[-299:])
    with pytest.warns(cb.CausalBOWarning, match="its unit is computed again"):
        larger = cb.experiments.sweep(
            "chain", ["gc-cbo"], settings=SHORT, seeds=3, folder=folder, workers=1
        )
    assert [each.attrs["is_new"] for each in larger.results] == [1, 0, 1]
    assert len(files) == 7 and {each: each.stat().st_mtime_ns for each in files} == files
    xr.testing.assert_identical(larger.results[0].drop_attrs(), swept.results[0].drop_attrs())


KILLED = """
import causal_bo_ppl as cb
cb.experiments.sweep(
    "chain", ["gc-cbo"], settings={"rounds": 3, "observations": 40}, seeds=16,
    folder=%r, workers=1, progress=False,
)
"""


@pytest.mark.heavy
def test_sweep_that_was_killed_goes_on_and_repeats_nothing(tmp_path):
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", KILLED % str(folder)])
    units = folder / "units"
    soon(lambda: process.poll() is not None or len(list(units.glob("*.nc"))) >= 3, 240)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path: path.stat().st_mtime_ns for path in units.glob("*.nc")}
    assert 3 <= len(finished) < 16
    found = cb.experiments.sweep(
        "chain", ["gc-cbo"], settings=SHORT, seeds=16, folder=folder, workers=1
    )
    assert len(found.results) == 16 and not len(found.failed)
    assert sum(each.attrs["is_new"] for each in found.results) == 16 - len(finished)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


@pytest.mark.heavy
def test_units_that_fail_are_reported_and_the_others_are_kept():
    """A budget below the cost of one experiment allows none."""
    cases = {
        "chain": cb.experiments.Case("chain", SHORT),
        "poor": cb.experiments.Case("chain", {"budget": 0.5}),
    }
    found = cb.experiments.sweep(cases, ["gc-cbo"], seeds=1, workers=1)
    assert found.units["system"].tolist() == ["chain"]
    [lost] = found.failed.to_dict("records")
    assert lost["system"] == "poor" and "pays for no vertex" in lost["error"]
    assert "1 units failed" in repr(found) and "pays for no vertex" in found._repr_html_()
    with pytest.raises(cb.errors.DataError, match="none of 1 units could be computed"):
        cb.experiments.sweep(
            {"poor": cb.experiments.Case("chain", {"budget": 0.5})}, ["gc-cbo"], seeds=1, workers=1
        )


@pytest.mark.heavy
def test_system_defined_on_the_spot_is_swept_in_another_process():
    """Its functions are in no module that a worker could import."""

    def model():
        x = numpyro.sample("X", dist.Normal(0, 1))
        numpyro.sample("Y", dist.Normal(2.0 * x, 1))

    def response(queries):
        return 2.0 * np.where(queries.mask[:, 0], queries.value[:, 0], 0.0)

    problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (-1, 1)}, sets=1)
    system = cb.CausalSystem("steep", problem, model, response, True, "test")
    found = cb.experiments.sweep(
        system, ["gc-cbo", "bo"], settings={"rounds": 2}, seeds=1, workers=1
    )
    assert not len(found.failed)
    assert found.units["optimum"].tolist() == [-2.0, -2.0]
    assert found.units["recommended"].max() < 1e-9


def test_several_settings_are_combined_with_every_method():
    made = cross(
        read_methods(["gc-cbo", "cbo"]), {"few": {"observations": 20}, "many": {"rounds": 4}}
    )
    assert [each.name for each in made] == [
        "gc-cbo, few",
        "cbo, few",
        "gc-cbo, many",
        "cbo, many",
    ]
    assert made[1].keywords == {"observations": 20, "preset": "cbo"}


def test_settings_object_is_read_as_its_keywords():
    settings = cb.Settings.preset("cbo", rounds=7)
    [method] = read_methods({"mine": settings})
    assert method.keywords["rounds"] == 7 and "observations" not in method.keywords
    assert make_settings("mine", method.keywords) == settings


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"systems": 3}, cb.errors.ArgumentError, "CausalSystem, the name of one"),
        ({"systems": []}, cb.errors.ArgumentError, "no system"),
        (
            {"systems": ["chain", "chain"]},
            cb.errors.ArgumentError,
            "two systems are called 'chain'",
        ),
        ({"systems": "chian"}, cb.errors.ArgumentError, "unknown system 'chian'"),
        ({"systems": {"a": 3.0}}, cb.errors.ArgumentError, "'a' must be a CausalSystem"),
        ({"methods": ["gccbo"]}, cb.errors.ArgumentError, "unknown method 'gccbo'"),
        ({"methods": []}, cb.errors.ArgumentError, "at least one and all different"),
        ({"methods": {"mine": 3}}, cb.errors.ArgumentError, "needs keywords of cb.Settings"),
        ({"methods": 3}, cb.errors.ArgumentError, "methods are names"),
        (
            {"systems": {"a": cb.experiments.Case("chain", 3)}},
            cb.errors.ArgumentError,
            "must be a dictionary",
        ),
        (
            {"systems": {"a": cb.experiments.Case("chain", methods=("cb",))}},
            cb.errors.ArgumentError,
            "unknown method 'cb'",
        ),
        (
            {"systems": {"a": cb.experiments.Case("chain", by_method={"gc-cb": {}})}},
            cb.errors.ArgumentError,
            "unknown method 'gc-cb'",
        ),
        ({"systems": {"1": "chain", 1: "toy"}}, cb.errors.ArgumentError, "two systems are called"),
        ({"settings": {"round": 3}}, cb.errors.SettingsError, "unknown settings round"),
        ({"settings": 3}, cb.errors.ArgumentError, "settings are keywords"),
        (
            {"settings": {"learn_from": "rows", "noise": 0.0}},
            cb.errors.SettingsError,
            "learns the noise from whole",
        ),
        ({"seeds": 0}, cb.errors.ArgumentError, "seeds"),
        ({"seeds": [1, 1]}, cb.errors.ArgumentError, "all different"),
        ({"seeds": "many"}, cb.errors.ArgumentError, "a seed"),
    ],
)
def test_mistakes_are_refused_before_anything_is_computed(arguments, error, words):
    given = {"systems": "chain", "methods": ["gc-cbo"], "seeds": 1} | arguments
    with pytest.raises(error, match=words):
        cb.experiments.sweep(given.pop("systems"), given.pop("methods"), **given)


def test_seeds_are_a_number_or_a_list():
    assert read_seeds(3) == (0, 1, 2) and read_seeds([4, 2]) == (4, 2)


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(cb.errors.StoreError, match="cannot make the folder"):
        UnitStore(tmp_path / "file" / "below")
    with pytest.raises(cb.errors.StoreError, match="a folder needs a path"):
        UnitStore(3)


def test_warnings_of_a_unit_are_kept_with_it():
    toy = Optimization("toy", "gc-cbo", 0, Loaded("toy"), cb.Settings(rounds=1, observations=30))
    found = run_unit(toy)
    assert "toy is not linear" in found.attrs["warnings"] and found.attrs["seconds"] > 0
