"""Comparisons of kernels, coupling, and variance reductions.

Errors and their noise, the terms of a covariance, and bounds on them.
"""

import numpy as np
import pytest
from helpers import fitted_cases as cases

import causal_bo_ppl as cb

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def chain():
    system = cb.models.load("chain")
    return cb.fit(system.problem, system.observe(12, 0), intercepts=False)


@pytest.fixture(scope="module")
def long_chain():
    """X -> Z -> W -> Y from a few observations, and outcomes of do(X) of which only Y is known.

    So the equations are correlated.
    """
    graph = cb.CausalGraph.parse("X -> Z -> W -> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-3, 3), "Z": (-3, 3)}, sets=[("X",), ("Z",)])
    truth = {("X", "Z"): 0.9, ("Z", "W"): 0.8, ("W", "Y"): 1.1}
    data = cases.simulate(problem, truth, 30, 0, lift=0.0)
    tried = problem.queries([{"X": 3.0}, {"X": -3.0}] * 30)
    values = 0.9 * 0.8 * 1.1 * np.asarray(tried.value)[:, 0] + np.random.default_rng(1).normal(
        size=60
    )
    apart = cb.fit(problem, data, intercepts=False)
    together = cb.fit(
        problem, data, intercepts=False, method="laplace", outcomes=(tried, values), key=0
    )
    return problem, apart, together


def quadrature_terms(post, queries, effect):
    """Leading, mixed and remainder covariances of Gaussian theta.

    By Gauss-Hermite quadrature, which is exact up to degree 7.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    size = len(post.mean)
    points = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), axis=-1).reshape(-1, size)
    mass = np.prod(
        np.stack(np.meshgrid(*[weights / weights.sum()] * size, indexing="ij"), -1).reshape(
            -1, size
        ),
        axis=1,
    )
    root = np.linalg.cholesky(post.covariance)
    moves = points @ root.T
    values = effect(post.mean + moves)
    step = 1e-6 * np.eye(size)
    slopes = (effect(post.mean + step) - effect(post.mean - step)) / 2e-6
    linear = moves @ slopes
    missed = values - mass @ values - linear

    def covariance(one, other):
        return one.T @ (mass[:, None] * other)

    mixed = covariance(linear, missed)
    return {
        "leading": covariance(linear, linear),
        "mixed": mixed + mixed.T,
        "remainder": covariance(missed, missed) - np.outer(mass @ missed, mass @ missed),
    }


def test_errors_are_the_norms_of_the_differences_of_the_grams():
    problem, truth = cases.random_problem(1, size=4)
    post = cb.fit(problem, cases.simulate(problem, truth, 20, 1))
    queries = problem.sobol(2)
    found = cb.compare_kernels(post, queries, draws=500, key=0)
    jacobian, exact = (
        np.asarray(kernel(post, queries).gram) for kernel in (cb.jacobian_gram, cb.exact_gram)
    )
    sets = [
        tuple(name for name, given in zip(problem.graph.nodes, row, strict=True) if given)
        for row in queries.mask
    ]
    for left in found.left.values:
        for right in found.right.values:
            rows, columns = ([", ".join(each) == label for each in sets] for label in (left, right))
            block = (jacobian - exact)[np.ix_(rows, columns)]
            here = found.sel(comparison="jacobian - exact", left=left, right=right)
            scale = np.linalg.norm(exact[np.ix_(rows, columns)])
            assert float(here.frobenius) == pytest.approx(np.linalg.norm(block) / scale, rel=1e-9)
            assert float(here.maximum) == pytest.approx(np.abs(block).max(), rel=1e-9)
            assert float(here.spectral) == pytest.approx(np.linalg.norm(block, 2), rel=1e-6)
            assert float(here.frobenius_se) == 0 and np.isnan(here.frobenius_z)
    whole = np.linalg.norm(jacobian - exact) / np.linalg.norm(exact)
    assert float(found.overall_frobenius[0]) == pytest.approx(whole, rel=1e-9)
    error = np.asarray(exact - jacobian)
    assert float(found.remainder_maximum.max()) == pytest.approx(np.abs(error).max(), rel=1e-9)
    sizes = [np.linalg.norm(jacobian), 0.0, np.linalg.norm(error)]
    np.testing.assert_allclose(found.overall_size, sizes, rtol=1e-9)
    assert len(found.left) == len(problem.sets) and found.attrs["reference"] == "exact"
    assert list(found.left.values) == sorted(found.left.values, key=lambda label: label.split(", "))


def test_total_effects_have_no_linearization_error_but_the_delta_method_errs():
    problem, truth = cases.random_problem(1, size=4)
    post = cb.fit(problem, cases.simulate(problem, truth, 20, 1), parameters="total_effect")
    queries = problem.sobol(1)
    found, exact = (
        cb.compare_kernels(post, queries, draws=500, key=0),
        np.asarray(cb.exact_gram(post, queries).gram),
    )
    np.testing.assert_allclose(found.overall_size, [np.linalg.norm(exact), 0.0, 0.0], rtol=1e-9)
    assert float(found.overall_drawn[2]) == 0 and float(found.overall_frobenius[0]) > 1e-3


def test_errors_of_terms_are_their_spread_over_seeds(chain):
    queries = chain.problem.queries([{"X": 3.0}])
    found = [cb.compare_kernels(chain, queries, draws=1000, key=seed) for seed in range(40)]
    for position, term in enumerate(("leading", "remainder")):
        here = [each.sel(term=term, left="X", right="X") for each in found]
        spread = np.std([float(each.drawn) for each in here])
        claimed = np.sqrt(np.mean([float(each.drawn_se) ** 2 for each in here]))
        assert 0.6 < claimed / spread < 1.7, (position, claimed / spread)


def test_without_independent_equations_draws_are_the_reference(chain):
    theta = cases.correlated(chain, np.random.default_rng(0), memory=0.3)
    post, queries = cases.sampled(chain, theta), chain.problem.grid(4)
    found = cb.compare_kernels(post, queries, key=0)
    assert found.attrs["reference"] == "monte_carlo"
    assert np.isnan(
        found.frobenius.sel(comparison=["jacobian - exact", "monte_carlo - exact"])
    ).all()
    drawn = np.asarray(cb.monte_carlo_gram(post, queries, key=0).gram)
    block = (np.asarray(cb.jacobian_gram(post, queries).gram) - drawn)[:4, :4]
    here = found.sel(comparison="jacobian - monte_carlo", left="X", right="X")
    assert float(here.frobenius) == pytest.approx(
        np.linalg.norm(block) / np.linalg.norm(drawn[:4, :4]), rel=1e-9
    )
    assert float(here.spectral) == pytest.approx(np.linalg.norm(block, 2), rel=1e-6)


def test_z_scores_of_monte_carlo_error_alone_are_those_of_noise(chain):
    queries = chain.problem.grid(3)
    found = [cb.compare_kernels(chain, queries, draws=1000, key=seed) for seed in range(40)]
    for name in ("frobenius_z", "maximum_z", "spectral_z"):
        z = np.array(
            [
                each[name].sel(comparison="monte_carlo - exact", left="X", right="X")
                for each in found
            ]
        )
        assert abs(z.mean()) < 4 / np.sqrt(40) and 0.6 < z.std() < 1.5 and z.max() < 4.5
    ratio = np.array(
        [float(each.frobenius[1, 0, 0] / each.frobenius_se[1, 0, 0]) for each in found]
    )
    assert np.sqrt((ratio**2).mean()) == pytest.approx(1.0, abs=0.35)


def test_the_jacobian_differs_from_draws_significantly_when_its_error_is_large():
    graph = cb.CausalGraph.parse("A -> B -> C -> D -> Y")
    problem = cb.Problem(graph, "Y", domains={"A": (-3, 3)}, sets=[("A",)])
    truth = dict.fromkeys(graph.directed, 0.7)
    for observations, is_seen in ((15, True), (1000, False)):
        post = cb.fit(problem, cases.simulate(problem, truth, observations, 3))
        z = float(
            cb.compare_kernels(post, problem.grid(5), draws=16_000, key=1).overall_frobenius_z[2]
        )
        assert z > 4.5 if is_seen else z < 4


def test_terms_of_independent_equations_are_exact_and_draws_agree(chain):
    found = cb.compare_kernels(chain, chain.problem.grid(5), draws=8000, key=1)
    both = found.sel(left="X", right="X")
    x = np.linspace(-5, 5, 5)
    assert float(both["size"].sel(term="remainder")) == pytest.approx(
        np.prod(chain.sd**2) * (x @ x), rel=1e-9
    )
    assert float(both["size"].sel(term="mixed")) == 0 and float(both.drawn_z.sel(term="mixed")) < 5
    assert float(both.drawn_z.sel(term="remainder")) > 10
    assert abs(float(both.drawn.sel(term="leading") / both["size"].sel(term="leading")) - 1) < 0.1
    assert float(found.drawn.sel(term="remainder", left="Z", right="Z")) == 0  # rounding is nothing
    assert np.isnan(found.drawn_z.sel(term="remainder", left="Z", right="Z"))


def test_mixed_terms_do_not_vanish_where_outcomes_correlate_the_equations(long_chain):
    problem, apart, together = long_chain
    queries = problem.queries([{"X": 2.0}, {"X": -1.0}, {"Z": 2.0}])
    correlation = together.covariance / np.outer(together.sd, together.sd)
    assert np.abs(correlation - np.diag(np.diagonal(correlation))).max() > 0.3

    def effect(theta):  # of do(X = 2), do(X = -1), do(Z = 2)
        tail = theta[:, 1] * theta[:, 2]
        return np.column_stack([2 * theta[:, 0] * tail, -theta[:, 0] * tail, 2 * tail])

    found = cb.compare_kernels(together, queries, draws=50_000, key=0)
    expected = quadrature_terms(together, queries, effect)
    for term, gram in expected.items():
        here = found.sel(term=term, left="X", right="X")
        assert float(here.drawn) == pytest.approx(
            np.linalg.norm(gram[:2, :2]), abs=5 * float(here.drawn_se)
        ), term
    mixed = found.sel(term="mixed", left="X", right="X")
    assert float(mixed.drawn_z) > 5
    ratio = np.linalg.norm(expected["mixed"][:2, :2]) / np.linalg.norm(
        expected["remainder"][:2, :2]
    )
    assert ratio > 0.1  # of the order of the term that the paper bounds
    independent = cb.compare_kernels(apart, queries, draws=20_000, key=0).sel(
        term="mixed", left="X", right="X"
    )
    assert float(independent.drawn_z) < 5


def test_the_bound_is_labelled_by_what_it_needs(chain, long_chain):
    queries = chain.problem.grid(3)
    student = cb.compare_kernels(chain, queries, draws=200, key=0)
    assert student.bound_kind.values.tolist() == [
        ["if theta were Gaussian", "rigorous"],
        ["rigorous", "rigorous"],
    ]
    known = cb.fit(
        chain.problem,
        chain.data,
        intercepts=False,
        prior=cb.priors.FixedPrior(noise_observations=np.inf),
    )
    gaussian = cb.compare_kernels(known, queries, draws=200, key=0)
    assert set(gaussian.bound_kind.values.ravel()) == {"rigorous"}
    assert (gaussian.remainder_maximum <= gaussian.bound).all()
    curvature = 5.0  # of a b x, at |x| = 5
    assert float(gaussian.bound[0, 0]) == pytest.approx(
        0.75 * curvature**2 * np.trace(known.covariance) ** 2, rel=1e-9
    )
    problem, apart, _ = long_chain
    local = cb.compare_kernels(apart, problem.grid(3), draws=200, key=0).bound_kind
    assert local.sel(left="X", right="X") == local.sel(left="X", right="Z") == "local"
    assert local.sel(left="Z", right="Z") == "if theta were Gaussian"
    joint = cb.compare_kernels(long_chain[2], problem.queries([{"Z": 1.0}]), draws=200, key=0)
    assert joint.bound_kind.values.tolist() == [
        ["rigorous"]
    ]  # Laplace's theta is Gaussian, and b c has degree 2


def test_comparisons_can_be_stacked_and_refuse_what_they_cannot_compare(chain):
    import xarray as xr

    queries = chain.problem.grid(3)
    found = cb.compare_kernels(chain, queries, draws=200, key=0)
    assert xr.concat([found, found], "observations").sizes["observations"] == 2
    with pytest.raises(
        cb.errors.ArgumentError, match="draws must be a whole number, at least 100; got 50"
    ):
        cb.compare_kernels(chain, queries, draws=50, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="nothing to compare: give at least"):
        cb.compare_kernels(chain, queries[:0], key=0)


def test_coupling_is_the_dense_correlation_in_the_order_of_the_graph():
    problem, truth = cases.random_problem(3, size=4)
    post = cb.fit(problem, cases.simulate(problem, truth, 30, 3))
    queries = problem.sobol(2)[::-1]
    found, gram = (
        cb.kernels.coupling(post, queries),
        np.asarray(cb.jacobian_gram(post, queries).gram),
    )
    assert found.set.values.tolist() == sorted(found.set.values, key=lambda s: s.split(", "))
    given = [
        f"do({', '.join(f'{k} = {v:.4g}' for k, v in each.items())})"
        for each in problem.interventions(queries)
    ]
    sd = np.sqrt(np.diagonal(gram))
    for one in range(0, len(given), 5):
        for other in range(0, len(given), 7):
            cell = found.correlation.sel(effect=given[one], other=given[other])
            assert float(cell) == pytest.approx(gram[one, other] / sd[one] / sd[other], abs=1e-9)
    left, right = found.left.values[:2]
    block = found.correlation.values[np.ix_(found.set.values == left, found.set.values == right)]
    assert float(found.between.sel(left=left, right=right)) == pytest.approx(
        np.sqrt((block**2).mean())
    )


def test_what_a_set_explains_is_what_conditioning_on_it_removes(chain):
    queries = chain.problem.queries([{"X": 2.0}, {"X": -1.0}, {"Z": 1.0}, {"Z": 3.0}, {"Z": 0.0}])
    found = cb.kernels.coupling(chain, queries)
    gram = np.asarray(cb.jacobian_gram(chain, queries).gram)
    left, right = [0, 1], [2, 3, 4]
    after = (
        gram[np.ix_(right, right)]
        - gram[np.ix_(right, left)]
        @ np.linalg.pinv(gram[np.ix_(left, left)], rcond=1e-9)
        @ gram[np.ix_(left, right)]
    )
    expected = 1 - np.trace(after) / np.trace(gram[np.ix_(right, right)])
    assert float(found.explained.sel(left="X", right="Z")) == pytest.approx(expected, abs=1e-9)
    assert np.isnan(
        found.correlation.sel(effect="do(Z = 0)", other="do(Z = 1)")
    )  # that effect is known
    everything = cb.kernels.coupling(chain)
    assert everything.effect.values.tolist() == [
        "do(X = -5)",
        "do(X = 5)",
        "do(Z = -5)",
        "do(Z = 5)",
    ]
    with pytest.raises(cb.errors.ArgumentError, match="no effects to couple: give at least"):
        cb.kernels.coupling(chain, queries[:0])


@pytest.mark.slow
def test_all_218_sets_are_coupled_and_what_explains_is_not_symmetric():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
    post = cb.fit(system.problem, system.observe(300, 0))
    found = cb.kernels.coupling(post)
    assert found.sizes["left"] == len(system.problem.sets) == 218
    assert (
        cb.kernels.variance_reduction(post, system.problem.vertices()[0]).sizes["effect"]
        == found.sizes["effect"]
    )
    one, other = "eutG", "cspG, eutG, fixC"
    rows = [found.set.values == name for name in (one, other)]
    gram = found.correlation.values * np.outer(found.sd, found.sd)
    for (known, left), (asked, right) in (
        ((one, rows[0]), (other, rows[1])),
        ((other, rows[1]), (one, rows[0])),
    ):
        inside, across = gram[np.ix_(left, left)], gram[np.ix_(left, right)]
        removed = across.T @ np.linalg.pinv(inside, rcond=1e-9) @ across
        expected = np.trace(removed) / np.trace(gram[np.ix_(right, right)])
        assert float(found.explained.sel(left=known, right=asked)) == pytest.approx(
            expected, abs=1e-6
        )
    gap = found.explained.sel(left=one, right=other) - found.explained.sel(left=other, right=one)
    assert abs(float(gap)) > 0.01


def test_the_variance_reduction_is_that_of_the_surrogate(chain):
    experiment = chain.problem.queries([{"X": 3.0}, {"Z": -2.0}])
    queries = chain.problem.queries([{"X": 1.0}, {"Z": 4.0}, {"X": -5.0}, {"Z": 0.0}])
    names = ["do(X = 1)", "do(Z = 4)", "do(X = -5)", "do(Z = 0)"]
    found = cb.kernels.variance_reduction(chain, experiment, queries, noise=0.5)
    for position in range(2):
        updated = (
            cb.surrogates.couple(chain).condition(experiment[position], 1.0, 0.5).predict(queries)
        )
        np.testing.assert_allclose(
            found.sd_after[position].sel(effect=names), updated.sd, rtol=1e-8, atol=1e-12
        )
    assert (found.reduction.sel(effect=names[:3]) > 0).all() and np.isnan(
        found.reduction.sel(effect="do(Z = 0)")
    ).all()
    implied = cb.kernels.variance_reduction(chain, experiment, queries)
    own = chain.outcome_variances(experiment) + np.array([9 * np.prod(chain.sd**2), 0.0])
    np.testing.assert_allclose(implied.noise, own, rtol=1e-9)
    less = cb.kernels.variance_reduction(chain, experiment, queries, noise=0.1)
    known = less.reduction.notnull()
    assert (less.reduction > implied.reduction).where(known, True).all()
    assert less.attrs["verdict"] == "exact"
    with pytest.raises(
        cb.errors.DomainError, match="value of 'noise' must be a real number, got 'a'"
    ):
        cb.kernels.variance_reduction(chain, experiment, noise="a")
    with pytest.raises(cb.errors.ArgumentError, match="noise must be finite and 0 or more, got -1"):
        cb.kernels.variance_reduction(chain, experiment, noise=-1.0)
