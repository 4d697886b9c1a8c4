"""A study asks what `optimize` would run, takes what labs tell, and goes on in another process."""

import json
import subprocess
import sys
import warnings
from itertools import permutations
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def chain():
    return cb.models.load("chain")


@pytest.fixture(scope="module")
def data(chain):
    return chain.observe(40, 0)


@pytest.fixture(scope="module")
def study(chain, data):
    return cb.Study(chain.problem, data, key=0)


def same(query, other):
    return np.array_equal(query.mask, other.mask) and np.array_equal(query.value, other.value)


def follow(of, data, settings, key, experiment=None):
    """Run `optimize`, and ask a study in each round; tell it what the run measured."""
    options = {"data": data, "settings": settings, "key": key, "progress": False}
    run = cb.optimize(of, experiment=experiment, **options)
    study = cb.Study(run.problem, data, settings, key=key)
    asked = 0
    for number in range(1, settings.rounds + 1):
        steps = [step for step in run.steps if step.round == number]
        seen = [each for each in run.observed if each.round == number]
        if not steps and not seen:
            with pytest.raises(cb.DomainError, match="what is left pays for no experiment"):
                study.ask(settings.batch)
            break
        batch = study.ask(settings.batch)
        if seen:
            assert batch[0].intervention == {} and batch[0].rows == len(seen[0].rows)
            study = study.tell(batch[0], seen[0].rows, again=True)
            continue
        assert len(batch) == len(steps)
        for suggestion, step in zip(batch, steps, strict=True):
            assert same(suggestion.query, step.suggestion.query)
            assert suggestion.mean == step.suggestion.mean
            assert suggestion.bound == step.suggestion.bound
            asked += 1
        for suggestion, step in reversed(list(zip(batch, steps, strict=True))):
            study = study.tell(suggestion, step.outcome if step.row is None else step.row)
    assert asked == len(run.steps) > 1
    assert study.best == run.best and study.spent == pytest.approx(run.trace["total_cost"][-1])
    return run, study


def confounded():
    """A problem whose effects are learned by the front door, its rows and an experiment."""
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(graph, "Y", domains={"X": (-2.0, 2.0), "Z": (-2.0, 2.0)})
    rng = np.random.default_rng(0)

    def draw(n, x=None, z=None):
        u = rng.normal(size=n)
        x = u + rng.normal(size=n) if x is None else np.full(n, x)
        z = 0.8 * x + rng.normal(size=n) if z is None else np.full(n, z)
        made = {"X": x, "Z": z, "Y": -z + u + 0.5 * rng.normal(size=n)}
        return np.column_stack([made[name] for name in graph.nodes])

    def experiment(queries):
        rows = [
            draw(1, **{name.lower(): at for name, at in each.items()})
            for each in problem.interventions(queries)
        ]
        return cb.Data(graph.nodes, "Y", np.concatenate(rows), np.asarray(queries.mask))

    seen = draw(150)
    return problem, cb.Data(graph.nodes, "Y", seen, np.zeros_like(seen, bool)), experiment


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"acquisition": "thompson"},
        {"acquisition": "thompson", "batch": 3},
        {"acquisition": "look-ahead", "batch": 2},
        {"acquisition": "log-ei", "update": "target"},
        {"acquisition": cb.InTurn(("look-ahead", "ucb")), "batch": 2},
        {"beta": "schedule", "outcomes": "exact"},
        {"noise": 0.5, "residual": True},
        {"method": "gc-cbo-nocoupling"},
        {"method": "gc-cbo-fixed"},
        {"budget": 2.5},
        {"observe": cb.Observe(probability=0.6, rows=2)},
        {"observe": cb.Observe(probability=None, cost=0.01, rows=3)},
    ],
    ids=str,
)
def test_suggestions_are_those_of_optimize(chain, data, options):
    follow(chain, data, cb.Settings(rounds=3, **options), 1)


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["cbo", "bo"])
def test_suggestions_of_the_baselines_are_those_of_optimize(chain, data, method):
    follow(chain, data, cb.Settings(rounds=3, method=method), 1)


