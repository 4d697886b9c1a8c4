"""A state is a function of a log: the order and grouping of outcomes do not matter.

Internals: the pure functions below `cb.Study` are what is tested.
"""

from itertools import permutations

import numpy as np
import pytest
from helpers.logs import recorded

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.choosing import choose
from causal_bo_ppl.optimization.state import States, begin, infer_state, recommend


@pytest.fixture(scope="module")
def post():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0))


def five(post, learn_from="target"):
    """Five outcomes, two of them replicates, with whole observations where they are used."""
    system = cb.models.load("chain")
    queries = post.problem.queries([{"X": 5.0}, {"Z": 2.0}, {"X": 5.0}, {"Z": -1.0}, {"X": -3.0}])
    rows = system.experiment(queries, 3)
    if learn_from == "rows":
        return recorded(post.problem, queries, rows.outcomes, measured=rows.values, cost=1.0)
    variances = [1.0, 0.5, 2.0, 0.5, 1.0]
    return recorded(post.problem, queries, rows.outcomes, variance=variances, cost=1.0)


@pytest.mark.parametrize("learn_from", ["target", "rows"])
@pytest.mark.parametrize("relinearize", [True, False])
def test_the_order_and_the_grouping_of_outcomes_do_not_matter(post, learn_from, relinearize):
    if learn_from == "rows" and not relinearize:
        return
    settings = cb.Settings(learn_from=learn_from, relinearize=relinearize)
    start, log = begin(post, settings), five(post, learn_from)
    candidates = post.problem.vertices()
    whole = infer_state(start, log)
    expected = whole.surrogate.predict(candidates)
    for order in list(permutations(range(5)))[::17]:
        states, known = States(start), log.select(list(order[:2]))
        states.after(known)
        for position in order[2:]:
            known = known.join(log.select([position]))
            state = states.after(known)
        predicted = state.surrogate.predict(candidates)
        assert np.array_equal(predicted.mean, expected.mean)
        assert np.array_equal(predicted.sd, expected.sd)
        assert np.array_equal(state.posterior.mean, whole.posterior.mean)
        assert state.own.cost.sum() == whole.own.cost.sum() == 5.0
        assert recommend(state) == recommend(whole)
        assert recommend(state)[1] == recommend(whole)[1]
        assert choose(state)[0].value == choose(whole)[0].value


def test_a_refused_outcome_changes_no_state(post):
    start = begin(post, cb.Settings(noise=0.0))
    one, two = (recorded(post.problem, [{"X": 1.0}], [outcome]) for outcome in (1.0, 2.0))
    states = States(start)
    before = states.after(one)
    with pytest.raises(cb.errors.DataError, match="the same intervention gave 1 and 2"):
        states.after(one.join(two))
    assert states.after(one) is before and len(before.recorded) == 1
    assert len(states.after(one.join(one)).recorded) == 2


def test_states_are_found_again_whatever_the_order_and_the_oldest_are_forgotten(post, monkeypatch):
    from causal_bo_ppl.optimization import state as module

    calls = []
    monkeypatch.setattr(
        module, "infer_state", lambda *arguments: calls.append(1) or infer_state(*arguments)
    )
    states, log = States(begin(post, cb.Settings())), five(post)
    before = states.before
    assert states.after(log) is states.after(log.select([4, 2, 0, 1, 3])) and len(calls) == 2
    assert states.number("count", log, lambda state: len(state.recorded)) == 5
    for outcome in range(module.MOST_KEPT_STATES + 2):
        states.after(recorded(post.problem, [{"X": 1.0}], [float(outcome)]))
    assert states.before is before  # is never forgotten
    count = len(calls)
    assert states.number("count", log, lambda state: 0) == 5 and len(calls) == count
    states.after(log)
    assert len(calls) == count + 1


def test_the_predictive_density_is_that_of_the_dense_gaussian(post):
    surrogate = cb.surrogates.couple(post).condition(post.problem.queries([{"X": 2.0}]), -1.5, 0.7)
    query = post.problem.queries([{"Z": 1.0}])
    mean, sd = surrogate.predict(query)
    linearization_error = surrogate.linear.noises(query)[0]
    variance = sd[0] ** 2 + 0.4 + linearization_error
    expected = -0.5 * ((0.3 - mean[0]) ** 2 / variance + np.log(2 * np.pi * variance))
    assert surrogate.log_density(query, 0.3, 0.4) == pytest.approx(expected)
