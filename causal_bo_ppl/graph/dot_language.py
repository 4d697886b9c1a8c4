"""How do dagitty, Graphviz and GML write a causal graph? Readers and writers of their texts.

The readers are strict: a statement, an arrow or an attribute that is not understood is a GraphError
with its line, since an arrow that is dropped or turned is a wrong number later. What only changes a
drawing (positions, colours) is skipped, by name. Latent variables stay in what is read; they are
projected out where a `CausalGraph` is made of it.

A latent common cause without a name is `X <-> Y` in dagitty, `X -> Y [dir=both]` in DOT, and in
GML, which has no such edge, a node with `observed "no"`.
"""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from causal_bo_ppl.errors import GraphError, listed

Pair = tuple[str, str]
Attributes = dict[str, str]


class GraphText(NamedTuple):
    """What a text says of a graph: names and arrows, not checked beyond the notation.

    latent: variables that are not observed. exposures, outcomes: those that the text marks as such.
    """

    nodes: tuple[str, ...]
    directed: tuple[Pair, ...]
    bidirected: tuple[Pair, ...] = ()
    latent: tuple[str, ...] = ()
    exposures: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()


class Token(NamedTuple):
    """A piece of a text: its kind, its content without quotes, and its line."""

    kind: str
    text: str
    line: int


TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/|^[^\S\n]*\#[^\n]*)
    |(?P<space>[^\S\n]+)|(?P<newline>\n)
    |(?P<quoted>"(?:\\.|[^"\\])*")
    |(?P<html><(?!-)(?:[^<>]|<[^<>]*>)*>)
    |(?P<arrow><->|<-@|@->|->|<-|--@|@--|@-@|--)
    |(?P<name>[^\W\d][\w.]*|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<mark>[{}\[\];,=:])""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
# A string of GML has no escapes, and ends at the next double quote.
GML_TOKEN = re.compile(TOKEN.pattern.replace(r'"(?:\\.|[^"\\])*"', r'"[^"]*"'), TOKEN.flags)
PLAIN_NAME = re.compile(r"[^\W\d]\w*")
TURNED = {"<-": "->"}
DAGITTY_ROLES = {
    **dict.fromkeys(("latent", "l", "unobserved", "u"), "latent"),
    **dict.fromkeys(("exposure", "e", "source"), "exposure"),
    **dict.fromkeys(("outcome", "o", "target"), "outcome"),
    **dict.fromkeys(("adjusted", "adjustednode", "a"), "adjusted"),
}
DRAWN = frozenset(
    """area arrowsize bb bgcolor center charset class cluster clusterrank color colorscheme comment
    compound concentrate decorate dim distortion dpi fillcolor fixedsize fontcolor fontname fontpath
    fontsize forcelabels gradientangle group headclip headlabel height href id image imagescale
    label labelangle labeldistance labelfloat labelfontcolor labelfontname labelfontsize labeljust
    labelloc labeltooltip landscape layer layers layout len lp ltail lhead margin minlen mode name
    newrank nodesep nojustify ordering orientation outputorder overlap pad page penwidth
    peripheries pin pos quantum rank rankdir ranksep ratio regular root rotate samehead sametail
    scale sep shape sides size skew splines start stylesheet tailclip taillabel target tooltip
    truecolor URL vertices viewport weight width xdotversion xlabel xlp constraint""".split()
)  # attributes of DOT that change a picture only
DAGITTY_DRAWN = frozenset("pos label beta color bb size ratio layout rankdir".split())
GML_DRAWN = frozenset(
    "creator version comment name graphics labelgraphics weight value multigraph color".split()
)


