"""With 64-bit floats switched off after the import, every public function that computes refuses.

Internals: the check of 64-bit floats is switched on and off.
"""

from pathlib import Path
from threading import Thread
from timeit import timeit
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.public_names import NAMESPACES, public_names
from y0.dsl import P, Y, Z

import causal_bo_ppl as cb
from causal_bo_ppl import inputs as precision
from causal_bo_ppl import theory
from causal_bo_ppl.theory.drift import worst_gain

HOW = r'64-bit floats on again with jax.config.update\("jax_enable_x64", True\)'
NETWORK = Path(cb.models.__file__).parent / "ecoli70.json"

CALLS = {  # by the public name or namespace they belong to; `at` holds what was made before
    "CausalSystem": [
        lambda at: at.system.observe(5, 0),
        lambda at: at.system.experiment(at.queries, 0),
        lambda at: at.system.effect(at.queries),
        lambda at: cb.theory.exploration_error(at.system),
        lambda at: at.system.optimum,
    ],
    "models": [
        lambda at: cb.models.load("chain"),
        lambda at: cb.models.gaussian_network(NETWORK, target="yceP"),
    ],
    "experiments": [
        lambda at: cb.experiments.sweep("chain"),
        lambda at: cb.experiments.sweep(at.system),
        lambda at: cb.experiments.reproduce("theory"),
    ],
    "testing": [
        lambda at: cb.testing.check_system(at.system),
    ],
    "Posterior": [
        lambda at: at.post.draws(5, 0),
        lambda at: at.post.quantiles(0.5, key=0),
        lambda at: at.post.update(at.data),
        lambda at: at.post.to_datatree(),
        lambda at: cb.Posterior.load(at.tree, at.problem),
        lambda at: at.post.outcome_variances(at.queries),
        lambda at: at.post.mean,
        lambda at: cb.Posterior.from_draws(at.problem, np.zeros((9, len(at.theta)))),
    ],
    "response": [
        lambda at: cb.response(at.post),
        lambda at: at.response(at.theta, at.queries),
        lambda at: at.response(np.zeros((0, len(at.theta))), at.queries),
        lambda at: at.response.jacobian(at.theta, at.queries),
        lambda at: at.response.linearize(at.theta, at.queries),
        lambda at: at.response.hessian_bounds(at.queries),
    ],
    "Run": [lambda at: at.run.trace, lambda at: at.run.regret()],
    "diagnostics.calibrate": [lambda at: cb.diagnostics.calibrate(at.problem, key=0)],
    "theory.causal_rank": [lambda at: cb.theory.causal_rank(at.post, at.queries)],
    "diagnostics.check_estimand": [
        lambda at: cb.diagnostics.check_estimand(at.problem.graph, "Y", "Z", P(Y | Z))
    ],
    "diagnostics.check_basis": [lambda at: cb.diagnostics.check_basis(at.post)],
    "diagnostics.check_extrapolation": [lambda at: cb.diagnostics.check_extrapolation(at.post)],
    "diagnostics.check_graph": [lambda at: cb.diagnostics.check_graph(at.problem, at.data)],
    "diagnostics.check_interactions": [lambda at: cb.diagnostics.check_interactions(at.post)],
    "diagnostics.check_linearity": [lambda at: cb.diagnostics.check_linearity(at.post)],
    "diagnostics.check_loo": [lambda at: cb.diagnostics.check_loo(at.post)],
    "diagnostics.check_noise": [lambda at: cb.diagnostics.check_noise(at.post)],
    "diagnostics.check_overlap": [lambda at: cb.diagnostics.check_overlap(at.problem, at.data)],
    "diagnostics.check_posterior": [lambda at: cb.diagnostics.check_posterior(at.post)],
    "diagnostics.check_predictive": [lambda at: cb.diagnostics.check_predictive(at.post)],
    "diagnostics.check_prior_predictive": [
        lambda at: cb.diagnostics.check_prior_predictive(at.post)
    ],
    "diagnostics.check_groups": [lambda at: cb.diagnostics.check_groups(at.problem, at.data)],
    "diagnostics.check_instruments": [
        lambda at: cb.diagnostics.check_instruments(at.problem, at.data)
    ],
    "diagnostics.check_invariance": [
        lambda at: cb.diagnostics.check_invariance(at.problem, at.data)
    ],
    "diagnostics.check_sample": [lambda at: cb.diagnostics.check_sample(at.problem, at.data)],
    "diagnostics.check_sample_size": [
        lambda at: cb.diagnostics.check_sample_size(at.problem, at.data)
    ],
    "validate": [
        lambda at: cb.validate(at.problem, at.data, key=0),
        lambda at: cb.validate(at.post, key=0),
    ],
    "report": [lambda at: cb.report(at.post, "report.html")],
    "numpyro_model": [lambda at: cb.numpyro_model(at.problem, at.data)],
    "compare_kernels": [lambda at: cb.compare_kernels(at.post, at.queries, key=0)],
    "surrogates.couple": [
        lambda at: cb.surrogates.couple(at.post),
        lambda at: at.surrogate.predict(at.queries),
        lambda at: at.surrogate.condition(at.queries[0], 1.0),
        lambda at: at.surrogate.condition(at.queries[0], 1.0, 0.5),
        lambda at: at.updated.relinearize(),
    ],
    "kernels.coupling": [lambda at: cb.kernels.coupling(at.post)],
    "optimization.decompose_regret": [lambda at: cb.optimization.decompose_regret(at.run)],
    "exact_gram": [lambda at: cb.exact_gram(at.post, at.queries)],
    "fit": [
        lambda at: cb.fit(at.problem, at.data),
        lambda at: cb.fit(at.problem, at.data, method="wishart"),
        lambda at: cb.fit(at.problem, at.data, method="laplace"),
        lambda at: cb.fit(at.problem, at.data, method="nuts", key=0),
    ],
    "diagnostics.gaussian_error": [lambda at: cb.diagnostics.gaussian_error(at.post, key=0)],
    "identify": [
        lambda at: cb.identify(at.problem.graph, at.problem.target, at.problem.sets),
        lambda at: at.identified["X"].evaluate(np.eye(3)),
        lambda at: at.identified["X"].evaluate(np.eye(3), np.zeros(3), {"X": 1.0}),
    ],
    "kernels.jacobian_features": [lambda at: cb.kernels.jacobian_features(at.post, at.queries)],
    "jacobian_gram": [lambda at: cb.jacobian_gram(at.post, at.queries)],
    "kernels.monte_carlo_features": [
        lambda at: cb.kernels.monte_carlo_features(at.post, at.queries, key=0)
    ],
    "monte_carlo_gram": [lambda at: cb.monte_carlo_gram(at.post, at.queries, key=0)],
    "optimize": [
        lambda at: cb.optimize(at.system, rounds=2, key=0),
        lambda at: cb.optimize(at.problem, data=at.data, experiment=lambda q: 0.0, rounds=2, key=0),
    ],
    "diagnostics.prior_sensitivity": [lambda at: cb.diagnostics.prior_sensitivity(at.post)],
    "diagnostics.compare_propagations": [
        lambda at: cb.diagnostics.compare_propagations(at.post, at.queries)
    ],
    "kernels.variance_reduction": [lambda at: cb.kernels.variance_reduction(at.post, at.queries)],
    "effects": [lambda at: cb.effects(at.post, at.queries), lambda at: cb.effects(at.run, {})],
    "Study": [
        lambda at: cb.Study(at.problem, at.data, key=0),
        lambda at: at.study.ask(),
        lambda at: at.study.tell({"X": 1.0}, -1.0),
        lambda at: at.study.effects([{"X": 1.0}]),
        lambda at: cb.Study.from_json(at.text, at.data),
    ],
    "theory": [
        lambda at: theory.kappa2(at.post),
        lambda at: theory.lipschitz(at.post),
        lambda at: theory.parameter_error(at.post),
        lambda at: theory.gain_curves(at.post, noise=1.0, rounds=3),
        lambda at: theory.kernel_drift([at.post, at.post], at.queries),
        lambda at: worst_gain([at.post], at.queries, 1.0, 2),
        lambda at: theory.variance_sum_ratio([at.post, at.post], at.queries, 1.0),
        lambda at: theory.concentration(at.problem, at.data, [50]),
        lambda at: theory.design_strength(at.post),
    ],
    "theory.theory_table": [lambda at: cb.theory.theory_table(at.post, noise=1.0, rounds=3)],
}
FREE = {  # public names that compute nothing with JAX, and why they need not refuse
    "configurations": "Conjugate GP Laplace Linear Levels LinearConstraint NUTS Settings Wishart "
    "acquisition priors optimization.Observe optimization.Stop problem.MagnitudeCost "
    "diagnostics.Limits diagnostics.Tolerances surrogates",
    "results": "diagnostics.Check kernels.KernelEstimate optimization.RegretDecomposition "
    "validation.Card validation.Validation",
    "graphs, sets and designs in NumPy": "CausalGraph Problem graph problem.Queries",
    "a table of float64 numbers in NumPy": "Data",
    "plots of results, which the functions above compute": "plots",
    "errors and warnings": "errors CausalBOError CausalBOWarning",
}
CASES = [
    (f"{name} {position}", call)
    for name, calls in CALLS.items()
    for position, call in enumerate(calls)
]


