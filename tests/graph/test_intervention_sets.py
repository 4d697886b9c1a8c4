"""Intervention sets: minimal and possibly optimal ones against brute force, and their number.

Internals: subsets are counted and enumerated without a problem.
"""

import time
from itertools import islice

import numpy as np
import pytest
from helpers import oracles

import causal_bo_ppl as cb
from causal_bo_ppl.graph import intervention_sets as exploration

parse = cb.CausalGraph.parse
SYNTHETIC = "F -> A -> E -> Y; B -> C -> D -> Y; C -> E; A <-> Y; B <-> Y"
PUBLISHED = [
    ("Z -> X -> Y; X <-> Y", None, ["X", "Z"], 3),
    ("Z -> X -> Y; W -> Y; X <-> W; Z <-> Y", None, ["", "W", "WX"], 6),
    (
        "Z -> X -> Y; W -> Y; X <-> W; Z <-> Y; S -> W; T -> X; T -> Y",
        None,
        ["ST", "TW", "TWX"],
        18,
    ),
    ("X -> Z -> Y; X <-> Y", None, ["", "Z"], 3),
    (SYNTHETIC, None, ["A", "E", "F", "AD", "DE", "DF", "CDF"], 22),
    (SYNTHETIC, ["B", "D", "E"], ["", "B", "D", "E", "BD", "DE"], 7),
]


def as_sets(found):
    return {frozenset(members) for members in found}


@pytest.mark.parametrize(("text", "manipulable", "expected", "minimal"), PUBLISHED)
def test_published_sets_are_found(text, manipulable, expected, minimal):
    found = cb.graph.pomis(parse(text), "Y", manipulable)
    assert as_sets(found) == as_sets(expected) and len(found) == len(expected)
    assert len(cb.graph.mis(parse(text), "Y", manipulable)) == minimal


def test_healthcare_has_four_minimal_sets_all_possibly_optimal():
    problem = cb.models.load("healthcare").problem
    expected = as_sets([(), ("aspirin",), ("statin",), ("aspirin", "statin")])
    assert as_sets(cb.graph.mis(problem.graph, "PSA", ("aspirin", "statin"))) == expected
    assert as_sets(cb.graph.pomis(problem.graph, "PSA", ("aspirin", "statin"))) == expected


def test_sets_agree_with_the_definitions_on_random_graphs():
    draws = np.random.default_rng(2018)
    sizes = []
    for _ in range(400):
        nodes, directed, bidirected = oracles.random_admg(draws)
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes)
        target = str(draws.choice(nodes))
        manipulable = [name for name in nodes if name != target and draws.uniform() < 0.75]
        given = nodes, directed, bidirected, target, manipulable
        minimal, optimal = (
            cb.graph.mis(graph, target, manipulable),
            cb.graph.pomis(graph, target, manipulable),
        )
        assert as_sets(minimal) == oracles.minimal_sets(*given), given
        assert as_sets(optimal) == oracles.possibly_optimal_sets(*given), given
        assert as_sets(optimal) <= as_sets(minimal)
        sizes.append(len(optimal))
    assert max(sizes) >= 6  # not only trivial cases


def test_sets_come_in_graph_order_smallest_first():
    graph = parse(SYNTHETIC)
    found = cb.graph.mis(graph, "Y")
    assert all(members == graph.require(members) for members in found)
    assert [len(members) for members in found] == sorted(len(members) for members in found)
    assert list(found) == sorted(found, key=lambda s: (len(s), [graph.index(n) for n in s]))


def test_no_set_is_met_twice():
    draws = np.random.default_rng(7)
    for _ in range(100):
        nodes, directed, bidirected = oracles.random_admg(draws)
        graph = cb.CausalGraph.from_edges(directed, bidirected, nodes=nodes).ancestral(nodes[-1])
        network = exploration._Network(graph, nodes[-1])
        for found in (list(network.minimal()), list(network.possibly_optimal())):
            assert len(found) == len(set(found)), graph


