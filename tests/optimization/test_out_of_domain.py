"""Outcomes that are out of domain are learned from and never suggested.

Internals: interventions out of domain cannot be made by the problem itself.
"""

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.problem.interventions import for_measured


def test_whole_observations_out_of_domain_are_learned_from_and_never_recommended(chain, chain_data):
    narrow = cb.Problem(chain.problem.graph, "Y", domains={"X": (-1.0, 1.0)}, sets=[["X"]])
    study = cb.Study(narrow, chain_data, key=0)
    updated = study.tell({"X": 4.0}, {"Z": 3.0, "Y": -4.2})
    updated = updated.tell({"Z": 3.0}, {"X": 0.1, "Y": -4.0})
    assert updated.to_frame()["note"].str.contains("never suggested").all()
    assert updated.to_frame()["cost"].tolist() == [0.0, 0.0]
    assert updated.best.by == "model" and updated.best.intervention == study.best.intervention
    assert updated.effects([{"X": 1.0}])["sd"][0] < study.effects([{"X": 1.0}])["sd"][0]
    rows = cb.Data(
        chain_data.nodes, "Y", [[4.0, 3.0, -4.2], [0.1, 3.0, -4.0]],
        [[True, False, False], [False, True, False]],
    )  # fmt: skip
    whole = cb.fit(narrow, chain_data.join(rows))
    assert np.allclose(updated.posterior.mean, whole.mean, rtol=1e-9)
    assert cb.Study.from_json(updated.to_json(), chain_data).ask().mean == updated.ask().mean


def test_outcome_of_a_set_that_is_not_explored_informs_about_shared_parameters(
    chain, chain_data, chain_study
):
    updated = chain_study.tell({"X": 1.0, "Z": 2.0}, -2.5)
    assert updated.to_frame()["note"].str.contains("never suggested").all()
    assert updated.best.by == "model"
    asked = [{"Z": 2.0}]
    assert updated.effects(asked)["sd"][0] < chain_study.effects(asked)["sd"][0]
    whole = cb.Study(chain.problem, chain_data, cb.Settings.preset("bo"), key=0)
    with pytest.raises(
        cb.errors.ObservationError, match="cannot be learned from here: .*Report the whole row"
    ):
        whole.tell({"X": 1.0}, -1.5)


@pytest.mark.parametrize("options", [{}, {"surrogate": "uncoupled"}, {"learn_from": "target"}])
def test_outcome_beyond_its_domain_informs_as_if_the_domain_were_wider(chain, chain_data, options):
    settings, graph = cb.Settings(discrepancy=False, **options), chain.problem.graph
    problem, wide = (
        cb.Problem(graph, "Y", domains={"X": (-1.0, 1.0), "Z": (-1.0, high)}) for high in (1.0, 4.0)
    )
    asked = [{"X": 1.0}, {"Z": 1.0}]
    before = cb.Study(problem, chain_data, settings, key=0)
    updated = before.tell({"Z": 4.0}, -5.0).tell({"X": 0.5}, -0.6)
    other = cb.Study(wide, chain_data, settings, key=0).tell({"Z": 4.0}, -5.0)
    other = other.tell({"X": 0.5}, -0.6)
    left, right = (each.effects(asked) for each in (updated, other))
    assert np.allclose(left["mean"], right["mean"]) and np.allclose(left["sd"], right["sd"])
    assert updated.to_frame()["note"].tolist()[0].endswith("never suggested")
    assert updated.surprise.p == pytest.approx(other.surprise.p)
    assert "do(Z = 4)" in updated.surprise.table["intervention"].tolist()
    suggested = [*updated.ask(3), *before.ask(3)]
    assert all(abs(value) <= 1.0 for each in suggested for value in each.intervention.values())
    assert updated.best.tried.intervention == {"X": 0.5} and updated.problem is problem
    with pytest.raises(cb.errors.DomainError, match=r"do\(Z = 4\) lies outside"):
        updated.effects([{"Z": 4.0}])
    again = cb.Study.from_json(updated.to_json(), chain_data)
    assert again.ask().mean == updated.ask().mean and again.best == updated.best
    backwards = before.tell({"X": 0.5}, -0.6).tell({"Z": 4.0}, -5.0)
    assert backwards.effects(asked).equals(left)