@pytest.fixture(scope="module")
def before():
    """Everything that the calls need, made while 64-bit floats were on."""
    system = cb.models.load("chain")
    problem, data = system.problem, system.observe(60, 0)
    post = cb.fit(problem, data)
    queries = problem.queries([{"X": 1.0}, {"Z": 2.0}])
    surrogate = cb.surrogates.couple(post)
    found = dict(
        system=system,
        problem=problem,
        data=data,
        queries=queries,
        theta=post.mean,
        tree=post.to_datatree(draws=16),
        key=jax.random.key(0),
    )
    run = cb.optimize(system, rounds=2, observations=50, key=0)
    return found | dict(
        surrogate=surrogate,
        updated=surrogate.condition(queries[0], 1.0),
        run=run,
        study=(study := cb.Study(problem, data, key=0)),
        text=study.to_json(),
        identified=cb.identify(problem),
    )


@pytest.fixture
def at(before):
    """The same without results kept from an earlier use, and with 64-bit floats switched off."""
    post, system = cb.fit(before["problem"], before["data"]), cb.models.load("chain")
    made = SimpleNamespace(**(before | dict(post=post, system=system, response=cb.response(post))))
    jax.config.update("jax_enable_x64", False)
    yield made
    jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("call", [call for _, call in CASES], ids=[name for name, _ in CASES])
