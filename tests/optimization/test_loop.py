"""From a graph and observations to the best intervention: the loop and the published setting.

Internals: the dense oracle needs the linearization errors, and compilations are counted.
"""

import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers.joined_queries import joined
from helpers.runs import optimize
from scipy.stats import t as student

import causal_bo_ppl as cb
from causal_bo_ppl import responses
from causal_bo_ppl.kernels.exact import remainders


@pytest.fixture(scope="module")
def ecoli70():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)


@pytest.fixture(scope="module")
def run(ecoli70):
    return optimize(ecoli70, rounds=6, observations=50, learn_from="target", key=0)


def test_a_run_reports_what_was_tried_and_what_is_best(run, ecoli70):
    assert len(run.steps) == 6 and run.trace.sizes == {"experiment": 6, "variable": 8}
    frame = run.to_frame()
    tried = ecoli70.problem.interventions(run.queries)
    assert [name for name in frame.columns if "do(" in name] == [
        f"do({name})" for name in ecoli70.problem.manipulable
    ]
    assert frame["set"].tolist() == [", ".join(each) for each in tried]
    assert frame["total_cost"].tolist() == np.cumsum([len(each) for each in tried]).tolist()
    np.testing.assert_allclose(frame["effect"], ecoli70.effect(run.queries))
    assert run.best.intervention in tried
    low, high = run.best.interval(0.9)
    width = student.ppf(0.95, run.best.degrees) * run.best.sd  # the noise was learned
    assert low < run.best.mean < high and high - run.best.mean == pytest.approx(width)
    final = run.surrogate.predict(ecoli70.problem.queries([run.best.intervention]))
    assert (float(final.mean[0]), float(final.sd[0])) == pytest.approx((run.best.mean, run.best.sd))
    means = run.surrogate.predict(run.queries).mean
    assert run.best.mean == pytest.approx(means.min())
    assert "best do(" in repr(run) and "<table" in run._repr_html_()
    assert run.trace.attrs["name"] == "gc-cbo" and run.trace.attrs["relinearize"] == "True"


def test_regret_is_of_what_was_recommended_or_of_the_best_tried_so_far(run, ecoli70):
    gaps = np.asarray(ecoli70.effect(run.queries)) - ecoli70.optimum.value
    best = [gaps[: index + 1].min() for index in range(6)]
    assert run.regret("tried").tolist() == pytest.approx(best)
    regret = run.trace["best_effect"].values - ecoli70.optimum.value
    assert run.regret().tolist() == pytest.approx(regret.tolist())
    assert (run.regret() >= run.regret("tried") - 1e-12).all()
    with pytest.raises(
        cb.errors.ArgumentError, match='regret is of what was "recommended" or "tried"'
    ):
        run.regret("best")


def test_each_suggestion_has_the_best_bound_of_all_vertices(run, ecoli70):
    problem = ecoli70.problem
    post = cb.fit(problem, ecoli70.observe(50, jax.random.split(jax.random.key(0))[0]))
    surrogate, recorded = cb.surrogates.couple(post, learns_noise=True), []

    def by_set(entry):
        mask, value = np.asarray(entry[0].mask)[0], np.asarray(entry[0].value)[0]
        return (~mask).tolist(), value.tolist(), entry[1]

    for step in run.steps:
        predicted = surrogate.predict(problem.vertices())
        bounds = predicted.mean - np.sqrt(2.0) * predicted.sd
        query, mean, sd, bound, cost, _ = step.suggestion
        assert bound == pytest.approx(bounds.min()) and bound == pytest.approx(mean - 2**0.5 * sd)
        assert (
            step.noise == pytest.approx(float(post.outcome_variances(query)[0]))
            and cost == query.mask.sum()
        )
        recorded.append((query, step.outcome, step.noise))
        queries, outcomes, _ = zip(*sorted(recorded, key=by_set), strict=True)
        surrogate = cb.surrogates.couple(post, learns_noise=True).tell(
            joined(queries), np.array(outcomes)
        )
        surrogate = surrogate.relinearize()


