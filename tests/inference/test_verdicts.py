"""What is refused before, while and after sampling: inputs, starts, flat posteriors.

And chains that did not agree.

Internals: verdicts are tested on draws that no posterior would give.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.inference.draws import judge_chains, overall, summarise
from causal_bo_ppl.inference.laplace import _factor, approximate
from causal_bo_ppl.inference.nuts import sample

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)


def test_unconverged_chains_fail_and_are_refused_by_the_kernel(chain):
    data, q = chain.observe(30, 0), chain.problem.vertices()
    post = cb.fit(chain.problem, data, method=replace(SHORT, draws=20), key=0)
    assert post.verdict == "failed"
    with pytest.raises(
        cb.errors.PosteriorError,
        match="verdict is 'failed'; look at cb.diagnostics.check_posterior",
    ):
        cb.jacobian_gram(post, q)
    assert "verdict failed" in cb.jacobian_gram(post.accept("test"), q).assumed
    check = cb.diagnostics.check_posterior(post)
    assert not check.passed and "ess_bulk" in check.failures.index and "Draw longer" in check.advice


def test_one_chain_cannot_be_assessed(chain):
    alone = replace(SHORT, chains=1, draws=4_000)
    post = cb.fit(chain.problem, chain.observe(30, 0), method=alone, key=0)
    assert (
        post.verdict == "not assessed"
        and cb.diagnostics.check_posterior(post).table.loc["r_hat", "verdict"] == "not assessed"
    )
    with pytest.raises(cb.errors.PosteriorError, match="not assessed"):
        cb.surrogates.couple(post)


def fake_chains(**changes):
    draws = np.random.default_rng(0).normal(size=(4, 1_000, 2))
    stats = {
        "energy": np.random.default_rng(1).normal(size=(4, 1_000)),
        "diverging": np.zeros((4, 1_000), bool),
    }
    draws, stats = changes.get("draws", draws), stats | changes.get("stats", {})
    return judge_chains(summarise(draws, ("a", "b")), stats, cb.diagnostics.Limits())


def test_each_diagnostic_of_the_verdict_can_fail():
    assert overall(fake_chains()) == "passed"
    one = np.zeros((4, 1_000), bool)
    one[2, 7] = True
    assert fake_chains(stats={"diverging": one}).loc["divergences", "verdict"] == "failed"
    walk = np.random.default_rng(2).normal(size=(4, 1_000)).cumsum(axis=1)
    assert fake_chains(stats={"energy": walk}).loc["bfmi", "verdict"] == "failed"
    apart = np.random.default_rng(3).normal(size=(4, 1_000, 2)) + np.arange(4)[:, None, None] * 0.2
    assert fake_chains(draws=apart).loc["r_hat", "verdict"] == "failed"
    slow = np.repeat(np.random.default_rng(4).normal(size=(4, 50, 2)), 20, axis=1)
    assert fake_chains(draws=slow).loc["ess_bulk", "verdict"] == "failed"
    bad = np.random.default_rng(5).normal(size=(4, 1_000, 2))
    bad[1, 3, 0] = np.nan
    table = fake_chains(draws=bad)
    assert (
        overall(table) == "failed"
        and table.loc["r_hat", "verdict"] == table.loc["ess_tail", "verdict"] == "failed"
    )


def test_a_start_without_a_finite_density_names_the_node(chain):
    values = chain.observe(30, 0).values.copy()
    values[:, 2] *= 1e200
    data = cb.Data(chain.problem.graph.nodes, "Y", values, np.zeros(values.shape, bool))
    usual = cb.fit(chain.problem, chain.observe(30, 0), method="laplace").distribution.model
    model = replace(usual, data=data)  # `fit` refuses such a column by its size
    for work in (approximate, lambda model: sample(model, SHORT, jax.random.key(0))):
        with (
            pytest.raises(cb.errors.NumericalError, match="'Y' is not finite"),
            np.errstate(all="ignore"),
        ):
            work(model)


def test_a_flat_posterior_is_refused_by_laplace_with_the_names_of_what_is_flat(chain):
    model = cb.fit(chain.problem, chain.observe(30, 0), method="laplace").distribution.model
    hessian = np.eye(len(model.coordinates))
    hessian[0, 0] = 1e-12
    with pytest.raises(
        cb.errors.NumericalError,
        match=rf"curvature along {model.coordinates[0].replace('[', '.').replace(']', '.')}",
    ):
        _factor(model, hessian)
    with pytest.raises(cb.errors.NumericalError, match="not finite at the mode"):
        _factor(model, hessian * np.nan)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "nuts"}, cb.errors.ArgumentError, "give a key, such as key=0"),
        (
            {"method": "laplace", "prior": cb.priors.MomentPrior(np.zeros(3), 1, np.eye(3), 9)},
            cb.errors.MechanismError,
            "prior must be a ScaledPrior or a FixedPrior",
        ),
        (
            {"method": "gibbs"},
            cb.errors.ArgumentError,
            "method must be one of conjugate, wishart, laplace, nuts",
        ),
        (
            {"method": 3},
            cb.errors.ArgumentError,
            "or an object with a name and a method `infer`; got 3",
        ),
        (
            {"method": "laplace", "outcomes": "y"},
            cb.errors.DataError,
            r"a pair \(queries, values\)",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_fitted_is_refused(chain, options, error, message):
    with pytest.raises(error, match=message):
        cb.fit(chain.problem, chain.observe(30, 0), **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 0}, "chains must be a whole number, at least 1; got 0"),
        ({"draws": 2.5}, "draws must be a whole number, at least 4; got 2.5"),
        ({"warmup": True}, "warmup must be a whole number, at least 10; got True"),
        ({"target_accept": 1.0}, "target_accept must lie between"),
    ],
    ids=str,
)
def test_invalid_options_of_nuts_are_refused(settings, message):
    with pytest.raises(cb.errors.ArgumentError, match=message):
        cb.NUTS(**settings)


def test_options_belong_to_the_method_not_to_fit(chain):
    with pytest.raises(TypeError, match="unexpected keyword argument 'chains'"):
        cb.fit(chain.problem, chain.observe(30, 0), method="nuts", chains=2, key=0)


def test_a_posterior_in_32_bits_is_refused(chain):
    data = chain.observe(30, 0)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(
            cb.errors.NumericalError, match=r'jax.config.update\("jax_enable_x64", True\)'
        ):
            cb.fit(chain.problem, data)
    finally:
        jax.config.update("jax_enable_x64", True)


def test_outcomes_that_cannot_be_used_are_refused(chain):
    problem, data = chain.problem, chain.observe(30, 0)
    q = problem.queries([{"X": 1.0}, {"X": 2.0}])
    for method in ("conjugate", "wishart"):
        with pytest.raises(cb.errors.ArgumentError, match=f"{method} learns from complete"):
            cb.fit(problem, data, method=method, outcomes=(q, [1.0, 2.0]))
    with pytest.raises(cb.errors.DataError, match="2 interventions need as many finite outcomes"):
        cb.fit(problem, data, method="laplace", outcomes=(q, [1.0]))
    with pytest.raises(cb.errors.DataError, match="1 that are not finite"):
        cb.fit(problem, data, method="laplace", outcomes=(q, [1.0, np.nan]))
    narrow = cb.Problem(problem.graph, "Y", domains={"Z": (-1, 1)}, sets=[("Z",)])
    with pytest.raises(cb.errors.DataError, match="doing nothing depends on the equation of 'X'"):
        cb.fit(narrow, data, method="laplace", outcomes=(narrow.baseline(), [1.0]))
