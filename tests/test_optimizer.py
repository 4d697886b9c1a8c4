"""From a graph and rows to the best intervention: the loop, its bookkeeping, and the published setting."""

import subprocess
import sys

import jax
import numpy as np
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl import wiring
from causal_bo_ppl.data import Data
from causal_bo_ppl.laboratory import Laboratory


@pytest.fixture(scope="module")
def ecoli70():
    return cb.models.load("ecoli70", target="b1583", parents=False, max_size=2)


@pytest.fixture(scope="module")
def run(ecoli70):
    return cb.optimize(ecoli70, rounds=6, observations=50, key=0)


def test_a_run_says_what_was_tried_and_what_is_best(run, ecoli70):
    assert len(run.steps) == 6 and run.trace.sizes == {"experiment": 6, "variable": 8}
    frame = run.to_frame()
    tried = ecoli70.problem.interventions(run.queries)
    assert [name for name in frame.columns if "do(" in name] == [f"do({name})" for name in ecoli70.problem.manipulable]
    assert frame["set"].tolist() == [", ".join(each) for each in tried]
    assert frame["total_cost"].tolist() == np.cumsum([len(each) for each in tried]).tolist()
    np.testing.assert_allclose(frame["effect"], ecoli70.effect(run.queries))
    assert run.best.intervention in tried
    low, high = run.best.interval(0.9)
    assert low < run.best.mean < high and high - run.best.mean == pytest.approx(1.6448536 * run.best.sd)
    final = run.surrogate.predict(ecoli70.problem.queries([run.best.intervention]))
    assert (float(final.mean[0]), float(final.sd[0])) == pytest.approx((run.best.mean, run.best.sd))
    means = run.surrogate.predict(run.queries).mean
    assert run.best.mean == pytest.approx(means.min())
    assert "best do(" in repr(run) and "<table" in run._repr_html_()
    assert run.trace.attrs["method"] == "gc-cbo" and run.trace.attrs["kernel"] == "adaptive"


def test_regret_is_that_of_the_best_tried_so_far(run, ecoli70):
    gaps = np.asarray(ecoli70.effect(run.queries)) - ecoli70.optimum.value
    assert run.regret().tolist() == pytest.approx([gaps[: at + 1].min() for at in range(6)])


def test_each_suggestion_has_the_best_bound_of_all_vertices(run, ecoli70):
    problem = ecoli70.problem
    post = cb.fit(problem, ecoli70.observe(50, jax.random.split(jax.random.key(0))[0]))
    surrogate = cb.couple(post)
    for step in run.steps:
        predicted = surrogate.predict(problem.vertices())
        bounds = predicted.mean - np.sqrt(2.0) * predicted.sd
        query, mean, sd, bound, cost = step.choice
        assert bound == pytest.approx(bounds.min()) and bound == pytest.approx(mean - 2**0.5 * sd)
        assert step.noise == pytest.approx(float(post.outcome_variances(query)[0])) and cost == query.mask.sum()
        surrogate = surrogate.tell(query, step.outcome, step.noise).recentre()


@pytest.mark.heavy
def test_the_same_key_gives_the_same_run_in_another_process(ecoli70):
    script = (
        "import causal_bo_ppl as cb\n"
        "s = cb.models.load('ecoli70', target='b1583', parents=False, max_size=2)\n"
        "r = cb.optimize(s, rounds=3, observations=30, key=5)\n"
        "print(repr((r.trace['outcome'].values.tolist(), r.best.mean)))\n"
    )
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    here = cb.optimize(ecoli70, rounds=3, observations=30, key=jax.random.key(5))
    assert there == repr((here.trace["outcome"].values.tolist(), here.best.mean))


def test_rounds_do_not_compile_anything_again(ecoli70):
    cb.optimize(ecoli70, rounds=3, observations=30, noise=1.0, key=0)
    before = wiring.linearize._cache_size()
    cb.optimize(ecoli70, rounds=25, observations=40, noise=1.0, key=1)
    assert wiring.linearize._cache_size() == before


