"""Graphs of other tools: dagitty, DOT, GML, lavaan, adjacency tables and JSON.

Internals: random texts are given to the reader of all notations, which public functions call with
a file.
"""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from helpers import oracles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import causal_bo_ppl as cb
from causal_bo_ppl.graph.admg import build_graph, read_graph_text
from causal_bo_ppl.graph.formats import recognize

Graph = cb.CausalGraph
FORMATS = ("dagitty", "dot", "gml", "lavaan", "json")
SPELLINGS = {
    "dagitty": ["body mass", 'the "x"', "дом", "β", "node", "a;b", "a,b", "-", "dag", "x{y}", "#1"],
    "lavaan": ["x.1", "дом", "β_2", "ÿ", "中文", "Ab", "a_b", ".hidden", "NA1", "start", "c"],
}
SPELLINGS |= {
    "dot": SPELLINGS["dagitty"],
    "gml": [*SPELLINGS["dagitty"], "a\\b", "x&amp;y", "\\"],
    "json": [*SPELLINGS["dagitty"], "a\\b", "<b>", "=cmd"],
}


def random_graph(seed, notation):
    draws = np.random.default_rng(seed)
    nodes, directed, bidirected = oracles.random_admg(draws, 7)
    spellings = SPELLINGS[notation]
    chosen = draws.permutation(len(spellings))[: len(nodes)] if seed % 2 else []
    names = dict(zip(nodes, (spellings[each] for each in chosen), strict=False))
    names = {name: names.get(name, name) for name in nodes}
    return Graph(
        [names[name] for name in nodes],
        [(names[a], names[b]) for a, b in directed],
        [(names[a], names[b]) for a, b in bidirected],
    )


def round_trips(seeds, notation):
    for seed in seeds:
        graph = random_graph(seed, notation)
        text = getattr(graph, f"to_{notation}")()
        assert getattr(Graph, f"from_{notation}")(text) == graph, text
        # A text of lavaan may consist of names and variances that are comments elsewhere.
        assert recognize(text) == notation and build_graph(read_graph_text(text)) == graph, text


@pytest.mark.parametrize("notation", FORMATS)
def test_a_graph_is_read_back_from_every_notation(notation):
    round_trips(range(100), notation)


@pytest.mark.slow
@pytest.mark.parametrize("notation", FORMATS)
def test_two_thousand_graphs_are_read_back_from_every_notation(notation):
    round_trips(range(2_000), notation)


@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_graphs_without_latent_causes_are_read_back_from_tables(count):
    for seed in range(count):
        graph = random_graph(seed, "json")
        graph = Graph(graph.nodes, graph.directed)
        table = graph.to_adjacency()
        assert Graph.from_adjacency(table) == graph
        assert Graph.from_adjacency(table.to_csv()) == graph
        assert table.loc[list(graph.nodes)].to_numpy().sum() == len(graph.directed)


def test_networkx_reads_our_gml_and_we_read_its():
    for seed in range(50):
        graph = random_graph(seed, "gml")
        read = nx.parse_gml(graph.to_gml(), destringizer=None)
        assert Graph.from_networkx(read) == graph
        plain = nx.DiGraph(graph.directed)
        plain.add_nodes_from(graph.nodes)
        text = "\n".join(nx.generate_gml(plain))
        assert Graph.from_gml(text) == Graph(graph.nodes, graph.directed)


DAGITTY = """dag {
bb="-3.1,-2.5,3.1,2.2"
"soil type" [latent,pos="-0.5,-1.2"]
crop [outcome,pos="1.2,0.3"]
feed [exposure,pos="-1.8,0.4"]
nitrogen [pos="0.1,0.4"]
water [exposure,pos="-1.8,1.5"]
"soil type" -> crop
"soil type" -> feed [pos="-1.0,-0.6"]
feed -> nitrogen
nitrogen -> crop
water -> crop
water -> nitrogen
}
"""