@pytest.mark.heavy
def test_suggestions_are_those_of_optimize_under_latent_confounding():
    problem, data, experiment = confounded()
    follow(problem, data, cb.Settings(rounds=3), 2, experiment)


@pytest.mark.slow
def test_suggestions_are_those_of_optimize_with_other_mechanisms(chain, data):
    follow(chain, data, cb.Settings(rounds=3, mechanisms="gp"), 2)


def test_rows_that_contradict_the_graph_begin_with_a_residual_as_in_optimize():
    draws = np.random.default_rng(0).normal(size=(3, 80))
    a, m = draws[0], draws[0] + draws[1]
    graph = cb.CausalGraph.parse("A -> M -> Y")  # Y also follows A
    problem = cb.Problem(graph, "Y", domains={"A": (-3.0, 3.0), "M": (-3.0, 3.0)})
    frame = pd.DataFrame({"A": a, "M": m, "Y": m - 2 * a + draws[2]})
    data = cb.Data.from_frame(problem, frame)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, study = follow(problem, data, cb.Settings(rounds=3), 0, lambda queries: [0.3])
        told = len(caught)
        again = cb.Study.from_json(study.to_json(), data)
    assert len(caught) == told == 2  # once by the run, once by the study, not when it is read
    assert all("should be independent given M" in str(each.message) for each in caught)
    assert again.ask().mean == study.ask().mean and study.surrogate.residual is not None


def tellings(chain):
    """Everything that a lab tells: numbers, replicates, variances, rows and a failure."""
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}]), 3)
    return [
        (({"X": 5.0}, -5.0), {}),
        (({"X": 5.0}, [-5.2, -4.7]), {}),
        (({"Z": -1.0}, 1.5), {"variance": 0.3}),
        (({"Z": 2.0}, rows.rows(slice(0, 1))), {}),
        ((rows.rows(slice(1, 2)),), {}),
        (({"Z": 4.0},), {"failed": "leaked"}),
    ]


@pytest.mark.parametrize("update", ["auto", "target"])
def test_order_of_telling_does_not_matter(chain, data, update):
    start = cb.Study(chain.problem, data, cb.Settings(update=update, budget=20.0), key=0)
    told, found = tellings(chain), []
    vertices = chain.problem.vertices()
    for order in list(permutations(range(len(told))))[::97]:
        study = start
        for place in order:
            arguments, options = told[place]
            study = study.tell(*arguments, **options)
        suggestion = study.ask()
        predicted = study.surrogate.predict(vertices)
        found.append(
            (
                suggestion.intervention,
                suggestion.mean,
                suggestion.number,
                study.best,
                study.spent,
                predicted.mean.tolist(),
                predicted.sd.tolist(),
            )
        )
    assert all(each == found[0] for each in found) and found[0][4] == 7.0


def test_grouping_of_telling_does_not_matter(chain, study):
    rows = chain.experiment(chain.problem.queries([{"Z": 2.0}, {"X": -3.0}, {"Z": 1.0}]), 3)
    at_once = study.tell(rows).tell({"X": 5.0}, [-5.0, -5.2])
    one_by_one = study.tell({"X": 5.0}, -5.2).tell(rows.rows(slice(1, 3)))
    one_by_one = one_by_one.tell({"X": 5.0}, -5.0).tell(rows.to_frame().iloc[0])
    assert one_by_one.best == at_once.best
    assert one_by_one.ask().mean == at_once.ask().mean


def test_batch_is_told_in_part_and_out_of_order(study):
    batch = study.ask(3)
    whole = study.tell(batch, [-6.0, -6.5, -5.5])
    last_first = study.tell(batch[2], -5.5).tell(batch, [-6.0, None, None])
    assert len(last_first.records) == 2
    waiting = last_first.ask(pending=batch)  # those told meanwhile are left out
    alone = last_first.ask(pending=[batch[1]])
    assert same(waiting.query, alone.query) and waiting.sd == alone.sd
    done = last_first.tell(batch[1], -6.5)
    assert done.best == whole.best and done.ask().mean == whole.ask().mean
    with pytest.raises(cb.DataError, match="a batch of 3 suggestions is told with a list of as m"):
        study.tell(batch, [-6.0])


