"""b1583 without its parents, 218 sets, 15 rounds: paired seeds against every baseline.

Gaps are of the recommended intervention, from the optimum of the true system. The confidence bound
is what the optimizer did before acquisitions could count whole rows.
"""

from functools import cache

import jax
import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
SEEDS, ROUNDS = 60, 15
METHODS = {
    "gc-cbo": {},
    "gc-cbo, in turn": {"acquisition": cb.InTurn()},
    "gc-cbo, thompson": {"acquisition": "thompson"},
    "gc-cbo, target only": {"update": "target"},
    "cbo": {"method": "cbo"},
    "bo": {"method": "bo"},
}


@cache
def system():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)


@cache
def runs(rows, name):
    options = {"rounds": ROUNDS, "observations": rows, "progress": False, **METHODS[name]}
    return [cb.optimize(system(), key=seed, **options) for seed in range(SEEDS)]


def gap_of_the_mean(post):
    """The gap of what the posterior mean recommends without any experiment."""
    queries = post.problem.vertices()
    best = queries[int(cb.couple(post).predict(queries).mean.argmin())]
    return float(system().effect(best)[0]) - system().optimum.value


@cache
def gaps(rows):
    """The gaps of all methods, a row for every seed."""
    found = {name: [run.regret()[-1] for run in runs(rows, name)] for name in METHODS}
    bases = [run.base for run in runs(rows, "gc-cbo")]
    found["no experiment"] = [gap_of_the_mean(post) for post in bases]
    found["15 more rows"] = [
        gap_of_the_mean(post.update(system().observe(ROUNDS, jax.random.key(10_000 + seed))))
        for seed, post in enumerate(bases)
    ]
    return pd.DataFrame(found)


def resampled(numbers, draws=4_000):
    """Means of samples of the seeds with replacement, (draws, columns)."""
    places = np.random.default_rng(0).integers(len(numbers), size=(draws, len(numbers)))
    return np.asarray(numbers)[places].mean(axis=1)


def table(found):
    """Mean, bootstrap interval of it, and the paired difference from gc-cbo."""
    means = resampled(found)
    apart = means - means[:, [found.columns.get_loc("gc-cbo")]]
    columns = {
        "mean": found.mean().to_numpy(),
        "low": np.quantile(means, 0.05, axis=0),
        "high": np.quantile(means, 0.95, axis=0),
        "exact": (found < 1e-9).mean().to_numpy(),
        "difference, low": np.quantile(apart, 0.05, axis=0),
        "difference, high": np.quantile(apart, 0.95, axis=0),
    }
    return pd.DataFrame(columns, index=found.columns).round(4)
