"""Data from tables, arrays and files: what is read, what is refused, and copies.

Internals: the check that data can be learned from is tested without a fit.
"""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb
from causal_bo_ppl.data.checks import require_learnable


@pytest.fixture
def problem(make_problem):
    return make_problem()


@pytest.fixture
def frame():
    draws = np.random.default_rng(0)
    return pd.DataFrame(
        {"Y": draws.normal(size=8), "X": draws.normal(size=8), "Z": draws.normal(size=8)}
    )


def test_columns_are_taken_in_graph_order_and_others_are_reported(problem, frame):
    data = cb.Data.from_frame(problem, frame.assign(day=range(8), note="n"))
    assert data.nodes == ("X", "Z", "Y") and np.array_equal(
        data.values, frame[["X", "Z", "Y"]].to_numpy()
    )
    assert data.unused == ("day", "note") and "ignored columns: day, note" in repr(data)
    assert np.array_equal(data.outcomes, frame["Y"]) and np.array_equal(
        data.column("Z"), frame["Z"]
    )
    assert len(data) == 8 and data.is_observational.all()
    with pytest.raises(cb.errors.DataError, match="no column 'W'"):
        data.column("W")


def test_missing_columns_are_refused_with_the_unused_ones(problem, frame):
    with pytest.raises(
        cb.errors.DataError, match="lacks the columns Z; its unused columns are: Zed"
    ):
        cb.Data.from_frame(problem, frame.rename(columns={"Z": "Zed"}))
    with pytest.raises(
        cb.errors.DataError, match=r"X;Z;Y; name their separator by pd.read_csv\(path, sep=...\)"
    ):
        cb.Data.from_frame(problem, pd.DataFrame({"X;Z;Y": ["1;2;3"]}))
    with pytest.raises(cb.errors.DataError, match="got str; read a file by pd.read_csv"):
        cb.Data.from_frame(problem, "rows.csv")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_column_count_and_first_row(problem, frame, bad):
    frame.index = [f"r{i}" for i in range(8)]
    frame.loc[["r3", "r5"], "Z"] = bad
    with pytest.raises(
        cb.errors.DataError, match="column 'Z' holds 2 NaN or infinite values, the first in row r3"
    ):
        cb.Data.from_frame(problem, frame)


def test_missing_values_of_nullable_columns_are_refused_too(problem, frame):
    frame["Z"] = pd.array([1, 2, None, 4, 5, 6, 7, 8], dtype="Int64")
    with pytest.raises(cb.errors.DataError, match="column 'Z' holds 1 NaN"):
        cb.Data.from_frame(problem, frame)


def test_integers_and_booleans_become_floats(problem, frame):
    frame["X"], frame["Z"] = range(8), [True, False] * 4
    data = cb.Data.from_frame(problem, frame)
    assert data.values.dtype == np.float64 and data.column("Z").tolist() == [1.0, 0.0] * 4


@pytest.mark.parametrize(
    "column",
    [
        ["1"] * 8,
        [object()] * 8,
        [1j] * 8,
        pd.date_range("2026-01-01", periods=8),
        pd.Categorical([1, 2] * 4),
    ],
    ids=["text", "object", "complex", "dates", "categories"],
)
def test_columns_that_are_no_numbers_are_refused_by_name(problem, frame, column):
    frame["Z"] = column
    with pytest.raises(
        cb.errors.DataError, match="column 'Z' has dtype .*; convert it to numbers first"
    ):
        cb.Data.from_frame(problem, frame)


def test_single_precision_is_converted_with_a_warning(problem, frame):
    with pytest.warns(cb.CausalBOWarning, match="columns X, Z, Y are float32 or float16") as caught:
        data = cb.Data.from_frame(problem, frame.astype(np.float32))
    assert data.values.dtype == np.float64 and len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(cb.CausalBOWarning, match="columns X, Z, Y are float32 or float16"):
        cb.Data(problem.graph.nodes, "Y", np.zeros((2, 3), np.float32), np.zeros((2, 3), bool))
    with pytest.warns(cb.CausalBOWarning, match="columns Z are float32 or float16"):
        cb.Data.from_frame(problem, frame.assign(Z=frame["Z"].astype(np.float16)))


def test_repeated_columns_and_row_labels_are_refused(problem, frame, tmp_path):
    twice = pd.concat([frame, frame[["X"]]], axis=1)
    with pytest.raises(cb.errors.DataError, match="column 'X' stands twice"):
        cb.Data.from_frame(problem, twice)
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(cb.errors.DataError, match="column 'X' stands twice"):
        cb.Data.from_csv(problem, tmp_path / "twice.csv")
    with pytest.raises(cb.errors.DataError, match="row label 0 stands twice"):
        cb.Data.from_frame(problem, pd.concat([frame, frame]))


