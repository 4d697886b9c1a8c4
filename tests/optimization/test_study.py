"""A study is a function of its log: texts, order and grouping, retractions, scores, warnings.

Internals: what a study knows is computed again from its log.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.study_cases import confounded, reports

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.state import States, infer_state


def test_study_shows_records_effects_and_surprise(chain, chain_study):
    assert repr(chain_study).startswith("Study(min Y, 0 outcomes; the model's best do(Z = 5)")
    assert chain_study.best.by == "model" and "Nothing is recorded yet" in chain_study._repr_html_()
    updated = chain_study.tell(chain_study.ask(), -6.0).tell({"X": 5.0}, -5.0, variance=0.25)
    table = updated.to_frame()
    assert table["outcome"].tolist() == [-6.0, -5.0] and table["suggestion"].tolist() == [1, pd.NA]
    assert table["do(Z)"].tolist()[0] == 5.0 and table["variance"].tolist()[1] == 0.25
    assert (table["z"] == (table["outcome"] - table["expected"]) / table["spread"]).all()
    shown = updated._repr_html_()
    assert "Surprise: The 2 outcomes agree" in shown and "do(X = 5)" in shown
    assert "2 outcomes; best do(Z = 5)" in repr(updated) and updated.best.by == "outcomes"
    with pytest.raises(AttributeError, match="never changes"):
        updated.observations = ()


def test_study_needs_a_problem_data_settings_and_a_key(chain, chain_data):
    with pytest.raises(cb.errors.ArgumentError, match="a study needs a Problem, got CausalSystem"):
        cb.Study(chain, chain_data, key=0)
    with pytest.raises(
        cb.errors.DataError, match="data must be cb.Data or a pandas .*got NoneType"
    ):
        cb.Study(chain.problem, None, key=0)
    with pytest.raises(cb.errors.SettingsError, match="settings must be cb.Settings"):
        cb.Study(chain.problem, chain_data, {"beta": 1.0}, key=0)
    with pytest.raises(cb.errors.SeedError, match="key must be"):
        cb.Study(chain.problem, chain_data, key="seed")
    with pytest.raises(cb.errors.DataError, match="read them for this problem"):
        cb.Study(chain.problem, cb.models.load("healthcare").observe(9, 0), key=0)
    with pytest.raises(cb.errors.ObservationError, match="needs whole rows"):
        full = cb.Study(chain.problem, chain_data, cb.Settings(learn_from="rows"), key=0)
        full.tell({"X": 1.0}, -1.0)


def test_data_frame_begins_the_same_study(chain, chain_data, chain_study):
    assert (
        cb.Study(chain.problem, chain_data.to_frame(), key=0).fingerprint == chain_study.fingerprint
    )


def test_earlier_experiments_that_cannot_be_used_are_reported_by_a_warning():
    problem, seen, experiment = confounded()
    rows = experiment(problem.queries([{"X": 1.0}, {"X": 9e-1}, {"Z": 1.0}]))
    alone = cb.Problem(problem.graph, "Y", domains=problem.domains, sets=[["Z"]])
    with pytest.warns(cb.CausalBOWarning, match="2 of 3 earlier experiments are omit") as caught:
        study = cb.Study(alone, seen.join(rows), key=0)
    assert [each.filename for each in caught] == [__file__]
    again = cb.Study.from_json(study.to_json(), seen.join(rows))  # without a word
    assert (
        again.ask().mean == study.ask().mean
        and len(study.start.earlier) == len(study.state.recorded) == 1
    )


def test_data_frames_are_taken_wherever_data_are(chain, chain_data, chain_study):
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}]), 3)
    assert chain_study.tell(rows.to_frame()).best == chain_study.tell(rows).best
    one = rows.select(slice(0, 1))
    reported = [chain_study.tell({"Z": 2.0}, each) for each in (one, one.to_frame())]
    assert reported[0].to_frame().equals(reported[1].to_frame())
    assert reported[0].to_frame()["whole_row"].all()
    seen = chain.observe(3, 9)
    passive = [chain_study.tell({}, each) for each in (seen, seen.to_frame())]
    assert passive[0].posterior.n_observations == passive[1].posterior.n_observations == 43
    batch = chain_study.ask(2)
    answers = chain.experiment(chain.problem.queries([each.intervention for each in batch]), 4)
    both = [chain_study.tell(batch, each) for each in (answers, answers.to_frame())]
    assert both[0].ask().mean == both[1].ask().mean
    again = cb.Study.from_json(both[0].to_json(), chain_data.to_frame())
    assert again.ask().mean == both[0].ask().mean
    with pytest.raises(cb.errors.ObservationError, match="column"):
        chain_study.tell(rows.to_frame().drop(columns="X"))


# What is inferred follows from the log, whatever the order and the grouping of reports


def state_of(study, vertices):
    """Return what must not depend on the order of reports: predictions, best, and stopping."""
    predicted = study.surrogate.predict(vertices)
    return np.concatenate(
        [study.posterior.mean, np.ravel(study.posterior.covariance), predicted.mean, predicted.sd,
         [study.best.mean, study.best.sd, study.spent, study.posterior.n_observations]]
    )  # fmt: skip


def assert_same_study(one, other):
    vertices = one.problem.vertices()
    left, right = state_of(one, vertices), state_of(other, vertices)
    np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-12)
    assert one.best.intervention == other.best.intervention and one.best.by == other.best.by
    assert one.stopped == other.stopped and one.warnings == other.warnings
    suggestion, again = one.ask(), other.ask()
    assert suggestion.intervention == again.intervention and suggestion.mean == again.mean


@pytest.fixture(scope="module", params=["rows", "target"])
def answered(request, chain, chain_data):
    """A study, five of its suggestions, and their outcomes; two are replicates of one."""
    settings = cb.Settings(
        learn_from="auto" if request.param == "rows" else "target",
        batch=2,
        stop=cb.optimization.Stop(5.0, patience=2),
        acquisition="thompson",
    )
    study = cb.Study(chain.problem, chain_data, settings, key=11)
    suggestions, outcomes, current = [], [], study
    for number in (1, 2):
        for suggestion in current.ask(2):
            row = chain.experiment(suggestion.query, 10 * number + len(outcomes))
            suggestions.append(suggestion)
            outcomes.append(row if request.param == "rows" else float(row.outcomes[0]))
            current = current.tell(suggestion, outcomes[-1])
    suggestions.append(current.ask())
    outcomes.append([-5.9, -6.6])
    return study, suggestions, outcomes


def test_outcomes_of_suggestions_give_the_same_study_in_any_order_and_grouping(answered):
    study, suggestions, outcomes = answered
    expected = study
    for suggestion, outcome in zip(suggestions, outcomes, strict=True):
        expected = expected.tell(suggestion, outcome)
    assert expected.stopped and len(expected.surprise) == 6
    generator = np.random.default_rng(0)
    for turn in range(6):
        order, found = generator.permutation(5).tolist(), study
        while order:
            size = int(generator.integers(1, len(order) + 1)) if turn else 1
            some, order = order[:size], order[size:]
            if all(isinstance(outcomes[each], list | float) for each in some) and turn % 2:
                given = [outcomes[each] for each in some]
                found = found.tell([suggestions[each] for each in some], given)
                continue
            for each in some:
                again = isinstance(outcomes[each], list)
                parts = outcomes[each][::-1] if again else [outcomes[each]]
                for part in parts:
                    found = found.tell(suggestions[each], part, again=again)
        assert_same_study(found, expected)
        assert found.surprise.p == pytest.approx(expected.surprise.p, rel=1e-12)
        mine, theirs = (
            each.surprise.table.drop(columns=["set", "intervention"]) for each in (found, expected)
        )
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
        assert found.surprise.table["intervention"].equals(expected.surprise.table["intervention"])


def test_other_reports_give_the_same_study_in_any_order_and_grouping(chain, chain_data):
    settings = cb.Settings(stop=cb.optimization.Stop(1e-3))
    start, given = cb.Study(chain.problem, chain_data, settings, key=0), reports(chain)
    expected = start
    for arguments, options in given:
        expected = expected.tell(*arguments, **options)
    generator = np.random.default_rng(3)
    for _ in range(3):
        found = start
        for position in generator.permutation(len(given)):
            (what, *outcome), options = given[position]
            replicates = outcome[0] if outcome and isinstance(outcome[0], list) else None
            for part in [[each] for each in replicates] if replicates else [outcome]:
                found = found.tell(what, *part, **options)
        assert_same_study(found, expected)


def test_what_was_learned_step_by_step_is_what_the_whole_log_says(chain, chain_data, answered):
    study, suggestions, outcomes = answered
    other = cb.Study(chain.problem, chain_data, cb.Settings(), key=0)
    for suggestion, outcome in zip(suggestions, outcomes, strict=True):
        study = study.tell(suggestion, outcome)
    for arguments, options in reports(chain):
        other = other.tell(*arguments, **options)
    for each in (study, other):
        whole = infer_state(each.start, each.observations)
        vertices = chain.problem.vertices()
        for mine, theirs in (
            (each.posterior.mean, whole.posterior.mean),
            (each.posterior.covariance, whole.posterior.covariance),
            *zip(each.surrogate.predict(vertices), whole.surrogate.predict(vertices), strict=True),
        ):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        assert whole.best == each.best
        fresh = each._with(states=States(each.start))  # nothing is kept from before
        assert fresh.stopped == each.stopped and fresh.surprise.p == each.surprise.p
        assert fresh.to_json() == each.to_json()


# Observations that are taken back


def test_a_retracted_observation_leaves_what_was_known_without_it(chain_study):
    without = chain_study.tell({"Z": 5.0}, -6.2)
    wrong = chain_study.tell({"X": 2.0}, 1.5).tell({"Z": 5.0}, -6.2)
    right = wrong.retract(1, " typing error ")
    vertices = without.problem.vertices()
    for mine, theirs in zip(
        right.surrogate.predict(vertices), without.surrogate.predict(vertices), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(right.posterior.mean, without.posterior.mean)
    assert right.best == without.best and right.ask().mean == without.ask().mean
    assert right.surprise.table.equals(without.surprise.table)
    assert (right.spent, without.spent) == (2.0, 1.0)
    table = right.to_frame()
    assert table["status"].tolist() == ["retracted", "observed"]
    assert table["note"].tolist() == ["retracted: typing error", ""]
    assert table["outcome"].tolist() == [1.5, -6.2] and np.isnan(table["z"].tolist()[0])
    assert "1 outcome, 1 retracted;" in repr(right) and len(wrong.observations) == 2
    assert wrong.observations.is_observed.all()  # that study stays as it was


def test_a_retraction_is_kept_in_json_and_is_not_repeated(chain_data, chain_study):
    study = chain_study.tell({"X": 2.0}, 1.5).tell({"X": 1.0}, failed="leaked").retract(1, "typo")
    again = cb.Study.from_json(study.to_json(), chain_data)
    assert again.to_json() == study.to_json() and again.spent == study.spent == 2.0
    assert again.to_frame().equals(study.to_frame()) and again.best == study.best
    for each in (study, again):
        with pytest.raises(cb.errors.ObservationError, match="record 1 was retracted before: typo"):
            each.retract(1, "typo")
    assert study.retract(2, "another sample").spent == 2.0  # failures can be retracted too
    assert len(study.tell({"X": 2.0}, 1.5).observations) == 3  # and may be reported anew


@pytest.mark.parametrize(
    ("record", "why", "match"),
    [
        (2, "typo", r"there is no record 2; study.to_frame\(\) has 1 of them"),
        (1, "  ", "state why it is retracted"),
        (1, None, "state why it is retracted"),
    ],
)
def test_what_cannot_be_retracted_is_refused(chain_study, record, why, match):
    study = chain_study.tell({"X": 2.0}, -1.5)
    with pytest.raises(cb.errors.ObservationError, match=match):
        study.retract(record, why)
    with pytest.raises(cb.errors.CausalBOError, match="record must be a whole number"):
        study.retract(0, "typo")


def test_a_suggestion_whose_outcome_was_retracted_may_be_reported_anew(chain_study):
    suggestion = chain_study.ask()
    wrong = chain_study.tell(suggestion, -8.0)
    right = wrong.retract(1, "another sample").tell(suggestion, -6.0)
    assert right.best == chain_study.tell(suggestion, -6.0).best
    assert right.to_frame()["suggestion"].tolist() == [1, 1] and right.ask().number == 2


# What was really set


def test_what_was_really_set_is_learned_from_under_the_number_of_the_suggestion(chain_study):
    suggestion = chain_study.ask()
    assert suggestion.intervention == {"Z": 5.0}
    updated = chain_study.tell(suggestion, -6.0, actual={"Z": 4.5})
    alone = chain_study.tell({"Z": 4.5}, -6.0)
    assert updated.best == alone.best and updated.best.tried.intervention == {"Z": 4.5}
    assert updated.observations.settings() == [{"Z": 4.5}] and updated.spent == alone.spent
    table = updated.to_frame()
    assert table["suggestion"].tolist() == [1] and updated.ask().number == 2
    assert table["note"].tolist() == ["suggested was do(Z = 5)"]
    assert updated.surprise.table["intervention"].tolist() == ["do(Z = 4.5)"]
    row = {"X": 0.3, "Z": 4.5, "Y": -6.0}
    with pytest.raises(
        cb.errors.ObservationError, match="Z = 4.5, suggested was 5; report what was really set"
    ):
        chain_study.tell(suggestion, row)
    whole = chain_study.tell(suggestion, row, actual={"Z": 4.5})
    assert whole.to_frame()["whole_row"].tolist() == [True]
    assert whole.posterior.n_observations == chain_study.posterior.n_observations + 1


def test_what_was_really_set_may_be_out_of_domain_or_of_another_set(chain_study, chain_data):
    suggestion = chain_study.ask()
    for actual, outcome in (({"Z": 8.0}, -11.0), ({"X": 1.0, "Z": 5.0}, -7.0)):
        updated = chain_study.tell(suggestion, outcome, actual=actual)
        alone = chain_study.tell(actual, outcome)
        assert updated.effects([{"Z": 5.0}]).equals(alone.effects([{"Z": 5.0}]))
        assert updated.best.by == "model"
        assert updated.spent >= suggestion.cost  # what was suggested is paid for
        [note] = updated.to_frame()["note"]
        assert note == "out of domain: learned from, never suggested; suggested was do(Z = 5)"
        assert updated.to_frame()["suggestion"].tolist() == [1]
        again = cb.Study.from_json(updated.to_json(), chain_data)
        assert again.to_json() == updated.to_json() and again.ask().mean == updated.ask().mean
    failed = chain_study.tell(suggestion, failed="burst", actual={"Z": 30.0})
    assert failed.tell(suggestion, failed="burst", actual={"Z": 30.0}) is failed


def test_what_was_really_set_is_recorded_once_and_no_longer_pending(chain_study):
    suggestion = chain_study.ask()
    updated = chain_study.tell(suggestion, -6.0, actual={"Z": 4.5})
    assert updated.tell(suggestion, -6.0, actual={"Z": 4.5}) is updated
    for options in ({}, {"actual": {"Z": 4.0}}):
        with pytest.raises(
            cb.errors.ObservationError, match=r"with -6.0 under do\(Z = 4.5\) and is now .* -6.0"
        ):
            updated.tell(suggestion, -6.0, **options)
    assert updated.ask(pending=[suggestion]).number == updated.ask().number == 2
    same = chain_study.tell(suggestion, -6.0, actual={"Z": 5.0})
    assert same.tell(suggestion, -6.0) is same and same.to_frame()["note"].tolist() == [""]
    with pytest.raises(cb.errors.ObservationError, match="actual is what was really set"):
        chain_study.tell(suggestion, -6.0, actual=4.5)
    with pytest.raises(cb.errors.ObservationError, match="unknown variable 'W'"):
        chain_study.tell(suggestion, -6.0, actual={"W": 4.5})


def test_suggestions_of_different_states_with_one_number_are_not_confused(chain, chain_data):
    study = cb.Study(chain.problem, chain_data, cb.Settings(noise=0.0), key=0)
    batch = study.ask(2)
    effects = [float(chain.effect(each.query)[0]) for each in batch]
    later = study.tell(batch[1].intervention, effects[1])
    other = later.ask()
    assert other.number == batch[1].number == 2 and batch[0].number == 1
    assert other.intervention != batch[1].intervention, "or this test sees nothing"
    both = later.tell(batch[1], effects[1]).tell(other, float(chain.effect(other.query)[0]))
    assert both.to_frame()["suggestion"].tolist() == [pd.NA, 2, 2]
    assert later.tell(batch[1], effects[1]).ask(pending=[other]).number == 4  # other is pending
    assert both.ask(pending=[other, batch[1]]).number == both.ask().number == 4


# Candidates of an analyst


@pytest.mark.parametrize("acquisition", ["ucb", "log-ei", "thompson", "look-ahead"])
@pytest.mark.parametrize("batch", [1, 2])
def test_scores_agree_with_what_is_suggested(chain, chain_data, acquisition, batch):
    settings = cb.Settings(acquisition=acquisition, batch=batch)
    study = cb.Study(chain.problem, chain_data, settings, key=2)
    for seed in range(3):
        suggestion = study.ask()
        candidates = [{"X": 1.0}, suggestion.intervention, {"Z": -4.0}, {"X": -4.9}]
        table = study.score(candidates)
        assert table.index[0] == 1 and table["short"].iloc[0] == 0.0
        assert (table["short"] >= 0).all() and table["value"].is_monotonic_decreasing
        assert table["value"].iloc[0] == pytest.approx(-suggestion.bound)  # to be minimized
        assert table["mean"].iloc[0] == pytest.approx(suggestion.mean)
        assert table["sd"].iloc[0] == pytest.approx(suggestion.sd)
        np.testing.assert_allclose(table["value"] + table["short"], table["value"].iloc[0])
        assert table.loc[1, "outcomes"] == (study.observations.is_of(suggestion.query)).sum()
        assert table["cost"].tolist() == [1.0] * 4
        assert study.score(candidates).equals(table)  # asking changes nothing
        study = study.tell(suggestion, chain.experiment(suggestion.query, seed))


def test_scores_ignore_the_budget_and_refuse_what_is_not_legal(chain, chain_data):
    study = cb.Study(chain.problem, chain_data, cb.Settings(budget=1.0), key=0)
    study = study.tell(study.ask(), -6.0)
    with pytest.raises(cb.errors.DomainError, match="1 of the budget 1 are spent"):
        study.ask()
    assert study.score({"X": 1.0}, level=0.5)["intervention"].tolist() == ["do(X = 1)"]
    assert study.score({"X": 1.0, "Z": 1.0})["cost"].tolist() == [2.0]  # legal, not explored
    wide, narrow = (study.score({"X": 1.0}, level=level) for level in (0.9, 0.5))
    assert (wide["upper"] > narrow["upper"]).all()
    for candidates, match in (
        ([{"X": 99.0}], r"do\(X = 99\) lies outside"),
        ([{"X": 1.0}, {"W": 1.0}], "W"),
        ([], "there is no candidate to score"),
        ([{}], "a candidate sets nothing"),
    ):
        with pytest.raises(cb.errors.DomainError, match=match):
            study.score(candidates)


# Warnings


def said(caught):
    return [str(each.message) for each in caught]


def test_each_warning_is_issued_once_at_the_line_of_the_caller(bowl):
    data = bowl.observe(400, 0)
    with warnings.catch_warnings(record=True) as begun:
        warnings.simplefilter("always")
        study = cb.Study(bowl.problem, data, key=0)
    assert said(begun) == list(study.warnings) and len(begun) == 1
    assert "before the first experiment: 1 of 2 mechanisms are nonlinear" in said(begun)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for outcome in (12.0, 12.5, 11.7, 12.2):
            study = study.tell({"Z": -3.0}, outcome, sure=True)
        study = study.tell({"Z": 3.0}, 6.5, sure=True)
        first = len(caught)
        for outcome in (6.1, 6.9):
            study = study.tell({"Z": 3.0}, outcome, sure=True)
        assert len(caught) == first == 2  # each once, whatever came after
        study.ask(), study.best, study.surprise, study.stopped, repr(study)  # noqa: B018
        text = study.to_json()
        again = cb.Study.from_json(text, data)
        again = again.tell({"X": 1.0}, 2.0)
        assert len(caught) == first  # and nothing when it is read and goes on
    assert {each.filename for each in [*begun, *caught]} == {__file__}
    lines = Path(__file__).read_text().splitlines()
    assert all("study.tell(" in lines[each.lineno - 1] for each in caught)
    kinds = ["model discrepancy" in each for each in said(caught)]
    assert sorted(kinds) == [False, True] and len(study.warnings) == 3
    assert len(again.warnings) == 3


def test_a_late_surprise_is_warned_of_at_once_and_not_again(chain, chain_data):
    settings = cb.Settings(learn_from="target", discrepancy=False)
    study = cb.Study(chain.problem, chain_data, settings, key=0)
    noise = np.random.default_rng(0).normal(size=100)
    study = study.tell({"X": 1.0}, (noise - 1.0).tolist())
    for outcome, count in ((30.0, 1), (31.0, 0), (32.0, 0), (33.0, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            study = study.tell({"X": 1.0}, outcome, sure=True)
        assert len(caught) == count and study.surprise.alarm == 101


def test_reports_are_signed_where_somebody_gives_a_name_and_a_time(chain_data, chain_study):
    study = chain_study.tell({"X": 1.0}, [-1.0, -1.3], who="ann", when="2026-11-18 09:00")
    study = study.tell({"X": 2.0}, -2.0)
    assert study.to_frame()["who"].tolist() == ["ann", "ann", ""]
    assert study.to_frame()["when"].tolist()[:2] == ["2026-11-18 09:00"] * 2
    again = cb.Study.from_json(study.to_json(), chain_data)
    assert again.observations.who.tolist() == ["ann", "ann", ""]
    assert "who" not in chain_study.tell({"X": 1.0}, -1.0).to_frame()
    with pytest.raises(cb.errors.ObservationError, match="'who' is a text; got 3"):
        chain_study.tell({"X": 1.0}, -1.0, who=3)


def test_a_study_warns_before_it_computes_for_minutes(monkeypatch):
    system = cb.models.load("chain")
    begun = []
    monkeypatch.setattr(cb.Study, "_begin", lambda *_: begun.append(1) or 1 / 0)
    long = cb.Settings(inference=cb.NUTS(chains=4, warmup=50_000, draws=50_000))
    with (
        pytest.warns(cb.CausalBOWarning, match="400,000 steps .* expected to take minutes, and"),
        pytest.raises(ZeroDivisionError),
    ):
        cb.Study(system.problem, system.observe(600, 0), long, key=0)
    with pytest.raises(ZeroDivisionError):  # a usual fit is not warned of
        cb.Study(system.problem, system.observe(600, 0), cb.Settings(inference="nuts"), key=0)
    assert len(begun) == 2


def test_a_retraction_keeps_the_note_of_what_was_really_set(chain_study):
    study = chain_study.tell(chain_study.ask(), -6.0, actual={"Z": 4.5})
    [note] = study.retract(1, "wrong sample").observations.note
    assert note.startswith("wrong sample; suggested was do(")
