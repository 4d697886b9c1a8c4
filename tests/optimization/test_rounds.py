"""Rounds of an optimization: methods by name, evidence, observing, stopping, and going on.

Internals: outcomes are given in every order, below the study.
"""

import warnings
from functools import partial

import numpy as np
import pytest
from helpers import runs
from helpers.logs import recorded

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.state import States, begin

optimize = partial(runs.optimize, rounds=4, observations=50, key=0, progress=False)


@pytest.mark.parametrize("preset", runs.PRESETS)
def test_every_preset_runs_by_its_name(chain, preset):
    run = optimize(chain, preset=preset)
    assert len(run) == 4 and np.isfinite(run.best.mean) and run.settings.name == preset
    assert all(run.trace["why"].values) and run.stopped == "all 4 rounds were used"
    assert [each.how for each in run.asked] == run.trace["why"].values.tolist()
    if preset == "bo":
        assert set(run.trace["set"].values) == {"X, Z"}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "acquisition",
    ["thompson", "look-ahead", "log-ei", "ucb-pointwise", cb.acquisition.PerCost("ei")],
)
def test_every_acquisition_runs_and_the_same_key_gives_the_same_trace(chain, acquisition):
    one, two = (optimize(chain, acquisition=acquisition) for _ in range(2))
    assert one.to_frame().equals(two.to_frame())


@pytest.mark.parametrize(
    "options",
    [
        {"surrogate": "independent"},
        {"acquisition": cb.acquisition.CostSubtracted("ei", 0.1)},
        {"acquisition": cb.acquisition.ConfidenceBound("schedule")},
        {
            "acquisition": cb.acquisition.ConfidenceBound(
                cb.acquisition.BetaSchedule(0.2), causal=1.0
            )
        },
        {"observe": cb.optimization.Observe(0.2, most=5), "stop": cb.optimization.Stop(0.01)},
        {"discrepancy": True, "learn_from": "target", "surrogate": "uncoupled"},
    ],
    ids=str,
)
def test_settings_are_written_and_read(options):
    settings = cb.Settings(rounds=3, **options)
    assert cb.Settings.from_json(settings.to_json()) == settings


def test_whole_observations_inform_the_mechanisms_where_they_are_measured(chain):
    run = optimize(chain)
    assert run.surrogate.post.n_observations == 54 and run.study.start.post.n_observations == 50
    assert run.to_frame().equals(optimize(chain, learn_from="rows").to_frame())
    exact = optimize(chain, noise=0.0)
    assert exact.surrogate.post.n_observations == 50 and len(exact.surrogate.observed.values) == 4


def test_outcomes_without_noise_are_not_asked_for_twice(chain):
    run = optimize(chain, noise=0.0, discrepancy=False)
    assert len(run.problem.to_frame(run.queries).drop_duplicates()) == 4


@pytest.mark.slow
def test_a_right_model_has_the_same_trace_with_and_without_the_chance_of_a_residual(chain):
    same = [
        optimize(chain, rounds=8, key=seed)
        .to_frame()
        .equals(optimize(chain, rounds=8, key=seed, discrepancy=False).to_frame())
        for seed in range(10)
    ]
    assert sum(same) >= 9


@pytest.mark.heavy
def test_a_wrong_model_is_named_and_left(bowl):
    """Y = (Z - 0.5)^2 + e is best at 0.5; linear mechanisms stay in a corner."""
    with pytest.warns(cb.CausalBOWarning) as said:
        run = optimize(bowl, rounds=12, observations=400)
    words = [str(each.message) for each in said]
    assert any(
        "before the first experiment: 1 of 2 mechanisms are nonlinear" in each for each in words
    )
    assert any("better explained with a model discrepancy" in each for each in words)
    residual = run.trace["discrepancy"].values
    assert residual[-1] > 0 and not run.surrogate.is_affine
    assert len(run.problem.to_frame(run.queries).drop_duplicates()) > 3
    assert [check.name for check in run.checks if check.verdict == "failed"][0] == "mechanisms"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cb.CausalBOWarning)
        stuck = optimize(bowl, rounds=12, observations=400, discrepancy=False)
    assert stuck.surprise.alarm is not None and run.regret()[-1] < stuck.regret()[-1]