def find_tokens(text: str, notation: str) -> list[Token]:
    """Return the tokens of a text without comments and spaces; line ends are kept."""
    tokens, at, line = list[Token](), 0, 1
    pattern = GML_TOKEN if notation == "GML" else TOKEN
    while at < len(text):
        found = pattern.match(text, at)
        if found is None:
            piece = text[at:].split(None, 1)[0][:20]
            raise GraphError(
                f"line {line}: cannot read {piece!r} as {notation}; a name with other characters "
                'than letters, digits and _ stands in double quotes: "body mass"'
            )
        kind, piece = str(found.lastgroup), found.group()
        if kind == "quoted":
            piece = piece[1:-1] if notation == "GML" else piece[1:-1].replace('\\"', '"')
        if kind not in ("space", "comment"):
            tokens.append(Token(kind, piece, line))
        line, at = line + found.group().count("\n"), found.end()
    return [*tokens, Token("end", "the end of the text", line)]


class Arrow(NamedTuple):
    """An edge statement between two names."""

    tail: str
    head: str
    kind: str
    attributes: Attributes
    line: int


@dataclass
class Statements:
    """Reads the statements of dagitty and DOT from tokens, one after the other."""

    tokens: list[Token]
    notation: str
    at: int = 0
    nodes: dict[str, Attributes] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)

    def skip(self, *texts: str) -> bool:
        """Pass line ends and some marks; return whether there were any."""
        start = self.at
        while self.tokens[self.at].kind == "newline" or self.is_mark(*texts):
            self.at += 1
        return self.at > start

    def is_mark(self, *texts: str) -> bool:
        """Return whether the next token is one of these marks."""
        token = self.tokens[self.at]
        return token.kind == "mark" and token.text in texts

    def take(self, *kinds: str, wanted: str) -> Token:
        """Return the next token, which must be of one of these kinds."""
        token = self.tokens[self.at]
        if token.kind not in kinds and not (token.kind == "mark" and token.text in kinds):
            raise self.fault(
                token, f"expected {wanted}, found {token.text.strip() or 'a line end'!r}"
            )
        self.at += 1
        return token

    def fault(self, token: Token, what: str) -> GraphError:
        """Return the error of a token."""
        return GraphError(f"line {token.line} of the {self.notation} text: {what}")

    def read(self) -> None:
        """Read `name { statements }` to its end."""
        self.take("{", wanted="'{'")
        self.block({}, {}, is_outermost=True)
        self.skip(";")
        self.take("end", wanted="nothing after the closing '}'")

    def block(self, node: Attributes, edge: Attributes, is_outermost: bool = False) -> list[str]:
        """Read the statements up to a closing brace; return the names that they hold."""
        names, node, edge, bare, after = list[str](), dict(node), dict(edge), False, None
        while True:
            is_parted = self.skip(";", ",") if not is_outermost else self.skip(";")
            token = self.tokens[self.at]
            if self.is_mark("}"):
                self.at += 1
                return list(dict.fromkeys(names))
            if not is_parted and after is not None and token.kind in ("name", "quoted"):
                arrow_ahead = self.tokens[self.at + 1].kind == "arrow"
                if bare and (is_outermost or after == "arrow" or arrow_ahead):
                    raise self.fault(
                        token,
                        f"{token.text!r} follows another name; write a semicolon between them, or "
                        "one name with spaces in double quotes",
                    )
            found, after, bare = self.statement(node, edge)
            names += found

    def statement(self, node: Attributes, edge: Attributes) -> tuple[list[str], str, bool]:
        """Read one statement.

        Returns its names, whether it had arrows, and whether it ended with a name.
        """
        token, following = self.tokens[self.at], self.tokens[min(self.at + 1, len(self.tokens) - 1)]
        if token.kind == "name" and (following.kind, following.text) == ("mark", "="):
            self.at += 2
            self.require_drawn(token, self.take("name", "quoted", "html", wanted="a value").text)
            return [], "option", False
        if self.notation == "DOT" and token.kind == "name" and token.text.lower() in (
            "node", "edge", "graph",
        ):  # fmt: skip
            self.at += 1
            given = self.attributes()
            if token.text.lower() == "graph":
                for option, value in given.items():
                    self.require_drawn(Token("name", option, token.line), value)
            (node if token.text.lower() == "node" else edge).update(given)
            return [], "option", False
        groups, kinds = [self.group(node, edge)], list[Token]()
        while self.tokens[self.at].kind == "arrow":
            kinds.append(self.take("arrow", wanted="an arrow"))
            self.skip()
            groups.append(self.group(node, edge))
        is_bare = self.tokens[self.at - 1].kind != "mark"
        given = self.attributes()
        if given and not kinds:
            if len(groups[0]) != 1 or not is_bare:
                raise self.fault(token, "attributes belong to one variable or to an arrow")
            self.nodes[groups[0][0]] |= given
        for (left, right), arrow in zip(pairwise(groups), kinds, strict=True):
            for one, other in product(left, right):
                tail, head = (other, one) if arrow.text in TURNED else (one, other)
                kind = TURNED.get(arrow.text, arrow.text)
                self.arrows.append(Arrow(tail, head, kind, edge | given, arrow.line))
        names = [name for group in groups for name in group]
        return names, "arrow" if kinds else "name", is_bare and not given

    def group(self, node: Attributes, edge: Attributes) -> list[str]:
        """Return one name, or the names within braces."""
        token = self.tokens[self.at]
        if token.kind == "name" and token.text.lower() == "subgraph" and self.notation == "DOT":
            self.at += 1
            if self.tokens[self.at].kind in ("name", "quoted"):
                self.at += 1
            self.skip()
            token = self.tokens[self.at]
            if not self.is_mark("{"):
                raise self.fault(token, "a subgraph needs its variables within braces")
        if self.is_mark("{"):
            self.at += 1
            return self.block(node, edge)
        token = self.take("name", "quoted", wanted="the name of a variable")
        if self.is_mark(":"):
            raise self.fault(
                token, f"{token.text!r} has a port, which is not understood; remove it"
            )
        self.nodes.setdefault(token.text, dict(node))
        self.lines.setdefault(token.text, token.line)
        return [token.text]

    def attributes(self) -> Attributes:
        """Return the attributes in square brackets, if any; one without a value is "1"."""
        found: Attributes = {}
        while self.is_mark("["):
            self.at += 1
            self.skip(",", ";")
            while not self.is_mark("]"):
                key = self.take("name", "quoted", wanted="the name of an attribute").text
                found[key] = "1"
                if self.is_mark("="):
                    self.at += 1
                    self.skip()
                    found[key] = self.take("name", "quoted", "html", wanted="a value").text
                elif self.notation == "DOT":
                    raise self.fault(self.tokens[self.at], f"the attribute {key!r} lacks a value")
                self.skip(",", ";")
            self.at += 1
        return found

    def require_drawn(self, key: Token, value: str) -> None:
        """Refuse an option of the graph that may mean more than a drawing."""
        drawn = DAGITTY_DRAWN if self.notation == "dagitty" else DRAWN | {"style"}
        if key.text not in drawn:
            raise self.fault(key, f"the option {key.text} = {value} is not understood; remove it")


