"""Errors of nonlinear mechanisms and their messages."""

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy
FEW = cb.GP(functions=8)
CHAIN = cb.CausalGraph.parse("X -> Z -> Y")
DOMAINS = {"X": (-2.0, 2.0), "Z": (-2.0, 2.0)}
PROBLEM = cb.Problem(CHAIN, "Y", domains=DOMAINS, known={("X", "Z"): 0.5})


def observations(problem=PROBLEM, **options):
    draws = np.random.default_rng(0).normal(size=(40, 3))
    table = pd.DataFrame(draws, columns=["X", "Z", "Y"])
    return cb.Data.from_frame(problem, table, **options)


@pytest.mark.parametrize("choice", ["gp", FEW])
def test_a_variable_without_causes_to_learn_cannot_be_nonlinear(choice):
    with pytest.raises(
        cb.errors.MechanismError, match="'X' cannot be nonlinear in its causes: it has none; remove"
    ):
        cb.fit(PROBLEM, observations(), mechanisms={"X": choice})
    with pytest.raises(
        cb.errors.MechanismError, match="'Z' .* has only causes with known coefficients"
    ):
        cb.fit(PROBLEM, observations(), mechanisms={"Z": choice})


def test_a_root_may_be_linear():
    post = cb.fit(PROBLEM, observations(), mechanisms={"X": "linear", "Y": FEW})
    assert "level[Z]" in post.names


def test_a_variable_that_was_set_in_every_observation_is_named():
    names = ("X", "Z", "Y")
    prior = cb.priors.GPPrior(
        scales=dict.fromkeys(names, 1.0), ranges=dict.fromkeys(names, (-2.0, 2.0))
    )
    with pytest.raises(
        cb.errors.MechanismError, match="'Z' was set in every observation, .* be learned; add"
    ):
        cb.fit(PROBLEM, observations(intervened="Z"), mechanisms={"Y": FEW}, prior=prior)


def test_the_mean_without_intervention_is_refused_with_advice():
    problem = cb.Problem(CHAIN, "Y", domains=DOMAINS, sets=[("X",)])
    post = cb.fit(problem, observations(problem), mechanisms=FEW)
    with pytest.raises(
        cb.errors.ExplorationError,
        match="mean of 'Y' without any intervention depends .* X, .* mean of the observations",
    ):
        cb.response(post)(post.mean, problem.baseline())
