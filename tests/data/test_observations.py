"""A log of observations: immutable, checked, written and read without a loss, and its hashes.

Internals: tables are made without a study, and their columns compared one by one.
"""

import io
import json

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.data.data import EXACT
from causal_bo_ppl.data.observations import COLUMNS, Observations

NAMES = ("Größe", "cost", "温度 (°C)", "Y")  # Unicode, a column of the table, and brackets
CHANGES = {
    "mask": [True, True, True, True],
    "value": [1.25, 0.0, 0.0, 0.0],
    "outcome": 0.30000000000000004,
    "variance": 0.125,
    "measured": [1.5, -0.2, 7.0, 0.1],
}


def make_problem():
    graph = cb.CausalGraph.from_edges([(NAMES[0], "Y"), (NAMES[1], "Y"), (NAMES[2], "Y")])
    domains = dict.fromkeys(NAMES[:3], (-5.0, 5.0))
    return cb.Problem(graph, "Y", domains=domains, sets=2)


@pytest.fixture(scope="module")
def problem():
    return make_problem()


@pytest.fixture(scope="module")
def log(problem):
    """Numbers and whole rows, failures with and without an outcome, and a retracted one."""
    nodes = problem.graph.nodes
    first, second, third = (nodes.index(name) for name in NAMES[:3])
    mask, value = np.zeros((8, 4), bool), np.zeros((8, 4))
    for row, setting in enumerate(
        [{first: 1.5}, {first: 1.5, second: -0.1}, {third: 1 / 3}, {}, {second: 2.0},
         {first: 5e-324}, {third: 99.0}, {first: 1.0, second: 2.0, third: 3.0}]
    ):  # fmt: skip
        for column, number in setting.items():
            mask[row, column], value[row, column] = True, number
    measured = np.full((8, 4), np.nan)
    measured[[1, 3, 4, 6]] = np.random.default_rng(0).normal(size=(4, 4))
    measured[[1, 6]] = np.where(mask[[1, 6]], value[[1, 6]], measured[[1, 6]])
    measured[4, second] = 1.9  # not what was to be set: the experiment failed
    outcome = [0.1, 0.2, -1e-310, 0.0, 0.0, np.nan, 0.0, -np.inf]
    outcome = np.where(np.isnan(measured[:, nodes.index("Y")]), outcome, measured[:, -1])
    return Observations.of(
        nodes, "Y", cb.problem.Queries(mask, value), outcome=outcome, measured=measured,
        variance=[np.nan, 0.0, 0.3, np.nan, np.nan, np.nan, 2.0, np.nan],
        cost=[1.0, 2.0, 1.0, 0.1, 1.0, 1.0, 0.0, 3.0], number=[1, 2, 0, 4, 5, 6, 0, 9],
        status=["observed"] * 4 + ["failed"] * 2 + ["retracted", "failed"],
        note=["", "", "", "", "1,9 — nicht 2", "leaked", 'a "typing" error\n', "not finite"],
        who=["ann", "", "Jürgen"] + [""] * 5, when=["2026-11-18"] + [""] * 7,
        is_out_of_domain=[False] * 6 + [True, False],
    )  # fmt: skip


def assert_same(one, other):
    assert (one.nodes, one.target) == (other.nodes, other.target)
    for name in COLUMNS:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, name
        if mine.dtype == object:
            assert mine.tolist() == theirs.tolist(), name
        else:
            assert mine.tobytes() == theirs.tobytes(), name  # NaN too, and the sign of zero
    assert (one.hashes, one.digest) == (other.hashes, other.digest)


def test_a_table_is_read_back_exactly(problem, log):
    frame = log.to_frame()
    assert frame.index.tolist() == [*range(1, 9)] and frame.columns.is_unique
    assert frame["suggestion"].tolist()[:3] == [1, 2, pd.NA]
    assert_same(Observations.from_frame(problem, frame), log)
    parts = [log.select(log.has_row), log.select(~log.has_row), log.select([0]), log.select([])]
    for part in parts:
        assert_same(Observations.from_frame(problem, part.to_frame()), part)