def test_what_computes_refuses_32_bit_floats(at, call):
    with pytest.raises(cb.errors.NumericalError, match=HOW):
        call(at)


def test_every_public_name_computes_and_refuses_or_is_excused():
    listed = {*CALLS, *(name for names in FREE.values() for name in names.split())}
    names = public_names()
    assert {name for name in names if not listed & {name, name.split(".")[0]}} == set()
    assert {name for name in listed if name not in names} <= set(NAMESPACES)


def test_excused_names_work_in_32_bits(at):
    assert cb.graph.mis(cb.CausalGraph.parse("X -> Z -> Y"), "Y")
    assert len(at.problem.queries([{"X": 1.0}])) == 1 and at.problem.cost(at.queries).tolist() == [
        1.0,
        1.0,
    ]
    assert (
        cb.Data(at.data.nodes, "Y", at.data.values, at.data.intervened).values.dtype == np.float64
    )
    assert cb.theory.information_gain(np.eye(2), 1.0) == pytest.approx(np.log(2.0), rel=1e-15)


def test_context_of_one_thread_is_refused_there_and_only_there(before):
    seen = []
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64

    def refuse():
        with enable_x64(False), pytest.raises(cb.errors.NumericalError, match=HOW):
            before["system"].observe(5, 0)
        seen.append(before["system"].observe(5, 0).values.dtype)

    thread = Thread(target=refuse)
    thread.start()
    assert before["system"].observe(5, 0).values.dtype == np.float64
    thread.join(60)
    assert seen == [np.float64]


def test_check_costs_less_than_twenty_microseconds():
    assert min(timeit(precision.require_float64, number=100) for _ in range(5)) < 100 * 20e-6