def read_dagitty(text: str) -> GraphText:
    """Read a text such as `dag { X [exposure]; Y [outcome]; X -> Z -> Y; X <-> Y }`."""
    given = Statements(find_tokens(text, "dagitty"), "dagitty")
    given.skip(";")
    kind = given.take("name", wanted="'dag {'")
    if kind.text.lower() != "dag":
        reason = {
            "mag": "the arrows of a mag are ancestral relations, not mechanisms",
            "pdag": "a pdag has edges without a direction",
            "pag": "a pag has edges without a direction",
            "digraph": "this is DOT, read by from_dot",
        }.get(kind.text.lower(), "it begins with 'dag {'")
        raise given.fault(kind, f"{kind.text!r} is not read: {reason}; give a dag")
    given.skip()
    if given.tokens[given.at].kind in ("name", "quoted"):
        given.at += 1
    given.skip()
    given.read()
    roles: dict[str, set[str]] = {role: set() for role in set(DAGITTY_ROLES.values())}
    for name, attributes in given.nodes.items():
        at = Token("name", name, given.lines[name])
        for key, value in attributes.items():
            role = DAGITTY_ROLES.get(key.lower())
            if role is not None and value.lower() in ("1", "true", "yes"):
                roles[role].add(name)
            elif key.lower() in ("selected", "selectednode", "s"):
                raise given.fault(
                    at,
                    f"{name!r} is marked as selected: data that were selected by a variable are "
                    "not what a causal graph with latent causes describes; remove the mark only "
                    "if nothing was selected by it",
                )
            elif key.lower() not in DAGITTY_DRAWN or role is not None:
                raise given.fault(at, f"the attribute {key}={value} of {name!r} is not understood")
    for arrow in given.arrows:
        _require_arrow(given, arrow, ("->", "<->"))
        for key, value in arrow.attributes.items():
            if key.lower() not in DAGITTY_DRAWN:
                raise given.fault(
                    Token("name", key, arrow.line),
                    f"the attribute {key}={value} of an arrow is not understood",
                )
    return _collect(
        given,
        [arrow for arrow in given.arrows if arrow.kind == "->"],
        [arrow for arrow in given.arrows if arrow.kind == "<->"],
        roles,
    )


