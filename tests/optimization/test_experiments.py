"""User-defined experiments: invalid results, failures, interrupts and budgets.

Nothing that was paid for is lost.

Internals: the runner of experiments is called without a run.
"""

import jax
import numpy as np
import pytest
from helpers.runs import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.optimization.experiments import ExperimentRunner

# Outcomes here are made up, and contradict the model.
pytestmark = pytest.mark.filterwarnings("ignore:The outcomes of experiments")


@pytest.mark.parametrize("objective", ["min", "max"])
def test_user_defined_experiments_in_both_directions(make_problem, objective):
    problem, system = (
        make_problem(objective=objective, domains={"X": (-5, 5), "Z": (-5, 5)}),
        cb.models.load("chain"),
    )
    asked = []

    def experiment(queries):
        asked.append(problem.interventions(queries))
        return system.experiment(queries, len(asked))

    found = cb.optimize(problem, data=system.observe(40, 0), experiment=experiment, rounds=4, key=0)
    assert found.best.intervention == {"Z": 5.0 if objective == "min" else -5.0} and len(asked) == 4
    with pytest.raises(cb.errors.ModelError, match="regret needs the truth"):
        found.regret()
    numbers = cb.optimize(
        problem,
        data=system.observe(40, 0),
        experiment=lambda q: np.asarray(system.effect(q)),
        rounds=2,
        key=0,
    )
    assert "effect" not in numbers.trace and numbers.best.intervention == found.best.intervention


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda q: [[1.0], [1.0, 2.0]], "something ragged"),
        (lambda q: np.ma.masked_array([1.0], [True]), "a masked array"),
        (
            lambda q: cb.Data(("A", "B", "Y"), "Y", np.ones((1, 3)), np.asarray(q.mask)),
            "the data are of A, B, Y",
        ),
        (lambda q: [np.nan], "the outcome of {'Z': 5.0} is not finite"),
        (lambda q: [1.0, 2.0], r"returned float64 of shape \(2,\) for 1 interventions"),
        (lambda q: "high", "return one number for each"),
        (
            lambda q: cb.models.load("chain").observe(1, 0),
            "other variables are marked as intervened than the suggested ones",
        ),
        (
            lambda q: cb.Data(("X", "Z", "Y"), "Y", [[0.0, 4.9, 0.0]], q.mask),
            "row 0 .* has Z = 4.9, suggested was 5",
        ),
    ],
)
def test_invalid_results_of_an_experiment_are_refused(make_problem, answer, match):
    data = cb.models.load("chain").observe(40, 0)
    problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
    with pytest.raises(cb.errors.ExperimentFailed, match=match) as caught:
        cb.optimize(problem, data=data, experiment=answer, rounds=2, key=0)
    refusals = cb.errors.DataError, cb.errors.ObservationError
    assert isinstance(caught.value.__cause__, refusals)
    run, returned = caught.value.run, caught.value.returned
    assert (run is None) == (returned is not None)  # outcomes that were read, or all that came back
    assert run is None or (len(run.steps), len(run.unlearned)) == (0, 1)


def test_what_was_paid_for_survives_a_failed_experiment(make_problem):
    problem, system = make_problem(), cb.models.load("chain")
    asked = []

    def experiment(queries):
        asked.append(queries)
        if len(asked) == 4:
            raise RuntimeError("pump failed")
        return [float(len(asked))]

    with pytest.raises(
        cb.errors.ExperimentFailed, match=r"round 4, do\(. = .*\), failed: RuntimeError"
    ) as caught:
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
        cb.optimize(
            make_problem(),
            data=cb.models.load("chain").observe(40, 0),
            experiment=experiment,
            rounds=9,
            key=0,
        )
    assert len(caught.value.run.steps) == 1


def test_an_outcome_that_cannot_be_used_is_in_the_message(make_problem):
    outcomes = iter([-99.0, 1.0, 1.0, 1.0, 2.0])  # after all vertices one is tried again
    data = cb.models.load("chain").observe(40, 0)
    with pytest.raises(
        cb.errors.ExperimentFailed,
        match=r"came out as \[2.0\], but cannot be used: the same intervention",
    ) as caught:
        optimize(
            make_problem(),
            data=data,
            experiment=lambda q: next(outcomes),
            noise=0.0,
            discrepancy=False,
            rounds=6,
            key=0,
        )
    assert len(caught.value.run.steps) == 4
    with pytest.raises(
        cb.errors.ExperimentFailed, match=r"came out as \[3.0\].*needs whole observations"
    ):
        optimize(
            make_problem(), data=data, experiment=lambda q: 3.0, learn_from="rows", rounds=4, key=0
        )


def test_values_read_back_from_a_file_are_the_suggested_ones(make_problem):
    problem, system = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)}), cb.models.load("chain")

    def experiment(queries):
        rows = system.experiment(queries, 0)
        return cb.Data(rows.nodes, "Y", rows.values + 1e-12 * rows.intervened, rows.intervened)

    found = optimize(
        problem,
        data=system.observe(40, 0),
        experiment=experiment,
        learn_from="rows",
        rounds=2,
        key=0,
    )
    assert found.best.intervention == {"Z": 5.0}


