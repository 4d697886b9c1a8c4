"""Independences of the graph, against brute force over all sets and textbook regressions.

Internals: separating sets and regressions are compared with brute force below the check.
"""

from itertools import combinations

import numpy as np
import pytest
from helpers.fitted_cases import random_problem, simulate
from helpers.oracles import ancestors, m_connected, powerset, random_admg
from scipy import stats

import causal_bo_ppl as cb
from causal_bo_ppl.diagnostics import graph_tests as implications
from causal_bo_ppl.diagnostics.graph_tests import separated_pairs, separator

DIAMOND = "A -> B -> Y; A -> C -> Y"


def posed(text, target="Y"):
    graph = cb.CausalGraph.parse(text)
    return cb.Problem(graph, target, domains={graph.ancestors(target)[0]: (-1.0, 1.0)})


def as_data(problem, columns):
    """Observational data from {variable: column}."""
    values = np.column_stack([columns[name] for name in problem.graph.nodes])
    return cb.Data(problem.graph.nodes, problem.target, values, np.zeros(values.shape, bool))


def diamond(rows, seed, direct=0.0):
    """Observations of the diamond; `direct` is an edge A -> Y that it does not have."""
    draws = np.random.default_rng(seed).normal(size=(4, rows))
    a = draws[0]
    b, c = a + draws[1], draws[2] - a
    return as_data(
        posed(DIAMOND), {"A": a, "B": b, "C": c, "Y": b + 0.5 * c + direct * a + draws[3]}
    )


def line_of(check, left, right):
    return check.table.set_index(["left", "right"]).loc[left, right]


def test_separators_are_the_smallest_of_all_sets_and_exist_iff_the_ancestors_separate():
    draws, found = np.random.default_rng(0), {"separated": 0, "adjacent": 0, "inducing path": 0}
    for _ in range(80):
        nodes, directed, bidirected = random_admg(draws, 6)
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
        for one, other in combinations(graph.nodes, 2):
            others = [name for name in nodes if name not in (one, other)]
            blocking = [
                set(given)
                for given in powerset(others)
                if not m_connected(nodes, directed, bidirected, one, other, set(given))
            ]
            assert bool(blocking) == (
                ancestors(directed, {one, other}) - {one, other} in blocking
            ), (graph, one, other)
            given = separator(graph, one, other)
            assert (given is not None) == bool(blocking), (graph, one, other)
            if given is None:
                touch = any({one, other} == set(edge) for edge in [*directed, *bidirected])
                found["adjacent" if touch else "inducing path"] += 1
            else:
                assert set(given) in blocking and len(given) == min(map(len, blocking)), (
                    graph,
                    one,
                    other,
                    given,
                )
                found["separated"] += 1
    assert min(found.values()) > 10, found


def test_bottleneck_in_the_middle_is_found():
    text = "; ".join(f"A -> B{i} -> M; M -> C{i} -> Y" for i in range(3))
    assert separator(cb.CausalGraph.parse(text), "A", "Y") == ("M",)


def test_every_separable_pair_is_tested_once():
    pairs = separated_pairs(cb.CausalGraph.parse(DIAMOND))
    assert pairs == (("A", "Y", ("B", "C")), ("B", "C", ("A",)))
    assert (
        separated_pairs(cb.CausalGraph.parse("A -> B -> C; B <-> C")) == ()
    )  # an inducing path from A to C
    assert separated_pairs(cb.CausalGraph.parse("B; C; B <-> C; A -> D")) == (
        *(("A", "B", ()), ("A", "C", ())),
        *(("B", "D", ()), ("C", "D", ())),
    )


def test_correlations_and_p_values_are_those_of_textbook_regressions():
    problem, truth = random_problem(3, size=7)
    data = simulate(problem, truth, 40, seed=1)
    table = cb.diagnostics.check_graph(problem, data).table
    assert (
        len(table) > 3
        and (table["given"] != "").any()
        and (table["verdict"] != "not assessed").all()
    )
    for line in table.to_dict("records"):
        given = [name for name in line["given"].split(", ") if name]
        names = [line["left"], line["right"], *given]
        precision = np.linalg.inv(np.cov([data.column(name) for name in names]))
        oracle = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
        assert line["correlation"] == pytest.approx(oracle, abs=1e-10)
        design = np.column_stack([np.ones(len(data)), *(data.column(name) for name in names[1:])])
        weights, squares, *_ = np.linalg.lstsq(design, data.column(names[0]))
        degrees = len(data) - design.shape[1]
        error = np.sqrt(squares[0] / degrees * np.linalg.inv(design.T @ design)[1, 1])
        assert line["p_value"] == pytest.approx(
            2 * stats.t.sf(abs(weights[1] / error), degrees), rel=1e-6
        )
        assert line["observations"] == 40
        if not given:
            interval = stats.pearsonr(
                data.column(names[0]), data.column(names[1])
            ).confidence_interval(0.95)
            assert (line["low"], line["high"]) == pytest.approx(tuple(interval))