def _require_arrow(given: Statements, arrow: Arrow, kinds: Sequence[str]) -> None:
    if arrow.kind not in kinds:
        raise given.fault(
            Token("arrow", arrow.kind, arrow.line),
            f"{arrow.tail} {arrow.kind} {arrow.head} has no known direction; write one of "
            f"{listed(kinds)}",
        )


def _collect(
    given: Statements, directed: list[Arrow], arcs: list[Arrow], roles: dict[str, set[str]]
) -> GraphText:
    def members(role: str) -> tuple[str, ...]:
        return tuple(name for name in given.nodes if name in roles.get(role, ()))

    return GraphText(
        tuple(given.nodes),
        tuple((arrow.tail, arrow.head) for arrow in directed),
        tuple((arrow.tail, arrow.head) for arrow in arcs),
        members("latent"),
        members("exposure"),
        members("outcome"),
    )


def read_dot(text: str) -> GraphText:
    """Read a text of Graphviz such as `digraph { X -> Y; X -> Y [dir=both, style=dashed] }`."""
    given = Statements(find_tokens(text, "DOT"), "DOT")
    given.skip()
    kind = given.take("name", wanted="'digraph {'")
    if kind.text.lower() == "strict":
        kind = given.take("name", wanted="'digraph {'")
    if kind.text.lower() != "digraph":
        raise given.fault(
            kind, f"{kind.text!r} is not read, its edges have no direction; 'digraph {{'"
        )
    given.skip()
    if given.tokens[given.at].kind in ("name", "quoted"):
        given.at += 1
    given.skip()
    given.read()
    latent = set()
    for name, attributes in given.nodes.items():
        at = Token("name", name, given.lines[name])
        observed = attributes.get("observed", "yes").lower()
        if observed not in ("yes", "no", "true", "false", "1", "0"):
            raise given.fault(at, f"{name!r} has observed={observed}; write yes or no")
        if observed in ("no", "false", "0"):
            latent.add(name)
        for key, value in attributes.items():
            if key not in DRAWN | {"observed", "style"}:
                raise given.fault(at, f"the attribute {key}={value} of {name!r} is not understood")
    directed, arcs = list[Arrow](), list[Arrow]()
    for arrow in given.arrows:
        _require_arrow(given, arrow, ("->",))
        (arcs if _is_arc(given, arrow, latent) else directed).append(
            arrow._replace(tail=arrow.head, head=arrow.tail)
            if arrow.attributes.get("dir") == "back"
            else arrow
        )
    return _collect(given, directed, arcs, {"latent": latent})