@pytest.mark.slow
def test_the_same_key_gives_the_same_run_in_another_process(ecoli70):
    script = (
        "import causal_bo_ppl as cb\n"
        "s = cb.models.load('ecoli70', target='b1583', parents=False, max_size=2)\n"
        "r = cb.optimize(s, rounds=3, observations=30, key=5)\n"
        "print(repr((r.trace['outcome'].values.tolist(), r.best.mean)))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.strip()
    here = cb.optimize(ecoli70, rounds=3, observations=30, key=jax.random.key(5))
    assert there == repr((here.trace["outcome"].values.tolist(), here.best.mean))


@pytest.mark.heavy
def test_rounds_do_not_compile_anything_again(ecoli70):
    optimize(ecoli70, rounds=3, observations=30, noise=1.0, key=0)
    before = responses._linearize._cache_size()
    optimize(ecoli70, rounds=25, observations=40, noise=1.0, key=1)
    assert responses._linearize._cache_size() == before


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"preset": "gc-cbo-fixed"}, marks=pytest.mark.slow),
        {"relinearize": False},
        {"learn_from": "rows"},
        {"noise": 0.0},
        {"noise": 0.5, "acquisition": cb.acquisition.ConfidenceBound(0.0)},
        pytest.param({"report": "model"}, marks=pytest.mark.slow),
        pytest.param({"report": "observed"}, marks=pytest.mark.slow),
        pytest.param({"batch": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_option_runs_and_is_recorded(ecoli70, options):
    found = optimize(ecoli70, rounds=3, observations=60, key=1, **options)
    assert len(found.steps) == 3 * options.get("batch", 1)
    changes = {name: value for name, value in options.items() if name != "preset"}
    assert all(getattr(found.settings, name) == value for name, value in changes.items())
    assert found.settings.relinearize == (changes.get("relinearize", True) and changes == options)
    if options.get("noise") == 0.0:
        np.testing.assert_allclose(found.trace["outcome"], found.trace["effect"], rtol=1e-12)
    if options.get("report") == "observed":
        assert found.best.intervention in ecoli70.problem.interventions(found.queries)
    if options == {"batch": 2}:
        assert found.trace["round"].values.tolist() == [1, 1, 2, 2, 3, 3]


def test_whole_observations_enter_the_posterior(ecoli70):
    found = optimize(ecoli70, rounds=3, observations=60, learn_from="rows", key=1)
    assert found.surrogate.post.n_observations == 63 and not len(found.surrogate.outcomes.counts)


def test_budget_pays_for_what_it_can(ecoli70):
    found = cb.optimize(ecoli70, budget=5, observations=60, key=1)
    costs = found.trace["cost"].values
    assert 4 <= costs.sum() <= 5 and len(costs) >= 3
    with pytest.raises(
        cb.errors.DomainError,
        match="the budget 0.5 pays for no vertex of any set; the cheapest costs 1",
    ):
        cb.optimize(ecoli70, budget=0.5, observations=60, key=1)


@pytest.mark.heavy
def test_under_confounding_effects_are_learned_by_wishart_and_earlier_experiments_count():
    system = cb.models.load("funnel", seed=3)
    data = system.observe(60, 0)
    queries = system.problem.queries([{"X1": 1.0}, {"H": 2.0}, {"H": 2.0}])
    earlier = system.experiment(queries, 1)
    found = cb.optimize(system, data=data.join(earlier), rounds=2, key=0)
    assert found.surrogate.post.method == "wishart" and found.surrogate.post.n_observations == 60
    assert found.surrogate.outcomes.counts.sum() == 5 and found.surrogate.outcomes.counts[1] >= 2
    with pytest.raises(cb.errors.SettingsError, match="whole rows of experiments cannot be used"):
        optimize(system, data=data, rounds=2, learn_from="rows", key=0)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_batch_of_exact_outcomes_runs(batch):
    found = optimize(
        cb.models.load("chain"), rounds=4, observations=10, noise=0.0, batch=batch, key=0
    )
    assert len(found.steps) == 4 * batch and found.regret("tried")[-1] == 0


def test_fantasizing_an_outcome_lowers_sds_and_moves_no_mean(ecoli70):
    surrogate = cb.surrogates.couple(cb.fit(ecoli70.problem, ecoli70.observe(40, 0)))
    queries = ecoli70.problem.vertices()
    surrogate = surrogate.tell(queries[3], 1.0, 0.5)
    before, after = (
        each.predict(queries) for each in (surrogate, surrogate.fantasize(queries[7], 0.5))
    )
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-9)
    assert (after.sd <= before.sd * (1 + 1e-9)).all() and after.sd[7] < 0.97 * before.sd[7]
    expected = surrogate.tell(queries[7], float(before.mean[7]), 0.5).predict(queries)
    np.testing.assert_allclose(after.sd, expected.sd, rtol=1e-9)


def test_unidentifiable_sets_are_refused_or_dropped():
    graph = cb.CausalGraph.parse("X -> Y; Z -> Y; X <-> Y")
    domains = {"X": (-1.0, 1.0), "Z": (-1.0, 1.0)}
    draws = np.random.default_rng(0)
    u, x, z, y = draws.normal(size=(4, 50))
    data = cb.Data(
        graph.nodes, "Y", np.column_stack([u + x, z, u + x - z + y]), np.zeros((50, 3), bool)
    )
    with pytest.raises(cb.errors.NotIdentifiable, match=r"E\[Y \| do\(X\)\] cannot be learned"):
        cb.optimize(
            cb.Problem(graph, "Y", domains=domains),
            data=data,
            experiment=lambda q: [0.0],
            rounds=1,
            key=0,
        )
    problem = cb.Problem(graph, "Y", domains=domains, identifiable_only=True)
    found = cb.optimize(problem, data=data, experiment=lambda q: [0.0], rounds=3, key=0)
    assert set(found.trace["set"].values) == {"Z"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"preset": "magic"}, "preset must be one of 'gc-cbo', .* 'bo'; got 'magic'"),
        ({"rounds": 0}, "rounds must be a whole number, at least 1; got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"rounds": 10**10}, "rounds must be a whole number, at most 1e.09; got"),
        ({"noise": 10**400}, "noise must be a finite number, at most 1e.50; got"),
        ({"rounds": None}, "an optimization needs an end"),
        ({"budget": np.nan}, "budget must be a finite number"),
        ({"noise": -1.0}, "noise must be a finite number, at least 0"),
        ({"batch": True}, "batch must be a whole number"),
        ({"noise": 0.0, "learn_from": "rows"}, "learns the noise from whole observations"),
        ({"learn_from": "rows", "noise": 1.0}, "learns the noise from whole observations"),
        ({"learn_from": "rows", "relinearize": False}, "it needs relinearize=True"),
        ({"kernel": "monte_carlo"}, "kernel must be one of 'jacobian'; got 'monte_carlo'"),
        (
            {"inference": "wishart", "learn_from": "rows"},
            "wishart learns from observational data only",
        ),
        ({"discrepancy": "no"}, "discrepancy must be one of 'auto', True, False; got 'no'"),
        ({"discrepancy": True, "learn_from": "rows"}, "discrepancy=True and surrogate"),
        ({"preset": "cbo", "discrepancy": True}, "belong to the coupled surrogate, not to 'cbo'"),
        ({"stop": 0.1}, "stop must be cb.optimization.Stop"),
        ({"observe": 0.1}, "observe must be cb.optimization.Observe"),
    ],
    ids=str,
)
def test_odd_settings_are_refused(options, match):
    with pytest.raises(cb.errors.SettingsError, match=match):
        optimize(cb.models.load("chain"), **({"rounds": 2, "key": 0} | options))