@pytest.mark.parametrize(
    "options",
    [
        {"method": "gc-cbo-fixed"},
        {"kernel": "fixed"},
        {"update": "full"},
        {"outcomes": "exact"},
        {"noise": 0.5, "beta": 0.0},
        {"report": "model"},
        {"report": "observed"},
        {"batch": 2},
    ],
    ids=str,
)
def test_every_option_runs_and_is_recorded(ecoli70, options):
    found = cb.optimize(ecoli70, rounds=3, observations=60, key=1, **options)
    assert len(found.steps) == 3 * options.get("batch", 1)
    assert all(found.settings[name] == value for name, value in options.items())
    assert found.settings["kernel"] == ("fixed" if "fixed" in str(options) else "adaptive")
    if "exact" in options.values():
        np.testing.assert_allclose(found.trace["outcome"], found.trace["effect"], rtol=1e-12)
    if options.get("report") == "observed":
        assert found.best.intervention in ecoli70.problem.interventions(found.queries)
    if options == {"batch": 2}:
        assert found.trace["round"].values.tolist() == [1, 1, 2, 2, 3, 3]


def test_whole_rows_enter_the_posterior(ecoli70):
    found = cb.optimize(ecoli70, rounds=3, observations=60, update="full", key=1)
    assert found.surrogate.post.rows == 63 and not len(found.surrogate.outcomes.counts)


def test_budget_pays_for_what_it_can(ecoli70):
    found = cb.optimize(ecoli70, budget=5, observations=60, key=1)
    costs = found.trace["cost"].values
    assert 4 <= costs.sum() <= 5 and len(costs) >= 3
    with pytest.raises(cb.DomainError, match="the budget 0.5 pays for no vertex of any set; the cheapest costs 1"):
        cb.optimize(ecoli70, budget=0.5, observations=60, key=1)


@pytest.mark.parametrize("objective", ["min", "max"])
def test_own_experiments_in_both_directions(make_problem, objective):
    problem, system = make_problem(objective=objective, domains={"X": (-5, 5), "Z": (-5, 5)}), cb.models.load("chain")
    asked = []

    def experiment(queries):
        asked.append(problem.interventions(queries))
        return system.experiment(queries, len(asked))

    found = cb.optimize(problem, data=system.observe(40, 0), experiment=experiment, rounds=4, key=0)
    assert found.best.intervention == {"Z": 5.0 if objective == "min" else -5.0} and len(asked) == 4
    with pytest.raises(cb.ModelError, match="regret needs the truth"):
        found.regret()
    numbers = cb.optimize(
        problem, data=system.observe(40, 0), experiment=lambda q: np.asarray(system.effect(q)), rounds=2, key=0
    )
    assert "effect" not in numbers.trace and numbers.best.intervention == found.best.intervention


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda q: [[1.0], [1.0, 2.0]], "something ragged"),
        (lambda q: np.ma.masked_array([1.0], [True]), "a masked array"),
        (lambda q: Data(("A", "B", "Y"), "Y", np.ones((1, 3)), np.asarray(q.mask)), "the rows are of A, B, Y"),
        (lambda q: [np.nan], "the outcome of {'Z': 5.0} is not finite"),
        (lambda q: [1.0, 2.0], r"returned float64 of shape \(2,\) for 1 interventions"),
        (lambda q: "high", "return one number for each"),
        (lambda q: cb.models.load("chain").observe(1, 0), "other variables are marked as set than those asked for"),
        (lambda q: Data(("X", "Z", "Y"), "Y", [[0.0, 4.9, 0.0]], q.mask), "row 0 .* has Z = 4.9, asked for was 5"),
    ],
)
def test_odd_answers_of_an_experiment_are_refused(make_problem, answer, match):
    data = cb.models.load("chain").observe(40, 0)
    problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
    with pytest.raises(cb.ExperimentFailed, match=match) as caught:
        cb.optimize(problem, data=data, experiment=answer, rounds=2, key=0)
    assert caught.value.run is None and isinstance(caught.value.__cause__, cb.DataError)


def test_under_confounding_effects_are_learned_by_wishart_and_earlier_experiments_count():
    system = cb.models.load("funnel", seed=3)
    data = system.observe(60, 0)
    queries = system.problem.queries([{"X1": 1.0}, {"H": 2.0}, {"H": 2.0}])
    earlier = system.experiment(queries, 1)
    found = cb.optimize(system, data=data.join(earlier), rounds=2, key=0)
    assert found.surrogate.post.method == "wishart" and found.surrogate.post.rows == 60
    assert found.surrogate.outcomes.counts.sum() == 5 and found.surrogate.outcomes.counts[1] >= 2
    with pytest.raises(cb.ModelError, match="whole rows of experiments cannot be used"):
        cb.optimize(system, data=data, rounds=2, update="full", key=0)


