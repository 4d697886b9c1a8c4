"""Posteriors by NUTS and Laplace against closed forms, against each other, and what is refused.

Internals: compilations are counted, and programs compared, inside the samplers.
"""

import math
import re
from dataclasses import replace
from threading import Timer
from threading import enumerate as enumerate_threads
from time import monotonic, sleep

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.fitted_cases import random_problem, simulate
from helpers.runs import optimize
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.inference import laplace
from causal_bo_ppl.inference.nuts import FIELDS, program
from causal_bo_ppl.inference.potentials import hessian

pytestmark = pytest.mark.heavy
SHORT = cb.NUTS(chains=2, draws=300, progress=False)


@pytest.fixture(scope="module")
def by_method(chain):
    data = chain.observe(3_200, 0)
    return {
        method: cb.fit(chain.problem, data, method=method, key=0)
        for method in ("conjugate", "laplace", "nuts")
    }


@pytest.fixture(scope="module")
def front_door():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    return cb.Problem(graph, "Y", domains={"X": (-2, 2), "Z": (-2, 2)})


def confounded_data(problem, n, seed):
    """Strong confounding: U enters X with 2 and Y with 3; the effect of X is 0.8 times -1.3."""
    draws = np.random.default_rng(seed)
    u, e = draws.normal(size=n), draws.normal(size=(3, n))
    x = 2 * u + e[0]
    z = 0.8 * x + e[1]
    values = np.column_stack([x, z, -1.3 * z + 3 * u + e[2]])
    return cb.Data(problem.graph.nodes, "Y", values, np.zeros(values.shape, bool))


def test_conjugate_laplace_and_nuts_agree_on_the_chain(by_method):
    exact = by_method["conjugate"]
    for method in ("laplace", "nuts"):
        found = by_method[method]
        summary = by_method["nuts"].distribution.summary.loc[list(exact.names)]
        for ours, theirs, error in (
            (found.mean, exact.mean, summary["mcse_mean"]),
            (found.sd, exact.sd, summary["mcse_sd"]),
        ):
            allowed = 4 * error.to_numpy() * (method == "nuts") + 1e-12
            scale = exact.sd if ours is found.mean else theirs
            assert (
                (np.abs(ours - theirs) <= allowed) | (np.abs(ours - theirs) <= 0.02 * scale)
            ).all(), method
        assert found.verdict == "passed" and found.n_observations == 3_200


def test_nuts_with_interventional_data_and_known_coefficients_is_the_conjugate_posterior():
    problem, truth = random_problem(2, size=4, known=1)
    data = simulate(problem, truth, 60, 0, interventional=True)
    exact = cb.fit(problem, data)
    found = cb.fit(problem, data, method=cb.NUTS(progress=False), key=1)
    error = found.distribution.summary.loc[list(exact.names)]
    assert (np.abs(found.mean - exact.mean) <= 4.5 * error["mcse_mean"].to_numpy()).all()
    assert (np.abs(found.sd - exact.sd) <= 4.5 * error["mcse_sd"].to_numpy()).all()
    assert np.allclose(
        found.outcome_variances(problem.vertices()),
        exact.outcome_variances(problem.vertices()),
        rtol=0.1,
    )


def test_laplace_is_the_closed_form_of_a_regression(chain):
    """Mode in (b, log s): b at its posterior mean, s2 = 2 b_n / (2 a_n + d).

    Curvature (X'X + prior) / s2.
    """
    data = chain.observe(40, 3)
    post = cb.fit(chain.problem, data, method="laplace", prior=cb.priors.FixedPrior())
    exact = cb.fit(chain.problem, data, prior=cb.priors.FixedPrior()).distribution.posterior
    position = data.nodes.index("Y")
    s2 = 2 * exact.rate[position] / (2 * exact.shape[position] + 2)
    chosen = [post.names.index("a[Y]"), post.names.index("b[Z->Y]")]
    assert np.allclose(post.mean[chosen], exact.mean[position], atol=1e-7)
    assert np.allclose(
        post.covariance[np.ix_(chosen, chosen)],
        s2 * exact.root[position] @ exact.root[position].T,
        rtol=1e-6,
    )
    assert (
        post.distribution.condition == pytest.approx(1, abs=0.5)
        and post.moments_by == "mode and curvature"
    )


