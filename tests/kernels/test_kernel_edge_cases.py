"""Where a kernel could be wrong without saying so: traces, tails, common draws, sets, units.

Internals: blocks, scores and linearization errors are compared apart from the kernel.
"""

import jax
import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl.kernels import comparison as blocks
from causal_bo_ppl.kernels import exact
from causal_bo_ppl.kernels.exact import remainder_gram
from causal_bo_ppl.responses import remainders

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def chain():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0), intercepts=False)


@pytest.fixture(scope="module")
def curved():
    """X -> Z -> W -> Y from 25 observations."""
    graph = cb.CausalGraph.parse("X -> Z -> W -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-3, 3), "W": (-3, 3)}, sets=[("X",), ("W",)])
    truth = {("X", "Z"): 0.9, ("Z", "W"): 0.8, ("W", "Y"): 1.1}
    return cb.fit(problem, cases.simulate(problem, truth, 25, 0, lift=0.0), intercepts=False)


def test_a_first_call_inside_jit_leaves_the_kernels_alone():
    system = cb.models.load("chain")
    post, q = cb.fit(system.problem, system.observe(30, 5)), system.problem.vertices()
    traced = jax.jit(lambda theta: cb.response(post)(theta, q).sum())(post.mean)
    assert float(traced) == pytest.approx(float(cb.response(post)(post.mean, q).sum()))
    gram = cb.jacobian_gram(post, q).gram
    cb.monte_carlo_gram(post, q, draws=100, key=0)
    inside = jax.jit(lambda scale: scale * cb.jacobian_gram(post, q).gram)(2.0)
    np.testing.assert_allclose(inside, 2 * gram)
    many = jax.jit(lambda thetas: cb.response(post)(thetas, q))(post.draws(3, 0))
    np.testing.assert_allclose(many, cb.response(post)(post.draws(3, 0), q), rtol=1e-12)


def test_a_response_goes_with_its_posterior():
    import gc
    import weakref

    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(30, 6))
    assert cb.response(post) is cb.response(post)
    gone = weakref.ref(post)
    del post
    gc.collect()
    assert gone() is None


def test_effects_of_many_models_equal_those_of_one_by_one():
    problem, truth = cases.random_problem(2, size=5, known=1)
    post = cb.fit(problem, cases.simulate(problem, truth, 40, 2))
    queries, theta = problem.sobol(3), post.draws(70, 0)
    queries = queries[np.random.default_rng(0).permutation(len(queries))]
    effect = cb.response(post)
    one_by_one = np.stack([np.asarray(effect(each, queries)) for each in theta])
    np.testing.assert_allclose(effect(theta, queries), one_by_one, rtol=1e-12, atol=1e-12)


def test_the_jacobian_kernel_of_draws_has_the_error_of_its_draws(chain):
    queries = chain.problem.queries([{"X": 2.0}, {"X": -1.0}, {"Z": 1.0}])
    generator = np.random.default_rng(0)
    found = [
        cb.jacobian_gram(
            cases.sampled(chain, cases.correlated(chain, generator, memory=0.8)), queries
        )
        for _ in range(60)
    ]
    spread = np.std([each.gram for each in found], axis=0)
    ratio = np.mean([each.standard_error for each in found], axis=0) / spread
    assert (ratio > 0.6).all() and (ratio < 1.6).all(), ratio  # the posterior mean moves too
    assert "given draws, equivalent to" in found[0].assumed and "standard errors up to" in repr(
        found[0]
    )


def test_heavy_tails_are_reported_and_no_error_is_claimed(chain):
    queries = chain.problem.queries([{"X": 2.0}, {"Z": 1.0}])
    few = cb.fit(
        chain.problem,
        chain.data.select(slice(5)),
        intercepts=False,
        prior=cb.priors.FixedPrior(noise_observations=2.5),
    )
    assert np.isfinite(
        cb.monte_carlo_gram(few, queries, draws=200, key=0).standard_error
    ).all()  # 7.5 degrees
    heavy = cb.fit(
        chain.problem,
        chain.data.select(slice(0)),
        intercepts=False,
        prior=cb.priors.FixedPrior(noise_observations=4.0),
    )
    with pytest.warns(
        cb.CausalBOWarning,
        match="Student's t with 4 degrees of freedom, too heavy .* use cb.exact_gram",
    ):
        found = cb.monte_carlo_gram(heavy, queries, draws=200, key=0)
    assert np.isinf(found.standard_error).all() and np.isfinite(found.gram).all()
    with pytest.warns(cb.CausalBOWarning, match="too heavy for errors of covariances"):
        compared = cb.compare_kernels(heavy, queries, draws=200, key=0)
    assert np.isinf(compared.maximum_se.sel(comparison="monte_carlo - exact")).all()
    assert np.isnan(compared.frobenius_z).all() and np.isnan(compared.drawn_z).all()