def test_what_was_paid_for_survives_a_failed_experiment(make_problem):
    problem, system = make_problem(), cb.models.load("chain")
    asked = []

    def experiment(queries):
        asked.append(queries)
        if len(asked) == 4:
            raise RuntimeError("pump failed")
        return [float(len(asked))]

    with pytest.raises(cb.ExperimentFailed, match=r"round 4, do\(Z = -5\), failed: RuntimeError") as caught:
        cb.optimize(problem, data=system.observe(40, 0), experiment=experiment, rounds=9, key=0)
    assert caught.value.run.trace["outcome"].values.tolist() == [1.0, 2.0, 3.0]
    assert caught.value.__notes__ == ["the 3 experiments before it are in this error's `run`"]


def test_an_interrupt_stays_one_and_keeps_what_was_paid_for(make_problem):
    asked = []

    def experiment(queries):
        asked.append(queries)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return [1.0]

    with pytest.raises(KeyboardInterrupt) as caught:
        cb.optimize(make_problem(), data=cb.models.load("chain").observe(40, 0), experiment=experiment, rounds=9, key=0)
    assert len(caught.value.run.steps) == 1


def test_an_outcome_that_cannot_be_used_is_in_the_message(make_problem):
    outcomes = iter([-99.0, 2.0])
    data = cb.models.load("chain").observe(40, 0)
    with pytest.raises(
        cb.ExperimentFailed, match=r"came out as \[2.0\], but cannot be used: the same intervention"
    ) as caught:
        cb.optimize(make_problem(), data=data, experiment=lambda q: next(outcomes), noise=0.0, rounds=4, key=0)
    assert len(caught.value.run.steps) == 1
    with pytest.raises(cb.ExperimentFailed, match=r"came out as \[3.0\].*needs whole rows"):
        cb.optimize(make_problem(), data=data, experiment=lambda q: 3.0, update="full", rounds=4, key=0)


def test_values_read_back_from_a_file_are_those_asked_for(make_problem):
    problem, system = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)}), cb.models.load("chain")

    def experiment(queries):
        rows = system.experiment(queries, 0)
        return Data(rows.nodes, "Y", rows.values + 1e-12 * rows.intervened, rows.intervened)

    found = cb.optimize(problem, data=system.observe(40, 0), experiment=experiment, update="full", rounds=2, key=0)
    assert found.best.intervention == {"Z": 5.0}


def test_a_prior_replaces_rows(make_problem):
    problem, data = make_problem(), cb.models.load("chain").observe(2, 0)
    found = cb.optimize(problem, data=data, experiment=lambda q: [0.0], prior=cb.FixedPrior(), rounds=2, key=0)
    assert found.surrogate.post.prior == cb.FixedPrior()


def test_variables_may_be_named_like_columns_of_the_trace():
    graph = cb.CausalGraph.parse("mean -> cost -> Y")
    problem = cb.Problem(graph, "Y", domains={"mean": (-1, 1), "cost": (-1, 1)})
    rows = Data(graph.nodes, "Y", cb.models.load("chain").observe(40, 0).values, np.zeros((40, 3), bool))
    frame = cb.optimize(problem, data=rows, experiment=lambda q: [0.0], rounds=2, key=0).to_frame()
    assert frame.columns.is_unique and {"do(mean)", "do(cost)", "mean", "cost"} <= set(frame.columns)


def test_earlier_experiments_have_the_noise_of_the_model_and_odd_ones_are_left_out():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", "max", domains={"X": (-2, 2), "Z": (-2, 2)})
    draws = np.random.default_rng(0)
    u, x, z, y = draws.normal(size=(4, 60))
    x, z = 2 * u + x, 2 * u + x + z
    rows = Data(graph.nodes, "Y", np.column_stack([x, z, 1.5 * z + 2 * u + y]), np.zeros((60, 3), bool))
    earlier = Data(graph.nodes, "Y", [[0.1, 2.0, 2.6]], [[False, True, False]])
    options = {"rounds": 1, "key": 0, "experiment": lambda q: [3.0], "noise": 0.01}
    prior = cb.couple(cb.fit(problem, rows, method="wishart"))
    query = problem.queries([{"Z": 2.0}])
    variance = prior.post.outcome_variances(query)[0]
    found = cb.optimize(problem, data=rows.join(earlier), **options)
    expected = prior.tell(query, 2.6, variance).predict(query)
    assert found.steps[0].choice.query.value.tolist() == query.value.tolist()
    assert found.steps[0].choice.sd == pytest.approx(float(expected.sd[0])) and variance > 1
    outside = Data(graph.nodes, "Y", [[0.1, 9.0, 2.6]], [[False, True, False]])
    with pytest.warns(cb.CausalBOWarning, match=r"1 of 1 earlier experiments are left out; the first: do\(Z = 9\)"):
        cb.optimize(problem, data=rows.join(outside), **options)