@pytest.mark.slow
def test_laplace_is_that_of_numpyro_on_a_model_written_by_hand(chain):
    data = chain.observe(50, 1)
    x, z, y = data.values.T

    def model():
        for name, cause, value in (("Z", x, z), ("Y", z, y)):
            s2 = numpyro.sample(f"s2_{name}", dist.InverseGamma(2.0, 2.0))
            a = numpyro.sample(f"a_{name}", dist.Normal(0.0, s2**0.5))
            b = numpyro.sample(f"b_{name}", dist.Normal(0.0, s2**0.5))
            numpyro.sample(name, dist.Normal(a + b * cause, s2**0.5), obs=value)

    guide = numpyro.infer.autoguide.AutoLaplaceApproximation(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.02), numpyro.infer.Trace_ELBO())
    found = svi.run(jax.random.key(0), 3_000, progress_bar=False)
    with jax.numpy_rank_promotion("allow"):  # inside NumPyro
        draws = guide.sample_posterior(jax.random.key(1), found.params, sample_shape=(20_000,))
    post = cb.fit(chain.problem, data, method="laplace", prior=cb.priors.FixedPrior())
    for name, theirs in {"b[X->Z]": "b_Z", "b[Z->Y]": "b_Y", "a[Z]": "a_Z", "a[Y]": "a_Y"}.items():
        k = post.names.index(name)
        assert post.mean[k] == pytest.approx(float(draws[theirs].mean()), abs=0.05 * post.sd[k])
        assert post.sd[k] == pytest.approx(float(draws[theirs].std()), rel=0.03)


def test_outcomes_alone_inform_as_much_as_observations_that_set_the_causes_of_the_target(chain):
    """Under do(Z) the outcome is an observation of the equation of Y, whatever X was."""
    problem, data = chain.problem, chain.observe(20, 0)
    queries = problem.queries([{"Z": value} for value in np.linspace(-4, 4, 9)])
    experiments = chain.experiment(queries, 1)
    whole = cb.fit(
        problem, data.join(experiments), prior=cb.priors.FixedPrior(noise_observations=math.inf)
    )
    after = cb.fit(
        problem,
        data,
        prior=cb.priors.FixedPrior(noise_observations=math.inf),
        method="laplace",
        outcomes=(queries, experiments.outcomes),
    )
    assert np.allclose(after.mean, whole.mean, atol=1e-6) and np.allclose(
        after.covariance, whole.covariance, atol=1e-8
    )
    alone = cb.fit(
        problem, data, prior=cb.priors.FixedPrior(noise_observations=math.inf), method="laplace"
    )
    assert after.sd[1] < 0.6 * alone.sd[1] and after.fingerprint != alone.fingerprint


def test_outcomes_of_a_cause_further_up_move_both_coefficients(chain):
    problem, data = chain.problem, chain.observe(20, 0)
    queries = problem.queries([{"X": 5.0}] * 20)
    after = cb.fit(
        problem,
        data,
        method=replace(SHORT, warmup=200),
        outcomes=(queries, np.full(20, -7.0)),
        key=0,
    )
    before = cb.fit(problem, data)
    r = cb.response(before)
    was, now = (float(r(post.mean, queries[0])[0]) for post in (before, after))
    assert abs(now + 7) < 0.5 * abs(was + 7)
    correlation = after.covariance[0, 1] / after.sd[0] / after.sd[1]
    assert (
        abs(before.covariance[0, 1]) < 1e-12 and abs(correlation) > 0.2
    )  # equations are no longer independent
    tree = after.to_datatree(draws=50, observations=True)
    assert tree["log_likelihood"]["do(Y)"].sizes["observation[do(Y)]"] == 20


