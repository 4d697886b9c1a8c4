"""Linear-Gaussian networks: ecoli70, and any file in its layout.

Internals: the network is read from its file without a system.
"""

import json
import time

import numpy as np
import pytest
from helpers import oracles
from scipy import optimize

import causal_bo_ppl as cb
from causal_bo_ppl.models import ecoli70

load = cb.models.load


def effect(system, *interventions):
    return np.asarray(system.effect(system.problem.queries(list(interventions))))


@pytest.mark.parametrize("max_size, sets, value, members", [
    (2, 36, 0.865054, {"eutG", "lacY"}),
    (3, 92, 0.656607, {"asnA", "eutG", "lacY"}),
    (5, 218, 0.336196, {"asnA", "cspG", "eutG", "fixC", "lacY"}),
])  # fmt: skip
def test_b1583_without_parents_has_the_published_optimum(max_size, sets, value, members):
    system = load("ecoli70", target="b1583", parents=False, max_size=max_size)
    assert len(system.problem.sets) == sets
    assert (
        system.optimum.value == pytest.approx(value, abs=1e-5)
        and set(system.optimum.intervention) == members
    )
    names = {"asnA", "b1191", "cspG", "eutG", "fixC", "lacY", "sucA", "ygcE"}
    assert set(system.problem.manipulable) == names and len(system.problem.graph.nodes) == 46


def test_yaem_has_the_published_optimum_on_its_parents():
    system = load("ecoli70", target="yaeM")
    assert system.optimum.value == pytest.approx(-4.587211, abs=1e-6)
    assert set(system.optimum.intervention) == {"cspG", "lacA", "lacZ"}
    ancestral = system.problem.graph.ancestral("yaeM")
    assert len(ancestral.nodes) == 10 and len(ancestral.directed) == 16
    assert len(load("ecoli70", target="b1583").problem.graph.ancestral("b1583").directed) == 19


def test_linear_optimum_agrees_with_linear_programming():
    """Each set is a linear program over its box; slopes come from dense algebra."""
    system = load("ecoli70", target="b1583", parents=False, max_size=5)
    _, sem = ecoli70.read_network(ecoli70.FILE)
    graph, values = system.problem.graph, []
    target = graph.index("b1583")
    for members in system.problem.sets:
        columns = [graph.index(name) for name in members]
        origin = oracles.dense_effect(sem.weights, sem.intercepts, target, columns, 0.0)
        slopes = [
            oracles.dense_effect(
                sem.weights, sem.intercepts, target, columns, np.eye(len(members))[i]
            )
            - origin
            for i in range(len(members))
        ]
        solved = optimize.linprog(slopes, bounds=[system.problem.domains[name] for name in members])
        values.append(origin + solved.fun)
    assert min(values) == pytest.approx(system.optimum.value, abs=1e-10)


@pytest.mark.slow
def test_optimum_over_more_vertices_than_can_be_listed_is_found():
    system = load("ecoli70", target="ftsJ", max_size=8)
    assert "1,483,640 vertices" in system.optimum.how
    smaller = load("ecoli70", target="ftsJ", max_size=3)
    corners = smaller.problem.vertices()
    assert smaller.optimum.value == pytest.approx(float(smaller.effect(corners).min()), abs=1e-12)
    assert system.optimum.value <= smaller.optimum.value


@pytest.mark.heavy
def test_any_gene_with_causes_may_be_the_target():
    graph = load("ecoli70").problem.graph
    for target in graph.nodes:
        if graph.ancestors(target):
            system = load("ecoli70", target=target, max_size=1)
            assert set(system.problem.manipulable) == set(graph.ancestors(target))
    assert load("ecoli70", target="ftsJ", parents=False, max_size=2).problem.target == "ftsJ"
    with pytest.raises(cb.errors.ArgumentError, match="no causes besides its parents"):
        load("ecoli70", target="cspA", parents=False)
    with pytest.raises(cb.errors.ArgumentError, match="'b1191' has no causes to set"):
        load("ecoli70", target="b1191")
    with pytest.raises(cb.errors.GraphError, match="unknown target 'yaem'; did you mean 'yaeM'"):
        load("ecoli70", target="yaem")


