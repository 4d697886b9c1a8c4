"""Kernels of effects: closed forms, dense algebra, sigma points; the paper's ranks.

Internals: the linearization error is compared apart from the kernel.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl.responses import remainders


@pytest.fixture(scope="module")
def chain():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(40, 0), intercepts=False)


def test_chain_has_the_covariances_of_the_paper(chain):
    (a, b), (va, vb), cab = chain.mean, chain.sd**2, chain.covariance[0, 1]
    x, x2, z, z2 = 2.0, -1.5, 3.0, 0.7
    queries = chain.problem.queries([{"X": x}, {"X": x2}, {"Z": z}, {"Z": z2}])
    found = cb.jacobian_gram(chain, queries)
    assert abs(found.gram[0, 1] - (b**2 * va + 2 * a * b * cab + a**2 * vb) * x * x2) < 1e-12
    assert abs(found.gram[2, 3] - z * z2 * vb) < 1e-12
    assert abs(found.gram[0, 2] - (b * x * z * cab + a * x * z * vb)) < 1e-12
    assert found.standard_error.shape == () and float(found.standard_error) == 0.0
    assert "linearized at the posterior mean" in found.assumed and "exact" in found.assumed


@pytest.mark.parametrize("kind", ["structural", "total_effect", "estimand", "minimal"])
def test_gram_is_the_dense_product_in_every_parameterization(kind):
    problem, truth = cases.random_problem(0, known=1)
    data = cases.simulate(problem, truth, 50, 0)
    post, first = cb.fit(problem, data, parameters=kind), cb.fit(problem, data)
    queries = problem.sobol(2)
    jacobian = np.asarray(cb.response(first).jacobian(first.mean, queries))
    expected = jacobian @ first.covariance @ jacobian.T
    np.testing.assert_allclose(
        cb.jacobian_gram(post, queries).gram, expected, rtol=1e-9, atol=1e-12
    )
    cross = cb.jacobian_gram(post, queries[:3], queries[3:8])
    np.testing.assert_allclose(cross.gram, expected[:3, 3:8], rtol=1e-9, atol=1e-12)
    features = np.asarray(cb.kernels.jacobian_features(post, queries))
    assert features.shape[1] <= len(post.names)
    np.testing.assert_allclose(features @ features.T, expected, rtol=1e-9, atol=1e-12)


def test_within_one_set_the_rank_is_its_size_plus_one():
    problem, truth = cases.random_problem(0, sets=[("V0", "V2")])
    post = cb.fit(problem, cases.simulate(problem, truth, 50, 0))
    assert cb.theory.causal_rank(post, problem.sobol(64)) == 3


def test_linearization_leaves_out_the_product_of_variances_on_the_chain(chain):
    queries = chain.problem.queries([{"X": 2.0}, {"Z": 2.0}])
    np.testing.assert_allclose(
        remainders(chain, queries), [np.prod(chain.sd**2) * 4.0, 0.0], rtol=1e-9, atol=1e-16
    )


def centred(data):
    return cb.Data(data.nodes, data.target, data.values - data.values.mean(axis=0), data.intervened)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("options", "intercepts", "dimension", "rank"),
    [
        ({"target": "yaeM"}, False, 16, 16),
        ({"target": "b1583", "parents": False, "max_size": 5}, False, 19, 13),
        ({"target": "b1583", "parents": False, "max_size": 2}, False, 19, 13),
        ({"target": "b1583", "parents": False, "max_size": 5}, True, 31, 22),
    ],
)
def test_causal_rank_of_ecoli70(options, intercepts, dimension, rank):
    system = cb.models.load("ecoli70", **options)
    data = system.observe(300, 0)
    post = cb.fit(system.problem, data if intercepts else centred(data), intercepts=intercepts)
    assert len(post.names) == dimension
    assert cb.theory.causal_rank(post, system.problem.vertices()) == rank
    assert cb.identify(system.problem).parameters("structural", intercepts=intercepts).rank == rank
