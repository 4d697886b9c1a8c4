"""A run that is cut off, by whatever error, keeps every outcome that was measured."""

import asyncio
import pickle
import warnings

import numpy as np
import pytest
from helpers import runs

import causal_bo_ppl as cb

# Outcomes here are made up, and contradict the model.
pytestmark = pytest.mark.filterwarnings("ignore:The outcomes of experiments")


class Unprintable(Exception):
    def __repr__(self):
        raise RuntimeError("even its repr fails")

    __str__ = __repr__


class Sealed(Exception):
    """An error that takes no attributes."""

    def __setattr__(self, name, value):
        raise AttributeError(name)


@pytest.fixture(scope="module")
def rows():
    return cb.models.load("chain").observe(40, 0)


@pytest.fixture
def optimize(make_problem, rows):
    """Run with the answers of a list, one for each round; an error in it is raised."""

    def run(answers, **options):
        pending = iter(answers)

        def experiment(queries):
            answer = next(pending)
            if isinstance(answer, BaseException):
                raise answer
            return answer(queries) if callable(answer) else answer

        problem = make_problem(domains={"X": (-5, 5), "Z": (-5, 5)})
        return runs.optimize(
            problem, **({"data": rows, "experiment": experiment, "rounds": 5, "key": 0} | options)
        )

    return run


def outcomes(run):
    return run.experiments.outcome.tolist()


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()],
    ids=repr,
)
def test_what_stops_a_program_passes_through_with_the_run_in_it(optimize, error):
    with pytest.raises(type(error)) as caught:  # noqa: PT011  (it has no text)
        optimize([1.0, 2.0, error])
    assert caught.value is error and outcomes(error.run) == [1.0, 2.0]
    assert not len(error.run.unlearned)
    assert error.__notes__ == ["the 2 experiments before it are in this error's `run`"]


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (ZeroDivisionError("pump"), r"do\(. = 5\), failed: ZeroDivisionError\('pump'\)"),
        (Unprintable(), r"failed: Unprintable \(its repr raises an error too\)"),
        (UserWarning("a warning raised as an error"), "failed: UserWarning"),
        (MemoryError(), "failed: MemoryError"),
        (StopIteration(), "failed: StopIteration"),
        (Sealed("no attributes"), "failed: Sealed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_the_experiment_is_the_cause_of_one_that_holds_the_run(optimize, error, match):
    with pytest.raises(cb.errors.ExperimentFailed, match=match) as caught:
        optimize([1.0, error])
    assert caught.value.__cause__ is error and outcomes(caught.value.run) == [1.0]


def test_nothing_measured_is_no_run(optimize):
    with pytest.raises(
        cb.errors.ExperimentFailed, match="round 1, .* failed: RuntimeError"
    ) as caught:
        optimize([RuntimeError("cold")])
    assert caught.value.run is None and not hasattr(caught.value, "__notes__")


def test_an_error_that_takes_no_attributes_becomes_the_cause(optimize, monkeypatch):
    def relinearize(self):
        if len(self.outcomes.counts):
            raise Sealed("odd")
        return self

    monkeypatch.setattr(cb.surrogates.Coupled, "relinearize", relinearize)
    with pytest.raises(
        cb.errors.ExperimentFailed, match="Sealed.*the 1 experiments before it"
    ) as caught:
        optimize([1.5])
    assert isinstance(caught.value.__cause__, Sealed) and outcomes(caught.value.run) == [1.5]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RuntimeError("a defect of ours"), SystemExit(1)], ids=repr
)
def test_an_outcome_survives_an_error_while_it_is_learned_from(optimize, monkeypatch, error):
    relinearize = cb.surrogates.Coupled.relinearize

    def fail_at_the_third(self):
        if self.outcomes.counts.sum() == 3:
            raise error
        return relinearize(self)

    monkeypatch.setattr(cb.surrogates.Coupled, "relinearize", fail_at_the_third)
    with pytest.raises(type(error)) as caught:  # noqa: PT011  (the very error, see below)
        optimize([1.0, 2.0, 3.0, 4.0])
    run = caught.value.run
    assert caught.value is error and outcomes(run) == [1.0, 2.0, 3.0]
    assert run.rounds.tolist() == [1, 2, 3] and not len(run.unlearned)
    assert run.stopped == f"cut off by {type(error).__name__}"
    assert set(run.experiments.settings()[-1]) <= {"X", "Z"}
    assert error.__notes__ == ["the 3 experiments before it are in this error's `run`"]
    monkeypatch.setattr(cb.surrogates.Coupled, "relinearize", relinearize)
    whole = optimize([1.0, 2.0, 3.0, 4.0, 5.0])
    assert optimize([4.0, 5.0], resume=run).to_frame().equals(whole.to_frame())