def test_a_table_in_a_file_is_read_back_exactly(problem, log):
    text = log.to_frame().to_csv()
    frame = pd.read_csv(io.StringIO(text), index_col="record", **EXACT)
    assert_same(Observations.from_frame(problem, frame), log)


def test_an_outcome_under_all_other_variables_set_is_no_whole_row(problem, log):
    last = log.select([7])
    assert last.mask.sum() == 3 and not last.has_row.any()
    assert not Observations.from_frame(problem, last.to_frame()).has_row.any()


def test_a_dataset_is_read_back_exactly(log):
    dataset = log.to_xarray()
    assert dataset["do"].dims == ("observation", "variable") and dataset.attrs["target"] == "Y"
    assert_same(Observations.from_xarray(dataset), log)
    assert_same(Observations.from_xarray(log.select([]).to_xarray()), log.select([]))


def test_a_json_text_is_read_back_exactly(log):
    text = log.to_json()
    assert json.loads(text)["observations"][7]["outcome"] == "-inf"  # JSON has no infinity
    assert_same(Observations.from_json(text), log)
    assert Observations.from_json(text).to_json() == text
    assert_same(Observations.from_json(log.select([]).to_json()), log.select([]))


@pytest.mark.parametrize("text", ["no json", "3", "{}", '{"nodes": ["A"], "target": "A"}'])
def test_another_text_is_refused(text):
    with pytest.raises(cb.errors.StoreError, match="this is not a text of observations"):
        Observations.from_json(text)


def test_a_text_with_an_unknown_variable_or_status_is_refused(log):
    for old, new in (('"set": {"cost"', '"set": {"Kosten"'), ('"retracted"', '"forgotten"')):
        text = log.to_json()
        assert old in text
        with pytest.raises(cb.errors.StoreError, match="this is not a text of observations"):
            Observations.from_json(text.replace(old, new))


def test_another_table_is_refused(problem, log):
    frame = log.to_frame()
    with pytest.raises(cb.errors.ObservationError, match="the table has no column 'outcome'"):
        Observations.from_frame(problem, frame.drop(columns="outcome"))
    for name in ("do(W)", "measured(W)"):
        with pytest.raises(cb.errors.ObservationError, match=r"unknown columns .*\(W\)"):
            Observations.from_frame(problem, frame.assign(**{name: 1.0}))


def test_nothing_of_a_log_can_be_changed(log):
    for name in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(log, name)[0] = getattr(log, name)[1]
    with pytest.raises(AttributeError, match="cannot assign to field 'outcome'"):
        log.outcome = np.zeros(8)


def test_a_log_keeps_its_values_when_what_it_was_made_of_changes(problem, log):
    outcome, before = np.array([1.0, 2.0]), log.digest
    queries = problem.queries([{"cost": 1.0}, {"cost": 2.0}])
    made = Observations.of(problem.graph.nodes, "Y", queries, outcome=outcome)
    outcome[:] = 7.0
    assert made.outcome.tolist() == [1.0, 2.0]
    changed = log.change(0, outcome=9.0)
    assert changed.outcome[0] == 9.0 and log.outcome[0] == 0.1 and log.digest == before
    assert changed.digest != before
    assert log.with_columns(status=np.full(8, "failed", object)).digest == 0


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"outcome": [1.0, 2.0, 3.0]}, r"'outcome' .* the shape \(3,\); it must have \(2,\)"),
        ({"outcome": 1.0, "measured": np.ones((2, 3))}, r"'measured' .* must have \(2, 4\)"),
        ({"outcome": 1.0, "number": [[1], [2]]}, r"'number' .* the shape \(2, 1\)"),
        ({"outcome": 1.0, "status": "lost"}, "a status is one of observed, failed, retracted; got"),
        ({"outcome": [1.0, np.nan]}, 'observation 2 has no finite outcome; record it with .*"fail'),
        ({"outcome": [np.inf, 1.0]}, "observation 1 has no finite outcome"),
        ({"outcome": 1.0, "price": 2.0}, "observations have no column price"),
    ],
)
def test_wrong_shapes_statuses_and_outcomes_are_refused(problem, columns, match):
    queries = problem.queries([{"cost": 1.0}, {"cost": 2.0}])
    with pytest.raises(cb.errors.ObservationError, match=match):
        Observations.of(problem.graph.nodes, "Y", queries, **columns)