@pytest.mark.slow
def test_correlated_noise_accounts_for_confounding(front_door):
    data = confounded_data(front_door, 500, 0)
    nuts, laplace = (
        cb.fit(front_door, data, method=method, key=0)
        for method in (cb.NUTS(progress=False), "laplace")
    )
    wishart = cb.fit(front_door, data, method="wishart")
    q = front_door.queries([{"X": 1.0}, {"Z": 1.0}])
    effects = {
        post.method: np.asarray(cb.response(post)(post.mean, q))
        for post in (nuts, laplace, wishart)
    }
    sd = cb.surrogates.couple(nuts).predict(q).sd
    for found in effects.values():
        assert (np.abs(found - effects["nuts"]) < 0.5 * sd).all()
    assert nuts.verdict == "passed" and np.allclose(nuts.sd, laplace.sd, rtol=0.08)
    loads = nuts.distribution.models.noises.mean(axis=0)
    assert loads[0, 2] == pytest.approx(6, abs=1.2) and np.abs(loads[[0, 1], [1, 2]]).max() < 1e-9


@pytest.mark.slow
def test_parameterizations_are_readings_of_the_same_draws(front_door):
    data = confounded_data(front_door, 200, 1)
    structural, total, estimand = (
        cb.fit(front_door, data, method=SHORT, parameters=kind, key=3)
        for kind in ("structural", "total_effect", "estimand")
    )
    b, tau, est = (post.distribution.chains for post in (structural, total, estimand))
    product = b[..., structural.names.index("b[X->Z]")] * b[..., structural.names.index("b[Z->Y]")]
    assert np.allclose(tau[..., total.names.index("tau[X|X]")], product)
    assert np.allclose(est[..., estimand.names.index("est[X|X]")], product)
    assert total.mean[0] == pytest.approx(product.mean())
    q = front_door.queries([{"X": 1.5}])
    effects = [np.asarray(cb.response(post)(post.draws(600, 0), q)) for post in (structural, total)]
    assert np.allclose(*effects)


def test_an_interrupt_stops_all_chains_after_their_block(chain, monkeypatch):
    from causal_bo_ppl.inference import nuts

    seen = []

    class Bar:
        def __init__(self, **options):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def update(self, steps):
            seen.append(steps)
            if len(seen) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(nuts, "tqdm", Bar)
    with pytest.raises(KeyboardInterrupt):
        cb.fit(chain.problem, chain.observe(30, 0), method=replace(SHORT, draws=50_000), key=0)
    assert len(seen) < 10


def test_an_outcome_that_needs_an_unlearned_equation_has_no_variance(chain):
    problem = cb.Problem(chain.problem.graph, "Y", domains={"Z": (-1, 1)}, sets=[("Z",)])
    exact, narrow = (
        cb.fit(problem, chain.observe(60, 0), method=method) for method in ("conjugate", "laplace")
    )
    normal = np.random.default_rng(0).normal(size=(2, 300, 3))
    psi = narrow.distribution.mode + normal @ narrow.distribution.factor.T
    stats = dict.fromkeys((*FIELDS, "tree_depth"), np.ones((2, 300)))  # as if NUTS had drawn them
    distribution = SHORT.resume(narrow.distribution.model, psi, stats, jax.random.key(0), [60])
    for post in (exact, narrow, replace(narrow, distribution=distribution, method="nuts")):
        assert post.outcome_variances(problem.vertices())[0] == pytest.approx(1, abs=0.5)
        with pytest.raises(
            cb.errors.DomainError, match="an equation that no set of the problem uses"
        ):
            post.outcome_variances(problem.baseline())


def test_laplace_reports_how_narrow_it_is_with_few_observations(chain):
    data = chain.observe(30, 0).select(np.arange(30) < 8)
    with pytest.warns(cb.CausalBOWarning, match="90% intervals hold only about 80%"):
        few = cb.fit(chain.problem, data, method="laplace")
    assert few.verdict == "failed" and not cb.diagnostics.check_posterior(few).passed
    assert (
        cb.fit(chain.problem, chain.observe(60, 0), method="laplace").distribution.coverage > 0.88
    )


@pytest.mark.parametrize(
    ("n", "verdict"), [(8, "failed"), (12, "failed"), (15, "passed"), (21, "passed")]
)
def test_laplace_reports_the_exact_coverage_of_its_intervals(chain, n, verdict):
    """Of draws of the exact posterior: the share within 90 % intervals of the approximation."""
    data = chain.observe(30, 0).select(np.arange(30) < n)
    with pytest.warns(cb.CausalBOWarning, match="90% intervals hold only about 8"):
        few = cb.fit(chain.problem, data, method="laplace")
    draws = cb.fit(chain.problem, data).draws(40_000, 0)
    held = (np.abs(draws - few.mean) <= stats.norm.ppf(0.95) * few.sd).mean(axis=0)
    assert few.distribution.coverage == pytest.approx(held.min(), abs=0.01)
    assert (
        few.verdict == verdict
        and "of the exact posterior" in cb.diagnostics.check_posterior(few).text
    )


