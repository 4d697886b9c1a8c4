"""Where the model is wrong: outcomes win, the best is compared, the loop looks elsewhere.

Internals: limits of a contradiction are compared with simulated replicates of a right model.
"""

import warnings

import numpy as np
import pytest
from helpers.simulated_systems import SYSTEMS, describe, random_system

import causal_bo_ppl as cb
from causal_bo_ppl.data.observations import merge_replicates
from causal_bo_ppl.responses import Prediction
from causal_bo_ppl.surrogates.discrepancy import contradicted, disappoints


@pytest.fixture(scope="module")
def chain():
    return cb.models.load("chain")


@pytest.fixture(scope="module")
def study(chain):
    return cb.Study(chain.problem, chain.observe(50, 0), key=0)


# What is recommended


def test_one_poor_experiment_is_not_recommended_where_the_model_is_far_better(study):
    after = study.tell({"X": -4.0}, 4.0)
    assert after.best.by == "model" and after.best.intervention == {"Z": 5.0}
    assert after.best.outcomes == 0 and after.best.mean < -6
    tried = after.best.tried
    assert tried.by == "outcomes" and tried.intervention == {"X": -4.0} and tried.outcomes == 1
    assert tried.tried is tried and study.best.tried is None
    table = after.effects([{"Z": 5.0}, {"X": -4.0}])
    assert [after.best.mean, tried.mean] == pytest.approx(table["mean"].tolist())
    for text in (repr(after), after._repr_html_(), repr(after.best), after.best._repr_html_()):
        assert "do(Z = 5)" in text and "best tried do(X = -4): 4.2" in text


def test_what_was_tried_is_recommended_where_the_model_is_not_decisively_better(study):
    after = study.tell({"Z": 4.9}, -7.3)
    assert after.best.by == "outcomes" and after.best.intervention == {"Z": 4.9}
    assert after.best.tried is after.best and "best tried" not in repr(after)
    by_mean = cb.Study(study.problem, study.data, "gc-cbo", key=0).tell({"X": -4.0}, 4.0)
    assert by_mean.settings.report == "mean" and by_mean.best.intervention == {"X": -4.0}


@pytest.mark.parametrize("mechanisms", ["linear", pytest.param("gp", marks=pytest.mark.slow)])
def test_doing_nothing_is_recommended_where_every_intervention_is_worse(chain, mechanisms):
    problem, data = (
        cb.Problem(chain.problem.graph, "Y", domains={"X": (-5, -3)}),
        chain.observe(50, 0),
    )
    study = cb.Study(problem, data, cb.Settings(mechanisms=mechanisms), key=0)
    for each in (study, study.tell({"X": -3.0}, 3.3)):
        [nothing] = each.effects({}).to_dict("records")
        assert each.best.by == "nothing" and each.best.intervention == {}
        assert (each.best.mean, each.best.sd) == pytest.approx((nothing["mean"], nothing["sd"]))
        assert each.best.interval() == pytest.approx((nothing["lower"], nothing["upper"]))
        assert "to set nothing" in repr(each) and "to set nothing" in each._repr_html_()
    assert each.best.tried.intervention == {"X": -3.0} and "best tried do(X = -3)" in repr(each)
    if mechanisms == "linear":
        values = data.outcomes
        mean = values.mean(), values.std(ddof=1) / np.sqrt(50)
        assert (each.best.mean, each.best.sd) == pytest.approx(mean)


def test_a_run_may_end_with_doing_nothing(chain):
    problem = cb.Problem(chain.problem.graph, "Y", domains={"X": (-5, -3)})
    options = {"data": chain.observe(50, 0), "experiment": chain.effect, "progress": False}
    run = cb.optimize(problem, rounds=2, key=0, **options)
    assert run.best.by == "nothing" and np.isnan(run.trace["best_value"].values).all()
    assert "best to set nothing" in repr(run) and run.extrapolation is None
    cb.plots.draw_run(run)


# Contradictions


