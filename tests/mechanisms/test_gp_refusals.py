"""What mechanisms that bend refuse, and how they say so."""

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

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
    with pytest.raises(
        cb.errors.ModelError, match="'X' cannot bend in its causes: it has none; leave"
    ):
        cb.fit(PROBLEM, rows(), mechanisms={"X": choice})
    with pytest.raises(
        cb.errors.ModelError, match="'Z' .* has only causes with known coefficients"
    ):
        cb.fit(PROBLEM, rows(), mechanisms={"Z": choice})


def test_a_root_may_be_called_linear():
    post = cb.fit(PROBLEM, rows(), mechanisms={"X": "linear", "Y": FEW})
    assert "level[Z]" in post.names


def test_a_variable_that_was_set_in_every_row_is_named_so():
    names = ("X", "Z", "Y")
    prior = cb.priors.GPPrior(
        scales=dict.fromkeys(names, 1.0), ranges=dict.fromkeys(names, (-2.0, 2.0))
    )
    with pytest.raises(
        cb.errors.ModelError, match="'Z' was set in every row, .* cannot be learned; add"
    ):
        cb.fit(PROBLEM, rows(intervened="Z"), mechanisms={"Y": FEW}, prior=prior)


def test_the_mean_without_intervention_says_what_to_do():
    problem = cb.Problem(CHAIN, "Y", domains=DOMAINS, sets=[("X",)])
    post = cb.fit(problem, rows(problem), mechanisms=FEW)
    with pytest.raises(
        cb.errors.ExplorationError,
        match="mean of 'Y' without any intervention depends .* X, .* mean of observed rows",
    ):
        cb.response(post)(post.mean, problem.baseline())