def _is_arc(given: Statements, arrow: Arrow, latent: set[str]) -> bool:
    """Return whether an edge of DOT is a latent common cause; refuse what has two meanings."""
    at = Token("arrow", arrow.kind, arrow.line)
    edge = f"{arrow.tail} -> {arrow.head}"
    for key, value in arrow.attributes.items():
        if key not in DRAWN | {"dir", "style", "arrowhead", "arrowtail"}:
            raise given.fault(at, f"the attribute {key}={value} of {edge} is not understood")
    way = arrow.attributes.get("dir", "forward")
    if way not in ("forward", "back", "both"):
        raise given.fault(at, f"{edge} has dir={way}; write forward, back or both")
    if {"arrowhead", "arrowtail"} & set(arrow.attributes):
        raise given.fault(
            at, f"{edge} has an arrowhead or arrowtail of its own; say dir=forward, back or both"
        )
    styles = re.split(r"[\s,]+", arrow.attributes.get("style", ""))
    tail = arrow.head if way == "back" else arrow.tail
    if "dashed" in styles and way != "both" and tail not in latent:
        raise given.fault(
            at,
            f"{edge} is dashed and has one head, which may mean a cause or a latent common cause; "
            "give a latent common cause dir=both, or let a cause be solid",
        )
    return way == "both"


def read_gml(text: str) -> GraphText:
    """Read a text such as `graph [ directed 1 node [ id 0 label "X" ] ... ]`.

    A node is named by its label, or by its id where it has none; one with `observed "no"` is
    latent.
    """
    tokens = [token for token in find_tokens(text, "GML") if token.kind != "newline"]
    entries = _read_entries(iter(tokens), tokens[0])
    graphs = [entry for entry in entries if entry.key == "graph"]
    _require_known([entry for entry in entries if entry.key != "graph"], "the text")
    if len(graphs) != 1 or not isinstance(graphs[0].value, list):
        raise GraphError(f"the GML text holds {len(graphs)} graphs; it needs one: graph [ ... ]")
    parts = graphs[0].value
    if [entry.value for entry in parts if entry.key == "directed"] != ["1"]:
        raise GraphError(
            f"line {graphs[0].line} of the GML text: the graph is not directed; write `directed 1`"
        )
    inner = [entry for entry in parts if entry.key in ("node", "edge")]
    _require_known([entry for entry in parts if entry not in inner], "the graph", "directed")
    names: dict[str, str] = {}
    latent = list[str]()
    for entry in inner:
        if entry.key == "node":
            values = _values(entry, ("id", "label", "observed"))
            if "id" not in values or values["id"] in names:
                raise GraphError(
                    f"line {entry.line} of the GML text: a node needs an id of its own"
                )
            names[values["id"]] = name = values.get("label", values["id"])
            observed = values.get("observed", "yes").lower()
            if observed not in ("yes", "no", "1", "0", "true", "false"):
                raise GraphError(
                    f"line {entry.line} of the GML text: {name!r} has observed {observed!r}; "
                    'write "yes" or "no"'
                )
            latent += [name] if observed in ("no", "0", "false") else []
    directed = []
    for entry in inner:
        if entry.key == "edge":
            values = _values(entry, ("source", "target", "id", "label", "key"))
            ends = [values.get(key) for key in ("source", "target")]
            if not all(end in names for end in ends):
                raise GraphError(
                    f"line {entry.line} of the GML text: an edge joins source and target, ids of "
                    f"nodes; got {ends}"
                )
            directed.append((names[str(ends[0])], names[str(ends[1])]))
    if len(set(names.values())) < len(names):
        raise GraphError("two nodes of the GML text have the same label; labels are names")
    return GraphText(tuple(names.values()), tuple(directed), (), tuple(latent))


class Entry(NamedTuple):
    """A key of GML with its value: a text, or a list of entries."""

    key: str
    value: "str | list[Entry]"
    line: int