def test_the_posterior_does_not_depend_on_the_order_of_outcomes(bowl):
    post = cb.fit(bowl.problem, bowl.observe(100, 0))
    queries = bowl.problem.queries([{"Z": -3.0}, {"Z": 3.0}, {"X": 3.0}, {"Z": -3.0}])
    log, start = recorded(bowl.problem, queries, [12.0, 6.5, 7.0, 13.0]), begin(post, cb.Settings())
    together, states, known = States(start).after(log), States(start), log.select([])
    for row in reversed(range(4)):
        known = known.join(log.select([row]))
        apart = states.after(known)
    assert together.surrogate.discrepancy is not None
    queries = bowl.problem.sobol(4)
    both = (together.surrogate.predict(queries), apart.surrogate.predict(queries))
    for one, two in zip(*both, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.heavy
def test_rounds_may_observe_instead_of_running_experiments(chain):
    run = optimize(
        chain, rounds=12, observe=cb.optimization.Observe(0.5, most=5, batch=2, cost=0.1)
    )
    passive = run.rounds[run.log.is_passive]  # 2 batches: a third would be more than 5
    assert len(passive) == 4 and len(np.unique(passive)) == 2 and len(run) == 10
    assert run.surrogate.post.n_observations == 50 + 4 + 10 and not len(
        run.surrogate.observed.values
    )
    assert run.trace["total_cost"].values[-1] == pytest.approx(10 + 0.4)
    genes = cb.models.load("ecoli70", target="b1583", parents=False, max_size=1)
    by_gain = optimize(
        genes, observations=30, observe=cb.optimization.Observe(None, 40, 20, cost=1e-9)
    )
    passive = by_gain.rounds[by_gain.log.is_passive]
    assert passive[0] == 1 and len(np.unique(passive)) == 2 and len(passive) == 40
    poor = optimize(chain, rounds=9, budget=2.5, observe=cb.optimization.Observe(0.9, cost=1.0))
    assert poor.trace["total_cost"].values[-1:].sum() <= 2.5 and poor.log.is_passive.sum() <= 2
    with pytest.raises(cb.errors.SettingsError, match="needs the cost of an observation"):
        cb.optimization.Observe(None)


def test_a_run_ends_when_no_experiment_gains_its_cost(chain):
    run = optimize(chain, rounds=30, stop=cb.optimization.Stop(0.05))
    assert len(run) < 30 and "no experiment paid for its cost" in run.stopped
    assert len(optimize(chain, stop=cb.optimization.Stop(1e-30, patience=9))) == 4


def test_a_callback_sees_every_round_and_may_end_the_run(chain):
    seen = []

    def watch(run):
        seen.append(len(run))
        return len(run) == 3

    run = optimize(chain, rounds=9, callback=watch)
    assert seen == [1, 2, 3] and len(run) == 3 and "callback" in run.stopped


@pytest.mark.heavy
def test_a_run_goes_on_from_its_record_as_if_it_had_not_ended(chain):
    options = {"observe": cb.optimization.Observe(0.3), "batch": 2}
    whole, half = (optimize(chain, rounds=rounds, **options) for rounds in (8, 4))
    again = optimize(chain, rounds=8, resume=half, **options)
    assert again.to_frame().equals(whole.to_frame()) and len(half) < len(whole)
    with pytest.raises(cb.errors.ArgumentError, match="with the same key"):
        optimize(chain, rounds=8, resume=half, key=1, **options)
    with pytest.raises(cb.errors.ArgumentError, match="with the same settings"):
        optimize(chain, rounds=8, resume=half)
    with pytest.raises(cb.errors.DataError, match="began with other data"):
        optimize(chain, rounds=8, resume=half, data=chain.observe(20, 3), **options)


def warnings_after_the_first_round(caught):
    words = [str(each.message) for each in caught]
    return [
        each for each in words if "before the first" not in each and "is not linear" not in each
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("discrepancy", ["auto", False])
def test_a_resumed_run_warns_of_nothing_twice(bowl, discrepancy):
    options = {"observations": 400, "discrepancy": discrepancy}
    with pytest.warns(cb.CausalBOWarning) as caught:
        half = optimize(bowl, rounds=7, **options)
    assert warnings_after_the_first_round(caught)
    with pytest.warns(cb.CausalBOWarning) as again:
        whole = optimize(bowl, rounds=9, resume=half, **options)
    assert len(whole) == 9 and not warnings_after_the_first_round(again)
    with pytest.warns(cb.CausalBOWarning) as late:  # what was not warned of yet
        optimize(bowl, rounds=9, resume=optimize(bowl, rounds=1, **options), **options)
    assert warnings_after_the_first_round(late) == warnings_after_the_first_round(caught)


@pytest.mark.heavy
def test_a_resumed_run_is_as_patient_as_one_that_did_not_end(chain):
    options = {"stop": cb.optimization.Stop(0.05, patience=3)}
    whole = optimize(chain, rounds=30, **options)
    assert "no experiment paid for its cost in 3 rounds" in whole.stopped
    for rounds in range(1, len(whole) + 1):
        again = optimize(
            chain, rounds=30, resume=optimize(chain, rounds=rounds, **options), **options
        )
        assert again.to_frame().equals(whole.to_frame()) and again.stopped == whole.stopped
    ended = optimize(chain, rounds=30, resume=whole, **options)
    assert ended.to_frame().equals(whole.to_frame()) and ended.stopped == whole.stopped


def test_an_experiment_that_cannot_observe_raises_an_error(chain):
    with pytest.raises(cb.errors.ExperimentFailed, match="must return Data, .*; it returned list"):
        optimize(
            chain.problem,
            data=chain.observe(40, 0),
            experiment=lambda queries: [0.0] * len(queries),
            observe=cb.optimization.Observe(0.99),
            rounds=3,
            progress=False,
            key=0,
        )