def replicates(problem, outcomes, variances):
    """Return outcomes (t, n) of t interventions, merged."""
    queries = problem.queries([{"X": float(x)} for x in range(len(outcomes))])
    counts = len(outcomes), outcomes.shape[1]
    return merge_replicates(
        queries[np.repeat(np.arange(counts[0]), counts[1])],
        outcomes.ravel(),
        np.repeat(variances, counts[1]),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_right_model_is_contradicted_as_rarely_as_the_limits_say(chain, count):
    """Against the standard normal: chances of 0.0027 and 0.0062, by two standard errors each."""
    rng, found = np.random.default_rng(count), []
    for _ in range(600):
        truth = rng.normal(size=3)
        outcomes = truth[:, None] + rng.normal(size=(3, count))
        merged, known = (
            replicates(chain.problem, outcomes, np.ones(3)),
            Prediction(truth, 0 * truth),
        )
        found.append(
            (contradicted(merged, known, best=0).any(), disappoints(merged, known, "min").mean())
        )
    contradictions, disappointed = np.mean(found, axis=0)
    assert contradictions < 2 * (0.0027 + 2 * 0.0027 / 3) + 0.006
    assert disappointed < 2 * 0.0062 + 0.006


def test_replicates_that_hardly_vary_contradict_a_model_whose_noise_is_too_large(chain):
    rng = np.random.default_rng(0)
    merged = replicates(chain.problem, 2.0 + 0.1 * rng.normal(size=(1, 5)), np.full(1, 9.0))
    near, far = (Prediction(np.zeros(1), np.full(1, sd)) for sd in (0.3, 1.5))
    assert disappoints(merged, near, "min").all() and not disappoints(merged, near, "max").any()
    assert contradicted(merged, near).all() and not contradicted(merged, far).any()
    equal = replicates(chain.problem, np.full((1, 3), 2.0), np.full(1, 9.0))  # they were rounded
    assert not contradicted(equal, near).any()


# The loop


def test_after_an_outcome_that_disappoints_the_loop_looks_elsewhere(study):
    settings = cb.Settings(discrepancy=False, learn_from="target")  # it keeps its promise
    fixed = cb.Study(study.problem, study.data, settings, key=0)
    assert fixed.ask().intervention == {"Z": 5.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        after = fixed.tell({"Z": 5.0}, [-2.0, -2.2, -1.8], sure=True)
        by_default = study.tell({"Z": 5.0}, [-2.0, -2.2, -1.8], sure=True)
    assert after.problem.interventions(after.state.disappointing) == [{"Z": 5.0}]
    suggestion = after.ask()
    assert suggestion.intervention != {"Z": 5.0}
    assert "except do(Z = 5), which disappointed" in suggestion.why.text
    assert {"Z": 5.0} != after.ask(2)[1].intervention
    assert by_default.best.mean > -4 or by_default.best.intervention != {"Z": 5.0}
    assert by_default.ask().intervention != {"Z": 5.0}


def test_a_batch_holds_three_of_a_kind_only_where_that_pays(study):
    asked = study.ask(5)
    found = [tuple(each.intervention.items()) for each in asked]
    assert found[:2] == [(("Z", 5.0),)] * 2 and found[2] != found[0]
    assert "except what is 2 times under way" in asked[2].why.text
    for index, each in enumerate(found):
        if found[:index].count(each) >= 2:
            assert f"{found[:index].count(each) + 1} times at once, since" in asked[index].why.text
    pending = study.ask(1, pending=[{"Z": 5.0}] * 2)[0]
    assert pending.intervention != {"Z": 5.0}
    alone = cb.Problem(
        study.problem.graph, "Y", domains={"Z": cb.Levels([5.0, -5.0])}, sets=[["Z"]]
    )
    repeated = cb.Study(alone, study.data, key=0).ask(3)[2]
    assert repeated.intervention == {"Z": 5.0} and "since no other is likely" in repeated.why.text


# The invariant


def assess(system, count, seed, whole, rounds=8, **options):
    """Optimize with the default settings; see `describe`."""
    problem, data, experiment = (
        system.problem,
        system.observe(count, seed),
        system.experiment(seed, whole),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        run = cb.optimize(
            problem, cb.Settings(**options), data=data, experiment=experiment, rounds=rounds,
            key=seed, progress=False,
        )  # fmt: skip
        nothing = run.effects({})["mean"][0]
        sign = 1 if problem.objective == "min" else -1
        assert sign * (run.best.mean - nothing) <= 1e-12  # never worse than doing nothing
        return describe(system, run)


def is_silent(found):
    """Return whether its outcomes lie 3 standard errors beyond the interval without a word."""
    return found["beyond"] > 3 and not (found["discrepancy"] and found["says so"])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_interval_of_what_is_recommended_agrees_with_its_own_outcomes(seed, whole):
    found = assess(random_system(seed), 100, seed, whole)
    assert not found["outcomes"] or (found["beyond"] <= 2 and not is_silent(found)), found


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_intervals_agree_with_own_outcomes_in_95_percent_of_random_wrong_models(whole):
    """The mean of own outcomes lies at most 2 true standard errors beyond the interval of 90 %.

    So in at least 95 of 100 runs; more than 3 of them beyond without a word in at most 2.
    """
    found = [assess(random_system(seed), 100, seed, whole) for seed in range(1_000, 1_100)]
    measured = [each for each in found if each["outcomes"]]
    assert len(measured) >= 80
    assert np.mean([each["beyond"] <= 2 for each in measured]) >= 0.95
    assert sum(map(is_silent, measured)) <= 2


@pytest.mark.slow
def test_whole_rows_do_not_exempt_the_yield_of_a_plant_with_nine_variables():
    """Without a discrepancy rows raise what is promised, and intervals of 90 % miss by far."""
    system, count = SYSTEMS["plant"]
    seeds, options = range(6), {"learn_from": "rows"}
    found = [assess(system, count, seed, True) for seed in seeds]
    forced = [assess(system, count, seed, True, discrepancy=False, **options) for seed in seeds]
    assert np.mean([each["holds"] for each in forced]) <= 0.5
    assert np.mean([each["holds"] for each in found]) >= 0.8
    assert not any(map(is_silent, found))
    assert np.mean([each["gap"] for each in found]) < np.mean([each["gap"] for each in forced]) / 2
