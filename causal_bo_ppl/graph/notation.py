"""How is a graph written as a text?

Statements end at a semicolon or a line end; `#` starts a comment. A statement is a chain of names
joined by `->`, `<-` or `<->`, or one name alone, which declares a variable. An arc `<->` declares
nothing: a misspelt name in it is an error, not a new variable.
"""

import re
from itertools import pairwise
from typing import NamedTuple

from causal_bo_ppl.errors import GraphError

ARROW = re.compile(r"(<->|->|<-)")
# What is left of a mistyped arrow, a list of names, or another notation.
SLIP = re.compile(
    r"""[<>,{}"\[\]→←↔⟶⟵⟷–—−~]|^-|-$|--|=|\s-\s|\S\s*\+\s*\S|\so$|^o\s|:\s*[-\d.]+$"""
)
FORMULA = re.compile(r"~|\S\s*\+\s*\S")  # a regression as R and others write it
TERM = re.compile(r"[^\W\d][\w.]*")


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
            f"arrow of its own: {_without_formula(statement)!r} (from_edges takes names of any "
            "spelling)"
        )
    names = [_read_name(part, statement) for part in parts[::2]]
    if len(names) == 1 and names[0] not in edges.alone:
        edges.alone.append(names[0])
    for (left, right), arrow in zip(pairwise(names), parts[1::2], strict=True):
        if arrow == "<->":
            edges.bidirected.append((left, right))
        else:
            edges.directed.append((left, right) if arrow == "->" else (right, left))


def _without_formula(statement: str) -> str:
    """Return a formula such as `y ~ x + z` or `x + z -> y` as arrows; an example where it is none.

    `~~` stands for a latent common cause, as in path models.
    """
    parts = re.split(r"(~~|~|<->|->|<-)", statement)
    sides = [[term.strip() for term in part.split("+")] for part in parts[::2]]
    is_plain = all(TERM.fullmatch(term) for side in sides for term in side)
    if len(sides) < 2 or not is_plain:
        return "x -> y; z -> y"
    edges = []
    for (left, right), arrow in zip(pairwise(sides), parts[1::2], strict=True):
        pairs = [(one, other) for one in left for other in right]
        backwards, joint = arrow in ("~", "<-"), arrow in ("~~", "<->")
        for one, other in pairs:
            cause, effect = (other, one) if backwards else (one, other)
            edges.append(f"{cause} {'<->' if joint else '->'} {effect}")
    return "; ".join(edges)


def _read_name(part: str, statement: str) -> str:
    name = part.strip()
    if not name:
        raise GraphError(f"an arrow in {statement!r} lacks a variable; write for example 'X -> Y'")
    slip = SLIP.search(name)
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
        or SLIP.search(name)
        or set(name) & set("#;")
        or len(name.splitlines()) != 1
    )


def write_edges(
    nodes: tuple[str, ...],
    directed: tuple[tuple[str, str], ...],
    bidirected: tuple[tuple[str, str], ...],
) -> str:
    """Return the edges as a text, which `read_edges` reads back where every name is writable."""
    joined = {name for edge in directed for name in edge}
    alone = [name for name in nodes if name not in joined]
    arrows = [f"{tail} -> {head}" for tail, head in directed]
    return "; ".join([*alone, *arrows, *(f"{one} <-> {other}" for one, other in bidirected)])
