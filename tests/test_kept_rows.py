"""What was linearized before is not computed again, and rows that fill up a batch cost nothing."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.data.outcomes import merge_replicates
from causal_bo_ppl.mechanisms.gp.propagation import TOGETHER, Batch, one_by_one
from causal_bo_ppl.optimization.candidates import find_candidates
from causal_bo_ppl.optimization.confidence import ConfidenceBound
from causal_bo_ppl.optimization.interface import Context
from causal_bo_ppl.optimization.search import find_best
from causal_bo_ppl.optimization.widening import search_beyond
from causal_bo_ppl.problem import Queries
from causal_bo_ppl.problem.queries import stack
from causal_bo_ppl.surrogates import kept_rows
from causal_bo_ppl.surrogates.kept_rows import KeptRows
from causal_bo_ppl.surrogates.weighted_response import WeightedResponse, weigh_response

FEW = cb.GP(functions=16)


class Counted:
    """Offsets and features of queries, and how many were computed."""

    def __init__(self):
        self.rows = []

    def __call__(self, queries):
        self.rows.append(len(queries))
        value = np.asarray(queries.value)
        return value.sum(axis=1), np.column_stack([value, value**2])


def lines(*values):
    value = np.array(values, float).reshape(-1, 1) * [1.0, 0.0]
    return Queries(np.tile([True, False], (len(value), 1)), value)


def test_only_new_rows_are_computed_and_all_come_back_in_order():
    kept, compute, centre = KeptRows(), Counted(), np.zeros(2)
    kept.at(centre, lines(1.0, 2.0), compute)
    offsets, features = kept.at(centre, lines(3.0, 2.0, 3.0, 1.0), compute)
    assert compute.rows == [2, 1]
    np.testing.assert_array_equal(offsets, [3.0, 2.0, 3.0, 1.0])
    np.testing.assert_array_equal(features[:, 2], [9.0, 4.0, 9.0, 1.0])
    offsets, features = kept.at(centre, lines(), compute)
    assert offsets.shape == (0,) and features.shape == (0, 4)


def test_other_sets_and_other_centres_have_rows_of_their_own():
    kept, compute, query = KeptRows(), Counted(), lines(0.0)
    kept.at(np.zeros(2), query, compute)
    kept.at(np.zeros(2), Queries(~np.asarray(query.mask), query.value), compute)
    kept.at(np.ones(2), query, compute)
    kept.at(-np.zeros(2), lines(-0.0), compute)  # the same number
    assert compute.rows == [1, 1, 1]


def test_old_centres_are_forgotten_but_for_zero(monkeypatch):
    kept, compute = KeptRows(), Counted()
    for centre in range(6):
        kept.at(np.full(1, float(centre)), lines(1.0), compute)
    assert len(kept._centres) == kept_rows.CENTRES + 1
    kept.at(np.zeros(1), lines(1.0), compute)
    kept.at(np.full(1, 5.0), lines(1.0), compute)
    assert len(compute.rows) == 6
    monkeypatch.setattr(kept_rows, "MOST", 2)
    for _ in range(2):
        kept.at(np.zeros(1), lines(2.0, 3.0), compute)  # no room for these
    assert compute.rows[6:] == [2, 2]


@pytest.mark.parametrize("rows", [1, TOGETHER, TOGETHER + 5])
def test_rows_that_fill_up_a_batch_are_not_evaluated(rows):
    """Those of pieces in which no row is asked for come back as zeros."""
    is_real = np.arange(3 * TOGETHER) < rows
    mask, value = np.tile(is_real[:, None], (1, 2)), np.arange(6.0 * TOGETHER).reshape(-1, 2)
    batch = Batch(mask, value, is_real[:, None])
    found = np.asarray(one_by_one(lambda query: query.value.sum() + 1.0, batch))
    whole = np.asarray(one_by_one(lambda query: query.value.sum() + 1.0, Queries(mask, value)))
    np.testing.assert_array_equal(found[:rows], whole[:rows])
    assert not found[rows + -rows % TOGETHER :].any()


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def post(toy):
    return cb.fit(toy.problem, toy.observe(100, 0), mechanisms=FEW)


def test_effects_of_few_queries_are_those_of_many(post, toy):
    queries, r = toy.problem.sobol(32), cb.response(toy.problem, post)
    values, jacobian = r.linearize(post.mean, queries)
    some, slopes = r.linearize(post.mean, queries[:3])
    np.testing.assert_allclose(some, values[:3], rtol=1e-12)
    np.testing.assert_allclose(slopes, jacobian[:3], rtol=1e-9, atol=1e-12)
    gradient = jnp.asarray(r.linearize(jnp.asarray(post.mean), queries[:3])[1])
    np.testing.assert_allclose(gradient, slopes, rtol=1e-12)


def test_a_wider_bound_is_searched_for_without_a_query_being_evaluated_again(toy, monkeypatch):
    """Neither are what was found and what was tried, when they are asked about later."""
    post = cb.fit(toy.problem, toy.observe(100, 1), mechanisms=FEW)
    surrogate, candidates = cb.couple(post), find_candidates(post)
    context = Context(surrogate, "min", candidates.queries, candidates.queries, exact=True)
    tried = candidates.queries[np.array([0, 40])]
    best = float(surrogate.predict(candidates.queries).mean.min()) - 1.0  # no narrow bound beats it
    outcomes = merge_replicates(tried, np.array([best, 0.0]), np.zeros(2))
    evaluated, compute = [], WeightedResponse._compute

    def record(self, centre, queries):
        evaluated.extend(kept_rows._row_keys(queries))
        return compute(self, centre, queries)

    monkeypatch.setattr(WeightedResponse, "_compute", record)
    search = partial(find_best, candidates.space, surrogate, tried=tried, known=tried)
    rule, found = search_beyond(search, ConfidenceBound(1e-6), context, outcomes)
    assert rule.beta > 1e-6 and found.worth > -best
    assert evaluated and len(evaluated) == len(set(evaluated))
    count = len(evaluated)
    surrogate.predict(stack([found.query, tried]))
    assert len(evaluated) == count


def test_kept_rows_do_not_change_what_is_predicted(post, toy):
    queries, weighted = toy.problem.sobol(16), weigh_response(post)
    centre = np.full(weighted.own, 0.1)
    for chosen in (queries[:4], queries, queries[2:9]):
        found, fresh = weighted.at(centre, chosen), weighted._compute(centre, chosen)
        for one, other in zip(found, fresh, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
