"""User-defined mechanisms, methods, surrogates and acquisitions pass the checks of cb.testing.

Internals: compilations are counted, and a family inherits from the linear one.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.runs import optimize
from plugins.exploration import PureExploration
from plugins.importance_resampling import ImportanceResampling
from plugins.independent_regression import IndependentRegression
from plugins.poisson_count import count
from plugins.quadratic import Quadratic, QuadraticModel

import causal_bo_ppl as cb
from causal_bo_ppl.mechanisms.linear import LinearMechanisms

pytestmark = pytest.mark.heavy
NUTS = cb.NUTS(chains=4, warmup=500, draws=500, progress=False)


@pytest.fixture(scope="module")
def problem():
    graph = cb.CausalGraph.parse("X -> Z -> Y")
    sets = [("X",), ("Z",), ("X", "Z")]
    return cb.Problem(graph, "Y", domains={"X": (-2, 2), "Z": (-2, 2)}, sets=sets)


def simulate(problem, queries, seed):
    """Observations of z = 0.5 + 0.8 x - 0.4 x^2 + e/2 and y = 1 - z + 0.6 z^2 + 0.4 e."""
    draws, mask = np.random.default_rng(seed), np.asarray(queries.mask)
    value, rows = np.asarray(queries.value), draws.normal(size=mask.shape)
    rows[:, 0] = np.where(mask[:, 0], value[:, 0], rows[:, 0])
    z = 0.5 + 0.8 * rows[:, 0] - 0.4 * rows[:, 0] ** 2 + 0.5 * rows[:, 1]
    rows[:, 1] = np.where(mask[:, 1], value[:, 1], z)
    rows[:, 2] = 1 - rows[:, 1] + 0.6 * rows[:, 1] ** 2 + 0.4 * rows[:, 2]
    return cb.Data(problem.graph.nodes, "Y", rows, mask)


@pytest.fixture(scope="module")
def data(problem):
    both = [problem.baseline().repeat(100), problem.sobol(4)]
    rows = [simulate(problem, queries, seed) for seed, queries in enumerate(both)]
    return rows[0].join(rows[1])


@pytest.fixture(scope="module")
def posts(problem, data):
    methods = {"laplace": "laplace", "nuts": NUTS, "importance": ImportanceResampling()}
    return {
        name: cb.fit(problem, data, mechanisms=Quadratic(), method=method, key=0)
        for name, method in methods.items()
    }


def test_every_plugin_has_fewer_than_eighty_lines_of_code():
    files = sorted(Path(__file__).parent.glob("[!t]*.py"))
    lines = [sum(bool(line.strip()) for line in each.read_text().splitlines()) for each in files]
    assert len(files) == 5 and max(lines) < 80


def test_mechanisms_of_the_package_and_of_a_plugin_pass_their_checks(problem, data):
    for family in ("linear", Quadratic()):
        assert cb.testing.check_mechanisms(family, problem, data).require().passed


def test_a_poisson_count_is_fitted_by_a_function_of_ten_lines(problem):
    draws = np.random.default_rng(5)
    x = draws.normal(size=300)
    z = 0.7 * x + 0.5 * draws.normal(size=300)
    columns = {"X": x, "Z": z, "Y": draws.poisson(np.exp(0.3 + 0.6 * z)).astype(float)}
    data = cb.Data.from_frame(problem, pd.DataFrame(columns))
    assert cb.testing.check_mechanisms({"Y": count}, problem, data).require().passed
    post = cb.fit(problem, data, mechanisms={"Y": count}, method="laplace")
    found = cb.effects(post, [{"Z": 1.0}, {"X": 1.0}], key=0)
    spread = 0.5 * 0.6  # sd of 0.6 Z where X is set
    truth = [np.exp(0.3 + 0.6), np.exp(0.3 + 0.6 * 0.7 + spread**2 / 2)]
    assert (np.abs(found["mean"] - truth) < 3 * found["sd"]).all() and (found["sd"] < 0.3).all()


def test_failures_of_a_broken_family_are_named(problem, data):
    class Shifted(QuadraticModel):
        def replicate(self, draws, queries, key):
            return super().replicate(draws, queries, key) + 0.1

    @dataclass(frozen=True)
    class Broken:
        name: str = "broken"

        def bind(self, task):
            return Shifted(task.data)

    check = cb.testing.check_mechanisms(Broken(), problem, data)
    broken = {"simulation keeps what is set", "effects are means of simulated outcomes"}
    assert broken <= set(check.failures.index)
    with pytest.raises(cb.errors.CheckFailed, match="mechanisms broken: .* promises are broken"):
        check.require()


def test_effects_of_quadratic_mechanisms_depend_on_the_sds(problem, posts):
    """E[Y | do(x)] = 1 - m + 0.6 (m^2 + s^2) with m = 0.5 + 0.8 x - 0.4 x^2, in closed form."""
    truth = np.array([0.5, 0.8, -0.4, np.log(0.5), 1.0, -1.0, 0.6, np.log(0.4)])
    r = cb.response(posts["laplace"])
    x = np.array([-1.5, 0.0, 2.0])
    queries = problem.queries([{"X": float(each)} for each in x])
    m = 0.5 + 0.8 * x - 0.4 * x**2
    expected = 1 - m + 0.6 * (m**2 + 0.25)
    np.testing.assert_allclose(r(truth, queries), expected, rtol=2e-3)
    jacobian = r.jacobian(truth, queries)
    np.testing.assert_allclose(jacobian[:, 3], 1.2 * 0.25, rtol=5e-3)  # d/d log s of 0.6 s^2


@pytest.mark.parametrize("method", ["laplace", "nuts", "importance"])
def test_fit_finds_the_truth_and_all_that_follows_runs(problem, posts, method):
    post = posts[method]
    truth = np.array([0.5, 0.8, -0.4, np.log(0.5), 1.0, -1.0, 0.6, np.log(0.4)])
    assert (np.abs(post.mean - truth) < 4.5 * post.sd).all() and post.verdict == "passed"
    queries = problem.sobol(3)
    linear = cb.jacobian_gram(post, queries)
    drawn = cb.monte_carlo_gram(post, queries, key=0)
    scale = np.sqrt(np.outer(np.diagonal(drawn.gram), np.diagonal(drawn.gram)))
    assert (np.abs(linear.gram - drawn.gram) < 0.3 * scale).all()
    compared = cb.compare_kernels(post, queries, key=0)
    assert compared.attrs["reference"] == "monte_carlo"
    assert set(compared["bound_kind"].values.ravel()) == {"not known"}
    assert cb.diagnostics.gaussian_error(post, queries, key=0).verdict in ("passed", "failed")
    assert (
        cb.diagnostics.check_posterior(post).passed
        and cb.diagnostics.check_loo(post).table["elpd"].notna().all()
    )
    tree = post.to_datatree(draws=100, observations=True)
    assert {"posterior", "log_likelihood", "posterior_predictive"} <= set(tree.children)
    with pytest.raises(
        cb.errors.PosteriorError, match="the exact kernel needs independent equations"
    ):
        cb.exact_gram(post, queries)


def test_the_three_methods_agree(posts):
    nuts = posts["nuts"]
    for name in ("laplace", "importance"):
        gap = np.abs(posts[name].mean - nuts.mean) / nuts.sd
        assert gap.max() < 0.35 and np.allclose(posts[name].sd, nuts.sd, rtol=0.25), name


def test_closed_forms_are_refused_by_name_where_there_are_none(problem, data):
    with pytest.raises(
        cb.errors.MechanismError, match="quadratic mechanisms have no posterior in closed"
    ):
        cb.fit(problem, data, mechanisms=Quadratic(), method="conjugate")
    with pytest.raises(cb.errors.ArgumentError, match="wishart needs no mechanisms"):
        cb.fit(problem, data, mechanisms=Quadratic(), method="wishart")
    with pytest.raises(cb.errors.ModelError, match="take observations and their own prior"):
        cb.fit(problem, data, mechanisms=Quadratic(), method="laplace", intercepts=False)


class Moments(cb.Wishart):
    """A user-defined method with the same capabilities as "wishart"."""

    name = "moments"


class Mine(LinearMechanisms):
    """A user-defined family with another default method."""

    name = "mine"

    def default_method(self, problem):
        return "laplace"


def test_attributes_of_methods_and_mechanisms_count_and_not_their_names(problem):
    system = cb.models.load("chain")
    with pytest.raises(
        cb.errors.SettingsError, match="moments learns from observational data only"
    ):
        cb.Settings(rounds=1, inference=Moments(), learn_from="rows")
    with pytest.raises(
        cb.errors.ArgumentError, match="moments cannot use what only linearity identifies"
    ):
        cb.fit(system.problem, system.observe(50, 0), method=Moments(), linear=True)
    with pytest.raises(cb.errors.ArgumentError, match="moments always learns means"):
        cb.diagnostics.calibrate(system.problem, method=Moments(), intercepts=False, key=0)
    with pytest.raises(cb.errors.MechanismError, match="these mechanisms cannot"):
        cb.diagnostics.calibrate(problem, method="laplace", mechanisms=Quadratic(), key=0)
    earlier = system.observe(50, 0).join(system.experiment([{"X": 1.0}], 1))
    options = {"data": earlier, "rounds": 1, "key": 0, "progress": False}
    run = optimize(system, inference=Moments(), **options)
    assert (run.surrogate.post.method, run.surrogate.post.n_observations) == ("moments", 50)
    run = optimize(system, mechanisms=Mine(), **options)
    assert (run.surrogate.post.method, run.surrogate.post.n_observations) == (
        "laplace",
        52,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:before the first experiment")
def test_optimization_runs_with_every_plugin(problem, data):
    options = {"data": data, "rounds": 4, "key": 0, "progress": False}

    def experiment(queries):
        return simulate(problem, queries, 5)

    runs = {
        "mechanisms": optimize(
            problem, experiment=experiment, mechanisms=Quadratic(), learn_from="target", **options
        ),
        "method": optimize(
            problem,
            experiment=experiment,
            mechanisms=Quadratic(),
            inference=ImportanceResampling(1_000),
            learn_from="rows",
            **(options | {"rounds": 2}),
        ),
        "surrogate": optimize(
            problem, experiment=experiment, surrogate=IndependentRegression(), **options
        ),
        "acquisition": optimize(
            problem, experiment=experiment, acquisition=PureExploration(), **options
        ),
    }
    assert len(runs["mechanisms"]) == 4 and runs["mechanisms"].surrogate.post.n_observations == len(
        data
    )
    assert runs["method"].surrogate.post.n_observations == len(data) + 2
    asked = runs["acquisition"].asked
    assert [each.sd for each in asked] == pytest.approx([-each.bound for each in asked])
    # y falls to 1 - 1/2.4 at z = 1/1.2: the fitted parabola is followed there
    best = runs["mechanisms"].best
    assert best.mean == pytest.approx(1 - 1 / 2.4, abs=0.25)


def test_methods_of_the_package_and_of_a_plugin_pass_their_checks(problem, data):
    linear = [("conjugate", "linear"), ("laplace", "linear"), (ImportanceResampling(), "linear")]
    for method, family in [*linear, (NUTS, Quadratic()), (ImportanceResampling(), Quadratic())]:
        check = cb.testing.check_method(method, problem, data, mechanisms=family)
        assert check.require().passed, check


def test_surrogates_of_the_package_and_of_a_plugin_pass_their_checks(problem, data, posts):
    for maker in ("coupled", IndependentRegression()):
        for post in (cb.fit(problem, data), posts["laplace"]):
            assert cb.testing.check_surrogate(maker, post).require().passed


def test_a_surrogate_that_ignores_outcomes_fails_its_check(problem, data):
    @dataclass(frozen=True)
    class Forgetful:
        name: str = "forgetful"

        def begin(self, post):
            surrogate = cb.surrogates.CoupledMaker().begin(post)
            return Deaf(
                **{each: getattr(surrogate, each) for each in surrogate.__dataclass_fields__}
            )

    class Deaf(type(cb.surrogates.CoupledMaker().begin(cb.fit(problem, data)))):
        def condition(self, queries, outcomes, noise=None):
            return self

    check = cb.testing.check_surrogate(Forgetful(), cb.fit(problem, data))
    assert list(check.failures.index) == ["outcomes are learned from"]


def test_acquisitions_of_the_package_and_of_a_plugin_pass_their_checks(problem, data):
    surrogate = cb.surrogates.couple(cb.fit(problem, data))
    for rule in ("ucb", PureExploration()):
        for objective in ("min", "max"):
            check = cb.testing.check_acquisition(rule, surrogate, objective=objective)
            assert check.require().passed


def test_response_maps_pass_their_checks(problem, data, posts):
    for post in (*posts.values(), *(cb.fit(problem, data, parameters=kind) for kind in KINDS)):
        check = cb.testing.check_response_map(problem, post.distribution.response, post.mean)
        assert check.require().passed


KINDS = ("structural", "total_effect", "estimand", "minimal")


def test_given_draws_make_a_posterior(problem, data, posts):
    post = posts["nuts"]
    again = cb.Posterior.from_draws(
        problem, post.distribution.chains, mechanisms=post.distribution.response
    )
    np.testing.assert_allclose(again.mean, post.mean)
    queries = problem.sobol(2)
    np.testing.assert_allclose(
        cb.jacobian_gram(again, queries).gram, cb.jacobian_gram(post, queries).gram, rtol=1e-9
    )
    by_name = dict(zip(post.names, np.moveaxis(post.distribution.chains, -1, 0), strict=True))
    same = cb.Posterior.from_draws(problem, by_name, mechanisms=post.distribution.response)
    assert same.fingerprint == again.fingerprint and same.verdict == "passed"
    with pytest.raises(
        cb.errors.PosteriorError, match="do not determine the variance of an outcome"
    ):
        again.outcome_variances(queries)
    with pytest.raises(cb.errors.PosteriorError, match="cannot be updated"):
        again.update(data)
    with pytest.raises(cb.errors.ArgumentError, match="the draws lack the coordinates a\\[Z\\]"):
        rest = {name: each for name, each in by_name.items() if name != "a[Z]"}
        cb.Posterior.from_draws(problem, rest, mechanisms=post.distribution.response)
    with pytest.raises(cb.errors.MechanismError, match="offer no response map without data"):
        cb.Posterior.from_draws(problem, by_name, mechanisms=Quadratic())


def test_new_observations_compile_nothing_for_a_user_defined_family(problem, data, posts):
    from causal_bo_ppl.inference.potentials import hessian, value_and_gradient

    before = hessian._cache_size(), value_and_gradient._cache_size()
    other = simulate(problem, data.queries, 9)
    cb.fit(problem, other, mechanisms=Quadratic(), method="laplace")
    assert (hessian._cache_size(), value_and_gradient._cache_size()) == before
    assert replace(NUTS, progress=True) == NUTS
