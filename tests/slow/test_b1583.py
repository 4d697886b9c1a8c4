"""b1583 without its parents, 218 sets, 15 rounds: paired seeds against every baseline.

Gaps are of the recommended intervention, from the optimum of the true system.
"""

import sys
from functools import cache

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
SEEDS, ROUNDS = 60, 15
METHODS = {
    "gc-cbo": {},
    "thompson": {"acquisition": "thompson"},
    "in turn": {"acquisition": cb.acquisition.InTurn()},
    "cbo": {"preset": "cbo"},
    "bo": {"preset": "bo"},
}
FEWER = 20  # seeds of methods that take longer
LONG = ("in turn", "cbo", "bo")


@cache
def system():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)


@cache
def runs(observations, name):
    options = {"rounds": ROUNDS, "observations": observations, "progress": False, **METHODS[name]}
    seeds = range(FEWER if name in LONG else SEEDS)
    return [optimize(system(), key=seed, **options) for seed in seeds]


def gap_of_the_mean(post):
    """The gap of what the posterior mean recommends without any experiment."""
    queries = post.problem.vertices()
    best = queries[int(cb.surrogates.couple(post).predict(queries).mean.argmin())]
    return float(system().effect(best)[0]) - system().optimum.value


@cache
def gaps(observations):
    """The gaps of all methods, a row for every seed."""
    found = {
        name: pd.Series([run.regret()[-1] for run in runs(observations, name)]) for name in METHODS
    }
    bases = [run.study.start.post for run in runs(observations, "gc-cbo")]
    found["no experiment"] = pd.Series([gap_of_the_mean(post) for post in bases])
    more = [
        gap_of_the_mean(post.update(system().observe(ROUNDS, jax.random.key(10_000 + seed))))
        for seed, post in enumerate(bases)
    ]
    found["15 more observations"] = pd.Series(more)
    return pd.DataFrame(found)


def differences(found):
    """Mean gaps, and their paired differences from gc-cbo with 90 % bootstrap intervals."""
    lines, draws = {}, np.random.default_rng(0)
    for name in found:
        both = found[[name, "gc-cbo"]].dropna().to_numpy()
        apart = both[:, 0] - both[:, 1]
        again = apart[draws.integers(len(apart), size=(4_000, len(apart)))].mean(axis=1)
        low, high = np.quantile(again, (0.05, 0.95))
        share = (both[:, 0] < 1e-9).mean()
        lines[name] = (len(both), both[:, 0].mean(), share, apart.mean(), low, high)
    columns = ["seeds", "gap", "optimum found", "difference", "low", "high"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=columns).round(4)


@pytest.mark.parametrize("observations", [50, 100])
def test_experiments_that_are_chosen_lead_closer_to_the_optimum(observations, capsys):
    table = differences(gaps(observations))
    with capsys.disabled():
        sys.stdout.write(
            f"\nb1583, {observations} observations, {ROUNDS} rounds\n{table.to_string()}\n"
        )
    for other in ("no experiment", "cbo", "bo"):
        assert table.loc[other, "low"] > 0, table
    assert table.loc["gc-cbo", "optimum found"] >= 0.5
