"""Constants, design strength and concentration against grids, dense algebra and loops.

Internals: a failed posterior is refused by the largest gain of a drift too.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import fitted_cases as cases
from scipy.stats import chi2

import causal_bo_ppl as cb
from causal_bo_ppl import theory
from causal_bo_ppl.theory.drift import worst_gain

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def posts(chain):
    """Posteriors of the chain from more and more observations."""
    data = chain.observe(200, 0)
    return [
        cb.fit(chain.problem, data.select(slice(n)), intercepts=False) for n in (20, 40, 80, 200)
    ]


def dense(post, queries):
    """Jacobian, and gram by dense algebra."""
    jacobian = np.asarray(cb.response(post).jacobian(post.mean, queries))
    return jacobian, jacobian @ post.covariance @ jacobian.T


@pytest.mark.parametrize("kind", ["structural", "total_effect", "minimal"])
def test_kappa_and_lipschitz_are_the_largest_over_the_domains(kind):
    problem, truth = cases.random_problem(3, size=4)
    post = cb.fit(problem, cases.simulate(problem, truth, 30, 0), parameters=kind)
    jacobian, gram = dense(post, problem.grid(9))
    for found, values in [
        (theory.kappa2(post), np.diagonal(gram)),
        (theory.lipschitz(post), np.linalg.norm(jacobian, axis=1)),
    ]:
        assert found.value == pytest.approx(
            values.max(), rel=1e-10
        )  # the grid has the vertices, and inner points
        assert np.sort(values)[-2] <= found.value * (1 + 1e-12)
    [there] = np.diagonal(dense(post, problem.queries(theory.kappa2(post).intervention))[1])
    assert there == pytest.approx(theory.kappa2(post).value, rel=1e-10)
    steep, _ = dense(post, problem.queries(theory.lipschitz(post).intervention))
    assert np.linalg.norm(steep) == pytest.approx(theory.lipschitz(post).value, rel=1e-10)


def test_sets_that_cannot_be_learned_are_not_looked_at():
    graph, draws = cb.CausalGraph.parse("X -> Y; Z -> Y; X <-> Y"), np.random.default_rng(0)
    problem = cb.Problem(graph, "Y", domains={"X": (-1, 1), "Z": (-1, 3)}, identifiable_only=True)
    u, x, z, y = draws.normal(size=(4, 50))
    data = cb.Data(
        graph.nodes, "Y", np.column_stack([u + x, z, u + x - z + y]), np.zeros((50, 3), bool)
    )
    assert theory.kappa2(cb.fit(problem, data, method="wishart")).intervention == {"Z": 3.0}


def test_parameter_error_is_the_length_of_the_jacobian_times_the_radius(posts):
    post, delta = posts[0], 0.1
    found = theory.parameter_error(post, delta=delta)
    radius = np.sqrt(chi2.ppf(1 - delta, 2) * np.linalg.eigvalsh(post.covariance)[-1])
    assert found.radius == pytest.approx(radius, rel=1e-12)
    assert found.value == pytest.approx(theory.lipschitz(post).value * radius, rel=1e-12)
    assert found.pointwise == pytest.approx(
        np.sqrt(chi2.ppf(1 - delta, 2) * theory.kappa2(post).value), rel=1e-12
    )
    assert found.pointwise < found.value
    theta = post.draws(20_000, 0)
    jacobian, _ = dense(post, post.problem.vertices())
    worst = np.abs((theta - post.mean) @ jacobian.T).max(axis=1)
    assert (worst > found.pointwise).mean() < delta + 4 * np.sqrt(
        delta / len(theta)
    ) + 0.05  # Student's t, 20 observations
    with pytest.raises(cb.errors.ArgumentError, match="delta must lie between 0 and 1, got 1"):
        theory.parameter_error(post, delta=1)
    with pytest.raises(cb.errors.ArgumentError, match="a Posterior is needed here, got Problem"):
        theory.parameter_error(post.problem)


def test_a_failed_posterior_is_refused_unless_accepted(posts):
    failed, queries = (
        replace(posts[0], distribution=replace(posts[0].distribution)),
        posts[0].problem.vertices(),
    )
    object.__setattr__(failed.distribution, "verdict", "failed")
    for refused in (
        lambda post: theory.kappa2(post),
        lambda post: theory.lipschitz(post),
        lambda post: theory.parameter_error(post),
        lambda post: theory.causal_rank(post, queries),
        lambda post: theory.kernel_drift([posts[1], post], queries),
        lambda post: worst_gain([post], queries, 1.0, 2),
        lambda post: theory.variance_sum_ratio([post], queries[:1], 1.0),
        lambda post: theory.theory_table(post, queries, noise=1.0, rounds=2),
    ):
        with pytest.raises(
            cb.errors.PosteriorError,
            match="verdict is 'failed'; look at cb.diagnostics.check_posterior",
        ):
            refused(failed)
        refused(failed.accept("test"))


@pytest.mark.parametrize("intercepts", [True, False])
def test_design_strength_is_the_smallest_eigenvalue_of_every_design(intercepts):
    problem, truth = cases.random_problem(0, known=1)
    data = cases.simulate(problem, truth, 80, 0, interventional=True, lift=0.5 * intercepts)
    table = theory.design_strength(cb.fit(problem, data, intercepts=intercepts))
    assert len(table) >= 3
    for node, line in table.iterrows():
        regressors, _, names = cases.design(problem, data, node, intercepts)
        assert line["observations"] == len(regressors) < 80 or node == problem.target
        smallest = np.linalg.eigvalsh(regressors.T @ regressors / len(regressors))[0]
        assert line["lambda_min"] == pytest.approx(smallest, rel=1e-9)
        parents = regressors[:, int(intercepts) :]
        if parents.shape[1] > 1:
            scaled = parents - parents.mean(axis=0) if intercepts else parents
            scaled = scaled / np.sqrt((scaled**2).mean(axis=0))
            smallest = np.linalg.eigvalsh(scaled.T @ scaled / len(scaled))[0]
            assert line["standardized"] == pytest.approx(smallest, rel=1e-9)


def test_nearly_collinear_parents_are_named_in_any_units():
    graph, draws = cb.CausalGraph.parse("A -> Y; B -> Y; C -> Y"), np.random.default_rng(0)
    problem = cb.Problem(graph, "Y", domains={name: (-1, 1) for name in "ABC"}, sets=1)
    a, c, b, y = draws.normal(size=(4, 100)) * np.array([[1.0], [1.0], [1e-3], [1.0]])
    for unit in (1.0, 1e4):
        values = np.column_stack([a, (a + b) * unit, c, a + c + y])
        post = cb.fit(problem, cb.Data(graph.nodes, "Y", values, np.zeros((100, 4), bool)))
        line = theory.design_strength(post).loc["Y"]
        assert line["standardized"] < 1e-6 and line["weakest"] == "A, B"
    assert theory.design_strength(post).index.tolist() == ["A", "B", "C", "Y"]
    alone = theory.design_strength(post).loc["A"]
    assert (
        alone["lambda_min"] == pytest.approx(1.0)
        and np.isnan(alone["standardized"])
        and alone["weakest"] == ""
    )


def test_few_observations_and_constant_parents_have_strength_zero():
    graph = cb.CausalGraph.parse("A -> Y; B -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (-1, 1), "B": (-1, 1)}, sets=[("A", "B")])
    constant = [[1.0, 0.1, 3.0], [2.0, 0.1, 5.0], [3.0, 0.1, 1.0], [4.0, 0.1, 0.0]]
    for values, intercepts in [
        (constant, True),
        (constant[:1], True),
        (constant[:1], False),
        ([[1.0, 0.0, 3.0]], False),
    ]:
        whole = cb.Data(graph.nodes, "Y", np.array(values), np.zeros(np.shape(values), bool))
        for data in (whole, whole.select(slice(0))):
            line = theory.design_strength(
                cb.fit(problem, data, prior=cb.priors.FixedPrior(), intercepts=intercepts)
            ).loc["Y"]
            assert (
                line["observations"] == len(data)
                and line["lambda_min"] < 1e-25
                and line["standardized"] < 1e-25
            )


def test_concentration_has_the_exponents_of_the_theory(chain):
    truth = {"b[X->Z]": 0.8, "b[Z->Y]": -1.3}
    data = chain.observe(3_200, 0).join(chain.experiment(chain.problem.vertices(), 1))
    table = theory.concentration(chain.problem, data, truth=truth, intercepts=False)
    assert table.index.tolist() == [25, 50, 100, 200, 400, 800, 1600, 3200]
    for column, expected in [
        ("trace", -1.0),
        ("spectral", -1.0),
        ("eps_pointwise", -0.5),
        ("eps_param", -0.5),
    ]:
        found = theory.rate(table, column)
        assert (
            abs(found.exponent - expected) < 4 * found.standard_error
            and found.standard_error < 0.05
        ), column
    assert (
        abs(theory.rate(table, "design").exponent) < 0.2
        and theory.rate(table, "error").exponent < -0.3
    )
    post = cb.fit(chain.problem, data.select(slice(100)), intercepts=False)
    line = table.loc[100]
    assert line["trace"] == pytest.approx((post.sd**2).sum(), rel=1e-12)
    assert line["spectral"] == pytest.approx(np.linalg.eigvalsh(post.covariance)[-1], rel=1e-12)
    assert line["error"] == pytest.approx(np.hypot(*(post.mean - [0.8, -1.3])), rel=1e-12)
    assert line["lipschitz"] == theory.lipschitz(post).value
    assert line["eps_param"] == theory.parameter_error(post).value
    assert line["design"] == theory.design_strength(post)["lambda_min"].min()
    again = theory.concentration(chain.problem, data, [100, 50], truth=truth, intercepts=False)
    assert again.loc[100].equals(line) and again.index.tolist() == [50, 100]
    assert "error" not in theory.concentration(chain.problem, data, [50], intercepts=False)


def test_rate_is_the_slope_of_the_logarithms():
    counts = np.array([10.0, 20.0, 40.0, 80.0, 160.0])
    values = 3.0 * counts**-1.5 * np.exp([0.1, -0.2, 0.0, 0.1, 0.05])
    found = theory.rate(pd.DataFrame({"v": values}, index=counts), "v")
    (slope, _), covariance = np.polyfit(np.log(counts), np.log(values), 1, cov=True)
    assert found.exponent == pytest.approx(slope) and found.standard_error == pytest.approx(
        covariance[0, 0] ** 0.5
    )
    assert theory.rate(pd.DataFrame({"v": counts**-0.5}, index=counts), "v") == pytest.approx(
        (-0.5, 0.0), abs=1e-12
    )


def test_invalid_arguments_of_concentration_are_refused(chain):
    data = chain.observe(40, 0)
    for options, match in [
        ({"sizes": [50]}, "counts up to 40, the number of observations.*; got 50"),
        ({"sizes": [0]}, "sizes must be a whole number, at least 1; got 0"),
        ({"sizes": []}, "counts up to 40.*; got none"),
        ({"truth": {"b[X->Z]": 0.8}}, r"every coordinate of theta and no other; check b\[Z->Y\]"),
        ({"truth": {"b[X->Z]": 0.8, "b[Z->Y]": 1.0, "c": 2.0}}, "no other; check c"),
        ({"method": "nuts"}, 'take method="laplace"'),
    ]:
        with pytest.raises(cb.errors.ArgumentError, match=match):
            theory.concentration(chain.problem, data, intercepts=False, **options)
    with pytest.raises(cb.errors.DataError, match="concentration needs Data, got ndarray"):
        theory.concentration(chain.problem, data.values)
    with pytest.raises(cb.errors.DataError, match="there are no observational data"):
        theory.concentration(chain.problem, chain.experiment(chain.problem.vertices(), 0))
    table = pd.DataFrame({"trace": [1.0, 0.0, 2.0]}, index=[1, 2, 3])
    with pytest.raises(
        cb.errors.ArgumentError, match="3 rows or more, all positive; 'trace' holds 1.0, 0.0, 2.0"
    ):
        theory.rate(table, "trace")
    with pytest.raises(
        cb.errors.ArgumentError, match="unknown column 'tracr'; did you mean 'trace'"
    ):
        theory.rate(table, "tracr")


def test_pointwise_errors_of_the_table_are_those_of_the_posterior(chain):
    data = chain.observe(100, 0)
    table = theory.concentration(chain.problem, data, sizes=[25, 100], delta=0.1)
    post = cb.fit(chain.problem, data.select(slice(25)))
    found = theory.parameter_error(post, delta=0.1)
    assert (
        table.loc[25, "eps_pointwise"] == pytest.approx(found.pointwise)
        and found.pointwise < found.value
    )
    assert table.attrs["delta"] == 0.1
    with pytest.raises(
        cb.errors.ArgumentError, match="rate needs a table of cb.theory.concentration, got list"
    ):
        theory.rate([1, 2], "trace")


def test_a_confounded_effect_is_weak_where_its_factor_is():
    problem = cb.Problem(
        cb.CausalGraph.parse("X -> Z -> Y; X <-> Y"), "Y", domains={"X": (-3, 3), "Z": (-3, 3)}
    )
    u, a, b, c = np.random.default_rng(0).normal(size=(4, 400))
    found = []
    for own in (1.0, 0.01):  # how much of Z is not X
        values = np.column_stack([u + a, 0.7 * (u + a) + own * b, 0.7 * (u + a) + own * b + u + c])
        post = cb.fit(
            problem,
            cb.Data(problem.graph.nodes, "Y", values, np.zeros((400, 3), bool)),
            method="wishart",
        )
        found.append(theory.design_strength(post).loc["Y"])
    assert (
        found[0]["standardized"] > 0.1
        and found[1]["standardized"] < 1e-3
        and found[1]["weakest"] == "X, Z"
    )
