import copy
import pickle
import time
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import causal_bo_ppl as cb

parse = cb.CausalGraph.parse


def test_design_example_works_as_written():
    g = parse("X -> Z -> Y; X <-> Y")
    problem = cb.Problem(
        g, target="Y", objective="min", domains={"X": (-5, 5), "Z": (-5, 20)}, sets="pomis"
    )
    assert problem.sets == (("Z",),) and problem.domains == {"X": (-5, 5), "Z": (-5, 20)}
    q = problem.queries([{"X": 1.0}, {"Z": -3.2}])
    assert q.mask.tolist() == [[True, False, False], [False, True, False]]
    assert q.value.tolist() == [[1.0, 0.0, 0.0], [0.0, -3.2, 0.0]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": "T"}, cb.errors.GraphError, "unknown target 'T'"),
        (
            {"target": "X", "domains": {"Z": (0, 1)}},
            cb.errors.GraphError,
            "target 'X' has no causes",
        ),
        ({"objective": "maximise"}, cb.errors.DomainError, '"min" or "max", got \'maximise\''),
        ({"domains": {}}, cb.errors.DomainError, "no variable may be set"),
        ({"domains": {"Y": (0, 1)}}, cb.errors.DomainError, "target 'Y' is among the manipulable"),
        (
            {"domains": {"Zz": (0, 1)}},
            cb.errors.DomainError,
            "unknown manipulable variable 'Zz'; did you mean 'Z'",
        ),
        (
            {"domains": {"X": (1, 0)}},
            cb.errors.DomainError,
            r"domain of 'X' is \[1.0, 0.0\].*low below high",
        ),
        (
            {"domains": {"X": (1, 1)}},
            cb.errors.DomainError,
            "both bounds must be finite, and low below high",
        ),
        ({"domains": {"X": (np.nan, 1)}}, cb.errors.DomainError, "must be finite"),
        ({"domains": {"X": (0, np.inf)}}, cb.errors.DomainError, "must be finite"),
        ({"domains": {"X": 3}}, cb.errors.DomainError, "pair of numbers"),
        ({"domains": {"X": ("0", "1")}}, cb.errors.DomainError, "pair of numbers"),
        ({"domains": {"X": (0, 1, 2)}}, cb.errors.DomainError, "pair of numbers"),
        ({"sets": "all"}, cb.errors.ExplorationError, "sets must be"),
        ({"sets": True}, cb.errors.ExplorationError, "sets must be"),
        ({"sets": 0}, cb.errors.ExplorationError, "at least 1, got 0"),
        ({"sets": [()]}, cb.errors.ExplorationError, "no intervention set is left"),
        ({"sets": [("X", "Y")]}, cb.errors.DomainError, "target 'Y' stands in the set"),
        ({"sets": [("X", "W")]}, cb.errors.DomainError, "unknown manipulable variable 'W'"),
        ({"costs": {"X": 1.0}}, cb.errors.DomainError, "missing: Z; not manipulable: none"),
        ({"costs": {"X": 1.0, "Z": 0.0}}, cb.errors.DomainError, "cost of 'Z' is 0.0"),
        ({"costs": {"X": -1.0, "Z": 1.0}}, cb.errors.DomainError, "cost of 'X' is -1.0"),
        ({"costs": {"X": np.nan, "Z": 1.0}}, cb.errors.DomainError, "cost of 'X' is nan"),
        (
            {"costs": lambda queries: np.zeros(len(queries))},
            cb.errors.DomainError,
            "cost of intervention 0 is 0.0",
        ),
        ({"costs": lambda queries: 1.0}, cb.errors.DomainError, r"shape \(\) for"),
        ({"known": {("X", "Y"): 1.0}}, cb.errors.GraphError, "no edge"),
        ({"known": {("X", "Z"): np.inf}}, cb.errors.DomainError, "coefficient of X -> Z is inf"),
        (
            {"known": {("X", "Z"): 0}},
            cb.errors.DomainError,
            "X -> Z is 0; give a finite number, or drop the edge",
        ),
        ({"units": {"W": "kg"}}, cb.errors.GraphError, "unknown variable 'W'"),
        ({"units": ["kg"]}, cb.errors.DomainError, "units must be a mapping"),
        ({"domains": ["X"]}, cb.errors.DomainError, "domains must be a mapping"),
        ({"domains": {"X": (0, 10**400)}}, cb.errors.DomainError, "pair of numbers"),
        ({"known": [("X", "Z")]}, cb.errors.DomainError, "known must be a mapping"),
        ({"sets": None}, cb.errors.ExplorationError, "sets must be"),
        ({"sets": 1.0}, cb.errors.ExplorationError, "sets must be"),
        ({"sets": [1]}, cb.errors.ExplorationError, "a set is a name or several names, got 1"),
        ({"costs": 3.0}, cb.errors.DomainError, "costs must be"),
        (
            {"costs": {"X": "a", "Z": 1.0}},
            cb.errors.DomainError,
            "value of 'X' must be a real number",
        ),
        (
            {"costs": {"X": True, "Z": 1.0}},
            cb.errors.DomainError,
            "value of 'X' must be a real number",
        ),
        (
            {"costs": lambda queries: ["a"] * len(queries)},
            cb.errors.DomainError,
            "cost function returned <U1",
        ),
        (
            {"costs": lambda queries: -queries.mask.sum(axis=1)},
            cb.errors.DomainError,
            "cost of intervention 0 is -1",
        ),
        (
            {"identifiable_only": "False"},
            cb.errors.DomainError,
            "identifiable_only must be True or False",
        ),
        ({"graph": "X -> Y"}, cb.errors.GraphError, "needs a CausalGraph, got 'X -> Y'"),
        ({"target": ["Y"]}, cb.errors.GraphError, "unknown target"),
    ],
)
def test_problem_that_cannot_be_posed_is_refused(make_problem, options, error, message):
    with pytest.raises(error, match=message):
        make_problem(**options)


