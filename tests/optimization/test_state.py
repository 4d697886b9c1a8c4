"""Ask and tell as pure functions: the order and grouping of outcomes do not matter.

Internals: the pure functions below `cb.Study` are what is tested.
"""

from itertools import permutations

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.state import Entry, ask, begin, recommend, tell


@pytest.fixture(scope="module")
def post():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0))


def entries(post, update):
    """Five outcomes, two of them replicates, with whole observations where they are used."""
    system = cb.models.load("chain")
    queries = post.problem.queries([{"X": 5.0}, {"Z": 2.0}, {"X": 5.0}, {"Z": -1.0}, {"X": -3.0}])
    rows = system.experiment(queries, 3)
    each = [
        rows.select(slice(index, index + 1)) if update == "full" else None for index in range(5)
    ]
    noises = [1.0, 0.5, 2.0, 0.5, 1.0]
    return [
        Entry(query, float(outcome), noise, row, 1.0)
        for query, outcome, noise, row in zip(queries, rows.outcomes, noises, each, strict=True)
    ]


@pytest.mark.parametrize("learn_from", ["target", "rows"])
@pytest.mark.parametrize("relinearize", [True, False])
def test_the_order_and_the_grouping_of_outcomes_do_not_matter(post, learn_from, relinearize):
    if learn_from == "rows" and not relinearize:
        return
    settings = cb.Settings(learn_from=learn_from, relinearize=relinearize)
    start, recorded = begin(post, settings), entries(post, learn_from)
    candidates = post.problem.vertices()
    whole = tell(start, recorded)
    expected = whole.surrogate.predict(candidates)
    for order in list(permutations(range(5)))[::17]:
        state = tell(start, [recorded[order[0]], recorded[order[1]]])
        for position in order[2:]:
            state = tell(state, [recorded[position]])
        predicted = state.surrogate.predict(candidates)
        assert np.array_equal(predicted.mean, expected.mean)
        assert np.array_equal(predicted.sd, expected.sd)
        assert state.spent == whole.spent == 5.0
        assert recommend(state)[1:] == recommend(whole)[1:]
        assert ask(state)[0].mean == ask(whole)[0].mean


def test_asking_changes_nothing_and_pending_experiments_are_fantasized(post):
    state = tell(begin(post, cb.Settings()), entries(post, "target"))
    first, again = ask(state), ask(state)
    assert first[0].mean == again[0].mean
    assert np.array_equal(first[0].query.value, again[0].query.value)
    batch = ask(state, 2)
    after = ask(state, pending=[batch[0].query])
    assert np.array_equal(after[0].query.value, batch[1].query.value)
    assert after[0].bound == pytest.approx(batch[1].bound)


def test_a_budget_pays_for_what_is_left(post):
    state = begin(post, cb.Settings(budget=2.0))
    assert len(ask(state, 5)) == 2
    spent = tell(state, [entries(post, "target")[0]])
    assert len(ask(spent, 5)) == 1 and len(ask(spent, 5, pending=[ask(spent)[0].query])) == 0


def test_a_refused_outcome_leaves_the_state_as_it_was(post):
    state = begin(post, cb.Settings(noise=0.0))
    query = post.problem.queries([{"X": 1.0}])
    recorded = tell(state, [Entry(query, 1.0, 0.0)])
    with pytest.raises(cb.errors.DataError, match="the same intervention gave 1 and 2"):
        tell(recorded, [Entry(query, 2.0, 0.0)])
    assert len(recorded.ledger) == 1 and len(tell(recorded, [Entry(query, 1.0, 0.0)]).ledger) == 2


def test_the_predictive_density_is_that_of_the_dense_gaussian(post):
    surrogate = cb.surrogates.couple(post).tell(post.problem.queries([{"X": 2.0}]), -1.5, 0.7)
    query = post.problem.queries([{"Z": 1.0}])
    mean, sd = surrogate.predict(query)
    linearization_error = surrogate.linear.noises(query)[0]
    variance = sd[0] ** 2 + 0.4 + linearization_error
    expected = -0.5 * ((0.3 - mean[0]) ** 2 / variance + np.log(2 * np.pi * variance))
    assert surrogate.log_density(query, 0.3, 0.4) == pytest.approx(expected)


def test_implied_and_given_noise_have_different_positions_in_the_ledger(chain):
    query = chain.problem.queries({"X": 1.0})
    entries = [Entry(query, 1.0, noise) for noise in (0.0, None, 0.5)]
    assert [each.noise for each in sorted(entries, key=Entry.order)] == [None, 0.0, 0.5]
