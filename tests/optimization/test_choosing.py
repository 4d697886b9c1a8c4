"""The next experiments given a state, and what further observations would gain.

Internals: experiments are chosen without a study.
"""

import numpy as np
import pytest
from helpers.logs import recorded

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.choosing import choose, gain_of_observations
from causal_bo_ppl.optimization.state import States, begin, infer_state


@pytest.fixture(scope="module")
def post():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0))


@pytest.fixture(scope="module")
def log(post):
    """Five outcomes, two of them replicates."""
    asked = [{"X": 5.0}, {"Z": 2.0}, {"X": 5.0}, {"Z": -1.0}, {"X": -3.0}]
    outcomes, variances = [-5.0, -2.4, -4.1, 1.0, 3.3], [1.0, 0.5, 2.0, 0.5, 1.0]
    return recorded(post.problem, asked, outcomes, variance=variances, cost=1.0)


def test_asking_changes_nothing_and_pending_experiments_are_fantasized(post, log):
    state = infer_state(begin(post, cb.Settings()), log)
    first, again = choose(state), choose(state)
    assert first[0].value == again[0].value
    assert np.array_equal(first[0].query.value, again[0].query.value)
    batch = choose(state, 2)
    after = choose(state, pending=[batch[0].query])
    assert np.array_equal(after[0].query.value, batch[1].query.value)
    assert after[0].bound == pytest.approx(batch[1].bound)


def test_a_budget_pays_for_what_is_left(post, log):
    start = begin(post, cb.Settings(budget=2.0))
    assert len(choose(infer_state(start, log.select([])), 5)) == 2
    after = infer_state(start, log.select([0]))
    assert len(choose(after, 5, spent=1.0)) == 1
    assert len(choose(after, 5, [choose(after, spent=1.0)[0].query], spent=1.0)) == 0
    assert len(choose(after, 5, spent=1.0, is_limited=False)) == 5


def test_a_batch_with_exact_outcomes_repeats_no_experiment(post, log):
    state = infer_state(begin(post, cb.Settings(noise=0.0)), log.select([1, 3]))
    under_way = choose(state)[0].query
    batch = choose(state, 3, [under_way])
    chosen = [under_way, *(each.query for each in batch), *state.tried.queries]
    assert len({(each.mask.tobytes(), each.value.tobytes()) for each in chosen}) == len(chosen)


def test_the_gain_of_observations_is_that_of_means_drawn_at_random():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=1)
    post = cb.fit(system.problem, system.observe(30, 0))
    state = States(begin(post, cb.Settings())).before
    queries = state.start.candidates.queries
    mean, covariance = state.surrogate.joint(queries)
    share, rng = 30 / 60, np.random.default_rng(0)
    draws = rng.multivariate_normal(mean, share * covariance, 40_000, method="svd")
    best = draws.min(axis=1)
    wanted, error = mean.min() - best.mean(), best.std() / 200
    assert gain_of_observations(state, 30) == pytest.approx(wanted, abs=4 * error + 0.05 * wanted)
    assert gain_of_observations(state, 1) < gain_of_observations(state, 30)