def test_variable_that_cannot_affect_the_target_is_refused():
    with pytest.raises(cb.errors.DomainError, match="'W' cannot affect 'Y'"):
        cb.Problem(parse("X -> Y -> W"), "Y", domains={"X": (0, 1), "W": (0, 1)})


@pytest.mark.parametrize(
    ("interventions", "message"),
    [
        ([{"X": 5.01}], r"do\(X = 5.01\) lies outside \[-5, 5\]"),
        ([{"X": 0.0}, {"Z": -5.0000001}], r"do\(Z = -5.0000001\) lies outside \[-5, 20\]"),
        ([{"X": np.nan}], r"do\(X = nan\) lies outside"),
        ([{"X": np.inf}], "lies outside"),
        ([{"X": "1"}], "must be a real number"),
        ([{"X": True}], "must be a real number"),
        ([{"X": None}], "must be a real number"),
        ([{"W": 1.0}], "unknown manipulable variable 'W'"),
        ([{"Y": 1.0}], "unknown manipulable variable 'Y'"),
        ([{}], "missing its variables.*baseline"),
        (["X"], "interventions are Queries, or mappings"),
        (None, "interventions are Queries, or mappings"),
        ([{"X": 10**400}], "must be a real number"),
        ([{"X": np.True_}], "must be a real number"),
    ],
)
def test_intervention_outside_the_problem_is_refused(make_problem, interventions, message):
    with pytest.raises(cb.errors.DomainError, match=message):
        make_problem().queries(interventions)


def test_explicit_sets_refuse_an_intervention_with_missing_or_extra_variables(make_problem):
    problem = make_problem(sets=[("Z", "X")])
    assert problem.sets == (("X", "Z"),) and len(problem.queries({"Z": 1.0, "X": 2.0})) == 1
    with pytest.raises(cb.errors.DomainError, match="missing: Z; extra: none"):
        problem.queries([{"X": 1.0}])
    with pytest.raises(cb.errors.DomainError, match="missing: none; extra: Z"):
        make_problem(sets=["X", "Z"], domains={"X": (0, 1), "Z": (0, 1)}).queries(
            [{"X": 1.0, "Z": 1.0}]
        )