def _read_entries(tokens: Iterator[Token], opened: Token, depth: int = 0) -> list[Entry]:
    found = list[Entry]()
    for token in tokens:
        if token.kind == "end" and depth:
            break
        if token.kind == "end" or (depth and (token.kind, token.text) == ("mark", "]")):
            return found
        value = next(tokens, token)
        if token.kind != "name" or value.kind in ("end", "arrow") or depth > 20:
            raise GraphError(
                f"line {token.line} of the GML text: expected a key and its value, found "
                f"{token.text!r}"
            )
        if (value.kind, value.text) == ("mark", "["):
            found.append(
                Entry(token.text.lower(), _read_entries(tokens, token, depth + 1), token.line)
            )
        elif value.kind in ("name", "quoted"):
            found.append(Entry(token.text.lower(), html.unescape(value.text), token.line))
        else:
            raise GraphError(f"line {value.line} of the GML text: {value.text!r} is no value")
    raise GraphError(f"line {opened.line} of the GML text: the bracket is not closed")


def _require_known(entries: list[Entry], what: str, *known: str) -> None:
    for entry in entries:
        if entry.key not in GML_DRAWN and entry.key not in known:
            raise GraphError(
                f"line {entry.line} of the GML text: the key {entry.key!r} of {what} is not "
                "understood"
            )


def _values(entry: Entry, known: Sequence[str]) -> dict[str, str]:
    if not isinstance(entry.value, list):
        raise GraphError(f"line {entry.line} of the GML text: {entry.key} needs [ ... ]")
    _require_known(entry.value, f"this {entry.key}", *known)
    return {each.key: each.value for each in entry.value if isinstance(each.value, str)}


def quoted(name: str, notation: str) -> str:
    """Return a name as dagitty and DOT write it."""
    if "\\" in name:
        raise GraphError(
            f"{name!r} holds a backslash, which {notation} cannot; rename the variable"
        )
    keywords = ("node", "edge", "graph", "digraph", "subgraph", "strict", "dag")
    if PLAIN_NAME.fullmatch(name) and name.isascii() and name.lower() not in keywords:
        return name
    return '"' + name.replace('"', '\\"') + '"'


def write_statements(head: str, given: GraphText, arc: str, notation: str) -> str:
    """Return a text of dagitty or DOT; `arc` is how a latent common cause is written."""
    lines = [quoted(name, notation) for name in given.nodes]
    names = dict(zip(given.nodes, lines, strict=True))
    lines += [f"{names[cause]} -> {names[effect]}" for cause, effect in given.directed]
    lines += [arc.format(names[one], names[other]) for one, other in given.bidirected]
    end = ";" if notation == "DOT" else ""
    return "\n".join([f"{head} {{", *(f"  {line}{end}" for line in lines), "}"]) + "\n"


def write_gml(given: GraphText) -> str:
    """Return a GML text in which a latent common cause is a node with `observed "no"`."""
    latent = [_unused(f"latent {n}", given.nodes) for n in range(1, len(given.bidirected) + 1)]
    names = [*given.nodes, *latent]
    ids = {name: position for position, name in enumerate(names)}
    edges = [*given.directed]
    for name, pair in zip(latent, given.bidirected, strict=True):
        edges += [(name, each) for each in pair]
    marks = ["", ' observed "no"']
    lines = [
        f"  node [ id {ids[name]} label {_gml_text(name)}{marks[name in latent]} ]"
        for name in names
    ]
    lines += [f"  edge [ source {ids[tail]} target {ids[head]} ]" for tail, head in edges]
    return "\n".join(["graph [", "  directed 1", *lines, "]"]) + "\n"


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "'"
    return name


def _gml_text(name: str) -> str:
    escaped = "".join(
        character if character.isascii() and character not in '&"' else f"&#{ord(character)};"
        for character in name
    )
    return f'"{escaped}"'
