"""Ranks of the causal kernel: parents, ECOLI70, known coefficients, units.

Internals: the conditional covariance is compared apart from the rank.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.theory.information_gains import _conditional_root


def centred(data):
    return cb.Data(data.nodes, data.target, data.values - data.values.mean(axis=0), data.intervened)


@pytest.fixture(scope="module")
def chain():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(25, 0), intercepts=False)


@pytest.fixture(scope="module")
def b1583():
    """Both posteriors, centred and with intercepts, and the vertices."""
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    data, problem = system.observe(300, 0), system.problem
    return (
        cb.fit(problem, centred(data), intercepts=False),
        cb.fit(problem, data),
        problem.vertices(),
    )


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999999])
def test_effective_rank_holds_the_share(share):
    draws = np.random.default_rng(3)
    features = draws.normal(size=(12, 6)) * 2.0 ** -np.arange(6)
    gram = features @ features.T
    sizes = np.sort(np.linalg.eigvalsh(gram))[::-1]
    rank = theory.effective_rank(gram, share=share)
    assert (
        sizes[:rank].sum()
        >= share * np.trace(gram) * (1 - 1e-12)
        > sizes[: rank - 1].sum() * (1 - 1e-12)
    )
    assert theory.effective_rank(np.zeros((3, 3))) == 0
    with pytest.raises(cb.errors.ArgumentError, match="share must lie between 0 and 1, got 1"):
        theory.effective_rank(gram, share=1.0)


@pytest.mark.parametrize("size", [0.3, 0.7, 1 / 3])
def test_rounding_does_not_decide_how_many_equal_eigenvalues_hold_a_share(size):
    for n in range(2, 12):
        found = [theory.effective_rank(size * np.eye(n), share=k / n) for k in range(1, n)]
        assert found == list(range(1, n))


def test_effective_rank_does_not_depend_on_units_but_a_count_of_sigmas_eigenvalues_does():
    graph, data = cb.CausalGraph.parse("X -> Z -> Y"), cb.models.load("chain").observe(30, 0)
    found = []
    for unit in (1.0, 1e3):
        scale = np.array([1.0, unit, 1.0])
        problem = cb.Problem(graph, "Y", domains={"X": (-5, 5), "Z": (-5 * unit, 5 * unit)})
        scaled = cb.Data(data.nodes, data.target, data.values * scale, data.intervened)
        post = cb.fit(problem, scaled, intercepts=False)
        gram = cb.jacobian_gram(post, problem.vertices())
        count = (np.linalg.eigvalsh(post.covariance) > 1e-3).sum()
        found.append((np.asarray(gram.gram), theory.effective_rank(gram, share=0.9), count))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-8)
    assert found[0][1] == found[1][1] == 2 and found[0][2] == 2 and found[1][2] == 1


@pytest.mark.parametrize("seed", range(4))
def test_where_every_set_is_the_targets_parents_the_rank_is_their_number(seed):
    problem, truth = cases.random_problem(seed)
    parents = problem.graph.parents(problem.target)
    problem, truth = cases.random_problem(seed, sets=[parents])
    data = cases.simulate(problem, truth, 60, seed)
    for intercepts in (False, True):
        post = cb.fit(problem, data if intercepts else centred(data), intercepts=intercepts)
        assert theory.causal_rank(post, problem.sobol(32)) == len(parents) + intercepts


def test_ranks_of_b1583_are_below_its_dimension_and_so_is_the_bound(b1583):
    bare, whole, queries = b1583
    intercepts = [name for name in whole.names if name.startswith("a[")]
    assert (theory.causal_rank(bare, queries), len(bare.names)) == (13, 19)
    assert theory.causal_rank(whole, queries, known=intercepts) == 15
    assert (theory.causal_rank(whole, queries), len(whole.names)) == (22, 31)
    table = theory.theory_table(whole, queries, noise=0.5).set_index("quantity")["value"]
    assert table["information gain"] < table["bound by rank"] < table["bound by dimension"]
    assert (table["rank"], table["dimension"]) == (22, 31) and table["covariance error"] < 1e-12


def test_rank_of_yaeM_is_its_dimension():
    system = cb.models.load("ecoli70", target="yaeM")
    post = cb.fit(system.problem, centred(system.observe(300, 0)), intercepts=False)
    assert theory.causal_rank(post, system.problem.vertices()) == len(post.names) == 16


def test_known_coordinates_leave_the_conditional_covariance(b1583):
    factor, fixed = b1583[1].factor, [0, 4, 20]
    rest = [position for position in range(len(factor)) if position not in fixed]
    sigma = factor @ factor.T
    cross = sigma[np.ix_(rest, fixed)]
    schur = sigma[np.ix_(rest, rest)] - cross @ np.linalg.inv(sigma[np.ix_(fixed, fixed)]) @ cross.T
    root = _conditional_root(factor, fixed)
    np.testing.assert_allclose(root @ root.T, schur, atol=1e-10 * np.abs(schur).max())
    same = np.array(
        [[1.0, 2.0], [1.0, 2.0], [0.0, 1e-6]]
    )  # two coordinates that are one, and a narrow one
    for fixed in ([0], [0, 1]):
        root = _conditional_root(same, fixed)
        np.testing.assert_allclose((root @ root.T)[-1, -1], 2e-13, rtol=1e-9)
        assert np.abs(root[:-1]).max(initial=0.0) < 1e-15
    units = np.array(
        [[1.0, 0.0, 0.0], [0.0, 1e-12, 0.0], [1.0, 1.0, 1.0]]
    )  # knowing the second is knowing it fully
    assert (_conditional_root(units, [0, 1]) ** 2).sum() == pytest.approx(1.0)


def test_a_known_coefficient_leaves_one_dimension_on_the_chain(chain, make_problem):
    queries = chain.problem.vertices()
    assert theory.causal_rank(chain, queries) == 2
    assert (
        theory.causal_rank(chain, queries, known=["b[Z->Y]"])
        == theory.causal_rank(chain, queries, known="b[X->Z]")
        == 1
    )
    assert theory.causal_rank(chain, queries, known=chain.names) == 0
    problem = make_problem(known={("Z", "Y"): -1.3})
    post = cb.fit(problem, cb.models.load("chain").observe(25, 0), intercepts=False)
    assert len(post.names) == theory.causal_rank(post, problem.vertices()) == 1
    with pytest.raises(
        cb.errors.ArgumentError,
        match=r"coordinate of theta 'b\[Z->X\]'; did you mean .* post.names holds",
    ):
        theory.causal_rank(chain, queries, known=["b[Z->X]"])


def test_rank_does_not_depend_on_the_size_of_values(make_problem):
    problem = make_problem(domains={"X": (-1e-5, 1e-5), "Z": (-1e5, 1e5)})
    post = cb.fit(problem, cb.models.load("chain").observe(25, 0), intercepts=False)
    assert theory.causal_rank(post) == theory.causal_rank(post, problem.vertices()) == 2