def test_explicit_sets_are_checked_on_graphs_of_any_size():
    names = [f"V{i:02}" for i in range(70)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    problem = cb.Problem(
        graph, "Y", domains=dict.fromkeys(names, (0, 1)), sets=[("V00",), ("V69",)]
    )
    assert len(problem.require(problem.vertices().repeat(3))) == 12
    with pytest.raises(cb.errors.DomainError, match="{V68} is not a set"):
        problem.queries([{"V69": 0.5}, {"V68": 0.5}])


def test_raw_arrays_are_checked_like_names(make_problem):
    problem = make_problem()
    with pytest.raises(cb.errors.DomainError, match=r"shape \(M, 3\)"):
        problem.require(cb.problem.Queries(np.ones((1, 2), bool), np.zeros((1, 2))))
    with pytest.raises(cb.errors.DomainError, match="boolean"):
        problem.require(cb.problem.Queries(np.ones((1, 3)), np.zeros((1, 3))))
    whole = problem.require(cb.problem.Queries(np.eye(3, dtype=bool)[:2], np.eye(3, dtype=int)[:2]))
    assert whole.value.dtype == np.float64 and problem.interventions(whole) == [
        {"X": 1.0},
        {"Z": 1.0},
    ]
    for dtype in (complex, np.float32, str):
        with pytest.raises(cb.errors.DomainError, match="a float64 array"):
            problem.require(cb.problem.Queries(np.zeros((1, 3), bool), np.zeros((1, 3), dtype)))
    for read in (problem.interventions, problem.to_frame, problem.cost):
        with pytest.raises(cb.errors.DomainError, match=r"shape \(M, 3\)"):
            read(cb.problem.Queries(np.zeros((1, 5), bool), np.zeros((1, 5))))
    with pytest.raises(cb.errors.DomainError, match="unknown manipulable variable 'Y'"):
        problem.require(cb.problem.Queries(np.ones((1, 3), bool), np.zeros((1, 3))))


def test_mappings_are_taken_wherever_a_batch_is(make_problem):
    problem = make_problem()
    rows = [{"X": 1.0}, {"X": 2.0, "Z": -3.0}]
    for given, expected in ((rows, rows), (tuple(rows), rows), (rows[1], rows[1:]), ([], [])):
        queries = problem.require(given)
        assert (
            isinstance(queries, cb.problem.Queries) and problem.interventions(queries) == expected
        )
        assert problem.interventions(given) == expected and len(problem.to_frame(given)) == len(
            expected
        )
        assert problem.cost(given).tolist() == [len(row) for row in expected]
    for nothing in ({}, [{}], [{"X": 1.0}, {}]):
        with pytest.raises(
            cb.errors.DomainError, match=r"missing its variables.*problem.baseline\(\)"
        ):
            problem.require(nothing)
    for other in (None, "X", [1.0], [{"X": 1.0}, "Z"], np.zeros(3), {"X"}, iter(rows)):
        message = f"expected Queries, got {type(other).__name__}; build them with problem.queries"
        with pytest.raises(cb.errors.DomainError, match=message):
            problem.require(other)
    with pytest.raises(cb.errors.DomainError, match=r"do\(X = 9\) lies outside"):
        problem.require([{"X": 9.0}])


def test_names_and_values_survive_the_round_trip(make_problem):
    problem = make_problem(sets=2, units={"X": "mg"})
    interventions = [{"X": 1 / 3}, {"Z": -3.2}, {"X": -5.0, "Z": 20.0}]
    queries = problem.queries(interventions)
    assert problem.interventions(queries) == interventions
    assert problem.interventions(queries[1:]) == interventions[1:] and len(queries[[0, 2]]) == 2
    frame = problem.to_frame(queries)
    assert list(frame.columns) == ["X [mg]", "Z"] and frame.isna().to_numpy().sum() == 2
    assert problem.position(("Z", "X")) == 2
    with pytest.raises(cb.errors.ExplorationError, match="not among the 2 sets"):
        make_problem().position(("X", "Z"))


def test_costs_by_unit_by_constant_by_magnitude_and_by_function(make_problem):
    interventions = [{"X": -2.0}, {"Z": 3.0}, {"X": 1.0, "Z": 4.0}]
    expected = {
        None: [1, 1, 2],
        "constants": [2, 0.5, 2.5],
        "magnitude": [1.5 + 2, 1.5 + 3, 3 + 5],
        "function": [5, 10, 18],
    }
    given = {
        None: None,
        "constants": {"X": 2.0, "Z": 0.5},
        "magnitude": cb.problem.MagnitudeCost(1.5),
        "function": lambda queries: 1 + (queries.value**2).sum(axis=1),
    }
    for kind, costs in given.items():
        problem = make_problem(costs=costs, sets=2)
        assert problem.cost(problem.queries(interventions)).tolist() == expected[kind], kind


def test_fingerprint_depends_on_all_that_changes_an_answer_and_nothing_else(make_problem):
    base = make_problem()
    others = [
        make_problem(objective="max"),
        make_problem(domains={"X": (-5, 5), "Z": (-5, 20.1)}),
        make_problem(domains={"X": (-5, 5)}),
        make_problem(sets=2),
        make_problem(costs={"X": 1.0, "Z": 2.0}),
        make_problem(costs=cb.problem.MagnitudeCost()),
        make_problem(costs=cb.problem.MagnitudeCost(2.0)),
        make_problem(known={("X", "Z"): 0.8}),
        make_problem(known={("X", "Z"): 0.9}),
        make_problem(identifiable_only=True),
        make_problem(graph=parse("X -> Z -> Y; X <-> Y")),
        make_problem(sets=["X", "Z"]),  # the same sets, but no others are legal
        make_problem(target="Z", domains={"X": (-5, 5)}),
        make_problem(costs=lambda queries: 1 + (queries.value**2).sum(axis=1)),
        make_problem(costs=lambda queries: 1 + np.abs(queries.value).sum(axis=1) ** 2 / 5),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
    same = make_problem(
        graph=parse("Z -> Y; X -> Z"), domains={"Z": (-5, 20), "X": (-5, 5)}, costs={"X": 1, "Z": 1}
    )
    assert same == base and hash(same) == hash(base) and make_problem(sets=2) != base
    assert make_problem(units={"X": "mg"}) == base  # a label changes no answer
    explicit = [
        make_problem(sets=sets)
        for sets in ([("X",), ("Z", "X")], {("X", "Z"), ("X",)}, ["X", "X", ("X", "Z")])
    ]
    assert explicit[0] == explicit[1] == explicit[2] and explicit[0].sets == (("X",), ("X", "Z"))
    assert make_problem(sets=np.int64(2)) == make_problem(sets=2)


def test_cost_function_cannot_change_the_batch_it_is_given(make_problem):
    def greedy(queries):
        queries.value.fill(3.0)
        return np.ones(len(queries))

    problem = make_problem(costs=greedy)
    queries = problem.queries([{"X": 1.0}])
    problem.cost(queries)
    assert queries.value[0, 0] == 1.0


def test_problem_and_queries_survive_a_copy_to_another_process(make_problem):
    problem = make_problem(costs={"X": 1.0, "Z": 2.0}, known={("X", "Z"): 0.8})
    again = pickle.loads(pickle.dumps(problem))  # noqa: S301
    assert again == problem and copy.deepcopy(problem) == problem and again.sets == problem.sets
    queries = pickle.loads(pickle.dumps(problem.vertices()))  # noqa: S301
    assert np.array_equal(queries.value, problem.vertices().value)
    assert pickle.loads(pickle.dumps(problem.graph)) == problem.graph  # noqa: S301


def test_thousands_of_explicit_sets_are_checked_quickly():
    names = [f"V{i:02}" for i in range(30)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    problem = cb.Problem(
        graph, "Y", domains=dict.fromkeys(names, (0, 1)), sets=list(combinations(names, 3))
    )
    start = time.perf_counter()
    problem.require(problem.vertices())
    assert time.perf_counter() - start < 5 and problem.position(names[-3:]) == 4059


def test_problem_never_changes(make_problem):
    given = {"X": (-5, 5), "Z": (-5, 20)}
    problem = make_problem(domains=given)
    given["X"] = (0, 1)
    problem.domains["X"] = (0, 1)
    assert problem.domains["X"] == (-5, 5)
    with pytest.raises(AttributeError, match="a Problem never changes"):
        problem.target = "Z"
    with pytest.raises(AttributeError, match="'target' stays"):
        del problem.target


def test_many_manipulable_variables_need_a_largest_size():
    names = [f"V{i}" for i in range(45)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    domains = dict.fromkeys(names, (0.0, 1.0))
    with pytest.raises(cb.errors.ExplorationError, match="1,385,979 intervention sets"):
        cb.Problem(graph, "Y", domains=domains, sets=5)
    assert len(cb.Problem(graph, "Y", domains=domains, sets=2).sets) == 1035


def test_problem_shows_itself_as_a_picture_and_a_table(make_problem):
    problem = make_problem(units={"X": "<mg>"})
    shown = problem._repr_html_()
    assert "<svg" in shown and "&lt;mg&gt;" in shown and "<mg>" not in shown
    assert repr(problem) == "Problem(min Y over 2 sets of X, Z; 3 variables)"
    assert problem.variables().loc["Z", "high"] == 20


def test_queries_cross_jit_and_show_their_size(make_problem):
    import jax

    queries = make_problem().queries([{"X": 1.0}, {"Z": 2.0}])
    assert jax.jit(lambda q: (q.value * q.mask).sum())(queries) == 3.0
    assert [problem_row.value.tolist() for problem_row in queries] == queries.value[
        :, None
    ].tolist()
    assert len(queries[[]]) == 0
    with pytest.raises(IndexError, match="out of bounds"):
        jax.tree.map(jax.numpy.asarray, queries)[7]
    assert (
        repr(queries) == "Queries(2 interventions on 3 variables)" and len(queries.repeat(3)) == 6
    )


def test_value_beyond_its_domain_by_rounding_is_the_bound(make_problem):
    problem = make_problem()
    given = problem.queries([{"X": np.nextafter(5.0, 9.0), "Z": np.nextafter(20.0, 30.0)}])
    assert problem.interventions(given) == [{"X": 5.0, "Z": 20.0}] and problem.feasible(given)[0]
    low = problem.queries({"X": np.nextafter(-5.0, -9.0)})
    assert low.value[0, 0] == -5.0 and problem.queries({"X": 4.9999}).value[0, 0] == 4.9999
    with pytest.raises(cb.errors.DomainError, match=r"do\(X = 5.00000000000002\) lies outside"):
        problem.queries({"X": 5.0 + 2e-14})
    levels = make_problem(domains={"X": cb.Levels([0.1, 0.3]), "Z": (-5, 20)})
    assert levels.queries({"X": 0.1 + 0.2}).value[0, 0] == 0.3


def test_cost_function_that_raises_is_an_error_of_ours():
    def broken(queries):
        raise KeyError("price")

    graph = cb.CausalGraph.parse("X -> Y")
    with pytest.raises(
        cb.errors.DomainError, match=r"cost function raised KeyError\('price'\)"
    ) as caught:
        cb.Problem(graph, "Y", domains={"X": (0, 1)}, costs=broken)
    assert isinstance(caught.value.__cause__, KeyError)


def test_identification_lies_on_the_problem_and_is_made_once_for_equal_ones():
    graph = cb.CausalGraph.parse("A -> B -> C; A <-> C")
    problem, equal = (cb.Problem(graph, "C", domains={"A": (0, 1)}) for _ in range(2))
    found = problem.identification
    assert problem.identification is found
    assert found[("A",)].text == cb.identify(graph, "C", ["A"])["A"].text
    assert equal.identification["A"] is found["A"] is cb.identify(problem, linear=True)["A"]
    again = pickle.loads(pickle.dumps(problem))  # noqa: S301
    assert again.identification["A"] is found["A"]
    with pytest.raises(AttributeError, match="identification"):
        problem.identification = None


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda at: at.pose(domains={pd.NA: (0, 1)}), "DomainError", "unknown manipulable"),
        (lambda at: at.pose(sets=[(pd.NA,)]), "ExplorationError", "a set is a name or several"),
        (lambda at: at.pose(known={(pd.NA, "Y"): 1.0}), "GraphError", "which is no edge"),
        (lambda at: at.problem.queries({pd.NA: 1.0}), "DomainError", "unknown manipulable"),
        (lambda at: at.fit(mechanisms={pd.NA: "gp"}), "MechanismError", "unknown variable <NA>"),
        (lambda at: at.study().tell({pd.NA: 1.0}, 2.0), "ObservationError", "unknown variable"),
    ],
    ids=["domains", "sets", "known", "queries", "mechanisms", "tell"],
)
def test_missing_value_as_a_name_is_refused_as_any_unknown_name(chain, use, error, message):
    """A comparison with pandas.NA is neither true nor false."""
    problem, data = chain.problem, chain.observe(50, 0)
    at = SimpleNamespace(
        problem=problem,
        pose=lambda **options: cb.Problem(
            problem.graph, "Y", **({"domains": {"X": (0, 1)}} | options)
        ),
        fit=lambda **options: cb.fit(problem, data, **options),
        study=lambda: cb.Study(problem, data, key=0),
    )
    with pytest.raises(getattr(cb.errors, error), match=message):
        use(at)
