"""Information gains, their bounds and the table, against determinants and enumeration.

Internals: features of the table are made wrong on purpose.
"""

from itertools import combinations_with_replacement, product

import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.theory import information_gains
from causal_bo_ppl.theory.information_gains import independent_gain, rbf_features

GREEDY = 1 - 1 / np.e  # at least this share of the maximum


def centred(data):
    return cb.Data(data.nodes, data.target, data.values - data.values.mean(axis=0), data.intervened)


def dense_gain(gram, noise):
    """1/2 logdet(K + D) - 1/2 logdet(D), by LU."""
    noise = np.broadcast_to(noise, len(gram))
    return 0.5 * (np.linalg.slogdet(gram + np.diag(noise))[1] - np.log(noise).sum())


def dense_greedy(gram, noise, rounds):
    """Rows and gains of the greedy choice, each candidate tried by a determinant every round."""
    rows, gains, noise = [], [], np.broadcast_to(noise, len(gram))
    for _ in range(rounds):
        tried = [[*rows, row] for row in range(len(gram))]
        found = [dense_gain(gram[np.ix_(each, each)], noise[each]) for each in tried]
        first = int(np.flatnonzero(np.array(found) >= max(found) - 1e-9)[0])  # ties: the first
        rows, gains = tried[first], [*gains, found[first]]
    return rows, gains


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


@pytest.mark.parametrize(
    "noise", [0.3, np.random.default_rng(1).uniform(0.1, 3.0, 7)], ids=["one", "each"]
)
def test_information_gain_is_the_log_determinant(noise):
    features = np.random.default_rng(0).normal(size=(7, 3))
    gram = features @ features.T
    expected = dense_gain(gram, noise)
    assert theory.information_gain(gram, noise) == pytest.approx(expected, rel=1e-12)
    assert theory.information_gain(gram * 1e200, np.asarray(noise) * 1e200) == pytest.approx(
        expected, rel=1e-12
    )


def test_information_gain_takes_the_estimate_of_a_kernel(chain):
    found = cb.jacobian_gram(chain, chain.problem.grid(9))
    assert theory.information_gain(found, 0.5) == pytest.approx(
        dense_gain(np.asarray(found.gram), 0.5), rel=1e-12
    )


def test_information_of_repeated_outcomes_keeps_its_digits_under_tiny_noise():
    expected = 0.5 * np.log1p(np.arange(1, 51) * 1e14)
    np.testing.assert_allclose(
        theory.greedy_gain(np.ones((1, 1)), 1e-14, 50).gains, expected, rtol=1e-8
    )
    assert theory.greedy_gain([[1e-9]], 1.0, 1).gains[0] == pytest.approx(5e-19, rel=1e-9)


