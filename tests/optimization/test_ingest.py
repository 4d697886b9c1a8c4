"""A study records what labs report, in any order and grouping, and each outcome once."""

import numpy as np
import pandas as pd
import pytest
from helpers.study_cases import confounded, reports, same

import causal_bo_ppl as cb


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"learn_from": "target"}, marks=pytest.mark.heavy),
        pytest.param({"surrogate": "uncoupled"}, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_order_of_reports_does_not_matter(chain, chain_data, options):
    start = cb.Study(chain.problem, chain_data, cb.Settings(budget=20.0, **options), key=0)
    given, found = reports(chain), []
    vertices = chain.problem.vertices()
    for order in [
        range(len(given)),
        *map(np.random.default_rng(0).permutation, [len(given)] * 6),
    ]:
        study = start
        for position in order:
            arguments, options = given[position]
            study = study.tell(*arguments, **options)
        suggestion = study.ask()
        predicted = study.surrogate.predict(vertices)
        found.append(
            (
                suggestion.intervention,
                suggestion.mean,
                suggestion.number,
                study.best,
                study.spent,
                predicted.mean.tolist(),
                predicted.sd.tolist(),
            )
        )
    assert all(each == found[0] for each in found) and found[0][4] == 7.0


def test_grouping_of_reports_does_not_matter(chain, chain_study):
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}, {"Z": 1.0}]), 3)
    at_once = chain_study.tell(rows).tell({"X": 5.0}, [-5.0, -5.2])
    one_by_one = chain_study.tell({"X": 5.0}, -5.2).tell(rows.select(slice(1, 3)))
    one_by_one = one_by_one.tell({"X": 5.0}, -5.0).tell(rows.to_frame().iloc[0])
    assert one_by_one.best == at_once.best
    assert one_by_one.ask().mean == at_once.ask().mean


def test_batch_is_reported_in_part_and_out_of_order(chain_study):
    batch = chain_study.ask(3)
    whole = chain_study.tell(batch, [-6.0, -6.5, -5.5])
    last_first = chain_study.tell(batch[2], -5.5).tell(batch, [-6.0, None, None])
    assert len(last_first.observations) == 2
    waiting = last_first.ask(pending=batch)  # those with an outcome are ignored
    alone = last_first.ask(pending=[batch[1]])
    assert same(waiting.query, alone.query) and waiting.sd == alone.sd
    done = last_first.tell(batch[1], -6.5)
    assert done.best == whole.best and done.ask().mean == whole.ask().mean
    with pytest.raises(cb.errors.ObservationError, match="a batch of 3 is reported with a list of"):
        chain_study.tell(batch, [-6.0])


def test_batch_is_reported_with_a_table_of_whole_observations(chain_study):
    batch = chain_study.ask(2)
    frame = pd.DataFrame({"X": [0.1, 0.2], "Z": [5.0, 5.0], "Y": [-6.0, -6.2]})
    updated = chain_study.tell(batch, frame)
    assert (
        updated.to_frame()["suggestion"].tolist() == [1, 2]
        and updated.to_frame()["whole_row"].all()
    )
    data = cb.Data.from_frame(chain_study.problem, frame, intervened=["Z"])
    assert chain_study.tell(batch, data).best == updated.best
    with pytest.raises(cb.errors.ObservationError, match="Z = 4, suggested was 5"):
        chain_study.tell(batch, frame.assign(Z=4.0))
    with pytest.raises(cb.errors.ObservationError, match="or with a table of as many whole rows"):
        chain_study.tell(batch, frame[:1])


def test_several_interventions_are_reported_with_a_list_of_outcomes(chain, chain_study):
    asked, values = [{"X": 5.0}, {"Z": 2.0}, {"X": 1.0}], [-5.0, None, [-1.0, -1.2]]
    listed = chain_study.tell(asked, values)
    alone = chain_study.tell({"X": 1.0}, [-1.0, -1.2]).tell({"X": 5.0}, -5.0)
    assert len(listed.observations) == 3 and listed.best == alone.best
    assert chain_study.tell(chain.problem.queries(asked), values).best == listed.best
    one = chain_study.tell(chain.problem.queries([{"X": 1.0}]), [-1.0, -1.2])
    assert len(one.observations) == 2
    with pytest.raises(cb.errors.ObservationError, match="a batch of 3 is reported with a list"):
        chain_study.tell(asked, -5.0)