def test_possibly_optimal_sets_do_not_need_all_subsets():
    """2^60 subsets, 1 POMIS: a fully observed graph has only the parents of the target."""
    names = [f"V{i}" for i in range(60)]
    graph = cb.CausalGraph.from_edges(
        [*zip(names, names[1:], strict=False), (names[0], "Y"), (names[-1], "Y")]
    )
    start = time.perf_counter()
    assert cb.graph.pomis(graph, "Y") == (("V0", "V59"),)
    assert time.perf_counter() - start < 5


def test_subsets_are_counted_before_and_made_lazily():
    names = [f"V{i}" for i in range(45)]
    assert exploration.count_subsets(45) == 35_184_372_088_831
    assert exploration.count_subsets(45, 2) == 1035 and exploration.count_subsets(45, 3) == 15_225
    with pytest.raises(
        cb.errors.ExplorationError, match=r"35,184,372,088,831 intervention sets.*max_size=2: 1,035"
    ):
        exploration.subsets(names)
    with pytest.raises(
        cb.errors.ExplorationError, match="1,385,979 intervention sets of size up to 5"
    ):
        exploration.subsets(names, 5)
    assert list(islice(exploration.subsets(names, 2), 46))[-1] == ("V0", "V1")
    assert len(list(exploration.subsets(names[:12]))) == 4095
    with pytest.raises(cb.errors.ExplorationError, match="13 manipulable variables"):
        exploration.subsets(names[:13])
    with pytest.raises(cb.errors.ExplorationError, match="at least 1, got 0"):
        exploration.subsets(names, 0)


def test_too_many_minimal_sets_are_refused_while_counting():
    sources = cb.CausalGraph.from_edges([(f"V{i:02}", "Y") for i in range(17)])
    with pytest.raises(
        cb.errors.ExplorationError,
        match="at least 131,072 MIS .*; give a largest size .*at most 100,000",
    ):
        cb.graph.mis(sources, "Y")
    grand = cb.CausalGraph.from_edges([(f"V{i:02}", "M") for i in range(18)] + [("M", "Y")])
    start = time.perf_counter()
    with pytest.raises(
        cb.errors.ExplorationError, match="there are more than 100,000 MIS; give a largest size"
    ):
        cb.graph.mis(grand, "Y")
    assert time.perf_counter() - start < 20


def test_pomis_of_a_wide_graph_does_not_pay_for_its_minimal_sets():
    names = [f"V{i:02}" for i in range(40)]
    graph = cb.CausalGraph.from_edges([(name, "Y") for name in names])
    start = time.perf_counter()
    assert cb.Problem(graph, "Y", domains=dict.fromkeys(names, (0, 1)), sets="pomis").sets == (
        tuple(names),
    )
    assert time.perf_counter() - start < 5


def test_target_or_unknown_name_among_the_manipulable_is_refused():
    graph = parse("X -> Y")
    with pytest.raises(cb.errors.GraphError, match="target 'Y' cannot be manipulated"):
        cb.graph.mis(graph, "Y", ["X", "Y"])
    with pytest.raises(cb.errors.GraphError, match="unknown variable 'W'"):
        cb.graph.pomis(graph, "Y", ["W"])
    with pytest.raises(cb.errors.GraphError, match="unknown target 'U'"):
        cb.graph.pomis(graph, "U")


def test_pomis_warns_where_a_domain_may_not_cover_induced_values(chain_graph):
    """The chain: {Z} alone reaches 1.3, the dropped {X} 5.2."""
    narrow, wide = {"X": (-5, 5), "Z": (-1, 1)}, {"X": (-5, 5), "Z": (-5, 20)}
    with pytest.warns(cb.CausalBOWarning, match="uncertain for Z when X is set") as caught:
        cb.Problem(chain_graph, "Y", domains=narrow, sets="pomis")
    assert caught[0].filename == __file__  # it points at the caller
    cb.Problem(chain_graph, "Y", domains=wide, sets="pomis")
    cb.Problem(chain_graph, "Y", domains=narrow, sets="mis")
    cb.Problem(chain_graph, "Y", domains=narrow, sets="pomis", known={("X", "Z"): 0.1})


def test_pomis_does_not_warn_when_it_drops_nothing():
    graph = parse("Z -> X -> Y; X <-> Y")
    cb.Problem(graph, "Y", domains={"Z": (-9, 9), "X": (-1, 1)}, sets="pomis")