@pytest.mark.parametrize(
    ("gram", "noise", "error", "match"),
    [
        (
            np.ones((2, 3)),
            1.0,
            cb.errors.ArgumentError,
            r"shape \(T, T\), the same queries on both sides; got \(2, 3\)",
        ),
        (
            [[1.0, 0.5], [0.4, 1.0]],
            1.0,
            cb.errors.ArgumentError,
            r"symmetric, this one holds 0.5 at \(0, 1\) and 0.4",
        ),
        ([[np.nan, 0.0], [0.0, 1.0]], 1.0, cb.errors.NumericalError, r"holds nan at \(0, 0\)"),
        (
            [[1.0, 2.0], [2.0, 1.0]],
            1.0,
            cb.errors.NumericalError,
            "no covariance: it has the eigenvalue -1",
        ),
        (np.diag([1e6, -1e-2]), 1.0, cb.errors.NumericalError, "no covariance"),
        (np.eye(2, dtype=np.float32), 1.0, cb.errors.ArgumentError, "float64 numbers, got float32"),
        (np.eye(2), np.ones(2, np.float32), cb.errors.ArgumentError, "noise must hold float64"),
        ([["a"]], 1.0, cb.errors.ArgumentError, "float64 numbers"),
        ([[1.0], [1.0, 2.0]], 1.0, cb.errors.ArgumentError, "rows differ in length"),
        (
            np.eye(2),
            0.0,
            cb.errors.ArgumentError,
            "positive, finite variance, got 0; exact outcomes have no finite gain",
        ),
        (np.eye(2), [1.0, np.nan], cb.errors.ArgumentError, "positive, finite variance, got nan"),
        (np.eye(2), np.inf, cb.errors.ArgumentError, "positive, finite variance, got inf"),
        (
            np.eye(2),
            [1.0, 1.0, 1.0],
            cb.errors.ArgumentError,
            r"each of the 2 queries; got the shape \(3,\)",
        ),
        (np.eye(2) * 1e200, 1e-200, cb.errors.NumericalError, "over the noise holds inf"),
    ],
)
def test_invalid_covariances_and_variances_are_refused(gram, noise, error, match):
    with pytest.raises(error, match=match):
        theory.information_gain(gram, noise)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (
            (np.ones(3), 1.0, 2),
            cb.errors.ArgumentError,
            r"shape \(M, r\), a row for every query; got \(3,\)",
        ),
        ((np.ones((0, 2)), 1.0, 2), cb.errors.ArgumentError, r"shape \(M, r\)"),
        ((np.full((2, 2), np.inf), 1.0, 2), cb.errors.NumericalError, "features holds inf"),
        (
            (np.full((2, 2), 1e200), 1.0, 2),
            cb.errors.NumericalError,
            "variance over noise holds inf",
        ),
        (
            (np.ones((2, 2)), 1.0, 0),
            cb.errors.ArgumentError,
            "rounds must be a whole number, at least 1; got 0",
        ),
        ((np.ones((2, 2)), 1.0, True), cb.errors.ArgumentError, "rounds must be a whole number"),
    ],
)
def test_odd_features_and_rounds_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        theory.greedy_gain(*arguments)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_gain_is_near_the_maximum_over_all_multisets(seed):
    draws = np.random.default_rng(seed)
    features, noise = draws.normal(size=(6, 3)), draws.uniform(0.1, 2.0, 6)
    gram, found = features @ features.T, theory.greedy_gain(features, noise, 4)
    rows, gains = dense_greedy(gram, noise, 4)
    assert found.chosen.tolist() == rows
    np.testing.assert_allclose(found.gains, gains, rtol=1e-12)
    sets = map(list, combinations_with_replacement(range(6), 4))
    best = max(dense_gain(gram[np.ix_(each, each)], noise[each]) for each in sets)
    assert GREEDY * best <= found.gains[-1] <= best * (1 + 1e-12)


