"""The kernel without linearization: against sigma points, pencil and paper, and draws.

Internals: the linearization error is compared apart from the kernel.
"""

import jax
import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl.kernels.exact import remainder_gram
from causal_bo_ppl.responses import remainders

pytestmark = pytest.mark.heavy


def random_fit(seed, size=None, observations=25, **options):
    """A conjugate posterior on a random DAG of 2 to 6 nodes, and queries of all its sets."""
    size = 2 + seed % 5 if size is None else size
    problem, truth = cases.random_problem(seed, size=size, known=seed % 3 == 2, **options)
    data = cases.simulate(problem, truth, observations, seed, interventional=seed % 2 == 1)
    post = cb.fit(problem, data)
    return post, problem.sobol(2)


def relative(found, expected):
    scale = np.sqrt(np.diagonal(expected))
    return np.abs(found - expected) / np.where(
        np.outer(scale, scale) > 0, np.outer(scale, scale), 1.0
    )


@pytest.mark.parametrize("block", range(10))
def test_exact_gram_equals_sigma_points_on_random_dags(block):
    for seed in range(20 * block, 20 * block + 20):
        post, queries = random_fit(seed)
        chosen = queries[np.random.default_rng(seed).permutation(len(queries))[:8]]
        expected = cases.sigma_point_gram(post.distribution.equations, post.upstream(chosen))
        found = cb.exact_gram(post, chosen)
        assert relative(np.asarray(found.gram), expected).max() < 1e-10, seed
        np.testing.assert_array_equal(found.gram, found.gram.T)
        cross = np.asarray(cb.exact_gram(post, chosen[:3], chosen[3:]).gram)
        np.testing.assert_allclose(
            cross, found.gram[:3, 3:], rtol=1e-9, atol=1e-12 * expected.max()
        )


@pytest.mark.parametrize("seed", range(5))
def test_exact_gram_agrees_with_draws_of_the_equations(seed):
    post, queries = random_fit(seed + 3, size=5)
    effects = np.asarray(cb.response(post)(post.draws(20_000, seed), queries[:6]))
    centred = effects - effects.mean(axis=0)
    products = centred[:, :, None] * centred[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(effects))
    z = (products.mean(axis=0) - np.asarray(cb.exact_gram(post, queries[:6]).gram)) / np.where(
        error > 0, error, 1.0
    )
    assert np.abs(z).max() < 4.5


def test_on_the_chain_linearization_leaves_out_the_product_of_variances():
    system = cb.models.load("chain")
    post = cb.fit(system.problem, system.observe(25, 0), intercepts=False)
    x, z = np.array([-4.0, 0.5, 3.0]), np.array([-2.0, 4.5])
    queries = post.problem.queries(
        [{"X": each} for each in x.tolist()] + [{"Z": each} for each in z.tolist()]
    )
    error = np.asarray(cb.exact_gram(post, queries).gram - cb.jacobian_gram(post, queries).gram)
    expected = np.zeros((5, 5))
    expected[:3, :3] = np.prod(post.sd**2) * np.outer(x, x)  # the cross terms are equal
    assert np.abs(error - expected).max() < 1e-12
    np.testing.assert_allclose(remainder_gram(post, queries), expected, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("kind", ["total_effect", "estimand", "minimal"])
def test_the_exact_kernel_is_the_same_in_every_parameterization(kind):
    post, queries = random_fit(7, size=4)
    again = cb.fit(post.problem, post.data, parameters=kind)
    np.testing.assert_allclose(
        cb.exact_gram(again, queries).gram, cb.exact_gram(post, queries).gram, rtol=1e-12
    )


def test_remainders_are_the_diagonal_of_the_linearization_error():
    for seed in range(6):
        post, queries = random_fit(seed)
        gram, linear = cb.exact_gram(post, queries).gram, cb.jacobian_gram(post, queries).gram
        np.testing.assert_allclose(
            remainders(post, queries), np.diagonal(gram - linear), rtol=1e-6, atol=1e-11
        )
        assert np.linalg.eigvalsh(gram).min() > -1e-12 * np.trace(gram)


def test_digits_survive_means_far_above_their_spread():
    system = cb.models.load("chain")
    data = system.observe(30, 0)
    far = cb.Data(data.nodes, "Y", data.values + 1e6, data.intervened)
    problem = cb.Problem(
        system.problem.graph, "Y", domains={"X": (1e6 - 5, 1e6 + 5), "Z": (1e6 - 5, 1e6 + 5)}
    )
    gram = np.asarray(
        cb.exact_gram(
            cb.fit(problem, far), problem.queries([{"X": 1e6 + 2.0}, {"Z": 1e6 - 1.0}])
        ).gram
    )
    near = cb.exact_gram(
        cb.fit(system.problem, data), system.problem.queries([{"X": 2.0}, {"Z": -1.0}])
    ).gram
    np.testing.assert_allclose(gram, near, rtol=1e-4)


def test_a_posterior_without_independent_equations_is_refused_with_the_reason():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-3, 3), "Z": (-3, 3)})
    truth = {("X", "Z"): 0.8, ("Z", "Y"): -1.3}
    post = cb.fit(problem, cases.simulate(problem, truth, 50, 0), method="wishart")
    with pytest.raises(
        cb.errors.PosteriorError,
        match="'wishart' has none: it learns moments .* use cb.monte_carlo_gram",
    ):
        cb.exact_gram(post, problem.vertices())
    system = cb.models.load("chain")
    alone = cb.fit(system.problem, system.observe(30, 0), intercepts=False)
    joint = cases.sampled(alone, cases.correlated(alone, np.random.default_rng(0)))
    with pytest.raises(
        cb.errors.PosteriorError,
        match="'nuts' has none: its equations are learned together, so that they may",
    ):
        cb.exact_gram(joint, system.problem.vertices())


def test_an_effect_of_equations_that_were_not_learned_is_refused():
    problem, truth = cases.random_problem(0, sets=[("V3",)])
    post = cb.fit(problem, cases.simulate(problem, truth, 30, 0))
    other = cb.Problem(problem.graph, "V4", domains=problem.domains).queries([{"V0": 1.0}])
    with pytest.raises(cb.errors.DomainError, match="V0"):
        cb.exact_gram(post, other)


def test_nothing_is_compiled_for_a_new_number_of_queries():
    post, queries = random_fit(4, size=5)
    cb.exact_gram(post, queries[:3])
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    cb.exact_gram(post, queries[:7])
    assert not compiled