def test_draws_common_to_both_kernels_do_not_hide_what_linearization_misses(curved):
    generator, queries = np.random.default_rng(1), curved.problem.queries([{"X": 3.0}, {"W": 2.0}])
    found = [
        cb.compare_kernels(
            cases.sampled(curved, cases.correlated(curved, generator, length=1000, memory=0.2)),
            queries,
            key=seed,
        ).sel(comparison="jacobian - monte_carlo")
        for seed in range(10)
    ]
    linear = found[0].sel(left="W", right="W")
    assert (
        float(linear.frobenius) < 1e-12
        and float(linear.frobenius_se) == 0
        and np.isnan(linear.frobenius_z)
    )
    both = [each.sel(left="X", right="X") for each in found]
    error, claimed = (
        [float(each.frobenius) for each in both],
        [float(each.frobenius_se) for each in both],
    )
    assert np.mean([float(each.frobenius_z) for each in both]) > 3
    assert 0.3 * np.mean(claimed) < np.std(error) < 2 * np.mean(claimed)


def test_errors_of_chains_are_larger_than_of_as_many_independent_draws(chain):
    generator, queries = np.random.default_rng(2), chain.problem.queries([{"X": 2.0}, {"Z": 1.0}])
    slow, fast = (
        cb.compare_kernels(
            cases.sampled(chain, cases.correlated(chain, generator, length=1000, memory=memory)),
            queries,
            key=0,
        )
        for memory in (0.95, 0.0)
    )
    ratio = (slow.drawn_se / fast.drawn_se).sel(term="leading", left="Z", right="Z")
    assert 2 < float(ratio) < 7  # squares of draws with memory 0.95 count as 1 in 19.5: sqrt is 4.4


def test_batches_keep_the_order_of_every_chain_and_any_number_of_chains():
    draws = np.arange(24.0)[:, None]
    found = blocks.cut_batches(draws, 2)
    assert found.shape == (12, 2, 1) and (np.diff(found, axis=1) == 1).all()
    assert blocks.cut_batches(np.arange(98.0)[:, None], 49).shape == (49, 2, 1)
    assert set(blocks.cut_batches(np.arange(1000.0)[:, None], 4)[:12].ravel()) == set(
        range(240)
    )  # of the first chain


def test_what_is_noise_is_nearly_normal_in_its_score():
    generator = np.random.default_rng(0)
    errors = np.abs(generator.normal(size=4000))
    scores = np.array(
        [blocks.score_size(float(size), errors)[1] for size in np.abs(generator.normal(size=4000))]
    )
    assert (
        abs(scores.mean()) < 0.1
        and abs(scores.std() - 1) < 0.05
        and 2.0 < np.quantile(scores, 0.99) < 2.8
    )
    assert blocks.score_size(0.0, errors)[0] == pytest.approx(1.0, rel=0.05)


def test_the_exact_kernel_of_many_sets_is_that_of_few(monkeypatch):
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=3)
    post, queries = cb.fit(system.problem, system.observe(60, 0)), system.problem.sobol(2)
    queries = queries[np.random.default_rng(0).permutation(len(queries))]
    whole = np.asarray(cb.exact_gram(post, queries).gram)
    assert len(system.problem.sets) > 64  # more than 4,096 pairs
    np.testing.assert_allclose(
        cb.exact_gram(post, queries, queries).gram, whole, rtol=1e-10, atol=1e-14
    )
    monkeypatch.setattr(exact, "MOST_PAIRS_AT_ONCE", 300)
    np.testing.assert_allclose(cb.exact_gram(post, queries).gram, whole, rtol=1e-12, atol=1e-15)
    some = np.random.default_rng(1).choice(len(queries), 5, replace=False)
    np.testing.assert_allclose(
        cb.exact_gram(post, queries[some]).gram, whole[np.ix_(some, some)], rtol=1e-10
    )


