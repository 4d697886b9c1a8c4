"""What mechanisms that bend refuse, and how they say so."""

import json

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms import FAMILIES

pytestmark = pytest.mark.heavy
FEW = cb.GP(functions=8)
CHAIN = cb.CausalGraph.parse("X -> Z -> Y")
DOMAINS = {"X": (-2.0, 2.0), "Z": (-2.0, 2.0)}
PROBLEM = cb.Problem(CHAIN, "Y", domains=DOMAINS, known={("X", "Z"): 0.5})


def rows(problem=PROBLEM, **options):
    draws = np.random.default_rng(0).normal(size=(40, 3))
    table = pd.DataFrame(draws, columns=["X", "Z", "Y"])
    return cb.Data.from_frame(problem, table, **options)


@pytest.fixture(scope="module")
def post():
    return cb.fit(PROBLEM, rows(), mechanisms={"Y": FEW})


@pytest.mark.parametrize("choice", ["gp", FEW])
def test_a_variable_without_causes_to_learn_cannot_be_said_to_bend(choice):
    with pytest.raises(cb.ModelError, match="'X' cannot bend in its causes: it has none; leave"):
        cb.fit(PROBLEM, rows(), mechanisms={"X": choice})
    with pytest.raises(cb.ModelError, match="'Z' .* has only causes with known coefficients"):
        cb.fit(PROBLEM, rows(), mechanisms={"Z": choice})


def test_a_root_may_be_called_linear():
    post = cb.fit(PROBLEM, rows(), mechanisms={"X": "linear", "Y": FEW})
    assert "level[Z]" in post.names


def test_a_variable_that_was_set_in_every_row_is_named_so():
    names = ("X", "Z", "Y")
    prior = cb.GPPrior(scales=dict.fromkeys(names, 1.0), ranges=dict.fromkeys(names, (-2.0, 2.0)))
    with pytest.raises(cb.ModelError, match="'Z' was set in every row, .* cannot be learned; add"):
        cb.fit(PROBLEM, rows(intervened="Z"), mechanisms={"Y": FEW}, prior=prior)


def test_the_mean_without_intervention_says_what_to_do():
    problem = cb.Problem(CHAIN, "Y", domains=DOMAINS, sets=[("X",)])
    post = cb.fit(problem, rows(problem), mechanisms=FEW)
    with pytest.raises(
        cb.ExplorationError,
        match="mean of 'Y' without any intervention depends .* X, .* mean of observed rows",
    ):
        cb.response(problem, post)(post.mean, problem.baseline())


# What a file records


def change(at, *path):
    def edit(settings):
        inner = settings[at]
        inner[path[0]] = path[1]

    return edit


def drop(settings):
    settings.pop()


# Settings are five arrays of the frame and the known slopes of each equation: 0 to 5 are Z's
# (its cause is known, so that its frame is empty), 6 to 11 those of Y.
@pytest.mark.parametrize(
    "edit, message",
    [
        (drop, "do not fit their forms"),
        (change(7, slice(None), [0.0, 1.0]), "do not fit their forms"),
        (change(7, 0, "x"), "no readable settings"),
        (change(7, 0, float("nan")), "not finite"),
        (change(8, 0, -1.0), "'Y' in which a range is empty"),
        (change(9, 0, 9.0), "'Y' in which a range is empty"),
        (change(8, 0, 9.0), "boxes of Z in the mechanism of 'Y'"),
        (change(7, 0, 0.7), "boxes of Z in the mechanism of 'Y'"),
        (change(5, 0, 0.6), "other known coefficients of 'Z'"),
    ],
)
def test_recorded_settings_are_checked(post, edit, message):
    attributes = post.distribution.response.attributes()
    names, learned = FAMILIES["gp"].recorded(PROBLEM, attributes)
    assert names == post.names
    settings = json.loads(attributes["settings"])
    edit(settings)
    with pytest.raises(cb.ModelError, match=message):
        FAMILIES["gp"].recorded(PROBLEM, attributes | {"settings": json.dumps(settings)})


@pytest.mark.parametrize("text", [None, "no JSON", "3", "[[[1]]]"])
def test_settings_that_are_missing_or_strange_are_refused(post, text):
    attributes = post.distribution.response.attributes()
    with pytest.raises(cb.ModelError, match="settings of its mechanisms"):
        FAMILIES["gp"].recorded(PROBLEM, attributes | {"settings": text})


def test_forms_with_other_causes_than_the_graph_are_refused(post):
    attributes = post.distribution.response.attributes()
    forms = json.loads(attributes["forms"])
    forms[-1][1] = [0]
    with pytest.raises(cb.ModelError, match="other causes of 'Y' than the graph"):
        FAMILIES["gp"].recorded(PROBLEM, attributes | {"forms": json.dumps(forms)})


def test_a_file_with_other_settings_is_refused(post, tmp_path):
    tree = post.to_datatree(draws=16)
    tree.attrs["settings"] = "[]"
    path = cb.write_datatree(tree, tmp_path / "post.nc")
    with pytest.raises(cb.StoreError, match="do not fit their forms; fit and write it again"):
        cb.open_datatree(path, PROBLEM)