def test_greedy_choices_over_the_domain_are_vertices(chain):
    fine, coarse = (
        theory.greedy_gain(np.asarray(cb.kernels.jacobian_features(chain, queries)), 0.5, 40)
        for queries in (chain.problem.grid(21), chain.problem.vertices())
    )
    np.testing.assert_allclose(fine.gains, coarse.gains, rtol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_gain_stays_below_the_bound_by_rank_and_reaches_it_for_orthogonal_features(rank):
    features = np.random.default_rng(rank).normal(size=(30, rank))
    kappa2 = (features**2).sum(axis=1).max()
    for rounds in (1, 7, 60):
        gain = theory.greedy_gain(features, 0.2, rounds).gains[-1]
        bounds = [
            theory.information_gain_bound(r, rounds, kappa2, 0.2)
            for r in (rank, rank + 1, rank + 9)
        ]
        assert gain * (1 - 1e-12) <= bounds[0] < bounds[1] < bounds[2]
    tight = theory.greedy_gain(2 * np.eye(rank), 0.2, 4 * rank).gains[-1]
    assert tight == pytest.approx(
        theory.information_gain_bound(rank, 4 * rank, 4.0, 0.2), rel=1e-12
    )


def test_bound_of_rank_zero_and_odd_arguments():
    assert theory.information_gain_bound(0, 10, 1.0, 1.0) == 0.0
    assert theory.information_gain_bound(2, 320, 7.33, 1.0) == pytest.approx(
        7.068, abs=1e-3
    )  # the paper's table
    for arguments, match in [
        ((-1, 10, 1.0, 1.0), "rank must be a whole number, at least 0; got -1"),
        ((2, 1.5, 1.0, 1.0), "T must be a whole number"),
        ((2, 10, -1.0, 1.0), "kappa2 must be finite and 0 or more, got -1"),
        ((2, 10, 1.0, 0.0), "noise must be finite and positive, got 0"),
        ((2, 10, np.nan, 1.0), "kappa2 must be finite"),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            theory.information_gain_bound(*arguments)


@pytest.mark.parametrize("seed", range(4))
def test_independent_gain_is_the_best_allocation_of_greedy_choices(seed):
    draws = np.random.default_rng(seed)
    features, noise = draws.normal(size=(9, 2)), draws.uniform(0.1, 2.0, 9)
    blocks = np.array(["a", "c", "b", "a", "a", "b", "c", "b", "b"])
    found = independent_gain(features, blocks, noise, 5)
    gram = (features @ features.T) * (blocks[:, None] == blocks)
    assert found.gains[-1] == pytest.approx(dense_greedy(gram, noise, 5)[1][-1], rel=1e-12)
    curves = {}
    for name in "abc":
        rows = np.flatnonzero(blocks == name)
        curves[name] = [0.0, *dense_greedy(gram[np.ix_(rows, rows)], noise[rows], 5)[1]]
    spreads = [spread for spread in product(range(6), repeat=3) if sum(spread) == 5]
    totals = [
        sum(curves[name][n] for name, n in zip("abc", spread, strict=True)) for spread in spreads
    ]
    assert found.gains[-1] == pytest.approx(max(totals), rel=1e-12)
    assert tuple(found.allocation[name] for name in "abc") == spreads[int(np.argmax(totals))]
    padded = np.concatenate([features * (blocks == name)[:, None] for name in "abc"], axis=1)
    np.testing.assert_allclose(theory.greedy_gain(padded, noise, 5).gains, found.gains, rtol=1e-12)
    assert (
        theory.greedy_gain(features, noise, 5).gains[-1] < found.gains[-1]
    )  # coupling can only add less
    with pytest.raises(
        cb.errors.ArgumentError, match=r"one label for each of 9 candidates; got the shape \(8,\)"
    ):
        independent_gain(features, blocks[:8], noise, 5)


def test_rbf_features_are_the_kernel_of_every_set_on_its_own(make_problem):
    problem = make_problem(sets=2)
    queries = problem.sobol(8)
    variances = {"X": 2.0, "Z": 0.5, "X, Z": 1.5}
    features, blocks = rbf_features(problem, queries, lengthscale=0.3, variances=variances)
    values = np.asarray(queries.value)[:, :2] / np.array(
        [10.0, 25.0]
    )  # the widths; what is not set is 0
    distance = ((values[:, None] - values) ** 2).sum(axis=2)
    expected = np.array([variances[name] for name in blocks])[:, None] * np.exp(
        -distance / (2 * 0.3**2)
    )
    same = blocks[:, None] == blocks
    np.testing.assert_allclose((features @ features.T)[same], expected[same], rtol=1e-9, atol=1e-11)
    assert sorted(set(blocks)) == ["X", "X, Z", "Z"] and features.shape[1] <= 8
    found = independent_gain(features, blocks, 0.1, 20)
    assert found.gains[-1] == pytest.approx(dense_greedy(expected * same, 0.1, 20)[1][-1], rel=1e-8)
    for options, match in [
        ({"lengthscale": 0.0}, "lengthscale must be finite and positive, got 0"),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            rbf_features(
                problem, queries, **({"lengthscale": 0.3, "variances": variances} | options)
            )
    with pytest.raises(cb.errors.ArgumentError, match="there are no queries"):
        rbf_features(problem, queries[:0], lengthscale=0.3, variances=variances)


def test_the_table_has_the_structure_of_the_papers(chain):
    table = theory.theory_table(chain, chain.problem.grid(41), noise=0.5)
    value = table.set_index("quantity")["value"]
    assert value["rank"] == value["dimension"] == 2 and value["covariance error"] < 1e-12
    assert value["information gain"] < value["bound by rank"] == value["bound by dimension"]
    assert (
        value["independent gain, RBF"]
        > value["independent gain, causal"]
        > value["information gain"]
    )
    assert (
        value["independent gain, RBF"] > 3 * value["independent gain, causal"]
    )  # the kernel, not the coupling
    assert (
        value["trace"] == pytest.approx((chain.sd**2).sum())
        and value["kappa^2"] > 0
        and value["L"] > 0
    )
    assert list(table.columns) == ["quantity", "value", "how"] and table["how"].str.len().min() > 5
    assert {
        "rounds": 320,
        "noise": 0.5,
        "lengthscale": 0.2,
        "queries": 82,
    }.items() <= table.attrs.items()
    with pytest.raises(cb.errors.ArgumentError, match="there are no queries"):
        theory.theory_table(chain, chain.problem.grid(3)[:0], noise=0.5)


def test_the_table_is_made_of_its_parts_and_a_wrong_kernel_shows(chain, monkeypatch):
    queries = chain.problem.grid(5)
    value = theory.theory_table(chain, queries, noise=0.5, rounds=50).set_index("quantity")["value"]
    assert (
        value["kappa^2"] == theory.kappa2(chain).value
        and value["L"] == theory.lipschitz(chain).value
    )
    for name, rank in (("bound by rank", 2), ("bound by dimension", 2)):
        assert value[name] == pytest.approx(
            rank / 2 * np.log(1 + 50 * value["kappa^2"] / (0.5 * rank))
        )
    longer = theory.theory_table(chain, queries, noise=0.5, rounds=50, lengthscale=1.0).set_index(
        "quantity"
    )["value"]
    assert longer["independent gain, RBF"] < 0.7 * value["independent gain, RBF"]
    vertices = theory.theory_table(chain, noise=0.5, rounds=50).set_index("quantity")["value"]
    assert (
        vertices["independent gain, RBF"] == value["independent gain, RBF"]
    )  # its own points fill the domain
    right = information_gains.jacobian_features
    monkeypatch.setattr(
        information_gains, "jacobian_features", lambda *a, **k: 1.01 * np.asarray(right(*a, **k))
    )
    wrong = theory.theory_table(chain, queries, noise=0.5, rounds=50).set_index("quantity")["value"]
    assert value["covariance error"] < 1e-12 and wrong["covariance error"] > 1e-3


def test_curves_of_gain_stay_in_their_order_after_every_outcome(chain):
    curves = theory.gain_curves(chain, chain.problem.grid(11), noise=0.5, rounds=60)
    assert (curves["coupled"] <= curves["bound by rank"]).all()
    assert (curves["coupled"] <= curves["independent, causal"] * (1 + 1e-12)).all()
    assert (np.diff(curves, axis=0) > 0).all() and curves.index[-1] == 60
    table = theory.theory_table(chain, chain.problem.grid(11), noise=0.5, rounds=60).set_index(
        "quantity"
    )["value"]
    assert table["independent gain, causal"] == curves["independent, causal"].iloc[-1]
    assert table["information gain"] == curves["coupled"].iloc[-1]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_sums_of_growing_data_are_those_of_a_loop_and_below_their_bound(alpha):
    found, total = theory.growing_data_sum(500, alpha, scale=2.0), 0.0
    for t in range(1, 501):
        total += 2.0 * t ** (-alpha / 2)
        assert found[t - 1] == pytest.approx(total, rel=1e-12)
        assert total <= theory.growing_data_bound(t, alpha, scale=2.0)
    assert theory.growing_data_bound(500, alpha, scale=2.0) < 1.1 * total  # of its order


def test_growing_data_need_an_exponent_of_at_most_one():
    for alpha in (0.0, 1.5, np.nan):
        with pytest.raises(cb.errors.ArgumentError, match=r"alpha must lie in \(0, 1\]"):
            theory.growing_data_sum(10, alpha)
    with pytest.raises(
        cb.errors.ArgumentError, match="T must be a whole number, at least 1; got 0"
    ):
        theory.growing_data_bound(0, 0.5)