def test_interval_is_fishers_with_the_separator_subtracted_from_the_observations():
    found = line_of(cb.diagnostics.check_graph(posed(DIAMOND), diamond(30, 0)), "A", "Y")
    half = stats.norm.ppf(0.975) / np.sqrt(30 - 3 - 2)
    assert np.arctanh(found["low"]) == pytest.approx(np.arctanh(found["correlation"]) - half)
    assert np.arctanh(found["high"]) == pytest.approx(np.arctanh(found["correlation"]) + half)
    single = implications._infer(0.5, 1)  # one degree of freedom: Fisher's interval is everything
    assert (single["low"], single["high"]) == (-1, 1) and single["p_value"] == pytest.approx(2 / 3)
    assert implications._infer(1.0, 1) == {
        "correlation": 1.0,
        "low": -1.0,
        "high": 1.0,
        "p_value": 0.0,
    }
    assert implications._infer(1.0, 5) == {
        "correlation": 1.0,
        "low": 1.0,
        "high": 1.0,
        "p_value": 0.0,
    }


def test_true_graph_passes_and_a_missing_edge_fails():
    """Of 20 true graphs 2 or more fail with probability 0.017; these seeds are fixed."""
    problem = posed(DIAMOND)
    verdicts = [
        cb.diagnostics.check_graph(problem, diamond(200, seed)).verdict for seed in range(20)
    ]
    assert verdicts.count("failed") <= 1 and set(verdicts) <= {"passed", "failed"}
    assert all(
        cb.diagnostics.check_graph(problem, diamond(200, seed, direct=0.8)).verdict == "failed"
        for seed in range(20)
    )


@pytest.mark.heavy
def test_many_implications_do_not_add_up_to_a_failure():
    """Of 28 true independences some p-value lies below 0.01 in a quarter of all data.

    Corrected, that is so in 1 of 100.
    """
    problem = posed("; ".join(f"{name} -> Y" for name in "ABCDEFGH"))
    checks = [
        cb.diagnostics.check_graph(
            problem, as_data(problem, dict(zip("ABCDEFGHY", columns, strict=True)))
        )
        for columns in np.random.default_rng(5).normal(size=(20, 9, 100))
    ]
    assert sum((check.table["p_value"] < 0.01).any() for check in checks) >= 2
    assert sum(check.verdict == "failed" for check in checks) <= 1 and len(checks[0].table) == 28


def test_missing_latent_cause_fails_and_the_graph_with_its_arc_passes():
    draws = np.random.default_rng(1).normal(size=(4, 400))
    columns = {"A": draws[0] + draws[3], "B": draws[1] + draws[3]}
    columns["Y"] = columns["A"] - columns["B"] + draws[2]
    without, joined = posed("A -> Y; B -> Y"), posed("A -> Y; B -> Y; A <-> B")
    check = cb.diagnostics.check_graph(without, as_data(without, columns))
    assert check.verdict == "failed"
    assert "A and B should be independent, but their correlation is 0.5" in check.text
    assert cb.diagnostics.check_graph(joined, as_data(joined, columns)).table.empty


def test_text_names_the_worst_violation_with_its_interval_and_what_was_not_tested():
    check = cb.diagnostics.check_graph(posed(DIAMOND), diamond(300, 2, direct=1.0))
    worst = check.table.iloc[0]
    interval = f"{worst['correlation']:.2f} [{worst['low']:.2f}, {worst['high']:.2f}]"
    assert (
        f"A and Y should be independent given B, C, but their partial correlation is {interval}."
        in check.text
    )
    assert "tested on 300 observations: 2; contradicted: 1." in check.text
    assert "nonlinear dependence and Verma constraints are not" in check.text
    assert (
        "missing edge or a latent common cause" in check.advice and "check it again" in check.advice
    )
    assert cb.diagnostics.check_graph(posed(DIAMOND), diamond(300, 2)).advice == ""