def test_warnings_raised_as_errors_keep_the_run(optimize):
    """All effects equal: the loop warns that it cannot choose, here by an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat = cb.priors.FixedPrior(slope_sd=1e-9, intercept_sd=1e-9)
        with pytest.raises(cb.CausalBOWarning, match="interventions look equally good") as caught:
            optimize(
                [1.0] * 3,
                prior=flat,
                noise=1.0,
                data=cb.models.load("chain").observe(0, 0),
                acquisition=cb.acquisition.ConfidenceBound(0.0),
            )
    assert not hasattr(caught.value, "run")  # nothing had been measured

    def warn_after(queries, seen=[]):  # noqa: B006
        seen.append(1)
        if len(seen) == 3:
            warnings.warn("the sensor drifts", RuntimeWarning, stacklevel=1)
        return float(len(seen))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "The outcomes of experiments")
        with pytest.raises(cb.errors.ExperimentFailed, match="the sensor drifts") as failed:
            optimize([warn_after] * 5)
    assert outcomes(failed.value.run) == [1.0, 2.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e160])
def test_good_outcomes_of_a_batch_are_learned_from_beside_a_bad_one(optimize, bad):
    with pytest.raises(
        cb.errors.ExperimentFailed, match=r"the other 2 of the round were learned from"
    ) as caught:
        optimize([[1.0, 2.0, 3.0], [4.0, bad, 6.0]], batch=3)
    run = caught.value.run
    assert outcomes(run) == [1.0, 2.0, 3.0, 4.0, 6.0] and run.rounds.tolist() == [1, 1, 1, 2, 2]
    left = run.unlearned
    assert left.number.tolist() == [5] and left.status.tolist() == ["failed"]
    assert left.outcome[0] == bad or np.isnan(bad)
    assert left.note[0] and "cut off" not in left.note[0] and "yet" not in left.note[0]
    assert run.study.spent == 6 and "1 outcomes not learned from" in repr(run)
    assert "`run.unlearned` 1 outcomes that were measured" in caught.value.__notes__[0]
    np.testing.assert_allclose(run.surrogate.outcomes.counts.sum(), 5)
    assert np.isfinite([run.best.mean, run.best.sd]).all()


def test_the_surrogate_is_that_of_the_good_outcomes_alone(optimize):
    with pytest.raises(cb.errors.ExperimentFailed, match="not finite") as caught:
        optimize([[1.0, np.nan, 3.0]], batch=3)
    kept = caught.value.run.surrogate
    good = caught.value.run.experiments
    assert good.outcome.tolist() == [1.0, 3.0]
    again = cb.surrogates.couple(kept.post, discrepancy="auto", learns_noise=True)
    again = again.condition(good.queries, good.outcome)
    queries = kept.post.problem.vertices()
    np.testing.assert_allclose(
        kept.predict(queries).mean, again.relinearize().predict(queries).mean, rtol=1e-6
    )


def test_an_observation_that_the_posterior_refuses_is_kept_and_the_others_enter_it(optimize, rows):
    system = cb.models.load("chain")

    def measure(queries):
        found = system.experiment(queries, 7)
        values = found.values.copy()
        values[1, found.nodes.index("Y")] = 1e200
        return cb.Data(found.nodes, "Y", values, found.intervened)

    with pytest.raises(
        cb.errors.ExperimentFailed, match="came out as .1e.200., but cannot be used"
    ) as caught:
        optimize([measure], batch=3, learn_from="rows")
    run = caught.value.run
    assert len(run) == 2 and run.surrogate.post.n_observations == len(rows) + 2
    assert run.unlearned.measured[0, 2] == 1e200 and "1e+200" in run.unlearned.note[0]


def test_observations_in_which_something_else_was_set_do_not_spoil_the_batch(optimize):
    system = cb.models.load("chain")

    def measure(queries):
        found = system.experiment(queries, 7)
        values = found.values + np.where(found.intervened, [[0.0], [0.5]], 0.0)
        return cb.Data(found.nodes, "Y", values, found.intervened)

    with pytest.raises(
        cb.errors.ExperimentFailed, match="row 1 of the experiment has .*suggested was"
    ) as caught:
        optimize([measure], batch=2)
    assert len(caught.value.run) == 1 and len(caught.value.run.unlearned) == 1


def test_a_result_that_cannot_be_read_is_in_the_error_as_it_is(optimize):
    answer = {"yield": [4.2], "unit": "mg"}
    with pytest.raises(cb.errors.ExperimentFailed, match="came out, but cannot be read") as caught:
        optimize([1.0, answer])
    assert caught.value.returned is answer and outcomes(caught.value.run) == [1.0]
    with pytest.raises(cb.errors.ExperimentFailed, match=r"returned 1 rows for 2 interventions"):
        optimize([lambda q: cb.models.load("chain").experiment(q[:1], 0)], batch=2)


def test_a_run_without_outcomes_still_has_a_table_and_the_models_best(optimize):
    with pytest.raises(cb.errors.ExperimentFailed, match="not finite") as caught:
        optimize([np.nan])
    run = caught.value.run
    assert (
        len(run.to_frame()) == 0
        and run.trace.sizes["experiment"] == 0
        and "<table" in run._repr_html_()
    )
    predicted = run.surrogate.predict(run.problem.vertices())
    assert run.best.mean == pytest.approx(predicted.mean.min())


def test_a_failure_survives_another_process(optimize):
    with pytest.raises(cb.errors.ExperimentFailed, match="failed: ValueError") as caught:
        optimize([ValueError("x")])
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert str(copy) == str(caught.value) and copy.run is None and copy.returned is None


def test_an_interrupt_while_a_round_is_recorded_loses_nothing(optimize, monkeypatch):
    """Nothing is computed between an experiment and its place in the log."""

    def interrupt(self, queries):
        raise KeyboardInterrupt

    def answer(queries):
        monkeypatch.setattr("causal_bo_ppl.optimization.state.State.noises", interrupt)
        return 2.0

    with pytest.raises(KeyboardInterrupt) as caught:
        optimize([1.0, answer, 3.0])
    assert outcomes(caught.value.run) == [1.0, 2.0]


def test_an_interrupt_while_the_last_warnings_are_sought_keeps_the_run(optimize, monkeypatch):
    def interrupt(self, checked):
        if self.rounds == 2:
            raise KeyboardInterrupt
        return self

    monkeypatch.setattr(cb.optimization.Study, "warn_since", interrupt)
    monkeypatch.setattr("causal_bo_ppl.optimization.run._is_due", lambda rounds: False)
    with pytest.raises(KeyboardInterrupt) as caught:
        optimize([1.0, 2.0], rounds=2)
    assert outcomes(caught.value.run) == [1.0, 2.0]


def test_an_interrupt_while_an_answer_is_read_keeps_the_answer(optimize):
    class Slow:
        def __array__(self, dtype=None, copy=None):
            raise KeyboardInterrupt

    answer = Slow()
    with pytest.raises(KeyboardInterrupt) as caught:
        optimize([1.0, answer])
    assert caught.value.returned is answer and outcomes(caught.value.run) == [1.0]


def test_a_run_shows_an_experiment_that_was_reported_and_is_out_of_domain(optimize):
    run = optimize([1.0], rounds=1)
    study = run.study.tell({"X": 5.5}, -1.0, sure=True)
    shown = cb.Run(study, run.system, run.asked).to_frame()
    assert shown["do(X)"].tolist()[-1] == 5.5 and np.isfinite(shown["mean"]).all()