def test_equations_that_were_not_learned_are_refused_whatever_asks():
    graph = cb.CausalGraph.parse("A -> B -> C -> Y; A -> Y")
    problem = cb.Problem(
        graph, "Y", domains={"A": (-1, 1), "B": (-1, 1), "C": (-1, 1)}, sets="pomis"
    )
    truth = dict.fromkeys(graph.directed, 0.5)
    post, asked = (
        cb.fit(problem, cases.simulate(problem, truth, 30, 0)),
        problem.queries([{"B": 1.0}]),
    )
    for ask in (cb.exact_gram, cb.jacobian_gram, remainder_gram, remainders):
        with pytest.raises(
            cb.errors.ExplorationError,
            match=r"effect of do\(B\) needs .*, which no set of this problem uses",
        ):
            ask(post, asked)


def test_an_unidentifiable_set_is_refused_as_such():
    graph = cb.CausalGraph.parse("X -> Y; Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1), "Z": (-1, 1)}, identifiable_only=True)
    truth = {("X", "Y"): 1.0, ("Z", "Y"): 1.0}
    post = cb.fit(problem, cases.simulate(problem, truth, 60, 0), method="wishart")
    with pytest.raises(
        cb.errors.ExplorationError, match=r"effect of do\(X\) is not identifiable and was left out"
    ):
        cb.jacobian_gram(post, problem.vertices())
    assert (
        cb.kernels.coupling(post).left.values.tolist() == ["Z"] and cb.theory.causal_rank(post) == 2
    )


def test_undefined_draws_and_false_advice_are_refused(chain):
    queries = chain.problem.queries([{"X": 2.0}, {"Z": 1.0}])
    with pytest.warns(
        cb.CausalBOWarning,
        match="error of a covariance is 1.0 times its scale; about 2[0-9][0-9] such",
    ):
        cb.monte_carlo_gram(chain, queries[1], draws=2, key=0)

    class Broken:
        verdict, prior, settings, chains = "exact", None, "", None

        def draw(self, n, key):
            return np.full((n, 2), np.nan)

    from dataclasses import replace

    broken = replace(chain, distribution=Broken())
    with pytest.raises(
        cb.errors.NumericalError, match="100 of 100 draws by conjugate have no value"
    ):
        cb.monte_carlo_gram(broken, queries, draws=100, key=0)


def test_labels_have_the_digits_that_distinguish_interventions():
    problem = cb.Problem(cb.CausalGraph.parse("X -> Y"), "Y", domains={"X": (1e6, 1e6 + 10)})
    found = cb.fit(
        problem,
        cb.Data(
            ("X", "Y"),
            "Y",
            1e6 + np.random.default_rng(0).normal(size=(20, 2)) * 3,
            np.zeros((20, 2), bool),
        ),
    )
    names = cb.kernels.coupling(found).effect.values.tolist()
    assert names == ["do(X = 1e+06)", "do(X = 1.00001e+06)"]


def test_public_functions_check_queries_once_and_the_rest_trusts_them(chain, monkeypatch):
    post, problem = chain, chain.problem
    queries, r = problem.queries([{"X": 2.0}, {"Z": 1.0}]), cb.response(post)
    checked, require = [], type(problem).require
    monkeypatch.setattr(
        type(problem), "require", lambda self, given: checked.append(1) or require(self, given)
    )
    doors = {
        "response": lambda at: r(post.mean, at),
        "jacobian": lambda at: r.jacobian(post.mean, at),
        "jacobian gram": lambda at: cb.jacobian_gram(post, at),
        "exact gram": lambda at: cb.exact_gram(post, at),
        "monte carlo gram": lambda at: cb.monte_carlo_gram(post, at, draws=50, key=0),
    }
    outside = cb.problem.Queries(np.asarray(queries.mask), 1e6 * np.asarray(queries.value))
    for name, door in doors.items():
        checked.clear()
        door(queries)
        assert len(checked) == 1, name
        with pytest.raises(cb.errors.DomainError, match="lies outside"):
            door(outside)
    checked.clear()
    r.linearize(post.mean, queries), r.effects(post.mean, queries), post.outcome_variances(queries)
    assert not checked