def test_only_the_worst_violations_are_named():
    problem = posed("; ".join(f"{name} -> Y" for name in "ABCD"))
    shared = np.random.default_rng(3).normal(size=300)
    noise = np.random.default_rng(4).normal(size=(5, 300))
    columns = {
        name: shared + (1 + 0.2 * position) * noise[position]
        for position, name in enumerate("ABCDY")
    }
    check = cb.diagnostics.check_graph(problem, as_data(problem, columns))
    assert len(check.failures) == 6 and check.text.count("should be independent") == 3
    assert check.table["correlation"].is_monotonic_decreasing
    assert "A and B should" in check.text and "C and D should" not in check.text


def test_neither_units_nor_means_matter():
    problem, data = posed(DIAMOND), diamond(100, 5, direct=0.5)
    expected = cb.diagnostics.check_graph(problem, data).table["correlation"]
    for unit, mean in [(1e-170, 0.0), (1e155, 0.0), (1.0, 1e6), (-1e3, 1e9)]:
        moved = cb.Data(data.nodes, "Y", mean + unit * data.values, data.intervened)
        assert np.allclose(
            cb.diagnostics.check_graph(problem, moved).table["correlation"], expected, atol=1e-6
        )


def test_observations_in_which_something_was_set_are_not_used():
    problem, data = posed(DIAMOND), diamond(100, 6)
    intervened = np.zeros((50, 4), bool)
    intervened[:, 0] = True
    wild = cb.Data(data.nodes, "Y", np.full((50, 4), 99.0) * np.arange(50)[:, None], intervened)
    assert cb.diagnostics.check_graph(problem, data.join(wild)).table.equals(
        cb.diagnostics.check_graph(problem, data).table
    )
    with pytest.raises(
        cb.errors.DataError, match="none of the 50 observations is without interventions"
    ):
        cb.diagnostics.check_graph(problem, wild)


def test_harmless_deviation_is_no_failure_however_many_observations_there_are():
    data = diamond(100_000, 7, direct=0.05)
    check = cb.diagnostics.check_graph(posed(DIAMOND), data)
    worst = line_of(check, "A", "Y")
    assert check.passed and worst["p_corrected"] < 1e-8 and 0.02 < worst["correlation"] < 0.1
    assert (
        cb.diagnostics.check_graph(posed(DIAMOND), data, least_correlation=0.01).verdict == "failed"
    )


def test_large_correlation_of_few_observations_is_no_failure():
    check = cb.diagnostics.check_graph(posed(DIAMOND), diamond(7, 12))
    worst = check.table.iloc[0]
    assert check.passed and abs(worst["correlation"]) > 0.3 and worst["p_corrected"] > 0.01


def test_only_experiments_can_contradict_a_graph_without_implications():
    problem = posed("A -> B -> Y; A -> Y")
    check = cb.diagnostics.check_graph(
        problem, as_data(problem, dict.fromkeys("ABY", np.arange(5.0)))
    )
    assert (
        check.table.empty
        and list(check.table) == list(implications.GRAPH_COLUMNS)
        and check.verdict == "not assessed"
    )
    assert "no observational data can contradict it by an independence" in check.text
    assert "Only experiments can" in check.advice and "<table" in check._repr_html_()


def test_too_few_observations_are_not_assessed_line_by_line():
    check = cb.diagnostics.check_graph(posed(DIAMOND), diamond(4, 8))
    assert line_of(check, "A", "Y")["reason"] == "4 observations are too few; at least 5 are needed"
    assert line_of(check, "B", "C")["verdict"] == "passed" and check.passed
    assert check.table["verdict"].tolist() == ["passed", "not assessed"]
    assert (
        "tested on 4 observations: 1; contradicted: 0; not assessed: 1 (such as: 4 observations"
        in check.text
    )
    assert cb.diagnostics.check_graph(posed(DIAMOND), diamond(1, 8)).verdict == "not assessed"


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_constant_and_collinear_columns_are_not_assessed_with_a_reason(mean):
    problem, data = posed(DIAMOND), diamond(50, 9)
    columns = {name: mean + data.column(name) for name in "ABCY"}
    check = cb.diagnostics.check_graph(
        problem, as_data(problem, columns | {"A": np.full(50, 0.1 + mean)})
    )
    assert line_of(check, "A", "Y")["reason"] == "A is constant in these observations"
    assert (
        line_of(check, "B", "C")["verdict"] != "not assessed"
    )  # a constant separator separates nothing
    check = cb.diagnostics.check_graph(
        problem, as_data(problem, columns | {"Y": 3 * columns["B"] - columns["C"] / 7})
    )
    assert line_of(check, "A", "Y")["reason"] == "Y is a combination of B, C in these observations"
    assert np.isnan(line_of(check, "A", "Y")["p_corrected"])