def test_hundred_thousand_queries_are_one_call_and_the_optimum_is_quick():
    load("ecoli70", target="b1583", parents=False, max_size=5).optimum  # noqa: B018 (compiles)
    start = time.perf_counter()
    system = load("ecoli70", target="b1583", parents=False, max_size=5)
    assert system.optimum.value < 0.34
    assert time.perf_counter() - start < 2
    queries = system.problem.sobol(460)[:100_000]
    calls = []
    watched = cb.CausalSystem(
        "w",
        system.problem,
        system.model,
        lambda q: calls.append(len(q)) or system.response(q),
        True,
        "",
    )
    watched.effect(queries)
    start = time.perf_counter()
    found = watched.effect(queries)
    assert (
        time.perf_counter() - start < 5
        and found.shape == (100_000,)
        and calls == [100_000, 100_000]
    )


NETWORK = {
    "nodes": ["A", "B"],
    "arcs": [["A", "B"]],
    "cpds": {
        "A": {"coefficients": {"(Intercept)": [1.0]}, "variance": [4.0], "parents": []},
        "B": {
            "coefficients": {"(Intercept)": [0.5], "A": [2.0]},
            "variance": [1.0],
            "parents": ["A"],
        },
    },
}


def write(tmp_path, **changes):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(NETWORK | changes))
    return path


def test_any_network_in_the_same_layout_is_read(tmp_path):
    system = cb.models.gaussian_network(write(tmp_path), target="B")
    assert system.problem.domains == {"A": (-3.0, 5.0)} and system.problem.sets == (("A",),)
    assert effect(system, {"A": -3.0}) == pytest.approx(
        [-5.5]
    ) and system.optimum.value == pytest.approx(-5.5)
    with pytest.raises(cb.errors.GraphError, match="unknown variable 'C'"):
        cb.models.gaussian_network(write(tmp_path, nodes=["A", "B"]), target="B", manipulable=["C"])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"arcs": []},
            cb.errors.ModelError,
            "variable 'B': its coefficients are .'A'., its arcs come from none",
        ),
        ({"arcs": [["A", "B"], ["B", "A"]]}, cb.errors.GraphError, "cycle"),
        ({"nodes": "AB"}, cb.errors.ModelError, "nodes and arcs must be lists"),
        ({"arcs": ["AB"]}, cb.errors.GraphError, "an edge is a pair of names"),
        ({"cpds": ["A", "B"]}, cb.errors.ModelError, "cpds must map names"),
        (
            {"cpds": NETWORK["cpds"] | {"A": NETWORK["cpds"]["A"] | {"parents": ["B"]}}},
            cb.errors.ModelError,
            "its parents are .'B'., its arcs come from none",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": {"coefficients": {}, "variance": [10**400]}}},
            cb.errors.ModelError,
            "one finite number",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": NETWORK["cpds"]["A"] | {"parents": None}}},
            cb.errors.ModelError,
            "its parents are None",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"B": NETWORK["cpds"]["B"] | {"parents": "A"}}},
            cb.errors.ModelError,
            "its parents are 'A'",
        ),
        ({"nodes": ["A", "B", "C"]}, cb.errors.ModelError, "different variables: C"),
        ({"cpds": None}, cb.errors.ModelError, "is not a network file"),
        (
            {"cpds": NETWORK["cpds"] | {"A": 3}},
            cb.errors.ModelError,
            "variable 'A': a cpd needs coefficients",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": {"coefficients": {}, "variance": [0.0]}}},
            cb.errors.ModelError,
            "must be positive",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": {"coefficients": {}, "variance": [-1.0]}}},
            cb.errors.ModelError,
            "must be positive",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": {"coefficients": {}, "variance": ["1"]}}},
            cb.errors.ModelError,
            "one finite number",
        ),
        (
            {"cpds": NETWORK["cpds"] | {"A": {"coefficients": {}, "variance": [np.nan]}}},
            cb.errors.ModelError,
            "the number NaN",
        ),
    ],
)
def test_network_file_that_contradicts_itself_is_refused(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        cb.models.gaussian_network(write(tmp_path, **changes), target="B")


def test_file_that_is_no_network_is_refused_with_its_path(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(NETWORK)[:-1] + ', "arcs": []}')
    with pytest.raises(cb.errors.ModelError, match="gives 'arcs' more than once"):
        cb.models.gaussian_network(path, target="B")
    path.write_text("{not json")
    with pytest.raises(cb.errors.ModelError, match="net.json is not a network file"):
        cb.models.gaussian_network(path, target="B")