def test_ragged_or_misshapen_rows_are_refused():
    nodes, none = ("X", "Y"), np.zeros((2, 2), bool)
    with pytest.raises(cb.errors.DataError, match="different lengths"):
        cb.Data(nodes, "Y", [[1.0, 2.0], [3.0]], none)
    with pytest.raises(cb.errors.DataError, match=r"shape \(n, 2\) for X, Y, got \(2, 3\)"):
        cb.Data(nodes, "Y", np.zeros((2, 3)), none)
    with pytest.raises(cb.errors.DataError, match="boolean and of shape"):
        cb.Data(nodes, "Y", np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(cb.errors.DataError, match="masked array"):
        cb.Data(nodes, "Y", np.ma.masked_array(np.zeros((2, 2)), none), none)
    with pytest.raises(cb.errors.GraphError, match="two variables are called 'X' and 'X'"):
        cb.Data(("X", "X"), "X", np.zeros((2, 2)), none)
    with pytest.raises(cb.errors.DataError, match="target 'W' is not among"):
        cb.Data(nodes, "W", np.zeros((2, 2)), none)


def test_input_is_copied_and_never_changed(problem, frame):
    before = frame.copy()
    data = cb.Data.from_frame(problem, frame)
    kept = data.values.copy()
    frame.loc[0, "X"] = 99.0
    assert np.array_equal(data.values, kept)
    values, set_ = np.zeros((2, 3)), np.zeros((2, 3), bool)
    data = cb.Data(problem.graph.nodes, "Y", values, set_)
    values[:], set_[:] = 7.0, True
    assert not data.values.any() and not data.intervened.any()
    with pytest.raises(ValueError, match="read-only"):
        data.values[0, 0] = 1.0
    frame.loc[0, "X"] = before.loc[0, "X"]
    pd.testing.assert_frame_equal(frame, before)


def test_interventional_observations_are_marked_by_do_columns_or_by_name(problem, frame):
    marked = cb.Data.from_frame(problem, frame.assign(**{"do(X)": [True] * 3 + [False] * 5}))
    assert (
        marked.intervened[:, 0].tolist() == [True] * 3 + [False] * 5
        and not marked.intervened[:, 1:].any()
    )
    named = cb.Data.from_frame(problem, frame, intervened="Z")
    assert named.intervened.all(axis=0).tolist() == [False, True, False]
    assert problem.interventions(named.queries) == [{"Z": z} for z in frame["Z"]]
    with pytest.raises(cb.errors.DataError, match="unknown intervention 'do\\(Q\\)'"):
        cb.Data.from_frame(problem, frame.assign(**{"do(Q)": True}))
    with pytest.raises(cb.errors.DataError, match="must hold True or False"):
        cb.Data.from_frame(problem, frame.assign(**{"do(X)": 2}))
    with pytest.raises(cb.errors.DataError, match="keep one of them"):
        cb.Data.from_frame(problem, frame.assign(**{"do(X)": True}), intervened="Z")
    with pytest.raises(cb.errors.GraphError, match="unknown variable 'Q'"):
        cb.Data.from_frame(problem, frame, intervened=["Q"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_give_back_the_same_numbers_to_the_last_bit(problem, frame, tmp_path, kind):
    data = cb.Data.from_frame(problem, frame / 3).join(
        cb.Data.from_frame(problem, frame, intervened=["X", "Z"])
    )
    path = tmp_path / f"rows.{kind}"
    data.to_csv(path) if kind == "csv" else data.to_frame().to_parquet(path)
    again = getattr(cb.Data, f"from_{kind}")(problem, path)
    assert np.array_equal(again.values, data.values) and np.array_equal(
        again.intervened, data.intervened
    )


def test_file_that_is_no_table_is_refused_with_its_path(problem, tmp_path):
    texts = {
        "": "it is empty",
        "X,Z,Y\n1,2,3\n1,2,3,4,5\n": "line 3 has another number of fields",
        "X,Z,Y\n1,2,3,4\n5,6,7,8\n": "line 2 has another number of fields",
        "X,Z,Y\n1,2,3,\n5,6,7,\n": "line 2 has another number of fields",
        "X,Z,Y\n1,2\n": "line 2 has another number of fields",
    }
    for text, fault in texts.items():
        (tmp_path / "rows.csv").write_text(text)
        with pytest.raises(
            cb.errors.DataError, match=f"rows.csv is not a CSV table with a header line: {fault}"
        ):
            cb.Data.from_csv(problem, tmp_path / "rows.csv")
        (tmp_path / "rows.parquet").write_text(text)
        with pytest.raises(cb.errors.DataError, match="rows.parquet is not a Parquet file"):
            cb.Data.from_parquet(problem, tmp_path / "rows.parquet")
    with pytest.raises(cb.errors.DataError, match="DataFrame, got dict"):
        cb.Data.from_frame(problem, {"X": [1.0]})


def test_no_observations_are_legal_and_survive_a_file(problem, frame, tmp_path):
    none = cb.Data.from_frame(problem, frame[:0])
    none.to_csv(tmp_path / "none.csv")
    assert len(none) == len(cb.Data.from_csv(problem, tmp_path / "none.csv")) == 0


def test_copies_of_observations_are_read_only_too(problem, frame):
    data = cb.Data.from_frame(problem, frame, intervened="X")
    for again in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):  # noqa: S301
        assert np.array_equal(again.values, data.values) and np.array_equal(
            again.intervened, data.intervened
        )
        assert not again.values.flags.writeable and not again.intervened.flags.writeable


def test_observations_whose_outcome_was_set_are_refused(problem, frame):
    with pytest.raises(cb.errors.DataError, match="target 'Y' is marked as set"):
        cb.Data.from_frame(problem, frame, intervened=["X", "Y"])
    with pytest.raises(
        cb.errors.DataError, match="unknown intervention 'Do \\(X\\)'; did you mean 'do\\(X\\)'"
    ):
        cb.Data.from_frame(problem, frame.assign(**{"Do (X)": True}))
    for mark in ("do_X", "do X", "DoX", "do[Z]", "do.X"):
        with pytest.raises(cb.errors.DataError, match="the table marks an unknown intervention"):
            cb.Data.from_frame(problem, frame.assign(**{mark: True}))
    assert cb.Data.from_frame(problem, frame.assign(dose=1.0, do_nothing=1.0)).unused == (
        "dose",
        "do_nothing",
    )
    with pytest.raises(
        cb.errors.DataError,
        match="read for a problem, which has a graph and a target; got CausalGraph",
    ):
        cb.Data.from_frame(problem.graph, frame)
    with pytest.raises(cb.errors.DataError, match="only Data can be joined, got DataFrame"):
        cb.Data.from_frame(problem, frame).join(frame)
    with pytest.raises(cb.errors.DataError, match="values are read from the table"):
        cb.Data.from_frame(problem, frame, intervened={"X": 1.0})
    with pytest.raises(cb.errors.DataError, match="must hold True or False"):
        cb.Data.from_frame(
            problem, frame.assign(**{"do(X)": pd.array([True, None] * 4, dtype="boolean")})
        )


def test_observations_can_be_joined_and_selected(problem, frame):
    seen, tried = (
        cb.Data.from_frame(problem, frame),
        cb.Data.from_frame(problem, frame[:3], intervened="X"),
    )
    both = seen.join(tried)
    assert len(both) == 11 and both.is_observational.sum() == 8
    assert np.array_equal(both.select(~both.is_observational).values, tried.values)
    assert repr(both).startswith("Data(11 observations of X, Z, Y; 3 interventional")
    assert both.summary().loc["X", "set_in"] == 3 and "<table" in both._repr_html_()
    with pytest.raises(cb.errors.DataError, match="cannot join data of X, Z, Y with data of Y, X"):
        seen.join(cb.Data(("Y", "X"), "Y", np.zeros((1, 2)), np.zeros((1, 2), bool)))


COLLIDER = cb.CausalGraph.parse("A -> Y; B -> Y; A -> B; Y -> W")


def rows(n=20, seed=0, **columns):
    draws = np.random.default_rng(seed)
    table = {name: draws.normal(size=n) for name in COLLIDER.nodes} | columns
    values = np.column_stack([table[name] for name in COLLIDER.nodes])
    return cb.Data(COLLIDER.nodes, "Y", values, np.zeros(values.shape, bool))


def test_usable_observations_pass():
    require_learnable(rows(), COLLIDER)
    require_learnable(rows(W=np.zeros(20)), COLLIDER)  # W is downstream of the target


def test_too_few_observations_for_an_equation_are_refused_by_name():
    with pytest.raises(cb.errors.DataError, match="equation of 'Y' has 2 parents and only 3 rows"):
        require_learnable(rows(3), COLLIDER)
    require_learnable(rows(4), COLLIDER)
    data = rows(20)
    mask = np.zeros(data.values.shape, bool)
    mask[:, COLLIDER.index("B")] = True
    with pytest.raises(
        cb.errors.DataError,
        match="equation of 'B' has 1 parents and only 0 rows in which it was not set",
    ):
        require_learnable(cb.Data(data.nodes, "Y", data.values, mask), COLLIDER)


def test_constant_parent_or_target_is_refused():
    with pytest.raises(
        cb.errors.DataError, match="'A', a parent of 'B', is constant.*value 2 in all 20 rows"
    ):
        require_learnable(rows(A=np.full(20, 2.0)), COLLIDER)
    with pytest.raises(cb.errors.DataError, match="target 'Y' is constant"):
        require_learnable(rows(Y=np.ones(20)), COLLIDER)
    with pytest.raises(cb.errors.DataError, match="'A', a parent of 'B', is constant"):
        require_learnable(rows(A=np.array([0.1 + 0.2, 0.3] * 10)), COLLIDER)  # but for rounding


def test_observations_of_another_graph_are_refused():
    with pytest.raises(cb.errors.DataError, match="the data are of A, B, Y, W, the graph has"):
        require_learnable(rows(), cb.CausalGraph.parse("A -> Y"))


def test_collinear_parents_are_refused_when_exact_and_warned_of_when_nearly_so():
    draws = np.random.default_rng(1)
    for _ in range(200):
        a, slope, shift = draws.normal(size=20), draws.normal(), 10 * draws.normal()
        with pytest.raises(cb.errors.DataError, match="parents A, B of 'Y' are exactly collinear"):
            require_learnable(rows(A=a, B=slope * a + shift), COLLIDER)
    with pytest.raises(cb.errors.DataError, match="parents A, B of 'Y' are exactly collinear"):
        require_learnable(rows(A=a + 1e10, B=3 * (a + 1e10)), COLLIDER)
    noise = draws.normal(size=20)
    with pytest.warns(
        cb.CausalBOWarning, match="parents A, B of 'Y' are nearly collinear .condition number"
    ):
        require_learnable(rows(A=a, B=a + 1e-8 * noise), COLLIDER)
    require_learnable(rows(A=a, B=a + 1e-7 * noise), COLLIDER)
    require_learnable(rows(A=1e200 * a, B=1e-200 * noise), COLLIDER)  # units are not collinearity


def test_all_columns_with_missing_values_are_named_at_once(problem, frame):
    holes = frame.reset_index(drop=True)
    holes.loc[[1, 2], "X"], holes.loc[2, "Z"] = np.nan, np.inf
    message = (
        "column 'X' holds 2 NaN or infinite values, the first in row 1, "
        "column 'Z' holds 1 NaN or infinite values, the first in row 2; drop or repair"
    )
    with pytest.raises(cb.errors.DataError, match=message):
        cb.Data.from_frame(problem, holes)
    with pytest.raises(cb.errors.DataError, match=message):
        cb.Data(
            problem.graph.nodes, "Y", holes[list("XZY")].to_numpy(), np.zeros((len(holes), 3), bool)
        )


def test_columns_that_differ_in_case_or_by_a_letter_are_guessed():
    graph = cb.CausalGraph.parse("dose -> bp; age -> bp")
    problem = cb.Problem(graph, "bp", domains={"dose": (0, 1)})
    frame = pd.DataFrame({"Dose": [1.0], "BP": [2.0], "aeg": [3.0], "site": [4.0]})
    message = (
        "lacks the columns age, dose, bp; .*did you mean 'aeg' for 'age' and 'Dose' for 'dose'"
    )
    with pytest.raises(cb.errors.DataError, match=message) as caught:
        cb.Data.from_frame(problem, frame)
    renamed = frame.rename(columns={"aeg": "age", "Dose": "dose", "BP": "bp"})
    assert "rename(columns={'aeg': 'age', 'Dose': 'dose', 'BP': 'bp'})" in str(caught.value)
    assert cb.Data.from_frame(problem, renamed).unused == ("site",)
    with pytest.raises(cb.errors.DataError, match="unused columns are: site$"):
        cb.Data.from_frame(problem, renamed.drop(columns="age"))


def test_missing_files_and_invalid_tables_are_data_errors(problem, frame, tmp_path):
    for read in (cb.Data.from_csv, cb.Data.from_parquet):
        with pytest.raises(
            cb.errors.DataError, match="nothing.here cannot be read: .*; check the path"
        ):
            read(problem, tmp_path / "nothing.here")
    with pytest.raises(cb.errors.DataError, match="cannot be read: Is a directory"):
        cb.Data.from_csv(problem, tmp_path)
    data = cb.Data.from_frame(problem, frame)
    for chosen in (np.array([99]), "first", {"X": 1}):
        with pytest.raises(cb.errors.DataError, match=f"there are {len(data)}, chosen by a slice"):
            data.select(chosen)


@pytest.mark.parametrize("name", ["=X", "+X", "-X", "@X"])
def test_headers_are_no_formulas_for_a_spreadsheet_and_are_read_back(name, tmp_path):
    graph = cb.CausalGraph.from_edges([(name, "Y")])
    data = cb.Data(graph.nodes, "Y", np.array([[1.0, 2.0]]), np.zeros((1, 2), bool))
    data.to_csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().startswith(f"'{name},Y")
    problem = cb.Problem(graph, "Y", domains={name: (0, 1)})
    assert cb.Data.from_csv(problem, tmp_path / "rows.csv").values.tolist() == [[1.0, 2.0]]
