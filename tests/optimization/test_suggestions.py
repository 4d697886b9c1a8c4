"""A study asks what `optimize` would run."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.study_cases import answer_of, confounded, follow, same

import causal_bo_ppl as cb


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"acquisition": "thompson"},
        pytest.param({"acquisition": "thompson", "batch": 3}, marks=pytest.mark.heavy),
        pytest.param({"acquisition": "look-ahead", "batch": 2}, marks=pytest.mark.heavy),
        {"acquisition": "log-ei", "learn_from": "target"},
        pytest.param(
            {"acquisition": cb.acquisition.InTurn(("look-ahead", "ucb")), "batch": 2},
            marks=pytest.mark.heavy,
        ),
        {"acquisition": cb.acquisition.ConfidenceBound("schedule"), "noise": 0.0},
        {"noise": 0.5, "discrepancy": True},
        {"surrogate": "uncoupled"},
        {"relinearize": False},
        {"budget": 2.5},
        {"observe": cb.optimization.Observe(probability=0.6, batch=2)},
        pytest.param(
            {"observe": cb.optimization.Observe(probability=None, cost=0.01, batch=3)},
            marks=pytest.mark.heavy,
        ),
        pytest.param({"name": "cbo"}, marks=pytest.mark.heavy),
        pytest.param({"name": "bo"}, marks=pytest.mark.heavy),
        pytest.param({"mechanisms": "gp"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_suggestions_are_those_of_optimize(chain, chain_data, options):
    follow(chain, chain_data, cb.Settings.preset(**{"name": "gc-cbo", "rounds": 3} | options), 1)


@pytest.mark.heavy
def test_suggestions_are_those_of_optimize_under_latent_confounding():
    problem, data, experiment = confounded()
    follow(problem, data, cb.Settings(rounds=3), 2, experiment)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["laplace", "nuts"])
def test_suggestions_are_those_of_optimize_with_other_methods_of_inference(
    chain, chain_data, method
):
    follow(chain, chain_data, cb.Settings(rounds=2, inference=method, accept="a test"), 2)


def test_data_that_contradict_the_graph_begin_with_a_discrepancy_as_in_optimize():
    draws = np.random.default_rng(0).normal(size=(3, 80))
    a, m = draws[0], draws[0] + draws[1]
    graph = cb.CausalGraph.parse("A -> M -> Y")  # Y also follows A
    problem = cb.Problem(graph, "Y", domains={"A": (-3.0, 3.0), "M": (-3.0, 3.0)})
    frame = pd.DataFrame({"A": a, "M": m, "Y": m - 2 * a + draws[2]})
    data = cb.Data.from_frame(problem, frame)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, study = follow(problem, data, cb.Settings(rounds=3), 0, lambda queries: [0.3])
        issued = len(caught)
        again = cb.Study.from_json(study.to_json(), data)
    assert len(caught) == issued == 2  # once by the run, once by the study, not when it is read
    assert all("should be independent given M" in str(each.message) for each in caught)
    assert again.ask().mean == study.ask().mean and study.surrogate.discrepancy is not None


def test_surprise_is_that_of_the_run(chain, chain_data):
    run, study = follow(chain, chain_data, cb.Settings(rounds=4, learn_from="target"), 7)
    assert study.surprise.p == run.surprise.p
    assert study.surprise.table["z"].tolist() == run.surprise.table["z"].tolist()


def test_asking_changes_nothing_and_pending_suggestions_are_fantasized(chain_study):
    first, again = chain_study.ask(), chain_study.ask()
    assert first.intervention == again.intervention and first.mean == again.mean
    batch = chain_study.ask(2)
    later = chain_study.ask(pending=batch[:1])
    assert same(later.query, batch[1].query) and later.number == batch[1].number == 2
    assert later.bound == batch[1].bound
    dictionary = chain_study.ask(pending=[batch[0].intervention])
    assert same(dictionary.query, later.query)


def test_draws_of_thompson_differ_between_positions_of_a_round(chain, chain_data):
    settings = cb.Settings(acquisition="thompson", batch=3, discrepancy=False, noise=1.0)
    study = cb.Study(chain.problem, chain_data, settings, key=5)
    key = jax.random.fold_in(study.round_key(0), 1)
    batch = study.ask(3)
    after = study.tell(batch[0], -6.0)
    cases = [(study, batch[0], 0), (study, batch[2], 2), (after, after.ask(), 1)]
    for of, suggestion, position in cases:
        drawn = of.surrogate.sample(jax.random.fold_in(key, position), suggestion.query)
        assert suggestion.bound == pytest.approx(drawn[0, 0])
    pending = study.ask(pending=batch[:2])
    fantasized = study.surrogate
    for each in batch[:2]:
        fantasized = fantasized.fantasize(each.query, 1.0)
    drawn = fantasized.sample(jax.random.fold_in(key, 2), pending.query)
    assert pending.bound == pytest.approx(drawn[0, 0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"batch": 2}, marks=pytest.mark.heavy),
        pytest.param(
            {"observe": cb.optimization.Observe(probability=0.5, batch=2), "batch": 2},
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_study_reports_where_optimize_would_stop(chain, chain_data, options):
    settings = cb.Settings(
        rounds=9, stop=cb.optimization.Stop(5.0, patience=3), report="model", **options
    )
    run = cb.optimize(chain, data=chain_data, settings=settings, key=3, progress=False)
    study = cb.Study(chain.problem, chain_data, settings, key=3)
    for number in (1, 2):
        assert study.stopped == "" and "Settings.stop" not in study.ask().why.text
        rows = run.log.select(run.rounds == number)
        if rows.is_passive.any():
            study = study.tell(rows.rows(rows.is_passive))
        steps = rows.select(~rows.is_passive)
        for position in range(len(steps)):
            study = study.tell(steps.queries[position], answer_of(steps, position))
            assert bool(study.stopped) == (number == 2 and position + 1 == len(steps))
    assert study.stopped == run.stopped and "paid for its cost in 3 rounds" in study.stopped
    assert "By Settings.stop a run would end: no experiment paid" in study.ask().why.text
    assert "Settings.stop is met" in repr(study)
    assert "Stop: no experiment" in study._repr_html_()
    assert cb.Study.from_json(study.to_json(), chain_data).stopped == study.stopped
    going_on = study.tell({"X": 1.0}, -1.4)
    assert "paid for its cost in 3 rounds" in going_on.stopped


def test_patience_restarts_where_the_expected_gain_exceeds_the_cost(chain, chain_data):
    settings = cb.Settings(stop=cb.optimization.Stop(1e-9, patience=1), report="model")
    study = cb.Study(chain.problem, chain_data, settings, key=3)
    assert study.stopped == "" and "Settings.stop" not in repr(study)