def test_queries_beyond_their_domain_are_recorded_too(chain, chain_study):
    query = for_measured(chain.problem).queries([{"X": 8.0}, {"Z": 1.0}])
    updated = chain_study.tell(query, [-8.0, -1.5])
    assert updated.best == chain_study.tell([{"X": 8.0}, {"Z": 1.0}], [-8.0, -1.5]).best
    assert [bool(note) for note in updated.to_frame()["note"]] == [True, False]


def test_failure_beyond_its_domain_is_recorded_and_changes_nothing(chain_study):
    failed = chain_study.tell({"X": 50.0}, failed="burst")
    assert failed.to_frame()["note"].tolist() == ["out of domain"]
    assert failed.ask().mean == chain_study.ask().mean and failed.spent == 0.0


def test_outcome_beyond_its_domain_far_from_what_was_expected_must_be_confirmed(chain_study):
    with pytest.raises(
        cb.errors.ObservationError, match=r"do\(X = 8\) is 5000, but -.* was expected"
    ):
        chain_study.tell({"X": 8.0}, 5000.0)
    with pytest.raises(
        cb.errors.ObservationError, match=r"do\(X = 8\) is 5000, but -.* was expected"
    ):
        chain_study.tell({"X": 8.0}, {"Z": 6.0, "Y": 5000.0})


def test_outcome_of_a_variable_without_a_domain_informs_about_shared_parameters(chain, chain_data):
    alone = cb.Problem(chain.problem.graph, "Y", domains={"X": (-1.0, 1.0)})
    study = cb.Study(alone, chain_data, key=0)
    updated = study.tell({"Z": 3.0}, -4.0)
    asked = [{"X": 1.0}]
    assert updated.effects(asked)["sd"][0] < study.effects(asked)["sd"][0]
    assert updated.surprise.table["set"].tolist() == ["Z"] and "do(Z = 3)" in str(
        updated.surprise.table
    )
    assert updated.to_frame()["do(Z)"].tolist() == [3.0] and "do(Z)" in updated._repr_html_()


def test_discrepancy_keeps_its_value_at_the_edge_of_a_domain(chain, chain_data):
    settings = cb.Settings(discrepancy=True, noise=0.1)
    study = cb.Study(chain.problem, chain_data, settings, key=0)
    updated = study.tell({"X": 5.0}, -5.0).tell({"X": 9.0}, -9.0)
    discrepancy, both = updated.surrogate.discrepancy, for_measured(chain.problem)
    inside, outside = discrepancy.features(both.require(both.queries([{"X": 5.0}, {"X": 9.0}])))
    assert np.array_equal(inside, outside) and np.abs(inside).max() > 0.1
    means = [each.effects([{"X": 5.0}])["mean"][0] for each in (study, updated)]
    assert np.isfinite(means).all() and means[0] != means[1]


@pytest.mark.parametrize("beyond", [np.nextafter(5.0, 9.0), 5.0 + 1e-9])
def test_value_read_back_beyond_its_bound_is_the_bound(chain, chain_data, chain_study, beyond):
    updated, exact = chain_study.tell({"X": beyond}, -5.0), chain_study.tell({"X": 5.0}, -5.0)
    assert updated.best == exact.best and updated.spent == 1.0
    assert updated.to_frame()["note"].tolist() == [""] and updated.to_frame()["do(X)"].tolist() == [
        5.0
    ]
    row = cb.Data(chain_data.nodes, "Y", [[beyond, 4.0, -5.0]], [[True, False, False]])
    assert chain_study.tell(row).to_frame()["note"].tolist() == [""]
    assert "never" in chain_study.tell({"X": 5.0 + 1e-6}, -5.0).to_frame()["note"].tolist()[0]


def test_measured_interventions_are_finite_and_leave_the_target_alone(chain):
    measured = for_measured(chain.problem)
    assert measured == chain.problem and not chain.problem.takes_measured
    for column, value in ((0, np.inf), (2, 1.0)):
        mask = np.arange(3)[None] == column
        with pytest.raises(cb.errors.DomainError, match="cannot have been measured"):
            measured.require(cb.problem.Queries(mask, np.where(mask, value, 0.0)))
    beyond = measured.queries([{"X": 9.0}])
    assert measured.interventions(beyond) == [{"X": 9.0}] and not measured.feasible(beyond)[0]