def test_suggestion_reported_twice_is_recorded_once(chain_study):
    suggestion = chain_study.ask()
    updated = chain_study.tell(suggestion, -6.0)
    assert updated.tell(suggestion, -6.0) is updated
    with pytest.raises(
        cb.errors.ObservationError,
        match=r"suggestion 1, do\(Z = 5\), was recorded with -6.0 and is now reported with -6.5",
    ):
        updated.tell(suggestion, -6.5)
    assert len(updated.tell(suggestion, -6.5, again=True).observations) == 2
    assert updated.ask().number == 2
    assert (
        len(updated.tell(updated.ask(), -6.5).observations) == 2
    )  # the same intervention, asked for again


def test_suggestion_of_an_earlier_state_is_recorded_and_one_of_another_study_is_not(
    chain, chain_data, chain_study
):
    early = chain_study.ask(2)
    updated = chain_study.tell({"X": 1.0}, -1.2).tell(early[1], -6.0)
    assert updated.to_frame()["suggestion"].tolist() == [pd.NA, 2]
    other = cb.Study(chain.problem, chain_data, key=1)
    with pytest.raises(
        cb.errors.ObservationError, match=r"suggestion 1, do\(Z = 5\), is of another study"
    ):
        other.tell(early[0], -6.0)


def test_failure_is_recorded_and_paid_for_and_not_learned_from(chain, chain_data):
    study = cb.Study(chain.problem, chain_data, cb.Settings(budget=2.0), key=0)
    suggestion = study.ask()
    failed = study.tell(suggestion, failed="leaked")
    assert failed.spent == 1.0 and failed.best == study.best
    assert failed.ask().intervention == suggestion.intervention and failed.ask().number == 2
    assert "It failed before: leaked." in failed.ask().why.text
    mended = failed.tell(suggestion, -6.0)
    assert mended.to_frame()["failed"].tolist() == ["leaked", ""]
    with pytest.raises(cb.errors.DomainError, match="2 of the budget 2 are spent"):
        mended.ask()
    assert "1 failed" in repr(failed) and "1 outcome, 1 failed" in repr(mended)


def test_replicates_and_their_mean_with_its_variance_are_equally_informative(chain, chain_data):
    study = cb.Study(chain.problem, chain_data, cb.Settings(noise=0.8, discrepancy=False), key=0)
    replicates = study.tell({"X": 5.0}, [-5.0, -5.4])
    mean = study.tell({"X": 5.0}, -5.2, variance=0.4)
    left, right = (each.effects(chain.problem.vertices()) for each in (replicates, mean))
    assert np.allclose(left["mean"], right["mean"]) and np.allclose(left["sd"], right["sd"])


def test_observations_update_the_mechanisms(chain, chain_data, chain_study):
    more = chain.observe(5, 9)
    updated = chain_study.tell({}, more.to_frame())
    assert updated.posterior.n_observations == 45 and updated.best.by == "model"
    assert np.allclose(updated.posterior.mean, cb.fit(chain.problem, chain_data.join(more)).mean)
    row = dict(zip(more.nodes, more.values[0], strict=True))
    assert chain_study.tell({}, row).posterior.n_observations == 41


@pytest.mark.parametrize("variant", ["chain", "confounded"])
def test_experiments_in_the_data_and_reported_later_give_the_same_posterior(variant):
    problem, seen, experiment = confounded()
    if variant == "chain":
        chain = cb.models.load("chain")
        problem, seen = chain.problem, chain.observe(100, 0)
        experiment = lambda queries: chain.experiment(queries, 1)  # noqa: E731
    rows = experiment(problem.queries([{"X": 2.0}, {"Z": 1.0}, {"Z": -2.0}]))
    before = cb.Study(problem, seen.join(rows), key=0)
    alone = cb.Study(problem, seen, key=0)
    later = alone.tell(rows)
    asked = [{"X": 1.0}, {"Z": 2.0}]
    left, right = (each.effects(asked) for each in (before, later))
    assert (right["sd"] < alone.effects(asked)["sd"]).all()
    assert np.allclose(left["mean"], right["mean"], rtol=1e-9)
    assert np.allclose(left["sd"], right["sd"], rtol=1e-9)
    if variant == "confounded":
        with pytest.raises(
            cb.errors.DataError, match="or give all to cb.Study.problem, data, key=0"
        ):
            cb.fit(problem, seen.join(rows), method="wishart")


def test_outcome_that_is_known_with_the_same_digits_is_refused(chain, chain_data, chain_study):
    updated = chain_study.tell({"X": 5.0}, -5.0)
    with pytest.raises(
        cb.errors.ObservationError, match="known already, with the same digits.*again=True"
    ):
        updated.tell({"X": 5.0}, -5.0)
    assert len(updated.tell({"X": 5.0}, -5.0, again=True).observations) == 2
    assert len(updated.tell({"X": 5.0}, -5.1).observations) == 2
    with pytest.raises(
        cb.errors.ObservationError, match="nothing set with the outcome .* is known already"
    ):
        chain_study.tell(chain_data.select(slice(3, 4)))


