"""Rules of the verdict, cards of what raises, and the choice of cards."""

import json

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

DOMAINS = {"X": (-2, 2), "Z": (-2, 2)}
CHAIN = cb.Problem(cb.CausalGraph.parse("X -> Z -> Y"), "Y", domains=DOMAINS)
NAMES = ["sample", "causal graph", "posterior"]


def chain_frame(n=200, direct=0.0, seed=0):
    x, z, y = np.random.default_rng(seed).normal(size=(3, n))
    z = 0.8 * x + 0.6 * z
    return pd.DataFrame({"X": x, "Z": z, "Y": -1.2 * z + direct * x + 0.6 * y})


@pytest.fixture(scope="module")
def sound():
    return cb.validate(CHAIN, chain_frame(), key=0, progress=False)


def card(verdict, name="one"):
    return cb.validation.Card("data", name, verdict, "A finding.")


@pytest.mark.parametrize(
    ("verdicts", "whole", "passed"),
    [
        (["passed", "not applicable"], "may be used", True),
        (["passed", "warning"], "use with care", True),
        (["passed", "could not be computed"], "use with care", True),
        (["warning", "failed"], "do not use", False),
        (["not applicable"], "use with care", True),
        ([], "use with care", True),
    ],
)
def test_the_verdict_follows_from_those_of_the_cards(verdicts, whole, passed):
    cards = tuple(card(verdict, str(place)) for place, verdict in enumerate(verdicts))
    found = cb.validation.Validation(cards, CHAIN, {}, {})
    assert (found.verdict, found.passed) == (whole, passed)


def test_a_sound_model_may_be_used_and_every_assumption_has_a_card(sound):
    assert sound.verdict == "may be used", sound
    assert {each.section for each in sound.cards} == set(cb.validation.SECTIONS)
    assert not sound.of("could not be computed")
    assert sound.recommendation == {"Z": 2.0}
    assert sound.table.loc["causal graph", "threshold"] == 1e-3
    assert all(each.seconds >= 0 and each.text for each in sound.cards)
    with pytest.raises(cb.errors.ArgumentError, match="unknown card 'posteror'"):
        sound["posteror"]


def test_a_missing_arrow_fails_and_says_what_it_means():
    found = cb.validate(CHAIN, chain_frame(direct=0.6), only=["causal graph"], key=0)
    assert found.verdict == "do not use"
    [failed] = found.of("failed")
    assert failed.figure < failed.threshold and "confounded" in failed.meaning and failed.advice


def test_a_check_that_raises_is_a_card_with_the_reason(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr("causal_bo_ppl.diagnostics.check_loo", broken)
    found = cb.validate(CHAIN, chain_frame(), only=["leave one out", "sample"], key=0)
    assert found["leave one out"].verdict == "could not be computed"
    assert "ZeroDivisionError: no such luck" in found["leave one out"].text
    assert found.verdict == "use with care" and found["sample"].passed


def test_data_that_cannot_be_fitted_have_a_verdict():
    frame = chain_frame().assign(Z=1.0)
    found = cb.validate(CHAIN, frame, only=["data", "posterior"], key=0)
    assert found.verdict == "do not use" and found.recommendation == {}
    assert "constant" in found["fit"].text
    assert found["posterior"].verdict == "could not be computed"


def test_a_card_is_the_same_whatever_else_is_computed(sound):
    alone = cb.validate(CHAIN, chain_frame(), only=["prior predictive", "selection"], key=0)
    for each in alone.cards:
        assert each.figure == sound[each.name].figure
        assert each.text == sound[each.name].text
    rest = cb.validate(CHAIN, chain_frame(), only="data", skip=["two groups"], key=0)
    assert [each.name for each in rest.cards] == ["fit", "sample", "sample size", "invariance"]


def test_unknown_names_and_what_cannot_be_validated_are_refused(sound):
    with pytest.raises(cb.errors.ArgumentError, match="unknown card or section in only 'A7'"):
        cb.validate(CHAIN, chain_frame(), only=["A7"], key=0)
    with pytest.raises(cb.errors.ArgumentError, match="budget must be one of"):
        cb.validate(CHAIN, chain_frame(), budget="small", key=0)
    with pytest.raises(cb.errors.DataError, match="a problem is validated with its data"):
        cb.validate(CHAIN, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="got int"):
        cb.validate(3, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="belong to the posterior"):
        cb.validate(sound.subject, mechanisms="gp", key=0)


def test_json_and_html_hold_every_card(sound):
    read = json.loads(sound.to_json())
    assert read["verdict"] == "may be used" and read["passed"] is True
    assert [each["name"] for each in read["cards"]] == [each.name for each in sound.cards]
    assert read["recommendation"] == {"Z": 2.0} and read["robustness"]
    page = sound._repr_html_()
    assert all(each.name in page for each in sound.cards)
    hostile = cb.validation.Card("data", "<script>x</script>", "failed", "<b>")
    assert "<script>" not in cb.validation.Validation((hostile,), CHAIN, {}, {})._repr_html_()


def test_a_study_is_validated_with_what_came_back():
    study = cb.Study(CHAIN, chain_frame(), key=0)
    before = cb.validate(study, only=["surprise", "drift"], key=0)
    assert before["surprise"].verdict == "not applicable" and before["drift"].passed
    study = study.tell({"Z": 2.0}, [-2.3, -2.5, -2.4]).tell({"Z": -2.0}, [2.6, 2.2])
    assert cb.validate(study, only=["surprise"], key=0)["surprise"].passed
    with pytest.warns(cb.CausalBOWarning, match="contradict|surpris|improbable|outcomes"):
        study = study.tell({"Z": 2.0}, [9.0, 9.2, 8.8], sure=True)
    found = cb.validate(study, only=["surprise"], key=0)
    assert found.verdict == "do not use"


def test_a_vague_prior_is_no_alarm_and_a_wrong_one_is(sound):
    assert sound["prior predictive"].passed
    prior = cb.priors.FixedPrior(slopes={("Z", "Y"): (1.2, 0.05)})
    found = cb.validate(CHAIN, chain_frame(), prior=prior, only=["prior sensitivity"], key=0)
    assert not found["prior sensitivity"].passed


def test_a_study_that_recommends_to_set_nothing_is_validated_at_the_best_intervention():
    generator = np.random.default_rng(0)
    x, e = generator.normal(size=(2, 200))
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Y"), target="Y", objective="max", domains={"X": (3, 5)}
    )
    study = cb.Study(problem, pd.DataFrame({"X": x, "Y": 5 - 0.8 * x + 0.3 * e}), key=0)
    assert study.best.by == "nothing"
    found = cb.validate(study, only=["decision"], key=0, progress=False)
    assert not found.of("could not be computed")
    assert found.facts["recommended"].endswith("the best of all, do(X = 3)")
