"""Fewer evaluations of effects: caches, negligible coefficients, and searches that may stop.

Internals: evaluations are counted in caches and searches that no result shows.
"""

import threading
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.joined_queries import joined

import causal_bo_ppl as cb
from causal_bo_ppl.batching import in_pieces
from causal_bo_ppl.data.observations import merge_replicates
from causal_bo_ppl.effect_estimates import moments
from causal_bo_ppl.effect_estimates.moments import (
    LinearizationCache,
    WeightedResponse,
    weigh_response,
)
from causal_bo_ppl.optimization import maximize as widening
from causal_bo_ppl.optimization.acquisition import Context
from causal_bo_ppl.optimization.maximize import find_best
from causal_bo_ppl.problem.search_space import Space

FEW = cb.GP(functions=16)


class Counted:
    """Offsets and features of queries, and how many were computed."""

    def __init__(self):
        self.counts = []

    def __call__(self, queries):
        self.counts.append(len(queries))
        value = np.asarray(queries.value)
        return value.sum(axis=1), np.column_stack([value, value**2])


def queries_at(*values):
    value = np.array(values, float).reshape(-1, 1) * [1.0, 0.0]
    return cb.problem.Queries(np.tile([True, False], (len(value), 1)), value)


def test_only_new_queries_are_computed_and_all_come_back_in_order():
    cache, compute, centre = LinearizationCache(), Counted(), np.zeros(2)
    cache.at(centre, queries_at(1.0, 2.0), compute)
    offsets, features = cache.at(centre, queries_at(3.0, 2.0, 3.0, 1.0), compute)
    assert compute.counts == [2, 1]
    np.testing.assert_array_equal(offsets, [3.0, 2.0, 3.0, 1.0])
    np.testing.assert_array_equal(features[:, 2], [9.0, 4.0, 9.0, 1.0])
    offsets, features = cache.at(centre, queries_at(), compute)
    assert offsets.shape == (0,) and features.shape == (0, 4)


def test_other_sets_and_other_centres_are_cached_separately():
    cache, compute, query = LinearizationCache(), Counted(), queries_at(0.0)
    cache.at(np.zeros(2), query, compute)
    cache.at(np.zeros(2), cb.problem.Queries(~np.asarray(query.mask), query.value), compute)
    cache.at(np.ones(2), query, compute)
    cache.at(-np.zeros(2), queries_at(-0.0), compute)  # the same number
    assert compute.counts == [1, 1, 1]


def test_old_centres_are_dropped_except_zero(monkeypatch):
    cache, compute = LinearizationCache(), Counted()
    for centre in range(6):
        cache.at(np.full(1, float(centre)), queries_at(1.0), compute)
    assert len(cache._centres) == moments.MOST_CENTRES_CACHED + 1
    cache.at(np.zeros(1), queries_at(1.0), compute)
    cache.at(np.full(1, 5.0), queries_at(1.0), compute)
    assert len(compute.counts) == 6
    monkeypatch.setattr(moments, "MOST_QUERIES_CACHED", 2)
    for _ in range(2):
        cache.at(np.zeros(1), queries_at(2.0, 3.0), compute)  # too many to be cached
    assert compute.counts[6:] == [2, 2]


@pytest.fixture(scope="module")
def toy():
    return cb.models.load("toy")


@pytest.fixture(scope="module")
def post(toy):
    return cb.fit(toy.problem, toy.observe(100, 0), mechanisms=FEW)


def test_effects_of_few_queries_are_those_of_many(post, toy):
    queries, r = toy.problem.sobol(32), cb.response(post)
    values, jacobian = r.linearize(post.mean, queries)
    some, slopes = r.linearize(post.mean, queries[:3])
    np.testing.assert_allclose(some, values[:3], rtol=1e-12)
    np.testing.assert_allclose(slopes, jacobian[:3], rtol=1e-9, atol=1e-12)
    gradient = jnp.asarray(r.linearize(jnp.asarray(post.mean), queries[:3])[1])
    np.testing.assert_allclose(gradient, slopes, rtol=1e-12)


def test_a_wider_bound_is_searched_for_without_a_query_being_evaluated_again(toy, monkeypatch):
    """Neither are what was found and what was tried, when they are asked about later."""
    post = cb.fit(toy.problem, toy.observe(100, 1), mechanisms=FEW)
    surrogate, candidates = cb.surrogates.couple(post), candidates_of(post)
    context = Context(surrogate, "min", candidates.queries, candidates.queries, exact=True)
    tried = candidates.queries[np.array([0, 40])]
    best = float(surrogate.predict(candidates.queries).mean.min()) - 1.0  # no narrow bound beats it
    outcomes = merge_replicates(tried, np.array([best, 0.0]), np.zeros(2))
    evaluated, compute = [], WeightedResponse._compute

    def record(self, centre, queries):
        evaluated.extend(moments._query_keys(queries))
        return compute(self, centre, queries)

    monkeypatch.setattr(WeightedResponse, "_compute", record)
    rule = cb.acquisition.ConfidenceBound(1e-6)
    found = find_best(
        candidates.space, rule, context, tried=tried, known=outcomes, avoided=outcomes.queries
    )
    assert found.search.rule.beta > 1e-6 and found.value > -best
    assert evaluated and len(evaluated) == len(set(evaluated))
    count = len(evaluated)
    surrogate.predict(joined([found.query, tried]))
    assert len(evaluated) == count