def test_the_text_of_dagitty_net_is_read_with_its_latent_variable_projected():
    expected = "feed -> nitrogen -> crop; water -> nitrogen; water -> crop; feed <-> crop"
    assert Graph.from_dagitty(DAGITTY) == Graph.parse(expected)
    said = read_graph_text(DAGITTY)
    assert said.exposures == ("feed", "water") and said.outcomes == ("crop",)
    assert said.latent == ("soil type",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dag{ {a b} -> c -> {d e} }", "a -> c; b -> c; c -> d; c -> e"),
        ("dag{a<-b;c<->a; c}", "b -> a; c; a <-> c"),
        ("DAG g { x[e] y[o] x -> y [beta=0.5] }", "x -> y"),
        ("digraph G {\n // a comment\n rankdir=LR; node [shape=box]\n a -> b\n}", "a -> b"),
        ("strict digraph { a -> b [dir=back]; b -> c [label=<<b>x</b>>] }", "b -> a; b -> c"),
        ('digraph { U [label="hidden", observed=no]; U -> {x y} [style=dashed]; x -> y }',
         "x -> y; x <-> y"),
        ("digraph { subgraph c_1 { label=us; a; b } edge [dir=both] a -> b }", "a; b; a <-> b"),
        ("digraph { subgraph { edge [dir=both]; a -> b } a -> b -> c }", "a -> b -> c; a <-> b"),
        ('graph [ directed 1 node [ id "U" label "hidden" observed "no" ] node [ id "x" ] '
         'node [ id "y" ] edge [ source "U" target "x" ] edge [ target "y" source "U" ] ]',
         "x; y; x <-> y"),
        ("# ours\ny ~ a*x1 + start(0.5)*x2 +\n   x3   ! more\n x1 ~~ x2; y ~ 1\n ind := a*b",
         "x1 -> y; x2 -> y; x3 -> y; x1 <-> x2"),
        ("y + z ~ x\n x ~~ v*x\n y ~~ 0*z\n w ~ 0*x", "x -> y; x -> z; w"),
        ('{"nodes": ["x", "y", "u"], "directed": [["u", "x"], ["u", "y"]], "latent": ["u"]}',
         "x; y; x <-> y"),
        (",x,y\nx,0,1\ny,0,0\n", "x -> y"),
        ("x -> y  # our own ~ notation\nx <-> y", "x -> y; x <-> y"),
    ],
)  # fmt: skip
def test_texts_of_other_tools_mean_what_they_mean_there(text, expected, tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    assert Graph.read(path) == Graph.parse(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mag { X <-> Z }", "line 1 of the dagitty text: 'mag' is not read: .* ancestral"),
        ("dag { X -- Y }", "X -- Y has no known direction"),
        ("dag {\n X -> Y\n X @-> Y\n}", "line 3 .* X @-> Y has no known direction"),
        ("dag { body mass -> Y }", "'mass' follows another name; write a semicolon .* quotes"),
        ("dag { X -> Y Z -> Y }", "'Z' follows another name"),
        ("dag { X [latnet]; X -> Y }", "the attribute latnet=1 of 'X' is not understood"),
        ("dag { X [selected]; Y -> X }", "'X' is marked as selected"),
        ("dag { X -> Y", "expected the name of a variable, found 'the end of the text'"),
        ("dag { X -> Y } Z", "expected nothing after the closing"),
        ("dag { X -> }", "expected the name of a variable, found '}'"),
        ("dag {\n X - > Y }", "line 2: cannot read '-'"),
        ("dag { X -> Y -> X }", "the graph has a cycle: X -> Y -> X"),
        ("graph { X -- Y }", "its edges have no direction"),
        ("digraph { X -- Y }", "X -- Y has no known direction"),
        ("digraph {\n X -> Y [style=dashed] }", "line 2 .* X -> Y is dashed and has one head"),
        ("digraph { X -> Y [dir=none] }", "X -> Y has dir=none"),
        ("digraph { X -> Y [arrowhead=none] }", "arrowhead or arrowtail of its own"),
        ("digraph { U [observd=no] U -> X }", "the attribute observd=no of 'U' is not understood"),
        ("digraph { U [observed=maybe] U -> X }", "'U' has observed=maybe"),
        ("digraph { A:n -> B }", "'A' has a port"),
        ("digraph { A [shape] }", "the attribute 'shape' lacks a value"),
        ("graph [ node [ id 1 ] ]", "the graph is not directed"),
        ("graph [ directed 1\n node [ id 1 ]\n edge [ source 1 target 2 ] ]", "line 3 .* ids of"),
        ("graph [ directed 1 node [ id 1 hidden 1 ] ]", "the key 'hidden' of this node"),
        ("graph [ directed 1 node [ id 1 ]", "the bracket is not closed"),
        ("f =~ a + b", "line 1 of the lavaan text: .* a latent variable that is measured"),
        ("y ~ x\n x == 0", "line 2 .* a constraint on parameters"),
        ("y ~ x:z", "cannot read the term 'x:z'"),
        ("y ~ x +", "is not finished"),
        ("y ~ x ~ z", "has two operators"),
        ("a*y ~ x", "has a factor on its left side"),
        ("y ~ x\n oops", "line 2 .* 'oops' has no operator"),
        ('{"nodes": ["x"], "edges": []}', "has nodes, directed and bidirected; got nodes, edges"),
        ('{"nodes": ["x"], "directed": [["x"]]}', "'directed' .* is a list of pairs"),
        (",x,y\nx,0,2\ny,0,0\n", "the entry of 'x' and 'y' is '2'"),
        (",x,y\nx,0,1\nz,0,0\n", "the same names"),
        (",x,y\nx,0,1\ny,1,0\n", "the graph has a cycle"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_its_line(text, message, tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(cb.errors.GraphError, match=message):
        Graph.read(path)


def test_a_file_or_a_name_that_cannot_be_used_is_our_error(tmp_path):
    with pytest.raises(cb.errors.GraphError, match=r"none.txt cannot be read: No such file"):
        Graph.read(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"x -> \xff")
    with pytest.raises(cb.errors.GraphError, match="is not a text in UTF-8"):
        Graph.read(tmp_path / "latin.txt")
    for reader in (Graph.from_dagitty, Graph.from_dot, Graph.from_gml, Graph.from_lavaan):
        with pytest.raises(cb.errors.GraphError, match="is read from a text, got int"):
            reader(3)
    for bad in (3, pd.DataFrame([[0, 1], [0, 0]], columns=["x", "x"], index=["x", "x"])):
        with pytest.raises(cb.errors.GraphError):
            Graph.from_adjacency(bad)
    odd = Graph.from_edges([("a\\b", "body mass")])
    with pytest.raises(cb.errors.GraphError, match="holds a backslash"):
        odd.to_dot()
    with pytest.raises(cb.errors.GraphError, match="lavaan has no variable called"):
        odd.to_lavaan()
    with pytest.raises(cb.errors.GraphError, match="cannot hold the latent common causes a <-> b"):
        Graph.parse("a -> b; a <-> b").to_adjacency()


PIECES = st.sampled_from(
    """dag { } digraph graph [ ] ; , = -> <- <-> -- ~ ~~ =~ + * := x y "z" U latent observed no
    dir both style dashed directed 1 node edge id label source target 0 # // /* */ ( ) < > \\n \\t
    : | @-> subgraph strict mag "nodes" null 1e5 é \\\\ \\x00 ! == %""".split()
).map(lambda piece: piece.encode().decode("unicode_escape") if piece.startswith("\\") else piece)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=25).map(" ".join),
    st.lists(PIECES, max_size=12).map("".join),
    st.text(max_size=30),
    st.tuples(
        st.sampled_from(["dag {", "digraph {", "graph [ directed 1 ", "y ~ ", "{", ",x,y\n"]),
        st.lists(PIECES, max_size=20).map(" ".join),
        st.sampled_from(["", "}", "]"]),
    ).map("".join),
)


def fuzz(text):
    for reader in (
        Graph.from_dagitty, Graph.from_dot, Graph.from_gml, Graph.from_lavaan,
        Graph.from_adjacency, Graph.from_json, lambda each: build_graph(read_graph_text(each)),
    ):  # fmt: skip
        try:
            graph = reader(text)
        except cb.errors.GraphError:
            continue
        assert Graph.from_json(graph.to_json()) == graph


RARE = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=150, **RARE)
@given(TEXTS)
def test_any_text_gives_a_graph_or_our_error(text):
    fuzz(text)


@pytest.mark.slow
@settings(max_examples=20_000, **RARE)
@given(TEXTS)
def test_any_of_many_texts_gives_a_graph_or_our_error(text):
    fuzz(text)
