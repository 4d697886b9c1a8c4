"""Verdicts, textbook formulas, names, tables and refusals."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.identified_cases import NAPKIN, TIAN, TWO_COVARIATES, identify, require_right
from helpers.oracles import (
    BinarySCM,
    enumerate_expression,
)
from y0.dsl import Expression, Fraction, P, Product, Sum, Variable

import causal_bo_ppl as cb

W, X, Y, Z, Z1, Z2 = map(Variable, ("W", "X", "Y", "Z", "Z1", "Z2"))
TEXTBOOK = {
    "back-door": ("Z -> X; Z -> Y; X -> Y", Sum[Z](P(Y | (X, Z)) * P(Z)), "y0"),
    "front-door": ("X -> Z -> Y; X <-> Y", Sum[Z](P(Z | X) * Sum[X](P(Y | (X, Z)) * P(X))), "y0"),
    "napkin": (NAPKIN, Sum[W](P(X, Y | (Z, W)) * P(W)) / Sum[W](P(X | (Z, W)) * P(W)), "rederived"),
    "two covariates": (TWO_COVARIATES, Sum[Z1, Z2](P(Y | (X, Z1, Z2)) * P(Z1, Z2)), "y0"),
}


@pytest.mark.parametrize("case", TEXTBOOK)
def test_textbook_graph_gives_its_known_formula(case):
    text, formula, route = TEXTBOOK[case]
    graph, found = cb.CausalGraph.parse(text), identify(text)
    assert found.identifiable and found.route == route and isinstance(found.estimand, Expression)
    scm = BinarySCM(np.random.default_rng(3), graph.nodes, graph.directed, graph.bidirected)
    joint = scm.joint()
    ours, theirs = (enumerate_expression(e, joint, graph.nodes) for e in (found.estimand, formula))
    np.testing.assert_allclose(ours + 0 * theirs, theirs, atol=1e-12)
    assert cb.diagnostics.check_estimand(graph, "Y", "X", formula).passed


def test_tians_graph_is_identified_though_y0_is_wrong_on_it():
    graph, found = cb.CausalGraph.parse(TIAN), identify(TIAN)
    assert found.route == "rederived"
    assert (
        require_right(
            np.random.default_rng(4), graph.nodes, graph.directed, graph.bidirected, ("X",), "Y"
        )
        == "rederived"
    )


def test_verma_graphs_are_identified():
    two = "X -> V2 -> V3 -> V4 -> Y; X <-> V3; V2 <-> V4; V3 <-> Y"
    three = "X -> V2 -> V3 -> V4 -> Y; X <-> Y; X <-> V3; V2 <-> V4"
    for text in two, three:
        graph = cb.CausalGraph.parse(text)
        require_right(
            np.random.default_rng(5), graph.nodes, graph.directed, graph.bidirected, ("X",), "Y"
        )


@pytest.mark.parametrize(
    "text", ["X -> Y; X <-> Y", "Z -> X -> Y; X <-> Y"], ids=["bow", "instrument"]
)
def test_bow_and_instrument_are_reported_with_their_hedge(text):
    found = identify(text)
    assert (
        not found.identifiable
        and not found.verified
        and found.estimand is None
        and found.route == "none"
    )
    assert found.hedge == (("X", "Y"), ("Y",))
    with pytest.raises(cb.errors.NotIdentifiable, match="cannot be learned"):
        found.parameters("estimand")
    with pytest.raises(
        cb.errors.NotIdentifiable, match=r"E\[Y \| do\(X\)\] cannot be learned .* join \{X, Y\}"
    ) as caught:
        found.evaluate(np.eye(len(found.graph.nodes)))
    assert (caught.value.target, caught.value.intervened) == ("Y", ("X",))
    assert caught.value.districts == (("X", "Y"), ("Y",))


def test_confounded_toy_is_front_door_and_all_of_synthetic_is_identified():
    toy = cb.identify(cb.models.load("toy", variant="confounded").problem)
    assert toy["X"].text == "sum_{Z} [sum_{X} [P(Y | X, Z) P(X)] P(Z | X)]"
    system = cb.models.load("synthetic")
    ids = cb.identify(system.problem)
    assert list(ids) == list(system.problem.sets) and all(
        found.identifiable for found in ids.values()
    )
    draws = np.random.default_rng(6)
    graph = system.problem.graph
    for members in ids:
        require_right(
            draws, graph.nodes, graph.directed, graph.bidirected, members, system.problem.target
        )


@pytest.mark.parametrize(
    "names", [("P", "Q", "PP"), ("v2", "v1", "v0"), ("a b", "x-y", "é{_$"), ("1", "2", "3")]
)
def test_any_name_works_and_comes_back(names):
    x, z, y = names
    graph = cb.CausalGraph.from_edges([(x, z), (z, y)], [(x, y)])
    found = cb.identify(graph, y, [x])[x]
    assert (
        found.identifiable
        and found.text == f"sum_{{{z}}} [sum_{{{x}}} [P({y} | {x}, {z}) P({x})] P({z} | {x})]"
    )
    assert {v.name for v in found.estimand.get_variables()} == set(names)
    assert found.evaluate(np.eye(3) + 0.5) == {x: pytest.approx(1 / 3 * 0.25, rel=1e-6)}


def test_latex_escapes_names_and_brackets_inner_sums():
    graph = cb.CausalGraph.from_edges([("x_1", "Z"), ("Z", "50% $")], [("x_1", "50% $")])
    latex = cb.identify(graph, "50% $", ["x_1"])["x_1"].latex
    assert (
        r"\mathit{x\_1}" in latex
        and r"\mathit{50\%\ \$}" in latex
        and r"\Bigl( \sum_{\mathit{x\_1}}" in latex
    )
    assert identify(NAPKIN).latex.count(r"\frac{") == 1


@pytest.mark.parametrize(
    ("arguments", "error", "fault"),
    [
        (
            ("X -> Y", "Y", ["X"]),
            cb.errors.GraphError,
            "needs a Problem or a CausalGraph, got 'X -> Y'",
        ),
        (("graph", "Q", ["X"]), cb.errors.GraphError, "unknown target 'Q'"),
        (("graph", "X", [()]), cb.errors.GraphError, "'X' has no causes"),
        (("graph", "Y", ["Xx"]), cb.errors.GraphError, "unknown variable 'Xx'; did you mean 'X'"),
        (("graph", "Y", [("X", "Y")]), cb.errors.DomainError, "target 'Y' stands in the set"),
        (
            ("graph", "Y", ["W"]),
            cb.errors.DomainError,
            "W cannot affect 'Y', whose causes are X, Z",
        ),
        (("graph", "Y", []), cb.errors.ExplorationError, "no intervention set to identify"),
        (("graph", "Y", "X"), cb.errors.ExplorationError, 'sets must be "mis"'),
        (("graph", "Y", True), cb.errors.ExplorationError, 'sets must be "mis"'),
        (("graph", "Y"), cb.errors.DomainError, "a graph with its target and sets"),
        (("problem", "Y", ["X"]), cb.errors.DomainError, "give the problem alone"),
    ],
)
def test_bad_question_is_refused(arguments, error, fault, make_problem):
    graph = cb.CausalGraph.parse("X -> Z -> Y -> W")
    things = {"graph": graph, "problem": make_problem()}
    with pytest.raises(error, match=fault):
        cb.identify(things.get(arguments[0], arguments[0]), *arguments[1:])


def test_sets_are_found_by_any_order_and_strange_ones_are_refused():
    ids = cb.identify(cb.CausalGraph.parse("X -> Z -> Y; X -> Y"), "Y", 2)
    assert (
        list(ids) == [("X",), ("Z",), ("X", "Z")]
        and ids["Z", "X"] is ids[("X", "Z")] is ids[["X", "Z"]]
    )
    assert (
        ("Z", "X") in ids and "X" in ids and () not in ids and 3 not in ids and [["X"]] not in ids
    )
    assert ids.get("X") is ids["X"] and ids.get((), "none") == "none" and ids.get("W") is None
    with pytest.raises(cb.errors.ExplorationError, match=r"\{\} is not among the 3 sets"):
        ids[()]
    with pytest.raises(cb.errors.GraphError, match="unknown variable 'W'"):
        ids["W"]
    assert list(cb.identify(ids.graph, "Y", "mis")) == [(), ("X",), ("Z",), ("X", "Z")]
    assert list(cb.identify(ids.graph, "Y", "pomis")) == list(cb.graph.pomis(ids.graph, "Y"))


def test_problem_with_a_hedge_is_refused_unless_it_asks_to_drop_it(make_problem):
    graph = cb.CausalGraph.parse("X -> Z -> Y; X <-> Z; W -> Y")
    domains = {"X": (-1, 1), "Z": (-1, 1), "W": (-1, 1)}
    ids = cb.identify(make_problem(graph, domains=domains, sets=1))
    assert (
        ids.unidentified == (("X",),) and ids.dropped == () and set(ids.usable) == {("Z",), ("W",)}
    )
    assert "; not: {X}" in repr(ids)
    for refused in ids.require_usable, ids.parameters:
        with pytest.raises(
            cb.errors.NotIdentifiable, match=r"do\(X\).*\{X, Z\}.*identifiable_only=True"
        ):
            refused()
    kept = cb.identify(make_problem(graph, domains=domains, sets=1, identifiable_only=True))
    assert kept.require_usable() == kept.usable == ids.usable and kept.dropped == (("X",),)
    assert kept.parameters("structural", intercepts=False).names == ("b[W->Y]", "b[Z->Y]")
    assert "dropped: {X}" in repr(kept)
    nothing = cb.identify(
        cb.CausalGraph.parse("X -> Y; X <-> Y"), "Y", ["X"], identifiable_only=True
    )
    with pytest.raises(
        cb.errors.NotIdentifiable, match="no other set of this problem can be learned either"
    ):
        nothing.require_usable()


def test_error_of_a_hedge_survives_a_journey_to_another_process():
    import copy

    error = identify("X -> Y; X <-> Y").not_identifiable()
    again = copy.copy(error)  # by the same protocol as between processes
    assert str(again) == str(error) and again.districts == error.districts and again.target == "Y"


def test_results_are_tables_for_people():
    graph = cb.CausalGraph.from_edges([("X<b>", "Y"), ("Z", "Y")], [("X<b>", "Y")])
    ids = cb.identify(graph, "Y", ["X<b>", "Z", ()], linear=True)
    frame = ids.to_frame()
    assert frame.index.tolist() == ["(nothing)", "X<b>", "Z"]
    assert frame["identifiable"].tolist() == [True, False, True] and frame["route"].tolist() == [
        "y0",
        "none",
        "y0",
    ]
    assert (
        frame.loc["X<b>", "hedge"] == "{Y} in {X<b>, Y}"
        and "not identified" in frame.loc["X<b>", "linearity"]
    )
    assert frame.loc["Z", "parameters"] == "b[Z->Y]"
    assert "X&lt;b&gt;" in ids._repr_html_() and "<b>" not in ids._repr_html_().replace("<b>(", "")
    assert repr(ids["Z"]).endswith("[y0, verified]") and "not identifiable" in repr(ids["X<b>"])
    assert (
        "random linear-Gaussian models" in ids["Z"].verification and ids["X<b>"].verification == ""
    )
    assert (
        ids["Z"]._repr_latex_().startswith("$")
        and r"\text{is not identifiable}" in ids["X<b>"]._repr_latex_()
    )
    check = cb.diagnostics.check_estimand(graph, "Y", "Z", P(Y | Z))
    assert "<table" in check._repr_html_() and repr(check).startswith("P(Y | do(Z)) = P(Y | Z): ")


def test_sets_whose_names_hold_commas_keep_their_rows():
    graph = cb.CausalGraph.from_edges([("A", "Y"), ("B", "Y"), ("A, B", "Y")])
    frame = cb.identify(graph, "Y", [("A", "B"), "A, B"]).to_frame()
    assert sorted(frame.index) == ['"A, B"', "A, B"]


def test_text_of_a_ratio_ends_where_the_ratio_ends():
    assert identify(NAPKIN).text == (
        "sum_{Z} [[(sum_{W} [P(Y | W, Z, X) P(X | W, Z) P(W)]) / "
        "(sum_{W} [P(X | W, Z) P(W)])] P(Z)]"
    )


def test_expressions_are_y0s_own_and_nothing_else():
    def walk(part):
        assert type(part).__module__ == "y0.dsl"
        for inner in getattr(part, "expressions", ()):
            walk(inner)
        for name in "expression", "numerator", "denominator":
            if hasattr(part, name):
                walk(getattr(part, name))

    found = identify(TIAN).estimand
    walk(found)
    assert isinstance(found, Sum | Fraction | Product) and found.to_latex() and found.to_y0()


VERMA = "X -> V2 -> V3 -> V4 -> Y; X <-> V3; V2 <-> V4; V3 <-> Y"
PROGRAM = f"""
import json, causal_bo_ppl as cb
texts = {[NAPKIN, TIAN, TWO_COVARIATES, VERMA]!r}
found = [cb.identify(cb.CausalGraph.parse(text), "Y", ["X"])["X"] for text in texts]
found += cb.identify(cb.models.load("synthetic").problem).values()  # several topological orders
print(json.dumps([(one.text, one.latex, one.error) for one in found]))
"""


@pytest.mark.slow
def test_text_and_numbers_do_not_depend_on_the_hash_seed():
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in "01"
    ]
    first, other = [json.loads(run.communicate()[0]) for run in runs]
    assert len(first) > 8 and other == first


def test_set_is_found_by_its_label_with_or_without_spaces():
    graph = cb.CausalGraph.from_edges([("s5", "y"), ("bp", "y"), ("a, b", "y"), ("a", "y")])
    ids = cb.identify(
        graph, "y", [(), ("bp",), ("bp", "s5"), ("a, b",), ("a, b", "bp"), ("a", "bp")]
    )
    assert ids["bp,s5"] is ids["s5 , bp"] is ids["bp", "s5"] and "bp,s5" in ids
    assert ids["bp"].intervened == ("bp",) and ids.get("bp, s5") is ids["bp,s5"]
    assert ids["a, b"].intervened == ("a, b",)  # one variable of that name
    for label, members in zip(ids.to_frame().index, ids, strict=True):
        assert ids[label].intervened == members and label in ids
    with pytest.raises(cb.errors.GraphError, match="unknown variable 's6'"):
        ids["bp,s6"]
    with pytest.raises(cb.errors.ExplorationError, match="{a, s5} is not among the 6 sets"):
        ids["a,s5"]
    assert "bp,s6" not in ids and "a,s5" not in ids