def test_a_scaled_prior_does_not_shrink_strong_confounding_and_a_fixed_one_may(front_door):
    draws = np.random.default_rng(0)
    u, e = draws.normal(size=200), draws.normal(size=(3, 200))
    x = 5 * u + e[0]
    z = 0.8 * x + e[1]
    values = np.column_stack([x, z, -1.3 * z + 6 * u + e[2]])  # correlation 0.967, t = 3.8
    data = cb.Data(front_door.graph.nodes, "Y", values, np.zeros(values.shape, bool))
    wishart = cb.fit(front_door, data, method="wishart")
    scaled = cb.fit(front_door, data, method="laplace")
    assert scaled.mean[1] == pytest.approx(
        wishart.mean[wishart.names.index("est[Z|Z]")], abs=0.25 * scaled.sd[1]
    )
    tight = cb.fit(front_door, data, method="laplace", prior=cb.priors.FixedPrior(latent_sd=0.05))
    assert abs(tight.mean[1] - scaled.mean[1]) > 2 * scaled.sd[1]


def test_a_refit_on_new_data_compiles_nothing(chain):
    options = {"method": SHORT, "key": 0}
    first = cb.fit(chain.problem, chain.observe(30, 0), **options)
    structure = jax.tree.structure(first.distribution.model.density)
    sampler = program(structure, False, SHORT.warmup, SHORT.target_accept, SHORT.depth)
    before = sampler.begin._cache_size(), sampler.advance._cache_size()
    assert all(before)
    more = chain.observe(60, 1)
    for n in (30, 45, 31):
        cb.fit(chain.problem, more.select(np.arange(60) < n), **options)
    assert (sampler.begin._cache_size(), sampler.advance._cache_size()) == before
    cb.fit(chain.problem, chain.observe(30, 0), method="laplace")
    hessians = hessian._cache_size()
    cb.fit(chain.problem, more, method="laplace")
    assert hessian._cache_size() == hessians


def test_same_key_same_draws_and_another_key_others(chain):
    data = chain.observe(30, 0)
    one, same, other = (cb.fit(chain.problem, data, method=SHORT, key=key) for key in (5, 5, 6))
    assert (
        one.distribution.chains == same.distribution.chains
    ).all() and one.fingerprint == same.fingerprint
    assert not np.allclose(one.mean, other.mean, rtol=1e-6) and one.fingerprint != other.fingerprint
    assert (one.draws(7, 1) == same.draws(7, 1)).all() and len(one.draws(5_000, 0)) == 5_000
    every = np.sort(one.draws(600, 0)[:, 0])
    assert (
        every == np.sort(one.distribution.chains[..., 0].ravel())
    ).all()  # each once, while there are enough


def test_update_is_a_fit_of_all_observations(chain):
    data, more = chain.observe(30, 0), chain.observe(20, 1)
    grown = cb.fit(chain.problem, data, method="laplace").update(more)
    whole = cb.fit(chain.problem, data.join(more), method="laplace")
    assert np.allclose(grown.mean, whole.mean, atol=1e-8) and grown.fingerprint == whole.fingerprint
    drawn = cb.fit(chain.problem, data, method=SHORT, key=0).update(more)
    assert (
        drawn.n_observations == 50 and np.abs(drawn.mean - whole.mean).max() < 0.5 * whole.sd.max()
    )


@pytest.mark.parametrize("inference", ["laplace", "nuts"])
def test_a_run_starts_from_either_posterior(chain, inference):
    run = optimize(chain, rounds=2, observations=40, inference=inference, key=0)
    assert run.settings.inference == inference and run.surrogate.post.method == inference
    assert run.best.intervention == {"Z": 5.0}