def test_an_acquisition_that_is_unknown_is_refused():
    with pytest.raises(cb.errors.ArgumentError, match="acquisition must be one of"):
        cb.Settings(acquisition="pi")


def test_equally_good_interventions_are_reported_as_such(make_problem):
    problem = make_problem(known={("Z", "Y"): 1e-90}, sets=[("X",), ("Z",)])
    data = cb.models.load("chain").observe(40, 0)
    options = {"data": data, "experiment": lambda q: [0.0], "rounds": 1, "key": 0}
    options["acquisition"] = cb.acquisition.ConfidenceBound(0.0)
    with pytest.warns(cb.CausalBOWarning, match="all 4 interventions look equally good; the first"):
        found = optimize(problem, **options)
    assert found.best.intervention == {"X": -5.0}


def test_what_cannot_be_optimized_is_refused(make_problem):
    problem, data = make_problem(), cb.models.load("chain").observe(20, 0)
    with pytest.raises(cb.errors.DataError, match="give `data`"):
        cb.optimize(problem, experiment=lambda q: [0.0], rounds=1, key=0)
    with pytest.raises(cb.errors.ArgumentError, match="give `experiment`"):
        cb.optimize(problem, data=data, rounds=1, key=0)
    with pytest.raises(
        cb.errors.ArgumentError,
        match="experiment must be a function from Queries to outcomes, got 5",
    ):
        cb.optimize(problem, data=data, experiment=5, rounds=1, key=0)
    with pytest.raises(cb.errors.DomainError, match="needs a CausalSystem or a Problem, got str"):
        cb.optimize("chain", rounds=1, key=0)
    with pytest.raises(cb.errors.SeedError, match="key must be"):
        cb.optimize(cb.models.load("chain"), rounds=1, key=0.5)
    with pytest.warns(
        cb.CausalBOWarning, match="toy is not linear; linear mechanisms are fitted to it"
    ):
        cb.optimize(cb.models.load("toy"), rounds=1, observations=20, key=0)