def test_collinear_separator_counts_as_often_as_it_varies():
    problem, data = posed(DIAMOND), diamond(40, 10)
    columns = {name: data.column(name) for name in "ABCY"}
    line = line_of(
        cb.diagnostics.check_graph(
            problem, as_data(problem, columns | {"C": 2 * columns["B"] + 1})
        ),
        "A",
        "Y",
    )
    precision = np.linalg.inv(np.cov([columns[name] for name in "AYB"]))
    oracle = -precision[0, 1] / np.sqrt(precision[0, 0] * precision[1, 1])
    t = oracle * np.sqrt(37 / (1 - oracle**2))
    assert line["correlation"] == pytest.approx(oracle) and line["p_value"] == pytest.approx(
        2 * stats.t.sf(abs(t), 37)
    )


@pytest.mark.parametrize("rows", [5, 50, 20_000])
def test_exact_combinations_are_distinguished_from_very_close_ones(rows):
    """Of any scale and mean; a deviation of a millionth is seen."""
    draws = np.random.default_rng(rows)
    for _ in range(20):
        means, scales, weights = (
            draws.normal(size=3) * 1e3,
            10 ** draws.uniform(-3, 3, 3),
            draws.normal(size=3) * 5,
        )
        given = means + scales * draws.normal(size=(rows, 3))
        exact = given @ weights + 7
        for response, is_exact in (
            (exact, True),
            (exact + 1e-6 * exact.std() * draws.normal(size=rows), False),
        ):
            scaled = implications.scale_values(np.column_stack([response, given]))
            assert implications.regress(scaled, 0, [1, 2, 3]).is_exact is is_exact


def test_curved_mechanism_is_named_as_another_cause_of_a_violation():
    problem, data = posed(DIAMOND), diamond(200, 11)
    columns = {name: data.column(name) for name in "ABCY"}
    curved = {"B": np.tanh(columns["A"] / 2), "C": np.arctan(columns["A"] / 2)}
    check = cb.diagnostics.check_graph(problem, as_data(problem, columns | curved))
    assert (
        check.verdict == "failed" and "a slightly nonlinear mechanism can cause this" in check.text
    )
    assert check.table["explained"][0] > 0.95
    linear = cb.diagnostics.check_graph(posed(DIAMOND), diamond(300, 2, direct=1.0))
    assert linear.verdict == "failed" and "slightly nonlinear" not in linear.text


@pytest.mark.parametrize(
    ("change", "error", "fault"),
    [
        (
            {"problem": cb.CausalGraph.parse(DIAMOND)},
            cb.errors.ArgumentError,
            "check_graph needs a Problem, got CausalGraph",
        ),
        ({"data": np.zeros((3, 4))}, cb.errors.DataError, "check_graph needs Data, got ndarray"),
        (
            {"problem": posed("A -> Y")},
            cb.errors.DataError,
            "the data are of A, B, C, Y .* read them for this problem",
        ),
        ({"alpha": 0}, cb.errors.ArgumentError, "alpha must lie between 0 and 1, got 0"),
        (
            {"alpha": float("nan")},
            cb.errors.ArgumentError,
            "alpha must lie between 0 and 1, got nan",
        ),
        (
            {"least_correlation": 1.5},
            cb.errors.ArgumentError,
            "least_correlation must lie between 0 and 1, got 1.5",
        ),
        (
            {"alpha": "small"},
            cb.errors.DomainError,
            "the value of 'alpha' must be a real number, got 'small'",
        ),
    ],
)
def test_wrong_inputs_are_refused(change, error, fault):
    options = {"problem": posed(DIAMOND), "data": diamond(10, 0)} | change
    with pytest.raises(error, match=fault):
        cb.diagnostics.check_graph(options.pop("problem"), options.pop("data"), **options)