def test_an_instrument_is_used_where_linearity_is_asked_for():
    graph = cb.CausalGraph.parse("Z -> X -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2, 2)}, sets=[("X",)])
    draws = np.random.default_rng(0)
    u, e = draws.normal(size=2_000), draws.normal(size=(3, 2_000))
    x = 1.5 * e[0] + 2 * u + e[1]
    values = {"Z": e[0], "X": x, "Y": 0.7 * x - 2 * u + e[2]}
    table = np.column_stack([values[name] for name in graph.nodes])
    data = cb.Data(graph.nodes, "Y", table, np.zeros(table.shape, bool))
    with pytest.raises(cb.errors.NotIdentifiable, match="cannot be learned"):
        cb.fit(problem, data, method="laplace")
    with pytest.raises(
        cb.errors.ArgumentError, match="wishart cannot use what only linearity identifies"
    ):
        cb.fit(problem, data, method="wishart", linear=True)
    post = cb.fit(problem, data, method="laplace", linear=True)
    k = post.names.index("b[X->Y]")
    by_hand = np.cov(values["Z"], values["Y"])[0, 1] / np.cov(values["Z"], x)[0, 1]
    assert (
        post.mean[k] == pytest.approx(by_hand, abs=0.2 * post.sd[k])
        and abs(post.mean[k] - 0.7) < 3 * post.sd[k]
    )


@pytest.mark.slow
def test_a_large_district_is_sampled():
    """The funnel's target shares a latent cause with each of six sources."""
    system = cb.models.load("funnel")
    post = cb.fit(system.problem, system.observe(300, 0), method=cb.NUTS(progress=False), key=0)
    assert max(map(len, system.problem.graph.districts())) == 7 and post.verdict == "passed"
    q = system.problem.vertices()
    predicted = cb.surrogates.couple(post).predict(q)
    assert np.abs((predicted.mean - np.asarray(system.effect(q))) / predicted.sd).max() < 5


@pytest.mark.slow
def test_the_ancestral_graph_of_b1583_mixes_well():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)
    data = system.observe(500, 0)
    centred = cb.Data(
        data.nodes, data.target, data.values - data.values.mean(axis=0), data.intervened
    )
    post = cb.fit(system.problem, centred, method=cb.NUTS(progress=False), intercepts=False, key=0)
    assert len(post.names) == 19 and post.distribution.psi.shape[:2] == (4, 1_000)
    assert (post.distribution.summary["r_hat"] <= 1.01).all() and not post.distribution.stats[
        "diverging"
    ].any()


@pytest.mark.slow
def test_intervals_by_nuts_cover_the_front_door_effect(front_door):
    """90 % intervals of f_X(1) = -1.04 from 500 observations, 200 data sets."""
    q, hits, verdicts = front_door.queries([{"X": 1.0}]), 0, []
    for seed in range(200):
        data = confounded_data(front_door, 500, 1_000 + seed)
        post = cb.fit(
            front_door, data, method=cb.NUTS(warmup=500, draws=500, progress=False), key=seed
        )
        effects = np.asarray(cb.response(post)(post.draws(2_000, 0), q))[:, 0]
        low, high = np.quantile(effects, (0.05, 0.95))
        hits += bool(low <= 0.8 * -1.3 <= high)
        verdicts.append(post.verdict)
    assert 0.83 <= hits / 200 <= 0.97, hits
    assert verdicts.count("passed") >= 195, verdicts


def test_laplace_shows_its_progress_after_a_few_seconds_and_only_then(chain, monkeypatch, capsys):
    data = chain.observe(40, 0)
    cb.fit(chain.problem, data, method="laplace")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(laplace, "PROGRESS_DELAY", 0.0)
    cb.fit(chain.problem, data, method=cb.Laplace(progress=False))
    assert capsys.readouterr().err == ""
    post = cb.fit(chain.problem, data, method="laplace")
    assert re.search(r"laplace: \d+evaluation", capsys.readouterr().err)
    assert cb.Laplace(progress=False) == cb.Laplace() and post.verdict == "passed"


def test_bar_of_laplace_appears_while_the_first_evaluation_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(laplace, "PROGRESS_DELAY", 0.02)
    with laplace._progress(True) as bar:
        deadline = monotonic() + 20
        while "laplace: 0evaluation" not in (shown := capsys.readouterr().err):
            assert monotonic() < deadline, shown
            sleep(0.01)
    assert bar.n == 0 and not [each for each in enumerate_threads() if isinstance(each, Timer)]