def test_several_interventions_are_told_with_a_list_of_outcomes(chain, study):
    asked, values = [{"X": 5.0}, {"Z": 2.0}, {"X": 1.0}], [-5.0, None, [-1.0, -1.2]]
    listed = study.tell(asked, values)
    alone = study.tell({"X": 1.0}, [-1.0, -1.2]).tell({"X": 5.0}, -5.0)
    assert len(listed.records) == 3 and listed.best == alone.best
    assert study.tell(chain.problem.queries(asked), values).best == listed.best
    one = study.tell(chain.problem.queries([{"X": 1.0}]), [-1.0, -1.2])
    assert len(one.records) == 2
    with pytest.raises(cb.DataError, match="a batch of 3 interventions is told with a list"):
        study.tell(asked, -5.0)


def test_asking_changes_nothing_and_pending_suggestions_are_imagined(study):
    first, again = study.ask(), study.ask()
    assert first.intervention == again.intervention and first.mean == again.mean
    batch = study.ask(2)
    later = study.ask(pending=batch[:1])
    assert same(later.query, batch[1].query) and later.number == batch[1].number == 2
    assert later.bound == batch[1].bound
    dictionary = study.ask(pending=[batch[0].intervention])
    assert same(dictionary.query, later.query)


def test_draws_of_thompson_are_others_for_every_place_of_a_round(chain, data):
    settings = cb.Settings(acquisition="thompson", batch=3, residual=False, noise=1.0)
    study = cb.Study(chain.problem, data, settings, key=5)
    key = jax.random.fold_in(jax.random.fold_in(study.round_key, 0), 1)
    batch = study.ask(3)
    after = study.tell(batch[0], -6.0)
    cases = [(study, batch[0], 0), (study, batch[2], 2), (after, after.ask(), 1)]
    for of, suggestion, place in cases:
        drawn = of.surrogate.sample(suggestion.query, 1, jax.random.fold_in(key, place))
        assert suggestion.bound == pytest.approx(drawn[0, 0])
    pending = study.ask(pending=batch[:2])
    imagined = study.surrogate
    for each in batch[:2]:
        imagined = imagined.imagine(each.query, 1.0)
    drawn = imagined.sample(pending.query, 1, jax.random.fold_in(key, 2))
    assert pending.bound == pytest.approx(drawn[0, 0])


