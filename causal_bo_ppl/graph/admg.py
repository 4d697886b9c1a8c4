"""What causes what? An acyclic directed mixed graph (ADMG) that is always valid.

Directed edges are mechanisms, bidirected edges are latent common causes. `nodes` is a topological
order that depends on nothing but names and edges; all (p,) and (p, p) arrays follow it.

In our own notation, statements end at a semicolon or a line end; `#` starts a comment. A statement
is a chain of names joined by `->`, `<-` or `<->`, or one name alone, which declares a variable. An
arc `<->` declares nothing: a misspelt name in it is an error, not a new variable. `formats` reads
and writes the notations of other tools.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import networkx as nx
import numpy as np

from causal_bo_ppl.errors import GraphError, listed, unknown
from causal_bo_ppl.graph import formats
from causal_bo_ppl.graph.dot_language import GraphText
from causal_bo_ppl.graph.layout import draw_svg
from causal_bo_ppl.inputs import read_list, require_distinct, require_name

if TYPE_CHECKING:
    import pandas as pd

ARROW = re.compile(r"(<->|->|<-)")
# Parts of a mistyped arrow, of a list of names, or of another notation.
NOT_IN_NAMES = re.compile(
    r"""[<>,{}"\[\]→←↔⟶⟵⟷–—−~]|^-|-$|--|=|\s-\s|\S\s*\+\s*\S|\so$|^o\s|:\s*[-\d.]+$"""
)
FORMULA = re.compile(r"~|\S\s*\+\s*\S")  # a regression as R and others write it


class Edges(NamedTuple):
    """The content of a text: the variables named alone, and the arrows."""

    alone: list[str]
    directed: list[tuple[str, str]]
    bidirected: list[tuple[str, str]]


def read_edges(text: str) -> Edges:
    """Read the edges of a text such as `X -> Z -> Y; X <-> Y`."""
    if not isinstance(text, str):
        raise GraphError(f"a graph is read from a text such as 'X -> Y', got {type(text).__name__}")
    edges = Edges([], [], [])
    for line in text.splitlines():
        for statement in line.split("#", 1)[0].split(";"):
            if statement.strip():
                _read_statement(statement.strip(), edges)
    return edges


def _read_statement(statement: str, edges: Edges) -> None:
    parts = ARROW.split(statement)
    if any(FORMULA.search(part) for part in parts[::2]):
        raise GraphError(
            f"cannot read {statement!r}, which looks like a formula; write every cause with an "
            "arrow: 'x -> y; z -> y' (from_edges takes names of any spelling)"
        )
    names = [_read_name(part, statement) for part in parts[::2]]
    if len(names) == 1 and names[0] not in edges.alone:
        edges.alone.append(names[0])
    for (left, right), arrow in zip(pairwise(names), parts[1::2], strict=True):
        if arrow == "<->":
            edges.bidirected.append((left, right))
        else:
            edges.directed.append((left, right) if arrow == "->" else (right, left))


def _read_name(part: str, statement: str) -> str:
    name = part.strip()
    if not name:
        raise GraphError(f"an arrow in {statement!r} lacks a variable; write for example 'X -> Y'")
    slip = NOT_IN_NAMES.search(name)
    if slip:
        raise GraphError(
            f"cannot read {name!r} in {statement!r}: {slip.group().strip()!r} is no arrow; "
            "write ->, <- or <->, one chain a statement (from_edges takes names of any spelling)"
        )
    return name


def is_writable(name: str) -> bool:
    """Return whether a text with this name in it can be read back."""
    return not (
        ARROW.search(name)
        or NOT_IN_NAMES.search(name)
        or set(name) & set("#;")
        or len(name.splitlines()) != 1
    )


Edge = tuple[str, str]
Names = tuple[str, ...]
Neighbours = dict[str, Names]  # of every variable, in the order of the graph