@pytest.mark.parametrize("batch", [2, 3])
def test_a_batch_of_exact_outcomes_runs(batch):
    found = cb.optimize(cb.models.load("chain"), rounds=4, observations=10, outcomes="exact", batch=batch, key=0)
    assert len(found.steps) == 4 * batch and found.regret()[-1] == 0


def test_imagining_an_outcome_lessens_doubt_and_moves_no_mean(ecoli70):
    surrogate = cb.couple(cb.fit(ecoli70.problem, ecoli70.observe(40, 0)))
    queries = ecoli70.problem.vertices()
    surrogate = surrogate.tell(queries[3], 1.0, 0.5)
    before, after = (each.predict(queries) for each in (surrogate, surrogate.imagine(queries[7], 0.5)))
    np.testing.assert_allclose(after.mean, before.mean, rtol=1e-9)
    assert (after.sd <= before.sd * (1 + 1e-9)).all() and after.sd[7] < 0.97 * before.sd[7]
    told = surrogate.tell(queries[7], float(before.mean[7]), 0.5).predict(queries)
    np.testing.assert_allclose(after.sd, told.sd, rtol=1e-9)


def test_a_budget_is_spent_to_its_last_cent(make_problem):
    problem, data = make_problem(costs={"X": 0.1, "Z": 0.1}), cb.models.load("chain").observe(40, 0)
    found = cb.optimize(problem, data=data, experiment=lambda q: np.zeros(len(q)), budget=0.3, key=0)
    assert len(found.steps) == 3


@pytest.mark.parametrize(("scale", "offset"), [(1e-12, 0.0), (1.0, 1e9), (1e8, 0.0)])
def test_units_of_the_target_do_not_change_the_choice(make_problem, scale, offset):
    system = cb.models.load("chain")
    rows = system.observe(60, 0)
    values = rows.values.copy()
    values[:, 2] = values[:, 2] * scale + offset
    data = Data(rows.nodes, "Y", values, rows.intervened)
    problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
    found = cb.optimize(
        problem, data=data, experiment=lambda q: np.asarray(system.effect(q)) * scale + offset, rounds=3, key=0
    )
    assert found.best.intervention == {"Z": 5.0}


def test_unidentifiable_sets_are_refused_or_dropped():
    graph = cb.CausalGraph.parse("X -> Y; Z -> Y; X <-> Y")
    domains = {"X": (-1.0, 1.0), "Z": (-1.0, 1.0)}
    draws = np.random.default_rng(0)
    u, x, z, y = draws.normal(size=(4, 50))
    data = Data(graph.nodes, "Y", np.column_stack([u + x, z, u + x - z + y]), np.zeros((50, 3), bool))
    with pytest.raises(cb.NotIdentifiable, match=r"E\[Y \| do\(X\)\] cannot be learned"):
        cb.optimize(cb.Problem(graph, "Y", domains=domains), data=data, experiment=lambda q: [0.0], rounds=1, key=0)
    problem = cb.Problem(graph, "Y", domains=domains, identifiable_only=True)
    found = cb.optimize(problem, data=data, experiment=lambda q: [0.0], rounds=3, key=0)
    assert set(found.trace["set"].values) == {"Z"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "magic"}, "method must be one of 'gc-cbo', 'gc-cbo-fixed'; got 'magic'"),
        ({"method": "gc-cbo-fixed", "kernel": "adaptive"}, "kernel must be one of 'fixed'"),
        ({"acquisition": "pi"}, "acquisition must be one of"),
        ({"rounds": 0}, "rounds must be a whole number, at least 1; got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"rounds": None}, "when to stop"),
        ({"budget": np.nan}, "budget must be a finite number"),
        ({"beta": -1.0}, "beta must be a finite number, at least 0"),
        ({"noise": -1.0}, "noise must be a finite number, at least 0"),
        ({"batch": True}, "batch must be a whole number"),
        ({"outcomes": "exact", "noise": 1.0}, "have no noise and no rows"),
        ({"outcomes": "exact", "update": "full"}, "have no noise and no rows"),
        ({"update": "full", "noise": 1.0}, "learns the noise from whole rows"),
        ({"update": "full", "kernel": "fixed"}, "its kernel cannot be fixed"),
        ({"kernel": ""}, "kernel must be one of"),
        ({"inference": "wishart", "update": "full"}, "wishart learns from observational rows only"),
        ({"residual": True}, "residual must be one of False; got True"),
    ],
    ids=str,
)
def test_odd_settings_are_refused(options, match):
    with pytest.raises(cb.ModelError, match=match):
        cb.optimize(cb.models.load("chain"), **({"rounds": 2, "key": 0} | options))