def gaps(system, observations, seeds, rounds=15):
    return np.array(
        [
            optimize(
                system,
                rounds=rounds,
                observations=observations,
                noise=1.0,
                acquisition=cb.acquisition.ConfidenceBound(2.0),
                key=seed,
            ).regret("tried")[-1]
            for seed in range(seeds)
        ]
    )


@pytest.mark.slow
def test_yaem_is_solved_in_every_seed():
    assert gaps(cb.models.load("ecoli70", target="yaeM"), 50, 5).max() < 1e-9


@pytest.mark.slow
def test_the_published_setting_is_reached():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
    few, many = gaps(system, 50, 60), gaps(system, 100, 60)
    assert np.median(few) <= 0.01 and few.mean() <= 0.06, (np.median(few), few.mean())
    assert np.median(many) <= 0.01 and many.mean() <= 0.025, (np.median(many), many.mean())
    assert gaps(cb.models.load("ecoli70", target="yaeM"), 50, 60).max() < 1e-9


@pytest.mark.parametrize(
    "report",
    [
        "mean",
        pytest.param("observed", marks=pytest.mark.slow),
        pytest.param("model", marks=pytest.mark.slow),
    ],
)
def test_what_is_recommended_is_what_report_asks_for(ecoli70, report):
    """Against sorting by hand: the same experiments, whatever is reported after them."""
    found = optimize(
        ecoli70,
        rounds=12,
        observations=30,
        noise=9.0,
        acquisition=cb.acquisition.ConfidenceBound(9.0),
        report=report,
        key=0,
    )
    tried = [tuple(sorted(each.items())) for each in ecoli70.problem.interventions(found.queries)]
    came = found.trace["outcome"].values
    seen = {each: np.mean([y for t, y in zip(tried, came, strict=True) if t == each])
            for each in tried}  # fmt: skip
    means = dict(zip(tried, found.surrogate.predict(found.queries).mean, strict=True))
    vertices = ecoli70.problem.vertices()
    predicted = found.surrogate.predict(vertices).mean
    best = {
        "mean": min(tried, key=means.__getitem__),
        "observed": min(tried, key=seen.__getitem__),
        "model": tuple(
            sorted(ecoli70.problem.interventions(vertices[int(predicted.argmin())])[0].items())
        ),
    }
    assert len(set(best.values())) == 3, "the three must differ, or this test sees nothing"
    assert tuple(sorted(found.best.intervention.items())) == best[report]


def test_a_batch_is_chosen_as_if_its_first_outcomes_were_known(ecoli70):
    """Against the dense Gaussian process over all vertices.

    Conditioned on what was chosen before.
    """
    options = {"batch": 4, "relinearize": False, "noise": 0.1}
    options["acquisition"] = cb.acquisition.ConfidenceBound(9.0)
    found = optimize(ecoli70, rounds=1, observations=30, key=0, **options)
    post, queries = found.surrogate.post, ecoli70.problem.vertices()
    gram = np.array(cb.jacobian_gram(post, queries).gram)
    mean = np.asarray(cb.response(post)(post.mean, queries))
    error = remainders(post, queries) + 1e-10 * np.diagonal(gram)
    chosen, bounds = [], []
    for _ in range(4):
        rows, counts = np.unique(np.array(chosen, int), return_counts=True)
        inverse = np.linalg.inv(gram[np.ix_(rows, rows)] + np.diag(0.1 / counts + error[rows]))
        variance = np.diagonal(gram - gram[:, rows] @ inverse @ gram[rows])
        chosen.append(int((mean - 3.0 * np.sqrt(variance)).argmin()))
        bounds.append((mean - 3.0 * np.sqrt(variance)).min())
    assert ecoli70.problem.interventions(found.queries) == ecoli70.problem.interventions(
        queries[chosen]
    )
    np.testing.assert_allclose(found.trace["bound"], bounds, rtol=1e-9)
    assert len(set(chosen)) > 1, (
        "without fantasized outcomes the same one would be chosen four times"
    )