@dataclass(frozen=True)
class CausalGraph:
    """Causes and latent confounding between named variables; immutable, hashable, acyclic.

    Parameters
    ----------
    nodes:
        All variables; they are kept in topological order, ties broken by name.
    directed, bidirected:
        Pairs (cause, effect), and pairs that share a latent cause.

    Raises
    ------
    GraphError
        If a name cannot be used, an edge has an unknown variable, or there is a cycle.

    Examples
    --------
    >>> graph = CausalGraph(("Y", "X"), (("X", "Y"),))
    >>> graph.nodes, graph.ancestors("Y")
    (('X', 'Y'), ('X',))
    """

    nodes: tuple[str, ...]
    directed: tuple[Edge, ...] = ()
    bidirected: tuple[Edge, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "directed", _read_pairs(self.directed))
        object.__setattr__(self, "bidirected", _read_pairs(self.bidirected))
        names = require_distinct((self.nodes,) if isinstance(self.nodes, str) else self.nodes)
        if not names:
            raise GraphError("the graph is empty; give it at least one edge or node")
        for edge in (*self.directed, *self.bidirected):
            _require_known(edge, names)
        for one, other in self.bidirected:
            if one == other:
                raise GraphError(
                    f"{one!r} <-> {other!r} confounds a variable with itself; remove that arc"
                )
        order = _causal_order(names, self.directed)
        rank = {name: position for position, name in enumerate(order)}
        arcs = {
            (min(arc, key=rank.__getitem__), max(arc, key=rank.__getitem__))
            for arc in self.bidirected
        }

        def by_rank(edge: Edge) -> tuple[int, int]:
            return rank[edge[0]], rank[edge[1]]

        object.__setattr__(self, "nodes", order)
        object.__setattr__(self, "directed", tuple(sorted(set(self.directed), key=by_rank)))
        object.__setattr__(self, "bidirected", tuple(sorted(arcs, key=by_rank)))

    @classmethod
    def parse(cls, text: str) -> "CausalGraph":
        """Read a graph from a text such as `X -> Z -> Y; X <-> Y`.

        Parameters
        ----------
        text:
            Chains of `->`, `<-` and `<->`, separated by `;` or line ends, with `#` comments.

        Returns
        -------
        CausalGraph

        Examples
        --------
        >>> CausalGraph.parse("X -> Z -> Y; X <-> Y").parents("Y")
        ('Z',)
        """
        edges = read_edges(text)
        return cls.from_edges(edges.directed, edges.bidirected, nodes=edges.alone)

    @classmethod
    def from_edges(
        cls,
        directed: Iterable[Edge],
        bidirected: Iterable[Edge] = (),
        *,
        nodes: str | Iterable[str] = (),
    ) -> "CausalGraph":
        """Build a graph from pairs of names, which may have any spelling.

        Parameters
        ----------
        directed, bidirected:
            Pairs (cause, effect), and pairs that share a latent cause.
        nodes:
            All variables, or those without directed edges.

        Returns
        -------
        CausalGraph

        Examples
        --------
        >>> CausalGraph.from_edges([("X", "Y")], nodes=["W"]).nodes
        ('W', 'X', 'Y')
        """
        directed = _read_pairs(directed)
        names = [nodes] if isinstance(nodes, str) else read_list(nodes)
        if names is None:
            raise GraphError(f"nodes are names such as ['X', 'Y'], got {nodes!r}")
        joined = dict.fromkeys(name for edge in directed for name in edge if name not in names)
        return cls((*names, *joined), directed, _read_pairs(bidirected))

    @classmethod
    def from_networkx(cls, graph: "nx.DiGraph") -> "CausalGraph":
        """Build from a DiGraph; pairs in `graph.graph["bidirected"]` are latent confounding.

        Nodes with the attribute `observed=False` (or "no") are latent: they are projected out.

        Examples
        --------
        >>> CausalGraph.from_networkx(nx.DiGraph([("X", "Y")]))
        CausalGraph.parse('X -> Y')
        """
        if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
            raise GraphError(
                f"a causal graph comes from a networkx.DiGraph, got {type(graph).__name__}"
            )
        observed = []
        for node, mark in graph.nodes(data="observed", default=True):
            if not isinstance(mark, bool | str) or mark not in (True, False, "yes", "no"):
                raise GraphError(f"the node {node!r} has observed={mark!r}; use True or False")
            if mark in (True, "yes"):
                observed.append(node)
        whole = cls.from_edges(graph.edges, graph.graph.get("bidirected", ()), nodes=graph.nodes)
        return whole.project(observed) if len(observed) < len(whole.nodes) else whole

    def to_networkx(self) -> "nx.DiGraph":
        """Return the directed part as a DiGraph; its attribute `bidirected` holds the arcs."""
        graph = nx.DiGraph(bidirected=self.bidirected)
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from(self.directed)
        return graph

    @classmethod
    def read(cls, path: str | Path) -> "CausalGraph":
        """Read a graph from a file of dagitty, Graphviz, GML, lavaan, JSON or our own notation.

        The notation is recognized by the text, not by the name of the file: `dag {` begins dagitty,
        `digraph {` DOT, `graph [` GML, `{` JSON; a table with commas is an adjacency table, `~`
        stands in formulas of lavaan, and anything else is our own notation, as in `parse`.

        Parameters
        ----------
        path:
            The file, in UTF-8. Latent variables that it marks are projected out.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If the file cannot be read, or holds a statement that is not understood.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "model.txt"
        ...     _ = path.write_text("dag { U [latent]; U -> {X Y}; X -> Y }")
        ...     CausalGraph.read(path)
        CausalGraph.parse('X -> Y; X <-> Y')
        """
        return build_graph(read_graph_text(formats.read_text_file(path)))

    @classmethod
    def from_dagitty(cls, text: str) -> "CausalGraph":
        """Read the text of a dag of dagitty; latent variables are projected out.

        Exposures and outcomes do not change a graph; `causal-bo init` takes them as defaults.

        Parameters
        ----------
        text:
            What dagitty.net shows as model code, beginning with `dag {`.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If a statement is not understood, with its line, or if it is another kind of graph.

        Examples
        --------
        >>> CausalGraph.from_dagitty("dag { X [exposure]; X -> Z -> Y; X <-> Y }")
        CausalGraph.parse('X -> Z; Z -> Y; X <-> Y')
        """
        return build_graph(formats.READERS["dagitty"](formats.require_text(text, "dagitty")))

    @classmethod
    def from_dot(cls, text: str) -> "CausalGraph":
        """Read a digraph of Graphviz; `dir=both` is a latent common cause.

        Nodes with `observed=no` are projected out. A dashed edge with one head is refused, unless
        it starts at such a node: it may mean either.

        Parameters
        ----------
        text:
            The text, beginning with `digraph {`.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If a statement or an attribute is not understood, with its line.

        Examples
        --------
        >>> CausalGraph.from_dot("digraph { X -> Z -> Y; X -> Y [dir=both, style=dashed] }")
        CausalGraph.parse('X -> Z; Z -> Y; X <-> Y')
        """
        return build_graph(formats.READERS["dot"](formats.require_text(text, "DOT")))

    @classmethod
    def from_gml(cls, text: str) -> "CausalGraph":
        """Read a directed graph in GML; nodes with `observed "no"` are projected out.

        Parameters
        ----------
        text:
            The text, with `graph [ directed 1 ... ]`.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If a key is not understood, with its line.

        Examples
        --------
        >>> graph = CausalGraph.parse("X -> Y; X <-> Y")
        >>> CausalGraph.from_gml(graph.to_gml()) == graph
        True
        """
        return build_graph(formats.READERS["gml"](formats.require_text(text, "GML")))

    @classmethod
    def from_lavaan(cls, text: str) -> "CausalGraph":
        r"""Read formulas of lavaan: `y ~ x` is x -> y, and `x ~~ y` a latent common cause.

        Parameters
        ----------
        text:
            The formulas. Measured latent variables (`=~`) are refused, and so are constraints on
            parameters. What lavaan adds by itself, such as covariances among exogenous variables,
            is not in the text and is not added.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If a statement is not understood, with its line.

        Examples
        --------
        >>> CausalGraph.from_lavaan("z ~ b1*x  # a label\n y ~ z \n x ~~ y")
        CausalGraph.parse('x -> z; z -> y; x <-> y')
        """
        return build_graph(formats.READERS["lavaan"](formats.require_text(text, "lavaan")))

    @classmethod
    def from_adjacency(cls, table: "pd.DataFrame | str") -> "CausalGraph":
        r"""Read a table of 0 and 1, a DataFrame or a CSV text; 1: the row causes the column.

        Parameters
        ----------
        table:
            With the same names above the columns and before the rows.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If the names differ, or an entry is neither 0 nor 1.

        Examples
        --------
        >>> CausalGraph.from_adjacency(",X,Y\nX,0,1\nY,0,0\n")
        CausalGraph.parse('X -> Y')
        """
        return build_graph(formats.read_adjacency(table))

    @classmethod
    def from_json(cls, text: str) -> "CausalGraph":
        """Read what `to_json` wrote: nodes, directed and bidirected, and latent if there are some.

        Parameters
        ----------
        text:
            The JSON text.

        Returns
        -------
        CausalGraph

        Raises
        ------
        GraphError
            If this is not such a text.

        Examples
        --------
        >>> graph = CausalGraph.parse("X -> Y; X <-> Y")
        >>> CausalGraph.from_json(graph.to_json()) == graph
        True
        """
        return build_graph(formats.read_graph_json(formats.require_text(text, "JSON")))

    def to_dagitty(self) -> str:
        """Return the text for dagitty, which `from_dagitty` reads back."""
        return formats.write_text(self._text, "dagitty")

    def to_dot(self) -> str:
        """Return the text for Graphviz, which `from_dot` reads back."""
        return formats.write_text(self._text, "dot")

    def to_gml(self) -> str:
        """Return a GML text, in which a latent common cause is a node with `observed "no"`."""
        return formats.write_text(self._text, "gml")

    def to_lavaan(self) -> str:
        """Return the formulas of lavaan; names that it cannot hold are refused."""
        return formats.write_text(self._text, "lavaan")

    def to_json(self) -> str:
        """Return a JSON text, which `from_json` reads back; it holds any name."""
        return formats.write_text(self._text, "json")

    def to_adjacency(self) -> "pd.DataFrame":
        """Return a table of 0 and 1, with 1 where the row causes the column.

        A GraphError is raised where there are latent common causes, which it cannot hold.
        """
        import pandas as pd

        formats.require_no_arcs(self._text, "an adjacency table")
        rows = formats.rows_of_adjacency(self.nodes, self.directed)
        return pd.DataFrame(rows, index=list(self.nodes), columns=list(self.nodes))

    @property
    def _text(self) -> GraphText:
        return GraphText(self.nodes, self.directed, self.bidirected)

    def require(self, names: str | Iterable[str], what: str = "variable") -> tuple[str, ...]:
        """Return the names in `nodes` order; raise GraphError for one the graph does not have."""
        wanted = (
            (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
        )
        for name in wanted:
            if not isinstance(name, str) or name not in self.positions:
                raise GraphError(unknown(what, name, self.nodes))
        return self.ordered(wanted)

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names that the graph has, each once, in `nodes` order; they are not checked."""
        return tuple(map(self.nodes.__getitem__, sorted({self.positions[name] for name in names})))

    def with_parents(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return variables that the graph has and their direct causes; they are not checked."""
        kept = tuple(names)
        return self.ordered({*kept, *(cause for name in kept for cause in self._parents[name])})

    def index(self, name: str) -> int:
        """Return the position of a variable in `nodes`."""
        if isinstance(name, str) and name in self.positions:
            return self.positions[name]
        return self.positions[self.require(name)[0]]

    def masks(self, sets: Sequence[Collection[str]]) -> np.ndarray:
        """Return which variables stand in which set, a boolean array of shape (M, p)."""
        masks = np.zeros((len(sets), len(self.nodes)), bool)
        columns = [self.positions[name] for members in sets for name in members]
        masks[np.repeat(np.arange(len(sets)), [len(members) for members in sets]), columns] = True
        return masks

    def parents(self, names: str | Iterable[str]) -> tuple[str, ...]:
        """Return the direct causes of one or several variables, without these themselves."""
        return self._around(self._read(names), self._parents)

    def children(self, names: str | Iterable[str]) -> tuple[str, ...]:
        """Return the direct effects of one or several variables, without these themselves."""
        return self._around(self._read(names), self._children)

    def spouses(self, names: str | Iterable[str]) -> tuple[str, ...]:
        """Return the variables that share a latent cause with these."""
        return self._around(self._read(names), self._spouses)

    def ancestors(self, names: str | Iterable[str]) -> tuple[str, ...]:
        """Return all causes, direct or not, without the variables themselves."""
        return self._reach(self._read(names), self._parents)

    def descendants(self, names: str | Iterable[str]) -> tuple[str, ...]:
        """Return all effects, direct or not, without the variables themselves."""
        return self._reach(self._read(names), self._children)

    def districts(self) -> tuple[tuple[str, ...], ...]:
        """Return the c-components: classes of variables joined by paths of bidirected edges."""
        return tuple(dict.fromkeys(self.district(name) for name in self.nodes))

    def district(self, name: str) -> tuple[str, ...]:
        """Return the c-component of one variable, itself included."""
        start = self._read(name) if isinstance(name, str) else self.require([name])
        return self.ordered([*start, *self._reach(start, self._spouses)])

    def do(self, names: str | Iterable[str]) -> "CausalGraph":
        """Return the graph after surgery: no arrow or arc points at an intervened variable.

        Examples
        --------
        >>> CausalGraph.parse("X -> Z -> Y; X <-> Y").do("Z")
        CausalGraph.parse('X; Z -> Y; X <-> Y')
        """
        cut = set(self._read(names))
        return CausalGraph(
            self.nodes,
            tuple(edge for edge in self.directed if edge[1] not in cut),
            tuple(edge for edge in self.bidirected if not cut & set(edge)),
        )

    def subgraph(self, names: str | Iterable[str]) -> "CausalGraph":
        """Return the induced graph: these variables and the edges between them."""
        return self._induced(self._read(names))

    def ancestral(self, names: str | Iterable[str]) -> "CausalGraph":
        """Return the induced graph of the variables and their ancestors."""
        start = self._read(names)
        if start in self._ancestral:
            return self._ancestral[start]
        keep = self.ordered([*start, *self._reach(start, self._parents)])
        graph = self if keep == self.nodes else self._induced(keep)
        if len(start) == 1:  # pairs would be many
            self._ancestral[start] = graph
        return graph

    def project(self, keep: str | Iterable[str]) -> "CausalGraph":
        """Return the latent projection: the ADMG over `keep` when all others are unobserved.

        Examples
        --------
        >>> CausalGraph.parse("U -> X -> Y; U -> Y").project(["X", "Y"])
        CausalGraph.parse('X -> Y; X <-> Y')
        """
        keep = self.require(keep)
        parents, children, spouses = (
            {name: set(others) for name, others in table.items()}
            for table in (self._parents, self._children, self._spouses)
        )
        for latent in (name for name in self.nodes if name not in keep):
            _project_out(latent, parents, children, spouses)
        directed = tuple((parent, child) for child in keep for parent in parents[child])
        return CausalGraph(
            keep, directed, tuple((one, other) for one in keep for other in spouses[one])
        )

    def m_separated(
        self, one: str | Iterable[str], other: str | Iterable[str], given: str | Iterable[str] = ()
    ) -> bool:
        """Return whether `given` blocks every path between the two sets.

        This is d-separation in the graph in which each latent cause is drawn as a variable.

        Parameters
        ----------
        one, other, given:
            Names, or several names; the three sets must be disjoint.

        Returns
        -------
        bool

        Raises
        ------
        GraphError
            If a name is unknown, or stands in two of the sets.

        Examples
        --------
        >>> CausalGraph.parse("X -> Z -> Y").m_separated("X", "Y", "Z")
        True
        """
        left, right, blocked = (set(self._read(names)) for names in (one, other, given))
        shared = (left & right) | (left & blocked) | (right & blocked)
        if shared:
            raise GraphError(
                f"m-separation needs three disjoint sets; {sorted(shared)} stands in two of them"
            )
        canonical = nx.DiGraph(self.directed)
        canonical.add_nodes_from(self.nodes)
        canonical.add_edges_from((edge, name) for edge in self.bidirected for name in edge)
        return bool(nx.is_d_separator(canonical, left, right, blocked))

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of every variable in `nodes`."""
        return {name: position for position, name in enumerate(self.nodes)}

    @cached_property
    def _parents(self) -> Neighbours:
        return self._neighbours((child, parent) for parent, child in self.directed)

    @cached_property
    def _children(self) -> Neighbours:
        return self._neighbours(self.directed)

    @cached_property
    def _spouses(self) -> Neighbours:
        return self._neighbours(
            (*self.bidirected, *((other, one) for one, other in self.bidirected))
        )

    def _neighbours(self, edges: Iterable[Edge]) -> Neighbours:
        around: dict[str, set[str]] = {name: set() for name in self.nodes}
        for name, neighbour in edges:
            around[name].add(neighbour)
        return {name: self.ordered(neighbours) for name, neighbours in around.items()}

    @cached_property
    def _ancestral(self) -> dict[Names, "CausalGraph"]:
        """The ancestral graphs of single variables that were asked for."""
        return {}

    def _read(self, names: str | Iterable[str]) -> Names:
        """Return one or several names in `nodes` order, checked."""
        if isinstance(names, str) and names in self.positions:
            return (names,)
        return self.require(names)

    def _induced(self, keep: Names) -> "CausalGraph":
        inside = set(keep).issuperset
        return CausalGraph(
            keep, tuple(filter(inside, self.directed)), tuple(filter(inside, self.bidirected))
        )

    def _around(self, start: Names, neighbours: Neighbours) -> Names:
        if len(start) == 1:
            return neighbours[start[0]]
        return self.ordered(set().union(*(neighbours[name] for name in start)) - set(start))

    def _reach(self, start: Names, neighbours: Neighbours) -> Names:
        reached, frontier = set(start), list(start)
        while frontier:
            new = set(neighbours[frontier.pop()]) - reached
            reached |= new
            frontier.extend(new)
        return self.ordered(reached - set(start))

    def __str__(self) -> str:
        joined = {name for edge in self.directed for name in edge}
        alone = [name for name in self.nodes if name not in joined]
        arrows = [f"{cause} -> {effect}" for cause, effect in self.directed]
        return "; ".join([*alone, *arrows, *(f"{a} <-> {b}" for a, b in self.bidirected)])

    def __repr__(self) -> str:
        if all(is_writable(name) for name in self.nodes):
            return f"CausalGraph.parse({str(self)!r})"
        return f"CausalGraph({self.nodes!r}, {self.directed!r}, {self.bidirected!r})"

    def _repr_html_(self) -> str:
        return draw_svg(self.nodes, self.directed, self.bidirected)


def read_graph_text(text: str) -> GraphText:
    """Return what a text in any of the notations says of a graph."""
    notation = formats.recognize(text)
    if notation != "arrows":
        return formats.READERS[notation](text)
    edges = read_edges(text)
    names = dict.fromkeys([*edges.alone, *(name for edge in edges.directed for name in edge)])
    return GraphText(tuple(names), tuple(edges.directed), tuple(edges.bidirected))


def build_graph(given: GraphText, latent: Iterable[str] = ()) -> CausalGraph:
    """Return the graph of a text over its observed variables.

    latent: variables that are not observed, besides those that the text marks.
    """
    whole = CausalGraph.from_edges(given.directed, given.bidirected, nodes=given.nodes)
    hidden = {*given.latent, *whole.require(latent)}
    if not hidden:
        return whole
    return whole.project([name for name in whole.nodes if name not in hidden])


def _read_pairs(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    pairs = None if isinstance(edges, str) else read_list(edges)
    if pairs is None:
        raise GraphError(f"edges are pairs of names such as [('X', 'Y')], got {edges!r}")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise GraphError(f"an edge is a pair of names, got {pair!r}")
        for name in pair:
            require_name(name)
    return tuple((one, other) for one, other in pairs)


def _require_known(edge: Edge, names: tuple[str, ...]) -> None:
    for name in edge:
        if name not in names:
            raise GraphError(
                f"the edge {edge!r} joins an {unknown('variable', name, names)}; "
                "a variable without directed edges must be declared on its own"
            )


def _causal_order(names: tuple[str, ...], directed: tuple[Edge, ...]) -> tuple[str, ...]:
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from(sorted(directed))
    if nx.is_directed_acyclic_graph(graph):
        return tuple(nx.lexicographical_topological_sort(graph))
    loop = [tail for tail, _ in nx.find_cycle(graph)]
    raise GraphError(
        f"the graph has a cycle: {' -> '.join([*loop, loop[0]])}; remove one of its edges"
    )


def read_graph(graph: CausalGraph) -> CausalGraph:
    """Return the graph; refuse anything else, such as its text."""
    if not isinstance(graph, CausalGraph):
        raise GraphError(
            f"a problem needs a CausalGraph, got {graph!r}; write CausalGraph.parse('X -> Y')"
        )
    return graph


def read_target(graph: CausalGraph, target: str) -> str:
    """Return the target; refuse one that has no cause in the graph."""
    graph.require([target], "target")
    if not graph.ancestors(target):
        others = listed(name for name in graph.nodes if graph.ancestors(name))
        raise GraphError(
            f"the target {target!r} has no causes in the graph; nothing can change it "
            f"(others have: {others})"
        )
    return target


def set_label(members: Iterable[str]) -> str:
    """Return the name of a set for a table; a variable's name that holds a comma is quoted."""
    quoted = (
        json.dumps(name, ensure_ascii=False) if "," in name or '"' in name else name
        for name in members
    )
    return ", ".join(quoted) or "(nothing)"


Table = dict[str, set[str]]


def _project_out(latent: str, parents: Table, children: Table, spouses: Table) -> None:
    """Remove one variable from all tables.

    Its parents become parents of its children; its children and spouses become confounded.
    """
    causes, effects, partners = (table.pop(latent) for table in (parents, children, spouses))
    for effect in effects:
        parents[effect] = (parents[effect] | causes) - {latent}
    for cause in causes:
        children[cause] = (children[cause] | effects) - {latent}
    for partner in partners:
        spouses[partner].discard(latent)
    pairs = [
        *combinations(sorted(effects), 2),
        *((one, other) for one in partners for other in effects),
    ]
    for one, other in pairs:
        if one != other:
            spouses[one].add(other)
            spouses[other].add(one)