def test_failure_reported_twice_is_recorded_once_and_is_no_longer_pending(chain_study):
    batch = chain_study.ask(2)
    failed = chain_study.tell(batch[1], failed="leaked")
    assert failed.tell(batch[1], failed="leaked") is failed and failed.spent == 1.0
    assert len(failed.tell(batch[1], failed="leaked", again=True).observations) == 2
    assert len(failed.tell(batch[1], failed="broke").observations) == 2  # another failure of it
    assert failed.ask(pending=batch).sd == failed.ask(pending=batch[:1]).sd
    assert failed.ask(pending=batch).number == failed.ask(pending=batch[:1]).number
    updated = failed.tell(batch[1], -6.0)
    assert (
        updated.tell(batch[1], failed="leaked") is updated
        and updated.tell(batch[1], -6.0) is updated
    )
    with pytest.raises(
        cb.errors.ObservationError, match=r"with -6.0 and is now reported with failed \(broke\)"
    ):
        updated.tell(batch[1], failed="broke")


def test_outcomes_of_a_suggestion_are_known_in_any_order(chain_study):
    suggestion = chain_study.ask()
    updated = chain_study.tell(suggestion, [-6.0, -6.5])
    assert (
        updated.tell(suggestion, [-6.5, -6.0]) is updated
        and updated.tell(suggestion, -6.5) is updated
    )
    more = updated.tell(suggestion, -7.0, again=True)
    assert more.tell(suggestion, [-6.0, -6.5]) is more
    with pytest.raises(
        cb.errors.ObservationError, match="with -6.0, -6.5 and is now reported with -6.5, -6.5"
    ):
        updated.tell(suggestion, [-6.5, -6.5])


def test_outcome_of_an_observation_and_the_observation_are_one_outcome(
    chain, chain_data, chain_study
):
    row = {"X": 5.0, "Z": 4.2, "Y": -5.0}
    number, whole = chain_study.tell({"X": 5.0}, -5.0), chain_study.tell({"X": 5.0}, row)
    for study, outcome in ((number, row), (whole, -5.0)):
        with pytest.raises(cb.errors.ObservationError, match="known already, with the same digits"):
            study.tell({"X": 5.0}, outcome)
        assert len(study.tell({"X": 5.0}, outcome, again=True).observations) == 2
    other = {"X": 5.0, "Z": 4.5, "Y": -5.0}
    assert len(whole.tell({"X": 5.0}, other).observations) == 2  # another observation
    experiment = cb.Data(chain_data.nodes, "Y", [[5.0, 4.2, -5.0]], [[True, False, False]])
    begun = cb.Study(chain.problem, chain_data.join(experiment), key=0)
    for outcome in (-5.0, row):
        with pytest.raises(cb.errors.ObservationError, match="known already, with the same digits"):
            begun.tell({"X": 5.0}, outcome)
    suggestion = chain_study.ask()
    updated = chain_study.tell(suggestion, -6.0)
    with pytest.raises(
        cb.errors.ObservationError, match="with -6.0 and is now reported with -6.0 with its row"
    ):
        updated.tell(suggestion, {"X": 0.1, "Y": -6.0})


def test_observations_that_were_suggested_together_may_be_reported_in_parts(chain, chain_data):
    settings = cb.Settings(observe=cb.optimization.Observe(probability=0.999, batch=3))
    study = cb.Study(chain.problem, chain_data, settings, key=0)
    suggestion, rows = study.ask(), chain.observe(4, 7)
    assert suggestion.intervention == {} and suggestion.observations == 3
    part = study.tell(suggestion, rows.select([0])).tell(suggestion, rows.select([1, 2]))
    whole = study.tell(suggestion, rows.select([0, 1, 2]))
    assert part.observations.digest == whole.observations.digest and part.rounds == 1
    assert part.tell(suggestion, rows.select([1])) is part  # recorded before
    with pytest.raises(cb.errors.ObservationError, match="suggestion 1, .*, was recorded with"):
        part.tell(suggestion, rows.select([3]))


def test_observing_is_not_suggested_again_while_it_is_under_way(chain, chain_data):
    settings = cb.Settings(observe=cb.optimization.Observe(probability=0.999, batch=2))
    study = cb.Study(chain.problem, chain_data, settings, key=0)
    first = study.ask()
    assert first.intervention == {} and study.ask(pending=first).intervention != {}
    assert study.ask(pending=[{}]).intervention != {}