def test_a_prior_replaces_data(make_problem):
    problem, data = make_problem(), cb.models.load("chain").observe(2, 0)
    found = optimize(
        problem,
        data=data,
        experiment=lambda q: [0.0],
        prior=cb.priors.FixedPrior(),
        rounds=2,
        key=0,
    )
    assert found.surrogate.post.prior == cb.priors.FixedPrior()


def test_variables_may_be_named_like_columns_of_the_trace():
    graph = cb.CausalGraph.parse("mean -> cost -> Y")
    problem = cb.Problem(graph, "Y", domains={"mean": (-1, 1), "cost": (-1, 1)})
    rows = cb.Data(
        graph.nodes, "Y", cb.models.load("chain").observe(40, 0).values, np.zeros((40, 3), bool)
    )
    frame = cb.optimize(problem, data=rows, experiment=lambda q: [0.0], rounds=2, key=0).to_frame()
    assert frame.columns.is_unique and {"do(mean)", "do(cost)", "mean", "cost"} <= set(
        frame.columns
    )


def test_earlier_experiments_have_the_noise_of_the_model_and_unknown_sets_are_omitted():
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", "max", domains={"X": (-2, 2), "Z": (-2, 2)})
    draws = np.random.default_rng(0)
    u, x, z, y = draws.normal(size=(4, 60))
    x, z = 2 * u + x, 2 * u + x + z
    rows = cb.Data(
        graph.nodes, "Y", np.column_stack([x, z, 1.5 * z + 2 * u + y]), np.zeros((60, 3), bool)
    )
    earlier = cb.Data(graph.nodes, "Y", [[0.1, 2.0, 2.6]], [[False, True, False]])
    options = {"rounds": 1, "key": 0, "experiment": lambda q: [3.0], "noise": 0.01}
    prior = cb.surrogates.couple(cb.fit(problem, rows, method="wishart"))
    query = problem.queries([{"Z": 2.0}])
    variance = prior.post.outcome_variances(query)[0]
    found = optimize(problem, data=rows.join(earlier), **options)
    expected = prior.tell(query, 2.6, variance).predict(query)
    assert found.steps[0].suggestion.query.value.tolist() == query.value.tolist()
    assert found.steps[0].suggestion.sd == pytest.approx(float(expected.sd[0])) and variance > 1
    outside = cb.Data(graph.nodes, "Y", [[0.1, 9.0, 2.6]], [[False, True, False]])
    wide = cb.Problem(graph, "Y", "max", domains={"X": (-2, 2), "Z": (-2, 9)})
    prior = cb.surrogates.couple(cb.fit(wide, rows, method="wishart"))
    expected = prior.tell(wide.queries([{"Z": 9.0}]), 2.6).predict(query)
    found = optimize(problem, data=rows.join(outside), discrepancy=False, **options)
    assert found.steps[0].suggestion.sd == pytest.approx(float(expected.sd[0]))
    alone = cb.Problem(graph, "Y", "max", domains={"X": (-2, 2), "Z": (-2, 2)}, sets=[["Z"]])
    other = cb.Data(graph.nodes, "Y", [[0.1, 1.0, 2.6]], [[True, False, False]])
    with pytest.warns(
        cb.CausalBOWarning, match="1 of 1 earlier experiments are omitted; the first: "
    ) as caught:
        settings = cb.Settings(rounds=1, noise=0.01)
        cb.optimize(alone, settings, data=rows.join(other), experiment=lambda q: [3.0], key=0)
    assert {each.filename for each in caught} == {__file__}


def test_a_budget_is_spent_to_its_last_cent(make_problem):
    problem, data = make_problem(costs={"X": 0.1, "Z": 0.1}), cb.models.load("chain").observe(40, 0)
    found = cb.optimize(
        problem, data=data, experiment=lambda q: np.zeros(len(q)), budget=0.3, key=0
    )
    assert len(found.steps) == 3


@pytest.mark.parametrize(("scale", "offset"), [(1e-12, 0.0), (1.0, 1e9), (1e8, 0.0)])
def test_units_of_the_target_do_not_change_the_choice(make_problem, scale, offset):
    system = cb.models.load("chain")
    rows = system.observe(60, 0)
    values = rows.values.copy()
    values[:, 2] = values[:, 2] * scale + offset
    data = cb.Data(rows.nodes, "Y", values, rows.intervened)
    problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
    found = cb.optimize(
        problem,
        data=data,
        experiment=lambda q: np.asarray(system.effect(q)) * scale + offset,
        rounds=3,
        key=0,
    )
    assert found.best.intervention == {"Z": 5.0}


def test_simulated_noise_has_the_variance_that_was_given():
    system = cb.models.load("chain")
    queries = system.problem.queries([{"Z": 1.0}]).repeat(4_000)
    outcomes = np.asarray(
        ExperimentRunner(system.problem, system, None, 4.0).run(queries, jax.random.key(0))
    )
    errors = outcomes - np.asarray(system.effect(queries))
    assert abs(errors.mean()) < 4.5 * 2 / np.sqrt(4_000)
    assert errors.var() == pytest.approx(4.0, abs=4.5 * 4.0 * np.sqrt(2 / 4_000))