def test_the_cache_does_not_change_predictions(post, toy):
    queries, weighted = toy.problem.sobol(16), weigh_response(post)
    centre = np.full(weighted.own, 0.1)
    for chosen in (queries[:4], queries, queries[2:9]):
        found, fresh = weighted.at(centre, chosen), weighted._compute(centre, chosen)
        for one, other in zip(found, fresh, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_every_second_round_asks_for_a_substantial_gain(toy):
    """For nonlinear effects: in the rounds between, a small improvement suffices."""
    post = cb.fit(toy.problem, toy.observe(100, 1), mechanisms=FEW)
    surrogate, candidates = cb.surrogates.couple(post), candidates_of(post)
    rule = cb.acquisition.ConfidenceBound(2.0)
    mean, sd = surrogate.predict(candidates.queries)
    bounds = np.sqrt(2.0) * sd - mean
    tried = candidates.queries[np.array([0, 40])]
    best = -(bounds.max() - 1e-3)  # the best bound promises a thousandth
    outcomes = merge_replicates(tried, np.array([best, best + 10.0]), np.zeros(2))
    search = partial(
        find_best, candidates.space, rule, tried=tried, known=outcomes, avoided=outcomes.queries
    )
    chosen = {}
    for number in (7, 8):
        context = Context(
            surrogate, "min", candidates.queries, candidates.queries, round=number, exact=True
        )
        chosen[number] = search(context)
    assert chosen[7].search.rule is rule and chosen[7].value > -best
    assert (
        chosen[8].search.rule.beta > 2.0 and "instead of 2: no candidate promised" in chosen[8].how
    )
    assert "instead of" not in chosen[7].how
    assert chosen[8].value > -best + widening.LEAST_GAIN_SHARE * 10.0
    assert search(replace(context, surrogate=Affine(surrogate))).search.rule is rule


def candidates_of(post):
    return Space(post.problem, post.sets).candidates(at_vertices=False)


class Affine:
    """A surrogate whose effects are declared to be affine."""

    is_affine = True

    def __init__(self, surrogate):
        self.post, self.predict = surrogate.post, surrogate.predict


def test_effects_without_negligible_coefficients_are_those_with_all(toy):
    """And so are their variances and covariances; the shortest waves of a process are dropped."""
    post = cb.fit(toy.problem, toy.observe(100, 0), mechanisms="gp")
    queries, weighted = toy.problem.sobol(24), weigh_response(post)
    r, lean = cb.response(post), weighted.response
    assert weighted.own == lean.map.acting.sum() < len(post.mean)
    assert r.map.acting.all()
    values, jacobian = r.linearize(post.mean, queries)
    others, slopes = lean.linearize(post.mean, queries)
    features, own = jacobian @ post.factor, slopes @ weighted.factor
    sds = np.linalg.norm(features, axis=1)
    assert (np.abs(others - values) <= 1e-7 * sds).all()
    np.testing.assert_allclose(own @ own.T, features @ features.T, atol=1e-7 * sds.max() ** 2)
    step = np.random.default_rng(0).normal(size=weighted.own)
    moved = r(weighted.theta(step), queries)
    assert (np.abs(lean(weighted.theta(step), queries) - moved) <= 1e-7 * sds).all()


def test_threads_share_the_pieces_of_a_batch_without_mixing_them_up(monkeypatch):
    """A process that has one processor, as workers of a sweep have, starts no thread."""
    batch, seen = np.arange(2.0 * 103).reshape(-1, 2), set()
    monkeypatch.setenv("NPROC", "2")

    def work(piece):
        seen.add(threading.get_ident())
        return piece.sum(axis=1), piece

    alone = in_pieces(work, batch, 103, 0, 16)
    assert seen == {threading.get_ident()}
    shared = in_pieces(work, batch, 103, 0, 16, True)
    assert len(seen) > 1
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(alone[0], batch.sum(axis=1))
    seen.clear()
    monkeypatch.setenv("NPROC", "1")
    in_pieces(work, batch, 103, 0, 16, True)
    assert seen == {threading.get_ident()}
    monkeypatch.setenv("NPROC", "2")

    def fails(piece):
        raise ValueError("this piece cannot be computed")

    with pytest.raises(ValueError, match="cannot be computed"):
        in_pieces(fails, batch, 103, 0, 16, True)