def test_equally_good_interventions_are_said_to_be_so(make_problem):
    problem = make_problem(known={("Z", "Y"): 1e-300}, sets=[("X",), ("Z",)])
    data = cb.models.load("chain").observe(40, 0)
    options = {"data": data, "experiment": lambda q: [0.0], "rounds": 1, "beta": 0.0, "key": 0}
    with pytest.warns(cb.CausalBOWarning, match="all 4 interventions look equally good; the first"):
        found = cb.optimize(problem, **options)
    assert found.best.intervention == {"X": -5.0}


def test_what_cannot_be_optimized_is_refused(make_problem):
    problem, data = make_problem(), cb.models.load("chain").observe(20, 0)
    with pytest.raises(cb.DataError, match="give `data`"):
        cb.optimize(problem, experiment=lambda q: [0.0], rounds=1, key=0)
    with pytest.raises(cb.DataError, match="give `experiment`"):
        cb.optimize(problem, data=data, rounds=1, key=0)
    with pytest.raises(cb.DataError, match="experiment must be a function from Queries to outcomes, got 5"):
        cb.optimize(problem, data=data, experiment=5, rounds=1, key=0)
    with pytest.raises(cb.DomainError, match="needs a CausalSystem or a Problem, got str"):
        cb.optimize("chain", rounds=1, key=0)
    with pytest.raises(cb.SeedError, match="key must be"):
        cb.optimize(cb.models.load("chain"), rounds=1, key=0.5)
    with pytest.warns(cb.CausalBOWarning, match="toy is not linear; linear mechanisms are fitted to it"):
        cb.optimize(cb.models.load("toy"), rounds=1, observations=20, key=0)


def gaps(system, observations, seeds, rounds=15):
    return np.array(
        [
            cb.optimize(system, rounds=rounds, observations=observations, noise=1.0, beta=2.0, key=seed).regret()[-1]
            for seed in range(seeds)
        ]
    )


@pytest.mark.heavy
def test_yaem_is_solved_in_every_seed():
    assert gaps(cb.models.load("ecoli70", target="yaeM"), 50, 5).max() < 1e-9


@pytest.mark.slow
def test_the_published_setting_is_reached():
    system = cb.models.load("ecoli70", target="b1583", parents=False, max_size=5)
    few, many = gaps(system, 50, 60), gaps(system, 100, 60)
    assert np.median(few) <= 0.01 and few.mean() <= 0.06, (np.median(few), few.mean())
    assert np.median(many) <= 0.01 and many.mean() <= 0.025, (np.median(many), many.mean())
    assert gaps(cb.models.load("ecoli70", target="yaeM"), 50, 60).max() < 1e-9


def test_simulated_noise_has_the_variance_that_was_given():
    system = cb.models.load("chain")
    queries = system.problem.queries([{"Z": 1.0}]).repeat(4_000)
    outcomes = Laboratory(system.problem, system, None, 4.0).run(queries, jax.random.key(0)).outcomes
    errors = outcomes - np.asarray(system.effect(queries))
    assert abs(errors.mean()) < 4.5 * 2 / np.sqrt(4_000)
    assert errors.var() == pytest.approx(4.0, abs=4.5 * 4.0 * np.sqrt(2 / 4_000))