def test_json_in_a_fresh_process_gives_the_same_suggestions(chain, data, tmp_path):
    settings = cb.Settings(acquisition="thompson", batch=2, budget=20.0)
    study = cb.Study(chain.problem, data, settings, key=3)
    for arguments, options in tellings(chain):
        study = study.tell(*arguments, **options)
    study = study.tell(study.ask(), -6.0)
    (tmp_path / "study.json").write_text(study.to_json())
    data.to_csv(tmp_path / "rows.csv")
    code = (
        "import json, pathlib, sys; import causal_bo_ppl as cb; import pandas as pd\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "text = (folder / 'study.json').read_text()\n"
        "study = cb.Study.from_json(text, pd.read_csv(folder / 'rows.csv'))\n"
        "found = [[s.intervention, s.mean, s.bound, s.number] for s in study.ask(3)]\n"
        "more = [study.spent, study.surprise.p, list(study.best), study.to_json()]\n"
        "print(json.dumps([found, *more]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)  # noqa: S603
    assert done.returncode == 0, done.stderr
    found, spent, p, best, text = json.loads(done.stdout)
    assert found == [[s.intervention, s.mean, s.bound, s.number] for s in study.ask(3)]
    assert (spent, p, best) == (study.spent, study.surprise.p, list(study.best))
    assert text == study.to_json()


def test_json_with_other_rows_or_another_text_is_refused(chain, data, study):
    told = study.tell({"X": 1.0}, -1.0)
    text = told.to_json()
    with pytest.raises(cb.DataError, match="other rows than those that the study began with"):
        cb.Study.from_json(text, chain.observe(40, 1))
    with pytest.raises(cb.StoreError, match="cut off or changed: its checksum differs"):
        cb.Study.from_json(text.replace("-1.0", "-2.0"), data)
    with pytest.raises(cb.StoreError, match="a study is read from a JSON text"):
        cb.Study.from_json(text[:-5], data)
    with pytest.raises(cb.StoreError, match="no text of a study"):
        cb.Study.from_json(chain.problem.to_json(), data)
    with pytest.raises(
        cb.StoreError, match="written in format 99 by .*this version reads format 1"
    ):
        cb.Study.from_json(text.replace('"format": 1, "kind"', '"format": 99, "kind"'), data)
    shuffled = data.rows(np.arange(40)[::-1])
    assert cb.Study.from_json(text, shuffled).ask().mean == pytest.approx(told.ask().mean)


def test_suggestion_told_twice_is_told_once(study):
    suggestion = study.ask()
    told = study.tell(suggestion, -6.0)
    assert told.tell(suggestion, -6.0) is told
    with pytest.raises(
        cb.DataError, match=r"suggestion 1, do\(Z = 5\), was told as -6.0 and is now told as -6.5"
    ):
        told.tell(suggestion, -6.5)
    assert len(told.tell(suggestion, -6.5, again=True).records) == 2
    assert told.ask().number == 2
    assert len(told.tell(told.ask(), -6.5).records) == 2  # the same intervention, asked for again


def test_suggestion_of_an_earlier_state_is_told_and_one_of_another_study_is_not(chain, data, study):
    early = study.ask(2)
    told = study.tell({"X": 1.0}, -1.2).tell(early[1], -6.0)
    assert told.to_frame()["asked"].tolist() == [pd.NA, 2]
    other = cb.Study(chain.problem, data, key=1)
    with pytest.raises(cb.DataError, match=r"suggestion 1, do\(Z = 5\), is of another study"):
        other.tell(early[0], -6.0)


@pytest.mark.parametrize(
    ("what", "outcome", "options", "message"),
    [
        ({"X": 1.0}, float("nan"), {}, r"do\(X = 1\) is nan; the experiment stays open"),
        ({"X": 1.0}, [1.0, np.inf], {}, r"do\(X = 1\) is inf; the experiment stays open"),
        ({"X": 1.0}, "much", {}, "must be a number, replicates or a whole row; got 'much'"),
        ({"X": 1.0}, True, {}, "must be a number, replicates or a whole row; got True"),
        ({"X": 1.0}, [[1.0], [2.0]], {}, "must be a number, replicates or a whole row"),
        ({"X": 1.0}, np.ones((2, 2)), {}, "must be a number, replicates or a whole row"),
        ({"X": 1.0}, [], {}, r"do\(X = 1\) has no outcome in this list"),
        ({"X": 1.0}, None, {}, r"what came out of do\(X = 1\)\?"),
        ({"X": 1.0}, 1e60, {}, "an outcome of the target has the size 1e\\+60"),
        ({"X": 1.0}, 1.0, {"variance": -1.0}, "is -1; it must be 0 or more"),
        ({"X": 1.0}, 1.0, {"variance": np.nan}, "variance of an outcome is nan"),
        ({"X": 1.0}, [1.0, 2.0], {"variance": [1.0] * 3}, "3 variances for 2 numbers"),
        ({"X": 1.0}, 1.0, {"failed": "leaked"}, "failed and has an outcome too"),
        ({"X": 1.0}, None, {"failed": " "}, "say in words why"),
        ({"W": 1.0}, 1.0, {}, "unknown variable 'W'"),
        ({"X": np.nan}, 1.0, {}, "the value of X is nan"),
        ({"X": 1.0, "Y": 2.0}, None, {}, "'Y' is the target, which is not set"),
        ({}, 1.0, {}, "where nothing was set, the outcome alone teaches nothing"),
        ({"X": 1.0}, {"Z": 1.0}, {}, "lacks the columns Y"),
        ({"X": 1.0}, {"X": 2.0, "Z": 1.0, "Y": 0.0}, {}, "X = 2, asked for was 1"),
        ({"X": 1.0}, {"Z": 1.0, "Y": 0.0}, {"variance": 1.0}, "`variance` is of a number"),
        ({"X": 8.0}, -8.0, {}, r"do\(X = 8\) lies outside .*Tell the whole row"),
        (3.0, 1.0, {}, "tell what came out of a suggestion, .*got float"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(study, what, outcome, options, message):
    before = study.to_json()
    with pytest.raises(cb.DataError, match=message):
        study.tell(what, outcome, **options)
    assert study.to_json() == before and not study.records


def test_bad_row_of_a_table_changes_nothing(chain, study):
    frame = chain.experiment(chain.problem.queries([{"X": 1.0}, {"Z": 1.0}]), 0).to_frame()
    frame.loc[1, "Y"] = np.nan
    with pytest.raises(cb.DataError, match="column 'Y' holds 1 NaN"):
        study.tell(frame)
    with pytest.raises(cb.DataError, match="whole rows hold their outcomes"):
        study.tell(frame, 1.0)
    with pytest.raises(cb.DataError, match="the table has no rows"):
        study.tell(frame[:0])


def test_outcome_far_from_what_was_expected_is_asked_back(study):
    with pytest.raises(cb.DataError, match=r"came out as 5000, but -.* \+- .* was expected: is it"):
        study.tell({"X": 1.0}, 5000.0)
    with pytest.raises(cb.DataError, match="sure=True"):
        study.tell({"X": 1.0}, {"Z": 0.5, "Y": 5000.0})
    with pytest.raises(cb.DataError, match="nothing set came out as 5000, but"):
        study.tell({}, {"X": 0.5, "Z": 0.5, "Y": 5000.0})
    with pytest.raises(cb.DataError, match=r"was expected \(2 of 3 outcomes are like that\)"):
        study.tell({"X": 1.0}, [5000.0, -1.0, 4000.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = study.tell({"X": 1.0}, 5000.0, sure=True)
    assert ["residual" in str(each.message) for each in caught] == [True, False]
    assert "the probability of such outcomes is" in str(caught[1].message)
    assert {Path(each.filename).name for each in caught} == {"test_study.py"}
    assert told.records[0].outcome == 5000.0 and told.surprise.verdict == "failed"
    assert study.tell({"X": 1.0}, -3.5).surprise.verdict == "passed"  # unlikely, and possible


def test_failure_is_recorded_and_paid_for_and_not_learned_from(chain, data):
    study = cb.Study(chain.problem, data, cb.Settings(budget=2.0), key=0)
    suggestion = study.ask()
    failed = study.tell(suggestion, failed="leaked")
    assert failed.spent == 1.0 and failed.best == study.best
    assert failed.ask().intervention == suggestion.intervention and failed.ask().number == 2
    assert "It failed before: leaked." in failed.ask().why.text
    mended = failed.tell(suggestion, -6.0)
    assert mended.to_frame()["failed"].tolist() == ["leaked", ""]
    with pytest.raises(cb.DomainError, match="2 of the budget 2 are spent"):
        mended.ask()
    assert "1 failed" in repr(failed) and "1 outcome, 1 failed" in repr(mended)


def test_what_nobody_may_propose_is_learned_from_as_a_row_and_never_recommended(chain, data):
    narrow = cb.Problem(chain.problem.graph, "Y", domains={"X": (-1.0, 1.0)}, sets=[["X"]])
    study = cb.Study(narrow, data, key=0)
    told = study.tell({"X": 4.0}, {"Z": 3.0, "Y": -4.2})
    told = told.tell({"Z": 3.0}, {"X": 0.1, "Y": -4.0})
    assert told.to_frame()["note"].str.contains("never suggested").all()
    assert told.to_frame()["cost"].tolist() == [0.0, 0.0]
    assert told.best.by == "model" and told.best.intervention == study.best.intervention
    assert told.effects([{"X": 1.0}])["sd"][0] < study.effects([{"X": 1.0}])["sd"][0]
    rows = cb.Data(
        data.nodes, "Y", [[4.0, 3.0, -4.2], [0.1, 3.0, -4.0]],
        [[True, False, False], [False, True, False]],
    )  # fmt: skip
    whole = cb.fit(narrow, data.join(rows))
    assert np.allclose(told.posterior.mean, whole.mean, rtol=1e-9)
    assert cb.Study.from_json(told.to_json(), data).ask().mean == told.ask().mean


def test_number_of_a_set_that_is_not_explored_teaches_what_the_sets_share(chain, data, study):
    told = study.tell({"X": 1.0, "Z": 2.0}, -2.5)
    assert told.to_frame()["note"].str.contains("never suggested").all()
    assert told.best.by == "model"
    asked = [{"Z": 2.0}]
    assert told.effects(asked)["sd"][0] < study.effects(asked)["sd"][0]
    whole = cb.Study(chain.problem, data, cb.Settings(method="bo"), key=0)
    with pytest.raises(cb.DataError, match="cannot be learned from here: .*Tell the whole row"):
        whole.tell({"X": 1.0}, -1.5)


def double(queries):
    """Cost twice as much as the number of variables that are set."""
    return 2.0 * np.asarray(queries.mask).sum(axis=1)


def test_functions_are_given_back_by_their_names(chain, data):
    problem = cb.Problem(chain.problem.graph, "Y", domains=chain.problem.domains, costs=double)
    study = cb.Study(problem, data, cb.Settings(inference=cb.Conjugate()), key=0)
    study = study.tell({"X": 1.0}, -1.0)
    again = cb.Study.from_json(study.to_json(), data, functions={"double": double})
    assert again.spent == study.spent == 2.0 and again.fingerprint == study.fingerprint
    with pytest.raises(cb.DomainError, match="double"):
        cb.Study.from_json(study.to_json(), data)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["laplace", "nuts"])
def test_suggestions_are_those_of_optimize_with_other_methods_of_inference(chain, data, method):
    follow(chain, data, cb.Settings(rounds=2, inference=method, accept="a test"), 2)


@pytest.mark.parametrize("variant", ["chain", "confounded"])
def test_rows_of_experiments_in_the_data_and_told_later_give_the_same_belief(variant):
    problem, seen, experiment = confounded()
    if variant == "chain":
        chain = cb.models.load("chain")
        problem, seen = chain.problem, chain.observe(100, 0)
        experiment = lambda queries: chain.experiment(queries, 1)  # noqa: E731
    rows = experiment(problem.queries([{"X": 2.0}, {"Z": 1.0}, {"Z": -2.0}]))
    before = cb.Study(problem, seen.join(rows), key=0)
    alone = cb.Study(problem, seen, key=0)
    later = alone.tell(rows)
    asked = [{"X": 1.0}, {"Z": 2.0}]
    left, right = (each.effects(asked) for each in (before, later))
    assert (right["sd"] < alone.effects(asked)["sd"]).all()
    assert np.allclose(left["mean"], right["mean"], rtol=1e-9)
    assert np.allclose(left["sd"], right["sd"], rtol=1e-9)
    if variant == "confounded":
        with pytest.raises(cb.DataError, match="let cb.Study.problem, data, key=0. take them all"):
            cb.fit(problem, seen.join(rows), method="wishart")


def test_outcome_that_is_known_with_the_same_digits_is_asked_back(chain, data, study):
    told = study.tell({"X": 5.0}, -5.0)
    with pytest.raises(cb.DataError, match="known already, with the same digits.*again=True"):
        told.tell({"X": 5.0}, -5.0)
    assert len(told.tell({"X": 5.0}, -5.0, again=True).records) == 2
    assert len(told.tell({"X": 5.0}, -5.1).records) == 2
    with pytest.raises(cb.DataError, match="nothing set with the outcome .* is known already"):
        study.tell(data.rows(slice(3, 4)))


def test_replicates_and_a_mean_with_its_variance_say_the_same(chain, data):
    study = cb.Study(chain.problem, data, cb.Settings(noise=0.8, residual=False), key=0)
    replicates = study.tell({"X": 5.0}, [-5.0, -5.4])
    mean = study.tell({"X": 5.0}, -5.2, variance=0.4)
    left, right = (each.effects(chain.problem.vertices()) for each in (replicates, mean))
    assert np.allclose(left["mean"], right["mean"]) and np.allclose(left["sd"], right["sd"])


def test_observed_rows_teach_the_mechanisms(chain, data, study):
    more = chain.observe(5, 9)
    told = study.tell({}, more.to_frame())
    assert told.posterior.rows == 45 and told.best.by == "model"
    assert np.allclose(told.posterior.mean, cb.fit(chain.problem, data.join(more)).mean)
    row = dict(zip(more.nodes, more.values[0], strict=True))
    assert study.tell({}, row).posterior.rows == 41


def test_study_shows_what_was_told_believed_and_surprising(chain, study):
    assert repr(study).startswith("Study(min Y, 0 outcomes; the model's best do(Z = 5)")
    assert study.best.by == "model" and "Nothing was told yet" in study._repr_html_()
    told = study.tell(study.ask(), -6.0).tell({"X": 5.0}, -5.0, variance=0.25)
    table = told.to_frame()
    assert table["outcome"].tolist() == [-6.0, -5.0] and table["asked"].tolist() == [1, pd.NA]
    assert table["do(Z)"].tolist()[0] == 5.0 and table["variance"].tolist()[1] == 0.25
    assert (table["z"] == (table["outcome"] - table["expected"]) / table["spread"]).all()
    shown = told._repr_html_()
    assert "What surprised: The 2 outcomes agree" in shown and "do(X = 5)" in shown
    assert "2 outcomes; best do(Z = 5)" in repr(told) and told.best.by == "outcomes"
    with pytest.raises(AttributeError, match="never changes"):
        told.records = ()


def test_surprise_is_that_of_the_run(chain, data):
    run, study = follow(chain, data, cb.Settings(rounds=4, update="target"), 7)
    assert study.surprise.p == run.surprise.p
    assert study.surprise.table["z"].tolist() == run.surprise.table["z"].tolist()


def test_study_needs_a_problem_rows_settings_and_a_key(chain, data):
    with pytest.raises(cb.DomainError, match="a study needs a Problem, got CausalSystem"):
        cb.Study(chain, data, key=0)
    with pytest.raises(cb.DataError, match="rows come as a pandas DataFrame, got NoneType"):
        cb.Study(chain.problem, None, key=0)
    with pytest.raises(cb.ModelError, match="settings must be cb.Settings"):
        cb.Study(chain.problem, data, {"beta": 1.0}, key=0)
    with pytest.raises(cb.SeedError, match="key must be"):
        cb.Study(chain.problem, data, key="seed")
    with pytest.raises(cb.DataError, match="read them for this problem"):
        cb.Study(chain.problem, cb.models.load("healthcare").observe(9, 0), key=0)
    with pytest.raises(cb.DataError, match='update="full" needs whole rows'):
        full = cb.Study(chain.problem, data, cb.Settings(update="full"), key=0)
        full.tell({"X": 1.0}, -1.0)


def test_table_of_pandas_begins_the_same_study(chain, data, study):
    assert cb.Study(chain.problem, data.to_frame(), key=0).fingerprint == study.fingerprint