def test_observations_of_other_variables_do_not_follow(log):
    others = Observations.of(("A", "B", "C", "Y"), "Y")
    with pytest.raises(cb.errors.ObservationError, match="observations of A, B, C, Y .* cannot"):
        log.join(others)


def test_the_kind_of_number_that_was_given_does_not_matter(problem):
    queries = problem.queries([{"cost": 1.0}, {"cost": 2.0}])
    whole, real = (
        Observations.of(problem.graph.nodes, "Y", queries, outcome=outcome, cost=1, number=[1, 2])
        for outcome in ([1, 2], np.array([1.0, 2.0]))
    )
    assert_same(whole, real)


def test_the_digest_is_the_same_in_any_order_and_grouping(log):
    generator = np.random.default_rng(0)
    for _ in range(20):
        order = generator.permutation(len(log))
        cut = int(generator.integers(0, len(log) + 1))
        parts = log.select(order[:cut]).join(log.select(order[cut:]))
        assert parts.digest == log.digest
        again = Observations.from_json(parts.to_json())  # hashes are not carried over
        assert again.digest == log.digest and again.hashes == parts.hashes
    assert log.select([]).digest == 0


@pytest.mark.parametrize("column", CHANGES)
@pytest.mark.parametrize("row", range(4))
def test_the_digest_differs_for_any_change_that_is_learned_from(log, row, column):
    changed = log.change(row, **{column: CHANGES[column]})
    assert changed.digest != log.digest and changed.hashes[row] != log.hashes[row]


def test_the_digest_counts_replicates_and_ignores_what_is_not_learned_from(log):
    observed = log.select(log.is_observed)
    assert observed.digest == log.digest != observed.select([0, 1, 2]).digest
    assert log.join(log).digest != log.digest and log.join(log.select([0])).digest != log.digest
    for column, value in {"cost": 9.0, "number": 77, "note": "x", "who": "x", "when": "x"}.items():
        assert log.change(0, **{column: value}).digest == log.digest
    assert log.change(0, status="retracted").digest == log.select(slice(1, None)).digest
    assert log.change(4, status="observed").digest != log.digest


def test_the_canonical_order_depends_on_the_content_alone(problem):
    asked = [
        {"cost": 1.0},
        {"cost": 1.0},
        {"cost": 1.0},
        {"cost": 1.0},
        {"cost": -1.0},
        {NAMES[0]: 1.0},
    ]
    rows = np.full((6, 4), np.nan)
    rows[0] = [0.0, 1.0, 0.0, 2.0]
    made = Observations.of(
        problem.graph.nodes, "Y", problem.queries(asked), outcome=[2.0, 2.0, 2.0, 2.0, 5.0, 3.0],
        variance=[np.nan, np.nan, 0.0, 0.5, np.nan, 0.0], measured=rows, number=range(1, 7),
    )  # fmt: skip
    expected = made.canonical()
    assert sorted(expected.number.tolist()) == [*range(1, 7)]
    generator = np.random.default_rng(1)
    for _ in range(30):
        mixed = made.select(generator.permutation(6))
        mixed = mixed.join(made.select([0]).with_columns(status=np.array(["failed"], object)))
        assert_same(mixed.canonical(), expected)
    assert len(made.select([]).canonical()) == 0


def test_views_of_a_log_name_what_was_set_observed_and_suggested(log):
    assert log.settings()[:2] == [{NAMES[0]: 1.5}, {NAMES[0]: 1.5, "cost": -0.1}]
    assert log.is_passive.tolist() == [False] * 3 + [True] + [False] * 4
    assert log.is_observed.sum() == 4 and log.has_row.sum() == 4 and log.was_suggested.sum() == 6
    assert log.is_of(log.queries[0]).tolist() == [True] + [False] * 7
    rows = log.rows(log.is_observed)
    assert len(rows) == 2 and rows.intervened.tolist() == log.mask[[1, 3]].tolist()
    assert repr(log) == "Observations(4 observed, 3 failed, 1 retracted)"
    assert repr(log.select([])) == "Observations(none)" and "<table" in log._repr_html_()
